//! What is moved: the file that the launcher put into memory, or bytes of our own.

use alloc::sync::Arc;

use common::{Failure, Trying};
use platform::{DmaBuffer, Platform};
use sha2::{Digest, Sha256};

/// Bytes of the tour's own payload: odd on purpose.
const OWN_BYTES: usize = (16 << 20) + 77;

/// Bytes that stay where they are while the NIC reads them.
pub struct Payload {
    memory: Memory,
    /// Their digest.
    pub sha256: [u8; 32],
}

enum Memory {
    Module(&'static [u8]),
    Own(DmaBuffer),
    /// A file of no bytes comes as no module.
    Nothing,
}

impl Payload {
    /// The file that came along.
    pub fn file(_platform: &Arc<dyn Platform>) -> Result<Payload, Failure> {
        let bytes: usize = kernel::args()
            .get("bytes")
            .and_then(|bytes| bytes.parse().ok())
            .ok_or_else(|| Failure::new("the command line says no bytes=N"))?;
        let memory = match kernel::modules().next() {
            Some(module) if module.data.len() == bytes => Memory::Module(module.data),
            None if bytes == 0 => Memory::Nothing,
            _ => return Err(Failure::new("the file did not arrive in memory as the launcher said")),
        };
        let mut payload = Payload { memory, sha256: [0; 32] };
        payload.digest();
        Ok(payload)
    }

    /// Bytes that look random and do not repeat.
    pub fn own(platform: &Arc<dyn Platform>) -> Result<Payload, Failure> {
        let buffer = DmaBuffer::new(platform, OWN_BYTES, 4096)
            .map_err(|_| "out of memory")
            .trying("making a payload")?;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for offset in (0..OWN_BYTES).step_by(8) {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let word = state.to_le_bytes();
            let length = word.len().min(OWN_BYTES - offset);
            buffer.write(offset, &word[..length]).map_err(|_| Failure::new("payload out of bounds"))?;
        }
        let mut payload = Payload { memory: Memory::Own(buffer), sha256: [0; 32] };
        payload.digest();
        Ok(payload)
    }

    /// Where it begins.
    pub fn addr(&self) -> usize {
        match &self.memory {
            Memory::Module(data) => data.as_ptr() as usize,
            Memory::Own(buffer) => buffer.addr(),
            Memory::Nothing => 0,
        }
    }

    /// How long it is.
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Module(data) => data.len(),
            Memory::Own(buffer) => buffer.len(),
            Memory::Nothing => 0,
        }
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        match &self.memory {
            Memory::Module(data) => into.copy_from_slice(&data[offset..][..into.len()]),
            // In bounds: the callers ask for no more than `len`.
            Memory::Own(buffer) => drop(buffer.read(offset, into)),
            Memory::Nothing => {}
        }
    }

    fn digest(&mut self) {
        let mut digest = Sha256::new();
        self.chunks(|_, bytes| {
            digest.update(bytes);
            true
        });
        self.sha256 = digest.finalize().into();
    }

    /// Whether `copy` begins with the very same bytes.
    pub fn equals(&self, copy: &DmaBuffer) -> bool {
        let mut other = alloc::vec![0; CHUNK];
        self.chunks(|offset, bytes| {
            let other = &mut other[..bytes.len()];
            copy.read(offset, other).is_ok() && other == bytes
        })
    }

    /// Shows all bytes in order to `look`, as long as it says true; returns whether it always did.
    fn chunks(&self, mut look: impl FnMut(usize, &[u8]) -> bool) -> bool {
        let mut chunk = alloc::vec![0; CHUNK];
        (0..self.len()).step_by(CHUNK).all(|offset| {
            let bytes = &mut chunk[..CHUNK.min(self.len() - offset)];
            self.read(offset, bytes);
            look(offset, bytes)
        })
    }
}

/// Small enough to stay in the cache.
const CHUNK: usize = 16 << 10;

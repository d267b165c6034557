//! The payload: bytes that the launcher puts into this guest's memory, piece by piece.
//!
//! A file may be larger than any guest's memory, so only one piece of it is here at a time. The
//! image asks for the next piece by a line on the console:
//!
//! `@load ADDRESS LENGTH ANSWER`
//!
//! ADDRESS and ANSWER are bus addresses, in decimal like LENGTH. The launcher writes the next
//! LENGTH bytes of the file at ADDRESS. Then it writes the SHA-256 of all bytes so far at ANSWER +
//! [`DIGEST`], and last it adds 1 to the word at ANSWER. The launcher computes the digest because
//! that would take far longer under emulation than all else here.

use alloc::format;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::time::Duration;

use common::{Failure, Trying};
use kernel::{clock, println, thread};
use platform::{DmaBuffer, Platform};

/// Bytes of a piece, unless the guest has little memory.
const LONGEST: usize = 64 << 20;
/// The least length of a piece, except the last.
const SHORTEST: usize = 1 << 20;
/// The offset of the digest in an answer.
const DIGEST: usize = 32;
/// Bytes of an answer.
const ANSWER: usize = 64;
/// How long the launcher may take for a piece: its disk may be slow.
const PATIENCE: Duration = Duration::from_secs(600);
/// Bytes that are compared at once: few enough to stay in the cache.
const CHUNK: usize = 16 << 10;

/// Where the launcher answers a line.
struct Answer(DmaBuffer);

impl Answer {
    fn new(platform: &Arc<dyn Platform>) -> Result<Answer, Failure> {
        memory(platform, ANSWER, ANSWER).map(Answer)
    }

    /// Prints a request that ends with the address of this answer, and waits for the answer.
    fn ask(&self, request: core::fmt::Arguments<'_>) -> Result<(), Failure> {
        let answers =
            self.0.slice().atomic_u32(0).map_err(|_| Failure::new("the answer is out of bounds"))?;
        let before = answers.load(Ordering::Acquire);
        println!("{request} {}", self.0.bus());
        let deadline = clock::now() + PATIENCE;
        while answers.load(Ordering::Acquire) == before {
            if clock::now() > deadline {
                return Err(Failure::new(format!("the launcher does not answer {request}")));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn digest(&self) -> [u8; 32] {
        let mut digest = [0; 32];
        // In bounds: an answer has room for it.
        let _ = self.0.read(DIGEST, &mut digest);
        digest
    }
}

fn memory(platform: &Arc<dyn Platform>, length: usize, align: usize) -> Result<DmaBuffer, Failure> {
    DmaBuffer::new(platform, length, align).map_err(|_| "out of memory").trying("the payload's memory")
}

/// A payload, of which one piece at a time is in memory.
pub struct Payload {
    /// Bytes in all.
    pub bytes: u64,
    /// The memory for each piece; the NIC reads the piece from here.
    pub buffer: Arc<DmaBuffer>,
    /// Bytes of the piece that is loaded.
    pub length: usize,
    /// Bytes that have been loaded, including the present piece; `None` before the first.
    loaded: Option<u64>,
    answer: Answer,
}

impl Payload {
    /// A payload of as many bytes as the command line says. No piece is loaded yet.
    pub fn new(platform: &Arc<dyn Platform>) -> Result<Payload, Failure> {
        let bytes: u64 =
            kernel::args().get("bytes").and_then(|bytes| bytes.parse().ok()).ok_or_else(|| {
                Failure::new(
                    "there is nothing to move; `cargo run` and `cargo run -- transfer FILE` start this image",
                )
            })?;
        // The piece gets a quarter of the free memory and its copy another one; the rest stays
        // free.
        let longest = (kernel::memory::usage().free_pages / 4).clamp(SHORTEST, LONGEST) & !(SHORTEST - 1);
        // A region has at least one byte.
        let length = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(1, longest);
        let (buffer, answer) = (Arc::new(memory(platform, length, 4096)?), Answer::new(platform)?);
        Ok(Payload { bytes, buffer, length: 0, loaded: None, answer })
    }

    /// Loads the next piece; false if all have been loaded. A payload of no bytes has one piece of
    /// no bytes.
    pub fn next(&mut self) -> Result<bool, Failure> {
        if self.loaded == Some(self.bytes) {
            return Ok(false);
        }
        let loaded = self.loaded.unwrap_or(0);
        self.length = usize::try_from(self.bytes - loaded).unwrap_or(usize::MAX).min(self.buffer.len());
        self.answer.ask(format_args!("@load {} {}", self.buffer.bus(), self.length))?;
        self.loaded = Some(loaded + self.length as u64);
        Ok(true)
    }

    /// The SHA-256 of the pieces that have been loaded.
    pub fn sha256(&self) -> [u8; 32] {
        self.answer.digest()
    }

    /// Whether `copy` begins with the bytes of the piece.
    pub fn equals(&self, copy: &DmaBuffer) -> bool {
        let (mut ours, mut theirs) = (alloc::vec![0; CHUNK], alloc::vec![0; CHUNK]);
        (0..self.length).step_by(CHUNK).all(|offset| {
            let length = CHUNK.min(self.length - offset);
            let (ours, theirs) = (&mut ours[..length], &mut theirs[..length]);
            self.buffer.read(offset, ours).is_ok() && copy.read(offset, theirs).is_ok() && ours == theirs
        })
    }
}

/// The bytes that arrived from another machine. The launcher computes their digests.
pub struct Arrivals(Answer);

impl Arrivals {
    /// Nothing has arrived yet.
    pub fn new(platform: &Arc<dyn Platform>) -> Result<Arrivals, Failure> {
        Answer::new(platform).map(Arrivals)
    }

    /// The next `length` bytes have arrived in `way`, at the beginning of `copy`; returns the
    /// SHA-256 of all bytes that arrived in that way.
    pub fn arrived(&self, way: &str, copy: &DmaBuffer, length: usize) -> Result<[u8; 32], Failure> {
        self.0.ask(format_args!("@arrived {way} {} {length}", copy.bus()))?;
        Ok(self.0.digest())
    }
}

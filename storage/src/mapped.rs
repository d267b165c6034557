//! Memory that the NIC reaches through the direct LMR handle.

use alloc::sync::Arc;

use platform::{DmaBuffer, Platform};
use privileged_api::{ASPACE_KERNEL, Ia, IoAddr, LmrTriplet};

use crate::Error;
use crate::error::Calling;

/// Memory that is mapped once, by it_mem_map.
pub(crate) struct Mapped {
    pub(crate) memory: Arc<DmaBuffer>,
    address: IoAddr,
    len: usize,
}

impl Mapped {
    pub(crate) fn new(ia: &Ia, platform: &Arc<dyn Platform>, len: usize) -> Result<Mapped, Error> {
        let memory = DmaBuffer::new(platform, len, 4096).map_err(|_| Error::OutOfMemory)?;
        let memory = platform::heap::arc(memory).map_err(|_| Error::OutOfMemory)?;
        let (address, contiguous) = ia.mem_map(memory.addr(), ASPACE_KERNEL, len).calling("it_mem_map")?;
        let mapped = Mapped { memory, address, len: contiguous };
        // DMA memory is contiguous in bus addresses (`Platform::alloc_dma`).
        if contiguous == len { Ok(mapped) } else { Err(mapped.free(ia)) }
    }

    /// A piece, as a request names it.
    pub(crate) fn segment(&self, offset: usize, len: usize) -> LmrTriplet {
        LmrTriplet::direct(IoAddr(self.address.0 + offset as u64), len as u64)
    }

    /// Removes the mapping. No request may use the memory any more.
    pub(crate) fn free(self, ia: &Ia) -> Error {
        // Fails only if the IA is dead.
        let _ = ia.mem_unmap(self.address, self.len);
        Error::OutOfMemory
    }
}

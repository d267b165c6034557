//! The memory of descriptors, for the threads that post and reap: by memory handle, without a lock.
//!
//! A post writes Next into the descriptor before it (10.2), and a reap may have to read a
//! descriptor's status. Both go by the address and the memory handle that the consumer gave, which
//! may be anything: nothing outside of memory that is registered under that handle is touched.

use api_core::OutOfResources;
use kernel_agent::key;
use platform::{Chunks, Lendable, Lent, SharedSlice};

use crate::descriptor::{CONTROL_LEN, Descriptor};
use crate::error::{Error, Result};
use crate::handle::MemHandle;

/// Places are allocated in chunks of this many.
const CHUNK: usize = 64;

/// The registered memory, by the slot of its handle.
pub(crate) struct Links(Chunks<Lent, CHUNK>);

impl Links {
    /// For slots below `count`.
    pub(crate) fn new(count: u32) -> core::result::Result<Links, OutOfResources> {
        Ok(Links(Chunks::new(count as usize)?))
    }

    /// Lends memory that gets this handle.
    pub(crate) fn lend(&self, handle: MemHandle, memory: Lendable) -> Result<()> {
        let lent = self.0.get_or_create(key::slot(handle.as_raw()) as usize, Lent::new)?;
        // The former owner of the slot took its memory back before it released the slot.
        lent.lend(handle.as_raw(), memory).map_err(|_| Error::ErrorResource)
    }

    /// Takes the memory back: when this returns, no thread uses it.
    pub(crate) fn take_back(&self, handle: MemHandle) -> Option<Lendable> {
        self.0.get(key::slot(handle.as_raw()) as usize).and_then(Lent::take_back)
    }

    /// Runs `f` on the control segment at this address, if it is in memory with this handle.
    #[inline(always)]
    fn with<R>(&self, address: u64, handle: u32, f: impl FnOnce(Descriptor<'_>) -> R) -> Option<R> {
        let within = |memory: SharedSlice<'_>| {
            let offset = (address as usize).checked_sub(memory.as_ptr().addr())?;
            Some(f(Descriptor::new(memory.get(offset, CONTROL_LEN).ok()?).ok()?))
        };
        self.0.get(key::slot(handle) as usize)?.with(handle, within)?
    }

    /// Writes Next into the descriptor at `address`.
    #[inline(always)]
    pub(crate) fn link(&self, address: u64, handle: u32, next: u64, next_handle: u32) {
        let _ = self.with(address, handle, |descriptor| descriptor.set_next(next, next_handle));
    }

    /// Whether the descriptor is there and complete.
    pub(crate) fn is_done(&self, address: u64, handle: u32) -> bool {
        self.with(address, handle, |descriptor| descriptor.is_done()).unwrap_or(false)
    }
}

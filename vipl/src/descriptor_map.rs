//! The memory of descriptors, for the threads that post and reap: by memory handle, without a lock.
//!
//! A post writes Next into the descriptor before it (10.2), and a reap may have to read a
//! descriptor's status. Both go by the address and the memory handle that the consumer gave, which
//! may be anything: only what the device takes for a descriptor is touched. It is aligned, and in
//! memory that is registered under that handle and with the virtual interface's protection tag.

use alloc::sync::Arc;

use kernel_agent::descriptor::{CONTROL_LEN, Descriptor};
use kernel_agent::{DESCRIPTOR_ALIGN, key};
use platform::{Growing, Lendable, Lent, OutOfMemory, SharedSlice, heap};
use rdma::OutOfResources;

use crate::error::{Error, Result};
use crate::handle::MemHandle;

/// The bytes of Next and of its memory handle, with which a descriptor begins.
const NEXT_LEN: usize = 12;

/// What a loan is known by: the memory's handle and its protection domain.
#[inline(always)]
fn tag(handle: u32, domain: u32) -> u64 {
    u64::from(domain) << 32 | u64::from(handle)
}

/// The registered memory, by the slot of its handle.
pub(crate) struct DescriptorMap(Growing<Arc<Lent>>);

impl DescriptorMap {
    /// For slots below `count`.
    pub(crate) fn new(count: u32) -> core::result::Result<DescriptorMap, OutOfResources> {
        Ok(DescriptorMap(Growing::by_quarters(count as usize)?))
    }

    /// Lends memory that gets this handle, to virtual interfaces of this protection domain.
    pub(crate) fn lend(&self, handle: MemHandle, domain: u32, memory: Lendable) -> Result<()> {
        let slot = key::slot(handle.as_raw()) as usize;
        self.0.reach(slot, Arc::clone, || heap::arc(Lent::new()).map_err(|_| OutOfMemory))?;
        let lent = self.0.get(slot).ok_or(Error::ErrorResource)?;
        // The former owner of the slot took its memory back before it released the slot.
        lent.lend(tag(handle.as_raw(), domain), memory).map_err(|_| Error::ErrorResource)
    }

    /// Takes the memory back: when this returns, no thread uses it.
    pub(crate) fn take_back(&self, handle: MemHandle) -> Option<Lendable> {
        self.0.get(key::slot(handle.as_raw()) as usize)?.take_back()
    }

    /// Runs `f` on the control segment's bytes at this address, if they can be those of a
    /// descriptor in memory with this handle and of this domain.
    #[inline(always)]
    fn with<R>(
        &self,
        address: u64,
        (handle, domain): (u32, u32),
        f: impl FnOnce(SharedSlice<'_>) -> R,
    ) -> Option<R> {
        if !address.is_multiple_of(DESCRIPTOR_ALIGN) {
            return None;
        }
        let within = |memory: SharedSlice<'_>| {
            let offset = (address as usize).checked_sub(memory.as_ptr().addr())?;
            Some(f(memory.get(offset, CONTROL_LEN).ok()?))
        };
        self.0.get(key::slot(handle) as usize)?.with(tag(handle, domain), within)?
    }

    /// Writes Next into the descriptor at `address`.
    #[inline(always)]
    pub(crate) fn link(&self, address: u64, of: (u32, u32), next: u64, next_handle: u32) {
        self.with(address, of, |descriptor| {
            let mut bytes = [0; NEXT_LEN];
            bytes[..8].copy_from_slice(&next.to_le_bytes());
            bytes[8..].copy_from_slice(&next_handle.to_le_bytes());
            // It is within the control segment.
            let _ = descriptor.write(0, &bytes);
        });
    }

    /// Whether the descriptor is there and complete.
    pub(crate) fn is_done(&self, address: u64, of: (u32, u32)) -> bool {
        let is_done =
            |memory: SharedSlice<'_>| Descriptor::new(memory).is_ok_and(|descriptor| descriptor.is_done());
        self.with(address, of, is_done).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use host::Machine;
    use kernel_agent::descriptor::Status;
    use platform::DmaBuffer;

    use super::*;

    #[test]
    fn a_descriptor_is_done_if_it_is_in_lent_memory_of_its_domain_and_its_status_says_so() {
        const DOMAIN: u32 = 7;
        let machine = Machine::new(0);
        let buffer = Arc::new(DmaBuffer::new(&machine.platform(), 4096, 4096).unwrap());
        let descriptors = DescriptorMap::new(16).unwrap();
        let handle = MemHandle::from_raw(3);
        descriptors.lend(handle, DOMAIN, Lendable::buffer(buffer.clone(), 0, 4096).unwrap()).unwrap();
        let start = buffer.addr() as u64;
        let status = |at, status| {
            Descriptor::new(buffer.slice().get(at, CONTROL_LEN).unwrap()).unwrap().set_status(status);
        };
        let of = (handle.as_raw(), DOMAIN);
        for at in [0, 64, 4096 - 64] {
            assert!(!descriptors.is_done(start + at as u64, of));
            status(at, Status::FORMAT_ERROR);
            assert!(!descriptors.is_done(start + at as u64, of));
            status(at, Status::DONE | Status::OP_RECEIVE);
            assert!(descriptors.is_done(start + at as u64, of));
        }
        assert!(!descriptors.is_done(start, (handle.as_raw(), DOMAIN + 1)));
        assert!(!descriptors.is_done(start, (handle.as_raw() + 1, DOMAIN)));
        assert!(!descriptors.is_done(start + 4096, of) && !descriptors.is_done(start - 64, of));
        assert!(descriptors.take_back(handle).is_some());
        assert!(!descriptors.is_done(start, of));
    }
}

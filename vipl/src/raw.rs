//! Registering memory whose lifetime the caller guarantees: the one unsafe call of the API.
#![expect(unsafe_code, reason = "the caller promises that the memory stays valid")]

use core::ptr::NonNull;

use platform::Lendable;

use crate::attributes::MemAttributes;
use crate::error::{Error, Result};
use crate::handle::MemHandle;
use crate::memory::Wanted;
use crate::nic::Nic;

impl Nic {
    /// Registers `length` bytes of virtual memory at `address`; otherwise as
    /// [`Nic::register_mem`].
    ///
    /// Errors: those of [`Nic::register_mem`]; `InvalidParameter` where the device cannot reach the
    /// memory, `ErrorResource` also if the memory is in more extents than a region can have. Blocks
    /// for the device. May be called in handlers. Thread-safe. Page VipRegisterMem.
    ///
    /// # Safety
    ///
    /// Until the memory is deregistered or the NIC is closed, it must stay mapped as it is, and the
    /// reads and writes of the device and of this library (which links descriptors) must not make
    /// any use of the memory undefined: there must be no Rust reference to it.
    #[doc(alias = "VipRegisterMem")]
    pub unsafe fn register_mem_raw(
        &self,
        address: usize,
        length: u64,
        attributes: &MemAttributes,
    ) -> Result<MemHandle> {
        let core = self.call()?;
        let client = core.client()?;
        let len = usize::try_from(length).map_err(|_| Error::InvalidParameter)?;
        let start = NonNull::new(core::ptr::with_exposed_provenance_mut(address));
        let start = start.ok_or(Error::InvalidParameter)?;
        // SAFETY: the caller's promise. The links give the memory up before the registration ends.
        let lends = unsafe { Lendable::raw(start, len) };
        let address = address as u64;
        let wanted = Wanted { address, constant: false, buffer: None, lends: Some(lends) };
        core.register(wanted, length, attributes, |pd, rights| {
            client.register_virtual(pd, rights, address, start.as_ptr().addr(), length)
        })
    }
}

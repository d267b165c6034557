//! Registering memory whose lifetime the caller guarantees: the one unsafe call of the API.
#![expect(unsafe_code, reason = "the caller promises that the memory stays valid")]

use crate::flags::{MemPriv, MemType, VaType};
use crate::handle::PzHandle;
use crate::ia::Ia;
use crate::lmr::Lmr;
use crate::objects::lmr::Memory;
use crate::ret::Result;

impl Ia {
    /// Registers `length` bytes of virtual memory at `address`; otherwise as [`Ia::lmr_create`].
    ///
    /// Errors: those of [`Ia::lmr_create`]; `InvalidParameter` also where the device cannot reach
    /// the memory, or if it is in more extents than a region can have. Blocks for the device. Not
    /// for upcalls. Thread-safe. dat_lmr_create.
    ///
    /// # Safety
    ///
    /// Until the region, and every region that is made of its memory
    /// ([`RegionDescription::Lmr`](crate::RegionDescription::Lmr)), or the IA is freed, the memory
    /// must stay mapped as it is, and the device's reads and writes within the privileges must not
    /// make any use of the memory undefined: there must be no Rust reference to memory that the
    /// device may write.
    #[doc(alias = "dat_lmr_create")]
    pub unsafe fn lmr_create_raw(
        &self,
        address: usize,
        length: u64,
        pz: PzHandle,
        privileges: MemPriv,
        va_type: VaType,
    ) -> Result<Lmr> {
        let inner = self.call()?;
        let memory = || Ok((Memory::Raw { address, length }, MemType::Virtual));
        inner.create_lmr(memory, length, pz, privileges, va_type)
    }
}

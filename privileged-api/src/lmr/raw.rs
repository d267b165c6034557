//! Registering memory whose lifetime the caller guarantees: the one unsafe call of the API.
#![expect(unsafe_code, reason = "the caller promises that the memory stays valid")]

use super::create::Memory;
use crate::address::RmrContext;
use crate::attributes::AddrMode;
use crate::flags::{LmrFlags, MemPriv};
use crate::handle::{LmrHandle, PzHandle};
use crate::ia::Ia;
use crate::status::Result;

impl Ia {
    /// Registers `length` bytes of virtual memory at `addr`; otherwise as [`Ia::lmr_create`].
    ///
    /// Errors: those of [`Ia::lmr_create`]; `Fault` where the device cannot reach the memory,
    /// `ResourceLmrLength` also if the memory is in more extents than a list can have elements
    /// (262,144). Blocks for the device. Not for callbacks. Thread-safe. Page it_lmr_create.
    ///
    /// # Safety
    ///
    /// Until the region or the IA is freed, the memory must stay mapped as it is, and the device's
    /// reads and writes within the privileges must not make any use of the memory undefined: there
    /// must be no Rust reference to memory that the device may write.
    #[doc(alias = "it_lmr_create")]
    #[expect(clippy::too_many_arguments, reason = "the page has them")]
    pub unsafe fn lmr_create_raw(
        &self,
        pz: PzHandle,
        addr: usize,
        length: u64,
        addr_mode: AddrMode,
        privs: MemPriv,
        flags: LmrFlags,
        shared_id: u32,
    ) -> Result<(LmrHandle, Option<RmrContext>)> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let wanted = core.wanted(pz, length, addr_mode, privs, flags, shared_id)?;
        core.register(wanted, |core, wanted| Ok((Memory::plain(addr), core.virtual_region(wanted, addr)?)))
    }
}

//! Registering memory that the caller answers for: the one unsafe call of the API.
#![expect(unsafe_code, reason = "the caller promises that the memory stays valid")]

use alloc::vec::Vec;

use super::create::Made;
use crate::address::RmrContext;
use crate::attributes::AddrMode;
use crate::flags::{IoblTypes, LmrFlags, MemPriv};
use crate::handle::{LmrHandle, PzHandle};
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

impl Ia {
    /// Registers `length` bytes of virtual memory at `addr`. Like [`Ia::lmr_create`] otherwise.
    ///
    /// Errors: those of [`Ia::lmr_create`]; `Fault` where the device cannot reach the memory. Page it_lmr_create.
    ///
    /// # Safety
    ///
    /// Until the region is freed (or the IA is), the memory stays mapped as it is, and it is used for nothing that the device's reads and
    /// writes, within the privileges given, would make undefined: no Rust reference to what the device may write.
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
        let core = self.live()?;
        core.shared.not_in_callback()?;
        let wanted = core.wanted(pz, length, addr_mode, privs, flags, shared_id)?;
        core.register(wanted, |core, wanted, rights| {
            let runs = core.translate(addr, wanted.length)?;
            let pd = &wanted.zone.pz().pd;
            let region = core.client()?.register_virtual(pd, rights, addr as u64, addr, wanted.length);
            Ok(Made {
                region: region.map_err(|error| core.error(error))?,
                buffer: None,
                addr,
                iobl_type: IoblTypes::empty(),
                runs,
            })
        })
    }
}

impl Core {
    /// Virtual memory as runs of bus addresses, adjacent ones joined.
    fn translate(&self, addr: usize, length: u64) -> Result<Vec<(u64, u64)>> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut virt = addr;
        let mut left = length;
        while left > 0 {
            let extent =
                self.shared.platform.translate(virt).filter(|extent| extent.len > 0).ok_or(Error::Fault)?;
            let len = extent.len.min(left);
            match runs.last_mut() {
                Some((start, run)) if start.wrapping_add(*run) == extent.addr => *run += len,
                _ => {
                    runs.try_reserve(1).map_err(|_| Error::Resources)?;
                    runs.push((extent.addr, len));
                }
            }
            left -= len;
            virt = usize::try_from(len).ok().and_then(|len| virt.checked_add(len)).ok_or(Error::Fault)?;
        }
        Ok(runs)
    }
}

//! Modifying regions (page it_lmr_modify).

use kernel_agent::LinkFlags;

use crate::attributes::{AddrMode, LmrParam};
use crate::flags::{LmrParamMask, MemPriv};
use crate::handle::LmrHandle;
use crate::ia::{Core, Ia};
use crate::lmr::rights::{WRITES, is_valid_combination, rights};
use crate::objects::lmr::Lmr;
use crate::status::{Error, Result};

/// The parameters that may be modified.
const MODIFIABLE: LmrParamMask = LmrParamMask::PZ.union(LmrParamMask::MEM_PRIV);

impl Ia {
    /// Changes the protection zone of a region, its privileges, or both. If peers have privileges,
    /// the region has a new context afterwards, which [`Ia::lmr_query`] returns; the old context is
    /// invalid. A later link brings its own privileges.
    ///
    /// Errors that change nothing: `InvalidLmr`, `InvalidMask` (a parameter that cannot be
    /// modified; privileges of a region that is not linked, which has none), `LmrBusy` while an RMR
    /// is linked to it. All other errors free the region: `InvalidPz`, `InvalidPrivs` (undefined
    /// bits, or privileges that such a region cannot have together), `Access` (privileges that the
    /// consumer itself does not have on the memory), `Resources`. A dead device (`IaCatastrophe`)
    /// and a freed IA (`InvalidIa`) change nothing. Blocks for the device. Not for callbacks.
    /// Thread-safe. Page it_lmr_modify.
    #[doc(alias = "it_lmr_modify")]
    pub fn lmr_modify(&self, lmr: LmrHandle, mask: LmrParamMask, params: &LmrParam) -> Result<()> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let lmr = core.lmr(lmr)?;
        let _changes = lmr.changes.lock(&core.shared.platform);
        core.still(&lmr)?;
        if mask.bits() & !MODIFIABLE.bits() != 0 {
            return Err(Error::InvalidMask);
        }
        let info = lmr.region.query().map_err(|error| match error {
            kernel_agent::Error::Gone => Error::InvalidLmr,
            other => core.error(other),
        })?;
        if info.linked == 0 && mask.contains(LmrParamMask::MEM_PRIV) {
            return Err(Error::InvalidMask);
        }
        if info.windows_or_region > 0 {
            return Err(Error::LmrBusy);
        }
        if mask.is_empty() {
            return Ok(());
        }
        match core.modify(&lmr, mask, params) {
            Err(Error::InvalidMask) => Err(Error::InvalidMask),
            // A window may have been bound since the check.
            Err(error) if error != Error::IaCatastrophe && !core.free_lmr(&lmr) => Err(Error::LmrBusy),
            modified => modified,
        }
    }
}

impl Core {
    /// Modifies a region. `InvalidMask` if it is to get privileges, but was unlinked since the
    /// check.
    fn modify(&self, lmr: &Lmr, mask: LmrParamMask, params: &LmrParam) -> Result<()> {
        let zone = match mask.contains(LmrParamMask::PZ) {
            true => Some(self.enter_zone(params.pz)?),
            false => None,
        };
        let rights = match mask.contains(LmrParamMask::MEM_PRIV) {
            true => Some(lmr.modified_rights(params.privs)?),
            false => None,
        };
        let modified = lmr.region.modify(zone.as_ref().map(|zone| &zone.pd), rights);
        modified.map_err(|error| match error {
            kernel_agent::Error::NotLinked => Error::InvalidMask,
            other => self.error(other),
        })?;
        // A modification makes a new remote key, by which VIA names the region also here.
        self.keys.set(lmr.handle.as_raw(), self.name_of(&lmr.region));
        if let Some(zone) = zone {
            let former = core::mem::replace(&mut *lmr.zone.lock(), zone);
            former.end();
        }
        Ok(())
    }
}

impl Lmr {
    /// The device's form of new privileges (it_lmr_create, it_lmr_link).
    fn modified_rights(&self, privs: MemPriv) -> Result<LinkFlags> {
        if MemPriv::from_bits(privs.bits()).is_none()
            || !is_valid_combination(privs)
            || !self.is_linkable() && !privs.contains(MemPriv::LOCAL_READ)
        {
            return Err(Error::InvalidPrivs);
        }
        if self.read_only && privs.intersects(WRITES) {
            return Err(Error::Access);
        }
        // The addressing does not change.
        Ok(rights(privs, AddrMode::Absolute))
    }
}

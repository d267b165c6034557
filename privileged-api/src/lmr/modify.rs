//! Modifying regions (page it_lmr_modify).

use super::Lmr;
use super::{WRITES, is_valid_combination, rights};
use crate::attributes::{AddrMode, LmrParam};
use crate::flags::{LmrParamMask, MemPriv};
use crate::handle::LmrHandle;
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

/// The parameters that may be modified.
const MODIFIABLE: LmrParamMask = LmrParamMask::PZ.union(LmrParamMask::MEM_PRIV);

impl Ia {
    /// Changes the protection zone of a region, its privileges, or both. If peers have privileges,
    /// the region has a new context afterwards, which [`Ia::lmr_query`] returns; the old context is
    /// invalid.
    ///
    /// Errors that change nothing: `InvalidLmr`, `InvalidMask` (a parameter that cannot be
    /// modified; privileges of a region that was created unlinked, which its links define),
    /// `LmrBusy` while an RMR is linked to it. All other errors free the region: `InvalidPz`,
    /// `InvalidPrivs` (undefined bits), `Access` (privileges that a region cannot have together, or
    /// that the consumer itself does not have on the memory), `Resources`. A dead device
    /// (`IaCatastrophe`) and a freed IA (`InvalidIa`) change nothing. Blocks for the device. Not
    /// for callbacks. Thread-safe. Page it_lmr_modify.
    #[doc(alias = "it_lmr_modify")]
    pub fn lmr_modify(&self, lmr: LmrHandle, mask: LmrParamMask, params: &LmrParam) -> Result<()> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let lmr = core.lmr(lmr)?;
        let _changes = lmr.changes.lock(&core.shared.platform);
        core.still(&lmr)?;
        if mask.bits() & !MODIFIABLE.bits() != 0 || lmr.is_linkable() && mask.contains(LmrParamMask::MEM_PRIV)
        {
            return Err(Error::InvalidMask);
        }
        let info = lmr.region.query().map_err(|error| match error {
            kernel_agent::Error::Gone => Error::InvalidLmr,
            other => core.error(other),
        })?;
        if info.windows_or_region > 0 {
            return Err(Error::LmrBusy);
        }
        if mask.is_empty() {
            return Ok(());
        }
        match core.modify(&lmr, info.key, mask, params) {
            // A window may have been bound since the check.
            Err(error) if error != Error::IaCatastrophe && !core.free_lmr(&lmr) => Err(Error::LmrBusy),
            modified => modified,
        }
    }
}

impl Core {
    /// Modifies a region that has this key.
    fn modify(&self, lmr: &Lmr, key: u32, mask: LmrParamMask, params: &LmrParam) -> Result<()> {
        let handle = lmr.zone.lock().handle;
        let zone = self.enter_zone(if mask.contains(LmrParamMask::PZ) { params.pz } else { handle })?;
        // A link that another thread posts meanwhile gets another variant, and is executed after
        // this change.
        let (mut now, variant) = {
            let mut links = lmr.links.lock();
            links.variant = links.variant.checked_add(1).unwrap_or(1);
            (links.in_force(key), links.variant)
        };
        if mask.contains(LmrParamMask::MEM_PRIV) {
            let privs = params.privs;
            if MemPriv::from_bits(privs.bits()).is_none() {
                return Err(Error::InvalidPrivs);
            }
            if !is_valid_combination(privs) || !privs.contains(MemPriv::LOCAL_READ) {
                return Err(Error::Access);
            }
            if lmr.read_only && privs.intersects(WRITES) {
                return Err(Error::Access);
            }
            now.privs = privs;
        }
        // The addressing does not change.
        let rights = rights(now.privs, AddrMode::Absolute);
        let modified = lmr.region.modify(&zone.pd, rights, variant);
        now.key = modified.map_err(|error| self.error(error))?;
        let former = core::mem::replace(&mut *lmr.zone.lock(), zone);
        former.end();
        let mut links = lmr.links.lock();
        if links.posted.changed(key, now) {
            links.before_runs.clear();
            self.keys.set(lmr.handle, now.key);
        }
        Ok(())
    }
}

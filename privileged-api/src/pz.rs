//! Protection zones (pages it_pz_create, it_pz_query, it_pz_free).

use platform::heap;
use platform::use_count::NotClosed;

use crate::attributes::PzParam;
use crate::flags::PzParamMask;
use crate::handle::PzHandle;
use crate::ia::{Core, Ia};
use crate::objects::pz::{InZone, Pz};
use crate::status::{Error, Result};

impl Core {
    /// Counts an object into a zone. Fails with `InvalidPz` if the zone does not exist or is being
    /// freed.
    pub(crate) fn enter_zone(&self, pz: PzHandle) -> Result<InZone> {
        let pz = self.pzs.get(pz).ok_or(Error::InvalidPz)?;
        InZone::begin(pz).ok_or(Error::InvalidPz)
    }

    /// Frees a zone in which there are no objects.
    pub(crate) fn free_pz(&self, pz: &Pz) {
        self.pzs.remove(pz.handle);
        // No object uses it, so this fails only if the device is dead.
        let _ = pz.pd.destroy();
    }
}

impl Ia {
    /// Creates a protection zone.
    ///
    /// Errors: `Resources`, `InvalidIa`, `IaCatastrophe`. Blocks for the device. Not for callbacks.
    /// Thread-safe. Page it_pz_create.
    #[doc(alias = "it_pz_create")]
    pub fn pz_create(&self) -> Result<PzHandle> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let reservation = core.pzs.reserve()?;
        let pd = core.client()?.create_pd().map_err(|error| core.error(error))?;
        let handle = reservation.handle();
        let pz = heap::arc(Pz::new(handle, pd));
        reservation.fill(pz.map_err(|pz| {
            let _ = pz.pd.destroy();
            Error::Resources
        })?);
        Ok(handle)
    }

    /// Returns the parameters of a protection zone.
    ///
    /// Errors: `InvalidPz`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Does not block. May be
    /// called in callbacks. Thread-safe. Page it_pz_query.
    #[doc(alias = "it_pz_query")]
    pub fn pz_query(&self, pz: PzHandle, mask: PzParamMask) -> Result<PzParam> {
        let core = self.live()?;
        core.pzs.with(pz, |_| ()).ok_or(Error::InvalidPz)?;
        if PzParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let mut param = PzParam::default();
        if mask.intersects(PzParamMask::IA | PzParamMask::ALL) {
            param.ia = core.handle;
        }
        Ok(param)
    }

    /// Frees a protection zone.
    ///
    /// Errors: `InvalidPz`, `PzBusy` while an object is in the zone, `InvalidIa`, `IaCatastrophe`.
    /// Blocks for the device. May be called in callbacks. Thread-safe: a call that races with it
    /// succeeds or finds the handle invalid. Page it_pz_free.
    #[doc(alias = "it_pz_free")]
    pub fn pz_free(&self, pz: PzHandle) -> Result<()> {
        let core = self.call()?;
        let pz = core.pzs.get(pz).ok_or(Error::InvalidPz)?;
        pz.uses.close().map_err(|reason| match reason {
            NotClosed::InUse => Error::PzBusy,
            NotClosed::AlreadyClosed => Error::InvalidPz,
        })?;
        core.free_pz(&pz);
        Ok(())
    }
}

//! Protection zones (dat_pz_create, dat_pz_query, dat_pz_free).

use alloc::sync::Arc;

use platform::use_count::NotClosed;

use crate::attr::PzParam;
use crate::error::{NO_MEMORY, handle, state};
use crate::handle::PzHandle;
use crate::ia::{Ia, Inner};
use crate::objects::pz::{InZone, Pz};
use crate::ret::{Error, Result, Subtype};

const INVALID: Error = handle(Subtype::InvalidHandlePz);

impl Ia {
    /// Creates a protection zone.
    ///
    /// Errors: `InsufficientResources`, `InvalidState` (in an upcall). Blocks for the device. Not
    /// for upcalls. Thread-safe. dat_pz_create.
    #[doc(alias = "dat_pz_create")]
    pub fn pz_create(&self) -> Result<PzHandle> {
        let inner = self.call()?;
        inner.not_in_upcall()?;
        let reservation = inner.pzs.reserve()?;
        let zone = inner.new_zone(reservation.handle())?;
        Ok(reservation.fill(zone))
    }

    /// Returns a protection zone's parameters.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_pz_query.
    #[doc(alias = "dat_pz_query")]
    pub fn pz_query(&self, pz: PzHandle) -> Result<PzParam> {
        self.inner.live()?;
        self.inner.pzs.with(pz, |_| ()).ok_or(INVALID)?;
        Ok(PzParam { ia_handle: self.handle() })
    }

    /// Frees a protection zone.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (subtype `InvalidStatePzInUse`: an endpoint, a
    /// region, a shared receive queue or an address handle is in it). Blocks for the device. May be
    /// called in upcalls. Thread-safe: a call that races with it succeeds or finds the handle
    /// invalid. dat_pz_free.
    #[doc(alias = "dat_pz_free")]
    pub fn pz_free(&self, pz: PzHandle) -> Result<()> {
        let inner = self.call()?;
        let pz = inner.pzs.get(pz).ok_or(INVALID)?;
        pz.uses.close().map_err(|reason| match reason {
            NotClosed::InUse => state(Subtype::InvalidStatePzInUse),
            NotClosed::AlreadyClosed => INVALID,
        })?;
        inner.end_pz(&pz);
        Ok(())
    }
}

impl Inner {
    pub(crate) fn new_zone(&self, handle: PzHandle) -> Result<Arc<Pz>> {
        let pd = self.client()?.create_pd().map_err(|error| self.error(error))?;
        let zone = Pz::new(handle, pd);
        platform::heap::arc(zone).map_err(|zone| {
            let _ = zone.pd.destroy();
            NO_MEMORY
        })
    }

    /// Puts an object into a zone.
    pub(crate) fn enter_zone(&self, pz: PzHandle) -> Result<InZone> {
        InZone::begin(self.pzs.get(pz).ok_or(INVALID)?).ok_or(INVALID)
    }

    pub(crate) fn end_pz(&self, pz: &Pz) {
        self.pzs.remove(pz.handle);
        // No object is in it, so this fails only if the device is dead.
        let _ = pz.pd.destroy();
    }
}

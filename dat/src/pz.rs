//! Protection zones (dat_pz_create, dat_pz_query, dat_pz_free).

use crate::attr::PzParam;
use crate::handle::PzHandle;
use crate::ia::Ia;
use crate::ret::Result;
use privileged_api as it;

impl Ia {
    /// Creates a protection zone.
    ///
    /// Errors: `InsufficientResources`, `InvalidState` (in an upcall). Blocks for the device. Not
    /// for upcalls. Thread-safe. dat_pz_create.
    #[doc(alias = "dat_pz_create")]
    pub fn pz_create(&self) -> Result<PzHandle> {
        Ok(PzHandle::of(self.it.pz_create()?))
    }

    /// Returns a protection zone's parameters.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_pz_query.
    #[doc(alias = "dat_pz_query")]
    pub fn pz_query(&self, pz: PzHandle) -> Result<PzParam> {
        self.it.pz_query(pz.inner(), it::PzParamMask::ALL)?;
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
        Ok(self.it.pz_free(pz.inner())?)
    }
}

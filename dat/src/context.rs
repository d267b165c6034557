//! Consumer contexts and handle types (dat_set_consumer_context, dat_get_consumer_context,
//! dat_get_handle_type).

use rdma::Context;

use crate::handle::{Handle, HandleType};
use crate::ia::{Ia, Inner};
use crate::objects::evd::Evd;
use crate::ret::{Error, ErrorType, Result, Subtype};

const INVALID: Error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandle1);

impl Inner {
    /// Runs `f` on the context of an object.
    fn with_context<R>(&self, handle: Handle, f: impl FnOnce(&Context) -> R) -> Result<R> {
        let done = match handle.claimed_type() {
            Some(HandleType::Ia) if handle.as_raw() == self.handle.as_raw() => Some(f(&self.context)),
            Some(HandleType::Pz) => self.pzs.with(handle.typed(), |pz| f(&pz.context)),
            Some(HandleType::Lmr) => self.lmrs.with(handle.typed(), |lmr| f(&lmr.context)),
            Some(HandleType::Rmr) => self.rmrs.with(handle.typed(), |rmr| f(&rmr.context)),
            Some(HandleType::Srq) => self.srqs.with(handle.typed(), |srq| f(&srq.context)),
            Some(HandleType::Evd) => {
                let of = |evd: &Evd| (!evd.hidden).then(|| f(&evd.context));
                self.evds.with(handle.typed(), of).flatten()
            }
            Some(HandleType::Ep) => self.eps.with(handle.typed(), |ep| f(&ep.context)),
            Some(HandleType::IbExt) => self.addresses.with(handle.typed(), |address| f(&address.context)),
            Some(HandleType::Cno) => self.cnos.with(handle.typed(), |cno| f(&cno.context)),
            Some(HandleType::Psp) => self.psps.with(handle.typed(), |psp| f(&psp.context)),
            Some(HandleType::Rsp) => self.rsps.with(handle.typed(), |rsp| f(&rsp.context)),
            Some(HandleType::Cr) => self.crs.with(handle.typed(), |cr| f(&cr.context)),
            Some(HandleType::Ia | HandleType::Csp) | None => None,
        };
        done.ok_or(INVALID)
    }
}

impl Ia {
    /// Returns the type of the object that a handle names.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_get_handle_type.
    #[doc(alias = "dat_get_handle_type")]
    pub fn get_handle_type(&self, handle: impl Into<Handle>) -> Result<HandleType> {
        let (inner, handle) = (&self.inner, handle.into());
        inner.live()?;
        inner.with_context(handle, |_| ())?;
        handle.claimed_type().ok_or(INVALID)
    }

    /// Returns the context of an object; `None` if none is set.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_get_consumer_context.
    #[doc(alias = "dat_get_consumer_context")]
    pub fn get_consumer_context(&self, handle: impl Into<Handle>) -> Result<Option<u64>> {
        let (inner, handle) = (&self.inner, handle.into());
        inner.live()?;
        inner.with_context(handle, Context::get)
    }

    /// Sets the context of an object, in place of an earlier one; `None` removes it.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_set_consumer_context.
    #[doc(alias = "dat_set_consumer_context")]
    pub fn set_consumer_context(
        &self,
        handle: impl Into<Handle>,
        context: impl Into<Option<u64>>,
    ) -> Result<()> {
        let (inner, handle, context) = (&self.inner, handle.into(), context.into());
        inner.live()?;
        inner.with_context(handle, |place| place.set(context))
    }
}

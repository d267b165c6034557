//! Consumer contexts and handle types (pages it_set_consumer_context, it_get_consumer_context,
//! it_get_handle_type).

use rdma::Context;

use crate::handle::{Handle, HandleType};
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

impl Core {
    /// Runs `f` on the context of the object that the handle names. Fails with `InvalidHandle` if
    /// there is no such object.
    fn with_context<R>(&self, handle: Handle, f: impl FnOnce(&Context) -> R) -> Result<R> {
        let word = handle.as_raw();
        let done = match handle.claimed_type() {
            Some(HandleType::Ia) if word == self.handle.as_raw() => Some(f(&self.context)),
            Some(HandleType::Pz) => self.pzs.with(handle.typed(), |pz| f(&pz.context)),
            Some(HandleType::Lmr) => self.lmrs.with(handle.typed(), |lmr| f(&lmr.context)),
            Some(HandleType::Rmr) => self.rmrs.with(handle.typed(), |rmr| f(&rmr.context)),
            Some(HandleType::Srq) => self.srqs.with(handle.typed(), |srq| f(&srq.context)),
            Some(HandleType::Evd) => self.evds.with(handle.typed(), |evd| f(&evd.context)),
            Some(HandleType::Ep) => self.eps.with(handle.typed(), |ep| f(&ep.context)),
            Some(HandleType::Addr) => self.addrs.with(handle.typed(), |address| f(address.context())),
            Some(HandleType::UdSvcReq) => {
                self.ud_svc_reqs.with(handle.typed(), |request| f(&request.context))
            }
            Some(HandleType::Listen) => self.listens.with(handle.typed(), |listen| f(&listen.context)),
            _ => None,
        };
        done.ok_or(Error::InvalidHandle)
    }
}

impl Ia {
    /// Returns the type of the object that a handle names.
    ///
    /// Errors: `InvalidHandle`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe. Page it_get_handle_type (that page is lost; the call follows
    /// it_get_consumer_context).
    #[doc(alias = "it_get_handle_type")]
    pub fn get_handle_type(&self, handle: impl Into<Handle>) -> Result<HandleType> {
        let core = self.live()?;
        let handle = handle.into();
        core.with_context(handle, |_| ())?;
        handle.claimed_type().ok_or(Error::InvalidHandle)
    }

    /// Returns the context of an object.
    ///
    /// Errors: `InvalidHandle`, `NoContext` (none is set), `InvalidIa`, `IaCatastrophe`. Does not
    /// block. May be called in callbacks. Thread-safe. Page it_get_consumer_context.
    #[doc(alias = "it_get_consumer_context")]
    pub fn get_consumer_context(&self, handle: impl Into<Handle>) -> Result<u64> {
        let core = self.live()?;
        core.with_context(handle.into(), Context::get)?.ok_or(Error::NoContext)
    }

    /// Sets the context of an object, in place of an earlier one; `None` removes it. 0 is a context
    /// like any other value (erratum SUN3).
    ///
    /// Errors: `InvalidHandle`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe. Page it_set_consumer_context.
    #[doc(alias = "it_set_consumer_context")]
    #[doc(alias = "it_context_t")]
    pub fn set_consumer_context(
        &self,
        handle: impl Into<Handle>,
        context: impl Into<Option<u64>>,
    ) -> Result<()> {
        let core = self.live()?;
        let context = context.into();
        core.with_context(handle.into(), |place| place.set(context))
    }
}

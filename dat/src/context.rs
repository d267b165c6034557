//! Consumer contexts and handle types (dat_set_consumer_context, dat_get_consumer_context,
//! dat_get_handle_type).

use privileged_api as it;
use rdma::Context;

use crate::handle::{Handle, HandleType};
use crate::ia::{Ia, Inner};
use crate::ret::{Error, ErrorType, Result, Subtype};

const INVALID: Error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandle1);

impl Inner {
    /// Runs `f` on the context of an object that IT-API does not know; `None` if the handle claims
    /// a type that IT-API has too.
    fn own_context<R>(&self, handle: Handle, f: impl FnOnce(&Context) -> R) -> Option<Result<R>> {
        let word = handle.as_raw();
        let done = match handle.claimed_type()? {
            HandleType::Ia if word == self.handle.as_raw() => Some(f(&self.context)),
            HandleType::Cno => self.cnos.with(handle.typed(), |cno| f(&cno.context)),
            HandleType::Psp => self.psps.with(handle.typed(), |psp| f(&psp.context)),
            HandleType::Rsp => self.rsps.with(handle.typed(), |rsp| f(&rsp.context)),
            HandleType::Cr => self.crs.with(handle.typed(), |cr| f(&cr.context)),
            _ => return None,
        };
        Some(done.ok_or(INVALID))
    }

    /// Fails unless this IA gave the handle to the consumer.
    fn check_shared(&self, handle: Handle) -> Result<it::Handle> {
        let word = handle.as_raw();
        let known = match handle.claimed_type() {
            // DAT creates IT-API objects for its own use, whose handles the consumer does not get.
            Some(HandleType::Evd) => self.evds.get(handle.typed()).is_some(),
            Some(HandleType::Pz) => self.hidden.lock().zone.is_none_or(|zone| zone.as_raw() != word),
            Some(_) => true,
            None => false,
        };
        if known { Ok(it::Handle::from_raw(word)) } else { Err(INVALID) }
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
        if let Some(found) = inner.own_context(handle, |_| ()) {
            found?;
        } else {
            self.it.get_handle_type(inner.check_shared(handle)?).map_err(|_| INVALID)?;
        }
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
        if let Some(found) = inner.own_context(handle, Context::get) {
            return found;
        }
        match self.it.get_consumer_context(inner.check_shared(handle)?) {
            Ok(context) => Ok(Some(context)),
            Err(it::Error::NoContext) => Ok(None),
            Err(it::Error::InvalidHandle) => Err(INVALID),
            Err(other) => Err(other.into()),
        }
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
        if let Some(found) = inner.own_context(handle, |place| place.set(context)) {
            return found;
        }
        let set = self.it.set_consumer_context(inner.check_shared(handle)?, context);
        set.map_err(|error| match error {
            it::Error::InvalidHandle => INVALID,
            other => other.into(),
        })
    }
}

//! Remote memory regions (dat_rmr_create, dat_rmr_bind, dat_rmr_query, dat_rmr_free).

use privileged_api as it;

use crate::attr::{RmrParam, RmrScope};
use crate::ep::Bind;
use crate::error::{MODEL, of, parameter};
use crate::flags::{CompletionFlags, MemPriv, VaType};
use crate::handle::{EpHandle, LmrHandle, PzHandle, RmrHandle};
use crate::ia::Ia;
use crate::lmr::{privileges, privileges_of};
use crate::ret::{Result, Subtype};
use crate::segment::{LmrContext, LmrTriplet, RmrContext};

impl Ia {
    /// Creates an unbound remote memory region for all endpoints of a protection zone.
    ///
    /// Errors: `InvalidHandle`, `ModelNotSupported` (the adapter lacks such regions),
    /// `InsufficientResources`, `InvalidState` (in an upcall). Blocks for the device. Not for
    /// upcalls. Thread-safe. dat_rmr_create.
    #[doc(alias = "dat_rmr_create")]
    pub fn rmr_create(&self, pz: PzHandle) -> Result<RmrHandle> {
        let made = self.it.rmr_create(pz.inner(), it::RmrType::Wide);
        made.map(RmrHandle::of).map_err(|error| match error {
            it::Error::InvalidRmrType => MODEL,
            other => of(other),
        })
    }

    /// Posts a bind of a remote memory region to a part of a local region. Returns the context with
    /// which peers reach the memory once the bind is complete. A length of 0 unbinds; the context
    /// that is returned then names nothing.
    ///
    /// Requests that are posted to the endpoint afterwards wait for the bind, which completes as
    /// [`RMR_BIND_COMPLETION`](crate::EventNumber::RMR_BIND_COMPLETION) on the endpoint's event
    /// dispatcher of requests. If it fails, the connection breaks, and an earlier bind stays in
    /// force. In DISCONNECTED it is flushed. The privileges are those of peers.
    ///
    /// Errors: `InvalidHandle` (RMR, LMR, EP), `InvalidParameter` (a piece outside the region, a
    /// context that is not the region's, privileges, flags: neither solicited nor, unless the
    /// endpoint's requests have it, unsignalled), `InvalidState` (neither CONNECTED nor
    /// DISCONNECTED), `ModelNotSupported` (zero-based), `InsufficientResources`. Does not block.
    /// May be called in upcalls. Thread-safe. dat_rmr_bind.
    #[doc(alias = "dat_rmr_bind")]
    #[expect(clippy::too_many_arguments, reason = "those of dat_rmr_bind")]
    pub fn rmr_bind(
        &self,
        rmr: RmrHandle,
        lmr: LmrHandle,
        lmr_triplet: &LmrTriplet,
        mem_priv: MemPriv,
        va_type: VaType,
        ep: EpHandle,
        user_cookie: u64,
        completion_flags: CompletionFlags,
    ) -> Result<RmrContext> {
        let inner = &self.inner;
        let found = inner.ep(ep)?;
        let suppressed = completion_flags.contains(CompletionFlags::SUPPRESS);
        // IT-API reports every bind, since the record of the bind, which has the region, is removed
        // on its completion. The event of a suppressed success is dropped then.
        let shown = completion_flags.difference(CompletionFlags::SUPPRESS);
        if shown.contains(CompletionFlags::SOLICITED_WAIT) {
            return Err(parameter(Subtype::InvalidArg8));
        }
        let flags = inner.request_flags(ep, shown).map_err(|error| match error {
            _ if error == parameter(Subtype::None) => parameter(Subtype::InvalidArg8),
            other => other,
        })?;
        self.it.rmr_query(rmr.inner(), it::RmrParamMask::empty())?;
        let bind = Bind { rmr, suppressed };
        let length = lmr_triplet.segment_length();
        if length == 0 {
            let post = || Ok(self.it.rmr_unlink(rmr.inner(), ep.inner(), user_cookie, flags)?);
            return found.bind(bind, post).map(|()| 0).map_err(|error| self.not_bound(ep, error));
        }
        inner.check_privileges(mem_priv, Subtype::InvalidArg4)?;
        if va_type != VaType::Va {
            return Err(MODEL);
        }
        if lmr_triplet.lmr_context() != LmrContext(lmr.inner()) {
            self.it.lmr_query(lmr.inner(), it::LmrParamMask::empty())?;
            return Err(parameter(Subtype::InvalidArg3));
        }
        let address = usize::try_from(lmr_triplet.virtual_address());
        let address = address.map_err(|_| parameter(Subtype::InvalidArg3))?;
        let (mode, privs) = (it::AddrMode::Absolute, privileges(mem_priv));
        let post = || {
            let (rmr, lmr, ep) = (rmr.inner(), lmr.inner(), ep.inner());
            let linked = self.it.rmr_link(rmr, lmr, address, length, mode, privs, ep, user_cookie, flags);
            linked.map_err(|error| match error {
                it::Error::Address | it::Error::InvalidLength => parameter(Subtype::InvalidArg3),
                other => of(other),
            })
        };
        let context = found.bind(bind, post).map_err(|error| self.not_bound(ep, error))?;
        Ok(context.0)
    }

    /// The error of a bind, with the endpoint's state.
    fn not_bound(&self, ep: EpHandle, error: crate::Error) -> crate::Error {
        if error == crate::error::state(Subtype::None) {
            return self.inner.not_posted(ep, it::Error::InvalidEpState);
        }
        error
    }

    /// Returns a remote memory region's parameters. If it is not bound, only the IA, the zone and
    /// the scope are defined.
    ///
    /// Errors: `InvalidHandle`. Blocks for the device. May be called in upcalls. Thread-safe.
    /// dat_rmr_query.
    #[doc(alias = "dat_rmr_query")]
    pub fn rmr_query(&self, rmr: RmrHandle) -> Result<RmrParam> {
        let param = self.it.rmr_query(rmr.inner(), it::RmrParamMask::ALL)?;
        let bound = || LmrTriplet::new(LmrContext(param.lmr), param.addr as u64, param.length);
        Ok(RmrParam {
            ia_handle: self.handle(),
            pz_handle: PzHandle::of(param.pz),
            lmr_handle: if param.linked { LmrHandle::of(param.lmr) } else { LmrHandle::NULL },
            lmr_triplet: param.linked.then(bound),
            mem_priv: privileges_of(param.privs),
            rmr_context: param.rmr_context.map_or(0, |context| context.0),
            rmr_scope: RmrScope::Pz,
            va_type: VaType::Va,
        })
    }

    /// Frees a remote memory region, bound or not.
    ///
    /// Errors: `InvalidHandle`. Blocks for the device. May be called in upcalls. Thread-safe: a
    /// call that races with it succeeds or finds the handle invalid. dat_rmr_free.
    #[doc(alias = "dat_rmr_free")]
    pub fn rmr_free(&self, rmr: RmrHandle) -> Result<()> {
        Ok(self.it.rmr_free(rmr.inner())?)
    }
}

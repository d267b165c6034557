//! Remote memory regions (dat_rmr_create, dat_rmr_bind, dat_rmr_query, dat_rmr_free).

use alloc::sync::Arc;

use kernel_agent::{LinkFlags, SendFlags, Shadow, Window, WindowType};
use platform::heap;
use rdma::Context;

use crate::attr::{RmrParam, RmrScope};
use crate::completion::{self, Operation};
use crate::error::{MODEL, NO_MEMORY, handle, parameter};
use crate::flags::{CompletionFlags, MemPriv, VaType};
use crate::handle::{EpHandle, LmrHandle, PzHandle, RmrHandle};
use crate::ia::{Ia, Inner};
use crate::lmr::{privileges, remote_rights};
use crate::objects::ep::Bind;
use crate::objects::rmr::Rmr;
use crate::ret::{Error, Result, Subtype};
use crate::segment::{LmrContext, LmrTriplet, RmrContext};

const INVALID: Error = handle(Subtype::InvalidHandleRmr);

impl Inner {
    fn rmr(&self, rmr: RmrHandle) -> Result<Arc<Rmr>> {
        self.rmrs.get(rmr).ok_or(INVALID)
    }

    pub(crate) fn end_rmr(&self, rmr: &Rmr) {
        // A window can be destroyed at any time, so this fails only if the device is dead.
        let _ = rmr.window.destroy();
        self.owners.clear(rmr.window.key(), rmr.handle.as_raw());
        self.rmrs.remove(rmr.handle);
        rmr.zone.end();
    }
}

impl Ia {
    /// Creates an unbound remote memory region for all endpoints of a protection zone.
    ///
    /// Errors: `InvalidHandle`, `ModelNotSupported` (the adapter lacks such regions),
    /// `InsufficientResources`, `InvalidState` (in an upcall). Blocks for the device. Not for
    /// upcalls. Thread-safe. dat_rmr_create.
    #[doc(alias = "dat_rmr_create")]
    pub fn rmr_create(&self, pz: PzHandle) -> Result<RmrHandle> {
        let inner = self.call()?;
        inner.not_in_upcall()?;
        let zone = inner.enter_zone(pz)?;
        if !inner.offers.windows() {
            return Err(MODEL);
        }
        let reservation = inner.rmrs.reserve()?;
        let handle = reservation.handle();
        let allocated = inner.client()?.allocate_window(&zone.pd, WindowType::Wide);
        let window = allocated.map_err(|error| inner.error(error))?;
        let key = window.key();
        let undo = |window: &Window| {
            inner.owners.clear(key, handle.as_raw());
            let _ = window.destroy();
            NO_MEMORY
        };
        inner.owners.set(key, handle.as_raw()).map_err(|_| undo(&window))?;
        let rmr = heap::arc(Rmr { handle, zone, window, context: Context::new() });
        Ok(reservation.fill(rmr.map_err(|rmr| undo(&rmr.window))?))
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
        // Every bind is reported, since the record of the bind, which has the region, is removed on
        // its completion. The event of a suppressed success is dropped then.
        let suppressed = completion_flags.contains(CompletionFlags::SUPPRESS);
        let shown = completion_flags.difference(CompletionFlags::SUPPRESS);
        let allowed = completion::OF_REQUESTS.difference(CompletionFlags::SOLICITED_WAIT);
        found.check_flags(shown, allowed).map_err(|_| parameter(Subtype::InvalidArg8))?;
        let rmr = inner.rmr(rmr)?;
        let unbinds = lmr_triplet.segment_length() == 0;
        let to = match unbinds {
            // A bind of no bytes needs no region.
            true => kernel_agent::Bind { region: 0, flags: LinkFlags::empty(), addr: 0, length: 0 },
            false => {
                inner.check_privileges(mem_priv, Subtype::InvalidArg4)?;
                if va_type != VaType::Va {
                    return Err(MODEL);
                }
                let region = inner.lmr(lmr)?;
                if lmr_triplet.lmr_context() != LmrContext(lmr) {
                    return Err(parameter(Subtype::InvalidArg3));
                }
                let (addr, length) = (lmr_triplet.virtual_address(), lmr_triplet.segment_length());
                region.check_piece(addr, length)?;
                let (key, flags) = (region.region.key(), remote_rights(mem_priv));
                kernel_agent::Bind { region: key, flags, addr, length }
            }
        };
        if found.is_ud() {
            return Err(handle(Subtype::InvalidHandleEp));
        }
        found.takes_requests()?;
        let data = completion::data(Operation::Bind, shown);
        let flags = completion::send_flags(shown) | SendFlags::SIGNALED;
        let shadow = Shadow { cookie: user_cookie, data };
        let post = || match found.qp.post_bind(&rmr.window, to, flags, shadow) {
            Ok(key) => Ok(key),
            Err(error) => Err(inner.not_posted_to(ep, error)),
        };
        let key = found.bind(Bind { rmr: rmr.handle, suppressed }, post)?;
        Ok(if unbinds { 0 } else { key.to_be() })
    }

    /// Returns a remote memory region's parameters. If it is not bound, only the IA, the zone and
    /// the scope are defined.
    ///
    /// Errors: `InvalidHandle`. Blocks for the device. May be called in upcalls. Thread-safe.
    /// dat_rmr_query.
    #[doc(alias = "dat_rmr_query")]
    pub fn rmr_query(&self, rmr: RmrHandle) -> Result<RmrParam> {
        let inner = &self.inner;
        inner.live()?;
        let rmr = inner.rmr(rmr)?;
        let info = rmr.window.query().map_err(|error| inner.gone(error, INVALID))?;
        let bound = info.linked != 0;
        // The region may have been freed since the query.
        let region = inner.owners.get(info.windows_or_region).filter(|_| bound);
        let lmr = LmrHandle::from_raw(region.unwrap_or_default());
        let triplet = || LmrTriplet::new(LmrContext(lmr), info.base, info.length);
        let flags = LinkFlags::from_bits_truncate(info.flags);
        Ok(RmrParam {
            ia_handle: self.handle(),
            pz_handle: rmr.zone.handle,
            lmr_handle: lmr,
            lmr_triplet: bound.then(triplet),
            mem_priv: if bound { privileges(flags) } else { MemPriv::NONE },
            rmr_context: if bound { info.remote.to_be() } else { 0 },
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
        let inner = self.call()?;
        let rmr = inner.rmrs.remove(rmr).ok_or(INVALID)?;
        inner.end_rmr(&rmr);
        Ok(())
    }
}

//! Endpoints: the object, its state, query and end (dat_ep_query, dat_ep_get_status,
//! dat_ep_recv_query, dat_ep_set_watermark, dat_ep_reset, dat_ep_free).
//!
//! - `create`: creation; `modify`: changes before a connection.
//! - `connect`: connecting and disconnecting; `events`: what the agent says of connections.
//! - `post`: ordinary work requests. Those of the extensions are in `extension`.
//!
//! The object is in `objects::ep`.
//!
//! Locks, outermost first: `turn` (sleeps) serializes the calls that change the endpoint; the table
//! entry; `control` (spins); the queue of an event dispatcher, the slot. The dispatcher thread
//! takes only `control` and the locks after it.

pub(crate) mod connect;
mod create;
mod events;
mod modify;
mod post;

use alloc::sync::Arc;

use platform::sync::atomic::Ordering;

use crate::attr::{EpParam, EpParamMask};
use crate::error::{MODEL, parameter, state};
use crate::flags::{EpState, VALUE_UNKNOWN};
use crate::handle::{EpHandle, EvdHandle};
use crate::ia::{Ia, Inner};
use crate::objects::ep::{Ep, INVALID, Phase, wrong};
use crate::objects::streams::Stream;
use crate::ret::{Result, Subtype};

pub(crate) use create::UD_QKEY;

impl Inner {
    pub(crate) fn ep(&self, ep: EpHandle) -> Result<Arc<Ep>> {
        self.live()?;
        self.eps.get(ep).ok_or(INVALID)
    }

    /// The endpoint as the table has it now: before the caller had the endpoint's turn, another
    /// call may have replaced its queue pair, or freed it.
    pub(crate) fn as_it_is(&self, ep: &Ep) -> Result<Arc<Ep>> {
        self.eps.get(ep.handle).ok_or(INVALID)
    }

    pub(crate) fn ep_state(&self, ep: &Ep) -> EpState {
        ep.control.lock().state()
    }

    /// The endpoint's streams begin to come to its event dispatchers. Errors name `flags` where the
    /// flags clash.
    fn join_all(&self, streams: &[(EvdHandle, Stream); 3], flags: Subtype) -> Result<()> {
        let invalid =
            [Subtype::InvalidHandleEvdRecv, Subtype::InvalidHandleEvdRequest, Subtype::InvalidHandleEvdConn];
        for (place, ((evd, stream), invalid)) in streams.iter().zip(invalid).enumerate() {
            if evd.is_null() {
                continue;
            }
            let found = self.evd(*evd, invalid);
            let joined = found.and_then(|evd| self.join(&evd, *stream, invalid, flags));
            if let Err(error) = joined {
                self.leave_all(&streams[..place]);
                return Err(error);
            }
        }
        Ok(())
    }

    fn leave_all(&self, streams: &[(EvdHandle, Stream)]) {
        for (evd, stream) in streams {
            if let Some(evd) = self.evds.get(*evd) {
                self.leave(&evd, *stream);
            }
        }
    }
}

impl Ia {
    /// Returns an endpoint's parameters. Members that the mask does not ask for are not defined.
    /// Addresses and port qualifiers are defined while the endpoint is connected or being
    /// connected.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (an undefined bit). Does not block. May be
    /// called in upcalls. Thread-safe. dat_ep_query.
    #[doc(alias = "dat_ep_query")]
    pub fn ep_query(&self, ep: EpHandle, mask: EpParamMask) -> Result<EpParam> {
        let inner = &self.inner;
        let ep = inner.ep(ep)?;
        if EpParamMask::from_bits(mask.bits()).is_none() {
            return Err(parameter(Subtype::InvalidArg2));
        }
        let control = ep.control.lock();
        let ep_state = control.state();
        let connecting = !matches!(ep_state, EpState::Unconnected | EpState::Reserved);
        let remote = control.remote.filter(|_| connecting);
        Ok(EpParam {
            ia_handle: self.handle(),
            ep_state,
            local_ia_address: inner.address().filter(|_| connecting),
            local_port_qual: if connecting { control.local_port } else { 0 },
            remote_ia_address: remote.map(|remote| remote.address),
            remote_port_qual: remote.map_or(0, |remote| remote.port),
            pz_handle: control.pz,
            recv_evd_handle: control.recv,
            request_evd_handle: control.request,
            connect_evd_handle: control.connect,
            srq_handle: control.srq,
            ep_attr: control.attr,
        })
    }

    /// Returns the endpoint's state, whether it has no Receives outstanding, and whether it has no
    /// requests outstanding. A request counts until its completion is taken.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_ep_get_status.
    #[doc(alias = "dat_ep_get_status")]
    pub fn ep_get_status(&self, ep: EpHandle) -> Result<(EpState, bool, bool)> {
        let inner = &self.inner;
        let ep = inner.ep(ep)?;
        let (requests, receives) = ep.qp.outstanding();
        Ok((inner.ep_state(&ep), receives == 0, requests == 0))
    }

    /// The number of the endpoint's queue pair, for fault injection and diagnostics. An extension.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    pub fn ep_qpn(&self, ep: EpHandle) -> Result<u32> {
        Ok(self.inner.ep(ep)?.qp.qpn())
    }

    /// Returns how many Receives are outstanding. The second number, how much of the queue they
    /// span, is not known ([`VALUE_UNKNOWN`]). The Receives of a shared receive queue do not count.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_ep_recv_query.
    #[doc(alias = "dat_ep_recv_query")]
    pub fn ep_recv_query(&self, ep: EpHandle) -> Result<(usize, i32)> {
        let (_, receives) = self.inner.ep(ep)?.qp.outstanding();
        Ok((receives as usize, VALUE_UNKNOWN))
    }

    /// Sets high watermarks. This provider has none: at most one Receive of an endpoint is in
    /// progress.
    ///
    /// Errors: `InvalidHandle`, `ModelNotSupported` (always, for a valid endpoint). Does not block.
    /// May be called in upcalls. Thread-safe. dat_ep_set_watermark.
    #[doc(alias = "dat_ep_set_watermark")]
    pub fn ep_set_watermark(&self, ep: EpHandle, soft: i32, hard: i32) -> Result<()> {
        let _ = (self.inner.ep(ep)?, soft, hard);
        Err(MODEL)
    }

    /// Resets an endpoint from DISCONNECTED to UNCONNECTED; its attributes, event dispatchers and
    /// shared receive queue stay. Completions that were not taken are lost. In UNCONNECTED it does
    /// nothing.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (another state; or the consumer can only free the
    /// endpoint, because the queue of its completions overflowed, or because a request or a Receive
    /// of a datagram endpoint failed), `InsufficientResources`. Blocks for the device. May be
    /// called in upcalls. Thread-safe. dat_ep_reset.
    #[doc(alias = "dat_ep_reset")]
    pub fn ep_reset(&self, ep: EpHandle) -> Result<()> {
        let inner = self.call()?;
        let ep = inner.ep(ep)?;
        let _turn = ep.turn.lock(inner.platform());
        let ep = inner.as_it_is(&ep)?;
        match inner.ep_state(&ep) {
            EpState::Unconnected => return Ok(()),
            EpState::Disconnected => {}
            other => return Err(wrong(other)),
        }
        if ep.is_ud() {
            if ep.control.lock().failed {
                return Err(wrong(EpState::Disconnected));
            }
            inner.forget_datagrams(&ep);
        } else {
            inner.renew(&ep)?;
        }
        ep.binds.lock().clear();
        let mut control = ep.control.lock();
        (control.draining, control.passive, control.remote) = (false, false, None);
        (control.datagrams.connected, control.datagrams.disconnected) = (false, false);
        ep.set_longest_datagram(&control);
        Ok(())
    }

    /// Frees an endpoint, connected or not. After the return no event of it is queued, and the
    /// device accesses none of its buffers. Completions that were not taken are lost.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (a service point reserved the endpoint, or a request
    /// for it waits for an answer). Blocks for the device. May be called in upcalls. Thread-safe: a
    /// call that races with it succeeds or finds the handle invalid. dat_ep_free.
    #[doc(alias = "dat_ep_free")]
    pub fn ep_free(&self, ep: EpHandle) -> Result<()> {
        let inner = self.call()?;
        let ep = inner.ep(ep)?;
        let _turn = ep.turn.lock(inner.platform());
        let ep = inner.as_it_is(&ep)?;
        {
            let mut control = ep.control.lock();
            if control.gone {
                return Err(INVALID);
            }
            if control.pending.is_some() {
                return Err(wrong(EpState::PassiveConnectionPending));
            }
            if control.reserved.is_some() {
                return Err(wrong(EpState::Reserved));
            }
            control.gone = true;
        }
        inner.end_ep(&ep);
        Ok(())
    }
}

impl Inner {
    /// Replaces the queue pair of an endpoint whose connection is over.
    fn renew(&self, ep: &Ep) -> Result<()> {
        if ep.lost.load(Ordering::Acquire) {
            return Err(state(Subtype::None));
        }
        let (attr, srq) = {
            let control = ep.control.lock();
            (control.attr, control.srq)
        };
        // From here on, requests are refused until they go to the new queue pair.
        ep.qp.withdraw();
        ep.control.lock().connection.part();
        let parts = ep.parts();
        let srq = if srq.is_null() { None } else { Some(self.srq(srq)?) };
        let qp = match self.new_qp(&ep.common, &parts, &attr, srq.as_deref()) {
            // The old queue pair may be the last one that the device has room for.
            Err(error) if error == crate::error::NO_MEMORY => {
                let _ = ep.qp.destroy();
                self.new_qp(&ep.common, &parts, &attr, srq.as_deref())?
            }
            created => created?,
        };
        let renewed = parts.endpoint(qp, &attr, ep.common.clone())?;
        self.replace(ep, renewed)?;
        let mut control = ep.control.lock();
        ep.set_phase(&mut control, Phase::Unconnected);
        Ok(())
    }

    /// Puts an endpoint with a new queue pair into the place of the old one.
    fn replace(&self, ep: &Ep, renewed: Arc<Ep>) -> Result<()> {
        let former = self.eps.replace(ep.handle, renewed);
        // The slot had no queue pair for a moment. If the IA ended then, it closed all slots but
        // this one, which is closed here.
        self.adapter.created(|| ep.close_slot());
        match former {
            Ok(former) => {
                // Ends the old connection. The queue pair may be destroyed already.
                let _ = former.qp.destroy();
                former.zone.end();
                Ok(())
            }
            Err(late) => {
                let _ = late.qp.destroy();
                Err(INVALID)
            }
        }
    }

    /// Frees an endpoint.
    pub(crate) fn end_ep(&self, ep: &Ep) {
        let Some(ep) = self.eps.invalidate(ep.handle) else { return };
        if ep.is_ud() {
            self.forget_datagrams(&ep);
        }
        let streams = {
            let mut control = ep.control.lock();
            // From here on no event of the endpoint is queued.
            (control.phase, control.gone) = (Phase::Ended, true);
            control.connection.part();
            control.streams()
        };
        // Also ends the connection. Fails only if the device is dead.
        let _ = ep.qp.destroy();
        // Another endpoint may get the index only after the queue pair is destroyed.
        self.eps.release(ep.handle);
        self.leave_all(&streams);
        if let Some(unwanted) = &ep.unwanted {
            self.end_evd(unwanted);
        }
        ep.zone.end();
    }
}

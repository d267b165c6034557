//! Endpoints: the object, its state, query and end (dat_ep_query, dat_ep_get_status,
//! dat_ep_recv_query, dat_ep_set_watermark, dat_ep_reset, dat_ep_free).
//!
//! - `create`: creation; `modify`: changes before a connection.
//! - `connect`: connecting and disconnecting; `events`: connection events.
//! - `post`: ordinary work requests. Those of the extensions are in `extension`.
//!
//! IT-API has the endpoint itself. This module keeps what DAT adds: the event dispatchers under
//! their DAT handles, completion flags, a reservation by a service point, an unfinished graceful
//! disconnect, and for a datagram endpoint its state and the remote endpoints that it resolved.
//!
//! Locks: `turn` (sleeps) serializes the calls that change the endpoint; `control` (spins, leaf).

pub(crate) mod connect;
mod create;
mod events;
mod modify;
mod post;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use platform::sync::Mutex;
use platform::sync::atomic::{AtomicU64, Ordering};
use platform::{Growing, OutOfMemory, SleepLock};
use privileged_api as it;
use rdma::handle as word;

use crate::IaAddress;
use crate::attr::{EpAttr, EpParam, EpParamMask};
use crate::error::{MODEL, handle, of, parameter, state};
use crate::evd::{Evd, Stream};
use crate::flags::{CompletionFlags, EpState, ServiceType, VALUE_UNKNOWN};
use crate::handle::{CrHandle, EpHandle, EvdHandle, PzHandle, RmrHandle, RspHandle, SrqHandle};
use crate::ia::{Ia, Inner};
use crate::ret::{Error, Result, Subtype};

pub(crate) struct Ep {
    pub(crate) handle: EpHandle,
    pub(crate) turn: SleepLock,
    pub(crate) control: Mutex<Control>,
    binds: Mutex<VecDeque<Bind>>,
}

/// The part of an endpoint that changes.
pub(crate) struct Control {
    pub(crate) attr: EpAttr,
    pub(crate) pz: PzHandle,
    pub(crate) recv: EvdHandle,
    pub(crate) request: EvdHandle,
    pub(crate) connect: EvdHandle,
    srq: SrqHandle,
    /// The IT-API event dispatcher for completions that the consumer does not want.
    unwanted: Option<it::EvdHandle>,
    /// The service point that reserved the endpoint.
    pub(crate) reserved: Option<RspHandle>,
    /// The request that arrived at that service point.
    pub(crate) pending: Option<CrHandle>,
    /// Whether the peer requested the present connection.
    pub(crate) passive: bool,
    /// Whether a graceful disconnect waits until the endpoint's requests are complete.
    pub(crate) draining: bool,
    pub(crate) remote: Option<Remote>,
    pub(crate) local_port: u64,
    pub(crate) datagrams: Datagrams,
    /// The endpoint is freed.
    gone: bool,
}

/// The peer of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) address: IaAddress,
    /// The peer's qualifier, if this side requested the connection.
    pub(crate) port: u64,
}

/// What a datagram endpoint has instead of a connection.
#[derive(Default)]
pub(crate) struct Datagrams {
    /// The state: UNCONNECTED until the first remote endpoint is resolved, then CONNECTED, and
    /// DISCONNECTED from a disconnect to a reset.
    pub(crate) connected: bool,
    pub(crate) disconnected: bool,
    /// IT-API requests that the peer has not answered.
    pub(crate) asked: Vec<it::UdSvcReqHandle>,
    /// The address handles of the remote endpoints.
    pub(crate) addresses: Vec<it::AddrHandle>,
}

/// A posted bind whose completion the consumer has not taken.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    pub(crate) rmr: RmrHandle,
    /// The consumer wants no event of a success.
    pub(crate) suppressed: bool,
}

/// What posts need to know of their endpoint, in one word, by the index of the endpoint's handle.
///
/// | bits | meaning |
/// |---|---|
/// | 0..32 | one more than the longest datagram that it can send now; 0 if it can send none |
/// | 32 | the endpoint's Receives may be unsignalled |
/// | 33 | a Receive of the endpoint notifies if its sender solicits that |
/// | 34 | the endpoint's requests may be unsignalled |
pub(crate) struct Configs(Growing<AtomicU64>);

pub(crate) const RECEIVES_UNSIGNALLED: u64 = 1 << 32;
pub(crate) const RECEIVES_SOLICITED: u64 = 1 << 33;
pub(crate) const REQUESTS_UNSIGNALLED: u64 = 1 << 34;
const TOO_LONG: u64 = 0xffff_ffff;

impl Configs {
    pub(crate) fn new(limit: u32) -> Result<Configs> {
        Ok(Configs(Growing::new(limit as usize)?))
    }

    #[inline(always)]
    pub(crate) fn get(&self, ep: EpHandle) -> u64 {
        self.0.get(word::index(ep.as_raw())).map_or(0, |config| config.load(Ordering::Relaxed))
    }

    /// Makes room for a new endpoint.
    fn reach(&self, ep: EpHandle) -> Result<()> {
        let copy = |config: &AtomicU64| AtomicU64::new(config.load(Ordering::Relaxed));
        let reached = self.0.reach(word::index(ep.as_raw()), copy, || Ok(AtomicU64::new(0)));
        reached.map_err(|OutOfMemory| crate::error::NO_MEMORY)
    }

    /// Updates an endpoint's word. The caller holds the endpoint's `control`, and calls this after
    /// each change.
    pub(crate) fn set(&self, ep: EpHandle, control: &Control) {
        let attr = &control.attr;
        let mut config = match attr.recv_completion_flags {
            CompletionFlags::UNSIGNALLED => RECEIVES_UNSIGNALLED,
            CompletionFlags::SOLICITED_WAIT => RECEIVES_SOLICITED,
            _ => 0,
        };
        if attr.request_completion_flags == CompletionFlags::UNSIGNALLED {
            config |= REQUESTS_UNSIGNALLED;
        }
        let datagrams = &control.datagrams;
        if attr.service_type == ServiceType::IB_UD && datagrams.connected && !datagrams.disconnected {
            config |= attr.max_message_size.saturating_add(1).min(TOO_LONG);
        }
        self.0.store(word::index(ep.as_raw()), |place| place.store(config, Ordering::Relaxed));
    }
}

/// From an endpoint's word: the shortest length of a message that the endpoint cannot send as a
/// datagram.
pub(crate) const fn too_long(config: u64) -> u64 {
    config & TOO_LONG
}

impl Ep {
    pub(crate) fn is_ud(&self) -> bool {
        self.control.lock().attr.service_type == ServiceType::IB_UD
    }

    /// Removes and returns the oldest posted bind whose completion was not taken.
    pub(crate) fn take_bind(&self) -> Option<Bind> {
        self.binds.lock().pop_front()
    }

    /// Posts a bind and records it under one lock, so that the records have the order of the
    /// requests.
    pub(crate) fn bind<R>(&self, bind: Bind, post: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut binds = self.binds.lock();
        binds.try_reserve(1)?;
        let posted = post()?;
        binds.push_back(bind);
        Ok(posted)
    }
}

impl Control {
    /// The event dispatchers that the consumer named, each with its stream.
    fn streams(&self) -> [(EvdHandle, Stream); 3] {
        let connect = match self.attr.service_type {
            ServiceType::IB_UD => Stream::Datagrams,
            _ => Stream::Connections,
        };
        [
            (self.recv, Stream::Receives(self.attr.recv_completion_flags)),
            (self.request, Stream::Requests(self.attr.request_completion_flags)),
            (self.connect, connect),
        ]
    }
}

/// The subtype that names an endpoint's state.
pub(crate) const fn subtype(state: EpState) -> Subtype {
    match state {
        EpState::Unconnected => Subtype::InvalidStateEpUnconnected,
        EpState::Reserved => Subtype::InvalidStateEpReserved,
        EpState::PassiveConnectionPending => Subtype::InvalidStateEpPassConnPending,
        EpState::ActiveConnectionPending => Subtype::InvalidStateEpActConnPending,
        EpState::TentativeConnectionPending => Subtype::InvalidStateEpTentConnPending,
        EpState::Connected => Subtype::InvalidStateEpConnected,
        EpState::DisconnectPending => Subtype::InvalidStateEpDiscPending,
        EpState::Disconnected => Subtype::InvalidStateEpDisconnected,
        EpState::CompletionPending => Subtype::InvalidStateEpComplPending,
        _ => Subtype::None,
    }
}

/// The error of a call that this state of an endpoint does not allow.
pub(crate) const fn wrong(now: EpState) -> Error {
    state(subtype(now))
}

impl Inner {
    pub(crate) fn ep(&self, ep: EpHandle) -> Result<Arc<Ep>> {
        self.live()?;
        self.eps.get(ep).ok_or(handle(Subtype::InvalidHandleEp))
    }

    /// The endpoint's state.
    pub(crate) fn ep_state(&self, ep: &Ep) -> Result<EpState> {
        let mask = it::EpParamMask::STATE;
        let inner = self.it.ep_query(ep.handle.inner(), mask)?.ep_state;
        let control = ep.control.lock();
        Ok(match inner {
            it::EpState::Ud(it::EpStateUd::Nonoperational) => EpState::Disconnected,
            it::EpState::Ud(_) if control.datagrams.disconnected => EpState::Disconnected,
            it::EpState::Ud(_) if control.datagrams.connected => EpState::Connected,
            it::EpState::Ud(_) if !control.datagrams.asked.is_empty() => EpState::ActiveConnectionPending,
            it::EpState::Ud(_) => EpState::Unconnected,
            it::EpState::Rc(inner) => match inner {
                it::EpStateRc::Unconnected if control.pending.is_some() => EpState::PassiveConnectionPending,
                it::EpStateRc::Unconnected if control.reserved.is_some() => EpState::Reserved,
                it::EpStateRc::Unconnected => EpState::Unconnected,
                it::EpStateRc::Active1ConnectionPending | it::EpStateRc::Active2ConnectionPending => {
                    EpState::ActiveConnectionPending
                }
                it::EpStateRc::PassiveConnectionPending | it::EpStateRc::PassiveWaitRdmaTransReq => {
                    EpState::CompletionPending
                }
                it::EpStateRc::Connected if control.draining => EpState::DisconnectPending,
                it::EpStateRc::Connected => EpState::Connected,
                it::EpStateRc::Nonoperational => EpState::Disconnected,
            },
        })
    }

    /// Registers the endpoint's streams with the event dispatchers that the consumer named: all of
    /// them, or none. `flags` is the argument with the completion flags.
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

    /// Frees the address handles of a datagram endpoint, and cancels its unanswered requests.
    pub(crate) fn forget_datagrams(&self, ep: &Ep) {
        let (asked, addresses) = {
            let mut control = ep.control.lock();
            let datagrams = &mut control.datagrams;
            (core::mem::take(&mut datagrams.asked), core::mem::take(&mut datagrams.addresses))
        };
        for request in asked {
            let former = self.resolving.lock().remove(&request.as_raw());
            let _ = self.it.ud_service_request_handle_free(request);
            if let Some(former) = former {
                let _ = self.it.address_handle_free(former.address);
            }
        }
        for address in addresses {
            // Fails only if the consumer has freed the handle already.
            let _ = self.it.address_handle_free(address);
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
        let ep_state = inner.ep_state(&ep)?;
        let connecting = !matches!(ep_state, EpState::Unconnected | EpState::Reserved);
        let control = ep.control.lock();
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
        let (requests, receives) = self.it.ep_outstanding(ep.handle.inner())?;
        Ok((inner.ep_state(&ep)?, receives == 0, requests == 0))
    }

    /// The number of the endpoint's queue pair, for fault injection and diagnostics. An extension.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    pub fn ep_qpn(&self, ep: EpHandle) -> Result<u32> {
        let ep = self.inner.ep(ep)?;
        Ok(self.it.ep_qpn(ep.handle.inner())?)
    }

    /// Returns how many Receives are outstanding. The second number, how much of the queue they
    /// span, is not known ([`VALUE_UNKNOWN`]). The Receives of a shared receive queue do not count.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_ep_recv_query.
    #[doc(alias = "dat_ep_recv_query")]
    pub fn ep_recv_query(&self, ep: EpHandle) -> Result<(usize, i32)> {
        let ep = self.inner.ep(ep)?;
        let (_, receives) = self.it.ep_outstanding(ep.handle.inner())?;
        Ok((receives, VALUE_UNKNOWN))
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
        let inner = &self.inner;
        let ep = inner.ep(ep)?;
        let _turn = ep.turn.lock(inner.platform());
        match inner.ep_state(&ep)? {
            EpState::Unconnected => return Ok(()),
            EpState::Disconnected => {}
            other => return Err(wrong(other)),
        }
        if ep.is_ud() {
            let mask = it::EpParamMask::STATE;
            let failed = it::EpState::Ud(it::EpStateUd::Nonoperational);
            if self.it.ep_query(ep.handle.inner(), mask)?.ep_state == failed {
                return Err(wrong(EpState::Disconnected));
            }
            inner.forget_datagrams(&ep);
        } else {
            self.it.ep_reset(ep.handle.inner())?;
        }
        ep.binds.lock().clear();
        let mut control = ep.control.lock();
        (control.draining, control.passive, control.remote) = (false, false, None);
        (control.datagrams.connected, control.datagrams.disconnected) = (false, false);
        inner.configs.set(ep.handle, &control);
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
        let inner = &self.inner;
        let ep = inner.ep(ep)?;
        let _turn = ep.turn.lock(inner.platform());
        {
            let mut control = ep.control.lock();
            if control.gone {
                return Err(handle(Subtype::InvalidHandleEp));
            }
            if control.pending.is_some() {
                return Err(wrong(EpState::PassiveConnectionPending));
            }
            if control.reserved.is_some() {
                return Err(wrong(EpState::Reserved));
            }
            control.gone = true;
        }
        if ep.is_ud() {
            inner.forget_datagrams(&ep);
        }
        match self.it.ep_free(ep.handle.inner()) {
            Err(error @ it::Error::EpBusy) => {
                ep.control.lock().gone = false;
                return Err(of(error));
            }
            freed => freed?,
        }
        inner.eps.remove(ep.handle);
        inner.end_ep(&ep);
        Ok(())
    }
}

impl Inner {
    /// Releases what an endpoint used, after its IT-API endpoint was freed.
    fn end_ep(&self, ep: &Ep) {
        let (streams, unwanted) = {
            let control = ep.control.lock();
            (control.streams(), control.unwanted)
        };
        self.leave_all(&streams);
        if let Some(unwanted) = unwanted {
            let _ = self.it.evd_callback_detach(unwanted);
            let _ = self.it.evd_free(unwanted);
        }
    }

    /// The IT-API event dispatcher for a stream of completions: the consumer's, or `unwanted`.
    fn completions_of(&self, evd: EvdHandle, unwanted: Option<it::EvdHandle>) -> Result<it::EvdHandle> {
        let found: Option<Arc<Evd>> = self.evds.get(evd);
        match found.and_then(|evd| evd.completions()).or(unwanted) {
            Some(evd) => Ok(evd),
            None => Err(handle(Subtype::InvalidHandleEvdRecv)),
        }
    }
}

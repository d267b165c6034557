//! Service points and connection requests (dat_psp_create, dat_rsp_create, dat_cr_accept and their
//! like).
//!
//! A service point has a listener of the agent, whose requests for connections and for datagram
//! endpoints it takes. A request becomes a DAT object when the consumer takes its event.

use alloc::sync::Arc;

use kernel_agent::wire::{Reason, ServiceId, sidr};
use kernel_agent::{CmEvent, CmEventKind, ConnectionId, Transports};
use platform::sync::Mutex;
use platform::{SleepLock, heap};
use rdma::Context;

use crate::attr::{CrParam, PspParam, RspParam};
use crate::ep::connect::address_of;
use crate::error::{MODEL, NO_MEMORY, handle, parameter, state};
use crate::event::*;
use crate::flags::{EpState, PspFlags};
use crate::handle::{CrHandle, EpHandle, EvdHandle, PspHandle, RspHandle};
use crate::ia::{Ia, Inner};
use crate::objects::ep::{Ep, Remote, wrong};
use crate::objects::evd::{Evd, Origin};
use crate::objects::points::{Arrived, Asked, Cr, Listening, NO_POINT, Psp, Rsp};
use crate::objects::streams::Stream;
use crate::ret::{ErrorType, Result, Subtype};
use crate::{IaAddress, PrivateData};

/// The most bytes of private data that a consumer sends to accept a connection, and to reject one
/// (IBTA 12.6).
const ACCEPT_DATA: usize = 196;
const REJECT_DATA: usize = 148;
/// The ports among which [`Ia::psp_create_any`] chooses.
const DYNAMIC: core::ops::RangeInclusive<u16> = 49152..=65535;

/// The service of a qualifier, which is an InfiniBand service ID.
pub(crate) fn service(conn_qual: u64, bad: Subtype) -> Result<ServiceId> {
    match conn_qual {
        0 => Err(parameter(bad)),
        id => Ok(ServiceId(id)),
    }
}

/// Private data as events have it. InfiniBand's messages always have the field: zeroes are none.
pub(crate) fn received(data: &[u8]) -> Option<PrivateData> {
    data.iter().any(|byte| *byte != 0).then(|| PrivateData::new(data))
}

impl Ia {
    /// Listens at a qualifier that the caller names. Each request is an event on `evd`, which needs
    /// the stream `CR`: [`EventNumber::CONNECTION_REQUEST`], or
    /// [`EventNumber::IB_UD_CONNECTION_REQUEST`] if the peer asks for a datagram endpoint. If the
    /// queue is full, a request is dropped, and the peer repeats it.
    ///
    /// Errors: `InvalidHandle` (subtype EVD_CR), `InvalidParameter` (a qualifier of 0),
    /// `ConnQualInUse`, `ModelNotSupported` (the flag `Provider`: the consumer makes the
    /// endpoints), `InsufficientResources`, `InvalidState` (in an upcall). Does not wait for a
    /// peer. Not for upcalls. Thread-safe. dat_psp_create.
    #[doc(alias = "dat_psp_create")]
    pub fn psp_create(&self, conn_qual: u64, evd: EvdHandle, flags: PspFlags) -> Result<PspHandle> {
        self.new_psp(Some(conn_qual), evd, flags).map(|(psp, _)| psp)
    }

    /// Listens as [`Ia::psp_create`] does, at a free qualifier, which is returned first.
    ///
    /// Errors: as [`Ia::psp_create`], `ConnQualUnavailable` (none is free). Does not wait for a
    /// peer. Not for upcalls. Thread-safe. dat_psp_create_any.
    #[doc(alias = "dat_psp_create_any")]
    pub fn psp_create_any(&self, evd: EvdHandle, flags: PspFlags) -> Result<(u64, PspHandle)> {
        self.new_psp(None, evd, flags).map(|(psp, conn_qual)| (conn_qual, psp))
    }

    fn new_psp(&self, conn_qual: Option<u64>, evd: EvdHandle, flags: PspFlags) -> Result<(PspHandle, u64)> {
        let inner = self.call()?;
        inner.not_in_upcall()?;
        let evd = inner.evd(evd, Subtype::InvalidHandleEvdCr)?;
        if flags != PspFlags::Consumer {
            return Err(MODEL);
        }
        let Some(conn_qual) = conn_qual else {
            for port in DYNAMIC {
                let id = ServiceId::it_api(port).0;
                match inner.psp_at(id, &evd) {
                    Err(error) if error.kind() == ErrorType::ConnQualInUse => {}
                    Err(error) if error.kind() == ErrorType::InsufficientResources => break,
                    made => return Ok((made?, id)),
                }
            }
            return Err(ErrorType::ConnQualUnavailable.into());
        };
        Ok((inner.psp_at(conn_qual, &evd)?, conn_qual))
    }

    /// Returns a public service point's parameters.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_psp_query.
    #[doc(alias = "dat_psp_query")]
    pub fn psp_query(&self, psp: PspHandle) -> Result<PspParam> {
        let psp = self.inner.psp(psp)?;
        Ok(PspParam {
            ia_handle: self.handle(),
            conn_qual: psp.listening.conn_qual,
            evd_handle: psp.listening.evd.handle,
            psp_flags: PspFlags::Consumer,
        })
    }

    /// Ends listening. Requests that were not answered can still be; later ones are refused.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe: a call that
    /// races with it succeeds or finds the handle invalid. dat_psp_free.
    #[doc(alias = "dat_psp_free")]
    pub fn psp_free(&self, psp: PspHandle) -> Result<()> {
        let inner = self.call()?;
        let psp = inner.psps.get(psp).ok_or(handle(Subtype::InvalidHandlePsp))?;
        if inner.end_psp(&psp) { Ok(()) } else { Err(handle(Subtype::InvalidHandlePsp)) }
    }

    /// Listens for one request, with an endpoint in UNCONNECTED, which goes to RESERVED. When the
    /// consumer takes the event of the request, the endpoint goes to PASSIVE_CONNECTION_PENDING,
    /// and listening ends. A request for a datagram endpoint is refused.
    ///
    /// Errors: `InvalidHandle` (EP: also a datagram endpoint; EVD_CR), `InvalidParameter` (a
    /// qualifier of 0), `InvalidState` (the endpoint's; subtype `InvalidStateEpNotReady`; in an
    /// upcall), `ConnQualInUse`, `InsufficientResources`. Does not wait for a peer. Not for
    /// upcalls. Thread-safe. dat_rsp_create.
    #[doc(alias = "dat_rsp_create")]
    pub fn rsp_create(&self, conn_qual: u64, ep: EpHandle, evd: EvdHandle) -> Result<RspHandle> {
        let inner = self.call()?;
        let ep = inner.ep(ep)?;
        inner.not_in_upcall()?;
        if ep.is_ud() {
            return Err(handle(Subtype::InvalidHandleEp));
        }
        let _turn = ep.turn.lock(inner.platform());
        let ep = inner.as_it_is(&ep)?;
        match inner.ep_state(&ep) {
            EpState::Unconnected => ep.control.lock().is_ready()?,
            other => return Err(wrong(other)),
        }
        let evd = inner.evd(evd, Subtype::InvalidHandleEvdCr)?;
        let reservation = inner.rsps.reserve()?;
        let handle = reservation.handle();
        let listening = inner.begin_listening(conn_qual, &evd, Stream::Arrivals)?;
        let rsp = heap::arc(Rsp { handle, listening, ep: ep.handle, context: Context::new() });
        let rsp = rsp.map_err(|rsp| {
            inner.leave(&rsp.listening.evd, Stream::Arrivals);
            NO_MEMORY
        })?;
        // Before the first request can come.
        ep.control.lock().reserved = Some(handle);
        reservation.fill(rsp.clone());
        inner.listen(&rsp.listening, handle.as_raw()).inspect_err(|_| {
            inner.end_rsp(&rsp);
            ep.control.lock().reserved = None;
        })?;
        Ok(handle)
    }

    /// Returns a reserved service point's parameters.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_rsp_query.
    #[doc(alias = "dat_rsp_query")]
    pub fn rsp_query(&self, rsp: RspHandle) -> Result<RspParam> {
        let rsp = self.inner.rsp(rsp)?;
        Ok(RspParam {
            ia_handle: self.handle(),
            conn_qual: rsp.listening.conn_qual,
            evd_handle: rsp.listening.evd.handle,
            ep_handle: rsp.ep,
        })
    }

    /// Frees a reserved service point. An endpoint that still waits for the request returns to
    /// UNCONNECTED; a request whose event was taken can still be answered.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe: a call that
    /// races with it succeeds or finds the handle invalid. dat_rsp_free.
    #[doc(alias = "dat_rsp_free")]
    pub fn rsp_free(&self, rsp: RspHandle) -> Result<()> {
        let inner = self.call()?;
        let rsp = inner.rsps.get(rsp).ok_or(handle(Subtype::InvalidHandleRsp))?;
        if !inner.end_rsp(&rsp) {
            return Err(handle(Subtype::InvalidHandleRsp));
        }
        if let Some(ep) = inner.eps.get(rsp.ep) {
            // The endpoint may have left this service point and be reserved by another one.
            ep.control.lock().reserved.take_if(|by| *by == rsp.handle);
        }
        Ok(())
    }

    /// Returns a connection request's parameters.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_cr_query.
    #[doc(alias = "dat_cr_query")]
    pub fn cr_query(&self, cr: CrHandle) -> Result<CrParam> {
        let cr = self.inner.cr(cr)?;
        Ok(CrParam {
            remote_ia_address: cr.arrived.remote,
            // An InfiniBand request does not contain the qualifier of its sender.
            remote_port_qual: 0,
            private_data: cr.arrived.private_data,
            local_ep_handle: cr.ep,
        })
    }

    /// Accepts a connection request with an endpoint in UNCONNECTED. At a reserved service point
    /// the reserved endpoint accepts: `ep` is then null or that endpoint.
    ///
    /// The endpoint goes to COMPLETION_PENDING, and an event reports the result. A request for a
    /// datagram endpoint is accepted with one: its event dispatcher of connection events gets
    /// [`EventNumber::IB_UD_CONNECTION_ESTABLISHED`] with the peer's address and the private data
    /// of the request. The handle of the request is invalid after a success.
    ///
    /// Errors: `InvalidHandle` (CR; EP: also an endpoint of the wrong kind, connection or
    /// datagram), `InvalidParameter` (no endpoint, or not the reserved one; private data of more
    /// than 196 bytes, for a datagram endpoint 136; RDMA Reads that do not fit the peer's),
    /// `InvalidState` (the endpoint's; subtype `InvalidStateEpNotReady`), `InsufficientResources`
    /// (also if the event dispatcher has no room). Does not wait for the peer. Not for upcalls.
    /// Thread-safe: of two calls that answer one request, one succeeds. dat_cr_accept.
    #[doc(alias = "dat_cr_accept")]
    pub fn cr_accept(&self, cr: CrHandle, ep: EpHandle, private_data: &[u8]) -> Result<()> {
        let inner = self.call()?;
        inner.answer(cr, |cr| {
            let ep = match (ep.is_null(), cr.ep.is_null()) {
                (true, true) => return Err(parameter(Subtype::InvalidArg2)),
                (true, false) => cr.ep,
                (false, false) if ep != cr.ep => return Err(parameter(Subtype::InvalidArg2)),
                _ => ep,
            };
            let ep = inner.ep(ep)?;
            let _turn = ep.turn.lock(inner.platform());
            let ep = inner.as_it_is(&ep)?;
            let now = inner.ep_state(&ep);
            match cr.arrived.asked {
                Asked::Connection(id) => inner.accept(&ep, now, cr, id, private_data),
                Asked::Datagrams { request, peer } => {
                    inner.accept_datagrams(&ep, now, cr, request, peer, private_data)
                }
            }
        })
    }

    /// Rejects a connection request. The endpoint of a reserved service point returns to
    /// UNCONNECTED. The handle of the request is invalid after a success.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (private data of more than 148 bytes, for a
    /// datagram endpoint 136). Does not wait for the peer. May be called in upcalls. Thread-safe:
    /// of two calls that answer one request, one succeeds. dat_cr_reject.
    #[doc(alias = "dat_cr_reject")]
    pub fn cr_reject(&self, cr: CrHandle, private_data: &[u8]) -> Result<()> {
        let inner = self.call()?;
        inner.answer(cr, |cr| {
            let client = inner.client()?;
            let rejected = match cr.arrived.asked {
                Asked::Connection(_) if private_data.len() > REJECT_DATA => {
                    return Err(parameter(Subtype::InvalidArg3));
                }
                Asked::Connection(id) => client.reject(id, private_data),
                Asked::Datagrams { request, .. } => {
                    inner.answer_datagrams(request, sidr::Status::Rejected, private_data)?
                }
            };
            match rejected {
                // The peer gave up before this call.
                Ok(()) | Err(kernel_agent::Error::ConnectionState) => {}
                Err(error) => return Err(inner.error(error)),
            }
            inner.release(cr);
            Ok(())
        })
    }

    /// Hands a connection request over to the service point at another qualifier of this IA. The
    /// event dispatcher of that service point gets a new event, which still names the service point
    /// that the peer asked for. The handle of the request is invalid after a success.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (no service point listens there),
    /// `NotImplemented` (a request for a datagram endpoint). Does not block. May be called in
    /// upcalls. Thread-safe: of two calls that answer one request, one succeeds. dat_cr_handoff.
    #[doc(alias = "dat_cr_handoff")]
    pub fn cr_handoff(&self, cr: CrHandle, handoff: u64) -> Result<()> {
        let inner = self.call()?;
        inner.answer(cr, |cr| {
            let Asked::Connection(_) = cr.arrived.asked else {
                return Err(ErrorType::NotImplemented.into());
            };
            service(handoff, Subtype::InvalidArg2)?;
            // A request looks like the original one, but no endpoint waits for it any more.
            let mut arrived = cr.arrived;
            if let SpHandle::Rsp(_) = arrived.point {
                arrived.point = NO_POINT;
            }
            let public = inner.psps.all().find(|psp| psp.listening.is_at(handoff));
            if let Some(psp) = public {
                let pushed = inner.psps.with(psp.handle, |psp| psp.listening.push(arrived));
                inner.arrival_pushed(&psp.listening, &arrived, pushed, Origin::Call);
            } else {
                let reserved = inner.rsps.all().find(|rsp| rsp.listening.is_at(handoff));
                let rsp = reserved.ok_or(parameter(Subtype::InvalidArg2))?;
                let pushed = inner.rsps.with(rsp.handle, |rsp| rsp.listening.push(arrived));
                inner.arrival_pushed(&rsp.listening, &arrived, pushed, Origin::Call);
            }
            inner.release(cr);
            Ok(())
        })
    }
}

impl Inner {
    pub(crate) fn psp(&self, psp: PspHandle) -> Result<Arc<Psp>> {
        self.live()?;
        self.psps.get(psp).ok_or(handle(Subtype::InvalidHandlePsp))
    }

    pub(crate) fn rsp(&self, rsp: RspHandle) -> Result<Arc<Rsp>> {
        self.live()?;
        self.rsps.get(rsp).ok_or(handle(Subtype::InvalidHandleRsp))
    }

    pub(crate) fn cr(&self, cr: CrHandle) -> Result<Arc<Cr>> {
        self.live()?;
        self.crs.get(cr).ok_or(handle(Subtype::InvalidHandleCr))
    }

    /// A public service point at this qualifier.
    fn psp_at(&self, conn_qual: u64, evd: &Arc<Evd>) -> Result<PspHandle> {
        let reservation = self.psps.reserve()?;
        let handle = reservation.handle();
        let listening = self.begin_listening(conn_qual, evd, Stream::AllArrivals)?;
        let psp = heap::arc(Psp { handle, listening, context: Context::new() });
        let psp = psp.map_err(|psp| {
            self.leave(&psp.listening.evd, Stream::AllArrivals);
            NO_MEMORY
        })?;
        // In the table before the first request can come.
        reservation.fill(psp.clone());
        self.listen(&psp.listening, handle.as_raw()).inspect_err(|_| {
            self.end_psp(&psp);
        })?;
        Ok(handle)
    }

    fn begin_listening(&self, conn_qual: u64, evd: &Arc<Evd>, stream: Stream) -> Result<Listening> {
        if !evd.takes(stream) {
            return Err(handle(Subtype::InvalidHandleEvdCr));
        }
        service(conn_qual, Subtype::InvalidArg2)?;
        self.join(evd, stream, Subtype::InvalidHandleEvdCr, Subtype::None)?;
        Ok(Listening { evd: evd.clone(), conn_qual, stream, id: Mutex::new(None) })
    }

    fn listen(&self, listening: &Listening, context: u64) -> Result<()> {
        let service = ServiceId(listening.conn_qual);
        let listens = self.client()?.listen(service, Transports::RC, context);
        let id = listens.map_err(|error| match error {
            kernel_agent::Error::ServiceInUse => ErrorType::ConnQualInUse.into(),
            other => self.error(other),
        })?;
        *listening.id.lock() = Some(id);
        Ok(())
    }

    /// Lets the agent listen no more; from here on another service point may take the qualifier.
    fn stop_listening(&self, listening: &Listening) {
        let id = listening.id.lock().take();
        if let (Some(id), Ok(client)) = (id, self.client()) {
            // Fails only if the device is dead.
            let _ = client.stop_listening(id);
        }
    }

    /// Frees a service point; false if another call did.
    pub(crate) fn end_psp(&self, psp: &Psp) -> bool {
        let ended = self.psps.remove(psp.handle).is_some();
        if ended {
            self.stop_listening(&psp.listening);
            self.leave(&psp.listening.evd, psp.listening.stream);
        }
        ended
    }

    /// Frees a service point; false if another call did.
    pub(crate) fn end_rsp(&self, rsp: &Rsp) -> bool {
        let ended = self.rsps.remove(rsp.handle).is_some();
        if ended {
            self.stop_listening(&rsp.listening);
            self.leave(&rsp.listening.evd, rsp.listening.stream);
        }
        ended
    }

    /// A peer asks for a connection, or for a datagram endpoint, at the service point of this
    /// context. In the dispatcher thread.
    pub(crate) fn arrived(
        &self,
        context: u64,
        asked: Asked,
        remote: IaAddress,
        private_data: Option<PrivateData>,
    ) {
        let arrived = |conn_qual, point| Arrived { asked, remote, conn_qual, private_data, point };
        let origin = Origin::Upcall;
        let psp = PspHandle::from_raw(context);
        if let Some(psp) = self.psps.get(psp) {
            let arrived = arrived(psp.listening.conn_qual, SpHandle::Psp(psp.handle));
            let pushed = self.psps.with(psp.handle, |psp| psp.listening.push(arrived));
            return self.arrival_pushed(&psp.listening, &arrived, pushed, origin);
        }
        let rsp = RspHandle::from_raw(context);
        match self.rsps.get(rsp) {
            Some(rsp) => {
                let arrived = arrived(rsp.listening.conn_qual, SpHandle::Rsp(rsp.handle));
                let pushed = self.rsps.with(rsp.handle, |rsp| rsp.listening.push(arrived));
                self.arrival_pushed(&rsp.listening, &arrived, pushed, origin);
            }
            None => self.lose_request(&arrived(0, NO_POINT)),
        }
    }

    /// A request for a connection has arrived.
    pub(crate) fn connection_requested(&self, event: &CmEvent<'_>) {
        if let CmEventKind::Request { path, .. } = event.kind {
            let (asked, remote) = (Asked::Connection(event.connection), address_of(path.remote_gid.0));
            self.arrived(event.context, asked, remote, received(event.private_data));
        }
    }

    /// Whether a request was queued; `None`: the service point was freed meanwhile.
    fn arrival_pushed(&self, at: &Listening, arrived: &Arrived, pushed: Option<bool>, origin: Origin) {
        match pushed {
            None => self.lose_request(arrived),
            Some(queued) => {
                if !queued {
                    self.discard_request(arrived);
                }
                self.request_pushed(&at.evd, queued, origin);
            }
        }
    }

    /// The queue has no room for a request: the peer may ask again.
    fn discard_request(&self, arrived: &Arrived) {
        match arrived.asked {
            Asked::Connection(connection) => {
                if let Ok(client) = self.client() {
                    // Fails only if the peer withdrew the request.
                    let _ = client.discard(connection);
                }
            }
            Asked::Datagrams { request, .. } => self.disregard(request),
        }
    }

    /// The consumer does not learn of a request: the service point was freed.
    pub(crate) fn lose_request(&self, arrived: &Arrived) {
        match arrived.asked {
            Asked::Connection(connection) => {
                if let Ok(client) = self.client() {
                    // Fails only if the peer withdrew the request.
                    let _ = client.reject_because(connection, Reason::INVALID_SERVICE_ID, &[], &[]);
                }
            }
            Asked::Datagrams { request, .. } => self.disregard(request),
        }
    }

    /// Carries out the answer to a request, which is used up if that succeeds.
    fn answer(&self, cr: CrHandle, answer: impl FnOnce(&Cr) -> Result<()>) -> Result<()> {
        let cr = self.cr(cr)?;
        let _turn = cr.turn.lock(self.platform());
        if *cr.answered.lock() {
            return Err(handle(Subtype::InvalidHandleCr));
        }
        answer(&cr)?;
        *cr.answered.lock() = true;
        self.crs.remove(cr.handle);
        Ok(())
    }

    /// The endpoint that waits for an answer waits no more.
    fn release(&self, cr: &Cr) {
        if let Some(ep) = self.eps.get(cr.ep) {
            ep.control.lock().pending = None;
        }
    }

    fn accept(
        &self,
        ep: &Ep,
        now: EpState,
        cr: &Cr,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<()> {
        if ep.is_ud() {
            return Err(handle(Subtype::InvalidHandleEp));
        }
        let brought = now == EpState::PassiveConnectionPending && ep.handle == cr.ep;
        if now != EpState::Unconnected && !brought {
            return Err(wrong(now));
        }
        ep.control.lock().is_ready()?;
        if private_data.len() > ACCEPT_DATA {
            return Err(parameter(Subtype::InvalidArg3));
        }
        let remote = Remote { address: cr.arrived.remote, port: 0 };
        self.accept_connection(ep, connection, remote, cr.arrived.conn_qual, private_data)
    }

    /// The event of a request, which is an object from now on. `None`: it was refused.
    pub(crate) fn requested(&self, evd: EvdHandle, arrived: &Arrived) -> Option<Event> {
        let made = self.new_cr(arrived).inspect_err(|_| match arrived.asked {
            Asked::Connection(connection) => {
                if let Ok(client) = self.client() {
                    let _ = client.reject(connection, &[]);
                }
            }
            Asked::Datagrams { request, .. } => {
                let _ = self.answer_datagrams(request, sidr::Status::NoQp, &[]);
            }
        });
        let (sp_handle, cr_handle) = made.ok()?;
        let (event_number, extension) = match arrived.asked {
            Asked::Connection(_) => (EventNumber::CONNECTION_REQUEST, None),
            Asked::Datagrams { .. } => {
                (EventNumber::IB_UD_CONNECTION_REQUEST, Some(crate::datagrams::REQUESTED))
            }
        };
        let (local_ia_address, conn_qual) = (self.address(), arrived.conn_qual);
        let arrival = CrArrival { sp_handle, local_ia_address, conn_qual, cr_handle };
        Some(Event { event_number, evd_handle: evd, event_data: EventData::CrArrival(arrival), extension })
    }

    /// Makes an object of a request. Returns the service point, too.
    fn new_cr(&self, arrived: &Arrived) -> Result<(SpHandle, CrHandle)> {
        let reservation = self.crs.reserve()?;
        let new = reservation.handle();
        let (point, ep) = match arrived.point {
            SpHandle::Rsp(rsp) => (arrived.point, self.claim(rsp, new, arrived)?),
            SpHandle::Psp(psp) if self.psps.with(psp, |_| ()).is_some() => (arrived.point, EpHandle::NULL),
            // The consumer freed the service point after the request came. It can still answer the
            // request.
            SpHandle::Psp(_) => (NO_POINT, EpHandle::NULL),
        };
        let cr = Inner::shared(Cr {
            handle: new,
            turn: SleepLock::new(),
            arrived: *arrived,
            ep,
            answered: Mutex::new(false),
            context: Context::new(),
        });
        let cr = cr.inspect_err(|_| {
            if let Some(ep) = self.eps.get(ep) {
                ep.control.lock().pending = None;
            }
        })?;
        Ok((point, reservation.fill(cr)))
    }

    /// A request takes the endpoint of a reserved service point.
    fn claim(&self, rsp: RspHandle, cr: CrHandle, arrived: &Arrived) -> Result<EpHandle> {
        let rsp = self.rsps.get(rsp).ok_or(NO_MEMORY)?;
        let ep = self.eps.get(rsp.ep).ok_or(NO_MEMORY)?;
        {
            let mut control = ep.control.lock();
            let waits = control.pending.is_none() && control.reserved == Some(rsp.handle);
            if !waits || !matches!(arrived.asked, Asked::Connection(_)) {
                return Err(state(Subtype::InvalidStateEpReserved));
            }
            (control.pending, control.reserved) = (Some(cr), None);
            control.remote = Some(Remote { address: arrived.remote, port: 0 });
            control.local_port = arrived.conn_qual;
        }
        // The service point takes one request: the provider refuses later ones.
        self.stop_listening(&rsp.listening);
        Ok(ep.handle)
    }
}

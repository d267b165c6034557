//! Service points and connection requests (dat_psp_create, dat_rsp_create, dat_cr_accept and their
//! like).
//!
//! A service point is a listen point of IT-API. It takes requests for connections and for datagram
//! endpoints. A request becomes a DAT object when the consumer takes its event.

use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;

use platform::SleepLock;
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicBool, Ordering};
use privileged_api as it;
use rdma::Context;

use crate::IaAddress;
use crate::attr::{CrParam, PspParam, RspParam};
use crate::ep::connect::{address_of, qualifier};
use crate::ep::{Ep, Remote, wrong};
use crate::error::{MODEL, NO_MEMORY, handle, of, parameter, state};
use crate::evd::Stream;
use crate::event::*;
use crate::flags::{EpState, PspFlags};
use crate::handle::{CrHandle, EpHandle, EvdHandle, PspHandle, RspHandle};
use crate::ia::{Ia, Inner, SPIGOT};
use crate::ret::{Error, ErrorType, Result, Subtype};

/// A public service point.
pub(crate) struct Psp {
    pub(crate) handle: PspHandle,
    evd: EvdHandle,
    conn_qual: u64,
    listen: it::ListenHandle,
    pub(crate) context: Context,
}

/// A reserved service point: it takes one request, for an endpoint that is reserved for it.
pub(crate) struct Rsp {
    pub(crate) handle: RspHandle,
    evd: EvdHandle,
    ep: EpHandle,
    conn_qual: u64,
    listen: it::ListenHandle,
    /// The service point has taken its request, and listens no longer.
    served: AtomicBool,
    pub(crate) context: Context,
}

/// A connection request whose event the consumer has taken.
pub(crate) struct Cr {
    pub(crate) handle: CrHandle,
    /// Serializes the calls that answer the request.
    turn: SleepLock,
    pub(crate) asked: Asked,
    pub(crate) remote: IaAddress,
    conn_qual: u64,
    private_data: Option<it::PrivateData>,
    /// The endpoint of the reserved service point.
    ep: EpHandle,
    answered: Mutex<bool>,
    pub(crate) context: Context,
}

/// What a request asks for, with IT-API's identifier of the request.
#[derive(Clone, Copy)]
pub(crate) enum Asked {
    /// A connection.
    Connection(it::CnEstId),
    /// A datagram endpoint; `peer` is the asking endpoint, if the peer named it.
    Datagrams { id: u64, peer: it::RemoteEpInfo },
}

/// A remote datagram endpoint that is being resolved.
#[derive(Clone, Copy)]
pub(crate) struct Resolving {
    pub(crate) ep: EpHandle,
    pub(crate) address: it::AddrHandle,
    pub(crate) remote: IaAddress,
}

/// The number of an IT-API connection qualifier. Every qualifier of a service point has a number.
pub(crate) fn number(qualifier: it::ConnQual) -> u64 {
    qualifier.to_service_id().unwrap_or_default()
}

impl Cr {
    pub(crate) fn private_data(&self) -> Option<it::PrivateData> {
        self.private_data
    }
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
        let inner = &self.inner;
        inner.live()?;
        inner.not_in_upcall()?;
        let reservation = inner.psps.reserve()?;
        let handle = reservation.handle();
        if flags != PspFlags::Consumer {
            inner.evd(evd, Subtype::InvalidHandleEvdCr)?;
            return Err(MODEL);
        }
        let (listen, conn_qual) = inner.listen(conn_qual, evd, SpHandle::Psp(handle))?;
        let psp = Inner::shared(Psp { handle, evd, conn_qual, listen, context: Context::new() });
        reservation.fill(psp.inspect_err(|_| inner.stop_listening(listen, conn_qual, evd))?);
        Ok((handle, conn_qual))
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
            conn_qual: psp.conn_qual,
            evd_handle: psp.evd,
            psp_flags: PspFlags::Consumer,
        })
    }

    /// Ends listening. Requests that were not answered can still be; later ones are refused.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe: a call that
    /// races with it succeeds or finds the handle invalid. dat_psp_free.
    #[doc(alias = "dat_psp_free")]
    pub fn psp_free(&self, psp: PspHandle) -> Result<()> {
        let inner = &self.inner;
        inner.live()?;
        let psp = inner.psps.remove(psp).ok_or(handle(Subtype::InvalidHandlePsp))?;
        inner.stop_listening(psp.listen, psp.conn_qual, psp.evd);
        Ok(())
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
        let inner = &self.inner;
        let ep = inner.ep(ep)?;
        inner.not_in_upcall()?;
        if ep.is_ud() {
            return Err(handle(Subtype::InvalidHandleEp));
        }
        let _turn = ep.turn.lock(inner.platform());
        match inner.ep_state(&ep)? {
            EpState::Unconnected => ep.control.lock().is_ready()?,
            other => return Err(wrong(other)),
        }
        let reservation = inner.rsps.reserve()?;
        let handle = reservation.handle();
        // Before the first request can come.
        ep.control.lock().reserved = Some(handle);
        let made = inner.listen(Some(conn_qual), evd, SpHandle::Rsp(handle)).and_then(|(listen, _)| {
            let context = Context::new();
            let (ep, served) = (ep.handle, AtomicBool::new(false));
            let rsp = Inner::shared(Rsp { handle, evd, ep, conn_qual, listen, served, context });
            rsp.inspect_err(|_| inner.stop_listening(listen, conn_qual, evd))
        });
        match made {
            Ok(rsp) => {
                reservation.fill(rsp);
                Ok(handle)
            }
            Err(error) => {
                ep.control.lock().reserved = None;
                Err(error)
            }
        }
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
            conn_qual: rsp.conn_qual,
            evd_handle: rsp.evd,
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
        let inner = &self.inner;
        inner.live()?;
        let rsp = inner.rsps.remove(rsp).ok_or(handle(Subtype::InvalidHandleRsp))?;
        inner.stop_reserving(&rsp);
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
            remote_ia_address: cr.remote,
            // An InfiniBand request does not contain the qualifier of its sender.
            remote_port_qual: 0,
            private_data: cr.private_data,
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
        let inner = &self.inner;
        inner.answer(cr, |cr| {
            let ep = match (ep.is_null(), cr.ep.is_null()) {
                (true, true) => return Err(parameter(Subtype::InvalidArg2)),
                (true, false) => cr.ep,
                (false, false) if ep != cr.ep => return Err(parameter(Subtype::InvalidArg2)),
                _ => ep,
            };
            let ep = inner.ep(ep)?;
            let _turn = ep.turn.lock(inner.platform());
            let now = inner.ep_state(&ep)?;
            match cr.asked {
                Asked::Connection(id) => inner.accept(&ep, now, cr, id, private_data),
                Asked::Datagrams { id, peer } => inner.accept_datagrams(&ep, now, cr, id, peer, private_data),
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
        let inner = &self.inner;
        inner.answer(cr, |cr| {
            let rejected = match cr.asked {
                Asked::Connection(id) => self.it.reject(id, private_data),
                Asked::Datagrams { id, .. } => {
                    let (status, none) = (it::UdSvcStatus::Rejected, it::RemoteEpInfo::default());
                    answered(self.it.ud_service_reply(id, status, none, private_data))
                }
            };
            rejected.map_err(refused_data)?;
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
        let inner = &self.inner;
        inner.answer(cr, |cr| {
            let Asked::Connection(id) = cr.asked else {
                return Err(ErrorType::NotImplemented.into());
            };
            let to = qualifier(handoff, Subtype::InvalidArg2)?;
            self.it.handoff(&to, SPIGOT, id).map_err(|error| match error {
                it::Error::InvalidConnQual => parameter(Subtype::InvalidArg2),
                other => of(other),
            })?;
            inner.release(cr);
            Ok(())
        })
    }
}

/// The error of an answer with too much private data.
fn refused_data(error: it::Error) -> Error {
    match error {
        it::Error::InvalidPdataLength => parameter(Subtype::InvalidArg3),
        it::Error::InvalidEpAttr => parameter(Subtype::InvalidArg2),
        other => of(other),
    }
}

/// The provider may have dropped a peer's request for a datagram endpoint, to make room for others.
/// An answer to such a request has no receiver, and counts as sent.
fn answered(answer: it::Result<()>) -> it::Result<()> {
    match answer {
        Err(it::Error::InvalidUdSvcReqId) => Ok(()),
        other => other,
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

    /// Creates the listen point of a service point. Returns it and its qualifier.
    fn listen(
        &self,
        conn_qual: Option<u64>,
        evd: EvdHandle,
        point: SpHandle,
    ) -> Result<(it::ListenHandle, u64)> {
        let invalid = Subtype::InvalidHandleEvdCr;
        let found = self.evd(evd, invalid)?;
        let requests = found.requests().ok_or(handle(invalid))?;
        let named = conn_qual.map(|id| qualifier(id, Subtype::InvalidArg2)).transpose()?;
        let flags = match named {
            Some(_) => it::ListenFlags::CONN_QUAL_INPUT,
            None => it::ListenFlags::empty(),
        };
        platform::heap::room(NODE)?;
        let stream = match point {
            SpHandle::Psp(_) => Stream::AllArrivals,
            SpHandle::Rsp(_) => Stream::Arrivals,
        };
        self.join(&found, stream, invalid, Subtype::None)?;
        let listening = self.record(conn_qual, point).and_then(|()| {
            let listening = self.it.listen_create(SPIGOT, requests, flags, named.as_ref());
            listening.map_err(|error| {
                if let Some(conn_qual) = conn_qual {
                    self.services.lock().remove(&conn_qual);
                }
                match error {
                    it::Error::Resources if named.is_none() => ErrorType::ConnQualUnavailable.into(),
                    other => of(other),
                }
            })
        });
        let (listen, chosen) = listening.inspect_err(|_| self.leave(&found, stream))?;
        let conn_qual = conn_qual.unwrap_or_else(|| {
            // No peer knows the qualifier yet. The event of a request that guesses it earlier names
            // no service point.
            let chosen = number(chosen);
            self.services.lock().insert(chosen, point);
            chosen
        });
        Ok((listen, conn_qual))
    }

    /// Records a service point under `conn_qual`, or without one under the qualifier that the
    /// provider chose, before its first request can come. Fails if another service point of this IA
    /// has the qualifier.
    fn record(&self, conn_qual: Option<u64>, point: SpHandle) -> Result<()> {
        let Some(conn_qual) = conn_qual else { return Ok(()) };
        match self.services.lock().entry(conn_qual) {
            Entry::Vacant(entry) => {
                entry.insert(point);
                Ok(())
            }
            Entry::Occupied(_) => Err(ErrorType::ConnQualInUse.into()),
        }
    }

    fn stop_listening(&self, listen: it::ListenHandle, conn_qual: u64, evd: EvdHandle) {
        // From here on another service point may take the qualifier.
        self.services.lock().remove(&conn_qual);
        // Fails only if the IA has ended.
        let _ = self.it.listen_free(listen);
        if let Some(evd) = self.evds.get(evd) {
            self.leave(&evd, Stream::AllArrivals);
        }
    }

    /// Ends listening at a reserved service point. Later calls do nothing.
    fn stop_reserving(&self, rsp: &Rsp) {
        if !rsp.served.swap(true, Ordering::AcqRel) {
            self.stop_listening(rsp.listen, rsp.conn_qual, rsp.evd);
        }
    }

    /// Runs `answer` for a request. The handle of the request is invalid afterwards unless `answer`
    /// fails. Several calls run one after the other.
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

    /// Releases the reserved endpoint of a request.
    fn release(&self, cr: &Cr) {
        if let Some(ep) = self.eps.get(cr.ep) {
            ep.control.lock().pending = None;
        }
    }

    fn accept(&self, ep: &Ep, now: EpState, cr: &Cr, id: it::CnEstId, private_data: &[u8]) -> Result<()> {
        if ep.is_ud() {
            return Err(handle(Subtype::InvalidHandleEp));
        }
        let brought = now == EpState::PassiveConnectionPending && ep.handle == cr.ep;
        if now != EpState::Unconnected && !brought {
            return Err(wrong(now));
        }
        {
            let mut control = ep.control.lock();
            control.is_ready()?;
            control.passive = true;
            control.draining = false;
            control.remote = Some(Remote { address: cr.remote, port: 0 });
            control.local_port = cr.conn_qual;
        }
        self.it.ep_accept(ep.handle.inner(), id, private_data).map_err(refused_data)?;
        let mut control = ep.control.lock();
        control.pending = None;
        Ok(())
    }

    /// The event of a request for a connection. `None` if no consumer can answer the request.
    pub(crate) fn requested(&self, evd: EvdHandle, request: &it::ConnRequest) -> Option<Event> {
        let it::NetAddr::IbGid(gid) = request.source_addr else { return None };
        let asked = Asked::Connection(request.cn_est_id);
        let made = self.new_cr(asked, gid, number(request.conn_qual), request.private_data);
        let (point, cr) = made
            .inspect_err(|_| {
                let _ = self.it.reject(request.cn_est_id, &[]);
            })
            .ok()?;
        Some(self.arrival(evd, EventNumber::CONNECTION_REQUEST, point, &cr, None))
    }

    pub(crate) fn arrival(
        &self,
        evd: EvdHandle,
        event_number: EventNumber,
        sp_handle: SpHandle,
        cr: &Cr,
        extension: Option<IbExtensionEventData>,
    ) -> Event {
        let local_ia_address = self.address();
        let arrival =
            CrArrival { sp_handle, local_ia_address, conn_qual: cr.conn_qual, cr_handle: cr.handle };
        Event { event_number, evd_handle: evd, event_data: EventData::CrArrival(arrival), extension }
    }

    /// Creates the object of a request. Fails if its reserved service point does not take the
    /// request, or without room.
    pub(crate) fn new_cr(
        &self,
        asked: Asked,
        gid: [u8; 16],
        conn_qual: u64,
        private_data: Option<it::PrivateData>,
    ) -> Result<(SpHandle, Arc<Cr>)> {
        let point = self.services.lock().get(&conn_qual).copied();
        let reservation = self.crs.reserve()?;
        let new = reservation.handle();
        let (point, ep) = match point {
            Some(SpHandle::Rsp(rsp)) => (SpHandle::Rsp(rsp), self.claim(rsp, new, asked, address_of(gid))?),
            Some(point) => (point, EpHandle::NULL),
            // The consumer freed the service point after the request came. It can still answer the
            // request.
            None => (SpHandle::Psp(PspHandle::NULL), EpHandle::NULL),
        };
        let cr = Inner::shared(Cr {
            handle: new,
            turn: SleepLock::new(),
            asked,
            remote: address_of(gid),
            conn_qual,
            private_data,
            ep,
            answered: Mutex::new(false),
            context: Context::new(),
        });
        let cr = cr.inspect_err(|_| {
            if let Some(ep) = self.eps.get(ep) {
                ep.control.lock().pending = None;
            }
        })?;
        reservation.fill(cr.clone());
        Ok((point, cr))
    }

    /// Takes the endpoint of a reserved service point, for the one request that the service point
    /// serves.
    fn claim(&self, rsp: RspHandle, cr: CrHandle, asked: Asked, from: IaAddress) -> Result<EpHandle> {
        let rsp = self.rsps.get(rsp).ok_or(NO_MEMORY)?;
        let ep = self.eps.get(rsp.ep).ok_or(NO_MEMORY)?;
        {
            let mut control = ep.control.lock();
            let waits = control.pending.is_none() && control.reserved == Some(rsp.handle);
            if !waits || !matches!(asked, Asked::Connection(_)) {
                return Err(state(Subtype::InvalidStateEpReserved));
            }
            (control.pending, control.reserved) = (Some(cr), None);
            control.remote = Some(Remote { address: from, port: 0 });
            control.local_port = rsp.conn_qual;
        }
        // The service point takes one request: the provider refuses later ones.
        self.stop_reserving(&rsp);
        Ok(ep.handle)
    }
}

/// An upper bound of the size of a node of the map of service points.
const NODE: usize = 1024;

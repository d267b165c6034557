//! UD service requests and replies, InfiniBand's SIDR: a request asks a node for the endpoint of a
//! datagram service (pages it_ud_service_request_handle_create, it_ud_service_request_handle_query,
//! it_ud_service_request_handle_free, it_ud_service_request, it_ud_service_reply).
//!
//! Owns the request handles, and the peers' requests that wait for a reply. The number of waiting
//! requests is bounded: a request beyond the bound replaces the oldest one of the peer that has the
//! most, which counts as a lost datagram.
//!
//! Locks: the lock of the waiting requests is taken alone.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use kernel_agent::wire::{Gid, Qpn, Redirection, sidr};
use kernel_agent::{
    ResolutionAnswer, ResolutionEvent, ResolutionEventKind, ResolutionId, ResolutionRequestId, ResolveParams,
};
use platform::heap;
use rdma::{Context, attempts};

use crate::address::{ConnQual, NetAddr, Path, PrivateData, RemoteEpInfo};
use crate::attributes::UdSvcReqParam;
use crate::evd::EventStreams;
use crate::evd::callback::Origin;
use crate::event::{Event, UdServiceReply, UdServiceRequest, UdSvcStatus};
use crate::flags::UdSvcReqParamMask;
use crate::handle::{EvdHandle, ListenHandle, UdSvcReqHandle};
use crate::ia::{Core, Ia, SPIGOT};
use crate::objects::ud_requests::UdSvcReq;
use crate::status::{Error, Result};

impl Core {
    fn ud_svc_req(&self, handle: UdSvcReqHandle) -> Result<Arc<UdSvcReq>> {
        self.ud_svc_reqs.get(handle).ok_or(Error::InvalidUdSvc)
    }

    /// Frees a request handle; false if another call freed it first.
    pub(crate) fn free_ud_svc_req(&self, request: &UdSvcReq) -> bool {
        if self.ud_svc_reqs.remove(request.handle).is_none() {
            return false;
        }
        if let Ok(client) = self.client() {
            // Fails only if the device is dead.
            let _ = client.close_resolution(request.id);
        }
        request.feed.end();
        true
    }

    /// Acts on the agent's upcall about service resolution.
    pub(crate) fn resolution_event(&self, event: &ResolutionEvent<'_>, ia: &Ia) {
        match event.kind {
            ResolutionEventKind::Request { request, request_id, remote_gid, .. } => {
                self.ud_requested(event, (request, request_id), remote_gid, ia);
            }
            ResolutionEventKind::Reply { resolution, status, qpn, qkey, redirection } => {
                let ep_info = RemoteEpInfo { ud_ep_id: qpn, ud_ep_key: qkey };
                self.ud_replied(event, resolution, (status, ep_info, redirection), ia);
            }
            ResolutionEventKind::TimedOut { resolution } => self.ud_timed_out(event, resolution, ia),
        }
    }

    /// A request whose event finds the event dispatcher full is not answered, so that the peer asks
    /// again.
    fn ud_requested(
        &self,
        event: &ResolutionEvent<'_>,
        (request, name): (ResolutionRequestId, u32),
        from: [u8; 16],
        ia: &Ia,
    ) {
        let Some(listen) = self.listens.get(ListenHandle::from_raw(event.context)) else {
            return self.disregard(request);
        };
        let added = self.ud_requests.lock().add(name, from, request);
        let Some((id, dropped)) = added else { return self.disregard(request) };
        if let Some(dropped) = dropped {
            self.disregard(dropped);
        }
        let evd = &*listen.feed;
        let event = Event::UdServiceRequest(UdServiceRequest {
            evd: evd.handle,
            ud_svc_req_id: id,
            conn_qual: listen.qual,
            source_addr: NetAddr::IbGid(from),
            spigot_id: SPIGOT,
            private_data: self.facts().received(event.private_data),
        });
        let origin = Origin::Upcall(ia);
        match self.listens.with(listen.handle, |_| evd.push(event)) {
            Some(true) => return self.announce(evd, origin),
            Some(false) => self.overflow(evd, EventStreams::REQUESTS, origin),
            None => {}
        }
        self.ud_requests.lock().forget(request);
        self.disregard(request);
    }

    fn ud_replied(
        &self,
        event: &ResolutionEvent<'_>,
        resolution: ResolutionId,
        (status, ep_info, redirection): (sidr::Status, RemoteEpInfo, Option<Redirection>),
        ia: &Ia,
    ) {
        let Some(asked) = self.ud_svc_reqs.get(UdSvcReqHandle::from_raw(event.context)) else { return };
        if asked.id != resolution {
            return;
        }
        let dst_path = redirection.and_then(|to| self.redirected(&asked.path, &to));
        let status = match status {
            sidr::Status::Valid => UdSvcStatus::EpInfoValid,
            sidr::Status::ServiceIdNotSupported => UdSvcStatus::IdNotSupported,
            sidr::Status::NoQp => UdSvcStatus::NoEpAvailable,
            sidr::Status::Redirected if dst_path.is_some() => UdSvcStatus::Redirected,
            // A redirection to a port that no path leads to is reported as a rejection.
            sidr::Status::Rejected | sidr::Status::Redirected | sidr::Status::VersionNotSupported => {
                UdSvcStatus::Rejected
            }
        };
        let event = Event::UdServiceReply(UdServiceReply {
            evd: asked.feed.handle,
            ud_svc: asked.handle,
            status,
            ep_info: if status == UdSvcStatus::EpInfoValid { ep_info } else { RemoteEpInfo::default() },
            dst_path,
            private_data: self.facts().received(event.private_data),
        });
        self.tell_asker(&asked, event, ia);
    }

    /// Without [`Ia::ud_service_request_reported`] no event reports a timeout, and the consumer
    /// asks again (it_ud_service_request).
    fn ud_timed_out(&self, event: &ResolutionEvent<'_>, resolution: ResolutionId, ia: &Ia) {
        let Some(asked) = self.ud_svc_reqs.get(UdSvcReqHandle::from_raw(event.context)) else { return };
        if asked.id != resolution || !asked.reports_timeout.load(Ordering::Acquire) {
            return;
        }
        let event = Event::UdServiceReply(UdServiceReply {
            evd: asked.feed.handle,
            ud_svc: asked.handle,
            status: UdSvcStatus::TimedOut,
            ep_info: RemoteEpInfo::default(),
            dst_path: None,
            private_data: None,
        });
        self.tell_asker(&asked, event, ia);
    }

    /// Queues an event of a request handle, unless the handle is freed: no event of it is queued
    /// once it_ud_service_request_handle_free has returned.
    fn tell_asker(&self, asked: &UdSvcReq, event: Event, ia: &Ia) {
        let (evd, origin) = (&*asked.feed, Origin::Upcall(ia));
        match self.ud_svc_reqs.with(asked.handle, |_| evd.push(event)) {
            Some(true) => self.announce(evd, origin),
            Some(false) => self.overflow(evd, EventStreams::MESSAGES, origin),
            None => {}
        }
    }

    /// Drops a request whose event is lost.
    pub(crate) fn lose_ud_request(&self, id: u64) {
        let request = self.ud_requests.lock().take(id);
        if let Some(request) = request {
            self.disregard(request);
        }
    }

    fn disregard(&self, request: ResolutionRequestId) {
        if let Ok(client) = self.client() {
            client.disregard_resolution(request);
        }
    }
}

impl Ia {
    /// Prepares a request that asks the node at the end of a path for the endpoint of a UD service.
    /// Sends nothing yet.
    ///
    /// A reply is an `IT_CM_MSG_UD_SERVICE_REPLY_EVENT` on `reply_evd`. The path's local part is
    /// checked; its `timeout` is how long one request is repeated.
    ///
    /// Errors: `InvalidConnEvd`, `InvalidEvdType`, `InvalidPdataLength`, `InvalidConnQual`,
    /// `InvalidSpigot`, `InvalidSourcePath`, `Resources`, `InvalidIa`, `IaCatastrophe`;
    /// `PdataNotSupported` cannot happen. Does not block. Not for callbacks. Thread-safe.
    /// Page it_ud_service_request_handle_create.
    #[doc(alias = "it_ud_service_request_handle_create")]
    pub fn ud_service_request_handle_create(
        &self,
        conn_qual: &ConnQual,
        reply_evd: EvdHandle,
        destination_path: &Path,
        private_data: &[u8],
    ) -> Result<UdSvcReqHandle> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let feed = core.feed(reply_evd, EventStreams::MESSAGES, Error::InvalidConnEvd)?;
        if private_data.len() > core.facts().private_data.ud_request {
            return Err(Error::InvalidPdataLength);
        }
        let service = core.dialect.service(conn_qual)?;
        let (ib, _) = core.check_path(destination_path)?;
        let (response_timeout, retries) = attempts(destination_path.timeout);
        let reservation = core.ud_svc_reqs.reserve()?;
        let handle = reservation.handle();
        let params = ResolveParams {
            service,
            local_gid: Gid(ib.local_port_gid),
            remote_gid: Gid(ib.remote_port_gid),
            ip_source_port: 0,
            response_timeout,
            retries,
            private_data,
        };
        let opened = core.client()?.open_resolution(&params, handle.as_raw());
        let (id, request_id) = opened.map_err(|error| core.error(error))?;
        let request = heap::arc(UdSvcReq {
            handle,
            feed,
            qual: *conn_qual,
            path: *destination_path,
            private_data: PrivateData::new(private_data),
            id,
            request_id,
            reports_timeout: AtomicBool::new(false),
            context: Context::new(),
        });
        reservation.fill(request.map_err(|request| {
            let _ = core.client().map(|client| client.close_resolution(request.id));
            Error::Resources
        })?);
        Ok(handle)
    }

    /// Queries a request handle.
    ///
    /// Errors: `InvalidUdSvc`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Does not block.
    /// May be called in callbacks. Thread-safe. Page it_ud_service_request_handle_query.
    #[doc(alias = "it_ud_service_request_handle_query")]
    pub fn ud_service_request_handle_query(
        &self,
        ud_svc: UdSvcReqHandle,
        mask: UdSvcReqParamMask,
    ) -> Result<UdSvcReqParam> {
        let core = self.live()?;
        let request = core.ud_svc_req(ud_svc)?;
        if UdSvcReqParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let wants = |bit| mask.intersects(bit | UdSvcReqParamMask::ALL);
        let mut param = UdSvcReqParam::default();
        if wants(UdSvcReqParamMask::IA_HANDLE) {
            param.ia = core.handle;
        }
        if wants(UdSvcReqParamMask::REQ_ID) {
            param.request_id = request.request_id;
        }
        if wants(UdSvcReqParamMask::REPLY_EVD) {
            param.reply_evd = request.feed.handle;
        }
        if wants(UdSvcReqParamMask::CONN_QUAL) {
            param.conn_qual = request.qual;
        }
        if wants(UdSvcReqParamMask::DEST_PATH) {
            param.destination_path = request.path;
        }
        if wants(UdSvcReqParamMask::PRIV_DATA) {
            param.private_data = (!request.private_data.is_empty()).then_some(request.private_data);
        }
        if wants(UdSvcReqParamMask::PRIV_DATA_LENGTH) {
            param.private_data_length = request.private_data.len();
        }
        Ok(param)
    }

    /// Frees a request handle: later replies are dropped. Reply events that are already queued stay
    /// in the queue.
    ///
    /// Errors: `InvalidUdSvc`, `InvalidIa`, `IaCatastrophe`. Does not block.
    /// May be called in callbacks. Thread-safe. Page it_ud_service_request_handle_free.
    #[doc(alias = "it_ud_service_request_handle_free")]
    pub fn ud_service_request_handle_free(&self, ud_svc: UdSvcReqHandle) -> Result<()> {
        let core = self.call()?;
        let request = core.ud_svc_req(ud_svc)?;
        if core.free_ud_svc_req(&request) { Ok(()) } else { Err(Error::InvalidUdSvc) }
    }

    /// Makes a request. Each request gets at most one reply. If none comes within the path's
    /// timeout, no event reports that, and the consumer may ask again. A new request before the
    /// reply replaces the earlier one.
    ///
    /// Errors: `InvalidUdSvc`, `InvalidIa`, `IaCatastrophe`; `Resources` if too many messages wait
    /// to be sent. Does not wait for the peer. May be called in callbacks. Thread-safe.
    /// Page it_ud_service_request.
    #[doc(alias = "it_ud_service_request")]
    pub fn ud_service_request(&self, ud_svc: UdSvcReqHandle) -> Result<()> {
        self.ask(ud_svc, false)
    }

    /// Makes a request as [`Ia::ud_service_request`] does. If no reply comes within the path's
    /// timeout, a reply event with the status [`UdSvcStatus::TimedOut`] reports that. An extension
    /// of the API.
    ///
    /// Errors: as [`Ia::ud_service_request`]. Does not wait for the peer. May be called in
    /// callbacks. Thread-safe.
    pub fn ud_service_request_reported(&self, ud_svc: UdSvcReqHandle) -> Result<()> {
        self.ask(ud_svc, true)
    }

    fn ask(&self, ud_svc: UdSvcReqHandle, reports_timeout: bool) -> Result<()> {
        let core = self.live()?;
        let request = core.ud_svc_req(ud_svc)?;
        request.reports_timeout.store(reports_timeout, Ordering::Release);
        core.client()?.resolve(request.id).map_err(|error| match error {
            kernel_agent::Error::ConnectionState => Error::InvalidUdSvc,
            other => core.error(other),
        })
    }

    /// Answers a peer's request. The identifier is invalid afterwards, unless an error is returned.
    /// `ep_info` counts only with [`UdSvcStatus::EpInfoValid`]. Consumers cannot use
    /// [`UdSvcStatus::Redirected`].
    ///
    /// If a peer asked several times with one handle, each request is answered by a reply of its
    /// own, the oldest first.
    ///
    /// Errors: `InvalidPdataLength`, `InvalidUdSvcReqId`, `InvalidUdStatus` (also for an endpoint
    /// ID of more than 24 bits, which is no valid endpoint), `InvalidIa`, `IaCatastrophe`;
    /// `PdataNotSupported` cannot happen. Does not wait for the peer. May be called in callbacks.
    /// Thread-safe. Page it_ud_service_reply.
    #[doc(alias = "it_ud_service_reply")]
    pub fn ud_service_reply(
        &self,
        ud_svc_req_id: u64,
        status: UdSvcStatus,
        ep_info: RemoteEpInfo,
        private_data: &[u8],
    ) -> Result<()> {
        let core = self.live()?;
        core.ud_requests.lock().oldest(ud_svc_req_id).ok_or(Error::InvalidUdSvcReqId)?;
        let valid = status == UdSvcStatus::EpInfoValid;
        let answer = match status {
            UdSvcStatus::EpInfoValid => sidr::Status::Valid,
            UdSvcStatus::IdNotSupported => sidr::Status::ServiceIdNotSupported,
            UdSvcStatus::Rejected => sidr::Status::Rejected,
            UdSvcStatus::NoEpAvailable => sidr::Status::NoQp,
            UdSvcStatus::Redirected | UdSvcStatus::TimedOut => return Err(Error::InvalidUdStatus),
        };
        if valid && Qpn::new(ep_info.ud_ep_id).is_none() {
            return Err(Error::InvalidUdStatus);
        }
        if private_data.len() > core.facts().private_data.ud_reply {
            return Err(Error::InvalidPdataLength);
        }
        let answer = ResolutionAnswer {
            status: answer,
            qpn: if valid { ep_info.ud_ep_id } else { 0 },
            qkey: if valid { ep_info.ud_ep_key } else { 0 },
            private_data,
        };
        loop {
            // After an error the request can still be answered.
            let request = core.ud_requests.lock().oldest(ud_svc_req_id).ok_or(Error::InvalidUdSvcReqId)?;
            let answered = core.client()?.answer_resolution(request, &answer);
            if matches!(answered, Ok(()) | Err(kernel_agent::Error::ConnectionState)) {
                core.ud_requests.lock().forget(request);
            }
            match answered {
                // Another call has answered it, or a later request has replaced it.
                Err(kernel_agent::Error::ConnectionState) => {}
                answered => return answered.map_err(|error| core.error(error)),
            }
        }
    }
}

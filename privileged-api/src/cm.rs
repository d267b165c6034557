//! The agent's upcalls about connections, and the identifiers with which consumers answer (pages
//! it_reject, it_handoff, it_cm_req_events, it_cm_msg_events).
//!
//! Owns the peers' requests and accepts that the consumer has not answered yet. Each of them has an
//! identifier. A number never names two of them, and an identifier stays valid until a call of the
//! consumer uses it up, even if the connection has ended because the peer gave up (appendix A,
//! it_ep_state_t).
//!
//! Locks, outermost first: `turn` of an identifier (sleeps; held by the call that answers it), the
//! lock of the table of identifiers. A thread that holds the latter takes no other lock.

use alloc::boxed::Box;

use kernel_agent::wire::{ReadDepths, Reason};
use kernel_agent::{CmEvent, CmEventKind, ConnectionId};
use platform::heap;

use crate::address::{CnEstId, ConnQual, Path, PrivateData};
use crate::dialect::{Asked, Requested};
use crate::ep::state::{Trigger, is_pending};
use crate::evd::EventStreams;
use crate::evd::callback::Origin;
use crate::event::{ConnRequest, Event, RejectReason};
use crate::handle::{EpHandle, ListenHandle};
use crate::ia::{Core, Ia, SPIGOT};
use crate::objects::ep::Ep;
use crate::objects::listen::Listen;
use crate::objects::unanswered::{MEMORY, PeerRequest, Pending, Role};
use crate::path::DEFAULT_TIMEOUT_US;
use crate::status::{Error, Result};

impl Ia {
    /// Rejects a connection request (passive side), or the peer's accept (active side of a
    /// three-way handshake: the endpoint goes to NONOPERATIONAL). The identifier is used up, unless
    /// an error is returned. If the connection has already ended, the call only uses the identifier
    /// up.
    ///
    /// Errors: `InvalidCnEstId`, `InvalidPdataLength`, `PdataNotSupported` (on VIA), `InvalidIa`,
    /// `IaCatastrophe`. Does not wait for the peer. May be called in callbacks.
    /// Thread-safe: of two answers to one identifier the later one waits for the earlier one, and
    /// finds the identifier used up unless the earlier one was refused. Page it_reject.
    #[doc(alias = "it_reject")]
    pub fn reject(&self, cn_est_id: CnEstId, private_data: &[u8]) -> Result<()> {
        let core = self.call()?;
        core.check_private_data(private_data)?;
        if private_data.len() > core.facts().private_data.reject {
            core.unanswered.lock().check(cn_est_id)?;
            return Err(Error::InvalidPdataLength);
        }
        core.answer(cn_est_id, |pending| {
            match core.client()?.reject(pending.connection, private_data) {
                // The connection ended before this call.
                Ok(()) | Err(kernel_agent::Error::ConnectionState) => {}
                Err(error) => return Err(core.error(error)),
            }
            if let Role::Active { ep, .. } = pending.role
                && let Ok(ep) = core.ep(ep)
            {
                core.reject_accept(&ep, pending.connection);
            }
            Ok(())
        })
    }

    /// Hands a connection request over to another listen point of this IA, whose event dispatcher
    /// gets a new request event. The identifier is used up, unless an error is returned.
    ///
    /// Errors: `InvalidCnEstId`, `InvalidSpigot`, `InvalidConnQual` (also if there is no listen
    /// point), `InvalidIa`, `IaCatastrophe`. Without memory for a new identifier the request is
    /// discarded, and the peer repeats it. Blocks only while another answer to the identifier is in
    /// progress. May be called in callbacks. Thread-safe: of two answers to one identifier the
    /// later one waits for the earlier one, and finds the identifier used up unless the earlier one
    /// was refused. Page it_handoff.
    #[doc(alias = "it_handoff")]
    pub fn handoff(&self, conn_qual: &ConnQual, spigot_id: usize, cn_est_id: CnEstId) -> Result<()> {
        let core = self.call()?;
        core.unanswered.lock().check(cn_est_id)?;
        if spigot_id != SPIGOT {
            return Err(Error::InvalidSpigot);
        }
        let wanted = core.dialect.service(conn_qual)?;
        let listen = core.listens.all().find(|listen| listen.service == wanted);
        let listen = listen.ok_or(Error::InvalidConnQual)?;
        core.answer(cn_est_id, |pending| {
            let Role::Passive(asked) = &pending.role else { return Err(Error::InvalidCnEstId) };
            // The event looks like the original one (it_handoff), also in the qualifier.
            let request = ConnRequest { evd: listen.feed.handle, ..asked.request };
            core.request(pending.connection, asked.path, request, &listen, Origin::Call);
            Ok(())
        })
    }
}

impl Core {
    /// Fails if a call brings private data that the transport does not carry.
    pub(crate) fn check_private_data(&self, private_data: &[u8]) -> Result<()> {
        let carried = private_data.is_empty() || self.facts().has_private_data();
        if carried { Ok(()) } else { Err(Error::PdataNotSupported) }
    }

    /// Runs `answer` for an identifier. The identifier is used up unless `answer` fails. Several
    /// calls that answer one identifier run one after the other, so the next call can answer it if
    /// one fails.
    pub(crate) fn answer(&self, id: CnEstId, answer: impl FnOnce(&Pending) -> Result<()>) -> Result<()> {
        let pending = self.unanswered.lock().get(id)?;
        let _turn = pending.turn.lock(&self.shared.platform);
        self.unanswered.lock().check(id)?;
        answer(&pending)?;
        let removed = self.unanswered.lock().remove(id);
        drop(removed);
        Ok(())
    }

    /// Queues a request event. A request that finds the queue full, or no memory, is discarded as
    /// if it had not come: it is not answered and holds no place, so the peer repeats it until
    /// there is room or its time is over (it_listen_create).
    pub(crate) fn request(
        &self,
        connection: ConnectionId,
        path: Path,
        mut request: ConnRequest,
        listen: &Listen,
        origin: Origin<'_>,
    ) {
        if heap::room(MEMORY).is_err() {
            return self.discard(connection);
        }
        let id = self.unanswered.lock().add(|id| {
            request.cn_est_id = id;
            Pending::new(connection, Role::Passive(Box::new(PeerRequest { path, request })))
        });
        let evd = &*listen.feed;
        let event = Event::ConnRequest(request);
        let pushed = self.listens.with(listen.handle, |_| evd.push(event));
        if pushed == Some(true) {
            return self.announce(evd, origin);
        }
        let removed = self.unanswered.lock().remove(id);
        drop(removed);
        match pushed {
            Some(_) => {
                self.discard(connection);
                self.overflow(evd, EventStreams::REQUESTS, origin);
            }
            None => self.no_listen_point(connection),
        }
    }

    fn discard(&self, connection: ConnectionId) {
        if let Ok(client) = self.client() {
            // Fails only if the peer withdrew the request.
            let _ = client.discard(connection);
        }
    }

    /// Rejects a request whose listen point is freed.
    pub(crate) fn no_listen_point(&self, connection: ConnectionId) {
        self.reject_request(connection, Reason::INVALID_SERVICE_ID);
    }

    /// Rejects a request that the consumer does not learn of.
    pub(crate) fn reject_request(&self, connection: ConnectionId, reason: Reason) {
        if let Ok(client) = self.client() {
            // Fails only if the peer withdrew the request.
            let _ = client.reject_because(connection, reason, &[], &[]);
        }
    }

    /// Ends the peers' requests whose events were lost with their EVD, so that the consumer cannot
    /// answer them.
    pub(crate) fn lose_requests(&self, events: impl Iterator<Item = Event>) {
        for event in events {
            match event {
                Event::ConnRequest(request) => {
                    let pending = self.unanswered.lock().remove(request.cn_est_id);
                    if let Some(pending) = pending {
                        self.no_listen_point(pending.connection);
                    }
                }
                Event::UdServiceRequest(request) => self.lose_ud_request(request.ud_svc_req_id),
                _ => {}
            }
        }
    }

    /// Ends the connection attempt of an endpoint after the consumer rejected the peer's accept.
    fn reject_accept(&self, ep: &Ep, connection: ConnectionId) {
        {
            let Some(mut control) = ep.concerned(connection) else { return };
            if ep.advance(&mut control, Trigger::End).is_err() {
                return;
            }
            control.connection.part();
        }
        // The agent has already flushed the queue pair, unless the connection had ended before.
        let _ = ep.pair.to_error();
    }

    /// Handles the agent's upcall about a connection.
    pub(crate) fn connection_event(&self, event: &CmEvent<'_>, ia: &Ia) {
        match event.kind {
            CmEventKind::Request { .. } => self.requested(event, ia),
            _ => {
                if let Some(ep) = self.eps.get(EpHandle::from_raw(event.context)) {
                    self.endpoint_event(&ep, event, ia);
                }
            }
        }
    }

    fn requested(&self, event: &CmEvent<'_>, ia: &Ia) {
        let CmEventKind::Request { path, path_mtu, pkey, depths, .. } = event.kind else { return };
        let listen = self.listens.get(ListenHandle::from_raw(event.context));
        let Some(listen) = listen else { return self.no_listen_point(event.connection) };
        let (qualifier, service, private_data) = (&listen.qual, listen.service, event.private_data);
        let asked = Asked { qualifier, service, path, path_mtu, pkey, private_data };
        let Requested { remote, source_addr, max_message_size } = match self.dialect.requested(&asked) {
            Ok(requested) => requested,
            Err(reason) => return self.reject_request(event.connection, reason),
        };
        let facts = self.facts();
        let depths = facts.shown(depths);
        let request = ConnRequest {
            evd: listen.feed.handle,
            cn_est_id: CnEstId::default(),
            conn_qual: listen.qual,
            source_addr,
            spigot_id: SPIGOT,
            max_message_size,
            rdma_read_ird: depths.responder_resources.into(),
            rdma_read_ord: depths.initiator_depth.into(),
            private_data: facts.received(event.private_data),
        };
        let path = Path { spigot_id: SPIGOT, timeout: DEFAULT_TIMEOUT_US, remote };
        self.request(event.connection, path, request, &listen, Origin::Upcall(ia));
    }

    fn endpoint_event(&self, ep: &Ep, event: &CmEvent<'_>, ia: &Ia) {
        let Some(asked) = ep.concerned(event.connection).map(|control| control.path) else { return };
        match event.kind {
            CmEventKind::AcceptArrived { depths } => {
                self.dialect.accept_arrived(self, ep, event, depths, ia);
            }
            CmEventKind::Established { depths } => {
                let private_data = self.facts().received(event.private_data);
                let depths = self.facts().shown(depths);
                self.established(ep, event.connection, depths, private_data, Origin::Upcall(ia));
            }
            CmEventKind::Rejected { reason } => {
                let (evd, handle) = (ep.connect.handle(), ep.handle);
                let result = if reason == Reason::CONSUMER_DEFINED {
                    Event::ConnPeerReject {
                        evd,
                        ep: handle,
                        private_data: self.facts().received(event.private_data),
                    }
                } else {
                    let reject_reason_code = self.dialect.reject_code(reason);
                    let bad = reject_reason_code == RejectReason::BadPath;
                    let dst_path = bad.then(|| self.suggested(&asked, reason, event.information));
                    Event::ConnNonpeerReject { evd, ep: handle, reject_reason_code, dst_path }
                };
                self.not_established(ep, event.connection, result, Origin::Upcall(ia));
            }
            CmEventKind::Unreachable | CmEventKind::AcceptTimedOut => {
                let reason = match event.kind {
                    CmEventKind::AcceptTimedOut => self.facts().unconfirmed,
                    _ => RejectReason::Timeout,
                };
                let result = nonpeer(ep, reason);
                self.not_established(ep, event.connection, result, Origin::Upcall(ia));
            }
            CmEventKind::Disconnected { by_peer } => self.disconnected(ep, event, by_peer, ia),
            // Their context is the listening point's, which names no endpoint. The agent refuses an
            // answer to a request that was withdrawn, and the call that answers handles that.
            CmEventKind::Request { .. } | CmEventKind::Withdrawn => {}
            CmEventKind::TransitionRequested => {
                if let Some(mut control) = ep.concerned(event.connection) {
                    // Fails if the consumer has given the conversion up.
                    let _ = ep.advance(&mut control, Trigger::Transition);
                }
            }
        }
    }

    /// In a three-way handshake the passive side has accepted. Queues the event, after which the
    /// consumer confirms or rejects the connection. Without memory for an identifier the accept is
    /// not reported, and the attempt ends when its time is over.
    pub(crate) fn ask_consumer(&self, ep: &Ep, event: &CmEvent<'_>, peer: ReadDepths, ia: &Ia) {
        let connection = event.connection;
        if heap::room(MEMORY).is_err() {
            return;
        }
        let queued = {
            let Some(mut control) = ep.concerned(connection) else { return };
            if ep.advance(&mut control, Trigger::AcceptArrival).is_err() {
                return;
            }
            let role = Role::Active { ep: ep.handle, peer };
            // A call that frees the endpoint or ends the connection takes the control lock. It runs
            // before this, and then `advance` fails, or after this, and then removes the
            // identifier.
            let cn_est_id = self.unanswered.lock().add(|_| Pending::new(connection, role));
            let arrival = Event::ConnAcceptArrival {
                evd: ep.connect.handle(),
                ep: ep.handle,
                cn_est_id,
                rdma_read_ird: peer.responder_resources.into(),
                rdma_read_ord: peer.initiator_depth.into(),
                private_data: self.facts().received(event.private_data),
            };
            ep.connect.queue(&mut control, arrival)
        };
        self.queued(ep, queued, Origin::Upcall(ia));
    }

    /// Moves the endpoint to CONNECTED and queues the event, unless another thread has done so.
    pub(crate) fn established(
        &self,
        ep: &Ep,
        connection: ConnectionId,
        peer: ReadDepths,
        private_data: Option<PrivateData>,
        origin: Origin<'_>,
    ) {
        let queued = {
            let Some(mut control) = ep.concerned(connection) else { return };
            if ep.advance(&mut control, Trigger::Established).is_err() {
                return;
            }
            let established = Event::ConnEstablished {
                evd: ep.connect.handle(),
                ep: ep.handle,
                rdma_read_ird: peer.responder_resources.into(),
                rdma_read_ord: peer.initiator_depth.into(),
                private_data,
            };
            ep.connect.queue(&mut control, established)
        };
        self.queued(ep, queued, origin);
    }

    /// Handles a connection that could not be established: flushes the queue pair, changes the
    /// endpoint's state and queues the event.
    pub(crate) fn not_established(
        &self,
        ep: &Ep,
        connection: ConnectionId,
        event: Event,
        origin: Origin<'_>,
    ) {
        if ep.concerned(connection).is_none() || !is_pending(ep.state()) {
            return;
        }
        let _ = ep.pair.to_error();
        let queued = {
            let Some(mut control) = ep.concerned(connection) else { return };
            if !is_pending(ep.state()) || ep.advance(&mut control, Trigger::End).is_err() {
                return;
            }
            control.connection.part();
            ep.connect.queue(&mut control, event)
        };
        self.queued(ep, queued, origin);
    }

    /// Handles the end of a connection that our consumer did not disconnect: by the peer's
    /// consumer, or by an error at either end.
    fn disconnected(&self, ep: &Ep, event: &CmEvent<'_>, by_peer: bool, ia: &Ia) {
        let queued = {
            let Some(mut control) = ep.concerned(event.connection) else { return };
            let advanced = ep.advance(&mut control, Trigger::End);
            control.connection.part();
            if advanced.is_err() {
                return;
            }
            let (evd, ep_handle) = (ep.connect.handle(), ep.handle);
            let end = if by_peer {
                Event::ConnDisconnect {
                    evd,
                    ep: ep_handle,
                    private_data: self.facts().received(event.private_data),
                }
            } else {
                Event::ConnBroken { evd, ep: ep_handle }
            };
            ep.connect.queue(&mut control, end)
        };
        self.queued(ep, queued, Origin::Upcall(ia));
    }
}

pub(crate) fn nonpeer(ep: &Ep, reject_reason_code: RejectReason) -> Event {
    let (evd, ep) = (ep.connect.handle(), ep.handle);
    Event::ConnNonpeerReject { evd, ep, reject_reason_code, dst_path: None }
}

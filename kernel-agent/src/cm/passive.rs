//! The passive side: listening points, requests, accept, and the end of the handshake (IBTA vol. 1
//! section 12.9.7.2, figure 127).

use alloc::collections::BTreeMap;
use core::ops::RangeInclusive;
use core::time::Duration;

use platform::Instant;
use roce::cm::{CommId, Datagram, Message, ip_cm, mra, rej, rep, req, rtu};
use roce::transport::Service;
use roce::{Gid, Path, PathMtu, QKey, ServiceId, TimeoutCode, mad};

use super::kept::Kept;
use super::state::{Illegal, State, Trigger};
use super::table::Connection;
use super::types::{
    AcceptParams, ConnectionId, Error, Event, ListenId, LocalQp, PrivateData, Request, Table, Transports,
};
use super::{Arrival, Cm, SHORTEST_WAIT, Unexpected, field, has_memory, rejection};

/// A listening point.
pub(super) struct Listener {
    /// The first of its services, by which [`Services`] knows it.
    first: ServiceId,
    transports: Transports,
    backlog: u32,
    waiting: u32,
    /// Of those, the requests of each peer that has any.
    by_peer: BTreeMap<Gid, u32>,
}

impl Listener {
    /// Whether one more request of this peer may wait. One peer can have half of the places, so it
    /// cannot keep all others out.
    fn has_place(&self, peer: Gid) -> bool {
        let share = self.backlog.div_ceil(2);
        self.waiting < self.backlog && self.by_peer.get(&peer).is_none_or(|&waiting| waiting < share)
    }

    /// Whether it offers this transport service; `None` stands for one that no agent offers.
    fn offers(&self, transport: Option<Service>) -> bool {
        transport.is_some_and(|transport| self.transports.contains(transport.into()))
    }

    fn enter(&mut self, peer: Gid) {
        self.waiting += 1;
        *self.by_peer.entry(peer).or_default() += 1;
    }

    fn leave(&mut self, peer: Gid) {
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(waiting) = self.by_peer.get_mut(&peer) {
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }

    #[cfg(test)]
    pub fn waiting(&self) -> u32 {
        assert_eq!(self.waiting, self.by_peer.values().sum());
        self.waiting
    }
}

/// The listening points by the services that they are for. One that is for a single service takes
/// its requests, also if it is one of those of a range.
#[derive(Default)]
pub(super) struct Services {
    single: BTreeMap<ServiceId, ListenId>,
    /// By the first service of the range, its last one. Ranges have no service in common.
    ranges: BTreeMap<ServiceId, (ServiceId, ListenId)>,
}

impl Services {
    /// The listening point that is for this service alone.
    pub fn single(&self, service: ServiceId) -> Option<ListenId> {
        self.single.get(&service).copied()
    }

    /// The listening point that takes the connection requests for this service.
    fn of(&self, service: ServiceId) -> Option<ListenId> {
        self.single(service).or_else(|| self.range(service, service))
    }

    /// The listening point of a range that has a service in common with this one.
    fn range(&self, first: ServiceId, last: ServiceId) -> Option<ListenId> {
        let (_, &(end, id)) = self.ranges.range(..=last).next_back()?;
        (first <= end).then_some(id)
    }

    /// Whether a listening point is for just these services, or for some of this range.
    fn is_taken(&self, first: ServiceId, last: ServiceId) -> bool {
        if first == last { self.single.contains_key(&first) } else { self.range(first, last).is_some() }
    }

    fn insert(&mut self, first: ServiceId, last: ServiceId, id: ListenId) {
        if first == last {
            self.single.insert(first, id);
        } else {
            self.ranges.insert(first, (last, id));
        }
    }

    /// Removes the services of a listening point, which begin with this one.
    fn remove(&mut self, first: ServiceId, id: ListenId) {
        if self.single(first) == Some(id) {
            self.single.remove(&first);
        } else if self.ranges.get(&first).is_some_and(|&(_, of)| of == id) {
            self.ranges.remove(&first);
        }
    }
}

impl Cm {
    /// Listens for requests to `service`, for connections of these transport services; others are
    /// rejected. At most `backlog` of the requests can wait for an answer, and at most half of that
    /// from one peer; further requests are dropped, so that their senders try again until they give
    /// up (IT-API 2.1, it_listen_create).
    pub fn listen(
        &mut self,
        service: ServiceId,
        transports: Transports,
        backlog: u32,
    ) -> Result<ListenId, Error> {
        self.listen_to_range(service..=service, transports, backlog)
    }

    /// As [`Cm::listen`], for each service of a range that has no listening point of its own.
    /// Services are not resolved by it.
    pub fn listen_to_range(
        &mut self,
        services: RangeInclusive<ServiceId>,
        transports: Transports,
        backlog: u32,
    ) -> Result<ListenId, Error> {
        let (first, last) = services.into_inner();
        if last < first {
            return Err(Error::OutOfRange("services"));
        }
        if self.services.is_taken(first, last) {
            return Err(Error::ServiceInUse(first));
        }
        has_memory()?;
        let listener = Listener { first, transports, backlog, waiting: 0, by_peer: BTreeMap::new() };
        let id = self.listeners.insert(|_| listener).map(ListenId).ok_or(Error::Full(Table::Listeners))?;
        self.services.insert(first, last, id);
        Ok(id)
    }

    /// Ends listening. Requests that were reported can still be answered.
    pub fn stop_listen(&mut self, id: ListenId) -> Result<(), Error> {
        let listener = self.listeners.remove(id.0).ok_or(Error::NoSuchListener)?;
        self.services.remove(listener.first, id);
        Ok(())
    }

    /// The listening point that takes the connection requests for `service`.
    pub fn listener(&self, service: ServiceId) -> Option<ListenId> {
        self.services.of(service)
    }

    pub(super) fn leave_backlog(&mut self, listen: Option<ListenId>, peer: Gid) {
        if let Some(listener) = listen.and_then(|id| self.listeners.get_mut(id.0)) {
            listener.leave(peer);
        }
    }

    /// How long a request may wait for the consumer without a repetition: as long as the peer
    /// repeats it and waits, and a peer that was asked for patience once more. A peer that was
    /// silent for so long has given up, and its REJ was lost.
    fn request_time(&self, req: &req::Repr) -> Duration {
        let attempts = u32::from(req.max_cm_retries) + 1;
        let each = self.response_time(req.remote_cm_timeout, req.primary_path.local_ack_timeout);
        let patience = self.config.patience.map_or(Duration::ZERO, TimeoutCode::duration);
        (attempts * each + patience).min(2 * self.config.longest_wait.max(SHORTEST_WAIT))
    }

    /// Accepts a request: sends a REP. [`Event::Established`] follows, or [`Event::Rejected`] or
    /// [`Event::TimedOut`]. Private data: at most 196 bytes.
    pub fn accept(
        &mut self,
        now: Instant,
        id: ConnectionId,
        local: LocalQp,
        params: &AcceptParams,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.prepare_accept(now, id, local, params, private_data)?;
        self.release(now, id);
        Ok(())
    }

    /// As [`Cm::accept`], but the REP is not sent before [`Cm::release`]: the queue pair has to be
    /// ready for what the REP invites.
    pub fn prepare_accept(
        &mut self,
        now: Instant,
        id: ConnectionId,
        local: LocalQp,
        params: &AcceptParams,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.ready()?;
        let private_data = field(private_data)?;
        if !local.qpn.is_connectable() {
            return Err(Error::OutOfRange("local_qpn"));
        }
        if params.rnr_retry_count > 7 {
            return Err(Error::OutOfRange("rnr_retry_count"));
        }
        let conn = self.conns.get(id).ok_or(Error::NoSuchConnection)?;
        conn.state.next(Trigger::Accept)?;
        if self.conns.by_local_qp(local.qpn).is_some() {
            return Err(Error::QpInUse(local.qpn));
        }
        let request = request_of(conn).ok_or(Error::NoSuchConnection)?;
        if request.transport_service != local.transport.into() {
            return Err(Error::OutOfRange("transport service"));
        }
        if !local.has_depths(params.depths) {
            return Err(Error::OutOfRange("read depths"));
        }
        let remote_qpn = request.local_qpn;
        let last = self.conns.by_remote_qp(conn.remote_gid, remote_qpn).and_then(|last| self.conns.get(last));
        let same_pair =
            last.is_some_and(|last| last.state == State::TimeWait && last.local_qpn == Some(local.qpn));
        if same_pair && !params.ignore_time_wait {
            return Err(Error::TimeWait(local.qpn));
        }
        let reliable = local.transport == Service::Rc;
        let message = rep::Repr {
            local_comm_id: conn.local_comm,
            remote_comm_id: conn.remote_comm.unwrap_or_default(),
            local_qkey: QKey(0),
            local_qpn: local.qpn,
            local_eecn: 0,
            starting_psn: local.receive_psn,
            depths: params.depths,
            target_ack_delay: if reliable { params.target_ack_delay } else { TimeoutCode::default() },
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: if reliable { params.rnr_retry_count } else { 0 },
            srq: local.srq,
            local_ca_guid: self.config.ca_guid,
            private_data,
        };
        let mad = Datagram { tid: conn.tid, message: message.into() }.emit();
        self.step(now, id, Trigger::Accept)?;
        self.conns.learn_local_qp(id, local.qpn);
        self.conns.learn_remote_qp(id, remote_qpn);
        self.hold(id, mad);
        Ok(())
    }

    /// Sends an MRA: the consumer needs more time for its answer to a request or a reply.
    pub fn postpone(
        &mut self,
        now: Instant,
        id: ConnectionId,
        service_timeout: TimeoutCode,
    ) -> Result<(), Error> {
        self.ready()?;
        let conn = self.conns.get(id).ok_or(Error::NoSuchConnection)?;
        let acknowledged = match conn.state.is_pending_request() {
            true => mra::Acknowledged::Req,
            false => mra::Acknowledged::Rep,
        };
        self.send_mra(now, id, acknowledged, service_timeout)
    }

    /// Removes a request without an answer, as if it had not arrived: the peer may repeat it.
    pub fn discard(&mut self, now: Instant, id: ConnectionId) -> Result<(), Error> {
        self.step(now, id, Trigger::Discard).map(drop)
    }

    /// Passes a request on to another listening point, for which it is reported again, under the
    /// same id (IT-API 2.1, it_handoff).
    pub fn handoff(&mut self, id: ConnectionId, to: ListenId) -> Result<(), Error> {
        self.ready()?;
        let conn = self.conns.get(id).ok_or(Error::NoSuchConnection)?;
        if !conn.state.is_pending_request() {
            let (from, to, by) = (conn.state, State::ReqRcvd, Trigger::Req);
            return Err(Illegal { from, to, by }.into());
        }
        let (was, peer) = (conn.listen, conn.remote_gid);
        let transport = request_of(conn).and_then(|req| req.transport_service.connected());
        let listener = self.listeners.get_mut(to.0).ok_or(Error::NoSuchListener)?;
        if !listener.offers(transport) {
            return Err(Error::OutOfRange("transport service"));
        }
        if was != Some(to) {
            if !listener.has_place(peer) {
                return Err(Error::Full(Table::Listeners));
            }
            listener.enter(peer);
            self.leave_backlog(was, peer);
        }
        let conn = self.conns.get_mut(id).ok_or(Error::NoSuchConnection)?;
        conn.listen = Some(to);
        if let Some(request) = request_of(conn).and_then(|req| request_event(id, to, conn, &req)) {
            self.out.report(Event::ConnectRequest(request));
        }
        Ok(())
    }

    /// Data arrived on a queue pair whose REP is not answered: the RTU is delayed or lost (IBTA
    /// vol. 1 section 12.9.8.1.2, "communication established").
    pub fn communication_established(&mut self, now: Instant, id: ConnectionId) -> Result<(), Error> {
        self.ready()?;
        self.become_established(now, id, Trigger::CommunicationEstablished, None)
    }

    fn become_established(
        &mut self,
        now: Instant,
        id: ConnectionId,
        by: Trigger,
        private_data: Option<PrivateData>,
    ) -> Result<(), Error> {
        if let Some(conn) = self.conns.get(id).filter(|conn| conn.held) {
            // The REP was not sent, so this does not confirm it.
            return Err(Illegal { from: conn.state, to: State::Established, by }.into());
        }
        self.step(now, id, by)?;
        if let Some(conn) = self.conns.get_mut(id) {
            conn.timer = None;
            // The REP, which the peer has got.
            conn.message = Kept::default();
        }
        self.conns.rearm(id);
        self.report(id, Event::Established { conn: id, private_data });
        Ok(())
    }

    pub(super) fn on_rtu(&mut self, now: Instant, from: &Arrival, rtu: &rtu::Rtu) -> Result<(), Unexpected> {
        let (id, conn) = self.find(from, rtu.remote_comm_id, rtu.local_comm_id)?;
        if conn.state == State::Established {
            // Repeated, or after the data. IT-API reports an established connection once.
            self.out.stats.duplicates += 1;
            return Ok(());
        }
        let private_data = PrivateData::new(&rtu.private_data);
        Ok(self.become_established(now, id, Trigger::Rtu, Some(private_data))?)
    }

    pub(super) fn on_req(
        &mut self,
        now: Instant,
        from: &Arrival,
        tid: u64,
        req: &req::Repr,
        mad: &[u8; mad::LEN],
    ) -> Result<(), Unexpected> {
        if let Some(answer) = self.recent.answer((from.remote_gid, req.local_comm_id.0, tid)) {
            self.out.stats.duplicates += 1;
            self.out.send(from.local_gid, from.remote_gid, answer);
            return Ok(());
        }
        if let Some(id) = self.conns.by_remote(from.remote_gid, req.local_comm_id) {
            return self.on_req_again(now, from, id, tid, req);
        }
        let largest_mtu = [self.config.path_mtu.code()];
        if let Err((reason, ari)) = self.check_req(from, req, &largest_mtu) {
            self.reject_req(from, tid, req, reason, ari);
            return Ok(());
        }
        let Some(listen) = self.listener(req.service_id) else {
            self.reject_req(from, tid, req, rej::Reason::INVALID_SERVICE_ID, &[]);
            return Ok(());
        };
        let listener = self.listeners.get(listen.0).ok_or(Unexpected)?;
        if !listener.offers(req.transport_service.connected()) {
            self.reject_req(from, tid, req, rej::Reason::INVALID_TRANSPORT_SERVICE, &[]);
            return Ok(());
        }
        if self.is_stale(from.remote_gid, req.local_qpn) {
            self.reject_req(from, tid, req, rej::Reason::STALE_CONNECTION, &[]);
            return Ok(());
        }
        let listener = self.listeners.get(listen.0).ok_or(Unexpected)?;
        if !listener.has_place(from.remote_gid) || !self.conns.admits(from.remote_gid) {
            self.out.stats.overflowed += 1;
            return Ok(());
        }
        // The REQ does not have the path's one-way time; it is at most half of the time for which
        // the sender waits for an acknowledgement.
        let no_time = TimeoutCode::default();
        let response_time = self.response_time(req.local_cm_timeout, req.primary_path.local_ack_timeout);
        let time_wait = self.response_time(req.primary_path.local_ack_timeout, no_time);
        let time_wait = time_wait.min(self.config.longest_time_wait);
        self.make_room();
        let gives_up = now + self.request_time(req);
        let id = self.conns.insert(|comm| Connection {
            tid,
            listen: Some(listen),
            response_time: response_time.into(),
            max_retries: req.max_cm_retries,
            time_wait: time_wait.into(),
            timer: Some(gives_up),
            message: Kept::new(mad),
            ..Connection::new(State::Listen, from.local_gid, from.remote_gid, comm)
        });
        let Some(id) = id else {
            self.reject_req(from, tid, req, rej::Reason::NO_RESOURCES, &[]);
            return Ok(());
        };
        if let Some(listener) = self.listeners.get_mut(listen.0) {
            listener.enter(from.remote_gid);
        }
        self.step(now, id, Trigger::Req)?;
        self.conns.learn_remote(id, req.local_comm_id);
        let conn = self.conns.get(id).ok_or(Unexpected)?;
        if let Some(request) = request_event(id, listen, conn, req) {
            self.out.report(Event::ConnectRequest(request));
        }
        Ok(())
    }

    /// A REQ with a communication id that is known. If the REQ repeats the first one, answers it
    /// with the message that answered that.
    fn on_req_again(
        &mut self,
        now: Instant,
        from: &Arrival,
        id: ConnectionId,
        tid: u64,
        req: &req::Repr,
    ) -> Result<(), Unexpected> {
        let conn = self.conns.get(id).ok_or(Unexpected)?;
        match conn.state {
            // The id is of the former connection, so the peer has to take another (section
            // 12.9.8.3.1); without an answer it would go on with this one.
            State::TimeWait => {
                self.out.stats.duplicates += 1;
                self.reject_req(from, tid, req, rej::Reason::STALE_CONNECTION, &[]);
            }
            // A new request: the peer gave its ids out anew, and forgot the connection.
            State::Established if conn.tid != tid => {
                self.ask_whether_stale(id);
                self.reject_req(from, tid, req, rej::Reason::STALE_CONNECTION, &[]);
            }
            _ if conn.tid != tid => return Err(Unexpected),
            State::ReqRcvd | State::MraReqSent => {
                let waits = request_of(conn).map(|req| self.request_time(&req));
                if let (Some(waits), Some(conn)) = (waits, self.conns.get_mut(id)) {
                    conn.timer = Some(now + waits);
                }
                self.conns.rearm(id);
                self.ask_for_patience(now, id, mra::Acknowledged::Req);
            }
            State::RepSent | State::MraRepRcvd => self.send_again(id),
            // The answer arrived, or the connection is ending.
            _ => self.out.stats.duplicates += 1,
        }
        Ok(())
    }

    /// Checks whether a request can be served. The error is the reason and the additional
    /// information of the REJ.
    fn check_req<'a>(
        &self,
        from: &'a Arrival,
        req: &req::Repr,
        largest_mtu: &'a [u8; 1],
    ) -> Result<(), (rej::Reason, &'a [u8])> {
        let path = &req.primary_path.path;
        if req.transport_service.connected().is_none() {
            return Err((rej::Reason::INVALID_TRANSPORT_SERVICE, &[]));
        }
        if path.remote_gid != from.local_gid || !req.pkey.matches(self.config.pkey) {
            return Err((rej::Reason::PRIMARY_GID, &from.local_gid.0));
        }
        // The answer to a request on behalf of a third port would go to that port.
        if path.local_gid != from.remote_gid || !req.local_qpn.is_connectable() {
            return Err((rej::Reason::UNSUPPORTED_REQUEST, &[]));
        }
        // A REP cannot ask for a smaller MTU, so the peer's packets would be too long for the port.
        if PathMtu::from_code(req.path_mtu).is_none_or(|mtu| mtu > self.config.path_mtu) {
            return Err((rej::Reason::INVALID_PATH_MTU, largest_mtu));
        }
        if req.service_id.to_ip_cm().is_some() && ip_cm::Repr::parse(&req.private_data).is_err() {
            return Err((rej::Reason::CONSUMER_DEFINED, &[]));
        }
        Ok(())
    }

    fn reject_req(&mut self, from: &Arrival, tid: u64, req: &req::Repr, reason: rej::Reason, ari: &[u8]) {
        let none = [0; rej::PRIVATE_DATA_LEN];
        let theirs = Some(req.local_comm_id);
        let message = rejection(CommId::default(), theirs, rej::Rejected::Req, reason, ari, none);
        let mad = Datagram { tid, message: message.into() }.emit();
        self.out.send(from.local_gid, from.remote_gid, mad);
    }
}

/// The REQ that a connection keeps: its own while it waits for the peer, the peer's while it waits
/// for the consumer.
pub(super) fn request_of(conn: &Connection) -> Option<req::Repr> {
    match Datagram::parse(&conn.message.get()) {
        Ok(Datagram { message: Message::Req(req), .. }) => Some(req),
        _ => None,
    }
}

/// The event of a REQ that passed the checks.
fn request_event(id: ConnectionId, listen: ListenId, conn: &Connection, req: &req::Repr) -> Option<Request> {
    let (ip, private_data) = match req.service_id.to_ip_cm() {
        Some(_) => ip_cm::Repr::parse(&req.private_data).ok().map(|(ip, rest)| (Some(ip), rest))?,
        None => (None, &req.private_data[..]),
    };
    let transport = req.transport_service.connected()?;
    // An unreliable connection has none of the three, whatever its peer sends.
    let (depths, retry_count, rnr_retry_count) = match transport {
        Service::Rc => (req.depths, req.retry_count, req.rnr_retry_count),
        Service::Uc => Default::default(),
    };
    Some(Request {
        conn: id,
        listen,
        service: req.service_id,
        transport,
        path: Path { local_gid: conn.local_gid, remote_gid: conn.remote_gid, ..req.primary_path.path },
        path_mtu: PathMtu::from_code(req.path_mtu)?,
        pkey: req.pkey,
        remote_qpn: req.local_qpn,
        send_psn: req.starting_psn,
        depths,
        retry_count,
        rnr_retry_count,
        ack_timeout: req.primary_path.local_ack_timeout,
        srq: req.srq,
        ip,
        private_data: PrivateData::new(private_data),
    })
}

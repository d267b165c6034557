//! The CM state machine: makes and ends connections with the datagrams of InfiniBand's
//! communication management (IBTA vol. 1 chapter 12; IT-API 2.1 chapter 5 and appendix A).
//!
//! [`Cm`] does no I/O and reads no clock: datagrams and the time are arguments. The caller takes
//! the resulting actions from [`Cm::next_action`] until there are none, after each call. One state
//! machine serves one NIC with all its GIDs; it may have both ends of a connection. It takes no
//! lock; the caller holds one.
//!
//! The [`Config`] bounds its memory. No datagram can make it panic or loop; it counts invalid
//! datagrams ([`Stats`]) and drops them. It accepts datagrams about a connection only from the port
//! that the connection was made with.
//!
//! - [`state`]: the states and the table of transitions.
//! - `active`: connect, REP, establish. `passive`: listen, REQ, accept, RTU. `release`: reject,
//!   REJ, disconnect, DREQ, DREP, timers. `resolve`: service resolution.
//! - `table`: connections and their indices. `slab`: tables by id. `names`: the ids that peers see.
//!   `crowd`: shares of peers. `recent`: the last answers.
//!
//! A message changes the state of a connection only if its sender shows that it knows the
//! connection: by both communication ids, or by that one of them that it can know at that moment.
//! None of our ids shows another. So a node that forges a source address, and sees nothing of what
//! is sent there, ends, delays and confirms no connection of others.

mod active;
pub(crate) mod crowd;
mod kept;
mod names;
mod passive;
mod recent;
mod release;
mod resolve;
mod slab;
pub mod state;
mod table;
#[cfg(test)]
mod tests;
mod types;

use alloc::collections::VecDeque;
use core::time::Duration;

use platform::{Instant, OutOfMemory, heap};
use roce::cm::{CommId, Datagram, Message, mra, rej};
use roce::{Gid, Qpn, TimeoutCode, mad};

pub use state::{Illegal, State, Trigger};
pub use types::{
    AcceptParams, Action, Arrival, Cause, Config, ConnectParams, ConnectionId, Counts, Error, Event,
    ListenId, LocalQp, Moves, Outgoing, PrivateData, Rejection, Reply, Request, Resolution, ResolutionId,
    ResolutionReply, ResolutionRequestId, SidrParams, Stats, Table, Transports,
};

pub use release::DISCONNECT_PRIVATE_DATA_LEN;

use kept::Kept;
use names::Purpose;
use passive::{Listener, Services};
use recent::Recent;
use resolve::Resolutions;
use slab::Slab;
use table::{Connection, ConnectionTable};

/// Actions that may wait for the caller.
const ACTIONS: usize = 64;
/// The most actions that one datagram, timer or call causes.
pub(crate) const ACTIONS_AT_ONCE: usize = 4;
/// What a call, a datagram or a timer may allocate: nodes of the tables and a message to keep, and
/// what the caller keeps of a connection and of an event.
const MEMORY: usize = 8192;
/// The shortest wait for an answer, whatever the peer asks for: a timer that fired all the time
/// would help neither side.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The actions that wait for the caller.
struct Outbox {
    actions: VecDeque<Action>,
    stats: Stats,
}

impl Outbox {
    fn has_room(&self) -> bool {
        self.actions.len() + ACTIONS_AT_ONCE <= ACTIONS
    }

    fn send(&mut self, local_gid: Gid, remote_gid: Gid, mad: [u8; mad::LEN]) {
        self.stats.sent += 1;
        self.actions.push_back(Action::Send(Outgoing { local_gid, remote_gid, mad }));
    }

    fn report(&mut self, event: Event) {
        self.actions.push_back(Action::Event(event));
    }
}

/// The CM state machine of one NIC.
pub struct Cm {
    config: Config,
    conns: ConnectionTable,
    listeners: Slab<Listener>,
    services: Services,
    resolutions: Resolutions,
    recent: Recent,
    out: Outbox,
    transactions: u64,
}

impl Cm {
    /// What [`Cm::new`] allocates.
    pub const MEMORY: usize = ACTIONS * size_of::<Action>() + Recent::MEMORY;

    /// A state machine without connections.
    pub fn new(config: Config) -> Cm {
        Cm {
            conns: ConnectionTable::new(config.max_connections, config.secret),
            listeners: Slab::new(config.max_listeners),
            services: Services::default(),
            resolutions: Resolutions::new(config.max_resolutions, config.secret),
            recent: Recent::new(),
            out: Outbox { actions: VecDeque::with_capacity(ACTIONS), stats: Stats::default() },
            transactions: 0,
            config,
        }
    }

    /// The next action; the caller has to carry it out.
    pub fn next_action(&mut self) -> Option<Action> {
        self.out.actions.pop_front()
    }

    /// When [`Cm::poll`] has to be called next; `None` if there is no timer.
    pub fn next_deadline(&self) -> Option<Instant> {
        let connections = self.conns.next_timer().map(|(at, _)| at);
        connections.into_iter().chain(self.resolutions.next_deadline()).min()
    }

    /// Acts on the timers that are due: sends messages again, gives up, ends TimeWait.
    pub fn poll(&mut self, now: Instant) {
        // A timer that fired is set beyond `now` or gone, so none fires twice. The room for actions
        // bounds the loop too.
        // Without memory, timers wait.
        while let Some((at, id)) = self.conns.next_timer()
            && at <= now
            && self.ready().is_ok()
        {
            self.expire(now, id);
        }
        self.poll_resolutions(now);
    }

    /// Acts on a datagram that QP1 received.
    pub fn receive(&mut self, now: Instant, from: &Arrival, bytes: &[u8]) {
        self.out.stats.received += 1;
        if self.ready().is_err() {
            self.out.stats.congested += 1;
            return;
        }
        let whole: Option<&[u8; mad::LEN]> = bytes.first_chunk();
        let (Some(mad), Ok(datagram), Qpn::GSI) = (whole, Datagram::parse(bytes), from.remote_qp) else {
            self.out.stats.malformed += 1;
            return;
        };
        let tid = datagram.tid;
        let taken = match datagram.message {
            Message::Req(req) => self.on_req(now, from, tid, &req, mad),
            Message::Mra(mra) => self.on_mra(now, from, &mra),
            Message::Rej(rej) => self.on_rej(now, from, tid, &rej),
            Message::Rep(rep) => self.on_rep(now, from, tid, &rep),
            Message::Rtu(rtu) => self.on_rtu(now, from, &rtu),
            Message::Dreq(dreq) => self.on_dreq(now, from, tid, &dreq),
            Message::Drep(drep) => self.on_drep(now, from, tid, &drep),
            Message::SidrReq(req) => self.on_sidr_req(from, tid, &req),
            Message::SidrRep(rep) => self.on_sidr_rep(from, &rep),
            Message::Lap(lap) => self.on_lap(from, tid, &lap),
            // This side never asks for an alternate path.
            Message::Apr(_) => Err(Unexpected),
        };
        if taken.is_err() {
            self.out.stats.unexpected += 1;
        }
    }

    /// The state of a connection; [`State::Idle`] if there is no such connection.
    pub fn state(&self, conn: ConnectionId) -> State {
        self.conns.get(conn).map_or(State::Idle, |conn| conn.state)
    }

    /// The counters since the beginning.
    pub fn stats(&self) -> Stats {
        self.out.stats
    }

    /// The present numbers of objects. Looks at each connection: not for the data path.
    pub fn counts(&self) -> Counts {
        let in_time_wait = |&id: &ConnectionId| self.state(id) == State::TimeWait;
        Counts {
            connections: self.conns.len(),
            time_wait: self.conns.ids().filter(in_time_wait).count(),
            listeners: self.listeners.len(),
            resolutions: self.resolutions.outgoing(),
            resolution_requests: self.resolutions.incoming(),
        }
    }

    /// Fails if there is no room for the actions of a call.
    fn uncongested(&self) -> Result<(), Error> {
        if self.out.has_room() { Ok(()) } else { Err(Error::Congested) }
    }

    /// Fails if there is no room for the actions of a call, or no memory for what it keeps.
    fn ready(&self) -> Result<(), Error> {
        self.uncongested()?;
        has_memory()
    }

    fn tid(&mut self) -> u64 {
        self.transactions += 1;
        self.config.secret.hash([Purpose::Transaction as u64, self.transactions])
    }

    /// Makes a transition and does all that depends on the state alone. Returns the state before. A
    /// connection whose new state is Idle is removed.
    fn step(&mut self, now: Instant, id: ConnectionId, by: Trigger) -> Result<State, Error> {
        let conn = self.conns.get_mut(id).ok_or(Error::NoSuchConnection)?;
        let before = conn.state;
        let after = before.next(by)?;
        // A message that was held back belongs to the state before.
        conn.held = false;
        let (listen, peer) = (conn.listen, conn.remote_gid);
        if after == State::TimeWait {
            conn.timer = Some(now + conn.time_wait.into());
        }
        // The consumer's limit is for the attempt; an accept or a disconnect has one of its own.
        match after {
            State::RepSent | State::DreqSent => conn.limit = Some(now + self.config.longest_handshake),
            State::MraRepRcvd => {}
            _ if after.is_connecting() => {}
            _ => conn.limit = None,
        }
        self.conns.set_state(id, after);
        if before.is_pending_request() && !after.is_pending_request() {
            self.leave_backlog(listen, peer);
        }
        if after.is_over() {
            self.conns.release_local_qp(id);
        }
        if after == State::Idle {
            self.conns.remove(id);
        } else {
            self.conns.rearm(id);
        }
        Ok(before)
    }

    /// As [`Cm::step`], for a connection that the consumer gives up. It needs no memory: if there
    /// is none for the timer of TimeWait, the connection is removed at once. That is safe, since no
    /// later queue pair gets the same number soon.
    fn step_out(&mut self, now: Instant, id: ConnectionId, by: Trigger) -> Result<(), Error> {
        let conn = self.conns.get(id).ok_or(Error::NoSuchConnection)?;
        if conn.state.next(by)? == State::TimeWait && has_memory().is_err() {
            self.conns.remove(id);
            return Ok(());
        }
        self.step(now, id, by).map(drop)
    }

    /// Makes room for a connection: if the table is full, one that is over gives way. Its packets
    /// may still be in the network then; but late packets name the queue pair by a number that no
    /// later one gets soon.
    fn make_room(&mut self) {
        let Some(id) = self.conns.gives_way() else { return };
        let Some(conn) = self.conns.get(id) else { return };
        let event = match (conn.state, conn.local_qpn) {
            (State::TimeWait, Some(local_qpn)) => Some(Event::TimeWaitOver { conn: id, local_qpn }),
            (State::DreqSent, _) => {
                Some(Event::Released { conn: id, answered: false, private_data: PrivateData::EMPTY })
            }
            _ => None,
        };
        if let Some(event) = event {
            self.report(id, event);
        }
        self.conns.remove(id);
    }

    /// Reports an event of a connection, unless its events are muted.
    fn report(&mut self, id: ConnectionId, event: Event) {
        if self.conns.get(id).is_some_and(|conn| !conn.muted) {
            self.out.report(event);
        }
    }

    /// Keeps a message until [`Cm::release`] sends it. No timer runs meanwhile, and a repeated
    /// message of the peer is not answered with it.
    fn hold(&mut self, id: ConnectionId, mad: [u8; mad::LEN]) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.message = Kept::new(&mad);
            conn.held = true;
            conn.timer = None;
        }
        self.conns.rearm(id);
    }

    /// Sends the message that [`Cm::prepare_accept`], [`Cm::prepare_establish`] or
    /// [`Cm::prepare_disconnect`] held back, unless the connection's state has changed since.
    pub fn release(&mut self, now: Instant, id: ConnectionId) {
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.held) else { return };
        if conn.state == State::Established {
            // An RTU is not answered, so no timer repeats it. It is kept for the case that the peer
            // repeats the REP.
            conn.held = false;
            self.out.send(conn.local_gid, conn.remote_gid, conn.message.get());
        } else {
            self.send_kept(now, id);
        }
    }

    /// Sends a message, keeps it, and sends it again until it is answered.
    fn send_until_answered(&mut self, now: Instant, id: ConnectionId, mad: [u8; mad::LEN]) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.message = Kept::new(&mad);
        }
        self.send_kept(now, id);
    }

    /// Sends the kept message until it is answered.
    fn send_kept(&mut self, now: Instant, id: ConnectionId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.held = false;
        conn.retries_left = conn.max_retries;
        conn.timer = Some(now + conn.response_time.into());
        self.out.send(conn.local_gid, conn.remote_gid, conn.message.get());
        self.conns.rearm(id);
    }

    /// Sends the kept message again, as the answer to a repeated message.
    fn send_again(&mut self, id: ConnectionId) {
        let Some(conn) = self.conns.get(id) else { return };
        self.out.stats.duplicates += 1;
        if !conn.held {
            self.out.send(conn.local_gid, conn.remote_gid, conn.message.get());
        }
    }

    /// Sends an MRA: the consumer has not answered the peer's request or reply yet.
    fn ask_for_patience(&mut self, now: Instant, id: ConnectionId, acknowledged: mra::Acknowledged) {
        self.out.stats.duplicates += 1;
        if let Some(service_timeout) = self.config.patience {
            // Legal in each state in which a request or a reply waits for the consumer.
            let _ = self.send_mra(now, id, acknowledged, service_timeout);
        }
    }

    fn send_mra(
        &mut self,
        now: Instant,
        id: ConnectionId,
        acknowledged: mra::Acknowledged,
        service_timeout: TimeoutCode,
    ) -> Result<(), Error> {
        self.step(now, id, Trigger::SendMra)?;
        let conn = self.conns.get(id).ok_or(Error::NoSuchConnection)?;
        let message = mra::Repr {
            local_comm_id: conn.local_comm,
            remote_comm_id: conn.remote_comm.unwrap_or_default(),
            acknowledged,
            service_timeout,
            private_data: [0; mra::PRIVATE_DATA_LEN],
        };
        let mad = Datagram { tid: conn.tid, message: message.into() }.emit();
        self.out.send(conn.local_gid, conn.remote_gid, mad);
        Ok(())
    }

    /// Sends a REJ about a connection.
    fn send_rej(
        &mut self,
        id: ConnectionId,
        reason: rej::Reason,
        ari: &[u8],
        private_data: [u8; rej::PRIVATE_DATA_LEN],
    ) {
        let guid = self.config.ca_guid.to_be_bytes();
        let Some(conn) = self.conns.get(id) else { return };
        let rejected = match conn.state {
            State::ReqRcvd | State::MraReqSent => rej::Rejected::Req,
            State::RepRcvd | State::MraRepSent => rej::Rejected::Rep,
            _ => rej::Rejected::Other,
        };
        // A peer that has not received a message of ours finds its connection by our GUID (section
        // 12.6.7.2, code 4).
        let ari = if reason == rej::Reason::TIMEOUT { &guid[..] } else { ari };
        let message = rejection(conn.local_comm, conn.remote_comm, rejected, reason, ari, private_data);
        let mad = Datagram { tid: conn.tid, message: message.into() }.emit();
        self.out.send(conn.local_gid, conn.remote_gid, mad);
        if rejected == rej::Rejected::Req {
            // The connection is removed, but the REQ may be repeated.
            let key = (conn.remote_gid, conn.remote_comm.unwrap_or_default().0, conn.tid);
            self.recent.remember(key, mad);
        }
    }

    /// The connection of a message, if the message comes from the connection's peer.
    fn find(
        &self,
        from: &Arrival,
        ours: CommId,
        theirs: CommId,
    ) -> Result<(ConnectionId, &Connection), Unexpected> {
        let id = self.conns.by_local(ours).ok_or(Unexpected)?;
        let conn = self.conns.get(id).ok_or(Unexpected)?;
        if conn.remote_gid != from.remote_gid || conn.remote_comm != Some(theirs) {
            return Err(Unexpected);
        }
        Ok((id, conn))
    }

    /// How long to wait for an answer: the peer's time for it and the time of the way there and
    /// back.
    fn response_time(&self, peer: TimeoutCode, packet_lifetime: TimeoutCode) -> Duration {
        let wanted = peer.duration() + 2 * packet_lifetime.duration();
        wanted.clamp(SHORTEST_WAIT, self.config.longest_wait.max(SHORTEST_WAIT))
    }
}

/// The message's connection does not exist, is not with the message's sender, or is not in a state
/// for the message.
struct Unexpected;

impl From<Error> for Unexpected {
    fn from(_: Error) -> Unexpected {
        Unexpected
    }
}

/// Fails unless there is memory for what one call, datagram or timer keeps.
fn has_memory() -> Result<(), Error> {
    heap::room(MEMORY).map_err(|OutOfMemory| Error::OutOfMemory)
}

/// The private data field of a message.
fn field<const N: usize>(data: &[u8]) -> Result<[u8; N], Error> {
    roce::cm::private_data(data).ok_or(Error::PrivateData { len: data.len(), max: N })
}

fn rejection(
    local: CommId,
    remote: Option<CommId>,
    rejected: rej::Rejected,
    reason: rej::Reason,
    ari: &[u8],
    private_data: [u8; rej::PRIVATE_DATA_LEN],
) -> rej::Repr {
    let ari = &ari[..ari.len().min(rej::ARI_LEN)];
    let mut filled = [0; rej::ARI_LEN];
    filled[..ari.len()].copy_from_slice(ari);
    rej::Repr {
        local_comm_id: local,
        remote_comm_id: remote.unwrap_or_default(),
        rejected,
        ari_len: ari.len() as u8,
        reason,
        ari: filled,
        private_data,
    }
}

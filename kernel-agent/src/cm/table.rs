//! The connections of a state machine, their indices and their timers.

use alloc::collections::{BTreeMap, BTreeSet};
use core::num::NonZeroU64;
use core::time::Duration;

use platform::{Instant, Secret};
use roce::cm::CommId;
use roce::{Gid, Qpn};

use super::crowd::Crowd;
use super::has_memory;
use super::kept::Kept;
use super::names::{Names, Purpose};
use super::slab::Slab;
use super::state::State;
use super::types::{ConnectionId, ListenId};

/// A time in nanoseconds, of half the size of a [`Duration`]: each idle connection has two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nanos(u64);

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Nanos {
        Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Duration {
        Duration::from_nanos(nanos.0)
    }
}

/// One end of a connection.
pub(super) struct Connection {
    pub state: State,
    pub local_gid: Gid,
    pub remote_gid: Gid,
    pub local_comm: CommId,
    /// Not known before the peer's first message.
    pub remote_comm: Option<CommId>,
    pub local_qpn: Option<Qpn>,
    pub remote_qpn: Option<Qpn>,
    /// The transaction of REQ, REP and RTU.
    pub tid: u64,
    /// Passive side: the listening point of the request.
    pub listen: Option<ListenId>,
    /// How long to wait for an answer of the peer.
    pub response_time: Nanos,
    pub max_retries: u8,
    pub retries_left: u8,
    /// How many more MRAs of the peer are honoured.
    pub mras_left: u8,
    pub time_wait: Nanos,
    /// When to send `message` again, or when TimeWait is over.
    pub timer: Option<Instant>,
    /// When the attempt to connect is over.
    pub limit: Option<Instant>,
    /// The earlier of the two, which is in the set of timers.
    pub armed: Option<Instant>,
    /// No event is reported any more.
    pub muted: bool,
    /// `message` has not been sent: it waits for [`super::Cm::release`].
    pub held: bool,
    /// The transaction of the DREQ that asks the peer whether it still has this connection, once
    /// there was reason to ask.
    pub probe: Option<u64>,
    /// Its place among the requests that wait, or among the connections that are over.
    pub order: Option<NonZeroU64>,
    /// The message that was sent last and may have to be sent again; in ReqRcvd, the REQ that was
    /// received.
    pub message: Kept,
}

impl Connection {
    /// A new connection.
    pub fn new(state: State, local_gid: Gid, remote_gid: Gid, local_comm: CommId) -> Connection {
        Connection {
            state,
            local_gid,
            remote_gid,
            local_comm,
            remote_comm: None,
            local_qpn: None,
            remote_qpn: None,
            tid: 0,

            listen: None,
            response_time: Nanos::default(),
            max_retries: 0,
            retries_left: 0,
            mras_left: 16,
            time_wait: Nanos::default(),
            timer: None,
            limit: None,
            armed: None,
            muted: false,
            held: false,
            probe: None,
            order: None,
            message: Kept::default(),
        }
    }
}

/// All connections of a state machine.
pub(super) struct ConnectionTable {
    slab: Slab<Connection>,
    by_local: Names<ConnectionId>,
    /// By the peer's communication id.
    by_remote: BTreeMap<(Gid, CommId), ConnectionId>,
    /// By the peer's queue pair, from the moment when both queue pairs are known.
    by_remote_qp: BTreeMap<(Gid, Qpn), ConnectionId>,
    /// By our queue pair; until the connection is over.
    by_local_qp: BTreeMap<Qpn, ConnectionId>,
    /// Requests that wait for the consumer.
    pending: Crowd<ConnectionId>,
    /// Connections that are over.
    over: Crowd<ConnectionId>,
    timers: BTreeSet<(Instant, ConnectionId)>,
}

impl ConnectionTable {
    pub fn new(limit: u32, secret: Secret) -> ConnectionTable {
        ConnectionTable {
            slab: Slab::new(limit),
            by_local: Names::new(secret, Purpose::CommunicationId),
            by_remote: BTreeMap::new(),
            by_remote_qp: BTreeMap::new(),
            by_local_qp: BTreeMap::new(),
            pending: Crowd::new(),
            over: Crowd::new(),
            timers: BTreeSet::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.slab.ids().map(ConnectionId)
    }

    /// Whether another request of this peer may wait. Requests take half of the table at most, and
    /// those of one peer half of that: the rest is for connections that our consumers made or
    /// accepted.
    pub fn admits(&self, peer: Gid) -> bool {
        let most = self.slab.limit().div_ceil(2);
        self.pending.len() < most && self.pending.of(peer) < most.div_ceil(2)
    }

    /// In a full table, the connection that gives way to a new one: one that is over, the oldest of
    /// the peer that has the most of them.
    pub fn gives_way(&self) -> Option<ConnectionId> {
        if self.slab.is_full() { self.over.first_to_go() } else { None }
    }

    pub fn insert(&mut self, make: impl FnOnce(CommId) -> Connection) -> Option<ConnectionId> {
        let comm = self.by_local.draw()?;
        let id = ConnectionId(self.slab.insert(|_| make(CommId(comm)))?);
        self.by_local.insert(comm, id);
        Some(id)
    }

    /// Gives a connection another state.
    pub fn set_state(&mut self, id: ConnectionId, state: State) {
        let Some(conn) = self.slab.get_mut(id.0) else { return };
        let was = core::mem::replace(&mut conn.state, state);
        let peer = conn.remote_gid;
        let crowds = [
            (&mut self.pending, State::is_pending_request as fn(State) -> bool),
            (&mut self.over, State::is_over),
        ];
        for (crowd, belongs) in crowds {
            match (belongs(was), belongs(state)) {
                // An end needs no memory. Without any it is not counted, and leaves by its timer.
                (false, true) if has_memory().is_ok() => conn.order = Some(crowd.enter(peer, id)),
                (true, false) => conn.order.take().into_iter().for_each(|order| crowd.leave(peer, order)),
                _ => {}
            }
        }
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.slab.get(id.0)
    }

    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slab.get_mut(id.0)
    }

    /// The connection with this communication id of ours.
    pub fn by_local(&self, comm: CommId) -> Option<ConnectionId> {
        self.by_local.get(comm.0)
    }

    /// The connection with this communication id of the peer at `gid`.
    pub fn by_remote(&self, gid: Gid, comm: CommId) -> Option<ConnectionId> {
        self.by_remote.get(&(gid, comm)).copied()
    }

    /// The connection with a queue pair of the peer at `gid`.
    pub fn by_remote_qp(&self, gid: Gid, qpn: Qpn) -> Option<ConnectionId> {
        self.by_remote_qp.get(&(gid, qpn)).copied()
    }

    /// The connection of our queue pair.
    pub fn by_local_qp(&self, qpn: Qpn) -> Option<ConnectionId> {
        self.by_local_qp.get(&qpn).copied()
    }

    /// Records the peer's communication id.
    pub fn learn_remote(&mut self, id: ConnectionId, comm: CommId) {
        if let Some(conn) = self.slab.get_mut(id.0) {
            conn.remote_comm = Some(comm);
            self.by_remote.insert((conn.remote_gid, comm), id);
        }
    }

    /// Records the peer's queue pair. Ours is known by then.
    pub fn learn_remote_qp(&mut self, id: ConnectionId, qpn: Qpn) {
        if let Some(conn) = self.slab.get_mut(id.0) {
            conn.remote_qpn = Some(qpn);
            self.by_remote_qp.insert((conn.remote_gid, qpn), id);
        }
    }

    /// Records our queue pair.
    pub fn learn_local_qp(&mut self, id: ConnectionId, qpn: Qpn) {
        if let Some(conn) = self.slab.get_mut(id.0) {
            conn.local_qpn = Some(qpn);
            self.by_local_qp.insert(qpn, id);
        }
    }

    /// From now on our queue pair may have another connection.
    pub fn release_local_qp(&mut self, id: ConnectionId) {
        if let Some(qpn) = self.slab.get(id.0).and_then(|conn| conn.local_qpn)
            && self.by_local_qp.get(&qpn) == Some(&id)
        {
            self.by_local_qp.remove(&qpn);
        }
    }

    pub fn remove(&mut self, id: ConnectionId) {
        self.release_local_qp(id);
        let Some(conn) = self.slab.remove(id.0) else { return };
        self.by_local.remove(conn.local_comm.0);
        if let Some(order) = conn.order {
            let crowd = if conn.state.is_pending_request() { &mut self.pending } else { &mut self.over };
            crowd.leave(conn.remote_gid, order);
        }
        if let Some(armed) = conn.armed {
            self.timers.remove(&(armed, id));
        }
        if let Some(comm) = conn.remote_comm
            && self.by_remote.get(&(conn.remote_gid, comm)) == Some(&id)
        {
            self.by_remote.remove(&(conn.remote_gid, comm));
        }
        if let Some(qpn) = conn.remote_qpn
            && self.by_remote_qp.get(&(conn.remote_gid, qpn)) == Some(&id)
        {
            self.by_remote_qp.remove(&(conn.remote_gid, qpn));
        }
    }

    /// Updates the set of timers; to be called after each change of the connection's times.
    pub fn rearm(&mut self, id: ConnectionId) {
        let Some(conn) = self.slab.get_mut(id.0) else { return };
        let wanted = conn.timer.into_iter().chain(conn.limit).min();
        if conn.armed == wanted {
            return;
        }
        if let Some(armed) = conn.armed {
            self.timers.remove(&(armed, id));
        }
        if let Some(at) = wanted {
            self.timers.insert((at, id));
        }
        conn.armed = wanted;
    }

    /// The next timer, and its connection.
    pub fn next_timer(&self) -> Option<(Instant, ConnectionId)> {
        self.timers.first().copied()
    }
}

#[cfg(test)]
impl ConnectionTable {
    /// The indices agree with the connections.
    pub fn check(&self) {
        for (key, id) in &self.by_remote {
            let conn = self.get(*id).expect("a connection that is gone");
            assert_eq!((conn.remote_gid, conn.remote_comm), (key.0, Some(key.1)));
        }
        for (key, id) in &self.by_remote_qp {
            let conn = self.get(*id).expect("a connection that is gone");
            assert_eq!((conn.remote_gid, conn.remote_qpn), (key.0, Some(key.1)));
        }
        for (qpn, id) in &self.by_local_qp {
            let conn = self.get(*id).expect("a connection that is gone");
            assert_eq!(conn.local_qpn, Some(*qpn));
            assert!(!conn.state.is_over());
        }
        for (at, id) in &self.timers {
            assert_eq!(self.get(*id).expect("a connection that is gone").armed, Some(*at));
        }
        let armed = self.ids().filter(|&id| self.get(id).is_some_and(|conn| conn.armed.is_some()));
        assert_eq!(armed.count(), self.timers.len());
        let in_state = |belongs: fn(State) -> bool| {
            let all = self.ids().filter(|&id| self.get(id).is_some_and(|conn| belongs(conn.state)));
            all.count() as u32
        };
        self.pending.check();
        self.over.check();
        assert_eq!(self.pending.len(), in_state(State::is_pending_request));
        assert_eq!(self.over.len(), in_state(State::is_over));
        for id in self.ids() {
            let conn = self.get(id).expect("it is in the table");
            assert_eq!(self.by_local(conn.local_comm), Some(id));
        }
    }
}

//! The connections of a state machine, their indices and their timers.

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use platform::Instant;
use roce::cm::CommId;
use roce::{Gid, Qpn};

use super::kept::Kept;
use super::slab::{self, Slab};
use super::state::State;
use super::types::{ConnectionId, ListenId};

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
    pub response_time: Duration,
    pub max_retries: u8,
    pub retries_left: u8,
    /// How many more MRAs of the peer are honoured.
    pub mras_left: u8,
    pub time_wait: Duration,
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
            response_time: Duration::ZERO,
            max_retries: 0,
            retries_left: 0,
            mras_left: 16,
            time_wait: Duration::ZERO,
            timer: None,
            limit: None,
            armed: None,
            muted: false,
            held: false,
            message: Kept::default(),
        }
    }
}

/// All connections of a state machine.
pub(super) struct ConnectionTable {
    slab: Slab<Connection>,
    secret: u32,
    /// By the peer's communication id.
    by_remote: BTreeMap<(Gid, CommId), ConnectionId>,
    /// By the peer's queue pair, from the moment when both queue pairs are known.
    by_remote_qp: BTreeMap<(Gid, Qpn), ConnectionId>,
    /// By our queue pair; until the connection is over.
    by_local_qp: BTreeMap<Qpn, ConnectionId>,
    timers: BTreeSet<(Instant, ConnectionId)>,
}

impl ConnectionTable {
    pub fn new(limit: u32, secret: u32) -> ConnectionTable {
        ConnectionTable {
            // The index is half of a communication id.
            slab: Slab::new(limit.min(0x1_0000)),
            secret,
            by_remote: BTreeMap::new(),
            by_remote_qp: BTreeMap::new(),
            by_local_qp: BTreeMap::new(),
            timers: BTreeSet::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.slab.ids().map(ConnectionId)
    }

    /// The low bits of an id's count and index, mixed with the secret, so that a peer cannot guess
    /// other connections' ids.
    fn comm_id(secret: u32, id: u64) -> CommId {
        CommId(((slab::generation(id) << 16) | (slab::index(id) & 0xffff)) ^ secret)
    }

    pub fn insert(&mut self, make: impl FnOnce(CommId) -> Connection) -> Option<ConnectionId> {
        let secret = self.secret;
        self.slab.insert(|id| make(ConnectionTable::comm_id(secret, id))).map(ConnectionId)
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.slab.get(id.0)
    }

    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slab.get_mut(id.0)
    }

    /// The connection with this communication id of ours.
    pub fn by_local(&self, comm: CommId) -> Option<ConnectionId> {
        let id = self.slab.id_at((comm.0 ^ self.secret) & 0xffff)?;
        (self.slab.get(id)?.local_comm == comm).then_some(ConnectionId(id))
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
    }
}

//! What the agent keeps of listening points and connections over streams.
//!
//! The ids have their top bit set, which those of the other protocol have not.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use core::num::NonZeroU64;

use iwarp::mpa::negotiation::Answer;
use nic_abi::registers::Identity;
use platform::sync::Mutex;
use platform::{Instant, Platform, Signal};
use roce::cm::ReadDepths;
use roce::{Gid, ServiceId};

use super::bind::Bound;
use super::setup::Setup;
use crate::cm::crowd::Crowd;
use crate::cm::{ConnectionId, ListenId};
use crate::home::Home;
use crate::stream::{Endpoint, StreamEnds};
use crate::{CmEvent, CmEventKind, Error};

/// The bit that distinguishes the ids of this protocol.
const OURS: u64 = 1 << 63;
/// Connections of a listening point whose Request waits for the client's answer; half of them from
/// one peer.
const ASKING: u32 = 1 << 10;

/// Whether a connection is one over a stream.
pub(crate) fn is_connection(id: ConnectionId) -> bool {
    id.0 & OURS != 0
}

/// Whether a listening point is one for connections over streams.
pub(crate) fn is_listen(id: ListenId) -> bool {
    id.0 & OURS != 0
}

/// The listening points and connections over streams of an agent.
pub(crate) struct Mpa {
    pub(super) platform: Arc<dyn Platform>,
    pub(super) identity: Identity,
    /// Wakes the dispatcher thread.
    pub(super) signal: Arc<Signal>,
    /// The most listening points.
    pub(super) max_listens: u32,
    /// The most connections.
    pub(super) max_connections: u32,
    /// How many connections of one peer are set up at most, at all listening points.
    pub(super) share: u32,
    /// Whether this end asks for CRCs.
    pub(super) crc: bool,
    pub(super) tables: Mutex<Tables>,
}

#[derive(Default)]
pub(super) struct Tables {
    /// The agent was closed: no notice enters any more.
    closed: bool,
    /// How many ids were given.
    ids: u64,
    pub(super) listens: BTreeMap<ListenId, Listening>,
    pub(super) ends: BTreeMap<ConnectionId, Box<End>>,
    /// When set-ups have to be looked at.
    pub(super) deadlines: BTreeSet<(Instant, ConnectionId)>,
    /// How many connections each peer has in the crowds of listening points, if any.
    guests: BTreeMap<Gid, u32>,
    /// Streams that were reset since their peer had its share of these.
    pub(super) refused: u64,
    /// Listening points at which streams may still wait, once each.
    pub(super) waiting: VecDeque<ListenId>,
    /// When those are looked at again for which there was no room.
    pub(super) retry: Option<Instant>,
    pub(super) inbox: VecDeque<Notice>,
}

/// A listening point.
pub(super) struct Listening {
    pub(super) client: Arc<dyn Home>,
    pub(super) context: u64,
    pub(super) service: ServiceId,
    pub(super) listener: Arc<Endpoint>,
    /// Connections whose Request has not come.
    pub(super) silent: Crowd<ConnectionId>,
    /// Connections whose Request waits for the client's answer.
    pub(super) asking: Crowd<ConnectionId>,
    /// It is in `waiting`.
    pub(super) is_waiting: bool,
}

/// One end of a connection, from the first call or the accepted stream until it is over.
pub(super) struct End {
    pub(super) client: Arc<dyn Home>,
    /// The queue pair's, or the listening point's as long as there is none.
    pub(super) context: u64,
    pub(super) ends: StreamEnds,
    pub(super) queue_pair: Option<Arc<dyn Bound>>,
    pub(super) state: State,
    /// Passive side, until it is answered: the place in a crowd of its listening point.
    pub(super) place: Option<Place>,
    /// It counts as a connection of the client: not before its Request has come.
    pub(super) counts: bool,
    pub(super) deadline: Option<Instant>,
}

/// A place in a crowd.
pub(super) struct Place {
    pub(super) listen: ListenId,
    asks: bool,
    order: NonZeroU64,
}

pub(super) enum State {
    /// It is being made.
    Setup { stream: Arc<Endpoint>, setup: Box<Setup> },
    /// Passive side: accepted. The queue pair gets the stream, and waits for the first FPDU.
    Accepted {
        /// The peer's read depths.
        depths: ReadDepths,
        /// The ends have exchanged a Request and a Reply.
        frames: bool,
    },
    /// It is established.
    Established,
}

/// What the dispatcher thread has to act on, for a client's call.
pub(super) enum Notice {
    /// The connection is over, and this is reported.
    Over(ConnectionId, Box<End>, CmEventKind),
    /// A stream is to be reset and destroyed: the caller holds a lock that may not be held then.
    Drop(Arc<Endpoint>),
    /// Something may have happened to the stream of a connection before it was in the table.
    Look(ConnectionId),
}

impl Mpa {
    /// Without listening points and connections. The limits are those of connections, listening
    /// points and streams.
    pub(crate) fn new(
        platform: Arc<dyn Platform>,
        identity: Identity,
        signal: Arc<Signal>,
        (max_connections, max_listens, max_streams): (u32, u32, u32),
        crc: bool,
    ) -> Mpa {
        let tables = Mutex::default();
        let share = max_streams.min(max_connections).div_ceil(2);
        Mpa { platform, identity, signal, max_listens, max_connections, share, crc, tables }
    }

    /// Listening points, and connections that are not over.
    pub(crate) fn counts(&self) -> (u32, u32) {
        let tables = self.tables.lock();
        (tables.listens.len() as u32, tables.ends.len() as u32)
    }

    /// Streams that were reset since their peer had its share.
    pub(crate) fn refused(&self) -> u64 {
        self.tables.lock().refused
    }

    /// Ends what is left of the connection that `find` says under the lock, without reporting it to
    /// the client. False if there is none. The caller may hold the `control` of a queue pair.
    pub(super) fn give_up(&self, find: impl FnOnce() -> Option<ConnectionId>) -> bool {
        let end = {
            let mut tables = self.tables.lock();
            find().and_then(|id| tables.remove(id))
        };
        if let Some(State::Setup { stream, .. }) = end.as_ref().map(|end| &end.state) {
            self.notify(Notice::Drop(stream.clone()));
        }
        // Dropped without the lock.
        end.is_some()
    }

    /// Leaves something to the dispatcher thread, with no lock of the tables held. Nothing happens
    /// if the agent was closed meanwhile: the notice refers to a client, so to the agent, and would
    /// keep both.
    pub(super) fn notify(&self, notice: Notice) {
        let mut tables = self.tables.lock();
        if tables.closed {
            drop(tables);
            return drop(notice);
        }
        tables.inbox.push_back(notice);
        drop(tables);
        self.signal.raise();
    }

    /// Forgets everything, when there is no device any more.
    pub(crate) fn clear(&self) {
        let empty = Tables { closed: true, ..Tables::default() };
        let mut forgotten = core::mem::replace(&mut *self.tables.lock(), empty);
        // Without the lock.
        forgotten.ends.iter_mut().for_each(|(&id, end)| end.detach(id));
    }
}

impl Tables {
    pub(super) fn new_listen(&mut self) -> ListenId {
        self.ids += 1;
        ListenId(OURS | self.ids)
    }

    pub(super) fn new_connection(&mut self) -> ConnectionId {
        self.ids += 1;
        ConnectionId(OURS | self.ids)
    }

    /// An end of this client.
    pub(super) fn end<C>(&mut self, client: *const C, id: ConnectionId) -> Result<&mut End, Error> {
        let ours = |end: &&mut Box<End>| core::ptr::addr_eq(Arc::as_ptr(&end.client), client);
        let end = self.ends.get_mut(&id).filter(ours);
        end.map(|end| &mut **end).ok_or(Error::ConnectionState)
    }

    /// Sets a timer by what a set-up says.
    pub(super) fn rearm(&mut self, id: ConnectionId) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        let next = match &end.state {
            State::Setup { setup, .. } => setup.deadline(),
            State::Accepted { .. } | State::Established => None,
        };
        let before = core::mem::replace(&mut end.deadline, next);
        if before != next {
            before.map(|at| self.deadlines.remove(&(at, id)));
            next.map(|at| self.deadlines.insert((at, id)));
        }
    }

    /// How many connections this peer has in the crowds of listening points.
    pub(super) fn guests_of(&self, peer: Gid) -> u32 {
        self.guests.get(&peer).copied().unwrap_or(0)
    }

    /// Takes a connection out of the crowd of its listening point.
    pub(super) fn leave_crowd(&mut self, id: ConnectionId) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        let Some(Place { listen, asks, order }) = end.place.take() else { return };
        let peer = end.ends.remote_gid;
        if let Some(count) = self.guests.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.guests.remove(&peer);
            }
        }
        if let Some(listening) = self.listens.get_mut(&listen) {
            listening.crowd(asks).leave(peer, order);
        }
    }

    /// Puts a connection into the crowd of those without a Request, or of those that wait for an
    /// answer, by its set-up. False if the listening point is gone.
    pub(super) fn enter_crowd(&mut self, id: ConnectionId, listen: ListenId) -> bool {
        let Some(end) = self.ends.get_mut(&id) else { return false };
        let Some(listening) = self.listens.get_mut(&listen) else { return false };
        let asks = end.asks();
        let order = listening.crowd(asks).enter(end.ends.remote_gid, id);
        *self.guests.entry(end.ends.remote_gid).or_default() += 1;
        end.place = Some(Place { listen, asks, order });
        true
    }

    /// Counts a connection whose Request has come among those that wait for an answer, and among
    /// the client's. Fails with how the peer is answered if the client has no room for it.
    pub(super) fn begin_to_ask(&mut self, id: ConnectionId, listen: ListenId) -> Result<(), Answer> {
        self.leave_crowd(id);
        self.enter_crowd(id, listen);
        let end = self.ends.get_mut(&id).ok_or(Answer::Close)?;
        end.counts = end.client.take_connection();
        if end.counts { Ok(()) } else { Err(Answer::Reject) }
    }

    /// Forgets an end.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Box<End>> {
        self.leave_crowd(id);
        let mut end = self.ends.remove(&id)?;
        if let Some(at) = end.deadline.take() {
            self.deadlines.remove(&(at, id));
        }
        end.detach(id);
        Some(end)
    }
}

impl Listening {
    fn crowd(&mut self, asks: bool) -> &mut Crowd<ConnectionId> {
        if asks { &mut self.asking } else { &mut self.silent }
    }

    /// Whether another Request of this peer may wait for the client's answer.
    pub(super) fn admits(&self, peer: Gid) -> bool {
        self.asking.len() < ASKING && self.asking.of(peer) < ASKING / 2
    }
}

impl End {
    /// Whether its Request waits for the client's answer.
    pub(super) fn asks(&self) -> bool {
        matches!(&self.state, State::Setup { setup, .. } if setup.waits_for_answer())
    }

    /// Takes the end out of the records of its queue pair and its client.
    pub(super) fn detach(&mut self, id: ConnectionId) {
        if core::mem::take(&mut self.counts) {
            self.client.leave_connection();
        }
        if let Some(queue_pair) = &self.queue_pair
            && queue_pair.common().connection() == Some(id)
        {
            queue_pair.common().set_connection(None);
        }
    }

    /// Reports an event, with no lock held.
    pub(super) fn report(&self, id: ConnectionId, kind: CmEventKind, private_data: &[u8]) {
        let event = CmEvent { connection: id, context: self.context, kind, information: &[], private_data };
        self.client.tell(&mut |up| up.connection(event));
    }

    /// Flushes what is outstanding on the queue pair.
    pub(super) fn flush_qp(&self) {
        if let Some(queue_pair) = &self.queue_pair {
            // It may be gone, or the device dead: then there is nothing to flush.
            let _ = queue_pair.flush();
        }
    }
}

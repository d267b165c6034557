//! Listeners, half-open connections, acceptance.

use alloc::collections::VecDeque;
use core::net::IpAddr;

use platform::Instant;
use smoltcp::wire::TcpControl;

use super::{ListenerId, StreamId, Streams};
use crate::address::is_single;
use crate::config::{MAX_BACKLOG, MAX_HALF_OPEN, MAX_LISTENERS};
use crate::counters::Dropped;
use crate::engine::{self, Egress, Nowhere, SYN, bare, shift};
use crate::error::Error;
use crate::half::Half;
use crate::segment::Segment;
use crate::stream::{Offer, Stream};
use crate::table::Place;

/// A listener, or the place for one.
#[derive(Debug, Default)]
pub(super) struct Listener {
    generation: u32,
    name: Option<(u16, Option<IpAddr>)>,
    backlog: usize,
    /// The connections that its owner has not taken.
    queue: VecDeque<u32>,
    /// The owner is told, or was told and has not emptied the queue.
    called: bool,
    /// It is in the queue of those whose owners have to be told.
    queued: bool,
}

impl Streams {
    /// Listens at a port, of one of the port's addresses or of all. `backlog`, from 1 to
    /// [`MAX_BACKLOG`], is the most half-open connections, of which one peer has half at most, and
    /// the most connections that wait for [`Streams::accept`]. The backlogs of all listeners are
    /// [`MAX_HALF_OPEN`] at most. Of the connections of either kind at all listeners, one peer has
    /// half as many as there are streams.
    ///
    /// A listener at one address goes before that at all addresses.
    pub fn listen(
        &mut self,
        address: Option<IpAddr>,
        port: u16,
        backlog: usize,
    ) -> Result<ListenerId, Error> {
        if port == 0 || address.is_some_and(|address| !is_single(address)) {
            return Err(Error::BadAddress);
        }
        if !(1..=MAX_BACKLOG).contains(&backlog) {
            return Err(Error::Config("backlog"));
        }
        let name = (port, address);
        if self.names.contains_key(&name) {
            return Err(Error::InUse);
        }
        if self.listeners.iter().map(|listener| listener.backlog).sum::<usize>() + backlog > MAX_HALF_OPEN {
            return Err(Error::TooMany);
        }
        let index = match self.listeners.iter().position(|listener| listener.name.is_none()) {
            Some(index) => index,
            None if self.listeners.len() < MAX_LISTENERS => {
                self.listeners.try_reserve(1).map_err(|_| Error::NoMemory)?;
                self.listeners.push(Listener::default());
                self.listeners.len() - 1
            }
            None => return Err(Error::TooMany),
        };
        let listener = &mut self.listeners[index];
        listener.queue.try_reserve(backlog).map_err(|_| Error::NoMemory)?;
        (listener.name, listener.backlog) = (Some(name), backlog);
        self.names.insert(name, index as u32);
        Ok(ListenerId { index: index as u32, generation: listener.generation })
    }

    fn listener(&mut self, id: ListenerId) -> Result<&mut Listener, Error> {
        let listener = self.listeners.get_mut(id.index as usize);
        listener.filter(|l| l.generation == id.generation && l.name.is_some()).ok_or(Error::NoSuch)
    }

    /// Stops listening; the id is void. Connections that the owner has not taken are reset.
    pub fn stop(&mut self, id: ListenerId) -> Result<(), Error> {
        let listener = self.listener(id)?;
        let (name, queue) = (listener.name.take(), core::mem::take(&mut listener.queue));
        listener.generation = listener.generation.wrapping_add(1);
        (listener.called, listener.backlog) = (false, 0);
        if let Some(name) = name {
            self.names.remove(&name);
        }
        while let Some(half) = self.halves.oldest(id.index) {
            self.lose_half(half);
        }
        for index in queue {
            self.doom(index);
        }
        Ok(())
    }

    /// Takes the connection that has waited longest; `None` if there is none.
    pub fn accept(&mut self, id: ListenerId) -> Result<Option<StreamId>, Error> {
        let listener = self.listener(id)?;
        let Some(index) = listener.queue.pop_front() else {
            listener.called = false;
            return Ok(None);
        };
        let Some(slot) = self.slots.get_mut(index as usize) else { return Ok(None) };
        if let Some(stream) = slot.stream.as_deref_mut() {
            stream.listener = None;
            self.untaken.leave(stream.tuple.remote.ip());
        }
        let generation = slot.generation;
        self.tell(index);
        Ok(Some(StreamId { index, generation }))
    }

    /// The listener at `index`, if a connection waits.
    pub(super) fn called(&mut self, index: u32) -> Option<ListenerId> {
        let listener = self.listeners.get_mut(index as usize)?;
        listener.queued = false;
        if !listener.called {
            return None;
        }
        listener.name?;
        Some(ListenerId { index, generation: listener.generation })
    }

    /// The stream at `index` waits no longer at a listener; false if it did not.
    pub(super) fn leave_listener(&mut self, index: u32) -> bool {
        let Some(stream) = self.at(index) else { return false };
        let (peer, Some(listener)) = (stream.tuple.remote.ip(), stream.listener.take()) else { return false };
        self.untaken.leave(peer);
        if let Some(listener) = self.listeners.get_mut(listener as usize) {
            listener.queue.retain(|waits| *waits != index);
        }
        true
    }

    fn find_listener(&self, address: IpAddr, port: u16) -> Option<u32> {
        let name = |address| self.names.get(&(port, address)).copied();
        name(Some(address)).or_else(|| name(None))
    }

    /// A peer asks for a connection.
    pub(super) fn knock(
        &mut self,
        segment: &Segment<'_>,
        now: Instant,
        egress: &mut impl Egress,
    ) -> Result<(), Dropped> {
        let tuple = segment.tuple;
        let Some(listener) = self.find_listener(tuple.local.ip(), tuple.local.port()) else {
            return self.refuse(segment, now, egress);
        };
        if !self.has_room() {
            return Err(Dropped::NoRoom);
        }
        let backlog = self.listeners[listener as usize].backlog;
        let peer = tuple.remote.ip();
        if self.halves.count(listener, Some(peer)) >= backlog.div_ceil(2) {
            return Err(Dropped::Backlog);
        }
        if self.untaken.of(peer) >= self.config.share() {
            return Err(Dropped::PeerShare);
        }
        // Whoever has waited longest makes room: an honest peer answers within a round trip.
        if self.halves.count(listener, None) >= backlog
            && let Some(oldest) = self.halves.oldest(listener)
        {
            self.lose_half(oldest);
        }
        let mut half = Half::new(tuple, listener, segment.seq(), Offer::of(&segment.tcp));
        half.seed = self.next_seed(&tuple);
        half.iss = self.first_number(&half, now).ok_or(Dropped::Malformed)?;
        self.births += 1;
        let index = self.halves.add(half, now).ok_or(Dropped::Backlog)?;
        if self.table.insert(tuple, Place::Half(index)).is_err() {
            self.halves.remove(index);
            return Err(Dropped::NoRoom);
        }
        self.untaken.enter(peer);
        self.counters.half_open += 1;
        self.counters.small_segments += u64::from(half.offer.is_small());
        self.answer_half(index, egress);
        Ok(())
    }

    /// The sequence number with which a socket answers this SYN, if its seed is that of the
    /// half-open connection.
    fn first_number(&mut self, half: &Half, now: Instant) -> Option<u32> {
        let mut syn = [0; SYN];
        let syn = half.offer.syn(&half.tuple, half.irs, &mut syn)?;
        let probe = self.probe.get_mut();
        probe.abort();
        probe.listen(half.tuple.local).ok()?;
        self.engine.seed(half.seed);
        let mut sent = engine::Sent::default();
        let nowhere = || Some(Nowhere);
        self.engine.receive(&mut self.probe, &half.tuple, syn, now, &mut sent, nowhere().as_mut());
        self.engine.send(&mut self.probe, &half.tuple, now, &mut sent, nowhere().as_mut());
        (sent.packets == 1).then_some(sent.seq)
    }

    /// Answers the SYN of a half-open connection, as its socket will.
    pub(super) fn answer_half(&mut self, index: u32, egress: &mut impl Egress) {
        let Some(half) = self.halves.get(index).copied() else { return };
        let mut answer = bare(&half.tuple, TcpControl::Syn, half.iss, Some(half.irs.wrapping_add(1)));
        let (ring, _) = self.config.rings(false);
        answer.window_len = u16::try_from(ring).unwrap_or(u16::MAX);
        // The ring may become larger, and the scale stays.
        answer.window_scale = half.offer.scale.map(|_| shift(self.config.receive_ring));
        let headers = if half.tuple.local.is_ipv4() { 40 } else { 60 };
        answer.max_seg_size = Some((self.config.mtu - headers) as u16);
        answer.sack_permitted = half.offer.sack;
        self.emit(&half.tuple, &answer, egress);
    }

    /// Gives up a half-open connection.
    pub(super) fn lose_half(&mut self, index: u32) {
        if let Some(half) = self.halves.remove(index) {
            self.table.remove(&half.tuple);
            self.untaken.leave(half.tuple.remote.ip());
            self.counters.half_open_lost += 1;
        }
    }

    /// A segment for a half-open connection.
    pub(super) fn for_half(
        &mut self,
        index: u32,
        segment: &Segment<'_>,
        packet: &[u8],
        now: Instant,
        egress: &mut impl Egress,
    ) -> Result<(), Dropped> {
        let Some(half) = self.halves.get(index).copied() else { return Err(Dropped::NoConnection) };
        let next = half.irs.wrapping_add(1);
        if segment.is_rst() {
            if segment.seq() != next {
                return Err(Dropped::OutOfWindow);
            }
            self.lose_half(index);
            return Ok(());
        }
        if segment.opens() {
            if segment.seq() != half.irs {
                // The peer has started again.
                self.lose_half(index);
                return self.knock(segment, now, egress);
            }
            if self.may_answer(segment, now) {
                self.answer_half(index, egress);
            }
            return Ok(());
        }
        match segment.ack() {
            Some(ack) if ack == half.iss.wrapping_add(1) && segment.tcp.control != TcpControl::Syn => {}
            Some(_) => return self.refuse(segment, now, egress),
            None => return Err(Dropped::OutOfWindow),
        }
        let offset = segment.seq().wrapping_sub(next) as usize;
        if offset + segment.tcp.payload.len() > self.config.rings(false).0 {
            return Err(Dropped::OutOfWindow);
        }
        let listener = &self.listeners[half.listener as usize];
        if listener.queue.len() >= listener.backlog {
            // The half-open connection stays, and the peer repeats itself.
            return Err(Dropped::Backlog);
        }
        let mut socket = self.socket().map_err(|_| Dropped::NoRoom)?;
        socket.get_mut().listen(half.tuple.local).map_err(|_| Dropped::Malformed)?;
        let mut stream = Stream::new(socket, half.tuple, now);
        (stream.irs, stream.listener) = (half.irs, Some(half.listener));
        (stream.offer, stream.ahead) = (half.offer, next);
        // The socket learns of the SYN, and of the answer that was sent already.
        let mut syn = [0; SYN];
        let syn = half.offer.syn(&half.tuple, half.irs, &mut syn).ok_or(Dropped::Malformed)?;
        self.engine.seed(half.seed);
        let Stream { socket, tuple, sent, .. } = &mut stream;
        self.engine.receive(socket, tuple, syn, now, sent, Some(&mut Nowhere));
        self.engine.send(socket, tuple, now, sent, Some(&mut Nowhere));
        if sent.seq != half.iss {
            return Err(Dropped::Malformed);
        }
        sent.scale = self.config.scale(false, half.offer.scale.is_some());
        self.halves.remove(index);
        let Ok(id) = self.add(stream) else {
            self.table.remove(&half.tuple);
            self.untaken.leave(half.tuple.remote.ip());
            self.counters.half_open_lost += 1;
            return Err(Dropped::NoRoom);
        };
        let listener = &mut self.listeners[half.listener as usize];
        listener.queue.push_back(id.index);
        let result = self.for_stream(id.index, segment, packet, now, egress);
        if self.stream(id).is_ok_and(|stream| !stream.open) {
            // The segment was not what it seemed to be.
            self.doom(id.index);
            self.counters.half_open_lost += 1;
            return result.and(Err(Dropped::OutOfWindow));
        }
        self.counters.accepted += 1;
        let listener = &mut self.listeners[half.listener as usize];
        let tell = !listener.queue.is_empty() && !core::mem::replace(&mut listener.called, true);
        if tell && !core::mem::replace(&mut listener.queued, true) {
            self.calls.push_back(half.listener);
        }
        result
    }
}

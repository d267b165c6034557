//! Aggregate EVDs: the simple EVDs that feed them, and which of those notified (pages
//! it_evd_create, it_evd_wait, it_evd_dequeue, it_aevd_notification_event_t).
//!
//! An aggregate has no queue that could overflow. It has a seat for each EVD that feeds it, and the
//! order in which they notified. A simple EVD notifies its aggregate when it announces an event,
//! but not when an event is taken from it. So a thread that takes from the aggregate checks whether
//! an EVD that notified is still in the notification criteria.
//!
//! Not every arrival is announced: a CQ announces only while it is armed. So a thread that begins
//! to take first looks at all enabled EVDs. It does so when no EVD is known to have notified, and
//! otherwise once every [`ROUND`] events, so that it costs little and no EVD starves. In an
//! aggregate that names its EVDs, a waiter that slept does not look at all of them again: it would
//! return a notification that another waiter has just returned.
//!
//! Locks: the simple dispatcher's control lock, then the aggregate's state here, then the simple
//! one's queue.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use platform::sync::Mutex;

use super::take::Taken;
use super::{Control, Evd, Feed, Queue};
use crate::status::{Error, Result};

/// Events taken before all EVDs are looked at again.
const ROUND: usize = 16;

pub(crate) struct Aggregate {
    /// Its events name the EVD that notified; otherwise they are that EVD's own events.
    names: bool,
    state: Mutex<State>,
}

struct State {
    seats: Vec<Option<Member>>,
    /// Seats of the EVDs that notified, the longest waiting first, each once.
    ready: VecDeque<usize>,
    /// The seat at which the next look at all EVDs begins.
    next: usize,
    /// Events taken since the last look at all EVDs.
    taken: usize,
    /// Seats that were promised and are not taken yet.
    reserved: usize,
}

/// A seat that an aggregate promised to an EVD: taking it cannot fail.
pub(super) struct Reservation(Option<Feed>);

impl Reservation {
    /// Begins to feed an aggregate. Fails if it is no aggregate, or is being freed.
    pub(super) fn of(aevd: Arc<Evd>) -> Result<Reservation> {
        let aggregate = aevd.aggregate().ok_or(Error::InvalidAevd)?;
        aggregate.reserve()?;
        match Feed::begin(aevd.clone()) {
            Some(feed) => Ok(Reservation(Some(feed))),
            None => {
                aggregate.cancel();
                Err(Error::InvalidAevd)
            }
        }
    }

    /// Gives the seat to the EVD.
    fn fill(mut self, sevd: &Arc<Evd>) -> Option<Feed> {
        let feed = self.0.take()?;
        feed.aggregate()?.add(sevd);
        Some(feed)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(aggregate) = self.0.as_ref().and_then(|feed| feed.aggregate()) {
            aggregate.cancel();
        }
    }
}

struct Member {
    sevd: Arc<Evd>,
    /// It is in `ready`.
    ready: bool,
}

/// The EVDs that a thread looks at before it takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// All that are enabled.
    All,
    /// Those that notified since the last look at all.
    Notified,
}

impl Aggregate {
    pub(super) fn new(names: bool) -> Aggregate {
        let state = State { seats: Vec::new(), ready: VecDeque::new(), next: 0, taken: 0, reserved: 0 };
        Aggregate { names, state: Mutex::new(state) }
    }

    pub(super) fn names(&self) -> bool {
        self.names
    }

    /// Promises a seat, and allocates what it needs.
    fn reserve(&self) -> Result<()> {
        let mut state = self.state.lock();
        let reserved = state.reserved + 1;
        state.seats.try_reserve(reserved).map_err(|_| Error::Resources)?;
        let more = state.seats.len() + reserved - state.ready.len();
        state.ready.try_reserve(more).map_err(|_| Error::Resources)?;
        state.reserved = reserved;
        Ok(())
    }

    /// Takes a promise back.
    fn cancel(&self) {
        self.state.lock().reserved -= 1;
    }

    /// Gives an EVD a seat that was promised.
    fn add(&self, sevd: &Arc<Evd>) {
        let mut state = self.state.lock();
        state.reserved -= 1;
        let member = Some(Member { sevd: sevd.clone(), ready: false });
        let seat = match state.seats.iter().position(Option::is_none) {
            Some(free) => {
                state.seats[free] = member;
                free
            }
            None => {
                state.seats.push(member);
                state.seats.len() - 1
            }
        };
        sevd.seat.store(seat, Ordering::Relaxed);
    }

    /// Takes an EVD's seat away, and with it the record that it notified.
    pub(super) fn remove(&self, sevd: &Evd) {
        let left = {
            let mut state = self.state.lock();
            let Some(seat) = state.seat(sevd) else { return };
            state.ready.retain(|other| *other != seat);
            state.seats.get_mut(seat).and_then(Option::take)
        };
        drop(left);
    }

    /// Takes all seats away.
    pub(super) fn remove_all(&self) {
        let seats = {
            let mut state = self.state.lock();
            state.ready.clear();
            core::mem::take(&mut state.seats)
        };
        drop(seats);
    }

    /// Records that an EVD notified, if it still feeds this aggregate.
    pub(super) fn notified_by(&self, sevd: &Evd) {
        let mut state = self.state.lock();
        if let Some(seat) = state.seat(sevd) {
            state.enqueue(seat);
        }
    }

    /// Takes an event if an EVD notified. `shared` says that there are other waiters, which have to
    /// learn of the events that follow.
    pub(super) fn take_notified(&self, look: Look, shared: bool) -> Option<Taken> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut looked = look == Look::Notified;
        if !looked && state.taken >= ROUND {
            state.look_at_all();
            looked = true;
        }
        loop {
            if let Some(taken) = self.take_from_ready(state, shared) {
                return Some(taken);
            }
            // The EVDs that notified may be empty by now, but another one may have an event that
            // was not announced.
            if core::mem::replace(&mut looked, true) {
                return None;
            }
            state.look_at_all();
        }
    }

    /// Takes an event from an EVD that is recorded to have notified, and is still in the criteria.
    fn take_from_ready(&self, state: &mut State, shared: bool) -> Option<Taken> {
        // Each EVD twice at most, even if the device goes on writing.
        for _ in 0..2 * state.ready.len() {
            let seat = state.ready.pop_front()?;
            let Some(member) = state.seats.get_mut(seat).and_then(Option::as_mut) else { continue };
            member.ready = false;
            let sevd = &member.sevd;
            let taken = match self.names {
                true => sevd.notified().then_some(Taken::Name(sevd.handle)),
                false => sevd.take_if_notified(Look::All),
            };
            let again = match (&taken, self.names) {
                _ if !sevd.is_enabled() => false,
                // The next look at all EVDs finds that it is still in the criteria. What comes from
                // now on is announced if it is armed.
                (Some(_), true) => {
                    if shared {
                        sevd.arm();
                    }
                    false
                }
                (Some(_), false) if !shared => sevd.notified(),
                _ => sevd.watch(),
            };
            if again {
                state.enqueue(seat);
            }
            if taken.is_some() {
                state.count_taken(seat);
                return taken;
            }
        }
        None
    }

    /// Takes the oldest event of any EVD, whether that notifies or not.
    pub(super) fn take_any(&self) -> Option<Taken> {
        let mut state = self.state.lock();
        let seats = state.seats.len();
        for offset in 0..seats {
            let seat = (state.next + offset) % seats;
            let Some(Some(member)) = state.seats.get(seat) else { continue };
            let taken = member.sevd.take();
            if taken.is_some() {
                state.count_taken(seat);
                return taken;
            }
        }
        None
    }

    /// Whether an EVD is in the notification criteria.
    pub(super) fn notified(&self) -> bool {
        let mut state = self.state.lock();
        state.look_at_all();
        state
            .ready
            .iter()
            .filter_map(|seat| state.seats.get(*seat)?.as_ref())
            .any(|member| member.sevd.notified())
    }

    /// Whether a dequeue would find nothing.
    pub(super) fn is_empty(&self) -> bool {
        if self.names {
            return !self.notified();
        }
        let state = self.state.lock();
        state.seats.iter().flatten().all(|member| member.sevd.is_empty())
    }

    /// Arms all enabled EVDs: each announces its next event.
    pub(super) fn arm(&self) {
        let state = self.state.lock();
        for member in state.seats.iter().flatten().filter(|member| member.sevd.is_enabled()) {
            member.sevd.arm();
        }
    }
}

impl State {
    /// The seat of an EVD, if it has one.
    fn seat(&self, sevd: &Evd) -> Option<usize> {
        let seat = sevd.seat.load(Ordering::Relaxed);
        let member = self.seats.get(seat)?.as_ref()?;
        core::ptr::eq(Arc::as_ptr(&member.sevd), sevd).then_some(seat)
    }

    /// Appends a seat to those that notified. There is room for all.
    fn enqueue(&mut self, seat: usize) {
        if let Some(Some(member)) = self.seats.get_mut(seat)
            && !core::mem::replace(&mut member.ready, true)
        {
            self.ready.push_back(seat);
        }
    }

    /// Finds all enabled EVDs that are in the notification criteria.
    fn look_at_all(&mut self) {
        self.taken = 0;
        let seats = self.seats.len();
        for offset in 0..seats {
            let seat = (self.next + offset) % seats;
            if let Some(Some(member)) = self.seats.get(seat)
                && !member.ready
                && member.sevd.is_enabled()
                && member.sevd.notified()
            {
                self.enqueue(seat);
            }
        }
    }

    fn count_taken(&mut self, seat: usize) {
        self.next = seat + 1;
        self.taken += 1;
    }
}

impl Evd {
    /// Makes the EVD feed this aggregate and no other, or none. Fails without a change if the EVD
    /// is freed.
    pub(super) fn set_aggregate(self: &Arc<Evd>, reservation: Option<Reservation>) -> Result<()> {
        let former = {
            let mut control = self.control.lock();
            if control.gone {
                return Err(Error::InvalidEvd);
            }
            let former = self.leave_aggregate(&mut control);
            if let Some(feed) = reservation.and_then(|reservation| reservation.fill(self)) {
                self.set_captive(feed.captures());
                control.aevd = Some(feed);
                self.linked.store(true, Ordering::Release);
            }
            former
        };
        drop(former);
        Ok(())
    }

    /// Ends feeding the aggregate, which also forgets that the EVD notified. Drop the result
    /// without the lock.
    pub(super) fn leave_aggregate(&self, control: &mut Control) -> Option<Feed> {
        let feed = control.aevd.take()?;
        if let Some(aggregate) = feed.aggregate() {
            aggregate.remove(self);
        }
        self.linked.store(control.notifier.is_some(), Ordering::Release);
        self.set_captive(false);
        Some(feed)
    }

    /// Sets whether only its aggregate may take its events.
    fn set_captive(&self, captive: bool) {
        self.captive.store(captive, Ordering::Release);
        if let Queue::Dto(queue) = &self.queue {
            queue.set_captive(captive);
        }
    }

    /// The aggregate part, if this is an aggregate.
    pub(super) fn aggregate(&self) -> Option<&Aggregate> {
        match &self.queue {
            Queue::Aggregate(aggregate) => Some(aggregate),
            _ => None,
        }
    }

    /// Whether only this aggregate takes the events of the EVDs that feed it.
    pub(super) fn captures(&self) -> bool {
        self.aggregate().is_some_and(|aggregate| !aggregate.names)
    }
}

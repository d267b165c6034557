//! Aggregate EVDs: the simple EVDs that feed them, and which of those notified (pages
//! it_evd_create, it_evd_wait, it_evd_dequeue, it_aevd_notification_event_t).
//!
//! An aggregate has no queue, so it cannot overflow. It has a seat (an index in its list) for each
//! simple EVD that feeds it, and records the order in which they notified. A simple EVD notifies
//! its aggregate when it announces an event, but not when an event is taken from it. So a thread
//! that takes from the aggregate checks whether an EVD that notified still meets the notification
//! criteria.
//!
//! Not every arrival is announced: a CQ announces only while it is armed. So a thread that takes
//! from the aggregate also checks all enabled EVDs: when no EVD is recorded to have notified, and
//! otherwise once every [`ROUND`] events, which costs little and lets no EVD starve. In an
//! aggregate whose events name the EVDs, a waiter that slept does not check all of them again: it
//! would return a notification that another waiter has just returned.
//!
//! Locks, outermost first: the simple EVD's control lock, the aggregate's state in this file, the
//! simple EVD's queue.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use kernel_agent::TookAny;
use platform::sync::Mutex;
use rdma::events::Events;

use super::dto;
use super::line::Line;
use super::take::Taken;
use crate::evd::forms::{Form, WaitFor};
use crate::event::{DtoCompletion, Event};
use crate::objects::evd::{Evd, Feed, Queue};
use crate::status::{Error, Result};

/// The number of events that are taken before all EVDs are checked again.
const ROUND: usize = 16;
/// The most EVDs that are checked while the lock is held once.
const CHUNK: usize = 32;

pub(crate) struct Aggregate {
    /// The aggregate's events name the simple EVD that notified. If false, the aggregate returns
    /// the events of the simple EVDs themselves.
    names: bool,
    state: Mutex<State>,
}

struct State {
    /// The EVDs that feed the aggregate.
    seats: Vec<Option<Arc<Evd>>>,
    /// Seats that are empty again.
    free: Vec<usize>,
    /// Seats of the EVDs that notified, in the order in which they did. It has all seats' places.
    ready: Line,
    /// The seat at which the next check of all EVDs begins.
    next: usize,
    /// The number of events taken since the last check of all EVDs.
    taken: usize,
    /// The number of seats that are reserved and not filled yet.
    reserved: usize,
}

/// A seat that is reserved in an aggregate: filling it cannot fail. Dropping this cancels the
/// reservation.
pub(crate) struct Reservation(Option<Feed>);

impl Reservation {
    /// Reserves a seat in an aggregate and begins to use it. Fails with `InvalidAevd` if `aevd` is
    /// not an aggregate or is being freed.
    pub(crate) fn of(aevd: Arc<Evd>) -> Result<Reservation> {
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

    /// Puts the EVD in the reserved seat.
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

/// The EVDs that a thread checks before it takes an event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// All enabled EVDs.
    All,
    /// The EVDs that notified since the last check of all.
    Notified,
}

impl Aggregate {
    pub(crate) fn new(names: bool) -> Aggregate {
        let (seats, free, ready) = (Vec::new(), Vec::new(), Line::new());
        Aggregate { names, state: Mutex::new(State { seats, free, ready, next: 0, taken: 0, reserved: 0 }) }
    }

    pub(crate) fn names(&self) -> bool {
        self.names
    }

    /// Reserves a seat, and allocates the memory for it.
    fn reserve(&self) -> Result<()> {
        let mut state = self.state.lock();
        let reserved = state.reserved + 1;
        state.seats.try_reserve(reserved).map_err(|_| Error::Resources)?;
        let all = state.seats.len() + reserved;
        let free = all - state.free.len();
        state.free.try_reserve(free).map_err(|_| Error::Resources)?;
        if !state.ready.try_reserve(reserved) {
            return Err(Error::Resources);
        }
        state.reserved = reserved;
        Ok(())
    }

    /// Cancels the reservation of a seat.
    fn cancel(&self) {
        self.state.lock().reserved -= 1;
    }

    /// Puts an EVD in a seat that was reserved.
    fn add(&self, sevd: &Arc<Evd>) {
        let mut state = self.state.lock();
        state.reserved -= 1;
        let member = Some(sevd.clone());
        let seat = match state.free.pop() {
            Some(free) => {
                state.seats[free] = member;
                free
            }
            None => {
                state.seats.push(member);
                state.ready.add_seat();
                state.seats.len() - 1
            }
        };
        sevd.seat.store(seat, Ordering::Relaxed);
    }

    fn remove(&self, sevd: &Evd) {
        let left = {
            let mut state = self.state.lock();
            let Some(seat) = state.seat(sevd) else { return };
            let left = state.seats.get_mut(seat).and_then(Option::take);
            state.ready.remove(seat);
            state.free.push(seat);
            left
        };
        drop(left);
    }

    /// Removes all EVDs.
    pub(crate) fn remove_all(&self) {
        let seats = {
            let mut state = self.state.lock();
            state.ready = Line::new();
            state.free.clear();
            core::mem::take(&mut state.seats)
        };
        drop(seats);
    }

    /// Records that an EVD notified, if it still feeds this aggregate.
    pub(crate) fn notified_by(&self, sevd: &Evd) {
        let mut state = self.state.lock();
        if let Some(seat) = state.seat(sevd) {
            state.ready.append(seat);
        }
    }

    /// Takes an event of an EVD that notified. `shared` says that there are other waiters: the EVD
    /// is then armed, so that its next event wakes them.
    pub(super) fn take_notified(&self, look: Look, shared: bool, soft: &mut Option<Event>) -> Option<Taken> {
        let mut looked = look == Look::Notified;
        if !looked && self.state.lock().taken >= ROUND {
            self.look_at_all();
            looked = true;
        }
        loop {
            if let Some(taken) = self.take_from_ready(&mut self.state.lock(), shared, soft) {
                return Some(taken);
            }
            // The EVDs that notified may be empty by now, but another EVD may have an event that
            // was not announced.
            if core::mem::replace(&mut looked, true) {
                return None;
            }
            self.look_at_all();
        }
    }

    /// Takes an event of the first EVD in `ready` that still meets the notification criteria.
    fn take_from_ready(&self, state: &mut State, shared: bool, soft: &mut Option<Event>) -> Option<Taken> {
        // The loop checks each EVD at most twice, so it ends even if the device keeps writing
        // completions.
        for _ in 0..2 * state.ready.len() {
            let seat = state.ready.take_first()?;
            let Some(sevd) = state.seats.get(seat).and_then(Option::as_ref) else { continue };
            let taken = match self.names {
                true => sevd.notified().then_some(Taken::Name(sevd.handle)),
                false => sevd.take_if_due(WaitFor::Notification, Look::All, soft),
            };
            let again = match (&taken, self.names) {
                _ if !sevd.is_enabled() => false,
                // If the EVD still meets the criteria, the next check of all EVDs finds that. Other
                // waiters sleep until an event is announced, so arm the EVD for them.
                (Some(_), true) => {
                    if shared {
                        sevd.queue().arm();
                    }
                    false
                }
                (Some(_), false) if !shared => sevd.notified(),
                _ => sevd.watch(),
            };
            if again {
                state.ready.append(seat);
            }
            if taken.is_some() {
                state.count_taken(seat);
                return taken;
            }
        }
        None
    }

    /// Takes the oldest event of the next EVD that has one, whether or not it meets the criteria.
    pub(super) fn take_any(&self, soft: &mut Option<Event>) -> Option<Taken> {
        self.search(|state, seat| {
            let taken = state.member(seat)?.take(soft);
            if taken.is_some() {
                state.count_taken(seat);
            }
            taken
        })
    }

    /// As [`Aggregate::take_any`], if the next event is a success of an EVD near the seat of the
    /// last event; passes it to `put`. False for an aggregate whose events name the EVDs.
    #[inline(always)]
    pub(crate) fn take_success<F: Form>(&self, mut put: impl FnMut(DtoCompletion, F::Beside)) -> bool {
        if self.names {
            return false;
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut seat = state.next;
        for _ in 0..CHUNK.min(state.seats.len()) {
            if seat >= state.seats.len() {
                seat = 0;
            }
            let Some(sevd) = state.member(seat) else {
                seat += 1;
                continue;
            };
            let Some(queue) = sevd.completions() else { return false };
            let evd = sevd.handle;
            match queue.take_success(|taken| put(dto::success(taken, evd), F::beside(taken))) {
                TookAny::Taken { .. } => {
                    state.count_taken(seat);
                    return true;
                }
                TookAny::Nothing => seat += 1,
                TookAny::Other => return false,
            }
        }
        false
    }

    /// Calls `each` with the seats until it returns something; begins behind the seat of the last
    /// event. Releases the lock after each [`CHUNK`] seats, so that no thread waits long for it.
    fn search<R>(&self, mut each: impl FnMut(&mut State, usize) -> Option<R>) -> Option<R> {
        let (mut first, mut passed) = (None, 0);
        loop {
            let mut state = self.state.lock();
            let seats = state.seats.len();
            let first = *first.get_or_insert(state.next);
            for _ in 0..CHUNK {
                if passed >= seats {
                    return None;
                }
                let found = each(&mut state, (first + passed) % seats);
                if found.is_some() {
                    return found;
                }
                passed += 1;
            }
        }
    }

    /// Appends all enabled EVDs that meet the notification criteria to those that notified.
    fn look_at_all(&self) {
        self.state.lock().taken = 0;
        let _: Option<()> = self.search(|state, seat| {
            let sevd = state.member(seat)?;
            if !state.ready.contains(seat) && sevd.is_enabled() && sevd.notified() {
                state.ready.append(seat);
            }
            None
        });
    }

    /// Whether an EVD meets the notification criteria.
    pub(crate) fn notified(&self) -> bool {
        self.look_at_all();
        // Bounded, as in `take_from_ready`.
        let most = self.state.lock().ready.len();
        (0..most).any(|_| {
            let mut state = self.state.lock();
            let Some(seat) = state.ready.first() else { return false };
            let notified = state.member(seat).is_some_and(|sevd| sevd.notified());
            // Another EVD is looked at next; this one keeps its turn among those that notify.
            if !notified {
                state.ready.first_to_end();
            }
            notified
        })
    }

    /// Whether a dequeue would find nothing.
    pub(crate) fn is_empty(&self) -> bool {
        if self.names {
            return !self.notified();
        }
        let full =
            |state: &mut State, seat| state.member(seat).filter(|sevd| !sevd.queue().is_empty()).map(|_| ());
        self.search(full).is_none()
    }

    /// The sum of a number over all enabled EVDs.
    pub(crate) fn sum(&self, number: impl Fn(&Evd) -> usize) -> usize {
        let mut sum = 0;
        let _: Option<()> = self.search(|state, seat| {
            sum += number(state.member(seat).filter(|sevd| sevd.is_enabled())?);
            None
        });
        sum
    }

    /// Arms all enabled EVDs: each announces its next event.
    pub(crate) fn arm(&self) {
        let _: Option<()> = self.search(|state, seat| {
            state.member(seat).filter(|sevd| sevd.is_enabled())?.queue().arm();
            None
        });
    }
}

impl State {
    /// The EVD in a seat.
    fn member(&self, seat: usize) -> Option<&Evd> {
        self.seats.get(seat)?.as_deref()
    }

    /// The seat of an EVD, if it has one.
    fn seat(&self, sevd: &Evd) -> Option<usize> {
        let seat = sevd.seat.load(Ordering::Relaxed);
        core::ptr::eq(self.member(seat)?, sevd).then_some(seat)
    }

    /// Counts an event that was taken, and begins the next search behind this seat.
    fn count_taken(&mut self, seat: usize) {
        self.next = seat + 1;
        self.taken += 1;
    }
}

impl Evd {
    /// Replaces the aggregate that this EVD feeds; `None` for no aggregate. Fails without a change
    /// if the EVD is freed.
    pub(crate) fn set_aggregate(self: &Arc<Evd>, reservation: Option<Reservation>) -> Result<()> {
        let former = self.link(|former| {
            if let Some(former) = former {
                former.forget(self);
            }
            let feed = reservation?.fill(self)?;
            let captures = feed.captures();
            Some((feed, captures))
        })?;
        drop(former);
        Ok(())
    }

    /// Removes an EVD that feeds this aggregate, and the record that it notified.
    pub(crate) fn forget(&self, sevd: &Evd) {
        if let Some(aggregate) = self.aggregate() {
            aggregate.remove(sevd);
        }
    }

    /// The aggregate part, if this is an aggregate.
    pub(crate) fn aggregate(&self) -> Option<&Aggregate> {
        match self.queue() {
            Queue::Aggregate(aggregate) => Some(aggregate),
            Queue::Simple(_) => None,
        }
    }

    /// Whether the events of the EVDs that feed this EVD can be taken only from it: it is an
    /// aggregate that returns their events.
    pub(crate) fn captures(&self) -> bool {
        self.aggregate().is_some_and(|aggregate| !aggregate.names)
    }
}

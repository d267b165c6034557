//! Aggregate dispatchers: what simple ones feed them, and which of those notified (pages it_evd_create, it_evd_wait, it_evd_dequeue,
//! it_aevd_notification_event_t).
//!
//! An aggregate has no queue that could overflow, only a place for each dispatcher that feeds it and the order in which they notified.
//! A simple dispatcher tells its aggregate when it announces an event, never when one is taken from it: whoever takes from the
//! aggregate looks whether what notified still does.
//!
//! Not every arrival is announced (a CQ announces when it is armed), so whoever begins to take looks around first, at all that
//! are enabled. That is done when nobody is known to have notified, and else once every [`ROUND`] takings, so that it costs little and
//! nobody starves. A waiter that slept does not look around again in an aggregate that names its dispatchers: it would be told once
//! more what another waiter was told a moment ago.
//!
//! Locks: the simple dispatcher's control lock, then the aggregate's state here, then the simple one's queue.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use platform::sync::Mutex;

use super::take::Taken;
use super::{Control, Evd, Feed, Queue};
use crate::status::{Error, Result};

/// Takings after which all are looked at again.
const ROUND: usize = 16;

pub(crate) struct Aggregate {
    /// Its events name the dispatcher that notified; otherwise they are that one's own.
    names: bool,
    state: Mutex<State>,
}

struct State {
    seats: Vec<Option<Member>>,
    /// Seats of those that notified, the longest waiting first; each once.
    ready: VecDeque<usize>,
    /// Where the next look around begins.
    next: usize,
    /// Takings since the last one.
    taken: usize,
    /// Seats that somebody is about to take.
    promised: usize,
}

/// A seat that an aggregate promised to a dispatcher: taking it cannot fail.
pub(super) struct Promise(Option<Feed>);

impl Promise {
    /// Begins to feed an aggregate. Fails if it is none, or is going.
    pub(super) fn of(aevd: Arc<Evd>) -> Result<Promise> {
        let aggregate = aevd.aggregate().ok_or(Error::InvalidAevd)?;
        aggregate.promise()?;
        match Feed::begin(aevd.clone()) {
            Some(feed) => Ok(Promise(Some(feed))),
            None => {
                aggregate.decline();
                Err(Error::InvalidAevd)
            }
        }
    }

    /// The dispatcher takes the seat.
    fn redeem(mut self, sevd: &Arc<Evd>) -> Option<Feed> {
        let feed = self.0.take()?;
        feed.aggregate()?.join(sevd);
        Some(feed)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(aggregate) = self.0.as_ref().and_then(|feed| feed.aggregate()) {
            aggregate.decline();
        }
    }
}

struct Member {
    sevd: Arc<Evd>,
    /// It is in `ready`.
    ready: bool,
}

/// What a taker looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// All that are enabled.
    Around,
    /// Those that notified since somebody looked around.
    Told,
}

impl Aggregate {
    pub(super) fn new(names: bool) -> Aggregate {
        let state = State { seats: Vec::new(), ready: VecDeque::new(), next: 0, taken: 0, promised: 0 };
        Aggregate { names, state: Mutex::new(state) }
    }

    pub(super) fn names(&self) -> bool {
        self.names
    }

    /// Promises a seat, which then can be had without allocating.
    fn promise(&self) -> Result<()> {
        let mut state = self.state.lock();
        let promised = state.promised + 1;
        state.seats.try_reserve(promised).map_err(|_| Error::Resources)?;
        let more = state.seats.len() + promised - state.ready.len();
        state.ready.try_reserve(more).map_err(|_| Error::Resources)?;
        state.promised = promised;
        Ok(())
    }

    /// A seat that was promised is not wanted.
    fn decline(&self) {
        self.state.lock().promised -= 1;
    }

    /// Gives a dispatcher a seat that was promised.
    fn join(&self, sevd: &Arc<Evd>) {
        let mut state = self.state.lock();
        state.promised -= 1;
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

    /// Takes a dispatcher's seat away; that it notified is forgotten.
    pub(super) fn leave(&self, sevd: &Evd) {
        let left = {
            let mut state = self.state.lock();
            let Some(seat) = state.seat(sevd) else { return };
            state.ready.retain(|other| *other != seat);
            state.seats.get_mut(seat).and_then(Option::take)
        };
        drop(left);
    }

    /// Takes all seats away.
    pub(super) fn dismiss(&self) {
        let seats = {
            let mut state = self.state.lock();
            state.ready.clear();
            core::mem::take(&mut state.seats)
        };
        drop(seats);
    }

    /// A dispatcher notified; nothing happens if it is no longer one of these.
    pub(super) fn told(&self, sevd: &Evd) {
        let mut state = self.state.lock();
        if let Some(seat) = state.seat(sevd) {
            state.enqueue(seat);
        }
    }

    /// Takes what there is if one notified. `shared` says that others wait, too, and have to be told of what comes after this.
    pub(super) fn take_notified(&self, look: Look, shared: bool) -> Option<Taken> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut looked = look == Look::Told;
        if !looked && state.taken >= ROUND {
            state.look_around();
            looked = true;
        }
        loop {
            if let Some(taken) = self.take_told(state, shared) {
                return Some(taken);
            }
            // Perhaps none that notified still does, but another one that nobody told of.
            if core::mem::replace(&mut looked, true) {
                return None;
            }
            state.look_around();
        }
    }

    /// Takes what there is of one that is known to have notified, and still does.
    fn take_told(&self, state: &mut State, shared: bool) -> Option<Taken> {
        // Each twice at most, whatever the device goes on writing.
        for _ in 0..2 * state.ready.len() {
            let seat = state.ready.pop_front()?;
            let Some(member) = state.seats.get_mut(seat).and_then(Option::as_mut) else { continue };
            member.ready = false;
            let sevd = &member.sevd;
            let taken = match self.names {
                true => sevd.notified().then_some(Taken::Name(sevd.handle)),
                false => sevd.take_if_notified(Look::Around),
            };
            let again = match (&taken, self.names) {
                _ if !sevd.is_enabled() => false,
                // That it still notifies is seen by the next who looks around; what comes from now on is told.
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
                state.took(seat);
                return taken;
            }
        }
        None
    }

    /// Takes the oldest event of any that has one, notifying or not.
    pub(super) fn take_any(&self) -> Option<Taken> {
        let mut state = self.state.lock();
        let seats = state.seats.len();
        for offset in 0..seats {
            let seat = (state.next + offset) % seats;
            let Some(Some(member)) = state.seats.get(seat) else { continue };
            let taken = member.sevd.take();
            if taken.is_some() {
                state.took(seat);
                return taken;
            }
        }
        None
    }

    /// Whether one notified and still does.
    pub(super) fn notified(&self) -> bool {
        let mut state = self.state.lock();
        state.look_around();
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

    /// Has all that are enabled announce what comes next.
    pub(super) fn arm(&self) {
        let state = self.state.lock();
        for member in state.seats.iter().flatten().filter(|member| member.sevd.is_enabled()) {
            member.sevd.arm();
        }
    }
}

impl State {
    /// The seat of a dispatcher that has one.
    fn seat(&self, sevd: &Evd) -> Option<usize> {
        let seat = sevd.seat.load(Ordering::Relaxed);
        let member = self.seats.get(seat)?.as_ref()?;
        core::ptr::eq(Arc::as_ptr(&member.sevd), sevd).then_some(seat)
    }

    /// Puts a seat at the end of those that notified; there is room for all.
    fn enqueue(&mut self, seat: usize) {
        if let Some(Some(member)) = self.seats.get_mut(seat)
            && !core::mem::replace(&mut member.ready, true)
        {
            self.ready.push_back(seat);
        }
    }

    /// Finds all that are enabled and notify.
    fn look_around(&mut self) {
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

    fn took(&mut self, seat: usize) {
        self.next = seat + 1;
        self.taken += 1;
    }
}

impl Evd {
    /// Feeds this aggregate from now on, and no other; none if there is none. Fails without a change if it is freed.
    pub(super) fn join(self: &Arc<Evd>, promise: Option<Promise>) -> Result<()> {
        let former = {
            let mut control = self.control.lock();
            if control.gone {
                return Err(Error::InvalidEvd);
            }
            let former = self.part(&mut control);
            if let Some(feed) = promise.and_then(|promise| promise.redeem(self)) {
                self.set_captive(feed.captures());
                control.aevd = Some(feed);
                self.linked.store(true, Ordering::Release);
            }
            former
        };
        drop(former);
        Ok(())
    }

    /// Feeds no aggregate any more; that it notified is forgotten there. The result is to be dropped without the lock.
    pub(super) fn part(&self, control: &mut Control) -> Option<Feed> {
        let feed = control.aevd.take()?;
        if let Some(aggregate) = feed.aggregate() {
            aggregate.leave(self);
        }
        self.linked.store(control.notifier.is_some(), Ordering::Release);
        self.set_captive(false);
        Some(feed)
    }

    /// Whether only its aggregate may take its events.
    fn set_captive(&self, captive: bool) {
        self.captive.store(captive, Ordering::Release);
        if let Queue::Dto(queue) = &self.queue {
            queue.set_captive(captive);
        }
    }

    /// The aggregate, if it is one.
    pub(super) fn aggregate(&self) -> Option<&Aggregate> {
        match &self.queue {
            Queue::Aggregate(aggregate) => Some(aggregate),
            _ => None,
        }
    }

    /// Whether it alone takes the events of what feeds it.
    pub(super) fn captures(&self) -> bool {
        self.aggregate().is_some_and(|aggregate| !aggregate.names)
    }
}

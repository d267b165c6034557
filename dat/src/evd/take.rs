//! Taking events (dat_evd_dequeue, dat_evd_wait).
//!
//! A completion that succeeded is taken by the slot of the queue, under the slot's lock. All else
//! takes the slow path through the table.

use core::time::Duration;

use kernel_agent::{Behind, Completion, Took, TookAny};
use rdma::events::{Refused, Stream, Taken, closed};

use crate::completion::{Completed, ordinary};
use crate::error::{handle, parameter, state};
use crate::event::{DtoStatus, Event, EventData, EventNumber, RmrBindCompletion};
use crate::flags::TIMEOUT_INFINITE;
use crate::handle::{EpHandle, EvdHandle};
use crate::ia::{Ia, Inner};
use crate::objects::entry::Entry;
use crate::objects::evd::{Evd, Origin};
use crate::ret::{Error, ErrorType, Result, Subtype};

/// The most events without a meaning to the consumer that one dequeue drops.
const MOST_DROPPED: usize = 64;
/// The most completions that an upcall discards at once. The upcall runs again only after the queue
/// was empty, so this has to exceed the length of every queue.
const MOST_DISCARDED: usize = 1 << 20;

/// The failure of an [`Ia::evd_wait`].
pub type WaitError = rdma::wait::WaitError<Error>;

impl From<WaitError> for Error {
    fn from(failure: WaitError) -> Error {
        failure.error
    }
}

impl Ia {
    /// Takes the oldest event. Events of one stream come in order; those of different streams need
    /// not.
    ///
    /// Errors: `QueueEmpty`, `InvalidHandle`, `InvalidState` (subtype `InvalidStateEvdWaiter`: a
    /// thread waits on the event dispatcher, and takes the events). Does not block. May be called
    /// in upcalls. Thread-safe. dat_evd_dequeue.
    #[doc(alias = "dat_evd_dequeue")]
    #[inline]
    pub fn evd_dequeue(&self, evd: EvdHandle) -> Result<Event> {
        let (inner, word) = (&self.inner, evd.as_raw());
        match inner.evd_slots.get(word).map(|slot| slot.take_without_immediate(word)) {
            Some(Took::Done(done)) => match ordinary(done) {
                Some(completion) => Ok(completion.event(evd)),
                None => inner.dequeue_completed(evd, Completed::done(done, DtoStatus::Success, None)),
            },
            Some(Took::Nothing) => Err(ErrorType::QueueEmpty.into()),
            Some(Took::Other) | None => inner.dequeue_unusual(evd),
        }
    }

    /// Waits until `threshold` events are queued, and takes the oldest one. Returns the event and
    /// the number of events that are still queued.
    ///
    /// If only some completions notify (the streams of completions have the flag `UNSIGNALLED` or
    /// `SOLICITED_WAIT`), it waits for such a completion instead, and the threshold has to be 1.
    /// `timeout` is in microseconds: 0 only checks once, [`TIMEOUT_INFINITE`](crate::TIMEOUT_INFINITE)
    /// sets no limit. A timeout takes nothing. While a thread waits, no other thread can wait or
    /// dequeue, and the CNO is not triggered.
    ///
    /// Errors: `InvalidHandle`, `InvalidParameter` (a threshold of 0, or more than the queue
    /// holds), `InvalidState` (a threshold above 1 where only some completions notify; subtype
    /// `InvalidStateEvdWaiter`: another thread waits; in an upcall), `Abort` (the IA was closed
    /// meanwhile), `TimeoutExpired`. Blocks for an event. Not for upcalls. Thread-safe.
    /// dat_evd_wait.
    #[doc(alias = "dat_evd_wait")]
    pub fn evd_wait(
        &self,
        evd: EvdHandle,
        timeout: u32,
        threshold: usize,
    ) -> Result<(Event, usize), WaitError> {
        let inner = &self.inner;
        inner.live()?;
        inner.not_in_upcall()?;
        let evd = inner.evd(evd, Subtype::InvalidHandle1)?;
        let wait_for = inner.begin_wait(&evd, threshold)?;
        let waited = inner.wait(&evd, wait_for, timeout);
        inner.end_wait(&evd);
        waited
    }
}

/// What ends a wait.
#[derive(Clone, Copy)]
enum WaitFor {
    /// An event that notifies.
    Notification,
    /// So many events.
    Events(usize),
}

impl Inner {
    #[cold]
    #[inline(never)]
    fn dequeue_completed(&self, evd: EvdHandle, completed: Completed) -> Result<Event> {
        match self.event(evd, completed) {
            Some(event) => Ok(event),
            None => self.dequeue_other(evd),
        }
    }

    /// Whatever the first try left: a completion with immediate data, a failure, an event of
    /// software, any event of a queue with a CNO, a queue whose lock another thread has, and a bad
    /// handle.
    #[cold]
    #[inline(never)]
    fn dequeue_unusual(&self, evd: EvdHandle) -> Result<Event> {
        let word = evd.as_raw();
        let Some(slot) = self.evd_slots.get(word) else { return self.dequeue_other(evd) };
        match slot.take_with_immediate(word) {
            Took::Done((done, immediate)) => {
                if let (Some(receive), Some(immediate)) = (ordinary(done), immediate) {
                    return Ok(receive.arrived(evd, immediate));
                }
                return self.dequeue_completed(evd, Completed::done(done, DtoStatus::Success, immediate));
            }
            Took::Nothing => return Err(ErrorType::QueueEmpty.into()),
            Took::Other => {}
        }
        match slot.take_any(word, closed::CALLBACK, Completed::of) {
            TookAny::Taken { value, behind, closed } => {
                // The upcall is armed when the last event was taken.
                if closed
                    && behind != Behind::Completion
                    && let Some(evd) = self.evds.get(evd)
                {
                    self.after_taking(&evd, false);
                }
                self.dequeue_completed(evd, value)
            }
            TookAny::Nothing | TookAny::Other => self.dequeue_other(evd),
        }
    }

    #[cold]
    #[inline(never)]
    fn dequeue_other(&self, evd: EvdHandle) -> Result<Event> {
        self.live()?;
        let evd = self.evd(evd, Subtype::InvalidHandle1)?;
        if evd.control.lock().waiter {
            return Err(state(Subtype::InvalidStateEvdWaiter));
        }
        for _ in 0..MOST_DROPPED {
            let mut made = None;
            let taken = evd.dispatcher.queue().take(&mut made);
            self.after_taking(&evd, taken.is_none());
            let Some(taken) = taken else { break };
            if let Some(event) = self.taken(&evd, taken, made) {
                return Ok(event);
            }
        }
        Err(ErrorType::QueueEmpty.into())
    }

    /// Takes the completions that the consumer does not want, for their effects.
    pub(super) fn discard(&self, evd: &Evd) {
        for _ in 0..MOST_DISCARDED {
            let mut made = None;
            let taken = evd.dispatcher.queue().take(&mut made);
            self.after_taking(evd, taken.is_none());
            match taken {
                Some(taken) => drop(self.taken(evd, taken, made)),
                None => return,
            }
        }
    }

    /// What was taken means this to the consumer; `None`: nothing. Has the effects of the event.
    fn taken(&self, evd: &Evd, taken: Taken, made: Option<Entry>) -> Option<Event> {
        match taken {
            Taken::Completion(completion) => {
                self.break_by(&completion);
                self.event(evd.handle, Completed::of(&completion))
            }
            Taken::Made => {
                let entry = made?;
                evd.took(entry.stream());
                self.entry(evd.handle, entry)
            }
        }
    }

    /// Breaks the endpoint of a request that failed, before later completions are taken.
    fn break_by(&self, completion: &Completion) {
        if rdma::events::breaks_endpoint(completion) {
            let ep = EpHandle::from_raw(completion.context);
            self.broken(ep, Some(completion.qpn), Origin::Call);
        }
    }

    fn event(&self, evd: EvdHandle, completed: Completed) -> Option<Event> {
        match completed {
            Completed::Ordinary(completion) => Some(completion.event(evd)),
            Completed::Extended(completion, kind, immed) => Some(completion.extended(evd, kind, immed)),
            Completed::Bound { ep, cookie, status } => self.bound(evd, ep, cookie, status),
            Completed::Nothing => None,
        }
    }

    /// The event of a bind.
    #[inline(never)]
    fn bound(&self, evd: EvdHandle, ep: EpHandle, user_cookie: u64, status: DtoStatus) -> Option<Event> {
        let bind = self.eps.get(ep).and_then(|ep| ep.take_bind());
        // The consumer wants no event of a successful bind.
        if status == DtoStatus::Success && bind.is_some_and(|bind| bind.suppressed) {
            return None;
        }
        let exists = |rmr: &crate::RmrHandle| self.rmrs.with(*rmr, |_| ()).is_some();
        let rmr_handle = bind.map(|bind| bind.rmr).filter(exists).unwrap_or_default();
        let bound = RmrBindCompletion { rmr_handle, user_cookie, status };
        let (event_number, event_data) = (EventNumber::RMR_BIND_COMPLETION, EventData::RmrBind(bound));
        Some(Event { event_number, evd_handle: evd, event_data, extension: None })
    }

    /// The event of an entry of software's.
    #[inline(never)]
    fn entry(&self, evd_handle: EvdHandle, entry: Entry) -> Option<Event> {
        let event = |event_number, event_data, extension| {
            Some(Event { event_number, evd_handle, event_data, extension })
        };
        match entry {
            Entry::Arrived(arrived) => self.requested(evd_handle, &arrived),
            Entry::Resolved(answer) => self.resolved(evd_handle, &answer),
            Entry::Connection(made) => {
                event(made.number, EventData::Connection(made.connection), made.extension)
            }
            Entry::Datagrams(made) => {
                // The consumer may have freed the endpoint, and with it the address handle of the
                // event.
                self.eps.with(made.connection.ep_handle, |_| ())?;
                event(made.number, EventData::Connection(made.connection), made.extension)
            }
            Entry::Error(number, error) | Entry::IaError(number, error) => {
                event(number, EventData::AsynchError(error), None)
            }
            Entry::Software(data) => event(EventNumber::SOFTWARE, EventData::Software(data), None),
        }
    }

    /// Keeps other waits, dequeues and the CNO out.
    fn begin_wait(&self, evd: &Evd, threshold: usize) -> Result<WaitFor> {
        if threshold == 0 {
            return Err(parameter(Subtype::InvalidArg3));
        }
        let _changes = evd.changes.lock(self.platform());
        let selects = evd.selects();
        {
            let mut control = evd.control.lock();
            if control.gone {
                return Err(handle(Subtype::InvalidHandle1));
            }
            if control.waiter {
                return Err(state(Subtype::InvalidStateEvdWaiter));
            }
            let wait_for = match (selects, threshold) {
                (true, 1) => WaitFor::Notification,
                (true, _) => return Err(state(Subtype::InvalidStateEvdConfigNotify)),
                (false, _) if threshold <= evd.capacity() => WaitFor::Events(threshold),
                (false, _) => return Err(parameter(Subtype::InvalidArg3)),
            };
            control.waiter = true;
            drop(control);
            evd.dispatcher.set_closed(closed::RESERVED, || true);
            evd.dispatcher.detach();
            Ok(wait_for)
        }
    }

    fn end_wait(&self, evd: &Evd) {
        let due = {
            let _changes = evd.changes.lock(self.platform());
            evd.dispatcher.set_closed(closed::RESERVED, || false);
            evd.control.lock().waiter = false;
            self.reattach(evd)
        };
        if let Some(cno) = due {
            cno.trigger(evd.handle);
        }
    }

    fn wait(&self, evd: &Evd, wait_for: WaitFor, timeout: u32) -> Result<(Event, usize), WaitError> {
        let platform = self.platform();
        let began = platform.now();
        let length = (timeout != TIMEOUT_INFINITE).then(|| Duration::from_micros(timeout.into()));
        let deadline = rdma::wait::deadline(&**platform, length);
        let waiter = evd.dispatcher.enter(false, || true).map_err(not_waited)?;
        let look = |_| loop {
            let mut made = None;
            let Some(taken) = evd.take_if_due(wait_for, &mut made) else {
                return self.adapter.check().err().map(|_| Err(Stopped::Ended));
            };
            if let Some(event) = self.taken(evd, taken, made) {
                return Some(Ok((event, evd.queued())));
            }
        };
        waiter.wait((began, deadline), true, look).map_err(|stopped| match stopped {
            Stopped::Refused(Refused::TimedOut) => {
                WaitError { error: ErrorType::TimeoutExpired.into(), nmore: evd.queued() }
            }
            Stopped::Refused(why) => not_waited(why).into(),
            Stopped::Ended if self.adapter.is_freed() => Error::from(ErrorType::Abort).into(),
            Stopped::Ended => Error::from(ErrorType::InternalError).into(),
        })
    }
}

/// Why a wait has ended without an event.
enum Stopped {
    Refused(Refused),
    /// The IA does not work any more.
    Ended,
}

impl From<Refused> for Stopped {
    fn from(why: Refused) -> Stopped {
        Stopped::Refused(why)
    }
}

fn not_waited(why: Refused) -> Error {
    match why {
        Refused::Gone | Refused::Closed => ErrorType::Abort.into(),
        Refused::TimedOut => ErrorType::TimeoutExpired.into(),
        Refused::Callback | Refused::Waiters | Refused::Elsewhere | Refused::NoNotifier => {
            state(Subtype::InvalidStateEvdWaiter)
        }
    }
}

impl Evd {
    /// Takes the oldest event if what a waiter waits for is there.
    fn take_if_due(&self, wait_for: WaitFor, made: &mut Option<Entry>) -> Option<Taken> {
        let queue = self.dispatcher.queue();
        match wait_for {
            WaitFor::Notification => queue.take_if_notified(self.dispatcher.threshold(), made),
            // A queue that became smaller than what is wanted is due when it is full.
            WaitFor::Events(wanted)
                if wanted == 1 || queue.queued() >= wanted.min(queue.total_capacity()) =>
            {
                queue.take(made)
            }
            WaitFor::Events(_) => None,
        }
    }
}

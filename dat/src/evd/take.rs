//! Taking events (dat_evd_dequeue, dat_evd_wait).

use core::time::Duration;

use privileged_api as it;

use super::Evd;
use super::convert::{Completed, ordinary};
use crate::error::{handle, parameter, state};
use crate::event::Event;
use crate::flags::TIMEOUT_INFINITE;
use crate::handle::EvdHandle;
use crate::ia::{Ia, Inner};
use crate::ret::{Error, ErrorType, Result, Subtype};

/// The most events in a row that a dequeue drops because they mean nothing to the consumer, such as
/// further requests at a reserved service point. The limit is there because peers can send them. A
/// completion that the fast path dropped does not count.
const MOST_DROPPED: usize = 64;

/// The failure of an [`Ia::evd_wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitError {
    /// The reason.
    pub error: Error,
    /// The number of events that are queued. Defined only for `TimeoutExpired`.
    pub nmore: usize,
}

impl core::fmt::Display for WaitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({} events are queued)", self.error, self.nmore)
    }
}

impl core::error::Error for WaitError {}

impl From<WaitError> for Error {
    fn from(failure: WaitError) -> Error {
        failure.error
    }
}

impl From<Error> for WaitError {
    fn from(error: Error) -> WaitError {
        WaitError { error, nmore: 0 }
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
        let inner = &self.inner;
        self.it.evd_take(
            evd.inner(),
            |done| match ordinary(done) {
                Some(completion) => Ok(completion.event(evd)),
                None => inner.dequeue_done(evd, &done.event(evd.inner()), None, done.posted()),
            },
            |taken| match taken {
                it::Taken::Plain(done, immediate) => inner.dequeue_plain(evd, &done, immediate),
                it::Taken::Empty => Err(ErrorType::QueueEmpty.into()),
                it::Taken::Done(done, immediate, posted) => inner.dequeue_done(evd, &done, immediate, posted),
                it::Taken::Other => inner.dequeue_other(evd),
            },
        )
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
        let wait_for = inner.begin(&evd, threshold)?;
        let waited = inner.wait(&evd, wait_for, timeout);
        inner.end(&evd);
        waited
    }
}

impl Inner {
    /// The error of a dequeue that found no event.
    #[cold]
    fn not_taken(&self, error: it::Error) -> Error {
        match error {
            it::Error::InvalidEvd | it::Error::InvalidEvdState => self.no_such_evd(),
            other => other.into(),
        }
    }

    /// The error of a dequeue with a handle that names no event dispatcher, unless the IA has
    /// ended.
    fn no_such_evd(&self) -> Error {
        self.live().err().unwrap_or(handle(Subtype::InvalidHandle1))
    }

    /// As [`Inner::dequeue_done`], in fewer steps for a Receive with immediate data.
    #[cold]
    #[inline(never)]
    fn dequeue_plain(
        &self,
        evd: EvdHandle,
        done: &it::PlainCompletion,
        immediate: Option<it::Immediate>,
    ) -> Result<Event> {
        match (ordinary(*done), immediate) {
            (Some(receive), Some(immediate)) => Ok(receive.arrived(evd, immediate)),
            _ => self.dequeue_done(evd, &done.event(evd.inner()), immediate, done.posted()),
        }
    }

    /// The event of a completion that is not an ordinary one, or the next event if this one means
    /// nothing to the consumer.
    #[cold]
    #[inline(never)]
    fn dequeue_done(
        &self,
        evd: EvdHandle,
        done: &it::DtoCompletion,
        immediate: Option<it::Immediate>,
        posted: it::Posted,
    ) -> Result<Event> {
        match self.completed(done, immediate, posted) {
            Completed::Ordinary(completion) => Ok(completion.event(evd)),
            Completed::Extended(completion, ext_type, immed) => Ok(completion.extended(evd, ext_type, immed)),
            Completed::Bound(bound) => Ok(bound.event(evd)),
            Completed::Nothing => self.dequeue_other(evd),
        }
    }

    /// Takes an event of any kind.
    #[cold]
    #[inline(never)]
    fn dequeue_other(&self, evd: EvdHandle) -> Result<Event> {
        let found = self.evds.get(evd).ok_or_else(|| self.no_such_evd())?;
        if found.control.lock().waiter {
            return Err(state(Subtype::InvalidStateEvdWaiter));
        }
        for _ in 0..MOST_DROPPED {
            let taken = self.it.evd_dequeue_extended(evd.inner()).map_err(|error| self.not_taken(error))?;
            if let Some(event) = self.convert(&found, &taken) {
                return Ok(event);
            }
        }
        Err(ErrorType::QueueEmpty.into())
    }

    /// Begins a wait: from here on no other thread can wait or dequeue.
    fn begin(&self, evd: &Evd, threshold: usize) -> Result<it::WaitFor> {
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
            control.waiter = true;
        }
        let checked = match (selects, threshold) {
            (true, 1) => Ok(it::WaitFor::Notification),
            (true, _) => Err(state(Subtype::InvalidStateEvdConfigNotify)),
            (false, _) => match self.capacity(evd) {
                Ok(most) if threshold <= most => Ok(it::WaitFor::Events(threshold)),
                Ok(_) => Err(parameter(Subtype::InvalidArg3)),
                Err(error) => Err(error),
            },
        };
        if checked.is_err() {
            evd.control.lock().waiter = false;
            return checked;
        }
        self.reserve(evd, true);
        self.begin_wait(evd);
        checked
    }

    /// Sets whether dequeues check for a waiter.
    fn reserve(&self, evd: &Evd, reserved: bool) {
        // Fails only if the IA has ended.
        let _ = self.it.evd_reserve(evd.handle.inner(), reserved);
    }

    fn end(&self, evd: &Evd) {
        let due = {
            let _changes = evd.changes.lock(self.platform());
            self.reserve(evd, false);
            evd.control.lock().waiter = false;
            self.end_wait(evd)
        };
        if let Some(cno) = due {
            cno.trigger(evd.handle);
        }
    }

    fn wait(&self, evd: &Evd, wait_for: it::WaitFor, timeout: u32) -> Result<(Event, usize), WaitError> {
        let platform = self.platform();
        let began = platform.now();
        let whole = Duration::from_micros(timeout.into());
        loop {
            let left = match timeout {
                TIMEOUT_INFINITE => it::TIMEOUT_INFINITE,
                _ => {
                    let passed = platform.now().since(began);
                    whole.saturating_sub(passed).as_micros() as u64
                }
            };
            match self.it.evd_wait_extended(evd.handle.inner(), wait_for, left) {
                Ok((taken, nmore)) => {
                    if let Some(event) = self.convert(evd, &taken) {
                        return Ok((event, nmore));
                    }
                }
                Err(it::WaitError { error, nmore }) => {
                    return Err(WaitError { error: not_waited(error), nmore });
                }
            }
        }
    }
}

/// The error of a wait that returned no event. The event dispatcher was valid when the wait began,
/// so only the end of the IA makes it invalid.
fn not_waited(error: it::Error) -> Error {
    match error {
        it::Error::Abort | it::Error::InvalidEvd | it::Error::InvalidIa => ErrorType::Abort.into(),
        other => other.into(),
    }
}

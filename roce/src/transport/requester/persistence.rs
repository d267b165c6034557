//! How long a requester waits for its peer, and how often it asks again (IBTA vol. 1 sections
//! 9.7.5.2.8 and 9.7.6.1.3).

use core::mem::replace;

use platform::Instant;

use super::{Limits, Status};
use crate::transport::code::rnr_delay;

/// The RNR retry count that means "for ever".
const FOR_EVER: u8 = 7;
/// The end of time, at which no timer fires.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// What a requester waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Nothing,
    /// An answer. If none has come then, the request is repeated.
    Answer(Instant),
    /// This time, before which nothing is sent.
    Pause(Instant),
}

/// How long a requester waits for its peer, and how often it asks again.
///
/// The engine of a peer to which packets go has one, and so has the device for a peer on the short
/// cut, to which no packets go: the rules of both are these.
#[derive(Clone, Copy, Debug)]
pub struct Persistence {
    limits: Limits,
    /// Retries that are left.
    retries: u8,
    rnr_retries: u8,
    wait: Wait,
}

impl Persistence {
    /// A requester that waits for nothing.
    pub const fn new(limits: Limits) -> Persistence {
        let Limits { retry_count: retries, rnr_retry: rnr_retries, .. } = limits;
        Persistence { limits, retries, rnr_retries, wait: Wait::Nothing }
    }

    /// The limits.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Changes the limits. A timer that runs keeps its time; retry counts start again.
    pub const fn set_limits(&mut self, limits: Limits) {
        *self = Persistence { wait: self.wait, ..Persistence::new(limits) };
    }

    /// The peer has carried something out, or a request has ended: it waits for nothing, and
    /// retries are counted anew.
    #[inline]
    pub const fn start_over(&mut self) {
        *self = Persistence::new(self.limits);
    }

    /// Whether it waits for anything.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.wait != Wait::Nothing
    }

    /// When to call [`Persistence::expired`]; never while it waits for ever.
    pub fn timer(&self) -> Option<Instant> {
        match self.wait {
            Wait::Answer(at) | Wait::Pause(at) => Some(at).filter(|at| *at != NEVER),
            Wait::Nothing => None,
        }
    }

    /// The time of [`Persistence::timer`] has come; before that nothing happens. Returns whether no
    /// answer came: then [`Persistence::retry`] says whether to ask again.
    pub fn expired(&mut self, now: Instant) -> bool {
        let over = self.timer().is_some_and(|at| at <= now);
        over && matches!(replace(&mut self.wait, Wait::Nothing), Wait::Answer(_))
    }

    /// Asks again because no answer came, or because something was lost; an error if it has done
    /// so too often.
    pub fn retry(&mut self) -> Result<(), Status> {
        self.retries = self.retries.checked_sub(1).ok_or(Status::RetryExceeded)?;
        Ok(())
    }

    /// Pauses for as long as this RNR NAK timer code says, because the peer had no receive; an
    /// error if that was so too often.
    pub fn not_ready(&mut self, timer: u8, now: Instant) -> Result<(), Status> {
        if self.limits.rnr_retry < FOR_EVER {
            self.rnr_retries = self.rnr_retries.checked_sub(1).ok_or(Status::RnrRetryExceeded)?;
        }
        // The peer answers, so what gets lost from now on is counted anew.
        self.retries = self.limits.retry_count;
        self.pause(now + rnr_delay(timer));
        Ok(())
    }

    /// Sends nothing before this time.
    pub const fn pause(&mut self, until: Instant) {
        self.wait = Wait::Pause(until);
    }

    /// A request was lost, by the short cut: nothing but the timer shows it.
    pub fn lost(&mut self, now: Instant) {
        self.await_answer(now, self.limits.timeout());
    }

    /// Waits for an answer for so many nanoseconds, or for ever.
    #[inline]
    pub(super) fn await_answer(&mut self, now: Instant, wait: Option<u64>) {
        let at = wait.map(|wait| Instant::from_nanos(now.as_nanos().saturating_add(wait)));
        self.wait = Wait::Answer(at.unwrap_or(NEVER));
    }

    /// Whether a timer says how long it waits for an answer.
    #[inline]
    pub(super) fn times_answer(&self) -> bool {
        matches!(self.wait, Wait::Answer(at) if at != NEVER)
    }

    /// Waits for no answer any more, since it is to be asked for again.
    pub(super) const fn ask_again(&mut self) {
        if matches!(self.wait, Wait::Answer(_)) {
            self.wait = Wait::Nothing;
        }
    }

    /// Whether it pauses; a pause that is over ends.
    #[inline]
    pub(super) fn pauses(&mut self, now: Instant) -> bool {
        match self.wait {
            Wait::Pause(until) if now < until => return true,
            Wait::Pause(_) => self.wait = Wait::Nothing,
            _ => {}
        }
        false
    }
}

//! Going back (IBTA vol. 1 sections 9.7.5.1, 9.7.5.2 and 9.7.6.1.3).

use platform::Instant;
use platform::planted::{Bug, planted};

use super::{Received, Requester};
use crate::transport::reason::Reason;

impl Requester {
    /// When to call [`Requester::expired`].
    pub fn timer(&self) -> Option<Instant> {
        self.persistence.timer()
    }

    /// The time of [`Requester::timer`] has come; before that nothing happens. Returns the reason
    /// to count if no acknowledgement came in time.
    pub fn expired(&mut self, now: Instant) -> Option<Reason> {
        if !self.persistence.expired(now) {
            return None;
        }
        if !self.is_failing() {
            self.went_back = false;
            self.reads.timed_out();
            self.window.timed_out(self.frontier);
            self.retry(now);
        }
        Some(Reason::LocalAckTimeoutErr)
    }

    /// Starts again with the oldest PSN that is not acknowledged, because what was to be sent has
    /// not left the device. That counts as no retry, and the timer starts again.
    pub fn restart(&mut self) {
        if !self.is_failing() {
            self.window.ignore();
            self.rewind();
        }
    }

    /// Starts again with the oldest PSN that is not acknowledged, or fails if that was done too
    /// often.
    fn retry(&mut self, now: Instant) {
        match self.persistence.retry() {
            Ok(()) if planted(Bug::RetryForgotten) => {}
            Ok(()) => {
                self.window.repeats(now);
                self.rewind();
            }
            Err(status) => self.fail(status),
        }
    }

    #[cold]
    fn rewind(&mut self) {
        (self.next, self.asked) = (self.una, self.una);
        self.cursor = self.settled;
        self.persistence.ask_again();
    }

    /// Goes back because the responder missed a packet, or an answer of its was lost. It does so
    /// once: reports that were under way meanwhile show the same loss. If what is sent again gets
    /// lost as well, the timeout shows that.
    pub(super) fn go_back(&mut self, reason: Reason, now: Instant) -> Received {
        if self.went_back || self.next == self.una {
            return Received::Dropped(Reason::KnownGap);
        }
        self.went_back = true;
        match reason {
            Reason::ImpliedNakSeqErr => self.reads.lost(),
            _ => self.window.lost(self.frontier),
        }
        self.retry(now);
        Received::Retry(reason)
    }

    /// Waits because the responder had no receive for the oldest packet that is not acknowledged.
    pub(super) fn not_ready(&mut self, timer: u8, now: Instant) -> Received {
        let reason = Reason::RnrNakRetryErr;
        // It waits already, or the packet has not been sent since.
        if self.next == self.una {
            return Received::Dropped(Reason::DuplicateAnswer);
        }
        match self.persistence.not_ready(timer, now) {
            Ok(()) => {
                self.window.ignore();
                self.rewind();
            }
            Err(status) => self.fail(status),
        }
        Received::Retry(reason)
    }

    /// So many PSNs were acknowledged.
    #[inline]
    pub(super) fn advance(&mut self, psns: u32, now: Instant) {
        self.una = self.una.add(psns);
        self.window.reached(self.una, self.frontier, now);
        self.persistence.start_over();
        self.went_back = false;
        self.settle();
        // What was about to be sent again need not be.
        if self.next.offset_from(self.una) > self.in_flight() {
            self.next = self.una;
            self.cursor = self.settled;
        }
        if self.limited.is_some_and(|psn| psn.is_before(self.una)) {
            self.limited = None;
        }
        if self.in_flight() > 0 && !self.is_failing() {
            let wait = match self.awaits() {
                true => self.window.wait(),
                false => self.window.longest_wait(),
            };
            self.persistence.await_answer(now, wait);
        }
        if self.in_flight() == 0 {
            self.idle_since = now;
        }
        if let Some((psn, status)) = self.doom
            && !self.una.is_before(psn)
        {
            self.doom = None;
            if psn == self.una {
                self.fail(status);
            }
        }
    }
}

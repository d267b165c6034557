//! The callback routine of a dispatcher: when it is due, and its phases.
//!
//! | phase | meaning | ends when |
//! |---|---|---|
//! | NotDrained | the routine was attached or has run, and the queue was not yet seen empty | the queue is seen empty: Armed |
//! | Armed | the notification criteria were absent | they are present: Scheduled |
//! | Scheduled | a thread that the face chooses is to run the routine | the thread calls it: Running |
//! | Running | the routine runs | the routine returns: Armed if the queue was seen empty meanwhile, else NotDrained |
//!
//! The routine never runs twice at the same time, and runs without locks.

use super::dispatcher::{Dispatcher, Events};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    NotDrained,
    Armed,
    Scheduled,
    Running,
}

/// A routine that is attached.
pub(super) struct Attached<R> {
    /// The routine; `None` while it runs.
    routine: Option<R>,
    phase: Phase,
    /// The queue was seen empty while the routine ran.
    drained: bool,
    /// The serial number, which no earlier routine of this dispatcher had.
    serial: u64,
}

impl<R> Attached<R> {
    pub(super) fn new(routine: R, serial: u64) -> Attached<R> {
        Attached { routine: Some(routine), phase: Phase::NotDrained, drained: false, serial }
    }
}

impl<Q: Events, R, F> Dispatcher<Q, R, F> {
    /// Whether a callback routine runs now.
    pub fn runs(&self) -> bool {
        self.control.lock().running
    }

    /// Checks, after events may have been taken, whether the queue is drained, and arms the
    /// callback if it is. `empty` says that a dequeue found nothing: for the consumer the queue is
    /// drained then, even if events have arrived since. True if the callback is due at once; the
    /// caller then has a thread call [`Dispatcher::run`].
    pub fn drained(&self, empty: bool) -> bool {
        if !self.has_callback() {
            return false;
        }
        let mut control = self.control.lock();
        let Some(attached) = &mut control.callback else { return false };
        match attached.phase {
            Phase::NotDrained if empty || self.queue().is_empty() => {
                attached.phase = Phase::Armed;
                self.schedule_if_due(attached)
            }
            Phase::Running if empty || self.queue().is_empty() => {
                attached.drained = true;
                false
            }
            _ => false,
        }
    }

    /// Checks the callback after an event was queued or the dispatcher was enabled. True if it is
    /// due.
    pub(super) fn check_callback(&self) -> bool {
        let mut control = self.control.lock();
        control.callback.as_mut().is_some_and(|attached| self.schedule_if_due(attached))
    }

    /// Moves from Armed to Scheduled if the criteria of a notification are present, and arms the
    /// queue if they are not. True if the routine was scheduled.
    fn schedule_if_due(&self, attached: &mut Attached<R>) -> bool {
        let due = attached.phase == Phase::Armed && self.is_enabled() && self.watch();
        if due {
            attached.phase = Phase::Scheduled;
        }
        due
    }

    /// Has `call` run the routine if it is scheduled, and again as long as it became due while it
    /// ran; each time only if `may_begin`.
    pub fn run(&self, may_begin: impl Fn() -> bool, call: impl Fn(&mut R)) {
        while self.run_once(&may_begin, &call) {}
    }

    fn run_once(&self, may_begin: impl Fn() -> bool, call: impl Fn(&mut R)) -> bool {
        let (mut routine, serial) = {
            let mut guard = self.control.lock();
            let control = &mut *guard;
            let Some(attached) = &mut control.callback else { return false };
            if attached.phase != Phase::Scheduled || control.running || !may_begin() {
                return false;
            }
            let Some(routine) = attached.routine.take() else { return false };
            attached.phase = Phase::Running;
            attached.drained = false;
            control.running = true;
            (routine, attached.serial)
        };
        call(&mut routine);
        let mut left_over = None;
        let again = {
            let mut guard = self.control.lock();
            let control = &mut *guard;
            control.running = false;
            match &mut control.callback {
                Some(attached) if attached.serial == serial => {
                    attached.routine = Some(routine);
                    attached.phase = if attached.drained { Phase::Armed } else { Phase::NotDrained };
                    self.schedule_if_due(attached)
                }
                other => {
                    left_over = Some(routine);
                    other.as_ref().is_some_and(|attached| attached.phase == Phase::Scheduled)
                }
            }
        };
        // Drop the routine without the lock, since dropping it runs the consumer's code.
        drop(left_over);
        again
    }
}

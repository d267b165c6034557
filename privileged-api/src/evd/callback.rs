//! Callback routines: when one is due, and who runs it (page it_evd_callback_attach).
//!
//! | phase | meaning | leaves when |
//! |---|---|---|
//! | NotDrained | attached to a queue with events, or ran | the queue was seen empty: Armed |
//! | Armed | the notification criteria were absent | they are present: Scheduled |
//! | Scheduled | somebody is about to run it | it runs: Running |
//! | Running | the routine runs | it returns: Armed if the queue was seen empty meanwhile, else NotDrained |
//!
//! The agent's dispatcher thread runs it where the event came from the NIC, the IA's own dispatcher thread where a
//! call of a consumer made it due: never inside a call of a consumer's.
//!
//! Locks: the dispatcher's control lock, then the queue's. The routine itself runs without any.

use alloc::boxed::Box;

use super::{Evd, Queue};
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};

/// What may be run when an event dispatcher notifies.
///
/// It runs in a dispatcher thread with interrupts on, never twice at once. While it runs, other events of the NIC may have to wait,
/// so it should not wait itself; the calls that the page excludes return [`Error::CallbackContext`](crate::Error::CallbackContext).
#[doc(alias = "it_evd_callback_rtn_t")]
pub type EvdCallback = Box<dyn FnMut(&Ia, EvdHandle) + Send>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    NotDrained,
    Armed,
    Scheduled,
    Running,
}

/// A routine that is attached.
pub(crate) struct Attached {
    /// The routine; not here while it runs.
    routine: Option<EvdCallback>,
    phase: Phase,
    /// While running: the queue was seen empty.
    drained: bool,
    /// Tells it from a routine that was attached before.
    serial: u64,
}

impl Attached {
    pub(crate) fn new(routine: EvdCallback, serial: u64) -> Attached {
        Attached { routine: Some(routine), phase: Phase::NotDrained, drained: false, serial }
    }
}

impl Evd {
    /// Events may have been taken: sees whether the queue is drained, and so whether the callback gets armed.
    /// True if it is due at once; the caller then sees to it that it runs.
    pub(crate) fn drained(&self) -> bool {
        let mut control = self.control.lock();
        let Some(attached) = &mut control.callback else { return false };
        match attached.phase {
            Phase::NotDrained if self.is_empty() => {
                attached.phase = Phase::Armed;
                self.due(attached)
            }
            Phase::Running if self.is_empty() => {
                attached.drained = true;
                false
            }
            _ => false,
        }
    }

    /// An event came, or the dispatcher was enabled. True if the callback is due; the caller then sees to it that it runs.
    pub(crate) fn came(&self) -> bool {
        let mut control = self.control.lock();
        match &mut control.callback {
            Some(attached) => self.due(attached),
            None => false,
        }
    }

    /// Moves Armed to Scheduled if the criteria are present; arms the CQ if not.
    fn due(&self, attached: &mut Attached) -> bool {
        if attached.phase != Phase::Armed || !self.is_enabled() {
            return false;
        }
        if !self.notified() {
            let Queue::Dto(queue) = &self.queue else { return false };
            queue.arm();
            // What came before the CQ was armed is not told.
            if !self.notified() {
                return false;
            }
        }
        attached.phase = Phase::Scheduled;
        true
    }

    /// Runs the routine if it is scheduled, and again if it becomes due meanwhile.
    pub(crate) fn run_callback(&self, ia: &Ia) {
        while self.run_once(ia) {}
    }

    fn run_once(&self, ia: &Ia) -> bool {
        let (mut routine, serial) = {
            let mut guard = self.control.lock();
            let control = &mut *guard;
            let Some(attached) = &mut control.callback else { return false };
            if attached.phase != Phase::Scheduled || control.running || !ia.core().runs_callbacks() {
                return false;
            }
            let Some(routine) = attached.routine.take() else { return false };
            attached.phase = Phase::Running;
            attached.drained = false;
            control.running = true;
            (routine, attached.serial)
        };
        {
            let _inside = ia.core().shared.enter_callback();
            routine(ia, self.handle);
        }
        let mut left_over = None;
        let again = {
            let mut guard = self.control.lock();
            let control = &mut *guard;
            control.running = false;
            match &mut control.callback {
                Some(attached) if attached.serial == serial => {
                    attached.routine = Some(routine);
                    attached.phase = if attached.drained { Phase::Armed } else { Phase::NotDrained };
                    self.due(attached)
                }
                other => {
                    left_over = Some(routine);
                    other.as_ref().is_some_and(|attached| attached.phase == Phase::Scheduled)
                }
            }
        };
        // Dropped without the lock: it may own anything.
        drop(left_over);
        again
    }
}

impl Core {
    /// Wakes who waits and runs or schedules the callback, after an event was queued.
    pub(crate) fn announce(&self, evd: &Evd, origin: Origin<'_>) {
        evd.wake();
        if evd.has_callback() && evd.came() {
            self.due(evd, origin);
        }
    }

    /// Sees to it that a callback that is due runs.
    pub(crate) fn due(&self, evd: &Evd, origin: Origin<'_>) {
        match origin {
            Origin::Dispatcher(ia) => evd.run_callback(ia),
            Origin::Call => self.dispatcher.schedule(evd.handle),
        }
    }
}

/// Who queued an event.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// A dispatcher thread, outside of all locks: callbacks run here and now.
    Dispatcher(&'a Ia),
    /// A consumer's call: callbacks run elsewhere.
    Call,
}

//! A callback routine that is attached to an EVD, and its phases. `callback` has the table.

use alloc::boxed::Box;

use crate::handle::EvdHandle;
use crate::ia::Ia;
use crate::objects::evd::Evd;

/// A routine that runs when an event dispatcher notifies.
///
/// It runs in the agent's dispatcher thread or in the IA's callback thread, with interrupts on, and
/// never twice at the same time. While it runs, other events of the NIC may have to wait, so it
/// should not wait itself. Calls that the page excludes return
/// [`Error::CallbackContext`](crate::Error::CallbackContext).
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
    /// The routine; `None` while it runs.
    pub(crate) routine: Option<EvdCallback>,
    pub(crate) phase: Phase,
    /// The queue was seen empty while the routine ran.
    pub(crate) drained: bool,
    /// The serial number, which no earlier routine of this EVD had.
    pub(crate) serial: u64,
}

impl Attached {
    pub(crate) fn new(routine: EvdCallback, serial: u64) -> Attached {
        Attached { routine: Some(routine), phase: Phase::NotDrained, drained: false, serial }
    }
}

impl Evd {
    /// Checks, after events may have been taken, whether the queue is drained, and arms the
    /// callback if it is. `empty` says that a dequeue returned QueueEmpty: for the consumer the
    /// queue is drained then, even if events have arrived since. True if the callback is due at
    /// once; the caller then calls [`Core::run_or_schedule`].
    pub(crate) fn drained(&self, empty: bool) -> bool {
        let mut control = self.control.lock();
        let Some(attached) = &mut control.callback else { return false };
        match attached.phase {
            Phase::NotDrained if empty || self.is_empty() => {
                attached.phase = Phase::Armed;
                self.schedule_if_due(attached)
            }
            Phase::Running if empty || self.is_empty() => {
                attached.drained = true;
                false
            }
            _ => false,
        }
    }

    /// Checks the callback after an event was queued or the EVD was enabled. True if it is due; the
    /// caller then calls [`Core::run_or_schedule`].
    pub(crate) fn check_callback(&self) -> bool {
        let mut control = self.control.lock();
        match &mut control.callback {
            Some(attached) => self.schedule_if_due(attached),
            None => false,
        }
    }

    /// Moves from Armed to Scheduled if the notification criteria are present, and arms the EVD if
    /// they are not. True if the routine was scheduled.
    pub(crate) fn schedule_if_due(&self, attached: &mut Attached) -> bool {
        if attached.phase != Phase::Armed || !self.is_enabled() {
            return false;
        }
        if !self.watch() {
            return false;
        }
        attached.phase = Phase::Scheduled;
        true
    }

    /// Runs the routine if it is scheduled, and again as long as it became due while it ran.
    pub(crate) fn run_callback(&self, ia: &Ia) {
        while self.run_once(ia) {}
    }

    pub(crate) fn run_once(&self, ia: &Ia) -> bool {
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
            let _inside = ia.core().shared.callbacks.enter();
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

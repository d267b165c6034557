//! Upcalls of event dispatchers: they trigger the CNO, or take completions that the consumer does
//! not want.
//!
//! The routine that triggers is attached while the event dispatcher has a CNO and no thread waits
//! on it: a waiter takes the events itself, and the CNO is not triggered during the wait. The
//! caller of each function about the CNO holds `changes`.
//!
//! The agent's dispatcher thread runs the routine if an event of the NIC made it due, and the IA's
//! callback thread if a consumer's call did. It never runs inside a consumer's call.

use alloc::sync::Arc;
use core::time::Duration;

use platform::Signal;
use platform::sync::atomic::Ordering;

use super::create::Left;
use crate::ia::Inner;
use crate::objects::cno::Cno;
use crate::objects::evd::{Evd, Origin, Routine};
use crate::ret::Result;

impl Inner {
    /// Called after an event was queued: wakes the waiter, and runs or schedules the upcall if it
    /// is due.
    pub(crate) fn announce(&self, evd: &Evd, origin: Origin) {
        evd.dispatcher.announce(|| self.run_or_schedule(evd, origin));
    }

    /// Called after events may have been taken. `empty`: none was found.
    pub(super) fn after_taking(&self, evd: &Evd, empty: bool) {
        if evd.dispatcher.drained(empty) {
            self.run_or_schedule(evd, Origin::Call);
        }
    }

    fn run_or_schedule(&self, evd: &Evd, origin: Origin) {
        match origin {
            Origin::Upcall => self.run(evd),
            Origin::Call => self.adapter.schedule(evd.place()),
        }
    }

    /// Runs the upcall if it is scheduled, and again as long as it became due while it ran.
    pub(crate) fn run(&self, evd: &Evd) {
        evd.dispatcher.run(
            || self.makes_upcalls(),
            |routine| {
                let _inside = self.interfaces.callbacks().enter();
                match routine {
                    Routine::Trigger(cno) => cno.trigger(evd.handle),
                    Routine::Discard => self.discard(evd),
                }
            },
        );
    }

    /// Sets the CNO. Returns it if it is to be triggered for events that are queued already.
    pub(super) fn set_cno(&self, evd: &Evd, cno: Option<Arc<Cno>>) -> Result<Option<Arc<Cno>>> {
        if let Some(cno) = &cno {
            cno.join(evd.handle)?;
        }
        let (waits, former) = {
            let mut control = evd.control.lock();
            (control.waiter, core::mem::replace(&mut control.cno, cno.clone()))
        };
        if let Some(former) = former {
            // An upcall that runs already finds that the event dispatcher has left the CNO.
            evd.dispatcher.detach();
            former.leave(evd.handle);
        }
        match cno {
            Some(cno) if !waits => Ok(self.attach(evd, cno)),
            _ => Ok(None),
        }
    }

    /// Attaches the upcall that triggers a CNO. Returns the CNO if events are queued already.
    fn attach(&self, evd: &Evd, cno: Arc<Cno>) -> Option<Arc<Cno>> {
        // Fails only if the event dispatcher has ended with the IA.
        evd.dispatcher.attach(Routine::Trigger(cno.clone())).ok()?;
        self.after_taking(evd, false);
        (evd.queued() > 0).then_some(cno)
    }

    /// Attaches the upcall again that was detached for a wait. Returns the CNO if it is to be
    /// triggered.
    pub(super) fn reattach(&self, evd: &Evd) -> Option<Arc<Cno>> {
        let cno = evd.control.lock().cno.clone()?;
        self.attach(evd, cno)
    }

    /// Closes an event dispatcher that nothing uses and no thread waits on. Fails while an upcall
    /// runs an agent, or takes the call's own thread; then the result has the CNO if it is to be
    /// triggered.
    pub(super) fn close_evd(&self, evd: &Evd) -> core::result::Result<Left, Option<Arc<Cno>>> {
        let cno = evd.control.lock().cno.clone();
        // Once the routine is detached no upcall begins.
        evd.dispatcher.detach();
        let close = || evd.dispatcher.close(|runs| if runs { Err(()) } else { Ok(()) }, |_| ());
        let mut closed = close();
        if closed.is_err() && self.only_triggers(evd, cno.as_deref()) {
            let signal = Signal::new(self.platform().clone());
            while closed.is_err() {
                // No thread raises this signal: the wait ends by its timeout.
                signal.wait(signal.value(), Some(self.platform().now() + PAUSE));
                closed = close();
            }
        }
        closed.map_err(|()| cno.and_then(|cno| self.attach(evd, cno)))
    }

    /// Whether the upcall that runs is about to end: it triggers a CNO without an agent. No agent
    /// begins for the event dispatcher any more then.
    fn only_triggers(&self, evd: &Evd, cno: Option<&Cno>) -> bool {
        !self.interfaces.callbacks().contains_this_thread()
            && match cno {
                Some(cno) => cno.leave_unless_busy(evd),
                None => evd.agents.load(Ordering::Acquire) == 0,
            }
    }
}

/// How long a call that frees an event dispatcher waits for an upcall that is about to end before
/// it looks again.
const PAUSE: Duration = Duration::from_micros(50);

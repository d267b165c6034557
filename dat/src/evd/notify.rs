//! Triggering the CNO of an event dispatcher, by a callback of the other face.
//!
//! The callback is attached while the event dispatcher has a CNO and no thread waits on it: a
//! waiter takes the events itself, and the CNO is not triggered meanwhile. All functions here run
//! with `changes` held.

use alloc::boxed::Box;
use alloc::sync::Arc;

use privileged_api as it;

use super::Evd;
use crate::cno::Cno;
use crate::error::state;
use crate::ia::Inner;
use crate::ret::{Result, Subtype};

impl Inner {
    /// Replaces the CNO. Returns it if events are queued: the caller then triggers it, without
    /// `changes`, since that may run the consumer's agent.
    pub(super) fn set_cno(&self, evd: &Evd, cno: Option<Arc<Cno>>) -> Result<Option<Arc<Cno>>> {
        if let Some(cno) = &cno {
            platform::heap::room(CALLBACK)?;
            cno.join()?;
        }
        let waits = evd.control.lock().waiter;
        let former = evd.control.lock().cno.clone();
        if former.is_some() && !waits {
            self.detach().inspect_err(|_| {
                if let Some(cno) = &cno {
                    cno.leave(evd.handle);
                }
            })?;
            let _ = self.it.evd_callback_detach(evd.handle.inner());
        }
        if let Some(former) = former {
            former.leave(evd.handle);
        }
        evd.control.lock().cno = cno.clone();
        match cno {
            Some(cno) if !waits => self.attach(evd, cno),
            _ => Ok(None),
        }
    }

    /// Removes the CNO of an event dispatcher that is being freed. Fails while an upcall for it
    /// runs.
    pub(super) fn detach_cno(&self, evd: &Evd) -> Result<()> {
        self.set_cno(evd, None).map(drop)
    }

    /// Fails in an upcall: the callback that runs may be the one to be detached.
    fn detach(&self) -> Result<()> {
        if self.it.in_callback() { Err(state(Subtype::InvalidStateEvdInUse)) } else { Ok(()) }
    }

    /// Attaches the callback. Returns the CNO if events are queued: the callback reports only those
    /// that come after the queue was empty.
    fn attach(&self, evd: &Evd, cno: Arc<Cno>) -> Result<Option<Arc<Cno>>> {
        let handle = evd.handle;
        let trigger = cno.clone();
        let routine = Box::new(move |_: &it::Ia, _| trigger.trigger(handle));
        self.it.evd_callback_attach(handle.inner(), routine)?;
        Ok((self.it.evd_queued(handle.inner())? > 0).then_some(cno))
    }

    /// Takes the callback away for the time of a wait.
    pub(super) fn begin_wait(&self, evd: &Evd) {
        if evd.control.lock().cno.is_some() {
            // Fails only if the IA has ended.
            let _ = self.it.evd_callback_detach(evd.handle.inner());
        }
    }

    /// Attaches it again. Returns the CNO if it has to be triggered.
    pub(super) fn end_wait(&self, evd: &Evd) -> Option<Arc<Cno>> {
        let cno = evd.control.lock().cno.clone()?;
        // Fails only if the IA has ended.
        self.attach(evd, cno).ok().flatten()
    }
}

/// More than the routine takes.
const CALLBACK: usize = 64;

//! The end of an event dispatcher (page it_evd_free).

use core::sync::atomic::Ordering;

use super::{Evd, Queue};
use crate::gates::bar;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

impl Evd {
    /// Gives the NIC's queue back.
    pub(super) fn destroy_queue(&self) {
        if let Queue::Dto(queue) = &self.queue {
            // Nothing uses it any more, so this can only fail with the device, and then the CQ is gone, too.
            let _ = queue.cq().destroy();
        }
    }
}

impl Core {
    /// Frees a dispatcher that was marked as going.
    pub(crate) fn bury_evd(&self, evd: &Evd) {
        if let Some((place, _)) = self.singleton(evd.stream) {
            let _ = place.compare_exchange(evd.handle.as_raw(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        // Its aggregate does not name it any more when its handle is invalid.
        let (callback, feed, notifier) = {
            let mut control = evd.control.lock();
            control.gone = true;
            evd.bar(bar::FREED, || true);
            (control.callback.take(), evd.part(&mut control), control.notifier.take())
        };
        let removed = self.evds.invalidate(evd.handle.as_raw()).is_some();
        evd.callback_attached.store(false, Ordering::Release);
        evd.linked.store(false, Ordering::Release);
        drop((callback, feed));
        if let Some(aggregate) = evd.aggregate() {
            // There are some only if the IA goes.
            aggregate.dismiss();
        }
        evd.wake();
        if let Some(notifier) = notifier {
            notifier.wake();
        }
        evd.destroy_queue();
        // Only now is its gate free.
        if removed {
            self.evds.release(evd.handle.as_raw());
        }
    }
}

impl Ia {
    /// Destroys an event dispatcher; events that are queued are lost, waiters return [`Error::Abort`]. A simple one leaves its aggregate, which
    /// does not name it any more.
    ///
    /// Errors: `InvalidEvd`; `InvalidEvdState` while its callback runs; `EvdBusy` while anything feeds it (an aggregate: while a
    /// simple dispatcher does);
    /// `InvalidIa`; `IaCatastrophe`. Blocks for the device (completions). May be called in a callback of another dispatcher.
    /// Thread-safe: a call that races with it succeeds or finds the handle invalid. Page it_evd_free.
    #[doc(alias = "it_evd_free")]
    pub fn evd_free(&self, evd: EvdHandle) -> Result<()> {
        let core = self.call()?;
        let evd = core.evd(evd)?;
        if Core::callback_runs(&evd) {
            return Err(Error::InvalidEvdState);
        }
        if !evd.feeds.retire() {
            return Err(if evd.feeds.in_use() { Error::EvdBusy } else { Error::InvalidEvd });
        }
        // A callback may have begun meanwhile.
        if Core::callback_runs(&evd) {
            evd.feeds.revive();
            return Err(Error::InvalidEvdState);
        }
        core.bury_evd(&evd);
        Ok(())
    }
}

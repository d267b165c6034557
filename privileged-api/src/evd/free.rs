//! The end of an event dispatcher (page it_evd_free).

use core::sync::atomic::Ordering;

use platform::use_count::NotClosed;

use super::callback::Attached;
use super::notification::Notifier;
use super::{Control, Evd, Feed, Queue};
use crate::closed;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

impl Evd {
    /// Destroys the NIC's queue.
    pub(super) fn destroy_queue(&self) {
        if let Queue::Dto(queue) = &self.queue {
            // Nothing uses it any more, so this can only fail with the device, and then the CQ is
            // gone, too.
            let _ = queue.cq().destroy();
        }
    }
}

/// What an event dispatcher has to drop when it is freed: without its control lock, as it may own
/// anything.
struct Remains {
    callback: Option<Attached>,
    feed: Option<Feed>,
    notifier: Option<Notifier>,
}

impl Evd {
    /// Ends all that the control lock guards: no callback begins, nothing can be attached, and its
    /// aggregate does not name it any more.
    fn close(&self, control: &mut Control) -> Remains {
        control.gone = true;
        self.set_closed(closed::FREED, || true);
        Remains {
            callback: control.callback.take(),
            feed: self.leave_aggregate(control),
            notifier: control.notifier.take(),
        }
    }

    /// Shuts the EVD unless it is used. One critical section decides that: a callback that
    /// has not begun cannot begin afterwards, and a refused call leaves nothing that others could
    /// see.
    fn close_unless_used(&self) -> Result<Remains> {
        let mut control = self.control.lock();
        if control.running {
            return Err(Error::InvalidEvdState);
        }
        self.feeds.close().map_err(|reason| match reason {
            NotClosed::InUse => Error::EvdBusy,
            NotClosed::AlreadyClosed => Error::InvalidEvd,
        })?;
        Ok(self.close(&mut control))
    }
}

impl Core {
    /// Frees an EVD, whether it is used or not.
    pub(crate) fn free_evd(&self, evd: &Evd) {
        let remains = evd.close(&mut evd.control.lock());
        self.free_closed_evd(evd, remains);
    }

    fn free_closed_evd(&self, evd: &Evd, remains: Remains) {
        if let Some((place, _)) = self.singleton(evd.stream) {
            let _ = place.compare_exchange(evd.handle.as_raw(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        let removed = self.evds.invalidate(evd.handle.as_raw()).is_some();
        evd.callback_attached.store(false, Ordering::Release);
        evd.linked.store(false, Ordering::Release);
        let Remains { callback, feed, notifier } = remains;
        drop((callback, feed));
        if let Some(aggregate) = evd.aggregate() {
            // It has seats only if the IA is being freed.
            aggregate.remove_all();
        }
        evd.wake();
        if let Some(notifier) = notifier {
            notifier.wake();
        }
        evd.destroy_queue();
        // Only now is its slot empty.
        if removed {
            self.evds.release(evd.handle.as_raw());
        }
    }
}

impl Ia {
    /// Destroys an event dispatcher; events that are queued are lost, waiters return
    /// [`Error::Abort`]. A simple one leaves its aggregate, which does not name it any more.
    ///
    /// Errors: `InvalidEvd`; `InvalidEvdState` while its callback runs; `EvdBusy` while anything
    /// feeds it (an aggregate: while a simple dispatcher does); `InvalidIa`; `IaCatastrophe`.
    /// Blocks for the device (completions). May be called in a callback of another dispatcher.
    /// Thread-safe: a call that races with it succeeds or finds the handle invalid. Page
    /// it_evd_free.
    #[doc(alias = "it_evd_free")]
    pub fn evd_free(&self, evd: EvdHandle) -> Result<()> {
        let core = self.call()?;
        let evd = core.evd(evd)?;
        let remains = evd.close_unless_used()?;
        core.free_closed_evd(&evd, remains);
        Ok(())
    }
}

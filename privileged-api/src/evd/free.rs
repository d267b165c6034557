//! Freeing an event dispatcher (page it_evd_free).

use platform::use_count::NotClosed;
use rdma::events::EventQueue;

use crate::evd::attached::EvdCallback;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::objects::evd::{Evd, Feed};
use crate::status::{Error, Result};

type Remains = rdma::events::Remains<EvdCallback, Feed>;

impl Evd {
    /// Destroys the NIC's queue.
    pub(super) fn destroy_queue(&self) {
        if let Some(queue) = self.completions() {
            // Nothing uses the CQ, so this fails only if the device is dead, and then the CQ is
            // destroyed with the device.
            let _ = queue.source().destroy();
        }
    }

    /// Closes the EVD, unless `may` refuses, which is told whether its callback runs. From then on
    /// no callback begins, nothing can be attached, and its aggregate returns no notification of
    /// it.
    fn close(&self, may: impl FnOnce(bool) -> Result<()>) -> Result<Remains> {
        self.dispatcher.close(may, |feed| feed.forget(self))
    }

    /// Closes the EVD unless its callback runs or an object feeds it.
    fn close_unless_used(&self) -> Result<Remains> {
        self.close(|callback_runs| {
            if callback_runs {
                return Err(Error::InvalidEvdState);
            }
            self.feeds.close().map_err(|reason| match reason {
                NotClosed::InUse => Error::EvdBusy,
                NotClosed::AlreadyClosed => Error::InvalidEvd,
            })
        })
    }
}

impl Core {
    /// Frees an EVD, whether it is used or not.
    pub(crate) fn free_evd(&self, evd: &Evd) {
        if let Ok(remains) = evd.close(|_| Ok(())) {
            self.free_closed_evd(evd, remains);
        }
    }

    /// Frees an EVD that [`Evd::close`] has closed.
    fn free_closed_evd(&self, evd: &Evd, remains: Remains) {
        self.release_singletons(evd.handle);
        let removed = self.evds.invalidate(evd.handle).is_some();
        if let Some(aggregate) = evd.aggregate() {
            // EVDs still feed it only if the whole IA is being freed.
            aggregate.remove_all();
        }
        evd.end(remains);
        evd.destroy_queue();
        if let Some(made) = evd.queue().simple().and_then(EventQueue::made) {
            // The events are lost (it_evd_free), and with them the requests that they report.
            self.lose_requests(core::iter::from_fn(|| made.pop()));
        }
        // The index can be reused only after the CQ was destroyed, which empties its slot.
        if removed {
            self.evds.release(evd.handle);
        }
    }
}

impl Ia {
    /// Frees an event dispatcher. Queued events are lost, and waiters return [`Error::Abort`]. A
    /// simple event dispatcher no longer feeds its aggregate, which returns no notification of it.
    ///
    /// Errors: `InvalidEvd`; `InvalidEvdState` while its callback runs; `EvdBusy` while an object
    /// feeds it (for an aggregate: a simple event dispatcher); `InvalidIa`; `IaCatastrophe`. Blocks
    /// for the device (completions). May be called in a callback of another event dispatcher.
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

//! Callback routines: which thread runs one that is due (pages it_evd_callback_attach,
//! it_evd_callback_detach). When it is due is the dispatcher's matter ([`rdma::events`]).
//!
//! The agent's dispatcher thread runs the routine if an event of the NIC made it due. The IA's
//! callback thread runs it if a consumer's call made it due. It never runs inside a consumer's
//! call.

use rdma::events::Refused;

use crate::evd::attached::EvdCallback;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::objects::evd::Evd;
use crate::status::{Error, Result};

impl Core {
    /// Called after an event was queued: wakes the waiters, runs or schedules the callback if it is
    /// due, and notifies the aggregate or the notification object of the EVD.
    pub(crate) fn announce(&self, evd: &Evd, origin: Origin<'_>) {
        if evd.dispatcher.announce(|| self.run_or_schedule(evd, origin))
            && let Some(aevd) = evd.feed(|feed| feed.shared().clone())
            && let Some(aggregate) = aevd.aggregate()
        {
            aggregate.notified_by(evd);
            // An aggregate feeds no other EVD, so the recursion ends here.
            self.announce(&aevd, origin);
        }
    }

    /// Runs a callback that is due, or hands it to the callback thread.
    pub(crate) fn run_or_schedule(&self, evd: &Evd, origin: Origin<'_>) {
        match origin {
            Origin::Upcall(ia) => evd.run_callback(ia),
            Origin::Call => self.adapter.schedule(evd.place()),
        }
    }
}

/// Where an event was queued.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// In an upcall of the agent, whose thread holds no locks: it runs callbacks itself.
    Upcall(&'a Ia),
    /// In a consumer's call: the IA's callback thread runs callbacks.
    Call,
}

impl Ia {
    /// Attaches a callback routine to an event dispatcher, which runs it when it notifies. A queue
    /// that is empty now counts as drained.
    ///
    /// The routine runs once when the notification criteria become present, and not again until all
    /// events have been taken.
    ///
    /// An aggregate counts as drained when a dequeue would find nothing: with
    /// [`DEQUEUE_NOTIFICATIONS`](crate::EvdFlags::DEQUEUE_NOTIFICATIONS) when none of its event
    /// dispatchers notifies, and without that flag when all of them are empty.
    ///
    /// Errors, in this order: `InvalidEvd`, `NoPermission` (the consumer is not privileged),
    /// `CallbackExists`, `EvdWait`, `InvalidEvdState` (the event dispatcher feeds an aggregate or
    /// has a notification object); also `InvalidIa`, `IaCatastrophe`. Blocks only for a
    /// modification in progress. May be called in callbacks. Thread-safe. Page
    /// it_evd_callback_attach.
    #[doc(alias = "it_evd_callback_attach")]
    pub fn evd_callback_attach(&self, evd: EvdHandle, callback: EvdCallback) -> Result<()> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        core.privileged()?;
        {
            // evd_modify checks that no callback is attached before it links the EVD to an
            // aggregate. It holds `changes` meanwhile, so no callback can be attached in between.
            let _changes = evd.changes.lock(&core.shared.platform);
            evd.attach(callback).map_err(|why| match why {
                Refused::Waiters => Error::EvdWait,
                other => other.into(),
            })?;
        }
        core.after_taking(&evd, false);
        Ok(())
    }

    /// Detaches the callback routine. Does not wait until a routine that runs now returns. The
    /// routine itself may make this call.
    ///
    /// Errors: `InvalidEvd`, `NoPermission`, `InvalidEvdState` (none is attached), `InvalidIa`,
    /// `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe. Page
    /// it_evd_callback_detach.
    #[doc(alias = "it_evd_callback_detach")]
    pub fn evd_callback_detach(&self, evd: EvdHandle) -> Result<()> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        core.privileged()?;
        if evd.detach() { Ok(()) } else { Err(Error::InvalidEvdState) }
    }
}

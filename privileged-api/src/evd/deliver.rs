//! Events that software makes: how they are queued, and what happens if there is no room (pages
//! it_evd_create, it_evd_post_se, it_affiliated_event_t, it_unaffiliated_event_t).

use core::sync::atomic::Ordering;

use super::callback::Origin;
use super::queue::SoftQueue;
use super::{Evd, Queue};
use crate::event::{AffiliatedCause, Event, EventType};
use crate::flags::EvdFlags;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

/// What an overflow does.
#[derive(Clone, Copy)]
pub(super) struct OverflowPolicy {
    /// An event reports it.
    pub(super) notify: bool,
    /// It ends when there is room in the queue.
    pub(super) auto_reset: bool,
}

/// The policy that the flags ask for, or the default of the stream's page.
pub(super) fn policy(stream: EventType, flags: EvdFlags) -> Result<OverflowPolicy> {
    let default = flags.contains(EvdFlags::OVERFLOW_DEFAULT);
    let notify = flags.contains(EvdFlags::OVERFLOW_NOTIFY);
    let auto_reset = flags.contains(EvdFlags::OVERFLOW_AUTO_RESET);
    let dto = stream == EventType::DTO_EVENT_STREAM;
    if default && (notify || auto_reset)
        || auto_reset && (!notify || dto)
        || notify && stream == EventType::ASYNC_UNAFF_EVENT_STREAM
    {
        return Err(Error::InvalidFlags);
    }
    if !default {
        return Ok(OverflowPolicy { notify, auto_reset });
    }
    Ok(match stream {
        EventType::DTO_EVENT_STREAM => OverflowPolicy { notify: true, auto_reset: false },
        EventType::CM_MSG_EVENT_STREAM | EventType::ASYNC_AFF_EVENT_STREAM => {
            OverflowPolicy { notify: true, auto_reset: true }
        }
        _ => OverflowPolicy { notify: false, auto_reset: false },
    })
}

impl Evd {
    /// Takes the oldest event of a software queue.
    pub(super) fn take_soft(&self, queue: &SoftQueue) -> Option<Event> {
        let event = queue.pop()?;
        if self.policy.auto_reset {
            self.overflowed.store(false, Ordering::Release);
        }
        Some(event)
    }
}

impl Core {
    /// Queues an event that software made. An overflow is handled by the EVD's policy.
    pub(crate) fn deliver(&self, evd: &Evd, event: Event, origin: Origin<'_>) {
        if evd.push(event) {
            self.announce(evd, origin);
        } else {
            self.overflow(evd, origin);
        }
    }

    /// Handles an event for which an EVD had no room.
    pub(crate) fn overflow(&self, evd: &Evd, origin: Origin<'_>) {
        // The unaffiliated stream loses events silently (it_unaffiliated_event_t).
        if evd.stream == EventType::ASYNC_UNAFF_EVENT_STREAM {
            return;
        }
        let before = evd.overflowed.swap(true, Ordering::AcqRel);
        if before || !evd.policy.notify {
            return;
        }
        if evd.stream == EventType::ASYNC_AFF_EVENT_STREAM {
            self.report_unaffiliated(EventType::ASYNC_UNAFF_SEVD_ENQUEUE_FAILURE, origin);
        } else {
            let cause = AffiliatedCause::Sevd(evd.handle);
            self.report_affiliated(EventType::ASYNC_AFF_SEVD_ENQUEUE_FAILURE, cause, origin);
        }
    }

    /// Queues an affiliated event, if there is an EVD for them.
    pub(crate) fn report_affiliated(
        &self,
        event_number: EventType,
        cause: AffiliatedCause,
        origin: Origin<'_>,
    ) {
        if let Some(evd) = self.evds.get(self.affiliated.load(Ordering::Acquire)) {
            self.deliver(&evd, Event::Affiliated { event_number, evd: evd.handle, cause }, origin);
        }
    }

    /// Queues an unaffiliated event, if there is an EVD for them.
    pub(crate) fn report_unaffiliated(&self, event_number: EventType, origin: Origin<'_>) {
        if let Some(evd) = self.evds.get(self.unaffiliated.load(Ordering::Acquire)) {
            let (ia, spigot_id) = (self.handle, crate::ia::SPIGOT);
            let event = Event::Unaffiliated { event_number, evd: evd.handle, ia, spigot_id };
            self.deliver(&evd, event, origin);
        }
    }
}

impl Ia {
    /// Posts a software event; `data` comes back in it.
    ///
    /// Errors: `EvdQueueFull`, `InvalidEvd`, `InvalidSoftEvd`, `InvalidIa`, `IaCatastrophe`. Does
    /// not block. May be called in callbacks. Thread-safe. Page it_evd_post_se.
    #[doc(alias = "it_evd_post_se")]
    pub fn evd_post_se(&self, evd: EvdHandle, data: usize) -> Result<()> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        match &evd.queue {
            Queue::Soft(queue) if evd.stream == EventType::SOFTWARE_EVENT_STREAM => {
                if !queue.push(Event::Software { evd: evd.handle, data }) {
                    return Err(Error::EvdQueueFull);
                }
            }
            _ => return Err(Error::InvalidSoftEvd),
        }
        core.announce(&evd, Origin::Call);
        Ok(())
    }
}

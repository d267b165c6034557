//! Events that software makes: how they are queued, and what happens if the queue is full (pages
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

/// The effects of an overflow of an EVD's queue.
#[derive(Clone, Copy)]
pub(super) struct OverflowPolicy {
    /// An asynchronous event reports the overflow.
    pub(super) notify: bool,
    /// The overflowed state ends when an event is taken or the queue is resized.
    pub(super) auto_reset: bool,
}

/// The policy that the flags specify, or the default for the stream (it_evd_create). Fails with
/// `InvalidFlags` if the flags contradict each other or the stream does not allow them.
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
    /// Takes the oldest event of a queue of software events.
    pub(super) fn take_soft(&self, queue: &SoftQueue) -> Option<Event> {
        let event = queue.pop()?;
        if self.policy.auto_reset {
            self.overflowed.store(false, Ordering::Release);
        }
        Some(event)
    }
}

impl Core {
    /// Queues an event that software made. If the queue is full, applies the EVD's overflow policy.
    pub(crate) fn deliver(&self, evd: &Evd, event: Event, origin: Origin<'_>) {
        if evd.push(event) {
            self.announce(evd, origin);
        } else {
            self.overflow(evd, origin);
        }
    }

    /// Applies the EVD's overflow policy after an event that did not fit in its queue.
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

    /// Queues an affiliated event, if the IA has an EVD for affiliated events.
    pub(crate) fn report_affiliated(
        &self,
        event_number: EventType,
        cause: AffiliatedCause,
        origin: Origin<'_>,
    ) {
        if let Some(evd) = self.evds.get(EvdHandle::from_raw(self.affiliated.load(Ordering::Acquire))) {
            self.deliver(&evd, Event::Affiliated { event_number, evd: evd.handle, cause }, origin);
        }
    }

    /// Queues an unaffiliated event, if the IA has an EVD for unaffiliated events.
    pub(crate) fn report_unaffiliated(&self, event_number: EventType, origin: Origin<'_>) {
        if let Some(evd) = self.evds.get(EvdHandle::from_raw(self.unaffiliated.load(Ordering::Acquire))) {
            let (ia, spigot_id) = (self.handle, crate::ia::SPIGOT);
            let event = Event::Unaffiliated { event_number, evd: evd.handle, ia, spigot_id };
            self.deliver(&evd, event, origin);
        }
    }
}

impl Ia {
    /// Posts a software event. The event carries `data`.
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

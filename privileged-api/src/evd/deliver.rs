//! Events that software makes: how they are queued, and what happens if the queue is full (pages
//! it_evd_create, it_evd_post_se, it_affiliated_event_t, it_unaffiliated_event_t).

use core::sync::atomic::Ordering;

use super::EventStreams;
use super::callback::Origin;
use crate::event::{AffiliatedCause, Event, EventType};
use crate::flags::EvdFlags;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::objects::evd::{Evd, OverflowPolicy};
use crate::status::{Error, Result};

/// The policy that the flags specify, or the default for the stream (it_evd_create). Fails with
/// `InvalidFlags` if the flags contradict each other or the stream does not allow them.
pub(super) fn policy(streams: EventStreams, flags: EvdFlags) -> Result<OverflowPolicy> {
    let default = flags.contains(EvdFlags::OVERFLOW_DEFAULT);
    let notify = flags.contains(EvdFlags::OVERFLOW_NOTIFY);
    let auto_reset = flags.contains(EvdFlags::OVERFLOW_AUTO_RESET);
    if default && (notify || auto_reset)
        || auto_reset && (!notify || streams.contains(EventStreams::COMPLETIONS))
        || notify && streams.contains(EventStreams::UNAFFILIATED)
    {
        return Err(Error::InvalidFlags);
    }
    let set = |of: EventStreams, wanted: bool| if wanted { of } else { EventStreams::empty() };
    Ok(match default {
        true => OverflowPolicy {
            notify: streams & (EventStreams::COMPLETIONS | RESET_BY_DEFAULT),
            auto_reset: streams & RESET_BY_DEFAULT,
        },
        false => OverflowPolicy { notify: set(streams, notify), auto_reset: set(streams, auto_reset) },
    })
}

/// The streams whose overflowed state ends by itself if the flags are the default.
const RESET_BY_DEFAULT: EventStreams = EventStreams::MESSAGES.union(EventStreams::AFFILIATED);

impl Evd {
    /// Ends the overflowed state of the stream of an event that was taken, if that is its policy.
    #[inline(never)]
    pub(super) fn after_soft(&self, event: &Event) {
        let reset = self.policy.auto_reset & EventStreams::of_event(event);
        if !reset.is_empty() {
            self.clear_overflow(reset);
        }
    }
}

impl Core {
    /// Queues an event that software made. If the queue is full, applies the EVD's overflow policy.
    pub(crate) fn deliver(&self, evd: &Evd, event: Event, origin: Origin<'_>) {
        let stream = EventStreams::of_event(&event);
        if evd.push(event) {
            self.announce(evd, origin);
        } else {
            self.overflow(evd, stream, origin);
        }
    }

    /// Applies the EVD's overflow policy after an event of this stream that did not fit in its
    /// queue.
    pub(crate) fn overflow(&self, evd: &Evd, stream: EventStreams, origin: Origin<'_>) {
        // The unaffiliated stream loses events silently (it_unaffiliated_event_t).
        if stream == EventStreams::UNAFFILIATED {
            return;
        }
        let before = evd.overflowed.fetch_or(stream.bits(), Ordering::AcqRel);
        if before & stream.bits() != 0 || !evd.policy.notify.contains(stream) {
            return;
        }
        if stream == EventStreams::AFFILIATED {
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
        self.post_software(evd, EventStreams::SOFTWARE, Event::Software { evd, data })
    }

    fn post_software(&self, evd: EvdHandle, stream: EventStreams, event: Event) -> Result<()> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        if !evd.streams.contains(stream) {
            return Err(Error::InvalidSoftEvd);
        }
        if !evd.push(event) {
            return Err(Error::EvdQueueFull);
        }
        core.announce(&evd, Origin::Call);
        Ok(())
    }
}

//! Streams of events, and sets of them.

use bitflags::bitflags;
use rdma::events::Stream;

use crate::event::{Event, EventType};

bitflags! {
    /// Streams of events.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub(crate) struct EventStreams: u8 {
        /// [`EventType::DTO_EVENT_STREAM`].
        const COMPLETIONS = 1 << 0;
        /// [`EventType::CM_REQ_EVENT_STREAM`].
        const REQUESTS = 1 << 1;
        /// [`EventType::CM_MSG_EVENT_STREAM`].
        const MESSAGES = 1 << 2;
        /// [`EventType::ASYNC_AFF_EVENT_STREAM`].
        const AFFILIATED = 1 << 3;
        /// [`EventType::ASYNC_UNAFF_EVENT_STREAM`].
        const UNAFFILIATED = 1 << 4;
        /// [`EventType::SOFTWARE_EVENT_STREAM`].
        const SOFTWARE = 1 << 5;
    }
}

impl EventStreams {
    /// The streams whose events software makes.
    pub(crate) const MADE: EventStreams = EventStreams::COMPLETIONS.complement();
    /// The streams to which software can add an event at any time.
    pub(crate) const UNBOUND: EventStreams =
        EventStreams::AFFILIATED.union(EventStreams::UNAFFILIATED).union(EventStreams::SOFTWARE);

    /// The stream of a simple event dispatcher; `None` for another number.
    pub(crate) const fn of(stream: EventType) -> Option<EventStreams> {
        Some(match stream {
            EventType::DTO_EVENT_STREAM => EventStreams::COMPLETIONS,
            EventType::CM_REQ_EVENT_STREAM => EventStreams::REQUESTS,
            EventType::CM_MSG_EVENT_STREAM => EventStreams::MESSAGES,
            EventType::ASYNC_AFF_EVENT_STREAM => EventStreams::AFFILIATED,
            EventType::ASYNC_UNAFF_EVENT_STREAM => EventStreams::UNAFFILIATED,
            EventType::SOFTWARE_EVENT_STREAM => EventStreams::SOFTWARE,
            _ => return None,
        })
    }

    /// The stream of an event that software made.
    pub(crate) fn of_event(event: &Event) -> EventStreams {
        EventStreams::of(event.event_number().stream()).unwrap_or_default()
    }

    /// The position among all streams of the first stream of the set.
    pub(crate) const fn index(self) -> usize {
        self.bits().trailing_zeros() as usize
    }

    /// The number of streams in the set.
    pub(crate) const fn count(self) -> usize {
        self.bits().count_ones() as usize
    }
}

impl Stream for Event {
    const STREAMS: usize = EventStreams::all().count();

    fn stream(&self) -> usize {
        EventStreams::of_event(self).index()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::EvdHandle;

    #[test]
    fn an_event_belongs_to_the_stream_of_its_number() {
        let evd = EvdHandle::from_raw(3);
        let software = Event::Software { evd, data: 1 };
        assert_eq!(EventStreams::of_event(&software), EventStreams::SOFTWARE);
        let online = Event::Unaffiliated {
            event_number: EventType::ASYNC_UNAFF_SPIGOT_ONLINE,
            evd,
            ia: crate::IaHandle::NULL,
            spigot_id: 1,
        };
        assert_eq!(EventStreams::of_event(&online), EventStreams::UNAFFILIATED);
        assert_eq!(EventStreams::of(EventType::AEVD_NOTIFICATION_EVENT_STREAM), None);
        assert!(EventStreams::all().iter().all(|stream| stream.index() < Event::STREAMS));
    }
}

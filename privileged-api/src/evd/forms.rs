//! The forms in which events are returned: as the pages have them, and with what extensions of the
//! API add; and what a wait waits for.

use kernel_agent::{Completion, CompletionFlags, CompletionStatus, Done, Immediate};

use crate::evd::dto;
use crate::evd::posted::{Posted, posted, tag};
use crate::event::{DtoCompletion, Event};
use crate::handle::{EpHandle, EvdHandle};

/// An event, and what extensions add to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedEvent {
    /// The event.
    pub event: Event,
    /// The immediate data. Only for a successful Receive whose message carried such data.
    pub immediate: Option<Immediate>,
    /// How the request was posted, for the completion of a request of the send queue.
    pub posted: Posted,
}

/// What [`Ia::evd_take`](crate::Ia::evd_take) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The completion of a request that succeeded, with the immediate data of its message; it was
    /// taken.
    Plain(PlainCompletion, Option<Immediate>),
    /// The completion of another request that succeeded, with what [`ExtendedEvent`] has beside it;
    /// it was taken.
    Done(DtoCompletion, Option<Immediate>, Posted),
    /// The queue is empty.
    Empty,
    /// An event of another kind, an error, or a reserved event dispatcher: nothing was taken, and
    /// [`Ia::evd_dequeue_extended`](crate::Ia::evd_dequeue_extended) returns it.
    Other,
}

/// The completion of a request that succeeded, in the words in which
/// [`Ia::evd_take`](crate::Ia::evd_take) finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainCompletion(pub(super) Done);

impl PlainCompletion {
    /// The endpoint.
    #[inline(always)]
    pub fn ep(&self) -> EpHandle {
        EpHandle::from_raw(self.0.context)
    }

    /// The cookie that was posted with the request.
    #[inline(always)]
    pub fn cookie(&self) -> u64 {
        self.0.cookie
    }

    /// Bytes, as [`DtoCompletion`] has them.
    #[inline(always)]
    pub fn transferred_length(&self) -> u32 {
        self.0.length
    }

    /// A number below 256 for each combination of an event's number with flags of [`Posted`]: the
    /// event's number if there are none, else at least 16.
    #[inline(always)]
    pub fn kind(&self) -> u32 {
        self.0.data & (tag::EVENT | u32::from(Posted::all().bits()) << tag::POSTED)
    }

    /// How the request was posted.
    #[inline(always)]
    pub fn posted(&self) -> Posted {
        posted(self.0.data)
    }

    /// The completion as an event has it, taken from `evd`.
    #[inline(always)]
    pub fn event(&self, evd: EvdHandle) -> DtoCompletion {
        dto::plain(self.0, evd)
    }
}

/// What [`Ia::evd_wait_extended`](crate::Ia::evd_wait_extended) waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitFor {
    /// The event dispatcher's own criteria, as with [`Ia::evd_wait`](crate::Ia::evd_wait).
    Notification,
    /// So many events in the queue, whatever the event dispatcher's threshold is, and whether or
    /// not they are notification events.
    Events(usize),
}

impl WaitFor {
    /// Whether any event ends the wait, on an event dispatcher with this threshold.
    #[inline(always)]
    pub(crate) fn is_any(self, threshold: usize) -> bool {
        match self {
            WaitFor::Notification => threshold == 1,
            WaitFor::Events(wanted) => wanted == 1,
        }
    }

    pub(crate) fn is_for_several(self) -> bool {
        matches!(self, WaitFor::Events(wanted) if wanted != 1)
    }
}

/// The form in which a dequeue or a wait returns an event.
pub(crate) trait Form: Sized {
    /// What it has beside the event.
    type Beside;
    /// What it has beside the event of this completion.
    fn beside(completion: &Completion) -> Self::Beside;
    /// The event of a completion.
    fn completed(event: DtoCompletion, beside: Self::Beside) -> Self;
    /// An event that is not a completion.
    fn other(event: Event) -> Self;
}

impl Form for Event {
    type Beside = ();

    #[inline(always)]
    fn beside(_: &Completion) {}

    #[inline(always)]
    fn completed(event: DtoCompletion, (): ()) -> Event {
        Event::Dto(event)
    }

    #[inline(always)]
    fn other(event: Event) -> Event {
        event
    }
}

impl Form for ExtendedEvent {
    type Beside = (Option<Immediate>, Posted);

    #[inline(always)]
    fn beside(completion: &Completion) -> (Option<Immediate>, Posted) {
        const WITH: CompletionFlags = CompletionFlags::RECEIVE.union(CompletionFlags::IMMEDIATE);
        let arrived = completion.status == CompletionStatus::Success && completion.flags.contains(WITH);
        let immediate = arrived.then(|| Immediate {
            data: completion.immediate,
            written: completion.flags.contains(CompletionFlags::WRITE).then_some(completion.detail),
        });
        (immediate, posted(completion.data))
    }

    #[inline(always)]
    fn completed(event: DtoCompletion, (immediate, posted): Self::Beside) -> ExtendedEvent {
        ExtendedEvent { event: Event::Dto(event), immediate, posted }
    }

    #[inline(always)]
    fn other(event: Event) -> ExtendedEvent {
        ExtendedEvent { event, immediate: None, posted: Posted::empty() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{DtoStatus, EventType};

    #[test]
    fn a_completion_is_told_by_the_words_that_were_posted() {
        let evd = EvdHandle::from_raw(5);
        for event_number in [EventType::DTO_SEND_CMPL, EventType::DTO_RDMA_READ_CMPL] {
            for bits in 0..=Posted::all().bits() {
                let posted = Posted::from_bits_truncate(bits);
                let kind = event_number.0 + 32 * u32::from(bits);
                for notifies in [0, tag::NOTIFY, tag::NOTIFY | tag::VIA] {
                    let done = Done { context: 7, cookie: 8, data: kind | notifies, length: 9 };
                    let plain = PlainCompletion(done);
                    assert_eq!((plain.kind(), plain.posted()), (kind, posted));
                    assert_eq!((plain.ep(), plain.cookie()), (EpHandle::from_raw(7), 8));
                    assert_eq!(plain.transferred_length(), 9);
                    let event = DtoCompletion {
                        event_number,
                        dto_status: DtoStatus::Success,
                        evd,
                        ep: EpHandle::from_raw(7),
                        cookie: 8,
                        transferred_length: 9,
                        ..plain.event(evd)
                    };
                    assert_eq!(plain.event(evd), event);
                }
            }
        }
    }
}

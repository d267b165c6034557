//! The forms in which events are returned: as the pages have them, and with what extensions of the
//! API add; and what a wait waits for.

use kernel_agent::{Completion, CompletionFlags, CompletionStatus, Immediate};

use crate::evd::posted::{Posted, posted};
use crate::event::{DtoCompletion, Event};

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

//! Events with what the API has no place for: immediate data, and the length of an RDMA Write that
//! took a Receive; and waits with a threshold of their own. Extensions of the API.

use kernel_agent::{Completion, CompletionFlags, CompletionStatus};

use super::dequeue::dequeue_in;
use super::{Queue, WaitError};
use crate::event::{DtoCompletion, Event};
use crate::handle::EvdHandle;
use crate::ia::Ia;
use crate::status::{Error, Result};

/// An event, and what extensions add to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedEvent {
    /// The event.
    pub event: Event,
    /// The immediate data. Only for a successful Receive whose message carried such data.
    pub immediate: Option<Immediate>,
}

/// The immediate data of a message, and what kind of message it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Immediate {
    /// The number that the peer posted.
    pub data: u32,
    /// The length in bytes of the RDMA Write that took the Receive; `None` if a Send took it. The
    /// Write's data is not in the Receive's segments, so the length may exceed theirs.
    pub written: Option<u32>,
}

/// What [`Ia::evd_wait_extended`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitFor {
    /// The event dispatcher's own criteria, as with [`Ia::evd_wait`].
    Notification,
    /// So many events in the queue, whatever the event dispatcher's threshold is, and whether or
    /// not they are notification events.
    Events(usize),
}

impl WaitFor {
    /// Whether any event ends the wait, on an event dispatcher with this threshold.
    #[inline(always)]
    pub(super) fn is_any(self, threshold: usize) -> bool {
        match self {
            WaitFor::Notification => threshold == 1,
            WaitFor::Events(wanted) => wanted == 1,
        }
    }

    pub(super) fn is_for_several(self) -> bool {
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
    type Beside = Option<Immediate>;

    #[inline(always)]
    fn beside(completion: &Completion) -> Option<Immediate> {
        const WITH: CompletionFlags = CompletionFlags::RECEIVE.union(CompletionFlags::IMMEDIATE);
        let arrived = completion.status == CompletionStatus::Success && completion.flags.contains(WITH);
        arrived.then(|| Immediate {
            data: completion.immediate,
            written: completion.flags.contains(CompletionFlags::WRITE).then_some(completion.detail),
        })
    }

    #[inline(always)]
    fn completed(event: DtoCompletion, immediate: Option<Immediate>) -> ExtendedEvent {
        ExtendedEvent { event: Event::Dto(event), immediate }
    }

    #[inline(always)]
    fn other(event: Event) -> ExtendedEvent {
        ExtendedEvent { event, immediate: None }
    }
}

impl Ia {
    /// Takes the oldest event as [`Ia::evd_dequeue`] does, and returns the immediate data with it.
    /// An extension of the API.
    ///
    /// Errors: as [`Ia::evd_dequeue`]. Does not block. May be called in callbacks. Thread-safe.
    pub fn evd_dequeue_extended(&self, evd: EvdHandle) -> Result<ExtendedEvent> {
        dequeue_in(evd, self.core())
    }

    /// Waits as [`Ia::evd_wait`] does, for what `wait_for` says, and takes the oldest event.
    /// Returns it with its immediate data, and the number of events that are still queued. An
    /// extension of the API.
    ///
    /// [`WaitFor::Events`] is for simple event dispatchers only. After a success at least one event
    /// fewer than it asks for is still queued, unless another thread takes events meanwhile, or the
    /// queue was made smaller than that: then the wait ends when the queue is full. A thread that
    /// waits for several events has to be the only one that waits.
    ///
    /// Errors: as [`Ia::evd_wait`]; `InvalidThreshold` (no events, or more than the queue holds);
    /// `InvalidEvdType` (a number of events, on an aggregate). May block for a remote event. Not
    /// for callbacks. Thread-safe.
    pub fn evd_wait_extended(
        &self,
        evd: EvdHandle,
        wait_for: WaitFor,
        timeout: u64,
    ) -> Result<(ExtendedEvent, usize), WaitError> {
        if let WaitFor::Events(wanted) = wait_for {
            let core = self.live()?;
            core.shared.not_in_callback()?;
            let evd = core.evd(evd)?;
            if let Queue::Aggregate(_) = &evd.queue {
                return Err(Error::InvalidEvdType.into());
            }
            if wanted == 0 || wanted > evd.capacity() {
                return Err(Error::InvalidThreshold.into());
            }
        }
        self.wait(evd, wait_for, timeout)
    }
}

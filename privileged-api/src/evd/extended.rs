//! Events with what the API has no place for: immediate data, and the length of an RDMA Write that
//! took a Receive; and waits with a threshold of their own. Extensions of the API.

use bitflags::bitflags;
pub use kernel_agent::Immediate;
use kernel_agent::{Completion, CompletionFlags, CompletionStatus, Done, Took};

use super::aggregate::Aggregate;
use super::dequeue::{dequeue_in, take_from_slot};
use super::{WaitError, dto};
use crate::closed;
use crate::event::{DtoCompletion, Event};
use crate::handle::{EpHandle, EvdHandle};
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

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

bitflags! {
    /// What distinguishes requests whose completions have the same event number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Posted: u8 {
        /// The request carried immediate data.
        const IMMEDIATE = 1 << 0;
        /// The request was a datagram.
        const DATAGRAM = 1 << 1;
        /// The request was a marker ([`Ia::post_marker`]).
        const MARKER = 1 << 2;
    }
}

/// What [`Ia::evd_take`] found.
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
    /// [`Ia::evd_dequeue_extended`] returns it.
    Other,
}

/// The completion of a request that succeeded, in the words in which [`Ia::evd_take`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainCompletion(Done);

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
        self.0.data & (dto::tag::EVENT | u32::from(Posted::all().bits()) << dto::tag::POSTED)
    }

    /// How the request was posted.
    #[inline(always)]
    pub fn posted(&self) -> Posted {
        dto::posted(self.0.data)
    }

    /// The completion as an event has it, taken from `evd`.
    #[inline(always)]
    pub fn event(&self, evd: EvdHandle) -> DtoCompletion {
        dto::plain(self.0, evd)
    }
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
    type Beside = (Option<Immediate>, Posted);

    #[inline(always)]
    fn beside(completion: &Completion) -> (Option<Immediate>, Posted) {
        const WITH: CompletionFlags = CompletionFlags::RECEIVE.union(CompletionFlags::IMMEDIATE);
        let arrived = completion.status == CompletionStatus::Success && completion.flags.contains(WITH);
        let immediate = arrived.then(|| Immediate {
            data: completion.immediate,
            written: completion.flags.contains(CompletionFlags::WRITE).then_some(completion.detail),
        });
        (immediate, dto::posted(completion.data))
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

impl Ia {
    /// Takes the oldest event as [`Ia::evd_dequeue`] does, and returns the immediate data with it.
    /// An extension of the API.
    ///
    /// Errors: as [`Ia::evd_dequeue`]. Does not block. May be called in callbacks. Thread-safe.
    pub fn evd_dequeue_extended(&self, evd: EvdHandle) -> Result<ExtendedEvent> {
        dequeue_in(evd, self.core())
    }

    /// Takes the oldest event as [`Ia::evd_dequeue_extended`] does, if it is the completion of a
    /// request that succeeded: for consumers that translate events. Such a consumer makes its own
    /// event where the completion is at hand, and copies nothing. An extension of the API.
    ///
    /// Calls one of the two routines, after the event was taken: `plain` for a completion that has
    /// nothing beside it, which is the short way, and `other` for all else. Returns what that
    /// returns.
    ///
    /// Does not block. May be called in callbacks. Thread-safe.
    #[inline(always)]
    pub fn evd_take<R>(
        &self,
        evd: EvdHandle,
        plain: impl FnOnce(PlainCompletion) -> R,
        other: impl FnOnce(Taken) -> R,
    ) -> R {
        let core = self.core();
        match core.evd_slots.get(evd.as_raw()).map(|slot| slot.take_without_immediate(evd.as_raw())) {
            Some(Took::Done(done)) => plain(PlainCompletion(done)),
            Some(Took::Nothing) => other(Taken::Empty),
            Some(Took::Other) | None => other(take_unusual(evd, core)),
        }
    }

    /// Waits as [`Ia::evd_wait`] does, for what `wait_for` says, and takes the oldest event.
    /// Returns it with its immediate data, and the number of events that are still queued. An
    /// extension of the API.
    ///
    /// After a success of [`WaitFor::Events`] at least one event fewer than it asks for is still
    /// queued, unless another thread takes events meanwhile, or the queue was made smaller than
    /// that: then the wait ends when the queue is full. A thread that waits for several events has
    /// to be the only one that waits. On an aggregate, the events of all its enabled event
    /// dispatchers count, and its queue holds as many as theirs together; the number that is
    /// returned counts them as well.
    ///
    /// Errors: as [`Ia::evd_wait`]; `InvalidThreshold` (no events, or more than the queue holds);
    /// `InvalidEvdType` (a number of events, on an aggregate with
    /// [`EvdFlags::DEQUEUE_NOTIFICATIONS`](crate::EvdFlags::DEQUEUE_NOTIFICATIONS)). May block for a
    /// remote event. Not for callbacks. Thread-safe.
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
            if evd.aggregate().is_some_and(Aggregate::names) {
                return Err(Error::InvalidEvdType.into());
            }
            if wanted == 0 || wanted > evd.total_capacity() {
                return Err(Error::InvalidThreshold.into());
            }
        }
        self.wait(evd, wait_for, timeout)
    }
}

impl Ia {
    /// Reserves an event dispatcher, or ends that: of a reserved one [`Ia::evd_take`] takes
    /// nothing and finds [`Taken::Other`]. No other call heeds it. So a consumer whose interface
    /// has rules of its own about who may take events has the short way checked for them at no
    /// cost. On an event dispatcher without completions nothing changes: `evd_take` has no short
    /// way there. An extension of the API.
    ///
    /// Errors: `InvalidEvd`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe.
    pub fn evd_reserve(&self, evd: EvdHandle, reserved: bool) -> Result<()> {
        self.live()?.evd(evd)?.set_closed(closed::RESERVED, || reserved);
        Ok(())
    }

    /// The number of events that are queued on an event dispatcher: on an aggregate, those of its
    /// enabled event dispatchers. An extension.
    ///
    /// Errors: `InvalidEvd`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe.
    pub fn evd_queued(&self, evd: EvdHandle) -> Result<usize> {
        Ok(self.live()?.evd(evd)?.total())
    }
}

/// Takes the oldest completion if it is a success, plain or not, or of an EVD with a callback; not
/// of a reserved EVD.
#[cold]
#[inline(never)]
fn take_unusual(evd: EvdHandle, core: &Core) -> Taken {
    let slot = core.evd_slots.get(evd.as_raw());
    match slot.map(|slot| slot.take_with_immediate(evd.as_raw())) {
        Some(Took::Done((done, immediate))) => return Taken::Plain(PlainCompletion(done), immediate),
        Some(Took::Nothing) => return Taken::Empty,
        Some(Took::Other) | None => {}
    }
    match take_from_slot::<ExtendedEvent>(evd, core, closed::CALLBACK) {
        Some((done, (immediate, posted))) => Taken::Done(done, immediate, posted),
        None => Taken::Other,
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
                for notifies in [0, dto::tag::NOTIFY, dto::tag::NOTIFY | dto::tag::VIA] {
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

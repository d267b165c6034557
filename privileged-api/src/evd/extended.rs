//! Events with what the API has no place for: immediate data, and the length of an RDMA Write that
//! took a Receive; and waits with a threshold of their own. Extensions of the API.

use kernel_agent::Took;

use super::WaitError;
use super::aggregate::Aggregate;
use super::dequeue::{dequeue_in, take_from_slot};
use crate::closed;
use crate::evd::forms::{ExtendedEvent, PlainCompletion, Taken, WaitFor};
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

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

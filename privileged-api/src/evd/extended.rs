//! Events with what the API has no place for: immediate data, and the length of an RDMA Write that
//! took a Receive; and waits with a threshold of their own. Extensions of the API.

use super::WaitError;
use super::aggregate::Aggregate;
use super::dequeue::dequeue_in;
use crate::evd::forms::{ExtendedEvent, WaitFor};
use crate::handle::EvdHandle;
use crate::ia::Ia;
use crate::status::{Error, Result};

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
    /// The number of events that are queued on an event dispatcher: on an aggregate, those of its
    /// enabled event dispatchers. An extension.
    ///
    /// Errors: `InvalidEvd`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in
    /// callbacks. Thread-safe.
    pub fn evd_queued(&self, evd: EvdHandle) -> Result<usize> {
        Ok(self.live()?.evd(evd)?.total())
    }
}

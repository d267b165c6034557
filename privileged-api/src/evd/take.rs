//! Taking an event in two steps: the first removes it from the queue under the EVD's locks, the
//! second makes the consumer's event and applies the effects without locks.

use kernel_agent::Completion;
use rdma::events::Taken as Next;

use super::aggregate::Look;
use crate::evd::forms::WaitFor;
use crate::event::Event;
use crate::handle::EvdHandle;
use crate::objects::evd::{Evd, Queue};

/// What was taken from an EVD. Small, since it is copied from call to call; an event that software
/// made is large, and goes to a place that the caller provides.
pub(super) enum Taken {
    /// An event that software made.
    Soft,
    /// A completion, and the EVD on which it was queued.
    Completion(EvdHandle, Completion),
    /// A notification that names this EVD.
    Name(EvdHandle),
}

impl Evd {
    /// Takes the oldest event; one that software made goes to `soft`.
    pub(super) fn take(&self, soft: &mut Option<Event>) -> Option<Taken> {
        match self.queue() {
            Queue::Simple(simple) => self.taken(simple.take(soft)?, soft),
            Queue::Aggregate(aggregate) if aggregate.names() => {
                aggregate.take_notified(Look::All, self.waiters() > 0, soft)
            }
            Queue::Aggregate(aggregate) => aggregate.take_any(soft),
        }
    }

    /// Takes the oldest event if what a waiter waits for is present. `look` applies only to an
    /// aggregate. The caller is one of the aggregate's waiters.
    pub(super) fn take_if_due(
        &self,
        wait_for: WaitFor,
        look: Look,
        soft: &mut Option<Event>,
    ) -> Option<Taken> {
        if let WaitFor::Events(wanted) = wait_for {
            // A queue that became smaller than `wanted` is due when it is full.
            let due = wanted == 1 || self.total() >= wanted.min(self.total_capacity());
            return if due { self.take(soft) } else { None };
        }
        match self.queue() {
            Queue::Simple(simple) => self.taken(simple.take_if_notified(self.threshold(), soft)?, soft),
            Queue::Aggregate(aggregate) => aggregate.take_notified(look, self.waiters() > 1, soft),
        }
    }

    fn taken(&self, next: Next, soft: &Option<Event>) -> Option<Taken> {
        match next {
            Next::Completion(completion) => Some(Taken::Completion(self.handle, completion)),
            Next::Made => {
                soft.as_ref().inspect(|event| self.after_soft(event))?;
                Some(Taken::Soft)
            }
        }
    }
}

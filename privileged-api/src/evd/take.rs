//! Taking an event in two steps: the first removes it from the queue under the EVD's locks, the
//! second makes the consumer's event and applies the effects without locks.

use kernel_agent::Completion;

use super::aggregate::Look;
use super::{Evd, Queue, dto};
use crate::event::{DtoStatus, Event};
use crate::handle::EvdHandle;
use crate::ia::Core;

/// What was taken from an EVD.
#[expect(
    clippy::large_enum_variant,
    reason = "boxing would allocate on each dequeue; the value lives only until it is returned"
)]
pub(super) enum Taken {
    /// An event that software made.
    Soft(Event),
    /// A completion, and the EVD on which it was queued.
    Completion(EvdHandle, Completion),
    /// A notification that names this EVD.
    Name(EvdHandle),
}

impl Evd {
    /// Takes the oldest event.
    pub(super) fn take(&self) -> Option<Taken> {
        match &self.queue {
            Queue::Soft(queue) => self.take_soft(queue).map(Taken::Soft),
            Queue::Dto(queue) => Some(Taken::Completion(self.handle, queue.take()?)),
            Queue::Aggregate(aggregate) if aggregate.names() => {
                aggregate.take_notified(Look::All, self.waiters() > 0)
            }
            Queue::Aggregate(aggregate) => aggregate.take_any(),
        }
    }

    /// Takes the oldest event if the notification criteria are present. `look` applies only to an
    /// aggregate. The caller is one of the aggregate's waiters.
    pub(super) fn take_if_notified(&self, look: Look) -> Option<Taken> {
        match &self.queue {
            Queue::Soft(queue) => self.take_soft(queue).map(Taken::Soft),
            Queue::Dto(queue) => {
                let completion = match self.threshold() {
                    1 => queue.take()?,
                    threshold => queue.take_if_notified(threshold)?,
                };
                Some(Taken::Completion(self.handle, completion))
            }
            Queue::Aggregate(aggregate) => aggregate.take_notified(look, self.waiters() > 1),
        }
    }
}

impl Core {
    /// Makes the event that was taken from `evd`, and applies the effects of a failed completion.
    /// The caller holds no lock.
    pub(super) fn event(&self, evd: &Evd, taken: Taken) -> Event {
        match taken {
            Taken::Soft(event) => event,
            Taken::Name(sevd) => Event::AevdNotification { aevd: evd.handle, sevd },
            Taken::Completion(sevd, completion) => {
                let event = dto::event(&completion, sevd, &self.owners);
                if event.dto_status != DtoStatus::Success {
                    self.completion_failed(&completion);
                }
                Event::Dto(event)
            }
        }
    }
}

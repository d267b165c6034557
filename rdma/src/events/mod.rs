//! The queue of events of a face: the NIC's queue of completions, a queue of entries that software
//! makes, or both.
//!
//! - `completions`: the NIC's queue, and the criteria by which a completion notifies.
//! - `made`: the entries of software, of one stream or of several.
//! - `dispatcher`, with `callback` and `notifier`: who learns that events have come.
//!
//! What a completion or an entry means is the face's: an EVD of IT-API has one stream, one of DAT
//! several.
//!
//! If there are both queues, events are taken from them in turn, so that neither starves. While
//! entries of software are queued, the CQ's slot is closed, so that the fast path cannot pass them
//! by; while there are none, completions take the fast path as in a queue for completions alone.
//!
//! Locks, outermost first: that of the stage in `completions`; the CQ's, inside the agent; that of
//! `made`, which is a leaf.

mod callback;
mod completions;
mod dispatcher;
mod made;
mod notifier;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use kernel_agent::{Completion, CompletionStatus};
use platform::Platform;

pub use completions::{Completions, NOTIFY, Source};
pub use dispatcher::{Dispatcher, Events, Refused, Remains, Waiter};
pub use made::{Made, Stream};

/// The reasons why the slot of a CQ in an event queue is closed, one bit each. Bit 0 belongs to the
/// agent.
pub mod closed {
    /// Completions are in the stage.
    pub const STAGED: u32 = 1 << 1;
    /// Entries that software made are queued.
    pub const MADE: u32 = 1 << 2;
    /// A callback is attached.
    pub const CALLBACK: u32 = 1 << 3;
    /// The adapter is disabled or freed.
    pub const DISABLED: u32 = 1 << 4;
    /// The dispatcher is closed.
    pub const FREED: u32 = 1 << 5;
    /// Only what the dispatcher feeds takes its events.
    pub const CAPTIVE: u32 = 1 << 6;
    /// The face keeps the fast path out, by rules of its own about who may take events.
    pub const RESERVED: u32 = 1 << 7;
    /// The reasons for which completions are still taken through the queue, but not by its slot,
    /// while the oldest of them is in the CQ.
    pub(super) const BUT_FOR_THE_QUEUE: u32 = MADE | CALLBACK | CAPTIVE | RESERVED;
}

/// See the module's documentation. `E` is the face's entry.
pub struct EventQueue<E> {
    completions: Option<Completions>,
    made: Option<Made<E>>,
    /// The next event is taken from the software's queue if it has one. Only of use if there are
    /// both queues; two threads that take at the same time may both see the same turn.
    turn: AtomicBool,
}

/// Why a queue was not resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotResized {
    /// More events of a stream are queued than would fit.
    Occupied,
    /// There is no memory, or the device has no room.
    OutOfResources,
    /// The device is dead.
    Dead,
}

/// Whether this completion breaks the connection of its endpoint: it has failed. A request that was
/// flushed says that the connection is broken already, and another event the reason.
pub fn breaks_endpoint(completion: &Completion) -> bool {
    !matches!(completion.status, CompletionStatus::Success | CompletionStatus::Flushed)
}

/// An event that was taken.
pub enum Taken {
    /// A completion.
    Completion(Completion),
    /// An entry that software made. It went to the place that the caller provided: an entry may be
    /// large, and what is returned is copied from call to call.
    Made,
}

impl<E: Stream> Events for EventQueue<E> {
    #[inline(always)]
    fn completions(&self) -> Option<&Completions> {
        self.completions.as_ref()
    }

    fn notified(&self, threshold: usize) -> bool {
        !self.no_entries()
            || self.completions.as_ref().is_some_and(|completions| completions.notified(threshold))
    }

    fn is_empty(&self) -> bool {
        self.completions.as_ref().is_none_or(Completions::is_empty) && self.no_entries()
    }

    fn arm(&self) -> bool {
        // Software announces each entry that it makes.
        self.completions.as_ref().map(Completions::arm).is_some()
    }
}

impl<E: Stream> EventQueue<E> {
    /// A queue of these parts, of which there is one at least.
    pub fn new(completions: Option<Completions>, made: Option<Made<E>>) -> EventQueue<E> {
        EventQueue { completions, made, turn: AtomicBool::new(false) }
    }

    /// The queue of software's entries, if it has one.
    pub fn made(&self) -> Option<&Made<E>> {
        self.made.as_ref()
    }

    /// The queue of completions, if each event that can be taken now is in it.
    #[inline(always)]
    pub fn only_completions(&self) -> Option<&Completions> {
        let completions = self.completions.as_ref()?;
        match &self.made {
            None => Some(completions),
            Some(made) => made.is_empty().then_some(completions),
        }
    }

    /// The number of events that are queued.
    pub fn queued(&self) -> usize {
        self.completions.as_ref().map_or(0, Completions::len) + self.made.as_ref().map_or(0, Made::len)
    }

    fn no_entries(&self) -> bool {
        self.made.as_ref().is_none_or(Made::is_empty)
    }

    /// The number of events of each stream that there is room for.
    pub fn capacity(&self) -> usize {
        let completions = self.completions.as_ref().map_or(usize::MAX, Completions::capacity);
        completions.min(self.made.as_ref().map_or(usize::MAX, Made::share))
    }

    /// The number of events of all streams that there is room for.
    pub fn total_capacity(&self) -> usize {
        self.completions.as_ref().map_or(0, Completions::capacity)
            + self.made.as_ref().map_or(0, Made::capacity)
    }

    /// Makes room for another number of events of each stream; fails without a change. Blocks for
    /// the device, if there is a queue of completions.
    pub fn resize(&self, platform: &Arc<dyn Platform>, share: usize) -> Result<(), NotResized> {
        let before = self.capacity();
        if let Some(made) = &self.made {
            made.resize(share)?;
        }
        let resized = self.completions.as_ref().map_or(Ok(()), |queue| queue.resize(platform, share));
        if resized.is_err()
            && let Some(made) = &self.made
        {
            // Without memory for the former size, the queue keeps room for more, which does no
            // harm.
            let _ = made.resize(before);
        }
        resized
    }

    /// Queues an entry. False if its stream's share of the queue is full.
    pub fn push(&self, entry: E) -> bool {
        let pushed = self.made.as_ref().is_some_and(|made| made.push(entry));
        self.close_or_open();
        pushed
    }

    /// Queues an entry for which [`Made::reserve`] kept room.
    pub fn fill(&self, entry: E) {
        if let Some(made) = &self.made {
            made.fill(entry);
        }
        self.close_or_open();
    }

    /// Takes the oldest event of one of the queues, whatever the criteria; an entry of software's
    /// goes to `place`.
    pub fn take(&self, place: &mut Option<E>) -> Option<Taken> {
        self.take_with(place, Completions::take)
    }

    /// As [`EventQueue::take`], if the criteria of a notification are present.
    pub fn take_if_notified(&self, threshold: usize, place: &mut Option<E>) -> Option<Taken> {
        self.take_with(place, |completions| match threshold {
            1 => completions.take(),
            // An entry of software's notifies, and while it is there every event may be taken.
            _ if !self.no_entries() => completions.take(),
            _ => completions.take_if_notified(threshold),
        })
    }

    fn take_with(
        &self,
        place: &mut Option<E>,
        completion: impl Fn(&Completions) -> Option<Completion>,
    ) -> Option<Taken> {
        let completion = |completions| completion(completions).map(Taken::Completion);
        let (completions, made) = match (&self.completions, &self.made) {
            (Some(completions), None) => return completion(completions),
            (Some(completions), Some(made)) if made.is_empty() => return completion(completions),
            (None, made) => return pop(made.as_ref()?, place),
            (Some(completions), Some(made)) => (completions, made),
        };
        let taken = match self.turn.fetch_not(Ordering::Relaxed) {
            true => completion(completions).or_else(|| pop(made, place)),
            false => pop(made, place).or_else(|| completion(completions)),
        };
        self.close_or_open();
        taken
    }

    /// Closes the CQ's slot while entries of software are queued. Each thread that adds or takes
    /// such an entry calls this afterwards, and the queue is looked at under the slot's lock: so
    /// the last of several threads sees what all of them left.
    fn close_or_open(&self) {
        if let (Some(completions), Some(made)) = (&self.completions, &self.made) {
            completions.set_closed(closed::MADE, || !made.is_empty());
        }
    }
}

#[inline(never)]
fn pop<E: Stream>(made: &Made<E>, place: &mut Option<E>) -> Option<Taken> {
    *place = made.pop();
    place.is_some().then_some(Taken::Made)
}

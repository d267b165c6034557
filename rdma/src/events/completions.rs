//! The NIC's queue of completions, and a stage that holds completions that were taken from the
//! queue ahead of the consumer.
//!
//! The fast path of a face takes from the CQ by its slot. A wait or a callback with a threshold
//! other than one has to determine whether a completion that notifies is queued. It moves
//! completions from the CQ to the stage and counts them there.
//!
//! Owns the stage and the CQ. Locks, outermost first: the stage's, then the CQ's inside the agent.
//! No callback and no upcall runs under them. Completions are added to the stage only under both
//! locks, and the CQ's slot is closed while the stage is not empty. So the fast path can take from
//! the CQ without the stage's lock, and never returns a completion before an older one in the
//! stage. The slot is also closed for the face's own reasons.
//!
//! The slot of a queue of virtual interfaces stays empty: only a thread that holds the stage's lock
//! takes from it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use kernel_agent::{Arm, Completion, CompletionFlags, CompletionStatus, Cq, CqSlot, Error, TookAny};
use platform::Platform;
use platform::sync::Mutex;

use super::{NotResized, closed};
use crate::OutOfResources;
use crate::via::DescriptorQueue;

/// The bit of the word that is posted with a request ([`Completion::data`]) by which a face asks
/// that the completion notifies. Failures, and Receives of messages that ask for it, do so too.
pub const NOTIFY: u32 = 1 << 4;

struct Stage {
    /// The staged completions, oldest first.
    ready: VecDeque<Staged>,
    /// The number of staged completions that are notification events.
    notifications: usize,
    /// At least 2, as each CQ has.
    capacity: usize,
}

#[derive(Clone, Copy)]
struct Staged {
    completion: Completion,
    notifies: bool,
}

/// The NIC's queue.
#[derive(Clone)]
pub enum Source {
    /// Of queue pairs.
    Entries(Arc<Cq>),
    /// Of virtual interfaces.
    Descriptors(Arc<DescriptorQueue>),
}

impl Source {
    fn entries(&self) -> usize {
        match self {
            Source::Entries(cq) => cq.entries() as usize,
            Source::Descriptors(queue) => queue.cq().entries() as usize,
        }
    }

    /// Destroys the queue. Fails if an endpoint uses it or the device is dead.
    pub fn destroy(&self) -> Result<(), Error> {
        match self {
            Source::Entries(cq) => cq.destroy(),
            Source::Descriptors(queue) => queue.cq().destroy(),
        }
    }
}

/// See the module's documentation.
pub struct Completions {
    source: Source,
    slot: Arc<CqSlot>,
    handle: u64,
    stage: Mutex<Stage>,
}

impl Completions {
    /// Makes the queue of the object `handle`, whose CQ is in `slot`.
    pub fn new(source: Source, slot: Arc<CqSlot>, handle: u64) -> Result<Completions, OutOfResources> {
        let capacity = source.entries();
        let mut ready = VecDeque::new();
        ready.try_reserve_exact(capacity)?;
        let stage = Mutex::new(Stage { ready, notifications: 0, capacity });
        Ok(Completions { source, slot, handle, stage })
    }

    /// The NIC's queue.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The CQ for queue pairs.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        match &self.source {
            Source::Entries(cq) => Some(cq),
            Source::Descriptors(_) => None,
        }
    }

    /// Makes room for the completions of so many descriptors, and returns the queue of virtual
    /// interfaces. Blocks for the device.
    pub fn reserve(&self, platform: &Arc<dyn Platform>, count: u32) -> Result<&Arc<DescriptorQueue>, Error> {
        let Source::Descriptors(queue) = &self.source else { return Err(Error::Foreign) };
        queue.reserve(platform, count)?;
        self.grow_stage();
        Ok(queue)
    }

    /// Forgets the completions in the stage of a virtual interface that was destroyed, and those in
    /// the NIC's queue, which would take room.
    pub fn forget(&self, number: u32) {
        let mut stage = self.stage.lock();
        stage.ready.retain(|staged| staged.completion.qpn != number);
        stage.notifications = stage.ready.iter().filter(|staged| staged.notifies).count();
        self.fill(&mut stage, usize::MAX);
    }

    /// Gives the stage room for as many completions as the NIC's queue holds. If there is no
    /// memory, a full stage notifies before the threshold is reached.
    fn grow_stage(&self) {
        let capacity = self.source.entries();
        let mut stage = self.stage.lock();
        let more = capacity.saturating_sub(stage.ready.len());
        if stage.ready.try_reserve_exact(more).is_ok() {
            stage.capacity = capacity;
        }
    }

    /// Adds or removes one of the reasons for which the CQ's slot is closed.
    pub fn set_closed(&self, reason: u32, closed: impl FnOnce() -> bool) {
        self.slot.set_closed(self.handle, reason, closed);
    }

    /// Takes the oldest completion.
    pub fn take(&self) -> Option<Completion> {
        match self.slot.take_any(self.handle, closed::BUT_FOR_THE_QUEUE, |taken| *taken) {
            TookAny::Taken { value, .. } => Some(value),
            TookAny::Nothing => None,
            TookAny::Other => self.take_staged(),
        }
    }

    /// Takes the oldest completion if it is a success and in the CQ, and returns what `make` makes
    /// of it.
    #[inline(always)]
    pub fn take_success<T>(&self, make: impl FnOnce(&Completion) -> T) -> TookAny<T> {
        self.slot.take_any(self.handle, closed::BUT_FOR_THE_QUEUE, make)
    }

    /// Takes the oldest completions that are successes and in the CQ, as many as `into` has room
    /// for. Returns how many, and whether [`Completions::take`] may find more.
    #[inline(always)]
    pub fn take_successes<T>(&self, into: &mut [T], make: impl Fn(&Completion) -> T) -> (usize, bool) {
        self.slot.take_any_n(self.handle, closed::BUT_FOR_THE_QUEUE, into, make)
    }

    /// Takes the oldest completion: from the stage, or a failure.
    #[inline(never)]
    fn take_staged(&self) -> Option<Completion> {
        let mut stage = self.stage.lock();
        match (self.pop(&mut stage), &self.source) {
            (None, Source::Entries(cq)) => cq.poll_one(),
            (None, Source::Descriptors(queue)) => queue.next(),
            (completion, _) => completion,
        }
    }

    /// Takes the oldest completion if a notification event or `threshold` completions are queued
    /// (0: never by count).
    pub fn take_if_notified(&self, threshold: usize) -> Option<Completion> {
        let mut stage = self.stage.lock();
        self.fill(&mut stage, usize::MAX);
        if stage.notified(threshold) { self.pop(&mut stage) } else { None }
    }

    /// Whether a notification event or `threshold` completions are queued (0: never by count).
    pub fn notified(&self, threshold: usize) -> bool {
        // With a threshold of 1 each completion decides, so all of them can stay in the CQ.
        if threshold == 1 {
            return !self.is_empty();
        }
        let mut stage = self.stage.lock();
        self.fill(&mut stage, usize::MAX);
        stage.notified(threshold)
    }

    /// The number of completions that are queued.
    pub fn len(&self) -> usize {
        let mut stage = self.stage.lock();
        let Source::Entries(cq) = &self.source else {
            self.fill(&mut stage, usize::MAX);
            return stage.ready.len();
        };
        if let Some(waiting) = cq.completions() {
            return stage.ready.len() + waiting as usize;
        }
        self.fill(&mut stage, usize::MAX);
        stage.ready.len() + cq.pending(u32::MAX) as usize
    }

    /// Whether none is queued.
    pub fn is_empty(&self) -> bool {
        let mut stage = self.stage.lock();
        match &self.source {
            Source::Entries(cq) => stage.ready.is_empty() && !cq.has_completion(),
            Source::Descriptors(_) => {
                // An entry may lead to no completion.
                self.fill(&mut stage, 1);
                stage.ready.is_empty()
            }
        }
    }

    /// Has the next completion announced.
    pub fn arm(&self) {
        match &self.source {
            Source::Entries(cq) => cq.arm(Arm::Next),
            Source::Descriptors(queue) => queue.cq().arm(),
        }
    }

    /// The number of completions that there is room for.
    pub fn capacity(&self) -> usize {
        match &self.source {
            Source::Entries(cq) => cq.entries() as usize,
            Source::Descriptors(queue) => queue.asked(),
        }
    }

    /// Changes the CQ's size. Blocks until the device answers.
    pub fn resize(&self, platform: &Arc<dyn Platform>, entries: usize) -> Result<(), NotResized> {
        let wanted = u32::try_from(entries).map_err(|_| NotResized::OutOfResources)?;
        if entries < self.len() {
            return Err(NotResized::Occupied);
        }
        let resized = match &self.source {
            Source::Entries(cq) => cq.resize(wanted),
            Source::Descriptors(queue) => queue.resize(platform, wanted),
        };
        resized.map_err(|error| match error {
            Error::DeviceDead(_) => NotResized::Dead,
            Error::Busy => NotResized::Occupied,
            _ => NotResized::OutOfResources,
        })?;
        self.grow_stage();
        Ok(())
    }

    /// Moves completions from the CQ to the stage until `wanted` are staged, the stage is full or
    /// the CQ is empty.
    fn fill(&self, stage: &mut Stage, wanted: usize) {
        let room = stage.capacity.min(wanted).saturating_sub(stage.ready.len());
        if room == 0 {
            return;
        }
        match &self.source {
            Source::Entries(cq) => {
                let mut polling = cq.polling();
                for taken in 0..room {
                    let Some(completion) = polling.next() else { break };
                    if taken == 0 {
                        polling.close(closed::STAGED);
                    }
                    stage.push(completion);
                }
            }
            Source::Descriptors(queue) => {
                core::iter::from_fn(|| queue.next()).take(room).for_each(|completion| {
                    stage.push(completion);
                })
            }
        }
    }

    /// Takes the oldest staged completion. Reopens the CQ's slot when the stage is empty.
    fn pop(&self, stage: &mut Stage) -> Option<Completion> {
        let completion = stage.pop();
        if completion.is_some() && stage.ready.is_empty() {
            self.set_closed(closed::STAGED, || false);
        }
        completion
    }
}

impl Stage {
    fn push(&mut self, completion: Completion) {
        let notifies = notifies(&completion);
        self.notifications += usize::from(notifies);
        self.ready.push_back(Staged { completion, notifies });
    }

    fn pop(&mut self) -> Option<Completion> {
        let staged = self.ready.pop_front()?;
        self.notifications -= usize::from(staged.notifies);
        Some(staged.completion)
    }

    /// Whether the notification criteria are present. A full stage notifies, since the completions
    /// that are still in the CQ cannot be checked (appendix A of IT-API allows early notification).
    fn notified(&self, threshold: usize) -> bool {
        let queued = self.ready.len();
        self.notifications > 0 || threshold > 0 && queued >= threshold || queued >= self.capacity
    }
}

/// Whether a completion notifies by itself.
fn notifies(completion: &Completion) -> bool {
    completion.data & NOTIFY != 0
        || completion.status != CompletionStatus::Success
        || completion.flags.contains(CompletionFlags::RECEIVE | CompletionFlags::SOLICITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_completions_are_notified_by_their_number_or_by_a_full_stage() {
        let plain = Completion {
            status: CompletionStatus::Success,
            flags: CompletionFlags::empty(),
            context: 0,
            cookie: 0,
            data: 0,
            qpn: 0,
            opcode: 0,
            length: 0,
            immediate: 0,
            detail: 0,
        };
        let notifying = Completion { data: NOTIFY, ..plain };
        let mut stage = Stage { ready: VecDeque::new(), notifications: 0, capacity: 4 };
        for queued in 0..4 {
            let at = [0, 1, 2, 3, 4].map(|threshold| stage.notified(threshold));
            // A threshold of 0 is none.
            assert_eq!(at, [0, 1, 2, 3, 4].map(|threshold| threshold > 0 && queued >= threshold), "{queued}");
            stage.push(plain);
        }
        assert!(stage.notified(0), "it is full");
        while stage.pop().is_some() {}
        assert!(!stage.notified(0));
        stage.push(notifying);
        assert!(stage.notified(0) && stage.notified(4));
        stage.pop();
        assert!(!stage.notified(0) && !stage.notified(1));
    }
}

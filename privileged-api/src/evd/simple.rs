//! The queues of a simple EVD: the NIC's queue of completions, the queue of events that software
//! makes, or both.
//!
//! An EVD has both only if it has several streams. Its events are then taken from the two queues in
//! turn, so that neither starves. While the queue of software's events is not empty, the CQ's slot
//! is closed, so that the fast path cannot pass these events by; while it is empty, completions
//! take the fast path as on an EVD for completions alone.

use core::sync::atomic::{AtomicBool, Ordering};

use kernel_agent::Completion;

use super::dto::DtoQueue;
use super::queue::SoftQueue;
use crate::closed;
use crate::event::Event;

/// What was taken from the queues of a simple EVD.
pub(super) enum Next {
    Completion(Completion),
    /// The event went to the place that the caller provided.
    Soft,
}

pub(crate) struct Simple {
    pub(super) completions: Option<DtoQueue>,
    pub(super) made: Option<SoftQueue>,
    /// The next event is taken from the software's queue if it has one. Only of use if there are
    /// both queues; two threads that take at the same time may both see the same turn.
    turn: AtomicBool,
}

impl Simple {
    pub(super) fn new(completions: Option<DtoQueue>, made: Option<SoftQueue>) -> Simple {
        Simple { completions, made, turn: AtomicBool::new(false) }
    }

    /// The queue of completions, if each event that can be taken now is in it.
    #[inline(always)]
    pub(super) fn only_completions(&self) -> Option<&DtoQueue> {
        let completions = self.completions.as_ref()?;
        match &self.made {
            None => Some(completions),
            Some(made) => (made.len() == 0).then_some(completions),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.completions.as_ref().map_or(0, DtoQueue::len) + self.made.as_ref().map_or(0, SoftQueue::len)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.completions.as_ref().is_none_or(DtoQueue::is_empty)
            && self.made.as_ref().is_none_or(|made| made.len() == 0)
    }

    /// The number of events of each stream that there is room for.
    pub(super) fn capacity(&self) -> usize {
        let completions = self.completions.as_ref().map_or(usize::MAX, DtoQueue::capacity);
        completions.min(self.made.as_ref().map_or(usize::MAX, SoftQueue::share))
    }

    /// The number of events of all streams that there is room for.
    pub(super) fn total_capacity(&self) -> usize {
        self.completions.as_ref().map_or(0, DtoQueue::capacity)
            + self.made.as_ref().map_or(0, SoftQueue::capacity)
    }

    /// Whether the notification criteria are present: each event that software makes notifies.
    pub(super) fn notified(&self, threshold: usize) -> bool {
        self.made.as_ref().is_some_and(|made| made.len() > 0)
            || self.completions.as_ref().is_some_and(|completions| completions.notified(threshold))
    }

    /// Arms the CQ, so that its next completion is announced. Software announces each event that it
    /// makes.
    pub(super) fn arm(&self) {
        if let Some(completions) = &self.completions {
            completions.arm();
        }
    }

    /// Queues an event that software made. False if its stream's share of the queue is full.
    pub(super) fn push(&self, event: Event) -> bool {
        let pushed = self.made.as_ref().is_some_and(|made| made.push(event));
        self.close_or_open();
        pushed
    }

    /// Takes the oldest event of one of the queues, whatever the criteria; one that software made
    /// goes to `soft`.
    pub(super) fn take(&self, soft: &mut Option<Event>) -> Option<Next> {
        self.take_with(soft, DtoQueue::take)
    }

    /// As [`Simple::take`], if the notification criteria are present.
    pub(super) fn take_if_notified(&self, threshold: usize, soft: &mut Option<Event>) -> Option<Next> {
        self.take_with(soft, |completions| match threshold {
            1 => completions.take(),
            // An event of software's is a notification event, and with it present every event may
            // be taken.
            _ if self.made.as_ref().is_some_and(|made| made.len() > 0) => completions.take(),
            _ => completions.take_if_notified(threshold),
        })
    }

    fn take_with(
        &self,
        soft: &mut Option<Event>,
        completion: impl Fn(&DtoQueue) -> Option<Completion>,
    ) -> Option<Next> {
        let (completions, made) = match (&self.completions, &self.made) {
            (Some(completions), None) => return completion(completions).map(Next::Completion),
            (None, Some(made)) => return Simple::pop(made, soft),
            (None, None) => return None,
            (Some(completions), Some(made)) => (completions, made),
        };
        if made.len() == 0 {
            return completion(completions).map(Next::Completion);
        }
        let next = match self.turn.fetch_not(Ordering::Relaxed) {
            true => completion(completions).map(Next::Completion).or_else(|| Simple::pop(made, soft)),
            false => Simple::pop(made, soft).or_else(|| completion(completions).map(Next::Completion)),
        };
        self.close_or_open();
        next
    }

    #[inline(never)]
    fn pop(made: &SoftQueue, soft: &mut Option<Event>) -> Option<Next> {
        *soft = made.pop();
        soft.is_some().then_some(Next::Soft)
    }

    /// Closes the CQ's slot while software's events are queued. Each thread that adds or takes such
    /// an event calls this afterwards, and the queue is looked at under the slot's lock: so the
    /// last of several threads sees what all of them left.
    fn close_or_open(&self) {
        if let (Some(completions), Some(made)) = (&self.completions, &self.made) {
            completions.set_closed(closed::MADE, || made.len() > 0);
        }
    }
}

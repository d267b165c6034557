//! An event dispatcher.

use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use platform::SleepLock;
use platform::use_count::{Counted, Use, UseCount};
use rdma::events::{Completions, Dispatcher, EventQueue, Events};
use rdma::{Context, handle};

use crate::evd::aggregate::Aggregate;
use crate::evd::attached::EvdCallback;
use crate::evd::streams::EventStreams;
use crate::event::{Event, EventType};
use crate::flags::EvdFlags;
use crate::handle::EvdHandle;

/// The effects of an overflow of an EVD's queue, by the stream that overflows.
#[derive(Clone, Copy)]
pub(crate) struct OverflowPolicy {
    /// An asynchronous event reports the overflow.
    pub(crate) notify: EventStreams,
    /// The overflowed state ends when an event is taken or the queue is resized.
    pub(crate) auto_reset: EventStreams,
}

pub(crate) enum Queue {
    Simple(EventQueue<Event>),
    Aggregate(Aggregate),
}

impl Queue {
    /// The queues of a simple EVD.
    pub(crate) fn simple(&self) -> Option<&EventQueue<Event>> {
        match self {
            Queue::Simple(simple) => Some(simple),
            Queue::Aggregate(_) => None,
        }
    }
}

impl Events for Queue {
    fn completions(&self) -> Option<&Completions> {
        self.simple()?.completions()
    }

    fn notified(&self, threshold: usize) -> bool {
        match self {
            Queue::Simple(simple) => simple.notified(threshold),
            Queue::Aggregate(aggregate) => aggregate.notified(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Queue::Simple(simple) => simple.is_empty(),
            Queue::Aggregate(aggregate) => aggregate.is_empty(),
        }
    }

    fn arm(&self) -> bool {
        match self {
            Queue::Simple(simple) => simple.arm(),
            Queue::Aggregate(aggregate) => {
                aggregate.arm();
                true
            }
        }
    }
}

/// A dispatcher, and what IT-API adds to it.
pub(crate) struct Evd {
    pub(crate) dispatcher: Dispatcher<Queue, EvdCallback, Feed>,
    pub(crate) handle: EvdHandle,
    /// The stream that a query names: the first of `streams`, or that of an aggregate.
    pub(crate) stream: EventType,
    /// The streams of a simple EVD.
    pub(crate) streams: EventStreams,
    /// The flags at creation, without CREATE_FD: a query derives that flag from the notification
    /// object.
    pub(crate) flags: EvdFlags,
    pub(crate) policy: OverflowPolicy,
    /// The streams that have overflowed, as [`EventStreams`].
    pub(crate) overflowed: AtomicU8,
    /// Counts the endpoints, listen points, UD service requests and simple EVDs that feed this EVD.
    pub(crate) feeds: UseCount,
    /// The index of this EVD's seat in its aggregate. Written under the aggregate's lock.
    pub(crate) seat: AtomicUsize,
    pub(crate) changes: SleepLock,
    pub(crate) context: Context,
}

impl Deref for Evd {
    type Target = Dispatcher<Queue, EvdCallback, Feed>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.dispatcher
    }
}

impl Evd {
    /// Whether one of these streams has overflowed.
    pub(crate) fn have_overflowed(&self, streams: EventStreams) -> bool {
        EventStreams::from_bits_truncate(self.overflowed.load(Ordering::Acquire)).intersects(streams)
    }

    /// Whether completions were lost.
    pub(crate) fn has_lost_completions(&self) -> bool {
        self.have_overflowed(EventStreams::COMPLETIONS)
    }

    /// Ends the overflowed state of these streams.
    pub(crate) fn clear_overflow(&self, streams: EventStreams) {
        self.overflowed.fetch_and(streams.complement().bits(), Ordering::AcqRel);
    }

    /// The EVD's place in the table.
    pub(crate) fn place(&self) -> u32 {
        handle::index(self.handle.as_raw()) as u32
    }

    /// The NIC's queue, if this EVD is for completions of queue pairs.
    pub(crate) fn cq(&self) -> Option<&Arc<kernel_agent::Cq>> {
        self.completions().and_then(Completions::cq)
    }

    /// The queue of completions, if this EVD is for completions.
    pub(crate) fn completions(&self) -> Option<&Completions> {
        self.queue().completions()
    }

    /// Forgets the completions of a virtual interface that was destroyed.
    pub(crate) fn forget_completions(&self, number: u32) {
        if let Some(queue) = self.completions() {
            queue.forget(number);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue().simple().map_or(0, EventQueue::queued)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.queue().simple().map_or(0, EventQueue::capacity)
    }

    /// The number of events that a waiter can take: for an aggregate, those of its EVDs.
    pub(crate) fn total(&self) -> usize {
        match self.queue() {
            Queue::Aggregate(aggregate) => aggregate.sum(Evd::len),
            _ => self.len(),
        }
    }

    /// The number of events for which there is room: for an aggregate, in all its EVDs.
    pub(crate) fn total_capacity(&self) -> usize {
        match self.queue() {
            Queue::Simple(simple) => simple.total_capacity(),
            Queue::Aggregate(aggregate) => aggregate.sum(Evd::total_capacity),
        }
    }

    /// Whether software can queue events at any time.
    pub(crate) fn feeds_itself(&self) -> bool {
        self.streams.intersects(EventStreams::UNBOUND)
    }

    /// Queues an event that software made. False if the queue is full.
    pub(crate) fn push(&self, event: Event) -> bool {
        self.queue().simple().is_some_and(|simple| simple.push(event))
    }
}

impl Counted for Evd {
    fn uses(&self) -> &UseCount {
        &self.feeds
    }
}

/// The use count's record that an object feeds an EVD.
pub(crate) type Feed = Use<Evd>;

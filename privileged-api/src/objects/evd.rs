//! An event dispatcher.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use core::task::Waker;

use platform::sync::Mutex;
use platform::use_count::{Counted, Use, UseCount};
use platform::{Signal, SleepLock};
use rdma::events::{Completions, EventQueue};
use rdma::{Context, handle};

use crate::closed;
use crate::evd::aggregate::Aggregate;
use crate::evd::attached::Attached;
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

/// The EVD's state for its notification object.
#[derive(Default)]
pub(crate) struct Notifier {
    /// The object was ready when the EVD was disabled, and remains ready until the notification
    /// criteria are absent.
    pub(crate) kept: bool,
    pub(crate) waker: Option<Waker>,
}

pub(crate) enum Queue {
    Simple(EventQueue<Event>),
    Aggregate(Aggregate),
}

pub(crate) struct Control {
    pub(crate) waiters: usize,
    /// The waiter, if there is one, waits for several events; no other may wait meanwhile.
    pub(crate) waits_for_several: bool,
    pub(crate) callback: Option<Attached>,
    /// A callback routine runs now. It may have been detached since it began.
    pub(crate) running: bool,
    /// The serial number of the latest callback routine.
    pub(crate) serials: u64,
    /// The aggregate that this EVD feeds.
    pub(crate) aevd: Option<Feed>,
    pub(crate) notifier: Option<Notifier>,
    /// The EVD is freed.
    pub(crate) gone: bool,
}

pub(crate) struct Evd {
    pub(crate) handle: EvdHandle,
    /// The stream that a query names: the first of `streams`, or that of an aggregate.
    pub(crate) stream: EventType,
    /// The streams of a simple EVD.
    pub(crate) streams: EventStreams,
    /// The flags at creation, without CREATE_FD: a query derives that flag from `notifier`.
    pub(crate) flags: EvdFlags,
    pub(crate) queue: Queue,
    pub(crate) policy: OverflowPolicy,
    pub(crate) threshold: AtomicUsize,
    pub(crate) enabled: AtomicBool,
    /// The streams that have overflowed, as [`EventStreams`].
    pub(crate) overflowed: AtomicU8,
    /// Counts the endpoints, listen points, UD service requests and simple EVDs that feed this EVD.
    pub(crate) feeds: UseCount,
    pub(crate) control: Mutex<Control>,
    pub(crate) callback_attached: AtomicBool,
    /// This EVD feeds an aggregate or has a notification object.
    pub(crate) linked: AtomicBool,
    /// The consumer can take the events of this EVD only from its aggregate.
    pub(crate) captive: AtomicBool,
    /// The index of this EVD's seat in its aggregate. Written under the aggregate's lock.
    pub(crate) seat: AtomicUsize,
    pub(crate) changes: SleepLock,
    /// Raised when waiters should check the queue again.
    pub(crate) signal: Signal,
    pub(crate) context: Context,
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

    /// The queues, if this is a simple EVD.
    pub(crate) fn simple(&self) -> Option<&EventQueue<Event>> {
        match &self.queue {
            Queue::Simple(simple) => Some(simple),
            Queue::Aggregate(_) => None,
        }
    }

    /// The queue of completions, if this EVD is for completions.
    pub(crate) fn completions(&self) -> Option<&Completions> {
        self.simple().and_then(EventQueue::completions)
    }

    /// Forgets the completions of a virtual interface that was destroyed.
    pub(crate) fn forget_completions(&self, number: u32) {
        if let Some(queue) = self.completions() {
            queue.forget(number);
        }
    }

    #[inline(always)]
    pub(crate) fn has_callback(&self) -> bool {
        self.callback_attached.load(Ordering::Acquire)
    }

    /// Records whether a callback is attached, and closes the CQ's slot while one is. The caller
    /// holds the control lock.
    pub(crate) fn set_callback(&self, attached: bool) {
        self.callback_attached.store(attached, Ordering::Release);
        self.set_closed(closed::CALLBACK, || attached);
    }

    /// Adds or removes one of the reasons for which the CQ's slot is closed. Does nothing if this
    /// EVD has no CQ.
    pub(crate) fn set_closed(&self, reason: u32, closed: impl FnOnce() -> bool) {
        if let Some(queue) = self.completions() {
            queue.set_closed(reason, closed);
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Whether this EVD notifies an aggregate or a notification object while it is enabled.
    pub(crate) fn is_linked(&self) -> bool {
        self.linked.load(Ordering::Acquire)
    }

    pub(crate) fn is_captive(&self) -> bool {
        self.captive.load(Ordering::Acquire)
    }

    pub(crate) fn waiters(&self) -> usize {
        self.control.lock().waiters
    }

    pub(crate) fn threshold(&self) -> usize {
        self.threshold.load(Ordering::Acquire)
    }

    pub(crate) fn len(&self) -> usize {
        match &self.queue {
            Queue::Simple(simple) => simple.len(),
            Queue::Aggregate(_) => 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &self.queue {
            Queue::Simple(simple) => simple.is_empty(),
            Queue::Aggregate(aggregate) => aggregate.is_empty(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match &self.queue {
            Queue::Simple(simple) => simple.capacity(),
            Queue::Aggregate(_) => 0,
        }
    }

    /// The number of events that a waiter can take: for an aggregate, those of its EVDs.
    pub(crate) fn total(&self) -> usize {
        match &self.queue {
            Queue::Aggregate(aggregate) => aggregate.sum(Evd::len),
            _ => self.len(),
        }
    }

    /// The number of events for which there is room: for an aggregate, in all its EVDs.
    pub(crate) fn total_capacity(&self) -> usize {
        match &self.queue {
            Queue::Simple(simple) => simple.total_capacity(),
            Queue::Aggregate(aggregate) => aggregate.sum(Evd::total_capacity),
        }
    }

    /// Whether the notification criteria are present.
    pub(crate) fn notified(&self) -> bool {
        match &self.queue {
            Queue::Simple(simple) => simple.notified(self.threshold()),
            Queue::Aggregate(aggregate) => aggregate.notified(),
        }
    }

    /// Whether events can come that are announced only while the EVD is armed: all but those that
    /// software makes.
    pub(crate) fn can_arm(&self) -> bool {
        self.simple().is_none_or(|simple| simple.completions().is_some())
    }

    /// Arms the CQ, so that the next event is announced. A queue of software events needs no
    /// arming: all its events are announced.
    pub(crate) fn arm(&self) {
        match &self.queue {
            Queue::Simple(simple) => simple.arm(),
            Queue::Aggregate(aggregate) => aggregate.arm(),
        }
    }

    /// Whether the notification criteria are present. If they are not, arms the EVD.
    pub(crate) fn watch(&self) -> bool {
        if self.notified() {
            return true;
        }
        if !self.can_arm() {
            return false;
        }
        self.arm();
        // An event that arrived before the EVD was armed is not announced.
        self.notified()
    }

    /// Wakes waiters.
    pub(crate) fn wake(&self) {
        self.signal.raise();
    }

    /// Whether software can queue events at any time.
    pub(crate) fn feeds_itself(&self) -> bool {
        self.streams.intersects(EventStreams::UNBOUND)
    }

    /// Queues an event that software made. False if the queue is full.
    pub(crate) fn push(&self, event: Event) -> bool {
        self.simple().is_some_and(|simple| simple.push(event))
    }
}

impl Counted for Evd {
    fn uses(&self) -> &UseCount {
        &self.feeds
    }
}

/// The use count's record that an object feeds an EVD.
pub(crate) type Feed = Use<Evd>;

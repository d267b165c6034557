//! Event dispatchers.
//!
//! - `create`, `modify` (and query), `free`: the life of an event dispatcher (EVD).
//! - `streams`: which events a simple EVD takes; `dto`: what a completion means. The queue is
//!   [`rdma::events::EventQueue`].
//! - `aggregate`: aggregate EVDs, which collect the notifications of simple EVDs.
//! - `feed`: counts the objects that feed an EVD.
//! - `deliver`: queues events that software makes.
//! - `dequeue`, `wait`, `take`: take events; `extended`: with what IT-API has no place for.
//! - `callback`, `notification`: callback routines and notification objects.
//!
//! [`Core::announce`] runs after an event was queued: it wakes the waiters, runs or schedules the
//! callback if it is due, and notifies the aggregate or the notification object of the EVD. After
//! an event was taken, only the phase of the callback changes ([`Core::after_taking`]).
//!
//! Locks, outermost first: `changes` (sleeps; one modification at a time), the table entry
//! (shared), an EVD's `control`, the state of an aggregate, a simple EVD's queue. At most one EVD's
//! control lock is held at a time. A thread may sleep only while it holds `changes` and no other of
//! these locks. No code of the consumer runs under a lock.

mod aggregate;
pub(crate) mod callback;
mod create;
mod deliver;
mod dequeue;
pub(crate) mod dto;
mod extended;
mod feed;
mod free;
mod line;
mod modify;
mod notification;
mod streams;
mod take;
mod wait;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use aggregate::Aggregate;
use callback::Attached;
use deliver::OverflowPolicy;
use notification::Notifier;
use platform::Signal;
use platform::SleepLock;
use platform::sync::Mutex;
use platform::use_count::UseCount;
use rdma::events::{Completions, EventQueue};
use rdma::{Context, handle};

use crate::attributes::THRESHOLD_DISABLE;
use crate::closed;
use crate::event::{Event, EventType};
use crate::flags::EvdFlags;
use crate::handle::EvdHandle;
use crate::ia::Core;
use crate::status::{Error, Result};

pub use extended::{ExtendedEvent, Immediate, PlainCompletion, Posted, Taken, WaitFor};
pub(crate) use feed::Feed;
pub use notification::Notification;
pub use streams::EventStreams;
pub use wait::WaitError;

pub(crate) enum Queue {
    Simple(EventQueue<Event>),
    Aggregate(Aggregate),
}

struct Control {
    waiters: usize,
    /// The waiter, if there is one, waits for several events; no other may wait meanwhile.
    waits_for_several: bool,
    callback: Option<Attached>,
    /// A callback routine runs now. It may have been detached since it began.
    running: bool,
    /// The serial number of the latest callback routine.
    serials: u64,
    /// The aggregate that this EVD feeds.
    aevd: Option<Feed>,
    notifier: Option<Notifier>,
    /// The EVD is freed.
    gone: bool,
}

pub(crate) struct Evd {
    pub(crate) handle: EvdHandle,
    /// The stream that a query names: the first of `streams`, or that of an aggregate.
    stream: EventType,
    /// The streams of a simple EVD.
    streams: EventStreams,
    /// The flags at creation, without CREATE_FD: a query derives that flag from `notifier`.
    flags: EvdFlags,
    queue: Queue,
    policy: OverflowPolicy,
    threshold: AtomicUsize,
    enabled: AtomicBool,
    /// The streams that have overflowed, as [`EventStreams`].
    overflowed: AtomicU8,
    /// Counts the endpoints, listen points, UD service requests and simple EVDs that feed this EVD.
    pub(crate) feeds: UseCount,
    control: Mutex<Control>,
    callback_attached: AtomicBool,
    /// This EVD feeds an aggregate or has a notification object.
    linked: AtomicBool,
    /// The consumer can take the events of this EVD only from its aggregate.
    captive: AtomicBool,
    /// The index of this EVD's seat in its aggregate. Written under the aggregate's lock.
    seat: AtomicUsize,
    changes: SleepLock,
    /// Raised when waiters should check the queue again.
    signal: Signal,
    pub(crate) context: Context,
}

impl Evd {
    /// Whether one of these streams has overflowed.
    fn have_overflowed(&self, streams: EventStreams) -> bool {
        EventStreams::from_bits_truncate(self.overflowed.load(Ordering::Acquire)).intersects(streams)
    }

    /// Whether completions were lost.
    pub(crate) fn has_lost_completions(&self) -> bool {
        self.have_overflowed(EventStreams::COMPLETIONS)
    }

    /// Ends the overflowed state of these streams.
    fn clear_overflow(&self, streams: EventStreams) {
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
    fn simple(&self) -> Option<&EventQueue<Event>> {
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
    fn has_callback(&self) -> bool {
        self.callback_attached.load(Ordering::Acquire)
    }

    /// Records whether a callback is attached, and closes the CQ's slot while one is. The caller
    /// holds the control lock.
    fn set_callback(&self, attached: bool) {
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

    fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Whether this EVD notifies an aggregate or a notification object while it is enabled.
    fn is_linked(&self) -> bool {
        self.linked.load(Ordering::Acquire)
    }

    fn is_captive(&self) -> bool {
        self.captive.load(Ordering::Acquire)
    }

    fn waiters(&self) -> usize {
        self.control.lock().waiters
    }

    fn threshold(&self) -> usize {
        self.threshold.load(Ordering::Acquire)
    }

    fn len(&self) -> usize {
        match &self.queue {
            Queue::Simple(simple) => simple.len(),
            Queue::Aggregate(_) => 0,
        }
    }

    fn is_empty(&self) -> bool {
        match &self.queue {
            Queue::Simple(simple) => simple.is_empty(),
            Queue::Aggregate(aggregate) => aggregate.is_empty(),
        }
    }

    fn capacity(&self) -> usize {
        match &self.queue {
            Queue::Simple(simple) => simple.capacity(),
            Queue::Aggregate(_) => 0,
        }
    }

    /// The number of events that a waiter can take: for an aggregate, those of its EVDs.
    fn total(&self) -> usize {
        match &self.queue {
            Queue::Aggregate(aggregate) => aggregate.sum(Evd::len),
            _ => self.len(),
        }
    }

    /// The number of events for which there is room: for an aggregate, in all its EVDs.
    fn total_capacity(&self) -> usize {
        match &self.queue {
            Queue::Simple(simple) => simple.total_capacity(),
            Queue::Aggregate(aggregate) => aggregate.sum(Evd::total_capacity),
        }
    }

    /// Whether the notification criteria are present.
    fn notified(&self) -> bool {
        match &self.queue {
            Queue::Simple(simple) => simple.notified(self.threshold()),
            Queue::Aggregate(aggregate) => aggregate.notified(),
        }
    }

    /// Whether events can come that are announced only while the EVD is armed: all but those that
    /// software makes.
    fn can_arm(&self) -> bool {
        self.simple().is_none_or(|simple| simple.completions().is_some())
    }

    /// Arms the CQ, so that the next event is announced. A queue of software events needs no
    /// arming: all its events are announced.
    fn arm(&self) {
        match &self.queue {
            Queue::Simple(simple) => simple.arm(),
            Queue::Aggregate(aggregate) => aggregate.arm(),
        }
    }

    /// Whether the notification criteria are present. If they are not, arms the EVD.
    fn watch(&self) -> bool {
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
    fn feeds_itself(&self) -> bool {
        self.streams.intersects(EventStreams::UNBOUND)
    }

    /// Queues an event that software made. False if the queue is full.
    pub(crate) fn push(&self, event: Event) -> bool {
        self.simple().is_some_and(|simple| simple.push(event))
    }
}

impl Core {
    pub(super) fn evd(&self, evd: EvdHandle) -> Result<Arc<Evd>> {
        self.evds.get(evd).ok_or(Error::InvalidEvd)
    }

    /// Records the EVD as that of each asynchronous stream in the set, which can have one. Fails
    /// without a change if one of them already has an EVD.
    fn claim_singletons(&self, streams: EventStreams, evd: EvdHandle) -> Result<()> {
        let claim = |word: &AtomicU64| {
            word.compare_exchange(0, evd.as_raw(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if streams.contains(EventStreams::AFFILIATED) && !claim(&self.affiliated) {
            return Err(Error::AsyncAffEvdExists);
        }
        if streams.contains(EventStreams::UNAFFILIATED) && !claim(&self.unaffiliated) {
            self.release_singletons(evd);
            return Err(Error::AsyncUnaffEvdExists);
        }
        Ok(())
    }

    /// Takes back the record of an EVD as that of an asynchronous stream.
    fn release_singletons(&self, evd: EvdHandle) {
        for word in [&self.affiliated, &self.unaffiliated] {
            let _ = word.compare_exchange(evd.as_raw(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether the EVD's callback runs at this moment.
    pub(crate) fn callback_runs(evd: &Evd) -> bool {
        evd.control.lock().running
    }
}

const _: () = assert!(THRESHOLD_DISABLE == 0, "notified() takes a threshold of 0 for never");

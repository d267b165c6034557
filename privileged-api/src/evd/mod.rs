//! Event dispatchers.
//!
//! - `create`, `modify` (and query), `free`: the life of an event dispatcher (EVD).
//! - `queue`, `dto`: the two kinds of queue, for events that software makes and for completions.
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
pub(crate) mod queue;
mod take;
mod wait;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use aggregate::Aggregate;
use callback::Attached;
use deliver::OverflowPolicy;
use dto::DtoQueue;
use notification::Notifier;
use platform::Signal;
use platform::SleepLock;
use platform::sync::Mutex;
use platform::use_count::UseCount;
use queue::SoftQueue;
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
pub use wait::WaitError;

pub(crate) enum Queue {
    Dto(DtoQueue),
    Soft(SoftQueue),
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
    pub(crate) stream: EventType,
    /// The flags at creation, without CREATE_FD: a query derives that flag from `notifier`.
    flags: EvdFlags,
    queue: Queue,
    policy: OverflowPolicy,
    threshold: AtomicUsize,
    enabled: AtomicBool,
    overflowed: AtomicBool,
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
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// The EVD's place in the table.
    pub(crate) fn place(&self) -> u32 {
        handle::index(self.handle.as_raw()) as u32
    }

    /// The NIC's queue, if this EVD is for completions of queue pairs.
    pub(crate) fn cq(&self) -> Option<&Arc<kernel_agent::Cq>> {
        match &self.queue {
            Queue::Dto(queue) => queue.cq(),
            _ => None,
        }
    }

    /// The queue of completions, if this EVD is for completions.
    pub(crate) fn dto(&self) -> Option<&DtoQueue> {
        match &self.queue {
            Queue::Dto(queue) => Some(queue),
            _ => None,
        }
    }

    /// Forgets the completions of a virtual interface that was destroyed.
    pub(crate) fn forget_completions(&self, number: u32) {
        if let Queue::Dto(queue) = &self.queue {
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
        if let Queue::Dto(queue) = &self.queue {
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
            Queue::Dto(queue) => queue.len(),
            Queue::Soft(queue) => queue.len(),
            Queue::Aggregate(_) => 0,
        }
    }

    fn is_empty(&self) -> bool {
        match &self.queue {
            Queue::Dto(queue) => queue.is_empty(),
            Queue::Soft(queue) => queue.len() == 0,
            Queue::Aggregate(aggregate) => aggregate.is_empty(),
        }
    }

    fn capacity(&self) -> usize {
        match &self.queue {
            Queue::Dto(queue) => queue.capacity(),
            Queue::Soft(queue) => queue.capacity(),
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
            Queue::Aggregate(aggregate) => aggregate.sum(Evd::capacity),
            _ => self.capacity(),
        }
    }

    /// Whether the notification criteria are present.
    fn notified(&self) -> bool {
        match &self.queue {
            Queue::Dto(queue) => queue.notified(self.threshold()),
            Queue::Soft(queue) => queue.len() > 0,
            Queue::Aggregate(aggregate) => aggregate.notified(),
        }
    }

    /// Arms the CQ, so that the next event is announced. A queue of software events needs no
    /// arming: all its events are announced.
    fn arm(&self) {
        match &self.queue {
            Queue::Dto(queue) => queue.arm(),
            Queue::Soft(_) => {}
            Queue::Aggregate(aggregate) => aggregate.arm(),
        }
    }

    /// Whether the notification criteria are present. If they are not, arms the EVD.
    fn watch(&self) -> bool {
        if self.notified() {
            return true;
        }
        if matches!(self.queue, Queue::Soft(_)) {
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
        matches!(
            self.stream,
            EventType::ASYNC_AFF_EVENT_STREAM
                | EventType::ASYNC_UNAFF_EVENT_STREAM
                | EventType::SOFTWARE_EVENT_STREAM
        )
    }

    /// Queues an event that software made. False if the queue is full.
    pub(crate) fn push(&self, event: Event) -> bool {
        match &self.queue {
            Queue::Soft(queue) => queue.push(event),
            _ => false,
        }
    }
}

impl Core {
    pub(super) fn evd(&self, evd: EvdHandle) -> Result<Arc<Evd>> {
        self.evds.get(evd).ok_or(Error::InvalidEvd)
    }

    /// For an asynchronous stream, which can have one EVD: the word that records this EVD's handle,
    /// and the error if the stream already has an EVD.
    fn singleton(&self, stream: EventType) -> Option<(&core::sync::atomic::AtomicU64, Error)> {
        match stream {
            EventType::ASYNC_AFF_EVENT_STREAM => Some((&self.affiliated, Error::AsyncAffEvdExists)),
            EventType::ASYNC_UNAFF_EVENT_STREAM => Some((&self.unaffiliated, Error::AsyncUnaffEvdExists)),
            _ => None,
        }
    }

    /// Whether the EVD's callback runs at this moment.
    pub(crate) fn callback_runs(evd: &Evd) -> bool {
        evd.control.lock().running
    }
}

const _: () = assert!(THRESHOLD_DISABLE == 0, "notified() takes a threshold of 0 for never");

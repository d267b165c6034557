//! Event dispatchers.
//!
//! One file, one subject: `create`, `modify` (and query), `free`: the life of an event dispatcher
//! (EVD); `queue` and `dto`: where its events are; `aggregate`: EVDs that collect the notifications
//! of others; `feed`: what feeds an EVD; `deliver`: events that software makes; `dequeue`, `wait`,
//! `take`: taking events; `callback` and `notification`: other ways to learn of events.
//!
//! An event that arrives is announced ([`Core::announce`]): waiters look again, a callback may be
//! due, and the aggregate or notification object that the EVD is linked to is notified. When an
//! event is taken, only a callback has to learn of it.
//!
//! Locks, outermost first: `changes` (sleeps; one modification at a time), the table entry
//! (shared), an EVD's `control`, the state of an aggregate, a simple EVD's queue. At most one EVD's
//! control lock is held at a time. Only under `changes` may a thread wait, and no consumer's code
//! runs under a lock.

mod aggregate;
pub(crate) mod callback;
mod create;
mod deliver;
mod dequeue;
pub(crate) mod dto;
mod feed;
mod free;
mod modify;
mod notification;
pub(crate) mod queue;
mod take;
mod wait;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use aggregate::Aggregate;
use api_core::Context;
use callback::Attached;
use deliver::OverflowPolicy;
use dto::DtoQueue;
use notification::Notifier;
use platform::Signal;
use platform::SleepLock;
use platform::sync::Mutex;
use platform::use_count::UseCount;
use queue::SoftQueue;

use crate::attributes::THRESHOLD_DISABLE;
use crate::closed;
use crate::event::{Event, EventType};
use crate::flags::EvdFlags;
use crate::handle::EvdHandle;
use crate::ia::Core;
use crate::status::{Error, Result};

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
    callback: Option<Attached>,
    /// A routine runs now, whether it is still attached or not.
    running: bool,
    serials: u64,
    /// The aggregate that this EVD feeds.
    aevd: Option<Feed>,
    notifier: Option<Notifier>,
    gone: bool,
}

pub(crate) struct Evd {
    pub(crate) handle: EvdHandle,
    pub(crate) stream: EventType,
    /// Without CREATE_FD, which is cleared when the notification object is closed.
    flags: EvdFlags,
    queue: Queue,
    policy: OverflowPolicy,
    threshold: AtomicUsize,
    enabled: AtomicBool,
    overflowed: AtomicBool,
    /// Counts the endpoints, listen points, service requests and simple EVDs that feed it.
    pub(crate) feeds: UseCount,
    control: Mutex<Control>,
    callback_attached: AtomicBool,
    /// It feeds an aggregate or has a notification object.
    linked: AtomicBool,
    /// Only its aggregate takes its events.
    captive: AtomicBool,
    /// Its seat in the aggregate; written under the aggregate's lock.
    seat: AtomicUsize,
    changes: SleepLock,
    /// Raised when waiters should look again.
    signal: Signal,
    pub(crate) context: Context,
}

impl Evd {
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// The NIC's queue, if this EVD is for completions.
    pub(crate) fn cq(&self) -> Option<&Arc<kernel_agent::Cq>> {
        match &self.queue {
            Queue::Dto(queue) => Some(queue.cq()),
            _ => None,
        }
    }

    #[inline(always)]
    fn has_callback(&self) -> bool {
        self.callback_attached.load(Ordering::Acquire)
    }

    /// Under the control lock.
    fn set_callback(&self, attached: bool) {
        self.callback_attached.store(attached, Ordering::Release);
        self.set_closed(closed::CALLBACK, || attached);
    }

    /// Closes the CQ's slot for a reason, or removes that reason.
    pub(crate) fn set_closed(&self, reason: u32, closed: impl FnOnce() -> bool) {
        if let Queue::Dto(queue) = &self.queue {
            queue.set_closed(reason, closed);
        }
    }

    fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Whether it notifies an aggregate or a notification object of its events while it is enabled.
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

    /// Whether the notification criteria are present.
    fn notified(&self) -> bool {
        match &self.queue {
            Queue::Dto(queue) => queue.notified(self.threshold()),
            Queue::Soft(queue) => queue.len() > 0,
            Queue::Aggregate(aggregate) => aggregate.notified(),
        }
    }

    /// Has the next event announced. A queue of software events always announces.
    fn arm(&self) {
        match &self.queue {
            Queue::Dto(queue) => queue.arm(),
            Queue::Soft(_) => {}
            Queue::Aggregate(aggregate) => aggregate.arm(),
        }
    }

    /// Whether the notification criteria are present. If not, has the next event announced.
    fn watch(&self) -> bool {
        if self.notified() {
            return true;
        }
        if matches!(self.queue, Queue::Soft(_)) {
            return false;
        }
        self.arm();
        // What came before it was armed is not announced.
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
        self.evds.get(evd.as_raw()).ok_or(Error::InvalidEvd)
    }

    /// Where the one EVD of an asynchronous stream is recorded, and the error if there is one
    /// already.
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

const _: () = assert!(THRESHOLD_DISABLE == 0, "notified() takes 0 for never");

//! Completion channels and asynchronous events: queues of events, each with a descriptor.
//!
//! The descriptor is an eventfd that counts the events of the queue and that a read decrements by
//! one. So the kernel does what C programs expect of it: a read blocks or does not as the program
//! has set it, a signal ends it, and `poll` and `epoll` know when there is an event.
//!
//! An object that has events cannot be destroyed before the program has acknowledged those that it
//! has taken; those that it has not taken are dropped.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_int, c_uint, c_void};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::EventfdFlags;
use rustix::io::Errno as SystemError;

use crate::abi::{self, AsyncEvent};
use crate::errno::{Errno, minus_one, pointer};
use crate::opening::Context;
use crate::origin::Origin;
use crate::{cq, qp, srq};

/// Asynchronous events of a context at most.
const MOST_EVENTS: usize = 1 << 14;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events, and the descriptor that counts them.
pub(crate) struct EventQueue<T> {
    origin: Origin,
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<EventQueue<T>, Errno> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)
            .map_err(SystemError::raw_os_error)?;
        Ok(EventQueue { origin: Origin::here(), fd, queue: Mutex::new(VecDeque::new()) })
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Whether there is an event.
    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.queue).is_empty()
    }

    /// Adds an event, unless its object is being destroyed or there are so many already; then it is
    /// dropped, without the lock.
    pub(crate) fn push(&self, event: T, of: Option<&Reported>, most: usize) {
        let mut queue = locked(&self.queue);
        if queue.len() >= most || of.is_some_and(Reported::has_ended) {
            drop(queue);
            return drop(event);
        }
        queue.push_back(event);
        // Under the lock, so that the count is never above the number of events. It blocks only
        // at 2^64 - 2 events.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Takes the oldest event, as the descriptor's flags say: waits for it, or fails. `note` runs
    /// before another thread can find the event gone: who destroys its object waits for what was
    /// taken.
    pub(crate) fn take(&self, note: impl Fn(&T)) -> Result<T, Errno> {
        self.origin.check()?;
        loop {
            rustix::io::read(&self.fd, &mut [0; 8]).map_err(SystemError::raw_os_error)?;
            let mut queue = locked(&self.queue);
            // None: another thread dropped the event after this one had counted it.
            if let Some(event) = queue.pop_front() {
                note(&event);
                return Ok(event);
            }
        }
    }

    /// Removes the events of an object, which is being destroyed or moves to another queue.
    pub(crate) fn remove(&self, is_its: impl Fn(&T) -> bool) -> Vec<T> {
        let mut queue = locked(&self.queue);
        let all = std::mem::take(&mut *queue);
        let (removed, kept): (Vec<T>, Vec<T>) = all.into_iter().partition(is_its);
        *queue = kept.into();
        for _ in 0..removed.len() {
            let count = rustix::event::PollFd::new(&self.fd, rustix::event::PollFlags::IN);
            // Without waiting: a thread may have counted the event already.
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            if rustix::event::poll(&mut [count], Some(&now)).is_ok_and(|ready| ready > 0) {
                let _ = rustix::io::read(&self.fd, &mut [0; 8]);
            }
        }
        removed
    }
}

/// The events of one kind of an object: how many the program has taken and not acknowledged, and
/// whether there will be more.
#[derive(Default)]
pub(crate) struct Reported {
    unacknowledged: Mutex<u32>,
    changed: Condvar,
    /// The object is being destroyed. Read with the lock of the queue, of which the object's events
    /// are removed after this was set.
    ended: AtomicBool,
}

impl Reported {
    /// Has further events dropped: the dispatcher thread may have found the object before it was
    /// removed from its table, and an event that came later would name it when it is gone.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn taken(&self) {
        *locked(&self.unacknowledged) += 1;
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        let mut count = locked(&self.unacknowledged);
        *count = count.saturating_sub(events);
        self.changed.notify_all();
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let mut count = locked(&self.unacknowledged);
        while *count > 0 {
            count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The completion queues that have an event, one for each.
pub(crate) type Completions = EventQueue<Arc<cq::Events>>;

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    abi: abi::CompChannel,
    pub(crate) events: Arc<Completions>,
    /// The completion queues that use it. The dispatcher thread may have `events` for longer.
    pub(crate) users: AtomicUsize,
}

impl Completions {
    pub(crate) fn announce(&self, cq: &Arc<cq::Events>) {
        self.push(cq.clone(), Some(&cq.completions), usize::MAX);
    }

    pub(crate) fn forget_cq(&self, cq: &Arc<cq::Events>) {
        self.remove(|other| Arc::ptr_eq(other, cq));
    }
}

/// The completion channel of a pointer.
///
/// # Safety
///
/// The pointer is one that [`create_comp_channel`] returned.
pub(crate) unsafe fn channel<'a>(channel: *mut abi::CompChannel) -> &'a Channel {
    // SAFETY: the caller's; `abi` is the first field.
    unsafe { &*channel.cast::<Channel>() }
}

/// `ibv_create_comp_channel`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn create_comp_channel(context: *mut abi::Context) -> *mut abi::CompChannel {
    pointer(EventQueue::new().map(|events| {
        let abi = abi::CompChannel { context, fd: events.fd(), refcnt: 0 };
        Box::into_raw(Box::new(Channel { abi, events: Arc::new(events), users: AtomicUsize::new(0) })).cast()
    }))
}

/// `ibv_destroy_comp_channel`: `EBUSY` while a completion queue uses it. A thread that waits for an
/// event of the channel goes on waiting, as with rdma-core.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn destroy_comp_channel(this: *mut abi::CompChannel) -> c_int {
    // SAFETY: see the crate.
    if unsafe { channel(this) }.users.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: it came from `create_comp_channel`, and no completion queue has it.
    drop(unsafe { Box::from_raw(this.cast::<Channel>()) });
    0
}

/// `ibv_get_cq_event`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_cq_event(
    this: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // A clone: another thread may destroy the channel while this one waits.
    // SAFETY: see the crate.
    let queue = unsafe { &channel(this).events }.clone();
    minus_one(queue.take(|events| events.completions.taken()).map(|events| {
        let of = events.object.at();
        // SAFETY: see the crate; a completion queue with such events is not destroyed.
        unsafe {
            *cq = of;
            *cq_context = (*of).cq_context;
        }
    }))
}

/// `ibv_ack_cq_events`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn ack_cq_events(cq: *mut abi::Cq, events: c_uint) {
    // SAFETY: see the crate.
    let of = unsafe { cq::of(cq) };
    if of.events.object.opening.origin.check().is_ok() {
        of.events.completions.acknowledge(events);
    }
}

/// What an asynchronous event is about.
#[derive(Clone)]
pub(crate) enum Element {
    Cq(Arc<cq::Events>),
    Qp(Arc<qp::Events>),
    Srq(Arc<srq::Events>),
    /// The port, or the whole device.
    Port,
}

impl Element {
    fn reported(&self) -> Option<&Reported> {
        match self {
            Element::Cq(cq) => Some(&cq.object.asynchronous),
            Element::Qp(qp) => Some(&qp.asynchronous),
            Element::Srq(srq) => Some(&srq.asynchronous),
            Element::Port => None,
        }
    }
}

/// Asynchronous events, and their kinds.
type Asynchronous = EventQueue<(Element, c_int)>;

/// The asynchronous events of an opening: [`MOST_EVENTS`] at most, further ones are dropped.
pub(crate) struct AsyncQueue {
    fd: c_int,
    /// None when the opening is closed: the descriptor is closed when the last thread has left that
    /// waits. The lock is a leaf.
    open: Mutex<Option<Arc<Asynchronous>>>,
}

impl AsyncQueue {
    pub(crate) fn new() -> Result<AsyncQueue, Errno> {
        let queue = EventQueue::new()?;
        Ok(AsyncQueue { fd: queue.fd(), open: Mutex::new(Some(Arc::new(queue))) })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    fn queue(&self) -> Option<Arc<Asynchronous>> {
        locked(&self.open).clone()
    }

    pub(crate) fn push(&self, element: Element, what: c_int) {
        if let Some(queue) = self.queue() {
            let of = element.clone();
            queue.push((element, what), of.reported(), MOST_EVENTS);
        }
    }

    /// Drops the events of an object.
    pub(crate) fn forget(&self, of: &Reported) {
        if let Some(queue) = self.queue() {
            queue.remove(|(element, _)| element.reported().is_some_and(|reported| ptr::eq(reported, of)));
        }
    }

    /// The opening is closed.
    pub(crate) fn close(&self) {
        let queue = locked(&self.open).take();
        drop(queue);
    }
}

/// `ibv_get_async_event`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn get_async_event(context: *mut abi::Context, event: *mut AsyncEvent) -> c_int {
    // SAFETY: see the crate.
    let opening = unsafe { Context::opening(context) };
    let take = || {
        opening.origin.check()?;
        // Another thread may close the context while this one waits.
        let queue = opening.asynchronous.queue().ok_or(libc::EIO)?;
        queue.take(|(element, _)| {
            if let Some(reported) = element.reported() {
                reported.taken();
            }
        })
    };
    minus_one(take().map(|(element, event_type)| {
        let element = match element {
            Element::Cq(cq) => cq.object.at() as usize,
            Element::Qp(qp) => qp.at() as usize,
            Element::Srq(srq) => srq.at() as usize,
            Element::Port => 1,
        };
        // SAFETY: see the crate.
        unsafe { *event = AsyncEvent { element, event_type } };
    }))
}

/// `ibv_ack_async_event`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn ack_async_event(event: *mut AsyncEvent) {
    use abi::event as e;
    // SAFETY: see the crate; an object with an event that is not acknowledged is not destroyed.
    unsafe {
        let element = (*event).element;
        match (*event).event_type {
            e::CQ_ERR => cq::of(element as *mut abi::Cq).events.object.asynchronous.acknowledge(1),
            e::SRQ_ERR | e::SRQ_LIMIT_REACHED => {
                srq::of(element as *mut abi::Srq).events.asynchronous.acknowledge(1);
            }
            e::QP_FATAL
            | e::QP_REQ_ERR
            | e::QP_ACCESS_ERR
            | e::COMM_EST
            | e::SQ_DRAINED
            | e::QP_LAST_WQE_REACHED => qp::of(element as *mut abi::Qp).events.asynchronous.acknowledge(1),
            _ => {}
        }
    }
}

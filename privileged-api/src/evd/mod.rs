//! Event dispatchers: creation, query, modification, freeing, taking events (pages it_evd_create, it_evd_query,
//! it_evd_modify, it_evd_free, it_evd_dequeue, it_evd_post_se, it_evd_callback_attach, it_evd_callback_detach).
//!
//! Owns the queue (the NIC's CQ or a software one), the callback and the count of what feeds it.
//!
//! Locks, outermost first: the table entry (shared), `control`, the queue's. The platform is never waited on under any of them.

pub(crate) mod callback;
pub(crate) mod dto;
mod queue;
mod wait;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use kernel_agent::Completion;
use nic_abi::cqe::Status;
use platform::sync::Mutex;

use crate::attributes::{EvdParam, THRESHOLD_DISABLE};
use crate::context::Context;
use crate::event::{AffiliatedCause, DtoCompletion, Event, EventType};
use crate::flags::{EvdFlags, EvdParamMask};
use crate::handle::{EpHandle, EvdHandle};
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};
use crate::table::UseCount;
use callback::{Attached, EvdCallback, Origin};
use dto::DtoQueue;
use queue::SoftQueue;

pub use wait::WaitError;

/// Completions that are taken under one hold of the locks.
const CHUNK: usize = 16;

pub(crate) enum Queue {
    Dto(DtoQueue),
    Soft(SoftQueue),
}

/// What an overflow does.
#[derive(Clone, Copy)]
struct OverflowPolicy {
    /// An event tells of it.
    notify: bool,
    /// Room in the queue ends it.
    auto_reset: bool,
}

struct Control {
    waiters: usize,
    callback: Option<Attached>,
    /// A routine runs now, attached still or not.
    running: bool,
    serials: u64,
    gone: bool,
}

pub(crate) struct Evd {
    pub(crate) handle: EvdHandle,
    pub(crate) stream: EventType,
    flags: EvdFlags,
    queue: Queue,
    policy: OverflowPolicy,
    threshold: AtomicUsize,
    enabled: AtomicBool,
    overflowed: AtomicBool,
    /// Endpoints and listen points that feed it.
    pub(crate) feeds: UseCount,
    control: Mutex<Control>,
    callback_attached: AtomicBool,
    /// Changes when a waiter should look again.
    signal: AtomicU32,
    platform: Arc<dyn platform::Platform>,
    pub(crate) context: Context,
}

impl Evd {
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// The NIC's queue, of a dispatcher of completions.
    pub(crate) fn cq(&self) -> Option<&Arc<kernel_agent::Cq>> {
        match &self.queue {
            Queue::Dto(queue) => Some(queue.cq()),
            Queue::Soft(_) => None,
        }
    }

    #[inline(always)]
    fn has_callback(&self) -> bool {
        self.callback_attached.load(Ordering::Acquire)
    }

    fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    fn threshold(&self) -> usize {
        self.threshold.load(Ordering::Acquire)
    }

    fn len(&self) -> usize {
        match &self.queue {
            Queue::Dto(queue) => queue.len(),
            Queue::Soft(queue) => queue.len(),
        }
    }

    fn is_empty(&self) -> bool {
        match &self.queue {
            Queue::Dto(queue) => queue.is_empty(),
            Queue::Soft(queue) => queue.len() == 0,
        }
    }

    fn capacity(&self) -> usize {
        match &self.queue {
            Queue::Dto(queue) => queue.capacity(),
            Queue::Soft(queue) => queue.capacity(),
        }
    }

    /// Whether the notification criteria are present.
    fn notified(&self) -> bool {
        match &self.queue {
            Queue::Dto(queue) => queue.notified(self.threshold()),
            Queue::Soft(queue) => queue.len() > 0,
        }
    }

    /// Makes waiters look again.
    pub(crate) fn wake(&self) {
        self.signal.fetch_add(1, Ordering::AcqRel);
        self.platform.wake(&self.signal);
    }

    /// Whether events of software can come at any time.
    fn feeds_itself(&self) -> bool {
        matches!(
            self.stream,
            EventType::ASYNC_AFF_EVENT_STREAM
                | EventType::ASYNC_UNAFF_EVENT_STREAM
                | EventType::SOFTWARE_EVENT_STREAM
        )
    }

    /// Queues an event that software made; false if the queue is full.
    pub(crate) fn push(&self, event: Event) -> bool {
        match &self.queue {
            Queue::Soft(queue) => queue.push(event),
            Queue::Dto(_) => false,
        }
    }

    /// Takes the oldest event of a software queue.
    fn take_soft(&self, queue: &SoftQueue) -> Option<Event> {
        let event = queue.pop()?;
        if self.policy.auto_reset {
            self.overflowed.store(false, Ordering::Release);
        }
        Some(event)
    }
}

/// The streams that a simple dispatcher can have.
fn is_simple(stream: EventType) -> bool {
    matches!(
        stream,
        EventType::DTO_EVENT_STREAM
            | EventType::CM_REQ_EVENT_STREAM
            | EventType::CM_MSG_EVENT_STREAM
            | EventType::ASYNC_AFF_EVENT_STREAM
            | EventType::ASYNC_UNAFF_EVENT_STREAM
            | EventType::SOFTWARE_EVENT_STREAM
    )
}

fn policy(stream: EventType, flags: EvdFlags) -> Result<OverflowPolicy> {
    let default = flags.contains(EvdFlags::OVERFLOW_DEFAULT);
    let notify = flags.contains(EvdFlags::OVERFLOW_NOTIFY);
    let auto_reset = flags.contains(EvdFlags::OVERFLOW_AUTO_RESET);
    let dto = stream == EventType::DTO_EVENT_STREAM;
    if default && (notify || auto_reset)
        || auto_reset && (!notify || dto)
        || notify && stream == EventType::ASYNC_UNAFF_EVENT_STREAM
    {
        return Err(Error::InvalidFlags);
    }
    if !default {
        return Ok(OverflowPolicy { notify, auto_reset });
    }
    Ok(match stream {
        EventType::DTO_EVENT_STREAM => OverflowPolicy { notify: true, auto_reset: false },
        EventType::CM_MSG_EVENT_STREAM | EventType::ASYNC_AFF_EVENT_STREAM => {
            OverflowPolicy { notify: true, auto_reset: true }
        }
        _ => OverflowPolicy { notify: false, auto_reset: false },
    })
}

impl Core {
    /// Queues an event that software made; an overflow is dealt with as the dispatcher was told.
    pub(crate) fn deliver(&self, evd: &Evd, event: Event, origin: Origin<'_>) {
        if evd.push(event) {
            self.announce(evd, origin);
        } else {
            self.overflow(evd, origin);
        }
    }

    /// A dispatcher could not take an event.
    pub(crate) fn overflow(&self, evd: &Evd, origin: Origin<'_>) {
        // The unaffiliated stream loses events silently (it_unaffiliated_event_t).
        if evd.stream == EventType::ASYNC_UNAFF_EVENT_STREAM {
            return;
        }
        let before = evd.overflowed.swap(true, Ordering::AcqRel);
        if before || !evd.policy.notify {
            return;
        }
        if evd.stream == EventType::ASYNC_AFF_EVENT_STREAM {
            self.tell_unaffiliated(EventType::ASYNC_UNAFF_SEVD_ENQUEUE_FAILURE, origin);
        } else {
            let cause = AffiliatedCause::Sevd(evd.handle);
            self.tell_affiliated(EventType::ASYNC_AFF_SEVD_ENQUEUE_FAILURE, cause, origin);
        }
    }

    /// Queues an affiliated event, if a dispatcher takes them.
    pub(crate) fn tell_affiliated(
        &self,
        event_number: EventType,
        cause: AffiliatedCause,
        origin: Origin<'_>,
    ) {
        if let Some(evd) = self.evds.get(self.affiliated.load(Ordering::Acquire)) {
            self.deliver(&evd, Event::Affiliated { event_number, evd: evd.handle, cause }, origin);
        }
    }

    /// Queues an unaffiliated event, if a dispatcher takes them.
    pub(crate) fn tell_unaffiliated(&self, event_number: EventType, origin: Origin<'_>) {
        if let Some(evd) = self.evds.get(self.unaffiliated.load(Ordering::Acquire)) {
            let (ia, spigot_id) = (self.handle, crate::ia::SPIGOT);
            let event = Event::Unaffiliated { event_number, evd: evd.handle, ia, spigot_id };
            self.deliver(&evd, event, origin);
        }
    }

    /// What there is to do after events were taken by a consumer.
    fn taken(&self, evd: &Evd) {
        if evd.has_callback() && evd.drained() {
            self.due(evd, Origin::Call);
        }
    }

    /// A completion that failed was taken: its connection breaks and its link never was.
    #[cold]
    pub(crate) fn failed(&self, completion: &Completion) {
        match EventType(completion.data & dto::note::EVENT) {
            EventType::LMR_LINK_CMPL => self.link_failed(completion.data),
            EventType::RMR_LINK_CMPL => self.rmr_link_failed(completion.data),
            _ => {}
        }
        // What was flushed says that the endpoint is non-operational already, for a reason that is told elsewhere.
        if completion.status != Status::Flushed {
            let ep = EpHandle::from_raw(completion.context);
            self.broken(ep, Some(completion.qpn), Origin::Call);
        }
    }

    fn evd(&self, evd: EvdHandle) -> Result<Arc<Evd>> {
        self.evds.get(evd.as_raw()).ok_or(Error::InvalidEvd)
    }

    /// Where the dispatcher of an asynchronous stream is noted.
    fn singleton(&self, stream: EventType) -> Option<(&core::sync::atomic::AtomicU64, Error)> {
        match stream {
            EventType::ASYNC_AFF_EVENT_STREAM => Some((&self.affiliated, Error::AsyncAffEvdExists)),
            EventType::ASYNC_UNAFF_EVENT_STREAM => Some((&self.unaffiliated, Error::AsyncUnaffEvdExists)),
            _ => None,
        }
    }

    /// Frees a dispatcher that was marked as going.
    pub(crate) fn bury_evd(&self, evd: &Evd) {
        if let Some((place, _)) = self.singleton(evd.stream) {
            let _ = place.compare_exchange(evd.handle.as_raw(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.evds.remove(evd.handle.as_raw());
        let callback = {
            let mut control = evd.control.lock();
            control.gone = true;
            control.callback.take()
        };
        evd.callback_attached.store(false, Ordering::Release);
        drop(callback);
        evd.wake();
        if let Queue::Dto(queue) = &evd.queue {
            // Nothing uses it any more, so this can only fail with the device, and then the CQ is gone, too.
            let _ = queue.cq().destroy();
        }
    }

    /// Whether the dispatcher's callback runs at this moment.
    pub(crate) fn callback_runs(evd: &Evd) -> bool {
        evd.control.lock().running
    }
}

impl Ia {
    /// Creates a simple event dispatcher for one event stream.
    ///
    /// `sevd_queue_size` events fit at least; a size of 0 stands for 1. `sevd_threshold` matters to completions only; 0
    /// ([`THRESHOLD_DISABLE`]) means that only notification events notify. `aevd` must be null: there are no aggregate dispatchers.
    ///
    /// Errors: `InvalidEvdType`; `InvalidFlags` (also for a flag that is not for this stream, and for
    /// [`EvdFlags::CREATE_FD`]: a kernel has no file descriptors); `MismatchFd`; `InvalidAevd`; `InvalidThreshold`;
    /// `AsyncAffEvdExists`; `AsyncUnaffEvdExists`; `ResourceQueueSize`; `Resources`; `InvalidIa`; `IaCatastrophe`.
    /// Blocks for the device (completions). Not for callbacks. Thread-safe. Page it_evd_create.
    #[doc(alias = "it_evd_create")]
    pub fn evd_create(
        &self,
        event_number: EventType,
        evd_flag: EvdFlags,
        sevd_queue_size: usize,
        sevd_threshold: usize,
        aevd: EvdHandle,
    ) -> Result<EvdHandle> {
        let core = self.live()?;
        core.shared.not_in_callback()?;
        if !is_simple(event_number) {
            return Err(Error::InvalidEvdType);
        }
        let fd = evd_flag.contains(EvdFlags::CREATE_FD);
        if fd && !aevd.is_null() {
            return Err(Error::MismatchFd);
        }
        if fd
            || evd_flag.contains(EvdFlags::DEQUEUE_NOTIFICATIONS)
            || EvdFlags::from_bits(evd_flag.bits()).is_none()
        {
            return Err(Error::InvalidFlags);
        }
        let policy = policy(event_number, evd_flag)?;
        if !aevd.is_null() {
            return Err(Error::InvalidAevd);
        }
        let reservation = core.evds.reserve()?;
        let handle = EvdHandle::from_raw(reservation.word());
        let singleton = core.singleton(event_number);
        if let Some((place, exists)) = singleton
            && place.compare_exchange(0, handle.as_raw(), Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return Err(exists);
        }
        let queue = core.new_queue(event_number, sevd_queue_size, handle).and_then(|queue| {
            let capacity = match &queue {
                Queue::Dto(queue) => queue.capacity(),
                Queue::Soft(queue) => queue.capacity(),
            };
            if sevd_threshold <= capacity {
                return Ok(queue);
            }
            if let Queue::Dto(queue) = &queue {
                let _ = queue.cq().destroy();
            }
            Err(Error::InvalidThreshold)
        });
        let queue = match queue {
            Ok(queue) => queue,
            Err(error) => {
                if let Some((place, _)) = singleton {
                    place.store(0, Ordering::Release);
                }
                return Err(error);
            }
        };
        reservation.fill(Arc::new(Evd {
            handle,
            stream: event_number,
            flags: evd_flag,
            queue,
            policy,
            threshold: AtomicUsize::new(sevd_threshold),
            enabled: AtomicBool::new(true),
            overflowed: AtomicBool::new(false),
            feeds: UseCount::new(),
            control: Mutex::new(Control {
                waiters: 0,
                callback: None,
                running: false,
                serials: 0,
                gone: false,
            }),
            callback_attached: AtomicBool::new(false),
            signal: AtomicU32::new(0),
            platform: core.shared.platform.clone(),
            context: Context::new(),
        }));
        Ok(handle)
    }

    /// Destroys an event dispatcher; events that are queued are lost, waiters return [`Error::Abort`].
    ///
    /// Errors: `InvalidEvd`; `InvalidEvdState` while its callback runs; `EvdBusy` while an endpoint or listen point feeds it;
    /// `InvalidIa`; `IaCatastrophe`. Blocks for the device (completions). May be called in a callback of another dispatcher. Page it_evd_free.
    #[doc(alias = "it_evd_free")]
    pub fn evd_free(&self, evd: EvdHandle) -> Result<()> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        if Core::callback_runs(&evd) {
            return Err(Error::InvalidEvdState);
        }
        if !evd.feeds.retire() {
            return Err(if evd.feeds.in_use() { Error::EvdBusy } else { Error::InvalidEvd });
        }
        // A callback may have begun meanwhile.
        if Core::callback_runs(&evd) {
            evd.feeds.revive();
            return Err(Error::InvalidEvdState);
        }
        core.bury_evd(&evd);
        Ok(())
    }

    /// Says what an event dispatcher is like now.
    ///
    /// Errors: `InvalidEvd`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks.
    /// Thread-safe. Page it_evd_query.
    #[doc(alias = "it_evd_query")]
    pub fn evd_query(&self, evd: EvdHandle, mask: EvdParamMask) -> Result<EvdParam> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        if EvdParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let wants = |bit| mask.intersects(bit | EvdParamMask::ALL);
        let mut param = EvdParam::default();
        if wants(EvdParamMask::IA) {
            param.ia = core.handle;
        }
        if wants(EvdParamMask::EVENT_NUMBER) {
            param.event_number = evd.stream;
        }
        if wants(EvdParamMask::FLAG) {
            param.evd_flag = evd.flags;
        }
        if wants(EvdParamMask::QUEUE_SIZE) {
            param.sevd_queue_size = evd.capacity();
        }
        if wants(EvdParamMask::THRESHOLD) {
            param.sevd_threshold = evd.threshold();
        }
        if wants(EvdParamMask::BOUND) {
            param.evd_bound = evd.feeds_itself() || evd.feeds.in_use();
        }
        if wants(EvdParamMask::ENABLED) {
            param.evd_enabled = evd.is_enabled();
        }
        if wants(EvdParamMask::OVERFLOWED) {
            param.evd_overflowed = evd.has_overflowed();
        }
        if wants(EvdParamMask::CALLBACK) {
            param.evd_callback = evd.has_callback();
        }
        Ok(param)
    }

    /// Changes an event dispatcher: queue size, threshold, enabled, overflowed. All or nothing; a size and a threshold that are given together
    /// are checked against each other. Overflow of a dispatcher of completions cannot be cleared: that part is without effect there, as is setting it.
    ///
    /// Errors: `InvalidEvd`, `InvalidMask`, `InvalidQueueSize`, `InvalidThreshold`, `ResourceQueueSize`, `InvalidAevd`,
    /// `InvalidEvdState`, `CallbackExists`, `InvalidIa`, `IaCatastrophe`. Blocks for the device (size of completions). Not for callbacks.
    /// Page it_evd_modify.
    #[doc(alias = "it_evd_modify")]
    pub fn evd_modify(&self, evd: EvdHandle, mask: EvdParamMask, params: &EvdParam) -> Result<()> {
        let core = self.live()?;
        core.shared.not_in_callback()?;
        let evd = core.evd(evd)?;
        let modifiable = EvdParamMask::QUEUE_SIZE
            | EvdParamMask::THRESHOLD
            | EvdParamMask::AEVD_HANDLE
            | EvdParamMask::ENABLED
            | EvdParamMask::OVERFLOWED;
        if mask.bits() & !modifiable.bits() != 0 {
            return Err(Error::InvalidMask);
        }
        if mask.contains(EvdParamMask::AEVD_HANDLE) {
            return Err(match (params.aevd.is_null(), evd.has_callback()) {
                (false, true) => Error::CallbackExists,
                (false, false) => Error::InvalidAevd,
                (true, _) => Error::InvalidEvdState,
            });
        }
        let resize = mask.contains(EvdParamMask::QUEUE_SIZE).then_some(params.sevd_queue_size.max(1));
        let size = resize.unwrap_or_else(|| evd.capacity());
        if mask.contains(EvdParamMask::THRESHOLD) {
            if params.sevd_threshold > size {
                return Err(Error::InvalidThreshold);
            }
        } else if evd.threshold() > size {
            return Err(Error::InvalidQueueSize);
        }
        if let Some(size) = resize {
            match &evd.queue {
                Queue::Dto(queue) => queue.resize(size).map_err(|error| core.judge(error))?,
                Queue::Soft(queue) => queue.resize(size)?,
            }
            if evd.policy.auto_reset {
                evd.overflowed.store(false, Ordering::Release);
            }
        }
        if mask.contains(EvdParamMask::THRESHOLD) {
            evd.threshold.store(params.sevd_threshold, Ordering::Release);
        }
        if mask.contains(EvdParamMask::OVERFLOWED)
            && !params.evd_overflowed
            && matches!(evd.queue, Queue::Soft(_))
        {
            evd.overflowed.store(false, Ordering::Release);
        }
        if mask.contains(EvdParamMask::ENABLED) {
            evd.enabled.store(params.evd_enabled, Ordering::Release);
        }
        // Waiters and the callback look again, by the new threshold.
        core.announce(&evd, Origin::Call);
        Ok(())
    }

    /// Takes the oldest event.
    ///
    /// When a completion of an endpoint is returned, all that was posted before it to the same queue is complete, too.
    ///
    /// Errors: `QueueEmpty`, `InvalidEvd`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe.
    /// Page it_evd_dequeue.
    #[doc(alias = "it_evd_dequeue")]
    #[inline]
    pub fn evd_dequeue(&self, evd: EvdHandle) -> Result<Event> {
        let core = self.live()?;
        let Some(entry) = core.evds.lock(evd.as_raw()) else { return Err(Error::InvalidEvd) };
        let Some(found) = entry.object() else { return Err(Error::InvalidEvd) };
        let Queue::Dto(queue) = &found.queue else {
            let found = found.clone();
            drop(entry);
            return core.dequeue_slowly(&found);
        };
        let Some(mut polling) = queue.polling() else {
            let found = found.clone();
            drop(entry);
            return core.dequeue_slowly(&found);
        };
        let done = match polling.plain() {
            Ok(done) => done,
            Err(rest) => {
                let completion = polling.rest(rest);
                let found = found.clone();
                drop(entry);
                return core.dequeued(&found, completion);
            }
        };
        drop(polling);
        if found.has_callback() {
            let found = found.clone();
            drop(entry);
            core.after_taking(&found, None);
        }
        Ok(Event::Dto(dto::plain(done, evd)))
    }

    /// Takes many completions at once, oldest first; returns how many, at least one. An extension.
    ///
    /// Errors: `QueueEmpty`; `InvalidEvd`; `InvalidEvdType` if it is no dispatcher of completions; `InvalidIa`; `IaCatastrophe`. Does not
    /// block. May be called in callbacks. Thread-safe.
    #[inline]
    pub fn evd_dequeue_n(&self, evd: EvdHandle, into: &mut [DtoCompletion]) -> Result<usize> {
        let core = self.live()?;
        let mut taken = 0;
        loop {
            let Some(entry) = core.evds.lock(evd.as_raw()) else {
                return if taken == 0 { Err(Error::InvalidEvd) } else { Ok(taken) };
            };
            let Some(found) = entry.object() else { return Err(Error::InvalidEvd) };
            let Queue::Dto(queue) = &found.queue else { return Err(Error::InvalidEvdType) };
            let rest = into.get_mut(taken..).unwrap_or_default();
            let wanted = rest.len().min(CHUNK);
            let (came, failure) = queue.take_n(evd, &mut rest[..wanted]);
            taken += came;
            // What failed is dealt with outside the locks, before what comes after it is taken.
            if failure.is_some() || found.has_callback() {
                let found = found.clone();
                drop(entry);
                core.after_taking(&found, failure);
            }
            if came == 0 || taken == into.len() {
                break;
            }
        }
        if taken == 0 { Err(Error::QueueEmpty) } else { Ok(taken) }
    }

    /// Posts a software event; `data` comes back in it.
    ///
    /// Errors: `EvdQueueFull`, `InvalidEvd`, `InvalidSoftEvd`, `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks.
    /// Thread-safe. Page it_evd_post_se.
    #[doc(alias = "it_evd_post_se")]
    pub fn evd_post_se(&self, evd: EvdHandle, data: usize) -> Result<()> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        match &evd.queue {
            Queue::Soft(queue) if evd.stream == EventType::SOFTWARE_EVENT_STREAM => {
                if !queue.push(Event::Software { evd: evd.handle, data }) {
                    return Err(Error::EvdQueueFull);
                }
            }
            _ => return Err(Error::InvalidSoftEvd),
        }
        core.announce(&evd, Origin::Call);
        Ok(())
    }

    /// Attaches a routine that runs when the dispatcher notifies. A queue that is empty now counts as drained.
    ///
    /// The routine runs once when the notification criteria become present, then not before all events were taken again.
    ///
    /// Errors, in this order: `InvalidEvd`, `NoPermission` (the consumer is not privileged), `CallbackExists`, `EvdWait`;
    /// also `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe. Page it_evd_callback_attach.
    #[doc(alias = "it_evd_callback_attach")]
    pub fn evd_callback_attach(&self, evd: EvdHandle, callback: EvdCallback) -> Result<()> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        core.privileged()?;
        {
            let mut guard = evd.control.lock();
            let control = &mut *guard;
            if control.gone {
                return Err(Error::InvalidEvd);
            }
            if control.callback.is_some() {
                return Err(Error::CallbackExists);
            }
            if control.waiters > 0 {
                return Err(Error::EvdWait);
            }
            control.serials += 1;
            control.callback = Some(Attached::new(callback, control.serials));
            evd.callback_attached.store(true, Ordering::Release);
        }
        core.taken(&evd);
        Ok(())
    }

    /// Detaches the callback routine; one that runs now is not waited for. May be called in the routine itself.
    ///
    /// Errors: `InvalidEvd`, `NoPermission`, `InvalidEvdState` (none is attached), `InvalidIa`, `IaCatastrophe`. Does not block.
    /// May be called in callbacks. Thread-safe. Page it_evd_callback_detach.
    #[doc(alias = "it_evd_callback_detach")]
    pub fn evd_callback_detach(&self, evd: EvdHandle) -> Result<()> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        core.privileged()?;
        let callback = {
            let mut control = evd.control.lock();
            evd.callback_attached.store(false, Ordering::Release);
            control.callback.take()
        };
        if callback.is_some() { Ok(()) } else { Err(Error::InvalidEvdState) }
    }
}

impl Core {
    /// What a plain taking of completions leaves to do when the dispatcher's entry is no longer held: `failure` was taken last.
    #[cold]
    #[inline(never)]
    fn after_taking(&self, evd: &Evd, failure: Option<Completion>) {
        if let Some(completion) = &failure {
            self.failed(completion);
        }
        self.taken(evd);
    }

    /// Takes the oldest event of a dispatcher whose queue is no CQ, or has a stage in front.
    #[inline(never)]
    fn dequeue_slowly(&self, evd: &Evd) -> Result<Event> {
        match &evd.queue {
            Queue::Soft(queue) => {
                let event = evd.take_soft(queue);
                self.taken(evd);
                event.ok_or(Error::QueueEmpty)
            }
            Queue::Dto(queue) => self.dequeued(evd, queue.take()),
        }
    }

    /// What `completion`, just taken without holding anything any more, makes.
    #[inline(never)]
    fn dequeued(&self, evd: &Evd, completion: Option<Completion>) -> Result<Event> {
        let failure = completion.filter(|completion| completion.status != Status::Success);
        self.after_taking(evd, failure);
        let completion = completion.ok_or(Error::QueueEmpty)?;
        Ok(Event::Dto(dto::event(&completion, evd.handle, &self.owners)))
    }
}

impl Core {
    fn new_queue(self: &Arc<Core>, stream: EventType, size: usize, handle: EvdHandle) -> Result<Queue> {
        let size = size.max(1);
        if stream != EventType::DTO_EVENT_STREAM {
            return Ok(Queue::Soft(SoftQueue::new(size)?));
        }
        let entries = u32::try_from(size).map_err(|_| Error::ResourceQueueSize)?;
        let created = self.client()?.create_cq(entries, handle.as_raw());
        let cq = created.map_err(|error| match error {
            kernel_agent::Error::OutOfRange(_) => Error::ResourceQueueSize,
            other => self.error(other),
        })?;
        DtoQueue::new(cq.clone(), self.owners.clone()).map(Queue::Dto).inspect_err(|_| {
            let _ = cq.destroy();
        })
    }
}

const _: () = assert!(THRESHOLD_DISABLE == 0, "notified() takes 0 for never");

//! Creating an event dispatcher (page it_evd_create).

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kernel_agent::SlotParams;
use platform::Signal;
use platform::SleepLock;
use platform::heap;
use platform::sync::Mutex;
use platform::use_count::UseCount;
use rdma::{Context, handle};

use super::aggregate::Aggregate;
use super::callback::Origin;
use super::deliver::policy;
use super::dto::{DtoQueue, Source};
use super::notification::Notifier;
use super::queue::SoftQueue;
use super::{Control, Evd, Queue};
use crate::closed;
use crate::event::EventType;
use crate::flags::EvdFlags;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};
use crate::via::queue::ViaQueue;

/// Whether a simple event dispatcher can have this stream.
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

/// Flags that only a simple event dispatcher can have.
const SIMPLE: EvdFlags =
    EvdFlags::OVERFLOW_DEFAULT.union(EvdFlags::OVERFLOW_NOTIFY).union(EvdFlags::OVERFLOW_AUTO_RESET);

impl Ia {
    /// Creates an event dispatcher: a simple one for one event stream, or an aggregate
    /// ([`EventType::AEVD_NOTIFICATION_EVENT_STREAM`]), which simple event dispatchers feed. The
    /// new event dispatcher is enabled.
    ///
    /// The queue has room for at least `sevd_queue_size` events; a size of 0 means 1.
    /// `sevd_threshold` applies to completions only; 0
    /// ([`THRESHOLD_DISABLE`](crate::THRESHOLD_DISABLE)) means that only notification events
    /// notify. `aevd` is the aggregate that the new event dispatcher feeds, or null. An aggregate
    /// has neither size nor threshold: both are ignored.
    ///
    /// An aggregate with [`EvdFlags::DEQUEUE_NOTIFICATIONS`] returns events that name the event
    /// dispatcher that notified. Without this flag it returns the events of its event dispatchers,
    /// and the consumer cannot take these from the event dispatchers directly. With
    /// [`EvdFlags::CREATE_FD`] the event dispatcher has a [`Notification`](crate::Notification),
    /// see [`Ia::evd_notification`].
    ///
    /// Errors: `InvalidEvdType`; `AevdNotAllowed` (an aggregate cannot feed an aggregate);
    /// `MismatchFd` (both an aggregate and a notification object); `InvalidFlags` (also for a flag
    /// that this stream or kind does not allow); `InvalidAevd`; `InvalidThreshold`;
    /// `AsyncAffEvdExists`; `AsyncUnaffEvdExists`; `ResourceQueueSize`; `Resources`; `InvalidIa`;
    /// `IaCatastrophe`. Blocks for the device (completions). Not for callbacks. Thread-safe. Page
    /// it_evd_create.
    #[doc(alias = "it_evd_create")]
    pub fn evd_create(
        &self,
        event_number: EventType,
        evd_flag: EvdFlags,
        sevd_queue_size: usize,
        sevd_threshold: usize,
        aevd: EvdHandle,
    ) -> Result<EvdHandle> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let aggregate = event_number == EventType::AEVD_NOTIFICATION_EVENT_STREAM;
        if !aggregate && !is_simple(event_number) {
            return Err(Error::InvalidEvdType);
        }
        if aggregate && !aevd.is_null() {
            return Err(Error::AevdNotAllowed);
        }
        let fd = evd_flag.contains(EvdFlags::CREATE_FD);
        if fd && !aevd.is_null() {
            return Err(Error::MismatchFd);
        }
        let others = if aggregate { SIMPLE } else { EvdFlags::DEQUEUE_NOTIFICATIONS };
        if evd_flag.intersects(others) || EvdFlags::from_bits(evd_flag.bits()).is_none() {
            return Err(Error::InvalidFlags);
        }
        let policy = policy(event_number, evd_flag)?;
        let feed = if aevd.is_null() { None } else { Some(core.feed_aggregate(aevd)?) };
        let reservation = core.evds.reserve()?;
        let handle = reservation.handle();
        core.adapter.reserve_callbacks(handle::index(handle.as_raw()) as u32)?;
        let singleton = core.singleton(event_number);
        if let Some((place, exists)) = singleton
            && place.compare_exchange(0, handle.as_raw(), Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return Err(exists);
        }
        let queue = core.new_queue(event_number, evd_flag, sevd_queue_size, sevd_threshold, handle);
        let made = queue.and_then(|queue| {
            let evd = heap::arc(Evd {
                handle,
                stream: event_number,
                flags: evd_flag.difference(EvdFlags::CREATE_FD),
                queue,
                policy,
                threshold: AtomicUsize::new(if aggregate { 0 } else { sevd_threshold }),
                enabled: AtomicBool::new(true),
                overflowed: AtomicBool::new(false),
                feeds: UseCount::new(),
                control: Mutex::new(Control {
                    waiters: 0,
                    waits_for_several: false,
                    callback: None,
                    running: false,
                    serials: 0,
                    aevd: None,
                    notifier: fd.then(Notifier::default),
                    gone: false,
                }),
                callback_attached: AtomicBool::new(false),
                linked: AtomicBool::new(fd),
                captive: AtomicBool::new(false),
                seat: AtomicUsize::new(0),
                changes: SleepLock::new(),
                signal: Signal::new(core.shared.platform.clone()),
                context: Context::new(),
            });
            let evd = evd.map_err(|evd| {
                evd.destroy_queue();
                Error::Resources
            })?;
            match evd.set_aggregate(feed) {
                Ok(()) => Ok(evd),
                Err(error) => {
                    evd.destroy_queue();
                    Err(error)
                }
            }
        });
        let evd = match made {
            Ok(evd) => evd,
            Err(error) => {
                if let Some((place, _)) = singleton {
                    place.store(0, Ordering::Release);
                }
                return Err(error);
            }
        };
        reservation.fill(evd.clone());
        core.adapter.created(|| evd.set_closed(closed::DISABLED, || true));
        if !aevd.is_null() {
            // The aggregate may already have waiters that expect a notification.
            core.announce(&evd, Origin::Call);
        }
        Ok(handle)
    }
}

impl Core {
    fn new_queue(
        &self,
        stream: EventType,
        flags: EvdFlags,
        size: usize,
        threshold: usize,
        handle: EvdHandle,
    ) -> Result<Queue> {
        let size = size.max(1);
        if stream == EventType::AEVD_NOTIFICATION_EVENT_STREAM {
            return Ok(Queue::Aggregate(Aggregate::new(flags.contains(EvdFlags::DEQUEUE_NOTIFICATIONS))));
        }
        if stream != EventType::DTO_EVENT_STREAM {
            let queue = SoftQueue::new(size)?;
            return if threshold <= size { Ok(Queue::Soft(queue)) } else { Err(Error::InvalidThreshold) };
        }
        let entries = u32::try_from(size).map_err(|_| Error::ResourceQueueSize)?;
        let slot = self.evd_slots.get_or_create(handle.as_raw())?;
        let client = self.client()?;
        let created = if self.via {
            let created = client.create_vi_cq(entries, handle.as_raw());
            created.and_then(|cq| {
                let queue = heap::arc(ViaQueue::new(cq, entries));
                queue.map(Source::Via).map_err(|queue| {
                    let _ = queue.cq().destroy();
                    kernel_agent::Error::OutOfMemory
                })
            })
        } else {
            let slot_params = SlotParams { slot, handle: handle.as_raw(), closed: 0 };
            client.create_cq_in(entries, handle.as_raw(), slot_params).map(Source::Cq)
        };
        let source = created.map_err(|error| match error {
            kernel_agent::Error::OutOfRange(_) => Error::ResourceQueueSize,
            other => self.error(other),
        })?;
        let undo = source.clone();
        let made = match DtoQueue::new(source, slot.clone(), handle, self.owners.clone()) {
            Ok(queue) if threshold <= queue.capacity() => Ok(Queue::Dto(queue)),
            Ok(_) => Err(Error::InvalidThreshold),
            Err(error) => Err(error),
        };
        made.inspect_err(|_| {
            let _ = undo.destroy();
        })
    }
}

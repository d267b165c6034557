//! Creating an event dispatcher (page it_evd_create).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, AtomicUsize};

use kernel_agent::SlotParams;
use platform::use_count::UseCount;
use platform::{SleepLock, heap};
use rdma::events::{Completions, Dispatcher, EventQueue, Made, Source};
use rdma::via::DescriptorQueue;
use rdma::{Context, handle};

use super::EventStreams;
use super::aggregate::{Aggregate, Reservation};
use super::callback::Origin;
use super::deliver::policy;
use crate::closed;
use crate::event::{Event, EventType};
use crate::flags::EvdFlags;
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::objects::evd::{Evd, OverflowPolicy, Queue};
use crate::status::{Error, Result};

/// The most events of one stream that software's queue can hold.
pub(crate) const MAX_EVENTS: usize = 1 << 15;

/// What an event dispatcher is created with.
struct Wanted {
    /// The stream that a query names.
    stream: EventType,
    /// The streams of a simple event dispatcher; none for an aggregate.
    streams: EventStreams,
    flags: EvdFlags,
    policy: OverflowPolicy,
    size: usize,
    threshold: usize,
    aggregate: Option<Reservation>,
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
        let streams = match EventStreams::of(event_number) {
            Some(streams) => streams,
            None if aggregate => EventStreams::empty(),
            None => return Err(Error::InvalidEvdType),
        };
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
        let policy = policy(streams, evd_flag)?;
        let wanted = Wanted {
            stream: event_number,
            streams,
            flags: evd_flag,
            policy,
            size: sevd_queue_size.max(1),
            threshold: if aggregate { 0 } else { sevd_threshold },
            aggregate: if aevd.is_null() { None } else { Some(core.feed_aggregate(aevd)?) },
        };
        core.create_evd(wanted)
    }
}

impl Core {
    fn create_evd(&self, wanted: Wanted) -> Result<EvdHandle> {
        let reservation = self.evds.reserve()?;
        let handle = reservation.handle();
        self.adapter.reserve_callbacks(handle::index(handle.as_raw()) as u32)?;
        self.claim_singletons(wanted.streams, handle)?;
        let feeds = wanted.aggregate.is_some();
        let evd = self.new_evd(wanted, handle).inspect_err(|_| self.release_singletons(handle))?;
        reservation.fill(evd.clone());
        self.adapter.created(|| evd.set_closed(closed::DISABLED, || true));
        if feeds {
            // The aggregate may already have waiters that expect a notification.
            self.announce(&evd, Origin::Call);
        }
        Ok(handle)
    }

    fn new_evd(&self, wanted: Wanted, handle: EvdHandle) -> Result<Arc<Evd>> {
        let queue = self.new_queue(&wanted, handle)?;
        let Wanted { stream, streams, flags, policy, threshold, aggregate, .. } = wanted;
        let fd = flags.contains(EvdFlags::CREATE_FD);
        let evd = heap::arc(Evd {
            handle,
            stream,
            streams,
            flags: flags.difference(EvdFlags::CREATE_FD),
            dispatcher: Dispatcher::new(self.shared.platform.clone(), queue, threshold, fd),
            policy,
            overflowed: AtomicU8::new(0),
            feeds: UseCount::new(),
            seat: AtomicUsize::new(0),
            changes: SleepLock::new(),
            context: Context::new(),
        });
        let evd = evd.map_err(|evd| {
            evd.destroy_queue();
            Error::Resources
        })?;
        evd.set_aggregate(aggregate).inspect_err(|_| evd.destroy_queue())?;
        Ok(evd)
    }

    fn new_queue(&self, wanted: &Wanted, handle: EvdHandle) -> Result<Queue> {
        let &Wanted { streams, size, threshold, .. } = wanted;
        if streams.is_empty() {
            let names = wanted.flags.contains(EvdFlags::DEQUEUE_NOTIFICATIONS);
            return Ok(Queue::Aggregate(Aggregate::new(names)));
        }
        let of_software = streams & EventStreams::MADE;
        let made = if of_software.is_empty() { None } else { Some(new_made(of_software, size)?) };
        if !streams.contains(EventStreams::COMPLETIONS) {
            let fits = threshold <= size;
            return if fits {
                Ok(Queue::Simple(EventQueue::new(None, made)))
            } else {
                Err(Error::InvalidThreshold)
            };
        }
        let completions = self.new_completions(size, handle)?;
        if threshold > completions.capacity() {
            let _ = completions.source().destroy();
            return Err(Error::InvalidThreshold);
        }
        Ok(Queue::Simple(EventQueue::new(Some(completions), made)))
    }

    fn new_completions(&self, size: usize, handle: EvdHandle) -> Result<Completions> {
        let entries = u32::try_from(size).map_err(|_| Error::ResourceQueueSize)?;
        let slot = self.evd_slots.get_or_create(handle.as_raw())?;
        let client = self.client()?;
        let created = if self.facts().has_virtual_interfaces() {
            let created = client.create_vi_cq(entries, handle.as_raw());
            created.and_then(|cq| {
                let queue = heap::arc(DescriptorQueue::new(cq, entries));
                queue.map(Source::Descriptors).map_err(|queue| {
                    let _ = queue.cq().destroy();
                    kernel_agent::Error::OutOfMemory
                })
            })
        } else {
            let slot_params = SlotParams { slot, handle: handle.as_raw(), closed: 0 };
            client.create_cq_in(entries, handle.as_raw(), slot_params).map(Source::Entries)
        };
        let source = created.map_err(|error| match error {
            kernel_agent::Error::OutOfRange(_) => Error::ResourceQueueSize,
            other => self.error(other),
        })?;
        let undo = source.clone();
        let made = Completions::new(source, slot.clone(), handle.as_raw());
        made.map_err(|_| {
            let _ = undo.destroy();
            Error::ResourceQueueSize
        })
    }
}

/// The queue of the events of these streams, which software makes.
fn new_made(streams: EventStreams, share: usize) -> Result<Made<Event>> {
    if share > MAX_EVENTS {
        return Err(Error::ResourceQueueSize);
    }
    Made::new(streams.count(), share).map_err(|_| Error::ResourceQueueSize)
}

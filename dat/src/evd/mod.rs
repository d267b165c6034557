//! Event dispatchers (EVDs).
//!
//! - `create`: creation, query, resizing, freeing.
//! - `sharing`: which streams of completions may share an event dispatcher.
//! - `take`: dequeues and waits; `convert`: translates IT-API's events to DAT's.
//! - `notify`: triggering the CNO.
//!
//! A DAT event dispatcher is one of IT-API's for all its streams, with the same handle. So IT-API
//! implements queues, overflow and waits, and a dequeue costs what it costs in IT-API.

mod convert;
mod create;
mod notify;
mod sharing;
mod take;

use alloc::sync::Arc;
use alloc::vec::Vec;

use platform::SleepLock;
use platform::sync::Mutex;
use platform::sync::atomic::AtomicU32;
use privileged_api as it;

use crate::cno::Cno;
use crate::error::handle;
use crate::event::{Connection, IbExtensionEventData};
use crate::flags::{CompletionFlags, EvdFlags};
use crate::handle::EvdHandle;
use crate::ia::Inner;
use crate::ret::{Result, Subtype};

pub(crate) use sharing::Stream;
pub use take::WaitError;

pub(crate) struct Evd {
    pub(crate) handle: EvdHandle,
    flags: EvdFlags,
    /// Serializes changes of the CNO and of the mode, and begins and ends of waits.
    changes: SleepLock,
    control: Mutex<Control>,
    /// Slots for DAT's own events. An entry of the queue with the slot's index announces the event
    /// in it.
    made: Mutex<Vec<EventCell>>,
    /// How many agents run for the event dispatcher now. Incremented under the lock of the CNO.
    pub(crate) agents: AtomicU32,
}

struct Control {
    /// Endpoints and service points that feed the event dispatcher.
    users: usize,
    /// The completion flags that all its streams of completions have, if there are any.
    mode: CompletionFlags,
    /// The number of streams of completions.
    completion_streams: usize,
    /// The number of them that are streams of requests.
    request_streams: usize,
    cno: Option<Arc<Cno>>,
    /// A thread waits.
    waiter: bool,
    /// The event dispatcher is freed.
    gone: bool,
}

/// A slot for an event that DAT makes itself.
#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "the places are allocated with their queue")]
enum EventCell {
    Free,
    Reserved,
    Filled(Made),
}

/// An event that DAT makes itself: that a remote datagram endpoint is established, on the answering
/// side, or that a datagram endpoint has disconnected.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) number: crate::EventNumber,
    pub(crate) connection: Connection,
    pub(crate) extension: Option<IbExtensionEventData>,
}

/// The streams of completions.
const COMPLETIONS: EvdFlags = EvdFlags::DTO.union(EvdFlags::RMR_BIND);
/// The streams of connection events.
const MESSAGES: EvdFlags = EvdFlags::CONNECTION.union(EvdFlags::IB_EXTENSION);
/// The streams of requests for connections.
const REQUESTS: EvdFlags = EvdFlags::CR.union(EvdFlags::IB_EXTENSION);

impl Evd {
    /// IT-API's event dispatcher, if it takes completions.
    pub(crate) fn completions(&self) -> Option<it::EvdHandle> {
        self.inner_for(COMPLETIONS)
    }

    /// IT-API's event dispatcher, if it takes connection events.
    pub(crate) fn messages(&self) -> Option<it::EvdHandle> {
        self.inner_for(MESSAGES)
    }

    /// IT-API's event dispatcher, if it takes connection requests.
    pub(crate) fn requests(&self) -> Option<it::EvdHandle> {
        self.inner_for(REQUESTS)
    }

    fn inner_for(&self, streams: EvdFlags) -> Option<it::EvdHandle> {
        self.flags.intersects(streams).then_some(self.handle.inner())
    }
}

impl Inner {
    pub(crate) fn evd(&self, evd: EvdHandle, invalid: Subtype) -> Result<Arc<Evd>> {
        self.evds.get(evd).ok_or(handle(invalid))
    }

    /// Reserves a slot for an event that DAT is going to make; `None` if no slot is free.
    pub(crate) fn reserve_event(&self, evd: &Evd) -> Option<usize> {
        let mut made = evd.made.lock();
        let free = made.iter().position(|place| matches!(place, EventCell::Free))?;
        made[free] = EventCell::Reserved;
        Some(free)
    }

    /// Queues an event of DAT's own in a reserved slot. The queue has room for as many such events
    /// as there are slots, so queuing fails only if the IA has ended.
    pub(crate) fn make_event(&self, evd: &Evd, place: usize, event: Made) {
        evd.fill(place, EventCell::Filled(event));
        if self.it.evd_post_own(evd.handle.inner(), place).is_err() {
            evd.fill(place, EventCell::Free);
        }
    }

    /// Releases a reserved slot.
    pub(crate) fn cancel_event(&self, evd: &Evd, place: usize) {
        evd.fill(place, EventCell::Free);
    }
}

impl Evd {
    fn fill(&self, place: usize, with: EventCell) {
        if let Some(place) = self.made.lock().get_mut(place) {
            *place = with;
        }
    }

    /// Takes the event from a slot.
    fn take_made(&self, place: usize) -> Option<Made> {
        let mut made = self.made.lock();
        match core::mem::replace(made.get_mut(place)?, EventCell::Free) {
            EventCell::Filled(event) => Some(event),
            EventCell::Free | EventCell::Reserved => None,
        }
    }
}

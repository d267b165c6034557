//! An event dispatcher.

use alloc::sync::Arc;
use core::convert::Infallible;

use platform::SleepLock;
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use rdma::events::{Dispatcher, EventQueue, Events, closed};
use rdma::{Context, handle};

use super::cno::Cno;
use super::entry::{COMPLETIONS_BIT, Entry};
use crate::flags::{CompletionFlags, EvdFlags};
use crate::handle::EvdHandle;

/// In which thread something happened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An upcall of the agent, whose thread runs the upcalls of event dispatchers itself.
    Upcall,
    /// A consumer's.
    Call,
}

/// What an upcall of an event dispatcher does.
pub(crate) enum Routine {
    /// Triggers the CNO.
    Trigger(Arc<Cno>),
    /// Takes completions that the consumer does not want.
    Discard,
}

pub(crate) struct Evd {
    pub(crate) dispatcher: Dispatcher<EventQueue<Entry>, Routine, Infallible>,
    pub(crate) handle: EvdHandle,
    pub(crate) flags: EvdFlags,
    /// Made for completions that the consumer does not want, and does not know.
    pub(crate) hidden: bool,
    /// The streams whose entries have been lost, a bit each, until one is taken.
    pub(crate) overflowed: AtomicU8,
    /// Serializes waits, changes of the CNO and of the mode, and freeing.
    pub(crate) changes: SleepLock,
    pub(crate) control: Mutex<Control>,
    /// The CNO's agents that run for this event dispatcher now.
    pub(crate) agents: AtomicU32,
    pub(crate) context: Context,
}

pub(crate) struct Control {
    /// The endpoints and service points whose events come here, once for each stream.
    pub(crate) users: usize,
    /// The completion flags of all streams of completions.
    pub(crate) mode: CompletionFlags,
    pub(crate) completion_streams: usize,
    pub(crate) cno: Option<Arc<Cno>>,
    pub(crate) waiter: bool,
    pub(crate) gone: bool,
}

pub(crate) const COMPLETIONS: EvdFlags = EvdFlags::DTO.union(EvdFlags::RMR_BIND);

pub(crate) const MESSAGES: EvdFlags = EvdFlags::CONNECTION.union(EvdFlags::IB_EXTENSION);

pub(crate) const REQUESTS: EvdFlags = EvdFlags::CR.union(EvdFlags::IB_EXTENSION);

impl Evd {
    /// The NIC's queue of completions, if this event dispatcher has one.
    pub(crate) fn cq(&self) -> Option<&Arc<kernel_agent::Cq>> {
        self.dispatcher.queue().completions()?.cq()
    }

    /// Whether completions were lost.
    pub(crate) fn has_lost_completions(&self) -> bool {
        self.overflowed.load(Ordering::Acquire) & COMPLETIONS_BIT != 0
    }

    /// Keeps the fast path out, because the IA has ended.
    pub(crate) fn disable(&self) {
        self.dispatcher.set_closed(closed::DISABLED, || true);
    }

    /// The place in the table.
    pub(crate) fn place(&self) -> u32 {
        handle::index(self.handle.as_raw()) as u32
    }

    pub(crate) fn capacity(&self) -> usize {
        self.dispatcher.queue().capacity()
    }

    pub(crate) fn queued(&self) -> usize {
        self.dispatcher.queue().queued()
    }
}

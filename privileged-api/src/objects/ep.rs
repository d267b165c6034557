//! An endpoint.

use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use kernel_agent::{ConnectionId, LinkFlags, Qp, SegmentLimits, SendSlot};
use platform::sync::{Mutex, MutexGuard};
use platform::{SleepLock, heap};
use rdma::{Context, Tracked, WorkQueues};

use super::evd::Feed;
use super::pz::InZone;
use super::srq::Srq;
use crate::address::Path;
use crate::attributes::{EpAttributes, EpState, EpStateRc};
use crate::closed;
use crate::ep::state::{self, Trigger};
use crate::event::Event;
use crate::handle::{EpHandle, EvdHandle};
use crate::status::{Error, Result};

/// The EVD of an endpoint's connection events. A datagram endpoint has none.
pub(crate) struct Messages(pub(crate) Option<Feed>);

impl Messages {
    pub(crate) fn handle(&self) -> EvdHandle {
        self.0.as_ref().map_or(EvdHandle::NULL, |feed| feed.handle)
    }

    /// Queues the event of a change under the lock under which the change was made, so that events
    /// are in the order of changes. The caller calls [`Core::queued`] afterwards.
    pub(crate) fn queue(&self, _control: &mut Control, event: Event) -> Queued {
        Queued(self.0.as_ref().map(|feed| feed.push(event)))
    }

    pub(crate) fn end(&self) {
        if let Some(feed) = &self.0 {
            feed.end();
        }
    }
}

/// Whether the EVD had room for an event; `None` if the endpoint has no EVD for it.
#[must_use]
pub(crate) struct Queued(pub(crate) Option<bool>);

/// What the data path checks; fixed at creation.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) segments: SegmentLimits,
    pub(crate) receive_segments: usize,
    /// The limit of segments of it_post_recv plus one; 0 if the call is not for the endpoint.
    pub(crate) recv_end: u32,
}

/// The state of an endpoint that changes.
pub(crate) struct Control {
    pub(crate) attr: EpAttributes,
    pub(crate) connection: Tracked,
    pub(crate) path: Path,
}

/// An endpoint with its present queue pair. A reset replaces it with one that has a new queue pair.
/// So an earlier connection, in TimeWait for example, does not affect the next one.
pub(crate) struct Ep {
    pub(crate) pair: WorkQueues,
    pub(crate) limits: Limits,
    pub(crate) common: Arc<Common>,
}

/// The state of an endpoint that a reset keeps.
pub(crate) struct Common {
    pub(crate) handle: EpHandle,
    pub(crate) state: AtomicU8,
    /// The slot of the send queue: the fast path of posts.
    pub(crate) slot: Arc<SendSlot>,
    pub(crate) zone: InZone,
    /// The shared receive queue that replaces the receive queue.
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) request: Feed,
    pub(crate) recv: Feed,
    pub(crate) connect: Messages,
    pub(crate) control: Mutex<Control>,
    /// An EVD for the endpoint's completions overflowed: the endpoint can only be freed.
    pub(crate) lost: AtomicBool,
    pub(crate) operation: SleepLock,
    pub(crate) context: Context,
}

impl Deref for Ep {
    type Target = Common;

    #[inline(always)]
    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Common {
    pub(crate) fn state(&self) -> EpStateRc {
        state::from_raw(self.state.load(Ordering::Acquire))
    }

    /// Whether this is a datagram endpoint.
    pub(crate) fn is_ud(&self) -> bool {
        state::is_ud(self.state.load(Ordering::Acquire))
    }

    /// The state as a query returns it.
    pub(crate) fn reported_state(&self) -> EpState {
        match state::ud_from_raw(self.state.load(Ordering::Acquire)) {
            Some(state) => EpState::Ud(state),
            None => EpState::Rc(self.state()),
        }
    }

    /// Makes a transition; to be called under the control lock.
    pub(crate) fn advance(&self, _control: &mut Control, trigger: Trigger) -> Result<EpStateRc> {
        let from = self.state();
        let to = state::next(from, trigger)?;
        self.set_state(to);
        Ok(from)
    }

    /// Sets the state; to be called under the control lock. Closes or reopens the slot.
    pub(crate) fn set_state(&self, to: EpStateRc) {
        self.state.store(to as u8, Ordering::Release);
        let takes_none = || !state::takes_requests(self.state.load(Ordering::Acquire));
        self.slot.set_closed(self.handle.as_raw(), closed::STATE, takes_none);
    }

    /// Closes the slot until the endpoint is freed, because the IA has ended.
    pub(crate) fn close_slot(&self) {
        self.slot.set_closed(self.handle.as_raw(), closed::DISABLED, || true);
    }

    /// Takes the control lock and returns its guard if `connection` is the endpoint's present one.
    /// A caller that releases the lock must call this again, because another call may then have
    /// reset the endpoint.
    pub(crate) fn concerned(&self, connection: ConnectionId) -> Option<MutexGuard<'_, Control>> {
        let mut control = self.control.lock();
        let pending = state::is_pending(self.state());
        control.connection.concerns(connection, pending).then_some(control)
    }
}

impl Ep {
    /// The queue pair, for requests that only queue pairs have.
    #[inline(always)]
    pub(crate) fn qp(&self) -> Result<&Arc<Qp>> {
        self.pair.qp().ok_or(Error::OpNotSupported)
    }

    /// The endpoint as the table holds it. If there is no memory, destroys the queue pair.
    pub(crate) fn shared(pair: WorkQueues, limits: Limits, common: Arc<Common>) -> Result<Arc<Ep>> {
        let pair = match pair {
            WorkQueues::Entries(qp) if limits.recv_end <= 1 => WorkQueues::Receiveless(qp),
            pair => pair,
        };
        heap::arc(Ep { pair, limits, common }).map_err(|ep| {
            let _ = ep.pair.destroy();
            Error::Resources
        })
    }

    /// Forgets the completions of a virtual interface that was destroyed: those that were taken
    /// ahead of the consumer. The agent forgets those of queue pairs.
    pub(crate) fn forget_completions(&self, number: u32) {
        if self.pair.vi().is_some() {
            self.request.forget_completions(number);
            self.recv.forget_completions(number);
        }
    }
}

impl Control {
    /// The state of a new endpoint, which never had a connection.
    pub(crate) fn new(attr: EpAttributes) -> Control {
        Control { attr, connection: Tracked::default(), path: Path::default() }
    }
}

/// The most rights that peers can have through the endpoint.
pub(crate) fn access(attr: &EpAttributes) -> LinkFlags {
    let mut access = LinkFlags::empty();
    access.set(LinkFlags::REMOTE_READ, attr.rc.rdma_read_enable);
    access.set(LinkFlags::REMOTE_WRITE, attr.rc.rdma_write_enable);
    access.set(LinkFlags::REMOTE_ATOMIC, attr.rc.atomics_enable);
    access
}

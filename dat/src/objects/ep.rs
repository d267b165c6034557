//! An endpoint.
//!
//! It has a queue pair, which a reset and most changes replace by a new one. So an earlier
//! connection, in TimeWait for example, does not affect the next one. What stays is in [`Common`].

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use kernel_agent::{Qp, SegmentLimits, SendSlot};
use platform::SleepLock;
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rdma::events::closed;
use rdma::{Context, Tracked};

use super::evd::Evd;
use super::pz::InZone;
use super::streams::Stream;
use crate::IaAddress;
use crate::attr::EpAttr;
use crate::error::{handle, state};
use crate::flags::{CompletionFlags, EpState, ServiceType};
use crate::handle::{AhHandle, CrHandle, EpHandle, EvdHandle, PzHandle, RmrHandle, RspHandle, SrqHandle};
use crate::ret::{Error, Result, Subtype};

/// The reason why the slot of a send queue is closed: the endpoint's state takes no requests.
pub(crate) const STATE: u32 = closed::RESERVED << 1;

/// An endpoint with its present queue pair.
pub(crate) struct Ep {
    pub(crate) qp: Arc<Qp>,
    pub(crate) zone: InZone,
    /// Where the completions come: the consumer's event dispatchers, or one that discards them.
    pub(crate) request: Arc<Evd>,
    pub(crate) recv: Arc<Evd>,
    /// Where connection events come.
    pub(crate) connect: Option<Arc<Evd>>,
    /// The one that discards completions.
    pub(crate) unwanted: Option<Arc<Evd>>,
    pub(crate) datagrams: bool,
    /// The word that is posted with a Receive, but for [`rdma::events::NOTIFY`].
    pub(crate) receive: u32,
    /// The segments of a request at most.
    pub(crate) segments: SegmentLimits,
    /// Of a Receive; with a shared receive queue any number, as the queue pair refuses each.
    pub(crate) receive_segments: usize,
    pub(crate) receives: CompletionFlags,
    pub(crate) requests: CompletionFlags,
    pub(crate) common: Arc<Common>,
}

/// What of an endpoint stays.
pub(crate) struct Common {
    pub(crate) handle: EpHandle,
    /// The slot of the send queue: the fast path of posts. It stays empty for datagrams.
    pub(crate) slot: Arc<SendSlot>,
    pub(crate) turn: SleepLock,
    pub(crate) control: Mutex<Control>,
    /// The binds that are outstanding, oldest first. Spins; held while one is posted.
    pub(crate) binds: Mutex<VecDeque<Bind>>,
    /// An event dispatcher for the endpoint's completions overflowed: it can only be freed.
    pub(crate) lost: AtomicBool,
    /// Whether requests can be posted: [`Phase::takes_requests`] for posters, without a lock.
    pub(crate) takes_requests: AtomicBool,
    /// The length of a datagram at which it is too long; 0 while none can be sent.
    pub(crate) too_long: AtomicU64,
    pub(crate) context: Context,
}

impl Deref for Ep {
    type Target = Common;

    #[inline(always)]
    fn deref(&self) -> &Common {
        &self.common
    }
}

/// The connection of an endpoint, as the agent knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// None.
    Unconnected,
    /// Asked for.
    Active,
    /// Accepted, and not confirmed.
    Passive,
    Connected,
    /// It is over, or was not made.
    Ended,
}

impl Phase {
    pub(crate) fn is_pending(self) -> bool {
        matches!(self, Phase::Active | Phase::Passive)
    }

    /// Whether requests can be posted. In `Ended` they are flushed.
    pub(crate) fn takes_requests(self) -> bool {
        matches!(self, Phase::Connected | Phase::Ended)
    }
}

/// What of an endpoint changes.
pub(crate) struct Control {
    pub(crate) phase: Phase,
    pub(crate) connection: Tracked,
    pub(crate) attr: EpAttr,
    pub(crate) pz: PzHandle,
    pub(crate) recv: EvdHandle,
    pub(crate) request: EvdHandle,
    pub(crate) connect: EvdHandle,
    pub(crate) srq: SrqHandle,
    /// The reserved service point that waits for the endpoint's peer.
    pub(crate) reserved: Option<RspHandle>,
    /// The request that waits for an answer with this endpoint.
    pub(crate) pending: Option<CrHandle>,
    /// The peer asked for the connection.
    pub(crate) passive: bool,
    /// The connection ends once the requests are complete.
    pub(crate) draining: bool,
    pub(crate) remote: Option<Remote>,
    pub(crate) local_port: u64,
    pub(crate) datagrams: Datagrams,
    /// A datagram endpoint has failed.
    pub(crate) failed: bool,
    pub(crate) gone: bool,
}

/// Where the peer is.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) address: IaAddress,
    /// The peer's qualifier; 0 if it asked for the connection.
    pub(crate) port: u64,
}

/// What a datagram endpoint has resolved.
#[derive(Default)]
pub(crate) struct Datagrams {
    pub(crate) connected: bool,
    pub(crate) disconnected: bool,
    /// Contexts of the resolutions that are under way.
    pub(crate) asked: Vec<u64>,
    pub(crate) addresses: Vec<AhHandle>,
}

/// A bind that was posted.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    pub(crate) rmr: RmrHandle,
    /// The consumer wants no event if it succeeds.
    pub(crate) suppressed: bool,
}

impl Common {
    pub(crate) fn take_bind(&self) -> Option<Bind> {
        self.binds.lock().pop_front()
    }

    /// Posts a bind, and records it in the order of posting.
    pub(crate) fn bind<R>(&self, bind: Bind, post: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut binds = self.binds.lock();
        binds.try_reserve(1)?;
        let posted = post()?;
        binds.push_back(bind);
        Ok(posted)
    }

    /// Changes the phase; to be called with the control's lock held. Closes or opens the slot.
    pub(crate) fn set_phase(&self, control: &mut Control, to: Phase) {
        control.phase = to;
        self.takes_requests.store(to.takes_requests(), Ordering::Release);
        self.slot.set_closed(self.handle.as_raw(), STATE, || !to.takes_requests());
    }

    /// Closes the slot until the endpoint is freed, because the IA has ended.
    pub(crate) fn close_slot(&self) {
        self.slot.set_closed(self.handle.as_raw(), closed::DISABLED, || true);
    }

    /// Fails unless requests can be posted.
    #[inline(always)]
    pub(crate) fn takes_requests(&self) -> Result<()> {
        if self.takes_requests.load(Ordering::Acquire) { Ok(()) } else { Err(self.takes_none()) }
    }

    #[cold]
    pub(crate) fn takes_none(&self) -> Error {
        wrong(self.control.lock().state())
    }

    /// Records how long a datagram can be.
    pub(crate) fn set_longest_datagram(&self, control: &Control) {
        let datagrams = &control.datagrams;
        let can_send = datagrams.connected && !datagrams.disconnected && !control.failed;
        let too_long = if can_send { control.attr.max_message_size.saturating_add(1) } else { 0 };
        self.too_long.store(too_long, Ordering::Relaxed);
    }

    /// Whether a datagram of this length can be sent now.
    #[inline(always)]
    pub(crate) fn sends_datagram(&self, length: u64) -> bool {
        length < self.too_long.load(Ordering::Relaxed)
    }
}

impl Ep {
    /// Whether it is for datagrams.
    #[inline(always)]
    pub(crate) fn is_ud(&self) -> bool {
        self.datagrams
    }

    /// Whether requests can have `UNSIGNALLED`.
    pub(crate) fn requests_may_be_unsignalled(&self) -> bool {
        self.requests == CompletionFlags::UNSIGNALLED
    }

    /// The zone of the endpoint.
    pub(crate) fn zone(&self) -> &InZone {
        &self.zone
    }
}

impl Control {
    /// Where the events of the endpoint's streams come; null where the consumer wants none.
    pub(crate) fn streams(&self) -> [(EvdHandle, Stream); 3] {
        let connect = match self.attr.service_type {
            ServiceType::IB_UD => Stream::Datagrams,
            _ => Stream::Connections,
        };
        [
            (self.recv, Stream::Receives(self.attr.recv_completion_flags)),
            (self.request, Stream::Requests(self.attr.request_completion_flags)),
            (self.connect, connect),
        ]
    }

    /// The state as DAT has it.
    pub(crate) fn state(&self) -> EpState {
        let datagrams = &self.datagrams;
        if self.attr.service_type == ServiceType::IB_UD {
            return match () {
                () if self.failed || datagrams.disconnected => EpState::Disconnected,
                () if datagrams.connected => EpState::Connected,
                () if !datagrams.asked.is_empty() => EpState::ActiveConnectionPending,
                () => EpState::Unconnected,
            };
        }
        match self.phase {
            Phase::Unconnected if self.pending.is_some() => EpState::PassiveConnectionPending,
            Phase::Unconnected if self.reserved.is_some() => EpState::Reserved,
            Phase::Unconnected => EpState::Unconnected,
            Phase::Active => EpState::ActiveConnectionPending,
            Phase::Passive => EpState::CompletionPending,
            Phase::Connected if self.draining => EpState::DisconnectPending,
            Phase::Connected => EpState::Connected,
            Phase::Ended => EpState::Disconnected,
        }
    }

    /// Fails unless the endpoint has a zone and an event dispatcher for connection events.
    pub(crate) fn is_ready(&self) -> Result<()> {
        if self.pz.is_null() || self.connect.is_null() {
            return Err(state(Subtype::InvalidStateEpNotReady));
        }
        Ok(())
    }
}

/// The subtype.
pub(crate) const fn subtype(state: EpState) -> Subtype {
    match state {
        EpState::Unconnected => Subtype::InvalidStateEpUnconnected,
        EpState::Reserved => Subtype::InvalidStateEpReserved,
        EpState::PassiveConnectionPending => Subtype::InvalidStateEpPassConnPending,
        EpState::ActiveConnectionPending => Subtype::InvalidStateEpActConnPending,
        EpState::TentativeConnectionPending => Subtype::InvalidStateEpTentConnPending,
        EpState::Connected => Subtype::InvalidStateEpConnected,
        EpState::DisconnectPending => Subtype::InvalidStateEpDiscPending,
        EpState::Disconnected => Subtype::InvalidStateEpDisconnected,
        EpState::CompletionPending => Subtype::InvalidStateEpComplPending,
        _ => Subtype::None,
    }
}

/// The error of a call that this state of an endpoint does not allow.
pub(crate) const fn wrong(now: EpState) -> Error {
    state(subtype(now))
}

pub(crate) const INVALID: Error = handle(Subtype::InvalidHandleEp);

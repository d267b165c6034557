//! Creating endpoints (dat_ep_create, dat_ep_create_with_srq).

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use kernel_agent::{LinkFlags, Qp, QpAttributes, QpType, SegmentLimits, SendSlot, SlotParams};
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicBool, AtomicU64};
use platform::{SleepLock, heap};
use rdma::{Context, Tracked};

use crate::attr::EpAttr;
use crate::completion::Operation;
use crate::error::{MODEL, NO_MEMORY, handle, parameter};
use crate::flags::{CompletionFlags, Qos, ServiceType, WATERMARK_INFINITE};
use crate::handle::{EpHandle, EvdHandle, PzHandle, SrqHandle};
use crate::ia::{Ia, Inner};
use crate::objects::ep::{Common, Control, Datagrams, Ep, Phase, STATE};
use crate::objects::evd::Evd;
use crate::objects::pz::{InZone, Pz};
use crate::objects::srq::Srq;
use crate::ret::{Result, Subtype};

/// The Q_Key of datagram endpoints.
pub(crate) const UD_QKEY: u32 = 0x0123_4567;

/// What a consumer names to create an endpoint.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) pz: PzHandle,
    pub(super) recv: EvdHandle,
    pub(super) request: EvdHandle,
    pub(super) connect: EvdHandle,
    pub(super) srq: Option<SrqHandle>,
}

/// What an endpoint is made of, beside its queue pair.
#[derive(Clone)]
pub(super) struct Parts {
    zone: Arc<Pz>,
    request: Arc<Evd>,
    recv: Arc<Evd>,
    connect: Option<Arc<Evd>>,
    unwanted: Option<Arc<Evd>>,
    /// The Receives are those of a shared receive queue.
    srq: bool,
}

impl Ia {
    /// Creates an endpoint in UNCONNECTED, for connections or ([`ServiceType::IB_UD`]) for
    /// datagrams.
    ///
    /// A null event dispatcher means that the consumer wants no such events. A null zone and a null
    /// event dispatcher of connection events can be replaced with [`Ia::ep_modify`], and have to be
    /// before the endpoint connects. Without attributes the endpoint gets [`EpAttr::default`],
    /// otherwise exactly the requested ones; but the longest message of a datagram endpoint is at
    /// most the port's MTU. All streams of completions of one event dispatcher need the same
    /// completion flags, and solicited Receives share an event dispatcher with no other stream.
    ///
    /// Errors: `InvalidHandle` (subtypes PZ, EVD_RECV, EVD_REQUEST, EVD_CONN: also one without the
    /// stream), `InvalidParameter` (attributes beyond the adapter's limits, undefined or not
    /// allowed flags, flags that clash on an event dispatcher), `ModelNotSupported` (datagrams, if
    /// the adapter lacks them; another quality of service than best effort),
    /// `InsufficientResources`, `InvalidState` (in an upcall). Blocks for the device. Not for
    /// upcalls. Thread-safe. dat_ep_create.
    #[doc(alias = "dat_ep_create")]
    pub fn ep_create(
        &self,
        pz: PzHandle,
        recv_evd: EvdHandle,
        request_evd: EvdHandle,
        connect_evd: EvdHandle,
        attributes: Option<&EpAttr>,
    ) -> Result<EpHandle> {
        let attr = attributes.copied().unwrap_or_default();
        let names = Names { pz, recv: recv_evd, request: request_evd, connect: connect_evd, srq: None };
        self.create_ep(&names, attr)
    }

    /// Creates an endpoint, for connections, that takes its Receives from a shared receive queue.
    ///
    /// As [`Ia::ep_create`], with these differences. The zone of the endpoint may differ from the
    /// zone of the queue, which applies to the memory of Receives. `max_recv_iov` is ignored, and
    /// `max_recv_dtos`, up to what an endpoint can have, limits nothing: the Receives are the
    /// queue's. The consumer cannot post Receives to the endpoint itself. Receives complete with
    /// notification, or, with `SOLICITED_WAIT`, as the sender wants. `UNSIGNALLED` is refused,
    /// since the Receives of a shared queue have no flags.
    ///
    /// Errors: as [`Ia::ep_create`], `InvalidHandle` (subtype SRQ), `InvalidParameter` (a datagram
    /// endpoint; `srq_soft_hw` other than [`WATERMARK_INFINITE`]), `ModelNotSupported` (the adapter
    /// lacks shared receive queues). Blocks for the device. Not for upcalls. Thread-safe.
    /// dat_ep_create_with_srq.
    #[doc(alias = "dat_ep_create_with_srq")]
    pub fn ep_create_with_srq(
        &self,
        pz: PzHandle,
        recv_evd: EvdHandle,
        request_evd: EvdHandle,
        connect_evd: EvdHandle,
        srq: SrqHandle,
        attributes: &EpAttr,
    ) -> Result<EpHandle> {
        self.inner.live()?;
        if !self.inner.offers.srq() {
            return Err(MODEL);
        }
        let names = Names { pz, recv: recv_evd, request: request_evd, connect: connect_evd, srq: Some(srq) };
        self.create_ep(&names, *attributes)
    }

    fn create_ep(&self, names: &Names, attr: EpAttr) -> Result<EpHandle> {
        let inner = self.call()?;
        inner.not_in_upcall()?;
        let attr = inner.checked(attr, names.srq.is_some())?;
        let wanted = &Control::unmade(attr, names).streams();
        inner.join_all(wanted, argument(names.srq.is_some()))?;
        inner.make_ep(names, attr).inspect_err(|_| inner.leave_all(wanted))
    }
}

impl Control {
    pub(super) fn unmade(attr: EpAttr, names: &Names) -> Control {
        Control {
            phase: Phase::Unconnected,
            connection: Tracked::default(),
            attr,
            pz: names.pz,
            recv: names.recv,
            request: names.request,
            connect: names.connect,
            srq: names.srq.unwrap_or_default(),
            reserved: None,
            pending: None,
            passive: false,
            draining: false,
            remote: None,
            local_port: 0,
            datagrams: Datagrams::default(),
            failed: false,
            gone: false,
        }
    }
}

/// The completion flags that an endpoint's requests and its Receives can have.
const OF_REQUESTS: [CompletionFlags; 3] =
    [CompletionFlags::DEFAULT, CompletionFlags::UNSIGNALLED, CompletionFlags::EVD_THRESHOLD];
const OF_RECEIVES: [CompletionFlags; 4] = [
    CompletionFlags::DEFAULT,
    CompletionFlags::UNSIGNALLED,
    CompletionFlags::SOLICITED_WAIT,
    CompletionFlags::EVD_THRESHOLD,
];

/// The most that an endpoint's attributes can be, as a query of the IA returns them.
pub(crate) struct Limits {
    pub(crate) message: u64,
    pub(crate) dtos: usize,
    pub(crate) segments: usize,
    pub(crate) reads: u32,
}

/// Whether an attribute is beyond the adapter's limits. An endpoint reports what it was created
/// with, so this looks also at attributes that its kind has no use for; but `max_recv_iov` is
/// ignored with a shared receive queue (dat_ep_create_with_srq).
fn beyond(attr: &EpAttr, most: &Limits, srq: bool) -> bool {
    let recv_iov = if srq { 0 } else { attr.max_recv_iov };
    let segments = [attr.max_request_iov, attr.max_rdma_read_iov, attr.max_rdma_write_iov, recv_iov];
    attr.max_message_size.max(attr.max_rdma_size) > most.message
        || attr.max_recv_dtos.max(attr.max_request_dtos) > most.dtos
        || segments.into_iter().any(|count| count > most.segments)
        || attr.max_rdma_read_in.max(attr.max_rdma_read_out) > most.reads
}

/// The most segments of a request.
fn request_segments(attr: &EpAttr) -> u32 {
    let most = match attr.service_type {
        ServiceType::IB_UD => attr.max_request_iov,
        _ => attr.max_request_iov.max(attr.max_rdma_read_iov).max(attr.max_rdma_write_iov),
    };
    most.max(1) as u32
}

fn kind(attr: &EpAttr) -> QpType {
    if attr.service_type == ServiceType::IB_UD { QpType::Ud } else { QpType::Rc }
}

/// The longest message of an endpoint.
pub(super) fn longest_message(attr: &EpAttr) -> u64 {
    match attr.service_type {
        ServiceType::IB_UD => attr.max_message_size,
        _ => attr.max_message_size.max(attr.max_rdma_size),
    }
}

impl Inner {
    /// The attributes that the endpoint gets; fails for attributes that it cannot have.
    pub(super) fn checked(&self, mut attr: EpAttr, srq: bool) -> Result<EpAttr> {
        let bad = parameter(argument(srq));
        if attr.qos != Qos::BEST_EFFORT {
            return Err(if Qos::from_bits(attr.qos.bits()).is_some() { MODEL } else { bad });
        }
        let receives = OF_RECEIVES.contains(&attr.recv_completion_flags);
        let unsignalled = srq && attr.recv_completion_flags == CompletionFlags::UNSIGNALLED;
        if !receives || unsignalled || !OF_REQUESTS.contains(&attr.request_completion_flags) {
            return Err(bad);
        }
        if srq && attr.srq_soft_hw != WATERMARK_INFINITE {
            return Err(bad);
        }
        match attr.service_type {
            ServiceType::RC => {}
            ServiceType::IB_UD if srq => return Err(bad),
            ServiceType::IB_UD if self.offers.datagrams() => {
                attr.max_message_size = attr.max_message_size.min(self.identity().mtu.into());
            }
            ServiceType::IB_UD => return Err(MODEL),
            _ => return Err(bad),
        }
        if beyond(&attr, &self.limits(), srq) {
            return Err(bad);
        }
        // Each request takes blocks of the send queue by its segments.
        let blocks = kind(&attr).blocks(request_segments(&attr)) as usize;
        let needed = attr.max_request_dtos.checked_mul(blocks);
        if needed.is_none_or(|needed| needed > self.identity().max_sq_blocks as usize) {
            return Err(bad);
        }
        Ok(attr)
    }

    /// The most that an endpoint's attributes can be.
    pub(crate) fn limits(&self) -> Limits {
        let id = self.identity();
        // The block of a request with one segment.
        let requests = id.max_sq_blocks as usize / 2;
        Limits {
            message: id.max_message,
            dtos: requests.min(id.max_rq_entries as usize),
            segments: id.max_sges as usize,
            reads: id.max_rd_atomic.min(255),
        }
    }

    /// Finds what the names mean, and makes an event dispatcher for completions that the consumer
    /// does not want.
    pub(super) fn parts(&self, names: &Names, attr: &EpAttr) -> Result<(Parts, InZone)> {
        let zone = if names.pz.is_null() { self.hidden_zone()? } else { self.enter_zone(names.pz)? };
        let connect = match names.connect.is_null() {
            true => None,
            false => Some(self.evd(names.connect, Subtype::InvalidHandleEvdConn)?),
        };
        let unwanted = match names.recv.is_null() || names.request.is_null() {
            true => {
                let most = self.most_completions(attr, names.srq)?;
                Some(self.unwanted(most, Subtype::InvalidArg6)?)
            }
            false => None,
        };
        let found = |evd: EvdHandle, invalid| match (evd.is_null(), &unwanted) {
            (true, Some(unwanted)) => Ok(unwanted.clone()),
            _ => {
                let evd = self.evd(evd, invalid)?;
                if evd.has_lost_completions() { Err(handle(invalid)) } else { Ok(evd) }
            }
        };
        let both = found(names.request, Subtype::InvalidHandleEvdRequest)
            .and_then(|request| Ok((request, found(names.recv, Subtype::InvalidHandleEvdRecv)?)));
        match both {
            Ok((request, recv)) => {
                let shared = zone.shared().clone();
                let srq = names.srq.is_some();
                Ok((Parts { zone: shared, request, recv, connect, unwanted, srq }, zone))
            }
            Err(error) => {
                self.end_unwanted(unwanted.as_deref());
                Err(error)
            }
        }
    }

    pub(super) fn end_unwanted(&self, unwanted: Option<&Evd>) {
        if let Some(unwanted) = unwanted {
            self.end_evd(unwanted);
        }
    }

    /// The most completions of an endpoint that can be queued at a time. One endpoint may take all
    /// Receives of a shared receive queue.
    fn most_completions(&self, attr: &EpAttr, srq: Option<SrqHandle>) -> Result<usize> {
        let receives = match srq {
            Some(srq) => {
                let invalid = handle(Subtype::InvalidHandleSrq);
                let (dtos, _) = self.srq(srq)?.srq.sizes().map_err(|error| self.gone(error, invalid))?;
                dtos as usize
            }
            None => attr.max_recv_dtos,
        };
        Ok(receives.saturating_add(attr.max_request_dtos))
    }

    /// Before a shared receive queue grows to `receives`: enlarges the event dispatchers that drop
    /// unwanted completions of its endpoints.
    pub(crate) fn make_room(&self, srq: SrqHandle, receives: usize) -> Result<()> {
        for ep in self.eps.all() {
            let Some(unwanted) = &ep.unwanted else { continue };
            let (of_srq, requests) = {
                let control = ep.control.lock();
                (control.srq == srq, control.attr.max_request_dtos)
            };
            if of_srq {
                self.make_room_for(unwanted, receives.saturating_add(requests))?;
            }
        }
        Ok(())
    }

    fn make_ep(&self, names: &Names, attr: EpAttr) -> Result<EpHandle> {
        let reservation = self.eps.reserve()?;
        let handle = reservation.handle();
        let slot = match attr.service_type {
            ServiceType::IB_UD => {
                heap::room_for_arc::<SendSlot>()?;
                Arc::default()
            }
            _ => self.ep_slots.get_or_create(handle.as_raw())?.clone(),
        };
        let (parts, zone) = self.parts(names, &attr)?;
        let made = Inner::shared(Common {
            handle,
            slot,
            turn: SleepLock::new(),
            control: Mutex::new(Control::unmade(attr, names)),
            binds: Mutex::new(VecDeque::new()),
            lost: AtomicBool::new(false),
            takes_requests: AtomicBool::new(false),
            too_long: AtomicU64::new(0),
            context: Context::new(),
        });
        let ep = made.and_then(|common| {
            let srq = names.srq.map(|srq| self.srq(srq)).transpose()?;
            let qp = self.new_qp(&common, &parts, &attr, srq.as_deref())?;
            parts.endpoint_in(qp, &attr, common, zone)
        });
        let ep = ep.inspect_err(|_| self.end_unwanted(parts.unwanted.as_deref()))?;
        reservation.fill(ep.clone());
        self.adapter.created(|| ep.close_slot());
        Ok(handle)
    }

    /// Creates a queue pair, ready for a connection or for datagrams.
    pub(super) fn new_qp(
        &self,
        common: &Common,
        parts: &Parts,
        attr: &EpAttr,
        srq: Option<&Srq>,
    ) -> Result<Arc<Qp>> {
        let (Some(send_cq), Some(receive_cq)) = (parts.request.cq(), parts.recv.cq()) else {
            return Err(handle(Subtype::InvalidHandleEvdRequest));
        };
        let datagrams = attr.service_type == ServiceType::IB_UD;
        let word = common.handle.as_raw();
        // The slot begins closed, because the endpoint's state takes no requests.
        let slot_params = SlotParams { slot: &common.slot, handle: word, closed: STATE };
        let (recv_dtos, recv_iov) =
            if srq.is_some() { (0, 0) } else { (attr.max_recv_dtos, attr.max_recv_iov) };
        let attributes = QpAttributes {
            qp_type: kind(attr),
            privileged: None,
            pd: &parts.zone.pd,
            send_cq,
            receive_cq,
            srq: srq.map(|srq| &srq.srq),
            max_send_requests: attr.max_request_dtos.max(1) as u32,
            max_send_segments: request_segments(attr),
            max_receive_requests: recv_dtos.max(1) as u32,
            max_receive_segments: recv_iov.max(1) as u32,
            max_message: longest_message(attr),
            context: word,
            owner: word,
            reads_write: false,
            slot: (!datagrams).then_some((slot_params, segment_limits(attr))),
        };
        let qp = self.client()?.create_qp(&attributes).map_err(|error| self.error(error))?;
        let ready = match datagrams {
            true => qp.start_datagrams(UD_QKEY),
            false => qp.to_init(self.access()),
        };
        ready.map_err(|error| {
            let _ = qp.destroy();
            self.error(error)
        })?;
        Ok(qp)
    }

    /// What peers may do. Memory regions and windows limit it, not the endpoint.
    fn access(&self) -> LinkFlags {
        let mut access = LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE;
        access.set(LinkFlags::REMOTE_ATOMIC, self.offers.atomics());
        access
    }
}

impl Parts {
    /// An endpoint of these parts in a zone which it has not entered yet.
    pub(super) fn endpoint(&self, qp: Arc<Qp>, attr: &EpAttr, common: Arc<Common>) -> Result<Arc<Ep>> {
        let zone = InZone::begin(self.zone.clone()).ok_or(handle(Subtype::InvalidHandlePz));
        match zone {
            Ok(zone) => self.endpoint_in(qp, attr, common, zone),
            Err(error) => {
                let _ = qp.destroy();
                Err(error)
            }
        }
    }

    /// An endpoint of these parts. If there is no memory, destroys the queue pair.
    pub(super) fn endpoint_in(
        &self,
        qp: Arc<Qp>,
        attr: &EpAttr,
        common: Arc<Common>,
        zone: InZone,
    ) -> Result<Arc<Ep>> {
        let operation = match attr.service_type {
            ServiceType::IB_UD => Operation::ReceiveDatagram,
            _ => Operation::Receive,
        };
        let ep = Ep {
            qp,
            zone,
            request: self.request.clone(),
            recv: self.recv.clone(),
            connect: self.connect.clone(),
            unwanted: self.unwanted.clone(),
            datagrams: attr.service_type == ServiceType::IB_UD,
            receive: operation as u32,
            segments: segment_limits(attr),
            receive_segments: if self.srq { usize::MAX } else { attr.max_recv_iov },
            receives: attr.recv_completion_flags,
            requests: attr.request_completion_flags,
            common,
        };
        heap::arc(ep).map_err(|ep| {
            let _ = ep.qp.destroy();
            NO_MEMORY
        })
    }

    /// The event dispatcher for completions that the consumer does not want.
    pub(super) fn unwanted(&self) -> Option<&Evd> {
        self.unwanted.as_deref()
    }
}

impl Ep {
    /// The parts of an endpoint, for another queue pair.
    pub(super) fn parts(&self) -> Parts {
        Parts {
            zone: self.zone.shared().clone(),
            request: self.request.clone(),
            recv: self.recv.clone(),
            connect: self.connect.clone(),
            unwanted: self.unwanted.clone(),
            srq: self.receive_segments == usize::MAX,
        }
    }
}

/// The most segments of each kind of request.
fn segment_limits(attr: &EpAttr) -> SegmentLimits {
    SegmentLimits {
        send: attr.max_request_iov as u32,
        write: attr.max_rdma_write_iov as u32,
        read: attr.max_rdma_read_iov as u32,
    }
}

/// The subtype that names the attributes by their place among the arguments.
const fn argument(srq: bool) -> Subtype {
    if srq { Subtype::InvalidArg7 } else { Subtype::InvalidArg6 }
}

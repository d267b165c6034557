//! Creating RC endpoints (page it_ep_rc_create).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8};

use kernel_agent::{Features, Qp, QpAttributes, QpType, SegmentLimits, SlotParams, ViAttributes};
use platform::sync::Mutex;
use platform::{SleepLock, heap};
use rdma::events::Completions;
use rdma::via::{DescriptorEndpoint, Sizes};
use rdma::{Context, WorkQueues};

use crate::attributes::{EpAttributes, EpStateRc, UdAttributes};
use crate::evd::EventStreams;
use crate::flags::EpFlags;
use crate::handle::{EpHandle, EvdHandle, PzHandle, SrqHandle};
use crate::ia::{Core, Ia};
use crate::objects::ep::{Common, Control, Ep, Limits, Messages, access};
use crate::status::{Error, Result};
use crate::{closed, via};

impl Ia {
    /// Creates an RC endpoint in UNCONNECTED.
    ///
    /// With `EpFlags::SRQ` Receives come from `ep_attr.rc.srq`, and `max_recv_dtos` and
    /// `max_recv_segments` are ignored; high watermarks must be 0, as InfiniBand has none. The
    /// endpoint gets exactly the attributes that were asked for. Receives may be posted at once.
    /// `EpFlags::REUSEADDR` has no effect: a connection in TimeWait does not hinder the endpoint.
    /// `priv_ops_enable` makes a privileged mode endpoint, for privileged consumers.
    ///
    /// Errors: `InvalidPz`, `InvalidReqEvd`, `InvalidRecvEvd`, `InvalidConnEvd`, `InvalidEvdType`,
    /// `InvalidReqEvdState`, `InvalidRecvEvdState`, `InvalidFlags`, `InvalidSrq`,
    /// `SoftHiWatermark`, `HardHiWatermark`, `PrivOpsUnavailable`, `NoPermission`, `PayloadSize`,
    /// `ResourceReqDto`, `ResourceRecvDto`, `ResourceSseg`, `ResourceRseg`, `ResourceRrseg`,
    /// `ResourceRwseg`, `ResourceIrd`, `ResourceOrd`, `Resources`, `InvalidIa`, `IaCatastrophe`;
    /// `InvalidWatermark` and `EpTimewait` cannot happen. Blocks for the device. Not for callbacks.
    /// Thread-safe. Page it_ep_rc_create.
    #[doc(alias = "it_ep_rc_create")]
    pub fn ep_rc_create(
        &self,
        pz: PzHandle,
        request_sevd: EvdHandle,
        recv_sevd: EvdHandle,
        connect_sevd: EvdHandle,
        flags: EpFlags,
        ep_attr: &EpAttributes,
    ) -> Result<EpHandle> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let reservation = core.eps.reserve()?;
        let handle = reservation.handle();
        let evds = [request_sevd, recv_sevd, connect_sevd];
        let (common, limits, attr) = core.rc_parts(handle, pz, evds, flags, ep_attr)?;
        let pair = core.new_pair(&common, &limits, &attr)?;
        reservation.fill(Ep::shared(pair, limits, common.clone())?);
        core.adapter.created(|| common.close_slot());
        Ok(handle)
    }
}

impl Core {
    /// Checks the arguments of it_ep_rc_create, the EVDs in its order, and makes the parts of an
    /// endpoint beside its queue pair, in UNCONNECTED.
    pub(super) fn rc_parts(
        &self,
        handle: EpHandle,
        pz: PzHandle,
        [request_sevd, recv_sevd, connect_sevd]: [EvdHandle; 3],
        flags: EpFlags,
        ep_attr: &EpAttributes,
    ) -> Result<(Arc<Common>, Limits, EpAttributes)> {
        let zone = self.enter_zone(pz)?;
        let dto = EventStreams::COMPLETIONS;
        let request = self.feed(request_sevd, dto, Error::InvalidReqEvd)?;
        let recv = self.feed(recv_sevd, dto, Error::InvalidRecvEvd)?;
        let connect = self.feed(connect_sevd, EventStreams::MESSAGES, Error::InvalidConnEvd)?;
        if request.has_lost_completions() {
            return Err(Error::InvalidReqEvdState);
        }
        if recv.has_lost_completions() {
            return Err(Error::InvalidRecvEvdState);
        }
        if EpFlags::from_bits(flags.bits()).is_none() {
            return Err(Error::InvalidFlags);
        }
        let srq = if flags.contains(EpFlags::SRQ) { Some(self.srq(ep_attr.rc.srq)?) } else { None };
        // At most one Receive of an InfiniBand endpoint is in progress, so a watermark has no use.
        if srq.is_some() && ep_attr.rc.soft_hi_watermark != 0 {
            return Err(Error::SoftHiWatermark);
        }
        if srq.is_some() && ep_attr.rc.hard_hi_watermark != 0 {
            return Err(Error::HardHiWatermark);
        }
        let mut attr = *ep_attr;
        (attr.rc.soft_hi_watermark, attr.rc.hard_hi_watermark) = (0, 0);
        attr.ud = UdAttributes::default();
        attr.rc.srq = srq.as_ref().map_or(SrqHandle::NULL, |srq| srq.handle);
        if srq.is_some() {
            (attr.max_recv_dtos, attr.max_recv_segments) = (0, 0);
        }
        self.check_privilege(ep_attr)?;
        self.check_limits(&attr)?;
        let limits = Limits {
            segments: SegmentLimits {
                send: ep_attr.max_send_segments as u32,
                write: ep_attr.rc.max_rdma_write_segments as u32,
                read: ep_attr.rc.max_rdma_read_segments as u32,
            },
            receive_segments: attr.max_recv_segments,
            // With an SRQ, the queue pair refuses every Receive, whatever its segments.
            recv_end: if srq.is_some() { u32::MAX } else { attr.max_recv_segments as u32 + 1 },
        };
        let common = heap::arc(Common {
            handle,
            state: AtomicU8::new(EpStateRc::Unconnected as u8),
            slot: self.ep_slots.get_or_create(handle.as_raw())?.clone(),
            zone,
            srq,
            request,
            recv,
            connect: Messages(Some(connect)),
            control: Mutex::new(Control::new(attr)),
            lost: AtomicBool::new(false),
            operation: SleepLock::new(),
            context: Context::new(),
        });
        Ok((common.map_err(|_| Error::Resources)?, limits, attr))
    }
}

impl Limits {
    /// The most segments that a request in the send queue can have.
    fn most_send_segments(&self) -> u32 {
        self.segments.most().max(1)
    }
}

impl Core {
    /// Fails if the attributes ask for privileged mode and the device lacks it or the consumer is
    /// not privileged.
    pub(super) fn check_privilege(&self, attr: &EpAttributes) -> Result<()> {
        if attr.priv_ops_enable {
            if !self.features().intersects(Features::FAST_REGISTER | Features::RESERVED_KEY) {
                return Err(Error::PrivOpsUnavailable);
            }
            self.privileged()?;
        }
        Ok(())
    }

    /// The attributes of the queue pair of an RC or UD endpoint: without a slot, and with room for
    /// the segments of Sends only.
    pub(super) fn qp_attributes<'a>(
        &self,
        qp_type: QpType,
        common: &'a Common,
        attr: &EpAttributes,
    ) -> Result<QpAttributes<'a>> {
        let (Some(send_cq), Some(receive_cq)) = (common.request.cq(), common.recv.cq()) else {
            return Err(Error::InvalidEvdType);
        };
        Ok(QpAttributes {
            qp_type,
            privileged: if attr.priv_ops_enable { Some(self.privileged()?) } else { None },
            pd: &common.zone.pd,
            send_cq,
            receive_cq,
            srq: common.srq.as_ref().map(|srq| srq.inner()),
            max_send_requests: attr.max_request_dtos.max(1) as u32,
            max_send_segments: attr.max_send_segments.max(1) as u32,
            max_receive_requests: attr.max_recv_dtos.max(1) as u32,
            max_receive_segments: attr.max_recv_segments.max(1) as u32,
            max_message: attr.max_dto_payload_size as u64,
            context: common.handle.as_raw(),
            // The endpoint, not one of its queue pairs, owns narrow RMRs (it_rmr_link).
            owner: common.handle.as_raw(),
            reads_write: self.facts().reads_write_remotely,
            slot: None,
        })
    }

    /// Creates a queue pair or a virtual interface for an endpoint, ready for Receives.
    pub(super) fn new_pair(
        &self,
        common: &Common,
        limits: &Limits,
        attr: &EpAttributes,
    ) -> Result<WorkQueues> {
        match self.facts().queue_pair {
            Some(kind) => self.new_qp(kind, common, limits, attr).map(WorkQueues::Entries),
            None => self.new_vi(common, limits, attr).map(WorkQueues::Descriptors),
        }
    }

    fn new_vi(
        &self,
        common: &Common,
        limits: &Limits,
        attr: &EpAttributes,
    ) -> Result<Arc<DescriptorEndpoint>> {
        let (Some(request), Some(recv)) = (common.request.completions(), common.recv.completions()) else {
            return Err(Error::InvalidEvdType);
        };
        let entries = [attr.max_request_dtos.max(1) as u32, attr.max_recv_dtos.max(1) as u32];
        let sizes =
            Sizes { entries, segments: [limits.most_send_segments() as usize, limits.receive_segments] };
        let attributes = ViAttributes {
            reliability: via::LEVEL,
            max_transfer: attr.max_dto_payload_size as u64,
            access: via::peer_access(attr),
        };
        let client = self.client()?;
        let reserve = |queue, entries| {
            Completions::reserve(queue, &self.shared.platform, entries).map_err(|error| self.error(error))
        };
        let sends = reserve(request, entries[0])?;
        let receives = reserve(recv, entries[1]).inspect_err(|_| sends.give_back(entries[0]))?;
        let (handle, pd) = (common.handle.as_raw(), &common.zone.pd);
        DescriptorEndpoint::create(client, handle, pd, &attributes, &sizes, [sends, receives]).map_err(
            |error| {
                sends.give_back(entries[0]);
                receives.give_back(entries[1]);
                self.error(error)
            },
        )
    }

    /// Creates a queue pair for an endpoint, ready for Receives.
    fn new_qp(&self, kind: QpType, common: &Common, limits: &Limits, attr: &EpAttributes) -> Result<Arc<Qp>> {
        // The slot begins closed, because the endpoint's state takes no requests.
        let slot_params =
            SlotParams { slot: &common.slot, handle: common.handle.as_raw(), closed: closed::STATE };
        let attributes = QpAttributes {
            max_send_segments: limits.most_send_segments(),
            slot: Some((slot_params, limits.segments)),
            ..self.qp_attributes(kind, common, attr)?
        };
        let created = self.client()?.create_qp(&attributes);
        let qp = created.map_err(|error| self.error(error))?;
        qp.to_init(access(attr)).map_err(|error| {
            let _ = qp.destroy();
            self.error(error)
        })?;
        Ok(qp)
    }

    /// Checks attributes against the limits of the device for virtual interfaces.
    fn check_vi_limits(&self, attr: &EpAttributes) -> Result<()> {
        let id = self.agent().identity();
        let segments = id.max_vi_segments as usize;
        // A descriptor has 32 bits for its length.
        let (shortest, longest) = (self.shortest_message(), self.longest_message());
        let checks = [
            ((shortest..=longest).contains(&(attr.max_dto_payload_size as u64)), Error::PayloadSize),
            (attr.max_send_segments <= segments, Error::ResourceSseg),
            (attr.max_recv_segments <= segments, Error::ResourceRseg),
            (attr.rc.max_rdma_read_segments <= segments, Error::ResourceRrseg),
            (attr.rc.max_rdma_write_segments <= segments, Error::ResourceRwseg),
            (attr.max_recv_dtos <= id.max_vi_entries as usize, Error::ResourceRecvDto),
            (attr.max_request_dtos <= id.max_vi_entries as usize, Error::ResourceReqDto),
        ];
        match checks.iter().find(|(holds, _)| !holds) {
            Some((_, error)) => Err(*error),
            None => Ok(()),
        }
    }

    /// The longest message that an endpoint can have.
    pub(crate) fn longest_message(&self) -> u64 {
        let longest = self.agent().identity().max_message;
        if self.facts().has_virtual_interfaces() { longest.min(u32::MAX.into()) } else { longest }
    }

    /// The least longest message of an endpoint: a virtual interface carries at least a byte.
    pub(super) fn shortest_message(&self) -> u64 {
        u64::from(self.facts().has_virtual_interfaces())
    }

    /// Checks attributes against the limits of the device.
    fn check_limits(&self, attr: &EpAttributes) -> Result<()> {
        if self.facts().has_virtual_interfaces() {
            return self.check_vi_limits(attr);
        }
        let id = self.agent().identity();
        let segments = id.max_sges as usize;
        let depth = id.max_rd_atomic.min(u32::from(u8::MAX));
        let most =
            attr.max_send_segments.max(attr.rc.max_rdma_read_segments).max(attr.rc.max_rdma_write_segments);
        let checks = [
            (attr.max_dto_payload_size as u64 <= id.max_message, Error::PayloadSize),
            (attr.max_send_segments <= segments, Error::ResourceSseg),
            (attr.max_recv_segments <= segments, Error::ResourceRseg),
            (attr.rc.max_rdma_read_segments <= segments, Error::ResourceRrseg),
            (attr.rc.max_rdma_write_segments <= segments, Error::ResourceRwseg),
            (attr.rc.rdma_read_ird <= depth, Error::ResourceIrd),
            (attr.rc.rdma_read_ord <= depth, Error::ResourceOrd),
            (attr.max_recv_dtos <= id.max_rq_entries as usize, Error::ResourceRecvDto),
            (
                // `find` below reaches this check only if the segments are within their limit.
                most > segments
                    || attr
                        .max_request_dtos
                        .checked_mul(QpType::Rc.blocks(most as u32) as usize)
                        .is_some_and(|blocks| blocks <= id.max_sq_blocks as usize),
                Error::ResourceReqDto,
            ),
        ];
        match checks.iter().find(|(holds, _)| !holds) {
            Some((_, error)) => Err(*error),
            None => Ok(()),
        }
    }

    /// Checks read depths.
    pub(super) fn check_depth(&self, depth: u32, error: Error) -> Result<()> {
        let most = self.agent().identity().max_rd_atomic.min(u32::from(u8::MAX));
        if depth <= most { Ok(()) } else { Err(error) }
    }
}

//! Datagram endpoints: creation, key and failure (pages it_ep_ud_create, it_ep_attributes_t,
//! it_ep_state_t).
//!
//! A new datagram endpoint is operational. After a failure it is nonoperational: all its requests
//! are flushed, and it can only be freed.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use kernel_agent::{Features, Qp, QpChanges, QpType, SegmentLimits};
use platform::sync::Mutex;
use platform::{SleepLock, heap};
use rdma::{Context, WorkQueues};

use super::{RC_ONLY, state};
use crate::attributes::{EpAttributes, RcAttributes};
use crate::evd::EventStreams;
use crate::flags::EpParamMask;
use crate::handle::{EpHandle, EvdHandle, PzHandle};
use crate::ia::{Core, Ia, SPIGOT};
use crate::objects::ep::{Common, Control, Ep, Limits, Messages};
use crate::status::{Error, Result};

/// Endpoint keys with this bit are for privileged consumers (IBTA 10.2.5).
const CONTROLLED: u32 = 1 << 31;

/// The RC attributes that a query of a datagram endpoint returns.
const NO_RC: RcAttributes = RcAttributes {
    rdma_read_enable: false,
    rdma_write_enable: false,
    max_rdma_read_segments: 0,
    max_rdma_write_segments: 0,
    rdma_read_ird: 0,
    rdma_read_ord: 0,
    srq: crate::handle::SrqHandle::NULL,
    soft_hi_watermark: 0,
    hard_hi_watermark: 0,
    atomics_enable: false,
};

impl Ia {
    /// Creates a datagram endpoint, which is operational at once.
    ///
    /// The endpoint gets exactly the attributes that were asked for. Those of RC endpoints are
    /// ignored, and so is `ud_ep_id`; a query returns the ID that the endpoint got. A message must
    /// fit into one packet: `max_dto_payload_size` is at most the spigot's `max_ud_send_len`.
    /// `ud_ep_key` is the key that senders must use; a key with the top bit set is for privileged
    /// consumers. `priv_ops_enable` makes a privileged mode endpoint, for privileged consumers.
    ///
    /// Errors: `InvalidPz`, `InvalidReqEvd`, `InvalidRecvEvd`, `InvalidEvdType`,
    /// `InvalidReqEvdState`, `InvalidRecvEvdState`, `InvalidSpigot` (also if the IA lacks the UD
    /// service), `InvalidEpKey`, `PrivOpsUnavailable`, `NoPermission`, `PayloadSize`,
    /// `ResourceReqDto`, `ResourceRecvDto`, `ResourceSseg`, `ResourceRseg`, `Resources`,
    /// `InvalidIa`, `IaCatastrophe`. Blocks for the device. Not for callbacks. Thread-safe. Page
    /// it_ep_ud_create.
    #[doc(alias = "it_ep_ud_create")]
    pub fn ep_ud_create(
        &self,
        pz: PzHandle,
        request_sevd: EvdHandle,
        recv_sevd: EvdHandle,
        ep_attr: &EpAttributes,
        spigot_id: usize,
    ) -> Result<EpHandle> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let zone = core.enter_zone(pz)?;
        let dto = EventStreams::COMPLETIONS;
        let request = core.feed(request_sevd, dto, Error::InvalidReqEvd)?;
        let recv = core.feed(recv_sevd, dto, Error::InvalidRecvEvd)?;
        if request.has_lost_completions() {
            return Err(Error::InvalidReqEvdState);
        }
        if recv.has_lost_completions() {
            return Err(Error::InvalidRecvEvdState);
        }
        if spigot_id != SPIGOT || !core.features().contains(Features::UD) {
            return Err(Error::InvalidSpigot);
        }
        core.check_privilege(ep_attr)?;
        core.check_key(ep_attr.ud.ep_info.ud_ep_key)?;
        core.check_ud_limits(ep_attr)?;
        let reservation = core.eps.reserve()?;
        let handle = reservation.handle();
        let limits = Limits {
            // RDMA is refused for the type of the endpoint, not for the segments.
            segments: SegmentLimits {
                send: ep_attr.max_send_segments as u32,
                write: u32::MAX,
                read: u32::MAX,
            },
            receive_segments: ep_attr.max_recv_segments,
            recv_end: 0,
        };
        let attr = EpAttributes { rc: NO_RC, ..*ep_attr };
        heap::room_for_arc::<kernel_agent::SendSlot>()?;
        let common = heap::arc(Common {
            handle,
            state: AtomicU8::new(state::UD_OPERATIONAL),
            // Stays empty: datagrams do not take the fast path.
            slot: Arc::default(),
            zone,
            srq: None,
            request,
            recv,
            connect: Messages(None),
            control: Mutex::new(Control::new(attr)),
            lost: AtomicBool::new(false),
            operation: SleepLock::new(),
            context: Context::new(),
        });
        let common = common.map_err(|_| Error::Resources)?;
        let qp = core.new_ud_qp(&common, &attr)?;
        common.control.lock().attr.ud.ep_info.ud_ep_id = qp.qpn();
        reservation.fill(Ep::shared(WorkQueues::Entries(qp), limits, common)?);
        Ok(handle)
    }
}

impl Common {
    /// Makes a datagram endpoint nonoperational.
    pub(super) fn fail(&self) {
        let (from, to) = (state::UD_OPERATIONAL, state::UD_NONOPERATIONAL);
        // A second failure changes nothing.
        let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl Core {
    /// Creates a queue pair for a datagram endpoint, ready for Sends and Receives.
    fn new_ud_qp(&self, common: &Common, attr: &EpAttributes) -> Result<Arc<Qp>> {
        let attributes = self.qp_attributes(QpType::Ud, common, attr)?;
        let created = self.client()?.create_qp(&attributes);
        let qp = created.map_err(|error| self.error(error))?;
        let ready = qp.start_datagrams(attr.ud.ep_info.ud_ep_key);
        ready.map_err(|error| {
            let _ = qp.destroy();
            self.error(error)
        })?;
        Ok(qp)
    }

    /// Fails if the consumer may not use an endpoint key.
    fn check_key(&self, key: u32) -> Result<()> {
        if key & CONTROLLED != 0 && self.privileged().is_err() { Err(Error::InvalidEpKey) } else { Ok(()) }
    }

    /// Checks attributes against the limits of the device.
    fn check_ud_limits(&self, attr: &EpAttributes) -> Result<()> {
        let id = self.agent().identity();
        let segments = id.max_sges as usize;
        let longest = u64::from(id.mtu).min(id.max_message);
        let checks = [
            (attr.max_dto_payload_size as u64 <= longest, Error::PayloadSize),
            (attr.max_send_segments <= segments, Error::ResourceSseg),
            (attr.max_recv_segments <= segments, Error::ResourceRseg),
            (attr.max_recv_dtos <= id.max_rq_entries as usize, Error::ResourceRecvDto),
        ];
        if let Some((_, error)) = checks.iter().find(|(holds, _)| !holds) {
            return Err(*error);
        }
        let blocks = QpType::Ud.blocks(attr.max_send_segments.max(1) as u32) as usize;
        match attr.max_request_dtos.checked_mul(blocks) {
            Some(needed) if needed <= id.max_sq_blocks as usize => Ok(()),
            _ => Err(Error::ResourceReqDto),
        }
    }

    /// Checks a change of a datagram endpoint; returns the attributes after the change, and the
    /// changes of the queue pair.
    pub(super) fn check_ud(
        &self,
        control: &Control,
        mask: EpParamMask,
        new: &EpAttributes,
    ) -> Result<(EpAttributes, QpChanges)> {
        // The payload size can be set only at creation.
        if mask.intersects(RC_ONLY.union(EpParamMask::MAX_PAYLOAD)) {
            return Err(Error::InvalidEpType);
        }
        if mask.intersects(EpParamMask::MAX_REQ_DTO | EpParamMask::MAX_RECV_DTO) {
            return Err(Error::InvalidEpState);
        }
        let mut attr = control.attr;
        let mut changes = QpChanges::default();
        if mask.contains(EpParamMask::EP_KEY) {
            let key = new.ud.ep_info.ud_ep_key;
            self.check_key(key)?;
            attr.ud.ep_info.ud_ep_key = key;
            changes.qkey = Some(key);
        }
        Ok((attr, changes))
    }
}

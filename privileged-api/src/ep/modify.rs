//! Modifying endpoints (pages it_ep_modify, it_ep_attributes_t).

use kernel_agent::QpChanges;

use crate::attributes::{EpAttributes, EpStateRc};
use crate::flags::EpParamMask;
use crate::handle::EpHandle;
use crate::ia::{Core, Ia};
use crate::objects::ep::{Control, Ep, access};
use crate::status::{Error, Result};

/// The attributes that may be modified. `ATOMICS_ENABLE` is not on the page's list, but
/// it_ep_attributes_t lists it as modifiable.
const MODIFIABLE: EpParamMask = EpParamMask::MAX_PAYLOAD
    .union(EpParamMask::MAX_REQ_DTO)
    .union(EpParamMask::MAX_RECV_DTO)
    .union(EpParamMask::RDMA_RD_ENABLE)
    .union(EpParamMask::RDMA_WR_ENABLE)
    .union(EpParamMask::ATOMICS_ENABLE)
    .union(EpParamMask::MAX_IRD)
    .union(EpParamMask::MAX_ORD)
    .union(EpParamMask::EP_KEY)
    .union(EpParamMask::SOFT_HI_WATERMARK)
    .union(EpParamMask::HARD_HI_WATERMARK);

const ENABLES: EpParamMask =
    EpParamMask::RDMA_RD_ENABLE.union(EpParamMask::RDMA_WR_ENABLE).union(EpParamMask::ATOMICS_ENABLE);

impl Ia {
    /// Changes attributes of an endpoint: all that the mask names, or none.
    ///
    /// | attribute | in which states |
    /// |---|---|
    /// | `max_dto_payload_size` | UNCONNECTED, NONOPERATIONAL |
    /// | `rdma_read_enable`, `rdma_write_enable`, `atomics_enable` | all |
    /// | `rdma_read_ird` | UNCONNECTED, ACTIVE2_CONNECTION_PENDING |
    /// | `rdma_read_ord` | UNCONNECTED, ACTIVE2_CONNECTION_PENDING, CONNECTED |
    /// | `max_request_dtos`, `max_recv_dtos` | none: queues cannot be resized (`InvalidEpState`) |
    /// | `ud_ep_key` | all, of a datagram endpoint, whose other attributes are fixed (`InvalidEpType`) |
    ///
    /// An empty mask changes nothing.
    ///
    /// Errors: `InvalidEp`, `InvalidMask`, `InvalidEpState`, `InvalidEpType`, `PayloadSize`,
    /// `InvalidRecvDto` (it has an SRQ), `ResourceIrd`, `ResourceOrd`, `SoftHiWatermark`,
    /// `HardHiWatermark`, `InvalidEpKey` (a key that is for privileged consumers), `InvalidIa`,
    /// `IaCatastrophe`; `InvalidWatermark` cannot happen, as endpoints have no high watermarks.
    /// Blocks for the device. Not for callbacks. Thread-safe. Page it_ep_modify.
    #[doc(alias = "it_ep_modify")]
    pub fn ep_modify(&self, ep: EpHandle, mask: EpParamMask, ep_attr: &EpAttributes) -> Result<()> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let found = core.ep(ep)?;
        if mask.bits() & !MODIFIABLE.bits() != 0 {
            return Err(Error::InvalidMask);
        }
        if !found.is_ud() && mask.contains(EpParamMask::EP_KEY) {
            return Err(Error::InvalidEpType);
        }
        let _operation = found.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&found)?;
        let (wanted, changes) = {
            let control = ep.control.lock();
            match ep.is_ud() {
                true => core.check_ud(&control, mask, ep_attr)?,
                false => core.check(&ep, &control, mask, ep_attr)?,
            }
        };
        ep.pair.change(&changes).map_err(|error| core.error(error))?;
        ep.control.lock().attr = wanted;
        Ok(())
    }
}

impl Core {
    /// Checks a change in the endpoint's present state; returns the attributes after the change,
    /// and the changes of the queue pair.
    fn check(
        &self,
        ep: &Ep,
        control: &Control,
        mask: EpParamMask,
        new: &EpAttributes,
    ) -> Result<(EpAttributes, QpChanges)> {
        use EpStateRc as S;
        let state = ep.state();
        let mut attr = control.attr;
        let mut changes = QpChanges::default();
        if mask.contains(EpParamMask::MAX_RECV_DTO) && ep.srq.is_some() {
            return Err(Error::InvalidRecvDto);
        }
        if mask.intersects(EpParamMask::MAX_REQ_DTO | EpParamMask::MAX_RECV_DTO) {
            return Err(Error::InvalidEpState);
        }
        if mask.contains(EpParamMask::SOFT_HI_WATERMARK) && new.rc.soft_hi_watermark != 0 {
            return Err(Error::SoftHiWatermark);
        }
        if mask.contains(EpParamMask::HARD_HI_WATERMARK) && new.rc.hard_hi_watermark != 0 {
            return Err(Error::HardHiWatermark);
        }
        if mask.contains(EpParamMask::MAX_PAYLOAD) {
            if !matches!(state, S::Unconnected | S::Nonoperational) {
                return Err(Error::InvalidEpState);
            }
            let shortest = self.shortest_message();
            if !(shortest..=self.longest_message()).contains(&(new.max_dto_payload_size as u64)) {
                return Err(Error::PayloadSize);
            }
            attr.max_dto_payload_size = new.max_dto_payload_size;
            changes.max_message = Some(new.max_dto_payload_size as u64);
        }
        if mask.contains(EpParamMask::MAX_IRD) {
            if !matches!(state, S::Unconnected | S::Active2ConnectionPending) {
                return Err(Error::InvalidEpState);
            }
            self.check_depth(new.rc.rdma_read_ird, Error::ResourceIrd)?;
            attr.rc.rdma_read_ird = new.rc.rdma_read_ird;
            // In other states the queue pair gets the depth when a connection is established.
            if state == S::Active2ConnectionPending {
                changes.responder_resources = Some(new.rc.rdma_read_ird as u8);
            }
        }
        if mask.contains(EpParamMask::MAX_ORD) {
            let later =
                matches!(state, S::Active2ConnectionPending | S::Connected) && self.facts().read_depths;
            if state != S::Unconnected && !later {
                return Err(Error::InvalidEpState);
            }
            self.check_depth(new.rc.rdma_read_ord, Error::ResourceOrd)?;
            attr.rc.rdma_read_ord = new.rc.rdma_read_ord;
            if state == S::Connected {
                changes.initiator_depth = Some(new.rc.rdma_read_ord as u8);
            }
        }
        if mask.intersects(ENABLES) {
            if mask.contains(EpParamMask::RDMA_RD_ENABLE) {
                attr.rc.rdma_read_enable = new.rc.rdma_read_enable;
            }
            if mask.contains(EpParamMask::RDMA_WR_ENABLE) {
                attr.rc.rdma_write_enable = new.rc.rdma_write_enable;
            }
            if mask.contains(EpParamMask::ATOMICS_ENABLE) {
                attr.rc.atomics_enable = new.rc.atomics_enable;
            }
            changes.access = Some(access(&attr));
        }
        Ok((attr, changes))
    }
}

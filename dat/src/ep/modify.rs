//! Changing an endpoint before it is connected (dat_ep_modify).

use kernel_agent::QpChanges;

use super::create::{Names, longest_message};
use crate::attr::{EpAttr, EpParam, EpParamMask};
use crate::error::{parameter, state};
use crate::flags::{EpState, ServiceType};
use crate::handle::EpHandle;
use crate::ia::{Ia, Inner};
use crate::objects::ep::{Control, Ep, wrong};
use crate::ret::{Result, Subtype};

/// The parameters that no call can change.
const FIXED: EpParamMask = EpParamMask::IA_HANDLE
    .union(EpParamMask::EP_STATE)
    .union(EpParamMask::LOCAL_IA_ADDRESS)
    .union(EpParamMask::LOCAL_PORT_QUAL)
    .union(EpParamMask::REMOTE_IA_ADDRESS)
    .union(EpParamMask::REMOTE_PORT_QUAL)
    .union(EpParamMask::SRQ_HANDLE)
    .union(EpParamMask::EP_ATTR_SERVICE_TYPE);
/// The parameters that can change while Receives are posted.
const IN_PLACE: EpParamMask = EpParamMask::EP_ATTR_MAX_MESSAGE_SIZE
    .union(EpParamMask::EP_ATTR_MAX_RDMA_SIZE)
    .union(EpParamMask::EP_ATTR_MAX_RDMA_READ_IN)
    .union(EpParamMask::EP_ATTR_MAX_RDMA_READ_OUT);

impl Ia {
    /// Changes parameters of an endpoint in UNCONNECTED: all those in the mask, or none.
    ///
    /// The zone, the event dispatchers and the attributes can be changed, except the service type
    /// and the shared receive queue. While Receives are posted, only the sizes of messages and the
    /// numbers of RDMA Reads can be changed. Nothing of a datagram endpoint can be changed. An
    /// empty mask changes nothing.
    ///
    /// Errors: `InvalidHandle` (also of the new zone or event dispatcher), `InvalidParameter` (an
    /// undefined bit; a parameter that cannot be changed; a value that [`Ia::ep_create`] would
    /// refuse), `InvalidState` (another state, or Receives are posted; in an upcall),
    /// `InsufficientResources`. Blocks for the device. Not for upcalls. Thread-safe. dat_ep_modify.
    #[doc(alias = "dat_ep_modify")]
    pub fn ep_modify(&self, ep: EpHandle, mask: EpParamMask, param: &EpParam) -> Result<()> {
        let inner = self.call()?;
        let ep = inner.ep(ep)?;
        inner.not_in_upcall()?;
        if EpParamMask::from_bits(mask.bits()).is_none() || mask.intersects(FIXED) {
            return Err(parameter(Subtype::InvalidArg2));
        }
        let _turn = ep.turn.lock(inner.platform());
        let ep = inner.as_it_is(&ep)?;
        match inner.ep_state(&ep) {
            EpState::Unconnected => {}
            other => return Err(wrong(other)),
        }
        if mask.is_empty() {
            return Ok(());
        }
        let (names, attr, former) = {
            let control = ep.control.lock();
            let srq = (!control.srq.is_null()).then_some(control.srq);
            let has = |bit| mask.contains(bit);
            let or = |bit, new, old| if has(bit) { new } else { old };
            let names = Names {
                pz: if has(EpParamMask::PZ_HANDLE) { param.pz_handle } else { control.pz },
                recv: or(EpParamMask::RECV_EVD_HANDLE, param.recv_evd_handle, control.recv),
                request: or(EpParamMask::REQUEST_EVD_HANDLE, param.request_evd_handle, control.request),
                connect: or(EpParamMask::CONNECT_EVD_HANDLE, param.connect_evd_handle, control.connect),
                srq,
            };
            let mut attr = control.attr;
            let new = &param.ep_attr;
            macro_rules! select {
                ($($bit:ident => $field:ident;)*) => {
                    $(if has(EpParamMask::$bit) { attr.$field = new.$field; })*
                };
            }
            select! {
                EP_ATTR_MAX_MESSAGE_SIZE => max_message_size;
                EP_ATTR_MAX_RDMA_SIZE => max_rdma_size;
                EP_ATTR_QOS => qos;
                EP_ATTR_RECV_COMPLETION_FLAGS => recv_completion_flags;
                EP_ATTR_REQUEST_COMPLETION_FLAGS => request_completion_flags;
                EP_ATTR_MAX_RECV_DTOS => max_recv_dtos;
                EP_ATTR_MAX_REQUEST_DTOS => max_request_dtos;
                EP_ATTR_MAX_RECV_IOV => max_recv_iov;
                EP_ATTR_MAX_REQUEST_IOV => max_request_iov;
                EP_ATTR_MAX_RDMA_READ_IN => max_rdma_read_in;
                EP_ATTR_MAX_RDMA_READ_OUT => max_rdma_read_out;
                EP_ATTR_SRQ_SOFT_HW => srq_soft_hw;
                EP_ATTR_MAX_RDMA_READ_IOV => max_rdma_read_iov;
                EP_ATTR_MAX_RDMA_WRITE_IOV => max_rdma_write_iov;
            }
            (names, attr, control.streams())
        };
        if attr.service_type == ServiceType::IB_UD {
            return Err(parameter(Subtype::InvalidArg2));
        }
        let attr = inner.checked(attr, names.srq.is_some()).map_err(|_| parameter(Subtype::InvalidArg3))?;
        if IN_PLACE.contains(mask) {
            // The queue pair gets the read depths when a connection is established.
            let changes = QpChanges { max_message: Some(longest_message(&attr)), ..QpChanges::default() };
            ep.qp.change(&changes).map_err(|error| inner.error(error))?;
            ep.control.lock().attr = attr;
            return Ok(());
        }
        // The change would lose posted Receives.
        let (_, receives) = ep.qp.outstanding();
        if receives > 0 {
            return Err(state(Subtype::InvalidStateEpUnconnected));
        }
        let wanted = Control::unmade(attr, &names).streams();
        // Remove the endpoint's own streams first: with their old flags they would exclude the new
        // ones.
        inner.leave_all(&former);
        let renewed = inner
            .join_all(&wanted, Subtype::InvalidArg3)
            .and_then(|()| inner.rebuild(&ep, &names, &attr).inspect_err(|_| inner.leave_all(&wanted)));
        if let Err(error) = renewed {
            // These streams were registered before, and no later stream excludes them. So this
            // fails only if the consumer frees one of the event dispatchers at the same time.
            if let Err(lost) = inner.join_all(&former, Subtype::None) {
                log::warn!("{:?}: {lost}", ep.handle);
            }
            return Err(error);
        }
        {
            let mut control = ep.control.lock();
            (control.attr, control.pz) = (attr, names.pz);
            (control.recv, control.request, control.connect) = (names.recv, names.request, names.connect);
        }
        inner.end_unwanted(ep.unwanted.as_deref());
        Ok(())
    }
}

impl Inner {
    /// Makes the endpoint anew of other parts, with another queue pair.
    fn rebuild(&self, ep: &Ep, names: &Names, attr: &EpAttr) -> Result<()> {
        let (parts, zone) = self.parts(names, attr)?;
        let srq = names.srq.map(|srq| self.srq(srq)).transpose();
        // The endpoint's slot has one queue pair at a time.
        ep.qp.withdraw();
        let made = srq.and_then(|srq| self.new_qp(&ep.common, &parts, attr, srq.as_deref()));
        let made = made.and_then(|qp| parts.endpoint_in(qp, attr, ep.common.clone(), zone));
        match made {
            Ok(renewed) => self.replace(ep, renewed),
            Err(error) => {
                self.end_unwanted(parts.unwanted());
                self.restore(ep);
                Err(error)
            }
        }
    }

    /// Gives an endpoint whose queue pair was withdrawn another one like it. If there is no memory
    /// for that either, the endpoint can only be freed.
    fn restore(&self, ep: &Ep) {
        let (attr, srq) = {
            let control = ep.control.lock();
            (control.attr, control.srq)
        };
        // Leaves room in the device for a queue pair like the old one.
        let _ = ep.qp.destroy();
        let srq = if srq.is_null() { None } else { self.srq(srq).ok() };
        let parts = ep.parts();
        let made = self.new_qp(&ep.common, &parts, &attr, srq.as_deref());
        let renewed = made.and_then(|qp| parts.endpoint(qp, &attr, ep.common.clone()));
        if let Ok(renewed) = renewed {
            let _ = self.replace(ep, renewed);
        }
    }
}

//! What queries return, and the attributes that objects are created with and modified to.
//!
//! Members have DAT's names, without the suffix of pointers. Those that this provider has no use
//! for are left out, and their bits in masks are undefined.

mod adapter;
mod masks;

pub use adapter::*;
pub use masks::*;

use crate::flags::{CnoProxyType, EpState, MemType, PspFlags, SrqState, VaType};
use crate::flags::{CompletionFlags, EvdFlags, EvdState, MemPriv, Qos, ServiceType};
use crate::flags::{SRQ_LW_DEFAULT, WATERMARK_INFINITE};
use crate::handle::{CnoHandle, EpHandle, EvdHandle, IaHandle, LmrHandle, PzHandle, SrqHandle};
use crate::{IaAddress, LmrContext, LmrTriplet, PrivateData};

/// Attributes of an endpoint.
#[doc(alias = "DAT_EP_ATTR")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpAttr {
    /// Service.
    pub service_type: ServiceType,
    /// Bytes of one message at most.
    pub max_message_size: u64,
    /// Bytes of one RDMA transfer at most.
    pub max_rdma_size: u64,
    /// Quality of service.
    pub qos: Qos,
    /// How receives complete.
    pub recv_completion_flags: CompletionFlags,
    /// How requests may complete.
    pub request_completion_flags: CompletionFlags,
    /// Receives in progress at most.
    pub max_recv_dtos: usize,
    /// Requests in progress at most.
    pub max_request_dtos: usize,
    /// Segments of a receive at most.
    pub max_recv_iov: usize,
    /// Segments of a send at most.
    pub max_request_iov: usize,
    /// Incoming RDMA Reads and atomic operations at a time.
    pub max_rdma_read_in: u32,
    /// Outgoing RDMA Reads and atomic operations at a time.
    pub max_rdma_read_out: u32,
    /// The soft high watermark on a shared receive queue: an event reports that the endpoint holds
    /// more of its buffers than this.
    pub srq_soft_hw: i32,
    /// Segments of an RDMA Read at most.
    pub max_rdma_read_iov: usize,
    /// Segments of an RDMA Write at most.
    pub max_rdma_write_iov: usize,
}

impl Default for EpAttr {
    /// Reliable connections, messages and transfers up to 1 MiB, 64 work requests of each kind,
    /// four segments, no RDMA Reads.
    fn default() -> EpAttr {
        EpAttr {
            service_type: ServiceType::RC,
            max_message_size: 1 << 20,
            max_rdma_size: 1 << 20,
            qos: Qos::BEST_EFFORT,
            recv_completion_flags: CompletionFlags::DEFAULT,
            request_completion_flags: CompletionFlags::DEFAULT,
            max_recv_dtos: 64,
            max_request_dtos: 64,
            max_recv_iov: 4,
            max_request_iov: 4,
            max_rdma_read_in: 0,
            max_rdma_read_out: 0,
            srq_soft_hw: WATERMARK_INFINITE,
            max_rdma_read_iov: 4,
            max_rdma_write_iov: 4,
        }
    }
}

/// An endpoint, as a query returns it and a modification takes it.
#[doc(alias = "DAT_EP_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EpParam {
    /// The IA.
    pub ia_handle: IaHandle,
    /// State.
    pub ep_state: EpState,
    /// The IA's own address; none while unconnected.
    pub local_ia_address: Option<IaAddress>,
    /// The port at this end; not defined while unconnected.
    pub local_port_qual: u64,
    /// The peer's address; none while unconnected.
    pub remote_ia_address: Option<IaAddress>,
    /// The port at the peer's end; not defined while unconnected.
    pub remote_port_qual: u64,
    /// Protection zone.
    pub pz_handle: PzHandle,
    /// The EVD for completions of receives.
    pub recv_evd_handle: EvdHandle,
    /// The EVD for completions of requests.
    pub request_evd_handle: EvdHandle,
    /// The EVD for connection events.
    pub connect_evd_handle: EvdHandle,
    /// The shared receive queue; null without one.
    pub srq_handle: SrqHandle,
    /// Attributes.
    pub ep_attr: EpAttr,
}

/// Attributes of a shared receive queue.
#[doc(alias = "DAT_SRQ_ATTR")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives in it at most.
    pub max_recv_dtos: usize,
    /// Segments of a receive at most.
    pub max_recv_iov: usize,
    /// An event reports that fewer receives than this are left; 0 for no event.
    pub low_watermark: i32,
}

impl Default for SrqAttr {
    /// 64 receives, four segments, no low watermark.
    fn default() -> SrqAttr {
        SrqAttr { max_recv_dtos: 64, max_recv_iov: 4, low_watermark: SRQ_LW_DEFAULT }
    }
}

/// A shared receive queue, as a query returns it.
#[doc(alias = "DAT_SRQ_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SrqParam {
    /// The IA.
    pub ia_handle: IaHandle,
    /// State.
    pub srq_state: SrqState,
    /// Protection zone.
    pub pz_handle: PzHandle,
    /// Receives in it at most.
    pub max_recv_dtos: usize,
    /// Segments of a receive at most.
    pub max_recv_iov: usize,
    /// The low watermark; 0 for none.
    pub low_watermark: i32,
    /// Receives that no message took yet, or [`VALUE_UNKNOWN`](crate::flags::VALUE_UNKNOWN).
    pub available_dto_count: i32,
    /// Receives that are not complete, or [`VALUE_UNKNOWN`](crate::flags::VALUE_UNKNOWN).
    pub outstanding_dto_count: i32,
}

/// An EVD, as a query returns it.
#[doc(alias = "DAT_EVD_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EvdParam {
    /// The IA.
    pub ia_handle: IaHandle,
    /// Events that it holds at most.
    pub evd_qlen: usize,
    /// State.
    pub evd_state: EvdState,
    /// The CNO; null without one.
    pub cno_handle: CnoHandle,
    /// The event streams that may feed it.
    pub evd_flags: EvdFlags,
}

/// A CNO, as a query returns it.
#[doc(alias = "DAT_CNO_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CnoParam {
    /// The IA.
    pub ia_handle: IaHandle,
    /// What it does besides waking a waiter.
    pub proxy_type: CnoProxyType,
}

/// A protection zone, as a query returns it.
#[doc(alias = "DAT_PZ_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PzParam {
    /// The IA.
    pub ia_handle: IaHandle,
}

/// A local memory region, as a query returns it.
#[doc(alias = "DAT_LMR_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LmrParam {
    /// The IA.
    pub ia_handle: IaHandle,
    /// What it is made of.
    pub mem_type: MemType,
    /// Where the consumer's memory starts.
    #[doc(alias = "region_desc")]
    pub address: usize,
    /// Bytes that the consumer asked for.
    pub length: u64,
    /// Protection zone.
    pub pz_handle: PzHandle,
    /// Privileges.
    pub mem_priv: MemPriv,
    /// How requests address it.
    pub va_type: VaType,
    /// Names it in local segments.
    pub lmr_context: LmrContext,
    /// Names it in the peer's requests; none without remote privileges.
    pub rmr_context: Option<u32>,
    /// Bytes that are registered.
    pub registered_size: u64,
    /// Where the registered memory starts.
    pub registered_address: u64,
}

/// A remote memory region, as a query returns it.
#[doc(alias = "DAT_RMR_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RmrParam {
    /// The IA.
    pub ia_handle: IaHandle,
    /// Protection zone.
    pub pz_handle: PzHandle,
    /// The local region that it is bound to; null while unbound. C's structure does not have it.
    pub lmr_handle: LmrHandle,
    /// The memory that it is bound to; none while unbound.
    pub lmr_triplet: Option<LmrTriplet>,
    /// Privileges; none while unbound.
    pub mem_priv: MemPriv,
    /// Names it in the peer's requests; not defined while unbound.
    pub rmr_context: u32,
    /// Whose requests may use it.
    pub rmr_scope: RmrScope,
    /// How requests address it.
    pub va_type: VaType,
}

/// A public service point, as a query returns it.
#[doc(alias = "DAT_PSP_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PspParam {
    /// The IA.
    pub ia_handle: IaHandle,
    /// The connection qualifier that it listens on.
    pub conn_qual: u64,
    /// The EVD for connection requests.
    pub evd_handle: EvdHandle,
    /// Who makes the endpoints.
    pub psp_flags: PspFlags,
}

/// A reserved service point, as a query returns it.
#[doc(alias = "DAT_RSP_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RspParam {
    /// The IA.
    pub ia_handle: IaHandle,
    /// The connection qualifier that it listens on.
    pub conn_qual: u64,
    /// The EVD for the connection request.
    pub evd_handle: EvdHandle,
    /// The endpoint that is reserved for the connection.
    pub ep_handle: EpHandle,
}

/// A connection request, as a query returns it.
#[doc(alias = "DAT_CR_PARAM")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrParam {
    /// The peer's address.
    #[doc(alias = "remote_ia_address_ptr")]
    pub remote_ia_address: IaAddress,
    /// The port at the peer's end.
    pub remote_port_qual: u64,
    /// The peer's private data: the whole field of the message, padded with zeros. None if the
    /// field holds nothing but zeros.
    #[doc(alias = "private_data_size")]
    pub private_data: Option<PrivateData>,
    /// The endpoint that came with the request; null if the consumer makes it.
    pub local_ep_handle: EpHandle,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_ask_for_nothing_special() {
        let attr = EpAttr::default();
        assert_eq!((attr.max_rdma_read_in, attr.max_rdma_read_out), (0, 0));
        assert_eq!(attr.srq_soft_hw, WATERMARK_INFINITE);
        assert_eq!(EpParam::default().ep_state, EpState::Unconnected);
        assert_eq!(SrqAttr::default().low_watermark, SRQ_LW_DEFAULT);
    }
}

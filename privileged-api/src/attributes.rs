//! Attributes of objects as calls take and return them: struct literals with defaults (pages
//! it_ep_attributes_t, it_ep_query, it_evd_query, it_lmr_query, it_listen_query, it_pz_query).
//!
//! A query fills the fields that its mask asks for; the others keep their defaults.

use kernel_agent::wire::ReadDepths;

use crate::address::{ConnQual, Path, PrivateData, RemoteEpInfo, RmrContext};
use crate::event::EventType;
use crate::flags::{EvdFlags, IoblTypes, LmrFlags, MemPriv};
use crate::handle::{EvdHandle, IaHandle, LmrHandle, PzHandle, SrqHandle};

/// No limit on the Receives in progress of an endpoint.
#[doc(alias = "IT_HARD_HI_WATERMARK_DISABLE")]
pub const HARD_HI_WATERMARK_DISABLE: usize = usize::MAX;
/// A threshold that is never reached: only notification events notify.
#[doc(alias = "IT_THRESHOLD_DISABLE")]
pub const THRESHOLD_DISABLE: usize = 0;
/// A timeout that never expires.
#[doc(alias = "IT_TIMEOUT_INFINITE")]
pub const TIMEOUT_INFINITE: u64 = u64::MAX;

rdma::enumeration! {
    /// The addressing mode of a region.
    #[doc(alias = "it_addr_mode_t")]
    #[derive(Default)]
    pub enum AddrMode: u32 {
        /// Absolute addresses: the first byte has the base address.
        #[default]
        Absolute = 0, "IT_ADDR_MODE_ABSOLUTE";
        /// Offsets: the first byte has the address 0.
        Relative = 1, "IT_ADDR_MODE_RELATIVE";
    }
}

/// State of an endpoint.
#[doc(alias = "it_ep_state_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpState {
    /// Reliable connected.
    Rc(EpStateRc),
    /// Unreliable datagram.
    Ud(EpStateUd),
}

rdma::enumeration! {
    /// State of an RC endpoint.
    #[doc(alias = "it_ep_state_rc_t")]
    #[derive(Default)]
    pub enum EpStateRc: u32 {
        /// Neither connected nor establishing a connection.
        #[default]
        Unconnected = 0, "IT_EP_STATE_UNCONNECTED";
        /// The active side asked for a connection.
        Active1ConnectionPending = 1, "IT_EP_STATE_ACTIVE1_CONNECTION_PENDING";
        /// The passive side accepted (three-way).
        Active2ConnectionPending = 2, "IT_EP_STATE_ACTIVE2_CONNECTION_PENDING";
        /// The passive side accepted, and waits until the connection is established.
        PassiveConnectionPending = 3, "IT_EP_STATE_PASSIVE_CONNECTION_PENDING";
        /// Connected.
        Connected = 4, "IT_EP_STATE_CONNECTED";
        /// Not operational: all requests are flushed.
        Nonoperational = 5, "IT_EP_STATE_NONOPERATIONAL";
        /// iWARP only.
        PassiveWaitRdmaTransReq = 6, "IT_EP_STATE_PASSIVE_WAIT_RDMA_TRANS_REQ";
    }
}

rdma::enumeration! {
    /// State of a UD endpoint.
    #[doc(alias = "it_ep_state_ud_t")]
    pub enum EpStateUd: u32 {
        /// Not operational: all requests are flushed.
        Nonoperational = 0, "IT_EP_STATE_UD_NONOPERATIONAL";
        /// Operational.
        Operational = 1, "IT_EP_STATE_UD_OPERATIONAL";
    }
}

/// Attributes of RC endpoints only.
#[doc(alias = "it_rc_only_attributes_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcAttributes {
    /// Peers may read.
    pub rdma_read_enable: bool,
    /// Peers may write.
    pub rdma_write_enable: bool,
    /// Segments of an RDMA Read at most.
    pub max_rdma_read_segments: usize,
    /// Segments of an RDMA Write at most.
    pub max_rdma_write_segments: usize,
    /// Incoming RDMA Reads and atomics at a time.
    pub rdma_read_ird: u32,
    /// Outgoing RDMA Reads and atomics at a time.
    pub rdma_read_ord: u32,
    /// The shared receive queue, with [`EpFlags::SRQ`](crate::EpFlags::SRQ).
    pub srq: SrqHandle,
    /// An event reports that more Receives than this are in progress; 0 for no event.
    pub soft_hi_watermark: usize,
    /// Receives in progress above which the connection breaks.
    pub hard_hi_watermark: usize,
    /// Peers may do atomic operations.
    pub atomics_enable: bool,
}

impl RcAttributes {
    /// The read depths as connection messages carry them (5.1.1).
    pub(crate) fn read_depths(&self) -> ReadDepths {
        // The calls that take them check that they fit into a byte.
        let (ird, ord) = (self.rdma_read_ird as u8, self.rdma_read_ord as u8);
        ReadDepths { responder_resources: ird, initiator_depth: ord }
    }
}

impl Default for RcAttributes {
    /// No access for peers, four segments, read depth 4.
    fn default() -> RcAttributes {
        RcAttributes {
            rdma_read_enable: false,
            rdma_write_enable: false,
            max_rdma_read_segments: 4,
            max_rdma_write_segments: 4,
            rdma_read_ird: 4,
            rdma_read_ord: 4,
            srq: SrqHandle::NULL,
            soft_hi_watermark: 0,
            hard_hi_watermark: 0,
            atomics_enable: false,
        }
    }
}

/// Attributes of UD endpoints only.
#[doc(alias = "it_ud_only_attributes_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UdAttributes {
    /// Endpoint ID (read only) and key.
    pub ep_info: RemoteEpInfo,
}

/// Attributes of an endpoint. Of `rc` and `ud`, the one of the other service type is ignored.
#[doc(alias = "it_ep_attributes_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpAttributes {
    /// Bytes of one message at most.
    pub max_dto_payload_size: usize,
    /// Work requests in the send queue at most.
    pub max_request_dtos: usize,
    /// Receives at most.
    pub max_recv_dtos: usize,
    /// Segments of a Send at most.
    pub max_send_segments: usize,
    /// Segments of a Receive at most.
    pub max_recv_segments: usize,
    /// RC endpoints.
    #[doc(alias = "it_service_attributes_t")]
    pub rc: RcAttributes,
    /// UD endpoints.
    pub ud: UdAttributes,
    /// A privileged mode endpoint: may link LMRs and use the direct LMR handle.
    pub priv_ops_enable: bool,
}

impl Default for EpAttributes {
    /// Messages up to 1 MiB, 64 work requests of each kind, four segments, not privileged.
    fn default() -> EpAttributes {
        EpAttributes {
            max_dto_payload_size: 1 << 20,
            max_request_dtos: 64,
            max_recv_dtos: 64,
            max_send_segments: 4,
            max_recv_segments: 4,
            rc: RcAttributes::default(),
            ud: UdAttributes::default(),
            priv_ops_enable: false,
        }
    }
}

/// What [`Ia::ep_query`](crate::Ia::ep_query) returns.
#[doc(alias = "it_ep_param_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpParam {
    /// The IA.
    pub ia: IaHandle,
    /// The spigot; not defined while unconnected.
    pub spigot_id: usize,
    /// State.
    pub ep_state: EpState,
    /// Service type.
    pub service_type: crate::ServiceTypes,
    /// The path to the peer; not defined while unconnected, nor for UD.
    pub dst_path: Path,
    /// Protection zone.
    pub pz: PzHandle,
    /// The EVD of the send queue.
    pub request_sevd: EvdHandle,
    /// The EVD of the receive queue.
    pub recv_sevd: EvdHandle,
    /// The EVD of connection events; null for UD.
    pub connect_sevd: EvdHandle,
    /// Attributes.
    pub attr: EpAttributes,
}

/// Parameters of an event dispatcher.
#[doc(alias = "it_evd_param_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EvdParam {
    /// The IA.
    pub ia: IaHandle,
    /// The stream.
    pub event_number: EventType,
    /// Flags.
    pub evd_flag: EvdFlags,
    /// Size of the queue in events; 0 for an aggregate EVD.
    pub sevd_queue_size: usize,
    /// Threshold: the number of events that make a notification; 0 for an aggregate EVD.
    pub sevd_threshold: usize,
    /// The aggregate EVD, or null.
    pub aevd: EvdHandle,
    /// Whether it has a notification object (`fd` is not -1), which
    /// [`Ia::evd_notification`](crate::Ia::evd_notification) returns.
    #[doc(alias = "fd")]
    pub has_fd: bool,
    /// An event stream or another EVD feeds it.
    pub evd_bound: bool,
    /// It is enabled: it notifies an aggregate EVD, a callback or a notification object.
    pub evd_enabled: bool,
    /// The queue overflowed.
    pub evd_overflowed: bool,
    /// A callback is attached.
    pub evd_callback: bool,
}

/// Parameters of a local memory region.
#[doc(alias = "it_lmr_param_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LmrParam {
    /// The IA.
    pub ia: IaHandle,
    /// Protection zone.
    pub pz: PzHandle,
    /// Base address.
    pub addr: usize,
    /// Length.
    pub length: u64,
    /// Privileges.
    pub privs: MemPriv,
    /// Flags. SHARED is set while the region is shared.
    pub flags: LmrFlags,
    /// The identifier that was given at creation.
    pub shared_id: u32,
    /// RMR context, if peers have access.
    pub rmr_context: Option<RmrContext>,
    /// Where bounds checking begins.
    pub actual_addr: usize,
    /// Bytes that are in bounds.
    pub actual_length: u64,
    /// Addressing mode.
    pub addr_mode: AddrMode,
    /// Linked to memory.
    pub linked: bool,
    /// The most elements that a list may have.
    pub iobl_num_elts: usize,
    /// The type of the linked list; empty if the region is not linked to a list.
    pub iobl_type: IoblTypes,
}

rdma::enumeration! {
    /// Type of a remote memory region.
    #[doc(alias = "it_rmr_type_t")]
    #[derive(Default)]
    pub enum RmrType: u32 {
        /// A type that the IA supports; only for the creation of a region.
        #[default]
        Default = 0, "IT_RMR_TYPE_DEFAULT";
        /// While linked, it serves the endpoint that linked it.
        Narrow = 1, "IT_RMR_TYPE_NARROW";
        /// While linked, it serves all endpoints in its protection zone.
        Wide = 2, "IT_RMR_TYPE_WIDE";
    }
}

/// Parameters of a remote memory region.
#[doc(alias = "it_rmr_param_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RmrParam {
    /// The IA.
    pub ia: IaHandle,
    /// Protection zone.
    pub pz: PzHandle,
    /// Linked to an LMR. If it is not, all following members except the type are undefined.
    pub linked: bool,
    /// The LMR.
    pub lmr: LmrHandle,
    /// Base address: absolute in both addressing modes.
    pub addr: usize,
    /// Length.
    pub length: u64,
    /// Privileges of peers.
    pub privs: MemPriv,
    /// The context with which peers reach the region.
    pub rmr_context: Option<RmrContext>,
    /// Type: narrow or wide.
    #[doc(alias = "type")]
    pub rmr_type: RmrType,
    /// Addressing mode.
    pub addr_mode: AddrMode,
}

/// Parameters of a shared receive queue.
#[doc(alias = "it_srq_param_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SrqParam {
    /// The IA.
    pub ia: IaHandle,
    /// Protection zone.
    pub pz: PzHandle,
    /// Receives at most.
    pub max_recv_dtos: usize,
    /// Segments of a Receive at most.
    pub max_recv_segs: usize,
    /// If fewer Receives than this are left, an event reports that; 0 while it is not armed.
    pub low_watermark: usize,
}

/// Parameters of a protection zone.
#[doc(alias = "it_pz_param_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PzParam {
    /// The IA.
    pub ia: IaHandle,
}

/// Parameters of a listen point.
#[doc(alias = "it_listen_param_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ListenParam {
    /// The IA.
    pub ia_handle: IaHandle,
    /// The spigot.
    pub spigot_id: usize,
    /// The EVD of connection requests.
    pub connect_evd: EvdHandle,
    /// The qualifier.
    pub connect_qual: ConnQual,
}

/// Parameters of an address handle.
#[doc(alias = "it_addr_param_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AddrParam {
    /// The IA.
    pub ia: IaHandle,
    /// Protection zone.
    pub pz: PzHandle,
    /// The path of the datagrams.
    pub path: Path,
}

/// Parameters of a UD service request handle.
#[doc(alias = "it_ud_svc_req_param_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UdSvcReqParam {
    /// The IA.
    pub ia: IaHandle,
    /// The identifier of the request at the peer, equal each time that the request is made.
    pub request_id: u32,
    /// The EVD of replies.
    pub reply_evd: EvdHandle,
    /// The service.
    pub conn_qual: ConnQual,
    /// The path to the peer.
    pub destination_path: Path,
    /// The private data of the request: exactly the consumer's bytes.
    pub private_data: Option<PrivateData>,
    /// Its length.
    pub private_data_length: usize,
}

/// How many objects of each type an IA has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ObjectCounts {
    /// Protection zones.
    pub pz: usize,
    /// Local memory regions.
    pub lmr: usize,
    /// Remote memory regions.
    pub rmr: usize,
    /// Shared receive queues.
    pub srq: usize,
    /// Event dispatchers.
    pub evd: usize,
    /// Endpoints.
    pub ep: usize,
    /// Listen points.
    pub listen: usize,
    /// I/O mappings.
    pub mappings: usize,
    /// Pending connection requests and replies.
    pub cn_est: usize,
    /// Address handles.
    pub addr: usize,
    /// UD service request handles.
    pub ud_svc_req: usize,
    /// Peers' UD service requests that wait for a reply.
    pub ud_requests: usize,
}

impl ObjectCounts {
    /// Whether the IA has no objects.
    pub fn is_empty(&self) -> bool {
        *self == ObjectCounts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_any_type_is_counted() {
        assert!(ObjectCounts::default().is_empty());
        assert!(!ObjectCounts { pz: 1, ..ObjectCounts::default() }.is_empty());
        assert!(!ObjectCounts { ud_requests: 1, ..ObjectCounts::default() }.is_empty());
    }
}

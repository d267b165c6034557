//! What queries return, and the attributes that objects are created with and modified to.
//!
//! Members have DAT's names, without the suffix of pointers. Those that this provider has no use
//! for are left out, and their bits in masks are undefined.

use alloc::string::String;
use alloc::vec::Vec;

use bitflags::bitflags;

use crate::flags::{CnoProxyType, EpState, ExtensionAttr, MemType, PspFlags, SrqState, VaType};
use crate::flags::{CompletionFlags, EvdFlags, EvdState, MemPriv, Qos, ServiceType};
use crate::flags::{SRQ_LW_DEFAULT, WATERMARK_INFINITE, as_raw};
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

/// A named attribute.
#[doc(alias = "DAT_NAMED_ATTR")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamedAttr {
    /// Name.
    pub name: &'static str,
    /// Value.
    pub value: &'static str,
}

/// An IA and its limits, as a query returns them.
#[doc(alias = "DAT_IA_ATTR")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IaAttr {
    /// Name of the adapter.
    pub adapter_name: String,
    /// Name of its vendor.
    pub vendor_name: &'static str,
    /// Major version of the hardware.
    pub hardware_version_major: u32,
    /// Minor version of the hardware.
    pub hardware_version_minor: u32,
    /// Major version of the firmware.
    pub firmware_version_major: u32,
    /// Minor version of the firmware.
    pub firmware_version_minor: u32,
    /// The IA's own address.
    #[doc(alias = "ia_address_ptr")]
    pub ia_address: IaAddress,
    /// Endpoints.
    pub max_eps: usize,
    /// Requests, and receives, of an endpoint.
    pub max_dto_per_ep: usize,
    /// Incoming RDMA Reads of an endpoint at a time.
    pub max_rdma_read_per_ep_in: u32,
    /// Outgoing RDMA Reads of an endpoint at a time.
    pub max_rdma_read_per_ep_out: u32,
    /// EVDs.
    pub max_evds: usize,
    /// Events of an EVD.
    pub max_evd_qlen: usize,
    /// Segments of a send or a receive.
    pub max_iov_segments_per_dto: usize,
    /// Local memory regions.
    pub max_lmrs: usize,
    /// Bytes of a local memory region.
    pub max_lmr_block_size: u64,
    /// The highest virtual address of a local memory region.
    pub max_lmr_virtual_address: u64,
    /// Protection zones.
    pub max_pzs: usize,
    /// Bytes of a message.
    #[doc(alias = "max_mtu_size")]
    pub max_message_size: u64,
    /// Bytes of an RDMA transfer.
    pub max_rdma_size: u64,
    /// Remote memory regions.
    pub max_rmrs: usize,
    /// The highest address of a remote memory region.
    pub max_rmr_target_address: u64,
    /// Shared receive queues.
    pub max_srqs: usize,
    /// Endpoints of a shared receive queue.
    pub max_ep_per_srq: usize,
    /// Receives of a shared receive queue.
    pub max_recv_per_srq: usize,
    /// Segments of an RDMA Read.
    pub max_iov_segments_per_rdma_read: usize,
    /// Segments of an RDMA Write.
    pub max_iov_segments_per_rdma_write: usize,
    /// Incoming RDMA Reads of the IA at a time.
    pub max_rdma_read_in: u32,
    /// Outgoing RDMA Reads of the IA at a time.
    pub max_rdma_read_out: u32,
    /// Every endpoint can have [`IaAttr::max_rdma_read_per_ep_in`] at the same time.
    pub max_rdma_read_per_ep_in_guaranteed: bool,
    /// Every endpoint can have [`IaAttr::max_rdma_read_per_ep_out`] at the same time.
    pub max_rdma_read_per_ep_out_guaranteed: bool,
    /// Regions can be addressed by offset.
    pub zb_supported: bool,
    /// Extensions.
    pub extension_supported: ExtensionAttr,
    /// Version of the extensions.
    pub extension_version: u32,
}

/// Who owns the list of segments of a post, from the return of the call until the request is
/// complete.
#[doc(alias = "DAT_IOV_OWNERSHIP")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum IovOwnership {
    /// The consumer.
    #[default]
    #[doc(alias = "DAT_IOV_CONSUMER")]
    Consumer = 0,
    /// The provider, which does not modify it.
    #[doc(alias = "DAT_IOV_PROVIDER_NOMOD")]
    ProviderNomod = 1,
    /// The provider, which may modify it.
    #[doc(alias = "DAT_IOV_PROVIDER_MOD")]
    ProviderMod = 2,
}

/// Whether the provider makes endpoints for a public service point.
#[doc(alias = "DAT_EP_CREATOR_FOR_PSP")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum EpCreator {
    /// Never.
    #[default]
    #[doc(alias = "DAT_PSP_CREATES_EP_NEVER")]
    Never = 0,
    /// With [`PspFlags::Provider`].
    #[doc(alias = "DAT_PSP_CREATES_EP_IFASKED")]
    IfAsked = 1,
    /// Always.
    #[doc(alias = "DAT_PSP_CREATES_EP_ALWAYS")]
    Always = 2,
}

/// What kind of protection a protection zone gives.
#[doc(alias = "DAT_PZ_SUPPORT")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum PzSupport {
    /// Each protection zone is a separate one.
    #[default]
    #[doc(alias = "DAT_PZ_UNIQUE")]
    Unique = 0,
    /// Protection zones can be shared.
    #[doc(alias = "DAT_PZ_SHAREABLE")]
    Shareable = 1,
}

/// Whose requests may use a remote memory region.
#[doc(alias = "DAT_RMR_SCOPE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum RmrScope {
    /// Those that come to one endpoint.
    #[doc(alias = "DAT_RMR_SCOPE_EP")]
    Ep = 0,
    /// Those that come to endpoints of one protection zone.
    #[default]
    #[doc(alias = "DAT_RMR_SCOPE_PZ")]
    Pz = 1,
    /// As an attribute of a provider: it has both kinds.
    #[doc(alias = "DAT_RMR_SCOPE_ANY")]
    Any = 2,
}

as_raw! { IovOwnership, EpCreator, PzSupport, RmrScope }

/// A provider and what it supports, as a query returns it.
#[doc(alias = "DAT_PROVIDER_ATTR")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderAttr {
    /// Name.
    pub provider_name: String,
    /// Major version of the provider.
    pub provider_version_major: u32,
    /// Minor version of the provider.
    pub provider_version_minor: u32,
    /// Major version of DAT.
    pub dapl_version_major: u32,
    /// Minor version of DAT.
    pub dapl_version_minor: u32,
    /// What regions can be made of: the numbers of [`MemType`], combined with OR. That of
    /// [`MemType::Virtual`] is 0, and every provider has it.
    pub lmr_mem_types_supported: u32,
    /// Who owns the list of segments when a post has returned.
    #[doc(alias = "iov_ownership_on_return")]
    pub iov_ownership: IovOwnership,
    /// Qualities of service besides [`Qos::BEST_EFFORT`].
    pub dat_qos_supported: Qos,
    /// How work requests can complete besides [`CompletionFlags::DEFAULT`].
    pub completion_flags_supported: CompletionFlags,
    /// Threads may call it at the same time.
    pub is_thread_safe: bool,
    /// Bytes of private data.
    pub max_private_data_size: usize,
    /// A connection can take several paths.
    pub supports_multipath: bool,
    /// Whether it makes endpoints for a public service point.
    pub ep_creator: EpCreator,
    /// What kind of protection a protection zone gives.
    pub pz_support: PzSupport,
    /// Memory aligned to this is transferred best.
    pub optimal_buffer_alignment: u32,
    /// Whether two event streams may feed one EVD, in this order: software events, connection
    /// requests, completions of data transfers, connection events, completions of RMR binds,
    /// asynchronous events.
    pub evd_stream_merging_supported: [[bool; 6]; 6],
    /// It has shared receive queues.
    pub srq_supported: bool,
    /// Watermarks of shared receive queues: 0x001 low, 0x010 soft high, 0x100 hard high.
    pub srq_watermarks_supported: u32,
    /// An endpoint and its shared receive queue can be in different protection zones.
    pub srq_ep_pz_difference_supported: bool,
    /// The counts that a query of a shared receive queue returns: 0x01
    /// [`SrqParam::available_dto_count`], 0x10 [`SrqParam::outstanding_dto_count`].
    pub srq_info_supported: u32,
    /// What a query of an endpoint's receives returns: 0x01 how many buffers it took, 0x10 their
    /// span.
    pub ep_recv_info_supported: u32,
    /// Consumers must call `lmr_sync_rdma_read` and `lmr_sync_rdma_write`.
    pub lmr_sync_req: bool,
    /// The outcome of a request always comes by event.
    pub dto_async_return_guaranteed: bool,
    /// The sink of an RDMA Read needs [`MemPriv::REMOTE_WRITE`].
    pub rdma_write_for_rdma_read_req: bool,
    /// The sink of an RDMA Read is exposed to the peer.
    pub rdma_read_lmr_rmr_context_exposure: bool,
    /// Whose requests may use a remote memory region.
    pub rmr_scope_supported: RmrScope,
    /// Signal handlers may call it.
    pub is_signal_safe: bool,
    /// Attributes of this provider only.
    #[doc(alias = "num_provider_specific_attr")]
    pub provider_specific_attr: Vec<NamedAttr>,
}

bitflags! {
    /// Members of [`EpParam`].
    #[doc(alias = "DAT_EP_PARAM_MASK")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct EpParamMask: u64 {
        /// [`EpParam::ia_handle`].
        #[doc(alias = "DAT_EP_FIELD_IA_HANDLE")]
        const IA_HANDLE = 0x0000_0001;
        /// [`EpParam::ep_state`].
        #[doc(alias = "DAT_EP_FIELD_EP_STATE")]
        const EP_STATE = 0x0000_0002;
        /// [`EpParam::local_ia_address`].
        #[doc(alias = "DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR")]
        const LOCAL_IA_ADDRESS = 0x0000_0008;
        /// [`EpParam::local_port_qual`].
        #[doc(alias = "DAT_EP_FIELD_LOCAL_PORT_QUAL")]
        const LOCAL_PORT_QUAL = 0x0000_0010;
        /// [`EpParam::remote_ia_address`].
        #[doc(alias = "DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR")]
        const REMOTE_IA_ADDRESS = 0x0000_0020;
        /// [`EpParam::remote_port_qual`].
        #[doc(alias = "DAT_EP_FIELD_REMOTE_PORT_QUAL")]
        const REMOTE_PORT_QUAL = 0x0000_0040;
        /// [`EpParam::pz_handle`].
        #[doc(alias = "DAT_EP_FIELD_PZ_HANDLE")]
        const PZ_HANDLE = 0x0000_0080;
        /// [`EpParam::recv_evd_handle`].
        #[doc(alias = "DAT_EP_FIELD_RECV_EVD_HANDLE")]
        const RECV_EVD_HANDLE = 0x0000_0100;
        /// [`EpParam::request_evd_handle`].
        #[doc(alias = "DAT_EP_FIELD_REQUEST_EVD_HANDLE")]
        const REQUEST_EVD_HANDLE = 0x0000_0200;
        /// [`EpParam::connect_evd_handle`].
        #[doc(alias = "DAT_EP_FIELD_CONNECT_EVD_HANDLE")]
        const CONNECT_EVD_HANDLE = 0x0000_0400;
        /// [`EpParam::srq_handle`].
        #[doc(alias = "DAT_EP_FIELD_SRQ_HANDLE")]
        const SRQ_HANDLE = 0x0000_0800;
        /// [`EpAttr::service_type`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE")]
        const EP_ATTR_SERVICE_TYPE = 0x0000_1000;
        /// [`EpAttr::max_message_size`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE")]
        const EP_ATTR_MAX_MESSAGE_SIZE = 0x0000_2000;
        /// [`EpAttr::max_rdma_size`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE")]
        const EP_ATTR_MAX_RDMA_SIZE = 0x0000_4000;
        /// [`EpAttr::qos`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_QOS")]
        const EP_ATTR_QOS = 0x0000_8000;
        /// [`EpAttr::recv_completion_flags`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS")]
        const EP_ATTR_RECV_COMPLETION_FLAGS = 0x0001_0000;
        /// [`EpAttr::request_completion_flags`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS")]
        const EP_ATTR_REQUEST_COMPLETION_FLAGS = 0x0002_0000;
        /// [`EpAttr::max_recv_dtos`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS")]
        const EP_ATTR_MAX_RECV_DTOS = 0x0004_0000;
        /// [`EpAttr::max_request_dtos`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS")]
        const EP_ATTR_MAX_REQUEST_DTOS = 0x0008_0000;
        /// [`EpAttr::max_recv_iov`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV")]
        const EP_ATTR_MAX_RECV_IOV = 0x0010_0000;
        /// [`EpAttr::max_request_iov`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV")]
        const EP_ATTR_MAX_REQUEST_IOV = 0x0020_0000;
        /// [`EpAttr::max_rdma_read_in`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN")]
        const EP_ATTR_MAX_RDMA_READ_IN = 0x0040_0000;
        /// [`EpAttr::max_rdma_read_out`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT")]
        const EP_ATTR_MAX_RDMA_READ_OUT = 0x0080_0000;
        /// [`EpAttr::srq_soft_hw`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW")]
        const EP_ATTR_SRQ_SOFT_HW = 0x0100_0000;
        /// [`EpAttr::max_rdma_read_iov`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV")]
        const EP_ATTR_MAX_RDMA_READ_IOV = 0x0200_0000;
        /// [`EpAttr::max_rdma_write_iov`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV")]
        const EP_ATTR_MAX_RDMA_WRITE_IOV = 0x0400_0000;
        /// All members of [`EpAttr`].
        #[doc(alias = "DAT_EP_FIELD_EP_ATTR_ALL")]
        const EP_ATTR_ALL = 0x07ff_f000;
        /// All members.
        #[doc(alias = "DAT_EP_FIELD_ALL")]
        const ALL = 0x07ff_fffb;
    }
}

bitflags! {
    /// Members of [`IaAttr`].
    #[doc(alias = "DAT_IA_ATTR_MASK")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct IaAttrMask: u64 {
        /// [`IaAttr::adapter_name`].
        #[doc(alias = "DAT_IA_FIELD_IA_ADAPTER_NAME")]
        const ADAPTER_NAME = 1 << 0;
        /// [`IaAttr::vendor_name`].
        #[doc(alias = "DAT_IA_FIELD_IA_VENDOR_NAME")]
        const VENDOR_NAME = 1 << 1;
        /// [`IaAttr::hardware_version_major`].
        #[doc(alias = "DAT_IA_FIELD_IA_HARDWARE_MAJOR_VERSION")]
        const HARDWARE_MAJOR_VERSION = 1 << 2;
        /// [`IaAttr::hardware_version_minor`].
        #[doc(alias = "DAT_IA_FIELD_IA_HARDWARE_MINOR_VERSION")]
        const HARDWARE_MINOR_VERSION = 1 << 3;
        /// [`IaAttr::firmware_version_major`].
        #[doc(alias = "DAT_IA_FIELD_IA_FIRMWARE_MAJOR_VERSION")]
        const FIRMWARE_MAJOR_VERSION = 1 << 4;
        /// [`IaAttr::firmware_version_minor`].
        #[doc(alias = "DAT_IA_FIELD_IA_FIRMWARE_MINOR_VERSION")]
        const FIRMWARE_MINOR_VERSION = 1 << 5;
        /// [`IaAttr::ia_address`].
        #[doc(alias = "DAT_IA_FIELD_IA_ADDRESS_PTR")]
        const IA_ADDRESS = 1 << 6;
        /// [`IaAttr::max_eps`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_EPS")]
        const MAX_EPS = 1 << 7;
        /// [`IaAttr::max_dto_per_ep`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_DTO_PER_EP")]
        const MAX_DTO_PER_EP = 1 << 8;
        /// [`IaAttr::max_rdma_read_per_ep_in`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN")]
        const MAX_RDMA_READ_PER_EP_IN = 1 << 9;
        /// [`IaAttr::max_rdma_read_per_ep_out`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT")]
        const MAX_RDMA_READ_PER_EP_OUT = 1 << 10;
        /// [`IaAttr::max_evds`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_EVDS")]
        const MAX_EVDS = 1 << 11;
        /// [`IaAttr::max_evd_qlen`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_EVD_QLEN")]
        const MAX_EVD_QLEN = 1 << 12;
        /// [`IaAttr::max_iov_segments_per_dto`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_DTO")]
        const MAX_IOV_SEGMENTS_PER_DTO = 1 << 13;
        /// [`IaAttr::max_lmrs`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_LMRS")]
        const MAX_LMRS = 1 << 14;
        /// [`IaAttr::max_lmr_block_size`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_LMR_BLOCK_SIZE")]
        const MAX_LMR_BLOCK_SIZE = 1 << 15;
        /// [`IaAttr::max_lmr_virtual_address`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_LMR_VIRTUAL_ADDRESS")]
        const MAX_LMR_VIRTUAL_ADDRESS = 1 << 16;
        /// [`IaAttr::max_pzs`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_PZS")]
        const MAX_PZS = 1 << 17;
        /// [`IaAttr::max_message_size`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE")]
        const MAX_MESSAGE_SIZE = 1 << 18;
        /// [`IaAttr::max_rdma_size`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_SIZE")]
        const MAX_RDMA_SIZE = 1 << 19;
        /// [`IaAttr::max_rmrs`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RMRS")]
        const MAX_RMRS = 1 << 20;
        /// [`IaAttr::max_rmr_target_address`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RMR_TARGET_ADDRESS")]
        const MAX_RMR_TARGET_ADDRESS = 1 << 21;
        /// [`IaAttr::max_srqs`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_SRQS")]
        const MAX_SRQS = 1 << 22;
        /// [`IaAttr::max_ep_per_srq`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_EP_PER_SRQ")]
        const MAX_EP_PER_SRQ = 1 << 23;
        /// [`IaAttr::max_recv_per_srq`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RECV_PER_SRQ")]
        const MAX_RECV_PER_SRQ = 1 << 24;
        /// [`IaAttr::max_iov_segments_per_rdma_read`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_READ")]
        const MAX_IOV_SEGMENTS_PER_RDMA_READ = 1 << 25;
        /// [`IaAttr::max_iov_segments_per_rdma_write`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_WRITE")]
        const MAX_IOV_SEGMENTS_PER_RDMA_WRITE = 1 << 26;
        /// [`IaAttr::max_rdma_read_in`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_IN")]
        const MAX_RDMA_READ_IN = 1 << 27;
        /// [`IaAttr::max_rdma_read_out`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_OUT")]
        const MAX_RDMA_READ_OUT = 1 << 28;
        /// [`IaAttr::max_rdma_read_per_ep_in_guaranteed`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN_GUARANTEED")]
        const MAX_RDMA_READ_PER_EP_IN_GUARANTEED = 1 << 29;
        /// [`IaAttr::max_rdma_read_per_ep_out_guaranteed`].
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT_GUARANTEED")]
        const MAX_RDMA_READ_PER_EP_OUT_GUARANTEED = 1 << 30;
        /// [`IaAttr::zb_supported`].
        #[doc(alias = "DAT_IA_FIELD_IA_ZB_SUPPORTED")]
        const ZB_SUPPORTED = 1 << 31;
        /// [`IaAttr::extension_supported`].
        #[doc(alias = "DAT_IA_FIELD_IA_EXTENSION")]
        const EXTENSION = 1 << 32;
        /// [`IaAttr::extension_version`].
        #[doc(alias = "DAT_IA_FIELD_IA_EXTENSION_VERSION")]
        const EXTENSION_VERSION = 1 << 33;
        /// All members.
        #[doc(alias = "DAT_IA_FIELD_ALL")]
        #[doc(alias = "DAT_IA_ALL")]
        const ALL = (1 << 34) - 1;
    }
}

impl IaAttrMask {
    /// No members.
    #[doc(alias = "DAT_IA_FIELD_NONE")]
    pub const NONE: IaAttrMask = IaAttrMask::empty();
}

bitflags! {
    /// Members of [`ProviderAttr`].
    #[doc(alias = "DAT_PROVIDER_ATTR_MASK")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct ProviderAttrMask: u64 {
        /// [`ProviderAttr::provider_name`].
        #[doc(alias = "DAT_PROVIDER_FIELD_PROVIDER_NAME")]
        const PROVIDER_NAME = 1 << 0;
        /// [`ProviderAttr::provider_version_major`].
        #[doc(alias = "DAT_PROVIDER_FIELD_PROVIDER_VERSION_MAJOR")]
        const PROVIDER_VERSION_MAJOR = 1 << 1;
        /// [`ProviderAttr::provider_version_minor`].
        #[doc(alias = "DAT_PROVIDER_FIELD_PROVIDER_VERSION_MINOR")]
        const PROVIDER_VERSION_MINOR = 1 << 2;
        /// [`ProviderAttr::dapl_version_major`].
        #[doc(alias = "DAT_PROVIDER_FIELD_DAPL_VERSION_MAJOR")]
        const DAPL_VERSION_MAJOR = 1 << 3;
        /// [`ProviderAttr::dapl_version_minor`].
        #[doc(alias = "DAT_PROVIDER_FIELD_DAPL_VERSION_MINOR")]
        const DAPL_VERSION_MINOR = 1 << 4;
        /// [`ProviderAttr::lmr_mem_types_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_LMR_MEM_TYPE_SUPPORTED")]
        const LMR_MEM_TYPE_SUPPORTED = 1 << 5;
        /// [`ProviderAttr::iov_ownership_on_return`].
        #[doc(alias = "DAT_PROVIDER_FIELD_IOV_OWNERSHIP")]
        const IOV_OWNERSHIP = 1 << 6;
        /// [`ProviderAttr::dat_qos_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_DAT_QOS_SUPPORTED")]
        const DAT_QOS_SUPPORTED = 1 << 7;
        /// [`ProviderAttr::completion_flags_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_COMPLETION_FLAGS_SUPPORTED")]
        const COMPLETION_FLAGS_SUPPORTED = 1 << 8;
        /// [`ProviderAttr::is_thread_safe`].
        #[doc(alias = "DAT_PROVIDER_FIELD_IS_THREAD_SAFE")]
        const IS_THREAD_SAFE = 1 << 9;
        /// [`ProviderAttr::max_private_data_size`].
        #[doc(alias = "DAT_PROVIDER_FIELD_MAX_PRIVATE_DATA_SIZE")]
        const MAX_PRIVATE_DATA_SIZE = 1 << 10;
        /// [`ProviderAttr::supports_multipath`].
        #[doc(alias = "DAT_PROVIDER_FIELD_SUPPORTS_MULTIPATH")]
        const SUPPORTS_MULTIPATH = 1 << 11;
        /// [`ProviderAttr::ep_creator`].
        #[doc(alias = "DAT_PROVIDER_FIELD_EP_CREATOR")]
        const EP_CREATOR = 1 << 12;
        /// [`ProviderAttr::pz_support`].
        #[doc(alias = "DAT_PROVIDER_FIELD_PZ_SUPPORT")]
        const PZ_SUPPORT = 1 << 13;
        /// [`ProviderAttr::optimal_buffer_alignment`].
        #[doc(alias = "DAT_PROVIDER_FIELD_OPTIMAL_BUFFER_ALIGNMENT")]
        const OPTIMAL_BUFFER_ALIGNMENT = 1 << 14;
        /// [`ProviderAttr::evd_stream_merging_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_EVD_STREAM_MERGING_SUPPORTED")]
        const EVD_STREAM_MERGING_SUPPORTED = 1 << 15;
        /// [`ProviderAttr::srq_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_SRQ_SUPPORTED")]
        const SRQ_SUPPORTED = 1 << 16;
        /// [`ProviderAttr::srq_watermarks_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_SRQ_WATERMARKS_SUPPORTED")]
        const SRQ_WATERMARKS_SUPPORTED = 1 << 17;
        /// [`ProviderAttr::srq_ep_pz_difference_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_SRQ_EP_PZ_DIFFERENCE_SUPPORTED")]
        const SRQ_EP_PZ_DIFFERENCE_SUPPORTED = 1 << 18;
        /// [`ProviderAttr::srq_info_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_SRQ_INFO_SUPPORTED")]
        const SRQ_INFO_SUPPORTED = 1 << 19;
        /// [`ProviderAttr::ep_recv_info_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_EP_RECV_INFO_SUPPORTED")]
        const EP_RECV_INFO_SUPPORTED = 1 << 20;
        /// [`ProviderAttr::lmr_sync_req`].
        #[doc(alias = "DAT_PROVIDER_FIELD_LMR_SYNC_REQ")]
        const LMR_SYNC_REQ = 1 << 21;
        /// [`ProviderAttr::dto_async_return_guaranteed`].
        #[doc(alias = "DAT_PROVIDER_FIELD_DTO_ASYNC_RETURN_GUARANTEED")]
        const DTO_ASYNC_RETURN_GUARANTEED = 1 << 22;
        /// [`ProviderAttr::rdma_write_for_rdma_read_req`].
        #[doc(alias = "DAT_PROVIDER_FIELD_RDMA_WRITE_FOR_RDMA_READ_REQ")]
        const RDMA_WRITE_FOR_RDMA_READ_REQ = 1 << 23;
        /// [`ProviderAttr::rdma_read_lmr_rmr_context_exposure`].
        #[doc(alias = "DAT_PROVIDER_FIELD_RDMA_READ_LMR_RMR_CONTEXT_EXPOSURE")]
        const RDMA_READ_LMR_RMR_CONTEXT_EXPOSURE = 1 << 24;
        /// [`ProviderAttr::rmr_scope_supported`].
        #[doc(alias = "DAT_PROVIDER_FIELD_RMR_SCOPE_SUPPORTED")]
        const RMR_SCOPE_SUPPORTED = 1 << 25;
        /// [`ProviderAttr::is_signal_safe`].
        #[doc(alias = "DAT_PROVIDER_FIELD_IS_SIGNAL_SAFE")]
        const IS_SIGNAL_SAFE = 1 << 26;
        /// The length of [`ProviderAttr::provider_specific_attr`].
        #[doc(alias = "DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR")]
        const NUM_PROVIDER_SPECIFIC_ATTR = 1 << 29;
        /// [`ProviderAttr::provider_specific_attr`].
        #[doc(alias = "DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR")]
        const PROVIDER_SPECIFIC_ATTR = 1 << 30;
        /// All members.
        #[doc(alias = "DAT_PROVIDER_FIELD_ALL")]
        const ALL = 0x67ff_ffff;
    }
}

impl ProviderAttrMask {
    /// No members.
    #[doc(alias = "DAT_PROVIDER_FIELD_NONE")]
    pub const NONE: ProviderAttrMask = ProviderAttrMask::empty();
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitflags::Flags;

    /// The members of a mask are its single bits, in C's order.
    #[test]
    fn sums_of_masks_are_those_of_their_members() {
        macro_rules! check {
            ($($name:ident = $all:literal;)*) => {$(
                let members = $name::FLAGS.iter().map(|flag| flag.value().bits());
                let singles = members.filter(|bits| bits.is_power_of_two());
                assert!(singles.clone().is_sorted_by(|a, b| a < b), stringify!($name));
                assert_eq!(singles.sum::<u64>(), $all, stringify!($name));
                assert_eq!(($name::ALL.bits(), $name::all().bits()), ($all, $all));
            )*};
        }
        check! {
            EpParamMask = 0x07ff_fffb;
            IaAttrMask = 0x0003_ffff_ffff;
            ProviderAttrMask = 0x67ff_ffff;
        }
        assert_eq!(EpParamMask::EP_ATTR_ALL.bits(), EpParamMask::ALL.bits() & !0xfff);
    }

    #[test]
    fn masks_have_the_numbers_of_the_headers() {
        assert_eq!(EpParamMask::SRQ_HANDLE.bits(), 0x800);
        assert_eq!(EpParamMask::EP_ATTR_SERVICE_TYPE.bits(), 0x1000);
        assert_eq!(EpParamMask::EP_ATTR_SRQ_SOFT_HW.bits(), 0x0100_0000);
        assert_eq!(IaAttrMask::MAX_LMRS.bits(), 0x4000);
        assert_eq!(IaAttrMask::MAX_SRQS.bits(), 0x0040_0000);
        assert_eq!(IaAttrMask::ZB_SUPPORTED.bits(), 0x8000_0000);
        assert_eq!(IaAttrMask::EXTENSION_VERSION.bits(), 1 << 33);
        assert_eq!(ProviderAttrMask::EP_CREATOR.bits(), 0x1000);
        assert_eq!(ProviderAttrMask::LMR_SYNC_REQ.bits(), 0x0020_0000);
        assert_eq!(ProviderAttrMask::IS_SIGNAL_SAFE.bits(), 0x0400_0000);
    }

    #[test]
    fn defaults_ask_for_nothing_special() {
        let attr = EpAttr::default();
        assert_eq!((attr.max_rdma_read_in, attr.max_rdma_read_out), (0, 0));
        assert_eq!(attr.srq_soft_hw, WATERMARK_INFINITE);
        assert_eq!(EpParam::default().ep_state, EpState::Unconnected);
        assert_eq!(SrqAttr::default().low_watermark, SRQ_LW_DEFAULT);
    }
}

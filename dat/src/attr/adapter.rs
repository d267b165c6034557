//! What a query of an IA returns: its attributes and those of its provider.

use alloc::string::String;
use alloc::vec::Vec;

use crate::IaAddress;
use crate::flags::{CompletionFlags, ExtensionAttr, Qos};

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
    /// Most requests, and most Receives, of an endpoint.
    pub max_dto_per_ep: usize,
    /// Most incoming RDMA Reads of an endpoint at a time.
    pub max_rdma_read_per_ep_in: u32,
    /// Most outgoing RDMA Reads of an endpoint at a time.
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
    /// Most incoming RDMA Reads of the IA at a time.
    pub max_rdma_read_in: u32,
    /// Most outgoing RDMA Reads of the IA at a time.
    pub max_rdma_read_out: u32,
    /// Whether every endpoint can have [`IaAttr::max_rdma_read_per_ep_in`] incoming RDMA Reads at
    /// the same time.
    pub max_rdma_read_per_ep_in_guaranteed: bool,
    /// Whether every endpoint can have [`IaAttr::max_rdma_read_per_ep_out`] outgoing RDMA Reads at
    /// the same time.
    pub max_rdma_read_per_ep_out_guaranteed: bool,
    /// Regions can be addressed by offset.
    pub zb_supported: bool,
    /// Extensions.
    pub extension_supported: ExtensionAttr,
    /// Version of the extensions.
    pub extension_version: u32,
}

rdma::enumeration! {
    /// Who owns a post's list of segments after the call has returned, until the request is
    /// complete.
    #[doc(alias = "DAT_IOV_OWNERSHIP")]
    #[derive(Default)]
    pub enum IovOwnership: u32 {
        /// The consumer.
        #[default]
        Consumer = 0, "DAT_IOV_CONSUMER";
        /// The provider, which does not modify it.
        ProviderNomod = 1, "DAT_IOV_PROVIDER_NOMOD";
        /// The provider, which may modify it.
        ProviderMod = 2, "DAT_IOV_PROVIDER_MOD";
    }
}

rdma::enumeration! {
    /// Whether the provider creates endpoints for a public service point.
    #[doc(alias = "DAT_EP_CREATOR_FOR_PSP")]
    #[derive(Default)]
    pub enum EpCreator: u32 {
        /// Never.
        #[default]
        Never = 0, "DAT_PSP_CREATES_EP_NEVER";
        /// With [`PspFlags::Provider`](crate::PspFlags::Provider).
        IfAsked = 1, "DAT_PSP_CREATES_EP_IFASKED";
        /// Always.
        Always = 2, "DAT_PSP_CREATES_EP_ALWAYS";
    }
}

rdma::enumeration! {
    /// What kind of protection a protection zone gives.
    #[doc(alias = "DAT_PZ_SUPPORT")]
    #[derive(Default)]
    pub enum PzSupport: u32 {
        /// Each protection zone is a separate one.
        #[default]
        Unique = 0, "DAT_PZ_UNIQUE";
        /// Protection zones can be shared.
        Shareable = 1, "DAT_PZ_SHAREABLE";
    }
}

rdma::enumeration! {
    /// Which requests may use a remote memory region.
    #[doc(alias = "DAT_RMR_SCOPE")]
    #[derive(Default)]
    pub enum RmrScope: u32 {
        /// Those that come to one endpoint.
        Ep = 0, "DAT_RMR_SCOPE_EP";
        /// Requests that arrive at any endpoint of one protection zone.
        #[default]
        Pz = 1, "DAT_RMR_SCOPE_PZ";
        /// Only as a provider's attribute: the provider has both kinds.
        Any = 2, "DAT_RMR_SCOPE_ANY";
    }
}

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
    /// What regions can be made of: the numbers of the [`MemType`](crate::MemType)s, combined with
    /// OR. [`MemType::Virtual`](crate::MemType::Virtual) is 0; every provider supports it.
    pub lmr_mem_types_supported: u32,
    /// Who owns the list of segments after a post has returned.
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
    /// Whether the provider creates endpoints for a public service point.
    pub ep_creator: EpCreator,
    /// What kind of protection a protection zone gives.
    pub pz_support: PzSupport,
    /// Transfers are fastest to and from memory with this alignment.
    pub optimal_buffer_alignment: u32,
    /// Whether two event streams may feed one EVD, in this order: software events, connection
    /// requests, completions of data transfers, connection events, completions of RMR binds,
    /// asynchronous events.
    pub evd_stream_merging_supported: [[bool; 6]; 6],
    /// It has shared receive queues.
    pub srq_supported: bool,
    /// Which watermarks of shared receive queues the provider has: 0x001 low, 0x010 soft high,
    /// 0x100 hard high.
    pub srq_watermarks_supported: u32,
    /// An endpoint and its shared receive queue can be in different protection zones.
    pub srq_ep_pz_difference_supported: bool,
    /// The counts that a query of a shared receive queue returns: 0x01
    /// [`SrqParam::available_dto_count`](super::SrqParam), 0x10 [`SrqParam::outstanding_dto_count`](super::SrqParam).
    pub srq_info_supported: u32,
    /// What a query of an endpoint's Receives returns: 0x01 the number of buffers that messages
    /// took, 0x10 their span.
    pub ep_recv_info_supported: u32,
    /// Consumers must synchronise memory around RDMA. Always false: there are no calls for it.
    pub lmr_sync_req: bool,
    /// The outcome of a request always comes by event.
    pub dto_async_return_guaranteed: bool,
    /// The sink of an RDMA Read needs [`MemPriv::REMOTE_WRITE`](crate::MemPriv::REMOTE_WRITE).
    pub rdma_write_for_rdma_read_req: bool,
    /// The sink of an RDMA Read is exposed to the peer.
    pub rdma_read_lmr_rmr_context_exposure: bool,
    /// Which requests may use a remote memory region.
    pub rmr_scope_supported: RmrScope,
    /// Signal handlers may call it.
    pub is_signal_safe: bool,
    /// Attributes of this provider only.
    #[doc(alias = "num_provider_specific_attr")]
    pub provider_specific_attr: Vec<NamedAttr>,
}

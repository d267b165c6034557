//! The properties of an IA (pages it_ia_info_t, it_interface_list).

use alloc::string::String;
use alloc::vec::Vec;

use crate::address::NetAddr;
use crate::flags::{ConnQualTypes, IoblTypes, RmrTypes, ServiceTypes};
use crate::handle::{EvdHandle, LmrHandle};

/// Bytes of an interface's name at most, counting a terminating zero.
#[doc(alias = "IT_INTERFACE_NAME_SIZE")]
pub const INTERFACE_NAME_SIZE: usize = 128;

/// The transport that an IA uses.
#[doc(alias = "it_transport_type_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum TransportType {
    /// InfiniBand; ours, over RoCEv2.
    Ib = 1,
    /// VIA over IP.
    ViaIp = 2,
    /// VIA over Fibre Channel.
    ViaFc = 3,
    /// iWARP over TCP.
    IwarpTcp = 4,
    /// A transport of the vendor's own.
    Vendor = 1000,
}

/// An interface on which an IA can be created.
#[doc(alias = "it_interface_t")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Major version of the API.
    pub major_version: u32,
    /// Minor version of the API.
    pub minor_version: u32,
    /// Transport.
    pub transport_type: TransportType,
    /// Name.
    pub name: String,
}

/// A spigot of an IA.
#[doc(alias = "it_spigot_info_t")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpigotInfo {
    /// Its identifier.
    pub spigot_id: usize,
    /// Longest Send on RC.
    pub max_rc_send_len: usize,
    /// Longest RDMA operation on RC.
    pub max_rc_rdma_len: usize,
    /// Longest Send on UD.
    pub max_ud_send_len: usize,
    /// Whether the port is up.
    pub spigot_online: bool,
    /// Qualifiers for connecting.
    pub active_side_conn_qual: ConnQualTypes,
    /// Qualifiers for listening.
    pub passive_side_conn_qual: ConnQualTypes,
    /// Its addresses.
    #[doc(alias = "num_net_addr")]
    pub net_addr: Vec<NetAddr>,
}

/// The vendor of an IA over InfiniBand.
#[doc(alias = "it_vendor_ib_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorIb {
    /// Vendor ID (IEEE OUI), 24 bits.
    pub vendor: u32,
    /// Device ID.
    pub device: u16,
    /// Revision.
    pub revision: u32,
}

/// The vendor of an IA over VIA: what VipQueryNic returns of the NIC.
#[doc(alias = "it_vendor_via_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorVia {
    /// The NIC's name, padded with zeros: that of the interface, by which VIPL opens it.
    pub name: [u8; VendorVia::NAME_SIZE],
    /// The version of the hardware.
    pub hardware: u32,
    /// The version of the provider.
    pub provider: u32,
}

impl VendorVia {
    /// Bytes of a name, counting a terminating zero.
    pub const NAME_SIZE: usize = 64;
}

/// The vendor of an IA over iWARP.
#[doc(alias = "it_vendor_iwarp_tcp_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorIwarp {
    /// What the vendor says of the NIC, if that is valid: the GUID of its node, the upper byte
    /// first, then zeros.
    #[doc(alias = "valid_vid")]
    pub vid: Option<[u8; VendorIwarp::VID_SIZE]>,
}

impl VendorIwarp {
    /// Bytes of what a vendor says.
    pub const VID_SIZE: usize = 64;

    pub(crate) fn of(node_guid: u64) -> VendorIwarp {
        let mut vid = [0; VendorIwarp::VID_SIZE];
        vid[..size_of::<u64>()].copy_from_slice(&node_guid.to_be_bytes());
        VendorIwarp { vid: Some(vid) }
    }
}

/// The IA's vendor, by the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// [`TransportType::Ib`].
    Ib(VendorIb),
    /// [`TransportType::ViaIp`].
    Via(VendorVia),
    /// [`TransportType::IwarpTcp`].
    Iwarp(VendorIwarp),
}

/// The properties of an IA.
#[doc(alias = "it_ia_info_t")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IaInfo {
    /// The interface's name.
    pub ia_name: String,
    /// Major version of the API.
    pub api_major_version: u32,
    /// Minor version of the API.
    pub api_minor_version: u32,
    /// Major version of this library.
    pub sw_major_version: u32,
    /// Minor version of this library.
    pub sw_minor_version: u32,
    /// The vendor.
    pub vendor: Vendor,
    /// Buffers aligned to this are fastest.
    pub dto_alignment_hint: u32,
    /// Transport.
    pub transport_type: TransportType,
    /// Services.
    pub supported_service_types: ServiceTypes,
    /// Whether work queues can be resized.
    pub ep_work_queues_resizable: bool,
    /// Whether three-way establishment is possible.
    pub three_way_handshake_support: bool,
    /// Whether connection messages carry private data.
    pub private_data_support: bool,
    /// Whether connection requests carry the peer's message size.
    pub max_message_size_support: bool,
    /// Whether endpoints have IRD and ORD.
    pub ird_ord_ia_support: bool,
    /// Whether their negotiation can be suppressed.
    pub ird_ord_suppressible: bool,
    /// Whether there are events when a spigot comes up.
    pub spigot_online_support: bool,
    /// Whether there are events when a spigot goes down.
    pub spigot_offline_support: bool,
    /// Private data of a connect at most.
    pub connect_private_data_len: usize,
    /// Private data of an accept at most.
    pub accept_private_data_len: usize,
    /// Private data of a reject at most.
    pub reject_private_data_len: usize,
    /// Private data of a disconnect at most.
    pub disconnect_private_data_len: usize,
    /// Private data of a UD service request at most.
    pub ud_req_private_data_len: usize,
    /// Private data of a UD service reply at most.
    pub ud_rep_private_data_len: usize,
    /// Spigots.
    #[doc(alias = "num_spigots")]
    pub spigot_info: Vec<SpigotInfo>,
    /// The EVD of affiliated asynchronous events, or null.
    pub affiliated_err_evd: EvdHandle,
    /// The EVD of unaffiliated asynchronous events, or null.
    pub unaffiliated_err_evd: EvdHandle,
    /// Shared receive queues.
    pub srq_support: bool,
    /// Hard high watermarks.
    pub hard_hi_watermark_support: bool,
    /// Soft high watermarks.
    pub soft_hi_watermark_support: bool,
    /// Whether shared receive queues can be resized.
    pub srq_resizable: bool,
    /// iWARP only.
    pub extended_iwarp_qp_states: bool,
    /// iWARP only.
    pub socket_conversion_support: bool,
    /// Whether ORD can be raised.
    pub rdma_read_ord_increasable: bool,
    /// Whether IRD can be modified.
    pub rdma_read_ird_modifiable: bool,
    /// Types of RMR.
    pub rmr_types_supported: RmrTypes,
    /// Relative addressing.
    pub addr_mode_relative_support: bool,
    /// Whether the sink of an RDMA Read needs the remote write privilege.
    pub rdma_read_requires_remote_write: bool,
    /// Whether `rdma_read_enable` and `rdma_write_enable` can be modified.
    pub ep_rdma_enables_modifiable: bool,
    /// RDMA Read to an RMR, and unlinking the local sink.
    pub rdma_read_local_extensions: bool,
    /// Whether overflow of DTO EVDs is detected.
    pub dto_evd_overflow_detection: bool,
    /// Atomic operations.
    pub atomic_support: bool,
    /// LMR link and unlink.
    pub lmr_link_support: bool,
    /// The direct LMR handle.
    pub direct_lmr_handle_support: bool,
    /// [`LmrHandle::DIRECT`], or null.
    pub direct_lmr_handle: LmrHandle,
    /// Send and unlink.
    pub post_send_unlink_remote_support: bool,
    /// Whether narrow RMRs can be unlinked.
    pub narrow_rmr_unlink_support: bool,
    /// Whether wide RMRs can be unlinked.
    pub wide_rmr_unlink_support: bool,
    /// The unlink fence.
    pub unlink_fence_support: bool,
    /// Types of I/O buffer list. Pages have at least [`IOBL_MIN_PAGE`](crate::IOBL_MIN_PAGE) bytes.
    pub iobl_types_supported: IoblTypes,
}

/// Releases the memory of an [`IaInfo`]. Dropping it also releases the memory.
///
/// Errors: none. Does not block. May be called in callbacks. Thread-safe. Page it_ia_info_free.
#[doc(alias = "it_ia_info_free")]
pub fn ia_info_free(info: IaInfo) {
    drop(info);
}

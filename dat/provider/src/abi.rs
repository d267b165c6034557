//! Structures and numbers of uDAPL 2.0, as Debian's `dat2/udat.h` has them on x86_64 (LP64). A test
//! compares sizes and offsets with what a C compiler says of these headers.

use core::ffi::{c_char, c_int, c_void};

/// `DAT_RETURN`.
pub(crate) type Return = u32;
/// Any handle of C: a pointer to a cell, or null.
pub(crate) type Handle = *mut c_void;
/// `DAT_COUNT`.
pub(crate) type Count = c_int;
/// A socket address.
pub(crate) type Address = *mut c_void;

/// Bytes of a name.
pub(crate) const NAME: usize = 256;
/// In place of an event dispatcher: none is wanted, since another opening has it.
pub(crate) const ASYNC_EXISTS: usize = 1;
/// In place of an event dispatcher: it is that of another opening.
pub(crate) const OUT_OF_SCOPE: usize = 2;

/// `DAT_PROVIDER_INFO`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProviderInfo {
    pub(crate) ia_name: [c_char; NAME],
    pub(crate) dapl_version_major: u32,
    pub(crate) dapl_version_minor: u32,
    pub(crate) is_thread_safe: c_int,
}

/// `DAT_NAMED_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NamedAttr {
    pub(crate) name: *const c_char,
    pub(crate) value: *const c_char,
}

/// `DAT_IA_ATTR`.
#[repr(C)]
pub(crate) struct IaAttr {
    pub(crate) adapter_name: [c_char; NAME],
    pub(crate) vendor_name: [c_char; NAME],
    pub(crate) hardware_version_major: u32,
    pub(crate) hardware_version_minor: u32,
    pub(crate) firmware_version_major: u32,
    pub(crate) firmware_version_minor: u32,
    pub(crate) ia_address_ptr: Address,
    pub(crate) max_eps: Count,
    pub(crate) max_dto_per_ep: Count,
    pub(crate) max_rdma_read_per_ep_in: Count,
    pub(crate) max_rdma_read_per_ep_out: Count,
    pub(crate) max_evds: Count,
    pub(crate) max_evd_qlen: Count,
    pub(crate) max_iov_segments_per_dto: Count,
    pub(crate) max_lmrs: Count,
    pub(crate) max_lmr_block_size: u32,
    pub(crate) max_lmr_virtual_address: u64,
    pub(crate) max_pzs: Count,
    pub(crate) max_message_size: u32,
    pub(crate) max_rdma_size: u32,
    pub(crate) max_rmrs: Count,
    pub(crate) max_rmr_target_address: u64,
    pub(crate) max_srqs: Count,
    pub(crate) max_ep_per_srq: Count,
    pub(crate) max_recv_per_srq: Count,
    pub(crate) max_iov_segments_per_rdma_read: Count,
    pub(crate) max_iov_segments_per_rdma_write: Count,
    pub(crate) max_rdma_read_in: Count,
    pub(crate) max_rdma_read_out: Count,
    pub(crate) max_rdma_read_per_ep_in_guaranteed: c_int,
    pub(crate) max_rdma_read_per_ep_out_guaranteed: c_int,
    pub(crate) zb_supported: c_int,
    pub(crate) extension_supported: u32,
    pub(crate) extension_version: Count,
    pub(crate) num_transport_attr: Count,
    pub(crate) transport_attr: *mut NamedAttr,
    pub(crate) num_vendor_attr: Count,
    pub(crate) vendor_attr: *mut NamedAttr,
}

/// `DAT_PROVIDER_ATTR`.
#[repr(C)]
pub(crate) struct ProviderAttr {
    pub(crate) provider_name: [c_char; NAME],
    pub(crate) provider_version_major: u32,
    pub(crate) provider_version_minor: u32,
    pub(crate) dapl_version_major: u32,
    pub(crate) dapl_version_minor: u32,
    pub(crate) lmr_mem_types_supported: u32,
    pub(crate) iov_ownership_on_return: u32,
    pub(crate) dat_qos_supported: u32,
    pub(crate) completion_flags_supported: u32,
    pub(crate) is_thread_safe: c_int,
    pub(crate) max_private_data_size: Count,
    pub(crate) supports_multipath: c_int,
    pub(crate) ep_creator: u32,
    pub(crate) pz_support: u32,
    pub(crate) optimal_buffer_alignment: u32,
    pub(crate) evd_stream_merging_supported: [[c_int; 6]; 6],
    pub(crate) srq_supported: c_int,
    pub(crate) srq_watermarks_supported: Count,
    pub(crate) srq_ep_pz_difference_supported: c_int,
    pub(crate) srq_info_supported: Count,
    pub(crate) ep_recv_info_supported: Count,
    pub(crate) lmr_sync_req: c_int,
    pub(crate) dto_async_return_guaranteed: c_int,
    pub(crate) rdma_write_for_rdma_read_req: c_int,
    pub(crate) rdma_read_lmr_rmr_context_exposure: c_int,
    pub(crate) rmr_scope_supported: u32,
    pub(crate) is_signal_safe: c_int,
    pub(crate) ha_supported: c_int,
    pub(crate) ha_loadbalancing: u32,
    pub(crate) num_provider_specific_attr: Count,
    pub(crate) provider_specific_attr: *mut NamedAttr,
}

/// `DAT_EP_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EpAttr {
    pub(crate) service_type: u32,
    pub(crate) max_message_size: u32,
    pub(crate) max_rdma_size: u32,
    pub(crate) qos: u32,
    pub(crate) recv_completion_flags: u32,
    pub(crate) request_completion_flags: u32,
    pub(crate) max_recv_dtos: Count,
    pub(crate) max_request_dtos: Count,
    pub(crate) max_recv_iov: Count,
    pub(crate) max_request_iov: Count,
    pub(crate) max_rdma_read_in: Count,
    pub(crate) max_rdma_read_out: Count,
    pub(crate) srq_soft_hw: Count,
    pub(crate) max_rdma_read_iov: Count,
    pub(crate) max_rdma_write_iov: Count,
    pub(crate) ep_transport_specific_count: Count,
    pub(crate) ep_transport_specific: *mut NamedAttr,
    pub(crate) ep_provider_specific_count: Count,
    pub(crate) ep_provider_specific: *mut NamedAttr,
}

/// `DAT_EP_PARAM`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EpParam {
    pub(crate) ia_handle: Handle,
    pub(crate) ep_state: u32,
    /// `DAT_COMM`, which is of multipath connections.
    pub(crate) comm: [c_int; 3],
    pub(crate) local_ia_address_ptr: Address,
    pub(crate) local_port_qual: u64,
    pub(crate) remote_ia_address_ptr: Address,
    pub(crate) remote_port_qual: u64,
    pub(crate) pz_handle: Handle,
    pub(crate) recv_evd_handle: Handle,
    pub(crate) request_evd_handle: Handle,
    pub(crate) connect_evd_handle: Handle,
    pub(crate) srq_handle: Handle,
    pub(crate) ep_attr: EpAttr,
}

/// `DAT_SRQ_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SrqAttr {
    pub(crate) max_recv_dtos: Count,
    pub(crate) max_recv_iov: Count,
    pub(crate) low_watermark: Count,
}

/// `DAT_SRQ_PARAM`.
#[repr(C)]
pub(crate) struct SrqParam {
    pub(crate) ia_handle: Handle,
    pub(crate) srq_state: u32,
    pub(crate) pz_handle: Handle,
    pub(crate) max_recv_dtos: Count,
    pub(crate) max_recv_iov: Count,
    pub(crate) low_watermark: Count,
    pub(crate) available_dto_count: Count,
    pub(crate) outstanding_dto_count: Count,
}

/// `DAT_EVD_PARAM`.
#[repr(C)]
pub(crate) struct EvdParam {
    pub(crate) ia_handle: Handle,
    pub(crate) evd_qlen: Count,
    pub(crate) evd_state: u32,
    pub(crate) cno_handle: Handle,
    pub(crate) evd_flags: u32,
}

/// The function of an agent: its data, and the event dispatcher.
pub(crate) type AgentFunction = unsafe extern "C" fn(*mut c_void, Handle);

/// `DAT_OS_WAIT_PROXY_AGENT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Agent {
    pub(crate) instance_data: *mut c_void,
    pub(crate) function: Option<AgentFunction>,
}

/// `DAT_CNO_PARAM`. Its union is the agent, its largest member.
#[repr(C)]
pub(crate) struct CnoParam {
    pub(crate) ia_handle: Handle,
    pub(crate) proxy_type: u32,
    pub(crate) proxy: Agent,
}

/// `DAT_REGION_DESCRIPTION`: a union of an address, a handle, and an address with a cookie.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RegionDescription {
    pub(crate) first: *mut c_void,
    pub(crate) cookie: *mut c_void,
}

/// `DAT_LMR_PARAM`.
#[repr(C)]
pub(crate) struct LmrParam {
    pub(crate) ia_handle: Handle,
    pub(crate) mem_type: u32,
    pub(crate) region_desc: RegionDescription,
    pub(crate) length: u64,
    pub(crate) pz_handle: Handle,
    pub(crate) mem_priv: u32,
    pub(crate) va_type: u32,
    pub(crate) lmr_context: u32,
    pub(crate) rmr_context: u32,
    pub(crate) registered_size: u64,
    pub(crate) registered_address: u64,
}

/// `DAT_LMR_TRIPLET`, and `DAT_RMR_TRIPLET`, which looks the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Triplet {
    pub(crate) virtual_address: u64,
    pub(crate) segment_length: u32,
    pub(crate) context: u32,
}

/// `DAT_RMR_PARAM`.
#[repr(C)]
pub(crate) struct RmrParam {
    pub(crate) ia_handle: Handle,
    pub(crate) pz_handle: Handle,
    pub(crate) lmr_triplet: Triplet,
    pub(crate) mem_priv: u32,
    pub(crate) rmr_context: u32,
    pub(crate) rmr_scope: u32,
    pub(crate) va_type: u32,
}

/// `DAT_PZ_PARAM`.
#[repr(C)]
pub(crate) struct PzParam {
    pub(crate) ia_handle: Handle,
}

/// `DAT_PSP_PARAM`.
#[repr(C)]
pub(crate) struct PspParam {
    pub(crate) ia_handle: Handle,
    pub(crate) conn_qual: u64,
    pub(crate) evd_handle: Handle,
    pub(crate) psp_flags: u32,
}

/// `DAT_RSP_PARAM`.
#[repr(C)]
pub(crate) struct RspParam {
    pub(crate) ia_handle: Handle,
    pub(crate) conn_qual: u64,
    pub(crate) evd_handle: Handle,
    pub(crate) ep_handle: Handle,
}

/// `DAT_CR_PARAM`.
#[repr(C)]
pub(crate) struct CrParam {
    pub(crate) remote_ia_address_ptr: Address,
    pub(crate) remote_port_qual: u64,
    pub(crate) private_data_size: Count,
    pub(crate) private_data: *mut c_void,
    pub(crate) local_ep_handle: Handle,
}

/// `DAT_EVENT`. The union is words, which [`crate::event`] writes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) event_number: u32,
    pub(crate) evd_handle: Handle,
    pub(crate) data: [u64; 5],
    pub(crate) extension: [u64; 8],
}

/// `DAT_IB_ADDR_HANDLE`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbAddrHandle {
    pub(crate) ah: Handle,
    pub(crate) qpn: u32,
    pub(crate) ia_addr: [u8; 28],
}

/// `DAT_IB_EXTENSION_EVENT_DATA`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbExtensionEventData {
    pub(crate) ext_type: u32,
    pub(crate) status: u32,
    pub(crate) immed: u32,
    pub(crate) padding: u32,
    pub(crate) remote_ah: IbAddrHandle,
    pub(crate) context: u64,
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    /// What gcc 12 says of Debian's headers (libdapl-dev 2.1.10.1).
    #[test]
    fn structures_have_the_layout_of_the_headers() {
        macro_rules! sizes {
            ($($name:ident = $size:literal { $($field:ident $offset:literal),* })*) => {$(
                assert_eq!(size_of::<$name>(), $size, stringify!($name));
                $(
                    let field = concat!(stringify!($name), ".", stringify!($field));
                    assert_eq!(offset_of!($name, $field), $offset, "{field}");
                )*
            )*};
        }
        sizes! {
            ProviderInfo = 268 { dapl_version_major 256, is_thread_safe 264 }
            IaAttr = 688 {
                ia_address_ptr 528, max_lmr_block_size 568, max_lmr_virtual_address 576,
                max_rmr_target_address 600, extension_supported 648, transport_attr 664,
                vendor_attr 680
            }
            ProviderAttr = 520 {
                lmr_mem_types_supported 272, evd_stream_merging_supported 312, srq_supported 456,
                rmr_scope_supported 492, num_provider_specific_attr 508, provider_specific_attr 512
            }
            EpAttr = 88 {
                max_recv_dtos 24, srq_soft_hw 48, ep_transport_specific 64, ep_provider_specific 80
            }
            EpParam = 184 { comm 12, local_ia_address_ptr 24, pz_handle 56, srq_handle 88, ep_attr 96 }
            SrqAttr = 12 { low_watermark 8 }
            SrqParam = 48 { srq_state 8, pz_handle 16, outstanding_dto_count 40 }
            EvdParam = 32 { evd_state 12, cno_handle 16, evd_flags 24 }
            Agent = 16 { instance_data 0 }
            CnoParam = 32 { proxy_type 8, proxy 16 }
            RegionDescription = 16 {  }
            LmrParam = 80 { region_desc 16, length 32, pz_handle 40, lmr_context 56, registered_address 72 }
            Triplet = 16 { segment_length 8 }
            RmrParam = 48 { lmr_triplet 16, mem_priv 32, va_type 44 }
            PspParam = 32 { conn_qual 8, psp_flags 24 }
            RspParam = 32 { evd_handle 16, ep_handle 24 }
            CrParam = 40 { private_data_size 16, private_data 24, local_ep_handle 32 }
            Event = 120 { evd_handle 8, data 16, extension 56 }
            IbAddrHandle = 40 { qpn 8, ia_addr 12 }
            IbExtensionEventData = 64 { status 4, immed 8, remote_ah 16, context 56 }
        }
    }
}

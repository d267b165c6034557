//! Masks of the members of attributes.

rdma::flags! {
    /// Members of [`EpParam`](super::EpParam).
    #[doc(alias = "DAT_EP_PARAM_MASK")]
    #[derive(Default)]
    pub struct EpParamMask: u64 {
        /// [`ia_handle`](super::EpParam::ia_handle).
        IA_HANDLE = 0x0000_0001, "DAT_EP_FIELD_IA_HANDLE";
        /// [`ep_state`](super::EpParam::ep_state).
        EP_STATE = 0x0000_0002, "DAT_EP_FIELD_EP_STATE";
        /// [`local_ia_address`](super::EpParam::local_ia_address).
        LOCAL_IA_ADDRESS = 0x0000_0008, "DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR";
        /// [`local_port_qual`](super::EpParam::local_port_qual).
        LOCAL_PORT_QUAL = 0x0000_0010, "DAT_EP_FIELD_LOCAL_PORT_QUAL";
        /// [`remote_ia_address`](super::EpParam::remote_ia_address).
        REMOTE_IA_ADDRESS = 0x0000_0020, "DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR";
        /// [`remote_port_qual`](super::EpParam::remote_port_qual).
        REMOTE_PORT_QUAL = 0x0000_0040, "DAT_EP_FIELD_REMOTE_PORT_QUAL";
        /// [`pz_handle`](super::EpParam::pz_handle).
        PZ_HANDLE = 0x0000_0080, "DAT_EP_FIELD_PZ_HANDLE";
        /// [`recv_evd_handle`](super::EpParam::recv_evd_handle).
        RECV_EVD_HANDLE = 0x0000_0100, "DAT_EP_FIELD_RECV_EVD_HANDLE";
        /// [`request_evd_handle`](super::EpParam::request_evd_handle).
        REQUEST_EVD_HANDLE = 0x0000_0200, "DAT_EP_FIELD_REQUEST_EVD_HANDLE";
        /// [`connect_evd_handle`](super::EpParam::connect_evd_handle).
        CONNECT_EVD_HANDLE = 0x0000_0400, "DAT_EP_FIELD_CONNECT_EVD_HANDLE";
        /// [`srq_handle`](super::EpParam::srq_handle).
        SRQ_HANDLE = 0x0000_0800, "DAT_EP_FIELD_SRQ_HANDLE";
        /// [`EpAttr::service_type`].
        EP_ATTR_SERVICE_TYPE = 0x0000_1000, "DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE";
        /// [`EpAttr::max_message_size`].
        EP_ATTR_MAX_MESSAGE_SIZE = 0x0000_2000, "DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE";
        /// [`EpAttr::max_rdma_size`].
        EP_ATTR_MAX_RDMA_SIZE = 0x0000_4000, "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE";
        /// [`EpAttr::qos`].
        EP_ATTR_QOS = 0x0000_8000, "DAT_EP_FIELD_EP_ATTR_QOS";
        /// [`EpAttr::recv_completion_flags`].
        EP_ATTR_RECV_COMPLETION_FLAGS = 0x0001_0000, "DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS";
        /// [`EpAttr::request_completion_flags`].
        EP_ATTR_REQUEST_COMPLETION_FLAGS = 0x0002_0000, "DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS";
        /// [`EpAttr::max_recv_dtos`].
        EP_ATTR_MAX_RECV_DTOS = 0x0004_0000, "DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS";
        /// [`EpAttr::max_request_dtos`].
        EP_ATTR_MAX_REQUEST_DTOS = 0x0008_0000, "DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS";
        /// [`EpAttr::max_recv_iov`].
        EP_ATTR_MAX_RECV_IOV = 0x0010_0000, "DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV";
        /// [`EpAttr::max_request_iov`].
        EP_ATTR_MAX_REQUEST_IOV = 0x0020_0000, "DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV";
        /// [`EpAttr::max_rdma_read_in`].
        EP_ATTR_MAX_RDMA_READ_IN = 0x0040_0000, "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN";
        /// [`EpAttr::max_rdma_read_out`].
        EP_ATTR_MAX_RDMA_READ_OUT = 0x0080_0000, "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT";
        /// [`EpAttr::srq_soft_hw`].
        EP_ATTR_SRQ_SOFT_HW = 0x0100_0000, "DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW";
        /// [`EpAttr::max_rdma_read_iov`].
        EP_ATTR_MAX_RDMA_READ_IOV = 0x0200_0000, "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV";
        /// [`EpAttr::max_rdma_write_iov`].
        EP_ATTR_MAX_RDMA_WRITE_IOV = 0x0400_0000, "DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV";
        /// All members of [`EpAttr`].
        EP_ATTR_ALL = 0x07ff_f000, "DAT_EP_FIELD_EP_ATTR_ALL";
        /// All members.
        ALL = 0x07ff_fffb, "DAT_EP_FIELD_ALL";
    }

    /// Members of [`IaAttr`](super::IaAttr).
    #[doc(alias = "DAT_IA_ATTR_MASK")]
    #[derive(Default)]
    pub struct IaAttrMask: u64 {
        /// [`adapter_name`](super::IaAttr::adapter_name).
        ADAPTER_NAME = 1 << 0, "DAT_IA_FIELD_IA_ADAPTER_NAME";
        /// [`vendor_name`](super::IaAttr::vendor_name).
        VENDOR_NAME = 1 << 1, "DAT_IA_FIELD_IA_VENDOR_NAME";
        /// [`hardware_version_major`](super::IaAttr::hardware_version_major).
        HARDWARE_MAJOR_VERSION = 1 << 2, "DAT_IA_FIELD_IA_HARDWARE_MAJOR_VERSION";
        /// [`hardware_version_minor`](super::IaAttr::hardware_version_minor).
        HARDWARE_MINOR_VERSION = 1 << 3, "DAT_IA_FIELD_IA_HARDWARE_MINOR_VERSION";
        /// [`firmware_version_major`](super::IaAttr::firmware_version_major).
        FIRMWARE_MAJOR_VERSION = 1 << 4, "DAT_IA_FIELD_IA_FIRMWARE_MAJOR_VERSION";
        /// [`firmware_version_minor`](super::IaAttr::firmware_version_minor).
        FIRMWARE_MINOR_VERSION = 1 << 5, "DAT_IA_FIELD_IA_FIRMWARE_MINOR_VERSION";
        /// [`ia_address`](super::IaAttr::ia_address).
        IA_ADDRESS = 1 << 6, "DAT_IA_FIELD_IA_ADDRESS_PTR";
        /// [`max_eps`](super::IaAttr::max_eps).
        MAX_EPS = 1 << 7, "DAT_IA_FIELD_IA_MAX_EPS";
        /// [`max_dto_per_ep`](super::IaAttr::max_dto_per_ep).
        MAX_DTO_PER_EP = 1 << 8, "DAT_IA_FIELD_IA_MAX_DTO_PER_EP";
        /// [`max_rdma_read_per_ep_in`](super::IaAttr::max_rdma_read_per_ep_in).
        MAX_RDMA_READ_PER_EP_IN = 1 << 9, "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN";
        /// [`max_rdma_read_per_ep_out`](super::IaAttr::max_rdma_read_per_ep_out).
        MAX_RDMA_READ_PER_EP_OUT = 1 << 10, "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT";
        /// [`max_evds`](super::IaAttr::max_evds).
        MAX_EVDS = 1 << 11, "DAT_IA_FIELD_IA_MAX_EVDS";
        /// [`max_evd_qlen`](super::IaAttr::max_evd_qlen).
        MAX_EVD_QLEN = 1 << 12, "DAT_IA_FIELD_IA_MAX_EVD_QLEN";
        /// [`max_iov_segments_per_dto`](super::IaAttr::max_iov_segments_per_dto).
        MAX_IOV_SEGMENTS_PER_DTO = 1 << 13, "DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_DTO";
        /// [`max_lmrs`](super::IaAttr::max_lmrs).
        MAX_LMRS = 1 << 14, "DAT_IA_FIELD_IA_MAX_LMRS";
        /// [`max_lmr_block_size`](super::IaAttr::max_lmr_block_size).
        MAX_LMR_BLOCK_SIZE = 1 << 15, "DAT_IA_FIELD_IA_MAX_LMR_BLOCK_SIZE";
        /// [`max_lmr_virtual_address`](super::IaAttr::max_lmr_virtual_address).
        MAX_LMR_VIRTUAL_ADDRESS = 1 << 16, "DAT_IA_FIELD_IA_MAX_LMR_VIRTUAL_ADDRESS";
        /// [`max_pzs`](super::IaAttr::max_pzs).
        MAX_PZS = 1 << 17, "DAT_IA_FIELD_IA_MAX_PZS";
        /// [`max_message_size`](super::IaAttr::max_message_size).
        MAX_MESSAGE_SIZE = 1 << 18, "DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE";
        /// [`max_rdma_size`](super::IaAttr::max_rdma_size).
        MAX_RDMA_SIZE = 1 << 19, "DAT_IA_FIELD_IA_MAX_RDMA_SIZE";
        /// [`max_rmrs`](super::IaAttr::max_rmrs).
        MAX_RMRS = 1 << 20, "DAT_IA_FIELD_IA_MAX_RMRS";
        /// [`max_rmr_target_address`](super::IaAttr::max_rmr_target_address).
        MAX_RMR_TARGET_ADDRESS = 1 << 21, "DAT_IA_FIELD_IA_MAX_RMR_TARGET_ADDRESS";
        /// [`max_srqs`](super::IaAttr::max_srqs).
        MAX_SRQS = 1 << 22, "DAT_IA_FIELD_IA_MAX_SRQS";
        /// [`max_ep_per_srq`](super::IaAttr::max_ep_per_srq).
        MAX_EP_PER_SRQ = 1 << 23, "DAT_IA_FIELD_IA_MAX_EP_PER_SRQ";
        /// [`max_recv_per_srq`](super::IaAttr::max_recv_per_srq).
        MAX_RECV_PER_SRQ = 1 << 24, "DAT_IA_FIELD_IA_MAX_RECV_PER_SRQ";
        /// [`max_iov_segments_per_rdma_read`](super::IaAttr::max_iov_segments_per_rdma_read).
        MAX_IOV_SEGMENTS_PER_RDMA_READ = 1 << 25, "DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_READ";
        /// [`max_iov_segments_per_rdma_write`](super::IaAttr::max_iov_segments_per_rdma_write).
        MAX_IOV_SEGMENTS_PER_RDMA_WRITE = 1 << 26, "DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_WRITE";
        /// [`max_rdma_read_in`](super::IaAttr::max_rdma_read_in).
        MAX_RDMA_READ_IN = 1 << 27, "DAT_IA_FIELD_IA_MAX_RDMA_READ_IN";
        /// [`max_rdma_read_out`](super::IaAttr::max_rdma_read_out).
        MAX_RDMA_READ_OUT = 1 << 28, "DAT_IA_FIELD_IA_MAX_RDMA_READ_OUT";
        /// [`max_rdma_read_per_ep_in_guaranteed`](super::IaAttr::max_rdma_read_per_ep_in_guaranteed).
        MAX_RDMA_READ_PER_EP_IN_GUARANTEED = 1 << 29, "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN_GUARANTEED";
        /// [`max_rdma_read_per_ep_out_guaranteed`](super::IaAttr::max_rdma_read_per_ep_out_guaranteed).
        MAX_RDMA_READ_PER_EP_OUT_GUARANTEED = 1 << 30, "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT_GUARANTEED";
        /// [`zb_supported`](super::IaAttr::zb_supported).
        ZB_SUPPORTED = 1 << 31, "DAT_IA_FIELD_IA_ZB_SUPPORTED";
        /// [`extension_supported`](super::IaAttr::extension_supported).
        EXTENSION = 1 << 32, "DAT_IA_FIELD_IA_EXTENSION";
        /// [`extension_version`](super::IaAttr::extension_version).
        EXTENSION_VERSION = 1 << 33, "DAT_IA_FIELD_IA_EXTENSION_VERSION";
        /// All members.
        ALL = (1 << 34) - 1, "DAT_IA_FIELD_ALL" or "DAT_IA_ALL";
    }
}

impl IaAttrMask {
    /// No members.
    #[doc(alias = "DAT_IA_FIELD_NONE")]
    pub const NONE: IaAttrMask = IaAttrMask::empty();
}

rdma::flags! {
    /// Members of [`ProviderAttr`](super::ProviderAttr).
    #[doc(alias = "DAT_PROVIDER_ATTR_MASK")]
    #[derive(Default)]
    pub struct ProviderAttrMask: u64 {
        /// [`provider_name`](super::ProviderAttr::provider_name).
        PROVIDER_NAME = 1 << 0, "DAT_PROVIDER_FIELD_PROVIDER_NAME";
        /// [`provider_version_major`](super::ProviderAttr::provider_version_major).
        PROVIDER_VERSION_MAJOR = 1 << 1, "DAT_PROVIDER_FIELD_PROVIDER_VERSION_MAJOR";
        /// [`provider_version_minor`](super::ProviderAttr::provider_version_minor).
        PROVIDER_VERSION_MINOR = 1 << 2, "DAT_PROVIDER_FIELD_PROVIDER_VERSION_MINOR";
        /// [`dapl_version_major`](super::ProviderAttr::dapl_version_major).
        DAPL_VERSION_MAJOR = 1 << 3, "DAT_PROVIDER_FIELD_DAPL_VERSION_MAJOR";
        /// [`dapl_version_minor`](super::ProviderAttr::dapl_version_minor).
        DAPL_VERSION_MINOR = 1 << 4, "DAT_PROVIDER_FIELD_DAPL_VERSION_MINOR";
        /// [`lmr_mem_types_supported`](super::ProviderAttr::lmr_mem_types_supported).
        LMR_MEM_TYPE_SUPPORTED = 1 << 5, "DAT_PROVIDER_FIELD_LMR_MEM_TYPE_SUPPORTED";
        /// [`iov_ownership_on_return`](super::ProviderAttr::iov_ownership_on_return).
        IOV_OWNERSHIP = 1 << 6, "DAT_PROVIDER_FIELD_IOV_OWNERSHIP";
        /// [`dat_qos_supported`](super::ProviderAttr::dat_qos_supported).
        DAT_QOS_SUPPORTED = 1 << 7, "DAT_PROVIDER_FIELD_DAT_QOS_SUPPORTED";
        /// [`completion_flags_supported`](super::ProviderAttr::completion_flags_supported).
        COMPLETION_FLAGS_SUPPORTED = 1 << 8, "DAT_PROVIDER_FIELD_COMPLETION_FLAGS_SUPPORTED";
        /// [`is_thread_safe`](super::ProviderAttr::is_thread_safe).
        IS_THREAD_SAFE = 1 << 9, "DAT_PROVIDER_FIELD_IS_THREAD_SAFE";
        /// [`max_private_data_size`](super::ProviderAttr::max_private_data_size).
        MAX_PRIVATE_DATA_SIZE = 1 << 10, "DAT_PROVIDER_FIELD_MAX_PRIVATE_DATA_SIZE";
        /// [`supports_multipath`](super::ProviderAttr::supports_multipath).
        SUPPORTS_MULTIPATH = 1 << 11, "DAT_PROVIDER_FIELD_SUPPORTS_MULTIPATH";
        /// [`ep_creator`](super::ProviderAttr::ep_creator).
        EP_CREATOR = 1 << 12, "DAT_PROVIDER_FIELD_EP_CREATOR";
        /// [`pz_support`](super::ProviderAttr::pz_support).
        PZ_SUPPORT = 1 << 13, "DAT_PROVIDER_FIELD_PZ_SUPPORT";
        /// [`optimal_buffer_alignment`](super::ProviderAttr::optimal_buffer_alignment).
        OPTIMAL_BUFFER_ALIGNMENT = 1 << 14, "DAT_PROVIDER_FIELD_OPTIMAL_BUFFER_ALIGNMENT";
        /// [`evd_stream_merging_supported`](super::ProviderAttr::evd_stream_merging_supported).
        EVD_STREAM_MERGING_SUPPORTED = 1 << 15, "DAT_PROVIDER_FIELD_EVD_STREAM_MERGING_SUPPORTED";
        /// [`srq_supported`](super::ProviderAttr::srq_supported).
        SRQ_SUPPORTED = 1 << 16, "DAT_PROVIDER_FIELD_SRQ_SUPPORTED";
        /// [`srq_watermarks_supported`](super::ProviderAttr::srq_watermarks_supported).
        SRQ_WATERMARKS_SUPPORTED = 1 << 17, "DAT_PROVIDER_FIELD_SRQ_WATERMARKS_SUPPORTED";
        /// [`srq_ep_pz_difference_supported`](super::ProviderAttr::srq_ep_pz_difference_supported).
        SRQ_EP_PZ_DIFFERENCE_SUPPORTED = 1 << 18, "DAT_PROVIDER_FIELD_SRQ_EP_PZ_DIFFERENCE_SUPPORTED";
        /// [`srq_info_supported`](super::ProviderAttr::srq_info_supported).
        SRQ_INFO_SUPPORTED = 1 << 19, "DAT_PROVIDER_FIELD_SRQ_INFO_SUPPORTED";
        /// [`ep_recv_info_supported`](super::ProviderAttr::ep_recv_info_supported).
        EP_RECV_INFO_SUPPORTED = 1 << 20, "DAT_PROVIDER_FIELD_EP_RECV_INFO_SUPPORTED";
        /// [`lmr_sync_req`](super::ProviderAttr::lmr_sync_req).
        LMR_SYNC_REQ = 1 << 21, "DAT_PROVIDER_FIELD_LMR_SYNC_REQ";
        /// [`dto_async_return_guaranteed`](super::ProviderAttr::dto_async_return_guaranteed).
        DTO_ASYNC_RETURN_GUARANTEED = 1 << 22, "DAT_PROVIDER_FIELD_DTO_ASYNC_RETURN_GUARANTEED";
        /// [`rdma_write_for_rdma_read_req`](super::ProviderAttr::rdma_write_for_rdma_read_req).
        RDMA_WRITE_FOR_RDMA_READ_REQ = 1 << 23, "DAT_PROVIDER_FIELD_RDMA_WRITE_FOR_RDMA_READ_REQ";
        /// [`rdma_read_lmr_rmr_context_exposure`](super::ProviderAttr::rdma_read_lmr_rmr_context_exposure).
        RDMA_READ_LMR_RMR_CONTEXT_EXPOSURE = 1 << 24, "DAT_PROVIDER_FIELD_RDMA_READ_LMR_RMR_CONTEXT_EXPOSURE";
        /// [`rmr_scope_supported`](super::ProviderAttr::rmr_scope_supported).
        RMR_SCOPE_SUPPORTED = 1 << 25, "DAT_PROVIDER_FIELD_RMR_SCOPE_SUPPORTED";
        /// [`is_signal_safe`](super::ProviderAttr::is_signal_safe).
        IS_SIGNAL_SAFE = 1 << 26, "DAT_PROVIDER_FIELD_IS_SIGNAL_SAFE";
        /// The length of [`provider_specific_attr`](super::ProviderAttr::provider_specific_attr).
        NUM_PROVIDER_SPECIFIC_ATTR = 1 << 29, "DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR";
        /// [`provider_specific_attr`](super::ProviderAttr::provider_specific_attr).
        PROVIDER_SPECIFIC_ATTR = 1 << 30, "DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR";
        /// All members.
        ALL = 0x67ff_ffff, "DAT_PROVIDER_FIELD_ALL";
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
}

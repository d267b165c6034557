//! Masks of the members of attributes.

use bitflags::bitflags;

bitflags! {
    /// Members of [`EpParam`](super::EpParam).
    #[doc(alias = "DAT_EP_PARAM_MASK")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct EpParamMask: u64 {
        /// [`ia_handle`](super::EpParam::ia_handle).
        #[doc(alias = "DAT_EP_FIELD_IA_HANDLE")]
        const IA_HANDLE = 0x0000_0001;
        /// [`ep_state`](super::EpParam::ep_state).
        #[doc(alias = "DAT_EP_FIELD_EP_STATE")]
        const EP_STATE = 0x0000_0002;
        /// [`local_ia_address`](super::EpParam::local_ia_address).
        #[doc(alias = "DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR")]
        const LOCAL_IA_ADDRESS = 0x0000_0008;
        /// [`local_port_qual`](super::EpParam::local_port_qual).
        #[doc(alias = "DAT_EP_FIELD_LOCAL_PORT_QUAL")]
        const LOCAL_PORT_QUAL = 0x0000_0010;
        /// [`remote_ia_address`](super::EpParam::remote_ia_address).
        #[doc(alias = "DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR")]
        const REMOTE_IA_ADDRESS = 0x0000_0020;
        /// [`remote_port_qual`](super::EpParam::remote_port_qual).
        #[doc(alias = "DAT_EP_FIELD_REMOTE_PORT_QUAL")]
        const REMOTE_PORT_QUAL = 0x0000_0040;
        /// [`pz_handle`](super::EpParam::pz_handle).
        #[doc(alias = "DAT_EP_FIELD_PZ_HANDLE")]
        const PZ_HANDLE = 0x0000_0080;
        /// [`recv_evd_handle`](super::EpParam::recv_evd_handle).
        #[doc(alias = "DAT_EP_FIELD_RECV_EVD_HANDLE")]
        const RECV_EVD_HANDLE = 0x0000_0100;
        /// [`request_evd_handle`](super::EpParam::request_evd_handle).
        #[doc(alias = "DAT_EP_FIELD_REQUEST_EVD_HANDLE")]
        const REQUEST_EVD_HANDLE = 0x0000_0200;
        /// [`connect_evd_handle`](super::EpParam::connect_evd_handle).
        #[doc(alias = "DAT_EP_FIELD_CONNECT_EVD_HANDLE")]
        const CONNECT_EVD_HANDLE = 0x0000_0400;
        /// [`srq_handle`](super::EpParam::srq_handle).
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
    /// Members of [`IaAttr`](super::IaAttr).
    #[doc(alias = "DAT_IA_ATTR_MASK")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct IaAttrMask: u64 {
        /// [`adapter_name`](super::IaAttr::adapter_name).
        #[doc(alias = "DAT_IA_FIELD_IA_ADAPTER_NAME")]
        const ADAPTER_NAME = 1 << 0;
        /// [`vendor_name`](super::IaAttr::vendor_name).
        #[doc(alias = "DAT_IA_FIELD_IA_VENDOR_NAME")]
        const VENDOR_NAME = 1 << 1;
        /// [`hardware_version_major`](super::IaAttr::hardware_version_major).
        #[doc(alias = "DAT_IA_FIELD_IA_HARDWARE_MAJOR_VERSION")]
        const HARDWARE_MAJOR_VERSION = 1 << 2;
        /// [`hardware_version_minor`](super::IaAttr::hardware_version_minor).
        #[doc(alias = "DAT_IA_FIELD_IA_HARDWARE_MINOR_VERSION")]
        const HARDWARE_MINOR_VERSION = 1 << 3;
        /// [`firmware_version_major`](super::IaAttr::firmware_version_major).
        #[doc(alias = "DAT_IA_FIELD_IA_FIRMWARE_MAJOR_VERSION")]
        const FIRMWARE_MAJOR_VERSION = 1 << 4;
        /// [`firmware_version_minor`](super::IaAttr::firmware_version_minor).
        #[doc(alias = "DAT_IA_FIELD_IA_FIRMWARE_MINOR_VERSION")]
        const FIRMWARE_MINOR_VERSION = 1 << 5;
        /// [`ia_address`](super::IaAttr::ia_address).
        #[doc(alias = "DAT_IA_FIELD_IA_ADDRESS_PTR")]
        const IA_ADDRESS = 1 << 6;
        /// [`max_eps`](super::IaAttr::max_eps).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_EPS")]
        const MAX_EPS = 1 << 7;
        /// [`max_dto_per_ep`](super::IaAttr::max_dto_per_ep).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_DTO_PER_EP")]
        const MAX_DTO_PER_EP = 1 << 8;
        /// [`max_rdma_read_per_ep_in`](super::IaAttr::max_rdma_read_per_ep_in).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN")]
        const MAX_RDMA_READ_PER_EP_IN = 1 << 9;
        /// [`max_rdma_read_per_ep_out`](super::IaAttr::max_rdma_read_per_ep_out).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT")]
        const MAX_RDMA_READ_PER_EP_OUT = 1 << 10;
        /// [`max_evds`](super::IaAttr::max_evds).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_EVDS")]
        const MAX_EVDS = 1 << 11;
        /// [`max_evd_qlen`](super::IaAttr::max_evd_qlen).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_EVD_QLEN")]
        const MAX_EVD_QLEN = 1 << 12;
        /// [`max_iov_segments_per_dto`](super::IaAttr::max_iov_segments_per_dto).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_DTO")]
        const MAX_IOV_SEGMENTS_PER_DTO = 1 << 13;
        /// [`max_lmrs`](super::IaAttr::max_lmrs).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_LMRS")]
        const MAX_LMRS = 1 << 14;
        /// [`max_lmr_block_size`](super::IaAttr::max_lmr_block_size).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_LMR_BLOCK_SIZE")]
        const MAX_LMR_BLOCK_SIZE = 1 << 15;
        /// [`max_lmr_virtual_address`](super::IaAttr::max_lmr_virtual_address).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_LMR_VIRTUAL_ADDRESS")]
        const MAX_LMR_VIRTUAL_ADDRESS = 1 << 16;
        /// [`max_pzs`](super::IaAttr::max_pzs).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_PZS")]
        const MAX_PZS = 1 << 17;
        /// [`max_message_size`](super::IaAttr::max_message_size).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE")]
        const MAX_MESSAGE_SIZE = 1 << 18;
        /// [`max_rdma_size`](super::IaAttr::max_rdma_size).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_SIZE")]
        const MAX_RDMA_SIZE = 1 << 19;
        /// [`max_rmrs`](super::IaAttr::max_rmrs).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RMRS")]
        const MAX_RMRS = 1 << 20;
        /// [`max_rmr_target_address`](super::IaAttr::max_rmr_target_address).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RMR_TARGET_ADDRESS")]
        const MAX_RMR_TARGET_ADDRESS = 1 << 21;
        /// [`max_srqs`](super::IaAttr::max_srqs).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_SRQS")]
        const MAX_SRQS = 1 << 22;
        /// [`max_ep_per_srq`](super::IaAttr::max_ep_per_srq).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_EP_PER_SRQ")]
        const MAX_EP_PER_SRQ = 1 << 23;
        /// [`max_recv_per_srq`](super::IaAttr::max_recv_per_srq).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RECV_PER_SRQ")]
        const MAX_RECV_PER_SRQ = 1 << 24;
        /// [`max_iov_segments_per_rdma_read`](super::IaAttr::max_iov_segments_per_rdma_read).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_READ")]
        const MAX_IOV_SEGMENTS_PER_RDMA_READ = 1 << 25;
        /// [`max_iov_segments_per_rdma_write`](super::IaAttr::max_iov_segments_per_rdma_write).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_WRITE")]
        const MAX_IOV_SEGMENTS_PER_RDMA_WRITE = 1 << 26;
        /// [`max_rdma_read_in`](super::IaAttr::max_rdma_read_in).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_IN")]
        const MAX_RDMA_READ_IN = 1 << 27;
        /// [`max_rdma_read_out`](super::IaAttr::max_rdma_read_out).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_OUT")]
        const MAX_RDMA_READ_OUT = 1 << 28;
        /// [`max_rdma_read_per_ep_in_guaranteed`](super::IaAttr::max_rdma_read_per_ep_in_guaranteed).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN_GUARANTEED")]
        const MAX_RDMA_READ_PER_EP_IN_GUARANTEED = 1 << 29;
        /// [`max_rdma_read_per_ep_out_guaranteed`](super::IaAttr::max_rdma_read_per_ep_out_guaranteed).
        #[doc(alias = "DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT_GUARANTEED")]
        const MAX_RDMA_READ_PER_EP_OUT_GUARANTEED = 1 << 30;
        /// [`zb_supported`](super::IaAttr::zb_supported).
        #[doc(alias = "DAT_IA_FIELD_IA_ZB_SUPPORTED")]
        const ZB_SUPPORTED = 1 << 31;
        /// [`extension_supported`](super::IaAttr::extension_supported).
        #[doc(alias = "DAT_IA_FIELD_IA_EXTENSION")]
        const EXTENSION = 1 << 32;
        /// [`extension_version`](super::IaAttr::extension_version).
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
    /// Members of [`ProviderAttr`](super::ProviderAttr).
    #[doc(alias = "DAT_PROVIDER_ATTR_MASK")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct ProviderAttrMask: u64 {
        /// [`provider_name`](super::ProviderAttr::provider_name).
        #[doc(alias = "DAT_PROVIDER_FIELD_PROVIDER_NAME")]
        const PROVIDER_NAME = 1 << 0;
        /// [`provider_version_major`](super::ProviderAttr::provider_version_major).
        #[doc(alias = "DAT_PROVIDER_FIELD_PROVIDER_VERSION_MAJOR")]
        const PROVIDER_VERSION_MAJOR = 1 << 1;
        /// [`provider_version_minor`](super::ProviderAttr::provider_version_minor).
        #[doc(alias = "DAT_PROVIDER_FIELD_PROVIDER_VERSION_MINOR")]
        const PROVIDER_VERSION_MINOR = 1 << 2;
        /// [`dapl_version_major`](super::ProviderAttr::dapl_version_major).
        #[doc(alias = "DAT_PROVIDER_FIELD_DAPL_VERSION_MAJOR")]
        const DAPL_VERSION_MAJOR = 1 << 3;
        /// [`dapl_version_minor`](super::ProviderAttr::dapl_version_minor).
        #[doc(alias = "DAT_PROVIDER_FIELD_DAPL_VERSION_MINOR")]
        const DAPL_VERSION_MINOR = 1 << 4;
        /// [`lmr_mem_types_supported`](super::ProviderAttr::lmr_mem_types_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_LMR_MEM_TYPE_SUPPORTED")]
        const LMR_MEM_TYPE_SUPPORTED = 1 << 5;
        /// [`iov_ownership_on_return`](super::ProviderAttr::iov_ownership_on_return).
        #[doc(alias = "DAT_PROVIDER_FIELD_IOV_OWNERSHIP")]
        const IOV_OWNERSHIP = 1 << 6;
        /// [`dat_qos_supported`](super::ProviderAttr::dat_qos_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_DAT_QOS_SUPPORTED")]
        const DAT_QOS_SUPPORTED = 1 << 7;
        /// [`completion_flags_supported`](super::ProviderAttr::completion_flags_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_COMPLETION_FLAGS_SUPPORTED")]
        const COMPLETION_FLAGS_SUPPORTED = 1 << 8;
        /// [`is_thread_safe`](super::ProviderAttr::is_thread_safe).
        #[doc(alias = "DAT_PROVIDER_FIELD_IS_THREAD_SAFE")]
        const IS_THREAD_SAFE = 1 << 9;
        /// [`max_private_data_size`](super::ProviderAttr::max_private_data_size).
        #[doc(alias = "DAT_PROVIDER_FIELD_MAX_PRIVATE_DATA_SIZE")]
        const MAX_PRIVATE_DATA_SIZE = 1 << 10;
        /// [`supports_multipath`](super::ProviderAttr::supports_multipath).
        #[doc(alias = "DAT_PROVIDER_FIELD_SUPPORTS_MULTIPATH")]
        const SUPPORTS_MULTIPATH = 1 << 11;
        /// [`ep_creator`](super::ProviderAttr::ep_creator).
        #[doc(alias = "DAT_PROVIDER_FIELD_EP_CREATOR")]
        const EP_CREATOR = 1 << 12;
        /// [`pz_support`](super::ProviderAttr::pz_support).
        #[doc(alias = "DAT_PROVIDER_FIELD_PZ_SUPPORT")]
        const PZ_SUPPORT = 1 << 13;
        /// [`optimal_buffer_alignment`](super::ProviderAttr::optimal_buffer_alignment).
        #[doc(alias = "DAT_PROVIDER_FIELD_OPTIMAL_BUFFER_ALIGNMENT")]
        const OPTIMAL_BUFFER_ALIGNMENT = 1 << 14;
        /// [`evd_stream_merging_supported`](super::ProviderAttr::evd_stream_merging_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_EVD_STREAM_MERGING_SUPPORTED")]
        const EVD_STREAM_MERGING_SUPPORTED = 1 << 15;
        /// [`srq_supported`](super::ProviderAttr::srq_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_SRQ_SUPPORTED")]
        const SRQ_SUPPORTED = 1 << 16;
        /// [`srq_watermarks_supported`](super::ProviderAttr::srq_watermarks_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_SRQ_WATERMARKS_SUPPORTED")]
        const SRQ_WATERMARKS_SUPPORTED = 1 << 17;
        /// [`srq_ep_pz_difference_supported`](super::ProviderAttr::srq_ep_pz_difference_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_SRQ_EP_PZ_DIFFERENCE_SUPPORTED")]
        const SRQ_EP_PZ_DIFFERENCE_SUPPORTED = 1 << 18;
        /// [`srq_info_supported`](super::ProviderAttr::srq_info_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_SRQ_INFO_SUPPORTED")]
        const SRQ_INFO_SUPPORTED = 1 << 19;
        /// [`ep_recv_info_supported`](super::ProviderAttr::ep_recv_info_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_EP_RECV_INFO_SUPPORTED")]
        const EP_RECV_INFO_SUPPORTED = 1 << 20;
        /// [`lmr_sync_req`](super::ProviderAttr::lmr_sync_req).
        #[doc(alias = "DAT_PROVIDER_FIELD_LMR_SYNC_REQ")]
        const LMR_SYNC_REQ = 1 << 21;
        /// [`dto_async_return_guaranteed`](super::ProviderAttr::dto_async_return_guaranteed).
        #[doc(alias = "DAT_PROVIDER_FIELD_DTO_ASYNC_RETURN_GUARANTEED")]
        const DTO_ASYNC_RETURN_GUARANTEED = 1 << 22;
        /// [`rdma_write_for_rdma_read_req`](super::ProviderAttr::rdma_write_for_rdma_read_req).
        #[doc(alias = "DAT_PROVIDER_FIELD_RDMA_WRITE_FOR_RDMA_READ_REQ")]
        const RDMA_WRITE_FOR_RDMA_READ_REQ = 1 << 23;
        /// [`rdma_read_lmr_rmr_context_exposure`](super::ProviderAttr::rdma_read_lmr_rmr_context_exposure).
        #[doc(alias = "DAT_PROVIDER_FIELD_RDMA_READ_LMR_RMR_CONTEXT_EXPOSURE")]
        const RDMA_READ_LMR_RMR_CONTEXT_EXPOSURE = 1 << 24;
        /// [`rmr_scope_supported`](super::ProviderAttr::rmr_scope_supported).
        #[doc(alias = "DAT_PROVIDER_FIELD_RMR_SCOPE_SUPPORTED")]
        const RMR_SCOPE_SUPPORTED = 1 << 25;
        /// [`is_signal_safe`](super::ProviderAttr::is_signal_safe).
        #[doc(alias = "DAT_PROVIDER_FIELD_IS_SIGNAL_SAFE")]
        const IS_SIGNAL_SAFE = 1 << 26;
        /// The length of [`provider_specific_attr`](super::ProviderAttr::provider_specific_attr).
        #[doc(alias = "DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR")]
        const NUM_PROVIDER_SPECIFIC_ATTR = 1 << 29;
        /// [`provider_specific_attr`](super::ProviderAttr::provider_specific_attr).
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
}

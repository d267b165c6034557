//! Flags and parameter masks, with the specification's values.
//!
//! Undefined bits can be passed with `from_bits_retain`; the calls refuse them.

use bitflags::bitflags;

bitflags! {
    /// Options of a work request.
    #[doc(alias = "it_dto_flags_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct DtoFlags: u32 {
        /// A request that succeeds also makes a completion event.
        #[doc(alias = "IT_COMPLETION_FLAG")]
        const COMPLETION = 0x01;
        /// The completion event is a notification event. Needs [`DtoFlags::COMPLETION`].
        #[doc(alias = "IT_NOTIFY_FLAG")]
        const NOTIFY = 0x02;
        /// The peer's matching receive completes with notification.
        #[doc(alias = "IT_SOLICITED_WAIT_FLAG")]
        const SOLICITED_WAIT = 0x04;
        /// The request does not start before earlier RDMA Reads are complete.
        #[doc(alias = "IT_BARRIER_FENCE_FLAG")]
        const BARRIER_FENCE = 0x08;
        /// An unlink does not start before earlier work requests are complete.
        #[doc(alias = "IT_UNLINK_FENCE_FLAG")]
        const UNLINK_FENCE = 0x10;
        /// The local sink is unlinked when the request is complete.
        #[doc(alias = "IT_UNLINK_LOCAL_SINK")]
        const UNLINK_LOCAL_SINK = 0x20;
        /// The request may be delayed until a request without this flag is posted.
        #[doc(alias = "IT_COALESCE_WR_FLAG")]
        const COALESCE = 0x40;
    }
}

bitflags! {
    /// Privileges on a region.
    #[doc(alias = "it_mem_priv_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct MemPriv: u32 {
        /// Source of local Sends and RDMA Writes.
        #[doc(alias = "IT_PRIV_LOCAL_READ")]
        const LOCAL_READ = 0x0001;
        /// Sink of local Receives and RDMA Reads.
        #[doc(alias = "IT_PRIV_LOCAL_WRITE")]
        const LOCAL_WRITE = 0x0002;
        /// Local read and local write.
        #[doc(alias = "IT_PRIV_LOCAL")]
        const LOCAL = 0x0003;
        /// Source of incoming RDMA Reads.
        #[doc(alias = "IT_PRIV_REMOTE_READ")]
        const REMOTE_READ = 0x0004;
        /// Sink of incoming RDMA Writes.
        #[doc(alias = "IT_PRIV_REMOTE_WRITE")]
        const REMOTE_WRITE = 0x0008;
        /// Remote read and remote write.
        #[doc(alias = "IT_PRIV_REMOTE")]
        const REMOTE = 0x000c;
        /// Target of incoming atomic operations.
        #[doc(alias = "IT_PRIV_ATOMIC")]
        const ATOMIC = 0x0010;
        /// All privileges of the page.
        #[doc(alias = "IT_PRIV_ALL")]
        const ALL = 0x001f;
        /// Target of incoming atomic operations, which then need neither remote read nor remote
        /// write. An extension, for faces whose pages ask for the one privilege.
        const ATOMIC_ALONE = 0x0100_0000;
    }
}

bitflags! {
    /// Options of a local memory region. [`LmrFlags::NONE`] is a separate bit without effect.
    #[doc(alias = "it_lmr_flag_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct LmrFlags: u32 {
        /// No option.
        #[doc(alias = "IT_LMR_FLAG_NONE")]
        const NONE = 0x0001;
        /// The region shares translation resources with a matching region.
        #[doc(alias = "IT_LMR_FLAG_SHARED")]
        const SHARED = 0x0002;
        /// Non-coherent mode.
        #[doc(alias = "IT_LMR_FLAG_NONCOHERENT")]
        const NONCOHERENT = 0x0004;
        /// Other regions may not share its translation resources.
        #[doc(alias = "IT_LMR_FLAG_NON_SHAREABLE")]
        const NON_SHAREABLE = 0x0008;
    }
}

bitflags! {
    /// Options of an event dispatcher.
    #[doc(alias = "it_evd_flags_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct EvdFlags: u32 {
        /// The aggregate event dispatcher returns notification events.
        #[doc(alias = "IT_EVD_DEQUEUE_NOTIFICATIONS")]
        const DEQUEUE_NOTIFICATIONS = 0x01;
        /// The event dispatcher gets a notification object.
        #[doc(alias = "IT_EVD_CREATE_FD")]
        const CREATE_FD = 0x02;
        /// Overflow behaviour: the stream's default.
        #[doc(alias = "IT_EVD_OVERFLOW_DEFAULT")]
        const OVERFLOW_DEFAULT = 0x04;
        /// An overflow makes an event on the asynchronous stream.
        #[doc(alias = "IT_EVD_OVERFLOW_NOTIFY")]
        const OVERFLOW_NOTIFY = 0x08;
        /// An overflow ends when the queue has room again.
        #[doc(alias = "IT_EVD_OVERFLOW_AUTO_RESET")]
        const OVERFLOW_AUTO_RESET = 0x10;
    }
}

bitflags! {
    /// Options at the creation of an RC endpoint; none is `IT_EP_NO_FLAG`.
    #[doc(alias = "it_ep_rc_creation_flags_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct EpFlags: u32 {
        /// The endpoint may be in the TimeWait condition.
        #[doc(alias = "IT_EP_REUSEADDR")]
        const REUSEADDR = 0x01;
        /// Receives come from a shared receive queue.
        #[doc(alias = "IT_EP_SRQ")]
        const SRQ = 0x02;
    }
}

bitflags! {
    /// Options of a listen point; none is `IT_LISTEN_NO_FLAG`.
    #[doc(alias = "it_listen_flags_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct ListenFlags: u32 {
        /// The caller names the connection qualifier.
        #[doc(alias = "IT_LISTEN_CONN_QUAL_INPUT")]
        const CONN_QUAL_INPUT = 0x0001;
        /// No IRD/ORD negotiation.
        #[doc(alias = "IT_LISTEN_SUPPRESS_IRD_ORD")]
        const SUPPRESS_IRD_ORD = 0x0002;
    }
}

bitflags! {
    /// How a connection is to be established.
    #[doc(alias = "it_cn_est_flags_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct CnEstFlags: u32 {
        /// Established when the passive side accepts.
        #[doc(alias = "IT_CONNECT_FLAG_TWO_WAY")]
        const TWO_WAY = 0x0001;
        /// Established when the active side has also accepted.
        #[doc(alias = "IT_CONNECT_FLAG_THREE_WAY")]
        const THREE_WAY = 0x0002;
        /// No IRD/ORD negotiation.
        #[doc(alias = "IT_CONNECT_SUPPRESS_IRD_ORD")]
        const SUPPRESS_IRD_ORD = 0x0004;
    }
}

bitflags! {
    /// Types of I/O buffer list that an IA supports.
    #[doc(alias = "it_iobl_type_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct IoblTypes: u32 {
        /// Equal pages.
        #[doc(alias = "IT_IOBL_PAGE_LIST")]
        const PAGE_LIST = 0x0001;
        /// Equal blocks.
        #[doc(alias = "IT_IOBL_BLOCK_LIST")]
        const BLOCK_LIST = 0x0002;
        /// Pages of different sizes.
        #[doc(alias = "IT_IOBL_VE_PAGE_LIST")]
        const VE_PAGE_LIST = 0x0004;
    }
}

bitflags! {
    /// Types of RMR that an IA has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct RmrTypes: u32 {
        /// Narrow RMRs.
        #[doc(alias = "IT_RMR_TYPE_NARROW")]
        const NARROW = 1;
        /// Wide RMRs.
        #[doc(alias = "IT_RMR_TYPE_WIDE")]
        const WIDE = 2;
    }
}

bitflags! {
    /// Types of connection qualifier that a spigot supports.
    #[doc(alias = "it_conn_qual_type_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct ConnQualTypes: u32 {
        /// TCP or UDP port number.
        #[doc(alias = "IT_IANA_PORT")]
        const IANA_PORT = 0x01;
        /// InfiniBand service ID.
        #[doc(alias = "IT_IB_SERVICEID")]
        const IB_SERVICEID = 0x02;
        /// VIA discriminator.
        #[doc(alias = "IT_VIA_DISCRIMINATOR")]
        const VIA_DISCRIMINATOR = 0x04;
        /// Local and remote port number.
        #[doc(alias = "IT_IANA_LR_PORT")]
        const IANA_LR_PORT = 0x08;
    }
}

bitflags! {
    /// Transport services that an IA offers.
    #[doc(alias = "it_transport_service_type_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct ServiceTypes: u32 {
        /// Reliable connected.
        #[doc(alias = "IT_RC_SERVICE")]
        const RC = 0x1;
        /// Unreliable datagram.
        #[doc(alias = "IT_UD_SERVICE")]
        const UD = 0x2;
    }
}

bitflags! {
    /// Properties of a received datagram, in its completion.
    #[doc(alias = "it_dto_ud_flags_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct DtoUdFlags: u16 {
        /// The first 40 bytes hold a GRH.
        #[doc(alias = "IT_UD_IB_GRH_PRESENT")]
        const IB_GRH_PRESENT = 0x01;
    }
}

bitflags! {
    /// Parameters of an endpoint.
    #[doc(alias = "it_ep_param_mask_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct EpParamMask: u32 {
        /// All parameters.
        const ALL = 0x0000_0001;
        /// `ia`
        const IA = 0x0000_0002;
        /// `spigot_id`
        const SPIGOT = 0x0000_0004;
        /// `ep_state`
        const STATE = 0x0000_0008;
        /// `service_type`
        const SERV_TYPE = 0x0000_0010;
        /// `dst_path`
        const PATH = 0x0000_0020;
        /// `pz`
        const PZ = 0x0000_0040;
        /// `request_sevd`
        const REQ_SEVD = 0x0000_0080;
        /// `recv_sevd`
        const RECV_SEVD = 0x0000_0100;
        /// `connect_sevd`
        const CONN_SEVD = 0x0000_0200;
        /// `rdma_read_enable`
        const RDMA_RD_ENABLE = 0x0000_0400;
        /// `rdma_write_enable`
        const RDMA_WR_ENABLE = 0x0000_0800;
        /// `max_rdma_read_segments`
        const MAX_RDMA_READ_SEG = 0x0000_1000;
        /// `max_rdma_write_segments`
        const MAX_RDMA_WRITE_SEG = 0x0000_2000;
        /// `rdma_read_ird`
        const MAX_IRD = 0x0000_4000;
        /// `rdma_read_ord`
        const MAX_ORD = 0x0000_8000;
        /// `ud_ep_id`
        const EP_ID = 0x0001_0000;
        /// `ud_ep_key`
        const EP_KEY = 0x0002_0000;
        /// `max_dto_payload_size`
        const MAX_PAYLOAD = 0x0004_0000;
        /// `max_request_dtos`
        const MAX_REQ_DTO = 0x0008_0000;
        /// `max_recv_dtos`
        const MAX_RECV_DTO = 0x0010_0000;
        /// `max_send_segments`
        const MAX_SEND_SEG = 0x0020_0000;
        /// `max_recv_segments`
        const MAX_RECV_SEG = 0x0040_0000;
        /// `srq`
        const SRQ = 0x0080_0000;
        /// `soft_hi_watermark`
        const SOFT_HI_WATERMARK = 0x0100_0000;
        /// `hard_hi_watermark`
        const HARD_HI_WATERMARK = 0x0200_0000;
        /// `atomics_enable`
        const ATOMICS_ENABLE = 0x0400_0000;
        /// `priv_ops_enable`
        const PRIV_OPS_ENABLE = 0x0800_0000;
    }
}

bitflags! {
    /// Parameters of an event dispatcher.
    #[doc(alias = "it_evd_param_mask_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct EvdParamMask: u32 {
        /// All parameters.
        const ALL = 0x000001;
        /// `ia`
        const IA = 0x000002;
        /// `event_number`
        const EVENT_NUMBER = 0x000004;
        /// `evd_flag`
        const FLAG = 0x000008;
        /// `sevd_queue_size`
        const QUEUE_SIZE = 0x000010;
        /// `sevd_threshold`
        const THRESHOLD = 0x000020;
        /// `aevd`
        const AEVD_HANDLE = 0x000040;
        /// `fd`
        const FD = 0x000080;
        /// `evd_bound`
        const BOUND = 0x000100;
        /// `evd_enabled`
        const ENABLED = 0x000200;
        /// `evd_overflowed`
        const OVERFLOWED = 0x000400;
        /// `evd_callback`
        const CALLBACK = 0x000800;
    }
}

bitflags! {
    /// Parameters of a local memory region.
    #[doc(alias = "it_lmr_param_mask_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct LmrParamMask: u32 {
        /// All parameters.
        const ALL = 0x000001;
        /// `ia`
        const IA = 0x000002;
        /// `pz`
        const PZ = 0x000004;
        /// `addr`
        const ADDR = 0x000008;
        /// `length`
        const LENGTH = 0x000010;
        /// `privs`
        const MEM_PRIV = 0x000020;
        /// `flags`
        const FLAG = 0x000040;
        /// `shared_id`
        const SHARED_ID = 0x000080;
        /// `rmr_context`
        const RMR_CONTEXT = 0x000100;
        /// `actual_addr`
        const ACTUAL_ADDR = 0x000200;
        /// `actual_length`
        const ACTUAL_LENGTH = 0x000400;
        /// `addr_mode`
        const ADDR_MODE = 0x000800;
        /// `linked`
        const LINKED = 0x001000;
        /// `iobl_num_elts`
        const IOBL_NUM_ELTS = 0x002000;
        /// `iobl_type`
        const IOBL_TYPE = 0x004000;
    }
}

bitflags! {
    /// Parameters of a remote memory region.
    #[doc(alias = "it_rmr_param_mask_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct RmrParamMask: u32 {
        /// All parameters.
        const ALL = 0x000001;
        /// `ia`
        const IA = 0x000002;
        /// `pz`
        const PZ = 0x000004;
        /// `linked`
        #[doc(alias = "IT_RMR_PARAM_BOUND")]
        const LINKED = 0x000008;
        /// `lmr`
        const LMR = 0x000010;
        /// `addr`
        const ADDR = 0x000020;
        /// `length`
        const LENGTH = 0x000040;
        /// `privs`
        const MEM_PRIV = 0x000080;
        /// `rmr_context`
        const RMR_CONTEXT = 0x000100;
        /// `rmr_type`
        const TYPE = 0x000200;
        /// `addr_mode`
        const ADDR_MODE = 0x000400;
    }
}

bitflags! {
    /// Parameters of a shared receive queue.
    #[doc(alias = "it_srq_param_mask_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SrqParamMask: u32 {
        /// All parameters.
        const ALL = 0x000001;
        /// `ia`
        const IA = 0x000002;
        /// `pz`
        const PZ = 0x000004;
        /// `max_recv_dtos`
        const MAX_RECV_DTO = 0x000008;
        /// `max_recv_segs`
        const MAX_RECV_SEG = 0x000010;
        /// `low_watermark`
        const LOW_WATERMARK = 0x000020;
    }
}

bitflags! {
    /// Parameters of a protection zone.
    #[doc(alias = "it_pz_param_mask_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct PzParamMask: u32 {
        /// All parameters.
        const ALL = 0x01;
        /// `ia`
        const IA = 0x02;
    }
}

bitflags! {
    /// Parameters of a listen point.
    #[doc(alias = "it_listen_param_mask_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct ListenParamMask: u32 {
        /// All parameters.
        const ALL = 0x0001;
        /// `ia`
        const IA_HANDLE = 0x0002;
        /// `spigot_id`
        const SPIGOT_ID = 0x0004;
        /// `connect_evd`
        const CONNECT_EVD = 0x0008;
        /// `connect_qual`
        const CONN_QUAL = 0x0010;
    }
}

bitflags! {
    /// Options of an address handle's creation.
    #[doc(alias = "it_ah_flags_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AhFlags: u32 {
        /// The path is complete; without this flag the IA chooses the missing members.
        #[doc(alias = "IT_AH_PATH_COMPLETE")]
        const PATH_COMPLETE = 0x1;
    }
}

bitflags! {
    /// Parameters of an address handle.
    #[doc(alias = "it_addr_param_mask_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AddrParamMask: u32 {
        /// All parameters.
        const ALL = 0x0001;
        /// `ia`
        const IA = 0x0002;
        /// `pz`
        const PZ = 0x0004;
        /// `path`
        const PATH = 0x0008;
    }
}

bitflags! {
    /// Parameters of a UD service request handle.
    #[doc(alias = "it_ud_svc_req_param_mask_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct UdSvcReqParamMask: u32 {
        /// All parameters.
        const ALL = 0x01;
        /// `ia`
        const IA_HANDLE = 0x02;
        /// `request_id`
        const REQ_ID = 0x04;
        /// `reply_evd`
        const REPLY_EVD = 0x08;
        /// `conn_qual`
        const CONN_QUAL = 0x10;
        /// `destination_path`
        const DEST_PATH = 0x20;
        /// `private_data`
        const PRIV_DATA = 0x40;
        /// `private_data_length`
        const PRIV_DATA_LENGTH = 0x80;
    }
}

bitflags! {
    /// Options of a socket's conversion; none is `IT_SC_DEFAULT`.
    #[doc(alias = "it_sc_flags_t")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct ScFlags: u32 {
        /// Without MPA startup.
        #[doc(alias = "IT_SC_NO_REQ_REP")]
        const NO_REQ_REP = 0x0001;
    }
}

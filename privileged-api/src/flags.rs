//! Flags and parameter masks, with the specification's values.
//!
//! Undefined bits can be passed with `from_bits_retain`; the calls refuse them.

rdma::flags! {
    /// Options of a work request.
    #[doc(alias = "it_dto_flags_t")]
    #[derive(Default)]
    pub struct DtoFlags: u32 {
        /// A request that succeeds also makes a completion event.
        COMPLETION = 0x01, "IT_COMPLETION_FLAG";
        /// The completion event is a notification event. Needs [`DtoFlags::COMPLETION`].
        NOTIFY = 0x02, "IT_NOTIFY_FLAG";
        /// The peer's matching receive completes with notification.
        SOLICITED_WAIT = 0x04, "IT_SOLICITED_WAIT_FLAG";
        /// The request does not start before earlier RDMA Reads are complete.
        BARRIER_FENCE = 0x08, "IT_BARRIER_FENCE_FLAG";
        /// An unlink does not start before earlier work requests are complete.
        UNLINK_FENCE = 0x10, "IT_UNLINK_FENCE_FLAG";
        /// The local sink is unlinked when the request is complete.
        UNLINK_LOCAL_SINK = 0x20, "IT_UNLINK_LOCAL_SINK";
        /// The request may be delayed until a request without this flag is posted.
        COALESCE = 0x40, "IT_COALESCE_WR_FLAG";
    }

    /// Privileges on a region.
    #[doc(alias = "it_mem_priv_t")]
    #[derive(Default)]
    pub struct MemPriv: u32 {
        /// Source of local Sends and RDMA Writes.
        LOCAL_READ = 0x0001, "IT_PRIV_LOCAL_READ";
        /// Sink of local Receives and RDMA Reads.
        LOCAL_WRITE = 0x0002, "IT_PRIV_LOCAL_WRITE";
        /// Local read and local write.
        LOCAL = 0x0003, "IT_PRIV_LOCAL";
        /// Source of incoming RDMA Reads.
        REMOTE_READ = 0x0004, "IT_PRIV_REMOTE_READ";
        /// Sink of incoming RDMA Writes.
        REMOTE_WRITE = 0x0008, "IT_PRIV_REMOTE_WRITE";
        /// Remote read and remote write.
        REMOTE = 0x000c, "IT_PRIV_REMOTE";
        /// Target of incoming atomic operations.
        ATOMIC = 0x0010, "IT_PRIV_ATOMIC";
        /// All privileges of the page.
        ALL = 0x001f, "IT_PRIV_ALL";
        /// Target of incoming atomic operations, which then need neither remote read nor remote
        /// write. An extension, for faces whose pages ask for the one privilege.
        ATOMIC_ALONE = 0x0100_0000;
    }

    /// Options of a local memory region. [`LmrFlags::NONE`] is a separate bit without effect.
    #[doc(alias = "it_lmr_flag_t")]
    #[derive(Default)]
    pub struct LmrFlags: u32 {
        /// No option.
        NONE = 0x0001, "IT_LMR_FLAG_NONE";
        /// The region shares translation resources with a matching region.
        SHARED = 0x0002, "IT_LMR_FLAG_SHARED";
        /// Non-coherent mode.
        NONCOHERENT = 0x0004, "IT_LMR_FLAG_NONCOHERENT";
        /// Other regions may not share its translation resources.
        NON_SHAREABLE = 0x0008, "IT_LMR_FLAG_NON_SHAREABLE";
    }

    /// Options of an event dispatcher.
    #[doc(alias = "it_evd_flags_t")]
    #[derive(Default)]
    pub struct EvdFlags: u32 {
        /// The aggregate event dispatcher returns notification events.
        DEQUEUE_NOTIFICATIONS = 0x01, "IT_EVD_DEQUEUE_NOTIFICATIONS";
        /// The event dispatcher gets a notification object.
        CREATE_FD = 0x02, "IT_EVD_CREATE_FD";
        /// Overflow behaviour: the stream's default.
        OVERFLOW_DEFAULT = 0x04, "IT_EVD_OVERFLOW_DEFAULT";
        /// An overflow makes an event on the asynchronous stream.
        OVERFLOW_NOTIFY = 0x08, "IT_EVD_OVERFLOW_NOTIFY";
        /// An overflow ends when the queue has room again.
        OVERFLOW_AUTO_RESET = 0x10, "IT_EVD_OVERFLOW_AUTO_RESET";
    }

    /// Options at the creation of an RC endpoint; none is `IT_EP_NO_FLAG`.
    #[doc(alias = "it_ep_rc_creation_flags_t")]
    #[derive(Default)]
    pub struct EpFlags: u32 {
        /// The endpoint may be in the TimeWait condition.
        REUSEADDR = 0x01, "IT_EP_REUSEADDR";
        /// Receives come from a shared receive queue.
        SRQ = 0x02, "IT_EP_SRQ";
    }

    /// Options of a listen point; none is `IT_LISTEN_NO_FLAG`.
    #[doc(alias = "it_listen_flags_t")]
    #[derive(Default)]
    pub struct ListenFlags: u32 {
        /// The caller names the connection qualifier.
        CONN_QUAL_INPUT = 0x0001, "IT_LISTEN_CONN_QUAL_INPUT";
        /// No IRD/ORD negotiation.
        SUPPRESS_IRD_ORD = 0x0002, "IT_LISTEN_SUPPRESS_IRD_ORD";
    }

    /// How a connection is to be established.
    #[doc(alias = "it_cn_est_flags_t")]
    #[derive(Default)]
    pub struct CnEstFlags: u32 {
        /// Established when the passive side accepts.
        TWO_WAY = 0x0001, "IT_CONNECT_FLAG_TWO_WAY";
        /// Established when the active side has also accepted.
        THREE_WAY = 0x0002, "IT_CONNECT_FLAG_THREE_WAY";
        /// No IRD/ORD negotiation.
        SUPPRESS_IRD_ORD = 0x0004, "IT_CONNECT_SUPPRESS_IRD_ORD";
    }

    /// Types of I/O buffer list that an IA supports.
    #[doc(alias = "it_iobl_type_t")]
    #[derive(Default)]
    pub struct IoblTypes: u32 {
        /// Equal pages.
        PAGE_LIST = 0x0001, "IT_IOBL_PAGE_LIST";
        /// Equal blocks.
        BLOCK_LIST = 0x0002, "IT_IOBL_BLOCK_LIST";
        /// Pages of different sizes.
        VE_PAGE_LIST = 0x0004, "IT_IOBL_VE_PAGE_LIST";
    }

    /// Types of RMR that an IA has.
    #[derive(Default)]
    pub struct RmrTypes: u32 {
        /// Narrow RMRs.
        NARROW = 1, "IT_RMR_TYPE_NARROW";
        /// Wide RMRs.
        WIDE = 2, "IT_RMR_TYPE_WIDE";
    }

    /// Types of connection qualifier that a spigot supports.
    #[doc(alias = "it_conn_qual_type_t")]
    #[derive(Default)]
    pub struct ConnQualTypes: u32 {
        /// TCP or UDP port number.
        IANA_PORT = 0x01, "IT_IANA_PORT";
        /// InfiniBand service ID.
        IB_SERVICEID = 0x02, "IT_IB_SERVICEID";
        /// VIA discriminator.
        VIA_DISCRIMINATOR = 0x04, "IT_VIA_DISCRIMINATOR";
        /// Local and remote port number.
        IANA_LR_PORT = 0x08, "IT_IANA_LR_PORT";
    }

    /// Transport services that an IA offers.
    #[doc(alias = "it_transport_service_type_t")]
    #[derive(Default)]
    pub struct ServiceTypes: u32 {
        /// Reliable connected.
        RC = 0x1, "IT_RC_SERVICE";
        /// Unreliable datagram.
        UD = 0x2, "IT_UD_SERVICE";
    }

    /// Properties of a received datagram, in its completion.
    #[doc(alias = "it_dto_ud_flags_t")]
    #[derive(Default)]
    pub struct DtoUdFlags: u16 {
        /// The first 40 bytes hold a GRH.
        IB_GRH_PRESENT = 0x01, "IT_UD_IB_GRH_PRESENT";
    }

    /// Parameters of an endpoint.
    #[doc(alias = "it_ep_param_mask_t")]
    #[derive(Default)]
    pub struct EpParamMask: u32 {
        /// All parameters.
        ALL = 0x0000_0001;
        /// `ia`
        IA = 0x0000_0002;
        /// `spigot_id`
        SPIGOT = 0x0000_0004;
        /// `ep_state`
        STATE = 0x0000_0008;
        /// `service_type`
        SERV_TYPE = 0x0000_0010;
        /// `dst_path`
        PATH = 0x0000_0020;
        /// `pz`
        PZ = 0x0000_0040;
        /// `request_sevd`
        REQ_SEVD = 0x0000_0080;
        /// `recv_sevd`
        RECV_SEVD = 0x0000_0100;
        /// `connect_sevd`
        CONN_SEVD = 0x0000_0200;
        /// `rdma_read_enable`
        RDMA_RD_ENABLE = 0x0000_0400;
        /// `rdma_write_enable`
        RDMA_WR_ENABLE = 0x0000_0800;
        /// `max_rdma_read_segments`
        MAX_RDMA_READ_SEG = 0x0000_1000;
        /// `max_rdma_write_segments`
        MAX_RDMA_WRITE_SEG = 0x0000_2000;
        /// `rdma_read_ird`
        MAX_IRD = 0x0000_4000;
        /// `rdma_read_ord`
        MAX_ORD = 0x0000_8000;
        /// `ud_ep_id`
        EP_ID = 0x0001_0000;
        /// `ud_ep_key`
        EP_KEY = 0x0002_0000;
        /// `max_dto_payload_size`
        MAX_PAYLOAD = 0x0004_0000;
        /// `max_request_dtos`
        MAX_REQ_DTO = 0x0008_0000;
        /// `max_recv_dtos`
        MAX_RECV_DTO = 0x0010_0000;
        /// `max_send_segments`
        MAX_SEND_SEG = 0x0020_0000;
        /// `max_recv_segments`
        MAX_RECV_SEG = 0x0040_0000;
        /// `srq`
        SRQ = 0x0080_0000;
        /// `soft_hi_watermark`
        SOFT_HI_WATERMARK = 0x0100_0000;
        /// `hard_hi_watermark`
        HARD_HI_WATERMARK = 0x0200_0000;
        /// `atomics_enable`
        ATOMICS_ENABLE = 0x0400_0000;
        /// `priv_ops_enable`
        PRIV_OPS_ENABLE = 0x0800_0000;
    }

    /// Parameters of an event dispatcher.
    #[doc(alias = "it_evd_param_mask_t")]
    #[derive(Default)]
    pub struct EvdParamMask: u32 {
        /// All parameters.
        ALL = 0x000001;
        /// `ia`
        IA = 0x000002;
        /// `event_number`
        EVENT_NUMBER = 0x000004;
        /// `evd_flag`
        FLAG = 0x000008;
        /// `sevd_queue_size`
        QUEUE_SIZE = 0x000010;
        /// `sevd_threshold`
        THRESHOLD = 0x000020;
        /// `aevd`
        AEVD_HANDLE = 0x000040;
        /// `fd`
        FD = 0x000080;
        /// `evd_bound`
        BOUND = 0x000100;
        /// `evd_enabled`
        ENABLED = 0x000200;
        /// `evd_overflowed`
        OVERFLOWED = 0x000400;
        /// `evd_callback`
        CALLBACK = 0x000800;
    }

    /// Parameters of a local memory region.
    #[doc(alias = "it_lmr_param_mask_t")]
    #[derive(Default)]
    pub struct LmrParamMask: u32 {
        /// All parameters.
        ALL = 0x000001;
        /// `ia`
        IA = 0x000002;
        /// `pz`
        PZ = 0x000004;
        /// `addr`
        ADDR = 0x000008;
        /// `length`
        LENGTH = 0x000010;
        /// `privs`
        MEM_PRIV = 0x000020;
        /// `flags`
        FLAG = 0x000040;
        /// `shared_id`
        SHARED_ID = 0x000080;
        /// `rmr_context`
        RMR_CONTEXT = 0x000100;
        /// `actual_addr`
        ACTUAL_ADDR = 0x000200;
        /// `actual_length`
        ACTUAL_LENGTH = 0x000400;
        /// `addr_mode`
        ADDR_MODE = 0x000800;
        /// `linked`
        LINKED = 0x001000;
        /// `iobl_num_elts`
        IOBL_NUM_ELTS = 0x002000;
        /// `iobl_type`
        IOBL_TYPE = 0x004000;
    }

    /// Parameters of a remote memory region.
    #[doc(alias = "it_rmr_param_mask_t")]
    #[derive(Default)]
    pub struct RmrParamMask: u32 {
        /// All parameters.
        ALL = 0x000001;
        /// `ia`
        IA = 0x000002;
        /// `pz`
        PZ = 0x000004;
        /// `linked`
        LINKED = 0x000008, "IT_RMR_PARAM_BOUND";
        /// `lmr`
        LMR = 0x000010;
        /// `addr`
        ADDR = 0x000020;
        /// `length`
        LENGTH = 0x000040;
        /// `privs`
        MEM_PRIV = 0x000080;
        /// `rmr_context`
        RMR_CONTEXT = 0x000100;
        /// `rmr_type`
        TYPE = 0x000200;
        /// `addr_mode`
        ADDR_MODE = 0x000400;
    }

    /// Parameters of a shared receive queue.
    #[doc(alias = "it_srq_param_mask_t")]
    #[derive(Default)]
    pub struct SrqParamMask: u32 {
        /// All parameters.
        ALL = 0x000001;
        /// `ia`
        IA = 0x000002;
        /// `pz`
        PZ = 0x000004;
        /// `max_recv_dtos`
        MAX_RECV_DTO = 0x000008;
        /// `max_recv_segs`
        MAX_RECV_SEG = 0x000010;
        /// `low_watermark`
        LOW_WATERMARK = 0x000020;
    }

    /// Parameters of a protection zone.
    #[doc(alias = "it_pz_param_mask_t")]
    #[derive(Default)]
    pub struct PzParamMask: u32 {
        /// All parameters.
        ALL = 0x01;
        /// `ia`
        IA = 0x02;
    }

    /// Parameters of a listen point.
    #[doc(alias = "it_listen_param_mask_t")]
    #[derive(Default)]
    pub struct ListenParamMask: u32 {
        /// All parameters.
        ALL = 0x0001;
        /// `ia`
        IA_HANDLE = 0x0002;
        /// `spigot_id`
        SPIGOT_ID = 0x0004;
        /// `connect_evd`
        CONNECT_EVD = 0x0008;
        /// `connect_qual`
        CONN_QUAL = 0x0010;
    }

    /// Options of an address handle's creation.
    #[doc(alias = "it_ah_flags_t")]
    #[derive(Default)]
    pub struct AhFlags: u32 {
        /// The path is complete; without this flag the IA chooses the missing members.
        PATH_COMPLETE = 0x1, "IT_AH_PATH_COMPLETE";
    }

    /// Parameters of an address handle.
    #[doc(alias = "it_addr_param_mask_t")]
    #[derive(Default)]
    pub struct AddrParamMask: u32 {
        /// All parameters.
        ALL = 0x0001;
        /// `ia`
        IA = 0x0002;
        /// `pz`
        PZ = 0x0004;
        /// `path`
        PATH = 0x0008;
    }

    /// Parameters of a UD service request handle.
    #[doc(alias = "it_ud_svc_req_param_mask_t")]
    #[derive(Default)]
    pub struct UdSvcReqParamMask: u32 {
        /// All parameters.
        ALL = 0x01;
        /// `ia`
        IA_HANDLE = 0x02;
        /// `request_id`
        REQ_ID = 0x04;
        /// `reply_evd`
        REPLY_EVD = 0x08;
        /// `conn_qual`
        CONN_QUAL = 0x10;
        /// `destination_path`
        DEST_PATH = 0x20;
        /// `private_data`
        PRIV_DATA = 0x40;
        /// `private_data_length`
        PRIV_DATA_LENGTH = 0x80;
    }

    /// Options of a socket's conversion; none is `IT_SC_DEFAULT`.
    #[doc(alias = "it_sc_flags_t")]
    #[derive(Default)]
    pub struct ScFlags: u32 {
        /// Without MPA startup.
        NO_REQ_REP = 0x0001, "IT_SC_NO_REQ_REP";
    }
}

//! The text of each error.

use super::Error;

impl Error {
    /// The name in the specification, and a text that names the argument and what is wrong with it.
    pub(super) const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Error::Abort => ("IT_ERR_ABORT", "the event dispatcher was destroyed while it was waited on"),
            Error::Access => {
                ("IT_ERR_ACCESS", "privs: the consumer may not have these privileges on the memory")
            }
            Error::Address => ("IT_ERR_ADDRESS", "addr: outside the local memory region"),
            Error::AevdNotAllowed => (
                "IT_ERR_AEVD_NOT_ALLOWED",
                "aevd_handle: must be null when an aggregate event dispatcher is created",
            ),
            Error::AsyncAffEvdExists => (
                "IT_ERR_ASYNC_AFF_EVD_EXISTS",
                "event_number: the affiliated asynchronous event dispatcher of this IA exists already",
            ),
            Error::AsyncUnaffEvdExists => (
                "IT_ERR_ASYNC_UNAFF_EVD_EXISTS",
                "event_number: the unaffiliated asynchronous event dispatcher of this IA exists already",
            ),
            Error::CallbackExists => ("IT_ERR_CALLBACK_EXISTS", "evd_handle: a callback routine is attached"),
            Error::CannotReset => (
                "IT_ERR_CANNOT_RESET",
                "ep_handle: one of its DTO event dispatchers overflowed; the endpoint can only be freed",
            ),
            Error::ConnQualBusy => {
                ("IT_ERR_CONN_QUAL_BUSY", "conn_qual: another consumer listens there already")
            }
            Error::EpBusy => (
                "IT_ERR_EP_BUSY",
                "ep_handle: a narrow RMR is still bound to the endpoint, or a batch has its send queue",
            ),
            Error::EpTimewait => {
                ("IT_ERR_EP_TIMEWAIT", "ep_handle: the endpoint is in the TimeWait condition with this peer")
            }
            Error::EvdBusy => {
                ("IT_ERR_EVD_BUSY", "evd_handle: event streams still feed the event dispatcher")
            }
            Error::EvdWait => ("IT_ERR_EVD_WAIT", "evd_handle: a thread waits on the event dispatcher"),
            Error::EvdQueueFull => ("IT_ERR_EVD_QUEUE_FULL", "evd_handle: the queue is full"),
            Error::Fault => ("IT_ERR_FAULT", "part or all of the address range is invalid"),
            Error::HardHiWatermark => {
                ("IT_ERR_HARD_HI_WATERMARK", "hard_hi_watermark: not supported by this IA, must be zero")
            }
            Error::IaCatastrophe => {
                ("IT_ERR_IA_CATASTROPHE", "the IA had a catastrophic error, and can only be freed")
            }
            Error::Interrupt => ("IT_ERR_INTERRUPT", "the wait was ended by a signal"),
            Error::InvalidAddrMode => ("IT_ERR_INVALID_ADDR_MODE", "addr_mode: invalid or not supported"),
            Error::InvalidAddress => ("IT_ERR_INVALID_ADDRESS", "net_addr: not an address of its type"),
            Error::InvalidAevd => {
                ("IT_ERR_INVALID_AEVD", "aevd_handle: not an aggregate event dispatcher of this IA")
            }
            Error::InvalidAh => {
                ("IT_ERR_INVALID_AH", "address handle: null, freed, foreign or of another type")
            }
            Error::InvalidAtimeout => {
                ("IT_ERR_INVALID_ATIMEOUT", "conn_attr.local_ack_timeout: out of range")
            }
            Error::InvalidAtomicOp => ("IT_ERR_INVALID_ATOMIC_OP", "op: no such atomic operation"),
            Error::InvalidCmRetry => ("IT_ERR_INVALID_CM_RETRY", "conn_attr.max_cm_retries: out of range"),
            Error::InvalidCnEstFlags => (
                "IT_ERR_INVALID_CN_EST_FLAGS",
                "cn_est_flags: undefined bits, or not exactly one of two-way and three-way",
            ),
            Error::InvalidCnEstId => (
                "IT_ERR_INVALID_CN_EST_ID",
                "cn_est_id: no pending connection establishment has this identifier",
            ),
            Error::InvalidConnEvd => {
                ("IT_ERR_INVALID_CONN_EVD", "connect_sevd_handle: null, freed, foreign or of another type")
            }
            Error::InvalidConnQual => {
                ("IT_ERR_INVALID_CONN_QUAL", "conn_qual: not a connection qualifier that this IA takes here")
            }
            Error::InvalidConversion => {
                ("IT_ERR_INVALID_CONVERSION", "addr_type: the address has no equivalent of this type")
            }
            Error::InvalidDtoFlags => (
                "IT_ERR_INVALID_DTO_FLAGS",
                "dto_flags: undefined bits, or a combination that this operation does not allow",
            ),
            Error::InvalidEp => ("IT_ERR_INVALID_EP", "ep_handle: null, freed, foreign or of another type"),
            Error::InvalidEpAttr => {
                ("IT_ERR_INVALID_EP_ATTR", "the attributes of the local and the remote endpoint conflict")
            }
            Error::InvalidEpKey => ("IT_ERR_INVALID_EP_KEY", "ud_ep_key: the consumer may not use this key"),
            Error::InvalidEpState => {
                ("IT_ERR_INVALID_EP_STATE", "ep_handle: the state of the endpoint does not allow this")
            }
            Error::InvalidEpType => {
                ("IT_ERR_INVALID_EP_TYPE", "ep_handle: the service type of the endpoint does not allow this")
            }
            Error::InvalidEvd => {
                ("IT_ERR_INVALID_EVD", "evd_handle: null, freed, foreign or of another type")
            }
            Error::InvalidEvdState => (
                "IT_ERR_INVALID_EVD_STATE",
                "evd_handle: the state of the event dispatcher does not allow this",
            ),
            Error::InvalidEvdType => (
                "IT_ERR_INVALID_EVD_TYPE",
                "the event dispatcher has another event stream than the call needs",
            ),
            Error::InvalidFlags => {
                ("IT_ERR_INVALID_FLAGS", "flags: undefined bits, or a combination that is not allowed")
            }
            Error::InvalidHandle => ("IT_ERR_INVALID_HANDLE", "handle: null, freed, foreign or of no type"),
            Error::InvalidIa => ("IT_ERR_INVALID_IA", "ia_handle: the IA was freed"),
            Error::InvalidIobl => (
                "IT_ERR_INVALID_IOBL",
                "iobl: type, number or length of elements, alignment or first-byte offset is wrong",
            ),
            Error::InvalidLength => {
                ("IT_ERR_INVALID_LENGTH", "length: zero, or more than the memory behind it")
            }
            Error::InvalidListen => {
                ("IT_ERR_INVALID_LISTEN", "listen_handle: null, freed, foreign or of another type")
            }
            Error::InvalidLmr => {
                ("IT_ERR_INVALID_LMR", "lmr_handle: null, freed, foreign or of another type")
            }
            Error::InvalidLtimeout => ("IT_ERR_INVALID_LTIMEOUT", "conn_attr.local_cm_timeout: out of range"),
            Error::InvalidMajorVersion => {
                ("IT_ERR_INVALID_MAJOR_VERSION", "major_version: not supported by this interface")
            }
            Error::InvalidMask => {
                ("IT_ERR_INVALID_MASK", "mask: undefined bits, or parameters that cannot be used here")
            }
            Error::InvalidMinorVersion => {
                ("IT_ERR_INVALID_MINOR_VERSION", "minor_version: not supported by this interface")
            }
            Error::InvalidName => ("IT_ERR_INVALID_NAME", "name: no such interface"),
            Error::InvalidNetaddr => {
                ("IT_ERR_INVALID_NETADDR", "net_addr: the type of address is not supported")
            }
            Error::InvalidNumSegments => (
                "IT_ERR_INVALID_NUM_SEGMENTS",
                "local_segments: more than the endpoint or shared receive queue takes",
            ),
            Error::InvalidPdataLength => {
                ("IT_ERR_INVALID_PDATA_LENGTH", "private_data: longer than this IA carries here")
            }
            Error::InvalidPrivs => (
                "IT_ERR_INVALID_PRIVS",
                "privs: undefined bits, none at all, or a combination that is not allowed",
            ),
            Error::InvalidPz => ("IT_ERR_INVALID_PZ", "pz_handle: null, freed, foreign or of another type"),
            Error::InvalidQueueSize => (
                "IT_ERR_INVALID_QUEUE_SIZE",
                "sevd_queue_size: less than the threshold or than the events queued",
            ),
            Error::InvalidRecvDto => (
                "IT_ERR_INVALID_RECV_DTO",
                "max_recv_dtos: cannot be modified on an endpoint with a shared receive queue",
            ),
            Error::InvalidRecvEvd => {
                ("IT_ERR_INVALID_RECV_EVD", "recv_sevd_handle: null, freed, foreign or of another type")
            }
            Error::InvalidRecvEvdState => {
                ("IT_ERR_INVALID_RECV_EVD_STATE", "recv_sevd_handle: the event dispatcher has overflowed")
            }
            Error::InvalidReqEvd => {
                ("IT_ERR_INVALID_REQ_EVD", "request_sevd_handle: null, freed, foreign or of another type")
            }
            Error::InvalidReqEvdState => {
                ("IT_ERR_INVALID_REQ_EVD_STATE", "request_sevd_handle: the event dispatcher has overflowed")
            }
            Error::InvalidRetry => ("IT_ERR_INVALID_RETRY", "conn_attr.retry_count: out of range"),
            Error::InvalidRmr => {
                ("IT_ERR_INVALID_RMR", "rmr_handle: null, freed, foreign or of another type")
            }
            Error::InvalidRnrRetry => ("IT_ERR_INVALID_RNR_RETRY", "conn_attr.rnr_retry_count: out of range"),
            Error::InvalidRmrType => ("IT_ERR_INVALID_RMR_TYPE", "rmr_type: not supported"),
            Error::InvalidRtimeout => {
                ("IT_ERR_INVALID_RTIMEOUT", "conn_attr.remote_cm_timeout: out of range")
            }
            Error::InvalidSoftEvd => {
                ("IT_ERR_INVALID_SOFT_EVD", "evd_handle: not an event dispatcher for software events")
            }
            Error::InvalidSourcePath => {
                ("IT_ERR_INVALID_SOURCE_PATH", "path: its local part does not name this IA")
            }
            Error::InvalidSpigot => ("IT_ERR_INVALID_SPIGOT", "spigot_id: no such spigot"),
            Error::InvalidSrq => (
                "IT_ERR_INVALID_SRQ",
                "srq_handle: null, freed or foreign, or the endpoint takes Receives from one",
            ),
            Error::InvalidSrqSize => ("IT_ERR_INVALID_SRQ_SIZE", "max_recv_dtos: less than what is posted"),
            Error::InvalidThreshold => {
                ("IT_ERR_INVALID_THRESHOLD", "sevd_threshold: more than the queue size")
            }
            Error::InvalidUdStatus => ("IT_ERR_INVALID_UD_STATUS", "status: not a status for a reply"),
            Error::InvalidUdSvc => {
                ("IT_ERR_INVALID_UD_SVC", "ud_svc_handle: null, freed, foreign or of another type")
            }
            Error::InvalidUdSvcReqId => (
                "IT_ERR_INVALID_UD_SVC_REQ_ID",
                "ud_svc_req_id: no pending service request has this identifier",
            ),
            Error::InvalidWatermark => {
                ("IT_ERR_INVALID_WATERMARK", "watermark: more than the shared receive queue holds, or zero")
            }
            Error::LmrBusy => ("IT_ERR_LMR_BUSY", "lmr_handle: an RMR is linked to the region"),
            Error::MismatchFd => (
                "IT_ERR_MISMATCH_FD",
                "flags: a notification object and an aggregate event dispatcher exclude each other",
            ),
            Error::NoContext => ("IT_ERR_NO_CONTEXT", "handle: no context was ever set"),
            Error::NoPermission => {
                ("IT_ERR_NO_PERMISSION", "the consumer is not privileged, or may not do this")
            }
            Error::OpNotSupported => ("IT_ERR_OP_NOT_SUPPORTED", "this IA does not support the operation"),
            Error::PayloadSize => {
                ("IT_ERR_PAYLOAD_SIZE", "max_dto_payload_size: more than the transport carries")
            }
            Error::PdataNotSupported => {
                ("IT_ERR_PDATA_NOT_SUPPORTED", "private_data: not supported by this IA")
            }
            Error::PrivOpsUnavailable => {
                ("IT_ERR_PRIV_OPS_UNAVAILABLE", "this IA has no privileged mode operations")
            }
            Error::PzBusy => ("IT_ERR_PZ_BUSY", "pz_handle: objects still use the protection zone"),
            Error::QueueEmpty => ("IT_ERR_QUEUE_EMPTY", "evd_handle: no event is queued"),
            Error::Range => ("IT_ERR_RANGE", "local_segments: outside the local memory region"),
            Error::Resources => ("IT_ERR_RESOURCES", "resources are exhausted"),
            Error::ResourceIrd => ("IT_ERR_RESOURCE_IRD", "rdma_read_ird: more than the IA can give"),
            Error::ResourceLmrLength => ("IT_ERR_RESOURCE_LMR_LENGTH", "length: more than the IA can give"),
            Error::ResourceOrd => ("IT_ERR_RESOURCE_ORD", "rdma_read_ord: more than the IA can give"),
            Error::ResourceQueueSize => {
                ("IT_ERR_RESOURCE_QUEUE_SIZE", "sevd_queue_size: more than the IA can give")
            }
            Error::ResourceRecvDto => {
                ("IT_ERR_RESOURCE_RECV_DTO", "max_recv_dtos: more than the IA can give")
            }
            Error::ResourceReqDto => {
                ("IT_ERR_RESOURCE_REQ_DTO", "max_request_dtos: more than the IA can give")
            }
            Error::ResourceRrseg => {
                ("IT_ERR_RESOURCE_RRSEG", "max_rdma_read_segments: more than the IA can give")
            }
            Error::ResourceRseg => ("IT_ERR_RESOURCE_RSEG", "max_recv_segments: more than the IA can give"),
            Error::ResourceRwseg => {
                ("IT_ERR_RESOURCE_RWSEG", "max_rdma_write_segments: more than the IA can give")
            }
            Error::ResourceSseg => ("IT_ERR_RESOURCE_SSEG", "max_send_segments: more than the IA can give"),
            Error::SoftHiWatermark => {
                ("IT_ERR_SOFT_HI_WATERMARK", "soft_hi_watermark: not supported by this IA, must be zero")
            }
            Error::SrqBusy => ("IT_ERR_SRQ_BUSY", "srq_handle: endpoints still use the shared receive queue"),
            Error::SrqLowWatermark => {
                ("IT_ERR_SRQ_LOW_WATERMARK", "low_watermark: more than the shared receive queue holds")
            }
            Error::SrqNotSupported => ("IT_ERR_SRQ_NOT_SUPPORTED", "this IA has no shared receive queues"),
            Error::TimeoutExpired => ("IT_ERR_TIMEOUT_EXPIRED", "timeout: it passed first"),
            Error::TooManyPosts => ("IT_ERR_TOO_MANY_POSTS", "ep_handle: the work queue is full"),
            Error::WaiterLimit => ("IT_ERR_WAITER_LIMIT", "evd_handle: no more waiters are permitted"),
            Error::InvalidIanaLrPort => {
                ("IT_ERR_INVALID_IANA_LR_PORT", "connect_qual: the local port is in use")
            }
            Error::InvalidSd => ("IT_ERR_INVALID_SD", "sd: not a socket"),
            Error::InvalidSdState => {
                ("IT_ERR_INVALID_SD_STATE", "sd: the state of the socket does not allow this")
            }
            Error::ResourceIoblLength => {
                ("IT_ERR_RESOURCE_IOBL_LENGTH", "iobl_num_elts: more than the IA can give")
            }
            Error::CallbackContext => {
                ("IT_ERR_CALLBACK_CONTEXT", "the call may not be made from a callback routine")
            }
        }
    }
}

//! The immediate errors of all calls (page it_status_t; `IT_SUCCESS` is `Ok`).
//!
//! The numbers are those of the sample header (appendix G). Codes that pages return but that the
//! header lacks, and our own [`Error::CallbackContext`], follow after its last value.

rdma::enumeration! {
    /// The error of a call that failed at once. The first line of each is its message, which names
    /// the argument and what is wrong with it.
    #[doc(alias = "it_status_t")]
    pub enum Error: u32 {
        /// the event dispatcher was destroyed while it was waited on
        Abort = 1, "IT_ERR_ABORT";
        /// privs: the consumer may not have these privileges on the memory
        Access = 2, "IT_ERR_ACCESS";
        /// addr: outside the local memory region
        Address = 3, "IT_ERR_ADDRESS";
        /// aevd_handle: must be null when an aggregate event dispatcher is created
        AevdNotAllowed = 4, "IT_ERR_AEVD_NOT_ALLOWED";
        /// event_number: the affiliated asynchronous event dispatcher of this IA exists already
        AsyncAffEvdExists = 5, "IT_ERR_ASYNC_AFF_EVD_EXISTS";
        /// event_number: the unaffiliated asynchronous event dispatcher of this IA exists already
        AsyncUnaffEvdExists = 6, "IT_ERR_ASYNC_UNAFF_EVD_EXISTS";
        /// evd_handle: a callback routine is attached
        CallbackExists = 7, "IT_ERR_CALLBACK_EXISTS";
        /// ep_handle: one of its DTO event dispatchers overflowed; the endpoint can only be freed
        CannotReset = 8, "IT_ERR_CANNOT_RESET";
        /// conn_qual: another consumer listens there already
        ConnQualBusy = 9, "IT_ERR_CONN_QUAL_BUSY";
        /// ep_handle: a narrow RMR is still bound to the endpoint, or a batch has its send queue
        EpBusy = 10, "IT_ERR_EP_BUSY";
        /// ep_handle: the endpoint is in the TimeWait condition with this peer
        ///
        /// Never returned: a reset gives the endpoint another queue pair, so no consumer sees
        /// TimeWait.
        EpTimewait = 11, "IT_ERR_EP_TIMEWAIT";
        /// evd_handle: event streams still feed the event dispatcher
        EvdBusy = 12, "IT_ERR_EVD_BUSY";
        /// evd_handle: a thread waits on the event dispatcher
        EvdWait = 13, "IT_ERR_EVD_WAIT";
        /// evd_handle: the queue is full
        EvdQueueFull = 14, "IT_ERR_EVD_QUEUE_FULL";
        /// part or all of the address range is invalid
        Fault = 15, "IT_ERR_FAULT";
        /// hard_hi_watermark: not supported by this IA, must be zero
        HardHiWatermark = 16, "IT_ERR_HARD_HI_WATERMARK";
        /// the IA had a catastrophic error, and can only be freed
        IaCatastrophe = 17, "IT_ERR_IA_CATASTROPHE";
        /// the wait was ended by a signal
        ///
        /// Never returned: there are no signals in a kernel.
        Interrupt = 18, "IT_ERR_INTERRUPT";
        /// addr_mode: invalid or not supported
        InvalidAddrMode = 19, "IT_ERR_INVALID_ADDR_MODE";
        /// net_addr: not an address of its type
        InvalidAddress = 20, "IT_ERR_INVALID_ADDRESS";
        /// aevd_handle: not an aggregate event dispatcher of this IA
        InvalidAevd = 21, "IT_ERR_INVALID_AEVD";
        /// address handle: null, freed, foreign or of another type
        InvalidAh = 22, "IT_ERR_INVALID_AH";
        /// conn_attr.local_ack_timeout: out of range
        ///
        /// Page it_ep_connect and the sample header name it `IT_ERR_INVALID_ETIMEOUT`
        /// ([`Error::INVALID_ETIMEOUT`]); the value is the same.
        InvalidAtimeout = 23, "IT_ERR_INVALID_ATIMEOUT";
        /// op: no such atomic operation
        ///
        /// Never returned: [`AtomicOp`](crate::AtomicOp) has no other values.
        InvalidAtomicOp = 24, "IT_ERR_INVALID_ATOMIC_OP";
        /// conn_attr.max_cm_retries: out of range
        InvalidCmRetry = 25, "IT_ERR_INVALID_CM_RETRY";
        /// cn_est_flags: undefined bits, or not exactly one of two-way and three-way
        InvalidCnEstFlags = 26, "IT_ERR_INVALID_CN_EST_FLAGS";
        /// cn_est_id: no pending connection establishment has this identifier
        InvalidCnEstId = 27, "IT_ERR_INVALID_CN_EST_ID";
        /// connect_sevd_handle: null, freed, foreign or of another type
        InvalidConnEvd = 28, "IT_ERR_INVALID_CONN_EVD";
        /// conn_qual: not a connection qualifier that this IA takes here
        InvalidConnQual = 29, "IT_ERR_INVALID_CONN_QUAL";
        /// addr_type: the address has no equivalent of this type
        InvalidConversion = 30, "IT_ERR_INVALID_CONVERSION";
        /// dto_flags: undefined bits, or a combination that this operation does not allow
        InvalidDtoFlags = 31, "IT_ERR_INVALID_DTO_FLAGS";
        /// ep_handle: null, freed, foreign or of another type
        InvalidEp = 32, "IT_ERR_INVALID_EP";
        /// the attributes of the local and the remote endpoint conflict
        InvalidEpAttr = 33, "IT_ERR_INVALID_EP_ATTR";
        /// ud_ep_key: the consumer may not use this key
        InvalidEpKey = 34, "IT_ERR_INVALID_EP_KEY";
        /// ep_handle: the state of the endpoint does not allow this
        InvalidEpState = 35, "IT_ERR_INVALID_EP_STATE";
        /// ep_handle: the service type of the endpoint does not allow this
        InvalidEpType = 36, "IT_ERR_INVALID_EP_TYPE";
        /// evd_handle: null, freed, foreign or of another type
        InvalidEvd = 37, "IT_ERR_INVALID_EVD";
        /// evd_handle: the state of the event dispatcher does not allow this
        InvalidEvdState = 38, "IT_ERR_INVALID_EVD_STATE";
        /// the event dispatcher has another event stream than the call needs
        InvalidEvdType = 39, "IT_ERR_INVALID_EVD_TYPE";
        /// flags: undefined bits, or a combination that is not allowed
        InvalidFlags = 40, "IT_ERR_INVALID_FLAGS";
        /// handle: null, freed, foreign or of no type
        InvalidHandle = 41, "IT_ERR_INVALID_HANDLE";
        /// ia_handle: the IA was freed
        InvalidIa = 42, "IT_ERR_INVALID_IA";
        /// iobl: type, number or length of elements, alignment or first-byte offset is wrong
        InvalidIobl = 43, "IT_ERR_INVALID_IOBL";
        /// length: zero, or more than the memory behind it
        InvalidLength = 44, "IT_ERR_INVALID_LENGTH";
        /// listen_handle: null, freed, foreign or of another type
        InvalidListen = 45, "IT_ERR_INVALID_LISTEN";
        /// lmr_handle: null, freed, foreign or of another type
        InvalidLmr = 46, "IT_ERR_INVALID_LMR";
        /// conn_attr.local_cm_timeout: out of range
        InvalidLtimeout = 47, "IT_ERR_INVALID_LTIMEOUT";
        /// major_version: not supported by this interface
        InvalidMajorVersion = 48, "IT_ERR_INVALID_MAJOR_VERSION";
        /// mask: undefined bits, or parameters that cannot be used here
        InvalidMask = 49, "IT_ERR_INVALID_MASK";
        /// minor_version: not supported by this interface
        InvalidMinorVersion = 50, "IT_ERR_INVALID_MINOR_VERSION";
        /// name: no such interface
        InvalidName = 51, "IT_ERR_INVALID_NAME";
        /// net_addr: the type of address is not supported
        InvalidNetaddr = 52, "IT_ERR_INVALID_NETADDR";
        /// local_segments: more than the endpoint or shared receive queue takes
        InvalidNumSegments = 53, "IT_ERR_INVALID_NUM_SEGMENTS";
        /// private_data: longer than this IA carries here
        InvalidPdataLength = 54, "IT_ERR_INVALID_PDATA_LENGTH";
        /// privs: undefined bits, none at all, or a combination that is not allowed
        InvalidPrivs = 55, "IT_ERR_INVALID_PRIVS";
        /// pz_handle: null, freed, foreign or of another type
        InvalidPz = 56, "IT_ERR_INVALID_PZ";
        /// sevd_queue_size: less than the threshold or than the events queued
        InvalidQueueSize = 57, "IT_ERR_INVALID_QUEUE_SIZE";
        /// max_recv_dtos: cannot be modified on an endpoint with a shared receive queue
        InvalidRecvDto = 58, "IT_ERR_INVALID_RECV_DTO";
        /// recv_sevd_handle: null, freed, foreign or of another type
        InvalidRecvEvd = 59, "IT_ERR_INVALID_RECV_EVD";
        /// recv_sevd_handle: the event dispatcher has overflowed
        InvalidRecvEvdState = 60, "IT_ERR_INVALID_RECV_EVD_STATE";
        /// request_sevd_handle: null, freed, foreign or of another type
        InvalidReqEvd = 61, "IT_ERR_INVALID_REQ_EVD";
        /// request_sevd_handle: the event dispatcher has overflowed
        InvalidReqEvdState = 62, "IT_ERR_INVALID_REQ_EVD_STATE";
        /// conn_attr.retry_count: out of range
        InvalidRetry = 63, "IT_ERR_INVALID_RETRY";
        /// rmr_handle: null, freed, foreign or of another type
        InvalidRmr = 64, "IT_ERR_INVALID_RMR";
        /// conn_attr.rnr_retry_count: out of range
        InvalidRnrRetry = 65, "IT_ERR_INVALID_RNR_RETRY";
        /// rmr_type: not supported
        InvalidRmrType = 66, "IT_ERR_INVALID_RMR_TYPE";
        /// conn_attr.remote_cm_timeout: out of range
        InvalidRtimeout = 67, "IT_ERR_INVALID_RTIMEOUT";
        /// evd_handle: not an event dispatcher for software events
        InvalidSoftEvd = 68, "IT_ERR_INVALID_SOFT_EVD";
        /// path: its local part does not name this IA
        InvalidSourcePath = 69, "IT_ERR_INVALID_SOURCE_PATH";
        /// spigot_id: no such spigot
        InvalidSpigot = 70, "IT_ERR_INVALID_SPIGOT";
        /// srq_handle: null, freed or foreign, or the endpoint takes Receives from one
        InvalidSrq = 71, "IT_ERR_INVALID_SRQ";
        /// max_recv_dtos: less than what is posted
        InvalidSrqSize = 72, "IT_ERR_INVALID_SRQ_SIZE";
        /// sevd_threshold: more than the queue size
        InvalidThreshold = 73, "IT_ERR_INVALID_THRESHOLD";
        /// status: not a status for a reply
        InvalidUdStatus = 74, "IT_ERR_INVALID_UD_STATUS";
        /// ud_svc_handle: null, freed, foreign or of another type
        InvalidUdSvc = 75, "IT_ERR_INVALID_UD_SVC";
        /// ud_svc_req_id: no pending service request has this identifier
        InvalidUdSvcReqId = 76, "IT_ERR_INVALID_UD_SVC_REQ_ID";
        /// watermark: more than the shared receive queue holds, or zero
        ///
        /// Never returned: InfiniBand has no high watermarks of endpoints, and
        /// [`Error::SoftHiWatermark`] and [`Error::HardHiWatermark`] refuse them.
        InvalidWatermark = 77, "IT_ERR_INVALID_WATERMARK";
        /// lmr_handle: an RMR is linked to the region
        LmrBusy = 78, "IT_ERR_LMR_BUSY";
        /// flags: a notification object and an aggregate event dispatcher exclude each other
        MismatchFd = 79, "IT_ERR_MISMATCH_FD";
        /// handle: no context was ever set
        NoContext = 80, "IT_ERR_NO_CONTEXT";
        /// the consumer is not privileged, or may not do this
        ///
        /// The pages it_address_handle_create, it_address_handle_modify and it_ep_connect list it,
        /// but these calls never return it: any consumer may reach any address.
        NoPermission = 81, "IT_ERR_NO_PERMISSION";
        /// this IA does not support the operation
        OpNotSupported = 82, "IT_ERR_OP_NOT_SUPPORTED";
        /// max_dto_payload_size: more than the transport carries
        PayloadSize = 83, "IT_ERR_PAYLOAD_SIZE";
        /// private_data: not supported by this IA
        ///
        /// Never returned: every IA supports private data.
        PdataNotSupported = 84, "IT_ERR_PDATA_NOT_SUPPORTED";
        /// this IA has no privileged mode operations
        PrivOpsUnavailable = 85, "IT_ERR_PRIV_OPS_UNAVAILABLE";
        /// pz_handle: objects still use the protection zone
        PzBusy = 86, "IT_ERR_PZ_BUSY";
        /// evd_handle: no event is queued
        QueueEmpty = 87, "IT_ERR_QUEUE_EMPTY";
        /// local_segments: outside the local memory region
        Range = 88, "IT_ERR_RANGE";
        /// resources are exhausted
        Resources = 89, "IT_ERR_RESOURCES";
        /// rdma_read_ird: more than the IA can give
        ResourceIrd = 90, "IT_ERR_RESOURCE_IRD";
        /// length: more than the IA can give
        ///
        /// or memory in more extents than a region's list can have.
        ResourceLmrLength = 91, "IT_ERR_RESOURCE_LMR_LENGTH";
        /// rdma_read_ord: more than the IA can give
        ResourceOrd = 92, "IT_ERR_RESOURCE_ORD";
        /// sevd_queue_size: more than the IA can give
        ResourceQueueSize = 93, "IT_ERR_RESOURCE_QUEUE_SIZE";
        /// max_recv_dtos: more than the IA can give
        ResourceRecvDto = 94, "IT_ERR_RESOURCE_RECV_DTO";
        /// max_request_dtos: more than the IA can give
        ResourceReqDto = 95, "IT_ERR_RESOURCE_REQ_DTO";
        /// max_rdma_read_segments: more than the IA can give
        ResourceRrseg = 96, "IT_ERR_RESOURCE_RRSEG";
        /// max_recv_segments: more than the IA can give
        ResourceRseg = 97, "IT_ERR_RESOURCE_RSEG";
        /// max_rdma_write_segments: more than the IA can give
        ResourceRwseg = 98, "IT_ERR_RESOURCE_RWSEG";
        /// max_send_segments: more than the IA can give
        ResourceSseg = 99, "IT_ERR_RESOURCE_SSEG";
        /// soft_hi_watermark: not supported by this IA, must be zero
        SoftHiWatermark = 100, "IT_ERR_SOFT_HI_WATERMARK";
        /// srq_handle: endpoints still use the shared receive queue
        SrqBusy = 101, "IT_ERR_SRQ_BUSY";
        /// low_watermark: more than the shared receive queue holds
        SrqLowWatermark = 102, "IT_ERR_SRQ_LOW_WATERMARK";
        /// this IA has no shared receive queues
        SrqNotSupported = 103, "IT_ERR_SRQ_NOT_SUPPORTED";
        /// timeout: it passed first
        TimeoutExpired = 104, "IT_ERR_TIMEOUT_EXPIRED";
        /// ep_handle: the work queue is full
        TooManyPosts = 105, "IT_ERR_TOO_MANY_POSTS";
        /// evd_handle: no more waiters are permitted
        WaiterLimit = 106, "IT_ERR_WAITER_LIMIT";
        /// connect_qual: the local port is in use
        ///
        /// For iWARP: elsewhere [`Error::InvalidConnQual`] refuses a qualifier with a local port.
        InvalidIanaLrPort = 107, "IT_ERR_INVALID_IANA_LR_PORT";
        /// sd: not a socket
        InvalidSd = 108, "IT_ERR_INVALID_SD";
        /// sd: the state of the socket does not allow this
        InvalidSdState = 109, "IT_ERR_INVALID_SD_STATE";
        /// iobl_num_elts: more than the IA can give
        ResourceIoblLength = 110, "IT_ERR_RESOURCE_IOBL_LENGTH";
        /// the call may not be made from a callback routine
        CallbackContext = 111, "IT_ERR_CALLBACK_CONTEXT";
    }
}

impl Error {
    /// The name that page it_ep_connect and the sample header have for
    /// [`Error::InvalidAtimeout`].
    #[doc(alias = "IT_ERR_INVALID_ETIMEOUT")]
    pub const INVALID_ETIMEOUT: Error = Error::InvalidAtimeout;
}

rdma::common_errors! {
    Error: out of resources Error::Resources, disabled Error::IaCatastrophe, freed Error::InvalidIa
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.name(), self.text())
    }
}

impl core::error::Error for Error {}

/// What every call returns.
pub type Result<T, E = Error> = core::result::Result<T, E>;

#[cfg(test)]
mod tests {
    extern crate std;
    use super::Error;
    use std::string::ToString;

    #[test]
    fn values_are_those_of_the_header() {
        assert_eq!(Error::Abort.as_raw(), 1);
        assert_eq!(Error::EpTimewait.as_raw(), 11);
        assert_eq!(Error::InvalidAtimeout.as_raw(), 23);
        assert_eq!(Error::WaiterLimit.as_raw(), 106);
        assert_eq!(Error::InvalidIanaLrPort.as_raw(), 107);
        assert_eq!(Error::CallbackContext.as_raw(), 111);
    }

    #[test]
    fn text_names_the_code_and_the_argument() {
        let text = Error::InvalidPz.to_string();
        assert!(text.starts_with("IT_ERR_INVALID_PZ: pz_handle"), "{text}");
        assert_eq!(Error::InvalidPz.name(), "IT_ERR_INVALID_PZ");
        assert_eq!(Error::from(rdma::OutOfResources), Error::Resources);
        let failure = crate::WaitError { error: Error::InvalidPz, nmore: 3 };
        assert_eq!(failure.to_string(), std::format!("{text} (3 events are queued)"));
    }
}

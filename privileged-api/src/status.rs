//! The immediate errors of all calls (page it_status_t; `IT_SUCCESS` is `Ok`).
//!
//! The numbers are those of the sample header (appendix G). Codes that pages return but that the
//! header lacks, and our own [`Error::CallbackContext`], follow after its last value.

use rdma::{Ended, OutOfResources};

mod texts;

/// The error of a call that failed at once: the argument, and what is wrong with it.
#[doc(alias = "it_status_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Error {
    /// The event dispatcher was destroyed while it was waited on.
    #[doc(alias = "IT_ERR_ABORT")]
    Abort = 1,
    /// Privs: the consumer may not have these privileges on the memory.
    #[doc(alias = "IT_ERR_ACCESS")]
    Access = 2,
    /// Addr: outside the local memory region.
    #[doc(alias = "IT_ERR_ADDRESS")]
    Address = 3,
    /// Aevd_handle: must be null when an aggregate event dispatcher is created.
    #[doc(alias = "IT_ERR_AEVD_NOT_ALLOWED")]
    AevdNotAllowed = 4,
    /// Event_number: the affiliated asynchronous event dispatcher of this IA exists already.
    #[doc(alias = "IT_ERR_ASYNC_AFF_EVD_EXISTS")]
    AsyncAffEvdExists = 5,
    /// Event_number: the unaffiliated asynchronous event dispatcher of this IA exists already.
    #[doc(alias = "IT_ERR_ASYNC_UNAFF_EVD_EXISTS")]
    AsyncUnaffEvdExists = 6,
    /// Evd_handle: a callback routine is attached.
    #[doc(alias = "IT_ERR_CALLBACK_EXISTS")]
    CallbackExists = 7,
    /// Ep_handle: one of its DTO event dispatchers overflowed; the endpoint can only be freed.
    #[doc(alias = "IT_ERR_CANNOT_RESET")]
    CannotReset = 8,
    /// Conn_qual: another consumer listens there already.
    #[doc(alias = "IT_ERR_CONN_QUAL_BUSY")]
    ConnQualBusy = 9,
    /// Ep_handle: a narrow RMR is still bound to the endpoint, or a batch has its send queue for
    /// itself.
    #[doc(alias = "IT_ERR_EP_BUSY")]
    EpBusy = 10,
    /// Ep_handle: the endpoint is in the TimeWait condition with this peer. Never returned: a reset
    /// gives the endpoint another queue pair, so no consumer sees TimeWait.
    #[doc(alias = "IT_ERR_EP_TIMEWAIT")]
    EpTimewait = 11,
    /// Evd_handle: event streams still feed the event dispatcher.
    #[doc(alias = "IT_ERR_EVD_BUSY")]
    EvdBusy = 12,
    /// Evd_handle: a thread waits on the event dispatcher.
    #[doc(alias = "IT_ERR_EVD_WAIT")]
    EvdWait = 13,
    /// Evd_handle: the queue is full.
    #[doc(alias = "IT_ERR_EVD_QUEUE_FULL")]
    EvdQueueFull = 14,
    /// Part or all of the address range is invalid.
    #[doc(alias = "IT_ERR_FAULT")]
    Fault = 15,
    /// Hard_hi_watermark: not supported by this IA, must be zero.
    #[doc(alias = "IT_ERR_HARD_HI_WATERMARK")]
    HardHiWatermark = 16,
    /// The IA had a catastrophic error, and can only be freed.
    #[doc(alias = "IT_ERR_IA_CATASTROPHE")]
    IaCatastrophe = 17,
    /// The wait was ended by a signal. Never returned: there are no signals in a kernel.
    #[doc(alias = "IT_ERR_INTERRUPT")]
    Interrupt = 18,
    /// Addr_mode: invalid or not supported.
    #[doc(alias = "IT_ERR_INVALID_ADDR_MODE")]
    InvalidAddrMode = 19,
    /// Net_addr: not an address of its type.
    #[doc(alias = "IT_ERR_INVALID_ADDRESS")]
    InvalidAddress = 20,
    /// Aevd_handle: not an aggregate event dispatcher of this IA.
    #[doc(alias = "IT_ERR_INVALID_AEVD")]
    InvalidAevd = 21,
    /// Address handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_AH")]
    InvalidAh = 22,
    /// Conn_attr.local_ack_timeout: out of range. Page it_ep_connect and the sample header name it
    /// `IT_ERR_INVALID_ETIMEOUT` ([`Error::INVALID_ETIMEOUT`]); the value is the same.
    #[doc(alias = "IT_ERR_INVALID_ATIMEOUT")]
    InvalidAtimeout = 23,
    /// Op: no such atomic operation. Never returned: [`AtomicOp`](crate::AtomicOp) has no other values.
    #[doc(alias = "IT_ERR_INVALID_ATOMIC_OP")]
    InvalidAtomicOp = 24,
    /// Conn_attr.max_cm_retries: out of range.
    #[doc(alias = "IT_ERR_INVALID_CM_RETRY")]
    InvalidCmRetry = 25,
    /// Cn_est_flags: undefined bits, or not exactly one of two-way and three-way.
    #[doc(alias = "IT_ERR_INVALID_CN_EST_FLAGS")]
    InvalidCnEstFlags = 26,
    /// Cn_est_id: no pending connection establishment has this identifier.
    #[doc(alias = "IT_ERR_INVALID_CN_EST_ID")]
    InvalidCnEstId = 27,
    /// Connect_sevd_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_CONN_EVD")]
    InvalidConnEvd = 28,
    /// Conn_qual: not a connection qualifier that this IA takes here.
    #[doc(alias = "IT_ERR_INVALID_CONN_QUAL")]
    InvalidConnQual = 29,
    /// Addr_type: the address has no equivalent of this type.
    #[doc(alias = "IT_ERR_INVALID_CONVERSION")]
    InvalidConversion = 30,
    /// Dto_flags: undefined bits, or a combination that this operation does not allow.
    #[doc(alias = "IT_ERR_INVALID_DTO_FLAGS")]
    InvalidDtoFlags = 31,
    /// Ep_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_EP")]
    InvalidEp = 32,
    /// The attributes of the local and the remote endpoint conflict.
    #[doc(alias = "IT_ERR_INVALID_EP_ATTR")]
    InvalidEpAttr = 33,
    /// Ud_ep_key: the consumer may not use this key.
    #[doc(alias = "IT_ERR_INVALID_EP_KEY")]
    InvalidEpKey = 34,
    /// Ep_handle: the state of the endpoint does not allow this.
    #[doc(alias = "IT_ERR_INVALID_EP_STATE")]
    InvalidEpState = 35,
    /// Ep_handle: the service type of the endpoint does not allow this.
    #[doc(alias = "IT_ERR_INVALID_EP_TYPE")]
    InvalidEpType = 36,
    /// Evd_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_EVD")]
    InvalidEvd = 37,
    /// Evd_handle: the state of the event dispatcher does not allow this.
    #[doc(alias = "IT_ERR_INVALID_EVD_STATE")]
    InvalidEvdState = 38,
    /// The event dispatcher has another event stream than the call needs.
    #[doc(alias = "IT_ERR_INVALID_EVD_TYPE")]
    InvalidEvdType = 39,
    /// Flags: undefined bits, or a combination that is not allowed.
    #[doc(alias = "IT_ERR_INVALID_FLAGS")]
    InvalidFlags = 40,
    /// Handle: null, freed, foreign or of no type.
    #[doc(alias = "IT_ERR_INVALID_HANDLE")]
    InvalidHandle = 41,
    /// Ia_handle: the IA was freed.
    #[doc(alias = "IT_ERR_INVALID_IA")]
    InvalidIa = 42,
    /// Iobl: type, number or length of elements, alignment or first-byte offset is wrong.
    #[doc(alias = "IT_ERR_INVALID_IOBL")]
    InvalidIobl = 43,
    /// Length: zero, or more than the memory behind it.
    #[doc(alias = "IT_ERR_INVALID_LENGTH")]
    InvalidLength = 44,
    /// Listen_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_LISTEN")]
    InvalidListen = 45,
    /// Lmr_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_LMR")]
    InvalidLmr = 46,
    /// Conn_attr.local_cm_timeout: out of range.
    #[doc(alias = "IT_ERR_INVALID_LTIMEOUT")]
    InvalidLtimeout = 47,
    /// Major_version: not supported by this interface.
    #[doc(alias = "IT_ERR_INVALID_MAJOR_VERSION")]
    InvalidMajorVersion = 48,
    /// Mask: undefined bits, or parameters that cannot be used here.
    #[doc(alias = "IT_ERR_INVALID_MASK")]
    InvalidMask = 49,
    /// Minor_version: not supported by this interface.
    #[doc(alias = "IT_ERR_INVALID_MINOR_VERSION")]
    InvalidMinorVersion = 50,
    /// Name: no such interface.
    #[doc(alias = "IT_ERR_INVALID_NAME")]
    InvalidName = 51,
    /// Net_addr: the type of address is not supported.
    #[doc(alias = "IT_ERR_INVALID_NETADDR")]
    InvalidNetaddr = 52,
    /// Local_segments: more than the endpoint or shared receive queue takes.
    #[doc(alias = "IT_ERR_INVALID_NUM_SEGMENTS")]
    InvalidNumSegments = 53,
    /// Private_data: longer than this IA carries here.
    #[doc(alias = "IT_ERR_INVALID_PDATA_LENGTH")]
    InvalidPdataLength = 54,
    /// Privs: undefined bits, none at all, or a combination that is not allowed.
    #[doc(alias = "IT_ERR_INVALID_PRIVS")]
    InvalidPrivs = 55,
    /// Pz_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_PZ")]
    InvalidPz = 56,
    /// Sevd_queue_size: less than the threshold or than the events queued.
    #[doc(alias = "IT_ERR_INVALID_QUEUE_SIZE")]
    InvalidQueueSize = 57,
    /// Max_recv_dtos: cannot be modified on an endpoint with a shared receive queue.
    #[doc(alias = "IT_ERR_INVALID_RECV_DTO")]
    InvalidRecvDto = 58,
    /// Recv_sevd_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_RECV_EVD")]
    InvalidRecvEvd = 59,
    /// Recv_sevd_handle: the event dispatcher has overflowed.
    #[doc(alias = "IT_ERR_INVALID_RECV_EVD_STATE")]
    InvalidRecvEvdState = 60,
    /// Request_sevd_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_REQ_EVD")]
    InvalidReqEvd = 61,
    /// Request_sevd_handle: the event dispatcher has overflowed.
    #[doc(alias = "IT_ERR_INVALID_REQ_EVD_STATE")]
    InvalidReqEvdState = 62,
    /// Conn_attr.retry_count: out of range.
    #[doc(alias = "IT_ERR_INVALID_RETRY")]
    InvalidRetry = 63,
    /// Rmr_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_RMR")]
    InvalidRmr = 64,
    /// Conn_attr.rnr_retry_count: out of range.
    #[doc(alias = "IT_ERR_INVALID_RNR_RETRY")]
    InvalidRnrRetry = 65,
    /// Rmr_type: not supported.
    #[doc(alias = "IT_ERR_INVALID_RMR_TYPE")]
    InvalidRmrType = 66,
    /// Conn_attr.remote_cm_timeout: out of range.
    #[doc(alias = "IT_ERR_INVALID_RTIMEOUT")]
    InvalidRtimeout = 67,
    /// Evd_handle: not an event dispatcher for software events.
    #[doc(alias = "IT_ERR_INVALID_SOFT_EVD")]
    InvalidSoftEvd = 68,
    /// Path: its local part does not name this IA.
    #[doc(alias = "IT_ERR_INVALID_SOURCE_PATH")]
    InvalidSourcePath = 69,
    /// Spigot_id: no such spigot.
    #[doc(alias = "IT_ERR_INVALID_SPIGOT")]
    InvalidSpigot = 70,
    /// Srq_handle: null, freed, foreign or of another type; or the endpoint takes its Receives from
    /// a shared receive queue.
    #[doc(alias = "IT_ERR_INVALID_SRQ")]
    InvalidSrq = 71,
    /// Max_recv_dtos: less than what is posted.
    #[doc(alias = "IT_ERR_INVALID_SRQ_SIZE")]
    InvalidSrqSize = 72,
    /// Sevd_threshold: more than the queue size.
    #[doc(alias = "IT_ERR_INVALID_THRESHOLD")]
    InvalidThreshold = 73,
    /// Status: not a status for a reply.
    #[doc(alias = "IT_ERR_INVALID_UD_STATUS")]
    InvalidUdStatus = 74,
    /// Ud_svc_handle: null, freed, foreign or of another type.
    #[doc(alias = "IT_ERR_INVALID_UD_SVC")]
    InvalidUdSvc = 75,
    /// Ud_svc_req_id: no pending service request has this identifier.
    #[doc(alias = "IT_ERR_INVALID_UD_SVC_REQ_ID")]
    InvalidUdSvcReqId = 76,
    /// Soft_hi_watermark: more than the shared receive queue holds, or zero. Never returned:
    /// InfiniBand has no high watermarks of endpoints, and [`Error::SoftHiWatermark`] and
    /// [`Error::HardHiWatermark`] refuse them.
    #[doc(alias = "IT_ERR_INVALID_WATERMARK")]
    InvalidWatermark = 77,
    /// Lmr_handle: an RMR is linked to the region.
    #[doc(alias = "IT_ERR_LMR_BUSY")]
    LmrBusy = 78,
    /// Flags: a notification object and an aggregate event dispatcher exclude each other.
    #[doc(alias = "IT_ERR_MISMATCH_FD")]
    MismatchFd = 79,
    /// Handle: no context was ever set.
    #[doc(alias = "IT_ERR_NO_CONTEXT")]
    NoContext = 80,
    /// The consumer is not privileged, or may not do this. The pages it_address_handle_create,
    /// it_address_handle_modify and it_ep_connect list it, but these calls never return it: any
    /// consumer may reach any address.
    #[doc(alias = "IT_ERR_NO_PERMISSION")]
    NoPermission = 81,
    /// This IA does not support the operation.
    #[doc(alias = "IT_ERR_OP_NOT_SUPPORTED")]
    OpNotSupported = 82,
    /// Max_dto_payload_size: more than the transport carries.
    #[doc(alias = "IT_ERR_PAYLOAD_SIZE")]
    PayloadSize = 83,
    /// Private_data: not supported by this IA. Never returned: every IA supports private data.
    #[doc(alias = "IT_ERR_PDATA_NOT_SUPPORTED")]
    PdataNotSupported = 84,
    /// This IA has no privileged mode operations.
    #[doc(alias = "IT_ERR_PRIV_OPS_UNAVAILABLE")]
    PrivOpsUnavailable = 85,
    /// Pz_handle: objects still use the protection zone.
    #[doc(alias = "IT_ERR_PZ_BUSY")]
    PzBusy = 86,
    /// Evd_handle: no event is queued.
    #[doc(alias = "IT_ERR_QUEUE_EMPTY")]
    QueueEmpty = 87,
    /// Local_segments: outside the local memory region.
    #[doc(alias = "IT_ERR_RANGE")]
    Range = 88,
    /// Resources are exhausted.
    #[doc(alias = "IT_ERR_RESOURCES")]
    Resources = 89,
    /// Rdma_read_ird: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_IRD")]
    ResourceIrd = 90,
    /// Length: more than the IA can give, or memory in more extents than a region's list can have.
    #[doc(alias = "IT_ERR_RESOURCE_LMR_LENGTH")]
    ResourceLmrLength = 91,
    /// Rdma_read_ord: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_ORD")]
    ResourceOrd = 92,
    /// Sevd_queue_size: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_QUEUE_SIZE")]
    ResourceQueueSize = 93,
    /// Max_recv_dtos: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_RECV_DTO")]
    ResourceRecvDto = 94,
    /// Max_request_dtos: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_REQ_DTO")]
    ResourceReqDto = 95,
    /// Max_rdma_read_segments: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_RRSEG")]
    ResourceRrseg = 96,
    /// Max_recv_segments: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_RSEG")]
    ResourceRseg = 97,
    /// Max_rdma_write_segments: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_RWSEG")]
    ResourceRwseg = 98,
    /// Max_send_segments: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_SSEG")]
    ResourceSseg = 99,
    /// Soft_hi_watermark: not supported by this IA, must be zero.
    #[doc(alias = "IT_ERR_SOFT_HI_WATERMARK")]
    SoftHiWatermark = 100,
    /// Srq_handle: endpoints still use the shared receive queue.
    #[doc(alias = "IT_ERR_SRQ_BUSY")]
    SrqBusy = 101,
    /// Low_watermark: more than the shared receive queue holds.
    #[doc(alias = "IT_ERR_SRQ_LOW_WATERMARK")]
    SrqLowWatermark = 102,
    /// This IA has no shared receive queues.
    #[doc(alias = "IT_ERR_SRQ_NOT_SUPPORTED")]
    SrqNotSupported = 103,
    /// Timeout: expired before an event came.
    #[doc(alias = "IT_ERR_TIMEOUT_EXPIRED")]
    TimeoutExpired = 104,
    /// Ep_handle: the work queue is full.
    #[doc(alias = "IT_ERR_TOO_MANY_POSTS")]
    TooManyPosts = 105,
    /// Evd_handle: no more waiters are permitted.
    #[doc(alias = "IT_ERR_WAITER_LIMIT")]
    WaiterLimit = 106,
    /// Connect_qual: the local port is in use. For iWARP: elsewhere [`Error::InvalidConnQual`]
    /// refuses a qualifier with a local port.
    #[doc(alias = "IT_ERR_INVALID_IANA_LR_PORT")]
    InvalidIanaLrPort = 107,
    /// Sd: not a socket.
    #[doc(alias = "IT_ERR_INVALID_SD")]
    InvalidSd = 108,
    /// Sd: the state of the socket does not allow this.
    #[doc(alias = "IT_ERR_INVALID_SD_STATE")]
    InvalidSdState = 109,
    /// Iobl_num_elts: more than the IA can give.
    #[doc(alias = "IT_ERR_RESOURCE_IOBL_LENGTH")]
    ResourceIoblLength = 110,
    /// The call may not be made from a callback routine.
    #[doc(alias = "IT_ERR_CALLBACK_CONTEXT")]
    CallbackContext = 111,
}

impl Error {
    /// The name that page it_ep_connect and the sample header have for
    /// [`Error::InvalidAtimeout`].
    #[doc(alias = "IT_ERR_INVALID_ETIMEOUT")]
    pub const INVALID_ETIMEOUT: Error = Error::InvalidAtimeout;

    /// The value in the specification's enumeration.
    pub const fn as_raw(self) -> u32 {
        self as u32
    }

    /// The name in the specification.
    pub const fn name(self) -> &'static str {
        self.texts().0
    }
}

impl From<platform::OutOfMemory> for Error {
    fn from(_: platform::OutOfMemory) -> Error {
        Error::Resources
    }
}

impl From<alloc::collections::TryReserveError> for Error {
    fn from(_: alloc::collections::TryReserveError) -> Error {
        Error::Resources
    }
}

impl From<OutOfResources> for Error {
    fn from(_: OutOfResources) -> Error {
        Error::Resources
    }
}

impl From<Ended> for Error {
    fn from(ended: Ended) -> Error {
        match ended {
            Ended::Disabled => Error::IaCatastrophe,
            Ended::Freed => Error::InvalidIa,
        }
    }
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (name, text) = self.texts();
        write!(f, "{name}: {text}")
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
        assert_eq!(Error::from(super::OutOfResources), Error::Resources);
        let failure = crate::WaitError { error: Error::InvalidPz, nmore: 3 };
        assert_eq!(failure.to_string(), std::format!("{text} (3 events are queued)"));
    }
}

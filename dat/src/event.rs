//! Events, with DAT's numbers.

use core::net::Ipv6Addr;

use crate::handle::{AhHandle, CrHandle, EpHandle, EvdHandle, Handle, RmrHandle};

/// An event's number. Extensions have their own ranges, so this is an open set.
#[doc(alias = "DAT_EVENT_NUMBER")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EventNumber(pub u32);

rdma::constants! { EventNumber:
    /// A work request is complete.
    DTO_COMPLETION = 0x00001, "DAT_DTO_COMPLETION_EVENT";
    /// A bind of a remote memory region is complete.
    RMR_BIND_COMPLETION = 0x01001, "DAT_RMR_BIND_COMPLETION_EVENT";
    /// A peer requests a connection.
    CONNECTION_REQUEST = 0x02001, "DAT_CONNECTION_REQUEST_EVENT";
    /// The connection is established.
    CONNECTION_ESTABLISHED = 0x04001, "DAT_CONNECTION_EVENT_ESTABLISHED";
    /// The peer's consumer rejected the connection.
    CONNECTION_PEER_REJECTED = 0x04002, "DAT_CONNECTION_EVENT_PEER_REJECTED";
    /// The connection was rejected, but not by the peer's consumer.
    CONNECTION_NON_PEER_REJECTED = 0x04003, "DAT_CONNECTION_EVENT_NON_PEER_REJECTED";
    /// The connection that this side accepted could not be established.
    CONNECTION_ACCEPT_COMPLETION_ERROR = 0x04004, "DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR";
    /// The connection has ended by a disconnect of either side.
    CONNECTION_DISCONNECTED = 0x04005, "DAT_CONNECTION_EVENT_DISCONNECTED";
    /// The connection broke.
    CONNECTION_BROKEN = 0x04006, "DAT_CONNECTION_EVENT_BROKEN";
    /// The connection was not established in time.
    CONNECTION_TIMED_OUT = 0x04007, "DAT_CONNECTION_EVENT_TIMED_OUT";
    /// The peer cannot be reached.
    CONNECTION_UNREACHABLE = 0x04008, "DAT_CONNECTION_EVENT_UNREACHABLE";
    /// The queue of an event dispatcher overflowed.
    ASYNC_ERROR_EVD_OVERFLOW = 0x08001, "DAT_ASYNC_ERROR_EVD_OVERFLOW";
    /// The adapter has failed.
    ASYNC_ERROR_IA_CATASTROPHIC = 0x08002, "DAT_ASYNC_ERROR_IA_CATASTROPHIC";
    /// An endpoint has failed.
    ASYNC_ERROR_EP_BROKEN = 0x08003, "DAT_ASYNC_ERROR_EP_BROKEN";
    /// A connection timed out.
    ASYNC_ERROR_TIMED_OUT = 0x08004, "DAT_ASYNC_ERROR_TIMED_OUT";
    /// Another asynchronous event, which its reason describes.
    ASYNC_ERROR_PROVIDER_INTERNAL_ERROR = 0x08005, "DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR";
    /// The consumer posted it.
    SOFTWARE = 0x10001, "DAT_SOFTWARE_EVENT";
    /// An operation of the InfiniBand extensions is complete.
    IB_DTO = 0x40000, "DAT_IB_DTO_EVENT";
    /// A peer asks for the address of a datagram endpoint.
    IB_UD_CONNECTION_REQUEST = 0x40001, "DAT_IB_UD_CONNECTION_REQUEST_EVENT";
    /// A remote datagram endpoint is resolved.
    IB_UD_CONNECTION_ESTABLISHED = 0x40002, "DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED";
    /// The peer's consumer refused to name its datagram endpoint.
    IB_UD_CONNECTION_REJECT = 0x40003, "DAT_IB_UD_CONNECTION_REJECT_EVENT";
    /// The peer could not name a datagram endpoint, or did not answer.
    IB_UD_CONNECTION_ERROR = 0x40004, "DAT_IB_UD_CONNECTION_ERROR_EVENT";
}

impl EventNumber {
    /// The first number of the InfiniBand extensions: each event from here to
    /// [`EventNumber::IW_RANGE_BASE`] has an [`IbExtensionEventData`], and no other event has.
    #[doc(alias = "DAT_IB_EXTENSION_RANGE_BASE")]
    #[doc(alias = "DAT_IB_EXTENSION_BASE_RANGE")]
    pub const IB_RANGE_BASE: EventNumber = EventNumber(0x40000);
    /// The first number of another transport's extensions.
    #[doc(alias = "DAT_IW_EXTENSION_RANGE_BASE")]
    pub const IW_RANGE_BASE: EventNumber = EventNumber(0x80000);

    /// Whether it is a number of the InfiniBand extensions.
    pub const fn is_ib(self) -> bool {
        self.0 >= EventNumber::IB_RANGE_BASE.0 && self.0 < EventNumber::IW_RANGE_BASE.0
    }
}

/// The operation of a completion. Those from 8 on are the InfiniBand extensions'.
#[doc(alias = "DAT_DTOS")]
#[doc(alias = "DAT_IB_DTOS")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Dto(pub u32);

rdma::constants! { Dto:
    /// Send.
    SEND = 0, "DAT_DTO_SEND";
    /// RDMA Write.
    RDMA_WRITE = 1, "DAT_DTO_RDMA_WRITE";
    /// RDMA Read.
    RDMA_READ = 2, "DAT_DTO_RDMA_READ";
    /// Receive.
    RECEIVE = 3, "DAT_DTO_RECEIVE";
    /// Receive of a message that invalidated a region.
    RECEIVE_WITH_INVALIDATE = 4, "DAT_DTO_RECEIVE_WITH_INVALIDATE";
    /// Bind of a remote memory region.
    BIND_MW = 5, "DAT_DTO_BIND_MW";
    /// RDMA Write with immediate data, at the initiator. The first extended operation.
    IB_RDMA_WRITE_IMMED = 8, "DAT_IB_DTO_RDMA_WRITE_IMMED";
    /// Receive that an RDMA Write with immediate data took.
    IB_RECV_IMMED = 9, "DAT_IB_DTO_RECV_IMMED";
    /// Fetch and add.
    IB_FETCH_ADD = 10, "DAT_IB_DTO_FETCH_ADD";
    /// Compare and swap.
    IB_CMP_SWAP = 11, "DAT_IB_DTO_CMP_SWAP";
    /// Receive of a message with immediate data, of a reliable connection.
    IB_RECV_MSG_IMMED = 12, "DAT_IB_DTO_RECV_MSG_IMMED";
    /// Send of a datagram.
    IB_SEND_UD = 13, "DAT_IB_DTO_SEND_UD";
    /// Receive of a datagram.
    IB_RECV_UD = 14, "DAT_IB_DTO_RECV_UD";
    /// Receive of a datagram with immediate data.
    IB_RECV_UD_IMMED = 15, "DAT_IB_DTO_RECV_UD_IMMED";
}

rdma::enumeration! {
    /// The result of a work request.
    #[doc(alias = "DAT_DTO_COMPLETION_STATUS")]
    #[derive(Default)]
    pub enum DtoStatus: u32 {
        /// Done.
        #[default]
        Success = 0, "DAT_DTO_SUCCESS";
        /// The endpoint had failed or was disconnected before the request began.
        Flushed = 1, "DAT_DTO_ERR_FLUSHED";
        /// A message did not fit its buffer, or is too long for the endpoint.
        LocalLength = 2, "DAT_DTO_ERR_LOCAL_LENGTH";
        /// An error of the local endpoint.
        LocalEp = 3, "DAT_DTO_ERR_LOCAL_EP";
        /// A local segment is not in its region, or the region lacks the privilege or is of another
        /// zone.
        LocalProtection = 4, "DAT_DTO_ERR_LOCAL_PROTECTION";
        /// The peer's answer violated the protocol.
        BadResponse = 5, "DAT_DTO_ERR_BAD_RESPONSE";
        /// The peer's region does not allow the access.
        RemoteAccess = 6, "DAT_DTO_ERR_REMOTE_ACCESS";
        /// The peer could not do the operation.
        RemoteResponder = 7, "DAT_DTO_ERR_REMOTE_RESPONDER";
        /// The peer did not acknowledge.
        Transport = 8, "DAT_DTO_ERR_TRANSPORT";
        /// The peer had no Receive for the message.
        ReceiverNotReady = 9, "DAT_DTO_ERR_RECEIVER_NOT_READY";
        /// Only a part of the data arrived. Does not occur on InfiniBand.
        PartialPacket = 10, "DAT_DTO_ERR_PARTIAL_PACKET";
        /// A bind failed.
        RmrOperationFailed = 11, "DAT_RMR_OPERATION_FAILED";
        /// A memory management operation failed.
        LocalMmError = 12, "DAT_DTO_ERR_LOCAL_MM_ERROR";
    }
}

/// A completed work request.
#[doc(alias = "DAT_DTO_COMPLETION_EVENT_DATA")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DtoCompletion {
    /// The endpoint. For a Receive of a shared receive queue, the endpoint whose message took it.
    pub ep_handle: EpHandle,
    /// The cookie that the consumer posted with the request.
    pub user_cookie: u64,
    /// The result.
    pub status: DtoStatus,
    /// The number of bytes that were transferred: of a request the sum of its segments, of an
    /// atomic 8, of a Receive what it received, and of one that an RDMA Write with immediate data
    /// took what the Write wrote. Defined only if the status is a success.
    #[doc(alias = "transfered_length")]
    pub transferred_length: u64,
    /// The operation.
    pub operation: Dto,
}

/// A completed bind.
#[doc(alias = "DAT_RMR_BIND_COMPLETION_EVENT_DATA")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RmrBindCompletion {
    /// The remote memory region. Null if the consumer freed it, or reset its endpoint, before it
    /// took the completion.
    pub rmr_handle: RmrHandle,
    /// The cookie that the consumer posted with the bind.
    pub user_cookie: u64,
    /// The result.
    pub status: DtoStatus,
}

/// The service point at which a request arrived.
#[doc(alias = "DAT_SP_HANDLE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpHandle {
    /// A public one.
    Psp(crate::PspHandle),
    /// A reserved one.
    Rsp(crate::RspHandle),
}

/// The arrival of a connection request.
#[doc(alias = "DAT_CR_ARRIVAL_EVENT_DATA")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrArrival {
    /// The service point.
    pub sp_handle: SpHandle,
    /// The address of this adapter.
    pub local_ia_address: Option<crate::IaAddress>,
    /// The qualifier that the peer named.
    pub conn_qual: u64,
    /// The request.
    pub cr_handle: CrHandle,
}

/// A change of a connection.
#[doc(alias = "DAT_CONNECTION_EVENT_DATA")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The endpoint.
    pub ep_handle: EpHandle,
    /// The peer's private data: the whole field of the message, padded with zeros. None if the
    /// field holds nothing but zeros.
    pub private_data: Option<crate::PrivateData>,
}

/// An asynchronous event.
#[doc(alias = "DAT_ASYNCH_ERROR_EVENT_DATA")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsynchError {
    /// The object.
    pub dat_handle: Handle,
    /// What happened to the object. The numbers depend on the object's type.
    pub reason: AsyncReason,
}

/// The reason of an asynchronous event. The numbers depend on the type of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncReason {
    /// The adapter failed or lost its port (`DAT_IA_ASYNC_ERROR_OTHER`, 1).
    Ia,
    /// The endpoint was transferred to the error state (0).
    EpTransferToError,
    /// Another fault of the endpoint (1).
    EpOther,
    /// The event dispatcher's queue overflowed (0).
    EvdOverflow,
    /// Fewer Receives than the low watermark are left in the shared receive queue (2).
    SrqLowWatermark,
}

impl AsyncReason {
    /// DAT's number.
    pub const fn as_raw(self) -> u32 {
        match self {
            AsyncReason::EpTransferToError | AsyncReason::EvdOverflow => 0,
            AsyncReason::Ia | AsyncReason::EpOther => 1,
            AsyncReason::SrqLowWatermark => 2,
        }
    }
}

/// What an event says. Its number decides which of these it is.
#[doc(alias = "DAT_EVENT_DATA")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "an event is taken without an allocation")]
pub enum EventData {
    /// A completion, ordinary or of an extension.
    Dto(DtoCompletion),
    /// A completed bind.
    RmrBind(RmrBindCompletion),
    /// A request, for a connection or for a datagram endpoint.
    CrArrival(CrArrival),
    /// A connection event, or the resolution of a datagram endpoint.
    Connection(Connection),
    /// An asynchronous event.
    AsynchError(AsynchError),
    /// A software event: what the consumer posted.
    Software(usize),
}

rdma::enumeration! {
    /// What kind of data an extension's event has.
    #[doc(alias = "DAT_IB_EXT_TYPE")]
    pub enum IbExtType: u32 {
        /// A completed fetch and add.
        FetchAndAdd = 0, "DAT_IB_FETCH_AND_ADD";
        /// A completed compare and swap.
        CmpAndSwap = 1, "DAT_IB_CMP_AND_SWAP";
        /// A completed RDMA Write with immediate data, at the initiator.
        RdmaWriteImmed = 2, "DAT_IB_RDMA_WRITE_IMMED";
        /// The immediate data of an RDMA Write, at the target.
        RdmaWriteImmedData = 3, "DAT_IB_RDMA_WRITE_IMMED_DATA";
        /// The immediate data of a message or a datagram.
        RecvImmedData = 4, "DAT_IB_RECV_IMMED_DATA";
        /// A request for a datagram endpoint.
        UdConnectRequest = 5, "DAT_IB_UD_CONNECT_REQUEST";
        /// The address handle of the endpoint that this side asked for.
        UdRemoteAh = 6, "DAT_IB_UD_REMOTE_AH";
        /// The address handle of the endpoint that asked this side.
        UdPassiveRemoteAh = 7, "DAT_IB_UD_PASSIVE_REMOTE_AH";
        /// A datagram that was sent.
        UdSend = 8, "DAT_IB_UD_SEND";
        /// A datagram that was received.
        UdRecv = 9, "DAT_IB_UD_RECV";
        /// The peer's consumer refused.
        UdConnectReject = 10, "DAT_IB_UD_CONNECT_REJECT";
        /// The peer could not answer, or did not answer in time.
        UdConnectError = 11, "DAT_IB_UD_CONNECT_ERROR";
    }
}

rdma::enumeration! {
    /// The result of an extended operation.
    #[doc(alias = "DAT_IB_STATUS")]
    #[derive(Default)]
    pub enum IbStatus: u32 {
        /// It succeeded.
        #[default]
        Success = 0, "DAT_IB_OP_SUCCESS" or "DAT_OP_SUCCESS";
        /// It failed; the status of the completion says why.
        Err = 1, "DAT_IB_OP_ERR";
    }
}

/// The address of a remote datagram endpoint.
#[doc(alias = "DAT_IB_ADDR_HANDLE")]
#[doc(alias = "DAT_IB_ADDR_AH")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct IbAddrHandle {
    /// The address handle of the endpoint's node. It lives as long as the endpoint that resolved
    /// it, unless [`Ia::ib_ud_ah_free`](crate::Ia::ib_ud_ah_free) frees it.
    pub ah: AhHandle,
    /// The number of its queue pair.
    pub qpn: u32,
    /// The key of its queue pair.
    pub qkey: u32,
    /// The address of the endpoint's node, as IPv6; an IPv4 address is mapped.
    pub ia_addr: Ipv6Addr,
}

impl IbAddrHandle {
    /// No endpoint.
    pub const NONE: IbAddrHandle =
        IbAddrHandle { ah: AhHandle::NULL, qpn: 0, qkey: 0, ia_addr: Ipv6Addr::UNSPECIFIED };
}

/// What the InfiniBand extensions add to an event.
#[doc(alias = "DAT_IB_EXTENSION_EVENT_DATA")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct IbExtensionEventData {
    /// Which of the following members are valid.
    #[doc(alias = "type")]
    pub ext_type: IbExtType,
    /// The result.
    pub status: IbStatus,
    /// The immediate data: valid if the operation is [`Dto::IB_RECV_IMMED`],
    /// [`Dto::IB_RECV_MSG_IMMED`] or [`Dto::IB_RECV_UD_IMMED`], and the status is a success.
    #[doc(alias = "DAT_IB_IMMED_DATA")]
    pub immed: u32,
    /// The remote endpoint: valid with [`EventNumber::IB_UD_CONNECTION_ESTABLISHED`].
    pub remote_ah: IbAddrHandle,
}

const _: () = assert!(size_of::<IbExtensionEventData>() <= 64, "eight words of an event");

/// An event.
#[doc(alias = "DAT_EVENT")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The event's number.
    pub event_number: EventNumber,
    /// The event dispatcher from which it was taken.
    pub evd_handle: EvdHandle,
    /// What it says.
    pub event_data: EventData,
    /// What the InfiniBand extensions add. Only for events whose number
    /// [`is_ib`](EventNumber::is_ib).
    #[doc(alias = "event_extension_data")]
    pub extension: Option<IbExtensionEventData>,
}

impl Event {
    /// A software event with this data, to be posted to `evd`.
    pub const fn software(evd: EvdHandle, data: usize) -> Event {
        let (event_number, event_data) = (EventNumber::SOFTWARE, EventData::Software(data));
        Event { event_number, evd_handle: evd, event_data, extension: None }
    }

    /// The completion, if the event is one.
    pub const fn dto(&self) -> Option<&DtoCompletion> {
        match &self.event_data {
            EventData::Dto(completion) => Some(completion),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_words_are_their_names() {
        assert_eq!(alloc::format!("{:?}", EventNumber::IB_DTO), "DAT_IB_DTO_EVENT");
        assert_eq!(alloc::format!("{:?} {:?}", Dto::SEND, Dto(99)), "DAT_DTO_SEND Dto(0x63)");
    }

    #[test]
    fn only_events_of_the_extensions_are_in_their_range() {
        assert!(EventNumber::IB_DTO.is_ib() && EventNumber::IB_UD_CONNECTION_ERROR.is_ib());
        assert_eq!(EventNumber::IB_DTO, EventNumber::IB_RANGE_BASE);
        assert!(!EventNumber::SOFTWARE.is_ib() && !EventNumber(0x3ffff).is_ib());
        assert!(!EventNumber::IW_RANGE_BASE.is_ib());
    }

    #[test]
    fn each_status_has_its_number() {
        let all = [
            DtoStatus::Success,
            DtoStatus::Flushed,
            DtoStatus::LocalLength,
            DtoStatus::LocalEp,
            DtoStatus::LocalProtection,
            DtoStatus::BadResponse,
            DtoStatus::RemoteAccess,
            DtoStatus::RemoteResponder,
            DtoStatus::Transport,
            DtoStatus::ReceiverNotReady,
            DtoStatus::PartialPacket,
            DtoStatus::RmrOperationFailed,
            DtoStatus::LocalMmError,
        ];
        assert!(all.iter().enumerate().all(|(number, status)| status.as_raw() == number as u32));
    }
}

//! Events (pages it_event_t, it_dto_events, it_dto_status_t, it_cm_req_events, it_cm_msg_events,
//! it_affiliated_event_t, it_unaffiliated_event_t, it_software_event_t,
//! it_aevd_notification_event_t).

use crate::address::{CnEstId, ConnQual, NetAddr, Path, PrivateData, RemoteEpInfo};
use crate::flags::DtoUdFlags;
use crate::handle::{EpHandle, EvdHandle, Handle, IaHandle, SrqHandle, UdSvcReqHandle};

/// The number of an event or of an event stream.
#[doc(alias = "it_event_type_t")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EventType(pub u32);

/// The bits of an event's number that name its stream.
#[doc(alias = "IT_EVENT_STREAM_MASK")]
pub const EVENT_STREAM_MASK: u32 = 0xff000;

rdma::constants! { EventType:
    /// Stream: completed work requests.
    DTO_EVENT_STREAM = 0x00000, "IT_DTO_EVENT_STREAM";
    /// A Send is complete.
    DTO_SEND_CMPL = 0x00001, "IT_DTO_SEND_CMPL_EVENT";
    /// A Receive of an RC endpoint is complete.
    DTO_RC_RECV_CMPL = 0x00002, "IT_DTO_RC_RECV_CMPL_EVENT";
    /// A Receive of a UD endpoint is complete.
    DTO_UD_RECV_CMPL = 0x00003, "IT_DTO_UD_RECV_CMPL_EVENT";
    /// An RDMA Write is complete.
    DTO_RDMA_WRITE_CMPL = 0x00004, "IT_DTO_RDMA_WRITE_CMPL_EVENT";
    /// An RDMA Read is complete.
    DTO_RDMA_READ_CMPL = 0x00005, "IT_DTO_RDMA_READ_CMPL_EVENT";
    /// An RMR link or unlink is complete.
    RMR_LINK_CMPL = 0x00006, "IT_RMR_LINK_CMPL_EVENT";
    /// A fetch-and-add is complete.
    DTO_FETCH_ADD_CMPL = 0x00007, "IT_DTO_FETCH_ADD_CMPL_EVENT";
    /// A compare-and-swap is complete.
    DTO_CMP_SWAP_CMPL = 0x00008, "IT_DTO_CMP_SWAP_CMPL_EVENT";
    /// An LMR link or unlink is complete.
    LMR_LINK_CMPL = 0x00009, "IT_LMR_LINK_CMPL_EVENT";
    /// Stream: requests of peers.
    CM_REQ_EVENT_STREAM = 0x01000, "IT_CM_REQ_EVENT_STREAM";
    /// A peer requests a connection.
    CM_REQ_CONN_REQUEST = 0x01001, "IT_CM_REQ_CONN_REQUEST_EVENT";
    /// A peer requests a UD service.
    CM_REQ_UD_SERVICE_REQUEST = 0x01002, "IT_CM_REQ_UD_SERVICE_REQUEST_EVENT";
    /// Stream: changes of connections.
    CM_MSG_EVENT_STREAM = 0x02000, "IT_CM_MSG_EVENT_STREAM";
    /// The passive side accepted, in a three-way handshake.
    CM_MSG_CONN_ACCEPT_ARRIVAL = 0x02001, "IT_CM_MSG_CONN_ACCEPT_ARRIVAL_EVENT";
    /// The connection is established.
    CM_MSG_CONN_ESTABLISHED = 0x02002, "IT_CM_MSG_CONN_ESTABLISHED_EVENT";
    /// One of the consumers disconnected.
    CM_MSG_CONN_DISCONNECT = 0x02003, "IT_CM_MSG_CONN_DISCONNECT_EVENT";
    /// The peer's consumer rejected it.
    CM_MSG_CONN_PEER_REJECT = 0x02004, "IT_CM_MSG_CONN_PEER_REJECT_EVENT";
    /// The connection could not be established.
    CM_MSG_CONN_NONPEER_REJECT = 0x02005, "IT_CM_MSG_CONN_NONPEER_REJECT_EVENT";
    /// The connection broke.
    CM_MSG_CONN_BROKEN = 0x02006, "IT_CM_MSG_CONN_BROKEN_EVENT";
    /// The answer to a UD service request.
    CM_MSG_UD_SERVICE_REPLY = 0x02007, "IT_CM_MSG_UD_SERVICE_REPLY_EVENT";
    /// Stream: asynchronous events of an object.
    ASYNC_AFF_EVENT_STREAM = 0x04000, "IT_ASYNC_AFF_EVENT_STREAM";
    /// An EVD overflowed.
    ASYNC_AFF_SEVD_ENQUEUE_FAILURE = 0x04001, "IT_ASYNC_AFF_SEVD_ENQUEUE_FAILURE";
    /// An endpoint failed, and no completion reports the reason.
    ASYNC_AFF_EP_FAILURE = 0x04002, "IT_ASYNC_AFF_EP_FAILURE";
    /// A peer's request was malformed.
    ASYNC_AFF_EP_BAD_TRANSPORT_OPCODE = 0x04003, "IT_ASYNC_AFF_EP_BAD_TRANSPORT_OPCODE";
    /// A Send found no Receive (not on IB).
    ASYNC_AFF_EP_REQ_DROPPED = 0x04005, "IT_ASYNC_AFF_EP_REQ_DROPPED";
    /// Not on IB.
    ASYNC_AFF_EP_RDMAW_ACCESS_VIOLATION = 0x04006, "IT_ASYNC_AFF_EP_RDMAW_ACCESS_VIOLATION";
    /// Not on IB.
    ASYNC_AFF_EP_RDMAW_CORRUPT_DATA = 0x04007, "IT_ASYNC_AFF_EP_RDMAW_CORRUPT_DATA";
    /// Not on IB.
    ASYNC_AFF_EP_RDMAR_ACCESS_VIOLATION = 0x04008, "IT_ASYNC_AFF_EP_RDMAR_ACCESS_VIOLATION";
    /// A peer's request violated access rights of local memory.
    ASYNC_AFF_EP_L_ACCESS_VIOLATION = 0x04020, "IT_ASYNC_AFF_EP_L_ACCESS_VIOLATION";
    /// Not on IB.
    ASYNC_AFF_EP_L_RECV_ACCESS_VIOLATION = 0x04021, "IT_ASYNC_AFF_EP_L_RECV_ACCESS_VIOLATION";
    /// Not on IB.
    ASYNC_AFF_EP_L_IRRQ_ACCESS_VIOLATION = 0x04022, "IT_ASYNC_AFF_EP_L_IRRQ_ACCESS_VIOLATION";
    /// Not on IB.
    ASYNC_AFF_EP_L_TRANSPORT_ERROR = 0x04023, "IT_ASYNC_AFF_EP_L_TRANSPORT_ERROR";
    /// Not on IB.
    ASYNC_AFF_EP_L_LLP_ERROR = 0x04024, "IT_ASYNC_AFF_EP_L_LLP_ERROR";
    /// Not on IB.
    ASYNC_AFF_EP_R_ERROR = 0x04040, "IT_ASYNC_AFF_EP_R_ERROR";
    /// Not on IB.
    ASYNC_AFF_EP_R_ACCESS_VIOLATION = 0x04041, "IT_ASYNC_AFF_EP_R_ACCESS_VIOLATION";
    /// Not on IB.
    ASYNC_AFF_EP_R_RECV_ACCESS_VIOLATION = 0x04042, "IT_ASYNC_AFF_EP_R_RECV_ACCESS_VIOLATION";
    /// Not on IB.
    ASYNC_AFF_EP_R_RECV_LENGTH_ERROR = 0x04043, "IT_ASYNC_AFF_EP_R_RECV_LENGTH_ERROR";
    /// Not on IB.
    ASYNC_AFF_EP_SOFT_HI_WATERMARK = 0x04060, "IT_ASYNC_AFF_EP_SOFT_HI_WATERMARK";
    /// A shared receive queue holds fewer Receives than its low watermark.
    ASYNC_AFF_SRQ_LOW_WATERMARK = 0x04100, "IT_ASYNC_AFF_SRQ_LOW_WATERMARK";
    /// Stream: asynchronous events of the IA.
    ASYNC_UNAFF_EVENT_STREAM = 0x08000, "IT_ASYNC_UNAFF_EVENT_STREAM";
    /// A spigot came up.
    ASYNC_UNAFF_SPIGOT_ONLINE = 0x08002, "IT_ASYNC_UNAFF_SPIGOT_ONLINE";
    /// A spigot went down.
    ASYNC_UNAFF_SPIGOT_OFFLINE = 0x08003, "IT_ASYNC_UNAFF_SPIGOT_OFFLINE";
    /// The EVD for affiliated events overflowed.
    ASYNC_UNAFF_SEVD_ENQUEUE_FAILURE = 0x08004, "IT_ASYNC_UNAFF_SEVD_ENQUEUE_FAILURE";
    /// Stream: software events, which the consumer posts.
    SOFTWARE_EVENT_STREAM = 0x10000, "IT_SOFTWARE_EVENT_STREAM";
    /// An event that the consumer posted.
    SOFTWARE = 0x10001, "IT_SOFTWARE_EVENT";
    /// Stream: the notifications of an aggregate event dispatcher.
    AEVD_NOTIFICATION_EVENT_STREAM = 0x20000, "IT_AEVD_NOTIFICATION_EVENT_STREAM";
    /// A simple event dispatcher notified its aggregate.
    AEVD_NOTIFICATION = 0x20001, "IT_AEVD_NOTIFICATION_EVENT";
}

impl EventType {
    /// The old name of [`EventType::RMR_LINK_CMPL`].
    #[doc(alias = "IT_RMR_BIND_CMPL_EVENT")]
    pub const RMR_BIND_CMPL: EventType = EventType::RMR_LINK_CMPL;
    /// The old name of [`EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION`].
    #[doc(alias = "IT_ASYNC_AFF_EP_LOCAL_ACCESS_VIOLATION")]
    pub const ASYNC_AFF_EP_LOCAL_ACCESS_VIOLATION: EventType = EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION;

    /// The stream to which the event belongs.
    pub const fn stream(self) -> EventType {
        EventType(self.0 & !0xfff)
    }
}

rdma::enumeration! {
    /// The result of a work request.
    #[doc(alias = "it_dto_status_t")]
    #[derive(Default)]
    pub enum DtoStatus: u16 {
        /// The operation succeeded.
        #[default]
        Success = 0, "IT_DTO_SUCCESS";
        /// A message was longer than the endpoint's payload size or the Receive's buffers.
        LocalLength = 1, "IT_DTO_ERR_LOCAL_LENGTH";
        /// The endpoint's state is inconsistent.
        LocalEp = 2, "IT_DTO_ERR_LOCAL_EP";
        /// A local segment does not allow this access.
        LocalProtection = 3, "IT_DTO_ERR_LOCAL_PROTECTION";
        /// The endpoint became non-operational before the operation was done.
        Flushed = 4, "IT_DTO_ERR_FLUSHED";
        /// An RMR operation violated memory protection.
        RmrOperationFailed = 5, "IT_RMR_OPERATION_FAILED";
        /// The peer's response was invalid.
        BadResponse = 6, "IT_DTO_ERR_BAD_RESPONSE";
        /// The peer's memory does not allow this access.
        RemoteAccess = 7, "IT_DTO_ERR_REMOTE_ACCESS";
        /// The peer could not complete the operation.
        RemoteResponder = 8, "IT_DTO_ERR_REMOTE_RESPONDER";
        /// The peer did not acknowledge, even after all retries.
        Transport = 9, "IT_DTO_ERR_TRANSPORT";
        /// The peer was not ready to receive, even after all retries.
        ReceiverNotReady = 10, "IT_DTO_ERR_RECEIVER_NOT_READY";
        /// Data was truncated. Does not occur on InfiniBand.
        PartialPacket = 11, "IT_DTO_ERR_PARTIAL_PACKET";
        /// A link or unlink failed.
        LocalMmOperation = 12, "IT_DTO_ERR_LOCAL_MM_OPERATION";
    }
}

/// A completed work request.
#[doc(alias = "it_dto_cmpl_event_t")]
#[doc(alias = "it_all_dto_cmpl_event_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DtoCompletion {
    /// The event's number, which names the operation.
    pub event_number: EventType,
    /// The result.
    pub dto_status: DtoStatus,
    /// The event dispatcher on which the event was queued.
    pub evd: EvdHandle,
    /// The endpoint to which the request was posted. For a Receive of a shared receive queue, the
    /// endpoint that received the message.
    pub ep: EpHandle,
    /// The cookie that the consumer posted with the request.
    pub cookie: u64,
    /// The number of bytes received. Only for a successful Receive. 0 if an RDMA Write with
    /// immediate data took the Receive, whose segments are then unchanged
    /// ([`Ia::evd_dequeue_extended`](crate::Ia::evd_dequeue_extended) returns the Write's length).
    pub transferred_length: u32,
    /// For a datagram: whether the first 40 bytes are a header.
    pub flags: DtoUdFlags,
    /// For a datagram: the sender's endpoint ID.
    pub ud_ep_id: u32,
    /// The LMR or RMR that the peer unlinked with this message, or null.
    pub unlinked_mr_handle: Handle,
}

impl DtoCompletion {
    /// The incomplete path to the sender of a datagram, for
    /// [`Ia::address_handle_create`](crate::Ia::address_handle_create) without
    /// [`AhFlags::PATH_COMPLETE`](crate::AhFlags::PATH_COMPLETE). `header` is the first 40 bytes
    /// that the Receive stored.
    ///
    /// RoCE has neither LIDs nor service levels, so both are 0 here as in each path. The GID in the
    /// header identifies the sender. Returns `None` if this is not the completion of a received
    /// datagram, or if `header` is shorter than 40 bytes. Page it_dto_events.
    pub fn src_path(&self, header: &[u8]) -> Option<Path> {
        let received = self.event_number == EventType::DTO_UD_RECV_CMPL
            && self.dto_status == DtoStatus::Success
            && self.flags.contains(DtoUdFlags::IB_GRH_PRESENT);
        if received { Path::of_sender(header) } else { None }
    }
}

/// Why a connection could not be established.
#[doc(alias = "it_conn_reject_code_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum RejectReason {
    /// Any other reason.
    Other = 0,
    /// The connection was not established within the path's timeout.
    Timeout = 1,
    /// The peer refused the path. The event carries the path that the peer suggests.
    BadPath = 2,
    /// The peer still has a former connection of this endpoint.
    StaleConn = 3,
    /// The active side did not accept the read depth.
    BadOrd = 4,
    /// The peer lacks resources.
    Resources = 5,
    /// Invalid connection parameters. Does not occur on InfiniBand.
    BadConnParms = 6,
}

impl RejectReason {
    /// The value in the specification's enumeration.
    pub const fn as_raw(self) -> u32 {
        self as u32
    }
}

/// The result of a UD service request.
#[doc(alias = "it_ud_svc_req_status_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum UdSvcStatus {
    /// The reply names an endpoint.
    EpInfoValid = 0,
    /// The peer has no such service.
    IdNotSupported = 1,
    /// The peer's consumer rejected the request.
    Rejected = 2,
    /// The peer is out of resources.
    NoEpAvailable = 3,
    /// The request should be sent to another address.
    Redirected = 4,
    /// No reply came. Only after
    /// [`Ia::ud_service_request_reported`](crate::Ia::ud_service_request_reported); an extension,
    /// with a number that the specification does not use.
    TimedOut = 0x100,
}

/// A peer's request for a connection.
#[doc(alias = "it_conn_request_event_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnRequest {
    /// The event dispatcher on which the event was queued.
    pub evd: EvdHandle,
    /// The identifier of the request, for it_ep_accept, it_reject and it_handoff.
    pub cn_est_id: CnEstId,
    /// The qualifier that the peer named.
    pub conn_qual: ConnQual,
    /// The peer's address.
    pub source_addr: NetAddr,
    /// The spigot at which it arrived.
    pub spigot_id: usize,
    /// The longest message of the peer's endpoint. Valid only with the IA's attribute
    /// `max_message_size_support`.
    pub max_message_size: u32,
    /// The peer's inbound read depth.
    pub rdma_read_ird: u32,
    /// The peer's outbound read depth.
    pub rdma_read_ord: u32,
    /// The peer's private data.
    pub private_data: Option<PrivateData>,
}

/// A peer's request for a UD service.
#[doc(alias = "it_ud_svc_request_event_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdServiceRequest {
    /// The event dispatcher on which the event was queued.
    pub evd: EvdHandle,
    /// The identifier of the request, for the reply.
    pub ud_svc_req_id: u64,
    /// The qualifier that the peer named.
    pub conn_qual: ConnQual,
    /// The peer's address.
    pub source_addr: NetAddr,
    /// The spigot at which it arrived.
    pub spigot_id: usize,
    /// The peer's private data.
    pub private_data: Option<PrivateData>,
}

/// The answer to a UD service request.
#[doc(alias = "it_ud_svc_reply_event_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdServiceReply {
    /// The event dispatcher on which the event was queued.
    pub evd: EvdHandle,
    /// The request that the reply answers.
    pub ud_svc: UdSvcReqHandle,
    /// The result.
    pub status: UdSvcStatus,
    /// The endpoint, if the status is [`UdSvcStatus::EpInfoValid`].
    pub ep_info: RemoteEpInfo,
    /// The address to send the request to, if the status is [`UdSvcStatus::Redirected`].
    pub dst_path: Option<Path>,
    /// The peer's private data.
    pub private_data: Option<PrivateData>,
}

/// The object that an affiliated asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AffiliatedCause {
    /// An event dispatcher.
    Sevd(EvdHandle),
    /// An endpoint.
    Ep(EpHandle),
    /// A shared receive queue.
    Srq(SrqHandle),
}

/// An event.
#[doc(alias = "it_event_t")]
#[doc(alias = "it_connection_event_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A work request is complete.
    Dto(DtoCompletion),
    /// A peer requests a connection.
    ConnRequest(ConnRequest),
    /// A peer requests a UD service.
    UdServiceRequest(UdServiceRequest),
    /// The passive side accepted the connection. The endpoint is in ACTIVE2_CONNECTION_PENDING.
    ConnAcceptArrival {
        /// The event dispatcher on which the event was queued.
        evd: EvdHandle,
        /// The endpoint.
        ep: EpHandle,
        /// The identifier of the peer's accept, for it_ep_accept and it_reject.
        cn_est_id: CnEstId,
        /// The peer's inbound read depth.
        rdma_read_ird: u32,
        /// The peer's outbound read depth.
        rdma_read_ord: u32,
        /// The peer's private data.
        private_data: Option<PrivateData>,
    },
    /// The connection is established; the endpoint is in CONNECTED.
    ConnEstablished {
        /// The event dispatcher on which the event was queued.
        evd: EvdHandle,
        /// The endpoint.
        ep: EpHandle,
        /// The peer's inbound read depth.
        rdma_read_ird: u32,
        /// The peer's outbound read depth.
        rdma_read_ord: u32,
        /// The peer's private data.
        private_data: Option<PrivateData>,
    },
    /// One of the consumers disconnected; the endpoint is in NONOPERATIONAL.
    ConnDisconnect {
        /// The event dispatcher on which the event was queued.
        evd: EvdHandle,
        /// The endpoint.
        ep: EpHandle,
        /// The peer's private data.
        private_data: Option<PrivateData>,
    },
    /// The peer's consumer rejected the connection; the endpoint is in NONOPERATIONAL.
    ConnPeerReject {
        /// The event dispatcher on which the event was queued.
        evd: EvdHandle,
        /// The endpoint.
        ep: EpHandle,
        /// The peer's private data.
        private_data: Option<PrivateData>,
    },
    /// The connection could not be established; the endpoint is in NONOPERATIONAL.
    ConnNonpeerReject {
        /// The event dispatcher on which the event was queued.
        evd: EvdHandle,
        /// The endpoint.
        ep: EpHandle,
        /// The reason.
        reject_reason_code: RejectReason,
        /// The path that the peer suggests, with [`RejectReason::BadPath`].
        dst_path: Option<Path>,
    },
    /// The connection broke; the endpoint is in NONOPERATIONAL.
    ConnBroken {
        /// The event dispatcher on which the event was queued.
        evd: EvdHandle,
        /// The endpoint.
        ep: EpHandle,
    },
    /// The answer to a UD service request.
    UdServiceReply(UdServiceReply),
    /// An affiliated asynchronous event, which concerns one object.
    Affiliated {
        /// The event's number.
        event_number: EventType,
        /// The event dispatcher on which the event was queued.
        evd: EvdHandle,
        /// The object.
        cause: AffiliatedCause,
    },
    /// An unaffiliated asynchronous event, which concerns the IA.
    Unaffiliated {
        /// The event's number.
        event_number: EventType,
        /// The event dispatcher on which the event was queued.
        evd: EvdHandle,
        /// The IA.
        ia: IaHandle,
        /// The spigot. Only for spigot events.
        spigot_id: usize,
    },
    /// A software event, which the consumer posted.
    Software {
        /// The event dispatcher on which the event was queued.
        evd: EvdHandle,
        /// The data that the consumer passed to it_evd_post_se.
        data: usize,
    },
    /// A simple event dispatcher notified its aggregate.
    AevdNotification {
        /// The aggregate event dispatcher.
        aevd: EvdHandle,
        /// The simple event dispatcher that notified.
        sevd: EvdHandle,
    },
}

impl Event {
    /// The event's number.
    pub const fn event_number(&self) -> EventType {
        match self {
            Event::Dto(completion) => completion.event_number,
            Event::ConnRequest(_) => EventType::CM_REQ_CONN_REQUEST,
            Event::UdServiceRequest(_) => EventType::CM_REQ_UD_SERVICE_REQUEST,
            Event::ConnAcceptArrival { .. } => EventType::CM_MSG_CONN_ACCEPT_ARRIVAL,
            Event::ConnEstablished { .. } => EventType::CM_MSG_CONN_ESTABLISHED,
            Event::ConnDisconnect { .. } => EventType::CM_MSG_CONN_DISCONNECT,
            Event::ConnPeerReject { .. } => EventType::CM_MSG_CONN_PEER_REJECT,
            Event::ConnNonpeerReject { .. } => EventType::CM_MSG_CONN_NONPEER_REJECT,
            Event::ConnBroken { .. } => EventType::CM_MSG_CONN_BROKEN,
            Event::UdServiceReply(_) => EventType::CM_MSG_UD_SERVICE_REPLY,
            Event::Affiliated { event_number, .. } | Event::Unaffiliated { event_number, .. } => {
                *event_number
            }
            Event::Software { .. } => EventType::SOFTWARE,
            Event::AevdNotification { .. } => EventType::AEVD_NOTIFICATION,
        }
    }

    /// The event dispatcher on which the event was queued.
    pub const fn evd(&self) -> EvdHandle {
        match self {
            Event::Dto(completion) => completion.evd,
            Event::ConnRequest(request) => request.evd,
            Event::UdServiceRequest(request) => request.evd,
            Event::UdServiceReply(reply) => reply.evd,
            Event::ConnAcceptArrival { evd, .. }
            | Event::ConnEstablished { evd, .. }
            | Event::ConnDisconnect { evd, .. }
            | Event::ConnPeerReject { evd, .. }
            | Event::ConnNonpeerReject { evd, .. }
            | Event::ConnBroken { evd, .. }
            | Event::Affiliated { evd, .. }
            | Event::Unaffiliated { evd, .. }
            | Event::Software { evd, .. }
            | Event::AevdNotification { aevd: evd, .. } => *evd,
        }
    }

    /// The completion, if the event is one.
    pub const fn dto(&self) -> Option<&DtoCompletion> {
        match self {
            Event::Dto(completion) => Some(completion),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_number_in_words_is_its_name() {
        assert_eq!(alloc::format!("{:?}", EventType::DTO_SEND_CMPL), "IT_DTO_SEND_CMPL_EVENT");
        assert_eq!(alloc::format!("{:?}", EventType(0x77)), "EventType(0x77)");
        assert_eq!(EventType::ASYNC_AFF_EP_LOCAL_ACCESS_VIOLATION.stream().as_raw() & 0xfff, 0);
        assert_ne!(EventType::ASYNC_AFF_EP_LOCAL_ACCESS_VIOLATION.stream(), EventType::SOFTWARE.stream());
    }

    #[test]
    fn an_event_names_its_dispatcher_and_its_number() {
        let evd = EvdHandle::from_raw(7);
        let software = Event::Software { evd, data: 3 };
        let completion = DtoCompletion { evd, event_number: EventType::DTO_SEND_CMPL, ..Default::default() };
        let done = Event::Dto(completion);
        for (event, number) in [(software, EventType::SOFTWARE), (done, EventType::DTO_SEND_CMPL)] {
            assert_eq!((event.evd(), event.event_number()), (evd, number));
        }
        assert_eq!((software.dto(), done.dto()), (None, Some(&completion)));
    }

    #[test]
    fn only_a_received_datagram_with_its_header_has_a_source() {
        let mut header = [0; 40];
        header[0] = 0x60;
        header[8..24].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        let received = DtoCompletion {
            event_number: EventType::DTO_UD_RECV_CMPL,
            flags: DtoUdFlags::IB_GRH_PRESENT,
            ..DtoCompletion::default()
        };
        assert_eq!(received.dto_status, DtoStatus::Success);
        assert!(received.src_path(&header).is_some());
        for other in [
            DtoCompletion { event_number: EventType::DTO_SEND_CMPL, ..received },
            DtoCompletion { dto_status: DtoStatus::Flushed, ..received },
            DtoCompletion { flags: DtoUdFlags::empty(), ..received },
        ] {
            assert_eq!(other.src_path(&header), None, "{other:?}");
        }
    }
}

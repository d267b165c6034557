//! What the agent tells its clients.

use nic_abi::cqe;
use nic_abi::eqe::EventType;
use nic_hal::Death;

use crate::{ConnectionId, ListenId, ResolutionEvent};

/// An asynchronous event that is not about one completion or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// About a queue pair (IT-API affiliated event).
    Qp {
        /// The context given when the queue pair was created.
        context: u64,
        /// Its number, which tells it from another one of the same context.
        qpn: u32,
        /// What happened.
        event: EventType,
        /// Why, where the event reports a failed request.
        status: Option<cqe::Status>,
        /// More, by event.
        detail: u32,
    },
    /// A CQ overflowed or failed; it takes no more entries. Its queue pairs go to ERROR.
    Cq {
        /// The context given when the CQ was created.
        context: u64,
    },
    /// About a shared receive queue.
    Srq {
        /// The context given when the SRQ was created.
        context: u64,
        /// What happened.
        event: EventType,
    },
    /// The port came up or went down (IT-API unaffiliated event).
    Port {
        /// Whether it is up now.
        up: bool,
    },
}

/// What happened to a connection. The queue pair's state has changed already when it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmEvent<'a> {
    /// Which connection.
    pub connection: ConnectionId,
    /// The context of the connection's queue pair; for [`CmEventKind::Request`] and for
    /// [`CmEventKind::Withdrawn`] (no queue pair yet) the listening point's.
    pub context: u64,
    /// What happened.
    pub kind: CmEventKind,
    /// What goes with the reason of [`CmEventKind::Rejected`] (IBTA vol. 1 table 109); else empty.
    pub information: &'a [u8],
    /// The private data that came along; empty if none did. Padded with zeroes to the message's size.
    pub private_data: &'a [u8],
}

/// What a peer's request says of the path between its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedPath {
    /// Partition key.
    pub pkey: u16,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: u8,
    /// Packet rate.
    pub packet_rate: u8,
    /// Whether the peer takes us to be in its subnet.
    pub subnet_local: bool,
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// Passive side: a peer asks for a connection. Answer with `accept` or `reject`.
    Request {
        /// The listening point.
        listen: ListenId,
        /// The peer's GID.
        remote_gid: [u8; 16],
        /// Our GID's index to which it was sent.
        source_gid: u8,
        /// The peer's queue pair.
        remote_qpn: u32,
        /// The RDMA Reads that the peer will have outstanding at most.
        remote_initiator_depth: u8,
        /// The RDMA Reads of ours that the peer can serve at once.
        remote_responder_resources: u8,
        /// Path MTU that the peer asks for, bytes.
        path_mtu: u32,
        /// The rest of the path.
        path: RequestedPath,
    },
    /// Passive side, before accept: the peer gave up or the request timed out.
    Withdrawn,
    /// Active side, three-way: the peer accepted; answer with `establish` or `reject`. The queue pair is ready to receive.
    AcceptArrived {
        /// The RDMA Reads that the peer will have outstanding at most.
        remote_initiator_depth: u8,
        /// The RDMA Reads of ours that the peer can serve at once.
        remote_responder_resources: u8,
    },
    /// The connection stands; the queue pair is ready to send.
    Established,
    /// The peer (or its agent) rejected.
    Rejected {
        /// The reason code (IBTA 12.6.7.2); 28 is the consumer's own.
        reason: u16,
    },
    /// Nobody answered in time.
    Unreachable,
    /// Passive side: the peer's agent never confirmed the accept.
    AcceptTimedOut,
    /// The connection ended: the peer disconnected, or it has answered our disconnect, or that timed out. The queue
    /// pair is in ERROR.
    Disconnected {
        /// Whether the peer began it.
        by_peer: bool,
    },
}

/// What a client hears. All calls come from the agent's dispatcher thread, one after the other, with interrupts on
/// and with no lock of the agent held: they may call the agent for anything but `Agent::close`.
/// An upcall that blocks holds up all other events of the NIC, and the watch on its heartbeat.
pub trait Upcalls: Send + Sync {
    /// A CQ that was armed got an entry. May be spurious; the CQ is not armed any more.
    fn completion(&self, cq_context: u64);

    /// An asynchronous event.
    fn asynchronous(&self, event: AsyncEvent);

    /// Something happened to a connection.
    fn connection(&self, event: CmEvent<'_>);

    /// Something happened in service resolution. Who offers and asks for no datagram service need not listen.
    fn resolution(&self, _event: ResolutionEvent<'_>) {}

    /// The device is dead; called once. Nothing that is outstanding will complete.
    fn catastrophic(&self, death: Death);
}

//! The calls that the agent makes into its clients, and their arguments.

use nic_abi::cqe;
use nic_abi::eqe::{EventType, StreamFault};
use nic_hal::{Death, Terminate};
use roce::cm::redirection::Redirection;
use roce::cm::rej::Reason;
use roce::cm::{ReadDepths, sidr};
use roce::{PKey, Path, PathMtu, ServiceId};

use crate::cm::{ConnectionId, ListenId, ResolutionId, ResolutionRequestId};
use crate::{QpType, ViError, ViSide};

/// An asynchronous event that is not about one completion or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// About a queue pair (IT-API affiliated event).
    Qp {
        /// The context given when the queue pair was created.
        context: u64,
        /// Its number, which distinguishes it from another queue pair of the same context.
        qpn: u32,
        /// What happened.
        event: EventType,
        /// Why, where the event reports a failed request.
        status: Option<cqe::Status>,
        /// Whether a completion of the queue pair says what went wrong.
        completes: bool,
    },
    /// The stream of an iWARP queue pair has ended for an error (IT-API affiliated event). The
    /// queue pair is in ERROR. The event of its connection came before: if it was established,
    /// [`CmEventKind::Disconnected`], not by the peer's client.
    StreamEnded {
        /// The context given when the queue pair was created.
        context: u64,
        /// Its number.
        qpn: u32,
        /// Why; never [`StreamFault::None`].
        fault: StreamFault,
        /// The Terminate that was sent or received.
        terminate: Option<Terminate>,
        /// Whether a completion of the queue pair shows the error.
        completes: bool,
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
    /// An error of a virtual interface that no descriptor shows (VIA 9.9.1). That a connection is
    /// lost is reported once, whichever end or the agent finds it out; the virtual interface is in
    /// ERROR by then, and [`CmEventKind::Disconnected`] follows.
    Vi {
        /// The context given when the virtual interface was created.
        context: u64,
        /// The number that it had. Each reset gives it another one, so an error of a connection
        /// that is over can be told from one of the next.
        number: u32,
        /// What happened.
        error: ViError,
        /// The operation that the error is of, as the bits of a descriptor's status code it
        /// (`OP_MASK`, shifted down).
        operation: u8,
        /// The virtual address of the descriptor that the error is about, or 0.
        address: u64,
    },
    /// The port came up or went down (IT-API unaffiliated event).
    Port {
        /// Whether it is up now.
        up: bool,
    },
}

/// What happened to a connection. The agent changes the queue pair's state before it reports the
/// event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmEvent<'a> {
    /// Which connection.
    pub connection: ConnectionId,
    /// The context of the connection's queue pair or virtual interface; for
    /// [`CmEventKind::Request`] and for [`CmEventKind::Withdrawn`] (no queue pair yet) the
    /// listening point's.
    pub context: u64,
    /// What happened.
    pub kind: CmEventKind,
    /// The additional information of [`CmEventKind::Rejected`] (IBTA vol. 1 table 109); else empty.
    pub information: &'a [u8],
    /// The private data that came along; empty if none did. Padded with zeroes to the message's
    /// size; of iWARP it has the length that the peer gave it.
    pub private_data: &'a [u8],
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// Passive side: a peer asks for a connection. Answer with `accept` or `reject`.
    Request {
        /// The listening point.
        listen: ListenId,
        /// The service that the peer asks for.
        service: ServiceId,
        /// The type of the queue pair to accept with.
        qp_type: QpType,
        /// The path back to the peer.
        path: Path,
        /// The index of the path's local GID.
        source_gid: u8,
        /// Path MTU that the peer asks for.
        path_mtu: PathMtu,
        /// Partition key.
        pkey: PKey,
        /// The peer's read depths.
        depths: ReadDepths,
        /// The port that the peer says it has, of a service of rdma_cm's; else 0.
        source_port: u16,
    },
    /// Passive side, before accept: the peer gave up or the request timed out.
    Withdrawn,
    /// Active side, three-way: the peer accepted; answer with `establish` or `reject`. The queue
    /// pair is ready to receive.
    AcceptArrived {
        /// The peer's read depths.
        depths: ReadDepths,
    },
    /// iWARP, the end of a conversion that sent the last message: the peer's Request has come, and
    /// the Reply follows. The connection is established when the peer's first message has come.
    TransitionRequested,
    /// The connection is established; the queue pair is ready to send. Private data: on the passive
    /// side that of the RTU, on the active side, two-way, that of the reply; three-way none.
    Established {
        /// The peer's read depths, as it announced them; of a conversion 0.
        depths: ReadDepths,
    },
    /// The peer or its agent rejected; or, two-way, this agent did, since the read depths do not
    /// fit ([`Reason::INSUFFICIENT_RESPONDER_RESOURCES`], which the peer's agent may give too).
    Rejected {
        /// Why. [`Reason::CONSUMER_DEFINED`] is the peer's consumer's own.
        reason: Reason,
    },
    /// The peer did not answer in time.
    Unreachable,
    /// Passive side: the peer's agent never confirmed the accept.
    AcceptTimedOut,
    /// The connection ended: the peer disconnected, or it answered our disconnect, or that timed
    /// out, or the connection broke. The queue pair is in ERROR, unless the connection was made
    /// with other [`Moves`](crate::Moves) than all.
    Disconnected {
        /// Whether the peer's client ended it. If not, our client did, or the connection broke at
        /// one of its ends.
        by_peer: bool,
    },
}

/// An event of service resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolutionEvent<'a> {
    /// The context of the listening point (requests) or of our resolution.
    pub context: u64,
    /// What happened.
    pub kind: ResolutionEventKind,
    /// The private data that came along, padded with zeroes to the message's size.
    pub private_data: &'a [u8],
}

/// What happened in service resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolutionEventKind {
    /// A peer asks. Answer with `answer_resolution`, or `disregard_resolution`.
    Request {
        /// The id to answer with.
        request: ResolutionRequestId,
        /// The id that the peer gave the request; it does not change when the peer asks again.
        request_id: u32,
        /// The peer's GID.
        remote_gid: [u8; 16],
        /// The index of our GID to which the request was sent.
        source_gid: u8,
        /// The port that the peer says it has, of a service of rdma_cm's; else 0.
        source_port: u16,
    },
    /// A peer answered.
    Reply {
        /// Our resolution.
        resolution: ResolutionId,
        /// The peer's answer.
        status: sidr::Status,
        /// The service's queue pair, with [`sidr::Status::Valid`].
        qpn: u32,
        /// The service's queue key, with [`sidr::Status::Valid`].
        qkey: u32,
        /// Where to ask, with [`sidr::Status::Redirected`], if the peer's message says it.
        redirection: Option<Redirection>,
    },
    /// The peer did not answer.
    TimedOut {
        /// Our resolution.
        resolution: ResolutionId,
    },
}

/// The calls that the agent makes into a client.
///
/// The agent makes all of them from its dispatcher thread, one after the other, with interrupts on
/// and with no lock of the agent held: they may call the agent for anything but `Agent::close`. An
/// upcall that blocks holds up all other events of the NIC, and the watch on its heartbeat. One is
/// made by the thread that closes the agent, [`Upcalls::catastrophic`], when the dispatcher thread
/// has ended.
pub trait Upcalls: Send + Sync {
    /// A CQ that was armed got an entry. May be spurious; the CQ is not armed any more.
    fn completion(&self, cq_context: u64);

    /// A queue of a virtual interface that was armed has a descriptor that is complete. May be
    /// spurious; the queue is not armed any more. A client without virtual interfaces can leave
    /// this out.
    fn vi_completion(&self, _context: u64, _side: ViSide) {}

    /// An asynchronous event.
    fn asynchronous(&self, event: AsyncEvent);

    /// Something happened to a connection.
    fn connection(&self, event: CmEvent<'_>);

    /// Something happened to a stream, or a stream waits at a listener. May be spurious. Do with it
    /// what it allows, until nothing is left: there is no other upcall for what happened before
    /// this one. A client without streams can leave this out.
    fn stream(&self, _context: u64) {}

    /// Something happened in service resolution. A client that neither offers datagram services nor
    /// asks for them can leave this out.
    fn resolution(&self, _event: ResolutionEvent<'_>) {}

    /// The device is dead, or the agent was closed ([`Death::Closed`]); called once. Nothing that
    /// is outstanding will complete.
    fn catastrophic(&self, death: Death);
}

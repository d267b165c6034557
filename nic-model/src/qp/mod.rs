//! Queue pairs.
//!
//! | module | subject |
//! |---|---|
//! | `state` | the table of states (IBTA 10.3.1) |
//! | `send`, `receive`, `segments` | the work queues; their entries, as the driver wrote them |
//! | `entries` | takes entries from the work queues |
//! | `engine` | a queue pair's turn, the effects of outcomes, timers |
//! | `turns` | how a queue pair enters and leaves the lists of the schedule |
//! | `completion` | how work requests end: completions, the way into the error state |
//! | `message` | requests from requester to responder, and their answers |
//! | `requester` | makes a request of a work request, and an outcome of the answer |
//! | `responder` | checks a request against the queue pair, its rights and its receives, and carries it out |
//! | `local` | work requests that need no peer: link, invalidate, bind |
//! | `unreliable` | the unreliable connection by the short cut |
//! | `stream` | iWARP: a connection over a TCP stream, or by the short cut |
//! | `vi` | virtual interfaces: descriptors in the consumer's memory instead of entries |
//! | `services` | the transport's engines, of both kinds of connection |
//! | `flights` | work requests that have left the send queue |
//! | `requests` | those to a peer that the port reaches |
//! | `wire` | sends their packets, and takes the answers |
//! | `answers` | the peer's packets, answers to them, and the turn of a queue pair that sends by the port |
//! | `congestion` | notifications of congestion, in both directions |
//! | `datagram` | UD and GSI |
//! | `flush` | the error state |
//!
//! The methods of a queue pair take its NIC (`&mut Nic`) and, where they may activate the queue
//! pair or set its timer, the schedule: a step looks both up once and passes them on.

mod answers;
mod completion;
mod congestion;
mod datagram;
mod engine;
mod entries;
mod flights;
mod flush;
pub(crate) mod local;
mod message;
mod receive;
mod requester;
mod requests;
mod responder;
mod segments;
mod send;
mod services;
pub(crate) mod state;
pub(crate) mod stream;
mod turns;
mod unreliable;
pub(crate) mod vi;
mod wire;

use alloc::boxed::Box;
use alloc::vec::Vec;
use nic_abi::admin::{ModifyQp, QpState, QpType};
use platform::Instant;
use roce::transport::{Persistence, Service};
use roce::{PathMtu, Psn};

use crate::ids::{NicId, QpId};
use crate::keys::Owner;
use crate::test_commands::faults::Faults;

use receive::Receive;
pub(crate) use receive::ReceiveQueue;
use requests::Requests;
pub(crate) use requests::limits;
pub(crate) use segments::KeyKind;
pub(crate) use send::{SendQueue, Work};
use services::ResponderEngine;
pub(crate) use stream::Stream;
use vi::Vi;

/// The well-known queue key of the general services QP (IBTA 3.9.1).
pub(crate) const GSI_QKEY: u32 = 0x8001_0000;
/// Packet sequence numbers have 24 bits.
pub(crate) const PSN_MASK: u32 = 0xff_ffff;

/// How a connected queue pair reaches its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing was sent yet, or no known NIC has the peer's GID.
    Unknown,
    /// The peer's NIC is in this process, and no packets are needed.
    ShortCut(NicId),
    /// In packets.
    Port,
    /// Over a stream: the peer of an iWARP queue pair.
    Stream,
}

/// What the responder keeps of its peer's requests.
#[derive(Default)]
pub(crate) struct Inbound {
    /// Tracks which requests are in sequence; exists from RTR on, on connected queue pairs.
    pub engine: Option<ResponderEngine>,
    /// The short cut has carried out a part of the next message.
    pub open: bool,
    /// The queue pair has refused a request that came in a packet. Until the driver changes its
    /// state, it still sends the answers that are due, and answers requests that its peer repeats.
    pub refusing: bool,
    /// The first message has been reported.
    pub established: bool,
    /// When the peer was last told that its packets come through long queues.
    pub notified: Option<Instant>,
    /// The receive that a message took and that is not complete.
    pub receive: Receive,
}

/// A queue pair.
pub(crate) struct Qp {
    pub id: QpId,
    pub qpn: u32,
    pub generation: u32,
    pub kind: QpType,
    pub privileged: bool,
    /// What an RDMA Read fills counts as written by the peer.
    pub reads_write: bool,
    /// Which kinds of keys its segments may have.
    pub keys: KeyKind,
    pub pd: u32,
    /// The owner whose narrow windows the queue pair may use and unbind.
    pub owner: Owner,
    pub send_cq: u32,
    pub receive_cq: u32,
    pub srq: Option<u32>,
    pub eq: u32,
    pub max_message: u64,
    pub state: QpState,
    /// The status that moved the queue pair to ERROR.
    pub error: u8,
    /// What `ModifyQp` set.
    pub attributes: ModifyQp,
    /// The path's MTU.
    pub mtu: PathMtu,
    /// How the peer is reached.
    pub way: Way,
    pub send: SendQueue,
    pub receive: ReceiveQueue,
    pub inbound: Inbound,
    /// The next PSN to send by the short cut; the first one by the port.
    pub send_psn: Psn,
    /// The requester that sends by the port; created by the first request.
    pub requests: Option<Box<Requests>>,
    /// The connection of an iWARP queue pair.
    pub stream: Option<Box<Stream>>,
    /// What a Terminate has quoted: the STag or message's number, and the tagged offset or queue.
    pub quoted: (u32, u64),
    /// Whether an answer went first in the last step by the port; answers and requests take turns.
    pub answers_first: bool,
    /// It waits for room in the wire, or for the peer's MAC, for which the port is asking: it is in
    /// a list of its NIC.
    pub stalled: bool,
    pub unresolved: bool,
    /// The peer did not answer the port's questions: the next packet to it is lost.
    pub unreached: bool,
    /// For what it waits where it sends by the short cut, and how often it still repeats a request.
    pub persistence: Persistence,
    /// When the timer fires; the schedule sets it.
    pub deadline: Option<Instant>,
    /// The queue pair has work; the schedule sets it.
    pub active: bool,
    /// The drained event is still to be raised.
    pub draining: bool,
    /// The index of the last drained event.
    pub drained_event: Option<u32>,
    /// The event "last entry of the SRQ" is still to be raised.
    pub last_wqe: bool,
    pub faults: Faults,
    /// The multicast groups that it has joined.
    pub groups: Vec<[u8; 16]>,
    /// The state of a virtual interface. If present, `kind` follows from the reliability level.
    pub vi: Option<Box<Vi>>,
}

impl Qp {
    /// Whether messages can arrive.
    #[inline]
    pub fn can_receive(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    /// Whether the queue pair answers request packets of the peer.
    #[inline]
    pub fn answers_packets(&self) -> bool {
        self.can_receive() || (self.state == QpState::Error && self.inbound.refusing)
    }

    /// Whether the queue pair has a connection of this service.
    pub fn serves(&self, service: Service) -> bool {
        matches!(self.kind, QpType::Rc | QpType::Uc) && services::service(self.kind) == service
    }

    /// Creates the responder's engine.
    pub fn expect_requests(&mut self) {
        let ModifyQp { receive_psn, max_dest_rd_atomic, .. } = self.attributes;
        let psn = Psn::new(receive_psn);
        self.inbound.engine = Some(ResponderEngine::new(self.kind, psn, self.mtu, max_dest_rd_atomic));
    }
}

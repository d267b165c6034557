//! Queue pairs.
//!
//! | module | subject |
//! |---|---|
//! | `state` | the table of states (IBTA 10.3.1) |
//! | `send`, `receive`, `segments` | entries of the work queues, as the driver wrote them |
//! | `engine` | a queue pair's turn, what an outcome leads to, timers |
//! | `completion` | how work requests end: completions, the way into the error state |
//! | `message` | what goes from requester to responder, and what comes back |
//! | `requester` | a work request becomes a request; what the answer means |
//! | `responder` | checks a request against the queue pair, its rights and its receives, and carries it out |
//! | `local` | work requests that need no peer: link, invalidate, bind |
//! | `datagram` | UD and GSI |
//! | `flush` | the error state |
//!
//! The methods of a queue pair take its NIC (`&mut Nic`) and, where they may activate it or set its
//! timer, the schedule: a step looks both up once and passes them on.

mod completion;
mod datagram;
mod engine;
mod flush;
pub(crate) mod local;
mod message;
mod receive;
mod requester;
mod responder;
mod segments;
mod send;
pub(crate) mod state;

use nic_abi::admin::{ModifyQp, QpState, QpType};
use platform::Instant;

use crate::ids::{NicId, QpId};
use crate::keys::Owner;
use crate::test_commands::faults::Faults;

use receive::Receive;
pub(crate) use send::Work;

/// The well-known queue key of the general services QP (IBTA 3.9.1).
pub(crate) const GSI_QKEY: u32 = 0x8001_0000;
/// Packet sequence numbers have 24 bits.
pub(crate) const PSN_MASK: u32 = 0xff_ffff;

/// A send queue.
pub(crate) struct SendQueue {
    pub ring: u64,
    pub log: u32,
    pub max_segments: u32,
    /// Blocks taken since creation.
    pub head: u32,
    /// Blocks posted since creation, as of the last doorbell.
    pub tail: u32,
    /// The entry at the head, while `work.loaded`.
    pub work: Work,
}

/// A receive queue; unused where there is an SRQ.
pub(crate) struct ReceiveQueue {
    pub ring: u64,
    pub log: u32,
    pub max_segments: u32,
    /// Entries taken since creation.
    pub head: u32,
}

/// Why a queue pair sends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing holds it up.
    No,
    /// No answer came: it tries again when the timer fires.
    Answer,
    /// No answer came, and the timeout is for ever.
    Forever,
    /// The receiver was not ready, or the request is delayed.
    Pause,
}

/// What the responder keeps of its peer's requests.
#[derive(Default)]
pub(crate) struct Inbound {
    /// The next PSN expected.
    pub psn: u32,
    /// A message of which a part has arrived begins at `psn`.
    pub open: bool,
    /// The last atomic operation's PSN and original value, for a repetition, which must not be
    /// executed again.
    pub atomic: Option<(u32, u64)>,
    /// The first message has been reported.
    pub established: bool,
    /// The receive that was taken and is not complete.
    pub receive: Receive,
}

/// A queue pair.
pub(crate) struct Qp {
    pub id: QpId,
    pub qpn: u32,
    pub generation: u32,
    pub kind: QpType,
    pub privileged: bool,
    pub pd: u32,
    /// Whose narrow windows it may use and unbind.
    pub owner: Owner,
    pub send_cq: u32,
    pub receive_cq: u32,
    pub srq: Option<u32>,
    pub eq: u32,
    pub max_message: u64,
    pub state: QpState,
    /// The status that moved it to ERROR.
    pub error: u8,
    /// What `ModifyQp` set.
    pub attributes: ModifyQp,
    /// The NIC that the peer's GID names, once it is known.
    pub peer: Option<NicId>,
    pub send: SendQueue,
    pub receive: ReceiveQueue,
    pub inbound: Inbound,
    pub send_psn: u32,
    pub wait: Wait,
    /// When its timer fires; set by the schedule.
    pub deadline: Option<Instant>,
    /// It has work; set by the schedule.
    pub active: bool,
    /// The drained event is still to be raised.
    pub draining: bool,
    /// The event "last entry of the SRQ" is still to be raised.
    pub last_wqe: bool,
    pub faults: Faults,
}

impl Qp {
    /// Whether messages can arrive.
    #[inline]
    pub fn can_receive(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    /// Packets that a message of that length takes.
    #[inline]
    pub fn packets(&self, length: u64) -> u32 {
        (length.div_ceil(u64::from(self.attributes.mtu.max(256))).max(1) as u32) & PSN_MASK
    }
}

/// `psn` plus `packets`, modulo 2^24.
#[inline]
pub(crate) const fn psn_add(psn: u32, packets: u32) -> u32 {
    psn.wrapping_add(packets) & PSN_MASK
}

/// Whether `psn` is before `expected`, that is in the half circle behind it. The longest message
/// at the smallest MTU takes 2^23 PSNs, so the place opposite is behind as well.
#[inline]
pub(crate) const fn psn_before(psn: u32, expected: u32) -> bool {
    let behind = expected.wrapping_sub(psn) & PSN_MASK;
    behind != 0 && behind <= PSN_MASK / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_MESSAGE;

    #[test]
    fn a_repetition_of_the_longest_message_is_one() {
        let packets = (MAX_MESSAGE / 256) as u32;
        for psn in [0, 5, PSN_MASK] {
            assert!(psn_before(psn, psn_add(psn, packets)), "{psn}");
            assert!(psn_before(psn, psn_add(psn, 1)), "{psn}");
            assert!(!psn_before(psn, psn), "{psn}");
            assert!(!psn_before(psn_add(psn, 1), psn), "{psn}");
        }
    }
}

//! The states of a connection and the table of all transitions (IBTA vol. 1 section 12.9.7).
//!
//! The names are the specification's. Two shortcuts are ours: a rejection leads to TimeWait only if
//! a queue pair may have been connected already, and DREQ Rcvd is left at once, since IT-API's
//! consumers do not take part in the DREP.

use core::fmt;

use State::*;
use roce::cm::rej::Rejected;
use thiserror::Error;

/// The state of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// There is no connection, yet or any more.
    Idle,
    /// Passive: there is a listening point.
    Listen,
    /// Active: a REQ was sent.
    ReqSent,
    /// Passive: a REQ waits for the consumer's answer.
    ReqRcvd,
    /// Passive: as ReqRcvd, and an MRA was sent.
    MraReqSent,
    /// Active: as ReqSent, and the peer sent an MRA.
    MraReqRcvd,
    /// Passive: a REP was sent.
    RepSent,
    /// Active: a REP waits for the consumer's answer.
    RepRcvd,
    /// Active: as RepRcvd, and an MRA was sent.
    MraRepSent,
    /// Passive: as RepSent, and the peer sent an MRA.
    MraRepRcvd,
    /// The connection is established.
    Established,
    /// A DREQ was sent.
    DreqSent,
    /// The peer's DREQ is being answered.
    DreqRcvd,
    /// The connection has ended; packets of it may still be in the network.
    TimeWait,
}

impl State {
    /// All states.
    pub const ALL: [State; 14] = [
        Idle,
        Listen,
        ReqSent,
        ReqRcvd,
        MraReqSent,
        MraReqRcvd,
        RepSent,
        RepRcvd,
        MraRepSent,
        MraRepRcvd,
        Established,
        DreqSent,
        DreqRcvd,
        TimeWait,
    ];

    /// Passive: whether a request waits for the consumer's answer.
    pub const fn is_pending_request(self) -> bool {
        matches!(self, ReqRcvd | MraReqSent)
    }

    /// Active: whether the connection is being made.
    pub const fn is_connecting(self) -> bool {
        matches!(self, ReqSent | MraReqRcvd | RepRcvd | MraRepSent)
    }

    /// Whether the connection is over, apart from messages and packets in the network.
    pub const fn is_over(self) -> bool {
        matches!(self, Idle | DreqSent | DreqRcvd | TimeWait)
    }

    /// Passive: whether the peer has not confirmed our reply.
    pub const fn awaits_confirmation(self) -> bool {
        matches!(self, RepSent | MraRepRcvd)
    }

    /// Passive: whether the peer may not have got a message of ours yet, and then does not know our
    /// communication id.
    pub const fn awaits_first_word(self) -> bool {
        matches!(self, ReqRcvd | MraReqSent | RepSent | MraRepRcvd)
    }

    /// Whether a REJ about this message fits: the peer rejects only what this side has sent, and
    /// from then on it may give the whole up. That is "other" unless it answers the message that it
    /// received last.
    pub fn can_be_rejected(self, rejected: Rejected) -> bool {
        match self {
            ReqSent | MraReqRcvd => matches!(rejected, Rejected::Req | Rejected::Other),
            RepSent | MraRepRcvd => matches!(rejected, Rejected::Rep | Rejected::Other),
            _ => rejected == Rejected::Other,
        }
    }

    /// The state after `by`.
    pub const fn next(self, by: Trigger) -> Result<State, Illegal> {
        let mut to = Idle;
        let mut row = 0;
        while row < TABLE.len() {
            let (from, trigger, target) = TABLE[row];
            if trigger as u8 == by as u8 {
                to = target;
                if from as u8 == self as u8 {
                    return Ok(target);
                }
            }
            row += 1;
        }
        Err(Illegal { from: self, to, by })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What makes a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// The active consumer connects.
    Connect,
    /// A REQ arrives.
    Req,
    /// The passive consumer accepts.
    Accept,
    /// The consumer rejects the request or the reply.
    Reject,
    /// An MRA is sent: the consumer needs more time.
    SendMra,
    /// An MRA arrives: the peer's consumer needs more time.
    Mra,
    /// A REP arrives.
    Rep,
    /// The active consumer confirms the reply.
    Establish,
    /// An RTU arrives.
    Rtu,
    /// Data arrived before the RTU.
    CommunicationEstablished,
    /// A REJ arrives.
    Rej,
    /// The consumer gives up an attempt of its own.
    Withdraw,
    /// The consumer disconnects.
    Disconnect,
    /// A DREQ arrives.
    Dreq,
    /// The DREQ is answered.
    SendDrep,
    /// A DREP arrives.
    Drep,
    /// The peer did not answer in time, or TimeWait is over.
    Timeout,
    /// A request is forgotten without an answer.
    Discard,
}

/// All transitions. If several states allow a trigger, its first row is the usual case, which names
/// the target in [`Illegal`].
pub(super) const TABLE: &[(State, Trigger, State)] = &[
    (Idle, Trigger::Connect, ReqSent),
    (Listen, Trigger::Req, ReqRcvd),
    (ReqRcvd, Trigger::Accept, RepSent),
    (MraReqSent, Trigger::Accept, RepSent),
    (ReqRcvd, Trigger::Reject, Idle),
    (MraReqSent, Trigger::Reject, Idle),
    (RepRcvd, Trigger::Reject, TimeWait),
    (MraRepSent, Trigger::Reject, TimeWait),
    (ReqRcvd, Trigger::SendMra, MraReqSent),
    (MraReqSent, Trigger::SendMra, MraReqSent),
    (RepRcvd, Trigger::SendMra, MraRepSent),
    (MraRepSent, Trigger::SendMra, MraRepSent),
    (ReqSent, Trigger::Mra, MraReqRcvd),
    (MraReqRcvd, Trigger::Mra, MraReqRcvd),
    (RepSent, Trigger::Mra, MraRepRcvd),
    (MraRepRcvd, Trigger::Mra, MraRepRcvd),
    (ReqSent, Trigger::Rep, RepRcvd),
    (MraReqRcvd, Trigger::Rep, RepRcvd),
    (RepRcvd, Trigger::Establish, Established),
    (MraRepSent, Trigger::Establish, Established),
    (RepSent, Trigger::Rtu, Established),
    (MraRepRcvd, Trigger::Rtu, Established),
    (RepSent, Trigger::CommunicationEstablished, Established),
    (MraRepRcvd, Trigger::CommunicationEstablished, Established),
    (ReqSent, Trigger::Rej, Idle),
    (MraReqRcvd, Trigger::Rej, Idle),
    (ReqRcvd, Trigger::Rej, Idle),
    (MraReqSent, Trigger::Rej, Idle),
    (RepSent, Trigger::Rej, TimeWait),
    (MraRepRcvd, Trigger::Rej, TimeWait),
    (RepRcvd, Trigger::Rej, TimeWait),
    (MraRepSent, Trigger::Rej, TimeWait),
    // The passive side never received the RTU and gave up.
    (Established, Trigger::Rej, TimeWait),
    (DreqSent, Trigger::Rej, TimeWait),
    (ReqSent, Trigger::Withdraw, Idle),
    (MraReqRcvd, Trigger::Withdraw, Idle),
    (RepSent, Trigger::Withdraw, TimeWait),
    (MraRepRcvd, Trigger::Withdraw, TimeWait),
    (RepRcvd, Trigger::Withdraw, TimeWait),
    (MraRepSent, Trigger::Withdraw, TimeWait),
    (Established, Trigger::Disconnect, DreqSent),
    (Established, Trigger::Dreq, DreqRcvd),
    // The RTU was lost and the active side disconnects already.
    (RepSent, Trigger::Dreq, DreqRcvd),
    (MraRepRcvd, Trigger::Dreq, DreqRcvd),
    // The passive side received data before our RTU and disconnects already.
    (RepRcvd, Trigger::Dreq, DreqRcvd),
    (MraRepSent, Trigger::Dreq, DreqRcvd),
    // Both sides disconnect at the same time.
    (DreqSent, Trigger::Dreq, DreqRcvd),
    (DreqRcvd, Trigger::SendDrep, TimeWait),
    (DreqSent, Trigger::Drep, TimeWait),
    (ReqSent, Trigger::Timeout, Idle),
    (MraReqRcvd, Trigger::Timeout, Idle),
    // The peer gave up its request, and its REJ was lost.
    (ReqRcvd, Trigger::Timeout, Idle),
    (MraReqSent, Trigger::Timeout, Idle),
    (RepSent, Trigger::Timeout, TimeWait),
    (MraRepRcvd, Trigger::Timeout, TimeWait),
    (RepRcvd, Trigger::Timeout, TimeWait),
    (MraRepSent, Trigger::Timeout, TimeWait),
    (DreqSent, Trigger::Timeout, TimeWait),
    (TimeWait, Trigger::Timeout, Idle),
    (ReqRcvd, Trigger::Discard, Idle),
    (MraReqSent, Trigger::Discard, Idle),
];

/// A transition that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{by:?}: no way from {from} to {to}")]
pub struct Illegal {
    /// The state that the connection is in.
    pub from: State,
    /// The state that the trigger leads to.
    pub to: State,
    /// The trigger.
    pub by: Trigger,
}

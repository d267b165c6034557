//! The message that a responder is receiving: which packet may follow (IBTA vol. 1 sections 9.7.4.1
//! and 9.8.2.2).

use crate::PathMtu;

use super::piece::{Extra, MAX_MESSAGE, Operation, Piece, Remote};
use super::reason::Reason;

/// A message of which the first packet has been carried out, and the last has not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    operation: Operation,
    /// Bytes carried out.
    done: u32,
    /// The memory that an RDMA Write announced.
    remote: Remote,
}

impl Open {
    /// Checks that `piece`, of a Send or RDMA Write, may follow what is `open`. Returns the message
    /// as it is once the piece is carried out; the piece begins at byte `done - piece.length`.
    pub(super) fn follow(open: Option<Open>, piece: &Piece, mtu: PathMtu) -> Result<Open, Reason> {
        if !piece.length_fits(mtu) {
            return Err(Reason::BadPacketLength);
        }
        let before = match (open, piece.first) {
            (None, true) => {
                let remote = match piece.operation {
                    Operation::Write => piece.remote.ok_or(Reason::UnsupportedRequest)?,
                    _ => Remote::default(),
                };
                Open { operation: piece.operation, done: 0, remote }
            }
            (Some(open), false) if open.operation == piece.operation => open,
            _ => return Err(Reason::BadOpcodeSequence),
        };
        let room = match piece.operation {
            Operation::Write => before.remote.length,
            _ => MAX_MESSAGE,
        };
        let done = before.done.checked_add(piece.length).ok_or(Reason::RespLocalLengthError)?;
        let announced = piece.operation == Operation::Write && piece.last;
        if done > room || room > MAX_MESSAGE || (announced && done != room) {
            return Err(Reason::RespLocalLengthError);
        }
        Ok(Open { done, ..before })
    }

    /// Whether it has taken a receive.
    pub(super) fn has_receive(&self) -> bool {
        self.operation == Operation::Send
    }
}

/// What the device shall carry out for the peer.
///
/// The device reports how that went with the engine's `executed`. Until then the engine's state is
/// the one before, so an execution that is dropped is a packet that was lost.
#[derive(Debug)]
#[must_use]
pub struct Execution {
    /// What to do.
    pub operation: Operation,
    /// The memory that the whole message is about; zeroes for a Send.
    pub remote: Remote,
    /// Where in the message the payload begins. For an RDMA Read or atomic operation 0.
    pub offset: u32,
    /// Bytes of payload.
    pub length: u32,
    /// The message begins. A Send takes a receive; if one is taken and not complete, which happens
    /// on unreliable connections only, it is used again from its start.
    pub first: bool,
    /// The message ends. A Send's receive is complete; an RDMA Write with immediate data takes and
    /// completes one.
    pub last: bool,
    /// What the last packet carried beside; `None` before that.
    pub extra: Extra,
    /// The receive's completion raises an event.
    pub solicited: bool,
    /// What was received.
    pub(super) piece: Piece,
    /// The message that is open afterwards.
    pub(super) open: Option<Open>,
}

impl Execution {
    /// The execution of a piece of a Send or RDMA Write, from what [`Open::follow`] returned.
    pub(super) fn of_payload(piece: Piece, after: Open) -> Execution {
        Execution {
            operation: piece.operation,
            remote: after.remote,
            offset: after.done.saturating_sub(piece.length),
            length: piece.length,
            first: piece.first,
            last: piece.last,
            extra: if piece.last { piece.extra } else { Extra::None },
            solicited: piece.solicited && piece.last,
            piece,
            open: (!piece.last).then_some(after),
        }
    }

    /// The execution of an RDMA Read or atomic operation.
    pub(super) fn of_answer(piece: Piece, remote: Remote) -> Execution {
        Execution {
            operation: piece.operation,
            remote,
            offset: 0,
            length: 0,
            first: true,
            last: true,
            extra: Extra::None,
            solicited: false,
            piece,
            open: None,
        }
    }

    /// Whether it needs a receive (IBTA vol. 1 section 9.7.5.2.8): the device reports
    /// [`Outcome::NotReady`] if there is none.
    pub fn needs_receive(&self) -> bool {
        match self.operation {
            Operation::Send => true,
            Operation::Write => self.extra != Extra::None,
            _ => false,
        }
    }
}

/// How an [`Execution`] went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Carried out. For an atomic operation the word's value before, else 0.
    Done(u64),
    /// There is no receive: the peer shall wait as long as this RNR NAK timer code says.
    NotReady(u8),
    /// Not carried out, for this reason: one of [`Reason::RespRemoteAccessErrors`] (no right to the
    /// memory), [`Reason::RespOperationalError`] (the device's own failure); any other means that
    /// the request is invalid. The device moves the queue pair to the error state.
    Refused(Reason),
}

//! The message that a responder is receiving: which packet may follow (IBTA vol. 1 sections 9.7.4.1
//! and 9.8.2.2).

use crate::{PathMtu, Psn};

use super::piece::{Extra, MAX_MESSAGE, Operation, Piece, Remote};
use super::reason::Reason;

/// A message of which the first packet has been carried out, and the last has not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// An RDMA Write; otherwise a Send.
    write: bool,
    /// Bytes carried out.
    done: u32,
    /// The memory that an RDMA Write announced.
    remote: Remote,
}

impl Open {
    /// Checks that `piece`, of a Send or RDMA Write, may follow what is `open`. Returns the message
    /// as it is once the piece is carried out; the piece begins at byte `done - piece.length`.
    #[inline(always)]
    pub(super) fn follow(open: Option<Open>, piece: &Piece, mtu: PathMtu) -> Result<Open, Reason> {
        if !piece.length_fits(mtu) {
            return Err(Reason::BadPacketLength);
        }
        let write = piece.operation == Operation::Write;
        let before = match (open, piece.first) {
            (None, true) if write => {
                let remote = piece.remote.ok_or(Reason::UnsupportedRequest)?;
                Open { write, done: 0, remote }
            }
            (None, true) => Open { write, done: 0, remote: Remote::default() },
            (Some(open), false) if open.write == write => open,
            _ => return Err(Reason::BadOpcodeSequence),
        };
        let room = if write { before.remote.length } else { MAX_MESSAGE };
        let done = before.done.checked_add(piece.length).ok_or(Reason::RespLocalLengthError)?;
        if done > room || room > MAX_MESSAGE || (write && piece.last && done != room) {
            return Err(Reason::RespLocalLengthError);
        }
        Ok(Open { done, ..before })
    }

    /// Whether it has taken a receive.
    pub(super) const fn has_receive(&self) -> bool {
        !self.write
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
    /// The first PSN, and how many there are.
    pub(super) psn: Psn,
    pub(super) psns: u32,
    /// The peer asked for an acknowledgement.
    pub(super) ack_request: bool,
}

impl Execution {
    /// The execution of a piece, of the service's MTU, that begins at byte `offset` of a message
    /// about `remote`.
    #[inline(always)]
    pub(super) fn new(piece: &Piece, mtu: PathMtu, remote: Remote, offset: u32) -> Execution {
        Execution {
            operation: piece.operation,
            remote,
            offset,
            length: piece.length,
            first: piece.first,
            last: piece.last,
            extra: if piece.last { piece.extra } else { Extra::None },
            solicited: piece.solicited && piece.last,
            psn: piece.psn,
            psns: piece.psns(mtu),
            ack_request: piece.ack_request,
        }
    }

    /// The execution of a piece of a Send or RDMA Write, if it may follow what is `open`.
    #[inline(always)]
    pub(super) fn of_payload(open: Option<Open>, piece: &Piece, mtu: PathMtu) -> Result<Execution, Reason> {
        let after = Open::follow(open, piece, mtu)?;
        Ok(Execution::new(piece, mtu, after.remote, after.done.saturating_sub(piece.length)))
    }

    /// The message that is open once this is carried out.
    #[inline]
    pub(super) fn open(&self) -> Option<Open> {
        (!self.last).then_some(Open {
            write: self.operation == Operation::Write,
            done: self.offset.saturating_add(self.length),
            remote: self.remote,
        })
    }

    /// Whether it needs a receive (IBTA vol. 1 section 9.7.5.2.8): the device reports
    /// [`Executed::NotReady`] if there is none.
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
pub enum Executed {
    /// Carried out. For an atomic operation the word's value before, else 0.
    Done(u64),
    /// There is no receive: the peer shall wait as long as this RNR NAK timer code says.
    NotReady(u8),
    /// Not carried out, for this reason: one of [`Reason::RespRemoteAccessErrors`] (no right to the
    /// memory), [`Reason::RespOperationalError`] (the device's own failure); any other means that
    /// the request is invalid. The device moves the queue pair to the error state.
    Refused(Reason),
}

//! How a stream ends, and what becomes of what is outstanding.
//!
//! A stream ends once. It is *disconnected* if both directions ended between messages, without a
//! Terminate; otherwise it is *broken*.

use crate::ddp::Header;
use crate::rdmap::read;
use crate::rdmap::terminate::{Form, Quoted, Repr as Terminate};

use super::memory::Denied;
use super::{Code, Engine, State, Status};

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Between messages: this end wanted to, or the peer closed its direction.
    Disconnected,
    /// Otherwise.
    Broken(Cause),
}

/// What broke a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This end has found an error. A Terminate says so to the peer, unless an FPDU was cut, or the
    /// peer has not sent its first one.
    Refused(Fault),
    /// The peer has found one.
    Terminated(Terminate),
    /// The peer closed its direction in the middle of a message.
    InsideMessage,
    /// The stream was reset, or the peer did not acknowledge in time.
    Lost,
}

/// An error that this end has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What the Terminate says.
    pub code: Code,
    /// What it is about.
    pub kind: Kind,
}

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An RDMA Write of the peer reached for memory that it may not write.
    Write,
    /// An RDMA Read of the peer reached for memory that it may not read, has a wrong number, or is
    /// one more than there may be.
    ReadSource,
    /// A response arrived for memory of this end that cannot take it.
    ReadSink,
    /// A Send has no Receive, or a wrong number.
    Receive,
    /// A Send is longer than its Receive.
    ReceiveLength,
    /// A Send names an STag that cannot be invalidated.
    Invalidate,
    /// The segments are not those of the messages that may come: queue, order, place, length.
    Transport,
    /// The opcode is unknown, or is not expected, or RDMAP is of another version.
    Opcode,
    /// The bytes of the stream are not FPDUs, or have a wrong CRC.
    Llp,
    /// A request of this end failed by itself.
    Local,
}

/// What the device shall do with the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Close this direction behind the bytes that were given out, and drop what still comes; end
    /// the stream when the peer has closed its direction, or after a time.
    Finish,
    /// Reset it: what was given out ends in the middle of an FPDU that cannot be finished.
    Reset,
}

/// The code of a tagged segment that is refused.
pub(super) const fn write_code(denied: Denied) -> Code {
    match denied {
        Denied::Stag => Code::DDP_STAG,
        Denied::Bounds => Code::DDP_BOUNDS,
        Denied::Right => Code::RIGHT,
        Denied::Association => Code::DDP_ASSOCIATION,
        Denied::Wrap => Code::DDP_WRAP,
    }
}

/// The code of an RDMA Read that is refused.
pub(super) const fn read_code(denied: Denied) -> Code {
    match denied {
        Denied::Stag => Code::READ_STAG,
        Denied::Bounds => Code::READ_BOUNDS,
        Denied::Right => Code::RIGHT,
        Denied::Association => Code::READ_ASSOCIATION,
        Denied::Wrap => Code::READ_WRAP,
    }
}

impl Engine {
    /// Ends the stream between messages: what is begun is sent to its end, and nothing else. What
    /// was posted and is not complete is flushed. The device bounds the time, and ends a stream
    /// that takes too long by [`Engine::lost`].
    pub fn disconnect(&mut self) {
        self.draining = true;
        if self.end.is_none() && self.current.is_none() && !self.begun && !self.response_begun {
            self.finish(End::Disconnected);
        }
    }

    /// The peer has closed its direction behind the bytes that were received.
    pub fn finished(&mut self) {
        let inside = self.receiver.is_inside()
            || self.arriving.is_some()
            || self.writing.is_some()
            || self.reading.is_some();
        if inside {
            self.fail_arriving();
        }
        self.finish(if inside { End::Broken(Cause::InsideMessage) } else { End::Disconnected });
    }

    /// The stream is gone: it was reset, or nothing was acknowledged for too long. If it has ended
    /// before, what was still to be sent is given up.
    pub fn lost(&mut self) {
        if self.end.is_some() {
            self.terminates &= self.terminate.take().is_none();
            self.cut |= self.current.take().is_some();
        }
        self.fail_arriving();
        self.finish(End::Broken(Cause::Lost));
    }

    /// What the device shall do with the stream, if there is something to do. Bytes that
    /// [`Engine::transmit`] still has come first.
    pub fn close(&self) -> Option<Close> {
        if self.cut {
            return Some(Close::Reset);
        }
        let silent = self.terminate.is_none() && self.current.is_none();
        (self.end.is_some() && silent).then_some(Close::Finish)
    }

    /// The stream ends this way, if it has not ended.
    pub(super) fn finish(&mut self, end: End) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(end);
        self.receive_failed(Status::Flushed);
        // What is written of an FPDU is finished only if a Terminate follows.
        if self.terminate.is_none() {
            self.cut |= self.current.is_some();
            self.current = None;
        }
        self.responses.clear();
    }

    /// What was arriving has failed with the stream.
    fn fail_arriving(&mut self) {
        if self.end.is_some() {
            return;
        }
        self.receive_failed(Status::Transport);
        let oldest = self.outstanding.front().map(|read| read.seq);
        if let Some(slot) = oldest.and_then(|seq| self.slot(seq)) {
            slot.state = State::Failed(Status::Transport);
        }
    }

    /// Ends the stream for an error that this end has found, with a Terminate if it may send.
    pub(super) fn break_off(&mut self, fault: Fault, quoted: Option<Quoted>) {
        if self.end.is_some() {
            return;
        }
        if fault.kind == Kind::Llp {
            self.fail_arriving();
        }
        let terminate = Terminate { code: fault.code, form: Form::Standard, quoted };
        self.terminate = self.speaks.then_some(terminate);
        self.terminates = self.speaks;
        self.finish(End::Broken(Cause::Refused(fault)));
    }

    /// Ends the stream for an error in a segment of the peer, whose headers the Terminate quotes.
    pub(super) fn refuse(&mut self, fault: Fault, length: usize, header: Header, read: Option<read::Repr>) {
        // An error of this end alone is not about the segment.
        let quoted = (fault.code != Code::LOCAL).then(|| Quoted {
            length: u16::try_from(length).unwrap_or(u16::MAX),
            header: Some(header),
            read,
        });
        self.break_off(fault, quoted);
    }

    /// The peer ends the stream for an error. If it quotes an RDMA Read, that one fails for it.
    pub(super) fn peer_terminated(&mut self, terminate: &Terminate) {
        let refused = terminate.quoted.and_then(|quoted| Some((quoted.read?, quoted.header?)));
        if let Some((request, header)) = refused {
            // Linux quotes another number than the request's.
            let numbered = |msn: u32| match (terminate.form, header.place) {
                (Form::Standard, crate::ddp::Place::Untagged { msn: quoted, .. }) => quoted == msn,
                _ => true,
            };
            let mut reads = self.outstanding.iter();
            let found = reads.find(|read| read.request == request && numbered(read.msn));
            let seq = found.map(|read| read.seq);
            if let Some(slot) = seq.and_then(|seq| self.slot(seq)) {
                let protection = terminate.code.is_protection();
                let status = if protection { Status::RemoteAccess } else { Status::RemoteOperation };
                slot.state = State::Failed(status);
            }
        }
        self.finish(End::Broken(Cause::Terminated(*terminate)));
    }
}

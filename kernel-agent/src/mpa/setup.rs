//! The set-up of one connection over a stream, without I/O: bytes, the time and the stream's end go
//! in; what to send, to ask and to report comes out.
//!
//! The initiator sends its Request when the stream is open, and has [`REPLY_TIME`] for the Reply.
//! The responder has [`REQUEST_TIME`] for the Request, and then its client [`ANSWER_TIME`] for the
//! answer. A set-up takes no byte behind the frame that it waits for, so these are the first FPDUs.
//!
//! A *conversion* is the set-up of a stream that the client has used for bytes of its own (IT-API's
//! `it_socket_convert`). The end that sends the last message, which IT-API calls the Conversion
//! Initiator, is the responder of MPA: it answers the Request at once. No end has a time limit, the
//! frames have neither private data nor read depths, and the clients may leave the frames out. The
//! stream may still be full of the client's bytes, so whatever an end says leaves as room arises.

use alloc::vec::Vec;
use core::time::Duration;

use iwarp::mpa::frame::{Kind, MAX_FRAME, MAX_PRIVATE_DATA, Parser, Repr};
use iwarp::mpa::negotiation::{self, Agreed, Answer, Outgoing, Refusal, Wishes};
use nic_abi::admin::StreamEnd;
use platform::Instant;
use roce::cm::ReadDepths;
use roce::cm::rej::Reason;

use super::bind::Role;
use crate::Error;

/// How long a responder waits for the Request, as Linux does.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long an initiator waits for the Reply, as Linux does.
pub(crate) const REPLY_TIME: Duration = Duration::from_secs(10);
/// How long the client of a responder may take for its answer.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(60);

/// What a set-up waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Initiator: the stream opens.
    Opening,
    /// Conversion: bytes leave as the stream has room for them.
    Leaving(Next),
    /// Initiator: the Reply.
    Reply,
    /// Responder: the Request.
    Request,
    /// Responder: the answer of its client.
    Answer,
    /// Nothing: it is over.
    Over,
}

/// What a conversion does when its bytes have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Waits for the Request: they were the client's last message.
    Request,
    /// Waits for the Reply: they were the Request.
    Reply,
    /// Gives the stream to the queue pair: they were the Reply, or there are no frames.
    Bind(Agreed),
}

/// What a set-up wants to have of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Nothing.
    Nothing,
    /// So many bytes at most.
    Bytes(usize),
    /// To know whether there are bytes, without taking them.
    Look,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing, until more happens.
    Wait,
    /// Responder: the client is asked, unless there are bytes behind the Request.
    Ask,
    /// The queue pair gets the stream: of an initiator, since the responder accepts; of a
    /// conversion without frames.
    Bind(Role, Agreed),
    /// Conversion, responder: the client is told, the peer gets the Reply, and the queue pair the
    /// stream, unless there are bytes behind the Request.
    Answer(Agreed),
    /// There is no connection: the peer is answered, the stream is given up, and this is reported.
    Over(Answer, Report),
}

/// What the agent reports to the client when a set-up is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// Nothing: it has not heard of it.
    Nothing,
    /// That a request that waits for its answer is withdrawn.
    Withdrawn,
    /// That its own request is rejected; the private data is for it.
    Rejected(Reason),
    /// That there was no answer in time.
    Unreachable,
    /// That the peer has ended the stream behind the answer that accepts.
    Unconfirmed,
}

/// What is reported of a conversion whose peer sends something else than a Request, or one that
/// cannot be taken.
pub(crate) const BAD_REQUEST: Report = Report::Rejected(Reason::INVALID_CLASS_VERSION);

/// What sets a conversion apart.
struct Converts {
    role: Role,
    /// What is to leave: the last message of the client, or a frame.
    leaving: Vec<u8>,
}

/// See the module's documentation.
pub(crate) struct Setup {
    phase: Phase,
    converts: Option<Converts>,
    parser: Parser,
    wishes: Wishes,
    /// The Request of an initiator.
    request: Option<Outgoing>,
    deadline: Option<Instant>,
    /// The end of the time that the client of an initiator gives it.
    limit: Option<Instant>,
}

/// What an end with these read depths wants.
fn wishes(depths: ReadDepths, crc: bool) -> Wishes {
    let (ird, ord) = (depths.responder_resources.into(), depths.initiator_depth.into());
    Wishes { ird, ord, crc, private_data: MAX_PRIVATE_DATA }
}

/// Read depths as a frame has them; what it does not say is 0.
pub(crate) fn depths_of(frame: &Repr<'_>) -> ReadDepths {
    let (ird, ord) = negotiation::asked(frame);
    let depth = |said: Option<u16>| said.unwrap_or(0).try_into().unwrap_or(u8::MAX);
    ReadDepths { responder_resources: depth(ird), initiator_depth: depth(ord) }
}

impl Setup {
    /// Of an initiator, whose stream begins to open, and that asks for CRCs or not.
    pub(crate) fn initiator(
        depths: ReadDepths,
        crc: bool,
        private_data: &[u8],
        limit: Option<Instant>,
    ) -> Result<Setup, Error> {
        let wishes = wishes(depths, crc);
        let request = negotiation::request(&wishes, private_data);
        let request = Some(request.ok_or(Error::PrivateData(MAX_PRIVATE_DATA))?);
        let parser = Parser::new(Kind::Reply);
        let phase = Phase::Opening;
        Ok(Setup { phase, converts: None, parser, wishes, request, deadline: None, limit })
    }

    /// Of a responder, whose stream is open, and that asks for CRCs or not.
    pub(crate) fn responder(now: Instant, crc: bool) -> Setup {
        // The client's read depths are not known yet.
        let most = ReadDepths { responder_resources: u8::MAX, initiator_depth: u8::MAX };
        let parser = Parser::new(Kind::Request);
        let deadline = Some(now + REQUEST_TIME);
        let (wishes, request, limit) = (wishes(most, crc), None, None);
        Setup { phase: Phase::Request, converts: None, parser, wishes, request, deadline, limit }
    }

    /// Of the conversion of a stream that is open. The end that has a last message for the peer is
    /// the responder. `frames`: the ends exchange a Request and a Reply.
    pub(crate) fn conversion(
        depths: ReadDepths,
        crc: bool,
        message: Option<&[u8]>,
        frames: bool,
    ) -> Result<Setup, Error> {
        let wishes = wishes(depths, crc);
        let Wishes { ird, ord, .. } = wishes;
        let plain = Agreed { crc, revision: 1, enhanced: false, ird, ord, first: None };
        let (role, kind, leaving) = match message {
            Some([]) => return Err(Error::OutOfRange("last message")),
            Some(message) => (Role::Responder, Kind::Request, copied(message)?),
            None if frames => (Role::Initiator, Kind::Reply, emitted(&negotiation::plain_request(crc))?),
            None => (Role::Initiator, Kind::Reply, Vec::new()),
        };
        let next = match role {
            _ if !frames => Next::Bind(plain),
            Role::Responder => Next::Request,
            Role::Initiator => Next::Reply,
        };
        let (phase, converts) = (Phase::Leaving(next), Some(Converts { role, leaving }));
        let parser = Parser::new(kind);
        Ok(Setup { phase, converts, parser, wishes, request: None, deadline: None, limit: None })
    }

    /// Whether it is the set-up of a conversion.
    pub(crate) fn converts(&self) -> bool {
        self.converts.is_some()
    }

    /// Conversion: takes what is to leave, which may be nothing. What is left of it comes back by
    /// [`Setup::left`].
    pub(crate) fn take_leaving(&mut self) -> Option<Vec<u8>> {
        let converts = self.converts.as_mut().filter(|_| matches!(self.phase, Phase::Leaving(_)))?;
        Some(core::mem::take(&mut converts.leaving))
    }

    /// Conversion: all but `rest` of what was to leave has left.
    pub(crate) fn left(&mut self, rest: Vec<u8>) -> Step {
        let (Some(converts), Phase::Leaving(next)) = (&mut self.converts, self.phase) else {
            return Step::Wait;
        };
        if !rest.is_empty() {
            converts.leaving = rest;
            return Step::Wait;
        }
        let (phase, step) = match next {
            Next::Request => (Phase::Request, Step::Wait),
            Next::Reply => (Phase::Reply, Step::Wait),
            Next::Bind(agreed) => (Phase::Over, Step::Bind(converts.role, agreed)),
        };
        self.phase = phase;
        step
    }

    /// Conversion: the agent has told the client of the Request, and sends the Reply next, as the
    /// stream has room for it.
    pub(crate) fn answer(&mut self, agreed: &Agreed) -> Step {
        let Some(converts) = &mut self.converts else { return Step::Wait };
        let reply = negotiation::accept(agreed, &[]).and_then(|reply| emitted(&reply).ok());
        let Some(reply) = reply else { return self.over(Answer::Close, Report::Unconfirmed) };
        converts.leaving = reply;
        self.phase = Phase::Leaving(Next::Bind(*agreed));
        Step::Wait
    }

    /// When [`Setup::expired`] has to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.limit).min()
    }

    /// The frame that has come, once it is whole.
    pub(crate) fn frame(&self) -> Option<Repr<'_>> {
        self.parser.frame()
    }

    /// Whether the client has to answer.
    pub(crate) fn waits_for_answer(&self) -> bool {
        self.phase == Phase::Answer
    }

    /// The stream is open: the Request that is to be sent, once.
    pub(crate) fn opened(&mut self, now: Instant) -> Option<Outgoing> {
        if self.phase != Phase::Opening {
            return None;
        }
        self.phase = Phase::Reply;
        self.deadline = Some(now + REPLY_TIME);
        self.request.take()
    }

    /// What it wants now.
    pub(crate) fn wants(&self) -> Wants {
        match self.phase {
            Phase::Reply | Phase::Request => Wants::Bytes(self.parser.missing()),
            Phase::Answer => Wants::Look,
            Phase::Opening | Phase::Leaving(_) | Phase::Over => Wants::Nothing,
        }
    }

    /// Bytes have come; of [`Wants::Look`] bytes that are there.
    pub(crate) fn take(&mut self, now: Instant, bytes: &[u8]) -> Step {
        match self.phase {
            _ if bytes.is_empty() => Step::Wait,
            Phase::Reply => self.take_reply(bytes),
            Phase::Request => self.take_request(now, bytes),
            Phase::Answer => self.refuse(Kind::Request, Refusal::BytesBehind, Report::Withdrawn),
            Phase::Opening | Phase::Leaving(_) | Phase::Over => Step::Wait,
        }
    }

    fn take_reply(&mut self, bytes: &[u8]) -> Step {
        let rejected = |reason| Report::Rejected(reason);
        if let Err(error) = self.parser.push(bytes) {
            let report = rejected(Reason::INVALID_CLASS_VERSION);
            return self.refuse(Kind::Reply, Refusal::Frame(error), report);
        }
        let Some(frame) = self.parser.frame() else { return Step::Wait };
        let concluded = match self.converts {
            Some(_) => negotiation::conclude_plain(&frame, &self.wishes),
            None => negotiation::conclude(&frame, &self.wishes),
        };
        match concluded {
            Ok((agreed, _)) => {
                self.phase = Phase::Over;
                Step::Bind(Role::Initiator, agreed)
            }
            Err(refusal) => {
                let reason = match refusal {
                    Refusal::Rejected => Reason::CONSUMER_DEFINED,
                    Refusal::Ird => Reason::INSUFFICIENT_RESPONDER_RESOURCES,
                    _ => Reason::INVALID_CLASS_VERSION,
                };
                self.refuse(Kind::Reply, refusal, rejected(reason))
            }
        }
    }

    fn take_request(&mut self, now: Instant, bytes: &[u8]) -> Step {
        let report = match self.converts {
            Some(_) => BAD_REQUEST,
            None => Report::Nothing,
        };
        if let Err(error) = self.parser.push(bytes) {
            return self.refuse(Kind::Request, Refusal::Frame(error), report);
        }
        let Some(frame) = self.parser.frame() else { return Step::Wait };
        match negotiation::consider(&frame, &self.wishes, false) {
            Ok((agreed, _)) if self.converts.is_some() => {
                self.phase = Phase::Over;
                Step::Answer(agreed)
            }
            Ok(_) => {
                self.phase = Phase::Answer;
                self.deadline = Some(now + ANSWER_TIME);
                Step::Ask
            }
            Err(refusal) => self.refuse(Kind::Request, refusal, report),
        }
    }

    fn refuse(&mut self, kind: Kind, refusal: Refusal, report: Report) -> Step {
        self.phase = Phase::Over;
        Step::Over(refusal.answer(kind), report)
    }

    fn over(&mut self, answer: Answer, report: Report) -> Step {
        self.phase = Phase::Over;
        Step::Over(answer, report)
    }

    /// No more bytes come: the stream has ended so, or the peer has closed its direction.
    pub(crate) fn closed(&mut self, end: StreamEnd) -> Step {
        let report = match self.phase {
            Phase::Over => return Step::Wait,
            Phase::Leaving(_) if self.frame().is_some() => Report::Unconfirmed,
            Phase::Opening | Phase::Leaving(_) | Phase::Reply => attempt_ended(end),
            Phase::Request if self.converts() => attempt_ended(end),
            Phase::Request => Report::Nothing,
            Phase::Answer => Report::Withdrawn,
        };
        self.over(Answer::Close, report)
    }

    /// The time is over.
    pub(crate) fn expired(&mut self) -> Step {
        match self.phase {
            Phase::Over => Step::Wait,
            Phase::Opening | Phase::Leaving(_) | Phase::Reply => {
                self.over(Answer::Close, Report::Unreachable)
            }
            Phase::Request => self.over(Answer::Close, Report::Nothing),
            Phase::Answer => self.over(Answer::Reject, Report::Withdrawn),
        }
    }

    /// Responder: the client accepts with these read depths. The Reply, and what both ends have
    /// agreed on. A failure changes nothing.
    pub(crate) fn accept(
        &mut self,
        depths: ReadDepths,
        private_data: &[u8],
    ) -> Result<(Outgoing, Agreed), Error> {
        let frame = self.frame().filter(|_| self.phase == Phase::Answer).ok_or(Error::ConnectionState)?;
        let considered = negotiation::consider(&frame, &wishes(depths, self.wishes.crc), false);
        // Only one thing has changed since the Request was considered: a peer-to-peer set-up by an
        // empty RDMA Read needs that this end serves one.
        let (agreed, _) = considered.map_err(|_| Error::OutOfRange("number of RDMA Reads"))?;
        let reply = negotiation::accept(&agreed, private_data);
        let reply = reply.ok_or(Error::PrivateData(MAX_PRIVATE_DATA))?;
        self.phase = Phase::Over;
        (self.deadline, self.limit) = (None, None);
        Ok((reply, agreed))
    }

    /// Responder: the Reply that rejects; `None` if there is no Request, or too much private data.
    pub(crate) fn rejection(&self, private_data: &[u8]) -> Option<Outgoing> {
        negotiation::reject(&self.frame()?, private_data)
    }
}

/// A copy of the client's bytes.
fn copied(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Error::OutOfMemory)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Writes a frame, and returns its bytes.
pub(super) fn emit<'a>(frame: &Outgoing, into: &'a mut [u8; MAX_FRAME]) -> Result<&'a [u8], Error> {
    let length = frame.frame().emit(into).map_err(|_| Error::PrivateData(MAX_PRIVATE_DATA))?;
    Ok(into.get(..length).unwrap_or_default())
}

/// The bytes of a frame that leaves in pieces.
fn emitted(frame: &Outgoing) -> Result<Vec<u8>, Error> {
    copied(emit(frame, &mut [0; MAX_FRAME])?)
}

/// What is reported of an attempt whose stream has ended so. The codes are those of InfiniBand's
/// connection manager that come nearest.
fn attempt_ended(end: StreamEnd) -> Report {
    match end {
        StreamEnd::ConnectTimeout | StreamEnd::TimedOut => Report::Unreachable,
        StreamEnd::Refused | StreamEnd::PortUnreachable => Report::Rejected(Reason::INVALID_SERVICE_ID),
        StreamEnd::NoWay
        | StreamEnd::NetworkUnreachable
        | StreamEnd::HostUnreachable
        | StreamEnd::Prohibited => Report::Rejected(Reason::PRIMARY_GID),
        StreamEnd::None | StreamEnd::Closed | StreamEnd::Reset => {
            Report::Rejected(Reason::UNSUPPORTED_REQUEST)
        }
    }
}

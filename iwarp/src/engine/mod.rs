//! One end of a stream after its set-up (RFC 5040, RFC 5041).
//!
//! The device posts work requests to [`Engine::post`] in the order of its send queue. It gives the
//! engine room for bytes of the stream by [`Engine::transmit`], and passes it the bytes of the peer
//! by [`Engine::receive`]. Both reach memory by the device's [`Memory`], which checks rights and
//! bounds: payload goes from registered memory into the room, and from the peer's bytes to its
//! place. The device says how the peer's direction ended by [`Engine::finished`] or
//! [`Engine::lost`]. After each of these it takes the events from [`Engine::poll`], and looks at
//! [`Engine::close`]. A device that has both ends can pass segments from one to the other instead
//! ([`Engine::pass`], [`Engine::take`]).
//!
//! | module | subject |
//! |---|---|
//! | `transmit` | which FPDU is next: work requests, responses, the Terminate |
//! | `receive` | what a segment of the peer means |
//! | `pass` | segments that go to another engine of the process without a stream |
//! | `end` | how the stream ends, and what becomes of what is outstanding |
//! | `memory` | what the device has to offer |
//!
//! # Order and completion
//!
//! Work requests are sent in the order of posting, and complete in it. A Send and an RDMA Write are
//! complete when the last byte is given to the stream, an RDMA Read when its last byte is placed,
//! so requests behind a Read may reach the peer before its bytes are here. Who wants otherwise sets
//! [`Message::fence`]. Behind a request that failed none succeeds: what the stream has taken is
//! flushed as well, though the peer may have it. Nothing tells that an RDMA Write has arrived but a
//! later answer of the peer; a Write that the peer refuses has completed with success, and the
//! refusal ends the stream. Receives complete in the order of the messages. Responses to RDMA Reads
//! are sent in the order of the requests.
//!
//! FPDUs of a response and of a Send or of requests of Reads take turns, so neither side waits for
//! a long message of the other kind. An RDMA Write and a response do not divide each other, though
//! RFC 5041 would allow it, because Linux does not take it; they take turns as messages.
//!
//! A responder's end sends nothing before the first FPDU of the initiator ([`Role::Responder`]),
//! unless the device says that it may ([`Engine::speak`]).
//!
//! # Memory and bounds
//!
//! The engine allocates its queues when it is created: [`Config::depth`] work requests,
//! [`Config::ord`] requests of RDMA Reads, [`Config::ird`] responses. While it lives, only the
//! receiver of FPDUs allocates ([`crate::mpa::fpdu::Receiver`]). A call does work for the bytes
//! that it is given, and for what was posted, and for nothing else; [`Engine::receive`] stops at
//! each message for a Receive, whose event is to be taken first.

mod end;
mod memory;
mod pass;
mod receive;
mod transmit;

use alloc::collections::VecDeque;

use crate::mpa::fpdu::Receiver;
use crate::mpa::{MAX_MULPDU, MIN_MULPDU};
use crate::rdmap::terminate::Code;
use crate::rdmap::{read, terminate};

pub use end::{Cause, Close, End, Fault, Kind};
pub use memory::{By, Denied, Direct, Memory, Receive, Sink, Source};
pub use pass::{Pass, Segment};
pub use transmit::Transmit;

/// The longest message: 2 GiB.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Which end of the stream's set-up it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sent the Request, and may send FPDUs when it has the Reply.
    Initiator,
    /// It sent the Reply, and may send FPDUs when it has the initiator's first one.
    Responder,
}

/// What an engine is created with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which end it is.
    pub role: Role,
    /// The longest ULPDU that it sends ([`crate::mpa::mulpdu`]).
    pub mulpdu: u16,
    /// Whether FPDUs have CRCs.
    pub crc: bool,
    /// How many work requests it has room for.
    pub depth: u16,
    /// How many RDMA Reads it may have outstanding.
    pub ord: u16,
    /// How many RDMA Reads of the peer it takes at a time.
    pub ird: u16,
}

/// A work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The device's name for it.
    pub id: u32,
    /// What it asks for.
    pub operation: Operation,
    /// Its length in bytes.
    pub length: u32,
    /// It may not start before all earlier RDMA Reads are complete. Earlier requests of other kinds
    /// are complete when a request starts, so this is the read fence, and the local fence as well.
    pub fence: bool,
}

/// What a work request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message into a Receive of the peer.
    Send {
        /// The receiver's completion shall raise an event.
        solicited: bool,
        /// The STag of the peer that the message invalidates.
        invalidate: Option<u32>,
    },
    /// Into memory of the peer.
    Write {
        /// The peer's memory.
        stag: u32,
        /// Where in it.
        to: u64,
    },
    /// From memory of the peer.
    Read {
        /// The peer's memory.
        source_stag: u32,
        /// Where in it.
        source_to: u64,
        /// The STag that the response carries. The engine compares it, and looks nothing up.
        sink_stag: u32,
        /// The tagged offset that the response begins with.
        sink_to: u64,
        /// The STag of this end that becomes invalid when the last byte is placed.
        invalidate: Option<u32>,
    },
    /// Something that needs no peer, such as to bind a window.
    Local,
}

/// Why a work request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// There is no room; there is when the completion of a work request has been taken.
    Full,
    /// It is longer than [`MAX_MESSAGE`].
    Length,
    /// It is an RDMA Read, and none may be outstanding.
    Operation,
    /// The stream has ended, or is being ended.
    Closed,
}

/// How a request or a Receive ended that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The stream ended first.
    Flushed,
    /// The request's own memory, or the STag that it was to invalidate, is not what it has to be.
    LocalProtection,
    /// The message does not fit the Receive.
    LocalLength,
    /// The peer does not allow the RDMA Read to reach its source.
    RemoteAccess,
    /// The peer could not carry out the RDMA Read.
    RemoteOperation,
    /// The stream failed while the message was arriving.
    Transport,
    /// The message is there, but the STag that it names cannot be invalidated.
    Invalidate,
}

/// What the device reports to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The responder's end has the first FPDU of the initiator, which is no Terminate, or may send
    /// without it.
    Established,
    /// A message is in its Receive.
    Received {
        /// The Receive.
        id: u32,
        /// How long the message is.
        length: u32,
        /// Its sender asks for an event.
        solicited: bool,
        /// The STag that was invalidated.
        invalidated: Option<u32>,
    },
    /// A Receive that a message had taken ends without it.
    ReceiveFailed {
        /// The Receive.
        id: u32,
        /// Why.
        status: Status,
    },
    /// A work request succeeded.
    Completed {
        /// Which one.
        id: u32,
    },
    /// A work request failed.
    Failed {
        /// Which one.
        id: u32,
        /// Why.
        status: Status,
    },
    /// The stream has ended. This is the last event.
    Ended(End),
}

/// Where a work request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is not sent to its end.
    Queued,
    /// The request of an RDMA Read is sent.
    Reading,
    Done,
    Failed(Status),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    message: Message,
    state: State,
}

/// An RDMA Read that waits for its response.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    /// The place of its work request, counted from the first one ever posted.
    seq: u64,
    id: u32,
    msn: u32,
    request: read::Repr,
    invalidate: Option<u32>,
}

/// An RDMA Read of the peer.
#[derive(Clone, Copy, Debug)]
struct Response {
    request: read::Repr,
    msn: u32,
    /// Bytes that are given to the stream.
    done: u32,
}

/// A Send of the peer of which segments have come.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    receive: Receive,
    control: u8,
    done: u32,
}

/// One end of a stream.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    // Work requests, in the order of posting.
    slots: VecDeque<Slot>,
    /// How many were taken from the front of `slots`.
    first: u64,
    /// The one that is sent next.
    cursor: usize,
    /// How many bytes of it are in FPDUs, and whether it is begun.
    offset: u32,
    begun: bool,
    /// A local one is with the device.
    local: bool,
    /// One has failed.
    failed: bool,
    /// At most `ord`, the oldest first.
    outstanding: VecDeque<Outstanding>,
    send_msn: u32,
    read_msn: u32,
    // RDMA Reads of the peer, at most `ird`, the oldest first.
    responses: VecDeque<Response>,
    response_begun: bool,
    /// The next FPDU is a response's, if there is the choice.
    responds_next: bool,
    /// The FPDU that is being written.
    current: Option<transmit::Current>,
    /// It may send.
    speaks: bool,
    /// A segment of the peer has come.
    heard: bool,
    /// An empty RDMA Write is to be sent first.
    announces: bool,
    // What comes in.
    receiver: Receiver,
    arriving: Option<Arriving>,
    /// STag and tagged offset at which the RDMA Write goes on that has begun.
    writing: Option<(u32, u64)>,
    /// Bytes of the oldest outstanding RDMA Read that are placed, if its response has begun.
    reading: Option<u32>,
    expected_send: u32,
    expected_read: u32,
    // What the device has not taken.
    established: bool,
    arrival: Option<Event>,
    // How it ends.
    /// The device wants it to end between messages.
    draining: bool,
    end: Option<End>,
    end_taken: bool,
    /// What is to be sent last.
    terminate: Option<terminate::Repr>,
    /// It was decided that a Terminate is sent.
    terminates: bool,
    /// An FPDU cannot be finished.
    cut: bool,
}

impl Engine {
    /// The end of a stream whose set-up is complete.
    pub fn new(config: Config) -> Engine {
        Engine {
            config: Config { mulpdu: config.mulpdu.clamp(MIN_MULPDU, MAX_MULPDU), ..config },
            slots: VecDeque::with_capacity(config.depth.into()),
            first: 0,
            cursor: 0,
            offset: 0,
            begun: false,
            local: false,
            failed: false,
            outstanding: VecDeque::with_capacity(config.ord.into()),
            send_msn: 1,
            read_msn: 1,
            responses: VecDeque::with_capacity(config.ird.into()),
            response_begun: false,
            responds_next: false,
            current: None,
            speaks: config.role == Role::Initiator,
            heard: false,
            announces: false,
            receiver: Receiver::new(config.crc),
            arriving: None,
            writing: None,
            reading: None,
            expected_send: 1,
            expected_read: 1,
            established: false,
            arrival: None,
            draining: false,
            end: None,
            end_taken: false,
            terminate: None,
            terminates: false,
            cut: false,
        }
    }

    /// Sends an RDMA Write of no bytes next, if this is an initiator's end: for a peer that may
    /// have to send before this end's consumer does. Does nothing in the middle of a message.
    pub fn announce(&mut self) {
        self.announces = self.config.role == Role::Initiator && !self.begun && !self.response_begun;
    }

    /// Whether a segment of the peer has come.
    pub const fn has_heard(&self) -> bool {
        self.heard
    }

    /// Whether it is a responder's end that waits for the first FPDU of the initiator.
    pub const fn listens(&self) -> bool {
        !self.speaks && self.end.is_none()
    }

    /// Lets a responder's end send though the initiator has sent nothing: its consumer may be
    /// waiting for ours. The connection counts as established.
    pub fn speak(&mut self) {
        if self.listens() {
            (self.speaks, self.established) = (true, true);
        }
    }

    /// Changes the longest ULPDU, for messages' segments that are not begun: the path's segments
    /// have another size.
    pub fn set_mulpdu(&mut self, mulpdu: u16) {
        self.config.mulpdu = mulpdu.clamp(MIN_MULPDU, MAX_MULPDU);
    }

    /// Changes how many RDMA Reads are sent at the same time, for those that are not sent yet. With
    /// none, posts of RDMA Reads are refused, and those that were posted wait.
    pub fn set_ord(&mut self, ord: u16) {
        self.outstanding.reserve(usize::from(ord).saturating_sub(self.outstanding.len()));
        self.config.ord = ord;
    }

    /// Takes a work request.
    pub fn post(&mut self, message: Message) -> Result<(), PostError> {
        if self.end.is_some() || self.draining {
            return Err(PostError::Closed);
        }
        if self.slots.len() >= self.config.depth.into() {
            return Err(PostError::Full);
        }
        if message.length > MAX_MESSAGE {
            return Err(PostError::Length);
        }
        if matches!(message.operation, Operation::Read { .. }) && self.config.ord == 0 {
            return Err(PostError::Operation);
        }
        self.slots.push_back(Slot { message, state: State::Queued });
        Ok(())
    }

    /// The next event: first what has happened to messages, then what the end of the stream leaves,
    /// then the end itself. After that there is none. A work request of which an FPDU is being
    /// finished, behind which a Terminate goes, is over when that is given to the stream, or at
    /// [`Engine::lost`]; until then its memory is in use.
    pub fn poll(&mut self) -> Option<Event> {
        if core::mem::take(&mut self.established) {
            return Some(Event::Established);
        }
        if let Some(arrival) = self.arrival.take() {
            return Some(arrival);
        }
        if let Some(event) = self.completion() {
            return Some(event);
        }
        let end = self.end.filter(|_| !self.end_taken && self.slots.is_empty())?;
        self.end_taken = true;
        Some(Event::Ended(end))
    }

    /// The work request that has been posted first, if it is over.
    fn completion(&mut self) -> Option<Event> {
        let &Slot { message: Message { id, .. }, state } = self.slots.front()?;
        if self.end.is_some() && self.cursor == 0 && self.gathers() {
            return None;
        }
        let event = match state {
            // A success would be out of order, and that of a silent one would show nowhere.
            State::Done if self.failed => Event::Failed { id, status: Status::Flushed },
            State::Done => Event::Completed { id },
            State::Failed(status) => Event::Failed { id, status },
            State::Queued | State::Reading if self.end.is_some() => {
                Event::Failed { id, status: Status::Flushed }
            }
            State::Queued | State::Reading => return None,
        };
        self.failed |= matches!(event, Event::Failed { .. });
        self.slots.pop_front();
        self.first += 1;
        self.cursor = self.cursor.saturating_sub(1);
        Some(event)
    }

    /// Whether an FPDU that is not finished still gathers the memory of the request at the cursor.
    fn gathers(&self) -> bool {
        self.current.as_ref().is_some_and(transmit::Current::is_of_request)
    }

    /// How many work requests were posted and not yet taken from [`Engine::poll`].
    pub fn posted(&self) -> usize {
        self.slots.len()
    }

    /// Whether the engine ends the stream with a Terminate.
    pub const fn terminates(&self) -> bool {
        self.terminates
    }

    /// How the stream has ended, if it has.
    pub const fn ended(&self) -> Option<End> {
        self.end
    }

    /// The state of a work request by its place among all ever posted.
    fn slot(&mut self, seq: u64) -> Option<&mut Slot> {
        let index = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(index)
    }

    /// The most payload of a segment with so long a header.
    fn room(&self, header: usize) -> u32 {
        u32::from(self.config.mulpdu).saturating_sub(header as u32)
    }
}

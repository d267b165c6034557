//! The parts of a turn of a queue pair over a stream.

use core::ops::ControlFlow;

use iwarp::engine::{Event, Message, Operation, PostError, Status as Failure, Transmit};
use nic_abi::admin::QpState;
use nic_abi::cqe::{CqeFlags, NO_FIELD, Status};
use nic_abi::eqe::EventType;
use nic_abi::wqe::{Opcode, SendFlags};

use super::Stream;
use super::memory::View;
use crate::Frontend;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp::completion::{Attempt, Received, header_field};
use crate::qp::engine::Step;
use crate::qp::flights::{DEPTH, Flight};
use crate::qp::send::{BadEntry, Work};
use crate::qp::wire::is_local;
use crate::schedule::Schedule;
use crate::streams::Streams;
use crate::uplink::UNIT;

/// Pieces of the stream's ring that are taken or filled in a turn. A ring has two at most; a piece
/// that ends with a message for a receive is taken in parts.
const PIECES: u32 = 16;

/// What a turn of the connection did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// Nothing: it waits for bytes, for room, or for work requests.
    Nothing,
    /// Something, and there may be more to do.
    Something,
}

impl Qp {
    /// Takes what has arrived on the stream.
    pub(super) fn take_bytes<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) -> Moved {
        // While this end sends by the short cut its turns follow from other things than the stream.
        if self.stream.as_ref().is_none_or(|stream| stream.direct && !stream.news) {
            return Moved::Nothing;
        }
        let mut moved = Moved::Nothing;
        self.with_stream(nic, |qp, nic, stream, streams| {
            for _ in 0..PIECES {
                let came = qp.take_piece(nic, schedule, stream, streams);
                qp.act_on_events(nic, schedule, stream);
                stream.news = came == Moved::Something;
                if !stream.news {
                    break;
                }
                moved = Moved::Something;
            }
        });
        moved
    }

    /// Passes work requests to the engine, and lets it write to the stream; if not `begins`, only
    /// the rest of an FPDU.
    pub(super) fn write_bytes<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        begins: bool,
    ) -> Moved {
        let mut moved = Moved::Nothing;
        self.with_stream(nic, |qp, nic, stream, streams| {
            for _ in 0..PIECES {
                let posted = qp.pass_requests(nic, schedule, stream);
                let sent = match begins || !stream.engine.is_between() {
                    true => qp.fill_piece(nic, schedule, stream, streams, begins),
                    false => Moved::Nothing,
                };
                qp.act_on_events(nic, schedule, stream);
                if (posted, sent) == (Moved::Nothing, Moved::Nothing) {
                    break;
                }
                moved = Moved::Something;
            }
        });
        moved
    }

    /// Takes the connection and the NIC's streams apart from the queue pair and the NIC, if there
    /// are both.
    fn with_stream<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        act: impl FnOnce(&mut Qp, &mut Nic<F>, &mut Stream, &mut Streams),
    ) {
        let Some(mut streams) = nic.streams.take() else { return };
        if let Some(mut stream) = self.stream.take() {
            act(self, nic, &mut stream, &mut streams);
            self.stream = Some(stream);
        }
        nic.streams = Some(streams);
    }

    /// Ends a turn: gives the stream back that has ended, and flushes what is posted without one.
    pub(super) fn end_turn<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        moved: Moved,
    ) -> Step {
        if let Some(stream) = &self.stream {
            if self.state == QpState::Sqd && stream.is_idle() {
                self.report_drained(nic);
            }
            let has_ended = self.stream.as_ref().is_some_and(|stream| stream.ended);
            if !has_ended {
                return if moved == Moved::Something { Step::Yield } else { Step::Idle };
            }
            let (now, mut is_over) = (schedule.now, false);
            self.with_stream(nic, |_, _, stream, streams| is_over = stream.let_go(streams, now));
            if is_over {
                self.stream = None;
                schedule.stop_timer(self);
            }
        }
        let goes_on = self.state == QpState::Error && self.flush(nic, schedule);
        if goes_on { Step::Yield } else { Step::Idle }
    }

    /// Passes bytes that have arrived to the engine: a piece of the ring, up to the next message
    /// for a receive.
    fn take_piece<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        stream: &mut Stream,
        streams: &mut Streams,
    ) -> Moved {
        let Stream { id, engine, flights, invalidated, bad_receive, .. } = stream;
        let mut view = View { qp: self, nic, flights, invalidated, bad_receive, from: None };
        let taken = streams.tcp.receive(*id, |bytes| {
            let taken = engine.receive(bytes, &mut view);
            (taken, taken)
        });
        self.fail_bad_receive(nic, stream);
        match taken {
            Ok(0) => Moved::Nothing,
            Ok(bytes) => {
                schedule.charge((bytes / UNIT) as u32);
                Moved::Something
            }
            Err(_) => {
                stream.peer_is_silent(streams);
                Moved::Nothing
            }
        }
    }

    /// Completes the receive that a message took, if it is malformed.
    pub(super) fn fail_bad_receive<F: Frontend>(&mut self, nic: &mut Nic<F>, stream: &mut Stream) {
        if let Some(field) = stream.bad_receive.take() {
            stream.shown = true;
            self.fail_receive(nic, Status::LocalQpOperation, field);
        }
    }

    /// Lets the engine fill a piece of the free part of the ring, if it has something to send; if
    /// not `begins`, with the rest of an FPDU only.
    fn fill_piece<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        stream: &mut Stream,
        streams: &mut Streams,
        begins: bool,
    ) -> Moved {
        if !stream.engine.has_output() {
            return Moved::Nothing;
        }
        let Stream { id, engine, flights, invalidated, bad_receive, .. } = stream;
        let mut view = View { qp: self, nic, flights, invalidated, bad_receive, from: None };
        let sent = streams.tcp.send(*id, |room| {
            let sent = match begins {
                true => engine.transmit(room, &mut view),
                false => Transmit { bytes: engine.transmit_rest(room, &mut view), local: None },
            };
            (sent.bytes, sent)
        });
        match sent {
            Ok(sent) => {
                stream.direct &= sent.bytes == 0;
                schedule.charge((sent.bytes / UNIT) as u32);
                if let Some(id) = sent.local {
                    self.carry_out(nic, schedule, stream, id);
                    return Moved::Something;
                }
                if sent.bytes > 0 { Moved::Something } else { Moved::Nothing }
            }
            Err(_) => {
                // Nothing more can be sent. What the peer sent before says how the stream ended.
                stream.engine.lost();
                Moved::Something
            }
        }
    }

    /// Carries out a work request that needs no peer, or fails it if it cannot be sent.
    pub(super) fn carry_out<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        stream: &mut Stream,
        id: u32,
    ) {
        let Some(flight) = stream.flights.get_mut(id) else { return };
        if flight.failure.is_none() {
            schedule.charge(flight.work.local_cost());
            if let Attempt::Failed(status, field) = self.execute_local(&flight.work, nic) {
                flight.failure = Some((status, field));
            }
        }
        stream.engine.carried_out(flight.failure.is_none());
    }

    /// Passes entries of the send queue to the engine, as many as it has room for.
    pub(super) fn pass_requests<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        stream: &mut Stream,
    ) -> Moved {
        let mut moved = Moved::Nothing;
        while self.state == QpState::Rts
            && self.send.posted() > 0
            && stream.engine.posted() < usize::from(DEPTH)
            && stream.engine.ended().is_none()
        {
            schedule.charge(1);
            if self.pass_request(nic, stream).is_break() {
                break;
            }
            moved = Moved::Something;
        }
        moved
    }

    fn pass_request<F: Frontend>(&mut self, nic: &mut Nic<F>, stream: &mut Stream) -> ControlFlow<()> {
        let mut failure = match self.fetch(nic) {
            Ok(()) => self.refusal(),
            Err(BadEntry::Field(offset)) => Some((Status::LocalQpOperation, offset as u32)),
            Err(BadEntry::Status(status)) => Some((status, NO_FIELD)),
            Err(BadEntry::Dma | BadEntry::Unreachable) => Some((Status::LocalQpOperation, NO_FIELD)),
        };
        let id = stream.flights.tail;
        let message = match failure {
            None => message(&self.send.work, id),
            Some(_) => Message { id, operation: Operation::Local, length: 0, fence: true },
        };
        let mut posted = stream.engine.post(message);
        // What the engine does not take fails in its place.
        if let Err(PostError::Operation | PostError::Length) = posted {
            let length = posted == Err(PostError::Length);
            failure = Some(match length {
                true => (Status::LocalLength, NO_FIELD),
                false => (Status::LocalQpOperation, header_field!(opcode)),
            });
            posted = stream.engine.post(Message { operation: Operation::Local, fence: true, ..message });
        }
        if posted.is_err() {
            // The stream has ended: the entry is flushed from the queue.
            self.send.work.loaded = false;
            return ControlFlow::Break(());
        }
        self.send.head = self.send.head.wrapping_add(self.send.work.blocks);
        self.send.work.loaded = false;
        stream.flights.keep(&mut self.send.work, failure);
        ControlFlow::Continue(())
    }

    /// Acts on what the engine reports.
    pub(super) fn act_on_events<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        stream: &mut Stream,
    ) {
        while let Some(event) = stream.engine.poll() {
            match event {
                Event::Established => {
                    self.post_event(nic, EventType::CommunicationEstablished, Status::Success, 0);
                }
                Event::Received { length, solicited, invalidated, .. } => {
                    let mut what = Received {
                        flags: if solicited { CqeFlags::SOLICITED } else { CqeFlags::empty() },
                        length: length.into(),
                        immediate: 0,
                        detail: 0,
                    };
                    if let (Some(remote), Some(local)) = (invalidated, stream.invalidated.take()) {
                        what.flags |= CqeFlags::INVALIDATED;
                        (what.immediate, what.detail) = (local, remote);
                    }
                    self.complete_receive(nic, Status::Success, what);
                }
                Event::ReceiveFailed { status, .. } => {
                    stream.shown |= status != Failure::Flushed;
                    self.fail_receive(nic, status_of(status), NO_FIELD);
                }
                Event::Completed { .. } => self.complete_flight(nic, stream, None),
                Event::Failed { status, .. } => {
                    stream.shown |= status != Failure::Flushed;
                    self.complete_flight(nic, stream, Some(status));
                }
                Event::Ended(end) => self.stream_ended(nic, schedule, stream, end),
            }
        }
    }

    /// Completes the oldest work request in progress.
    fn complete_flight<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        stream: &mut Stream,
        failure: Option<Failure>,
    ) {
        let Some(Flight { work, failure: own, left }) = stream.flights.take() else { return };
        let (status, field) = match failure {
            None => (Status::Success, NO_FIELD),
            Some(Failure::Flushed) => (Status::Flushed, NO_FIELD),
            Some(failure) => own.unwrap_or((status_of(failure), NO_FIELD)),
        };
        let length = if status == Status::Success { work.total } else { 0 };
        let (header, args, left) = (work.header, work.args, *left);
        self.post_completion(nic, (&header, args, left), status, length, field);
    }
}

/// The engine's form of a work request.
fn message(work: &Work, id: u32) -> Message {
    let header = &work.header;
    let operation = match work.opcode {
        opcode if is_local(opcode) => Operation::Local,
        Opcode::Write => Operation::Write { stag: header.remote_key, to: header.remote_addr },
        Opcode::Read | Opcode::ReadInvalidate => Operation::Read {
            source_stag: header.remote_key,
            source_to: header.remote_addr,
            // Only the response names them again.
            sink_stag: id,
            sink_to: 0,
            invalidate: (work.opcode == Opcode::ReadInvalidate).then_some(header.immediate),
        },
        opcode => Operation::Send {
            solicited: work.flags.contains(SendFlags::SOLICITED),
            invalidate: (opcode == Opcode::SendInvalidate).then_some(header.immediate),
        },
    };
    // A request that changes what keys name waits for the Reads before it, whose memory it may be.
    let fences = SendFlags::FENCE_READS | SendFlags::FENCE_INVALIDATES | SendFlags::FENCE_ALL;
    let fence = work.flags.intersects(fences) || operation == Operation::Local;
    // The longest message has been compared with it.
    Message { id, operation, length: work.total as u32, fence }
}

/// The completion status of a failure that the engine reports.
const fn status_of(failure: Failure) -> Status {
    match failure {
        Failure::Flushed => Status::Flushed,
        Failure::LocalProtection => Status::LocalProtection,
        Failure::LocalLength => Status::LocalLength,
        Failure::RemoteAccess => Status::RemoteAccess,
        Failure::RemoteOperation => Status::RemoteOperation,
        Failure::Transport => Status::RetryExceeded,
        Failure::Invalidate => Status::LocalAccess,
    }
}

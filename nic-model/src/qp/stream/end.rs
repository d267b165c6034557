//! How the connection of an iWARP queue pair ends.
//!
//! The engine ends it: the peer has closed or reset the stream, or one of the ends has found an
//! error. Then the queue pair goes to the error state with the event StreamEnded, once all work
//! requests that the engine had are complete. Or the driver moves the queue pair: then the engine
//! ends the stream between messages, in a bounded time.
//!
//! The stream outlives the queue pair: [`Streams`] closes it and drops what the peer still sends,
//! so that no reset overtakes a Terminate.

use core::time::Duration;

use iwarp::ddp;
use iwarp::engine::{Cause, Close, End, Kind};
use nic_abi::admin::QpState;
use nic_abi::cqe::Status;
use nic_abi::eqe::{Eqe, EventType, NOT_COMPLETED, StreamFault, TERMINATE_RECEIVED, TERMINATE_SENT};
use platform::Instant;

use super::Stream;
use crate::Frontend;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::report::event;
use crate::schedule::Schedule;
use crate::streams::Streams;

/// How long a message that is begun may take to its end when the driver ends the connection.
const LEAVING: Duration = Duration::from_secs(2);
/// What the driver learns of an end.
struct Report {
    fault: StreamFault,
    /// The status that moved the queue pair to ERROR.
    status: Status,
    detail: u32,
}

impl Report {
    fn of(end: &End) -> Report {
        let report = |fault, status, detail| Report { fault, status, detail };
        match end {
            End::Disconnected => report(StreamFault::None, Status::Success, 0),
            End::Broken(Cause::InsideMessage) => report(StreamFault::InsideMessage, Status::RetryExceeded, 0),
            End::Broken(Cause::Lost) => report(StreamFault::Lost, Status::RetryExceeded, 0),
            End::Broken(Cause::Terminated(terminate)) => {
                let protection = terminate.code.is_protection();
                let status = if protection { Status::RemoteAccess } else { Status::RemoteOperation };
                let code = u32::from(terminate.code.get());
                report(StreamFault::Terminated, status, code | TERMINATE_RECEIVED)
            }
            End::Broken(Cause::Refused(fault)) => {
                let (kind, status) = match fault.kind {
                    Kind::Write => (StreamFault::Write, Status::LocalAccess),
                    Kind::ReadSource => (StreamFault::ReadSource, Status::LocalAccess),
                    Kind::ReadSink => (StreamFault::ReadSink, Status::LocalProtection),
                    Kind::Receive => (StreamFault::Receive, Status::LocalQpOperation),
                    Kind::ReceiveLength => (StreamFault::ReceiveLength, Status::LocalLength),
                    Kind::Invalidate => (StreamFault::Invalidate, Status::LocalAccess),
                    Kind::Transport => (StreamFault::Transport, Status::RemoteInvalidRequest),
                    Kind::Opcode => (StreamFault::Opcode, Status::RemoteInvalidRequest),
                    Kind::Llp => (StreamFault::Llp, Status::BadResponse),
                    Kind::Local => (StreamFault::Local, Status::LocalQpOperation),
                };
                report(kind, status, u32::from(fault.code.get()))
            }
        }
    }
}

impl Stream {
    /// Nothing more comes from the peer.
    pub(super) fn peer_is_silent(&mut self, streams: &Streams) {
        match streams.tcp.info(self.id) {
            Ok(info) if info.end.is_none_or(|end| end == tcp::End::Closed) => self.engine.finished(),
            _ => self.engine.lost(),
        }
    }

    /// Ends the connection: between messages, or at once with a reset.
    fn leave(&mut self, orderly: bool) {
        match orderly {
            true => self.engine.disconnect(),
            false => self.give_up(),
        }
    }

    /// Gives the stream back if the engine has no more use for it. Returns whether it did.
    pub(super) fn let_go(&self, streams: &mut Streams, now: Instant) -> bool {
        if !self.ended {
            return false;
        }
        match self.engine.close() {
            Some(Close::Finish) if !self.cut => streams.drain(self.id, now),
            None if !self.cut => return false,
            _ => streams.cut(self.id),
        }
        true
    }

    fn give_up(&mut self) {
        self.engine.lost();
        self.cut = true;
    }
}

impl Qp {
    /// The engine has ended the connection, and all its work requests are complete.
    pub(super) fn stream_ended<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        stream: &mut Stream,
        end: End,
    ) {
        stream.ended = true;
        if let End::Broken(Cause::Terminated(terminate)) = end
            && let Some(header) = terminate.quoted.and_then(|quoted| quoted.header)
        {
            self.quoted = match header.place {
                ddp::Place::Tagged { stag, to } => (stag, to),
                ddp::Place::Untagged { queue, msn, .. } => (msn, queue.into()),
            };
        }
        if self.state == QpState::Error {
            // The driver has moved it there, or has the event of what did.
            return;
        }
        let mut report = Report::of(&end);
        if let End::Broken(Cause::Refused(_)) = end
            && stream.engine.terminates()
        {
            report.detail |= TERMINATE_SENT;
        }
        if report.fault != StreamFault::None && !stream.shown {
            report.detail |= NOT_COMPLETED;
        }
        self.fail(nic, schedule, report.status, None);
        self.post_stream_ended(nic, report.fault, report.detail);
    }

    pub(in crate::qp) fn post_stream_ended<F: Frontend>(
        &self,
        nic: &mut Nic<F>,
        fault: StreamFault,
        detail: u32,
    ) {
        nic.stream_ends.add(fault);
        let event = event(EventType::StreamEnded, self.qpn, self.generation, detail);
        nic.post_event(self.eq, Eqe { status: fault as u8, ..event });
    }

    /// The queue pair goes to the error state: because its driver says so, which ends the stream
    /// between messages, or because of a failure.
    pub(in crate::qp) fn leave_stream(&mut self, schedule: &mut Schedule, orderly: bool) {
        let Some(stream) = &mut self.stream else { return };
        (stream.silence, stream.pauses) = (None, false);
        stream.leave(orderly);
        let at = schedule.now + LEAVING;
        schedule.start_timer(self, at);
    }

    /// The peer was silent for some time, or did not take the rest of a message in time; or it is
    /// time to look again whether TCP is empty.
    pub(in crate::qp) fn stream_timer<F: Frontend>(&mut self, nic: &Nic<F>, schedule: &mut Schedule) {
        if self.stream.as_mut().is_some_and(|stream| core::mem::take(&mut stream.pauses)) {
            return schedule.activate(self);
        }
        if self.stream.as_ref().is_some_and(|stream| stream.silence.is_some()) {
            return self.peer_stays_silent(nic, schedule);
        }
        if let Some(stream) = &mut self.stream {
            stream.give_up();
        }
        schedule.activate(self);
    }

    /// The queue pair is being reset or destroyed: its stream ends in good order if no message is
    /// under way, otherwise with a reset.
    pub(crate) fn abandon_stream<F: Frontend>(&mut self, nic: &mut Nic<F>, now: Instant) {
        let (Some(mut stream), Some(streams)) = (self.stream.take(), &mut nic.streams) else { return };
        stream.engine.disconnect();
        match stream.engine.close() {
            Some(Close::Finish) if !stream.cut => streams.drain(stream.id, now),
            _ => streams.cut(stream.id),
        }
    }
}

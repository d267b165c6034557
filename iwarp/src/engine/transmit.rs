//! What is sent next.

use crate::ddp::{self, Header, Place, queue};
use crate::mpa::fpdu::Emission;
use crate::rdmap::terminate::Repr as Terminate;
use crate::rdmap::{Control, Opcode, read};

use super::end::{End, Fault, Kind, read_code};
use super::memory::{Denied, Memory, Source};
use super::{Cause, Code, Engine, Message, Operation, Outstanding, Response, Slot, State, Status};

/// What a call of [`Engine::transmit`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Transmit {
    /// How many bytes of the room are used. They are to be sent, whatever else happened.
    pub bytes: usize,
    /// Carry out this local work request, and report it to [`Engine::carried_out`]. Nothing more is
    /// sent before.
    pub local: Option<u32>,
}

/// The FPDU that is being written.
#[derive(Clone, Debug)]
pub(super) struct Current {
    emission: Emission,
    source: Source,
    what: What,
}

impl Current {
    /// Whether it is of a work request.
    pub(super) const fn is_of_request(&self) -> bool {
        matches!(self.what, What::Request { .. })
    }
}

/// What is done when an FPDU is given to the stream.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A segment of the work request at the cursor.
    Request {
        last: bool,
    },
    /// A segment of the oldest response.
    Response {
        last: bool,
    },
    Terminate,
    /// The first FPDU of an initiator that has nothing to say.
    Announcement,
}

/// What is next.
enum Next {
    Local(u32),
    Request(Message),
    Response,
}

/// The longest header with what is not gathered.
const HEAD: usize = Header::UNTAGGED + Terminate::MAX;

impl Engine {
    /// Writes FPDUs into the room that the stream has, as many as fit; the last one may be cut. A
    /// caller that wants FPDUs to begin with segments of the stream gives room for whole ones.
    pub fn transmit<M: Memory>(&mut self, out: &mut [u8], memory: &mut M) -> Transmit {
        let mut done = Transmit::default();
        loop {
            if let Some(mut current) = self.current.take() {
                let room = out.get_mut(done.bytes..).unwrap_or_default();
                let source = current.source;
                // The payload of a segment has fewer than 2^16 bytes.
                let gather = |at: usize, into: &mut [u8]| memory.gather(source.behind(at as u32), into);
                match current.emission.write(room, gather) {
                    Ok(bytes) => done.bytes += bytes,
                    Err(_) => {
                        self.cut_off(current.what);
                        return done;
                    }
                }
                if !current.emission.is_done() {
                    self.current = Some(current);
                    return done;
                }
                self.sent(current.what);
            }
            if done.bytes >= out.len() {
                return done;
            }
            done.local = self.begin(memory);
            if done.local.is_some() || (self.current.is_none() && self.terminate.is_none()) {
                return done;
            }
        }
    }

    /// Whether [`Engine::transmit`] has something to do.
    pub fn has_output(&self) -> bool {
        if self.current.is_some() || self.terminate.is_some() {
            return true;
        }
        let open = self.end.is_none() && !self.local;
        open && (self.announces || self.draining || self.response_ready() || self.request_ready().is_some())
    }

    /// The device has carried out the local work request that [`Engine::transmit`] named, or could
    /// not.
    pub fn carried_out(&mut self, ok: bool) {
        if !core::mem::take(&mut self.local) || self.end.is_some() {
            return;
        }
        if ok {
            self.over(State::Done);
        } else {
            self.fail(Status::LocalProtection);
        }
    }

    /// Begins the next FPDU, if there is one. Returns a local work request that comes first.
    fn begin<M: Memory>(&mut self, memory: &mut M) -> Option<u32> {
        if let Some(terminate) = self.terminate.take() {
            self.begin_terminate(&terminate);
            return None;
        }
        if self.end.is_some() {
            return None;
        }
        if core::mem::take(&mut self.announces) {
            self.begin_announcement();
            return None;
        }
        let next = self.next();
        if self.draining && next.is_none() {
            self.finish(End::Disconnected);
        }
        match next? {
            Next::Local(id) => {
                self.local = true;
                return Some(id);
            }
            Next::Request(message) => self.begin_request(&message, memory),
            Next::Response => self.begin_response(memory),
        }
        None
    }

    /// Which message the next FPDU is of. One that is begun goes on; else they take turns.
    fn next(&mut self) -> Option<Next> {
        if self.local {
            return None;
        }
        let response = self.response_ready();
        let request = self.request_ready();
        if response && (request.is_none() || self.responds_next) {
            self.responds_next = false;
            return Some(Next::Response);
        }
        let message = request?;
        self.responds_next = true;
        match message.operation {
            Operation::Local => Some(Next::Local(message.id)),
            _ => Some(Next::Request(message)),
        }
    }

    /// Whether the oldest response may have an FPDU.
    fn response_ready(&self) -> bool {
        let head = self.slots.get(self.cursor);
        let writes = head.is_some_and(|slot| matches!(slot.message.operation, Operation::Write { .. }));
        let barred = self.draining || (self.begun && writes);
        !self.responses.is_empty() && (self.response_begun || !barred)
    }

    /// The work request at the cursor, if it may be carried out or have an FPDU.
    fn request_ready(&self) -> Option<Message> {
        let &Slot { message, .. } = self.slots.get(self.cursor)?;
        if self.begun {
            return Some(message);
        }
        let waits = match message.operation {
            Operation::Read { .. } => self.outstanding.len() >= self.config.ord.into(),
            Operation::Write { .. } => self.response_begun,
            Operation::Send { .. } | Operation::Local => false,
        };
        let waits = waits || (!self.speaks && message.operation != Operation::Local);
        let fenced = message.fence && !self.outstanding.is_empty();
        (!waits && !fenced && !self.draining).then_some(message)
    }

    fn begin_request<M: Memory>(&mut self, message: &Message, memory: &mut M) {
        let offset = self.offset;
        let mut head = [0; HEAD];
        let (header, body, segment) = match message.operation {
            Operation::Send { solicited, invalidate } => {
                let segment = ddp::segment(message.length, offset, self.room(Header::UNTAGGED));
                let place = Place::Untagged {
                    invalidate: invalidate.unwrap_or(0),
                    queue: queue::SEND,
                    msn: self.send_msn,
                    mo: offset,
                };
                (
                    self.header(segment.last, Opcode::send(solicited, invalidate.is_some()), place),
                    None,
                    segment,
                )
            }
            Operation::Write { stag, to } => {
                let segment = ddp::segment(message.length, offset, self.room(Header::TAGGED));
                let place = Place::Tagged { stag, to: to.wrapping_add(offset.into()) };
                (self.header(segment.last, Opcode::Write, place), None, segment)
            }
            Operation::Read { source_stag, source_to, sink_stag, sink_to, .. } => {
                let body = read::Repr { sink_stag, sink_to, size: message.length, source_stag, source_to };
                let place = Place::Untagged { invalidate: 0, queue: queue::READ, msn: self.read_msn, mo: 0 };
                let segment = ddp::Segment { length: 0, last: true };
                (self.header(true, Opcode::ReadRequest, place), Some(body), segment)
            }
            Operation::Local => return,
        };
        let source = Source::Request { id: message.id, offset };
        if segment.length > 0 && memory.check(source, segment.length).is_err() {
            self.fail(Status::LocalProtection);
            return;
        }
        let mut len = header.emit(&mut head).unwrap_or(0);
        if let Some(body) = body {
            len += body.emit(head.get_mut(len..).unwrap_or_default()).unwrap_or(0);
        }
        self.begun = true;
        self.offset = offset + segment.length;
        let what = What::Request { last: segment.last };
        self.emit(head.get(..len).unwrap_or_default(), segment.length, source, what);
    }

    /// An RDMA Write of no bytes is carried out, whatever memory it names.
    fn begin_announcement(&mut self) {
        let mut head = [0; Header::TAGGED];
        let place = Place::Tagged { stag: 0, to: 0 };
        let len = self.header(true, Opcode::Write, place).emit(&mut head).unwrap_or(0);
        let source = Source::Region { stag: 0, to: 0 };
        self.emit(head.get(..len).unwrap_or_default(), 0, source, What::Announcement);
    }

    fn begin_response<M: Memory>(&mut self, memory: &mut M) {
        let Some(&Response { request, msn, done }) = self.responses.front() else { return };
        let segment = ddp::segment(request.size, done, self.room(Header::TAGGED));
        let source = Source::Region { stag: request.source_stag, to: request.source_to }.behind(done);
        if segment.length > 0
            && let Err(denied) = memory.check(source, segment.length)
        {
            self.unreadable(denied, &request, msn);
            return;
        }
        let to = request.sink_to.wrapping_add(done.into());
        let place = Place::Tagged { stag: request.sink_stag, to };
        let mut head = [0; Header::TAGGED];
        let header = self.header(segment.last, Opcode::ReadResponse, place);
        let len = header.emit(&mut head).unwrap_or(0);
        self.response_begun = true;
        if let Some(response) = self.responses.front_mut() {
            response.done = done + segment.length;
        }
        let what = What::Response { last: segment.last };
        self.emit(head.get(..len).unwrap_or_default(), segment.length, source, what);
    }

    fn begin_terminate(&mut self, terminate: &Terminate) {
        let mut head = [0; HEAD];
        let len = terminate.ulpdu(&mut head).unwrap_or(0);
        let nothing = Source::Request { id: 0, offset: 0 };
        self.emit(head.get(..len).unwrap_or_default(), 0, nothing, What::Terminate);
    }

    fn header(&self, last: bool, opcode: Opcode, place: Place) -> Header {
        Header::new(last, Control::new(opcode).to_byte(), place)
    }

    fn emit(&mut self, head: &[u8], payload: u32, source: Source, what: What) {
        // Head and payload of a segment are at most the MULPDU, or a Terminate.
        self.current = Emission::new(head, payload as usize, self.config.crc).map(|emission| Current {
            emission,
            source,
            what,
        });
    }

    /// An FPDU is given to the stream.
    fn sent(&mut self, what: What) {
        match what {
            What::Terminate | What::Announcement => {}
            // The stream has ended meanwhile, and everything that was its own with it.
            _ if self.end.is_some() => {}
            What::Response { last } => {
                if last {
                    self.responses.pop_front();
                    self.response_begun = false;
                }
            }
            What::Request { last } => {
                if last {
                    self.request_sent();
                }
            }
        }
    }

    /// The work request at the cursor is sent to its end.
    fn request_sent(&mut self) {
        let seq = self.first + self.cursor as u64;
        let Some(&Slot { message, .. }) = self.slots.get(self.cursor) else { return };
        match message.operation {
            Operation::Send { .. } => {
                self.send_msn = self.send_msn.wrapping_add(1);
                self.over(State::Done);
            }
            Operation::Write { .. } | Operation::Local => self.over(State::Done),
            Operation::Read { source_stag, source_to, sink_stag, sink_to, invalidate } => {
                let size = message.length;
                let request = read::Repr { sink_stag, sink_to, size, source_stag, source_to };
                let (id, msn) = (message.id, self.read_msn);
                self.outstanding.push_back(Outstanding { seq, id, msn, request, invalidate });
                self.read_msn = self.read_msn.wrapping_add(1);
                self.over(State::Reading);
            }
        }
    }

    /// The work request at the cursor has this state, and the next one is next.
    fn over(&mut self, state: State) {
        if let Some(slot) = self.slots.get_mut(self.cursor) {
            slot.state = state;
            self.cursor += 1;
        }
        self.begun = false;
        self.offset = 0;
    }

    /// The work request at the cursor fails for a reason of this end, and the stream with it.
    fn fail(&mut self, status: Status) {
        self.over(State::Failed(status));
        self.break_off(Fault { code: Code::LOCAL, kind: Kind::Local }, None);
    }

    /// The memory that the peer reads is not there any more.
    fn unreadable(&mut self, denied: Denied, request: &read::Repr, msn: u32) {
        let place = Place::Untagged { invalidate: 0, queue: queue::READ, msn, mo: 0 };
        let header = self.header(true, Opcode::ReadRequest, place);
        let fault = Fault { code: read_code(denied), kind: Kind::ReadSource };
        self.refuse(fault, Header::UNTAGGED + read::Repr::LEN, header, Some(*request));
    }

    /// Memory went away in the middle of an FPDU.
    fn cut_off(&mut self, what: What) {
        self.cut = true;
        if let What::Request { .. } = what
            && self.end.is_none()
        {
            self.over(State::Failed(Status::LocalProtection));
        }
        (self.terminate, self.terminates) = (None, false);
        self.finish(End::Broken(Cause::Refused(Fault { code: Code::LOCAL, kind: Kind::Local })));
    }
}

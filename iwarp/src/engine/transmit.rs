//! What is sent next.

use crate::ddp::{self, Header, Place, queue};
use crate::mpa::fpdu::Emission;
use crate::rdmap::terminate::Repr as Terminate;
use crate::rdmap::{Control, Opcode, read};

use super::end::{End, Fault, Kind, read_code};
use super::memory::{Denied, Memory, Source};
use super::pass::Segment;
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

/// What is done when a segment has been given to the stream or to the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
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

/// Whose segment is next.
enum Turn {
    Local(u32),
    Request(Message),
    Response,
}

/// What is sent next.
pub(super) enum Next {
    Nothing,
    /// A local work request comes first.
    Local(u32),
    Segment(Segment),
}

/// What the engine itself writes behind the header of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    bytes: [u8; Terminate::MAX],
    len: usize,
}

impl Body {
    const NONE: Body = Body { bytes: [0; Terminate::MAX], len: 0 };

    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn of_read(request: &read::Repr) -> Body {
        let mut body = Body::NONE;
        body.len = request.emit(&mut body.bytes).unwrap_or(0);
        body
    }
}

/// The longest header with what is not gathered.
const HEAD: usize = Header::UNTAGGED + Terminate::MAX;

impl Engine {
    /// Writes FPDUs into the room that the stream has, as many as fit; the last one may be cut. A
    /// caller that wants FPDUs to begin with segments of the stream gives room for whole ones.
    pub fn transmit<M: Memory>(&mut self, out: &mut [u8], memory: &mut M) -> Transmit {
        let mut done = Transmit::default();
        while self.go_on(out, &mut done.bytes, memory) && done.bytes < out.len() {
            done.local = self.begin(memory);
            if done.local.is_some() || (self.current.is_none() && self.terminate.is_none()) {
                break;
            }
        }
        done
    }

    /// Writes the rest of an FPDU that is begun, as far as it fits, and begins none. Returns how
    /// many bytes of the room are used.
    pub fn transmit_rest<M: Memory>(&mut self, out: &mut [u8], memory: &mut M) -> usize {
        let mut done = 0;
        self.go_on(out, &mut done, memory);
        done
    }

    /// Goes on with the FPDU that is begun, behind `done` bytes of the room. Returns whether there
    /// is none any more and another one may follow.
    fn go_on<M: Memory>(&mut self, out: &mut [u8], done: &mut usize, memory: &mut M) -> bool {
        let Some(mut current) = self.current.take() else { return true };
        let room = out.get_mut(*done..).unwrap_or_default();
        let source = current.source;
        // The payload of a segment has fewer than 2^16 bytes.
        let gather = |at: usize, into: &mut [u8]| memory.gather(source.behind(at as u32), into);
        match current.emission.write(room, gather) {
            Ok(bytes) => *done += bytes,
            Err(_) => {
                self.cut_off(current.what);
                return false;
            }
        }
        if !current.emission.is_done() {
            self.current = Some(current);
            return false;
        }
        self.sent(current.what);
        true
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
        match self.plan(None, &mut |source, length| memory.check(source, length)) {
            Next::Nothing => {}
            Next::Local(id) => return Some(id),
            Next::Segment(segment) => {
                self.account(&segment, segment.length);
                self.emit(&segment);
            }
        }
        None
    }

    /// What is sent next. The payload of a segment has at most `most` bytes, or as many as fit into
    /// an FPDU.
    pub(super) fn plan(
        &mut self,
        most: Option<u32>,
        check: &mut impl FnMut(Source, u32) -> Result<(), Denied>,
    ) -> Next {
        if let Some(terminate) = self.terminate.take() {
            return Next::Segment(last_words(&terminate));
        }
        if self.end.is_some() {
            return Next::Nothing;
        }
        if core::mem::take(&mut self.announces) {
            return Next::Segment(announcement());
        }
        let turn = self.turn();
        if self.draining && turn.is_none() {
            self.finish(End::Disconnected);
        }
        let segment = match turn {
            Some(Turn::Local(id)) => {
                self.local = true;
                return Next::Local(id);
            }
            Some(Turn::Request(message)) => self.plan_request(&message, most, check),
            Some(Turn::Response) => self.plan_response(most, check),
            None => None,
        };
        segment.map_or(Next::Nothing, Next::Segment)
    }

    /// Which message the next FPDU is of. One that is begun goes on; else they take turns.
    fn turn(&mut self) -> Option<Turn> {
        if self.local {
            return None;
        }
        let response = self.response_ready();
        let request = self.request_ready();
        if response && (request.is_none() || self.responds_next) {
            self.responds_next = false;
            return Some(Turn::Response);
        }
        let message = request?;
        self.responds_next = true;
        match message.operation {
            Operation::Local => Some(Turn::Local(message.id)),
            _ => Some(Turn::Request(message)),
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

    /// The next segment of the work request at the cursor. `None`: it has failed.
    fn plan_request(
        &mut self,
        message: &Message,
        most: Option<u32>,
        check: &mut impl FnMut(Source, u32) -> Result<(), Denied>,
    ) -> Option<Segment> {
        let offset = self.offset;
        let part = |header| ddp::segment(message.length, offset, most.unwrap_or(self.room(header)));
        let (header, body, part) = match message.operation {
            Operation::Send { solicited, invalidate } => {
                let part = part(Header::UNTAGGED);
                let place = Place::Untagged {
                    invalidate: invalidate.unwrap_or(0),
                    queue: queue::SEND,
                    msn: self.send_msn,
                    mo: offset,
                };
                (header(part.last, Opcode::send(solicited, invalidate.is_some()), place), Body::NONE, part)
            }
            Operation::Write { stag, to } => {
                let part = part(Header::TAGGED);
                let place = Place::Tagged { stag, to: to.wrapping_add(offset.into()) };
                (header(part.last, Opcode::Write, place), Body::NONE, part)
            }
            Operation::Read { source_stag, source_to, sink_stag, sink_to, .. } => {
                let request = read::Repr { sink_stag, sink_to, size: message.length, source_stag, source_to };
                let place = Place::Untagged { invalidate: 0, queue: queue::READ, msn: self.read_msn, mo: 0 };
                let part = ddp::Segment { length: 0, last: true };
                (header(true, Opcode::ReadRequest, place), Body::of_read(&request), part)
            }
            Operation::Local => return None,
        };
        let source = Source::Request { id: message.id, offset };
        if part.length > 0 && check(source, part.length).is_err() {
            self.fail(Status::LocalProtection);
            return None;
        }
        let what = What::Request { last: part.last };
        Some(Segment { header, body, length: part.length, source, what })
    }

    /// The next segment of the oldest response. `None`: its memory is not there any more.
    fn plan_response(
        &mut self,
        most: Option<u32>,
        check: &mut impl FnMut(Source, u32) -> Result<(), Denied>,
    ) -> Option<Segment> {
        let &Response { request, msn, done } = self.responses.front()?;
        let part = ddp::segment(request.size, done, most.unwrap_or(self.room(Header::TAGGED)));
        let source = Source::Region { stag: request.source_stag, to: request.source_to }.behind(done);
        if part.length > 0
            && let Err(denied) = check(source, part.length)
        {
            self.unreadable(denied, &request, msn);
            return None;
        }
        let to = request.sink_to.wrapping_add(done.into());
        let place = Place::Tagged { stag: request.sink_stag, to };
        let header = header(part.last, Opcode::ReadResponse, place);
        let what = What::Response { last: part.last };
        Some(Segment { header, body: Body::NONE, length: part.length, source, what })
    }

    /// So many bytes of a segment's payload leave.
    pub(super) fn account(&mut self, segment: &Segment, bytes: u32) {
        match segment.what {
            What::Request { .. } => {
                self.begun = true;
                self.offset += bytes;
            }
            What::Response { .. } => {
                self.response_begun = true;
                if let Some(response) = self.responses.front_mut() {
                    response.done += bytes;
                }
            }
            What::Terminate | What::Announcement => {}
        }
    }

    /// Begins the FPDU of a segment.
    fn emit(&mut self, segment: &Segment) {
        let &Segment { header, body, length, source, what } = segment;
        let mut head = [0; HEAD];
        let mut len = header.emit(&mut head).unwrap_or(0);
        if let Some(into) = head.get_mut(len..len + body.len) {
            into.copy_from_slice(body.bytes());
            len += body.len;
        }
        let head = head.get(..len).unwrap_or_default();
        // Head and payload of a segment are at most the MULPDU, or a Terminate.
        self.current = Emission::new(head, length as usize, self.config.crc).map(|emission| Current {
            emission,
            source,
            what,
        });
    }

    /// A segment has been given to the stream or to the peer.
    pub(super) fn sent(&mut self, what: What) {
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
        let header = header(true, Opcode::ReadRequest, place);
        let fault = Fault { code: read_code(denied), kind: Kind::ReadSource };
        self.refuse(fault, Header::UNTAGGED + read::Repr::LEN, header, Some(*request));
    }

    /// Memory went away in the middle of a segment.
    pub(super) fn cut_off(&mut self, what: What) {
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

fn header(last: bool, opcode: Opcode, place: Place) -> Header {
    Header::new(last, Control::new(opcode).to_byte(), place)
}

/// An RDMA Write of no bytes is carried out, whatever memory it names.
fn announcement() -> Segment {
    let header = header(true, Opcode::Write, Place::Tagged { stag: 0, to: 0 });
    let source = Source::Region { stag: 0, to: 0 };
    Segment { header, body: Body::NONE, length: 0, source, what: What::Announcement }
}

fn last_words(terminate: &Terminate) -> Segment {
    let place = Place::Untagged { invalidate: 0, queue: queue::TERMINATE, msn: 1, mo: 0 };
    let header = header(true, Opcode::Terminate, place);
    let mut body = Body::NONE;
    body.len = terminate.emit(&mut body.bytes).unwrap_or(0);
    let source = Source::Request { id: 0, offset: 0 };
    Segment { header, body, length: 0, source, what: What::Terminate }
}

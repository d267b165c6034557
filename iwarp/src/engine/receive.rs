//! What a segment of the peer means.

use crate::Error;
use crate::ddp::{self, Header, Place, queue};
use crate::rdmap::{self, Control, Opcode, read, terminate};

use super::end::{Fault, Kind, read_code, write_code};
use super::memory::{By, Denied, Memory, Sink};
use super::{Arriving, Code, Engine, Event, Response, State, Status};

/// What a segment carries behind its header.
pub(super) trait Payload<M>: Copy {
    /// How long it is.
    fn length(&self) -> u32;

    /// The bytes of a message that is for the engine itself.
    fn body(&self) -> &[u8];

    /// Places it as an RDMA Write of the peer. Returns how much of it was placed.
    fn write(self, memory: &mut M, stag: u32, to: u64) -> Result<u32, Denied>;

    /// Places it where a Receive or an RDMA Read waits for it. Returns how much of it was placed.
    fn place(self, memory: &mut M, sink: Sink) -> Result<u32, Denied>;
}

/// The bytes of a ULPDU. All of them are placed or none.
impl<M: Memory> Payload<M> for &[u8] {
    fn length(&self) -> u32 {
        // A ULPDU has a length of 16 bits.
        self.len() as u32
    }

    fn body(&self) -> &[u8] {
        self
    }

    fn write(self, memory: &mut M, stag: u32, to: u64) -> Result<u32, Denied> {
        memory.write(stag, to, self).map(|()| self.len() as u32)
    }

    fn place(self, memory: &mut M, sink: Sink) -> Result<u32, Denied> {
        memory.place(sink, self).map(|()| self.len() as u32)
    }
}

/// A segment, taken apart.
#[derive(Clone, Copy)]
struct Arrived<P> {
    header: Header,
    payload: P,
    length: u32,
}

impl<P> Arrived<P> {
    /// Whether its message ends with so many bytes of it: a part of a segment is a segment that is
    /// not the last one.
    const fn ends(&self, placed: u32) -> bool {
        self.header.last && placed == self.length
    }
}

/// The fields of a tagged header.
#[derive(Clone, Copy)]
struct Tagged {
    stag: u32,
    to: u64,
}

/// The fields of an untagged header.
#[derive(Clone, Copy)]
struct Untagged {
    invalidate: u32,
    queue: u32,
    msn: u32,
    mo: u32,
}

impl Untagged {
    /// Checks that the segment is the one of its queue that is expected.
    fn expect(self, queue: u32, msn: u32, mo: u32, kind: Kind) -> Result<(), Fault> {
        if self.queue != queue {
            return Err(Fault { code: Code::DDP_QUEUE, kind: Kind::Transport });
        }
        if self.msn != msn {
            return Err(Fault { code: Code::DDP_MSN, kind });
        }
        if self.mo != mo {
            return Err(Fault { code: Code::DDP_MO, kind: Kind::Transport });
        }
        Ok(())
    }
}

impl Engine {
    /// Takes bytes of the peer, and returns how many. It stops when there is a message for a
    /// Receive to report; then the events are to be taken, and the rest is to be passed again.
    /// After the end of the stream it takes everything and does nothing.
    pub fn receive<M: Memory>(&mut self, bytes: &[u8], memory: &mut M) -> usize {
        let mut rest = bytes;
        let mut receiver = core::mem::take(&mut self.receiver);
        while self.end.is_none() && self.arrival.is_none() {
            match receiver.next(&mut rest) {
                Ok(None) => break,
                Ok(Some(ulpdu)) => self.segment(ulpdu, memory),
                Err(error) => self.misframed(error),
            }
        }
        self.receiver = receiver;
        if self.end.is_some() { bytes.len() } else { bytes.len() - rest.len() }
    }

    /// The stream can no longer be divided into FPDUs.
    fn misframed(&mut self, error: Error) {
        let code = match error {
            Error::Checksum { .. } => Code::MPA_CRC,
            Error::NoMemory => Code::MPA_LOCAL,
            Error::Truncated { .. } | Error::Field { .. } => Code::MPA_LENGTH,
        };
        // It was an FPDU nevertheless, and may be answered.
        self.speaks = true;
        self.break_off(Fault { code, kind: Kind::Llp }, None);
    }

    fn segment<M: Memory>(&mut self, ulpdu: &[u8], memory: &mut M) {
        let (header, payload) = match Header::parse(ulpdu) {
            Ok(parsed) => parsed,
            Err(error) => return self.misframed(error),
        };
        self.arrived(header, payload, memory);
    }

    /// Takes a segment, and returns how much of its payload; all of it if it is refused.
    pub(super) fn arrived<M: Memory, P: Payload<M>>(
        &mut self,
        header: Header,
        payload: P,
        memory: &mut M,
    ) -> u32 {
        let length = payload.length();
        self.heard = true;
        if !self.speaks {
            self.speaks = true;
            // An initiator that refuses the Reply says so by a Terminate.
            self.established = Control::parse(header.control).opcode() != Some(Opcode::Terminate);
        }
        match self.judge(Arrived { header, payload, length }, memory) {
            Ok(placed) => placed,
            Err(fault) => {
                let control = Control::parse(header.control);
                let is_read = control.opcode() == Some(Opcode::ReadRequest);
                let read = is_read.then(|| read::Repr::parse(payload.body()).ok()).flatten();
                let ulpdu = header.size() + length as usize;
                self.refuse(fault, ulpdu, header, read.map(|(request, _)| request));
                length
            }
        }
    }

    /// What a segment means. Returns how much of its payload was placed.
    fn judge<M: Memory, P: Payload<M>>(&mut self, segment: Arrived<P>, memory: &mut M) -> Result<u32, Fault> {
        let Header { version, control, place, .. } = segment.header;
        if version != ddp::VERSION {
            let code = match place {
                Place::Tagged { .. } => Code::DDP_TAGGED_VERSION,
                Place::Untagged { .. } => Code::DDP_UNTAGGED_VERSION,
            };
            return Err(Fault { code, kind: Kind::Transport });
        }
        let control = Control::parse(control);
        if control.version != rdmap::VERSION {
            return Err(Fault { code: Code::RDMAP_VERSION, kind: Kind::Opcode });
        }
        let unexpected = Fault { code: Code::OPCODE, kind: Kind::Opcode };
        let opcode = control.opcode().ok_or(unexpected)?;
        match (opcode, place) {
            (Opcode::Write, Place::Tagged { stag, to }) => self.write(segment, Tagged { stag, to }, memory),
            (Opcode::ReadResponse, Place::Tagged { stag, to }) => {
                self.read_response(segment, Tagged { stag, to }, memory)
            }
            (Opcode::Write | Opcode::ReadResponse, _) | (_, Place::Tagged { .. }) => Err(unexpected),
            (opcode, Place::Untagged { invalidate, queue, msn, mo }) => {
                let fields = Untagged { invalidate, queue, msn, mo };
                match opcode {
                    Opcode::ReadRequest => {
                        self.read_request(&segment.header, segment.payload.body(), fields, memory)?;
                        Ok(segment.length)
                    }
                    Opcode::Terminate => {
                        self.terminated(segment.payload.body(), fields)?;
                        Ok(segment.length)
                    }
                    _ => self.send(segment, fields, opcode, memory),
                }
            }
        }
    }

    /// An RDMA Write. Its segments lie one behind the other.
    fn write<M: Memory, P: Payload<M>>(
        &mut self,
        segment: Arrived<P>,
        Tagged { stag, to }: Tagged,
        memory: &mut M,
    ) -> Result<u32, Fault> {
        let fault = |code| Fault { code, kind: Kind::Write };
        if let Some((open, next)) = self.writing {
            if stag != open {
                return Err(fault(Code::DDP_STAG));
            }
            if to != next {
                return Err(fault(Code::DDP_BOUNDS));
            }
        }
        let mut placed = 0;
        if segment.length > 0 {
            if to.checked_add(segment.length.into()).is_none() {
                return Err(fault(Code::DDP_WRAP));
            }
            placed = segment.payload.write(memory, stag, to).map_err(|denied| fault(write_code(denied)))?;
        }
        let next = to.saturating_add(placed.into());
        self.writing = if segment.ends(placed) { None } else { Some((stag, next)) };
        Ok(placed)
    }

    /// A response to the oldest RDMA Read.
    fn read_response<M: Memory, P: Payload<M>>(
        &mut self,
        segment: Arrived<P>,
        Tagged { stag, to }: Tagged,
        memory: &mut M,
    ) -> Result<u32, Fault> {
        let Some(&read) = self.outstanding.front() else {
            return Err(Fault { code: Code::OPCODE, kind: Kind::Opcode });
        };
        let fault = |code| Fault { code, kind: Kind::Transport };
        let done = self.reading.unwrap_or(0);
        let left = read.request.size.saturating_sub(done);
        if stag != read.request.sink_stag {
            return Err(fault(Code::DDP_STAG));
        }
        let too_short = segment.header.last && segment.length != left;
        if to != read.request.sink_to.wrapping_add(done.into()) || segment.length > left || too_short {
            return Err(fault(Code::DDP_BOUNDS));
        }
        let mut placed = 0;
        if segment.length > 0 {
            let sink = Sink::Read { id: read.id, offset: done };
            placed = match segment.payload.place(memory, sink) {
                Ok(placed) => placed,
                Err(denied) => {
                    self.read_over(read.seq, State::Failed(Status::LocalProtection));
                    return Err(Fault { code: write_code(denied), kind: Kind::ReadSink });
                }
            };
        }
        if !segment.ends(placed) {
            self.reading = Some(done + placed);
            return Ok(placed);
        }
        if let Some(stag) = read.invalidate
            && memory.invalidate(stag, By::Read).is_err()
        {
            self.read_over(read.seq, State::Failed(Status::LocalProtection));
            self.break_off(Fault { code: Code::LOCAL, kind: Kind::Local }, None);
            return Ok(placed);
        }
        self.read_over(read.seq, State::Done);
        Ok(placed)
    }

    /// The oldest RDMA Read is over.
    fn read_over(&mut self, seq: u64, state: State) {
        self.outstanding.pop_front();
        self.reading = None;
        if let Some(slot) = self.slot(seq) {
            slot.state = state;
        }
    }

    /// One of the four Sends.
    fn send<M: Memory, P: Payload<M>>(
        &mut self,
        segment: Arrived<P>,
        fields: Untagged,
        opcode: Opcode,
        memory: &mut M,
    ) -> Result<u32, Fault> {
        let done = self.arriving.map_or(0, |arriving| arriving.done);
        fields.expect(queue::SEND, self.expected_send, done, Kind::Receive)?;
        let arriving = match self.arriving {
            Some(arriving) if arriving.control != segment.header.control => {
                return Err(Fault { code: Code::OPCODE, kind: Kind::Opcode });
            }
            Some(arriving) => arriving,
            None => {
                let receive = memory.take_receive();
                let receive = receive.ok_or(Fault { code: Code::DDP_NO_BUFFER, kind: Kind::Receive })?;
                Arriving { receive, control: segment.header.control, done: 0 }
            }
        };
        self.arriving = Some(arriving);
        let id = arriving.receive.id;
        if segment.length > arriving.receive.length.saturating_sub(done) {
            self.receive_failed(Status::LocalLength);
            return Err(Fault { code: Code::DDP_TOO_LONG, kind: Kind::ReceiveLength });
        }
        let mut placed = 0;
        if segment.length > 0 {
            let Ok(count) = segment.payload.place(memory, Sink::Receive { id, offset: done }) else {
                self.receive_failed(Status::LocalProtection);
                return Err(Fault { code: Code::LOCAL, kind: Kind::Local });
            };
            placed = count;
        }
        let length = done + placed;
        if !segment.ends(placed) {
            self.arriving = Some(Arriving { done: length, ..arriving });
            return Ok(placed);
        }
        let invalidated = opcode.invalidates().then_some(fields.invalidate);
        if let Some(stag) = invalidated
            && memory.invalidate(stag, By::Peer).is_err()
        {
            self.receive_failed(Status::Invalidate);
            return Err(Fault { code: Code::INVALIDATE, kind: Kind::Invalidate });
        }
        self.arriving = None;
        self.expected_send = self.expected_send.wrapping_add(1);
        let solicited = opcode.is_solicited();
        self.arrival = Some(Event::Received { id, length, solicited, invalidated });
        Ok(placed)
    }

    /// The Receive of the message that is arriving ends without it.
    pub(super) fn receive_failed(&mut self, status: Status) {
        if let Some(arriving) = self.arriving.take() {
            self.arrival = Some(Event::ReceiveFailed { id: arriving.receive.id, status });
        }
    }

    /// The request of an RDMA Read.
    fn read_request<M: Memory>(
        &mut self,
        header: &Header,
        body: &[u8],
        fields: Untagged,
        memory: &mut M,
    ) -> Result<(), Fault> {
        // A wrong number counts as an access that is refused, as the verbs of the RDMA Consortium
        // have it.
        fields.expect(queue::READ, self.expected_read, 0, Kind::ReadSource)?;
        let fault = |code| Fault { code, kind: Kind::Transport };
        let (request, behind) = read::Repr::parse(body).map_err(|_| fault(Code::STREAM))?;
        if !header.last || !behind.is_empty() {
            return Err(fault(Code::DDP_TOO_LONG));
        }
        if self.responses.len() >= self.config.ird.into() {
            return Err(Fault { code: Code::DDP_MSN, kind: Kind::ReadSource });
        }
        if request.size > 0 {
            let source = super::Source::Region { stag: request.source_stag, to: request.source_to };
            let fault = |code| Fault { code, kind: Kind::ReadSource };
            if request.source_to.checked_add(request.size.into()).is_none() {
                return Err(fault(Code::READ_WRAP));
            }
            memory.check(source, request.size).map_err(|denied| fault(read_code(denied)))?;
        }
        self.expected_read = self.expected_read.wrapping_add(1);
        self.responses.push_back(Response { request, msn: fields.msn, done: 0 });
        Ok(())
    }

    /// A Terminate. Whatever else it says, the stream is over.
    fn terminated(&mut self, body: &[u8], fields: Untagged) -> Result<(), Fault> {
        fields.expect(queue::TERMINATE, 1, 0, Kind::Transport)?;
        match terminate::Repr::parse(body) {
            Ok(terminate) => self.peer_terminated(&terminate),
            Err(error) => self.misframed(error),
        }
        Ok(())
    }
}

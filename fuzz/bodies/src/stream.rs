//! One end of a stream of iWARP: work requests, room for what it sends, and a peer that sends
//! segments which are nearly right, others, and bytes.
//!
//! What must hold: no panic; the end reaches only for memory that was asked for, and places no byte
//! beyond it; each request and each Receive that was taken ends once, the requests in order; the
//! stream ends once, and after that nothing happens; what the end sends is FPDUs with right CRCs.

use std::collections::VecDeque;

use iwarp::ddp::{Header, Place};
use iwarp::engine::{
    By, Close, Config, Denied, Direct, Engine, Event, Memory, Message, Operation, Receive, Role, Sink, Source,
};
use iwarp::mpa::fpdu::{self, Receiver};
use iwarp::rdmap::read;

use crate::Input;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let role = if input.rarely(2) { Role::Responder } else { Role::Initiator };
    let config = Config { role, mulpdu: 128, crc: !input.rarely(4), depth: 8, ord: 2, ird: 2 };
    let mut world = World {
        engine: Engine::new(config),
        crc: config.crc,
        device: Device::default(),
        sent: Receiver::new(config.crc),
        posted: 0,
        ended: 0,
        events_end: false,
        received: 0,
        msn: [0; 3],
        sink: 0,
    };
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.finish();
}

/// The only region, its length, and that of a Receive.
const REGION: u32 = 1;
const LENGTH: u64 = 300;

#[derive(Default)]
pub(crate) struct Device {
    /// The lengths of requests, by their numbers.
    pub requests: Vec<u32>,
    pub receives: VecDeque<u32>,
    pub taken: u32,
    /// The Receive that was taken last, and its length.
    next: u32,
    room: u32,
    pub revoked: bool,
    /// Of payload that is moved, so many bytes at a time.
    pub moves: u32,
}

impl Device {
    fn region(&self, stag: u32, to: u64, length: usize) -> Result<(), Denied> {
        assert!(length > 0, "nothing is asked for");
        let end = to.checked_add(length as u64).expect("what wraps is not asked for");
        match stag {
            REGION if self.revoked => Err(Denied::Right),
            REGION if end <= LENGTH => Ok(()),
            REGION => Err(Denied::Bounds),
            2 => Err(Denied::Association),
            _ => Err(Denied::Stag),
        }
    }

    fn request(&self, id: u32, offset: u32, length: usize) {
        let room = self.requests.get(id as usize).expect("a request that was posted");
        assert!(u64::from(offset) + length as u64 <= u64::from(*room), "beyond the request");
    }
}

impl Memory for Device {
    fn check(&mut self, source: Source, length: u32) -> Result<(), Denied> {
        match source {
            Source::Request { id, offset } => {
                self.request(id, offset, length as usize);
                Ok(())
            }
            Source::Region { stag, to } => self.region(stag, to, length as usize),
        }
    }

    fn gather(&mut self, source: Source, into: &mut [u8]) -> Result<(), Denied> {
        self.check(source, into.len() as u32)?;
        into.fill(0x5a);
        Ok(())
    }

    fn write(&mut self, stag: u32, to: u64, bytes: &[u8]) -> Result<(), Denied> {
        self.region(stag, to, bytes.len())
    }

    fn take_receive(&mut self) -> Option<Receive> {
        let length = self.receives.pop_front()?;
        self.taken += 1;
        self.next += 1;
        self.room = length;
        Some(Receive { id: self.next, length })
    }

    fn place(&mut self, sink: Sink, bytes: &[u8]) -> Result<(), Denied> {
        match sink {
            Sink::Read { id, offset } => self.request(id, offset, bytes.len()),
            Sink::Receive { id, offset } => {
                assert_eq!(id, self.next, "the Receive that was taken last");
                assert!(u64::from(offset) + bytes.len() as u64 <= u64::from(self.room), "beyond the Receive");
            }
        }
        Ok(())
    }

    fn invalidate(&mut self, stag: u32, _: By) -> Result<(), Denied> {
        if stag == REGION { Ok(()) } else { Err(Denied::Stag) }
    }
}

impl Direct for Device {
    fn write_from_peer(&mut self, stag: u32, to: u64, length: u32) -> Result<u32, Denied> {
        self.region(stag, to, length as usize)?;
        Ok(length.min(self.moves))
    }

    fn place_from_peer(&mut self, sink: Sink, length: u32) -> Result<u32, Denied> {
        self.place(sink, &vec![0; length as usize])?;
        Ok(length.min(self.moves))
    }
}

struct World {
    engine: Engine,
    crc: bool,
    device: Device,
    /// What the end sends, taken apart again.
    sent: Receiver,
    posted: u32,
    ended: u32,
    events_end: bool,
    /// Receives that have ended.
    received: u32,
    /// The number of the peer's last message in each queue.
    msn: [u32; 3],
    /// Where the next response goes on.
    sink: u64,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0 | 1 => self.post(input),
            2 | 3 => self.transmit(1 + input.number() as usize % 600),
            4 => self.device.receives.push_back(input.number() as u32 % 200),
            5 => {
                let len = input.below(64);
                let bytes = input.bytes(len).to_vec();
                self.receive(&bytes);
            }
            6..=9 => {
                let bytes = self.segment(input);
                let cut = input.below(256).min(bytes.len());
                self.receive(&bytes[..cut]);
                self.receive(&bytes[cut..]);
            }
            10 => match input.below(8) {
                0 => self.engine.disconnect(),
                1 => self.engine.finished(),
                2 => self.engine.lost(),
                3 => self.device.revoked = true,
                4 => self.engine.set_mulpdu(input.number() as u16),
                _ => {}
            },
            _ => {
                self.sink = 0;
                self.transmit(1);
            }
        }
        self.events();
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let length = input.number() as u32 % 600;
        let operation = match input.below(5) {
            0 => Operation::Send { solicited: true, invalidate: None },
            1 => Operation::Write { stag: 7, to: input.number() },
            2 | 3 => Operation::Read {
                source_stag: 7,
                source_to: 0,
                sink_stag: 3,
                sink_to: 0,
                invalidate: input.rarely(4).then(|| u32::from(input.byte())),
            },
            _ => Operation::Local,
        };
        let message = Message { id: self.posted, operation, length, fence: input.rarely(4) };
        if self.engine.post(message).is_ok() {
            self.posted += 1;
            self.device.requests.push(length);
        }
    }

    fn transmit(&mut self, room: usize) {
        let mut out = vec![0; room];
        let transmit = self.engine.transmit(&mut out, &mut self.device);
        let mut bytes = &out[..transmit.bytes];
        while let Some(ulpdu) = self.sent.next(&mut bytes).expect("FPDUs with right CRCs") {
            Header::parse(ulpdu).expect("a segment");
        }
        if transmit.local.is_some() {
            self.engine.carried_out(true);
        }
        self.events();
    }

    fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.engine.receive(bytes, &mut self.device);
            self.events();
            bytes = &bytes[taken..];
        }
    }

    /// A segment that is nearly right.
    fn segment(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let opcode = input.byte() & 0xf;
        let wrong = input.byte();
        let tagged = matches!(opcode, 0 | 2) != (wrong == 0xff);
        let last = wrong & 0x80 == 0;
        let length = match opcode {
            1 if wrong & 0x40 == 0 => 28,
            _ => input.number() as usize % 300,
        };
        let place = if tagged {
            let to = if wrong & 0x20 == 0 { self.sink } else { input.number() };
            self.sink = to.wrapping_add(length as u64);
            let stag = if opcode == 2 { 3 } else { REGION };
            Place::Tagged { stag: if wrong & 0x1f == 0x1f { input.byte().into() } else { stag }, to }
        } else {
            let queue = match opcode {
                1 => 1,
                7 => 2,
                _ => 0,
            };
            let mo = if wrong & 0x20 == 0 { 0 } else { input.number() as u32 };
            self.msn[queue] += u32::from(mo == 0);
            let msn = if wrong & 0x1f == 0x1e { input.number() as u32 } else { self.msn[queue] };
            let queue = if wrong & 0x1f == 0x1d { input.number() as u32 } else { queue as u32 };
            Place::Untagged { invalidate: u32::from(wrong & 3), queue, msn, mo }
        };
        let version = if wrong & 0x1f == 0x1c { input.byte() } else { 1 };
        let header = Header { last, version, control: 0x40 | opcode, place };
        let mut ulpdu = vec![0; header.size()];
        header.emit(&mut ulpdu).expect("room as it asks for");
        let start = ulpdu.len();
        ulpdu.resize(start + length, 0x11);
        if opcode == 1 && length == 28 {
            let size = input.number() as u32 % 400;
            let source_stag = u32::from(input.byte() % 4);
            let request =
                read::Repr { sink_stag: 9, sink_to: 0, size, source_stag, source_to: input.number() };
            request.emit(&mut ulpdu[start..]).expect("room as it asks for");
        } else if opcode == 7 {
            let from = input.bytes(length);
            ulpdu[start..start + from.len()].copy_from_slice(from);
        }
        let mut bytes = vec![0; fpdu::length(ulpdu.len())];
        fpdu::emit(&ulpdu, self.crc, &mut bytes).expect("room as it asks for");
        bytes
    }

    fn events(&mut self) {
        while let Some(event) = self.engine.poll() {
            assert!(!self.events_end, "an event after the end: {event:?}");
            match event {
                Event::Completed { id } | Event::Failed { id, .. } => {
                    assert_eq!(id, self.ended, "requests end once and in order");
                    self.ended += 1;
                }
                Event::Received { .. } | Event::ReceiveFailed { .. } => self.received += 1,
                Event::Established => {}
                Event::Ended(_) => self.events_end = true,
            }
            assert!(self.received <= self.device.taken);
        }
    }

    fn finish(mut self) {
        self.engine.disconnect();
        for _ in 0..200 {
            self.transmit(600);
        }
        // What waits for the peer ends with the stream.
        self.engine.lost();
        self.events();
        assert!(self.events_end && self.engine.ended().is_some());
        assert_eq!((self.ended, self.received), (self.posted, self.device.taken));
        let close = self.engine.close().expect("something to do with the stream");
        assert!(close == Close::Reset || !self.sent.is_inside(), "an FPDU that is not finished");
        let mut out = [0; 8];
        assert_eq!(self.engine.transmit(&mut out, &mut self.device).bytes, 0);
        assert_eq!(self.engine.receive(&[1; 8], &mut self.device), 8);
    }
}

//! Streams of Linux, played again: the engine of each end sends what Linux has sent, and takes what
//! the other end has sent.

use std::collections::VecDeque;
use std::path::Path;

use iwarp::ddp::{Header, Place};
use iwarp::engine::{
    By, Cause, Config, Denied, End, Engine, Event, Memory, Message, Operation, Receive, Role, Sink, Source,
};
use iwarp::mpa::fpdu::{self, Receiver};
use iwarp::mpa::frame::{Kind, Parser};
use iwarp::rdmap::terminate::Code;
use iwarp::rdmap::{Control, Opcode, read};

use super::streams::{all, connections, direction};

/// Memory that holds what the recording says, and takes everything.
#[derive(Default)]
pub struct Script {
    /// The payload of each request, by its number.
    pub requests: Vec<Vec<u8>>,
    /// The payload of all responses.
    pub responses: VecDeque<u8>,
    /// What has been placed.
    pub placed: Vec<u8>,
}

impl Memory for Script {
    fn check(&mut self, _: Source, _: u32) -> Result<(), Denied> {
        Ok(())
    }

    fn gather(&mut self, source: Source, into: &mut [u8]) -> Result<(), Denied> {
        match source {
            Source::Request { id, offset } => {
                let from = self.requests.get(id as usize).ok_or(Denied::Stag)?;
                into.copy_from_slice(&from[offset as usize..][..into.len()]);
            }
            Source::Region { .. } => into.fill_with(|| self.responses.pop_front().unwrap_or(0)),
        }
        Ok(())
    }

    fn write(&mut self, _: u32, _: u64, bytes: &[u8]) -> Result<(), Denied> {
        self.placed.extend(bytes);
        Ok(())
    }

    fn take_receive(&mut self) -> Option<Receive> {
        Some(Receive { id: 0, length: 1 << 20 })
    }

    fn place(&mut self, _: Sink, bytes: &[u8]) -> Result<(), Denied> {
        self.placed.extend(bytes);
        Ok(())
    }

    fn invalidate(&mut self, _: u32, _: By) -> Result<(), Denied> {
        Ok(())
    }
}

struct Player {
    parser: Parser,
    receiver: Receiver,
    engine: Engine,
    script: Script,
    sent: Vec<u8>,
    recorded: Vec<u8>,
    messages: Vec<(Operation, Vec<u8>)>,
    /// A Send and an RDMA Write are begun.
    open: [bool; 2],
    events: Vec<Event>,
}

impl Player {
    fn new(role: Role) -> Player {
        let config = Config { role, mulpdu: 1442, crc: false, depth: 256, ord: 128, ird: 128 };
        let kind = if role == Role::Initiator { Kind::Request } else { Kind::Reply };
        Player {
            parser: Parser::new(kind),
            receiver: Receiver::new(false),
            engine: Engine::new(config),
            script: Script::default(),
            sent: Vec::new(),
            recorded: Vec::new(),
            messages: Vec::new(),
            open: [false; 2],
            events: Vec::new(),
        }
    }

    /// Takes from all that Linux has sent its messages, and what its responses carry.
    fn prepare(&mut self, kind: Kind, all: &[u8]) {
        let taken = Parser::new(kind).push(all).unwrap();
        let (mut rest, mut receiver) = (&all[taken..], Receiver::new(false));
        // Of a Send and of an RDMA Write.
        let mut open = [None, None];
        while let Some(ulpdu) = receiver.next(&mut rest).unwrap() {
            let (header, payload) = Header::parse(ulpdu).unwrap();
            let opcode = Control::parse(header.control).opcode().unwrap();
            let operation = match (opcode, header.place) {
                (Opcode::Terminate, _) => continue,
                (Opcode::ReadResponse, _) => {
                    self.script.responses.extend(payload);
                    continue;
                }
                (Opcode::Write, Place::Tagged { stag, to }) => Operation::Write { stag, to },
                (Opcode::ReadRequest, _) => {
                    let (request, _) = read::Repr::parse(payload).unwrap();
                    let read::Repr { sink_stag, sink_to, source_stag, source_to, .. } = request;
                    Operation::Read { source_stag, source_to, sink_stag, sink_to, invalidate: None }
                }
                (send, Place::Untagged { invalidate, .. }) => Operation::Send {
                    solicited: send.is_solicited(),
                    invalidate: send.invalidates().then_some(invalidate),
                },
                other => panic!("{other:?}"),
            };
            let place = &mut open[usize::from(opcode.is_tagged())];
            let at = *place.get_or_insert_with(|| {
                self.messages.push((operation, Vec::new()));
                self.messages.len() - 1
            });
            self.messages[at].1.extend(payload);
            if header.last {
                *place = None;
            }
        }
    }

    fn poll(&mut self) {
        while let Some(event) = self.engine.poll() {
            self.events.push(event);
        }
    }

    /// Posts each message that Linux begins in these bytes, and sends it.
    fn play(&mut self, mut bytes: &[u8]) {
        while let Some(ulpdu) = self.receiver.next(&mut bytes).unwrap() {
            let mut fpdu = vec![0; fpdu::length(ulpdu.len())];
            fpdu::emit(ulpdu, false, &mut fpdu).unwrap();
            self.recorded.extend(fpdu);
            let (header, _) = Header::parse(ulpdu).unwrap();
            let opcode = Control::parse(header.control).opcode().unwrap();
            if matches!(opcode, Opcode::Terminate | Opcode::ReadResponse) {
                continue;
            }
            let open = &mut self.open[usize::from(opcode.is_tagged())];
            if !std::mem::replace(open, !header.last) {
                self.post();
            }
        }
        self.send();
    }

    fn post(&mut self) {
        let id = self.script.requests.len() as u32;
        let (operation, payload) = self.messages[id as usize].clone();
        let (length, payload) = match operation {
            Operation::Read { .. } => (read::Repr::parse(&payload).unwrap().0.size, Vec::new()),
            _ => (payload.len() as u32, payload),
        };
        self.engine.post(Message { id, operation, length, fence: false }).unwrap();
        self.script.requests.push(payload);
    }

    fn send(&mut self) {
        let mut out = [0; 100];
        loop {
            let transmit = self.engine.transmit(&mut out, &mut self.script);
            if transmit.bytes == 0 {
                break;
            }
            self.sent.extend(&out[..transmit.bytes]);
        }
        self.poll();
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.engine.receive(bytes, &mut self.script);
            self.poll();
            bytes = &bytes[taken..];
        }
    }
}

#[test]
fn the_engine_sends_what_linux_has_sent() {
    let refused = ["20", "21", "22", "23", "24", "25", "26", "27"];
    let mut checked = 0;
    for path in all() {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // Rejected, and another peer than Linux.
        if ["11", "14", "50"].iter().any(|other| name.starts_with(other)) {
            continue;
        }
        for records in connections(&path) {
            let mut players = [Player::new(Role::Initiator), Player::new(Role::Responder)];
            for (player, responder) in players.iter_mut().zip([false, true]) {
                let kind = if responder { Kind::Reply } else { Kind::Request };
                player.prepare(kind, &direction(&records, responder));
            }
            for record in &records {
                let from = usize::from(record.responder);
                let mut bytes = &record.payload[..];
                if players[from].parser.frame().is_none() {
                    bytes = &bytes[players[from].parser.push(bytes).unwrap()..];
                }
                players[from].play(bytes);
                players[1 - from].take(bytes);
                if record.closed {
                    players[1 - from].engine.finished();
                }
                if record.reset {
                    players[1 - from].engine.lost();
                }
                players[1 - from].poll();
            }
            let terminated = refused.iter().any(|other| name.starts_with(other));
            for (me, player) in players.iter().enumerate() {
                if !terminated {
                    assert!(player.sent == player.recorded, "{name} {me}");
                    assert_eq!(player.engine.ended(), Some(End::Disconnected), "{name}");
                }
                let other = &players[1 - me];
                let requests = other.script.requests.iter().filter(|request| !request.is_empty()).count();
                checked += requests;
            }
            let broken = matches!(players[0].engine.ended(), Some(End::Broken(Cause::Terminated(_))));
            assert_eq!(broken, terminated, "{name}");
        }
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn a_read_that_linux_refuses_fails() {
    for (name, code) in
        [("24-term-read-bad-stag", Code::READ_STAG), ("25-term-read-bounds", Code::READ_BOUNDS)]
    {
        let path = format!("tests/data/{name}.stream");
        let mut player = Player::new(Role::Initiator);
        let records = &connections(Path::new(&path))[0];
        player.prepare(Kind::Request, &direction(records, false));
        for record in records {
            let bytes = &record.payload[..];
            if !bytes.is_empty() && bytes[0] == b'M' {
                continue;
            }
            if record.responder { player.take(bytes) } else { player.play(bytes) }
        }
        let status = iwarp::engine::Status::RemoteAccess;
        assert_eq!(player.events[0], Event::Failed { id: 0, status }, "{name}");
        let Event::Ended(End::Broken(Cause::Terminated(said))) = player.events[1] else { panic!() };
        assert_eq!(said.code, code);
    }
}

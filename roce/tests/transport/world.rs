//! A requester and a responder with model memory, joined by a network that loses, repeats and
//! reorders packets. What must hold is checked at the end: each message arrived once, in order and
//! intact, and each work request is complete, once and in order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use platform::Instant;
use roce::transport::{
    Answer, Config, Event, Executed, Execution, Extra, Limits, Message, Operation, Piece, Reason, Received,
    Requester, Responder, Service, Transmit, Verdict,
};
use roce::wire::packet;
use roce::{PathMtu, Psn, Qpn, TimeoutCode};

const QPN: Qpn = Qpn::GSI;

/// A generator of numbers, for tests that name their seed.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u64::from((self.0 >> 32) as u32) * u64::from(n)) >> 32) as u32
    }

    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

/// The byte at an address of the responder's memory.
fn byte_at(addr: u64) -> u8 {
    (addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The payload of a Send or RDMA Write.
fn payload(id: u32, offset: u32, length: u32) -> Vec<u8> {
    (offset..offset + length).map(|n| byte_at(u64::from(id) << 40 | u64::from(n))).collect()
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToResponder,
    ToRequester,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    Lost,
    Twice,
    /// It arrives behind so many that are sent later.
    Late(u32),
}

/// What travels.
#[derive(Clone)]
enum Cargo {
    /// A packet from the BTH on.
    Packet(Vec<u8>),
    Request(Piece, Vec<u8>),
    Answer(Answer, Vec<u8>),
}

/// What the responder's consumer saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    pub bytes: Vec<u8>,
    pub extra: Extra,
    pub solicited: bool,
}

pub type Intruder = Box<dyn FnMut(&mut World)>;

pub struct World {
    pub now: Instant,
    pub requester: Requester,
    pub responder: Responder,
    /// Decides by way, and number of the packet that goes this way.
    pub fate: Box<dyn FnMut(Way, u32) -> Fate>,
    /// How many packets were sent each way.
    pub sent: [u32; 2],
    /// The first PSN of the piece that was sent last, and the last for which an acknowledgement was
    /// asked since the requester went back.
    sent_last: Option<Psn>,
    asked: Option<Psn>,
    networks: [VecDeque<(u32, Cargo)>; 2],
    /// Packets of a piece at most; 1 means that packets travel.
    pub max_packets: u32,
    /// Answers are pulled when this says so.
    pub pull: Box<dyn FnMut() -> bool>,
    /// What an outsider does now and then.
    pub intrude: Option<Intruder>,

    /// Work requests that were not posted yet.
    waiting: VecDeque<Message>,
    pub posted: Vec<Message>,
    pub events: Vec<Event>,
    answers: BTreeMap<u32, Vec<u8>>,
    originals: BTreeMap<u32, u64>,

    /// Receives, if they are counted. Two are posted whenever one is missed.
    pub receives: Option<u32>,
    /// How often to say that there is no receive.
    pub not_ready: u32,
    /// What becomes of executions otherwise.
    pub outcome: Option<(u32, Reason)>,
    receiving: Option<Vec<u8>>,
    pub delivered: Vec<Delivered>,
    /// Bytes written at each address, and how many were.
    written: BTreeMap<u64, (Vec<u8>, u64)>,
    pub word: u64,
    pub executions: u32,
    /// Messages that were carried out to the end.
    pub executed: usize,
    pub reasons: BTreeMap<&'static str, u32>,
    pub refused: Vec<Reason>,
}

pub fn limits() -> Limits {
    Limits { max_rd_atomic: 4, timeout: TimeoutCode::new(14).unwrap(), retry_count: 7, rnr_retry: 6 }
}

pub fn config() -> Config {
    let psn = Psn::new(0xff_fff0);
    let (window, first_window) = (16, u32::MAX);
    Config { psn, mtu: PathMtu::B256, depth: 16, window, first_window, credits: false, limits: limits() }
}

pub fn message(id: u32, operation: Operation, length: u32) -> Message {
    Message {
        id,
        operation,
        length: if operation.is_atomic() { 8 } else { length },
        addr: u64::from(id) << 32,
        key: 0x1234,
        extra: Extra::None,
        solicited: id.is_multiple_of(3),
        fence: false,
    }
}

impl World {
    pub fn new(config: &Config) -> World {
        World {
            now: Instant::from_nanos(1),
            requester: Requester::new(config),
            responder: Responder::new(config.psn, config.mtu, config.limits.max_rd_atomic),
            fate: Box::new(|_, _| Fate::Arrives),
            sent: [0; 2],
            sent_last: None,
            asked: None,
            networks: [VecDeque::new(), VecDeque::new()],
            max_packets: 1,
            pull: Box::new(|| true),
            intrude: None,
            waiting: VecDeque::new(),
            posted: Vec::new(),
            events: Vec::new(),
            answers: BTreeMap::new(),
            originals: BTreeMap::new(),
            receives: None,
            not_ready: 0,
            outcome: None,
            receiving: None,
            delivered: Vec::new(),
            written: BTreeMap::new(),
            word: 0,
            executions: 0,
            executed: 0,
            reasons: BTreeMap::new(),
            refused: Vec::new(),
        }
    }

    fn count(&mut self, reason: Reason) {
        *self.reasons.entry(reason.name()).or_default() += 1;
    }

    pub fn counted(&self, reason: Reason) -> u32 {
        self.reasons.get(reason.name()).copied().unwrap_or(0)
    }

    fn send(&mut self, way: Way, cargo: Cargo) {
        let number = self.sent[way as usize];
        self.sent[way as usize] += 1;
        let network = &mut self.networks[way as usize];
        match (self.fate)(way, number) {
            Fate::Arrives => network.push_back((0, cargo)),
            Fate::Lost => {}
            Fate::Twice => network.extend([(0, cargo.clone()), (0, cargo)]),
            Fate::Late(behind) => network.push_back((behind, cargo)),
        }
    }

    /// The next packet that arrives. One that is late lets others pass.
    fn arrive(&mut self, way: Way) -> Option<Cargo> {
        let network = &mut self.networks[way as usize];
        let place = network.iter().position(|(behind, _)| *behind == 0).unwrap_or(0);
        for (behind, _) in network.iter_mut().take(place) {
            *behind -= 1;
        }
        network.remove(place).map(|(_, cargo)| cargo)
    }

    pub fn packet(packet: &packet::Repr<'_>) -> Vec<u8> {
        let mut bytes = vec![0; packet.len()];
        packet.emit(&mut bytes).unwrap();
        bytes
    }

    /// Sends all that the requester may send. Returns whether there was something.
    pub fn transmit(&mut self) -> bool {
        let mut some = false;
        while let Some(transmit) = self.requester.transmit(self.now, self.max_packets) {
            some = true;
            let Transmit::Piece { id, offset, piece } = transmit else { continue };
            if self.sent_last.is_some_and(|last| !last.is_before(piece.psn)) {
                self.asked = None;
            }
            self.sent_last = Some(piece.psn);
            if piece.ack_request {
                self.asked = Some(piece.psn.add(piece.packets - 1));
            }
            let bytes = payload(id, offset, piece.length);
            let cargo = match self.max_packets {
                1 => Cargo::Packet(Self::packet(&piece.to_packet(Service::Rc, QPN, &bytes).unwrap())),
                _ => Cargo::Request(piece, bytes),
            };
            self.send(Way::ToResponder, cargo);
        }
        if let Some(oldest) = self.requester.unacknowledged_psn().filter(|_| some) {
            let asked = self.asked.is_some_and(|asked| !asked.is_before(oldest));
            assert!(asked, "the requester waits for what it did not ask for");
        }
        self.take_events();
        some
    }

    pub fn take_events(&mut self) {
        while let Some(event) = self.requester.poll() {
            self.events.push(event);
        }
    }

    /// Sends the answers that are due.
    pub fn respond(&mut self) {
        while let Some(response) = self.responder.respond(self.max_packets, self.receives) {
            let bytes = response.gather.map_or(Vec::new(), |from| {
                (0..u64::from(from.length)).map(|n| byte_at(from.addr + n)).collect()
            });
            let cargo = match self.max_packets {
                1 => Cargo::Packet(Self::packet(&response.answer.to_packet(QPN, &bytes).unwrap())),
                _ => Cargo::Answer(response.answer, bytes),
            };
            self.send(Way::ToRequester, cargo);
        }
    }

    /// A packet arrives at the responder.
    pub fn deliver_request(&mut self, bytes: &[u8]) {
        let packet = packet::Repr::parse(bytes).unwrap();
        if let Some((_, piece)) = Piece::from_packet(&packet) {
            self.request(&piece, packet.payload);
        }
    }

    pub fn request(&mut self, piece: &Piece, bytes: &[u8]) {
        match self.responder.receive(piece) {
            Verdict::Execute(execution) => {
                let skip = (piece.length - execution.length) as usize;
                let outcome = self.execute(&execution, &bytes[skip..]);
                if let Executed::Refused(reason) = outcome {
                    self.refused.push(reason);
                }
                if outcome == Executed::NotReady(3) {
                    self.count(Reason::OutOfBuffer);
                }
                self.responder.executed(execution, outcome);
            }
            Verdict::Refused(reason) => self.refused.push(reason),
            Verdict::Nothing(reason) => self.count(reason),
        }
    }

    fn execute(&mut self, execution: &Execution, bytes: &[u8]) -> Executed {
        if execution.needs_receive() && self.receiving.is_none() {
            if self.not_ready > 0 || self.receives == Some(0) {
                self.not_ready = self.not_ready.saturating_sub(1);
                // The consumer posts some when it is too late.
                self.receives = self.receives.map(|n| n + 2);
                return Executed::NotReady(3);
            }
            self.receives = self.receives.map(|n| n - 1);
            self.receiving = Some(Vec::new());
        }
        if let Some((0, reason)) = self.outcome {
            return Executed::Refused(reason);
        }
        self.outcome = self.outcome.map(|(left, reason)| (left - 1, reason));
        self.executions += 1;
        // The later parts of an RDMA Read that was divided are no messages of their own.
        let part = execution.operation == Operation::Read && execution.remote.addr as u32 != 0;
        self.executed += usize::from(execution.last && !part);
        let mut original = 0;
        match execution.operation {
            Operation::Send => {
                let receiving = self.receiving.as_mut().unwrap();
                assert_eq!(receiving.len(), execution.offset as usize, "a gap or a repetition");
                assert_eq!(execution.first, receiving.is_empty());
                receiving.extend(bytes);
            }
            Operation::Write => {
                let place = self.written.entry(execution.remote.addr).or_default();
                place.0.resize(execution.remote.length as usize, 0);
                let start = execution.offset as usize;
                place.0[start..start + bytes.len()].copy_from_slice(bytes);
                place.1 += bytes.len() as u64;
            }
            Operation::Read => {}
            Operation::FetchAdd { add } => {
                original = self.word;
                self.word = self.word.wrapping_add(add);
            }
            Operation::CompareSwap { compare, swap } => {
                original = self.word;
                if self.word == compare {
                    self.word = swap;
                }
            }
        }
        if execution.last && execution.needs_receive() {
            let bytes = self.receiving.take().unwrap();
            let (extra, solicited) = (execution.extra, execution.solicited);
            self.delivered.push(Delivered { bytes, extra, solicited });
        }
        Executed::Done(original)
    }

    /// A packet arrives at the requester.
    pub fn deliver_answer(&mut self, bytes: &[u8]) {
        let packet = packet::Repr::parse(bytes).unwrap();
        if let Some(answer) = Answer::from_packet(&packet) {
            self.answer(&answer, packet.payload);
        }
    }

    pub fn answer(&mut self, answer: &Answer, bytes: &[u8]) {
        match self.requester.receive(answer, self.now) {
            Received::Acknowledged => {}
            Received::Read { id, offset, length } => {
                let place = self.answers.entry(id).or_default();
                assert_eq!(place.len(), offset as usize, "a gap or a repetition");
                place.extend(&bytes[..length as usize]);
            }
            Received::Atomic { id, original } => {
                assert_eq!(self.originals.insert(id, original), None);
            }
            Received::Retry(reason) | Received::Refused(reason) | Received::Dropped(reason) => {
                self.count(reason);
            }
        }
        self.take_events();
    }

    /// Delivers the next packet of one way. Returns whether there was one.
    pub fn deliver(&mut self, way: Way) -> bool {
        let Some(cargo) = self.arrive(way) else { return false };
        self.now = self.now + Duration::from_nanos(100);
        match (way, cargo) {
            (Way::ToResponder, Cargo::Packet(bytes)) => self.deliver_request(&bytes),
            (_, Cargo::Packet(bytes)) => self.deliver_answer(&bytes),
            (_, Cargo::Request(piece, bytes)) => self.request(&piece, &bytes),
            (_, Cargo::Answer(answer, bytes)) => self.answer(&answer, &bytes),
        }
        true
    }

    pub fn post(&mut self, messages: impl IntoIterator<Item = Message>) {
        self.waiting.extend(messages);
    }

    /// Goes on until there is nothing to do and no timer runs.
    pub fn run(&mut self) {
        for step in 0.. {
            assert!(step < 2_000_000, "no end");
            while self.requester.has_room()
                && let Some(message) = self.waiting.pop_front()
            {
                self.posted.push(message);
                if self.requester.post(message).is_err() {
                    // It has failed.
                    self.waiting.clear();
                    self.posted.pop();
                }
            }
            if let Some(mut intruder) = self.intrude.take() {
                intruder(self);
                self.intrude = Some(intruder);
            }
            let mut busy = self.transmit();
            busy |= self.deliver(Way::ToResponder);
            if (self.pull)() || !busy {
                self.respond();
            }
            busy |= self.deliver(Way::ToRequester);
            if busy {
                continue;
            }
            match self.requester.timer() {
                Some(timer) => {
                    self.now = self.now.max(timer);
                    if let Some(reason) = self.requester.expired(self.now) {
                        self.count(reason);
                    }
                    self.take_events();
                }
                None if self.waiting.is_empty() || !self.requester.has_room() => return,
                None => {}
            }
        }
    }

    /// Checks that all that was posted is complete, and what it did.
    #[track_caller]
    pub fn check(&self) {
        assert!(self.requester.is_empty() && self.waiting.is_empty());
        assert_eq!((self.check_complete(), self.refused.len()), (self.posted.len(), 0));
        assert_eq!(self.executed, self.posted.len());
    }

    /// Checks what is complete: a part from the first on, perhaps followed by one failure. What was
    /// carried out is that, and perhaps more, since an acknowledgement may have got lost. Returns
    /// how many are complete.
    #[track_caller]
    pub fn check_complete(&self) -> usize {
        let count = self.events.iter().take_while(|e| matches!(e, Event::Completed { .. })).count();
        for (event, message) in self.events.iter().zip(&self.posted) {
            let (Event::Completed { id } | Event::Failed { id, .. }) = event;
            assert_eq!(*id, message.id);
        }
        assert!(self.events.len() <= count + 1);
        assert_eq!(self.requester.timer(), None);
        let mut delivered = self.delivered.iter();
        let mut word = 0_u64;
        for message in &self.posted[..count] {
            let data = payload(message.id, 0, message.length);
            match message.operation {
                Operation::Send | Operation::Write => {
                    let send = message.operation == Operation::Send;
                    if send || message.extra != Extra::None {
                        let found = delivered.next().expect("a message is missing");
                        assert_eq!(found.bytes, if send { &data[..] } else { &[] });
                        assert_eq!((found.extra, found.solicited), (message.extra, message.solicited));
                    }
                    if !send {
                        let (bytes, count) = &self.written[&message.addr];
                        assert_eq!((bytes, *count), (&data, data.len() as u64));
                    }
                }
                Operation::Read => {
                    let bytes: Vec<_> =
                        (0..u64::from(message.length)).map(|n| byte_at(message.addr + n)).collect();
                    assert_eq!(self.answers.get(&message.id), Some(&bytes));
                }
                Operation::FetchAdd { add } => {
                    assert_eq!(self.originals.get(&message.id), Some(&word));
                    word = word.wrapping_add(add);
                }
                Operation::CompareSwap { compare, swap } => {
                    assert_eq!(self.originals.get(&message.id), Some(&word));
                    if word == compare {
                        word = swap;
                    }
                }
            }
        }
        if count == self.posted.len() {
            assert_eq!((delivered.next(), self.word), (None, word));
        }
        assert!(self.executed >= count);
        count
    }
}

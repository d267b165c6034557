//! The transport engines: a requester and a responder, a network that loses, repeats and reorders
//! packets as the input says, and packets of an outsider who knows the sequence numbers.
//!
//! What must hold: no packet makes an engine panic; work requests end once and in order. As long as
//! the outsider sends nothing: each message is carried out once, in order and without a gap; an
//! RDMA Read's bytes come once and in order; and everything ends when the network no longer loses
//! packets.

use std::collections::VecDeque;

use platform::Instant;
use roce::transport::{
    Answer, Config, Event, Executed, Extra, Limits, Message, Operation, Piece, Reason, Received, Requester,
    Responder, Service, Transmit, Verdict,
};
use roce::wire::packet;
use roce::{PathMtu, Psn, TimeoutCode};

use crate::Input;

pub(crate) fn run(bytes: &[u8]) {
    play(bytes);
}

/// What the two devices record.
struct World {
    requester: Requester,
    responder: Responder,
    now: Instant,
    /// Pieces and answers on the network, each piece with its work request.
    pieces: VecDeque<(u32, Piece)>,
    answers: VecDeque<Answer>,
    /// The outsider has not sent anything.
    honest: bool,
    posted: u32,
    ended: u32,
    failed: bool,
    /// The last message that the responder has carried out, and how many of its bytes.
    executed: Option<u32>,
    bytes: u32,
    /// The RDMA Read whose answer is arriving, and how many of its bytes have arrived.
    reading: (u32, u32),
}

impl World {
    fn post(&mut self, input: &mut Input<'_>) {
        let operation = match input.below(6) {
            0 => Operation::Send,
            1 | 2 => Operation::Write,
            3 | 4 => Operation::Read,
            _ => Operation::FetchAdd { add: 1 },
        };
        let message = Message {
            id: self.posted,
            operation,
            length: if operation.is_atomic() { 8 } else { input.number() as u32 % 1500 },
            addr: 0x1000,
            key: 1,
            extra: if input.rarely(4) { Extra::Immediate(1) } else { Extra::None },
            solicited: false,
            fence: input.rarely(4),
        };
        let local = input.rarely(8);
        let posted = match local {
            true => self.requester.post_local(self.posted, message.fence),
            false => self.requester.post(message),
        };
        self.posted += u32::from(posted.is_ok());
    }

    fn transmit(&mut self, max_packets: u32) -> bool {
        let Some(transmit) = self.requester.transmit(self.now, max_packets) else { return false };
        if let Transmit::Piece { id, piece, .. } = transmit {
            self.pieces.push_back((id, piece));
        }
        self.events();
        true
    }

    fn events(&mut self) {
        while let Some(event) = self.requester.poll() {
            let (Event::Completed { id } | Event::Failed { id, .. }) = event;
            assert_eq!(id, self.ended, "work requests end once and in order");
            self.ended += 1;
            if let Event::Failed { .. } = event {
                self.failed = true;
                while let Some(id) = self.requester.flush() {
                    assert_eq!(id, self.ended);
                    self.ended += 1;
                }
            }
        }
    }

    fn request(&mut self, id: u32, piece: &Piece, outcome: Executed) {
        let Verdict::Execute(execution) = self.responder.receive(piece) else { return };
        let done = matches!(outcome, Executed::Done(_));
        if done && self.honest {
            // Local work requests do not appear here.
            // An RDMA Read may be divided, and each part counts from 0.
            let part = execution.operation == Operation::Read && self.executed == Some(id);
            if execution.first {
                assert!(part || self.executed.is_none_or(|last| last < id), "a message is carried out again");
                (self.executed, self.bytes) = (Some(id), 0);
            }
            assert_eq!(self.executed, Some(id), "a message begins in its middle");
            assert_eq!(self.bytes, execution.offset, "bytes are missing, or come again");
            self.bytes += execution.length;
        }
        self.responder.executed(execution, outcome);
    }

    fn answer(&mut self, answer: &Answer) {
        if let Received::Read { id, offset, length } = self.requester.receive(answer, self.now)
            && self.honest
        {
            let before = if self.reading.0 == id { self.reading.1 } else { 0 };
            assert_eq!(before, offset, "bytes are missing, or come again");
            self.reading = (id, offset + length);
        }
        self.events();
    }

    fn respond(&mut self, max_packets: u32) -> bool {
        let Some(response) = self.responder.respond(max_packets, None) else { return false };
        self.answers.push_back(response.answer);
        true
    }

    fn expire(&mut self) -> bool {
        let Some(timer) = self.requester.timer() else { return false };
        self.now = self.now.max(timer);
        self.requester.expired(self.now);
        self.events();
        true
    }

    /// Sends a packet of the outsider, with a PSN near the expected one.
    fn intrude(&mut self, input: &mut Input<'_>) {
        self.honest = false;
        let mut bytes = input.bytes(12).to_vec();
        bytes.resize(12, 0);
        bytes[0] %= 0x18;
        bytes[1] &= 0xc0;
        let near = if bytes[0] & 1 == 0 { self.responder.expected() } else { self.requester.next_psn() };
        let psn = near.add(u32::from(input.byte())).add(0xff_fff0);
        bytes[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
        let length = usize::from(input.byte()) & !3;
        bytes.extend(input.bytes(length));
        let Ok(packet) = packet::Repr::parse(&bytes) else { return };
        if let Some((Service::Rc, piece)) = Piece::from_packet(&packet) {
            self.request(0, &piece, Executed::Done(0));
        }
        if let Some(answer) = Answer::from_packet(&packet) {
            self.answer(&answer);
        }
    }

    /// The network loses nothing from now on: everything must end.
    fn end(&mut self) {
        self.pieces.clear();
        self.answers.clear();
        for _ in 0..20_000 {
            while self.transmit(1) {}
            while let Some((id, piece)) = self.pieces.pop_front() {
                self.request(id, &piece, Executed::Done(0));
                while self.respond(1) {}
            }
            let arrived = !self.answers.is_empty();
            while let Some(answer) = self.answers.pop_front() {
                self.answer(&answer);
            }
            if !arrived && !self.expire() {
                break;
            }
        }
        if self.honest && !self.responder.is_closed() {
            assert_eq!(self.ended, self.posted, "a work request does not end");
        }
    }
}

fn play(bytes: &[u8]) -> World {
    let mut input = Input::new(bytes);
    let psn = Psn::new(0xff_fff0);
    let mtu = PathMtu::B256;
    let timeout = TimeoutCode::from_low_bits(10);
    let max_rd_atomic = 1 + input.byte() % 3;
    let limits = Limits { max_rd_atomic, timeout, retry_count: 7, rnr_retry: input.byte() % 8 };
    let window = 1 + u32::from(input.byte() % 32);
    let first_window = 1 + window / 4;
    let config = Config { psn, mtu, depth: 8, window, first_window, credits: input.rarely(4), limits };
    let mut world = World {
        requester: Requester::new(&config),
        responder: Responder::new(psn, mtu, max_rd_atomic),
        now: Instant::ZERO,
        pieces: VecDeque::new(),
        answers: VecDeque::new(),
        honest: true,
        posted: 0,
        ended: 0,
        failed: false,
        executed: None,
        bytes: 0,
        reading: (u32::MAX, 0),
    };
    while !input.is_empty() {
        match input.below(14) {
            0 | 1 => world.post(&mut input),
            2 | 3 => drop(world.transmit(1)),
            4 => drop(world.transmit(1 + u32::from(input.byte() % 8))),
            5..8 if !world.pieces.is_empty() => {
                let place = input.below(world.pieces.len().min(256)) / 4;
                let Some((id, piece)) = world.pieces.get(place).copied() else { continue };
                let outcome = match input.below(12) {
                    0 => Executed::NotReady(1),
                    1 if input.rarely(8) => Executed::Refused(Reason::RespRemoteAccessErrors),
                    _ => Executed::Done(0),
                };
                // A packet is lost, or arrives and may arrive again, or arrives once.
                match input.below(8) {
                    0 => drop(world.pieces.remove(place)),
                    1 => world.request(id, &piece, outcome),
                    _ => {
                        world.pieces.remove(place);
                        world.request(id, &piece, outcome);
                    }
                }
            }
            8 => drop(world.respond(1)),
            9 => drop(world.respond(1 + u32::from(input.byte() % 8))),
            10 | 11 if !world.answers.is_empty() => {
                let place = input.below(world.answers.len().min(256)) / 4;
                let Some(answer) = world.answers.get(place).copied() else { continue };
                match input.below(8) {
                    0 => drop(world.answers.remove(place)),
                    1 => world.answer(&answer),
                    _ => {
                        world.answers.remove(place);
                        world.answer(&answer);
                    }
                }
            }
            12 => drop(world.expire()),
            13 if input.rarely(8) => world.intrude(&mut input),
            _ => {}
        }
        if world.failed {
            break;
        }
    }
    world.end();
    world
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without such seeds the checks above would never run.
    #[test]
    fn the_seeds_carry_out_messages_of_honest_peers_and_suffer_intruders() {
        let (mut executed, mut honest, mut dishonest) = (0, 0, 0);
        for seed in std::fs::read_dir("../seeds/transport").expect("seeds") {
            let world = play(&std::fs::read(seed.expect("a seed").path()).expect("a seed"));
            executed += world.ended;
            honest += u32::from(world.honest);
            dishonest += u32::from(!world.honest);
        }
        assert!(executed > 20 && honest > 0 && dishonest > 0, "{executed} {honest} {dishonest}");
    }
}

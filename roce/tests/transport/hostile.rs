//! Packets that no honest peer sends.

use std::time::Duration;

use roce::Psn;
use roce::transport::{
    Answer, Body, Config, Event, Executed, Execution, Extra, Operation, Piece, Reason, Received, Remote,
    Requester, Responder, Service, Transmit, Verdict,
};
use roce::wire::aeth::{self, Nak, Syndrome};
use roce::{PathMtu, Qpn};

use crate::world::{Random, World, config, limits, message};

const RUNS: u64 = if cfg!(miri) { 2 } else { 400 };

/// A number that is small, large, or near `around`.
fn number(random: &mut Random, around: u32) -> u32 {
    match random.below(5) {
        0 => random.below(4),
        1 => u32::MAX - random.below(4),
        2 => 1 << random.below(32),
        _ => around.wrapping_add(random.below(9)).wrapping_sub(4),
    }
}

fn psn(random: &mut Random, near: Psn) -> Psn {
    match random.below(3) {
        0 => near.add(number(random, 0)),
        _ => near.add(random.below(6)).add(0xff_fffd),
    }
}

fn piece(random: &mut Random, near: Psn) -> Piece {
    let operation = match random.below(6) {
        0 | 1 => Operation::Send,
        2 => Operation::Write,
        3 => Operation::Read,
        4 => Operation::FetchAdd { add: 1 },
        _ => Operation::CompareSwap { compare: 0, swap: 1 },
    };
    let length = number(random, 256);
    // Sound ones, too, so that something happens.
    if random.one_in(2) {
        let (first, last) = (random.one_in(2), random.one_in(2));
        let psn = if random.one_in(4) { psn(random, near) } else { near };
        let extra = Extra::None;
        let length = if last { length % 255 + 1 } else { 256 };
        let remote = first.then_some(Remote { addr: 0, key: 1, length });
        let (operation, ack_request) = (Operation::Send, random.one_in(2));
        return Piece {
            psn,
            packets: 1,
            operation,
            first,
            last,
            length,
            remote,
            extra,
            solicited: false,
            ack_request,
        };
    }
    let remote = Remote { addr: u64::from(number(random, 0)) << 32, key: 1, length: number(random, length) };
    Piece {
        psn: psn(random, near),
        packets: if random.one_in(3) { number(random, 1) } else { 1 },
        operation,
        first: random.one_in(2),
        last: random.one_in(2),
        length,
        remote: (!random.one_in(3)).then_some(remote),
        extra: [Extra::None, Extra::Immediate(1), Extra::Invalidate(1)][random.below(3) as usize],
        solicited: random.one_in(2),
        ack_request: random.one_in(2),
    }
}

fn answer(random: &mut Random, near: Psn) -> Answer {
    let syndrome = match random.below(8) {
        0 => Syndrome::RnrNak(random.below(256) as u8),
        1 => Syndrome::Nak(Nak::PsnSequenceError),
        2 if random.one_in(9) => Syndrome::Nak(Nak::RemoteAccessError),
        _ => Syndrome::Ack(random.below(256) as u8),
    };
    let body = match random.below(4) {
        0 => Body::Atomic { original: 1 },
        1 => Body::Read {
            packets: if random.one_in(3) { number(random, 1) } else { 1 },
            first: random.one_in(2),
            last: random.one_in(2),
            length: number(random, 256),
        },
        _ => Body::Acknowledge,
    };
    let aeth = aeth::Repr { syndrome, msn: number(random, 0) };
    Answer { psn: psn(random, near), aeth: (!random.one_in(5)).then_some(aeth), body }
}

#[test]
fn any_request_leaves_the_responder_sound() {
    let mut executed = 0_u32;
    for seed in 0..RUNS {
        let random = &mut Random::new(seed);
        let mut it = Responder::new(Psn::new(random.below(1 << 24)), PathMtu::B256, random.below(4) as u8);
        for _ in 0..300 {
            let (expected, msn) = (it.expected(), it.msn());
            let piece = piece(random, expected);
            match it.receive(&piece) {
                Verdict::Execute(execution) => {
                    let Execution { offset, length, remote, last, .. } = execution;
                    if piece.operation == Operation::Write {
                        assert!(u64::from(offset) + u64::from(length) <= remote.length.into());
                    }
                    let outcome = match random.below(12) {
                        0 => Executed::NotReady(random.below(256) as u8),
                        1 if random.one_in(9) => Executed::Refused(Reason::RespRemoteAccessErrors),
                        _ => Executed::Done(7),
                    };
                    it.executed(execution, outcome);
                    let done = matches!(outcome, Executed::Done(_));
                    assert_eq!(it.expected() != expected, done);
                    assert_eq!(it.msn() != msn, done && last);
                    executed += 1;
                }
                Verdict::Nothing(_) => assert_eq!((it.expected(), it.msn()), (expected, msn)),
                Verdict::Refused(_) => assert!(it.is_closed()),
            }
            // Answers have an end, however long an RDMA Read was.
            let most = if random.one_in(2) { u32::MAX / 256 } else { 1 };
            for _ in 0..random.below(20) {
                let was_closed = it.is_closed();
                let Some(response) = it.respond(most, Some(random.below(9))) else { break };
                if random.one_in(200) {
                    let refused = it.unreadable(&response.answer, Reason::RespOperationalError);
                    assert_eq!(it.is_closed(), refused || was_closed);
                }
            }
            if it.is_closed() {
                let psn = Psn::new(random.below(1 << 24));
                it = Responder::new(psn, PathMtu::B256, random.below(4) as u8);
            }
        }
    }
    assert!(executed > 10_000 || cfg!(miri), "{executed}");
}

#[test]
fn any_answer_leaves_the_requester_sound() {
    let (mut completed, mut failures) = (0_u32, 0_u32);
    for seed in 0..RUNS {
        let random = &mut Random::new(seed);
        let start = Psn::new(random.below(1 << 24));
        let new = |random: &mut Random| {
            Requester::new(&Config { psn: start, credits: random.one_in(2), ..config() })
        };
        let mut it = new(random);
        let (mut posted, mut ended) = (0, 0);
        let mut now = platform::Instant::ZERO;
        for _ in 0..300 {
            let operation = [Operation::Send, Operation::Read, Operation::Write][random.below(3) as usize];
            let length = random.below(1000);
            posted += u32::from(it.post(message(posted, operation, length)).is_ok());
            for _ in 0..random.below(4) {
                let Some(transmit) = it.transmit(now, 1 + random.below(3)) else { break };
                if let Transmit::Piece { offset, piece, .. } = transmit {
                    assert!(offset <= 1000 && piece.length <= 3 * 256);
                }
            }
            let answer = answer(random, it.next_psn());
            if let Received::Read { offset, length, .. } = it.receive(&answer, now) {
                assert!(offset + length <= 1000);
            }
            if random.one_in(10) {
                now = it.timer().unwrap_or(now).max(now);
                it.expired(now);
            }
            now = now + Duration::from_nanos(1000);
            while let Some(event) = it.poll() {
                match event {
                    Event::Completed { id } => {
                        assert_eq!(id, ended);
                        completed += 1;
                    }
                    Event::Failed { id, .. } => {
                        assert_eq!(id, ended);
                        failures += 1;
                        ended += 1;
                        while let Some(id) = it.flush() {
                            assert_eq!(id, ended);
                            ended += 1;
                        }
                        assert_eq!(ended, posted);
                        it = new(random);
                        (posted, ended) = (0, u32::MAX);
                    }
                }
                ended = ended.wrapping_add(1);
            }
        }
    }
    assert!((completed > 1000 && failures > 100) || cfg!(miri), "{completed} {failures}");
}

/// An honest stream beside packets of an outsider who does not know the sequence numbers.
#[test]
fn packets_far_from_the_sequence_do_not_break_an_honest_stream() {
    for seed in 0..RUNS {
        let mut random = Random::new(seed);
        let mut world = World::new(&Config { window: 4, ..config() });
        let kinds = [Operation::Send, Operation::Write, Operation::Read, Operation::FetchAdd { add: 2 }];
        for id in 0..12 {
            world.post([message(id, kinds[random.below(4) as usize], random.below(900))]);
        }
        let mut outsider = random.clone();
        world.intrude = Some(Box::new(move |world| {
            let far = 1000 + outsider.below((1 << 24) - 200_000);
            let random = &mut outsider;
            let mut piece = piece(random, Psn::default());
            piece.packets = 1;
            piece.psn = config().psn.add(far);
            if piece.psn.is_before(world.responder.expected()) {
                // Whatever it is, it is not done again.
                let executions = world.executions;
                world.request(&piece, &[]);
                assert_eq!(world.executions, executions);
            } else {
                world.request(&piece, &[]);
            }
            let mut answer = answer(random, Psn::default());
            answer.psn = config().psn.add(far);
            match world.requester.receive(&answer, world.now) {
                Received::Dropped(Reason::AnswerNeverAskedFor | Reason::DuplicateAnswer | Reason::Closed) => {
                }
                other => panic!("{other:?}"),
            }
        }));
        world.run();
        world.check();
    }
}

#[test]
fn any_bytes_as_a_packet_are_judged_without_a_panic() {
    for seed in 0..RUNS {
        let random = &mut Random::new(seed);
        let mut world = World::new(&Config { limits: limits(), ..config() });
        world.post([message(0, Operation::Read, 900), message(1, Operation::Send, 900)]);
        world.transmit();
        for _ in 0..100 {
            let mut bytes: Vec<_> = (0..12 + random.below(300)).map(|_| random.below(256) as u8).collect();
            bytes[0] = [random.below(0x18), 0x20 + random.below(12)][random.below(2) as usize] as u8;
            bytes[1] &= 0xc0;
            let psn = world.responder.expected().add(random.below(3)).get().to_be_bytes();
            bytes[9..12].copy_from_slice(&psn[1..]);
            let Ok(packet) = roce::wire::packet::Repr::parse(&bytes) else { continue };
            if let Some((Service::Rc, piece)) = Piece::from_packet(&packet) {
                assert_eq!(
                    piece.to_packet(Service::Rc, packet.bth.dest_qp, packet.payload).map(|p| p.bth.opcode),
                    Some(packet.bth.opcode)
                );
                if let Verdict::Execute(execution) = world.responder.receive(&piece) {
                    world.responder.executed(execution, Executed::Done(0));
                }
            }
            if let Some(answer) = Answer::from_packet(&packet) {
                assert_eq!(
                    answer.to_packet(Qpn::GSI, packet.payload).map(|p| p.bth.opcode),
                    Some(packet.bth.opcode)
                );
                let _ = world.requester.receive(&answer, world.now);
            }
        }
    }
}

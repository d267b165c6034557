//! The benchmarks that the device runs by itself.

use nic_abi::admin::{Bench, BenchKind, Opcode, Status};
use nic_model::GuestMemory;
use nic_model::testing::{MEMORY, Rig, command};
use platform::Instant;

macro_rules! at {
    ($name:ident) => {
        nic_abi::admin::ARGS_OFFSET as u16 + std::mem::offset_of!(Bench, $name) as u16
    };
}

/// A NIC with two areas of 4 MiB, and a benchmark that copies 3 MiB of the first to the second.
fn scene() -> (Rig, Bench) {
    let mut rig = Rig::new(1);
    let (source, target) = (rig.alloc(1 << 22), rig.alloc(1 << 22));
    (rig, Bench { kind: BenchKind::Copy as u32, rounds: 3, source, target, length: 3 << 20 })
}

/// Polls once.
fn poll(rig: &mut Rig) {
    rig.fabric.poll(Instant::from_nanos(rig.now), 16);
}

/// Posts the command; returns the index of its answer.
fn issue(rig: &mut Rig, args: &Bench) -> u32 {
    rig.issue(0, &command(Opcode::Bench, args))
}

fn word(rig: &Rig, at: u64) -> u32 {
    rig.memory.load(at).unwrap()
}

#[test]
fn a_benchmark_that_is_wrong_is_refused() {
    let (mut rig, good) = scene();
    for (args, status, field) in [
        (Bench { kind: 0, ..good }, Status::BadField, at!(kind)),
        (Bench { source: MEMORY, ..good }, Status::Dma, at!(source)),
        (Bench { length: u64::MAX, ..good }, Status::Dma, at!(source)),
        (Bench { target: MEMORY, ..good }, Status::Dma, at!(target)),
        (Bench { kind: BenchKind::Echo as u32, target: 4097, ..good }, Status::BadField, at!(target)),
    ] {
        assert_eq!(rig.command(0, Opcode::Bench, 0, &args), Err((status, field)));
    }
}

#[test]
fn a_copy_moves_its_bytes_and_no_others_and_commands_wait_for_it() {
    let (mut rig, good) = scene();
    for length in [3 << 20, 3 << 19, 100, 0] {
        rig.fill(good.source, 4 << 20, 2);
        rig.fill(good.target, 4 << 20, 1);
        let behind = rig.bytes(good.target + length, 4096);
        rig.command(0, Opcode::Bench, 0, &Bench { length, ..good }).unwrap();
        let bytes = length as usize;
        assert!(rig.bytes(good.source, bytes) == rig.bytes(good.target, bytes), "{length}");
        assert!(rig.bytes(good.target + length, 4096) == behind, "{length}");
    }
    let copy = issue(&mut rig, &good);
    poll(&mut rig);
    let next = issue(&mut rig, &Bench { length: 0, ..good });
    poll(&mut rig);
    assert!(rig.answer(0, copy).is_none() && rig.answer(0, next).is_none());
    rig.run();
    assert!(rig.answer(0, copy).is_some() && rig.answer(0, next).is_some());
}

#[test]
fn additions_are_answered_first_and_the_word_that_says_so_is_written_when_all_are_done() {
    const ROUNDS: u32 = 10_000;
    let (mut rig, good) = scene();
    let add = Bench { kind: BenchKind::AtomicAdd as u32, rounds: ROUNDS, ..good };
    let answer = issue(&mut rig, &add);
    let mut polls = 0;
    while word(&rig, good.target) < ROUNDS {
        assert_eq!(word(&rig, good.source), 0);
        poll(&mut rig);
        assert!(rig.answer(0, answer).is_some());
        polls += 1;
    }
    assert!(polls > 1, "{polls}");
    assert_eq!((word(&rig, good.target), word(&rig, good.source)), (ROUNDS, 1));
    rig.memory.write(good.source, &[0; 4]).unwrap();
    rig.run();
    assert_eq!((word(&rig, good.target), word(&rig, good.source)), (ROUNDS, 0));
}

#[test]
fn an_echo_ends_after_its_rounds_or_after_a_second_without_a_round() {
    let (mut rig, good) = scene();
    let echo = Bench { kind: BenchKind::Echo as u32, rounds: 2, ..good };
    let index = issue(&mut rig, &echo);
    poll(&mut rig);
    assert!(rig.answer(0, index).is_some());
    for value in [5_u32, 6, 7] {
        rig.memory.write(good.target, &value.to_le_bytes()).unwrap();
        poll(&mut rig);
        assert_eq!(word(&rig, good.source), value.min(6));
    }
    assert!(rig.fabric.prepare_sleep());
    issue(&mut rig, &Bench { rounds: u32::MAX, ..echo });
    poll(&mut rig);
    // Each round gives it another second.
    for value in 8..12_u32 {
        rig.now += 999_999_999;
        rig.memory.write(good.target, &value.to_le_bytes()).unwrap();
        poll(&mut rig);
        assert_eq!(word(&rig, good.source), value);
        assert!(!rig.fabric.prepare_sleep());
    }
    rig.now += 999_999_999;
    poll(&mut rig);
    assert!(!rig.fabric.prepare_sleep());
    rig.now += 1;
    rig.run();
    assert!(rig.fabric.prepare_sleep());
}

#[test]
fn each_kick_raises_an_interrupt_until_the_rounds_are_over() {
    let (mut rig, good) = scene();
    let id = rig.nics[0].id;
    // Other benchmarks take no notice of a kick.
    issue(&mut rig, &Bench { kind: BenchKind::Echo as u32, rounds: 9, ..good });
    poll(&mut rig);
    rig.fabric.kicked(id);
    assert_eq!(rig.raised(0, 0), 0);
    for between in [true, false] {
        let (raised, counted) = (rig.raised(0, 0), rig.stats(0).interrupts);
        let kicks = Bench { kind: BenchKind::EchoInterrupt as u32, rounds: 2, ..good };
        rig.command(0, Opcode::Bench, 0, &kicks).unwrap();
        assert!(rig.fabric.prepare_sleep(), "it only waits for kicks");
        for _ in 0..3 {
            rig.fabric.kicked(id);
            if between {
                rig.run();
            }
        }
        assert_eq!((rig.raised(0, 0) - raised, rig.stats(0).interrupts - counted), (2, 2));
    }
}

//! The numbers, layouts and steps on which driver and device agree. Either side could be of another
//! version, so these must not change.

extern crate ferrovia_nic_abi as nic_abi;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use nic_abi::admin::{self, BenchKind, Injection, QpState, QpType, StreamEnd};
use nic_abi::doorbell::{self, ARM_NEXT, ARM_NONE, ARM_SOLICITED, Kind};
use nic_abi::eqe::{self, EventType, StreamFault};
use nic_abi::protocol::{self, Completed, Word};
use nic_abi::registers::{self, State};
use nic_abi::vi::{self, Reliability, ViError};
use nic_abi::{cqe, ident, wqe};

/// The words that are numbers of something. `read` returns the number of what it has read.
fn numbers(read: impl Fn(u32) -> Option<u32>) -> Vec<u32> {
    let known = |word: &u32| match read(*word) {
        Some(number) => {
            assert_eq!(number, *word, "read as another one");
            true
        }
        None => false,
    };
    (0..=0xffff).filter(known).collect()
}

/// As [`numbers`], of what is read from a byte.
fn bytes(read: impl Fn(u8) -> Option<u8>) -> Vec<u32> {
    numbers(|word| Some(read(word.try_into().ok()?)?.into()))
}

#[test]
fn numbers_are_read_as_they_are_written() {
    let commands = numbers(|word| admin::Opcode::from_word(word as u16).map(|opcode| opcode as u32));
    let known: Vec<u32> =
        [0..3, 8..0xa, 0x10..0x18, 0x20..0x24, 0x28..0x2d, 0x30..0x36, 0x40..0x48, 0x80..0x82]
            .into_iter()
            .flatten()
            .collect();
    assert_eq!(commands, known);
    let status = numbers(|word| admin::Status::from_word(word as u16).map(|status| status as u32));
    assert!(status.into_iter().eq(0..9));
    assert!(bytes(|byte| cqe::Status::from_byte(byte).map(|status| status as u8)).into_iter().eq(0..14));
    assert_eq!(
        bytes(|byte| EventType::from_byte(byte).map(|event| event as u8)),
        [1, 2, 3, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x20, 0x21, 0x22, 0x30, 0x31, 0x40, 0x41, 0x50]
    );
    assert_eq!(
        bytes(|byte| wqe::Opcode::from_byte(byte).map(|opcode| opcode as u8)),
        [0, 1, 2, 8, 9, 0x10, 0x11, 0x18, 0x19, 0x20, 0x21, 0x22]
    );
    assert_eq!(numbers(|word| QpType::from_word(word).map(|kind| kind as u32)), [0, 1, 2, 3, 5]);
    assert!(bytes(|byte| StreamFault::from_byte(byte).map(|fault| fault as u8)).into_iter().eq(0..14));
    assert_eq!(numbers(|word| QpState::from_word(word).map(|state| state as u32)), [0, 1, 2, 3, 4, 6]);
    assert!(numbers(|word| Injection::from_word(word).map(|what| what as u32)).into_iter().eq(1..17));
    assert!(numbers(|word| BenchKind::from_word(word).map(|kind| kind as u32)).into_iter().eq(1..5));
    assert!(numbers(|word| State::from_word(word).map(|state| state as u32)).into_iter().eq(0..3));
    assert!(bytes(|byte| Reliability::from_byte(byte).map(|level| level as u8)).into_iter().eq(0..3));
    assert!(numbers(|word| StreamEnd::from_word(word).map(|end| end as u32)).into_iter().eq(0..11));
    let errors = bytes(|byte| ViError::from_byte(byte).map(|error| error as u8));
    assert_eq!(errors.len(), vi::ERRORS);
    assert!(errors.into_iter().eq(0..9));
}

#[test]
fn types_of_queue_pairs_differ_in_what_they_carry_out() {
    let opcodes: Vec<_> = (0..=255).filter_map(wqe::Opcode::from_byte).collect();
    let carried_out = |kind: QpType| -> Vec<u8> {
        opcodes.iter().filter(|&&opcode| kind.carries_out(opcode)).map(|&opcode| opcode as u8).collect()
    };
    assert_eq!(carried_out(QpType::Rc).len(), opcodes.len());
    assert_eq!(carried_out(QpType::Uc), [0, 1, 8, 9, 0x20, 0x21, 0x22]);
    assert_eq!((carried_out(QpType::Ud), carried_out(QpType::Gsi)), (vec![0, 1], vec![0, 1]));
    for (kind, is_connected) in
        [(QpType::Rc, true), (QpType::Uc, true), (QpType::Ud, false), (QpType::Gsi, false)]
    {
        assert_eq!(kind.is_connected(), is_connected);
        let blocks: Vec<u32> = (0..12).map(|segments| kind.blocks(segments)).collect();
        // Two segments are in the first block, or none; four in each further one.
        match is_connected {
            true => assert_eq!(blocks, [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4]),
            false => assert_eq!(blocks, [1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4]),
        }
    }
    assert_eq!([0, 1, 2, 255].map(wqe::receive_stride), [16, 32, 48, 4096]);
    let reliable = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
    assert_eq!(reliable.map(Reliability::is_reliable), [false, true, true]);
    let of_post = (0..9).filter(|&byte| ViError::from_byte(byte).is_some_and(ViError::is_of_post));
    assert!(of_post.eq([0, 3, 8]));
}

#[test]
fn sizes_and_places_are_those_of_the_data_sheet() {
    assert_eq!((admin::ARGS_SIZE, admin::PHASE), (112, 0x8000_0000_0000_0000));
    assert_eq!((cqe::WORDS, eqe::WORDS, wqe::BLOCK_WORDS, cqe::PHASE), (4, 4, 8, admin::PHASE));
    assert_eq!((registers::SIZE, registers::FIFO_ENTRIES), (0x10_0000, 0x1_0000));
    assert_eq!(
        [ident::MAX_QPS, ident::MAX_CQS, ident::MAX_SRQS, ident::MAX_EQS, ident::MAX_PDS, ident::MAX_KEYS],
        [16_384, 16_384, 4_096, 64, 32_768, 65_536]
    );
    assert_eq!(
        [
            registers::STATUS_STATE,
            registers::STATUS_ACKNOWLEDGED,
            registers::STATUS_HEARTBEAT,
            registers::STATUS_FAULT,
            registers::STATUS_PORT_UP
        ],
        [0x1000, 0x1004, 0x1008, 0x100c, 0x1010]
    );
    assert_eq!((doorbell::RECORD_SLOTS, doorbell::RECORD_TABLE), (16_384, 0x2_0000));
    for (slot, offset) in
        [(0, 0), (1, 0x80), (1_023, 0x1_ff80), (1_024, 8), (1_025, 0x88), (16_383, 0x1_fff8), (16_384, 0)]
    {
        assert_eq!(doorbell::record(0x6_0000, slot), 0x6_0000 + offset, "{slot}");
    }
}

#[test]
fn a_number_has_the_slot_below_the_generation() {
    for (slot, generation, number) in [
        (0, 0, 0),
        (1, 0, 1),
        (5, 1, 0x4005),
        (0x3fff, 0x3ff, 0xff_ffff),
        (0x4000, 0, 0),
        (0, 0x400, 0),
        (2, u32::MAX, 0xff_c002),
    ] {
        assert_eq!(ident::qpn(slot, generation), number);
        assert_eq!(ident::qpn_slot(number), slot & 0x3fff);
    }
    for (slot, count, key) in [
        (0, 0, 0),
        (1, 0, 0x100),
        (5, 1, 0x501),
        (5, 0x102, 0x0100_0502),
        (0xffff, 0xffff, u32::MAX),
        (0x1_0000, 0, 0),
        (0, 0x1_0000, 0),
        (7, 0x1_0002, 0x702),
    ] {
        assert_eq!(ident::key(slot, count), key);
        assert_eq!(ident::key_slot(key), slot & 0xffff);
    }
}

#[test]
fn an_entry_of_the_fifo_has_kind_and_slot_and_the_phase_of_its_pass() {
    for (kind, word) in [
        (Kind::Send, 0),
        (Kind::Receive, 0x1000_0000),
        (Kind::SharedReceive, 0x2000_0000),
        (Kind::Admin, 0x3000_0000),
    ] {
        for slot in [0, 1, 0x12_3456, 0xff_ffff] {
            for (index, phase) in [
                (0, true),
                (0xffff, true),
                (0x1_0000, false),
                (0x1_ffff, false),
                (0x2_0000, true),
                (u32::MAX, false),
            ] {
                let entry = doorbell::entry(kind, slot, index);
                assert_eq!(entry, word | slot | u32::from(phase) << 31, "{kind:?} {slot} {index}");
                assert_eq!(doorbell::decode(entry), Some((kind, slot)));
                assert!(doorbell::is_written(entry, index));
                assert!(!doorbell::is_written(entry, index ^ 0x1_0000));
            }
            assert_eq!(doorbell::entry(kind, slot | 1 << 24, 0), doorbell::entry(kind, slot, 0));
        }
    }
    for unknown in 4..8 {
        assert_eq!(doorbell::decode(unknown << 28), None);
    }
    for (index, log, phase) in [
        (0, 0, true),
        (1, 0, false),
        (2, 0, true),
        (7, 3, true),
        (8, 3, false),
        (15, 3, false),
        (16, 3, true),
    ] {
        assert_eq!(cqe::phase(index, log), if phase { cqe::PHASE } else { 0 }, "{index} {log}");
    }
}

/// A word with this value.
fn word(value: u32) -> AtomicU32 {
    AtomicU32::new(value)
}

fn value(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

#[test]
fn a_post_stores_the_tail_and_takes_the_arming_away() {
    for (armed, wanted) in [(0, false), (1, true), (2, false)] {
        let (tail, armed) = (word(3), word(armed));
        assert_eq!(protocol::post(&tail, &armed, 7), wanted);
        assert_eq!((value(&tail), value(&armed)), (7, 0));
        assert_eq!(protocol::rearm(&armed, &tail), 7);
        assert_eq!(value(&armed), 1);
    }
}

#[test]
fn an_entry_goes_to_the_fifo_s_tail_and_kicks_if_the_device_sleeps_until_it() {
    for index in [0, 1, 0xffff, 0x1_0000, u32::MAX] {
        for (event, kicks) in [(index, true), (index.wrapping_add(1), false), (index.wrapping_sub(1), false)]
        {
            let (tail, place, event_word) = (word(index), word(0), word(0));
            protocol::ask_for_kick(&event_word, event);
            assert_eq!(value(&event_word), event);
            let found = |at| {
                assert_eq!(at, index);
                &place
            };
            let pushed = protocol::push(&tail, found, &event_word, || doorbell::entry(Kind::Receive, 5, 0));
            assert_eq!((pushed, value(&tail)), (kicks, index.wrapping_add(1)));
            assert_eq!(value(&place), doorbell::entry(Kind::Receive, 5, index));
        }
    }
}

#[test]
fn a_queue_is_disarmed_by_an_entry_of_the_kind_for_which_it_is_armed() {
    // How it is armed, and whether an entry disarms it that is not solicited, and one that is.
    for (armed, disarmed) in [
        (ARM_NONE, [false, false]),
        (ARM_NEXT, [true, true]),
        (ARM_SOLICITED, [false, true]),
        (3, [false, false]),
    ] {
        for (solicited, disarms) in [false, true].into_iter().zip(disarmed) {
            let arm = word(armed);
            assert_eq!(protocol::disarm(&arm, solicited), disarms, "{armed} {solicited}");
            assert_eq!(value(&arm), if disarms { ARM_NONE } else { armed });
        }
        let arm = word(armed);
        assert_eq!(protocol::arm_for_more(&arm), armed == ARM_SOLICITED);
        assert_eq!(value(&arm), if armed == ARM_SOLICITED { ARM_NEXT } else { armed });
        protocol::arm(&arm, true);
        assert_eq!(value(&arm), ARM_SOLICITED);
        protocol::arm(&arm, false);
        assert_eq!(value(&arm), ARM_NEXT);
    }
}

/// A word that another side changes right after it was read.
struct Contended(AtomicU32, u32);

impl Word for Contended {
    fn load(&self, order: Ordering) -> u32 {
        let value = self.0.load(order);
        self.0.store(self.1, Ordering::Relaxed);
        value
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }

    fn replace(&self, current: u32, new: u32, order: Ordering) -> bool {
        self.0.compare_exchange(current, new, order, Ordering::Relaxed).is_ok()
    }

    fn barrier() {}
}

#[test]
fn an_arming_that_changes_meanwhile_is_left_as_it_is() {
    let arm = Contended(word(ARM_SOLICITED), ARM_NEXT);
    assert!(!protocol::disarm(&arm, true));
    assert_eq!(value(&arm.0), ARM_NEXT);
}

#[test]
fn a_descriptor_is_marked_before_and_after_its_status_is_written() {
    for (writes, after) in [(true, vi::MARK_COMPLETE), (false, vi::MARK_LOST)] {
        let mark = word(vi::MARK_POSTED);
        let completed = protocol::complete(&mark, || {
            assert_eq!(value(&mark), vi::MARK_COMPLETING);
            writes
        });
        assert_eq!((completed, value(&mark)), (writes, after));
        // The driver has taken it off meanwhile, and posted another one in its place.
        let reused = protocol::complete(&mark, || {
            mark.store(vi::MARK_POSTED, Ordering::Relaxed);
            writes
        });
        assert_eq!((reused, value(&mark)), (writes, vi::MARK_POSTED));
    }
}

#[test]
fn a_descriptor_is_complete_as_its_mark_says_or_its_status_while_that_is_written() {
    for done in [false, true] {
        for (mark, found, asks) in [
            (vi::MARK_POSTED, Completed::No, false),
            (vi::MARK_COMPLETING, if done { Completed::Yes } else { Completed::No }, true),
            (vi::MARK_COMPLETE, Completed::Yes, false),
            (vi::MARK_LOST, Completed::Lost, false),
            (vi::MARK_REPORTED, Completed::Lost, false),
            (9, Completed::No, false),
        ] {
            let asked = Cell::new(false);
            let is_done = || {
                asked.set(true);
                done
            };
            assert_eq!((protocol::completed(&word(mark), is_done), asked.get()), (found, asks), "{mark}");
        }
    }
}

//! The queues of a virtual interface against a device that writes any marks.

extern crate ferrovia_nic_hal as nic_hal;

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::open;
use host::fake::{Fake, identity, success};
use nic_abi::admin::{CreateQp, Opcode};
use nic_abi::registers::Identity;
use nic_hal::{Error, Full, Nic, Taken, ViParams, ViQueue};

/// The parameters of a virtual interface whose queues have these sizes.
fn vi_params(entries: [u32; 2]) -> ViParams {
    let cqs = [None, Some(6)];
    ViParams { pd: 3, generation: 9, cqs, entries, completions_eq: 4, errors_eq: 5, max_message: 1 << 16 }
}

fn vi_identity() -> Identity {
    Identity { max_vi_segments: 252, max_vi_entries: 16, ..identity() }
}

#[test]
fn a_virtual_interface_is_created_with_what_the_device_needs() {
    let fake = Fake::new(vi_identity(), success);
    let driver = open(&fake).unwrap();
    let before = fake.arena().available();
    let vi = driver.create_vi(7 | 2 << 14, &vi_params([3, 1])).unwrap();
    assert!(before - fake.arena().available() <= 4096, "the rings have 128 and 80 bytes");
    let (number, args) = fake.last::<CreateQp>(Opcode::CreateQp);
    assert_eq!((number, args.qp_type, args.flags), (7 | 2 << 14, nic_abi::vi::QP_TYPE, 0));
    assert_eq!((args.pd, args.generation, args.owner, args.max_message), (3, 9, 0, 1 << 16));
    assert_eq!((args.send_cq, args.receive_cq), (nic_abi::vi::NO_CQ, 6));
    assert_eq!((args.srq, args.eq), (4, 5));
    assert_eq!((args.max_send_segments, args.max_receive_segments), (252, 252));
    assert_eq!((args.log_send_blocks, args.log_receive_entries), (2, 0));
    assert!(args.send_ring.is_multiple_of(64) && args.receive_ring.is_multiple_of(64));
    let refused = Some(Error::OutOfRange("number of descriptors"));
    for entries in [[0, 1], [1, 0], [17, 1], [1, 17], [u32::MAX, 1]] {
        assert_eq!(driver.create_vi(8, &vi_params(entries)).err(), refused, "{entries:?}");
    }
    let _largest = driver.create_vi(8, &vi_params([16, 9])).unwrap();
    let before = fake.arena().available();
    driver.destroy_qp(7 | 2 << 14, &vi.lease).unwrap();
    drop(vi);
    assert!(fake.arena().available() > before);
    assert_eq!(driver.quarantined(), 0);
}

/// The send ring of a virtual interface, as the device sees it.
struct Ring<'a> {
    fake: &'a Fake,
    bus: u64,
    log: u32,
}

impl Ring<'_> {
    fn word(&self, index: u32, word: u64) -> &AtomicU32 {
        let at = 64 + u64::from(index & ((1 << self.log) - 1)) * 16 + word * 4;
        self.fake.memory(self.bus + at, 4).atomic_u32(0).unwrap()
    }

    fn mark(&self, index: u32) -> &AtomicU32 {
        self.word(index, 3)
    }

    fn posted(&self, index: u32) -> (u64, u32, u32) {
        let [low, high, handle, mark] =
            [0, 1, 2, 3].map(|word| self.word(index, word).load(Ordering::Relaxed));
        (u64::from(low) | u64::from(high) << 32, handle, mark)
    }

    fn tail(&self) -> u32 {
        let record = nic_abi::doorbell::record(nic_abi::registers::SQ_RECORDS, 7);
        self.fake.registers().atomic_u32(record).unwrap().load(Ordering::Acquire)
    }
}

/// A virtual interface's send queue of three descriptors.
fn vi_queue(fake: &Fake) -> (Nic, ViQueue, Ring<'_>) {
    let driver = open(fake).unwrap();
    let [send, _] = driver.create_vi(7, &vi_params([3, 1])).unwrap().queues;
    let bus = fake.last::<CreateQp>(Opcode::CreateQp).1.send_ring;
    (driver, send, Ring { fake, bus, log: 2 })
}

const NEVER: fn(u64, u32) -> bool = |_, _| unreachable!("the status is not to be read");

#[test]
fn descriptors_leave_a_queue_in_order_once_they_are_complete() {
    let fake = Fake::new(vi_identity(), success);
    let (_driver, mut queue, ring) = vi_queue(&fake);
    let mut links = Vec::new();
    assert_eq!(queue.take(NEVER), Taken::NotDone, "empty");
    // Several times around the ring.
    for first in (0..18).step_by(3) {
        for index in first..first + 3 {
            let address = u64::from(index) << 33 | 64;
            assert_eq!(queue.post(address, index, |at, handle| links.push((at, handle))), Ok(()));
            assert_eq!((ring.posted(index), ring.tail()), ((address, index, 0), index + 1));
        }
        assert_eq!(queue.post(64, 0, |_, _| unreachable!()), Err(Full));
        assert_eq!((queue.queued(), ring.tail()), (3, first + 3), "nothing was posted");
        assert_eq!(links, [first, first + 1].map(|index| (u64::from(index) << 33 | 64, index)));
        links.clear();
        ring.mark(first + 1).store(2, Ordering::Release);
        assert_eq!(queue.take(NEVER), Taken::NotDone, "the one before is not complete");
        for index in first..first + 3 {
            ring.mark(index).store(2, Ordering::Release);
            // The device may change its ring: the driver returns what was posted.
            ring.word(index, 0).store(0x666, Ordering::Relaxed);
            ring.word(index, 2).store(0x666, Ordering::Relaxed);
            assert_eq!(queue.take(NEVER), Taken::Done(u64::from(index) << 33 | 64, index));
        }
        assert_eq!((queue.take(NEVER), queue.queued()), (Taken::NotDone, 0));
    }
}

#[test]
fn the_status_decides_while_the_device_writes_it_and_lost_descriptors_are_skipped() {
    let fake = Fake::new(vi_identity(), success);
    let (_driver, mut queue, ring) = vi_queue(&fake);
    for index in 0..3 {
        queue.post(64 * u64::from(index), index, |_, _| {}).unwrap();
    }
    ring.mark(0).store(1, Ordering::Release);
    let asked = |answer: bool| {
        move |address: u64, handle: u32| {
            assert_eq!((address, handle), (0, 0));
            answer
        }
    };
    assert_eq!(queue.take(asked(false)), Taken::NotDone);
    assert_eq!(queue.take(asked(true)), Taken::Done(0, 0));
    ring.mark(1).store(3, Ordering::Release);
    assert_eq!(queue.queued(), 2, "nothing told of it");
    assert!(queue.report(64));
    assert_eq!(queue.queued(), 1, "it is at the head");
    assert_eq!((queue.take(NEVER), queue.queued()), (Taken::NotDone, 1));
    ring.mark(2).store(9, Ordering::Release);
    assert_eq!(queue.take(NEVER), Taken::NotDone, "a mark that does not exist");
    ring.mark(2).store(3, Ordering::Release);
    assert_eq!((queue.take(NEVER), queue.take_lost(), queue.queued()), (Taken::Lost, Some(128), 0));
    assert!(!queue.report(128) && queue.report(128), "its event is no news, once");
    // The place of a descriptor that was complete is posted anew.
    queue.post(192, 3, |_, _| unreachable!("none is on the queue")).unwrap();
    queue.post(256, 4, |_, _| {}).unwrap();
    assert_eq!((ring.posted(4), queue.take(NEVER)), ((256, 4, 0), Taken::NotDone));
}

#[test]
fn only_a_descriptor_that_the_device_has_is_linked() {
    let fake = Fake::new(vi_identity(), success);
    let (_driver, mut queue, ring) = vi_queue(&fake);
    let mut at = 0;
    // Posted, being completed, complete, lost.
    for (mark, is_linked) in [(0, true), (1, true), (2, false), (3, false)] {
        let mut links = 0;
        queue.post(64, 0, |_, _| unreachable!("none is on the queue")).unwrap();
        ring.mark(at).store(mark, Ordering::Release);
        queue.post(128, 0, |_, _| links += 1).unwrap();
        assert_eq!(links, u32::from(is_linked), "{mark}");
        for index in [at, at + 1] {
            ring.mark(index).store(2, Ordering::Release);
            assert!(matches!(queue.take(NEVER), Taken::Done(..)));
        }
        at += 2;
    }
}

#[test]
fn each_lost_descriptor_is_told_of_once_and_takes_no_room_then() {
    let fake = Fake::new(vi_identity(), success);
    let (_driver, mut queue, ring) = vi_queue(&fake);
    for index in 0..3 {
        queue.post(64 * u64::from(index), index, |_, _| {}).unwrap();
        ring.mark(index).store(3, Ordering::Release);
    }
    assert_eq!((queue.queued(), queue.post(0, 0, |_, _| unreachable!())), (3, Err(Full)));
    let mut found = [9; 2];
    assert_eq!((queue.unreported(&mut found), found), (2, [0, 64]));
    assert_eq!((queue.unreported(&mut found), found), (1, [128, 64]));
    assert_eq!((queue.unreported(&mut found), queue.queued()), (0, 0));
    assert_eq!(queue.post(192, 3, |_, _| unreachable!("none is on the queue")), Ok(()));
    assert_eq!((queue.queued(), queue.take(NEVER)), (1, Taken::NotDone));
}

#[test]
fn arming_a_queue_sets_the_first_word_of_its_ring() {
    let fake = Fake::new(vi_identity(), success);
    let (_driver, queue, ring) = vi_queue(&fake);
    let arm = fake.memory(ring.bus, 64);
    assert_eq!(arm.atomic_u32(0).unwrap().load(Ordering::Relaxed), 0);
    queue.arm();
    assert_eq!(arm.atomic_u32(0).unwrap().load(Ordering::Relaxed), nic_abi::doorbell::ARM_NEXT);
}

#[test]
fn lost_descriptors_are_skipped_up_to_the_first_that_is_not_lost() {
    let fake = Fake::new(vi_identity(), success);
    let (_driver, mut queue, ring) = vi_queue(&fake);
    queue.skip_lost();
    assert_eq!(queue.queued(), 0, "it was empty");
    for index in 0..3 {
        queue.post(64 * u64::from(index), index, |_, _| {}).unwrap();
    }
    queue.skip_lost();
    assert_eq!(queue.queued(), 3);
    for lost in [0, 1] {
        ring.mark(lost).store(3, Ordering::Release);
    }
    queue.skip_lost();
    assert_eq!((queue.queued(), queue.take(NEVER)), (1, Taken::NotDone));
    // The driver reported none of them before their events, so the events are news.
    assert!(queue.report(0) && queue.report(64));
    ring.mark(2).store(3, Ordering::Release);
    queue.skip_lost();
    assert_eq!((queue.queued(), queue.take_lost()), (0, None));
}

#[test]
fn the_events_of_the_last_32_lost_descriptors_that_were_reported_early_are_no_news() {
    let fake = Fake::new(vi_identity(), success);
    let (_driver, mut queue, ring) = vi_queue(&fake);
    for index in 0..40 {
        queue.post(64 * u64::from(index), index, |_, _| {}).unwrap();
        assert_eq!(queue.take_lost(), None, "it is not lost");
        ring.mark(index).store(3, Ordering::Release);
        assert_eq!(queue.take_lost(), Some(64 * u64::from(index)));
    }
    // The ring still has their marks, and none of them is on the queue.
    assert_eq!((queue.take_lost(), queue.queued()), (None, 0));
    queue.skip_lost();
    assert_eq!((queue.take(NEVER), queue.queued()), (Taken::NotDone, 0));
    for index in 0..40 {
        assert_eq!(queue.report(64 * index), index < 8, "{index}");
        assert!(queue.report(64 * index), "{index}: one event each");
    }
}

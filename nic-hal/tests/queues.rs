//! What the driver's queues write for the device, and what they read from it.

extern crate ferrovia_nic_hal as nic_hal;

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{open, pieces, send};
use host::fake::{Fake, identity, success};
use nic_abi::admin::{CqFlags, CreateCq, CreateEq, CreateQp, FLAG_EVENT, Opcode, ResizeSrq};
use nic_abi::doorbell::{self, ARM_NEXT, ARM_NONE, ARM_SOLICITED, Kind};
use nic_abi::eqe::{Eqe, EventType};
use nic_abi::registers::{
    CQ_RECORDS, EQ_RECORDS, FIFO, FIFO_EVENT, FIFO_TAIL, RQ_RECORDS, SQ_RECORDS, SRQ_RECORDS,
};
use nic_abi::wqe::{ReceiveHeader, Segment, SendFlags};
use nic_hal::{
    Circle, CqParams, Direction, Head, InterruptHandler, Nic, Operation, Outstanding, QpParams, QpRings,
    Refused, Remote, RemoteWords, Request, Shadow, SrqParams, Transfer, Transport,
};
use platform::SharedSlice;
use zerocopy::FromBytes;

/// As [`common::qp_params`], for eight Sends.
fn qp_params() -> QpParams {
    QpParams { max_send_requests: 8, ..common::qp_params() }
}

/// A word of the register file.
fn register(fake: &Fake, offset: usize) -> &AtomicU32 {
    fake.registers().atomic_u32(offset).unwrap()
}

#[test]
fn events_are_taken_as_the_device_wrote_them() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let mut events = driver.create_eq(2, 3, 1).unwrap();
    let (number, args) = fake.last::<CreateEq>(Opcode::CreateEq);
    assert_eq!((number, args.log_entries, args.vector), (2, 3, 1));
    assert_eq!((events.number(), events.capacity()), (2, 8));
    let record = doorbell::record(EQ_RECORDS, 2);
    for index in 0..20u32 {
        assert_eq!(events.poll(), None, "{index}");
        let first = 0x8877_6655_0000_0201 | u64::from(index) << 32;
        fake.write_entry(args.ring, 3, index, [first, 0xfedc_ba98_7654_3210, 0x0123_4567_89ab_cdef, 7]);
        let event = Eqe {
            event: 1,
            status: 2,
            number: 0x8877_6655 | index,
            generation: 0x7654_3210,
            detail: 0xfedc_ba98,
            address: 0x0123_4567_89ab_cdef,
            ..Eqe::default()
        };
        assert_eq!(events.poll(), Some(event));
        assert_eq!(register(&fake, record).load(Ordering::Relaxed), index + 1);
    }
    events.arm();
    assert_eq!(register(&fake, record + 4).load(Ordering::Relaxed), doorbell::ARM_NEXT);
}

#[test]
fn commands_ask_for_an_event_while_fewer_than_64_events_wait() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let asks = |count: u32| -> Vec<bool> {
        (0..count).for_each(|pd| driver.create_pd(pd).unwrap());
        let commands = fake.commands.lock().unwrap();
        commands[commands.len() - count as usize..]
            .iter()
            .map(|command| command.flags == FLAG_EVENT)
            .collect()
    };
    assert_eq!(asks(1), [false], "there is no event queue");
    let mut events = driver.create_eq(0, 8, 0).unwrap();
    let ring = fake.last::<CreateEq>(Opcode::CreateEq).1.ring;
    assert_eq!(asks(66), [[true; 64].as_slice(), &[false; 2]].concat());
    let mut written = 0;
    let mut take = |event: EventType, count: u32| {
        for _ in 0..count {
            fake.write_entry(ring, 8, written, [event as u64, 0, 0, 0]);
            assert!(events.poll().is_some());
            written += 1;
        }
    };
    take(EventType::Admin, 2);
    take(EventType::PortUp, 3);
    assert_eq!(asks(4), [true, true, false, false], "two of the events were answers to commands");
    // A device that reports more answers than there were lets the count be zero.
    take(EventType::Admin, 70);
    assert_eq!(asks(65), [[true; 64].as_slice(), &[false]].concat());
}

fn srq_params() -> SrqParams {
    SrqParams { max_requests: 4, max_segments: 2, pd: 1, generation: 1, limit: 0, eq: 0 }
}

/// Another transport that counts the kicks.
struct Counting(Arc<dyn Transport>, AtomicU32);

impl Transport for Counting {
    fn registers(&self) -> SharedSlice<'_> {
        self.0.registers()
    }

    fn kick(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.kick();
    }

    fn vectors(&self) -> u16 {
        self.0.vectors()
    }

    fn set_vector(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        self.0.set_vector(vector, handler)
    }
}

#[test]
fn a_post_to_an_armed_queue_goes_to_the_fifo_and_kicks_a_device_that_sleeps() {
    let fake = Fake::new(identity(), success);
    let transport = Arc::new(Counting(fake.transport(), AtomicU32::new(0)));
    let driver = Nic::open(fake.platform.clone(), transport.clone()).unwrap();
    let mut rings = driver.create_qp(2, &qp_params()).unwrap();
    let mut srq = driver.create_srq(5, &srq_params()).unwrap();
    let (sends, receives) = (Outstanding::new(8).unwrap(), Outstanding::new(4).unwrap());
    let mut post = |kind: Kind| match kind {
        Kind::Send => {
            rings.send.push(&sends, &send(0), &pieces(1), |&s| s).unwrap();
            rings.send.ring();
        }
        Kind::Receive => {
            let queue = rings.receive.as_mut().unwrap();
            queue.push(&receives, false, &pieces(1), |&s| s, Shadow::default()).unwrap();
            queue.ring();
        }
        Kind::SharedReceive => {
            srq.push(false, &pieces(1), |&s| s, Shadow::default()).unwrap();
            srq.ring();
        }
        Kind::Admin => unreachable!(),
    };
    let kicks = || transport.1.load(Ordering::Relaxed);
    let fifo = register(&fake, FIFO_TAIL);
    for (kind, records, slot) in
        [(Kind::Send, SQ_RECORDS, 2), (Kind::Receive, RQ_RECORDS, 2), (Kind::SharedReceive, SRQ_RECORDS, 5)]
    {
        let record = doorbell::record(records, slot);
        let (tail, armed) = (register(&fake, record), register(&fake, record + 4));
        let (index, before) = (fifo.load(Ordering::Relaxed), kicks());
        post(kind);
        assert_eq!((tail.load(Ordering::Relaxed), fifo.load(Ordering::Relaxed)), (1, index), "{kind:?}");
        armed.store(1, Ordering::Relaxed);
        register(&fake, FIFO_EVENT).store(index, Ordering::SeqCst);
        post(kind);
        assert_eq!((tail.load(Ordering::Relaxed), fifo.load(Ordering::Relaxed)), (2, index + 1), "{kind:?}");
        assert_eq!((armed.load(Ordering::Relaxed), kicks()), (0, before + 1), "{kind:?}");
        let entry = register(&fake, FIFO + index as usize * 4).load(Ordering::Relaxed);
        assert_eq!((doorbell::is_written(entry, index), doorbell::decode(entry)), (true, Some((kind, slot))));
    }
}

#[test]
fn a_receive_of_one_segment_is_written_in_the_same_way_by_its_short_cut() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let queue = |slot, max_receive_segments| {
        let params = QpParams { max_receive_segments, ..qp_params() };
        let receive = driver.create_qp(slot, &params).unwrap().receive.unwrap();
        let (_, args) = fake.last::<CreateQp>(Opcode::CreateQp);
        (receive, Outstanding::new(4).unwrap(), args.receive_ring)
    };
    let (mut pushed, mut posted, mut none) = (queue(2, 3), queue(3, 3), queue(4, 0));
    let one = pieces(1)[0];
    for nth in 0..10 {
        let shadow = Shadow { cookie: nth.into(), data: nth };
        pushed.0.push(&pushed.1, false, &[one], |&s| s, shadow).unwrap();
        pushed.0.ring();
        posted.0.post_single(&posted.1, || Some(one), shadow).unwrap();
        let bytes = |ring| {
            let mut bytes = vec![0; 4 * 64];
            fake.memory(ring, 4 * 64).read(0, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(bytes(pushed.2), bytes(posted.2));
        let tail = |slot| register(&fake, doorbell::record(RQ_RECORDS, slot)).load(Ordering::Relaxed);
        assert_eq!((tail(2), tail(3)), (nth + 1, nth + 1));
        assert_eq!(pushed.1.retire(nth), posted.1.retire(nth));
    }
    assert_eq!(posted.0.post_single(&posted.1, || None, Shadow::default()), Err(Refused::Segment));
    assert_eq!(none.0.post_single(&none.1, || Some(one), Shadow::default()), Err(Refused::Segments));
    assert_eq!((posted.1.len(), none.1.len()), (0, 0));
}

#[test]
fn a_transfer_is_written_in_the_same_way_by_each_way_of_posting() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    // A queue pair of eight requests of three blocks each, and what is outstanding on it.
    let queue = |slot| -> (QpRings, Outstanding, u64) {
        let rings = driver.create_qp(slot, &qp_params()).unwrap();
        let (_, args) = fake.last::<CreateQp>(Opcode::CreateQp);
        assert_eq!(args.log_send_blocks, 5);
        (rings, Outstanding::new(8).unwrap(), args.send_ring)
    };
    let (pushed, posted, batched) = (queue(2), queue(3), queue(4));
    let mut nth = 0;
    for round in 0..30u32 {
        let start = nth;
        let mut batch = batched.0.send.begin(&batched.1, round % 2 == 0);
        for direction in [Direction::Send, Direction::Write, Direction::Read] {
            let list = pieces(if round % 3 == 0 { 1 } else { (round + nth) % 8 });
            let shadow = Shadow { cookie: u64::from(nth), data: nth };
            let flags = SendFlags::from_bits_truncate(nth as u8);
            let to = Remote { addr: 0x1234_5678_9abc_0000 | u64::from(nth), key: 0xabc0_0000 | nth };
            let (operation, remote) = match direction {
                Direction::Send => (Operation::Send { immediate: None }, RemoteWords::default()),
                Direction::Write => (
                    Operation::Write { to, immediate: None },
                    RemoteWords::from_be(to.addr.to_be(), to.key.to_be()),
                ),
                Direction::Read => {
                    (Operation::Read { from: to }, RemoteWords::from_be(to.addr.to_be(), to.key.to_be()))
                }
            };
            if direction != Direction::Send {
                assert_eq!(remote.remote(), to);
            }
            let transfer = Transfer { head: Head::new(direction, flags), remote, shadow };
            assert_eq!(transfer.head.flags(), flags);
            let request = Request { operation, flags, shadow };
            pushed.0.send.push(&pushed.1, &request, &list, |&s| s).unwrap();
            match list[..] {
                [one] => {
                    posted.0.send.post_single(&posted.1, || Some((transfer, one))).unwrap();
                    let written = batch.write_single(&transfer, || Some(one)).is_some();
                    // The first round is at the beginning of the ring and of the tags.
                    assert!(written || round > 0, "the ring does not end here");
                    assert!(!written || round % 2 == 0, "the batch has no such path");
                    if !written {
                        batch.write(&transfer, &list, |&s| s).unwrap();
                    }
                }
                _ => {
                    posted.0.send.post_many(&posted.1, &transfer, &list, |&s| s).unwrap();
                    batch.write(&transfer, &list, |&s| s).unwrap();
                }
            }
            nth += 1;
        }
        pushed.0.send.ring();
        batched.0.send.post_all(&batched.1, batch.next());
        let bytes = |ring| {
            let mut bytes = vec![0; 32 * 64];
            fake.memory(ring, 32 * 64).read(0, &mut bytes).unwrap();
            bytes
        };
        let tail = |slot| register(&fake, doorbell::record(SQ_RECORDS, slot)).load(Ordering::Relaxed);
        assert!(bytes(pushed.2) == bytes(posted.2) && bytes(pushed.2) == bytes(batched.2), "round {round}");
        assert_eq!((tail(2), tail(2)), (tail(3), tail(4)));
        for tag in start..nth {
            let retired = pushed.1.retire(tag).unwrap();
            assert_eq!((retired.cookie, retired.data()), (u64::from(tag), tag));
            assert_eq!((posted.1.retire(tag), batched.1.retire(tag)), (Some(retired), Some(retired)));
        }
    }
}

#[test]
fn entries_beside_places_end_with_the_ring_or_with_another_queue_pair_or_outcome() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let params = CqParams { log_entries: 3, eq: 0, generation: 1, flags: CqFlags::empty() };
    let mut cq = driver.create_cq(3, &params).unwrap();
    let ring = fake.last::<CreateCq>(Opcode::CreateCq).1.ring;
    let write = |index: u32, qpn: u64, flags: u64| {
        fake.write_entry(ring, 3, index, [qpn | 9 << 32, u64::from(index) | 4 << 32, 0, flags << 8]);
    };
    let mut index = 0;
    // Entries of other queue pairs, entries that differ, how many to write, and how many are found.
    for (other, differs, written, found) in
        [(9, 9, 8, 8), (9, 9, 5, 5), (9, 9, 8, 3), (2, 9, 4, 2), (9, 1, 4, 1)]
    {
        for n in 0..written {
            write(index + n, if n == other { 6 } else { 5 }, if n == differs { 3 } else { 2 });
        }
        let mut reading = cq.reading();
        let first = reading.look().unwrap();
        assert!(reading.waits());
        let mut places = [u32::MAX; 10];
        let mut count = 0;
        for (place, entry) in reading.beside(&first, 0x01ff, &mut places) {
            (*place, count) = (entry.tag(), count + 1);
            assert_eq!((entry.identity, entry.outcome()), (5 | 9 << 32, 2 << 8));
            assert_eq!(reading.read(entry).length, 4);
        }
        assert_eq!((count, places[found as usize]), (found, u32::MAX));
        assert!(places[..found as usize].iter().copied().eq(index..index + found));
        // Fewer places than entries; and the mask leaves the bit out that differs.
        assert_eq!(reading.beside(&first, 0x01ff, &mut places[..1]).count(), 1);
        if differs < written {
            assert_eq!(reading.beside(&first, 0x00ff, &mut places).count() as u32, written);
        }
        reading.advance(written);
        assert!(!reading.waits() && reading.look().is_none());
        reading.commit();
        index += written;
        assert_eq!((cq.head(), cq.look().is_some()), (index, false));
    }
}

#[test]
fn a_queue_that_is_armed_for_solicited_entries_can_be_armed_for_all() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let params = CqParams { log_entries: 3, eq: 0, generation: 1, flags: CqFlags::empty() };
    let cq = driver.create_cq(3, &params).unwrap();
    let word = register(&fake, doorbell::record(CQ_RECORDS, 3) + 4);
    let armed = || word.load(Ordering::Relaxed);
    cq.arm(false);
    assert_eq!((armed(), cq.arm_for_more(), armed()), (ARM_NEXT, false, ARM_NEXT));
    cq.arm(true);
    assert_eq!((armed(), cq.arm_for_more(), armed()), (ARM_SOLICITED, true, ARM_NEXT));
    // The device has disarmed it.
    word.store(ARM_NONE, Ordering::Relaxed);
    assert_eq!((cq.arm_for_more(), armed()), (false, ARM_NONE));
}

#[test]
fn a_completion_is_no_longer_than_its_request() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let sends = Outstanding::new(8).unwrap();
    let rings = driver.create_qp(2, &qp_params()).unwrap();
    let params = CqParams { log_entries: 3, eq: 0, generation: 1, flags: CqFlags::empty() };
    let mut cq = driver.create_cq(3, &params).unwrap();
    let ring = fake.last::<CreateCq>(Opcode::CreateCq).1.ring;
    // The request names 10 + 11 bytes.
    for (tag, (length, counts)) in (0..).zip([(0, 0), (4, 4), (20, 20), (21, 21), (22, 21), (u32::MAX, 21)]) {
        assert_eq!(rings.send.push(&sends, &send(0), &pieces(2), |&s| s), Ok(tag));
        fake.write_entry(ring, 3, tag, [2, u64::from(tag) | u64::from(length) << 32, 0, 0]);
        let entry = cq.take().unwrap();
        let retired = sends.retire(entry.tag()).unwrap();
        assert_eq!(entry.length(&retired), counts, "{length}");
    }
}

#[test]
fn what_waits_is_shown_and_stays() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let params = CqParams { log_entries: 3, eq: 0, generation: 1, flags: CqFlags::empty() };
    let mut cq = driver.create_cq(3, &params).unwrap();
    assert_eq!(cq.entries(), 8);
    let ring = fake.last::<CreateCq>(Opcode::CreateCq).1.ring;
    let mut index = 0;
    for round in 0..40 {
        let tags: Vec<u32> = (index..index + round % 9).collect();
        let count = tags.len() as u32;
        for &tag in &tags {
            fake.write_entry(ring, 3, tag, [5, u64::from(tag), 0, 0]);
        }
        for limit in [0, 1, 2, 3, 4, 5, 6, 7, 8, u32::MAX] {
            assert_eq!(cq.pending(limit), limit.min(count), "{limit} of {count}");
        }
        let mut shown = Vec::new();
        cq.waiting(|entry| shown.push(entry.tag));
        assert_eq!(shown, tags);
        tags.iter().for_each(|&tag| assert_eq!(cq.poll().map(|entry| entry.tag), Some(tag)));
        index += count;
    }
}

#[test]
fn receives_move_to_another_ring_as_they_were_posted() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let mut srq = driver.create_srq(5, &srq_params()).unwrap();
    let push = |srq: &mut nic_hal::SharedReceiveQueue, nth: u32| {
        srq.push(nth == 1, &pieces(nth % 3), |&s| s, Shadow::default()).unwrap()
    };
    let mut tags: Vec<u32> = (0..3).map(|nth| push(&mut srq, nth)).collect();
    assert!(srq.has(tags[0]) && !srq.has(tags[2] + 1));
    assert!(srq.retire(tags[0]).is_some() && !srq.has(tags[0]));
    let mut ring = driver.shared_ring(8, 2).unwrap();
    assert!(srq.begin_move(&mut ring));
    tags.push(push(&mut srq, 3));
    while srq.copy_some() {}
    tags.push(push(&mut srq, 4));
    driver.resize_srq(5, &ring, 6).unwrap();
    let (number, args) = fake.last::<ResizeSrq>(Opcode::ResizeSrq);
    assert_eq!((number, args.log_entries, args.limit), (5, 3, 6));
    srq.end_move(&mut ring, true);
    tags.push(push(&mut srq, 5));
    // The first receive was taken before.
    for nth in 1..6u32 {
        let mut bytes = [0; 48];
        fake.memory(args.ring + u64::from(nth) * 48, 48).read(0, &mut bytes).unwrap();
        let (header, rest) = ReceiveHeader::read_from_prefix(&bytes).unwrap();
        assert_eq!((header.segments, header.tag), (nth % 3, tags[nth as usize]), "{nth}");
        assert_eq!(header.flags, u32::from(nth == 1));
        for (piece, bytes) in pieces(nth % 3).iter().zip(rest.chunks_exact(16)) {
            assert_eq!(Segment::read_from_bytes(bytes).unwrap(), *piece);
        }
        assert!(srq.has(tags[nth as usize]));
    }
    // All that is posted fits into a ring of that size.
    let posted = srq.outstanding();
    assert!(!srq.begin_move(&mut driver.shared_ring(posted - 1, 2).unwrap()));
    assert!(srq.begin_move(&mut driver.shared_ring(posted, 2).unwrap()));
}

#[test]
fn the_values_of_a_circle_are_found_by_free_running_indices() {
    for log in 0..5 {
        let mut circle = Circle::filled(log, &u32::MAX).unwrap();
        let count = 1 << log;
        assert_eq!(circle.count(), count);
        for index in 0..3 * count {
            let former = if index < count { u32::MAX } else { index - count };
            assert_eq!(*circle.at(index), former, "{log}");
            *circle.at_mut(index) = index;
            assert_eq!((*circle.at(index), *circle.at(index + count)), (index, index));
        }
    }
}

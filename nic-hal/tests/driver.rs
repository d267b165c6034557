//! The driver against devices that lie, break the protocol, or do not answer.

extern crate ferrovia_nic_hal as nic_hal;

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{open, pieces, qp_params, send};
use host::fake::{Fake, identity, success};
use nic_abi::admin::{Bench, CqFlags, CreateCq, CreateQp, CreateSrq, Opcode, RESULT_SIZE, Response, Status};
use nic_abi::registers::{Identity, STATUS_FAULT, STATUS_PORT_UP, STATUS_STATE};
use nic_abi::wqe::{Header, ReceiveHeader, Segment, SendFlags};
use nic_hal::{
    CommandError, CqParams, Death, Error, Nic, Operation, Outstanding, QpParams, Refused, Remote, Request,
    Shadow, SrqParams,
};
use platform::DmaBuffer;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Why a device with a changed identity is refused, and how many requests were written.
fn refused(change: fn(&mut Identity)) -> (Error, u32) {
    let mut identity = identity();
    change(&mut identity);
    let fake = Fake::new(identity, success);
    let error = open(&fake).err().expect("refused");
    let request = fake.registers().atomic_u32(nic_abi::registers::CONTROL_REQUEST).unwrap();
    (error, request.load(Ordering::Relaxed))
}

#[test]
fn opening_a_function_that_is_no_rnic_writes_no_request() {
    assert_eq!(refused(|id| id.magic = 3), (Error::NotAnRnic(3), 0));
    assert_eq!(refused(|id| id.version_major = 9), (Error::Version(9, nic_abi::VERSION_MINOR), 0));
}

#[test]
fn an_identity_that_was_overwritten_is_read_after_the_reset() {
    let machine = host::Machine::new(1);
    let announced = Nic::open(machine.platform(), machine.transport(0)).expect("it opens").identity().max_qps;
    let word = core::mem::offset_of!(Identity, max_qps);
    machine.transport(0).registers().atomic_u32(word).expect("aligned").store(1, Ordering::Relaxed);
    let nic = Nic::open(machine.platform(), machine.transport(0)).expect("a reset restores the identity");
    assert_eq!(nic.identity().max_qps, announced);
}

#[test]
fn an_impossible_limit_is_refused() {
    let refuse = |change| refused(change).0;
    assert_eq!(refuse(|id| id.max_qps = 2), Error::BadLimit("number of queue pairs"));
    assert_eq!(refuse(|id| id.max_qps = u32::MAX), Error::BadLimit("number of queue pairs"));
    assert_eq!(refuse(|id| id.max_cqs = 0), Error::BadLimit("number of CQs"));
    assert_eq!(refuse(|id| id.max_sges = u32::MAX), Error::BadLimit("number of segments"));
    assert_eq!(refuse(|id| id.max_eqes = 1), Error::BadLimit("event queue size"));
    assert_eq!(refuse(|id| id.max_srq_entries = u32::MAX), Error::BadLimit("SRQ size"));
    assert_eq!(refuse(|id| id.mtu = 1500), Error::BadLimit("MTU"));
    let vi = "size of a virtual interface's queue";
    assert_eq!(refuse(|id| id.max_vi_entries = u32::MAX), Error::BadLimit(vi));
    let segments = "number of a descriptor's segments";
    assert_eq!(refuse(|id| id.max_vi_segments = u32::MAX), Error::BadLimit(segments));
}

#[test]
fn a_device_with_a_newer_minor_version_can_be_opened() {
    let fake = Fake::new(Identity { version_minor: 99, ..identity() }, success);
    assert!(open(&fake).is_ok());
}

#[test]
fn opening_a_device_that_does_not_answer_a_reset_fails() {
    let fake = Fake::with(identity(), Box::new(success), false);
    // The number of a request that may be under way is not used again.
    let request = fake.registers().atomic_u32(nic_abi::registers::CONTROL_REQUEST).unwrap();
    request.store(1, Ordering::Release);
    assert_eq!(open(&fake).err(), Some(Error::NoAnswer("a reset")));
    assert_eq!(request.load(Ordering::Acquire), 2);
}

#[test]
#[cfg_attr(miri, ignore = "opens some sixty devices")]
fn each_limit_of_a_device_is_within_the_range_that_the_driver_supports() {
    use nic_abi::ident;
    type Limit = (fn(&mut Identity) -> &mut u32, u32, u32);
    let limits: [Limit; 16] = [
        (|id| &mut id.max_qps, 3, ident::MAX_QPS),
        (|id| &mut id.max_cqs, 2, ident::MAX_CQS),
        (|id| &mut id.max_srqs, 0, ident::MAX_SRQS),
        (|id| &mut id.max_eqs, 2, ident::MAX_EQS),
        (|id| &mut id.max_pds, 2, ident::MAX_PDS),
        (|id| &mut id.max_keys, 2, ident::MAX_KEYS),
        (|id| &mut id.max_sq_blocks, 2, 1 << 24),
        (|id| &mut id.max_rq_entries, 2, 1 << 24),
        (|id| &mut id.max_cqes, 2, 1 << 24),
        (|id| &mut id.max_eqes, 16, 1 << 24),
        (|id| &mut id.max_sges, 1, 255),
        (|id| &mut id.vectors, 1, 2048),
        (|id| &mut id.max_vi_segments, 0, 1 << 15),
        (|id| &mut id.max_vi_entries, 0, 1 << 24),
        (|id| &mut id.max_groups, 0, ident::MAX_GROUPS),
        (|id| &mut id.max_group_qps, 0, ident::MAX_GROUP_QPS),
    ];
    let opens = |identity| open(&Fake::new(identity, success)).is_ok();
    for (nth, (limit, least, most)) in limits.into_iter().enumerate() {
        let with = |value| {
            let mut identity = identity();
            *limit(&mut identity) = value;
            opens(identity)
        };
        assert!(with(least) && with(most) && !with(most + 1), "limit {nth}");
        assert!(least == 0 || !with(least - 1), "limit {nth}");
    }
    // A device without shared receive queues has no entries for them.
    for (max_srqs, max_srq_entries, fits) in
        [(0, 0, true), (1, 0, false), (1, 1, true), (1, 1 << 24, true), (1, (1 << 24) + 1, false)]
    {
        let identity = Identity { max_srqs, max_srq_entries, ..identity() };
        assert_eq!(opens(identity), fits, "{max_srqs} {max_srq_entries}");
    }
    for (mtu, fits) in [(256, true), (257, false), (512, true), (2048, true), (4096, true), (8192, false)] {
        assert_eq!(opens(Identity { mtu, ..identity() }), fits, "{mtu}");
    }
}

#[test]
fn objects_beyond_the_device_s_limits_are_refused_by_the_driver() {
    let fake = Fake::new(Identity { max_rq_entries: 1000, ..identity() }, success);
    let driver = open(&fake).unwrap();
    let eq = Some(Error::OutOfRange("event queue"));
    for (number, vector, error) in [(8, 0, eq), (1, 8, eq), (7, 7, None)] {
        assert_eq!(driver.create_eq(number, 4, vector).err(), error, "{number} {vector}");
    }
    let cq = |log_entries| CqParams { log_entries, eq: 0, generation: 1, flags: CqFlags::empty() };
    for log in [25, 26, u32::MAX] {
        assert_eq!(driver.create_cq(3, &cq(log)).err(), Some(Error::OutOfRange("queue size")), "{log}");
    }
    assert_eq!(driver.create_cq(3, &cq(24)).err(), Some(Error::OutOfMemory), "there is less than 512 MiB");
    let receives = Some(Error::OutOfRange("receive queue size"));
    let segments = Some(Error::OutOfRange("number of segments"));
    let sends = Some(Error::OutOfRange("send queue size"));
    for (max_requests, max_segments, error) in [
        (0, 1, receives),
        (1, 9, segments),
        (1, 8, None),
        (1024, 1, None),
        (1025, 1, receives),
        (u32::MAX, 1, receives),
    ] {
        let srq = SrqParams { max_requests, max_segments, pd: 1, generation: 1, limit: 0, eq: 0 };
        assert_eq!(driver.create_srq(5, &srq).err(), error, "{max_requests} {max_segments}");
        assert_eq!(driver.shared_ring(max_requests, max_segments).err(), error);
    }
    // A ring of receives has a power of two of entries, which has to be within the limit as well.
    for (max_receive_requests, max_receive_segments, error) in [
        (0, 0, None),
        (512, 8, None),
        (513, 8, receives),
        (1000, 8, receives),
        (1001, 8, receives),
        (u32::MAX, 8, receives),
        (1, 9, segments),
    ] {
        let params = QpParams { max_receive_requests, max_receive_segments, ..qp_params() };
        assert_eq!(driver.create_qp(2, &params).err(), error, "{max_receive_requests}");
    }
    // A request of eight segments has three blocks.
    for (max_send_requests, max_send_segments, error) in [
        (0, 0, None),
        (1024, 2, None),
        (1025, 2, sends),
        (341, 8, None),
        (342, 8, sends),
        (u32::MAX, 8, sends),
        (1, 9, segments),
    ] {
        let params = QpParams { max_send_requests, max_send_segments, ..qp_params() };
        assert_eq!(driver.create_qp(2, &params).err(), error, "{max_send_requests}");
    }
}

#[test]
fn a_driver_that_is_dropped_resets_the_device() {
    let fake = Fake::new(identity(), success);
    let state = || fake.registers().atomic_u32(STATUS_STATE).unwrap().load(Ordering::Acquire);
    let driver = open(&fake).unwrap();
    assert_eq!(state(), 1);
    let (signal, seen) = (driver.signal().clone(), driver.signal().value());
    fake.interrupt(3);
    assert_ne!(signal.value(), seen);
    drop(driver);
    assert_eq!(state(), 0);
    let seen = signal.value();
    fake.interrupt(3);
    assert_eq!(signal.value(), seen, "nothing handles interrupts");
}

#[test]
fn a_refused_command_names_the_field() {
    let fake = Fake::new(identity(), |command| {
        let mut response = success(command)?;
        (response.status, response.field) = (Status::BadField as u16, 24);
        Some(response)
    });
    let driver = open(&fake).unwrap();
    let refused = CommandError { opcode: Opcode::CreatePd, status: Status::BadField, field: 24 };
    assert_eq!(driver.create_pd(3), Err(Error::Command(refused)));
    assert_eq!(driver.death(), None);
    // The memory of a ring that the device refused is released.
    let before = fake.arena().available();
    let params = CqParams { log_entries: 4, eq: 0, generation: 1, flags: CqFlags::empty() };
    assert!(driver.create_cq(0, &params).is_err());
    assert_eq!(fake.arena().available(), before);
    assert_eq!(driver.quarantined(), 0);
}

#[test]
fn an_invalid_answer_makes_the_device_dead() {
    let nonsense: [fn(&mut nic_abi::admin::Response); 2] = [|r| r.id ^= 1, |r| r.status = 999];
    for change in nonsense {
        let fake = Fake::new(identity(), move |command| {
            let mut response = success(command)?;
            change(&mut response);
            Some(response)
        });
        let driver = open(&fake).unwrap();
        assert_eq!(driver.create_pd(3), Err(Error::DeviceDead(Death::Protocol)));
        assert_eq!(driver.create_pd(3), Err(Error::DeviceDead(Death::Protocol)));
        assert_eq!(driver.death(), Some(Death::Protocol));
    }
}

#[test]
fn an_unanswered_command_makes_the_device_dead_for_all_threads() {
    let fake = Fake::new(identity(), |_| None);
    let driver = Arc::new(open(&fake).unwrap());
    let waiters: Vec<_> = (0..4)
        .map(|i| {
            let driver = driver.clone();
            std::thread::spawn(move || driver.create_pd(i))
        })
        .collect();
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), Err(Error::DeviceDead(Death::CommandTimeout)));
    }
}

#[test]
fn more_threads_than_the_admin_queue_has_entries_send_commands() {
    const ROUNDS: u32 = if cfg!(miri) { 2 } else { 20 };
    let count = Arc::new(AtomicU32::new(0));
    let fake = {
        let count = count.clone();
        Fake::new(identity(), move |command| {
            count.fetch_add(1, Ordering::Relaxed);
            success(command)
        })
    };
    let driver = Arc::new(open(&fake).unwrap());
    let threads: Vec<_> = (0..50)
        .map(|i| {
            let driver = driver.clone();
            std::thread::spawn(move || (0..ROUNDS).all(|_| driver.create_pd(i).is_ok()))
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    assert_eq!(count.load(Ordering::Relaxed), 50 * ROUNDS);
}

#[test]
fn a_device_is_dead_once_it_reports_a_failure() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    for _ in 0..3 {
        driver.watch(fake.platform.now());
    }
    assert_eq!(driver.death(), None);
    let seen = driver.signal().value();
    fake.registers().atomic_u32(STATUS_FAULT).unwrap().store(3, Ordering::Release);
    fake.registers().atomic_u32(STATUS_STATE).unwrap().store(2, Ordering::Release);
    driver.watch(fake.platform.now());
    assert_eq!(driver.death(), Some(Death::Failed(3)));
    assert_ne!(driver.signal().value(), seen);
    assert_eq!(driver.create_pd(1), Err(Error::DeviceDead(Death::Failed(3))));
}

#[test]
fn a_device_that_is_condemned_or_retired_gets_no_commands() {
    for death in [Death::Protocol, Death::Closed] {
        let fake = Fake::new(identity(), success);
        let driver = open(&fake).unwrap();
        match death {
            Death::Closed => driver.retire(),
            _ => driver.condemn(),
        }
        assert_eq!(driver.death(), Some(death));
        assert_eq!(driver.create_pd(1), Err(Error::DeviceDead(death)));
        assert!(fake.commands.lock().unwrap().is_empty());
        // The first reason holds.
        driver.condemn();
        assert_eq!(driver.death(), Some(death));
    }
}

#[test]
fn the_port_is_up_if_the_device_says_so() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    for (word, up) in [(0, false), (1, true), (2, false)] {
        fake.registers().atomic_u32(STATUS_PORT_UP).unwrap().store(word, Ordering::Release);
        assert_eq!(driver.port_up(), up, "{word}");
    }
}

#[test]
fn each_command_names_its_object() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let lease = cq_of(&driver, 4).lease().clone();
    let sent = |opcode: Opcode, done: Result<(), Error>| {
        assert_eq!(done, Ok(()));
        let commands = fake.commands.lock().unwrap();
        let last = commands.last().unwrap();
        assert_eq!((last.opcode, last.object), (opcode as u16, 9));
    };
    sent(Opcode::CreatePd, driver.create_pd(9));
    sent(Opcode::DestroyPd, driver.destroy_pd(9));
    sent(Opcode::RegisterRegion, driver.register_region(9, &FromZeros::new_zeroed()));
    sent(Opcode::AllocateRegion, driver.allocate_region(9, &FromZeros::new_zeroed()));
    sent(Opcode::DestroyRegion, driver.destroy_region(9));
    sent(Opcode::AllocateWindow, driver.allocate_window(9, &FromZeros::new_zeroed()));
    sent(Opcode::DestroyWindow, driver.destroy_window(9));
    sent(Opcode::ShareRegion, driver.share_region(9, &FromZeros::new_zeroed()));
    sent(Opcode::ModifyRegion, driver.modify_region(9, &FromZeros::new_zeroed()));
    sent(Opcode::ModifySrq, driver.modify_srq(9, 1));
    sent(Opcode::ModifyQp, driver.modify_qp(9, &FromZeros::new_zeroed()));
    sent(Opcode::DestroyCq, driver.destroy_cq(9, &lease));
    sent(Opcode::DestroySrq, driver.destroy_srq(9, &lease));
    sent(Opcode::DestroyQp, driver.destroy_qp(9, &lease));
    sent(Opcode::DestroyQp, driver.destroy_qp_unless_bound(9, &lease));
    assert_eq!(fake.last::<nic_abi::admin::DestroyQp>(Opcode::DestroyQp).1.unless_bound, 1);
    sent(Opcode::Inject, driver.testing().inject(9, nic_abi::admin::Injection::Port, 2, 3));
    let inject = fake.last::<nic_abi::admin::Inject>(Opcode::Inject).1;
    assert_eq!((inject.what, inject.count, inject.value), (8, 2, 3));
}

#[test]
fn a_query_returns_the_result_of_the_answer() {
    let result: [u8; RESULT_SIZE] = core::array::from_fn(|n| n as u8 + 1);
    let fake = Fake::new(identity(), move |command| Some(Response { result, ..success(command)? }));
    let driver = open(&fake).unwrap();
    assert!(result.starts_with(driver.query_qp(5).unwrap().as_bytes()));
    assert_eq!(fake.last::<u8>(Opcode::QueryQp).0, 5);
    assert!(result.starts_with(driver.query_srq(6).unwrap().as_bytes()));
    assert_eq!(fake.last::<u8>(Opcode::QuerySrq).0, 6);
    assert!(result.starts_with(driver.query_key(7).unwrap().as_bytes()));
    assert_eq!(fake.last::<u8>(Opcode::QueryKey).0, 7);
    let bench = Bench { rounds: 3, ..Bench::default() };
    assert_eq!(driver.testing().bench(&bench), Ok(0x0807_0605_0403_0201));
    assert_eq!(fake.last::<Bench>(Opcode::Bench).1.rounds, 3);
}

fn cq_of(driver: &Nic, log_entries: u32) -> nic_hal::CompletionQueue {
    driver.create_cq(3, &CqParams { log_entries, eq: 0, generation: 1, flags: CqFlags::empty() }).unwrap()
}

#[test]
fn memory_waits_for_the_reset_of_a_dead_device() {
    for obeys in [true, false] {
        let answered = Arc::new(AtomicU32::new(0));
        let fake = {
            let answered = answered.clone();
            Fake::new(identity(), move |command| {
                (answered.fetch_add(1, Ordering::Relaxed) == 0).then(|| success(command))?
            })
        };
        let before = fake.arena().available();
        let driver = open(&fake).unwrap();
        let cq = cq_of(&driver, 4);
        let destroyed = driver.destroy_cq(3, cq.lease());
        assert_eq!(destroyed, Err(Error::DeviceDead(Death::CommandTimeout)));
        let with = fake.arena().available();
        drop(cq);
        assert_eq!((fake.arena().available(), driver.quarantined()), (with, 1));
        if obeys {
            assert!(driver.close() && driver.close());
            assert_eq!(driver.quarantined(), 0);
            drop(driver);
            assert_eq!(fake.arena().available(), before);
        } else {
            // The device may go on without the driver: its memory is not used again.
            let shared = fake.registers();
            shared.atomic_u32(nic_abi::registers::STATUS_ACKNOWLEDGED).unwrap().store(0, Ordering::Relaxed);
            let arena = fake.arena().clone();
            drop(fake);
            assert!(!driver.close() && !driver.close());
            assert_eq!(driver.quarantined(), 1);
            drop(driver);
            assert!(arena.lent() > 0);
            // Neither driver nor platform holds the arena for the sake of that memory. (A device
            // would.)
            assert_eq!(Arc::strong_count(&arena), 1);
        }
    }
}

#[test]
fn the_memory_of_an_event_queue_is_released_once_it_is_destroyed() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let before = fake.arena().available();
    let events = driver.create_eq(1, 8, 0).unwrap();
    assert!(fake.arena().available() < before);
    driver.destroy_eq(&events).unwrap();
    drop(events);
    assert_eq!((fake.arena().available(), driver.testing().quarantined()), (before, 0));
    // One that was not destroyed stays in the quarantine.
    drop(driver.create_eq(1, 8, 0).unwrap());
    drop(driver.create_eq(2, 8, 0).unwrap());
    assert_eq!(driver.testing().quarantined(), 2);
}

#[test]
fn a_buffer_that_the_device_may_reach_is_kept_until_the_reset() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let before = fake.arena().available();
    let buffer = Arc::new(DmaBuffer::new(&fake.platform, 8192, 4096).unwrap());
    driver.keep(buffer.clone());
    assert_eq!((Arc::strong_count(&buffer), driver.quarantined()), (2, 1));
    assert!(driver.close());
    assert_eq!((Arc::strong_count(&buffer), driver.quarantined()), (1, 0));
    // After the reset the device reaches nothing.
    driver.keep(buffer.clone());
    assert_eq!(Arc::strong_count(&buffer), 1);
    drop(buffer);
    assert!(fake.arena().available() >= before);
}

#[test]
fn entries_are_taken_once_and_in_order_over_many_passes() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let mut cq = cq_of(&driver, 2);
    let (_, args) = fake.last::<CreateCq>(Opcode::CreateCq);
    let head =
        fake.registers().atomic_u32(nic_abi::doorbell::record(nic_abi::registers::CQ_RECORDS, 3)).unwrap();
    for index in 0..50u32 {
        assert_eq!(cq.poll(), None);
        assert_eq!(cq.pending(9), 0);
        fake.write_entry(
            args.ring,
            2,
            index,
            [5 | 6 << 32, u64::from(index) | 8 << 32, 9 | 10 << 32, 0x0c0b0a],
        );
        assert_eq!(cq.pending(9), 1);
        let entry = cq.poll().unwrap();
        assert_eq!((entry.qpn, entry.generation, entry.tag, entry.length), (5, 6, index, 8));
        assert_eq!((entry.immediate, entry.detail), (9, 10));
        assert_eq!((entry.status, entry.flags, entry.opcode), (0x0a, 0x0b, 0x0c));
        cq.consumed();
        assert_eq!((cq.head(), head.load(Ordering::Relaxed)), (index + 1, index + 1));
    }
}

#[test]
fn work_requests_are_laid_out_as_the_device_reads_them() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let mut rings = driver.create_qp(2, &qp_params()).unwrap();
    let (_, args) = fake.last::<CreateQp>(Opcode::CreateQp);
    // Three requests of three blocks each: sixteen blocks.
    assert_eq!((args.log_send_blocks, args.log_receive_entries), (4, 2));
    let sends = Outstanding::new(3).unwrap();
    let mut block = 0u32;
    let read_segment = |ring: u64, blocks: u32, block: u32, nth: u32| -> Segment {
        let (at, offset) = match nth {
            0 | 1 => (block, 32 + 16 * nth),
            _ => (block + 1 + (nth - 2) / 4, (nth - 2) % 4 * 16),
        };
        let mut bytes = [0; 16];
        fake.memory(ring + u64::from(at % blocks) * 64 + u64::from(offset), 16).read(0, &mut bytes).unwrap();
        Segment::read_from_bytes(&bytes).unwrap()
    };
    for round in 0..40u32 {
        let count = round % 8;
        let list = pieces(count);
        let header = Header {
            opcode: 0x09,
            flags: 1,
            immediate: round,
            remote_key: 0xabc,
            remote_addr: 0x1234_5678_9abc,
            ..Header::default()
        };
        let shadow = Shadow { cookie: u64::from(round), data: 5 };
        let to = Remote { addr: header.remote_addr, key: header.remote_key };
        let operation = Operation::Write { to, immediate: Some(round) };
        let request = Request { operation, flags: SendFlags::SIGNALED, shadow };
        let tag = rings.send.push(&sends, &request, &list, |&s| s).unwrap();
        rings.send.ring();
        assert_eq!(tag, round);
        let mut bytes = [0; 32];
        fake.memory(args.send_ring + u64::from(block % 16) * 64, 32).read(0, &mut bytes).unwrap();
        let written = Header::read_from_bytes(&bytes).unwrap();
        let blocks = nic_abi::wqe::blocks(count);
        let expected = Header { tag, segments: count as u8, blocks: blocks as u8, ..header };
        assert_eq!(written, expected);
        for (nth, piece) in list.iter().enumerate() {
            assert_eq!(read_segment(args.send_ring, 16, block, nth as u32), *piece);
        }
        block += blocks;
        let tail = fake
            .registers()
            .atomic_u32(nic_abi::doorbell::record(nic_abi::registers::SQ_RECORDS, 2))
            .unwrap();
        assert_eq!(tail.load(Ordering::Relaxed), block);
        let length = list.iter().map(|piece| piece.length).sum();
        let retired = sends.retire(tag).unwrap();
        assert_eq!((retired.cookie, retired.data(), retired.length()), (shadow.cookie, 5, length));
    }
    assert_eq!(rings.send.push(&sends, &send(0), &pieces(8), |&s| s), Err(Refused::Segments));
    for _ in 0..3 {
        rings.send.push(&sends, &send(0), &pieces(7), |&s| s).unwrap();
    }
    assert_eq!(rings.send.push(&sends, &send(0), &pieces(0), |&s| s), Err(Refused::Full));

    let receives = Outstanding::new(4).unwrap();
    let queue = rings.receive.as_mut().unwrap();
    for round in 0..10u32 {
        let list = pieces(round % 4);
        let tag = queue.push(&receives, round % 2 == 1, &list, |&s| s, Shadow::default()).unwrap();
        queue.ring();
        let at = args.receive_ring + u64::from(round % 4) * u64::from(nic_abi::wqe::receive_stride(3));
        let mut bytes = [0; 64];
        fake.memory(at, 64).read(0, &mut bytes).unwrap();
        let (header, rest) = ReceiveHeader::read_from_prefix(&bytes).unwrap();
        assert_eq!((header.segments, header.tag, header.flags), (round % 4, tag, round % 2));
        for (piece, bytes) in list.iter().zip(rest.chunks_exact(16)) {
            assert_eq!(Segment::read_from_bytes(bytes).unwrap(), *piece);
        }
        assert!(receives.retire(tag).is_some());
    }
}

#[test]
fn only_what_is_outstanding_can_be_retired() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let rings = driver.create_qp(2, &qp_params()).unwrap();
    let sends = Outstanding::new(3).unwrap();
    let push = |cookie| rings.send.push(&sends, &send(cookie), &pieces(1), |&s| s).unwrap();
    assert_eq!(sends.retire(0), None);
    let tags = [push(10), push(11), push(12)];
    assert_eq!(tags, [0, 1, 2]);
    for tag in [3, 4, u32::MAX, 1 << 31] {
        assert_eq!(sends.retire(tag), None);
    }
    // Retiring a request retires the earlier ones as well.
    assert_eq!(sends.retire(1).map(|retired| retired.cookie), Some(11));
    assert_eq!(sends.retire(0), None);
    assert_eq!(sends.retire(1), None);
    assert_eq!(sends.len(), 1);
    assert!(sends.contains(2) && !sends.contains(1) && !sends.contains(3));
    sends.clear();
    assert!(sends.is_empty());
    assert_eq!(sends.retire(2), None);
    assert_eq!(push(13), 3);
}

#[test]
fn shared_receives_complete_in_any_order_and_once() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let params = SrqParams { max_requests: 3, max_segments: 2, pd: 1, generation: 1, limit: 0, eq: 0 };
    let mut srq = driver.create_srq(5, &params).unwrap();
    let push = |srq: &mut nic_hal::SharedReceiveQueue, cookie| {
        srq.push(false, &pieces(2), |&s| s, Shadow { cookie, data: 0 })
    };
    let tags: Vec<u32> = (0..3).map(|cookie| push(&mut srq, cookie).unwrap()).collect();
    assert_eq!(push(&mut srq, 9), Err(Refused::Full));
    assert_eq!(srq.retire(tags[2]).map(|retired| (retired.cookie, retired.length())), Some((2, 21)));
    assert_eq!(srq.retire(tags[2]), None);
    let again = push(&mut srq, 4).unwrap();
    assert_ne!(again, tags[2]);
    // The slot's former tag names no receive.
    assert_eq!(srq.retire(tags[2]), None);
    for (tag, cookie) in [(again, 4), (tags[0], 0), (tags[1], 1)] {
        assert_eq!(srq.retire(tag).map(|retired| retired.cookie), Some(cookie));
    }
    for tag in [3, 77, u32::MAX] {
        assert_eq!(srq.retire(tag), None);
    }
    assert_eq!(srq.outstanding(), 0);
}

#[test]
fn shared_receives_are_laid_out_as_the_device_reads_them() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let params = SrqParams { max_requests: 4, max_segments: 3, pd: 1, generation: 1, limit: 0, eq: 0 };
    let mut srq = driver.create_srq(5, &params).unwrap();
    let (_, args) = fake.last::<CreateSrq>(Opcode::CreateSrq);
    for round in 0..16u32 {
        let (list, solicited) = (pieces(round % 4), round / 4 % 2 == 1);
        let tag = srq.push(solicited, &list, |&s| s, Shadow::default()).unwrap();
        let at = args.ring + u64::from(round % 4) * u64::from(nic_abi::wqe::receive_stride(3));
        let mut bytes = [0; 64];
        fake.memory(at, 64).read(0, &mut bytes).unwrap();
        let (header, rest) = ReceiveHeader::read_from_prefix(&bytes).unwrap();
        assert_eq!((header.segments, header.tag, header.flags), (round % 4, tag, solicited.into()));
        for (piece, bytes) in list.iter().zip(rest.chunks_exact(16)) {
            assert_eq!(Segment::read_from_bytes(bytes).unwrap(), *piece);
        }
        assert!(srq.retire(tag).is_some());
    }
}

#[test]
fn a_shared_queue_moves_with_all_that_is_posted() {
    let fake = Fake::new(identity(), success);
    let driver = open(&fake).unwrap();
    let params = SrqParams { max_requests: 4, max_segments: 1, pd: 1, generation: 1, limit: 0, eq: 0 };
    let mut srq = driver.create_srq(5, &params).unwrap();
    let push = |srq: &mut nic_hal::SharedReceiveQueue, cookie| {
        srq.push(false, &pieces(1), |&s| s, Shadow { cookie, data: 0 })
    };
    // The tags and cookies of outstanding receives.
    let mut posted = std::collections::VecDeque::new();
    let mut cookies = 0..;
    for (size, works) in [(100, true), (64, false), (7, true), (200, true), (200, false), (3, true)] {
        let before = srq.limit();
        let room = before.min(size);
        while srq.outstanding() + 2 > room {
            let (tag, cookie) = posted.pop_front().unwrap();
            assert_eq!(srq.retire(tag).map(|retired| retired.cookie), Some(cookie));
        }
        let mut ring = driver.shared_ring(size, 1).unwrap();
        assert!(srq.begin_move(&mut ring));
        assert!(!srq.begin_move(&mut driver.shared_ring(size, 1).unwrap()), "one at a time");
        // Receives are posted before, between and after the copies.
        loop {
            let more = srq.copy_some();
            if srq.outstanding() < room {
                let cookie = cookies.next().unwrap();
                posted.push_back((push(&mut srq, cookie).unwrap(), cookie));
            }
            if !more {
                break;
            }
        }
        driver.resize_srq(5, &ring, 0).unwrap();
        srq.end_move(&mut ring, works);
        drop(ring);
        assert_eq!(srq.limit(), if works { size } else { before });
        while srq.outstanding() < srq.limit() {
            let cookie = cookies.next().unwrap();
            posted.push_back((push(&mut srq, cookie).unwrap(), cookie));
        }
        assert_eq!(push(&mut srq, 0), Err(Refused::Full));
    }
    assert_eq!(srq.outstanding() as usize, posted.len());
    for (tag, cookie) in posted {
        assert_eq!(srq.retire(tag).map(|retired| retired.cookie), Some(cookie));
        assert_eq!(srq.retire(tag), None);
    }
    // A queue does not move to a ring with less room than it has receives.
    for _ in 0..3 {
        push(&mut srq, 0).unwrap();
    }
    assert!(!srq.begin_move(&mut driver.shared_ring(2, 1).unwrap()));
    assert_eq!((srq.limit(), srq.outstanding()), (3, 3));
}

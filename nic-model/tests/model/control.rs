//! Identity, handshake, heartbeat, failure; the doorbell FIFO.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use nic_abi::admin::{
    AllocateRegion, Bench, BenchKind, Command, Inject, Injection, ModifyQp, Opcode, QpFlags, QpMask, QpState,
    RegisterRegion, ResizeCq,
};
use nic_abi::cqe::{self, Status};
use nic_abi::doorbell::{self, Kind};
use nic_abi::registers::{self, Fault, Identity, MAGIC, State};
use nic_abi::wqe::{self, Header, LinkFlags, ListArgs};
use nic_model::{AddError, Fabric, Frontend, GuestMemory, NicConfig, Progress};
use platform::{Instant, SharedSlice};

use nic_model::testing::{MEMORY, Memory, PD, QpSpec, Rig, command, header, rdma, segment, status};

#[test]
fn the_identity_page_describes_the_nic() {
    let rig = Rig::powered(2);
    let identity: Identity = rig.nics[1].registers.load(registers::IDENTITY as u64).unwrap();
    assert_eq!(identity.magic, MAGIC);
    assert_eq!(
        (identity.version_major, identity.version_minor),
        (nic_abi::VERSION_MAJOR, nic_abi::VERSION_MINOR)
    );
    assert_eq!(identity.ipv4, [10, 0, 0, 2]);
    assert_eq!(identity.gids[1], rig.gid(1));
    assert_eq!(identity.gids[0][..2], [0xfe, 0x80]);
    assert_eq!(identity.gids[0][8..], identity.node_guid.to_be_bytes());
    assert_eq!(identity.max_qps, nic_abi::ident::MAX_QPS);
    assert!(registers::Features::from_bits(identity.features).is_some());
    assert_eq!(rig.state(1), State::Idle as u32);
    assert_eq!(rig.register(1, registers::STATUS_PORT_UP).load(Ordering::Relaxed), 1);
}

#[test]
fn a_bad_configuration_is_refused() {
    struct Short(Memory);
    impl Frontend for Short {
        type Memory = Memory;
        type Wire = nic_model::NoWire;
        fn registers(&self) -> SharedSlice<'_> {
            self.0.get(0, 4096).unwrap()
        }
        fn memory(&self) -> &Memory {
            &self.0
        }
        fn raise(&self, _: u16) {}
    }
    let mut fabric = Fabric::new();
    let add = |fabric: &mut Fabric<Short>, config| fabric.add_nic(config, Short(Memory::new(8192)));
    let good = NicConfig::numbered(0, 8192);
    assert_eq!(add(&mut fabric, good), Err(AddError::Registers));
    assert_eq!(add(&mut fabric, NicConfig { mtu: 1500, ..good }), Err(AddError::Config("path MTU")));
    assert_eq!(
        add(&mut fabric, NicConfig { vectors: 0, ..good }),
        Err(AddError::Config("number of vectors"))
    );
}

#[test]
fn a_bad_admin_queue_fails_the_device_until_a_reset() {
    let major = u32::from(nic_abi::VERSION_MAJOR);
    let cases = [
        (0, major, 4096, 8192),
        (9, major, 4096, 8192),
        (u32::MAX, major, 4096, 8192),
        (4, major + 1, 4096, 8192),
        (4, major - 1, 4096, 8192),
        (4, major, 4097, 8192),
        (4, major, 4096, 1 << 40),
        // The end of a ring is behind that of memory.
        (4, major, MEMORY - 64, 8192),
        (4, major, 4096, MEMORY - 64),
        (4, major, u64::MAX - 63, 8192),
    ];
    for (log, version, commands, responses) in cases {
        let mut rig = Rig::powered(1);
        rig.describe_admin(0, log, version << 16, commands, responses);
        let request = rig.control(0, registers::CONTROL_START);
        assert_eq!(rig.state(0), State::Failed as u32, "{log} {version} {commands:#x} {responses:#x}");
        let fault = rig.register(0, registers::STATUS_FAULT).load(Ordering::Relaxed);
        assert_eq!(fault, Fault::AdminQueue as u32);
        assert_eq!(rig.register(0, registers::STATUS_ACKNOWLEDGED).load(Ordering::Relaxed), request);
        rig.control(0, registers::CONTROL_RESET);
        assert_eq!(rig.state(0), State::Idle as u32);
        rig.start(0);
    }
}

#[test]
fn a_reset_forgets_everything() {
    let mut rig = Rig::new(2);
    let (mut a, _) = rig.pair();
    let (key, _) = rig.region(0, 64);
    rig.post(
        &mut a,
        nic_model::testing::rdma(nic_abi::wqe::Opcode::Write, 1, 9, 0),
        &[nic_model::testing::segment(key, 0, 8)],
    );
    rig.control(0, registers::CONTROL_RESET);
    assert_eq!(rig.state(0), State::Idle as u32);
    assert!(rig.fabric.prepare_sleep(), "nothing is left to do");
    for offset in [
        registers::FIFO_TAIL,
        registers::FIFO,
        doorbell::record(registers::SQ_RECORDS, 3),
        registers::ADMIN_RECORD,
    ] {
        assert_eq!(rig.register(0, offset).load(Ordering::Relaxed), 0);
    }
    rig.start(0);
    rig.command(0, Opcode::CreatePd, PD, &()).expect("the number is free again");
    rig.create_eq(0, 0, 4);
    rig.control(0, 99);
    assert_eq!(rig.state(0), State::Ready as u32, "an unknown control command changes nothing");
}

#[test]
fn the_heartbeat_changes_at_least_as_often_as_promised() {
    let mut rig = Rig::powered(1);
    rig.run();
    for _ in 0..10 {
        let before = rig.register(0, registers::STATUS_HEARTBEAT).load(Ordering::Relaxed);
        let deadline = rig.fabric.next_deadline().expect("a beat is due");
        assert!(deadline.as_nanos() - rig.now <= registers::HEARTBEAT_MS * 1_000_000);
        rig.now = deadline.as_nanos();
        rig.run();
        assert_ne!(rig.register(0, registers::STATUS_HEARTBEAT).load(Ordering::Relaxed), before);
    }
}

#[test]
fn a_mute_device_takes_only_a_reset_or_nothing() {
    for (value, hears) in [(0, true), (1, false)] {
        let mut rig = Rig::new(1);
        let (mut a, _) = rig.pair();
        rig.post(&mut a, nic_model::testing::header(nic_abi::wqe::Opcode::Send, 1), &[]);
        rig.run();
        rig.inject(0, Injection::Mute, 0, 1, value);
        let before = rig.register(0, registers::STATUS_HEARTBEAT).load(Ordering::Relaxed);
        rig.advance(1_000_000_000);
        assert_eq!(rig.register(0, registers::STATUS_HEARTBEAT).load(Ordering::Relaxed), before);
        let command = Command { opcode: 0, flags: 0, id: 1, object: 0, reserved: 0, args: [0; 112] };
        assert!(rig.raw_command(0, &command).is_none(), "no answer");
        assert!(rig.poll_cq(&mut a.send_cq).is_none(), "no completion");
        assert!(rig.fabric.prepare_sleep(), "a mute device sleeps");
        let request = rig.control(0, registers::CONTROL_RESET);
        let acknowledged = rig.register(0, registers::STATUS_ACKNOWLEDGED).load(Ordering::Relaxed);
        assert_eq!(acknowledged == request, hears);
        if hears {
            rig.start(0);
        }
    }
}

/// The peer's request fails after all retries, and the peer still serves other queue pairs.
#[test]
fn a_nic_that_is_powered_off_is_silent_and_disturbs_no_other() {
    let mut rig = Rig::new(3);
    let specs = [0, 1, 0, 2].map(|nic| rig.create_qp(nic, QpSpec::default()));
    let [mut a, mut b, mut c, mut d] = specs;
    rig.join(&a, &b);
    rig.join(&b, &a);
    rig.join(&c, &d);
    rig.join(&d, &c);
    let send = |tag| header(wqe::Opcode::Send, tag);
    // Work and a timer in progress: B's own request waits for a receive.
    rig.post(&mut b, send(1), &[]);
    rig.run();
    rig.post(&mut b, send(2), &[]);
    rig.fabric.power_off(rig.nics[1].id);
    rig.post(&mut a, send(3), &[]);
    let retries = rig.rts_args(&a);
    let beat = rig.register(1, registers::STATUS_HEARTBEAT).load(Ordering::Relaxed);
    for _ in 0..=retries.retry_count {
        rig.run();
        assert!(rig.poll_cq(&mut a.send_cq).is_none());
        rig.advance(4096 << retries.timeout);
    }
    assert_eq!(status(&rig.sent(&mut a)), Status::RetryExceeded);
    rig.post_receive(&mut d, 8, &[]);
    rig.post(&mut c, send(4), &[]);
    rig.run();
    assert_eq!(status(&rig.sent(&mut c)), Status::Success, "another connection of the peer's");
    rig.advance(1_000_000_000);
    assert_eq!(rig.register(1, registers::STATUS_HEARTBEAT).load(Ordering::Relaxed), beat);
    let request = rig.control(1, registers::CONTROL_RESET);
    let acknowledged = rig.register(1, registers::STATUS_ACKNOWLEDGED).load(Ordering::Relaxed);
    assert_ne!(acknowledged, request, "the device ignores even a reset");
    assert!(rig.poll_cq(&mut b.send_cq).is_none() && rig.fabric.prepare_sleep());
}

#[test]
fn a_mute_device_rests_whatever_benchmark_runs() {
    // Copy is left out: commands wait for its end, so no command could mute the device during a
    // copy.
    for kind in [BenchKind::Echo, BenchKind::EchoInterrupt, BenchKind::AtomicAdd] {
        let mut rig = Rig::new(1);
        let at = rig.alloc(8192);
        let bench =
            Bench { kind: kind as u32, rounds: u32::MAX, source: at, target: at + 4096, length: 4096 };
        let mute = Inject { what: Injection::Mute as u32, count: 1, value: 0 };
        rig.issue(0, &command(Opcode::Bench, &bench));
        rig.issue(0, &command(Opcode::Inject, &mute));
        rig.run();
        assert!(rig.fabric.prepare_sleep(), "{kind:?}: a mute device sleeps");
        assert_eq!(rig.fabric.next_deadline(), None, "{kind:?}: nothing wakes it but a kick");
        rig.fabric.awake();
        rig.control(0, registers::CONTROL_RESET);
        assert!(rig.fabric.prepare_sleep(), "{kind:?}: a reset ends the benchmark");
        rig.fabric.awake();
        rig.start(0);
    }
}

#[test]
fn a_reset_restores_what_the_driver_has_overwritten() {
    let mut rig = Rig::new(2);
    let page = |rig: &Rig, at: usize| -> [u8; 4096] { rig.nics[0].registers.load(at as u64).unwrap() };
    let before = page(&rig, registers::IDENTITY);
    for offset in (registers::IDENTITY..registers::CONTROL).step_by(4) {
        // The word `acknowledged` is part of the handshake, which the driver needs.
        if offset != registers::STATUS_ACKNOWLEDGED {
            rig.register(0, offset).store(0xdead_beef, Ordering::Relaxed);
        }
    }
    rig.control(0, registers::CONTROL_RESET);
    assert_eq!(page(&rig, registers::IDENTITY), before);
    let status = page(&rig, registers::STATUS);
    assert!(status[size_of::<registers::Status>()..].iter().all(|byte| *byte == 0));
    assert_eq!(rig.register(0, registers::STATUS_FAULT).load(Ordering::Relaxed), Fault::None as u32);
    assert_eq!(rig.state(0), State::Idle as u32);
    rig.start(0);
}

#[test]
fn a_failed_device_shows_its_fault_and_does_nothing() {
    let mut rig = Rig::new(1);
    rig.inject(0, Injection::Fail, 0, 1, 0);
    assert_eq!(rig.state(0), State::Failed as u32);
    assert_eq!(rig.register(0, registers::STATUS_FAULT).load(Ordering::Relaxed), Fault::Injected as u32);
    assert!(rig.events(0).is_empty());
    let command = Command { opcode: 0, flags: 0, id: 1, object: 0, reserved: 0, args: [0; 112] };
    assert!(rig.raw_command(0, &command).is_none());
    rig.control(0, registers::CONTROL_START);
    assert_eq!(rig.state(0), State::Failed as u32, "only a reset helps");
}

#[test]
fn a_start_of_a_device_that_is_ready_changes_nothing() {
    let mut rig = Rig::new(1);
    let others = rig.alloc(1 << 16);
    for (log, commands) in [(3, others), (0, 1)] {
        rig.describe_admin(0, log, u32::from(nic_abi::VERSION_MAJOR) << 16, commands, others + 4096);
        let request = rig.control(0, registers::CONTROL_START);
        assert_eq!(rig.register(0, registers::STATUS_ACKNOWLEDGED).load(Ordering::Relaxed), request);
        assert_eq!(rig.state(0), State::Ready as u32);
        rig.command(0, Opcode::Nop, 0, &()).expect("the running admin queue still works");
    }
}

#[test]
fn garbage_in_the_fifo_is_counted_and_ignored() {
    let mut rig = Rig::new(1);
    let bad = rig.stats(0).bad_doorbells;
    let garbage = [
        (Kind::Send, 0),
        (Kind::Send, 0xff_ffff),
        (Kind::Receive, 77),
        (Kind::SharedReceive, 5),
        (Kind::Admin, 1),
    ];
    for (kind, slot) in garbage {
        rig.push_doorbell(0, kind, slot);
    }
    // An undefined kind.
    let index = rig.register(0, registers::FIFO_TAIL).fetch_add(1, Ordering::AcqRel);
    let at = registers::FIFO + index as usize * 4;
    rig.register(0, at).store(1 << 31 | 7 << 28 | 3, Ordering::Release);
    rig.run();
    assert_eq!(rig.stats(0).bad_doorbells - bad, 6);
    // A second entry for a queue does no harm.
    rig.push_doorbell(0, Kind::Admin, 0);
    rig.push_doorbell(0, Kind::Admin, 0);
    rig.command(0, Opcode::Nop, 0, &()).expect("it still works");
}

#[test]
#[cfg_attr(miri, ignore = "a pass of the FIFO is 65,536 doorbells")]
fn the_fifo_wraps_with_its_phase() {
    let mut rig = Rig::new(1);
    let (mut a, mut b) = rig.pair();
    for round in 0..registers::FIFO_ENTRIES + 100 {
        rig.push_doorbell(0, Kind::Send, nic_abi::ident::qpn_slot(a.qpn));
        if round % 1024 == 0 {
            rig.run();
        }
    }
    rig.run();
    rig.post_receive(&mut b, 5, &[]);
    rig.post(&mut a, nic_model::testing::header(nic_abi::wqe::Opcode::Send, 4), &[]);
    assert_eq!(rig.sent(&mut a).tag, 4);
    assert_eq!(rig.received(&mut b).tag, 5);
    assert_eq!(rig.stats(0).bad_doorbells, 0);
}

#[test]
fn a_bad_admin_tail_fails_the_device() {
    let mut rig = Rig::new(1);
    rig.ring(0, Kind::Admin, 0, 1000);
    rig.run();
    assert_eq!(rig.state(0), State::Failed as u32);
    assert_eq!(rig.register(0, registers::STATUS_FAULT).load(Ordering::Relaxed), Fault::AdminQueue as u32);
}

#[test]
fn sleep_is_refused_while_there_is_work_and_kicks_are_asked_for_otherwise() {
    let mut rig = Rig::new(1);
    let (a, _) = rig.pair();
    assert!(rig.fabric.prepare_sleep());
    let slot = nic_abi::ident::qpn_slot(a.qpn);
    assert!(rig.ring(0, Kind::Send, slot, 0), "the sleeper wants a kick for the next entry");
    assert!(!rig.fabric.prepare_sleep(), "an entry came in between");
    rig.fabric.awake();
    rig.run();
    assert!(!rig.ring(0, Kind::Send, slot, 0), "the device is awake");
    rig.run();
    assert!(rig.fabric.prepare_sleep());
    let request = rig.register(0, registers::CONTROL_REQUEST);
    request.fetch_add(1, Ordering::AcqRel);
    assert!(!rig.fabric.prepare_sleep(), "a control request is work");
}

#[test]
fn an_armed_event_queue_interrupts_once() {
    let mut rig = Rig::new(1);
    let command = |id| Command { opcode: 0, flags: 1, id, object: 0, reserved: 0, args: [0; 112] };
    rig.raw_command(0, &command(1)).expect("an answer");
    assert_eq!(rig.raised(0, 1), 0, "not armed");
    rig.arm_eq(0);
    rig.raw_command(0, &command(2)).expect("an answer");
    rig.raw_command(0, &command(3)).expect("an answer");
    assert_eq!(rig.raised(0, 1), 1);
    let ids: Vec<u32> = rig.events(0).iter().map(|e| e.detail).collect();
    assert_eq!(ids, [1, 2, 3]);
}

#[test]
fn an_event_queue_that_overflows_fails_the_device() {
    let mut rig = Rig::new(1);
    let command = Command { opcode: 0, flags: 1, id: 0, object: 0, reserved: 0, args: [0; 112] };
    for _ in 0..64 {
        rig.raw_command(0, &command).expect("an answer");
    }
    assert_eq!(rig.state(0), State::Ready as u32, "a full queue has not overflowed");
    rig.raw_command(0, &command);
    assert_eq!(rig.state(0), State::Failed as u32);
    let fault = rig.register(0, registers::STATUS_FAULT).load(Ordering::Relaxed);
    assert_eq!(fault, Fault::EventQueueOverflow as u32);
}

#[test]
fn a_poll_without_work_is_idle() {
    let mut rig = Rig::new(1);
    rig.run();
    assert_eq!(rig.fabric.poll(Instant::from_nanos(rig.now), 64), Progress::Idle);
    assert_eq!(offset_of!(registers::Control, request), 0);
}

/// Polls once as a launcher does, and returns the number of answers of NIC 0, counted from `first`
/// on.
fn answers_of_one_poll(rig: &mut Rig, first: u32) -> usize {
    rig.fabric.poll(Instant::from_nanos(rig.now), 64);
    (first..first + 16).filter(|index| rig.answer(0, *index).is_some()).count()
}

#[test]
#[cfg_attr(miri, ignore = "rings of a hundred thousand entries")]
fn a_poll_carries_out_one_large_command_at_most() {
    let mut rig = Rig::new(2);
    let cq = rig.create_cq(0, 4);
    let ring = rig.alloc(32 << 17);
    let list = rig.alloc(8 << 17);
    let page = rig.alloc(4096);
    for i in 0..1 << 17 {
        rig.memory.write(list + 8 * i, &page.to_le_bytes()).expect("the list");
    }
    let resize = ResizeCq { ring, log_entries: 17, reserved: 0 };
    let register = RegisterRegion {
        pd: PD,
        flags: (LinkFlags::LOCAL_READ | LinkFlags::PAGES | LinkFlags::RELATIVE).bits(),
        base: 0,
        length: 4096,
        list: ListArgs { list, element_length: 4096, elements: 1 << 17, ..ListArgs::default() },
    };
    for large in [
        Command { object: cq.number, ..command(Opcode::ResizeCq, &resize) },
        Command { object: rig.fresh_key(), ..command(Opcode::RegisterRegion, &register) },
    ] {
        let mut first = 0;
        // No matter how many entries of the FIFO ask for commands, and how often.
        for n in 0..16 {
            let key = if large.opcode == Opcode::RegisterRegion as u16 { n << 8 } else { 0 };
            let index = rig.issue(0, &Command { object: large.object + key, ..large });
            first = if n == 0 { index } else { first };
            rig.push_doorbell(0, Kind::Admin, 0);
        }
        let mut done = 0;
        for _ in 0..1000 {
            let now = answers_of_one_poll(&mut rig, first);
            assert!(now <= done + 1, "{} large commands in a poll", now - done);
            done = now;
        }
        assert_eq!(done, 16);
    }
}

#[test]
#[cfg_attr(miri, ignore = "lists of a hundred thousand elements")]
fn a_poll_carries_out_one_large_fast_register_at_most() {
    let mut rig = Rig::new(1);
    let spec = QpSpec { flags: QpFlags::PRIVILEGED, ..QpSpec::default() };
    let (mut a, _) = rig.pair_of(0, 0, spec);
    let list = rig.alloc(8 << 17);
    let page = rig.alloc(4096);
    for i in 0..1 << 17 {
        rig.memory.write(list + 8 * i, &page.to_le_bytes()).expect("the list");
    }
    let key = rig.fresh_key();
    let allocate = AllocateRegion { pd: PD, max_elements: 1 << 17 };
    rig.command(0, Opcode::AllocateRegion, key, &allocate).expect("a region");
    let (elements, remote) = (1 << 17, key);
    let args = ListArgs { list, element_length: 4096, elements, remote, ..ListArgs::default() };
    let flags = LinkFlags::LOCAL_READ | LinkFlags::PAGES | LinkFlags::RELATIVE;
    for tag in 0..8 {
        let link = Header {
            immediate: key,
            remote_key: flags.bits(),
            length: 4096,
            ..header(wqe::Opcode::FastRegister, tag)
        };
        rig.post_args(&mut a, link, zerocopy::transmute!(args));
        rig.post_args(&mut a, Header { immediate: key, ..header(wqe::Opcode::LocalInvalidate, tag) }, [0; 4]);
    }
    for tag in 0..8 {
        let mut links = 0;
        while links == 0 {
            rig.fabric.poll(Instant::from_nanos(rig.now), 64);
            while let Some(done) = rig.poll_cq(&mut a.send_cq) {
                assert_eq!(status(&done), cqe::Status::Success);
                links += u32::from(done.opcode == wqe::Opcode::FastRegister as u8);
            }
        }
        assert_eq!(links, 1, "at link {tag}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of polls")]
fn no_nic_starves_another() {
    let mut rig = Rig::new(3);
    let (mut a, _) = rig.pair_of(1, 2, QpSpec::default());
    let (from, _) = rig.region(1, 64);
    let (to, _) = rig.region(2, 64);
    // A megabyte each, without an end, so the queue pairs of NIC 0 always have work.
    let mut busy: Vec<_> = (0..8).map(|_| rig.pair_of(0, 0, QpSpec::default()).0).collect();
    let (large, _) = rig.region(0, 2 << 20);
    let cq = rig.create_cq(0, 4);
    let ring = rig.alloc(32 << 12);
    let resize = command(Opcode::ResizeCq, &ResizeCq { ring, log_entries: 12, reserved: 0 });
    let mut unanswered = std::collections::VecDeque::new();
    for round in 0..50 {
        rig.post(&mut a, rdma(wqe::Opcode::Write, round, to, 0), &[segment(from, 0, 64)]);
        for polls in 0.. {
            // Commands, doorbells and messages: as many as fit.
            while unanswered.front().is_some_and(|index| rig.answer(0, *index).is_some()) {
                unanswered.pop_front();
            }
            while unanswered.len() < 16 {
                unanswered.push_back(rig.issue(0, &Command { object: cq.number, ..resize }));
            }
            for slot in 0..200 {
                rig.push_doorbell(0, if slot % 2 == 0 { Kind::Admin } else { Kind::Send }, slot / 100);
            }
            for qp in &mut busy {
                while rig.poll_cq(&mut qp.send_cq).is_some() {}
                // The requests that have not completed are outstanding.
                if qp.send_tail - qp.send_cq.ring.head < 8 {
                    rig.post(qp, rdma(wqe::Opcode::Write, 0, large, 1 << 20), &[segment(large, 0, 1 << 20)]);
                }
            }
            assert!(polls < 6, "NIC 1 waits for NIC 0");
            rig.now += 1_000_000;
            rig.fabric.poll(Instant::from_nanos(rig.now), 64);
            if let Some(done) = rig.poll_cq(&mut a.send_cq) {
                assert_eq!((status(&done), done.tag), (cqe::Status::Success, round));
                break;
            }
        }
    }
}

#[test]
fn what_a_poll_does_is_bounded_by_its_budget_and_one_piece() {
    let mut rig = Rig::new(1);
    let mut qps: Vec<_> = (0..100).map(|_| rig.pair_of(0, 0, QpSpec::default()).0).collect();
    for qp in &mut qps {
        for tag in 0..20 {
            rig.post(qp, rdma(wqe::Opcode::Write, tag, 0, 0), &[]);
        }
    }
    // To flush a queue is work as well.
    let args = ModifyQp { mask: QpMask::STATE.bits(), state: QpState::Error as u32, ..ModifyQp::default() };
    for qp in &qps[..16] {
        rig.issue(0, &Command { object: qp.qpn, ..command(Opcode::ModifyQp, &args) });
    }
    let mut polls = 0;
    while rig.fabric.poll(Instant::from_nanos(rig.now), 64) == Progress::Worked {
        let work = rig.fabric.work_of_last_poll();
        assert!(work < 64 + 32, "{work} units");
        polls += 1;
    }
    assert!(polls > 20, "{polls}");
}

#[test]
fn the_heartbeats_of_all_nics_go_on_while_one_is_flooded() {
    let mut rig = Rig::new(2);
    let beat = |rig: &Rig, n: usize| rig.register(n, registers::STATUS_HEARTBEAT).load(Ordering::Relaxed);
    for _ in 0..100 {
        for slot in 0..1000 {
            rig.push_doorbell(0, Kind::Send, slot);
            rig.push_doorbell(0, Kind::Admin, 0);
        }
        let before = [beat(&rig, 0), beat(&rig, 1)];
        rig.now += registers::HEARTBEAT_MS * 1_000_000;
        rig.fabric.poll(Instant::from_nanos(rig.now), 64);
        assert!(beat(&rig, 0) != before[0] && beat(&rig, 1) != before[1]);
    }
}

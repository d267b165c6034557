//! A device that accepts every command and then writes invalid entries into every queue.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use common::scene::*;
use host::fake::{Fake, identity, success};
use kernel_agent::{
    Agent, AsyncEvent, Behind, Client, CmEvent, Config, Death, Error, QpAttributes, SegmentLimits,
    SlotParams, Took, TookAny, Upcalls,
};
use nic_abi::admin::{CreateCq, Opcode, QpState};
use nic_abi::cqe::{self, CqeFlags, Status};
use nic_abi::doorbell::record;
use nic_abi::eqe::EventType;
use nic_abi::registers::CQ_RECORDS;
use nic_abi::wqe::LinkFlags;

#[test]
fn plain_completions_are_taken_through_the_slot_in_order_and_once() {
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    (1..=3).for_each(|tag| slotted.complete(&scene, tag, 0));
    assert_eq!(slotted.completions.take(HANDLE + 1), Took::Other);
    assert_eq!(slotted.take_one(), Some(Ok(1)));
    assert_eq!(slotted.take(1), (vec![2], true));
    assert_eq!(slotted.take(4), (vec![3], false));
    // Beyond the end of the ring, with unsignalled requests between the signalled ones.
    for tag in [5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17] {
        slotted.complete(&scene, tag, 0);
    }
    assert!(slotted.written == 16);
    slotted.complete(&scene, 18, 0);
    slotted.complete(&scene, 20, 0);
    assert_eq!(slotted.take(16), (vec![5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 20], false));
    assert_eq!((slotted.consumed(&scene), slotted.qp.outstanding()), (18, (0, 0)));
    assert_eq!((slotted.take_one(), slotted.cq.poll_one(), slotted.cq.dropped()), (None, None, 0));
}

#[test]
fn the_device_gets_room_in_a_cq_before_the_poster_of_the_request() {
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    (1..=3).for_each(|tag| slotted.complete(&scene, tag, 0));
    let mut polling = slotted.cq.polling();
    for tag in 1..=3 {
        assert_eq!(polling.next().map(|completion| completion.cookie), Some(u64::from(tag)));
        assert_eq!((slotted.consumed(&scene), slotted.qp.outstanding()), (1 + tag, (20 - tag, 0)));
    }
}

#[test]
fn a_run_of_completions_ends_before_an_invalid_tag() {
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    for tag in [1, 2, 2, 21, 3] {
        slotted.complete(&scene, tag, 0);
    }
    assert_eq!(slotted.take(8), (vec![1, 2], true));
    assert_eq!((slotted.take(8), slotted.take_one()), ((vec![], true), Some(Err(()))));
    assert_eq!(slotted.consumed(&scene), 3);
    assert_eq!(slotted.cq.poll_one().map(|completion| completion.cookie), Some(3));
    assert_eq!((slotted.cq.dropped(), slotted.take(8)), (2, (vec![], false)));
}

#[test]
fn a_run_of_completions_ends_before_an_entry_of_a_former_queue_pair_or_another_queue() {
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    slotted.complete(&scene, 1, 0);
    slotted.complete(&scene, 2, 0);
    slotted.write(&scene, entry(&slotted.qp, slotted.qp.generation() - 1, 3, 0, 0, 0));
    assert_eq!(slotted.take(8), (vec![1, 2], true));
    assert_eq!((slotted.take_one(), slotted.cq.poll_one(), slotted.cq.dropped()), (Some(Err(())), None, 1));
    slotted.complete(&scene, 3, 0);
    let receive = CqeFlags::RECEIVE.bits();
    slotted.write(&scene, entry(&slotted.qp, slotted.qp.generation(), 4, 0, 0, receive));
    slotted.write(&scene, [0; 4]);
    assert_eq!(slotted.take(8), (vec![3], true));
    assert_eq!((slotted.take(8), slotted.cq.poll_one(), slotted.cq.dropped()), ((vec![], true), None, 3));
    // Destroying the queue pair removes it from the CQ.
    slotted.complete(&scene, 5, 0);
    slotted.qp.destroy().unwrap();
    assert_eq!((slotted.take(8), slotted.take_one()), ((vec![], true), Some(Err(()))));
    assert_eq!((slotted.cq.poll_one(), slotted.cq.dropped()), (None, 4));
}

#[test]
fn a_failure_in_a_run_of_completions_needs_the_slow_path() {
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    slotted.complete(&scene, 1, 0);
    slotted.complete(&scene, 2, Status::Flushed as u8);
    slotted.complete(&scene, 3, 0);
    assert_eq!(slotted.take(8), (vec![1], true));
    assert_eq!(slotted.take_one(), Some(Err(())));
    let failed = slotted.cq.poll_one().unwrap();
    assert_eq!((failed.cookie, failed.status), (2, Status::Flushed));
    assert_eq!(slotted.take(8), (vec![3], false));
}

#[test]
fn a_send_slot_is_open_while_the_queue_pair_takes_requests() {
    let scene = Scene::new();
    let slotted = scene.slotted(9);
    let read = |limits: &SegmentLimits| limits.read;
    assert_eq!(slotted.post(HANDLE, read, 0), None, "in INIT");
    slotted.to(QpState::Rtr);
    slotted.to(QpState::Rts);
    assert_eq!(slotted.post(HANDLE, |limits| limits.send, 0), None, "no segment is allowed");
    assert_eq!(slotted.post(HANDLE ^ 1, read, 0), None);
    slotted.sends.set_closed(HANDLE, 1 << 4, || true);
    assert_eq!(slotted.post(HANDLE, read, 0), None);
    slotted.sends.set_closed(HANDLE, 1 << 4, || false);
    (0..32).for_each(|cookie| assert!(slotted.post(HANDLE, read, cookie).is_some()));
    assert_eq!((slotted.post(HANDLE, read, 32), slotted.qp.outstanding()), (None, (32, 0)), "full");
    slotted.to(QpState::Reset);
    assert_eq!(slotted.post(HANDLE, read, 0), None);
    assert_eq!(slotted.qp.outstanding(), (0, 0));
    slotted.qp.to_init(LinkFlags::empty()).unwrap();
    slotted.to(QpState::Rtr);
    slotted.to(QpState::Rts);
    assert!(slotted.post(HANDLE, read, 0).is_some());
    // A slot has one owner at a time.
    let pd = scene.client.create_pd().unwrap();
    let successor = || {
        scene.client.create_qp(&QpAttributes {
            slot: Some((
                SlotParams { slot: &slotted.sends, handle: HANDLE, closed: 0 },
                SegmentLimits::default(),
            )),
            ..attributes(&pd, &slotted.cq, 9)
        })
    };
    assert_eq!(successor().err(), Some(Error::Busy));
    slotted.qp.withdraw();
    assert_eq!((slotted.post(HANDLE, read, 0), slotted.qp.outstanding()), (None, (1, 0)));
    successor().unwrap();
    slotted.qp.destroy().unwrap();
}

#[test]
fn invalid_completions_are_dropped_and_counted() {
    let scene = Scene::new();
    let (qp, cq, ring) = scene.qp(1);
    let (other, other_cq, other_ring) = scene.qp(2);
    to(&qp, QpState::Rtr);
    to(&qp, QpState::Rts);
    send(&qp, 10);
    send(&qp, 11);
    let receive = CqeFlags::RECEIVE.bits();
    let senseless = [
        entry(&qp, qp.generation() + 1, 0, 0, 0, 0),
        entry(&qp, qp.generation(), 2, 0, 0, 0),
        entry(&qp, qp.generation(), u32::MAX, 0, 0, 0),
        entry(&qp, qp.generation(), 0, 0, 0, receive),
        entry(&qp, qp.generation(), 0, 0, 200, 0),
        entry(&other, other.generation(), 0, 0, 0, 0),
        [u64::MAX; 4],
        [0; 4],
    ];
    let mut index = 0;
    for words in senseless {
        scene.fake.write_entry(ring, 4, index, words);
        index += 1;
    }
    assert_eq!(cq.poll_one(), None);
    assert_eq!(cq.dropped(), 8);
    // A completion in another queue pair's CQ is dropped as well.
    scene.fake.write_entry(other_ring, 4, 0, entry(&qp, qp.generation(), 0, 0, 0, 0));
    assert_eq!((other_cq.poll_one(), other_cq.dropped()), (None, 1));
    assert_eq!(qp.outstanding(), (2, 0));
    // A completion's length is limited to what was posted.
    scene.fake.write_entry(ring, 4, index, entry(&qp, qp.generation(), 0, u32::MAX, 0, 0));
    let completion = cq.poll_one().unwrap();
    assert_eq!((completion.cookie, completion.length, completion.status), (10, 100, Status::Success));
    // The device repeats a completion, and then writes the next one.
    scene.fake.write_entry(ring, 4, index + 1, entry(&qp, qp.generation(), 0, 0, 0, 0));
    scene.fake.write_entry(ring, 4, index + 2, entry(&qp, qp.generation(), 1, 7, 4, 0));
    let completion = cq.poll_one().unwrap();
    assert_eq!((completion.cookie, completion.length, completion.status), (11, 7, Status::Flushed));
    assert_eq!(cq.dropped(), 9);
    // A completion after the queue pair was destroyed.
    send(&qp, 12);
    qp.destroy().unwrap();
    scene.fake.write_entry(ring, 4, index + 3, entry(&qp, qp.generation(), 2, 0, 0, 0));
    assert_eq!((cq.poll_one(), cq.dropped()), (None, 10));
}

#[test]
fn a_device_that_never_stops_writing_cannot_keep_a_thread_in_poll() {
    let scene = Scene::new();
    let (qp, cq, ring) = scene.qp(1);
    // The device writes invalid entries over the whole ring, whatever was consumed.
    for pass in 0..10u32 {
        for i in 0..16 {
            let words = entry(&qp, qp.generation() + 1, pass, 0, 0, 0);
            scene.fake.write_entry(ring, 4, pass * 16 + i, words);
        }
        assert_eq!(cq.poll(100, |_| panic!("none of it is a completion")), 0);
    }
    assert_eq!(cq.dropped(), 160);
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn invalid_events_change_nothing() {
    let scene = Scene::new();
    let (qp, cq, _) = scene.qp(1);
    let mut seed = 0x1234_5678_9abc_def1;
    for index in 0..2000 {
        let eq = (index % 2) as u32;
        let kind = match random(&mut seed) % 4 {
            0 => random(&mut seed) as u8,
            _ => [
                EventType::Completion,
                EventType::CqError,
                EventType::Admin,
                EventType::QpFatal,
                EventType::SrqLimit,
                EventType::LastWqeReached,
                EventType::StreamEnded,
                EventType::Stream,
            ][random(&mut seed) as usize % 8] as u8,
        };
        // No port events, and no generation that is in use: those events would be valid.
        let kind = if kind == 0x30 || kind == 0x31 { 0 } else { kind };
        let number = random(&mut seed) % 4;
        let word = u64::from(kind) | random(&mut seed) & 0xffff_ff00 | number << 32;
        let generation = 0x8000_0000 | random(&mut seed) & 0xffff_ffff;
        let words = [word, generation | random(&mut seed) << 32, random(&mut seed), random(&mut seed)];
        scene.event(eq, (index / 2) as u32, words);
    }
    let counting = &scene.counting;
    assert_eq!(counting.completions.load(Ordering::Relaxed), 0);
    assert_eq!(counting.events.load(Ordering::Relaxed), 0);
    assert_eq!(qp.state(), QpState::Init);
    assert!(!cq.failed());
    // A valid event still arrives.
    let word = EventType::Completion as u64 | u64::from(cq.number()) << 32;
    scene.event(1, 1000, [word, 1, 0, 0]);
    while counting.completions.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn invalid_datagrams_are_dropped() {
    let scene = Scene::new();
    scene.client.listen(roce::ServiceId(1), kernel_agent::Transports::RC, 1).unwrap();
    let commands = scene.fake.commands.lock().unwrap().clone();
    let create = commands.iter().find(|c| c.opcode == Opcode::CreateCq as u16).unwrap();
    let (args, _) = <CreateCq as zerocopy::FromBytes>::read_from_prefix(&create.args).unwrap();
    let head = scene.fake.registers().atomic_u32(record(CQ_RECORDS, create.object)).unwrap();
    let mut seed = 0xfeed_beef_1234_5677;
    for index in 0..2000u32 {
        let length = if index % 3 == 0 { random(&mut seed) as u32 } else { 296 };
        let status = if index % 7 == 0 { random(&mut seed) as u8 } else { 0 };
        let words = [
            1 | 1 << 32,
            u64::from(index) | u64::from(length) << 32,
            random(&mut seed) << 32,
            u64::from(status) | u64::from(CqeFlags::RECEIVE.bits()) << 8,
        ];
        scene.fake.write_entry(args.ring, args.log_entries, index, words);
        while head.load(Ordering::Acquire) != index + 1 {
            scene.fake.interrupt(1);
            std::thread::yield_now();
        }
    }
    assert_eq!(scene.counting.connections.load(Ordering::Relaxed), 0);
    assert_eq!(scene.agent.death(), None);
    const _: () = assert!(cqe::SIZE == 32);
}

#[test]
fn the_number_of_a_cq_is_given_back_after_its_last_poller_has_left() {
    let (destroying, device) = std::sync::mpsc::channel();
    let (poller, polls) = std::sync::mpsc::channel::<()>();
    let answer = move |command: &nic_abi::admin::Command| {
        if command.opcode == Opcode::DestroyCq as u16 && destroying.send(()).is_ok() {
            // The answer comes while a thread polls.
            let _ = polls.recv();
        }
        success(command)
    };
    let fake = Fake::new(identity(), answer);
    let config = Config { max_cqs: 1, ..Config::default() };
    let agent = Agent::open(fake.platform.clone(), fake.transport(), 0, config).unwrap();
    let counting: Arc<dyn Upcalls> = Arc::new(Counting::default());
    let client = agent.attach(Arc::downgrade(&counting)).unwrap();
    let cq = client.create_cq(16, 1).unwrap();
    std::thread::scope(|threads| {
        let destroyed = threads.spawn(|| cq.destroy());
        device.recv().unwrap();
        let mut late = cq.polling();
        poller.send(()).unwrap();
        // The thread that destroys the CQ gets the answer now, and goes on as far as it can.
        for _ in 0..2000 {
            let successor = client.create_cq(16, 2);
            assert_eq!(successor.err(), Some(Error::NoResources(kernel_agent::Resource::Cqs)));
            std::thread::yield_now();
        }
        assert_eq!(late.next(), None);
        drop(late);
        destroyed.join().unwrap().unwrap();
    });
    // The device no longer waits for a poller.
    drop(poller);
    client.create_cq(16, 2).unwrap();
    client.detach();
    agent.close();
}

/// A client whose first upcall ends the device.
struct Ending {
    client: std::sync::OnceLock<Arc<Client>>,
    completions: AtomicU64,
}

impl Upcalls for Ending {
    fn completion(&self, _: u64) {
        if self.completions.fetch_add(1, Ordering::Relaxed) == 0 {
            let _ = self.client.get().map(|client| client.create_pd());
        }
    }

    fn asynchronous(&self, _: AsyncEvent) {}

    fn connection(&self, _: CmEvent<'_>) {}

    fn catastrophic(&self, _: Death) {}
}

#[test]
fn an_asynchronous_event_waits_for_completions_and_the_look_at_the_device_does_not() {
    // The device answers the second command for a domain with another command's number.
    let mut domains = 0;
    let answer = move |command: &nic_abi::admin::Command| {
        domains += u32::from(command.opcode == Opcode::CreatePd as u16);
        let id = if domains < 2 { command.id } else { !command.id };
        success(command).map(|answer| nic_abi::admin::Response { id, ..answer })
    };
    let fake = Fake::new(identity(), answer);
    let agent = Agent::open(fake.platform.clone(), fake.transport(), 0, Config::default()).unwrap();
    let ending = Arc::new(Ending { client: Default::default(), completions: AtomicU64::new(0) });
    let weak: Weak<dyn Upcalls> = Arc::downgrade(&(ending.clone() as Arc<dyn Upcalls>));
    let client = agent.attach(weak).unwrap();
    let cq = client.create_cq(16, 1).unwrap();
    assert!(ending.client.set(client.clone()).is_ok());
    let scene = Scene { fake, agent, client, counting: Arc::default() };
    let word = EventType::Completion as u64 | u64::from(cq.number()) << 32;
    let (ring, log) = scene.event_ring(1);
    (0..1 << log).for_each(|index| scene.fake.write_entry(ring, log, index, [word, 1, 0, 0]));
    let (ring, log) = scene.event_ring(0);
    (0..8).for_each(|index| scene.fake.write_entry(ring, log, index, [EventType::QpFatal as u64, 0, 0, 0]));
    scene.fake.interrupt(0);
    while scene.agent.death().is_none() {
        std::thread::yield_now();
    }
    scene.agent.close();
    let made = ending.completions.load(Ordering::Relaxed);
    assert!(made <= 128, "{made} upcalls after the device was dead");
}

#[test]
fn entries_of_a_queue_pair_that_is_gone_are_not_counted_as_completions() {
    for destroyed in [true, false] {
        let scene = Scene::new();
        let mut slotted = posted(&scene);
        let pd = scene.client.create_pd().unwrap();
        let other = scene.client.create_qp(&attributes(&pd, &slotted.cq, 8)).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            to(&other, state);
        }
        send(&other, 70);
        slotted.complete(&scene, 1, 0);
        slotted.complete(&scene, 2, 0);
        slotted.write(&scene, entry(&other, other.generation(), 0, 5, 0, 0));
        assert_eq!((slotted.cq.completions(), slotted.cq.has_completion()), (Some(3), true));
        match destroyed {
            true => slotted.qp.destroy().unwrap(),
            false => slotted.to(QpState::Reset),
        }
        assert_eq!((slotted.cq.completions(), slotted.cq.pending(9)), (None, 3));
        assert!(slotted.cq.has_completion());
        assert_eq!((slotted.cq.pending(9), slotted.cq.dropped()), (1, 2));
        assert_eq!(slotted.cq.poll_one().map(|completion| completion.cookie), Some(70));
        assert_eq!((slotted.cq.has_completion(), slotted.cq.completions()), (false, Some(0)));
    }
}

#[test]
fn an_entry_of_a_queue_pair_that_is_gone_is_not_reported_as_a_completion_behind_another() {
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    let pd = scene.client.create_pd().unwrap();
    let other = scene.client.create_qp(&attributes(&pd, &slotted.cq, 8)).unwrap();
    (1..=3).for_each(|tag| slotted.complete(&scene, tag, 0));
    slotted.write(&scene, entry(&other, other.generation(), 0, 5, 0, 0));
    let behind = |slotted: &Slotted| match slotted.completions.take_any(HANDLE, 0, |taken| taken.cookie) {
        TookAny::Taken { value, behind, .. } => Some((value, behind)),
        _ => None,
    };
    assert_eq!(behind(&slotted), Some((1, Behind::Completion)));
    other.destroy().unwrap();
    assert_eq!(behind(&slotted), Some((2, Behind::Suspect)));
    assert_eq!(behind(&slotted), Some((3, Behind::Suspect)));
    assert!(!slotted.cq.has_completion());
    slotted.complete(&scene, 4, 0);
    slotted.complete(&scene, 5, 0);
    assert_eq!(behind(&slotted), Some((4, Behind::Completion)));
    assert_eq!(behind(&slotted), Some((5, Behind::Nothing)));
}

#[test]
fn any_success_is_taken_through_a_slot_that_is_closed_for_the_given_reasons_only() {
    const REASON: u32 = 1 << 3;
    let scene = Scene::new();
    let mut slotted = posted(&scene);
    let any = |slotted: &Slotted, but| match slotted.completions.take_any(HANDLE, but, |taken| taken.cookie) {
        TookAny::Taken { value, behind, closed } => Ok((value, behind, closed)),
        other => Err(other),
    };
    assert_eq!(any(&slotted, 0), Err(TookAny::Nothing));
    for (tag, flags) in [(1, 0), (2, CqeFlags::GRH.bits()), (3, 0)] {
        slotted.write(&scene, entry(&slotted.qp, slotted.qp.generation(), tag, 5, 0, flags));
    }
    assert_eq!(slotted.completions.take_any(HANDLE + 1, !0, |_| 0), TookAny::Other);
    assert_eq!(any(&slotted, 0), Ok((1, Behind::Completion, false)));
    slotted.completions.set_closed(HANDLE, REASON, || true);
    assert_eq!((any(&slotted, 0), any(&slotted, REASON << 1)), (Err(TookAny::Other), Err(TookAny::Other)));
    assert_eq!((slotted.take_one(), slotted.consumed(&scene)), (Some(Err(())), 2));
    assert_eq!(any(&slotted, REASON), Ok((2, Behind::Completion, true)));
    assert_eq!(any(&slotted, REASON), Ok((3, Behind::Nothing, true)));
    assert_eq!((any(&slotted, REASON), slotted.qp.outstanding()), (Err(TookAny::Nothing), (17, 0)));
    // A failure stays for the slow path; an entry that makes no sense is dropped.
    slotted.complete(&scene, 4, Status::Flushed as u8);
    assert_eq!(any(&slotted, REASON), Err(TookAny::Other));
    assert_eq!(slotted.cq.poll_one().map(|completion| completion.cookie), Some(4));
    slotted.complete(&scene, 4, 0);
    slotted.complete(&scene, 5, 0);
    assert_eq!(any(&slotted, REASON), Err(TookAny::Other));
    assert_eq!((any(&slotted, REASON), slotted.cq.dropped()), (Ok((5, Behind::Nothing, true)), 1));
}

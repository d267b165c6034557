//! A device that says yes to every command and then writes nonsense into every queue.

#[path = "../../nic-hal/tests/fake/mod.rs"]
mod fake;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use fake::{Fake, identity, success};
use kernel_agent::{
    Agent, AsyncEvent, Client, CmEvent, Config, Cq, Death, Note, Qp, QpAttributes, QpType, SendRequest,
    Upcalls,
};
use nic_abi::admin::{CreateCq, CreateEq, Opcode, QpState};
use nic_abi::cqe::{self, CqeFlags, Status};
use nic_abi::eqe::EventType;
use nic_abi::registers::{CQ_RECORDS, EQ_RECORDS};
use nic_abi::wqe::{LinkFlags, Segment, SendFlags};

#[derive(Default)]
struct Counting {
    completions: AtomicU64,
    events: AtomicU64,
    connections: AtomicU64,
    deaths: AtomicU64,
}

impl Upcalls for Counting {
    fn completion(&self, _: u64) {
        self.completions.fetch_add(1, Ordering::Relaxed);
    }

    fn asynchronous(&self, _: AsyncEvent) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    fn connection(&self, _: CmEvent<'_>) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    fn catastrophic(&self, _: Death) {
        self.deaths.fetch_add(1, Ordering::Relaxed);
    }
}

struct Scene {
    fake: Fake,
    agent: Arc<Agent>,
    client: Arc<Client>,
    counting: Arc<Counting>,
}

impl Scene {
    fn new() -> Scene {
        let fake = Fake::new(identity(), success);
        let agent = Agent::open(fake.platform.clone(), fake.device(), 0, Config::default()).unwrap();
        let counting = Arc::new(Counting::default());
        let weak: Weak<dyn Upcalls> = Arc::downgrade(&(counting.clone() as Arc<dyn Upcalls>));
        let client = agent.attach(weak).unwrap();
        Scene { fake, agent, client, counting }
    }

    fn qp(&self, context: u64) -> (Arc<Qp>, Arc<Cq>, u64) {
        let pd = self.client.create_pd().unwrap();
        let cq = self.client.create_cq(16, context).unwrap();
        let (_, ring) = self.fake.last::<CreateCq>(Opcode::CreateCq);
        let attributes = QpAttributes {
            qp_type: QpType::Rc,
            privileged: None,
            pd: &pd,
            send_cq: &cq,
            receive_cq: &cq,
            srq: None,
            max_send_requests: 4,
            max_send_segments: 2,
            max_receive_requests: 4,
            max_receive_segments: 2,
            max_message: 0,
            context,
        };
        let qp = self.client.create_qp(&attributes).unwrap();
        qp.to_init(LinkFlags::empty()).unwrap();
        (qp, cq, ring.ring)
    }

    fn event_ring(&self, number: u32) -> (u64, u32) {
        let commands = self.fake.commands.lock().unwrap();
        let create = commands.iter().find(|c| c.opcode == Opcode::CreateEq as u16 && c.object == number);
        let (args, _) = <CreateEq as zerocopy::FromBytes>::read_from_prefix(&create.unwrap().args).unwrap();
        (args.ring, args.log_entries)
    }

    /// Writes an event and waits until it was taken.
    fn event(&self, number: u32, index: u32, words: [u64; 4]) {
        let (ring, log) = self.event_ring(number);
        self.fake.write_entry(ring, log, index, words);
        let head: &AtomicU32 = self.fake.registers().atomic_u32(EQ_RECORDS + number as usize * 8).unwrap();
        while head.load(Ordering::Acquire) != index + 1 {
            self.fake.interrupt(number as usize);
            std::thread::yield_now();
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.client.detach();
        assert_eq!(self.agent.counts(), Default::default());
        self.agent.close();
        assert_eq!(self.agent.nic().quarantined(), 0);
        assert_eq!(self.counting.deaths.load(Ordering::Relaxed), 0);
    }
}

fn entry(qp: &Qp, generation: u32, tag: u32, length: u32, status: u8, flags: u8) -> [u64; 4] {
    [
        u64::from(qp.qpn()) | u64::from(generation) << 32,
        u64::from(tag) | u64::from(length) << 32,
        0,
        u64::from(status) | u64::from(flags) << 8,
    ]
}

fn send(qp: &Qp, cookie: u64) {
    let request = SendRequest {
        opcode: nic_abi::wqe::Opcode::Read,
        flags: SendFlags::SIGNALED,
        immediate: 0,
        remote_key: 0,
        remote_addr: 0,
    };
    let segment = Segment { addr: 0, length: 100, key: 0 };
    qp.post_send(&request, &[segment], |&s| s, Note { cookie, data: 0 }).unwrap();
}

#[test]
fn completions_that_make_no_sense_are_dropped_and_counted() {
    let scene = Scene::new();
    let (qp, cq, ring) = scene.qp(1);
    let (other, other_cq, other_ring) = scene.qp(2);
    let to = |state: QpState| {
        let mask = nic_abi::admin::QpMask::STATE.bits();
        qp.modify(&nic_abi::admin::ModifyQp { mask, state: state as u32, ..Default::default() }).unwrap();
    };
    to(QpState::Rtr);
    to(QpState::Rts);
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
    // A completion in somebody else's CQ is not believed either.
    scene.fake.write_entry(other_ring, 4, 0, entry(&qp, qp.generation(), 0, 0, 0, 0));
    assert_eq!((other_cq.poll_one(), other_cq.dropped()), (None, 1));
    assert_eq!(qp.outstanding(), (2, 0));
    // Longer than what was posted cannot be.
    scene.fake.write_entry(ring, 4, index, entry(&qp, qp.generation(), 0, u32::MAX, 0, 0));
    let completion = cq.poll_one().unwrap();
    assert_eq!((completion.cookie, completion.length, completion.status), (10, 100, Status::Success));
    // Told twice, and then of the next.
    scene.fake.write_entry(ring, 4, index + 1, entry(&qp, qp.generation(), 0, 0, 0, 0));
    scene.fake.write_entry(ring, 4, index + 2, entry(&qp, qp.generation(), 1, 7, 4, 0));
    let completion = cq.poll_one().unwrap();
    assert_eq!((completion.cookie, completion.length, completion.status), (11, 7, Status::Flushed));
    assert_eq!(cq.dropped(), 9);
    // After its destruction.
    send(&qp, 12);
    qp.destroy().unwrap();
    scene.fake.write_entry(ring, 4, index + 3, entry(&qp, qp.generation(), 2, 0, 0, 0));
    assert_eq!((cq.poll_one(), cq.dropped()), (None, 10));
}

#[test]
fn a_device_that_writes_without_end_cannot_hold_a_poller() {
    let scene = Scene::new();
    let (qp, cq, ring) = scene.qp(1);
    // All sixteen entries, junk, again and again without regard for the consumer.
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
fn events_that_make_no_sense_change_nothing() {
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
            ][random(&mut seed) as usize % 6] as u8,
        };
        // Never a port event, and never a generation that is in use.
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
    // One that is right arrives.
    let word = EventType::Completion as u64 | u64::from(cq.number()) << 32;
    scene.event(1, 1000, [word, 1, 0, 0]);
    while counting.completions.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn datagrams_that_make_no_sense_are_lost() {
    let scene = Scene::new();
    scene.client.listen(roce::ServiceId(1), 1).unwrap();
    let commands = scene.fake.commands.lock().unwrap().clone();
    let create = commands.iter().find(|c| c.opcode == Opcode::CreateCq as u16).unwrap();
    let (args, _) = <CreateCq as zerocopy::FromBytes>::read_from_prefix(&create.args).unwrap();
    let head = scene.fake.registers().atomic_u32(CQ_RECORDS + create.object as usize * 8).unwrap();
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

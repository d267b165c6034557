//! A device that accepts every command and does nothing else, and a client of the agent on it. The
//! test writes what the device would write.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use host::fake::{Fake, identity, success};
use kernel_agent::{
    Agent, AsyncEvent, Client, CmEvent, Config, Cq, CqSlot, Death, Direction, Done, Head, Operation, Pd, Qp,
    QpAttributes, QpType, Remote, RemoteWords, Request, SegmentLimits, SendSlot, Shadow, SlotParams, Took,
    Transfer, Upcalls,
};
use nic_abi::admin::{Command, CreateCq, CreateEq, ModifyQp, Opcode, QpMask, QpState, Response};
use nic_abi::doorbell::record;
use nic_abi::registers::{CQ_RECORDS, EQ_RECORDS};
use nic_abi::wqe::{LinkFlags, Segment, SendFlags};
use zerocopy::FromBytes;

/// Counts the upcalls that the client gets.
#[derive(Default)]
pub struct Counting {
    pub completions: AtomicU64,
    pub events: AtomicU64,
    pub connections: AtomicU64,
    pub deaths: AtomicU64,
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

/// Attributes of a small unprivileged queue pair.
pub fn attributes<'a>(pd: &'a Arc<Pd>, cq: &'a Arc<Cq>, context: u64) -> QpAttributes<'a> {
    QpAttributes {
        max_send_segments: 2,
        max_receive_segments: 2,
        context,
        ..QpAttributes::new(QpType::Rc, pd, cq, 4)
    }
}

/// The device, the agent and the client.
pub struct Scene {
    pub fake: Fake,
    pub agent: Arc<Agent>,
    pub client: Arc<Client>,
    pub counting: Arc<Counting>,
}

impl Scene {
    pub fn new() -> Scene {
        Scene::on(success)
    }

    /// On a device that answers its commands in this way.
    pub fn on(answer: impl FnMut(&Command) -> Option<Response> + Send + 'static) -> Scene {
        let fake = Fake::new(identity(), answer);
        let agent = Agent::open(fake.platform.clone(), fake.transport(), 0, Config::default()).unwrap();
        let counting = Arc::new(Counting::default());
        let weak: Weak<dyn Upcalls> = Arc::downgrade(&(counting.clone() as Arc<dyn Upcalls>));
        let client = agent.attach(weak).unwrap();
        Scene { fake, agent, client, counting }
    }

    /// A queue pair in INIT, its CQ, and where the ring of the CQ is.
    pub fn qp(&self, context: u64) -> (Arc<Qp>, Arc<Cq>, u64) {
        let pd = self.client.create_pd().unwrap();
        let cq = self.client.create_cq(16, context).unwrap();
        let (_, ring) = self.fake.last::<CreateCq>(Opcode::CreateCq);
        let qp = self.client.create_qp(&attributes(&pd, &cq, context)).unwrap();
        qp.to_init(LinkFlags::empty()).unwrap();
        (qp, cq, ring.ring)
    }

    /// A queue pair in INIT and its CQ, each in a slot that is open for `HANDLE`.
    pub fn slotted(&self, context: u64) -> Slotted {
        self.slotted_within(SegmentLimits { send: 0, write: 1, read: 2 }, context)
    }

    /// As [`Scene::slotted`], with these limits of the slot.
    pub fn slotted_within(&self, limits: SegmentLimits, context: u64) -> Slotted {
        let (sends, completions) = (Arc::<SendSlot>::default(), Arc::<CqSlot>::default());
        let pd = self.client.create_pd().unwrap();
        let slot_params = SlotParams { slot: &completions, handle: HANDLE, closed: 0 };
        let cq = self.client.create_cq_in(16, context, slot_params).unwrap();
        let (_, ring) = self.fake.last::<CreateCq>(Opcode::CreateCq);
        let qp = self.client.create_qp(&QpAttributes {
            max_send_requests: 32,
            slot: Some((SlotParams { slot: &sends, handle: HANDLE, closed: 0 }, limits)),
            ..attributes(&pd, &cq, context)
        });
        let qp = qp.unwrap();
        qp.to_init(LinkFlags::empty()).unwrap();
        Slotted { qp, cq, ring: ring.ring, sends, completions, written: 0 }
    }

    /// Where the ring of an event queue is, and the logarithm of its number of entries.
    pub fn event_ring(&self, number: u32) -> (u64, u32) {
        let commands = self.fake.commands.lock().unwrap();
        let create = commands.iter().find(|c| c.opcode == Opcode::CreateEq as u16 && c.object == number);
        let (args, _) = CreateEq::read_from_prefix(&create.unwrap().args).unwrap();
        (args.ring, args.log_entries)
    }

    /// Writes an event and waits until it was taken.
    pub fn event(&self, number: u32, index: u32, words: [u64; 4]) {
        let (ring, log) = self.event_ring(number);
        self.fake.write_entry(ring, log, index, words);
        let head: &AtomicU32 = self.fake.registers().atomic_u32(record(EQ_RECORDS, number)).unwrap();
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
        assert_eq!(self.agent.test_handle().quarantined(), 0);
        assert_eq!(self.counting.deaths.load(Ordering::Relaxed), 0);
    }
}

/// For which handle the slots of a [`Slotted`] are open.
pub const HANDLE: u64 = 0x1234_5678;

/// A queue pair and its CQ, each in a slot.
pub struct Slotted {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    ring: u64,
    pub sends: Arc<SendSlot>,
    pub completions: Arc<CqSlot>,
    /// How many entries were written to the CQ.
    pub written: u32,
}

impl Slotted {
    pub fn to(&self, state: QpState) {
        to(&self.qp, state);
    }

    pub fn post(&self, handle: u64, limit: fn(&SegmentLimits) -> u32, cookie: u64) -> Option<()> {
        let segment = Segment { addr: 0, length: 100, key: 0 };
        self.sends.post_single(handle, |limits| limit(limits) > 0, || Some((read(cookie, 3), segment)))
    }

    /// Completes the request with this tag.
    pub fn complete(&mut self, scene: &Scene, tag: u32, status: u8) {
        self.write(scene, entry(&self.qp, self.qp.generation(), tag, 5, status, 0));
    }

    pub fn write(&mut self, scene: &Scene, words: [u64; 4]) {
        scene.fake.write_entry(self.ring, 4, self.written, words);
        self.written += 1;
    }

    /// Takes up to `most` completions through the slot: their cookies, and whether the slow path
    /// has to look for more.
    pub fn take(&self, most: usize) -> (Vec<u64>, bool) {
        let nothing = Done { context: 0, cookie: 0, data: 0, length: 0 };
        let mut into = vec![nothing; most];
        let (count, other) = self.completions.take_n(HANDLE, &mut into, |done| done);
        for done in &into[..count] {
            assert_eq!((done.context, done.data, done.length), (9, 3, 5));
        }
        assert!(into[count..].iter().all(|done| *done == nothing));
        (into[..count].iter().map(|done| done.cookie).collect(), other)
    }

    /// Takes one completion through the slot; `Some(Err(()))` if the slow path is needed.
    pub fn take_one(&self) -> Option<Result<u64, ()>> {
        match self.completions.take(HANDLE) {
            Took::Done(done) => Some(Ok(done.cookie)),
            Took::Nothing => None,
            Took::Other => Some(Err(())),
        }
    }

    /// How many entries the driver has reported to the device as consumed.
    pub fn consumed(&self, scene: &Scene) -> u32 {
        let head = scene.fake.registers().atomic_u32(record(CQ_RECORDS, self.cq.number())).unwrap();
        head.load(Ordering::Acquire)
    }
}

/// An RDMA Read of nothing.
pub fn read(cookie: u64, data: u32) -> Transfer {
    let head = Head::new(Direction::Read, SendFlags::SIGNALED);
    Transfer { head, remote: RemoteWords::default(), shadow: Shadow { cookie, data } }
}

/// A CQ and its queue pair. The requests with tags and cookies 1 to 20 are outstanding.
pub fn posted(scene: &Scene) -> Slotted {
    let mut slotted = scene.slotted(9);
    slotted.to(QpState::Rtr);
    slotted.to(QpState::Rts);
    (0..=20).for_each(|cookie| assert!(slotted.post(HANDLE, |limits| limits.read, cookie).is_some()));
    assert_eq!((slotted.take_one(), slotted.take(4)), (None, (vec![], false)));
    slotted.complete(scene, 0, 0);
    assert_eq!((slotted.take_one(), slotted.consumed(scene)), (Some(Ok(0)), 1));
    assert_eq!((slotted.take_one(), slotted.consumed(scene)), (None, 1));
    slotted
}

/// Brings a queue pair into a state.
pub fn to(qp: &Qp, state: QpState) {
    let modify = ModifyQp { mask: QpMask::STATE.bits(), state: state as u32, ..ModifyQp::default() };
    qp.modify(&modify).unwrap();
}

/// A completion's entry in its CQ.
pub fn entry(qp: &Qp, generation: u32, tag: u32, length: u32, status: u8, flags: u8) -> [u64; 4] {
    [
        u64::from(qp.qpn()) | u64::from(generation) << 32,
        u64::from(tag) | u64::from(length) << 32,
        0,
        u64::from(status) | u64::from(flags) << 8,
    ]
}

/// Posts a Read of 100 bytes.
pub fn send(qp: &Qp, cookie: u64) {
    let segment = Segment { addr: 0, length: 100, key: 0 };
    let operation = Operation::Read { from: Remote::default() };
    let request = Request { operation, flags: SendFlags::SIGNALED, shadow: Shadow { cookie, data: 0 } };
    qp.post(&request, &[segment], |&s| s).unwrap();
}

//! Events of queues: whose they are, and what follows from them.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use common::{Ears, Heard, on_fake};
use host::fake::{Fake, identity, success};
use kernel_agent::{Agent, AsyncEvent, Client, CmEvent, Config, Death, ResolutionEvent, Transports, Upcalls};
use nic_abi::admin::{CreateCq, CreateEq, CreateQp, CreateSrq, Opcode};
use nic_abi::cqe::CqeFlags;
use nic_abi::eqe::EventType;
use roce::cm::{Datagram, sidr};
use roce::wire::datagram::Network;
use roce::{Gid, PKey, ServiceId};
use zerocopy::FromBytes;

/// The commands with this opcode: the object of each, and the arguments.
fn all<T: FromBytes>(fake: &Fake, opcode: Opcode) -> Vec<(u32, T)> {
    let commands = fake.commands.lock().unwrap();
    let found = commands.iter().filter(|command| command.opcode == opcode as u16);
    found.map(|command| (command.object, T::read_from_prefix(&command.args).unwrap().0)).collect()
}

/// An agent on a device that a test plays, and a client of it.
struct Scene {
    fake: Fake,
    agent: Arc<Agent>,
    client: Arc<Client>,
    ears: Arc<Ears>,
    written: u32,
}

impl Scene {
    fn new(config: Config) -> Scene {
        let (fake, agent, client, ears) = on_fake(identity(), config);
        Scene { fake, agent, client, ears, written: 0 }
    }

    /// Writes an event into the queue of asynchronous events, which is the first one.
    fn event(&mut self, kind: EventType, number: u32, generation: u32) {
        let (_, args) = all::<CreateEq>(&self.fake, Opcode::CreateEq).remove(0);
        let words = [kind as u64 | u64::from(number) << 32, generation.into(), 0, 0];
        self.fake.write_entry(args.ring, args.log_entries, self.written, words);
        self.written += 1;
        self.fake.interrupt(0);
    }

    /// Waits for an asynchronous event, and nothing comes before it.
    fn heard(&self, expected: AsyncEvent) {
        let first = self.ears.wait_for("an event", |heard| Some(heard.clone()));
        assert_eq!(first, Heard::Async(expected));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.client.detach();
        self.agent.close();
    }
}

#[test]
fn an_event_of_a_shared_receive_queue_is_for_the_present_owner_of_its_slot() {
    let mut scene = Scene::new(Config { max_srqs: 1, ..Config::default() });
    let pd = scene.client.create_pd().unwrap();
    let mut former: Option<(u32, u32)> = None;
    for context in 5..8 {
        let srq = scene.client.create_srq(&pd, 8, 1, 0, context).unwrap();
        let (number, CreateSrq { generation, .. }) = scene.fake.last(Opcode::CreateSrq);
        if let Some((of, before)) = former {
            assert!(of == number && before != generation);
            scene.event(EventType::SrqLimit, number, before);
        }
        for kind in [EventType::SrqLimit, EventType::SrqError] {
            scene.event(kind, number, generation);
            scene.heard(AsyncEvent::Srq { context, event: kind });
        }
        former = Some((number, generation));
        srq.destroy().unwrap();
    }
}

#[test]
fn a_cq_that_fails_is_its_clients_affair_and_that_of_the_management_queue_pair_ends_the_device() {
    let mut scene = Scene::new(Config::default());
    let cq = scene.client.create_cq(16, 7).unwrap();
    let (number, CreateCq { generation, .. }) = scene.fake.last(Opcode::CreateCq);
    scene.event(EventType::CqError, number, generation + 1);
    scene.event(EventType::CqError, number, generation);
    scene.heard(AsyncEvent::Cq { context: 7 });
    assert_eq!((cq.failed(), scene.agent.death()), (true, None));
    let (number, CreateCq { generation, .. }) = all(&scene.fake, Opcode::CreateCq).remove(0);
    scene.event(EventType::CqError, number, generation);
    let death = scene.ears.wait_for("its death", |heard| match heard {
        Heard::Dead(death) => Some(*death),
        _ => None,
    });
    assert_eq!((death, scene.agent.death()), (Death::Protocol, Some(Death::Protocol)));
}

/// A client that gets an event of completions for each one that it has heard of, and counts them
/// until a peer's question and an asynchronous event have come.
struct Flooded {
    fake: Arc<Fake>,
    /// The ring of the completions' events, and the event.
    ring: OnceLock<(CreateEq, [u64; 4])>,
    written: AtomicU32,
    completions: AtomicU32,
    /// What the first upcall waits for.
    go: Mutex<Receiver<()>>,
    inside: Sender<()>,
    asked: Sender<u32>,
    changed: Sender<u32>,
}

impl Flooded {
    fn write(&self) {
        let (ring, words) = self.ring.get().unwrap();
        let index = self.written.fetch_add(1, Ordering::Relaxed);
        self.fake.write_entry(ring.ring, ring.log_entries, index, *words);
    }
}

impl Upcalls for Flooded {
    fn completion(&self, _: u64) {
        let before = self.completions.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.inside.send(()).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        // The flood ends, for the case that nothing else would.
        if before < 100_000 {
            self.write();
        }
    }

    fn resolution(&self, _: ResolutionEvent<'_>) {
        let _ = self.asked.send(self.completions.load(Ordering::Relaxed));
    }

    fn asynchronous(&self, _: AsyncEvent) {
        let _ = self.changed.send(self.completions.load(Ordering::Relaxed));
    }

    fn connection(&self, _: CmEvent<'_>) {}

    fn catastrophic(&self, _: Death) {}
}

#[test]
fn a_flood_of_events_holds_up_others_until_those_of_now_are_handled_and_no_longer() {
    let fake = Arc::new(Fake::new(identity(), success));
    let config = Config { max_qps: 1, max_cqs: 8, ..Config::default() };
    let agent = Agent::open(fake.platform.clone(), fake.transport(), 0, config).unwrap();
    let ((inside, is_inside), (go, waits)) = (channel(), channel());
    let ((asked, questions), (changed, changes)) = (channel(), channel());
    let flooded = Arc::new(Flooded {
        fake: fake.clone(),
        ring: OnceLock::new(),
        written: AtomicU32::new(0),
        completions: AtomicU32::new(0),
        go: Mutex::new(waits),
        inside,
        asked,
        changed,
    });
    let weak: Weak<dyn Upcalls> = Arc::downgrade(&(flooded.clone() as Arc<dyn Upcalls>));
    let client = agent.attach(weak).unwrap();
    client.listen(ServiceId(1), Transports::RC, 9).unwrap();
    let (number, CreateCq { generation, .. }) = {
        client.create_cq(16, 1).unwrap();
        fake.last(Opcode::CreateCq)
    };
    let queues = all::<CreateEq>(&fake, Opcode::CreateEq);
    let [(_, asynchronous), (_, completions)] = queues[..] else { panic!("{} queues", queues.len()) };
    let event = [EventType::Completion as u64 | u64::from(number) << 32, generation.into(), 0, 0];
    assert!(flooded.ring.set((completions, event)).is_ok());
    flooded.write();
    fake.interrupt(1);
    is_inside.recv().unwrap();
    // The thread that handles events is in an upcall. Meanwhile a peer asks, the port goes down,
    // and more events come than the thread handles at a time.
    let (_, receives) = all::<CreateQp>(&fake, Opcode::CreateQp).remove(0);
    let (_, cq) = all::<CreateCq>(&fake, Opcode::CreateCq).remove(0);
    let entry = fake.memory(receives.receive_ring, 32);
    let buffer = fake.memory(entry.atomic_u64(16).unwrap().load(Ordering::Acquire), 296);
    let question = sidr::ReqRepr {
        request_id: 5,
        pkey: PKey::DEFAULT,
        service_id: ServiceId(1),
        private_data: [0; sidr::REQ_PRIVATE_DATA_LEN],
    };
    let mut grh = [0; 40];
    let [src, dst] = [1, 2].map(|n| Gid::from_ipv4([10, 0, 0, n].into()));
    Network::new(src, dst, 0, 64).unwrap().emit_grh(&mut grh).unwrap();
    buffer.write(0, &grh).unwrap();
    buffer.write(40, &Datagram { tid: 1, message: question.into() }.emit()).unwrap();
    let words = [1 | 1 << 32, 296 << 32, 1 << 32, u64::from(CqeFlags::RECEIVE.bits()) << 8];
    fake.write_entry(cq.ring, cq.log_entries, 0, words);
    (0..256).for_each(|_| flooded.write());
    let down = [EventType::PortDown as u64, 0, 0, 0];
    fake.write_entry(asynchronous.ring, asynchronous.log_entries, 0, down);
    go.send(()).unwrap();
    // The events that were there before the port went down come before that.
    let (before, most) = (changes.recv().unwrap(), 1 << completions.log_entries);
    assert!((257..most + 64).contains(&before), "{before} events before, and room for {most}");
    let before = questions.recv().unwrap();
    let room = (1 << asynchronous.log_entries) + (1 << completions.log_entries);
    assert!((room..3 * room).contains(&before), "{before} events before, and room for {room}");
    client.detach();
    agent.close();
}

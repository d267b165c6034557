//! A peer that floods QP1 gets no more than its share, and other peers still connect.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use common::raw::RawPeer;
use common::*;
use host::{CountedHeap, Machine};
use kernel_agent::{
    Agent, AsyncEvent, Client, CmEvent, CmEventKind, ConnectionId, Death, ResolutionEvent, Transports,
    Upcalls,
};
use roce::cm::{CommId, Message, rej};
use roce::{Gid, ServiceId};

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

/// What a flood may add to the heap. One datagram needs a few hundred bytes.
const ALLOWANCE: usize = 384 << 10;

/// A client that takes its time for each upcall and never answers. It records the heap.
#[derive(Default)]
struct Slow {
    upcalls: AtomicUsize,
    most: AtomicUsize,
    /// Whether it discards the connection requests that it gets.
    discards: AtomicBool,
    client: Mutex<Option<Weak<Client>>>,
}

impl Slow {
    fn attach(agent: &Arc<Agent>) -> (Arc<Slow>, Arc<Client>) {
        let slow = Arc::new(Slow::default());
        let upcalls: Arc<dyn Upcalls> = slow.clone();
        let client = agent.attach(Arc::downgrade(&upcalls)).unwrap();
        *slow.client.lock().unwrap() = Some(Arc::downgrade(&client));
        (slow, client)
    }

    fn count(&self) {
        self.upcalls.fetch_add(1, Ordering::Relaxed);
        self.most.fetch_max(HEAP.used(), Ordering::Relaxed);
        for _ in 0..10_000 {
            std::hint::spin_loop();
        }
    }
}

impl Upcalls for Slow {
    fn completion(&self, _: u64) {}

    fn asynchronous(&self, _: AsyncEvent) {}

    fn connection(&self, event: CmEvent<'_>) {
        self.count();
        if self.discards.load(Ordering::Relaxed) && matches!(event.kind, CmEventKind::Request { .. }) {
            let client = self.client.lock().unwrap().as_ref().and_then(Weak::upgrade);
            client.unwrap().discard(event.connection).unwrap();
        }
    }

    fn resolution(&self, _: ResolutionEvent<'_>) {
        self.count();
    }

    fn catastrophic(&self, _: Death) {}
}

const SERVICE: ServiceId = ServiceId(77);

struct Scene {
    _machine: Machine,
    agent: Arc<Agent>,
    honest: (Node, Node),
    slow: (Arc<Slow>, Arc<Client>),
    raw: RawPeer,
    gid: Gid,
}

impl Scene {
    /// An agent with two honest clients and a slow one that listens; the flooding peer is on
    /// another NIC.
    fn new() -> Scene {
        let machine = Machine::new(2);
        let agent = open(&machine, 0);
        let raw = RawPeer::open(&machine, 1);
        let honest = (Node::new(&machine, &agent), Node::new(&machine, &agent));
        let slow = Slow::attach(&agent);
        slow.1.listen(SERVICE, Transports::RC, 0).unwrap();
        let gid = Gid(agent.identity().gids[1]);
        Scene { _machine: machine, agent, honest, slow, raw, gid }
    }

    /// Sends 10,000 rounds of what `make` returns. Meanwhile the honest clients connect again and
    /// again. Returns what the flood added to the heap.
    fn flood(&mut self, make: impl Fn(&RawPeer, Gid, u32) -> Vec<Message>) -> usize {
        let before = HEAP.used();
        self.slow.0.most.store(before, Ordering::Relaxed);
        for id in 1..=10_000 {
            for message in make(&self.raw, self.gid, id) {
                self.raw.send(self.gid, u64::from(id), message);
            }
            if id % 5_000 == 0 {
                self.connect(id);
            }
        }
        self.raw.flush();
        self.connect(1);
        assert!(self.slow.0.upcalls.load(Ordering::Relaxed) > 0, "the flood did not arrive");
        assert_eq!(self.agent.death(), None);
        self.slow.0.most.load(Ordering::Relaxed) - before
    }

    fn connect(&mut self, service: u32) {
        let (a, b) = &self.honest;
        let (qa, ca, qb, _): (_, ConnectionId, _, _) = connect(a, b, 1_000_000 + u64::from(service));
        a.client.disconnect(ca, b"").unwrap();
        b.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
        a.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
        qa.destroy().unwrap();
        qb.destroy().unwrap();
    }

    fn end(self) {
        let Scene { _machine, agent, honest, slow, raw, .. } = self;
        slow.1.detach();
        honest.0.client.detach();
        honest.1.client.detach();
        assert_eq!(agent.counts(), Default::default());
        drop(raw);
        agent.close();
    }
}

/// The tests take turns, since each looks at the whole heap.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn a_flood_of_resolution_requests_takes_a_bounded_part_of_the_heap() {
    let _turn = turn();
    let mut scene = Scene::new();
    let grown = scene.flood(|raw, _, id| vec![raw.resolution(SERVICE, id)]);
    assert!(grown < ALLOWANCE, "{grown} bytes");
    assert!(scene.agent.counts().resolutions <= 64);
    scene.end();
}

#[test]
fn a_flood_of_requests_that_are_withdrawn_takes_a_bounded_part_of_the_heap() {
    let _turn = turn();
    let mut scene = Scene::new();
    let grown = scene.flood(|raw, to, id| {
        let withdrawn = rej::Repr {
            local_comm_id: CommId(id),
            remote_comm_id: CommId(0),
            rejected: rej::Rejected::Other,
            ari_len: 0,
            reason: rej::Reason::TIMEOUT,
            ari: [0; rej::ARI_LEN],
            private_data: [0; rej::PRIVATE_DATA_LEN],
        };
        vec![raw.request(to, SERVICE, id), Message::Rej(withdrawn)]
    });
    // Requests whose withdrawal was lost wait for their timers: half of a backlog at most.
    assert!(grown < ALLOWANCE + (2048 << 10), "{grown} bytes");
    assert!(scene.agent.counts().connections <= 2048);
    scene.end();
}

#[test]
fn requests_that_a_client_has_no_room_for_leave_nothing_behind() {
    let _turn = turn();
    let mut scene = Scene::new();
    scene.slow.0.discards.store(true, Ordering::Relaxed);
    let grown = scene.flood(|raw, to, id| vec![raw.request(to, SERVICE, id)]);
    assert!(grown < ALLOWANCE, "{grown} bytes");
    // What is left was not taken from QP1 yet.
    while scene.agent.counts().connections > 0 {
        std::thread::yield_now();
    }
    scene.end();
}

//! How much memory a connected endpoint takes that does nothing: heap of the API, the agent and the
//! driver, and DMA memory. docs/embed.md states these figures.

extern crate ferrovia_privileged_api as privileged_api;

use host::{CountedHeap, Machine};
use kernel_agent::{Agent, Config};
use privileged_api::*;

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

/// Pairs of endpoints that are connected before memory is counted, and while it is.
const BEFORE: usize = 8;
const PAIRS: usize = 500;
/// The most bytes of heap for an endpoint, beside 16 bytes for each request and receive.
const HEAP_OF_AN_ENDPOINT: usize = 2048;
/// Requests and receives of an endpoint.
const DEPTH: usize = 4;
const PATIENCE: u64 = 30_000_000;

/// An IA on which pairs of endpoints are connected.
struct Scene {
    ia: Ia,
    pz: PzHandle,
    completions: EvdHandle,
    connections: EvdHandle,
    requests: EvdHandle,
    path: Path,
}

const SERVICE: ConnQual = ConnQual::service_id(77);

impl Scene {
    fn new(ia: Ia) -> Scene {
        let pz = ia.pz_create().unwrap();
        let evd = |stream, size| ia.evd_create(stream, EvdFlags::empty(), size, 1, EvdHandle::NULL).unwrap();
        let completions = evd(EventType::DTO_EVENT_STREAM, 64);
        let connections = evd(EventType::CM_MSG_EVENT_STREAM, 16);
        let requests = evd(EventType::CM_REQ_EVENT_STREAM, 16);
        let info = ia.ia_query().unwrap();
        let spigot = &info.spigot_info[0];
        ia.listen_create(spigot.spigot_id, requests, ListenFlags::CONN_QUAL_INPUT, Some(&SERVICE)).unwrap();
        let path = ia.get_pathinfo(spigot.spigot_id, &spigot.net_addr[0], 1).unwrap().0[0];
        Scene { ia, pz, completions, connections, requests, path }
    }

    fn endpoint(&self) -> EpHandle {
        let attributes = EpAttributes {
            max_dto_payload_size: 4096,
            max_request_dtos: DEPTH,
            max_recv_dtos: DEPTH,
            max_send_segments: 1,
            max_recv_segments: 1,
            rc: RcAttributes {
                max_rdma_read_segments: 1,
                max_rdma_write_segments: 1,
                ..RcAttributes::default()
            },
            ..EpAttributes::default()
        };
        let Scene { pz, completions, connections, .. } = *self;
        self.ia
            .ep_rc_create(pz, completions, completions, connections, EpFlags::empty(), &attributes)
            .unwrap()
    }

    fn connect(&self) -> [EpHandle; 2] {
        let (a, b) = (self.endpoint(), self.endpoint());
        self.ia.ep_connect(a, &self.path, None, &SERVICE, CnEstFlags::TWO_WAY, &[]).unwrap();
        let Event::ConnRequest(request) = self.ia.evd_wait(self.requests, PATIENCE).unwrap().0 else {
            panic!("not a request");
        };
        self.ia.ep_accept(b, request.cn_est_id, &[]).unwrap();
        for _ in 0..2 {
            let event = self.ia.evd_wait(self.connections, PATIENCE).unwrap().0;
            assert!(matches!(event, Event::ConnEstablished { .. }), "{event:?}");
        }
        [a, b]
    }
}

// One test: the heap is counted for the whole process.
#[test]
fn an_idle_connected_endpoint_takes_little_memory_beside_its_queues() {
    let machine = Machine::new(1);
    let platform = machine.platform();
    let agent = Agent::open(platform.clone(), machine.transport(0), 0, Config::default()).unwrap();
    let provider = Provider::new(platform.clone());
    provider.add("rnic0", agent.clone()).unwrap();
    let before = machine.arena().lent();
    let ia = provider.ia_create("rnic0", 2, 1, Some(machine.privileged())).unwrap();
    let scene = Scene::new(ia);
    let mut endpoints = Vec::with_capacity(BEFORE + PAIRS);
    endpoints.extend((0..BEFORE).map(|_| scene.connect()));
    let (heap, lent) = (HEAP.used_by_driver(), machine.arena().lent());
    endpoints.extend((0..PAIRS).map(|_| scene.connect()));
    let heap = HEAP.used_by_driver().saturating_sub(heap) / (2 * PAIRS);
    let dma = (machine.arena().lent() - lent) / (2 * PAIRS);
    println!("a connected endpoint: {heap} bytes of heap, {dma} of DMA memory");
    let most = HEAP_OF_AN_ENDPOINT + 2 * 16 * DEPTH;
    assert!(heap <= most, "{heap} bytes of heap");
    // The rings: 64 bytes a request and 32 a receive, and less than a page that is not full.
    assert!(dma <= DEPTH * (64 + 32) + 8, "{dma} bytes of DMA memory");
    for ep in endpoints.into_iter().flatten() {
        scene.ia.ep_free(ep).unwrap();
    }
    scene.ia.ia_free().unwrap();
    drop(scene);
    // After an upcall the dispatcher thread has the completion queue for a moment longer.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while machine.arena().lent() != before {
        let left = machine.arena().lent() - before;
        assert!(std::time::Instant::now() < deadline, "{left} bytes of DMA memory are left");
        std::thread::yield_now();
    }
    agent.close();
}

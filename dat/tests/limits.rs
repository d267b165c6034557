//! Bounds that take thousands of objects to reach. docs/bounds.md lists them.

use std::cell::Cell;

use ferrovia_dat::*;
use host::Machine;
use kernel_agent::{Agent, Config};
use privileged_api as it;

/// Longer than any event of these tests takes, in microseconds.
const PATIENCE: u32 = 60_000_000;
/// The most unanswered requests of an IA, and the most remote endpoints that it has resolved.
const MOST: usize = 4096;

struct World {
    _machine: Machine,
    provider: it::Provider,
    ia: Ia,
}

impl World {
    fn new() -> World {
        let machine = Machine::new(1);
        let provider = it::Provider::new(machine.platform());
        let device = machine.transports().into_iter().next().expect("a NIC");
        let agent = Agent::open(machine.platform(), device, 0, Config::default()).expect("an agent");
        provider.add("rnic0", agent).expect("a name");
        let (ia, _) = ia_open(&provider, "rnic0", machine.privileged(), 8, EvdHandle::NULL).expect("an IA");
        World { _machine: machine, provider, ia }
    }

    fn address(&self) -> IaAddress {
        let (_, attr, _) = self.ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE).unwrap();
        attr.unwrap().ia_address
    }

    fn evd(&self, flags: EvdFlags) -> EvdHandle {
        self.ia.evd_create(64, CnoHandle::NULL, flags).unwrap()
    }

    fn next(&self, evd: EvdHandle, number: EventNumber) -> Event {
        let (event, _) = self.ia.evd_wait(evd, PATIENCE, 1).unwrap();
        assert_eq!(event.event_number, number);
        event
    }

    /// Takes the event of a request for a datagram endpoint.
    fn request(&self, evd: EvdHandle) -> CrHandle {
        cr(&self.next(evd, EventNumber::IB_UD_CONNECTION_REQUEST))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Nothing depends on the result.
        let _ = self.ia.ia_close(CloseFlags::Abrupt);
    }
}

fn cr(event: &Event) -> CrHandle {
    match event.event_data {
        EventData::CrArrival(arrival) => arrival.cr_handle,
        other => panic!("not a request: {other:?}"),
    }
}

/// The error of a call that one object more needs.
fn is_full(refused: &Error) -> bool {
    refused.kind() == ErrorType::InsufficientResources
}

/// A datagram endpoint, and the event dispatcher of its connection events.
struct End<'a> {
    world: &'a World,
    ep: EpHandle,
    connect: EvdHandle,
}

impl End<'_> {
    fn new(world: &World, pz: PzHandle) -> End<'_> {
        let (completions, connect) = (world.evd(EvdFlags::DTO), world.evd(EvdFlags::CONNECTION));
        let attr = EpAttr { service_type: ServiceType::IB_UD, ..EpAttr::default() };
        let ep = world.ia.ep_create(pz, completions, completions, connect, Some(&attr)).unwrap();
        End { world, ep, connect }
    }

    fn ask(&self, conn_qual: u64) -> Result<()> {
        let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::Default);
        let to = self.world.address();
        self.world.ia.ep_connect(self.ep, to, conn_qual, PATIENCE, &[], qos, flags)
    }

    /// Takes the address of the remote endpoint.
    fn resolved(&self) -> AhHandle {
        let event = self.world.next(self.connect, EventNumber::IB_UD_CONNECTION_ESTABLISHED);
        event.extension.unwrap().remote_ah.ah
    }
}

#[test]
fn an_ia_has_room_for_4096_resolved_endpoints() {
    let world = World::new();
    let pz = world.ia.pz_create().unwrap();
    let requests = world.evd(EvdFlags::CR);
    let (conn_qual, _) = world.ia.psp_create_any(requests, PspFlags::Consumer).unwrap();
    let (asking, asked) = (End::new(&world, pz), End::new(&world, pz));
    let mut last = (AhHandle::NULL, AhHandle::NULL);
    // Both sides are of this IA, so each time two are resolved.
    for _ in 0..MOST / 2 {
        asking.ask(conn_qual).unwrap();
        world.ia.cr_accept(world.request(requests), asked.ep, &[]).unwrap();
        last = (asking.resolved(), asked.resolved());
    }
    assert!(is_full(&asking.ask(conn_qual).unwrap_err()));
    world.ia.ib_ud_ah_free(asking.ep, last.0).unwrap();
    asking.ask(conn_qual).unwrap();
    // The request stays, and can be accepted when there is room.
    let cr = world.request(requests);
    // More often than the event dispatcher has room for events.
    for _ in 0..100 {
        let refused = world.ia.cr_accept(cr, asked.ep, &[]).unwrap_err();
        assert!(is_full(&refused) && refused.subtype() != Subtype::ResourceTevd, "{refused:?}");
    }
    world.ia.ib_ud_ah_free(asked.ep, last.1).unwrap();
    world.ia.cr_accept(cr, asked.ep, &[]).unwrap();
    asking.resolved();
    asked.resolved();
}

#[test]
fn an_agent_resolves_64_endpoints_at_a_time() {
    let world = World::new();
    let pz = world.ia.pz_create().unwrap();
    let requests = world.evd(EvdFlags::CR);
    let (conn_qual, _) = world.ia.psp_create_any(requests, PspFlags::Consumer).unwrap();
    let (asking, asked) = (End::new(&world, pz), End::new(&world, pz));
    let mut unanswered = Vec::new();
    for _ in 0..64 {
        asking.ask(conn_qual).unwrap();
        unanswered.push(world.request(requests));
    }
    assert!(is_full(&asking.ask(conn_qual).unwrap_err()));
    // The refused one changed nothing: one that ends makes room for one.
    world.ia.cr_accept(unanswered[0], asked.ep, &[]).unwrap();
    asking.resolved();
    asking.ask(conn_qual).unwrap();
    world.request(requests);
    assert!(is_full(&asking.ask(conn_qual).unwrap_err()));
}

#[test]
fn an_ia_has_room_for_1024_cnos_and_as_many_service_points() {
    let world = World::new();
    let requests = world.evd(EvdFlags::CR);
    let cnos: Vec<CnoHandle> = (0..1024).map(|_| world.ia.cno_create(None).unwrap()).collect();
    assert!(is_full(&world.ia.cno_create(None).unwrap_err()));
    world.ia.cno_free(cnos[7]).unwrap();
    world.ia.cno_create(None).unwrap();
    let create = |conn_qual| world.ia.psp_create(conn_qual, requests, PspFlags::Consumer);
    let points: Vec<PspHandle> = (0..1024).map(|n| create(5000 + n).unwrap()).collect();
    assert!(is_full(&create(4999).unwrap_err()));
    world.ia.psp_free(points[7]).unwrap();
    create(4999).unwrap();
}

/// The other face asks, so that no endpoint is needed for each request.
struct Peer {
    ia: it::Ia,
    replies: it::EvdHandle,
    path: it::Path,
    qualifier: it::ConnQual,
}

impl Peer {
    fn new(world: &World, conn_qual: u64) -> Peer {
        let ia = world.provider.ia_create("rnic0", 2, 0, None).unwrap();
        let (stream, policy) = (it::EventType::CM_MSG_EVENT_STREAM, it::EvdFlags::OVERFLOW_DEFAULT);
        let replies = ia.evd_create(stream, policy, 64, 1, it::EvdHandle::NULL).unwrap();
        let to = ia.ia_query().unwrap().spigot_info[0].net_addr[0];
        let (paths, _) = ia.get_pathinfo(1, &to, 1).unwrap();
        Peer { ia, replies, path: paths[0], qualifier: it::ConnQual::service_id(conn_qual) }
    }

    fn ask(&self) -> it::UdSvcReqHandle {
        let (qualifier, path) = (&self.qualifier, &self.path);
        let request = self.ia.ud_service_request_handle_create(qualifier, self.replies, path, &[]).unwrap();
        self.ia.ud_service_request(request).unwrap();
        request
    }

    /// The answer, if it has come.
    fn answer(&self) -> Option<it::UdSvcStatus> {
        match self.ia.evd_dequeue(self.replies) {
            Ok(it::Event::UdServiceReply(reply)) => Some(reply.status),
            Err(it::Error::QueueEmpty) => None,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_ia_keeps_4096_unanswered_requests() {
    let world = World::new();
    let requests = world.evd(EvdFlags::CR);
    let (conn_qual, _) = world.ia.psp_create_any(requests, PspFlags::Consumer).unwrap();
    let peer = Peer::new(&world, conn_qual);
    let first = Cell::new(CrHandle::NULL);
    for _ in 0..MOST {
        let request = peer.ask();
        first.set(world.request(requests));
        peer.ia.ud_service_request_handle_free(request).unwrap();
    }
    // One more is rejected, and the consumer gets no event of it.
    let request = peer.ask();
    let status = loop {
        assert_eq!(world.ia.evd_dequeue(requests), Err(ErrorType::QueueEmpty.into()));
        if let Some(status) = peer.answer() {
            break status;
        }
    };
    assert_eq!(status, it::UdSvcStatus::NoEpAvailable);
    peer.ia.ud_service_request_handle_free(request).unwrap();
    // When one was answered, there is room for another.
    world.ia.cr_reject(first.get(), &[]).unwrap();
    let request = peer.ask();
    world.ia.cr_reject(world.request(requests), &[]).unwrap();
    let status = loop {
        if let Some(status) = peer.answer() {
            break status;
        }
    };
    assert_eq!(status, it::UdSvcStatus::Rejected);
    peer.ia.ud_service_request_handle_free(request).unwrap();
    peer.ia.ia_free().unwrap();
}

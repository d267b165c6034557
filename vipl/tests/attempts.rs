//! Attempts to connect that fail late, against a peer that speaks to the agent itself.

extern crate ferrovia_vipl as vipl;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kernel_agent::{
    AcceptParams, AsyncEvent, Client, CmEvent, CmEventKind, ConnectParams, ConnectionId, Death, Handshake,
    LinkFlags, Reliability, Transports, Upcalls, Vi,
};
use rdma::via::Discriminator;
use roce::cm::ReadDepths;
use roce::{Gid, Path, ServiceId};
use vipl::*;

mod support;
use support::*;

const NONE: [CqHandle; 2] = [CqHandle::NULL; 2];
const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// The service of the discriminator "server".
fn service() -> ServiceId {
    Discriminator::new(b"server").unwrap().service()
}

type Heard = (ConnectionId, CmEventKind, Vec<u8>);

struct Upcall(Sender<Heard>);

impl Upcalls for Upcall {
    fn completion(&self, _: u64) {}
    fn asynchronous(&self, _: AsyncEvent) {}
    fn connection(&self, event: CmEvent<'_>) {
        // Nobody listens at the end of a test.
        let _ = self.0.send((event.connection, event.kind, event.private_data.to_vec()));
    }
    fn catastrophic(&self, _: Death) {}
}

/// A client of the second agent, with a virtual interface.
struct Raw {
    client: Arc<Client>,
    vi: Arc<Vi>,
    heard: Receiver<Heard>,
    _upcalls: Arc<Upcall>,
}

impl Raw {
    fn new(world: &World) -> Raw {
        let (sender, heard) = channel();
        let upcalls = Arc::new(Upcall(sender));
        let weak: Weak<dyn Upcalls> = Arc::downgrade(&(upcalls.clone() as Arc<dyn Upcalls>));
        let client = world.agents[1].attach(weak).unwrap();
        let pd = client.create_pd().unwrap();
        let attributes = kernel_agent::ViAttributes {
            reliability: Reliability::Delivery,
            max_transfer: 4096,
            access: LinkFlags::empty(),
        };
        let vi = client.create_vi(&pd, &attributes, [None; 2], [4; 2], 0).unwrap();
        client.listen(service(), Transports::RC, 0).unwrap();
        Raw { client, vi, heard, _upcalls: upcalls }
    }

    fn hear(&self, pick: impl Fn(&CmEventKind) -> bool) -> Heard {
        loop {
            let heard = self.heard.recv_timeout(Duration::from_millis(PATIENCE.into())).expect("an event");
            if pick(&heard.1) {
                return heard;
            }
        }
    }

    /// A request of a virtual interface on the first NIC.
    fn request(&self) -> Heard {
        self.hear(|kind| matches!(kind, CmEventKind::Request { .. }))
    }

    /// Asks the first NIC for a connection, and waits for the accept.
    fn asks(&self, world: &World, request: &[u8]) -> ConnectionId {
        let [to, from] = [0, 1].map(|nic| host(world, nic));
        let params = ConnectParams {
            depths: ReadDepths::default(),
            ..ConnectParams::new(Path::new(from, to), service())
        };
        let id = self.client.connect(&self.vi, &params, Handshake::ThreeWay, request).unwrap();
        self.hear(|kind| matches!(kind, CmEventKind::AcceptArrived { .. }));
        id
    }
}

/// A virtual interface on the first NIC, with a receive, and its peer. The request that it made of
/// the peer, for the discriminator "server".
fn scene(world: &World) -> (Side, Raw, NetAddress) {
    let side = Side::new(world, 0, LEVEL, NONE);
    side.descriptor(0).receive(&[]).unwrap();
    side.post_recv(0);
    let server = NetAddress::new(&host(world, 1).0, b"server").unwrap();
    (side, Raw::new(world), server)
}

/// The address of a NIC.
fn host(world: &World, nic: usize) -> Gid {
    let gids = world.agents[nic].identity().gids;
    *gids.iter().map(|&gid| Gid(gid)).collect::<Vec<_>>().iter().find(|gid| gid.to_ipv4().is_some()).unwrap()
}

fn is_untouched(side: &Side) {
    assert_eq!((side.state(), side.nic.recv_done(side.vi)), (ViState::Idle, Err(Error::NotDone)));
    assert_eq!(side.descriptor(0).status(), Status::empty());
}

#[test]
fn receives_stay_posted_if_the_attempt_fails_after_the_accept() {
    let world = World::new(2);
    let (side, raw, server) = scene(&world);
    let own = side.nic.address(b"client").unwrap();
    // The reply does not fit.
    let request = std::thread::scope(|threads| {
        let attempt = threads.spawn(|| side.nic.connect_request(side.vi, &own, &server, PATIENCE));
        let (id, _, request) = raw.request();
        raw.client.accept(id, &raw.vi, &AcceptParams::default(), b"?").unwrap();
        assert_eq!(attempt.join().unwrap(), Err(Error::ErrorResource));
        request
    });
    is_untouched(&side);
    raw.vi.give_up().unwrap();
    // The client that is accepted gives up.
    let here = side.nic.address(b"server").unwrap();
    std::thread::scope(|threads| {
        let accept = threads.spawn(|| {
            let request = side.nic.connect_wait(&here, None, PATIENCE).unwrap();
            side.nic.connect_accept(request.conn, side.vi)
        });
        let id = raw.asks(&world, &request);
        raw.client.reject(id, b"").unwrap();
        assert_eq!(accept.join().unwrap(), Err(Error::Timeout));
    });
    is_untouched(&side);
    // The next connection uses the receive.
    let peer = Side::new(&world, 0, LEVEL, NONE);
    connect(&peer, &side, b"server");
    peer.descriptor(0).send(&[], None).unwrap();
    peer.post_send(0);
    assert!(is_success(peer.sent(0)) && is_success(side.received(0)));
    raw.client.detach();
    done(&world, &[&side, &peer]);
}

#[test]
fn a_request_asks_for_the_traffic_class_of_the_quality_of_service() {
    let world = World::new(2);
    let (side, raw, server) = scene(&world);
    let own = side.nic.address(b"client").unwrap();
    let (_, attributes) = side.nic.query_vi(side.vi).unwrap();
    for (priority, class) in [(0, 0), (3, 0x60), (7, 0xe0)] {
        side.nic.set_vi_attributes(side.vi, &ViAttributes { qos: Qos(priority), ..attributes }).unwrap();
        std::thread::scope(|threads| {
            let attempt = threads.spawn(|| side.nic.connect_request(side.vi, &own, &server, PATIENCE));
            let (id, kind, _) = raw.request();
            raw.client.reject(id, b"").unwrap();
            assert_eq!(attempt.join().unwrap(), Err(Error::Reject));
            assert!(
                matches!(kind, CmEventKind::Request { path, .. } if path.traffic_class == class),
                "{kind:?}"
            );
        });
    }
    raw.client.detach();
    done(&world, &[&side]);
}

#[test]
fn an_attempt_needs_the_address_of_one_host_in_the_family_of_its_own() {
    let world = World::new(2);
    let side = Side::new(&world, 0, LEVEL, NONE);
    let own = side.nic.address(b"client").unwrap();
    let link_local = world.agents[0].identity().gids[0];
    assert!(Gid(link_local).to_ipv4().is_none());
    let v6 = NetAddress::new(&link_local, b"client").unwrap();
    let multicast_v6 = [0xff; 16];
    let other_v6 = world.agents[1].identity().gids[0];
    for (own, remote) in [
        (&own, &[224, 0, 0, 1][..]),
        (&own, &[0; 4]),
        (&own, &multicast_v6),
        (&own, &other_v6),
        (&own, &[]),
        (&v6, &host(&world, 1).0),
        (&v6, &multicast_v6),
        (&v6, &[0; 16]),
    ] {
        let remote = NetAddress::new(remote, b"server").unwrap();
        let attempt = side.nic.connect_request(side.vi, own, &remote, 1);
        assert_eq!(attempt, Err(Error::InvalidParameter), "{own:?} and {remote:?}");
        assert_eq!(side.state(), ViState::Idle);
    }
    // There is no server, but the addresses are good.
    let server = NetAddress::new(&other_v6, b"server").unwrap();
    assert_ne!(side.nic.connect_request(side.vi, &v6, &server, 1), Err(Error::InvalidParameter));
    done(&world, &[&side]);
}

//! Datagrams.

use std::hint::black_box;

use privileged_api::{
    AhFlags, DgRemoteEpAddr, EpAttributes, EpHandle, EpParamMask, EvdHandle, RemoteEpInfo, UdAttributes,
};

use crate::calls;
use crate::samples::Recorder;
use crate::world::World;

pub const ROWS: &[&str] = &["post_sendto", "post_recvfrom", "dequeue_ud"];

const DEPTH: usize = 16;
const KEY: u32 = 0x1234_5678;

/// A datagram endpoint for `depth` requests of each kind.
pub fn endpoint(world: &World, requests: EvdHandle, receives: EvdHandle, depth: usize) -> EpHandle {
    let attributes = EpAttributes {
        max_dto_payload_size: 512,
        max_request_dtos: depth,
        max_recv_dtos: depth,
        max_send_segments: 1,
        max_recv_segments: 1,
        ud: UdAttributes { ep_info: RemoteEpInfo { ud_ep_id: 0, ud_ep_key: KEY } },
        ..EpAttributes::default()
    };
    let created = world.ia.ep_ud_create(world.pz, requests, receives, &attributes, world.spigot);
    created.expect("a datagram endpoint")
}

/// The address of a datagram endpoint.
pub fn address(world: &World, ep: EpHandle) -> DgRemoteEpAddr {
    let addr = world.ia.address_handle_create(world.pz, &world.path, AhFlags::PATH_COMPLETE);
    let ep_info = world.ia.ep_query(ep, EpParamMask::ALL).expect("a query").attr.ud.ep_info;
    black_box(DgRemoteEpAddr::IbUd { addr: addr.expect("an address handle"), ep_info })
}

pub fn count(rows: &mut Recorder) {
    let world = World::new();
    let (requests, receives) = (world.evd(64), world.evd(64));
    let (a, b) = (endpoint(&world, requests, receives, DEPTH), endpoint(&world, requests, receives, DEPTH));
    let to = address(&world, b);
    let with = world.arguments(1);
    // The Receive has room for the header, too.
    let mut room = world.arguments(1);
    room.segments[0].length = 256;
    let receive = || calls::receive_from(&world.ia, b, &room);
    let send = || calls::send_to(&world.ia, a, &with, &to);
    let reap = |evd| world.reap(evd);
    world.paused(|device| {
        for counts in [false, false, false, true] {
            if counts {
                rows.count("post_recvfrom", 1, receive)
            } else {
                receive()
            }
            device.step();
            if counts {
                rows.count("post_sendto", 1, send)
            } else {
                send()
            }
            device.step();
            if counts {
                rows.count("dequeue_ud", 1, || reap(receives))
            } else {
                reap(receives)
            }
            reap(requests);
        }
    });
}

//! The sockets of an IA over iWARP, at their bound.

extern crate ferrovia_privileged_api as privileged_api;

mod support;

use privileged_api::*;
use rdma::{Nic, Stream, Transport};
use support::{Side, World, attributes};

const PORT: u16 = 4711;
/// The most sockets of an IA.
const MOST: i32 = 1024;

#[test]
fn an_ia_has_so_many_sockets_and_a_descriptor_that_is_freed_is_used_again() {
    let world = World::new(1);
    let agent = &world.agents[0];
    world.provider.add_iwarp("iwarp", agent.clone(), Limits::NONE).unwrap();
    let ia = world.provider.ia_create("iwarp", 2, 1, Some(world.machine.privileged())).unwrap();
    let nic = Nic::open_over(agent, Transport::Iwarp).unwrap();
    let listener = nic.listen_for_streams(PORT).unwrap();
    let streams = || -> [Stream; 2] {
        let connecting = nic.connect_stream(nic.address(), PORT);
        let accepted = listener.wait().unwrap();
        [connecting.wait().unwrap(), accepted]
    };
    // The device has no memory for so many streams. A descriptor outlives its stream, which a
    // conversion that is given up ends.
    let side = Side::new(ia.clone(), attributes());
    let add = || {
        let [stream, _peer] = streams();
        let sd = ia.socket_add(stream)?;
        ia.socket_convert(sd, side.ep, ScFlags::empty(), b"x").unwrap();
        ia.ep_disconnect(side.ep, &[]).unwrap();
        ia.evd_dequeue(side.connection).unwrap();
        ia.ep_reset(side.ep).unwrap();
        Ok(sd)
    };
    for sd in 0..MOST {
        assert_eq!(add(), Ok(sd));
    }
    let [beyond, peer] = streams();
    assert_eq!(ia.socket_add(beyond), Err(Error::Resources));
    // It was closed.
    assert_eq!(peer.receive(&mut [0]).wait(), Ok(0));
    for sd in [7, 700] {
        ia.socket_close(sd).unwrap();
        assert_eq!(ia.socket_close(sd), Err(Error::InvalidSd));
    }
    assert_eq!([add(), add(), add()], [Ok(7), Ok(700), Err(Error::Resources)]);
    drop((listener, peer));
    ia.ia_free().unwrap();
}

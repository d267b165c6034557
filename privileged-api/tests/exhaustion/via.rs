//! The calls that make or change objects of an IA over VIA, and those that make connections there.

use std::sync::Arc;

use platform::DmaBuffer;

use super::*;

/// The qualifier of the tests.
const SERVICE: ConnQual = ConnQual::port(0x1234);

fn attributes() -> EpAttributes {
    EpAttributes::default()
}

/// The calls that differ from those over InfiniBand.
fn calls(world: &World, ia: &Ia, buffer: &Arc<DmaBuffer>) {
    let pz = ia.pz_create().unwrap();
    let create = || {
        let (memory, length) = (LmrMemory::buffer(buffer), buffer.len() as u64);
        ia.lmr_create(pz, memory, length, AddrMode::Absolute, MemPriv::LOCAL, LmrFlags::NONE, 0)
    };
    each_request(world, ia, "lmr_create", create, |(lmr, _)| ia.lmr_free(lmr));
    let create = || ia.evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::empty(), 64, 1, EvdHandle::NULL);
    each_request(world, ia, "evd_create", create, |evd| ia.evd_free(evd));
    let (requests, receives) = (evd(ia, EventType::DTO_EVENT_STREAM), evd(ia, EventType::DTO_EVENT_STREAM));
    let messages = evd(ia, EventType::CM_MSG_EVENT_STREAM);
    let many = EpAttributes { max_request_dtos: 1000, max_recv_dtos: 1000, ..attributes() };
    for (attr, [requests, receives]) in [
        (attributes(), [requests, receives]),
        (many, [requests, receives]),
        (attributes(), [requests, requests]),
    ] {
        let create = || ia.ep_rc_create(pz, requests, receives, messages, EpFlags::empty(), &attr);
        each_request(world, ia, "ep_rc_create", create, |ep| ia.ep_free(ep));
    }
    let size = |sevd_queue_size| EvdParam { sevd_queue_size, ..EvdParam::default() };
    let grow = || ia.evd_modify(requests, EvdParamMask::QUEUE_SIZE, &size(5000));
    each_request(world, ia, "evd_modify", grow, |()| Ok(()));
    each_request(world, ia, "ia_query", || ia.ia_query().map(drop), |()| Ok(()));
    let address = ia.ia_query().unwrap().spigot_info[0].net_addr[0];
    let paths = || ia.get_pathinfo(1, &address, 4).map(drop);
    each_request(world, ia, "get_pathinfo", paths, |()| Ok(()));
    for evd in [requests, receives, messages] {
        ia.evd_free(evd).unwrap();
    }
    ia.pz_free(pz).unwrap();
}

/// Connects with a call of each kind that runs out of memory, posts without memory, and resets.
fn connects(world: &World, a: &Side, b: &Side) {
    let arrivals = evd(&b.ia, EventType::CM_REQ_EVENT_STREAM);
    let listen = || {
        let flags = ListenFlags::CONN_QUAL_INPUT;
        b.ia.listen_create(1, arrivals, flags, Some(&SERVICE)).map(|(listen, _)| listen)
    };
    each_request(world, &b.ia, "listen_create", listen, |listen| b.ia.listen_free(listen));
    let listening = listen().unwrap();
    let address = b.ia.ia_query().unwrap().spigot_info[0].net_addr[0];
    let (paths, _) = a.ia.get_pathinfo(1, &address, 1).unwrap();
    let state = || (a.state(), b.state(), a.ia.object_counts(), b.ia.object_counts());
    let ask = || a.ia.ep_connect(a.ep, &paths[0], None, &SERVICE, CnEstFlags::TWO_WAY, &[]);
    until_it_succeeds("ep_connect", state, ask);
    let Event::ConnRequest(request) = b.wait(arrivals) else { panic!("not a request") };
    until_it_succeeds("ep_accept", state, || b.ia.ep_accept(b.ep, request.cn_est_id, &[]));
    for side in [a, b] {
        let event = side.wait(side.connection);
        assert!(matches!(event, Event::ConnEstablished { .. }), "{event:?}");
    }
    let posted = CountedHeap::ending_after(0, || {
        b.ia.post_recv(b.ep, &[], 1, DtoFlags::COMPLETION)?;
        a.ia.post_send(a.ep, &[], 2, DtoFlags::COMPLETION)
    });
    assert_eq!(posted, Ok(()), "posts need no memory");
    assert_eq!(a.completion(a.requests).cookie, 2);
    assert_eq!(b.completion(b.receives).cookie, 1);
    let ended = CountedHeap::ending_after(0, || a.ia.ep_disconnect(a.ep, &[]));
    assert_eq!(ended, Ok(()));
    for side in [a, b] {
        let event = side.wait(side.connection);
        assert!(matches!(event, Event::ConnDisconnect { .. }), "{event:?}");
        let state = || (side.state(), side.ia.object_counts());
        until_it_succeeds("ep_reset", state, || side.ia.ep_reset(side.ep));
    }
    b.ia.listen_free(listening).unwrap();
    b.ia.evd_free(arrivals).unwrap();
}

#[test]
fn a_call_over_via_without_memory_fails_and_changes_nothing() {
    let world = World::new(1);
    world.provider.add_via("via", world.agents[0].clone(), Limits::NONE).unwrap();
    let privileged = Some(world.machine.privileged());
    let create = || world.provider.ia_create("via", 2, 1, privileged);
    let buffer = world.buffer(8192);
    let ia = create().unwrap();
    for _ in 0..2 {
        calls(&world, &ia, &buffer);
    }
    each_request(&world, &ia, "ia_create", create, |made| made.ia_free());
    let (a, b) = (Side::new(ia.clone(), attributes()), Side::new(create().unwrap(), attributes()));
    for _ in 0..2 {
        connects(&world, &a, &b);
    }
    for ia in [&a.ia, &b.ia] {
        ia.ia_free().unwrap();
        assert_eq!(ia.object_counts(), ObjectCounts::default());
    }
    world.agents[0].close();
    assert_eq!(world.agents[0].counts(), kernel_agent::Counts::default());
    let arena = world.machine.arena().clone();
    drop((a, b, ia, buffer, world));
    assert_eq!(arena.lent(), 0, "DMA memory");
}

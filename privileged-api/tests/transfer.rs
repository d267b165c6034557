//! Sends, RDMA Writes and RDMA Reads between IAs of one NIC and of two NICs.

extern crate ferrovia_privileged_api as privileged_api;

mod support;

use privileged_api::*;
use support::*;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn all_ways(world: &World, a: &Side, b: &Side) {
    const LEN: usize = 10_000;
    let (from, to) = (world.buffer(LEN), world.buffer(LEN));
    let (source, _) = a.lmr(&from, MemPriv::LOCAL);
    let (sink, context) = b.lmr(&to, MemPriv::LOCAL | MemPriv::REMOTE);
    let context = context.unwrap();
    let local = LmrTriplet::new(source, from.addr() as u64, LEN as u64);
    let remote = make_rdma_addr_absolute(to.addr());
    let mut got = vec![0; LEN];

    // Send and Receive.
    let sent = pattern(LEN, 1);
    from.write(0, &sent).unwrap();
    b.ia.post_recv(b.ep, &[LmrTriplet::new(sink, to.addr() as u64, LEN as u64)], 11, SIGNALED).unwrap();
    a.ia.post_send(a.ep, &[local], 12, SIGNALED).unwrap();
    let done = a.success(a.requests);
    assert_eq!((done.cookie, done.event_number, done.ep), (12, EventType::DTO_SEND_CMPL, a.ep));
    let done = b.success(b.receives);
    assert_eq!((done.cookie, done.event_number), (11, EventType::DTO_RC_RECV_CMPL));
    assert_eq!(done.transferred_length as usize, LEN);
    to.read(0, &mut got).unwrap();
    assert_eq!(got, sent);

    // RDMA Write from a linked region.
    let sent = pattern(LEN, 2);
    from.write(0, &sent).unwrap();
    let linked = a.ia.lmr_create_unlinked(a.pz, 4, LmrFlags::empty(), 0).unwrap();
    assert!(!a.ia.lmr_query(linked, LmrParamMask::LINKED).unwrap().linked);
    let mut elements = Vec::new();
    let mut at = 0;
    while at < from.len() {
        let (io, mapped) = a.ia.mem_map(from.addr() + at, ASPACE_KERNEL, 4096.min(from.len() - at)).unwrap();
        assert!(mapped > 0);
        elements.push(io);
        at += mapped;
    }
    let list = Iobl::pages(&elements, 4096, 0);
    let linking = a.ia.lmr_link(
        linked,
        0,
        &list,
        LEN as u64,
        AddrMode::Relative,
        MemPriv::LOCAL | MemPriv::REMOTE_READ,
        a.ep,
        21,
        SIGNALED,
    );
    let remote_read = linking.unwrap().unwrap();
    a.ia.post_rdma_write(a.ep, &[LmrTriplet::new(linked, 0, LEN as u64)], 22, SIGNALED, remote, context)
        .unwrap();
    assert_eq!(a.success(a.requests).event_number, EventType::LMR_LINK_CMPL);
    assert_eq!(a.success(a.requests).event_number, EventType::DTO_RDMA_WRITE_CMPL);
    to.read(0, &mut got).unwrap();
    assert_eq!(got, sent);
    let query = a.ia.lmr_query(linked, LmrParamMask::ALL).unwrap();
    assert!(query.linked && query.iobl_num_elts >= 4);
    assert_eq!(query.rmr_context, Some(remote_read));
    assert_eq!((query.length, query.addr_mode), (LEN as u64, AddrMode::Relative));
    assert_eq!(query.addr as u64, elements[0].0);

    // RDMA Read of the linked region by the peer.
    to.write(0, &vec![0; LEN]).unwrap();
    let sink_segment = LmrTriplet::new(sink, to.addr() as u64, LEN as u64);
    b.ia.post_rdma_read(b.ep, &[sink_segment], 31, SIGNALED, make_rdma_addr_relative(0), remote_read)
        .unwrap();
    assert_eq!(b.success(b.requests).event_number, EventType::DTO_RDMA_READ_CMPL);
    to.read(0, &mut got).unwrap();
    assert_eq!(got, sent);

    // RDMA Write from the direct LMR handle.
    let sent = pattern(LEN, 3);
    from.write(0, &sent).unwrap();
    let mut at = 0;
    while at < LEN {
        let (io, mapped) = a.ia.mem_map(from.addr() + at, ASPACE_KERNEL, LEN - at).unwrap();
        let to_addr = make_rdma_addr_absolute(to.addr() + at);
        let segment = LmrTriplet::direct(io, mapped as u64);
        a.ia.post_rdma_write(a.ep, &[segment], 41, SIGNALED, to_addr, context).unwrap();
        a.success(a.requests);
        a.ia.mem_unmap(io, mapped).unwrap();
        assert_eq!(a.ia.mem_unmap(io, mapped), Err(Error::Fault));
        at += mapped;
    }
    to.read(0, &mut got).unwrap();
    assert_eq!(got, sent);

    // Unlink, and link again.
    a.ia.lmr_unlink(linked, a.ep, 51, SIGNALED | DtoFlags::UNLINK_FENCE).unwrap();
    assert_eq!(a.success(a.requests).event_number, EventType::LMR_LINK_CMPL);
    assert!(!a.ia.lmr_query(linked, LmrParamMask::LINKED).unwrap().linked);
    let privs = MemPriv::LOCAL_READ;
    let again = a.ia.lmr_link(linked, 0, &list, 1, AddrMode::Relative, privs, a.ep, 52, SIGNALED).unwrap();
    assert_eq!(again, None);
    a.success(a.requests);
    a.ia.lmr_free(linked).unwrap();
    assert_eq!(a.ia.lmr_free(linked), Err(Error::InvalidLmr));
}

#[test]
fn data_moves_between_ias_of_one_nic() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0]);
    all_ways(&world, &a, &b);
    done(&world, &[&a, &b]);
}

#[test]
fn data_moves_between_ias_of_two_nics() {
    let world = World::new(2);
    let (a, b) = pair(&world, [0, 1]);
    all_ways(&world, &a, &b);
    done(&world, &[&a, &b]);
}

#[test]
fn a_freed_region_is_a_completion_error_and_breaks_the_connection() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0]);
    let buffer = world.buffer(64);
    let (lmr, _) = a.lmr(&buffer, MemPriv::LOCAL);
    a.ia.lmr_free(lmr).unwrap();
    let segment = LmrTriplet::new(lmr, buffer.addr() as u64, 64);
    a.ia.post_send(a.ep, &[segment], 1, DtoFlags::empty()).unwrap();
    let done_event = a.completion(a.requests);
    assert_eq!((done_event.cookie, done_event.dto_status), (1, DtoStatus::LocalProtection));
    // The state has changed already, and the one event is queued.
    assert_eq!(a.state(), EpState::Rc(EpStateRc::Nonoperational));
    assert_eq!(a.wait(a.connection), Event::ConnBroken { evd: a.connection, ep: a.ep });
    // Requests that are posted now are flushed.
    a.ia.post_send(a.ep, &[], 2, SIGNALED).unwrap();
    assert_eq!(a.completion(a.requests).dto_status, DtoStatus::Flushed);
    let event = b.wait(b.connection);
    assert!(matches!(event, Event::ConnDisconnect { .. } | Event::ConnBroken { .. }), "{event:?}");
    // After a reset the endpoint can be connected again.
    a.ia.ep_reset(a.ep).unwrap();
    b.ia.ep_reset(b.ep).unwrap();
    connect(&a, &b);
    a.ia.post_send(a.ep, &[], 3, DtoFlags::empty()).unwrap();
    assert_eq!(a.ia.evd_wait(a.connection, 0).unwrap_err(), Error::TimeoutExpired, "a second event");
    done(&world, &[&a, &b]);
}

#[test]
fn the_direct_handle_and_links_need_a_privileged_endpoint() {
    let world = World::new(1);
    let plain = EpAttributes { priv_ops_enable: false, ..attributes() };
    for link in [false, true] {
        let (a, b) = (Side::new(world.ia(0), plain), Side::new(world.ia(0), plain));
        connect(&a, &b);
        let buffer = world.buffer(4096);
        let (io, _) = a.ia.mem_map(buffer.addr(), 0, 4096).unwrap();
        let expected = if link {
            let lmr = a.ia.lmr_create_unlinked(a.pz, 1, LmrFlags::empty(), 0).unwrap();
            let list = [io];
            let list = Iobl::pages(&list, 4096, 0);
            let mode = AddrMode::Relative;
            a.ia.lmr_link(lmr, 0, &list, 4096, mode, MemPriv::LOCAL, a.ep, 1, SIGNALED).unwrap();
            DtoStatus::LocalMmOperation
        } else {
            a.ia.post_send(a.ep, &[LmrTriplet::direct(io, 64)], 1, SIGNALED).unwrap();
            DtoStatus::LocalProtection
        };
        assert_eq!(a.completion(a.requests).dto_status, expected);
        done(&world, &[&a, &b]);
    }
    let ia = world.unprivileged(0);
    let a = Side::new(ia, plain);
    let buffer = world.buffer(4096);
    assert_eq!(a.ia.mem_map(buffer.addr(), 0, 1), Err(Error::NoPermission));
    assert_eq!(a.ia.lmr_create_unlinked(a.pz, 1, LmrFlags::empty(), 0), Err(Error::NoPermission));
    assert_eq!(a.ia.evd_callback_attach(a.requests, Box::new(|_, _| {})), Err(Error::NoPermission));
    let created =
        a.ia.ep_rc_create(a.pz, a.requests, a.receives, a.connection, EpFlags::empty(), &attributes());
    assert_eq!(created, Err(Error::NoPermission));
    done(&world, &[&a]);
}

#[test]
fn a_failed_link_leaves_the_old_one_valid() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0]);
    let (c, d) = (Side { ep: a.ep, ..Side::new(a.ia.clone(), attributes()) }, 0);
    let _ = (&c, d);
    let buffer = world.buffer(8192);
    let (io, _) = a.ia.mem_map(buffer.addr(), 0, 8192).unwrap();
    let lmr = a.ia.lmr_create_unlinked(a.pz, 2, LmrFlags::empty(), 0).unwrap();
    let list = [io, IoAddr(io.0 + 4096)];
    let list = Iobl::pages(&list, 4096, 0);
    let link = |length| {
        let privs = MemPriv::LOCAL | MemPriv::REMOTE_WRITE;
        a.ia.lmr_link(lmr, 0, &list, length, AddrMode::Relative, privs, a.ep, 9, DtoFlags::empty()).unwrap()
    };
    let first = link(8192).unwrap();
    // The region is linked already. The request completes in error, although no completion was
    // requested.
    link(4096);
    assert_eq!(a.completion(a.requests).dto_status, DtoStatus::LocalMmOperation);
    let query = a.ia.lmr_query(lmr, LmrParamMask::ALL).unwrap();
    assert!(query.linked);
    assert_eq!((query.length, query.rmr_context), (8192, Some(first)));
    // The old link still serves local use by another endpoint of the zone.
    let event = b.wait(b.connection);
    assert!(!matches!(event, Event::ConnEstablished { .. }));
    a.ia.ep_reset(a.ep).unwrap();
    b.ia.ep_reset(b.ep).unwrap();
    assert!(matches!(a.wait(a.connection), Event::ConnBroken { .. }));
    connect(&a, &b);
    let sink = world.buffer(64);
    let (sink_lmr, _) = b.lmr(&sink, MemPriv::LOCAL);
    b.ia.post_recv(b.ep, &[LmrTriplet::new(sink_lmr, sink.addr() as u64, 64)], 1, SIGNALED).unwrap();
    a.ia.post_send(a.ep, &[LmrTriplet::new(lmr, 8128, 64)], 1, SIGNALED).unwrap();
    a.success(a.requests);
    b.success(b.receives);
    done(&world, &[&a, &b]);
}

#[test]
fn a_batch_whose_routine_panics_posts_nothing_and_leaves_the_queue() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0]);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        a.ia.post_batch(a.ep, |batch| {
            batch.post_send(&[], 1, SIGNALED)?;
            panic!("on purpose");
            #[expect(unreachable_code, reason = "the type of the routine")]
            Ok(())
        })
    }));
    assert!(panicked.is_err());
    b.ia.post_recv(b.ep, &[], 9, SIGNALED).unwrap();
    a.ia.post_batch(a.ep, |batch| batch.post_send(&[], 2, SIGNALED)).unwrap();
    assert_eq!(a.success(a.requests).cookie, 2);
    assert_eq!(b.success(b.receives).cookie, 9);
    done(&world, &[&a, &b]);
}

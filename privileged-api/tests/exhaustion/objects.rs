//! The calls that make, change or query objects of one IA.

use std::sync::Arc;

use platform::DmaBuffer;

use super::*;

#[expect(unsafe_code, reason = "the call under test")]
fn raw(ia: &Ia, pz: PzHandle, buffer: &DmaBuffer) -> Result<(LmrHandle, Option<RmrContext>)> {
    let (addr, length, mode) = (buffer.addr(), buffer.len() as u64, AddrMode::Absolute);
    // SAFETY: the buffer outlives the region.
    unsafe { ia.lmr_create_raw(pz, addr, length, mode, MemPriv::LOCAL, LmrFlags::NONE, 0) }
}

/// All calls that make an object of an IA, twice: tables grow the first time.
fn calls(world: &World, ia: &Ia, buffer: &Arc<DmaBuffer>) {
    let free = |handle: PzHandle| ia.pz_free(handle);
    each_request(world, ia, "pz_create", || ia.pz_create(), free);
    let pz = ia.pz_create().unwrap();
    let length = buffer.len() as u64;
    for flags in [LmrFlags::NONE, LmrFlags::NON_SHAREABLE, LmrFlags::SHARED] {
        let create = || {
            let memory = LmrMemory::buffer(buffer);
            ia.lmr_create(pz, memory, length, AddrMode::Absolute, MemPriv::LOCAL, flags, 1)
        };
        each_request(world, ia, "lmr_create", create, |(lmr, _)| ia.lmr_free(lmr));
    }
    each_request(world, ia, "lmr_create_raw", || raw(ia, pz, buffer), |(lmr, _)| ia.lmr_free(lmr));
    let create = || ia.lmr_create_unlinked(pz, 8, LmrFlags::NONE, 0);
    each_request(world, ia, "lmr_create_unlinked", create, |lmr| ia.lmr_free(lmr));
    for kind in [RmrType::Wide, RmrType::Narrow] {
        each_request(world, ia, "rmr_create", || ia.rmr_create(pz, kind), |rmr| ia.rmr_free(rmr));
    }
    each_request(world, ia, "srq_create", || ia.srq_create(pz, 2, 64), |srq| ia.srq_free(srq));
    for stream in [
        EventType::DTO_EVENT_STREAM,
        EventType::CM_REQ_EVENT_STREAM,
        EventType::CM_MSG_EVENT_STREAM,
        EventType::ASYNC_AFF_EVENT_STREAM,
        EventType::ASYNC_UNAFF_EVENT_STREAM,
        EventType::SOFTWARE_EVENT_STREAM,
        EventType::AEVD_NOTIFICATION_EVENT_STREAM,
    ] {
        let create = || ia.evd_create(stream, EvdFlags::empty(), 64, 1, EvdHandle::NULL);
        each_request(world, ia, "evd_create", create, |evd| ia.evd_free(evd));
    }
    let aggregate = EventType::AEVD_NOTIFICATION_EVENT_STREAM;
    let aggregate = ia.evd_create(aggregate, EvdFlags::empty(), 0, 0, EvdHandle::NULL).unwrap();
    let create = || ia.evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::empty(), 64, 1, aggregate);
    each_request(world, ia, "evd_create, feeding", create, |evd| ia.evd_free(evd));
    ia.evd_free(aggregate).unwrap();

    let (requests, receives) = (evd(ia, EventType::DTO_EVENT_STREAM), evd(ia, EventType::DTO_EVENT_STREAM));
    let messages = evd(ia, EventType::CM_MSG_EVENT_STREAM);
    let create = || ia.ep_rc_create(pz, requests, receives, messages, EpFlags::empty(), &attributes());
    each_request(world, ia, "ep_rc_create", create, |ep| ia.ep_free(ep));
    let many = EpAttributes { max_request_dtos: 1000, max_recv_dtos: 1000, ..attributes() };
    let create = || ia.ep_rc_create(pz, requests, receives, messages, EpFlags::empty(), &many);
    each_request(world, ia, "ep_rc_create", create, |ep| ia.ep_free(ep));
    let create = || {
        let attr = EpAttributes { max_dto_payload_size: 1024, ..EpAttributes::default() };
        ia.ep_ud_create(pz, requests, receives, &attr, 1)
    };
    each_request(world, ia, "ep_ud_create", create, |ep| ia.ep_free(ep));

    let path = path(ia, ia);
    let create = || ia.address_handle_create(pz, &path, AhFlags::PATH_COMPLETE);
    each_request(world, ia, "address_handle_create", create, |address| ia.address_handle_free(address));
    let create = || {
        let fd = EvdFlags::CREATE_FD;
        ia.evd_create(EventType::SOFTWARE_EVENT_STREAM, fd, 4, 1, EvdHandle::NULL)
    };
    each_request(world, ia, "evd_create, with a notification", create, |evd| ia.evd_free(evd));

    // Queues that grow.
    let size = |sevd_queue_size| EvdParam { sevd_queue_size, ..EvdParam::default() };
    for evd in [requests, messages] {
        let grow = || ia.evd_modify(evd, EvdParamMask::QUEUE_SIZE, &size(500));
        each_request(world, ia, "evd_modify", grow, |()| Ok(()));
        ia.evd_modify(evd, EvdParamMask::QUEUE_SIZE, &size(64)).unwrap();
    }
    let srq = ia.srq_create(pz, 2, 16).unwrap();
    let grow = || {
        let param = SrqParam { max_recv_dtos: 500, ..SrqParam::default() };
        ia.srq_modify(srq, SrqParamMask::MAX_RECV_DTO, &param)
    };
    each_request(world, ia, "srq_modify", grow, |()| Ok(()));
    ia.srq_free(srq).unwrap();
    each_request(world, ia, "ia_query", || ia.ia_query().map(drop), |()| Ok(()));
    let refused = CountedHeap::ending_after(0, || ia.ia_query().map(drop));
    assert_eq!(refused, Err(Error::Resources));
    let address = ia.ia_query().unwrap().spigot_info[0].net_addr[0];
    let paths = || ia.get_pathinfo(1, &address, 4).map(drop);
    each_request(world, ia, "get_pathinfo", paths, |()| Ok(()));
    for evd in [requests, receives, messages] {
        ia.evd_free(evd).unwrap();
    }
    ia.pz_free(pz).unwrap();
}

#[test]
fn a_call_without_memory_fails_and_changes_nothing() {
    let world = World::new(1);
    let buffer = world.buffer(8192);
    let ia = world.ia(0);
    for _ in 0..2 {
        calls(&world, &ia, &buffer);
    }
    let privileged = Some(world.machine.privileged());
    let create = || world.provider.ia_create("rnic0", 2, 1, privileged);
    each_request(&world, &ia, "ia_create", create, |made| made.ia_free());
    ia.ia_free().unwrap();
    world.agents[0].close();
    assert_eq!(world.agents[0].counts(), kernel_agent::Counts::default());
    let arena = world.machine.arena().clone();
    drop((ia, buffer, world));
    assert_eq!(arena.lent(), 0, "DMA memory");
}

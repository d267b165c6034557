//! Endpoints over VIA under load, at their end, and on a device that dies.

use nic_abi::admin::Injection;
use privileged_api::*;

use super::{open, open_pair, page};
use crate::events::callback::count;
use crate::events::evd::PLAIN;
use crate::fixture::{End, OPEN, PAGE, Pair, SIGNALLED, WAIT, sevd};
use crate::thread::{Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // Two threads stream messages in both directions, each message completes once and in order.
    test("via_ia_life::streams", &[], |f| {
        let v = f.over_via()?;
        let (pair, own, peer) = open_pair(&v)?;
        // Both have their Receives before the first Send.
        let ends = [(pair.a, own), (pair.b, peer)];
        for (end, region) in &ends {
            for cookie in 0..8 {
                let into = region.segment(64 * cookie as usize, 64);
                end.ia.post_recv(end.ep, &[into], cookie, DtoFlags::COMPLETION)?;
            }
        }
        let mut running = alloc::vec::Vec::new();
        for (end, region) in ends {
            running.push(Thread::spawn(v.platform(), "data", move || go_on(&end, 200, &region))?);
        }
        for thread in running {
            thread.join()??;
        }
        Ok(())
    }),
    // The free of an endpoint forgets its completions, and those of other endpoints stay.
    test("via_ia_life::completions_of_a_freed_endpoint", &["it_ep_free B02"], |f| {
        let v = f.over_via()?;
        let stream = EventType::DTO_EVENT_STREAM;
        let (both, recv) = (sevd(&v.a, stream, 64, THRESHOLD_DISABLE)?, sevd(&v.a, stream, 64, 1)?);
        let pair = || -> core::result::Result<Pair, Failure> {
            let pair = Pair { a: v.end_on(&v.a, &open(), both, recv)?, b: v.end(&v.b, &open())? };
            v.connect(&pair.a, &pair.b)?;
            Ok(pair)
        };
        let (stays, goes) = (pair()?, pair()?);
        for (pair, cookie, flags) in [(&goes, 1, SIGNALLED), (&stays, 2, PLAIN), (&goes, 3, SIGNALLED)] {
            v.b.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
            v.a.post_send(pair.a.ep, &[], cookie, flags)?;
            pair.b.recv_done(cookie, DtoStatus::Success)?;
        }
        check!(eventually(v.platform(), || v.a.evd_queued(both) == Ok(3)), "not all complete");
        v.a.ep_free(goes.a.ep)?;
        // No notification event is left.
        let failure = v.a.evd_wait(both, 0).map(drop);
        refused(failure, WaitError { error: Error::TimeoutExpired, nmore: 1 })?;
        check_eq!(v.a.evd_dequeue(both)?.dto().map(|done| done.cookie), Some(2));
        refused(v.a.evd_dequeue(both), Error::QueueEmpty)
    }),
    // An endpoint is freed with requests and Receives outstanding, and an IA with all that is on
    // it: nothing is left, and the peer learns that the connection is over.
    test("via_ia_life::freed_under_load", &[], |f| {
        let v = f.over_via()?;
        for ends_ia in [false, true] {
            let ia = match ends_ia {
                true => f.over_via()?.a,
                false => v.a.clone(),
            };
            let (active, passive) = (v.end(&ia, &open())?, v.end(&v.b, &open())?);
            let (own, peer) = (page(&v, &active)?, page(&v, &passive)?);
            v.connect(&active, &passive)?;
            for cookie in 0..32 {
                ia.post_recv(active.ep, &[own.segment(0, 64)], cookie, DtoFlags::COMPLETION)?;
                ia.post_rdma_write(
                    active.ep,
                    &[own.whole()],
                    cookie,
                    SIGNALLED,
                    peer.remote(0),
                    peer.context()?,
                )?;
            }
            if ends_ia {
                ia.ia_free()?;
            } else {
                ia.ep_free(active.ep)?;
                refused(ia.post_send(active.ep, &[], 1, SIGNALLED), Error::InvalidEp)?;
                refused(ia.ep_reset(active.ep), Error::InvalidEp)?;
                active.idle()?;
            }
            let number = passive.event()?.event_number();
            let over = [EventType::CM_MSG_CONN_DISCONNECT, EventType::CM_MSG_CONN_BROKEN];
            check!(over.contains(&number), "{number:?}");
            v.b.ep_free(passive.ep)?;
        }
        Ok(())
    }),
    // A callback on an EVD of completions runs for those of virtual interfaces; an aggregate
    // collects them.
    test("via_ia_life::callbacks_and_aggregates", &[], |f| {
        let v = f.over_via()?;
        let (pair, own, peer) = open_pair(&v)?;
        let called = count(&v, pair.a.recv)?;
        for round in 1..=5 {
            v.a.post_recv(pair.a.ep, &[own.segment(0, 8)], round, DtoFlags::COMPLETION)?;
            v.b.post_send(pair.b.ep, &[peer.segment(0, 8)], round, DtoFlags::empty())?;
            called.wait(round as u32)?;
            let event = v.a.evd_dequeue(pair.a.recv)?;
            check!(matches!(event, Event::Dto(done) if done.cookie == round), "{event:?}");
            refused(v.a.evd_dequeue(pair.a.recv), Error::QueueEmpty)?;
        }
        v.a.evd_callback_detach(pair.a.recv)?;
        let kind = EventType::AEVD_NOTIFICATION_EVENT_STREAM;
        let gathering = v.a.evd_create(kind, EvdFlags::empty(), 0, 0, EvdHandle::NULL)?;
        let dto =
            v.a.evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 64, 1, gathering)?;
        let other =
            v.a.evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 64, 1, gathering)?;
        let (active, passive) = (v.end_on(&v.a, &open(), dto, other)?, v.end(&v.b, &open())?);
        let (own, peer) = (page(&v, &active)?, page(&v, &passive)?);
        v.connect(&active, &passive)?;
        v.a.post_recv(active.ep, &[own.segment(0, 8)], 1, DtoFlags::COMPLETION)?;
        v.a.post_rdma_write(active.ep, &[own.segment(0, 8)], 2, SIGNALLED, peer.remote(0), peer.context()?)?;
        v.b.post_send(passive.ep, &[peer.segment(0, 8)], 3, SIGNALLED)?;
        let mut cookies = [0; 2];
        for cookie in &mut cookies {
            let (event, _) = v.a.evd_wait(gathering, WAIT)?;
            let Event::Dto(done) = event else { return Err(Failure::new("not a completion")) };
            *cookie = done.cookie;
        }
        cookies.sort_unstable();
        check_eq!(cookies, [1, 2]);
        refused(v.a.evd_dequeue(gathering), Error::QueueEmpty)
    }),
    // Immediate data of a Send goes along as VIA's own. A Write with such data is refused: the
    // receiver would not learn of its length.
    test("via_ia_life::immediate_data", &[], |f| {
        let v = f.over_via()?;
        let (pair, own, peer) = open_pair(&v)?;
        v.b.post_recv(pair.b.ep, &[peer.segment(0, 8)], 1, DtoFlags::COMPLETION)?;
        let (to, context, segment) = (peer.remote(100), peer.context()?, own.segment(0, 8));
        let write = v.a.post_rdma_write_immediate(pair.a.ep, &[segment], 4, SIGNALLED, to, context, 9);
        refused(write, Error::OpNotSupported)?;
        v.a.post_send_immediate(pair.a.ep, &[segment], 3, SIGNALLED, 0x1234_5678)?;
        let (found, _) = v.b.evd_wait_extended(pair.b.recv, WaitFor::Events(1), WAIT)?;
        check!(matches!(found.event, Event::Dto(done) if done.cookie == 1), "{found:?}");
        check_eq!(found.immediate, Some(Immediate { data: 0x1234_5678, written: None }));
        let found = v.a.evd_wait_extended(pair.a.request, WaitFor::Events(1), WAIT)?.0;
        check!(matches!(found.event, Event::Dto(done) if done.cookie == 3), "{found:?}");
        check_eq!(found.posted, Posted::IMMEDIATE);
        pair.a.idle()?;
        pair.b.idle()
    }),
    // A region keeps its handle when its privileges change, here as at the peer.
    test("via_ia_life::modified_regions", &[], |f| {
        let v = f.over_via()?;
        let (pair, own, peer) = open_pair(&v)?;
        let params = LmrParam { privs: MemPriv::LOCAL, ..LmrParam::default() };
        v.a.lmr_modify(own.lmr, LmrParamMask::MEM_PRIV, &params)?;
        own.fill(5);
        v.a.post_rdma_write(pair.a.ep, &[own.segment(0, 8)], 1, SIGNALLED, peer.remote(0), peer.context()?)?;
        pair.a.done(1, DtoStatus::Success)?;
        check_eq!(peer.bytes(0, 8), own.bytes(0, 8));
        Ok(())
    }),
    // The sizes of queues of completions change while endpoints feed them.
    test("via_ia_life::resized_queues", &[], |f| {
        let v = f.over_via()?;
        let dto = sevd(&v.a, EventType::DTO_EVENT_STREAM, 4, 1)?;
        let (active, passive) = (v.end_on(&v.a, &open(), dto, dto)?, v.end(&v.b, &open())?);
        let (own, peer) = (page(&v, &active)?, page(&v, &passive)?);
        v.connect(&active, &passive)?;
        for (round, size) in [300, 8, 1000, 64].into_iter().enumerate() {
            for cookie in 0..8 {
                v.a.post_rdma_write(
                    active.ep,
                    &[own.segment(0, 8)],
                    cookie,
                    SIGNALLED,
                    peer.remote(0),
                    peer.context()?,
                )?;
            }
            check!(eventually(v.platform(), || v.a.evd_queued(dto) == Ok(8)), "round {round}");
            let wanted = EvdParam { sevd_queue_size: size, ..EvdParam::default() };
            v.a.evd_modify(dto, EvdParamMask::QUEUE_SIZE, &wanted)?;
            check!(v.a.evd_query(dto, EvdParamMask::ALL)?.sevd_queue_size >= size);
            let fewer = EvdParam { sevd_queue_size: 4, ..EvdParam::default() };
            refused(v.a.evd_modify(dto, EvdParamMask::QUEUE_SIZE, &fewer), Error::InvalidQueueSize)?;
            for cookie in 0..8 {
                active.done(cookie, DtoStatus::Success)?;
            }
        }
        active.idle()
    }),
];

/// Goes on with an endpoint that has eight Receives posted, as its peer.
fn go_on(end: &End, messages: u64, region: &crate::fixture::Region) -> Outcome {
    let End { ia, ep, .. } = end;
    let (mut sent, mut completed, mut received) = (0, 0, 0);
    while completed < messages || received < messages {
        // The peer has posted as many Receives as it has received messages, and eight. It has
        // received at least what it had when it sent what arrived here last.
        while sent < messages && sent < received + 4 && sent < completed + 4 {
            ia.post_send(*ep, &[region.segment(1024, 32)], sent, SIGNALLED)?;
            sent += 1;
        }
        if completed < sent {
            let done = end.reap()?;
            check_eq!((done.cookie, done.dto_status), (completed, DtoStatus::Success));
            completed += 1;
        }
        if received < messages {
            let done = end.reap_recv()?;
            check_eq!((done.cookie, done.dto_status), (received % 8, DtoStatus::Success));
            let again = region.segment(64 * done.cookie as usize, 64);
            ia.post_recv(*ep, &[again], done.cookie, DtoFlags::COMPLETION)?;
            received += 1;
        }
    }
    Ok(())
}

/// Those that leave a dead device behind.
pub(crate) const DEATHS: &[Test] = &[
    // When the device dies, waiters return, posts fail, and the IA can be freed.
    test("via_ia_life::death", &[], |f| {
        let v = f.over_via()?;
        let (pair, own, _) = open_pair(&v)?;
        let region = v.region(&v.a, pair.a.pz, PAGE, OPEN)?;
        let (ia, recv) = (v.a.clone(), pair.a.recv);
        let waiter =
            Thread::spawn(v.platform(), "waiter", move || ia.evd_wait(recv, TIMEOUT_INFINITE).map(drop))?;
        v.a.post_recv(pair.a.ep, &[own.segment(0, 8)], 1, DtoFlags::COMPLETION)?;
        match v.setup.a.agent.test_handle().inject(0, Injection::Fail, 1, 0) {
            Ok(()) | Err(kernel_agent::Error::DeviceDead(_)) => {}
            Err(error) => return Err(Failure::new(alloc::format!("{error:?}"))),
        }
        let error = waiter.join()?.err().map(|failure| failure.error);
        check_eq!(error, Some(Error::IaCatastrophe));
        let posted = v.a.post_send(pair.a.ep, &[region.segment(0, 8)], 2, SIGNALLED);
        refused(posted, Error::IaCatastrophe)?;
        refused(v.a.ep_free(pair.a.ep), Error::IaCatastrophe)?;
        v.a.ia_free()?;
        Ok(())
    })
    .kills(),
];

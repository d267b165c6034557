//! Endpoints that take their Receives from a shared receive queue (dat_ep_create_with_srq).

use alloc::vec::Vec;
use core::result::Result;

use dat::*;

use super::world::*;
use crate::fixture::PAGE;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// A shared receive queue in a zone of its own, with a page of memory in that zone.
pub(crate) struct Queue {
    pub(crate) pz: PzHandle,
    pub(crate) srq: SrqHandle,
    pub(crate) memory: Region,
}

/// A queue on `b`.
#[track_caller]
pub(crate) fn queue(w: &World<'_>) -> Result<Queue, Failure> {
    let pz = w.b.pz_create()?;
    let srq = w.b.srq_create(pz, &SrqAttr::default())?;
    Ok(Queue { pz, srq, memory: w.region_in(&w.b, pz, PAGE, OPEN)? })
}

/// An endpoint on `a`, connected to an endpoint on `b` that takes its Receives from the queue and
/// has its own zone.
#[track_caller]
pub(crate) fn client(w: &World<'_>, q: &Queue) -> Result<(End, End), Failure> {
    let far = w.end(&w.a, &attributes())?;
    let own = w.end_with_srq(&w.b, w.b.pz_create()?, q.srq, &attributes())?;
    w.connect(&far, &own)?;
    Ok((far, own))
}

/// Sends an empty message and takes the completion of the Send.
#[track_caller]
pub(crate) fn message(from: &End, cookie: u64) -> Outcome {
    from.send(&[], cookie)?;
    from.done(cookie, DtoStatus::Success)?;
    Ok(())
}

/// How many Receives of the queue are outstanding.
#[track_caller]
pub(crate) fn outstanding(ia: &Ia, srq: SrqHandle) -> Result<i32, Failure> {
    Ok(ia.srq_query(srq)?.outstanding_dto_count)
}

/// Ends a connection, resets both endpoints, and connects them again. The connection is broken
/// already if a request has failed.
#[track_caller]
pub(crate) fn reconnect(w: &World<'_>, active: &End, passive: &End) -> Outcome {
    for end in [active, passive] {
        end.ia.ep_disconnect(end.ep, CloseFlags::Abrupt)?;
        let number = next(&end.ia, end.connect)?.event_number;
        let ends = [EventNumber::CONNECTION_DISCONNECTED, EventNumber::CONNECTION_BROKEN];
        check!(ends.contains(&number), "{number:?}");
    }
    for end in [active, passive] {
        end.ia.ep_reset(end.ep)?;
        check_eq!(end.state()?, EpState::Unconnected);
    }
    w.connect(active, passive)
}

/// The zone and the event dispatchers with which an endpoint was created.
fn parts(end: &End) -> (PzHandle, EvdHandle, EvdHandle, EvdHandle) {
    (end.pz, end.recv, end.request, end.connect)
}

/// The zone and the event dispatchers that a query returns.
fn parts_of(param: &EpParam) -> (PzHandle, EvdHandle, EvdHandle, EvdHandle) {
    (param.pz_handle, param.recv_evd_handle, param.request_evd_handle, param.connect_evd_handle)
}

pub(crate) const TESTS: &[Test] = &[
    // Endpoints of one queue take their Receives from it, in the order of the messages. Each
    // completion comes on the event dispatcher of the endpoint that received the message.
    test(
        "dat_srq::receives_come_from_the_queue",
        &["dat_ep_create_with_srq B01 B07 B11 B15 F01 F02 F06 S01"],
        |f| {
            world(f, |w| {
                let q = queue(w)?;
                let unused = w.b.srq_create(q.pz, &SrqAttr::default())?;
                let (far, own) = client(w, &q)?;
                let fresh = w.end_with_srq(&w.b, w.b.pz_create()?, q.srq, &attributes())?;
                let param = w.b.ep_query(fresh.ep, EpParamMask::ALL)?;
                check_eq!((param.ia_handle, param.srq_handle), (w.b.handle(), q.srq));
                check_eq!(parts_of(&param), parts(&fresh));
                check_eq!((param.ep_state, param.ep_state.as_raw()), (EpState::Unconnected, 0));
                check_eq!(fresh.state()?, EpState::Unconnected);
                let second = w.end(&w.a, &attributes())?;
                w.connect(&second, &fresh)?;
                let memory = [w.region(&far, PAGE, MemPriv::ALL)?, w.region(&second, PAGE, MemPriv::ALL)?];
                w.b.srq_post_recv(unused, &[q.memory.segment(0, PAGE)], 1)?;
                for place in 0..4 {
                    w.b.srq_post_recv(q.srq, &[q.memory.segment(place * 64, 64)], 100 + place as u64)?;
                }
                check_eq!(outstanding(&w.b, q.srq)?, 4);
                let (first, second) = ((&far, &own, &memory[0]), (&second, &fresh, &memory[1]));
                for (place, ((from, to, memory), (_, other, _))) in
                    [(first, second), (second, first), (second, first), (first, second)]
                        .into_iter()
                        .enumerate()
                {
                    memory.fill(place as u8);
                    let (number, len) = (place as u64, 20 + place);
                    from.send(&[memory.segment(place, len)], number)?;
                    let (done, event, _) = to.received(100 + number, DtoStatus::Success)?;
                    check_eq!((done.operation, event), (Dto::RECEIVE, EventNumber::DTO_COMPLETION));
                    check_eq!(done.transferred_length, len as u64);
                    check_eq!(q.memory.bytes(place * 64, len), memory.bytes(place, len));
                    from.done(number, DtoStatus::Success)?;
                    check_eq!(outstanding(&w.b, q.srq)?, 3 - place as i32);
                    refused(w.b.evd_dequeue(other.recv), ErrorType::QueueEmpty.into())?;
                }
                check_eq!(outstanding(&w.b, unused)?, 1);
                Ok(())
            })
        },
    ),
    // Completions of Sends, Writes, Reads and binds come on the event dispatcher of requests, and
    // connection events on that of connections. No event comes on another one.
    test("dat_srq::each_event_has_its_dispatcher", &["dat_ep_create_with_srq B08-B10"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let far = w.end(&w.a, &attributes())?;
            let own = w.end_with_srq(&w.b, w.b.pz_create()?, q.srq, &attributes())?;
            let requests = evd(&w.a, EvdFlags::CR)?;
            let (qualifier, psp) = w.a.psp_create_any(requests, PspFlags::Consumer)?;
            dial(&own, address(&w.a)?, qualifier, &[])?;
            w.a.cr_accept(request(&w.a, requests)?, far.ep, &[])?;
            let event = expect(&w.b, own.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            check!(matches!(event.event_data, EventData::Connection(c) if c.ep_handle == own.ep));
            expect(&w.a, far.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            w.a.psp_free(psp)?;
            let (there, here) = (w.region(&far, PAGE, OPEN)?, w.region(&own, PAGE, OPEN)?);
            here.fill(9);
            far.receive(&[there.segment(0, 64)], 1)?;
            own.send(&[here.segment(0, 64)], 2)?;
            let (done, _, _) = own.done(2, DtoStatus::Success)?;
            check_eq!((done.operation, done.operation.as_raw()), (Dto::SEND, 0));
            far.received(1, DtoStatus::Success)?;
            let there_at = there.remote(64, 64);
            w.b.ep_post_rdma_write(own.ep, &[here.segment(64, 64)], 3, &there_at, PLAIN)?;
            let (done, _, _) = own.done(3, DtoStatus::Success)?;
            check_eq!((done.operation, done.operation.as_raw()), (Dto::RDMA_WRITE, 1));
            check_eq!(there.bytes(0, 128), here.bytes(0, 128));
            w.b.ep_post_rdma_read(own.ep, &[here.segment(200, 64)], 4, &there_at, PLAIN)?;
            let (done, _, _) = own.done(4, DtoStatus::Success)?;
            check_eq!((done.operation, done.operation.as_raw()), (Dto::RDMA_READ, 2));
            check_eq!(here.bytes(200, 64), here.bytes(64, 64));
            let rmr = w.b.rmr_create(own.pz)?;
            let (lmr, piece) = (here.lmr.lmr_handle, here.segment(0, 64));
            let read = MemPriv::REMOTE_READ;
            w.b.rmr_bind(rmr, lmr, &piece, read, VaType::Va, own.ep, 5, PLAIN)?;
            let event = expect(&w.b, own.request, EventNumber::RMR_BIND_COMPLETION)?;
            let EventData::RmrBind(bound) = event.event_data else {
                return Err(Failure::new("not a bind"));
            };
            check_eq!((bound.rmr_handle, bound.user_cookie, bound.status), (rmr, 5, DtoStatus::Success));
            far.disconnect()?;
            expect(&w.b, own.connect, EventNumber::CONNECTION_DISCONNECTED)?;
            for evd in [own.recv, own.request, own.connect] {
                refused(w.b.evd_dequeue(evd), ErrorType::QueueEmpty.into())?;
            }
            Ok(())
        })
    }),
    // The zone of the queue applies to the memory of Receives. The zone of the endpoint applies to
    // the memory of its Sends and of the peer's transfers, by a region or by a window. So clients
    // of one queue cannot access each other's memory.
    test("dat_srq::zones", &["dat_ep_create_with_srq A02 A06 B03-B06 O01 O02"], |f| {
        world(f, |w| {
            let (_, _, provider) = w.b.ia_query(IaAttrMask::NONE, ProviderAttrMask::ALL)?;
            check!(provider.is_some_and(|attr| attr.srq_ep_pz_difference_supported));
            let q = queue(w)?;
            // Two endpoints, each in its own zone, and one in the queue's zone.
            let ((far, own), (_, second)) = (client(w, &q)?, client(w, &q)?);
            let same = w.end_with_srq(&w.b, q.pz, q.srq, &attributes())?;
            let zones = [&own, &second, &same].map(|end| end.pz);
            check!(zones[0] != zones[1] && zones[1] != zones[2] && zones[2] == q.pz);
            let there = w.region(&far, PAGE, OPEN)?;
            there.fill(3);
            let (mine, others) = (w.region(&own, PAGE, OPEN)?, w.region(&second, PAGE, OPEN)?);
            // Transfers that the zones allow.
            w.b.srq_post_recv(q.srq, &[q.memory.segment(0, 64)], 1)?;
            far.send(&[there.segment(0, 64)], 2)?;
            own.received(1, DtoStatus::Success)?;
            far.done(2, DtoStatus::Success)?;
            check_eq!(q.memory.bytes(0, 64), there.bytes(0, 64));
            far.receive(&[there.segment(0, 64)], 3)?;
            own.send(&[mine.segment(0, 64)], 4)?;
            own.done(4, DtoStatus::Success)?;
            far.received(3, DtoStatus::Success)?;
            w.a.ep_post_rdma_write(far.ep, &[there.segment(64, 64)], 5, &mine.remote(0, 64), PLAIN)?;
            far.done(5, DtoStatus::Success)?;
            check_eq!(mine.bytes(0, 64), there.bytes(64, 64));
            let window = |end: &End, memory: &Region| -> Result<RmrTriplet, Failure> {
                let (rmr, lmr) = (w.b.rmr_create(end.pz)?, memory.lmr.lmr_handle);
                let piece = memory.segment(512, 64);
                let privs = MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE;
                let context = w.b.rmr_bind(rmr, lmr, &piece, privs, VaType::Va, end.ep, 6, PLAIN)?;
                expect(&w.b, end.request, EventNumber::RMR_BIND_COMPLETION)?;
                Ok(RmrTriplet { rmr_context: context, ..memory.remote(512, 64) })
            };
            let (own_window, other_window) = (window(&own, &mine)?, window(&second, &others)?);
            w.a.ep_post_rdma_write(far.ep, &[there.segment(64, 64)], 7, &own_window, PLAIN)?;
            far.done(7, DtoStatus::Success)?;
            check_eq!(mine.bytes(512, 64), there.bytes(64, 64));
            // A Receive in the endpoint's zone.
            w.b.srq_post_recv(q.srq, &[mine.segment(1024, 64)], 8)?;
            far.send(&[there.segment(0, 64)], 9)?;
            own.received(8, DtoStatus::LocalProtection)?;
            check!(completion(&w.a, far.request)?.0.status != DtoStatus::Success);
            check_eq!(mine.bytes(1024, 64), alloc::vec![0; 64]);
            // A Send in the queue's zone.
            reconnect(w, &far, &own)?;
            own.send(&[q.memory.segment(0, 64)], 10)?;
            own.done(10, DtoStatus::LocalProtection)?;
            // Transfers of the peer to the queue's memory and to that of the other client.
            for to in [q.memory.remote(512, 64), others.remote(512, 64), other_window] {
                reconnect(w, &far, &own)?;
                w.a.ep_post_rdma_write(far.ep, &[there.segment(0, 64)], 11, &to, PLAIN)?;
                far.done(11, DtoStatus::RemoteAccess)?;
                reconnect(w, &far, &own)?;
                w.a.ep_post_rdma_read(far.ep, &[there.segment(0, 64)], 12, &to, PLAIN)?;
                far.done(12, DtoStatus::RemoteAccess)?;
            }
            check_eq!(q.memory.bytes(512, 64), alloc::vec![0; 64]);
            others.untouched()?;
            // A window of another zone.
            reconnect(w, &far, &own)?;
            let (rmr, lmr) = (w.b.rmr_create(q.pz)?, mine.lmr.lmr_handle);
            let (piece, read) = (mine.segment(0, 64), MemPriv::REMOTE_READ);
            w.b.rmr_bind(rmr, lmr, &piece, read, VaType::Va, own.ep, 13, PLAIN)?;
            let event = expect(&w.b, own.request, EventNumber::RMR_BIND_COMPLETION)?;
            let EventData::RmrBind(bound) = event.event_data else {
                return Err(Failure::new("not a bind"));
            };
            check_eq!((bound.user_cookie, bound.status), (13, DtoStatus::RmrOperationFailed));
            Ok(())
        })
    }),
    // No Receive can be posted to the endpoint: the call fails with this error, and nothing
    // changes.
    test("dat_srq::receives_are_not_posted_to_the_endpoint", &["dat_ep_create_with_srq A01 B14"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (far, own) = client(w, &q)?;
            let unconnected = w.end_with_srq(&w.b, q.pz, q.srq, &attributes())?;
            let error = Error::new(ErrorType::InvalidState, Subtype::InvalidStateSrqInUse);
            check_eq!(error.as_raw() & 0x3fff_ffff, 0x0007_0057);
            let segment = q.memory.segment(0, 64);
            for end in [&own, &unconnected] {
                for segments in [&[][..], &[segment], &[segment; 40]] {
                    refused(w.b.ep_post_recv(end.ep, segments, 1, PLAIN), error)?;
                }
                check_eq!(w.b.ep_recv_query(end.ep)?.0, 0);
            }
            check_eq!(outstanding(&w.b, q.srq)?, 0);
            w.b.srq_post_recv(q.srq, &[segment], 2)?;
            message(&far, 3)?;
            own.received(2, DtoStatus::Success)?;
            own.disconnect()?;
            refused(w.b.ep_post_recv(own.ep, &[segment], 4, PLAIN), error)?;
            nothing(&w.b, own.recv)
        })
    }),
    // The event dispatchers, the zone and the attributes can be changed before the endpoint
    // connects, and the changes take effect. The queue cannot be changed. A queue cannot be freed
    // before its endpoints.
    test("dat_srq::modified_before_connecting", &["dat_ep_create_with_srq A08 B13"], |f| {
        world(f, |w| {
            let (q, other) = (queue(w)?, queue(w)?);
            let far = w.end(&w.a, &attributes())?;
            let first = EpAttr { max_request_dtos: 4, ..EpAttr::default() };
            let end = w.end_with_srq(&w.b, w.b.pz_create()?, q.srq, &first)?;
            let before = w.b.ep_query(end.ep, EpParamMask::ALL)?;
            let param = EpParam { srq_handle: other.srq, pz_handle: q.pz, ..before };
            let fixed = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg2);
            for mask in [EpParamMask::SRQ_HANDLE, EpParamMask::SRQ_HANDLE | EpParamMask::PZ_HANDLE] {
                refused(w.b.ep_modify(end.ep, mask, &param), fixed)?;
                let null = EpParam { srq_handle: SrqHandle::NULL, ..param };
                refused(w.b.ep_modify(end.ep, mask, &null), fixed)?;
            }
            check_eq!(w.b.ep_query(end.ep, EpParamMask::ALL)?, before);
            let own = End {
                pz: w.b.pz_create()?,
                recv: evd(&w.b, EvdFlags::DTO)?,
                request: evd(&w.b, EvdFlags::DTO)?,
                connect: evd(&w.b, EvdFlags::CONNECTION)?,
                ..end.clone()
            };
            let mask = EpParamMask::PZ_HANDLE
                | EpParamMask::RECV_EVD_HANDLE
                | EpParamMask::REQUEST_EVD_HANDLE
                | EpParamMask::CONNECT_EVD_HANDLE
                | EpParamMask::EP_ATTR_MAX_REQUEST_DTOS
                | EpParamMask::EP_ATTR_MAX_RDMA_READ_IN;
            let ep_attr = EpAttr { max_request_dtos: 9, max_rdma_read_in: 4, ..first };
            let wanted = EpParam {
                pz_handle: own.pz,
                recv_evd_handle: own.recv,
                request_evd_handle: own.request,
                connect_evd_handle: own.connect,
                ep_attr,
                ..before
            };
            w.b.ep_modify(end.ep, mask, &EpParam { srq_handle: other.srq, ..wanted })?;
            check_eq!(w.b.ep_query(end.ep, EpParamMask::ALL)?, wanted);
            // The former zone and event dispatchers are not in use any more.
            w.b.pz_free(end.pz)?;
            for evd in [end.recv, end.request, end.connect] {
                w.b.evd_free(evd)?;
            }
            w.connect(&far, &own)?;
            let (there, here) = (w.region(&far, PAGE, OPEN)?, w.region(&own, PAGE, OPEN)?);
            w.b.srq_post_recv(q.srq, &[q.memory.segment(0, 64)], 1)?;
            message(&far, 2)?;
            own.received(1, DtoStatus::Success)?;
            w.a.ep_post_rdma_read(far.ep, &[there.segment(0, 64)], 3, &here.remote(0, 64), PLAIN)?;
            far.done(3, DtoStatus::Success)?;
            // The endpoint takes as many Sends as it has now, and not one more.
            for cookie in 0..9 {
                own.send(&[here.segment(0, 8)], cookie)?;
            }
            let full = w.b.ep_post_send(own.ep, &[], 9, PLAIN).map_err(Error::kind);
            refused(full, ErrorType::InsufficientResources)?;
            for cookie in 0..9 {
                far.receive(&[there.segment(0, 8)], cookie)?;
            }
            for cookie in 0..9 {
                own.done(cookie, DtoStatus::Success)?;
                far.received(cookie, DtoStatus::Success)?;
            }
            let busy = Error::new(ErrorType::InvalidState, Subtype::InvalidStateSrqInUse);
            refused(w.b.srq_free(q.srq), busy)?;
            own.disconnect()?;
            refused(w.b.srq_free(q.srq), busy)?;
            check_eq!(w.b.ep_query(own.ep, EpParamMask::ALL)?.srq_handle, q.srq);
            w.b.ep_free(own.ep)?;
            Ok(w.b.srq_free(q.srq)?)
        })
    }),
    // A reset endpoint keeps its handle and its queue, connects again at once and takes Receives
    // from the queue. So does an endpoint that is created right after a connected one was freed.
    test("dat_srq::reset_and_reconnected", &["dat_ep_create_with_srq A07 A09 A10 B12 O03 O04"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (far, mut own) = client(w, &q)?;
            let param = |end: &End| w.b.ep_query(end.ep, EpParamMask::ALL);
            for round in 0..24 {
                for cookie in 0..2 {
                    w.b.srq_post_recv(q.srq, &[q.memory.segment(0, 64)], round * 2 + cookie)?;
                }
                message(&far, 1)?;
                own.received(round * 2, DtoStatus::Success)?;
                if round % 2 == 0 {
                    reconnect(w, &far, &own)?;
                } else {
                    w.b.ep_free(own.ep)?;
                    next(&w.a, far.connect)?;
                    w.a.ep_reset(far.ep)?;
                    let (recv, request, connect) = (own.recv, own.request, own.connect);
                    let attr = attributes();
                    own.ep = w.b.ep_create_with_srq(own.pz, recv, request, connect, q.srq, &attr)?;
                    w.connect(&far, &own)?;
                }
                // The Receive that was not taken stayed in the queue.
                check_eq!(outstanding(&w.b, q.srq)?, 1);
                let now = param(&own)?;
                check_eq!((now.srq_handle, now.ep_state), (q.srq, EpState::Connected));
                check_eq!((parts_of(&now), now.ep_attr), (parts(&own), attributes()));
                message(&far, 1)?;
                own.received(round * 2 + 1, DtoStatus::Success)?;
            }
            // In UNCONNECTED a reset does nothing; in CONNECTED it is refused.
            let connected = Error::new(ErrorType::InvalidState, Subtype::InvalidStateEpConnected);
            refused(w.b.ep_reset(own.ep), connected)?;
            own.disconnect()?;
            w.b.ep_reset(own.ep)?;
            let before = param(&own)?;
            w.b.ep_reset(own.ep)?;
            check_eq!(param(&own)?, before);
            Ok(())
        })
    }),
    // Two threads create and free endpoints on one queue at the same time, with the same event
    // dispatchers. Each endpoint works afterwards. The queue and the event dispatchers can be freed
    // when all endpoints are.
    test("dat_srq::made_by_two_threads", &["dat_ep_create_with_srq B38"], |f| {
        world(f, |w| {
            const EACH: usize = 6;
            let q = queue(w)?;
            let shared = w.end_with_srq(&w.b, q.pz, q.srq, &attributes())?;
            let body = || -> crate::thread::Body<Result<Vec<EpHandle>, Error>> {
                let (ia, with, srq) = (w.b.clone(), shared.clone(), q.srq);
                alloc::boxed::Box::new(move || {
                    let create = |_| {
                        let (pz, connect, attr) = (with.pz, with.connect, attributes());
                        ia.ep_create_with_srq(pz, with.recv, with.request, connect, srq, &attr)
                    };
                    // This thread frees some while the other one creates.
                    for _ in 0..EACH {
                        ia.ep_free(create(0)?)?;
                    }
                    (0..EACH).map(create).collect()
                })
            };
            let made = crate::thread::together(f.platform(), Vec::from([body(), body()]))?;
            let mut all = Vec::new();
            for of_one in made {
                all.extend(of_one?);
            }
            check_eq!(all.len(), 2 * EACH);
            for (number, ep) in all.iter().enumerate() {
                check!(!all[..number].contains(ep) && *ep != shared.ep);
                let own = End { ep: *ep, ..shared.clone() };
                let far = w.end(&w.a, &attributes())?;
                w.connect(&far, &own)?;
                w.b.srq_post_recv(q.srq, &[], number as u64)?;
                message(&far, 1)?;
                own.received(number as u64, DtoStatus::Success)?;
                for evd in [far.recv, far.request, far.connect] {
                    refused(w.a.evd_free(evd).map_err(Error::kind), ErrorType::InvalidState)?;
                }
                w.a.ep_free(far.ep)?;
                expect(&w.b, own.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                w.b.ep_free(own.ep)?;
                for evd in [far.recv, far.request, far.connect] {
                    w.a.evd_free(evd)?;
                }
                w.a.pz_free(far.pz)?;
            }
            // The event dispatchers have no stream left.
            w.b.ep_free(shared.ep)?;
            for evd in [shared.recv, shared.request, shared.connect] {
                w.b.evd_free(evd)?;
            }
            Ok(w.b.srq_free(q.srq)?)
        })
    }),
];

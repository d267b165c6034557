//! How endpoints with a shared receive queue connect, and endpoints whose consumer wants no events.

use alloc::boxed::Box;
use alloc::vec::Vec;

use dat::*;

use super::srq::{client, message, outstanding, queue};
use super::world::*;
use crate::fixture::PAGE;
use crate::thread::{Signal, eventually};
use crate::{Outcome, Test, check, check_eq, refused, test};

/// Posts until the queue has room.
fn posted(w: &World<'_>, mut post: impl FnMut() -> Result<(), Error>) -> Outcome {
    let mut last = Ok(());
    let done = eventually(w.f.platform(), || {
        last = post();
        !last.is_err_and(|error| error.kind() == ErrorType::InsufficientResources)
    });
    check!(done, "no room: {last:?}");
    Ok(last?)
}

/// The attributes of an endpoint.
fn attr(end: &End) -> Result<EpAttr, Error> {
    Ok(end.ia.ep_query(end.ep, EpParamMask::ALL)?.ep_attr)
}

/// Takes the event of an established connection at both ends.
fn established(one: &End, other: &End) -> Outcome {
    for end in [one, other] {
        expect(&end.ia, end.connect, EventNumber::CONNECTION_ESTABLISHED)?;
        check_eq!(end.state()?, EpState::Connected);
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // An endpoint with a shared receive queue connects in each way: it asks for a connection, also
    // to the service of another endpoint; it accepts a request at a public service point; and a
    // reserved service point reserves it. Each connection takes its Receives from the queue.
    test("dat_srq::ways_to_connect", &["dat_ep_create_with_srq S02-S04"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let own = || w.end_with_srq(&w.b, w.b.pz_create()?, q.srq, &attributes());
            let (active, duplicate, passive, reserved) = (own()?, own()?, own()?, own()?);
            let mut far = Vec::new();
            for _ in 0..4 {
                far.push(w.end(&w.a, &attributes())?);
            }
            let requests = evd(&w.a, EvdFlags::CR)?;
            let (qualifier, psp) = w.a.psp_create_any(requests, PspFlags::Consumer)?;
            dial(&active, address(&w.a)?, qualifier, &[1])?;
            check_eq!(active.state()?, EpState::ActiveConnectionPending);
            w.a.cr_accept(request(&w.a, requests)?, far[0].ep, &[])?;
            established(&active, &far[0])?;
            w.b.ep_dup_connect(duplicate.ep, active.ep, LONG, &[2], Qos::BEST_EFFORT)?;
            check_eq!(duplicate.state()?, EpState::ActiveConnectionPending);
            w.a.cr_accept(request(&w.a, requests)?, far[1].ep, &[])?;
            established(&duplicate, &far[1])?;
            w.a.psp_free(psp)?;
            w.connect(&far[2], &passive)?;
            // A reserved service point.
            let at_b = evd(&w.b, EvdFlags::CR)?;
            let rsp = w.b.rsp_create(qualifier ^ 0x55, reserved.ep, at_b)?;
            check_eq!((reserved.state()?, EpState::Reserved.as_raw()), (EpState::Reserved, 2));
            dial(&far[3], address(&w.b)?, qualifier ^ 0x55, &[])?;
            let arrived = request(&w.b, at_b)?;
            check_eq!(reserved.state()?, EpState::PassiveConnectionPending);
            check_eq!(w.b.cr_query(arrived)?.local_ep_handle, reserved.ep);
            w.b.cr_accept(arrived, EpHandle::NULL, &[])?;
            established(&far[3], &reserved)?;
            w.b.rsp_free(rsp)?;
            let all = [active, duplicate, passive, reserved];
            for (cookie, (from, to)) in (10..).zip(far.iter().zip(&all)) {
                w.b.srq_post_recv(q.srq, &[], cookie)?;
                message(from, 1)?;
                to.received(cookie, DtoStatus::Success)?;
                check_eq!(w.b.ep_query(to.ep, EpParamMask::ALL)?.srq_handle, q.srq);
            }
            Ok(())
        })
    }),
    // Connecting changes no attribute: not of the active side and not of the passive side, whether
    // it was given or a default. By default an endpoint allows no RDMA Reads, and endpoints with
    // the defaults connect.
    test("dat_srq::connecting_changes_no_attribute", &["dat_ep_create_with_srq A12 B35 B36 O05 O06"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let defaults = EpAttr::default();
            check_eq!((defaults.max_rdma_read_in, defaults.max_rdma_read_out), (0, 0));
            let reads = EpAttr {
                max_rdma_read_in: 7,
                max_rdma_read_out: 3,
                max_rdma_read_iov: 2,
                max_message_size: 12_345,
                max_recv_dtos: 5,
                max_request_dtos: 6,
                ..defaults
            };
            // The peer of the endpoint with RDMA Reads has other limits than that endpoint.
            let peers = EpAttr { max_rdma_read_in: 5, max_rdma_read_out: 6, ..defaults };
            for (of_far, of_own) in [(defaults, defaults), (peers, reads), (attributes(), attributes())] {
                for active in [true, false] {
                    let far = w.end(&w.a, &of_far)?;
                    let own = w.end_with_srq(&w.b, w.b.pz_create()?, q.srq, &of_own)?;
                    check_eq!((attr(&far)?, attr(&own)?), (of_far, of_own));
                    if active {
                        w.connect(&own, &far)?
                    } else {
                        w.connect(&far, &own)?
                    };
                    check_eq!((attr(&far)?, attr(&own)?), (of_far, of_own));
                    own.disconnect()?;
                    check_eq!((attr(&far)?, attr(&own)?), (of_far, of_own));
                }
            }
            Ok(())
        })
    }),
    // The limit of outstanding RDMA Reads and the limit of their segments can both be reached at
    // once. The limits of the two sides are not compared.
    test("dat_srq::both_limits_of_reads_at_once", &["dat_ep_create_with_srq B37 O07"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (_, ia, _) = w.b.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
            let ia = crate::some(ia, "the IA's attributes")?;
            let segments = ia.max_iov_segments_per_rdma_read;
            let depth = ia.max_rdma_read_per_ep_out as usize;
            let most = EpAttr {
                max_rdma_read_out: depth as u32,
                max_rdma_read_in: ia.max_rdma_read_per_ep_in,
                max_rdma_read_iov: segments,
                max_request_dtos: 2 * depth,
                ..EpAttr::default()
            };
            for (max_rdma_read_out, max_rdma_read_iov) in [(0, segments), (depth as u32, 0)] {
                let attr = EpAttr { max_rdma_read_out, max_rdma_read_iov, ..most };
                let end = w.end_with_srq(&w.b, q.pz, q.srq, &attr)?;
                w.b.ep_free(end.ep)?;
            }
            let far = w.end(&w.a, &most)?;
            let own = w.end_with_srq(&w.b, w.b.pz_create()?, q.srq, &most)?;
            w.connect(&far, &own)?;
            let bytes = 2 * depth * segments * 8;
            let (from, to) = (w.region(&far, bytes, OPEN)?, w.region(&own, bytes, OPEN)?);
            from.fill(7);
            // Each Read scatters its words in reverse order.
            let piece = segments * 8;
            for read in 0..2 * depth {
                let words: Vec<LmrTriplet> =
                    (0..segments).rev().map(|word| to.segment(read * piece + word * 8, 8)).collect();
                let remote = from.remote(read * piece, piece);
                w.b.ep_post_rdma_read(own.ep, &words, read as u64, &remote, PLAIN)?;
            }
            for read in 0..2 * depth {
                let (done, _, _) = own.done(read as u64, DtoStatus::Success)?;
                check_eq!((done.operation, done.transferred_length), (Dto::RDMA_READ, piece as u64));
                for word in 0..segments {
                    let (here, there) = (read * piece + word * 8, (read + 1) * piece - (word + 1) * 8);
                    check_eq!(to.word(here), from.word(there));
                }
            }
            Ok(())
        })
    }),
    // Without event dispatchers of completions no events come, however many Receives and requests
    // complete, and nothing overflows, even when the queue holds more Receives than the endpoint's
    // attributes.
    test("dat_srq::unwanted_completions", &["dat_ep_create_with_srq F03 F04"], |f| {
        world(f, |w| {
            const MANY: u64 = 1500;
            const AT_ONCE: u64 = 256;
            let q = queue(w)?;
            w.b.srq_resize(q.srq, AT_ONCE as usize)?;
            let far_attr = EpAttr { max_request_dtos: 300, max_recv_dtos: 300, ..attributes() };
            let far = w.end(&w.a, &far_attr)?;
            w.a.evd_resize(far.request, 512)?;
            w.a.evd_resize(far.recv, 512)?;
            let few = EpAttr { max_recv_dtos: 1, max_request_dtos: 1, ..attributes() };
            let (pz, connect) = (w.b.pz_create()?, evd(&w.b, EvdFlags::CONNECTION)?);
            let none = EvdHandle::NULL;
            let ep = w.b.ep_create_with_srq(pz, none, none, connect, q.srq, &few)?;
            let own = End { ia: w.b.clone(), ep, pz, recv: none, request: none, connect };
            check_eq!(w.b.ep_query(ep, EpParamMask::ALL)?.recv_evd_handle, none);
            w.connect(&far, &own)?;
            // Receives, as many as the queue holds at a time.
            let mut sent = 0;
            while sent < MANY {
                for cookie in 0..AT_ONCE {
                    posted(w, || w.b.srq_post_recv(q.srq, &[], cookie))?;
                }
                for _ in 0..AT_ONCE {
                    far.send(&[], sent)?;
                    sent += 1;
                }
                for number in sent - AT_ONCE..sent {
                    far.done(number, DtoStatus::Success)?;
                }
            }
            check!(eventually(f.platform(), || w
                .b
                .srq_query(q.srq)
                .is_ok_and(|srq| { srq.outstanding_dto_count == 0 })));
            // The queue grew after the endpoint was created.
            const GROWN: u64 = 300;
            w.b.srq_resize(q.srq, GROWN as usize)?;
            for cookie in 0..GROWN {
                w.b.srq_post_recv(q.srq, &[], cookie)?;
            }
            for cookie in 0..GROWN {
                far.send(&[], cookie)?;
            }
            for cookie in 0..GROWN {
                far.done(cookie, DtoStatus::Success)?;
            }
            // Requests, including binds.
            let rmr = w.b.rmr_create(pz)?;
            let memory = w.region(&own, PAGE, OPEN)?;
            let (lmr, piece) = (memory.lmr.lmr_handle, memory.segment(0, 64));
            for cookie in 0..MANY {
                far.receive(&[], cookie)?;
                posted(w, || w.b.ep_post_send(ep, &[], cookie, PLAIN))?;
                if cookie % 16 == 0 {
                    posted(w, || {
                        let read = MemPriv::REMOTE_READ;
                        let bound = w.b.rmr_bind(rmr, lmr, &piece, read, VaType::Va, ep, cookie, PLAIN);
                        bound.map(|_| ())
                    })?;
                }
                far.received(cookie, DtoStatus::Success)?;
            }
            check!(eventually(f.platform(), || {
                w.b.ep_get_status(ep).is_ok_and(|status| status == (EpState::Connected, true, true))
            }));
            refused(w.b.evd_dequeue(connect), ErrorType::QueueEmpty.into())?;
            for evd in w.asynchronous {
                let ia = if evd == w.asynchronous[0] { &w.a } else { &w.b };
                refused(ia.evd_dequeue(evd), ErrorType::QueueEmpty.into())?;
            }
            // A graceful disconnect does not wait for the consumer to take completions.
            w.b.ep_disconnect(ep, CloseFlags::Graceful)?;
            expect(&w.b, connect, EventNumber::CONNECTION_DISCONNECTED)?;
            expect(&w.a, far.connect, EventNumber::CONNECTION_DISCONNECTED)?;
            // When the queue has no other endpoint, it can be freed.
            check_eq!(outstanding(&w.b, q.srq)?, 0);
            w.b.ep_free(ep)?;
            Ok(w.b.srq_free(q.srq)?)
        })
    }),
    // While the thread that drops unwanted completions is busy, there is room for as many as the
    // shared receive queue holds now.
    test("dat_srq::unwanted_completions_have_room", &["dat_ep_create_with_srq F04"], |f| {
        world(f, |w| {
            const GROWN: u64 = 600;
            let (q, none) = (queue(w)?, EvdHandle::NULL);
            w.b.srq_resize(q.srq, 16)?;
            let far = w.end(&w.a, &EpAttr { max_request_dtos: GROWN as usize, ..attributes() })?;
            w.a.evd_resize(far.request, GROWN as usize)?;
            let (pz, connect) = (w.b.pz_create()?, evd(&w.b, EvdFlags::CONNECTION)?);
            let few = EpAttr { max_recv_dtos: 1, max_request_dtos: 1, ..attributes() };
            let ep = w.b.ep_create_with_srq(pz, none, none, connect, q.srq, &few)?;
            w.connect(&far, &End { ia: w.b.clone(), ep, pz, recv: none, request: none, connect })?;
            w.b.srq_resize(q.srq, GROWN as usize)?;
            // An agent keeps the thread busy.
            let (busy, go_on) = (Signal::new(f.platform()), Signal::new(f.platform()));
            let (entered, leave) = (busy.clone(), go_on.clone());
            let agent: Agent = Box::new(move |_: &Ia, _| {
                entered.raise();
                let _ = leave.wait(1);
            });
            let other = w.end(&w.b, &attributes())?;
            let caller = w.end(&w.a, &attributes())?;
            w.connect(&caller, &other)?;
            w.b.evd_modify_cno(other.recv, w.b.cno_create(Some(agent))?)?;
            other.receive(&[], 1)?;
            caller.send(&[], 2)?;
            busy.wait(1)?;
            for cookie in 0..GROWN {
                w.b.srq_post_recv(q.srq, &[], cookie)?;
            }
            let flood = || -> Outcome {
                for cookie in 0..GROWN {
                    far.send(&[], cookie)?;
                }
                // On one NIC no thread is woken meanwhile.
                for cookie in 0..GROWN {
                    let event = polled(f.platform(), &w.a, far.request)?;
                    let done = event.dto().map(|done| (done.user_cookie, done.status));
                    check_eq!(done, Some((cookie, DtoStatus::Success)));
                }
                Ok(())
            };
            let outcome = flood();
            go_on.raise();
            outcome?;
            let all_dropped = || w.b.srq_query(q.srq).is_ok_and(|srq| srq.outstanding_dto_count == 0);
            check!(eventually(f.platform(), all_dropped));
            check_eq!(w.b.ep_get_status(ep)?.0, EpState::Connected);
            refused(w.b.evd_dequeue(w.asynchronous[1]), ErrorType::QueueEmpty.into())
        })
    }),
    // One kind of completions can be unwanted: the other kind still comes.
    test("dat_srq::some_completions_unwanted", &["dat_ep_create_with_srq F03 F04"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            for (wants_recv, wants_request) in [(true, false), (false, true)] {
                let far = w.end(&w.a, &attributes())?;
                let all = w.end_with_srq(&w.b, q.pz, q.srq, &attributes())?;
                let or_null = |wants, evd| if wants { evd } else { EvdHandle::NULL };
                let (recv, request) = (or_null(wants_recv, all.recv), or_null(wants_request, all.request));
                let ep = w.b.ep_create_with_srq(q.pz, recv, request, all.connect, q.srq, &attributes())?;
                let own = End { ep, ..all.clone() };
                w.connect(&far, &own)?;
                for cookie in 0..200 {
                    posted(w, || w.b.srq_post_recv(q.srq, &[], cookie))?;
                    message(&far, 1)?;
                    if wants_recv {
                        own.received(cookie, DtoStatus::Success)?;
                    }
                    far.receive(&[], 2)?;
                    posted(w, || w.b.ep_post_send(ep, &[], cookie, PLAIN))?;
                    far.received(2, DtoStatus::Success)?;
                    if wants_request {
                        own.done(cookie, DtoStatus::Success)?;
                    }
                }
                check_eq!(own.state()?, EpState::Connected);
                for evd in [all.recv, all.request, all.connect] {
                    refused(w.b.evd_dequeue(evd), ErrorType::QueueEmpty.into())?;
                }
            }
            Ok(())
        })
    }),
    // An endpoint can be created without an event dispatcher of connection events, but connects
    // only after it gets one. The same holds for the zone.
    test("dat_srq::no_connection_events_for_now", &["dat_ep_create_with_srq F05"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let far = w.end(&w.a, &attributes())?;
            let (recv, request) = (evd(&w.b, EvdFlags::DTO)?, evd(&w.b, EvdFlags::DTO)?);
            let (no_zone, none, attr) = (PzHandle::NULL, EvdHandle::NULL, attributes());
            let ep = w.b.ep_create_with_srq(no_zone, recv, request, none, q.srq, &attr)?;
            let param = w.b.ep_query(ep, EpParamMask::ALL)?;
            check_eq!((param.pz_handle, param.connect_evd_handle), (no_zone, none));
            let (pz, connect) = (w.b.pz_create()?, evd(&w.b, EvdFlags::CONNECTION)?);
            let own = End { ia: w.b.clone(), ep, pz, recv, request, connect };
            let requests = evd(&w.a, EvdFlags::CR)?;
            let (qualifier, psp) = w.a.psp_create_any(requests, PspFlags::Consumer)?;
            let not_ready = Error::new(ErrorType::InvalidState, Subtype::InvalidStateEpNotReady);
            let to = address(&w.a)?;
            let ask = || {
                let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::Default);
                w.b.ep_connect(ep, to, qualifier, LONG, &[], qos, flags)
            };
            refused(ask(), not_ready)?;
            let of_b = evd(&w.b, EvdFlags::CR)?;
            refused(w.b.rsp_create(qualifier, ep, of_b), not_ready)?;
            let wanted = EpParam { pz_handle: pz, connect_evd_handle: connect, ..param };
            w.b.ep_modify(ep, EpParamMask::CONNECT_EVD_HANDLE, &wanted)?;
            refused(ask(), not_ready)?;
            w.b.ep_modify(ep, EpParamMask::PZ_HANDLE, &wanted)?;
            check_eq!(own.state()?, EpState::Unconnected);
            w.a.psp_free(psp)?;
            w.connect(&own, &far)?;
            w.b.srq_post_recv(q.srq, &[], 3)?;
            message(&far, 1)?;
            own.received(3, DtoStatus::Success)?;
            Ok(())
        })
    }),
    // A client of the queue that goes away while messages arrive takes no Receive of the other
    // clients with it.
    test("dat_srq::a_client_leaves", &["dat_ep_create_with_srq B07"], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let ((far, own), (far_second, second)) = (client(w, &q)?, client(w, &q)?);
            for cookie in 0..4 {
                w.b.srq_post_recv(q.srq, &[], cookie)?;
            }
            message(&far, 1)?;
            message(&far_second, 1)?;
            own.disconnect()?;
            own.received(0, DtoStatus::Success)?;
            second.received(1, DtoStatus::Success)?;
            expect(&w.a, far.connect, EventNumber::CONNECTION_DISCONNECTED)?;
            w.b.ep_free(own.ep)?;
            message(&far_second, 1)?;
            second.received(2, DtoStatus::Success)?;
            check_eq!(outstanding(&w.b, q.srq)?, 1);
            nothing(&w.b, own.recv)
        })
    }),
];

//! Connections: service points, requests and their answers, disconnects, and the states of an
//! endpoint by its transition table (dat_ep_create and the pages of these calls).

use alloc::vec;
use alloc::vec::Vec;

use dat::*;

use super::events::{invalid, parameter, state};
use super::world::*;
use crate::thread::{Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, some, test};

/// No segments.
pub(super) const NOTHING: &[LmrTriplet] = &[];

/// A public service point of `ia` with an event dispatcher of its own.
pub(super) struct Point {
    pub(super) requests: EvdHandle,
    pub(super) conn_qual: u64,
    psp: PspHandle,
}

#[track_caller]
pub(super) fn point(ia: &Ia) -> Result<Point, Failure> {
    let requests = evd(ia, EvdFlags::CR)?;
    let (conn_qual, psp) = ia.psp_create_any(requests, PspFlags::Consumer)?;
    Ok(Point { requests, conn_qual, psp })
}

/// A qualifier that nobody listens at.
#[track_caller]
fn free_qualifier(ia: &Ia) -> Result<u64, Failure> {
    let point = point(ia)?;
    ia.psp_free(point.psp)?;
    Ok(point.conn_qual)
}

/// The endpoint's parameters.
#[track_caller]
fn param(end: &End) -> Result<EpParam, Failure> {
    Ok(end.ia.ep_query(end.ep, EpParamMask::ALL)?)
}

/// The data of a connection event.
#[track_caller]
fn connection(event: &Event) -> Result<Connection, Failure> {
    match event.event_data {
        EventData::Connection(connection) => Ok(connection),
        other => Err(Failure::new(alloc::format!("not a connection event: {other:?}"))),
    }
}

/// The error of a call that a state does not allow, by the state.
const fn wrong(now: EpState) -> Error {
    state(match now {
        EpState::Unconnected => Subtype::InvalidStateEpUnconnected,
        EpState::Reserved => Subtype::InvalidStateEpReserved,
        EpState::PassiveConnectionPending => Subtype::InvalidStateEpPassConnPending,
        EpState::ActiveConnectionPending => Subtype::InvalidStateEpActConnPending,
        EpState::CompletionPending => Subtype::InvalidStateEpComplPending,
        EpState::Connected => Subtype::InvalidStateEpConnected,
        EpState::DisconnectPending => Subtype::InvalidStateEpDiscPending,
        EpState::Disconnected => Subtype::InvalidStateEpDisconnected,
        _ => Subtype::None,
    })
}

/// Checks that the endpoint is in this state, and that the calls which this state does not allow
/// are refused with its name and change nothing.
#[track_caller]
pub(super) fn in_state(w: &World<'_>, end: &End, now: EpState) -> Outcome {
    let here = core::panic::Location::caller();
    let (ia, ep) = (&end.ia, end.ep);
    check_eq!((end.state()?, param(end)?.ep_state), (now, now), "at line {}", here.line());
    let before = param(end)?;
    let refusal = Err(wrong(now));
    let (to, none) = (address(ia)?, RmrTriplet::default());
    if now != EpState::Unconnected {
        let asked = ia.ep_connect(ep, to, 1, LONG, &[], Qos::BEST_EFFORT, ConnectFlags::Default);
        check_eq!(asked, refusal, "connect in {now:?}");
        check_eq!(ia.rsp_create(77, ep, end.connect).err(), refusal.err(), "reserve in {now:?}");
        check_eq!(ia.ep_modify(ep, EpParamMask::empty(), &before), refusal, "modify in {now:?}");
    }
    if !matches!(now, EpState::Unconnected | EpState::Disconnected) {
        check_eq!(ia.ep_reset(ep), refusal, "reset in {now:?}");
    }
    if !matches!(now, EpState::Connected | EpState::Disconnected | EpState::DisconnectPending) {
        check_eq!(ia.ep_post_send(ep, NOTHING, 1, PLAIN), refusal, "send in {now:?}");
        check_eq!(ia.ep_post_rdma_write(ep, NOTHING, 1, &none, PLAIN), refusal, "write in {now:?}");
        check_eq!(ia.ep_post_rdma_read(ep, NOTHING, 1, &none, PLAIN), refusal, "read in {now:?}");
    }
    if matches!(now, EpState::Unconnected | EpState::Reserved | EpState::PassiveConnectionPending) {
        for how in [CloseFlags::Abrupt, CloseFlags::Graceful] {
            check_eq!(ia.ep_disconnect(ep, how), refusal, "disconnect in {now:?}");
        }
    }
    if matches!(now, EpState::Reserved | EpState::PassiveConnectionPending) {
        check_eq!(ia.ep_free(ep), refusal, "free in {now:?}");
    }
    if now == EpState::Unconnected {
        ia.ep_reset(ep)?;
    }
    if now == EpState::Disconnected {
        ia.ep_disconnect(ep, CloseFlags::Abrupt)?;
        ia.ep_disconnect(ep, CloseFlags::Graceful)?;
    }
    check_eq!(param(end)?, before, "after refused calls in {now:?}");
    let _ = w;
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // A connection through a public service point, state by state, on both sides: requested,
    // accepted, established, disconnected, reset, and then another one of the same endpoints.
    test("dat_connect::states_with_a_public_service_point", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?, point(&w.b)?);
            for round in 0..2 {
                in_state(w, &a, EpState::Unconnected)?;
                check_eq!(param(&a)?.remote_ia_address, None);
                dial(&a, address(&w.b)?, point.conn_qual, &[])?;
                in_state(w, &a, EpState::ActiveConnectionPending)?;
                check_eq!(param(&a)?.remote_ia_address, Some(address(&w.b)?));
                check_eq!(param(&a)?.remote_port_qual, point.conn_qual);
                let event = expect(&w.b, point.requests, EventNumber::CONNECTION_REQUEST)?;
                let cr = cr(&event)?;
                let arrival = CrArrival {
                    sp_handle: SpHandle::Psp(point.psp),
                    local_ia_address: Some(address(&w.b)?),
                    conn_qual: point.conn_qual,
                    cr_handle: cr,
                };
                check_eq!(event.event_data, EventData::CrArrival(arrival));
                let asked = w.b.cr_query(cr)?;
                check_eq!(asked.remote_ia_address, address(&w.a)?);
                check_eq!((asked.private_data, asked.local_ep_handle), (None, EpHandle::NULL));
                in_state(w, &b, EpState::Unconnected)?;
                w.b.cr_accept(cr, b.ep, &[])?;
                refused(w.b.cr_query(cr), invalid(Subtype::InvalidHandleCr))?;
                for end in [&a, &b] {
                    let event = expect(&end.ia, end.connect, EventNumber::CONNECTION_ESTABLISHED)?;
                    check_eq!(connection(&event)?, Connection { ep_handle: end.ep, private_data: None });
                    in_state(w, end, EpState::Connected)?;
                }
                let of_b = param(&b)?;
                check_eq!(of_b.remote_ia_address, Some(address(&w.a)?));
                check_eq!(
                    (of_b.local_port_qual, of_b.local_ia_address),
                    (point.conn_qual, Some(address(&w.b)?))
                );
                let (gives_up, other) = if round == 0 { (&a, &b) } else { (&b, &a) };
                gives_up.ia.ep_disconnect(gives_up.ep, CloseFlags::Abrupt)?;
                in_state(w, gives_up, EpState::Disconnected)?;
                for end in [gives_up, other] {
                    let event = expect(&end.ia, end.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                    check_eq!(connection(&event)?.ep_handle, end.ep);
                    in_state(w, end, EpState::Disconnected)?;
                    end.ia.ep_reset(end.ep)?;
                    nothing(&end.ia, end.connect)?;
                }
            }
            in_state(w, &b, EpState::Unconnected)
        })
    }),
    // A reserved service point: the endpoint is reserved, pending when the consumer takes the
    // request, and completion pending after the accept. The service point takes one request.
    test("dat_connect::states_with_a_reserved_service_point", &[], |f| {
        world(f, |w| {
            let (a, b) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
            let (requests, conn_qual) = (evd(&w.b, EvdFlags::CR)?, free_qualifier(&w.b)?);
            let rsp = w.b.rsp_create(conn_qual, b.ep, requests)?;
            let expected =
                RspParam { ia_handle: w.b.handle(), conn_qual, evd_handle: requests, ep_handle: b.ep };
            check_eq!(w.b.rsp_query(rsp)?, expected);
            in_state(w, &b, EpState::Reserved)?;
            dial(&a, address(&w.b)?, conn_qual, &[])?;
            let event = expect(&w.b, requests, EventNumber::CONNECTION_REQUEST)?;
            let cr = cr(&event)?;
            match event.event_data {
                EventData::CrArrival(arrival) => check_eq!(arrival.sp_handle, SpHandle::Rsp(rsp)),
                other => return Err(Failure::new(alloc::format!("{other:?}"))),
            }
            in_state(w, &b, EpState::PassiveConnectionPending)?;
            check_eq!(param(&b)?.remote_ia_address, Some(address(&w.a)?));
            check_eq!(w.b.cr_query(cr)?.local_ep_handle, b.ep);
            // A second request is refused by the provider, not by the consumer.
            let late = w.end(&w.a, &attributes())?;
            dial(&late, address(&w.b)?, conn_qual, &[])?;
            nothing(&w.b, requests)?;
            expect(&w.a, late.connect, EventNumber::CONNECTION_NON_PEER_REJECTED)?;
            // It is accepted with the endpoint that it brought and no other one.
            let other = w.end(&w.b, &attributes())?;
            refused(w.b.cr_accept(cr, other.ep, &[]), parameter(Subtype::InvalidArg2))?;
            in_state(w, &b, EpState::PassiveConnectionPending)?;
            w.b.cr_accept(cr, EpHandle::NULL, &[])?;
            for end in [&a, &b] {
                expect(&end.ia, end.connect, EventNumber::CONNECTION_ESTABLISHED)?;
                in_state(w, end, EpState::Connected)?;
            }
            w.b.rsp_free(rsp)?;
            refused(w.b.rsp_query(rsp), invalid(Subtype::InvalidHandleRsp))?;
            in_state(w, &b, EpState::Connected)?;
            w.b.ep_free(b.ep)?;
            Ok(())
        })
    }),
    // Freeing a reserved service point gives its endpoint back, and so does the rejection of its
    // request, whether or not the service point is freed before.
    test("dat_connect::reservations_end", &[], |f| {
        world(f, |w| {
            let (a, b) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
            let (requests, conn_qual) = (evd(&w.b, EvdFlags::CR)?, free_qualifier(&w.b)?);
            let rsp = w.b.rsp_create(conn_qual, b.ep, requests)?;
            w.b.rsp_free(rsp)?;
            in_state(w, &b, EpState::Unconnected)?;
            for freed_first in [false, true] {
                let rsp = w.b.rsp_create(conn_qual, b.ep, requests)?;
                dial(&a, address(&w.b)?, conn_qual, &[])?;
                let cr = request(&w.b, requests)?;
                if freed_first {
                    w.b.rsp_free(rsp)?;
                }
                in_state(w, &b, EpState::PassiveConnectionPending)?;
                w.b.cr_reject(cr, &[])?;
                expect(&w.a, a.connect, EventNumber::CONNECTION_PEER_REJECTED)?;
                in_state(w, &a, EpState::Disconnected)?;
                w.a.ep_reset(a.ep)?;
                in_state(w, &b, EpState::Unconnected)?;
                if !freed_first {
                    w.b.rsp_free(rsp)?;
                }
                in_state(w, &b, EpState::Unconnected)?;
            }
            w.b.ep_free(b.ep)?;
            w.b.evd_free(requests)?;
            Ok(())
        })
    }),
    // A service point whose one request was accepted has no part in what the endpoint does later:
    // neither its free nor a request to it touches a newer reservation.
    test("dat_connect::an_old_reservation_does_not_touch_a_new_one", &[], |f| {
        world(f, |w| {
            let (a, b) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
            let requests = evd(&w.b, EvdFlags::CR)?;
            let first = free_qualifier(&w.b)?;
            let old = w.b.rsp_create(first, b.ep, requests)?;
            let second = free_qualifier(&w.b)?;
            dial(&a, address(&w.b)?, first, &[])?;
            w.b.cr_accept(request(&w.b, requests)?, b.ep, &[])?;
            for end in [&a, &b] {
                expect(&end.ia, end.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            }
            a.disconnect()?;
            expect(&w.b, b.connect, EventNumber::CONNECTION_DISCONNECTED)?;
            for end in [&a, &b] {
                end.ia.ep_reset(end.ep)?;
            }
            let new = w.b.rsp_create(second, b.ep, requests)?;
            dial(&a, address(&w.b)?, first, &[])?;
            nothing(&w.b, requests)?;
            expect(&w.a, a.connect, EventNumber::CONNECTION_NON_PEER_REJECTED)?;
            in_state(w, &b, EpState::Reserved)?;
            w.b.rsp_free(old)?;
            in_state(w, &b, EpState::Reserved)?;
            w.b.rsp_free(new)?;
            in_state(w, &b, EpState::Unconnected)
        })
    }),
    // Private data of a request, an acceptance and a rejection arrives whole, padded with zeros, up
    // to the limit of each. One byte more is refused, and the request or the endpoint stays as it
    // was.
    test("dat_connect::private_data", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?, point(&w.b)?);
            let bytes: Vec<u8> = (0..=255).map(|byte| 255 - byte).collect();
            let (to, qos) = (address(&w.b)?, Qos::BEST_EFFORT);
            let (_, _, attr) = w.a.ia_query(IaAttrMask::NONE, ProviderAttrMask::ALL)?;
            check_eq!(some(attr, "the provider's attributes")?.max_private_data_size, 92);
            for len in [93, 256] {
                let flags = ConnectFlags::Default;
                let asked = w.a.ep_connect(a.ep, to, point.conn_qual, LONG, &bytes[..len], qos, flags);
                refused(asked, parameter(Subtype::InvalidArg5))?;
                check_eq!(a.state()?, EpState::Unconnected);
            }
            for (asked, said, accepts) in [(92, 196, true), (1, 1, true), (92, 148, false), (5, 1, false)] {
                dial(&a, to, point.conn_qual, &bytes[..asked])?;
                let cr = request(&w.b, point.requests)?;
                let data = some(w.b.cr_query(cr)?.private_data, "private data")?;
                check_eq!((data.len(), &data[..asked]), (92, &bytes[..asked]));
                check!(data[asked..].iter().all(|byte| *byte == 0));
                let limit = if accepts { 196 } else { 148 };
                for long in [limit + 1, 256] {
                    let wrong = parameter(Subtype::InvalidArg3);
                    refused(
                        if accepts {
                            w.b.cr_accept(cr, b.ep, &bytes[..long])
                        } else {
                            w.b.cr_reject(cr, &bytes[..long])
                        },
                        wrong,
                    )?;
                    check_eq!(b.state()?, EpState::Unconnected);
                }
                let number = if accepts {
                    w.b.cr_accept(cr, b.ep, &bytes[..said])?;
                    EventNumber::CONNECTION_ESTABLISHED
                } else {
                    w.b.cr_reject(cr, &bytes[..said])?;
                    EventNumber::CONNECTION_PEER_REJECTED
                };
                let event = expect(&w.a, a.connect, number)?;
                let data = some(connection(&event)?.private_data, "private data")?;
                check_eq!((data.len(), &data[..said]), (limit, &bytes[..said]));
                check!(data[said..].iter().all(|byte| *byte == 0));
                if accepts {
                    expect(&w.b, b.connect, EventNumber::CONNECTION_ESTABLISHED)?;
                    a.disconnect()?;
                    expect(&w.b, b.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                    w.b.ep_reset(b.ep)?;
                }
                w.a.ep_reset(a.ep)?;
            }
            Ok(())
        })
    }),
    // Nobody listens: the attempt ends with a rejection that is not the consumer's. So does an
    // attempt at a service point that was freed. A request whose event is queued can be answered.
    test("dat_connect::nobody_listens", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?, point(&w.b)?);
            let to = address(&w.b)?;
            dial(&a, to, free_qualifier(&w.b)?, &[])?;
            expect(&w.a, a.connect, EventNumber::CONNECTION_NON_PEER_REJECTED)?;
            in_state(w, &a, EpState::Disconnected)?;
            w.a.ep_reset(a.ep)?;
            dial(&a, to, point.conn_qual, &[])?;
            let queued = || w.b.evd_wait(point.requests, 0, 2).is_err_and(|failure| failure.nmore == 1);
            check!(eventually(w.f.platform(), queued), "no request came");
            w.b.psp_free(point.psp)?;
            refused(w.b.psp_query(point.psp), invalid(Subtype::InvalidHandlePsp))?;
            let late = w.end(&w.a, &attributes())?;
            dial(&late, to, point.conn_qual, &[])?;
            expect(&w.a, late.connect, EventNumber::CONNECTION_NON_PEER_REJECTED)?;
            let event = w.b.evd_dequeue(point.requests)?;
            w.b.cr_accept(cr(&event)?, b.ep, &[])?;
            expect(&w.a, a.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            expect(&w.b, b.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            nothing(&w.b, point.requests)?;
            w.b.evd_free(point.requests)?;
            Ok(())
        })
    }),
    // If no answer comes in time, the attempt times out. The request can still be answered: an
    // acceptance then fails with an event, and the endpoint is disconnected.
    test("dat_connect::a_request_that_nobody_answers", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?, point(&w.b)?);
            for accepts in [true, false] {
                let (to, qos, flags) = (address(&w.b)?, Qos::BEST_EFFORT, ConnectFlags::Default);
                w.a.ep_connect(a.ep, to, point.conn_qual, 20_000, &[], qos, flags)?;
                let cr = request(&w.b, point.requests)?;
                let event = expect(&w.a, a.connect, EventNumber::CONNECTION_TIMED_OUT)?;
                check_eq!(connection(&event)?.ep_handle, a.ep);
                in_state(w, &a, EpState::Disconnected)?;
                w.a.ep_reset(a.ep)?;
                if accepts {
                    w.b.cr_accept(cr, b.ep, &[])?;
                    expect(&w.b, b.connect, EventNumber::CONNECTION_ACCEPT_COMPLETION_ERROR)?;
                    in_state(w, &b, EpState::Disconnected)?;
                    w.b.ep_reset(b.ep)?;
                } else {
                    w.b.cr_reject(cr, &[])?;
                }
                refused(w.b.cr_reject(cr, &[]), invalid(Subtype::InvalidHandleCr))?;
            }
            Ok(())
        })
    }),
    // The active side may give up, by a disconnect or by freeing its endpoint. The passive side's
    // answer then fails with an event, also of an endpoint that a service point reserved.
    test("dat_connect::the_active_side_gives_up", &[], |f| {
        world(f, |w| {
            let requests = evd(&w.b, EvdFlags::CR)?;
            for (frees, reserved) in [(false, false), (true, false), (false, true), (true, true)] {
                let (a, b) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
                let conn_qual = free_qualifier(&w.b)?;
                let (psp, rsp) = match reserved {
                    true => (None, Some(w.b.rsp_create(conn_qual, b.ep, requests)?)),
                    false => (Some(w.b.psp_create(conn_qual, requests, PspFlags::Consumer)?), None),
                };
                dial(&a, address(&w.b)?, conn_qual, &[])?;
                let cr = request(&w.b, requests)?;
                if frees {
                    w.a.ep_free(a.ep)?;
                } else {
                    w.a.ep_disconnect(a.ep, CloseFlags::Graceful)?;
                    expect(&w.a, a.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                    in_state(w, &a, EpState::Disconnected)?;
                }
                nothing(&w.a, a.connect)?;
                w.b.cr_accept(cr, b.ep, &[])?;
                expect(&w.b, b.connect, EventNumber::CONNECTION_ACCEPT_COMPLETION_ERROR)?;
                in_state(w, &b, EpState::Disconnected)?;
                match (psp, rsp) {
                    (Some(psp), _) => w.b.psp_free(psp)?,
                    (_, Some(rsp)) => w.b.rsp_free(rsp)?,
                    _ => {}
                }
                w.b.ep_free(b.ep)?;
            }
            Ok(())
        })
    }),
    // The passive side may give up while the connection is being completed.
    test("dat_connect::the_passive_side_gives_up", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?, point(&w.b)?);
            dial(&a, address(&w.b)?, point.conn_qual, &[])?;
            w.b.cr_accept(request(&w.b, point.requests)?, b.ep, &[])?;
            w.b.ep_disconnect(b.ep, CloseFlags::Abrupt)?;
            in_state(w, &b, EpState::Disconnected)?;
            // The handshake may have ended before: then both sides see that as well.
            let mut last = next(&w.b, b.connect)?.event_number;
            if last == EventNumber::CONNECTION_ESTABLISHED {
                last = next(&w.b, b.connect)?.event_number;
            }
            check_eq!(last, EventNumber::CONNECTION_DISCONNECTED);
            let mut last = next(&w.a, a.connect)?.event_number;
            if last == EventNumber::CONNECTION_ESTABLISHED {
                last = next(&w.a, a.connect)?.event_number;
            }
            // Its confirmation may meet an endpoint that has gone.
            let ended = [
                EventNumber::CONNECTION_DISCONNECTED,
                EventNumber::CONNECTION_NON_PEER_REJECTED,
                EventNumber::CONNECTION_BROKEN,
            ];
            check!(ended.contains(&last), "{last:?}");
            in_state(w, &a, EpState::Disconnected)?;
            nothing(&w.a, a.connect)?;
            nothing(&w.b, b.connect)
        })
    }),
    // Of several answers to one request, given at the same time, one is made.
    test("dat_connect::one_answer_is_made", &[], |f| {
        world(f, |w| {
            let (from, to) = (point(&w.b)?, point(&w.b)?);
            for _ in 0..6 {
                let (a, b) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
                dial(&a, address(&w.b)?, from.conn_qual, &[])?;
                let cr = request(&w.b, from.requests)?;
                let (accepts, rejects, hands, ep) = (w.b.clone(), w.b.clone(), w.b.clone(), b.ep);
                let elsewhere = to.conn_qual;
                let answers = crate::thread::together(
                    w.f.platform(),
                    vec![
                        alloc::boxed::Box::new(move || accepts.cr_accept(cr, ep, &[]))
                            as crate::thread::Body<Result<()>>,
                        alloc::boxed::Box::new(move || rejects.cr_reject(cr, &[])),
                        alloc::boxed::Box::new(move || hands.cr_handoff(cr, elsewhere)),
                    ],
                )?;
                check_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
                for answer in answers.iter().filter(|answer| answer.is_err()) {
                    check_eq!(*answer, Err(invalid(Subtype::InvalidHandleCr)));
                }
                if answers[2].is_ok() {
                    w.b.cr_reject(request(&w.b, to.requests)?, &[])?;
                }
                let end = match answers[0].is_ok() {
                    true => EventNumber::CONNECTION_ESTABLISHED,
                    false => EventNumber::CONNECTION_PEER_REJECTED,
                };
                expect(&w.a, a.connect, end)?;
                for end in [a, b] {
                    end.ia.ep_free(end.ep)?;
                    for evd in [end.recv, end.request, end.connect] {
                        end.ia.evd_free(evd)?;
                    }
                    end.ia.pz_free(end.pz)?;
                }
            }
            nothing(&w.b, to.requests)
        })
    }),
    // A request can be handed over to another service point of the IA, with its private data. The
    // former handle is then invalid. A hand-off to nobody is refused and changes nothing.
    test("dat_connect::handoff", &[], |f| {
        world(f, |w| {
            let (a, b) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
            let (from, to, nobody) = (point(&w.b)?, point(&w.b)?, free_qualifier(&w.b)?);
            dial(&a, address(&w.b)?, from.conn_qual, b"to whom it may concern")?;
            let cr = request(&w.b, from.requests)?;
            let before = w.b.cr_query(cr)?;
            for bad in [0, nobody] {
                refused(w.b.cr_handoff(cr, bad), parameter(Subtype::InvalidArg2))?;
                check_eq!(w.b.cr_query(cr)?, before);
            }
            w.b.cr_handoff(cr, to.conn_qual)?;
            refused(w.b.cr_query(cr), invalid(Subtype::InvalidHandleCr))?;
            refused(w.b.cr_accept(cr, b.ep, &[]), invalid(Subtype::InvalidHandleCr))?;
            nothing(&w.b, from.requests)?;
            let event = expect(&w.b, to.requests, EventNumber::CONNECTION_REQUEST)?;
            let cr = self::cr(&event)?;
            match event.event_data {
                // It looks like the first one.
                EventData::CrArrival(arrival) => check_eq!(arrival.sp_handle, SpHandle::Psp(from.psp)),
                other => return Err(Failure::new(alloc::format!("{other:?}"))),
            }
            check_eq!(w.b.cr_query(cr)?, before);
            w.b.cr_accept(cr, b.ep, &[])?;
            expect(&w.a, a.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            Ok(())
        })
    }),
    // The service of a connection can be asked for another one. The side that was asked does not
    // know its peer's service.
    test("dat_connect::dup_connect", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?, point(&w.b)?);
            let (again, there) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
            let dup = |ep, of| w.a.ep_dup_connect(ep, of, LONG, b"again", Qos::BEST_EFFORT);
            refused(dup(again.ep, a.ep), wrong(EpState::Unconnected))?;
            dial(&a, address(&w.b)?, point.conn_qual, &[])?;
            refused(dup(again.ep, a.ep), wrong(EpState::ActiveConnectionPending))?;
            w.b.cr_accept(request(&w.b, point.requests)?, b.ep, &[])?;
            for end in [&a, &b] {
                expect(&end.ia, end.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            }
            refused(dup(a.ep, a.ep), wrong(EpState::Connected))?;
            refused(dup(again.ep, EpHandle::NULL), invalid(Subtype::InvalidHandle2))?;
            let zero = w.a.ep_dup_connect(again.ep, a.ep, 0, &[], Qos::BEST_EFFORT);
            check!(zero.is_err_and(|error| error.kind() == ErrorType::InvalidParameter));
            let spare = w.end(&w.b, &attributes())?;
            let from_there = w.b.ep_dup_connect(spare.ep, b.ep, LONG, &[], Qos::BEST_EFFORT);
            refused(from_there, parameter(Subtype::InvalidArg2))?;
            in_state(w, &spare, EpState::Unconnected)?;
            in_state(w, &again, EpState::Unconnected)?;
            dup(again.ep, a.ep)?;
            let cr = request(&w.b, point.requests)?;
            let data = some(w.b.cr_query(cr)?.private_data, "private data")?;
            check_eq!(&data[..5], b"again");
            w.b.cr_accept(cr, there.ep, &[])?;
            for end in [&again, &there] {
                expect(&end.ia, end.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            }
            in_state(w, &a, EpState::Connected)
        })
    }),
    // The arguments of service points and connections.
    test("dat_connect::arguments", &[], |f| {
        world(f, |w| {
            let (a, point) = (w.end(&w.a, &attributes())?, point(&w.b)?);
            let requests = point.requests;
            let expected = PspParam {
                ia_handle: w.b.handle(),
                conn_qual: point.conn_qual,
                evd_handle: requests,
                psp_flags: PspFlags::Consumer,
            };
            check_eq!(w.b.psp_query(point.psp)?, expected);
            let again = w.b.psp_create(point.conn_qual, requests, PspFlags::Consumer);
            refused(again, ErrorType::ConnQualInUse.into())?;
            let model = ErrorType::ModelNotSupported.into();
            refused(w.b.psp_create(99, requests, PspFlags::Provider), model)?;
            refused(w.b.psp_create_any(requests, PspFlags::Provider), model)?;
            let zero = parameter(Subtype::InvalidArg2);
            refused(w.b.psp_create(0, requests, PspFlags::Consumer), zero)?;
            let b = w.end(&w.b, &attributes())?;
            refused(w.b.rsp_create(0, b.ep, requests), zero)?;
            refused(w.b.rsp_create(point.conn_qual, b.ep, requests), ErrorType::ConnQualInUse.into())?;
            in_state(w, &b, EpState::Unconnected)?;
            let dial =
                |to, qual, timeout, qos, flags| w.a.ep_connect(a.ep, to, qual, timeout, &[], qos, flags);
            let (to, qual, best) = (address(&w.b)?, point.conn_qual, Qos::BEST_EFFORT);
            let plain = ConnectFlags::Default;
            refused(dial(to, 0, LONG, best, plain), parameter(Subtype::InvalidArg3))?;
            refused(dial(to, qual, 0, best, plain), parameter(Subtype::InvalidArg4))?;
            refused(dial(to, qual, LONG, Qos::PREMIUM, plain), model)?;
            refused(dial(to, qual, LONG, best, ConnectFlags::MultipathRequired), model)?;
            let nowhere: IaAddress = "224.0.0.9".parse().map_err(|_| Failure::new("an address"))?;
            let error = dial(nowhere, qual, LONG, best, plain).map_err(|error| error.kind());
            check_eq!(error, Err(ErrorType::InvalidAddress));
            in_state(w, &a, EpState::Unconnected)?;
            // An endpoint without a zone, or without an event dispatcher of connection events, is
            // not ready.
            let ready = state(Subtype::InvalidStateEpNotReady);
            for (pz, connect) in [(PzHandle::NULL, a.connect), (a.pz, EvdHandle::NULL)] {
                let ep = w.a.ep_create(pz, a.recv, a.request, connect, Some(&attributes()))?;
                let end = End { ep, ..a.clone() };
                let asked = w.a.ep_connect(ep, to, qual, LONG, &[], best, plain);
                refused(asked, ready)?;
                refused(w.a.rsp_create(88, ep, evd(&w.a, EvdFlags::CR)?), ready)?;
                check_eq!(end.state()?, EpState::Unconnected);
            }
            // Several paths are asked for, not required: one will do.
            dial(to, qual, TIMEOUT_INFINITE, best, ConnectFlags::MultipathRequested)?;
            w.b.cr_accept(request(&w.b, requests)?, b.ep, &[])?;
            expect(&w.a, a.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            Ok(())
        })
    }),
    // A service point is freed and another thread makes one at the same qualifier: its requests
    // name it.
    test("dat_connect::a_qualifier_is_used_again", &[], |f| {
        world(f, |w| {
            let (a, requests) = (w.end(&w.a, &attributes())?, evd(&w.b, EvdFlags::CR)?);
            let conn_qual = free_qualifier(&w.b)?;
            let mut psp = w.b.psp_create(conn_qual, requests, PspFlags::Consumer)?;
            for _ in 0..8 {
                let (ia, frees) = (w.b.clone(), w.b.clone());
                let thread = Thread::spawn(w.f.platform(), "free", move || frees.psp_free(psp))?;
                psp = loop {
                    match ia.psp_create(conn_qual, requests, PspFlags::Consumer) {
                        Ok(psp) => break psp,
                        Err(error) => check_eq!(error.kind(), ErrorType::ConnQualInUse),
                    }
                    crate::thread::breathe(w.f.platform());
                };
                thread.join()??;
                dial(&a, address(&w.b)?, conn_qual, &[])?;
                let event = expect(&w.b, requests, EventNumber::CONNECTION_REQUEST)?;
                match event.event_data {
                    EventData::CrArrival(arrival) => check_eq!(arrival.sp_handle, SpHandle::Psp(psp)),
                    other => return Err(Failure::new(alloc::format!("{other:?}"))),
                }
                w.b.cr_reject(cr(&event)?, &[])?;
                expect(&w.a, a.connect, EventNumber::CONNECTION_PEER_REJECTED)?;
                w.a.ep_reset(a.ep)?;
            }
            Ok(())
        })
    }),
];

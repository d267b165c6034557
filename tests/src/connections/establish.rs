//! Connections under difficulties: identifiers whose peer has gone, races, lost messages, endpoints
//! in TimeWait, exhausted resources (pages it_ep_accept, it_reject, it_handoff, it_ep_rc_create,
//! it_ep_state_t; appendix A).

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::check::some;
use crate::fixture::{
    CONFIG, End, Fixture, Listener, OPEN, Pair, SIGNALLED, attributes, is_iwarp, path, sevd, spigot,
};
use crate::thread::{Thread, eventually};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const TWO_WAY: CnEstFlags = CnEstFlags::TWO_WAY;
const THREE_WAY: CnEstFlags = CnEstFlags::THREE_WAY;

/// An endpoint on each side, and a listen point on the passive side.
fn sides(f: &Fixture) -> Result<(End, End, Listener), Failure> {
    Ok((f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?, f.listen(&f.b)?))
}

/// The identifier in the event that an acceptance has arrived.
#[track_caller]
fn arrival(end: &End) -> Result<CnEstId, Failure> {
    match end.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)? {
        Event::ConnAcceptArrival { cn_est_id, .. } => Ok(cn_est_id),
        other => Err(Failure::new(alloc::format!("got {other:?}"))),
    }
}

/// Takes a non-peer reject, and checks its reason and the endpoint's state.
#[track_caller]
pub(crate) fn not_made(end: &End, reason: RejectReason) -> Outcome {
    match end.event()? {
        Event::ConnNonpeerReject { reject_reason_code, .. } if reject_reason_code == reason => {}
        // MPA's rejection does not say whether the consumer or the agent rejects.
        Event::ConnPeerReject { .. } if is_iwarp(&end.ia)? => {}
        other => return Err(Failure::new(alloc::format!("got {other:?}"))),
    }
    match end.state()? {
        EpStateRc::Nonoperational => Ok(()),
        state => Err(Failure::new(alloc::format!("not connected, but in {state:?}"))),
    }
}

/// Frees an endpoint with its zone and EVDs.
#[track_caller]
fn free_all(end: End) -> Outcome {
    let End { ia, pz, request, recv, conn, ep } = end;
    match ia.ep_free(ep) {
        Ok(()) | Err(Error::InvalidEp) => {}
        Err(error) => return Err(error.into()),
    }
    for evd in [request, recv, conn] {
        ia.evd_free(evd)?;
    }
    ia.pz_free(pz)?;
    Ok(())
}

/// Drops the next `count` management datagrams of the passive side; 0 stops that.
fn lose(f: &Fixture, count: u32) -> Outcome {
    Need::Faults.of(&f.b)?;
    Ok(f.setup.b.agent.test_handle().inject(0, Injection::DropManagement, count, 0)?)
}

/// Accepts, rejects and hands off the same identifier, each in a thread of its own.
fn race(f: &Fixture, id: CnEstId, ep: EpHandle, to: ConnQual) -> Result<[Result<(), Error>; 3], Failure> {
    let here = spigot(&f.b)?.spigot_id;
    let (accepting, rejecting, handing) = (f.b.clone(), f.b.clone(), f.b.clone());
    let platform = f.platform();
    let accepted = Thread::spawn(platform, "accept", move || accepting.ep_accept(ep, id, &[]))?;
    let rejected = Thread::spawn(platform, "reject", move || rejecting.reject(id, &[]))?;
    let handed = Thread::spawn(platform, "handoff", move || handing.handoff(&to, here, id))?;
    Ok([accepted.join()?, rejected.join()?, handed.join()?])
}

pub(crate) const TESTS: &[Test] = &[
    // An identifier stays valid until the consumer uses it, even when the connection it was for is
    // over.
    test("connect::identifiers_outlive_the_reply", &["A.it_ep_state_t V01 V02"], |f| {
        // The passive side gives up between its own accept and the active side's.
        let gone = |f: &Fixture| -> Result<(End, CnEstId), Failure> {
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            f.b.ep_disconnect(passive.ep, &[])?;
            not_made(&active, RejectReason::Other)?;
            Ok((active, id))
        };
        // The identifier cannot be accepted any more, but it is valid until it is used.
        let (active, id) = gone(f)?;
        check_eq!(f.a.object_counts().cn_est, 1);
        refused(f.a.ep_accept(active.ep, id, &[]), Error::InvalidEpState)?;
        f.a.reject(id, &[])?;
        refused(f.a.reject(id, &[]), Error::InvalidCnEstId)?;
        refused(f.a.ep_accept(active.ep, id, &[]), Error::InvalidCnEstId)?;
        check_eq!(active.state()?, EpStateRc::Nonoperational);
        refused(f.a.evd_dequeue(active.conn), Error::QueueEmpty)?;
        // A reset and a free invalidate the identifier as well.
        let (active, id) = gone(f)?;
        f.a.ep_reset(active.ep)?;
        refused(f.a.reject(id, &[]), Error::InvalidCnEstId)?;
        let (active, id) = gone(f)?;
        f.a.ep_free(active.ep)?;
        refused(f.a.reject(id, &[]), Error::InvalidCnEstId)?;
        check_eq!(f.a.object_counts().cn_est, 0);
        Ok(())
    }),
    // The identifier of a request that was withdrawn stays valid until the consumer uses it.
    test(
        "connect::identifiers_outlive_the_request",
        &["A.it_ep_state_t V01 V02", "it_ep_state_t S33"],
        |f| {
            for answer in 0..3 {
                let (active, passive, listener) = sides(f)?;
                let second = f.listen(&f.b)?;
                f.dial(&active, &listener, TWO_WAY, &[])?;
                let id = listener.request()?.cn_est_id;
                f.a.ep_disconnect(active.ep, &[])?;
                active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                let over = || f.setup.b.agent.counts().connections == 0;
                check!(eventually(f.platform(), over), "the request was not withdrawn");
                check_eq!(f.b.object_counts().cn_est, 1);
                match answer {
                    0 => f.b.reject(id, &[])?,
                    1 => {
                        f.b.ep_accept(passive.ep, id, &[])?;
                        not_made(&passive, RejectReason::Other)?;
                    }
                    _ => {
                        f.b.handoff(&second.conn_qual, spigot(&f.b)?.spigot_id, id)?;
                        f.b.reject(second.request()?.cn_est_id, &[])?;
                    }
                }
                refused(f.b.reject(id, &[]), Error::InvalidCnEstId)?;
                check_eq!(f.b.object_counts().cn_est, 0);
                second.free()?;
                listener.free()?;
            }
            Ok(())
        },
    ),
    // If threads accept, reject and hand off one request at the same time, one of the calls
    // succeeds.
    test("connect::one_answer_wins", &["it_ep_accept V01", "it_handoff V01"], |f| {
        for _ in 0..8 {
            let (active, passive, listener) = sides(f)?;
            let second = f.listen(&f.b)?;
            f.dial(&active, &listener, TWO_WAY, &[])?;
            let id = listener.request()?.cn_est_id;
            let outcomes = race(f, id, passive.ep, second.conn_qual)?;
            check_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
            // The others find the identifier used up (it_ep_accept, it_reject, it_handoff).
            for lost in outcomes.iter().filter_map(|outcome| outcome.err()) {
                check_eq!(lost, Error::InvalidCnEstId);
            }
            if outcomes[2].is_ok() {
                f.b.reject(second.request()?.cn_est_id, &[])?;
            }
            let established = outcomes[0].is_ok();
            let expected = match established {
                true => EventType::CM_MSG_CONN_ESTABLISHED,
                false => EventType::CM_MSG_CONN_PEER_REJECT,
            };
            active.expect(expected)?;
            check_eq!(passive.state()? != EpStateRc::Unconnected, established);
            for end in [active, passive] {
                free_all(end)?;
            }
            second.free()?;
            listener.free()?;
        }
        Ok(())
    }),
    // An endpoint that is freed while the acceptance arrives leaves no identifier behind, and no
    // event but an arrival that was queued before.
    test("connect::a_free_races_the_accept", &["A.it_ep_free B03 B04"], |f| {
        for round in 0..24 {
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            let id = listener.request()?.cn_est_id;
            let (b, ep) = (f.b.clone(), passive.ep);
            let accepted = Thread::spawn(f.platform(), "accept", move || b.ep_accept(ep, id, &[]))?;
            if round % 3 == 0 {
                // In some rounds the acceptance has arrived before the free.
                arrival(&active)?;
            }
            f.a.ep_free(active.ep)?;
            accepted.join()??;
            check_eq!(f.a.object_counts().cn_est, 0, "an identifier without an endpoint");
            not_made(&passive, RejectReason::Other)?;
            // The accept has consumed the request's identifier, so the endpoint can be freed.
            f.b.ep_free(passive.ep)?;
            // No event of the endpoint is queued after it was freed; an arrival that was queued
            // before may still be there (it_ep_free).
            while let Ok(event) = f.a.evd_dequeue(active.conn) {
                check_eq!(event.event_number(), EventType::CM_MSG_CONN_ACCEPT_ARRIVAL);
            }
            for end in [active, passive] {
                free_all(end)?;
            }
            listener.free()?;
        }
        Ok(())
    }),
    // After the event of a disconnect, no late acceptance is reported.
    test("connect::no_arrival_behind_a_disconnect", &["A.it_cm_msg_events B03 B05"], |f| {
        for _ in 0..16 {
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            let id = listener.request()?.cn_est_id;
            let (b, ep) = (f.b.clone(), passive.ep);
            let accepted = Thread::spawn(f.platform(), "accept", move || b.ep_accept(ep, id, &[]))?;
            f.a.ep_disconnect(active.ep, &[])?;
            accepted.join()??;
            let mut last = active.event()?;
            if let Event::ConnAcceptArrival { cn_est_id, .. } = last {
                refused(f.a.reject(cn_est_id, &[]), Error::InvalidCnEstId)?;
                last = active.event()?;
            }
            check_eq!(last.event_number(), EventType::CM_MSG_CONN_DISCONNECT);
            not_made(&passive, RejectReason::Other)?;
            refused(f.a.evd_dequeue(active.conn), Error::QueueEmpty)?;
            check_eq!(f.a.object_counts().cn_est, 0);
            for end in [active, passive] {
                free_all(end)?;
            }
            listener.free()?;
        }
        Ok(())
    }),
    // The active side may raise its depths before it accepts, and the passive side its ORD once it
    // is connected; reads then work both ways.
    test(
        "connect::depths_raised_after_the_arrival",
        &["it_ep_attributes_t S03 S04", "it_cm_msg_events B11"],
        |f| {
            // Neither end may read at first.
            let none = RcAttributes { rdma_read_ird: 0, rdma_read_ord: 0, ..attributes().rc };
            let serving = RcAttributes { rdma_read_ord: 0, ..attributes().rc };
            let active = f.end(&f.a, &EpAttributes { rc: none, ..attributes() })?;
            let passive = f.end(&f.b, &EpAttributes { rc: serving, ..attributes() })?;
            let listener = f.listen(&f.b)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            let more = RcAttributes { rdma_read_ird: 2, rdma_read_ord: 2, ..attributes().rc };
            let (both, more) =
                (EpParamMask::MAX_IRD | EpParamMask::MAX_ORD, EpAttributes { rc: more, ..attributes() });
            f.a.ep_modify(active.ep, both, &more)?;
            f.a.ep_accept(active.ep, id, &[])?;
            for end in [&active, &passive] {
                end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            }
            f.b.ep_modify(passive.ep, EpParamMask::MAX_ORD, &more)?;
            // Both ends read, and each posts more reads than may be outstanding.
            for (from, to) in [(&active, &passive), (&passive, &active)] {
                let (own, there) =
                    (f.region(&from.ia, from.pz, 64, OPEN)?, f.region(&to.ia, to.pz, 64, OPEN)?);
                there.fill(4);
                let (at, context) = (there.remote(0), there.context()?);
                for cookie in 0..6 {
                    from.ia.post_rdma_read(from.ep, &[own.whole()], cookie, SIGNALLED, at, context)?;
                }
                for cookie in 0..6 {
                    from.done(cookie, DtoStatus::Success)?;
                }
                check!(own.all() == there.all());
            }
            Ok(())
        },
    ),
    // A rejection whose message is lost is repeated; if every message is lost, the attempt times
    // out.
    test("connect::a_rejection_that_is_lost", &["it_reject A01 O02"], |f| {
        for all in [false, true] {
            let (active, _, listener) = sides(f)?;
            // A response timeout of 4.096 us * 2^13 = 34 ms.
            let quick =
                ConnAttributes { local_cm_timeout: 13, remote_cm_timeout: 13, ..ConnAttributes::default() };
            let timeout = if all { 300_000 } else { 10_000_000 };
            let route = Path { timeout, ..path(&f.a, &listener.address)? };
            f.a.ep_connect(active.ep, &route, Some(&quick), &listener.conn_qual, TWO_WAY, &[])?;
            let id = listener.request()?.cn_est_id;
            lose(f, if all { 100_000 } else { 1 })?;
            let rejected = f.b.reject(id, b"not today");
            let event = match rejected {
                Ok(()) => active.event(),
                Err(error) => Err(Failure::from(error)),
            };
            lose(f, 0)?;
            match event? {
                Event::ConnNonpeerReject { reject_reason_code, .. } if all => {
                    check_eq!(reject_reason_code, RejectReason::Timeout);
                }
                // The repeated request is answered with the same rejection.
                Event::ConnPeerReject { private_data, .. } if !all => {
                    check!(some(private_data, "private data")?.starts_with(b"not today"));
                }
                other => return Err(Failure::new(alloc::format!("got {other:?}"))),
            }
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            f.a.ep_free(active.ep)?;
            listener.free()?;
        }
        Ok(())
    }),
    // An endpoint can be connected again at once, since the connections here have no TimeWait that
    // an endpoint sees.
    test(
        "connect::no_time_wait",
        &["it_ep_rc_create B11 S02 V02", "A.it_ep_rc_create V01", "it_ep_reset S01"],
        |f| {
            // An endpoint whose connection is over can be connected again at once, whether or not
            // it was created with the flag.
            for flags in [EpFlags::empty(), EpFlags::REUSEADDR] {
                let again = |of: &End| -> Result<End, Failure> {
                    let End { ia, pz, request, recv, conn, ep } = of;
                    ia.ep_free(*ep)?;
                    let ep = ia.ep_rc_create(*pz, *request, *recv, *conn, flags, &attributes())?;
                    Ok(End { ep, ..of.clone() })
                };
                let active = again(&f.end(&f.a, &attributes())?)?;
                let passive = again(&f.end(&f.b, &attributes())?)?;
                for round in 0..6 {
                    f.connect(&active, &passive)?;
                    let by = if round % 2 == 0 { &active } else { &passive };
                    by.ia.ep_disconnect(by.ep, &[])?;
                    for end in [&active, &passive] {
                        end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                        check_eq!(end.state()?, EpStateRc::Nonoperational);
                        end.ia.ep_reset(end.ep)?;
                        check_eq!(end.state()?, EpStateRc::Unconnected);
                    }
                }
                // Other endpoints between the same two spigots can be connected as well.
                f.connect(&again(&active)?, &again(&passive)?)?;
            }
            Ok(())
        },
    ),
    // A connection needs no resources beyond those of its endpoint, so it can be made when the
    // adapter has none left.
    test("connect::no_resources_beyond_those_of_the_endpoint", &["A.it_ep_attributes_t B02"], |f| {
        let pair = Pair { a: f.end(&f.a, &attributes())?, b: f.end(&f.b, &attributes())? };
        let listener = f.listen(&f.b)?;
        // The adapter has no resources left for another endpoint.
        let spare = f.end(&f.a, &attributes())?;
        let mut rest = Vec::new();
        let create = || {
            let none = EpFlags::empty();
            f.a.ep_rc_create(spare.pz, spare.request, spare.recv, spare.conn, none, &attributes())
        };
        let refusal = loop {
            match create() {
                Ok(ep) => rest.push(ep),
                Err(error) => break error,
            }
            check!(rest.len() <= CONFIG.max_qps as usize, "{} endpoints", rest.len());
        };
        check_eq!(refusal, Error::Resources);
        for &flags in f.handshakes()? {
            f.dial(&pair.a, &listener, flags, &[])?;
            f.b.ep_accept(pair.b.ep, listener.request()?.cn_est_id, &[])?;
            if flags == THREE_WAY {
                f.a.ep_accept(pair.a.ep, arrival(&pair.a)?, &[])?;
            }
            for end in [&pair.a, &pair.b] {
                end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            }
            f.a.ep_disconnect(pair.a.ep, &[])?;
            for end in [&pair.a, &pair.b] {
                end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                end.ia.ep_reset(end.ep)?;
            }
            refused(create(), Error::Resources)?;
        }
        Ok(())
    }),
    // Every event of a connection arrives at the EVD of its endpoint.
    test("connect::events_arrive_on_the_endpoints_evd", &["it_ep_rc_create B08"], |f| {
        // Two endpoints share an EVD for connection events, a third one has its own.
        let (shared, listener) = (sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 16, 1)?, f.listen(&f.b)?);
        let dto = sevd(&f.a, EventType::DTO_EVENT_STREAM, 256, 1)?;
        let pz = f.a.pz_create()?;
        let on = |conn| -> Result<End, Failure> {
            let ep = f.a.ep_rc_create(pz, dto, dto, conn, EpFlags::empty(), &attributes())?;
            Ok(End { ia: f.a.clone(), pz, request: dto, recv: dto, conn, ep })
        };
        let (first, second) = (on(shared)?, on(shared)?);
        let third = on(sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 16, 1)?)?;
        let takes = |end: &End, kind: EventType| -> Outcome {
            match (end.expect(kind)?, end.ep) {
                (
                    Event::ConnEstablished { ep, .. }
                    | Event::ConnDisconnect { ep, .. }
                    | Event::ConnBroken { ep, .. }
                    | Event::ConnPeerReject { ep, .. }
                    | Event::ConnNonpeerReject { ep, .. },
                    ours,
                ) if ep == ours => Ok(()),
                (other, _) => Err(Failure::new(alloc::format!("got {other:?}"))),
            }
        };
        for end in [&first, &second, &third] {
            let peer = f.end(&f.b, &attributes())?;
            f.dial(end, &listener, TWO_WAY, &[])?;
            f.b.ep_accept(peer.ep, listener.request()?.cn_est_id, &[])?;
            takes(end, EventType::CM_MSG_CONN_ESTABLISHED)?;
            peer.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            f.b.ep_disconnect(peer.ep, &[])?;
            takes(end, EventType::CM_MSG_CONN_DISCONNECT)?;
            f.a.ep_reset(end.ep)?;
            f.dial(end, &listener, TWO_WAY, &[])?;
            f.b.reject(listener.request()?.cn_est_id, &[])?;
            takes(end, EventType::CM_MSG_CONN_PEER_REJECT)?;
            f.a.ep_reset(end.ep)?;
            let route = path(&f.a, &listener.address)?;
            f.a.ep_connect(end.ep, &route, None, &ConnQual::port(9), TWO_WAY, &[])?;
            takes(end, EventType::CM_MSG_CONN_NONPEER_REJECT)?;
            f.a.ep_reset(end.ep)?;
            let peer = f.end(&f.b, &attributes())?;
            f.connect(end, &peer)?;
            let nothing = LmrTriplet::new(LmrHandle::NULL, 0, 8);
            f.a.post_send(end.ep, &[nothing], 1, SIGNALLED)?;
            takes(end, EventType::CM_MSG_CONN_BROKEN)?;
        }
        for conn in [shared, third.conn] {
            refused(f.a.evd_dequeue(conn), Error::QueueEmpty)?;
        }
        Ok(())
    }),
    // Interface names and spigot identifiers mean the same for every IA.
    test("connect::names_are_the_same_for_all", &["A.it_handoff B01"], |f| {
        let other = f.another(None)?;
        let (ours, theirs) = (f.a.ia_query()?, other.ia_query()?);
        check_eq!(ours.ia_name, theirs.ia_name);
        check_eq!(ours.spigot_info, theirs.spigot_info);
        // Both IAs reach the same node through a spigot of this number, and requests to the other
        // IA arrive there.
        let listener = f.listen(&other)?;
        let active = f.end(&f.a, &attributes())?;
        f.dial(&active, &listener, TWO_WAY, &[])?;
        let request = listener.request()?;
        check_eq!(request.spigot_id, spigot(&f.a)?.spigot_id);
        other.reject(request.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
        Ok(())
    }),
];

//! Threads that create, query, modify and connect objects at the same time (chapter 4.2). No call
//! sees a half-made change, and the outcome of several calls is that of some order of them.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::result::Result;
use core::sync::atomic::{AtomicUsize, Ordering};

use privileged_api::*;

use crate::events::aevd::naming;
use crate::fixture::{End, Fixture, OPEN, SIGNALLED, attributes, evd_param, path, sevd, spigot};
use crate::thread::{Body, all_pass, together};
use crate::transport::{Need, Needing};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// How often an answer is refused.
const ANSWERS: usize = 200_000;

/// Creates one object of each type, queries and frees them. Returns their handles.
pub(crate) fn one_of_each_type(f: &Fixture, ia: &Ia) -> Result<Vec<Handle>, Failure> {
    let end = f.end(ia, &attributes())?;
    let region = f.region(ia, end.pz, 256, OPEN)?;
    let unlinked = ia.lmr_create_unlinked(end.pz, 2, LmrFlags::NONE, 0)?;
    let rmr = ia.rmr_create(end.pz, RmrType::Wide)?;
    let srq = ia.srq_create(end.pz, 1, 4)?;
    let listener = f.listen(ia)?;
    let way = path(ia, &listener.address)?;
    let address = ia.address_handle_create(end.pz, &way, AhFlags::PATH_COMPLETE).needing(Need::Datagrams)?;
    let asked = ia.ud_service_request_handle_create(&listener.conn_qual, end.conn, &way, &[])?;
    let (io_addr, len) = ia.mem_map(region.buffer.addr(), ASPACE_KERNEL, 64)?;
    check_eq!(ia.pz_query(end.pz, PzParamMask::ALL)?.ia, ia.handle());
    check_eq!(ia.ep_query(end.ep, EpParamMask::PZ)?.pz, end.pz);
    check_eq!(ia.evd_query(end.conn, EvdParamMask::ALL)?.event_number, EventType::CM_MSG_EVENT_STREAM);
    check_eq!(ia.lmr_query(region.lmr, LmrParamMask::ALL)?.length, 256);
    check_eq!(ia.rmr_query(rmr, RmrParamMask::ALL)?.pz, end.pz);
    check_eq!(ia.srq_query(srq, SrqParamMask::ALL)?.max_recv_dtos, 4);
    check_eq!(ia.srq_outstanding(srq)?, 0);
    check_eq!(ia.listen_query(listener.listen, ListenParamMask::ALL)?.connect_qual, listener.conn_qual);
    check_eq!(ia.address_handle_query(address, AddrParamMask::ALL)?.path, way);
    check_eq!(ia.ud_service_request_handle_query(asked, UdSvcReqParamMask::ALL)?.reply_evd, end.conn);
    let handles: Vec<Handle> = Vec::from([
        end.pz.into(),
        end.request.into(),
        end.recv.into(),
        end.conn.into(),
        end.ep.into(),
        region.lmr.into(),
        unlinked.into(),
        rmr.into(),
        srq.into(),
        listener.evd.into(),
        listener.listen.into(),
        address.into(),
        asked.into(),
    ]);
    for (n, handle) in handles.iter().enumerate() {
        ia.set_consumer_context(*handle, n as u64)?;
        check_eq!(ia.get_consumer_context(*handle)?, n as u64);
    }
    ia.mem_unmap(io_addr, len)?;
    ia.ud_service_request_handle_free(asked)?;
    ia.address_handle_free(address)?;
    listener.free()?;
    ia.srq_free(srq)?;
    ia.rmr_free(rmr)?;
    ia.lmr_free(unlinked)?;
    ia.lmr_free(region.lmr)?;
    ia.ep_free(end.ep)?;
    for evd in [end.request, end.recv, end.conn] {
        ia.evd_free(evd)?;
    }
    ia.pz_free(end.pz)?;
    Ok(handles)
}

/// Two threads change an object to state one (`change(false)`) and to state two (`change(true)`) by
/// turns, and two others look at it. Each look must return one of the two states.
fn always_whole<T: PartialEq + Debug + Send + Sync + 'static>(
    f: &Fixture,
    change: impl Fn(bool) -> Result<(), Error> + Clone + Send + 'static,
    look: impl Fn() -> Result<T, Error> + Clone + Send + 'static,
) -> Outcome {
    let mut ways = Vec::new();
    for way in [false, true] {
        change(way)?;
        ways.push(look()?);
    }
    check!(ways[0] != ways[1], "the change has no effect: {ways:?}");
    let (ways, changing) = (Arc::new(ways), Arc::new(AtomicUsize::new(2)));
    let mut bodies: Vec<Body<Outcome>> = Vec::new();
    for thread in 0..2 {
        let (change, changing_now) = (change.clone(), changing.clone());
        bodies.push(Box::new(move || {
            let changed = (0..50_usize).try_for_each(|n| change((n + thread).is_multiple_of(2)));
            changing_now.fetch_sub(1, Ordering::AcqRel);
            Ok(changed?)
        }));
        let (look, ways, changing) = (look.clone(), ways.clone(), changing.clone());
        bodies.push(Box::new(move || {
            loop {
                let last = changing.load(Ordering::Acquire) == 0;
                let seen = look()?;
                check!(ways.contains(&seen), "{seen:?} is neither of {ways:?}");
                if last {
                    return Ok(());
                }
            }
        }));
    }
    all_pass(f.platform(), bodies)
}

/// The results of two calls that begin at the same moment.
pub(crate) fn both<T: Send + 'static>(
    f: &Fixture,
    first: impl FnOnce() -> T + Send + 'static,
    second: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, T), Failure> {
    let mut got =
        together(f.platform(), Vec::from([Box::new(first) as Body<T>, Box::new(second)]))?.into_iter();
    match (got.next(), got.next()) {
        (Some(first), Some(second)) => Ok((first, second)),
        _ => Err(Failure::new("a thread is missing")),
    }
}

/// Fails unless exactly one of the two calls succeeded and the other one was refused with this
/// error.
#[track_caller]
fn one_of<T: Debug>((first, second): &(Result<T, Error>, Result<T, Error>), error: Error) -> Outcome {
    match (first, second) {
        (Ok(_), Err(other)) | (Err(other), Ok(_)) if *other == error => Ok(()),
        other => Err(Failure::new(alloc::format!("expected one success and one {error:?}, got {other:?}"))),
    }
}

/// Connects, sends a message, disconnects and resets, four times.
pub(crate) fn connect_and_disconnect(f: &Fixture, active: &End, passive: &End) -> Outcome {
    for n in 0..4 {
        f.connect(active, passive)?;
        passive.ia.post_recv(passive.ep, &[], n, DtoFlags::COMPLETION)?;
        active.ia.post_send(active.ep, &[], n, SIGNALLED)?;
        active.done(n, DtoStatus::Success)?;
        passive.recv_done(n, DtoStatus::Success)?;
        active.ia.ep_disconnect(active.ep, &[])?;
        active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        passive.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        for end in [active, passive] {
            check_eq!(end.state()?, EpStateRc::Nonoperational);
            end.ia.ep_reset(end.ep)?;
            check_eq!(end.state()?, EpStateRc::Unconnected);
        }
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // Threads that create and free objects of each type get different handles, and nothing is left.
    test("threads::objects_of_every_kind", &["4.2 B01 B09 B12"], |f| {
        let before = f.setup.a.agent.counts();
        let mut bodies: Vec<Body<Result<Vec<Handle>, Failure>>> = Vec::new();
        for _ in 0..4 {
            let f = f.for_a_thread();
            bodies.push(Box::new(move || {
                let mut handles = Vec::new();
                for _ in 0..5 {
                    handles.extend(one_of_each_type(&f, &f.a)?);
                }
                Ok(handles)
            }));
        }
        let mut handles = Vec::new();
        for lived in together(f.platform(), bodies)? {
            handles.extend(lived?);
        }
        let count = handles.len();
        handles.sort_unstable_by_key(|handle| handle.as_raw());
        handles.dedup();
        check_eq!(handles.len(), count, "a handle was used twice");
        check!(f.a.object_counts().is_empty(), "left: {:?}", f.a.object_counts());
        check_eq!(f.setup.a.agent.counts(), before);
        Ok(())
    })
    .limit(120),
    // A query of an endpoint never sees half of a modification.
    test("threads::endpoints_are_seen_whole", &["4.2 B04 B12"], |f| {
        let end = f.end(&f.a, &attributes())?;
        let mask = EpParamMask::MAX_PAYLOAD
            | EpParamMask::MAX_IRD
            | EpParamMask::MAX_ORD
            | EpParamMask::RDMA_RD_ENABLE
            | EpParamMask::RDMA_WR_ENABLE;
        let (ia, ep) = (f.a.clone(), end.ep);
        let change = move |way| {
            let depth = if way { 3 } else { 1 };
            let rc = RcAttributes {
                rdma_read_ird: depth,
                rdma_read_ord: depth,
                rdma_read_enable: way,
                rdma_write_enable: !way,
                ..attributes().rc
            };
            let max_dto_payload_size = if way { 1000 } else { 5000 };
            ia.ep_modify(ep, mask, &EpAttributes { rc, max_dto_payload_size, ..attributes() })
        };
        let ia = f.a.clone();
        always_whole(f, change, move || ia.ep_query(ep, EpParamMask::ALL))
    }),
    // A query of an EVD never sees half of a modification.
    test("threads::evds_are_seen_whole", &["4.2 B04 B12"], |f| {
        let mask = EvdParamMask::QUEUE_SIZE | EvdParamMask::THRESHOLD | EvdParamMask::ENABLED;
        for stream in [EventType::DTO_EVENT_STREAM, EventType::SOFTWARE_EVENT_STREAM] {
            let evd = f.a.evd_create(stream, EvdFlags::empty(), 8, 1, EvdHandle::NULL)?;
            let ia = f.a.clone();
            let change = move |way| {
                // The larger threshold does not fit into the smaller size.
                let (sevd_queue_size, sevd_threshold) = if way { (64, 40) } else { (16, 2) };
                let param =
                    EvdParam { sevd_queue_size, sevd_threshold, evd_enabled: way, ..EvdParam::default() };
                ia.evd_modify(evd, mask, &param)
            };
            let ia = f.a.clone();
            always_whole(f, change, move || ia.evd_query(evd, EvdParamMask::ALL))?;
        }
        Ok(())
    }),
    // A query of an address handle, a zone's context or a watermark never sees half of a change.
    test("threads::addresses_and_contexts_are_seen_whole", &["4.2 B04 B12"], |f| {
        Need::Datagrams.of(&f.a)?;
        let pz = f.a.pz_create()?;
        let way = path(&f.a, &crate::check::some(spigot(&f.b)?.net_addr.first().copied(), "an address")?)?;
        let addr = f.a.address_handle_create(pz, &way, AhFlags::PATH_COMPLETE)?;
        let ia = f.a.clone();
        let change = move |other: bool| {
            let mut path = way;
            if let Some(ib) = path.ib_mut() {
                (ib.sl, ib.traffic_class) = if other { (3, 77) } else { (1, 11) };
            }
            path.timeout = if other { 5 } else { 6 };
            ia.address_handle_modify(addr, AddrParamMask::PATH, &AddrParam { path, ..AddrParam::default() })
        };
        let ia = f.a.clone();
        always_whole(f, change, move || ia.address_handle_query(addr, AddrParamMask::ALL))?;
        let srq = f.a.srq_create(pz, 1, 16)?;
        for cookie in 0..16 {
            f.a.post_recv(srq, &[], cookie, DtoFlags::COMPLETION)?;
        }
        let ia = f.a.clone();
        let change = move |way| {
            let param = SrqParam { low_watermark: if way { 3 } else { 9 }, ..SrqParam::default() };
            ia.srq_modify(srq, SrqParamMask::LOW_WATERMARK, &param)
        };
        let ia = f.a.clone();
        always_whole(f, change, move || ia.srq_query(srq, SrqParamMask::ALL))?;
        let ia = f.a.clone();
        let change = move |way| ia.set_consumer_context(pz, if way { u64::MAX } else { 0 });
        let ia = f.a.clone();
        always_whole(f, change, move || ia.get_consumer_context(pz))
    }),
    // Two calls that exclude each other have the outcome of one before the other.
    test("threads::outcomes_are_those_of_an_order", &["4.2 B04"], |f| {
        for round in 0..10_u16 {
            // An IA has one EVD for each asynchronous stream, and one listen point for each
            // qualifier.
            let evd =
                |ia: Ia, stream| move || ia.evd_create(stream, EvdFlags::empty(), 4, 1, EvdHandle::NULL);
            let stream = EventType::ASYNC_AFF_EVENT_STREAM;
            let got = both(f, evd(f.a.clone(), stream), evd(f.a.clone(), stream))?;
            one_of(&got, Error::AsyncAffEvdExists)?;
            f.a.evd_free(got.0.or(got.1)?)?;
            let requests = sevd(&f.a, EventType::CM_REQ_EVENT_STREAM, 4, 1)?;
            let (spigot_id, qual) = (spigot(&f.a)?.spigot_id, ConnQual::port(0x5000 + round));
            let listen = |ia: Ia| {
                move || ia.listen_create(spigot_id, requests, ListenFlags::CONN_QUAL_INPUT, Some(&qual))
            };
            let got = both(f, listen(f.a.clone()), listen(f.a.clone()))?;
            one_of(&got, Error::ConnQualBusy)?;
            f.a.listen_free(got.0.or(got.1)?.0)?;
            f.a.evd_free(requests)?;
            // Either the zone is freed before an object is in it, or it is busy.
            let pz = f.a.pz_create()?;
            let (freer, maker) = (f.a.clone(), f.a.clone());
            let (freed, made) = both(
                f,
                move || freer.pz_free(pz).map(|()| None),
                move || maker.rmr_create(pz, RmrType::Wide).map(Some),
            )?;
            match (freed, made) {
                (Ok(_), Err(Error::InvalidPz)) => {}
                (Err(Error::PzBusy), Ok(Some(rmr))) => {
                    f.a.rmr_free(rmr)?;
                    f.a.pz_free(pz)?;
                }
                other => {
                    return Err(Failure::new(alloc::format!("a zone freed and used: {other:?}")));
                }
            }
            // The same holds for an EVD.
            let end = f.end(&f.a, &attributes())?;
            let spare = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
            let (freer, maker, own) = (f.a.clone(), f.a.clone(), end.clone());
            let (freed, made) = both(
                f,
                move || freer.evd_free(spare).map(|()| None),
                move || {
                    let flags = EpFlags::empty();
                    maker.ep_rc_create(own.pz, spare, own.recv, own.conn, flags, &attributes()).map(Some)
                },
            )?;
            match (freed, made) {
                (Ok(_), Err(Error::InvalidReqEvd)) => {}
                (Err(Error::EvdBusy), Ok(Some(ep))) => {
                    f.a.ep_free(ep)?;
                    f.a.evd_free(spare)?;
                }
                other => {
                    return Err(Failure::new(alloc::format!(
                        "free of an EVD, creation of its endpoint: {other:?}"
                    )));
                }
            }
            f.a.ep_free(end.ep)?;
            for evd in [end.request, end.recv, end.conn] {
                f.a.evd_free(evd)?;
            }
            f.a.pz_free(end.pz)?;
        }
        Ok(())
    })
    .limit(120),
    // Two connection calls that exclude each other have the outcome of one before the other.
    test("threads::connections_have_the_outcome_of_an_order", &["4.2 B04 B12 B13"], |f| {
        for _ in 0..4 {
            let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            let other = f.end(&f.b, &attributes())?;
            let listener = f.listen(&f.b)?;
            let (way, qual) = (path(&f.a, &listener.address)?, listener.conn_qual);
            // Two connection requests with one endpoint.
            let dial =
                |end: End| move || end.ia.ep_connect(end.ep, &way, None, &qual, CnEstFlags::TWO_WAY, &[]);
            let got = both(f, dial(active.clone()), dial(active.clone()))?;
            one_of(&got, Error::InvalidEpState)?;
            // Two answers to one request.
            let id = listener.request()?.cn_est_id;
            let accept = |end: End| move || end.ia.ep_accept(end.ep, id, &[]);
            let got = both(f, accept(passive.clone()), accept(other.clone()))?;
            one_of(&got, Error::InvalidCnEstId)?;
            let winner = if got.0.is_ok() { &passive } else { &other };
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            winner.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            check_eq!(
                (passive.state()? == EpStateRc::Connected) as u8
                    + (other.state()? == EpStateRc::Connected) as u8,
                1
            );
            // Both ends disconnect, one of them twice: each gets one event.
            let mut bodies: Vec<Body<Result<(), Error>>> = Vec::new();
            for end in [&active, &active, winner] {
                let end = end.clone();
                bodies.push(Box::new(move || end.ia.ep_disconnect(end.ep, &[])));
            }
            together(f.platform(), bodies)?.into_iter().collect::<Result<(), _>>()?;
            for end in [&active, winner] {
                end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            }
            // One reset, and a modification that comes before or after it.
            let (resetter, modifier) = (active.clone(), active.clone());
            let mut sized = attributes();
            sized.max_dto_payload_size = 777;
            let got = both(
                f,
                move || resetter.ia.ep_reset(resetter.ep),
                move || modifier.ia.ep_modify(modifier.ep, EpParamMask::MAX_PAYLOAD, &sized),
            )?;
            check_eq!(got, (Ok(()), Ok(())));
            check_eq!(f.a.ep_query(active.ep, EpParamMask::MAX_PAYLOAD)?.attr.max_dto_payload_size, 777);
            let reset = |end: End| move || end.ia.ep_reset(end.ep);
            let got = both(f, reset(winner.clone()), reset(winner.clone()))?;
            one_of(&got, Error::InvalidEpState)?;
            // A connect during a reset. Before the reset it is refused, since the endpoint is in
            // NONOPERATIONAL (it_ep_connect); after the reset it succeeds.
            f.connect(&active, winner)?;
            f.a.ep_disconnect(active.ep, &[])?;
            active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            winner.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            let got = both(f, reset(active.clone()), dial(active.clone()))?;
            check!(matches!(got, (Ok(()), Ok(()) | Err(Error::InvalidEpState))), "{got:?}");
            if got.1.is_ok() {
                listener.request()?;
                check_eq!(active.state()?, EpStateRc::Active1ConnectionPending);
            }
            for end in [&active, &passive, &other] {
                end.ia.ep_free(end.ep)?;
            }
            listener.free()?;
        }
        Ok(())
    })
    .limit(120),
    // Threads that connect and disconnect different endpoints do not disturb each other.
    test("threads::connections_in_parallel", &["4.2 B01 B06 B12"], |f| {
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for _ in 0..3 {
            // Connections in both directions.
            for there in [true, false] {
                let f = f.for_a_thread();
                bodies.push(Box::new(move || {
                    let (active, passive) = if there { (&f.a, &f.b) } else { (&f.b, &f.a) };
                    let (active, passive) = (f.end(active, &attributes())?, f.end(passive, &attributes())?);
                    connect_and_disconnect(&f, &active, &passive)
                }));
            }
        }
        all_pass(f.platform(), bodies)
    })
    .limit(120),
    // Threads whose answers to one request are refused each get their own error, and the request
    // can still be answered.
    test(
        "threads::an_answer_that_is_refused_hinders_no_other",
        &["it_ep_accept V05", "it_reject V01", "4.2 B04"],
        |f| {
            let (active, listener) = (f.end(&f.a, &attributes())?, f.listen(&f.b)?);
            let connected = [f.pair()?.b.ep, f.pair()?.b.ep];
            f.dial(&active, &listener, CnEstFlags::TWO_WAY, &[])?;
            let id = listener.request()?.cn_est_id;
            let mut bodies: Vec<Body<Outcome>> = Vec::new();
            for ep in connected {
                let ia = f.b.clone();
                bodies.push(Box::new(move || {
                    for _ in 0..ANSWERS {
                        refused(ia.ep_accept(ep, id, &[]), Error::InvalidEpState)?;
                    }
                    Ok(())
                }));
            }
            let (ia, most) = (f.b.clone(), f.b.ia_query()?.reject_private_data_len);
            bodies.push(Box::new(move || {
                for _ in 0..ANSWERS {
                    let refusal = ia.reject(id, &[0; MAX_PRIV_DATA + 1][..=most]);
                    refused(refusal, Error::InvalidPdataLength)?;
                }
                Ok(())
            }));
            all_pass(f.platform(), bodies)?;
            f.b.reject(id, &[])?;
            active.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            Ok(())
        },
    )
    .limit(120),
    // A rejection that races a disconnect and a reset ends its own attempt and not the next one of
    // that endpoint.
    test("threads::a_rejection_ends_what_it_rejects", &["it_reject S01 S02", "4.2 B04"], |f| {
        let (answered, silent) = (f.listen(&f.b)?, f.listen(&f.b)?);
        let way = path(&f.a, &silent.address)?;
        for round in 0..400 {
            let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            f.dial(&active, &answered, CnEstFlags::THREE_WAY, &[])?;
            let asked = answered.request()?.cn_est_id;
            // The peer rejects the request, or it accepts and the active side rejects.
            let (rejecter, id) = match round % 2 {
                0 => (f.b.clone(), asked),
                _ => {
                    f.b.ep_accept(passive.ep, asked, &[])?;
                    let Event::ConnAcceptArrival { cn_est_id, .. } = active.event()? else {
                        return Err(Failure::new("not the arrival of an acceptance"));
                    };
                    (f.a.clone(), cn_est_id)
                }
            };
            let (again, qual) = (active.clone(), silent.conn_qual);
            let bodies: Vec<Body<Result<(), Error>>> = Vec::from([
                Box::new(move || match rejecter.reject(id, &[]) {
                    Ok(()) | Err(Error::InvalidCnEstId) => Ok(()),
                    other => other,
                }) as Body<_>,
                Box::new(move || {
                    // Each round hits another moment of the rejection.
                    (0..16 * (round / 2)).for_each(|_| core::hint::spin_loop());
                    again.ia.ep_disconnect(again.ep, &[])?;
                    again.ia.ep_reset(again.ep)?;
                    again.ia.ep_connect(again.ep, &way, None, &qual, CnEstFlags::TWO_WAY, &[])
                }),
            ]);
            check_eq!(together(f.platform(), bodies)?, [Ok(()), Ok(())]);
            let id = silent.request()?.cn_est_id;
            check_eq!(active.state()?, EpStateRc::Active1ConnectionPending, "round {round}");
            f.b.reject(id, &[])?;
            for end in [active, passive] {
                end.ia.ep_free(end.ep)?;
                for evd in [end.request, end.recv, end.conn] {
                    end.ia.evd_free(evd)?;
                }
                end.ia.pz_free(end.pz)?;
            }
        }
        Ok(())
    }),
    // Of a callback and an aggregate EVD that are added at the same time, one is refused.
    test(
        "threads::a_callback_or_an_aggregate",
        &["it_evd_modify V03 IT_ERR_CALLBACK_EXISTS", "4.2 B04"],
        |f| {
            let aevd = naming(&f.a)?;
            for round in 0..60 {
                let evd = sevd(&f.a, EventType::DTO_EVENT_STREAM, 8, 1)?;
                let before = evd_param(&f.a, evd)?;
                let change = EvdParam { sevd_queue_size: 200, aevd, evd_enabled: false, ..before };
                let mask = EvdParamMask::QUEUE_SIZE | EvdParamMask::AEVD_HANDLE | EvdParamMask::ENABLED;
                let (modifier, attacher) = (f.a.clone(), f.a.clone());
                let bodies: Vec<Body<Result<(), Error>>> = Vec::from([
                    Box::new(move || modifier.evd_modify(evd, mask, &change)) as Body<_>,
                    Box::new(move || {
                        // Each round hits another moment of the modification.
                        (0..50 * round).for_each(|_| core::hint::spin_loop());
                        attacher.evd_callback_attach(evd, Box::new(|_, _| {}))
                    }),
                ]);
                let after = (together(f.platform(), bodies)?, evd_param(&f.a, evd)?);
                // The call that is first decides (it_evd_modify, it_evd_callback_attach).
                let expected = match after.0[..] {
                    [Ok(()), _] => {
                        let fed = EvdParam { sevd_queue_size: after.1.sevd_queue_size, ..change };
                        check!(fed.sevd_queue_size >= 200);
                        (Vec::from([Ok(()), Err(Error::InvalidEvdState)]), fed)
                    }
                    _ => {
                        let called = EvdParam { evd_callback: true, ..before };
                        (Vec::from([Err(Error::CallbackExists), Ok(())]), called)
                    }
                };
                check_eq!(after, expected, "round {round}");
                f.a.evd_free(evd)?;
            }
            Ok(())
        },
    ),
    // IAs that are created and freed do not change the info of another one.
    test("threads::adapters_come_and_go", &["4.2 B01 B09"], |f| {
        let info = f.a.ia_query()?;
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for privileged in [true, false] {
            let f = f.for_a_thread();
            bodies.push(Box::new(move || {
                for _ in 0..6 {
                    let (provider, token) = (&f.setup.provider, f.setup.privileged);
                    check_eq!(provider.interface_list(usize::MAX).1, provider.interface_list(0).1);
                    let ia = provider.ia_create(&f.setup.a.name, 2, 1, privileged.then_some(token))?;
                    check!(ia.handle() != f.a.handle());
                    let pz = ia.pz_create()?;
                    refused(f.a.pz_query(pz, PzParamMask::ALL), Error::InvalidPz)?;
                    ia.ia_free()?;
                    refused(ia.pz_query(pz, PzParamMask::ALL), Error::InvalidIa)?;
                }
                Ok(())
            }));
        }
        // An adapter's info shows none of the other adapters' objects, only its own EVDs.
        let ia = f.a.clone();
        bodies.push(Box::new(move || {
            for _ in 0..30 {
                let evd = sevd(&ia, EventType::ASYNC_AFF_EVENT_STREAM, 4, 1)?;
                check_eq!(ia.ia_query()?.affiliated_err_evd, evd);
                ia.evd_free(evd)?;
            }
            Ok(())
        }));
        for _ in 0..2 {
            let (ia, info) = (f.a.clone(), info.clone());
            bodies.push(Box::new(move || {
                for _ in 0..60 {
                    let now = ia.ia_query()?;
                    // The other thread creates and frees this EVD. It is null meanwhile, or an EVD.
                    let affiliated_err_evd = now.affiliated_err_evd;
                    let evd = EvdHandle::try_from(Handle::from(affiliated_err_evd));
                    check!(evd.is_ok(), "{affiliated_err_evd:?}");
                    check_eq!(now, IaInfo { affiliated_err_evd, ..info.clone() });
                }
                Ok(())
            }));
        }
        all_pass(f.platform(), bodies)
    }),
];

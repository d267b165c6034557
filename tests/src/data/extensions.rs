//! Calls that other faces need of this one: outstanding work, markers, another endpoint under the
//! same handle, waits for several events of an aggregate, replies that do not come. Extensions of
//! the API, which no page describes.

use privileged_api::*;

use crate::datagrams::sidr::{asking, reply, request};
use crate::datagrams::ud::{datagrams, peer};
use crate::events::aevd::{enable, feeding, gathering};
use crate::fixture::{PAGE, SIGNALLED, WAIT, attributes, path, sevd};
use crate::requests::srq::{client, fill};
use crate::thread::{Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, some, test};

/// Takes a completion with what extensions add.
#[track_caller]
fn next(ia: &Ia, evd: EvdHandle) -> core::result::Result<(DtoCompletion, Posted), Failure> {
    let (taken, _) = ia.evd_wait_extended(evd, WaitFor::Notification, WAIT)?;
    match taken.event {
        Event::Dto(done) => Ok((done, taken.posted)),
        other => Err(Failure::new(alloc::format!("not a completion: {other:?}"))),
    }
}

/// Waits for the software event with this data, and so many others behind it.
#[track_caller]
fn software(
    waited: core::result::Result<(ExtendedEvent, usize), WaitError>,
    data: usize,
    more: usize,
) -> Outcome {
    let (taken, nmore) = waited?;
    match taken.event {
        Event::Software { data: got, .. } if (got, nmore) == (data, more) => Ok(()),
        other => Err(Failure::new(alloc::format!("{other:?} and {nmore} more, expected {data}"))),
    }
}

pub(crate) const TESTS: &[Test] = &[
    // A request, and a Receive, is outstanding until its completion was taken.
    test("extensions::work_is_outstanding_until_its_completion_is_taken", &[], |f| {
        let pair = f.pair()?;
        check_eq!(f.a.ep_outstanding(pair.a.ep), Ok((0, 0)));
        for cookie in 0..3 {
            f.b.post_recv(pair.b.ep, &[], cookie, SIGNALLED)?;
        }
        check_eq!(f.b.ep_outstanding(pair.b.ep), Ok((0, 3)));
        for cookie in 0..2 {
            f.a.post_send(pair.a.ep, &[], cookie, SIGNALLED)?;
        }
        check_eq!(f.a.ep_outstanding(pair.a.ep), Ok((2, 0)));
        pair.a.done(0, DtoStatus::Success)?;
        check_eq!(f.a.ep_outstanding(pair.a.ep), Ok((1, 0)));
        pair.a.done(1, DtoStatus::Success)?;
        for cookie in 0..2 {
            pair.b.recv_done(cookie, DtoStatus::Success)?;
        }
        check_eq!((f.a.ep_outstanding(pair.a.ep), f.b.ep_outstanding(pair.b.ep)), (Ok((0, 0)), Ok((0, 1))));
        refused(f.a.ep_outstanding(EpHandle::NULL), Error::InvalidEp)?;
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 8)?;
        fill(f, srq, 0..3)?;
        check_eq!(f.b.srq_outstanding(srq), Ok(3));
        let shared = client(f, srq)?;
        f.a.post_send(shared.a.ep, &[], 1, SIGNALLED)?;
        shared.b.reap_recv()?;
        check_eq!(f.b.srq_outstanding(srq), Ok(2));
        refused(f.b.srq_outstanding(SrqHandle::NULL), Error::InvalidSrq)
    }),
    // A marker completes behind the requests that were posted before it, moves nothing, and says
    // what it is. How other requests were posted is told as well.
    test("extensions::a_marker_completes_behind_earlier_requests", &[], |f| {
        let (pair, own, far) = f.open_pair()?;
        let (ep, at, context) = (pair.a.ep, far.remote(0), far.context()?);
        f.b.post_recv(pair.b.ep, &[], 1, SIGNALLED)?;
        f.b.post_recv(pair.b.ep, &[], 2, SIGNALLED)?;
        f.a.post_rdma_read(ep, &[own.segment(0, PAGE)], 1, SIGNALLED, at, context)?;
        f.a.post_rdma_write(ep, &[own.segment(0, 8)], 2, SIGNALLED, at, context)?;
        f.a.post_marker(ep, 3)?;
        f.a.post_send_immediate(ep, &[], 4, SIGNALLED, 9)?;
        f.a.post_rdma_write_immediate(ep, &[], 5, SIGNALLED, at, context, 9)?;
        let none = Posted::empty();
        let expected = [none, none, Posted::MARKER, Posted::IMMEDIATE, Posted::IMMEDIATE];
        for (cookie, posted) in (1..).zip(expected) {
            let (done, got) = next(&f.a, pair.a.request)?;
            check_eq!((done.cookie, done.dto_status, got), (cookie, DtoStatus::Success, posted));
        }
        for end in [&pair.b, &pair.a] {
            f.a.ep_disconnect(pair.a.ep, &[])?;
            end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        }
        f.a.post_marker(ep, 6)?;
        let (done, posted) = next(&f.a, pair.a.request)?;
        check_eq!((done.cookie, done.dto_status, posted), (6, DtoStatus::Flushed, Posted::MARKER));
        let idle = f.end(&f.a, &attributes())?;
        refused(f.a.post_marker(idle.ep, 1), Error::InvalidEpState)?;
        refused(f.a.post_marker(EpHandle::NULL, 1), Error::InvalidEp)?;
        refused(f.a.post_marker(peer(&f.a, &datagrams())?.ep, 1), Error::InvalidEpType)
    }),
    // An endpoint gets another zone, other event dispatchers and queues, and keeps its handle and
    // its context. The former ones are free afterwards.
    test("extensions::an_endpoint_is_recreated_under_its_handle", &[], |f| {
        let (old, new) = (f.end(&f.a, &attributes())?, f.end(&f.a, &attributes())?);
        f.a.ep_free(new.ep)?;
        f.a.set_consumer_context(old.ep, 77)?;
        f.a.post_recv(old.ep, &[], 1, SIGNALLED)?;
        let none = EpFlags::empty();
        let attr = EpAttributes { max_recv_dtos: 3, ..attributes() };
        let recreate = |ep, pz, request, recv, attr: &EpAttributes| {
            f.a.ep_rc_recreate(ep, pz, request, recv, new.conn, none, attr)
        };
        // A failure changes nothing.
        let before = f.a.ep_query(old.ep, EpParamMask::ALL)?;
        let foreign = f.b.pz_create()?;
        refused(recreate(old.ep, foreign, new.request, new.recv, &attr), Error::InvalidPz)?;
        refused(recreate(old.ep, new.pz, new.conn, new.recv, &attr), Error::InvalidEvdType)?;
        let deep = EpAttributes { max_request_dtos: usize::MAX, ..attr };
        refused(recreate(old.ep, new.pz, new.request, new.recv, &deep), Error::ResourceReqDto)?;
        refused(recreate(EpHandle::NULL, new.pz, new.request, new.recv, &attr), Error::InvalidEp)?;
        check_eq!(f.a.ep_query(old.ep, EpParamMask::ALL), Ok(before));
        check_eq!(f.a.ep_outstanding(old.ep), Ok((0, 1)));
        recreate(old.ep, new.pz, new.request, new.recv, &attr)?;
        let after = f.a.ep_query(old.ep, EpParamMask::ALL)?;
        check_eq!((after.pz, after.request_sevd, after.recv_sevd), (new.pz, new.request, new.recv));
        check_eq!((after.connect_sevd, after.attr.max_recv_dtos), (new.conn, 3));
        check_eq!((f.a.get_consumer_context(old.ep), f.a.ep_outstanding(old.ep)), (Ok(77), Ok((0, 0))));
        for evd in [old.request, old.recv, old.conn] {
            f.a.evd_free(evd)?;
        }
        f.a.pz_free(old.pz)?;
        refused(f.a.evd_free(new.conn), Error::EvdBusy)?;
        // It works as an endpoint does, and cannot be recreated while it is connected.
        let end = crate::fixture::End { ep: old.ep, ..new.clone() };
        let far = f.end(&f.b, &attributes())?;
        f.a.post_recv(end.ep, &[], 5, SIGNALLED)?;
        f.connect(&end, &far)?;
        f.b.post_send(far.ep, &[], 6, SIGNALLED)?;
        end.recv_done(5, DtoStatus::Success)?;
        f.a.post_send(end.ep, &[], 7, DtoFlags::empty())?;
        refused(recreate(end.ep, new.pz, new.request, new.recv, &attr), Error::InvalidEpState)?;
        refused(
            recreate(peer(&f.a, &datagrams())?.ep, new.pz, new.request, new.recv, &attr),
            Error::InvalidEpType,
        )
    }),
    // If the device has no room for another queue pair, the endpoint is as before.
    test("extensions::a_recreation_that_fails_leaves_the_endpoint", &[], |f| {
        let (one, two) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
        let mut others = alloc::vec::Vec::new();
        while let Ok(ep) =
            f.a.ep_rc_create(one.pz, one.request, one.recv, one.conn, EpFlags::empty(), &attributes())
        {
            others.push(ep);
        }
        let attr = EpAttributes { max_recv_dtos: 3, ..attributes() };
        let flags = EpFlags::empty();
        let recreated = f.a.ep_rc_recreate(one.ep, one.pz, one.request, one.recv, one.conn, flags, &attr);
        refused(recreated, Error::Resources)?;
        check_eq!(f.a.ep_query(one.ep, EpParamMask::ALL)?.attr, attributes());
        for ep in others {
            f.a.ep_free(ep)?;
        }
        f.connect(&one, &two)?;
        f.b.post_recv(two.ep, &[], 1, SIGNALLED)?;
        f.a.post_send(one.ep, &[], 1, SIGNALLED)?;
        one.done(1, DtoStatus::Success)?;
        two.recv_done(1, DtoStatus::Success)
    }),
    // A wait on an aggregate can be for several events, whichever of its event dispatchers they are
    // queued on; those of a disabled one do not count.
    test("extensions::an_aggregate_waits_for_several_events", &[], |f| {
        let aggregate = gathering(&f.a)?;
        let (one, two) = (feeding(&f.a, aggregate)?, feeding(&f.a, aggregate)?);
        let wait = |wanted, timeout| f.a.evd_wait_extended(aggregate, WaitFor::Events(wanted), timeout);
        let expired = |nmore| WaitError { error: Error::TimeoutExpired, nmore };
        check_eq!(wait(1, 0).err(), Some(expired(0)));
        for (evd, data) in [(one, 1), (two, 2), (one, 3)] {
            check_eq!(f.a.evd_queued(aggregate), Ok(data - 1));
            f.a.evd_post_se(evd, data)?;
        }
        check_eq!((f.a.evd_queued(one), f.a.evd_queued(two)), (Ok(2), Ok(1)));
        check_eq!(wait(4, 0).err(), Some(expired(3)));
        enable(&f.a, two, false)?;
        check_eq!((wait(3, 0).err(), f.a.evd_queued(aggregate)), (Some(expired(2)), Ok(2)));
        enable(&f.a, two, true)?;
        software(wait(3, 0), 1, 2)?;
        let room = 2 * f.a.evd_query(one, EvdParamMask::QUEUE_SIZE)?.sevd_queue_size;
        check_eq!(wait(room, 0).err(), Some(expired(2)));
        for wanted in [0, room + 1] {
            refused(wait(wanted, 0).map_err(Error::from), Error::InvalidThreshold)?;
        }
        let (ia, ready) = (f.a.clone(), f.b.evd_queued(one));
        refused(ready, Error::InvalidEvd)?;
        let thread = Thread::spawn(f.platform(), "waiter", move || {
            ia.evd_wait_extended(aggregate, WaitFor::Events(4), WAIT).map(|(_, nmore)| nmore)
        })?;
        f.a.evd_post_se(two, 4)?;
        f.a.evd_post_se(one, 5)?;
        check_eq!(thread.join()?, Ok(3));
        Ok(())
    }),
    // The short way takes nothing of a reserved event dispatcher; all other calls do as ever.
    test("extensions::a_reserved_event_dispatcher_has_no_short_way", &[], |f| {
        let pair = f.pair()?;
        let (ia, evd) = (&f.b, pair.b.recv);
        let take = |evd| ia.evd_take(evd, |done| Ok(done.cookie()), Err);
        let reserve = |reserved| ia.evd_reserve(evd, reserved);
        for cookie in 0..6 {
            ia.post_recv(pair.b.ep, &[], cookie, SIGNALLED)?;
        }
        reserve(true)?;
        check_eq!(take(evd), Err(Taken::Other));
        for cookie in 0..6 {
            f.a.post_send_immediate(pair.a.ep, &[], cookie, SIGNALLED, 70 + cookie as u32)?;
            pair.a.done(cookie, DtoStatus::Success)?;
        }
        check_eq!((take(evd), ia.evd_queued(evd)), (Err(Taken::Other), Ok(6)));
        pair.b.recv_done(0, DtoStatus::Success)?;
        let taken = ia.evd_dequeue_extended(evd)?;
        check_eq!(taken.immediate, Some(Immediate { data: 71, written: None }));
        let mut two = [DtoCompletion::default(); 2];
        check_eq!(ia.evd_dequeue_n(evd, &mut two), Ok(2));
        check_eq!((two[0].cookie, two[1].cookie, take(evd)), (2, 3, Err(Taken::Other)));
        // A callback comes and goes; the event dispatcher stays reserved.
        ia.evd_callback_attach(evd, alloc::boxed::Box::new(|_, _| {}))?;
        check_eq!(take(evd), Err(Taken::Other));
        ia.evd_callback_detach(evd)?;
        check_eq!(take(evd), Err(Taken::Other));
        reserve(false)?;
        let with = |data| Some(Immediate { data, written: None });
        let other = take(evd).err();
        let found = matches!(other, Some(Taken::Plain(done, got)) if (done.cookie(), got) == (4, with(74)));
        check!(found, "{other:?}");
        // With a callback, what the short way leaves is taken all the same.
        ia.evd_callback_attach(evd, alloc::boxed::Box::new(|_, _| {}))?;
        let other = take(evd).err();
        let found = matches!(other, Some(Taken::Done(done, got, _)) if (done.cookie, got) == (5, with(75)));
        check!(found, "{other:?}");
        ia.evd_callback_detach(evd)?;
        check_eq!(take(evd), Err(Taken::Empty));
        // What the short way is for.
        ia.post_recv(pair.b.ep, &[], 6, SIGNALLED)?;
        f.a.post_send(pair.a.ep, &[], 6, SIGNALLED)?;
        pair.a.done(6, DtoStatus::Success)?;
        check_eq!(take(evd), Ok(6));
        // An event dispatcher without completions has no short way, reserved or not.
        let software = sevd(ia, EventType::SOFTWARE_EVENT_STREAM, 4, 1)?;
        ia.evd_post_se(software, 1)?;
        for reserved in [true, false] {
            ia.evd_reserve(software, reserved)?;
            check_eq!(take(software), Err(Taken::Other));
        }
        // A new event dispatcher, which may have the place of a reserved one, is not reserved.
        let events = EventType::DTO_EVENT_STREAM;
        for _ in 0..2 {
            let new = sevd(ia, events, 4, 1)?;
            check_eq!(take(new), Err(Taken::Empty));
            ia.evd_reserve(new, true)?;
            ia.evd_free(new)?;
            refused(ia.evd_reserve(new, true), Error::InvalidEvd)?;
        }
        refused(ia.evd_reserve(EvdHandle::NULL, true), Error::InvalidEvd)?;
        refused(
            ia.evd_reserve(f.a.evd_create(events, EvdFlags::empty(), 4, 1, EvdHandle::NULL)?, true),
            Error::InvalidEvd,
        )
    }),
    // If no reply comes, an event says so, if the request asked for that.
    test("extensions::a_reply_that_does_not_come_is_reported", &[], |f| {
        let a = asking(f, &[])?;
        let short = Path { timeout: 20_000, ..a.way };
        let again = f.a.ud_service_request_handle_create(&a.listener.conn_qual, a.evd, &short, &[])?;
        f.a.ud_service_request(again)?;
        request(&a.listener)?;
        f.a.ud_service_request_reported(again)?;
        let came = reply(&f.a, a.evd)?;
        check_eq!((came.ud_svc, came.status), (again, UdSvcStatus::TimedOut));
        check_eq!((came.ep_info, came.private_data), (RemoteEpInfo::default(), None));
        // A reply is reported as ever.
        f.a.ud_service_request_reported(a.handle)?;
        let asked = loop {
            // Repetitions of the first request may be in front.
            let asked = request(&a.listener)?;
            let own = f.a.ud_service_request_handle_query(a.handle, UdSvcReqParamMask::REQ_ID)?;
            if asked.ud_svc_req_id as u32 == own.request_id {
                break asked;
            }
        };
        f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::Rejected, RemoteEpInfo::default(), &[])?;
        let came = reply(&f.a, a.evd)?;
        check_eq!((came.ud_svc, came.status), (a.handle, UdSvcStatus::Rejected));
        refused(f.a.ud_service_request_reported(UdSvcReqHandle::NULL), Error::InvalidUdSvc)?;
        let answer = f.b.ud_service_reply(1, UdSvcStatus::TimedOut, RemoteEpInfo::default(), &[]);
        check!(answer.is_err(), "{answer:?}");
        Ok(())
    }),
    // What an IA says of its platform, its NIC and the thread that asks.
    test("extensions::an_ia_says_where_it_runs", &[], |f| {
        let listener = f.listen(&f.b)?;
        let id = some(listener.conn_qual.to_service_id(), "a service ID")?;
        let end = f.end(&f.a, &attributes())?;
        let path = path(&f.a, &listener.address)?;
        f.a.ep_connect(end.ep, &path, None, &ConnQual::service_id(id), CnEstFlags::TWO_WAY, &[])?;
        listener.request()?;
        check_eq!(ConnQual::service_id(5).to_service_id(), Some(5));
        check_eq!(f.a.identity().node_guid, f.setup.a.agent.identity().node_guid);
        check_eq!(f.a.features().contains(Features::ATOMICS), f.a.ia_query()?.atomic_support);
        check!(alloc::sync::Arc::ptr_eq(f.a.platform(), f.platform()), "another platform");
        check!(!f.a.in_callback(), "this is no callback");
        let evd = sevd(&f.a, EventType::SOFTWARE_EVENT_STREAM, 4, 1)?;
        let inside = alloc::sync::Arc::new(core::sync::atomic::AtomicU32::new(0));
        let seen = inside.clone();
        let routine = move |ia: &Ia, evd| {
            let found = if ia.in_callback() { 2 } else { 1 };
            seen.store(found, core::sync::atomic::Ordering::Release);
            let _ = ia.evd_dequeue(evd);
        };
        f.a.evd_callback_attach(evd, alloc::boxed::Box::new(routine))?;
        f.a.evd_post_se(evd, 1)?;
        let ran = || inside.load(core::sync::atomic::Ordering::Acquire) != 0;
        check!(eventually(f.platform(), ran), "the callback did not run");
        check_eq!(inside.load(core::sync::atomic::Ordering::Acquire), 2);
        Ok(())
    }),
];

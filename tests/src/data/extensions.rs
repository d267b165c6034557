//! Calls that other faces need of this one: outstanding work, markers, another endpoint under the
//! same handle, waits for several events of an aggregate, replies that do not come. Extensions of
//! the API, which no page describes.

use privileged_api::*;

use crate::datagrams::sidr::{asking, reply, request};
use crate::events::aevd::{enable, feeding, gathering};
use crate::fixture::{PAGE, SIGNALLED, WAIT, attributes, path, sevd};
use crate::requests::srq::{client, fill};
use crate::thread::{Thread, eventually};
use crate::transport::Need;
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
    // The completion of a request says how the request was posted.
    test("extensions::a_completion_says_how_its_request_was_posted", &[], |f| {
        Need::Immediate.of(&f.a)?;
        let (pair, own, far) = f.open_pair()?;
        let (ep, at, context) = (pair.a.ep, far.remote(0), far.context()?);
        f.b.post_recv(pair.b.ep, &[], 1, SIGNALLED)?;
        f.b.post_recv(pair.b.ep, &[], 2, SIGNALLED)?;
        f.a.post_rdma_read(ep, &[own.segment(0, PAGE)], 1, SIGNALLED, at, context)?;
        f.a.post_rdma_write(ep, &[own.segment(0, 8)], 2, SIGNALLED, at, context)?;
        f.a.post_send_immediate(ep, &[], 3, SIGNALLED, 9)?;
        f.a.post_rdma_write_immediate(ep, &[], 4, SIGNALLED, at, context, 9)?;
        let none = Posted::empty();
        for (cookie, posted) in (1..).zip([none, none, Posted::IMMEDIATE, Posted::IMMEDIATE]) {
            let (done, got) = next(&f.a, pair.a.request)?;
            check_eq!((done.cookie, done.dto_status, got), (cookie, DtoStatus::Success, posted));
        }
        Ok(())
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
        Need::InfiniBand.of(&f.a)?;
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

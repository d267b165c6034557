//! Connections, callbacks, waiters, changes of attributes, and the death of a device.

extern crate ferrovia_privileged_api as privileged_api;

mod support;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use privileged_api::*;
use support::*;

/// Opens and closes adapters more often than there are IA numbers, so that numbers are used again.
#[test]
fn handles_of_one_adapter_name_nothing_in_another() {
    let world = World::new(1);
    let kept = world.unprivileged(0);
    let pz = kept.pz_create().unwrap();
    let gone = world.unprivileged(0);
    let (former, stale) = (gone.handle(), gone.pz_create().unwrap());
    gone.ia_free().unwrap();
    drop(gone);
    for _ in 0..2 * 4094 + 10 {
        let ia = world.unprivileged(0);
        let own = [ia.pz_create().unwrap(), ia.pz_create().unwrap()];
        assert!(![kept.handle(), former].contains(&ia.handle()));
        for foreign in [pz, stale] {
            assert_eq!(ia.pz_query(foreign, PzParamMask::ALL).map(drop), Err(Error::InvalidPz));
        }
        for foreign in own {
            assert_eq!(kept.pz_query(foreign, PzParamMask::ALL).map(drop), Err(Error::InvalidPz));
        }
        ia.ia_free().unwrap();
    }
    kept.ia_free().unwrap();
}

#[test]
fn three_way_establishment_asks_the_active_side() {
    let world = World::new(2);
    let a = Side::new(world.ia(0), attributes());
    let b = Side::new(world.ia(1), attributes());
    let request = request(&a, &b, CnEstFlags::THREE_WAY, b"ask");
    assert_eq!(a.state(), EpState::Rc(EpStateRc::Active1ConnectionPending));
    assert_eq!(&request.private_data.unwrap()[..3], b"ask");
    assert_eq!((request.rdma_read_ird, request.rdma_read_ord), (4, 4));
    b.ia.ep_accept(b.ep, request.cn_est_id, b"reply").unwrap();
    assert_eq!(b.ia.ep_accept(b.ep, request.cn_est_id, b""), Err(Error::InvalidCnEstId));
    let Event::ConnAcceptArrival { cn_est_id, private_data, rdma_read_ird, .. } = a.wait(a.connection) else {
        panic!("no arrival")
    };
    assert_eq!(a.state(), EpState::Rc(EpStateRc::Active2ConnectionPending));
    assert_eq!(&private_data.unwrap()[..5], b"reply");
    assert_eq!(rdma_read_ird, 4);
    // Read depths that do not fit are refused, and can be adapted.
    let rc = RcAttributes { rdma_read_ord: 8, ..RcAttributes::default() };
    let more = EpAttributes { rc, ..EpAttributes::default() };
    a.ia.ep_modify(a.ep, EpParamMask::MAX_ORD, &more).unwrap();
    assert_eq!(a.ia.ep_accept(a.ep, cn_est_id, b""), Err(Error::InvalidEpAttr));
    a.ia.ep_modify(a.ep, EpParamMask::MAX_ORD, &EpAttributes::default()).unwrap();
    a.ia.ep_accept(a.ep, cn_est_id, b"").unwrap();
    for side in [&a, &b] {
        assert!(matches!(side.wait(side.connection), Event::ConnEstablished { .. }));
    }
    a.ia.ep_disconnect(a.ep, b"bye").unwrap();
    assert_eq!(a.state(), EpState::Rc(EpStateRc::Nonoperational));
    assert!(matches!(a.wait(a.connection), Event::ConnDisconnect { private_data: None, .. }));
    let Event::ConnDisconnect { private_data: Some(data), .. } = b.wait(b.connection) else { panic!() };
    assert_eq!(&data[..3], b"bye");
    assert_eq!(a.ia.ep_disconnect(a.ep, b""), Ok(()), "a second disconnect has no effect");
    done(&world, &[&a, &b]);
}

#[test]
fn a_rejection_is_reported_and_flushes_receives() {
    let world = World::new(1);
    let a = Side::new(world.ia(0), attributes());
    let b = Side::new(world.ia(0), attributes());
    a.ia.post_recv(a.ep, &[], 7, SIGNALED).unwrap();
    let request = request(&a, &b, CnEstFlags::TWO_WAY, &[]);
    b.ia.reject(request.cn_est_id, b"no").unwrap();
    assert_eq!(b.ia.reject(request.cn_est_id, b"no"), Err(Error::InvalidCnEstId));
    let Event::ConnPeerReject { private_data: Some(data), .. } = a.wait(a.connection) else { panic!() };
    assert_eq!(&data[..2], b"no");
    assert_eq!(a.state(), EpState::Rc(EpStateRc::Nonoperational));
    let flushed = a.completion(a.receives);
    assert_eq!((flushed.cookie, flushed.dto_status), (7, DtoStatus::Flushed));
    // The listen point was freed.
    a.ia.ep_reset(a.ep).unwrap();
    a.ia.ep_connect(a.ep, &path(&a.ia, &b.ia), None, &SERVICE, CnEstFlags::TWO_WAY, &[]).unwrap();
    let event = a.wait(a.connection);
    assert!(matches!(event, Event::ConnNonpeerReject { .. }), "{event:?}");
    done(&world, &[&a, &b]);
}

#[test]
fn two_way_rejects_read_depths_that_do_not_fit() {
    let world = World::new(1);
    let mut greedy = attributes();
    greedy.rc.rdma_read_ord = 8;
    let a = Side::new(world.ia(0), greedy);
    let b = Side::new(world.ia(0), attributes());
    let request = request(&a, &b, CnEstFlags::TWO_WAY, &[]);
    assert_eq!(request.rdma_read_ord, 8);
    b.ia.ep_accept(b.ep, request.cn_est_id, &[]).unwrap();
    let Event::ConnNonpeerReject { reject_reason_code, .. } = a.wait(a.connection) else { panic!() };
    assert_eq!(reject_reason_code, RejectReason::BadOrd);
    let event = b.wait(b.connection);
    assert!(matches!(event, Event::ConnPeerReject { .. } | Event::ConnNonpeerReject { .. }), "{event:?}");
    done(&world, &[&a, &b]);
}

#[test]
fn a_callback_runs_once_for_each_drain() {
    let world = World::new(1);
    let ia = world.ia(0);
    let evd = evd(&ia, EventType::SOFTWARE_EVENT_STREAM);
    ia.evd_post_se(evd, 1).unwrap();
    let (ran, runs) = channel();
    let ran = Mutex::new(ran);
    ia.evd_callback_attach(
        evd,
        Box::new(move |ia, evd| {
            // The calls that the page excludes are refused inside a callback only.
            assert_eq!(ia.pz_create(), Err(Error::CallbackContext));
            ran.lock().unwrap().send(evd).unwrap();
        }),
    )
    .unwrap();
    assert_eq!(ia.evd_callback_attach(evd, Box::new(|_, _| {})), Err(Error::CallbackExists));
    assert_eq!(ia.evd_wait(evd, 0).unwrap_err(), Error::CallbackExists);
    // Not drained yet: no callback.
    ia.evd_post_se(evd, 2).unwrap();
    assert!(matches!(ia.evd_dequeue(evd), Ok(Event::Software { data: 1, .. })));
    assert!(matches!(ia.evd_dequeue(evd), Ok(Event::Software { data: 2, .. })));
    assert!(runs.try_recv().is_err());
    ia.evd_post_se(evd, 3).unwrap();
    assert_eq!(runs.recv_timeout(Duration::from_secs(20)), Ok(evd));
    ia.evd_post_se(evd, 4).unwrap();
    while ia.evd_dequeue(evd).is_ok() {}
    assert!(runs.try_recv().is_err(), "a second callback before the EVD is drained");
    ia.evd_post_se(evd, 5).unwrap();
    assert_eq!(runs.recv_timeout(Duration::from_secs(20)), Ok(evd));
    ia.evd_callback_detach(evd).unwrap();
    assert_eq!(ia.evd_callback_detach(evd), Err(Error::InvalidEvdState));
    ia.pz_create().unwrap();
    // The routine reports its run before it returns.
    while ia.ia_free() == Err(Error::InvalidEvdState) {
        std::thread::yield_now();
    }
    assert_eq!(ia.ia_free(), Err(Error::InvalidIa));
}

#[test]
fn an_evd_cannot_be_freed_while_its_callback_runs() {
    let world = World::new(1);
    let ia = world.ia(0);
    let evd = evd(&ia, EventType::SOFTWARE_EVENT_STREAM);
    let (entered, inside) = channel();
    let (leave, left) = channel::<()>();
    let both = Mutex::new((entered, left));
    ia.evd_callback_attach(
        evd,
        Box::new(move |_, _| {
            let both = both.lock().unwrap();
            both.0.send(()).unwrap();
            let _ = both.1.recv();
        }),
    )
    .unwrap();
    ia.evd_post_se(evd, 1).unwrap();
    inside.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(ia.evd_free(evd), Err(Error::InvalidEvdState));
    assert_eq!(ia.ia_free(), Err(Error::InvalidEvdState));
    assert_eq!(ia.evd_query(evd, EvdParamMask::ALL).map(|param| param.evd_callback), Ok(true));
    leave.send(()).unwrap();
    drop(leave);
    // Detach, wait for the routine to return, then free (it_evd_free).
    ia.evd_callback_detach(evd).unwrap();
    while ia.evd_free(evd) == Err(Error::InvalidEvdState) {
        std::thread::yield_now();
    }
    ia.ia_free().unwrap();
}

#[test]
fn completions_run_callbacks_by_threshold() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0]);
    let threshold = EvdParam { sevd_threshold: 2, ..EvdParam::default() };
    b.ia.evd_modify(b.receives, EvdParamMask::THRESHOLD, &threshold).unwrap();
    let (ran, runs) = channel();
    let ran = Mutex::new(ran);
    let taken = Arc::new(Mutex::new(Vec::new()));
    let kept = taken.clone();
    b.ia.evd_callback_attach(
        b.receives,
        Box::new(move |ia, evd| {
            while let Ok(Event::Dto(completion)) = ia.evd_dequeue(evd) {
                kept.lock().unwrap().push(completion.cookie);
            }
            ran.lock().unwrap().send(()).unwrap();
        }),
    )
    .unwrap();
    for cookie in 0..5 {
        b.ia.post_recv(b.ep, &[], cookie, SIGNALED).unwrap();
    }
    a.ia.post_send(a.ep, &[], 1, SIGNALED).unwrap();
    a.success(a.requests);
    a.ia.post_send(a.ep, &[], 2, SIGNALED).unwrap();
    runs.recv_timeout(Duration::from_secs(20)).unwrap();
    // A completion that notifies runs the callback without waiting for the threshold.
    a.ia.post_send(a.ep, &[], 3, SIGNALED | DtoFlags::SOLICITED_WAIT).unwrap();
    runs.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(*taken.lock().unwrap(), [0, 1, 2]);
    done(&world, &[&a, &b]);
}

#[test]
fn an_event_a_timeout_or_freeing_the_evd_ends_a_wait() {
    let world = World::new(1);
    let ia = world.ia(0);
    let evd = evd(&ia, EventType::SOFTWARE_EVENT_STREAM);
    let failure = ia.evd_wait(evd, 1000).unwrap_err();
    assert_eq!((failure.error, failure.nmore), (Error::TimeoutExpired, 0));
    for data in 0..3 {
        ia.evd_post_se(evd, data).unwrap();
    }
    let (event, nmore) = ia.evd_wait(evd, TIMEOUT_INFINITE).unwrap();
    assert_eq!((event, nmore), (Event::Software { evd, data: 0 }, 2));
    while ia.evd_dequeue(evd).is_ok() {}
    let waiter = loop {
        let waiter = {
            let ia = ia.clone();
            std::thread::spawn(move || ia.evd_wait(evd, TIMEOUT_INFINITE))
        };
        // A callback cannot be attached while a thread waits, which shows that the thread does.
        let waits = loop {
            match ia.evd_callback_attach(evd, Box::new(|_, _| {})) {
                Err(error) => {
                    assert_eq!(error, Error::EvdWait);
                    break true;
                }
                Ok(()) => ia.evd_callback_detach(evd).unwrap(),
            }
            if waiter.is_finished() {
                break false;
            }
            std::thread::yield_now();
        };
        if waits {
            break waiter;
        }
        // The wait began while a callback was attached for a moment.
        assert_eq!(waiter.join().unwrap().unwrap_err().error, Error::CallbackExists);
    };
    ia.evd_free(evd).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap_err(), Error::Abort);
    ia.ia_free().unwrap();
}

#[test]
fn a_full_threshold_wait_counts_and_keeps_notification() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0]);
    let threshold = EvdParam { sevd_threshold: 3, ..EvdParam::default() };
    a.ia.evd_modify(a.requests, EvdParamMask::THRESHOLD, &threshold).unwrap();
    for cookie in 0..4 {
        b.ia.post_recv(b.ep, &[], cookie, SIGNALED).unwrap();
    }
    a.ia.post_send(a.ep, &[], 1, SIGNALED).unwrap();
    b.success(b.receives);
    while a.ia.evd_wait(a.requests, 0).unwrap_err().nmore < 1 {}
    let failure = a.ia.evd_wait(a.requests, 1000).unwrap_err();
    assert_eq!((failure.error, failure.nmore), (Error::TimeoutExpired, 1));
    // A notification event makes the wait return, and the first event comes first.
    a.ia.post_send(a.ep, &[], 2, SIGNALED | DtoFlags::NOTIFY).unwrap();
    let (event, nmore) = a.ia.evd_wait(a.requests, PATIENCE).unwrap();
    assert_eq!((event.dto().unwrap().cookie, nmore), (1, 1));
    let (event, _) = a.ia.evd_wait(a.requests, 0).unwrap();
    assert_eq!(event.dto().unwrap().cookie, 2, "the notification belongs to its event");
    done(&world, &[&a, &b]);
}

#[test]
fn the_death_of_the_device_disables_the_ia_and_wakes_all_waiters() {
    let mut world = World::new(1);
    let (a, b) = pair(&world, [0, 0]);
    let buffer = world.buffer(64);
    a.lmr(&buffer, MemPriv::LOCAL);
    let waiters: Vec<_> = [a.requests, a.receives, a.connection]
        .into_iter()
        .map(|evd| {
            let ia = a.ia.clone();
            std::thread::spawn(move || ia.evd_wait(evd, TIMEOUT_INFINITE))
        })
        .collect();
    world.machine.kill();
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap().unwrap_err(), Error::IaCatastrophe);
    }
    let dead = Error::IaCatastrophe;
    assert_eq!(a.ia.post_send(a.ep, &[], 1, SIGNALED), Err(dead));
    assert_eq!(a.ia.evd_dequeue(a.requests), Err(dead));
    assert_eq!(a.ia.pz_create(), Err(dead));
    assert_eq!(a.ia.ep_free(a.ep), Err(dead));
    assert_eq!(a.ia.ia_query().err(), Some(dead));
    assert_eq!(a.ia.evd_wait(a.requests, 0).unwrap_err(), dead);
    a.ia.ia_free().unwrap();
    b.ia.ia_free().unwrap();
    assert_eq!(a.ia.ia_free(), Err(Error::InvalidIa));
    assert_eq!(a.ia.pz_create(), Err(Error::InvalidIa));
    assert!(a.ia.object_counts().is_empty());
    assert_eq!(world.provider.interface_list(10), (vec![], 0));
}

#[test]
fn memory_that_a_dead_device_may_still_access_is_kept() {
    let mut world = World::new(1);
    let a = Side::new(world.ia(0), attributes());
    let buffer = world.buffer(64);
    let memory = Arc::downgrade(&buffer);
    let (lmr, _) = a.lmr(&buffer, MemPriv::LOCAL);
    drop(buffer);
    world.machine.kill();
    // The call begins before or after the IA is disabled.
    let freed = a.ia.lmr_free(lmr);
    assert!(matches!(freed, Ok(()) | Err(Error::IaCatastrophe)), "{freed:?}");
    assert!(memory.upgrade().is_some(), "after the free of the region");
    a.ia.ia_free().unwrap();
    assert!(memory.upgrade().is_some(), "after the free of the IA");
}

#[test]
fn a_modification_changes_all_attributes_or_none() {
    let world = World::new(1);
    let a = Side::new(world.ia(0), attributes());
    let all = EpParamMask::ALL;
    let before = a.ia.ep_query(a.ep, all).unwrap().attr;
    assert_eq!(before, attributes());
    let mut wanted = before;
    wanted.max_dto_payload_size = 100;
    wanted.rc.rdma_read_ird = u32::MAX;
    let mask = EpParamMask::MAX_PAYLOAD | EpParamMask::MAX_IRD;
    assert_eq!(a.ia.ep_modify(a.ep, mask, &wanted), Err(Error::ResourceIrd));
    assert_eq!(a.ia.ep_query(a.ep, all).unwrap().attr, before);
    wanted.rc.rdma_read_ird = 2;
    a.ia.ep_modify(a.ep, mask, &wanted).unwrap();
    assert_eq!(a.ia.ep_query(a.ep, all).unwrap().attr, wanted);
    // The device enforces the new limit.
    let b = Side::new(world.ia(0), attributes());
    a.ia.ep_modify(a.ep, EpParamMask::MAX_IRD | EpParamMask::MAX_ORD, &attributes()).unwrap();
    connect(&a, &b);
    let buffer = world.buffer(200);
    let (lmr, _) = a.lmr(&buffer, MemPriv::LOCAL);
    a.ia.post_send(a.ep, &[LmrTriplet::new(lmr, buffer.addr() as u64, 101)], 1, SIGNALED).unwrap();
    assert_eq!(a.completion(a.requests).dto_status, DtoStatus::LocalLength);
    done(&world, &[&a, &b]);
}

#[test]
fn the_overflow_of_an_evd_breaks_its_endpoints_for_good() {
    let world = World::new(1);
    let ia = world.ia(0);
    let affiliated = evd(&ia, EventType::ASYNC_AFF_EVENT_STREAM);
    let b = Side::new(world.ia(0), attributes());
    let pz = ia.pz_create().unwrap();
    let small = ia
        .evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 4, 1, EvdHandle::NULL)
        .unwrap();
    let receives = evd(&ia, EventType::DTO_EVENT_STREAM);
    let connection = evd(&ia, EventType::CM_MSG_EVENT_STREAM);
    let ep = ia.ep_rc_create(pz, small, receives, connection, EpFlags::empty(), &attributes()).unwrap();
    let a = Side { ia, pz, requests: small, receives, connection, ep };
    connect(&a, &b);
    let size = a.ia.evd_query(small, EvdParamMask::QUEUE_SIZE).unwrap().sevd_queue_size;
    for cookie in 0..size + 1 {
        b.ia.post_recv(b.ep, &[], 0, SIGNALED).unwrap();
        a.ia.post_rdma_write(a.ep, &[], cookie as u64, SIGNALED, RdmaAddr(0), RmrContext(0)).unwrap();
    }
    let event = a.wait(affiliated);
    assert_eq!(
        event,
        Event::Affiliated {
            event_number: EventType::ASYNC_AFF_SEVD_ENQUEUE_FAILURE,
            evd: affiliated,
            cause: AffiliatedCause::Sevd(small)
        }
    );
    assert_eq!(a.wait(a.connection), Event::ConnBroken { evd: connection, ep });
    assert!(a.ia.evd_query(small, EvdParamMask::OVERFLOWED).unwrap().evd_overflowed);
    assert_eq!(a.ia.ep_reset(ep), Err(Error::CannotReset));
    let created = a.ia.ep_rc_create(pz, small, receives, connection, EpFlags::empty(), &attributes());
    assert_eq!(created, Err(Error::InvalidReqEvdState));
    assert_eq!(a.ia.evd_free(small), Err(Error::EvdBusy));
    a.ia.ep_free(ep).unwrap();
    a.ia.evd_free(small).unwrap();
    done(&world, &[&a, &b]);
}

#[test]
fn who_waits_for_an_event_hears_that_the_agent_is_closed() {
    let world = World::new(1);
    let ia = world.ia(0);
    let stream = EventType::SOFTWARE_EVENT_STREAM;
    let noted = ia.evd_create(stream, EvdFlags::CREATE_FD, 4, 1, EvdHandle::NULL).unwrap();
    let waited = ia.evd_create(stream, EvdFlags::empty(), 4, 1, EvdHandle::NULL).unwrap();
    struct Tell(std::sync::mpsc::Sender<()>);
    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }
    let (woken, wakes) = channel();
    let waker = Waker::from(Arc::new(Tell(woken)));
    let notification = ia.evd_notification(noted).unwrap();
    assert!(notification.poll_ready(&mut Context::from_waker(&waker)).is_pending());
    let waiter = {
        let ia = ia.clone();
        std::thread::spawn(move || ia.evd_wait(waited, TIMEOUT_INFINITE))
    };
    world.agents[0].close();
    wakes.try_recv().expect("the close has woken the task");
    assert_eq!(waiter.join().unwrap().unwrap_err(), Error::IaCatastrophe);
    assert_eq!(
        notification.poll_ready(&mut Context::from_waker(&waker)),
        Poll::Ready(Err(Error::IaCatastrophe))
    );
    ia.ia_free().unwrap();
}

//! Notification objects, which take the place of file descriptors (IT_EVD_CREATE_FD of page
//! it_evd_create, and the parts of it_evd_modify, it_evd_wait and it_evd_query about it).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use core::result::Result;
use core::task::{Context, Poll, Waker};

use privileged_api::*;

use crate::events::aevd::{empty, enable, feed, feeding, naming};
use crate::events::aevd_events::no_wait;
use crate::events::evd::{PLAIN, expect_software, nothing, software};
use crate::fixture::{MOMENT, Pair, SIGNALLED, WAIT, attributes, evd_param, sevd};
use crate::thread::{Signal, Thread};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const FD: EvdFlags = EvdFlags::CREATE_FD;
const AGGREGATE: EventType = EventType::AEVD_NOTIFICATION_EVENT_STREAM;

/// An EVD with a notification object.
fn create(ia: &Ia, stream: EventType, flags: EvdFlags) -> Result<(EvdHandle, Notification), Failure> {
    let evd = ia.evd_create(stream, flags | FD, 16, 1, EvdHandle::NULL)?;
    Ok((evd, ia.evd_notification(evd)?))
}

/// Fails unless every way to ask reports the object as ready.
#[track_caller]
fn ready(object: &Notification) -> Outcome {
    match (object.is_ready(), object.wait(0), object.poll_ready(&mut Context::from_waker(Waker::noop()))) {
        (Ok(true), Ok(()), Poll::Ready(Ok(()))) => Ok(()),
        other => Err(Failure::new(alloc::format!("not ready: {other:?}"))),
    }
}

/// Fails unless every way to ask reports the object as not ready.
#[track_caller]
fn idle(object: &Notification) -> Outcome {
    match (object.is_ready(), object.wait(MOMENT), object.poll_ready(&mut Context::from_waker(Waker::noop())))
    {
        (Ok(false), Err(Error::TimeoutExpired), Poll::Pending) => Ok(()),
        other => Err(Failure::new(alloc::format!("ready: {other:?}"))),
    }
}

/// A task that counts how often it is woken.
struct Task(Signal);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.raise();
    }
}

pub(crate) const TESTS: &[Test] = &[
    // The object is ready exactly while its EVD notifies.
    test(
        "notification::ready_while_it_notifies",
        &["it_evd_create B27 B40-B42 F06 V09", "it_evd_query F08"],
        |f| {
            let (evd, object) = create(&f.a, EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty())?;
            let (other, apart) = create(&f.a, EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty())?;
            check_eq!((object.evd(), apart.evd()), (evd, other));
            let param = evd_param(&f.a, evd)?;
            check!(param.has_fd && param.evd_flag == FD && param.evd_enabled);
            check_eq!(
                f.a.evd_query(evd, EvdParamMask::FD)?,
                EvdParam { has_fd: true, ..EvdParam::default() }
            );
            idle(&object)?;
            f.a.evd_post_se(evd, 1)?;
            f.a.evd_post_se(evd, 2)?;
            // Asking whether the object is ready takes no event; events are dequeued from the EVD.
            ready(&object)?;
            ready(&object)?;
            idle(&apart)?;
            expect_software(&f.a, evd, 1)?;
            ready(&object)?;
            expect_software(&f.a, evd, 2)?;
            idle(&object)?;
            // An EVD that was created without the flag has no notification object.
            let plain = software(&f.a, 4)?;
            check!(!evd_param(&f.a, plain)?.has_fd && !evd_param(&f.a, plain)?.evd_flag.contains(FD));
            refused(f.a.evd_notification(plain).map(drop), Error::InvalidEvdState)?;
            refused(f.a.evd_notification(EvdHandle::NULL).map(drop), Error::InvalidEvd)
        },
    ),
    // The object of an aggregate EVD is ready while any of its EVDs notifies.
    test(
        "notification::of_an_aggregate",
        &["it_evd_create B40 B43", "it_evd_dequeue B08", "it_evd_modify B15 B16"],
        |f| {
            for flags in [EvdFlags::empty(), EvdFlags::DEQUEUE_NOTIFICATIONS] {
                let names = !flags.is_empty();
                let (aevd, object) = create(&f.a, AGGREGATE, flags)?;
                check_eq!(evd_param(&f.a, aevd)?.evd_flag, flags | FD);
                let evds = [feeding(&f.a, aevd)?, feeding(&f.a, aevd)?];
                idle(&object)?;
                f.a.evd_post_se(evds[1], 1)?;
                ready(&object)?;
                // While it is enabled, the EVD can be dequeued from, but a wait is refused.
                no_wait(&f.a, aevd)?;
                let event = f.a.evd_dequeue(aevd)?;
                if names {
                    check_eq!(event, Event::AevdNotification { aevd, sevd: evds[1] });
                    ready(&object)?;
                    expect_software(&f.a, evds[1], 1)?;
                }
                idle(&object)?;
                // While it is disabled, a wait is allowed and events do not make the object ready.
                enable(&f.a, aevd, false)?;
                f.a.evd_post_se(evds[0], 2)?;
                idle(&object)?;
                let (event, _) = f.a.evd_wait(aevd, WAIT)?;
                check_eq!(event.evd(), if names { aevd } else { evds[0] });
                enable(&f.a, aevd, true)?;
                no_wait(&f.a, aevd)?;
                check_eq!(object.is_ready(), Ok(names));
            }
            Ok(())
        },
    ),
    // An EVD with an object takes no callback, and no wait while it is enabled; dequeuing always
    // works.
    test(
        "notification::waits_and_callbacks_are_refused_beside_it",
        &[
            "it_evd_create B26 B45 V13",
            "it_evd_modify B13",
            "it_evd_wait IT_ERR_INVALID_EVD_STATE",
            "it_evd_callback_attach IT_ERR_INVALID_EVD_STATE",
        ],
        |f| {
            let (evd, object) = create(&f.a, EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty())?;
            let attach = |evd| f.a.evd_callback_attach(evd, Box::new(|_: &Ia, _| {}));
            f.a.evd_post_se(evd, 1)?;
            no_wait(&f.a, evd)?;
            expect_software(&f.a, evd, 1)?;
            enable(&f.a, evd, false)?;
            f.a.evd_post_se(evd, 2)?;
            check_eq!(f.a.evd_wait(evd, WAIT)?.0, Event::Software { evd, data: 2 });
            refused(attach(evd), Error::InvalidEvdState)?;
            enable(&f.a, evd, true)?;
            no_wait(&f.a, evd)?;
            refused(attach(evd), Error::InvalidEvdState)?;
            let (aevd, _) = create(&f.a, AGGREGATE, EvdFlags::empty())?;
            refused(attach(aevd), Error::InvalidEvdState)?;
            check!(!evd_param(&f.a, aevd)?.evd_callback);
            // A thread that already waits when the EVD is enabled is refused then.
            enable(&f.a, evd, false)?;
            let ia = f.a.clone();
            let thread = Thread::spawn(f.platform(), "waiter", move || ia.evd_wait(evd, TIMEOUT_INFINITE))?;
            enable(&f.a, evd, true)?;
            check!(thread.join()?.is_err_and(|failure| failure == Error::InvalidEvdState));
            idle(&object)
        },
    ),
    // An EVD that is enabled with an event makes its object ready; a disabled one does not.
    test("notification::while_it_is_disabled", &["it_evd_modify B12 B14", "it_evd_create B41"], |f| {
        let (evd, object) = create(&f.a, EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty())?;
        enable(&f.a, evd, false)?;
        f.a.evd_post_se(evd, 1)?;
        idle(&object)?;
        // The EVD meets its criteria when it is enabled, so the object is ready at once.
        enable(&f.a, evd, true)?;
        ready(&object)?;
        // An object that was ready when the EVD was disabled stays ready until the EVD is
        // drained. Later events do not make it ready.
        enable(&f.a, evd, false)?;
        ready(&object)?;
        expect_software(&f.a, evd, 1)?;
        idle(&object)?;
        f.a.evd_post_se(evd, 2)?;
        idle(&object)?;
        enable(&f.a, evd, true)?;
        ready(&object)
    }),
    // A closed object ends its waits, and the EVD becomes one without an object.
    test("notification::closed", &["it_evd_modify B04 B08 L02 IT_ERR_INVALID_EVD_STATE"], |f| {
        let aevd = naming(&f.a)?;
        let (evd, object) = create(&f.a, EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty())?;
        let same = f.a.evd_notification(evd)?;
        // An EVD with a notification object cannot feed an aggregate EVD, and an EVD without
        // one cannot get one later.
        enable(&f.a, evd, false)?;
        refused(feed(&f.a, evd, aevd), Error::InvalidEvdState)?;
        let change = EvdParam { has_fd: true, ..EvdParam::default() };
        refused(f.a.evd_modify(evd, EvdParamMask::FD, &change), Error::InvalidMask)?;
        enable(&f.a, evd, true)?;
        let waits = object.clone();
        let thread = Thread::spawn(f.platform(), "waiter", move || waits.wait(TIMEOUT_INFINITE))?;
        same.close()?;
        refused(thread.join()?, Error::InvalidEvdState)?;
        let param = evd_param(&f.a, evd)?;
        check!(!param.has_fd && !param.evd_flag.contains(FD));
        for object in [&object, &same] {
            refused(object.is_ready(), Error::InvalidEvdState)?;
            refused(object.close(), Error::InvalidEvdState)?;
        }
        refused(f.a.evd_notification(evd).map(drop), Error::InvalidEvdState)?;
        // After the close, waiting on the EVD and feeding an aggregate EVD are allowed.
        f.a.evd_post_se(evd, 1)?;
        check_eq!(f.a.evd_wait(evd, 0)?.0, Event::Software { evd, data: 1 });
        enable(&f.a, evd, false)?;
        feed(&f.a, evd, aevd)?;
        check_eq!(evd_param(&f.a, evd)?.aevd, aevd);
        empty(&f.a, aevd)
    }),
    // The threshold and the notify flag decide when completions make the object ready.
    test("notification::of_completions", &["it_evd_create B27 B42"], |f| {
        let stream = EventType::DTO_EVENT_STREAM;
        let dto = f.a.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT | FD, 64, 3, EvdHandle::NULL)?;
        let object = f.a.evd_notification(dto)?;
        let recv = sevd(&f.a, stream, 64, 1)?;
        let pair = Pair { a: f.end_on(&f.a, &attributes(), dto, recv)?, b: f.end(&f.b, &attributes())? };
        f.connect(&pair.a, &pair.b)?;
        // The third plain completion reaches the threshold; later a single one that notifies is
        // enough.
        let signal = Signal::new(f.platform());
        let waker = Waker::from(Arc::new(Task(signal.clone())));
        let waits = object.clone();
        let thread = Thread::spawn(f.platform(), "waiter", move || waits.wait(WAIT))?;
        check!(object.poll_ready(&mut Context::from_waker(&waker)).is_pending());
        for cookie in 0..3 {
            check_eq!(signal.count(), 0, "woken by {cookie} of 3");
            nothing(&pair.a, cookie, PLAIN)?;
        }
        check_eq!(thread.join()?, Ok(()));
        signal.wait(1)?;
        ready(&object)?;
        check_eq!(f.a.evd_dequeue(dto)?.dto().map(|done| done.cookie), Some(0));
        idle(&object)?;
        nothing(&pair.a, 3, SIGNALLED)?;
        check_eq!(object.wait(WAIT), Ok(()));
        for cookie in 1..=3 {
            check_eq!(f.a.evd_dequeue(dto)?.dto().map(|done| done.cookie), Some(cookie));
        }
        idle(&object)?;
        // Many rounds that are each awaited: no wake-up is lost.
        for cookie in 4..40 {
            nothing(&pair.a, cookie, SIGNALLED)?;
            check_eq!(object.wait(WAIT), Ok(()));
            check_eq!(f.a.evd_dequeue(dto)?.dto().map(|done| done.cookie), Some(cookie));
        }
        Ok(())
    }),
    // The object wakes an asynchronous task for each notification, and when it is closed.
    test("notification::wakes_a_task", &["it_evd_create B27 B43"], |f| {
        for aggregate in [false, true] {
            let (stream, flags) = match aggregate {
                true => (AGGREGATE, EvdFlags::DEQUEUE_NOTIFICATIONS),
                false => (EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty()),
            };
            let (evd, object) = create(&f.a, stream, flags)?;
            let source = if aggregate { feeding(&f.a, evd)? } else { evd };
            let signal = Signal::new(f.platform());
            let waker = Waker::from(Arc::new(Task(signal.clone())));
            let poll = || object.poll_ready(&mut Context::from_waker(&waker));
            for round in 1..=10 {
                check!(poll().is_pending());
                check_eq!(signal.count(), round - 1, "woken without an event");
                f.a.evd_post_se(source, 1)?;
                signal.wait(round)?;
                check_eq!(poll(), Poll::Ready(Ok(())));
                expect_software(&f.a, source, 1)?;
            }
            // The free of the EVD wakes the task.
            check!(poll().is_pending());
            if aggregate {
                f.a.evd_free(source)?;
            }
            f.a.evd_free(evd)?;
            signal.wait(11)?;
            check_eq!(poll(), Poll::Ready(Err(Error::InvalidEvd)));
        }
        Ok(())
    }),
    // The object of a freed EVD is invalid, wakes its waiters and keeps nothing alive.
    test("notification::the_object_of_a_freed_evd", &["it_evd_free V04"], |f| {
        let (evd, object) = create(&f.a, EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty())?;
        f.a.evd_post_se(evd, 1)?;
        ready(&object)?;
        expect_software(&f.a, evd, 1)?;
        let waits = object.clone();
        let thread = Thread::spawn(f.platform(), "waiter", move || waits.wait(TIMEOUT_INFINITE))?;
        f.a.evd_free(evd)?;
        // IT_ERR_ABORT if the thread waited when the EVD was freed (it_evd_wait). If it called
        // afterwards, the EVD was invalid (it_evd_free).
        check!(matches!(thread.join()?, Err(Error::Abort | Error::InvalidEvd)));
        refused(object.is_ready(), Error::InvalidEvd)?;
        refused(object.wait(0), Error::InvalidEvd)?;
        refused(object.close(), Error::InvalidEvd)?;
        // The object does not keep the IA from being freed.
        let ia = f.another(None)?;
        let (_, object) = create(&ia, EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty())?;
        ia.ia_free()?;
        refused(object.is_ready(), Error::InvalidIa)
    }),
];

//! Waiters and callbacks of aggregate EVDs, thresholds, and several waiters at once (pages
//! it_evd_create, it_evd_wait, it_evd_modify, it_evd_callback_attach, it_evd_callback_detach).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;
use core::sync::atomic::{AtomicU32, Ordering};

use platform::sync::Mutex;
use privileged_api::*;

use crate::events::aevd::{
    empty, enable, expect_gathered, expect_notification, feed, feeding, gathering, naming,
};
use crate::events::aevd_events::pair_into;
use crate::events::callback::{count, drain, freed, settle};
use crate::events::evd::{PLAIN, blocks, expect_software, nothing, software};
use crate::events::evd_wait::Waiters;
use crate::fixture::{SIGNALLED, WAIT, attributes, evd_param, path, spigot};
use crate::thread::{Signal, Thread, eventually};
use crate::{Failure, Test, check, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // An event of any EVD that feeds the aggregate EVD wakes its waiter.
    test(
        "aevd::a_waiter_is_woken",
        &["it_evd_create B42 B48 B53", "it_evd_wait B13", "it_evd_modify B14", "A.it_evd_create B10 B21"],
        |f| {
            for names in [true, false] {
                let aevd = if names { naming(&f.a)? } else { gathering(&f.a)? };
                let (quiet, soft) = (feeding(&f.a, aevd)?, feeding(&f.a, aevd)?);
                let pair = pair_into(f, aevd, 1)?;
                let dto = pair.a.request;
                let echo = software(&f.a, 8)?;
                let ia = f.a.clone();
                let thread = Thread::spawn(f.platform(), "waiter", move || -> Result<(), WaitError> {
                    for _ in 0..40 {
                        let (event, _) = ia.evd_wait(aevd, TIMEOUT_INFINITE)?;
                        let of = match event {
                            Event::AevdNotification { sevd, .. } => ia.evd_dequeue(sevd).map(|_| sevd)?,
                            event => event.evd(),
                        };
                        ia.evd_post_se(echo, of.as_raw() as usize)?;
                    }
                    Ok(())
                })?;
                for round in 0..40 {
                    let expected = match round % 4 {
                        0 => {
                            f.a.evd_post_se(soft, round)?;
                            soft
                        }
                        1 => {
                            // An event that arrives while the EVD is disabled notifies when the EVD
                            // is enabled.
                            enable(&f.a, soft, false)?;
                            f.a.evd_post_se(soft, round)?;
                            enable(&f.a, soft, true)?;
                            soft
                        }
                        _ => {
                            nothing(&pair.a, round as u64, SIGNALLED)?;
                            dto
                        }
                    };
                    let (event, _) = f.a.evd_wait(echo, WAIT)?;
                    check_eq!(event, Event::Software { evd: echo, data: expected.as_raw() as usize });
                }
                thread.join()??;
                empty(&f.a, aevd)?;
                f.a.evd_free(quiet)?;
            }
            Ok(())
        },
    ),
    // Each completion wakes one more of several waiters, also those that slept when another waiter
    // took an event.
    test("aevd::each_completion_wakes_a_waiter", &["it_evd_create B42"], |f| {
        for names in [true, false] {
            let aevd = if names { naming(&f.a)? } else { gathering(&f.a)? };
            let woken = Signal::new(f.platform());
            let mut threads = Vec::new();
            for _ in 0..3 {
                let (ia, woken) = (f.a.clone(), woken.clone());
                threads.push(Thread::spawn(f.platform(), "waiter", move || {
                    let waited = ia.evd_wait(aevd, TIMEOUT_INFINITE).map(drop);
                    woken.raise();
                    waited
                })?);
            }
            let pair = pair_into(f, aevd, 1)?;
            for count in 1..=3 {
                nothing(&pair.a, count.into(), SIGNALLED)?;
                woken.wait(count)?;
            }
            for thread in threads {
                thread.join()??;
            }
        }
        Ok(())
    }),
    // A wait on an aggregate EVD blocks while no enabled EVD notifies.
    test("aevd::blocks_while_all_are_empty", &["A.it_evd_create B12", "it_evd_create B60"], |f| {
        for aevd in [naming(&f.a)?, gathering(&f.a)?] {
            blocks(&f.a, aevd, 0)?;
            let evds = [feeding(&f.a, aevd)?, feeding(&f.a, aevd)?];
            blocks(&f.a, aevd, 0)?;
            // The wait does not return for a disabled EVD either.
            enable(&f.a, evds[0], false)?;
            enable(&f.a, evds[1], false)?;
            f.a.evd_post_se(evds[0], 1)?;
            blocks(&f.a, aevd, 0)?;
        }
        Ok(())
    }),
    // Each EVD's own threshold decides when it notifies the aggregate EVD.
    test(
        "aevd::each_evds_own_threshold_counts",
        &["it_evd_create B41 B49 O02", "it_evd_wait O02", "A.it_evd_create B10 O01 V07"],
        |f| {
            for names in [true, false] {
                let aevd = if names { naming(&f.a)? } else { gathering(&f.a)? };
                let pair = pair_into(f, aevd, 3)?;
                let dto = pair.a.request;
                let cookie = |event: Event| event.dto().map(|done| done.cookie);
                let take = || {
                    let (event, _) = f.a.evd_wait(aevd, WAIT)?;
                    match names {
                        true => {
                            check_eq!(event, Event::AevdNotification { aevd, sevd: dto });
                            Ok(cookie(f.a.evd_dequeue(dto)?))
                        }
                        false => Ok(cookie(event)),
                    }
                };
                // A thread already waits while the completions arrive one by one.
                let ia = f.a.clone();
                let thread = Thread::spawn(f.platform(), "waiter", move || ia.evd_wait(aevd, WAIT))?;
                nothing(&pair.a, 0, PLAIN)?;
                nothing(&pair.a, 1, PLAIN)?;
                nothing(&pair.a, 2, PLAIN)?;
                let (event, _) = thread.join()??;
                match names {
                    true => check_eq!(cookie(f.a.evd_dequeue(dto)?), Some(0)),
                    false => check_eq!(cookie(event), Some(0)),
                }
                // Two completions are left, which is below the threshold. A third one reaches it,
                // and so does one that notifies.
                blocks(&f.a, aevd, 0)?;
                nothing(&pair.a, 3, PLAIN)?;
                check_eq!(take()?, Some(1));
                blocks(&f.a, aevd, 0)?;
                nothing(&pair.a, 4, SIGNALLED)?;
                for expected in 2..=4 {
                    check_eq!(take()?, Some(expected));
                }
                empty(&f.a, aevd)?;
                // A dequeue ignores the threshold. It takes from the aggregate EVD if that gathers,
                // and else from the EVD itself.
                nothing(&pair.a, 5, PLAIN)?;
                blocks(&f.a, aevd, 0)?;
                let from = if names { dto } else { aevd };
                check_eq!(cookie(crate::events::aevd_events::poll_completion(f, from)?), Some(5));
            }
            Ok(())
        },
    ),
    // Each event wakes one waiter, and no waiter returns without an event.
    test("aevd::as_many_waiters_as_events", &["A.it_evd_create O02 V02 V04"], |f| {
        let aevd = gathering(&f.a)?;
        let evds = [feeding(&f.a, aevd)?, feeding(&f.a, aevd)?];
        let waiters = Waiters::new(f, aevd, 6)?;
        let mut passed = 0;
        for events in 1..=3 {
            for event in 0..events {
                f.a.evd_post_se(evds[event % 2], passed + event)?;
            }
            passed += events;
            waiters.have(passed)?;
            empty(&f.a, aevd)?;
        }
        check_eq!(waiters.data()?, [0, 1, 2, 3, 4, 5]);
        Ok(())
    }),
    // A waiter that returns with a completion does not come back. The next completion on the same
    // EVD wakes one of the others.
    test("aevd::each_completion_wakes_another_waiter", &["A.it_evd_create V02", "it_evd_create B53"], |f| {
        const WAITERS: usize = 4;
        let aevd = gathering(&f.a)?;
        let pair = pair_into(f, aevd, 1)?;
        let waiters = Waiters::new(f, aevd, WAITERS)?;
        for woken in 1..=WAITERS {
            nothing(&pair.a, woken as u64, SIGNALLED)?;
            waiters.have(woken)?;
        }
        Ok(())
    }),
    // If a completion arrived unnoticed between the last look and the sleep, a waiter would sleep
    // for ever.
    test("aevd::no_wake_up_is_lost", &["A.it_evd_create V05", "it_evd_create B53"], |f| {
        // Completions arrive while the waiters wake, drain, arm and sleep again.
        const EACH: u64 = 200;
        for names in [true, false] {
            let aevd = if names { naming(&f.a)? } else { gathering(&f.a)? };
            let pairs = [pair_into(f, aevd, 1)?, pair_into(f, aevd, 1)?];
            let stop = [feeding(&f.a, aevd)?, feeding(&f.a, aevd)?];
            let taken = Arc::new(AtomicU32::new(0));
            let mut threads = Vec::new();
            for _ in 0..2 {
                let (ia, taken) = (f.a.clone(), taken.clone());
                threads.push(Thread::spawn(f.platform(), "waiter", move || {
                    loop {
                        let Ok((event, _)) = ia.evd_wait(aevd, WAIT) else { return false };
                        match event {
                            Event::AevdNotification { sevd, .. } if stop.contains(&sevd) => return true,
                            Event::AevdNotification { sevd, .. } => {
                                while ia.evd_dequeue(sevd).is_ok() {
                                    taken.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                            Event::Software { .. } => return true,
                            _ => {
                                taken.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                })?);
            }
            let mut posted = 0;
            for cookie in 0..EACH {
                for pair in &pairs {
                    nothing(&pair.a, cookie, SIGNALLED)?;
                    posted += 1;
                }
                // From time to time all completions are taken, so that the waiters sleep.
                if cookie % 8 == 7 {
                    let all = eventually(f.platform(), || taken.load(Ordering::Relaxed) == posted);
                    check!(all, "{} of {posted} completions", taken.load(Ordering::Relaxed));
                }
            }
            for evd in stop {
                f.a.evd_post_se(evd, 0)?;
            }
            for thread in threads {
                check!(thread.join()?);
            }
        }
        Ok(())
    }),
    // Threads that wait on EVDs that are freed return with an error.
    test("aevd::freed_under_its_waiters", &["it_evd_wait IT_ERR_ABORT", "it_evd_free B09"], |f| {
        for aevd in [naming(&f.a)?, gathering(&f.a)?] {
            let evds = [feeding(&f.a, aevd)?, feeding(&f.a, aevd)?];
            let (taken, mut threads) = (Signal::new(f.platform()), Vec::new());
            for _ in 0..2 {
                let (ia, taken) = (f.a.clone(), taken.clone());
                threads.push(Thread::spawn(f.platform(), "waiter", move || {
                    loop {
                        match ia.evd_wait(aevd, TIMEOUT_INFINITE) {
                            Ok((Event::AevdNotification { sevd, .. }, _)) => {
                                while ia.evd_dequeue(sevd).is_ok() {
                                    taken.raise();
                                }
                            }
                            Ok(_) => taken.raise(),
                            Err(failure) => return failure.error,
                        }
                    }
                })?);
            }
            // Both threads wait, or are about to.
            for evd in evds {
                f.a.evd_post_se(evd, 1)?;
            }
            taken.wait(2)?;
            for evd in evds {
                f.a.evd_free(evd)?;
            }
            f.a.evd_free(aevd)?;
            for thread in threads {
                let error = thread.join()?;
                // IT_ERR_ABORT if the thread waited when the EVD was freed (it_evd_wait). If it
                // called again afterwards, the EVD was invalid (it_evd_free).
                check!(error == Error::Abort || error == Error::InvalidEvd, "got {error:?}");
            }
        }
        Ok(())
    }),
    // A thread that waits on a disabled EVD is refused when the EVD is enabled or captured.
    test(
        "aevd::a_wait_ends_when_the_evd_is_enabled_or_captured",
        &["it_evd_modify B13", "it_evd_wait IT_ERR_INVALID_EVD_STATE", "it_evd_create B45"],
        |f| {
            let (aevd, captor) = (naming(&f.a)?, gathering(&f.a)?);
            // The wait ends if the EVD is enabled, and also if it stays disabled and is captured by
            // a gathering aggregate EVD.
            for (enabled, to) in [(true, aevd), (false, captor)] {
                let evd = feeding(&f.a, aevd)?;
                enable(&f.a, evd, false)?;
                let ia = f.a.clone();
                let thread =
                    Thread::spawn(f.platform(), "waiter", move || ia.evd_wait(evd, TIMEOUT_INFINITE))?;
                match enabled {
                    true => enable(&f.a, evd, true)?,
                    false => feed(&f.a, evd, to)?,
                }
                check!(thread.join()?.is_err_and(|failure| failure == Error::InvalidEvdState));
            }
            Ok(())
        },
    ),
    // One aggregate EVD takes events of every stream of a connection.
    test("aevd::every_stream", &["1 B07", "it_evd_create B01 B21 V01"], |f| {
        // A connection is made and used through one aggregate EVD.
        let aevd = gathering(&f.a)?;
        let create = |stream| f.a.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 16, 1, aevd);
        let (requests, conn, dto) = (
            create(EventType::CM_REQ_EVENT_STREAM)?,
            create(EventType::CM_MSG_EVENT_STREAM)?,
            create(EventType::DTO_EVENT_STREAM)?,
        );
        let wait = || f.a.evd_wait(aevd, WAIT).map(|(event, _)| event);
        let at = spigot(&f.a)?;
        let (_, qual) = f.a.listen_create(at.spigot_id, requests, ListenFlags::empty(), None)?;
        let pz = f.a.pz_create()?;
        let create_ep = |conn| f.a.ep_rc_create(pz, dto, dto, conn, EpFlags::empty(), &attributes());
        refused(create_ep(requests), Error::InvalidEvdType)?;
        let ep = create_ep(conn)?;
        let peer = f.end(&f.b, &attributes())?;
        let route = path(&f.b, &crate::check::some(at.net_addr.first().copied(), "an address")?)?;
        f.b.ep_connect(peer.ep, &route, None, &qual, CnEstFlags::TWO_WAY, &[])?;
        let Event::ConnRequest(request) = wait()? else { return Err(Failure::new("no request")) };
        check_eq!(request.evd, requests);
        f.a.ep_accept(ep, request.cn_est_id, &[])?;
        let event = wait()?;
        check_eq!((event.event_number(), event.evd()), (EventType::CM_MSG_CONN_ESTABLISHED, conn));
        peer.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        f.a.post_recv(ep, &[], 5, SIGNALLED)?;
        f.b.post_send(peer.ep, &[], 6, SIGNALLED)?;
        check_eq!(wait()?.dto().map(|done| (done.evd, done.cookie)), Some((dto, 5)));
        f.b.ep_disconnect(peer.ep, &[])?;
        let event = wait()?;
        check_eq!((event.event_number(), event.evd()), (EventType::CM_MSG_CONN_DISCONNECT, conn));
        Ok(())
    }),
    // Callbacks work on both kinds of aggregate EVD and on simple ones.
    test(
        "aevd::callbacks_of_both_kinds",
        &["it_evd_callback_attach B01 V03", "it_evd_callback_detach B01"],
        |f| {
            for names in [true, false] {
                let aevd = if names { naming(&f.a)? } else { gathering(&f.a)? };
                let evd = feeding(&f.a, aevd)?;
                let signal = count(f, aevd)?;
                check!(evd_param(&f.a, aevd)?.evd_callback);
                for round in 1..=3 {
                    f.a.evd_post_se(evd, 1)?;
                    signal.wait(round)?;
                    f.a.evd_post_se(evd, 2)?;
                    // The callback must not run again before all events are dequeued. A naming
                    // aggregate EVD is drained when no EVD notifies any more.
                    match names {
                        true => expect_notification(&f.a, aevd, evd)?,
                        false => expect_gathered(&f.a, aevd, evd, 1)?,
                    }
                    settle(f)?;
                    check_eq!(signal.count(), round, "invoked before all was dequeued");
                    if names {
                        expect_software(&f.a, evd, 1)?;
                        expect_software(&f.a, evd, 2)?;
                        empty(&f.a, aevd)?;
                    } else {
                        check_eq!(drain(&f.a, aevd)?, 1);
                    }
                }
                f.a.evd_callback_detach(aevd)?;
                check!(!evd_param(&f.a, aevd)?.evd_callback);
                f.a.evd_post_se(evd, 3)?;
                settle(f)?;
                check_eq!(signal.count(), 3, "invoked after the detach");
            }
            // A simple EVD behaves alike.
            let evd = software(&f.a, 8)?;
            let signal = count(f, evd)?;
            check!(evd_param(&f.a, evd)?.evd_callback);
            f.a.evd_post_se(evd, 1)?;
            signal.wait(1)?;
            f.a.evd_callback_detach(evd)?;
            check!(!evd_param(&f.a, evd)?.evd_callback);
            Ok(())
        },
    ),
    // A callback that drains its EVD is invoked again for later completions, and misses none.
    test("aevd::callbacks_that_drain", &["it_evd_callback_attach B01 V03", "A.it_evd_create V05"], |f| {
        for names in [true, false] {
            let aevd = if names { naming(&f.a)? } else { gathering(&f.a)? };
            let pairs = [pair_into(f, aevd, 1)?, pair_into(f, aevd, 2)?];
            let taken = Arc::new(AtomicU32::new(0));
            let total = taken.clone();
            let callback = move |ia: &Ia, aevd| {
                while let Ok(event) = ia.evd_dequeue(aevd) {
                    match event {
                        Event::AevdNotification { sevd, .. } => {
                            while ia.evd_dequeue(sevd).is_ok() {
                                total.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        _ => {
                            total.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            };
            f.a.evd_callback_attach(aevd, Box::new(callback))?;
            for round in 1..=30 {
                for cookie in 0..4 {
                    nothing(&pairs[cookie % 2].a, cookie as u64, SIGNALLED)?;
                }
                let all = eventually(f.platform(), || taken.load(Ordering::Relaxed) == round * 4);
                check!(all, "{} of {} completions", taken.load(Ordering::Relaxed), round * 4);
            }
            f.a.evd_callback_detach(aevd)?;
        }
        Ok(())
    }),
    // One routine runs for two EVDs at the same time, and another thread may detach it.
    test(
        "callback::of_two_evds_at_once",
        &["it_evd_callback_attach B10", "it_evd_callback_detach V02"],
        |f| {
            // One routine is attached to two EVDs, one of them fed by the NIC. Each invocation
            // waits until the other one runs as well.
            let soft = software(&f.a, 8)?;
            let aevd = naming(&f.a)?;
            let pair = pair_into(f, aevd, 1)?;
            let dto = pair.a.request;
            enable(&f.a, dto, false)?;
            feed(&f.a, dto, EvdHandle::NULL)?;
            enable(&f.a, dto, true)?;
            let (inside, met) = (Signal::new(f.platform()), Signal::new(f.platform()));
            let seen = Arc::new(Mutex::new(Vec::new()));
            for evd in [soft, dto] {
                let (inside, met, seen) = (inside.clone(), met.clone(), seen.clone());
                let routine = move |_: &Ia, evd| {
                    seen.lock().push(evd);
                    inside.raise();
                    if inside.reached(2, crate::thread::PATIENCE) {
                        met.raise();
                    }
                };
                f.a.evd_callback_attach(evd, Box::new(routine))?;
            }
            f.a.evd_post_se(soft, 1)?;
            f.a.evd_post_se(soft, 2)?;
            nothing(&pair.a, 1, SIGNALLED)?;
            met.wait(2)?;
            // Each was invoked once, although more events arrived meanwhile.
            settle(f)?;
            let mut seen = seen.lock().clone();
            seen.sort_unstable_by_key(|evd| *evd == dto);
            check_eq!(seen, [soft, dto]);
            // Any thread with the IA may detach a callback that another one attached.
            let ia = f.a.clone();
            let other = Thread::spawn(f.platform(), "other", move || ia.evd_callback_detach(soft))?;
            check_eq!(other.join()?, Ok(()));
            check!(!evd_param(&f.a, soft)?.evd_callback);
            f.a.evd_callback_detach(dto)?;
            freed(f, soft)
        },
    ),
];

//! Events through aggregate EVDs: how they are dequeued, and which calls are refused (pages
//! it_evd_create, it_evd_dequeue, it_evd_wait, it_aevd_notification_event_t).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::events::aevd::{
    empty, enable, expect_gathered, expect_notification, feed, feeding, gathering, naming,
};
use crate::events::evd::{PLAIN, blocks, expect_software, nothing, software};
use crate::fixture::{End, Fixture, Pair, SIGNALLED, WAIT, attributes, evd_param, sevd};
use crate::thread::eventually;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// A pair whose active side completes Sends on an EVD with this threshold that feeds an aggregate
/// EVD.
pub(crate) fn pair_into(f: &Fixture, aevd: EvdHandle, threshold: usize) -> Result<Pair, Failure> {
    let stream = EventType::DTO_EVENT_STREAM;
    let request = f.a.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 64, threshold, aevd)?;
    let recv = sevd(&f.a, stream, 64, 1)?;
    let pair = Pair { a: f.end_on(&f.a, &attributes(), request, recv)?, b: f.end(&f.b, &attributes())? };
    f.connect(&pair.a, &pair.b)?;
    Ok(pair)
}

/// Fails unless a wait on the EVD is refused at once.
#[track_caller]
pub(crate) fn no_wait(ia: &Ia, evd: EvdHandle) -> Outcome {
    match ia.evd_wait(evd, WAIT) {
        Err(failure) if failure == Error::InvalidEvdState => Ok(()),
        other => Err(Failure::new(alloc::format!("expected a refusal to wait, got {other:?}"))),
    }
}

/// Dequeues the next completion, for which it polls.
#[track_caller]
pub(crate) fn poll_completion(f: &Fixture, evd: EvdHandle) -> Result<Event, Failure> {
    let mut taken = Err(Error::QueueEmpty);
    eventually(f.platform(), || {
        taken = f.a.evd_dequeue(evd);
        taken != Err(Error::QueueEmpty)
    });
    Ok(taken?)
}

pub(crate) const TESTS: &[Test] = &[
    // A naming aggregate EVD returns a notification for each EVD that notifies, and the event stays
    // in that EVD.
    test(
        "aevd::notifications_name_the_evd",
        &[
            "it_evd_create B20 B56 F04",
            "it_evd_dequeue B05 B08",
            "it_evd_wait B10 B16",
            "it_aevd_notification_event_t B01 F01-F03",
            "it_event_t F53 F67",
            "A.it_evd_create B16 V07",
        ],
        |f| {
            let aevd = naming(&f.a)?;
            let (one, other) = (feeding(&f.a, aevd)?, feeding(&f.a, aevd)?);
            empty(&f.a, aevd)?;
            f.a.evd_post_se(one, 7)?;
            let (event, _) = f.a.evd_wait(aevd, 0)?;
            check_eq!(event, Event::AevdNotification { aevd, sevd: one });
            check_eq!(
                (event.event_number(), event.event_number().as_raw()),
                (EventType::AEVD_NOTIFICATION, 0x20001)
            );
            check_eq!(event.evd(), aevd);
            // The event stays in the EVD that notified, which notifies at each call until the event
            // is taken.
            for _ in 0..3 {
                expect_notification(&f.a, aevd, one)?;
                check_eq!(f.a.evd_wait(aevd, 0)?.0, Event::AevdNotification { aevd, sevd: one });
            }
            f.a.evd_post_se(one, 8)?;
            expect_software(&f.a, one, 7)?;
            expect_notification(&f.a, aevd, one)?;
            expect_software(&f.a, one, 8)?;
            // An empty EVD does not notify.
            empty(&f.a, aevd)?;
            blocks(&f.a, aevd, 0)?;
            f.a.evd_post_se(other, 9)?;
            expect_notification(&f.a, aevd, other)?;
            expect_software(&f.a, other, 9)?;
            empty(&f.a, aevd)
        },
    ),
    // A gathering aggregate EVD returns the events of its EVDs themselves, each once.
    test(
        "aevd::events_are_taken_through_it",
        &[
            "it_evd_create B21 B44 B55 F04",
            "it_evd_dequeue B04 B08",
            "it_evd_wait B09",
            "it_aevd_notification_event_t B01",
            "A.it_evd_create B17",
        ],
        |f| {
            let aevd = gathering(&f.a)?;
            let (one, other) = (feeding(&f.a, aevd)?, feeding(&f.a, aevd)?);
            empty(&f.a, aevd)?;
            blocks(&f.a, aevd, 0)?;
            f.a.evd_post_se(one, 1)?;
            f.a.evd_post_se(one, 2)?;
            expect_gathered(&f.a, aevd, one, 1)?;
            check_eq!(f.a.evd_wait(aevd, 0)?.0, Event::Software { evd: one, data: 2 });
            empty(&f.a, aevd)?;
            f.a.evd_post_se(other, 3)?;
            check_eq!(f.a.evd_wait(aevd, 0)?.0, Event::Software { evd: other, data: 3 });
            blocks(&f.a, aevd, 0)?;
            // Each event comes once, and as the event itself, not as a notification.
            let mut seen = Vec::new();
            for data in 0..20 {
                f.a.evd_post_se(if data % 3 == 0 { one } else { other }, data)?;
            }
            while let Ok(event) = f.a.evd_dequeue(aevd) {
                let Event::Software { data, .. } = event else {
                    return Err(Failure::new(alloc::format!("got {event:?}")));
                };
                seen.push(data);
            }
            seen.sort_unstable();
            check!(seen.iter().copied().eq(0..20), "got {seen:?}");
            Ok(())
        },
    ),
    // Events of an EVD that feeds a gathering aggregate EVD can be taken through the aggregate EVD
    // only, whether or not the EVD is enabled.
    test(
        "aevd::captured_events_come_through_the_aggregate_only",
        &[
            "it_evd_create B24 B45 B46",
            "it_evd_dequeue IT_ERR_INVALID_EVD_STATE",
            "it_evd_wait IT_ERR_INVALID_EVD_STATE",
            "it_evd_modify B13 B16 B20 B21",
            "A.it_evd_create B19",
        ],
        |f| {
            let aevd = gathering(&f.a)?;
            let evd = feeding(&f.a, aevd)?;
            for (enabled, data) in [(true, 1), (false, 2)] {
                enable(&f.a, evd, enabled)?;
                refused(f.a.evd_dequeue(evd), Error::InvalidEvdState)?;
                no_wait(&f.a, evd)?;
                f.a.evd_post_se(evd, data)?;
                refused(f.a.evd_dequeue(evd), Error::InvalidEvdState)?;
                no_wait(&f.a, evd)?;
                expect_gathered(&f.a, aevd, evd, data)?;
            }
            // Completions are dequeued by other code, so the same is checked for them.
            let pair = pair_into(f, aevd, 1)?;
            let dto = pair.a.request;
            let mut into = [DtoCompletion::default(); 4];
            for enabled in [true, false] {
                enable(&f.a, dto, enabled)?;
                refused(f.a.evd_dequeue(dto), Error::InvalidEvdState)?;
                refused(f.a.evd_dequeue_n(dto, &mut into), Error::InvalidEvdState)?;
                no_wait(&f.a, dto)?;
                for cookie in 0..3 {
                    nothing(&pair.a, cookie, SIGNALLED)?;
                }
                for cookie in 0..3 {
                    refused(f.a.evd_dequeue(dto), Error::InvalidEvdState)?;
                    refused(f.a.evd_dequeue_n(dto, &mut into), Error::InvalidEvdState)?;
                    let event = poll_completion(f, aevd)?;
                    check_eq!(event.dto().map(|done| (done.cookie, done.evd)), Some((cookie, dto)));
                }
            }
            Ok(())
        },
    ),
    // An EVD that feeds a naming aggregate EVD can be dequeued from at any time, but waited on only
    // while it is disabled.
    test(
        "aevd::named_evds_keep_their_events",
        &[
            "it_evd_create B25 B45 B46",
            "it_evd_dequeue B07",
            "it_evd_wait B06 IT_ERR_INVALID_EVD_STATE",
            "it_evd_modify B13 B22",
        ],
        |f| {
            let aevd = naming(&f.a)?;
            let evd = feeding(&f.a, aevd)?;
            f.a.evd_post_se(evd, 1)?;
            no_wait(&f.a, evd)?;
            expect_software(&f.a, evd, 1)?;
            empty(&f.a, evd)?;
            no_wait(&f.a, evd)?;
            enable(&f.a, evd, false)?;
            for data in 2..4 {
                f.a.evd_post_se(evd, data)?;
            }
            check_eq!(f.a.evd_wait(evd, 0)?.0, Event::Software { evd, data: 2 });
            expect_software(&f.a, evd, 3)?;
            blocks(&f.a, evd, 0)?;
            enable(&f.a, evd, true)?;
            no_wait(&f.a, evd)?;
            // The same is checked for completions, dequeued one by one and in batches.
            let pair = pair_into(f, aevd, 1)?;
            let dto = pair.a.request;
            for cookie in 0..2 {
                nothing(&pair.a, cookie, SIGNALLED)?;
            }
            check_eq!(f.a.evd_wait(aevd, WAIT)?.0, Event::AevdNotification { aevd, sevd: dto });
            no_wait(&f.a, dto)?;
            check_eq!(f.a.evd_dequeue(dto)?.dto().map(|done| done.cookie), Some(0));
            let mut into = [DtoCompletion::default(); 4];
            let mut count = Err(Error::QueueEmpty);
            eventually(f.platform(), || {
                count = f.a.evd_dequeue_n(dto, &mut into);
                count.is_ok()
            });
            check_eq!((count, into[0].cookie), (Ok(1), 1));
            empty(&f.a, aevd)?;
            enable(&f.a, dto, false)?;
            nothing(&pair.a, 2, SIGNALLED)?;
            pair.a.done(2, DtoStatus::Success)?;
            empty(&f.a, aevd)
        },
    ),
    // A disabled EVD notifies no aggregate EVD, and one that is enabled notifies for what it
    // already holds.
    test(
        "aevd::disabled_evds_do_not_notify",
        &["it_evd_create B22 B41 B49 B60", "it_evd_modify B12 B14 B20", "A.it_evd_create B21"],
        |f| {
            for aevd in [naming(&f.a)?, gathering(&f.a)?] {
                let names = evd_param(&f.a, aevd)?.evd_flag.contains(EvdFlags::DEQUEUE_NOTIFICATIONS);
                let evd = feeding(&f.a, aevd)?;
                let next_event = |data| match names {
                    true => Event::AevdNotification { aevd, sevd: evd },
                    false => Event::Software { evd, data },
                };
                // Events of a disabled EVD do not wake a waiter.
                enable(&f.a, evd, false)?;
                f.a.evd_post_se(evd, 1)?;
                blocks(&f.a, aevd, 0)?;
                if names {
                    empty(&f.a, aevd)?;
                }
                // An EVD that is enabled while it holds an event notifies at once.
                enable(&f.a, evd, true)?;
                check_eq!(f.a.evd_wait(aevd, 0)?.0, next_event(1));
                if names {
                    expect_software(&f.a, evd, 1)?;
                }
                // A notification from before the EVD is disabled is delivered once. Later events
                // cause none.
                f.a.evd_post_se(evd, 2)?;
                enable(&f.a, evd, false)?;
                f.a.evd_post_se(evd, 3)?;
                check_eq!(f.a.evd_wait(aevd, 0)?.0, next_event(2));
                blocks(&f.a, aevd, 0)?;
                f.a.evd_post_se(evd, 4)?;
                blocks(&f.a, aevd, 0)?;
                if names {
                    empty(&f.a, aevd)?;
                    expect_software(&f.a, evd, 2)?;
                    expect_software(&f.a, evd, 3)?;
                    expect_software(&f.a, evd, 4)?;
                } else {
                    // Through the gathering aggregate EVD, events of a disabled EVD can be taken
                    // nevertheless.
                    expect_gathered(&f.a, aevd, evd, 3)?;
                    expect_gathered(&f.a, aevd, evd, 4)?;
                }
                empty(&f.a, aevd)?;
                f.a.evd_free(evd)?;
                // An EVD that held an event before it began to feed notifies when it is enabled.
                let late = software(&f.a, 8)?;
                f.a.evd_post_se(late, 5)?;
                enable(&f.a, late, false)?;
                feed(&f.a, late, aevd)?;
                blocks(&f.a, aevd, 0)?;
                enable(&f.a, late, true)?;
                check_eq!(f.a.evd_wait(aevd, 0)?.0.evd(), if names { aevd } else { late });
            }
            Ok(())
        },
    ),
    // A notification from before the EVD was disabled is not lost.
    test("aevd::notified_before_it_was_disabled", &["it_evd_create B22 B56"], |f| {
        // The device does not signal completions while no thread waits, but they have notified all
        // the same.
        let aevd = naming(&f.a)?;
        let pair = pair_into(f, aevd, 1)?;
        let dto = pair.a.request;
        for cookie in 0..2 {
            nothing(&pair.a, cookie, SIGNALLED)?;
        }
        check_eq!(poll_completion(f, dto)?.dto().map(|done| done.cookie), Some(0));
        check!(notifies_soon(f, aevd, dto), "the second completion");
        // An EVD that notified and was then drained does not hide the notification of another one.
        let drained = feeding(&f.a, aevd)?;
        f.a.evd_post_se(drained, 1)?;
        expect_software(&f.a, drained, 1)?;
        expect_notification(&f.a, aevd, dto)?;
        enable(&f.a, dto, false)?;
        expect_notification(&f.a, aevd, dto)?;
        empty(&f.a, aevd)?;
        check_eq!(f.a.evd_dequeue(dto)?.dto().map(|done| done.cookie), Some(1));
        Ok(())
    }),
    // An EVD that always holds events must not starve the others.
    test("aevd::no_evd_is_starved", &["it_evd_create B53 B58 V02", "A.it_evd_create V08-V10"], |f| {
        // One EVD is never empty, the two others rarely hold an event.
        for (names, by_wait) in [(true, true), (true, false), (false, true), (false, false)] {
            let aevd = if names { naming(&f.a)? } else { gathering(&f.a)? };
            let busy = feeding(&f.a, aevd)?;
            let pair = pair_into(f, aevd, 1)?;
            let quiet = [feeding(&f.a, aevd)?, pair.a.request];
            f.a.evd_post_se(quiet[0], 1)?;
            nothing(&pair.a, 1, SIGNALLED)?;
            let mut heard = [false; 2];
            let all = eventually(f.platform(), || {
                for _ in 0..64 {
                    let _ = f.a.evd_post_se(busy, 0);
                    let event = match by_wait {
                        true => f.a.evd_wait(aevd, 0).map(|(event, _)| event).ok(),
                        false => f.a.evd_dequeue(aevd).ok(),
                    };
                    let of = match event {
                        Some(Event::AevdNotification { sevd, .. }) => sevd,
                        Some(event) => event.evd(),
                        None => continue,
                    };
                    if names && of == busy {
                        let _ = f.a.evd_dequeue(busy);
                    }
                    for (place, evd) in quiet.into_iter().enumerate() {
                        heard[place] |= of == evd;
                    }
                }
                heard == [true; 2]
            });
            check!(all, "names {names}, by wait {by_wait}: {heard:?}");
            f.a.ep_free(pair.a.ep)?;
            f.b.ep_free(pair.b.ep)?;
        }
        Ok(())
    }),
    // Events of one EVD come through the aggregate EVD in their order.
    test("aevd::each_evds_order_is_kept", &["it_evd_create B58 V01"], |f| {
        let aevd = gathering(&f.a)?;
        let evds = [feeding(&f.a, aevd)?, feeding(&f.a, aevd)?, feeding(&f.a, aevd)?];
        for data in 0..60 {
            f.a.evd_post_se(evds[data * data % 3], data)?;
        }
        let mut last = [None; 3];
        for taken in 0..60 {
            let event = if taken % 2 == 0 { f.a.evd_wait(aevd, 0)?.0 } else { f.a.evd_dequeue(aevd)? };
            let Event::Software { evd, data } = event else { continue };
            let place = crate::check::some(evds.iter().position(|other| *other == evd), "the EVD")?;
            check!(last[place] < Some(data), "{data} after {:?}", last[place]);
            last[place] = Some(data);
        }
        empty(&f.a, aevd)
    }),
    // However many events its EVDs hold, an aggregate EVD loses none of their notifications.
    test("aevd::never_overflows", &["it_aevd_notification_event_t B02", "it_evd_create B53"], |f| {
        let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
        let aevd = naming(&f.a)?;
        let mut evds = Vec::new();
        for _ in 0..40 {
            evds.push(feeding(&f.a, aevd)?);
        }
        for data in 0..20 {
            for evd in &evds {
                f.a.evd_post_se(*evd, data)?;
            }
        }
        check!(!evd_param(&f.a, aevd)?.evd_overflowed);
        let mut missing = evds.clone();
        while let Ok(Event::AevdNotification { sevd, .. }) = f.a.evd_dequeue(aevd) {
            missing.retain(|evd| *evd != sevd);
            while f.a.evd_dequeue(sevd).is_ok() {}
        }
        check_eq!(missing, []);
        empty(&f.a, affiliated)
    }),
    // A failed completion that is taken through an aggregate EVD has the usual consequences for its
    // endpoint.
    test("aevd::failed_completions_through_it", &["it_evd_create B21 B58"], |f| {
        let aevd = gathering(&f.a)?;
        let pair = pair_into(f, aevd, 10)?;
        let End { ia, ep, .. } = &pair.a;
        nothing(&pair.a, 0, PLAIN)?;
        ia.post_rdma_write(
            *ep,
            &[LmrTriplet::new(LmrHandle::NULL, 0, 8)],
            1,
            PLAIN,
            RdmaAddr(0),
            RmrContext(0),
        )?;
        nothing(&pair.a, 2, PLAIN)?;
        let statuses = [DtoStatus::Success, DtoStatus::LocalProtection, DtoStatus::Flushed];
        for (cookie, status) in (0..).zip(statuses) {
            let (event, _) = ia.evd_wait(aevd, WAIT)?;
            let done = crate::check::some(event.dto().copied(), "a completion")?;
            check_eq!((done.cookie, done.dto_status), (cookie, status));
        }
        pair.a.broken()
    }),
];

/// Whether the aggregate EVD soon returns a notification of this EVD.
fn notifies_soon(f: &Fixture, aevd: EvdHandle, sevd: EvdHandle) -> bool {
    eventually(f.platform(), || f.a.evd_dequeue(aevd) == Ok(Event::AevdNotification { aevd, sevd }))
}

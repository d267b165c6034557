//! Simple EVDs (pages it_evd_create, it_evd_dequeue, it_evd_query, it_evd_free, it_evd_post_se,
//! it_software_event_t).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;

use platform::sync::Mutex;
use privileged_api::*;

use crate::fixture::{End, Fixture, MOMENT, PAGE, Pair, SIGNALLED, WAIT, attributes, evd_param, sevd};
use crate::thread::{Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// An EVD of software events.
pub(crate) fn software(ia: &Ia, size: usize) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), size, 1, EvdHandle::NULL)?)
}

/// Takes the next software event, which must carry this value.
#[track_caller]
pub(crate) fn expect_software(ia: &Ia, evd: EvdHandle, data: usize) -> Outcome {
    match ia.evd_dequeue(evd)? {
        Event::Software { evd: at, data: got } if (at, got) == (evd, data) => Ok(()),
        other => Err(Failure::new(alloc::format!("expected {data}, got {other:?}"))),
    }
}

/// Fails unless a short wait times out because no event notifies, while `nmore` events are queued.
#[track_caller]
pub(crate) fn blocks(ia: &Ia, evd: EvdHandle, nmore: usize) -> Outcome {
    match ia.evd_wait(evd, MOMENT) {
        Err(failure) if failure == (WaitError { error: Error::TimeoutExpired, nmore }) => Ok(()),
        other => Err(Failure::new(alloc::format!("expected a timeout with {nmore} queued, got {other:?}"))),
    }
}

/// Waits until this many events are queued, whether or not they notify.
#[track_caller]
pub(crate) fn queued(f: &Fixture, ia: &Ia, evd: EvdHandle, count: usize) -> Outcome {
    let mut seen = 0;
    let reached = eventually(f.platform(), || {
        seen = match ia.evd_wait(evd, 0) {
            Err(WaitError { error: Error::TimeoutExpired, nmore }) => nmore,
            _ => usize::MAX,
        };
        seen >= count
    });
    match reached && seen == count {
        true => Ok(()),
        false => Err(Failure::new(alloc::format!("{seen} events are queued, expected {count}"))),
    }
}

/// A pair whose active side completes Sends on an EVD with this threshold.
pub(crate) fn with_threshold(f: &Fixture, threshold: usize) -> Result<Pair, Failure> {
    let request = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, threshold)?;
    let recv = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, threshold)?;
    let pair = Pair { a: f.end_on(&f.a, &attributes(), request, recv)?, b: f.end(&f.b, &attributes())? };
    f.connect(&pair.a, &pair.b)?;
    Ok(pair)
}

/// Posts an RDMA Write of length zero, which always succeeds.
pub(crate) fn nothing(end: &End, cookie: u64, flags: DtoFlags) -> Result<(), Error> {
    end.ia.post_rdma_write(end.ep, &[], cookie, flags, RdmaAddr(0), RmrContext(0))
}

/// Queues `count` completions of [`nothing`] that do not notify, and waits until they are queued.
#[track_caller]
pub(crate) fn queue_plain(f: &Fixture, pair: &Pair, count: u64) -> Outcome {
    for cookie in 0..count {
        nothing(&pair.a, cookie, PLAIN)?;
    }
    queued(f, &f.a, pair.a.request, count as usize)
}

/// Flags of a request that completes with an event that does not notify.
pub(crate) const PLAIN: DtoFlags = DtoFlags::COMPLETION;

pub(crate) const TESTS: &[Test] = &[
    // A new EVD of each stream is enabled and empty, and a query returns what it was created with.
    test(
        "evd::create_and_query_every_stream",
        &["it_evd_create B03 F02 L07 S03 S05", "it_evd_query F01-F07 V01"],
        |f| {
            for (stream, flags, size, threshold) in [
                (EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 100, 7),
                (EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_NOTIFY, 1, 1),
                (EventType::CM_REQ_EVENT_STREAM, EvdFlags::empty(), 5, 1),
                (
                    EventType::CM_MSG_EVENT_STREAM,
                    EvdFlags::OVERFLOW_NOTIFY | EvdFlags::OVERFLOW_AUTO_RESET,
                    9,
                    1,
                ),
                (EventType::ASYNC_AFF_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 16, 1),
                (EventType::ASYNC_UNAFF_EVENT_STREAM, EvdFlags::empty(), 16, 1),
                (EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 3, 0),
            ] {
                let evd = f.a.evd_create(stream, flags, size, threshold, EvdHandle::NULL)?;
                let param = evd_param(&f.a, evd)?;
                check_eq!((param.ia, param.event_number), (f.a.handle(), stream));
                check_eq!((param.evd_flag, param.sevd_threshold), (flags, threshold), "of {stream:?}");
                check!(param.sevd_queue_size >= size, "{stream:?} has room for {}", param.sevd_queue_size);
                check!(param.aevd.is_null() && !param.has_fd);
                check!(param.evd_enabled && !param.evd_overflowed && !param.evd_callback);
                refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
                let some = f.a.evd_query(evd, EvdParamMask::THRESHOLD | EvdParamMask::EVENT_NUMBER)?;
                let expected =
                    EvdParam { sevd_threshold: threshold, event_number: stream, ..EvdParam::default() };
                check_eq!(some, expected);
                f.a.evd_free(evd)?;
            }
            check!(f.a.object_counts().is_empty());
            Ok(())
        },
    ),
    // Numbers of single events and unknown numbers are not streams.
    test(
        "evd::numbers_that_are_no_stream",
        &["it_evd_create IT_ERR_INVALID_EVD_TYPE", "it_status_t F40"],
        |f| {
            for number in [
                EventType::DTO_SEND_CMPL,
                EventType::CM_REQ_CONN_REQUEST,
                EventType::SOFTWARE,
                EventType::CM_MSG_CONN_BROKEN,
                EventType(0x3000),
                EventType(0x40000),
                EventType(u32::MAX),
            ] {
                let created = f.a.evd_create(number, EvdFlags::empty(), 4, 1, EvdHandle::NULL);
                refused(created, Error::InvalidEvdType)?;
            }
            check_eq!(f.a.object_counts().evd, 0);
            check_eq!(Error::InvalidEvdType as u32, 39);
            Ok(())
        },
    ),
    // Combinations of flags that the page forbids, and undefined bits, are refused.
    test("evd::forbidden_flags", &["it_evd_create L02-L04 L06 IT_ERR_INVALID_FLAGS"], |f| {
        let (default, notify, reset) =
            (EvdFlags::OVERFLOW_DEFAULT, EvdFlags::OVERFLOW_NOTIFY, EvdFlags::OVERFLOW_AUTO_RESET);
        let message = EventType::CM_MSG_EVENT_STREAM;
        for (stream, flags) in [
            (message, EvdFlags::from_bits_retain(0x20)),
            (message, EvdFlags::from_bits_retain(0x8000_0000)),
            (message, default | notify),
            (message, default | reset),
            (message, default | notify | reset),
            (message, reset),
            (EventType::DTO_EVENT_STREAM, notify | reset),
            (EventType::DTO_EVENT_STREAM, reset),
            (EventType::ASYNC_UNAFF_EVENT_STREAM, notify),
            (EventType::ASYNC_UNAFF_EVENT_STREAM, notify | reset),
        ] {
            let created = f.a.evd_create(stream, flags, 4, 1, EvdHandle::NULL);
            refused(created, Error::InvalidFlags)?;
        }
        check_eq!(f.a.object_counts().evd, 0);
        Ok(())
    }),
    // A threshold is 0 or between 1 and the actual size of the queue.
    test(
        "evd::legal_thresholds",
        &["it_evd_create L08 V10 IT_ERR_INVALID_THRESHOLD", "it_status_t F74"],
        |f| {
            let create = |threshold| {
                let stream = EventType::DTO_EVENT_STREAM;
                f.a.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 16, threshold, EvdHandle::NULL)
            };
            let evd = create(0)?;
            let room = evd_param(&f.a, evd)?.sevd_queue_size;
            check_eq!(THRESHOLD_DISABLE, 0);
            for threshold in [1, 2, 16, room] {
                let evd = create(threshold)?;
                check_eq!(evd_param(&f.a, evd)?.sevd_threshold, threshold);
            }
            for threshold in [room + 1, usize::MAX] {
                refused(create(threshold), Error::InvalidThreshold)?;
            }
            check_eq!(Error::InvalidThreshold as u32, 73);
            Ok(())
        },
    ),
    // A queue that the adapter cannot allocate is refused.
    test("evd::queues_too_large", &["it_evd_create IT_ERR_RESOURCE_QUEUE_SIZE", "it_status_t F94"], |f| {
        for stream in [EventType::DTO_EVENT_STREAM, EventType::CM_MSG_EVENT_STREAM] {
            for size in [usize::MAX, usize::MAX / 2 + 1, 1 << 40] {
                let created = f.a.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, size, 1, EvdHandle::NULL);
                refused(created, Error::ResourceQueueSize)?;
            }
        }
        check_eq!(f.a.object_counts().evd, 0);
        check_eq!(Error::ResourceQueueSize as u32, 93);
        Ok(())
    }),
    // A handle that is not an aggregate EVD's is refused.
    test("evd::invalid_aggregates", &["it_evd_create IT_ERR_INVALID_AEVD", "it_status_t F22"], |f| {
        let simple = software(&f.a, 4)?;
        for aevd in [simple, EvdHandle::from_raw(u64::MAX), EvdHandle::from_raw(1)] {
            let stream = EventType::CM_MSG_EVENT_STREAM;
            let created = f.a.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 4, 1, aevd);
            refused(created, Error::InvalidAevd)?;
        }
        check_eq!(Error::InvalidAevd as u32, 21);
        Ok(())
    }),
    // An IA has at most one EVD for each asynchronous stream.
    test(
        "evd::one_affiliated_and_one_unaffiliated",
        &[
            "it_evd_create B07 IT_ERR_ASYNC_AFF_EVD_EXISTS IT_ERR_ASYNC_UNAFF_EVD_EXISTS",
            "it_status_t F06 F07",
        ],
        |f| {
            let pairs = [
                (EventType::ASYNC_AFF_EVENT_STREAM, Error::AsyncAffEvdExists),
                (EventType::ASYNC_UNAFF_EVENT_STREAM, Error::AsyncUnaffEvdExists),
            ];
            for (stream, error) in pairs {
                let create = |ia: &Ia| ia.evd_create(stream, EvdFlags::empty(), 8, 1, EvdHandle::NULL);
                let evd = create(&f.a)?;
                check!(evd_param(&f.a, evd)?.evd_bound, "the stream is not bound to the EVD");
                refused(create(&f.a), error)?;
                // The limit is one per IA.
                create(&f.b)?;
                f.a.evd_free(evd)?;
                create(&f.a)?;
                refused(create(&f.a), error)?;
            }
            check_eq!((Error::AsyncAffEvdExists as u32, Error::AsyncUnaffEvdExists as u32), (5, 6));
            Ok(())
        },
    ),
    // Null, freed, foreign and made-up handles are refused by every call for EVDs.
    test(
        "evd::bad_handles",
        &[
            "it_evd_dequeue IT_ERR_INVALID_EVD",
            "it_evd_wait IT_ERR_INVALID_EVD",
            "it_evd_query IT_ERR_INVALID_EVD",
            "it_evd_modify IT_ERR_INVALID_EVD",
            "it_evd_free B08 IT_ERR_INVALID_EVD",
            "it_evd_post_se L01 IT_ERR_INVALID_EVD",
            "it_evd_callback_attach IT_ERR_INVALID_EVD",
            "it_evd_callback_detach IT_ERR_INVALID_EVD",
            "it_status_t F38",
        ],
        |f| {
            let freed = software(&f.a, 4)?;
            f.a.evd_free(freed)?;
            let foreign = software(&f.b, 4)?;
            let pz = EvdHandle::from_raw(f.a.pz_create()?.as_raw());
            for evd in [EvdHandle::NULL, freed, foreign, pz, EvdHandle::from_raw(u64::MAX)] {
                refused(f.a.evd_dequeue(evd), Error::InvalidEvd)?;
                refused(f.a.evd_dequeue_n(evd, &mut [DtoCompletion::default()]), Error::InvalidEvd)?;
                check!(f.a.evd_wait(evd, 0).is_err_and(|failure| failure == Error::InvalidEvd));
                refused(f.a.evd_query(evd, EvdParamMask::ALL), Error::InvalidEvd)?;
                let enable = EvdParam { evd_enabled: true, ..EvdParam::default() };
                refused(f.a.evd_modify(evd, EvdParamMask::ENABLED, &enable), Error::InvalidEvd)?;
                refused(f.a.evd_post_se(evd, 1), Error::InvalidEvd)?;
                let callback = alloc::boxed::Box::new(|_: &Ia, _| {});
                refused(f.a.evd_callback_attach(evd, callback), Error::InvalidEvd)?;
                refused(f.a.evd_callback_detach(evd), Error::InvalidEvd)?;
                refused(f.a.evd_free(evd), Error::InvalidEvd)?;
            }
            f.b.evd_post_se(foreign, 1)?;
            check_eq!(Error::InvalidEvd as u32, 37);
            Ok(())
        },
    ),
    // Software events come out in the order in which they were posted, with their data unchanged.
    test(
        "evd::software_events_in_order",
        &[
            "it_evd_post_se B01 F01",
            "it_evd_dequeue B01 B06 IT_ERR_QUEUE_EMPTY",
            "it_evd_create B08 B23 B47 F05",
            "it_software_event_t B01 B02 F01-F03",
            "it_event_t B01 F51",
            "it_status_t F88",
        ],
        |f| {
            let evd = software(&f.a, 64)?;
            refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
            for data in [0, usize::MAX, 1, 0xdead_beef] {
                f.a.evd_post_se(evd, data)?;
            }
            let event = f.a.evd_dequeue(evd)?;
            check_eq!(event, Event::Software { evd, data: 0 });
            check_eq!((event.event_number(), event.event_number().as_raw()), (EventType::SOFTWARE, 0x10001));
            expect_software(&f.a, evd, usize::MAX)?;
            f.a.evd_post_se(evd, 5)?;
            for data in [1, 0xdead_beef, 5] {
                expect_software(&f.a, evd, data)?;
            }
            refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
            // More events than the queue has entries pass through it, one at a time.
            for data in 0..1000 {
                f.a.evd_post_se(evd, data)?;
                expect_software(&f.a, evd, data)?;
            }
            check_eq!(Error::QueueEmpty as u32, 87);
            Ok(())
        },
    ),
    // Posting to a full EVD is refused and never counts as an overflow.
    test(
        "evd::a_full_software_queue",
        &["it_evd_post_se B02 IT_ERR_EVD_QUEUE_FULL", "it_software_event_t B04 B05", "it_status_t F15"],
        |f| {
            let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
            let evd = software(&f.a, 4)?;
            let room = evd_param(&f.a, evd)?.sevd_queue_size;
            for data in 0..room {
                f.a.evd_post_se(evd, data)?;
            }
            for _ in 0..3 {
                refused(f.a.evd_post_se(evd, 999), Error::EvdQueueFull)?;
            }
            check!(!evd_param(&f.a, evd)?.evd_overflowed);
            refused(f.a.evd_dequeue(affiliated), Error::QueueEmpty)?;
            expect_software(&f.a, evd, 0)?;
            f.a.evd_post_se(evd, room)?;
            refused(f.a.evd_post_se(evd, 999), Error::EvdQueueFull)?;
            for data in 1..=room {
                expect_software(&f.a, evd, data)?;
            }
            refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
            check_eq!(Error::EvdQueueFull as u32, 14);
            Ok(())
        },
    ),
    // Software events can be posted to no EVD of another stream.
    test(
        "evd::software_events_need_a_software_evd",
        &["it_evd_post_se IT_ERR_INVALID_SOFT_EVD", "it_status_t F69"],
        |f| {
            for stream in [
                EventType::DTO_EVENT_STREAM,
                EventType::CM_REQ_EVENT_STREAM,
                EventType::CM_MSG_EVENT_STREAM,
                EventType::ASYNC_AFF_EVENT_STREAM,
            ] {
                let evd = sevd(&f.a, stream, 4, 1)?;
                refused(f.a.evd_post_se(evd, 1), Error::InvalidSoftEvd)?;
                refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
            }
            check_eq!(Error::InvalidSoftEvd as u32, 68);
            Ok(())
        },
    ),
    // With several posters and several reapers, each event is returned exactly once.
    test("evd::many_posters", &["A.it_evd_post_se B01", "it_evd_create B57", "4.2 B10"], |f| {
        const EACH: usize = 200;
        let evd = software(&f.a, 64)?;
        let mut threads = Vec::new();
        for poster in 0..3 {
            let (ia, platform) = (f.a.clone(), f.platform().clone());
            threads.push(Thread::spawn(f.platform(), "poster", move || {
                (0..EACH).all(|i| {
                    eventually(&platform, || match ia.evd_post_se(evd, poster * EACH + i) {
                        Ok(()) => true,
                        Err(error) => error != Error::EvdQueueFull,
                    })
                })
            })?);
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut takers = Vec::new();
        for _ in 0..2 {
            let (ia, seen) = (f.a.clone(), seen.clone());
            takers.push(Thread::spawn(f.platform(), "taker", move || {
                loop {
                    match ia.evd_wait(evd, WAIT) {
                        Ok((Event::Software { data: usize::MAX, .. }, _)) => return true,
                        Ok((Event::Software { data, .. }, _)) => seen.lock().push(data),
                        _ => return false,
                    }
                }
            })?);
        }
        for thread in threads {
            check!(thread.join()?);
        }
        for _ in &takers {
            // The takers may not have dequeued yet.
            let posted = || f.a.evd_post_se(evd, usize::MAX) != Err(Error::EvdQueueFull);
            check!(eventually(f.platform(), posted));
        }
        for taker in takers {
            check!(taker.join()?);
        }
        let mut seen = seen.lock().clone();
        seen.sort_unstable();
        check!(seen.iter().copied().eq(0..3 * EACH), "each event exactly once");
        Ok(())
    }),
    // An EVD cannot be freed while an endpoint or a listen point uses it.
    test(
        "evd::busy_while_fed",
        &["it_evd_free B04-B06 IT_ERR_EVD_BUSY", "it_evd_query F09", "it_evd_create B04", "it_status_t F13"],
        |f| {
            let bound = |evd| evd_param(&f.a, evd).map(|param| param.evd_bound);
            let dto = sevd(&f.a, EventType::DTO_EVENT_STREAM, 128, 1)?;
            check!(!bound(dto)?);
            let (one, other) =
                (f.end_on(&f.a, &attributes(), dto, dto)?, f.end_on(&f.a, &attributes(), dto, dto)?);
            check!(bound(dto)? && bound(one.conn)?);
            refused(f.a.evd_free(dto), Error::EvdBusy)?;
            refused(f.a.evd_free(one.conn), Error::EvdBusy)?;
            f.a.ep_free(one.ep)?;
            check!(!bound(one.conn)?);
            f.a.evd_free(one.conn)?;
            refused(f.a.evd_free(dto), Error::EvdBusy)?;
            f.a.ep_free(other.ep)?;
            check!(!bound(dto)?);
            f.a.evd_free(dto)?;
            let listener = f.listen(&f.a)?;
            check!(bound(listener.evd)?);
            refused(f.a.evd_free(listener.evd), Error::EvdBusy)?;
            f.a.listen_free(listener.listen)?;
            check!(!bound(listener.evd)?);
            f.a.evd_free(listener.evd)?;
            check_eq!(Error::EvdBusy as u32, 12);
            Ok(())
        },
    ),
    // A software EVD can be freed with an event in it, and the EVDs of the asynchronous streams can
    // be freed although they are bound.
    test(
        "evd::asynchronous_and_software_evds_can_be_freed_any_time",
        &["it_evd_free B01 B02", "it_evd_create B07"],
        |f| {
            let evd = software(&f.a, 8)?;
            f.a.evd_post_se(evd, 1)?;
            f.a.evd_free(evd)?;
            refused(f.a.evd_dequeue(evd), Error::InvalidEvd)?;
            let again = software(&f.a, 8)?;
            refused(f.a.evd_dequeue(again), Error::QueueEmpty)?;
            f.a.evd_free(again)?;
            f.a.evd_free(sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?)?;
            let unaffiliated = EventType::ASYNC_UNAFF_EVENT_STREAM;
            f.a.evd_free(f.a.evd_create(unaffiliated, EvdFlags::empty(), 8, 1, EvdHandle::NULL)?)?;
            check_eq!(f.a.object_counts().evd, 0);
            Ok(())
        },
    ),
    // Completions of several endpoints share an EVD, and each event names its endpoint.
    test("evd::many_endpoints_feed_one", &["it_evd_create B06", "1 B08", "it_dto_events F11 F12"], |f| {
        let dto = sevd(&f.a, EventType::DTO_EVENT_STREAM, 256, 1)?;
        let mut pairs = Vec::new();
        for _ in 0..3 {
            let pair = Pair { a: f.end_on(&f.a, &attributes(), dto, dto)?, b: f.end(&f.b, &attributes())? };
            f.connect(&pair.a, &pair.b)?;
            pairs.push(pair);
        }
        for round in 0..5 {
            for (place, pair) in pairs.iter().enumerate() {
                nothing(&pair.a, round * 10 + place as u64, SIGNALLED)?;
            }
        }
        // The completions of each endpoint are in order, whatever is queued between them.
        let mut next = [0; 3];
        for _ in 0..15 {
            let done = crate::fixture::completion(&f.a, dto)?;
            let place = pairs.iter().position(|pair| pair.a.ep == done.ep);
            let place = crate::check::some(place, "the endpoint")?;
            check_eq!(done.cookie, next[place] * 10 + place as u64);
            check_eq!(done.evd, dto);
            next[place] += 1;
        }
        check_eq!(next, [5; 3]);
        Ok(())
    }),
    // The call that takes many completions returns the same ones, in the same order, as one dequeue
    // after the other.
    test("evd::dequeue_many_at_once", &["it_evd_dequeue B01 B10"], |f| {
        let pair = f.pair()?;
        let mut into = [DtoCompletion::default(); 8];
        refused(f.a.evd_dequeue_n(pair.a.request, &mut into), Error::QueueEmpty)?;
        for cookie in 0..20 {
            nothing(&pair.a, cookie, SIGNALLED)?;
        }
        let mut next = 0;
        while next < 20 {
            // The first completion of each batch is awaited.
            let first = pair.a.reap()?;
            check_eq!((first.cookie, first.dto_status), (next, DtoStatus::Success));
            next += 1;
            let count = f.a.evd_dequeue_n(pair.a.request, &mut into).unwrap_or(0);
            check!(count <= into.len());
            for done in &into[..count] {
                check_eq!((done.cookie, done.dto_status, done.ep), (next, DtoStatus::Success, pair.a.ep));
                next += 1;
            }
        }
        refused(f.a.evd_dequeue_n(pair.a.request, &mut into), Error::QueueEmpty)?;
        refused(f.a.evd_dequeue(pair.a.request), Error::QueueEmpty)
    }),
    // It takes failures with the successes before them, up to the room that it has.
    test("evd::dequeue_many_takes_failures_too", &[], |f| {
        for room in [2, 3, 4] {
            let pair = f.pair()?;
            let own = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
            let sink = f.region(&f.a, pair.a.pz, PAGE, MemPriv::LOCAL)?;
            for cookie in 0..3 {
                f.a.post_recv(pair.a.ep, &[sink.segment(0, 8)], cookie, SIGNALLED)?;
            }
            for (length, status) in
                [(8, DtoStatus::Success), (8, DtoStatus::Success), (9, DtoStatus::RemoteResponder)]
            {
                // The Receive completes before the Send.
                f.b.post_send(pair.b.ep, &[own.segment(0, length)], 7, SIGNALLED)?;
                pair.b.done(7, status)?;
            }
            pair.a.broken()?;
            let mut into = [DtoCompletion::default(); 4];
            check_eq!(f.a.evd_dequeue_n(pair.a.recv, &mut into[..room]), Ok(room.min(3)));
            let expected = [DtoStatus::Success, DtoStatus::Success, DtoStatus::LocalLength];
            check!(into.iter().zip(expected).take(room).all(|(done, status)| done.dto_status == status));
            if room == 2 {
                pair.a.recv_done(2, DtoStatus::LocalLength)?;
            }
            pair.b.broken()?;
        }
        Ok(())
    }),
    // Creating EVDs fails with IT_ERR_RESOURCES at some point, and works again after one is freed.
    test("evd::evds_run_out_and_come_back", &["it_evd_create IT_ERR_RESOURCES"], |f| {
        let mut all = Vec::new();
        let create =
            || f.a.evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 8, 1, EvdHandle::NULL);
        let refusal = loop {
            match create() {
                Ok(evd) => all.push(evd),
                Err(error) => break error,
            }
            check!(all.len() <= crate::fixture::CONFIG.max_cqs as usize, "{} EVDs", all.len());
        };
        check_eq!(refusal, Error::Resources);
        check!(all.len() > 8);
        f.a.evd_free(all[3])?;
        create()?;
        refused(create(), Error::Resources)
    }),
];

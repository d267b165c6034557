//! Aggregate EVDs: creating and querying them, and which EVDs may feed them at which time (pages
//! it_evd_create, it_evd_modify, it_evd_query, it_evd_free).

use alloc::boxed::Box;
use core::result::Result;

use privileged_api::*;

use crate::events::evd::{expect_software, software};
use crate::fixture::{End, attributes, evd_param};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The flag of an aggregate EVD that names the EVDs with events instead of returning the events.
const NAMES: EvdFlags = EvdFlags::DEQUEUE_NOTIFICATIONS;
const AGGREGATE: EventType = EventType::AEVD_NOTIFICATION_EVENT_STREAM;

/// An aggregate EVD whose events name the EVD that notified (IT_EVD_DEQUEUE_NOTIFICATIONS).
pub(crate) fn naming(ia: &Ia) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(AGGREGATE, NAMES, 0, 0, EvdHandle::NULL)?)
}

/// An aggregate EVD whose events are those of the EVDs that feed it.
pub(crate) fn gathering(ia: &Ia) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(AGGREGATE, EvdFlags::empty(), 0, 0, EvdHandle::NULL)?)
}

/// An EVD of software events that feeds an aggregate EVD.
pub(crate) fn feeding(ia: &Ia, aevd: EvdHandle) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 64, 1, aevd)?)
}

/// Enables or disables an EVD.
pub(crate) fn enable(ia: &Ia, evd: EvdHandle, evd_enabled: bool) -> Result<(), Error> {
    ia.evd_modify(evd, EvdParamMask::ENABLED, &EvdParam { evd_enabled, ..EvdParam::default() })
}

/// Makes an EVD feed another aggregate EVD, or none.
pub(crate) fn feed(ia: &Ia, evd: EvdHandle, aevd: EvdHandle) -> Result<(), Error> {
    ia.evd_modify(evd, EvdParamMask::AEVD_HANDLE, &EvdParam { aevd, ..EvdParam::default() })
}

/// The aggregate EVD that an EVD feeds, as a query returns it.
fn fed_by(ia: &Ia, evd: EvdHandle) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_query(evd, EvdParamMask::AEVD_HANDLE)?.aevd)
}

/// Takes the next event of the aggregate EVD, which must be a notification of this EVD.
#[track_caller]
pub(crate) fn expect_notification(ia: &Ia, aevd: EvdHandle, sevd: EvdHandle) -> Outcome {
    match ia.evd_dequeue(aevd) {
        Ok(event) if event == (Event::AevdNotification { aevd, sevd }) => Ok(()),
        other => Err(Failure::new(alloc::format!("expected a notification of {sevd:?}, got {other:?}"))),
    }
}

/// Takes the next event of the aggregate EVD, which must be this software event of this EVD.
#[track_caller]
pub(crate) fn expect_gathered(ia: &Ia, aevd: EvdHandle, sevd: EvdHandle, data: usize) -> Outcome {
    match ia.evd_dequeue(aevd) {
        Ok(event) if event == (Event::Software { evd: sevd, data }) => Ok(()),
        other => Err(Failure::new(alloc::format!("expected event {data} of {sevd:?}, got {other:?}"))),
    }
}

/// Fails unless a dequeue finds the queue empty.
#[track_caller]
pub(crate) fn empty(ia: &Ia, evd: EvdHandle) -> Outcome {
    refused(ia.evd_dequeue(evd), Error::QueueEmpty)
}

pub(crate) const TESTS: &[Test] = &[
    // An aggregate EVD has no queue and no threshold of its own, and a query says so.
    test("aevd::create_and_query", &["it_evd_create B01 B28 B38 F01", "it_evd_query V02"], |f| {
        for flags in [EvdFlags::empty(), NAMES] {
            // An aggregate EVD has neither size nor threshold, so any value is accepted and
            // ignored.
            for (size, threshold) in [(0, 0), (1, 9), (usize::MAX, usize::MAX)] {
                let aevd = f.a.evd_create(AGGREGATE, flags, size, threshold, EvdHandle::NULL)?;
                let expected = EvdParam {
                    ia: f.a.handle(),
                    event_number: AGGREGATE,
                    evd_flag: flags,
                    evd_enabled: true,
                    ..EvdParam::default()
                };
                check_eq!(evd_param(&f.a, aevd)?, expected);
                empty(&f.a, aevd)?;
                f.a.evd_free(aevd)?;
            }
        }
        let simple = software(&f.a, 4)?;
        check_eq!(evd_param(&f.a, simple)?.event_number, EventType::SOFTWARE_EVENT_STREAM);
        Ok(())
    }),
    // An EVD that is created with an aggregate EVD feeds that one. Many may feed one.
    test("aevd::fed_from_the_creation_on", &["it_evd_create B39 B40 L01", "it_evd_query B01"], |f| {
        for aevd in [naming(&f.a)?, gathering(&f.a)?] {
            check!(!evd_param(&f.a, aevd)?.evd_bound);
            for stream in [
                EventType::DTO_EVENT_STREAM,
                EventType::CM_REQ_EVENT_STREAM,
                EventType::CM_MSG_EVENT_STREAM,
                EventType::ASYNC_AFF_EVENT_STREAM,
                EventType::SOFTWARE_EVENT_STREAM,
            ] {
                let evd = f.a.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 8, 1, aevd)?;
                check_eq!(evd_param(&f.a, evd)?.aevd, aevd);
                // A query fills in only the fields that the mask names.
                let only = EvdParam { aevd, ..EvdParam::default() };
                check_eq!(f.a.evd_query(evd, EvdParamMask::AEVD_HANDLE)?, only);
                check_eq!(f.a.evd_query(evd, EvdParamMask::IA)?.aevd, EvdHandle::NULL);
                check!(evd_param(&f.a, aevd)?.evd_bound);
                f.a.evd_free(evd)?;
            }
            check!(!evd_param(&f.a, aevd)?.evd_bound);
        }
        // Many EVDs feed one aggregate EVD.
        let (aevd, other) = (naming(&f.a)?, naming(&f.a)?);
        for _ in 0..8 {
            let evd = feeding(&f.a, aevd)?;
            f.a.evd_post_se(evd, 1)?;
            expect_notification(&f.a, aevd, evd)?;
            empty(&f.a, other)?;
            enable(&f.a, evd, false)?;
            feed(&f.a, evd, other)?;
            check_eq!(fed_by(&f.a, evd)?, other);
            feed(&f.a, evd, aevd)?;
            expect_software(&f.a, evd, 1)?;
        }
        empty(&f.a, aevd)?;
        empty(&f.a, other)
    }),
    // Each forbidden combination of kind, flags and aggregate EVD is refused with its own error.
    test(
        "aevd::what_cannot_be_created",
        &[
            "it_evd_create B02 V04 V08 IT_ERR_AEVD_NOT_ALLOWED IT_ERR_INVALID_AEVD",
            "it_evd_create IT_ERR_MISMATCH_FD",
            "it_status_t F05 F80",
        ],
        |f| {
            let aevd = naming(&f.a)?;
            let foreign = naming(&f.b)?;
            let freed = gathering(&f.a)?;
            f.a.evd_free(freed)?;
            let (software, fd) = (EventType::SOFTWARE_EVENT_STREAM, EvdFlags::CREATE_FD);
            let create = |stream, flags, aevd| f.a.evd_create(stream, flags, 4, 1, aevd);
            refused(create(software, fd, aevd), Error::MismatchFd)?;
            for flags in [EvdFlags::empty(), NAMES, fd] {
                refused(create(AGGREGATE, flags, aevd), Error::AevdNotAllowed)?;
            }
            for aevd in [foreign, freed] {
                refused(create(software, EvdFlags::empty(), aevd), Error::InvalidAevd)?;
            }
            // A flag of the other kind of EVD is refused.
            for flags in [NAMES, NAMES | EvdFlags::OVERFLOW_DEFAULT] {
                refused(create(software, flags, EvdHandle::NULL), Error::InvalidFlags)?;
            }
            for flags in [
                EvdFlags::OVERFLOW_DEFAULT,
                EvdFlags::OVERFLOW_NOTIFY | NAMES,
                EvdFlags::OVERFLOW_NOTIFY | EvdFlags::OVERFLOW_AUTO_RESET,
                EvdFlags::from_bits_retain(0x40),
            ] {
                refused(create(AGGREGATE, flags, EvdHandle::NULL), Error::InvalidFlags)?;
            }
            // No refused call left an object or a binding behind.
            check_eq!(f.a.object_counts().evd, 1);
            check!(!evd_param(&f.a, aevd)?.evd_bound);
            f.a.evd_free(aevd)?;
            check_eq!((Error::AevdNotAllowed as u32, Error::MismatchFd as u32), (4, 79));
            Ok(())
        },
    ),
    // The aggregate EVD of a simple one can change only while the simple one is disabled.
    test(
        "aevd::changed_while_disabled",
        &["it_evd_modify B04 B05 B07 F03 V01 IT_ERR_INVALID_EVD_STATE", "it_evd_create V12"],
        |f| {
            let (one, other, third) = (naming(&f.a)?, naming(&f.a)?, gathering(&f.a)?);
            let evd = software(&f.a, 8)?;
            // An enabled EVD cannot start to feed an aggregate EVD, stop feeding it, or feed
            // another one.
            refused(feed(&f.a, evd, one), Error::InvalidEvdState)?;
            check_eq!(fed_by(&f.a, evd)?, EvdHandle::NULL);
            enable(&f.a, evd, false)?;
            feed(&f.a, evd, one)?;
            check_eq!(fed_by(&f.a, evd)?, one);
            enable(&f.a, evd, true)?;
            for aevd in [other, third, one, EvdHandle::NULL] {
                refused(feed(&f.a, evd, aevd), Error::InvalidEvdState)?;
                check_eq!(fed_by(&f.a, evd)?, one);
            }
            f.a.evd_post_se(evd, 1)?;
            expect_notification(&f.a, one, evd)?;
            // A disabled EVD can do all three. Afterwards only the new aggregate EVD gets its
            // notifications.
            enable(&f.a, evd, false)?;
            feed(&f.a, evd, other)?;
            enable(&f.a, evd, true)?;
            empty(&f.a, one)?;
            expect_notification(&f.a, other, evd)?;
            check!(!evd_param(&f.a, one)?.evd_bound && evd_param(&f.a, other)?.evd_bound);
            enable(&f.a, evd, false)?;
            feed(&f.a, evd, EvdHandle::NULL)?;
            check_eq!(fed_by(&f.a, evd)?, EvdHandle::NULL);
            enable(&f.a, evd, true)?;
            empty(&f.a, other)?;
            expect_software(&f.a, evd, 1)?;
            // The new aggregate EVD may be of either kind.
            enable(&f.a, evd, false)?;
            feed(&f.a, evd, one)?;
            feed(&f.a, evd, third)?;
            check_eq!(fed_by(&f.a, evd)?, third);
            f.a.evd_post_se(evd, 2)?;
            expect_gathered(&f.a, third, evd, 2)
        },
    ),
    // An EVD that feeds a gathering aggregate EVD cannot be separated from it; it can only be
    // freed.
    test("aevd::captured_until_freed", &["it_evd_modify B06 IT_ERR_INVALID_EVD_STATE"], |f| {
        let (captor, other) = (gathering(&f.a)?, naming(&f.a)?);
        let evd = feeding(&f.a, captor)?;
        for enabled in [true, false] {
            enable(&f.a, evd, enabled)?;
            for aevd in [other, captor, EvdHandle::NULL] {
                refused(feed(&f.a, evd, aevd), Error::InvalidEvdState)?;
                check_eq!(fed_by(&f.a, evd)?, captor);
            }
        }
        f.a.evd_free(evd)?;
        f.a.evd_free(captor)?;
        Ok(())
    }),
    // An aggregate EVD cannot be freed while an EVD feeds it.
    test("aevd::busy_while_fed", &["it_evd_free B03 B09 IT_ERR_EVD_BUSY"], |f| {
        for aevd in [naming(&f.a)?, gathering(&f.a)?] {
            let evds = [feeding(&f.a, aevd)?, feeding(&f.a, aevd)?, sevd_into(&f.a, aevd)?];
            for evd in evds {
                refused(f.a.evd_free(aevd), Error::EvdBusy)?;
                f.a.evd_free(evd)?;
                refused(f.a.evd_dequeue(evd), Error::InvalidEvd)?;
            }
            f.a.evd_free(aevd)?;
            refused(f.a.evd_dequeue(aevd), Error::InvalidEvd)?;
        }
        // An EVD can also be separated from a naming aggregate EVD by a modification.
        let aevd = naming(&f.a)?;
        let evd = feeding(&f.a, aevd)?;
        enable(&f.a, evd, false)?;
        feed(&f.a, evd, EvdHandle::NULL)?;
        f.a.evd_free(aevd)?;
        f.a.evd_post_se(evd, 3)?;
        expect_software(&f.a, evd, 3)?;
        // The endpoint must be freed before its EVD, and the EVD before its aggregate EVD.
        let aevd = gathering(&f.a)?;
        let dto = sevd_into(&f.a, aevd)?;
        let End { ep, .. } = f.end_on(&f.a, &attributes(), dto, dto)?;
        refused(f.a.evd_free(dto), Error::EvdBusy)?;
        refused(f.a.evd_free(aevd), Error::EvdBusy)?;
        f.a.ep_free(ep)?;
        f.a.evd_free(dto)?;
        f.a.evd_free(aevd)?;
        Ok(())
    }),
    // If an EVD's notification stayed behind, the aggregate EVD would name a handle that is
    // invalid.
    test("aevd::freed_after_it_notified", &["it_evd_free B03", "A.it_evd_create V07"], |f| {
        for aevd in [naming(&f.a)?, gathering(&f.a)?] {
            let (one, other) = (feeding(&f.a, aevd)?, feeding(&f.a, aevd)?);
            f.a.evd_post_se(one, 1)?;
            f.a.evd_post_se(other, 2)?;
            // The free withdraws the EVD's notification: no event names an invalid handle.
            f.a.evd_free(one)?;
            let expected = match evd_param(&f.a, aevd)?.evd_flag.contains(NAMES) {
                true => Event::AevdNotification { aevd, sevd: other },
                false => Event::Software { evd: other, data: 2 },
            };
            check_eq!(f.a.evd_wait(aevd, 0)?.0, expected);
            f.a.evd_free(other)?;
            empty(&f.a, aevd)?;
            f.a.evd_free(aevd)?;
        }
        Ok(())
    }),
    // Size, threshold and aggregate EVD cannot be set on an aggregate EVD.
    test("aevd::parameters_that_it_does_not_have", &["it_evd_modify V02 V06 IT_ERR_INVALID_MASK"], |f| {
        for aevd in [naming(&f.a)?, gathering(&f.a)?] {
            let before = evd_param(&f.a, aevd)?;
            let other = naming(&f.a)?;
            for mask in [EvdParamMask::QUEUE_SIZE, EvdParamMask::THRESHOLD, EvdParamMask::AEVD_HANDLE] {
                for aevd_of in [EvdHandle::NULL, other] {
                    let change = EvdParam { sevd_queue_size: 8, sevd_threshold: 1, aevd: aevd_of, ..before };
                    refused(f.a.evd_modify(aevd, mask, &change), Error::InvalidMask)?;
                    let both = mask | EvdParamMask::ENABLED;
                    refused(
                        f.a.evd_modify(aevd, both, &EvdParam { evd_enabled: false, ..change }),
                        Error::InvalidMask,
                    )?;
                }
            }
            // An aggregate EVD never overflows, so there is no mark to set or to clear.
            for evd_overflowed in [true, false] {
                let change = EvdParam { evd_overflowed, ..before };
                f.a.evd_modify(aevd, EvdParamMask::OVERFLOWED, &change)?;
            }
            check_eq!(evd_param(&f.a, aevd)?, before);
            refused(f.a.evd_post_se(aevd, 1), Error::InvalidSoftEvd)?;
            let into = &mut [DtoCompletion::default()];
            refused(f.a.evd_dequeue_n(aevd, into), Error::InvalidEvdType)?;
        }
        Ok(())
    }),
    // An EVD either has a callback or feeds an aggregate EVD.
    test(
        "aevd::not_beside_a_callback",
        &[
            "it_evd_callback_attach B04 V04 IT_ERR_INVALID_EVD_STATE",
            "it_evd_modify B03 V04 IT_ERR_CALLBACK_EXISTS",
        ],
        |f| {
            let attach = |ia: &Ia, evd| ia.evd_callback_attach(evd, Box::new(|_: &Ia, _| {}));
            for aevd in [naming(&f.a)?, gathering(&f.a)?] {
                // First the EVD feeds an aggregate EVD, then a callback is refused.
                let evd = feeding(&f.a, aevd)?;
                for enabled in [true, false] {
                    enable(&f.a, evd, enabled)?;
                    refused(attach(&f.a, evd), Error::InvalidEvdState)?;
                    check!(!evd_param(&f.a, evd)?.evd_callback);
                }
                // First the EVD has a callback, then it is refused to feed an aggregate EVD.
                let evd = software(&f.a, 8)?;
                attach(&f.a, evd)?;
                for enabled in [true, false] {
                    enable(&f.a, evd, enabled)?;
                    refused(feed(&f.a, evd, aevd), Error::CallbackExists)?;
                    check_eq!(fed_by(&f.a, evd)?, EvdHandle::NULL);
                    // To feed none is what it does already, so that modification succeeds.
                    feed(&f.a, evd, EvdHandle::NULL)?;
                }
                f.a.evd_callback_detach(evd)?;
                feed(&f.a, evd, aevd)?;
                check_eq!(fed_by(&f.a, evd)?, aevd);
            }
            // A missing privilege is reported before a bad state of the EVD.
            let ia = f.unprivileged()?;
            let evd = feeding(&ia, naming(&ia)?)?;
            refused(attach(&ia, evd), Error::NoPermission)
        },
    ),
    // A modification with one bad parameter changes nothing, and several parameters change
    // together.
    test("aevd::all_or_nothing", &["it_evd_modify V03 IT_ERR_INVALID_AEVD"], |f| {
        let (one, other) = (naming(&f.a)?, naming(&f.a)?);
        let dto = f.a.evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 16, 4, one)?;
        let before = evd_param(&f.a, dto)?;
        let mask = EvdParamMask::QUEUE_SIZE | EvdParamMask::THRESHOLD | EvdParamMask::AEVD_HANDLE;
        let change =
            EvdParam { sevd_queue_size: 200, sevd_threshold: 150, aevd: other, evd_enabled: false, ..before };
        // One bad parameter is enough to refuse the whole modification: the EVD is enabled, the
        // handle is not an aggregate EVD, the threshold is above the new size, or the size is
        // impossible.
        refused(f.a.evd_modify(dto, mask, &change), Error::InvalidEvdState)?;
        let mask = mask | EvdParamMask::ENABLED;
        for (change, error) in [
            (EvdParam { aevd: dto, ..change }, Error::InvalidAevd),
            (EvdParam { sevd_queue_size: 100, sevd_threshold: 1000, ..change }, Error::InvalidThreshold),
            (EvdParam { sevd_queue_size: 1 << 40, ..change }, Error::ResourceQueueSize),
        ] {
            refused(f.a.evd_modify(dto, mask, &change), error)?;
            check_eq!(evd_param(&f.a, dto)?, before);
            check!(!evd_param(&f.a, other)?.evd_bound);
        }
        // The threshold is checked against the new size, and the EVD is disabled before its
        // aggregate EVD changes.
        f.a.evd_modify(dto, mask, &change)?;
        let after = evd_param(&f.a, dto)?;
        // The size is a minimum (it_evd_create, it_evd_query).
        check!(after.sevd_queue_size >= 200);
        check_eq!(after, EvdParam { sevd_queue_size: after.sevd_queue_size, ..change });
        check!(!evd_param(&f.a, one)?.evd_bound && evd_param(&f.a, other)?.evd_bound);
        // The EVD is enabled after its aggregate EVD changes.
        let change = EvdParam { aevd: one, evd_enabled: true, ..after };
        f.a.evd_modify(dto, EvdParamMask::AEVD_HANDLE | EvdParamMask::ENABLED, &change)?;
        check_eq!(evd_param(&f.a, dto)?, change);
        Ok(())
    }),
];

/// An EVD of completions that feeds an aggregate EVD.
fn sevd_into(ia: &Ia, aevd: EvdHandle) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 64, 1, aevd)?)
}

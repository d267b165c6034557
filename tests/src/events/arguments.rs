//! Bad arguments of the event calls: each call, with every bad value of each argument that its page
//! says is checked, and EVDs in the wrong state for a call. A refused call changes nothing and
//! takes no event.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::events::aevd::{enable, feeding, gathering, naming};
use crate::events::callback::{count, inside};
use crate::events::evd::{expect_software, software};
use crate::fixture::{Fixture, Pair, evd_param, sevd};
use crate::support::refusal::{Queried, all_refused, call, no_handles, undefined};
use crate::{Failure, Outcome, Test, check_eq, refused, test};

const AGGREGATE: EventType = EventType::AEVD_NOTIFICATION_EVENT_STREAM;
const SOFTWARE: EventType = EventType::SOFTWARE_EVENT_STREAM;
const DTO: EventType = EventType::DTO_EVENT_STREAM;

/// An EVD of each kind, in each mode of notification.
struct Objects<'f> {
    f: &'f Fixture,
    pair: Pair,
    /// A queue for four events that holds two.
    plain: EvdHandle,
    /// This EVD is disabled and feeds none.
    idle: EvdHandle,
    naming: EvdHandle,
    named: EvdHandle,
    gathering: EvdHandle,
    /// This EVD holds an event that only the aggregate EVD can take.
    gathered: EvdHandle,
    noted: EvdHandle,
    notification: Notification,
    called: EvdHandle,
}

impl<'f> Objects<'f> {
    fn new(f: &'f Fixture) -> Result<Objects<'f>, Failure> {
        let ia = &f.a;
        let (naming, gathering) = (naming(ia)?, gathering(ia)?);
        let noted = ia.evd_create(SOFTWARE, EvdFlags::CREATE_FD, 4, 1, EvdHandle::NULL)?;
        let objects = Objects {
            f,
            pair: f.pair()?,
            plain: software(ia, 4)?,
            idle: software(ia, 4)?,
            naming,
            named: feeding(ia, naming)?,
            gathering,
            gathered: feeding(ia, gathering)?,
            noted,
            notification: ia.evd_notification(noted)?,
            called: software(ia, 4)?,
        };
        enable(ia, objects.idle, false)?;
        ia.evd_post_se(objects.plain, 1)?;
        ia.evd_post_se(objects.plain, 2)?;
        ia.evd_post_se(objects.gathered, 3)?;
        count(f, objects.called)?;
        Ok(objects)
    }

    fn ia(&self) -> &Ia {
        &self.f.a
    }

    /// Fails unless the queued events are those of before.
    fn kept(&self) -> Outcome {
        let ia = self.ia();
        for data in [1, 2] {
            expect_software(ia, self.plain, data)?;
        }
        check_eq!(ia.evd_dequeue(self.gathering)?, Event::Software { evd: self.gathered, data: 3 });
        for evd in
            [self.plain, self.idle, self.named, self.noted, self.called, self.naming, self.pair.a.request]
        {
            refused(ia.evd_dequeue(evd), Error::QueueEmpty)?;
        }
        Ok(())
    }

    /// Creates an EVD that feeds none.
    fn create(&self, stream: EventType, flags: EvdFlags, size: usize, threshold: usize) -> Result<(), Error> {
        self.ia().evd_create(stream, flags, size, threshold, EvdHandle::NULL).map(drop)
    }

    /// Modifies one EVD.
    fn modify(&self, evd: EvdHandle, mask: EvdParamMask, change: EvdParam) -> Result<(), Error> {
        self.ia().evd_modify(evd, mask, &change)
    }
}

impl Queried for Objects<'_> {
    type Answers = (Vec<EvdParam>, ObjectCounts, bool);

    fn all(&self) -> Result<Self::Answers, Failure> {
        let simple = [self.plain, self.idle, self.named, self.gathered, self.noted, self.called];
        let others = [self.naming, self.gathering, self.pair.a.request, self.pair.a.conn];
        let params = simple.into_iter().chain(others).map(|evd| evd_param(self.ia(), evd));
        let ready = self.notification.is_ready()?;
        Ok((params.collect::<Result<_, _>>()?, self.ia().object_counts(), ready))
    }
}

/// The error of a wait, if it did not return an event.
fn waited(ia: &Ia, evd: EvdHandle) -> Result<(), Error> {
    Ok(ia.evd_wait(evd, 0).map(drop)?)
}

pub(crate) const TESTS: &[Test] = &[
    // Every bad EVD handle, in every call that takes one.
    test(
        "event_arguments::evds",
        &[
            "it_evd_query IT_ERR_INVALID_EVD",
            "it_evd_modify IT_ERR_INVALID_EVD",
            "it_evd_free IT_ERR_INVALID_EVD",
            "it_evd_dequeue IT_ERR_INVALID_EVD",
            "it_evd_wait IT_ERR_INVALID_EVD",
            "it_evd_post_se IT_ERR_INVALID_EVD",
            "it_evd_callback_attach IT_ERR_INVALID_EVD",
            "it_evd_callback_detach IT_ERR_INVALID_EVD",
        ],
        |f| {
            let w = Objects::new(f)?;
            let ia = w.ia();
            let freed = sevd(ia, DTO, 4, 1)?;
            ia.evd_free(freed)?;
            // This creation may reuse the freed EVD's index.
            sevd(ia, DTO, 4, 1)?;
            let foreign = sevd(&f.b, DTO, 4, 1)?.as_raw();
            let values = no_handles(EvdHandle::from_raw, freed.as_raw(), foreign, w.pair.a.ep.as_raw());
            let calls = [
                call("evd_query", |evd| ia.evd_query(evd, EvdParamMask::ALL).map(drop)),
                call("evd_modify", |evd| w.modify(evd, EvdParamMask::ENABLED, EvdParam::default())),
                call("evd_free", |evd| ia.evd_free(evd)),
                call("evd_dequeue", |evd| ia.evd_dequeue(evd).map(drop)),
                call("evd_dequeue_n", |evd| {
                    ia.evd_dequeue_n(evd, &mut [DtoCompletion::default(); 2]).map(drop)
                }),
                call("evd_dequeue_n, no room", |evd| ia.evd_dequeue_n(evd, &mut []).map(drop)),
                call("evd_wait", |evd| waited(ia, evd)),
                call("evd_post_se", |evd| ia.evd_post_se(evd, 1)),
                call("evd_callback_attach", |evd| ia.evd_callback_attach(evd, Box::new(|_, _| {}))),
                call("evd_callback_detach", |evd| ia.evd_callback_detach(evd)),
                call("evd_notification", |evd| ia.evd_notification(evd).map(drop)),
            ];
            w.refuses(&calls, &values, Error::InvalidEvd)?;
            w.kept()
        },
    ),
    // Every bad handle of an aggregate EVD, in every call that takes one.
    test(
        "event_arguments::aggregates",
        &["it_evd_create IT_ERR_INVALID_AEVD", "it_evd_modify IT_ERR_INVALID_AEVD"],
        |f| {
            let w = Objects::new(f)?;
            let freed = naming(w.ia())?;
            w.ia().evd_free(freed)?;
            let foreign = naming(&f.b)?.as_raw();
            let mut values = no_handles(EvdHandle::from_raw, freed.as_raw(), foreign, w.pair.a.ep.as_raw());
            values.retain(|aevd| !aevd.is_null());
            values.extend([w.plain, w.named, w.idle, w.pair.a.request]);
            let calls = [
                call("evd_create", |aevd| {
                    w.ia().evd_create(SOFTWARE, EvdFlags::empty(), 4, 1, aevd).map(drop)
                }),
                call("evd_modify", |aevd| {
                    let change = EvdParam { aevd, ..EvdParam::default() };
                    w.modify(w.idle, EvdParamMask::AEVD_HANDLE, change)
                }),
                call("evd_modify, with a size", |aevd| {
                    let change = EvdParam { aevd, sevd_queue_size: 100, ..EvdParam::default() };
                    w.modify(w.idle, EvdParamMask::AEVD_HANDLE | EvdParamMask::QUEUE_SIZE, change)
                }),
            ];
            w.refuses(&calls, &values, Error::InvalidAevd)?;
            // An aggregate EVD cannot feed another one, whatever the handle is. An EVD that feeds
            // one cannot be created with a notification object.
            let create = |aevd| w.ia().evd_create(AGGREGATE, EvdFlags::empty(), 0, 0, aevd).map(drop);
            values.extend([w.naming, w.gathering]);
            w.refuses(&[call("evd_create", create)], &values, Error::AevdNotAllowed)?;
            let create = |aevd| w.ia().evd_create(SOFTWARE, EvdFlags::CREATE_FD, 4, 1, aevd).map(drop);
            w.refuses(&[call("evd_create", create)], &values, Error::MismatchFd)?;
            w.kept()
        },
    ),
    // Every bad stream, in every call that takes one.
    test(
        "event_arguments::streams",
        &["it_evd_create IT_ERR_INVALID_EVD_TYPE", "it_evd_post_se IT_ERR_INVALID_SOFT_EVD"],
        |f| {
            let w = Objects::new(f)?;
            let ia = w.ia();
            // Numbers of single events, numbers that are not assigned, and several streams at once.
            let streams =
                [0x1, 0x1001, 0x4001, 0x20001, 0x800, 0x3000, 0x11000, 0x40000, 0x8000_0000, u32::MAX];
            let create = |number| w.create(EventType(number), EvdFlags::empty(), 4, 1);
            w.refuses(&[call("evd_create", create)], &streams, Error::InvalidEvdType)?;
            let others = [w.naming, w.gathering, w.pair.a.request, w.pair.a.conn];
            let post = |evd| ia.evd_post_se(evd, 1);
            w.refuses(&[call("evd_post_se", post)], &others, Error::InvalidSoftEvd)?;
            let others = [w.plain, w.noted, w.naming, w.gathering, w.pair.a.conn];
            let many = |evd| ia.evd_dequeue_n(evd, &mut [DtoCompletion::default(); 2]).map(drop);
            w.refuses(&[call("evd_dequeue_n", many)], &others, Error::InvalidEvdType)?;
            for (stream, error) in [
                (EventType::ASYNC_AFF_EVENT_STREAM, Error::AsyncAffEvdExists),
                (EventType::ASYNC_UNAFF_EVENT_STREAM, Error::AsyncUnaffEvdExists),
            ] {
                // A refused creation must not count as the one EVD that the stream may have.
                let create = |threshold| w.create(stream, EvdFlags::empty(), 4, threshold);
                w.refuses(&[call("evd_create", create)], &[5, usize::MAX], Error::InvalidThreshold)?;
                create(1)?;
                w.refuses(&[call("evd_create", create)], &[1, 5], error)?;
            }
            w.kept()
        },
    ),
    // Every undefined or unmodifiable mask bit, for each kind of EVD.
    test(
        "event_arguments::masks",
        &["it_evd_query IT_ERR_INVALID_MASK", "it_evd_modify IT_ERR_INVALID_MASK"],
        |f| {
            let w = Objects::new(f)?;
            let mask = EvdParamMask::from_bits_retain;
            let calls = [w.plain, w.idle, w.naming, w.gathering, w.noted].map(|evd| {
                call("evd_query", move |bits| {
                    f.a.evd_query(evd, EvdParamMask::from_bits_retain(bits)).map(drop)
                })
            });
            w.refuses(&calls, &undefined(0xfff), Error::InvalidMask)?;
            // A change that would be valid with a valid mask.
            let change = EvdParam { sevd_queue_size: 99, sevd_threshold: 3, ..EvdParam::default() };
            let modify = |bits| w.modify(w.plain, mask(bits), change);
            let with_size = |bits| w.modify(w.plain, mask(bits) | EvdParamMask::QUEUE_SIZE, change);
            let calls = [call("evd_modify", modify), call("evd_modify, with a size", with_size)];
            w.refuses(&calls, &undefined(0x670), Error::InvalidMask)?;
            let calls = [w.naming, w.gathering].map(|evd| {
                let w = &w;
                call("evd_modify", move |bits| w.modify(evd, EvdParamMask::from_bits_retain(bits), change))
            });
            w.refuses(&calls, &undefined(0x600), Error::InvalidMask)?;
            w.kept()
        },
    ),
    // Every undefined or forbidden flag, for each kind of EVD.
    test("event_arguments::flags", &["it_evd_create L05 IT_ERR_INVALID_FLAGS"], |f| {
        let w = Objects::new(f)?;
        let flags = EvdFlags::from_bits_retain;
        let simple = [DTO, EventType::CM_REQ_EVENT_STREAM, EventType::CM_MSG_EVENT_STREAM, SOFTWARE];
        let calls = simple.map(|stream| {
            let w = &w;
            call("evd_create", move |bits| w.create(stream, EvdFlags::from_bits_retain(bits), 4, 1))
        });
        w.refuses(&calls, &undefined(0x1e), Error::InvalidFlags)?;
        let create = |bits| w.create(AGGREGATE, flags(bits), 0, 0);
        w.refuses(&[call("evd_create", create)], &undefined(0x3), Error::InvalidFlags)?;
        // Two overflow modes at once, a reset mode where overflow is not reported, and a mode that
        // this stream does not have.
        w.refuses(&calls, &[0x0c, 0x14, 0x1c, 0x10], Error::InvalidFlags)?;
        let create = |bits| w.create(DTO, flags(bits), 4, 1);
        w.refuses(&[call("evd_create", create)], &[0x18], Error::InvalidFlags)?;
        let create = |bits| w.create(EventType::ASYNC_UNAFF_EVENT_STREAM, flags(bits), 4, 1);
        w.refuses(&[call("evd_create", create)], &[0x08, 0x10, 0x18], Error::InvalidFlags)?;
        let create = |bits| w.create(EventType::ASYNC_AFF_EVENT_STREAM, flags(bits), 4, 1);
        w.refuses(&[call("evd_create", create)], &[0x0c, 0x10, 0x14, 0x1c], Error::InvalidFlags)?;
        w.kept()
    }),
    // Every bad size and threshold, at creation and in modifications.
    test(
        "event_arguments::sizes_and_thresholds",
        &[
            "it_evd_create IT_ERR_INVALID_THRESHOLD IT_ERR_RESOURCE_QUEUE_SIZE",
            "it_evd_modify IT_ERR_INVALID_QUEUE_SIZE IT_ERR_INVALID_THRESHOLD",
            "it_evd_modify IT_ERR_RESOURCE_QUEUE_SIZE",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (none, room) = (EvdFlags::empty(), w.pair.a.request);
            let most = f.setup.a.agent.identity().max_cqes as usize;
            let sizes = [usize::MAX / 2 + 1, usize::MAX - 1, usize::MAX];
            let sizes_of_cqs: Vec<usize> =
                [most + 1, u32::MAX as usize, 1 << 32, (1 << 32) + 1].into_iter().chain(sizes).collect();
            let too_large = Error::ResourceQueueSize;
            let create = |size| w.create(SOFTWARE, none, size, 1);
            w.refuses(&[call("evd_create", create)], &sizes, too_large)?;
            let create = |size| w.create(DTO, none, size, 1);
            w.refuses(&[call("evd_create", create)], &sizes_of_cqs, too_large)?;
            let resize = |evd, sevd_queue_size, sevd_threshold| {
                let change = EvdParam { sevd_queue_size, sevd_threshold, ..EvdParam::default() };
                w.modify(evd, EvdParamMask::QUEUE_SIZE | EvdParamMask::THRESHOLD, change)
            };
            let calls = [
                call("evd_modify", |size| resize(w.plain, size, 1)),
                call("evd_modify, with a threshold", |size| resize(w.plain, size, size)),
            ];
            w.refuses(&calls, &sizes, too_large)?;
            let calls = [
                call("evd_modify", |size| resize(room, size, 1)),
                call("evd_modify, with a threshold", |size| resize(room, size, size)),
            ];
            w.refuses(&calls, &sizes_of_cqs, too_large)?;
            // The queue holds two events.
            let calls = [
                call("evd_modify", |size| resize(w.plain, size, 1)),
                call("evd_modify, without a threshold", |sevd_queue_size| {
                    let change = EvdParam { sevd_queue_size, ..EvdParam::default() };
                    w.modify(w.plain, EvdParamMask::QUEUE_SIZE, change)
                }),
            ];
            w.refuses(&calls, &[0, 1], Error::InvalidQueueSize)?;
            // Thresholds above the capacity, the present one or the new one.
            let threshold = |evd, sevd_threshold| {
                let change = EvdParam { sevd_threshold, ..EvdParam::default() };
                w.modify(evd, EvdParamMask::THRESHOLD, change)
            };
            let wrong = Error::InvalidThreshold;
            let create = |more| w.create(SOFTWARE, none, 4, 4 + more);
            w.refuses(&[call("evd_create", create)], &[1, usize::MAX - 4], wrong)?;
            let capacity = evd_param(w.ia(), room)?.sevd_queue_size;
            let create = |more| w.create(DTO, none, capacity, capacity + more);
            w.refuses(&[call("evd_create", create)], &[1, usize::MAX - capacity], wrong)?;
            let calls = [
                call("evd_modify", |more| threshold(w.plain, 4 + more)),
                call("evd_modify, with a size", |more| resize(w.plain, 8, 8 + more)),
            ];
            w.refuses(&calls, &[1, usize::MAX - 8], wrong)?;
            let calls = [
                call("evd_modify", |more| threshold(room, capacity + more)),
                call("evd_modify, with a size", |more| resize(room, 2 * capacity, 2 * capacity + more)),
            ];
            w.refuses(&calls, &[1, usize::MAX - 2 * capacity], wrong)?;
            w.kept()?;
            // A threshold equal to the capacity is legal.
            threshold(room, capacity)?;
            threshold(w.plain, 4)?;
            Ok(resize(w.plain, 8, 8)?)
        },
    ),
    // Every call on an EVD in a state that forbids it.
    test(
        "event_arguments::states",
        &[
            "it_evd_wait IT_ERR_CALLBACK_EXISTS IT_ERR_INVALID_EVD_STATE",
            "it_evd_dequeue IT_ERR_INVALID_EVD_STATE",
            "it_evd_modify IT_ERR_CALLBACK_EXISTS IT_ERR_INVALID_EVD_STATE",
            "it_evd_free IT_ERR_EVD_BUSY",
            "it_evd_callback_attach IT_ERR_CALLBACK_EXISTS IT_ERR_INVALID_EVD_STATE",
            "it_evd_callback_detach IT_ERR_INVALID_EVD_STATE",
        ],
        |f| {
            let w = Objects::new(f)?;
            let ia = w.ia();
            let state = Error::InvalidEvdState;
            let wait = || call("evd_wait", |evd| waited(ia, evd));
            let attach =
                || call("evd_callback_attach", |evd| ia.evd_callback_attach(evd, Box::new(|_, _| {})));
            let feed = |aevd, more| {
                let w = &w;
                call("evd_modify", move |evd| {
                    let change = EvdParam { aevd, sevd_queue_size: 100, ..EvdParam::default() };
                    w.modify(evd, EvdParamMask::AEVD_HANDLE | more, change)
                })
            };
            let size = EvdParamMask::QUEUE_SIZE;
            w.refuses(&[wait()], &[w.named, w.gathered, w.noted], state)?;
            w.refuses(&[attach()], &[w.named, w.gathered, w.noted], state)?;
            w.refuses(&[wait(), attach(), feed(w.naming, size)], &[w.called], Error::CallbackExists)?;
            w.refuses(&[call("evd_dequeue", |evd| ia.evd_dequeue(evd).map(drop))], &[w.gathered], state)?;
            let detach = [call("evd_callback_detach", |evd| ia.evd_callback_detach(evd))];
            w.refuses(&detach, &[w.plain, w.idle, w.named, w.naming, w.noted, w.pair.a.request], state)?;
            let notification = [call("evd_notification", |evd| ia.evd_notification(evd).map(drop))];
            w.refuses(&notification, &[w.plain, w.named, w.naming, w.called], state)?;
            // EVDs that are enabled, captured, or created with a notification object.
            let (naming, none, off) = (w.naming, EvdHandle::NULL, EvdParamMask::ENABLED);
            let enabled = [feed(naming, EvdParamMask::empty()), feed(naming, size)];
            w.refuses(&enabled, &[w.plain, w.named, w.gathered, w.noted, w.pair.a.request], state)?;
            let disabled = [feed(none, off), feed(naming, off), feed(naming, off | size)];
            w.refuses(&disabled, &[w.gathered], state)?;
            w.refuses(&disabled[1..], &[w.noted], state)?;
            let busy = [w.naming, w.gathering, w.pair.a.request, w.pair.a.recv, w.pair.a.conn];
            w.refuses(&[call("evd_free", |evd| ia.evd_free(evd))], &busy, Error::EvdBusy)?;
            w.kept()
        },
    ),
    // Calls that need the privilege, from an IA without it.
    test(
        "event_arguments::privilege",
        &["it_evd_callback_attach IT_ERR_NO_PERMISSION", "it_evd_callback_detach IT_ERR_NO_PERMISSION"],
        |f| {
            let ia = f.unprivileged()?;
            let evds = [software(&ia, 4)?, naming(&ia)?, sevd(&ia, DTO, 4, 1)?];
            let seen = || Ok((evds.map(|evd| ia.evd_query(evd, EvdParamMask::ALL)), ia.object_counts()));
            let calls = [
                call("evd_callback_attach", |evd| ia.evd_callback_attach(evd, Box::new(|_, _| {}))),
                call("evd_callback_detach", |evd| ia.evd_callback_detach(evd)),
            ];
            all_refused(seen, &calls, &evds, Error::NoPermission)
        },
    ),
    // Calls that are forbidden in a callback are refused there and take no event.
    test("event_arguments::in_callbacks", &["it_evd_callback_attach L02"], |f| {
        let w = Objects::new(f)?;
        let srq = f.a.srq_create(w.pair.a.pz, 1, 4)?;
        let (plain, naming, notification) = (w.plain, w.naming, w.notification.clone());
        let before = (w.all()?, f.a.srq_query(srq, SrqParamMask::ALL)?);
        let (refusals, queried) = inside(f, move |ia, _| {
            let change = EvdParam { sevd_queue_size: 100, ..EvdParam::default() };
            let params = SrqParam { low_watermark: 1, ..SrqParam::default() };
            let refusals = [
                ("evd_create", ia.evd_create(SOFTWARE, EvdFlags::empty(), 4, 1, naming).err()),
                ("evd_modify", ia.evd_modify(plain, EvdParamMask::QUEUE_SIZE, &change).err()),
                ("evd_wait", ia.evd_wait(plain, TIMEOUT_INFINITE).err().map(Error::from)),
                ("Notification::wait", notification.wait(TIMEOUT_INFINITE).err()),
                ("srq_modify", ia.srq_modify(srq, SrqParamMask::LOW_WATERMARK, &params).err()),
            ];
            (refusals, ia.evd_query(plain, EvdParamMask::ALL))
        })?;
        for (name, error) in refusals {
            check_eq!(error, Some(Error::CallbackContext), "{name} in a callback");
        }
        check_eq!(queried?, evd_param(&f.a, w.plain)?);
        check_eq!((w.all()?, f.a.srq_query(srq, SrqParamMask::ALL)?), before);
        w.kept()
    }),
];

//! Asynchronous events: which events an InfiniBand adapter reports for endpoints and for itself,
//! which IAs get them, and what happens when an EVD is full (pages it_affiliated_event_t,
//! it_unaffiliated_event_t).

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::faults::overflow::{overflow_completions, overflowed, pair_with_small_cq};
use crate::fixture::{Fixture, MOMENT, OPEN, PAGE, SIGNALLED, WAIT, attributes, evd_param, sevd, spigot};
use crate::requests::errors::{affiliated, impatient};
use crate::thread::eventually;
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const OFFLINE: EventType = EventType::ASYNC_UNAFF_SPIGOT_OFFLINE;
const ONLINE: EventType = EventType::ASYNC_UNAFF_SPIGOT_ONLINE;

/// Fails if an event comes.
#[track_caller]
fn silent(ia: &Ia, evd: EvdHandle) -> Outcome {
    match ia.evd_wait(evd, MOMENT) {
        Err(error) if error == Error::TimeoutExpired => Ok(()),
        other => Err(Failure::new(alloc::format!("expected nothing, got {other:?}"))),
    }
}

/// Takes the port of `a` down or up, and returns the number of the event for that.
fn port(f: &Fixture, up: bool) -> Result<EventType, Failure> {
    f.port(up)?;
    Ok(if up { ONLINE } else { OFFLINE })
}

/// Runs a test that changes the port, and brings the port up afterwards even if the test fails.
fn with_port(f: &Fixture, run: impl FnOnce() -> Outcome) -> Outcome {
    let outcome = run();
    f.port(true)?;
    outcome
}

/// Takes the next event of the adapter, which must have this number.
#[track_caller]
fn changed(ia: &Ia, evd: EvdHandle, event_number: EventType) -> Outcome {
    let (event, _) = ia.evd_wait(evd, WAIT)?;
    let spigot_id = spigot(ia)?.spigot_id;
    match event == (Event::Unaffiliated { event_number, evd, ia: ia.handle(), spigot_id }) {
        true => Ok(()),
        false => Err(Failure::new(alloc::format!("expected {event_number:?}, got {event:?}"))),
    }
}

/// A shared receive queue without a Receive. Arming its low watermark causes an event at once.
struct Watermark {
    ia: Ia,
    evd: EvdHandle,
    srq: SrqHandle,
}

impl Watermark {
    /// A new queue, and an EVD of this size for its events.
    fn new(ia: &Ia, size: usize) -> Result<Watermark, Failure> {
        let evd = sevd(ia, EventType::ASYNC_AFF_EVENT_STREAM, size, 1)?;
        let srq = ia.srq_create(ia.pz_create()?, 1, 8)?;
        Ok(Watermark { ia: ia.clone(), evd, srq })
    }

    /// Arms the low watermark, which causes one event.
    fn trigger(&self) -> Outcome {
        let mark = SrqParam { low_watermark: 1, ..SrqParam::default() };
        Ok(self.ia.srq_modify(self.srq, SrqParamMask::LOW_WATERMARK, &mark)?)
    }

    /// Takes the next event, which must be that of this queue's low watermark.
    #[track_caller]
    fn expect_event(&self) -> Outcome {
        let (event, _) = self.ia.evd_wait(self.evd, WAIT)?;
        let event_number = EventType::ASYNC_AFF_SRQ_LOW_WATERMARK;
        let cause = AffiliatedCause::Srq(self.srq);
        match event == (Event::Affiliated { event_number, evd: self.evd, cause }) {
            true => Ok(()),
            false => Err(Failure::new(alloc::format!("not an event of {:?}: {event:?}", self.srq))),
        }
    }
}

pub(crate) const TESTS: &[Test] = &[
    // A request with an invalid operation causes an asynchronous event at the peer's endpoint.
    test("asynchronous::a_bad_operation_code", &["it_affiliated_event_t F08 F26", "it_event_t F28"], |f| {
        let number = EventType::ASYNC_AFF_EP_BAD_TRANSPORT_OPCODE;
        check_eq!(number.as_raw(), 0x4003);
        let evd = sevd(&f.b, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
        for send in [true, false] {
            let pair = f.pair()?;
            let sink = f.region(&f.b, pair.b.pz, 64, OPEN)?;
            let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            source.fill(1);
            f.b.post_recv(pair.b.ep, &[sink.whole()], 5, DtoFlags::COMPLETION)?;
            f.inject_into(&pair.a, Injection::BadRequest, 100, 0)?;
            let segments = [source.whole()];
            match send {
                true => f.a.post_send(pair.a.ep, &segments, 1, SIGNALLED)?,
                false => {
                    let (at, context) = (sink.remote(0), sink.context()?);
                    f.a.post_rdma_write(pair.a.ep, &segments, 1, SIGNALLED, at, context)?;
                }
            }
            affiliated(&f.b, evd, number, pair.b.ep)?;
            pair.a.done(1, DtoStatus::RemoteResponder)?;
            pair.b.recv_done(5, DtoStatus::Flushed)?;
            pair.a.broken()?;
            pair.b.broken()?;
            sink.untouched()?;
        }
        silent(&f.b, evd)
    }),
    // An EVD stays overflowed until a modification asks for the reset.
    test("asynchronous::an_overflow_is_reset_on_request", &[], |f| {
        let watermark = Watermark::new(&f.a, 1)?;
        let evd = watermark.evd;
        let overflowed = || evd_param(&f.a, evd).is_ok_and(|param| param.evd_overflowed);
        check!(eventually(f.platform(), || watermark.trigger().is_ok() && overflowed()));
        let param = evd_param(&f.a, evd)?;
        for mask in [EvdParamMask::ENABLED, EvdParamMask::THRESHOLD, EvdParamMask::OVERFLOWED] {
            f.a.evd_modify(evd, mask, &param)?;
            check!(overflowed(), "reset by {mask:?}");
        }
        let reset = EvdParam { evd_overflowed: false, ..param };
        f.a.evd_modify(evd, EvdParamMask::ENABLED, &reset)?;
        check!(overflowed());
        f.a.evd_modify(evd, EvdParamMask::OVERFLOWED, &reset)?;
        check!(!overflowed());
        Ok(())
    }),
    // An overflowed completion queue causes one event for itself and one for each of its endpoints.
    test(
        "asynchronous::endpoints_of_a_full_queue",
        &["it_affiliated_event_t F07 F24 F25", "it_event_t F27", "it_dto_events O02"],
        |f| {
            check!(f.a.ia_query()?.dto_evd_overflow_detection);
            let number = EventType::ASYNC_AFF_EP_FAILURE;
            check_eq!(number.as_raw(), 0x4002);
            let evd = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
            let bystander = f.pair()?;
            let (pair, room) = pair_with_small_cq(f)?;
            let wide = EpAttributes { max_request_dtos: room + 8, ..attributes() };
            let sharer = f.end_on(&f.a, &wide, pair.a.request, pair.a.recv)?;
            f.connect(&sharer, &f.end(&f.b, &attributes())?)?;
            overflow_completions(&pair, room)?;
            overflowed(f, evd, pair.a.request)?;
            let mut failed = Vec::new();
            for _ in 0..2 {
                let (event, _) = f.a.evd_wait(evd, WAIT)?;
                let Event::Affiliated { event_number, cause: AffiliatedCause::Ep(ep), .. } = event else {
                    return Err(Failure::new(alloc::format!("not of an endpoint: {event:?}")));
                };
                check_eq!(event_number, number);
                failed.push(ep);
            }
            check!(failed.contains(&pair.a.ep) && failed.contains(&sharer.ep), "{failed:?}");
            pair.a.broken()?;
            sharer.broken()?;
            check_eq!(bystander.a.state()?, EpStateRc::Connected);
            silent(&f.a, evd)
        },
    ),
    // Failures that have an event on other transports only cause none here.
    test(
        "asynchronous::only_what_infiniband_has",
        &["it_affiliated_event_t B04 O01", "A.it_dto_cmpl_event_t O01"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let stream = EventType::ASYNC_AFF_EVENT_STREAM;
            let evds = [(&f.a, sevd(&f.a, stream, 32, 1)?), (&f.b, sevd(&f.b, stream, 32, 1)?)];
            let once = ConnAttributes {
                rnr_retry_count: 1,
                retry_count: 1,
                local_ack_timeout: 12,
                ..ConnAttributes::default()
            };
            // No Receive is posted. Other transports have an affiliated event for that, InfiniBand
            // has none.
            let pair = impatient(f, once)?;
            f.a.post_send(pair.a.ep, &[], 1, SIGNALLED)?;
            pair.a.done(1, DtoStatus::ReceiverNotReady)?;
            pair.a.broken()?;
            // A message that is too long for its Receive, and one whose Receive is not writable.
            // The completions on both sides report the error, and there is no asynchronous event.
            for spoilt in [false, true] {
                let pair = f.pair()?;
                let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
                let sink = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
                let segment = match spoilt {
                    true => LmrTriplet::new(LmrHandle::NULL, 0, 64),
                    false => sink.segment(0, 63),
                };
                f.b.post_recv(pair.b.ep, &[segment], 2, DtoFlags::COMPLETION)?;
                f.a.post_send(pair.a.ep, &[source.whole()], 3, SIGNALLED)?;
                pair.a.done(3, DtoStatus::RemoteResponder)?;
                let status = if spoilt { DtoStatus::LocalProtection } else { DtoStatus::LocalLength };
                pair.b.recv_done(2, status)?;
                pair.a.broken()?;
                pair.b.broken()?;
            }
            // An answer that makes no sense, and no answer at all.
            for (what, status) in [
                (Injection::BadResponse, DtoStatus::BadResponse),
                (Injection::DropRequests, DtoStatus::Transport),
            ] {
                let pair = impatient(f, once)?;
                f.inject_into(&pair.a, what, 1000, 0)?;
                f.a.post_rdma_write(pair.a.ep, &[], 4, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
                pair.a.done(4, status)?;
                pair.a.broken()?;
            }
            // A write and a read that the responder does not allow: only the responder's IA gets an
            // asynchronous event.
            for writes in [true, false] {
                let pair = f.pair()?;
                let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
                let peer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                let (at, context) = (peer.remote(1), peer.context()?);
                match writes {
                    true => f.a.post_rdma_write(pair.a.ep, &[own.whole()], 5, SIGNALLED, at, context)?,
                    false => f.a.post_rdma_read(pair.a.ep, &[own.whole()], 5, SIGNALLED, at, context)?,
                }
                pair.a.done(5, DtoStatus::RemoteAccess)?;
                affiliated(&f.b, evds[1].1, EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION, pair.b.ep)?;
                pair.a.broken()?;
                pair.b.broken()?;
            }
            for (ia, evd) in evds {
                silent(ia, evd)?;
            }
            Ok(())
        },
    ),
    // An IA that does not take its affiliated events must not keep events from another one.
    test("asynchronous::a_full_evd_harms_its_own_ia_only", &["A.it_affiliated_event_t V01-V03"], |f| {
        let other = f.another(Some(f.setup.privileged))?;
        let small = Watermark::new(&f.a, 1)?;
        let room = evd_param(&f.a, small.evd)?.sevd_queue_size;
        check!(room < 40, "the smallest queue holds {room} events");
        let large = Watermark::new(&other, room + 8)?;
        for _ in 0..room + 3 {
            small.trigger()?;
            large.trigger()?;
            // The device reports the events in their order, so the event of `small` has been
            // handled.
            large.expect_event()?;
        }
        check!(evd_param(&f.a, small.evd)?.evd_overflowed);
        for _ in 0..room {
            small.expect_event()?;
        }
        refused(f.a.evd_dequeue(small.evd), Error::QueueEmpty)?;
        // The event that found no room is lost. Later events are reported.
        small.trigger()?;
        small.expect_event()?;
        large.trigger()?;
        large.expect_event()?;
        silent(&other, large.evd)
    }),
    // Each change of the port is reported once to every IA on the adapter.
    test(
        "asynchronous::the_port",
        &[
            "it_unaffiliated_event_t A01 A02 A04 B02 B03 B05 B08 F04",
            "it_event_t F47 F48",
            "A.it_unaffiliated_event_t V03",
        ],
        |f| {
            check_eq!((ONLINE.as_raw(), OFFLINE.as_raw()), (0x8002, 0x8003));
            let info = f.a.ia_query()?;
            check!(info.spigot_online_support && info.spigot_offline_support);
            let other = f.another(None)?;
            let stream = EventType::ASYNC_UNAFF_EVENT_STREAM;
            let evds = [(&f.a, sevd(&f.a, stream, 8, 1)?), (&other, sevd(&other, stream, 8, 1)?)];
            with_port(f, || {
                for up in [false, true, false, true] {
                    let number = port(f, up)?;
                    for (ia, evd) in evds {
                        changed(ia, evd, number)?;
                        check_eq!(spigot(ia)?.spigot_online, up);
                    }
                }
                // The port is already up, so nothing changes.
                port(f, true)?;
                for (ia, evd) in evds {
                    silent(ia, evd)?;
                }
                // Two changes of the port are two events, and each wakes a waiter.
                port(f, false)?;
                port(f, true)?;
                for (ia, evd) in evds {
                    changed(ia, evd, OFFLINE)?;
                    changed(ia, evd, ONLINE)?;
                }
                Ok(())
            })
        },
    ),
    // An IA that does not take its unaffiliated events loses some, and others do not.
    test(
        "asynchronous::a_full_unaffiliated_evd",
        &["it_unaffiliated_event_t B06 B07", "A.it_unaffiliated_event_t V01 V02"],
        |f| {
            let stream = EventType::ASYNC_UNAFF_EVENT_STREAM;
            let other = f.another(None)?;
            let small = sevd(&f.a, stream, 1, 1)?;
            let room = evd_param(&f.a, small)?.sevd_queue_size;
            let large = sevd(&other, stream, room + 8, 1)?;
            let elsewhere = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
            with_port(f, || {
                let mut up = false;
                let mut change = || {
                    let number = port(f, up)?;
                    up = !up;
                    changed(&other, large, number)?;
                    Ok::<EventType, Failure>(number)
                };
                let more = 4;
                for _ in 0..room + more {
                    change()?;
                }
                check!(!evd_param(&f.a, small)?.evd_overflowed);
                refused(f.a.evd_dequeue(elsewhere), Error::QueueEmpty)?;
                // The oldest events are there. The last change may have found room after the first
                // event was taken.
                let mut taken = 0;
                while f.a.evd_wait(small, MOMENT).is_ok() {
                    taken += 1;
                }
                check!((room..=room + 1).contains(&taken), "{taken} events in a queue for {room}");
                let number = change()?;
                changed(&f.a, small, number)?;
                Ok(())
            })
        },
    ),
];

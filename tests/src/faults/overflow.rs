//! Overflow of EVDs (pages it_evd_create, it_evd_modify, it_affiliated_event_t, it_dto_events,
//! it_ep_reset).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::fixture::{End, Fixture, Listener, MOMENT, Pair, SIGNALLED, WAIT, attributes, evd_param, sevd};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Endpoints that share one small EVD for connection events, each of which can cause one event.
pub(crate) struct EndpointsOnOneEvd {
    pub(crate) conn: EvdHandle,
    pub(crate) room: usize,
    ends: Vec<End>,
    /// Gets the connection requests and never answers.
    listener: Listener,
}

impl EndpointsOnOneEvd {
    /// Makes the EVD with these flags, and more endpoints than it has room for events.
    pub(crate) fn new(f: &Fixture, flags: EvdFlags) -> Result<EndpointsOnOneEvd, Failure> {
        let conn = f.a.evd_create(EventType::CM_MSG_EVENT_STREAM, flags, 1, 1, EvdHandle::NULL)?;
        let room = evd_param(&f.a, conn)?.sevd_queue_size;
        check_room(room)?;
        let dto = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
        let pz = f.a.pz_create()?;
        let mut ends = Vec::new();
        for _ in 0..room + 4 {
            let ep = f.a.ep_rc_create(pz, dto, dto, conn, EpFlags::empty(), &attributes())?;
            ends.push(End { ia: f.a.clone(), pz, request: dto, recv: dto, conn, ep });
        }
        Ok(EndpointsOnOneEvd { conn, room, ends, listener: f.listen(&f.b)? })
    }

    /// Causes one event: the endpoint starts to connect and gives up.
    pub(crate) fn event(&self, f: &Fixture, which: usize) -> Outcome {
        let end = &self.ends[which];
        f.dial(end, &self.listener, CnEstFlags::TWO_WAY, &[])?;
        f.a.ep_disconnect(end.ep, &[])?;
        check_eq!(end.state()?, EpStateRc::Nonoperational);
        Ok(())
    }
}

/// Checks that there are enough endpoints to fill the queue.
fn check_room(room: usize) -> Outcome {
    check!(room <= 40, "the smallest queue holds {room} events");
    Ok(())
}

/// Takes the next affiliated event, which must be the overflow of this EVD.
#[track_caller]
pub(crate) fn overflowed(f: &Fixture, affiliated: EvdHandle, sevd: EvdHandle) -> Outcome {
    let (event, _) = f.a.evd_wait(affiliated, WAIT)?;
    let event_number = EventType::ASYNC_AFF_SEVD_ENQUEUE_FAILURE;
    let cause = AffiliatedCause::Sevd(sevd);
    match event == (Event::Affiliated { event_number, evd: affiliated, cause }) {
        true => Ok(()),
        false => Err(Failure::new(alloc::format!("not the overflow of {sevd:?}: {event:?}"))),
    }
}

/// A pair whose active side has a completion queue that is smaller than its send queue.
pub(crate) fn pair_with_small_cq(f: &Fixture) -> Result<(Pair, usize), Failure> {
    let request = sevd(&f.a, EventType::DTO_EVENT_STREAM, 1, 1)?;
    let room = evd_param(&f.a, request)?.sevd_queue_size;
    let recv = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
    let wide = EpAttributes { max_request_dtos: room + 8, ..attributes() };
    let pair = Pair { a: f.end_on(&f.a, &wide, request, recv)?, b: f.end(&f.b, &attributes())? };
    f.connect(&pair.a, &pair.b)?;
    Ok((pair, room))
}

/// Completes more requests than the completion queue has room for.
pub(crate) fn overflow_completions(pair: &Pair, room: usize) -> Outcome {
    for cookie in 0..room as u64 + 4 {
        let End { ia, ep, .. } = &pair.a;
        ia.post_rdma_write(*ep, &[], cookie, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // A full EVD drops events and reports that once; queued events stay, and room makes it work
    // again.
    test(
        "overflow::events_are_dropped_until_there_is_room",
        &[
            "it_evd_create B09 B10 B14 F03 F08 S01 S02",
            "it_evd_query F11",
            "it_affiliated_event_t B01 B02 F01-F03 F06",
            "it_event_t F26",
            "A.it_affiliated_event_t A01",
        ],
        |f| {
            let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
            let crowd = EndpointsOnOneEvd::new(f, EvdFlags::OVERFLOW_NOTIFY)?;
            for which in 0..crowd.room {
                crowd.event(f, which)?;
            }
            check!(!evd_param(&f.a, crowd.conn)?.evd_overflowed);
            refused(f.a.evd_dequeue(affiliated), Error::QueueEmpty)?;
            crowd.event(f, crowd.room)?;
            overflowed(f, affiliated, crowd.conn)?;
            check_eq!(EventType::ASYNC_AFF_SEVD_ENQUEUE_FAILURE.as_raw(), 0x4001);
            check!(evd_param(&f.a, crowd.conn)?.evd_overflowed);
            // The queued events are still there, in order. The last one is lost.
            for which in 0..crowd.room {
                let event = f.a.evd_dequeue(crowd.conn)?;
                let ep = crowd.ends[which].ep;
                let expected = Event::ConnDisconnect { evd: crowd.conn, ep, private_data: None };
                check_eq!(event, expected);
            }
            refused(f.a.evd_dequeue(crowd.conn), Error::QueueEmpty)?;
            // There is room again.
            crowd.event(f, crowd.room + 1)?;
            check_eq!(f.a.evd_dequeue(crowd.conn)?.event_number(), EventType::CM_MSG_CONN_DISCONNECT);
            Ok(())
        },
    ),
    // Without automatic reset, a second overflow is not reported before the consumer resets the
    // first one.
    test("overflow::manual_reset", &["it_evd_create B13 B18 V07", "it_evd_modify F05"], |f| {
        let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
        let crowd = EndpointsOnOneEvd::new(f, EvdFlags::OVERFLOW_NOTIFY)?;
        for which in 0..=crowd.room {
            crowd.event(f, which)?;
        }
        overflowed(f, affiliated, crowd.conn)?;
        // There is room again, but the overflow is not reset: a second overflow is not
        // reported.
        f.a.evd_dequeue(crowd.conn)?;
        crowd.event(f, crowd.room + 1)?;
        crowd.event(f, crowd.room + 2)?;
        check!(f.a.evd_wait(affiliated, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
        check!(evd_param(&f.a, crowd.conn)?.evd_overflowed);
        let reset = EvdParam { evd_overflowed: false, ..EvdParam::default() };
        f.a.evd_modify(crowd.conn, EvdParamMask::OVERFLOWED, &reset)?;
        check!(!evd_param(&f.a, crowd.conn)?.evd_overflowed);
        crowd.event(f, crowd.room + 3)?;
        overflowed(f, affiliated, crowd.conn)?;
        check!(evd_param(&f.a, crowd.conn)?.evd_overflowed);
        Ok(())
    }),
    // With automatic reset, each overflow after new room is reported.
    test("overflow::automatic_reset", &["it_evd_create B12 B17 F07 F09", "it_cm_msg_events B06"], |f| {
        let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
        // The default of this stream is the same as both flags.
        for flags in [EvdFlags::OVERFLOW_NOTIFY | EvdFlags::OVERFLOW_AUTO_RESET, EvdFlags::OVERFLOW_DEFAULT] {
            let crowd = EndpointsOnOneEvd::new(f, flags)?;
            for which in 0..=crowd.room {
                crowd.event(f, which)?;
            }
            overflowed(f, affiliated, crowd.conn)?;
            f.a.evd_dequeue(crowd.conn)?;
            crowd.event(f, crowd.room + 1)?;
            check!(f.a.evd_wait(affiliated, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
            crowd.event(f, crowd.room + 2)?;
            overflowed(f, affiliated, crowd.conn)?;
            for end in &crowd.ends {
                f.a.ep_free(end.ep)?;
            }
        }
        Ok(())
    }),
    // Without the notify flag, an overflow is marked but not reported.
    test("overflow::ignored", &["it_evd_create B19 F08"], |f| {
        let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
        let crowd = EndpointsOnOneEvd::new(f, EvdFlags::empty())?;
        for which in 0..=crowd.room {
            crowd.event(f, which)?;
        }
        check!(f.a.evd_wait(affiliated, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
        check!(evd_param(&f.a, crowd.conn)?.evd_overflowed);
        let reset = EvdParam { evd_overflowed: false, ..EvdParam::default() };
        f.a.evd_modify(crowd.conn, EvdParamMask::OVERFLOWED, &reset)?;
        check!(!evd_param(&f.a, crowd.conn)?.evd_overflowed);
        crowd.event(f, crowd.room + 1)?;
        check!(evd_param(&f.a, crowd.conn)?.evd_overflowed);
        Ok(())
    }),
    // An overflowed completion queue never works again, and its endpoints can only be freed.
    test(
        "overflow::overflow_of_completions_is_permanent",
        &[
            "it_evd_create B11 B12",
            "it_evd_modify V02",
            "it_dto_events B05 S01 S02",
            "it_ia_info_t F68",
            "it_ep_reset B02 IT_ERR_CANNOT_RESET",
            "it_status_t F09",
        ],
        |f| {
            check!(f.a.ia_query()?.dto_evd_overflow_detection);
            let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
            let (pair, room) = pair_with_small_cq(f)?;
            overflow_completions(&pair, room)?;
            overflowed(f, affiliated, pair.a.request)?;
            check!(evd_param(&f.a, pair.a.request)?.evd_overflowed);
            // The consumer cannot reset it either.
            let clear = EvdParam { evd_overflowed: false, ..EvdParam::default() };
            f.a.evd_modify(pair.a.request, EvdParamMask::OVERFLOWED, &clear)?;
            check!(evd_param(&f.a, pair.a.request)?.evd_overflowed);
            pair.a.broken()?;
            refused(f.a.ep_reset(pair.a.ep), Error::CannotReset)?;
            // Dequeuing makes no room for new completions.
            let mut taken = 0;
            while f.a.evd_dequeue(pair.a.request).is_ok() {
                taken += 1;
            }
            check!(taken <= room, "{taken} events in a queue for {room}");
            f.a.post_rdma_write(pair.a.ep, &[], 99, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
            check!(f.a.evd_wait(pair.a.request, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
            refused(f.a.ep_reset(pair.a.ep), Error::CannotReset)?;
            check_eq!(Error::CannotReset as u32, 8);
            f.a.ep_free(pair.a.ep)?;
            f.a.evd_free(pair.a.request)?;
            Ok(())
        },
    ),
    // An endpoint cannot be created on an overflowed completion queue.
    test(
        "overflow::an_overflowed_evd_takes_no_endpoint",
        &[
            "it_ep_rc_create B07 IT_ERR_INVALID_RECV_EVD_STATE IT_ERR_INVALID_REQ_EVD_STATE",
            "it_status_t F61 F63",
        ],
        |f| {
            let (pair, room) = pair_with_small_cq(f)?;
            overflow_completions(&pair, room)?;
            pair.a.broken()?;
            let End { pz, request: bad, recv: good, conn, .. } = pair.a;
            check!(evd_param(&f.a, bad)?.evd_overflowed);
            let create =
                |request, recv| f.a.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), &attributes());
            refused(create(bad, good), Error::InvalidReqEvdState)?;
            refused(create(good, bad), Error::InvalidRecvEvdState)?;
            f.a.ep_free(create(good, good)?)?;
            check_eq!((Error::InvalidRecvEvdState as u32, Error::InvalidReqEvdState as u32), (60, 62));
            Ok(())
        },
    ),
    // An overflow concerns the endpoints of that EVD and no others.
    test("overflow::others_are_not_harmed", &["it_dto_events B06 S02"], |f| {
        let bystander = f.pair()?;
        let (pair, room) = pair_with_small_cq(f)?;
        // A second endpoint on the same completion queue fails with the first one.
        let wide = EpAttributes { max_request_dtos: room + 8, ..attributes() };
        let sharer =
            Pair { a: f.end_on(&f.a, &wide, pair.a.request, pair.a.recv)?, b: f.end(&f.b, &attributes())? };
        f.connect(&sharer.a, &sharer.b)?;
        overflow_completions(&pair, room)?;
        pair.a.broken()?;
        sharer.a.broken()?;
        refused(f.a.ep_reset(sharer.a.ep), Error::CannotReset)?;
        for cookie in 0..5 {
            f.a.post_recv(bystander.a.ep, &[], cookie, DtoFlags::COMPLETION)?;
            f.b.post_send(bystander.b.ep, &[], cookie, SIGNALLED)?;
            bystander.a.recv_done(cookie, DtoStatus::Success)?;
            bystander.b.done(cookie, DtoStatus::Success)?;
        }
        Ok(())
    }),
    // An overflow of the EVD for affiliated events is reported to the one for unaffiliated events.
    test(
        "overflow::of_the_affiliated_stream",
        &[
            "it_evd_create B15",
            "it_affiliated_event_t A01 B03",
            "it_unaffiliated_event_t A03 B01 F01-F03",
            "it_event_t F49",
        ],
        |f| {
            let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 1, 1)?;
            let unaffiliated = f.a.evd_create(
                EventType::ASYNC_UNAFF_EVENT_STREAM,
                EvdFlags::empty(),
                16,
                1,
                EvdHandle::NULL,
            )?;
            let room = evd_param(&f.a, affiliated)?.sevd_queue_size;
            // Each overflow of the small EVD causes one affiliated event if it is reset in between.
            let crowd = EndpointsOnOneEvd::new(f, EvdFlags::OVERFLOW_NOTIFY)?;
            for which in 0..crowd.room {
                crowd.event(f, which)?;
            }
            check!(room < 40, "the smallest queue holds {room} events");
            let reset = EvdParam { evd_overflowed: false, ..EvdParam::default() };
            let end = &crowd.ends[crowd.room];
            for _ in 0..=room {
                crowd.event(f, crowd.room)?;
                check!(evd_param(&f.a, crowd.conn)?.evd_overflowed);
                f.a.evd_modify(crowd.conn, EvdParamMask::OVERFLOWED, &reset)?;
                f.a.ep_reset(end.ep)?;
            }
            let (event, _) = f.a.evd_wait(unaffiliated, WAIT)?;
            let Event::Unaffiliated { event_number, evd, ia, .. } = event else {
                return Err(Failure::new(alloc::format!("got {event:?}")));
            };
            check_eq!(event_number, EventType::ASYNC_UNAFF_SEVD_ENQUEUE_FAILURE);
            check_eq!((event_number.as_raw(), evd, ia), (0x8004, unaffiliated, f.a.handle()));
            check!(evd_param(&f.a, affiliated)?.evd_overflowed);
            for _ in 0..room {
                overflowed(f, affiliated, crowd.conn)?;
            }
            refused(f.a.evd_dequeue(affiliated), Error::QueueEmpty)
        },
    ),
    // Events from before their EVD was created are not delivered.
    test(
        "overflow::asynchronous_events_of_before_are_lost",
        &["it_evd_create B59", "A.it_evd_create B23", "A.it_ia_create B01"],
        |f| {
            let crowd = EndpointsOnOneEvd::new(f, EvdFlags::OVERFLOW_NOTIFY)?;
            for which in 0..=crowd.room {
                crowd.event(f, which)?;
            }
            check!(evd_param(&f.a, crowd.conn)?.evd_overflowed);
            let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
            check!(f.a.evd_wait(affiliated, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
            let reset = EvdParam { evd_overflowed: false, ..EvdParam::default() };
            f.a.evd_modify(crowd.conn, EvdParamMask::OVERFLOWED, &reset)?;
            crowd.event(f, crowd.room + 1)?;
            overflowed(f, affiliated, crowd.conn)
        },
    ),
];

//! The calls of shared receive queues: creation, queries, sizes, watermarks, posts, frees.

use alloc::vec::Vec;
use core::result::Result;

use dat::*;

use super::events::{invalid, parameter, state};
use super::srq::{Queue, client, message, outstanding, queue};
use super::world::*;
use crate::fixture::PAGE;
use crate::{Failure, Outcome, Test, check, check_eq, refused, some, test};

/// The error of a handle that is not a shared receive queue's.
const NO_SRQ: Error = invalid(Subtype::InvalidHandleSrq);
/// The error of a post to a full queue.
const FULL: ErrorType = ErrorType::InsufficientResources;

/// The adapter's attributes.
#[track_caller]
fn limits(ia: &Ia) -> Result<IaAttr, Failure> {
    let (_, attr, _) = ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
    some(attr, "the IA's attributes")
}

/// Posts Receives of no bytes with these cookies.
#[track_caller]
fn fill(ia: &Ia, srq: SrqHandle, cookies: core::ops::Range<u64>) -> Outcome {
    for cookie in cookies {
        ia.srq_post_recv(srq, &[], cookie)?;
    }
    Ok(())
}

/// Checks that the queue takes no further Receive.
#[track_caller]
fn is_full(ia: &Ia, srq: SrqHandle) -> Outcome {
    let posted = ia.srq_post_recv(srq, &[], 999);
    check_eq!(posted.map_err(Error::kind), Err(FULL));
    Ok(())
}

/// Waits for the event of the low watermark, which must name this queue.
#[track_caller]
fn low(w: &World<'_>, srq: SrqHandle) -> Outcome {
    let event = expect(&w.b, w.asynchronous[1], EventNumber::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR)?;
    let error = AsynchError { dat_handle: srq.into(), reason: AsyncReason::SrqLowWatermark };
    check_eq!(event.event_data, EventData::AsynchError(error));
    Ok(())
}

/// Waits for the event that an endpoint whose connection is over takes no more Receives.
#[track_caller]
fn no_more(w: &World<'_>, ep: EpHandle) -> Outcome {
    let event = expect(&w.b, w.asynchronous[1], EventNumber::ASYNC_ERROR_EP_BROKEN)?;
    let error = AsynchError { dat_handle: ep.into(), reason: AsyncReason::EpTransferToError };
    check_eq!(event.event_data, EventData::AsynchError(error));
    Ok(())
}

/// Makes a message take the next Receive of the queue.
#[track_caller]
fn use_one(far: &End, own: &End, cookie: u64) -> Outcome {
    message(far, 1)?;
    own.received(cookie, DtoStatus::Success)?;
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // The least and the most that a queue can hold. Sizes outside these limits are refused and
    // create nothing.
    test("dat_srq_calls::creation", &[], |f| {
        world(f, |w| {
            let (pz, most) = (w.a.pz_create()?, limits(&w.a)?);
            let attr = |max_recv_dtos, max_recv_iov| SrqAttr {
                max_recv_dtos,
                max_recv_iov,
                low_watermark: SRQ_LW_DEFAULT,
            };
            let (dtos, segments) = (most.max_recv_per_srq, most.max_iov_segments_per_dto);
            for (receives, iov) in [(1, 0), (1, 1), (3, segments), (64, 4), (dtos, 1)] {
                let srq = w.a.srq_create(pz, &attr(receives, iov))?;
                let param = w.a.srq_query(srq)?;
                let expected = SrqParam {
                    ia_handle: w.a.handle(),
                    srq_state: SrqState::Operational,
                    pz_handle: pz,
                    max_recv_dtos: param.max_recv_dtos,
                    max_recv_iov: iov,
                    low_watermark: 0,
                    available_dto_count: VALUE_UNKNOWN,
                    outstanding_dto_count: 0,
                };
                check_eq!(param, expected);
                check!((receives..=dtos).contains(&param.max_recv_dtos), "{receives}: {param:?}");
                check_eq!(w.a.get_handle_type(srq)?, HandleType::Srq);
                w.a.srq_free(srq)?;
            }
            let bad = parameter(Subtype::InvalidArg3);
            for (receives, iov) in
                [(0, 1), (dtos + 1, 1), (usize::MAX, 1), (4, segments + 1), (4, usize::MAX)]
            {
                refused(w.a.srq_create(pz, &attr(receives, iov)), bad)?;
            }
            for low_watermark in [1, 4, -1, i32::MIN, i32::MAX] {
                refused(w.a.srq_create(pz, &SrqAttr { low_watermark, ..attr(8, 1) }), bad)?;
            }
            w.a.pz_free(pz)?;
            let dto = evd(&w.a, EvdFlags::DTO)?;
            for no_pz in [PzHandle::NULL, pz, w.b.pz_create()?, PzHandle::from_raw(dto.as_raw())] {
                refused(w.a.srq_create(no_pz, &attr(8, 1)), invalid(Subtype::InvalidHandlePz))?;
            }
            let features = privileged_api::Features::all() - privileged_api::Features::SRQ;
            let ia = w.limited(privileged_api::Limits { features, ..privileged_api::Limits::NONE })?;
            let made = ia.pz_create().and_then(|pz| ia.srq_create(pz, &attr(8, 1)));
            refused(made, ErrorType::ModelNotSupported.into())?;
            w.close(&ia)
        })
    }),
    // Every call refuses a handle that is null, freed, of another IA or of another type.
    test("dat_srq_calls::bad_handles", &[], |f| {
        world(f, |w| {
            let (q, foreign) = (queue(w)?, w.a.srq_create(w.a.pz_create()?, &SrqAttr::default())?);
            let freed = w.b.srq_create(q.pz, &SrqAttr::default())?;
            w.b.srq_free(freed)?;
            // Endpoints can take Receives, too.
            let end = w.end(&w.b, &attributes())?;
            let others = [end.ep.as_raw(), q.pz.as_raw(), u64::MAX].map(SrqHandle::from_raw);
            for bad in [SrqHandle::NULL, freed, foreign].into_iter().chain(others) {
                refused(w.b.srq_query(bad), NO_SRQ)?;
                refused(w.b.srq_set_lw(bad, 1), NO_SRQ)?;
                refused(w.b.srq_set_lw(bad, -1), NO_SRQ)?;
                refused(w.b.srq_post_recv(bad, &[], 1), NO_SRQ)?;
                refused(w.b.srq_post_recv(bad, &[q.memory.segment(0, 8); 100], 1), NO_SRQ)?;
                refused(w.b.srq_resize(bad, 8), NO_SRQ)?;
                refused(w.b.srq_resize(bad, 0), NO_SRQ)?;
                refused(w.b.srq_free(bad), NO_SRQ)?;
            }
            check_eq!((outstanding(&w.b, q.srq)?, w.b.ep_recv_query(end.ep)?.0), (0, 0));
            Ok(())
        })
    }),
    // A queue takes as many Receives as it holds, of as many segments as its Receives have. A
    // refused post adds no Receive.
    test("dat_srq_calls::posts", &[], |f| {
        world(f, |w| {
            let pz = w.b.pz_create()?;
            let srq =
                w.b.srq_create(pz, &SrqAttr { max_recv_dtos: 5, max_recv_iov: 2, ..SrqAttr::default() })?;
            let q = Queue { pz, srq, memory: w.region_in(&w.b, pz, PAGE, OPEN)? };
            let room = w.b.srq_query(srq)?.max_recv_dtos as u64;
            let segment = q.memory.segment(0, 8);
            for segments in [&[segment; 3][..], &[segment; 200]] {
                refused(w.b.srq_post_recv(srq, segments, 1), parameter(Subtype::None))?;
            }
            check_eq!(outstanding(&w.b, srq)?, 0);
            w.b.srq_post_recv(srq, &[segment, q.memory.segment(64, 8)], 0)?;
            fill(&w.b, srq, 1..room)?;
            is_full(&w.b, srq)?;
            check_eq!(outstanding(&w.b, srq)?, room as i32);
            let (far, own) = client(w, &q)?;
            let source = w.region(&far, PAGE, OPEN)?;
            source.fill(7);
            far.send(&[source.segment(0, 16)], 9)?;
            far.done(9, DtoStatus::Success)?;
            // There is room again only when the consumer has taken the completion.
            is_full(&w.b, srq)?;
            let (done, _, _) = own.received(0, DtoStatus::Success)?;
            check_eq!(done.transferred_length, 16);
            check_eq!([q.memory.bytes(0, 8), q.memory.bytes(64, 8)].concat(), source.bytes(0, 16));
            fill(&w.b, srq, 50..51)?;
            is_full(&w.b, srq)?;
            for cookie in (1..room).chain([50]) {
                use_one(&far, &own, cookie)?;
            }
            check_eq!(outstanding(&w.b, srq)?, 0);
            Ok(())
        })
    }),
    // A queue grows and shrinks, keeps its Receives, and does not shrink below their number.
    test("dat_srq_calls::resizes", &[], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (far, own) = client(w, &q)?;
            let (srq, most) = (q.srq, limits(&w.b)?.max_recv_per_srq);
            fill(&w.b, srq, 0..40)?;
            let before = w.b.srq_query(srq)?;
            for bad in [0, most + 1, usize::MAX] {
                refused(w.b.srq_resize(srq, bad), parameter(Subtype::InvalidArg2))?;
            }
            for few in [1, 32] {
                refused(w.b.srq_resize(srq, few), state(Subtype::InvalidStateSrqOperational))?;
            }
            check_eq!(w.b.srq_query(srq)?, before);
            w.b.srq_resize(srq, 200)?;
            let param = w.b.srq_query(srq)?;
            check!(param.max_recv_dtos >= 200);
            check_eq!(param, SrqParam { max_recv_dtos: param.max_recv_dtos, ..before });
            fill(&w.b, srq, 40..param.max_recv_dtos as u64)?;
            is_full(&w.b, srq)?;
            for cookie in 0..param.max_recv_dtos as u64 {
                use_one(&far, &own, cookie)?;
            }
            w.b.srq_resize(srq, most)?;
            check_eq!(w.b.srq_query(srq)?.max_recv_dtos, most);
            w.b.srq_resize(srq, 1)?;
            let room = w.b.srq_query(srq)?.max_recv_dtos as u64;
            check!(room < 40);
            fill(&w.b, srq, 0..room)?;
            is_full(&w.b, srq)?;
            use_one(&far, &own, 0)
        })
    }),
    // The event of the low watermark comes once each time that the watermark is set: when fewer
    // Receives are left, or at once.
    test("dat_srq_calls::low_watermark", &[], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (far, own) = client(w, &q)?;
            let (srq, asynchronous) = (q.srq, w.asynchronous[1]);
            fill(&w.b, srq, 0..8)?;
            w.b.srq_set_lw(srq, 6)?;
            check_eq!(w.b.srq_query(srq)?.low_watermark, 6);
            use_one(&far, &own, 0)?;
            use_one(&far, &own, 1)?;
            // Six are left.
            nothing(&w.b, asynchronous)?;
            use_one(&far, &own, 2)?;
            low(w, srq)?;
            check_eq!(w.b.srq_query(srq)?.low_watermark, 0);
            // The watermark is no longer armed, whatever is posted and taken.
            use_one(&far, &own, 3)?;
            fill(&w.b, srq, 8..14)?;
            for cookie in 4..10 {
                use_one(&far, &own, cookie)?;
            }
            nothing(&w.b, asynchronous)?;
            // Four are left, which is fewer than five and not fewer than four.
            w.b.srq_set_lw(srq, 5)?;
            low(w, srq)?;
            w.b.srq_set_lw(srq, 4)?;
            nothing(&w.b, asynchronous)?;
            // The watermark that was set last counts.
            w.b.srq_set_lw(srq, 2)?;
            check_eq!(w.b.srq_query(srq)?.low_watermark, 2);
            use_one(&far, &own, 10)?;
            use_one(&far, &own, 11)?;
            nothing(&w.b, asynchronous)?;
            use_one(&far, &own, 12)?;
            low(w, srq)?;
            nothing(&w.b, asynchronous)
        })
    }),
    // A watermark has to be positive and within the queue. A queue does not shrink below it, and it
    // stays armed when the queue grows.
    test("dat_srq_calls::watermarks_and_sizes", &[], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let (far, own) = client(w, &q)?;
            let room = w.b.srq_query(q.srq)?.max_recv_dtos as i32;
            fill(&w.b, q.srq, 0..room as u64)?;
            for bad in [0, -1, i32::MIN, room + 1, i32::MAX] {
                refused(w.b.srq_set_lw(q.srq, bad), parameter(Subtype::InvalidArg2))?;
            }
            check_eq!(w.b.srq_query(q.srq)?.low_watermark, 0);
            w.b.srq_set_lw(q.srq, room)?;
            for bad in [0, -1, room + 1] {
                refused(w.b.srq_set_lw(q.srq, bad), parameter(Subtype::InvalidArg2))?;
            }
            check_eq!(w.b.srq_query(q.srq)?.low_watermark, room);
            nothing(&w.b, w.asynchronous[1])?;
            w.b.srq_resize(q.srq, 2 * room as usize)?;
            check_eq!(w.b.srq_query(q.srq)?.low_watermark, room);
            nothing(&w.b, w.asynchronous[1])?;
            use_one(&far, &own, 0)?;
            low(w, q.srq)?;
            // Armed, with two Receives left.
            for cookie in 1..room as u64 - 2 {
                use_one(&far, &own, cookie)?;
            }
            w.b.srq_set_lw(q.srq, 2)?;
            w.b.srq_resize(q.srq, 2)?;
            check_eq!(w.b.srq_query(q.srq)?.low_watermark, 2);
            nothing(&w.b, w.asynchronous[1])?;
            refused(w.b.srq_resize(q.srq, 1), state(Subtype::InvalidStateSrqOperational))?;
            use_one(&far, &own, room as u64 - 2)?;
            low(w, q.srq)
        })
    }),
    // A queue can be freed with its Receives, but not while an endpoint uses it.
    test("dat_srq_calls::frees", &[], |f| {
        world(f, |w| {
            let q = queue(w)?;
            let in_use = state(Subtype::InvalidStateSrqInUse);
            let segments: Vec<_> = (0..4).map(|n| q.memory.segment(8 * n, 8)).collect();
            w.b.srq_post_recv(q.srq, &segments, 1)?;
            fill(&w.b, q.srq, 2..9)?;
            let unconnected = w.end_with_srq(&w.b, q.pz, q.srq, &attributes())?;
            refused(w.b.srq_free(q.srq), in_use)?;
            let (far, own) = client(w, &q)?;
            w.b.ep_free(unconnected.ep)?;
            refused(w.b.srq_free(q.srq), in_use)?;
            // It still works.
            use_one(&far, &own, 1)?;
            own.disconnect()?;
            refused(w.b.srq_free(q.srq), in_use)?;
            no_more(w, own.ep)?;
            w.b.ep_free(own.ep)?;
            w.b.srq_set_lw(q.srq, 3)?;
            w.b.srq_free(q.srq)?;
            refused(w.b.srq_free(q.srq), NO_SRQ)?;
            w.b.lmr_free(q.memory.lmr.lmr_handle)?;
            w.b.pz_free(q.pz)?;
            nothing(&w.b, w.asynchronous[1])
        })
    }),
];

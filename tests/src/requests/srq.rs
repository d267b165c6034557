//! Shared receive queues (pages it_srq_create, it_srq_query, it_srq_modify, it_srq_free,
//! it_post_recv, it_ep_attributes_t).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::datagrams::ud::{address, datagrams, peer};
use crate::fixture::{End, Fixture, MOMENT, OPEN, PAGE, Pair, SIGNALLED, WAIT, attributes, sevd};
use crate::thread::at_once;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// An endpoint on `b` that takes its Receives from the queue.
fn sharer(f: &Fixture, pz: PzHandle, srq: SrqHandle, with: &EpAttributes) -> Result<End, Failure> {
    sharer_on(&f.b, pz, srq, with)
}

/// An endpoint that takes its Receives from the queue.
pub(crate) fn sharer_on(ia: &Ia, pz: PzHandle, srq: SrqHandle, with: &EpAttributes) -> Result<End, Failure> {
    let request = sevd(ia, EventType::DTO_EVENT_STREAM, 64, 1)?;
    let recv = sevd(ia, EventType::DTO_EVENT_STREAM, 64, 1)?;
    let conn = sevd(ia, EventType::CM_MSG_EVENT_STREAM, 16, 1)?;
    let attr = EpAttributes { rc: RcAttributes { srq, ..with.rc }, ..*with };
    let ep = ia.ep_rc_create(pz, request, recv, conn, EpFlags::SRQ, &attr)?;
    Ok(End { ia: ia.clone(), pz, request, recv, conn, ep })
}

/// A connection whose passive side uses the queue, in a zone of its own.
pub(crate) fn client(f: &Fixture, srq: SrqHandle) -> Result<Pair, Failure> {
    let pair = Pair { a: f.end(&f.a, &attributes())?, b: sharer(f, f.b.pz_create()?, srq, &attributes())? };
    f.connect(&pair.a, &pair.b)?;
    Ok(pair)
}

/// As [`client`], with an active side that gives up soon when there is no Receive.
fn impatient(f: &Fixture, srq: SrqHandle) -> Result<Pair, Failure> {
    let pair = Pair { a: f.end(&f.a, &attributes())?, b: sharer(f, f.b.pz_create()?, srq, &attributes())? };
    let once = ConnAttributes { rnr_retry_count: 1, ..ConnAttributes::default() };
    f.connect_with(&pair.a, &pair.b, Some(&once))?;
    Ok(pair)
}

/// The low watermark.
pub(crate) fn low(f: &Fixture, srq: SrqHandle) -> Result<usize, Failure> {
    Ok(f.b.srq_query(srq, SrqParamMask::LOW_WATERMARK)?.low_watermark)
}

/// Sets the low watermark.
fn arm(f: &Fixture, srq: SrqHandle, low_watermark: usize) -> Result<(), Error> {
    let params = SrqParam { low_watermark, ..SrqParam::default() };
    f.b.srq_modify(srq, SrqParamMask::LOW_WATERMARK, &params)
}

/// Sends an empty message from `a` to `b`, which consumes one Receive; returns the Receive's
/// completion.
pub(crate) fn one(f: &Fixture, pair: &Pair) -> Result<DtoCompletion, Failure> {
    f.a.post_send(pair.a.ep, &[], 1, SIGNALLED)?;
    pair.a.done(1, DtoStatus::Success)?;
    pair.b.reap_recv()
}

/// Posts a Receive for each of these cookies.
pub(crate) fn fill(f: &Fixture, srq: SrqHandle, cookies: core::ops::Range<u64>) -> Outcome {
    for cookie in cookies {
        f.b.post_recv(srq, &[], cookie, DtoFlags::COMPLETION)?;
    }
    Ok(())
}

/// Takes the next event, which must be that of this queue's low watermark.
#[track_caller]
pub(crate) fn expect_watermark_event(f: &Fixture, evd: EvdHandle, srq: SrqHandle) -> Outcome {
    let (event, _) = f.b.evd_wait(evd, WAIT)?;
    let event_number = EventType::ASYNC_AFF_SRQ_LOW_WATERMARK;
    match event == (Event::Affiliated { event_number, evd, cause: AffiliatedCause::Srq(srq) }) {
        true => Ok(()),
        false => Err(Failure::new(alloc::format!("not the low watermark: {event:?}"))),
    }
}

/// Fails if an event arrives.
pub(crate) fn expect_no_event(f: &Fixture, evd: EvdHandle) -> Outcome {
    match f.b.evd_wait(evd, MOMENT) {
        Err(error) if error == Error::TimeoutExpired => Ok(()),
        other => Err(Failure::new(alloc::format!("expected no event, got {other:?}"))),
    }
}

pub(crate) const TESTS: &[Test] = &[
    // A queue holds at least what was asked for, and a query returns its actual sizes.
    test(
        "srq::create_query_free",
        &[
            "it_pz_free V01",
            "it_srq_create B01 B02 L01 L02 S03 IT_ERR_INVALID_PZ IT_ERR_RESOURCE_RECV_DTO",
            "it_srq_create IT_ERR_RESOURCE_RSEG",
            "it_srq_query B01 F01-F06 IT_ERR_INVALID_MASK IT_ERR_INVALID_SRQ",
            "it_srq_free B01 IT_ERR_INVALID_SRQ",
            "it_handle_t F10",
        ],
        |f| {
            check!(f.b.ia_query()?.srq_support);
            let pz = f.b.pz_create()?;
            for (segments, dtos) in [(0, 1), (4, 5), (1, 64), (32, 3)] {
                let srq = f.b.srq_create(pz, segments, dtos)?;
                let all = f.b.srq_query(srq, SrqParamMask::ALL)?;
                check_eq!((all.ia, all.pz, all.low_watermark), (f.b.handle(), pz, 0));
                check!(all.max_recv_dtos >= dtos && all.max_recv_segs >= segments);
                let some = f.b.srq_query(srq, SrqParamMask::MAX_RECV_DTO)?;
                check_eq!(some, SrqParam { max_recv_dtos: all.max_recv_dtos, ..SrqParam::default() });
                // The queue holds exactly that many Receives, each with that many segments.
                let most = alloc::vec![LmrTriplet::default(); all.max_recv_segs];
                for cookie in 0..all.max_recv_dtos as u64 {
                    f.b.post_recv(srq, &most, cookie, DtoFlags::COMPLETION)?;
                }
                refused(f.b.post_recv(srq, &[], 0, DtoFlags::COMPLETION), Error::TooManyPosts)?;
                let more = alloc::vec![LmrTriplet::default(); all.max_recv_segs + 1];
                refused(f.b.post_recv(srq, &more, 0, DtoFlags::COMPLETION), Error::InvalidNumSegments)?;
                check_eq!(f.b.get_handle_type(srq)?, HandleType::Srq);
                f.b.set_consumer_context(srq, 3)?;
                check_eq!(f.b.get_consumer_context(srq)?, 3);
                refused(f.b.pz_free(pz), Error::PzBusy)?;
                check_eq!(f.b.object_counts().srq, 1);
                for bits in [0x40, 0x8000_0000, u32::MAX] {
                    refused(f.b.srq_query(srq, SrqParamMask::from_bits_retain(bits)), Error::InvalidMask)?;
                }
                f.b.srq_free(srq)?;
                refused(f.b.srq_free(srq), Error::InvalidSrq)?;
                refused(f.b.srq_query(srq, SrqParamMask::ALL), Error::InvalidSrq)?;
                refused(f.b.post_recv(srq, &[], 0, DtoFlags::COMPLETION), Error::InvalidSrq)?;
                refused(arm(f, srq, 1), Error::InvalidSrq)?;
            }
            check_eq!(f.b.object_counts().srq, 0);
            let masks = [
                (SrqParamMask::ALL, 1),
                (SrqParamMask::IA, 2),
                (SrqParamMask::PZ, 4),
                (SrqParamMask::MAX_RECV_DTO, 8),
                (SrqParamMask::MAX_RECV_SEG, 0x10),
                (SrqParamMask::LOW_WATERMARK, 0x20),
            ];
            check!(masks.iter().all(|(mask, bits)| mask.bits() == *bits));
            let id = f.setup.b.agent.identity();
            let (dtos, segments) = (id.max_srq_entries as usize, id.max_sges as usize);
            for more in [dtos + 1, usize::MAX] {
                refused(f.b.srq_create(pz, 1, more), Error::ResourceRecvDto)?;
            }
            for more in [segments + 1, usize::MAX] {
                refused(f.b.srq_create(pz, more, 1), Error::ResourceRseg)?;
            }
            let foreign = f.a.pz_create()?;
            refused(f.b.srq_create(foreign, 1, 1), Error::InvalidPz)?;
            refused(f.b.srq_create(PzHandle::NULL, 1, 1), Error::InvalidPz)?;
            let theirs = f.a.srq_create(foreign, 1, 1)?;
            for bad in [SrqHandle::NULL, theirs, SrqHandle::from_raw(pz.as_raw())] {
                refused(f.b.srq_free(bad), Error::InvalidSrq)?;
                refused(f.b.srq_query(bad, SrqParamMask::ALL), Error::InvalidSrq)?;
                refused(arm(f, bad, 1), Error::InvalidSrq)?;
            }
            refused(f.b.post_recv(theirs, &[], 0, DtoFlags::COMPLETION), Error::InvalidSrq)?;
            f.b.pz_free(pz)?;
            refused(f.b.srq_create(pz, 1, 1), Error::InvalidPz)
        },
    ),
    // Creating queues fails with IT_ERR_RESOURCES at some point.
    test("srq::resources_end", &["it_srq_create IT_ERR_RESOURCES"], |f| {
        let pz = f.b.pz_create()?;
        let mut made = 0;
        let refusal = loop {
            match f.b.srq_create(pz, 1, 1) {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
            check!(made <= 1 << 12, "no limit was reached");
        };
        check_eq!((refusal, f.b.object_counts().srq), (Error::Resources, made));
        Ok(())
    }),
    // A message to any of the endpoints consumes one Receive, which completes at that endpoint.
    test(
        "srq::many_endpoints",
        &["it_srq_create B03 B07", "it_post_recv B01 B12 B15 B22", "it_ep_attributes_t F16", "1 O01"],
        |f| {
            let pz = f.b.pz_create()?;
            let srq = f.b.srq_create(pz, 2, 32)?;
            let buffers = f.region(&f.b, pz, PAGE, MemPriv::LOCAL)?;
            let pairs = [client(f, srq)?, client(f, srq)?, client(f, srq)?];
            let source: Vec<_> = pairs
                .iter()
                .map(|pair| f.region(&f.a, pair.a.pz, 64, MemPriv::LOCAL))
                .collect::<Result<_, _>>()?;
            for round in 0..10u8 {
                for i in 0..3 {
                    let segments = [buffers.segment(64 * i, 5), buffers.segment(64 * i + 32, 32)];
                    f.b.post_recv(srq, &segments, i as u64, DtoFlags::COMPLETION)?;
                }
                let mut taken = Vec::new();
                for (i, pair) in pairs.iter().enumerate().rev() {
                    source[i].fill(round + i as u8);
                    f.a.post_send(pair.a.ep, &[source[i].segment(0, 20)], 1, SIGNALLED)?;
                    let done = pair.b.reap_recv()?;
                    check_eq!(
                        (done.event_number, done.dto_status),
                        (EventType::DTO_RC_RECV_CMPL, DtoStatus::Success)
                    );
                    check_eq!((done.ep, done.evd, done.transferred_length), (pair.b.ep, pair.b.recv, 20));
                    let at = 64 * done.cookie as usize;
                    check!(buffers.bytes(at, 5) == source[i].bytes(0, 5));
                    check!(buffers.bytes(at + 32, 15) == source[i].bytes(5, 15));
                    taken.push(done.cookie);
                    pair.a.done(1, DtoStatus::Success)?;
                }
                taken.sort_unstable();
                check_eq!(taken, [0, 1, 2], "each Receive completes once");
            }
            let answer = f.b.ep_query(pairs[0].b.ep, EpParamMask::ALL)?;
            check_eq!(answer.attr.rc.srq, srq);
            check_eq!(
                f.b.ep_query(f.end(&f.b, &attributes())?.ep, EpParamMask::ALL)?.attr.rc.srq,
                SrqHandle::NULL
            );
            // There are no further completions.
            check_eq!((pairs[0].a.idle()?, pairs[0].b.idle()?), ((), ()));
            Ok(())
        },
    ),
    // An endpoint with a shared queue reports no receive queue of its own, and refuses Receives of
    // its own.
    test(
        "srq::attributes_of_endpoints",
        &[
            "it_ep_attributes_t B02-B04 B07 B09 F02 O03 O04",
            "it_ep_rc_create B10 F03 V03 IT_ERR_HARD_HI_WATERMARK IT_ERR_INVALID_SRQ",
            "it_ep_rc_create IT_ERR_SOFT_HI_WATERMARK",
            "it_ep_modify IT_ERR_HARD_HI_WATERMARK IT_ERR_INVALID_RECV_DTO",
            "it_ep_modify IT_ERR_SOFT_HI_WATERMARK",
            "it_ia_info_t F55 F56",
            "it_post_recv B03 O01 V02 IT_ERR_INVALID_SRQ",
            "it_status_t F59 F72",
        ],
        |f| {
            let info = f.b.ia_query()?;
            check!(!info.soft_hi_watermark_support && !info.hard_hi_watermark_support);
            check_eq!(HARD_HI_WATERMARK_DISABLE, usize::MAX);
            let pz = f.b.pz_create()?;
            let srq = f.b.srq_create(pz, 1, 4)?;
            // Attributes without a meaning for such an endpoint are ignored.
            let attr =
                EpAttributes { max_recv_dtos: usize::MAX, max_recv_segments: usize::MAX, ..attributes() };
            let end = sharer(f, pz, srq, &attr)?;
            let answer = f.b.ep_query(end.ep, EpParamMask::ALL)?.attr;
            check_eq!((answer.max_recv_dtos, answer.max_recv_segments, answer.rc.srq), (0, 0, srq));
            check_eq!((answer.rc.soft_hi_watermark, answer.rc.hard_hi_watermark), (0, 0));
            refused(f.b.post_recv(end.ep, &[], 1, DtoFlags::COMPLETION), Error::InvalidSrq)?;
            let modify = |mask, attr| f.b.ep_modify(end.ep, mask, &attr);
            let dtos = EpAttributes { max_recv_dtos: 4, ..attr };
            refused(modify(EpParamMask::MAX_RECV_DTO, dtos), Error::InvalidRecvDto)?;
            refused(modify(EpParamMask::MAX_RECV_SEG, dtos), Error::InvalidMask)?;
            let rc = attr.rc;
            for value in [1, 4, HARD_HI_WATERMARK_DISABLE] {
                let soft = EpAttributes { rc: RcAttributes { soft_hi_watermark: value, ..rc }, ..attr };
                let hard = EpAttributes { rc: RcAttributes { hard_hi_watermark: value, ..rc }, ..attr };
                refused(modify(EpParamMask::SOFT_HI_WATERMARK, soft), Error::SoftHiWatermark)?;
                refused(modify(EpParamMask::HARD_HI_WATERMARK, hard), Error::HardHiWatermark)?;
                for (attr, error) in [(soft, Error::SoftHiWatermark), (hard, Error::HardHiWatermark)] {
                    let attr = EpAttributes { rc: RcAttributes { srq, ..attr.rc }, ..attr };
                    let created = f.b.ep_rc_create(pz, end.request, end.recv, end.conn, EpFlags::SRQ, &attr);
                    refused(created, error)?;
                    // Without the flag all three are ignored.
                    let mine = EpAttributes { max_recv_dtos: 4, max_recv_segments: 1, ..attr };
                    let none = EpFlags::empty();
                    let ep = f.b.ep_rc_create(pz, end.request, end.recv, end.conn, none, &mine)?;
                    let answer = f.b.ep_query(ep, EpParamMask::ALL)?.attr;
                    check_eq!((answer.rc.srq, answer.max_recv_dtos), (SrqHandle::NULL, 4));
                    check_eq!((answer.rc.soft_hi_watermark, answer.rc.hard_hi_watermark), (0, 0));
                    f.b.ep_free(ep)?;
                }
            }
            check_eq!(f.b.ep_query(end.ep, EpParamMask::ALL)?.attr, answer);
            let theirs = f.a.srq_create(f.a.pz_create()?, 1, 1)?;
            let freed = f.b.srq_create(pz, 1, 1)?;
            f.b.srq_free(freed)?;
            for bad in [SrqHandle::NULL, theirs, freed, SrqHandle::from_raw(pz.as_raw())] {
                let attr = EpAttributes { rc: RcAttributes { srq: bad, ..rc }, ..attributes() };
                let created = f.b.ep_rc_create(pz, end.request, end.recv, end.conn, EpFlags::SRQ, &attr);
                refused(created, Error::InvalidSrq)?;
            }
            refused(f.b.post_recv(freed, &[], 1, DtoFlags::COMPLETION), Error::InvalidSrq)?;
            refused(f.b.post_recv(Handle::NULL, &[], 1, DtoFlags::COMPLETION), Error::InvalidEp)?;
            check_eq!(f.b.object_counts().ep, 1);
            Ok(())
        },
    ),
    // A queue cannot be freed while an endpoint uses it, and its Receives survive the endpoint.
    test("srq::busy_while_used", &["it_srq_free B02-B04 IT_ERR_SRQ_BUSY"], |f| {
        let pz = f.b.pz_create()?;
        let srq = f.b.srq_create(pz, 1, 8)?;
        let buffer = f.region(&f.b, pz, 64, MemPriv::LOCAL)?;
        let pair = client(f, srq)?;
        for cookie in 0..4 {
            f.b.post_recv(srq, &[buffer.whole()], cookie, DtoFlags::COMPLETION)?;
        }
        refused(f.b.srq_free(srq), Error::SrqBusy)?;
        check_eq!(one(f, &pair)?.cookie, 0, "the Receive after the refused free");
        f.b.ep_disconnect(pair.b.ep, &[])?;
        pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        refused(f.b.srq_free(srq), Error::SrqBusy)?;
        // The Receives belong to the queue, so freeing the endpoint flushes none of them.
        pair.b.idle()?;
        f.b.ep_free(pair.b.ep)?;
        let other = client(f, srq)?;
        check_eq!(one(f, &other)?.cookie, 1);
        f.b.ep_free(other.b.ep)?;
        f.b.srq_free(srq)?;
        f.b.lmr_free(buffer.lmr)?;
        f.b.pz_free(pz)?;
        Ok(())
    }),
    // A Receive is checked against the zone of the queue, RDMA against the zone of the endpoint.
    test("srq::zones", &["it_srq_create B04-B06"], |f| {
        let pz = f.b.pz_create()?;
        let srq = f.b.srq_create(pz, 1, 8)?;
        let (good, bad) = (client(f, srq)?, client(f, srq)?);
        let shared = f.region(&f.b, pz, 64, OPEN)?;
        let own = f.region(&f.b, good.b.pz, 64, OPEN)?;
        let source = f.region(&f.a, good.a.pz, 64, MemPriv::LOCAL)?;
        source.fill(3);
        // The zone of a Receive's buffer must be the queue's.
        f.b.post_recv(srq, &[shared.whole()], 1, DtoFlags::COMPLETION)?;
        f.a.post_send(good.a.ep, &[source.whole()], 1, SIGNALLED)?;
        good.b.recv_done(1, DtoStatus::Success)?;
        good.a.done(1, DtoStatus::Success)?;
        check!(shared.all() == source.all());
        // The zone of a region for RDMA must be the endpoint's.
        f.a.post_rdma_write(good.a.ep, &[source.whole()], 2, SIGNALLED, own.remote(0), own.context()?)?;
        good.a.done(2, DtoStatus::Success)?;
        let (at, context) = (shared.remote(0), shared.context()?);
        f.a.post_rdma_write(good.a.ep, &[source.whole()], 3, SIGNALLED, at, context)?;
        good.a.done(3, DtoStatus::RemoteAccess)?;
        // So a region of the endpoint's zone cannot be the buffer of a Receive.
        let theirs = f.region(&f.b, bad.b.pz, 64, OPEN)?;
        f.b.post_recv(srq, &[theirs.whole()], 4, DtoFlags::COMPLETION)?;
        let source = f.region(&f.a, bad.a.pz, 64, MemPriv::LOCAL)?;
        source.fill(9);
        f.a.post_send(bad.a.ep, &[source.whole()], 5, SIGNALLED)?;
        bad.b.recv_done(4, DtoStatus::LocalProtection)?;
        bad.a.done(5, DtoStatus::RemoteResponder)?;
        theirs.untouched()
    }),
    // A failed Receive breaks the connection of its endpoint only.
    test("srq::errors_stay_with_their_endpoint", &["it_srq_create S02"], |f| {
        let pz = f.b.pz_create()?;
        let srq = f.b.srq_create(pz, 1, 8)?;
        let buffer = f.region(&f.b, pz, 8, MemPriv::LOCAL)?;
        let pairs = [client(f, srq)?, impatient(f, srq)?, client(f, srq)?];
        // The buffer of the Receive is too short.
        f.b.post_recv(srq, &[buffer.whole()], 1, DtoFlags::COMPLETION)?;
        let source = f.region(&f.a, pairs[0].a.pz, 64, MemPriv::LOCAL)?;
        f.a.post_send(pairs[0].a.ep, &[source.segment(0, 9)], 2, SIGNALLED)?;
        pairs[0].b.recv_done(1, DtoStatus::LocalLength)?;
        pairs[0].a.done(2, DtoStatus::RemoteResponder)?;
        pairs[0].b.broken()?;
        // No Receive is posted for longer than the sender waits.
        f.a.post_send(pairs[1].a.ep, &[], 3, SIGNALLED)?;
        pairs[1].a.done(3, DtoStatus::ReceiverNotReady)?;
        pairs[1].a.broken()?;
        // The third connection is not affected.
        fill(f, srq, 7..8)?;
        check_eq!(one(f, &pairs[2])?.cookie, 7);
        check_eq!(pairs[2].b.state()?, EpStateRc::Connected);
        Ok(())
    }),
    // A message that finds no Receive breaks the connection of its endpoint only.
    test("srq::an_empty_queue_ends_the_target_of_the_send_alone", &["it_srq_create S01"], |f| {
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 8)?;
        let (unlucky, other) = (impatient(f, srq)?, client(f, srq)?);
        f.a.post_send(unlucky.a.ep, &[], 1, SIGNALLED)?;
        unlucky.a.done(1, DtoStatus::ReceiverNotReady)?;
        unlucky.a.broken()?;
        unlucky.b.broken()?;
        check_eq!(other.b.state()?, EpStateRc::Connected);
        fill(f, srq, 4..5)?;
        check_eq!(one(f, &other)?.cookie, 4);
        Ok(())
    }),
    // One Receive more than the queue's size is refused.
    test("srq::more_receives_than_it_was_made_for", &["it_srq_create O02"], |f| {
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 4)?;
        let pair = client(f, srq)?;
        let room = f.b.srq_query(srq, SrqParamMask::MAX_RECV_DTO)?.max_recv_dtos as u64;
        fill(f, srq, 0..room)?;
        refused(f.b.post_recv(srq, &[], room, DtoFlags::COMPLETION), Error::TooManyPosts)?;
        check_eq!(one(f, &pair)?.cookie, 0);
        fill(f, srq, room..room + 1)?;
        for cookie in 1..=room {
            check_eq!(one(f, &pair)?.cookie, cookie);
        }
        Ok(())
    }),
    // Receives that a freed endpoint had consumed must not use up the queue.
    test("srq::receives_of_a_freed_endpoint_come_back", &["it_srq_create O02"], |f| {
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 4)?;
        let room = f.b.srq_query(srq, SrqParamMask::MAX_RECV_DTO)?.max_recv_dtos as u64;
        for round in 0..3 {
            let pair = client(f, srq)?;
            fill(f, srq, 0..room)?;
            for cookie in 0..room {
                f.a.post_send(pair.a.ep, &[], cookie, SIGNALLED)?;
                pair.a.done(cookie, DtoStatus::Success)?;
            }
            check_eq!(pair.a.settled(DtoStatus::Success)?, DtoStatus::Success);
            // Some of the completions are dequeued, the others are lost with the endpoint.
            for cookie in 0..round {
                check_eq!(pair.b.reap_recv()?.cookie, cookie);
            }
            f.b.ep_free(pair.b.ep)?;
            f.a.ep_free(pair.a.ep)?;
        }
        fill(f, srq, 0..room)?;
        refused(f.b.post_recv(srq, &[], room, DtoFlags::COMPLETION), Error::TooManyPosts)?;
        let pair = client(f, srq)?;
        check_eq!(one(f, &pair)?.cookie, 0);
        Ok(())
    }),
    // A Receive that was in progress when its endpoint was freed must not use up the queue.
    test("srq::a_receive_in_progress_comes_back", &["it_srq_create L02", "it_ep_free B04"], |f| {
        const LENGTH: usize = 5 << 19;
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 1)?;
        let pz = f.b.srq_query(srq, SrqParamMask::PZ)?.pz;
        let (sink, other) = (f.region(&f.b, pz, LENGTH, OPEN)?, client(f, srq)?);
        let large = EpAttributes { max_dto_payload_size: LENGTH, ..attributes() };
        for _ in 0..6 {
            sink.buffer.slice().fill(0);
            let pair = Pair { a: f.end(&f.a, &large)?, b: sharer(f, pz, srq, &large)? };
            f.connect(&pair.a, &pair.b)?;
            let source = f.region(&f.a, pair.a.pz, LENGTH, OPEN)?;
            source.fill(1);
            f.b.post_recv(srq, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[source.whole()], 1, SIGNALLED)?;
            // The message arrives in pieces. When its first byte has arrived, the Receive is
            // consumed but most likely not complete.
            check!(at_once(f.platform(), || sink.bytes(0, 1) != [0]), "the message does not arrive");
            f.b.ep_free(pair.b.ep)?;
            // The Receive's entry is free again, whether or not it completed.
            fill(f, srq, 2..3)?;
            check_eq!(one(f, &other)?.cookie, 2);
            f.a.ep_free(pair.a.ep)?;
            f.a.lmr_free(source.lmr)?;
        }
        Ok(())
    }),
    // A datagram endpoint cannot use a shared queue.
    test("srq::not_for_datagrams", &["it_srq_create B08"], |f| {
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 4)?;
        let pair = client(f, srq)?;
        fill(f, srq, 0..1)?;
        // Naming the queue in the attributes of a datagram endpoint has no effect.
        let named = EpAttributes { rc: RcAttributes { srq, ..attributes().rc }, ..datagrams() };
        let (from, to) = (peer(&f.a, &datagrams())?, peer(&f.b, &named)?);
        check!(f.b.ep_query(to.ep, EpParamMask::ALL)?.attr.rc.srq.is_null());
        let addr = address(&f.a, from.pz, &f.b)?;
        let to = DgRemoteEpAddr::IbUd { addr, ep_info: to.info };
        f.a.post_sendto(from.ep, &[], 1, SIGNALLED, &to)?;
        crate::fixture::completion(&f.a, from.request)?;
        // The datagram has consumed no Receive of the queue.
        check_eq!(one(f, &pair)?.cookie, 0);
        Ok(())
    }),
    // A Receive with the direct handle succeeds or fails by the privilege of the endpoint that
    // consumes it.
    test("srq::privilege_of_the_taker", &["it_post_recv A14"], |f| {
        let pz = f.b.pz_create()?;
        let srq = f.b.srq_create(pz, 1, 8)?;
        let plain = EpAttributes { priv_ops_enable: false, ..attributes() };
        for (with, status) in [(attributes(), DtoStatus::Success), (plain, DtoStatus::LocalProtection)] {
            let pair = Pair { a: f.end(&f.a, &attributes())?, b: sharer(f, f.b.pz_create()?, srq, &with)? };
            f.connect(&pair.a, &pair.b)?;
            let (buffer, source) = (f.buffer(PAGE)?, f.region(&f.a, pair.a.pz, 64, MemPriv::LOCAL)?);
            source.fill(1);
            let direct = LmrTriplet::direct(IoAddr(buffer.bus()), 64);
            f.b.post_recv(srq, &[direct], 4, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[source.whole()], 5, SIGNALLED)?;
            pair.b.recv_done(4, status)?;
            let came = crate::fixture::read(&buffer, 0, 64) == source.all();
            check_eq!(came, status == DtoStatus::Success);
        }
        Ok(())
    }),
    // When fewer Receives are left than the watermark, one event is reported, and the watermark has
    // to be armed again.
    test(
        "srq::low_watermark",
        &["it_srq_modify A01 B01 B03 F02 S01 S02 V03", "it_event_t F44", "it_affiliated_event_t F05 F23 F28"],
        |f| {
            check_eq!(EventType::ASYNC_AFF_SRQ_LOW_WATERMARK.as_raw(), 0x4100);
            let aff = sevd(&f.b, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
            let srq = f.b.srq_create(f.b.pz_create()?, 1, 16)?;
            let pair = client(f, srq)?;
            fill(f, srq, 0..8)?;
            // The watermark is not armed, so there is no event.
            one(f, &pair)?;
            expect_no_event(f, aff)?;
            arm(f, srq, 6)?;
            check_eq!(low(f, srq)?, 6);
            // Six Receives are left, which is at the mark and not below it.
            one(f, &pair)?;
            expect_no_event(f, aff)?;
            check_eq!(low(f, srq)?, 6);
            one(f, &pair)?;
            expect_watermark_event(f, aff, srq)?;
            check_eq!(low(f, srq)?, 0);
            // The event comes once, although the number of Receives rises and falls again.
            one(f, &pair)?;
            fill(f, srq, 8..16)?;
            for _ in 0..10 {
                one(f, &pair)?;
            }
            expect_no_event(f, aff)?;
            // It is armed again with the same value, and fewer Receives are left already.
            arm(f, srq, 6)?;
            expect_watermark_event(f, aff, srq)?;
            // The value changes while the watermark is armed.
            fill(f, srq, 16..26)?;
            arm(f, srq, 4)?;
            arm(f, srq, 11)?;
            check_eq!(low(f, srq)?, 11);
            refused(arm(f, srq, 0), Error::SrqLowWatermark)?;
            refused(arm(f, srq, 17), Error::SrqLowWatermark)?;
            check_eq!(low(f, srq)?, 11);
            one(f, &pair)?;
            one(f, &pair)?;
            expect_watermark_event(f, aff, srq)?;
            expect_no_event(f, aff)
        },
    ),
    // Each bad argument is refused, and then nothing is changed.
    test(
        "srq::modify_refusals",
        &[
            "it_srq_modify B02 B04 IT_ERR_INVALID_MASK IT_ERR_INVALID_SRQ",
            "it_srq_modify IT_ERR_SRQ_LOW_WATERMARK",
        ],
        |f| {
            let srq = f.b.srq_create(f.b.pz_create()?, 2, 4)?;
            let before = f.b.srq_query(srq, SrqParamMask::ALL)?;
            let good = SrqParam { max_recv_dtos: 8, low_watermark: 2, ..before };
            for bits in [0x1, 0x2, 0x4, 0x10, 0x40, 0x8000_0000, u32::MAX] {
                for with in [SrqParamMask::empty(), SrqParamMask::LOW_WATERMARK] {
                    let mask = SrqParamMask::from_bits_retain(bits) | with;
                    refused(f.b.srq_modify(srq, mask, &good), Error::InvalidMask)?;
                }
            }
            for low_watermark in [0, before.max_recv_dtos + 1, usize::MAX] {
                refused(arm(f, srq, low_watermark), Error::SrqLowWatermark)?;
            }
            refused(arm(f, SrqHandle::NULL, 1), Error::InvalidSrq)?;
            f.b.srq_modify(srq, SrqParamMask::empty(), &good)?;
            check_eq!(f.b.srq_query(srq, SrqParamMask::ALL)?, before);
            Ok(())
        },
    ),
];

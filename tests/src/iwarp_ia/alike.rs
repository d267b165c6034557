//! What works over iWARP as over InfiniBand, by the same code of the consumer (appendix B, B.1; the
//! pages of the event dispatchers and of shared receive queues).

use privileged_api::*;

use super::open;
use crate::faults::overflow::{overflow_completions, overflowed, pair_with_small_cq};
use crate::fixture::{Fixture, SIGNALLED, evd_param, sevd};
use crate::requests::errors::affiliated;
use crate::requests::srq::{client, expect_no_event, expect_watermark_event, fill, one};
use crate::{Failure, Outcome, Test, check, check_eq, test};

/// Connects, with read depths and private data in both directions, sends a message at once, and
/// disconnects; then asks again and is rejected. The code does not know the transport.
#[track_caller]
fn connections(f: &Fixture) -> Outcome {
    let mut attr = open();
    (attr.rc.rdma_read_ird, attr.rc.rdma_read_ord) = (3, 2);
    let listener = f.listen(&f.b)?;
    for accepts in [true, false] {
        let (active, passive) = (f.end(&f.a, &attr)?, f.end(&f.b, &open())?);
        f.b.post_recv(passive.ep, &[], 7, DtoFlags::COMPLETION)?;
        f.dial(&active, &listener, CnEstFlags::TWO_WAY, b"may I")?;
        let request = listener.request()?;
        check_eq!((request.rdma_read_ird, request.rdma_read_ord), (3, 2));
        check!(request.private_data.as_deref().is_some_and(|data| data.starts_with(b"may I")));
        let answered = |data: Option<PrivateData>| data.is_some_and(|data| data.starts_with(b"so be it"));
        if !accepts {
            f.b.reject(request.cn_est_id, b"so be it")?;
            let Event::ConnPeerReject { private_data, .. } =
                active.expect(EventType::CM_MSG_CONN_PEER_REJECT)?
            else {
                return Err(Failure::new("not rejected"));
            };
            check!(answered(private_data));
            continue;
        }
        f.b.ep_modify(passive.ep, EpParamMask::MAX_ORD, &attr)?;
        f.b.ep_accept(passive.ep, request.cn_est_id, b"so be it")?;
        let Event::ConnEstablished { rdma_read_ird, rdma_read_ord, private_data, .. } =
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?
        else {
            return Err(Failure::new("not established"));
        };
        check_eq!((rdma_read_ird, rdma_read_ord), (open().rc.rdma_read_ird, 2));
        check!(answered(private_data));
        f.a.post_send(active.ep, &[], 8, SIGNALLED)?;
        active.done(8, DtoStatus::Success)?;
        passive.recv_done(7, DtoStatus::Success)?;
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        f.a.ep_disconnect(active.ep, &[])?;
        for end in [&active, &passive] {
            end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        }
    }
    Ok(())
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // The interface for connections that is independent of the transport. RDMA works as soon as the
    // connection is established.
    test("iwarp_ia::the_same_consumer", &["B.1 B01 B03"], |outer| {
        connections(outer)?;
        connections(&outer.over_iwarp()?)
    }),
    // A consumer that marks its own data in a field of fixed size: the whole field arrives, with
    // the zeros behind the data, and what is shorter than the field arrives at its start.
    test("iwarp_ia::fields_of_private_data", &["B.2 B04"], |f| {
        let f = f.over_iwarp()?;
        check_eq!((MAX_PRIV_DATA, f.a.ia_query()?.connect_private_data_len), (256, MAX_PRIV_DATA));
        let listener = f.listen(&f.b)?;
        for length in [1, 5, 255, 256] {
            let end = f.end(&f.a, &open())?;
            let mut field = [0; MAX_PRIV_DATA];
            field[..3].copy_from_slice(&[2, 0xa5, 0xa5]);
            f.dial(&end, &listener, CnEstFlags::TWO_WAY, &field[..length])?;
            let request = listener.request()?;
            let mut got = [0; MAX_PRIV_DATA];
            let data = crate::check::some(request.private_data, "private data")?;
            check_eq!(data.len(), length);
            got[..length].copy_from_slice(&data);
            let mut sent = [0; MAX_PRIV_DATA];
            sent[..length].copy_from_slice(&field[..length]);
            check_eq!(got, sent);
            f.b.reject(request.cn_est_id, &field)?;
            let Event::ConnPeerReject { private_data, .. } =
                end.expect(EventType::CM_MSG_CONN_PEER_REJECT)?
            else {
                return Err(Failure::new("not rejected"));
            };
            check_eq!(private_data.as_deref(), Some(&field[..]));
        }
        Ok(())
    }),
    // A full completion queue causes one event for itself and one for its endpoint.
    test("iwarp_ia::a_full_completion_queue", &["it_affiliated_event_t F29 F30"], |f| {
        let f = f.over_iwarp()?;
        check!(f.a.ia_query()?.dto_evd_overflow_detection);
        let evd = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
        let bystander = f.pair()?;
        let (pair, room) = pair_with_small_cq(&f)?;
        overflow_completions(&pair, room)?;
        overflowed(&f, evd, pair.a.request)?;
        affiliated(&f.a, evd, EventType::ASYNC_AFF_EP_FAILURE, pair.a.ep)?;
        check!(evd_param(&f.a, pair.a.request)?.evd_overflowed);
        pair.a.broken()?;
        pair.b.broken()?;
        check_eq!(bystander.a.state()?, EpStateRc::Connected);
        check!(f.a.evd_dequeue(evd) == Err(Error::QueueEmpty));
        Ok(())
    }),
    // A shared receive queue that has fewer Receives than its low watermark causes one event, and
    // is armed again by hand.
    test("iwarp_ia::a_low_watermark", &["it_affiliated_event_t F42"], |f| {
        let f = f.over_iwarp()?;
        check!(f.b.ia_query()?.srq_support);
        let evd = sevd(&f.b, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
        let srq = f.b.srq_create(f.b.pz_create()?, 1, 16)?;
        let pair = client(&f, srq)?;
        let arm = |low_watermark| {
            let params = SrqParam { low_watermark, ..SrqParam::default() };
            f.b.srq_modify(srq, SrqParamMask::LOW_WATERMARK, &params)
        };
        fill(&f, srq, 0..4)?;
        arm(3)?;
        one(&f, &pair)?;
        expect_no_event(&f, evd)?;
        one(&f, &pair)?;
        expect_watermark_event(&f, evd, srq)?;
        one(&f, &pair)?;
        expect_no_event(&f, evd)?;
        arm(2)?;
        expect_watermark_event(&f, evd, srq)
    }),
];

//! RC endpoints in each of their states: which calls they take, and how they are reset and freed
//! (pages it_ep_state_t, it_ep_reset, it_ep_free).

use alloc::vec::Vec;

use privileged_api::*;

use crate::endpoints::ep::{ONLY_RECEIVES, accepted, nonoperational, posts, query};
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, SIGNALLED, attributes};
use crate::{Failure, Test, check, check_eq, refused, test};

/// An endpoint in each state, and the state. The endpoints that are being connected together come
/// one after the other, the passive one last.
fn in_each_state(f: &Fixture) -> core::result::Result<Vec<(EpStateRc, End)>, Failure> {
    let new = || f.end(&f.a, &attributes());
    let (active1, active2) = (new()?, new()?);
    f.dial(&active1, &f.listen(&f.b)?, CnEstFlags::TWO_WAY, &[])?;
    let listener = f.listen(&f.b)?;
    f.dial(&active2, &listener, CnEstFlags::THREE_WAY, b"living")?;
    let passive = accepted(f, &listener, &active2)?;
    Ok(Vec::from([
        (EpStateRc::Unconnected, new()?),
        (EpStateRc::Active1ConnectionPending, active1),
        (EpStateRc::Active2ConnectionPending, active2),
        (EpStateRc::PassiveConnectionPending, passive),
        (EpStateRc::Connected, f.pair()?.a),
        (EpStateRc::Nonoperational, nonoperational(f)?),
    ]))
}

/// Endpoints that became nonoperational in each of the ways, and the ways: by their own disconnect,
/// by the peer's, by a failed request, by a rejection.
fn nonoperational_in_each_way(f: &Fixture) -> core::result::Result<[(&'static str, End); 4], Failure> {
    let Pair { a: left, b: other } = f.pair()?;
    other.ia.ep_disconnect(other.ep, &[])?;
    left.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
    let failed = f.pair()?.a;
    let nothing = LmrTriplet::new(LmrHandle::NULL, 0, 1);
    failed.ia.post_send(failed.ep, &[nothing], 0, SIGNALLED)?;
    failed.done(0, DtoStatus::LocalProtection)?;
    failed.broken()?;
    let (rejected, listener) = (f.end(&f.a, &attributes())?, f.listen(&f.b)?);
    f.dial(&rejected, &listener, CnEstFlags::TWO_WAY, &[])?;
    f.b.reject(listener.request()?.cn_est_id, &[])?;
    rejected.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
    Ok([("left", nonoperational(f)?), ("was left", left), ("failed", failed), ("rejected", rejected)])
}

pub(crate) const TESTS: &[Test] = &[
    // An unconnected endpoint takes Receives only, and can be neither disconnected nor reset.
    test(
        "ep::unconnected",
        &[
            "it_ep_state_t B05 S02 S08",
            "it_ep_disconnect IT_ERR_INVALID_EP_STATE",
            "it_ep_reset L01 IT_ERR_INVALID_EP_STATE",
            "it_post_send IT_ERR_INVALID_EP_STATE",
            "it_post_rdma_write IT_ERR_INVALID_EP_STATE",
            "it_post_rdma_read IT_ERR_INVALID_EP_STATE",
            "it_status_t F36",
        ],
        |f| {
            let end = f.end(&f.a, &attributes())?;
            check_eq!(posts(&end), ONLY_RECEIVES);
            refused(f.a.ep_disconnect(end.ep, &[]), Error::InvalidEpState)?;
            refused(f.a.ep_reset(end.ep), Error::InvalidEpState)?;
            check_eq!(end.state()?, EpStateRc::Unconnected);
            end.idle()?;
            f.a.ep_free(end.ep)?;
            check_eq!(Error::InvalidEpState as u32, 35);
            Ok(())
        },
    ),
    // Receives can be posted in every state, other requests only while the endpoint is connected or
    // nonoperational.
    test(
        "ep::posts_in_each_state",
        &["it_post_recv S01", "it_post_send S01", "it_post_rdma_write S01", "it_post_rdma_read S01"],
        |f| {
            for (state, end) in in_each_state(f)? {
                check_eq!(end.state()?, state);
                let takes_all = matches!(state, EpStateRc::Connected | EpStateRc::Nonoperational);
                let expected = if takes_all { [Ok(()); 4] } else { ONLY_RECEIVES };
                check_eq!(posts(&end), expected, "{state:?}");
                check_eq!(end.state()?, state);
            }
            Ok(())
        },
    ),
    // An endpoint can be disconnected in every state except when it is unconnected, and again after
    // that.
    test("ep::disconnects_in_each_state", &["it_ep_disconnect B05"], |f| {
        for (state, end) in in_each_state(f)? {
            if state == EpStateRc::Unconnected {
                refused(end.ia.ep_disconnect(end.ep, &[]), Error::InvalidEpState)?;
                check_eq!(end.state()?, state);
                continue;
            }
            for call in ["first", "second"] {
                check_eq!(end.ia.ep_disconnect(end.ep, &[]), Ok(()), "the {call} in {state:?}");
            }
            check_eq!(end.state()?, EpStateRc::Nonoperational, "from {state:?}");
        }
        Ok(())
    }),
    // A nonoperational endpoint takes every request and flushes it, whatever ended its connection.
    test("ep::flushes_whatever_ended_the_connection", &["it_ep_state_t A05"], |f| {
        for (how, end) in nonoperational_in_each_way(f)? {
            check_eq!(end.state()?, EpStateRc::Nonoperational, "{how}");
            check_eq!(posts(&end), [Ok(()); 4], "{how}");
            end.recv_done(1, DtoStatus::Flushed)?;
            for cookie in 2..=4 {
                end.done(cookie, DtoStatus::Flushed)?;
            }
            end.idle()?;
        }
        Ok(())
    }),
    // An endpoint that is being connected takes Receives only, and no second connection request.
    test(
        "ep::while_connecting",
        &["it_ep_state_t F02 S04 S05 S10-S13 S19", "it_ep_connect S01 IT_ERR_INVALID_EP_STATE"],
        |f| {
            let end = f.end(&f.a, &attributes())?;
            let listener = f.listen(&f.b)?;
            f.dial(&end, &listener, CnEstFlags::TWO_WAY, &[])?;
            check_eq!(
                (end.state()?, EpStateRc::Active1ConnectionPending as u32),
                (EpStateRc::Active1ConnectionPending, 1)
            );
            check_eq!(posts(&end), ONLY_RECEIVES);
            refused(f.a.ep_reset(end.ep), Error::InvalidEpState)?;
            let route = crate::fixture::path(&f.a, &listener.address)?;
            let again = f.a.ep_connect(end.ep, &route, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[]);
            refused(again, Error::InvalidEpState)?;
            // The first attempt to connect continues.
            let request = listener.request()?;
            let other = f.end(&f.b, &attributes())?;
            f.b.ep_accept(other.ep, request.cn_est_id, &[])?;
            end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            Ok(())
        },
    ),
    // A connected endpoint takes every request, and can be neither connected nor reset.
    test("ep::connected", &["it_ep_state_t B07 F05 S05 S10"], |f| {
        let pair = f.pair()?;
        check_eq!((pair.a.state()?, EpStateRc::Connected as u32), (EpStateRc::Connected, 4));
        f.b.post_recv(pair.b.ep, &[], 0, DtoFlags::COMPLETION)?;
        check_eq!(posts(&pair.a), [Ok(()); 4]);
        for cookie in 2..=4 {
            pair.a.done(cookie, DtoStatus::Success)?;
        }
        refused(f.a.ep_reset(pair.a.ep), Error::InvalidEpState)?;
        let listener = f.listen(&f.b)?;
        let route = crate::fixture::path(&f.a, &listener.address)?;
        let again = f.a.ep_connect(pair.a.ep, &route, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[]);
        refused(again, Error::InvalidEpState)?;
        check_eq!(pair.a.state()?, EpStateRc::Connected);
        Ok(())
    }),
    // A nonoperational endpoint takes every request and flushes it.
    test(
        "ep::nonoperational",
        &[
            "it_ep_state_t B08 F06 S04 S09 S39 V09",
            "it_post_send A04",
            "it_post_recv A04 V01",
            "it_post_rdma_write A04",
            "it_post_rdma_read A04",
            "it_dto_status_t F07 F20",
            "4.7 B06 V01",
        ],
        |f| {
            let end = nonoperational(f)?;
            check_eq!((end.state()?, EpStateRc::Nonoperational as u32), (EpStateRc::Nonoperational, 5));
            check_eq!(DtoStatus::Flushed.as_raw(), 4);
            check_eq!(posts(&end), [Ok(()); 4]);
            end.recv_done(1, DtoStatus::Flushed)?;
            for cookie in 2..=4 {
                end.done(cookie, DtoStatus::Flushed)?;
            }
            // A flushed request completes with an event even if it did not ask for one.
            f.a.post_send(end.ep, &[], 5, DtoFlags::empty())?;
            end.done(5, DtoStatus::Flushed)?;
            f.a.ep_disconnect(end.ep, &[])?;
            end.idle()?;
            refused(f.a.evd_dequeue(end.conn), Error::QueueEmpty)
        },
    ),
    // A reset makes the endpoint unconnected with all its attributes, so that it can be connected
    // again.
    test("ep::reset", &["it_ep_reset B01 S01", "it_ep_state_t S43"], |f| {
        let end = nonoperational(f)?;
        let rc = RcAttributes { rdma_read_enable: false, ..attributes().rc };
        f.a.ep_modify(end.ep, EpParamMask::RDMA_RD_ENABLE, &EpAttributes { rc, ..attributes() })?;
        let before = query(&end)?.attr;
        f.a.ep_reset(end.ep)?;
        check_eq!(end.state()?, EpStateRc::Unconnected);
        check_eq!(query(&end)?.attr, before);
        check_eq!(posts(&end), ONLY_RECEIVES);
        refused(f.a.ep_reset(end.ep), Error::InvalidEpState)?;
        // After the reset it can be connected again.
        let peer = f.end(&f.b, &attributes())?;
        f.connect(&end, &peer)?;
        f.b.post_send(peer.ep, &[], 9, SIGNALLED)?;
        end.recv_done(1, DtoStatus::Success)?;
        peer.done(9, DtoStatus::Success)
    }),
    // An endpoint can be connected, disconnected and reset many times.
    test(
        "ep::connects_again_and_again",
        &["it_ep_reset S01", "it_ep_state_t S43", "A.it_ep_reset B01"],
        |f| {
            let (a, b) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            let (source, sink) = (f.region(&f.a, a.pz, PAGE, OPEN)?, f.region(&f.b, b.pz, PAGE, OPEN)?);
            for round in 0..10 {
                f.connect(&a, &b)?;
                source.fill(round);
                f.b.post_recv(b.ep, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
                f.a.post_send(a.ep, &[source.whole()], 2, SIGNALLED)?;
                b.recv_done(1, DtoStatus::Success)?;
                a.done(2, DtoStatus::Success)?;
                check_eq!(sink.all(), source.all());
                let (first, second) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
                first.ia.ep_disconnect(first.ep, &[])?;
                for end in [first, second] {
                    end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                    end.ia.ep_reset(end.ep)?;
                }
            }
            Ok(())
        },
    ),
    // A failure that is reported late must not break the endpoint's next connection.
    test("ep::connects_again_after_a_failure", &["it_ep_reset S01", "it_ep_state_t S43"], |f| {
        let end = f.end(&f.a, &attributes())?;
        let own = f.region(&f.a, end.pz, 64, OPEN)?;
        let beyond = LmrTriplet { length: 65, ..own.whole() };
        for _ in 0..12 {
            let peer = f.end(&f.b, &attributes())?;
            f.connect(&end, &peer)?;
            f.a.post_send(end.ep, &[beyond], 1, SIGNALLED)?;
            // The thread that dequeues the failed completion moves the endpoint to its new state.
            // The device reports the failure as well, perhaps later.
            end.done(1, DtoStatus::LocalProtection)?;
            end.broken()?;
            f.a.ep_reset(end.ep)?;
            f.b.ep_free(peer.ep)?;
        }
        // The failure of the first connection causes no event on the next one.
        refused(f.a.evd_dequeue(end.conn), Error::QueueEmpty)
    }),
    // An endpoint can be freed in each state, and causes no event afterwards.
    test("ep::freed_in_every_state", &["it_ep_free B01 B02", "it_ep_state_t B04", "A.it_ep_free B01"], |f| {
        let listener = f.listen(&f.b)?;
        let unconnected = f.end(&f.a, &attributes())?;
        f.a.ep_free(unconnected.ep)?;
        let active1 = f.end(&f.a, &attributes())?;
        f.dial(&active1, &listener, CnEstFlags::TWO_WAY, &[])?;
        f.a.ep_free(active1.ep)?;
        let active2 = f.end(&f.a, &attributes())?;
        f.dial(&active2, &listener, CnEstFlags::THREE_WAY, b"living")?;
        let pending = accepted(f, &listener, &active2)?;
        check_eq!(active2.state()?, EpStateRc::Active2ConnectionPending);
        f.a.ep_free(active2.ep)?;
        f.b.ep_free(pending.ep)?;
        let pair = f.pair()?;
        f.a.ep_free(pair.a.ep)?;
        let gone = nonoperational(f)?;
        f.a.ep_free(gone.ep)?;
        for end in [unconnected, active1, active2, pair.a, gone] {
            refused(f.a.ep_query(end.ep, EpParamMask::STATE), Error::InvalidEp)?;
        }
        check_eq!(f.a.object_counts().ep, 0);
        Ok(())
    }),
    // The peer of a freed endpoint becomes nonoperational, and its messages change no memory.
    test("ep::freed_while_connected", &["it_ep_free A01 B04", "it_ep_state_t S42"], |f| {
        let pair = f.pair()?;
        let sink = f.region(&f.a, pair.a.pz, 64, OPEN)?;
        f.a.post_recv(pair.a.ep, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
        f.a.ep_free(pair.a.ep)?;
        // A free is the consumer's act, so the peer sees a disconnect. What the peer sends is
        // ignored.
        pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        check_eq!(pair.b.state()?, EpStateRc::Nonoperational);
        f.b.post_send(pair.b.ep, &[], 2, SIGNALLED)?;
        pair.b.done(2, DtoStatus::Flushed)?;
        sink.untouched()
    }),
    // After a disconnect, the completion of a marker shows that all earlier completions have been
    // taken.
    test("ep::nothing_is_lost_before_a_free", &["it_ep_free B06-B09", "it_dto_flags_t B01"], |f| {
        let pair = f.pair()?;
        for cookie in 0..10 {
            f.a.post_recv(pair.a.ep, &[], cookie, DtoFlags::COMPLETION)?;
        }
        for cookie in 0..10 {
            let flags = if cookie % 3 == 0 { SIGNALLED } else { DtoFlags::empty() };
            f.a.post_rdma_write(pair.a.ep, &[], cookie, flags, RdmaAddr(0), RmrContext(0))?;
        }
        f.a.ep_disconnect(pair.a.ep, &[])?;
        pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        f.a.post_send(pair.a.ep, &[], 777, DtoFlags::COMPLETION)?;
        // All signalled requests and all failed ones complete before the marker, in their
        // order.
        let mut done = Vec::new();
        while done.last().is_none_or(|done: &DtoCompletion| done.cookie != 777) {
            done.push(pair.a.reap()?);
        }
        let flushed = |done: &&DtoCompletion| done.dto_status == DtoStatus::Flushed;
        let first_flushed = done.iter().find(flushed).map_or(777, |done| done.cookie);
        // Before the first flushed request only those that asked for it complete, then all.
        let expected = (0..10).filter(|n| n % 3 == 0 || *n >= first_flushed).chain([777]);
        check!(done.iter().map(|done| done.cookie).eq(expected), "{done:?}");
        for done in &done {
            let expected = match done.cookie < first_flushed {
                true => DtoStatus::Success,
                false => DtoStatus::Flushed,
            };
            check_eq!(done.dto_status, expected, "request {}", done.cookie);
        }
        for cookie in 0..10 {
            pair.a.recv_done(cookie, DtoStatus::Flushed)?;
        }
        f.a.ep_free(pair.a.ep)?;
        pair.a.idle()
    }),
];

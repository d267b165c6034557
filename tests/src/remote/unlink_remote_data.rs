//! Sends that unlink, in their role as Sends: the source of their data, when they start, and what
//! happens to those that fail (page it_post_send_and_unlink).

use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::fixture::{Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, attributes, evd_param, pattern, sevd};
use crate::remote::unlink_remote::{is_linked, linked};
use crate::requests::errors::impatient;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// A connected pair with a region on each side. The active side's is filled.
fn ready(f: &Fixture) -> Result<(Pair, Region, Region), Failure> {
    let pair = f.pair()?;
    let (own, there) = (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
    own.fill(5);
    Ok((pair, own, there))
}

/// Sends these segments, unlinks a region with the Send, and checks what arrives.
fn arrives(f: &Fixture, pair: &Pair, segments: &[LmrTriplet], cookie: u64, bytes: &[u8]) -> Outcome {
    let sink = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
    let region = linked(f, &pair.b, OPEN)?;
    f.b.post_recv(pair.b.ep, &[sink.whole()], 8, DtoFlags::COMPLETION)?;
    f.a.post_send_and_unlink(pair.a.ep, segments, cookie, SIGNALLED, region.context()?)?;
    let got = pair.b.reap_recv()?;
    check_eq!((got.cookie, got.dto_status), (8, DtoStatus::Success));
    check_eq!((got.transferred_length as usize, got.unlinked_mr_handle), (bytes.len(), region.lmr.into()));
    pair.a.done(cookie, DtoStatus::Success)?;
    check!(sink.bytes(0, bytes.len()) == bytes, "the bytes of the message");
    check!(!is_linked(&f.b, region.lmr)?);
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // The source of a Send that unlinks may overlap, be unaligned, or consist of bus addresses, as
    // that of any other Send.
    test("unlink_remote::sources", &["it_post_send_and_unlink B06 B07 V01 V02"], |f| {
        let (pair, own, _) = ready(f)?;
        // The segments overlap.
        let segments = [own.segment(0, 20), own.segment(10, 20), own.segment(0, 20)];
        let bytes = [own.bytes(0, 20), own.bytes(10, 20), own.bytes(0, 20)].concat();
        arrives(f, &pair, &segments, 0, &bytes)?;
        // The segments need no alignment, regardless of the alignment hint.
        check!(f.a.ia_query()?.dto_alignment_hint > 7);
        for at in [1, 3, 7] {
            arrives(
                f,
                &pair,
                &[own.segment(at, 13), own.segment(2 * at, 1)],
                0,
                &[own.bytes(at, 13), own.bytes(2 * at, 1)].concat(),
            )?;
        }
        // The segments are bus addresses.
        let direct = f.buffer(PAGE)?;
        crate::fixture::write(&direct, 0, &pattern(9, PAGE));
        let io_addr = crate::memory::iobl::map(&f.a, &direct)?;
        let segments = [LmrTriplet::direct(IoAddr(io_addr.0 + 3), 100), own.segment(0, 4)];
        let bytes = [pattern(9, PAGE)[3..103].to_vec(), own.bytes(0, 4)].concat();
        arrives(f, &pair, &segments, u64::MAX, &bytes)
    }),
    // On an unprivileged endpoint, a Send that unlinks fails if its source is the direct handle.
    test("unlink_remote::no_direct_handle_without_privilege", &["it_post_send_and_unlink A12"], |f| {
        let plain = EpAttributes { priv_ops_enable: false, ..attributes() };
        let pair = f.pair_of(&plain, &attributes())?;
        let buffer = f.buffer(PAGE)?;
        let io_addr = crate::memory::iobl::map(&f.a, &buffer)?;
        let region = linked(f, &pair.b, OPEN)?;
        let sink = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
        f.b.post_recv(pair.b.ep, &[sink.whole()], 8, DtoFlags::COMPLETION)?;
        let direct = [LmrTriplet::direct(io_addr, 64)];
        f.a.post_send_and_unlink(pair.a.ep, &direct, 1, SIGNALLED, region.context()?)?;
        pair.a.done(1, DtoStatus::LocalProtection)?;
        pair.a.broken()?;
        sink.untouched()?;
        check!(is_linked(&f.b, region.lmr)?);
        Ok(())
    }),
    // After the completion of a Send that unlinks its buffer can be reused, and the message arrives
    // unchanged.
    test("unlink_remote::the_buffer_is_the_consumers_again", &["it_post_send_and_unlink B11"], |f| {
        let (pair, own, there) = ready(f)?;
        for round in 0..10 {
            let region = linked(f, &pair.b, OPEN)?;
            let sent = pattern(round, PAGE);
            own.write(0, &sent);
            f.b.post_recv(pair.b.ep, &[there.whole()], 8, DtoFlags::COMPLETION)?;
            f.a.post_send_and_unlink(pair.a.ep, &[own.whole()], 1, SIGNALLED, region.context()?)?;
            pair.a.done(1, DtoStatus::Success)?;
            own.buffer.slice().fill(0xee);
            pair.b.recv_done(8, DtoStatus::Success)?;
            check!(there.all() == sent, "round {round}");
            f.b.lmr_free(region.lmr)?;
        }
        Ok(())
    }),
    // A Send that unlinks does not complete before an earlier read, and with a fence does not start
    // before it.
    test("unlink_remote::never_ahead_of_a_read", &["it_post_send_and_unlink B17"], |f| {
        for fence in [DtoFlags::empty(), DtoFlags::BARRIER_FENCE] {
            let (pair, own, there) = ready(f)?;
            let region = linked(f, &pair.b, OPEN)?;
            let sink = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
            there.fill(7);
            f.b.post_recv(pair.b.ep, &[sink.whole()], 8, DtoFlags::COMPLETION)?;
            // The read takes 50 ms. A fenced Send sends the data that was read.
            f.inject_into(&pair.a, Injection::Delay, 1, 50_000_000)?;
            let (at, context) = (there.remote(0), there.context()?);
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 1, SIGNALLED, at, context)?;
            f.a.post_send_and_unlink(pair.a.ep, &[own.whole()], 2, SIGNALLED | fence, region.context()?)?;
            pair.a.done(1, DtoStatus::Success)?;
            pair.a.done(2, DtoStatus::Success)?;
            pair.b.recv_done(8, DtoStatus::Success)?;
            check!(
                fence.is_empty() || sink.all() == there.all(),
                "the Send started before the read completed"
            );
            check!(!is_linked(&f.b, region.lmr)?);
        }
        Ok(())
    }),
    // A Send that unlinks can carry the context of a link that was posted before it; behind a
    // failed link it is not sent.
    test("unlink_remote::behind_a_link", &["it_post_send_and_unlink B18"], |f| {
        let (pair, own, there) = ready(f)?;
        let rmr = f.a.rmr_create(pair.a.pz, RmrType::Narrow)?;
        let (mode, silent) = (AddrMode::Absolute, DtoFlags::empty());
        let link = |region: &Region| {
            let (addr, privs) = (region.buffer.addr(), MemPriv::REMOTE_READ);
            f.a.rmr_link(rmr, region.lmr, addr, 64, mode, privs, pair.a.ep, 1, silent)
        };
        for round in 0..5 {
            // The context that the peer receives is valid when it arrives.
            let region = linked(f, &pair.b, OPEN)?;
            f.b.post_recv(pair.b.ep, &[there.whole()], 8, DtoFlags::COMPLETION)?;
            let context = link(&own)?;
            own.write(100, &context.0.to_ne_bytes());
            f.a.post_send_and_unlink(pair.a.ep, &[own.segment(100, 4)], 2, SIGNALLED, region.context()?)?;
            pair.b.recv_done(8, DtoStatus::Success)?;
            check_eq!(there.bytes(0, 4), context.0.to_ne_bytes());
            f.b.post_rdma_read(pair.b.ep, &[there.segment(64, 8)], round, SIGNALLED, own.remote(0), context)?;
            pair.b.done(round, DtoStatus::Success)?;
            check_eq!(there.bytes(64, 8), own.bytes(0, 8));
            pair.a.done(2, DtoStatus::Success)?;
            f.a.rmr_unlink(rmr, pair.a.ep, 3, silent)?;
            f.b.lmr_free(region.lmr)?;
        }
        // Behind a link that fails, the message is not sent.
        let region = linked(f, &pair.b, OPEN)?;
        let elsewhere = f.region(&f.a, f.a.pz_create()?, PAGE, OPEN)?;
        f.b.post_recv(pair.b.ep, &[there.whole()], 8, DtoFlags::COMPLETION)?;
        link(&elsewhere)?;
        f.a.post_send_and_unlink(pair.a.ep, &[], 2, SIGNALLED, region.context()?)?;
        pair.a.done(1, DtoStatus::RmrOperationFailed)?;
        pair.a.done(2, DtoStatus::Flushed)?;
        pair.b.recv_done(8, DtoStatus::Flushed)?;
        check!(is_linked(&f.b, region.lmr)?);
        Ok(())
    }),
    // A Send that unlinks fails with a transport error if the peer does not answer.
    test("unlink_remote::the_peer_does_not_answer", &["it_post_send_and_unlink A10"], |f| {
        // Two attempts with a timeout of 4.096 us * 2^12 = 17 ms each.
        let hasty = ConnAttributes { retry_count: 1, local_ack_timeout: 12, ..ConnAttributes::default() };
        let pair = impatient(f, hasty)?;
        let region = linked(f, &pair.b, OPEN)?;
        f.b.post_recv(pair.b.ep, &[], 8, DtoFlags::COMPLETION)?;
        f.inject_into(&pair.a, Injection::DropRequests, 1000, 0)?;
        f.a.post_send_and_unlink(pair.a.ep, &[], 1, DtoFlags::empty(), region.context()?)?;
        pair.a.done(1, DtoStatus::Transport)?;
        pair.a.broken()?;
        // The matching Receive completes as well: no part of the message reached it.
        pair.b.recv_done(8, DtoStatus::Flushed)?;
        check!(is_linked(&f.b, region.lmr)?);
        Ok(())
    }),
    // An EVD with as many entries as there can be requests never overflows, even if they fail or
    // are flushed.
    test("unlink_remote::as_many_as_the_evd_holds", &["it_post_send_and_unlink L01"], |f| {
        // Two endpoints fill one EVD to the last entry, whether their requests succeed or fail.
        let both = sevd(&f.a, EventType::DTO_EVENT_STREAM, 32, 1)?;
        let room = evd_param(&f.a, both)?.sevd_queue_size;
        let half = EpAttributes { max_request_dtos: room / 2, ..attributes() };
        let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
        let mut pairs = alloc::vec::Vec::new();
        for _ in 0..2 {
            let recv = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
            let many = EpAttributes { max_recv_dtos: room, ..attributes() };
            let pair = Pair { a: f.end_on(&f.a, &half, both, recv)?, b: f.end(&f.b, &many)? };
            f.connect(&pair.a, &pair.b)?;
            pairs.push(pair);
        }
        for round in 0..3 {
            for pair in &pairs {
                if round == 2 {
                    // The requests that are posted from now on are flushed.
                    f.a.ep_disconnect(pair.a.ep, &[])?;
                }
                for cookie in 0..(room / 2) as u64 {
                    f.b.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
                    let region = if round == 0 { Some(linked(f, &pair.b, OPEN)?) } else { None };
                    match region {
                        Some(region) => {
                            let context = region.context()?;
                            f.a.post_send_and_unlink(pair.a.ep, &[], cookie, SIGNALLED, context)?;
                            pair.b.recv_done(cookie, DtoStatus::Success)?;
                            f.b.lmr_free(region.lmr)?;
                        }
                        None => f.a.post_send(pair.a.ep, &[], cookie, SIGNALLED)?,
                    }
                }
                refused(f.a.post_send(pair.a.ep, &[], 99, SIGNALLED), Error::TooManyPosts)?;
            }
            for _ in 0..room / 2 * 2 {
                let status = crate::fixture::completion(&f.a, both)?.dto_status;
                check_eq!(status, if round == 2 { DtoStatus::Flushed } else { DtoStatus::Success });
            }
            for pair in &pairs {
                while f.b.evd_dequeue(pair.b.recv).is_ok() {}
            }
            refused(f.a.evd_dequeue(both), Error::QueueEmpty)?;
        }
        check!(!evd_param(&f.a, both)?.evd_overflowed);
        refused(f.a.evd_dequeue(affiliated), Error::QueueEmpty)
    }),
];

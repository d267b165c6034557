//! Work requests that fail (pages it_dto_status_t, it_affiliated_event_t, and the asynchronous
//! errors of the posting pages).

use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, WAIT, attributes, is_iwarp, sevd};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, Transport, check, check_eq, refused, test};

/// An operation on local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Send,
    Recv,
    Write,
    Read,
}

const WAYS: [Way; 4] = [Way::Send, Way::Recv, Way::Write, Way::Read];

/// Uses `segment` of `a` in this operation, and checks that it completes with this status and that
/// the connection breaks.
fn fails(f: &Fixture, pair: &Pair, way: Way, segment: LmrTriplet, status: DtoStatus) -> Outcome {
    let peer = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
    let there = (peer.remote(0), peer.context()?);
    let End { ia, ep, .. } = &pair.a;
    match way {
        Way::Send => {
            f.b.post_recv(pair.b.ep, &[peer.whole()], 9, DtoFlags::COMPLETION)?;
            ia.post_send(*ep, &[segment], 1, DtoFlags::empty())?;
        }
        Way::Recv => {
            ia.post_recv(*ep, &[segment], 1, DtoFlags::COMPLETION)?;
            f.b.post_send(pair.b.ep, &[peer.segment(0, 8)], 9, SIGNALLED)?;
        }
        Way::Write => ia.post_rdma_write(*ep, &[segment], 1, DtoFlags::empty(), there.0, there.1)?,
        Way::Read => ia.post_rdma_read(*ep, &[segment], 1, DtoFlags::empty(), there.0, there.1)?,
    }
    let done = if way == Way::Recv { pair.a.reap_recv()? } else { pair.a.reap()? };
    check_eq!((done.cookie, done.dto_status), (1, status), "the completion of a {way:?}");
    pair.a.broken()
}

/// Reads or writes `b`'s memory through this context, and returns the status.
fn remote(
    f: &Fixture,
    pair: &Pair,
    writes: bool,
    at: RdmaAddr,
    context: RmrContext,
) -> Result<DtoStatus, Failure> {
    let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
    own.fill(1);
    match writes {
        true => f.a.post_rdma_write(pair.a.ep, &[own.whole()], 1, DtoFlags::empty(), at, context)?,
        false => f.a.post_rdma_read(pair.a.ep, &[own.whole()], 1, DtoFlags::empty(), at, context)?,
    }
    // A success would cause no event, so a second request follows. Over iWARP the refusal comes
    // after the success.
    f.a.post_rdma_read(pair.a.ep, &[], 2, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
    let done = pair.a.reap()?;
    Ok(match done.cookie {
        1 => done.dto_status,
        _ if writes && is_iwarp(&f.a)? && done.dto_status == DtoStatus::Flushed => DtoStatus::RemoteAccess,
        _ => DtoStatus::Success,
    })
}

/// Reads or writes the peer's region with a valid context and address but without the right to, and
/// checks that the connection breaks.
#[track_caller]
fn denied(f: &Fixture, pair: &Pair, writes: bool, peer: &Region) -> Outcome {
    let status = remote(f, pair, writes, peer.remote(0), peer.context()?)?;
    check_eq!(status, DtoStatus::RemoteAccess);
    pair.a.broken()?;
    peer.untouched()
}

/// Takes the next affiliated event, which must have this number and name this endpoint.
#[track_caller]
pub(crate) fn affiliated(ia: &Ia, evd: EvdHandle, number: EventType, ep: EpHandle) -> Outcome {
    let (event, _) = ia.evd_wait(evd, WAIT)?;
    match event == (Event::Affiliated { event_number: number, evd, cause: AffiliatedCause::Ep(ep) }) {
        true => Ok(()),
        false => Err(Failure::new(alloc::format!("expected {number:?} of {ep:?}, got {event:?}"))),
    }
}

/// A pair whose active side has these connection attributes, such as few retries.
pub(crate) fn impatient(f: &Fixture, attributes_of: ConnAttributes) -> Result<Pair, Failure> {
    let pair = Pair { a: f.end(&f.a, &attributes())?, b: f.end(&f.b, &attributes())? };
    f.connect_with(&pair.a, &pair.b, Some(&attributes_of))?;
    Ok(pair)
}

pub(crate) const TESTS: &[Test] = &[
    // A segment that leaves its region fails each operation and breaks the connection.
    test(
        "errors::segments_outside_of_their_region",
        &[
            "it_dto_status_t A03 F06 F19 S01",
            "it_post_rdma_read A01 A19 A20",
            "it_post_send A01",
            "it_post_recv A01",
            "it_post_rdma_write A01",
            "it_ep_state_t A02 S41",
            "it_cm_msg_events F29 S06",
            "it_event_t F23",
            "it_dto_flags_t F01",
            "4.7 B03 S01",
        ],
        |f| {
            check_eq!(
                (DtoStatus::LocalProtection.as_raw(), EventType::CM_MSG_CONN_BROKEN.as_raw()),
                (3, 0x2006)
            );
            for way in WAYS {
                for (before, length) in [(0, 65), (1, 8), (-1, 8)] {
                    let pair = f.pair()?;
                    let region = f.region(&f.a, pair.a.pz, 64, OPEN)?;
                    let addr = match before {
                        -1 => region.buffer.addr() as u64 - 1,
                        before => (region.buffer.addr() + 64 - 8 + before as usize) as u64,
                    };
                    let addr = if length == 65 { region.buffer.addr() as u64 } else { addr };
                    let segment = LmrTriplet::new(region.lmr, addr, length);
                    fails(f, &pair, way, segment, DtoStatus::LocalProtection)?;
                    f.a.ep_free(pair.a.ep)?;
                    f.b.ep_free(pair.b.ep)?;
                    f.a.lmr_free(region.lmr)?;
                }
            }
            Ok(())
        },
    ),
    // A segment whose end wraps around must not pass for one within its region.
    test("errors::segments_that_wrap", &["it_dto_status_t A03"], |f| {
        for way in [Way::Send, Way::Write, Way::Read] {
            for (addr, length) in [(u64::MAX, 8), (u64::MAX - 3, 8), (0, 8)] {
                let pair = f.pair()?;
                let region = f.region(&f.a, pair.a.pz, 64, OPEN)?;
                let segment = LmrTriplet::new(region.lmr, addr, length);
                fails(f, &pair, way, segment, DtoStatus::LocalProtection)?;
            }
        }
        Ok(())
    }),
    // A segment whose handle is null, freed, foreign or made up fails each operation.
    test(
        "errors::segments_of_no_region",
        &["it_dto_status_t A01", "it_post_rdma_read A15", "4.7 B02", "4.8 B01"],
        |f| {
            for way in WAYS {
                let pair = f.pair()?;
                let freed = f.region(&f.a, pair.a.pz, 64, OPEN)?;
                f.a.lmr_free(freed.lmr)?;
                fails(f, &pair, way, freed.segment(0, 8), DtoStatus::LocalProtection)?;
                let pair = f.pair()?;
                let foreign = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                fails(f, &pair, way, foreign.segment(0, 8), DtoStatus::LocalProtection)?;
                for handle in [LmrHandle::NULL, LmrHandle::from_raw(0x1234_5678_9abc_def0)] {
                    let pair = f.pair()?;
                    let segment = LmrTriplet::new(handle, freed.buffer.addr() as u64, 8);
                    fails(f, &pair, way, segment, DtoStatus::LocalProtection)?;
                    f.a.ep_free(pair.a.ep)?;
                    f.b.ep_free(pair.b.ep)?;
                }
            }
            Ok(())
        },
    ),
    // A segment of a region in another zone fails each operation.
    test(
        "errors::segments_of_another_zone",
        &["it_dto_status_t A04", "it_pz_create A01", "it_post_rdma_read A17", "it_ep_rc_create B04", "1 B05"],
        |f| {
            let other = f.a.pz_create()?;
            let region = f.region(&f.a, other, 64, OPEN)?;
            for way in WAYS {
                let pair = f.pair()?;
                fails(f, &pair, way, region.segment(0, 8), DtoStatus::LocalProtection)?;
            }
            region.untouched()
        },
    ),
    // A segment of a region without local write fails each operation that writes to it.
    test(
        "errors::segments_without_the_right",
        &["it_dto_status_t A06", "it_post_recv B06", "it_post_rdma_read A16", "it_mem_priv_t F02"],
        |f| {
            for way in [Way::Recv, Way::Read] {
                let pair = f.pair()?;
                let region = f.region(&f.a, pair.a.pz, 64, MemPriv::LOCAL_READ | MemPriv::REMOTE_READ)?;
                fails(f, &pair, way, region.segment(0, 8), DtoStatus::LocalProtection)?;
                region.untouched()?;
            }
            Ok(())
        },
    ),
    // A read or write that leaves the peer's region by one byte, or wraps around, fails and changes
    // nothing.
    test(
        "errors::remote_memory_out_of_bounds",
        &["it_post_rdma_write A10 A12", "it_post_rdma_read A10 A13", "it_dto_status_t A24 F10 F23"],
        |f| {
            check_eq!(DtoStatus::RemoteAccess.as_raw(), 7);
            for writes in [true, false] {
                for offset in [1_i64, 64, -1, 63, 1 << 40] {
                    let pair = f.pair()?;
                    let peer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                    let at = RdmaAddr(hton64((peer.buffer.addr() as i64 + offset) as u64));
                    let status = remote(f, &pair, writes, at, peer.context()?)?;
                    check_eq!(status, DtoStatus::RemoteAccess, "{offset} bytes off");
                    pair.a.broken()?;
                    peer.untouched()?;
                    f.a.ep_free(pair.a.ep)?;
                    f.b.ep_free(pair.b.ep)?;
                }
                for at in [u64::MAX, u64::MAX - 63, 0] {
                    let pair = f.pair()?;
                    let peer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                    let status = remote(f, &pair, writes, RdmaAddr(hton64(at)), peer.context()?)?;
                    check_eq!(status, DtoStatus::RemoteAccess, "at {at:#x}");
                    peer.untouched()?;
                }
            }
            Ok(())
        },
    ),
    // A read or write with a context of no region fails.
    test(
        "errors::contexts_of_no_region",
        &["it_post_rdma_write A05", "it_post_rdma_read A05", "it_dto_status_t A21"],
        |f| {
            for writes in [true, false] {
                let pair = f.pair()?;
                let peer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                let good = peer.context()?;
                for context in
                    [0, u32::MAX, good.0 ^ 1, good.0 ^ 0x0100_0000, good.0.swap_bytes() ^ 0x8000_0000]
                {
                    let pair = f.pair()?;
                    let status = remote(f, &pair, writes, peer.remote(0), RmrContext(context))?;
                    check_eq!(status, DtoStatus::RemoteAccess, "context {context:#x}");
                    pair.a.broken()?;
                    f.a.ep_free(pair.a.ep)?;
                    f.b.ep_free(pair.b.ep)?;
                }
                peer.untouched()?;
            }
            Ok(())
        },
    ),
    // A read or write of a region in another zone than the peer's endpoint fails.
    test(
        "errors::remote_memory_of_another_zone",
        &[
            "it_post_rdma_write A07",
            "it_post_rdma_read A07",
            "it_dto_status_t A22",
            "it_pz_create A03",
            "it_ep_rc_create B04",
            "1 B05",
        ],
        |f| {
            let other = f.b.pz_create()?;
            let peer = f.region(&f.b, other, 64, OPEN)?;
            for writes in [true, false] {
                let pair = f.pair()?;
                denied(f, &pair, writes, &peer)?;
            }
            Ok(())
        },
    ),
    // A read or write without the remote privilege for it fails.
    test(
        "errors::remote_memory_without_the_right",
        &["it_post_rdma_write A06 B08", "it_post_rdma_read A06 B06", "it_dto_status_t A25"],
        |f| {
            for (writes, privs) in [
                (true, MemPriv::LOCAL | MemPriv::REMOTE_READ),
                (false, MemPriv::LOCAL | MemPriv::REMOTE_WRITE),
            ] {
                let pair = f.pair()?;
                let peer = f.region(&f.b, pair.b.pz, 64, privs)?;
                denied(f, &pair, writes, &peer)?;
            }
            Ok(())
        },
    ),
    // A read or write is refused by an endpoint that forbids it, whatever the region allows.
    test(
        "errors::endpoints_closed_to_rdma",
        &[
            "A.it_ep_rc_create B01",
            "it_post_rdma_write A09",
            "it_post_rdma_read A09",
            "it_dto_status_t A26",
            "it_ep_attributes_t F10 F11",
        ],
        |f| {
            for writes in [true, false] {
                let rc =
                    RcAttributes { rdma_read_enable: writes, rdma_write_enable: !writes, ..attributes().rc };
                let pair = f.pair_of(&attributes(), &EpAttributes { rc, ..attributes() })?;
                let peer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                denied(f, &pair, writes, &peer)?;
            }
            Ok(())
        },
    ),
    // A violation by the peer causes an asynchronous event for the endpoint that served it, and
    // breaks the connection.
    test(
        "errors::the_responder_gets_an_asynchronous_event",
        &[
            "it_post_rdma_read A02 A11",
            "it_post_recv A03",
            "it_post_send A02",
            "it_post_rdma_write A02 A11",
            "it_affiliated_event_t F04 F13 F27",
            "it_ep_state_t S42",
            "it_event_t F34",
            "4.7 B04 S02",
            "A.it_cm_msg_events A01",
        ],
        |f| {
            check_eq!(EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION.as_raw(), 0x4020);
            let evd = sevd(&f.b, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
            for writes in [true, false] {
                let pair = f.pair()?;
                let peer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                f.b.post_recv(pair.b.ep, &[], 5, DtoFlags::COMPLETION)?;
                let status = remote(f, &pair, writes, peer.remote(1), peer.context()?)?;
                check_eq!(status, DtoStatus::RemoteAccess);
                let number = match f.setup.transport {
                    Transport::Iwarp if !writes => EventType::ASYNC_AFF_EP_L_IRRQ_ACCESS_VIOLATION,
                    _ => EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION,
                };
                affiliated(&f.b, evd, number, pair.b.ep)?;
                pair.b.broken()?;
                pair.b.recv_done(5, DtoStatus::Flushed)?;
            }
            Ok(())
        },
    ),
    // The connection event comes even if the IA has no EVD for asynchronous events.
    test(
        "errors::broken_is_reported_without_asynchronous_evds",
        &["A.it_cm_msg_events B01", "it_cm_msg_events B02"],
        |f| {
            let pair = f.pair()?;
            let peer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
            remote(f, &pair, true, peer.remote(1), peer.context()?)?;
            for end in [&pair.a, &pair.b] {
                end.broken()?;
                end.ia.ep_disconnect(end.ep, &[])?;
                refused(end.ia.evd_dequeue(end.conn), Error::QueueEmpty)?;
            }
            Ok(())
        },
    ),
    // A Send without a Receive fails when the retries are used up.
    test("errors::no_receive", &["it_dto_status_t F13 F26", "it_event_t F35"], |f| {
        check_eq!(DtoStatus::ReceiverNotReady.as_raw(), 10);
        check_eq!(EventType::ASYNC_AFF_EP_L_RECV_ACCESS_VIOLATION.as_raw(), 0x4021);
        // No attempt finds a Receive, and there are few retries.
        let pair = impatient(f, ConnAttributes { rnr_retry_count: 1, ..ConnAttributes::default() })?;
        f.a.post_send(pair.a.ep, &[], 1, SIGNALLED)?;
        pair.a.done(1, DtoStatus::ReceiverNotReady)?;
        pair.a.broken()
    }),
    // A Send waits for a Receive that is posted within its retries.
    test("errors::a_receive_that_comes_late", &["it_ep_connect F08"], |f| {
        Need::Waiting.of(&f.a)?;
        let pair = f.pair()?;
        let sink = f.region(&f.b, pair.b.pz, 64, OPEN)?;
        let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
        source.fill(3);
        f.a.post_send(pair.a.ep, &[source.whole()], 1, SIGNALLED)?;
        f.b.post_recv(pair.b.ep, &[sink.whole()], 2, DtoFlags::COMPLETION)?;
        pair.b.recv_done(2, DtoStatus::Success)?;
        pair.a.done(1, DtoStatus::Success)?;
        check!(sink.all() == source.all());
        Ok(())
    }),
    // A message that is too long for its Receive fails on both sides and writes nothing behind the
    // buffer.
    test(
        "errors::a_message_longer_than_its_receive",
        &["it_post_send A08 A09", "it_post_recv A08 A09", "it_dto_status_t A27 B02 F04 F11 F17 F24"],
        |f| {
            check_eq!((DtoStatus::LocalLength.as_raw(), DtoStatus::RemoteResponder.as_raw()), (1, 8));
            for (room, len) in [(0, 1), (63, 64), (64, PAGE), (4095, 4096)] {
                let pair = f.pair()?;
                let source = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
                let sink = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
                source.fill(1);
                f.b.post_recv(pair.b.ep, &[sink.segment(0, room)], 1, DtoFlags::COMPLETION)?;
                f.b.post_recv(pair.b.ep, &[sink.segment(0, room)], 2, DtoFlags::COMPLETION)?;
                f.a.post_send(pair.a.ep, &[source.segment(0, len)], 3, SIGNALLED)?;
                pair.b.recv_done(1, DtoStatus::LocalLength)?;
                pair.b.recv_done(2, DtoStatus::Flushed)?;
                pair.a.done(3, DtoStatus::RemoteResponder)?;
                pair.a.broken()?;
                pair.b.broken()?;
                check!(
                    sink.bytes(room, PAGE - room).iter().all(|&byte| byte == 0),
                    "bytes behind the buffer were written"
                );
            }
            Ok(())
        },
    ),
    // A message above the endpoint's maximum payload fails, on the way out and on the way in.
    test(
        "errors::longer_than_the_endpoint_takes",
        &["A.it_ep_attributes_t O02", "it_dto_status_t F02 F03", "it_ep_attributes_t F03"],
        |f| {
            let short = EpAttributes { max_dto_payload_size: 100, ..attributes() };
            for way in [Way::Send, Way::Write, Way::Read] {
                // A message of exactly the maximum length is accepted.
                let pair = f.pair_of(&short, &attributes())?;
                let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
                let peer = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
                let there = (peer.remote(0), peer.context()?);
                f.a.post_rdma_write(pair.a.ep, &[own.segment(0, 100)], 5, SIGNALLED, there.0, there.1)?;
                pair.a.done(5, DtoStatus::Success)?;
                fails(f, &pair, way, own.segment(0, 101), DtoStatus::LocalLength)?;
                // A message that is much too long.
                let pair = f.pair_of(&short, &attributes())?;
                let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
                fails(f, &pair, way, own.segment(0, PAGE), DtoStatus::LocalLength)?;
            }
            // An incoming message: the peer's endpoint may send more than this endpoint accepts.
            let pair = f.pair_of(&attributes(), &short)?;
            let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
            let sink = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
            f.b.post_recv(pair.b.ep, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[own.segment(0, 101)], 2, SIGNALLED)?;
            pair.b.recv_done(1, DtoStatus::LocalLength)?;
            pair.a.done(2, DtoStatus::RemoteResponder)
        },
    ),
    // Requests before a failed one are executed, those behind it are flushed without effect.
    test(
        "errors::what_is_behind_a_failure_is_flushed",
        &[
            "it_post_send A03",
            "it_post_recv A02",
            "it_post_rdma_write A03",
            "it_post_rdma_read A03",
            "it_ep_state_t A04 A06",
            "it_dto_status_t F07",
            "it_dto_flags_t B01",
            "4.7 B05",
        ],
        |f| {
            let pair = f.pair()?;
            let (own, peer) = (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, OPEN)?);
            own.fill(1);
            let there = (peer.remote(0), peer.context()?);
            for cookie in 0..4 {
                f.a.post_recv(pair.a.ep, &[], cookie, DtoFlags::COMPLETION)?;
            }
            let bad = LmrTriplet::new(own.lmr, own.buffer.addr() as u64, 65);
            let flags = DtoFlags::empty();
            f.a.post_rdma_write(pair.a.ep, &[own.segment(0, 8)], 10, flags, there.0, there.1)?;
            f.a.post_rdma_write(pair.a.ep, &[bad], 11, flags, there.0, there.1)?;
            f.a.post_rdma_write(pair.a.ep, &[own.segment(0, 64)], 12, flags, there.0, there.1)?;
            f.a.post_send(pair.a.ep, &[own.whole()], 13, flags)?;
            f.a.post_rdma_read(pair.a.ep, &[own.whole()], 14, flags, there.0, there.1)?;
            pair.a.done(11, DtoStatus::LocalProtection)?;
            for cookie in 12..=14 {
                pair.a.done(cookie, DtoStatus::Flushed)?;
            }
            for cookie in 0..4 {
                pair.a.recv_done(cookie, DtoStatus::Flushed)?;
            }
            pair.a.broken()?;
            // The first write was executed, the third one was not.
            check!(f.arrives(|| peer.bytes(0, 8) == own.bytes(0, 8)));
            check!(peer.bytes(8, 56).iter().all(|&byte| byte == 0));
            pair.a.idle()
        },
    ),
    // A request without an answer fails with a transport error when the retries are used up.
    test(
        "errors::the_peer_does_not_answer",
        &[
            "it_post_send A11",
            "it_post_rdma_write A14",
            "it_post_rdma_read A22",
            "it_dto_status_t A28 F12 F25",
            "it_ep_connect F07 F10",
        ],
        |f| {
            check_eq!(DtoStatus::Transport.as_raw(), 9);
            // Two attempts with a timeout of 4.096 us * 2^12 = 17 ms each.
            let hasty = ConnAttributes { retry_count: 1, local_ack_timeout: 12, ..ConnAttributes::default() };
            type Post = fn(&Ia, EpHandle, LmrTriplet, RdmaAddr, RmrContext) -> privileged_api::Result<()>;
            let posts: [Post; 4] = [
                |ia, ep, own, _, _| ia.post_send(ep, &[own], 1, SIGNALLED),
                |ia, ep, own, at, context| ia.post_rdma_write(ep, &[own], 1, SIGNALLED, at, context),
                |ia, ep, own, at, context| ia.post_rdma_read(ep, &[own], 1, SIGNALLED, at, context),
                |ia, ep, own, at, context| {
                    ia.post_atomic(ep, AtomicOp::FetchAndAdd, 1, 0, &own, 1, SIGNALLED, at, context)
                },
            ];
            for post in posts {
                let pair = impatient(f, hasty)?;
                let own = f.region(&f.a, pair.a.pz, 8, OPEN)?;
                let peer = f.region(&f.b, pair.b.pz, 8, OPEN)?;
                f.b.post_recv(pair.b.ep, &[peer.whole()], 2, DtoFlags::COMPLETION)?;
                drop_requests(f, &pair)?;
                post(&f.a, pair.a.ep, own.whole(), peer.remote(0), peer.context()?)?;
                pair.a.done(1, DtoStatus::Transport)?;
                pair.a.broken()?;
                peer.untouched()?;
            }
            Ok(())
        },
    ),
    // A consumer that gets the event for a broken connection finds the endpoint nonoperational.
    test("errors::the_state_changes_before_the_event", &["it_ep_state_t B02 S41"], |f| {
        for _ in 0..10 {
            let pair = f.pair()?;
            let own: Region = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let bad = LmrTriplet::new(own.lmr, 0, 8);
            f.a.post_send(pair.a.ep, &[bad], 1, SIGNALLED)?;
            pair.a.expect(EventType::CM_MSG_CONN_BROKEN)?;
            check_eq!(pair.a.state()?, EpStateRc::Nonoperational);
            f.a.ep_reset(pair.a.ep)?;
            check_eq!(pair.a.state()?, EpStateRc::Unconnected);
        }
        Ok(())
    }),
    // A lost request is repeated, and each request completes and arrives once.
    test(
        "errors::a_connection_that_survives_a_lost_request",
        &["it_ep_connect F07", "it_post_send B11"],
        |f| {
            let hasty = ConnAttributes { retry_count: 7, local_ack_timeout: 12, ..ConnAttributes::default() };
            let pair = impatient(f, hasty)?;
            let source = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let sink = f.region(&f.b, pair.b.pz, 64, OPEN)?;
            source.fill(1);
            for what in [Injection::DropRequests, Injection::DropResponses] {
                sink.buffer.slice().fill(0);
                f.b.post_recv(pair.b.ep, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
                drop_packets(f, &pair, what, 2)?;
                f.a.post_send(pair.a.ep, &[source.whole()], 2, SIGNALLED)?;
                pair.b.recv_done(1, DtoStatus::Success)?;
                pair.a.done(2, DtoStatus::Success)?;
                check!(sink.all() == source.all());
            }
            // Each completes once, regardless of how often it was sent.
            pair.b.idle()
        },
    ),
];

/// Drops all further requests of the pair's active side.
fn drop_requests(f: &Fixture, pair: &Pair) -> Outcome {
    drop_packets(f, pair, Injection::DropRequests, 1000)
}

/// Drops the next `count` packets of a kind on the active side's queue pair.
fn drop_packets(f: &Fixture, pair: &Pair, what: Injection, count: u32) -> Outcome {
    f.inject_into(&pair.a, what, count, 0)
}

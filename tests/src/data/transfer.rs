//! Data transfer (pages it_post_send, it_post_recv, it_post_rdma_write, it_post_rdma_read,
//! it_dto_flags_t, it_dto_events, it_lmr_triplet_t).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, attributes, sevd};
use crate::transport::Need;
use crate::{Failure, Test, check, check_eq, refused, test};

/// A connected pair with a region of this length on each side. `a`'s region is filled.
pub(crate) fn ready(f: &Fixture, len: usize) -> Result<(Pair, Region, Region), Failure> {
    let pair = f.pair()?;
    let (a, b) = (f.region(&f.a, pair.a.pz, len, OPEN)?, f.region(&f.b, pair.b.pz, len, OPEN)?);
    a.fill(1);
    Ok((pair, a, b))
}

/// The four operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Send,
    Recv,
    Write,
    Read,
}

/// Posts this operation. `to` is used by reads and writes only.
pub(crate) fn post(
    end: &End,
    way: Way,
    segments: &[LmrTriplet],
    cookie: u64,
    flags: DtoFlags,
    to: (RdmaAddr, RmrContext),
) -> Result<(), Error> {
    let End { ia, ep, .. } = end;
    match way {
        Way::Send => ia.post_send(*ep, segments, cookie, flags),
        Way::Recv => ia.post_recv(*ep, segments, cookie, flags),
        Way::Write => ia.post_rdma_write(*ep, segments, cookie, flags, to.0, to.1),
        Way::Read => ia.post_rdma_read(*ep, segments, cookie, flags, to.0, to.1),
    }
}

/// A remote address and context of no memory, for reads and writes of no bytes.
pub(crate) const NOWHERE: (RdmaAddr, RmrContext) = (RdmaAddr(0), RmrContext(0));

/// Cuts `0..len` into `count` segments of unequal lengths, none of them aligned.
pub(crate) fn cuts(len: usize, count: usize) -> Vec<(usize, usize)> {
    let mut at = 0;
    (0..count)
        .map(|i| {
            let piece =
                if i + 1 == count { len - at } else { ((len - at) / (count - i)).saturating_sub(i % 3) };
            let cut = (at, piece);
            at += piece;
            cut
        })
        .collect()
}

pub(crate) const TESTS: &[Test] = &[
    // A Send arrives in one Receive, with its data and length, and each request completes once.
    test(
        "data::send_and_receive",
        &[
            "it_post_send B01 B02 B08 B10 B12 B14",
            "it_post_recv B02 B10 B14-B16 B18",
            "it_dto_events B02 F01 F02 F13-F16",
            "it_dto_cookie_t F01",
            "it_dto_status_t F01 F16",
            "it_event_t F04 F05 F58",
            "4.1 B01",
            "it_status_t B02 B03",
            "1 B06",
        ],
        |f| {
            let (pair, source, sink) = ready(f, PAGE)?;
            for (round, len) in [1, 2, 63, 64, 65, 1023, 1024, 1025, 4095, 4096].into_iter().enumerate() {
                sink.buffer.slice().fill(0);
                let (mine, theirs) = (u64::MAX - round as u64, round as u64);
                let mut segments = [sink.segment(0, PAGE)];
                f.b.post_recv(pair.b.ep, &segments, theirs, DtoFlags::COMPLETION)?;
                segments[0] = source.segment(PAGE - len, len);
                f.a.post_send(pair.a.ep, &segments, mine, SIGNALLED)?;
                // The consumer may reuse the segment list as soon as the post has returned.
                segments[0] = LmrTriplet::default();
                let got = pair.b.reap_recv()?;
                let expected = DtoCompletion {
                    event_number: EventType::DTO_RC_RECV_CMPL,
                    dto_status: DtoStatus::Success,
                    evd: pair.b.recv,
                    ep: pair.b.ep,
                    cookie: theirs,
                    transferred_length: len as u32,
                    ..DtoCompletion::default()
                };
                check_eq!(got, expected, "the completion of {len} bytes");
                let sent = pair.a.reap()?;
                check_eq!(
                    (sent.event_number, sent.dto_status),
                    (EventType::DTO_SEND_CMPL, DtoStatus::Success)
                );
                check_eq!((sent.cookie, sent.ep, sent.evd), (mine, pair.a.ep, pair.a.request));
                check!(sink.bytes(0, len) == source.bytes(PAGE - len, len));
                check!(
                    sink.bytes(len, PAGE - len).iter().all(|&byte| byte == 0),
                    "bytes behind the message were written"
                );
                let _ = segments;
            }
            check_eq!((EventType::DTO_SEND_CMPL.as_raw(), EventType::DTO_RC_RECV_CMPL.as_raw()), (1, 2));
            pair.a.idle()?;
            pair.b.idle()
        },
    ),
    // A write changes exactly the bytes that it names, and causes no event at the peer.
    test(
        "data::rdma_write",
        &[
            "it_post_rdma_write B01 B02 B09 B11 B14 F01",
            "it_make_rdma_addr_absolute B02",
            "it_dto_events F03",
            "it_event_t F07",
            "it_lmr_create B24 B26",
        ],
        |f| {
            let (pair, source, sink) = ready(f, 2 * PAGE)?;
            for (cookie, (at, len)) in
                [(0, 1), (1, 3), (7, 1024), (4095, 2), (0, 2 * PAGE), (8191, 1)].into_iter().enumerate()
            {
                sink.buffer.slice().fill(0);
                let cookie = cookie as u64 + 100;
                let to = (sink.remote(at), sink.context()?);
                post(&pair.a, Way::Write, &[source.segment(0, len)], cookie, SIGNALLED, to)?;
                let done = pair.a.reap()?;
                check_eq!(
                    (done.event_number, done.dto_status),
                    (EventType::DTO_RDMA_WRITE_CMPL, DtoStatus::Success)
                );
                check_eq!((done.cookie, done.ep), (cookie, pair.a.ep));
                check!(f.arrives(|| sink.bytes(at, len) == source.bytes(0, len)));
                check!(sink.bytes(0, at).iter().all(|&byte| byte == 0), "before");
                check!(sink.bytes(at + len, 2 * PAGE - at - len).iter().all(|&byte| byte == 0), "behind");
            }
            check_eq!(EventType::DTO_RDMA_WRITE_CMPL.as_raw(), 4);
            pair.b.idle()
        },
    ),
    // Each read brings exactly the bytes that it names, completes with its own cookie, and causes
    // no event at the peer.
    test(
        "data::rdma_read",
        &[
            "it_post_rdma_read B02 B09 B11-B13 B20 F01",
            "it_make_rdma_addr_absolute B02",
            "it_dto_events F04",
            "it_event_t F08",
        ],
        |f| {
            let (pair, sink, source) = ready(f, 2 * PAGE)?;
            source.fill(9);
            for (cookie, (at, len)) in
                [(0, 1), (1, 3), (7, 1024), (4095, 2), (0, 2 * PAGE), (8191, 1)].into_iter().enumerate()
            {
                sink.buffer.slice().fill(0);
                let cookie = cookie as u64 + 200;
                let from = (source.remote(at), source.context()?);
                post(
                    &pair.a,
                    Way::Read,
                    &[sink.segment(5.min(2 * PAGE - len), len)],
                    cookie,
                    SIGNALLED,
                    from,
                )?;
                let done = pair.a.reap()?;
                check_eq!(
                    (done.event_number, done.dto_status),
                    (EventType::DTO_RDMA_READ_CMPL, DtoStatus::Success)
                );
                check_eq!((done.cookie, done.ep), (cookie, pair.a.ep));
                check!(sink.bytes(5.min(2 * PAGE - len), len) == source.bytes(at, len));
            }
            check_eq!(EventType::DTO_RDMA_READ_CMPL.as_raw(), 5);
            pair.b.idle()
        },
    ),
    // A transfer of no bytes succeeds with any address and context; a Send of no bytes consumes a
    // Receive.
    test(
        "data::zero_length_transfers",
        &[
            "it_post_send B03",
            "it_post_recv B04 B05",
            "it_post_rdma_write B03 B21",
            "it_post_rdma_read B03 B23 B24",
        ],
        |f| {
            let (pair, own, _) = ready(f, 64)?;
            let none: [&[LmrTriplet]; 4] = [
                &[],
                &[own.segment(5, 0)],
                &[own.segment(0, 0), own.segment(64, 0)],
                &[LmrTriplet::new(own.lmr, 0, 0)],
            ];
            for segments in none {
                f.b.post_recv(pair.b.ep, &[], 1, DtoFlags::COMPLETION)?;
                f.a.post_send(pair.a.ep, segments, 2, SIGNALLED)?;
                let got = pair.b.reap_recv()?;
                check_eq!((got.cookie, got.dto_status, got.transferred_length), (1, DtoStatus::Success, 0));
                pair.a.done(2, DtoStatus::Success)?;
                // A transfer of no bytes violates nothing, regardless of the context and the
                // address.
                for to in
                    [NOWHERE, (RdmaAddr(u64::MAX), RmrContext(u32::MAX)), (own.remote(7), RmrContext(12345))]
                {
                    post(&pair.a, Way::Write, segments, 3, SIGNALLED, to)?;
                    post(&pair.a, Way::Read, segments, 4, SIGNALLED, to)?;
                    pair.a.done(3, DtoStatus::Success)?;
                    pair.a.done(4, DtoStatus::Success)?;
                }
            }
            check_eq!(pair.a.state()?, EpStateRc::Connected);
            // An empty message consumes one Receive, whether the Receive has a buffer or none.
            f.b.post_recv(pair.b.ep, &[], 5, DtoFlags::COMPLETION)?;
            f.b.post_recv(pair.b.ep, &[], 6, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[], 7, SIGNALLED)?;
            pair.b.recv_done(5, DtoStatus::Success)?;
            pair.a.done(7, DtoStatus::Success)?;
            pair.b.idle()
        },
    ),
    // The bytes of several unaligned segments arrive in the order of the segments.
    test(
        "data::gather_and_scatter",
        &[
            "it_post_send B04 B13",
            "it_post_recv B08 B17",
            "it_post_rdma_write B04 B13",
            "it_post_rdma_read B04 B12",
            "it_lmr_triplet_t B02",
        ],
        |f| {
            let many = f.setup.a.agent.identity().max_sges as usize;
            let rc = RcAttributes {
                max_rdma_read_segments: many,
                max_rdma_write_segments: many,
                ..attributes().rc
            };
            let wide = EpAttributes { max_send_segments: many, max_recv_segments: many, rc, ..attributes() };
            let pair = f.pair_of(&wide, &wide)?;
            let len = 3001;
            let (source, sink) =
                (f.region(&f.a, pair.a.pz, len, OPEN)?, f.region(&f.b, pair.b.pz, len, OPEN)?);
            source.fill(3);
            let cut = |region: &Region, count, turn: bool| -> Vec<LmrTriplet> {
                let mut segments: Vec<_> =
                    cuts(len, count).into_iter().map(|(at, len)| region.segment(at, len)).collect();
                if turn {
                    segments.reverse();
                }
                segments
            };
            let gathered = |segments: &[LmrTriplet], region: &Region| -> Vec<u8> {
                let base = region.buffer.addr() as u64;
                segments
                    .iter()
                    .flat_map(|s| region.bytes((s.addr - base) as usize, s.length as usize))
                    .collect()
            };
            for (ours, theirs) in [(1, many), (many, 1), (2, 3), (3, 2), (many, many), (many - 1, 5)] {
                for turn in [false, true] {
                    sink.buffer.slice().fill(0);
                    let (from, to) = (cut(&source, ours, turn), cut(&sink, theirs, !turn));
                    f.b.post_recv(pair.b.ep, &to, 1, DtoFlags::COMPLETION)?;
                    f.a.post_send(pair.a.ep, &from, 2, SIGNALLED)?;
                    pair.b.recv_done(1, DtoStatus::Success)?;
                    pair.a.done(2, DtoStatus::Success)?;
                    check!(gathered(&from, &source) == gathered(&to, &sink), "{ours} to {theirs} segments");
                    sink.buffer.slice().fill(0);
                    let target = (sink.remote(0), sink.context()?);
                    post(&pair.a, Way::Write, &from, 3, SIGNALLED, target)?;
                    pair.a.done(3, DtoStatus::Success)?;
                    check!(
                        f.arrives(|| gathered(&from, &source) == sink.all()),
                        "a write of {ours} segments"
                    );
                }
                let back = f.region(&f.a, pair.a.pz, len, OPEN)?;
                let to = cut(&back, ours, true);
                post(&pair.a, Way::Read, &to, 4, SIGNALLED, (sink.remote(0), sink.context()?))?;
                pair.a.done(4, DtoStatus::Success)?;
                check!(gathered(&to, &back) == sink.all(), "a read into {ours} segments");
                f.a.lmr_free(back.lmr)?;
            }
            Ok(())
        },
    ),
    // As many segments as the endpoint's maximum are accepted, and one more is refused, for each
    // operation.
    test(
        "data::too_many_segments",
        &[
            "it_post_send IT_ERR_INVALID_NUM_SEGMENTS",
            "it_post_recv IT_ERR_INVALID_NUM_SEGMENTS",
            "it_post_rdma_write IT_ERR_INVALID_NUM_SEGMENTS",
            "it_post_rdma_read L01 IT_ERR_INVALID_NUM_SEGMENTS",
            "it_ep_attributes_t F06 F07 F12 F13",
            "it_status_t F54",
        ],
        |f| {
            let rc =
                RcAttributes { max_rdma_read_segments: 4, max_rdma_write_segments: 3, ..attributes().rc };
            let few = EpAttributes { max_send_segments: 1, max_recv_segments: 2, rc, ..attributes() };
            let pair = f.pair_of(&few, &attributes())?;
            let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let granted = f.a.ep_query(pair.a.ep, EpParamMask::ALL)?.attr;
            let limits = [
                (Way::Send, granted.max_send_segments),
                (Way::Recv, granted.max_recv_segments),
                (Way::Write, granted.rc.max_rdma_write_segments),
                (Way::Read, granted.rc.max_rdma_read_segments),
            ];
            for (way, limit) in limits {
                for count in [limit + 1, limit + 2, 100 + limit] {
                    let segments = alloc::vec![own.segment(0, 0); count];
                    let posted = post(&pair.a, way, &segments, 1, SIGNALLED, NOWHERE);
                    refused(posted, Error::InvalidNumSegments)?;
                }
            }
            pair.a.idle()?;
            for cookie in 0..2 {
                f.b.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
            }
            for (way, limit) in limits {
                let segments = alloc::vec![own.segment(0, 0); limit];
                post(&pair.a, way, &segments, 2, SIGNALLED, NOWHERE)?;
            }
            for _ in 0..3 {
                pair.a.done(2, DtoStatus::Success)?;
            }
            check_eq!(Error::InvalidNumSegments as u32, 53);
            Ok(())
        },
    ),
    // Segments of a source may overlap, and each is read by itself.
    test("data::overlapping_sources", &["it_post_send B05", "it_post_rdma_write B05"], |f| {
        let (pair, source, sink) = ready(f, 256)?;
        let segments = [source.segment(0, 20), source.segment(10, 20), source.segment(0, 20)];
        let expected = [source.bytes(0, 20), source.bytes(10, 20), source.bytes(0, 20)].concat();
        f.b.post_recv(pair.b.ep, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
        f.a.post_send(pair.a.ep, &segments, 2, SIGNALLED)?;
        pair.b.recv_done(1, DtoStatus::Success)?;
        pair.a.done(2, DtoStatus::Success)?;
        check_eq!(sink.bytes(0, 60), expected);
        let to = (sink.remote(100), sink.context()?);
        post(&pair.a, Way::Write, &segments, 3, SIGNALLED, to)?;
        pair.a.done(3, DtoStatus::Success)?;
        check!(f.arrives(|| sink.bytes(100, 60) == expected));
        Ok(())
    }),
    // Segments of a sink may overlap, and the transfer completes.
    test("data::overlapping_sinks", &["it_post_recv B09", "it_post_rdma_read B05"], |f| {
        let (pair, source, sink) = ready(f, 64)?;
        // The content of the sink is undefined, but the operation completes.
        f.b.post_recv(pair.b.ep, &[sink.segment(0, 32), sink.segment(16, 32)], 1, DtoFlags::COMPLETION)?;
        f.a.post_send(pair.a.ep, &[source.whole()], 2, SIGNALLED)?;
        pair.b.recv_done(1, DtoStatus::Success)?;
        pair.a.done(2, DtoStatus::Success)?;
        let from = (source.remote(0), source.context()?);
        let segments = [sink.segment(0, 32), sink.segment(16, 32)];
        post(&pair.b, Way::Read, &segments, 3, SIGNALLED, from)?;
        pair.b.done(3, DtoStatus::Success)
    }),
    // Messages of 1 MiB arrive as a whole, for each operation.
    test(
        "data::large_messages",
        &["it_post_send B02", "it_post_rdma_write B02", "it_post_rdma_read B02", "it_ep_attributes_t F03"],
        |f| {
            let len = 1 << 20;
            let (pair, source, sink) = ready(f, len)?;
            f.b.post_recv(pair.b.ep, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[source.whole()], 2, SIGNALLED)?;
            let got = pair.b.reap_recv()?;
            check_eq!((got.dto_status, got.transferred_length), (DtoStatus::Success, len as u32));
            pair.a.done(2, DtoStatus::Success)?;
            check!(sink.all() == source.all());
            source.fill(2);
            post(&pair.a, Way::Write, &[source.whole()], 3, SIGNALLED, (sink.remote(0), sink.context()?))?;
            pair.a.done(3, DtoStatus::Success)?;
            check!(f.arrives(|| sink.all() == source.all()));
            sink.fill(3);
            post(&pair.a, Way::Read, &[source.whole()], 4, SIGNALLED, (sink.remote(0), sink.context()?))?;
            pair.a.done(4, DtoStatus::Success)?;
            check!(sink.all() == source.all());
            Ok(())
        },
    ),
    // Writes and reads consume no Receive, so the next Send finds it.
    test(
        "data::rdma_takes_no_receive",
        &["it_post_rdma_write B15", "it_post_rdma_read B15", "it_post_send B15", "it_post_recv B19"],
        |f| {
            let (pair, own, peer) = ready(f, 64)?;
            let buffer = f.region(&f.b, pair.b.pz, 64, OPEN)?;
            f.b.post_recv(pair.b.ep, &[buffer.whole()], 1, DtoFlags::COMPLETION)?;
            let there = (peer.remote(0), peer.context()?);
            post(&pair.a, Way::Write, &[own.whole()], 2, SIGNALLED, there)?;
            post(&pair.a, Way::Read, &[own.whole()], 3, SIGNALLED, there)?;
            pair.a.done(2, DtoStatus::Success)?;
            pair.a.done(3, DtoStatus::Success)?;
            pair.b.idle()?;
            buffer.untouched()?;
            f.a.post_send(pair.a.ep, &[own.whole()], 4, SIGNALLED)?;
            pair.b.recv_done(1, DtoStatus::Success)
        },
    ),
    // One request more than the queue has room for is refused, for each operation, and each
    // completion makes room again.
    test(
        "data::full_queues",
        &[
            "A.it_ep_attributes_t B01",
            "it_post_send IT_ERR_TOO_MANY_POSTS",
            "it_post_recv IT_ERR_TOO_MANY_POSTS",
            "it_post_rdma_write IT_ERR_TOO_MANY_POSTS",
            "it_post_rdma_read IT_ERR_TOO_MANY_POSTS",
            "it_ep_attributes_t F04 F05 O05 V03",
            "it_status_t F106",
        ],
        |f| {
            let small = EpAttributes { max_request_dtos: 5, max_recv_dtos: 3, ..attributes() };
            let pair = f.pair_of(&small, &attributes())?;
            let granted = f.a.ep_query(pair.a.ep, EpParamMask::ALL)?.attr;
            let (requests, receives) = (granted.max_request_dtos as u64, granted.max_recv_dtos as u64);
            for round in 0..5 {
                for cookie in 0..requests {
                    post(&pair.a, Way::Write, &[], cookie, SIGNALLED, NOWHERE)?;
                }
                for way in [Way::Send, Way::Write, Way::Read] {
                    let one_more = post(&pair.a, way, &[], 999, SIGNALLED, NOWHERE);
                    refused(one_more, Error::TooManyPosts)?;
                }
                for cookie in 0..requests {
                    pair.a.done(cookie, DtoStatus::Success)?;
                }
                for cookie in 0..receives {
                    post(&pair.a, Way::Recv, &[], cookie, DtoFlags::COMPLETION, NOWHERE)?;
                }
                let one_more = post(&pair.a, Way::Recv, &[], 999, DtoFlags::COMPLETION, NOWHERE);
                refused(one_more, Error::TooManyPosts)?;
                for cookie in 0..receives {
                    f.b.post_send(pair.b.ep, &[], round, SIGNALLED)?;
                    pair.a.recv_done(cookie, DtoStatus::Success)?;
                    pair.b.done(round, DtoStatus::Success)?;
                }
            }
            check_eq!(pair.a.state()?, EpStateRc::Connected);
            check_eq!(Error::TooManyPosts as u32, 105);
            pair.a.idle()
        },
    ),
    // A Receive that was posted before the connection takes the first message.
    test("data::receives_before_the_connection", &["it_post_recv S01", "it_ep_state_t S04"], |f| {
        let (a, b) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
        let (source, sink) = (f.region(&f.a, a.pz, 64, OPEN)?, f.region(&f.b, b.pz, 64, OPEN)?);
        source.fill(4);
        f.b.post_recv(b.ep, &[sink.whole()], 1, DtoFlags::COMPLETION)?;
        f.connect(&a, &b)?;
        f.a.post_send(a.ep, &[source.whole()], 2, SIGNALLED)?;
        b.recv_done(1, DtoStatus::Success)?;
        check!(sink.all() == source.all());
        Ok(())
    }),
    // On InfiniBand the sink of a read needs local write only.
    test(
        "data::reads_need_no_remote_write",
        &["it_post_rdma_read B07 B21", "it_ia_info_t F64", "it_ep_attributes_t B05"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            check!(!f.a.ia_query()?.rdma_read_requires_remote_write);
            let rc = RcAttributes { rdma_write_enable: false, ..attributes().rc };
            let pair = f.pair_of(&EpAttributes { rc, ..attributes() }, &attributes())?;
            let sink = f.region(&f.a, pair.a.pz, 64, MemPriv::LOCAL)?;
            let source = f.region(&f.b, pair.b.pz, 64, MemPriv::LOCAL_READ | MemPriv::REMOTE_READ)?;
            source.fill(5);
            post(&pair.a, Way::Read, &[sink.whole()], 1, SIGNALLED, (source.remote(0), source.context()?))?;
            pair.a.done(1, DtoStatus::Success)?;
            check!(sink.all() == source.all());
            Ok(())
        },
    ),
    // Both ends send and receive at the same time, and every Send and Receive completes in the
    // order of posting.
    test("data::both_directions_at_once", &["it_post_recv B25", "it_ep_rc_create B05"], |f| {
        let (pair, a, b) = ready(f, 64 * 64)?;
        b.fill(2);
        for (end, region) in [(&pair.a, &a), (&pair.b, &b)] {
            let inbox = f.region(&end.ia, end.pz, 64 * 64, OPEN)?;
            for slot in 0..50 {
                let segment = inbox.segment(slot * 64, 64);
                end.ia.post_recv(end.ep, &[segment], slot as u64, DtoFlags::COMPLETION)?;
            }
            let _ = region;
        }
        for slot in 0..50 {
            for (end, region) in [(&pair.a, &a), (&pair.b, &b)] {
                end.ia.post_send(end.ep, &[region.segment(slot * 64, 64)], slot as u64, SIGNALLED)?;
            }
        }
        for cookie in 0..50 {
            for end in [&pair.a, &pair.b] {
                end.recv_done(cookie, DtoStatus::Success)?;
                end.done(cookie, DtoStatus::Success)?;
            }
        }
        Ok(())
    }),
    // Indices that wrap many times neither lose nor repeat a completion.
    test("data::indices_wrap_many_times", &["it_evd_dequeue B01", "1 B06"], |f| {
        // With small rings and many rounds, every index wraps many times.
        let small = EpAttributes { max_request_dtos: 4, max_recv_dtos: 4, ..attributes() };
        let pair = f.pair_of(&small, &small)?;
        let (own, peer) = (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, OPEN)?);
        for number in 0..2000_u64 {
            own.write(0, &number.to_le_bytes());
            f.b.post_recv(pair.b.ep, &[peer.segment(8, 8)], number, DtoFlags::COMPLETION)?;
            post(
                &pair.a,
                Way::Write,
                &[own.segment(0, 8)],
                number,
                DtoFlags::empty(),
                (peer.remote(0), peer.context()?),
            )?;
            f.a.post_send(pair.a.ep, &[own.segment(0, 8)], number, SIGNALLED)?;
            pair.b.recv_done(number, DtoStatus::Success)?;
            pair.a.done(number, DtoStatus::Success)?;
            check_eq!(peer.bytes(0, 16), [number.to_le_bytes(), number.to_le_bytes()].concat());
        }
        Ok(())
    }),
    // One EVD takes the completions of all queues of several endpoints.
    test("data::one_evd_for_everything", &["it_evd_create B06", "it_ep_rc_create B06"], |f| {
        let both = sevd(&f.a, EventType::DTO_EVENT_STREAM, 256, 1)?;
        let mut pairs = Vec::new();
        for _ in 0..4 {
            let pair = Pair { a: f.end_on(&f.a, &attributes(), both, both)?, b: f.end(&f.b, &attributes())? };
            f.connect(&pair.a, &pair.b)?;
            pairs.push(pair);
        }
        for (place, pair) in pairs.iter().enumerate() {
            f.a.post_recv(pair.a.ep, &[], 100 + place as u64, DtoFlags::COMPLETION)?;
            f.b.post_recv(pair.b.ep, &[], 0, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[], place as u64, SIGNALLED)?;
            f.b.post_send(pair.b.ep, &[], 0, SIGNALLED)?;
        }
        let mut seen: Vec<u64> = Vec::new();
        for _ in 0..8 {
            let done = crate::fixture::completion(&f.a, both)?;
            check_eq!(done.dto_status, DtoStatus::Success);
            let place = pairs.iter().position(|pair| pair.a.ep == done.ep);
            check_eq!(Some(done.cookie as usize % 100), place);
            seen.push(done.cookie);
        }
        seen.sort_unstable();
        check_eq!(seen, [0, 1, 2, 3, 100, 101, 102, 103]);
        Ok(())
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_all_of_it() {
        for count in 1..=16 {
            let cuts = cuts(3001, count);
            assert_eq!(cuts.len(), count);
            let mut at = 0;
            for (begin, len) in cuts {
                assert_eq!(begin, at);
                at += len;
            }
            assert_eq!(at, 3001);
        }
    }
}

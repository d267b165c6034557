//! RDMA Reads to pieces of local RMRs (pages it_post_rdma_read_to_rmr, it_rmr_triplet_t,
//! it_rmr_create).

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use super::{Scene, closed, open, page};
use crate::data::posting;
use crate::fixture::{End, OPEN, PAGE, Region, SIGNALLED};
use crate::remote::rmr::{self, Link, TYPES};
use crate::requests::errors::affiliated;
use crate::thread::Thread;
use crate::{Failure, Test, check, check_eq, refused, test};

/// A new RMR of an endpoint's zone that is linked to a region.
#[track_caller]
fn linked(end: &End, rmr_type: RmrType, link: impl FnOnce(RmrHandle) -> Link) -> Result<RmrHandle, Failure> {
    let rmr = end.ia.rmr_create(end.pz, rmr_type)?;
    link(rmr).post(end, 800)?;
    end.done(800, DtoStatus::Success)?;
    Ok(rmr)
}

/// The piece of `length` bytes at `offset` of the region to which an RMR is linked absolutely.
fn piece(rmr: RmrHandle, region: &Region, offset: usize, length: u64) -> RmrTriplet {
    RmrTriplet { rmr, addr: (region.buffer.addr() + offset) as u64, length }
}

const READ_FLAGS: DtoFlags = SIGNALLED;

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // Bytes go to the pieces in order, at any address, of RMRs of both types and both ways of
    // addressing. The call copies its pieces, and the peer's Receives stay.
    test(
        "iwarp_ia::reads_to_rmrs",
        &[
            "it_post_rdma_read_to_rmr O01 B02 B04 B07 B08 B10-B12 B14 B18 B19 F01",
            "it_rmr_triplet_t B01 B02 F01-F04",
            "it_rmr_create B07",
        ],
        |f| {
            let f = f.over_iwarp()?;
            for rmr_type in TYPES {
                let scene = Scene::new(&f)?;
                let (end, peer) = (&scene.pair.a, &scene.pair.b);
                scene.peer.fill(9);
                let sink = page(&f, end)?;
                let whole = linked(end, rmr_type, |rmr| Link::of(rmr, &sink))?;
                let second = page(&f, end)?;
                let part = linked(end, rmr_type, |rmr| match rmr_type {
                    RmrType::Narrow => {
                        Link { mode: AddrMode::Relative, ..Link::of(rmr, &second).part(100, 50) }
                    }
                    _ => Link::of(rmr, &second).part(100, 50),
                })?;
                let third = match rmr_type {
                    RmrType::Narrow => RmrTriplet { rmr: part, addr: 3, length: 40 },
                    _ => piece(part, &second, 103, 40),
                };
                f.b.post_recv(peer.ep, &[], 6, DtoFlags::COMPLETION)?;
                let mut pieces = [piece(whole, &sink, 7, 21), third, piece(whole, &sink, 1001, 5)];
                let (at, context) = (scene.peer.remote(11), scene.peer.context()?);
                f.a.post_rdma_read_to_rmr(end.ep, &pieces, 0xfeed, READ_FLAGS, at, context)?;
                pieces.fill(RmrTriplet::default());
                let done = end.reap()?;
                check_eq!(done.event_number, EventType::DTO_RDMA_READ_CMPL);
                check_eq!((done.cookie, done.dto_status), (0xfeed, DtoStatus::Success));
                check_eq!(done.transferred_length, 66);
                let read = [sink.bytes(7, 21), second.bytes(103, 40), sink.bytes(1001, 5)].concat();
                check_eq!(read, scene.peer.bytes(11, 66));
                let rest = [&sink.all()[..7], &sink.all()[28..1001], &sink.all()[1006..]].concat();
                check!(rest.iter().all(|&byte| byte == 0), "bytes beside the pieces");
                peer.idle()?;
                scene.end()?;
            }
            Ok(())
        },
    ),
    // A Read of no bytes moves none and checks nothing.
    test("iwarp_ia::a_read_to_rmrs_of_no_bytes", &["it_post_rdma_read_to_rmr B03 B21 B22"], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        let ep = scene.pair.a.ep;
        let (at, context) = (RdmaAddr(u64::MAX), RmrContext(u32::MAX));
        f.a.post_rdma_read_to_rmr(ep, &[], 1, READ_FLAGS, at, context)?;
        scene.pair.a.done(1, DtoStatus::Success)?;
        let bad = RmrTriplet { rmr: RmrHandle::NULL, addr: 5, length: 0 };
        f.a.post_rdma_read_to_rmr(ep, &[bad, bad], 2, READ_FLAGS, at, context)?;
        scene.pair.a.done(2, DtoStatus::Success)
    }),
    // The errors of the call, each of which changes nothing.
    test(
        "iwarp_ia::reads_to_rmrs_that_are_refused_at_once",
        &[
            "it_post_rdma_read_to_rmr L01 B09 S01 IT_ERR_INVALID_DTO_FLAGS IT_ERR_INVALID_EP",
            "it_post_rdma_read_to_rmr IT_ERR_INVALID_EP_STATE IT_ERR_INVALID_NUM_SEGMENTS",
            "it_post_rdma_read_to_rmr IT_ERR_TOO_MANY_POSTS IT_ERR_OP_NOT_SUPPORTED",
            "it_ep_state_t S14",
            "it_dto_flags_t B18",
        ],
        |outer| {
            let f = outer.over_iwarp()?;
            let mut attr = open();
            (attr.rc.max_rdma_read_segments, attr.max_request_dtos) = (2, 4);
            let scene = Scene::of(&f, &attr, &open())?;
            let (end, own) = (&scene.pair.a, &scene.own);
            let rmr = linked(end, RmrType::Narrow, |rmr| Link::of(rmr, own))?;
            let one = piece(rmr, own, 0, 8);
            let (at, context) = (scene.peer.remote(0), scene.peer.context()?);
            let read = |ep, pieces: &[RmrTriplet], flags| {
                f.a.post_rdma_read_to_rmr(ep, pieces, 1, flags, at, context)
            };
            let never = DtoFlags::SOLICITED_WAIT | DtoFlags::UNLINK_FENCE;
            refused(read(end.ep, &[one], DtoFlags::from_bits_retain(1 << 30)), Error::InvalidDtoFlags)?;
            for flags in (0..0x100).map(DtoFlags::from_bits_retain) {
                let alone = flags.contains(DtoFlags::NOTIFY) && !flags.contains(DtoFlags::COMPLETION);
                if alone || flags.intersects(never | DtoFlags::from_bits_retain(0x80)) {
                    refused(read(end.ep, &[one], flags), Error::InvalidDtoFlags)?;
                    continue;
                }
                read(end.ep, &[one], flags)?;
                // What was coalesced goes with it, and one that has no event is complete.
                f.a.post_rdma_read(end.ep, &[own.segment(0, 8)], 2, READ_FLAGS, at, context)?;
                if flags.contains(DtoFlags::COMPLETION) {
                    end.done(1, DtoStatus::Success)?;
                }
                end.done(2, DtoStatus::Success)?;
                let unlinks = flags.contains(DtoFlags::UNLINK_LOCAL_SINK);
                check_eq!(f.a.rmr_query(rmr, RmrParamMask::LINKED)?.linked, !unlinks);
                if unlinks {
                    Link::of(rmr, own).made(end)?;
                }
            }
            let unlinks = READ_FLAGS | DtoFlags::UNLINK_LOCAL_SINK;
            refused(read(end.ep, &[one, one], unlinks), Error::InvalidDtoFlags)?;
            refused(read(end.ep, &[one; 3], READ_FLAGS), Error::InvalidNumSegments)?;
            let fresh = f.end(&f.a, &open())?;
            refused(read(fresh.ep, &[one], READ_FLAGS), Error::InvalidEpState)?;
            f.a.ep_free(fresh.ep)?;
            refused(read(fresh.ep, &[one], READ_FLAGS), Error::InvalidEp)?;
            end.idle()?;
            // Completions that are not asked for leave the queue full.
            let mut posted = 0;
            while read(end.ep, &[one], DtoFlags::COMPLETION).is_ok() {
                posted += 1;
                check!(posted <= 64, "the queue has no end");
            }
            check!(posted >= 4);
            for _ in 0..posted {
                end.done(1, DtoStatus::Success)?;
            }
            // InfiniBand has no such Reads.
            let pair = outer.pair()?;
            let region = outer.region(&outer.b, pair.b.pz, PAGE, crate::fixture::OPEN)?;
            let (at, context) = (region.remote(0), region.context()?);
            let elsewhere = outer.a.post_rdma_read_to_rmr(pair.a.ep, &[], 1, READ_FLAGS, at, context);
            refused(elsewhere, Error::OpNotSupported)
        },
    ),
    // Reads complete in the order of their posts, and what is behind them not before them; with a
    // fence the next one begins after them.
    test("iwarp_ia::the_order_of_reads_to_rmrs", &["it_post_rdma_read_to_rmr B15-B17"], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        let (end, own) = (&scene.pair.a, &scene.own);
        scene.peer.fill(2);
        let rmr = linked(end, RmrType::Narrow, |rmr| Link::of(rmr, own))?;
        f.b.post_recv(scene.pair.b.ep, &[scene.peer.segment(0, 8)], 9, DtoFlags::COMPLETION)?;
        let before = scene.peer.bytes(0, 8);
        let read = |cookie, flags, offset| {
            let (at, context) = (scene.peer.remote(offset), scene.peer.context()?);
            let pieces = [piece(rmr, own, offset, 8)];
            Ok::<_, Failure>(f.a.post_rdma_read_to_rmr(end.ep, &pieces, cookie, flags, at, context)?)
        };
        for cookie in 1..=5 {
            read(cookie, READ_FLAGS, 0)?;
        }
        read(6, READ_FLAGS | DtoFlags::BARRIER_FENCE, 16)?;
        let fenced = SIGNALLED | DtoFlags::BARRIER_FENCE;
        f.a.post_send(end.ep, &[own.segment(64, 8)], 7, fenced)?;
        for cookie in 1..=7 {
            end.done(cookie, DtoStatus::Success)?;
        }
        check_eq!(own.bytes(0, 8), before);
        Ok(())
    }),
    // What the peer does not allow to be read completes in error, and breaks the connection.
    test(
        "iwarp_ia::sources_of_reads_to_rmrs",
        &["it_post_rdma_read_to_rmr B06 A01 A03-A10 A12 A14 B13"],
        |f| {
            let f = f.over_iwarp()?;
            let mut unreadable = open();
            unreadable.rc.rdma_read_enable = false;
            for case in 0..6 {
                let scene = match case {
                    3 => Scene::of(&f, &open(), &unreadable)?,
                    _ => Scene::new(&f)?,
                };
                let (end, own, peer) = (&scene.pair.a, &scene.own, &scene.peer);
                let rmr = linked(end, RmrType::Narrow, |rmr| Link::of(rmr, own))?;
                let secret = f.region(&f.b, scene.pair.b.pz, PAGE, MemPriv::LOCAL | MemPriv::REMOTE_WRITE)?;
                let (at, context) = match case {
                    0 => (peer.remote(1), peer.context()?),
                    1 => (peer.remote(0), RmrContext(u32::MAX)),
                    2 => (secret.remote(0), secret.context()?),
                    // Of another zone.
                    4 => {
                        let elsewhere = f.region(&f.b, f.b.pz_create()?, PAGE, OPEN)?;
                        (elsewhere.remote(0), elsewhere.context()?)
                    }
                    // A narrow RMR of another endpoint, in the same zone.
                    5 => {
                        let other = rmr::neighbour(&f, &scene.pair)?;
                        let narrow = f.b.rmr_create(other.b.pz, RmrType::Narrow)?;
                        (peer.remote(0), Link::of(narrow, peer).made(&other.b)?)
                    }
                    _ => (peer.remote(0), peer.context()?),
                };
                let pieces = [piece(rmr, own, 0, PAGE as u64)];
                f.a.post_recv(end.ep, &[], 4, DtoFlags::COMPLETION)?;
                f.a.post_rdma_read_to_rmr(end.ep, &pieces, 3, READ_FLAGS, at, context)?;
                end.done(3, DtoStatus::RemoteAccess)?;
                end.recv_done(4, DtoStatus::Flushed)?;
                end.broken()?;
                let there = EventType::ASYNC_AFF_EP_L_IRRQ_ACCESS_VIOLATION;
                affiliated(&f.b, scene.there, there, scene.pair.b.ep)?;
                scene.pair.b.broken()?;
                f.a.post_rdma_read_to_rmr(end.ep, &pieces, 5, READ_FLAGS, at, context)?;
                end.done(5, DtoStatus::Flushed)?;
                scene.end()?;
            }
            Ok(())
        },
    ),
    // Pieces may overlap: what is in them then is of the peer's bytes, and beside them nothing is.
    test("iwarp_ia::pieces_that_overlap", &["it_post_rdma_read_to_rmr B05"], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        let (end, sink) = (&scene.pair.a, page(&f, &scene.pair.a)?);
        scene.peer.fill(9);
        let rmr = linked(end, RmrType::Narrow, |rmr| Link::of(rmr, &sink))?;
        let pieces = [piece(rmr, &sink, 0, 60), piece(rmr, &sink, 40, 60), piece(rmr, &sink, 0, 60)];
        let (at, context) = (scene.peer.remote(0), scene.peer.context()?);
        for cookie in 0..3 {
            f.a.post_rdma_read_to_rmr(end.ep, &pieces, cookie, READ_FLAGS, at, context)?;
            end.done(cookie, DtoStatus::Success)?;
        }
        let bytes = sink.all();
        check!(bytes[..100].iter().all(|&byte| byte != 0) && bytes[100..].iter().all(|&byte| byte == 0));
        Ok(())
    }),
    // The call allocates nothing, and does not wait for the device, which executes nothing
    // meanwhile: its queue is full at the number of requests for which the endpoint was made, and
    // not before. Several threads may call it at the same time.
    test("iwarp_ia::reads_to_rmrs_take_no_resources", &["A.it_post_rdma_read_to_rmr B02"], |f| {
        let f = f.over_iwarp()?;
        let wide = EpAttributes { max_request_dtos: 32, ..open() };
        let scene = Scene::of(&f, &wide, &open())?;
        let (end, own) = (&scene.pair.a, &scene.own);
        let rmr = linked(end, RmrType::Narrow, |rmr| Link::of(rmr, own))?;
        let room = f.a.ep_query(end.ep, EpParamMask::MAX_REQ_DTO)?.attr.max_request_dtos as u64;
        let pieces = [piece(rmr, own, 0, 8), piece(rmr, own, 16, 8)];
        let (at, context) = (scene.peer.remote(0), scene.peer.context()?);
        let read = |cookie| f.a.post_rdma_read_to_rmr(end.ep, &pieces, cookie, READ_FLAGS, at, context);
        posting::retried(|| {
            f.inject(0, Injection::Hold, 1, 1)?;
            let waits = (f.setup.usage)().waits;
            let posted = posting::allocates_nothing(&f, room, read);
            let waited = (f.setup.usage)().waits - waits;
            let more = read(room);
            let idle = end.idle();
            f.inject(0, Injection::Hold, 1, 0)?;
            for cookie in 0..room {
                end.done(cookie, DtoStatus::Success)?;
            }
            refused(more, Error::TooManyPosts)?;
            check_eq!(waited, 0);
            idle.and(posted)
        })?;
        scene.end()?;
        const THREADS: u64 = 3;
        const EACH: u64 = 40;
        let deep = EpAttributes { max_request_dtos: (THREADS * EACH) as usize, ..open() };
        let scene = Scene::of(&f, &deep, &open())?;
        let (end, own) = (&scene.pair.a, &scene.own);
        scene.peer.fill(3);
        let rmr = linked(end, RmrType::Narrow, |rmr| Link::of(rmr, own))?;
        let (at, context) = (scene.peer.remote(0), scene.peer.context()?);
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let (ia, ep, pieces) = (f.a.clone(), end.ep, [piece(rmr, own, 8 * thread as usize, 8)]);
            threads.push(Thread::spawn(f.platform(), "reader", move || {
                (0..EACH).try_for_each(|n| {
                    ia.post_rdma_read_to_rmr(ep, &pieces, thread * 1000 + n, READ_FLAGS, at, context)
                })
            })?);
        }
        for thread in threads {
            thread.join()??;
        }
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let done = end.reap()?;
            check_eq!(done.dto_status, DtoStatus::Success);
            let thread = (done.cookie / 1000) as usize;
            check_eq!(Some(&(done.cookie % 1000)), next.get(thread));
            next[thread] += 1;
        }
        end.idle()
    }),
    // An RMR that cannot take the bytes is the local error of the Read. It is left as it was.
    test(
        "iwarp_ia::sinks_of_reads_to_rmrs",
        &["it_post_rdma_read_to_rmr B20 A15-A22", "it_dto_status_t A05"],
        |f| {
            let f = f.over_iwarp()?;
            for case in 0..6 {
                let attr = if case == 4 { closed() } else { open() };
                let scene = Scene::of(&f, &attr, &open())?;
                let end = &scene.pair.a;
                let sink = page(&f, end)?;
                let other = f.end_in(&f.a, if case == 3 { end.pz } else { f.a.pz_create()? }, &open())?;
                let rmr = match case {
                    // Not linked.
                    0 => f.a.rmr_create(end.pz, RmrType::Narrow)?,
                    // Without the right.
                    1 => linked(end, RmrType::Narrow, |rmr| Link {
                        privs: MemPriv::REMOTE_READ,
                        ..Link::of(rmr, &sink)
                    })?,
                    // Freed.
                    2 => {
                        let rmr = linked(end, RmrType::Wide, |rmr| Link::of(rmr, &sink))?;
                        f.a.rmr_free(rmr)?;
                        rmr
                    }
                    // Of another endpoint.
                    3 => {
                        let partner = f.end(&f.b, &open())?;
                        f.connect(&other, &partner)?;
                        linked(&other, RmrType::Narrow, |rmr| Link::of(rmr, &sink))?
                    }
                    _ => linked(end, RmrType::Narrow, |rmr| Link::of(rmr, &sink).part(0, 100))?,
                };
                let pieces = [piece(rmr, &sink, 0, if case == 5 { 101 } else { 100 })];
                let (at, context) = (scene.peer.remote(0), scene.peer.context()?);
                scene.peer.fill(8);
                f.a.post_rdma_read_to_rmr(end.ep, &pieces, 3, READ_FLAGS, at, context)?;
                let done = end.reap()?;
                check!(done.dto_status == DtoStatus::LocalProtection, "case {case}: {done:?}");
                sink.untouched()?;
                end.broken()?;
                scene.pair.b.broken()?;
                scene.end()?;
            }
            Ok(())
        },
    ),
    // With the flag to unlink its sink, a Read unlinks its RMR once the data is there.
    test("iwarp_ia::a_read_unlinks_its_rmr", &[], |f| {
        let f = f.over_iwarp()?;
        let scene = Scene::new(&f)?;
        let (end, own) = (&scene.pair.a, &scene.own);
        scene.peer.fill(4);
        let rmr = linked(end, RmrType::Narrow, |rmr| Link::of(rmr, own))?;
        let (at, context) = (scene.peer.remote(0), scene.peer.context()?);
        let flags = READ_FLAGS | DtoFlags::UNLINK_LOCAL_SINK;
        f.a.post_rdma_read_to_rmr(end.ep, &[piece(rmr, own, 0, 8)], 3, flags, at, context)?;
        end.done(3, DtoStatus::Success)?;
        check_eq!(own.bytes(0, 8), scene.peer.bytes(0, 8));
        check!(!f.a.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
        Ok(())
    }),
];

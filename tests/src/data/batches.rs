//! Endpoints that were looked up once, and batches of requests: extensions of the API, which no
//! page describes.

use alloc::vec::Vec;
use core::result::Result;

use kernel_agent::Direction;
use privileged_api::*;

use crate::datagrams::ud::{datagrams, peer};
use crate::fixture::{End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, attributes};
use crate::thread::{Thread, breathe};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The kinds of transfer, in the order in which a test posts them.
const KINDS: [Direction; 3] = [Direction::Send, Direction::Write, Direction::Read];

/// How a request is posted.
enum Posted {
    ByHandle,
    ByRef,
    InBatch,
}

/// Requests that the endpoints of these tests can have outstanding.
const DEPTH: usize = 4;

/// A connected pair with few requests, and a region on each side.
fn small(f: &Fixture) -> Result<(Pair, Region, Region), Failure> {
    let attributes = EpAttributes { max_request_dtos: DEPTH, ..attributes() };
    let pair = f.pair_of(&attributes, &attributes)?;
    let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
    let far = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
    own.fill(9);
    Ok((pair, own, far))
}

/// Adds Writes with these cookies, each of eight bytes to a place of its own.
fn writes(
    batch: &mut Batch<'_>,
    own: &Region,
    far: &Region,
    cookies: core::ops::Range<u64>,
) -> Result<(), Error> {
    let context = far.context.unwrap_or_default();
    for cookie in cookies {
        let at = 8 * cookie as usize;
        batch.post_rdma_write(&[own.segment(at, 8)], cookie, SIGNALLED, far.remote(at), context)?;
    }
    Ok(())
}

/// Takes the completions of successful requests with these cookies, in this order.
#[track_caller]
fn succeeded(end: &End, cookies: core::ops::Range<u64>) -> Outcome {
    for cookie in cookies {
        end.done(cookie, DtoStatus::Success)?;
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // The requests of a batch are executed in their order, after those that were posted before, and
    // each does what its own call would do.
    test("batch::requests_are_posted_in_order", &[], |f| {
        let (pair, own, far) = f.open_pair()?;
        own.fill(5);
        far.fill(6);
        let (context, sink) = (far.context()?, far.bytes(2048, 100));
        pair.b.ia.post_recv(pair.b.ep, &[far.segment(3000, 64)], 77, SIGNALLED)?;
        pair.b.ia.post_recv(pair.b.ep, &[], 78, SIGNALLED)?;
        let ep = f.a.ep_ref(pair.a.ep)?;
        check_eq!(ep.handle(), pair.a.ep);
        ep.post_rdma_write(&[own.segment(0, 8)], 1, SIGNALLED, far.remote(0), context)?;
        let scattered: Vec<_> = (0..4).map(|n| own.segment(100 * n, 10 + n)).collect();
        let answer = ep.post_batch(|batch| {
            batch.post_rdma_write(&scattered, 2, SIGNALLED, far.remote(64), context)?;
            batch.post_rdma_write(&[own.segment(64, 8)], 3, DtoFlags::empty(), far.remote(8), context)?;
            batch.post_rdma_read(&[own.segment(1024, 100)], 4, SIGNALLED, far.remote(2048), context)?;
            batch.post_send(&[own.segment(7, 40)], 5, SIGNALLED)?;
            batch.post_rdma_write(&[], 6, SIGNALLED, far.remote(0), context)?;
            Ok(42)
        })?;
        check_eq!(answer, 42);
        ep.post_send(&[], 8, DtoFlags::empty())?;
        ep.post_rdma_read(&[own.segment(1200, 8)], 7, SIGNALLED, far.remote(2048), context)?;
        for cookie in [1, 2, 4, 5, 6] {
            pair.a.done(cookie, DtoStatus::Success)?;
        }
        pair.b.recv_done(77, DtoStatus::Success)?;
        let gathered: Vec<u8> = (0..4).flat_map(|n| own.bytes(100 * n, 10 + n)).collect();
        check_eq!(far.bytes(64, gathered.len()), gathered);
        check_eq!((far.bytes(0, 8), far.bytes(8, 8)), (own.bytes(0, 8), own.bytes(64, 8)));
        check_eq!((own.bytes(1024, 100), far.bytes(3000, 40)), (sink, own.bytes(7, 40)));
        Ok(())
    }),
    // If the consumer's routine fails, nothing is posted, and the next requests take the same
    // place.
    test("batch::a_batch_that_fails_posts_nothing", &[], |f| {
        let (pair, own, far) = small(f)?;
        let before = far.all();
        for _ in 0..3 * DEPTH {
            let failed: Result<(), _> = f.a.post_batch(pair.a.ep, |batch| {
                writes(batch, &own, &far, 0..DEPTH as u64)?;
                Err(Error::Fault)
            });
            check_eq!(failed, Err(Error::Fault));
        }
        // A request that is refused leaves those before it in the batch.
        f.a.post_batch(pair.a.ep, |batch| {
            let (bad, five) = (DtoFlags::SOLICITED_WAIT, [own.segment(0, 8); 5]);
            batch.post_send(&[], 50, DtoFlags::NOTIFY).unwrap_err();
            refused(
                batch.post_rdma_write(&[], 51, bad, far.remote(0), RmrContext::default()),
                Error::InvalidDtoFlags,
            )
            .map_err(|_| Error::Fault)?;
            refused(batch.post_send(&five, 52, SIGNALLED), Error::InvalidNumSegments)
                .map_err(|_| Error::Fault)?;
            batch.post_rdma_write(
                &[own.segment(0, 8)],
                53,
                SIGNALLED,
                far.remote(0),
                far.context.unwrap_or_default(),
            )?;
            refused(batch.post_send(&five, 54, SIGNALLED), Error::InvalidNumSegments)
                .map_err(|_| Error::Fault)
        })?;
        pair.a.done(53, DtoStatus::Success)?;
        pair.a.idle()?;
        check!(f.arrives(|| far.bytes(0, 8) == own.bytes(0, 8)));
        check_eq!((far.bytes(0, 8), far.bytes(8, PAGE - 8)), (own.bytes(0, 8), before[8..].to_vec()));
        // An empty batch posts nothing.
        f.a.post_batch(pair.a.ep, |_| Ok(()))?;
        f.a.post_batch(pair.a.ep, |batch| writes(batch, &own, &far, 0..1))?;
        succeeded(&pair.a, 0..1)?;
        pair.a.idle()
    }),
    // A full queue refuses a request of a batch, and has room again as soon as requests complete.
    test("batch::a_full_queue_refuses_in_the_middle", &[], |f| {
        let (pair, own, far) = small(f)?;
        let ep = f.a.ep_ref(pair.a.ep)?;
        let all = DEPTH as u64;
        for round in 0..5 {
            let result = ep.post_batch(|batch| {
                writes(batch, &own, &far, 0..all)?;
                Ok(writes(batch, &own, &far, all..all + 1))
            })?;
            check_eq!((round, result), (round, Err(Error::TooManyPosts)));
            // All are outstanding until they are dequeued; the batch finds the room at once.
            let taken = ep.post_batch(|batch| {
                let full = writes(batch, &own, &far, 0..1);
                for cookie in 0..all {
                    pair.a.done(cookie, DtoStatus::Success).map_err(|_| Error::Fault)?;
                    writes(batch, &own, &far, all + cookie..all + cookie + 1)?;
                }
                Ok((full, writes(batch, &own, &far, 0..1)))
            })?;
            check_eq!(taken, (Err(Error::TooManyPosts), Err(Error::TooManyPosts)));
            succeeded(&pair.a, all..2 * all)?;
            pair.a.idle()?;
        }
        Ok(())
    }),
    // Of a kind whose limit of segments is 0, no request with a segment is taken, however it is
    // posted. The other kinds are posted as ever, also in the same batch.
    test("batch::a_kind_without_segments", &["it_post_rdma_write IT_ERR_INVALID_NUM_SEGMENTS"], |f| {
        for limited in KINDS {
            let most = |kind| if kind == limited { 0 } else { 1 };
            let rc = RcAttributes {
                max_rdma_write_segments: most(Direction::Write),
                max_rdma_read_segments: most(Direction::Read),
                ..attributes().rc
            };
            let narrow = EpAttributes { max_send_segments: most(Direction::Send), rc, ..attributes() };
            let pair = f.pair_of(&narrow, &attributes())?;
            let (own, far) = (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
            let (ia, handle) = (&f.a, pair.a.ep);
            let ep = ia.ep_ref(handle)?;
            let (one, at, to) = ([own.segment(0, 8)], far.remote(0), far.context()?);
            for way in [Posted::ByHandle, Posted::ByRef, Posted::InBatch] {
                pair.b.ia.post_recv(pair.b.ep, &[far.segment(64, 8)], 1, SIGNALLED)?;
                let mut results = Vec::new();
                let flags = SIGNALLED;
                match way {
                    Posted::ByHandle => {
                        results.push(ia.post_send(handle, &one, 0, flags));
                        results.push(ia.post_rdma_write(handle, &one, 1, flags, at, to));
                        results.push(ia.post_rdma_read(handle, &one, 2, flags, at, to));
                    }
                    Posted::ByRef => {
                        results.push(ep.post_send(&one, 0, flags));
                        results.push(ep.post_rdma_write(&one, 1, flags, at, to));
                        results.push(ep.post_rdma_read(&one, 2, flags, at, to));
                    }
                    Posted::InBatch => ep.post_batch(|batch| {
                        results.push(batch.post_send(&one, 0, flags));
                        results.push(batch.post_rdma_write(&one, 1, flags, at, to));
                        results.push(batch.post_rdma_read(&one, 2, flags, at, to));
                        Ok(())
                    })?,
                }
                for (cookie, (kind, result)) in (0..).zip(KINDS.into_iter().zip(results)) {
                    if kind == limited {
                        refused(result, Error::InvalidNumSegments)?;
                    } else {
                        result?;
                        pair.a.done(cookie, DtoStatus::Success)?;
                    }
                }
                if limited == Direction::Send {
                    // An empty Send has no segment. It takes the Receive.
                    ep.post_send(&[], 3, SIGNALLED)?;
                    pair.a.done(3, DtoStatus::Success)?;
                }
                pair.b.recv_done(1, DtoStatus::Success)?;
                pair.a.idle()?;
            }
        }
        Ok(())
    }),
    // A batch has the send queue for itself, and nothing waits for it: other posts fail at once,
    // and every other call works.
    test("batch::a_batch_has_the_send_queue_for_itself", &[], |f| {
        let (pair, own, far) = small(f)?;
        let (other, ia) = (f.pair()?, f.a.clone());
        let end = pair.a.clone();
        let mut outcome = Ok(());
        let body = |batch: &mut Batch<'_>| {
            writes(batch, &own, &far, 0..1)?;
            let (ep, context) = (end.ep, far.context()?);
            refused(ia.post_send(ep, &[], 20, SIGNALLED), Error::EpBusy)?;
            refused(ia.post_send(ep, &[own.segment(0, 8)], 20, SIGNALLED), Error::EpBusy)?;
            refused(
                ia.ep_ref(ep)?.post_rdma_read(&[], 20, SIGNALLED, far.remote(0), context),
                Error::EpBusy,
            )?;
            refused(ia.post_batch(ep, |_| Ok(())), Error::EpBusy)?;
            let lmr = ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?;
            refused(ia.lmr_unlink(lmr, ep, 20, SIGNALLED), Error::EpBusy)?;
            ia.lmr_free(lmr)?;
            // Another thread's posts fail, too.
            let (theirs, poster) = (end.clone(), ia.clone());
            let thread = Thread::spawn(f.platform(), "poster", move || {
                poster.post_send(theirs.ep, &[], 20, SIGNALLED)
            })?;
            refused(thread.join()?, Error::EpBusy)?;
            ia.post_recv(ep, &[], 30, SIGNALLED)?;
            ia.post_batch(other.a.ep, |batch| {
                batch.post_rdma_write(&[], 40, SIGNALLED, far.remote(0), context)
            })?;
            other.a.done(40, DtoStatus::Success)?;
            check_eq!(end.state()?, EpStateRc::Connected);
            writes(batch, &own, &far, 1..2)?;
            Ok::<(), Failure>(())
        };
        f.a.post_batch(pair.a.ep, |batch| {
            outcome = body(batch);
            Ok(())
        })?;
        outcome?;
        succeeded(&pair.a, 0..2)?;
        f.a.post_rdma_write(pair.a.ep, &[], 3, SIGNALLED, far.remote(0), far.context()?)?;
        pair.a.done(3, DtoStatus::Success)
    }),
    // An endpoint that is freed, reset or disconnected during a batch: the call fails as a post
    // would, and none of the requests is executed, or all are flushed.
    test("batch::an_endpoint_that_ends_during_a_batch", &[], |f| {
        let (pair, own, far) = small(f)?;
        let before = far.all();
        f.a.post_batch(pair.a.ep, |batch| {
            writes(batch, &own, &far, 0..2)?;
            f.a.ep_disconnect(pair.a.ep, &[])?;
            writes(batch, &own, &far, 2..3)
        })?;
        for cookie in 0..3 {
            pair.a.done(cookie, DtoStatus::Flushed)?;
        }
        pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        let reset = f.a.post_batch(pair.a.ep, |batch| {
            writes(batch, &own, &far, 0..2)?;
            f.a.ep_reset(pair.a.ep)?;
            writes(batch, &own, &far, 2..3)
        });
        check_eq!(reset, Err(Error::InvalidEpState));
        check_eq!(f.a.post_batch(pair.a.ep, |_| Ok(())), Err(Error::InvalidEpState));
        pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        f.b.ep_reset(pair.b.ep)?;
        f.connect(&pair.a, &pair.b)?;
        // The endpoint is reset and connected anew during a batch: the requests belong to the
        // former connection.
        let anew = f.a.post_batch(pair.a.ep, |batch| {
            writes(batch, &own, &far, 0..2)?;
            f.a.ep_disconnect(pair.a.ep, &[])?;
            pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT).map_err(|_| Error::Fault)?;
            pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT).map_err(|_| Error::Fault)?;
            f.a.ep_reset(pair.a.ep)?;
            f.b.ep_reset(pair.b.ep)?;
            f.connect(&pair.a, &pair.b).map_err(|_| Error::Fault)
        });
        check_eq!(anew, Err(Error::InvalidEpState));
        f.a.post_batch(pair.a.ep, |batch| writes(batch, &own, &far, 500..501))?;
        succeeded(&pair.a, 500..501)?;
        let freed = f.a.post_batch(pair.a.ep, |batch| {
            writes(batch, &own, &far, 0..2)?;
            f.a.ep_free(pair.a.ep)?;
            writes(batch, &own, &far, 2..3)
        });
        check_eq!(freed, Err(Error::InvalidEp));
        check_eq!(far.bytes(0, 500 * 8), before[..500 * 8].to_vec());
        refused(f.a.post_batch(pair.a.ep, |_| Ok(())), Error::InvalidEp)
    }),
    // An endpoint that was looked up follows its handle: through a reset, and not to the endpoint
    // that takes its place.
    test("batch::a_reference_follows_its_handle", &[], |f| {
        Need::Datagrams.of(&f.a)?;
        let (pair, own, far) = small(f)?;
        let (ep, context) = (f.a.ep_ref(pair.a.ep)?, far.context()?);
        let write =
            |cookie| ep.post_rdma_write(&[own.segment(0, 8)], cookie, SIGNALLED, far.remote(0), context);
        write(1)?;
        pair.a.done(1, DtoStatus::Success)?;
        f.a.ep_disconnect(pair.a.ep, &[])?;
        write(2)?;
        pair.a.done(2, DtoStatus::Flushed)?;
        pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        f.a.ep_reset(pair.a.ep)?;
        refused(write(3), Error::InvalidEpState)?;
        f.b.ep_reset(pair.b.ep)?;
        f.connect(&pair.a, &pair.b)?;
        write(4)?;
        pair.a.done(4, DtoStatus::Success)?;
        refused(ep.post_send(&[own.segment(0, 8); 5], 5, SIGNALLED), Error::InvalidNumSegments)?;
        refused(ep.post_send(&[], 5, DtoFlags::UNLINK_FENCE), Error::InvalidDtoFlags)?;
        f.a.ep_free(pair.a.ep)?;
        refused(write(6), Error::InvalidEp)?;
        refused(ep.post_batch(|_| Ok(())), Error::InvalidEp)?;
        refused(f.a.ep_ref(pair.a.ep).map(|_| ()), Error::InvalidEp)?;
        // Endpoints until one takes its place: handles of one place differ in the upper half.
        let End { pz, request, recv, conn, .. } = pair.a;
        let mut taken = false;
        while !taken {
            let next = f.a.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), &attributes())?;
            taken = next.as_raw() as u32 == pair.a.ep.as_raw() as u32;
            refused(write(7), Error::InvalidEp)?;
        }
        let datagram = peer(&f.a, &datagrams())?;
        refused(f.a.ep_ref(datagram.ep).map(|_| ()), Error::InvalidEpType)
    }),
    // Batches and posts of several threads to one endpoint: each request is executed once, or its
    // poster learns that the queue was taken.
    test("batch::threads_take_turns", &[], |f| {
        const ROUNDS: u64 = 30;
        let roomy = EpAttributes { max_request_dtos: 256, ..attributes() };
        let pair = f.pair_of(&roomy, &roomy)?;
        let far = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        let context = far.context()?;
        let mut threads = Vec::new();
        for thread in 0..3u64 {
            let (ia, ep, at) = (f.a.clone(), pair.a.ep, far.remote(0));
            threads.push(Thread::spawn(f.platform(), "batch", move || {
                for round in 0..ROUNDS {
                    let cookie = thread << 32 | round << 8;
                    let post = || match thread {
                        0 => ia.post_rdma_write(ep, &[], cookie, SIGNALLED, at, context),
                        _ => ia.post_batch(ep, |batch| {
                            batch.post_rdma_write(&[], cookie, SIGNALLED, at, context)?;
                            batch.post_rdma_write(&[], cookie + 1, SIGNALLED, at, context)
                        }),
                    };
                    while let Err(error) = post() {
                        if error != Error::EpBusy && error != Error::TooManyPosts {
                            return Err(error);
                        }
                        core::hint::spin_loop();
                    }
                }
                Ok(())
            })?);
        }
        let mut next = [0u64; 3];
        for _ in 0..ROUNDS * 5 {
            let done = pair.a.reap()?;
            check_eq!(done.dto_status, DtoStatus::Success);
            let (thread, own) = ((done.cookie >> 32) as usize, done.cookie & 0xffff_ffff);
            check_eq!((thread, own), (thread, next[thread]));
            // Both requests of a batch come in a row.
            next[thread] = if thread > 0 && own & 1 == 0 { own + 1 } else { ((own >> 8) + 1) << 8 };
        }
        for thread in threads {
            thread.join()??;
        }
        breathe(f.platform());
        check!(pair.a.idle().is_ok(), "more completions than requests");
        Ok(())
    }),
];

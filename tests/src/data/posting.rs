//! Rules for all posts: resources they use, posts by several threads, when a request starts, and
//! when the buffer belongs to the consumer again (pages it_post_send, it_post_recv,
//! it_post_rdma_write, it_post_rdma_read, it_post_atomic; appendix A).

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;
use core::sync::atomic::{AtomicBool, Ordering};

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::{address, datagrams, peer};
use crate::fixture::{
    End, Fixture, OPEN, PAGE, Pair, Region, SIGNALLED, atomic_attributes, attributes, completion, pattern,
    sevd,
};
use crate::thread::{Thread, breathe};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, Transport, check, check_eq, refused, test};

/// Number of heap allocations during `work`.
fn allocations(f: &Fixture, work: &mut dyn FnMut()) -> u64 {
    let before = (f.setup.usage)().requests;
    work();
    (f.setup.usage)().requests - before
}

/// Fails unless `count` calls of `post` succeed without a heap allocation.
pub(crate) fn allocates_nothing(
    f: &Fixture,
    count: u64,
    mut post: impl FnMut(u64) -> Result<(), Error>,
) -> Outcome {
    let mut outcome = Ok(());
    let mut work = || {
        for cookie in 0..count {
            outcome = outcome.and(post(cookie));
        }
    };
    let taken = allocations(f, &mut work);
    outcome?;
    match taken {
        0 => Ok(()),
        taken => Err(Failure::new(alloc::format!("{count} posts allocated {taken} times"))),
    }
}

/// As [`allocates_nothing`], where another thread may allocate at the same time: one attempt
/// without allocations is enough.
pub(crate) fn retried(mut attempt: impl FnMut() -> Outcome) -> Outcome {
    let mut last = Ok(());
    for _ in 0..10 {
        last = attempt();
        if last.is_ok() {
            break;
        }
    }
    last
}

/// Two connected endpoints of one IA in one zone, so that one end can reach the memory that the
/// other one links.
fn within(f: &Fixture) -> Result<Pair, Failure> {
    let a = f.end(&f.b, &attributes())?;
    let (request, recv) =
        (sevd(&f.b, EventType::DTO_EVENT_STREAM, 64, 1)?, sevd(&f.b, EventType::DTO_EVENT_STREAM, 64, 1)?);
    let conn = sevd(&f.b, EventType::CM_MSG_EVENT_STREAM, 16, 1)?;
    let ep = f.b.ep_rc_create(a.pz, request, recv, conn, EpFlags::empty(), &attributes())?;
    let b = End { ia: f.b.clone(), pz: a.pz, request, recv, conn, ep };
    f.connect(&a, &b)?;
    Ok(Pair { a, b })
}

/// Links a wide RMR to a whole region through the pair's active end, without a completion.
fn link(pair: &Pair, rmr: RmrHandle, region: &Region) -> Result<RmrContext, Error> {
    let (addr, mode, length) = (region.buffer.addr(), AddrMode::Absolute, region.buffer.len() as u64);
    let (privs, silent) = (MemPriv::REMOTE, DtoFlags::empty());
    pair.a.ia.rmr_link(rmr, region.lmr, addr, length, mode, privs, pair.a.ep, 70, silent)
}

/// The request that is posted behind a link or an unlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Write,
    Read,
    Send,
}

impl Way {
    /// Posts it through the pair's active end: an RDMA operation on the other end's memory, or a
    /// Send.
    fn post(self, pair: &Pair, own: &Region, at: RdmaAddr, context: RmrContext) -> Result<(), Error> {
        let (ia, ep, segment) = (&pair.a.ia, pair.a.ep, [own.segment(0, 64)]);
        match self {
            Way::Write => ia.post_rdma_write(ep, &segment, 71, SIGNALLED, at, context),
            Way::Read => ia.post_rdma_read(ep, &segment, 71, SIGNALLED, at, context),
            Way::Send => ia.post_send(ep, &segment, 71, SIGNALLED),
        }
    }
}

pub(crate) const TESTS: &[Test] = &[
    // A post allocates nothing, so it cannot fail for want of memory.
    test(
        "data::posts_allocate_nothing",
        &[
            "A.it_post_rdma_read B01 B02",
            "A.it_post_rdma_write B01",
            "A.it_post_recv B01",
            "A.it_post_send B01",
        ],
        |f| {
            // Check first that allocations are counted at all.
            let boxed = allocations(f, &mut || drop(core::hint::black_box(vec![0_u8; 100])));
            check!(boxed > 0, "allocations are not counted");
            const DEPTH: u64 = 32;
            let most = f.setup.a.agent.identity().max_sges as usize;
            let wide = EpAttributes {
                max_request_dtos: DEPTH as usize,
                max_recv_dtos: DEPTH as usize,
                max_send_segments: most,
                max_recv_segments: most,
                rc: RcAttributes {
                    max_rdma_read_segments: most,
                    max_rdma_write_segments: most,
                    ..attributes().rc
                },
                ..attributes()
            };
            let pair = f.pair_of(&wide, &wide)?;
            let (own, there) =
                (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
            let (at, context) = (there.remote(0), there.context()?);
            let (ia, ep) = (&pair.a.ia, pair.a.ep);
            for count in [0, 1, most] {
                let segments = vec![own.segment(0, 8); count];
                // Each call is made as often as its queue has room. The queue is empty before.
                for way in 0..3 {
                    retried(|| {
                        let posted = allocates_nothing(f, DEPTH, |cookie| match way {
                            0 => ia.post_rdma_write(ep, &segments, cookie, SIGNALLED, at, context),
                            1 => ia.post_rdma_read(ep, &segments, cookie, SIGNALLED, at, context),
                            _ => pair.b.ia.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION),
                        });
                        for cookie in 0..DEPTH {
                            if way == 2 {
                                ia.post_send(ep, &[], cookie, SIGNALLED)?;
                                pair.b.recv_done(cookie, DtoStatus::Success)?;
                            }
                            pair.a.done(cookie, DtoStatus::Success)?;
                        }
                        posted
                    })?;
                }
                retried(|| {
                    let room = [there.whole()];
                    for cookie in 0..DEPTH {
                        f.b.post_recv(pair.b.ep, &room, cookie, DtoFlags::COMPLETION)?;
                    }
                    let posted = allocates_nothing(f, DEPTH, |c| ia.post_send(ep, &segments, c, SIGNALLED));
                    for cookie in 0..DEPTH {
                        pair.a.done(cookie, DtoStatus::Success)?;
                        pair.b.recv_done(cookie, DtoStatus::Success)?;
                    }
                    posted
                })?;
            }
            Ok(())
        },
    ),
    // Posting to a shared receive queue allocates nothing.
    test("data::shared_receives_allocate_nothing", &["A.it_post_recv B01"], |f| {
        let pz = f.b.pz_create()?;
        retried(|| {
            let srq = f.b.srq_create(pz, 1, 32)?;
            let posted =
                allocates_nothing(f, 32, |cookie| f.b.post_recv(srq, &[], cookie, DtoFlags::COMPLETION));
            refused(f.b.post_recv(srq, &[], 33, DtoFlags::COMPLETION), Error::TooManyPosts)?;
            f.b.srq_free(srq)?;
            posted
        })
    }),
    // Posting datagrams allocates nothing.
    test("data::datagrams_allocate_nothing", &["A.it_post_recvfrom B01", "A.it_post_sendto B01"], |f| {
        const DEPTH: u64 = 16;
        let depth = DEPTH as usize;
        let small = EpAttributes { max_request_dtos: depth, max_recv_dtos: depth, ..datagrams() };
        let (a, b) = (peer(&f.a, &small)?, peer(&f.b, &small)?);
        let (from, into) = (f.region(&f.a, a.pz, PAGE, OPEN)?, f.region(&f.b, b.pz, PAGE, OPEN)?);
        let to = DgRemoteEpAddr::IbUd { addr: address(&f.a, a.pz, &f.b)?, ep_info: b.info };
        retried(|| {
            let (room, said) = ([into.segment(0, 100)], [from.segment(0, 60)]);
            let received =
                allocates_nothing(f, DEPTH, |cookie| f.b.post_recvfrom(b.ep, &room, cookie, SIGNALLED));
            let sent =
                allocates_nothing(f, DEPTH, |cookie| f.a.post_sendto(a.ep, &said, cookie, SIGNALLED, &to));
            for cookie in 0..DEPTH {
                a.sent(cookie, DtoStatus::Success)?;
            }
            for cookie in 0..DEPTH {
                let done = b.arrival(f, || {
                    f.a.post_sendto(a.ep, &said, DEPTH, SIGNALLED, &to)?;
                    a.sent(DEPTH, DtoStatus::Success)
                })?;
                check_eq!((done.cookie, done.dto_status), (cookie, DtoStatus::Success));
            }
            received.and(sent)
        })
    }),
    // Posts return while the device still works on the first request.
    test(
        "data::posts_do_not_wait",
        &["A.it_post_rdma_read B01", "A.it_post_rdma_write B01", "A.it_post_recv B01", "A.it_post_send B01"],
        |f| {
            let pair = f.pair()?;
            let (own, there) = (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, OPEN)?);
            let (at, context) = (there.remote(0), there.context()?);
            // The first request is delayed for longer than it takes to post all others.
            f.inject_into(&pair.a, Injection::Delay, 1, 300_000_000)?;
            f.b.post_recv(pair.b.ep, &[], 1, DtoFlags::COMPLETION)?;
            let room = f.a.ep_query(pair.a.ep, EpParamMask::MAX_REQ_DTO)?.attr.max_request_dtos as u64;
            let segment = [own.whole()];
            f.a.post_send(pair.a.ep, &[], 0, SIGNALLED)?;
            for cookie in 1..room {
                match cookie % 2 {
                    0 => f.a.post_rdma_write(pair.a.ep, &segment, cookie, SIGNALLED, at, context)?,
                    _ => f.a.post_rdma_read(pair.a.ep, &segment, cookie, SIGNALLED, at, context)?,
                }
            }
            f.a.post_recv(pair.a.ep, &[], 1, DtoFlags::COMPLETION)?;
            refused(f.a.post_send(pair.a.ep, &[], 0, SIGNALLED), Error::TooManyPosts)?;
            pair.a.idle()?;
            pair.b.idle()?;
            for cookie in 0..room {
                pair.a.done(cookie, DtoStatus::Success)?;
            }
            pair.b.recv_done(1, DtoStatus::Success)
        },
    ),
    // Requests of several threads on one endpoint complete once each, those of one thread in their
    // order.
    test(
        "data::posts_from_many_threads",
        &["A.it_post_rdma_read B03", "A.it_post_rdma_write B01", "A.it_post_recv B01", "A.it_post_send B01"],
        |f| {
            const THREADS: u64 = 4;
            const EACH: u64 = 60;
            let depth = (THREADS * EACH) as usize;
            let deep = EpAttributes { max_request_dtos: depth, max_recv_dtos: depth, ..attributes() };
            let pair = f.pair_of(&deep, &deep)?;
            let (own, there) =
                (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
            let (at, context, segment) = (there.remote(0), there.context()?, own.segment(0, 8));
            let mut threads = Vec::new();
            for thread in 0..THREADS {
                let pair = pair.clone();
                let work = move || -> Result<(), Error> {
                    for n in 0..EACH {
                        let cookie = thread * 1000 + n;
                        pair.b.ia.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
                        let (ia, ep) = (&pair.a.ia, pair.a.ep);
                        match n % 3 {
                            0 => ia.post_send(ep, &[], cookie, SIGNALLED)?,
                            1 => ia.post_rdma_write(ep, &[segment], cookie, SIGNALLED, at, context)?,
                            _ => ia.post_rdma_read(ep, &[segment], cookie, SIGNALLED, at, context)?,
                        }
                    }
                    Ok(())
                };
                threads.push(Thread::spawn(f.platform(), "poster", work)?);
            }
            for thread in threads {
                thread.join()??;
            }
            // Each request completes once, and those of one thread complete in their order.
            let mut next = [0; THREADS as usize];
            for _ in 0..THREADS * EACH {
                let done = pair.a.reap()?;
                check_eq!(done.dto_status, DtoStatus::Success);
                let (thread, n) = ((done.cookie / 1000) as usize, done.cookie % 1000);
                check_eq!(Some(&n), next.get(thread), "the next cookie of thread {thread}");
                next[thread] += 1;
            }
            let mut taken = vec![false; (THREADS * 1000) as usize];
            for _ in 0..THREADS * EACH / 3 {
                let done = pair.b.reap_recv()?;
                let place = some(taken.get_mut(done.cookie as usize), "a cookie that was posted")?;
                check!(!*place && done.dto_status == DtoStatus::Success, "{done:?}");
                *place = true;
            }
            pair.a.idle()?;
            pair.b.idle()
        },
    ),
    // Datagrams of several threads on one endpoint complete once each.
    test("data::datagrams_from_many_threads", &["A.it_post_recvfrom B01", "A.it_post_sendto B01"], |f| {
        const THREADS: u64 = 4;
        const EACH: u64 = 16;
        let depth = (THREADS * EACH) as usize;
        let deep = EpAttributes { max_request_dtos: depth, max_recv_dtos: depth, ..datagrams() };
        let (a, b) = (peer(&f.a, &deep)?, peer(&f.b, &deep)?);
        let into = f.region(&f.b, b.pz, PAGE, OPEN)?;
        let to = DgRemoteEpAddr::IbUd { addr: address(&f.a, a.pz, &f.b)?, ep_info: b.info };
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let (ours, theirs, room) = (a.clone(), b.clone(), into.segment(0, 64));
            let work = move || -> Result<(), Error> {
                for n in 0..EACH {
                    let cookie = thread * EACH + n;
                    theirs.ia.post_recvfrom(theirs.ep, &[room], cookie, SIGNALLED)?;
                    ours.ia.post_sendto(ours.ep, &[], cookie, SIGNALLED, &to)?;
                }
                Ok(())
            };
            threads.push(Thread::spawn(f.platform(), "poster", work)?);
        }
        for thread in threads {
            thread.join()??;
        }
        let again = || {
            a.ia.post_sendto(a.ep, &[], 0, SIGNALLED, &to)?;
            a.sent(0, DtoStatus::Success)
        };
        let sent = || completion(&f.a, a.request);
        let arrived = || b.arrival(f, again);
        let both: [(_, &dyn Fn() -> Result<_, _>); 2] =
            [((&f.a, a.request), &sent), ((&f.b, b.recv), &arrived)];
        for ((ia, evd), next) in both {
            let mut seen = vec![false; depth];
            for _ in 0..depth {
                let done = next()?;
                let place = some(seen.get_mut(done.cookie as usize), "a cookie that was posted")?;
                check!(!*place && done.dto_status == DtoStatus::Success, "{done:?}");
                *place = true;
            }
            refused(ia.evd_dequeue(evd), Error::QueueEmpty)?;
        }
        Ok(())
    }),
    // A region without local read cannot be the source of a request.
    test(
        "data::sources_without_the_right",
        &["it_post_send B06", "it_post_rdma_write B06", "it_dto_status_t A06"],
        |f| {
            for way in [Way::Send, Way::Write] {
                let pair = f.pair()?;
                let there = f.region(&f.b, pair.b.pz, 64, OPEN)?;
                f.b.post_recv(pair.b.ep, &[there.whole()], 1, DtoFlags::COMPLETION)?;
                let (buffer, lmr) =
                    (f.buffer(PAGE)?, f.a.lmr_create_unlinked(pair.a.pz, 1, LmrFlags::NONE, 0)?);
                let (pages, addr) = ([IoAddr(buffer.bus())], buffer.addr());
                let (list, mode) = (Iobl::pages(&pages, PAGE as u64, 0), AddrMode::Absolute);
                let privs = match f.setup.transport {
                    Transport::InfiniBand => MemPriv::LOCAL_WRITE,
                    Transport::Iwarp => MemPriv::LOCAL_WRITE | MemPriv::REMOTE_WRITE,
                };
                f.a.lmr_link(lmr, addr, &list, PAGE as u64, mode, privs, pair.a.ep, 70, SIGNALLED)?;
                pair.a.done(70, DtoStatus::Success)?;
                let bare = Region { buffer, lmr, context: None };
                bare.fill(3);
                // The region can be the target of an operation that writes to it.
                f.a.post_rdma_read(
                    pair.a.ep,
                    &[bare.segment(0, 64)],
                    2,
                    SIGNALLED,
                    there.remote(0),
                    there.context()?,
                )?;
                pair.a.done(2, DtoStatus::Success)?;
                bare.fill(3);
                way.post(&pair, &bare, there.remote(0), there.context()?)?;
                pair.a.done(71, DtoStatus::LocalProtection)?;
                pair.a.broken()?;
                there.untouched()?;
            }
            Ok(())
        },
    ),
    // A peer of another endpoint cannot use a narrow RMR, even in the same zone.
    test(
        "data::a_narrow_rmr_is_for_its_own_endpoint",
        &["it_post_rdma_write A08", "it_post_rdma_read A08"],
        |f| {
            for way in [Way::Write, Way::Read] {
                let pair = f.pair()?;
                let (own, there) =
                    (f.region(&f.a, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.b.pz, 64, MemPriv::LOCAL)?);
                // A second endpoint in the same zone, with a narrow RMR of its own.
                let (request, recv) = (
                    sevd(&f.b, EventType::DTO_EVENT_STREAM, 64, 1)?,
                    sevd(&f.b, EventType::DTO_EVENT_STREAM, 64, 1)?,
                );
                let conn = sevd(&f.b, EventType::CM_MSG_EVENT_STREAM, 16, 1)?;
                let ep = f.b.ep_rc_create(pair.b.pz, request, recv, conn, EpFlags::empty(), &attributes())?;
                let other = Pair {
                    a: f.end(&f.a, &attributes())?,
                    b: End { ia: f.b.clone(), pz: pair.b.pz, request, recv, conn, ep },
                };
                f.connect(&other.a, &other.b)?;
                let rmr = f.b.rmr_create(pair.b.pz, RmrType::Narrow)?;
                let (addr, mode, privs) = (there.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
                let context =
                    f.b.rmr_link(rmr, there.lmr, addr, 64, mode, privs, other.b.ep, 1, SIGNALLED)?;
                other.b.done(1, DtoStatus::Success)?;
                own.fill(1);
                way.post(&pair, &own, there.remote(0), context)?;
                pair.a.done(71, DtoStatus::RemoteAccess)?;
                pair.a.broken()?;
                there.untouched()?;
                let own = f.region(&f.a, other.a.pz, 64, OPEN)?;
                way.post(&other, &own, there.remote(0), context)?;
                other.a.done(71, DtoStatus::Success)?;
                f.b.rmr_free(rmr)?;
            }
            Ok(())
        },
    ),
    // A request behind a link or an unlink would fail or succeed wrongly if it started before that.
    test(
        "data::nothing_starts_before_the_link_in_front_of_it",
        &["it_post_rdma_read B19", "it_post_rdma_write B19", "it_post_send B19"],
        |f| {
            for way in [Way::Write, Way::Read, Way::Send] {
                let pair = within(f)?;
                let (own, there) =
                    (f.region(&f.b, pair.a.pz, 64, OPEN)?, f.region(&f.b, pair.a.pz, 64, MemPriv::LOCAL)?);
                let rmr = f.b.rmr_create(pair.a.pz, RmrType::Wide)?;
                for round in 0..10 {
                    own.fill(round);
                    // Both ends are in one zone, so the requests of this end can reach the memory
                    // that it links.
                    let context = link(&pair, rmr, &there)?;
                    if way == Way::Send {
                        f.b.post_recv(pair.b.ep, &[there.whole()], 1, DtoFlags::COMPLETION)?;
                    }
                    way.post(&pair, &own, there.remote(0), context)?;
                    pair.a.done(71, DtoStatus::Success)?;
                    check!(way != Way::Write || f.arrives(|| there.all() == own.all()));
                    if way == Way::Send {
                        pair.b.recv_done(1, DtoStatus::Success)?;
                    }
                }
                // After an unlink the context is invalid.
                let context = some(f.b.rmr_query(rmr, RmrParamMask::ALL)?.rmr_context, "a context")?;
                if way != Way::Send {
                    f.b.rmr_unlink(rmr, pair.a.ep, 72, DtoFlags::empty())?;
                    way.post(&pair, &own, there.remote(0), context)?;
                    pair.a.done(71, DtoStatus::RemoteAccess)?;
                    continue;
                }
                // No request behind a failed link starts.
                let bare = f.region(&f.b, f.b.pz_create()?, 64, MemPriv::LOCAL)?;
                f.b.post_recv(pair.b.ep, &[there.whole()], 1, DtoFlags::COMPLETION)?;
                link(&pair, rmr, &bare)?;
                way.post(&pair, &own, there.remote(0), context)?;
                pair.a.done(70, DtoStatus::RmrOperationFailed)?;
                pair.a.done(71, DtoStatus::Flushed)?;
                pair.b.recv_done(1, DtoStatus::Flushed)?;
            }
            Ok(())
        },
    ),
    // After the completion of a Send its buffer can be reused, and the message arrives unchanged.
    test("data::the_buffer_is_the_consumers_again", &["it_post_rdma_write B12", "it_post_send B12"], |f| {
        let pair = f.pair()?;
        let (own, there) = (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
        for round in 0..20 {
            let sent = pattern(round, PAGE);
            own.write(0, &sent);
            if round % 2 == 0 {
                let (at, context) = (there.remote(0), there.context()?);
                f.a.post_rdma_write(pair.a.ep, &[own.whole()], 1, SIGNALLED, at, context)?;
            } else {
                f.b.post_recv(pair.b.ep, &[there.whole()], 2, DtoFlags::COMPLETION)?;
                f.a.post_send(pair.a.ep, &[own.whole()], 1, SIGNALLED)?;
            }
            pair.a.done(1, DtoStatus::Success)?;
            own.buffer.slice().fill(0xee);
            // A later Send completes after the data of the earlier request has arrived.
            f.b.post_recv(pair.b.ep, &[], 3, DtoFlags::COMPLETION)?;
            f.a.post_send(pair.a.ep, &[], 4, SIGNALLED)?;
            if round % 2 == 1 {
                pair.b.recv_done(2, DtoStatus::Success)?;
            }
            pair.b.recv_done(3, DtoStatus::Success)?;
            pair.a.done(4, DtoStatus::Success)?;
            check!(there.all() == sent, "round {round}");
        }
        Ok(())
    }),
    // A consumer that changes a buffer during its Send sends undefined bytes, but does no other
    // harm.
    test("data::a_buffer_that_changes_during_its_send", &["it_post_send V02"], |f| {
        let len = 64 * PAGE;
        let pair = f.pair()?;
        let (own, there) =
            (f.region(&f.a, pair.a.pz, len, OPEN)?, f.region(&f.b, pair.b.pz, len + 64, OPEN)?);
        let (buffer, enough) = (own.buffer.clone(), Arc::new(AtomicBool::new(false)));
        let (stop, platform) = (enough.clone(), f.platform().clone());
        let scribbler = Thread::spawn(f.platform(), "scribbler", move || {
            let mut byte = 1_u8;
            while !stop.load(Ordering::Acquire) {
                for at in (0..len).step_by(PAGE) {
                    crate::fixture::write(&buffer, at, &[byte; 8]);
                }
                byte = byte.wrapping_add(1);
                breathe(&platform);
            }
        })?;
        let sends = || -> Outcome {
            for cookie in 0..30 {
                f.b.post_recv(pair.b.ep, &[there.segment(0, len)], cookie, DtoFlags::COMPLETION)?;
                f.a.post_send(pair.a.ep, &[own.whole()], cookie, SIGNALLED)?;
                let got = pair.b.reap_recv()?;
                check_eq!((got.cookie, got.dto_status), (cookie, DtoStatus::Success));
                check_eq!(got.transferred_length as usize, len);
                pair.a.done(cookie, DtoStatus::Success)?;
            }
            Ok(())
        };
        let sent = sends();
        enough.store(true, Ordering::Release);
        scribbler.join()?;
        sent?;
        // The content of the message is undefined, but nothing beyond the message was written.
        check!(there.bytes(len, 64).iter().all(|&byte| byte == 0));
        check!(there.bytes(8, PAGE - 8).iter().all(|&byte| byte == 0));
        Ok(())
    }),
    // An atomic without an answer fails, and was executed once at most.
    test("data::atomics_that_get_no_answer", &["it_post_atomic A14"], |f| {
        Need::Atomics.of(&f.a)?;
        // A damaged packet is dropped. If that happens to every packet, the atomic completes with a
        // transport error.
        let pair = Pair { a: f.end(&f.a, &attributes())?, b: f.end(&f.b, &atomic_attributes())? };
        // Two attempts with a timeout of 4.096 us * 2^12 = 17 ms each.
        let hasty = ConnAttributes { retry_count: 1, local_ack_timeout: 12, ..ConnAttributes::default() };
        f.connect_with(&pair.a, &pair.b, Some(&hasty))?;
        let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
        let there = f.region(&f.b, pair.b.pz, 64, OPEN.union(MemPriv::ATOMIC))?;
        let (at, context, sink) = (there.remote(0), there.context()?, own.segment(0, 8));
        let op = AtomicOp::FetchAndAdd;
        f.a.post_atomic(pair.a.ep, op, 1, 0, &sink, 1, SIGNALLED, at, context)?;
        pair.a.done(1, DtoStatus::Success)?;
        f.inject_into(&pair.a, Injection::DropResponses, 1000, 0)?;
        f.a.post_atomic(pair.a.ep, op, 1, 0, &sink, 2, SIGNALLED, at, context)?;
        pair.a.done(2, DtoStatus::Transport)?;
        pair.a.broken()?;
        // The atomic was executed once, although the request was sent several times.
        check_eq!(there.bytes(0, 8), 2_u64.to_ne_bytes());
        Ok(())
    }),
];

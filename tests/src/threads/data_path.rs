//! Threads on the data path: posters, reapers, and callbacks beside them (chapter 4.2, "strongly
//! thread-safe").
//!
//! `objects` has the tests of threads that change objects, `frees` those of threads that free
//! objects in use.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use platform::sync::Mutex;
use privileged_api::*;

use crate::fixture::{End, Fixture, OPEN, PAGE, SIGNALLED, WAIT, attributes, sevd};
use crate::thread::{Body, Thread, all_pass, eventually, together};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Number of threads with the same task.
const THREADS: usize = 4;
/// Number of requests that each thread posts.
const POSTS: usize = if cfg!(miri) { 6 } else { 40 };

/// A cookie made of the number of the thread and the number of its request.
fn cookie(thread: usize, n: usize) -> u64 {
    (thread as u64) << 32 | n as u64
}

/// Fails unless each thread's cookies are there once each, in the order in which they were posted.
fn in_order(cookies: &[u64], threads: usize, each: usize) -> Outcome {
    let mut next = vec![0; threads];
    for &got in cookies {
        let (thread, n) = ((got >> 32) as usize, got as u32 as usize);
        check!(thread < threads && next[thread] == n, "thread {thread}: {n} after {:?}", next.get(thread));
        next[thread] += 1;
    }
    check!(next.iter().all(|&count| count == each), "some are missing: {next:?}");
    Ok(())
}

/// Attributes of an endpoint with room for all requests of all threads.
fn roomy() -> EpAttributes {
    EpAttributes { max_request_dtos: THREADS * POSTS, max_recv_dtos: THREADS * POSTS, ..attributes() }
}

/// Takes `count` completions from an EVD, each of which must be a success.
fn take(ia: &Ia, evd: EvdHandle, count: usize) -> Result<Vec<DtoCompletion>, Failure> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let (event, _) = ia.evd_wait(evd, WAIT)?;
        match event {
            Event::Dto(done) if done.dto_status == DtoStatus::Success => taken.push(done),
            other => return Err(Failure::new(alloc::format!("{other:?}"))),
        }
    }
    Ok(taken)
}

/// Takes software events until one carries 0, and returns their data.
fn take_software(ia: &Ia, evd: EvdHandle, waits: bool) -> Result<Vec<usize>, Failure> {
    let mut taken = Vec::new();
    loop {
        let event = if waits {
            ia.evd_wait(evd, WAIT).map(|(event, _)| event)
        } else {
            Err(Error::QueueEmpty.into())
        };
        let event = match event {
            Err(failure) if failure.error == Error::QueueEmpty => match ia.evd_dequeue(evd) {
                Ok(event) => event,
                Err(Error::QueueEmpty) => {
                    // Let other threads run in the simulation.
                    ia.evd_query(evd, EvdParamMask::ALL)?;
                    core::hint::spin_loop();
                    continue;
                }
                Err(error) => return Err(error.into()),
            },
            other => other?,
        };
        match event {
            Event::Software { data: 0, .. } => return Ok(taken),
            Event::Software { data, .. } => taken.push(data),
            other => return Err(Failure::new(alloc::format!("{other:?}"))),
        }
    }
}

/// Posts `count` software events of this thread, each as soon as there is room.
fn post_software(ia: &Ia, evd: EvdHandle, thread: usize, count: usize) -> Outcome {
    for n in 0..count {
        while let Err(error) = ia.evd_post_se(evd, cookie(thread, n) as usize + 1) {
            check_eq!(error, Error::EvdQueueFull);
            core::hint::spin_loop();
        }
    }
    Ok(())
}

/// Two connected pairs whose ends on `a` share a protection zone and EVDs.
fn sharing(f: &Fixture) -> Result<[(End, End); 2], Failure> {
    let (pz, conn) = (f.a.pz_create()?, sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 16, 1)?);
    let dto = |ia| sevd(ia, EventType::DTO_EVENT_STREAM, 4 * THREADS * POSTS, 1);
    let (request, recv) = (dto(&f.a)?, dto(&f.a)?);
    let connected = || {
        let ep = f.a.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), &roomy())?;
        let own = End { ia: f.a.clone(), pz, request, recv, conn, ep };
        let peer = f.end(&f.b, &roomy())?;
        f.connect(&own, &peer)?;
        Ok::<_, Failure>((own, peer))
    };
    Ok([connected()?, connected()?])
}

pub(crate) const TESTS: &[Test] = &[
    // Requests of several threads to one endpoint complete once each and do what each of them says.
    test("threads::posts_to_one_endpoint", &["4.2 B01 B04 B11 O01"], |f| {
        let pair = f.pair_of(&roomy(), &roomy())?;
        let region = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        let sink = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        region.fill(3);
        let context = sink.context()?;
        // Each thread has its own part of the sink and writes every word of it.
        let part = PAGE / THREADS;
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for thread in 0..THREADS {
            let (end, peer) = (pair.a.clone(), pair.b.clone());
            let place = |n: usize| thread * part + n * 8;
            let writes: Vec<_> =
                (0..POSTS).map(|n| (region.segment(place(n), 8), sink.remote(place(n)))).collect();
            bodies.push(Box::new(move || {
                for (n, (segment, to)) in writes.into_iter().enumerate() {
                    peer.ia.post_recv(peer.ep, &[], cookie(thread, n), DtoFlags::COMPLETION)?;
                    let posted = match n % 2 {
                        0 => end.ia.post_rdma_write(
                            end.ep,
                            &[segment],
                            cookie(thread, n),
                            SIGNALLED,
                            to,
                            context,
                        ),
                        _ => end.ia.post_send(end.ep, &[], cookie(thread, n), SIGNALLED),
                    };
                    posted?;
                }
                Ok(())
            }));
        }
        all_pass(f.platform(), bodies)?;
        let done: Vec<u64> =
            take(&f.a, pair.a.request, THREADS * POSTS)?.iter().map(|done| done.cookie).collect();
        in_order(&done, THREADS, POSTS)?;
        let received = take(&f.b, pair.b.recv, THREADS * POSTS / 2)?;
        check!(received.iter().all(|done| done.ep == pair.b.ep));
        for thread in 0..THREADS {
            for n in (0..POSTS).step_by(2) {
                let at = thread * part + n * 8;
                check!(sink.bytes(at, 8) == region.bytes(at, 8), "thread {thread}, write {n}");
            }
        }
        pair.a.idle()
    }),
    // Threads on different endpoints do not disturb each other, although zone and EVDs are the
    // same.
    test("threads::endpoints_that_share_everything_else", &["4.2 B06"], |f| {
        let pairs = sharing(f)?;
        let own = &pairs[0].0;
        let region = f.region(&f.a, own.pz, PAGE, OPEN)?;
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for (thread, (end, peer)) in pairs.iter().cloned().enumerate() {
            let segment = region.segment(thread * 64, 64);
            bodies.push(Box::new(move || {
                for n in 0..POSTS {
                    peer.ia.post_recv(peer.ep, &[], cookie(thread, n), DtoFlags::COMPLETION)?;
                    end.ia.post_recv(end.ep, &[segment], cookie(thread, n), DtoFlags::COMPLETION)?;
                    end.ia.post_send(end.ep, &[], cookie(thread, n), SIGNALLED)?;
                    peer.ia.post_send(peer.ep, &[], cookie(thread, n), SIGNALLED)?;
                }
                Ok(())
            }));
        }
        all_pass(f.platform(), bodies)?;
        for evd in [own.request, own.recv] {
            let done = take(&f.a, evd, 2 * POSTS)?;
            for completion in &done {
                let thread = (completion.cookie >> 32) as usize;
                check!(pairs.get(thread).is_some_and(|(end, _)| end.ep == completion.ep), "{completion:?}");
            }
            let cookies: Vec<u64> = done.iter().map(|done| done.cookie).collect();
            in_order(&cookies, 2, POSTS)?;
        }
        for (_, peer) in &pairs {
            take(&f.b, peer.recv, POSTS)?;
            take(&f.b, peer.request, POSTS)?;
        }
        own.idle()
    }),
    // With posters, reapers and waiters at once, each event is taken exactly once.
    test("threads::each_software_event_is_taken_once", &["4.2 B01 B02", "it_evd_dequeue B11"], |f| {
        let each = 150;
        // The queue is smaller than the number of events, so posters meet a full queue as well.
        let evd =
            f.a.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 32, 1, EvdHandle::NULL)?;
        let mut takers = Vec::new();
        for waits in [true, true, false] {
            let ia = f.a.clone();
            takers.push(Thread::spawn(f.platform(), "taker", move || take_software(&ia, evd, waits))?);
        }
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for thread in 0..THREADS {
            let ia = f.a.clone();
            bodies.push(Box::new(move || post_software(&ia, evd, thread, each)));
        }
        // Objects of other types are created and freed meanwhile.
        let ia = f.a.clone();
        bodies.push(Box::new(move || {
            for _ in 0..20 {
                let pz = ia.pz_create()?;
                let other = sevd(&ia, EventType::DTO_EVENT_STREAM, 8, 1)?;
                ia.evd_free(other)?;
                ia.pz_free(pz)?;
            }
            Ok(())
        }));
        all_pass(f.platform(), bodies)?;
        for _ in &takers {
            while f.a.evd_post_se(evd, 0).is_err() {}
        }
        let mut all = Vec::new();
        for taker in takers {
            let taken = taker.join()??;
            // The events that one taker got from one poster are in order.
            for thread in 0..THREADS {
                let own: Vec<_> = taken.iter().filter(|&&data| (data - 1) >> 32 == thread).collect();
                check!(own.is_sorted());
            }
            all.extend(taken);
        }
        all.sort_unstable();
        let cookies: Vec<u64> = all.iter().map(|data| *data as u64 - 1).collect();
        in_order(&cookies, THREADS, each)?;
        refused(f.a.evd_dequeue(evd), Error::QueueEmpty)
    }),
    // With reapers of each kind at once, each completion is taken exactly once.
    test("threads::each_completion_is_taken_once", &["4.2 B01 B02", "it_evd_dequeue B11"], |f| {
        let pairs = sharing(f)?;
        let evd = pairs[0].0.request;
        let taken: Arc<Mutex<Vec<u64>>> = Arc::new(Mutex::new(Vec::new()));
        let count = Arc::new(AtomicUsize::new(0));
        let total = 2 * POSTS;
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for (thread, (end, peer)) in pairs.iter().cloned().enumerate() {
            bodies.push(Box::new(move || {
                for n in 0..POSTS {
                    peer.ia.post_recv(peer.ep, &[], 1, DtoFlags::COMPLETION)?;
                    end.ia.post_send(end.ep, &[], cookie(thread, n), SIGNALLED)?;
                }
                Ok(())
            }));
        }
        for way in 0..3 {
            let (ia, taken, count) = (f.a.clone(), taken.clone(), count.clone());
            bodies.push(Box::new(move || {
                while count.load(Ordering::Acquire) < total {
                    let mut many = [DtoCompletion::default(); 8];
                    let got = match way {
                        // The waits are short, since another thread may take the last completion.
                        0 => match ia.evd_wait(evd, 500) {
                            Ok((Event::Dto(done), _)) => vec![done],
                            Err(failure) if failure.error == Error::TimeoutExpired => vec![],
                            other => return Err(Failure::new(alloc::format!("{other:?}"))),
                        },
                        1 => match ia.evd_dequeue(evd) {
                            Ok(Event::Dto(done)) => vec![done],
                            Err(Error::QueueEmpty) => vec![],
                            other => return Err(Failure::new(alloc::format!("{other:?}"))),
                        },
                        _ => match ia.evd_dequeue_n(evd, &mut many) {
                            Ok(n) => many[..n].to_vec(),
                            Err(Error::QueueEmpty) => vec![],
                            Err(error) => return Err(error.into()),
                        },
                    };
                    check!(got.iter().all(|done| done.dto_status == DtoStatus::Success));
                    taken.lock().extend(got.iter().map(|done| done.cookie));
                    count.fetch_add(got.len(), Ordering::AcqRel);
                }
                Ok(())
            }));
        }
        all_pass(f.platform(), bodies)?;
        let mut cookies = taken.lock().clone();
        cookies.sort_unstable();
        in_order(&cookies, 2, POSTS)?;
        refused(f.a.evd_dequeue(evd), Error::QueueEmpty)
    }),
    // While a callback is attached and detached again and again, each event is taken exactly once.
    test("threads::callbacks_come_and_go", &["4.2 B01 B09"], |f| {
        let each = 150;
        let evd =
            f.a.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 64, 1, EvdHandle::NULL)?;
        let taken: Arc<Mutex<Vec<u64>>> = Arc::new(Mutex::new(Vec::new()));
        let (inside, twice) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let empty = {
            let taken = taken.clone();
            move |ia: &Ia| {
                while let Ok(event) = ia.evd_dequeue(evd) {
                    if let Event::Software { data, .. } = event {
                        taken.lock().push(data as u64 - 1);
                    }
                }
            }
        };
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for thread in 0..2 {
            let ia = f.a.clone();
            bodies.push(Box::new(move || post_software(&ia, evd, thread, each)));
        }
        // One thread attaches and detaches the callback, ...
        let (ia, into, over) = (f.a.clone(), inside.clone(), twice.clone());
        let routine = empty.clone();
        bodies.push(Box::new(move || {
            for _ in 0..60 {
                let (into, over, routine) = (into.clone(), over.clone(), routine.clone());
                ia.evd_callback_attach(
                    evd,
                    Box::new(move |ia, _| {
                        if into.swap(true, Ordering::AcqRel) {
                            over.store(true, Ordering::Release);
                        }
                        routine(ia);
                        into.store(false, Ordering::Release);
                    }),
                )?;
                ia.evd_query(evd, EvdParamMask::CALLBACK)?;
                ia.evd_callback_detach(evd)?;
            }
            Ok(())
        }));
        // ... and one takes the events for which no callback ran.
        let (ia, drain, seen) = (f.a.clone(), empty.clone(), taken.clone());
        bodies.push(Box::new(move || {
            while seen.lock().len() < 2 * each {
                drain(&ia);
                core::hint::spin_loop();
            }
            Ok(())
        }));
        all_pass(f.platform(), bodies)?;
        check!(!twice.load(Ordering::Acquire), "two callbacks of one EVD ran at once");
        check!(eventually(f.platform(), || !inside.load(Ordering::Acquire)));
        let mut cookies = taken.lock().clone();
        cookies.sort_unstable();
        in_order(&cookies, 2, each)
    }),
    // Threads that link different RMRs do not disturb each other.
    test("threads::links_without_anything_in_common", &["4.2 B07 B08 B11"], |f| {
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for rmr_type in [RmrType::Narrow, RmrType::Wide] {
            let pair = f.pair()?;
            let region = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
            let own = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let rmr = f.b.rmr_create(pair.b.pz, rmr_type)?;
            bodies.push(Box::new(move || {
                let (end, mode, privs) = (&pair.b, AddrMode::Absolute, MemPriv::REMOTE);
                for n in 0..20 {
                    let (addr, length) = (region.buffer.addr() + 64 * n, 64 + n as u64);
                    let context =
                        end.ia.rmr_link(rmr, region.lmr, addr, length, mode, privs, end.ep, 1, SIGNALLED)?;
                    end.done(1, DtoStatus::Success)?;
                    let param = end.ia.rmr_query(rmr, RmrParamMask::ALL)?;
                    check_eq!((param.addr, param.length, param.rmr_context), (addr, length, Some(context)));
                    let to = region.remote(64 * n);
                    pair.a.ia.post_rdma_write(pair.a.ep, &[own.whole()], 2, SIGNALLED, to, context)?;
                    let status = pair.a.settled(pair.a.reap()?.dto_status)?;
                    check_eq!(status, DtoStatus::Success);
                    end.ia.rmr_unlink(rmr, end.ep, 3, SIGNALLED)?;
                    end.done(3, DtoStatus::Success)?;
                    check!(!end.ia.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
                }
                Ok(())
            }));
        }
        all_pass(f.platform(), bodies)
    }),
    // If several threads link one RMR, the parameters are always those of one of the links.
    test("threads::links_of_one_region", &["4.2 B04 B11 B12"], |f| {
        // RMR, LMR and endpoint are the same for all threads. Only the strong thread model asks for
        // that.
        let pair = f.pair_of(&roomy(), &roomy())?;
        let region = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
        let rmr = f.b.rmr_create(pair.b.pz, RmrType::Wide)?;
        let each = 30;
        let (base, mode) = (region.buffer.addr(), AddrMode::Absolute);
        // Address, length and privileges of a link belong together.
        let link = move |n: usize| {
            let privs = if n.is_multiple_of(2) { MemPriv::REMOTE_READ } else { MemPriv::REMOTE_WRITE };
            (base + 8 * n, 100 + n as u64, privs)
        };
        let belongs = move |param: &RmrParam| {
            !param.linked || (0..2 * each).any(|n| link(n) == (param.addr, param.length, param.privs))
        };
        let linking = Arc::new(AtomicUsize::new(2));
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for thread in 0..2 {
            let (end, lmr, linking) = (pair.b.clone(), region.lmr, linking.clone());
            bodies.push(Box::new(move || {
                let outcome = (0..each).try_for_each(|n| {
                    let (addr, length, privs) = link(thread * each + n);
                    let cookie = cookie(thread, n);
                    end.ia.rmr_link(rmr, lmr, addr, length, mode, privs, end.ep, cookie, SIGNALLED)?;
                    Ok::<_, Failure>(())
                });
                linking.fetch_sub(1, Ordering::AcqRel);
                outcome
            }));
        }
        for _ in 0..2 {
            let (ia, linking, lmr) = (f.b.clone(), linking.clone(), region.lmr);
            bodies.push(Box::new(move || {
                loop {
                    let last = linking.load(Ordering::Acquire) == 0;
                    let param = ia.rmr_query(rmr, RmrParamMask::ALL)?;
                    check!(belongs(&param), "parts of two links: {param:?}");
                    check!(!param.linked || param.lmr == lmr && param.rmr_context.is_some());
                    if last {
                        return Ok(());
                    }
                }
            }));
        }
        all_pass(f.platform(), bodies)?;
        let done = take(&f.b, pair.b.request, 2 * each)?;
        let cookies: Vec<u64> = done.iter().map(|done| done.cookie).collect();
        in_order(&cookies, 2, each)?;
        // The link that completed last is in force.
        let last = cookies.last().copied().unwrap_or_default();
        let (addr, length, privs) = link((last >> 32) as usize * each + last as u32 as usize);
        let param = f.b.rmr_query(rmr, RmrParamMask::ALL)?;
        check_eq!((param.addr, param.length, param.privs), (addr, length, privs));
        Ok(())
    }),
    // Threads that link and unlink different regions through one endpoint do not disturb each
    // other.
    test("threads::region_links_on_one_endpoint", &["4.2 B09 V02"], |f| {
        let pair = f.pair_of(&roomy(), &roomy())?;
        let (each, length) = (12, PAGE as u64);
        let taken: Arc<Mutex<Vec<u64>>> = Arc::new(Mutex::new(Vec::new()));
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        // A list keeps no memory alive: the buffers must outlive the links that are under way.
        let mut buffers = Vec::new();
        for thread in 0..2 {
            let end = pair.b.clone();
            let lmr = end.ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?;
            let (buffer, taken) = (f.buffer(PAGE)?, taken.clone());
            buffers.push(buffer.clone());
            bodies.push(Box::new(move || {
                let pages = [IoAddr(buffer.bus())];
                let (iobl, mode) = (Iobl::pages(&pages, length, 0), AddrMode::Absolute);
                for n in 0..each {
                    let addr = buffer.addr();
                    let done = cookie(thread, n);
                    let flags = DtoFlags::empty();
                    let link = || end.ia.lmr_link(lmr, addr, &iobl, length, mode, OPEN, end.ep, done, flags);
                    // Several links may be outstanding, but not any number. When that number is
                    // reached, completions have to be taken.
                    while let Err(error) = link() {
                        check_eq!(error, Error::Resources);
                        let mut taken = taken.lock();
                        if let Ok(Event::Dto(done)) = end.ia.evd_dequeue(end.request) {
                            check_eq!(done.dto_status, DtoStatus::Success);
                            taken.push(done.cookie);
                        }
                    }
                    // The unlink follows the thread's own link, regardless of what other threads
                    // post.
                    end.ia.lmr_unlink(lmr, end.ep, done, SIGNALLED)?;
                }
                Ok(())
            }));
        }
        all_pass(f.platform(), bodies)?;
        let mut cookies = taken.lock().clone();
        let left = 2 * each - cookies.len();
        cookies.extend(take(&f.b, pair.b.request, left)?.iter().map(|done| done.cookie));
        in_order(&cookies, 2, each)
    }),
    // Threads that post, reap and query at both ends of a connection do not disturb each other.
    test("threads::both_ends_at_work", &["4.2 B11"], |f| {
        // Each end has a thread that posts, one that takes completions, and one that queries.
        let pair = f.pair_of(&roomy(), &roomy())?;
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for end in [&pair.a, &pair.b] {
            for n in 0..POSTS {
                end.ia.post_recv(end.ep, &[], n as u64, DtoFlags::COMPLETION)?;
            }
            let own = end.clone();
            bodies.push(Box::new(move || {
                (0..POSTS).try_for_each(|n| own.ia.post_send(own.ep, &[], cookie(0, n), SIGNALLED))?;
                Ok(())
            }));
            let own = end.clone();
            bodies.push(Box::new(move || {
                let sent = take(&own.ia, own.request, POSTS)?;
                let received = take(&own.ia, own.recv, POSTS)?;
                for done in [sent, received] {
                    let cookies: Vec<u64> = done.iter().map(|done| done.cookie).collect();
                    in_order(&cookies, 1, POSTS)?;
                }
                Ok(())
            }));
            let own = end.clone();
            bodies.push(Box::new(move || {
                for _ in 0..POSTS {
                    check_eq!(own.state()?, EpStateRc::Connected);
                    own.ia.evd_query(own.recv, EvdParamMask::ALL)?;
                }
                Ok(())
            }));
        }
        all_pass(f.platform(), bodies)?;
        pair.a.idle()?;
        pair.b.idle()
    }),
    // Each of several waiters gets exactly one of as many events.
    test("threads::waiters_and_their_events", &["4.2 B02"], |f| {
        // There are as many waiters as events, and each waiter gets one.
        let evd =
            f.a.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 32, 1, EvdHandle::NULL)?;
        for round in 0..5 {
            let mut bodies: Vec<Body<Result<usize, Error>>> = Vec::new();
            for _ in 0..THREADS {
                let ia = f.a.clone();
                bodies.push(Box::new(move || match ia.evd_wait(evd, WAIT)? {
                    (Event::Software { data, .. }, _) => Ok(data),
                    _ => Ok(usize::MAX),
                }));
            }
            for n in 0..THREADS {
                let ia = f.a.clone();
                bodies.push(Box::new(move || ia.evd_post_se(evd, n).map(|()| n)));
            }
            let mut got =
                together(f.platform(), bodies)?.into_iter().take(THREADS).collect::<Result<Vec<_>, _>>()?;
            got.sort_unstable();
            check_eq!(got, (0..THREADS).collect::<Vec<_>>(), "round {round}");
        }
        Ok(())
    }),
];

//! Several threads that call one IA at the same time.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use dat::*;

use super::events::{MERGED, invalid};
use super::world::*;
use crate::fixture::PAGE;
use crate::thread::{Body, Thread, all_pass, breathe, pause, together};
use crate::{Failure, Outcome, Test, check, check_eq, test};

/// Number of threads with the same task.
const THREADS: usize = 3;
/// Number of requests, or of objects, of each of them.
const EACH: usize = if cfg!(miri) { 4 } else { 40 };

/// Attributes of an endpoint with room for all requests of all threads.
fn roomy() -> EpAttr {
    EpAttr { max_request_dtos: THREADS * EACH, max_recv_dtos: THREADS * EACH, ..attributes() }
}

/// A cookie made of the number of the thread and the number of its request.
fn cookie(thread: usize, n: usize) -> u64 {
    (thread as u64) << 32 | n as u64
}

/// Fails unless each cookie of all threads is there once, and those of one thread are in their
/// order.
fn in_order(cookies: &[u64]) -> Outcome {
    let mut next = vec![0; THREADS];
    for &got in cookies {
        let (thread, n) = ((got >> 32) as usize, got as u32 as usize);
        check!(thread < THREADS && next[thread] == n, "thread {thread}: {n} after {:?}", next.get(thread));
        next[thread] += 1;
    }
    check_eq!(next, vec![EACH; THREADS]);
    Ok(())
}

/// Creates an object of each type, uses and frees them.
fn one_of_each(ia: &Ia, buffer: &Arc<platform::DmaBuffer>, thread: usize) -> Outcome {
    let pz = ia.pz_create()?;
    let memory = RegionDescription::buffer(buffer);
    let lmr = ia.lmr_create(memory, 64 + thread as u64, pz, OPEN, VaType::Va)?.lmr_handle;
    let rmr = ia.rmr_create(pz)?;
    let srq = ia.srq_create(pz, &SrqAttr::default())?;
    let cno = ia.cno_create(None)?;
    let (dto, many) = (evd(ia, EvdFlags::DTO)?, ia.evd_create(8, cno, MERGED)?);
    let ep = ia.ep_create(pz, dto, dto, many, Some(&attributes()))?;
    let on_srq = ia.ep_create_with_srq(pz, dto, dto, many, srq, &attributes())?;
    let (conn_qual, psp) = ia.psp_create_any(many, PspFlags::Consumer)?;
    let handles: [Handle; 10] = [
        pz.into(),
        lmr.into(),
        rmr.into(),
        srq.into(),
        cno.into(),
        dto.into(),
        many.into(),
        ep.into(),
        on_srq.into(),
        psp.into(),
    ];
    for (n, handle) in handles.into_iter().enumerate() {
        ia.set_consumer_context(handle, cookie(thread, n))?;
    }
    check_eq!(ia.lmr_query(lmr)?.length, 64 + thread as u64);
    check_eq!(ia.rmr_query(rmr)?.pz_handle, pz);
    check_eq!(ia.evd_query(many)?.cno_handle, cno);
    check_eq!(ia.psp_query(psp)?.conn_qual, conn_qual);
    let param = ia.ep_query(on_srq, EpParamMask::ALL)?;
    check_eq!((param.srq_handle, param.connect_evd_handle), (srq, many));
    ia.evd_post_se(many, &Event::software(many, thread))?;
    check_eq!(ia.cno_wait(cno, LONG)?, many);
    check_eq!(ia.evd_dequeue(many)?, Event::software(many, thread));
    for (n, handle) in handles.into_iter().enumerate() {
        check_eq!(ia.get_consumer_context(handle)?, Some(cookie(thread, n)), "{handle:?}");
    }
    ia.psp_free(psp)?;
    ia.ep_free(on_srq)?;
    ia.ep_free(ep)?;
    ia.evd_free(dto)?;
    ia.evd_free(many)?;
    ia.cno_free(cno)?;
    ia.srq_free(srq)?;
    ia.rmr_free(rmr)?;
    ia.lmr_free(lmr)?;
    Ok(ia.pz_free(pz)?)
}

pub(crate) const TESTS: &[Test] = &[
    // Threads post Sends and Receives to one pair, and others take the completions. Each request
    // completes once; the requests of one thread complete in their order.
    test("dat_threads::posts_to_one_endpoint", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair_of(&roomy(), &roomy())?;
            let mut bodies: Vec<Body<Result<Vec<u64>, Failure>>> = Vec::new();
            for thread in 0..THREADS {
                let (a, b) = (a.clone(), b.clone());
                bodies.push(Box::new(move || {
                    for n in 0..EACH {
                        b.receive(&[], cookie(thread, n))?;
                        a.send(&[], cookie(thread, n))?;
                    }
                    Ok(Vec::new())
                }));
            }
            for (ia, evd) in [(w.a.clone(), a.request), (w.b.clone(), b.recv)] {
                bodies.push(Box::new(move || {
                    let mut cookies = Vec::new();
                    while cookies.len() < THREADS * EACH {
                        let (done, _, _) = completion(&ia, evd)?;
                        check_eq!(done.status, DtoStatus::Success);
                        cookies.push(done.user_cookie);
                    }
                    Ok(cookies)
                }));
            }
            for (n, cookies) in together(w.f.platform(), bodies)?.into_iter().enumerate() {
                let cookies = cookies?;
                if n >= THREADS {
                    in_order(&cookies)?;
                }
            }
            nothing(&w.a, a.request)?;
            nothing(&w.b, b.recv)
        })
    }),
    // Several threads dequeue from one event dispatcher while others post to it. Each event is
    // taken once.
    test("dat_threads::dequeues_from_one_event_dispatcher", &[], |f| {
        world(f, |w| {
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let evd = w.a.evd_create(2 * THREADS * EACH, CnoHandle::NULL, flags)?;
                let left = Arc::new(AtomicUsize::new(THREADS * EACH));
                let mut bodies: Vec<Body<Result<Vec<usize>, Failure>>> = Vec::new();
                for thread in 0..THREADS {
                    let ia = w.a.clone();
                    bodies.push(Box::new(move || {
                        for n in 0..EACH {
                            ia.evd_post_se(evd, &Event::software(evd, thread * EACH + n))?;
                        }
                        Ok(Vec::new())
                    }));
                    let (ia, left, platform) = (w.a.clone(), left.clone(), w.f.platform().clone());
                    bodies.push(Box::new(move || {
                        let mut taken = Vec::new();
                        while left.load(Ordering::Acquire) > 0 {
                            match ia.evd_dequeue(evd) {
                                Ok(Event { event_data: EventData::Software(data), .. }) => {
                                    left.fetch_sub(1, Ordering::AcqRel);
                                    taken.push(data);
                                }
                                Err(error) if error == ErrorType::QueueEmpty => breathe(&platform),
                                other => return Err(Failure::new(alloc::format!("{other:?}"))),
                            }
                        }
                        Ok(taken)
                    }));
                }
                let mut all = Vec::new();
                for taken in together(w.f.platform(), bodies)? {
                    all.extend(taken?);
                }
                all.sort_unstable();
                check_eq!(all, (0..THREADS * EACH).collect::<Vec<_>>());
                w.a.evd_free(evd)?;
            }
            Ok(())
        })
    }),
    // Threads create, use and free objects of each type. No thread is affected by the others.
    test("dat_threads::objects_of_each_type", &[], |f| {
        world(f, |w| {
            let mut bodies: Vec<Body<Outcome>> = Vec::new();
            for thread in 0..THREADS {
                let (ia, buffer) = (w.a.clone(), w.f.buffer(PAGE)?);
                bodies.push(Box::new(move || {
                    (0..EACH.div_ceil(4)).try_for_each(|_| one_of_each(&ia, &buffer, thread))
                }));
            }
            all_pass(w.f.platform(), bodies)?;
            // All is freed, so a graceful close succeeds once the last upcall has returned.
            let mut closed = Ok(());
            crate::thread::eventually(w.f.platform(), || {
                closed = w.a.ia_close(CloseFlags::Graceful);
                closed.is_ok()
            });
            Ok(closed?)
        })
    }),
    // Of two calls that free an object one succeeds, and the other one finds no object. Other calls
    // at the same time succeed or find no object.
    test("dat_threads::two_frees", &[], |f| {
        world(f, |w| {
            type Free = fn(&Ia, u64) -> Result<(), Error>;
            type Use = fn(&Ia, u64) -> Result<(), Error>;
            let (pz, buffer) = (w.a.pz_create()?, w.f.buffer(PAGE)?);
            let memory = RegionDescription::buffer(&buffer);
            let ends = w.end(&w.a, &attributes())?;
            for _ in 0..EACH.div_ceil(4) {
                let kinds: [(u64, Subtype, Free, Use); 7] = [
                    (
                        w.a.pz_create()?.as_raw(),
                        Subtype::InvalidHandlePz,
                        |ia, word| ia.pz_free(PzHandle::from_raw(word)),
                        |ia, word| ia.pz_query(PzHandle::from_raw(word)).map(drop),
                    ),
                    (
                        w.a.lmr_create(memory, 64, pz, OPEN, VaType::Va)?.lmr_handle.as_raw(),
                        Subtype::InvalidHandleLmr,
                        |ia, word| ia.lmr_free(LmrHandle::from_raw(word)),
                        |ia, word| ia.lmr_query(LmrHandle::from_raw(word)).map(drop),
                    ),
                    (
                        w.a.rmr_create(pz)?.as_raw(),
                        Subtype::InvalidHandleRmr,
                        |ia, word| ia.rmr_free(RmrHandle::from_raw(word)),
                        |ia, word| ia.rmr_query(RmrHandle::from_raw(word)).map(drop),
                    ),
                    (
                        w.a.srq_create(pz, &SrqAttr::default())?.as_raw(),
                        Subtype::InvalidHandleSrq,
                        |ia, word| ia.srq_free(SrqHandle::from_raw(word)),
                        |ia, word| ia.srq_post_recv(SrqHandle::from_raw(word), &[], 1),
                    ),
                    (
                        w.a.cno_create(None)?.as_raw(),
                        Subtype::InvalidHandleCno,
                        |ia, word| ia.cno_free(CnoHandle::from_raw(word)),
                        |ia, word| ia.cno_query(CnoHandle::from_raw(word)).map(drop),
                    ),
                    (
                        evd(&w.a, MERGED)?.as_raw(),
                        Subtype::InvalidHandle1,
                        |ia, word| ia.evd_free(EvdHandle::from_raw(word)),
                        |ia, word| ia.evd_query(EvdHandle::from_raw(word)).map(drop),
                    ),
                    (
                        w.a.ep_create(pz, ends.recv, ends.request, ends.connect, None)?.as_raw(),
                        Subtype::InvalidHandleEp,
                        |ia, word| ia.ep_free(EpHandle::from_raw(word)),
                        |ia, word| ia.ep_get_status(EpHandle::from_raw(word)).map(drop),
                    ),
                ];
                for (word, subtype, free, using) in kinds {
                    let mut bodies: Vec<Body<Result<(), Error>>> = Vec::new();
                    for call in [free, free, using] {
                        let ia = w.a.clone();
                        bodies.push(Box::new(move || call(&ia, word)));
                    }
                    let returned = together(w.f.platform(), bodies)?;
                    let gone = Err(invalid(subtype));
                    let freed = returned[..2] == [Ok(()), gone] || returned[..2] == [gone, Ok(())];
                    check!(freed && [Ok(()), gone].contains(&returned[2]), "{subtype:?}: {returned:?}");
                }
            }
            Ok(())
        })
    }),
    // A connection ends and its endpoint is freed while threads post to it and take its
    // completions.
    test("dat_threads::an_endpoint_is_freed_under_its_users", &[], |f| {
        world(f, |w| {
            for _ in 0..EACH.div_ceil(8) {
                let (a, b) = w.pair_of(&roomy(), &roomy())?;
                let mut threads = Vec::new();
                for _ in 0..THREADS {
                    let (a, platform) = (a.clone(), w.f.platform().clone());
                    threads.push(Thread::spawn(w.f.platform(), "poster", move || {
                        loop {
                            match a.ia.ep_post_send(a.ep, &[], 1, PLAIN) {
                                Ok(()) => {}
                                Err(error) if error.kind() == ErrorType::InsufficientResources => {
                                    pause(&platform, Duration::from_micros(100));
                                }
                                Err(error) => return error,
                            }
                            let _ = a.ia.evd_dequeue(a.request);
                        }
                    })?);
                }
                w.b.ep_disconnect(b.ep, CloseFlags::Abrupt)?;
                // A Send may find that the peer's queue pair is gone before the peer's disconnect
                // arrives; then the connection is broken.
                let number = next(&w.a, a.connect)?.event_number;
                let ends = [EventNumber::CONNECTION_DISCONNECTED, EventNumber::CONNECTION_BROKEN];
                check!(ends.contains(&number), "{number:?}");
                w.a.ep_free(a.ep)?;
                for thread in threads {
                    check_eq!(thread.join()?, invalid(Subtype::InvalidHandleEp));
                }
                for evd in [a.recv, a.request, a.connect] {
                    check_eq!(w.a.evd_dequeue(evd).map_err(Error::kind), Err(ErrorType::QueueEmpty));
                    w.a.evd_free(evd)?;
                }
                w.a.pz_free(a.pz)?;
            }
            Ok(())
        })
    }),
];

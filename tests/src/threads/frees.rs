//! Frees of objects that other threads use (chapter 4.2). The specification leaves it to the
//! consumer to avoid that. Here it is safe: each call has the outcome that it would have before or
//! after the free, so it succeeds or its handle is invalid, and nothing is left behind.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::result::Result;
use core::sync::atomic::{AtomicBool, Ordering};

use privileged_api::*;

use crate::datagrams::ud::{address, datagrams, peer};
use crate::fixture::{End, Fixture, OPEN, SIGNALLED, WAIT, attributes, path, sevd};
use crate::thread::{Body, Signal, Thread, breathe, eventually, together};
use crate::threads::objects::both;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// How often each race is run.
const ROUNDS: usize = 6;
/// Minimum number of calls that a user makes before the free, and after it.
const USES: usize = 3;

type Use = Box<dyn Fn() -> Result<(), Error> + Send>;

/// Two threads free an object that others use. One free succeeds. Each use succeeds or returns one
/// of `expected`: errors that the pages of these calls give for an object that exists, since the
/// order of the calls is not fixed. A use that begins after the free returns `invalid`.
fn race(
    f: &Fixture,
    invalid: Error,
    expected: &'static [Error],
    free: impl Fn() -> Result<(), Error> + Clone + Send + 'static,
    uses: Vec<Use>,
) -> Outcome {
    let (used, freed) = (Signal::new(f.platform()), Signal::new(f.platform()));
    let mut bodies: Vec<Body<Outcome>> = Vec::new();
    let users = uses.len() as u32;
    for (number, call) in uses.into_iter().enumerate() {
        let (used, freed, platform) = (used.clone(), freed.clone(), f.platform().clone());
        bodies.push(Box::new(move || {
            let mut calls = 0;
            loop {
                breathe(&platform);
                // Read before the call: a call that begins after the free must be refused.
                let gone = freed.count() > 0;
                match call() {
                    Err(error) if error == invalid => {}
                    Err(error) if expected.contains(&error) => {}
                    Ok(()) if !gone => {}
                    other => {
                        return Err(Failure::new(alloc::format!(
                            "use {number}, freed before: {gone}: {other:?}"
                        )));
                    }
                }
                calls += 1;
                if calls == USES {
                    used.raise();
                }
                if gone && calls >= USES {
                    return Ok(());
                }
            }
        }));
    }
    for _ in 0..2 {
        let (used, freed, free) = (used.clone(), freed.clone(), free.clone());
        bodies.push(Box::new(move || {
            used.wait(users)?;
            match free() {
                Ok(()) => freed.raise(),
                Err(error) => check!(error == invalid, "the free was refused with {error:?}"),
            }
            // The other thread may be about to free the object.
            freed.wait(1)
        }));
    }
    together(f.platform(), bodies)?.into_iter().collect::<Outcome>()?;
    check_eq!(freed.count(), 1, "frees that succeeded");
    refused(free(), invalid)
}

/// A use of an object whose result is dropped.
fn by<T: Debug + 'static>(call: impl Fn() -> Result<T, Error> + Send + 'static) -> Use {
    Box::new(move || call().map(drop))
}

pub(crate) const TESTS: &[Test] = &[
    // Threads use a zone in every way while two threads free it.
    test("threads::a_zone_is_freed_under_its_users", &["4.2 B13"], |f| {
        for _ in 0..ROUNDS {
            let pz = f.a.pz_create()?;
            let (a, b, c) = (f.a.clone(), f.a.clone(), f.a.clone());
            let free = f.a.clone();
            let freeing = move || loop {
                // Another thread's object may be in the zone at this moment.
                match free.pz_free(pz) {
                    Err(Error::PzBusy) => {}
                    other => return other,
                }
            };
            let uses = Vec::from([
                by(move || a.pz_query(pz, PzParamMask::ALL)),
                by(move || b.srq_create(pz, 1, 1).map(|srq| b.srq_free(srq))),
                by(move || match c.set_consumer_context(pz, 5) {
                    Err(Error::InvalidHandle) => Err(Error::InvalidPz),
                    other => other,
                }),
            ]);
            race(f, Error::InvalidPz, &[], freeing, uses)?;
        }
        check!(f.a.object_counts().is_empty());
        Ok(())
    }),
    // Threads use an EVD in every way while two threads free it.
    test("threads::an_evd_is_freed_under_its_users", &["4.2 B13"], |f| {
        for round in 0..ROUNDS {
            let streams = [EventType::SOFTWARE_EVENT_STREAM, EventType::DTO_EVENT_STREAM];
            let stream = streams[round % 2];
            let evd = f.a.evd_create(stream, EvdFlags::empty(), 16, 1, EvdHandle::NULL)?;
            let (a, b, c, d, e) = (f.a.clone(), f.a.clone(), f.a.clone(), f.a.clone(), f.a.clone());
            let free = f.a.clone();
            let freeing = move || loop {
                match free.evd_free(evd) {
                    // The callback may be running.
                    Err(Error::InvalidEvdState) => {}
                    other => return other,
                }
            };
            let mask = EvdParamMask::QUEUE_SIZE | EvdParamMask::THRESHOLD;
            let uses = Vec::from([
                by(move || a.evd_dequeue(evd)),
                by(move || b.evd_wait(evd, 100).map_err(Error::from)),
                by(move || {
                    let size = c.evd_query(evd, EvdParamMask::ALL)?.sevd_queue_size;
                    let sevd_queue_size = if size > 16 { 16 } else { 40 };
                    let param = EvdParam { sevd_queue_size, sevd_threshold: 1, ..EvdParam::default() };
                    c.evd_modify(evd, mask, &param)
                }),
                by(move || d.evd_post_se(evd, 1)),
                by(move || {
                    e.evd_callback_attach(
                        evd,
                        Box::new(move |ia, evd| while ia.evd_dequeue(evd).is_ok() {}),
                    )?;
                    e.evd_callback_detach(evd)
                }),
            ]);
            let expected: &[Error] = &[
                Error::QueueEmpty,
                Error::EvdQueueFull,
                Error::InvalidSoftEvd,
                Error::TimeoutExpired,
                Error::CallbackExists,
                Error::EvdWait,
                Error::Abort,
                // More events are queued than fit into the smaller size.
                Error::InvalidQueueSize,
                // The free has detached the callback.
                Error::InvalidEvdState,
            ];
            race(f, Error::InvalidEvd, expected, freeing, uses)?;
        }
        check!(f.a.object_counts().is_empty());
        Ok(())
    })
    .limit(120),
    // A thread frees an EVD while another thread makes its callback due again and again. Once the
    // free has succeeded, the callback neither runs nor begins to run.
    test(
        "threads::an_evd_that_was_freed_runs_no_callback",
        &["it_evd_free B07 IT_ERR_INVALID_EVD_STATE"],
        |f| {
            // The window that this looks for is narrow.
            for _ in 0..8 * ROUNDS {
                let stream = EventType::SOFTWARE_EVENT_STREAM;
                let evd = f.a.evd_create(stream, EvdFlags::empty(), 16, 1, EvdHandle::NULL)?;
                let (inside, late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
                let freed = Arc::new(AtomicBool::new(false));
                let ran = Signal::new(f.platform());
                let routine: EvdCallback = {
                    let (inside, late, freed) = (inside.clone(), late.clone(), freed.clone());
                    let (ran, platform) = (ran.clone(), f.platform().clone());
                    Box::new(move |ia, evd| {
                        inside.store(true, Ordering::SeqCst);
                        late.fetch_or(freed.load(Ordering::SeqCst), Ordering::SeqCst);
                        while ia.evd_dequeue(evd).is_ok() {}
                        breathe(&platform);
                        inside.store(false, Ordering::SeqCst);
                        ran.raise();
                    })
                };
                f.a.evd_callback_attach(evd, routine)?;
                let (ia, platform) = (f.a.clone(), f.platform().clone());
                let poster = Thread::spawn(f.platform(), "poster", move || {
                    loop {
                        breathe(&platform);
                        match ia.evd_post_se(evd, 1) {
                            Ok(()) | Err(Error::EvdQueueFull) => {}
                            other => return other,
                        }
                    }
                })?;
                ran.wait(1)?;
                let outcome = loop {
                    match f.a.evd_free(evd) {
                        Err(Error::InvalidEvdState) => breathe(f.platform()),
                        other => break other,
                    }
                };
                let runs = inside.load(Ordering::SeqCst);
                freed.store(true, Ordering::SeqCst);
                outcome?;
                check!(!runs, "the callback ran when the free succeeded");
                refused(poster.join()?, Error::InvalidEvd)?;
                check!(!late.load(Ordering::SeqCst), "a callback began after the free");
            }
            Ok(())
        },
    )
    .limit(120),
    // Two threads free an IA while a callback runs. Both are refused for that reason: the IA lives
    // on, so its handle is valid.
    test(
        "threads::an_adapter_whose_callback_runs_is_not_gone",
        &["it_ia_free S01 IT_ERR_INVALID_EVD_STATE"],
        |f| {
            let ia = f.another(Some(f.setup.privileged))?;
            let evd = sevd(&ia, EventType::SOFTWARE_EVENT_STREAM, 8, 1)?;
            let (began, go_on) = (Signal::new(f.platform()), Signal::new(f.platform()));
            let routine: EvdCallback = {
                let (began, go_on) = (began.clone(), go_on.clone());
                Box::new(move |ia, evd| {
                    began.raise();
                    let _ = go_on.wait(1);
                    while ia.evd_dequeue(evd).is_ok() {}
                })
            };
            ia.evd_callback_attach(evd, routine)?;
            ia.evd_post_se(evd, 1)?;
            began.wait(1)?;
            let mut bodies: Vec<Body<Outcome>> = Vec::new();
            for _ in 0..2 {
                let ia = ia.clone();
                bodies.push(Box::new(move || {
                    (0..20 * ROUNDS).try_for_each(|_| refused(ia.ia_free(), Error::InvalidEvdState))
                }));
            }
            let outcome: Outcome = together(f.platform(), bodies)?.into_iter().collect();
            go_on.raise();
            outcome?;
            check!(eventually(f.platform(), || ia.ia_free() == Ok(())), "the callback has returned");
            refused(ia.ia_free(), Error::InvalidIa)
        },
    ),
    // Threads use an endpoint in every way while two threads free it.
    test("threads::an_endpoint_is_freed_under_its_users", &["4.2 B13"], |f| {
        for _ in 0..ROUNDS {
            let pair = f.pair()?;
            let region = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let rmr = f.a.rmr_create(pair.a.pz, RmrType::Wide)?;
            let (segment, lmr, addr) = (region.whole(), region.lmr, region.buffer.addr());
            let end = || pair.a.clone();
            let (a, b, c, d, e, g) = (end(), end(), end(), end(), end(), end());
            let free = end();
            let uses = Vec::from([
                by(move || a.ia.post_recv(a.ep, &[segment], 1, DtoFlags::COMPLETION)),
                by(move || b.ia.post_rdma_write(b.ep, &[], 1, SIGNALLED, RdmaAddr(0), RmrContext(0))),
                by(move || c.ia.ep_query(c.ep, EpParamMask::ALL)),
                by(move || d.ia.ep_modify(d.ep, EpParamMask::MAX_ORD, &attributes())),
                by(move || e.ia.ep_disconnect(e.ep, &[])),
                by(move || {
                    let (mode, privs) = (AddrMode::Absolute, MemPriv::REMOTE);
                    g.ia.rmr_link(rmr, lmr, addr, 64, mode, privs, g.ep, 1, DtoFlags::empty())
                }),
            ]);
            let freeing = move || free.ia.ep_free(free.ep);
            let expected: &[Error] = &[Error::TooManyPosts, Error::InvalidEpState];
            race(f, Error::InvalidEp, expected, freeing, uses)?;
            f.a.rmr_free(rmr)?;
            f.a.lmr_free(lmr)?;
            // Nothing of the endpoint is left that would keep its EVDs busy.
            for evd in [pair.a.request, pair.a.recv, pair.a.conn] {
                f.a.evd_free(evd)?;
            }
            f.a.pz_free(pair.a.pz)?;
            f.b.ep_free(pair.b.ep)?;
        }
        check!(f.a.object_counts().is_empty(), "left: {:?}", f.a.object_counts());
        Ok(())
    })
    .limit(120),
    // An endpoint is freed while a narrow RMR is linked through it: either the RMR is linked and
    // the endpoint is busy, or the endpoint is gone and nothing is linked.
    test("threads::an_endpoint_is_freed_while_a_narrow_rmr_is_linked", &["4.2 B13"], |f| {
        for _ in 0..2 * ROUNDS {
            let pair = f.pair()?;
            let region = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let rmr = f.a.rmr_create(pair.a.pz, RmrType::Narrow)?;
            let (lmr, addr) = (region.lmr, region.buffer.addr());
            let (linker, freer, platform) = (pair.a.clone(), pair.a.clone(), f.platform().clone());
            let link = move || {
                let (mode, privs) = (AddrMode::Absolute, MemPriv::REMOTE);
                linker.ia.rmr_link(rmr, lmr, addr, 64, mode, privs, linker.ep, 1, SIGNALLED).map(drop)
            };
            let free = move || {
                breathe(&platform);
                freer.ia.ep_free(freer.ep)
            };
            let (linked, freed) = both(f, link, free)?;
            match freed {
                Ok(()) => check!(
                    matches!(linked, Ok(()) | Err(Error::InvalidEp | Error::InvalidEpState)),
                    "the link: {linked:?}"
                ),
                Err(error) => {
                    check_eq!((error, linked), (Error::EpBusy, Ok(())));
                    pair.a.done(1, DtoStatus::Success)?;
                    refused(f.a.lmr_free(lmr), Error::LmrBusy)?;
                    f.a.rmr_unlink(rmr, pair.a.ep, 2, SIGNALLED)?;
                    pair.a.done(2, DtoStatus::Success)?;
                    f.a.ep_free(pair.a.ep)?;
                }
            }
            // A link would keep the region.
            check!(!f.a.rmr_query(rmr, RmrParamMask::ALL)?.linked, "linked without its endpoint");
            f.a.lmr_free(lmr)?;
            f.a.rmr_free(rmr)?;
            f.b.ep_free(pair.b.ep)?;
        }
        Ok(())
    }),
    // An endpoint is freed at any moment of its connection's establishment.
    test("threads::an_endpoint_is_freed_while_it_connects", &["4.2 B13"], |f| {
        let listener = f.listen(&f.b)?;
        let (way, qual) = (path(&f.a, &listener.address)?, listener.conn_qual);
        for _ in 0..ROUNDS {
            let end = f.end(&f.a, &attributes())?;
            let (a, b, free) = (end.clone(), end.clone(), end.clone());
            let uses = Vec::from([
                by(move || a.ia.ep_connect(a.ep, &way, None, &qual, CnEstFlags::TWO_WAY, &[])),
                by(move || {
                    b.ia.ep_disconnect(b.ep, &[])?;
                    b.ia.ep_reset(b.ep)
                }),
            ]);
            let freeing = move || free.ia.ep_free(free.ep);
            race(f, Error::InvalidEp, &[Error::InvalidEpState], freeing, uses)?;
        }
        listener.free()?;
        check_eq!(f.a.object_counts().ep, 0);
        Ok(())
    })
    .limit(120),
    // Threads use regions and RMRs in every way while others free them.
    test("threads::memory_is_freed_under_its_users", &["4.2 B13"], |f| {
        let pair = f.pair()?;
        for _ in 0..ROUNDS {
            let region = f.region(&f.a, pair.a.pz, 64, OPEN)?;
            let lmr = region.lmr;
            let (a, b, free) = (f.a.clone(), f.a.clone(), f.a.clone());
            let uses = Vec::from([
                by(move || a.lmr_query(lmr, LmrParamMask::ALL)),
                by(move || match b.set_consumer_context(lmr, 5) {
                    Err(Error::InvalidHandle) => Err(Error::InvalidLmr),
                    other => other,
                }),
            ]);
            race(f, Error::InvalidLmr, &[], move || free.lmr_free(lmr), uses)?;
            let rmr = f.a.rmr_create(pair.a.pz, RmrType::Wide)?;
            let (a, free) = (f.a.clone(), f.a.clone());
            let uses = Vec::from([by(move || a.rmr_query(rmr, RmrParamMask::ALL))]);
            race(f, Error::InvalidRmr, &[], move || free.rmr_free(rmr), uses)?;
            let srq = f.a.srq_create(pair.a.pz, 1, 8)?;
            let (a, b, c, d, free) = (f.a.clone(), f.a.clone(), f.a.clone(), f.a.clone(), f.a.clone());
            let uses = Vec::from([
                by(move || d.srq_outstanding(srq)),
                by(move || a.srq_query(srq, SrqParamMask::ALL)),
                by(move || b.post_recv(srq, &[], 1, DtoFlags::COMPLETION)),
                by(move || {
                    let param = SrqParam { low_watermark: 2, ..SrqParam::default() };
                    c.srq_modify(srq, SrqParamMask::LOW_WATERMARK, &param)
                }),
            ]);
            race(f, Error::InvalidSrq, &[Error::TooManyPosts], move || free.srq_free(srq), uses)?;
        }
        Ok(())
    })
    .limit(120),
    // Threads use listen points, address handles and service requests while others free them.
    test("threads::names_are_freed_under_their_users", &["4.2 B13"], |f| {
        for _ in 0..ROUNDS {
            let own = peer(&f.a, &datagrams())?;
            let addr = address(&f.a, own.pz, &f.b)?;
            let to = DgRemoteEpAddr::IbUd { addr, ep_info: own.info };
            let (a, b, free) = (f.a.clone(), own.clone(), f.a.clone());
            let uses = Vec::from([
                by(move || a.address_handle_query(addr, AddrParamMask::ALL)),
                by(move || b.ia.post_sendto(b.ep, &[], 1, DtoFlags::empty(), &to)),
            ]);
            race(f, Error::InvalidAh, &[Error::TooManyPosts], move || free.address_handle_free(addr), uses)?;
            let listener = f.listen(&f.b)?;
            let conn = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 16, 1)?;
            let (way, qual) = (path(&f.a, &listener.address)?, listener.conn_qual);
            let asked = f.a.ud_service_request_handle_create(&qual, conn, &way, &[])?;
            let (a, b, free) = (f.a.clone(), f.a.clone(), f.a.clone());
            let uses = Vec::from([
                by(move || a.ud_service_request_handle_query(asked, UdSvcReqParamMask::ALL)),
                by(move || b.ud_service_request(asked)),
            ]);
            let freeing = move || free.ud_service_request_handle_free(asked);
            race(f, Error::InvalidUdSvc, &[Error::Resources], freeing, uses)?;
            let (listen, a, free) = (listener.listen, f.b.clone(), f.b.clone());
            let uses = Vec::from([by(move || a.listen_query(listen, ListenParamMask::ALL))]);
            race(f, Error::InvalidListen, &[], move || free.listen_free(listen), uses)?;
            f.b.evd_free(listener.evd)?;
            f.a.evd_free(conn)?;
            f.a.ep_free(own.ep)?;
            f.a.evd_free(own.request)?;
            f.a.evd_free(own.recv)?;
            f.a.pz_free(own.pz)?;
        }
        check!(f.a.object_counts().is_empty(), "left: {:?}", f.a.object_counts());
        Ok(())
    })
    .limit(120),
    // Threads create and use objects of an IA while two threads free it.
    test("threads::an_adapter_is_freed_under_its_users", &["4.2 B01 B13"], |f| {
        for _ in 0..ROUNDS {
            let before = f.setup.a.agent.counts();
            let ia = f.another(Some(f.setup.privileged))?;
            let end = f.end(&ia, &attributes())?;
            let evd = sevd(&ia, EventType::SOFTWARE_EVENT_STREAM, 8, 1)?;
            let (a, b, c, d, e, g) =
                (ia.clone(), ia.clone(), ia.clone(), ia.clone(), ia.clone(), end.clone());
            let own = f.for_a_thread();
            let free = ia.clone();
            // The users do not free the objects that they create here.
            let uses = Vec::from([
                by(move || a.pz_create().and_then(|pz| a.rmr_create(pz, RmrType::Wide))),
                by(move || {
                    b.evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::empty(), 4, 1, EvdHandle::NULL)
                }),
                by(move || {
                    let End { pz, request, recv, conn, .. } = end;
                    c.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), &attributes())
                }),
                by(move || d.ia_query().and_then(|_| d.evd_wait(evd, 50).map_err(Error::from))),
                by(move || e.evd_post_se(evd, 1).and_then(|()| e.get_handle_type(evd))),
                by(move || {
                    own.region(&g.ia, g.pz, 64, OPEN).map(drop).map_err(|_| Error::Resources)?;
                    g.ia.post_recv(g.ep, &[], 1, DtoFlags::COMPLETION)
                }),
            ]);
            let expected: &[Error] = &[
                // The tables of these are small.
                Error::Resources,
                Error::TooManyPosts,
                Error::EvdQueueFull,
                Error::TimeoutExpired,
                // The objects are freed one after the other, while the adapter's handle is still
                // valid.
                Error::Abort,
                Error::InvalidPz,
                Error::InvalidEvd,
                Error::InvalidEp,
                Error::InvalidHandle,
            ];
            race(f, Error::InvalidIa, expected, move || free.ia_free(), uses)?;
            check!(ia.object_counts().is_empty(), "left: {:?}", ia.object_counts());
            check_eq!(f.setup.a.agent.counts(), before, "the agent's objects");
        }
        Ok(())
    })
    .limit(120),
    // A thread that waits while its IA is freed returns with an error.
    test("threads::a_waiter_outlives_its_adapter", &["4.2 B13"], |f| {
        let ia = f.another(Some(f.setup.privileged))?;
        let evd = sevd(&ia, EventType::SOFTWARE_EVENT_STREAM, 8, 1)?;
        let mut bodies: Vec<Body<Result<(), Error>>> = Vec::new();
        for _ in 0..3 {
            let ia = ia.clone();
            bodies.push(Box::new(move || match ia.evd_wait(evd, WAIT) {
                // IT_ERR_ABORT if the thread waited (it_evd_wait). A thread that begins to wait
                // later finds the EVD freed, or the adapter: it_ia_free frees the EVD first.
                Err(failure)
                    if [Error::Abort, Error::InvalidIa, Error::InvalidEvd].contains(&failure.error) =>
                {
                    Ok(())
                }
                Err(failure) => Err(failure.error),
                Ok(_) => Err(Error::Fault),
            }));
        }
        let free = ia.clone();
        bodies.push(Box::new(move || free.ia_free()));
        together(f.platform(), bodies)?.into_iter().collect::<Result<(), _>>()?;
        check!(ia.object_counts().is_empty());
        Ok(())
    }),
];

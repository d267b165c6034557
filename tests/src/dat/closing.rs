//! Closing an IA: gracefully, abruptly with everything open, twice, and calls after it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::result::Result;
use core::time::Duration;

use dat::*;

use super::events::{MERGED, invalid, post, state, waiting};
use super::every_call::Objects;
use super::world::*;
use crate::fixture::PAGE;
use crate::thread::{Body, Signal, Thread, pause, together};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The error of a graceful close with objects.
const IN_USE: Error = state(Subtype::InvalidStateIaInUse);
/// The error of every call after a close.
const CLOSED: Error = invalid(Subtype::InvalidHandleIa);

/// Closes an IA gracefully, which must succeed.
#[track_caller]
fn graceful(ia: &Ia) -> Outcome {
    Ok(ia.ia_close(CloseFlags::Graceful)?)
}

/// What a thread of a test returns.
type Posted = Thread<Result<u64, Error>>;

/// Starts a thread that posts Sends and takes completions until a call is refused. It returns how
/// many Sends it posted. Completions after the end of the connection are flushed.
#[track_caller]
fn load(w: &World<'_>, end: &End) -> Result<Posted, Failure> {
    let (end, begins) = (end.clone(), Signal::new(w.f.platform()));
    let (begun, platform) = (begins.clone(), w.f.platform().clone());
    let thread = Thread::spawn(w.f.platform(), "load", move || {
        let mut posted = 0;
        loop {
            match end.ia.ep_post_send(end.ep, &[], posted, PLAIN) {
                Ok(()) => posted += 1,
                // The IA frees the endpoint and the event dispatcher before its own handle becomes
                // invalid.
                Err(error) if error.kind() == ErrorType::InvalidHandle => return Ok(posted),
                // The queue is full.
                Err(error) if error.kind() == ErrorType::InsufficientResources => {
                    pause(&platform, Duration::from_micros(100));
                }
                Err(error) => return Err(error),
            }
            begun.raise();
            match end.ia.evd_dequeue(end.request) {
                Ok(_) => {}
                Err(error) if error == ErrorType::QueueEmpty => {}
                // As above.
                Err(error) if error.kind() == ErrorType::InvalidHandle => return Ok(posted),
                Err(error) => return Err(error),
            }
        }
    })?;
    begins.wait(10)?;
    Ok(thread)
}

pub(crate) const TESTS: &[Test] = &[
    // A graceful close succeeds only after the consumer has freed all objects. The event dispatcher
    // of asynchronous events ends with the IA.
    test("dat_closing::a_graceful_close", &[], |f| {
        world(f, |w| {
            let ia = &w.a;
            type Object<'a> = (&'static str, Box<dyn FnOnce() -> Result<(), Error> + 'a>);
            type Make = fn(&Ia) -> Result<Object<'_>, Error>;
            let pz = ia.pz_create()?;
            refused(ia.ia_close(CloseFlags::Graceful), IN_USE)?;
            ia.pz_free(pz)?;
            let lone: [Make; 4] = [
                |ia| {
                    let evd = ia.evd_create(8, CnoHandle::NULL, EvdFlags::SOFTWARE)?;
                    Ok(("a simple event dispatcher", Box::new(move || ia.evd_free(evd))))
                },
                |ia| {
                    let evd = ia.evd_create(8, CnoHandle::NULL, MERGED)?;
                    Ok(("an event dispatcher of several streams", Box::new(move || ia.evd_free(evd))))
                },
                |ia| {
                    let cno = ia.cno_create(None)?;
                    Ok(("a CNO", Box::new(move || ia.cno_free(cno))))
                },
                // The consumer named no zone and no event dispatcher of connection events, so the
                // endpoint uses the IA's own.
                |ia| {
                    let null = EvdHandle::NULL;
                    let ep = ia.ep_create(PzHandle::NULL, null, null, null, None)?;
                    Ok(("an endpoint", Box::new(move || ia.ep_free(ep))))
                },
            ];
            for make in lone {
                let (name, free) = make(ia)?;
                check_eq!(ia.ia_close(CloseFlags::Graceful), Err(IN_USE), "{name}");
                free()?;
            }
            graceful(ia)?;
            refused(ia.ia_close(CloseFlags::Graceful), CLOSED)?;
            refused(ia.ia_close(CloseFlags::Abrupt), CLOSED)
        })
    }),
    // Each object alone prevents a graceful close, and the refused close changes nothing.
    test("dat_closing::each_object_prevents_it", &[], |f| {
        world(f, |w| {
            let ia = &w.a;
            let prevented = || refused(ia.ia_close(CloseFlags::Graceful), IN_USE);
            let (pz, requests) = (ia.pz_create()?, evd(ia, EvdFlags::CR)?);
            let region = w.region_in(ia, pz, PAGE, OPEN)?;
            prevented()?;
            ia.lmr_free(region.lmr.lmr_handle)?;
            let rmr = ia.rmr_create(pz)?;
            prevented()?;
            check_eq!(ia.rmr_query(rmr)?.pz_handle, pz);
            ia.rmr_free(rmr)?;
            let srq = ia.srq_create(pz, &SrqAttr::default())?;
            prevented()?;
            ia.srq_free(srq)?;
            ia.pz_free(pz)?;
            let (conn_qual, psp) = ia.psp_create_any(requests, PspFlags::Consumer)?;
            prevented()?;
            // A request that waits for its answer.
            let dialer = w.end(&w.b, &attributes())?;
            dial(&dialer, address(ia)?, conn_qual, &[])?;
            let cr = request(ia, requests)?;
            ia.psp_free(psp)?;
            ia.evd_free(requests)?;
            prevented()?;
            ia.cr_reject(cr, &[])?;
            expect(&w.b, dialer.connect, EventNumber::CONNECTION_PEER_REJECTED)?;
            graceful(ia)
        })
    }),
    // An abrupt close with everything open: connections under load from both sides, waiters of
    // event dispatchers and of CNOs, an agent, requests and resolved addresses. All waits end, the
    // peers get events, and nothing is left.
    test("dat_closing::an_abrupt_close", &[], |f| {
        world(f, |w| {
            let (a, b, _, far) = w.open_pair()?;
            let (a2, b2) = w.pair()?;
            let ((_, _), (datagrams, _)) = w.resolved()?;
            let rmr = w.b.rmr_create(b.pz)?;
            let (lmr, piece) = (far.lmr.lmr_handle, far.segment(0, 64));
            w.b.rmr_bind(rmr, lmr, &piece, MemPriv::REMOTE_READ, VaType::Va, b.ep, 1, PLAIN)?;
            let srq = w.b.srq_create(b.pz, &SrqAttr::default())?;
            w.b.srq_post_recv(srq, &[far.segment(0, 64)], 2)?;
            let shared = w.end_with_srq(&w.b, b.pz, srq, &attributes())?;
            let requests = evd(&w.b, EvdFlags::CR)?;
            let (conn_qual, _) = w.b.psp_create_any(requests, PspFlags::Consumer)?;
            let reserved = w.end(&w.b, &attributes())?;
            let (free, probe) = w.b.psp_create_any(requests, PspFlags::Consumer)?;
            w.b.psp_free(probe)?;
            w.b.rsp_create(free, reserved.ep, requests)?;
            let dialer = w.end(&w.a, &attributes())?;
            dial(&dialer, address(&w.b)?, conn_qual, &[])?;
            request(&w.b, requests)?;
            let cno = w.b.cno_create(Some(Box::new(|_: &Ia, _| {})))?;
            w.b.evd_create(8, cno, MERGED)?;
            let plain = w.b.cno_create(None)?;
            let (ia, platform) = (w.b.clone(), w.f.platform());
            let on_cno = Thread::spawn(platform, "cno", move || ia.cno_wait(plain, TIMEOUT_INFINITE))?;
            let mut waiters = Vec::new();
            for evd in [shared.recv, shared.connect, datagrams.recv, requests, w.asynchronous[1]] {
                waiters.push(waiting(w, &w.b, evd, 1)?);
            }
            // The peers post no Receives, so the Sends of the load stay outstanding.
            let loads = [load(w, &b)?, load(w, &b2)?];
            a.send(&[], 3)?;
            w.close(&w.b)?;
            for thread in waiters {
                let ended = thread.join()?.map_err(|failure| failure.error);
                refused(ended, ErrorType::Abort.into())?;
            }
            // The waiter finds that its CNO is dead, or, if it wakes later, that the IA is closed.
            let ended = on_cno.join()?;
            let dead = state(Subtype::InvalidStateCnoDead);
            check!(ended == Err(dead) || ended == Err(CLOSED), "{ended:?}");
            for thread in loads {
                check!(thread.join()?? > 0);
            }
            for end in [&a, &a2] {
                // A Send may find that the peer's queue pair is gone before the peer's disconnect
                // arrives; then the connection is broken.
                let number = next(&w.a, end.connect)?.event_number;
                let ends = [EventNumber::CONNECTION_DISCONNECTED, EventNumber::CONNECTION_BROKEN];
                check!(ends.contains(&number), "{number:?}");
                w.a.ep_free(end.ep)?;
            }
            a.ia.pz_query(a.pz)?;
            check!(far.buffer.len() == PAGE);
            refused(w.b.ia_close(CloseFlags::Abrupt), CLOSED)
        })
    }),
    // After a close every call returns the same error, whatever its other arguments are.
    test("dat_closing::calls_after_it", &[], |f| {
        world(f, |w| {
            let objects = Objects::new(w)?;
            w.close(&w.b)?;
            objects.all_refused(CLOSED)?;
            refused(w.b.ia_close(CloseFlags::Abrupt), CLOSED)
        })
    }),
    // Of two closes at the same moment one succeeds.
    test("dat_closing::two_closes", &[], |f| {
        world(f, |w| {
            for _ in 0..10 {
                let ia = w.limited(privileged_api::Limits::NONE)?;
                let evd = evd(&ia, MERGED)?;
                post(&ia, evd, 1)?;
                let mut closes: Vec<Body<Result<(), Error>>> = Vec::new();
                for _ in 0..2 {
                    let ia = ia.clone();
                    closes.push(Box::new(move || ia.ia_close(CloseFlags::Abrupt)));
                }
                let closed = together(w.f.platform(), closes)?;
                check!(
                    closed == [Ok(()), Err(CLOSED)] || closed == [Err(CLOSED), Ok(())],
                    "two closes returned {closed:?}"
                );
            }
            Ok(())
        })
    }),
];

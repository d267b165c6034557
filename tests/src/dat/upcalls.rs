//! What the agent of a CNO may call, and what other threads may do while it runs.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;

use dat::*;
use platform::sync::Mutex;

use super::cno::{NONE_CAME, drain, free};
use super::events::{MERGED, post, state};
use super::world::*;
use crate::fixture::PAGE;
use crate::thread::{PATIENCE, Signal};
use crate::{Failure, Outcome, Test, check_eq, refused, some, test};

/// The error of a call that may wait, in an upcall.
const IN_UPCALL: Error = state(Subtype::None);
/// The error of a free of an event dispatcher whose upcall runs.
const IN_USE: Error = state(Subtype::InvalidStateEvdInUse);

/// Runs `body` in an agent, for an event dispatcher of `ia` with these streams, and returns the
/// result. The event stays queued.
#[track_caller]
fn in_upcall<T: Send + 'static>(
    w: &World<'_>,
    ia: &Ia,
    flags: EvdFlags,
    body: impl FnOnce(&Ia, EvdHandle) -> T + Send + 'static,
) -> Result<(T, CnoHandle, EvdHandle), Failure> {
    let (done, result) = (Signal::new(w.f.platform()), Arc::new(Mutex::new(None)));
    let (raised, place) = (done.clone(), result.clone());
    let agent: Agent = Box::new(move |ia: &Ia, evd| {
        let returned = body(ia, evd);
        *place.lock() = Some(returned);
        raised.raise();
    });
    let cno = ia.cno_create(Some(agent))?;
    let evd = ia.evd_create(8, cno, flags)?;
    post(ia, evd, 1)?;
    done.wait(1)?;
    let returned = result.lock().take();
    Ok((some(returned, "the result of the agent")?, cno, evd))
}

pub(crate) const TESTS: &[Test] = &[
    // Calls that may wait are refused in an agent and have no effect. The same calls succeed
    // outside.
    test("dat_upcalls::calls_that_may_wait_are_refused", &[], |f| {
        world(f, |w| {
            let end = w.end(&w.a, &attributes())?;
            let (buffer, srq) = (w.f.buffer(PAGE)?, w.a.srq_create(end.pz, &SrqAttr::default())?);
            let (requests, cno) = (evd(&w.a, EvdFlags::CR)?, w.a.cno_create(None)?);
            let before = (w.a.evd_query(end.recv)?, w.a.srq_query(srq)?);
            let waits = move |ia: &Ia| -> Vec<(&'static str, Option<Error>)> {
                let (pz, recv, request, connect) = (end.pz, end.recv, end.request, end.connect);
                let (attr, region) = (attributes(), RegionDescription::buffer(&buffer));
                let mut returned = Vec::new();
                let mut note = |call, error: Option<Error>| returned.push((call, error));
                note("cno_wait", ia.cno_wait(cno, 0).err());
                note("evd_wait", ia.evd_wait(recv, 0, 1).err().map(|failure| failure.error));
                note("pz_create", ia.pz_create().err());
                note("evd_create", ia.evd_create(8, CnoHandle::NULL, MERGED).err());
                note("evd_resize", ia.evd_resize(recv, 2 * QLEN).err());
                note("ep_create", ia.ep_create(pz, recv, request, connect, Some(&attr)).err());
                let on_srq = ia.ep_create_with_srq(pz, recv, request, connect, srq, &attr);
                note("ep_create_with_srq", on_srq.err());
                note("lmr_create", ia.lmr_create(region, 64, pz, OPEN, VaType::Va).err());
                note("rmr_create", ia.rmr_create(pz).err());
                note("srq_create", ia.srq_create(pz, &SrqAttr::default()).err());
                note("srq_set_lw", ia.srq_set_lw(srq, 1).err());
                note("srq_resize", ia.srq_resize(srq, 8).err());
                note("psp_create_any", ia.psp_create_any(requests, PspFlags::Consumer).err());
                note("rsp_create", ia.rsp_create(4711, end.ep, requests).err());
                note("ia_query", ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE).err());
                returned
            };
            let (refusals, _, evd) = in_upcall(w, &w.a, EvdFlags::SOFTWARE, move |ia, _| waits(ia))?;
            check_eq!(refusals.len(), 15);
            for (call, error) in refusals {
                check_eq!(error, Some(IN_UPCALL), "{call} in an upcall");
            }
            check_eq!((w.a.evd_query(end.recv)?, w.a.srq_query(srq)?), before);
            check_eq!(end.state()?, EpState::Unconnected);
            nothing(&w.a, w.asynchronous[0])?;
            check_eq!(drain(&w.a, evd)?, 1);
            // No object is left that uses these.
            w.a.ep_free(end.ep)?;
            for evd in [end.recv, end.request, end.connect, requests] {
                w.a.evd_free(evd)?;
            }
            w.a.srq_free(srq)?;
            Ok(w.a.pz_free(end.pz)?)
        })
    }),
    // A close is refused in an agent, and changes nothing.
    test("dat_upcalls::a_close_is_refused", &[], |f| {
        world(f, |w| {
            let close = |ia: &Ia, _| [CloseFlags::Abrupt, CloseFlags::Graceful].map(|how| ia.ia_close(how));
            let (closes, _, evd) = in_upcall(w, &w.a, EvdFlags::SOFTWARE, close)?;
            for closed in closes {
                check_eq!(closed.map_err(Error::kind), Err(ErrorType::InvalidState));
            }
            check_eq!(drain(&w.a, evd)?, 1);
            w.a.pz_create()?;
            Ok(())
        })
    }),
    // All other calls work in an agent, on its own CNO and event dispatcher too.
    test("dat_upcalls::other_calls_work", &[], |f| {
        world(f, |w| {
            let (a, b, own, _) = w.open_pair()?;
            let srq = w.a.srq_create(a.pz, &SrqAttr::default())?;
            let rmr = w.a.rmr_create(a.pz)?;
            let (other_cno, spare) = (w.a.cno_create(None)?, w.a.cno_create(None)?);
            let others = [EvdFlags::SOFTWARE, MERGED].map(|flags| w.a.evd_create(8, other_cno, flags));
            let (first, second) = (others[0]?, others[1]?);
            b.receive(&[], 1)?;
            let (ep, recv, pz) = (a.ep, a.recv, w.a.pz_create()?);
            let calls = move |ia: &Ia, evd: EvdHandle| -> Result<(), Error> {
                ia.pz_query(pz)?;
                ia.pz_free(pz)?;
                ia.lmr_query(own.lmr.lmr_handle)?;
                ia.lmr_free(own.lmr.lmr_handle)?;
                ia.rmr_query(rmr)?;
                ia.rmr_free(rmr)?;
                ia.srq_post_recv(srq, &[], 1)?;
                ia.srq_query(srq)?;
                ia.srq_free(srq)?;
                ia.ep_post_recv(ep, &[], 2, PLAIN)?;
                ia.ep_post_send(ep, &[], 3, PLAIN)?;
                ia.evd_query(recv)?;
                ia.get_handle_type(evd)?;
                ia.set_consumer_context(evd, 5)?;
                ia.evd_post_se(evd, &Event::software(evd, 2))?;
                ia.evd_dequeue(evd)?;
                // The event dispatchers of which no upcall runs, also those with a CNO.
                ia.evd_modify_cno(first, spare)?;
                ia.evd_free(first)?;
                ia.evd_free(second)?;
                ia.cno_free(spare)?;
                ia.cno_free(ia.cno_create(None)?)?;
                let cno = ia.evd_query(evd)?.cno_handle;
                ia.cno_query(cno)?;
                ia.cno_modify_agent(cno, None)
            };
            let (outcome, cno, evd) = in_upcall(w, &w.a, MERGED, calls)?;
            outcome?;
            b.received(1, DtoStatus::Success)?;
            a.done(3, DtoStatus::Success)?;
            check_eq!(drain(&w.a, evd)?, 1);
            check_eq!(w.a.get_consumer_context(evd)?, Some(5));
            w.a.cno_free(other_cno)?;
            // The event dispatcher and the CNO still work.
            post(&w.a, evd, 3)?;
            check_eq!(w.a.cno_wait(cno, LONG)?, evd);
            Ok(())
        })
    }),
    // An agent can set the next agent, which runs at the next trigger.
    test("dat_upcalls::an_agent_sets_the_next_one", &[], |f| {
        world(f, |w| {
            let runs = Signal::new(w.f.platform());
            let cno = w.a.cno_create(None)?;
            w.a.cno_modify_agent(cno, Some(again(cno, runs.clone())))?;
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let (evd, before) = (w.a.evd_create(8, cno, flags)?, runs.count());
                for run in 1..=100 {
                    post(&w.a, evd, 1)?;
                    runs.wait(before + run)?;
                    check_eq!(drain(&w.a, evd)?, 1);
                }
                check_eq!(runs.count(), before + 100);
            }
            refused(w.a.cno_wait(cno, 0), NONE_CAME)
        })
    }),
    // An agent cannot free its event dispatcher, but can take it off the CNO.
    test("dat_upcalls::an_agent_and_its_event_dispatcher", &[], |f| {
        world(f, |w| {
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let calls = |ia: &Ia, evd: EvdHandle| {
                    let with_cno = (ia.evd_free(evd), ia.evd_query(evd));
                    let taken_off = ia.evd_modify_cno(evd, CnoHandle::NULL);
                    (with_cno, taken_off, ia.evd_free(evd))
                };
                let (returned, cno, evd) = in_upcall(w, &w.a, flags, calls)?;
                let ((first, param), taken_off, second) = returned;
                refused(first, IN_USE)?;
                check_eq!(param?.cno_handle, cno);
                taken_off?;
                refused(second, IN_USE)?;
                check_eq!(w.a.evd_query(evd)?.cno_handle, CnoHandle::NULL);
                check_eq!(drain(&w.a, evd)?, 1);
                w.a.cno_free(cno)?;
                // The agent may not have returned yet.
                free(w, &w.a, evd)?;
                refused(w.a.evd_query(evd), super::events::invalid(Subtype::InvalidHandle1))?;
            }
            Ok(())
        })
    }),
    // While an agent runs, no thread can free its event dispatcher or close the IA. A refused call
    // changes nothing: the CNO is triggered again later.
    test("dat_upcalls::a_running_agent_holds_its_event_dispatcher", &[], |f| {
        world(f, |w| {
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let (runs, goes_on) = (Signal::new(w.f.platform()), Signal::new(w.f.platform()));
                let (running, may_end) = (runs.clone(), goes_on.clone());
                let agent: Agent = Box::new(move |_: &Ia, _| {
                    running.raise();
                    may_end.reached(1, PATIENCE);
                });
                let cno = w.a.cno_create(Some(agent))?;
                let evd = w.a.evd_create(8, cno, flags)?;
                post(&w.a, evd, 1)?;
                runs.wait(1)?;
                let while_it_runs = || -> Result<(), String> {
                    let freed = w.a.evd_free(evd);
                    let closed = w.a.ia_close(CloseFlags::Abrupt);
                    let expected = (Err(IN_USE), Err(state(Subtype::InvalidStateIaInUse)));
                    if (freed, closed) == expected {
                        return Ok(());
                    }
                    Err(alloc::format!("{:?}, expected {expected:?}", (freed, closed)))
                };
                let held = while_it_runs();
                goes_on.raise();
                held.map_err(Failure::new)?;
                check_eq!(w.a.evd_query(evd)?.cno_handle, cno);
                // A refused free may trigger the CNO again, since an event is queued.
                drained(w, evd)?;
                while w.a.cno_wait(cno, SHORT).is_ok() {}
                post(&w.a, evd, 2)?;
                check_eq!(w.a.cno_wait(cno, LONG)?, evd);
                free(w, &w.a, evd)?;
                w.a.cno_free(cno)?;
            }
            Ok(())
        })
    }),
];

/// Takes the one event that is queued.
#[track_caller]
fn drained(w: &World<'_>, evd: EvdHandle) -> Outcome {
    check_eq!(drain(&w.a, evd)?, 1);
    Ok(())
}

/// An agent that sets a new agent of the same kind, and then signals that it runs.
fn again(cno: CnoHandle, runs: Signal) -> Agent {
    Box::new(move |ia: &Ia, _| {
        let next = again(cno, runs.clone());
        if ia.cno_modify_agent(cno, Some(next)).is_ok() {
            runs.raise();
        }
    })
}

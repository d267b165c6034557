//! Consumer notification objects: triggers, waiters, agents, frees. What an agent may call is
//! tested in `upcalls`.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;
use core::time::Duration;

use dat::*;
use platform::sync::Mutex;

use super::events::{MERGED, invalid, parameter, post, state, take, waiting};
use super::world::*;
use crate::thread::{Signal, Thread, pause};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The error of a wait during which no event dispatcher triggered the CNO.
pub(crate) const NONE_CAME: Error = Error::new(ErrorType::QueueEmpty, Subtype::None);
/// The error of a free while the CNO is used.
const IN_USE: Error = state(Subtype::InvalidStateCnoInUse);
/// The error of a handle that is not a CNO's.
const NO_CNO: Error = invalid(Subtype::InvalidHandleCno);

/// An event dispatcher for software events, with this CNO.
#[track_caller]
fn software(ia: &Ia, cno: CnoHandle) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(16, cno, EvdFlags::SOFTWARE)?)
}

/// Takes all events of an event dispatcher, at least one. Returns how many there were.
#[track_caller]
pub(crate) fn drain(ia: &Ia, evd: EvdHandle) -> Result<usize, Failure> {
    let mut taken = 0;
    loop {
        match ia.evd_dequeue(evd) {
            Ok(_) => taken += 1,
            Err(error) if error == ErrorType::QueueEmpty && taken > 0 => return Ok(taken),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Frees an event dispatcher, although an agent for it may not have returned yet.
#[track_caller]
pub(crate) fn free(w: &World<'_>, ia: &Ia, evd: EvdHandle) -> Outcome {
    let mut freed = Ok(());
    crate::thread::eventually(w.f.platform(), || {
        freed = ia.evd_free(evd);
        freed != Err(state(Subtype::InvalidStateEvdInUse))
    });
    Ok(freed?)
}

/// The calls of agents.
#[derive(Clone)]
struct Seen {
    calls: Signal,
    named: Arc<Mutex<Vec<(IaHandle, EvdHandle)>>>,
}

impl Seen {
    fn new(w: &World<'_>) -> Seen {
        Seen { calls: Signal::new(w.f.platform()), named: Arc::new(Mutex::new(Vec::new())) }
    }

    /// An agent that records its call.
    fn agent(&self) -> Option<Agent> {
        let seen = self.clone();
        Some(Box::new(move |ia: &Ia, evd| {
            seen.named.lock().push((ia.handle(), evd));
            seen.calls.raise();
        }))
    }

    /// Waits until agents were called for exactly these event dispatchers of an IA, in this order.
    #[track_caller]
    fn are(&self, ia: &Ia, evds: &[EvdHandle]) -> Outcome {
        self.calls.wait(evds.len() as u32)?;
        let expected: Vec<_> = evds.iter().map(|evd| (ia.handle(), *evd)).collect();
        check_eq!(*self.named.lock(), expected);
        Ok(())
    }
}

/// A thread that waits on a CNO.
type Waiter = Thread<Result<EvdHandle, Error>>;

/// Starts a thread that waits without a limit of time, and returns when it is about to wait.
#[track_caller]
fn waiter(w: &World<'_>, ia: &Ia, cno: CnoHandle) -> Result<Waiter, Failure> {
    let (ia, begins) = (ia.clone(), Signal::new(w.f.platform()));
    let begun = begins.clone();
    let thread = Thread::spawn(w.f.platform(), "waiter", move || {
        begun.raise();
        ia.cno_wait(cno, TIMEOUT_INFINITE)
    })?;
    begins.wait(1)?;
    Ok(thread)
}

/// A new CNO with an agent and without event dispatchers, and a thread that waits on it.
#[track_caller]
fn waited(w: &World<'_>, ia: &Ia, seen: &Seen) -> Result<(CnoHandle, Waiter), Failure> {
    for _ in 0..100 {
        let cno = ia.cno_create(seen.agent())?;
        let thread = waiter(w, ia, cno)?;
        pause(w.f.platform(), Duration::from_micros(SHORT.into()));
        // A free is refused once the thread waits. If the free succeeds, the thread finds no CNO.
        match ia.cno_free(cno) {
            Err(error) if error == IN_USE => return Ok((cno, thread)),
            Err(error) => return Err(error.into()),
            Ok(()) => check!(thread.join()?.is_err(), "a freed CNO was triggered"),
        }
    }
    Err(Failure::new("the thread never waits"))
}

pub(crate) const TESTS: &[Test] = &[
    // A query of a CNO without event dispatchers and with some. Each bad handle is refused.
    test("dat_cno::creation_query_and_free", &[], |f| {
        world(f, |w| {
            let (plain, seen) = (w.a.cno_create(None)?, Seen::new(w));
            let with_agent = w.a.cno_create(seen.agent())?;
            let param = |proxy_type| CnoParam { ia_handle: w.a.handle(), proxy_type };
            check_eq!(w.a.cno_query(plain)?, param(CnoProxyType::None));
            check_eq!(w.a.cno_query(with_agent)?, param(CnoProxyType::Agent));
            check_eq!(w.a.get_handle_type(plain)?, HandleType::Cno);
            let first = w.a.evd_create(4, plain, MERGED)?;
            let second = software(&w.a, plain)?;
            check_eq!(w.a.evd_query(first)?.cno_handle, plain);
            refused(w.a.cno_free(plain), IN_USE)?;
            w.a.evd_free(first)?;
            refused(w.a.cno_free(plain), IN_USE)?;
            w.a.evd_modify_cno(second, with_agent)?;
            check_eq!(w.a.evd_query(second)?.cno_handle, with_agent);
            w.a.cno_free(plain)?;
            refused(w.a.cno_free(with_agent), IN_USE)?;
            let foreign = w.b.cno_create(None)?;
            let other_type = CnoHandle::from_raw(second.as_raw());
            for bad in [CnoHandle::NULL, plain, foreign, other_type, CnoHandle::from_raw(u64::MAX)] {
                refused(w.a.cno_query(bad), NO_CNO)?;
                refused(w.a.cno_wait(bad, 0), NO_CNO)?;
                refused(w.a.cno_free(bad), NO_CNO)?;
                refused(w.a.cno_modify_agent(bad, seen.agent()), NO_CNO)?;
                if !bad.is_null() {
                    refused(w.a.evd_create(4, bad, EvdFlags::SOFTWARE), NO_CNO)?;
                    refused(w.a.evd_modify_cno(second, bad), NO_CNO)?;
                }
            }
            check_eq!(w.a.evd_query(second)?.cno_handle, with_agent);
            for bad in [EvdHandle::NULL, first, evd(&w.b, EvdFlags::SOFTWARE)?] {
                refused(w.a.evd_modify_cno(bad, with_agent), invalid(Subtype::InvalidHandle1))?;
            }
            // A creation that fails for another reason leaves the CNO unused.
            let alone = w.a.cno_create(None)?;
            refused(w.a.evd_create(0, alone, MERGED), parameter(Subtype::InvalidArg2))?;
            refused(w.a.evd_create(4, alone, EvdFlags::ASYNC), parameter(Subtype::InvalidArg4))?;
            w.a.cno_free(alone)?;
            w.a.evd_modify_cno(second, CnoHandle::NULL)?;
            check_eq!(w.a.evd_query(second)?.cno_handle, CnoHandle::NULL);
            w.a.cno_free(with_agent)?;
            check_eq!(seen.calls.count(), 0);
            Ok(())
        })
    }),
    // An event of each stream triggers the CNO, and the wait names its event dispatcher.
    test("dat_cno::each_stream_triggers", &[], |f| {
        world(f, |w| {
            let cno = w.b.cno_create(None)?;
            let (a, b) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
            for evd in [b.recv, b.request, b.connect, w.asynchronous[1]] {
                w.b.evd_modify_cno(evd, cno)?;
            }
            refused(w.b.cno_wait(cno, 0), NONE_CAME)?;
            let requests = w.b.evd_create(QLEN, cno, EvdFlags::CR)?;
            let (conn_qual, _) = w.b.psp_create_any(requests, PspFlags::Consumer)?;
            dial(&a, address(&w.b)?, conn_qual, &[])?;
            check_eq!(w.b.cno_wait(cno, LONG)?, requests);
            w.b.cr_accept(cr(&w.b.evd_dequeue(requests)?)?, b.ep, &[])?;
            check_eq!(w.b.cno_wait(cno, LONG)?, b.connect);
            check_eq!(w.b.evd_dequeue(b.connect)?.event_number, EventNumber::CONNECTION_ESTABLISHED);
            expect(&w.a, a.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            b.receive(&[], 1)?;
            a.send(&[], 2)?;
            check_eq!(w.b.cno_wait(cno, LONG)?, b.recv);
            check_eq!(drain(&w.b, b.recv)?, 1);
            a.receive(&[], 3)?;
            b.send(&[], 4)?;
            check_eq!(w.b.cno_wait(cno, LONG)?, b.request);
            check_eq!(drain(&w.b, b.request)?, 1);
            let (software, many) = (software(&w.b, cno)?, w.b.evd_create(4, cno, MERGED)?);
            for evd in [software, many, software] {
                post(&w.b, evd, 5)?;
                check_eq!(w.b.cno_wait(cno, LONG)?, evd);
                check_eq!(drain(&w.b, evd)?, 1);
            }
            // Fewer Receives are left than the watermark, so its event comes at once.
            let srq = w.b.srq_create(b.pz, &SrqAttr::default())?;
            w.b.srq_set_lw(srq, 1)?;
            check_eq!(w.b.cno_wait(cno, LONG)?, w.asynchronous[1]);
            check_eq!(drain(&w.b, w.asynchronous[1])?, 1);
            refused(w.b.cno_wait(cno, SHORT), NONE_CAME)
        })
    }),
    // A trigger stays until a wait takes it. An event dispatcher triggers once, and again only
    // after all of its events were taken. The CNO remembers each event dispatcher that triggered.
    test("dat_cno::a_trigger_stays_and_comes_once", &[], |f| {
        world(f, |w| {
            let cno = w.a.cno_create(None)?;
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let evd = w.a.evd_create(8, cno, flags)?;
                for data in 0..3 {
                    post(&w.a, evd, data)?;
                }
                check_eq!(w.a.cno_wait(cno, LONG)?, evd);
                refused(w.a.cno_wait(cno, SHORT), NONE_CAME)?;
                take(&w.a, evd, 0)?;
                post(&w.a, evd, 3)?;
                refused(w.a.cno_wait(cno, SHORT), NONE_CAME)?;
                check_eq!(drain(&w.a, evd)?, 3);
                // No trigger is lost, however fast the next event comes.
                for data in 0..200 {
                    post(&w.a, evd, data)?;
                    check_eq!(w.a.cno_wait(cno, LONG)?, evd);
                    check_eq!(drain(&w.a, evd)?, 1);
                }
                refused(w.a.cno_wait(cno, 0), NONE_CAME)?;
                w.a.evd_free(evd)?;
            }
            let evds = [software(&w.a, cno)?, software(&w.a, cno)?, w.a.evd_create(8, cno, MERGED)?];
            for evd in evds {
                for data in 0..4 {
                    post(&w.a, evd, data)?;
                }
            }
            let each_once = || {
                let mut named = Vec::new();
                for _ in evds {
                    named.push(w.a.cno_wait(cno, LONG)?);
                }
                check!(evds.iter().all(|evd| named.contains(evd)), "{named:?} of {evds:?}");
                refused(w.a.cno_wait(cno, SHORT), NONE_CAME)
            };
            each_once()?;
            // When a wait ends and leaves events, it triggers the CNO. The CNO holds one trigger of
            // each event dispatcher.
            for data in [0, 1, 2] {
                for evd in evds {
                    check_eq!(w.a.evd_wait(evd, LONG, 1)?.0, Event::software(evd, data));
                }
            }
            each_once()
        })
    }),
    // A thread that an event dispatcher's trigger woke can free that event dispatcher at once,
    // although the callback that triggered may not have returned yet. The same holds after the
    // event dispatcher has left its CNO.
    test("dat_cno::a_free_waits_for_what_triggered", &[], |f| {
        world(f, |w| {
            let cno = w.a.cno_create(None)?;
            for n in 0..if cfg!(miri) { 4 } else { 200 } {
                let evd = w.a.evd_create(8, cno, [EvdFlags::SOFTWARE, MERGED][n % 2])?;
                post(&w.a, evd, 1)?;
                check_eq!(w.a.cno_wait(cno, LONG)?, evd);
                if n % 4 > 1 {
                    w.a.evd_modify_cno(evd, CnoHandle::NULL)?;
                }
                w.a.evd_free(evd)?;
            }
            refused(w.a.cno_wait(cno, 0), NONE_CAME)?;
            Ok(w.a.cno_free(cno)?)
        })
    }),
    // The CNO forgets the trigger of an event dispatcher that is freed or gets another CNO. The
    // other CNO is triggered at once if events are queued.
    test("dat_cno::an_event_dispatcher_takes_its_trigger_along", &[], |f| {
        world(f, |w| {
            let (one, two) = (w.a.cno_create(None)?, w.a.cno_create(None)?);
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let make = |cno| w.a.evd_create(8, cno, flags);
                let (evd, stays) = (make(one)?, make(one)?);
                for evd in [evd, stays] {
                    post(&w.a, evd, 1)?;
                }
                let first = w.a.cno_wait(one, LONG)?;
                check!([evd, stays].contains(&first));
                w.a.evd_modify_cno(evd, two)?;
                check_eq!(w.a.cno_wait(two, LONG)?, evd);
                if first == evd {
                    check_eq!(w.a.cno_wait(one, LONG)?, stays);
                }
                refused(w.a.cno_wait(one, SHORT), NONE_CAME)?;
                // Setting the same CNO again triggers it once more.
                w.a.evd_modify_cno(evd, two)?;
                check_eq!(w.a.cno_wait(two, LONG)?, evd);
                refused(w.a.cno_wait(two, SHORT), NONE_CAME)?;
                // Without a CNO an event triggers nothing. A CNO that is set then is triggered for
                // all queued events.
                check_eq!(drain(&w.a, evd)?, 1);
                w.a.evd_modify_cno(evd, CnoHandle::NULL)?;
                post(&w.a, evd, 2)?;
                refused(w.a.cno_wait(two, SHORT), NONE_CAME)?;
                w.a.evd_modify_cno(evd, two)?;
                w.a.evd_free(evd)?;
                refused(w.a.cno_wait(two, SHORT), NONE_CAME)?;
                // With no event queued, a new CNO is not triggered.
                check_eq!(drain(&w.a, stays)?, 1);
                w.a.evd_modify_cno(stays, two)?;
                refused(w.a.cno_wait(two, SHORT), NONE_CAME)?;
                w.a.evd_free(stays)?;
            }
            w.a.cno_free(one)?;
            Ok(w.a.cno_free(two)?)
        })
    }),
    // While a thread waits on an event dispatcher, the CNO is not triggered. If events are left
    // when the wait ends, it is.
    test("dat_cno::a_waiter_of_the_event_dispatcher_comes_first", &[], |f| {
        world(f, |w| {
            let cno = w.a.cno_create(None)?;
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let evd = w.a.evd_create(8, cno, flags)?;
                let thread = waiting(w, &w.a, evd, 1)?;
                post(&w.a, evd, 1)?;
                check_eq!(thread.join()??, (Event::software(evd, 1), 0));
                refused(w.a.cno_wait(cno, SHORT), NONE_CAME)?;
                let thread = waiting(w, &w.a, evd, 2)?;
                post(&w.a, evd, 2)?;
                refused(w.a.cno_wait(cno, SHORT), NONE_CAME)?;
                post(&w.a, evd, 3)?;
                check_eq!(thread.join()??, (Event::software(evd, 2), 1));
                check_eq!(w.a.cno_wait(cno, LONG)?, evd);
                take(&w.a, evd, 3)?;
                refused(w.a.cno_wait(cno, SHORT), NONE_CAME)?;
                w.a.evd_free(evd)?;
            }
            Ok(())
        })
    }),
    // A trigger wakes a thread that waits without a time limit. Of two threads it wakes one.
    test("dat_cno::a_trigger_wakes_one_waiter", &[], |f| {
        world(f, |w| {
            let seen = Seen::new(w);
            let (cno, first) = waited(w, &w.a, &seen)?;
            let second = waiter(w, &w.a, cno)?;
            pause(w.f.platform(), Duration::from_micros(SHORT.into()));
            let evds = [software(&w.a, cno)?, software(&w.a, cno)?];
            check!(!first.is_done() && !second.is_done(), "a wait ended without a trigger");
            post(&w.a, evds[0], 1)?;
            let woken = crate::thread::eventually(w.f.platform(), || first.is_done() || second.is_done());
            check!(woken, "no waiter was woken");
            pause(w.f.platform(), Duration::from_micros(SHORT.into()));
            let (woken, other) = if first.is_done() { (first, second) } else { (second, first) };
            check_eq!(woken.join()?, Ok(evds[0]));
            check!(!other.is_done(), "one trigger woke two waiters");
            refused(w.a.cno_free(cno), IN_USE)?;
            post(&w.a, evds[1], 1)?;
            check_eq!(other.join()?, Ok(evds[1]));
            refused(w.a.cno_wait(cno, 0), NONE_CAME)?;
            // The agent has never been called.
            check_eq!((seen.calls.count(), w.a.cno_query(cno)?.proxy_type), (0, CnoProxyType::Agent));
            Ok(())
        })
    }),
    // The agent is called once. Later triggers stay until a wait takes them, or until the consumer
    // has set another agent: that one is called at the next trigger.
    test("dat_cno::an_agent_is_called_once", &[], |f| {
        world(f, |w| {
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let seen = Seen::new(w);
                let cno = w.a.cno_create(seen.agent())?;
                let evd = w.a.evd_create(8, cno, flags)?;
                post(&w.a, evd, 1)?;
                seen.are(&w.a, &[evd])?;
                check_eq!(w.a.cno_query(cno)?.proxy_type, CnoProxyType::None);
                // The agent took the trigger.
                refused(w.a.cno_wait(cno, SHORT), NONE_CAME)?;
                check_eq!(drain(&w.a, evd)?, 1);
                post(&w.a, evd, 2)?;
                check_eq!(w.a.cno_wait(cno, LONG)?, evd);
                seen.are(&w.a, &[evd])?;
                // An agent that is set after an event is called at the next event.
                w.a.cno_modify_agent(cno, seen.agent())?;
                check_eq!(w.a.cno_query(cno)?.proxy_type, CnoProxyType::Agent);
                seen.are(&w.a, &[evd])?;
                check_eq!(drain(&w.a, evd)?, 1);
                post(&w.a, evd, 3)?;
                seen.are(&w.a, &[evd, evd])?;
                check_eq!(drain(&w.a, evd)?, 1);
                // A replaced agent is never called, and is dropped.
                let former = Seen::new(w);
                w.a.cno_modify_agent(cno, former.agent())?;
                check_eq!(Arc::strong_count(&former.named), 2);
                w.a.cno_modify_agent(cno, None)?;
                check_eq!(Arc::strong_count(&former.named), 1);
                post(&w.a, evd, 4)?;
                check_eq!(w.a.cno_wait(cno, LONG)?, evd);
                check_eq!((former.calls.count(), seen.calls.count()), (0, 2));
                w.a.cno_modify_agent(cno, former.agent())?;
                w.a.evd_modify_cno(evd, CnoHandle::NULL)?;
                w.a.cno_free(cno)?;
                check_eq!(Arc::strong_count(&former.named), 1, "a freed CNO keeps its agent");
            }
            Ok(())
        })
    }),
    // A waiting thread gets the trigger, and not the agent. The agent is called at the next trigger
    // for which no thread waits.
    test("dat_cno::a_waiter_comes_before_the_agent", &[], |f| {
        world(f, |w| {
            let seen = Seen::new(w);
            let (cno, thread) = waited(w, &w.a, &seen)?;
            let evd = software(&w.a, cno)?;
            post(&w.a, evd, 1)?;
            check_eq!(thread.join()?, Ok(evd));
            check_eq!((seen.calls.count(), w.a.cno_query(cno)?.proxy_type), (0, CnoProxyType::Agent));
            check_eq!(drain(&w.a, evd)?, 1);
            post(&w.a, evd, 2)?;
            seen.are(&w.a, &[evd])
        })
    }),
    // Waits end in time, a free is refused while a thread waits, and an abrupt close ends all
    // waits.
    test("dat_cno::waits_end", &[], |f| {
        world(f, |w| {
            let (seen, platform) = (Seen::new(w), w.f.platform());
            let alone = w.b.cno_create(None)?;
            for timeout in [0, 1, SHORT] {
                let began = platform.now();
                refused(w.b.cno_wait(alone, timeout), NONE_CAME)?;
                check!(platform.now().since(began) >= Duration::from_micros(timeout.into()), "too early");
            }
            // A wait that has ended does not make the CNO in use.
            w.b.cno_free(alone)?;
            let (cno, first) = waited(w, &w.b, &seen)?;
            let (with_event_dispatcher, second) = waited(w, &w.b, &seen)?;
            software(&w.b, with_event_dispatcher)?;
            let third = waiter(w, &w.b, cno)?;
            for used in [cno, with_event_dispatcher] {
                refused(w.b.cno_free(used), IN_USE)?;
            }
            w.close(&w.b)?;
            let dead = state(Subtype::InvalidStateCnoDead);
            refused(first.join()?, dead)?;
            refused(second.join()?, dead)?;
            // This thread may have begun its wait too late.
            let late = third.join()?;
            check!([Err(dead), Err(invalid(Subtype::InvalidHandleIa))].contains(&late), "{late:?}");
            refused(w.b.cno_wait(cno, 0), invalid(Subtype::InvalidHandleIa))?;
            check_eq!(Arc::strong_count(&seen.named), 1, "a closed IA keeps agents");
            Ok(())
        })
    }),
];

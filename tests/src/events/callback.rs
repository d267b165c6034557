//! Callbacks (pages it_evd_callback_attach, it_evd_callback_detach).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use platform::sync::Mutex;
use privileged_api::*;

use crate::check::some;
use crate::events::aevd::{feed, feeding, gathering, naming};
use crate::events::evd_wait::waits_alone;
use crate::fixture::{Fixture, OPEN, PAGE, Pair, SIGNALLED, attributes, evd_param, path, sevd, spigot};
use crate::thread::{Signal, Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// An EVD for 64 software events.
fn software(ia: &Ia) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 64, 1, EvdHandle::NULL)?)
}

/// Attaches a callback that only counts its invocations.
pub(crate) fn count(f: &Fixture, evd: EvdHandle) -> Result<Signal, Failure> {
    let signal = Signal::new(f.platform());
    let raised = signal.clone();
    f.a.evd_callback_attach(evd, Box::new(move |_, _| raised.raise()))?;
    Ok(signal)
}

/// Waits until every callback that is due has been invoked: it makes the callback of another EVD
/// due behind them and waits for that one.
pub(crate) fn settle(f: &Fixture) -> Outcome {
    let evd = software(&f.a)?;
    let signal = count(f, evd)?;
    for round in 1..=3 {
        f.a.evd_post_se(evd, 0)?;
        signal.wait(round)?;
        f.a.evd_dequeue(evd)?;
        refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
    }
    freed(f, evd)
}

/// Frees an EVD whose callback may still be returning.
pub(crate) fn freed(f: &Fixture, evd: EvdHandle) -> Outcome {
    let mut last = Ok(());
    eventually(f.platform(), || {
        last = f.a.evd_free(evd);
        last != Err(Error::InvalidEvdState)
    });
    Ok(last?)
}

/// Dequeues until the queue is empty.
pub(crate) fn drain(ia: &Ia, evd: EvdHandle) -> Result<usize, Failure> {
    let mut count = 0;
    loop {
        match ia.evd_dequeue(evd) {
            Ok(_) => count += 1,
            Err(Error::QueueEmpty) => return Ok(count),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs `body` once in a callback and returns its result.
pub(crate) fn inside<T: Send + 'static>(
    f: &Fixture,
    mut body: impl FnMut(&Ia, EvdHandle) -> T + Send + 'static,
) -> Result<T, Failure> {
    let evd = software(&f.a)?;
    let signal = Signal::new(f.platform());
    let slot = Arc::new(Mutex::new(None));
    let (raised, result) = (signal.clone(), slot.clone());
    let callback = move |ia: &Ia, evd| {
        let value = body(ia, evd);
        *result.lock() = Some(value);
        raised.raise();
    };
    f.a.evd_callback_attach(evd, Box::new(callback))?;
    f.a.evd_post_se(evd, 0)?;
    signal.wait(1)?;
    let value = slot.lock().take();
    freed(f, evd)?;
    some(value, "what the callback returned")
}

pub(crate) const TESTS: &[Test] = &[
    // The callback gets the IA and the EVD that notified.
    test(
        "callback::invoked_with_its_evd",
        &["it_evd_callback_attach B07 F01 O01 V02", "it_evd_query F12", "G.1 F07"],
        |f| {
            let evd = software(&f.a)?;
            let seen = Arc::new(Mutex::new(Vec::new()));
            let signal = Signal::new(f.platform());
            check!(!evd_param(&f.a, evd)?.evd_callback);
            let (raised, list) = (signal.clone(), seen.clone());
            f.a.evd_callback_attach(
                evd,
                Box::new(move |ia, evd| {
                    list.lock().push((ia.handle(), evd));
                    raised.raise();
                }),
            )?;
            check!(evd_param(&f.a, evd)?.evd_callback);
            f.a.evd_post_se(evd, 1)?;
            signal.wait(1)?;
            check_eq!(seen.lock().as_slice(), [(f.a.handle(), evd)]);
            check_eq!(f.a.evd_dequeue(evd)?, Event::Software { evd, data: 1 });
            Ok(())
        },
    ),
    // Events that are queued when the callback is attached do not invoke it; only after a drain do
    // later ones.
    test("callback::not_before_all_is_dequeued", &["it_evd_callback_attach B06"], |f| {
        let evd = software(&f.a)?;
        for data in 0..3 {
            f.a.evd_post_se(evd, data)?;
        }
        let signal = count(f, evd)?;
        f.a.evd_post_se(evd, 3)?;
        settle(f)?;
        check_eq!(signal.count(), 0, "invoked for events that were queued before it was attached");
        f.a.evd_dequeue(evd)?;
        f.a.evd_post_se(evd, 4)?;
        settle(f)?;
        check_eq!(signal.count(), 0, "invoked before the queue was empty");
        check_eq!(drain(&f.a, evd)?, 4);
        f.a.evd_post_se(evd, 5)?;
        signal.wait(1)
    }),
    // After an invocation the callback is not invoked again until the EVD was drained.
    test("callback::once_a_transition", &["it_evd_callback_attach B07 B08"], |f| {
        let evd = software(&f.a)?;
        let signal = count(f, evd)?;
        for round in 1..=5 {
            f.a.evd_post_se(evd, 0)?;
            signal.wait(round)?;
            for data in 1..4 {
                f.a.evd_post_se(evd, data)?;
            }
            settle(f)?;
            check_eq!(signal.count(), round, "invoked again before the drain");
            check_eq!(drain(&f.a, evd)?, 4);
        }
        Ok(())
    }),
    // The callback is invoked at the completion that reaches the threshold.
    test("callback::at_the_threshold", &["it_evd_callback_attach B07"], |f| {
        let request = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 2)?;
        let recv = sevd(&f.a, EventType::DTO_EVENT_STREAM, 64, 1)?;
        let pair = Pair { a: f.end_on(&f.a, &attributes(), request, recv)?, b: f.end(&f.b, &attributes())? };
        f.connect(&pair.a, &pair.b)?;
        let signal = count(f, request)?;
        let nothing =
            |cookie, flags| f.a.post_rdma_write(pair.a.ep, &[], cookie, flags, RdmaAddr(0), RmrContext(0));
        nothing(0, DtoFlags::COMPLETION)?;
        // The peer receives a Send that was posted behind the request, so the request's completion
        // is queued.
        f.b.post_recv(pair.b.ep, &[], 1, DtoFlags::COMPLETION)?;
        f.a.post_send(pair.a.ep, &[], 1, DtoFlags::empty())?;
        pair.b.recv_done(1, DtoStatus::Success)?;
        settle(f)?;
        check_eq!(signal.count(), 0, "invoked below the threshold");
        nothing(2, DtoFlags::COMPLETION)?;
        signal.wait(1)?;
        check_eq!(drain(&f.a, request)?, 2);
        // A completion that notifies invokes the callback below the threshold.
        nothing(3, SIGNALLED)?;
        signal.wait(2)
    }),
    // Two invocations for one EVD would run at the same time if posters invoked the callback
    // themselves.
    test("callback::never_twice_at_once", &["it_evd_callback_attach B09", "A.it_evd_post_se B01"], |f| {
        let evd = software(&f.a)?;
        let (inside, worst) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let taken = Arc::new(AtomicU64::new(0));
        let signal = Signal::new(f.platform());
        let (depth, max, total, raised) = (inside.clone(), worst.clone(), taken.clone(), signal.clone());
        f.a.evd_callback_attach(
            evd,
            Box::new(move |ia, evd| {
                max.fetch_max(depth.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                while ia.evd_dequeue(evd).is_ok() {
                    total.fetch_add(1, Ordering::SeqCst);
                    raised.raise();
                }
                depth.fetch_sub(1, Ordering::SeqCst);
            }),
        )?;
        let mut posters = Vec::new();
        for _ in 0..3 {
            let (ia, platform) = (f.a.clone(), f.platform().clone());
            posters.push(Thread::spawn(f.platform(), "poster", move || {
                (0..100).all(|data| eventually(&platform, || ia.evd_post_se(evd, data).is_ok()))
            })?);
        }
        for poster in posters {
            check!(poster.join()?);
        }
        signal.wait(300)?;
        check_eq!((taken.load(Ordering::SeqCst), worst.load(Ordering::SeqCst)), (300, 1));
        Ok(())
    }),
    // The callback does not run in the thread of the call that caused the event.
    test("callback::in_a_thread_of_its_own", &["it_evd_callback_attach B11"], |f| {
        let evd = software(&f.a)?;
        let thread = Arc::new(AtomicU64::new(0));
        let signal = Signal::new(f.platform());
        let (slot, raised, platform) = (thread.clone(), signal.clone(), f.platform().clone());
        f.a.evd_callback_attach(
            evd,
            Box::new(move |_, _| {
                slot.store(platform.current_thread(), Ordering::SeqCst);
                raised.raise();
            }),
        )?;
        f.a.evd_post_se(evd, 0)?;
        signal.wait(1)?;
        let other = thread.load(Ordering::SeqCst);
        check!(
            other != 0 && other != f.platform().current_thread(),
            "the callback ran in the poster's thread"
        );
        Ok(())
    }),
    // While a callback is attached, waits and a second callback are refused; after the detach they
    // work.
    test(
        "callback::one_mechanism_at_a_time",
        &[
            "it_evd_callback_attach B03 L01 IT_ERR_CALLBACK_EXISTS",
            "it_evd_callback_detach B03",
            "it_evd_wait IT_ERR_CALLBACK_EXISTS",
            "it_status_t F08",
        ],
        |f| {
            let evd = software(&f.a)?;
            count(f, evd)?;
            refused(f.a.evd_callback_attach(evd, Box::new(|_, _| {})), Error::CallbackExists)?;
            check!(f.a.evd_wait(evd, 0).is_err_and(|failure| failure == Error::CallbackExists));
            f.a.evd_callback_detach(evd)?;
            check!(!evd_param(&f.a, evd)?.evd_callback);
            f.a.evd_post_se(evd, 3)?;
            check_eq!(f.a.evd_wait(evd, 0)?.0, Event::Software { evd, data: 3 });
            let signal = count(f, evd)?;
            refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
            f.a.evd_post_se(evd, 4)?;
            signal.wait(1)?;
            check_eq!(Error::CallbackExists as u32, 7);
            Ok(())
        },
    ),
    // Each pair of mechanisms that the page lists is refused, and the one in use goes on working.
    test("callback::no_second_mechanism", &["it_evd_callback_attach B02"], |f| {
        let attach = |evd| f.a.evd_callback_attach(evd, Box::new(|_, _| {}));
        // A wait, then a callback.
        let evd = sevd(&f.a, EventType::SOFTWARE_EVENT_STREAM, 8, 2)?;
        let thread = waits_alone(f, &f.a, evd, TIMEOUT_INFINITE)?;
        refused(attach(evd), Error::EvdWait)?;
        f.a.evd_post_se(evd, 1)?;
        f.a.evd_post_se(evd, 2)?;
        check_eq!(thread.join()?.ok(), Some(Event::Software { evd, data: 1 }));
        // A callback, then a wait, another callback, or an aggregate EVD of either kind.
        let evd = software(&f.a)?;
        let signal = count(f, evd)?;
        check!(f.a.evd_wait(evd, 0).is_err_and(|failure| failure == Error::CallbackExists));
        refused(attach(evd), Error::CallbackExists)?;
        for aevd in [naming(&f.a)?, gathering(&f.a)?] {
            refused(feed(&f.a, evd, aevd), Error::CallbackExists)?;
        }
        refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
        f.a.evd_post_se(evd, 3)?;
        signal.wait(1)?;
        // A notification object, which stands for the file descriptor, then a callback.
        let (stream, fd) = (EventType::SOFTWARE_EVENT_STREAM, EvdFlags::CREATE_FD);
        let evd = f.a.evd_create(stream, fd, 8, 1, EvdHandle::NULL)?;
        refused(attach(evd), Error::InvalidEvdState)?;
        f.a.evd_post_se(evd, 4)?;
        check!(f.a.evd_notification(evd)?.is_ready()?);
        // An aggregate EVD, then a callback.
        for aevd in [naming(&f.a)?, gathering(&f.a)?] {
            let evd = feeding(&f.a, aevd)?;
            refused(attach(evd), Error::InvalidEvdState)?;
            f.a.evd_post_se(evd, 5)?;
            f.a.evd_wait(aevd, 0)?;
        }
        Ok(())
    }),
    // A callback cannot be attached while a thread waits on the EVD.
    test(
        "callback::refused_while_a_thread_waits",
        &["it_evd_callback_attach IT_ERR_EVD_WAIT", "it_status_t F14"],
        |f| {
            let evd = sevd(&f.a, EventType::DTO_EVENT_STREAM, 8, 2)?;
            let thread = waits_alone(f, &f.a, evd, TIMEOUT_INFINITE)?;
            refused(f.a.evd_callback_attach(evd, Box::new(|_, _| {})), Error::EvdWait)?;
            check!(!evd_param(&f.a, evd)?.evd_callback);
            check_eq!(Error::EvdWait as u32, 13);
            f.a.evd_free(evd)?;
            check!(thread.join()?.is_err_and(|failure| failure == Error::Abort));
            Ok(())
        },
    ),
    // An unprivileged IA cannot attach or detach callbacks.
    test(
        "callback::for_the_privileged_only",
        &["it_evd_callback_attach IT_ERR_NO_PERMISSION", "it_evd_callback_detach IT_ERR_NO_PERMISSION"],
        |f| {
            let ia = f.unprivileged()?;
            let evd = software(&ia)?;
            refused(ia.evd_callback_attach(evd, Box::new(|_, _| {})), Error::NoPermission)?;
            refused(ia.evd_callback_detach(evd), Error::NoPermission)?;
            check!(!evd_param(&ia, evd)?.evd_callback);
            Ok(())
        },
    ),
    // A detach without a callback is refused.
    test(
        "callback::nothing_to_detach",
        &["it_evd_callback_detach IT_ERR_INVALID_EVD_STATE", "it_status_t F39"],
        |f| {
            let evd = software(&f.a)?;
            refused(f.a.evd_callback_detach(evd), Error::InvalidEvdState)?;
            count(f, evd)?;
            f.a.evd_callback_detach(evd)?;
            refused(f.a.evd_callback_detach(evd), Error::InvalidEvdState)?;
            check_eq!(Error::InvalidEvdState as u32, 38);
            Ok(())
        },
    ),
    // A callback may detach itself, and is not invoked again.
    test("callback::detached_from_inside", &["it_evd_callback_detach B02 B03"], |f| {
        let evd = software(&f.a)?;
        let signal = Signal::new(f.platform());
        let detached = Arc::new(Mutex::new(None));
        let (raised, slot) = (signal.clone(), detached.clone());
        f.a.evd_callback_attach(
            evd,
            Box::new(move |ia, evd| {
                *slot.lock() = Some(ia.evd_callback_detach(evd));
                raised.raise();
            }),
        )?;
        f.a.evd_post_se(evd, 0)?;
        signal.wait(1)?;
        check_eq!(*detached.lock(), Some(Ok(())));
        check_eq!(drain(&f.a, evd)?, 1);
        f.a.evd_post_se(evd, 1)?;
        settle(f)?;
        check_eq!(signal.count(), 1, "invoked after the detach");
        check_eq!(f.a.evd_wait(evd, 0)?.0, Event::Software { evd, data: 1 });
        Ok(())
    }),
    // An EVD with a callback that is not running can be freed without a detach.
    test("callback::freed_with_an_idle_one", &["it_evd_free B07", "it_evd_callback_detach B04"], |f| {
        let evd = software(&f.a)?;
        count(f, evd)?;
        f.a.evd_free(evd)?;
        refused(f.a.evd_post_se(evd, 1), Error::InvalidEvd)
    }),
    // While a callback runs, neither its EVD nor the IA can be freed.
    test(
        "callback::nothing_is_freed_under_a_running_one",
        &[
            "it_evd_free IT_ERR_INVALID_EVD_STATE",
            "it_ia_free S01 V01 IT_ERR_INVALID_EVD_STATE",
            "it_evd_callback_detach V01",
        ],
        |f| {
            let ia = f.another(Some(f.setup.privileged))?;
            let evd = software(&ia)?;
            let pz = ia.pz_create()?;
            let (entered, leave) = (Signal::new(f.platform()), Signal::new(f.platform()));
            let (inside, until) = (entered.clone(), leave.clone());
            ia.evd_callback_attach(
                evd,
                Box::new(move |_, _| {
                    inside.raise();
                    let _ = until.wait(1);
                }),
            )?;
            ia.evd_post_se(evd, 0)?;
            entered.wait(1)?;
            refused(ia.evd_free(evd), Error::InvalidEvdState)?;
            refused(ia.ia_free(), Error::InvalidEvdState)?;
            // The refused free has freed no object.
            check_eq!(ia.pz_query(pz, PzParamMask::IA)?.ia, ia.handle());
            check_eq!(ia.object_counts().evd, 1);
            // A detach does not wait for a running callback.
            ia.evd_callback_detach(evd)?;
            refused(ia.evd_free(evd), Error::InvalidEvdState)?;
            leave.raise();
            let mut last = Ok(());
            eventually(f.platform(), || {
                last = ia.evd_free(evd);
                last != Err(Error::InvalidEvdState)
            });
            Ok(last?)
        },
    ),
    // A callback cannot free its own EVD or its IA.
    test(
        "callback::frees_refused_from_inside",
        &["it_evd_free IT_ERR_INVALID_EVD_STATE", "it_ia_free S01"],
        |f| {
            let results = inside(f, |ia, evd| (ia.evd_free(evd), ia.ia_free()))?;
            check_eq!(results, (Err(Error::InvalidEvdState), Err(Error::InvalidEvdState)));
            Ok(())
        },
    ),
    // Calls that are on the page's list are refused in a callback, and create nothing.
    test("callback::forbidden_calls", &["it_evd_callback_attach L02"], |f| {
        let end = f.end(&f.a, &attributes())?;
        let software = software(&f.a)?;
        let requests = sevd(&f.a, EventType::CM_REQ_EVENT_STREAM, 4, 1)?;
        let at = spigot(&f.a)?;
        let route = path(&f.a, &at.net_addr[0])?;
        let buffer = f.buffer(PAGE)?;
        let (name, provider) = (f.setup.a.name.clone(), f.setup.provider.clone());
        let before = f.a.object_counts();
        let refusals = inside(f, move |ia, _| {
            let memory = LmrMemory::Buffer { buffer: &buffer, offset: 0 };
            let params = EvdParam::default();
            let qual = ConnQual::port(9);
            let conn = end.conn;
            [
                ("it_ia_create", provider.ia_create(&name, 2, 1, None).err()),
                ("it_ia_query", ia.ia_query().err()),
                ("it_pz_create", ia.pz_create().err()),
                (
                    "it_lmr_create",
                    ia.lmr_create(end.pz, memory, 64, AddrMode::Absolute, OPEN, LmrFlags::NONE, 0).err(),
                ),
                (
                    "it_evd_create",
                    ia.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 4, 1, EvdHandle::NULL)
                        .err(),
                ),
                ("it_evd_modify", ia.evd_modify(software, EvdParamMask::ENABLED, &params).err()),
                ("it_evd_wait", ia.evd_wait(software, 0).err().map(Error::from)),
                (
                    "it_ep_rc_create",
                    ia.ep_rc_create(end.pz, end.request, end.recv, conn, EpFlags::empty(), &attributes())
                        .err(),
                ),
                ("it_ep_modify", ia.ep_modify(end.ep, EpParamMask::MAX_ORD, &attributes()).err()),
                ("it_ep_connect", ia.ep_connect(end.ep, &route, None, &qual, CnEstFlags::TWO_WAY, &[]).err()),
                (
                    "it_listen_create",
                    ia.listen_create(at.spigot_id, requests, ListenFlags::empty(), None).err(),
                ),
                ("it_get_pathinfo", ia.get_pathinfo(at.spigot_id, &at.net_addr[0], 1).err()),
            ]
        })?;
        for (call, error) in refusals {
            check_eq!(error, Some(Error::CallbackContext), "{call} in a callback");
        }
        check!(Error::CallbackContext as u32 > 106, "not behind the header's last value");
        check_eq!(f.a.object_counts(), before);
        // Outside of a callback the same calls succeed.
        f.a.pz_create()?;
        f.a.ia_query()?;
        Ok(())
    }),
    // Calls that are not on the page's list work in a callback.
    test("callback::allowed_calls", &["it_evd_callback_attach B12 V05"], |f| {
        let pair = f.pair()?;
        let region = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        let lmr = f.a.lmr_create_unlinked(pair.a.pz, 1, LmrFlags::NONE, 0)?;
        let pz = f.a.pz_create()?;
        let spare = software(&f.a)?;
        let end = pair.a.clone();
        let (segment, addr) = (region.whole(), region.buffer.addr());
        let results = inside(f, move |ia, evd| -> Result<(), Error> {
            ia.evd_dequeue(evd)?;
            ia.evd_query(evd, EvdParamMask::ALL)?;
            ia.evd_post_se(spare, 1)?;
            ia.evd_free(spare)?;
            ia.pz_query(pz, PzParamMask::ALL)?;
            ia.pz_free(pz)?;
            ia.ep_query(end.ep, EpParamMask::ALL)?;
            ia.set_consumer_context(end.ep, 5)?;
            ia.get_consumer_context(end.ep)?;
            ia.lmr_query(lmr, LmrParamMask::ALL)?;
            let (io_addr, len) = ia.mem_map(addr, 0, PAGE)?;
            let pages = [io_addr];
            let list = Iobl::pages(&pages, PAGE as u64, 0);
            ia.lmr_link(lmr, addr, &list, PAGE as u64, AddrMode::Relative, OPEN, end.ep, 1, SIGNALLED)?;
            ia.lmr_unlink(lmr, end.ep, 2, SIGNALLED)?;
            ia.mem_unmap(io_addr, len)?;
            ia.post_recv(end.ep, &[segment], 3, DtoFlags::COMPLETION)?;
            ia.post_send(end.ep, &[], 4, SIGNALLED)?;
            let unlinked = ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?;
            ia.lmr_free(unlinked)?;
            ia.evd_callback_detach(evd)
        })?;
        check_eq!(results, Ok(()));
        pair.a.done(1, DtoStatus::Success)?;
        pair.a.done(2, DtoStatus::Success)
    }),
    // Events of a disabled EVD invoke no callback until the EVD is enabled.
    test("callback::not_invoked_while_disabled", &["it_evd_modify B19"], |f| {
        let evd = software(&f.a)?;
        let signal = count(f, evd)?;
        let set = |evd_enabled| {
            let change = EvdParam { evd_enabled, ..EvdParam::default() };
            f.a.evd_modify(evd, EvdParamMask::ENABLED, &change)
        };
        set(false)?;
        f.a.evd_post_se(evd, 0)?;
        settle(f)?;
        check_eq!(signal.count(), 0);
        check_eq!(drain(&f.a, evd)?, 1);
        set(true)?;
        f.a.evd_post_se(evd, 1)?;
        signal.wait(1)
    }),
    // An EVD that is not an aggregate one is refused where an aggregate EVD is needed.
    test("callback::a_simple_evd_is_no_aggregate", &["it_evd_modify IT_ERR_INVALID_AEVD"], |f| {
        let evd = software(&f.a)?;
        let change = EvdParam { aevd: evd, ..EvdParam::default() };
        refused(f.a.evd_modify(evd, EvdParamMask::AEVD_HANDLE, &change), Error::InvalidAevd)
    }),
    // Both sides of a connection can be run from callbacks.
    test(
        "callback::connections_made_by_callbacks_alone",
        &["it_evd_callback_attach B12", "it_cm_req_events B02", "it_cm_msg_events B05"],
        |f| {
            let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            let listener = f.listen(&f.b)?;
            let (up, ep) = (Signal::new(f.platform()), passive.ep);
            f.b.evd_callback_attach(
                listener.evd,
                Box::new(move |ia, evd| {
                    while let Ok(event) = ia.evd_dequeue(evd) {
                        if let Event::ConnRequest(request) = event {
                            let _ = ia.ep_accept(ep, request.cn_est_id, b"from a callback");
                        }
                    }
                }),
            )?;
            for end in [&active, &passive] {
                let up = up.clone();
                end.ia.evd_callback_attach(
                    end.conn,
                    Box::new(move |ia, evd| {
                        while let Ok(event) = ia.evd_dequeue(evd) {
                            if event.event_number() == EventType::CM_MSG_CONN_ESTABLISHED {
                                up.raise();
                            }
                        }
                    }),
                )?;
            }
            f.dial(&active, &listener, CnEstFlags::TWO_WAY, &[])?;
            up.wait(2)?;
            check_eq!((active.state()?, passive.state()?), (EpStateRc::Connected, EpStateRc::Connected));
            Ok(())
        },
    ),
    // Two callbacks that post to each other keep going for many rounds, so no invocation is lost.
    test("callback::ping_pong", &["it_evd_callback_attach B08 B12"], |f| {
        const ROUNDS: u64 = 100;
        let pair = f.pair()?;
        let done = Signal::new(f.platform());
        let failed = Arc::new(AtomicBool::new(false));
        for (end, starts) in [(&pair.a, true), (&pair.b, false)] {
            for cookie in 0..4 {
                end.ia.post_recv(end.ep, &[], cookie, SIGNALLED)?;
            }
            let (ep, done, failed) = (end.ep, done.clone(), failed.clone());
            let mut rounds = 0;
            end.ia.evd_callback_attach(
                end.recv,
                Box::new(move |ia, evd| {
                    while let Ok(event) = ia.evd_dequeue(evd) {
                        let good = event.dto().is_some_and(|done| done.dto_status == DtoStatus::Success);
                        rounds += 1;
                        if !good || ia.post_recv(ep, &[], rounds, SIGNALLED).is_err() {
                            failed.store(true, Ordering::SeqCst);
                        }
                        if rounds == ROUNDS {
                            done.raise();
                        }
                        if !starts || rounds < ROUNDS {
                            // Every eighth Send is signalled so that the send queue gets room. Its
                            // completion is not dequeued.
                            let flags =
                                if rounds % 8 == 0 { DtoFlags::COMPLETION } else { DtoFlags::empty() };
                            if ia.post_send(ep, &[], rounds, flags).is_err() {
                                failed.store(true, Ordering::SeqCst);
                            }
                        }
                    }
                }),
            )?;
            end.ia.evd_callback_attach(
                end.request,
                Box::new(move |ia, evd| while ia.evd_dequeue(evd).is_ok() {}),
            )?;
        }
        f.a.post_send(pair.a.ep, &[], 0, DtoFlags::empty())?;
        done.wait(2)?;
        check!(!failed.load(Ordering::SeqCst));
        Ok(())
    }),
];

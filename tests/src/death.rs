//! Death of the device (page it_ia_info_t, "disabled state"): the IA goes catastrophic, every waiter wakes, nothing
//! hangs, and freeing the IA is all that is left.
//!
//! Each of these leaves a device behind that cannot be used any more, so they run last and the suite goes on with a
//! new one.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::fixture::{End, Fixture, OPEN, PAGE, Region, SIGNALLED, attributes, path, sevd, spigot};
use crate::thread::{Gate, Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

fn inject(f: &Fixture, what: Injection, value: u64) -> Outcome {
    match f.setup.a.agent.inject(0, what, 1, value) {
        // The device may be gone before its answer has been taken.
        Ok(()) | Err(kernel_agent::Error::DeviceDead(_)) => Ok(()),
        Err(error) => Err(Failure::new(alloc::format!("{what:?}: {error:?}"))),
    }
}

/// Waits until the IA is disabled.
fn disabled(f: &Fixture, ia: &Ia) -> Outcome {
    check!(eventually(f.platform(), || ia.ia_query() == Err(Error::IaCatastrophe)), "the IA lives on");
    Ok(())
}

/// Threads that wait for what will never come, in every way there is.
fn waiters(f: &Fixture, ia: &Ia, end: &End) -> Result<Vec<Thread<Result<(), Error>>>, Failure> {
    let software =
        ia.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 4, 1, EvdHandle::NULL)?;
    let mut threads = Vec::new();
    let aggregate = EventType::AEVD_NOTIFICATION_EVENT_STREAM;
    let naming = ia.evd_create(aggregate, EvdFlags::DEQUEUE_NOTIFICATIONS, 0, 0, EvdHandle::NULL)?;
    let gathering = ia.evd_create(aggregate, EvdFlags::empty(), 0, 0, EvdHandle::NULL)?;
    ia.evd_create(EventType::DTO_EVENT_STREAM, EvdFlags::OVERFLOW_DEFAULT, 4, 1, gathering)?;
    let noted = ia.evd_create(aggregate, EvdFlags::CREATE_FD, 0, 0, EvdHandle::NULL)?;
    let notification = ia.evd_notification(noted)?;
    threads.push(Thread::spawn(f.platform(), "waiter", move || notification.wait(TIMEOUT_INFINITE))?);
    for (evd, timeout) in [
        (end.request, TIMEOUT_INFINITE),
        (end.recv, TIMEOUT_INFINITE),
        (end.conn, TIMEOUT_INFINITE),
        (naming, TIMEOUT_INFINITE),
        (gathering, TIMEOUT_INFINITE),
        (software, TIMEOUT_INFINITE),
        (software, 3_600_000_000),
    ] {
        let ia = ia.clone();
        threads.push(Thread::spawn(f.platform(), "waiter", move || {
            loop {
                // Flushed completions may come first.
                if let Err(failure) = ia.evd_wait(evd, timeout) {
                    return Err(failure.error);
                }
            }
        })?);
    }
    Ok(threads)
}

/// Lets the device die in some way under a connection with work in progress, and checks that everything ends.
fn dies(f: &Fixture, how: impl Fn(&Fixture) -> Outcome) -> Outcome {
    let pair = f.pair()?;
    let region = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
    for cookie in 0..8 {
        f.a.post_recv(pair.a.ep, &[region.whole()], cookie, DtoFlags::COMPLETION)?;
    }
    let threads = waiters(f, &f.a, &pair.a)?;
    let unaffiliated =
        f.a.evd_create(EventType::ASYNC_UNAFF_EVENT_STREAM, EvdFlags::empty(), 4, 1, EvdHandle::NULL)?;
    how(f)?;
    // Posting never hangs, whatever the device does.
    for cookie in 0..200 {
        match f.a.post_send(pair.a.ep, &[region.segment(0, 8)], cookie, SIGNALLED) {
            Ok(()) | Err(Error::TooManyPosts | Error::IaCatastrophe | Error::InvalidEpState) => {}
            Err(error) => return Err(error.into()),
        }
    }
    disabled(f, &f.a)?;
    for thread in threads {
        check_eq!(thread.join()?, Err(Error::IaCatastrophe));
    }
    refused(f.a.evd_dequeue(unaffiliated), Error::IaCatastrophe)?;
    // It stays so.
    refused(f.a.pz_create(), Error::IaCatastrophe)?;
    f.a.ia_free()?;
    check!(f.a.object_counts().is_empty());
    refused(f.a.ia_query(), Error::InvalidIa)
}

/// Every call that names an IA and is no free of it, on a disabled one.
fn all_calls(end: &End, region: &Region) -> Vec<(&'static str, Option<Error>)> {
    let ia = &end.ia;
    let (pz, ep, evd) = (end.pz, end.ep, end.request);
    let memory = LmrMemory::Buffer { buffer: &region.buffer, offset: 0 };
    let pages = [IoAddr(0)];
    let list = Iobl::pages(&pages, PAGE as u64, 0);
    let (addr, context) = (RdmaAddr(0), RmrContext(0));
    let route = Path::default();
    let qual = ConnQual::port(9);
    let lmr = region.lmr;
    let attributes = attributes();
    let param = EvdParam::default();
    let absolute = AddrMode::Absolute;
    alloc::vec![
        ("it_ia_query", ia.ia_query().err()),
        ("it_get_handle_type", ia.get_handle_type(pz).err()),
        ("it_get_consumer_context", ia.get_consumer_context(pz).err()),
        ("it_set_consumer_context", ia.set_consumer_context(pz, 1).err()),
        ("it_pz_create", ia.pz_create().err()),
        ("it_pz_query", ia.pz_query(pz, PzParamMask::ALL).err()),
        ("it_pz_free", ia.pz_free(pz).err()),
        ("it_lmr_create", ia.lmr_create(pz, memory, 64, absolute, OPEN, LmrFlags::NONE, 0).err()),
        ("it_lmr_create_unlinked", ia.lmr_create_unlinked(pz, 1, LmrFlags::NONE, 0).err()),
        ("it_lmr_query", ia.lmr_query(lmr, LmrParamMask::ALL).err()),
        ("it_lmr_link", ia.lmr_link(lmr, 0, &list, 64, absolute, OPEN, ep, 1, SIGNALLED).err()),
        ("it_lmr_unlink", ia.lmr_unlink(lmr, ep, 1, SIGNALLED).err()),
        ("it_lmr_free", ia.lmr_free(lmr).err()),
        ("it_lmr_modify", ia.lmr_modify(lmr, LmrParamMask::MEM_PRIV, &LmrParam::default()).err()),
        ("it_mem_map", ia.mem_map(region.buffer.addr(), 0, PAGE).err()),
        ("it_mem_unmap", ia.mem_unmap(IoAddr(0), PAGE).err()),
        (
            "it_evd_create",
            ia.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 4, 1, EvdHandle::NULL).err()
        ),
        ("it_evd_dequeue", ia.evd_dequeue(evd).err()),
        ("it_evd_wait", ia.evd_wait(evd, 0).err().map(Error::from)),
        ("it_evd_query", ia.evd_query(evd, EvdParamMask::ALL).err()),
        ("it_evd_modify", ia.evd_modify(evd, EvdParamMask::ENABLED, &param).err()),
        ("it_evd_post_se", ia.evd_post_se(evd, 1).err()),
        ("it_evd_callback_attach", ia.evd_callback_attach(evd, Box::new(|_, _| {})).err()),
        ("it_evd_callback_detach", ia.evd_callback_detach(evd).err()),
        ("it_evd_free", ia.evd_free(evd).err()),
        ("it_ep_rc_create", ia.ep_rc_create(pz, evd, evd, end.conn, EpFlags::empty(), &attributes).err()),
        ("it_ep_query", ia.ep_query(ep, EpParamMask::ALL).err()),
        ("it_ep_modify", ia.ep_modify(ep, EpParamMask::MAX_ORD, &attributes).err()),
        ("it_ep_connect", ia.ep_connect(ep, &route, None, &qual, CnEstFlags::TWO_WAY, &[]).err()),
        ("it_ep_accept", ia.ep_accept(ep, CnEstId(1), &[]).err()),
        ("it_reject", ia.reject(CnEstId(1), &[]).err()),
        ("it_ep_disconnect", ia.ep_disconnect(ep, &[]).err()),
        ("it_ep_reset", ia.ep_reset(ep).err()),
        ("it_ep_free", ia.ep_free(ep).err()),
        ("it_listen_create", ia.listen_create(0, evd, ListenFlags::empty(), None).err()),
        ("it_listen_query", ia.listen_query(ListenHandle::NULL, ListenParamMask::ALL).err()),
        ("it_listen_free", ia.listen_free(ListenHandle::NULL).err()),
        ("it_get_pathinfo", ia.get_pathinfo(0, &NetAddr::default(), 1).err()),
        ("it_post_send", ia.post_send(ep, &[], 1, SIGNALLED).err()),
        ("it_post_recv", ia.post_recv(ep, &[], 1, DtoFlags::COMPLETION).err()),
        ("it_post_rdma_write", ia.post_rdma_write(ep, &[], 1, SIGNALLED, addr, context).err()),
        ("it_post_rdma_read", ia.post_rdma_read(ep, &[], 1, SIGNALLED, addr, context).err()),
    ]
}

pub(crate) const TESTS: &[Test] = &[
    test(
        "death::every_call_is_refused",
        &[
            "it_ia_info_t.S02",
            "it_ia_info_t.S03",
            "it_ia_info_t.IT_ERR_IA_CATASTROPHE",
            "it_ia_info_t.B08",
            "it_ia_info_t.B10",
            "it_ia_info_t.V02",
            "it_ia_free.B08",
            "it_ia_query.IT_ERR_IA_CATASTROPHE",
            "it_get_consumer_context.IT_ERR_IA_CATASTROPHE",
            "it_set_consumer_context.IT_ERR_IA_CATASTROPHE",
            "it_pz_create.IT_ERR_IA_CATASTROPHE",
            "it_pz_query.IT_ERR_IA_CATASTROPHE",
            "it_pz_free.IT_ERR_IA_CATASTROPHE",
            "it_lmr_create.IT_ERR_IA_CATASTROPHE",
            "it_lmr_create_unlinked.IT_ERR_IA_CATASTROPHE",
            "it_lmr_query.IT_ERR_IA_CATASTROPHE",
            "it_lmr_link.IT_ERR_IA_CATASTROPHE",
            "it_lmr_unlink.IT_ERR_IA_CATASTROPHE",
            "it_lmr_free.IT_ERR_IA_CATASTROPHE",
            "it_lmr_modify.IT_ERR_IA_CATASTROPHE",
            "it_lmr_modify.V05",
            "it_mem_map.IT_ERR_IA_CATASTROPHE",
            "it_mem_unmap.IT_ERR_IA_CATASTROPHE",
            "it_evd_create.IT_ERR_IA_CATASTROPHE",
            "it_evd_dequeue.IT_ERR_IA_CATASTROPHE",
            "it_evd_wait.IT_ERR_IA_CATASTROPHE",
            "it_evd_query.IT_ERR_IA_CATASTROPHE",
            "it_evd_modify.IT_ERR_IA_CATASTROPHE",
            "it_evd_post_se.IT_ERR_IA_CATASTROPHE",
            "it_evd_callback_attach.IT_ERR_IA_CATASTROPHE",
            "it_evd_callback_detach.IT_ERR_IA_CATASTROPHE",
            "it_evd_free.IT_ERR_IA_CATASTROPHE",
            "it_ep_rc_create.IT_ERR_IA_CATASTROPHE",
            "it_ep_query.IT_ERR_IA_CATASTROPHE",
            "it_ep_modify.IT_ERR_IA_CATASTROPHE",
            "it_ep_connect.IT_ERR_IA_CATASTROPHE",
            "it_ep_accept.IT_ERR_IA_CATASTROPHE",
            "it_reject.IT_ERR_IA_CATASTROPHE",
            "it_ep_disconnect.IT_ERR_IA_CATASTROPHE",
            "it_ep_reset.IT_ERR_IA_CATASTROPHE",
            "it_ep_free.IT_ERR_IA_CATASTROPHE",
            "it_listen_create.IT_ERR_IA_CATASTROPHE",
            "it_listen_query.IT_ERR_IA_CATASTROPHE",
            "it_listen_free.IT_ERR_IA_CATASTROPHE",
            "it_get_pathinfo.IT_ERR_IA_CATASTROPHE",
            "it_post_send.IT_ERR_IA_CATASTROPHE",
            "it_post_recv.IT_ERR_IA_CATASTROPHE",
            "it_post_rdma_write.IT_ERR_IA_CATASTROPHE",
            "it_post_rdma_read.IT_ERR_IA_CATASTROPHE",
            "it_status_t.F18",
        ],
        |f| {
            let end = f.end(&f.a, &attributes())?;
            let region = f.region(&f.a, end.pz, PAGE, OPEN)?;
            let before = f.a.object_counts();
            inject(f, Injection::Fail, 0)?;
            disabled(f, &f.a)?;
            for _ in 0..2 {
                for (call, error) in all_calls(&end, &region) {
                    check_eq!(error, Some(Error::IaCatastrophe), "{call} of a disabled IA");
                }
            }
            check_eq!(f.a.object_counts(), before, "objects of a disabled IA");
            check_eq!(Error::IaCatastrophe as u32, 17);
            f.a.ia_free()?;
            check!(f.a.object_counts().is_empty());
            Ok(())
        },
    )
    .kills(),
    test("death::mute", &["it_ia_info_t.S02", "it_ia_info_t.B07", "it_ia_free.B08"], |f| {
        // No heartbeat, no doorbell, no answer, not even to a reset.
        dies(f, |f| inject(f, Injection::Mute, 1))
    })
    .kills(),
    test("death::mute_but_for_the_reset", &["it_ia_info_t.S02"], |f| {
        dies(f, |f| inject(f, Injection::Mute, 0))
    })
    .kills(),
    test("death::failed", &["it_ia_info_t.S02"], |f| dies(f, |f| inject(f, Injection::Fail, 0))).kills(),
    test("death::the_device_is_killed", &["it_ia_info_t.S02", "it_ia_info_t.S03", "it_ia_free.B08"], |f| {
        dies(f, |f| {
            (f.setup.kill)();
            Ok(())
        })
    })
    .kills(),
    test("death::while_commands_are_under_way", &["it_ia_info_t.S02", "4.1.B04"], |f| {
        let gate = Gate::new(f.platform());
        let mut threads = Vec::new();
        for _ in 0..4 {
            let (ia, gate) = (f.a.clone(), gate.clone());
            threads.push(Thread::spawn(f.platform(), "busy", move || {
                loop {
                    match ia.pz_create().and_then(|pz| ia.pz_free(pz)) {
                        Ok(()) => gate.pass(),
                        Err(error) => return error,
                    }
                }
            })?);
        }
        gate.wait(20)?;
        inject(f, Injection::Mute, 1)?;
        for thread in threads {
            check_eq!(thread.join()?, Error::IaCatastrophe);
        }
        f.a.ia_free()?;
        Ok(())
    })
    .kills(),
    test("death::while_connecting", &["it_ia_info_t.S02", "it_ia_free.B07"], |f| {
        let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
        let listener = f.listen(&f.b)?;
        f.dial(&active, &listener, CnEstFlags::THREE_WAY, &[])?;
        let request = listener.request()?;
        let half = f.end(&f.a, &attributes())?;
        let to = spigot(&f.b)?.net_addr[0];
        f.a.ep_connect(half.ep, &path(&f.a, &to)?, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[])?;
        (f.setup.kill)();
        disabled(f, &f.b)?;
        refused(f.b.ep_accept(passive.ep, request.cn_est_id, &[]), Error::IaCatastrophe)?;
        disabled(f, &f.a)?;
        f.a.ia_free()?;
        f.b.ia_free()?;
        check!(f.a.object_counts().is_empty() && f.b.object_counts().is_empty());
        Ok(())
    })
    .kills(),
    test("death::callbacks_end", &["it_ia_info_t.S02"], |f| {
        let pair = f.pair()?;
        let calls = Gate::new(f.platform());
        let passed = calls.clone();
        f.a.evd_callback_attach(
            pair.a.recv,
            Box::new(move |ia, evd| {
                passed.pass();
                while ia.evd_dequeue(evd).is_ok() {}
            }),
        )?;
        f.a.post_recv(pair.a.ep, &[], 1, SIGNALLED)?;
        f.b.post_send(pair.b.ep, &[], 2, SIGNALLED)?;
        calls.wait(1)?;
        inject(f, Injection::Mute, 1)?;
        disabled(f, &f.a)?;
        let mut last = Ok(());
        check!(eventually(f.platform(), || {
            last = f.a.ia_free();
            last != Err(Error::InvalidEvdState)
        }));
        Ok(last?)
    })
    .kills(),
    test("death::a_new_ia_is_refused", &["it_ia_info_t.S03"], |f| {
        let evd = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 4, 1)?;
        inject(f, Injection::Fail, 0)?;
        disabled(f, &f.a)?;
        let created = f.setup.provider.ia_create(&f.setup.a.name, 2, 1, Some(f.setup.privileged));
        check!(created.is_err(), "an IA on a dead device");
        refused(f.a.evd_dequeue(evd), Error::IaCatastrophe)
    })
    .kills(),
];

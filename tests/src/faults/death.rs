//! Death of the device (page it_ia_info_t, "disabled state"): the IA becomes catastrophic, every
//! waiter wakes, no call hangs, and the only call that works is it_ia_free.
//!
//! Each of these tests leaves a dead device behind. They run last, and the suite continues on a new
//! device.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::fixture::{End, Fixture, OPEN, PAGE, SIGNALLED, attributes, path, sevd, spigot};
use crate::support::every_call::Objects;
use crate::thread::{Signal, Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Injects a fault into the device of `a`.
fn inject(f: &Fixture, what: Injection, value: u64) -> Outcome {
    match f.setup.a.agent.test_handle().inject(0, what, 1, value) {
        // The device may die before the agent has taken its answer.
        Ok(()) | Err(kernel_agent::Error::DeviceDead(_)) => Ok(()),
        Err(error) => Err(Failure::new(alloc::format!("{what:?}: {error:?}"))),
    }
}

/// Waits until the IA is disabled.
fn disabled(f: &Fixture, ia: &Ia) -> Outcome {
    check!(eventually(f.platform(), || ia.ia_query() == Err(Error::IaCatastrophe)), "the IA is not disabled");
    Ok(())
}

/// Threads that wait in every possible way for events that never come.
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

/// Kills the device with `how` under a connection with outstanding requests, and checks that every
/// wait ends.
fn device_dies(f: &Fixture, how: impl Fn(&Fixture) -> Outcome) -> Outcome {
    let pair = f.pair()?;
    let region = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
    for cookie in 0..8 {
        f.a.post_recv(pair.a.ep, &[region.whole()], cookie, DtoFlags::COMPLETION)?;
    }
    let threads = waiters(f, &f.a, &pair.a)?;
    let unaffiliated =
        f.a.evd_create(EventType::ASYNC_UNAFF_EVENT_STREAM, EvdFlags::empty(), 4, 1, EvdHandle::NULL)?;
    how(f)?;
    // A post never hangs, regardless of the state of the device. At first the agent does not know
    // that the device is dead: posts succeed until the queue is full.
    for cookie in 0..200 {
        match f.a.post_send(pair.a.ep, &[region.segment(0, 8)], cookie, SIGNALLED) {
            Ok(()) | Err(Error::TooManyPosts | Error::IaCatastrophe) => {}
            Err(error) => return Err(error.into()),
        }
    }
    disabled(f, &f.a)?;
    for thread in threads {
        check_eq!(thread.join()?, Err(Error::IaCatastrophe));
    }
    refused(f.a.evd_dequeue(unaffiliated), Error::IaCatastrophe)?;
    // The IA remains catastrophic.
    refused(f.a.pz_create(), Error::IaCatastrophe)?;
    f.a.ia_free()?;
    check!(f.a.object_counts().is_empty());
    refused(f.a.ia_query(), Error::InvalidIa)
}

pub(crate) const TESTS: &[Test] = &[
    // On a disabled IA every call but it_ia_free returns IT_ERR_IA_CATASTROPHE and has no effect.
    test(
        "death::every_call_is_refused",
        &[
            "it_ia_info_t B08 B10 S02 S03 V02 IT_ERR_IA_CATASTROPHE",
            "it_ia_free B08",
            "it_ia_query IT_ERR_IA_CATASTROPHE",
            "it_get_consumer_context IT_ERR_IA_CATASTROPHE",
            "it_set_consumer_context IT_ERR_IA_CATASTROPHE",
            "it_pz_create IT_ERR_IA_CATASTROPHE",
            "it_pz_query IT_ERR_IA_CATASTROPHE",
            "it_pz_free IT_ERR_IA_CATASTROPHE",
            "it_lmr_create IT_ERR_IA_CATASTROPHE",
            "it_lmr_create_unlinked IT_ERR_IA_CATASTROPHE",
            "it_lmr_query IT_ERR_IA_CATASTROPHE",
            "it_lmr_link IT_ERR_IA_CATASTROPHE",
            "it_lmr_unlink IT_ERR_IA_CATASTROPHE",
            "it_lmr_free IT_ERR_IA_CATASTROPHE",
            "it_lmr_modify V05 IT_ERR_IA_CATASTROPHE",
            "it_mem_map IT_ERR_IA_CATASTROPHE",
            "it_mem_unmap IT_ERR_IA_CATASTROPHE",
            "it_evd_create IT_ERR_IA_CATASTROPHE",
            "it_evd_dequeue IT_ERR_IA_CATASTROPHE",
            "it_evd_wait IT_ERR_IA_CATASTROPHE",
            "it_evd_query IT_ERR_IA_CATASTROPHE",
            "it_evd_modify IT_ERR_IA_CATASTROPHE",
            "it_evd_post_se IT_ERR_IA_CATASTROPHE",
            "it_evd_callback_attach IT_ERR_IA_CATASTROPHE",
            "it_evd_callback_detach IT_ERR_IA_CATASTROPHE",
            "it_evd_free IT_ERR_IA_CATASTROPHE",
            "it_ep_rc_create IT_ERR_IA_CATASTROPHE",
            "it_ep_query IT_ERR_IA_CATASTROPHE",
            "it_ep_modify IT_ERR_IA_CATASTROPHE",
            "it_ep_connect IT_ERR_IA_CATASTROPHE",
            "it_ep_accept IT_ERR_IA_CATASTROPHE",
            "it_reject IT_ERR_IA_CATASTROPHE",
            "it_ep_disconnect IT_ERR_IA_CATASTROPHE",
            "it_ep_reset IT_ERR_IA_CATASTROPHE",
            "it_ep_free IT_ERR_IA_CATASTROPHE",
            "it_listen_create IT_ERR_IA_CATASTROPHE",
            "it_listen_query IT_ERR_IA_CATASTROPHE",
            "it_listen_free IT_ERR_IA_CATASTROPHE",
            "it_get_pathinfo IT_ERR_IA_CATASTROPHE",
            "it_post_send IT_ERR_IA_CATASTROPHE",
            "it_post_recv IT_ERR_IA_CATASTROPHE",
            "it_post_rdma_write IT_ERR_IA_CATASTROPHE",
            "it_post_rdma_read IT_ERR_IA_CATASTROPHE",
            "it_ep_ud_create IT_ERR_IA_CATASTROPHE",
            "it_address_handle_create IT_ERR_IA_CATASTROPHE",
            "it_address_handle_query IT_ERR_IA_CATASTROPHE",
            "it_address_handle_modify IT_ERR_IA_CATASTROPHE",
            "it_address_handle_free IT_ERR_IA_CATASTROPHE",
            "it_post_sendto IT_ERR_IA_CATASTROPHE",
            "it_post_recvfrom IT_ERR_IA_CATASTROPHE",
            "it_ud_service_request_handle_create IT_ERR_IA_CATASTROPHE",
            "it_ud_service_request_handle_query IT_ERR_IA_CATASTROPHE",
            "it_ud_service_request_handle_free IT_ERR_IA_CATASTROPHE",
            "it_ud_service_request IT_ERR_IA_CATASTROPHE",
            "it_ud_service_reply IT_ERR_IA_CATASTROPHE",
            "it_convert_net_addr V02 IT_ERR_IA_CATASTROPHE",
            "it_handoff IT_ERR_IA_CATASTROPHE",
            "it_rmr_create IT_ERR_IA_CATASTROPHE",
            "it_rmr_query IT_ERR_IA_CATASTROPHE",
            "it_rmr_link IT_ERR_IA_CATASTROPHE",
            "it_rmr_unlink IT_ERR_IA_CATASTROPHE",
            "it_rmr_free IT_ERR_IA_CATASTROPHE",
            "it_srq_create IT_ERR_IA_CATASTROPHE",
            "it_srq_query IT_ERR_IA_CATASTROPHE",
            "it_srq_modify IT_ERR_IA_CATASTROPHE",
            "it_srq_free IT_ERR_IA_CATASTROPHE",
            "it_post_atomic IT_ERR_IA_CATASTROPHE",
            "it_post_send_and_unlink IT_ERR_IA_CATASTROPHE",
            "it_post_rdma_read_to_rmr IT_ERR_IA_CATASTROPHE",
            "it_lmr_flush_to_mem IT_ERR_IA_CATASTROPHE",
            "it_lmr_refresh_from_mem IT_ERR_IA_CATASTROPHE",
            "it_status_t F18",
        ],
        |f| {
            let objects = Objects::new(f, &f.a)?;
            let before = f.a.object_counts();
            inject(f, Injection::Fail, 0)?;
            disabled(f, &f.a)?;
            objects.all_refused(Error::IaCatastrophe)?;
            check_eq!(f.a.object_counts(), before, "objects of a disabled IA");
            check_eq!(Error::IaCatastrophe as u32, 17);
            f.a.ia_free()?;
            check!(f.a.object_counts().is_empty());
            Ok(())
        },
    )
    .kills(),
    // A device that stops answering altogether disables its IAs.
    test("death::mute", &["it_ia_info_t B07 S02", "it_ia_free B08"], |f| {
        // The device has no heartbeat, ignores doorbells and commands, and ignores even a reset.
        device_dies(f, |f| inject(f, Injection::Mute, 1))
    })
    .kills(),
    // A device that answers nothing but a reset disables its IAs.
    test("death::mute_but_for_the_reset", &["it_ia_info_t S02"], |f| {
        device_dies(f, |f| inject(f, Injection::Mute, 0))
    })
    .kills(),
    // A device that reports a failure disables its IAs.
    test("death::failed", &["it_ia_info_t S02"], |f| device_dies(f, |f| inject(f, Injection::Fail, 0)))
        .kills(),
    // A device whose process is killed disables its IAs.
    test("death::the_device_is_killed", &["it_ia_info_t S02 S03", "it_ia_free B08"], |f| {
        device_dies(f, |f| {
            (f.setup.kill)();
            Ok(())
        })
    })
    .kills(),
    // Threads that wait for an answer to a command return when the device dies.
    test("death::while_commands_are_under_way", &["it_ia_info_t S02", "4.1 B04"], |f| {
        let signal = Signal::new(f.platform());
        let mut threads = Vec::new();
        for _ in 0..4 {
            let (ia, signal) = (f.a.clone(), signal.clone());
            threads.push(Thread::spawn(f.platform(), "busy", move || {
                loop {
                    match ia.pz_create().and_then(|pz| ia.pz_free(pz)) {
                        Ok(()) => signal.raise(),
                        Err(error) => return error,
                    }
                }
            })?);
        }
        signal.wait(20)?;
        let end = f.end(&f.a, &attributes())?;
        inject(f, Injection::Mute, 1)?;
        // An endpoint is freed although the device does not answer.
        f.a.ep_free(end.ep)?;
        for thread in threads {
            check_eq!(thread.join()?, Error::IaCatastrophe);
        }
        f.a.ia_free()?;
        Ok(())
    })
    .kills(),
    // IAs with half-made connections are disabled when the device dies, and can be freed.
    test("death::while_connecting", &["it_ia_info_t S02", "it_ia_free B07"], |f| {
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
    // An IA with a callback is disabled when the device dies, and can be freed once the callback
    // has returned.
    test("death::callbacks_end", &["it_ia_info_t S02"], |f| {
        let pair = f.pair()?;
        let calls = Signal::new(f.platform());
        let passed = calls.clone();
        f.a.evd_callback_attach(
            pair.a.recv,
            Box::new(move |ia, evd| {
                passed.raise();
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
    // No IA can be created on a dead device.
    test("death::a_new_ia_is_refused", &["it_ia_info_t S03"], |f| {
        let evd = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 4, 1)?;
        inject(f, Injection::Fail, 0)?;
        disabled(f, &f.a)?;
        let created = f.setup.provider.ia_create(&f.setup.a.name, 2, 1, Some(f.setup.privileged));
        // The name is not in the list of interfaces any more.
        refused(created.map(drop), Error::InvalidName)?;
        refused(f.a.evd_dequeue(evd), Error::IaCatastrophe)
    })
    .kills(),
];

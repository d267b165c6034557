//! Waiting on simple EVDs, and the effect of the threshold and of the notify flag on waiters (pages
//! it_evd_wait, it_evd_create, it_dto_flags_t).

use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::events::evd::{PLAIN, blocks, nothing, queue_plain, queued, software, with_threshold};
use crate::fixture::{Fixture, SIGNALLED, WAIT, attributes, sevd};
use crate::thread::{Signal, Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Threads that wait for one event each.
pub(crate) struct Waiters {
    threads: Vec<Thread<Result<Event, WaitError>>>,
    done: Signal,
}

impl Waiters {
    /// Starts `count` threads that wait on the EVD.
    pub(crate) fn new(f: &Fixture, evd: EvdHandle, count: usize) -> Result<Waiters, Failure> {
        let done = Signal::new(f.platform());
        let mut threads = Vec::new();
        for _ in 0..count {
            let (ia, done) = (f.a.clone(), done.clone());
            threads.push(Thread::spawn(f.platform(), "waiter", move || {
                let event = ia.evd_wait(evd, WAIT).map(|(event, _)| event);
                done.raise();
                event
            })?);
        }
        Ok(Waiters { threads, done })
    }

    /// Waits until `count` waiters have an event, and checks that no other has one.
    #[track_caller]
    pub(crate) fn have(&self, count: usize) -> Outcome {
        self.done.wait(count as u32)?;
        check_eq!(self.done.count() as usize, count, "waiters that were woken");
        Ok(())
    }

    /// The data of the waiters' software events, sorted.
    #[track_caller]
    pub(crate) fn data(self) -> Result<Vec<usize>, Failure> {
        let mut got = Vec::new();
        for thread in self.threads {
            match thread.join()? {
                Ok(Event::Software { data, .. }) => got.push(data),
                other => return Err(Failure::new(alloc::format!("got {other:?}"))),
            }
        }
        got.sort_unstable();
        Ok(got)
    }
}

/// Starts a thread that takes one event from an EVD whose threshold is zero or above one. Such an
/// EVD refuses a second waiter, which shows that the thread waits. The check may itself be the
/// first waiter, so the thread retries when it is refused.
#[track_caller]
pub(crate) fn waits_alone(
    f: &Fixture,
    ia: &Ia,
    evd: EvdHandle,
    timeout: u64,
) -> Result<Thread<Result<Event, WaitError>>, Failure> {
    let waiter = ia.clone();
    let thread = Thread::spawn(f.platform(), "waiter", move || {
        loop {
            match waiter.evd_wait(evd, timeout) {
                Err(WaitError { error: Error::WaiterLimit, .. }) => {}
                other => return other.map(|(event, _)| event),
            }
        }
    })?;
    let limit = || matches!(ia.evd_wait(evd, 0), Err(WaitError { error: Error::WaiterLimit, .. }));
    check!(eventually(f.platform(), limit), "the thread does not wait");
    Ok(thread)
}

pub(crate) const TESTS: &[Test] = &[
    // A wait returns a queued event at once, whether or not the EVD is enabled, and counts the
    // remaining ones.
    test(
        "evd::wait_takes_what_is_queued",
        &["it_evd_wait B01 B05 B08 B17 F03 V06", "it_evd_create B36", "it_software_event_t B03"],
        |f| {
            let evd = software(&f.a, 8)?;
            for data in 0..5 {
                f.a.evd_post_se(evd, data)?;
            }
            for data in 0..5 {
                let (event, nmore) = f.a.evd_wait(evd, 0)?;
                check_eq!(event, Event::Software { evd, data });
                check_eq!(nmore, 4 - data);
            }
            blocks(&f.a, evd, 0)?;
            // Whether the EVD is enabled makes no difference while it notifies neither a callback
            // nor an aggregate EVD.
            let disable = EvdParam { evd_enabled: false, ..EvdParam::default() };
            f.a.evd_modify(evd, EvdParamMask::ENABLED, &disable)?;
            f.a.evd_post_se(evd, 9)?;
            check_eq!(f.a.evd_wait(evd, 0)?.0, Event::Software { evd, data: 9 });
            Ok(())
        },
    ),
    // A wait without an event ends after the timeout and not before; with timeout 0 the thread
    // never asks the platform to wait, whatever kind of EVD it is.
    test(
        "evd::wait_times_out",
        &["it_evd_wait B03 F01 V05 IT_ERR_TIMEOUT_EXPIRED", "it_status_t F105"],
        |f| {
            let evd = software(&f.a, 8)?;
            let queue = sevd(&f.a, EventType::DTO_EVENT_STREAM, 8, 1)?;
            let aggregate = EventType::AEVD_NOTIFICATION_EVENT_STREAM;
            let aggregate = f.a.evd_create(aggregate, EvdFlags::empty(), 0, 0, EvdHandle::NULL)?;
            for evd in [evd, queue, aggregate] {
                let before = (f.setup.usage)().waits;
                let waited = f.a.evd_wait(evd, 0);
                check_eq!(waited, Err(WaitError { error: Error::TimeoutExpired, nmore: 0 }));
                check_eq!((f.setup.usage)().waits, before);
            }
            for timeout in [0, 1, 1000] {
                let before = f.platform().now();
                let waited = f.a.evd_wait(evd, timeout);
                check_eq!(waited, Err(WaitError { error: Error::TimeoutExpired, nmore: 0 }));
                let passed = f.platform().now().since(before).as_micros() as u64;
                check!(passed >= timeout, "{passed} us of {timeout}");
            }
            check_eq!(Error::TimeoutExpired as u32, 104);
            Ok(())
        },
    ),
    // A thread that waits without limit returns when an event arrives.
    test(
        "evd::an_event_wakes_the_waiter",
        &[
            "it_evd_wait B07 B11 F02 V08",
            "it_evd_post_se B03",
            "it_evd_create B50-B52",
            "it_event_t F02",
            "A.it_evd_create B11 B14",
        ],
        |f| {
            check_eq!(TIMEOUT_INFINITE, u64::MAX);
            let evd = software(&f.a, 8)?;
            let echo = software(&f.a, 8)?;
            let ia = f.a.clone();
            let thread = Thread::spawn(f.platform(), "waiter", move || -> Result<(), WaitError> {
                for _ in 0..50 {
                    let (event, _) = ia.evd_wait(evd, TIMEOUT_INFINITE)?;
                    let Event::Software { data, .. } = event else { continue };
                    let _ = ia.evd_post_se(echo, data + 1);
                }
                Ok(())
            })?;
            for round in 0..50 {
                f.a.evd_post_se(evd, 2 * round)?;
                let (event, _) = f.a.evd_wait(echo, WAIT)?;
                check_eq!(event, Event::Software { evd: echo, data: 2 * round + 1 });
            }
            Ok(thread.join()??)
        },
    ),
    // Several threads may wait on one EVD, and each event wakes one of them.
    test(
        "evd::as_many_waiters_as_events",
        &["it_evd_wait B12 B18", "it_evd_create O01", "A.it_evd_wait B01", "A.it_evd_dequeue B01"],
        |f| {
            let evd = software(&f.a, 16)?;
            let waiters = Waiters::new(f, evd, 4)?;
            // Each event wakes one waiter; the others continue to wait.
            for count in 1..=4 {
                f.a.evd_post_se(evd, count)?;
                waiters.have(count)?;
                refused(f.a.evd_dequeue(evd), Error::QueueEmpty)?;
            }
            check_eq!(waiters.data()?, [1, 2, 3, 4]);
            Ok(())
        },
    ),
    // With a threshold above one, a second waiter is refused.
    test(
        "evd::one_waiter_above_threshold_one",
        &["it_evd_wait O01 IT_ERR_WAITER_LIMIT", "it_status_t F107"],
        |f| {
            let evd = sevd(&f.a, EventType::DTO_EVENT_STREAM, 8, 2)?;
            let thread = waits_alone(f, &f.a, evd, TIMEOUT_INFINITE)?;
            let second = f.a.evd_wait(evd, 0);
            check!(
                second.is_err_and(|failure| failure == Error::WaiterLimit),
                "a second waiter was not refused"
            );
            check_eq!(Error::WaiterLimit as u32, 106);
            f.a.evd_free(evd)?;
            check!(thread.join()?.is_err_and(|failure| failure == Error::Abort));
            Ok(())
        },
    ),
    // A thread that waits on an EVD that is freed returns with IT_ERR_ABORT.
    test(
        "evd::freed_under_its_waiter",
        &["it_evd_wait V03 IT_ERR_ABORT", "it_evd_free V03", "it_status_t F02"],
        |f| {
            let evd = sevd(&f.a, EventType::DTO_EVENT_STREAM, 8, 2)?;
            let thread = waits_alone(f, &f.a, evd, TIMEOUT_INFINITE)?;
            f.a.evd_free(evd)?;
            check!(thread.join()?.is_err_and(|failure| failure == Error::Abort));
            check_eq!(Error::Abort as u32, 1);
            check_eq!(f.a.object_counts().evd, 0);
            Ok(())
        },
    ),
    // Completions that do not notify wake a waiter only when there are as many as the threshold.
    test(
        "evd::the_threshold_counts_plain_completions",
        &[
            "it_evd_create B29 B30 S04",
            "it_evd_wait V07",
            "it_dto_flags_t B33",
            "it_dto_events O01",
            "A.it_evd_create B03 B07 B09 B13 V01",
        ],
        |f| {
            let pair = with_threshold(f, 3)?;
            let evd = pair.a.request;
            queue_plain(f, &pair, 2)?;
            blocks(&f.a, evd, 2)?;
            nothing(&pair.a, 2, PLAIN)?;
            let (event, nmore) = f.a.evd_wait(evd, WAIT)?;
            check_eq!(event.dto().map(|done| done.cookie), Some(0));
            check_eq!(nmore, 2);
            // Reaching the threshold once is not remembered: what counts is the number of queued
            // events.
            blocks(&f.a, evd, 2)?;
            nothing(&pair.a, 3, PLAIN)?;
            pair.a.done(1, DtoStatus::Success)?;
            blocks(&f.a, evd, 2)
        },
    ),
    // A dequeue returns every queued event.
    test(
        "evd::dequeue_ignores_the_threshold",
        &["it_evd_dequeue B10", "it_evd_create B54", "A.it_evd_create B18 B19"],
        |f| {
            let pair = with_threshold(f, 3)?;
            let evd = pair.a.request;
            queue_plain(f, &pair, 2)?;
            let disable = EvdParam { evd_enabled: false, ..EvdParam::default() };
            f.a.evd_modify(evd, EvdParamMask::ENABLED, &disable)?;
            for cookie in 0..2 {
                check_eq!(f.a.evd_dequeue(evd)?.dto().map(|done| done.cookie), Some(cookie));
            }
            refused(f.a.evd_dequeue(evd), Error::QueueEmpty)
        },
    ),
    // With a threshold of 0, no number of plain completions ends a wait.
    test("evd::threshold_zero_is_never_reached", &["it_evd_create B37", "A.it_evd_create B08 B20"], |f| {
        let pair = with_threshold(f, THRESHOLD_DISABLE)?;
        let evd = pair.a.request;
        blocks(&f.a, evd, 0)?;
        queue_plain(f, &pair, 20)?;
        blocks(&f.a, evd, 20)?;
        // A queued event that notifies lets each wait return, until it is taken itself.
        nothing(&pair.a, 20, SIGNALLED)?;
        for cookie in 0..=20 {
            pair.a.done(cookie, DtoStatus::Success)?;
        }
        blocks(&f.a, evd, 0)
    }),
    // A completion with the notify flag ends a wait, even if it is not the first in the queue.
    test(
        "evd::notification_events_wake_below_the_threshold",
        &["it_evd_create B33", "it_dto_flags_t F02", "A.it_evd_create B01 B06"],
        |f| {
            let pair = with_threshold(f, 10)?;
            let evd = pair.a.request;
            nothing(&pair.a, 0, PLAIN)?;
            nothing(&pair.a, 1, SIGNALLED)?;
            nothing(&pair.a, 2, PLAIN)?;
            // The second completion notifies, and it does so until it is taken.
            pair.a.done(0, DtoStatus::Success)?;
            pair.a.done(1, DtoStatus::Success)?;
            queued(f, &f.a, evd, 1)?;
            blocks(&f.a, evd, 1)
        },
    ),
    // A failed completion notifies, whatever its flags.
    test("evd::errors_notify", &["it_evd_create B34", "A.it_evd_create B04"], |f| {
        let pair = with_threshold(f, 10)?;
        f.a.ep_disconnect(pair.a.ep, &[])?;
        nothing(&pair.a, 1, DtoFlags::empty())?;
        pair.a.done(1, DtoStatus::Flushed)
    }),
    // A Receive notifies if its own flag or the Send asks for it.
    test(
        "evd::solicited_receives_notify",
        &[
            "it_evd_create B31 B35",
            "it_dto_flags_t B04 F03 F10",
            "A.it_evd_create B02",
            "A.it_dto_flags_t V01",
        ],
        |f| {
            let pair = with_threshold(f, 10)?;
            let evd = pair.a.recv;
            for cookie in 0..3 {
                f.a.post_recv(pair.a.ep, &[], cookie, PLAIN)?;
            }
            f.b.post_send(pair.b.ep, &[], 0, SIGNALLED)?;
            pair.b.done(0, DtoStatus::Success)?;
            queued(f, &f.a, evd, 1)?;
            blocks(&f.a, evd, 1)?;
            f.b.post_send(pair.b.ep, &[], 1, SIGNALLED | DtoFlags::SOLICITED_WAIT)?;
            pair.a.recv_done(0, DtoStatus::Success)?;
            pair.a.recv_done(1, DtoStatus::Success)?;
            // A Receive that was posted with the notify flag notifies without a solicited Send.
            f.b.post_send(pair.b.ep, &[], 2, SIGNALLED)?;
            queued(f, &f.a, evd, 1)?;
            blocks(&f.a, evd, 1)?;
            f.a.post_recv(pair.a.ep, &[], 3, SIGNALLED)?;
            f.b.post_send(pair.b.ep, &[], 3, SIGNALLED)?;
            pair.a.recv_done(2, DtoStatus::Success)?;
            pair.a.recv_done(3, DtoStatus::Success)
        },
    ),
    // On all streams but that of completions, each event notifies regardless of the threshold.
    test(
        "evd::thresholds_have_no_effect_on_other_streams",
        &["it_evd_create B32", "it_cm_req_events B02", "it_cm_msg_events B05", "A.it_evd_create B05"],
        |f| {
            let evd =
                f.a.evd_create(EventType::SOFTWARE_EVENT_STREAM, EvdFlags::empty(), 8, 8, EvdHandle::NULL)?;
            f.a.evd_post_se(evd, 3)?;
            check_eq!(f.a.evd_wait(evd, WAIT)?.0, Event::Software { evd, data: 3 });
            // A connection request and a rejection, each on an EVD with a threshold of eight.
            let requests = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 8)?;
            let spigot = crate::fixture::spigot(&f.b)?;
            let (_, qual) = f.b.listen_create(spigot.spigot_id, requests, ListenFlags::empty(), None)?;
            let mut end = f.end(&f.a, &attributes())?;
            f.a.ep_free(end.ep)?;
            end.conn = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 8, 8)?;
            end.ep =
                f.a.ep_rc_create(end.pz, end.request, end.recv, end.conn, EpFlags::empty(), &attributes())?;
            let path = crate::fixture::path(&f.a, &spigot.net_addr[0])?;
            f.a.ep_connect(end.ep, &path, None, &qual, CnEstFlags::TWO_WAY, &[])?;
            let (event, _) = f.b.evd_wait(requests, WAIT)?;
            let Event::ConnRequest(request) = event else {
                return Err(Failure::new(alloc::format!("got {event:?}")));
            };
            f.b.reject(request.cn_est_id, &[])?;
            end.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            Ok(())
        },
    ),
];

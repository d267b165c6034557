//! Event dispatchers: streams that share one, thresholds, the only waiter, overflow, resizing,
//! frees.

use alloc::format;
use alloc::vec::Vec;

use dat::*;

use super::world::*;
use crate::fixture::PAGE;
use crate::thread::{Thread, eventually};
use crate::{Failure, Outcome, Test, check, check_eq, refused, some, test};

/// The error of a call that an object's state does not allow.
pub(crate) const fn state(subtype: Subtype) -> Error {
    Error::new(ErrorType::InvalidState, subtype)
}

/// The error of a bad argument.
pub(crate) const fn parameter(subtype: Subtype) -> Error {
    Error::new(ErrorType::InvalidParameter, subtype)
}

/// The error of a bad handle.
pub(crate) const fn invalid(subtype: Subtype) -> Error {
    Error::new(ErrorType::InvalidHandle, subtype)
}

/// All streams that can share an event dispatcher.
pub(crate) const MERGED: EvdFlags = EvdFlags::SOFTWARE
    .union(EvdFlags::CR)
    .union(EvdFlags::DTO)
    .union(EvdFlags::CONNECTION)
    .union(EvdFlags::RMR_BIND);

/// Posts a software event.
#[track_caller]
pub(crate) fn post(ia: &Ia, evd: EvdHandle, data: usize) -> Outcome {
    Ok(ia.evd_post_se(evd, &Event::software(evd, data))?)
}

/// Takes the next event without waiting, which must be this software event.
#[track_caller]
pub(crate) fn take(ia: &Ia, evd: EvdHandle, data: usize) -> Outcome {
    check_eq!(ia.evd_dequeue(evd)?, Event::software(evd, data));
    Ok(())
}

/// An event dispatcher for software events that holds at least `qlen`.
#[track_caller]
fn software(ia: &Ia, qlen: usize) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(qlen, CnoHandle::NULL, EvdFlags::SOFTWARE)?)
}

/// An endpoint of `ia`, all of whose events come to one event dispatcher.
#[track_caller]
fn end_on_one(ia: &Ia, qlen: usize, flags: EvdFlags) -> Result<End, Failure> {
    let (pz, evd) = (ia.pz_create()?, ia.evd_create(qlen, CnoHandle::NULL, flags)?);
    let ep = ia.ep_create(pz, evd, evd, evd, Some(&attributes()))?;
    Ok(End { ia: ia.clone(), ep, pz, recv: evd, request: evd, connect: evd })
}

/// The numbers of completions of DAT, and of its extensions.
const ORDINARY: EventNumber = EventNumber::DTO_COMPLETION;
const EXTENDED: EventNumber = EventNumber::IB_DTO;

/// A thread that waits, and what its wait returns.
pub(crate) type Waiter = Thread<Result<(Event, usize), WaitError>>;

/// Starts a thread that waits for `threshold` events without a limit of time, and returns when it
/// waits.
#[track_caller]
pub(crate) fn waiting(w: &World<'_>, ia: &Ia, evd: EvdHandle, threshold: usize) -> Result<Waiter, Failure> {
    let (waiter, platform) = (ia.clone(), w.f.platform());
    let thread =
        Thread::spawn(platform, "waiter", move || waiter.evd_wait(evd, TIMEOUT_INFINITE, threshold))?;
    // While the thread does not wait yet, a dequeue would take an event, so this polls with a
    // resize.
    let qlen = ia.evd_query(evd)?.evd_qlen;
    let waits = || ia.evd_resize(evd, qlen) == Err(state(Subtype::InvalidStateEvdWaiter));
    check!(eventually(platform, || thread.is_done() || waits()), "the thread does not wait");
    Ok(thread)
}

pub(crate) const TESTS: &[Test] = &[
    // The events of five streams of one connection come on one event dispatcher, each with its own
    // number. Events of one stream come in the order in which they were made.
    test("dat_evd::streams_share_an_event_dispatcher", &[], |f| {
        world(f, |w| {
            let a = w.end(&w.a, &attributes())?;
            let b = end_on_one(&w.b, QLEN, MERGED)?;
            let evd = b.connect;
            check_eq!(w.b.evd_query(evd)?.evd_flags.bits(), 0xf1);
            let (conn_qual, psp) = w.b.psp_create_any(evd, PspFlags::Consumer)?;
            post(&w.b, evd, 1)?;
            post(&w.b, evd, 2)?;
            take(&w.b, evd, 1)?;
            take(&w.b, evd, 2)?;
            dial(&a, address(&w.b)?, conn_qual, &[])?;
            let cr = request(&w.b, evd)?;
            w.b.cr_accept(cr, b.ep, &[])?;
            expect(&w.b, evd, EventNumber::CONNECTION_ESTABLISHED)?;
            expect(&w.a, a.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            let (own, far) = (w.region(&a, PAGE, OPEN)?, w.region(&b, PAGE, OPEN)?);
            for cookie in 0..3 {
                b.receive(&[far.segment(0, 8)], cookie)?;
                a.send(&[own.segment(0, 8)], cookie)?;
            }
            for cookie in 0..3 {
                let (done, number, _) = b.received(cookie, DtoStatus::Success)?;
                check_eq!((done.operation, number), (Dto::RECEIVE, EventNumber::DTO_COMPLETION));
            }
            let rmr = w.b.rmr_create(b.pz)?;
            let (triplet, privs) = (far.segment(0, 64), MemPriv::REMOTE_READ);
            w.b.rmr_bind(rmr, far.lmr.lmr_handle, &triplet, privs, VaType::Va, b.ep, 9, PLAIN)?;
            let event = expect(&w.b, evd, EventNumber::RMR_BIND_COMPLETION)?;
            let done = RmrBindCompletion { rmr_handle: rmr, user_cookie: 9, status: DtoStatus::Success };
            check_eq!(event.event_data, EventData::RmrBind(done));
            w.a.ep_disconnect(a.ep, CloseFlags::Abrupt)?;
            expect(&w.b, evd, EventNumber::CONNECTION_DISCONNECTED)?;
            refused(w.b.evd_dequeue(evd), ErrorType::QueueEmpty.into())?;
            // The endpoint and the service point feed it until both are freed.
            refused(w.b.evd_free(evd), state(Subtype::InvalidStateEvdInUse))?;
            w.b.ep_free(b.ep)?;
            refused(w.b.evd_free(evd), state(Subtype::InvalidStateEvdInUse))?;
            w.b.psp_free(psp)?;
            w.b.evd_free(evd)?;
            refused(w.b.evd_dequeue(evd), invalid(Subtype::InvalidHandle1))
        })
    }),
    // A wait for several events ends when that many are queued, of any stream. It takes the oldest
    // event of a stream and returns how many are left. A timeout takes nothing and returns how many
    // there are.
    test("dat_evd::a_threshold_counts_all_streams", &[], |f| {
        world(f, |w| {
            let (a, b) = (w.end(&w.a, &attributes())?, end_on_one(&w.b, QLEN, MERGED)?);
            let evd = b.connect;
            let requests = super::world::evd(&w.b, EvdFlags::CR)?;
            let (conn_qual, _) = w.b.psp_create_any(requests, PspFlags::Consumer)?;
            dial(&a, address(&w.b)?, conn_qual, &[])?;
            w.b.cr_accept(request(&w.b, requests)?, b.ep, &[])?;
            expect(&w.a, a.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            expect(&w.b, evd, EventNumber::CONNECTION_ESTABLISHED)?;
            let short = |queued| {
                let failure = WaitError { error: ErrorType::TimeoutExpired.into(), nmore: queued };
                refused(w.b.evd_wait(evd, SHORT, 3), failure)
            };
            short(0)?;
            post(&w.b, evd, 5)?;
            b.receive(&[], 6)?;
            a.send(&[], 7)?;
            a.done(7, DtoStatus::Success)?;
            // Both are queued at the latest when the sender has its completion.
            check_eq!(w.b.evd_wait(evd, 0, 3).map_err(|failure| failure.nmore), Err(2));
            short(2)?;
            let thread = waiting(w, &w.b, evd, 3)?;
            check!(!thread.is_done());
            post(&w.b, evd, 8)?;
            let (first, left) = thread.join()??;
            check_eq!(left, 2);
            let mut all = Vec::from([first]);
            while let Ok(event) = w.b.evd_dequeue(evd) {
                all.push(event);
            }
            check_eq!(all.len(), 3);
            let posted: Vec<_> =
                all.iter().filter(|event| event.event_number == EventNumber::SOFTWARE).collect();
            check_eq!(posted, [&Event::software(evd, 5), &Event::software(evd, 8)]);
            check_eq!(all.iter().filter_map(Event::dto).map(|done| done.user_cookie).sum::<u64>(), 6);
            // The threshold is between one and what the queue holds.
            let most = w.b.evd_query(evd)?.evd_qlen;
            check!(most >= QLEN);
            for bad in [0, most + 1, usize::MAX] {
                let wrong = parameter(Subtype::InvalidArg3);
                refused(w.b.evd_wait(evd, 0, bad).map_err(|failure| failure.error), wrong)?;
            }
            check_eq!(w.b.evd_wait(evd, 0, most).map_err(|failure| failure.nmore), Err(0));
            Ok(())
        })
    }),
    // One thread waits. During the wait no other thread can wait, dequeue, resize or free, but all
    // can post and query. After the wait all these calls work again.
    test("dat_evd::one_thread_waits", &[], |f| {
        world(f, |w| {
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let evd = w.a.evd_create(8, CnoHandle::NULL, flags)?;
                let before = w.a.evd_query(evd)?;
                let thread = waiting(w, &w.a, evd, 2)?;
                let waited = state(Subtype::InvalidStateEvdWaiter);
                for timeout in [0, SHORT, TIMEOUT_INFINITE] {
                    let second = w.a.evd_wait(evd, timeout, 1);
                    refused(second.map_err(|failure| failure.error), waited)?;
                }
                post(&w.a, evd, 1)?;
                refused(w.a.evd_dequeue(evd), waited)?;
                refused(w.a.evd_resize(evd, 16), waited)?;
                refused(w.a.evd_free(evd), waited)?;
                check_eq!(w.a.evd_query(evd)?, before);
                check!(!thread.is_done());
                post(&w.a, evd, 2)?;
                check_eq!(thread.join()??, (Event::software(evd, 1), 1));
                take(&w.a, evd, 2)?;
                refused(w.a.evd_dequeue(evd), ErrorType::QueueEmpty.into())?;
                w.a.evd_resize(evd, 16)?;
                w.a.evd_free(evd)?;
            }
            Ok(())
        })
    }),
    // One thread waits for completions, which a dequeue takes by a faster path.
    test("dat_evd::a_waiter_takes_the_completions", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair()?;
            let waited = state(Subtype::InvalidStateEvdWaiter);
            for round in [0, 2] {
                refused(w.b.evd_dequeue(b.recv), ErrorType::QueueEmpty.into())?;
                for cookie in [round, round + 1] {
                    b.receive(&[], cookie)?;
                }
                let thread = waiting(w, &w.b, b.recv, 2)?;
                refused(w.b.evd_dequeue(b.recv), waited)?;
                a.send(&[], round)?;
                a.done(round, DtoStatus::Success)?;
                refused(w.b.evd_dequeue(b.recv), waited)?;
                check!(!thread.is_done());
                a.send(&[], round + 1)?;
                a.done(round + 1, DtoStatus::Success)?;
                let (first, left) = thread.join()??;
                check_eq!((first.dto().map(|done| done.user_cookie), left), (Some(round), 1));
                let second = w.b.evd_dequeue(b.recv)?;
                check_eq!(second.dto().map(|done| done.user_cookie), Some(round + 1));
            }
            Ok(())
        })
    }),
    // A dequeue takes the completion of every kind of request, as what was posted.
    test("dat_evd::a_dequeue_takes_every_kind", &[], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            let (ia, ep, eight, to) = (&w.a, a.ep, own.segment(0, 8), far.remote(0, 8));
            type Post<'a> = &'a dyn Fn() -> Result<(), Error>;
            let kinds: [(Dto, EventNumber, Post<'_>); 6] = [
                (Dto::SEND, ORDINARY, &|| ia.ep_post_send(ep, &[eight], 1, PLAIN)),
                (Dto::RDMA_WRITE, ORDINARY, &|| ia.ep_post_rdma_write(ep, &[eight], 1, &to, PLAIN)),
                (Dto::RDMA_READ, ORDINARY, &|| ia.ep_post_rdma_read(ep, &[eight], 1, &to, PLAIN)),
                (Dto::IB_FETCH_ADD, EXTENDED, &|| ia.ib_post_fetch_and_add(ep, 1, &eight, 1, &to, PLAIN)),
                (Dto::IB_CMP_SWAP, EXTENDED, &|| ia.ib_post_cmp_and_swap(ep, 1, 2, &eight, 1, &to, PLAIN)),
                (Dto::IB_RDMA_WRITE_IMMED, EXTENDED, &|| {
                    ia.ib_post_rdma_write_with_immed(ep, &[eight], 1, &to, 7, PLAIN)
                }),
            ];
            let is = |end: &End, evd, operation, number: EventNumber| -> Outcome {
                let event = polled(f.platform(), &end.ia, evd)?;
                check_eq!((event.event_number, event.extension.is_some()), (number, number == EXTENDED));
                let done = *some(event.dto(), "a completion")?;
                check_eq!((done.operation, done.status), (operation, DtoStatus::Success));
                check_eq!((done.ep_handle, done.user_cookie), (end.ep, 1));
                Ok(())
            };
            for _ in 0..2 {
                b.receive(&[far.segment(64, 8)], 1)?;
            }
            for (operation, number, post) in kinds {
                post()?;
                is(&a, a.request, operation, number)?;
            }
            is(&b, b.recv, Dto::RECEIVE, ORDINARY)?;
            is(&b, b.recv, Dto::IB_RECV_IMMED, EXTENDED)
        })
    }),
    // A software event for which there is no room is refused. The queue keeps its events, and there
    // is no asynchronous event.
    test("dat_evd::a_full_queue_refuses_software_events", &[], |f| {
        world(f, |w| {
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let evd = w.a.evd_create(5, CnoHandle::NULL, flags)?;
                let room = w.a.evd_query(evd)?.evd_qlen;
                check!((5..1000).contains(&room), "room for {room}");
                for data in 0..room {
                    post(&w.a, evd, data)?;
                }
                for _ in 0..3 {
                    let event = Event::software(evd, 77);
                    refused(w.a.evd_post_se(evd, &event), ErrorType::QueueFull.into())?;
                }
                take(&w.a, evd, 0)?;
                post(&w.a, evd, room)?;
                for data in 1..=room {
                    take(&w.a, evd, data)?;
                }
                refused(w.a.evd_dequeue(evd), ErrorType::QueueEmpty.into())?;
                nothing(&w.a, w.asynchronous[0])?;
            }
            Ok(())
        })
    }),
    // Completions and software events that are queued on one event dispatcher take turns, so that
    // neither kind starves; each kind comes in its own order. The last event of all may be of
    // either kind.
    test("dat_evd::kinds_of_events_take_turns", &[], |f| {
        world(f, |w| {
            const EACH: u64 = 6;
            let (far, mut own) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
            let all = evd(&w.b, EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::SOFTWARE)?;
            w.b.ep_free(own.ep)?;
            let ep = w.b.ep_create(own.pz, all, own.request, own.connect, Some(&attributes()))?;
            (own.ep, own.recv) = (ep, all);
            w.connect(&far, &own)?;
            for cookie in 0..EACH {
                own.receive(&[], cookie)?;
            }
            // The Receives are flushed when the connection has ended.
            far.disconnect()?;
            expect(&w.b, own.connect, EventNumber::CONNECTION_DISCONNECTED)?;
            let (first, _) = w.b.evd_wait(all, LONG, EACH as usize)?;
            check_eq!(first.dto().map(|done| done.user_cookie), Some(0));
            for data in 1..EACH {
                post(&w.b, all, data as usize)?;
            }
            let (mut completions, mut others) = (1, 1);
            while completions + others < 2 * EACH {
                let event = w.b.evd_dequeue(all)?;
                match (event.dto(), event.event_data) {
                    (Some(done), _) => {
                        check_eq!((done.user_cookie, done.status), (completions, DtoStatus::Flushed));
                        completions += 1;
                    }
                    (None, EventData::Software(data)) => {
                        check_eq!(data as u64, others);
                        others += 1;
                    }
                    other => return Err(Failure::new(format!("{other:?}"))),
                }
                check!(completions.abs_diff(others) <= 1, "{completions} completions, {others} others");
            }
            refused(w.b.evd_dequeue(all), ErrorType::QueueEmpty.into())?;
            Ok(w.b.ep_free(ep)?)
        })
    }),
    // Only software events can be posted, and only to an event dispatcher for them.
    test("dat_evd::only_software_events_can_be_posted", &[], |f| {
        world(f, |w| {
            let evd = software(&w.a, 4)?;
            let good = Event::software(evd, 1);
            let completion = EventData::Dto(DtoCompletion::default());
            let wrong = parameter(Subtype::InvalidArg2);
            for number in [EventNumber::DTO_COMPLETION, EventNumber(0), EventNumber(0x10000)] {
                refused(w.a.evd_post_se(evd, &Event { event_number: number, ..good }), wrong)?;
            }
            refused(w.a.evd_post_se(evd, &Event { event_data: completion, ..good }), wrong)?;
            refused(w.a.evd_dequeue(evd), ErrorType::QueueEmpty.into())?;
            for flags in [EvdFlags::DTO, EvdFlags::CONNECTION, MERGED - EvdFlags::SOFTWARE] {
                let other = super::world::evd(&w.a, flags)?;
                refused(w.a.evd_post_se(other, &good), invalid(Subtype::InvalidHandle1))?;
                refused(w.a.evd_dequeue(other), ErrorType::QueueEmpty.into())?;
            }
            let own = w.asynchronous[0];
            refused(w.a.evd_post_se(own, &good), invalid(Subtype::InvalidHandle1))?;
            // The other members of the event are ignored.
            w.a.evd_post_se(evd, &Event { evd_handle: EvdHandle::NULL, ..good })?;
            take(&w.a, evd, 1)
        })
    }),
    // Connection events for which there is no room are lost, and an asynchronous event names their
    // event dispatcher. Queued events stay.
    test("dat_evd::an_overflow_is_reported", &[], |f| {
        world(f, |w| {
            let flags = EvdFlags::CONNECTION;
            let connect = w.a.evd_create(1, CnoHandle::NULL, flags)?;
            let room = w.a.evd_query(connect)?.evd_qlen;
            check!(room <= 40, "the smallest queue holds {room} events");
            let (pz, dto) = (w.a.pz_create()?, evd(&w.a, EvdFlags::DTO)?);
            let (conn_qual, _) = w.b.psp_create_any(evd(&w.b, EvdFlags::CR)?, PspFlags::Consumer)?;
            let give_up = || -> Result<EpHandle, Failure> {
                let ep = w.a.ep_create(pz, dto, dto, connect, Some(&attributes()))?;
                let end = End { ia: w.a.clone(), ep, pz, recv: dto, request: dto, connect };
                dial(&end, address(&w.b)?, conn_qual, &[])?;
                w.a.ep_disconnect(ep, CloseFlags::Abrupt)?;
                check_eq!(end.state()?, EpState::Disconnected);
                Ok(ep)
            };
            let mut eps = Vec::new();
            for _ in 0..room {
                eps.push(give_up()?);
            }
            nothing(&w.a, w.asynchronous[0])?;
            give_up()?;
            let event = expect(&w.a, w.asynchronous[0], EventNumber::ASYNC_ERROR_EVD_OVERFLOW)?;
            let reason = AsyncReason::EvdOverflow;
            let error = AsynchError { dat_handle: connect.into(), reason };
            check_eq!(event.event_data, EventData::AsynchError(error));
            check_eq!((event.event_number.as_raw(), reason.as_raw()), (0x8001, 0));
            for ep in eps {
                let event = w.a.evd_dequeue(connect)?;
                let gave_up = EventData::Connection(Connection { ep_handle: ep, private_data: None });
                check_eq!(
                    (event.event_number, event.event_data),
                    (EventNumber::CONNECTION_DISCONNECTED, gave_up)
                );
            }
            refused(w.a.evd_dequeue(connect), ErrorType::QueueEmpty.into())?;
            // There is room again.
            give_up()?;
            expect(&w.a, connect, EventNumber::CONNECTION_DISCONNECTED)?;
            Ok(())
        })
    }),
    // If completions overflow, the connections of the endpoints on that event dispatcher break. Two
    // asynchronous events report it, of which one names the event dispatcher by its own handle, and
    // one the endpoint.
    test("dat_evd::an_overflow_of_completions_breaks_the_connection", &[], |f| {
        world(f, |w| {
            // On an event dispatcher with several streams the handle differs from that of the
            // queue.
            for flags in [EvdFlags::DTO, EvdFlags::DTO | EvdFlags::SOFTWARE] {
                let request = w.a.evd_create(1, CnoHandle::NULL, flags)?;
                let room = w.a.evd_query(request)?.evd_qlen;
                let (pz, recv) = (w.a.pz_create()?, evd(&w.a, EvdFlags::DTO)?);
                let connect = evd(&w.a, EvdFlags::CONNECTION)?;
                let attr = EpAttr { max_request_dtos: room + 8, ..attributes() };
                let ep = w.a.ep_create(pz, recv, request, connect, Some(&attr))?;
                let a = End { ia: w.a.clone(), ep, pz, recv, request, connect };
                let b = w.end(&w.b, &attributes())?;
                w.connect(&a, &b)?;
                for cookie in 0..room as u64 + 4 {
                    w.a.ep_post_rdma_write(ep, &[], cookie, &RmrTriplet::default(), PLAIN)?;
                }
                let mut reports = Vec::new();
                for _ in 0..2 {
                    let event = next(&w.a, w.asynchronous[0])?;
                    reports.push((event.event_number, event.event_data));
                }
                let (overflow, broken) = (AsyncReason::EvdOverflow, AsyncReason::EpTransferToError);
                for (number, dat_handle, reason) in [
                    (EventNumber::ASYNC_ERROR_EVD_OVERFLOW, request.into(), overflow),
                    (EventNumber::ASYNC_ERROR_EP_BROKEN, ep.into(), broken),
                ] {
                    let error = EventData::AsynchError(AsynchError { dat_handle, reason });
                    check!(reports.contains(&(number, error)), "{reports:?}");
                }
                expect(&w.a, connect, EventNumber::CONNECTION_BROKEN)?;
                check_eq!(a.state()?, EpState::Disconnected);
                // Such an endpoint can only be freed.
                refused(w.a.ep_reset(ep), state(Subtype::None))?;
                w.a.ep_free(ep)?;
                w.a.evd_free(request)?;
                while w.a.evd_dequeue(w.asynchronous[0]).is_ok() {}
            }
            Ok(())
        })
    }),
    // When the IA is closed, every wait ends with Abort.
    test("dat_evd::a_close_ends_all_waits", &[], |f| {
        world(f, |w| {
            let end = w.end(&w.b, &attributes())?;
            let (one, many) = (software(&w.b, 8)?, evd(&w.b, MERGED)?);
            let mut threads = Vec::new();
            for evd in [end.recv, end.request, end.connect, one, many, w.asynchronous[1]] {
                threads.push(waiting(w, &w.b, evd, 2)?);
            }
            w.close(&w.b)?;
            for thread in threads {
                let ended = thread.join()?.map_err(|failure| failure.error);
                refused(ended, ErrorType::Abort.into())?;
            }
            refused(w.b.evd_query(one), invalid(Subtype::InvalidHandleIa))
        })
    }),
    // A queue grows and shrinks, and keeps its events. It does not shrink below their number.
    test("dat_evd::a_resize_keeps_events", &[], |f| {
        world(f, |w| {
            for flags in [EvdFlags::SOFTWARE, MERGED] {
                let evd = w.a.evd_create(64, CnoHandle::NULL, flags)?;
                for data in 0..40 {
                    post(&w.a, evd, data)?;
                }
                w.a.evd_resize(evd, 400)?;
                check!(w.a.evd_query(evd)?.evd_qlen >= 400);
                for data in 40..300 {
                    post(&w.a, evd, data)?;
                }
                let large = w.a.evd_query(evd)?;
                // A refused resize leaves the size as it was.
                refused(w.a.evd_resize(evd, 299), state(Subtype::None))?;
                refused(w.a.evd_resize(evd, 1), state(Subtype::None))?;
                let limit = most_events(&w.a)?;
                for bad in [0, limit + 1, usize::MAX] {
                    refused(w.a.evd_resize(evd, bad), parameter(Subtype::InvalidArg2))?;
                }
                check_eq!(w.a.evd_query(evd)?, large);
                if flags == EvdFlags::SOFTWARE {
                    w.a.evd_resize(evd, limit)?;
                }
                w.a.evd_resize(evd, 300)?;
                check!((300..large.evd_qlen).contains(&w.a.evd_query(evd)?.evd_qlen));
                for data in 0..300 {
                    take(&w.a, evd, data)?;
                }
                w.a.evd_resize(evd, 1)?;
                check!(w.a.evd_query(evd)?.evd_qlen < 300);
                post(&w.a, evd, 7)?;
                take(&w.a, evd, 7)?;
            }
            Ok(())
        })
    }),
    // A queue of completions grows and shrinks, and keeps its events.
    test("dat_evd::a_resize_keeps_completions", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair()?;
            for cookie in 0..60 {
                b.receive(&[], cookie)?;
                a.send(&[], cookie)?;
            }
            // The last completion is queued.
            let (first, left) = w.b.evd_wait(b.recv, LONG, 60)?;
            check_eq!((first.dto().map(|done| done.user_cookie), left), (Some(0), 59));
            refused(w.b.evd_resize(b.recv, 58), state(Subtype::None))?;
            w.b.evd_resize(b.recv, 512)?;
            check!(w.b.evd_query(b.recv)?.evd_qlen >= 512);
            for cookie in 1..30 {
                b.received(cookie, DtoStatus::Success)?;
            }
            w.b.evd_resize(b.recv, 64)?;
            for cookie in 30..60 {
                b.received(cookie, DtoStatus::Success)?;
            }
            nothing(&w.b, b.recv)?;
            // Both sides still work.
            b.receive(&[], 99)?;
            a.send(&[], 99)?;
            b.received(99, DtoStatus::Success)?;
            Ok(())
        })
    }),
    // One dequeue drops 65 events that mean nothing to the consumer (here: successes of suppressed
    // binds), and leaves the rest to later calls.
    test("dat_evd::a_dequeue_drops_a_bounded_number_of_events", &[], |f| {
        world(f, |w| {
            let (pz, connect) = (w.a.pz_create()?, evd(&w.a, EvdFlags::CONNECTION)?);
            let request = w.a.evd_create(256, CnoHandle::NULL, EvdFlags::DTO | EvdFlags::RMR_BIND)?;
            let attr = EpAttr { max_request_dtos: 140, ..attributes() };
            let ep = w.a.ep_create(pz, evd(&w.a, EvdFlags::DTO)?, request, connect, Some(&attr))?;
            let a = End { ia: w.a.clone(), ep, pz, recv: request, request, connect };
            let b = w.end(&w.b, &attributes())?;
            w.connect(&a, &b)?;
            let (rmr, region) = (w.a.rmr_create(pz)?, w.region(&a, PAGE, OPEN)?);
            let (lmr, piece, quiet) =
                (region.lmr.lmr_handle, region.segment(0, 8), CompletionFlags::SUPPRESS);
            for (binds, empty) in [(64, 0), (65, 1), (130, 2)] {
                for _ in 0..binds {
                    w.a.rmr_bind(rmr, lmr, &piece, MemPriv::REMOTE_READ, VaType::Va, ep, 1, quiet)?;
                }
                for cookie in [2, 3] {
                    b.receive(&[], cookie)?;
                    a.send(&[], cookie)?;
                }
                // A queue cannot become smaller than its number of events. If this resize succeeds,
                // the queue still has room for all.
                let all = || w.a.evd_resize(request, binds + 1) == Err(state(Subtype::None));
                check!(eventually(w.f.platform(), all), "{binds} binds and two Sends do not complete");
                for _ in 0..empty {
                    refused(w.a.evd_dequeue(request), ErrorType::QueueEmpty.into())?;
                }
                for cookie in [2, 3] {
                    a.done(cookie, DtoStatus::Success)?;
                    b.received(cookie, DtoStatus::Success)?;
                }
                w.a.evd_resize(request, 256)?;
            }
            Ok(())
        })
    }),
    // Which streams an event dispatcher can have, how long its queue can be, what a query returns.
    test("dat_evd::creation_and_query", &[], |f| {
        world(f, |w| {
            let limit = most_events(&w.a)?;
            let streams = [0x001, 0x010, 0x020, 0x040, 0x080, 0x200, 0x0f1, 0x2f1, 0x011, 0x060].map(flags);
            for flags in streams {
                let evd = w.a.evd_create(3, CnoHandle::NULL, flags)?;
                let param = w.a.evd_query(evd)?;
                check!((3..=limit).contains(&param.evd_qlen));
                let expected = EvdParam {
                    ia_handle: w.a.handle(),
                    evd_qlen: param.evd_qlen,
                    evd_state: EvdState::ENABLED | EvdState::WAITABLE,
                    cno_handle: CnoHandle::NULL,
                    evd_flags: flags,
                };
                check_eq!((param, param.evd_state.bits()), (expected, 0x05));
                check_eq!(w.a.get_handle_type(evd)?, HandleType::Evd);
                w.a.evd_free(evd)?;
                refused(w.a.evd_query(evd), invalid(Subtype::InvalidHandle1))?;
            }
            // No other stream shares an event dispatcher with asynchronous events.
            for bad in [0, 0x100, 0x1f0, 0x101, 0x002, 0x400, 0x020 | 1 << 31] {
                let made = w.a.evd_create(3, CnoHandle::NULL, flags(bad));
                refused(made, parameter(Subtype::InvalidArg4))?;
            }
            for bad in [0, limit + 1, usize::MAX] {
                let made = w.a.evd_create(bad, CnoHandle::NULL, EvdFlags::SOFTWARE);
                refused(made, parameter(Subtype::InvalidArg2))?;
            }
            let own = w.a.evd_query(w.asynchronous[0])?;
            check_eq!((own.evd_flags, own.cno_handle), (EvdFlags::ASYNC, CnoHandle::NULL));
            check!(own.evd_qlen >= 16);
            refused(w.a.evd_free(w.asynchronous[0]), state(Subtype::InvalidStateEvdAsync))
        })
    }),
];

/// Flags with this number.
const fn flags(bits: u32) -> EvdFlags {
    EvdFlags::from_bits_retain(bits)
}

/// The most events of an event dispatcher, by the IA's attributes.
#[track_caller]
fn most_events(ia: &Ia) -> Result<usize, Failure> {
    let (_, attr, _) = ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
    Ok(crate::some(attr, "the IA's attributes")?.max_evd_qlen)
}

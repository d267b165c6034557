//! Immediate data, and waits with a threshold of their own: extensions of the API, which no page
//! describes.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::result::Result;

use platform::sync::Mutex;
use privileged_api::*;

use crate::datagrams::ud::{FRONT, KEY, address, datagrams, peer};
use crate::events::aevd::gathering;
use crate::events::evd::{PLAIN, queued, software, with_threshold};
use crate::fixture::{End, OPEN, PAGE, Region, SIGNALLED, WAIT, atomic_attributes, attributes, sevd};
use crate::requests::srq::{client, fill};
use crate::thread::{Signal, Thread, eventually};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Takes the next completion, with its immediate data.
#[track_caller]
fn next(ia: &Ia, evd: EvdHandle) -> Result<(DtoCompletion, Option<Immediate>), Failure> {
    let (ExtendedEvent { event, immediate, .. }, _) =
        ia.evd_wait_extended(evd, WaitFor::Notification, WAIT)?;
    match event {
        Event::Dto(completion) => Ok((completion, immediate)),
        other => Err(Failure::new(alloc::format!("not a completion: {other:?}"))),
    }
}

/// Takes the next completion of a Receive, which must be a success with this cookie, length and
/// immediate data.
#[track_caller]
fn received(end: &End, cookie: u64, length: u32, immediate: Option<Immediate>) -> Outcome {
    let (done, came) = next(&end.ia, end.recv)?;
    check_eq!((done.event_number, done.ep), (EventType::DTO_RC_RECV_CMPL, end.ep));
    check_eq!((done.cookie, done.dto_status), (cookie, DtoStatus::Success));
    check_eq!((done.transferred_length, came), (length, immediate));
    Ok(())
}

fn sent(data: u32) -> Option<Immediate> {
    Some(Immediate { data, written: None })
}

fn written(data: u32, length: u32) -> Option<Immediate> {
    Some(Immediate { data, written: Some(length) })
}

/// Posts an RDMA Write of `length` bytes with this immediate data, from and to the beginning of the
/// regions.
fn write(end: &End, own: &Region, far: &Region, length: usize, immediate: u32) -> Result<(), Error> {
    let (at, context) = (far.remote(0), far.context.unwrap_or_default());
    let (segment, cookie) = ([own.segment(0, length)], u64::from(immediate));
    end.ia.post_rdma_write_immediate(end.ep, &segment, cookie, SIGNALLED, at, context, immediate)
}

/// Waits for so many events, and takes the oldest one.
fn wait_for(ia: &Ia, evd: EvdHandle, wanted: usize, timeout: u64) -> Result<(Event, usize), WaitError> {
    let waited = ia.evd_wait_extended(evd, WaitFor::Events(wanted), timeout);
    waited.map(|(extended, nmore)| (extended.event, nmore))
}

pub(crate) const TESTS: &[Test] = &[
    // A Receive's completion says whether a Send or a Write took it, and with which number. A
    // Write's data goes to the region and not to the Receive's segments.
    test("immediate::a_receive_says_what_took_it", &[], |f| {
        Need::Immediate.of(&f.a)?;
        let (pair, own, far) = f.open_pair()?;
        let (ia, sink) = (&f.b, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
        own.fill(3);
        let room = [sink.segment(0, 64), sink.segment(64, 64)];
        for (cookie, segments) in (1..).zip([&room[..1], &room[..1], &[], &room[..1], &room]) {
            ia.post_recv(pair.b.ep, segments, cookie, SIGNALLED)?;
        }
        let (one, all) = ([own.segment(0, 16)], PAGE as u32);
        f.a.post_send(pair.a.ep, &one, 0, SIGNALLED)?;
        f.a.post_send_immediate(pair.a.ep, &one, 1, SIGNALLED, 0xdead_beef)?;
        received(&pair.b, 1, 16, None)?;
        received(&pair.b, 2, 16, sent(0xdead_beef))?;
        check_eq!(sink.bytes(0, 16), own.bytes(0, 16));
        sink.write(0, &alloc::vec![0; PAGE]);
        for immediate in 2..=4 {
            far.write(0, &alloc::vec![0; PAGE]);
            write(&pair.a, &own, &far, PAGE, immediate)?;
            received(&pair.b, u64::from(immediate) + 1, 0, written(immediate, all))?;
            check_eq!(far.bytes(0, PAGE), own.bytes(0, PAGE));
        }
        sink.untouched()?;
        for (cookie, number) in [
            (0, EventType::DTO_SEND_CMPL),
            (1, EventType::DTO_SEND_CMPL),
            (2, EventType::DTO_RDMA_WRITE_CMPL),
            (3, EventType::DTO_RDMA_WRITE_CMPL),
            (4, EventType::DTO_RDMA_WRITE_CMPL),
        ] {
            let (done, immediate) = next(&f.a, pair.a.request)?;
            check_eq!(
                (done.cookie, done.dto_status, done.event_number),
                (cookie, DtoStatus::Success, number)
            );
            check_eq!(immediate, None);
        }
        Ok(())
    }),
    // Plain dequeues and waits return the completion as if there were no immediate data. Nothing
    // says that a Receive's segments were filled when a Write took it.
    test("immediate::plain_calls_report_no_bytes_of_a_write", &[], |f| {
        Need::Immediate.of(&f.a)?;
        let (pair, own, far) = f.open_pair()?;
        let sink = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        for cookie in 0..4 {
            f.b.post_recv(pair.b.ep, &[sink.segment(0, 64)], cookie, SIGNALLED)?;
        }
        for immediate in 0..4 {
            write(&pair.a, &own, &far, 1000, immediate)?;
        }
        for cookie in 0..4 {
            pair.a.done(cookie, DtoStatus::Success)?;
        }
        let mut many = [DtoCompletion::default(); 2];
        let mut taken = Vec::from([pair.b.reap_recv()?]);
        let Event::Dto(second) = f.b.evd_dequeue(pair.b.recv)? else { return Err(Failure::new("not a DTO")) };
        taken.push(second);
        check_eq!(f.b.evd_dequeue_n(pair.b.recv, &mut many), Ok(2));
        taken.extend(many);
        for (cookie, done) in (0..).zip(taken) {
            check_eq!((done.cookie, done.dto_status), (cookie, DtoStatus::Success));
            check_eq!((done.event_number, done.transferred_length), (EventType::DTO_RC_RECV_CMPL, 0));
        }
        Ok(())
    }),
    // Sends and Writes with immediate data take Receives in their order, one each; plain Writes and
    // Reads take none. The same with a shared receive queue.
    test("immediate::each_message_takes_one_receive_in_order", &[], |f| {
        Need::Immediate.of(&f.a)?;
        for shared in [false, true] {
            let srq = f.b.srq_create(f.b.pz_create()?, 1, 32)?;
            let pair = if shared { client(f, srq)? } else { f.pair()? };
            let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
            let far = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
            match shared {
                true => fill(f, srq, 0..13)?,
                false => (0..13).try_for_each(|n| f.b.post_recv(pair.b.ep, &[], n, DtoFlags::COMPLETION))?,
            }
            let (quiet, at, context) = (DtoFlags::empty(), far.remote(0), far.context()?);
            for n in 0..12 {
                match n % 3 {
                    0 => f.a.post_send(pair.a.ep, &[], 0, quiet)?,
                    1 => f.a.post_send_immediate(pair.a.ep, &[], 0, quiet, n)?,
                    _ => write(&pair.a, &own, &far, 8, n)?,
                }
                f.a.post_rdma_write(pair.a.ep, &[own.segment(0, 8)], 0, quiet, at, context)?;
                f.a.post_rdma_read(pair.a.ep, &[own.segment(8, 8)], 0, quiet, at, context)?;
            }
            for n in 0..12 {
                let expected = [None, sent(n), written(n, 8)][n as usize % 3];
                received(&pair.b, n.into(), 0, expected)?;
            }
            for n in [2, 5, 8, 11] {
                pair.a.done(n, DtoStatus::Success)?;
            }
            refused(f.b.evd_dequeue_extended(pair.b.recv), Error::QueueEmpty)?;
            f.a.post_send(pair.a.ep, &[], 0, quiet)?;
            received(&pair.b, 12, 0, None)?;
        }
        Ok(())
    }),
    // Completions that are counted before they are taken keep their immediate data, and a solicited
    // Write notifies.
    test("immediate::it_stays_with_a_completion_that_waits", &[], |f| {
        Need::Immediate.of(&f.a)?;
        let pair = with_threshold(f, 10)?;
        let own = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        let far = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        let evd = pair.a.recv;
        for cookie in 0..3 {
            f.a.post_recv(pair.a.ep, &[], cookie, PLAIN)?;
        }
        write(&pair.b, &own, &far, 100, 0)?;
        f.b.post_send_immediate(pair.b.ep, &[], 1, SIGNALLED, 1)?;
        pair.b.done(0, DtoStatus::Success)?;
        pair.b.done(1, DtoStatus::Success)?;
        queued(f, &f.a, evd, 2)?;
        let none = f.a.evd_wait_extended(evd, WaitFor::Notification, 0);
        check_eq!(none, Err(WaitError { error: Error::TimeoutExpired, nmore: 2 }));
        let (at, context) = (far.remote(0), far.context()?);
        let solicited = SIGNALLED | DtoFlags::SOLICITED_WAIT;
        f.b.post_rdma_write_immediate(pair.b.ep, &[], 2, solicited, at, context, 2)?;
        received(&pair.a, 0, 0, written(0, 100))?;
        received(&pair.a, 1, 0, sent(1))?;
        received(&pair.a, 2, 0, written(2, 0))?;
        pair.b.done(2, DtoStatus::Success)
    }),
    // A callback takes immediate data as other threads do, and an aggregate hands it on.
    test("immediate::callbacks_and_aggregates_return_it", &[], |f| {
        Need::Immediate.of(&f.a)?;
        let (pair, own, far) = f.open_pair()?;
        let back = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        drop((own, far));
        let mine = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        let (signal, took) = (Signal::new(f.platform()), alloc::sync::Arc::new(Mutex::new(Vec::new())));
        let (raised, into) = (signal.clone(), took.clone());
        f.a.evd_callback_attach(
            pair.a.recv,
            Box::new(move |ia, evd| {
                while let Ok(extended) = ia.evd_dequeue_extended(evd) {
                    into.lock().push(extended.immediate);
                    raised.raise();
                }
            }),
        )?;
        refused(f.a.evd_dequeue_extended(pair.a.recv), Error::QueueEmpty)?;
        for cookie in 0..2 {
            f.a.post_recv(pair.a.ep, &[], cookie, SIGNALLED)?;
        }
        write(&pair.b, &mine, &back, 77, 0)?;
        f.b.post_send_immediate(pair.b.ep, &[], 1, SIGNALLED, 1)?;
        signal.wait(2)?;
        check_eq!(*took.lock(), [written(0, 77), sent(1)]);
        pair.b.done(0, DtoStatus::Success)?;
        pair.b.done(1, DtoStatus::Success)?;
        f.a.evd_callback_detach(pair.a.recv)?;

        let aggregate = gathering(&f.a)?;
        let stream = EventType::DTO_EVENT_STREAM;
        let recv = f.a.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 8, 1, aggregate)?;
        let request = sevd(&f.a, stream, 8, 1)?;
        let a = f.end_on(&f.a, &attributes(), request, recv)?;
        let b = f.end(&f.b, &atomic_attributes())?;
        f.connect(&b, &a)?;
        let back = f.region(&f.a, a.pz, PAGE, OPEN)?;
        let mine = f.region(&f.b, b.pz, PAGE, OPEN)?;
        for cookie in 0..2 {
            f.a.post_recv(a.ep, &[], cookie, SIGNALLED)?;
        }
        write(&b, &mine, &back, 5, 0)?;
        b.done(0, DtoStatus::Success)?;
        f.b.post_send_immediate(b.ep, &[], 1, SIGNALLED, 1)?;
        b.done(1, DtoStatus::Success)?;
        check_eq!(next(&f.a, aggregate)?.1, written(0, 5));
        let mut second = f.a.evd_dequeue_extended(aggregate);
        check!(
            eventually(f.platform(), || {
                if second == Err(Error::QueueEmpty) {
                    second = f.a.evd_dequeue_extended(aggregate);
                }
                second.is_ok()
            }),
            "{second:?}"
        );
        check_eq!(second?.immediate, sent(1));
        Ok(())
    }),
    test("immediate::datagrams_carry_it", &[], |f| {
        Need::Datagrams.of(&f.a)?;
        let (a, b) = (peer(&f.a, &datagrams())?, peer(&f.b, &datagrams())?);
        let room = f.region(&f.b, b.pz, PAGE, OPEN)?;
        let to = DgRemoteEpAddr::IbUd {
            addr: address(&f.a, a.pz, &f.b)?,
            ep_info: RemoteEpInfo { ud_ep_key: KEY, ..b.info },
        };
        if f.setup.lossy {
            return Ok(());
        }
        for immediate in [None, Some(7)] {
            f.b.post_recvfrom(b.ep, &[room.whole()], 3, SIGNALLED)?;
            match immediate {
                None => f.a.post_sendto(a.ep, &[], 1, SIGNALLED, &to)?,
                Some(data) => f.a.post_sendto_immediate(a.ep, &[], 1, SIGNALLED, &to, data)?,
            }
            a.sent(1, DtoStatus::Success)?;
            let (done, came) = next(&f.b, b.recv)?;
            check_eq!((done.cookie, done.transferred_length), (3, FRONT as u32));
            check_eq!(came, immediate.map(|data| Immediate { data, written: None }));
        }
        Ok(())
    }),
    // A Write that the peer refuses brings no immediate data to the Receive, which is flushed.
    test("immediate::a_failed_write_brings_none", &[], |f| {
        Need::Immediate.of(&f.a)?;
        let (pair, own, far) = f.open_pair()?;
        f.b.post_recv(pair.b.ep, &[], 9, SIGNALLED)?;
        let beyond = far.remote(PAGE * 64);
        let segment = [own.segment(0, 8)];
        f.a.post_rdma_write_immediate(pair.a.ep, &segment, 1, SIGNALLED, beyond, far.context()?, 4)?;
        pair.a.done(1, DtoStatus::RemoteAccess)?;
        let (done, immediate) = next(&f.b, pair.b.recv)?;
        check_eq!((done.cookie, done.dto_status, immediate), (9, DtoStatus::Flushed, None));
        pair.a.broken()?;
        pair.b.broken()
    }),
    // What is wrong with a post with immediate data is found as with the plain call, and nothing is
    // posted.
    test("immediate::wrong_posts_are_refused", &[], |f| {
        let few = EpAttributes {
            max_request_dtos: 2,
            max_send_segments: 1,
            rc: RcAttributes { max_rdma_write_segments: 1, ..attributes().rc },
            ..attributes()
        };
        let pair = f.pair_of(&few, &attributes())?;
        let own = f.region(&f.a, pair.a.pz, PAGE, OPEN)?;
        let far = f.region(&f.b, pair.b.pz, PAGE, OPEN)?;
        let (at, context) = (far.remote(0), far.context()?);
        let idle = f.end(&f.a, &few)?;
        let (ud, foreign) = (peer(&f.a, &datagrams())?, f.end(&f.b, &few)?);
        let freed = f.end(&f.a, &few)?;
        f.a.ep_free(freed.ep)?;
        let one = [own.segment(0, 8)];
        let two = [one[0], one[0]];
        let unknown = DtoFlags::from_bits_retain(1 << 20);
        for (ep, segments, flags, error) in [
            (EpHandle::NULL, &one[..], SIGNALLED, Error::InvalidEp),
            (freed.ep, &one, SIGNALLED, Error::InvalidEp),
            (foreign.ep, &one, SIGNALLED, Error::InvalidEp),
            (EpHandle::from_raw(own.lmr.as_raw()), &one, SIGNALLED, Error::InvalidEp),
            (idle.ep, &one, SIGNALLED, Error::InvalidEpState),
            (ud.ep, &[], SIGNALLED, Error::InvalidEpType),
            (pair.a.ep, &one, unknown, Error::InvalidDtoFlags),
            (pair.a.ep, &one, DtoFlags::NOTIFY, Error::InvalidDtoFlags),
            (pair.a.ep, &one, SIGNALLED | DtoFlags::UNLINK_FENCE, Error::InvalidDtoFlags),
            (pair.a.ep, &two, SIGNALLED, Error::InvalidNumSegments),
        ] {
            refused(f.a.post_send_immediate(ep, segments, 1, flags, 1), error)?;
            refused(f.a.post_rdma_write_immediate(ep, segments, 1, flags, at, context, 1), error)?;
        }
        pair.a.idle()?;
        // A request whose completion was not taken has its place in the queue.
        f.b.post_recv(pair.b.ep, &[far.segment(64, 8)], 1, SIGNALLED)?;
        f.b.post_recv(pair.b.ep, &[], 2, SIGNALLED)?;
        f.a.post_send_immediate(pair.a.ep, &one, 1, SIGNALLED, 1)?;
        write(&pair.a, &own, &far, 8, 2)?;
        for _ in 2..f.a.ep_query(pair.a.ep, EpParamMask::ALL)?.attr.max_request_dtos {
            f.a.post_rdma_write(pair.a.ep, &[], 3, SIGNALLED, at, context)?;
        }
        refused(f.a.post_send_immediate(pair.a.ep, &one, 4, SIGNALLED, 3), Error::TooManyPosts)?;
        refused(write(&pair.a, &own, &far, 8, 4), Error::TooManyPosts)?;
        received(&pair.b, 1, 8, sent(1))?;
        received(&pair.b, 2, 0, written(2, 8))?;
        pair.a.done(1, DtoStatus::Success)?;
        pair.a.done(2, DtoStatus::Success)
    }),
    // A wait for a number of events returns when so many are queued, and not before; the event
    // dispatcher's own threshold has no effect on it.
    test("immediate::a_wait_can_have_a_threshold_of_its_own", &[], |f| {
        let evd = software(&f.a, 4)?;
        for data in 0..3 {
            f.a.evd_post_se(evd, data)?;
        }
        let expired = |nmore| Err(WaitError { error: Error::TimeoutExpired, nmore });
        check_eq!(wait_for(&f.a, evd, 4, 0), expired(3));
        check_eq!(wait_for(&f.a, evd, 3, WAIT), Ok((Event::Software { evd, data: 0 }, 2)));
        check_eq!(wait_for(&f.a, evd, 1, WAIT), Ok((Event::Software { evd, data: 1 }, 1)));
        // The third event wakes the thread.
        let ia = f.a.clone();
        let thread = Thread::spawn(f.platform(), "waiter", move || {
            loop {
                match wait_for(&ia, evd, 3, WAIT) {
                    Err(WaitError { error: Error::WaiterLimit, .. }) => {}
                    other => return other,
                }
            }
        })?;
        let alone = || f.a.evd_wait(evd, 0).is_err_and(|failure| failure == Error::WaiterLimit);
        let several = || wait_for(&f.a, evd, 2, 0).is_err_and(|failure| failure == Error::WaiterLimit);
        check!(eventually(f.platform(), several), "the thread does not wait");
        check!(alone(), "another thread may wait beside it");
        f.a.evd_post_se(evd, 3)?;
        check!(!thread.is_done(), "two events are not three");
        f.a.evd_post_se(evd, 4)?;
        check_eq!(thread.join()?, Ok((Event::Software { evd, data: 2 }, 2)));

        // Completions, on event dispatchers with thresholds of one and of ten.
        for threshold in [1, 10] {
            let pair = with_threshold(f, threshold)?;
            for cookie in 0..4 {
                f.a.post_recv(pair.a.ep, &[], cookie, SIGNALLED)?;
                f.b.post_send(pair.b.ep, &[], cookie, SIGNALLED)?;
            }
            for cookie in 0..4 {
                pair.b.done(cookie, DtoStatus::Success)?;
            }
            check!(f.arrives(|| wait_for(&f.a, pair.a.recv, 5, 0) == expired(4)), "{threshold}");
            for (cookie, wanted) in (0..).zip([4, 2, 1]) {
                let (event, nmore) = wait_for(&f.a, pair.a.recv, wanted, WAIT)?;
                check_eq!((event.dto().map(|dto| dto.cookie), nmore), (Some(cookie), 3 - cookie as usize));
            }
        }
        Ok(())
    }),
    test("immediate::wrong_waits_are_refused", &[], |f| {
        let evd = software(&f.a, 4)?;
        let capacity = f.a.evd_query(evd, EvdParamMask::QUEUE_SIZE)?.sevd_queue_size;
        for wanted in [0, capacity + 1, usize::MAX] {
            refused(wait_for(&f.a, evd, wanted, 0).map_err(Error::from), Error::InvalidThreshold)?;
        }
        let (stream, names) = (EventType::AEVD_NOTIFICATION_EVENT_STREAM, EvdFlags::DEQUEUE_NOTIFICATIONS);
        let naming = f.a.evd_create(stream, names, 0, 0, EvdHandle::NULL)?;
        refused(wait_for(&f.a, naming, 1, 0).map_err(Error::from), Error::InvalidEvdType)?;
        let foreign = software(&f.b, 4)?;
        for evd in [EvdHandle::NULL, foreign, EvdHandle::from_raw(f.a.pz_create()?.as_raw())] {
            refused(wait_for(&f.a, evd, 1, 0).map_err(Error::from), Error::InvalidEvd)?;
            refused(f.a.evd_dequeue_extended(evd), Error::InvalidEvd)?;
        }
        // A queue that becomes smaller than the number ends the wait when it is full.
        let (ia, wanted) = (f.a.clone(), capacity);
        let thread = Thread::spawn(f.platform(), "waiter", move || {
            loop {
                match wait_for(&ia, evd, wanted, WAIT) {
                    Err(WaitError { error: Error::WaiterLimit, .. }) => {}
                    other => return other,
                }
            }
        })?;
        let several = || wait_for(&f.a, evd, 2, 0).is_err_and(|failure| failure == Error::WaiterLimit);
        check!(eventually(f.platform(), several), "the thread does not wait");
        let smaller = EvdParam { sevd_queue_size: 2, ..EvdParam::default() };
        f.a.evd_modify(evd, EvdParamMask::QUEUE_SIZE, &smaller)?;
        let room = f.a.evd_query(evd, EvdParamMask::QUEUE_SIZE)?.sevd_queue_size;
        check!(room < capacity, "{room}");
        for data in 0..room {
            f.a.evd_post_se(evd, data)?;
        }
        check_eq!(thread.join()?, Ok((Event::Software { evd, data: 0 }, room - 1)));
        Ok(())
    }),
];

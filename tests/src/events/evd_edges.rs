//! Simple EVDs in cases that the pages leave open or where rules meet: asynchronous streams, sizes,
//! blocked waiters, modifications (pages it_evd_create, it_evd_modify, it_evd_wait,
//! it_evd_dequeue).

use core::result::Result;

use privileged_api::*;

use crate::events::aevd::{enable, naming};
use crate::events::aevd_events::pair_into;
use crate::events::callback::count;
use crate::events::evd::{PLAIN, blocks, expect_software, nothing, queue_plain, software, with_threshold};
use crate::events::evd_wait::waits_alone;
use crate::faults::overflow::{EndpointsOnOneEvd, overflowed};
use crate::fixture::{SIGNALLED, WAIT, attributes, evd_param, sevd};
use crate::thread::Thread;
use crate::{Failure, Test, check, check_eq, refused, test};

/// The EVD of the unaffiliated stream.
fn unaffiliated(ia: &Ia, size: usize) -> Result<EvdHandle, Failure> {
    Ok(ia.evd_create(EventType::ASYNC_UNAFF_EVENT_STREAM, EvdFlags::empty(), size, 1, EvdHandle::NULL)?)
}

pub(crate) const TESTS: &[Test] = &[
    // Each asynchronous EVD gets the events of its own stream only.
    test("evd::asynchronous_events_arrive_on_their_stream", &["it_evd_create B05"], |f| {
        let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
        let unaffiliated = unaffiliated(&f.a, 16)?;
        let crowd = EndpointsOnOneEvd::new(f, EvdFlags::OVERFLOW_NOTIFY)?;
        for which in 0..=crowd.room {
            crowd.event(f, which)?;
        }
        overflowed(f, affiliated, crowd.conn)?;
        refused(f.a.evd_dequeue(unaffiliated), Error::QueueEmpty)?;
        for (up, expected) in
            [(false, EventType::ASYNC_UNAFF_SPIGOT_OFFLINE), (true, EventType::ASYNC_UNAFF_SPIGOT_ONLINE)]
        {
            f.port(up)?;
            let (event, _) = f.a.evd_wait(unaffiliated, WAIT)?;
            check_eq!((event.event_number(), event.evd()), (expected, unaffiliated));
            refused(f.a.evd_dequeue(affiliated), Error::QueueEmpty)?;
        }
        Ok(())
    }),
    // A full EVD of the unaffiliated stream drops events, and reports no overflow.
    test("evd::unaffiliated_events_are_lost_silently", &["it_evd_create B16 V06"], |f| {
        let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
        let small = unaffiliated(&f.a, 1)?;
        let room = evd_param(&f.a, small)?.sevd_queue_size;
        check!(room < 64, "the smallest queue holds {room} events");
        // An IA whose EVD has room gets all events.
        let other = f.another(Some(f.setup.privileged))?;
        let all = unaffiliated(&other, 2 * room + 8)?;
        let events = 2 * (room / 2 + 2);
        // A device may leave out a change that another follows before the driver knows of it.
        for event in 0..events {
            f.port(event % 2 == 1)?;
            other.evd_wait(all, WAIT)?;
        }
        check!(!evd_param(&f.a, small)?.evd_overflowed);
        // At least one event is missing. The last one may still be on its way to this IA.
        let mut kept = 0;
        while f.a.evd_dequeue(small).is_ok() {
            kept += 1;
        }
        check!(kept <= room + 1 && kept < events, "{kept} of {events} events in a queue for {room}");
        refused(f.a.evd_dequeue(affiliated), Error::QueueEmpty)?;
        // Once drained, the EVD takes events again.
        for up in [false, true] {
            f.port(up)?;
            f.a.evd_wait(small, WAIT)?;
        }
        check!(!evd_param(&f.a, small)?.evd_overflowed);
        Ok(())
    }),
    // The overflow flags are accepted for software EVDs, which never overflow.
    test("evd::software_evds_take_overflow_flags", &["it_evd_create V05"], |f| {
        let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 16, 1)?;
        let (notify, reset) = (EvdFlags::OVERFLOW_NOTIFY, EvdFlags::OVERFLOW_AUTO_RESET);
        for flags in [EvdFlags::OVERFLOW_DEFAULT, notify, notify | reset] {
            let evd = f.a.evd_create(EventType::SOFTWARE_EVENT_STREAM, flags, 2, 1, EvdHandle::NULL)?;
            let room = evd_param(&f.a, evd)?.sevd_queue_size;
            for data in 0..room {
                f.a.evd_post_se(evd, data)?;
            }
            refused(f.a.evd_post_se(evd, 9), Error::EvdQueueFull)?;
            check!(!evd_param(&f.a, evd)?.evd_overflowed);
        }
        refused(f.a.evd_dequeue(affiliated), Error::QueueEmpty)
    }),
    // A size of zero is rounded up.
    test("evd::no_queue_is_smaller_than_one", &["it_evd_create V11"], |f| {
        for stream in
            [EventType::DTO_EVENT_STREAM, EventType::CM_MSG_EVENT_STREAM, EventType::SOFTWARE_EVENT_STREAM]
        {
            let evd = f.a.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 0, 1, EvdHandle::NULL)?;
            // The size is a minimum (it_evd_create, it_evd_query).
            check!(evd_param(&f.a, evd)?.sevd_queue_size >= 1);
        }
        let evd = software(&f.a, 0)?;
        f.a.evd_post_se(evd, 1)?;
        expect_software(&f.a, evd, 1)
    }),
    // A resize to a size that cannot be allocated is refused without effect.
    test("evd::impossible_sizes", &["it_evd_modify IT_ERR_RESOURCE_QUEUE_SIZE"], |f| {
        for stream in
            [EventType::DTO_EVENT_STREAM, EventType::CM_MSG_EVENT_STREAM, EventType::SOFTWARE_EVENT_STREAM]
        {
            let evd = sevd(&f.a, stream, 8, 1)?;
            let before = evd_param(&f.a, evd)?;
            for sevd_queue_size in [usize::MAX, usize::MAX / 2 + 1, 1 << 40] {
                let change = EvdParam { sevd_queue_size, ..before };
                let modified = f.a.evd_modify(evd, EvdParamMask::QUEUE_SIZE, &change);
                refused(modified, Error::ResourceQueueSize)?;
                check_eq!(evd_param(&f.a, evd)?, before);
            }
        }
        Ok(())
    }),
    // Events that arrive while the EVD is disabled invoke the callback when it is enabled.
    test("evd::enabling_runs_the_callback_for_queued_events", &["it_evd_modify V07"], |f| {
        let evd = software(&f.a, 8)?;
        let signal = count(f, evd)?;
        enable(&f.a, evd, false)?;
        f.a.evd_post_se(evd, 1)?;
        f.a.evd_post_se(evd, 2)?;
        enable(&f.a, evd, true)?;
        signal.wait(1)?;
        expect_software(&f.a, evd, 1)?;
        expect_software(&f.a, evd, 2)
    }),
    // With a threshold of 0 one thread may wait, for a completion that notifies.
    test("evd::threshold_zero_has_one_waiter", &["it_evd_wait V04"], |f| {
        let pair = with_threshold(f, THRESHOLD_DISABLE)?;
        let evd = pair.a.request;
        let thread = waits_alone(f, &f.a, evd, WAIT)?;
        nothing(&pair.a, 3, SIGNALLED)?;
        let event = thread.join()??;
        check_eq!(event.dto().map(|done| done.cookie), Some(3));
        Ok(())
    }),
    // A threshold that is lowered to the number of queued events wakes the waiter.
    test("evd::a_lower_threshold_wakes_the_waiter", &["it_evd_wait V09"], |f| {
        let pair = with_threshold(f, 5)?;
        let evd = pair.a.request;
        queue_plain(f, &pair, 2)?;
        let thread = waits_alone(f, &f.a, evd, WAIT)?;
        let change = EvdParam { sevd_threshold: 2, ..EvdParam::default() };
        f.a.evd_modify(evd, EvdParamMask::THRESHOLD, &change)?;
        let event = thread.join()??;
        check_eq!(event.dto().map(|done| done.cookie), Some(0));
        Ok(())
    }),
    // A dequeue takes an event although a thread waits for more of them.
    test("evd::dequeued_under_a_waiter", &["it_evd_dequeue B02", "A.it_evd_create B15"], |f| {
        let pair = with_threshold(f, 3)?;
        let evd = pair.a.request;
        let thread = waits_alone(f, &f.a, evd, WAIT)?;
        // One completion is below the waiter's threshold, but a dequeue takes it.
        for cookie in 0..4 {
            nothing(&pair.a, cookie, PLAIN)?;
            let event = crate::events::aevd_events::poll_completion(f, evd)?;
            check_eq!(event.dto().map(|done| done.cookie), Some(cookie));
        }
        check!(!thread.is_done());
        for cookie in 4..7 {
            nothing(&pair.a, cookie, PLAIN)?;
        }
        let event = thread.join()??;
        check_eq!(event.dto().map(|done| done.cookie), Some(4));
        Ok(())
    }),
    // An event that notified while no thread waited still ends a later wait.
    test("evd::notification_sticks_to_the_event", &["A.it_evd_create V03"], |f| {
        let evd = software(&f.a, 8)?;
        f.a.evd_post_se(evd, 1)?;
        check_eq!(f.a.evd_wait(evd, 0)?.0, Event::Software { evd, data: 1 });
        // The same for a completion that notified while no thread waited: the aggregate EVD names
        // its EVD, and after that a wait of no length takes it.
        let aevd = naming(&f.a)?;
        let pair = pair_into(f, aevd, 10)?;
        let evd = pair.a.request;
        nothing(&pair.a, 0, PLAIN)?;
        nothing(&pair.a, 1, SIGNALLED)?;
        check_eq!(f.a.evd_wait(aevd, WAIT)?.0, Event::AevdNotification { aevd, sevd: evd });
        enable(&f.a, evd, false)?;
        for cookie in 0..2 {
            check_eq!(f.a.evd_wait(evd, 0)?.0.dto().map(|done| done.cookie), Some(cookie));
        }
        blocks(&f.a, evd, 0)
    }),
    // A wait blocks until an event that only the peer can cause; in a callback, where that would
    // block the callback thread, it is refused.
    test("evd::blocked_until_a_peer_acts", &["it_evd_wait B15"], |f| {
        let listener = f.listen(&f.b)?;
        let (ia, evd) = (f.b.clone(), listener.evd);
        let thread = Thread::spawn(f.platform(), "waiter", move || ia.evd_wait(evd, TIMEOUT_INFINITE))?;
        let end = f.end(&f.a, &attributes())?;
        check!(!thread.is_done());
        f.dial(&end, &listener, CnEstFlags::TWO_WAY, &[])?;
        let (event, _) = thread.join()??;
        let Event::ConnRequest(request) = event else {
            return Err(Failure::new(alloc::format!("got {event:?}")));
        };
        f.b.reject(request.cn_est_id, &[])?;
        end.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
        let inside =
            crate::events::callback::inside(f, move |ia, evd| ia.evd_wait(evd, TIMEOUT_INFINITE).err())?;
        check_eq!(inside.map(Error::from), Some(Error::CallbackContext));
        Ok(())
    }),
];

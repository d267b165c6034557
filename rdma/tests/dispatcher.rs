//! An event dispatcher, whatever its face puts into it: who learns of events, and who may wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;

use ferrovia_rdma::events::{Completions, Dispatcher, Events, Refused};
use ferrovia_rdma::wait;
use host::Machine;
use platform::Platform;

/// A queue of numbers, which notifies by their count.
#[derive(Default)]
struct Numbers {
    queued: Mutex<Vec<u32>>,
    armed: AtomicUsize,
}

impl Events for Numbers {
    fn completions(&self) -> Option<&Completions> {
        None
    }
    fn notified(&self, threshold: usize) -> bool {
        self.queued.lock().unwrap().len() >= threshold
    }
    fn is_empty(&self) -> bool {
        self.queued.lock().unwrap().is_empty()
    }
    fn arm(&self) -> bool {
        self.armed.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Numbers {
    fn push(&self, number: u32) {
        self.queued.lock().unwrap().push(number);
    }
    fn pop(&self) -> Option<u32> {
        self.queued.lock().unwrap().pop()
    }
}

/// The routine, and what is fed, have a name each.
type Named = Dispatcher<Numbers, &'static str, &'static str>;

fn dispatcher(threshold: usize, has_notifier: bool) -> (Arc<dyn Platform>, Named) {
    let platform = Machine::new(0).platform();
    (platform.clone(), Dispatcher::new(platform, Numbers::default(), threshold, has_notifier))
}

/// The names of the routines that run; each takes the events if it says so.
fn run(dispatcher: &Named) -> Vec<&'static str> {
    let ran = Mutex::new(Vec::new());
    dispatcher.run(
        || true,
        |name| {
            ran.lock().unwrap().push(*name);
            if *name == "takes" {
                while dispatcher.queue().pop().is_some() {}
                dispatcher.drained(true);
            }
        },
    );
    ran.into_inner().unwrap()
}

fn due(dispatcher: &Named) -> bool {
    let due = AtomicUsize::new(0);
    let notifies = dispatcher.announce(|| _ = due.fetch_add(1, Ordering::Relaxed));
    assert!(!notifies, "it feeds nothing");
    due.into_inner() > 0
}

#[test]
fn a_callback_runs_once_until_the_queue_was_seen_empty() {
    let (_, dispatcher) = dispatcher(1, false);
    dispatcher.queue().push(1);
    assert_eq!(dispatcher.attach("leaves"), Ok(()));
    assert_eq!(dispatcher.attach("another"), Err(Refused::Callback));
    assert!(!dispatcher.drained(false) && !due(&dispatcher), "not yet seen empty");
    dispatcher.queue().pop();
    assert!(!dispatcher.drained(false) && !due(&dispatcher), "armed, and nothing is there");
    dispatcher.queue().push(2);
    assert!(due(&dispatcher) && !due(&dispatcher), "scheduled once");
    assert_eq!(run(&dispatcher), ["leaves"]);
    assert!(!due(&dispatcher), "it left the event");
    // A dequeue that found nothing counts, even if an event has come since.
    assert!(dispatcher.drained(true));
    dispatcher.set_enabled(false);
    assert_eq!(run(&dispatcher), ["leaves"], "it was scheduled before");
    dispatcher.queue().pop();
    assert!(!dispatcher.drained(false));
    dispatcher.queue().push(3);
    assert!(!due(&dispatcher), "disabled");
    dispatcher.set_enabled(true);
    assert!(due(&dispatcher));
    assert!(dispatcher.detach() && !dispatcher.detach());
    assert!(run(&dispatcher).is_empty() && !due(&dispatcher));
}

#[test]
fn a_callback_that_takes_all_is_armed_when_it_returns() {
    let (_, dispatcher) = dispatcher(2, false);
    dispatcher.attach("takes").unwrap();
    assert!(!dispatcher.drained(false));
    for _ in 0..2 {
        dispatcher.queue().push(1);
        assert!(!due(&dispatcher), "below the threshold");
        dispatcher.queue().push(2);
        assert!(due(&dispatcher));
        assert_eq!(run(&dispatcher), ["takes"]);
        assert!(!dispatcher.runs());
    }
}

#[test]
fn who_waits_for_several_events_waits_alone() {
    let (_, dispatcher) = dispatcher(1, false);
    let one = dispatcher.enter(false, || true).unwrap();
    let other = dispatcher.enter(false, || true).unwrap();
    assert_eq!(dispatcher.enter(true, || true).err(), Some(Refused::Waiters));
    assert_eq!(dispatcher.enter(false, || false).err(), Some(Refused::Waiters));
    assert_eq!((dispatcher.waiters(), dispatcher.attach("none")), (2, Err(Refused::Waiters)));
    drop((one, other));
    let several = dispatcher.enter(true, || true).unwrap();
    assert_eq!(dispatcher.enter(false, || true).err(), Some(Refused::Waiters));
    drop(several);
    dispatcher.attach("routine").unwrap();
    assert_eq!(dispatcher.enter(false, || true).err(), Some(Refused::Callback));
}

#[test]
fn a_waiter_takes_an_event_and_returns_when_it_may_not_wait_any_more() {
    let (platform, dispatcher) = dispatcher(1, false);
    let forever = || (platform.now(), None);
    let wait = |times| -> Result<u32, Refused> {
        let waiter = dispatcher.enter(false, || true)?;
        waiter.wait(times, true, |_| dispatcher.queue().pop().map(Ok))
    };
    assert_eq!(wait((platform.now(), Some(platform.now()))), Err(Refused::TimedOut));
    thread::scope(|scope| {
        let waits = scope.spawn(|| wait(forever()));
        dispatcher.queue().push(5);
        assert!(!due(&dispatcher));
        assert_eq!(waits.join().unwrap(), Ok(5));
        // What begins while the thread waits ends the wait.
        let waits = scope.spawn(|| wait(forever()));
        while dispatcher.waiters() == 0 {
            thread::yield_now();
        }
        assert_eq!(dispatcher.link(|former| former.is_none().then_some(("an aggregate", false))), Ok(None));
        dispatcher.wake();
        assert_eq!(waits.join().unwrap(), Err(Refused::Elsewhere));
        assert_eq!(wait(forever()), Err(Refused::Elsewhere));
        assert_eq!(dispatcher.feed(|name| *name), Some("an aggregate"));
        dispatcher.queue().push(6);
        assert!(dispatcher.announce(|| panic!("there is no callback")), "the aggregate is told");
        assert_eq!(dispatcher.link(|_| None), Ok(Some("an aggregate")));
        assert_eq!(wait(forever()), Ok(6));
        let waits = scope.spawn(|| wait(forever()));
        while dispatcher.waiters() == 0 {
            thread::yield_now();
        }
        let remains = dispatcher.close(|_| Ok::<(), Refused>(()), |_| panic!("it feeds nothing")).unwrap();
        dispatcher.end(remains);
        assert_eq!(waits.join().unwrap(), Err(Refused::Closed));
    });
    assert_eq!(wait(forever()), Err(Refused::Gone));
    assert_eq!(
        (dispatcher.attach("late"), dispatcher.link(|_| None)),
        (Err(Refused::Gone), Err(Refused::Gone))
    );
}

#[test]
fn what_takes_the_events_alone_leaves_none_to_waiters_even_when_it_is_not_told() {
    let (_, dispatcher) = dispatcher(1, false);
    dispatcher.link(|_| Some(("an aggregate", true))).unwrap();
    dispatcher.set_enabled(false);
    assert!(dispatcher.is_captive() && dispatcher.is_linked());
    assert_eq!(dispatcher.enter(false, || true).err(), Some(Refused::Elsewhere));
    dispatcher.queue().push(1);
    assert!(!dispatcher.announce(|| panic!("there is no callback")), "disabled");
    let left = Mutex::new(None);
    let refused = dispatcher.close(Err, |_| panic!("it is refused"));
    assert_eq!(refused.err(), Some(false));
    let close = dispatcher.close(|_| Ok::<(), ()>(()), |name| *left.lock().unwrap() = Some(*name));
    dispatcher.end(close.unwrap());
    assert_eq!(left.into_inner().unwrap(), Some("an aggregate"));
    assert!(!dispatcher.is_captive() && !dispatcher.is_linked());
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_notification_object_stays_ready_when_its_dispatcher_is_disabled_until_the_criteria_are_absent() {
    let (platform, dispatcher) = dispatcher(1, true);
    let woken = Arc::new(Woken::default());
    assert_eq!(dispatcher.is_ready(), Ok(false));
    assert_eq!(dispatcher.queue().armed.load(Ordering::Relaxed), 1);
    dispatcher.set_task(Waker::from(woken.clone()));
    dispatcher.queue().push(1);
    assert!(dispatcher.announce(|| panic!("there is no callback")));
    assert_eq!((woken.0.load(Ordering::Relaxed), dispatcher.is_ready()), (1, Ok(true)));
    dispatcher.keep_if_ready();
    dispatcher.set_enabled(false);
    assert_eq!(dispatcher.is_ready(), Ok(true));
    dispatcher.queue().pop();
    assert_eq!(dispatcher.is_ready(), Ok(false));
    dispatcher.queue().push(2);
    assert_eq!(dispatcher.is_ready(), Ok(false), "a new event makes it ready when it is enabled");
    dispatcher.set_enabled(true);
    assert_eq!(dispatcher.is_ready(), Ok(true));
    assert_eq!(dispatcher.enter(false, || true).err(), Some(Refused::Elsewhere));
    dispatcher.set_task(Waker::from(woken.clone()));
    assert_eq!(
        (dispatcher.close_notifier(), dispatcher.close_notifier()),
        (Ok(()), Err(Refused::NoNotifier))
    );
    assert_eq!((woken.0.load(Ordering::Relaxed), dispatcher.is_ready()), (2, Err(Refused::NoNotifier)));
    let ready = wait::until(dispatcher.signal(), Some(platform.now()), || dispatcher.is_ready().ok());
    assert!(ready.is_err() && !dispatcher.is_linked() && !dispatcher.has_notifier());
    assert!(dispatcher.enter(false, || true).is_ok());
}

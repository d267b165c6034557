//! What handles, their objects and those who wait for events are held by, under the model checker (`.ci/extra`).

use alloc::sync::Arc;
use loom::thread;
use platform::model::{Watched, check, finds, platform};
use platform::sync::atomic::{AtomicBool, Ordering};

use crate::evd::queue::SoftQueue;
use crate::event::Event;
use crate::handle::{self, EvdHandle, HandleType};
use crate::life::Life;
use crate::numbers::Number;
use crate::signal::Signal;
use crate::table::Table;

/// One thread looks a handle up while another takes the object out and gives its index to a new one.
#[test]
fn a_handle_finds_its_object_or_nothing() {
    check(|| {
        let table = Arc::new(Table::new(HandleType::Pz, &Number::take().unwrap(), 1, 0).unwrap());
        let first = table.reserve().unwrap().fill(Arc::new(Watched::new(1)));
        let looker = thread::spawn({
            let table = table.clone();
            move || {
                let found = table.with(first, Watched::get);
                assert!(found.is_none_or(|value| value == 1), "an object that the handle does not name");
                if let Some(object) = table.get(first) {
                    // Whoever has it keeps it, in the table or not.
                    assert_eq!(object.get(), 1);
                }
            }
        });
        let taken = table.remove(first).expect("the object");
        assert!(table.remove(first).is_none() && table.get(first).is_none());
        let second = table.reserve().unwrap().fill(Arc::new(Watched::new(2)));
        assert_eq!(handle::index(first), handle::index(second));
        assert_eq!(table.with(second, Watched::get), Some(2));
        looker.join().unwrap();
        assert_eq!((taken.get(), table.len()), (1, 1));
    });
}

/// Two threads free the same handle: one of them has the object, and its index comes back once.
#[test]
fn a_handle_is_freed_once() {
    check(|| {
        let table = Arc::new(Table::new(HandleType::Pz, &Number::take().unwrap(), 1, 0).unwrap());
        let first = table.reserve().unwrap().fill(Arc::new(Watched::new(1)));
        let other = thread::spawn({
            let table = table.clone();
            move || table.remove(first).is_some()
        });
        let here = table.remove(first).is_some();
        assert!(here ^ other.join().unwrap());
        let again = table.reserve().unwrap();
        assert!(table.reserve().is_err(), "an index that came back twice");
        drop(again);
        assert_eq!(table.len(), 0);
    });
}

/// What an endpoint or a dispatcher is here: its gate, barred or not.
#[derive(Default)]
struct Barred(AtomicBool);

impl Barred {
    fn bar(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The device dies while something is made. The mutant's maker does not look at the state afterwards.
fn makes(looks: bool) {
    let table = Table::new(HandleType::Pz, &Number::take().unwrap(), 2, 0).unwrap();
    let shared = Arc::new((Life::new(), table));
    let old = Arc::new(Barred::default());
    shared.1.reserve().unwrap().fill(old.clone());
    let death = thread::spawn({
        let shared = shared.clone();
        move || {
            assert!(shared.0.disable(|| shared.1.all().iter().for_each(|object: &Arc<Barred>| object.bar())))
        }
    });
    let (life, table) = &*shared;
    let new = Arc::new(Barred::default());
    table.reserve().unwrap().fill(new.clone());
    if looks {
        life.made(|| new.bar());
    }
    if life.check().is_err() {
        assert!(old.get(), "an open gate after the end");
    }
    death.join().unwrap();
    assert!(new.get(), "an open gate for good");
}

#[test]
fn what_is_made_while_the_ia_ends_is_barred() {
    check(|| makes(true));
}

#[test]
fn mutant_that_does_not_look_at_the_end() {
    finds(|| makes(false));
}

/// A waiter as in `Ia::evd_wait` (value, look, sleep) and a producer as in `Core::deliver` (queue, raise). The mutant looks first
/// and reads the value then.
fn waits(value_after_look: bool) {
    let shared = Arc::new((SoftQueue::new(2).unwrap(), Signal::new(platform())));
    let producer = thread::spawn({
        let shared = shared.clone();
        move || {
            for data in 1..=2 {
                assert!(shared.0.push(Event::Software { evd: EvdHandle::NULL, data }));
                shared.1.raise();
            }
        }
    });
    let (queue, signal) = &*shared;
    let mut taken = 0;
    while taken < 2 {
        let before = signal.value();
        if let Some(event) = queue.pop() {
            taken += 1;
            assert_eq!(event, Event::Software { evd: EvdHandle::NULL, data: taken });
            continue;
        }
        let seen = if value_after_look { signal.value() } else { before };
        signal.wait(seen, None);
    }
    producer.join().unwrap();
}

#[test]
fn an_event_is_never_slept_on() {
    check(|| waits(false));
}

#[test]
fn mutant_that_reads_the_signal_after_the_look() {
    finds(|| waits(true));
}

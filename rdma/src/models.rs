//! Tables, adapters' lives and callback threads under the model checker (`.ci/extra`).

use alloc::sync::Arc;

use loom::thread;
use platform::Signal;
use platform::model::{Watched, check, finds, platform};
use platform::sync::atomic::{AtomicBool, Ordering};

use crate::handle::{self, Tag};
use crate::life::Life;
use crate::numbers::Number;
use crate::{CallbackThread, Ended, Table};

crate::handles! {
    /// A handle of an object of these tests.
    Named = Tag::new(0);
}

/// One thread looks a handle up while another takes the object out and gives its index to a new
/// one.
#[test]
fn model_a_handle_finds_its_object_or_nothing() {
    check(|| {
        let table = Arc::new(Table::<Named, _>::new(&Number::take().unwrap(), 1, 0).unwrap());
        let first = table.reserve().unwrap().fill(Arc::new(Watched::new(1)));
        let looker = thread::spawn({
            let table = table.clone();
            move || {
                let found = table.with(first, Watched::get);
                assert!(found.is_none_or(|value| value == 1), "an object that the handle does not name");
                if let Some(object) = table.get(first) {
                    // The reference stays valid, whether the object is in the table or not.
                    assert_eq!(object.get(), 1);
                }
            }
        });
        let taken = table.remove(first).expect("the object");
        assert!(table.remove(first).is_none() && table.get(first).is_none());
        let second = table.reserve().unwrap().fill(Arc::new(Watched::new(2)));
        assert_eq!(handle::index(first.0), handle::index(second.0));
        assert_eq!(table.with(second, Watched::get), Some(2));
        looker.join().unwrap();
        assert_eq!((taken.get(), table.count()), (1, 1));
    });
}

/// Two threads free the same handle: one of them gets the object, and its index is free once.
#[test]
fn model_a_handle_is_freed_once() {
    check(|| {
        let table = Arc::new(Table::<Named, _>::new(&Number::take().unwrap(), 1, 0).unwrap());
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
        assert_eq!(table.count(), 0);
    });
}

/// An object with a queue slot, as [`Life`] sees it: closed or not.
#[derive(Default)]
struct Object(AtomicBool);

impl Object {
    fn close(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The device dies while an object is created. The mutant does not look at the state afterwards.
fn creates(looks: bool) {
    let table = Table::<Named, _>::new(&Number::take().unwrap(), 2, 0).unwrap();
    let shared = Arc::new((Life::new(platform()), table));
    let old = Arc::new(Object::default());
    shared.1.reserve().unwrap().fill(old.clone());
    let death = thread::spawn({
        let shared = shared.clone();
        move || {
            let close_all = || shared.1.all().for_each(|object: Arc<Object>| object.close());
            assert!(shared.0.disable(close_all));
        }
    });
    let (life, table) = &*shared;
    let new = Arc::new(Object::default());
    table.reserve().unwrap().fill(new.clone());
    if looks {
        life.created(|| new.close());
    }
    if life.check().is_err() {
        assert!(old.is_closed(), "an open slot after the end");
    }
    death.join().unwrap();
    assert!(new.is_closed(), "a slot that stays open");
}

#[test]
fn model_an_object_created_while_the_adapter_ends_is_closed() {
    check(|| creates(true));
}

#[test]
fn mutant_model_that_does_not_look_at_the_end() {
    finds(|| creates(false));
}

/// A call uses what the thread that frees the adapter takes away. In the mutant that thread does
/// not wait for calls.
fn frees(waits: bool) {
    let shared = Arc::new((Life::new(platform()), Watched::new(0)));
    let caller = thread::spawn({
        let shared = shared.clone();
        move || match shared.0.begin_call(&shared.1) {
            Ok(call) => {
                call.get();
                drop(call);
            }
            Err(reason) => assert_eq!(reason, Ended::Freed),
        }
    });
    let (life, memory) = &*shared;
    life.free(|| {});
    if waits {
        life.wait_for_calls();
    }
    memory.add();
    caller.join().unwrap();
}

#[test]
fn model_an_adapter_is_freed_after_its_calls_and_no_thread_sleeps_for_ever() {
    check(|| frees(true));
}

#[test]
fn mutant_model_that_does_not_wait_for_calls() {
    finds(|| frees(false));
}

/// A place is scheduled twice and the thread is stopped: it runs the place, and ends.
#[test]
fn model_a_callback_thread_runs_what_is_scheduled_and_ends() {
    check(|| {
        let callbacks = CallbackThread::new(platform()).unwrap();
        callbacks.reserve(7).unwrap();
        let ran = Arc::new(Signal::new(platform()));
        let raise = ran.clone();
        let run = move |place| {
            assert_eq!(place, 7);
            raise.raise();
            true
        };
        callbacks.start("callbacks", run).unwrap();
        callbacks.schedule(7);
        callbacks.schedule(7);
        drop(callbacks);
        while ran.value() == 0 {
            ran.wait(0, None);
        }
    });
}

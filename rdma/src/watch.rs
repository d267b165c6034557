//! Watching: how a thread that serves many queues and connections sleeps on one thing. It gives
//! each the same waker, which raises whatever the thread sleeps on.
//!
//! A waker of an object stays for the object's life and is woken each time, where one of a task is
//! woken once. It is woken in the dispatcher thread, or in the call that changes the object, by
//! somebody who holds no lock; so it must not block.

use core::task::Waker;

use platform::sync::Once;

use crate::listener::Listener;
use crate::nic::Nic;
use crate::queue::Queue;

/// The waker of an object, if it has one.
pub(crate) struct Watch(Once<Waker>);

impl Watch {
    pub(crate) const fn new() -> Watch {
        Watch(Once::new())
    }

    pub(crate) fn of(waker: Option<Waker>) -> Watch {
        let watch = Watch::new();
        if let Some(waker) = waker {
            watch.set(waker);
        }
        watch
    }

    pub(crate) fn set(&self, waker: Waker) {
        self.0.call_once(|| waker);
    }

    /// Whether there is one; it is woken then.
    pub(crate) fn wake(&self) -> bool {
        self.0.get().map(Waker::wake_by_ref).is_some()
    }
}

impl Queue {
    /// Has this waker woken each time that completions have come, if the queue was armed before
    /// ([`Queue::arm`]), and when the device dies. The first waker that a queue gets stays.
    pub fn watch(&self, waker: Waker) {
        self.inner().watch.set(waker);
    }

    /// Has the next completion wake the queue's waker, once. True if a poll would find something
    /// already, for which nobody is woken. Does not block.
    ///
    /// Who polls under load does not arm, and is not interrupted. Who finds nothing to do arms the
    /// queue, and sleeps if this is false.
    pub fn arm(&self) -> bool {
        self.inner().arm();
        self.inner().holds_something()
    }
}

impl Listener {
    /// Has this waker woken each time that a request comes, and when the device dies. The first
    /// waker that a listener gets stays; a request may have come before ([`Listener::try_accept`]).
    pub fn watch(&self, waker: Waker) {
        self.arrivals().watch(waker);
    }
}

impl Nic {
    /// Whether this is all that is left of the opening: there is no other clone of it, and no
    /// object that was made of it.
    pub fn is_alone(&self) -> bool {
        self.holders() == 1
    }
}

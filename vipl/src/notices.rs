//! Handlers that wait for a queue: each is called once, with one descriptor or one entry (9.6.9 to
//! 9.6.11).
//!
//! A handler never runs inside a call. What it will be called with is taken off the queue as soon
//! as it is there: by the call that brings the handler, or by the thread that runs handlers.
//!
//! Locks: the notices' (spins; before a queue's).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use platform::heap;
use platform::sync::Mutex;

use crate::error::{Error, Result};
use crate::nic::Nic;

type Run<T> = Box<dyn FnOnce(&Nic, T) + Send>;

/// A handler that was not called yet.
struct Notice<T> {
    run: Run<T>,
    /// What it will be called with, once that is there.
    found: Option<T>,
}

/// The handlers that wait for one queue, in the order in which they came.
pub(crate) struct Notices<T>(Mutex<Waiting<T>>);

struct Waiting<T> {
    all: VecDeque<Notice<T>>,
    /// So many have what they will be called with: the first ones.
    found: usize,
}

impl<T> Waiting<T> {
    const fn new() -> Waiting<T> {
        Waiting { all: VecDeque::new(), found: 0 }
    }
}

impl<T> Notices<T> {
    pub(crate) fn new() -> Notices<T> {
        Notices(Mutex::new(Waiting::new()))
    }

    /// Adds a handler. `ErrorResource` if `most` wait already, or without memory.
    pub(crate) fn add(&self, most: u32, run: impl FnOnce(&Nic, T) + Send + 'static) -> Result<()> {
        heap::room(size_of_val(&run))?;
        let run: Run<T> = Box::new(run);
        let notices = &mut self.0.lock().all;
        if notices.len() >= most as usize {
            return Err(Error::ErrorResource);
        }
        notices.try_reserve(1)?;
        notices.push_back(Notice { run, found: None });
        Ok(())
    }

    /// Whether a handler waits.
    pub(crate) fn any(&self) -> bool {
        !self.0.lock().all.is_empty()
    }

    /// Takes off the queue what the handlers that wait will be called with; arms the queue if there
    /// is less than they need. True if a handler can be called.
    pub(crate) fn fill(&self, take: impl Fn() -> Option<T>, arm: impl Fn()) -> bool {
        let mut guard = self.0.lock();
        let Waiting { all, found } = &mut *guard;
        while let Some(notice) = all.get_mut(*found) {
            notice.found = take().or_else(|| {
                arm();
                // What was complete before the queue was armed is not announced.
                take()
            });
            if notice.found.is_none() {
                break;
            }
            *found += 1;
        }
        *found > 0
    }

    /// Calls the first handler if what it waits for is there; true if another one can be called
    /// then. Without locks.
    pub(crate) fn run(&self, nic: &Nic) -> bool {
        let first = {
            let mut notices = self.0.lock();
            let Some(rest) = notices.found.checked_sub(1) else { return false };
            notices.found = rest;
            notices.all.pop_front()
        };
        if let Some(Notice { run, found: Some(found) }) = first {
            run(nic, found);
        }
        self.0.lock().found > 0
    }

    /// Drops all handlers: none of them begins afterwards.
    pub(crate) fn clear(&self) {
        let dropped = core::mem::replace(&mut *self.0.lock(), Waiting::new());
        // Without the lock, since this runs the consumer's code.
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn each_handler_gets_one_item_and_the_queue_is_armed_for_the_rest() {
        let notices: Notices<u32> = Notices::new();
        let (queue, armed) = (RefCell::new(VecDeque::from([1, 2])), Cell::new(0));
        let fill = || notices.fill(|| queue.borrow_mut().pop_front(), || armed.set(armed.get() + 1));
        assert!(!notices.any() && !fill());
        assert_eq!(queue.borrow().len(), 2, "no handler, so nothing is taken");
        for _ in 0..3 {
            notices.add(3, |_, _| ()).unwrap();
        }
        assert_eq!(notices.add(3, |_, _| ()), Err(Error::ErrorResource));
        assert!(fill() && queue.borrow().is_empty());
        assert_eq!(armed.get(), 1);
        queue.borrow_mut().push_back(3);
        assert!(fill());
        assert_eq!((armed.get(), queue.borrow().len()), (1, 0), "found without arming");
        queue.borrow_mut().push_back(4);
        assert!(fill());
        assert_eq!(queue.borrow().len(), 1, "one descriptor a handler");
        notices.clear();
        assert!(!notices.any() && !fill());
    }
}

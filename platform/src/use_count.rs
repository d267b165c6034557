//! A count of an object's users, for objects that can only be destroyed while nothing uses them.
//!
//! Each user enters and leaves. To destroy the object, close the count: this succeeds only while
//! there are no users, and afterwards no user can enter. One compare-exchange decides whether the
//! count closes and, if not, why. Never answer that question with a second look: the last user may
//! leave between the two.

use alloc::sync::Arc;
use core::ops::Deref;

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many users an object has, and whether it accepts more.
#[derive(Debug, Default)]
pub struct UseCount(AtomicU32);

/// Why a [`UseCount`] was not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotClosed {
    /// The object has users.
    InUse,
    /// The count was closed before.
    AlreadyClosed,
}

/// The bit that says that the count is closed. The other bits count users.
const CLOSED: u32 = 1 << 31;

impl UseCount {
    /// An open count without users.
    pub fn new() -> UseCount {
        UseCount(AtomicU32::new(0))
    }

    /// Counts one more user; false if the count is closed.
    #[must_use = "a user that did not enter must not leave"]
    pub fn enter(&self) -> bool {
        let more = |count: u32| (count & CLOSED == 0).then_some(count + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Counts one user less. Only after [`UseCount::enter`], once each.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Closes the count: no user can enter until [`UseCount::reopen`]. Fails without a change while
    /// there are users.
    pub fn close(&self) -> Result<(), NotClosed> {
        match self.0.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(count) if count & CLOSED != 0 => Err(NotClosed::AlreadyClosed),
            Err(_) => Err(NotClosed::InUse),
        }
    }

    /// Takes a successful [`UseCount::close`] back.
    pub fn reopen(&self) {
        self.0.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    /// Whether the count is closed at this moment.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Whether there are users at this moment: to report, never to explain why [`UseCount::close`]
    /// failed.
    pub fn in_use(&self) -> bool {
        self.0.load(Ordering::Acquire) & !CLOSED != 0
    }
}

/// An object that has a [`UseCount`].
pub trait Counted {
    /// The object's count.
    fn uses(&self) -> &UseCount;
}

/// One use of an object. It ends with [`Use::end`], or when it is dropped.
pub struct Use<T: Counted> {
    object: Arc<T>,
    counted: AtomicBool,
}

impl<T: Counted> Use<T> {
    /// Begins to use an object; `None` if its count is closed.
    pub fn begin(object: Arc<T>) -> Option<Use<T>> {
        object.uses().enter().then(|| Use { object, counted: AtomicBool::new(true) })
    }

    /// Ends the use although this value, or a reference to it, lives on. Does nothing the second
    /// time.
    pub fn end(&self) {
        if self.counted.swap(false, Ordering::AcqRel) {
            self.object.uses().leave();
        }
    }

    /// The object, for longer than the use.
    pub fn shared(&self) -> &Arc<T> {
        &self.object
    }
}

impl<T: Counted> Deref for Use<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T: Counted> Drop for Use<T> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_count_with_users_does_not_close() {
        let count = UseCount::new();
        assert!(count.enter());
        assert_eq!(count.close(), Err(NotClosed::InUse));
        assert!(count.in_use() && !count.is_closed());
        count.leave();
        assert!(!count.in_use() && !count.is_closed());
        assert_eq!(count.close(), Ok(()));
        assert!(!count.in_use() && count.is_closed());
        assert!(!count.enter());
        assert_eq!(count.close(), Err(NotClosed::AlreadyClosed));
        count.reopen();
        assert!(!count.is_closed() && count.enter());
    }

    struct Object(UseCount);

    impl Counted for Object {
        fn uses(&self) -> &UseCount {
            &self.0
        }
    }

    #[test]
    fn a_use_ends_once() {
        let object = Arc::new(Object(UseCount::new()));
        let first = Use::begin(object.clone()).unwrap();
        let second = Use::begin(object.clone()).unwrap();
        first.end();
        drop(first);
        assert!(object.0.in_use(), "the second use");
        drop(second);
        assert_eq!(object.0.close(), Ok(()));
        assert!(Use::begin(object).is_none());
    }
}

#[cfg(all(test, ferrovia_model))]
mod models {
    use alloc::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::model::{Watched, check, finds};

    struct Object {
        uses: UseCount,
        memory: Watched,
    }

    impl Counted for Object {
        fn uses(&self) -> &UseCount {
            &self.uses
        }
    }

    /// A user, and a thread that has the object's memory for itself while the count is closed.
    fn uses_and_closes(mutant_uses_anyway: bool) {
        let object = Arc::new(Object { uses: UseCount::new(), memory: Watched::new(0) });
        let user = thread::spawn({
            let object = object.clone();
            move || match Use::begin(object.clone()) {
                Some(used) => drop(used.memory.get()),
                None if mutant_uses_anyway => drop(object.memory.get()),
                None => {}
            }
        });
        match object.uses.close() {
            Ok(()) => {
                object.memory.add();
                object.uses.reopen();
            }
            Err(reason) => assert_eq!(reason, NotClosed::InUse),
        }
        user.join().unwrap();
        assert!(!object.uses.in_use() && object.uses.enter());
    }

    #[test]
    fn model_a_closed_object_has_no_users() {
        check(|| uses_and_closes(false));
    }

    #[test]
    fn mutant_model_that_uses_a_closed_object() {
        finds(|| uses_and_closes(true));
    }

    /// A user comes and goes while a thread tries to close the count of an object that nothing else
    /// closes.
    fn reason(look: impl Fn(&UseCount) -> Result<(), NotClosed>) {
        let count = Arc::new(UseCount::new());
        let user = thread::spawn({
            let count = count.clone();
            move || {
                if count.enter() {
                    count.leave();
                }
            }
        });
        assert_ne!(look(&count), Err(NotClosed::AlreadyClosed), "nothing closed it");
        user.join().unwrap();
    }

    #[test]
    fn model_the_reason_is_that_of_the_failure() {
        check(|| reason(UseCount::close));
    }

    /// As IT-API's it_pz_free and it_evd_free once did: the user leaves between the two looks.
    #[test]
    fn mutant_model_that_looks_twice() {
        finds(|| {
            reason(|count| match count.close() {
                Err(_) if !count.in_use() => Err(NotClosed::AlreadyClosed),
                Err(_) => Err(NotClosed::InUse),
                Ok(()) => Ok(()),
            })
        });
    }

    /// Two threads close the same count: one succeeds, and the other learns that it is closed.
    #[test]
    fn model_a_count_closes_once() {
        check(|| {
            let count = Arc::new(UseCount::new());
            let other = thread::spawn({
                let count = count.clone();
                move || count.close()
            });
            let results = [count.close(), other.join().unwrap()];
            assert!(results.contains(&Ok(())) && results.contains(&Err(NotClosed::AlreadyClosed)));
        });
    }
}

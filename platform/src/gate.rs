//! A count of users that can be closed while there are some: no user enters afterwards, and the
//! thread that closed it can wait until the last user has left.
//!
//! The count and the bit that closes it are one word, so each step has one place in the order of
//! all steps on that word: a user who entered is counted when the word is closed, and a user who
//! leaves a closed word is seen by the thread that waits, or wakes it. Two words would need a
//! barrier on each side.

use alloc::sync::Arc;

use crate::Platform;
use crate::sync::atomic::{AtomicU32, Ordering};

/// The bit that says that the gate is closed. The other bits count users.
const CLOSED: u32 = 1 << 31;

/// Counts users, and keeps new ones out once it is closed. It is never opened again.
pub struct Gate {
    /// The word on which the thread that waits sleeps.
    word: AtomicU32,
    platform: Arc<dyn Platform>,
}

/// A user of what a [`Gate`] protects. It leaves when this is dropped.
pub struct Inside<'a>(&'a Gate);

impl Gate {
    /// An open gate without users.
    pub fn new(platform: Arc<dyn Platform>) -> Gate {
        Gate { word: AtomicU32::new(0), platform }
    }

    /// Enters; `None` if the gate is closed.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let before = self.word.fetch_add(1, Ordering::AcqRel);
        let inside = Inside(self);
        (before & CLOSED == 0).then_some(inside)
    }

    /// Closes the gate. False if it was closed before.
    pub fn close(&self) -> bool {
        self.word.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED == 0
    }

    /// Waits until no user is inside, after [`Gate::close`]. A user must not call it.
    pub fn wait(&self) {
        loop {
            match self.word.load(Ordering::Acquire) {
                word if word & !CLOSED == 0 => return,
                word => _ = self.platform.wait(&self.word, word, None),
            }
        }
    }

    /// Whether the gate is closed.
    pub fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let gate = self.0;
        if gate.word.fetch_sub(1, Ordering::AcqRel) == CLOSED | 1 {
            gate.platform.wake(&gate.word);
        }
    }
}

#[cfg(all(test, ferrovia_model))]
mod models {
    use alloc::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::model::{Watched, check, finds, platform};

    /// Two users of memory that the thread that closes the gate then has for itself. The mutant
    /// closer does not wait.
    fn users_leave_before_the_end(waits: bool) {
        let shared = Arc::new((Gate::new(platform()), Watched::new(0)));
        let users = [(); 2].map(|()| {
            let shared = shared.clone();
            thread::spawn(move || {
                if let Some(inside) = shared.0.enter() {
                    shared.1.get();
                    drop(inside);
                }
            })
        });
        let (gate, memory) = &*shared;
        assert!(gate.close());
        if waits {
            gate.wait();
        }
        memory.add();
        assert!(gate.enter().is_none() && !gate.close());
        for user in users {
            user.join().unwrap();
        }
    }

    #[test]
    fn model_a_closed_gate_has_no_users_and_its_closer_wakes_up() {
        check(|| users_leave_before_the_end(true));
    }

    #[test]
    fn mutant_model_that_does_not_wait_for_users() {
        finds(|| users_leave_before_the_end(false));
    }

    /// A gate of two words, as an adapter's end once had: the user leaves, then looks whether the
    /// gate is closed; the closer closes it, then looks at the count. With a barrier on one side
    /// only, both may miss the other's write, and the closer sleeps for ever.
    fn two_words(barrier_on_both_sides: bool) {
        let shared = Arc::new((AtomicU32::new(1), AtomicU32::new(0), platform()));
        let user = thread::spawn({
            let shared = shared.clone();
            move || {
                let (count, closed, platform) = &*shared;
                count.fetch_sub(1, Ordering::AcqRel);
                if barrier_on_both_sides {
                    crate::sync::atomic::fence(Ordering::SeqCst);
                }
                if closed.load(Ordering::Acquire) == 1 {
                    platform.wake(count);
                }
            }
        });
        let (count, closed, platform) = &*shared;
        closed.store(1, Ordering::Release);
        crate::sync::atomic::fence(Ordering::SeqCst);
        while count.load(Ordering::Acquire) != 0 {
            platform.wait(count, 1, None);
        }
        user.join().unwrap();
    }

    #[test]
    fn mutant_model_of_two_words_with_one_barrier() {
        check(|| two_words(true));
        finds(|| two_words(false));
    }
}

//! A word that threads wait on and others raise.

use alloc::sync::Arc;

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::{Instant, Platform, Wake};

/// A word that changes each time it is raised.
///
/// A waiter reads [`Signal::value`], looks for what it waits for, and passes that value to
/// [`Signal::wait`]. If the signal was raised after the value was read, the wait returns at once,
/// so that no event can come between the look and the sleep.
pub struct Signal {
    word: AtomicU32,
    platform: Arc<dyn Platform>,
}

impl Signal {
    /// A signal whose waiters sleep as the platform lets them.
    pub fn new(platform: Arc<dyn Platform>) -> Signal {
        Signal { word: AtomicU32::new(0), platform }
    }

    /// The platform given to [`Signal::new`].
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// The word's value at this moment.
    pub fn value(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Changes the word and wakes all waiters. May be called from an interrupt handler.
    pub fn raise(&self) {
        self.word.fetch_add(1, Ordering::AcqRel);
        self.platform.wake(&self.word);
    }

    /// Sleeps until the word differs from `seen`, or until `deadline`. May return early.
    pub fn wait(&self, seen: u32, deadline: Option<Instant>) -> Wake {
        self.platform.wait(&self.word, seen, deadline)
    }
}

#[cfg(all(test, ferrovia_model))]
mod models {
    use alloc::collections::VecDeque;
    use alloc::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::model::{check, finds, platform};
    use crate::sync::Mutex;

    /// A producer queues two items and raises the signal after each. The waiter reads the value,
    /// looks, and sleeps. The mutant looks first and reads the value afterwards.
    fn waits(mutant_reads_late: bool) {
        let shared = Arc::new((Mutex::new(VecDeque::new()), Signal::new(platform())));
        let producer = thread::spawn({
            let shared = shared.clone();
            move || {
                for item in 1..=2 {
                    shared.0.lock().push_back(item);
                    shared.1.raise();
                }
            }
        });
        let (queue, signal) = &*shared;
        let mut taken = 0;
        while taken < 2 {
            let before = signal.value();
            let item = queue.lock().pop_front();
            if let Some(item) = item {
                taken += 1;
                assert_eq!(item, taken);
                continue;
            }
            let seen = if mutant_reads_late { signal.value() } else { before };
            signal.wait(seen, None);
        }
        producer.join().unwrap();
    }

    #[test]
    fn model_a_waiter_never_sleeps_on_what_was_queued() {
        check(|| waits(false));
    }

    #[test]
    fn mutant_model_that_reads_the_value_after_the_look() {
        finds(|| waits(true));
    }
}

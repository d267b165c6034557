//! Waiting on a word, as with a futex: buckets of a lock and a condition variable, by the word's
//! address.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use platform::Wake;
use platform::sync::atomic::{AtomicU32, Ordering};

const BUCKETS: usize = 64;

#[derive(Default)]
struct Bucket {
    lock: Mutex<()>,
    changed: Condvar,
}

/// The words that threads of one machine wait on.
pub(crate) struct Waiters(Vec<Bucket>);

impl Waiters {
    pub(crate) fn new() -> Waiters {
        Waiters((0..BUCKETS).map(|_| Bucket::default()).collect())
    }

    fn bucket(&self, word: &AtomicU32) -> &Bucket {
        &self.0[(std::ptr::from_ref(word) as usize >> 2) % BUCKETS]
    }

    /// Waits for at most `left`.
    pub(crate) fn wait(&self, word: &AtomicU32, expected: u32, left: Option<Duration>) -> Wake {
        let bucket = self.bucket(word);
        let guard = bucket.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // A waker changes the word first and then takes the lock, so no wake is lost.
        if word.load(Ordering::SeqCst) != expected {
            return Wake::Woken;
        }
        match left {
            None => {
                drop(bucket.changed.wait(guard).unwrap_or_else(PoisonError::into_inner));
                Wake::Woken
            }
            Some(left) => {
                let waited = bucket.changed.wait_timeout(guard, left);
                let timeout = waited.unwrap_or_else(PoisonError::into_inner).1;
                if timeout.timed_out() { Wake::TimedOut } else { Wake::Woken }
            }
        }
    }

    pub(crate) fn wake(&self, word: &AtomicU32) {
        let bucket = self.bucket(word);
        drop(bucket.lock.lock().unwrap_or_else(PoisonError::into_inner));
        bucket.changed.notify_all();
    }
}

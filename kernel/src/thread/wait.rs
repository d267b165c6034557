//! Waiting on a word, as with a futex: a waiting thread is in the bucket of the word's address.
//!
//! Locks: a bucket, then a run queue.
#![expect(unsafe_code, reason = "buckets are shared between CPUs")]

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use platform::{Instant, Wake};

use super::object::{State, current};
use super::queue::{Bucket, Kind, Queue};
use super::run_queue::per_cpu;
use super::scheduler;
use crate::lock::{IrqLock, IrqOff};
use crate::{clock, cpu};

const BUCKETS: usize = 256;

struct Waiters(Queue<Bucket>);

// SAFETY: threads may be used by any CPU, and the bucket's lock guards their links.
unsafe impl Send for Waiters {}

static TABLE: [IrqLock<Waiters>; BUCKETS] = [const { IrqLock::new(Waiters(Queue::new())) }; BUCKETS];

fn bucket(key: usize) -> &'static IrqLock<Waiters> {
    // Fibonacci hashing: the upper bits of the product depend on all bits of the address.
    let hash = (key as u64 >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE[(hash >> (64 - BUCKETS.ilog2())) as usize]
}

/// See [`platform::Platform::wait`].
pub(crate) fn wait(word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake {
    debug_assert!(!cpu::in_interrupt());
    let key = word.as_ptr().addr();
    let _off = IrqOff::new();
    let mut waiters = bucket(key).lock();
    // The waker changes the word first and then takes the bucket's lock, so no wake is lost.
    if word.load(Ordering::SeqCst) != expected {
        return Wake::Woken;
    }
    if deadline.is_some_and(|deadline| deadline <= clock::now()) {
        return Wake::TimedOut;
    }
    let thread = current();
    thread.waits_on.set(key);
    waiters.0.push_back(thread);
    let mut queue = per_cpu(cpu::this()).queue.lock();
    thread.state.set(State::Blocked);
    if let Some(deadline) = deadline {
        queue.set_deadline(thread, deadline);
    }
    drop(waiters);
    scheduler::block(queue);
    // A waker has removed the thread from the bucket; the timer has not.
    let mut waiters = bucket(key).lock();
    if Bucket::link(&thread).linked.get() {
        waiters.0.remove(thread);
        return Wake::TimedOut;
    }
    Wake::Woken
}

/// See [`platform::Platform::wake`].
pub(crate) fn wake(word: &AtomicU32) {
    let key = word.as_ptr().addr();
    let mut waiters = bucket(key).lock();
    let mut at = waiters.0.first();
    while let Some(thread) = at {
        at = waiters.0.after(thread);
        if thread.waits_on.get() == key {
            waiters.0.remove(thread);
            scheduler::unblock(thread);
        }
    }
}

/// Sleeps for `time`.
pub fn sleep(time: Duration) {
    let word = AtomicU32::new(0);
    let deadline = clock::now() + time;
    while wait(&word, 0, Some(deadline)) == Wake::Woken {}
}

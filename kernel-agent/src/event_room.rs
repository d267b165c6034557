//! Room in the event queues of completions and of virtual interfaces, and the CQs whose clients are
//! to be notified.
//!
//! An object that was destroyed may have left events in its queue, and its number can be used again
//! at once. So a client that creates and destroys objects could fill the queue while the dispatcher
//! thread is held up. An event queue that overflows ends the device for all clients. Therefore each
//! object takes a share of the queue's room when it is created. An object that was destroyed keeps
//! its share until the dispatcher thread has found the queue empty. A client's thread that creates
//! an object and finds only such shares in its way waits for the dispatcher thread, for a while.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use platform::{OutOfMemory, Signal, Wake};

/// How long a client's thread waits until the dispatcher thread has taken the events of objects
/// that were destroyed. An upcall can hold the dispatcher thread up for longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Shares of an event queue's room.
pub(crate) struct EventRoom {
    /// The most objects that exist at the same time.
    objects: u32,
    /// Objects that exist.
    existing: AtomicU32,
    shares: u32,
    /// Shares that are taken.
    taken: AtomicU32,
    /// How many of them were left by objects that are destroyed.
    left: AtomicU32,
    /// Raised when such shares came back.
    came_back: Signal,
    /// Wakes the thread that takes the events.
    wakes: Arc<Signal>,
    /// The thread that takes the events from the queue; 0 while there is none.
    emptier: AtomicU64,
}

/// Whether there was a share for a new object.
enum Taken {
    Yes,
    /// There are as many objects as can be.
    TooMany,
    /// Objects that are destroyed have what is missing.
    NoneFree,
}

impl EventRoom {
    /// For so many objects at the same time, and the events of so many that are destroyed. `wakes`
    /// wakes the thread that takes them.
    pub(crate) fn new(objects: u32, destroyed: u32, wakes: Arc<Signal>) -> EventRoom {
        let none = || AtomicU32::new(0);
        let shares = objects + destroyed;
        let came_back = Signal::new(wakes.platform().clone());
        let emptier = AtomicU64::new(0);
        EventRoom {
            objects,
            existing: none(),
            shares,
            taken: none(),
            left: none(),
            came_back,
            wakes,
            emptier,
        }
    }

    /// How many there are.
    pub(crate) fn shares(&self) -> u32 {
        self.shares
    }

    /// From now on this thread takes the events: it never waits for itself, others wait for it.
    pub(crate) fn begin_to_empty(&self) {
        self.emptier.store(self.came_back.platform().current_thread(), Ordering::Release);
    }

    /// From now on no thread takes the events, and no other waits for that.
    pub(crate) fn end_to_empty(&self) {
        self.emptier.store(0, Ordering::Release);
        self.came_back.raise();
    }

    /// Takes a share for a new object; false if none is free, or if there are as many objects as
    /// can be. While only shares of destroyed objects are in the way, waits for the dispatcher
    /// thread, at most for [`PATIENCE`].
    pub(crate) fn take(&self) -> bool {
        let platform = self.came_back.platform();
        let mut deadline = None;
        loop {
            let seen = self.came_back.value();
            match self.try_take() {
                Taken::Yes => return true,
                Taken::TooMany => return false,
                Taken::NoneFree => {}
            }
            let emptier = self.emptier.load(Ordering::Acquire);
            if emptier == 0 || emptier == platform.current_thread() {
                return false;
            }
            self.wakes.raise();
            let until = *deadline.get_or_insert_with(|| platform.now() + PATIENCE);
            if self.came_back.wait(seen, Some(until)) == Wake::TimedOut {
                return matches!(self.try_take(), Taken::Yes);
            }
        }
    }

    fn try_take(&self) -> Taken {
        if !count_up(&self.existing, self.objects) {
            return Taken::TooMany;
        }
        if !count_up(&self.taken, self.shares) {
            self.existing.fetch_sub(1, Ordering::AcqRel);
            return Taken::NoneFree;
        }
        Taken::Yes
    }

    /// Gives a share back whose object has caused no event.
    pub(crate) fn give_back(&self) {
        self.existing.fetch_sub(1, Ordering::AcqRel);
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }

    /// Leaves a share, after the device has confirmed that it destroyed the object: events of the
    /// object may be in the queue.
    pub(crate) fn leave(&self) {
        self.existing.fetch_sub(1, Ordering::AcqRel);
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// How many shares were left. To be read before a look at the queue that finds it empty.
    pub(crate) fn left(&self) -> u32 {
        self.left.load(Ordering::Acquire)
    }

    /// Gives back shares that were left before the queue was found empty.
    pub(crate) fn emptied(&self, left: u32) {
        if left > 0 {
            self.left.fetch_sub(left, Ordering::AcqRel);
            self.taken.fetch_sub(left, Ordering::AcqRel);
            self.came_back.raise();
        }
    }
}

/// Counts one more, unless there are as many as can be.
fn count_up(count: &AtomicU32, most: u32) -> bool {
    let more = |now: u32| (now < most).then_some(now + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
}

/// Numbers that are marked, each once however often it was marked.
pub(crate) struct Marks {
    words: Box<[AtomicU64]>,
    /// Where the next search begins.
    next: AtomicU32,
}

impl Marks {
    /// For numbers below `end`.
    pub(crate) fn new(end: u32) -> Result<Marks, OutOfMemory> {
        let count = end.div_ceil(u64::BITS) as usize;
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
        words.resize_with(count, AtomicU64::default);
        Ok(Marks { words: words.into_boxed_slice(), next: AtomicU32::new(0) })
    }

    /// Marks a number.
    pub(crate) fn set(&self, number: u32) {
        if let Some(word) = self.words.get((number / u64::BITS) as usize) {
            word.fetch_or(1 << (number % u64::BITS), Ordering::AcqRel);
        }
    }

    /// Removes a mark and returns its number. The numbers take turns, so that one that is marked
    /// again and again does not keep the others waiting. One thread at a time.
    pub(crate) fn take(&self) -> Option<u32> {
        let next = self.next.load(Ordering::Relaxed);
        let first = (next / u64::BITS) as usize;
        let later = u64::MAX << (next % u64::BITS);
        let words = self.words.len();
        // The first word once for its later bits, and once more at the end for the others.
        for turn in 0..=words {
            let at = if first + turn < words { first + turn } else { first + turn - words };
            let wanted = match turn {
                0 => later,
                _ if turn == words => !later,
                _ => u64::MAX,
            };
            let word = self.words.get(at)?;
            let found = word.load(Ordering::Acquire) & wanted;
            if found != 0 {
                let bit = found.trailing_zeros();
                word.fetch_and(!(1 << bit), Ordering::AcqRel);
                let number = at as u32 * u64::BITS + bit;
                let end = words as u32 * u64::BITS;
                self.next.store(if number + 1 < end { number + 1 } else { 0 }, Ordering::Relaxed);
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;

    fn wakes() -> Arc<Signal> {
        Arc::new(Signal::new(host::Machine::new(0).platform()))
    }

    #[test]
    fn a_share_that_was_left_is_free_once_the_queue_was_found_empty_afterwards() {
        let room = EventRoom::new(2, 0, wakes());
        assert!(room.take() && room.take() && !room.take());
        room.give_back();
        assert!(room.take());
        room.leave();
        assert!(!room.take());
        let before = room.left();
        room.leave();
        room.emptied(before);
        assert!(room.take() && !room.take(), "one of the two was left after the look");
        room.emptied(room.left());
        assert!(room.take() && !room.take());
    }

    #[test]
    fn shares_of_destroyed_objects_are_not_for_more_objects_at_the_same_time() {
        let room = EventRoom::new(2, 1, wakes());
        assert_eq!(room.shares(), 3);
        assert!(room.take() && room.take() && !room.take());
        room.leave();
        assert!(room.take() && !room.take());
        room.leave();
        assert!(!room.take(), "both that went have events");
        room.emptied(room.left());
        assert!(room.take() && !room.take());
    }

    #[test]
    fn who_finds_only_shares_of_destroyed_objects_waits_for_the_thread_that_takes_the_events() {
        let wakes = wakes();
        let room = EventRoom::new(2, 0, wakes.clone());
        room.begin_to_empty();
        assert!(room.take() && room.take());
        std::thread::scope(|threads| {
            let taking = threads.spawn(|| room.take());
            assert!(!taking.join().unwrap(), "nobody waits for objects that exist");
            assert_eq!(wakes.value(), 0);
            room.leave();
            assert!(!room.take(), "the thread that takes the events does not wait for itself");
            let taking = threads.spawn(|| room.take());
            while wakes.value() == 0 && !taking.is_finished() {
                std::thread::yield_now();
            }
            room.emptied(room.left());
            assert!(taking.join().unwrap());
            room.leave();
            let before = wakes.value();
            let taking = threads.spawn(|| room.take());
            while wakes.value() == before && !taking.is_finished() {
                std::thread::yield_now();
            }
            room.end_to_empty();
            assert!(!taking.join().unwrap(), "nobody waits for a thread that ended");
        });
    }

    #[test]
    fn each_number_is_taken_once_and_they_take_turns() {
        let marks = Marks::new(130).unwrap();
        for number in [129, 3, 64, 3, 0] {
            marks.set(number);
        }
        let all: Vec<u32> = core::iter::from_fn(|| marks.take()).collect();
        assert_eq!(all, [0, 3, 64, 129]);
        marks.set(7);
        marks.set(5);
        assert_eq!(marks.take(), Some(5));
        marks.set(5);
        assert_eq!((marks.take(), marks.take(), marks.take()), (Some(7), Some(5), None));
        marks.set(191);
        assert_eq!(marks.take(), Some(191));
        marks.set(0);
        assert_eq!((marks.take(), marks.take()), (Some(0), None));
        marks.set(1 << 20);
        assert_eq!(marks.take(), None);
    }
}

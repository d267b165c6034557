//! The queue of the entries that software makes. Streams that share it keep the order in which
//! their entries came, and each has its own share of the room. The memory is allocated when the
//! queue is created or resized.
//!
//! Owns the entries. Its lock is a leaf, and is held for a few instructions.

use alloc::collections::VecDeque;

use platform::sync::Mutex;

use super::NotResized;
use crate::OutOfResources;

/// An entry of one of several streams.
pub trait Stream {
    /// The number of streams, below 256.
    const STREAMS: usize;

    /// The entry's stream, below [`Stream::STREAMS`].
    fn stream(&self) -> usize;
}

/// The most streams that can share a queue.
const MAX_STREAMS: usize = 8;

/// See the module's documentation.
pub struct Made<E> {
    ring: Mutex<Ring<E>>,
    /// The number of streams that share the ring.
    streams: usize,
}

struct Ring<E> {
    /// The entries of all streams, oldest first.
    entries: VecDeque<E>,
    /// The number of queued entries and of those for which room is kept, by stream.
    queued: [usize; MAX_STREAMS],
    /// The most entries of one stream: a stream that fills its share leaves room for the others.
    share: usize,
}

impl<E: Stream> Made<E> {
    const FITS: () = assert!(E::STREAMS <= MAX_STREAMS, "a count for each stream");

    /// Makes a queue that holds `share` entries of each of so many streams.
    pub fn new(streams: usize, share: usize) -> Result<Made<E>, OutOfResources> {
        let () = Self::FITS;
        let ring = Ring { entries: allocate(streams, share)?, queued: [0; MAX_STREAMS], share };
        Ok(Made { ring: Mutex::new(ring), streams })
    }

    /// Appends an entry; false if its stream has filled its share.
    pub fn push(&self, entry: E) -> bool {
        let mut ring = self.ring.lock();
        let share = ring.share;
        match ring.queued.get_mut(entry.stream()) {
            Some(queued) if *queued < share => *queued += 1,
            _ => return false,
        }
        ring.entries.push_back(entry);
        true
    }

    /// Keeps room for an entry of a stream, for [`Made::fill`] or [`Made::give_back`]; false if the
    /// stream has filled its share.
    pub fn reserve(&self, stream: usize) -> bool {
        let mut ring = self.ring.lock();
        let share = ring.share;
        match ring.queued.get_mut(stream) {
            Some(queued) if *queued < share => *queued += 1,
            _ => return false,
        }
        true
    }

    /// Appends an entry for which [`Made::reserve`] kept room.
    pub fn fill(&self, entry: E) {
        self.ring.lock().entries.push_back(entry);
    }

    /// Gives room back that [`Made::reserve`] kept.
    pub fn give_back(&self, stream: usize) {
        if let Some(queued) = self.ring.lock().queued.get_mut(stream) {
            *queued -= 1;
        }
    }

    /// Takes the oldest entry.
    pub fn pop(&self) -> Option<E> {
        let mut ring = self.ring.lock();
        let entry = ring.entries.pop_front()?;
        if let Some(queued) = ring.queued.get_mut(entry.stream()) {
            *queued -= 1;
        }
        Some(entry)
    }

    /// The number of entries that are queued.
    pub fn len(&self) -> usize {
        self.ring.lock().entries.len()
    }

    /// Whether no entry is queued.
    pub fn is_empty(&self) -> bool {
        self.ring.lock().entries.is_empty()
    }

    /// The most entries of one stream.
    pub fn share(&self) -> usize {
        self.ring.lock().share
    }

    /// The most entries of all streams.
    pub fn capacity(&self) -> usize {
        self.share() * self.streams
    }

    /// Changes the share of each stream; fails without a change.
    pub fn resize(&self, share: usize) -> Result<(), NotResized> {
        let mut entries = allocate(self.streams, share).map_err(|_| NotResized::OutOfResources)?;
        let mut ring = self.ring.lock();
        if ring.queued.iter().any(|queued| *queued > share) {
            return Err(NotResized::Occupied);
        }
        entries.append(&mut ring.entries);
        ring.share = share;
        // Release the old buffer without the lock.
        let old = core::mem::replace(&mut ring.entries, entries);
        drop(ring);
        drop(old);
        Ok(())
    }
}

fn allocate<E>(streams: usize, share: usize) -> Result<VecDeque<E>, OutOfResources> {
    let mut entries = VecDeque::new();
    entries.try_reserve_exact(streams.checked_mul(share).ok_or(OutOfResources)?)?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Entry(usize, u8);

    impl Stream for Entry {
        const STREAMS: usize = 2;

        fn stream(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn a_queue_holds_as_many_entries_as_its_share() {
        let queue = Made::new(1, 2).unwrap();
        assert!(queue.push(Entry(0, 1)) && queue.push(Entry(0, 2)));
        assert!(!queue.push(Entry(0, 3)));
        assert_eq!(queue.pop(), Some(Entry(0, 1)));
        assert!(queue.push(Entry(0, 4)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(Entry(0, 2)), Some(Entry(0, 4)), None));
    }

    #[test]
    fn resizing_keeps_the_order_and_fails_if_entries_do_not_fit() {
        let queue = Made::new(1, 2).unwrap();
        assert!(queue.push(Entry(0, 1)) && queue.push(Entry(0, 2)));
        assert_eq!(queue.resize(1), Err(NotResized::Occupied));
        assert_eq!(queue.resize(3), Ok(()));
        assert!(queue.push(Entry(0, 3)));
        let all = (queue.pop(), queue.pop(), queue.pop());
        assert_eq!(all, (Some(Entry(0, 1)), Some(Entry(0, 2)), Some(Entry(0, 3))));
        assert_eq!(queue.resize(usize::MAX), Err(NotResized::OutOfResources));
    }

    #[test]
    fn a_stream_that_fills_its_share_leaves_room_for_the_others() {
        let queue = Made::new(2, 1).unwrap();
        assert_eq!((queue.share(), queue.capacity()), (1, 2));
        assert!(queue.push(Entry(0, 1)) && !queue.push(Entry(0, 2)));
        assert!(queue.push(Entry(1, 3)) && !queue.push(Entry(1, 4)));
        assert_eq!(queue.pop(), Some(Entry(0, 1)));
        assert!(!queue.push(Entry(1, 5)) && queue.push(Entry(0, 6)));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(Entry(1, 3)), Some(Entry(0, 6)), None));
        assert!(!queue.push(Entry(9, 7)), "no such stream");
    }

    #[test]
    fn room_that_is_kept_counts_until_it_is_given_back() {
        let queue = Made::new(2, 1).unwrap();
        assert!(queue.reserve(0) && !queue.reserve(0) && !queue.push(Entry(0, 1)));
        assert!(queue.push(Entry(1, 2)), "another stream");
        assert_eq!(queue.len(), 1);
        queue.give_back(0);
        assert!(queue.reserve(0) && !queue.reserve(9));
        queue.fill(Entry(0, 3));
        assert!(!queue.reserve(0));
        assert_eq!((queue.pop(), queue.pop()), (Some(Entry(1, 2)), Some(Entry(0, 3))));
        assert!(queue.reserve(0));
    }
}

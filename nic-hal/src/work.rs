//! The driver's own memory of what is outstanding on a work queue.
//!
//! Entries are in the order of posting, and a completion retires its request together with all earlier ones. One
//! thread at a time posts (the queue's lock) and one at a time retires (the lock of the queue's owner); the two
//! meet in `head` and `tail` only.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::mapped::Circle;

/// What the poster gets back with the completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The consumer's word.
    pub cookie: u64,
    /// A word of the caller's.
    pub data: u32,
    /// Bytes of local memory that the request names: no completion can be longer.
    pub length: u32,
}

#[derive(Default)]
struct Cell {
    cookie: AtomicU64,
    // data | length << 32
    rest: AtomicU64,
}

/// The requests that are outstanding on one work queue.
pub struct Outstanding {
    cells: Circle<Cell>,
    limit: u32,
    /// Tag of the oldest request that is outstanding.
    head: AtomicU32,
    /// Tag of the next request.
    tail: AtomicU32,
}

impl Outstanding {
    /// Room for `limit` requests (at most 2^30).
    pub fn new(limit: u32) -> Outstanding {
        Outstanding { cells: Circle::new(limit), limit, head: AtomicU32::new(0), tail: AtomicU32::new(0) }
    }

    /// How many requests are outstanding.
    pub fn len(&self) -> u32 {
        self.tail.load(Ordering::Acquire).wrapping_sub(self.head.load(Ordering::Acquire))
    }

    /// Whether nothing is outstanding.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many requests may be outstanding.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The tag of the next request; `None` if as many as may be are outstanding.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        let tail = self.tail.load(Ordering::Relaxed);
        // Acquire: the retiring thread has read the cell before it is written anew.
        let head = self.head.load(Ordering::Acquire);
        if tail.wrapping_sub(head) < self.limit { Some(tail) } else { None }
    }

    /// Makes the request with the tag that [`Outstanding::next`] gave outstanding. Before the doorbell.
    #[inline]
    pub(crate) fn add(&self, tag: u32, note: Note) {
        let cell = self.cells.at(tag);
        cell.cookie.store(note.cookie, Ordering::Relaxed);
        cell.rest.store(u64::from(note.data) | u64::from(note.length) << 32, Ordering::Relaxed);
        // Release: whoever sees the tag as outstanding sees its cell.
        self.tail.store(tag.wrapping_add(1), Ordering::Release);
    }

    /// Retires the request that a completion names, and all earlier ones; `None` if no such request is outstanding.
    #[inline]
    pub fn retire(&self, tag: u32) -> Option<Note> {
        self.retiring().retire(tag).map(Note::from)
    }

    /// Retires one request after the other; nobody else may retire or clear meanwhile.
    #[inline(always)]
    pub fn retiring(&self) -> Retiring<'_> {
        let tail = self.tail.load(Ordering::Acquire);
        Retiring { tail, left: tail.wrapping_sub(self.head.load(Ordering::Relaxed)), requests: self }
    }

    /// Whether the request with this tag is still outstanding.
    pub fn contains(&self, tag: u32) -> bool {
        let head = self.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Acquire);
        tag.wrapping_sub(head) < tail.wrapping_sub(head)
    }

    /// Forgets all that is outstanding, when the device has.
    pub fn clear(&self) {
        self.head.store(self.tail.load(Ordering::Acquire), Ordering::Release);
    }
}

/// What is noted of a request that was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The consumer's word.
    pub cookie: u64,
    /// [`Note::data`], and in the upper half [`Note::length`].
    pub(crate) rest: u64,
}

impl Taken {
    /// The word of the caller's.
    #[inline(always)]
    pub fn data(&self) -> u32 {
        self.rest as u32
    }
}

impl From<Taken> for Note {
    #[inline]
    fn from(taken: Taken) -> Note {
        Note { cookie: taken.cookie, data: taken.data(), length: (taken.rest >> 32) as u32 }
    }
}

/// Several requests of one queue that are retired in a row. The poster learns of the room when this is dropped.
pub struct Retiring<'a> {
    requests: &'a Outstanding,
    /// The tag after the last one that was posted when this began: what was posted since is for the next of these.
    tail: u32,
    /// How many were outstanding then and are not retired yet.
    left: u32,
}

impl Retiring<'_> {
    /// Retires the request that a completion names, and all earlier ones; `None` if no such request was outstanding at the beginning.
    #[inline(always)]
    pub fn retire(&mut self, tag: u32) -> Option<Taken> {
        // How many remain after it.
        let remain = self.tail.wrapping_sub(1).wrapping_sub(tag);
        if remain >= self.left {
            return None;
        }
        self.left = remain;
        let cell = self.requests.cells.at(tag);
        let rest = cell.rest.load(Ordering::Relaxed);
        Some(Taken { cookie: cell.cookie.load(Ordering::Relaxed), rest })
    }
}

impl Drop for Retiring<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the cells were read before the poster may write them anew.
        self.requests.head.store(self.tail.wrapping_sub(self.left), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(requests: &Outstanding, cookie: u64) -> Option<u32> {
        let tag = requests.next()?;
        requests.add(tag, Note { cookie, data: 7, length: 9 });
        Some(tag)
    }

    /// With all counters about to wrap.
    fn outstanding(limit: u32) -> Outstanding {
        let requests = Outstanding::new(limit);
        requests.head.store(u32::MAX - 1, Ordering::Relaxed);
        requests.tail.store(u32::MAX - 1, Ordering::Relaxed);
        requests
    }

    #[test]
    fn a_completion_retires_its_request_and_all_before_it_once() {
        let requests = outstanding(4);
        let tags: [u32; 4] = core::array::from_fn(|n| post(&requests, n as u64).unwrap());
        assert_eq!((post(&requests, 9), requests.len()), (None, 4));
        let note = requests.retire(tags[2]);
        assert_eq!(note, Some(Note { cookie: 2, data: 7, length: 9 }));
        assert_eq!(requests.len(), 1);
        for earlier in &tags[..3] {
            assert_eq!(requests.retire(*earlier), None);
        }
        assert_eq!(requests.retire(tags[3].wrapping_add(1)), None, "never posted");
        assert_eq!(requests.retire(tags[3]).map(|note| note.cookie), Some(3));
        assert!(requests.is_empty());
    }

    #[test]
    fn a_bad_tag_ends_a_run_without_harm() {
        let requests = outstanding(8);
        let tags: [u32; 4] = core::array::from_fn(|n| post(&requests, n as u64).unwrap());
        let mut run = requests.retiring();
        assert_eq!(run.retire(tags[0]).map(|taken| taken.cookie), Some(0));
        for bad in [tags[0], tags[3].wrapping_add(1), tags[0].wrapping_sub(1), tags[1] ^ 1 << 31] {
            assert_eq!(run.retire(bad), None);
        }
        assert_eq!(run.retire(tags[1]).map(|taken| taken.cookie), Some(1));
        // Posted meanwhile: the next run knows it.
        let late = post(&requests, 4).unwrap();
        assert_eq!(run.retire(late), None);
        drop(run);
        assert_eq!(requests.len(), 3);
        assert_eq!(requests.retire(late).map(|note| note.cookie), Some(4));
    }

    #[test]
    fn room_comes_back_at_the_end_of_a_run() {
        let requests = outstanding(2);
        let (first, _) = (post(&requests, 0).unwrap(), post(&requests, 1).unwrap());
        let mut run = requests.retiring();
        assert!(run.retire(first).is_some());
        assert_eq!(post(&requests, 2), None);
        drop(run);
        assert!(post(&requests, 2).is_some());
    }

    #[test]
    fn what_was_forgotten_is_not_retired() {
        let requests = outstanding(4);
        let tag = post(&requests, 0).unwrap();
        requests.clear();
        assert_eq!((requests.retire(tag), requests.len()), (None, 0));
    }
}

//! The driver's own memory of what is outstanding on a work queue.
//!
//! Entries are in the order of posting, and a completion retires its request together with all earlier ones. One
//! thread at a time posts (the queue's lock) and one at a time retires (the lock of the queue's owner); the two
//! meet in `head` and `tail` only.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    cells: Box<[Cell]>,
    limit: u32,
    /// Tag of the oldest request that is outstanding.
    head: AtomicU32,
    /// Tag of the next request.
    tail: AtomicU32,
}

impl Outstanding {
    /// Room for `limit` requests (at most 2^30).
    pub fn new(limit: u32) -> Outstanding {
        let cells = limit.clamp(1, 1 << 30).next_power_of_two();
        Outstanding {
            cells: (0..cells).map(|_| Cell::default()).collect(),
            limit,
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
        }
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

    #[inline]
    fn cell(&self, tag: u32) -> Option<&Cell> {
        self.cells.get(tag as usize & (self.cells.len() - 1))
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
        if let Some(cell) = self.cell(tag) {
            cell.cookie.store(note.cookie, Ordering::Relaxed);
            cell.rest.store(u64::from(note.data) | u64::from(note.length) << 32, Ordering::Relaxed);
        }
        // Release: whoever sees the tag as outstanding sees its cell.
        self.tail.store(tag.wrapping_add(1), Ordering::Release);
    }

    /// Retires the request that a completion names, and all earlier ones; `None` if no such request is outstanding.
    #[inline]
    pub fn retire(&self, tag: u32) -> Option<Note> {
        self.retiring().retire(tag)
    }

    /// Retires one request after the other; nobody else may retire or clear meanwhile.
    #[inline(always)]
    pub fn retiring(&self) -> Retiring<'_> {
        Retiring {
            head: self.head.load(Ordering::Relaxed),
            tail: u64::from(self.tail.load(Ordering::Acquire)),
            requests: self,
        }
    }

    #[cold]
    #[inline(never)]
    fn tail_now(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
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

/// Several requests of one queue that are retired in a row. The poster learns of the room when this is dropped.
pub struct Retiring<'a> {
    requests: &'a Outstanding,
    head: u32,
    /// As it was when a tag was last found to be beyond. Wide, so that the compiler does not pack it with `head`.
    tail: u64,
}

impl Retiring<'_> {
    /// Retires the request that a completion names, and all earlier ones; `None` if no such request is outstanding.
    #[inline(always)]
    pub fn retire(&mut self, tag: u32) -> Option<Note> {
        if !self.covers(tag) {
            // Posted since, perhaps.
            self.tail = u64::from(self.requests.tail_now());
            if !self.covers(tag) {
                return None;
            }
        }
        let cell = self.requests.cell(tag)?;
        let rest = cell.rest.load(Ordering::Relaxed);
        let note = Note {
            cookie: cell.cookie.load(Ordering::Relaxed),
            data: rest as u32,
            length: (rest >> 32) as u32,
        };
        self.head = tag.wrapping_add(1);
        Some(note)
    }

    #[inline(always)]
    fn covers(&self, tag: u32) -> bool {
        tag.wrapping_sub(self.head) < (self.tail as u32).wrapping_sub(self.head)
    }
}

impl Drop for Retiring<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the cells were read before the poster may write them anew.
        self.requests.head.store(self.head, Ordering::Release);
    }
}

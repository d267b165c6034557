//! The driver's shadow state: what it remembers of the requests that are outstanding on a work
//! queue.
//!
//! Requests are in the order of posting, and a completion retires its request together with all
//! earlier ones. One thread at a time posts (under the queue's lock) and one at a time retires
//! (under the CQ's lock). They share only `head` and `tail`.

use core::hint::cold_path;

use platform::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Error;
use crate::mapped::Circle;

/// What the poster gets back with the completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shadow {
    /// The consumer's word.
    pub cookie: u64,
    /// The word of the layer that posts.
    pub data: u32,
}

/// What the driver remembered of a request that is retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// The consumer's word.
    pub cookie: u64,
    /// The data, and in the upper half the length.
    pub(crate) rest: u64,
}

impl Retired {
    #[inline]
    pub(crate) fn new(shadow: Shadow, length: u32) -> Retired {
        Retired { cookie: shadow.cookie, rest: u64::from(shadow.data) | u64::from(length) << 32 }
    }

    /// The word of the layer that posted.
    #[inline(always)]
    pub fn data(&self) -> u32 {
        self.rest as u32
    }

    /// Bytes of local memory that the request named: no completion can be longer.
    #[inline(always)]
    pub fn length(&self) -> u32 {
        (self.rest >> 32) as u32
    }
}

#[derive(Default)]
pub(crate) struct Cell {
    cookie: AtomicU64,
    /// As in [`Retired`].
    rest: AtomicU64,
}

impl Cell {
    #[inline(always)]
    fn read(&self) -> Retired {
        let rest = self.rest.load(Ordering::Relaxed);
        Retired { cookie: self.cookie.load(Ordering::Relaxed), rest }
    }

    #[inline(always)]
    pub(crate) fn note(&self, shadow: Shadow, length: u32) {
        self.cookie.store(shadow.cookie, Ordering::Relaxed);
        // The model checker's atomics have no halves.
        #[cfg(not(ferrovia_model))]
        crate::mapped::store_halves(&self.rest, shadow.data, length);
        #[cfg(ferrovia_model)]
        self.rest.store(Retired::new(shadow, length).rest, Ordering::Relaxed);
    }
}

/// The requests that are outstanding on one work queue.
pub struct Outstanding {
    cells: Circle<Cell>,
    limit: u32,
    /// Tag of the oldest request that is outstanding.
    head: AtomicU32,
    /// Tag of the next request.
    tail: AtomicU32,
    /// The tag from which on the poster has to look for room: `head + limit`, for a head that may
    /// have moved on since. Only the poster uses it.
    end: AtomicU32,
}

impl Outstanding {
    /// Room for `limit` requests (at most 2^30).
    pub fn new(limit: u32) -> Result<Outstanding, Error> {
        let [head, tail, end] = core::array::from_fn(|_| AtomicU32::new(0));
        Ok(Outstanding { cells: Circle::new(limit)?, limit, head, tail, end })
    }

    /// How many requests are outstanding.
    pub fn len(&self) -> u32 {
        // The head first: it never passes a tail that is read after it.
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire).wrapping_sub(head).min(self.limit)
    }

    /// Whether nothing is outstanding.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many requests may be outstanding.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The tag of the next request; `None` if the queue is full.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<u32> {
        let tail = self.tail();
        if tail == self.end.load(Ordering::Relaxed) {
            cold_path();
            let end = self.end();
            self.end.store(end, Ordering::Relaxed);
            if tail == end {
                return None;
            }
        }
        Some(tail)
    }

    /// The tag of the next request, whether the queue is full or not.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Relaxed)
    }

    /// The tag after the last one for which there is room. It only grows.
    #[inline(always)]
    pub(crate) fn end(&self) -> u32 {
        // Acquire: the retiring thread has read the cells before the poster writes them again.
        self.head.load(Ordering::Acquire).wrapping_add(self.limit)
    }

    /// What [`Outstanding::note`] remembers, by tag.
    pub(crate) fn cells(&self) -> &Circle<Cell> {
        &self.cells
    }

    /// Remembers a request with the next tag, or a later one for which there is room.
    #[inline(always)]
    pub(crate) fn note(&self, tag: u32, shadow: Shadow, length: u32) {
        self.cells.at(tag).note(shadow, length);
    }

    /// Makes all requests below the tag `tail` outstanding. To be called before the doorbell rings.
    #[inline(always)]
    pub(crate) fn publish(&self, tail: u32) {
        // Release: a thread that sees a tag as outstanding sees its cell.
        self.tail.store(tail, Ordering::Release);
    }

    /// Retires the request that a completion names, and all earlier ones. `None` if no such request
    /// is outstanding.
    #[inline(always)]
    pub fn retire(&self, tag: u32) -> Option<Retired> {
        let named = self.named(tag)?;
        let request = named.request;
        named.retire();
        Some(request)
    }

    /// The request that a completion names, if it is outstanding. No other thread may retire or
    /// clear until it is retired or dropped.
    #[inline(always)]
    pub fn named(&self, tag: u32) -> Option<Named<'_>> {
        let head = self.head.load(Ordering::Relaxed);
        if tag.wrapping_sub(head) >= self.tail.load(Ordering::Acquire).wrapping_sub(head) {
            return None;
        }
        Some(Named { requests: self, request: self.cells.at(tag).read(), tag })
    }

    /// Retires several requests in a row. No other thread may retire or clear meanwhile.
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

    /// The tag after the last request that is outstanding now, for [`Outstanding::is_past`].
    pub fn end_of_posted(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }

    /// Whether all requests below this tag are retired. The tag is at most 2^31 requests old.
    pub fn is_past(&self, tag: u32) -> bool {
        self.head.load(Ordering::Acquire).wrapping_sub(tag).cast_signed() >= 0
    }

    /// Forgets all outstanding requests, after the device has forgotten them.
    pub fn clear(&self) {
        self.head.store(self.tail.load(Ordering::Acquire), Ordering::Release);
    }
}

/// An outstanding request that a completion names. Dropping this changes nothing.
pub struct Named<'a> {
    requests: &'a Outstanding,
    /// What the driver remembered of it.
    pub request: Retired,
    tag: u32,
}

impl Named<'_> {
    /// Retires the request and all earlier ones.
    #[inline(always)]
    pub fn retire(self) {
        // Release: the cell was read before the poster may write it again.
        self.requests.head.store(self.tag.wrapping_add(1), Ordering::Release);
    }
}

/// Requests of one queue that are retired in a row. Dropping this makes their room visible to the
/// poster.
pub struct Retiring<'a> {
    requests: &'a Outstanding,
    /// The tag after the last one that was posted when this began. Later requests are for the next
    /// `Retiring`.
    tail: u32,
    /// How many of the requests that were outstanding then are not retired yet.
    left: u32,
}

impl Retiring<'_> {
    /// Retires the request that a completion names, and all earlier ones. `None` if no such request
    /// was outstanding at the beginning.
    #[inline(always)]
    pub fn retire(&mut self, tag: u32) -> Option<Retired> {
        // How many requests remain after it.
        let remain = self.tail.wrapping_sub(1).wrapping_sub(tag);
        if remain >= self.left {
            return None;
        }
        self.left = remain;
        Some(self.requests.cells.at(tag).read())
    }
}

impl Drop for Retiring<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the cells were read before the poster may write them again.
        self.requests.head.store(self.tail.wrapping_sub(self.left), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(requests: &Outstanding, cookie: u64) -> Option<u32> {
        let tag = requests.next()?;
        requests.note(tag, Shadow { cookie, data: 7 }, 9);
        requests.publish(tag.wrapping_add(1));
        Some(tag)
    }

    /// Requests whose counters are about to wrap.
    fn outstanding(limit: u32) -> Outstanding {
        let requests = Outstanding::new(limit).unwrap();
        requests.head.store(u32::MAX - 1, Ordering::Relaxed);
        requests.tail.store(u32::MAX - 1, Ordering::Relaxed);
        requests.end.store(u32::MAX - 1, Ordering::Relaxed);
        requests
    }

    #[test]
    fn a_completion_retires_its_request_and_all_before_it_once() {
        let requests = outstanding(4);
        let tags: [u32; 4] = core::array::from_fn(|n| post(&requests, n as u64).unwrap());
        assert_eq!((post(&requests, 9), requests.len(), requests.limit()), (None, 4, 4));
        let retired = requests.retire(tags[2]).unwrap();
        assert_eq!((retired.cookie, retired.data(), retired.length()), (2, 7, 9));
        assert_eq!((requests.len(), requests.is_empty()), (1, false));
        for earlier in &tags[..3] {
            assert_eq!(requests.retire(*earlier), None);
        }
        assert_eq!(requests.retire(tags[3].wrapping_add(1)), None, "never posted");
        assert_eq!(requests.retire(tags[3]).map(|retired| retired.cookie), Some(3));
        assert!(requests.is_empty());
    }

    #[test]
    fn a_named_request_stays_outstanding_until_it_is_retired() {
        let requests = outstanding(4);
        let tags: [u32; 3] = core::array::from_fn(|n| post(&requests, n as u64).unwrap());
        for bad in [tags[0].wrapping_sub(1), tags[2].wrapping_add(1), tags[0] ^ 1 << 31] {
            assert!(requests.named(bad).is_none());
        }
        assert_eq!(requests.named(tags[1]).map(|named| named.request.cookie), Some(1));
        assert_eq!(requests.len(), 3);
        requests.named(tags[1]).unwrap().retire();
        assert_eq!(requests.len(), 1);
        assert!(requests.named(tags[1]).is_none() && requests.named(tags[2]).is_some());
    }

    #[test]
    fn a_bad_tag_retires_nothing() {
        let requests = outstanding(8);
        let tags: [u32; 4] = core::array::from_fn(|n| post(&requests, n as u64).unwrap());
        let mut run = requests.retiring();
        assert_eq!(run.retire(tags[0]).map(|retired| retired.cookie), Some(0));
        for bad in [tags[0], tags[3].wrapping_add(1), tags[0].wrapping_sub(1), tags[1] ^ 1 << 31] {
            assert_eq!(run.retire(bad), None);
        }
        assert_eq!(run.retire(tags[1]).map(|retired| retired.cookie), Some(1));
        // Posted meanwhile: only the next run can retire it.
        let late = post(&requests, 4).unwrap();
        assert_eq!(run.retire(late), None);
        drop(run);
        assert_eq!(requests.len(), 3);
        assert_eq!(requests.retire(late).map(|retired| retired.cookie), Some(4));
    }

    #[test]
    fn the_room_of_a_run_is_visible_when_the_run_ends() {
        let requests = outstanding(2);
        let (first, _) = (post(&requests, 0).unwrap(), post(&requests, 1).unwrap());
        let mut run = requests.retiring();
        assert!(run.retire(first).is_some());
        assert_eq!(post(&requests, 2), None);
        drop(run);
        assert!(post(&requests, 2).is_some());
    }

    #[test]
    fn a_cleared_request_is_not_retired() {
        let requests = outstanding(4);
        let tag = post(&requests, 0).unwrap();
        requests.clear();
        assert_eq!((requests.retire(tag), requests.len()), (None, 0));
    }
}

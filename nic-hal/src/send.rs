//! The send queue's producer.

use core::sync::atomic::{AtomicU64, Ordering};

use nic_abi::wqe::{BLOCK_SEGMENTS, BLOCK_WORDS, Header, Segment};

use crate::doorbell::Doorbell;
use crate::mapped::Ring;
use crate::outstanding::Outstanding;
use crate::request::{Args, Request, length_and_key};

/// Why a queue did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many requests as the queue was created for are outstanding.
    Full,
    /// More segments than the queue was created for, or than the operation has.
    Segments,
}

/// The producer of a send queue. Its owner brings the lock.
///
/// The ring is as large as `limit` requests of `max_segments` segments need, so the number of
/// outstanding requests decides whether there is room.
pub struct SendQueue {
    pub(crate) ring: Ring<BLOCK_WORDS>,
    /// Free-running index of the next block.
    pub(crate) tail: u32,
    pub(crate) max_segments: u32,
    pub(crate) doorbell: Doorbell,
}

type Block = [AtomicU64; BLOCK_WORDS];

#[inline]
fn put(block: &Block, at: usize, value: u64) {
    // Relaxed: the doorbell's release store publishes the block.
    block[at].store(value, Ordering::Relaxed);
}

#[inline]
fn put_segment(block: &Block, at: usize, segment: Segment) -> u32 {
    put(block, at, segment.addr);
    put(block, at + 1, length_and_key(segment));
    segment.length
}

/// Writes the header's words, with what the queue adds.
#[inline]
fn put_header(block: &Block, header: &Header, segments: u32, blocks: u32, tag: u32) {
    let first = u64::from(header.opcode)
        | u64::from(header.flags) << 8
        | u64::from(segments as u8) << 16
        | u64::from(blocks as u8) << 24
        | u64::from(tag) << 32;
    put(block, 0, first);
    put(block, 1, u64::from(header.immediate) | u64::from(header.remote_key) << 32);
    put(block, 2, header.remote_addr);
    put(block, 3, header.length);
}

impl SendQueue {
    /// Writes a request; `segment` converts the caller's kind of segment. Returns the request's
    /// tag. The device sees it after [`SendQueue::ring`].
    ///
    /// Inlined, since most callers have a constant operation.
    #[inline(always)]
    pub fn push<T>(
        &mut self,
        outstanding: &Outstanding,
        request: &Request,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
    ) -> Result<u32, Refused> {
        let (header, args) = request.encode();
        let most = if matches!(args, Args::Words(..)) { 0 } else { self.max_segments };
        if segments.len() > most as usize {
            return Err(Refused::Segments);
        }
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let block = self.ring.at(self.tail);
        let mut count = segments.len() as u32;
        let (blocks, length) = match args {
            Args::Segments => self.put_segments(block, segments, &segment),
            Args::Address(words) => {
                put_words(block, words);
                let (more, length) = self.put_more(1, segments, &segment);
                (1 + more, length)
            }
            Args::Words(words, sink) => {
                put_words(block, words);
                count = u32::from(sink.is_some());
                (1, sink.map_or(0, |sink| sink.length))
            }
        };
        put_header(block, &header, count, blocks, tag);
        outstanding.add(tag, request.shadow, length);
        self.tail = self.tail.wrapping_add(blocks);
        Ok(tag)
    }

    /// The fast path of [`SendQueue::push`]: a Send, Write or Read of one segment, for which each
    /// block has room.
    #[inline(always)]
    pub fn push_single(
        &mut self,
        outstanding: &Outstanding,
        request: &Request,
        segment: Segment,
    ) -> Result<u32, Refused> {
        let (header, Args::Segments) = request.encode() else { return Err(Refused::Segments) };
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let block = self.ring.at(self.tail);
        let length = put_segment(block, 4, segment);
        put_header(block, &header, 1, 1, tag);
        outstanding.add(tag, request.shadow, length);
        self.tail = self.tail.wrapping_add(1);
        Ok(tag)
    }

    /// Writes segments into the first block, and into further ones. Returns the number of blocks
    /// and the sum of the lengths.
    #[inline]
    fn put_segments<T>(&self, block: &Block, segments: &[T], segment: &impl Fn(&T) -> Segment) -> (u32, u32) {
        let [first, more @ ..] = segments else { return (1, 0) };
        let length = put_segment(block, 4, segment(first));
        let [second, more @ ..] = more else { return (1, length) };
        let length = length.saturating_add(put_segment(block, 6, segment(second)));
        let (blocks, more) = self.put_more(1, more, segment);
        (1 + blocks, length.saturating_add(more))
    }

    /// Writes segments into the blocks from `first` on. Returns the number of blocks and the sum of
    /// the lengths. Not inlined, so that the code for one segment stays small.
    #[inline(never)]
    fn put_more<T>(&self, first: u32, segments: &[T], segment: &impl Fn(&T) -> Segment) -> (u32, u32) {
        let mut length = 0u32;
        let mut blocks = 0;
        for four in segments.chunks(BLOCK_SEGMENTS as usize) {
            let block = self.ring.at(self.tail.wrapping_add(first + blocks));
            for (at, one) in (0..BLOCK_WORDS).step_by(2).zip(four) {
                length = length.saturating_add(put_segment(block, at, segment(one)));
            }
            blocks += 1;
        }
        (blocks, length)
    }

    /// Makes all that was pushed known to the device, and wakes the device if it sleeps.
    #[inline(always)]
    pub fn ring(&self) {
        self.doorbell.ring(self.tail);
    }
}

/// Writes what follows the header in the first block.
#[inline]
fn put_words(block: &Block, words: [u64; 4]) {
    for (at, word) in (4..).zip(words) {
        put(block, at, word);
    }
}

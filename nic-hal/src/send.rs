//! The send queue's producer.

use core::sync::atomic::{AtomicU64, Ordering};

use nic_abi::wqe::{BLOCK_SEGMENTS, BLOCK_WORDS, FIRST_SEGMENTS, Header, Segment};

use crate::doorbell::{Doorbell, Rung};
use crate::mapped::Ring;
use crate::work::{Note, Outstanding};

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many requests as may be are outstanding.
    Full,
    /// More segments than the queue was created for.
    Segments,
}

/// The producer of a send queue. Its lock is the owner's.
///
/// The ring is as large as `limit` requests of `max_segments` segments need, so counting requests is
/// enough to know that there is room.
pub struct SendQueue {
    pub(crate) ring: Ring<BLOCK_WORDS>,
    /// Free-running index of the next block.
    pub(crate) tail: u32,
    pub(crate) max_segments: u32,
    pub(crate) doorbell: Doorbell,
}

#[inline]
fn put(words: &[AtomicU64; BLOCK_WORDS], at: usize, value: u64) {
    // Relaxed: the doorbell's release store publishes the block.
    words[at].store(value, Ordering::Relaxed);
}

#[inline]
fn put_segment(block: &[AtomicU64; BLOCK_WORDS], at: usize, segment: Segment) -> u32 {
    put(block, at, segment.addr);
    put(block, at + 1, u64::from(segment.length) | u64::from(segment.key) << 32);
    segment.length
}

/// The header's words, with what the queue adds.
#[inline]
fn put_header(block: &[AtomicU64; BLOCK_WORDS], header: &Header, segments: u32, blocks: u32, tag: u32) {
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
    /// Writes a request of plain segments (Send, Write, Read on a connected queue pair). `header`'s tag, segments and
    /// blocks are filled in; `note.length` too. [`SendQueue::ring`] makes it known. Returns the tag.
    #[inline]
    pub fn push<T>(
        &mut self,
        outstanding: &Outstanding,
        header: &Header,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        mut note: Note,
    ) -> Result<u32, Refused> {
        if segments.len() > self.max_segments as usize {
            return Err(Refused::Segments);
        }
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let block = self.ring.at(self.tail);
        let mut length = 0;
        let mut blocks = 1;
        if let [first, more @ ..] = segments {
            length = put_segment(block, 4, segment(first));
            if !more.is_empty() {
                let (more_blocks, more_length) = self.push_rest(block, more, &segment);
                blocks += more_blocks;
                length = length.saturating_add(more_length);
            }
        }
        put_header(block, header, segments.len() as u32, blocks, tag);
        note.length = length;
        outstanding.add(tag, note);
        self.tail = self.tail.wrapping_add(blocks);
        Ok(tag)
    }

    /// Writes a request of one plain segment, for which each block has room. The rest is as in [`SendQueue::push`].
    #[inline(always)]
    pub fn push_single(
        &mut self,
        outstanding: &Outstanding,
        header: &Header,
        segment: Segment,
        note: Note,
    ) -> Result<u32, Refused> {
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let block = self.ring.at(self.tail);
        put_segment(block, 4, segment);
        put_header(block, header, 1, 1, tag);
        outstanding.add(tag, Note { length: segment.length, ..note });
        self.tail = self.tail.wrapping_add(1);
        Ok(tag)
    }

    /// Writes what follows the first segment; returns how many further blocks, and the sum of the lengths. Not inlined:
    /// the code for one segment is the better for it.
    #[inline(never)]
    fn push_rest<T>(
        &self,
        block: &[AtomicU64; BLOCK_WORDS],
        segments: &[T],
        segment: &impl Fn(&T) -> Segment,
    ) -> (u32, u32) {
        let [second, more @ ..] = segments else { return (0, 0) };
        let length = put_segment(block, 6, segment(second));
        let (blocks, more) = self.push_more(1, more, segment);
        (blocks, length.saturating_add(more))
    }

    /// Writes segments into the blocks from `first` on; returns how many blocks, and the sum of the lengths.
    #[inline]
    fn push_more<T>(&self, first: u32, segments: &[T], segment: &impl Fn(&T) -> Segment) -> (u32, u32) {
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

    /// Writes a request whose `args` are not segments. `segments` is what the header says, at most
    /// [`FIRST_SEGMENTS`]: the segments that `args` happen to hold. Returns the tag.
    #[inline]
    pub fn push_args(
        &mut self,
        outstanding: &Outstanding,
        header: &Header,
        args: [u64; 4],
        segments: u32,
        note: Note,
    ) -> Result<u32, Refused> {
        if segments > FIRST_SEGMENTS {
            return Err(Refused::Segments);
        }
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let block = self.ring.at(self.tail);
        for (at, word) in (4..).zip(args) {
            put(block, at, word);
        }
        put_header(block, header, segments, 1, tag);
        outstanding.add(tag, note);
        self.tail = self.tail.wrapping_add(1);
        Ok(tag)
    }

    /// Writes a datagram: `address` are the words of a `nic_abi::wqe::AddressVector`. Returns the tag.
    #[inline]
    pub fn push_datagram<T>(
        &mut self,
        outstanding: &Outstanding,
        header: &Header,
        address: [u64; 4],
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        mut note: Note,
    ) -> Result<u32, Refused> {
        if segments.len() > self.max_segments as usize {
            return Err(Refused::Segments);
        }
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let block = self.ring.at(self.tail);
        for (at, word) in (4..).zip(address) {
            put(block, at, word);
        }
        let (more, length) = self.push_more(1, segments, &segment);
        put_header(block, header, segments.len() as u32, 1 + more, tag);
        note.length = length;
        outstanding.add(tag, note);
        self.tail = self.tail.wrapping_add(1 + more);
        Ok(tag)
    }

    /// Makes all that was pushed known to the device.
    #[inline]
    pub fn ring(&self) {
        self.doorbell.ring(self.tail);
    }

    /// The same, but if the device sleeps the caller wakes it.
    #[inline(always)]
    pub fn ring_only(&self) -> Rung {
        self.doorbell.ring_only(self.tail)
    }
}

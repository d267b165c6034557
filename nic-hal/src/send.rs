//! The send queue's producer.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nic_abi::wqe::{BLOCK_WORDS, Header, Segment};

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
    /// The caller refused a segment.
    Segment,
}

/// The producer of a send queue. Its owner sees to it that one thread at a time writes requests.
///
/// The ring is as large as `limit` requests of `max_segments` segments need, so the number of
/// outstanding requests decides whether there is room.
pub struct SendQueue {
    pub(crate) ring: Ring<BLOCK_WORDS>,
    /// Free-running index of the next block.
    pub(crate) tail: AtomicU32,
    pub(crate) max_segments: u32,
    pub(crate) doorbell: Doorbell,
}

/// Where the next request goes. Requests that were written behind the queue's own tail are posted
/// by [`SendQueue::post_all`], and forgotten if this is dropped instead.
pub struct Unposted {
    /// The next block, and the next tag.
    tail: u32,
    tag: u32,
    /// Requests for which there is room.
    room: u32,
}

type Block = [AtomicU64; BLOCK_WORDS];

/// Writes a segment into the two words of its place; returns its length.
#[inline(always)]
fn put_segment([addr, rest]: &[AtomicU64; 2], segment: Segment) -> u32 {
    // Relaxed, as all words of a request: the doorbell's release store publishes them.
    addr.store(segment.addr, Ordering::Relaxed);
    rest.store(length_and_key(segment), Ordering::Relaxed);
    segment.length
}

/// Writes the words of the header, with what the queue adds.
#[inline(always)]
fn put_header(block: &Block, header: &Header, segments: u32, blocks: u32, tag: u32) {
    let first = u64::from(header.opcode)
        | u64::from(header.flags) << 8
        | u64::from(segments as u8) << 16
        | u64::from(blocks as u8) << 24
        | u64::from(tag) << 32;
    block[0].store(first, Ordering::Relaxed);
    block[1].store(u64::from(header.immediate) | u64::from(header.remote_key) << 32, Ordering::Relaxed);
    block[2].store(header.remote_addr, Ordering::Relaxed);
    block[3].store(header.length, Ordering::Relaxed);
}

/// Writes what follows the header in the first block.
#[inline]
fn put_words(block: &Block, words: [u64; 4]) {
    for (place, word) in block.iter().skip(4).zip(words) {
        place.store(word, Ordering::Relaxed);
    }
}

impl SendQueue {
    /// Writes and publishes a request; `segment` converts the caller's kind of segment, and may
    /// refuse it. Returns the request's tag. The device sees it after [`SendQueue::ring`].
    ///
    /// Inlined, since most callers have a constant operation.
    #[inline(always)]
    pub fn push<T, S: Into<Option<Segment>>>(
        &self,
        outstanding: &Outstanding,
        request: &Request,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Result<u32, Refused> {
        let (header, args) = request.encode();
        let most = if matches!(args, Args::Words(..)) { 0 } else { self.max_segments };
        if segments.len() > most as usize {
            return Err(Refused::Segments);
        }
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let tail = self.tail.load(Ordering::Relaxed);
        let block = self.ring.at(tail);
        let mut count = segments.len() as u32;
        let (blocks, length) = match args {
            Args::Segments => match segments {
                [] => (1, 0),
                [one] => {
                    let one = segment(one).into().ok_or(Refused::Segment)?;
                    (1, put_segment(&pairs(block)[2], one))
                }
                _ => self.put_many(tail, &pairs(block)[2..], segments, &segment).ok_or(Refused::Segment)?,
            },
            Args::Address(words) => {
                put_words(block, words);
                match segments {
                    [one] => {
                        let one = segment(one).into().ok_or(Refused::Segment)?;
                        (2, put_segment(&pairs(self.ring.at(tail.wrapping_add(1)))[0], one))
                    }
                    _ => self.put_many(tail, &[], segments, &segment).ok_or(Refused::Segment)?,
                }
            }
            Args::Words(words, sink) => {
                put_words(block, words);
                count = u32::from(sink.is_some());
                (1, sink.map_or(0, |sink| sink.length))
            }
        };
        put_header(block, &header, count, blocks, tag);
        outstanding.note(tag, request.shadow, length);
        outstanding.publish(tag.wrapping_add(1));
        self.tail.store(tail.wrapping_add(blocks), Ordering::Relaxed);
        Ok(tag)
    }

    /// Writes and publishes a Send, Write or Read of one segment, and makes it known to the device:
    /// the fast path of [`SendQueue::push`] and [`SendQueue::ring`].
    ///
    /// `make` makes the request, or refuses. It is called last: what the poster still needs to post
    /// in another way then takes no register while the request is written.
    #[inline(always)]
    pub fn post_single(
        &self,
        outstanding: &Outstanding,
        make: impl FnOnce() -> Option<(Request, Segment)>,
    ) -> Result<(), Refused> {
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let (request, segment) = make().ok_or(Refused::Segment)?;
        let tail = self.tail.load(Ordering::Relaxed);
        self.write_single(outstanding, tag, tail, &request, segment)?;
        self.post(outstanding, tag.wrapping_add(1), tail.wrapping_add(1));
        Ok(())
    }

    /// As [`SendQueue::post_single`], with at most `max_segments` segments.
    #[inline(always)]
    pub fn post_many<T, S: Into<Option<Segment>>>(
        &self,
        outstanding: &Outstanding,
        request: &Request,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Result<(), Refused> {
        let (header, Args::Segments) = request.encode() else { return Err(Refused::Segments) };
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let tail = self.tail.load(Ordering::Relaxed);
        let block = self.ring.at(tail);
        let put = self.put_segments(tail, &pairs(block)[2..], segments, &segment);
        let (blocks, length) = put.ok_or(Refused::Segment)?;
        put_header(block, &header, segments.len() as u32, blocks, tag);
        outstanding.note(tag, request.shadow, length);
        self.post(outstanding, tag.wrapping_add(1), tail.wrapping_add(blocks));
        Ok(())
    }

    /// Publishes what was written up to these indices, and makes it known to the device.
    #[inline(always)]
    fn post(&self, outstanding: &Outstanding, tag: u32, tail: u32) {
        outstanding.publish(tag);
        self.tail.store(tail, Ordering::Relaxed);
        self.doorbell.ring(tail);
    }

    /// Begins to write requests that are posted together.
    #[inline(always)]
    pub fn begin(&self, outstanding: &Outstanding) -> Unposted {
        let tag = outstanding.tail();
        Unposted { tail: self.tail.load(Ordering::Relaxed), tag, room: outstanding.room(tag) }
    }

    /// Writes a Send, Write or Read of at most `max_segments` segments behind those that were
    /// written before.
    #[inline(always)]
    pub fn write_behind<T, S: Into<Option<Segment>>>(
        &self,
        outstanding: &Outstanding,
        unposted: &mut Unposted,
        request: &Request,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Result<(), Refused> {
        if unposted.room == 0 {
            // Requests may have completed since.
            unposted.room = outstanding.room(unposted.tag);
            if unposted.room == 0 {
                return Err(Refused::Full);
            }
        }
        let (tag, tail) = (unposted.tag, unposted.tail);
        let blocks = self.write_many(outstanding, tag, tail, request, segments, &segment)?;
        unposted.tail = tail.wrapping_add(blocks);
        unposted.tag = tag.wrapping_add(1);
        unposted.room -= 1;
        Ok(())
    }

    /// As [`SendQueue::write_behind`], for one segment; `make` is as in [`SendQueue::post_single`].
    /// `None` for a reason that [`SendQueue::write_behind`] finds.
    #[inline(always)]
    pub fn write_single_behind(
        &self,
        outstanding: &Outstanding,
        unposted: &mut Unposted,
        make: impl FnOnce() -> Option<(Request, Segment)>,
    ) -> Option<()> {
        let Unposted { tag, tail, room } = *unposted;
        let room = room.checked_sub(1)?;
        let (request, segment) = make()?;
        self.write_single(outstanding, tag, tail, &request, segment).ok()?;
        *unposted = Unposted { tag: tag.wrapping_add(1), tail: tail.wrapping_add(1), room };
        Some(())
    }

    /// Publishes all requests that were written, and makes them known to the device.
    #[inline(always)]
    pub fn post_all(&self, outstanding: &Outstanding, unposted: &Unposted) {
        self.post(outstanding, unposted.tag, unposted.tail);
    }

    /// Writes a Send, Write or Read with this tag into the block at `tail`; returns 1, the number
    /// of blocks.
    #[inline(always)]
    fn write_single(
        &self,
        outstanding: &Outstanding,
        tag: u32,
        tail: u32,
        request: &Request,
        segment: Segment,
    ) -> Result<u32, Refused> {
        let (header, Args::Segments) = request.encode() else { return Err(Refused::Segments) };
        let block = self.ring.at(tail);
        let length = put_segment(&pairs(block)[2], segment);
        put_header(block, &header, 1, 1, tag);
        outstanding.note(tag, request.shadow, length);
        Ok(1)
    }

    /// As [`SendQueue::write_single`], with any number of segments and blocks.
    #[inline(never)]
    fn write_many<T, S: Into<Option<Segment>>>(
        &self,
        outstanding: &Outstanding,
        tag: u32,
        tail: u32,
        request: &Request,
        segments: &[T],
        segment: &impl Fn(&T) -> S,
    ) -> Result<u32, Refused> {
        let (header, Args::Segments) = request.encode() else { return Err(Refused::Segments) };
        let block = self.ring.at(tail);
        let put = self.put_segments(tail, &pairs(block)[2..], segments, segment);
        let (blocks, length) = put.ok_or(Refused::Segment)?;
        put_header(block, &header, segments.len() as u32, blocks, tag);
        outstanding.note(tag, request.shadow, length);
        Ok(blocks)
    }

    /// [`SendQueue::put_segments`], not inlined.
    #[inline(never)]
    fn put_many<T, S: Into<Option<Segment>>>(
        &self,
        first: u32,
        places: &[[AtomicU64; 2]],
        segments: &[T],
        segment: &impl Fn(&T) -> S,
    ) -> Option<(u32, u32)> {
        self.put_segments(first, places, segments, segment)
    }

    /// Writes segments into `places`, the end of the first block, and into further blocks. Returns
    /// the number of blocks, with the first, and the sum of the lengths; `None` if a segment is
    /// refused.
    #[inline(always)]
    fn put_segments<'a, T, S: Into<Option<Segment>>>(
        &'a self,
        first: u32,
        mut places: &'a [[AtomicU64; 2]],
        segments: &[T],
        segment: &impl Fn(&T) -> S,
    ) -> Option<(u32, u32)> {
        let mut length = 0u64;
        let mut blocks = 1;
        for one in segments {
            let one = segment(one).into()?;
            let place = match places {
                [place, others @ ..] => {
                    places = others;
                    place
                }
                [] => {
                    let block = pairs(self.ring.at(first.wrapping_add(blocks)));
                    blocks += 1;
                    places = &block[1..];
                    &block[0]
                }
            };
            length += u64::from(put_segment(place, one));
        }
        // No request that the device executes is longer.
        Some((blocks, length.min(u64::from(u32::MAX)) as u32))
    }

    /// Makes all that was published known to the device, and wakes the device if it sleeps.
    #[inline(always)]
    pub fn ring(&self) {
        self.doorbell.ring(self.tail.load(Ordering::Relaxed));
    }
}

/// The places of segments in a block; the header takes the first two.
#[inline(always)]
fn pairs(block: &Block) -> &[[AtomicU64; 2]] {
    block.as_chunks().0
}

//! The send queue's producer.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nic_abi::wqe::{BLOCK_WORDS, Header, Segment};

use crate::doorbell::Doorbell;
use crate::mapped::{Ring, Run, store_halves};
use crate::outstanding::{Cell, Outstanding};
use crate::request::{Args, RemoteWords, Request, Transfer, first_half};

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

type Block = [AtomicU64; BLOCK_WORDS];

/// Writes a segment into the two words of its place; returns its length.
#[inline(always)]
fn put_segment([addr, rest]: &[AtomicU64; 2], segment: Segment) -> u32 {
    // Relaxed, as all words of a request: the doorbell's release store publishes them.
    addr.store(segment.addr, Ordering::Relaxed);
    store_halves(rest, segment.length, segment.key);
    segment.length
}

/// Writes the words of the header, with what the queue adds.
#[inline(always)]
fn put_header(block: &Block, header: &Header, segments: u32, blocks: u32, tag: u32) {
    let half = first_half(header.opcode, header.flags, segments as u8, blocks as u8);
    store_halves(&block[1], header.immediate, header.remote_key);
    put_other_words(block, half, tag, header.remote_addr, header.length);
}

/// Writes the header of a transfer; `half` is the lower half of its first word.
#[inline(always)]
fn put_transfer(block: &Block, half: u32, tag: u32, remote: RemoteWords) {
    block[1].store(remote.key, Ordering::Relaxed);
    put_other_words(block, half, tag, remote.addr, 0);
}

/// Writes the words of the header but for the second one.
#[inline(always)]
fn put_other_words(block: &Block, half: u32, tag: u32, addr: u64, length: u64) {
    store_halves(&block[0], half, tag);
    block[2].store(addr, Ordering::Relaxed);
    block[3].store(length, Ordering::Relaxed);
}

/// Writes a transfer of one segment into a block.
#[inline(always)]
fn put_single(block: &Block, tag: u32, transfer: &Transfer, segment: Segment) {
    put_segment(&pairs(block)[2], segment);
    put_transfer(block, transfer.head.single(), tag, transfer.remote);
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

    /// Writes and publishes a transfer of one segment, and makes it known to the device: the fast
    /// path of [`SendQueue::push`] and [`SendQueue::ring`].
    ///
    /// `make` makes the transfer, or refuses. It is called last: what the poster still needs to
    /// post in another way then takes no register while the request is written.
    #[inline(always)]
    pub fn post_single(
        &self,
        outstanding: &Outstanding,
        make: impl FnOnce() -> Option<(Transfer, Segment)>,
    ) -> Result<(), Refused> {
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let (transfer, segment) = make().ok_or(Refused::Segment)?;
        // The cell first: the shadow then takes no register while the block is written.
        outstanding.note(tag, transfer.shadow, segment.length);
        let tail = self.tail.load(Ordering::Relaxed);
        put_single(self.ring.at(tail), tag, &transfer, segment);
        self.post(outstanding, tag.wrapping_add(1), tail.wrapping_add(1));
        Ok(())
    }

    /// As [`SendQueue::post_single`], with at most `max_segments` segments.
    #[inline(always)]
    pub fn post_many<T, S: Into<Option<Segment>>>(
        &self,
        outstanding: &Outstanding,
        transfer: &Transfer,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Result<(), Refused> {
        let tag = outstanding.next().ok_or(Refused::Full)?;
        let tail = self.tail.load(Ordering::Relaxed);
        let block = self.ring.at(tail);
        let put = self.put_segments(tail, &pairs(block)[2..], segments, &segment);
        let (blocks, length) = put.ok_or(Refused::Segment)?;
        put_transfer(block, transfer.head.sized(segments.len() as u32, blocks), tag, transfer.remote);
        outstanding.note(tag, transfer.shadow, length);
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

    /// Begins to write requests that are posted together. `singles`: whether
    /// [`Unposted::write_single`] may write any.
    #[inline(always)]
    pub fn begin<'a>(&'a self, outstanding: &'a Outstanding, singles: bool) -> Unposted<'a> {
        let next = Next { tail: self.tail.load(Ordering::Relaxed), tag: outstanding.tail() };
        Unposted::new(self, outstanding, next, singles)
    }

    /// Publishes all requests that were written before `next`, and makes them known to the device.
    #[inline(always)]
    pub fn post_all(&self, outstanding: &Outstanding, next: Next) {
        self.post(outstanding, next.tag, next.tail);
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

/// Where the next request goes.
#[derive(Clone, Copy)]
pub struct Next {
    /// The next block.
    tail: u32,
    tag: u32,
}

/// Requests that are written behind a queue's own tail, for [`SendQueue::post_all`]. A value that
/// the compiler can keep in registers.
#[derive(Clone, Copy)]
pub struct Unposted<'a> {
    queue: &'a SendQueue,
    outstanding: &'a Outstanding,
    /// The blocks and cells of the next requests, by tag, if these take one block each. It ends
    /// where there is no room, or where blocks or cells go on at the beginning of their memory.
    run: Run<'a, BLOCK_WORDS, Cell>,
    /// If not, the run is always empty.
    singles: bool,
    /// From a tag of the run to its block.
    blocks: u32,
}

impl<'a> Unposted<'a> {
    #[inline(always)]
    fn new(queue: &'a SendQueue, outstanding: &'a Outstanding, next: Next, singles: bool) -> Self {
        let Next { tail, tag } = next;
        let end = if singles { outstanding.end() } else { tag };
        let run = Run::new(&queue.ring, tail, outstanding.cells(), tag, end);
        Unposted { queue, outstanding, run, singles, blocks: tail.wrapping_sub(tag) }
    }

    /// Writes a transfer of one segment, if `segment` does not refuse it, behind those that were
    /// written before. `None` for a reason that [`Unposted::write`] finds.
    #[inline(always)]
    pub fn write_single(
        &mut self,
        transfer: &Transfer,
        segment: impl FnOnce() -> Option<Segment>,
    ) -> Option<()> {
        let (tag, block, cell) = self.run.peek()?;
        let segment = segment()?;
        put_single(block, tag, transfer, segment);
        cell.note(transfer.shadow, segment.length);
        self.run.advance();
        Some(())
    }

    /// Goes on at the beginning of the memory of blocks or cells, if [`Unposted::write_single`] has
    /// come to the end of it, and where requests that have ended left room.
    #[inline]
    pub fn renewed(self) -> Unposted<'a> {
        Unposted::new(self.queue, self.outstanding, self.next(), self.singles)
    }

    /// Writes a transfer of at most `max_segments` segments behind those that were written before.
    pub fn write<T, S: Into<Option<Segment>>>(
        &mut self,
        transfer: &Transfer,
        segments: &[T],
        segment: impl Fn(&T) -> S,
    ) -> Result<(), Refused> {
        let Next { tail, tag } = self.next();
        if tag == self.outstanding.end() {
            return Err(Refused::Full);
        }
        let block = self.queue.ring.at(tail);
        let put = self.queue.put_segments(tail, &pairs(block)[2..], segments, &segment);
        let (blocks, length) = put.ok_or(Refused::Segment)?;
        put_transfer(block, transfer.head.sized(segments.len() as u32, blocks), tag, transfer.remote);
        self.outstanding.note(tag, transfer.shadow, length);
        let next = Next { tail: tail.wrapping_add(blocks), tag: tag.wrapping_add(1) };
        *self = Unposted::new(self.queue, self.outstanding, next, self.singles);
        Ok(())
    }

    /// Where the request after those that were written goes.
    #[inline(always)]
    pub fn next(&self) -> Next {
        let tag = self.run.index();
        Next { tail: tag.wrapping_add(self.blocks), tag }
    }
}

/// The places of segments in a block; the header takes the first two.
#[inline(always)]
fn pairs(block: &Block) -> &[[AtomicU64; 2]] {
    block.as_chunks().0
}

//! A ring of frames in memory that two processes share: one writes frames, the other takes them.
//!
//! Each side has its place in the ring, and what it knows of the other's, in memory of its own, and
//! checks what it reads. A frame is a record: a header word, which is its length, and its bytes. A
//! record begins with a line of the cache, and does not cross the ring's end: a header that says
//! [`SKIP`] sends the reader to the ring's start. The writer writes the header last, and clears the
//! next header before: so a header that is not 0 tells of a whole frame, and the reader looks at
//! one line of the cache for both.
//!
//! Three words are beside the ring: how much the reader has taken, whether the reader sleeps, and
//! whether the writer waits for room. Who is to wake the other publishes first, and then looks at
//! the word; who is to sleep sets the word first, and then looks for what was published. So none
//! sleeps while there is something for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use platform::OutOfBounds;

use crate::MAX_FRAME;
use crate::memory::Mapping;

/// The bytes of frames that fit, with their headers.
pub(super) const RING: usize = 1 << 19;
/// What is in front of the ring.
const CONTROL: usize = 4096;
/// The memory of a ring.
pub(super) const LEN: usize = CONTROL + RING;
/// What records are aligned to.
const LINE: usize = 64;
const HEADER: usize = 8;
/// The header of a record that is not there: the next one is at the ring's start.
const SKIP: u32 = u32::MAX;
/// The largest record.
const RECORD: usize = (HEADER + MAX_FRAME).next_multiple_of(LINE);
/// With so much room a frame of any size fits, wherever the writer is.
const RESERVE: usize = 2 * RECORD + LINE;
/// The reader says what it has taken when it is so much, and when the ring is empty.
const REPORTED: u64 = RING as u64 / 8;

/// The words beside the ring, each in a line of its own.
const TAKEN: usize = 0;
const SLEEPS: usize = 64;
const WAITS: usize = 128;

const _: () = assert!(RING / 2 >= RESERVE && RING.is_power_of_two());

/// The other side has written what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl From<OutOfBounds> for Broken {
    fn from(_: OutOfBounds) -> Broken {
        Broken
    }
}

fn record(len: usize) -> usize {
    (HEADER + len).next_multiple_of(LINE)
}

/// The memory of a ring.
#[derive(Debug)]
struct Memory(Mapping);

impl Memory {
    fn header(&self, at: usize) -> Result<&AtomicU32, Broken> {
        Ok(self.0.slice().atomic_u32(CONTROL + at)?)
    }

    fn taken(&self) -> Result<&AtomicU64, Broken> {
        Ok(self.0.slice().atomic_u64(TAKEN)?)
    }

    fn flag(&self, at: usize) -> Result<&AtomicU32, Broken> {
        Ok(self.0.slice().atomic_u32(at)?)
    }

    /// Clears a flag that the other side has set; whether it was set. What was published before is
    /// seen by a side that sets the flag later.
    fn clear(&self, at: usize) -> bool {
        fence(Ordering::SeqCst);
        self.flag(at)
            .is_ok_and(|flag| flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0)
    }

    fn set(&self, at: usize, value: u32) {
        if let Ok(flag) = self.flag(at) {
            flag.store(value, Ordering::Relaxed);
        }
    }
}

/// Where a count of bytes is in the ring.
fn place(count: u64) -> usize {
    (count % RING as u64) as usize
}

/// The side that writes frames.
#[derive(Debug)]
pub(super) struct Writer {
    memory: Memory,
    /// The bytes that were ever written, and those of them that the reader is known to have taken.
    written: u64,
    taken: Cell<u64>,
}

impl Writer {
    /// The writer of a ring in memory that is zero.
    pub fn new(memory: Mapping) -> Writer {
        Writer { memory: Memory(memory), written: 0, taken: Cell::new(0) }
    }

    /// Writes a frame, of [`MAX_FRAME`] bytes at most; false if it does not fit now.
    pub fn push(&mut self, frame: &[u8]) -> Result<bool, Broken> {
        let (at, need) = (place(self.written), record(frame.len()));
        let skipped = if need > RING - at { RING - at } else { 0 };
        // One line more: the next header.
        let all = skipped + need + LINE;
        if self.known_room() < all && self.room()? < all {
            return Ok(false);
        }
        let start = if skipped > 0 { 0 } else { at };
        self.memory.header(place((start + need) as u64))?.store(0, Ordering::Relaxed);
        self.memory.0.slice().write(CONTROL + start + HEADER, frame)?;
        self.memory.header(start)?.store(frame.len() as u32, Ordering::Release);
        if skipped > 0 {
            self.memory.header(at)?.store(SKIP, Ordering::Release);
        }
        self.written += (skipped + need) as u64;
        Ok(true)
    }

    fn known_room(&self) -> usize {
        RING - (self.written - self.taken.get()) as usize
    }

    /// The room that there is now.
    fn room(&self) -> Result<usize, Broken> {
        let taken = self.memory.taken()?.load(Ordering::Acquire);
        if !(self.taken.get()..=self.written).contains(&taken) || !taken.is_multiple_of(LINE as u64) {
            return Err(Broken);
        }
        self.taken.set(taken);
        Ok(self.known_room())
    }

    /// Whether a frame of any size fits.
    pub fn has_room(&self) -> Result<bool, Broken> {
        Ok(self.known_room() >= RESERVE || self.room()? >= RESERVE)
    }

    /// Whether half of the ring is free.
    pub fn is_half_free(&self) -> Result<bool, Broken> {
        Ok(self.room()? >= RING / 2)
    }

    /// Whether the reader has taken everything.
    pub fn is_empty(&self) -> Result<bool, Broken> {
        Ok(self.room()? == RING)
    }

    /// Whether the reader sleeps and has to be woken, after frames were written. True once for each
    /// sleep.
    pub fn has_to_wake(&self) -> bool {
        self.memory.clear(SLEEPS)
    }

    /// Asks the reader to wake this side when it has taken more. To be followed by a fence, and by
    /// a look whether there is room.
    pub fn wait(&self) {
        self.memory.set(WAITS, 1);
    }
}

/// The side that takes frames.
#[derive(Debug)]
pub(super) struct Reader {
    memory: Memory,
    /// How many bytes this side has taken since the ring began.
    taken: u64,
    /// How many of them the ring's memory shows to the writer.
    reported: u64,
}

impl Reader {
    /// The reader of a new ring.
    pub fn new(memory: Mapping) -> Reader {
        Reader { memory: Memory(memory), taken: 0, reported: 0 }
    }

    /// The length of the next frame, if there is one. It is [`MAX_FRAME`] at most.
    pub fn next(&mut self) -> Result<Option<usize>, Broken> {
        let mut header = self.memory.header(place(self.taken))?.load(Ordering::Acquire);
        if header == SKIP {
            let left = RING - place(self.taken);
            // A writer never skips the whole ring.
            if left == RING {
                return Err(Broken);
            }
            self.taken += left as u64;
            header = self.memory.header(0)?.load(Ordering::Acquire);
        }
        match header as usize {
            0 => Ok(None),
            len if len <= MAX_FRAME && record(len) <= RING - place(self.taken) => Ok(Some(len)),
            _ => Err(Broken),
        }
    }

    /// Copies the frame of which [`Reader::next`] said the length. The writer may change it
    /// meanwhile: what counts is the copy.
    pub fn read(&self, into: &mut [u8]) -> Result<(), Broken> {
        Ok(self.memory.0.slice().read(CONTROL + place(self.taken) + HEADER, into)?)
    }

    /// Leaves the frame of this length behind. Whether the writer waits and has to be woken.
    pub fn advance(&mut self, len: usize) -> bool {
        self.taken += record(len) as u64;
        self.taken - self.reported >= REPORTED && self.report()
    }

    /// Tells the writer what was taken. Whether it waits and has to be woken; true once for each
    /// wait.
    pub fn report(&mut self) -> bool {
        if self.taken == self.reported {
            return false;
        }
        self.reported = self.taken;
        let Ok(taken) = self.memory.taken() else { return false };
        taken.store(self.taken, Ordering::Release);
        self.memory.clear(WAITS)
    }

    /// Whether a frame, or something else, is there.
    pub fn is_ready(&self) -> bool {
        self.memory.header(place(self.taken)).is_ok_and(|header| header.load(Ordering::Relaxed) != 0)
    }

    /// Asks the writer to wake this side for a frame, or no more. To be followed by a fence, and
    /// by a look whether one is there.
    pub fn sleeps(&self, sleeps: bool) {
        self.memory.set(SLEEPS, sleeps.into());
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use platform::random::Random;

    use super::*;
    use crate::memory::sealed_file;

    fn ring() -> (Writer, Reader) {
        let file = sealed_file("ring", LEN).unwrap();
        let map = || Mapping::new(&file, LEN).unwrap();
        (Writer::new(map()), Reader::new(map()))
    }

    fn take(reader: &mut Reader) -> Option<Vec<u8>> {
        let len = reader.next().unwrap()?;
        let mut frame = vec![0; len];
        reader.read(&mut frame).unwrap();
        reader.advance(len);
        Some(frame)
    }

    #[test]
    fn frames_of_all_sizes_cross_whole_and_in_order_for_many_rounds() {
        let (mut writer, mut reader) = ring();
        let mut random = Random::new(1);
        let (mut sent, mut came, mut bytes) = (0_u64, 0_u64, 0);
        while bytes < 20 * RING {
            let most = if random.rarely(8) { MAX_FRAME as u64 - 13 } else { 300 };
            let len = 14 + random.below(most) as usize;
            // One after the other: the ring is full now and then, and empty now and then.
            while writer.push(&vec![sent as u8; len]).unwrap() {
                sent += 1;
                bytes += len;
            }
            for _ in 0..random.below(400) {
                let Some(frame) = take(&mut reader) else { break };
                assert!(frame.iter().all(|&byte| byte == came as u8), "frame {came}");
                came += 1;
            }
        }
        while take(&mut reader).is_some() {
            came += 1;
        }
        reader.report();
        assert_eq!((came, writer.is_empty()), (sent, Ok(true)));
    }

    #[test]
    fn a_ring_takes_a_frame_of_any_size_while_it_says_so() {
        let (mut writer, mut reader) = ring();
        for round in 0..40 {
            while writer.has_room().unwrap() {
                assert!(writer.push(&vec![0; MAX_FRAME - round]).unwrap());
            }
            assert!(!writer.is_half_free().unwrap());
            // What is left is less than two frames of the largest size.
            assert!(take(&mut reader).is_some());
            while take(&mut reader).is_some() {}
            reader.report();
            assert!(writer.has_room().unwrap() && writer.is_empty().unwrap());
        }
    }

    #[test]
    fn a_frame_that_ends_with_the_ring_needs_no_skip() {
        let (mut writer, mut reader) = ring();
        let len = LINE - HEADER;
        for _ in 0..3 * RING / LINE {
            assert!(writer.push(&[1; LINE - HEADER]).unwrap());
            assert_eq!(take(&mut reader).map(|frame| frame.len()), Some(len));
        }
        assert_eq!(writer.written, 3 * RING as u64);
    }

    /// Words that a peer writes, one at a time; the other side goes on or gives up, and does not
    /// leave the memory.
    #[test]
    fn headers_that_cannot_be_are_found() {
        for (header, found) in [
            (0, Ok(None)),
            (13, Ok(Some(13))),
            (MAX_FRAME as u32, Ok(Some(MAX_FRAME))),
            (MAX_FRAME as u32 + 1, Err(Broken)),
            (SKIP - 1, Err(Broken)),
            (1 << 31, Err(Broken)),
            (SKIP, Err(Broken)),
        ] {
            let (writer, mut reader) = ring();
            writer.memory.header(0).unwrap().store(header, Ordering::Relaxed);
            assert_eq!(reader.next(), found, "{header:#x}");
        }
        // A frame that would cross the ring's end.
        let (writer, mut reader) = ring();
        reader.taken = (RING - LINE) as u64;
        writer.memory.header(RING - LINE).unwrap().store(LINE as u32, Ordering::Relaxed);
        assert_eq!(reader.next(), Err(Broken));
        // A skip to a header that skips again.
        writer.memory.header(RING - LINE).unwrap().store(SKIP, Ordering::Relaxed);
        writer.memory.header(0).unwrap().store(SKIP, Ordering::Relaxed);
        assert_eq!(reader.next(), Err(Broken));
    }

    #[test]
    fn a_reader_that_claims_what_cannot_be_is_found() {
        for taken in [1, 63, 128, u64::MAX, RING as u64, 1 << 63] {
            let (mut writer, reader) = ring();
            assert!(writer.push(&[1; 40]).unwrap());
            reader.memory.taken().unwrap().store(taken, Ordering::Relaxed);
            assert_eq!(writer.is_empty(), Err(Broken), "{taken}");
        }
        let (mut writer, reader) = ring();
        assert!(writer.push(&[1; 40]).unwrap());
        reader.memory.taken().unwrap().store(64, Ordering::Relaxed);
        assert_eq!(writer.is_empty(), Ok(true));
        reader.memory.taken().unwrap().store(0, Ordering::Relaxed);
        assert_eq!(writer.is_empty(), Err(Broken), "what was taken cannot come back");
    }

    #[test]
    fn who_sleeps_is_woken_once() {
        let (mut writer, mut reader) = ring();
        assert!(!writer.has_to_wake());
        reader.sleeps(true);
        assert!(!reader.is_ready());
        assert!(writer.push(&[1; 40]).unwrap());
        assert!(writer.has_to_wake() && !writer.has_to_wake() && reader.is_ready());
        writer.wait();
        assert!(take(&mut reader).is_some());
        assert!(reader.report() && !reader.report());
        reader.sleeps(true);
        reader.sleeps(false);
        assert!(!writer.has_to_wake());
    }

    /// Two threads sleep whenever they have nothing to do, and only each wakes the other.
    #[test]
    fn no_wake_up_is_lost() {
        const FRAMES: u32 = if cfg!(miri) { 100 } else { 200_000 };
        let (mut writer, mut reader) = ring();
        let (to_reader, reader_wakes) = std::sync::mpsc::channel();
        let (to_writer, writer_wakes) = std::sync::mpsc::channel();
        let writing = thread::spawn(move || {
            for n in 0..FRAMES {
                let frame = vec![n as u8; 14 + n as usize % 5000];
                while !writer.push(&frame).unwrap() {
                    if writer.has_to_wake() {
                        to_reader.send(()).unwrap();
                    }
                    writer.wait();
                    fence(Ordering::SeqCst);
                    if !writer.is_half_free().unwrap() {
                        writer_wakes.recv().unwrap();
                    }
                }
                if writer.has_to_wake() {
                    to_reader.send(()).unwrap();
                }
            }
        });
        for n in 0..FRAMES {
            let len = loop {
                if let Some(len) = reader.next().unwrap() {
                    break len;
                }
                if reader.report() {
                    let _ = to_writer.send(());
                }
                reader.sleeps(true);
                fence(Ordering::SeqCst);
                if !reader.is_ready() {
                    reader_wakes.recv().unwrap();
                }
                reader.sleeps(false);
            };
            let mut frame = vec![0; len];
            reader.read(&mut frame).unwrap();
            assert!(frame.iter().all(|&byte| byte == n as u8));
            if reader.advance(len) {
                let _ = to_writer.send(());
            }
        }
        writing.join().unwrap();
    }
}

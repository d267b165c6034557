//! QEMU's framing of a stream: each frame follows its length, which is four bytes, big-endian.

use std::collections::VecDeque;

use crate::MAX_FRAME;

/// The size of a length.
const PREFIX: usize = 4;
/// The most bytes of one read: some of the largest frames, or many ordinary ones.
const READ: usize = 1 << 18;
/// The most bytes in a writer.
const WRITE: usize = 1 << 20;
/// A writer with this many bytes writes before it is flushed.
const DUE: usize = 1 << 16;

const _: () = assert!(READ >= PREFIX + MAX_FRAME && WRITE >= PREFIX + MAX_FRAME);

/// A length that no frame can have. The bytes after it cannot be split into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadLength;

/// Finds the frames in a stream.
#[derive(Debug)]
pub(crate) struct Reader {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Reader {
    pub fn new() -> Reader {
        Reader { buffer: vec![0; READ].into(), start: 0, end: 0 }
    }

    /// The next whole frame. It may be empty or short, but not longer than the largest.
    pub fn next(&mut self) -> Result<Option<&[u8]>, BadLength> {
        let bytes = &self.buffer[self.start..self.end];
        let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let len = u32::from_be_bytes(*prefix) as usize;
        if len > MAX_FRAME {
            return Err(BadLength);
        }
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        self.start += PREFIX + len;
        Ok(Some(frame))
    }

    /// Where to read to. Never empty after [`Reader::next`] has returned `None`.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start.., 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// This many bytes were read into the [`Reader::room`].
    pub fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.buffer.len());
    }

    /// Whether the stream is in the middle of a frame.
    pub fn is_in_frame(&self) -> bool {
        self.start != self.end
    }
}

/// A bounded queue of frames as a stream.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: VecDeque<u8>,
    /// The end of each frame in it, in bytes since the stream began.
    ends: VecDeque<u64>,
    written: u64,
}

impl Writer {
    /// Whether a frame of any size fits.
    pub fn has_room(&self) -> bool {
        self.bytes.len() + PREFIX + MAX_FRAME <= WRITE
    }

    /// Adds a frame; false if it does not fit.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        self.push_within(WRITE, frame)
    }

    /// Adds a frame if half of the queue stays free; returns whether it did.
    pub fn push_to_half(&mut self, frame: &[u8]) -> bool {
        self.push_within(WRITE / 2, frame)
    }

    fn push_within(&mut self, limit: usize, frame: &[u8]) -> bool {
        if self.bytes.len() + PREFIX + frame.len() > limit {
            return false;
        }
        self.bytes.extend((frame.len() as u32).to_be_bytes());
        self.bytes.extend(frame);
        self.ends.push_back(self.written + self.bytes.len() as u64);
        true
    }

    /// What to write next.
    pub fn pending(&self) -> Option<&[u8]> {
        let (bytes, _) = self.bytes.as_slices();
        (!bytes.is_empty()).then_some(bytes)
    }

    /// This many bytes were written.
    pub fn written(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes.len());
        self.bytes.drain(..bytes);
        self.written += bytes as u64;
        while self.ends.front().is_some_and(|&end| end <= self.written) {
            self.ends.pop_front();
        }
    }

    /// The number of frames that are not written, or only in part.
    pub fn frames(&self) -> u64 {
        self.ends.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn is_due(&self) -> bool {
        self.bytes.len() >= DUE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(reader: &mut Reader, bytes: &[u8]) {
        reader.room()[..bytes.len()].copy_from_slice(bytes);
        reader.filled(bytes.len());
    }

    #[test]
    fn a_stream_that_comes_byte_by_byte_has_the_same_frames() {
        let mut writer = Writer::default();
        let frames: Vec<Vec<u8>> = [60, 0, 14, 1500].iter().map(|&len| vec![len as u8; len]).collect();
        for frame in &frames {
            assert!(writer.push(frame));
        }
        let (mut reader, mut found) = (Reader::new(), Vec::new());
        while let Some(bytes) = writer.pending() {
            feed(&mut reader, &bytes[..1]);
            writer.written(1);
            while let Some(frame) = reader.next().unwrap() {
                found.push(frame.to_vec());
            }
        }
        assert_eq!(found, frames);
        assert!(!reader.is_in_frame() && writer.is_empty());
    }

    #[test]
    fn frames_that_cross_the_end_of_the_buffer_are_whole() {
        let mut reader = Reader::new();
        let mut stream: VecDeque<u8> = VecDeque::new();
        let mut found = 0_usize;
        for n in 0..40_u8 {
            stream.extend((MAX_FRAME as u32).to_be_bytes());
            stream.extend(std::iter::repeat_n(n, MAX_FRAME));
            while !stream.is_empty() {
                let room = reader.room();
                assert!(!room.is_empty());
                let len = room.len().min(stream.len()).min(50_000);
                for (to, from) in room.iter_mut().zip(stream.drain(..len)) {
                    *to = from;
                }
                reader.filled(len);
                while let Some(frame) = reader.next().unwrap() {
                    assert!(frame.len() == MAX_FRAME && frame.iter().all(|&byte| usize::from(byte) == found));
                    found += 1;
                }
            }
        }
        assert_eq!(found, 40);
    }

    #[test]
    fn the_largest_frame_has_a_good_length_and_one_byte_more_is_bad() {
        let mut reader = Reader::new();
        feed(&mut reader, &(MAX_FRAME as u32).to_be_bytes());
        assert_eq!(reader.next(), Ok(None));
        let mut reader = Reader::new();
        feed(&mut reader, &(MAX_FRAME as u32 + 1).to_be_bytes());
        assert_eq!(reader.next(), Err(BadLength));
        assert_eq!(reader.next(), Err(BadLength), "it stays so");
    }

    #[test]
    fn a_writer_is_bounded_and_counts_the_frames_that_are_not_wholly_written() {
        let mut writer = Writer::default();
        let pushed = (0..2000).filter(|_| writer.push(&[5; 1000])).count();
        assert_eq!(pushed, WRITE / 1004);
        assert!(!writer.has_room() && writer.is_due());
        assert_eq!(writer.frames(), pushed as u64);
        writer.written(1003);
        assert_eq!(writer.frames(), pushed as u64);
        writer.written(1);
        assert_eq!(writer.frames(), pushed as u64 - 1);
        writer.written(WRITE / 4);
        assert!(!writer.push_to_half(&[5; 14]));
        writer.written(WRITE / 4);
        assert!(writer.push_to_half(&[5; 14]) && writer.push(&[5; 1000]));
        writer.written(usize::MAX);
        assert!(writer.push_to_half(&[5; 1000]));
        writer.written(usize::MAX);
        assert!(writer.is_empty() && writer.has_room() && writer.frames() == 0);
    }
}

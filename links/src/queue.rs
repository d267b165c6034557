//! A bounded queue of frames.

use std::collections::VecDeque;

/// The most frames in a queue.
const FRAMES: usize = 4096;
/// The most bytes of frames in a queue.
pub(crate) const BYTES: usize = 1 << 20;

/// A bounded queue of frames.
#[derive(Debug, Default)]
pub(crate) struct FrameQueue {
    frames: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl FrameQueue {
    /// Whether a frame of `len` bytes fits.
    pub fn has_room(&self, len: usize) -> bool {
        self.frames.len() < FRAMES && self.bytes + len <= BYTES
    }

    /// Adds a frame; false if it does not fit.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let fits = self.has_room(frame.len());
        if fits {
            self.bytes += frame.len();
            self.frames.push_back(frame.into());
        }
        fits
    }

    /// Takes the oldest frame.
    pub fn pop(&mut self) -> Option<Box<[u8]>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn clear(&mut self) {
        *self = FrameQueue::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_bounded_in_frames_and_in_bytes() {
        let mut queue = FrameQueue::default();
        assert_eq!((0..FRAMES + 5).filter(|_| queue.push(&[0; 14])).count(), FRAMES);
        assert!(!queue.has_room(14));
        queue.clear();
        assert_eq!((0..100).filter(|_| queue.push(&[0; BYTES / 10])).count(), 10);
        assert!(!queue.has_room(BYTES));
        assert_eq!(queue.pop().map(|frame| frame.len()), Some(BYTES / 10));
        assert!(queue.push(&[0; BYTES / 10]));
    }
}

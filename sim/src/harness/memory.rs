//! Memory for messages. What is not in use holds [`POISON`], so an access at the wrong time shows:
//! a write changes the poison, and a read moves it to where something else is expected.

use std::sync::Arc;

use platform::random::Random;
use platform::{DmaBuffer, Platform};

use super::wrong::{Must, Step, hold};

/// What unused memory holds.
pub(crate) const POISON: u8 = 0xa5;
/// Pieces are multiples of so many bytes, and aligned to them.
const GRAIN: usize = 64;

/// A piece of a [`Slab`].
#[derive(Debug)]
pub(crate) struct Slot {
    /// Where in the slab it begins.
    pub(crate) at: usize,
    /// Bytes that were asked for; the rest up to a whole grain stays poison.
    pub(crate) len: usize,
}

impl Slot {
    fn grains(&self) -> std::ops::Range<usize> {
        self.at / GRAIN..(self.at + self.len) / GRAIN + 1
    }
}

/// A buffer of which pieces are taken.
pub(crate) struct Slab {
    pub(crate) buffer: Arc<DmaBuffer>,
    taken: Vec<bool>,
}

/// A buffer full of poison.
pub(crate) fn poisoned(platform: &Arc<dyn Platform>, len: usize) -> Step<Arc<DmaBuffer>> {
    let buffer = DmaBuffer::new(platform, len, 4096).must("a buffer")?;
    buffer.write(0, &vec![POISON; len]).must("poison")?;
    Ok(Arc::new(buffer))
}

/// The bytes of message `word`.
pub(crate) fn pattern(word: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(word);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.word().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Where two ranges of bytes differ first.
pub(crate) fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b)?;
    let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    let (is, should) = (found[at], expected[at]);
    Some(format!(
        "{wrong} of {} bytes, the first is byte {at}: {is:#04x} instead of {should:#04x}",
        found.len()
    ))
}

impl Slab {
    pub(crate) fn new(platform: &Arc<dyn Platform>, len: usize) -> Step<Slab> {
        let buffer = poisoned(platform, len)?;
        Ok(Slab { buffer, taken: vec![false; len / GRAIN] })
    }

    /// The first fit.
    fn find(&self, count: usize, range: std::ops::Range<usize>) -> Option<usize> {
        let mut run = 0;
        for n in range {
            run = if self.taken[n] { 0 } else { run + 1 };
            if run == count {
                return Some(n + 1 - count);
            }
        }
        None
    }

    /// Takes a piece, which must still hold poison; `None` if there is no room within the range.
    pub(crate) fn take(&mut self, len: usize, within: std::ops::Range<usize>) -> Step<Option<Slot>> {
        let count = len / GRAIN + 1;
        let found = self.find(count, within.start / GRAIN..within.end / GRAIN);
        let Some(first) = found else { return Ok(None) };
        self.taken[first..first + count].fill(true);
        self.untouched(first * GRAIN, count * GRAIN)?;
        Ok(Some(Slot { at: first * GRAIN, len }))
    }

    fn untouched(&self, at: usize, len: usize) -> Step {
        let found = self.bytes(at, len)?;
        let at_first = found.iter().position(|&byte| byte != POISON);
        hold!(
            at_first.is_none(),
            "memory was written while nothing owned it: byte {} of a slab",
            at + at_first.unwrap_or(0)
        );
        Ok(())
    }

    /// Releases a piece, whose end must be untouched.
    pub(crate) fn give(&mut self, slot: Slot) -> Step {
        let grains = slot.grains();
        let end = grains.end * GRAIN;
        self.untouched(slot.at + slot.len, end - slot.at - slot.len)?;
        self.write(slot.at, &vec![POISON; slot.len])?;
        self.taken[grains].fill(false);
        Ok(())
    }

    /// Checks all memory that is not in use.
    pub(crate) fn check(&self) -> Step {
        let mut first = 0;
        while first < self.taken.len() {
            let taken = self.taken[first];
            let end =
                self.taken[first..].iter().position(|&t| t != taken).map_or(self.taken.len(), |n| first + n);
            if !taken {
                self.untouched(first * GRAIN, (end - first) * GRAIN)?;
            }
            first = end;
        }
        Ok(())
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Step<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.buffer.read(at, &mut bytes).must("reading a slab")?;
        Ok(bytes)
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Step {
        self.buffer.write(at, bytes).must("writing a slab")
    }
}

//! The memory that the device is given, and memory around it that the device must not change.
//!
//! The device can reach all memory of the guest, so even a hostile driver must not give it by
//! accident an address that belongs to the kernel. So there are two parts. From one the device only
//! reads: rings that the driver writes, and lists. That part is filled with words that are not
//! addresses. To the other part the device writes: its own rings, and payload. It never reads an
//! address or a length from there.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use common::{Failure, Trying};
use platform::{DmaBuffer, Platform};

use platform::random::Random;

const MIB: usize = 1 << 20;
/// Rings that the driver writes, at the beginning of the memory that the device reads: each begins
/// in the first half.
const RINGS: usize = 8 * MIB;
/// How far the longest ring extends beyond that: a receive queue of 2^16 entries of 32 segments.
const RING_MARGIN: usize = 36 * MIB;
/// Lists, after the rings: each begins in the first half.
const LISTS: usize = 4 * MIB;
/// How far the longest list extends beyond that.
const LIST_MARGIN: usize = 8 * MIB;
const READ: usize = RINGS + RING_MARGIN + LISTS + LIST_MARGIN;
/// What the device writes begins in the first bytes of its own part; the longest completion queue
/// extends up to the margin.
const WRITTEN: usize = 8 * MIB;
const WRITTEN_MARGIN: usize = 40 * MIB;
/// Memory before and after.
const CANARY: usize = 4 * MIB;

/// What a ring is for.
#[derive(Clone, Copy)]
pub enum Ring {
    Send,
    Receive,
    Command,
}

/// All memory that takes part.
pub struct Memory {
    canaries: [DmaBuffer; 2],
    read: DmaBuffer,
    written: DmaBuffer,
    seed: u64,
}

/// A word that is neither an address nor a length: the guest has no memory at such a high address.
pub fn beyond(random: &mut Random) -> u64 {
    random.word() | 1 << 56
}

/// The word at an index of a canary.
const fn mark(seed: u64, place: usize) -> u64 {
    Random::new(seed ^ place as u64).word() | 1 << 56
}

impl Memory {
    pub fn new(platform: &Arc<dyn Platform>, seed: u64) -> Result<Memory, Failure> {
        let buffer = |bytes| {
            DmaBuffer::new(platform, bytes, MIB)
                .map_err(|_| "too little memory: --memory 512M")
                .trying("memory")
        };
        let first = buffer(CANARY)?;
        let (read, written) = (buffer(READ)?, buffer(WRITTEN + WRITTEN_MARGIN)?);
        let memory = Memory { canaries: [first, buffer(CANARY)?], read, written, seed };
        memory.each_marked(|at, word| {
            word.store(mark(seed, at), Ordering::Relaxed);
            Ok(())
        })?;
        let mut random = Random::new(seed);
        for (from, bytes) in [(0, RINGS), (RINGS + RING_MARGIN, LISTS)] {
            let words = memory.read.slice().get(from, bytes).trying("memory")?;
            for word in words.atomic_u64s().trying("memory")? {
                word.store(beyond(&mut random), Ordering::Relaxed);
            }
        }
        Ok(memory)
    }

    /// Visits the words that the device must not change: the canaries, and the memory after the
    /// rings and the lists.
    fn each_marked(
        &self,
        mut visit: impl FnMut(usize, &AtomicU64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let read = self.read.slice();
        let behind = |from: usize, to: usize| read.get(from, to - from).trying("memory");
        let slices = [
            self.canaries[0].slice(),
            self.canaries[1].slice(),
            behind(RINGS, RINGS + RING_MARGIN)?,
            behind(RINGS + RING_MARGIN + LISTS, READ)?,
        ];
        let mut at = 0;
        for slice in slices {
            for word in slice.atomic_u64s().trying("memory")? {
                visit(at, word)?;
                at += 1;
            }
        }
        Ok(())
    }

    /// Checks that the device has not changed these words.
    pub fn check(&self) -> Result<(), Failure> {
        self.each_marked(|at, word| match word.load(Ordering::Relaxed) {
            found if found == mark(self.seed, at) => Ok(()),
            found => Err(Failure::new(format_args!("the device has written {found:#x} to word {at}"))),
        })
    }

    /// The bus address of a ring that the driver writes. Each kind has its own area, so that a word
    /// means the same in whichever ring the device reads it.
    pub fn ring(&self, random: &mut Random, kind: Ring) -> u64 {
        let area = RINGS / 8;
        self.read.bus() + (kind as usize * area) as u64 + 8192 * random.below((area / 8192) as u64)
    }

    /// The bus address of a list, of addresses or of pairs of address and length.
    pub fn list(&self, random: &mut Random, pairs: bool) -> u64 {
        let page = 2 * random.below((LISTS / 16384) as u64) + u64::from(pairs);
        self.read.bus() + (RINGS + RING_MARGIN) as u64 + 4096 * page
    }

    /// The bus address of memory that the device writes.
    pub fn payload(&self, random: &mut Random) -> u64 {
        self.written.bus() + 4096 * random.below((WRITTEN / 4096) as u64)
    }

    /// Writes words of a ring or list.
    pub fn write(&self, bus: u64, words: &[u64]) {
        write(&self.read, bus, words);
    }

    /// Writes words of memory that the device writes: rings and descriptors of virtual interfaces.
    pub fn write_payload(&self, bus: u64, words: &[u64]) {
        write(&self.written, bus, words);
    }

    /// A word of the memory that the device writes.
    pub fn word(&self, bus: u64) -> u64 {
        let at = usize::try_from(bus.wrapping_sub(self.written.bus())).unwrap_or(usize::MAX);
        self.written.slice().atomic_u64(at).map_or(0, |word| word.load(Ordering::Acquire))
    }
}

/// Writes words to a buffer; ignores those outside it.
fn write(buffer: &DmaBuffer, bus: u64, words: &[u64]) {
    let at = usize::try_from(bus.wrapping_sub(buffer.bus())).unwrap_or(usize::MAX);
    for (i, value) in words.iter().enumerate() {
        if let Ok(word) = buffer.slice().atomic_u64(at.saturating_add(8 * i)) {
            word.store(*value, Ordering::Release);
        }
    }
}

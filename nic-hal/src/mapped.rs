//! Views of shared memory kept beside their owner, so that the data path looks nothing up.
//!
//! The only unsafe code of this crate: each type here holds what it points into, and hands out borrows of itself.
#![expect(unsafe_code, reason = "pointers into memory that the same value keeps alive")]

use alloc::sync::Arc;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};

use platform::{Device, SharedSlice};

use crate::Error;
use crate::memory::{DeviceMemory, Lease};

/// The register file and the device that it belongs to.
pub(crate) struct Registers {
    device: Arc<dyn Device>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer is into the registers of `device`, which are shared memory, and Device is Send + Sync.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    pub(crate) fn new(device: Arc<dyn Device>) -> Result<Arc<Registers>, Error> {
        let slice = device.registers();
        if slice.len() < nic_abi::registers::SIZE {
            return Err(Error::BadLimit("register file"));
        }
        let len = slice.len();
        let base = NonNull::new(slice.as_ptr()).ok_or(Error::BadLimit("register file"))?;
        Ok(Arc::new(Registers { device, base, len }))
    }

    /// All registers.
    pub(crate) fn slice(&self) -> SharedSlice<'_> {
        // SAFETY: `Device::registers` lent this memory for as long as the device is borrowed, and a shared borrow
        // of it lasts as long as `self.device`: nobody can borrow it mutably while this Arc exists.
        unsafe { SharedSlice::from_raw(self.base, self.len) }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Wakes the device.
    #[cold]
    #[inline(never)]
    pub(crate) fn kick(&self) {
        self.device.kick();
    }
}

/// One 32-bit register.
pub(crate) struct Word {
    word: NonNull<AtomicU32>,
    _registers: Arc<Registers>,
}

// SAFETY: it points to an atomic in memory that `_registers` keeps, and Registers is Send + Sync.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    pub(crate) fn new(registers: &Arc<Registers>, offset: usize) -> Result<Word, Error> {
        let word = registers.slice().atomic_u32(offset).map_err(|_| Error::OutOfRange("register"))?;
        Ok(Word { word: NonNull::from(word), _registers: registers.clone() })
    }

    #[inline]
    pub(crate) fn get(&self) -> &AtomicU32 {
        // SAFETY: made from a reference that is valid for as long as `_registers`.
        unsafe { self.word.as_ref() }
    }
}

/// An array of 32-bit registers, a power of two long.
pub(crate) struct WordArray {
    words: NonNull<AtomicU32>,
    mask: u32,
    _registers: Arc<Registers>,
}

// SAFETY: as for Word.
unsafe impl Send for WordArray {}
// SAFETY: as for Word.
unsafe impl Sync for WordArray {}

impl WordArray {
    pub(crate) fn new(registers: &Arc<Registers>, offset: usize, len: u32) -> Result<WordArray, Error> {
        let out = Error::OutOfRange("register array");
        if !len.is_power_of_two() {
            return Err(out);
        }
        let slice = registers.slice().get(offset, len as usize * 4).map_err(|_| out)?;
        let words = slice.atomic_u32s().map_err(|_| out)?;
        let words = NonNull::from(words).cast();
        Ok(WordArray { words, mask: len - 1, _registers: registers.clone() })
    }

    /// The register at `index` modulo the length.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &AtomicU32 {
        // SAFETY: the mask keeps the index below the length, and the memory lives as long as `_registers`.
        unsafe { self.words.add((index & self.mask) as usize).as_ref() }
    }
}

/// A ring of entries of `W` words, a power of two of them, in memory that the device uses.
pub(crate) struct Ring<const W: usize> {
    entries: NonNull<[AtomicU64; W]>,
    mask: u32,
    memory: DeviceMemory,
}

// SAFETY: it points to atomics in `memory`, which is Send + Sync.
unsafe impl<const W: usize> Send for Ring<W> {}
// SAFETY: as above.
unsafe impl<const W: usize> Sync for Ring<W> {}

impl<const W: usize> Ring<W> {
    /// Bytes of a ring of `1 << log` entries.
    pub(crate) fn bytes(log: u32) -> usize {
        (W * 8) << log
    }

    /// A ring of `1 << log` entries in `memory`.
    pub(crate) fn new(memory: DeviceMemory, log: u32) -> Result<Ring<W>, Error> {
        let out = Error::OutOfRange("ring size");
        if log > 30 || memory.buffer().len() < Self::bytes(log) {
            return Err(out);
        }
        let words = memory.buffer().slice().get(0, Self::bytes(log)).map_err(|_| out)?;
        let words = words.atomic_u64s().map_err(|_| out)?;
        let entries = NonNull::from(words).cast();
        Ok(Ring { entries, mask: (1 << log) - 1, memory })
    }

    /// The entry at the free-running index `index`.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &[AtomicU64; W] {
        // SAFETY: the mask keeps the index below the number of entries, `new` checked that they all lie in
        // `memory`, aligned, and the array has the layout of its words.
        unsafe { self.entries.add((index & self.mask) as usize).as_ref() }
    }

    /// Whether a pass over the ring begins at the free-running index `index`.
    #[inline]
    pub(crate) fn is_start(&self, index: u32) -> bool {
        index & self.mask == 0
    }

    /// The number of entries.
    pub(crate) fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// Where the ring is for the device.
    pub(crate) fn bus(&self) -> u64 {
        self.memory.buffer().bus()
    }

    pub(crate) fn lease(&self) -> &Lease {
        self.memory.lease()
    }
}

/// Words in memory that the device uses.
pub(crate) struct Words {
    words: NonNull<[AtomicU64]>,
    memory: DeviceMemory,
}

// SAFETY: as for Ring.
unsafe impl Send for Words {}
// SAFETY: as for Ring.
unsafe impl Sync for Words {}

impl Words {
    pub(crate) fn new(memory: DeviceMemory) -> Result<Words, Error> {
        let words = memory.buffer().slice().atomic_u64s().map_err(|_| Error::OutOfRange("ring size"))?;
        let words = NonNull::from(words);
        Ok(Words { words, memory })
    }

    #[inline]
    pub(crate) fn get(&self) -> &[AtomicU64] {
        // SAFETY: made from a reference to the whole of `memory`, which lives as long as `self`.
        unsafe { self.words.as_ref() }
    }

    pub(crate) fn bus(&self) -> u64 {
        self.memory.buffer().bus()
    }
}

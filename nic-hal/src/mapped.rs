//! Views of shared memory, kept beside their owner so that the data path looks nothing up.
//!
//! The only unsafe code of this crate. Each type owns what it points into, and lends borrows of
//! itself.
#![expect(unsafe_code, reason = "pointers into memory that the same value keeps alive")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nic_abi::doorbell::RECORD_BYTES;
use nic_abi::registers::{FIFO, FIFO_ENTRIES, FIFO_EVENT, FIFO_TAIL, SIZE};
use nic_abi::vi;
use platform::{SharedSlice, heap};

use crate::memory::{DeviceMemory, Lease};
use crate::{Error, Transport};

/// The register file, and the transport that reaches it.
pub(crate) struct Registers {
    transport: Arc<dyn Transport>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer is into the register file of `transport`, which is shared memory, and
// Transport is Send + Sync.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> Result<Arc<Registers>, Error> {
        let slice = transport.registers();
        if slice.len() < SIZE || !slice.as_ptr().addr().is_multiple_of(8) {
            return Err(Error::BadLimit("register file"));
        }
        let len = slice.len();
        let base = NonNull::new(slice.as_ptr()).ok_or(Error::BadLimit("register file"))?;
        heap::arc(Registers { transport, base, len }).map_err(|_| Error::OutOfMemory)
    }

    /// A word of the status page.
    pub(crate) fn status(&self, offset: usize) -> u32 {
        self.slice().atomic_u32(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// All registers.
    pub(crate) fn slice(&self) -> SharedSlice<'_> {
        // SAFETY: `Transport::registers` lent this memory for as long as the transport is borrowed.
        // A shared borrow of it may last as long as `self.transport`, since no mutable borrow is
        // possible while this Arc exists.
        unsafe { SharedSlice::from_raw(self.base, self.len) }
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    /// Wakes the device.
    #[cold]
    #[inline(never)]
    pub(crate) fn kick(&self) {
        self.transport.kick();
    }
}

/// A queue's record: two words side by side.
pub(crate) struct Record {
    words: NonNull<[AtomicU32; 2]>,
    _registers: Arc<Registers>,
}

// SAFETY: it points to atomics in memory that `_registers` keeps, and Registers is Send + Sync.
unsafe impl Send for Record {}
// SAFETY: as above.
unsafe impl Sync for Record {}

impl Record {
    pub(crate) fn new(registers: &Arc<Registers>, offset: usize) -> Result<Record, Error> {
        let out = Error::OutOfRange("register");
        let slice = registers.slice().get(offset, RECORD_BYTES).map_err(|_| out)?;
        let words = slice.atomic_u32s().map_err(|_| out)?;
        const { assert!(RECORD_BYTES == size_of::<[AtomicU32; 2]>()) };
        Ok(Record { words: NonNull::from(words).cast(), _registers: registers.clone() })
    }

    #[inline(always)]
    pub(crate) fn words(&self) -> &[AtomicU32; 2] {
        // SAFETY: `new` checked that both words are aligned and in memory that lives as long as
        // `_registers`.
        unsafe { self.words.as_ref() }
    }
}

/// The registers of the doorbell FIFO, which are at the same place in every register file.
#[derive(Clone)]
pub(crate) struct FifoRegisters {
    base: NonNull<u8>,
    registers: Arc<Registers>,
}

// SAFETY: as for Record.
unsafe impl Send for FifoRegisters {}
// SAFETY: as for Record.
unsafe impl Sync for FifoRegisters {}

const _: () = {
    assert!(FIFO_TAIL.is_multiple_of(4) && FIFO_EVENT.is_multiple_of(4) && FIFO.is_multiple_of(4));
    assert!(FIFO_TAIL + 4 <= SIZE && FIFO_EVENT + 4 <= SIZE);
    assert!(FIFO_ENTRIES.is_power_of_two() && FIFO + FIFO_ENTRIES as usize * 4 <= SIZE);
};

impl FifoRegisters {
    pub(crate) fn new(registers: &Arc<Registers>) -> FifoRegisters {
        FifoRegisters { base: registers.base, registers: registers.clone() }
    }

    /// The index of the next entry.
    #[inline(always)]
    pub(crate) fn tail(&self) -> &AtomicU32 {
        // SAFETY: the offset is aligned and within the register file, as the assertions above and
        // `Registers::new` check. The memory lives as long as `registers`.
        unsafe { self.base.byte_add(FIFO_TAIL).cast().as_ref() }
    }

    /// The index for which the device sleeps.
    #[inline(always)]
    pub(crate) fn event(&self) -> &AtomicU32 {
        // SAFETY: as in `tail`.
        unsafe { self.base.byte_add(FIFO_EVENT).cast().as_ref() }
    }

    /// The entries.
    #[inline(always)]
    pub(crate) fn entries(&self) -> &[AtomicU32; FIFO_ENTRIES as usize] {
        // SAFETY: as in `tail`; the assertions above also check that all entries are within the
        // register file.
        unsafe { self.base.byte_add(FIFO).cast().as_ref() }
    }

    pub(crate) fn registers(&self) -> &Arc<Registers> {
        &self.registers
    }
}

/// Writes a word as two halves, which need not be joined for that. No other thread may access the
/// word at that moment: it belongs to an entry or a cell that is not published.
#[inline(always)]
pub(crate) fn store_halves(word: &AtomicU64, lower: u32, upper: u32) {
    // SAFETY: the halves lie within the word, aligned, and atomics may be written through a shared
    // reference. The caller sees to it that no access to the whole word is concurrent.
    let halves = unsafe { &*core::ptr::from_ref(word).cast::<[AtomicU32; 2]>() };
    let [first, second] = if cfg!(target_endian = "little") { [lower, upper] } else { [upper, lower] };
    halves[0].store(first, Ordering::Relaxed);
    halves[1].store(second, Ordering::Relaxed);
}

/// Entries of a ring and values of a circle that lie side by side, neither beyond the end of its
/// memory: a run of pairs that needs no index.
pub(crate) struct Run<'a, const W: usize, T> {
    entry: NonNull<[AtomicU64; W]>,
    value: NonNull<T>,
    /// The number of the next pair, and that after the last one.
    next: u32,
    end: u32,
    owners: PhantomData<(&'a [AtomicU64], &'a [T])>,
}

impl<const W: usize, T> Clone for Run<'_, W, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<const W: usize, T> Copy for Run<'_, W, T> {}

impl<'a, const W: usize, T> Run<'a, W, T> {
    /// The pairs of the entries from index `entry` on and of the values from index `first` on, by
    /// which they are numbered: at most up to the number `end`.
    #[inline(always)]
    pub(crate) fn new(ring: &'a Ring<W>, entry: u32, values: &'a Circle<T>, first: u32, end: u32) -> Self {
        let (entries, places) = (ring.from(entry), values.from(first));
        let most = entries.len().min(places.len()).min(end.wrapping_sub(first) as usize);
        let end = first.wrapping_add(most as u32);
        let (entry, value) = (NonNull::from(entries).cast(), NonNull::from(places).cast());
        Run { entry, value, next: first, end, owners: PhantomData }
    }

    /// The number of the next pair.
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.next
    }

    /// The next pair and its number, if the run has one.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<(u32, &'a [AtomicU64; W], &'a T)> {
        if self.next == self.end {
            return None;
        }
        // SAFETY: `next` is not `end`, so both pointers are at elements of the slices of `new`,
        // which are borrowed for `'a`.
        unsafe { Some((self.next, self.entry.as_ref(), self.value.as_ref())) }
    }

    /// Leaves the pair that [`Run::peek`] returned behind.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        if self.next == self.end {
            return;
        }
        self.next = self.next.wrapping_add(1);
        // SAFETY: both pointers were at elements, so they get to the next ones, or to the ends of
        // the slices.
        unsafe {
            self.entry = self.entry.add(1);
            self.value = self.value.add(1);
        }
    }
}

/// A power of two of values in the driver's own memory, found by free-running index.
pub struct Circle<T> {
    places: Box<[T]>,
    mask: u32,
}

impl<T: Default> Circle<T> {
    /// At least `least` values, and at most 2^30.
    pub(crate) fn new(least: u32) -> Result<Circle<T>, Error> {
        let count = least.clamp(1, 1 << 30).next_power_of_two();
        let mut places = Vec::new();
        places.try_reserve_exact(count as usize).map_err(|_| Error::OutOfMemory)?;
        places.resize_with(count as usize, T::default);
        Ok(Circle { places: places.into_boxed_slice(), mask: count - 1 })
    }
}

impl<T: Clone> Circle<T> {
    /// Copies of a value: `1 << log` of them, and 2^30 at most.
    pub fn filled(log: u32, value: &T) -> Result<Circle<T>, Error> {
        let count = 1u32 << log.min(30);
        let mut places = Vec::new();
        places.try_reserve_exact(count as usize).map_err(|_| Error::OutOfMemory)?;
        places.resize(count as usize, value.clone());
        Ok(Circle { places: places.into_boxed_slice(), mask: count - 1 })
    }
}

impl<T> Circle<T> {
    /// The value at the free-running index `index`.
    #[inline(always)]
    pub fn at(&self, index: u32) -> &T {
        // SAFETY: there are `mask + 1` places, a number that does not change.
        unsafe { self.places.get_unchecked((index & self.mask) as usize) }
    }

    /// The values from the free-running index `index` on, to the end of the memory.
    #[inline(always)]
    fn from(&self, index: u32) -> &[T] {
        let first = (index & self.mask) as usize;
        // SAFETY: as in `at`.
        unsafe { self.places.get_unchecked(first..) }
    }

    /// As [`Circle::at`].
    pub fn at_mut(&mut self, index: u32) -> &mut T {
        let place = (index & self.mask) as usize;
        &mut self.places[place]
    }

    /// The number of values.
    pub fn count(&self) -> u32 {
        self.mask + 1
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
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> &[AtomicU64; W] {
        // SAFETY: the mask keeps the index below the number of entries. `new` checked that all
        // entries lie in `memory`, aligned. An array has the layout of its words.
        unsafe { self.entries.add((index & self.mask) as usize).as_ref() }
    }

    /// The entries from the free-running index `index` on, to the end of the ring.
    #[inline(always)]
    pub(crate) fn from(&self, index: u32) -> &[[AtomicU64; W]] {
        let first = index & self.mask;
        // SAFETY: as in `at`; and there are `mask + 1` entries.
        unsafe {
            let first_entry = self.entries.add(first as usize);
            core::slice::from_raw_parts(first_entry.as_ptr(), (self.mask + 1 - first) as usize)
        }
    }

    /// The number of entries.
    pub(crate) fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// The ring's bus address.
    pub(crate) fn bus(&self) -> u64 {
        self.memory.buffer().bus()
    }

    pub(crate) fn lease(&self) -> &Lease {
        self.memory.lease()
    }
}

/// An entry of a virtual interface's ring: [`vi::Post`].
#[repr(C)]
pub(crate) struct PostWords {
    pub(crate) address: AtomicU64,
    pub(crate) handle: AtomicU32,
    pub(crate) mark: AtomicU32,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<PostWords>() == vi::ENTRY && vi::RING_HEAD.is_multiple_of(vi::ENTRY));
    assert!(offset_of!(PostWords, address) == offset_of!(vi::Post, address));
    assert!(offset_of!(PostWords, handle) == offset_of!(vi::Post, handle));
    assert!(offset_of!(PostWords, mark) == offset_of!(vi::Post, mark));
};

/// A ring of a virtual interface, a power of two of entries behind a head.
pub(crate) struct ViRing<T> {
    head: NonNull<AtomicU32>,
    entries: NonNull<PostWords>,
    /// What the driver keeps of each entry.
    kept: Box<[T]>,
    mask: u32,
    memory: DeviceMemory,
}

// SAFETY: as for Ring.
unsafe impl<T: Send> Send for ViRing<T> {}
// SAFETY: as for Ring.
unsafe impl<T: Sync> Sync for ViRing<T> {}

impl<T: Default> ViRing<T> {
    /// Bytes of a ring of `1 << log` entries.
    pub(crate) fn bytes(log: u32) -> usize {
        vi::RING_HEAD + (vi::ENTRY << log)
    }

    /// A ring of `1 << log` entries in `memory`.
    pub(crate) fn new(memory: DeviceMemory, log: u32) -> Result<ViRing<T>, Error> {
        let out = Error::OutOfRange("ring size");
        if log > 24 || memory.buffer().len() < Self::bytes(log) {
            return Err(out);
        }
        let words = memory.buffer().slice().get(0, Self::bytes(log)).map_err(|_| out)?;
        let (head, entries) = words.atomic_u64s().map_err(|_| out)?.split_at(vi::RING_HEAD / 8);
        let (head, entries) = (NonNull::from(head).cast(), NonNull::from(entries).cast());
        let kept = Circle::new(1 << log)?.places;
        Ok(ViRing { head, entries, kept, mask: (1 << log) - 1, memory })
    }

    /// The word that arms the queue.
    #[inline]
    pub(crate) fn arm(&self) -> &AtomicU32 {
        // SAFETY: it is the first word of `memory`, which `new` checked to be aligned.
        unsafe { self.head.as_ref() }
    }

    /// The entry at the free-running index `index`, and what the driver keeps of it.
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> (&PostWords, &T) {
        let place = (index & self.mask) as usize;
        // SAFETY: as in `Ring::at`. The words of an entry are atomics, as those of the slice were.
        // There are `mask + 1` values, a number that does not change.
        unsafe { (self.entries.add(place).as_ref(), self.kept.get_unchecked(place)) }
    }

    /// As [`ViRing::at`].
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, index: u32) -> (&PostWords, &mut T) {
        let place = (index & self.mask) as usize;
        // SAFETY: as in `at`.
        unsafe { (self.entries.add(place).as_ref(), self.kept.get_unchecked_mut(place)) }
    }

    /// The ring's bus address.
    pub(crate) fn bus(&self) -> u64 {
        self.memory.buffer().bus()
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

    #[inline(always)]
    pub(crate) fn get(&self) -> &[AtomicU64] {
        // SAFETY: `new` made the pointer from a reference to all of `memory`, which lives as long
        // as `self`.
        unsafe { self.words.as_ref() }
    }

    pub(crate) fn bus(&self) -> u64 {
        self.memory.buffer().bus()
    }

    pub(crate) fn lease(&self) -> &Lease {
        self.memory.lease()
    }
}

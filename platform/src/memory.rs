//! Memory that two parties write at the same time: views of it, and buffers.
//!
//! A [`SharedSlice`] is a bounds-checked window onto memory that a device, or a guest, may change
//! at any moment. No reference to its bytes is ever formed: bytes are copied in and out, words are
//! atomics. Do not trust a value read from it before it is checked, and do not read it twice for
//! one decision.
#![expect(unsafe_code, reason = "the one place where shared memory becomes safe to use")]

use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::{OutOfMemory, Platform};

/// An access was out of bounds. Nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds;

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("outside of the memory")
    }
}

impl core::error::Error for OutOfBounds {}

/// A run of bus addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusExtent {
    /// The first bus address.
    pub addr: u64,
    /// How many bytes are contiguous from there.
    pub len: u64,
}

/// A window onto shared memory. Copying the window copies no memory.
#[derive(Clone, Copy)]
pub struct SharedSlice<'a> {
    ptr: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a [AtomicU8]>,
}

// SAFETY: all access is by copies and atomics, which any thread may make at any time.
unsafe impl Send for SharedSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedSlice<'_> {}

impl fmt::Debug for SharedSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSlice({:p}, {} bytes)", self.ptr, self.len)
    }
}

impl<'a> SharedSlice<'a> {
    /// A window onto `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// For `'a` the memory is mapped, readable and writable, and this program reaches it only
    /// through windows like this one, raw copies or atomics, never through a plain reference.
    pub const unsafe fn from_raw(ptr: NonNull<u8>, len: usize) -> SharedSlice<'a> {
        SharedSlice { ptr, len, memory: PhantomData }
    }

    /// The number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the window has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address in this program's address space.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The window of `len` bytes that begins `offset` bytes in.
    #[inline]
    pub fn get(&self, offset: usize, len: usize) -> Result<SharedSlice<'a>, OutOfBounds> {
        if offset > self.len || len > self.len - offset {
            return Err(OutOfBounds);
        }
        // SAFETY: offset <= self.len, so the pointer stays within, or one past, the same memory.
        let ptr = unsafe { self.ptr.add(offset) };
        Ok(SharedSlice { ptr, len, memory: PhantomData })
    }

    /// Copies `into.len()` bytes out, from `offset`.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.get(offset, into.len())?;
        // SAFETY: `from` is in bounds, and a `&mut` cannot overlap memory that no reference may
        // point into.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        // What was copied is what the caller checks and uses: from here on the compiler has to
        // assume that the memory has changed, so it cannot read a byte again instead.
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Copies `from` in, to `offset`.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfBounds> {
        let into = self.get(offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), into.as_ptr(), from.len()) };
        Ok(())
    }

    /// Sets all bytes to `value`.
    pub fn fill(&self, value: u8) {
        // SAFETY: in bounds by the invariant of the type.
        unsafe { core::ptr::write_bytes(self.as_ptr(), value, self.len) };
    }

    /// Copies all bytes to `into`, which must have the same length; the two may overlap.
    #[inline]
    pub fn copy_to(&self, into: &SharedSlice<'_>) -> Result<(), OutOfBounds> {
        if self.len != into.len {
            return Err(OutOfBounds);
        }
        // SAFETY: both are in bounds by the invariant of the type; `copy` allows overlap.
        unsafe { core::ptr::copy(self.as_ptr(), into.as_ptr(), self.len) };
        Ok(())
    }

    /// The 32-bit word at `offset`, which must be aligned.
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> Result<&'a AtomicU32, OutOfBounds> {
        let word = self.get(offset, 4)?;
        if !word.as_ptr().cast::<AtomicU32>().is_aligned() {
            return Err(OutOfBounds);
        }
        // SAFETY: in bounds for 'a, aligned, and shared memory may be reached by atomics.
        Ok(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) })
    }

    /// The 64-bit word at `offset`, which must be aligned.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&'a AtomicU64, OutOfBounds> {
        let words = self.get(offset, 8)?.atomic_u64s()?;
        words.first().ok_or(OutOfBounds)
    }

    /// The whole window as 64-bit words: it must be aligned and a multiple of 8 long.
    #[inline]
    pub fn atomic_u64s(&self) -> Result<&'a [AtomicU64], OutOfBounds> {
        let ptr = self.as_ptr().cast::<AtomicU64>();
        if !ptr.is_aligned() || !self.len.is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        // SAFETY: in bounds for 'a, aligned, and shared memory may be reached by atomics.
        Ok(unsafe { core::slice::from_raw_parts(ptr, self.len / 8) })
    }

    /// The whole window as 32-bit words: it must be aligned and a multiple of 4 long.
    pub fn atomic_u32s(&self) -> Result<&'a [AtomicU32], OutOfBounds> {
        let ptr = self.as_ptr().cast::<AtomicU32>();
        if !ptr.is_aligned() || !self.len.is_multiple_of(4) {
            return Err(OutOfBounds);
        }
        // SAFETY: as in `atomic_u64s`.
        Ok(unsafe { core::slice::from_raw_parts(ptr, self.len / 4) })
    }
}

impl<'a> From<&'a [AtomicU64]> for SharedSlice<'a> {
    fn from(words: &'a [AtomicU64]) -> SharedSlice<'a> {
        // SAFETY: the words are borrowed for 'a, and a shared reference to atomics allows only
        // atomic accesses and windows.
        unsafe { SharedSlice::from_raw(NonNull::from(words).cast(), size_of_val(words)) }
    }
}

/// What [`Platform::alloc_dma`] returns: where the memory is for the program and for a device.
#[derive(Debug)]
pub struct RawDma {
    /// The address for the program.
    pub virt: NonNull<u8>,
    /// The address for a device.
    pub bus: u64,
    /// The size in bytes, at least what was asked for.
    pub len: usize,
}

// SAFETY: it is an address, and owns the memory at that address.
unsafe impl Send for RawDma {}
// SAFETY: as above.
unsafe impl Sync for RawDma {}

/// Owned, zeroed memory that a device can reach. Dropping it frees the memory.
///
/// Drop it only when no device uses it. The owners of rings and regions keep their buffer until the
/// device has answered the command that destroys the object. If the device never answers, they
/// [abandon](DmaBuffer::abandon) the memory.
pub struct DmaBuffer {
    raw: Option<RawDma>,
    len: usize,
    is_abandoned: AtomicBool,
    platform: Arc<dyn Platform>,
}

impl fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuffer(bus {:#x}, {} bytes)", self.bus(), self.len)
    }
}

impl DmaBuffer {
    /// Allocates `len` bytes, aligned to `align` (a power of two).
    pub fn new(platform: &Arc<dyn Platform>, len: usize, align: usize) -> Result<DmaBuffer, OutOfMemory> {
        let raw = platform.alloc_dma(len.max(1), align)?;
        let is_abandoned = AtomicBool::new(false);
        Ok(DmaBuffer { raw: Some(raw), len, is_abandoned, platform: platform.clone() })
    }

    /// From now on dropping the buffer does not free the memory, so that nothing else gets it: a
    /// device may write to it at any later time.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn raw(&self) -> &RawDma {
        self.raw.as_ref().expect("taken only by drop")
    }

    /// The size in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bus address of its first byte.
    pub fn bus(&self) -> u64 {
        self.raw().bus
    }

    /// The virtual address of its first byte.
    #[inline]
    pub fn addr(&self) -> usize {
        self.raw().virt.as_ptr() as usize
    }

    /// The memory itself.
    #[inline]
    pub fn slice(&self) -> SharedSlice<'_> {
        // SAFETY: the platform promised valid memory until `free_dma`, which only drop calls; this
        // type never forms a reference to the bytes.
        unsafe { SharedSlice::from_raw(self.raw().virt, self.len) }
    }

    /// Copies `into.len()` bytes out, from `offset`.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.slice().read(offset, into)
    }

    /// Copies `from` in, to `offset`.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfBounds> {
        self.slice().write(offset, from)
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take()
            && !*self.is_abandoned.get_mut()
        {
            // SAFETY: it came from this platform, is released once, and no view outlives `self`.
            unsafe { self.platform.free_dma(raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::sync::atomic::Ordering;
    use std::format;
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    /// Sixteen words, and all their bytes are different.
    fn words() -> Vec<AtomicU64> {
        (0..16u64)
            .map(|n| AtomicU64::new(u64::from_le_bytes(core::array::from_fn(|i| 8 * n as u8 + i as u8))))
            .collect()
    }

    fn bytes(slice: &SharedSlice<'_>) -> Vec<u8> {
        let mut bytes = std::vec![0; slice.len()];
        slice.read(0, &mut bytes).expect("all of it");
        bytes
    }

    #[test]
    fn a_part_is_within_the_window_or_refused() {
        let words = words();
        let slice = SharedSlice::from(&words[..]);
        assert_eq!((slice.len(), slice.is_empty()), (128, false));
        for (offset, len) in [(0, 128), (0, 0), (128, 0), (127, 1), (5, 100)] {
            let part = slice.get(offset, len).expect("within");
            assert_eq!((part.len(), part.is_empty()), (len, len == 0));
            assert_eq!(part.as_ptr(), slice.as_ptr().wrapping_add(offset));
            let expected: Vec<u8> = (offset..offset + len).map(|n| n as u8).collect();
            assert_eq!(bytes(&part), expected);
        }
        for (offset, len) in [(0, 129), (128, 1), (129, 0), (1, usize::MAX), (usize::MAX, 1), (100, 29)] {
            assert_eq!(slice.get(offset, len).err(), Some(OutOfBounds), "{len} bytes at {offset}");
        }
    }

    #[test]
    fn bytes_are_copied_in_and_out_and_nothing_beyond() {
        let words = words();
        let slice = SharedSlice::from(&words[..]);
        slice.write(3, &[0xf1, 0xf2, 0xf3]).expect("within");
        let mut expected: Vec<u8> = (0..128).collect();
        expected[3..6].copy_from_slice(&[0xf1, 0xf2, 0xf3]);
        assert_eq!(bytes(&slice), expected);
        let mut two = [0; 2];
        slice.read(5, &mut two).expect("within");
        assert_eq!(two, [0xf3, 6]);
        assert_eq!(slice.write(127, &[0; 2]), Err(OutOfBounds));
        assert_eq!(slice.read(127, &mut two), Err(OutOfBounds));
        assert_eq!((bytes(&slice), two), (expected.clone(), [0xf3, 6]));
        slice.get(10, 20).expect("within").fill(0xee);
        expected[10..30].fill(0xee);
        assert_eq!(bytes(&slice), expected);
    }

    #[test]
    fn windows_of_one_length_are_copied_also_where_they_overlap() {
        let words = words();
        let slice = SharedSlice::from(&words[..]);
        let (from, into) = (slice.get(0, 64).expect("within"), slice.get(8, 64).expect("within"));
        from.copy_to(&into).expect("one length");
        let expected: Vec<u8> = (0..8).chain(0..64).chain(72..128).collect();
        assert_eq!(bytes(&slice), expected);
        for len in [63, 65, 0] {
            assert_eq!(from.copy_to(&slice.get(8, len).expect("within")), Err(OutOfBounds));
        }
        assert_eq!(bytes(&slice), expected);
    }

    #[test]
    fn words_are_those_at_aligned_places() {
        let words = words();
        let slice = SharedSlice::from(&words[..]);
        assert_eq!(slice.atomic_u32(4).expect("aligned").load(Ordering::Relaxed), 0x0706_0504_u32.to_le());
        assert_eq!(
            slice.atomic_u64(8).expect("aligned").load(Ordering::Relaxed),
            words[1].load(Ordering::Relaxed)
        );
        for offset in [1, 2, 126, 128, usize::MAX] {
            assert!(slice.atomic_u32(offset).is_err(), "a word at {offset}");
        }
        for offset in [1, 4, 121, 128, usize::MAX] {
            assert!(slice.atomic_u64(offset).is_err(), "a word at {offset}");
        }
        let part = slice.get(8, 24).expect("within");
        assert_eq!(
            (part.atomic_u64s().expect("aligned").len(), part.atomic_u32s().expect("aligned").len()),
            (3, 6)
        );
        part.atomic_u64s().expect("aligned")[2].store(7, Ordering::Relaxed);
        assert_eq!(
            part.atomic_u32s().expect("aligned")[4].load(Ordering::Relaxed),
            if cfg!(target_endian = "little") { 7 } else { 0 }
        );
        assert_eq!(words[3].load(Ordering::Relaxed), 7);
        let (longer, later) = (slice.get(8, 26).expect("within"), slice.get(10, 16).expect("within"));
        assert!(longer.atomic_u64s().is_err() && longer.atomic_u32s().is_err());
        assert!(later.atomic_u64s().is_err() && later.atomic_u32s().is_err());
        assert!(slice.get(12, 16).expect("within").atomic_u64s().is_err());
        assert!(slice.get(12, 16).expect("within").atomic_u32s().is_ok());
    }

    #[test]
    fn errors_say_what_happened() {
        assert_eq!(OutOfBounds.to_string(), "outside of the memory");
        assert_eq!(OutOfMemory.to_string(), "out of memory");
        let words = words();
        assert!(format!("{:?}", SharedSlice::from(&words[..])).ends_with("128 bytes)"));
    }
}

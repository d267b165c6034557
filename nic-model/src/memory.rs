//! How the device reaches the driver's memory.
//!
//! All DMA goes through [`GuestMemory::get`], which checks that the whole run of bus addresses is
//! memory. The driver can change that memory at any time, so the device copies a structure once and
//! checks the copy.

use core::sync::atomic::{AtomicU64, Ordering};

use platform::SharedSlice;
use zerocopy::{FromBytes, IntoBytes};

/// Some of the bus addresses are not memory that the device may reach. Nothing was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bus address out of reach")]
pub struct DmaError;

/// Memory of the machine that a NIC is plugged into, by bus address.
pub trait GuestMemory {
    /// The memory at bus addresses `addr .. addr + len`, if all of that is reachable and contiguous
    /// for the device. Any `addr` and `len` may come, sums that overflow included; `len` 0 is
    /// always reachable.
    fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError>;

    /// Copies `into.len()` bytes out.
    #[inline]
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaError> {
        self.get(addr, into.len() as u64)?.read(0, into).map_err(|_| DmaError)
    }

    /// Copies `from` in.
    #[inline]
    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaError> {
        self.get(addr, from.len() as u64)?.write(0, from).map_err(|_| DmaError)
    }

    /// Copies a structure out.
    #[inline]
    fn load<T: FromBytes + IntoBytes>(&self, addr: u64) -> Result<T, DmaError>
    where
        Self: Sized,
    {
        let mut value = T::new_zeroed();
        self.read(addr, value.as_mut_bytes())?;
        Ok(value)
    }

    /// The aligned 64-bit words of a ring's entry.
    #[inline]
    fn words(&self, addr: u64, words: usize) -> Result<&[AtomicU64], DmaError> {
        self.get(addr, 8 * words as u64)?.atomic_u64s().map_err(|_| DmaError)
    }

    /// Writes an entry whose last word carries the phase: the other words first, the last one with
    /// release, so that a driver that sees the phase sees the entry and all that the device wrote
    /// before.
    #[inline]
    fn publish<const N: usize>(&self, addr: u64, entry: [u64; N]) -> Result<(), DmaError> {
        let words = self.words(addr, N)?;
        let Some((last, head)) = words.split_last() else { return Ok(()) };
        for (word, value) in head.iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
        last.store(entry[N - 1], Ordering::Release);
        Ok(())
    }
}

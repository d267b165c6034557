//! What Ferrovia asks of any host: memory that a device can reach, time, waiting, threads and
//! interrupts.
//!
//! To embed the stack in a kernel, implement [`Platform`] once for that kernel, and
//! `nic_hal::Transport` for the way to a NIC. The crates of the stack are `no_std` + `alloc` and
//! use the host only through this crate, so the same code runs in our kernel, in an ordinary
//! process and in other kernels.
//!
//! It is no platform itself: `kernel` has that of our kernel, `host` that of an ordinary process,
//! and `sim` that of the simulation. It has no devices: how a NIC is reached is in `nic-hal`, and
//! disks are in `block`.
//!
//! Unsafe code is confined to [`memory`] (views of shared memory), [`Lent`] (memory that is taken
//! back), [`pages`] and [`Packed`] (platforms built on another), [`privilege`] (one `unsafe fn`
//! with an empty body), [`sync`]'s yield hook and its mutex.
#![no_std]

extern crate alloc;

mod chunks;
mod closable;
pub mod extents;
pub mod gate;
mod growing;
pub mod heap;
mod lent;
pub mod memory;
#[cfg(ferrovia_model)]
pub mod model;
mod mutex;
mod packed;
pub mod pages;
pub mod planted;
pub mod privilege;
pub mod random;
mod secret;
mod signal;
pub mod sleep_lock;
pub mod sync;
pub mod time;
pub mod use_count;

use alloc::boxed::Box;
pub use chunks::Chunks;
pub use closable::{Closable, ClosableGuard};
pub use gate::Gate;
pub use growing::Growing;
pub use lent::{Lendable, Lent};
pub use memory::{BusExtent, DmaBuffer, OutOfBounds, RawDma, SharedSlice};
pub use packed::Packed;
pub use privilege::Privileged;
pub use secret::Secret;
pub use signal::Signal;
pub use sleep_lock::SleepLock;
pub use time::Instant;

use sync::atomic::AtomicU32;

/// Why a wait returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The word no longer had the expected value, another thread called [`Platform::wake`], or the
    /// wake was spurious: look at the condition again.
    Woken,
    /// The deadline passed first.
    TimedOut,
}

/// A resource of the host ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl core::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for OutOfMemory {}

/// The services of a host kernel or operating system.
///
/// # Safety
///
/// An implementer promises that memory returned by [`Platform::alloc_dma`] is valid for reads and
/// writes, is reached only by its holder and by devices until [`Platform::free_dma`], and that
/// [`Platform::translate`] names only memory that stays mapped to the same bus address for as long
/// as the caller keeps it registered.
///
/// Memory that is never given back ([`DmaBuffer::abandon`]) is not used again as long as a device
/// may reach it, also when the platform itself is dropped.
#[expect(unsafe_code, reason = "an implementer makes promises about memory")]
pub unsafe trait Platform: Send + Sync {
    /// Time since some fixed moment; never runs backwards.
    fn now(&self) -> Instant;

    /// Sleeps until `word` is woken, unless it no longer holds `expected`; `None` waits without
    /// end.
    ///
    /// The comparison and going to sleep are one step with respect to [`Platform::wake`]. May
    /// return spuriously. Must not be called from an interrupt handler.
    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake;

    /// Wakes every thread that waits on `word`. May be called from an interrupt handler.
    fn wake(&self, word: &AtomicU32);

    /// Starts a thread. The platform chooses its stack.
    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory>;

    /// The number of the running thread: unique among living threads, and never 0.
    fn current_thread(&self) -> u64;

    /// Allocates zeroed memory that devices can reach, contiguous in bus addresses.
    ///
    /// The platform may round `len` up. `align` is a power of two.
    /// Use [`DmaBuffer::new`], which frees by itself.
    fn alloc_dma(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory>;

    /// Releases memory that [`Platform::alloc_dma`] returned.
    ///
    /// # Safety
    ///
    /// `raw` came from this platform's `alloc_dma`, is released once, and is no longer used by a
    /// device or a view.
    unsafe fn free_dma(&self, raw: RawDma);

    /// The bus address of a virtual address, and how many bytes from there on are contiguous in
    /// both address spaces; `None` if no device can reach the address.
    ///
    /// In memory that [`Platform::alloc_dma`] returned, the extent reaches to the end of that
    /// memory. In other memory a platform may return shorter extents than it could. But each extent
    /// takes an element of a region's list, and the NIC bounds the number of elements.
    fn translate(&self, virt: usize) -> Option<BusExtent>;

    /// A word that no outsider can guess, from a generator for keys; another one each time.
    /// `None` if the host has no such generator; then the identifiers that peers see are only as
    /// good as [`Secret::gather`] says.
    fn entropy(&self) -> Option<u64> {
        None
    }
}

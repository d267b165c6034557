//! What Ferrovia asks of any host: memory that a device can reach, time, waiting, threads and interrupts.
//!
//! Whoever embeds the stack implements [`Platform`] once for their kernel and hands each NIC over as a
//! [`Device`]. Everything above is `no_std` + `alloc` and asks only this crate, so the same code runs in
//! our kernel, in an ordinary process and in other people's kernels.
//!
//! Unsafe code is confined to [`memory`] (views of shared memory), to [`pages`] (a platform upon another), to [`privilege`] (one `unsafe fn` without
//! a body to speak of), to [`sync`]'s yield hook and to its mutex.
#![no_std]

extern crate alloc;

pub mod memory;
#[cfg(ferrovia_model)]
pub mod model;
mod mutex;
pub mod pages;
pub mod privilege;
mod signal;
pub mod sleep_lock;
pub mod sync;
pub mod time;
pub mod use_count;

use alloc::boxed::Box;
pub use memory::{BusExtent, DmaBuffer, OutOfBounds, RawDma, SharedSlice};
pub use privilege::Privileged;
pub use signal::Signal;
pub use sleep_lock::SleepLock;
pub use time::Instant;

use sync::atomic::AtomicU32;

/// Why a wait returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The word no longer had the expected value, somebody called [`Platform::wake`], or the wake was
    /// spurious: look at the condition again.
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
/// An implementer promises that memory returned by [`Platform::alloc_dma`] is valid for reads and writes,
/// is aliased by nobody but the holder and devices until [`Platform::free_dma`], and that
/// [`Platform::translate`] names only memory that stays mapped to the same bus address for as long as the
/// caller keeps it registered.
#[expect(unsafe_code, reason = "an implementer makes promises about memory")]
pub unsafe trait Platform: Send + Sync {
    /// Time since some fixed moment; never runs backwards.
    fn now(&self) -> Instant;

    /// Sleeps until `word` is woken, unless it no longer holds `expected`; `None` waits without end.
    ///
    /// The comparison and going to sleep are one step with respect to [`Platform::wake`]. May return
    /// spuriously. Must not be called from an interrupt handler.
    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wake;

    /// Wakes every thread that waits on `word`. May be called from an interrupt handler.
    fn wake(&self, word: &AtomicU32);

    /// Starts a thread; its stack is the platform's affair.
    fn spawn(&self, name: &str, main: Box<dyn FnOnce() + Send>) -> Result<(), OutOfMemory>;

    /// Names the running thread; no two living threads share a number, and 0 is never one.
    fn current_thread(&self) -> u64;

    /// Allocates zeroed memory that devices can reach, contiguous in bus addresses.
    ///
    /// `len` is rounded up as the platform likes; `align` is a power of two.
    /// Use [`DmaBuffer::new`], which frees by itself.
    fn alloc_dma(&self, len: usize, align: usize) -> Result<RawDma, OutOfMemory>;

    /// Gives back what [`Platform::alloc_dma`] returned.
    ///
    /// # Safety
    ///
    /// `raw` came from this platform's `alloc_dma`, is given back once, and neither a device nor a view
    /// uses it any more.
    unsafe fn free_dma(&self, raw: RawDma);

    /// The bus address of a virtual address, and how many bytes from there on are contiguous in both;
    /// `None` if no device can reach it.
    ///
    /// The extent of memory that [`Platform::alloc_dma`] returned goes on to the end of that memory. An
    /// extent of other memory may end sooner than it could, but each costs an element of a region's list,
    /// whose number the NIC bounds.
    fn translate(&self, virt: usize) -> Option<BusExtent>;
}

/// What runs when a device's interrupt arrives: in interrupt context on a kernel, so it may only touch
/// atomics and call [`Platform::wake`].
pub type InterruptHandler = Box<dyn Fn() + Send + Sync>;

/// One PCI function (or its like) as the platform hands it to a driver.
pub trait Device: Send + Sync {
    /// The device's shared register file.
    fn registers(&self) -> SharedSlice<'_>;

    /// Wakes a device that said it sleeps. The only access that traps.
    fn kick(&self);

    /// How many interrupt vectors the function has.
    fn vectors(&self) -> u16;

    /// Routes a vector to `handler`, replacing an earlier one; `None` masks it.
    ///
    /// When the call returns, the replaced handler runs no more. False if there is no such vector.
    fn set_vector(&self, vector: u16, handler: Option<InterruptHandler>) -> bool;
}

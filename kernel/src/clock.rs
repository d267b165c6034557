//! The clock: the time-stamp counter.
//!
//! The CPUs' counters are assumed to run together, as they do on every machine and monitor of this
//! decade. `calibrate` measures their frequency during boot; until then it counts as 1
//! GHz.
#![expect(unsafe_code, reason = "reads the time-stamp counter")]

use core::sync::atomic::{AtomicU64, Ordering};

use platform::Instant;

/// The counter's value when the monitor entered the kernel. The entry stub in `boot` writes it
/// before any Rust code runs; afterwards it is only read.
pub(crate) static ENTRY_TSC: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per tick of the counter, as a fraction of 2^32.
static NS_PER_TICK: AtomicU64 = AtomicU64::new(1 << 32);
static HZ: AtomicU64 = AtomicU64::new(1_000_000_000);

/// The counter's present value.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: every CPU with long mode has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The counter's value when the monitor entered the kernel.
#[inline]
pub(crate) fn entry_tsc() -> u64 {
    ENTRY_TSC.load(Ordering::Relaxed)
}

/// The counter's frequency, in Hz.
pub fn tsc_hz() -> u64 {
    HZ.load(Ordering::Relaxed)
}

/// Sets what was measured: the frequency, and nanoseconds per tick as a fraction of 2^32.
pub(crate) fn set_rate(hz: u64, ns_per_tick: u64) {
    HZ.store(hz, Ordering::Relaxed);
    NS_PER_TICK.store(ns_per_tick, Ordering::Relaxed);
}

/// The time since the monitor entered the kernel.
#[inline]
pub fn now() -> Instant {
    at(tsc())
}

/// The time at which the counter had the value `tsc`.
#[inline]
pub fn at(tsc: u64) -> Instant {
    let ticks = tsc.saturating_sub(entry_tsc());
    Instant::from_nanos(scale(ticks, NS_PER_TICK.load(Ordering::Relaxed)))
}

/// `value` times `fraction` / 2^32.
#[inline]
pub(crate) fn scale(value: u64, fraction: u64) -> u64 {
    ((u128::from(value) * u128::from(fraction)) >> 32) as u64
}

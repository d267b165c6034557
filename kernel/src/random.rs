//! Random numbers: for keys where the CPU has a generator, otherwise for seeds only.
#![expect(unsafe_code, reason = "reads the time-stamp counter")]

use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::instructions::random::RdRand;

static STATE: AtomicU64 = AtomicU64::new(0);

/// A random number from the CPU's generator, if it has one.
pub(crate) fn entropy() -> Option<u64> {
    let rdrand = RdRand::new()?;
    // The generator may have no entropy for a moment; the manual advises ten attempts.
    (0..10).find_map(|_| rdrand.get_u64())
}

/// A random number from the CPU's generator, or without one, from its time-stamp counter.
pub fn random_u64() -> u64 {
    if let Some(value) = entropy() {
        return value;
    }
    // SAFETY: every CPU with long mode has the counter.
    let tsc = unsafe { core::arch::x86_64::_rdtsc() };
    let mut z = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(tsc);
    // splitmix64
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

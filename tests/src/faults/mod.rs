//! Faults that no call causes directly: full EVDs, asynchronous errors, the death of the device.

use crate::Test;

mod asynchronous;
mod death;
pub(crate) mod overflow;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[overflow::TESTS, asynchronous::TESTS];

/// Tests that kill the device; they run after all others.
pub(crate) const KILLING: &[&[Test]] = &[
    death::TESTS,
    crate::dat::KILLING,
    crate::via::KILLING,
    crate::via_ia::KILLING,
    crate::iwarp_ia::KILLING,
];

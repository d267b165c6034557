//! Local memory: protection zones, regions over buffers and over I/O buffer lists, shared and
//! non-coherent regions.

use crate::Test;

mod arguments;
mod coherency;
pub(crate) mod iobl;
mod lmr;
mod lmr_life;
mod lmr_modify;
mod pz;
mod sharing;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    pz::TESTS,
    lmr::TESTS,
    lmr_modify::TESTS,
    lmr_life::TESTS,
    arguments::TESTS,
    sharing::TESTS,
    coherency::TESTS,
    iobl::TESTS,
];

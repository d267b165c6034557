//! The VIPL face: virtual interfaces on their three levels of reliability.

mod basics;
pub(crate) mod world;

use crate::Test;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[basics::TESTS];

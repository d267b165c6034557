//! Work requests: shared receive queues, completion flags, and the status with which each failure
//! completes.

use crate::Test;

mod dto_flags;
pub(crate) mod errors;
pub(crate) mod srq;
mod srq_resize;
mod statuses;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] =
    &[srq::TESTS, srq_resize::TESTS, errors::TESTS, statuses::TESTS, dto_flags::TESTS];

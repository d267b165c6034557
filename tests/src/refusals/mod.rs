//! What is refused: calls without privilege, bad arguments, and what an interface does not offer.

use crate::Test;

mod bad_input;
mod limits;
mod privilege;
mod services;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[privilege::TESTS, bad_input::TESTS, services::TESTS, limits::TESTS];

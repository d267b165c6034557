//! RC endpoints: their attributes, their states, and what ends with them.

use crate::Test;

mod ep;
mod ep_life;
mod ep_modify;
mod ep_states;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[ep::TESTS, ep_states::TESTS, ep_modify::TESTS, ep_life::TESTS];

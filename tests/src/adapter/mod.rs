//! The interface adapter: its info, its handles and contexts, paths and names, and the numbers that
//! the specification fixes.

use crate::Test;

mod context;
mod event;
mod global;
mod ia;
mod ia_info;
mod litmus;
mod names;
mod path;
mod status;
mod values;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    litmus::TESTS,
    values::TESTS,
    event::TESTS,
    status::TESTS,
    ia::TESTS,
    ia_info::TESTS,
    global::TESTS,
    context::TESTS,
    names::TESTS,
    path::TESTS,
];

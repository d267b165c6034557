//! Many threads at once, on the same objects (chapter 4.2).

use crate::Test;

mod data_path;
mod frees;
mod objects;
mod regions;
mod routines;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] =
    &[data_path::TESTS, objects::TESTS, routines::TESTS, regions::TESTS, frees::TESTS];

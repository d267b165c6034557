//! Remote access to memory: linking and unlinking regions and RMRs, atomic operations, and Sends
//! that unlink.

use crate::Test;

mod atomic;
mod limited;
pub(crate) mod link;
mod link_arguments;
mod link_ends;
mod link_errors;
mod link_pending;
mod link_rules;
pub(crate) mod rmr;
mod rmr_errors;
mod unlink_remote;
mod unlink_remote_data;
mod windows;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    link_rules::TESTS,
    link::TESTS,
    link_arguments::TESTS,
    link_errors::TESTS,
    link_ends::TESTS,
    link_pending::TESTS,
    rmr::TESTS,
    rmr_errors::TESTS,
    windows::TESTS,
    limited::TESTS,
    atomic::TESTS,
    unlink_remote::TESTS,
    unlink_remote_data::TESTS,
];

//! Datagrams: address handles, UD endpoints, UD service requests, and connection management
//! messages that no IT-API consumer can send.

use crate::Test;

mod address_handle;
mod rejections;
pub(crate) mod sidr;
mod sidr_paths;
pub(crate) mod ud;
mod ud_data;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] =
    &[address_handle::TESTS, ud::TESTS, ud_data::TESTS, sidr::TESTS, rejections::TESTS, sidr_paths::TESTS];

//! The conformance suite: tests of IT-API 2.1 and DAT 2.0, and of what they stand on, tied to the
//! rows of tests/catalogue.
//!
//! The same tests run in the kernel under QEMU (targets/suite) and on the host against the device
//! model in one process (tests/tests/host.rs). They need only the platform, two IAs that reach each
//! other, and the token of privilege. They wait for events and assert no times.
//!
//! - [`mod@check`]: failures with file and line
//! - [`fixture`]: the IAs of a test, and helpers that make objects on them
//! - [`thread`]: threads that are joined with a deadline
//! - [`transport`]: the transports over which the tests run, and what tests need of one
//! - [`mod@run`]: which tests run, and the run of one test
//! - a folder for each subject, with a module for each area: the rows that a test shows stand
//!   beside its code in the area's `TESTS`, and the folder's `TESTS` lists its areas
//!
//! Above each test a comment says what must hold. A test names rows in a short form, a page and its
//! rows (`"it_lmr_query B04 F01-F03"`), and a row only if the test would fail without what the row
//! asks for. Where a machine gives it no way to fail, it returns
//! [`not_shown`], and does not count there.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

use alloc::string::String;

mod adapter;
mod connections;
mod dat;
mod data;
mod datagrams;
mod endpoints;
mod events;
mod faults;
mod iwarp_ia;
mod memory;
mod refusals;
mod remote;
mod requests;
mod rows;
mod support;
mod threads;
mod via;
mod via_ia;

pub use check::{Failure, Outcome, format_message, not_shown, refused, some, unequal};
pub use fixture::{Fixture, Interface, Setup};
pub use run::run;
pub use support::{check, fixture, run, thread, transport};
pub use transport::Transport;

/// One test.
#[derive(Clone, Copy)]
pub struct Test {
    /// `area::case`.
    pub name: &'static str,
    /// The rows of the catalogue that it shows when it passes, in a short form:
    /// [`Test::rows`] has their names.
    pub rows: &'static [&'static str],
    /// Seconds after which the test counts as hung.
    pub limit: u32,
    /// The test kills the device, so that later tests need a new one.
    pub kills: bool,
    /// The body of the test.
    pub run: fn(&Fixture) -> Outcome,
}

impl Test {
    /// The rows of the catalogue that it shows when it passes.
    pub fn rows(&self) -> impl Iterator<Item = String> {
        self.rows.iter().copied().flat_map(rows::expand)
    }

    /// Sets another limit.
    const fn limit(mut self, seconds: u32) -> Test {
        self.limit = seconds;
        self
    }

    /// Marks the test as one that kills the device.
    const fn kills(mut self) -> Test {
        self.kills = true;
        self
    }
}

/// A test with this name that shows these rows.
const fn test(name: &'static str, rows: &'static [&'static str], run: fn(&Fixture) -> Outcome) -> Test {
    Test { name, rows, limit: 60, kills: false, run }
}

/// The folders, in the order in which they run; the tests that kill the device come last.
const FOLDERS: &[&[&[Test]]] = &[
    adapter::TESTS,
    memory::TESTS,
    events::TESTS,
    endpoints::TESTS,
    connections::TESTS,
    data::TESTS,
    remote::TESTS,
    requests::TESTS,
    datagrams::TESTS,
    dat::TESTS,
    via::TESTS,
    via_ia::TESTS,
    iwarp_ia::TESTS,
    faults::TESTS,
    threads::TESTS,
    refusals::TESTS,
    faults::KILLING,
];

/// All tests, in their fixed order.
pub fn all() -> impl Iterator<Item = &'static Test> {
    FOLDERS.iter().copied().flatten().copied().flatten()
}

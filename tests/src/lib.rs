//! The conformance suite: tests of IT-API 2.1 and of what it stands on, tied to the rows of tests/catalogue.
//!
//! The same list runs in the kernel under QEMU (targets/suite) and on the host against the device model in one
//! process (tests/tests/host.rs). It needs only the platform, two IAs that reach each other, and the token of
//! privilege; it awaits events and asserts no times.
//!
//! - [`mod@check`]: failures with file and line
//! - [`fixture`]: what a test has to work with
//! - [`thread`]: threads that are joined with a deadline
//! - [`mod@run`]: one test after the other
//! - a folder for each subject, with a module for each area of it: the rows that a test shows stand
//!   beside its code in the area's `TESTS`, and the folder's `TESTS` lists its areas
//!
//! A test names a row only if it would fail without what the row asks for.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod adapter;
mod connections;
mod data;
mod datagrams;
mod endpoints;
mod events;
mod faults;
mod memory;
mod refusals;
mod remote;
mod requests;
mod support;
mod threads;

pub use check::{Failure, Outcome, format_message, refused, some, unequal};
pub use fixture::{Fixture, Interface, Setup};
pub use run::run;
pub use support::{check, fixture, run, thread};

/// One test.
#[derive(Clone, Copy)]
pub struct Test {
    /// `area::case`.
    pub name: &'static str,
    /// The rows of the catalogue that it shows when it passes.
    pub rows: &'static [&'static str],
    /// Seconds after which it counts as hung.
    pub limit: u32,
    /// It kills the device: nothing can be tested after it without a new one.
    pub kills: bool,
    /// What it does.
    pub run: fn(&Fixture) -> Outcome,
}

impl Test {
    /// The same test with another limit.
    const fn limit(mut self, seconds: u32) -> Test {
        self.limit = seconds;
        self
    }

    /// The same test, marked as one that kills the device.
    const fn kills(mut self) -> Test {
        self.kills = true;
        self
    }
}

/// A test of this name that shows these rows.
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
    faults::TESTS,
    threads::TESTS,
    refusals::TESTS,
    faults::KILLING,
];

/// All tests, in their fixed order.
pub fn all() -> impl Iterator<Item = &'static Test> {
    FOLDERS.iter().copied().flatten().copied().flatten()
}

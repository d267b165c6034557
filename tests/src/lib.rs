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
//! - one module a subject, each with its `TESTS`: the rows that a test shows stand beside its code
//!
//! A test names a row only if it would fail without what the row asks for.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod check;
pub mod fixture;
pub mod run;
pub mod thread;

mod address_handle;
mod atomic;
mod callback;
mod connect;
mod context;
mod data;
mod death;
mod death_datagrams;
mod death_regions;
mod ep;
mod errors;
mod evd;
mod ia;
mod iobl;
mod link;
mod litmus;
mod lmr;
mod lmr_modify;
mod names;
mod overflow;
mod privilege;
mod pz;
mod rmr;
mod sidr;
mod srq;
mod ud;
mod unlink_remote;
mod values;

#[cfg(test)]
mod catalogue;

pub use check::{Failure, Outcome, format_message, refused, some, unequal};
pub use fixture::{Fixture, Interface, Setup};
pub use run::run;

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

/// The areas, in the order in which they run; those that kill the device come last.
const AREAS: &[&[Test]] = &[
    litmus::TESTS,
    values::TESTS,
    ia::TESTS,
    context::TESTS,
    names::TESTS,
    pz::TESTS,
    lmr::TESTS,
    lmr_modify::TESTS,
    iobl::TESTS,
    evd::TESTS,
    callback::TESTS,
    ep::TESTS,
    connect::TESTS,
    data::TESTS,
    link::TESTS,
    rmr::TESTS,
    atomic::TESTS,
    unlink_remote::TESTS,
    srq::TESTS,
    errors::TESTS,
    address_handle::TESTS,
    ud::TESTS,
    sidr::TESTS,
    overflow::TESTS,
    privilege::TESTS,
    death::TESTS,
    death_datagrams::TESTS,
    death_regions::TESTS,
];

/// All tests, in their fixed order.
pub fn all() -> impl Iterator<Item = &'static Test> {
    AREAS.iter().flat_map(|area| area.iter())
}

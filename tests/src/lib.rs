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
mod aevd;
mod aevd_events;
mod aevd_waiters;
mod asynchronous;
mod atomic;
mod bad_input;
mod callback;
mod coherency;
mod connect;
mod connect_arguments;
mod context;
mod data;
mod data_direct;
mod data_flags;
mod data_order;
mod death;
mod depths;
mod disconnect;
mod dto_flags;
mod ep;
mod ep_life;
mod ep_modify;
mod ep_states;
mod errors;
mod establish;
mod evd;
mod evd_edges;
mod evd_modify;
mod evd_wait;
mod event;
mod event_arguments;
mod every_call;
mod global;
mod ia;
mod ia_info;
mod iobl;
mod limited;
mod limits;
mod link;
mod link_arguments;
mod link_ends;
mod link_errors;
mod link_rules;
mod listen;
mod litmus;
mod lmr;
mod lmr_life;
mod lmr_modify;
mod memory_arguments;
mod names;
mod notification;
mod overflow;
mod path;
mod posting;
mod private_data;
mod privilege;
mod pz;
mod refusal;
mod rejections;
mod rmr;
mod rmr_errors;
mod service_arguments;
mod sharing;
mod sidr;
mod sidr_paths;
mod srq;
mod srq_resize;
mod status;
mod statuses;
mod threads;
mod threads_frees;
mod threads_objects;
mod threads_regions;
mod ud;
mod ud_data;
mod unlink_remote;
mod unlink_remote_data;
mod values;
mod windows;

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
    event::TESTS,
    status::TESTS,
    ia::TESTS,
    ia_info::TESTS,
    global::TESTS,
    context::TESTS,
    names::TESTS,
    path::TESTS,
    pz::TESTS,
    lmr::TESTS,
    lmr_modify::TESTS,
    lmr_life::TESTS,
    memory_arguments::TESTS,
    sharing::TESTS,
    coherency::TESTS,
    iobl::TESTS,
    evd::TESTS,
    evd_wait::TESTS,
    evd_modify::TESTS,
    evd_edges::TESTS,
    aevd::TESTS,
    aevd_events::TESTS,
    aevd_waiters::TESTS,
    notification::TESTS,
    callback::TESTS,
    event_arguments::TESTS,
    ep::TESTS,
    ep_states::TESTS,
    ep_modify::TESTS,
    ep_life::TESTS,
    connect::TESTS,
    connect_arguments::TESTS,
    private_data::TESTS,
    disconnect::TESTS,
    listen::TESTS,
    depths::TESTS,
    establish::TESTS,
    data::TESTS,
    data_order::TESTS,
    data_flags::TESTS,
    data_direct::TESTS,
    posting::TESTS,
    link_rules::TESTS,
    link::TESTS,
    link_arguments::TESTS,
    link_errors::TESTS,
    link_ends::TESTS,
    rmr::TESTS,
    rmr_errors::TESTS,
    windows::TESTS,
    limited::TESTS,
    atomic::TESTS,
    unlink_remote::TESTS,
    unlink_remote_data::TESTS,
    srq::TESTS,
    srq_resize::TESTS,
    errors::TESTS,
    statuses::TESTS,
    dto_flags::TESTS,
    address_handle::TESTS,
    ud::TESTS,
    ud_data::TESTS,
    sidr::TESTS,
    rejections::TESTS,
    sidr_paths::TESTS,
    overflow::TESTS,
    asynchronous::TESTS,
    threads::TESTS,
    threads_objects::TESTS,
    threads_regions::TESTS,
    threads_frees::TESTS,
    privilege::TESTS,
    bad_input::TESTS,
    service_arguments::TESTS,
    limits::TESTS,
    death::TESTS,
];

/// All tests, in their fixed order.
pub fn all() -> impl Iterator<Item = &'static Test> {
    AREAS.iter().flat_map(|area| area.iter())
}

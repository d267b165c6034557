//! DAT: the InfiniBand extensions, endpoints with shared receive queues, and the parts of DAT 2.0
//! that they need.

mod asynchronous;
mod atomics;
mod atomics_rules;
mod attributes;
mod basics;
mod closing;
mod cno;
mod connections;
mod context;
mod datagram_errors;
mod datagrams;
mod disconnects;
mod each;
mod each_order;
mod events;
mod every_call;
mod every_handle;
mod memory;
mod modify;
mod posts;
mod remote_regions;
mod resolving;
mod resolving_ends;
mod sharing;
mod srq;
mod srq_calls;
mod srq_connections;
mod streams;
mod threads;
mod upcalls;
pub(crate) mod world;
mod write_immed;
mod write_immed_rules;

use crate::Test;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    basics::TESTS,
    attributes::TESTS,
    events::TESTS,
    cno::TESTS,
    upcalls::TESTS,
    context::TESTS,
    streams::TESTS,
    every_handle::TESTS,
    closing::TESTS,
    threads::TESTS,
    posts::TESTS,
    each::TESTS,
    each_order::TESTS,
    memory::TESTS,
    modify::TESTS,
    connections::TESTS,
    disconnects::TESTS,
    asynchronous::TESTS,
    remote_regions::TESTS,
    write_immed::TESTS,
    write_immed_rules::TESTS,
    atomics::TESTS,
    atomics_rules::TESTS,
    srq::TESTS,
    srq_calls::TESTS,
    srq_connections::TESTS,
    sharing::TESTS,
    resolving::TESTS,
    resolving_ends::TESTS,
    datagrams::TESTS,
    datagram_errors::TESTS,
];

/// The tests that leave a dead device behind.
pub(crate) const KILLING: &[Test] = every_handle::DEATHS;

//! The DAT face: the InfiniBand extensions, endpoints with shared receive queues, and what they
//! need of DAT 2.0's base.

mod atomics;
mod atomics_rules;
mod attributes;
mod basics;
mod connections;
mod datagram_errors;
mod datagrams;
mod events;
mod resolving;
mod resolving_ends;
mod sharing;
mod srq;
mod srq_connections;
pub(crate) mod world;
mod write_immed;
mod write_immed_rules;

use crate::Test;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    basics::TESTS,
    attributes::TESTS,
    events::TESTS,
    connections::TESTS,
    write_immed::TESTS,
    write_immed_rules::TESTS,
    atomics::TESTS,
    atomics_rules::TESTS,
    srq::TESTS,
    srq_connections::TESTS,
    sharing::TESTS,
    resolving::TESTS,
    resolving_ends::TESTS,
    datagrams::TESTS,
    datagram_errors::TESTS,
];

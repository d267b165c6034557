//! VIPL: virtual interfaces on their three levels of reliability.

mod agent;
mod basics;
pub(crate) mod connect;
mod connect_refusals;
mod cqs;
mod descriptors;
mod each;
mod ended;
mod errors;
mod faults;
mod levels;
mod memory;
mod nics;
mod notify;
mod order;
mod queues;
mod sequence;
mod shown;
mod states;
mod statuses;
mod tags;
mod values;
mod vis;
mod waits;
pub(crate) mod world;

use crate::Test;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    basics::TESTS,
    values::TESTS,
    nics::TESTS,
    tags::TESTS,
    memory::TESTS,
    vis::TESTS,
    cqs::TESTS,
    descriptors::TESTS,
    queues::TESTS,
    agent::TESTS,
    connect::TESTS,
    connect_refusals::TESTS,
    states::TESTS,
    levels::TESTS,
    faults::TESTS,
    shown::TESTS,
    each::TESTS,
    ended::TESTS,
    sequence::TESTS,
    order::TESTS,
    statuses::TESTS,
    waits::TESTS,
    notify::TESTS,
    errors::TESTS,
];

/// The tests that leave a dead device behind.
pub(crate) const KILLING: &[Test] = faults::DEATHS;

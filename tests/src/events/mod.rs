//! Event dispatchers, simple and aggregate: dequeuing, waiting, notification objects, callbacks.

use crate::Test;

pub(crate) mod aevd;
mod aevd_events;
mod aevd_waiters;
mod arguments;
pub(crate) mod callback;
pub(crate) mod evd;
mod evd_edges;
mod evd_modify;
pub(crate) mod evd_wait;
mod notification;

/// The areas of this folder, in the order in which they run.
pub(crate) const TESTS: &[&[Test]] = &[
    evd::TESTS,
    evd_wait::TESTS,
    evd_modify::TESTS,
    evd_edges::TESTS,
    aevd::TESTS,
    aevd_events::TESTS,
    aevd_waiters::TESTS,
    notification::TESTS,
    callback::TESTS,
    arguments::TESTS,
];

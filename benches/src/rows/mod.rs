//! The groups of rows. The rows of a group are counted in one process.

mod connected;
mod crowd;
mod dat;
mod datagrams;
mod device;
mod heap;
mod regions;
mod vipl;

use crate::samples::Recorder;

/// Rows that are counted in one process.
pub struct Group {
    pub name: &'static str,
    pub rows: &'static [&'static str],
    /// Whether the rows are measured without Callgrind, in the process that prints the table.
    pub native: bool,
    pub count: fn(&mut Recorder),
}

pub const GROUPS: &[Group] = &[
    Group { name: "connected", rows: connected::ROWS, native: false, count: connected::count },
    Group { name: "datagrams", rows: datagrams::ROWS, native: false, count: datagrams::count },
    Group { name: "dat", rows: dat::ROWS, native: false, count: dat::count },
    Group { name: "vipl", rows: vipl::ROWS, native: false, count: vipl::count },
    Group { name: "crowd", rows: &["dequeue_16000"], native: false, count: crowd::count },
    Group { name: "device", rows: device::ROWS, native: false, count: device::count },
    Group { name: "regions", rows: &["ep_free"], native: false, count: regions::count },
    Group { name: "heap", rows: &["endpoint_heap"], native: true, count: heap::count },
];

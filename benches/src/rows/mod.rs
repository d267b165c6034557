//! The groups of rows. The rows of a group are counted in one process.

mod connected;
mod crowd;
mod dat;
mod datagrams;
mod device;
mod heap;
mod packets;
mod rdma;
mod regions;
mod storage;
mod touched;
mod verbs;
mod vipl;

use crate::callgrind::Unit;
use crate::samples::Recorder;

/// Rows that are counted in one process.
pub struct Group {
    pub name: &'static str,
    pub rows: &'static [&'static str],
    /// What Callgrind counts. `None`: the rows are measured without it, in the process that prints
    /// the table.
    pub unit: Option<Unit>,
    pub count: fn(&mut Recorder),
}

const INSTRUCTIONS: Option<Unit> = Some(Unit::Instructions);

pub const GROUPS: &[Group] = &[
    Group { name: "connected", rows: connected::ROWS, unit: INSTRUCTIONS, count: connected::count },
    Group { name: "datagrams", rows: datagrams::ROWS, unit: INSTRUCTIONS, count: datagrams::count },
    Group { name: "rdma", rows: rdma::ROWS, unit: INSTRUCTIONS, count: rdma::count },
    Group { name: "verbs", rows: verbs::ROWS, unit: INSTRUCTIONS, count: verbs::count },
    Group { name: "dat", rows: dat::ROWS, unit: INSTRUCTIONS, count: dat::count },
    Group { name: "vipl", rows: vipl::ROWS, unit: INSTRUCTIONS, count: vipl::count },
    Group { name: "crowd", rows: &["dequeue_16000"], unit: INSTRUCTIONS, count: crowd::count },
    Group { name: "device", rows: device::ROWS, unit: INSTRUCTIONS, count: device::count },
    Group { name: "packets", rows: packets::ROWS, unit: INSTRUCTIONS, count: packets::count },
    Group { name: "regions", rows: &["ep_free"], unit: INSTRUCTIONS, count: regions::count },
    Group { name: "storage", rows: storage::ROWS, unit: INSTRUCTIONS, count: storage::count },
    Group { name: "lines", rows: touched::LINES, unit: Some(Unit::Lines), count: touched::lines },
    Group { name: "pages", rows: touched::PAGES, unit: Some(Unit::Pages), count: touched::pages },
    Group { name: "heap", rows: &["endpoint_heap"], unit: None, count: heap::count },
];

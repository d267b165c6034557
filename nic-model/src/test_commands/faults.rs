//! Faults that a driver has injected.

use nic_abi::cqe::Status;

/// Whether a NIC plays dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mute {
    No,
    UntilReset,
    /// It ignores even a reset.
    ForGood,
}

/// What a queue pair does wrong, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Something has been injected. Only then the others matter.
    pub injected: bool,
    pub drop_requests: u32,
    pub drop_responses: u32,
    pub bad_requests: u32,
    pub bad_responses: u32,
    pub delays: u32,
    pub delay_ns: u64,
    pub failures: u32,
    pub failure: Status,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            injected: false,
            drop_requests: 0,
            drop_responses: 0,
            bad_requests: 0,
            bad_responses: 0,
            delays: 0,
            delay_ns: 0,
            failures: 0,
            failure: Status::LocalQpOperation,
        }
    }
}

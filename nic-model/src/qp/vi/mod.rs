//! Virtual interfaces (VI Architecture 1.0): queue pairs whose requests are descriptors in the
//! consumer's memory.
//!
//! | module | subject |
//! |---|---|
//! | `posted` | a posted descriptor, as the queue pair keeps it |
//! | `descriptor` | reads and checks the descriptors that the ring names |
//! | `complete` | completes descriptors in place; marks, completion queues, armed rings |
//! | `refusal` | why a message was not carried out: the receive's status, events, the answer |
//! | `retained`, `leave` | copies of messages that have left on Reliable Delivery, for retries; when they are made |
//! | `events` | the events of a virtual interface |
//! | `status` | how a descriptor's status describes the end of its request |
//! | `life` | flushing: before there is a connection, at its end, and in the error state |
//!
//! Below the descriptors a virtual interface is an RC queue pair on the reliable levels, and a UC
//! queue pair on Unreliable Delivery.

mod complete;
mod descriptor;
mod events;
mod leave;
mod life;
mod posted;
mod refusal;
mod retained;
mod status;

use nic_abi::admin::QpType;
use nic_abi::vi::{ERRORS, Reliability};

pub(super) use posted::Descriptor;
pub(crate) use retained::Copies;
pub(super) use retained::Retained;
pub(super) use status::Left;

/// Injected faults of messages.
#[derive(Default)]
pub(crate) struct Harms {
    /// How many of the next arriving messages are made corrupt, and how many incomplete.
    pub corrupt: u32,
    pub truncate: u32,
    /// How many of the next arriving requests are lost, and how many RDMA Reads.
    pub stall: u32,
    pub hold_reads: u32,
    /// The status of so many descriptors that end next cannot be written.
    pub lose_status: u32,
}

/// The state that a virtual interface has in addition to a queue pair's.
pub(crate) struct Vi {
    pub level: Reliability,
    /// The event queue for the completions of armed rings.
    pub completions_eq: u32,
    pub harms: Harms,
    /// The descriptor of the receive that a message took.
    pub(super) receive: Descriptor,
    /// A packet of the RDMA Write that arrives reached for memory that it may not write. The Write
    /// is refused with its last packet.
    pub(super) denied: bool,
    /// The index of the last event and the queue pair number that it names, for each error.
    pub(super) errors: [Option<(u32, u32)>; ERRORS],
    /// The index of the last completion event, for the send and the receive queue.
    pub(super) completions: [Option<u32>; 2],
}

impl Vi {
    pub fn new(completions_eq: u32) -> Vi {
        Vi {
            level: Reliability::default(),
            completions_eq,
            harms: Harms::default(),
            receive: Descriptor::default(),
            denied: false,
            errors: [None; ERRORS],
            completions: [None; 2],
        }
    }

    /// The type of queue pair whose packets a level uses.
    pub const fn service(level: Reliability) -> QpType {
        if level.is_reliable() { QpType::Rc } else { QpType::Uc }
    }

    /// Forgets all that belongs to a connection.
    pub fn reset(&mut self) {
        self.harms = Harms::default();
        self.denied = false;
    }

    /// Whether the status of a descriptor that ends is lost.
    pub(super) fn loses_status(&mut self) -> bool {
        let lost = self.harms.lose_status > 0;
        self.harms.lose_status -= u32::from(lost);
        lost
    }

    /// Whether injection loses a request that arrives.
    pub(super) fn loses(&mut self, reads: bool) -> bool {
        let harms = &mut self.harms;
        let count = if reads && harms.stall == 0 { &mut harms.hold_reads } else { &mut harms.stall };
        let lost = *count > 0;
        *count -= u32::from(lost);
        lost
    }
}

/// The operation of a descriptor's work request, as its status encodes it.
pub(super) const fn operation_bits(opcode: nic_abi::wqe::Opcode) -> nic_abi::vi::Status {
    use nic_abi::vi::Status;
    use nic_abi::wqe::Opcode;
    match opcode {
        Opcode::Write | Opcode::WriteImmediate => Status::OP_RDMA_WRITE,
        Opcode::Read | Opcode::ReadInvalidate => Status::OP_RDMA_READ,
        _ => Status::empty(),
    }
}

//! Virtual interfaces (VI Architecture 1.0): queue pairs whose requests are descriptors in the
//! consumer's memory.
//!
//! | module | subject |
//! |---|---|
//! | `descriptor` | reads and checks the descriptors that the ring names |
//! | `complete` | completes descriptors in place; marks, completion queues, armed rings |
//! | `refusal` | why a message was not carried out: the receive's status, events, the answer |
//! | `retained` | copies of messages that have left on Reliable Delivery, for retries |
//! | `status` | how a descriptor's status describes the end of its request |
//! | `life` | flushing: before there is a connection, at its end, and in the error state |
//!
//! Below the descriptors a virtual interface is an RC queue pair on the reliable levels, and a UC
//! queue pair on Unreliable Delivery.

mod complete;
mod descriptor;
mod life;
mod refusal;
mod retained;
mod status;

use nic_abi::admin::{QpState, QpType};
use nic_abi::eqe::{Eqe, EventType};
use nic_abi::vi::{ERRORS, Reliability, ViError};

use super::Qp;
use crate::Frontend;
use crate::nic::Nic;
use crate::report::event;

pub(super) use descriptor::Descriptor;
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
    errors: [Option<(u32, u32)>; ERRORS],
    /// The index of the last completion event, for the send and the receive queue.
    completions: [Option<u32>; 2],
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

impl Qp {
    /// Whether the connection survives an error of a request: on Unreliable Delivery.
    #[inline]
    pub(super) fn survives_errors(&self) -> bool {
        self.vi.as_ref().is_some_and(|vi| !vi.level.is_reliable())
    }

    /// Whether it is a virtual interface of this level.
    #[inline]
    pub(super) fn has_level(&self, level: Reliability) -> bool {
        self.vi.as_ref().is_some_and(|vi| vi.level == level)
    }

    /// Whether it is a virtual interface without a connection: posts to its send queue complete in
    /// error.
    #[inline]
    pub(super) fn refuses_sends(&self) -> bool {
        self.vi.is_some() && matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr)
    }

    /// Raises an error event of a virtual interface. An event of the same error that the consumer
    /// has not consumed counts for this one too: otherwise errors could fill the event queue. But
    /// an error of a former connection, which had another number, does not count for this one.
    #[cold]
    pub(crate) fn post_vi_error<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        error: ViError,
        detail: u32,
        address: u64,
    ) {
        let Some(vi) = &mut self.vi else { return };
        let last = &mut vi.errors[error as usize];
        let counts = |number| error.is_of_post() || number == self.qpn;
        if last.is_some_and(|(index, number)| counts(number) && nic.event_waits(self.eq, index)) {
            return;
        }
        let entry = event(EventType::ViError, self.qpn, self.generation, detail);
        let index = nic.post_event(self.eq, Eqe { status: error as u8, address, ..entry });
        *last = index.map(|index| (index, self.qpn));
    }

    /// Raises the event of an armed ring.
    fn post_vi_completion<F: Frontend>(&mut self, nic: &mut Nic<F>, receive: bool) {
        let Some(vi) = &mut self.vi else { return };
        let last = &mut vi.completions[usize::from(receive)];
        if last.is_some_and(|index| nic.event_waits(vi.completions_eq, index)) {
            return;
        }
        let what = event(EventType::ViCompletion, self.qpn, self.generation, u32::from(receive));
        *last = nic.post_event(vi.completions_eq, what);
    }

    /// The driver posted more to a virtual interface's send or receive queue than its ring has room
    /// for.
    pub(crate) fn overrun<F: Frontend>(&mut self, nic: &mut Nic<F>, receive: bool) {
        self.post_vi_error(nic, ViError::Overrun, u32::from(receive), 0);
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

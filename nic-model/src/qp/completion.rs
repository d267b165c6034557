//! How work requests end: outcomes, completions, and the way into the error state.

use core::time::Duration;

use nic_abi::admin::{QpState, QpType};
use nic_abi::cqe::{Cqe, CqeFlags, Status};
use nic_abi::eqe::{Eqe, EventType, NO_COMPLETION, NOT_COMPLETED, REFUSED, StreamFault};
use nic_abi::vi::ViError;
use nic_abi::wqe::{Header, SendFlags};
use roce::transport::Status as Failure;

use super::Qp;
use super::vi::{Descriptor, Left};
use crate::Frontend;
use crate::nic::Nic;
use crate::report::event;
use crate::schedule::Schedule;

/// How an attempt to execute a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// A part is carried out; more follows.
    More,
    /// The request is carried out; the completion's length.
    Done(u64),
    /// The request failed; the offset of the field to blame, or [`nic_abi::cqe::NO_FIELD`].
    Failed(Status, u32),
    /// No answer came.
    Lost,
    /// The receiver has no buffer; the timer code of how long the requester should wait.
    NotReady(u8),
    /// Fault injection delays the request.
    Delayed(Duration),
}

impl Qp {
    /// Moves the queue pair to the error state, unless it is there already, and raises an event
    /// with this detail.
    pub(crate) fn fail<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        status: Status,
        event: Option<(EventType, u32)>,
    ) {
        schedule.stop_timer(self);
        if self.state != QpState::Error {
            // The refusal is sent in the error state, after the answers that precede it.
            if !self.inbound.refusing {
                self.send_last_answers(nic, schedule);
            }
            self.state = QpState::Error;
            self.error = status as u8;
            self.persistence.start_over();
            self.draining = false;
            self.last_wqe = self.srq.is_some();
            self.leave_stream(schedule, event.is_none());
            if let Some((event, detail)) = event {
                match self.vi {
                    None if self.kind == QpType::Iwarp => {
                        let unseen = if detail & NO_COMPLETION == 0 { 0 } else { NOT_COMPLETED };
                        self.post_stream_ended(nic, StreamFault::Local, unseen);
                    }
                    None => _ = self.post_event(nic, event, status, detail),
                    Some(_) => self.post_vi_error(nic, ViError::ConnectionLost, detail & REFUSED, 0),
                }
            }
        }
        schedule.activate(self);
    }

    /// Writes an event that concerns the queue pair into its event queue.
    pub(super) fn post_event<F: Frontend>(
        &self,
        nic: &mut Nic<F>,
        what: EventType,
        status: Status,
        detail: u32,
    ) -> Option<u32> {
        let event = Eqe { status: status as u8, ..event(what, self.qpn, self.generation, detail) };
        nic.post_event(self.eq, event)
    }

    /// Raises the drained event. An event that the driver has not consumed counts for this one too:
    /// otherwise a driver that asks for the event with each entry could fill the event queue.
    #[cold]
    pub(super) fn post_drained<F: Frontend>(&mut self, nic: &mut Nic<F>) {
        if !self.drained_event.is_some_and(|index| nic.event_waits(self.eq, index)) {
            self.drained_event = self.post_event(nic, EventType::SendQueueDrained, Status::Success, 0);
        }
    }

    /// Takes the current entry from the send queue. Completes it if it failed or if its flags ask
    /// for a completion.
    #[inline]
    pub(super) fn complete_request<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        status: Status,
        length: u64,
        field: u32,
    ) {
        self.persistence.start_over();
        let work = &mut self.send.work;
        work.loaded = false;
        self.send.head = self.send.head.wrapping_add(work.blocks);
        match status {
            Status::Flushed => nic.stats.flushed += 1,
            _ => nic.stats.completed += 1,
        }
        let header = work.header;
        if self.vi.is_some() {
            let left = Left::by_short_cut(work, status);
            let descriptor = Descriptor::of(work.args);
            return self.complete_descriptor(nic, &header, &descriptor, status, left);
        }
        self.post_request_cqe(nic, &header, status, length, field);
    }

    /// Counts a work request that is not in the send queue any more; of its message so much has
    /// `left`. Completes it if it failed or if its flags ask for a completion.
    pub(super) fn post_completion<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        (header, args, left): (&Header, [u64; 4], Left),
        status: Status,
        length: u64,
        field: u32,
    ) {
        match status {
            Status::Flushed => nic.stats.flushed += 1,
            _ => nic.stats.completed += 1,
        }
        if self.vi.is_some() {
            return self.complete_descriptor(nic, header, &Descriptor::of(args), status, left);
        }
        self.post_request_cqe(nic, header, status, length, field);
    }

    #[inline(always)]
    fn post_request_cqe<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        header: &Header,
        status: Status,
        length: u64,
        field: u32,
    ) {
        let flags = SendFlags::from_bits_retain(header.flags);
        if flags.contains(SendFlags::SIGNALED) || status != Status::Success {
            let entry = Cqe {
                qpn: self.qpn,
                generation: self.generation,
                tag: header.tag,
                length: length as u32,
                immediate: 0,
                detail: if status == Status::Success { 0 } else { field },
                status: status as u8,
                flags: 0,
                opcode: header.opcode,
                reserved: 0,
                phase: 0,
            };
            nic.post_cqe(self.send_cq, entry);
        }
        // The event follows the completion, so a driver that sees the event finds the completion.
        if flags.contains(SendFlags::DRAINED_EVENT) && status == Status::Success {
            self.post_drained(nic);
        }
    }

    /// Completes the receive that the message took.
    #[inline]
    pub(super) fn complete_receive<F: Frontend>(&mut self, nic: &mut Nic<F>, status: Status, what: Received) {
        self.inbound.receive.loaded = false;
        match status {
            Status::Flushed => nic.stats.flushed += 1,
            _ => nic.stats.completed += 1,
        }
        if self.vi.is_some() {
            return self.complete_taken(nic, status, &what);
        }
        let receive = &self.inbound.receive;
        let mut flags = what.flags | CqeFlags::RECEIVE;
        if receive.solicited {
            flags |= CqeFlags::SOLICITED;
        }
        let entry = Cqe {
            qpn: self.qpn,
            generation: self.generation,
            tag: receive.tag,
            length: what.length as u32,
            immediate: what.immediate,
            detail: what.detail,
            status: status as u8,
            flags: flags.bits(),
            opcode: 0,
            reserved: 0,
            phase: 0,
        };
        nic.post_cqe(self.receive_cq, entry);
    }

    /// Completes the receive that the message took, if any, with an error. Returns the detail of
    /// the event that follows.
    pub(super) fn fail_receive<F: Frontend>(&mut self, nic: &mut Nic<F>, status: Status, field: u32) -> u32 {
        if !self.inbound.receive.loaded {
            return NO_COMPLETION;
        }
        self.complete_receive(nic, status, Received::failed(field));
        0
    }
}

/// The contents of a receive's completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub flags: CqeFlags,
    pub length: u64,
    pub immediate: u32,
    pub detail: u32,
}

impl Received {
    /// A receive that failed; the offset of the field to blame, or [`nic_abi::cqe::NO_FIELD`].
    pub const fn failed(field: u32) -> Received {
        Received { flags: CqeFlags::empty(), length: 0, immediate: 0, detail: field }
    }
}

/// The completion status of a failure that the engine reports.
pub(super) const fn status_of(failure: Failure) -> Status {
    match failure {
        Failure::RetryExceeded => Status::RetryExceeded,
        Failure::RnrRetryExceeded => Status::RnrRetryExceeded,
        Failure::RemoteInvalidRequest => Status::RemoteInvalidRequest,
        Failure::RemoteAccess => Status::RemoteAccess,
        Failure::RemoteOperation => Status::RemoteOperation,
        Failure::BadResponse => Status::BadResponse,
        Failure::Aborted => Status::LocalQpOperation,
    }
}

/// The offset of a field of the header, as completions name it.
macro_rules! header_field {
    ($name:ident) => {
        core::mem::offset_of!(nic_abi::wqe::Header, $name) as u32
    };
}
pub(crate) use header_field;

//! Completes a descriptor in the consumer's memory (6.4.1). The order of the steps is in nic-abi's
//! `vi`.

use core::sync::atomic::{AtomicU32, Ordering};

use nic_abi::cqe::{self, Cqe, CqeFlags};
use nic_abi::protocol;
use nic_abi::vi::{
    COMPLETION, CONTROL_WORD, Control, ControlSegment, IMMEDIATE, MARK_LOST, NO_CQ, OP_SHIFT, Post, Status,
    ViError,
};
use nic_abi::wqe::Header;

use super::posted::{Descriptor, OWN, entry};
use super::{Left, operation_bits, status};
use crate::Frontend;
use crate::memory::GuestMemory;
use crate::nic::{Failure, Nic};
use crate::qp::Qp;
use crate::qp::completion::Received;
use platform::SharedSlice;

/// What the device writes into a descriptor.
struct Ended {
    status: Status,
    length: u32,
    /// Only of a receive: whether immediate data came, and its value.
    immediate: Option<Option<u32>>,
}

impl<F: Frontend> Nic<F> {
    /// The control segment of a descriptor, if the device may still write it.
    fn control_segment(&self, pd: u32, descriptor: &Descriptor) -> Option<SharedSlice<'_>> {
        let length = size_of::<ControlSegment>() as u64;
        let span = self.keys.by_handle(descriptor.handle, pd, descriptor.address, length, OWN).ok()?;
        let (addr, contiguous) = self.keys.translate(span.region, span.offset)?;
        // A descriptor is aligned, so its control segment is in two runs only if the region's list
        // splits a line.
        if contiguous < length {
            return None;
        }
        self.frontend.memory().get(addr, length).ok()
    }

    /// Writes how a descriptor ended, and marks its entry in the ring. False if the device may not
    /// write it.
    fn write_back(&self, pd: u32, descriptor: &Descriptor, mark: &AtomicU32, ended: &Ended) -> bool {
        let Some(segment) = self.control_segment(pd, descriptor) else { return false };
        let Ok(completion) = segment.atomic_u64(COMPLETION) else { return false };
        if let Some(immediate) = ended.immediate {
            let bit = u32::from(Control::IMMEDIATE.bits()) << 16;
            let word = descriptor.control & !bit | if immediate.is_some() { bit } else { 0 };
            if let Ok(control) = segment.atomic_u32(CONTROL_WORD) {
                control.store(word, Ordering::Relaxed);
            }
            if let (Some(value), Ok(place)) = (immediate, segment.atomic_u32(IMMEDIATE)) {
                place.store(value, Ordering::Relaxed);
            }
        }
        let status = u64::from(ended.status.bits()) << 32 | u64::from(ended.length);
        protocol::complete(mark, || {
            completion.store(status, Ordering::Release);
            true
        })
    }

    /// The mark of a ring's entry.
    fn mark(&self, ring: u64, log: u32, index: u32) -> Option<&AtomicU32> {
        let at = entry(ring, log, index) + core::mem::offset_of!(Post, mark) as u64;
        self.frontend.memory().get(at, 4).ok()?.atomic_u32(0).ok()
    }

    /// Disarms a ring. Returns whether it was armed.
    fn disarm_ring(&self, ring: u64) -> bool {
        let Ok(word) = self.frontend.memory().get(ring, 4) else { return false };
        word.atomic_u32(0).is_ok_and(|arm| protocol::disarm(arm, true))
    }
}

impl Qp {
    /// Completes a descriptor of the send queue, of whose message so much has left.
    #[inline(never)]
    pub(in crate::qp) fn complete_descriptor<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        header: &Header,
        descriptor: &Descriptor,
        status: cqe::Status,
        left: Left,
    ) {
        let Some(vi) = &self.vi else { return };
        if nic.copies.remove(self.id.slot, descriptor.index) {
            // The descriptor was completed when the message left.
            return;
        }
        let opcode = nic_abi::wqe::Opcode::from_byte(header.opcode).unwrap_or(nic_abi::wqe::Opcode::Send);
        let bits = status::of_request(vi.level, opcode, status, left);
        let length = if bits.is_empty() { descriptor.length } else { 0 };
        let bits = bits | operation_bits(opcode) | Status::DONE;
        let ended = Ended { status: bits, length, immediate: None };
        let (ring, log, cq) = (self.send.ring, self.send.log, self.send_cq);
        self.complete_in_place(nic, (ring, log, cq), descriptor, &ended);
    }

    /// Completes the receive descriptor that the message took.
    #[inline(never)]
    pub(in crate::qp) fn complete_taken<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        status: cqe::Status,
        what: &Received,
    ) {
        let operation = match what.flags.contains(CqeFlags::WRITE) {
            true => Status::OP_REMOTE_RDMA_WRITE,
            false => Status::OP_RECEIVE,
        };
        let immediate = what.flags.contains(CqeFlags::IMMEDIATE).then_some(what.immediate);
        let length = if status == cqe::Status::Success { what.length as u32 } else { 0 };
        self.end_receive(nic, status::of_receive(status) | operation, length, immediate);
    }

    /// Completes the receive descriptor that the message took, with these status bits.
    pub(super) fn end_receive<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        bits: Status,
        length: u32,
        immediate: Option<u32>,
    ) {
        let Some(vi) = &self.vi else { return };
        let descriptor = vi.receive;
        self.inbound.receive.loaded = false;
        let mut status = bits | Status::DONE;
        status.set(Status::IMMEDIATE, immediate.is_some());
        let ended = Ended { status, length, immediate: Some(immediate) };
        let (ring, log, cq) = (self.receive.ring, self.receive.log, self.receive_cq);
        self.complete_in_place(nic, (ring, log, cq), &descriptor, &ended);
    }

    fn complete_in_place<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        (ring, log, cq): (u64, u32, u32),
        descriptor: &Descriptor,
        ended: &Ended,
    ) {
        if !nic.running() {
            return;
        }
        // If the ring's memory cannot be accessed, there is no mark, and the driver sees no
        // completion.
        let written = !self.vi.as_mut().is_some_and(|vi| vi.loses_status())
            && nic
                .mark(ring, log, descriptor.index)
                .is_some_and(|mark| nic.write_back(self.pd, descriptor, mark, ended));
        if !written {
            let operation = (ended.status & Status::OP_MASK).bits() >> OP_SHIFT;
            self.lose(nic, ring, log, descriptor);
            self.post_vi_error(nic, ViError::CompletionProtection, operation, descriptor.address);
            nic.failures.push(Failure::Vi(self.id.slot));
            return;
        }
        self.announce(nic, ring, cq, descriptor, ended.status);
    }

    /// Marks a descriptor whose status the device cannot write.
    pub(super) fn lose<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        ring: u64,
        log: u32,
        descriptor: &Descriptor,
    ) {
        if let Some(mark) = nic.mark(ring, log, descriptor.index) {
            mark.store(MARK_LOST, Ordering::Release);
        }
    }

    /// Writes the entry of the completion queue, or raises the event of an armed ring.
    fn announce<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        ring: u64,
        cq: u32,
        descriptor: &Descriptor,
        status: Status,
    ) {
        // The lowest bit of the operation names the queue (page 72).
        let receive = status.contains(Status::OP_RECEIVE);
        if cq == NO_CQ {
            if nic.disarm_ring(ring) {
                self.post_vi_completion(nic, receive);
            }
            return;
        }
        let flags = if receive { CqeFlags::RECEIVE } else { CqeFlags::empty() };
        let entry = Cqe {
            qpn: self.qpn,
            generation: self.generation,
            tag: descriptor.index,
            flags: flags.bits(),
            ..Cqe::default()
        };
        nic.post_cqe(cq, entry);
    }
}

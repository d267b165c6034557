//! Messages that have left on Reliable Delivery: when their descriptors complete, and their memory
//! is copied for retries.

use nic_abi::cqe::Status;
use nic_abi::vi::Reliability;
use nic_abi::wqe::{Header, Opcode};

use super::status::offers_end;
use super::{Descriptor, Left, Retained};
use crate::Frontend;
use crate::nic::Nic;
use crate::qp::{Qp, Work};
use crate::schedule::Schedule;
use crate::transfer::Spans;

impl Qp {
    /// The copy of a work request that has left.
    pub(in crate::qp) fn copy_of<'a, F: Frontend>(
        &self,
        nic: &'a Nic<F>,
        work: &Work,
    ) -> Option<&'a Retained> {
        self.vi.as_ref()?;
        nic.copies.get(self.id.slot, Descriptor::of(work.args).index)
    }

    /// A part of the current work request has left by the short cut, and no answer came. On
    /// Reliable Delivery a Send or RDMA Write completes now, if it has left to its end and the pool
    /// has room for its copy.
    #[inline(never)]
    pub(in crate::qp) fn leave<F: Frontend>(&mut self, nic: &mut Nic<F>, schedule: &mut Schedule) {
        let work = &self.send.work;
        if !self.has_level(Reliability::Delivery) || !offers_end(work) || self.copy_of(nic, work).is_some() {
            return;
        }
        let Some(copy) = self.copy(nic, schedule, work) else { return };
        let (header, args) = (work.header, work.args);
        self.complete_retained(nic, &header, args, copy);
        // The descriptor's entry in the ring is free.
        self.send.head = self.send.head.wrapping_add(self.send.work.blocks);
        self.send.work.blocks = 0;
    }

    /// The last packet of work request `id` has left, on Reliable Delivery. The work request
    /// completes now, if the pool has room for its copy, and all earlier Sends and RDMA Writes are
    /// complete.
    #[inline(never)]
    pub(in crate::qp) fn flight_left<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        schedule: &mut Schedule,
        id: u32,
    ) {
        let Some(requests) = &self.requests else { return };
        let mut left = None;
        for work in requests.flights.up_to(id) {
            if let Some(earlier) = left.replace(work)
                && earlier.opcode != Opcode::Read
                && self.copy_of(nic, earlier).is_none()
            {
                return;
            }
        }
        let Some(work) = left.filter(|work| self.copy_of(nic, work).is_none()) else { return };
        let Some(copy) = self.copy(nic, schedule, work) else { return };
        let (header, args) = (work.header, work.args);
        self.complete_retained(nic, &header, args, copy);
    }

    /// A copy of the memory that a work request sends.
    fn copy<F: Frontend>(&self, nic: &Nic<F>, schedule: &mut Schedule, work: &Work) -> Option<Retained> {
        let mut local = Spans::new();
        if work.opcode == Opcode::Read
            || !nic.copies.has_room(self.id.slot, work.total)
            || self.check_memory(nic, work, &mut local).is_err()
        {
            return None;
        }
        Retained::copy(&nic.side(&local, 0), work.total, schedule)
    }

    fn complete_retained<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        header: &Header,
        args: [u64; 4],
        copy: Retained,
    ) {
        let descriptor = Descriptor::of(args);
        self.complete_descriptor(nic, header, &descriptor, Status::Success, Left::All);
        nic.copies.insert(self.id.slot, descriptor.index, copy);
    }
}

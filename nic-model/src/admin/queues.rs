//! Event queues, protection domains, completion queues, shared receive queues.

use nic_abi::admin::{
    Command, CqFlags, CqInfo, CreateCq, CreateEq, CreateSrq, ModifySrq, ResizeCq, ResizeSrq, SrqInfo, Status,
};
use nic_abi::ident::{MAX_CQS, MAX_EQS, MAX_PDS, MAX_SRQS};
use nic_abi::registers::{CQ_RECORDS, EQ_RECORDS, SRQ_RECORDS};
use nic_abi::wqe::receive_stride;
use nic_abi::{cqe, eqe};

use super::command::{CommandResult, DONE, Refusal, args, at, check_range, result};
use crate::Frontend;
use crate::cq::Cq;
use crate::eq::Eq;
use crate::limits::{LOG_CQES, LOG_EQES, LOG_RQ_ENTRIES, MAX_SGES};
use crate::nic::{Nic, Pd};
use crate::records::record;
use crate::srq::Srq;

/// Refuses a number that is out of range or taken.
fn free_number(number: u32, limit: u32, taken: bool) -> Result<(), Refusal> {
    if number >= limit {
        return Err(Refusal::field(at!(command.object)));
    }
    if taken {
        return Err(Refusal::new(Status::Exists, at!(command.object)));
    }
    Ok(())
}

/// Refuses to destroy an object that is in use.
fn unused(users: Option<u32>) -> Result<(), Refusal> {
    match users {
        None => Err(Refusal::new(Status::NoSuchObject, at!(command.object))),
        Some(0) => Ok(()),
        Some(_) => Err(Refusal::new(Status::Busy, at!(command.object))),
    }
}

impl<F: Frontend> Nic<F> {
    pub(super) fn create_eq(&mut self, command: &Command) -> CommandResult {
        let number = command.object;
        let a: CreateEq = args(command);
        free_number(number, MAX_EQS, self.eqs.contains(number))?;
        check_range(a.log_entries, 1..=LOG_EQES, at!(CreateEq, log_entries))?;
        self.check_ring(a.ring, 1 << a.log_entries, eqe::SIZE as u64, at!(CreateEq, ring))?;
        let vector = u16::try_from(a.vector).ok().filter(|v| *v < self.config.vectors);
        let vector = vector.ok_or(Refusal::field(at!(CreateEq, vector)))?;
        self.init_record(EQ_RECORDS, number, 0);
        let eq = Eq { ring: a.ring, log: a.log_entries, vector, producer: 0, head_seen: 0, users: 0 };
        self.eqs.insert(number, eq);
        Ok(DONE)
    }

    pub(super) fn destroy_eq(&mut self, command: &Command) -> CommandResult {
        unused(self.eqs.get(command.object).map(|e| e.users))?;
        self.eqs.remove(command.object);
        Ok(DONE)
    }

    pub(super) fn create_pd(&mut self, command: &Command) -> CommandResult {
        let number = command.object;
        free_number(number, MAX_PDS, self.pds.contains(number))?;
        if number == 0 {
            return Err(Refusal::field(at!(command.object)));
        }
        self.pds.insert(number, Pd { users: 0 });
        Ok(DONE)
    }

    pub(super) fn destroy_pd(&mut self, command: &Command) -> CommandResult {
        unused(self.pds.get(command.object).map(|p| p.users))?;
        self.pds.remove(command.object);
        Ok(DONE)
    }

    pub(super) fn create_cq(&mut self, command: &Command) -> CommandResult {
        let number = command.object;
        let a: CreateCq = args(command);
        free_number(number, MAX_CQS, self.cqs.contains(number))?;
        check_range(a.log_entries, 1..=LOG_CQES, at!(CreateCq, log_entries))?;
        self.check_ring(a.ring, 1 << a.log_entries, cqe::SIZE as u64, at!(CreateCq, ring))?;
        let flags = CqFlags::from_bits(a.flags).ok_or(Refusal::field(at!(CreateCq, flags)))?;
        let eq = self.eqs.get_mut(a.eq).ok_or(Refusal::new(Status::NoSuchObject, at!(CreateCq, eq)))?;
        eq.users += 1;
        self.init_record(CQ_RECORDS, number, 0);
        let cq = Cq {
            ring: a.ring,
            log: a.log_entries,
            eq: a.eq,
            generation: a.generation,
            producer: 0,
            head_seen: 0,
            failed: false,
            lossy: flags.contains(CqFlags::VI),
            users: 0,
        };
        self.cqs.insert(number, cq);
        Ok(DONE)
    }

    pub(super) fn destroy_cq(&mut self, command: &Command) -> CommandResult {
        unused(self.cqs.get(command.object).map(|c| c.users))?;
        if let Some(cq) = self.cqs.remove(command.object) {
            self.release_eq(cq.eq);
        }
        Ok(DONE)
    }

    pub(super) fn resize_cq(&mut self, command: &Command) -> CommandResult {
        let number = command.object;
        let a: ResizeCq = args(command);
        let no_such = Refusal::new(Status::NoSuchObject, at!(command.object));
        if !self.cqs.contains(number) {
            return Err(no_such);
        }
        check_range(a.log_entries, 1..=LOG_CQES, at!(ResizeCq, log_entries))?;
        self.check_ring(a.ring, 1 << a.log_entries, cqe::SIZE as u64, at!(ResizeCq, ring))?;
        if a.reserved != 0 {
            return Err(Refusal::field(at!(ResizeCq, reserved)));
        }
        let registers = self.frontend.registers();
        let (Some(cq), Some([head, _])) = (self.cqs.get_mut(number), record(&registers, CQ_RECORDS, number))
        else {
            return Err(no_such);
        };
        let unconsumed = cq.unconsumed(head).filter(|_| !cq.failed);
        let unconsumed = unconsumed.ok_or(Refusal::new(Status::BadState, at!(command.object)))?;
        if unconsumed > 1 << a.log_entries {
            return Err(Refusal::field(at!(ResizeCq, log_entries)));
        }
        cq.move_to(self.frontend.memory(), unconsumed, a.ring, a.log_entries)
            .map_err(|_| Refusal::new(Status::Dma, at!(ResizeCq, ring)))?;
        self.query_cq(command)
    }

    pub(super) fn query_cq(&mut self, command: &Command) -> CommandResult {
        let cq = self.cqs.get(command.object);
        let cq = cq.ok_or(Refusal::new(Status::NoSuchObject, at!(command.object)))?;
        Ok(result(&CqInfo { producer: cq.producer, failed: u32::from(cq.failed) }))
    }

    pub(super) fn create_srq(&mut self, command: &Command) -> CommandResult {
        let number = command.object;
        let a: CreateSrq = args(command);
        free_number(number, MAX_SRQS, self.srqs.contains(number))?;
        check_range(a.log_entries, 0..=LOG_RQ_ENTRIES, at!(CreateSrq, log_entries))?;
        check_range(a.max_segments, 0..=MAX_SGES as u32, at!(CreateSrq, max_segments))?;
        let stride = u64::from(receive_stride(a.max_segments));
        self.check_ring(a.ring, 1 << a.log_entries, stride, at!(CreateSrq, ring))?;
        if a.limit > 1 << a.log_entries {
            return Err(Refusal::field(at!(CreateSrq, limit)));
        }
        if !self.pds.contains(a.pd) {
            return Err(Refusal::new(Status::NoSuchObject, at!(CreateSrq, pd)));
        }
        let eq = self.eqs.get_mut(a.eq).ok_or(Refusal::new(Status::NoSuchObject, at!(CreateSrq, eq)))?;
        eq.users += 1;
        self.use_pd(a.pd);
        self.init_record(SRQ_RECORDS, number, 0);
        let srq = Srq {
            ring: a.ring,
            log: a.log_entries,
            max_segments: a.max_segments,
            pd: a.pd,
            generation: a.generation,
            limit: a.limit,
            eq: a.eq,
            limit_event: None,
            head: 0,
            failed: false,
            users: 0,
        };
        self.srqs.insert(number, srq);
        Ok(DONE)
    }

    pub(super) fn destroy_srq(&mut self, command: &Command) -> CommandResult {
        unused(self.srqs.get(command.object).map(|s| s.users))?;
        if let Some(srq) = self.srqs.remove(command.object) {
            self.release_eq(srq.eq);
            self.release_pd(srq.pd);
        }
        Ok(DONE)
    }

    pub(super) fn modify_srq(&mut self, command: &Command) -> CommandResult {
        let a: ModifySrq = args(command);
        let srq = self.srqs.get_mut(command.object);
        let srq = srq.ok_or(Refusal::new(Status::NoSuchObject, at!(command.object)))?;
        if a.limit > 1 << srq.log {
            return Err(Refusal::field(at!(ModifySrq, limit)));
        }
        if a.reserved != 0 {
            return Err(Refusal::field(at!(ModifySrq, reserved)));
        }
        if srq.failed {
            return Err(Refusal::new(Status::BadState, at!(command.object)));
        }
        srq.limit = a.limit;
        self.check_srq_limit(command.object);
        Ok(DONE)
    }

    pub(super) fn resize_srq(&mut self, command: &Command) -> CommandResult {
        let number = command.object;
        let a: ResizeSrq = args(command);
        let srq = self.srqs.get(number).ok_or(Refusal::new(Status::NoSuchObject, at!(command.object)))?;
        let (failed, stride) = (srq.failed, u64::from(receive_stride(srq.max_segments)));
        check_range(a.log_entries, 0..=LOG_RQ_ENTRIES, at!(ResizeSrq, log_entries))?;
        self.check_ring(a.ring, 1 << a.log_entries, stride, at!(ResizeSrq, ring))?;
        if a.limit > 1 << a.log_entries {
            return Err(Refusal::field(at!(ResizeSrq, limit)));
        }
        let left = self.srq_left(number).filter(|_| !failed);
        let left = left.ok_or(Refusal::new(Status::BadState, at!(command.object)))?;
        if left > 1 << a.log_entries {
            return Err(Refusal::field(at!(ResizeSrq, log_entries)));
        }
        if let Some(srq) = self.srqs.get_mut(number) {
            (srq.ring, srq.log) = (a.ring, a.log_entries);
            if a.limit != 0 {
                srq.limit = a.limit;
            }
        }
        self.check_srq_limit(number);
        Ok(DONE)
    }

    pub(super) fn query_srq(&mut self, command: &Command) -> CommandResult {
        let srq = self.srqs.get(command.object);
        let srq = srq.ok_or(Refusal::new(Status::NoSuchObject, at!(command.object)))?;
        Ok(result(&SrqInfo { taken: srq.head, limit: srq.limit }))
    }

    /// One user fewer.
    pub(super) fn release_eq(&mut self, number: u32) {
        if let Some(eq) = self.eqs.get_mut(number) {
            eq.users -= 1;
        }
    }

    /// One user more.
    pub(super) fn use_pd(&mut self, number: u32) {
        if let Some(pd) = self.pds.get_mut(number) {
            pd.users += 1;
        }
    }

    /// One user fewer.
    pub(super) fn release_pd(&mut self, number: u32) {
        if let Some(pd) = self.pds.get_mut(number) {
            pd.users -= 1;
        }
    }
}

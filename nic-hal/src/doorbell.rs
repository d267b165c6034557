//! Doorbells: telling the device of work, and of what was consumed (`nic_abi::doorbell`).

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use nic_abi::doorbell::{self, Kind, RECORD_BYTES};
use nic_abi::{protocol, registers};

use crate::Error;
use crate::mapped::{FifoRegisters, Record, Registers};

/// Whether somebody has to wake the device.
#[must_use = "the device may sleep"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// It is awake, or about to wake.
    Awake,
    /// It sleeps until it is kicked: [`crate::Nic::kick`].
    Asleep,
}

/// The doorbell of a work queue.
pub(crate) struct Doorbell {
    /// The tail, and whether the device wants to be told.
    record: Record,
    fifo: FifoRegisters,
    /// The queue's FIFO entry without the phase.
    entry: u32,
}

impl Doorbell {
    pub(crate) fn new(registers: &Arc<Registers>, kind: Kind, slot: u32) -> Result<Doorbell, Error> {
        let base = match kind {
            Kind::Send => registers::SQ_RECORDS,
            Kind::Receive => registers::RQ_RECORDS,
            Kind::SharedReceive => registers::SRQ_RECORDS,
            Kind::Admin => registers::ADMIN_RECORD,
        };
        Ok(Doorbell {
            record: Record::new(registers, base + slot as usize * RECORD_BYTES)?,
            fifo: FifoRegisters::new(registers),
            entry: doorbell::entry(kind, slot, registers::FIFO_ENTRIES),
        })
    }

    /// Makes everything posted up to `tail` known to the device, and wakes it if it sleeps.
    #[inline]
    pub(crate) fn ring(&self, tail: u32) {
        if self.ring_only(tail) == Rung::Asleep {
            self.fifo.registers().kick();
        }
    }

    /// Makes everything posted up to `tail` known to the device.
    #[inline(always)]
    pub(crate) fn ring_only(&self, tail: u32) -> Rung {
        let [posted, armed] = self.record.words();
        let fifo = &self.fifo;
        if protocol::post(posted, armed, tail)
            && protocol::push(fifo.tail(), |index| fifo.entry(index), fifo.event(), self.entry)
        {
            Rung::Asleep
        } else {
            Rung::Awake
        }
    }
}

/// The record of a queue that the driver consumes.
pub(crate) struct ConsumerRecord(Record);

impl ConsumerRecord {
    pub(crate) fn cq(registers: &Arc<Registers>, number: u32) -> Result<ConsumerRecord, Error> {
        Self::at(registers, registers::CQ_RECORDS + number as usize * RECORD_BYTES)
    }

    pub(crate) fn eq(registers: &Arc<Registers>, number: u32) -> Result<ConsumerRecord, Error> {
        Self::at(registers, registers::EQ_RECORDS + number as usize * RECORD_BYTES)
    }

    fn at(registers: &Arc<Registers>, offset: usize) -> Result<ConsumerRecord, Error> {
        Record::new(registers, offset).map(ConsumerRecord)
    }

    /// Tells what was consumed.
    #[inline(always)]
    pub(crate) fn consumed(&self, head: u32) {
        let [consumed, _] = self.0.words();
        // Release: the entry was read before the device may write over it.
        consumed.store(head, Ordering::Release);
    }

    /// Asks to be told of the next entry; the caller looks at the ring once more afterwards.
    #[inline]
    pub(crate) fn arm(&self, solicited: bool) {
        let [_, arm] = self.0.words();
        protocol::arm(arm, solicited);
    }
}

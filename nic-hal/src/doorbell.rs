//! Doorbells: how the driver publishes posted work and consumed entries (`nic_abi::doorbell`).

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use nic_abi::doorbell::{self, Kind};
use nic_abi::{protocol, registers};

use crate::Error;
use crate::mapped::{FifoRegisters, Record, Registers};

/// The doorbell of a work queue.
pub(crate) struct Doorbell {
    /// The tail, and whether the queue is armed.
    record: Record,
    fifo: FifoRegisters,
    /// The queue's entry at index 0 of the FIFO.
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
            record: Record::new(registers, doorbell::record(base, slot))?,
            fifo: FifoRegisters::new(registers),
            entry: doorbell::entry(kind, slot, 0),
        })
    }

    /// Publishes everything posted up to `tail`, and wakes the device if it sleeps.
    #[inline(always)]
    pub(crate) fn ring(&self, tail: u32) {
        let [posted, armed] = self.record.words();
        // The references are made here: made in the closure, they would be read once more.
        let (fifo, entries) = (&self.fifo, self.fifo.entries());
        if protocol::post(posted, armed, tail)
            && protocol::push(
                fifo.tail(),
                |index| &entries[index as usize % entries.len()],
                fifo.event(),
                || self.entry,
            )
        {
            fifo.registers().kick();
        }
    }
}

/// The record of a queue that the driver consumes.
pub(crate) struct ConsumerRecord(Record);

impl ConsumerRecord {
    pub(crate) fn cq(registers: &Arc<Registers>, number: u32) -> Result<ConsumerRecord, Error> {
        Self::at(registers, doorbell::record(registers::CQ_RECORDS, number))
    }

    pub(crate) fn eq(registers: &Arc<Registers>, number: u32) -> Result<ConsumerRecord, Error> {
        Self::at(registers, doorbell::record(registers::EQ_RECORDS, number))
    }

    fn at(registers: &Arc<Registers>, offset: usize) -> Result<ConsumerRecord, Error> {
        Record::new(registers, offset).map(ConsumerRecord)
    }

    /// Publishes how many entries were consumed.
    #[inline(always)]
    pub(crate) fn consumed(&self, head: u32) {
        let [consumed, _] = self.0.words();
        // Release: the entry was read before the device may write over it.
        consumed.store(head, Ordering::Release);
    }

    /// Arms the queue for the next entry. The caller looks at the ring once more afterwards.
    #[inline]
    pub(crate) fn arm(&self, solicited: bool) {
        let [_, arm] = self.0.words();
        protocol::arm(arm, solicited);
    }

    /// Arms a queue for the next entry that is armed for solicited entries; false if it is not
    /// armed any more.
    #[inline]
    pub(crate) fn arm_for_more(&self) -> bool {
        let [_, arm] = self.0.words();
        protocol::arm_for_more(arm)
    }
}

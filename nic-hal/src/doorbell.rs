//! Doorbells: telling the device of work, and of what was consumed (`nic_abi::doorbell`).

use alloc::sync::Arc;
use core::sync::atomic::{Ordering, fence};

use nic_abi::doorbell::{self, ARM_NEXT, ARM_SOLICITED, Kind, RECORD_BYTES};
use nic_abi::registers;

use crate::Error;
use crate::mapped::{Registers, Word, WordArray};

/// The FIFO in which the driver tells which queues have work.
pub(crate) struct Fifo {
    registers: Arc<Registers>,
    tail: Word,
    event: Word,
    entries: WordArray,
}

/// The phase of the FIFO's pass at `index`: what an entry of that pass has more than one of the next.
#[inline]
const fn phase(index: u32) -> u32 {
    doorbell::entry(Kind::Send, 0, index)
}

const _: () = assert!(phase(registers::FIFO_ENTRIES) == 0 && phase(0) != 0);

impl Fifo {
    pub(crate) fn new(registers: &Arc<Registers>) -> Result<Arc<Fifo>, Error> {
        Ok(Arc::new(Fifo {
            tail: Word::new(registers, registers::FIFO_TAIL)?,
            event: Word::new(registers, registers::FIFO_EVENT)?,
            entries: WordArray::new(registers, registers::FIFO, registers::FIFO_ENTRIES)?,
            registers: registers.clone(),
        }))
    }

    #[inline]
    fn push(&self, entry: u32) {
        // The index only has to be unique; what orders the entry is its own release store.
        let index = self.tail.get().fetch_add(1, Ordering::Relaxed);
        self.entries.at(index).store(entry | phase(index), Ordering::Release);
        // The device stores its event index, then looks at the entry once more before it sleeps: with a full
        // barrier on both sides one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.event.get().load(Ordering::Relaxed) == index {
            self.registers.kick();
        }
    }
}

/// The doorbell of a work queue.
pub(crate) struct Doorbell {
    tail: Word,
    armed: Word,
    /// The queue's FIFO entry without the phase.
    entry: u32,
    fifo: Arc<Fifo>,
}

impl Doorbell {
    pub(crate) fn new(fifo: &Arc<Fifo>, kind: Kind, slot: u32) -> Result<Doorbell, Error> {
        let base = match kind {
            Kind::Send => registers::SQ_RECORDS,
            Kind::Receive => registers::RQ_RECORDS,
            Kind::SharedReceive => registers::SRQ_RECORDS,
            Kind::Admin => registers::ADMIN_RECORD,
        };
        let offset = base + slot as usize * RECORD_BYTES;
        Ok(Doorbell {
            tail: Word::new(&fifo.registers, offset)?,
            armed: Word::new(&fifo.registers, offset + 4)?,
            entry: doorbell::entry(kind, slot, registers::FIFO_ENTRIES),
            fifo: fifo.clone(),
        })
    }

    /// Makes everything posted up to `tail` known to the device.
    #[inline]
    pub(crate) fn ring(&self, tail: u32) {
        // Release: the descriptors are visible before the index that covers them.
        self.tail.get().store(tail, Ordering::Release);
        // The device swaps `armed` for 1 and only then reads the tail: either its swap reads ours and so sees
        // the tail, or ours reads its 1 and we tell it.
        if self.armed.get().swap(0, Ordering::AcqRel) == 1 {
            self.fifo.push(self.entry);
        }
    }
}

/// The record of a queue that the driver consumes.
pub(crate) struct ConsumerRecord {
    head: Word,
    arm: Word,
}

impl ConsumerRecord {
    pub(crate) fn cq(registers: &Arc<Registers>, number: u32) -> Result<ConsumerRecord, Error> {
        Self::at(registers, registers::CQ_RECORDS + number as usize * RECORD_BYTES)
    }

    pub(crate) fn eq(registers: &Arc<Registers>, number: u32) -> Result<ConsumerRecord, Error> {
        Self::at(registers, registers::EQ_RECORDS + number as usize * RECORD_BYTES)
    }

    fn at(registers: &Arc<Registers>, offset: usize) -> Result<ConsumerRecord, Error> {
        Ok(ConsumerRecord { head: Word::new(registers, offset)?, arm: Word::new(registers, offset + 4)? })
    }

    /// Tells what was consumed.
    #[inline]
    pub(crate) fn consumed(&self, head: u32) {
        // Release: the entry was read before the device may write over it.
        self.head.get().store(head, Ordering::Release);
    }

    /// Asks to be told of the next entry; the caller looks at the ring once more afterwards.
    #[inline]
    pub(crate) fn arm(&self, solicited: bool) {
        let value = if solicited { ARM_SOLICITED } else { ARM_NEXT };
        self.arm.get().store(value, Ordering::Relaxed);
        // The look at the ring must come after the store is visible, as the device writes its entry and then
        // looks at `arm`.
        fence(Ordering::SeqCst);
    }
}

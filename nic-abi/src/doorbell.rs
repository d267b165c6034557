//! Doorbells: how the driver announces work without an access that traps.
//!
//! Each queue has a record of two words in the register file, by its slot ([`record`]):
//!
//! | | word 0 | word 1 |
//! |---|---|---|
//! | work queues (SQ, RQ, SRQ, admin) | `tail`: blocks (SQ) or entries posted since creation, modulo 2^32 | `armed`: 1 = the device wants a FIFO entry |
//! | CQ, EQ | `head`: entries consumed since creation, modulo 2^32 | `arm`: [`ARM_NONE`], [`ARM_NEXT`] or [`ARM_SOLICITED`] |
//!
//! **Work queues.** To post, the driver writes the descriptor, stores `tail` (release), and swaps
//! `armed` for 0. If it was 1, it takes the next index of the FIFO (fetch-add on the FIFO's tail)
//! and stores [`entry`] there (release). Then (after a full barrier) it compares that index with
//! the FIFO's event index: if they are equal the device sleeps for this very entry, and the driver
//! kicks. The device takes the entry, swaps `armed` for 1, and only then reads `tail`. So a queue
//! has at most one entry in the FIFO, which therefore cannot overflow, and after a post that finds
//! `armed` 0 the device is still to read `tail`.
//!
//! Send queues and the admin queue are armed from their creation on. A receive queue is armed only
//! while the device flushes it (its queue pair is in ERROR); otherwise the device reads its tail
//! when a message arrives. An SRQ is never armed: the device reads its tail when a message arrives
//! or the limit is checked.
//!
//! **CQ and EQ.** To be interrupted, the consumer stores `arm` and then looks once more for an
//! entry. The device writes an entry and then reads `arm`; if the queue is armed for this entry,
//! the device stores 0 and raises an event (CQ) or an interrupt (EQ).

/// The kind of queue that an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A send queue; the slot is its QP's.
    Send = 0,
    /// A receive queue; the slot is its QP's.
    Receive = 1,
    /// A shared receive queue.
    SharedReceive = 2,
    /// The admin queue; the slot is 0.
    Admin = 3,
}

/// Not armed.
pub const ARM_NONE: u32 = 0;
/// Armed for the next entry.
pub const ARM_NEXT: u32 = 1;
/// Armed for the next entry that is solicited or is an error (CQ only).
pub const ARM_SOLICITED: u32 = 2;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 8;

/// Bytes from the record of a slot to the record of the next one: two cache lines, since CPUs fetch
/// lines in pairs. So two threads that post to neighbouring queues never write to the same line,
/// nor to a line that the other thread's CPU has fetched as the second of a pair.
const STRIDE: usize = 128;
/// The slots that are so far apart. The records of the next ones follow those of the first.
const ROW: u32 = 1 << 10;

/// Slots that a table of records has places for.
pub const RECORD_SLOTS: u32 = ROW * (STRIDE / RECORD_BYTES) as u32;
/// Bytes of a table of records.
pub const RECORD_TABLE: usize = RECORD_SLOTS as usize * RECORD_BYTES;

/// The offset in the register file of the record of `slot`, in the table that begins at `records`.
///
/// The records of slots 0 to 1,023 are 128 bytes apart. Those of the next 1,024 slots follow them
/// by 8 bytes, and so on. So the numbers of two queues whose records share a cache line differ by
/// at least 1,024.
#[inline]
pub const fn record(records: usize, slot: u32) -> usize {
    let slot = slot % RECORD_SLOTS;
    records + (slot % ROW) as usize * STRIDE + (slot / ROW) as usize * RECORD_BYTES
}

const PHASE: u32 = 1 << 31;
const KIND_SHIFT: u32 = 28;
const SLOT_MASK: u32 = (1 << 24) - 1;

/// The FIFO entry for `slot` of `kind` at free-running FIFO index `index`.
///
/// The top bit is the phase: 1 on the first pass over the (zeroed) FIFO, 0 on the second, and so
/// on.
#[inline]
pub const fn entry(kind: Kind, slot: u32, index: u32) -> u32 {
    phase(index) | (kind as u32) << KIND_SHIFT | slot & SLOT_MASK
}

#[inline]
const fn phase(index: u32) -> u32 {
    at(PHASE, index)
}

/// What the entry of index 0 is at free-running FIFO index `index`.
#[inline]
pub(crate) const fn at(first: u32, index: u32) -> u32 {
    const { assert!(crate::registers::FIFO_ENTRIES.is_power_of_two() && PHASE == 1 << 31) };
    // The lowest bit of the number of the pass.
    first ^ (index << (31 - crate::registers::FIFO_ENTRIES.ilog2()) & PHASE)
}

/// Whether the word at FIFO index `index` has been written in this pass.
#[inline]
pub const fn is_written(word: u32, index: u32) -> bool {
    word & PHASE == phase(index)
}

/// Kind and slot of an entry; `None` if no such kind exists.
#[inline]
pub const fn decode(word: u32) -> Option<(Kind, u32)> {
    let kind = match word >> KIND_SHIFT & 7 {
        0 => Kind::Send,
        1 => Kind::Receive,
        2 => Kind::SharedReceive,
        3 => Kind::Admin,
        _ => return None,
    };
    Some((kind, word & SLOT_MASK))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_slot_has_a_record_of_its_own_within_the_table() {
        let places: BTreeSet<usize> = (0..RECORD_SLOTS).map(|slot| record(0, slot)).collect();
        assert_eq!(places.len(), RECORD_SLOTS as usize);
        assert!(places.iter().all(|at| at % RECORD_BYTES == 0 && at + RECORD_BYTES <= RECORD_TABLE));
        assert_eq!(record(0x6_0000, 0), 0x6_0000);
    }

    #[test]
    fn records_of_near_slots_share_no_pair_of_cache_lines() {
        // Miri takes half an hour for all slots.
        let step = if cfg!(miri) { 97 } else { 1 };
        for slot in (0..RECORD_SLOTS).step_by(step) {
            for other in slot + 1..(slot + ROW).min(RECORD_SLOTS) {
                assert_ne!(record(0, slot) / STRIDE, record(0, other) / STRIDE, "{slot} and {other}");
            }
        }
    }
}

//! Doorbells: how the driver announces work without an access that traps.
//!
//! Each queue has a record of two words in the register file, by its slot:
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
pub(crate) const fn phase(index: u32) -> u32 {
    if (index / crate::registers::FIFO_ENTRIES).is_multiple_of(2) { PHASE } else { 0 }
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

//! Doorbells: how the driver says that there is work, without trapping.
//!
//! Each queue has a record of two words in the register file, by its slot:
//!
//! | | word 0 | word 1 |
//! |---|---|---|
//! | work queues (SQ, RQ, SRQ, admin) | `tail`: blocks (SQ) or entries posted since creation, modulo 2^32 | `armed`: 1 = the device wants to be told |
//! | CQ, EQ | `head`: entries consumed since creation, modulo 2^32 | `arm`: [`ARM_NONE`], [`ARM_NEXT`] or [`ARM_SOLICITED`] |
//!
//! **Work queues.** To post, the driver writes the descriptor, stores `tail` (release), and swaps `armed` for 0. If it was
//! 1, it takes the next index of the FIFO (fetch-add on the FIFO's tail) and stores [`entry`] there (release).
//! Then (after a full barrier) it compares that index with the FIFO's event index: if they are equal the device
//! sleeps for this very entry, and the driver kicks.
//! The device takes the entry, swaps `armed` for 1, and only then reads `tail`. So a queue has at most one entry
//! in the FIFO, which therefore cannot overflow, and a post that finds `armed` = 0 knows that its tail will be seen.
//!
//! A send queue is armed at creation. A receive queue and an SRQ are not: the device reads their tail when a message
//! arrives, and arms them only while it waits for a buffer or flushes.
//!
//! **CQ and EQ.** To be interrupted, the consumer stores `arm` and then looks once more for an entry. The device
//! writes an entry, then swaps `arm` for 0, and if it was armed for this entry raises an event.

/// Which kind of queue an entry speaks of.
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
/// Tell of the next entry.
pub const ARM_NEXT: u32 = 1;
/// Tell of the next entry that is solicited or is an error (CQ only).
pub const ARM_SOLICITED: u32 = 2;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 8;

const PHASE: u32 = 1 << 31;
const KIND_SHIFT: u32 = 28;
const SLOT_MASK: u32 = (1 << 24) - 1;

/// The FIFO entry for `slot` of `kind` at free-running FIFO index `index`.
///
/// The top bit is the phase: 1 on the first pass over the (zeroed) FIFO, 0 on the second, and so on.
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

/// Takes an entry apart; `None` if no such kind exists.
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

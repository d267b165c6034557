//! Numbers that name objects, and how a generation fits into them.
//!
//! The driver chooses every number; the device refuses one that is out of range or taken. Where the
//! wire has spare bits, the low bits are a slot and the bits above a generation, so that a late
//! packet for a destroyed object does not reach the new owner of its slot.

/// Slots for queue pairs, a power of two. Slots 0 and 1 are the management QPs; slot 0 is never
/// used.
pub const MAX_QPS: u32 = 1 << 14;
/// Slots for completion queues.
pub const MAX_CQS: u32 = 1 << 14;
/// Slots for shared receive queues.
pub const MAX_SRQS: u32 = 1 << 12;
/// Slots for event queues.
pub const MAX_EQS: u32 = 1 << 6;
/// Slots for protection domains. Domain 0 is never used.
pub const MAX_PDS: u32 = 1 << 15;
/// Slots for memory keys (regions and windows together). Slot 0 is the reserved key's.
pub const MAX_KEYS: u32 = 1 << 16;

/// Slots for streams and listeners.
pub const MAX_STREAMS: u32 = 1 << 12;

/// Bits of a QP number that name the slot; the 10 bits above are a generation.
pub const QPN_SLOT_BITS: u32 = 14;
/// Bits of a QP number.
pub const QPN_BITS: u32 = 24;
/// Multicast groups that the queue pairs of a NIC may have joined.
pub const MAX_GROUPS: u32 = 1 << 8;
/// Queue pairs that may have joined one group.
pub const MAX_GROUP_QPS: u32 = 1 << 6;
/// The general services QP (IBTA 3.9.1): its number is fixed and has no generation.
pub const QPN_GSI: u32 = 1;

/// Composes a QP number from a slot and a generation (of which 10 bits are kept).
pub const fn qpn(slot: u32, generation: u32) -> u32 {
    (slot & (MAX_QPS - 1)) | (generation << QPN_SLOT_BITS) & ((1 << QPN_BITS) - 1)
}

/// The slot of a QP number.
pub const fn qpn_slot(qpn: u32) -> u32 {
    qpn & (MAX_QPS - 1)
}

/// Composes a memory key from a slot (bits 8..24) and a count, of which 16 bits are kept: the low
/// eight are the key's low eight bits, the high eight its high eight. So keys that differ in their
/// low eight bits only, of which a consumer of verbs chooses one for each bind of a narrow window,
/// name one slot.
///
/// A region or window has two keys. The *local* key counts the owners of the slot: it names the
/// region or window from its creation until it is destroyed. The *remote* key counts links: each
/// registration, fast register or bind brings a new one, which peers use until the next one or the
/// unlink.
pub const fn key(slot: u32, count: u32) -> u32 {
    count & 0xff | (slot & (MAX_KEYS - 1)) << 8 | (count >> 8 & 0xff) << 24
}

/// The slot of a memory key, local or remote.
pub const fn key_slot(key: u32) -> u32 {
    key >> 8 & (MAX_KEYS - 1)
}

/// The reserved local key: segment addresses are bus addresses, which the device may read and
/// write, bounded only by what the device can reach. Only for queue pairs that were created
/// privileged; never a remote key, never the sink of an RDMA Read (IT-API
/// "direct LMR handle").
pub const KEY_RESERVED: u32 = 0;

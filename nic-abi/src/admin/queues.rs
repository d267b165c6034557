//! Event queues, completion queues and shared receive queues.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(doc)]
use super::Opcode;

/// Arguments of [`Opcode::CreateEq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateEq {
    /// Bus address of the zeroed ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two, at least 1.
    pub log_entries: u32,
    /// Interrupt vector.
    pub vector: u32,
}

/// Arguments of [`Opcode::CreateCq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCq {
    /// Bus address of the zeroed ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two, at least 1.
    pub log_entries: u32,
    /// Event queue.
    pub eq: u32,
    /// Returned in events.
    pub generation: u32,
    /// [`CqFlags`].
    pub flags: u32,
}

bitflags! {
    /// Fixed properties of a completion queue.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct CqFlags: u32 {
        /// For virtual interfaces, and for nothing else: an entry for which there is no room is
        /// lost, and the queue goes on.
        const VI = 1 << 0;
    }
}

/// Arguments of [`Opcode::ResizeCq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeCq {
    /// Bus address of the new, zeroed ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two; not fewer than are unconsumed.
    pub log_entries: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Result of [`Opcode::ResizeCq`] and [`Opcode::QueryCq`].
///
/// After a resize both indices go on counting; the entry at free-running index `i` is at `i` modulo
/// the new size, with the phase of the new size. The device gives all other entries of the new ring
/// the phase of unwritten entries.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CqInfo {
    /// Free-running index of the next entry that the device will write.
    pub producer: u32,
    /// 1 if the CQ has failed.
    pub failed: u32,
}

/// Arguments of [`Opcode::CreateSrq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrq {
    /// Bus address of the ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two, at least 0.
    pub log_entries: u32,
    /// Segments that an entry has room for.
    pub max_segments: u32,
    /// Protection domain.
    pub pd: u32,
    /// Returned in events.
    pub generation: u32,
    /// The limit event is raised when fewer entries than this are left; 0 disarms it.
    pub limit: u32,
    /// Event queue for the limit event.
    pub eq: u32,
}

/// Arguments of [`Opcode::ModifySrq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifySrq {
    /// The new limit; arms the event once.
    pub limit: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Arguments of [`Opcode::ResizeSrq`].
///
/// The device goes on at the same free-running index, modulo the new size. So the driver writes all
/// entries that may not be taken yet into the new ring before the command, and while the command is
/// under way it writes what it posts into both rings.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeSrq {
    /// Bus address of the new ring, 64-byte aligned.
    pub ring: u64,
    /// Entries as a power of two; not fewer than are posted and not taken.
    pub log_entries: u32,
    /// The new limit, which arms the event once; 0 keeps the old limit.
    pub limit: u32,
}

/// Result of [`Opcode::QuerySrq`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SrqInfo {
    /// Entries taken since creation.
    pub taken: u32,
    /// The limit while armed, else 0.
    pub limit: u32,
}

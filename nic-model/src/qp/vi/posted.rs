//! A posted descriptor, as the queue pair keeps it until it is complete.

use nic_abi::vi::{ENTRY, RING_HEAD};
use nic_abi::wqe::LinkFlags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

/// The rights that the device needs to a descriptor's memory.
pub(super) const OWN: LinkFlags = LinkFlags::LOCAL_READ.union(LinkFlags::LOCAL_WRITE);

/// A posted descriptor, and the parts of it that its completion needs. For a work request it is in
/// `Work::args`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::qp) struct Descriptor {
    pub address: u64,
    pub handle: u32,
    /// Its free-running index in the ring.
    pub index: u32,
    /// Segment count and control field.
    pub control: u32,
    /// Bytes of its data segments.
    pub length: u32,
    pub reserved: u64,
}

impl Descriptor {
    /// The descriptor of a work request with these arguments.
    pub fn of(args: [u64; 4]) -> Descriptor {
        transmute!(args)
    }
}

/// Bus address of the entry at a free-running index of a ring.
pub(super) fn entry(ring: u64, log: u32, index: u32) -> u64 {
    ring + RING_HEAD as u64 + u64::from(index & ((1 << log) - 1)) * ENTRY as u64
}

const _: () = assert!(size_of::<Descriptor>() == size_of::<[u64; 4]>());

//! Receive queues, and the entries of receive queues and SRQs: taken when a message arrives, read
//! once, checked, and kept until complete.

use alloc::vec::Vec;
use core::mem::offset_of;

use nic_abi::wqe::{ReceiveFlags, ReceiveHeader, Segment};

use crate::memory::GuestMemory;

/// A receive queue; unused if the queue pair has an SRQ.
pub(crate) struct ReceiveQueue {
    pub ring: u64,
    pub log: u32,
    pub max_segments: u32,
    /// Entries taken since creation.
    pub head: u32,
}

/// A receive entry that was taken.
#[derive(Default)]
pub(crate) struct Receive {
    /// Whether the other fields are valid.
    pub loaded: bool,
    pub tag: u32,
    pub solicited: bool,
    /// No more than the queue was created for. The allocation is kept for later entries.
    pub segments: Vec<Segment>,
    /// Bytes of all segments.
    pub room: u64,
}

/// Why there is no receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReceive {
    /// None is posted.
    Empty,
    /// An entry was taken, but it is malformed: the offset of the bad field.
    Field(usize),
    /// The queue's memory cannot be accessed, or its doorbell record is impossible.
    Broken,
    /// An entry was taken, but the device may not read a part of its descriptor.
    Protection,
}

/// Where the next entry of a queue is, and how many segments it may have.
pub(super) struct Next {
    pub addr: u64,
    pub max_segments: u32,
}

impl Receive {
    /// Begins an entry of which only the tag is known yet.
    #[inline]
    pub fn begin(&mut self, tag: u32) {
        self.loaded = true;
        self.tag = tag;
        self.solicited = false;
        self.room = 0;
        self.segments.clear();
    }

    /// Reads the entry at `next` and checks it.
    pub(super) fn load<M: GuestMemory>(&mut self, memory: &M, next: &Next) -> Result<(), NoReceive> {
        let header: ReceiveHeader = memory.load(next.addr).map_err(|_| NoReceive::Broken)?;
        self.begin(header.tag);
        if header.segments > next.max_segments {
            return Err(NoReceive::Field(offset_of!(ReceiveHeader, segments)));
        }
        let flags = ReceiveFlags::from_bits(header.flags)
            .ok_or(NoReceive::Field(offset_of!(ReceiveHeader, flags)))?;
        if header.reserved != 0 {
            return Err(NoReceive::Field(offset_of!(ReceiveHeader, reserved)));
        }
        self.solicited = flags.contains(ReceiveFlags::SOLICITED);
        for i in 0..u64::from(header.segments) {
            let at = next.addr + (size_of::<ReceiveHeader>() as u64) + i * size_of::<Segment>() as u64;
            let segment: Segment = memory.load(at).map_err(|_| NoReceive::Broken)?;
            self.room += u64::from(segment.length);
            self.segments.push(segment);
        }
        Ok(())
    }
}

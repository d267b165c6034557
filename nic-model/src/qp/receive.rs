//! Entries of receive queues and SRQs: taken when a message arrives, read once, checked, and kept
//! until complete.

use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use nic_abi::registers::RQ_RECORDS;
use nic_abi::wqe::{LinkFlags, ReceiveFlags, ReceiveHeader, Segment, receive_stride};
use platform::planted::{Bug, planted};

use super::Qp;
use crate::Frontend;
use crate::keys::Violation;
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::transfer::Spans;

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
struct Next {
    addr: u64,
    max_segments: u32,
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
    fn load<M: GuestMemory>(&mut self, memory: &M, next: &Next) -> Result<(), NoReceive> {
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

impl Qp {
    /// Takes a receive for a message, unless one is taken already.
    pub fn take_receive<F: Frontend>(&mut self, nic: &mut Nic<F>) -> Result<(), NoReceive> {
        if self.inbound.receive.loaded {
            return Ok(());
        }
        if self.vi.is_some() {
            return self.take_descriptor(nic);
        }
        match self.srq {
            Some(number) => {
                let next = next_shared(nic, number)?;
                let taken = self.inbound.receive.load(nic.frontend.memory(), &next);
                if let Some(srq) = nic.srqs.get_mut(number).filter(|_| !planted(Bug::ReceiveTwice)) {
                    srq.head = srq.head.wrapping_add(1);
                }
                nic.check_srq_limit(number);
                taken
            }
            None => {
                let next = self.next_own(nic)?;
                let taken = self.inbound.receive.load(nic.frontend.memory(), &next);
                self.receive.head = self.receive.head.wrapping_add(1);
                taken
            }
        }
    }

    /// Receives in the queue pair's own queue that are posted and not taken; `None` if the doorbell
    /// record is impossible.
    pub fn posted_receives<F: Frontend>(&self, nic: &Nic<F>) -> Option<u32> {
        let tail = nic.record(RQ_RECORDS, self.id.slot, 0).load(Ordering::Acquire);
        let posted = tail.wrapping_sub(self.receive.head);
        (posted <= 1 << self.receive.log).then_some(posted)
    }

    fn next_own<F: Frontend>(&self, nic: &mut Nic<F>) -> Result<Next, NoReceive> {
        let queue = &self.receive;
        match self.posted_receives(nic) {
            None => {
                nic.stats.bad_tails += 1;
                Err(NoReceive::Broken)
            }
            Some(0) => Err(NoReceive::Empty),
            Some(_) => Ok(Next {
                addr: entry_addr(queue.ring, queue.log, queue.head, queue.max_segments),
                max_segments: queue.max_segments,
            }),
        }
    }

    /// Appends the memory of the taken receive to `spans`. Receives of an SRQ use the SRQ's
    /// protection domain.
    pub fn receive_spans<F: Frontend>(&self, nic: &Nic<F>, spans: &mut Spans) -> Result<(), Violation> {
        let pd = match self.srq {
            Some(number) => nic.srqs.get(number).ok_or(Violation)?.pd,
            None => self.pd,
        };
        let segments = &self.inbound.receive.segments;
        nic.local_spans(segments, pd, LinkFlags::LOCAL_WRITE, self.key_kind(true), spans)
    }
}

fn next_shared<F: Frontend>(nic: &mut Nic<F>, number: u32) -> Result<Next, NoReceive> {
    let left = nic.srq_left(number);
    let srq = nic.srqs.get(number).filter(|s| !s.failed).ok_or(NoReceive::Broken)?;
    match left {
        None => {
            nic.stats.bad_tails += 1;
            nic.fail_srq(number);
            Err(NoReceive::Broken)
        }
        Some(0) => Err(NoReceive::Empty),
        Some(_) => Ok(Next {
            addr: entry_addr(srq.ring, srq.log, srq.head, srq.max_segments),
            max_segments: srq.max_segments,
        }),
    }
}

fn entry_addr(ring: u64, log: u32, index: u32, max_segments: u32) -> u64 {
    ring + u64::from(index & ((1 << log) - 1)) * u64::from(receive_stride(max_segments))
}

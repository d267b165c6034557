//! Takes entries from the work queues: requests from a send queue, receives from a receive queue or
//! an SRQ.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use nic_abi::registers::RQ_RECORDS;
use nic_abi::wqe::{self, Header, LinkFlags, Opcode, Segment, SendFlags, Wqe, receive_stride};
use platform::planted::{Bug, planted};
use zerocopy::transmute;

use super::Qp;
use super::receive::{Next, NoReceive};
use super::send::BadEntry;
use crate::Frontend;
use crate::keys::Violation;
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::transfer::Spans;

impl Qp {
    /// Reads and checks the entry at the head of the send queue. Even of a malformed entry `work`
    /// then has the tag, the opcode byte and a number of blocks, so that it can be completed.
    #[inline]
    pub fn fetch<F: Frontend>(&mut self, nic: &Nic<F>) -> Result<(), BadEntry> {
        if self.vi.is_some() {
            return self.fetch_descriptor(nic);
        }
        let memory = nic.frontend.memory();
        let posted = self.send.posted();
        let first = self.send.block(self.send.head);
        let work = &mut self.send.work;
        // All posted blocks, unless the entry has a valid number.
        work.begin(posted);
        let entry: Wqe = memory.load(first)?;
        let header = entry.header;
        (work.header, work.args) = (header, entry.args);
        let blocks = u32::from(header.blocks);
        if blocks == 0 || blocks > posted {
            return Err(BadEntry::Field(offset_of!(Header, blocks)));
        }
        work.blocks = blocks;
        work.opcode = Opcode::from_byte(header.opcode).ok_or(BadEntry::Field(offset_of!(Header, opcode)))?;
        work.flags = SendFlags::from_bits(header.flags).ok_or(BadEntry::Field(offset_of!(Header, flags)))?;
        let segments = u32::from(header.segments);
        if !self.kind.carries_out(work.opcode) {
            return Err(BadEntry::Field(offset_of!(Header, opcode)));
        }
        let (fits, expected) = match work.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => (segments == 1, 1),
            Opcode::FastRegister | Opcode::LocalInvalidate | Opcode::BindWindow => (segments == 0, 1),
            _ => (segments <= self.send.max_segments, self.kind.blocks(segments)),
        };
        if !fits {
            return Err(BadEntry::Field(offset_of!(Header, segments)));
        }
        if blocks != expected {
            return Err(BadEntry::Field(offset_of!(Header, blocks)));
        }
        if header.length != 0 && !matches!(work.opcode, Opcode::FastRegister | Opcode::BindWindow) {
            return Err(BadEntry::Field(offset_of!(Header, length)));
        }
        self.fetch_segments(memory, segments)
    }

    #[inline]
    fn fetch_segments<M: GuestMemory>(&mut self, memory: &M, count: u32) -> Result<(), BadEntry> {
        let first: [Segment; 2] = transmute!(self.send.work.args);
        let mut left = count as usize;
        if self.kind.is_connected() {
            let here = left.min(first.len());
            self.keep(&first[..here]);
            left -= here;
        }
        let mut index = self.send.head;
        while left > 0 {
            index = index.wrapping_add(1);
            let block: [Segment; wqe::BLOCK_SEGMENTS as usize] = memory.load(self.send.block(index))?;
            let here = left.min(block.len());
            self.keep(&block[..here]);
            left -= here;
        }
        Ok(())
    }

    #[inline]
    fn keep(&mut self, segments: &[Segment]) {
        let work = &mut self.send.work;
        for segment in segments {
            work.total += u64::from(segment.length);
            work.segments.push(*segment);
        }
    }

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

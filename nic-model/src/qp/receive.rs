//! Entries of receive queues and SRQs: taken when a message arrives, read once, checked, kept until complete.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use heapless::Vec;
use nic_abi::registers::RQ_RECORDS;
use nic_abi::wqe::{ReceiveFlags, ReceiveHeader, Segment, receive_stride};

use crate::Frontend;
use crate::keys::Violation;
use crate::limits::MAX_SGES;
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::transfer::Spans;
use nic_abi::ident::KEY_RESERVED;
use nic_abi::wqe::LinkFlags;

use crate::keys::Span;

/// A receive entry that was taken.
#[derive(Default)]
pub(crate) struct Receive {
    /// The rest means something.
    pub loaded: bool,
    pub tag: u32,
    pub solicited: bool,
    pub segments: Vec<Segment, MAX_SGES>,
    /// Bytes of all segments.
    pub room: u64,
}

/// Why there is no receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReceive {
    /// Nothing is posted.
    Empty,
    /// One was taken, but it is malformed: the field at this offset.
    Field(usize),
    /// The queue's memory or its doorbell makes no sense.
    Broken,
}

/// Where an entry is, and how large it may be.
struct Place {
    addr: u64,
    max_segments: u32,
}

impl<F: Frontend> Nic<F> {
    /// Makes sure that the queue pair in `slot` has a receive to write to.
    pub fn take_receive(&mut self, slot: u32) -> Result<(), NoReceive> {
        let Some(qp) = self.qps.get(slot) else { return Err(NoReceive::Broken) };
        if qp.inbound.receive.loaded {
            return Ok(());
        }
        let srq = qp.srq;
        let place = match srq {
            Some(number) => self.next_shared(number)?,
            None => self.next_own(slot)?,
        };
        let taken = self.read_receive(slot, &place);
        match srq {
            Some(number) => {
                if let Some(srq) = self.srqs.get_mut(number) {
                    srq.head = srq.head.wrapping_add(1);
                }
                self.check_srq_limit(number);
            }
            None => {
                if let Some(qp) = self.qps.get_mut(slot) {
                    qp.receive.head = qp.receive.head.wrapping_add(1);
                }
            }
        }
        taken
    }

    /// Receives posted to a queue pair's own queue and not taken; `None` if the record makes no sense.
    pub fn posted_receives(&self, slot: u32) -> Option<u32> {
        let queue = &self.qps.get(slot)?.receive;
        let tail = self.record(RQ_RECORDS, slot, 0).load(Ordering::Acquire);
        let posted = tail.wrapping_sub(queue.head);
        (posted <= 1 << queue.log).then_some(posted)
    }

    fn next_own(&mut self, slot: u32) -> Result<Place, NoReceive> {
        let posted = self.posted_receives(slot);
        let queue = self.qps.get(slot).map(|q| &q.receive).ok_or(NoReceive::Broken)?;
        match posted {
            None => {
                self.stats.bad_tails += 1;
                Err(NoReceive::Broken)
            }
            Some(0) => Err(NoReceive::Empty),
            Some(_) => Ok(Place {
                addr: entry_addr(queue.ring, queue.log, queue.head, queue.max_segments),
                max_segments: queue.max_segments,
            }),
        }
    }

    fn next_shared(&mut self, number: u32) -> Result<Place, NoReceive> {
        let left = self.srq_left(number);
        let srq = self.srqs.get(number).filter(|s| !s.failed).ok_or(NoReceive::Broken)?;
        match left {
            None => {
                self.stats.bad_tails += 1;
                self.fail_srq(number);
                Err(NoReceive::Broken)
            }
            Some(0) => Err(NoReceive::Empty),
            Some(_) => Ok(Place {
                addr: entry_addr(srq.ring, srq.log, srq.head, srq.max_segments),
                max_segments: srq.max_segments,
            }),
        }
    }

    fn read_receive(&mut self, slot: u32, place: &Place) -> Result<(), NoReceive> {
        let memory = self.frontend.memory();
        let receive = self.qps.get_mut(slot).map(|q| &mut q.inbound.receive).ok_or(NoReceive::Broken)?;
        let header: ReceiveHeader = memory.load(place.addr).map_err(|_| NoReceive::Broken)?;
        receive.loaded = true;
        receive.tag = header.tag;
        receive.solicited = false;
        receive.room = 0;
        receive.segments.clear();
        if header.segments > place.max_segments {
            return Err(NoReceive::Field(offset_of!(ReceiveHeader, segments)));
        }
        let flags = ReceiveFlags::from_bits(header.flags)
            .ok_or(NoReceive::Field(offset_of!(ReceiveHeader, flags)))?;
        if header.reserved != 0 {
            return Err(NoReceive::Field(offset_of!(ReceiveHeader, reserved)));
        }
        receive.solicited = flags.contains(ReceiveFlags::SOLICITED);
        for i in 0..u64::from(header.segments) {
            let at = place.addr + (size_of::<ReceiveHeader>() as u64) + i * size_of::<Segment>() as u64;
            let segment: Segment = memory.load(at).map_err(|_| NoReceive::Broken)?;
            receive.room += u64::from(segment.length);
            receive
                .segments
                .push(segment)
                .map_err(|_| NoReceive::Field(offset_of!(ReceiveHeader, segments)))?;
        }
        Ok(())
    }

    /// The memory of the receive that the queue pair in `slot` has taken. An SRQ's receives are of the SRQ's domain.
    pub fn receive_spans(&self, slot: u32) -> Result<Spans, Violation> {
        let qp = self.qps.get(slot).ok_or(Violation)?;
        let pd = match qp.srq {
            Some(number) => self.srqs.get(number).ok_or(Violation)?.pd,
            None => qp.pd,
        };
        self.local_spans(&qp.inbound.receive.segments, pd, LinkFlags::LOCAL_WRITE, qp.privileged)
    }

    /// Checks local segments. Where `reserved`, the reserved key stands for bus addresses.
    #[inline]
    pub fn local_spans(
        &self,
        segments: &[Segment],
        pd: u32,
        right: LinkFlags,
        reserved: bool,
    ) -> Result<Spans, Violation> {
        let mut spans = Spans::new();
        for segment in segments {
            // Nothing is accessed, so nothing is violated (IBTA 10.6.3.1).
            if segment.length == 0 {
                continue;
            }
            let length = u64::from(segment.length);
            let span = if segment.key == KEY_RESERVED {
                let end = segment.addr.checked_add(length);
                if !reserved || end.is_none_or(|end| end > self.config.dma_limit) {
                    return Err(Violation);
                }
                Span { region: 0, offset: segment.addr, length }
            } else {
                self.keys.local(segment.key, pd, segment.addr, length, right)?
            };
            spans.push(span).map_err(|_| Violation)?;
        }
        Ok(spans)
    }
}

fn entry_addr(ring: u64, log: u32, index: u32, max_segments: u32) -> u64 {
    ring + u64::from(index & ((1 << log) - 1)) * u64::from(receive_stride(max_segments))
}

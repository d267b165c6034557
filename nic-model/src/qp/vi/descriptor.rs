//! Reading descriptors. The ring names a descriptor; the device reads it once and checks it
//! (chapter 10).

use core::mem::offset_of;

use nic_abi::cqe::Status;
use nic_abi::vi::{
    AddressSegment, Control, ControlSegment, DESCRIPTOR_ALIGN, DataSegment, Post, Reliability, SEGMENT,
    ViError,
};
use nic_abi::wqe::{Opcode, Segment, SendFlags};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, transmute};

use super::operation_bits;
use super::posted::{Descriptor, OWN, entry};
use crate::Frontend;
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp::receive::NoReceive;
use crate::qp::send::{BadEntry, Work};
use crate::transfer::get;

/// Data segments that one step reads.
const CHUNK: usize = 16;
/// Segments in a descriptor's first line.
const IN_LINE: usize = (DESCRIPTOR_ALIGN as usize - size_of::<ControlSegment>()) / SEGMENT;
/// The most unreadable receives that are skipped for one message.
const PASSED_OVER: u32 = 16;

/// The first line of a descriptor: its control segment, and two segments if `whole`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Line {
    control: ControlSegment,
    segments: [DataSegment; IN_LINE],
}

/// The part of a descriptor that is read at once. Most descriptors are no longer, so that one
/// look-up of their memory is enough.
pub(super) struct Head {
    line: Line,
    /// Whether the segments of the line were read, too.
    whole: bool,
}

impl Head {
    pub fn control(&self) -> &ControlSegment {
        &self.line.control
    }
}

/// Reads the first line of the descriptor that an entry of a ring names. If the control segment
/// cannot be accessed, returns the descriptor without a line.
#[inline(always)]
fn read_head<F: Frontend>(nic: &Nic<F>, pd: u32, at: u64, index: u32) -> (Descriptor, Option<Head>) {
    let Ok(post) = nic.frontend.memory().load::<Post>(at) else {
        return (Descriptor { index, ..Descriptor::default() }, None);
    };
    let mut descriptor =
        Descriptor { address: post.address, handle: post.handle, index, ..Descriptor::default() };
    let Some(head) = read_line(nic, pd, &descriptor) else { return (descriptor, None) };
    let control = head.control();
    descriptor.control = u32::from(control.segments) | u32::from(control.control) << 16;
    (descriptor, Some(head))
}

/// Reads the first line. Reads only the control segment if the region ends after it, or if the
/// region's list splits the line.
#[inline(always)]
fn read_line<F: Frontend>(nic: &Nic<F>, pd: u32, descriptor: &Descriptor) -> Option<Head> {
    let length = size_of::<Line>() as u64;
    if descriptor.address.is_multiple_of(DESCRIPTOR_ALIGN)
        && let Ok(span) = nic.keys.by_handle(descriptor.handle, pd, descriptor.address, length, OWN)
        && let Some((addr, contiguous)) = nic.keys.translate(span.region, span.offset)
        && contiguous >= length
        && let Ok(line) = nic.frontend.memory().load(addr)
    {
        return Some(Head { line, whole: true });
    }
    let mut line = Line::new_zeroed();
    read(nic, pd, descriptor, 0, line.control.as_mut_bytes()).then_some(Head { line, whole: false })
}

/// Reads bytes of a descriptor. All bytes up to the end of these have to be in one region. False if
/// the device may not read them.
fn read<F: Frontend>(nic: &Nic<F>, pd: u32, descriptor: &Descriptor, skip: usize, into: &mut [u8]) -> bool {
    let length = (skip + into.len()) as u64;
    descriptor.address.is_multiple_of(DESCRIPTOR_ALIGN)
        && nic
            .keys
            .by_handle(descriptor.handle, pd, descriptor.address, length, OWN)
            .is_ok_and(|span| get(&nic.side(&[span], skip as u64), into).is_ok())
}

/// Passes data segments to `keep`, and reads those that are not in the first line. False if the
/// device may not read them.
#[inline(always)]
fn read_segments<F: Frontend>(
    nic: &Nic<F>,
    pd: u32,
    descriptor: &Descriptor,
    head: &Head,
    (first, count): (usize, usize),
    mut keep: impl FnMut(&DataSegment),
) -> bool {
    let in_line = match head.whole {
        true => head.line.segments.get(first..).unwrap_or_default(),
        false => &[],
    };
    let in_line = &in_line[..in_line.len().min(count)];
    in_line.iter().for_each(&mut keep);
    let (first, count) = (first + in_line.len(), count - in_line.len());
    count == 0 || read_more(nic, pd, descriptor, first, count, keep)
}

/// Reads data segments and passes each to `keep`. False if the device may not read them.
#[inline(never)]
fn read_more<F: Frontend>(
    nic: &Nic<F>,
    pd: u32,
    descriptor: &Descriptor,
    first: usize,
    count: usize,
    mut keep: impl FnMut(&DataSegment),
) -> bool {
    let mut done = 0;
    while done < count {
        let mut chunk = [DataSegment::new_zeroed(); CHUNK];
        let here = &mut chunk[..(count - done).min(CHUNK)];
        let skip = size_of::<ControlSegment>() + SEGMENT * (first + done);
        if !read(nic, pd, descriptor, skip, here.as_mut_bytes()) {
            return false;
        }
        here.iter().for_each(&mut keep);
        done += here.len();
    }
    true
}

/// A data segment in the form of a work request's segment.
fn local(segment: &DataSegment) -> Segment {
    Segment { addr: segment.address, length: segment.length, key: segment.handle }
}

impl Qp {
    /// Records the descriptor at the head of the send queue, and reads its first line. Afterwards
    /// the work request can be completed, unless the control segment cannot be read.
    #[inline(always)]
    fn begin_descriptor<F: Frontend>(&mut self, nic: &Nic<F>) -> Option<Head> {
        let send = &mut self.send;
        let at = entry(send.ring, send.log, send.head);
        let (descriptor, head) = read_head(nic, self.pd, at, send.head);
        send.work.begin(1);
        send.work.args = transmute!(descriptor);
        let head = head?;
        let flags = Control::from_bits_retain(head.control().control);
        send.work.opcode = opcode(flags).unwrap_or(Opcode::Send);
        send.work.header.opcode = send.work.opcode as u8;
        Some(head)
    }

    /// Reads and checks the descriptor at the head of the send queue.
    #[inline(never)]
    pub(in crate::qp) fn fetch_descriptor<F: Frontend>(&mut self, nic: &Nic<F>) -> Result<(), BadEntry> {
        let head = self.begin_descriptor(nic).ok_or(BadEntry::Unreachable)?;
        let control = head.control();
        let format = Err(BadEntry::Status(Status::LocalQpOperation));
        let Some(flags) = Control::from_bits(control.control) else { return format };
        let Some(opcode) = opcode(flags) else { return format };
        let work = &mut self.send.work;
        work.header.immediate = control.immediate;
        work.flags.set(SendFlags::FENCE_ALL, flags.contains(Control::QUEUE_FENCE));
        if control.reserved != 0 || opcode == Opcode::Read && !reads(self.vi.as_ref().map(|vi| vi.level)) {
            return format;
        }
        let rdma = operation_bits(opcode) != nic_abi::vi::Status::empty();
        let Some(count) = usize::from(control.segments).checked_sub(usize::from(rdma)) else { return format };
        if count > self.send.max_segments as usize {
            return format;
        }
        let descriptor = Descriptor::of(work.args);
        let protection = BadEntry::Status(Status::LocalProtection);
        if rdma {
            let header = &mut work.header;
            let mut reserved = 0;
            let address = |segment: &DataSegment| {
                let AddressSegment { address, handle, reserved: rest } = transmute!(*segment);
                (header.remote_addr, header.remote_key, reserved) = (address, handle, rest);
            };
            if !read_segments(nic, self.pd, &descriptor, &head, (0, 1), address) {
                return Err(protection);
            }
            if reserved != 0 {
                return format;
            }
        }
        let Work { segments, total, .. } = work;
        let all = read_segments(nic, self.pd, &descriptor, &head, (usize::from(rdma), count), |segment| {
            *total += u64::from(segment.length);
            segments.push(local(segment));
        });
        if !all {
            return Err(protection);
        }
        if *total != u64::from(control.length) {
            return Err(BadEntry::Status(Status::LocalLength));
        }
        work.args = transmute!(Descriptor { length: control.length, ..descriptor });
        if self.has_level(Reliability::Reception) {
            // If a message fails, nothing behind it may have been delivered (2.5, table 1). The
            // answer to an earlier one may be lost, so the peer sees this one only afterwards.
            self.send.work.flags |= SendFlags::FENCE_ALL;
        }
        Ok(())
    }

    /// Loads the descriptor at the head of the send queue to be flushed: only what its completion
    /// needs. False if it cannot be accessed; then it is removed from the queue, and an event
    /// reports it.
    pub(super) fn load_to_flush<F: Frontend>(&mut self, nic: &mut Nic<F>) -> bool {
        if self.begin_descriptor(nic).is_some() {
            return true;
        }
        self.pass_over_send(nic);
        false
    }

    /// Removes a descriptor that cannot be accessed from the send queue.
    #[inline(never)]
    pub(in crate::qp) fn pass_over_send<F: Frontend>(&mut self, nic: &mut Nic<F>) {
        let descriptor = Descriptor::of(self.send.work.args);
        self.send.work.loaded = false;
        self.send.head = descriptor.index.wrapping_add(1);
        self.lose(nic, self.send.ring, self.send.log, &descriptor);
        self.post_vi_error(nic, ViError::PostDescriptor, 0, descriptor.address);
    }

    /// Takes the next receive descriptor; `None` if there is none. A descriptor that cannot be
    /// accessed is skipped, which an event reports.
    pub(super) fn next_receive<F: Frontend>(&mut self, nic: &mut Nic<F>) -> Result<Option<Head>, NoReceive> {
        for _ in 0..PASSED_OVER {
            match self.posted_receives(nic) {
                None => return Err(NoReceive::Broken),
                Some(0) => return Ok(None),
                Some(_) => {}
            }
            let queue = &mut self.receive;
            let (ring, log, index) = (queue.ring, queue.log, queue.head);
            queue.head = index.wrapping_add(1);
            let (descriptor, head) = read_head(nic, self.pd, entry(ring, log, index), index);
            if head.is_some() {
                if let Some(vi) = &mut self.vi {
                    vi.receive = descriptor;
                }
                self.inbound.receive.begin(index);
                return Ok(head);
            }
            self.lose(nic, ring, log, &descriptor);
            let receive = nic_abi::vi::Status::OP_RECEIVE.bits() >> nic_abi::vi::OP_SHIFT;
            self.post_vi_error(nic, ViError::PostDescriptor, receive, descriptor.address);
            if !self.survives_errors() {
                return Err(NoReceive::Broken);
            }
        }
        Ok(None)
    }

    /// Takes a receive descriptor for a message, and checks it.
    #[inline(never)]
    pub(in crate::qp) fn take_descriptor<F: Frontend>(&mut self, nic: &mut Nic<F>) -> Result<(), NoReceive> {
        let head = match self.next_receive(nic) {
            Ok(Some(head)) => head,
            Ok(None) => return Err(NoReceive::Empty),
            Err(broken) => {
                if self.posted_receives(nic).is_none() {
                    nic.stats.bad_tails += 1;
                    self.overrun(nic, true);
                }
                return Err(broken);
            }
        };
        let control = head.control();
        let receive = Control::IMMEDIATE | Control::QUEUE_FENCE;
        if !Control::from_bits(control.control).is_some_and(|flags| receive.contains(flags)) {
            return Err(NoReceive::Field(offset_of!(ControlSegment, control)));
        }
        if control.reserved != 0 {
            return Err(NoReceive::Field(offset_of!(ControlSegment, reserved)));
        }
        if u32::from(control.segments) > self.receive.max_segments {
            return Err(NoReceive::Field(offset_of!(ControlSegment, segments)));
        }
        let Some(vi) = &self.vi else { return Err(NoReceive::Broken) };
        let taken = &mut self.inbound.receive;
        let all = read_segments(nic, self.pd, &vi.receive, &head, (0, control.segments.into()), |segment| {
            taken.room += u64::from(segment.length);
            taken.segments.push(local(segment));
        });
        if all { Ok(()) } else { Err(NoReceive::Protection) }
    }
}

/// Whether a reliability level has RDMA Reads.
fn reads(level: Option<Reliability>) -> bool {
    level.is_some_and(Reliability::is_reliable)
}

/// The work request that a control field asks for, on the send queue.
fn opcode(flags: Control) -> Option<Opcode> {
    let immediate = flags.contains(Control::IMMEDIATE);
    Some(match (flags.contains(Control::RDMA_WRITE), flags.contains(Control::RDMA_READ)) {
        (false, false) if immediate => Opcode::SendImmediate,
        (false, false) => Opcode::Send,
        (true, false) if immediate => Opcode::WriteImmediate,
        (true, false) => Opcode::Write,
        (false, true) => Opcode::Read,
        (true, true) => return None,
    })
}

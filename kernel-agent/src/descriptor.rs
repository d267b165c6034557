//! Descriptors in shared memory (appendix B): a view with getters and setters, and no references.
//!
//! For the faces that work with virtual interfaces.
//!
//! A consumer formats a descriptor, posts its address, and may then look at the status word as
//! often as it likes, without a call: once [`Descriptor::is_done`] is true, all other fields are
//! final.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use nic_abi::vi::{AddressSegment, Control, ControlSegment, DESCRIPTOR_ALIGN, DataSegment, Status};
use platform::{DmaBuffer, OutOfBounds, SharedSlice};
use zerocopy::{IntoBytes, transmute};

/// Bytes of the control segment.
pub const CONTROL_LEN: usize = size_of::<ControlSegment>();
/// Bytes of each segment that follows.
pub const SEGMENT_LEN: usize = size_of::<DataSegment>();

/// Where the fields of the control segment are.
const NEXT: usize = 0;
const NEXT_HANDLE: usize = 8;
const SEGMENTS: usize = 12;
const RESERVED: usize = 16;
const IMMEDIATE: usize = 20;
const LENGTH: usize = 24;
const STATUS: usize = 28;

/// The bytes of a descriptor with this many segments behind the control segment.
pub const fn descriptor_len(segments: usize) -> usize {
    CONTROL_LEN + SEGMENT_LEN * segments
}

/// A view of a descriptor. Copying the view copies no memory.
#[doc(alias = "VIP_DESCRIPTOR")]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    memory: SharedSlice<'a>,
}

impl<'a> Descriptor<'a> {
    /// A view of the descriptor that begins with this memory: all of its bytes are for segments.
    /// Fails unless the control segment fits, and the memory is aligned to 64 bytes.
    #[inline]
    pub fn new(memory: SharedSlice<'a>) -> Result<Descriptor<'a>, OutOfBounds> {
        if memory.len() < CONTROL_LEN || !(memory.as_ptr() as u64).is_multiple_of(DESCRIPTOR_ALIGN) {
            return Err(OutOfBounds);
        }
        Ok(Descriptor { memory })
    }

    /// A view of the descriptor at an offset of a buffer, with room for so many segments.
    #[inline]
    pub fn at(buffer: &'a DmaBuffer, offset: usize, segments: usize) -> Result<Descriptor<'a>, OutOfBounds> {
        Descriptor::new(buffer.slice().get(offset, descriptor_len(segments))?)
    }

    /// The virtual address, by which it is posted.
    #[inline]
    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Room for so many segments.
    pub fn room(&self) -> usize {
        (self.memory.len() - CONTROL_LEN) / SEGMENT_LEN
    }

    /// A word of the control segment. It is there and aligned: see `new`.
    #[inline]
    fn word(&self, at: usize) -> Option<&'a AtomicU32> {
        self.memory.atomic_u32(at).ok()
    }

    fn get(&self, at: usize) -> u32 {
        self.word(at).map_or(0, |word| u32::from_le(word.load(Ordering::Relaxed)))
    }

    fn set(&self, at: usize, value: u32) {
        if let Some(word) = self.word(at) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
    }

    /// The address of the descriptor that was posted after this one.
    pub fn next(&self) -> u64 {
        u64::from(self.get(NEXT)) | u64::from(self.get(NEXT + 4)) << 32
    }

    /// The memory handle of that descriptor.
    pub fn next_handle(&self) -> u32 {
        self.get(NEXT_HANDLE)
    }

    /// Segments behind the control segment.
    pub fn segments(&self) -> u16 {
        self.get(SEGMENTS) as u16
    }

    /// The control field, with undefined bits.
    pub fn control(&self) -> Control {
        Control::from_bits_retain((self.get(SEGMENTS) >> 16) as u16)
    }

    /// The reserved field.
    pub fn reserved(&self) -> u32 {
        self.get(RESERVED)
    }

    /// The immediate data.
    pub fn immediate(&self) -> u32 {
        self.get(IMMEDIATE)
    }

    /// Bytes of all data segments; of a descriptor that is complete, bytes moved.
    pub fn length(&self) -> u32 {
        self.get(LENGTH)
    }

    /// The status field, with undefined bits. If it has [`Status::DONE`], all fields that are read
    /// afterwards are final.
    #[inline]
    pub fn status(&self) -> Status {
        let word = self.word(STATUS).map_or(0, |word| u32::from_le(word.load(Ordering::Acquire)));
        Status::from_bits_retain(word)
    }

    /// Whether the descriptor is complete.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.status().contains(Status::DONE)
    }

    /// Sets Next and its memory handle. The provider does so when it posts the following
    /// descriptor.
    pub fn set_next(&self, next: u64, handle: u32) {
        self.set(NEXT, next as u32);
        self.set(NEXT + 4, (next >> 32) as u32);
        self.set(NEXT_HANDLE, handle);
    }

    /// Sets the number of segments and the control field.
    pub fn set_control(&self, segments: u16, control: Control) {
        self.set(SEGMENTS, u32::from(segments) | u32::from(control.bits()) << 16);
    }

    /// Sets the reserved field; any other value than 0 is a format error.
    pub fn set_reserved(&self, value: u32) {
        self.set(RESERVED, value);
    }

    /// Sets the immediate data.
    pub fn set_immediate(&self, value: u32) {
        self.set(IMMEDIATE, value);
    }

    /// Sets the length.
    pub fn set_length(&self, value: u32) {
        self.set(LENGTH, value);
    }

    /// Sets the status, which has to be 0 when the descriptor is posted.
    pub fn set_status(&self, status: Status) {
        self.set(STATUS, status.bits());
    }

    /// Writes a data segment to a place behind the control segment, from 0 on.
    pub fn set_data(&self, place: usize, segment: &DataSegment) -> Result<(), OutOfBounds> {
        self.put(place, segment.as_bytes())
    }

    /// Writes the address segment, which is in the first place of an RDMA descriptor.
    pub fn set_address(&self, segment: &AddressSegment) -> Result<(), OutOfBounds> {
        self.put(0, segment.as_bytes())
    }

    /// The segment in a place is in the byte order of x86 and of descriptors.
    fn put(&self, place: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let at = place.checked_mul(SEGMENT_LEN).and_then(|at| at.checked_add(CONTROL_LEN));
        self.memory.write(at.ok_or(OutOfBounds)?, bytes)
    }

    /// Formats a Send of these pieces of memory, with immediate data or without.
    #[inline]
    pub fn send(&self, data: &[DataSegment], immediate: Option<u32>) -> Result<(), OutOfBounds> {
        self.format(Control::empty(), None, data, immediate)
    }

    /// Formats a Receive into these pieces of memory.
    #[inline]
    pub fn receive(&self, data: &[DataSegment]) -> Result<(), OutOfBounds> {
        self.format(Control::empty(), None, data, None)
    }

    /// Formats an RDMA Write of these pieces of memory, with immediate data or without.
    #[inline]
    pub fn rdma_write(
        &self,
        to: &AddressSegment,
        data: &[DataSegment],
        immediate: Option<u32>,
    ) -> Result<(), OutOfBounds> {
        self.format(Control::RDMA_WRITE, Some(to), data, immediate)
    }

    /// Formats an RDMA Read into these pieces of memory.
    #[inline]
    pub fn rdma_read(&self, from: &AddressSegment, data: &[DataSegment]) -> Result<(), OutOfBounds> {
        self.format(Control::RDMA_READ, Some(from), data, None)
    }

    /// Writes all fields. Fails, with nothing changed, unless the segments fit.
    ///
    /// Whole words at a time: a consumer formats a descriptor for each request, and the compiler
    /// does not join stores to atomics.
    #[inline]
    fn format(
        &self,
        operation: Control,
        remote: Option<&AddressSegment>,
        data: &[DataSegment],
        immediate: Option<u32>,
    ) -> Result<(), OutOfBounds> {
        let segments = usize::from(remote.is_some()) + data.len();
        let count = u16::try_from(segments).map_err(|_| OutOfBounds)?;
        let words = self.memory.get(0, descriptor_len(count.into()))?.atomic_u64s()?;
        let Some((first, places)) = words.split_first_chunk::<{ CONTROL_LEN / 8 }>() else {
            return Err(OutOfBounds);
        };
        let (mut places, _) = places.as_chunks::<{ SEGMENT_LEN / 8 }>();
        let mut length = 0_u32;
        if let (Some(remote), [place, others @ ..]) = (remote, places) {
            set(place, &transmute!(*remote));
            places = others;
        }
        for (place, segment) in places.iter().zip(data) {
            set(place, &transmute!(*segment));
            length = length.wrapping_add(segment.length);
        }
        let mut control = operation;
        control.set(Control::IMMEDIATE, immediate.is_some());
        let control = ControlSegment {
            segments: count.to_le(),
            control: control.bits().to_le(),
            immediate: immediate.unwrap_or(0).to_le(),
            length: length.to_le(),
            ..ControlSegment::default()
        };
        let control: [u64; CONTROL_LEN / 8] = transmute!(control);
        set(first, &control);
        Ok(())
    }
}

/// Stores words as they are.
#[inline]
fn set<const N: usize>(places: &[AtomicU64; N], words: &[u64; N]) {
    for (place, word) in places.iter().zip(words) {
        place.store(*word, Ordering::Relaxed);
    }
}

/// Whether a status is that of success.
pub const fn is_success(status: Status) -> bool {
    status.bits() & 0xffff == Status::DONE.bits()
}

/// The operation that a status reports: the bits of [`Status::OP_MASK`].
pub const fn operation(status: Status) -> Status {
    status.intersection(Status::OP_MASK)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::sync::atomic::AtomicU64;
    use std::vec::Vec;

    use super::*;

    /// Memory of 512 bytes, and the 64-byte boundary in it.
    fn memory() -> (Vec<AtomicU64>, usize) {
        let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(u64::MAX)).collect();
        let offset = words.as_ptr().align_offset(64) * 8;
        (words, offset)
    }

    fn bytes(slice: SharedSlice<'_>) -> Vec<u8> {
        let mut bytes = std::vec![0; slice.len()];
        slice.read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn every_byte_is_where_appendix_b_has_it() {
        let (words, offset) = memory();
        let slice = SharedSlice::from(&words[..]).get(offset, descriptor_len(2)).unwrap();
        let descriptor = Descriptor::new(slice).unwrap();
        let data = DataSegment { address: 0x2122_2324_2526_2728, handle: 0x292a_2b2c, length: 0x2d2e_2f30 };
        let to = AddressSegment { address: 0x1112_1314_1516_1718, handle: 0x191a_1b1c, reserved: 0 };
        descriptor.rdma_write(&to, &[data], Some(0x5152_5354)).unwrap();
        descriptor.set_next(0x0102_0304_0506_0708, 0x090a_0b0c);
        let expected = [
            // Next (7:0) and its handle (11:8).
            8, 7, 6, 5, 4, 3, 2, 1, 0x0c, 0x0b, 0x0a, 9, //
            // Segment count (13:12), control (15:14), reserved (19:16).
            2, 0, 5, 0, 0, 0, 0, 0, //
            // Immediate data (23:20), length (27:24), status (31:28).
            0x54, 0x53, 0x52, 0x51, 0x30, 0x2f, 0x2e, 0x2d, 0, 0, 0, 0, //
            // Address segment: address (7:0), handle (11:8), reserved (15:12).
            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x1c, 0x1b, 0x1a, 0x19, 0, 0, 0, 0, //
            // Data segment: address (7:0), handle (11:8), length (15:12).
            0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, 0x2c, 0x2b, 0x2a, 0x29, 0x30, 0x2f, 0x2e, 0x2d,
        ];
        assert_eq!(bytes(slice), expected);
        assert_eq!(descriptor.next(), 0x0102_0304_0506_0708);
        assert_eq!((descriptor.next_handle(), descriptor.segments()), (0x090a_0b0c, 2));
        assert_eq!(descriptor.control(), Control::RDMA_WRITE | Control::IMMEDIATE);
        assert_eq!((descriptor.immediate(), descriptor.length()), (0x5152_5354, 0x2d2e_2f30));
        assert_eq!((descriptor.reserved(), descriptor.status()), (0, Status::empty()));
        slice.write(28, &[1, 0, 3, 0]).unwrap();
        assert!(descriptor.is_done());
        assert_eq!(operation(descriptor.status()), Status::OP_REMOTE_RDMA_WRITE);
    }

    #[test]
    fn each_field_is_set_and_read_by_itself() {
        let (words, offset) = memory();
        let slice = SharedSlice::from(&words[..]).get(offset, descriptor_len(2)).unwrap();
        let descriptor = Descriptor::new(slice).unwrap();
        let fields = || {
            let of_next = (descriptor.next(), descriptor.next_handle());
            let first = (descriptor.segments(), descriptor.control(), descriptor.reserved());
            (of_next, first, descriptor.immediate(), descriptor.length(), descriptor.status())
        };
        // All bits are set before.
        let (no_control, no_status) = (Control::from_bits_retain(!0), Status::from_bits_retain(!0));
        let nothing = ((!0, !0), (!0, no_control, !0), !0, !0, no_status);
        assert_eq!(fields(), nothing);
        descriptor.set_next(0x0102_0304_0506_0708, 9);
        let next = (0x0102_0304_0506_0708, 9);
        assert_eq!(fields(), (next, nothing.1, nothing.2, nothing.3, nothing.4));
        descriptor.set_control(0x0a0b, Control::RDMA_READ);
        descriptor.set_reserved(0x0c0d_0e0f);
        let first = (0x0a0b, Control::RDMA_READ, 0x0c0d_0e0f);
        assert_eq!(fields(), (next, first, nothing.2, nothing.3, nothing.4));
        descriptor.set_immediate(0x1011_1213);
        assert_eq!(fields(), (next, first, 0x1011_1213, nothing.3, nothing.4));
        descriptor.set_length(0x1415_1617);
        assert_eq!(fields(), (next, first, 0x1011_1213, 0x1415_1617, nothing.4));
        descriptor.set_status(Status::DONE);
        assert_eq!(fields(), (next, first, 0x1011_1213, 0x1415_1617, Status::DONE));
        let remote = AddressSegment { address: 0x2122_2324_2526_2728, handle: 0x292a_2b2c, reserved: 0 };
        let data = DataSegment { address: 0x3132_3334_3536_3738, handle: 0x393a_3b3c, length: 0x3d3e_3f40 };
        descriptor.set_address(&remote).unwrap();
        descriptor.set_data(1, &data).unwrap();
        assert_eq!(bytes(slice)[32..48], *remote.as_bytes());
        assert_eq!(bytes(slice)[48..], *data.as_bytes());
        assert_eq!(fields(), (next, first, 0x1011_1213, 0x1415_1617, Status::DONE));
        assert_eq!(descriptor.address(), words[offset / 8..].as_ptr() as u64);
    }

    #[test]
    fn each_operation_has_its_code_and_its_segments() {
        let (words, offset) = memory();
        let slice = SharedSlice::from(&words[..]).get(offset, descriptor_len(3)).unwrap();
        let descriptor = Descriptor::new(slice).unwrap();
        let data = [10, 0, 20].map(|length| DataSegment { address: 1, handle: 2, length });
        let remote = AddressSegment::default();
        descriptor.send(&data, None).unwrap();
        let seen = || (descriptor.segments(), descriptor.control(), descriptor.length());
        assert_eq!(seen(), (3, Control::empty(), 30));
        descriptor.send(&[], Some(7)).unwrap();
        assert_eq!(seen(), (0, Control::IMMEDIATE, 0));
        descriptor.receive(&data[..1]).unwrap();
        assert_eq!(seen(), (1, Control::empty(), 10));
        descriptor.rdma_read(&remote, &data[..2]).unwrap();
        assert_eq!(seen(), (3, Control::RDMA_READ, 10));
    }

    #[test]
    fn segments_beyond_the_memory_are_refused_and_nothing_is_changed() {
        let (words, offset) = memory();
        let slice = SharedSlice::from(&words[..]).get(offset, descriptor_len(2)).unwrap();
        let descriptor = Descriptor::new(slice).unwrap();
        let before = bytes(slice);
        let data = [DataSegment::default(); 3];
        assert_eq!(descriptor.send(&data, None), Err(OutOfBounds));
        assert_eq!(descriptor.rdma_read(&AddressSegment::default(), &data[..2]), Err(OutOfBounds));
        assert_eq!(descriptor.set_data(2, &data[0]), Err(OutOfBounds));
        assert_eq!(descriptor.set_data(usize::MAX, &data[0]), Err(OutOfBounds));
        assert_eq!(bytes(slice), before);
        assert!(words.iter().skip(offset / 8 + 8).all(|word| word.load(Ordering::Relaxed) == u64::MAX));
    }

    #[test]
    fn a_view_is_aligned_and_holds_the_control_segment() {
        let (words, offset) = memory();
        let slice = SharedSlice::from(&words[..]);
        let view = |at, len| Descriptor::new(slice.get(at, len).unwrap());
        assert!(view(offset, 32).is_ok_and(|descriptor| descriptor.room() == 0));
        assert!(view(offset, 31).is_err());
        for at in [1, 8, 32] {
            assert!(view(offset + at, 64).is_err(), "at {at}");
        }
        assert_eq!(view(offset, 32 + 16 + 15).unwrap().room(), 1);
    }

    #[test]
    fn success_is_done_and_no_error_in_the_lower_half() {
        let success = Status::DONE | Status::OP_RECEIVE | Status::IMMEDIATE;
        assert!(is_success(success) && !is_success(Status::empty()));
        for bit in 1..16 {
            assert!(!is_success(success | Status::from_bits_retain(1 << bit)), "bit {bit}");
        }
        assert!(!is_success(Status::FORMAT_ERROR), "not done");
        assert_eq!(operation(success), Status::OP_RECEIVE);
        assert_eq!(operation(Status::DONE), Status::empty(), "a Send");
    }
}

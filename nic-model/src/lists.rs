//! The memory of a region: a list of elements, copied and checked once, when the region is
//! registered or linked.
//!
//! The device keeps the runs of contiguous bus addresses, so that a large copy is not split where
//! pages are neighbours. A binary search finds the bus address of an offset.

use core::mem::offset_of;

use alloc::vec::Vec;
use nic_abi::wqe::{LinkFlags, ListArgs, ListElement};

use crate::limits::MAX_LIST_ELEMENTS;
use crate::memory::GuestMemory;

/// A run of contiguous bus addresses; it ends where the next one begins, or where the region ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// Offset in the region.
    start: u64,
    /// Bus address.
    addr: u64,
}

/// The memory of one region.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    runs: Vec<Extent>,
    length: u64,
    /// Elements that count against the NIC's limit.
    pub elements: u32,
}

/// Why a list is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListError {
    /// The flags contradict each other.
    Flags,
    /// The base address does not fit the pages.
    Base,
    /// The region is longer than the list, or wraps.
    Length,
    /// The field of [`ListArgs`] at this offset.
    Field(usize),
    /// The list, or the memory that the field at this offset names, cannot be reached.
    Dma(usize),
    /// The device has no memory for it.
    Memory,
}

/// A list, and the region that it describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListSpec {
    pub flags: LinkFlags,
    pub base: u64,
    pub length: u64,
    pub list: ListArgs,
    /// Elements of the list at most.
    pub max_elements: u32,
}

/// Elements read from the list at a time.
const BATCH: usize = 64;
/// The smallest page.
const MIN_PAGE: u64 = 4096;

const LIST: usize = offset_of!(ListArgs, list);

impl Extents {
    /// No memory yet, and no room allocated; counts as `elements`.
    pub fn counting(elements: u32) -> Extents {
        Extents { elements, ..Extents::default() }
    }

    /// Allocates room, so that a list of `elements` needs no allocation later.
    pub fn with_room(elements: u32) -> Result<Extents, ListError> {
        let mut runs = Vec::new();
        runs.try_reserve_exact(elements as usize).map_err(|_| ListError::Memory)?;
        Ok(Extents { runs, length: 0, elements })
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether both are the same memory. Runs that begin behind the end do not count.
    pub fn same_memory(&self, other: &Extents) -> bool {
        let within = |extents: &Extents| extents.runs.partition_point(|run| run.start < self.length);
        let (mine, others) = (self.runs.get(..within(self)), other.runs.get(..within(other)));
        self.length == other.length && mine == others
    }

    /// Forgets the memory but keeps the room.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.length = 0;
    }

    /// Reads and checks a list. On an error nothing is kept.
    pub fn fill<M: GuestMemory>(&mut self, memory: &M, spec: &ListSpec) -> Result<(), ListError> {
        self.clear();
        let result = self.try_fill(memory, spec);
        if result.is_err() {
            self.clear();
        }
        result
    }

    fn try_fill<M: GuestMemory>(&mut self, memory: &M, spec: &ListSpec) -> Result<(), ListError> {
        let ListSpec { flags, base, length, list, max_elements } = *spec;
        // The last byte may be that at 2^64 - 1.
        if !flags.contains(LinkFlags::RELATIVE) && base.checked_add(length.saturating_sub(1)).is_none() {
            return Err(ListError::Length);
        }
        if flags.contains(LinkFlags::CONTIGUOUS) {
            if flags.intersects(LinkFlags::PAGES | LinkFlags::VARIABLE) {
                return Err(ListError::Flags);
            }
            if list.first_byte_offset != 0 {
                return Err(ListError::Field(offset_of!(ListArgs, first_byte_offset)));
            }
            memory.get(list.list, length).map_err(|_| ListError::Dma(LIST))?;
            self.push(0, list.list)?;
            self.length = length;
            return Ok(());
        }
        if list.elements > max_elements.min(MAX_LIST_ELEMENTS) || list.elements == 0 && length != 0 {
            return Err(ListError::Field(offset_of!(ListArgs, elements)));
        }
        let variable = flags.contains(LinkFlags::VARIABLE);
        let element_length = list.element_length;
        if variable != (element_length == 0)
            || !variable && flags.contains(LinkFlags::PAGES) && !is_page_size(element_length)
        {
            return Err(ListError::Field(offset_of!(ListArgs, element_length)));
        }
        let (mut element, mut total) = (0, 0_u64);
        while element < list.elements {
            let count = (list.elements - element).min(BATCH as u32);
            let mut batch = [ListElement::default(); BATCH];
            let batch = &mut batch[..count as usize];
            read_batch(memory, list.list, element, element_length, batch)?;
            for e in batch {
                total = self.element(memory, spec, *e, total)?;
            }
            element += count;
        }
        if length > total {
            return Err(ListError::Length);
        }
        self.length = length;
        Ok(())
    }

    /// Appends an element to a list that is `total` bytes long so far; returns the new length.
    fn element<M: GuestMemory>(
        &mut self,
        memory: &M,
        spec: &ListSpec,
        e: ListElement,
        total: u64,
    ) -> Result<u64, ListError> {
        let pages = spec.flags.contains(LinkFlags::PAGES);
        if e.length == 0 || pages && (!is_page_size(e.length) || !e.addr.is_multiple_of(e.length)) {
            return Err(ListError::Field(LIST));
        }
        memory.get(e.addr, e.length).map_err(|_| ListError::Dma(LIST))?;
        let first = self.runs.is_empty();
        let skip = if first { spec.list.first_byte_offset } else { 0 };
        if first {
            if skip >= e.length {
                return Err(ListError::Field(offset_of!(ListArgs, first_byte_offset)));
            }
            // it_lmr_link: base address and memory must have the same offset within a page.
            if pages && !spec.flags.contains(LinkFlags::RELATIVE) && spec.base % e.length != skip {
                return Err(ListError::Base);
            }
        }
        let length = e.length - skip;
        self.push(total, e.addr + skip)?;
        total.checked_add(length).ok_or(ListError::Length)
    }

    /// Appends memory at offset `start`: to the last run, if that continues there.
    fn push(&mut self, start: u64, addr: u64) -> Result<(), ListError> {
        if let Some(last) = self.runs.last()
            && last.addr.wrapping_add(start - last.start) == addr
        {
            return Ok(());
        }
        self.runs.try_reserve(1).map_err(|_| ListError::Memory)?;
        self.runs.push(Extent { start, addr });
        Ok(())
    }

    /// Releases the room that joined runs do not need.
    pub fn shrink(&mut self) {
        self.runs.shrink_to_fit();
    }

    /// The bus address of the byte at `offset`, and how many bytes are contiguous from there;
    /// `None` past the end.
    #[inline]
    pub fn translate(&self, offset: u64) -> Option<(u64, u64)> {
        if offset >= self.length {
            return None;
        }
        let next = match self.runs.len() {
            1 => 1,
            _ => self.runs.partition_point(|r| r.start <= offset),
        };
        let run = self.runs.get(next.checked_sub(1)?)?;
        let end = self.runs.get(next).map_or(self.length, |r| r.start.min(self.length));
        Some((run.addr + (offset - run.start), end - offset))
    }
}

const fn is_page_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= MIN_PAGE
}

/// Reads `batch.len()` elements from number `first` on.
fn read_batch<M: GuestMemory>(
    memory: &M,
    list: u64,
    first: u32,
    element_length: u64,
    batch: &mut [ListElement],
) -> Result<(), ListError> {
    let size = if element_length == 0 { size_of::<ListElement>() as u64 } else { 8 };
    let at = list.checked_add(u64::from(first) * size).ok_or(ListError::Dma(LIST))?;
    let bytes = size * batch.len() as u64;
    let slice = memory.get(at, bytes).map_err(|_| ListError::Dma(LIST))?;
    let mut words = [0_u8; 16 * BATCH];
    let words = &mut words[..bytes as usize];
    slice.read(0, words).map_err(|_| ListError::Dma(LIST))?;
    let mut words = words.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()));
    for e in batch {
        let addr = words.next().unwrap_or_default();
        let length = if element_length == 0 { words.next().unwrap_or_default() } else { element_length };
        *e = ListElement { addr, length };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory with these runs (offset and bus address).
    fn made(runs: &[(u64, u64)], length: u64) -> Extents {
        let runs = runs.iter().map(|&(start, addr)| Extent { start, addr }).collect();
        Extents { runs, length, elements: 0 }
    }

    #[test]
    fn joined_runs_leave_no_room_behind() {
        let mut extents = Extents::with_room(100).expect("memory");
        for page in 0..100 {
            extents.push(page * 4096, 0x1_0000 + page * 4096).expect("room");
        }
        assert_eq!((extents.runs.len(), extents.runs.capacity()), (1, 100));
        extents.shrink();
        assert_eq!(extents.runs.capacity(), 1);
    }

    #[test]
    fn an_element_joins_the_last_run_only_if_it_continues_there() {
        let mut extents = Extents::default();
        let pushed = [(0, 0x1000), (0x1000, 0x8000), (0x2000, 0x9000), (0x3000, 0xd000), (0x4000, 0xb000)];
        for (start, addr) in pushed {
            extents.push(start, addr).expect("room");
        }
        let expected = [(0, 0x1000), (0x1000, 0x8000), (0x3000, 0xd000), (0x4000, 0xb000)];
        assert_eq!(extents.runs, made(&expected, 0).runs);
    }

    #[test]
    fn a_run_ends_where_the_next_begins_or_the_region_ends() {
        let extents = made(&[(0, 0x1000), (16, 0x9000), (32, 0x5000)], 40);
        for (offset, expected) in [
            (0, Some((0x1000, 16))),
            (15, Some((0x100f, 1))),
            (16, Some((0x9000, 16))),
            (31, Some((0x900f, 1))),
            (32, Some((0x5000, 8))),
            (39, Some((0x5007, 1))),
            (40, None),
            (u64::MAX, None),
        ] {
            assert_eq!(extents.translate(offset), expected, "{offset}");
        }
        // The list may be longer than the region.
        let shorter = made(&[(0, 0x1000), (16, 0x9000)], 10);
        assert_eq!((shorter.translate(9), shorter.translate(10)), (Some((0x1009, 1)), None));
        assert_eq!(made(&[(0, 0x1000)], 8).translate(3), Some((0x1003, 5)));
    }

    #[test]
    fn runs_behind_the_end_are_no_memory_of_a_region() {
        let one = made(&[(0, 0x1000), (64, 0x9000)], 64);
        assert!(one.same_memory(&made(&[(0, 0x1000)], 64)));
        assert!(one.same_memory(&made(&[(0, 0x1000), (64, 0x7000)], 64)));
        for other in [
            made(&[(0, 0x1000)], 63),
            made(&[(0, 0x1001)], 64),
            made(&[(0, 0x1000), (63, 0x9000)], 64),
            made(&[], 64),
        ] {
            assert!(!one.same_memory(&other) && !other.same_memory(&one));
        }
    }
}

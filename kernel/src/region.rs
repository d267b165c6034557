//! Pages and ranges of physical addresses.

use core::ops::Range;

/// The size of a page.
pub const PAGE: usize = 4096;

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Region {
    /// The region that a slice occupies; RAM is mapped where it lies.
    pub(crate) fn of<T>(slice: &[T]) -> Region {
        Region { start: slice.as_ptr() as u64, len: size_of_val(slice) as u64 }
    }

    pub(crate) fn from_range(range: Range<u64>) -> Region {
        Region { start: range.start, len: range.end.saturating_sub(range.start) }
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.start..self.end()).contains(&address)
    }

    pub(crate) fn overlaps(&self, other: &Region) -> bool {
        self.len > 0 && other.len > 0 && self.start < other.end() && other.start < self.end()
    }
}

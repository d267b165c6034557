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
    pub(crate) fn from_range(range: Range<u64>) -> Region {
        Region { start: range.start, len: range.end.saturating_sub(range.start) }
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.start..self.end()).contains(&address)
    }

    /// Whether all of another region lies in this one.
    pub(crate) fn holds(&self, other: &Region) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    pub(crate) fn overlaps(&self, other: &Region) -> bool {
        self.len > 0 && other.len > 0 && self.start < other.end() && other.start < self.end()
    }
}

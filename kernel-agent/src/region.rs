//! Protection domains, regions and windows.

use nic_abi::admin::KeyInfo;
use nic_abi::wqe::{LinkFlags, ListElement};

use crate::Error;

/// A protection domain (VIA: protection tag).
pub struct Pd {}

impl Pd {
    /// Its number.
    pub fn number(&self) -> u32 {
        todo!()
    }

    /// Destroys it; [`Error::Busy`] while something uses it.
    pub fn destroy(&self) -> Result<(), Error> {
        todo!()
    }
}

/// Memory as bus addresses: IT-API's three kinds of I/O buffer list, and the plain run.
#[derive(Clone, Copy, Debug)]
pub enum MemoryList<'a> {
    /// One run.
    Contiguous {
        /// The first bus address.
        bus: u64,
        /// Bytes.
        length: u64,
    },
    /// Equal pages: a power of two long, at least 4096, aligned to their size.
    Pages {
        /// Their bus addresses.
        pages: &'a [u64],
        /// Bytes of each.
        page_size: u64,
        /// Bytes of the first page before the memory.
        first_byte_offset: u64,
        /// Bytes of the memory.
        length: u64,
    },
    /// Equal blocks of any length and alignment.
    Blocks {
        /// Their bus addresses.
        blocks: &'a [u64],
        /// Bytes of each.
        block_length: u64,
        /// Bytes of the first block before the memory.
        first_byte_offset: u64,
        /// Bytes of the memory.
        length: u64,
    },
    /// Elements that differ in length.
    Variable {
        /// The elements.
        elements: &'a [ListElement],
        /// Bytes of the first element before the memory.
        first_byte_offset: u64,
        /// Bytes of the memory.
        length: u64,
    },
}

/// What a link gives to a region.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// Rights and [`LinkFlags::RELATIVE`].
    pub flags: LinkFlags,
    /// The address of the first byte, unless relative.
    pub base: u64,
    /// The memory.
    pub memory: MemoryList<'a>,
}

/// A memory region: registered for good, or unlinked and linked by work requests.
pub struct Region {}

impl Region {
    /// The key: for a registered region local and remote key at once; for an unlinked one its key with variant 0.
    pub fn key(&self) -> u32 {
        todo!()
    }

    /// The elements that a link may have; 0 for a registered region.
    pub fn max_elements(&self) -> u32 {
        todo!()
    }

    /// Asks the device.
    pub fn query(&self) -> Result<KeyInfo, Error> {
        todo!()
    }

    /// Deregisters it; [`Error::Busy`] while a window is bound to it. When it returns the device touches the memory no more.
    pub fn destroy(&self) -> Result<(), Error> {
        todo!()
    }
}

/// Which queue pairs may use a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// All of its domain (type 1).
    Wide,
    /// The one that bound it (type 2).
    Narrow,
}

/// A memory window (IT-API: RMR).
pub struct Window {}

impl Window {
    /// The key with variant 0.
    pub fn key(&self) -> u32 {
        todo!()
    }

    /// Asks the device.
    pub fn query(&self) -> Result<KeyInfo, Error> {
        todo!()
    }

    /// Destroys it, bound or not.
    pub fn destroy(&self) -> Result<(), Error> {
        todo!()
    }
}

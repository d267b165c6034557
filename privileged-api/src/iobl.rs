//! I/O buffer lists and buffer segments (pages it_iobl_t, it_lmr_triplet_t).

use rdma::Piece;
use zerocopy::{Immutable, IntoBytes};

use crate::address::IoAddr;
use crate::flags::IoblTypes;
use crate::handle::{LmrHandle, RmrHandle};

/// A piece of local memory that a work request reads or writes.
#[doc(alias = "it_lmr_triplet_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LmrTriplet {
    /// The region.
    pub lmr: LmrHandle,
    /// Where in the region: an absolute address, an offset in a region with relative addressing, or
    /// an I/O address with [`LmrHandle::DIRECT`].
    pub addr: u64,
    /// Bytes.
    pub length: u64,
}

impl LmrTriplet {
    /// The segment of `length` bytes at `addr` of `lmr`.
    pub const fn new(lmr: LmrHandle, addr: u64, length: u64) -> LmrTriplet {
        LmrTriplet { lmr, addr, length }
    }

    /// The segment of `length` bytes at an I/O address, for privileged endpoints.
    pub const fn direct(addr: IoAddr, length: u64) -> LmrTriplet {
        LmrTriplet { lmr: LmrHandle::DIRECT, addr: addr.0, length }
    }
}

impl Piece for LmrTriplet {
    #[inline(always)]
    fn region(&self) -> u64 {
        self.lmr.as_raw()
    }

    #[inline(always)]
    fn addr(&self) -> u64 {
        self.addr
    }

    #[inline(always)]
    fn length(&self) -> u64 {
        self.length
    }
}

/// A piece of a local RMR, as the sink of an RDMA Read (iWARP only).
#[doc(alias = "it_rmr_triplet_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RmrTriplet {
    /// The region.
    pub rmr: RmrHandle,
    /// Where in the region: an absolute address, or an offset in a region with relative addressing.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
}

/// An element of a variable list.
#[doc(alias = "it_iobl_ve_elt_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct IoblVeElt {
    /// The first I/O address.
    pub io_addr: IoAddr,
    /// The length of the element in bytes.
    pub elt_len: u64,
}

/// The length of the smallest page of a list. The page of it_iobl_t has an example with a page of
/// 512 bytes, which is a block here.
pub const IOBL_MIN_PAGE: u64 = 4096;

/// The elements of an I/O buffer list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoblList<'a> {
    /// Pages of one size: a power of two, at least [`IOBL_MIN_PAGE`], to which they are aligned.
    #[doc(alias = "IT_IOBL_PAGE_LIST")]
    Pages {
        /// The pages.
        elements: &'a [IoAddr],
        /// Their size.
        elt_len: u64,
    },
    /// Blocks of one length, at any address.
    #[doc(alias = "IT_IOBL_BLOCK_LIST")]
    Blocks {
        /// The blocks.
        elements: &'a [IoAddr],
        /// Their length.
        elt_len: u64,
    },
    /// Pages that differ in size. Each has a size that a page may have, to which it is aligned.
    #[doc(alias = "IT_IOBL_VE_PAGE_LIST")]
    VePages {
        /// The pages.
        elements: &'a [IoblVeElt],
    },
}

/// An I/O buffer list: the memory of a region, in pieces.
#[doc(alias = "it_iobl_t")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iobl<'a> {
    /// The pieces.
    pub list: IoblList<'a>,
    /// Where in the first piece the region begins.
    pub fbo: u64,
}

impl<'a> Iobl<'a> {
    /// A list of pages. A size that pages cannot have is found by the call that gets the list:
    /// it_lmr_create returns `InvalidIobl`, it_lmr_link completes in error.
    pub const fn pages(elements: &'a [IoAddr], elt_len: u64, fbo: u64) -> Iobl<'a> {
        Iobl { list: IoblList::Pages { elements, elt_len }, fbo }
    }

    /// A list of blocks.
    pub const fn blocks(elements: &'a [IoAddr], elt_len: u64, fbo: u64) -> Iobl<'a> {
        Iobl { list: IoblList::Blocks { elements, elt_len }, fbo }
    }

    /// A list of pages of different sizes.
    pub const fn ve_pages(elements: &'a [IoblVeElt], fbo: u64) -> Iobl<'a> {
        Iobl { list: IoblList::VePages { elements }, fbo }
    }

    /// The type of list.
    pub const fn iobl_type(&self) -> IoblTypes {
        match self.list {
            IoblList::Pages { .. } => IoblTypes::PAGE_LIST,
            IoblList::Blocks { .. } => IoblTypes::BLOCK_LIST,
            IoblList::VePages { .. } => IoblTypes::VE_PAGE_LIST,
        }
    }

    /// Number of elements.
    pub const fn num_elts(&self) -> usize {
        match self.list {
            IoblList::Pages { elements, .. } | IoblList::Blocks { elements, .. } => elements.len(),
            IoblList::VePages { elements } => elements.len(),
        }
    }
}

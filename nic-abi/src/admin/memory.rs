//! Protection: regions and windows. A command names them by their local key.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(doc)]
use super::Opcode;
use super::{ARGS_SIZE, RESULT_SIZE};
use crate::wqe::ListArgs;

/// Arguments of [`Opcode::RegisterRegion`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegisterRegion {
    /// Protection domain.
    pub pd: u32,
    /// [`crate::wqe::LinkFlags`].
    pub flags: u32,
    /// Base address. Of a relative region it is kept, but has no effect.
    pub base: u64,
    /// Bytes; 0 is allowed, and then no byte can be accessed.
    pub length: u64,
    /// The memory.
    pub list: ListArgs,
}

/// Arguments of [`Opcode::AllocateRegion`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocateRegion {
    /// Protection domain.
    pub pd: u32,
    /// Elements that a list may have.
    pub max_elements: u32,
}

/// Arguments of [`Opcode::ModifyRegion`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyRegion {
    /// Protection domain, unless 0: then it stays.
    pub pd: u32,
    /// [`crate::wqe::LinkFlags`]: rights only.
    pub flags: u32,
    /// 1: the region, which must be linked, gets these rights; 0: its rights stay, and `flags` is
    /// 0.
    pub rights: u32,
    /// The remote key from then on.
    pub remote: u32,
}

/// Arguments of [`Opcode::ShareRegion`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ShareRegion {
    /// Protection domain.
    pub pd: u32,
    /// [`crate::wqe::LinkFlags`], as for a registration.
    pub flags: u32,
    /// Base address. Of a relative region it is kept, but has no effect.
    pub base: u64,
    /// Bytes: as many as the other region has.
    pub length: u64,
    /// The memory: the other region's.
    pub list: ListArgs,
    /// The other region's local key.
    pub of: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Arguments of [`Opcode::AllocateWindow`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocateWindow {
    /// Protection domain.
    pub pd: u32,
    /// 1 wide (type 1), 2 narrow (type 2: belongs to the QP that binds it).
    pub window_type: u32,
}

/// Result of [`Opcode::QueryKey`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyInfo {
    /// 0 region, 1 window.
    pub kind: u32,
    /// 1 while linked or bound.
    pub linked: u32,
    /// The remote key while linked or bound, else 0.
    pub remote: u32,
    /// [`crate::wqe::LinkFlags`].
    pub flags: u32,
    /// Base address.
    pub base: u64,
    /// Bytes.
    pub length: u64,
    /// Protection domain.
    pub pd: u32,
    /// Bound windows (region), or the region's local key (window).
    pub windows_or_region: u32,
}

const _: () = assert!(size_of::<RegisterRegion>() <= ARGS_SIZE && size_of::<ShareRegion>() <= ARGS_SIZE);
const _: () = assert!(size_of::<KeyInfo>() <= RESULT_SIZE);

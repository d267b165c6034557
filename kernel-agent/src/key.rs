//! Memory keys: what names a region or window to the NIC.
//!
//! A key is made of the slot of its region or window, a generation, and the variant, which changes
//! with each link.

pub use nic_abi::ident::{KEY_RESERVED as RESERVED, MAX_KEYS as MAX, key as new, key_slot as slot};

/// A key that names no region: it has the reserved key's slot, but is not the reserved key.
pub const NONE: u32 = new(0, 0xff, 0xff);

/// The variant of a key.
pub const fn variant(key: u32) -> u8 {
    key as u8
}

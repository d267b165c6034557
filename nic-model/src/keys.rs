//! Memory keys: regions and windows, and the accesses that they allow (IBTA 10.6).
//!
//! A key is checked exactly: slot, generation and variant. A check returns a [`Span`], which is
//! valid until the next command or work request runs; a longer transfer checks again for each
//! piece.

use alloc::sync::Arc;

use nic_abi::ident::{KEY_RESERVED, key_slot};
use nic_abi::wqe::LinkFlags;

use crate::lists::Extents;
use crate::tables::Table;

/// Bits of a key that its owner may change with each link.
pub(crate) const VARIANT: u32 = 0xff;

/// All rights that peers may have.
pub(crate) const REMOTE_RIGHTS: LinkFlags =
    LinkFlags::REMOTE_READ.union(LinkFlags::REMOTE_WRITE).union(LinkFlags::REMOTE_ATOMIC);
/// All rights of a region.
pub(crate) const RIGHTS: LinkFlags =
    REMOTE_RIGHTS.union(LinkFlags::LOCAL_READ).union(LinkFlags::LOCAL_WRITE).union(LinkFlags::BIND);

/// The access is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation;

/// A queue pair's number and generation, which name no later queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpName {
    pub qpn: u32,
    pub generation: u32,
}

/// Memory that was checked: `length` bytes from `offset` in the region in slot `region`, or from
/// the bus address `offset` where `region` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub region: u32,
    pub offset: u64,
    pub length: u64,
}

/// What a key stands for.
pub(crate) enum Kind {
    Region {
        max_elements: u32,
        /// Made by RegisterRegion or ShareRegion, not by AllocateRegion: peers cannot invalidate
        /// it.
        registered: bool,
        /// It shares its memory with another region, or did: it is linked until it is destroyed.
        shared: bool,
        /// Windows bound to it.
        windows: u32,
        /// The memory, common to all regions that share it.
        extents: Arc<Extents>,
    },
    Window {
        narrow: bool,
        /// The region's slot while bound.
        region: u32,
        /// Where in the region it begins.
        offset: u64,
        /// The queue pair that bound it.
        owner: QpName,
    },
}

/// One key.
pub(crate) struct Key {
    /// The key with its present variant.
    pub key: u32,
    pub pd: u32,
    /// The region is linked, or the window is bound.
    pub linked: bool,
    pub flags: LinkFlags,
    pub base: u64,
    pub length: u64,
    pub kind: Kind,
}

impl Key {
    /// The offset of an access in the key's own address space, if it is within bounds.
    #[inline]
    fn offset(&self, addr: u64, length: u64) -> Result<u64, Violation> {
        let offset = match self.flags.contains(LinkFlags::RELATIVE) {
            true => addr,
            false => addr.checked_sub(self.base).ok_or(Violation)?,
        };
        match offset <= self.length && length <= self.length - offset {
            true => Ok(offset),
            false => Err(Violation),
        }
    }
}

/// All keys of a NIC.
pub(crate) struct Keys {
    pub table: Table<Key>,
    /// Elements of all regions together.
    pub elements: u64,
}

impl Keys {
    pub const fn new() -> Keys {
        Keys { table: Table::new(), elements: 0 }
    }

    /// The key of exactly that value.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&Key> {
        self.table.get(key_slot(key)).filter(|k| k.key == key)
    }

    /// Checks a local access through a region's key.
    #[inline]
    pub fn local(
        &self,
        key: u32,
        pd: u32,
        addr: u64,
        length: u64,
        right: LinkFlags,
    ) -> Result<Span, Violation> {
        let entry = self.get(key).ok_or(Violation)?;
        if !entry.linked || entry.pd != pd || !entry.flags.contains(right) || key == KEY_RESERVED {
            return Err(Violation);
        }
        let Kind::Region { .. } = entry.kind else { return Err(Violation) };
        Ok(Span { region: key_slot(key), offset: entry.offset(addr, length)?, length })
    }

    /// Checks a peer's access through a region's or a window's key. `qp` is the queue pair that
    /// received it.
    #[inline]
    pub fn remote(
        &self,
        key: u32,
        pd: u32,
        qp: QpName,
        addr: u64,
        length: u64,
        right: LinkFlags,
    ) -> Result<Span, Violation> {
        let entry = self.get(key).ok_or(Violation)?;
        if !entry.linked || entry.pd != pd || !entry.flags.contains(right) {
            return Err(Violation);
        }
        let within = entry.offset(addr, length)?;
        match entry.kind {
            Kind::Region { .. } => Ok(Span { region: key_slot(key), offset: within, length }),
            Kind::Window { narrow, region, offset, owner } => {
                if narrow && owner != qp {
                    return Err(Violation);
                }
                Ok(Span { region, offset: offset + within, length })
            }
        }
    }

    /// The bus address of the byte at `offset` of a span's memory, and how many bytes are
    /// contiguous from there.
    #[inline]
    pub fn translate(&self, region: u32, offset: u64) -> Option<(u64, u64)> {
        if region == 0 {
            return Some((offset, u64::MAX));
        }
        match &self.table.get(region)?.kind {
            Kind::Region { extents, .. } => extents.translate(offset),
            Kind::Window { .. } => None,
        }
    }

    /// Whether [`Keys::invalidate`] would succeed.
    pub fn can_invalidate(&self, key: u32, pd: u32, qp: QpName) -> Result<(), Violation> {
        let entry = self.get(key).ok_or(Violation)?;
        if entry.pd != pd {
            return Err(Violation);
        }
        match entry.kind {
            Kind::Region { windows, shared, .. } if !entry.linked || windows > 0 || shared => Err(Violation),
            Kind::Window { narrow: true, owner, .. } if entry.linked && owner != qp => Err(Violation),
            _ => Ok(()),
        }
    }

    /// Whether a peer's Send that `qp` received may invalidate the key: of a region that was made
    /// by AllocateRegion and is linked with rights for peers, or of a narrow window that this queue
    /// pair bound.
    pub fn peer_can_invalidate(&self, key: u32, pd: u32, qp: QpName) -> Result<(), Violation> {
        self.can_invalidate(key, pd, qp)?;
        let entry = self.get(key).ok_or(Violation)?;
        let may = match entry.kind {
            Kind::Region { registered, .. } => !registered && entry.flags.intersects(REMOTE_RIGHTS),
            Kind::Window { narrow, .. } => narrow && entry.linked,
        };
        if may { Ok(()) } else { Err(Violation) }
    }

    /// Unlinks a region, which must be linked, not shared and without windows, or unbinds a window.
    /// The window need not be bound; a narrow one that is must have been bound by the same queue
    /// pair.
    pub fn invalidate(&mut self, key: u32, pd: u32, qp: QpName) -> Result<(), Violation> {
        self.can_invalidate(key, pd, qp)?;
        self.unlink(key_slot(key));
        Ok(())
    }

    /// Unlinks the region, or unbinds the window, in a slot.
    pub fn unlink(&mut self, slot: u32) {
        let Some(entry) = self.table.get_mut(slot) else { return };
        let was_linked = core::mem::take(&mut entry.linked);
        match &mut entry.kind {
            Kind::Region { extents, .. } => {
                // Memory that another region shares stays.
                if let Some(extents) = Arc::get_mut(extents) {
                    extents.clear();
                }
            }
            Kind::Window { region, .. } if was_linked => {
                let region = *region;
                if let Some(Key { kind: Kind::Region { windows, .. }, .. }) = self.table.get_mut(region) {
                    *windows -= 1;
                }
            }
            Kind::Window { .. } => {}
        }
    }
}

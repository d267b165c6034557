//! Memory keys: regions and windows, and the accesses that they allow (IBTA 10.6).
//!
//! A region or window has a local key from its creation until it is destroyed, and a remote key
//! while it is linked or bound. Local segments, and the commands and work requests that change the
//! region or window, name it by its local key; so what is in force when they are executed decides.
//! Peers name it by its remote key, which each link replaces.
//!
//! A check returns a [`Span`], which is valid until the next command or work request runs; a longer
//! transfer checks again for each piece.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use nic_abi::ident::key_slot;
use nic_abi::wqe::LinkFlags;
use platform::planted::{Bug, planted};

use crate::lists::Extents;
use crate::tables::Table;

/// All rights that a queue pair may give its peer; memory with all of them may be the target of any
/// operation.
pub(crate) const QP_RIGHTS: LinkFlags =
    LinkFlags::REMOTE_READ.union(LinkFlags::REMOTE_WRITE).union(LinkFlags::REMOTE_ATOMIC);
/// All rights that peers may have to memory.
pub(crate) const REMOTE_RIGHTS: LinkFlags = QP_RIGHTS.union(LinkFlags::ATOMIC_ALONE);
/// All rights of a region.
pub(crate) const RIGHTS: LinkFlags =
    REMOTE_RIGHTS.union(LinkFlags::LOCAL_READ).union(LinkFlags::LOCAL_WRITE).union(LinkFlags::BIND);

/// The access is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation;

/// The owner of narrow windows: whose queue pairs may use and unbind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// One queue pair, by its number and generation, which name no later one.
    Qp { qpn: u32, generation: u32 },
    /// All queue pairs that were created with this name.
    Named(u64),
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
        /// Who bound it.
        owner: Owner,
    },
}

/// One region or window.
pub(crate) struct Key {
    /// Names it locally until it is destroyed.
    pub local: u32,
    /// Names it for peers while it is linked or bound.
    pub remote: u32,
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
        match offset <= self.length && (length <= self.length - offset || planted(Bug::WindowOpen)) {
            true => Ok(offset),
            false => Err(Violation),
        }
    }
}

impl Key {
    /// Whether queue pairs of this owner may use it, as far as that depends on the owner.
    pub fn is_for(&self, by: Owner) -> bool {
        !matches!(self.kind, Kind::Window { narrow: true, owner, .. } if owner != by)
    }

    /// Whether queue pairs of this domain and owner may invalidate it now.
    fn can_invalidate(&self, pd: u32, by: Owner) -> Result<(), Violation> {
        if self.pd != pd {
            return Err(Violation);
        }
        match self.kind {
            Kind::Region { windows, shared, .. } if !self.linked || windows > 0 || shared => Err(Violation),
            Kind::Window { narrow: true, owner, .. } if self.linked && owner != by => Err(Violation),
            _ => Ok(()),
        }
    }
}

/// What a bind makes of a window.
pub(crate) struct Bind {
    /// The region's slot.
    pub region: u32,
    /// Where in the region the window begins.
    pub offset: u64,
    pub owner: Owner,
    /// The window's new remote key.
    pub remote: u32,
    pub flags: LinkFlags,
    pub base: u64,
    pub length: u64,
}

/// All keys of a NIC.
pub(crate) struct Keys {
    pub table: Table<Key>,
    /// Elements of all regions together.
    pub elements: u64,
    /// How many narrow windows each owner has bound, by domain; none is not listed.
    bound: BTreeMap<(u32, Owner), u32>,
}

impl Keys {
    pub const fn new() -> Keys {
        Keys { table: Table::new(), elements: 0, bound: BTreeMap::new() }
    }

    /// The region or window with this local key.
    #[inline]
    pub fn get(&self, local: u32) -> Option<&Key> {
        self.table.get(key_slot(local)).filter(|k| k.local == local)
    }

    /// The region or window with this local key, to be changed.
    #[inline]
    pub fn get_mut(&mut self, local: u32) -> Option<&mut Key> {
        self.table.get_mut(key_slot(local)).filter(|k| k.local == local)
    }

    /// The linked region or bound window with this remote key.
    #[inline]
    pub fn get_remote(&self, remote: u32) -> Option<&Key> {
        self.table
            .get(key_slot(remote))
            .filter(|k| k.linked && (k.remote == remote || planted(Bug::StaleKey)))
    }

    /// How many narrow windows an owner has bound.
    pub fn bound_by(&self, pd: u32, owner: Owner) -> u32 {
        self.bound.get(&(pd, owner)).copied().unwrap_or(0)
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
        if !entry.linked || entry.pd != pd || !entry.flags.contains(right) {
            return Err(Violation);
        }
        let Kind::Region { .. } = entry.kind else { return Err(Violation) };
        Ok(Span { region: key_slot(key), offset: entry.offset(addr, length)?, length })
    }

    /// Checks that an RDMA Read fills memory which this local key, of a region or of a window,
    /// opens to the peer's writes. `by` is the queue pair, as an owner of windows.
    #[inline]
    pub fn sink(&self, key: u32, pd: u32, by: Owner, addr: u64, length: u64) -> Result<Span, Violation> {
        let entry = self.get(key).ok_or(Violation)?;
        let (right, region, begin) = match entry.kind {
            Kind::Region { .. } => (LinkFlags::REMOTE_WRITE.union(LinkFlags::LOCAL_WRITE), key_slot(key), 0),
            Kind::Window { region, offset, .. } => (LinkFlags::REMOTE_WRITE, region, offset),
        };
        if !entry.linked || entry.pd != pd || !entry.flags.contains(right) || !entry.is_for(by) {
            return Err(Violation);
        }
        Ok(Span { region, offset: begin + entry.offset(addr, length)?, length })
    }

    /// Checks a local access of a virtual interface, which names regions by their remote keys.
    #[inline]
    pub fn by_handle(
        &self,
        handle: u32,
        pd: u32,
        addr: u64,
        length: u64,
        right: LinkFlags,
    ) -> Result<Span, Violation> {
        let entry = self.get_remote(handle).ok_or(Violation)?;
        if entry.pd != pd || !entry.flags.contains(right) {
            return Err(Violation);
        }
        let Kind::Region { .. } = entry.kind else { return Err(Violation) };
        Ok(Span { region: key_slot(handle), offset: entry.offset(addr, length)?, length })
    }

    /// Checks a peer's access through a region's or a window's remote key. `by` is the queue pair
    /// that received it, as an owner of windows.
    #[inline]
    pub fn remote(
        &self,
        key: u32,
        pd: u32,
        by: Owner,
        addr: u64,
        length: u64,
        right: LinkFlags,
    ) -> Result<Span, Violation> {
        let entry = self.get_remote(key).ok_or(Violation)?;
        if entry.pd != pd || !entry.flags.contains(right) {
            return Err(Violation);
        }
        let within = entry.offset(addr, length)?;
        match entry.kind {
            Kind::Region { .. } => Ok(Span { region: key_slot(key), offset: within, length }),
            Kind::Window { narrow, region, offset, owner } => {
                if narrow && owner != by {
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
    pub fn can_invalidate(&self, local: u32, pd: u32, by: Owner) -> Result<(), Violation> {
        self.get(local).ok_or(Violation)?.can_invalidate(pd, by)
    }

    /// Whether a peer's Send that `by` received may invalidate a remote key: of a region that was
    /// made by AllocateRegion and is linked with rights for peers, or of a narrow window that this
    /// owner bound. Returns the local key.
    pub fn peer_can_invalidate(&self, remote: u32, pd: u32, by: Owner) -> Result<u32, Violation> {
        let entry = self.get_remote(remote).ok_or(Violation)?;
        entry.can_invalidate(pd, by)?;
        let may = match entry.kind {
            Kind::Region { registered, .. } => !registered && entry.flags.intersects(REMOTE_RIGHTS),
            Kind::Window { narrow, .. } => narrow,
        };
        if may { Ok(entry.local) } else { Err(Violation) }
    }

    /// Unlinks a region, which must be linked, not shared and without windows, or unbinds a window.
    /// The window need not be bound; a narrow one that is must have been bound by the same owner.
    pub fn invalidate(&mut self, local: u32, pd: u32, by: Owner) -> Result<(), Violation> {
        self.can_invalidate(local, pd, by)?;
        self.unlink(key_slot(local));
        Ok(())
    }

    /// Binds the window in a slot, which is not bound, to a range of a region.
    pub fn bind(&mut self, slot: u32, bind: &Bind) {
        let Some(entry) = self.table.get_mut(slot) else { return };
        let Kind::Window { narrow, region, offset, owner } = &mut entry.kind else { return };
        (*region, *offset, *owner) = (bind.region, bind.offset, bind.owner);
        entry.linked = true;
        entry.remote = bind.remote;
        entry.flags = bind.flags;
        (entry.base, entry.length) = (bind.base, bind.length);
        if *narrow {
            *self.bound.entry((entry.pd, bind.owner)).or_insert(0) += 1;
        }
        if let Some(Key { kind: Kind::Region { windows, .. }, .. }) = self.table.get_mut(bind.region) {
            *windows += 1;
        }
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
            &mut Kind::Window { region, narrow, owner, .. } if was_linked => {
                let pd = entry.pd;
                if let Some(Key { kind: Kind::Region { windows, .. }, .. }) = self.table.get_mut(region) {
                    *windows -= 1;
                }
                if narrow && let Some(count) = self.bound.get_mut(&(pd, owner)) {
                    *count -= 1;
                    if *count == 0 {
                        self.bound.remove(&(pd, owner));
                    }
                }
            }
            Kind::Window { .. } => {}
        }
    }
}

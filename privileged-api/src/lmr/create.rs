//! Creating regions (pages it_lmr_create, it_lmr_create_unlinked).

use alloc::sync::Arc;
use core::sync::atomic::AtomicBool;

use kernel_agent::{Features, LinkFlags, MemoryList, Region};
use platform::sync::Mutex;
use platform::{DmaBuffer, SleepLock, heap};
use rdma::Context;

use crate::address::RmrContext;
use crate::attributes::AddrMode;
use crate::flags::{IoblTypes, LmrFlags, MemPriv};
use crate::handle::{LmrHandle, PzHandle};
use crate::ia::{Core, Ia};
use crate::iobl::Iobl;
use crate::lmr::rights::{
    ListFault, WRITES, check_list, first_byte, is_remote, is_valid_combination, memory_list, rights,
};
use crate::objects::lmr::{Lmr, Made, Sharing};
use crate::objects::pz::InZone;
use crate::status::{Error, Result};

/// The memory of a region.
#[derive(Clone, Copy)]
pub enum LmrMemory<'a> {
    /// An owned buffer, from `offset` on. The region keeps the buffer alive. The base address is
    /// the virtual address of the buffer's byte `offset`.
    Buffer {
        /// The buffer.
        buffer: &'a Arc<DmaBuffer>,
        /// The region's first byte.
        offset: usize,
    },
    /// Constants: memory that neither the consumer nor the device may write.
    Static(&'static [u8]),
    /// An I/O buffer list, for privileged consumers.
    Iobl {
        /// The base address; ignored with relative addressing.
        addr: usize,
        /// The list.
        iobl: &'a Iobl<'a>,
    },
}

impl<'a> LmrMemory<'a> {
    /// A whole buffer.
    pub const fn buffer(buffer: &'a Arc<DmaBuffer>) -> LmrMemory<'a> {
        LmrMemory::Buffer { buffer, offset: 0 }
    }
}

/// The arguments that all ways to create a region have in common.
pub(super) struct Wanted {
    pub(super) zone: InZone,
    pub(super) length: u64,
    pub(super) addr_mode: AddrMode,
    pub(super) privs: MemPriv,
    pub(super) flags: LmrFlags,
    pub(super) shared_id: u32,
}

/// The memory of a region to be created.
pub(super) struct Memory {
    pub(super) buffer: Option<Arc<DmaBuffer>>,
    pub(super) read_only: bool,
    pub(super) addr: usize,
    pub(super) iobl_type: IoblTypes,
}

impl Memory {
    /// Memory of the consumer's address space.
    pub(super) fn plain(addr: usize) -> Memory {
        Memory { buffer: None, read_only: false, addr, iobl_type: IoblTypes::empty() }
    }
}

impl Ia {
    /// Registers memory with the IA. Returns the region's handle and, if peers have privileges, the
    /// context with which they reach it.
    ///
    /// The region keeps the memory of an owned buffer alive. For memory that the caller keeps
    /// alive, see [`Ia::lmr_create_raw`]. A region may have no bytes; then it grants no access.
    /// With `LmrFlags::NONCOHERENT` the consumer has to call [`Ia::lmr_flush_to_mem`] and
    /// [`Ia::lmr_refresh_from_mem`].
    ///
    /// With `LmrFlags::SHARED` the region takes no translations of its own if any consumer of this
    /// adapter has a region with the same memory, `shared_id` and coherency that is not
    /// `NON_SHAREABLE`. Both are shared from then on, and cannot be unlinked any more.
    ///
    /// Errors: `InvalidPz`, `InvalidFlags`, `InvalidPrivs` (undefined bits; no bits; no local read;
    /// remote write or atomic without local write), `InvalidAddrMode`, `Access` (privileges to
    /// write constants), `Fault` (not within the buffer, or the device cannot reach it),
    /// `InvalidIobl`, `InvalidLength` (longer than the list), `PrivOpsUnavailable`, `NoPermission`
    /// (a list, and the consumer is not privileged), `ResourceLmrLength`, `Resources`, `InvalidIa`,
    /// `IaCatastrophe`. Blocks for the device. Not for callbacks. Thread-safe. Page it_lmr_create.
    #[doc(alias = "it_lmr_create")]
    #[expect(clippy::too_many_arguments, reason = "the page has them")]
    pub fn lmr_create(
        &self,
        pz: PzHandle,
        memory: LmrMemory<'_>,
        length: u64,
        addr_mode: AddrMode,
        privs: MemPriv,
        flags: LmrFlags,
        shared_id: u32,
    ) -> Result<(LmrHandle, Option<RmrContext>)> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let wanted = core.wanted(pz, length, addr_mode, privs, flags, shared_id)?;
        match memory {
            LmrMemory::Buffer { buffer, offset } => {
                let make = |core: &Core, wanted: &Wanted| {
                    let room = buffer.len().checked_sub(offset).ok_or(Error::Fault)?;
                    if wanted.length > room as u64 {
                        return Err(Error::Fault);
                    }
                    let (addr, bus) = (buffer.addr() + offset, buffer.bus() + offset as u64);
                    let list = MemoryList::Contiguous { bus, length: wanted.length };
                    let memory = Memory { buffer: Some(buffer.clone()), ..Memory::plain(addr) };
                    Ok((memory, core.region(wanted, addr, &list)?))
                };
                core.agent().registering(buffer, || core.register(wanted, make))
            }
            LmrMemory::Static(bytes) => core.register(wanted, |core, wanted| {
                if wanted.privs.intersects(WRITES) {
                    return Err(Error::Access);
                }
                if wanted.length > bytes.len() as u64 {
                    return Err(Error::Fault);
                }
                let addr = bytes.as_ptr().addr();
                let memory = Memory { read_only: true, ..Memory::plain(addr) };
                Ok((memory, core.virtual_region(wanted, addr)?))
            }),
            LmrMemory::Iobl { addr, iobl } => core.register(wanted, |core, wanted| {
                if !core.takes_lists() {
                    return Err(Error::PrivOpsUnavailable);
                }
                core.privileged()?;
                core.check_type(iobl)?;
                let absolute = (wanted.addr_mode == AddrMode::Absolute).then_some(addr);
                let most = core.agent().identity().max_list_elements as usize;
                check_list(iobl, absolute, wanted.length, most).map_err(|fault| match fault {
                    ListFault::Iobl => Error::InvalidIobl,
                    ListFault::Length => Error::InvalidLength,
                })?;
                let list = memory_list(iobl, wanted.length);
                let addr = absolute.unwrap_or_else(|| first_byte(iobl));
                let memory = Memory { iobl_type: iobl.iobl_type(), ..Memory::plain(addr) };
                Ok((memory, core.region(wanted, addr, &list)?))
            }),
        }
    }

    /// Allocates a region without memory, which [`Ia::lmr_link`] links to lists of up to
    /// `iobl_num_elts` elements. Privileged consumers only.
    ///
    /// `LmrFlags::SHARED` is refused, since a region without memory matches no other. While a
    /// region without `NON_SHAREABLE` is linked, another region may begin to share its memory; from
    /// then on it stays linked until it is freed. With 0 elements the region has room for one.
    ///
    /// Errors: `InvalidFlags`, `InvalidPz`, `OpNotSupported`, `NoPermission`, `ResourceIoblLength`,
    /// `Resources`, `InvalidIa`, `IaCatastrophe`. Blocks for the device. May be called in
    /// callbacks. Thread-safe. Page it_lmr_create_unlinked.
    #[doc(alias = "it_lmr_create_unlinked")]
    pub fn lmr_create_unlinked(
        &self,
        pz: PzHandle,
        iobl_num_elts: usize,
        flags: LmrFlags,
        shared_id: u32,
    ) -> Result<LmrHandle> {
        let core = self.call()?;
        if !core.features().contains(Features::FAST_REGISTER) {
            return Err(Error::OpNotSupported);
        }
        core.privileged()?;
        if LmrFlags::from_bits(flags.bits()).is_none() || flags.contains(LmrFlags::SHARED) {
            return Err(Error::InvalidFlags);
        }
        let zone = core.enter_zone(pz)?;
        let most = core.agent().identity().max_list_elements as usize;
        if iobl_num_elts > most {
            return Err(Error::ResourceIoblLength);
        }
        let reservation = core.lmrs.reserve()?;
        let handle = reservation.handle();
        core.keys.reach(handle.as_raw())?;
        let elements = iobl_num_elts.max(1) as u32;
        let allocated = core.client()?.allocate_region(&zone.pd, elements);
        let region = allocated.map_err(|error| match error {
            kernel_agent::Error::OutOfRange(_) => Error::ResourceIoblLength,
            other => core.error(other),
        })?;
        core.own(&region, handle)?;
        let lmr = heap::arc(Lmr {
            handle,
            zone: Mutex::new(zone),
            region,
            buffer: Mutex::new(None),
            read_only: false,
            flags: flags.difference(LmrFlags::NONE),
            shared_id,
            made: None,
            shared: AtomicBool::new(false),
            sharing: Sharing::new(flags, shared_id),
            context: Context::new(),
            changes: SleepLock::new(),
        });
        let lmr = core.shareable(lmr)?;
        core.keys.set(handle.as_raw(), lmr.region.key());
        reservation.fill(lmr);
        Ok(handle)
    }
}

impl Core {
    /// Fails if the IA does not support lists of this type.
    pub(super) fn check_type(&self, iobl: &Iobl<'_>) -> Result<()> {
        let features = self.features();
        let needed = match iobl.iobl_type() {
            IoblTypes::PAGE_LIST => Features::PAGE_LIST,
            IoblTypes::BLOCK_LIST => Features::BLOCK_LIST,
            _ => Features::VARIABLE_LIST,
        };
        if features.contains(needed) { Ok(()) } else { Err(Error::InvalidIobl) }
    }

    /// Fails if the IA does not support the addressing.
    pub(crate) fn check_mode(&self, addr_mode: AddrMode) -> Result<()> {
        if addr_mode == AddrMode::Absolute || self.features().contains(Features::RELATIVE) {
            Ok(())
        } else {
            Err(Error::InvalidAddrMode)
        }
    }

    pub(super) fn wanted(
        &self,
        pz: PzHandle,
        length: u64,
        addr_mode: AddrMode,
        privs: MemPriv,
        flags: LmrFlags,
        shared_id: u32,
    ) -> Result<Wanted> {
        let zone = self.enter_zone(pz)?;
        if LmrFlags::from_bits(flags.bits()).is_none() {
            return Err(Error::InvalidFlags);
        }
        if MemPriv::from_bits(privs.bits()).is_none()
            || !is_valid_combination(privs)
            || !privs.contains(MemPriv::LOCAL_READ)
        {
            return Err(Error::InvalidPrivs);
        }
        self.check_mode(addr_mode)?;
        if length > self.agent().identity().max_region {
            return Err(Error::ResourceLmrLength);
        }
        Ok(Wanted { zone, length, addr_mode, privs, flags, shared_id })
    }

    /// Registers a list with the device, and returns whether the region is shared. It shares the
    /// translations of a region that matches, if the consumer asks for that. `base` is the address
    /// of the first byte.
    pub(super) fn region(
        &self,
        wanted: &Wanted,
        base: usize,
        list: &MemoryList<'_>,
    ) -> Result<(Arc<Region>, bool)> {
        self.region_with(wanted, base, list, self.writes_of_windows())
    }

    /// Whether RMRs of memory that may be written need no local write of its region.
    pub(super) fn writes_of_windows(&self) -> LinkFlags {
        if self.facts().infinibands_links { LinkFlags::empty() } else { LinkFlags::WINDOWS_WRITE }
    }

    fn region_with(
        &self,
        wanted: &Wanted,
        base: usize,
        list: &MemoryList<'_>,
        more: LinkFlags,
    ) -> Result<(Arc<Region>, bool)> {
        let rights = rights(wanted.privs, wanted.addr_mode) | more;
        if let Some(region) = self.share(wanted, list, base as u64, rights) {
            return Ok((region, true));
        }
        let registered = self.client()?.register(&wanted.zone.pd, rights, base as u64, list);
        Ok((registered.map_err(|error| self.error(error))?, false))
    }

    /// As [`Core::region`], for memory given by virtual addresses, which nobody may write but with
    /// the region's own privileges.
    pub(super) fn virtual_region(&self, wanted: &Wanted, addr: usize) -> Result<(Arc<Region>, bool)> {
        let region = |list: &MemoryList<'_>| self.region_with(wanted, addr, list, LinkFlags::empty());
        self.agent().list_virtual(addr, wanted.length, region).map_err(|error| self.error(error))?
    }

    /// Creates the object of a region that `make` registers.
    pub(super) fn register(
        &self,
        wanted: Wanted,
        make: impl FnOnce(&Core, &Wanted) -> Result<(Memory, (Arc<Region>, bool))>,
    ) -> Result<(LmrHandle, Option<RmrContext>)> {
        let reservation = self.lmrs.reserve()?;
        let handle = reservation.handle();
        self.keys.reach(handle.as_raw())?;
        let shareable = &self.shared.shareable;
        let searches = wanted.flags.contains(LmrFlags::SHARED);
        let _searching = searches.then(|| shareable.searching.lock(&self.shared.platform));
        let (memory, (region, shared)) = make(self, &wanted)?;
        self.own(&region, handle)?;
        let Wanted { zone, length, addr_mode, privs, flags, shared_id } = wanted;
        let (key, remote) = (self.name_of(&region), region.remote_key());
        let made = Made { addr: memory.addr, length, addr_mode, iobl_type: memory.iobl_type };
        let lmr = heap::arc(Lmr {
            handle,
            zone: Mutex::new(zone),
            region,
            buffer: Mutex::new(memory.buffer),
            read_only: memory.read_only,
            flags: flags.difference(LmrFlags::NONE | LmrFlags::SHARED),
            shared_id,
            made: Some(made),
            shared: AtomicBool::new(shared),
            sharing: Sharing::new(flags, shared_id),
            context: Context::new(),
            changes: SleepLock::new(),
        });
        let lmr = self.shareable(lmr)?;
        self.keys.set(handle.as_raw(), key);
        reservation.fill(lmr);
        Ok((handle, is_remote(privs).then(|| RmrContext::from_key(remote))))
    }

    /// Adds a new region to those that may be shared. If there is no memory for that, or was none
    /// for the region's object, destroys the region.
    fn shareable(&self, lmr: core::result::Result<Arc<Lmr>, Lmr>) -> Result<Arc<Lmr>> {
        let undo = |lmr: &Lmr| {
            self.owners.clear(lmr.region.key(), lmr.handle.as_raw());
            let _ = lmr.region.destroy();
            Error::Resources
        };
        let lmr = lmr.map_err(|lmr| undo(&lmr))?;
        self.shared.shareable.add(&lmr).map_err(|_| undo(&lmr))?;
        Ok(lmr)
    }

    /// Records that this handle has the key of the new region.
    fn own(&self, region: &Region, handle: LmrHandle) -> Result<()> {
        self.owners.set(region.key(), handle.as_raw()).inspect_err(|_| {
            let _ = region.destroy();
        })?;
        Ok(())
    }
}

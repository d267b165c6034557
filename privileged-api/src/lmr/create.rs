//! Creating regions (pages it_lmr_create, it_lmr_create_unlinked).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use kernel_agent::{MemoryList, Region};
use nic_abi::ident;
use nic_abi::registers::Features;
use platform::DmaBuffer;
use platform::sync::Mutex;

use super::{
    Elements, Linking, Links, ListFault, Lmr, Sharing, check_list, is_remote, is_valid_combination, rights,
    runs,
};
use crate::address::RmrContext;
use crate::attributes::AddrMode;
use crate::context::Context;
use crate::flags::{IoblTypes, LmrFlags, MemPriv};
use crate::handle::{LmrHandle, PzHandle};
use crate::ia::{Core, Ia};
use crate::iobl::Iobl;
use crate::pz::InZone;
use crate::sleep_lock::SleepLock;
use crate::status::{Error, Result};
use crate::table::UseCount;

/// Where the memory of a region comes from.
#[derive(Clone, Copy)]
pub enum LmrMemory<'a> {
    /// An owned buffer, from `offset` on. The region keeps it alive; its base address is the buffer's virtual address there.
    Buffer {
        /// The buffer.
        buffer: &'a Arc<DmaBuffer>,
        /// Where the region begins.
        offset: usize,
    },
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

/// What all ways to create a region have in common.
pub(super) struct Wanted {
    pub(super) zone: InZone,
    pub(super) length: u64,
    pub(super) addr_mode: AddrMode,
    pub(super) privs: MemPriv,
    pub(super) flags: LmrFlags,
    pub(super) shared_id: u32,
}

/// What differs.
pub(super) struct Made {
    pub(super) region: Arc<Region>,
    pub(super) buffer: Option<Arc<DmaBuffer>>,
    pub(super) addr: usize,
    pub(super) iobl_type: IoblTypes,
    pub(super) runs: Vec<(u64, u64)>,
}

impl Ia {
    /// Registers memory with the IA. Returns the region's handle and, with privileges for peers, the context that lets them in.
    ///
    /// Memory of an owned buffer stays alive with the region; for memory that the caller answers for, see [`Ia::lmr_create_raw`]. A region of no bytes
    /// can be made; it grants nothing. `LmrFlags::NONCOHERENT` has no effect: all memory is coherent. Regions of the same memory and `shared_id` that
    /// are not `NON_SHAREABLE` count as shared when one of them was created with `SHARED`.
    ///
    /// Errors: `InvalidPz`, `InvalidFlags`, `InvalidPrivs` (undefined bits; none; no local read; remote write or atomic without local write),
    /// `InvalidAddrMode`, `Fault` (not within the buffer), `InvalidIobl`, `InvalidLength` (longer than the list), `PrivOpsUnavailable`, `NoPermission`
    /// (a list, and the consumer is not privileged), `ResourceLmrLength`, `Resources`, `InvalidIa`, `IaCatastrophe`. Blocks for the device. Not for
    /// callbacks. Thread-safe. Page it_lmr_create.
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
        let core = self.live()?;
        core.shared.not_in_callback()?;
        let wanted = core.wanted(pz, length, addr_mode, privs, flags, shared_id)?;
        match memory {
            LmrMemory::Buffer { buffer, offset } => core.register(wanted, |core, wanted, rights| {
                let room = buffer.len().checked_sub(offset).ok_or(Error::Fault)?;
                if wanted.length > room as u64 {
                    return Err(Error::Fault);
                }
                let (addr, bus) = (buffer.addr() + offset, buffer.bus() + offset as u64);
                let list = MemoryList::Contiguous { bus, length: wanted.length };
                let region = core.client()?.register(&wanted.zone.pz().pd, rights, addr as u64, &list);
                Ok(Made {
                    region: region.map_err(|error| core.error(error))?,
                    buffer: Some(buffer.clone()),
                    addr,
                    iobl_type: IoblTypes::empty(),
                    runs: Vec::from([(bus, wanted.length)]),
                })
            }),
            LmrMemory::Iobl { addr, iobl } => core.register(wanted, |core, wanted, rights| {
                if !core.features().intersects(Features::FAST_REGISTER | Features::RESERVED_KEY) {
                    return Err(Error::PrivOpsUnavailable);
                }
                core.privileged()?;
                core.check_type(iobl)?;
                let absolute = (wanted.addr_mode == AddrMode::Absolute).then_some(addr);
                let most = core.agent.identity().max_list_elements as usize;
                check_list(iobl, absolute, wanted.length, most).map_err(|fault| match fault {
                    ListFault::Iobl => Error::InvalidIobl,
                    ListFault::Length => Error::InvalidLength,
                })?;
                let elements = Elements::new(iobl)?;
                let list = elements.list(iobl, wanted.length);
                let runs = runs(iobl, wanted.length);
                let base = absolute.unwrap_or(0);
                let region = core.client()?.register(&wanted.zone.pz().pd, rights, base as u64, &list);
                Ok(Made {
                    region: region.map_err(|error| core.error(error))?,
                    buffer: None,
                    addr: absolute.unwrap_or_else(|| first_byte(&runs)),
                    iobl_type: iobl.iobl_type(),
                    runs,
                })
            }),
        }
    }

    /// Allocates a region without memory, to be linked to lists of up to `iobl_num_elts` elements by [`Ia::lmr_link`]. Privileged consumers only.
    ///
    /// `LmrFlags::SHARED` is refused: what has no memory cannot match. At least one element is allocated.
    ///
    /// Errors: `InvalidFlags`, `InvalidPz`, `OpNotSupported`, `NoPermission`, `ResourceIoblLength`, `Resources`, `InvalidIa`, `IaCatastrophe`. Blocks for the
    /// device. May be called in callbacks. Thread-safe. Page it_lmr_create_unlinked.
    #[doc(alias = "it_lmr_create_unlinked")]
    pub fn lmr_create_unlinked(
        &self,
        pz: PzHandle,
        iobl_num_elts: usize,
        flags: LmrFlags,
        shared_id: u32,
    ) -> Result<LmrHandle> {
        let core = self.live()?;
        if !core.features().contains(Features::FAST_REGISTER) {
            return Err(Error::OpNotSupported);
        }
        core.privileged()?;
        if LmrFlags::from_bits(flags.bits()).is_none() || flags.contains(LmrFlags::SHARED) {
            return Err(Error::InvalidFlags);
        }
        let zone = core.enter_zone(pz)?;
        let most = core.agent.identity().max_list_elements as usize;
        if iobl_num_elts > most {
            return Err(Error::ResourceIoblLength);
        }
        let reservation = core.lmrs.reserve()?;
        let handle = LmrHandle::from_raw(reservation.word());
        let elements = iobl_num_elts.max(1) as u32;
        let allocated = core.client()?.allocate_region(&zone.pz().pd, elements);
        let region = allocated.map_err(|error| match error {
            kernel_agent::Error::OutOfRange(_) => Error::ResourceIoblLength,
            other => core.error(other),
        })?;
        let unlinked = Linking {
            key: region.key(),
            addr: 0,
            length: 0,
            privs: MemPriv::empty(),
            addr_mode: AddrMode::Absolute,
            iobl_type: IoblTypes::empty(),
        };
        core.own(&region, handle)?;
        core.keys.set(handle, region.key());
        reservation.fill(Arc::new(Lmr {
            handle,
            zone: Mutex::new(zone),
            region,
            _buffer: None,
            flags: flags.difference(LmrFlags::NONE),
            shared_id,
            links: Mutex::new(Links { now: unlinked, before: unlinked, variant: 0 }),
            shared: AtomicBool::new(false),
            sharing: None,
            uses: UseCount::new(),
            context: Context::new(),
            modify: SleepLock::new(),
        }));
        Ok(handle)
    }
}

/// The I/O address of a region's first byte.
pub(super) fn first_byte(runs: &[(u64, u64)]) -> usize {
    runs.first().map_or(0, |(addr, _)| *addr as usize)
}

impl Core {
    /// Fails if the IA does not take lists of this type.
    pub(super) fn check_type(&self, iobl: &Iobl<'_>) -> Result<()> {
        let features = self.features();
        let needed = match iobl.iobl_type() {
            IoblTypes::PAGE_LIST => Features::PAGE_LIST,
            IoblTypes::BLOCK_LIST => Features::BLOCK_LIST,
            _ => Features::VARIABLE_LIST,
        };
        if features.contains(needed) { Ok(()) } else { Err(Error::InvalidIobl) }
    }

    /// Fails if the IA has no such addressing.
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
        if length > self.agent.identity().max_region {
            return Err(Error::ResourceLmrLength);
        }
        Ok(Wanted { zone, length, addr_mode, privs, flags, shared_id })
    }

    /// Makes the object of a region that `make` registers.
    pub(super) fn register(
        &self,
        wanted: Wanted,
        make: impl FnOnce(&Core, &Wanted, nic_abi::wqe::LinkFlags) -> Result<Made>,
    ) -> Result<(LmrHandle, Option<RmrContext>)> {
        let reservation = self.lmrs.reserve()?;
        let handle = LmrHandle::from_raw(reservation.word());
        let made = make(self, &wanted, rights(wanted.privs, wanted.addr_mode))?;
        self.own(&made.region, handle)?;
        let Wanted { zone, length, addr_mode, privs, flags, shared_id } = wanted;
        let key = made.region.key();
        let linking = Linking { key, addr: made.addr, length, privs, addr_mode, iobl_type: made.iobl_type };
        let sharing = (!flags.contains(LmrFlags::NON_SHAREABLE)).then(|| Sharing {
            shared_id,
            noncoherent: flags.contains(LmrFlags::NONCOHERENT),
            length,
            runs: made.runs,
        });
        let lmr = Arc::new(Lmr {
            handle,
            zone: Mutex::new(zone),
            region: made.region,
            _buffer: made.buffer,
            flags: flags.difference(LmrFlags::NONE | LmrFlags::SHARED),
            shared_id,
            links: Mutex::new(Links {
                now: linking,
                before: linking,
                variant: ident::key(0, 0, key as u8) as u8,
            }),
            shared: AtomicBool::new(false),
            sharing,
            uses: UseCount::new(),
            context: Context::new(),
            modify: SleepLock::new(),
        });
        if flags.contains(LmrFlags::SHARED) {
            self.share(&lmr);
        }
        self.keys.set(handle, key);
        reservation.fill(lmr);
        Ok((handle, is_remote(privs).then(|| RmrContext::from_key(key))))
    }

    /// Notes whose key a new region's is.
    fn own(&self, region: &Region, handle: LmrHandle) -> Result<()> {
        self.owners.set(region.key(), handle.into()).inspect_err(|_| {
            let _ = region.destroy();
        })
    }

    /// Marks a region, and one that matches it, as shared.
    fn share(&self, lmr: &Lmr) {
        let Some(sharing) = &lmr.sharing else { return };
        let all = self.lmrs.all();
        if let Some(other) = all.iter().find(|other| other.sharing.as_ref() == Some(sharing)) {
            other.shared.store(true, Ordering::Release);
            lmr.shared.store(true, Ordering::Release);
        }
    }
}

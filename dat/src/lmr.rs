//! Local memory regions (dat_lmr_create, dat_lmr_query, dat_lmr_free).

use alloc::sync::Arc;

use kernel_agent::{LinkFlags, MemoryList, Segment};
use platform::sync::Mutex;
use platform::{DmaBuffer, heap};
use rdma::Context;

use crate::attr::LmrParam;
use crate::error::{MODEL, NO_MEMORY, handle, parameter, state};
use crate::flags::{MemPriv, MemType, VaType};
use crate::handle::{LmrHandle, PzHandle};
use crate::ia::{Ia, Inner};
use crate::objects::lmr::{Memory, Region};
use crate::objects::pz::InZone;
use crate::ret::{Error, Result, Subtype};
use crate::segment::{LmrContext, LmrTriplet, RmrContext};

/// The memory of a region.
#[doc(alias = "DAT_REGION_DESCRIPTION")]
#[derive(Clone, Copy)]
pub enum RegionDescription<'a> {
    /// An owned buffer, from `offset` on ([`MemType::Virtual`]). The region keeps the buffer
    /// allocated.
    #[doc(alias = "for_va")]
    Buffer {
        /// The buffer.
        buffer: &'a Arc<DmaBuffer>,
        /// The region's first byte.
        offset: usize,
    },
    /// Constant memory, which no request may write ([`MemType::Virtual`]).
    Static(&'static [u8]),
    /// The memory of another region of this IA, from its first byte on ([`MemType::Lmr`]).
    #[doc(alias = "for_lmr_handle")]
    Lmr(LmrHandle),
}

impl<'a> RegionDescription<'a> {
    /// A whole buffer.
    pub const fn buffer(buffer: &'a Arc<DmaBuffer>) -> RegionDescription<'a> {
        RegionDescription::Buffer { buffer, offset: 0 }
    }
}

/// What dat_lmr_create returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lmr {
    /// The region.
    pub lmr_handle: LmrHandle,
    /// Its name in local segments.
    pub lmr_context: LmrContext,
    /// The region's context in requests of peers, if they have privileges.
    pub rmr_context: Option<RmrContext>,
    /// How many bytes are registered.
    pub registered_size: u64,
    /// The address of the first registered byte.
    pub registered_address: u64,
}

/// The rights of peers in the device's form.
pub(crate) fn remote_rights(privs: MemPriv) -> LinkFlags {
    let mut flags = LinkFlags::empty();
    flags.set(LinkFlags::REMOTE_READ, privs.contains(MemPriv::REMOTE_READ));
    flags.set(LinkFlags::REMOTE_WRITE, privs.contains(MemPriv::REMOTE_WRITE));
    // Atomics have a privilege of their own, which the one to write does not include.
    flags.set(LinkFlags::ATOMIC_ALONE, privs.contains(MemPriv::IB_REMOTE_ATOMIC));
    flags
}

/// All rights in the device's form.
fn rights(privs: MemPriv) -> LinkFlags {
    let mut flags = remote_rights(privs);
    flags.set(LinkFlags::LOCAL_READ, privs.contains(MemPriv::LOCAL_READ));
    flags.set(LinkFlags::LOCAL_WRITE, privs.contains(MemPriv::LOCAL_WRITE));
    flags
}

/// Rights of the device as DAT's privileges.
pub(crate) fn privileges(flags: LinkFlags) -> MemPriv {
    let mut privs = MemPriv::NONE;
    privs.set(MemPriv::LOCAL_READ, flags.contains(LinkFlags::LOCAL_READ));
    privs.set(MemPriv::LOCAL_WRITE, flags.contains(LinkFlags::LOCAL_WRITE));
    privs.set(MemPriv::REMOTE_READ, flags.contains(LinkFlags::REMOTE_READ));
    privs.set(MemPriv::REMOTE_WRITE, flags.contains(LinkFlags::REMOTE_WRITE));
    privs.set(MemPriv::IB_REMOTE_ATOMIC, flags.contains(LinkFlags::ATOMIC_ALONE));
    privs
}

/// The privileges by which peers change memory, which the consumer may then change, too.
const REMOTE_WRITES: MemPriv = MemPriv::REMOTE_WRITE.union(MemPriv::IB_REMOTE_ATOMIC);

/// Whether a region can have these privileges.
fn are_possible(privs: MemPriv) -> bool {
    let writes = privs.intersects(REMOTE_WRITES);
    privs.contains(MemPriv::LOCAL_READ) && (!writes || privs.contains(MemPriv::LOCAL_WRITE))
}

const INVALID: Error = handle(Subtype::InvalidHandleLmr);

impl Inner {
    pub(crate) fn check_privileges(&self, privs: MemPriv, argument: Subtype) -> Result<()> {
        if MemPriv::from_bits(privs.bits()).is_none() {
            return Err(parameter(argument));
        }
        if privs.contains(MemPriv::IB_REMOTE_ATOMIC) && !self.offers.atomics() {
            return Err(MODEL);
        }
        Ok(())
    }

    pub(crate) fn lmr(&self, lmr: LmrHandle) -> Result<Arc<Region>> {
        self.lmrs.get(lmr).ok_or(INVALID)
    }

    /// Registers memory with the device.
    fn register(
        &self,
        zone: &InZone,
        memory: &Memory,
        address: usize,
        length: u64,
        rights: LinkFlags,
    ) -> Result<Arc<kernel_agent::Region>> {
        let client = self.client()?;
        let register = |list: &MemoryList<'_>| client.register(&zone.pd, rights, address as u64, list);
        let registered = match memory {
            Memory::Buffer { buffer, offset } => {
                let list = MemoryList::Contiguous { bus: buffer.bus() + *offset as u64, length };
                self.agent().registering(buffer, || register(&list))
            }
            Memory::Static(_) | Memory::Raw { .. } => {
                self.agent().list_virtual(address, length, register).flatten()
            }
        };
        registered.map_err(|error| match error {
            kernel_agent::Error::TooScattered | kernel_agent::Error::NotReachable => {
                parameter(Subtype::InvalidArg3)
            }
            other => self.error(other),
        })
    }

    /// Registers memory, which `memory` finds.
    pub(crate) fn create_lmr(
        &self,
        memory: impl FnOnce() -> Result<(Memory, MemType)>,
        length: u64,
        pz: PzHandle,
        privileges: MemPriv,
        va_type: VaType,
    ) -> Result<Lmr> {
        self.check_privileges(privileges, Subtype::InvalidArg6)?;
        if va_type == VaType::Zb && !self.offers.zero_based() {
            return Err(MODEL);
        }
        let (memory, mem_type) = memory()?;
        self.not_in_upcall()?;
        let zone = self.enter_zone(pz)?;
        let read_only = matches!(memory, Memory::Static(_));
        let writes = privileges.intersects(MemPriv::LOCAL_WRITE.union(REMOTE_WRITES));
        if !are_possible(privileges) {
            return Err(parameter(Subtype::InvalidArg6));
        }
        if length > self.identity().max_region {
            return Err(parameter(Subtype::InvalidArg3));
        }
        if read_only && writes {
            return Err(parameter(Subtype::InvalidArg6));
        }
        let extent = memory.extent().filter(|(_, room)| length <= *room);
        let (address, _) = extent.ok_or(parameter(Subtype::InvalidArg3))?;
        let reservation = self.lmrs.reserve()?;
        let handle = reservation.handle();
        self.keys.reach(handle.as_raw())?;
        let mut rights = rights(privileges) | LinkFlags::BIND;
        rights.set(LinkFlags::RELATIVE, va_type == VaType::Zb);
        let region = self.register(&zone, &memory, address, length, rights)?;
        let (key, remote) = (region.key(), region.remote_key());
        let undo = |region: &kernel_agent::Region| {
            self.owners.clear(key, handle.as_raw());
            let _ = region.destroy();
            NO_MEMORY
        };
        self.owners.set(key, handle.as_raw()).map_err(|_| undo(&region))?;
        let made = heap::arc(Region {
            handle,
            zone,
            region,
            memory: Mutex::new(Some(memory)),
            address,
            length,
            mem_type,
            va_type,
            context: Context::new(),
        });
        let made = made.map_err(|made| undo(&made.region))?;
        self.keys.set(handle.as_raw(), key);
        reservation.fill(made);
        let is_remote = privileges.intersects(REMOTE_WRITES.union(MemPriv::REMOTE_READ));
        Ok(Lmr {
            lmr_handle: handle,
            lmr_context: LmrContext(handle),
            rmr_context: is_remote.then(|| remote.to_be()),
            registered_size: length,
            registered_address: address as u64,
        })
    }

    /// Frees a region, unless a remote memory region is bound to it or another call frees it.
    pub(crate) fn end_lmr(&self, lmr: &Region) -> Result<()> {
        let destroyed = lmr.region.destroy();
        if destroyed == Err(kernel_agent::Error::Busy) {
            return Err(state(Subtype::InvalidStateLmrInUse));
        }
        self.lmrs.invalidate(lmr.handle).ok_or(INVALID)?;
        let word = lmr.handle.as_raw();
        self.keys.clear(word);
        self.owners.clear(lmr.region.key(), word);
        self.lmrs.release(lmr.handle);
        lmr.zone.end();
        // Taken out here, because another thread may keep the object itself alive for a moment.
        let memory = lmr.memory.lock().take();
        if let Some(Memory::Buffer { buffer, .. }) = memory {
            self.agent().release(buffer, destroyed);
        }
        Ok(())
    }
}

impl Inner {
    /// A segment in the device's form. A context that names no region becomes a key that the device
    /// refuses, and a length beyond 32 bits, which is too long for every endpoint, the largest one.
    #[inline(always)]
    pub(crate) fn segment(&self, piece: &LmrTriplet) -> Segment {
        let length = piece.segment_length().min(u64::from(u32::MAX)) as u32;
        Segment { addr: piece.virtual_address(), length, key: self.keys.get(piece.lmr_context().0.as_raw()) }
    }
}

impl Ia {
    /// Registers memory. See [`Lmr`] for what it returns.
    ///
    /// A region needs `LOCAL_READ`, and with `REMOTE_WRITE` or `IB_REMOTE_ATOMIC` also
    /// `LOCAL_WRITE`. Atomics of peers need `IB_REMOTE_ATOMIC` and nothing else. Addresses in a
    /// zero-based region begin at 0.
    ///
    /// Errors: `InvalidHandle` (PZ, or the LMR whose memory it shares), `InvalidParameter` (memory
    /// or a length outside the buffer; privileges), `ModelNotSupported` (zero-based, or atomics, if
    /// the adapter lacks them), `InsufficientResources`, `InvalidState` (in an upcall). Blocks for
    /// the device. Not for upcalls. Thread-safe. dat_lmr_create.
    #[doc(alias = "dat_lmr_create")]
    pub fn lmr_create(
        &self,
        region_description: RegionDescription<'_>,
        length: u64,
        pz: PzHandle,
        privileges: MemPriv,
        va_type: VaType,
    ) -> Result<Lmr> {
        let inner = self.call()?;
        let found = || match region_description {
            RegionDescription::Buffer { buffer, offset } => {
                Ok((Memory::Buffer { buffer: buffer.clone(), offset }, MemType::Virtual))
            }
            RegionDescription::Static(bytes) => Ok((Memory::Static(bytes), MemType::Virtual)),
            RegionDescription::Lmr(lmr) => {
                let region = inner.lmr(lmr)?;
                if length > region.length {
                    return Err(parameter(Subtype::InvalidArg3));
                }
                let memory = region.memory.lock().clone();
                Ok((memory.ok_or(INVALID)?, MemType::Lmr))
            }
        };
        inner.create_lmr(found, length, pz, privileges, va_type)
    }

    /// Returns a region's parameters.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_lmr_query.
    #[doc(alias = "dat_lmr_query")]
    pub fn lmr_query(&self, lmr: LmrHandle) -> Result<LmrParam> {
        let inner = &self.inner;
        inner.live()?;
        let lmr = inner.lmr(lmr)?;
        let info = lmr.region.query().map_err(|error| inner.gone(error, INVALID))?;
        let mem_priv = privileges(LinkFlags::from_bits_truncate(info.flags));
        let is_remote = mem_priv.intersects(REMOTE_WRITES.union(MemPriv::REMOTE_READ));
        let rmr_context: Option<RmrContext> = is_remote.then(|| info.remote.to_be());
        Ok(LmrParam {
            ia_handle: self.handle(),
            mem_type: lmr.mem_type,
            address: lmr.address,
            length: lmr.length,
            pz_handle: lmr.zone.handle,
            mem_priv,
            va_type: lmr.va_type,
            lmr_context: LmrContext(lmr.handle),
            rmr_context,
            registered_size: lmr.length,
            registered_address: lmr.address as u64,
        })
    }

    /// Frees a region. After the return the device does not access its memory.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (subtype `InvalidStateLmrInUse`: a remote memory
    /// region is bound to it). Blocks for the device. May be called in upcalls. Thread-safe: a call
    /// that races with it succeeds or finds the handle invalid. dat_lmr_free.
    #[doc(alias = "dat_lmr_free")]
    pub fn lmr_free(&self, lmr: LmrHandle) -> Result<()> {
        let inner = self.call()?;
        let lmr = inner.lmr(lmr)?;
        inner.end_lmr(&lmr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_privilege_is_a_right_of_the_device() {
        for (privs, flags) in [
            (MemPriv::LOCAL_READ, LinkFlags::LOCAL_READ),
            (MemPriv::LOCAL_WRITE, LinkFlags::LOCAL_WRITE),
            (MemPriv::REMOTE_READ, LinkFlags::REMOTE_READ),
            (MemPriv::REMOTE_WRITE, LinkFlags::REMOTE_WRITE),
            (MemPriv::IB_REMOTE_ATOMIC, LinkFlags::ATOMIC_ALONE),
            (MemPriv::NONE, LinkFlags::empty()),
        ] {
            assert_eq!((rights(privs), privileges(flags)), (flags, privs));
        }
        assert_eq!(privileges(rights(MemPriv::ALL)), MemPriv::ALL);
        assert_eq!(remote_rights(MemPriv::ALL), LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE);
    }

    #[test]
    fn who_lets_peers_write_may_write() {
        assert!(are_possible(MemPriv::LOCAL_READ) && are_possible(MemPriv::ALL));
        for privs in [
            MemPriv::NONE,
            MemPriv::LOCAL_WRITE,
            MemPriv::LOCAL_READ | MemPriv::REMOTE_WRITE,
            MemPriv::LOCAL_READ | MemPriv::IB_REMOTE_ATOMIC,
        ] {
            assert!(!are_possible(privs), "{privs:?}");
        }
    }
}

//! Local memory regions: the object, query, freeing (pages it_lmr_query, it_lmr_free,
//! it_lmr_flush_to_mem, it_lmr_refresh_from_mem, it_mem_priv_t).
//!
//! Owns the agent's region, and keeps the memory of owned buffers alive while the device uses it.
//!
//! Segments, links and unlinks name a region by its local key, which is constant. What a region is
//! linked to is known to the device alone, so a query asks the device.
//!
//! Locks: a region's `changes` (sleeps). `zone` and `buffer` are taken alone.

mod create;
pub(crate) mod keys;
mod link;
mod modify;
pub(crate) mod owners;
mod raw;
pub(crate) mod sharing;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering, fence};

use kernel_agent::{LinkFlags, ListElement, MemoryList, Region};
use platform::sync::Mutex;
use platform::{DmaBuffer, SleepLock};
use rdma::Context;
use sharing::Sharing;
use zerocopy::{FromBytes, IntoBytes};

use crate::address::{IoAddr, RmrContext};
use crate::attributes::{AddrMode, LmrParam};
use crate::flags::{IoblTypes, LmrFlags, LmrParamMask, MemPriv};
use crate::handle::LmrHandle;
use crate::ia::{Core, Ia};
use crate::iobl::{IOBL_MIN_PAGE, Iobl, IoblList, LmrTriplet};
use crate::pz::InZone;
use crate::status::{Error, Result};

pub use create::LmrMemory;

/// What a region was created with, if it was created with its memory. The other regions are linked
/// by work requests; only the device knows what is in force.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    addr: usize,
    length: u64,
    addr_mode: AddrMode,
    iobl_type: IoblTypes,
}

pub(crate) struct Lmr {
    handle: LmrHandle,
    zone: Mutex<InZone>,
    region: Arc<Region>,
    /// Keeps the memory of an owned buffer alive.
    buffer: Mutex<Option<Arc<DmaBuffer>>>,
    /// Whether the consumer itself may only read the memory.
    read_only: bool,
    flags: LmrFlags,
    shared_id: u32,
    made: Option<Made>,
    /// Whether the region shares translations with another one.
    shared: AtomicBool,
    sharing: Option<Sharing>,
    pub(crate) context: Context,
    /// Held by it_lmr_modify; by it_lmr_query, so that it sees a modification whole; and by
    /// it_lmr_free, so that a region is freed once.
    changes: SleepLock,
}

/// The device's form of local privileges. Windows may always be bound (appendix A).
fn rights(privs: MemPriv, addr_mode: AddrMode) -> LinkFlags {
    let mut flags = LinkFlags::BIND;
    flags.set(LinkFlags::LOCAL_READ, privs.contains(MemPriv::LOCAL_READ));
    flags.set(LinkFlags::LOCAL_WRITE, privs.contains(MemPriv::LOCAL_WRITE));
    flags.set(LinkFlags::RELATIVE, addr_mode == AddrMode::Relative);
    flags | remote_rights(privs)
}

/// The device's form of privileges of peers.
pub(crate) fn remote_rights(privs: MemPriv) -> LinkFlags {
    let mut flags = LinkFlags::empty();
    flags.set(LinkFlags::REMOTE_READ, privs.contains(MemPriv::REMOTE_READ));
    flags.set(LinkFlags::REMOTE_WRITE, privs.contains(MemPriv::REMOTE_WRITE));
    flags.set(LinkFlags::REMOTE_ATOMIC, privs.contains(MemPriv::ATOMIC));
    flags.set(LinkFlags::ATOMIC_ALONE, privs.contains(MemPriv::ATOMIC_ALONE));
    flags
}

/// The privileges of which these are the device's form.
pub(crate) fn privileges(flags: LinkFlags) -> MemPriv {
    let mut privs = MemPriv::empty();
    privs.set(MemPriv::LOCAL_READ, flags.contains(LinkFlags::LOCAL_READ));
    privs.set(MemPriv::LOCAL_WRITE, flags.contains(LinkFlags::LOCAL_WRITE));
    privs.set(MemPriv::REMOTE_READ, flags.contains(LinkFlags::REMOTE_READ));
    privs.set(MemPriv::REMOTE_WRITE, flags.contains(LinkFlags::REMOTE_WRITE));
    privs.set(MemPriv::ATOMIC, flags.contains(LinkFlags::REMOTE_ATOMIC));
    privs.set(MemPriv::ATOMIC_ALONE, flags.contains(LinkFlags::ATOMIC_ALONE));
    privs
}

/// The addressing of which this is the device's form.
pub(crate) fn addressing(flags: LinkFlags) -> AddrMode {
    if flags.contains(LinkFlags::RELATIVE) { AddrMode::Relative } else { AddrMode::Absolute }
}

/// The type of the list to which a region was linked.
fn list_type(flags: LinkFlags) -> IoblTypes {
    if flags.contains(LinkFlags::VARIABLE) {
        IoblTypes::VE_PAGE_LIST
    } else if flags.contains(LinkFlags::PAGES) {
        IoblTypes::PAGE_LIST
    } else {
        IoblTypes::BLOCK_LIST
    }
}

/// Privileges that let peers write the memory.
const REMOTE_WRITES: MemPriv = MemPriv::REMOTE_WRITE.union(MemPriv::ATOMIC).union(MemPriv::ATOMIC_ALONE);
/// Privileges that let the memory be written.
const WRITES: MemPriv = MemPriv::LOCAL_WRITE.union(REMOTE_WRITES);

/// Whether the privileges give peers a context.
fn is_remote(privs: MemPriv) -> bool {
    privs.intersects(MemPriv::REMOTE_READ.union(REMOTE_WRITES))
}

/// Whether the privileges are a valid set: not empty, and with local write if peers may write.
fn is_valid_combination(privs: MemPriv) -> bool {
    let writes = privs.intersects(REMOTE_WRITES);
    !privs.is_empty() && (!writes || privs.contains(MemPriv::LOCAL_WRITE))
}

/// The agent's form of a list; the elements are not copied.
fn memory_list<'a>(iobl: &Iobl<'a>, length: u64) -> MemoryList<'a> {
    let first_byte_offset = iobl.fbo;
    // Both types have the same layout, so this cannot fail.
    let words = |elements: &'a [IoAddr]| <[u64]>::ref_from_bytes(elements.as_bytes()).unwrap_or_default();
    match iobl.list {
        IoblList::Pages { elements, elt_len: page_size } => {
            MemoryList::Pages { pages: words(elements), page_size, first_byte_offset, length }
        }
        IoblList::Blocks { elements, elt_len: block_length } => {
            MemoryList::Blocks { blocks: words(elements), block_length, first_byte_offset, length }
        }
        IoblList::VePages { elements } => {
            let elements = <[ListElement]>::ref_from_bytes(elements.as_bytes()).unwrap_or_default();
            MemoryList::Variable { elements, first_byte_offset, length }
        }
    }
}

/// The I/O address of a list's first byte.
fn first_byte(iobl: &Iobl<'_>) -> usize {
    let first = match iobl.list {
        IoblList::Pages { elements, .. } | IoblList::Blocks { elements, .. } => elements.first().copied(),
        IoblList::VePages { elements } => elements.first().map(|element| element.io_addr),
    };
    first.map_or(0, |addr| addr.0.wrapping_add(iobl.fbo) as usize)
}

/// Why a list is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListFault {
    /// The list is not valid for its type (`IT_ERR_INVALID_IOBL`).
    Iobl,
    /// The region is longer than the list.
    Length,
}

/// Whether the base address, with absolute addressing, has the same offset in its page as the first
/// byte has in the first element.
#[inline]
fn agrees(addr: Option<usize>, page: u64, fbo: u64) -> bool {
    addr.is_none_or(|addr| addr as u64 & page.wrapping_sub(1) == fbo)
}

/// Whether a page list may have elements of this length, and addresses with these bits, of all of
/// them together.
#[inline]
fn are_pages(addrs: u64, length: u64) -> bool {
    length >= IOBL_MIN_PAGE && length.is_power_of_two() && addrs & (length - 1) == 0
}

/// Checks a list. `addr` is the base address with absolute addressing.
#[inline]
pub(crate) fn check_list(
    iobl: &Iobl<'_>,
    addr: Option<usize>,
    length: u64,
    max_elements: usize,
) -> core::result::Result<(), ListFault> {
    let number = iobl.num_elts();
    if number == 0 || number > max_elements {
        return Err(ListFault::Iobl);
    }
    let (first, total) = match iobl.list {
        IoblList::Pages { elements, elt_len } => {
            let addrs = elements.iter().fold(0, |bits, page| bits | page.0);
            if !are_pages(addrs, elt_len) || !agrees(addr, elt_len, iobl.fbo) {
                return Err(ListFault::Iobl);
            }
            (elt_len, elt_len.checked_mul(number as u64))
        }
        IoblList::Blocks { elt_len, .. } => (elt_len, elt_len.checked_mul(number as u64)),
        IoblList::VePages { elements } => {
            // A variable list has the rules of a page list (page it_iobl_t).
            let first = elements.first().map_or(0, |element| element.elt_len);
            if !elements.iter().all(|element| are_pages(element.io_addr.0, element.elt_len))
                || !agrees(addr, first, iobl.fbo)
            {
                return Err(ListFault::Iobl);
            }
            let total = elements.iter().try_fold(0u64, |sum, element| sum.checked_add(element.elt_len));
            (first, total)
        }
    };
    let total = total.ok_or(ListFault::Iobl)?;
    if iobl.fbo >= first {
        return Err(ListFault::Iobl);
    }
    if length > total - iobl.fbo { Err(ListFault::Length) } else { Ok(()) }
}

impl Lmr {
    /// Whether the region was created without memory.
    fn is_linkable(&self) -> bool {
        self.region.max_elements() > 0
    }

    /// The local key.
    #[inline]
    pub(crate) fn key(&self) -> u32 {
        self.region.key()
    }

    /// Fails if the range of an RMR is not within the region (it_rmr_link). Where an RMR may be
    /// linked in a region that is itself linked by work requests, and in a region with relative
    /// addressing, the device decides when it links the RMR.
    pub(crate) fn check_range(&self, addr: usize, length: u64) -> Result<()> {
        match self.made {
            Some(made) if made.addr_mode == AddrMode::Absolute => made.check_range(addr, length),
            _ => Ok(()),
        }
    }
}

impl Made {
    fn check_range(&self, addr: usize, length: u64) -> Result<()> {
        let offset = addr.checked_sub(self.addr).ok_or(Error::Address)? as u64;
        let room = self.length.checked_sub(offset).filter(|room| *room > 0).ok_or(Error::Address)?;
        if length > room { Err(Error::InvalidLength) } else { Ok(()) }
    }
}

/// Whether a segment is within a region.
fn spans(base: u64, length: u64, addr_mode: AddrMode, segment: &LmrTriplet) -> bool {
    let offset = match addr_mode {
        AddrMode::Absolute => segment.addr.checked_sub(base),
        AddrMode::Relative => Some(segment.addr),
    };
    let room = offset.and_then(|offset| length.checked_sub(offset));
    room.is_some_and(|room| segment.length <= room)
}

impl Lmr {
    /// Whether a segment is within the region. Asks the device for the link in force.
    fn spans(&self, segment: &LmrTriplet) -> core::result::Result<bool, kernel_agent::Error> {
        if let Some(Made { addr, length, addr_mode, .. }) = self.made {
            return Ok(spans(addr as u64, length, addr_mode, segment));
        }
        let info = self.region.query()?;
        let addr_mode = addressing(LinkFlags::from_bits_truncate(info.flags));
        Ok(info.linked != 0 && spans(info.base, info.length, addr_mode, segment))
    }

    fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }
}

impl Core {
    pub(crate) fn lmr(&self, lmr: LmrHandle) -> Result<Arc<Lmr>> {
        self.lmrs.get(lmr).ok_or(Error::InvalidLmr)
    }

    /// Fails if another call freed the region before the caller took its lock `changes`.
    fn still(&self, lmr: &Lmr) -> Result<()> {
        self.lmrs.with(lmr.handle, |_| ()).ok_or(Error::InvalidLmr)
    }

    /// Frees a region to which no window is bound; returns false if the device says that one is. To
    /// be called with `changes` held, or when no calls are in progress any more.
    pub(crate) fn free_lmr(&self, lmr: &Lmr) -> bool {
        let destroyed = lmr.region.destroy();
        if destroyed == Err(kernel_agent::Error::Busy) {
            return false;
        }
        self.keys.clear(lmr.handle);
        self.owners.clear(lmr.region.key(), lmr.handle.into());
        self.lmrs.remove(lmr.handle);
        self.shared.shareable.forget(lmr);
        lmr.zone.lock().end();
        // Taken out here, because another thread may keep the object itself alive for a moment.
        let buffer = lmr.buffer.lock().take();
        if let Some(buffer) = buffer {
            self.agent().release(buffer, destroyed);
        }
        true
    }
}

impl Ia {
    /// Returns a region's present parameters. If it is not linked, address, length, privileges and
    /// context are undefined.
    ///
    /// Errors: `InvalidLmr`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Blocks for the device.
    /// May be called in callbacks. Thread-safe. Page it_lmr_query.
    #[doc(alias = "it_lmr_query")]
    pub fn lmr_query(&self, lmr: LmrHandle, mask: LmrParamMask) -> Result<LmrParam> {
        let core = self.live()?;
        let lmr = core.lmr(lmr)?;
        if LmrParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let _changes = lmr.changes.lock(&core.shared.platform);
        let info = lmr.region.query().map_err(|error| core.gone(error, Error::InvalidLmr))?;
        let linked = info.linked != 0;
        let flags = LinkFlags::from_bits_truncate(info.flags);
        let privs = privileges(flags);
        let wants = |bit| mask.intersects(bit | LmrParamMask::ALL);
        let mut param = LmrParam::default();
        if wants(LmrParamMask::IA) {
            param.ia = core.handle;
        }
        if wants(LmrParamMask::PZ) {
            param.pz = lmr.zone.lock().handle;
        }
        if wants(LmrParamMask::FLAG) {
            param.flags = lmr.flags;
            param.flags.set(LmrFlags::SHARED, linked && lmr.is_shared());
        }
        if wants(LmrParamMask::SHARED_ID) {
            param.shared_id = lmr.shared_id;
        }
        if wants(LmrParamMask::LINKED) {
            param.linked = linked;
        }
        if wants(LmrParamMask::IOBL_NUM_ELTS) {
            param.iobl_num_elts = lmr.region.max_elements() as usize;
        }
        if !linked {
            return Ok(param);
        }
        if wants(LmrParamMask::ADDR) {
            param.addr = info.base as usize;
        }
        if wants(LmrParamMask::LENGTH) {
            param.length = info.length;
        }
        if wants(LmrParamMask::ACTUAL_ADDR) {
            param.actual_addr = info.base as usize;
        }
        if wants(LmrParamMask::ACTUAL_LENGTH) {
            param.actual_length = info.length;
        }
        if wants(LmrParamMask::MEM_PRIV) {
            param.privs = privs;
        }
        if wants(LmrParamMask::RMR_CONTEXT) && is_remote(privs) {
            param.rmr_context = Some(RmrContext::from_key(info.remote));
        }
        if wants(LmrParamMask::ADDR_MODE) {
            param.addr_mode = addressing(flags);
        }
        if wants(LmrParamMask::IOBL_TYPE) {
            param.iobl_type = lmr.made.map_or_else(|| list_type(flags), |made| made.iobl_type);
        }
        Ok(param)
    }

    /// Destroys a region, linked or not. After this call the device does not access the memory.
    ///
    /// Errors: `InvalidLmr`, `LmrBusy` while an RMR is linked to it, `InvalidIa`, `IaCatastrophe`.
    /// Blocks for the device. May be called in callbacks. Thread-safe: a call that races with it
    /// succeeds or finds the handle invalid. Page it_lmr_free.
    #[doc(alias = "it_lmr_free")]
    pub fn lmr_free(&self, lmr: LmrHandle) -> Result<()> {
        let core = self.call()?;
        let lmr = core.lmr(lmr)?;
        let _changes = lmr.changes.lock(&core.shared.platform);
        core.still(&lmr)?;
        if core.free_lmr(&lmr) { Ok(()) } else { Err(Error::LmrBusy) }
    }

    /// Makes the consumer's changes of memory visible to incoming RDMA Reads and atomic operations.
    /// Only regions that were created with `LmrFlags::NONCOHERENT` need it; segments in other
    /// regions, or in no region, are skipped.
    ///
    /// Errors: `Range` (a segment is not within its region, which is non-coherent; nothing was
    /// done), `InvalidIa`, `IaCatastrophe`. Blocks for the device if a non-coherent region was
    /// created unlinked. May be called in callbacks. Thread-safe. Page it_lmr_flush_to_mem.
    #[doc(alias = "it_lmr_flush_to_mem")]
    pub fn lmr_flush_to_mem(&self, local_segments: &[LmrTriplet]) -> Result<()> {
        self.synchronize(local_segments)
    }

    /// Makes changes by incoming RDMA Writes and atomic operations visible to the consumer, and
    /// orders the consumer's own writes with them. Only regions that were created with
    /// `LmrFlags::NONCOHERENT` need it; segments in other regions, or in no region, are skipped.
    ///
    /// Errors: `Range` (a segment is not within its region, which is non-coherent; nothing was
    /// done), `InvalidIa`, `IaCatastrophe`. Blocks for the device if a non-coherent region was
    /// created unlinked. May be called in callbacks. Thread-safe. Page it_lmr_refresh_from_mem.
    #[doc(alias = "it_lmr_refresh_from_mem")]
    pub fn lmr_refresh_from_mem(&self, local_segments: &[LmrTriplet]) -> Result<()> {
        self.synchronize(local_segments)
    }

    /// Orders memory accesses. A platform's DMA memory is coherent with its caches, so nothing else
    /// is needed.
    fn synchronize(&self, local_segments: &[LmrTriplet]) -> Result<()> {
        let core = self.live()?;
        let mut any = false;
        for segment in local_segments {
            let Some(lmr) = core.lmrs.get(segment.lmr) else { continue };
            if !lmr.flags.contains(LmrFlags::NONCOHERENT) {
                continue;
            }
            match lmr.spans(segment) {
                Ok(true) => any = true,
                Ok(false) => return Err(Error::Range),
                // Freed meanwhile.
                Err(kernel_agent::Error::Gone) => {}
                Err(error) => return Err(core.error(error)),
            }
        }
        if any {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iobl::IoblVeElt;

    const PAGES: [IoAddr; 2] = [IoAddr(0x4000), IoAddr(0x8000)];

    #[test]
    fn page_lists_are_checked() {
        let list = |elt_len, fbo| Iobl::pages(&PAGES, elt_len, fbo);
        assert_eq!(check_list(&list(4096, 40), Some(0x7028), 8192 - 40, 2), Ok(()));
        assert_eq!(check_list(&list(4096, 40), None, 8192 - 39, 2), Err(ListFault::Length));
        assert_eq!(check_list(&list(4096, 40), Some(0x7029), 1, 2), Err(ListFault::Iobl), "address");
        assert_eq!(check_list(&list(4096, 4096), None, 1, 2), Err(ListFault::Iobl), "offset");
        assert_eq!(check_list(&list(4095, 0), None, 1, 2), Err(ListFault::Iobl), "size");
        assert_eq!(check_list(&list(0, 0), None, 1, 2), Err(ListFault::Iobl), "no size");
        assert_eq!(check_list(&list(4096, 0), None, 1, 1), Err(ListFault::Iobl), "too many");
        for askew in [&[IoAddr(0x4001)][..], &[IoAddr(0x4200), IoAddr(0x8200)]] {
            let list = Iobl::pages(askew, 4096, 0);
            assert_eq!(check_list(&list, None, 1, 2), Err(ListFault::Iobl), "alignment");
        }
    }

    #[test]
    fn block_and_variable_lists_are_checked() {
        assert_eq!(check_list(&Iobl::blocks(&PAGES, 512, 40), Some(3), 984, 2), Ok(()));
        assert_eq!(check_list(&Iobl::blocks(&[], 512, 0), None, 0, 2), Err(ListFault::Iobl));
        assert_eq!(check_list(&Iobl::blocks(&PAGES, u64::MAX, 0), None, 0, 2), Err(ListFault::Iobl));
        let element = |io_addr, elt_len| IoblVeElt { io_addr: IoAddr(io_addr), elt_len };
        let elements = [element(0x4000, 8192), element(0x1000, 4096)];
        assert_eq!(check_list(&Iobl::ve_pages(&elements, 9), None, 12279, 2), Ok(()));
        assert_eq!(check_list(&Iobl::ve_pages(&elements, 9), Some(0x6009), 12279, 2), Ok(()));
        assert_eq!(check_list(&Iobl::ve_pages(&elements, 9), Some(0x7009), 1, 2), Err(ListFault::Iobl));
        assert_eq!(check_list(&Iobl::ve_pages(&elements, 9), None, 12280, 2), Err(ListFault::Length));
        assert_eq!(check_list(&Iobl::ve_pages(&elements, 8192), None, 1, 2), Err(ListFault::Iobl));
        for bad in [element(0x1000, 8192), element(0x4001, 4096), element(0, 0), element(0, 3000)] {
            assert_eq!(check_list(&Iobl::ve_pages(&[bad], 0), None, 1, 2), Err(ListFault::Iobl), "{bad:?}");
        }
    }

    #[test]
    fn privileges_have_a_form_each() {
        let each = (0..=MemPriv::ALL.bits()).filter_map(MemPriv::from_bits);
        for privs in each.flat_map(|privs| [privs, privs | MemPriv::ATOMIC_ALONE]) {
            assert_eq!(privileges(rights(privs, AddrMode::Relative)), privs);
            assert_eq!(privileges(remote_rights(privs)), privs.difference(MemPriv::LOCAL));
        }
    }

    #[test]
    fn remote_write_and_atomics_need_local_write() {
        assert!(!is_valid_combination(MemPriv::empty()));
        assert!(!is_valid_combination(MemPriv::REMOTE_WRITE | MemPriv::LOCAL_READ));
        assert!(!is_valid_combination(MemPriv::ATOMIC | MemPriv::LOCAL_READ));
        assert!(!is_valid_combination(MemPriv::ATOMIC_ALONE | MemPriv::LOCAL_READ));
        assert!(is_valid_combination(MemPriv::ALL));
    }
}

//! Local memory regions: the object, query, freeing (pages it_lmr_query, it_lmr_free, it_lmr_flush_to_mem, it_lmr_refresh_from_mem,
//! it_mem_priv_t).
//!
//! Owns the agent's region and keeps the memory of owned buffers alive until the device has let go of it.
//! Locks, outermost first: a region's `link`, then a queue pair's send queue (inside the agent).

mod create;
pub(crate) mod keys;
mod link;
mod modify;
pub(crate) mod owners;
mod raw;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use kernel_agent::{MemoryList, Region};
use nic_abi::wqe::{LinkFlags, ListElement};
use platform::DmaBuffer;
use platform::sync::Mutex;

use crate::address::{IoAddr, RmrContext};
use crate::attributes::{AddrMode, LmrParam};
use crate::context::Context;
use crate::flags::{IoblTypes, LmrFlags, LmrParamMask, MemPriv};
use crate::handle::LmrHandle;
use crate::ia::{Core, Ia};
use crate::iobl::{Iobl, IoblList, LmrTriplet};
use crate::pz::InZone;
use crate::sleep_lock::SleepLock;
use crate::status::{Error, Result};
use crate::table::UseCount;

pub use create::LmrMemory;

/// What a region is linked to.
#[derive(Clone, Copy)]
pub(crate) struct Linking {
    key: u32,
    addr: usize,
    length: u64,
    privs: MemPriv,
    addr_mode: AddrMode,
    iobl_type: IoblTypes,
}

/// The link that was posted last, and the one before it, which stays in force if the last one fails.
struct Links {
    now: Linking,
    before: Linking,
    variant: u8,
}

/// What must be equal for two regions to share translations (it_lmr_create).
#[derive(PartialEq, Eq)]
pub(crate) struct Sharing {
    shared_id: u32,
    noncoherent: bool,
    length: u64,
    /// The memory as runs of bus addresses.
    runs: Vec<(u64, u64)>,
}

pub(crate) struct Lmr {
    handle: LmrHandle,
    zone: Mutex<InZone>,
    region: Arc<Region>,
    /// Keeps the memory alive.
    _buffer: Option<Arc<DmaBuffer>>,
    flags: LmrFlags,
    shared_id: u32,
    links: Mutex<Links>,
    shared: AtomicBool,
    sharing: Option<Sharing>,
    /// Windows on it.
    uses: UseCount,
    pub(crate) context: Context,
    /// Held by it_lmr_modify.
    modify: SleepLock,
}

/// Rights as the device knows them. Windows may always be bound (appendix A).
fn rights(privs: MemPriv, addr_mode: AddrMode) -> LinkFlags {
    let mut flags = LinkFlags::BIND;
    flags.set(LinkFlags::LOCAL_READ, privs.contains(MemPriv::LOCAL_READ));
    flags.set(LinkFlags::LOCAL_WRITE, privs.contains(MemPriv::LOCAL_WRITE));
    flags.set(LinkFlags::RELATIVE, addr_mode == AddrMode::Relative);
    flags | remote_rights(privs)
}

/// Rights of peers as the device knows them. An atomic operation reads and writes, so it needs these two privileges besides its own
/// (it_post_atomic, it_mem_priv_t).
pub(crate) fn remote_rights(privs: MemPriv) -> LinkFlags {
    let mut flags = LinkFlags::empty();
    flags.set(LinkFlags::REMOTE_READ, privs.contains(MemPriv::REMOTE_READ));
    flags.set(LinkFlags::REMOTE_WRITE, privs.contains(MemPriv::REMOTE_WRITE));
    flags.set(LinkFlags::REMOTE_ATOMIC, privs.contains(MemPriv::REMOTE | MemPriv::ATOMIC));
    flags
}

/// Whether peers get a context.
fn is_remote(privs: MemPriv) -> bool {
    privs.intersects(MemPriv::REMOTE | MemPriv::ATOMIC)
}

/// Whether the privileges may be given together: some at all, and those that let peers write only with local write.
fn is_valid_combination(privs: MemPriv) -> bool {
    let writes = privs.intersects(MemPriv::REMOTE_WRITE | MemPriv::ATOMIC);
    !privs.is_empty() && (!writes || privs.contains(MemPriv::LOCAL_WRITE))
}

/// The elements of a list as the agent takes them.
enum Elements {
    Equal(Vec<u64>),
    Different(Vec<ListElement>),
}

impl Elements {
    fn new(iobl: &Iobl<'_>) -> Result<Elements> {
        let equal = |elements: &[IoAddr]| {
            let mut list = Vec::new();
            list.try_reserve_exact(elements.len()).map_err(|_| Error::Resources)?;
            list.extend(elements.iter().map(|element| element.0));
            Ok(Elements::Equal(list))
        };
        match iobl.list {
            IoblList::Pages { elements, .. } | IoblList::Blocks { elements, .. } => equal(elements),
            IoblList::VePages { elements } => {
                let mut list = Vec::new();
                list.try_reserve_exact(elements.len()).map_err(|_| Error::Resources)?;
                let each = elements.iter();
                list.extend(each.map(|e| ListElement { addr: e.io_addr.0, length: e.elt_len }));
                Ok(Elements::Different(list))
            }
        }
    }

    fn list<'a>(&'a self, iobl: &Iobl<'_>, length: u64) -> MemoryList<'a> {
        let first_byte_offset = iobl.fbo;
        match (self, iobl.list) {
            (Elements::Equal(pages), IoblList::Pages { elt_len, .. }) => {
                MemoryList::Pages { pages, page_size: elt_len, first_byte_offset, length }
            }
            (Elements::Equal(blocks), IoblList::Blocks { elt_len, .. }) => {
                MemoryList::Blocks { blocks, block_length: elt_len, first_byte_offset, length }
            }
            (Elements::Different(elements), _) => {
                MemoryList::Variable { elements, first_byte_offset, length }
            }
            // A list of equal elements never comes from a variable one.
            (Elements::Equal(_), IoblList::VePages { .. }) => {
                MemoryList::Variable { elements: &[], first_byte_offset, length }
            }
        }
    }
}

/// Why a list is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListFault {
    /// It is no list of its type (`IT_ERR_INVALID_IOBL`).
    Iobl,
    /// The region is longer than the list.
    Length,
}

/// Whether a page list may have this element: the length is a page's, and the address a multiple of it.
fn is_page(addr: IoAddr, length: u64) -> bool {
    length >= 4096 && length.is_power_of_two() && addr.0.is_multiple_of(length)
}

/// Whether the base address, with absolute addressing, lies in its page as the first byte does in the first element.
fn agrees(addr: Option<usize>, page: u64, fbo: u64) -> bool {
    addr.is_none_or(|addr| (addr as u64).checked_rem(page) == Some(fbo))
}

/// Checks a list: `addr` is the base address, with absolute addressing.
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
            if !elements.iter().all(|page| is_page(*page, elt_len)) || !agrees(addr, elt_len, iobl.fbo) {
                return Err(ListFault::Iobl);
            }
            (elt_len, elt_len.checked_mul(number as u64))
        }
        IoblList::Blocks { elt_len, .. } => (elt_len, elt_len.checked_mul(number as u64)),
        IoblList::VePages { elements } => {
            // A page list, too (page it_iobl_t).
            let first = elements.first().map_or(0, |element| element.elt_len);
            if !elements.iter().all(|element| is_page(element.io_addr, element.elt_len))
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

/// The memory of a list as runs of bus addresses, adjacent ones joined.
fn runs(iobl: &Iobl<'_>, length: u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut skip = iobl.fbo;
    let mut left = length;
    let mut add = |addr: u64, len: u64| {
        let (addr, len) = (addr.wrapping_add(skip), len.saturating_sub(skip).min(left));
        skip = 0;
        left -= len;
        match runs.last_mut() {
            _ if len == 0 => {}
            Some((start, run)) if start.wrapping_add(*run) == addr => *run += len,
            _ => runs.push((addr, len)),
        }
    };
    match iobl.list {
        IoblList::Pages { elements, elt_len } | IoblList::Blocks { elements, elt_len } => {
            elements.iter().for_each(|element| add(element.0, elt_len));
        }
        IoblList::VePages { elements } => {
            elements.iter().for_each(|element| add(element.io_addr.0, element.elt_len));
        }
    }
    runs
}

impl Lmr {
    /// Whether it was created without memory.
    fn is_linkable(&self) -> bool {
        self.region.max_elements() > 0
    }

    /// The key with the link that was posted last.
    pub(crate) fn key(&self) -> u32 {
        self.links.lock().now.key
    }

    /// Refuses a range that is not within the region (it_rmr_link). Whether a region with relative addressing, or one that is
    /// not linked, can have ranges is for the device to say.
    pub(crate) fn check_range(&self, addr: usize, length: u64) -> Result<()> {
        let now = self.links.lock().now;
        if now.addr_mode == AddrMode::Relative || now.length == 0 {
            return Ok(());
        }
        let offset = addr.checked_sub(now.addr).ok_or(Error::Address)? as u64;
        let room = now.length.checked_sub(offset).filter(|room| *room > 0).ok_or(Error::Address)?;
        if length > room { Err(Error::InvalidLength) } else { Ok(()) }
    }

    fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }
}

impl Core {
    pub(crate) fn lmr(&self, lmr: LmrHandle) -> Result<Arc<Lmr>> {
        self.lmrs.get(lmr.as_raw()).ok_or(Error::InvalidLmr)
    }

    /// Frees a region that no window is on; false if the device says that one is.
    pub(crate) fn bury_lmr(&self, lmr: &Lmr) -> bool {
        if let Err(kernel_agent::Error::Busy) = lmr.region.destroy() {
            return false;
        }
        self.keys.clear(lmr.handle);
        self.owners.clear(lmr.region.key());
        self.lmrs.remove(lmr.handle.as_raw());
        self.unshare(lmr);
        lmr.zone.lock().leave();
        true
    }

    /// A region that is left alone by a match of it is no longer shared.
    fn unshare(&self, lmr: &Lmr) {
        let (true, Some(sharing)) = (lmr.is_shared(), &lmr.sharing) else { return };
        let all = self.lmrs.all();
        let mut others =
            all.iter().filter(|other| other.is_shared() && other.sharing.as_ref() == Some(sharing));
        if let (Some(last), None) = (others.next(), others.next()) {
            last.shared.store(false, Ordering::Release);
        }
    }
}

impl Ia {
    /// Says what a region is like now. Of one that is not linked, address, length, privileges and context are not defined.
    ///
    /// Errors: `InvalidLmr`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Blocks for the device. May be called in callbacks. Thread-safe.
    /// Page it_lmr_query.
    #[doc(alias = "it_lmr_query")]
    pub fn lmr_query(&self, lmr: LmrHandle, mask: LmrParamMask) -> Result<LmrParam> {
        let core = self.live()?;
        let lmr = core.lmr(lmr)?;
        if LmrParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let info = lmr.region.query().map_err(|error| match error {
            kernel_agent::Error::Gone => Error::InvalidLmr,
            other => core.error(other),
        })?;
        let links = lmr.links.lock();
        // The device knows which link is in force.
        let linking = if info.key == links.before.key { links.before } else { links.now };
        drop(links);
        let linked = info.linked != 0;
        let wants = |bit| mask.intersects(bit | LmrParamMask::ALL);
        let mut param = LmrParam::default();
        if wants(LmrParamMask::IA) {
            param.ia = core.handle;
        }
        if wants(LmrParamMask::PZ) {
            param.pz = lmr.zone.lock().pz().handle;
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
            param.addr = linking.addr;
        }
        if wants(LmrParamMask::LENGTH) {
            param.length = linking.length;
        }
        if wants(LmrParamMask::ACTUAL_ADDR) {
            param.actual_addr = linking.addr;
        }
        if wants(LmrParamMask::ACTUAL_LENGTH) {
            param.actual_length = linking.length;
        }
        if wants(LmrParamMask::MEM_PRIV) {
            param.privs = linking.privs;
        }
        if wants(LmrParamMask::RMR_CONTEXT) && is_remote(linking.privs) {
            param.rmr_context = Some(RmrContext::from_key(info.key));
        }
        if wants(LmrParamMask::ADDR_MODE) {
            param.addr_mode = linking.addr_mode;
        }
        if wants(LmrParamMask::IOBL_TYPE) {
            param.iobl_type = linking.iobl_type;
        }
        Ok(param)
    }

    /// Destroys a region, linked or not. When it returns, the device touches the memory no more.
    ///
    /// Errors: `InvalidLmr`, `LmrBusy` while an RMR is linked to it, `InvalidIa`, `IaCatastrophe`. Blocks for the device. May be called in callbacks.
    /// Page it_lmr_free.
    #[doc(alias = "it_lmr_free")]
    pub fn lmr_free(&self, lmr: LmrHandle) -> Result<()> {
        let core = self.live()?;
        let lmr = core.lmr(lmr)?;
        if !lmr.uses.retire() {
            return Err(if lmr.uses.in_use() { Error::LmrBusy } else { Error::InvalidLmr });
        }
        if core.bury_lmr(&lmr) {
            return Ok(());
        }
        lmr.uses.revive();
        Err(Error::LmrBusy)
    }

    /// Makes changes of memory visible to incoming RDMA Reads. All memory here is coherent, so there is nothing to do.
    ///
    /// Errors: `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe. Page it_lmr_flush_to_mem.
    #[doc(alias = "it_lmr_flush_to_mem")]
    pub fn lmr_flush_to_mem(&self, local_segments: &[LmrTriplet]) -> Result<()> {
        let _ = local_segments;
        self.live().map(|_| ())
    }

    /// Makes what incoming RDMA Writes changed visible to the consumer. All memory here is coherent, so there is nothing to do.
    ///
    /// Errors: `InvalidIa`, `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe. Page it_lmr_refresh_from_mem.
    #[doc(alias = "it_lmr_refresh_from_mem")]
    pub fn lmr_refresh_from_mem(&self, local_segments: &[LmrTriplet]) -> Result<()> {
        let _ = local_segments;
        self.live().map(|_| ())
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
        let askew = [IoAddr(0x4001)];
        assert_eq!(check_list(&Iobl::pages(&askew, 4096, 0), None, 1, 2), Err(ListFault::Iobl), "askew");
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
    fn runs_join_what_is_adjacent() {
        let adjacent = [IoAddr(0x4000), IoAddr(0x5000), IoAddr(0x8000)];
        let iobl = Iobl::pages(&adjacent, 4096, 16);
        assert_eq!(runs(&iobl, 3 * 4096 - 16), [(0x4010, 8176), (0x8000, 4096)]);
        assert_eq!(runs(&iobl, 10), [(0x4010, 10)]);
    }

    #[test]
    fn privileges_of_peers_to_write_need_our_own() {
        assert!(!is_valid_combination(MemPriv::empty()));
        assert!(!is_valid_combination(MemPriv::REMOTE_WRITE | MemPriv::LOCAL_READ));
        assert!(!is_valid_combination(MemPriv::ATOMIC | MemPriv::LOCAL_READ));
        assert!(is_valid_combination(MemPriv::ALL));
    }
}

//! Rights, ways of addressing and I/O buffer lists, in IT-API's form and in the device's.

use kernel_agent::{LinkFlags, ListElement, MemoryList};
use zerocopy::{FromBytes, IntoBytes};

use crate::address::IoAddr;
use crate::attributes::AddrMode;
use crate::flags::{IoblTypes, MemPriv};
use crate::iobl::{IOBL_MIN_PAGE, Iobl, IoblList};

/// The device's form of local privileges. Windows may always be bound (appendix A).
pub(crate) fn rights(privs: MemPriv, addr_mode: AddrMode) -> LinkFlags {
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
pub(crate) fn list_type(flags: LinkFlags) -> IoblTypes {
    if flags.contains(LinkFlags::VARIABLE) {
        IoblTypes::VE_PAGE_LIST
    } else if flags.contains(LinkFlags::PAGES) {
        IoblTypes::PAGE_LIST
    } else {
        IoblTypes::BLOCK_LIST
    }
}

/// Privileges that let peers write the memory.
pub(crate) const REMOTE_WRITES: MemPriv =
    MemPriv::REMOTE_WRITE.union(MemPriv::ATOMIC).union(MemPriv::ATOMIC_ALONE);
/// Privileges that let the memory be written.
pub(crate) const WRITES: MemPriv = MemPriv::LOCAL_WRITE.union(REMOTE_WRITES);

/// Whether the privileges give peers a context.
pub(crate) fn is_remote(privs: MemPriv) -> bool {
    privs.intersects(MemPriv::REMOTE_READ.union(REMOTE_WRITES))
}

/// Whether the privileges are a valid set: not empty, and with local write if peers may write.
pub(crate) fn is_valid_combination(privs: MemPriv) -> bool {
    let writes = privs.intersects(REMOTE_WRITES);
    !privs.is_empty() && (!writes || privs.contains(MemPriv::LOCAL_WRITE))
}

/// The agent's form of a list; the elements are not copied.
pub(crate) fn memory_list<'a>(iobl: &Iobl<'a>, length: u64) -> MemoryList<'a> {
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
pub(crate) fn first_byte(iobl: &Iobl<'_>) -> usize {
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
pub(crate) fn agrees(addr: Option<usize>, page: u64, fbo: u64) -> bool {
    addr.is_none_or(|addr| addr as u64 & page.wrapping_sub(1) == fbo)
}

/// Whether a page list may have elements of this length, and addresses with these bits, of all of
/// them together.
#[inline]
pub(crate) fn are_pages(addrs: u64, length: u64) -> bool {
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

//! Addresses by name: `rdma_getaddrinfo`.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::{c_char, c_int};
use core::mem;
use std::ptr;

use super::abi::{AddrInfo, ps, rai};
use crate::abi::qpt;
use crate::errno;

/// Memory of C's with a copy of an address; null if there is none.
///
/// # Safety
///
/// The pointer is null, or to as many bytes.
unsafe fn copy(from: *const libc::sockaddr, len: u32) -> *mut libc::sockaddr {
    if from.is_null() || len == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the caller's; zeros behind, for a program that takes it for a longer one.
    unsafe {
        let to = libc::calloc(1, (len as usize).max(128)).cast::<libc::sockaddr>();
        if !to.is_null() {
            ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len as usize);
        }
        to
    }
}

/// `rdma_getaddrinfo`: one address, by its name or from the hints. Returns a number of
/// `getaddrinfo`, or -1 and sets errno.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    to: *mut *mut AddrInfo,
) -> c_int {
    // SAFETY: see the crate.
    let hints = unsafe { hints.as_ref() };
    if node.is_null() && service.is_null() {
        // SAFETY: see the crate.
        return hints.map_or_else(invalid, |hints| unsafe { of_hints(hints, to) });
    }
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    let (qp_type, space) = hints.map_or((0, 0), |hints| (hints.ai_qp_type, hints.ai_port_space));
    let (qp_type, space) = match (qp_type, space) {
        (0, 0) => (qpt::RC, ps::TCP),
        (0, ps::UDP) => (qpt::UD, ps::UDP),
        (0, space) => (qpt::RC, space),
        (qpt::UD, 0) => (qpt::UD, ps::UDP),
        (kind, 0) => (kind, ps::TCP),
        both => both,
    };
    // SAFETY: zeros are hints.
    let mut asked: libc::addrinfo = unsafe { mem::zeroed() };
    asked.ai_socktype = if space == ps::UDP { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    if flags & rai::PASSIVE != 0 {
        asked.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & rai::NUMERICHOST != 0 {
        asked.ai_flags |= libc::AI_NUMERICHOST;
    }
    if flags & rai::FAMILY != 0 {
        asked.ai_family = hints.map_or(0, |hints| hints.ai_family);
    }
    let mut found: *mut libc::addrinfo = ptr::null_mut();
    // SAFETY: see the crate.
    let result = unsafe { libc::getaddrinfo(node, service, &asked, &mut found) };
    if result != 0 {
        return result;
    }
    // SAFETY: the first of what was found; C's allocations.
    unsafe {
        let (len, address) = ((*found).ai_addrlen, copy((*found).ai_addr, (*found).ai_addrlen));
        let family = (*found).ai_family;
        libc::freeaddrinfo(found);
        let made = libc::calloc(1, mem::size_of::<AddrInfo>()).cast::<AddrInfo>();
        if made.is_null() || address.is_null() {
            libc::free(address.cast());
            libc::free(made.cast());
            errno::set(libc::ENOMEM);
            return -1;
        }
        let info = &mut *made;
        (info.ai_flags, info.ai_family) = (flags, family);
        (info.ai_qp_type, info.ai_port_space) = (qp_type, space);
        if flags & rai::PASSIVE != 0 {
            (info.ai_src_addr, info.ai_src_len) = (address, len);
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = (address, len);
            if let Some(hints) = hints {
                info.ai_src_addr = copy(hints.ai_src_addr, hints.ai_src_len);
                info.ai_src_len = if info.ai_src_addr.is_null() { 0 } else { hints.ai_src_len };
            }
        }
        *to = made;
    }
    0
}

/// What the hints say, with copies of their addresses.
///
/// # Safety
///
/// See the crate.
unsafe fn of_hints(hints: &AddrInfo, to: *mut *mut AddrInfo) -> c_int {
    let AddrInfo { ai_src_addr, ai_src_len, ai_dst_addr, ai_dst_len, .. } = *hints;
    // SAFETY: see the crate; C's allocation.
    unsafe {
        let made = libc::calloc(1, mem::size_of::<AddrInfo>()).cast::<AddrInfo>();
        let Some(info) = made.as_mut() else {
            errno::set(libc::ENOMEM);
            return -1;
        };
        (info.ai_flags, info.ai_family) = (hints.ai_flags, hints.ai_family);
        (info.ai_qp_type, info.ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
        info.ai_src_addr = copy(ai_src_addr, ai_src_len);
        info.ai_src_len = if info.ai_src_addr.is_null() { 0 } else { ai_src_len };
        info.ai_dst_addr = copy(ai_dst_addr, ai_dst_len);
        info.ai_dst_len = if info.ai_dst_addr.is_null() { 0 } else { ai_dst_len };
        *to = made;
    }
    0
}

fn invalid() -> c_int {
    errno::set(libc::EINVAL);
    -1
}

/// `rdma_freeaddrinfo`.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn freeaddrinfo(mut info: *mut AddrInfo) {
    while !info.is_null() {
        // SAFETY: it came from `getaddrinfo`.
        unsafe {
            let AddrInfo { ai_src_addr, ai_dst_addr, ai_next, .. } = *info;
            libc::free(ai_src_addr.cast());
            libc::free(ai_dst_addr.cast());
            libc::free(info.cast());
            info = ai_next;
        }
    }
}

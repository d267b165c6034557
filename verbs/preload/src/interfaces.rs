//! The list of network interfaces, with the addresses of the device that no interface has, or one
//! of loopback only: some programs leave those out.
#![expect(unsafe_code, reason = "the list is C's")]

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of, transmute};
use core::ptr;

use libc::{ifaddrs, sockaddr};

use crate::library::{self, Interface};
use crate::real::{Real, set_errno};

/// The most addresses that are added.
const MOST: usize = 16;
/// What the data of entries of this library points to.
static MARK: u8 = 0;

/// An entry of this library, and what it points to.
#[repr(C)]
struct Entry {
    abi: ifaddrs,
    interface: Interface,
}

fn mark() -> *mut c_void {
    (&raw const MARK).cast_mut().cast()
}

/// The octets of an address of IP.
///
/// # Safety
///
/// The pointer is null or to an address of the family that it names.
unsafe fn octets<'a>(of: *const sockaddr) -> Option<&'a [u8]> {
    if of.is_null() {
        return None;
    }
    // SAFETY: the caller's.
    unsafe {
        match c_int::from((*of).sa_family) {
            libc::AF_INET => {
                let at = of.byte_add(offset_of!(libc::sockaddr_in, sin_addr)).cast::<[u8; 4]>();
                Some(&*at)
            }
            libc::AF_INET6 => {
                let at = of.byte_add(offset_of!(libc::sockaddr_in6, sin6_addr)).cast::<[u8; 16]>();
                Some(&*at)
            }
            _ => None,
        }
    }
}

/// Whether an interface that is up, and not of loopback, has this address.
///
/// # Safety
///
/// The list is one of `getifaddrs`.
unsafe fn has(mut list: *const ifaddrs, address: &Interface) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let wanted = octets((&raw const address.address).cast());
        while let Some(entry) = list.as_ref() {
            let up = entry.ifa_flags & (libc::IFF_UP | libc::IFF_LOOPBACK) as u32 == libc::IFF_UP as u32;
            if up && octets(entry.ifa_addr) == wanted {
                return true;
            }
            list = entry.ifa_next;
        }
    }
    false
}

/// As C's library has it, and behind its list the device's addresses.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getifaddrs(to: *mut *mut ifaddrs) -> c_int {
    static REAL: Real = Real::new(c"getifaddrs");
    let Some(real) = REAL.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: the caller's; C's function has this type. Entries are zeros before they are written.
    unsafe {
        let result = transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut ifaddrs) -> c_int>(real)(to);
        if result != 0 {
            return result;
        }
        let list = *to;
        let added = (0..MOST).map_while(library::address).filter(|address| !has(list, address));
        let mut end = to;
        while !(*end).is_null() {
            end = &raw mut (**end).ifa_next;
        }
        for interface in added {
            let entry = libc::calloc(1, size_of::<Entry>()).cast::<Entry>();
            if entry.is_null() {
                break;
            }
            entry.write(Entry {
                abi: ifaddrs {
                    ifa_next: ptr::null_mut(),
                    ifa_name: (&raw mut (*entry).interface.name).cast(),
                    ifa_flags: (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_MULTICAST) as u32,
                    ifa_addr: (&raw mut (*entry).interface.address).cast(),
                    ifa_netmask: (&raw mut (*entry).interface.netmask).cast(),
                    ifa_ifu: ptr::null_mut(),
                    ifa_data: mark(),
                },
                interface,
            });
            *end = entry.cast();
            end = &raw mut (*entry).abi.ifa_next;
        }
    }
    0
}

/// As C's library has it.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freeifaddrs(mut list: *mut ifaddrs) {
    static REAL: Real = Real::new(c"freeifaddrs");
    // SAFETY: the caller's; C's function has this type. The entries of this library are the last.
    unsafe {
        let mut end = &raw mut list;
        while !(*end).is_null() && (**end).ifa_data != mark() {
            end = &raw mut (**end).ifa_next;
        }
        let mut own = core::mem::replace(&mut *end, ptr::null_mut());
        while !own.is_null() {
            let next = (*own).ifa_next;
            libc::free(own.cast());
            own = next;
        }
        if let Some(real) = REAL.get().filter(|_| !list.is_null()) {
            transmute::<*mut c_void, unsafe extern "C" fn(*mut ifaddrs)>(real)(list);
        }
    }
}

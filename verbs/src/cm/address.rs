//! Addresses of sockets, and ports: an identifier has one of the process alone, as a socket has.
#![expect(unsafe_code, reason = "addresses of C are reached by pointers")]

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::abi::Storage;
use crate::errno::Errno;

/// The ports that are chosen for programs that ask for none.
const EPHEMERAL: core::ops::Range<u16> = 32_768..61_000;

/// Reads an address; `EAFNOSUPPORT` if it is not one of IP.
///
/// # Safety
///
/// The pointer is to an address of the family that it names.
pub(crate) unsafe fn read(from: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: the caller's; programs may have it at any address.
    unsafe {
        match c_int::from((&raw const (*from).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let from = from.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr));
                Ok(SocketAddr::new(IpAddr::V4(ip), u16::from_be(from.sin_port)))
            }
            libc::AF_INET6 => {
                let from = from.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(from.sin6_addr.s6_addr);
                Ok(SocketAddr::new(IpAddr::V6(ip), u16::from_be(from.sin6_port)))
            }
            _ => Err(libc::EAFNOSUPPORT),
        }
    }
}

/// The address as C has it.
pub(crate) fn storage(of: SocketAddr) -> Storage {
    let mut storage: Storage = [0; 16];
    let at = storage.as_mut_ptr();
    // SAFETY: a storage is large enough, and aligned, for either; zeros are addresses.
    unsafe {
        match of.ip() {
            IpAddr::V4(ip) => {
                let to = &mut *at.cast::<libc::sockaddr_in>();
                to.sin_family = libc::AF_INET as u16;
                to.sin_port = of.port().to_be();
                to.sin_addr.s_addr = u32::from(ip).to_be();
            }
            IpAddr::V6(ip) => {
                let to = &mut *at.cast::<libc::sockaddr_in6>();
                to.sin6_family = libc::AF_INET6 as u16;
                to.sin6_port = of.port().to_be();
                to.sin6_addr.s6_addr = ip.octets();
            }
        }
    }
    storage
}

/// The address of an identifier; none if it has none yet.
pub(crate) fn of_storage(storage: &Storage) -> Option<SocketAddr> {
    // SAFETY: a storage is large enough, and aligned, for each family.
    unsafe { read(storage.as_ptr().cast()) }.ok()
}

/// The identifiers that have a port.
#[derive(Clone, Copy)]
struct Users {
    number: u32,
    /// Each of them shares it.
    shared: bool,
    /// How many of them are bound to all addresses.
    at_all: u32,
}

static PORTS: Mutex<BTreeMap<(c_int, u16), Users>> = Mutex::new(BTreeMap::new());

fn ports() -> MutexGuard<'static, BTreeMap<(c_int, u16), Users>> {
    PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port of a port space, until it is dropped.
pub(crate) struct Port {
    space: c_int,
    number: u16,
    at_all: bool,
}

impl Port {
    /// Takes the port of an address, or any for 0, unless another identifier has it and they do
    /// not share it: then it is `EADDRNOTAVAIL` if one of them is bound to all addresses, as with
    /// Linux, and else `EADDRINUSE`.
    pub(crate) fn take(space: c_int, to: SocketAddr, shared: bool) -> Result<Port, Errno> {
        let mut ports = ports();
        let at_all = to.ip().is_unspecified();
        let number = match to.port() {
            0 => {
                let free = |number: &u16| !ports.contains_key(&(space, *number));
                // Programs on one address one after another get different ones.
                let from = std::process::id() as u16 % 8192;
                let (low, high) = (EPHEMERAL.start + from, EPHEMERAL.end);
                let mut all = (low..high).chain(EPHEMERAL.start..low);
                all.find(free).ok_or(libc::EADDRNOTAVAIL)?
            }
            number => number,
        };
        let users = ports.entry((space, number)).or_insert(Users { number: 0, shared, at_all: 0 });
        if users.number > 0 && !(users.shared && shared) {
            return Err(if users.at_all > 0 || at_all { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE });
        }
        users.number += 1;
        users.at_all += u32::from(at_all);
        Ok(Port { space, number, at_all })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut ports = ports();
        let key = (self.space, self.number);
        if let Some(users) = ports.get_mut(&key) {
            users.number -= 1;
            users.at_all -= u32::from(self.at_all);
            if users.number == 0 {
                ports.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_keep_their_parts() {
        for text in ["127.0.0.2:7174", "[fe80::1]:1", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(of_storage(&storage(address)), Some(address));
        }
        assert_eq!(of_storage(&[0; 16]), None);
    }

    #[test]
    fn a_port_is_one_identifiers_unless_all_share_it() {
        let space = 1;
        let take = |space, at: &str, shared| Port::take(space, at.parse().unwrap(), shared);
        let first = take(space, "127.0.0.2:5", false).unwrap();
        assert_eq!(take(space, "127.0.0.2:5", false).err(), Some(libc::EADDRINUSE));
        assert_eq!(take(space, "127.0.0.2:5", true).err(), Some(libc::EADDRINUSE));
        assert_eq!(take(space, "0.0.0.0:5", false).err(), Some(libc::EADDRNOTAVAIL));
        assert!(take(space + 1, "127.0.0.2:5", false).is_ok());
        drop(first);
        let shared = take(space, "[::]:5", true).unwrap();
        let other = take(space, "127.0.0.2:5", true).unwrap();
        assert_eq!(take(space, "127.0.0.2:5", false).err(), Some(libc::EADDRNOTAVAIL));
        drop(shared);
        assert_eq!(take(space, "127.0.0.2:5", false).err(), Some(libc::EADDRINUSE));
        drop(other);
        assert!(take(space, "127.0.0.2:5", false).is_ok());
        let any = || take(space, "0.0.0.0:0", false).unwrap();
        let (one, two) = (any(), any());
        assert_ne!(one.number(), two.number());
    }
}

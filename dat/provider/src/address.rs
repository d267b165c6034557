//! Socket addresses: `sockaddr_in` and `sockaddr_in6`, in the bytes of the larger one.
#![expect(unsafe_code, reason = "addresses of C are reached by pointers")]

use std::net::{IpAddr, Ipv6Addr};

use dat::{Error, ErrorType, Result, Subtype};

use crate::abi::Address;

/// Bytes of a `sockaddr_in6`.
pub(crate) const SIZE: usize = 28;

/// An address with port 0, as C has it.
pub(crate) fn to_c(address: IpAddr) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let (family, start, octets) = match &address {
        IpAddr::V4(v4) => (libc::AF_INET, 4, &v4.octets()[..]),
        IpAddr::V6(v6) => (libc::AF_INET6, 8, &v6.octets()[..]),
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[start..start + octets.len()].copy_from_slice(octets);
    bytes
}

/// As [`to_c`], always as `sockaddr_in6`: an IPv4 address is mapped.
pub(crate) fn to_c6(address: Ipv6Addr) -> [u8; SIZE] {
    to_c(IpAddr::V6(address))
}

/// The address at a pointer.
///
/// # Safety
///
/// The pointer is null or to a socket address.
pub(crate) unsafe fn from_c(at: Address) -> Result<IpAddr> {
    let malformed = Error::new(ErrorType::InvalidAddress, Subtype::InvalidAddressMalformed);
    if at.is_null() {
        return Err(malformed);
    }
    // SAFETY: each family has as many bytes.
    unsafe {
        match i32::from(at.cast::<u16>().read_unaligned()) {
            libc::AF_INET => Ok(IpAddr::from(at.byte_add(4).cast::<[u8; 4]>().read_unaligned())),
            libc::AF_INET6 => {
                let address: Ipv6Addr = at.byte_add(8).cast::<[u8; 16]>().read_unaligned().into();
                Ok(IpAddr::V6(address).to_canonical())
            }
            _ => Err(malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_is_the_same_after_both_ways() {
        for text in ["127.0.0.2", "fe80::1"] {
            let address: IpAddr = text.parse().expect("an address");
            let mut bytes = to_c(address);
            // SAFETY: a socket address.
            assert_eq!(unsafe { from_c(bytes.as_mut_ptr().cast()) }, Ok(address));
        }
        let mut mapped = to_c6(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        // SAFETY: as above.
        assert_eq!(unsafe { from_c(mapped.as_mut_ptr().cast()) }, Ok("10.0.0.1".parse().expect("one")));
        // SAFETY: a null pointer is allowed.
        assert!(unsafe { from_c(std::ptr::null_mut()) }.is_err());
    }
}

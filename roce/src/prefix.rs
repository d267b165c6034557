//! The IP address of a port, with the prefix of its network.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use thiserror::Error;

use crate::Gid;

/// The IP address of a port and the length of its network's prefix, such as `10.0.0.1/24` or
/// `fd00::1/64`. Addresses with the same prefix are reached directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPrefix {
    address: IpAddr,
    bits: u8,
}

/// Why something is no address of a port with its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PrefixError {
    /// It is not an address, a slash and a number.
    #[error("write an address and the length of its prefix, as in 10.0.0.1/24 or fd00::1/64")]
    Syntax,
    /// The prefix has more bits than the address.
    #[error("the prefix has 1 to {0} bits, as in 10.0.0.1/24 or fd00::1/64")]
    Bits(u8),
    /// The address cannot be the address of one port.
    #[error("{0} names no single port; write an address of one host, as in 10.0.0.1/24 or fd00::1/64")]
    Address(IpAddr),
}

impl IpPrefix {
    /// The address with a prefix of so many bits.
    pub const fn new(address: IpAddr, bits: u8) -> Result<IpPrefix, PrefixError> {
        let most = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        if bits == 0 || bits > most {
            return Err(PrefixError::Bits(most));
        }
        let single = match address {
            IpAddr::V4(v4) => {
                let host = u32::MAX.unbounded_shr(bits as u32);
                let number = v4.to_bits() & host;
                // A network of one or two addresses has neither a number nor a broadcast address.
                let reserved = host > 1 && (number == 0 || number == host);
                !(reserved || v4.is_multicast() || v4.is_broadcast() || v4.is_unspecified())
            }
            IpAddr::V6(v6) => !(v6.is_multicast() || v6.is_unspecified()) && v6.to_ipv4_mapped().is_none(),
        };
        if single { Ok(IpPrefix { address, bits }) } else { Err(PrefixError::Address(address)) }
    }

    /// The address.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// The length of the prefix.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// The address as GID.
    pub fn gid(self) -> Gid {
        self.address.into()
    }

    /// Whether an address is one that a single port of this network can have.
    pub fn reaches(self, other: IpAddr) -> bool {
        let same = match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_bits()).unbounded_shr(32 - u32::from(self.bits)) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                (a.to_bits() ^ b.to_bits()).unbounded_shr(128 - u32::from(self.bits)) == 0
            }
            _ => false,
        };
        same && IpPrefix::new(other, self.bits).is_ok()
    }
}

impl FromStr for IpPrefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<IpPrefix, PrefixError> {
        let (address, bits) = text.split_once('/').ok_or(PrefixError::Syntax)?;
        let address = address.parse().map_err(|_| PrefixError::Syntax)?;
        let plain = !bits.is_empty() && bits.len() <= 3 && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits: u16 = if plain { bits.parse().unwrap_or(0) } else { return Err(PrefixError::Syntax) };
        IpPrefix::new(address, u8::try_from(bits).unwrap_or(u8::MAX))
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    fn prefix(text: &str) -> IpPrefix {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_with_prefixes_are_read_and_written() {
        for text in [
            "10.0.0.1/24",
            "127.0.0.2/8",
            "10.0.0.0/31",
            "10.0.0.255/32",
            "fd00::1/64",
            "::1/128",
            "fe80::/10",
        ] {
            let read = prefix(text);
            assert_eq!(read.to_string(), text);
            assert_eq!(IpPrefix::new(read.address(), read.bits()), Ok(read));
        }
        assert_eq!(prefix("10.0.0.1/24").gid().to_string(), "::ffff:10.0.0.1");
    }

    #[test]
    fn what_is_none_gets_one_line_that_says_how_to_write_it() {
        for (text, words) in [
            ("", "write an address and the length"),
            ("10.0.0.1", "write an address and the length"),
            ("10.0.0/24", "write an address and the length"),
            ("10.0.0.1/", "write an address and the length"),
            ("10.0.0.1/+8", "write an address and the length"),
            ("10.0.0.1/x", "write an address and the length"),
            ("host/24", "write an address and the length"),
            ("10.0.0.1/0", "1 to 32 bits"),
            ("10.0.0.1/33", "1 to 32 bits"),
            ("10.0.0.1/999", "1 to 32 bits"),
            ("fd00::1/129", "1 to 128 bits"),
            ("10.0.0.0/24", "10.0.0.0 names no single port"),
            ("10.0.0.255/24", "names no single port"),
            ("0.0.0.0/8", "names no single port"),
            ("224.0.0.1/24", "names no single port"),
            ("255.255.255.255/32", "names no single port"),
            ("::/64", "names no single port"),
            ("ff02::1/64", "names no single port"),
            ("::ffff:10.0.0.1/120", "names no single port"),
        ] {
            let error = text.parse::<IpPrefix>().unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_prefix_reaches_the_hosts_of_its_network() {
        let reaches = |network: &str, other: &str| prefix(network).reaches(other.parse().unwrap());
        assert!(reaches("10.0.0.1/24", "10.0.0.254") && reaches("10.0.0.1/24", "10.0.0.1"));
        assert!(!reaches("10.0.0.1/24", "10.0.1.2") && !reaches("10.0.0.1/24", "10.0.0.255"));
        assert!(!reaches("10.0.0.1/24", "fd00::1") && !reaches("fd00::1/64", "10.0.0.1"));
        assert!(reaches("fd00::1/64", "fd00::ffff:0:2") && !reaches("fd00::1/64", "fd00:0:0:1::1"));
        assert!(reaches("10.0.0.1/32", "10.0.0.1") && !reaches("10.0.0.1/32", "10.0.0.2"));
        assert!(reaches("::1/128", "::1") && !reaches("::1/128", "::2"));
        assert!(reaches("10.0.0.0/31", "10.0.0.1") && !reaches("fe80::1/10", "ff02::1"));
    }
}

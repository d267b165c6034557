//! Discriminators, the service IDs that stand for them, and host addresses.

use core::fmt;
use core::ops::{Deref, RangeInclusive};

use roce::{Gid, ServiceId};
use sha2::{Digest as _, Sha256};

/// The most bytes of a discriminator.
pub const MAX_DISCRIMINATOR: usize = 64;

/// The upper byte of the service IDs of discriminators, which IBTA leaves to local administration
/// (annex A3).
const PREFIX: u64 = 0x02 << 56;
/// The bits of a service ID that a discriminator's digest fills.
const HASH: u64 = (1 << 56) - 1;

/// The service IDs of all discriminators.
pub const SERVICES: RangeInclusive<ServiceId> = ServiceId(PREFIX)..=ServiceId(PREFIX | HASH);

/// The bytes by which a listener is named on its host: up to [`MAX_DISCRIMINATOR`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Discriminator {
    len: u8,
    /// Zero from `len` on.
    bytes: [u8; MAX_DISCRIMINATOR],
}

impl Discriminator {
    /// The discriminator without bytes.
    pub const EMPTY: Discriminator = Discriminator { len: 0, bytes: [0; MAX_DISCRIMINATOR] };

    /// The discriminator of these bytes; `None` if there are too many.
    pub fn new(name: &[u8]) -> Option<Discriminator> {
        let mut bytes = [0; MAX_DISCRIMINATOR];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Discriminator { len: name.len() as u8, bytes })
    }

    /// Its bytes, and zeroes behind them.
    pub(super) fn padded(&self) -> &[u8; MAX_DISCRIMINATOR] {
        &self.bytes
    }

    /// The service that requests for it go to.
    pub fn service(&self) -> ServiceId {
        Digest::of(self).service()
    }
}

impl Deref for Discriminator {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or(&[])
    }
}

impl fmt::Debug for Discriminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// What stands for a discriminator in a request, which has no room for two whole ones: its length,
/// and the first half of its SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    pub(super) len: u8,
    pub(super) hash: [u8; Digest::HASH_LEN],
}

impl Digest {
    /// The bytes of the hash.
    pub(super) const HASH_LEN: usize = 16;

    /// The digest of a discriminator.
    pub fn of(discriminator: &Discriminator) -> Digest {
        let full: [u8; 32] = Sha256::digest(&**discriminator).into();
        let mut hash = [0; Digest::HASH_LEN];
        hash.copy_from_slice(&full[..Digest::HASH_LEN]);
        Digest { len: discriminator.len, hash }
    }

    /// The service that requests for the discriminator go to: the first seven bytes of the hash
    /// behind the prefix. Two discriminators may have one service; their digests tell them apart.
    pub fn service(&self) -> ServiceId {
        let [first @ .., _, _, _, _, _, _, _, _] = self.hash;
        ServiceId(PREFIX | u64::from_be_bytes(first) >> 8)
    }
}

/// The GID of a host address: 16 bytes are a GID, 4 an IPv4 address.
pub fn gid_of_host(host: &[u8]) -> Option<Gid> {
    match *host {
        [a, b, c, d] => Some(Gid::from_ipv4([a, b, c, d].into())),
        _ => Some(Gid(host.try_into().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &[u8]) -> Discriminator {
        Discriminator::new(name).unwrap()
    }

    #[test]
    fn a_discriminator_is_its_bytes_and_has_64_at_most() {
        for len in 0..=MAX_DISCRIMINATOR {
            assert_eq!(*named(&[7; MAX_DISCRIMINATOR][..len]), [7; MAX_DISCRIMINATOR][..len]);
        }
        assert_eq!(Discriminator::new(&[7; MAX_DISCRIMINATOR + 1]), None);
        assert_ne!(named(b"a"), named(b"a\0"), "the length counts");
        assert_eq!(named(b""), Discriminator::EMPTY);
    }

    #[test]
    fn the_service_is_the_prefix_and_the_first_bytes_of_the_sha_256() {
        // The SHA-256 of nothing begins with e3b0c442 98fc1c14.
        let empty = Digest::of(&Discriminator::EMPTY);
        assert_eq!((empty.len, &empty.hash[..4]), (0, &[0xe3, 0xb0, 0xc4, 0x42][..]));
        assert_eq!(empty.service(), ServiceId(0x02e3_b0c4_4298_fc1c));
        assert_eq!(Discriminator::EMPTY.service(), empty.service());
        assert_ne!(empty, Digest { len: 1, ..empty }, "the length counts");
        for name in [&b"disk"[..], b"disl", &[0; 64], &[0xff; 64]] {
            assert!(SERVICES.contains(&named(name).service()));
        }
        assert_ne!(named(b"disk").service(), named(b"disl").service());
        assert_eq!((SERVICES.start().0, SERVICES.end().0), (0x02 << 56, (0x03 << 56) - 1));
    }

    #[test]
    fn a_host_address_is_a_gid_or_an_ipv4_address() {
        let bytes = [10; 65];
        assert_eq!(gid_of_host(&bytes[..4]), Some(Gid::from_ipv4([10, 10, 10, 10].into())));
        assert_eq!(gid_of_host(&bytes[..16]), Some(Gid([10; 16])));
        for len in [0, 3, 5, 15, 17, 64, 65] {
            assert_eq!(gid_of_host(&bytes[..len]), None, "{len}");
        }
    }
}

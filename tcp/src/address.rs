//! The name of a connection: its two ends.

use core::net::{IpAddr, SocketAddr};

use platform::Secret;

/// The two ends of a connection. No two connections have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Tuple {
    pub const fn new(local: (IpAddr, u16), remote: (IpAddr, u16)) -> Tuple {
        Tuple { local: SocketAddr::new(local.0, local.1), remote: SocketAddr::new(remote.0, remote.1) }
    }

    /// A hash that peers cannot predict, so they cannot choose connections whose hashes are alike.
    pub fn hash(&self, secret: &Secret) -> u64 {
        let ports = u64::from(self.local.port()) << 16 | u64::from(self.remote.port());
        match (self.local.ip(), self.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let addresses = u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits());
                secret.hash([addresses, ports])
            }
            (local, remote) => secret.hash([hash(secret, local), hash(secret, remote) ^ ports]),
        }
    }
}

/// A hash of an address that peers cannot predict.
pub(crate) fn hash(secret: &Secret, address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(v4) => secret.hash([v4.to_bits().into(), 4]),
        IpAddr::V6(v6) => secret.hash([(v6.to_bits() >> 64) as u64, v6.to_bits() as u64]),
    }
}

/// Whether an address can be that of a single node.
pub(crate) fn is_single(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !(v4.is_multicast() || v4.is_broadcast() || v4.is_unspecified()),
        IpAddr::V6(v6) => !(v6.is_multicast() || v6.is_unspecified()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_name_changes_its_hash() {
        let secret = Secret::new([1, 2]);
        for [a, b] in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            let [a, b] = [a, b].map(|text| text.parse::<IpAddr>().unwrap());
            let all =
                [((a, 1), (b, 2)), ((b, 1), (a, 2)), ((a, 2), (b, 1)), ((a, 1), (a, 2)), ((a, 1), (b, 3))];
            let mut hashes = all.map(|(local, remote)| Tuple::new(local, remote).hash(&secret));
            hashes.sort_unstable();
            assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }
}

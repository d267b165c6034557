//! Rate limits.

use platform::{Instant, Secret};
use roce::Gid;

/// Limits a kind of act to a rate, with bursts.
#[derive(Debug)]
pub(super) struct Limiter {
    /// The unused time in nanoseconds, at most `most`. One act costs `cost` of it.
    credit: u64,
    most: u64,
    cost: u64,
    last: Instant,
}

impl Limiter {
    pub const fn new(per_second: u32, burst: u32) -> Limiter {
        let cost = 1_000_000_000 / per_second as u64;
        let most = cost * burst as u64;
        Limiter { credit: most, most, cost, last: Instant::ZERO }
    }

    /// Whether an act is allowed now; counts it if so.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = now.as_nanos().saturating_sub(self.last.as_nanos());
        self.last = self.last.max(now);
        self.credit = self.credit.saturating_add(passed).min(self.most);
        match self.credit.checked_sub(self.cost) {
            Some(rest) => {
                self.credit = rest;
                true
            }
            None => false,
        }
    }
}

/// Limits acts for peers, so that one that asks too often takes nothing from the others.
///
/// Senders can be forged, so there is no table of them. A hash puts each sender into one group of
/// each row, and each group has a limit. An act is allowed if one of the sender's groups allows it,
/// and it is charged to all of them. So a sender loses acts only while others use up all its
/// groups, and since the hash has a secret, no sender can choose whose groups these are.
///
/// The first half of the rows knows a sender by its MAC: however many addresses one host asks from,
/// it takes one group of each. The second half knows it by MAC and address: of several hosts
/// behind one MAC, one that floods leaves the others theirs.
#[derive(Debug)]
pub(super) struct Shares {
    secret: Secret,
    rows: [[Limiter; GROUPS]; ROWS],
}

/// Groups of a row, a power of two.
const GROUPS: usize = 64;
const ROWS: usize = 4;

const _: () = assert!(GROUPS.is_power_of_two() && GROUPS <= 1 << 16);

impl Shares {
    /// Allows each group this rate and burst.
    pub fn new(per_second: u32, burst: u32, secret: Secret) -> Shares {
        let row = |_| core::array::from_fn(|_| Limiter::new(per_second, burst));
        Shares { secret, rows: core::array::from_fn(row) }
    }

    /// Whether an act for this sender is allowed now; counts it if so.
    pub fn take(&mut self, mac: [u8; 6], address: Gid, now: Instant) -> bool {
        let [a, b, c, d, e, f] = mac;
        let by_mac = self.secret.hash([u64::from_be_bytes([0, 0, a, b, c, d, e, f]), 0]);
        let (high, low) =
            ((u128::from_be_bytes(address.0) >> 64) as u64, u128::from_be_bytes(address.0) as u64);
        let by_both = self.secret.hash([self.secret.hash([high, by_mac]), low]);
        let mut allowed = false;
        for (n, row) in self.rows.iter_mut().enumerate() {
            let hash = if n < ROWS / 2 { by_mac } else { by_both };
            // Each row takes bits of its own.
            let group = (hash >> (16 * n)) as usize % GROUPS;
            allowed |= row[group].take(now);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn mac(n: u32) -> [u8; 6] {
        let [a, b, c, d] = n.to_be_bytes();
        [2, 0, a, b, c, d]
    }

    fn address(n: u32) -> Gid {
        Gid::from_ipv4((0x0a00_0000 | n).into())
    }

    /// How many of these hosts are still answered once.
    fn answered(shares: &mut Shares, hosts: impl Iterator<Item = ([u8; 6], Gid)>) -> usize {
        hosts.filter(|(mac, address)| shares.take(*mac, *address, NOW)).count()
    }

    #[test]
    fn a_host_that_floods_takes_nothing_from_any_other() {
        for secret in 0..100 {
            let mut shares = Shares::new(100, 16, Secret::new([secret, 0]));
            assert_eq!((0..1000).filter(|_| shares.take(mac(1), address(1), NOW)).count(), 16);
            assert_eq!(answered(&mut shares, (2..=200).map(|n| (mac(n), address(n)))), 199);
        }
    }

    #[test]
    fn a_host_that_asks_from_many_addresses_takes_nothing_from_any_other() {
        let mut shares = Shares::new(100, 16, Secret::new([7, 0]));
        let flood = (0..100_000).map(|n| (mac(1), address(n)));
        assert!(answered(&mut shares, flood) <= 2 * GROUPS * 16);
        assert_eq!(answered(&mut shares, (2..=200).map(|n| (mac(n), address(n)))), 199);
    }

    #[test]
    fn of_hosts_behind_one_mac_one_that_floods_takes_nothing_from_the_others() {
        let mut shares = Shares::new(100, 16, Secret::new([7, 0]));
        assert_eq!((0..1000).filter(|_| shares.take(mac(1), address(1), NOW)).count(), 16);
        assert_eq!(answered(&mut shares, (2..=200).map(|n| (mac(1), address(n)))), 199);
    }

    #[test]
    fn the_secret_decides_whose_groups_are_the_same() {
        let all = |secret| {
            let mut shares = Shares::new(1, 1, Secret::new([secret, 0]));
            (0..1000).map(|n| shares.take(mac(n), address(n), NOW)).collect::<std::vec::Vec<_>>()
        };
        assert!(all(1) == all(1) && all(1) != all(2));
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut limiter = Limiter::new(1000, 5);
        let ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let taken = |limiter: &mut Limiter, now| (0..100).filter(|_| limiter.take(now)).count();
        assert_eq!(taken(&mut limiter, ms(0)), 5);
        assert_eq!(taken(&mut limiter, ms(2)), 2);
        assert_eq!(taken(&mut limiter, ms(2)), 0);
        // A clock that runs backwards gives no credit, neither then nor when it has caught up.
        assert_eq!(taken(&mut limiter, ms(1)), 0);
        assert_eq!(taken(&mut limiter, ms(2)), 0);
        assert_eq!(taken(&mut limiter, ms(60_000)), 5);
    }
}

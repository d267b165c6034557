//! Rate limits.

use platform::Instant;
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

/// Groups of peers.
const GROUPS: usize = 64;

/// Limits acts for peers, with a limit for each group of peers: a peer that asks too often takes
/// the acts only from the peers of its group.
#[derive(Debug)]
pub(super) struct Shares([Limiter; GROUPS]);

impl Shares {
    /// Allows each group this rate and burst.
    pub fn new(per_second: u32, burst: u32) -> Shares {
        Shares(core::array::from_fn(|_| Limiter::new(per_second, burst)))
    }

    /// Whether an act for this peer is allowed now; counts it if so.
    pub fn take(&mut self, peer: Gid, now: Instant) -> bool {
        // Neighbours differ in their last bytes.
        let group = peer.0.iter().fold(0, |hash: u8, byte| hash.wrapping_mul(31).wrapping_add(*byte));
        self.0[usize::from(group) % GROUPS].take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_takes_nothing_from_the_others() {
        let mut shares = Shares::new(100, 16);
        let peer = |n: u8| Gid::from_ipv4([10, 0, 0, n].into());
        assert_eq!((0..100).filter(|_| shares.take(peer(1), Instant::ZERO)).count(), 16);
        for n in 2..=64 {
            assert_eq!((0..100).filter(|_| shares.take(peer(n), Instant::ZERO)).count(), 16, "{n}");
        }
        assert!(!shares.take(peer(65), Instant::ZERO));
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

//! The rate of answers that need no connection.

use platform::{Instant, Secret};

use crate::address;

/// Limits a kind of act to a rate, with bursts.
#[derive(Clone, Copy, Debug)]
struct Limiter {
    /// The time up to which acts are paid for. It is at most a burst ahead of the clock.
    paid: u64,
}

/// Limits answers to strangers. Addresses can be forged, so there is no table of them: a hash puts
/// each address into a group, and each group has a rate. A peer that floods takes the answers of
/// its own group only, and since the hash has a secret, it cannot choose whose group that is.
#[derive(Debug)]
pub(crate) struct Limits {
    secret: Secret,
    groups: [Limiter; GROUPS],
}

/// Groups of peers, a power of two.
const GROUPS: usize = 64;
/// Answers for each group in a second, and in a burst.
const PER_SECOND: u64 = 100;
const BURST: u64 = 16;

const COST: u64 = 1_000_000_000 / PER_SECOND;

impl Limits {
    pub const fn new(secret: Secret) -> Limits {
        Limits { secret, groups: [Limiter { paid: 0 }; GROUPS] }
    }

    /// Whether an answer to this peer is allowed now; counts it if so.
    pub fn take(&mut self, to: core::net::IpAddr, now: Instant) -> bool {
        let group = address::hash(&self.secret, to) as usize & (GROUPS - 1);
        let limiter = &mut self.groups[group];
        let paid = limiter.paid.max(now.as_nanos()).saturating_add(COST);
        let allowed = paid <= now.as_nanos().saturating_add(BURST * COST);
        if allowed {
            limiter.paid = paid;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_burst_and_then_the_rate_and_others_have_their_own() {
        let mut limits = Limits::new(Secret::new([1, 2]));
        let peer = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut taken = |last, now| (0..100).filter(|_| limits.take(peer(last), now)).count();
        assert_eq!(taken(1, ms(0)), BURST as usize);
        assert_eq!(taken(1, ms(50)), 5);
        assert_eq!(taken(1, ms(50)), 0);
        // A clock that runs backwards gives nothing.
        assert_eq!(taken(1, ms(20)), 0);
        assert!((2..100).filter(|last| taken(*last, ms(50)) > 0).count() > 30);
    }
}

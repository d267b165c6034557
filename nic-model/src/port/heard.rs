//! The MACs from which neighbours' datagrams came.
//!
//! An answer to a datagram goes to the MAC of the frame that asked, unless the table of neighbours
//! knows another. So strangers with addresses that no node has cost the port no questions, and the
//! queue pairs that answer them no time. A node that claims another node's address here could as
//! well claim it by an announcement.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use platform::Instant;
use roce::Gid;

/// The most neighbours. The one that came first makes room for another.
const MOST: usize = 512;
/// How long a MAC is valid.
const VALID: Duration = Duration::from_secs(30);

/// A MAC.
type Mac = [u8; 6];

#[derive(Debug)]
pub(super) struct Heard {
    /// A ring; the next that comes replaces that at `next`.
    ring: Vec<(Gid, Mac, Instant)>,
    next: usize,
    /// The place of each neighbour in the ring.
    places: BTreeMap<Gid, usize>,
}

impl Heard {
    pub const fn new() -> Heard {
        Heard { ring: Vec::new(), next: 0, places: BTreeMap::new() }
    }

    /// A datagram of this neighbour came from this MAC.
    pub fn add(&mut self, gid: Gid, mac: Mac, now: Instant) {
        if let Some(entry) = self.places.get(&gid).and_then(|place| self.ring.get_mut(*place)) {
            (entry.1, entry.2) = (mac, now);
            return;
        }
        match self.ring.get_mut(self.next) {
            Some(entry) => {
                self.places.remove(&entry.0);
                *entry = (gid, mac, now);
            }
            None => self.ring.push((gid, mac, now)),
        }
        self.places.insert(gid, self.next);
        self.next = (self.next + 1) % MOST;
    }

    /// The MAC from which this neighbour's latest datagram came.
    pub fn mac(&self, gid: Gid, now: Instant) -> Option<Mac> {
        let (_, mac, at) = self.ring.get(*self.places.get(&gid)?)?;
        (now < *at + VALID).then_some(*mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(n: u32) -> Gid {
        Gid::from_ipv4(core::net::Ipv4Addr::from_bits(10 << 24 | n))
    }

    fn mac(n: u32) -> Mac {
        [2, 0, 0, 0, (n >> 8) as u8, n as u8]
    }

    #[test]
    fn the_latest_mac_counts_for_a_while() {
        let mut heard = Heard::new();
        let seconds = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        assert_eq!(heard.mac(gid(1), seconds(0)), None);
        heard.add(gid(1), mac(1), seconds(1));
        heard.add(gid(2), mac(2), seconds(1));
        heard.add(gid(1), mac(3), seconds(2));
        assert_eq!(heard.mac(gid(1), seconds(31)), Some(mac(3)));
        assert_eq!((heard.mac(gid(1), seconds(32)), heard.mac(gid(2), seconds(31))), (None, None));
    }

    #[test]
    fn those_that_came_first_make_room() {
        let mut heard = Heard::new();
        let count = 3 * MOST as u32;
        for n in 0..count {
            heard.add(gid(n), mac(n), Instant::ZERO);
            heard.add(gid(n), mac(n + 1), Instant::ZERO);
        }
        assert_eq!((heard.ring.len(), heard.places.len()), (MOST, MOST));
        for n in 0..count {
            let known = n >= count - MOST as u32;
            assert_eq!(heard.mac(gid(n), Instant::ZERO), known.then_some(mac(n + 1)));
        }
    }
}

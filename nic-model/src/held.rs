//! Datagrams that wait for the MAC of their neighbour, beside the queues from which they came: no
//! other datagram waits for them.
//!
//! They wait until the neighbour answers or is given up. A neighbour has a share of them, and a
//! queue pair loses the oldest of its own if it has the most when there are too many; a datagram
//! may get lost anyway.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};

use roce::Gid;
use roce::wire::datagram::Network;

/// The most datagrams.
const ALL: usize = 256;
/// The most datagrams for one neighbour.
const SHARE: usize = 64;

/// A datagram that waits.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// The number of its queue pair.
    pub qpn: u32,
    pub network: Network,
    pub port: u16,
    /// From the BTH to the padding.
    pub packet: Box<[u8]>,
}

impl Datagram {
    fn to(&self) -> Gid {
        self.network.dst()
    }
}

/// The datagrams of a NIC that wait.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// For a MAC, the oldest first.
    waiting: VecDeque<Datagram>,
    /// For their turn, since the MAC is known.
    ready: VecDeque<Datagram>,
}

impl Held {
    /// Keeps a datagram. Returns how many others are lost for it.
    pub fn add(&mut self, datagram: Datagram) -> u64 {
        let to = datagram.to();
        let oldest = if self.waiting.iter().filter(|other| other.to() == to).count() >= SHARE {
            self.waiting.iter().position(|other| other.to() == to)
        } else if self.waiting.len() + self.ready.len() >= ALL {
            let most = self.with_most();
            self.waiting.iter().position(|other| Some(other.qpn) == most)
        } else {
            None
        };
        let lost = oldest.and_then(|place| self.waiting.remove(place)).is_some();
        if self.waiting.len() + self.ready.len() >= ALL {
            // All others have a MAC, and leave next.
            return 1;
        }
        self.waiting.push_back(datagram);
        u64::from(lost)
    }

    /// The queue pair that has the most datagrams that wait; of equals, the one with the oldest.
    fn with_most(&self) -> Option<u32> {
        let mut counts = BTreeMap::new();
        for (place, datagram) in self.waiting.iter().enumerate() {
            counts.entry(datagram.qpn).or_insert((0, ALL - place)).0 += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(qpn, _)| qpn)
    }

    /// A neighbour has a MAC, or is given up. Returns how many datagrams are lost.
    pub fn settle(&mut self, gid: Gid, found: bool) -> u64 {
        let mut lost = 0;
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(datagram) if datagram.to() != gid => self.waiting.push_back(datagram),
                Some(datagram) if found => self.ready.push_back(datagram),
                _ => lost += 1,
            }
        }
        lost
    }

    /// Takes a datagram whose neighbour has a MAC.
    #[inline]
    pub fn next(&mut self) -> Option<Datagram> {
        self.ready.pop_front()
    }

    /// Forgets all. Returns how many there were.
    pub fn clear(&mut self) -> u64 {
        let lost = self.waiting.len() + self.ready.len();
        *self = Held::default();
        lost as u64
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn gid(n: u32) -> Gid {
        Gid::from_ipv4(core::net::Ipv4Addr::from_bits(10 << 24 | n))
    }

    fn datagram(qpn: u32, to: u32) -> Datagram {
        let network = Network::new(gid(0), gid(to), 0, 64).unwrap();
        Datagram { qpn, network, port: 0, packet: Box::new([]) }
    }

    fn ready(held: &mut Held) -> Vec<(u32, Gid)> {
        core::iter::from_fn(|| held.next()).map(|datagram| (datagram.qpn, datagram.to())).collect()
    }

    #[test]
    fn they_wait_for_their_neighbour_and_leave_in_their_order() {
        let mut held = Held::default();
        for (qpn, to) in [(1, 7), (1, 8), (2, 7), (1, 7), (3, 9)] {
            assert_eq!(held.add(datagram(qpn, to)), 0);
        }
        assert_eq!((held.settle(gid(5), true), ready(&mut held)), (0, Vec::new()));
        assert_eq!(held.settle(gid(7), true), 0);
        assert_eq!(ready(&mut held), [1, 2, 1].map(|qpn| (qpn, gid(7))));
        assert_eq!((held.settle(gid(8), false), held.settle(gid(8), true)), (1, 0));
        assert_eq!((held.clear(), held.clear()), (1, 0));
    }

    #[test]
    fn a_neighbour_has_its_share_and_the_oldest_for_it_are_lost() {
        let mut held = Held::default();
        let lost: u64 = (0..1000).map(|n| held.add(datagram(n, 7))).sum();
        assert_eq!((lost, held.waiting.len()), (1000 - SHARE as u64, SHARE));
        held.settle(gid(7), true);
        assert_eq!(ready(&mut held)[0], (1000 - SHARE as u32, gid(7)));
    }

    /// A queue pair that sends to addresses that no node has takes nothing from the others.
    #[test]
    fn the_queue_pair_that_has_the_most_loses_its_own() {
        let mut held = Held::default();
        for n in 0..3 {
            held.add(datagram(1, n));
        }
        let lost: u64 = (0..1000).map(|n| held.add(datagram(2, 100 + n))).sum();
        assert_eq!((lost, held.waiting.len()), (1000 - (ALL as u64 - 3), ALL));
        for n in 0..3 {
            assert_eq!(held.settle(gid(n), true), 0);
        }
        assert_eq!(ready(&mut held), [0, 1, 2].map(|n| (1, gid(n))));
        // Of equals, the oldest is lost.
        let mut held = Held::default();
        for n in 0..ALL as u32 + 1 {
            assert_eq!(held.add(datagram(n, n)), u64::from(n == ALL as u32));
        }
        assert_eq!((held.settle(gid(0), false), held.settle(gid(1), false)), (0, 1));
    }

    #[test]
    fn those_that_may_leave_are_not_lost_for_others() {
        let mut held = Held::default();
        for n in 0..ALL as u32 {
            held.add(datagram(n, n / 32));
        }
        for n in 0..8 {
            held.settle(gid(n), true);
        }
        assert_eq!((held.add(datagram(1, 99)), held.waiting.len(), held.ready.len()), (1, 0, ALL));
    }
}

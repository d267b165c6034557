//! The datagrams that QP1 received and that nothing has acted on yet: one queue for each peer, so
//! that a peer that sends too many loses its own and not those of others.
//!
//! The dispatcher thread takes datagrams from QP1 often, which makes room for others at once, and
//! acts on them as fast as it can, one of each peer in turn. When [`WAITING`] datagrams wait, one
//! of the peer that has the most is lost, as any datagram may be.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use roce::mad;

use crate::cm::Arrival;

/// The most datagrams that wait.
pub(super) const WAITING: usize = 256;

/// A datagram, and where it came from.
pub(super) struct Datagram {
    pub from: Arrival,
    pub mad: [u8; mad::LEN],
}

/// The datagrams that wait, by peer; the peer whose turn is next comes first. No queue is empty.
#[derive(Default)]
pub(super) struct Intake {
    peers: VecDeque<VecDeque<Box<Datagram>>>,
    waiting: usize,
}

impl Intake {
    /// Adds a datagram. If too many wait, the latest of the peer that has the most is lost.
    pub fn add(&mut self, datagram: Box<Datagram>) {
        let sender = datagram.from.remote_gid;
        let of_sender = |queue: &&mut VecDeque<Box<Datagram>>| {
            queue.front().is_some_and(|first| first.from.remote_gid == sender)
        };
        // Peers are at most as many as datagrams.
        match self.peers.iter_mut().find(of_sender) {
            Some(queue) => queue.push_back(datagram),
            None => self.peers.push_back(VecDeque::from([datagram])),
        }
        self.waiting += 1;
        if self.waiting > WAITING
            && let Some(longest) = self.peers.iter_mut().max_by_key(|queue| queue.len())
        {
            longest.pop_back();
            self.waiting -= 1;
            self.peers.retain(|queue| !queue.is_empty());
        }
    }

    /// Takes the oldest datagram of the peer whose turn it is.
    pub fn next(&mut self) -> Option<Box<Datagram>> {
        let mut queue = self.peers.pop_front()?;
        let datagram = queue.pop_front()?;
        self.waiting -= 1;
        if !queue.is_empty() {
            self.peers.push_back(queue);
        }
        Some(datagram)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use roce::{Gid, Qpn};

    use super::*;

    fn datagram(peer: u8, number: u8) -> Box<Datagram> {
        let from = Arrival { local_gid: Gid([1; 16]), remote_gid: Gid([peer; 16]), remote_qp: Qpn::GSI };
        Box::new(Datagram { from, mad: [number; mad::LEN] })
    }

    fn all(intake: &mut Intake) -> Vec<(u8, u8)> {
        let name = |datagram: Box<Datagram>| (datagram.from.remote_gid.0[0], datagram.mad[0]);
        core::iter::from_fn(|| intake.next().map(name)).collect()
    }

    #[test]
    fn peers_take_turns_and_each_ones_datagrams_stay_in_order() {
        let mut intake = Intake::default();
        for (peer, number) in [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2)] {
            intake.add(datagram(peer, number));
        }
        assert_eq!(all(&mut intake), [(1, 1), (2, 1), (3, 1), (1, 2), (3, 2), (1, 3)]);
        assert_eq!((intake.waiting, intake.peers.len()), (0, 0));
    }

    #[test]
    fn a_peer_that_sends_too_many_loses_its_own() {
        let mut intake = Intake::default();
        for number in 0..1000 {
            intake.add(datagram(1, number as u8));
            assert!(intake.waiting <= WAITING);
        }
        for number in 0..3 {
            intake.add(datagram(2, number));
        }
        for number in 0..1000 {
            intake.add(datagram(1, number as u8));
        }
        assert_eq!(intake.waiting, WAITING);
        let all = all(&mut intake);
        assert_eq!(all[..6], [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]);
        assert_eq!((all.len(), all.iter().filter(|(peer, _)| *peer == 2).count()), (WAITING, 3));
    }

    #[test]
    fn as_many_peers_as_datagrams_may_wait() {
        let mut intake = Intake::default();
        for peer in 0..=255 {
            intake.add(datagram(peer, 0));
        }
        // The first peer has two, so the second one is lost.
        intake.add(datagram(0, 1));
        assert_eq!(all(&mut intake).len(), WAITING);
    }
}

//! A link in memory, between two ports of one process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use platform::Instant;

use crate::queue::FrameQueue;
use crate::{Counters, Dropped, Link, MAX_FRAME, PollFd, Wire};

/// Two ends of a link in memory. What one end sends, the other receives, in order. The queue of
/// each direction is bounded. The link is up while both ends exist.
pub fn pair() -> (PairEnd, PairEnd) {
    let wire: Arc<Mutex<Cable>> = Arc::default();
    let end = |side| PairEnd { wire: wire.clone(), side, counters: Counters::default() };
    (end(0), end(1))
}

/// The frames in flight, by the end that receives them.
#[derive(Debug, Default)]
struct Cable {
    to: [FrameQueue; 2],
    /// Whether one end is gone.
    cut: bool,
}

/// One end of a [`pair()`].
#[derive(Debug)]
pub struct PairEnd {
    wire: Arc<Mutex<Cable>>,
    side: usize,
    counters: Counters,
}

impl PairEnd {
    fn wire(&self) -> MutexGuard<'_, Cable> {
        // A queue is valid after a panic of the other end's thread: no call panics while it changes
        // one.
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire for PairEnd {
    fn send(&mut self, frame: &[u8], _now: Instant) {
        if !self.counters.check_size(frame) {
            return;
        }
        let mut wire = self.wire();
        let refused = if wire.cut {
            Some(Dropped::NoPeer)
        } else if !wire.to[1 - self.side].push(frame) {
            Some(Dropped::QueueFull)
        } else {
            None
        };
        drop(wire);
        match refused {
            Some(why) => self.counters.drop(why),
            None => self.counters.count_sent(frame.len()),
        }
    }

    fn has_room(&self) -> bool {
        self.wire().to[1 - self.side].has_room(MAX_FRAME)
    }

    fn receive(&mut self, into: &mut [u8], _now: Instant) -> Option<usize> {
        loop {
            let frame = self.wire().to[self.side].pop()?;
            if let Some(len) = self.counters.deliver(&frame, into) {
                return Some(len);
            }
        }
    }

    fn flush(&mut self, _now: Instant) {}

    fn up(&self) -> bool {
        !self.wire().cut
    }

    /// At once if a frame waits: nothing else would wake the owner of this end.
    fn deadline(&self) -> Option<Instant> {
        (self.wire().to[self.side].len() > 0).then_some(Instant::ZERO)
    }
}

impl Link for PairEnd {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        None
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for PairEnd {
    fn drop(&mut self) {
        let mut wire = self.wire();
        wire.cut = true;
        wire.to[self.side].clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn frames_cross_in_order_in_both_directions() {
        let (mut a, mut b) = pair();
        let mut into = [0; 100];
        for n in 0..3 {
            a.send(&[n; 14], NOW);
            b.send(&[0x80 | n; 20], NOW);
        }
        for n in 0..3 {
            assert_eq!(b.receive(&mut into, NOW), Some(14));
            assert_eq!(into[..14], [n; 14]);
            assert_eq!(a.receive(&mut into, NOW), Some(20));
            assert_eq!(into[..20], [0x80 | n; 20]);
        }
        assert_eq!((a.receive(&mut into, NOW), b.receive(&mut into, NOW)), (None, None));
        assert_eq!((a.counters().sent, a.counters().received_bytes), (3, 60));
    }

    /// Nothing else wakes the owner of an end.
    #[test]
    fn a_frame_that_waits_is_due_at_once() {
        let (mut a, mut b) = pair();
        assert_eq!((a.deadline(), b.deadline()), (None, None));
        a.send(&[1; 14], NOW);
        assert_eq!((a.deadline(), b.deadline()), (None, Some(Instant::ZERO)));
        assert_eq!(b.receive(&mut [0; 14], NOW), Some(14));
        assert_eq!((a.deadline(), b.deadline()), (None, None));
    }

    #[test]
    fn a_peer_that_takes_nothing_costs_bounded_memory() {
        let (mut a, mut b) = pair();
        assert!(a.has_room());
        for _ in 0..1000 {
            a.send(&[7; 9000], NOW);
        }
        let Counters { sent, .. } = a.counters();
        assert_eq!(sent + a.counters().dropped(Dropped::QueueFull), 1000);
        assert!(sent as usize * 9000 <= crate::queue::BYTES && !a.has_room());
        let mut into = [0; MAX_FRAME];
        assert_eq!((0..1000).filter(|_| b.receive(&mut into, NOW).is_some()).count() as u64, sent);
        assert!(a.has_room());
    }

    #[test]
    fn the_link_is_down_when_one_end_is_gone_and_delivers_what_came_before() {
        let (mut a, b) = pair();
        assert!(a.up() && b.up());
        let mut b = b;
        b.send(&[1; 14], NOW);
        drop(b);
        assert!(!a.up());
        a.send(&[2; 14], NOW);
        assert_eq!(a.counters().dropped(Dropped::NoPeer), 1);
        assert_eq!(a.receive(&mut [0; 14], NOW), Some(14));
        assert_eq!(a.receive(&mut [0; 14], NOW), None);
    }

    #[test]
    fn frames_of_impossible_sizes_are_dropped_and_counted() {
        let (mut a, mut b) = pair();
        a.send(&[0; 13], NOW);
        a.send(&[0; MAX_FRAME + 1], NOW);
        a.send(&[0; MAX_FRAME], NOW);
        a.send(&[0; 14], NOW);
        assert_eq!((a.counters().dropped(Dropped::Runt), a.counters().dropped(Dropped::Oversized)), (1, 1));
        // The receiver's buffer is too short for the first of the two remaining frames.
        assert_eq!(b.receive(&mut [0; 100], NOW), Some(14));
        assert_eq!(b.counters().dropped(Dropped::Oversized), 1);
    }

    #[test]
    fn nothing_goes_through_an_unplugged_link() {
        let mut none = crate::Unplugged::new();
        none.send(&[0; 14], NOW);
        none.flush(NOW);
        assert!(!none.up() && none.has_room());
        assert_eq!((none.receive(&mut [0; 14], NOW), none.deadline()), (None, None));
        assert!(none.poll_fd().is_none());
        assert_eq!(none.counters().dropped(Dropped::NoPeer), 1);
    }
}

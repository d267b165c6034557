//! Counts of what a link carried, and of what it dropped and why.

use std::ops::AddAssign;

use crate::Fault;

/// Why a frame was dropped, or what else went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Dropped {
    /// Sent while there was no peer; or sent to an address from which no peer of a switch has sent.
    NoPeer,
    /// Sent while the queue was full, because the peer takes frames too slowly.
    QueueFull,
    /// Shorter than an Ethernet header.
    Runt,
    /// Longer than [`crate::MAX_FRAME`], or than the receiver's buffer.
    Oversized,
    /// Sent, and still in the queue, or under way in an impaired link, when the peer left.
    PeerLeft,
    /// Received in part when the peer left.
    Truncated,
    /// A length in a stream that no frame can have. The link leaves the peer, since it cannot find
    /// the next frame.
    BadLength,
    /// Of a kind that this link does not carry.
    Unsupported,
    /// Refused by the operating system.
    System,
    /// Lost by impairment.
    Lost,
    /// Received by a switch from an address that is another peer's, the owner's, or a group's.
    BadSource,
}

impl Dropped {
    /// All reasons, with the names that they have in files of counters.
    pub const ALL: [(Dropped, &str); 11] = [
        (Dropped::NoPeer, "no_peer"),
        (Dropped::QueueFull, "queue_full"),
        (Dropped::Runt, "runt"),
        (Dropped::Oversized, "oversized"),
        (Dropped::PeerLeft, "peer_left"),
        (Dropped::Truncated, "truncated"),
        (Dropped::BadLength, "bad_length"),
        (Dropped::Unsupported, "unsupported"),
        (Dropped::System, "system"),
        (Dropped::Lost, "lost"),
        (Dropped::BadSource, "bad_source"),
    ];
}

/// What a link carried and dropped since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// How many peers have connected.
    pub peers: u64,
    /// Silent peers of a switch that newcomers have replaced.
    pub replaced: u64,
    /// Copies of frames that a switch passed from one peer to another.
    pub forwarded: u64,
    /// Frames by the fault of impairment that they met, but for those that were lost.
    faults: [u64; Fault::ALL.len()],
    dropped: [u64; Dropped::ALL.len()],
}

impl Counters {
    /// How many frames were dropped for a reason.
    pub const fn dropped(&self, why: Dropped) -> u64 {
        self.dropped[why as usize]
    }

    /// How many frames were dropped.
    pub fn all_dropped(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// How many frames met this fault of impairment.
    pub const fn met(&self, fault: Fault) -> u64 {
        match fault {
            Fault::Loss => self.dropped(Dropped::Lost),
            _ => self.faults[fault as usize],
        }
    }

    /// Every counter with its name.
    pub fn iter(&self) -> impl Iterator<Item = (String, u64)> + use<> {
        let carried = [
            ("sent", self.sent),
            ("sent_bytes", self.sent_bytes),
            ("received", self.received),
            ("received_bytes", self.received_bytes),
            ("peers", self.peers),
            ("replaced", self.replaced),
            ("forwarded", self.forwarded),
        ];
        let counters = *self;
        // Frames that were lost are among those that were dropped.
        let faults = Fault::ALL.into_iter().filter(|fault| *fault != Fault::Loss);
        let faults = faults.map(move |fault| (fault.counter().to_owned(), counters.met(fault)));
        let dropped = Dropped::ALL.map(|(why, name)| (format!("dropped_{name}"), counters.dropped(why)));
        carried.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(faults).chain(dropped)
    }

    pub(crate) fn suffer(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    pub(crate) fn drop(&mut self, why: Dropped) {
        self.drop_all(why, 1);
    }

    pub(crate) fn drop_all(&mut self, why: Dropped, frames: u64) {
        self.dropped[why as usize] += frames;
    }

    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
    }

    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received += 1;
        self.received_bytes += bytes as u64;
    }

    /// Copies a received frame to the owner, and counts it; drops it if `into` is too short.
    pub(crate) fn deliver(&mut self, frame: &[u8], into: &mut [u8]) -> Option<usize> {
        let Some(place) = into.get_mut(..frame.len()) else {
            self.drop(Dropped::Oversized);
            return None;
        };
        place.copy_from_slice(frame);
        self.count_received(frame.len());
        Some(frame.len())
    }

    /// Whether a frame has a size that a link carries. If not, it is counted as dropped.
    pub(crate) fn check_size(&mut self, frame: &[u8]) -> bool {
        match frame.len() {
            ..crate::MIN_FRAME => self.drop(Dropped::Runt),
            crate::MIN_FRAME..=crate::MAX_FRAME => return true,
            _ => self.drop(Dropped::Oversized),
        }
        false
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, more: Counters) {
        self.sent += more.sent;
        self.sent_bytes += more.sent_bytes;
        self.received += more.received;
        self.received_bytes += more.received_bytes;
        self.peers += more.peers;
        self.replaced += more.replaced;
        self.forwarded += more.forwarded;
        for (sum, more) in self.faults.iter_mut().zip(more.faults) {
            *sum += more;
        }
        for (sum, more) in self.dropped.iter_mut().zip(more.dropped) {
            *sum += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_place_and_name() {
        let mut counters = Counters::default();
        for (place, (why, _)) in Dropped::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, place);
            counters.drop_all(why, 1 << place);
        }
        for (place, (why, name)) in Dropped::ALL.into_iter().enumerate() {
            assert_eq!(counters.dropped(why), 1 << place);
            assert!(counters.iter().any(|pair| pair == (format!("dropped_{name}"), 1 << place)));
        }
        assert_eq!(counters.all_dropped(), (1 << Dropped::ALL.len()) - 1);
        let mut names: Vec<_> = counters.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), counters.iter().count());
        assert!(Fault::ALL.iter().all(|fault| names.iter().any(|name| name == fault.counter())));
    }

    #[test]
    fn counters_of_two_links_add_up() {
        let mut one = Counters::default();
        one.count_sent(60);
        one.count_received(70);
        one.drop(Dropped::Runt);
        one += one;
        assert_eq!((one.sent, one.sent_bytes, one.received, one.received_bytes), (2, 120, 2, 140));
        assert_eq!(one.dropped(Dropped::Runt), 2);
    }
}

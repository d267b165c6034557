//! Counters of packets: what was dropped, refused or repeated, and what was seen of congestion; and
//! of connections over streams: why they ended.

use nic_abi::eqe::StreamFault;
use roce::transport::Reason;

/// Why a packet is dropped that the port has taken for a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum PacketDropped {
    /// The NIC does not run.
    NotRunning,
    /// Its headers are none of RoCEv2, or an unknown operation's.
    Malformed,
    /// It is of another partition.
    WrongPartition,
    /// There is no queue pair with its number.
    NoQueuePair,
    /// Its queue pair takes no packets.
    NotConnected,
    /// Its queue pair is of another transport service.
    WrongService,
    /// Its addresses are not those of the queue pair's connection.
    WrongPeer,
    /// A datagram with another queue key.
    WrongKey,
    /// A datagram for which no receive is posted.
    NoReceive,
    /// A datagram that is longer than the MTU, than its queue pair's longest message, or than the
    /// first receive.
    TooLong,
}

impl PacketDropped {
    /// All reasons, with the names that they have in files of counters.
    pub const ALL: [(PacketDropped, &str); 10] = [
        (PacketDropped::NotRunning, "not_running"),
        (PacketDropped::Malformed, "malformed_packet"),
        (PacketDropped::WrongPartition, "wrong_pkey"),
        (PacketDropped::NoQueuePair, "no_queue_pair"),
        (PacketDropped::NotConnected, "not_connected"),
        (PacketDropped::WrongService, "wrong_service"),
        (PacketDropped::WrongPeer, "wrong_peer"),
        (PacketDropped::WrongKey, "qkey_mismatch"),
        (PacketDropped::NoReceive, "no_receive"),
        (PacketDropped::TooLong, "too_long"),
    ];
}

/// Events of congestion control that a NIC counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Congestion {
    /// Packets came that a switch had marked.
    Marked,
    /// A notification was sent to their sender.
    Notified,
    /// A notification came, and the queue pair's requester sends less.
    Handled,
    /// A notification came for a queue pair that sends as before: it has no requester yet, or none
    /// that reacts.
    Ignored,
}

impl Congestion {
    /// All, with the names that Linux's `hw_counters` have for them.
    pub const ALL: [(Congestion, &str); 4] = [
        (Congestion::Marked, "np_ecn_marked_roce_packets"),
        (Congestion::Notified, "np_cnp_sent"),
        (Congestion::Handled, "rp_cnp_handled"),
        (Congestion::Ignored, "rp_cnp_ignored"),
    ];
}

/// What a NIC dropped, refused or repeated of the packets that its port had taken, and what it
/// dropped of the messages that came to unreliable connections by the short cut, since it was
/// added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketCounters {
    dropped: [u64; PacketDropped::ALL.len()],
    reasons: [u64; Reason::ALL.len()],
    congestion: [u64; Congestion::ALL.len()],
}

impl Default for PacketCounters {
    fn default() -> PacketCounters {
        PacketCounters {
            dropped: [0; PacketDropped::ALL.len()],
            reasons: [0; Reason::ALL.len()],
            congestion: [0; Congestion::ALL.len()],
        }
    }
}

impl PacketCounters {
    /// How many packets were dropped for a reason.
    pub const fn dropped(&self, why: PacketDropped) -> u64 {
        self.dropped[why as usize]
    }

    /// How often the engines of queue pairs gave this reason.
    pub const fn reason(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize]
    }

    pub(crate) fn count_dropped(&mut self, why: PacketDropped) {
        self.dropped[why as usize] += 1;
    }

    pub(crate) fn count(&mut self, reason: Reason) {
        self.reasons[reason as usize] += 1;
    }

    /// All reasons of engines by their names, and how often each was given.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Reason::ALL.iter().map(|&reason| (reason.name(), self.reason(reason)))
    }

    /// How often this was seen or done about congestion.
    pub const fn congested(&self, what: Congestion) -> u64 {
        self.congestion[what as usize]
    }

    pub(crate) fn count_congestion(&mut self, what: Congestion) {
        self.congestion[what as usize] += 1;
    }

    /// What was counted about congestion, by its names.
    pub fn congestion(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Congestion::ALL.iter().map(|&(what, name)| (name, self.congested(what)))
    }

    /// All counters by their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.drops().chain(self.reasons()).chain(self.congestion())
    }

    /// All reasons by their names, and how many packets were dropped for each.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        PacketDropped::ALL.iter().map(|&(why, name)| (name, self.dropped(why)))
    }
}

/// Why the connections of a NIC's iWARP queue pairs ended by themselves, since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamEnds([u64; StreamEnds::ALL.len()]);

impl StreamEnds {
    /// All reasons, in the order of their numbers, with the names that they have in files of
    /// counters.
    pub const ALL: [(StreamFault, &str); 14] = [
        (StreamFault::None, "iwarp_ended_by_peer"),
        (StreamFault::Write, "iwarp_bad_write"),
        (StreamFault::ReadSource, "iwarp_bad_read"),
        (StreamFault::ReadSink, "iwarp_bad_read_sink"),
        (StreamFault::Receive, "iwarp_no_receive"),
        (StreamFault::ReceiveLength, "iwarp_too_long"),
        (StreamFault::Invalidate, "iwarp_bad_invalidate"),
        (StreamFault::Transport, "iwarp_bad_segment"),
        (StreamFault::Opcode, "iwarp_bad_opcode"),
        (StreamFault::Llp, "iwarp_bad_fpdu"),
        (StreamFault::Local, "iwarp_failed_here"),
        (StreamFault::Terminated, "iwarp_terminated_by_peer"),
        (StreamFault::InsideMessage, "iwarp_ended_inside_message"),
        (StreamFault::Lost, "iwarp_lost"),
    ];

    /// How often this was the reason.
    pub const fn count(&self, fault: StreamFault) -> u64 {
        self.0[fault as usize]
    }

    pub(crate) fn add(&mut self, fault: StreamFault) {
        self.0[fault as usize] += 1;
    }

    /// All reasons by their names, and how often each was one.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        StreamEnds::ALL.iter().map(|&(fault, name)| (name, self.count(fault)))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn each_reason_of_an_end_has_its_own_number_and_name() {
        for (number, (fault, name)) in StreamEnds::ALL.into_iter().enumerate() {
            assert_eq!((fault as usize, StreamFault::from_byte(number as u8)), (number, Some(fault)));
            let mut ends = StreamEnds::default();
            ends.add(fault);
            let counted: Vec<_> = ends.all().filter(|&(_, count)| count > 0).collect();
            assert_eq!(counted, [(name, 1)]);
        }
        assert_eq!(StreamFault::from_byte(StreamEnds::ALL.len() as u8), None);
    }
}

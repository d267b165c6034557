//! Counters of packets: what was dropped, refused or repeated, and what was seen of congestion.

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

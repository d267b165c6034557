//! What happened, in numbers.

/// Why a packet has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Dropped {
    /// It ends before the end of a header, or before the length that a header gives.
    Truncated,
    /// It is longer than the link's MTU allows.
    Oversized,
    /// Its source or destination names no single node, or both are the same.
    BadAddress,
    /// The checksum of a header or of the segment is wrong.
    BadChecksum,
    /// It is a fragment of an IP packet.
    Fragment,
    /// A field has a value that is not allowed.
    Malformed,
    /// It is neither TCP nor a report about a segment.
    NotTcp,
    /// It belongs to no connection, and asks for none that a listener takes.
    NoConnection,
    /// Its numbers do not fit to its connection: a forged or a very old one.
    OutOfWindow,
    /// A connection is asked for, but its listener's backlog has no place for this peer.
    Backlog,
    /// A connection is asked for, but there is no stream or no memory for it.
    NoRoom,
    /// A connection is asked for, but its peer has its share of those at all listeners that no
    /// owner has taken.
    PeerShare,
}

impl Dropped {
    /// All reasons, with the names that they have in files of counters.
    pub const ALL: [(Dropped, &str); 12] = [
        (Dropped::Truncated, "tcp_truncated"),
        (Dropped::Oversized, "tcp_oversized"),
        (Dropped::BadAddress, "tcp_bad_address"),
        (Dropped::BadChecksum, "tcp_bad_checksum"),
        (Dropped::Fragment, "tcp_fragment"),
        (Dropped::Malformed, "tcp_malformed"),
        (Dropped::NotTcp, "tcp_not_tcp"),
        (Dropped::NoConnection, "tcp_no_connection"),
        (Dropped::OutOfWindow, "tcp_out_of_window"),
        (Dropped::Backlog, "tcp_backlog"),
        (Dropped::NoRoom, "tcp_no_room"),
        (Dropped::PeerShare, "tcp_peer_share"),
    ];
}

/// What the streams of a port have carried and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that came.
    pub packets_in: u64,
    /// Packets sent.
    pub packets_out: u64,
    /// How often a stream was looked at: for a packet, a timer, or since its owner used it. It
    /// grows with what happens, and not with the number of streams.
    pub looks: u64,
    /// Half-open connections that began.
    pub half_open: u64,
    /// Half-open connections that ended without becoming a stream: they were given up, reset, or
    /// made room for others.
    pub half_open_lost: u64,
    /// Connections that a peer opened and that became streams.
    pub accepted: u64,
    /// Streams of listeners that ended before their owner took them.
    pub ended_unaccepted: u64,
    /// Connections that this side opened.
    pub connected: u64,
    /// Resets sent to segments of no connection.
    pub resets: u64,
    /// Answers that were not sent since too many went to the peer's group in a short time.
    pub answers_held: u64,
    /// Streams that were given back, and made room for others before their peer had closed.
    pub gave_way: u64,
    /// Records of former connections that made room for others before their time.
    pub formers_dropped: u64,
    /// Peers' SYNs that ask for segments of less than [`MIN_SEGMENT`](crate::config::MIN_SEGMENT)
    /// bytes.
    pub small_segments: u64,
    dropped: [u64; Dropped::ALL.len()],
}

impl Counters {
    /// How many packets were dropped for a reason.
    pub const fn dropped(&self, why: Dropped) -> u64 {
        self.dropped[why as usize]
    }

    /// All counters by their names, but for the looks.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let carried = [
            ("tcp_packets_in", self.packets_in),
            ("tcp_packets_out", self.packets_out),
            ("tcp_half_open", self.half_open),
            ("tcp_half_open_lost", self.half_open_lost),
            ("tcp_accepted", self.accepted),
            ("tcp_ended_unaccepted", self.ended_unaccepted),
            ("tcp_connected", self.connected),
            ("tcp_resets", self.resets),
            ("tcp_answers_held", self.answers_held),
            ("tcp_gave_way", self.gave_way),
            ("tcp_formers_dropped", self.formers_dropped),
            ("tcp_small_segments", self.small_segments),
        ];
        carried.into_iter().chain(self.drops())
    }

    /// All reasons by their names, and how many packets were dropped for each.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Dropped::ALL.iter().map(|&(why, name)| (name, self.dropped(why)))
    }

    pub(crate) fn drop(&mut self, why: Dropped) {
        self.dropped[why as usize] += 1;
    }
}

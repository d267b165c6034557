//! What the device has to offer to an engine: registered memory, and Receives.

/// Where payload comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The memory of a work request.
    Request {
        /// Which one.
        id: u32,
        /// Where in its message.
        offset: u32,
    },
    /// Memory that the peer reads. It needs the right to be read by the stream's peer.
    Region {
        /// The region or window.
        stag: u32,
        /// Where in it.
        to: u64,
    },
}

impl Source {
    /// The source of what is so many bytes behind.
    #[must_use]
    pub const fn behind(self, bytes: u32) -> Source {
        match self {
            Source::Request { id, offset } => Source::Request { id, offset: offset.wrapping_add(bytes) },
            Source::Region { stag, to } => Source::Region { stag, to: to.wrapping_add(bytes as u64) },
        }
    }
}

/// Where payload goes that the peer did not name memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The memory of a Receive.
    Receive {
        /// Which one.
        id: u32,
        /// Where in the message.
        offset: u32,
    },
    /// The memory of an RDMA Read that this end has posted.
    Read {
        /// Which one.
        id: u32,
        /// Where in the message.
        offset: u32,
    },
}

/// A Receive that a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The device's name for it.
    pub id: u32,
    /// How long a message may be.
    pub length: u32,
}

/// Why memory cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no such STag, or its key is another one.
    Stag,
    /// The bytes are not within its bounds.
    Bounds,
    /// It does not have the right.
    Right,
    /// It is of another protection domain, or of another stream.
    Association,
    /// The tagged offset wraps.
    Wrap,
}

/// Who invalidates an STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The peer, by a Send.
    Peer,
    /// This end, by an RDMA Read.
    Read,
}

/// The device's memory, as an engine reaches it for one queue pair. The engine calls none of these
/// for no bytes: an empty Write or Read is carried out, whatever memory it names.
pub trait Memory {
    /// Checks that so many bytes can be gathered. The engine asks before the first byte of an FPDU
    /// is sent, and when the peer asks for an RDMA Read.
    fn check(&mut self, source: Source, length: u32) -> Result<(), Denied>;

    /// Fills `into`. It fails only if memory has gone that was there at [`Memory::check`]; the FPDU
    /// cannot be finished then, and the stream is reset.
    fn gather(&mut self, source: Source, into: &mut [u8]) -> Result<(), Denied>;

    /// Checks and carries out what an RDMA Write of the peer asks for; all of it or nothing.
    fn write(&mut self, stag: u32, to: u64, bytes: &[u8]) -> Result<(), Denied>;

    /// Takes the next Receive for a message.
    fn take_receive(&mut self) -> Option<Receive>;

    /// Places bytes that a Receive or an RDMA Read waits for; all of them or nothing.
    fn place(&mut self, sink: Sink, bytes: &[u8]) -> Result<(), Denied>;

    /// Makes an STag invalid.
    fn invalidate(&mut self, stag: u32, by: By) -> Result<(), Denied>;
}

/// The device's memory, where it reaches that of the peer as well: what [`super::Engine::take`]
/// places. The payload is that of the segment which is being passed.
pub trait Direct: Memory {
    /// As [`Memory::write`], for so many bytes. Returns how many were moved, at least one: it may
    /// be a part only.
    fn write_from_peer(&mut self, stag: u32, to: u64, length: u32) -> Result<u32, Denied>;

    /// As [`Memory::place`], for so many bytes. Returns how many were moved, at least one.
    fn place_from_peer(&mut self, sink: Sink, length: u32) -> Result<u32, Denied>;
}

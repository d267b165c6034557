//! Streams: TCP connections of the port, and the listeners that take them.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(doc)]
use super::Opcode;

/// [`ListenStream::address`]: all addresses of the port.
pub const EVERY_ADDRESS: u32 = u32::MAX;
/// Bytes that a command sends or receives at most.
pub const MAX_STREAM_BYTES: u32 = 1 << 16;

/// Arguments of [`Opcode::ListenStream`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListenStream {
    /// The port, 1 to 65,535.
    pub port: u32,
    /// The index of one of the port's GIDs, or [`EVERY_ADDRESS`].
    pub address: u32,
    /// The most connections that may be half open, and that may wait to be accepted, 1 to 1,024.
    pub backlog: u32,
    /// Event queue.
    pub eq: u32,
    /// Returned in events.
    pub generation: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Arguments of [`Opcode::ConnectStream`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConnectStream {
    /// The peer's address, as a GID: IPv6, or IPv4-mapped.
    pub gid: [u8; 16],
    /// The peer's port.
    pub port: u32,
    /// The index of the port's GID from which to connect, of the same family.
    pub address: u32,
    /// The port from which to connect, or 0 for one that the device chooses.
    pub local_port: u32,
    /// Event queue.
    pub eq: u32,
    /// Returned in events.
    pub generation: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Arguments of [`Opcode::AcceptStream`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AcceptStream {
    /// The number of the listener.
    pub listener: u32,
    /// Event queue.
    pub eq: u32,
    /// Returned in events.
    pub generation: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Result of [`Opcode::ConnectStream`] and [`Opcode::AcceptStream`]: who is connected.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StreamEnds {
    /// The peer's address, as a GID.
    pub gid: [u8; 16],
    /// The peer's port.
    pub port: u32,
    /// The index of the port's own GID.
    pub address: u32,
    /// The own port.
    pub local_port: u32,
}

/// Arguments of [`Opcode::SendStream`] and [`Opcode::ReceiveStream`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TransferStream {
    /// Bus address of the bytes.
    pub addr: u64,
    /// How many there are, or for how many there is room: at most [`MAX_STREAM_BYTES`].
    pub length: u32,
    /// [`TransferFlags`].
    pub flags: u32,
}

bitflags! {
    /// [`TransferStream::flags`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct TransferFlags: u32 {
        /// [`Opcode::ReceiveStream`]: the bytes stay with the stream, and come again.
        const KEEP = 1 << 0;
    }
}

/// Result of [`Opcode::SendStream`] and [`Opcode::ReceiveStream`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StreamTransferred {
    /// How many bytes were taken.
    pub length: u32,
}

/// Arguments of [`Opcode::DestroyStream`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyStream {
    /// 1: the peer gets a reset; 0: the connection is closed as by [`Opcode::CloseStream`], and the
    /// peer gets what was sent.
    pub reset: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Result of [`Opcode::QueryStream`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StreamInfo {
    /// What has happened since the last query: [`StreamHappened`].
    pub happened: u32,
    /// How the connection has ended: a [`StreamEnd`].
    pub end: u32,
    /// Bytes that have arrived.
    pub readable: u32,
    /// Bytes that there is room for.
    pub room: u32,
    /// Bytes that were sent and that the peer has not acknowledged.
    pub unacknowledged: u32,
}

bitflags! {
    /// What happened to a stream or a listener.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct StreamHappened: u32 {
        /// The connection is open.
        const CONNECTED = 1 << 0;
        /// Bytes have arrived.
        const READABLE = 1 << 1;
        /// There is room again, after a send for which there was none.
        const WRITABLE = 1 << 2;
        /// The peer has closed its direction.
        const PEER_CLOSED = 1 << 3;
        /// The connection has ended.
        const ENDED = 1 << 4;
        /// A connection waits at the listener.
        const WAITING = 1 << 5;
    }
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StreamEnd {
    /// It has not.
    None = 0,
    /// Both sides have closed, and everything was acknowledged.
    Closed = 1,
    /// The peer refused the connection.
    Refused = 2,
    /// The port is down, or there is no way to the peer, or it answers no question for its MAC.
    NoWay = 3,
    /// A node reports that it knows no way to the network.
    NetworkUnreachable = 4,
    /// A node reports that it does not reach the peer.
    HostUnreachable = 5,
    /// The peer reports that no program has the port.
    PortUnreachable = 6,
    /// A node reports that it may not pass the connection on.
    Prohibited = 7,
    /// The peer has not answered in time.
    ConnectTimeout = 8,
    /// The peer has reset the connection.
    Reset = 9,
    /// The peer has taken nothing of what was sent in time, or has not closed its direction.
    TimedOut = 10,
}

impl StreamEnd {
    /// Reads an end.
    pub const fn from_word(word: u32) -> Option<StreamEnd> {
        Some(match word {
            0 => StreamEnd::None,
            1 => StreamEnd::Closed,
            2 => StreamEnd::Refused,
            3 => StreamEnd::NoWay,
            4 => StreamEnd::NetworkUnreachable,
            5 => StreamEnd::HostUnreachable,
            6 => StreamEnd::PortUnreachable,
            7 => StreamEnd::Prohibited,
            8 => StreamEnd::ConnectTimeout,
            9 => StreamEnd::Reset,
            10 => StreamEnd::TimedOut,
            _ => return None,
        })
    }
}

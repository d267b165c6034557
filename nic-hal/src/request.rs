//! Requests to a send queue, and the first block of their entry (`nic_abi::wqe`).

use nic_abi::wqe::{AddressVector, BindArgs, Header, LinkFlags, ListArgs, Opcode, Segment, SendFlags};
use zerocopy::transmute;

use crate::Shadow;

/// A request to a send queue, but for its local segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the device does.
    pub operation: Operation,
    /// Options.
    pub flags: SendFlags,
    /// What the poster gets back with the completion.
    pub shadow: Shadow,
}

/// An address in a peer's region or window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The address in the key's address space.
    pub addr: u64,
    /// The key.
    pub key: u32,
}

/// What a request makes the device do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sends the segments as one message.
    Send {
        /// Immediate data as it goes on the wire.
        immediate: Option<u32>,
    },
    /// Sends the segments as one message, and invalidates a region or window of the receiver.
    SendInvalidate {
        /// Its remote key.
        key: u32,
    },
    /// Writes the segments to the peer's memory.
    Write {
        /// Where the first byte goes.
        to: Remote,
        /// Immediate data as it goes on the wire.
        immediate: Option<u32>,
    },
    /// Reads from the peer's memory into the segments.
    Read {
        /// Where the first byte is.
        from: Remote,
    },
    /// Reads as [`Operation::Read`] does, and then invalidates a local region or window, which may
    /// be the segments'. For iWARP.
    ReadInvalidate {
        /// Where the first byte is.
        from: Remote,
        /// The local key of what is invalidated.
        key: u32,
    },
    /// Sends the segments as a datagram.
    Datagram {
        /// The destination.
        to: AddressVector,
    },
    /// Sends the segments as a datagram with immediate data.
    DatagramImmediate {
        /// The destination.
        to: AddressVector,
        /// The immediate data, as it goes on the wire.
        immediate: u32,
    },
    /// Stores `swap` in eight bytes of the peer's memory if they are equal to `compare`.
    CompareSwap {
        /// The eight bytes.
        remote: Remote,
        /// Where their value from before goes.
        sink: Segment,
        /// The value to compare with.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds to eight bytes of the peer's memory.
    FetchAdd {
        /// The eight bytes.
        remote: Remote,
        /// Where their value from before goes.
        sink: Segment,
        /// The value to add.
        add: u64,
    },
    /// Links a region to memory.
    FastRegister {
        /// The region's local key.
        key: u32,
        /// Rights, addressing and the list's form.
        flags: LinkFlags,
        /// The address of the first byte.
        base: u64,
        /// Bytes of the memory.
        length: u64,
        /// The memory, and the region's new remote key.
        list: ListArgs,
    },
    /// Unlinks a region or window.
    LocalInvalidate {
        /// Its local key.
        key: u32,
        /// The remote key that it has to have at that time, or 0: whatever it has.
        remote: u32,
    },
    /// Binds a window to a range of a region.
    BindWindow {
        /// The window's local key.
        key: u32,
        /// The window's new remote key.
        remote: u32,
        /// The region's local key.
        region: u32,
        /// Remote rights and addressing.
        flags: LinkFlags,
        /// The range's first address in the region's address space.
        addr: u64,
        /// Bytes of the range; 0 unbinds a wide window.
        length: u64,
    },
}

/// A Send, RDMA Write or RDMA Read, but for its local segments: a request in the form in which the
/// fast path takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What the device does.
    pub head: Head,
    /// Where the first byte is in the peer's memory; all 0 for a Send.
    pub remote: RemoteWords,
    /// What the poster gets back with the completion.
    pub shadow: Shadow,
}

impl Transfer {
    /// The same as a request for the slow path.
    #[inline(always)]
    pub fn request(&self, direction: Direction) -> Request {
        let at = self.remote.remote();
        let operation = match direction {
            Direction::Send => Operation::Send { immediate: None },
            Direction::Write => Operation::Write { to: at, immediate: None },
            Direction::Read => Operation::Read { from: at },
        };
        Request { operation, flags: self.head.flags(), shadow: self.shadow }
    }
}

/// A [`Remote`] in the form of the header's second and third word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteWords {
    /// The key, in the upper half. The lower half is 0: a transfer has no immediate data.
    pub key: u64,
    /// The address in the key's address space.
    pub addr: u64,
}

impl RemoteWords {
    /// An address and a key in network byte order. The key gets to the upper half in one step with
    /// the change of its byte order.
    #[inline(always)]
    pub fn from_be(addr: u64, key: u32) -> RemoteWords {
        let addr = u64::from_be(addr);
        RemoteWords { key: u64::from(key.to_le()).swap_bytes(), addr }
    }

    /// The address and the key.
    #[inline(always)]
    pub fn remote(self) -> Remote {
        Remote { addr: self.addr, key: (self.key >> 32) as u32 }
    }
}

/// What a [`Transfer`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Sends a message.
    Send,
    /// Writes to the peer's memory.
    Write,
    /// Reads from the peer's memory.
    Read,
}

impl Direction {
    /// All three.
    pub const ALL: [Direction; 3] = [Direction::Send, Direction::Write, Direction::Read];
}

/// Operation and options of a [`Transfer`]: the lower half of the header's first word, as it is for
/// one segment in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head(u32);

impl Head {
    /// One segment in one block.
    pub const fn new(direction: Direction, flags: SendFlags) -> Head {
        let opcode = match direction {
            Direction::Send => Opcode::Send,
            Direction::Write => Opcode::Write,
            Direction::Read => Opcode::Read,
        };
        Head(first_half(opcode as u8, flags.bits(), 1, 1))
    }

    /// The lower half of the first word, for one segment in one block.
    #[inline(always)]
    pub(crate) fn single(self) -> u32 {
        self.0
    }

    /// The options.
    #[inline(always)]
    pub fn flags(self) -> SendFlags {
        SendFlags::from_bits_retain((self.0 >> 8) as u8)
    }

    /// The lower half of the first word, for so many segments and blocks (both below 256).
    #[inline(always)]
    pub(crate) fn sized(self, segments: u32, blocks: u32) -> u32 {
        self.0.wrapping_add(segments.wrapping_sub(1) << 16).wrapping_add(blocks.wrapping_sub(1) << 24)
    }
}

/// The lower half of a header's first word.
#[inline(always)]
pub(crate) const fn first_half(opcode: u8, flags: u8, segments: u8, blocks: u8) -> u32 {
    u32::from_le_bytes([opcode, flags, segments, blocks])
}

/// What follows the header in the first block.
pub(crate) enum Args {
    /// The request's segments.
    Segments,
    /// These words; the request's segments follow in further blocks.
    Address([u64; 4]),
    /// These words. The request has no segments but the sink that the words may hold.
    Words([u64; 4], Option<Segment>),
}

impl Request {
    /// The header, but for what the queue fills in (tag, segments, blocks), and what follows it.
    ///
    /// Inlined: where the operation is known, nothing is left of the choice.
    #[inline(always)]
    pub(crate) fn encode(&self) -> (Header, Args) {
        let header = |opcode, immediate, Remote { addr, key }, length| Header {
            opcode: opcode as u8,
            flags: self.flags.bits(),
            immediate,
            remote_key: key,
            remote_addr: addr,
            length,
            ..Header::default()
        };
        let plain = |opcode, immediate, remote| (header(opcode, immediate, remote, 0), Args::Segments);
        let none = Remote { addr: 0, key: 0 };
        let atomic = |opcode, remote, sink: Segment, compare_add, swap| {
            let words = [sink.addr, length_and_key(sink), compare_add, swap];
            (header(opcode, 0, remote, 0), Args::Words(words, Some(sink)))
        };
        match self.operation {
            Operation::Send { immediate: None } => plain(Opcode::Send, 0, none),
            Operation::Send { immediate: Some(data) } => plain(Opcode::SendImmediate, data, none),
            Operation::SendInvalidate { key } => plain(Opcode::SendInvalidate, key, none),
            Operation::Write { to, immediate: None } => plain(Opcode::Write, 0, to),
            Operation::Write { to, immediate: Some(data) } => plain(Opcode::WriteImmediate, data, to),
            Operation::Read { from } => plain(Opcode::Read, 0, from),
            Operation::ReadInvalidate { from, key } => plain(Opcode::ReadInvalidate, key, from),
            Operation::Datagram { to } => (header(Opcode::Send, 0, none, 0), Args::Address(transmute!(to))),
            Operation::DatagramImmediate { to, immediate } => {
                (header(Opcode::SendImmediate, immediate, none, 0), Args::Address(transmute!(to)))
            }
            Operation::CompareSwap { remote, sink, compare, swap } => {
                atomic(Opcode::CompareSwap, remote, sink, compare, swap)
            }
            Operation::FetchAdd { remote, sink, add } => atomic(Opcode::FetchAdd, remote, sink, add, 0),
            Operation::FastRegister { key, flags, base, length, list } => {
                let rights = Remote { addr: base, key: flags.bits() };
                (header(Opcode::FastRegister, key, rights, length), Args::Words(transmute!(list), None))
            }
            Operation::LocalInvalidate { key, remote } => {
                let named = Remote { addr: 0, key: remote };
                (header(Opcode::LocalInvalidate, key, named, 0), Args::Words([0; 4], None))
            }
            Operation::BindWindow { key, remote, region, flags, addr, length } => {
                let args = BindArgs { flags: flags.bits(), remote, reserved: [0; 6] };
                let range = Remote { addr, key: region };
                (header(Opcode::BindWindow, key, range, length), Args::Words(transmute!(args), None))
            }
        }
    }
}

/// The second word of a segment.
#[inline(always)]
pub(crate) fn length_and_key(segment: Segment) -> u64 {
    u64::from(segment.length) | u64::from(segment.key) << 32
}

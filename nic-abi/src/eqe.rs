//! Event-queue entries: 32 bytes, with a phase like completions. Event queue `n` interrupts on the
//! vector given at its creation, when it is armed.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of an entry.
pub const SIZE: usize = 32;
/// 64-bit words of an entry.
pub const WORDS: usize = SIZE / 8;

/// One event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Eqe {
    /// An [`EventType`].
    pub event: u8,
    /// A [`crate::cqe::Status`] where the event reports a failed request; of
    /// [`EventType::ViError`] a [`crate::vi::ViError`]; of [`EventType::StreamEnded`] a
    /// [`StreamFault`]; else 0.
    pub status: u8,
    /// Reserved.
    pub reserved: u16,
    /// The number of the queue pair, CQ, SRQ or stream that the event concerns.
    pub number: u32,
    /// That object's generation, as given at its creation.
    pub generation: u32,
    /// By event, see the data sheet.
    pub detail: u32,
    /// [`EventType::ViError`]: the virtual address of the descriptor that the event is about; else
    /// 0.
    pub address: u64,
    /// Reserved.
    pub reserved3: u32,
    /// Reserved; its top bit is the phase.
    pub phase: u32,
}

/// A bit of [`Eqe::detail`] of [`EventType::QpFatal`], [`EventType::QpInvalidRequest`] and
/// [`EventType::QpAccessError`]: no completion of the queue pair shows the error.
pub const NO_COMPLETION: u32 = 1;
/// Another bit of it: the responder refused a request of its peer, whose queue pair fails as well
/// once it has the refusal.
pub const REFUSED: u32 = 2;

/// A field of [`Eqe::detail`] of [`EventType::StreamEnded`]: what the Terminate says that was sent
/// or received, as layer << 12 | type << 8 | code (RFC 5040, 4.8).
pub const TERMINATE_CODE: u32 = 0xffff;
/// A bit of it: a Terminate was sent.
pub const TERMINATE_SENT: u32 = 1 << 29;
/// A bit of it: a Terminate was received.
pub const TERMINATE_RECEIVED: u32 = 1 << 30;
/// A bit of it: no completion of the queue pair shows the error.
pub const NOT_COMPLETED: u32 = 1 << 31;

/// Why the stream of an iWARP queue pair has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamFault {
    /// For no error: the peer has closed it between messages.
    None = 0,
    /// An RDMA Write of the peer reached for memory that it may not write.
    Write = 1,
    /// An RDMA Read of the peer reached for memory that it may not read, had a wrong number, or was
    /// one more than there may be.
    ReadSource = 2,
    /// A response arrived for memory of this end that cannot take it.
    ReadSink = 3,
    /// A Send had no receive, or a wrong number.
    Receive = 4,
    /// A Send was longer than its receive.
    ReceiveLength = 5,
    /// A Send named an STag that cannot be invalidated.
    Invalidate = 6,
    /// The segments were not those of messages: queue, order, place, length.
    Transport = 7,
    /// An opcode was unknown or not expected.
    Opcode = 8,
    /// The bytes were not FPDUs, or had a wrong CRC.
    Llp = 9,
    /// A request of this end failed by itself, or one of its queues.
    Local = 10,
    /// The peer has found an error, and sent a Terminate.
    Terminated = 11,
    /// The peer closed the stream in the middle of a message.
    InsideMessage = 12,
    /// The peer reset the stream, or did not acknowledge in time.
    Lost = 13,
}

impl StreamFault {
    /// Reads a fault.
    pub const fn from_byte(byte: u8) -> Option<StreamFault> {
        Some(match byte {
            0 => StreamFault::None,
            1 => StreamFault::Write,
            2 => StreamFault::ReadSource,
            3 => StreamFault::ReadSink,
            4 => StreamFault::Receive,
            5 => StreamFault::ReceiveLength,
            6 => StreamFault::Invalidate,
            7 => StreamFault::Transport,
            8 => StreamFault::Opcode,
            9 => StreamFault::Llp,
            10 => StreamFault::Local,
            11 => StreamFault::Terminated,
            12 => StreamFault::InsideMessage,
            13 => StreamFault::Lost,
            _ => return None,
        })
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventType {
    /// An armed CQ got an entry.
    Completion = 0x01,
    /// A CQ overflowed or its memory failed: it takes no more entries.
    CqError = 0x02,
    /// The admin queue answered a command that asked for an interrupt.
    Admin = 0x03,
    /// Responder: a connected QP got its first message before it was moved to RTS.
    CommunicationEstablished = 0x10,
    /// The send queue is drained (SQD state).
    SendQueueDrained = 0x11,
    /// A QP in ERROR takes no more entries from its SRQ.
    LastWqeReached = 0x12,
    /// A QP went to the error state by itself, for the reason in `status`: its own request, a queue
    /// or its memory.
    QpFatal = 0x13,
    /// The responder refused its peer's request as invalid and went to the error state.
    QpInvalidRequest = 0x14,
    /// The responder refused its peer's request for want of rights and went to the error state.
    QpAccessError = 0x15,
    /// The stream of an iWARP queue pair has ended; the queue pair is in ERROR. `status` is a
    /// [`StreamFault`].
    StreamEnded = 0x16,
    /// An SRQ fell below its limit, which is disarmed; `detail` is the number of entries left, 0 if
    /// the tail is impossible.
    SrqLimit = 0x20,
    /// An SRQ's tail was impossible: it is out of service.
    SrqError = 0x21,
    /// A receive queue passed its soft high watermark; `detail` is the count.
    ReceiveWatermark = 0x22,
    /// The port came up.
    PortUp = 0x30,
    /// The port went down.
    PortDown = 0x31,
    /// An error of a virtual interface that no descriptor shows; `status` is a
    /// [`crate::vi::ViError`], `detail` the operation as a descriptor's status codes it, or of
    /// [`crate::vi::ViError::ConnectionLost`] 0 or [`REFUSED`].
    ViError = 0x40,
    /// An armed ring of a virtual interface has a completed descriptor; `detail` is 0 for the send
    /// queue and 1 for the receive queue.
    ViCompletion = 0x41,
    /// Something happened to a stream or a listener since the driver queried it
    /// ([`crate::admin::Opcode::QueryStream`]). Raised once until the next query.
    Stream = 0x50,
}

impl EventType {
    /// Reads an event type.
    pub const fn from_byte(byte: u8) -> Option<EventType> {
        Some(match byte {
            0x01 => EventType::Completion,
            0x02 => EventType::CqError,
            0x03 => EventType::Admin,
            0x10 => EventType::CommunicationEstablished,
            0x11 => EventType::SendQueueDrained,
            0x12 => EventType::LastWqeReached,
            0x13 => EventType::QpFatal,
            0x14 => EventType::QpInvalidRequest,
            0x15 => EventType::QpAccessError,
            0x16 => EventType::StreamEnded,
            0x20 => EventType::SrqLimit,
            0x21 => EventType::SrqError,
            0x22 => EventType::ReceiveWatermark,
            0x30 => EventType::PortUp,
            0x31 => EventType::PortDown,
            0x40 => EventType::ViError,
            0x41 => EventType::ViCompletion,
            0x50 => EventType::Stream,
            _ => return None,
        })
    }
}

const _: () = assert!(size_of::<Eqe>() == SIZE);

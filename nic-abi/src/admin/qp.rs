//! Queue pairs.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(doc)]
use super::Opcode;
use super::{ARGS_SIZE, RESULT_SIZE};
use crate::wqe;

/// Transport of a queue pair whose rings have work requests. Virtual interfaces have descriptors,
/// and are created as [`vi::QP_TYPE`](crate::vi::QP_TYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connected.
    Rc = 0,
    /// Unreliable datagram.
    Ud = 1,
    /// General services (QP 1): datagrams with the well-known queue key.
    Gsi = 2,
    /// Unreliable connected.
    Uc = 3,
    /// iWARP, over a stream. Needs [`Features::IWARP`](crate::registers::Features::IWARP).
    Iwarp = 5,
}

impl QpType {
    /// Reads a type.
    pub const fn from_word(word: u32) -> Option<QpType> {
        Some(match word {
            0 => QpType::Rc,
            1 => QpType::Ud,
            2 => QpType::Gsi,
            3 => QpType::Uc,
            5 => QpType::Iwarp,
            _ => return None,
        })
    }

    /// Whether a queue pair of this type has one peer. The others send datagrams.
    #[inline]
    pub const fn is_connected(self) -> bool {
        matches!(self, QpType::Rc | QpType::Uc | QpType::Iwarp)
    }

    /// Whether a queue pair of this type carries out such a send-queue entry.
    #[inline]
    pub const fn carries_out(self, opcode: wqe::Opcode) -> bool {
        use wqe::Opcode;
        match self {
            QpType::Rc => true,
            QpType::Uc => !matches!(
                opcode,
                Opcode::SendInvalidate
                    | Opcode::Read
                    | Opcode::ReadInvalidate
                    | Opcode::CompareSwap
                    | Opcode::FetchAdd
            ),
            QpType::Iwarp => !matches!(
                opcode,
                Opcode::SendImmediate | Opcode::WriteImmediate | Opcode::CompareSwap | Opcode::FetchAdd
            ),
            QpType::Ud | QpType::Gsi => matches!(opcode, Opcode::Send | Opcode::SendImmediate),
        }
    }

    /// Blocks that an entry with this many segments takes.
    #[inline]
    pub const fn blocks(self, segments: u32) -> u32 {
        if self.is_connected() { wqe::blocks(segments) } else { wqe::datagram_blocks(segments) }
    }
}

bitflags! {
    /// Fixed properties of a queue pair.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct QpFlags: u32 {
        /// May use the reserved key and fast register (IT-API "privileged endpoint").
        const PRIVILEGED = 1 << 0;
        /// Receives come from the SRQ: RC, UD and iWARP only.
        const SRQ = 1 << 1;
        /// What an RDMA Read fills counts as written by the peer: each segment's key needs the
        /// right of remote writes, and so does the queue pair. Keys may be those of windows (IT-API
        /// "rdma_read_requires_remote_write", "rdma_read_local_extensions"). iWARP only.
        const READS_WRITE = 1 << 2;
    }
}

/// Arguments of [`Opcode::CreateQp`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQp {
    /// A [`QpType`], or [`vi::QP_TYPE`](crate::vi::QP_TYPE).
    pub qp_type: u32,
    /// [`QpFlags`].
    pub flags: u32,
    /// Protection domain.
    pub pd: u32,
    /// Returned in completions and events.
    pub generation: u32,
    /// CQ of the send queue; on a virtual interface one with [`CqFlags::VI`](super::CqFlags), or
    /// [`NO_CQ`](crate::vi::NO_CQ).
    pub send_cq: u32,
    /// CQ of the receive queue, as above.
    pub receive_cq: u32,
    /// The SRQ, where [`QpFlags::SRQ`] is set; of a virtual interface the event queue for the
    /// completions of its armed rings.
    pub srq: u32,
    /// Segments that a send-queue entry may have.
    pub max_send_segments: u32,
    /// Bus address of the send queue's ring, 64-byte aligned.
    pub send_ring: u64,
    /// Bus address of the receive queue's ring, 64-byte aligned; 0 with an SRQ.
    pub receive_ring: u64,
    /// Blocks of the send queue as a power of two; entries of a virtual interface's.
    pub log_send_blocks: u32,
    /// Entries of the receive queue as a power of two.
    pub log_receive_entries: u32,
    /// Segments that a receive entry has room for.
    pub max_receive_segments: u32,
    /// Event queue for the QP's events.
    pub eq: u32,
    /// Payload of one message at most, bytes.
    pub max_message: u64,
    /// Under which name the QP binds narrow windows: QPs of one domain with the same name are one
    /// owner. 0: the QP is an owner of its own.
    pub owner: u64,
}

/// Arguments of [`Opcode::JoinGroup`] and [`Opcode::LeaveGroup`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Group {
    /// The group's GID: a multicast address of IPv6, or one of IPv4 mapped into IPv6.
    pub gid: [u8; 16],
}

/// State of a queue pair (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpState {
    /// Nothing may be posted.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained.
    Sqd = 4,
    /// Everything is flushed.
    Error = 6,
}

impl QpState {
    /// Reads a state.
    pub const fn from_word(word: u32) -> Option<QpState> {
        Some(match word {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            4 => QpState::Sqd,
            6 => QpState::Error,
            _ => return None,
        })
    }
}

bitflags! {
    /// Which fields of [`ModifyQp`] are valid.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct QpMask: u32 {
        /// `state`.
        const STATE = 1 << 0;
        /// `access`.
        const ACCESS = 1 << 1;
        /// `qkey`.
        const QKEY = 1 << 2;
        /// `remote_gid`, `source_gid`, `hop_limit`, `traffic_class`, `flow_label`.
        const PATH = 1 << 3;
        /// `remote_qpn`.
        const REMOTE_QPN = 1 << 4;
        /// `mtu`.
        const MTU = 1 << 5;
        /// `send_psn`.
        const SEND_PSN = 1 << 6;
        /// `receive_psn`.
        const RECEIVE_PSN = 1 << 7;
        /// `timeout`.
        const TIMEOUT = 1 << 8;
        /// `retry_count`.
        const RETRY_COUNT = 1 << 9;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 10;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 11;
        /// `max_rd_atomic` (initiator depth).
        const MAX_RD_ATOMIC = 1 << 12;
        /// `max_dest_rd_atomic` (responder resources).
        const MAX_DEST_RD_ATOMIC = 1 << 13;
        /// `soft_watermark` and `hard_watermark`.
        const WATERMARKS = 1 << 14;
        /// `max_message`; in any state.
        const MAX_MESSAGE = 1 << 15;
        /// `level`; of a virtual interface, with the transition to RESET.
        const LEVEL = 1 << 16;
        /// `pd`; of a virtual interface, with the transition to RESET.
        const PD = 1 << 17;
        /// `qpn`; of a virtual interface, with the transition to RESET.
        const QPN = 1 << 18;
        /// No field: the receives of a virtual interface stay posted at the transition to RESET,
        /// unless it is in ERROR, or a message has taken them.
        const KEEP_RECEIVES = 1 << 19;
        /// `stream`, `stream_flags`; of an iWARP queue pair, with the transition from INIT to RTR.
        const STREAM = 1 << 20;
    }
}

bitflags! {
    /// [`ModifyQp::stream_flags`]: what both ends of the stream have agreed on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct StreamFlags: u32 {
        /// FPDUs have CRCs.
        const CRC = 1 << 0;
        /// This end has sent the Reply. It sends nothing before the first FPDU of the peer, unless
        /// UNASKED is set.
        const RESPONDER = 1 << 1;
        /// This end, which has sent the Request, sends an RDMA Write of no bytes first, so that the
        /// peer may send.
        const ANNOUNCE = 1 << 2;
        /// This end, which has sent the Reply, may send when the peer has acknowledged the Reply
        /// and then sent nothing for 125 to 250 ms.
        const UNASKED = 1 << 3;
    }
}

/// Arguments of [`Opcode::ModifyQp`]. A refused command changes nothing.
///
/// Required fields: to INIT none (`access`, or `qkey` on datagrams, may be set); INIT to RTR: PATH,
/// REMOTE_QPN, MTU, RECEIVE_PSN, and on RC MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER; RTR to RTS: SEND_PSN,
/// and on RC TIMEOUT, RETRY_COUNT, RNR_RETRY, MAX_RD_ATOMIC. On UC the fields that only RC requires
/// are allowed and have no effect. Datagrams require none. iWARP: INIT to RTR: STREAM,
/// MAX_RD_ATOMIC, MAX_DEST_RD_ATOMIC; to RTS none. Any state to RESET or ERROR: none.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyQp {
    /// [`QpMask`].
    pub mask: u32,
    /// A [`QpState`].
    pub state: u32,
    /// Remote rights of the peer on any key: [`crate::wqe::LinkFlags`] REMOTE_*.
    pub access: u32,
    /// Queue key of a datagram QP.
    pub qkey: u32,
    /// The peer's GID; any value is accepted.
    pub remote_gid: [u8; 16],
    /// The peer's QP number.
    pub remote_qpn: u32,
    /// Path MTU in bytes: a power of two from 256 to 4096, not above the port's.
    pub mtu: u32,
    /// First PSN to send.
    pub send_psn: u32,
    /// First PSN expected.
    pub receive_psn: u32,
    /// Flow label.
    pub flow_label: u32,
    /// Source GID's index.
    pub source_gid: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Local ACK timeout: 4.096 us * 2^timeout; 0 is for ever.
    pub timeout: u8,
    /// Retries after a timeout or sequence error, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAK, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// RNR NAK timer field that this side sends (IBTA table 46), 0 to 31.
    pub min_rnr_timer: u8,
    /// Outstanding RDMA Reads and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Outstanding RDMA Reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Reliability level of a virtual interface: a [`Reliability`](crate::vi::Reliability).
    pub level: u8,
    /// Reserved.
    pub reserved: [u8; 2],
    /// With an SRQ: receives in use by this QP above which an event is raised once; 0 none.
    pub soft_watermark: u32,
    /// With an SRQ: receives in use by this QP above which the connection is broken; 0 none.
    pub hard_watermark: u32,
    /// Payload of one message at most, bytes; replaces the value that the queue pair was created
    /// with.
    pub max_message: u64,
    /// Protection domain of a virtual interface.
    pub pd: u32,
    /// The number of a virtual interface from now on: of the same slot.
    pub qpn: u32,
    /// The stream whose bytes are FPDUs from now on. It is connected, and what has arrived is the
    /// first of them. The number is free again: the queue pair owns the stream.
    pub stream: u32,
    /// [`StreamFlags`].
    pub stream_flags: u32,
}

/// Arguments of [`Opcode::DestroyQp`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyQp {
    /// 1: the command is refused (`Busy`) while the QP's owner has narrow windows bound; 0: it is
    /// not.
    pub unless_bound: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Result of [`Opcode::QueryQp`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpInfo {
    /// A [`QpState`].
    pub state: u32,
    /// Send-queue blocks taken since creation.
    pub send_head: u32,
    /// Receive entries taken since creation.
    pub receive_head: u32,
    /// The status that moved it to ERROR, a [`crate::cqe::Status`].
    pub error: u32,
    /// Next PSN to send.
    pub send_psn: u32,
    /// Next PSN expected.
    pub receive_psn: u32,
    /// Narrow windows that are bound by the QP's owner.
    pub windows: u32,
    /// iWARP, after a Terminate that quotes a segment: its STag if it is tagged, or its message's
    /// number; else 0.
    pub quoted: u32,
    /// The quoted segment's tagged offset if it is tagged, or its queue; else 0.
    pub quoted_offset: u64,
}

const _: () = assert!(QpType::from_word(crate::vi::QP_TYPE).is_none(), "each type has a number of its own");
const _: () = assert!(size_of::<ModifyQp>() <= ARGS_SIZE && size_of::<CreateQp>() <= ARGS_SIZE);
const _: () = assert!(size_of::<QpInfo>() <= RESULT_SIZE);

//! Queue pairs that get a stream.

use iwarp::mpa::negotiation::Agreed;
use nic_abi::admin::{ModifyQp, QpMask, QpState, StreamFlags};
use platform::planted::{Bug, planted};

use crate::Error;
use crate::qp_common::Common;

/// What a connection needs of its queue pair, which this protocol names by this trait: the type
/// names the agent, and the agent this protocol.
pub(crate) trait Bound: Send + Sync {
    fn common(&self) -> &Common;

    fn modify(&self, modify: &ModifyQp) -> Result<(), Error>;

    /// Flushes what is outstanding, and ends the stream.
    fn flush(&self) -> Result<(), Error>;
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator,
    Responder,
}

/// INIT to RTR: the queue pair gets a stream. `frames`: the ends have exchanged a Request and a
/// Reply.
pub(super) fn to_rtr(agreed: &Agreed, role: Role, frames: bool, stream: u32) -> ModifyQp {
    let mask = QpMask::STATE | QpMask::STREAM | QpMask::MAX_RD_ATOMIC | QpMask::MAX_DEST_RD_ATOMIC;
    let mut flags = StreamFlags::empty();
    flags.set(StreamFlags::CRC, agreed.crc && !planted(Bug::FpduCrcIgnored));
    flags.set(StreamFlags::RESPONDER, role == Role::Responder);
    // The passive side's consumer may be the one who speaks first.
    flags.set(StreamFlags::ANNOUNCE, role == Role::Initiator);
    // Another initiator may not announce itself, and listen. Without frames nothing says that it
    // does not wait for plain bytes any more.
    flags.set(StreamFlags::UNASKED, role == Role::Responder && frames);
    let depth = |count: u16| count.try_into().unwrap_or(u8::MAX);
    ModifyQp {
        mask: mask.bits(),
        state: QpState::Rtr as u32,
        max_rd_atomic: depth(agreed.ord),
        max_dest_rd_atomic: depth(agreed.ird),
        stream,
        stream_flags: flags.bits(),
        ..ModifyQp::default()
    }
}

/// RTR to RTS.
pub(super) fn to_rts() -> ModifyQp {
    ModifyQp { mask: QpMask::STATE.bits(), state: QpState::Rts as u32, ..ModifyQp::default() }
}

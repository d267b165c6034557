//! The bytes of private data that InfiniBand's messages carry (IBTA 12.6, 12.11).

/// REQ.
pub(crate) const CONNECT: usize = 92;
/// The lesser of REP (two-way, and three-way passive) and RTU (three-way active).
pub(crate) const ACCEPT: usize = 196;
/// REJ.
pub(crate) const REJECT: usize = 148;
/// The lesser of DREQ and REJ (appendix A).
pub(crate) const DISCONNECT: usize = 148;
/// SIDR_REQ.
pub(crate) const UD_REQUEST: usize = 216;
/// SIDR_REP.
pub(crate) const UD_REPLY: usize = 136;

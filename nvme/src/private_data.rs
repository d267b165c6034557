//! The private data of the connection manager's messages (fabrics 7.3, RDMA transport).
//!
//! The connection manager's messages have more room, and fill it with zeros: what follows the
//! structure is ignored.

use core::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RDMA_CM_REQUEST: the host asks for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Request {
    /// Record Format: 0.
    pub recfmt: U16,
    /// Queue ID; 0 for the admin queue.
    pub qid: U16,
    /// RDMA QP Host Receive Queue Size: how many responses the host has room for.
    pub hrqsize: U16,
    /// RDMA QP Host Send Queue Size: how many commands the host sends at once, 0-based.
    pub hsqsize: U16,
    /// Controller ID, of hosts after 1.1; reserved before.
    pub cntlid: U16,
    _reserved_10: [u8; 22],
}

/// RDMA_CM_ACCEPT: the controller accepts the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Accept {
    /// Record Format: 0.
    pub recfmt: U16,
    /// RDMA QP Controller Receive Queue Size: how many commands the controller has room for.
    pub crqsize: U16,
    _reserved_4: [u8; 28],
}

/// RDMA_CM_REJECT: the controller refuses the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reject {
    /// Record Format: 0.
    pub recfmt: U16,
    /// Status: [`RejectCode`].
    pub sts: U16,
}

const _: () = assert!(size_of::<Request>() == 32);
const _: () = assert!(size_of::<Accept>() == 32);
const _: () = assert!(size_of::<Reject>() == 4);

/// Why a controller refuses a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RejectCode {
    /// Invalid Private Data Length.
    InvalidLength = 1,
    /// Invalid RECFMT.
    InvalidRecfmt = 2,
    /// Invalid QID.
    InvalidQid = 3,
    /// Invalid HSQSIZE.
    InvalidHsqsize = 4,
    /// Invalid HRQSIZE.
    InvalidHrqsize = 5,
    /// No Resources.
    NoResources = 6,
    /// Invalid IRD: the depth of incoming RDMA Reads.
    InvalidIrd = 7,
    /// Invalid ORD: the depth of outgoing RDMA Reads.
    InvalidOrd = 8,
    /// Invalid CNTLID, of controllers after 1.1.
    InvalidCntlid = 9,
}

impl RejectCode {
    /// The code with this number.
    pub fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::InvalidLength,
            2 => Self::InvalidRecfmt,
            3 => Self::InvalidQid,
            4 => Self::InvalidHsqsize,
            5 => Self::InvalidHrqsize,
            6 => Self::NoResources,
            7 => Self::InvalidIrd,
            8 => Self::InvalidOrd,
            9 => Self::InvalidCntlid,
            _ => return None,
        })
    }
}

impl fmt::Display for RejectCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidLength => "the private data have a wrong length",
            Self::InvalidRecfmt => "the record format is unknown",
            Self::InvalidQid => "the queue id is invalid",
            Self::InvalidHsqsize => "HSQSIZE is invalid",
            Self::InvalidHrqsize => "HRQSIZE is invalid",
            Self::NoResources => "the controller has no resources",
            Self::InvalidIrd => "the depth of incoming RDMA Reads is invalid",
            Self::InvalidOrd => "the depth of outgoing RDMA Reads is invalid",
            Self::InvalidCntlid => "the controller id is invalid",
        })
    }
}

impl core::error::Error for RejectCode {}

impl Request {
    /// The request for a queue.
    pub fn new(qid: u16, hrqsize: u16, hsqsize: u16) -> Self {
        Self { qid: qid.into(), hrqsize: hrqsize.into(), hsqsize: hsqsize.into(), ..Self::new_zeroed() }
    }

    /// What a host sent.
    ///
    /// # Errors
    ///
    /// The code to reject it with, for a wrong length or record format. The values are the caller's
    /// to judge.
    pub fn parse(bytes: &[u8]) -> Result<Self, RejectCode> {
        let (request, _) = Self::read_from_prefix(bytes).map_err(|_| RejectCode::InvalidLength)?;
        if request.recfmt.get() == 0 { Ok(request) } else { Err(RejectCode::InvalidRecfmt) }
    }
}

impl Accept {
    /// The answer of a controller that has room for `crqsize` commands.
    pub fn new(crqsize: u16) -> Self {
        Self { crqsize: crqsize.into(), ..Self::new_zeroed() }
    }

    /// What a controller sent.
    ///
    /// # Errors
    ///
    /// What is wrong with it: the length or the record format.
    pub fn parse(bytes: &[u8]) -> Result<Self, RejectCode> {
        let (accept, _) = Self::read_from_prefix(bytes).map_err(|_| RejectCode::InvalidLength)?;
        if accept.recfmt.get() == 0 { Ok(accept) } else { Err(RejectCode::InvalidRecfmt) }
    }
}

impl Reject {
    /// The refusal for this reason.
    pub fn new(code: RejectCode) -> Self {
        Self { recfmt: U16::ZERO, sts: (code as u16).into() }
    }

    /// Why a controller refuses, if it says so: nothing if the bytes are not a controller's, as
    /// when no one listens.
    pub fn parse(bytes: &[u8]) -> Option<RejectCode> {
        let (reject, _) = Self::read_from_prefix(bytes).ok()?;
        if reject.recfmt.get() == 0 { RejectCode::from_number(reject.sts.get()) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_request_of_linux() {
        // The admin queue of Linux: HRQSIZE 32, HSQSIZE 31, in the 56 bytes of a REQ.
        let mut bytes = [0; 56];
        bytes[4] = 32;
        bytes[6] = 31;
        assert_eq!(Request::parse(&bytes), Ok(Request::new(0, 32, 31)));
        assert_eq!(Request::new(0, 32, 31).as_bytes(), &bytes[..32]);
        assert_eq!(Request::new(0x0102, 0x0304, 0x0506).as_bytes()[..8], [0, 0, 2, 1, 4, 3, 6, 5]);
        assert_eq!(Request::parse(&bytes[..32]), Ok(Request::new(0, 32, 31)));
        assert_eq!(Request::parse(&bytes[..31]), Err(RejectCode::InvalidLength));
        assert_eq!(Request::parse(&[]), Err(RejectCode::InvalidLength));
        bytes[1] = 1;
        assert_eq!(Request::parse(&bytes), Err(RejectCode::InvalidRecfmt));
    }

    #[test]
    fn an_acceptance() {
        let accept = Accept::new(0x0102);
        assert_eq!(accept.as_bytes()[..5], [0, 0, 2, 1, 0]);
        assert_eq!(Accept::parse(accept.as_bytes()), Ok(accept));
        assert_eq!(Accept::parse(&accept.as_bytes()[..31]), Err(RejectCode::InvalidLength));
        assert_eq!(Accept::parse(&[1; 32]), Err(RejectCode::InvalidRecfmt));
    }

    #[test]
    fn rejections() {
        assert_eq!(Reject::new(RejectCode::NoResources).as_bytes(), [0, 0, 6, 0]);
        for number in 1..=9 {
            let code = RejectCode::from_number(number).unwrap();
            assert_eq!(code as u16, number);
            assert_eq!(Reject::parse(Reject::new(code).as_bytes()), Some(code));
            assert!(!code.to_string().is_empty());
        }
        assert_eq!(Reject::parse(&[0; 148]), None);
        assert_eq!(Reject::parse(&[0, 0, 10, 0]), None);
        assert_eq!(Reject::parse(&[1, 0, 1, 0]), None);
        assert_eq!(Reject::parse(&[0, 0, 1]), None);
    }
}

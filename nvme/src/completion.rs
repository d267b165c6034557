//! The completion queue entry, which is a response capsule of fabrics (base 4.6; fabrics 2.2).

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// Dwords 0 and 1: the result of the command. Only fabrics' commands use the upper half.
    pub result: U64,
    /// SQ Head Pointer.
    pub sqhd: U16,
    /// SQ Identifier; reserved in a response capsule.
    pub sqid: U16,
    /// Command Identifier.
    pub cid: U16,
    status: U16,
}

const _: () = assert!(size_of::<Completion>() == 16);

impl Completion {
    /// The completion of command `cid`, with result 0.
    pub fn new(cid: u16, status: Status) -> Self {
        Self {
            result: U64::ZERO,
            sqhd: U16::ZERO,
            sqid: U16::ZERO,
            cid: cid.into(),
            status: status.to_wire().into(),
        }
    }

    /// The same with a result.
    pub fn with_result(mut self, result: u64) -> Self {
        self.result = result.into();
        self
    }

    /// The same with this head of the submission queue.
    pub fn with_sqhd(mut self, sqhd: u16) -> Self {
        self.sqhd = sqhd.into();
        self
    }

    /// The status of the command.
    pub fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn the_bytes_of_a_completion() {
        assert_eq!(offset_of!(Completion, sqhd), 8);
        assert_eq!(offset_of!(Completion, cid), 12);
        assert_eq!(offset_of!(Completion, status), 14);
        let status = Status::CONNECT_INVALID_PARAMETERS.dnr();
        let completion = Completion::new(0x1234, status).with_result(0x10100).with_sqhd(7);
        assert_eq!(completion.as_bytes(), [0, 1, 1, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0x34, 0x12, 0x04, 0x83]);
        assert_eq!(completion.status(), status);
        assert_eq!(Completion::new(0, Status::SUCCESS).as_bytes(), [0; 16]);
    }
}

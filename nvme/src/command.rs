//! The submission queue entry, which begins a command capsule of fabrics (base 4.2; fabrics 2.1).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::dsm;
use crate::sgl::Descriptor;

/// Opcodes.
pub mod opcode {
    /// A command of fabrics, on every queue: [`super::Command::fctype`] says which.
    pub const FABRICS: u8 = 0x7f;

    /// Admin commands (base 5).
    pub mod admin {
        /// Get Log Page.
        pub const GET_LOG_PAGE: u8 = 0x02;
        /// Identify.
        pub const IDENTIFY: u8 = 0x06;
        /// Abort.
        pub const ABORT: u8 = 0x08;
        /// Set Features.
        pub const SET_FEATURES: u8 = 0x09;
        /// Get Features.
        pub const GET_FEATURES: u8 = 0x0a;
        /// Asynchronous Event Request.
        pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
        /// Keep Alive.
        pub const KEEP_ALIVE: u8 = 0x18;
    }

    /// Commands of the NVM command set (base 6).
    pub mod io {
        /// Flush.
        pub const FLUSH: u8 = 0x00;
        /// Write.
        pub const WRITE: u8 = 0x01;
        /// Read.
        pub const READ: u8 = 0x02;
        /// Compare.
        pub const COMPARE: u8 = 0x05;
        /// Write Zeroes.
        pub const WRITE_ZEROES: u8 = 0x08;
        /// Dataset Management.
        pub const DATASET_MANAGEMENT: u8 = 0x09;
        /// Verify.
        pub const VERIFY: u8 = 0x0c;
        /// Reservation Register.
        pub const RESERVATION_REGISTER: u8 = 0x0d;
        /// Reservation Report.
        pub const RESERVATION_REPORT: u8 = 0x0e;
        /// Reservation Acquire.
        pub const RESERVATION_ACQUIRE: u8 = 0x11;
        /// Reservation Release.
        pub const RESERVATION_RELEASE: u8 = 0x15;
        /// Copy.
        pub const COPY: u8 = 0x19;
    }
}

/// Which way a command's data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It has no data.
    None,
    /// From the host to the controller.
    ToController,
    /// From the controller to the host.
    ToHost,
    /// Both ways. No command of the specification does that.
    Both,
}

/// A submission queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Command {
    /// Opcode.
    pub opcode: u8,
    /// Bits 1:0 FUSE, bits 7:6 PSDT.
    pub flags: u8,
    /// Command Identifier.
    pub cid: U16,
    /// Namespace Identifier; its first byte is FCTYPE in a command of fabrics.
    pub nsid: U32,
    /// Dword 2.
    pub cdw2: U32,
    /// Dword 3.
    pub cdw3: U32,
    /// Metadata Pointer.
    pub mptr: U64,
    /// SGL Entry 1: where the data are.
    pub sgl: Descriptor,
    /// Dword 10.
    pub cdw10: U32,
    /// Dword 11.
    pub cdw11: U32,
    /// Dword 12.
    pub cdw12: U32,
    /// Dword 13.
    pub cdw13: U32,
    /// Dword 14.
    pub cdw14: U32,
    /// Dword 15.
    pub cdw15: U32,
}

const _: () = assert!(size_of::<Command>() == 64);

/// [`Command::flags`] of a command whose data an SGL describes, as all of fabrics do.
pub const FLAGS_SGL: u8 = 0x40;

/// [`Command::fuse`]: whether a command is carried out together with its neighbour (base 4.2).
pub mod fuse {
    /// A command of its own.
    pub const NONE: u8 = 0;
    /// The first of two that are carried out together.
    pub const FIRST: u8 = 1;
    /// The second one, which is the next on the queue.
    pub const SECOND: u8 = 2;
}

// Dword 12 of the commands that name logical blocks.
const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;

impl Command {
    /// A command without data, all of whose other fields are 0.
    pub fn new(opcode: u8) -> Self {
        Self { opcode, flags: FLAGS_SGL, sgl: Descriptor::none(), ..Self::new_zeroed() }
    }

    /// A command on `nlb` logical blocks from `slba` on: Read, Write, Compare or Write Zeroes.
    ///
    /// # Panics
    ///
    /// If `nlb` is not 1 to 65,536.
    pub fn blocks(opcode: u8, nsid: u32, slba: u64, nlb: u32) -> Self {
        assert!((1..=0x1_0000).contains(&nlb), "a command on {nlb} blocks");
        let mut command = Self { nsid: nsid.into(), cdw12: (nlb - 1).into(), ..Self::new(opcode) };
        command.cdw10 = (slba as u32).into();
        command.cdw11 = ((slba >> 32) as u32).into();
        command
    }

    /// A Flush.
    pub fn flush(nsid: u32) -> Self {
        Self { nsid: nsid.into(), ..Self::new(opcode::io::FLUSH) }
    }

    /// A Dataset Management for `ranges` ranges.
    ///
    /// # Panics
    ///
    /// If `ranges` is not 1 to [`dsm::MAX_RANGES`].
    pub fn dataset_management(nsid: u32, ranges: usize, attributes: dsm::Attributes) -> Self {
        assert!((1..=dsm::MAX_RANGES).contains(&ranges), "a command on {ranges} ranges");
        Self {
            nsid: nsid.into(),
            cdw10: (ranges as u32 - 1).into(),
            cdw11: attributes.bits().into(),
            ..Self::new(opcode::io::DATASET_MANAGEMENT)
        }
    }

    /// An Abort of command `cid` of queue `sqid` (base 5.1). Bit 0 of the result is set if it was
    /// *not* aborted.
    pub fn abort(sqid: u16, cid: u16) -> Self {
        let cdw10 = u32::from(cid) << 16 | u32::from(sqid);
        Self { cdw10: cdw10.into(), ..Self::new(opcode::admin::ABORT) }
    }

    /// The same with this identifier.
    pub fn with_cid(mut self, cid: u16) -> Self {
        self.cid = cid.into();
        self
    }

    /// The same with its data here.
    pub fn with_sgl(mut self, sgl: Descriptor) -> Self {
        self.sgl = sgl;
        self
    }

    /// The same with Force Unit Access.
    pub fn with_fua(mut self) -> Self {
        self.cdw12 |= U32::new(FUA);
        self
    }

    /// The same Write Zeroes with the Deallocate bit.
    pub fn with_deallocate(mut self) -> Self {
        self.cdw12 |= U32::new(DEAC);
        self
    }

    /// The same as a part of a fused operation: one of [`fuse`].
    pub fn with_fuse(mut self, fuse: u8) -> Self {
        self.flags = self.flags & !3 | fuse & 3;
        self
    }

    /// Fused Operation: one of [`fuse`]; 3 is none of them.
    pub fn fuse(&self) -> u8 {
        self.flags & 3
    }

    /// PRP or SGL for Data Transfer: 0 for PRPs, 1 and 2 for SGLs. On fabrics it is 1.
    pub fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// Which way the data go: the opcode says so, or the type of a command of fabrics (base 5 and
    /// 6; fabrics 3).
    pub fn direction(&self) -> Direction {
        let code = if self.opcode == opcode::FABRICS { self.fctype() } else { self.opcode };
        match code & 3 {
            0 => Direction::None,
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => Direction::Both,
        }
    }

    /// Fabrics Command Type, if the opcode is [`opcode::FABRICS`].
    pub fn fctype(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// Whether a command of an I/O queue names a range of logical blocks.
    pub fn has_blocks(&self) -> bool {
        matches!(
            self.opcode,
            opcode::io::READ
                | opcode::io::WRITE
                | opcode::io::COMPARE
                | opcode::io::WRITE_ZEROES
                | opcode::io::VERIFY
        )
    }

    /// Starting LBA of a command on logical blocks.
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw11.get()) << 32 | u64::from(self.cdw10.get())
    }

    /// The number of logical blocks, 1 to 65,536.
    pub fn nlb(&self) -> u32 {
        (self.cdw12.get() & 0xffff) + 1
    }

    /// Force Unit Access.
    pub fn fua(&self) -> bool {
        self.cdw12.get() & FUA != 0
    }

    /// The Deallocate bit of a Write Zeroes.
    pub fn deallocate(&self) -> bool {
        self.cdw12.get() & DEAC != 0
    }

    /// Protection Information Field of a command on logical blocks. A namespace without protection
    /// information ignores it.
    pub fn prinfo(&self) -> u8 {
        (self.cdw12.get() >> 26) as u8 & 0xf
    }

    /// The number of ranges of a Dataset Management, 1 to [`dsm::MAX_RANGES`].
    pub fn dsm_ranges(&self) -> usize {
        (self.cdw10.get() & 0xff) as usize + 1
    }

    /// What a Dataset Management says about its ranges. Unknown bits are kept.
    pub fn dsm_attributes(&self) -> dsm::Attributes {
        dsm::Attributes::from_bits_retain(self.cdw11.get())
    }

    /// The command that an Abort is about: its queue and its identifier.
    pub fn aborts(&self) -> (u16, u16) {
        let word = self.cdw10.get();
        (word as u16, (word >> 16) as u16)
    }
}

//! The commands of fabrics (fabrics 3): all have the opcode [`crate::command::opcode::FABRICS`],
//! and a type in place of the first byte of the NSID.

mod authentication;
mod property;

pub use authentication::AuthenticationCommand;
pub use property::{Cap, Cc, Csts, Property, Shst, VERSION};

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref,
};

use crate::command::{FLAGS_SGL, opcode};
use crate::nqn::FIELD_LEN;
use crate::sgl::Descriptor;
use crate::{Command, Nqn};

/// Fabrics Command Types.
pub mod fctype {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// [`ConnectData::cntlid`] of a host that takes any controller (dynamic controller model).
pub const CNTLID_DYNAMIC: u16 = 0xffff;

/// [`ConnectData::cntlid`] of a host that takes any controller (static controller model).
pub const CNTLID_STATIC: u16 = 0xfffe;

/// The least number of entries of an admin submission queue.
pub const ADMIN_SQ_MIN: u16 = 32;

/// The result of a Connect that fails with [`crate::Status::CONNECT_INVALID_PARAMETERS`] (fabrics
/// 3.3): IPO, the place of the field that is invalid, in bits 15:0, and IATTR bit 0, whether that
/// is a place in the data, in bit 16.
pub mod invalid_parameter {
    const IN_DATA: u32 = 1 << 16;

    /// The command's QID.
    pub const QID: u32 = 0x2a;
    /// The command's SQSIZE.
    pub const SQSIZE: u32 = 0x2c;
    /// The command's CATTR.
    pub const CATTR: u32 = 0x2e;
    /// The command's KATO.
    pub const KATO: u32 = 0x30;
    /// The data's HOSTID.
    pub const HOSTID: u32 = IN_DATA;
    /// The data's CNTLID.
    pub const CNTLID: u32 = IN_DATA | 0x10;
    /// The data's SUBNQN.
    pub const SUBNQN: u32 = IN_DATA | 0x100;
    /// The data's HOSTNQN.
    pub const HOSTNQN: u32 = IN_DATA | 0x200;
}

/// Bit of the result of a Connect that succeeds: the host has to authenticate before it sends
/// anything else (AUTHREQ, ATR).
pub const AUTHENTICATION_REQUIRED: u64 = 1 << 17;

bitflags! {
    /// [`Connect::cattr`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ConnectAttributes: u8 {
        /// Priority Class, for weighted round robin.
        const PRIORITY = 0b11;
        /// Disable SQ Flow Control.
        const DISABLE_SQ_FLOW_CONTROL = 1 << 2;
        /// Individual I/O Queue Deletion Support.
        const QUEUE_DELETION = 1 << 3;
    }
}

/// Lets commands of fabrics be seen as commands, and commands as these.
macro_rules! views {
    ($($view:ident)*) => { $(
        const _: () = assert!(size_of::<$view>() == size_of::<Command>());

        impl $view {
            /// The command's fields.
            pub fn of(command: &Command) -> &Self {
                transmute_ref!(command)
            }

            /// The command.
            pub fn command(&self) -> Command {
                transmute!(*self)
            }
        }
    )* };
}

views!(AuthenticationCommand Connect PropertyGet PropertySet);

/// A Connect command (fabrics 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Connect {
    opcode: u8,
    flags: u8,
    /// Command Identifier.
    pub cid: U16,
    fctype: u8,
    _reserved_5: [u8; 19],
    /// Where the [`ConnectData`] are.
    pub sgl: Descriptor,
    /// Record Format: 0.
    pub recfmt: U16,
    /// Queue ID; 0 for the admin queue.
    pub qid: U16,
    /// Submission Queue Size, 0-based.
    pub sqsize: U16,
    /// Connect Attributes: [`ConnectAttributes`].
    pub cattr: u8,
    _reserved_47: u8,
    /// Keep Alive Timeout in milliseconds; 0 for none.
    pub kato: U32,
    _reserved_52: [u8; 12],
}

impl Connect {
    /// A Connect of queue `qid` with `sqsize + 1` entries, which still lacks its data's place.
    pub fn new(qid: u16, sqsize: u16, kato: u32) -> Self {
        Self {
            opcode: opcode::FABRICS,
            flags: FLAGS_SGL,
            fctype: fctype::CONNECT,
            sgl: Descriptor::none(),
            qid: qid.into(),
            sqsize: sqsize.into(),
            kato: kato.into(),
            ..Self::new_zeroed()
        }
    }

    /// Connect Attributes; unknown ones are left out.
    pub fn attributes(&self) -> ConnectAttributes {
        ConnectAttributes::from_bits_truncate(self.cattr)
    }
}

/// The data of a Connect (fabrics 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host Identifier.
    pub hostid: [u8; 16],
    /// Controller ID: which controller the host wants, [`CNTLID_DYNAMIC`] or [`CNTLID_STATIC`] for
    /// the admin queue, the one it got there for an I/O queue.
    pub cntlid: U16,
    _reserved_18: [u8; 238],
    /// NVM Subsystem NVMe Qualified Name: [`Nqn::read`] reads it.
    pub subnqn: [u8; FIELD_LEN],
    /// Host NVMe Qualified Name.
    pub hostnqn: [u8; FIELD_LEN],
    _reserved_768: [u8; 256],
}

const _: () = assert!(size_of::<ConnectData>() == 1024);

impl ConnectData {
    /// The data with these names.
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: Nqn<'_>, hostnqn: Nqn<'_>) -> Self {
        let mut data = Self { hostid, cntlid: cntlid.into(), ..Self::new_zeroed() };
        subnqn.write(&mut data.subnqn);
        hostnqn.write(&mut data.hostnqn);
        data
    }
}

/// Bytes of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PropertySize {
    /// 4 bytes.
    Four = 0,
    /// 8 bytes.
    Eight = 1,
}

impl PropertySize {
    /// The size in bits 2:0 of ATTRIB; nothing if it is reserved.
    fn of(attrib: u8) -> Option<Self> {
        match attrib & 7 {
            0 => Some(Self::Four),
            1 => Some(Self::Eight),
            _ => None,
        }
    }
}

/// A Property Get command (fabrics 3.5). The result of its completion is the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PropertyGet {
    opcode: u8,
    flags: u8,
    /// Command Identifier.
    pub cid: U16,
    fctype: u8,
    _reserved_5: [u8; 19],
    sgl: Descriptor,
    /// Attributes: the size in bits 2:0.
    pub attrib: u8,
    _reserved_41: [u8; 3],
    /// Offset of the property.
    pub offset: U32,
    _reserved_48: [u8; 16],
}

impl PropertyGet {
    /// The command that gets a property.
    pub fn new(property: Property) -> Self {
        Self {
            opcode: opcode::FABRICS,
            flags: FLAGS_SGL,
            fctype: fctype::PROPERTY_GET,
            sgl: Descriptor::none(),
            attrib: property.size() as u8,
            offset: (property as u32).into(),
            ..Self::new_zeroed()
        }
    }

    /// The size of the property; nothing if it is reserved.
    pub fn size(&self) -> Option<PropertySize> {
        PropertySize::of(self.attrib)
    }
}

/// A Property Set command (fabrics 3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PropertySet {
    opcode: u8,
    flags: u8,
    /// Command Identifier.
    pub cid: U16,
    fctype: u8,
    _reserved_5: [u8; 19],
    sgl: Descriptor,
    /// Attributes: the size in bits 2:0.
    pub attrib: u8,
    _reserved_41: [u8; 3],
    /// Offset of the property.
    pub offset: U32,
    /// The value; its upper half is ignored for 4 bytes.
    pub value: U64,
    _reserved_56: [u8; 8],
}

impl PropertySet {
    /// The command that sets a property.
    pub fn new(property: Property, value: u64) -> Self {
        Self {
            opcode: opcode::FABRICS,
            flags: FLAGS_SGL,
            fctype: fctype::PROPERTY_SET,
            sgl: Descriptor::none(),
            attrib: property.size() as u8,
            offset: (property as u32).into(),
            value: value.into(),
            ..Self::new_zeroed()
        }
    }

    /// The size of the property; nothing if it is reserved.
    pub fn size(&self) -> Option<PropertySize> {
        PropertySize::of(self.attrib)
    }
}

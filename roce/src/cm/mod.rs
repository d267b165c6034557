//! The communication manager's messages (IBTA vol. 1 section 12.6): a [`Message`] for each
//! attribute id, each in a file of its own.
//!
//! A message's `Body` is the layout of the 232 bytes behind the common MAD header; its `Repr` is
//! their decoded form. Private data has a fixed size in each message; the sender pads it with
//! zeroes.

pub mod dreq;
pub mod ip_cm;
pub mod lap;
pub mod mra;
pub mod path;
pub mod redirection;
pub mod rej;
pub mod rep;
pub mod req;
pub mod rtu;
pub mod sidr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Error;
use crate::mad::{self, BODY_LEN};

/// The management class of communication management (section 16.7.1).
pub const CLASS: u8 = 7;
/// The version of the class.
pub const CLASS_VERSION: u8 = 2;
/// The method of all its messages: Send.
const METHOD_SEND: u8 = 3;

/// Names one end of a connection in the messages: chosen by the end that it names (section 12.9.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// How many RDMA Reads and atomics one end of a connection serves and has outstanding at once
/// (tables 106 and 110; IT-API 2.1 chapter 5.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadDepths {
    /// How many of the peer's this end serves at once (IT-API's IRD).
    pub responder_resources: u8,
    /// How many of its own this end has outstanding at once (IT-API's ORD).
    pub initiator_depth: u8,
}

impl ReadDepths {
    /// Whether each end serves as many as the other one may have outstanding.
    pub const fn fit(self, peer: ReadDepths) -> bool {
        self.initiator_depth <= peer.responder_resources && peer.initiator_depth <= self.responder_resources
    }
}

/// Declares [`Message`] and those of its methods that have an arm for each kind.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident($repr:ty) = $attr:literal;)*) => {
        /// A communication management message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$doc])* $name($repr),)*
        }

        impl Message {
            /// The attribute id (table 100).
            pub const fn attr_id(&self) -> u16 {
                match self {
                    $(Message::$name(_) => $attr,)*
                }
            }

            fn parse_body(attr_id: u16, body: &[u8; BODY_LEN]) -> Result<Message, Error> {
                match attr_id {
                    $($attr => Ok(Message::$name(<$repr>::parse(body)?)),)*
                    _ => Err(Error::Field { field: "CM attribute id", value: attr_id.into() }),
                }
            }

            fn emit_body(&self, body: &mut [u8; BODY_LEN]) {
                match self {
                    $(Message::$name(repr) => repr.emit(body),)*
                }
            }
        }

        $(impl From<$repr> for Message {
            fn from(repr: $repr) -> Message {
                Message::$name(repr)
            }
        })*
    };
}

messages! {
    /// Request for communication.
    Req(req::Repr) = 0x10;
    /// Message receipt acknowledgement: the sender needs more time for its answer.
    Mra(mra::Repr) = 0x11;
    /// Rejection.
    Rej(rej::Repr) = 0x12;
    /// Reply to a request for communication.
    Rep(rep::Repr) = 0x13;
    /// Ready to use.
    Rtu(rtu::Rtu) = 0x14;
    /// Request for communication release.
    Dreq(dreq::Repr) = 0x15;
    /// Reply to a request for communication release.
    Drep(rtu::Drep) = 0x16;
    /// Service id resolution request.
    SidrReq(sidr::ReqRepr) = 0x17;
    /// Service id resolution response.
    SidrRep(sidr::RepRepr) = 0x18;
    /// Load alternate path.
    Lap(lap::Repr) = 0x19;
    /// Alternate path response.
    Apr(lap::AprRepr) = 0x1a;
}

/// A message and the transaction that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The transaction id; an answer has that of what it answers.
    pub tid: u64,
    /// The message.
    pub message: Message,
}

impl Datagram {
    /// Parses the message in a management datagram.
    pub fn parse(bytes: &[u8]) -> Result<Datagram, Error> {
        let (header, body) = mad::Repr::parse(bytes)?;
        let fields = [
            ("MAD class", header.mgmt_class, CLASS),
            ("CM class version", header.class_version, CLASS_VERSION),
            ("CM method", header.method, METHOD_SEND),
        ];
        for (field, value, wanted) in fields {
            if value != wanted {
                return Err(Error::Field { field, value: value.into() });
            }
        }
        Ok(Datagram { tid: header.tid, message: Message::parse_body(header.attr_id, body)? })
    }

    /// The management datagram with this message.
    pub fn emit(&self) -> [u8; mad::LEN] {
        let mut bytes = [0; mad::LEN];
        let header = mad::Header {
            base_version: 1,
            mgmt_class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: 0.into(),
            class_specific: 0.into(),
            tid: self.tid.into(),
            attr_id: self.message.attr_id().into(),
            reserved: 0.into(),
            attr_mod: 0.into(),
        };
        if let Some((head, rest)) = bytes.split_first_chunk_mut::<{ mad::HEADER_LEN }>() {
            *head = zerocopy::transmute!(header);
            if let Some(body) = rest.first_chunk_mut() {
                self.message.emit_body(body);
            }
        }
        bytes
    }
}

/// Copies `data` into a field of private data and pads it with zeroes; `None` if it does not fit.
pub fn private_data<const N: usize>(data: &[u8]) -> Option<[u8; N]> {
    let mut field = [0; N];
    field.get_mut(..data.len())?.copy_from_slice(data);
    Some(field)
}

/// The view of a body with the layout `T`; each `Body` of this module has [`BODY_LEN`] bytes.
fn view<T>(body: &[u8; BODY_LEN]) -> Result<&T, Error>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    T::ref_from_bytes(body).map_err(|_| Error::Truncated {
        what: "CM message",
        need: size_of::<T>(),
        have: BODY_LEN,
    })
}

/// Writes a body; each `Body` of this module has [`BODY_LEN`] bytes.
fn store<T: IntoBytes + Immutable>(value: &T, body: &mut [u8; BODY_LEN]) {
    const { assert!(size_of::<T>() == BODY_LEN) }
    body.copy_from_slice(value.as_bytes());
}

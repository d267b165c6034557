//! The BTH's opcodes, and the headers that follow each (IBTA vol. 1 section 9.2.1, table 35).

use bitflags::bitflags;

use crate::Error;

bitflags! {
    /// The headers that follow the BTH, in the order in which they follow.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Headers: u8 {
        /// Datagram extended transport header.
        const DETH = 1;
        /// RDMA extended transport header.
        const RETH = 2;
        /// Atomic extended transport header.
        const ATOMIC_ETH = 4;
        /// Acknowledge extended transport header.
        const AETH = 8;
        /// Atomic acknowledge extended transport header.
        const ATOMIC_ACK_ETH = 16;
        /// Immediate data.
        const IMMEDIATE = 32;
        /// Invalidate extended transport header.
        const IETH = 64;
        /// A payload may follow.
        const PAYLOAD = 128;
    }
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal: $($header:ident)|*;)*) => {
        /// The opcode of a packet: those of the reliable and the unreliable connection, those of
        /// the unreliable datagram, and the congestion notification.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $code,)*
        }

        impl Opcode {
            /// All of them, by number.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];

            /// The opcode of a number.
            pub const fn from_u8(code: u8) -> Result<Opcode, Error> {
                match code {
                    $($code => Ok(Opcode::$name),)*
                    _ => Err(Error::Field { field: "BTH opcode", value: code as u64 }),
                }
            }

            /// The headers that follow the BTH.
            pub const fn headers(self) -> Headers {
                match self {
                    $(Opcode::$name => Headers::empty()$(.union(Headers::$header))*,)*
                }
            }
        }
    };
}

opcodes! {
    /// The first packet of a Send.
    RcSendFirst = 0x00: PAYLOAD;
    /// A packet between the first and the last of a Send.
    RcSendMiddle = 0x01: PAYLOAD;
    /// The last packet of a Send.
    RcSendLast = 0x02: PAYLOAD;
    /// The last packet of a Send with immediate data.
    RcSendLastImmediate = 0x03: IMMEDIATE | PAYLOAD;
    /// A Send of one packet.
    RcSendOnly = 0x04: PAYLOAD;
    /// A Send of one packet with immediate data.
    RcSendOnlyImmediate = 0x05: IMMEDIATE | PAYLOAD;
    /// The first packet of an RDMA Write.
    RcWriteFirst = 0x06: RETH | PAYLOAD;
    /// A packet between the first and the last of an RDMA Write.
    RcWriteMiddle = 0x07: PAYLOAD;
    /// The last packet of an RDMA Write.
    RcWriteLast = 0x08: PAYLOAD;
    /// The last packet of an RDMA Write with immediate data.
    RcWriteLastImmediate = 0x09: IMMEDIATE | PAYLOAD;
    /// An RDMA Write of one packet.
    RcWriteOnly = 0x0a: RETH | PAYLOAD;
    /// An RDMA Write of one packet with immediate data.
    RcWriteOnlyImmediate = 0x0b: RETH | IMMEDIATE | PAYLOAD;
    /// An RDMA Read request.
    RcReadRequest = 0x0c: RETH;
    /// The first packet of an RDMA Read's answer.
    RcReadResponseFirst = 0x0d: AETH | PAYLOAD;
    /// A packet between the first and the last of an RDMA Read's answer.
    RcReadResponseMiddle = 0x0e: PAYLOAD;
    /// The last packet of an RDMA Read's answer.
    RcReadResponseLast = 0x0f: AETH | PAYLOAD;
    /// An RDMA Read's answer of one packet.
    RcReadResponseOnly = 0x10: AETH | PAYLOAD;
    /// An acknowledgement, positive or negative.
    RcAcknowledge = 0x11: AETH;
    /// An atomic operation's answer: the value that was there before.
    RcAtomicAcknowledge = 0x12: AETH | ATOMIC_ACK_ETH;
    /// Compare and swap.
    RcCompareSwap = 0x13: ATOMIC_ETH;
    /// Fetch and add.
    RcFetchAdd = 0x14: ATOMIC_ETH;
    /// The last packet of a Send that invalidates a key of the receiver's.
    RcSendLastInvalidate = 0x16: IETH | PAYLOAD;
    /// A Send of one packet that invalidates a key of the receiver's.
    RcSendOnlyInvalidate = 0x17: IETH | PAYLOAD;
    /// The first packet of a Send, on an unreliable connection.
    UcSendFirst = 0x20: PAYLOAD;
    /// A packet between the first and the last of a Send, on an unreliable connection.
    UcSendMiddle = 0x21: PAYLOAD;
    /// The last packet of a Send, on an unreliable connection.
    UcSendLast = 0x22: PAYLOAD;
    /// The last packet of a Send with immediate data, on an unreliable connection.
    UcSendLastImmediate = 0x23: IMMEDIATE | PAYLOAD;
    /// A Send of one packet, on an unreliable connection.
    UcSendOnly = 0x24: PAYLOAD;
    /// A Send of one packet with immediate data, on an unreliable connection.
    UcSendOnlyImmediate = 0x25: IMMEDIATE | PAYLOAD;
    /// The first packet of an RDMA Write, on an unreliable connection.
    UcWriteFirst = 0x26: RETH | PAYLOAD;
    /// A packet between the first and the last of an RDMA Write, on an unreliable connection.
    UcWriteMiddle = 0x27: PAYLOAD;
    /// The last packet of an RDMA Write, on an unreliable connection.
    UcWriteLast = 0x28: PAYLOAD;
    /// The last packet of an RDMA Write with immediate data, on an unreliable connection.
    UcWriteLastImmediate = 0x29: IMMEDIATE | PAYLOAD;
    /// An RDMA Write of one packet, on an unreliable connection.
    UcWriteOnly = 0x2a: RETH | PAYLOAD;
    /// An RDMA Write of one packet with immediate data, on an unreliable connection.
    UcWriteOnlyImmediate = 0x2b: RETH | IMMEDIATE | PAYLOAD;
    /// A datagram.
    UdSendOnly = 0x64: DETH | PAYLOAD;
    /// A datagram with immediate data.
    UdSendOnlyImmediate = 0x65: DETH | IMMEDIATE | PAYLOAD;
    /// A congestion notification (annex A17.9.3).
    CongestionNotification = 0x81: PAYLOAD;
}

impl Opcode {
    /// Its number.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether it belongs to the reliable connection's set.
    pub const fn is_rc(self) -> bool {
        self.code() >> 5 == 0
    }

    /// Whether it belongs to the unreliable connection's set.
    pub const fn is_uc(self) -> bool {
        self.code() >> 5 == 1
    }

    /// Whether it belongs to the unreliable datagram's set.
    pub const fn is_ud(self) -> bool {
        self.code() >> 5 == 3
    }

    /// Whether it answers a request, so that the requester receives it.
    pub const fn is_response(self) -> bool {
        matches!(self.code(), 0x0d..=0x12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_map_both_ways() {
        for code in 0..=255 {
            match Opcode::from_u8(code) {
                Ok(opcode) => assert_eq!(opcode.code(), code),
                Err(error) => {
                    assert_eq!(error, Error::Field { field: "BTH opcode", value: code.into() });
                    assert!(Opcode::ALL.iter().all(|o| o.code() != code));
                }
            }
        }
    }

    #[test]
    fn an_opcode_belongs_to_one_set() {
        assert!(Opcode::RcSendOnlyInvalidate.is_rc() && !Opcode::RcSendOnly.is_ud());
        assert!(Opcode::UcWriteLast.is_uc() && !Opcode::UcWriteLast.is_rc() && !Opcode::UdSendOnly.is_uc());
        assert!(Opcode::UdSendOnly.is_ud() && !Opcode::UdSendOnly.is_rc());
        assert!(!Opcode::CongestionNotification.is_rc() && !Opcode::CongestionNotification.is_ud());
        assert!(Opcode::RcAcknowledge.is_response() && !Opcode::RcCompareSwap.is_response());
    }
}

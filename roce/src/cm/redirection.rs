//! Redirection: the part of ClassPortInfo that names another port (IBTA vol. 1 section 13.4.8.1),
//! as SIDR_REP and REJ carry it in their additional information.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::number::U24;
use crate::{Error, Gid, PKey, QKey, Qpn};

/// The size of ClassPortInfo in bytes.
pub const LEN: usize = 72;

/// The layout on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Body {
    /// Versions, capabilities and response time of the class, which a redirection leaves out.
    class: [u8; 8],
    gid: Gid,
    /// Traffic class (8), service level (4), flow label (20).
    traffic: U32,
    lid: U16,
    pkey: U16,
    reserved: u8,
    qpn: U24,
    qkey: U32,
    /// Where traps go.
    trap: [u8; 32],
}

const _: () = assert!(size_of::<Body>() == LEN);

/// The port that the requester shall ask instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirection {
    /// The other port.
    pub gid: Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level; 4 bits.
    pub sl: u8,
    /// Flow label; 20 bits.
    pub flow_label: u32,
    /// The other port's LID; 0 on RoCEv2.
    pub lid: u16,
    /// The partition.
    pub pkey: PKey,
    /// The queue pair to send to.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: QKey,
}

impl Redirection {
    /// Parses ClassPortInfo.
    pub fn parse(bytes: &[u8]) -> Result<Redirection, Error> {
        let (body, _) = Body::ref_from_prefix(bytes).map_err(|_| Error::Truncated {
            what: "ClassPortInfo",
            need: LEN,
            have: bytes.len(),
        })?;
        let traffic = body.traffic.get();
        Ok(Redirection {
            gid: body.gid,
            traffic_class: (traffic >> 24) as u8,
            sl: (traffic >> 20) as u8 & 0xf,
            flow_label: traffic & 0xf_ffff,
            lid: body.lid.get(),
            pkey: PKey(body.pkey.get()),
            qpn: body.qpn.into(),
            qkey: QKey(body.qkey.get()),
        })
    }

    /// The bytes. A value that does not fit into its field is cut off.
    pub fn emit(&self) -> [u8; LEN] {
        let traffic =
            u32::from(self.traffic_class) << 24 | u32::from(self.sl & 0xf) << 20 | self.flow_label & 0xf_ffff;
        let body = Body {
            class: [0; 8],
            gid: self.gid,
            traffic: traffic.into(),
            lid: self.lid.into(),
            pkey: self.pkey.0.into(),
            reserved: 0,
            qpn: self.qpn.into(),
            qkey: self.qkey.0.into(),
            trap: [0; 32],
        };
        let mut bytes = [0; LEN];
        bytes.copy_from_slice(body.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_is_parsed_as_it_was_emitted() {
        let to = Redirection {
            gid: Gid([7; 16]),
            traffic_class: 0x12,
            sl: 5,
            flow_label: 0xa_bcde,
            lid: 3,
            pkey: PKey(0xffff),
            qpn: Qpn::GSI,
            qkey: QKey::GSI,
        };
        let bytes = to.emit();
        assert_eq!(Redirection::parse(&bytes), Ok(to));
        assert_eq!(bytes[8..24], [7; 16]);
        assert_eq!(bytes[24..28], [0x12, 0x5a, 0xbc, 0xde]);
        assert_eq!(bytes[30..40], [0xff, 0xff, 0, 0, 0, 1, 0x80, 1, 0, 0]);
        assert!(Redirection::parse(&bytes[..71]).is_err());
    }
}

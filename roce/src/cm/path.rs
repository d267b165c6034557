//! The path as a REQ lays it out (IBTA vol. 1 table 106, section 12.7.9 and following).

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Gid, Path, TimeoutCode};

/// The layout in a REQ.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Body {
    /// The sender's LID.
    pub local_lid: U16,
    /// The receiver's LID.
    pub remote_lid: U16,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID.
    pub remote_gid: Gid,
    /// Flow label (20), reserved (6), packet rate (6).
    pub flow_rate: U32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level (4), subnet local (1), reserved (3).
    pub sl_subnet: u8,
    /// Local ACK timeout (5), reserved (3).
    pub ack_timeout: u8,
}

const _: () = assert!(size_of::<Body>() == 44);

/// A path as its sender sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The sender's LID; without meaning on RoCEv2.
    pub local_lid: u16,
    /// The receiver's LID.
    pub remote_lid: u16,
    /// The path; its local port is the sender's.
    pub path: Path,
    /// How long the sender's queue pair waits for an acknowledgement.
    pub local_ack_timeout: TimeoutCode,
}

impl Repr {
    pub(super) fn parse(body: &Body) -> Repr {
        let flow_rate = body.flow_rate.get();
        Repr {
            local_lid: body.local_lid.get(),
            remote_lid: body.remote_lid.get(),
            path: Path {
                local_gid: body.local_gid,
                remote_gid: body.remote_gid,
                flow_label: flow_rate >> 12,
                packet_rate: (flow_rate & 0x3f) as u8,
                traffic_class: body.traffic_class,
                hop_limit: body.hop_limit,
                sl: body.sl_subnet >> 4,
                subnet_local: body.sl_subnet & 8 != 0,
            },
            local_ack_timeout: TimeoutCode::from_low_bits(body.ack_timeout >> 3),
        }
    }

    pub(super) fn body(&self) -> Body {
        let path = &self.path;
        Body {
            local_lid: self.local_lid.into(),
            remote_lid: self.remote_lid.into(),
            local_gid: path.local_gid,
            remote_gid: path.remote_gid,
            flow_rate: (path.flow_label << 12 | u32::from(path.packet_rate & 0x3f)).into(),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            sl_subnet: path.sl << 4 | u8::from(path.subnet_local) << 3,
            ack_timeout: self.local_ack_timeout.get() << 3,
        }
    }
}

//! What a connection is made with: the parameters of its client, and of its queue pair.

use nic_abi::admin::{ModifyQp, QpMask, QpState};
use nic_abi::registers::Identity;
use nic_abi::wqe::AddressVector;
use roce::cm::{ReadDepths, sidr};
use roce::{Gid, Path, PathMtu, Psn, QKey, Qpn, ServiceId, TimeoutCode};

use crate::Error;

/// RNR NAK timer of our queue pairs (IBTA table 46): 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;

/// Who confirms the peer's reply, on the active side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// The agent, at once, if the read depths of both ends fit ([`ReadDepths::fit`]); otherwise it
    /// rejects the reply.
    TwoWay,
    /// The client, by [`Client::establish`](crate::Client::establish), or it rejects the reply.
    ThreeWay,
}

/// How a stream that the client has used for bytes of its own becomes the connection of a queue
/// pair of iWARP: see [`Client::convert`](crate::Client::convert).
#[derive(Clone, Copy, Debug)]
pub struct Conversion<'a> {
    /// The last message that goes by the stream, of one byte at least: then the peer's client has
    /// to take it, and to convert its end without one. `None`: the peer's client has sent it, and
    /// it has been received.
    pub message: Option<&'a [u8]>,
    /// The ends exchange a Request and a Reply of MPA. Both have to know whether they do.
    pub frames: bool,
    /// The read depths of the queue pair. The ends do not exchange them.
    pub depths: ReadDepths,
}

/// What a peer is asked by service resolution.
#[derive(Clone, Copy, Debug)]
pub struct ResolveParams<'a> {
    /// The peer's service.
    pub service: ServiceId,
    /// Our port.
    pub local_gid: Gid,
    /// The peer's port.
    pub remote_gid: Gid,
    /// Our source port, for a service of rdma_cm's; with 0 the agent chooses.
    pub ip_source_port: u16,
    /// How long one request waits for its answer.
    pub response_timeout: TimeoutCode,
    /// How often a request is sent again.
    pub retries: u8,
    /// Private data, at most 216 bytes.
    pub private_data: &'a [u8],
}

/// The answer to a peer's service resolution request.
#[derive(Clone, Copy, Debug)]
pub struct ResolutionAnswer<'a> {
    /// What becomes of the request.
    pub status: sidr::Status,
    /// The service's queue pair, with [`sidr::Status::Valid`].
    pub qpn: u32,
    /// The service's queue key, with [`sidr::Status::Valid`].
    pub qkey: u32,
    /// Private data, at most 136 bytes.
    pub private_data: &'a [u8],
}

/// Whether the port can have so many RDMA Reads of a queue pair in progress.
pub(crate) fn check_depths(identity: &Identity, depths: ReadDepths) -> Result<(), Error> {
    let most = depths.initiator_depth.max(depths.responder_resources);
    let fits = u32::from(most) <= identity.max_rd_atomic;
    if fits { Ok(()) } else { Err(Error::OutOfRange("number of RDMA Reads")) }
}

/// Which of the port's GIDs this is.
pub fn gid_index(identity: &Identity, gid: Gid) -> Option<u8> {
    let position = identity.gids.iter().position(|&ours| ours == gid.0);
    position.filter(|_| !gid.is_unspecified()).map(|index| index as u8)
}

/// The path with the hop limit that 0 stands for.
pub(crate) fn with_hop_limit(path: Path) -> Path {
    match path.hop_limit {
        0 => Path { hop_limit: Path::HOP_LIMIT, ..path },
        _ => path,
    }
}

/// The address vector of datagrams to a queue pair at the end of a path.
pub fn datagram_address(path: &Path, source_gid: u8, qpn: Qpn, qkey: QKey) -> AddressVector {
    AddressVector {
        gid: path.remote_gid.0,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        service_level: path.sl,
        source_gid,
        qpn: qpn.get(),
        qkey: qkey.0,
    }
}

/// What a connection's queue pair is moved to RTR and RTS with.
#[derive(Clone, Copy)]
pub(crate) struct QpSetup {
    pub(crate) path: Path,
    /// The index of the path's local GID.
    pub(crate) source_gid: u8,
    pub(crate) mtu: PathMtu,
    pub(crate) remote_qpn: Qpn,
    pub(crate) send_psn: Psn,
    pub(crate) receive_psn: Psn,
    pub(crate) depths: ReadDepths,
    pub(crate) ack_timeout: TimeoutCode,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
}

impl QpSetup {
    pub(crate) fn to_rtr(self) -> ModifyQp {
        let mask = QpMask::STATE
            | QpMask::PATH
            | QpMask::REMOTE_QPN
            | QpMask::MTU
            | QpMask::RECEIVE_PSN
            | QpMask::MAX_DEST_RD_ATOMIC
            | QpMask::MIN_RNR_TIMER;
        ModifyQp {
            mask: mask.bits(),
            state: QpState::Rtr as u32,
            remote_gid: self.path.remote_gid.0,
            source_gid: self.source_gid,
            hop_limit: self.path.hop_limit,
            traffic_class: self.path.traffic_class,
            flow_label: self.path.flow_label,
            remote_qpn: self.remote_qpn.get(),
            mtu: self.mtu.bytes(),
            receive_psn: self.receive_psn.get(),
            max_dest_rd_atomic: self.depths.responder_resources,
            min_rnr_timer: MIN_RNR_TIMER,
            ..ModifyQp::default()
        }
    }

    pub(crate) fn to_rts(self) -> ModifyQp {
        let mask = QpMask::STATE
            | QpMask::SEND_PSN
            | QpMask::TIMEOUT
            | QpMask::RETRY_COUNT
            | QpMask::RNR_RETRY
            | QpMask::MAX_RD_ATOMIC;
        ModifyQp {
            mask: mask.bits(),
            state: QpState::Rts as u32,
            send_psn: self.send_psn.get(),
            timeout: self.ack_timeout.get(),
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry_count,
            max_rd_atomic: self.depths.initiator_depth,
            ..ModifyQp::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_path_without_a_hop_limit_gets_the_default_and_any_other_keeps_its_own() {
        for (given, expected) in [(0, Path::HOP_LIMIT), (1, 1), (255, 255)] {
            let path = Path { hop_limit: given, flow_label: 5, ..Path::new(Gid([1; 16]), Gid([2; 16])) };
            assert_eq!(with_hop_limit(path), Path { hop_limit: expected, ..path });
        }
    }

    #[test]
    fn a_queue_pair_is_moved_with_each_attribute_of_its_connection() {
        let path =
            Path { hop_limit: 3, traffic_class: 4, flow_label: 5, ..Path::new(Gid([1; 16]), Gid([2; 16])) };
        let setup = QpSetup {
            path,
            source_gid: 6,
            mtu: PathMtu::B2048,
            remote_qpn: Qpn::new(7).unwrap(),
            send_psn: Psn::new(8),
            receive_psn: Psn::new(9),
            depths: ReadDepths { responder_resources: 10, initiator_depth: 11 },
            ack_timeout: TimeoutCode::new(12).unwrap(),
            retry_count: 1,
            rnr_retry_count: 2,
        };
        let rtr = QpMask::STATE
            .union(QpMask::PATH)
            .union(QpMask::REMOTE_QPN)
            .union(QpMask::MTU)
            .union(QpMask::RECEIVE_PSN)
            .union(QpMask::MAX_DEST_RD_ATOMIC)
            .union(QpMask::MIN_RNR_TIMER);
        let to_rtr = ModifyQp {
            mask: rtr.bits(),
            state: QpState::Rtr as u32,
            remote_gid: [2; 16],
            source_gid: 6,
            hop_limit: 3,
            traffic_class: 4,
            flow_label: 5,
            remote_qpn: 7,
            mtu: 2048,
            receive_psn: 9,
            max_dest_rd_atomic: 10,
            min_rnr_timer: 12,
            ..ModifyQp::default()
        };
        assert_eq!(setup.to_rtr().as_bytes(), to_rtr.as_bytes());
        let rts = QpMask::STATE
            .union(QpMask::SEND_PSN)
            .union(QpMask::TIMEOUT)
            .union(QpMask::RETRY_COUNT)
            .union(QpMask::RNR_RETRY)
            .union(QpMask::MAX_RD_ATOMIC);
        let to_rts = ModifyQp {
            mask: rts.bits(),
            state: QpState::Rts as u32,
            send_psn: 8,
            timeout: 12,
            retry_count: 1,
            rnr_retry: 2,
            max_rd_atomic: 11,
            ..ModifyQp::default()
        };
        assert_eq!(setup.to_rts().as_bytes(), to_rts.as_bytes());
    }

    #[test]
    fn a_gid_has_the_index_of_its_first_entry_in_the_table_unless_it_is_unspecified() {
        let mut identity: Identity = zerocopy::FromZeros::new_zeroed();
        identity.gids[1] = [7; 16];
        identity.gids[2] = [7; 16];
        assert_eq!(gid_index(&identity, Gid([7; 16])), Some(1));
        assert_eq!(gid_index(&identity, Gid([8; 16])), None);
        assert_eq!(gid_index(&identity, Gid([0; 16])), None, "an entry that is not in use");
    }
}

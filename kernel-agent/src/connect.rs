//! What a connection is made with: by the consumer's words, and as its queue pair sees it.

use nic_abi::admin::{ModifyQp, QpMask, QpState};
use roce::cm::req::PathMtu;

/// Names a listening point of an agent; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenId(pub u64);

/// Names a connection (made or being made) of an agent; never used twice, and greater than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What the active side asks for.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// The peer's service.
    pub service: roce::ServiceId,
    /// The peer's port.
    pub remote_gid: [u8; 16],
    /// Our GID's index.
    pub source_gid: u8,
    /// Path MTU in bytes; the smaller of this and the port's is asked for.
    pub path_mtu: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit; 0 stands for 64.
    pub hop_limit: u8,
    /// Partition key.
    pub pkey: u16,
    /// Service level; 4 bits.
    pub service_level: u8,
    /// Packet rate; 6 bits.
    pub packet_rate: u8,
    /// Whether the peer is in our subnet.
    pub subnet_local: bool,
    /// RDMA Reads that we will have outstanding at most.
    pub initiator_depth: u8,
    /// RDMA Reads of the peer's that we can serve at once.
    pub responder_resources: u8,
    /// Local ACK timeout: 4.096 us * 2^this.
    pub ack_timeout: u8,
    /// Retries after a timeout or sequence error, 0 to 7.
    pub retry_count: u8,
    /// Retries after receiver-not-ready, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// RNR NAK timer that our side sends (IBTA table 46).
    pub min_rnr_timer: u8,
    /// How long one CM message waits for its answer: 4.096 us * 2^this.
    pub cm_response_timeout: u8,
    /// How often a CM message is sent again.
    pub cm_retries: u8,
    /// How long the attempt may take in all, however often the peer asks for patience.
    pub timeout: Option<core::time::Duration>,
    /// Whether the consumer confirms the peer's accept itself (IT-API three-way handshake); otherwise the agent does at once.
    pub three_way: bool,
    /// Private data, at most 92 bytes.
    pub private_data: &'a [u8],
}

impl Default for ConnectParams<'_> {
    fn default() -> Self {
        ConnectParams {
            service: roce::ServiceId(0),
            remote_gid: [0; 16],
            source_gid: 1,
            path_mtu: 4096,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            pkey: 0xffff,
            service_level: 0,
            packet_rate: 0,
            subnet_local: false,
            initiator_depth: 0,
            responder_resources: 0,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            cm_response_timeout: 18,
            cm_retries: 7,
            timeout: None,
            three_way: false,
            private_data: &[],
        }
    }
}

/// What the passive side answers.
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams<'a> {
    /// RDMA Reads that we will have outstanding at most; clamped to what the peer can serve.
    pub initiator_depth: u8,
    /// RDMA Reads of the peer's that we can serve at once.
    pub responder_resources: u8,
    /// Retries after receiver-not-ready that the peer shall make, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// RNR NAK timer that our side sends (IBTA table 46).
    pub min_rnr_timer: u8,
    /// Private data, at most 196 bytes.
    pub private_data: &'a [u8],
}

impl Default for AcceptParams<'_> {
    fn default() -> Self {
        AcceptParams {
            initiator_depth: 0,
            responder_resources: 0,
            rnr_retry: 7,
            min_rnr_timer: 12,
            private_data: &[],
        }
    }
}

/// A connection as its queue pair sees it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Path {
    pub(crate) remote_gid: [u8; 16],
    pub(crate) source_gid: u8,
    pub(crate) remote_qpn: u32,
    pub(crate) mtu: u32,
    pub(crate) send_psn: u32,
    pub(crate) receive_psn: u32,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
}

impl Path {
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
            remote_gid: self.remote_gid,
            source_gid: self.source_gid,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            remote_qpn: self.remote_qpn,
            mtu: self.mtu,
            receive_psn: self.receive_psn,
            max_dest_rd_atomic: self.responder_resources,
            min_rnr_timer: self.min_rnr_timer,
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
            send_psn: self.send_psn,
            timeout: self.ack_timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.initiator_depth,
            ..ModifyQp::default()
        }
    }
}

/// The largest path MTU that is not more.
pub(crate) fn cm_mtu(bytes: u32) -> PathMtu {
    match bytes {
        4096.. => PathMtu::B4096,
        2048.. => PathMtu::B2048,
        1024.. => PathMtu::B1024,
        512.. => PathMtu::B512,
        _ => PathMtu::B256,
    }
}

/// A path MTU in bytes.
pub(crate) fn mtu_bytes(mtu: PathMtu) -> u32 {
    128 << mtu as u32
}

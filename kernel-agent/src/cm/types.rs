//! What goes into and comes out of the connection manager.

use core::ops::Deref;
use core::time::Duration;

use roce::cm::redirection::Redirection;
use roce::cm::{ReadDepths, ip_cm, rej, sidr};
use roce::{Gid, PKey, Path, PathMtu, Psn, QKey, Qpn, ServiceId, TimeoutCode, mad};
use thiserror::Error;

use super::state::{Illegal, State};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);)*
    };
}

ids! {
    /// Names one end of a connection, made or being made; never used twice, and greater than all before it.
    ConnectionId;
    /// Names a listening point; never used twice.
    ListenId;
    /// Names a service resolution request of ours; never used twice.
    ResolutionId;
    /// Names a service resolution request of a peer's; never used twice.
    ResolutionRequestId;
}

/// What the manager is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The channel adapter's GUID.
    pub ca_guid: u64,
    /// The partition that is served.
    pub pkey: PKey,
    /// How many connections there can be at once, those in TimeWait included; at most 65,536.
    pub max_connections: u32,
    /// How many listening points.
    pub max_listeners: u32,
    /// How many service resolutions at once, ours and peers' each.
    pub max_resolutions: u32,
    /// How long a peer whose message came twice is asked to wait for the consumer; `None` for no such message.
    pub patience: Option<TimeoutCode>,
    /// The longest time that a peer can make us wait for one message of its own.
    pub longest_wait: Duration,
    /// Any number: communication ids are not predictable without it.
    pub secret: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            ca_guid: 0,
            pkey: PKey::DEFAULT,
            max_connections: 16384,
            max_listeners: 1024,
            max_resolutions: 1024,
            patience: TimeoutCode::new(20),
            longest_wait: Duration::from_secs(60),
            secret: 0,
        }
    }
}

/// What a REQ or a REP says of its sender's queue pair.
#[derive(Clone, Copy, Debug)]
pub struct LocalQp {
    /// Its number.
    pub qpn: Qpn,
    /// The PSN from which it receives: the peer shall begin to send with it.
    pub receive_psn: Psn,
    /// Whether it takes its receive buffers from a shared queue.
    pub srq: bool,
}

impl LocalQp {
    /// A queue pair with receive buffers of its own.
    pub fn new(qpn: Qpn, receive_psn: Psn) -> LocalQp {
        LocalQp { qpn, receive_psn, srq: false }
    }
}

/// What the active side asks for.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams {
    /// The path to the peer.
    pub path: Path,
    /// The path's MTU.
    pub path_mtu: PathMtu,
    /// The partition.
    pub pkey: PKey,
    /// The peer's service. With an id of the IP CM service, the private data gets its header.
    pub service: ServiceId,
    /// Our source port, for an id of the IP CM service.
    pub ip_source_port: u16,
    /// Our read depths.
    pub depths: ReadDepths,
    /// Within which time the peer shall answer a message.
    pub remote_cm_timeout: TimeoutCode,
    /// Within which time we answer a message.
    pub local_cm_timeout: TimeoutCode,
    /// How often a message is sent again, by us and by the peer; at most 15.
    pub max_cm_retries: u8,
    /// How often either queue pair shall retry after a timeout or a sequence error; at most 7.
    pub retry_count: u8,
    /// How often the peer's queue pair shall retry after RNR NAK; at most 7, which is for ever.
    pub rnr_retry_count: u8,
    /// How long our queue pair waits for an acknowledgement. Also the length of our TimeWait.
    pub local_ack_timeout: TimeoutCode,
    /// How long a packet is under way at most.
    pub packet_lifetime: TimeoutCode,
    /// How long the attempt may take in all, the consumer's part in a three-way handshake included.
    pub timeout: Option<Duration>,
}

impl ConnectParams {
    /// Everyday values; no read depths.
    pub fn new(path: Path, service: ServiceId) -> ConnectParams {
        ConnectParams {
            path,
            path_mtu: PathMtu::B1024,
            pkey: PKey::DEFAULT,
            service,
            ip_source_port: 0,
            depths: ReadDepths::default(),
            remote_cm_timeout: TimeoutCode::from_low_bits(18),
            local_cm_timeout: TimeoutCode::from_low_bits(18),
            max_cm_retries: 7,
            retry_count: 7,
            rnr_retry_count: 7,
            local_ack_timeout: TimeoutCode::from_low_bits(14),
            packet_lifetime: TimeoutCode::from_low_bits(10),
            timeout: None,
        }
    }
}

/// What the passive side answers.
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams {
    /// Our read depths.
    pub depths: ReadDepths,
    /// How long our queue pair may take to acknowledge a packet.
    pub target_ack_delay: TimeoutCode,
    /// How often the peer's queue pair shall retry after RNR NAK; at most 7, which is for ever.
    pub rnr_retry_count: u8,
    /// Whether to connect the same two queue pairs again before the TimeWait of their last connection is over
    /// (IT-API without `IT_EP_REUSEADDR` never fails for it).
    pub ignore_time_wait: bool,
}

impl Default for AcceptParams {
    /// Everyday values; no read depths.
    fn default() -> AcceptParams {
        AcceptParams {
            depths: ReadDepths::default(),
            target_ack_delay: TimeoutCode::from_low_bits(15),
            rnr_retry_count: 7,
            ignore_time_wait: true,
        }
    }
}

/// Whom a service resolution asks, and what for.
#[derive(Clone, Copy, Debug)]
pub struct SidrParams {
    /// Our port.
    pub local_gid: Gid,
    /// The peer's port.
    pub remote_gid: Gid,
    /// The peer's service. With an id of the IP CM service, the private data gets its header.
    pub service: ServiceId,
    /// Our source port, for an id of the IP CM service.
    pub ip_source_port: u16,
    /// The partition.
    pub pkey: PKey,
    /// Within which time the peer shall answer.
    pub timeout: TimeoutCode,
    /// How often the request is sent again.
    pub max_retries: u8,
}

/// Where a datagram came from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Our port, on which it arrived.
    pub local_gid: Gid,
    /// The sender's port.
    pub remote_gid: Gid,
    /// The sender's queue pair.
    pub remote_qp: Qpn,
}

/// Private data as a message carries it: filled up with zeroes to the message's size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    len: u8,
    bytes: [u8; PrivateData::MAX],
}

impl PrivateData {
    /// The most that any message carries.
    pub const MAX: usize = roce::cm::rtu::PRIVATE_DATA_LEN;
    /// None.
    pub const EMPTY: PrivateData = PrivateData { len: 0, bytes: [0; PrivateData::MAX] };

    pub(super) fn new(data: &[u8]) -> PrivateData {
        let len = data.len().min(PrivateData::MAX);
        let mut bytes = [0; PrivateData::MAX];
        bytes[..len].copy_from_slice(&data[..len]);
        PrivateData { len: len as u8, bytes }
    }
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(PrivateData::MAX)]
    }
}

impl core::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let used = self.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        write!(f, "PrivateData({} bytes: {:02x?})", self.len, &self[..used])
    }
}

/// A peer's request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The connection that would be.
    pub conn: ConnectionId,
    /// The listening point.
    pub listen: ListenId,
    /// The service id asked for.
    pub service: ServiceId,
    /// The path back to the peer.
    pub path: Path,
    /// The path's MTU; may be more than our port's.
    pub path_mtu: PathMtu,
    /// The partition.
    pub pkey: PKey,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The PSN that our queue pair must send with.
    pub send_psn: Psn,
    /// The peer's read depths.
    pub depths: ReadDepths,
    /// How often our queue pair shall retry.
    pub retry_count: u8,
    /// How often our queue pair shall retry after RNR NAK.
    pub rnr_retry_count: u8,
    /// How long our queue pair shall wait for an acknowledgement.
    pub ack_timeout: TimeoutCode,
    /// Whether the peer's queue pair takes its receive buffers from a shared queue.
    pub srq: bool,
    /// The IP CM header, when the service id is one of that service.
    pub ip: Option<ip_cm::Repr>,
    /// The consumer's private data: 92 bytes, or the 56 behind the IP CM header.
    pub private_data: PrivateData,
}

/// A peer's reply to our request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The connection.
    pub conn: ConnectionId,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The PSN that our queue pair must send with.
    pub send_psn: Psn,
    /// The peer's read depths.
    pub depths: ReadDepths,
    /// How long the peer may take to acknowledge a packet.
    pub target_ack_delay: TimeoutCode,
    /// How often our queue pair shall retry after RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair takes its receive buffers from a shared queue.
    pub srq: bool,
    /// The consumer's private data: 196 bytes.
    pub private_data: PrivateData,
}

/// A rejection by the peer or its connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The connection that will not be. In state [`State::Established`] (the peer never saw the RTU), that is
    /// broken.
    pub conn: ConnectionId,
    /// The state that it was in.
    pub state: State,
    /// Why.
    pub reason: rej::Reason,
    ari: [u8; rej::ARI_LEN],
    ari_len: u8,
    /// The consumer's private data: 148 bytes.
    pub private_data: PrivateData,
}

impl Rejection {
    pub(super) fn new(conn: ConnectionId, state: State, rej: &rej::Repr) -> Rejection {
        let private_data = PrivateData::new(&rej.private_data);
        Rejection { conn, state, reason: rej.reason, ari: rej.ari, ari_len: rej.ari_len, private_data }
    }

    /// Additional information, as the reason defines it (table 109).
    pub fn ari(&self) -> &[u8] {
        self.ari.get(..usize::from(self.ari_len)).unwrap_or(&self.ari)
    }
}

/// How a connection came down without our doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer disconnected.
    Peer,
    /// The peer's queue pair asks for a new connection, so it has no more of this one.
    Stale,
}

/// A peer's request for service resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The request, to be answered with [`super::Cm::sidr_reply`].
    pub request: ResolutionRequestId,
    /// What names it at the peer, the same for each repetition.
    pub peer_request_id: u32,
    /// The listening point.
    pub listen: ListenId,
    /// The service id asked for.
    pub service: ServiceId,
    /// Our port.
    pub local_gid: Gid,
    /// The peer's port.
    pub remote_gid: Gid,
    /// The IP CM header, when the service id is one of that service.
    pub ip: Option<ip_cm::Repr>,
    /// The consumer's private data: 216 bytes, or the 180 behind the IP CM header.
    pub private_data: PrivateData,
}

/// A peer's answer to our request for service resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolutionReply {
    /// The request.
    pub sidr: ResolutionId,
    /// What became of it.
    pub status: sidr::Status,
    /// The service's queue pair, if the status is [`sidr::Status::Valid`].
    pub qpn: Qpn,
    /// The service's queue key, if the status is [`sidr::Status::Valid`].
    pub qkey: QKey,
    /// Where to ask, if the status is [`sidr::Status::Redirected`] and the message says it.
    pub redirection: Option<Redirection>,
    /// The consumer's private data: 136 bytes.
    pub private_data: PrivateData,
}

/// What the consumer has to hear.
///
/// Of a connection that was made or asked for, exactly one of [`Event::Rejected`], [`Event::TimedOut`],
/// [`Event::Disconnected`] and [`Event::Released`] is told, unless the consumer ended it before it stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Passive: somebody wants to connect. Answer with `accept`, `reject`, `discard` or `handoff`.
    ConnectRequest(Request),
    /// Active: the peer accepts. Answer with `establish`, `reject` or `disconnect`.
    Reply(Reply),
    /// Passive: the connection stands. Private data, if an RTU brought it: 224 bytes.
    Established {
        /// The connection.
        conn: ConnectionId,
        /// The peer's private data, if it was an RTU that said so.
        private_data: Option<PrivateData>,
    },
    /// The peer rejected, or gave up: in a state in which a request waits for us, it was withdrawn.
    Rejected(Rejection),
    /// The attempt to connect took too long.
    TimedOut {
        /// The connection that will not be.
        conn: ConnectionId,
        /// The state that it was in.
        state: State,
    },
    /// The connection came down. The answer has been sent.
    Disconnected {
        /// The connection.
        conn: ConnectionId,
        /// Why.
        cause: Cause,
        /// The peer's private data: 220 bytes.
        private_data: PrivateData,
    },
    /// The connection that we disconnected is down.
    Released {
        /// The connection.
        conn: ConnectionId,
        /// Whether the peer answered.
        answered: bool,
        /// The peer's private data: 224 bytes of a DREP, 220 of a DREQ that crossed ours.
        private_data: PrivateData,
    },
    /// No packet of the connection can be under way any more; its id is gone.
    TimeWaitOver {
        /// The connection.
        conn: ConnectionId,
        /// The queue pair that it used.
        local_qpn: Qpn,
    },
    /// Somebody wants to know a service's queue pair. Answer with `sidr_reply`.
    ResolutionRequest(Resolution),
    /// The answer to our request.
    ResolutionReply(ResolutionReply),
    /// Nobody answered our request.
    ResolutionTimedOut {
        /// The request.
        sidr: ResolutionId,
    },
}

/// A datagram to send from QP1 to QP1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Our port.
    pub local_gid: Gid,
    /// The receiver's port.
    pub remote_gid: Gid,
    /// The datagram.
    pub mad: [u8; mad::LEN],
}

/// What the caller has to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram.
    Send(Outgoing),
    /// Tell the consumer.
    Event(Event),
}

/// What is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Connections.
    Connections,
    /// Listening points.
    Listeners,
    /// Service resolutions.
    Resolutions,
}

/// Why a call failed; it changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The connection's id is wrong, or the connection is gone.
    #[error("there is no such connection")]
    NoSuchConnection,
    /// The listening point's id is wrong, or it is gone.
    #[error("there is no such listening point")]
    NoSuchListener,
    /// The service resolution's id is wrong, or it is gone.
    #[error("there is no such service resolution")]
    NoSuchResolution,
    /// The connection's state does not allow it.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// Somebody listens for the service id already, or nobody does where somebody must.
    #[error("{0:?} is in use")]
    ServiceInUse(ServiceId),
    /// There is no room for another one.
    #[error("no more {0:?}")]
    Full(Table),
    /// The message does not carry so much private data.
    #[error("{len} bytes of private data, at most {max} fit")]
    PrivateData {
        /// How much was given.
        len: usize,
        /// How much fits.
        max: usize,
    },
    /// A value does not fit its field.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
    /// The queue pair has a connection already.
    #[error("{0:?} has a connection already")]
    QpInUse(Qpn),
    /// The same two queue pairs were connected a moment ago.
    #[error("{0:?} is in TimeWait with the same peer")]
    TimeWait(Qpn),
    /// The actions of earlier calls have not been taken.
    #[error("too many actions wait to be taken")]
    Congested,
}

/// What was counted since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams that came in.
    pub received: u64,
    /// Datagrams that went out, repeated ones included.
    pub sent: u64,
    /// Datagrams sent again because no answer came.
    pub retransmitted: u64,
    /// Datagrams that were no messages, or made no sense.
    pub malformed: u64,
    /// Messages about a connection that is not, or not with their sender, or not in a state to take them.
    pub unexpected: u64,
    /// Messages that had been received before.
    pub duplicates: u64,
    /// Requests dropped because too many wait at their listening point.
    pub overflowed: u64,
    /// Datagrams dropped because the caller did not take the actions.
    pub congested: u64,
}

/// What is there now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections, those in TimeWait included.
    pub connections: usize,
    /// Those in TimeWait.
    pub time_wait: usize,
    /// Listening points.
    pub listeners: usize,
    /// Service resolutions of ours.
    pub resolutions: usize,
    /// Service resolutions of peers that wait for an answer.
    pub resolution_requests: usize,
}

//! Arguments and results of the CM state machine.

use core::ops::Deref;
use core::time::Duration;

use bitflags::bitflags;
use platform::Secret;
use roce::cm::redirection::Redirection;
use roce::cm::{ReadDepths, ip_cm, rej, sidr};
use roce::transport::Service;
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
    /// The id of one end of a connection, made or being made; never used twice, and greater than
    /// all before it.
    ConnectionId;
    /// The id of a listening point; never used twice.
    ListenId;
    /// The id of a service resolution of ours; never used twice.
    ResolutionId;
    /// The id of a peer's service resolution request; never used twice.
    ResolutionRequestId;
}

/// The configuration of a state machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The channel adapter's GUID.
    pub ca_guid: u64,
    /// The partition of the port.
    pub pkey: PKey,
    /// The largest path MTU of the port.
    pub path_mtu: PathMtu,
    /// Connections at once, those in TimeWait included.
    pub max_connections: u32,
    /// Listening points at once.
    pub max_listeners: u32,
    /// Service resolutions at once, ours and peers' each.
    pub max_resolutions: u32,
    /// The service timeout of the MRA that answers a repeated message while the consumer has not
    /// answered; `None` for no MRA.
    pub patience: Option<TimeoutCode>,
    /// The longest wait for one message that a peer can ask for.
    pub longest_wait: Duration,
    /// How long a peer that does not answer can keep an accepted request, or a connection that we
    /// ended, however often and for however long it asks us to wait.
    pub longest_handshake: Duration,
    /// The longest TimeWait that a peer can ask for.
    pub longest_time_wait: Duration,
    /// What the ids that peers see are made of. With the default they are predictable.
    pub secret: Secret,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            ca_guid: 0,
            pkey: PKey::DEFAULT,
            path_mtu: PathMtu::B4096,
            max_connections: 16384,
            max_listeners: 1024,
            max_resolutions: 1024,
            patience: TimeoutCode::new(20),
            longest_wait: Duration::from_secs(60),
            longest_handshake: Duration::from_secs(60),
            longest_time_wait: Duration::from_secs(4),
            secret: Secret::default(),
        }
    }
}

bitflags! {
    /// The transport services of the connections that a listening point offers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Transports: u8 {
        /// Reliable connections.
        const RC = 1 << 0;
        /// Unreliable connections.
        const UC = 1 << 1;
        /// iWARP's connections, which are made by MPA over streams. Only alone.
        const IWARP = 1 << 2;
    }
}

impl From<Service> for Transports {
    fn from(service: Service) -> Transports {
        match service {
            Service::Rc => Transports::RC,
            Service::Uc => Transports::UC,
        }
    }
}

/// What a REQ or a REP says of its sender's queue pair.
#[derive(Clone, Copy, Debug)]
pub struct LocalQp {
    /// Its transport service.
    pub transport: Service,
    /// Its number.
    pub qpn: Qpn,
    /// The first PSN that it accepts: the peer shall begin to send with it.
    pub receive_psn: Psn,
    /// Whether it takes its receive buffers from a shared queue.
    pub srq: bool,
}

impl LocalQp {
    /// A queue pair with receive buffers of its own.
    pub fn new(transport: Service, qpn: Qpn, receive_psn: Psn) -> LocalQp {
        LocalQp { transport, qpn, receive_psn, srq: false }
    }

    /// Whether the queue pair can have these read depths.
    pub(super) fn has_depths(&self, depths: ReadDepths) -> bool {
        self.transport == Service::Rc || depths == ReadDepths::default()
    }
}

/// Which changes of its queue pair's state a connection makes by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moves {
    /// All: the agent makes the queue pair ready, and at the connection's end it flushes it before
    /// it reports the end.
    #[default]
    All,
    /// The agent makes the queue pair ready, on the passive side to send as well when the client
    /// accepts, and flushes it if the client disconnects. If the peer disconnects, the queue pair
    /// stays as it is until the client moves it, so that what the peer's queue pair has served
    /// still completes. That is how `rdma_cm` of Linux treats them.
    UntilThePeerDisconnects,
    /// None: the client moves the queue pair, with what
    /// [`Client::queue_pair_changes`](crate::Client::queue_pair_changes) says, and may do so before
    /// it connects or accepts. Only three-way.
    None,
}

/// The parameters of a request for a connection.
///
/// An unreliable connection has no RDMA Reads, retries and RNR NAKs: its read depths have to be 0,
/// and the retry counts are not sent.
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
    /// Our source port, for an id of the IP CM service, and for a stream; with 0 the agent chooses.
    pub ip_source_port: u16,
    /// Our read depths.
    pub depths: ReadDepths,
    /// The time within which the peer shall answer a message.
    pub remote_cm_timeout: TimeoutCode,
    /// The time within which this side answers a message.
    pub local_cm_timeout: TimeoutCode,
    /// How often either side sends a message again; at most 15.
    pub max_cm_retries: u8,
    /// How often either queue pair shall retry after a timeout or a sequence error; at most 7.
    pub retry_count: u8,
    /// How often the peer's queue pair shall retry after RNR NAK; at most 7, which is without
    /// limit.
    pub rnr_retry_count: u8,
    /// How often our queue pair retries after RNR NAK at most, whatever the peer's reply asks for.
    pub own_rnr_retry_count: u8,
    /// How long our queue pair waits for an acknowledgement. Also the length of our TimeWait.
    pub local_ack_timeout: TimeoutCode,
    /// The longest time that a packet travels.
    pub packet_lifetime: TimeoutCode,
    /// How long the whole attempt may take, the consumer's part in a three-way handshake included.
    pub timeout: Option<Duration>,
    /// What the connection does to our queue pair. Over iWARP it is [`Moves::All`], whatever this
    /// says: there the stream's end ends the queue pair.
    pub moves: Moves,
}

impl ConnectParams {
    /// Usual values; no read depths.
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
            own_rnr_retry_count: 7,
            local_ack_timeout: TimeoutCode::from_low_bits(14),
            packet_lifetime: TimeoutCode::from_low_bits(10),
            timeout: None,
            moves: Moves::All,
        }
    }
}

/// The parameters of an answer to a request for a connection. On an unreliable one the read depths
/// have to be 0, and the rest is not sent.
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams {
    /// Our read depths.
    pub depths: ReadDepths,
    /// How long our queue pair may take to acknowledge a packet.
    pub target_ack_delay: TimeoutCode,
    /// How often the peer's queue pair shall retry after RNR NAK; at most 7, which is without
    /// limit.
    pub rnr_retry_count: u8,
    /// Whether to connect two queue pairs again although their last connection is in TimeWait
    /// (IT-API without `IT_EP_REUSEADDR` never fails for that).
    pub ignore_time_wait: bool,
    /// As in [`ConnectParams`].
    pub moves: Moves,
}

impl Default for AcceptParams {
    /// Usual values; no read depths.
    fn default() -> AcceptParams {
        AcceptParams {
            depths: ReadDepths::default(),
            target_ack_delay: TimeoutCode::from_low_bits(15),
            rnr_retry_count: 7,
            ignore_time_wait: true,
            moves: Moves::All,
        }
    }
}

/// The parameters of a service resolution.
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
    /// The time within which the peer shall answer.
    pub timeout: TimeoutCode,
    /// How often the request is sent again.
    pub max_retries: u8,
}

/// The source and the destination of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Our port, on which it arrived.
    pub local_gid: Gid,
    /// The sender's port.
    pub remote_gid: Gid,
    /// The sender's queue pair.
    pub remote_qp: Qpn,
}

/// Private data as a message carries it: padded with zeroes to the message's size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    len: u8,
    bytes: [u8; PrivateData::MAX],
}

impl PrivateData {
    /// The most that any message carries.
    pub const MAX: usize = roce::cm::rtu::PRIVATE_DATA_LEN;
    /// No private data.
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
    /// The connection.
    pub conn: ConnectionId,
    /// The listening point.
    pub listen: ListenId,
    /// The service id asked for.
    pub service: ServiceId,
    /// The transport service of the peer's queue pair.
    pub transport: Service,
    /// The path back to the peer.
    pub path: Path,
    /// The path's MTU; may be greater than our port's.
    pub path_mtu: PathMtu,
    /// The partition.
    pub pkey: PKey,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The first PSN that our queue pair must send.
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
    /// The first PSN that our queue pair must send.
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
    /// The connection that is not made; in state [`State::Established`] (the peer never received
    /// the RTU) the connection that has ended.
    pub conn: ConnectionId,
    /// The state before.
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

/// Why a connection ended without a call of our consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer's consumer disconnected, or the peer does not say why it did.
    Peer,
    /// An error at the peer.
    Broken,
    /// The peer's queue pair asks for a new connection, so this one no longer exists there.
    Stale,
}

/// A peer's request for service resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The request, to be answered with [`super::Cm::sidr_reply`].
    pub request: ResolutionRequestId,
    /// The id that the peer gave the request, the same in each repetition.
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
    /// The peer's answer.
    pub status: sidr::Status,
    /// The service's queue pair, if the status is [`sidr::Status::Valid`].
    pub qpn: Qpn,
    /// The service's queue key, if the status is [`sidr::Status::Valid`].
    pub qkey: QKey,
    /// The port to ask instead, if the status is [`sidr::Status::Redirected`] and the message names
    /// one.
    pub redirection: Option<Redirection>,
    /// The consumer's private data: 136 bytes.
    pub private_data: PrivateData,
}

/// An event for the consumer.
///
/// For each connection that was made or asked for, the state machine reports exactly one of
/// [`Event::Rejected`], [`Event::TimedOut`], [`Event::Disconnected`] and [`Event::Released`],
/// unless the consumer ended it before it was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Passive: a peer asks for a connection. Answer with `accept`, `reject`, `discard` or
    /// `handoff`.
    ConnectRequest(Request),
    /// Active: the peer accepts. Answer with `establish`, `reject` or `disconnect`.
    Reply(Reply),
    /// Passive: the connection is established. Private data, if an RTU brought it: 224 bytes.
    Established {
        /// The connection.
        conn: ConnectionId,
        /// The peer's private data, if an RTU established the connection.
        private_data: Option<PrivateData>,
    },
    /// The peer rejected or gave up. If a request waited for our answer, the peer withdrew it.
    Rejected(Rejection),
    /// The attempt to connect took too long.
    TimedOut {
        /// The connection that is not made.
        conn: ConnectionId,
        /// The state before.
        state: State,
    },
    /// The connection ended at the peer. The DREP has been sent.
    Disconnected {
        /// The connection.
        conn: ConnectionId,
        /// Why.
        cause: Cause,
        /// The peer's private data: 220 bytes.
        private_data: PrivateData,
    },
    /// The connection that we disconnected has ended.
    Released {
        /// The connection.
        conn: ConnectionId,
        /// Whether the peer answered.
        answered: bool,
        /// The peer's private data: 224 bytes of a DREP, or 220 of a DREQ that the peer sent at the
        /// same time.
        private_data: PrivateData,
    },
    /// TimeWait is over: no packet of the connection is in the network any more, and its id is
    /// gone.
    TimeWaitOver {
        /// The connection.
        conn: ConnectionId,
        /// The queue pair that it used.
        local_qpn: Qpn,
    },
    /// A peer asks for a service's queue pair. Answer with `sidr_reply`.
    ResolutionRequest(Resolution),
    /// A peer answered our request.
    ResolutionReply(ResolutionReply),
    /// The peer did not answer our request.
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

/// What the caller has to do, in the order of [`super::Cm::next_action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram.
    Send(Outgoing),
    /// Report an event to the consumer.
    Event(Event),
}

/// The table that is full.
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
    /// There is no connection with this id, or not any more.
    #[error("there is no such connection")]
    NoSuchConnection,
    /// There is no listening point with this id, or not any more.
    #[error("there is no such listening point")]
    NoSuchListener,
    /// There is no service resolution with this id, or not any more.
    #[error("there is no such service resolution")]
    NoSuchResolution,
    /// The connection's state does not allow it.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// A listening point has the service id already.
    #[error("{0:?} is in use")]
    ServiceInUse(ServiceId),
    /// The table has no room.
    #[error("no more {0:?}")]
    Full(Table),
    /// The message has no room for so much private data.
    #[error("{len} bytes of private data, at most {max} fit")]
    PrivateData {
        /// The length given.
        len: usize,
        /// The most that fits.
        max: usize,
    },
    /// A value does not fit its field.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
    /// The queue pair has a connection already.
    #[error("{0:?} has a connection already")]
    QpInUse(Qpn),
    /// The last connection of the same two queue pairs is in TimeWait.
    #[error("{0:?} is in TimeWait with the same peer")]
    TimeWait(Qpn),
    /// The caller has not taken the actions of earlier calls.
    #[error("too many actions wait to be taken")]
    Congested,
    /// No memory.
    #[error("out of memory")]
    OutOfMemory,
}

/// Counters since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent, repeated ones included.
    pub sent: u64,
    /// Datagrams sent again because no answer came.
    pub retransmitted: u64,
    /// Datagrams that were no valid messages.
    pub malformed: u64,
    /// Messages whose connection does not exist, is not with their sender, or is not in a state for
    /// them.
    pub unexpected: u64,
    /// Messages that had been received before.
    pub duplicates: u64,
    /// Requests dropped because too many wait at their listening point.
    pub overflowed: u64,
    /// Datagrams dropped because the caller did not take the actions.
    pub congested: u64,
}

/// The present numbers of objects.
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

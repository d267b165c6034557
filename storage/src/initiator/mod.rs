//! The initiator: a host of a target.
//!
//! [`Initiator::connect`] makes a controller and its queues. The consumer gives it requests, and
//! takes their completions by [`Initiator::poll`]; it sleeps by [`Initiator::wait`]. The calls
//! [`Initiator::read`], [`Initiator::write`] and [`Initiator::flush`] wait by themselves. All of it
//! belongs to one thread, so nothing here has a lock.
//!
//! The target reaches the data of a request through a fast region that the initiator links to it
//! for this request alone, in front of the command. The target's response ends the link. Short data
//! to write go in the capsule.

mod admin;
pub(crate) mod auth;
mod queue;
mod requests;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use nvme::auth::Reason;
use nvme::status::Status;
use platform::{DmaBuffer, Instant, Platform, Privileged};
pub use rdma::Region;
use rdma::{Completion, ConnectError, CreateError, Nic};

use crate::Error;
use crate::attention::Attention;
pub use auth::Authentication;
use queue::{Common, HostQueue};
pub use requests::{NotSent, Operation, Request};

/// Completions that are taken at once.
const BATCH: usize = 64;

/// What a host says of itself, and what it wants.
#[derive(Clone, Debug)]
pub struct Options {
    /// The target's address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The subsystem's name.
    pub subsystem: String,
    /// The host's name.
    pub host: String,
    /// The host's identifier.
    pub id: [u8; 16],
    /// How the host authenticates, if the target asks.
    pub authentication: Option<Authentication>,
    /// I/O queues, 1 to 64. The target may grant fewer.
    pub io_queues: u16,
    /// Entries of an I/O queue, 2 to 1,024. The target may have fewer.
    pub depth: u16,
    /// The keep-alive timeout; zero for none.
    pub keep_alive: Duration,
    /// How long the target may take for an answer.
    pub patience: Duration,
}

impl Options {
    /// A host with one queue of 128 entries.
    pub fn new(address: IpAddr, subsystem: impl Into<String>) -> Options {
        Options {
            address,
            port: crate::target::PORT,
            subsystem: subsystem.into(),
            host: "nqn.2026-01.org.ferrovia:host".into(),
            id: *b"ferrovia-host\0\0\x01",
            authentication: None,
            io_queues: 1,
            depth: 128,
            keep_alive: Duration::from_secs(5),
            patience: Duration::from_secs(10),
        }
    }
}

/// Why a host lost its controller, or never got one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The NIC failed, or the options are wrong.
    Local(Error),
    /// The target refused a connection: the code of NVMe over RDMA, 0 if it gave none.
    Refused(u16),
    /// The target refused a command: which, its status, and its result.
    Command(&'static str, Status, u64),
    /// The target wants the host to authenticate, and the host has no key.
    NoKey,
    /// The target does not believe the host: why, if it says so.
    NotAuthenticated(Option<Reason>),
    /// The controller has not authenticated.
    ControllerNotAuthenticated,
    /// The platform makes no random numbers fit for keys.
    NoRandomNumbers,
    /// The target does not answer.
    Silent,
    /// A connection is over.
    Disconnected,
    /// The target broke the protocol: how.
    Protocol(&'static str),
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Failure::Local(error) => error.fmt(f),
            Failure::Refused(0) => {
                f.write_str("the target refused the connection; does it listen at this port?")
            }
            Failure::Refused(code) => match nvme::private_data::RejectCode::from_number(*code) {
                Some(code) => write!(f, "the target refused the connection: {code}"),
                None => write!(f, "the target refused the connection: code {code}"),
            },
            Failure::Command(what, status, 0) => write!(f, "{what}: {status}"),
            Failure::Command(what, status, result) => write!(f, "{what}: {status} (result {result:#x})"),
            Failure::NoKey => f.write_str("the target wants a key of the host"),
            Failure::NotAuthenticated(Some(reason)) => write!(f, "the target refused the key: {reason}"),
            Failure::NotAuthenticated(None) => f.write_str("the target refused the key"),
            Failure::ControllerNotAuthenticated => {
                f.write_str("the target has not proved that it has its key")
            }
            Failure::NoRandomNumbers => f.write_str("there are no random numbers fit for keys"),
            Failure::Silent => f.write_str("the target does not answer"),
            Failure::Disconnected => f.write_str("the connection to the target is over"),
            Failure::Protocol(how) => write!(f, "the target broke the protocol: {how}"),
        }
    }
}

impl core::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Local(error)
    }
}

impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Failure {
        Failure::Local(error.into())
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        match error {
            ConnectError::NoPath => Error::Config("no path leads to the target's address").into(),
            ConnectError::Closed => Failure::Disconnected,
            ConnectError::Rejected
            | ConnectError::NoListener
            | ConnectError::RejectedByAgent(_)
            | ConnectError::TimedOut
            | ConnectError::Withdrawn => Failure::Refused(0),
            other => Failure::Local(Error::Connect(other)),
        }
    }
}

/// A namespace of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its identifier.
    pub id: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// The target takes no writes.
    pub is_read_only: bool,
}

/// What a controller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of a transfer.
    pub transfer: usize,
    /// Bytes of data that a capsule may bring.
    pub in_capsule: usize,
    /// The host may flush, since there is a volatile cache.
    pub has_volatile_cache: bool,
    /// Compare.
    pub compare: bool,
    /// Dataset Management.
    pub deallocate: bool,
    /// Write Zeroes.
    pub write_zeroes: bool,
}

/// A controller, its queues, and what they need. A host that drops it vanishes without a word to
/// the controller; the target then reaches no memory of the host any more.
pub struct Initiator {
    /// The admin queue, and behind it the I/O queues.
    queues: Vec<HostQueue>,
    common: Common,
    platform: Arc<dyn Platform>,
    options: Options,
    attention: Arc<Attention>,
    controller: u16,
    limits: Limits,
    namespaces: Vec<NamespaceInfo>,
    next_keep_alive: Instant,
    /// A Keep Alive that is not answered.
    keep_alive: bool,
    /// The answer of the command that is waited for.
    answer: Option<(Status, u64)>,
    failed: Option<Failure>,
    /// Where completions are taken: kept, since it takes longer to fill than to take some.
    taken: Vec<Completion>,
    /// Commands that are answered, but whose Sends are not complete.
    late: usize,
}

impl Initiator {
    /// Connects to a target: makes a controller, its queues, and a list of its namespaces. Blocks.
    pub fn connect(nic: &Nic, privileged: Privileged, options: Options) -> Result<Initiator, Failure> {
        let wrong = |what| Err(Failure::Local(Error::Config(what)));
        if !(1..=64).contains(&options.io_queues) || !(2..=1024).contains(&options.depth) {
            return wrong("a host has 1 to 64 I/O queues of 2 to 1024 entries");
        }
        if nvme::Nqn::new(options.subsystem.as_bytes()).is_err() {
            return wrong("the subsystem's name is no NQN");
        }
        if nvme::Nqn::new(options.host.as_bytes()).is_err() {
            return wrong("the host's name is no NQN");
        }
        let platform = nic.agent().platform().clone();
        let attention = Attention::new(&platform);
        let commands = 32 + u32::from(options.io_queues) * u32::from(options.depth);
        let queue = |entries| {
            let queue = nic.queue(entries)?;
            queue.watch(attention.waker());
            Ok::<_, CreateError>(queue)
        };
        let common = Common {
            domain: nic.domain()?,
            privileged,
            // A command has three requests at most: unlink, link, Send.
            requests: queue(4 * commands)?,
            receives: queue(2 * commands)?,
            waker: attention.connection_waker(),
        };
        let mut initiator = Initiator {
            queues: Vec::new(),
            common,
            next_keep_alive: platform.now(),
            platform,
            options,
            attention,
            controller: nvme::fabrics::CNTLID_DYNAMIC,
            limits: Limits {
                transfer: 4096,
                in_capsule: 0,
                has_volatile_cache: false,
                compare: false,
                deallocate: false,
                write_zeroes: false,
            },
            namespaces: Vec::new(),
            keep_alive: false,
            answer: None,
            failed: None,
            taken: alloc::vec![Completion::EMPTY; BATCH],
            late: 0,
        };
        initiator.set_up()?;
        Ok(initiator)
    }

    /// The namespaces of the target when the host connected.
    pub fn namespaces(&self) -> &[NamespaceInfo] {
        &self.namespaces
    }

    /// What the controller can do.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The number of I/O queues.
    pub fn io_queues(&self) -> usize {
        self.queues.len().saturating_sub(1)
    }

    /// The entries of an I/O queue. One fewer may be outstanding.
    pub fn depth(&self) -> usize {
        self.queues.get(1).map_or(0, |queue| queue.size())
    }

    /// The controller's identifier.
    pub fn controller(&self) -> u16 {
        self.controller
    }

    /// Lets requests name a buffer. It lives as long as the region, and until the requests that
    /// name it have ended. An entry of a queue keeps the buffers of its last two requests.
    pub fn register(&self, buffer: Arc<DmaBuffer>) -> Region {
        self.common.domain.direct_buffer(buffer, self.common.privileged)
    }

    /// Takes completions: `into` gets each request's token, its status, and its result. Returns how
    /// many there were. Sends a Keep Alive when it is time.
    ///
    /// Fails when a connection is over or the target breaks the protocol. Then no request completes
    /// any more, and the host has to connect anew.
    pub fn poll(&mut self, into: &mut dyn FnMut(u64, Status, u64)) -> Result<usize, Failure> {
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        let polled = self.take(into);
        if let Err(failure) = polled {
            self.failed = Some(failure);
        }
        polled
    }

    /// Sleeps until a completion may be there, or until `deadline`.
    pub fn wait(&mut self, seen: u32, deadline: Instant) {
        // Completions of Sends wake the thread only while one is late: as a rule a Send is complete
        // before its command is answered, so a wake-up for it would find nothing to finish.
        let sends_came = self.late > 0 && self.common.requests.arm();
        if !self.common.receives.arm() && !sends_came {
            self.attention.signal.wait(seen, Some(deadline.min(self.next_keep_alive)));
        }
    }

    /// The value for [`Initiator::wait`], to be read before a poll that finds nothing.
    pub fn seen(&self) -> u32 {
        self.attention.signal.value()
    }

    /// Disconnects, as a host does that is done: shuts the controller down.
    pub fn disconnect(mut self) {
        if self.failed.is_none() {
            // A target that does not answer is left all the same.
            let _ = self.shut_down();
        }
    }

    /// Whether one of the connections is over.
    fn is_disconnected(&self) -> bool {
        self.queues.iter().any(|queue| queue.endpoint.is_closed())
    }
}

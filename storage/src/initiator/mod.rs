//! The initiator: a host of a target.
//!
//! [`Initiator::connect`] makes a controller and its queues. The consumer gives it requests, and
//! takes their completions by [`Initiator::poll`]; it sleeps by [`Initiator::wait`]. The calls
//! [`Initiator::read`], [`Initiator::write`] and [`Initiator::flush`] wait by themselves. All of it
//! belongs to one thread, so nothing here has a lock.
//!
//! The target reaches the data of a request through a region that the initiator links to it for
//! this request alone, by it_lmr_link in front of the command. The target's response unlinks the
//! region. Short data to write go in the capsule.

mod admin;
mod queue;
mod requests;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use nvme::status::Status;
use platform::{Instant, Platform, Signal};
use privileged_api::{
    DtoCompletion, EvdFlags, EvdHandle, EvdParam, EvdParamMask, Event, EventType, Ia, Path, PzHandle,
};

use crate::Error;
use crate::error::Calling;
use crate::events;
use crate::net;
use queue::HostQueue;
pub use requests::{NotSent, Operation, Region, Request};

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
    /// A call of IT-API failed, or the options are wrong.
    Local(Error),
    /// The target refused a connection: the code of NVMe over RDMA, 0 if it gave none.
    Refused(u16),
    /// The target refused a command: which, its status, and its result.
    Command(&'static str, Status, u64),
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

/// A controller, its queues, and what they need.
pub struct Initiator {
    ia: Ia,
    platform: Arc<dyn Platform>,
    options: Options,
    signal: Arc<Signal>,
    path: Path,
    pz: PzHandle,
    requests: EvdHandle,
    receives: EvdHandle,
    messages: EvdHandle,
    /// The admin queue, and behind it the I/O queues.
    queues: Vec<HostQueue>,
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
    taken: Vec<DtoCompletion>,
    /// Commands that are answered, but whose Sends are not complete.
    late: usize,
    /// Completions of Sends wake the thread. They do only while one is late: as a rule a Send is
    /// complete before its command is answered, so a wake-up for it would find nothing to finish.
    hears_sends: bool,
}

impl Initiator {
    /// Connects to a target: makes a controller, its queues, and a list of its namespaces. Blocks.
    /// The IA has to be that of a privileged consumer.
    pub fn connect(ia: Ia, platform: Arc<dyn Platform>, options: Options) -> Result<Initiator, Failure> {
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
        let path = net::path(&ia, options.address)?;
        let pz = ia.pz_create().calling("it_pz_create")?;
        let commands = 32 + usize::from(options.io_queues) * usize::from(options.depth);
        let evd = |stream, size| {
            ia.evd_create(stream, EvdFlags::empty(), size, 1, EvdHandle::NULL).calling("it_evd_create")
        };
        // A command has three requests at most: unlink, link, Send.
        let requests = evd(EventType::DTO_EVENT_STREAM, 4 * commands)?;
        let receives = evd(EventType::DTO_EVENT_STREAM, 2 * commands)?;
        let messages = evd(EventType::CM_MSG_EVENT_STREAM, 4 * (1 + usize::from(options.io_queues)))?;
        let signal = Arc::new(Signal::new(platform.clone()));
        let raised = signal.clone();
        events::attach(&ia, &[requests, receives, messages], move || raised.raise())?;
        let mut initiator = Initiator {
            next_keep_alive: platform.now(),
            ia,
            platform,
            options,
            signal,
            path,
            pz,
            requests,
            receives,
            messages,
            queues: Vec::new(),
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
            taken: alloc::vec![DtoCompletion::default(); BATCH],
            late: 0,
            hears_sends: true,
        };
        match initiator.set_up() {
            Ok(()) => Ok(initiator),
            Err(failure) => {
                initiator.free();
                Err(failure)
            }
        }
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

    /// The interface adapter.
    pub fn ia(&self) -> &Ia {
        &self.ia
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
        let hears = self.late > 0;
        if hears != self.hears_sends {
            self.hears_sends = hears;
            let param = EvdParam { evd_enabled: hears, ..EvdParam::default() };
            // It fails only if the IA is dead, which the next poll reports.
            let _ = self.ia.evd_modify(self.requests, EvdParamMask::ENABLED, &param);
            if hears {
                // Another poll finds what came before the event dispatcher was enabled.
                return;
            }
        }
        self.signal.wait(seen, Some(deadline.min(self.next_keep_alive)));
    }

    /// The value for [`Initiator::wait`], to be read before a poll that finds nothing.
    pub fn seen(&self) -> u32 {
        self.signal.value()
    }

    /// Disconnects, as a host does that is done: shuts the controller down. Returns the IA, on
    /// which nothing of the initiator is left.
    pub fn disconnect(mut self) -> Ia {
        if self.failed.is_none() {
            // A target that does not answer is left all the same.
            let _ = self.shut_down();
        }
        self.free()
    }

    /// Disconnects without a word to the controller, as a host does that vanishes.
    pub fn abandon(self) -> Ia {
        self.free()
    }

    /// Frees all queues. The target reaches no memory of the host any more.
    fn free_queues(&mut self) {
        for queue in self.queues.drain(..) {
            queue.free(&self.ia);
        }
    }

    fn free(mut self) -> Ia {
        self.free_queues();
        // A call fails only if the IA is dead.
        events::free(&self.ia, &*self.platform, &[self.requests, self.receives, self.messages]);
        let _ = self.ia.pz_free(self.pz);
        self.ia
    }

    /// Looks at the events of the connections.
    fn take_messages(&mut self) -> Result<Option<Event>, Failure> {
        match self.ia.evd_dequeue(self.messages) {
            Ok(event) => Ok(Some(event)),
            Err(privileged_api::Error::QueueEmpty) => Ok(None),
            Err(error) => Err(Failure::Local(Error::Api("it_evd_dequeue", error))),
        }
    }
}

//! The target's thread: what it owns, and its loop.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use platform::sync::atomic::{AtomicBool, Ordering};
use platform::{Instant, Platform, Signal};
use privileged_api::{
    ConnQual, DtoCompletion, EvdFlags, EvdHandle, EvdParam, EvdParamMask, Event, EventType, Ia, ListenFlags,
    ListenHandle, PzHandle, SpigotInfo,
};

use super::commands::{Commands, Index};
use super::config::Config;
use super::earlier::Leftovers;
use super::flow::Capsule;
use super::namespace::{MEMORY, Namespace};
use super::pool::{LARGE, LONGEST, Pool, SMALL, Sizes};
use super::queue::Queues;
use super::receives::Receives;
use super::said::Said;
use super::shares::Shares;
use super::statistics::{Snapshot, Statistics};
use super::subsystem::{Controllers, Subsystem};
use crate::Error;
use crate::error::Calling;
use crate::events;
use crate::mapped::Mapped;
use crate::net;

/// Events that are taken at once.
const BATCH: usize = 64;
/// Rounds without work after which the thread sleeps. Few, since a round costs as much as a tenth
/// of a wake-up, and more rounds find little.
const IDLE_ROUNDS: u32 = 4;
/// Rounds with work, one soon after the other, after which the target is under load: from then on
/// until it sleeps, it polls.
const BUSY_ROUNDS: u32 = 8;
/// How often timers are looked at.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Connection requests that may wait.
const BACKLOG: usize = 64;
/// The bytes of a response.
pub(super) const RESPONSE: usize = size_of::<nvme::completion::Completion>();
/// Large chunks for the data of commands about no namespace. There is a small one for each queue.
const ADMIN_LARGE: usize = 16;

/// What other threads share with the target's.
pub(super) struct Shared {
    pub(super) signal: Arc<Signal>,
    /// Events of connections may be queued. A callback of the agent sets it, and the target's
    /// thread dequeues such events only while it is set.
    has_messages: AtomicBool,
    stops: AtomicBool,
    statistics: Statistics,
}

/// Stops a target from another thread, and reads its counters.
#[derive(Clone)]
pub struct Control(Arc<Shared>);

impl Control {
    /// Makes [`Target::run`] disconnect all hosts, after the commands that they have outstanding,
    /// and return. That takes 5 seconds at most, whatever hosts and disks do.
    pub fn stop(&self) {
        self.0.stops.store(true, Ordering::Release);
        self.0.signal.raise();
    }

    /// The target's counters.
    pub fn statistics(&self) -> Snapshot {
        self.0.statistics.snapshot()
    }
}

/// A target that listens. [`Target::run`] serves its hosts.
pub struct Target {
    pub(super) ia: Ia,
    pub(super) platform: Arc<dyn Platform>,
    pub(super) config: Config,
    pub(super) shared: Arc<Shared>,
    pub(super) spigot: SpigotInfo,
    pub(super) pz: PzHandle,
    /// Completions of Sends and RDMA operations.
    pub(super) requests: EvdHandle,
    /// Completions of Receives.
    pub(super) receives_evd: EvdHandle,
    /// Events of connections.
    pub(super) messages: EvdHandle,
    /// Requests for connections.
    pub(super) asked: EvdHandle,
    pub(super) listen: Option<ListenHandle>,
    pub(super) receives: Receives,
    /// A response for each command.
    pub(super) responses: Mapped,
    pub(super) commands: Commands,
    pub(super) queues: Queues,
    /// The queues, by endpoint.
    pub(super) by_ep: BTreeMap<u64, u32>,
    /// Capsules for which their queues have no entry, oldest first. Each keeps its place.
    pub(super) postponed: VecDeque<Capsule>,
    /// Entries that are promised to queues.
    pub(super) promised: usize,
    pub(super) subsystem: Subsystem,
    /// Discovery controllers.
    pub(super) discovery: Controllers,
    /// Memory for the data of commands about no namespace, and which queues have some.
    pub(super) admin_pool: Pool,
    pub(super) admin_shares: Shares,
    /// A page on its way into DMA memory.
    pub(super) page: Vec<u8>,
    /// Where completions are taken: kept, since it takes longer to fill than to take some.
    taken: Vec<DtoCompletion>,
    /// The entries of a queue that ends.
    pub(super) ending: Vec<Index>,
    /// The event dispatchers of completions that run their callbacks.
    heard: Heard,
    next_tick: Instant,
    /// The time of the last round, in nanoseconds of the platform's clock.
    pub(super) clock: u64,
    /// The target takes no commands and no connections any more.
    pub(super) is_stopping: bool,
    /// What hosts have left to disks, and the commands that wait for its end.
    pub(super) leftovers: Leftovers,
    pub(super) for_earlier: VecDeque<Index>,
    /// Some of it has ended.
    pub(super) earlier_ended: bool,
    /// A controller's reset or shutdown may be complete.
    pub(super) may_settle: bool,
    /// Lines about connections that are refused, and about disks that fail.
    pub(super) said_refused: Said,
    pub(super) said_failed: Said,
}

/// Which event dispatchers of completions are enabled, so that their callbacks wake the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    requests: bool,
    receives: bool,
}

impl Target {
    /// A target that listens on all addresses of the IA. The IA has to be that of a privileged
    /// consumer.
    ///
    /// Fails if the configuration is wrong, or resources are missing; then everything that was made
    /// on the IA is freed with it.
    pub fn new(ia: Ia, platform: Arc<dyn Platform>, config: Config) -> Result<Target, Error> {
        config.check()?;
        let info = ia.ia_query().calling("it_ia_query")?;
        let spigot = info.spigot_info.into_iter().next();
        let spigot = spigot.ok_or(Error::Config("the interface adapter has no spigot"))?;
        let evd = |stream, size| {
            ia.evd_create(stream, EvdFlags::empty(), size, 1, EvdHandle::NULL).calling("it_evd_create")
        };
        let pz = ia.pz_create().calling("it_pz_create")?;
        // A command has two requests at most at a time: an RDMA Write and a Send.
        let requests = evd(EventType::DTO_EVENT_STREAM, 2 * config.commands)?;
        let receives_evd = evd(EventType::DTO_EVENT_STREAM, config.commands / 2)?;
        let messages = evd(EventType::CM_MSG_EVENT_STREAM, 4 * config.queues)?;
        let asked = evd(EventType::CM_REQ_EVENT_STREAM, BACKLOG)?;
        let receives = Receives::new(&ia, &platform, pz, config.commands / 2, config.in_capsule)?;
        let responses = Mapped::new(&ia, &platform, config.commands * RESPONSE)?;
        let admin_pool = Pool::new(&ia, &platform, pz, Sizes { small: config.queues, large: ADMIN_LARGE })?;
        let (mut namespaces, mut transfer) = (Vec::new(), LONGEST);
        for export in &config.disks {
            let geometry = export.disk.geometry();
            if !geometry.block_size.is_power_of_two() || !(512..=4096).contains(&geometry.block_size) {
                return Err(Error::Config("a disk has blocks of 512, 1024, 2048 or 4096 bytes"));
            }
            if geometry.blocks == 0 {
                return Err(Error::Config("a disk is empty"));
            }
            let pieces = geometry.most_pieces.saturating_mul(LARGE);
            transfer = transfer.min(pieces).min(geometry.most_bytes as usize);
            // A quarter in small chunks.
            let sizes = Sizes { small: config.memory / 4 / SMALL, large: config.memory * 3 / 4 / LARGE };
            let pool = Pool::new(&ia, &platform, pz, sizes)?;
            namespaces.push(Namespace::new(export, pool, config.controllers));
        }
        if transfer < SMALL {
            return Err(Error::Config("a disk takes less than 8 KiB, or less than one piece, at once"));
        }
        let shared = Arc::new(Shared {
            signal: Arc::new(Signal::new(platform.clone())),
            has_messages: AtomicBool::new(true),
            stops: AtomicBool::new(false),
            statistics: Statistics::default(),
        });
        let signal = shared.signal.clone();
        events::attach(&ia, &[requests, receives_evd], move || signal.raise())?;
        let note = {
            let shared = shared.clone();
            move || {
                // Before the signal, so that the thread finds the mark when it wakes.
                shared.has_messages.store(true, Ordering::Release);
                shared.signal.raise();
            }
        };
        events::attach(&ia, &[messages, asked], note)?;
        for namespace in &namespaces {
            let signal = shared.signal.clone();
            namespace.disk.watch(Some(Arc::new(move || signal.raise())));
        }
        let qualifier = ConnQual::rdma_tcp(config.port);
        let listen = ia
            .listen_create(spigot.spigot_id, asked, ListenFlags::CONN_QUAL_INPUT, Some(&qualifier))
            .calling("it_listen_create")?;
        Ok(Target {
            next_tick: platform.now(),
            shared,
            spigot,
            pz,
            requests,
            receives_evd,
            messages,
            asked,
            listen: Some(listen.0),
            receives,
            responses,
            commands: Commands::new(config.commands),
            queues: Queues::new(config.queues),
            by_ep: BTreeMap::new(),
            postponed: VecDeque::with_capacity(config.commands / 2),
            promised: 0,
            subsystem: Subsystem {
                nqn: config.nqn.clone(),
                serial: config.serial.to_string(),
                allowed: config.allowed.clone(),
                namespaces,
                transfer: 1 << transfer.ilog2(),
                controllers: Controllers::new(config.controllers),
            },
            discovery: Controllers::new(config.controllers),
            admin_pool,
            admin_shares: Shares::new(config.queues),
            page: alloc::vec![0; 4096],
            taken: alloc::vec![DtoCompletion::default(); BATCH],
            ending: Vec::with_capacity(config.commands),
            heard: Heard { requests: true, receives: true },
            clock: platform.now().as_nanos(),
            is_stopping: false,
            leftovers: Leftovers::default(),
            for_earlier: VecDeque::with_capacity(config.commands),
            earlier_ended: false,
            may_settle: false,
            said_refused: Said::default(),
            said_failed: Said::default(),
            ia,
            platform,
            config,
        })
    }

    /// The IP addresses at which the target listens, IPv4 first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self.spigot.net_addr.iter().filter_map(net::ip).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// What other threads need.
    pub fn control(&self) -> Control {
        Control(self.shared.clone())
    }

    pub(super) fn statistics(&self) -> &Statistics {
        &self.shared.statistics
    }

    /// Nanoseconds of the platform's clock.
    pub(super) fn now(&self) -> u64 {
        self.platform.now().as_nanos()
    }

    /// Serves hosts until [`Control::stop`] is called or the interface adapter dies, and frees all
    /// that the target made on the interface adapter.
    pub fn run(mut self) -> Result<(), Error> {
        let served = self.serve();
        let ended = self.end();
        served.and(ended)
    }

    fn serve(&mut self) -> Result<(), Error> {
        let (mut busy, mut idle) = (0, 0);
        loop {
            let seen = self.shared.signal.value();
            if self.shared.stops.load(Ordering::Acquire) {
                return Ok(());
            }
            if self.round()? {
                (busy, idle) = (busy + 1, 0);
                if busy == BUSY_ROUNDS {
                    // The device sends no interrupts for what the thread finds anyway.
                    self.hear(Heard { requests: false, receives: false })?;
                }
                continue;
            }
            idle += 1;
            if idle < IDLE_ROUNDS {
                core::hint::spin_loop();
                continue;
            }
            // Another look finds what came before an event dispatcher was enabled, or a disk armed.
            if self.hear(Heard { requests: self.awaits_requests(), receives: true })? || self.arm_disks() {
                continue;
            }
            self.shared.signal.wait(seen, Some(self.next_tick));
            (busy, idle) = (0, 0);
        }
    }

    /// Whether something waits for the completion of a request: data that are fetched, or memory or
    /// an entry that a command gives back when its response is sent. All other completions can wait
    /// until the thread is awake for something else, or for the next tick.
    fn awaits_requests(&self) -> bool {
        let waits = |namespace: &Namespace| MEMORY.iter().any(|&kind| namespace.shares[kind].has_waiting());
        self.commands.fetching() > 0
            || !self.postponed.is_empty()
            || self.admin_shares.has_waiting()
            || self.subsystem.namespaces.iter().any(waits)
    }

    /// Lets the event dispatchers of completions run their callbacks, or not. True if one does that
    /// did not before.
    fn hear(&mut self, wanted: Heard) -> Result<bool, Error> {
        let old = core::mem::replace(&mut self.heard, wanted);
        for (evd, was, is) in [
            (self.requests, old.requests, wanted.requests),
            (self.receives_evd, old.receives, wanted.receives),
        ] {
            if was != is {
                let param = EvdParam { evd_enabled: is, ..EvdParam::default() };
                self.ia.evd_modify(evd, EvdParamMask::ENABLED, &param).calling("it_evd_modify")?;
            }
        }
        Ok(wanted.requests && !old.requests || wanted.receives && !old.receives)
    }

    /// Looks everywhere once. True if there was something to do.
    pub(super) fn round(&mut self) -> Result<bool, Error> {
        let now = self.platform.now();
        self.clock = now.as_nanos();
        let mut worked = self.take_messages()?;
        // Before the capsules, which need the entries of the commands that are complete.
        worked |= self.take_completions()?;
        self.take_postponed();
        worked |= self.take_capsules()?;
        worked |= self.take_disks();
        self.follow_earlier();
        self.serve_waiting();
        if now >= self.next_tick {
            self.tick(self.clock);
            self.next_tick = now + TICK;
        }
        Ok(worked)
    }

    /// Takes completed Receives.
    pub(super) fn take_capsules(&mut self) -> Result<bool, Error> {
        self.take(self.receives_evd, Target::capsule)
    }

    /// Takes completed Sends and RDMA operations.
    fn take_completions(&mut self) -> Result<bool, Error> {
        self.take(self.requests, Target::completed)
    }

    /// Takes completions. True if there were some.
    fn take(&mut self, evd: EvdHandle, each: fn(&mut Target, &DtoCompletion)) -> Result<bool, Error> {
        let count = match self.ia.evd_dequeue_n(evd, &mut self.taken) {
            Ok(count) => count,
            Err(privileged_api::Error::QueueEmpty) => return Ok(false),
            Err(error) => return Err(Error::Api("it_evd_dequeue", error)),
        };
        let taken = core::mem::take(&mut self.taken);
        for done in taken.iter().take(count) {
            each(self, done);
        }
        self.taken = taken;
        Ok(count > 0)
    }

    /// Takes requests for connections, and events of connections.
    fn take_messages(&mut self) -> Result<bool, Error> {
        let mut worked = false;
        // A callback that sets the mark again after this has an event for the next round.
        if !self.shared.has_messages.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        for evd in [self.messages, self.asked] {
            for taken in 0..=BATCH {
                if taken == BATCH {
                    // The callback runs again only after the queue was found empty.
                    self.shared.has_messages.store(true, Ordering::Release);
                    break;
                }
                let event = match self.ia.evd_dequeue(evd) {
                    Ok(event) => event,
                    Err(privileged_api::Error::QueueEmpty) => break,
                    Err(error) => {
                        self.shared.has_messages.store(true, Ordering::Release);
                        return Err(Error::Api("it_evd_dequeue", error));
                    }
                };
                worked = true;
                match &event {
                    Event::ConnRequest(request) => self.request(request),
                    Event::ConnEstablished { ep, .. } => self.established(ep.as_raw()),
                    Event::ConnDisconnect { ep, .. }
                    | Event::ConnBroken { ep, .. }
                    | Event::ConnPeerReject { ep, .. }
                    | Event::ConnNonpeerReject { ep, .. } => self.ended(ep.as_raw())?,
                    _ => {}
                }
            }
        }
        Ok(worked)
    }

    /// Takes what the disks have done.
    fn take_disks(&mut self) -> bool {
        let mut done: heapless::Vec<(u64, Result<(), block::Fault>), BATCH> = heapless::Vec::new();
        let mut worked = false;
        for place in 0..self.subsystem.namespaces.len() {
            let namespace = &mut self.subsystem.namespaces[place];
            if namespace.on_disk == 0 {
                continue;
            }
            done.clear();
            namespace.disk.poll(BATCH, &mut |token, result| {
                // A disk hands over no more than it was asked for.
                let _ = done.push((token, result));
            });
            for &(token, result) in &done {
                worked = true;
                self.finished(place, token, result);
            }
        }
        worked
    }

    /// Lets the disks that have requests wake the thread. True if one may have finished some.
    pub(super) fn arm_disks(&self) -> bool {
        self.subsystem.namespaces.iter().any(|namespace| namespace.on_disk > 0 && namespace.disk.arm())
    }

    /// Notes how many connections and controllers there are.
    pub(super) fn count(&self) {
        let controllers = self.subsystem.controllers.len() + self.discovery.len();
        self.statistics().now_there_are(self.queues.len(), controllers);
    }
}

//! A thread of the target: what it owns, and its loop.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use platform::{Instant, Platform, Privileged};
use rdma::{Completion, Domain, Listener, Nic};

use super::ana::Ana;
use super::auth::{Hosts, Jobs};
use super::capsule::Capsule;
use super::commands::{Commands, Index};
use super::config::{Config, MOST_PORTS};
use super::control::{Closing, Control, Shared};
use super::crew::{Crew, MANAGER, Worker};
use super::leftovers::Leftovers;
use super::manage;
use super::metrics::{HostTable, Tally};
use super::namespace::Namespace;
use super::namespaces::Namespaces;
use super::pool::{LONGEST, Pool, SMALL};
use super::port::Port;
use super::queue::Queues;
use super::reservations::Reservations;
use super::said::Said;
use super::shares::Shares;
use super::statistics::Statistics;
use super::subsystem::{Controllers, Named, Subsystem};
use crate::Error;
use crate::attention::Attention;
use crate::auth::Random;

/// Completions and requests for connections that are taken at once.
const BATCH: usize = 64;
/// Rounds without work after which the thread sleeps. Few, since a round costs as much as a tenth
/// of a wake-up, and more rounds find little.
const IDLE_ROUNDS: u32 = 4;
/// How often timers are looked at.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// A target that listens. [`Target::run`] serves its hosts.
///
/// It has the state of one thread. Those of others are in its [`Target::workers`].
pub struct Target {
    pub(super) privileged: Privileged,
    // Its endpoints end before the memory that their requests name.
    pub(super) queues: Queues,
    pub(super) ports: Vec<Port>,
    pub(super) platform: Arc<dyn Platform>,
    pub(super) config: Config,
    pub(super) shared: Arc<Shared>,
    pub(super) commands: Commands,
    /// The queues, by endpoint.
    pub(super) by_endpoint: BTreeMap<u64, u32>,
    /// Capsules for which their queues have no entry, oldest first. Each keeps its buffer.
    pub(super) postponed: VecDeque<Capsule>,
    /// Entries that are promised to queues.
    pub(super) promised: usize,
    pub(super) subsystem: Subsystem,
    /// Discovery controllers.
    pub(super) discovery: Controllers,
    /// The generation of what the discovery service lists.
    pub(super) generation: u64,
    /// What is computed to authenticate hosts.
    pub(super) jobs: Jobs,
    /// Which queues have memory for the data of commands about no namespace.
    pub(super) admin_shares: Shares,
    /// A page on its way into DMA memory.
    pub(super) page: Vec<u8>,
    /// Where completions are taken: kept, since it takes longer to fill than to take some.
    taken: Vec<Completion>,
    /// The entries of a queue that ends.
    pub(super) ending: Vec<Index>,
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
    pub(super) reservations: Reservations,
    /// No Abort has looked for a command in this round.
    pub(super) may_abort: bool,
    /// A controller's reset or shutdown may be complete.
    pub(super) may_settle: bool,
    /// Lines about connections that are refused, and about disks that fail.
    pub(super) said_refused: Said,
    pub(super) said_failed: Said,
    /// Hosts are disconnected, at this time at the latest, and none may connect.
    pub(super) drain: Option<u64>,
    /// What is counted beside the statistics.
    pub(super) hosts: HostTable,
    pub(super) refused: Tally,
    pub(super) unconnected: Tally,
    pub(super) sleeps: u64,
    /// The other threads, and those of them that nobody has taken.
    pub(super) crew: Crew,
    workers: Vec<Worker>,
    _closing: Closing,
}

impl Target {
    /// A target that listens on all addresses of these NICs, up to [`MOST_PORTS`]. Each is a port
    /// of the subsystem.
    ///
    /// Fails if the configuration is wrong, or resources are missing.
    pub fn new(nics: &[Nic], privileged: Privileged, mut config: Config) -> Result<Target, Error> {
        config.check()?;
        let first = nics.first().filter(|_| nics.len() <= MOST_PORTS);
        let first = first.ok_or(Error::Config("a target has 1 to 8 NICs"))?;
        let platform = first.agent().platform().clone();
        // No copy of their keys stays behind when they get others.
        let hosts = Hosts::new(core::mem::take(&mut config.hosts));
        let random = Random::new(&platform);
        let random = if hosts.has_keys() { Some(random?) } else { random.ok() };
        let shared = || Arc::new(Shared::new(Attention::new(&platform)));
        let all: Arc<[Arc<Shared>]> = (0..config.workers).map(|_| shared()).collect();
        let domains = nics.iter().map(Nic::domain).collect::<Result<Vec<Domain>, _>>()?;
        let of_thread = config.of_thread();
        let mut tables: Vec<Namespaces> = all.iter().map(|_| Namespaces::default()).collect();
        let mut transfer = LONGEST;
        for export in &config.disks {
            let (mut made, its) = manage::namespaces(&domains, privileged, &of_thread, export, all.len())?;
            let number = config.number_of(export);
            made.iter_mut().for_each(|namespace| namespace.subsystem = number);
            transfer = transfer.min(its);
            for (table, namespace) in tables.iter_mut().zip(made) {
                // There is a place for each.
                table.add(Box::new(namespace));
            }
        }
        if transfer < SMALL {
            return Err(Error::Config("a disk takes less than 8 KiB, or less than one piece, at once"));
        }
        let Some((managers, others)) = tables.split_first_mut() else {
            return Err(Error::Config("a target has 1 to 16 threads"));
        };
        let reservations = Reservations::new(&config, managers, &platform, &all[MANAGER].attention)?;
        for table in others {
            table.copy_reservations(managers);
        }
        let subsystem = |namespaces| Subsystem {
            named: Named::all(&config, !hosts.is_empty()),
            hosts: hosts.clone(),
            namespaces,
            ana: alloc::vec![Ana::new(config.ana_state); domains.len()],
            transfer: 1 << transfer.ilog2(),
            controllers: Controllers::new(config.controllers, config.controller_ids()),
            has_reservations: config.has_reservations(),
            has_pairs: config.has_pairs(),
        };
        let mut reservations = Some(reservations);
        let mut threads = Vec::with_capacity(all.len());
        for (me, namespaces) in tables.into_iter().enumerate() {
            let crew = Crew::new(me, all.clone());
            let subsystem = subsystem(namespaces);
            let jobs = Jobs::new(random.clone(), config.queues);
            let mut thread = Target::thread(nics, &domains, privileged, &of_thread, crew, subsystem, jobs)?;
            thread.reservations = reservations.take().unwrap_or_default();
            threads.push(thread);
        }
        let mut threads = threads.into_iter();
        let mut target = threads.next().ok_or(Error::Config("a target has 1 to 16 threads"))?;
        target.workers = threads.map(Worker).collect();
        for port in &mut target.ports {
            port.listen(config.port, &target.shared.attention)?;
        }
        Ok(target)
    }

    /// What one thread has.
    fn thread(
        nics: &[Nic],
        domains: &[Domain],
        privileged: Privileged,
        config: &Config,
        crew: Crew,
        subsystem: Subsystem,
        jobs: Jobs,
    ) -> Result<Target, Error> {
        let shared = crew.all[crew.me].clone();
        let platform = shared.attention.signal.platform().clone();
        let port = |((place, nic), domain): ((usize, &Nic), &Domain)| {
            Port::new(config.port_id(place), nic, domain, privileged, config, &shared.attention)
        };
        let ports = nics.iter().enumerate().zip(domains).map(port).collect::<Result<Vec<Port>, _>>()?;
        let (workers, manager) = match crew.is_manager() {
            true => (crew.all[MANAGER + 1..].to_vec(), None),
            false => (Vec::new(), Some(crew.all[MANAGER].clone())),
        };
        let target = Target {
            privileged,
            queues: Queues::new(config.queues),
            ports,
            next_tick: platform.now(),
            _closing: Closing { own: shared.clone(), workers, manager },
            shared,
            crew,
            workers: Vec::new(),
            commands: Commands::new(config.commands),
            by_endpoint: BTreeMap::new(),
            postponed: VecDeque::with_capacity(config.commands / 2),
            promised: 0,
            subsystem,
            discovery: Controllers::new(config.controllers, config.controller_ids()),
            generation: 1,
            jobs,
            admin_shares: Shares::new(config.queues),
            page: alloc::vec![0; 4096],
            taken: alloc::vec![Completion::EMPTY; BATCH],
            ending: Vec::with_capacity(config.commands),
            clock: platform.now().as_nanos(),
            is_stopping: false,
            leftovers: Leftovers::default(),
            for_earlier: VecDeque::with_capacity(config.commands),
            earlier_ended: false,
            reservations: Reservations::default(),
            may_abort: true,
            may_settle: false,
            said_refused: Said::default(),
            said_failed: Said::default(),
            drain: None,
            hosts: HostTable::default(),
            refused: Tally::default(),
            unconnected: Tally::default(),
            sleeps: 0,
            platform,
            config: config.clone(),
        };
        for namespace in target.subsystem.namespaces.iter() {
            target.watch_disk(&*namespace.disk);
        }
        Ok(target)
    }

    /// The other threads of a target with several ([`Config::workers`]), once. The caller runs each
    /// in a thread of its own, before [`Target::run`]. Those that are not taken serve nothing.
    pub fn workers(&mut self) -> Vec<Worker> {
        core::mem::take(&mut self.workers)
    }

    /// The IP addresses at which the target listens: those of its first NIC first, and of each NIC
    /// IPv4 first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.ports.iter().flat_map(Port::addresses).collect()
    }

    /// The domains of the ports, in their order.
    pub(super) fn domains(&self) -> Vec<Domain> {
        self.ports.iter().map(|port| port.domain.clone()).collect()
    }

    /// The memory for the data of a command about no namespace.
    pub(super) fn admin_pool_of(&self, index: Index) -> &Pool {
        &self.ports[self.commands[index].port].admin_pool
    }

    /// What other threads need.
    pub fn control(&self) -> Control {
        let all = self.crew.all.clone();
        Control { shared: all[MANAGER].clone(), all, platform: self.platform.clone() }
    }

    pub(super) fn statistics(&self) -> &Statistics {
        &self.shared.statistics
    }

    /// Nanoseconds of the platform's clock.
    pub(super) fn now(&self) -> u64 {
        self.platform.now().as_nanos()
    }

    /// Serves hosts until [`Control::stop`] is called or the devices of all NICs are dead, and
    /// frees all that the target made. If the device of one NIC dies, its hosts lose their
    /// controllers, and the target serves on by the others.
    pub fn run(mut self) -> Result<(), Error> {
        // Workers that nobody took will not run. They end here, so that the manager does not wait.
        self.workers.clear();
        if self.crew.is_manager() {
            let others = self.crew.others().filter(|&other| !self.crew.all[other].has_ended()).count();
            for place in 0..self.subsystem.namespaces.len() {
                if let Some(namespace) = self.subsystem.namespaces.get_mut(place) {
                    namespace.elsewhere = others;
                }
            }
        }
        let served = self.serve();
        let ended = self.end();
        served.and(ended)
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut idle = 0;
        loop {
            let seen = self.shared.attention.signal.value();
            if self.shared.is_to_stop() {
                return Ok(());
            }
            if self.shared.has_calls() {
                self.take_calls();
                self.take_messages();
            }
            if self.round()? {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < IDLE_ROUNDS {
                core::hint::spin_loop();
                continue;
            }
            // Only now: the device sends no interrupts for what the thread finds anyway.
            if self.arm() || self.arm_disks() || self.reservations.arm() {
                continue;
            }
            self.sleeps += 1;
            self.shared.attention.signal.wait(seen, Some(self.next_tick));
            idle = 0;
        }
    }

    /// Whether something waits for the completion of a request: data that are fetched, or memory or
    /// an entry that a command gives back when its response is sent. All other completions can wait
    /// until the thread is awake for something else, or for the next tick.
    fn awaits_requests(&self) -> bool {
        let waits = |namespace: &Namespace| namespace.memory_is_awaited();
        self.commands.fetching() > 0
            || !self.postponed.is_empty()
            || self.admin_shares.has_waiting()
            || self.subsystem.namespaces.iter().any(waits)
    }

    /// Lets completions wake the thread. True if one has come already. A port that has ended is
    /// left out: the queues of a dead device report that for ever, and nothing waits for them.
    fn arm(&self) -> bool {
        let awaits = self.awaits_requests();
        let mut ports = self.ports.iter().filter(|port| port.ended.is_none());
        ports.any(|port| awaits && port.requests.arm() || port.arrivals.arm())
    }

    /// Does what [`Target::run`] does again and again, once: for a test or a benchmark in which the
    /// target has no thread.
    #[cfg(any(test, feature = "testing"))]
    pub fn step(&mut self) -> Result<(), Error> {
        self.round().map(|_| ())
    }

    /// Looks everywhere once. True if there was something to do.
    pub(super) fn round(&mut self) -> Result<bool, Error> {
        let now = self.platform.now();
        self.clock = now.as_nanos();
        self.look_at_ports()?;
        let mut worked = self.take_connections();
        // Before the capsules, which need the entries of the commands that are complete.
        worked |= self.take_completions();
        self.may_abort = true;
        self.take_postponed();
        worked |= self.take_capsules();
        worked |= self.take_disks();
        self.follow_earlier();
        self.follow_reservations();
        self.serve_waiting();
        worked |= self.compute(worked);
        if now >= self.next_tick {
            self.tick(self.clock);
            self.next_tick = now + TICK;
        }
        Ok(worked)
    }

    /// Takes completed Receives.
    fn take_capsules(&mut self) -> bool {
        let (mut taken, mut worked) = (core::mem::take(&mut self.taken), false);
        for port in 0..self.ports.len() {
            let count = self.ports[port].arrivals.poll(&mut taken);
            taken[..count].iter().for_each(|done| self.capsule(port, done));
            worked |= count > 0;
        }
        self.taken = taken;
        worked
    }

    /// Takes completed Sends and RDMA operations.
    fn take_completions(&mut self) -> bool {
        let (mut taken, mut worked) = (core::mem::take(&mut self.taken), false);
        for port in 0..self.ports.len() {
            let count = self.ports[port].requests.poll(&mut taken);
            taken[..count].iter().for_each(|done| self.completed(done));
            worked |= count > 0;
        }
        self.taken = taken;
        worked
    }

    /// Looks at the connections, and takes requests for others.
    fn take_connections(&mut self) -> bool {
        if !self.shared.attention.take_connections() {
            return false;
        }
        let mut worked = self.look_at_connections();
        for port in 0..self.ports.len() {
            for taken in 0..=BATCH {
                let incoming = self.ports[port].listener.as_ref().and_then(Listener::try_accept);
                let Some(incoming) = incoming else { break };
                worked = true;
                self.request(port, incoming);
                if taken == BATCH {
                    // The rest is for the next round.
                    self.shared.attention.mark_connections();
                }
            }
        }
        worked
    }

    /// Takes what the disks have done.
    fn take_disks(&mut self) -> bool {
        let mut done: heapless::Vec<(u64, Result<(), block::Fault>), BATCH> = heapless::Vec::new();
        let mut worked = false;
        for place in 0..self.subsystem.namespaces.len() {
            let Some(namespace) = self.subsystem.namespaces.get_mut(place) else { continue };
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
            self.begin_pair(place);
        }
        worked
    }

    /// Lets the disks that have requests wake the thread. True if one may have finished some.
    pub(super) fn arm_disks(&self) -> bool {
        self.subsystem.namespaces.iter().any(|namespace| namespace.on_disk > 0 && namespace.disk.arm())
    }

    /// Notes how many connections and controllers there are.
    pub(super) fn count(&self) {
        // A worker has copies of the manager's.
        let is_manager = self.crew.is_manager();
        let controllers = self.subsystem.controllers.len() + self.discovery.len();
        let controllers = if is_manager { controllers } else { 0 };
        self.statistics().now_there_are(self.queues.len(), controllers);
    }
}

//! The configuration of a target: what it serves, and its limits.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::RangeInclusive;
use core::time::Duration;

use block::Disk;
use nvme::log::AnaState;

use super::auth::Host;
use crate::Error;

/// NVMe's port, by IANA.
pub const PORT: u16 = 4420;
/// The most namespaces of a target.
pub const MOST_NAMESPACES: usize = 64;

/// The most targets of a subsystem.
pub const MOST_PATHS: u16 = 8;
/// The most subsystems of a target.
pub const MOST_SUBSYSTEMS: usize = 16;
/// The most referrals to other discovery services.
const MOST_REFERRALS: usize = 16;
/// The most NICs of a target.
pub const MOST_PORTS: usize = 8;
/// The most threads of a target.
pub const MOST_WORKERS: usize = 16;
/// The most entries of an admin queue.
pub(super) const ADMIN_ENTRIES: u16 = 32;
/// The largest identifier of a controller.
const LAST_CONTROLLER: u16 = 0xffef;

/// The least memory of a namespace: a Compare takes memory for its data twice.
pub(super) const LEAST_MEMORY: usize = 4 << 20;

/// What a queue of so many entries takes of its thread's commands: a host that has had the
/// responses of all may send as many more before the target has seen these Sends complete.
pub(super) fn commands_of_queue(size: u16) -> usize {
    2 * usize::from(size)
}

/// A disk that hosts may use.
#[derive(Clone)]
pub struct Export {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Its name for all hosts and all times. Two disks never have the same one.
    pub uuid: [u8; 16],
    /// The qualified names of the hosts that see it, of those that may use its subsystem; `None`
    /// for all of them.
    pub hosts: Option<Vec<String>>,
    /// The qualified name of its subsystem, one of [`Config::subsystems`]; `None` for the first.
    pub subsystem: Option<String>,
}

impl Export {
    /// A disk of the first subsystem, for all hosts.
    pub fn new(disk: Arc<dyn Disk>, uuid: [u8; 16]) -> Export {
        Export { disk, uuid, hosts: None, subsystem: None }
    }
}

/// A subsystem beside the first one, with namespaces and controllers of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemConfig {
    /// Its qualified name.
    pub nqn: String,
    /// Its serial number: up to 20 ASCII characters.
    pub serial: String,
    /// The qualified names of the only hosts that may use it; `None` for those that may use the
    /// first one. What [`Config::hosts`] has of one of these holds here as well: its key, and the
    /// namespaces that it sees.
    pub hosts: Option<Vec<String>>,
}

impl SubsystemConfig {
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_nqn(&self.nqn)?;
        check_serial(&self.serial)?;
        let hosts = self.hosts.iter().flatten();
        match hosts.into_iter().all(|name| is_nqn(name)) {
            true => Ok(()),
            false => Err(Error::Config("a host's name is no NQN")),
        }
    }
}

fn is_nqn(name: &str) -> bool {
    nvme::Nqn::new(name.as_bytes()).is_ok()
}

/// Refuses what is no name of a subsystem.
fn check_nqn(name: &str) -> Result<(), Error> {
    if !is_nqn(name) {
        let why = "the subsystem's name is no NQN: it begins with `nqn.` and has up to 223 bytes";
        return Err(Error::Config(why));
    }
    match name == nvme::nqn::DISCOVERY.as_str() {
        true => Err(Error::Config("the subsystem has the name of the discovery service")),
        false => Ok(()),
    }
}

fn check_serial(serial: &str) -> Result<(), Error> {
    let is_right =
        (1..=20).contains(&serial.len()) && serial.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let why = "a serial number has 1 to 20 printable ASCII characters";
    if is_right { Ok(()) } else { Err(Error::Config(why)) }
}

/// What a target serves, and its limits.
#[derive(Clone)]
pub struct Config {
    /// The port of rdma_cm's port space TCP at which it listens.
    pub port: u16,
    /// The first subsystem's qualified name.
    pub nqn: String,
    /// The first subsystem's serial number: up to 20 ASCII characters.
    pub serial: String,
    /// Other subsystems, 15 at most.
    pub subsystems: Vec<SubsystemConfig>,
    /// The qualified names of the hosts that may use the first subsystem, beside `hosts`. `None` is
    /// for any host while there are no `hosts`, and for no others once there were.
    pub allowed: Option<Vec<String>>,
    /// Hosts that may use it, with their keys, and the namespaces that they see.
    pub hosts: Vec<Host>,
    /// A host that has to authenticate, and does not go on for so long, loses its connection.
    pub authentication_timeout: Duration,
    /// Other discovery services that the target's names to hosts, 16 at most.
    pub referrals: Vec<SocketAddr>,
    /// The disks, as namespaces 1, 2, …
    pub disks: Vec<Export>,
    /// Where registrations and reservations persist through a loss of power: 512 KiB at least,
    /// which are zero at first. Without it none persists. Nobody else may use the disk.
    pub state: Option<Arc<dyn Disk>>,
    /// The most entries of an I/O queue, 2 to 1,024.
    pub depth: u16,
    /// The most I/O queues of a controller, 1 to 128.
    pub io_queues: u16,
    /// The most controllers.
    pub controllers: usize,
    /// The most queues of all controllers, the admin queues among them.
    pub queues: usize,
    /// The most commands of all hosts that may be outstanding. Each queue takes twice its size, and
    /// an admin queue has up to 32 entries. There has to be room for an admin queue and for an I/O
    /// queue of `depth` entries: with several threads, one of the two for each.
    /// Half as many capsules may arrive before the target has looked at them: one for each entry of
    /// a queue.
    pub commands: usize,
    /// Bytes of data that a capsule may bring, a multiple of 16.
    pub in_capsule: usize,
    /// A host that lets none of the target's Sends and RDMA Reads complete for so long, since it
    /// posts no Receives or does not answer, loses its connection.
    pub response_timeout: Duration,
    /// Bytes of memory for the data of each namespace, for each NIC. One whose disk lends its
    /// memory has a quarter, 4 MiB at least.
    pub memory: usize,
    /// A disk that has requests and finishes none for so long is given up: hosts with commands on
    /// it lose their connections, and it gets no commands until it has finished all that it has.
    /// Longer than a host waits for a command, so that the host gives up first: Linux waits for 30
    /// seconds.
    pub disk_timeout: Duration,
    /// Disks may be added that are different from the first ones: hosts are told that there are
    /// volatile caches, and disks that discard and write zeros, since they ask only once.
    pub grows: bool,
    /// Which one of several targets of the subsystem this is, from 1 to [`MOST_PATHS`]; `None` if
    /// there is no other. All of them export the same disks in the same order, with the same names,
    /// and have the same name and serial number. Each has controller identifiers of its own. There
    /// are no reservations then, since a target knows only what its own hosts have reserved.
    pub path: Option<u16>,
    /// The threads that serve hosts' queues, 1 to [`MOST_WORKERS`]: the one of
    /// [`Target::run`](super::Target::run), and those of the others
    /// ([`Target::workers`](super::Target::workers)). They divide `commands` and `memory` among
    /// them. With several, hosts cannot have a Compare and a Write carried out as one.
    pub workers: usize,
    /// How well hosts reach the namespaces by all ports of this target at first
    /// ([`Control::set_ana_state`](super::Control::set_ana_state)).
    pub ana_state: AnaState,
}

impl Config {
    /// A target of these disks for any host, with limits that fit a guest of 512 MiB.
    pub fn new(nqn: impl Into<String>, disks: Vec<Export>) -> Config {
        Config {
            port: PORT,
            nqn: nqn.into(),
            serial: "ferrovia".into(),
            subsystems: Vec::new(),
            allowed: None,
            hosts: Vec::new(),
            authentication_timeout: Duration::from_secs(30),
            referrals: Vec::new(),
            disks,
            state: None,
            depth: 128,
            io_queues: 16,
            controllers: 64,
            queues: 256,
            commands: 16_384,
            in_capsule: 8 << 10,
            response_timeout: Duration::from_secs(10),
            memory: 16 << 20,
            disk_timeout: Duration::from_secs(45),
            grows: false,
            path: None,
            workers: 1,
            ana_state: AnaState::Optimized,
        }
    }

    /// The number of a disk's subsystem.
    pub(super) fn number_of(&self, export: &Export) -> usize {
        let is_its = |other: &SubsystemConfig| Some(&other.nqn) == export.subsystem.as_ref();
        self.subsystems.iter().position(is_its).map_or(0, |place| place + 1)
    }

    /// The identifier in the subsystem of the target's port with this place: no port of another
    /// target has it.
    pub(super) fn port_id(&self, place: usize) -> u16 {
        match self.path {
            None => place as u16 + 1,
            Some(path) => path + MOST_PATHS * place as u16,
        }
    }

    /// The identifiers of the target's controllers.
    pub(super) fn controller_ids(&self) -> RangeInclusive<u16> {
        let of_path = LAST_CONTROLLER / MOST_PATHS;
        match self.path {
            None => 1..=LAST_CONTROLLER,
            Some(path) => (path - 1) * of_path + 1..=path * of_path,
        }
    }

    /// Whether hosts can reserve namespaces.
    pub(super) fn has_reservations(&self) -> bool {
        self.path.is_none()
    }

    /// Whether a Compare and a Write can be one operation: no other target, and no other thread,
    /// may write between them.
    pub(super) fn has_pairs(&self) -> bool {
        self.path.is_none() && self.workers == 1
    }

    /// The share of each of the target's threads: the same limits, and a part of the memory.
    pub(super) fn of_thread(&self) -> Config {
        Config {
            commands: self.commands_of_thread(),
            memory: (self.memory / self.workers).max(LEAST_MEMORY),
            disks: Vec::new(),
            hosts: Vec::new(),
            state: None,
            ..self.clone()
        }
    }

    /// The commands that each thread has: a part of all, but not less than two I/O queues take.
    fn commands_of_thread(&self) -> usize {
        let least = 2 * commands_of_queue(self.depth);
        (self.commands / self.workers).max(least.min(self.commands))
    }

    /// Whether a host can connect whose queues are as long as they may be. With several threads its
    /// I/O queue is another one's than its admin queue.
    fn has_room_for_a_host(&self) -> bool {
        let (admin, io) = (commands_of_queue(ADMIN_ENTRIES), commands_of_queue(self.depth));
        let needed = if self.workers > 1 { admin.max(io) } else { admin + io };
        self.commands_of_thread() >= needed
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |is_wrong: bool, what| if is_wrong { Err(Error::Config(what)) } else { Ok(()) };
        check_nqn(&self.nqn)?;
        check_serial(&self.serial)?;
        self.subsystems.iter().try_for_each(SubsystemConfig::check)?;
        wrong(self.subsystems.len() >= MOST_SUBSYSTEMS, "a target has 16 subsystems at most")?;
        let others = || self.subsystems.iter().map(|other| &other.nqn);
        let is_twice = |(place, nqn): (usize, &String)| {
            *nqn == self.nqn || others().skip(place + 1).any(|other| other == nqn)
        };
        wrong(others().enumerate().any(is_twice), "two subsystems have the same name")?;
        let is_unknown = |export: &Export| {
            export
                .subsystem
                .as_ref()
                .is_some_and(|name| *name != self.nqn && others().all(|other| other != name))
        };
        wrong(self.disks.iter().any(is_unknown), "a disk is of a subsystem that is not there")?;
        let hosts = self.allowed.iter().flatten();
        wrong(!hosts.into_iter().all(|name| is_nqn(name)), "a host's name is no NQN")?;
        wrong(!self.hosts.iter().all(|host| is_nqn(&host.nqn)), "a host's name is no NQN")?;
        wrong(self.referrals.len() > MOST_REFERRALS, "a target names 16 other discovery services at most")?;
        let of_first = |name: &String| {
            let may_any = self.allowed.is_none() && self.hosts.is_empty();
            may_any
                || self.hosts.iter().any(|host| host.nqn == *name)
                || self.allowed.iter().flatten().any(|one| one == name)
        };
        for export in &self.disks {
            let its = |other: &&SubsystemConfig| export.subsystem.as_ref() == Some(&other.nqn);
            let only = self.subsystems.iter().find(its).and_then(|other| other.hosts.as_ref());
            for name in export.hosts.iter().flatten() {
                wrong(!is_nqn(name), "a host's name is no NQN")?;
                let may = only.map_or_else(|| of_first(name), |only| only.contains(name));
                wrong(!may, "a disk is for a host that may not use the target")?;
            }
        }
        let no_hosts = |export: &Export| export.hosts.as_ref().is_some_and(Vec::is_empty);
        wrong(self.disks.iter().any(no_hosts), "a disk is for no host")?;
        wrong(
            self.path.is_some_and(|path| !(1..=MOST_PATHS).contains(&path)),
            "a subsystem has the paths 1 to 8",
        )?;
        wrong(
            self.path.is_some() && self.state.is_some(),
            "targets that share disks have no reservations, and so no state of them",
        )?;
        wrong(!(1..=MOST_WORKERS).contains(&self.workers), "a target has 1 to 16 threads")?;
        wrong(self.disks.is_empty() && !self.grows, "there is no disk to export")?;
        wrong(self.disks.len() > MOST_NAMESPACES, "a target has 64 namespaces at most")?;
        wrong(!(2..=1024).contains(&self.depth), "a queue has 2 to 1024 entries")?;
        wrong(!(1..=128).contains(&self.io_queues), "a controller has 1 to 128 I/O queues")?;
        wrong(!(1..=4096).contains(&self.controllers), "a target has 1 to 4096 controllers")?;
        wrong(!(2..=4096).contains(&self.queues), "a target has 2 to 4096 queues")?;
        wrong(self.commands > 1 << 17, "a target has 131072 commands outstanding at most")?;
        wrong(
            !self.has_room_for_a_host(),
            "each thread has too few commands outstanding for an admin queue and for an I/O queue of the \
             chosen depth, which take twice their entries: allow more commands, or choose a lower depth",
        )?;
        wrong(
            !self.in_capsule.is_multiple_of(16) || self.in_capsule > 1 << 16,
            "a capsule has a multiple of 16 bytes of data, 65536 at most",
        )?;
        wrong(
            !(Duration::from_millis(1)..=Duration::from_secs(600)).contains(&self.disk_timeout),
            "a disk has a time limit of 1 ms to 600 s",
        )?;
        wrong(!(LEAST_MEMORY..=1 << 30).contains(&self.memory), "a namespace has 4 MiB to 1 GiB of memory")
    }
}

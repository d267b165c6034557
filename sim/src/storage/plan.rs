//! What a seed decides before its run begins.

use std::time::Duration;

use ::storage::target::Config;
use block::Geometry;
use platform::random::Random;

use super::raw;
use crate::Network;

/// The subsystem's name.
pub(super) const NQN: &str = "nqn.2026-01.org.ferrovia:sim";
/// Blocks of a host on each namespace. As many belong to hosts that break rules.
pub(super) const OWN: u64 = 48;
/// Blocks behind those, by which a disk that changes its size gets shorter.
pub(super) const TAIL: u64 = 24;
/// The entries of an admin queue, as every host here has them.
const ADMIN: usize = 32;

/// A host.
#[derive(Clone, Debug)]
pub(super) struct HostPlan {
    pub(super) io_queues: u16,
    pub(super) depth: u16,
    pub(super) keep_alive: Duration,
    /// Requests that it has outstanding at most.
    pub(super) window: usize,
    /// How often it connects in a turn, and the requests of each connection.
    pub(super) lives: u64,
    pub(super) requests: u64,
}

impl HostPlan {
    fn new(random: &mut Random) -> HostPlan {
        let io_queues = 1 + random.small(4) as u16;
        let entries = [4, 31][random.below(2) as usize];
        let depth = 2 + random.small(entries) as u16;
        let most = u64::from(io_queues) * u64::from(depth - 1);
        HostPlan {
            io_queues,
            depth,
            keep_alive: Duration::from_millis(100 + random.below(900)),
            window: 1 + random.below(most) as usize,
            lives: 1 + random.below(3),
            requests: 20 + random.below(60),
        }
    }

    /// Commands that the target keeps entries for.
    fn commands(&self) -> usize {
        2 * (ADMIN + usize::from(self.io_queues) * usize::from(self.depth))
    }
}

/// What the targets of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// How many export the disks, as paths of one subsystem if there are two.
    pub(super) targets: usize,
    /// The threads of each, and its ports.
    pub(super) threads: usize,
    pub(super) ports: usize,
}

impl Shape {
    /// The shape of a seed's run. Only a short cut joins more than two NICs.
    pub(super) fn of(seed: u64, network: Network) -> Shape {
        let mut random = Random::new(seed ^ 0x7468_7265_6164);
        let (targets, threads) = match random.below(6) {
            0 => (2, 1),
            1..=2 => (1, 2 + random.below(2) as usize),
            _ => (1, 1),
        };
        let has_ports = random.rarely(3) && targets == 1 && network == Network::ShortCut;
        Shape { targets, threads, ports: 1 + usize::from(has_ports) }
    }
}

/// A run.
pub(super) struct Plan {
    pub(super) shape: Shape,
    /// The network may break connections.
    pub(super) is_faulty: bool,
    /// Nothing goes wrong, and each host ends its connections at the end only.
    pub(super) is_quiet: bool,
    /// The target gives up disks that stall for some time, and their hosts' connections.
    pub(super) is_impatient: bool,
    /// How often the target is started.
    pub(super) turns: u64,
    pub(super) hosts: Vec<HostPlan>,
    /// There is a host that breaks rules.
    pub(super) is_rude: bool,
    pub(super) disks: Vec<Geometry>,
    /// The last of them is a guest: it comes as a namespace while the target runs, and goes.
    pub(super) has_guest: bool,
    /// Disks change their size.
    pub(super) resizes: bool,
    /// Hosts have to prove who they are.
    pub(super) has_keys: bool,
    /// By exchanges of values.
    pub(super) exchanges: bool,
    /// There is a host that tries to do without a key.
    pub(super) has_intruder: bool,
    /// Hosts see some namespaces only, and others as time goes by.
    pub(super) has_views: bool,
    /// Hosts that share a namespace by reservations. There is none with one of them alone.
    pub(super) sharers: u8,
    /// Reservations persist, if a host wants that.
    pub(super) persists: bool,
    /// The target's, without disks.
    pub(super) config: Config,
}

impl Plan {
    pub(super) fn new(random: &mut Random, network: Network, shape: Shape) -> Plan {
        let Shape { targets, threads: workers, .. } = shape;
        let is_faulty = matches!(network, Network::Faulty | Network::Lossy);
        let is_quiet = !is_faulty && random.rarely(4);
        let hosts: Vec<_> = (0..1 + random.below(3)).map(|_| HostPlan::new(random)).collect();
        let is_rude = !is_quiet && random.rarely(3);
        let shares = hosts.len() as u64 + 1;
        let mut disks: Vec<_> = (0..1 + random.below(3)).map(|_| geometry(random, shares)).collect();
        // There is room for each host, but sometimes not for all of them.
        let mut between = |most: usize, all: usize| match random.rarely(3) {
            true => most + random.below((all - most) as u64 + 1) as usize,
            false => 2 * all + 8,
        };
        let sum = |of: &dyn Fn(&HostPlan) -> usize| {
            let each = || hosts.iter().map(of);
            (each().max().unwrap_or(1), each().sum())
        };
        let (most, all) = sum(&|host| host.commands());
        let commands = between(most, all);
        let (most, all) = sum(&|host| 1 + usize::from(host.io_queues));
        let queues = between(most, all);
        let controllers = between(1, hosts.len());
        let is_impatient = !is_quiet && random.rarely(4);
        let patience = if is_impatient { 100 + random.below(1000) } else { 45_000 };
        let entries = [31, 62][random.below(2) as usize];
        let depth = 2 + random.small(entries) as u16;
        // A target has room for a host with the longest queues that it allows.
        let commands = commands.max(2 * (ADMIN + usize::from(depth)));
        let config = Config {
            depth,
            io_queues: 1 + random.small(4) as u16,
            controllers,
            queues,
            commands,
            in_capsule: [0, 512, 4096, 8192][random.below(4) as usize],
            memory: 4 << 20,
            disk_timeout: Duration::from_millis(patience),
            ..Config::new(NQN, Vec::new())
        };
        let turns = 1 + random.below(3);
        let [has_guest, resizes, has_keys, has_views] = std::array::from_fn(|_| random.rarely(3));
        let (exchanges, persists) = (random.rarely(8), !random.rarely(3));
        let has_intruder = has_keys && !is_quiet && random.rarely(2);
        let sharers = if random.rarely(2) { 2 + random.below(2) as u8 } else { 0 };
        // Targets on the same disks have no reservations. Namespaces that come and go, and what
        // hosts see, an operator would have to change at all of them.
        let is_one = targets == 1;
        let (has_guest, has_views) = (has_guest && is_one, has_views && is_one);
        let sharers = if is_one { sharers } else { 0 };
        if has_guest {
            // The target has told its hosts what all disks can do, so this one has to do as much.
            disks.push(Geometry { most_pieces: 8, ..geometry(random, shares) });
        }
        // There is room for those who share a namespace, beside what there is for others.
        let more = usize::from(sharers);
        let config = Config {
            grows: has_guest,
            controllers: controllers + more,
            queues: queues + 2 * more,
            // They divide the commands, but each has those of one alone here.
            commands: workers * (commands + more * 2 * usize::from(raw::ADMIN + raw::IO)),
            workers,
            ..config
        };
        Plan {
            shape,
            is_faulty,
            is_quiet,
            is_impatient,
            turns,
            hosts,
            is_rude,
            disks,
            has_guest,
            resizes,
            has_keys,
            exchanges,
            has_intruder,
            has_views,
            sharers,
            persists,
            config,
        }
    }

    /// The disks that are there when the target starts. They are the first namespaces.
    pub(super) fn fixed(&self) -> usize {
        self.disks.len() - usize::from(self.has_guest)
    }

    /// The identifier of the namespace that hosts share, if there is one.
    pub(super) fn shared_nsid(&self) -> u32 {
        self.fixed() as u32 + 1
    }

    /// Namespaces when the target starts.
    pub(super) fn namespaces(&self) -> u32 {
        self.fixed() as u32 + u32::from(self.sharers > 0)
    }

    /// Blocks of a disk that it always has.
    pub(super) fn least_blocks(&self) -> u64 {
        OWN * (self.hosts.len() as u64 + 1)
    }
}

/// A time below 2^`most` ns; short ones are as frequent as long ones.
pub(super) fn time(random: &mut Random, most: u64) -> Duration {
    let bits = 10 + random.below(most - 9);
    Duration::from_nanos(random.below(1 << bits))
}

/// A disk with so many shares of blocks.
fn geometry(random: &mut Random, shares: u64) -> Geometry {
    Geometry {
        block_size: if random.rarely(4) { 4096 } else { 512 },
        blocks: OWN * shares + TAIL,
        is_read_only: false,
        has_volatile_cache: !random.rarely(5),
        discard: !random.rarely(4),
        write_zeroes: !random.rarely(4),
        most_bytes: 1 << 20,
        most_pieces: 1 + random.below(8) as usize,
        queue_depth: 1 + random.below(12) as usize,
    }
}

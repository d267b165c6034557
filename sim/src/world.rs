//! A simulation from start to end.

use std::sync::Arc;
use std::time::Duration;

use host::{Arena, HostPlatform};
use nic_hal::Transport;
use nic_model::{Fabric, NicConfig, Stats};
use platform::{Platform, Privileged};

use crate::network::{Cable, Network, NetworkFaults, Seen, faults_of};
use crate::nic::{Model, Port, SimNic, Watched};
use crate::scheduler::{Scheduler, Simulated};

const ARENA: usize = 256 << 20;

/// The platform and the NICs of a simulation.
pub struct World {
    platform: Arc<dyn Platform>,
    nics: Vec<Arc<dyn Transport>>,
    fronts: Vec<Arc<SimNic>>,
    memory: Arc<Arena>,
    watched: Arc<Watched>,
    seen: Vec<Seen>,
    scheduler: Arc<Scheduler>,
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<T> {
    /// The scenario's result.
    pub value: T,
    /// A digest of all choices that the scheduler made.
    pub trace: u64,
    /// The names of threads that have not ended.
    pub left: Vec<String>,
}

/// Runs `scenario` with `nics` NICs, all connected with each other by a short cut, as `seed`
/// decides.
///
/// # Panics
///
/// If all threads wait for ever, which is a deadlock. The same seed repeats every failure.
pub fn run<T>(seed: u64, nics: u8, scenario: impl FnOnce(&World) -> T) -> Outcome<T> {
    run_on(seed, nics, Network::ShortCut, scenario)
}

/// Runs `scenario` with two NICs that `network` joins, as `seed` decides.
///
/// # Panics
///
/// As [`run`].
pub fn run_over<T>(seed: u64, network: Network, scenario: impl FnOnce(&World) -> T) -> Outcome<T> {
    run_on(seed, 2, network, scenario)
}

pub(crate) fn run_on<T>(
    seed: u64,
    nics: u8,
    network: Network,
    scenario: impl FnOnce(&World) -> T,
) -> Outcome<T> {
    let arena = Arc::new(Arena::new(ARENA));
    let watched = Arc::new(Watched::new(arena.clone()));
    let scheduler = Scheduler::new(seed, usize::from(nics));
    let platform: Arc<dyn Platform> =
        Arc::new(HostPlatform::on(arena.clone(), Box::new(Simulated(scheduler.clone()))));
    let mut model = Model { fabric: Fabric::new(), ids: Vec::new() };
    let mut fronts: Vec<Arc<SimNic>> = Vec::new();
    for n in 0..nics {
        let config = NicConfig::numbered(n, arena.limit());
        let nic = Arc::new(SimNic::new(watched.clone(), scheduler.clone(), usize::from(n), config.vectors));
        let id =
            model.fabric.add_nic(config, Port(nic.clone())).expect("a configuration of our own is valid");
        for &other in model.ids.iter().filter(|_| network == Network::ShortCut) {
            model.fabric.connect(other, id);
        }
        model.ids.push(id);
        fronts.push(nic);
    }
    let Cable { ends, seen } = Cable::new(network, seed);
    for (&id, (wire, config)) in model.ids.iter().zip(ends) {
        model.fabric.attach(id, wire, &config).expect("a port of our own is valid");
    }
    scheduler.set_device(Box::new(model));
    let nics = fronts.iter().map(|nic| nic.clone() as Arc<dyn Transport>).collect();
    let world = World { platform, nics, fronts, memory: arena, watched, seen, scheduler: scheduler.clone() };
    let value = scenario(&world);
    scheduler.settle();
    // The device refers to the scheduler through its NICs.
    scheduler.take_device();
    Outcome { value, trace: scheduler.trace(), left: scheduler.alive() }
}

impl World {
    /// The platform.
    pub fn platform(&self) -> Arc<dyn Platform> {
        self.platform.clone()
    }

    /// The transports of all NICs.
    pub fn transports(&self) -> Vec<Arc<dyn Transport>> {
        self.nics.clone()
    }

    /// The token of privileged consumers: the maker of a world is its boot code.
    pub fn privileged(&self) -> Privileged {
        host::privileged()
    }

    /// Lets other threads run until all of them wait or have ended.
    pub fn settle(&self) {
        self.scheduler.settle();
    }

    /// A random number, decided by the seed.
    pub fn random(&self) -> u64 {
        self.scheduler.random()
    }

    /// The machine's memory, as the device accesses it.
    pub fn memory(&self) -> &Arc<Arena> {
        &self.memory
    }

    /// The first access of the device to memory that was not allocated, if there was one.
    pub fn strays(&self) -> Option<String> {
        self.watched.stray()
    }

    /// What each NIC did and dropped.
    pub fn stats(&self) -> Vec<Stats> {
        self.scheduler.stats()
    }

    /// What the network did to frames; nothing where there is a short cut.
    pub fn network_faults(&self) -> NetworkFaults {
        faults_of(&self.seen)
    }

    /// The clock, for what must not change the course of events.
    pub(crate) fn clock(&self) -> Clock {
        Clock(self.scheduler.clone())
    }

    /// Raises an interrupt of a NIC, whether it has a cause or not. A vector that does not exist
    /// has no effect.
    pub fn interrupt(&self, nic: usize, vector: u16) {
        if let Some(nic) = self.fronts.get(nic) {
            self.scheduler.as_device(|| nic.interrupt(vector));
        }
    }

    /// Ends the device and so all NICs, as if its process had been killed.
    pub fn kill_device(&self) {
        self.killer()();
    }

    /// A function that holds the thread that calls it: the thread passes so many opportunities to
    /// preempt it, and at the next one loses its CPU for so long.
    pub fn holder(&self) -> impl Fn(u64, Duration) + Send + Sync + use<> {
        let scheduler = self.scheduler.clone();
        move |after, lasting| scheduler.hold(after, lasting.as_nanos() as u64)
    }

    /// A function that does what [`World::kill_device`] does.
    pub fn killer(&self) -> impl Fn() + Send + Sync + use<> {
        let scheduler = self.scheduler.clone();
        move || scheduler.kill_device()
    }
}

/// Shows the virtual time. Unlike a look at the platform's clock, this takes no time, and no thread
/// is preempted by it.
#[derive(Clone)]
pub(crate) struct Clock(Arc<Scheduler>);

impl Clock {
    /// Nanoseconds since the simulation began.
    pub(crate) fn peek(&self) -> u64 {
        self.0.peek()
    }
}

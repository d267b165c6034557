//! A simulation from start to end.

use std::sync::Arc;

use host::{Arena, HostPlatform};
use nic_hal::Transport;
use nic_model::{Fabric, NicConfig};
use platform::{Platform, Privileged};

use crate::nic::{Model, Port, SimNic};
use crate::scheduler::{Scheduler, Simulated};

const ARENA: usize = 256 << 20;

/// The platform and the NICs of a simulation.
pub struct World {
    platform: Arc<dyn Platform>,
    nics: Vec<Arc<dyn Transport>>,
    fronts: Vec<Arc<SimNic>>,
    memory: Arc<Arena>,
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

/// Runs `scenario` with `nics` NICs, all connected with each other, as `seed` decides.
///
/// # Panics
///
/// If all threads wait for ever, which is a deadlock. The same seed repeats every failure.
pub fn run<T>(seed: u64, nics: u8, scenario: impl FnOnce(&World) -> T) -> Outcome<T> {
    let arena = Arc::new(Arena::new(ARENA));
    let scheduler = Scheduler::new(seed, usize::from(nics));
    let platform: Arc<dyn Platform> =
        Arc::new(HostPlatform::on(arena.clone(), Box::new(Simulated(scheduler.clone()))));
    let mut model = Model { fabric: Fabric::new(), ids: Vec::new() };
    let mut fronts: Vec<Arc<SimNic>> = Vec::new();
    for n in 0..nics {
        let config = NicConfig::numbered(n, arena.limit());
        let nic = Arc::new(SimNic::new(arena.clone(), scheduler.clone(), usize::from(n), config.vectors));
        let id =
            model.fabric.add_nic(config, Port(nic.clone())).expect("a configuration of our own is valid");
        for &other in &model.ids {
            model.fabric.connect(other, id);
        }
        model.ids.push(id);
        fronts.push(nic);
    }
    scheduler.set_device(Box::new(model));
    let nics = fronts.iter().map(|nic| nic.clone() as Arc<dyn Transport>).collect();
    let world = World { platform, nics, fronts, memory: arena, scheduler: scheduler.clone() };
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

    /// A random number, decided by the seed.
    pub fn random(&self) -> u64 {
        self.scheduler.random()
    }

    /// The machine's memory, as the device accesses it.
    pub fn memory(&self) -> &Arc<Arena> {
        &self.memory
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

    /// A function that does what [`World::kill_device`] does.
    pub fn killer(&self) -> impl Fn() + Send + Sync + use<> {
        let scheduler = self.scheduler.clone();
        move || scheduler.kill_device()
    }
}

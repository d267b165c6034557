//! A simulation from its beginning to its end.

use std::sync::Arc;

use host::{Arena, HostPlatform};
use nic_hal::Transport;
use nic_model::{Fabric, NicConfig};
use platform::{Platform, Privileged};

use crate::nic::{Model, Port, SimNic};
use crate::scheduler::{Scheduler, Simulated};

const ARENA: usize = 256 << 20;

/// What is there in a simulation.
pub struct World {
    platform: Arc<dyn Platform>,
    nics: Vec<Arc<dyn Transport>>,
    fronts: Vec<Arc<SimNic>>,
    memory: Arc<Arena>,
    scheduler: Arc<Scheduler>,
}

/// How a simulation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<T> {
    /// What the scenario returned.
    pub value: T,
    /// A digest of every choice that was made on the way.
    pub trace: u64,
    /// Threads that had not ended.
    pub left: Vec<String>,
}

/// Runs `scenario` with `nics` NICs, each joined to each, under `seed`.
///
/// # Panics
///
/// If all threads wait for ever: a deadlock. Whatever goes wrong, the same seed makes it go wrong again.
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
    // It holds on to the scheduler, by its NICs.
    scheduler.take_device();
    Outcome { value, trace: scheduler.trace(), left: scheduler.alive() }
}

impl World {
    /// The platform.
    pub fn platform(&self) -> Arc<dyn Platform> {
        self.platform.clone()
    }

    /// The ways to all NICs.
    pub fn transports(&self) -> Vec<Arc<dyn Transport>> {
        self.nics.clone()
    }

    /// The token of privileged consumers: whoever builds a world is its boot code.
    pub fn privileged(&self) -> Privileged {
        host::privileged()
    }

    /// A number that the seed decides.
    pub fn random(&self) -> u64 {
        self.scheduler.random()
    }

    /// The machine's memory, as a device reaches it.
    pub fn memory(&self) -> &Arc<Arena> {
        &self.memory
    }

    /// An interrupt of a NIC, whether it has a cause or not; of a vector that there is not, nothing.
    pub fn interrupt(&self, nic: usize, vector: u16) {
        if let Some(nic) = self.fronts.get(nic) {
            self.scheduler.as_device(|| nic.interrupt(vector));
        }
    }

    /// Ends the device, with all NICs, as if its process had been killed.
    pub fn kill_device(&self) {
        self.killer()();
    }

    /// What does that, for somebody else to call.
    pub fn killer(&self) -> impl Fn() + Send + Sync + use<> {
        let scheduler = self.scheduler.clone();
        move || scheduler.kill_device()
    }
}

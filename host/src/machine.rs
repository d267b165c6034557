//! A machine in one process: a platform, its NICs, and the device's thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nic_hal::Transport;
use nic_model::{Fabric, NicConfig, NicId, Progress, Stats, Wire, port};
use platform::{Platform, Privileged};

use crate::doorbell::Doorbell;
use crate::heap;
use crate::nic::{InProcessNic, Port};
use crate::platform::SLOWER;
use crate::{Arena, HostPlatform, Std};

/// The default size of a machine's DMA memory; pages that are never used cost nothing.
const ARENA: usize = if cfg!(miri) { 16 << 20 } else { 1 << 30 };
/// How long an idle device spins before it sleeps.
const SPIN: Duration = Duration::from_micros(10);
/// How many pieces of work the device does between two checks for requests to stop or pause.
const BUDGET: u32 = 64;

type Model = Fabric<Port>;

/// A platform with NICs that are all connected with each other.
pub struct Machine {
    platform: Arc<HostPlatform>,
    nics: Vec<Arc<InProcessNic>>,
    model: Arc<Mutex<Model>>,
    doorbell: Arc<Doorbell>,
    device: Option<JoinHandle<()>>,
    ids: Vec<NicId>,
}

impl Machine {
    /// A machine with `nics` NICs, all connected with each other, whose device runs in a thread of
    /// its own.
    pub fn new(nics: u8) -> Machine {
        Machine::with_memory(nics, ARENA)
    }

    /// As [`Machine::new`], with `bytes` bytes of DMA memory.
    pub fn with_memory(nics: u8, bytes: usize) -> Machine {
        Machine::build(nics, bytes, Vec::new())
    }

    /// A machine with a NIC for each of these wires and ports. They reach each other by their wires
    /// alone.
    ///
    /// # Panics
    ///
    /// If a port's configuration is not allowed.
    pub fn with_wires(wires: Vec<(Box<dyn Wire + Send>, port::Config)>) -> Machine {
        let nics = u8::try_from(wires.len()).expect("fewer than 256 NICs");
        Machine::build(nics, ARENA, wires)
    }

    fn build(nics: u8, bytes: usize, wires: Vec<(Box<dyn Wire + Send>, port::Config)>) -> Machine {
        let arena = Arc::new(Arena::new(bytes));
        let platform = Arc::new(HostPlatform::on(arena.clone(), Box::new(Std::new())));
        let doorbell = Arc::new(Doorbell::default());
        doorbell.requests().kicked = vec![false; usize::from(nics)];
        let mut model = Model::new();
        let mut ids: Vec<NicId> = Vec::new();
        let mut fronts = Vec::new();
        for n in 0..nics {
            let config = NicConfig { announce_less: cfg!(miri), ..NicConfig::numbered(n, arena.limit()) };
            let nic =
                Arc::new(InProcessNic::new(arena.clone(), doorbell.clone(), usize::from(n), config.vectors));
            let id = model.add_nic(config, Port(nic.clone())).expect("a configuration of our own is valid");
            for &other in ids.iter().filter(|_| wires.is_empty()) {
                model.connect(other, id);
            }
            ids.push(id);
            fronts.push(nic);
        }
        for (&id, (wire, config)) in ids.iter().zip(wires) {
            model.attach(id, wire, &config).expect("a port's configuration is allowed");
        }
        let model = Arc::new(Mutex::new(model));
        let device = {
            let (model, doorbell, platform) = (model.clone(), doorbell.clone(), platform.clone());
            let ids = ids.clone();
            std::thread::Builder::new()
                .name("device".into())
                .spawn(move || run_device(&model, &doorbell, &platform, &ids))
                .expect("a thread for the device")
        };
        Machine { platform, nics: fronts, model, doorbell, device: Some(device), ids }
    }

    /// The platform.
    pub fn platform(&self) -> Arc<dyn Platform> {
        self.platform.clone()
    }

    /// The machine's DMA memory.
    pub fn arena(&self) -> &Arc<Arena> {
        self.platform.memory()
    }

    /// The transport of NIC number `n`.
    ///
    /// # Panics
    ///
    /// If there is no such NIC.
    pub fn transport(&self, n: usize) -> Arc<dyn Transport> {
        self.nics[n].clone()
    }

    /// The transports of all NICs.
    pub fn transports(&self) -> Vec<Arc<dyn Transport>> {
        (0..self.nics.len()).map(|n| self.transport(n)).collect()
    }

    /// The token of privileged consumers: the maker of a machine is its boot code.
    pub fn privileged(&self) -> Privileged {
        privileged()
    }

    /// Ends the device as if its process had been killed: it answers nothing any more. When this
    /// returns, all its DMA is over.
    pub fn kill(&mut self) {
        self.doorbell.change(|requests| requests.stop = true);
        if let Some(device) = self.device.take() {
            // A device that panicked counts as killed; its panic was printed.
            let _ = device.join();
        }
    }

    /// Ends one NIC as if its power had failed: its heartbeat stops, and it answers nothing any
    /// more. What others send to it is lost.
    ///
    /// # Panics
    ///
    /// If there is no such NIC.
    pub fn power_off(&self, n: usize) {
        self.pause().model.power_off(self.ids[n]);
    }

    /// What each NIC did and dropped.
    pub fn stats(&self) -> Vec<Stats> {
        let paused = self.pause();
        self.ids.iter().filter_map(|&id| paused.model.stats(id).copied()).collect()
    }

    /// Stops the device's thread until the result is dropped. Meanwhile [`Paused::step`] runs the
    /// device.
    pub fn pause(&self) -> Paused<'_> {
        self.doorbell.change(|requests| requests.paused = true);
        let mut requests = self.doorbell.requests();
        while !requests.parked && !requests.stop {
            requests = self.doorbell.changed.wait(requests).unwrap_or_else(PoisonError::into_inner);
        }
        drop(requests);
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        Paused { machine: self, model }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The token of privileged consumers. In this process every NIC reaches an arena and nothing else.
pub fn privileged() -> Privileged {
    #[expect(unsafe_code, reason = "the maker of a machine is its boot code")]
    // SAFETY: the token gives its holder no memory that the process does not have already.
    unsafe {
        Privileged::assert()
    }
}

/// A machine whose device runs only on [`Paused::step`].
pub struct Paused<'a> {
    machine: &'a Machine,
    model: MutexGuard<'a, Model>,
}

impl Paused<'_> {
    /// Runs the device until it has nothing to do.
    pub fn step(&mut self) {
        while self.model.poll(self.machine.platform.now(), BUDGET) == Progress::Worked {}
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.machine.doorbell.change(|requests| requests.paused = false);
    }
}

fn run_device(model: &Mutex<Model>, doorbell: &Doorbell, platform: &HostPlatform, ids: &[NicId]) {
    heap::count_as_device();
    let mut idle_since = None;
    loop {
        {
            let mut requests = doorbell.requests();
            while requests.paused && !requests.stop {
                requests.parked = true;
                doorbell.changed.notify_all();
                requests = doorbell.changed.wait(requests).unwrap_or_else(PoisonError::into_inner);
            }
            requests.parked = false;
            if requests.stop {
                return;
            }
        }
        let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
        let now = platform.now();
        if model.poll(now, BUDGET) == Progress::Worked {
            idle_since = None;
            continue;
        }
        if now.since(*idle_since.get_or_insert(now)) < SPIN {
            drop(model);
            std::hint::spin_loop();
            continue;
        }
        idle_since = None;
        if model.prepare_sleep() {
            let deadline = model.next_deadline();
            // Only `Machine::pause` may need the model while the device sleeps, and it wakes the
            // device first.
            sleep(doorbell, platform, deadline);
            for (id, kicked) in ids.iter().zip(&mut doorbell.requests().kicked) {
                if std::mem::take(kicked) {
                    model.kicked(*id);
                }
            }
        }
        model.awake();
    }
}

fn sleep(doorbell: &Doorbell, platform: &HostPlatform, deadline: Option<platform::Instant>) {
    let mut requests = doorbell.requests();
    while !requests.stop && !requests.paused && !requests.kicked.contains(&true) {
        let Some(deadline) = deadline else {
            requests = doorbell.changed.wait(requests).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let left = deadline.since(platform.now());
        if left.is_zero() {
            return;
        }
        let waited = doorbell.changed.wait_timeout(requests, left * SLOWER);
        requests = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

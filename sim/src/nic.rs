//! A NIC of a simulation, and the device model as a task of the scheduler.

use std::sync::{Arc, Mutex, PoisonError};

use host::Arena;
use nic_abi::registers;
use nic_hal::{InterruptHandler, Transport};
use nic_model::{DmaError, Fabric, Frontend, GuestMemory, NicId, Progress, Stats, Wire};
use platform::{Instant, SharedSlice};

use crate::scheduler::{Next, Scheduler, Task};

/// How many pieces of work the device does each time it runs.
const BUDGET: u32 = 4;

/// The machine's memory, as the device reaches it. It notes the device's first access to
/// memory that the driver has not allocated.
pub(crate) struct Watched {
    arena: Arc<Arena>,
    stray: Mutex<Option<String>>,
}

impl Watched {
    pub(crate) fn new(arena: Arc<Arena>) -> Watched {
        Watched { arena, stray: Mutex::new(None) }
    }

    /// The first access to memory that was not allocated.
    pub(crate) fn stray(&self) -> Option<String> {
        self.stray.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl GuestMemory for Watched {
    #[inline]
    fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
        if len > 0 && !self.arena.is_lent(addr, len) {
            let mut stray = self.stray.lock().unwrap_or_else(PoisonError::into_inner);
            stray.get_or_insert_with(|| format!("{len} bytes at {addr:#x}, which nobody has allocated"));
        }
        self.arena.get(addr, len)
    }
}

/// The driver's side of a NIC.
pub(crate) struct SimNic {
    /// An arena of its own that holds the register file, and the address of that file.
    registers: (Arena, u64),
    memory: Arc<Watched>,
    handlers: Mutex<Vec<Option<InterruptHandler>>>,
    scheduler: Arc<Scheduler>,
    index: usize,
}

impl SimNic {
    pub(crate) fn new(memory: Arc<Watched>, scheduler: Arc<Scheduler>, index: usize, vectors: u16) -> SimNic {
        let own = Arena::new(2 * registers::SIZE);
        let file = own.alloc(registers::SIZE, 4096).expect("an arena with room for it");
        let handlers = Mutex::new((0..vectors).map(|_| None).collect());
        SimNic { registers: (own, file.bus), memory, handlers, scheduler, index }
    }

    pub(crate) fn interrupt(&self, vector: u16) {
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(handler)) = handlers.get(usize::from(vector)) {
            handler();
        }
    }

    fn register_file(&self) -> SharedSlice<'_> {
        let (memory, at) = &self.registers;
        memory.get(*at, registers::SIZE as u64).expect("allocated in `new`")
    }
}

impl Transport for SimNic {
    fn registers(&self) -> SharedSlice<'_> {
        self.register_file()
    }

    fn kick(&self) {
        self.scheduler.kick(self.index);
    }

    fn vectors(&self) -> u16 {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner).len() as u16
    }

    fn set_vector(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        let mut handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = handlers.get_mut(usize::from(vector)) else { return false };
        *slot = handler;
        true
    }
}

/// The model's side of a NIC.
pub(crate) struct Port(pub(crate) Arc<SimNic>);

impl Frontend for Port {
    type Memory = Watched;
    type Wire = Box<dyn Wire + Send>;

    fn registers(&self) -> SharedSlice<'_> {
        self.0.register_file()
    }

    fn memory(&self) -> &Watched {
        &self.0.memory
    }

    fn raise(&self, vector: u16) {
        self.0.interrupt(vector);
    }
}

/// All NICs of a simulation.
pub(crate) struct Model {
    pub(crate) fabric: Fabric<Port>,
    pub(crate) ids: Vec<NicId>,
}

impl Task for Model {
    fn run(&mut self, now: Instant) -> Next {
        self.fabric.awake();
        if self.fabric.poll(now, BUDGET) == Progress::Worked || !self.fabric.prepare_sleep() {
            return Next::Now;
        }
        Next::At(self.fabric.next_deadline())
    }

    fn stats(&self) -> Vec<Stats> {
        self.ids.iter().filter_map(|&id| self.fabric.stats(id).copied()).collect()
    }

    fn kicked(&mut self, nic: usize) {
        if let Some(&id) = self.ids.get(nic) {
            self.fabric.kicked(id);
        }
    }
}

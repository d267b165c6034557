//! One NIC of a device in this process: the driver's side ([`nic_hal::Transport`]) and the model's
//! ([`nic_model::Frontend`]).

use std::sync::{Arc, PoisonError, RwLock};

use nic_abi::registers;
use nic_hal::{InterruptHandler, Transport};
use nic_model::{Frontend, Wire};
use platform::SharedSlice;

use crate::Arena;
use crate::arena::Memory;
use crate::doorbell::Doorbell;

/// A NIC in this process.
pub struct InProcessNic {
    registers: Memory,
    arena: Arc<Arena>,
    /// By vector. Read-locked while a handler runs, so that replacing a handler waits for it.
    handlers: RwLock<Vec<Option<InterruptHandler>>>,
    doorbell: Arc<Doorbell>,
    index: usize,
}

impl InProcessNic {
    pub(crate) fn new(
        arena: Arc<Arena>,
        doorbell: Arc<Doorbell>,
        index: usize,
        vectors: u16,
    ) -> InProcessNic {
        let handlers = RwLock::new((0..vectors).map(|_| None).collect());
        InProcessNic { registers: Memory::new(registers::SIZE), arena, handlers, doorbell, index }
    }
}

impl Transport for InProcessNic {
    fn registers(&self) -> SharedSlice<'_> {
        self.registers.slice()
    }

    fn kick(&self) {
        self.doorbell.ring(self.index);
    }

    fn vectors(&self) -> u16 {
        self.handlers.read().unwrap_or_else(PoisonError::into_inner).len() as u16
    }

    fn set_vector(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        let mut handlers = self.handlers.write().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = handlers.get_mut(usize::from(vector)) else { return false };
        *slot = handler;
        true
    }
}

/// The model's side of a NIC.
pub(crate) struct Port(pub(crate) Arc<InProcessNic>);

impl Frontend for Port {
    type Memory = Arena;
    type Wire = Box<dyn Wire + Send>;

    fn registers(&self) -> SharedSlice<'_> {
        self.0.registers.slice()
    }

    fn memory(&self) -> &Arena {
        &self.0.arena
    }

    fn raise(&self, vector: u16) {
        let handlers = self.0.handlers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(handler)) = handlers.get(usize::from(vector)) {
            handler();
        }
    }
}

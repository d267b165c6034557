//! One NIC of a device in this process: the driver's side ([`nic_hal::Transport`]) and the model's
//! ([`nic_model::Frontend`]).

use std::sync::{Arc, PoisonError, RwLock};

use nic_abi::registers::{self, Identity};
use nic_hal::{InterruptHandler, Transport};
use nic_model::Frontend;
use platform::SharedSlice;
use zerocopy::{FromZeros, IntoBytes};

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

    /// Makes the identity register announce less than the device can do. Each agent makes tables of
    /// the announced size, which takes Miri minutes. Must be called before a driver reads the
    /// identity.
    pub(crate) fn announce_less(&self) {
        let file = self.registers.slice();
        let mut identity = Identity::new_zeroed();
        file.read(registers::IDENTITY, identity.as_mut_bytes())
            .expect("the identity is within the register file");
        // As much as the suite's agents need.
        identity.max_qps = 66;
        identity.max_cqs = 97;
        identity.max_keys = 129;
        // An agent posts as many receives as the queue holds when it is opened.
        identity.max_rq_entries = 64;
        file.write(registers::IDENTITY, identity.as_bytes())
            .expect("the identity is within the register file");
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

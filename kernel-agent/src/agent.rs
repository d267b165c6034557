//! The agent of one NIC.

use alloc::sync::{Arc, Weak};

use nic_abi::admin::{Bench, Injection};
use nic_abi::registers::Identity;
use nic_hal::Death;
use platform::{Device, Platform};

use crate::{Client, Error, Upcalls};

/// How large the agent's tables are; 0 stands for what the device allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Queue pairs, not counting the agent's own.
    pub max_qps: u32,
    /// Completion queues, not counting the agent's own.
    pub max_cqs: u32,
    /// Shared receive queues.
    pub max_srqs: u32,
    /// Protection domains, not counting the agent's own.
    pub max_pds: u32,
    /// Regions and windows together, not counting the agent's own.
    pub max_keys: u32,
    /// Connections, counting those that time out their end.
    pub max_connections: u32,
    /// Listening points.
    pub max_listens: u32,
}

/// How many objects of the clients there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Clients.
    pub clients: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Protection domains.
    pub pds: u32,
    /// Regions.
    pub regions: u32,
    /// Windows.
    pub windows: u32,
    /// Listening points.
    pub listens: u32,
    /// Connections that are being made, stand or are being ended; not those in time-wait.
    pub connections: u32,
}

/// The Kernel Agent of one NIC.
pub struct Agent {}

impl Agent {
    /// Brings the NIC up and starts the dispatcher thread, named "agent-`number`".
    pub fn open(
        platform: Arc<dyn Platform>,
        device: Arc<dyn Device>,
        number: u32,
        config: Config,
    ) -> Result<Arc<Agent>, Error> {
        let _ = (platform, device, number, config);
        todo!()
    }

    /// Who the device is and what it can do: the copy that was judged when it was opened.
    pub fn identity(&self) -> &Identity {
        todo!()
    }

    /// The number given at open.
    pub fn number(&self) -> u32 {
        todo!()
    }

    /// The platform given at open.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        todo!()
    }

    /// Whether the device is dead or closed: one atomic load.
    pub fn is_dead(&self) -> bool {
        todo!()
    }

    /// Why the device is dead.
    pub fn death(&self) -> Option<Death> {
        todo!()
    }

    /// Whether the port is up.
    pub fn port_up(&self) -> bool {
        todo!()
    }

    /// The tables' sizes that are in force.
    pub fn config(&self) -> &Config {
        todo!()
    }

    /// How many objects there are.
    pub fn counts(&self) -> Counts {
        todo!()
    }

    /// Opens the agent for a consumer. The agent keeps no strong reference to `upcalls`.
    pub fn attach(self: &Arc<Agent>, upcalls: Weak<dyn Upcalls>) -> Result<Arc<Client>, Error> {
        let _ = upcalls;
        todo!()
    }

    /// Makes the device misbehave, for tests; `object` is a queue pair's number where the injection is about one.
    pub fn inject(&self, object: u32, what: Injection, count: u32, value: u64) -> Result<(), Error> {
        let _ = (object, what, count, value);
        todo!()
    }

    /// Runs a baseline in the device; the value is the first word of its result.
    pub fn bench(&self, bench: &Bench) -> Result<u64, Error> {
        let _ = bench;
        todo!()
    }

    /// Tears everything down: connections, objects, the device (reset) and the dispatcher thread. Clients that are still
    /// attached see the agent dead. Never hangs, also when the device is dead. Not to be called in an upcall.
    pub fn close(&self) {
        todo!()
    }
}

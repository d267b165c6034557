//! What operators see: namespaces, controllers and queues.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use nvme::log::AnaState;

use super::config::SubsystemConfig;

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its identifier.
    pub nsid: u32,
    /// The qualified name of its subsystem.
    pub subsystem: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes of a block.
    pub block_size: u32,
    /// Its size.
    pub blocks: u64,
    /// Hosts may not write.
    pub is_read_only: bool,
    /// How many queues of its disk the target's threads have among them.
    pub disk_queues: usize,
    /// What it does.
    pub state: NamespaceState,
    /// How well hosts reach it by each port, in the order of [`Overview::ports`].
    pub ana_states: Vec<AnaState>,
}

/// What a namespace does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceState {
    /// It serves hosts.
    Serving,
    /// Its disk does not answer.
    Silent,
    /// Its disk is gone.
    Gone,
    /// It was removed, and some of its commands have not ended.
    Leaving,
}

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Its identifier.
    pub id: u16,
    /// The qualified name of its subsystem; of a discovery controller, it is empty.
    pub subsystem: String,
    /// The host's qualified name.
    pub host: String,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// The identifier of the port that the host came by.
    pub port: u16,
    /// The host's address.
    pub address: Option<IpAddr>,
    /// The keep-alive timeout in milliseconds; 0 for none.
    pub keep_alive: u32,
    /// Its queues, the admin queue first.
    pub queues: Vec<QueueInfo>,
}

/// A queue of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its number: 0 for the admin queue.
    pub id: u16,
    /// Its entries.
    pub entries: u16,
    /// Commands that are outstanding.
    pub outstanding: u16,
    /// The thread that serves it, from 0 ([`Config::workers`](super::Config::workers)).
    pub thread: usize,
}

/// A port of the subsystem: a NIC of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its identifier.
    pub id: u16,
    /// The IP addresses of the NIC, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// It serves hosts: its NIC has not failed. One that has failed does not come back.
    pub serves: bool,
}

/// What a target does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// It serves hosts.
    Serving,
    /// It takes no hosts, and disconnects those that it has.
    Draining,
    /// It takes no hosts, and has none.
    Drained,
}

/// The target as its operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// What it does.
    pub state: TargetState,
    /// The first subsystem's qualified name.
    pub nqn: String,
    /// All subsystems, the first one first.
    pub subsystems: Vec<SubsystemConfig>,
    /// The ports.
    pub ports: Vec<PortInfo>,
    /// The namespaces of all subsystems.
    pub namespaces: Vec<NamespaceInfo>,
    /// The controllers of all subsystems.
    pub controllers: Vec<ControllerInfo>,
    /// The controllers of the discovery service.
    pub discovery: Vec<ControllerInfo>,
}

//! What operators see: namespaces, controllers and queues.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::identity::Kind;
use super::namespace::{Namespace, Presence};
use super::server::Target;

/// A namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its identifier.
    pub nsid: u32,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes of a block.
    pub block_size: u32,
    /// Its size.
    pub blocks: u64,
    /// Hosts may not write.
    pub is_read_only: bool,
    /// What it does.
    pub state: NamespaceState,
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
    /// The host's qualified name.
    pub host: String,
    /// The host's identifier.
    pub host_id: [u8; 16],
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
    /// The subsystem's qualified name.
    pub nqn: String,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceInfo>,
    /// Its controllers.
    pub controllers: Vec<ControllerInfo>,
    /// The controllers of the discovery service.
    pub discovery: Vec<ControllerInfo>,
}

impl Namespace {
    /// The namespace, at its place.
    pub(super) fn info(&self, place: usize) -> NamespaceInfo {
        NamespaceInfo {
            nsid: place as u32 + 1,
            uuid: self.uuid,
            block_size: self.geometry.block_size,
            blocks: self.geometry.blocks,
            is_read_only: self.geometry.is_read_only,
            state: match self.presence {
                _ if self.is_leaving => NamespaceState::Leaving,
                Presence::Serving => NamespaceState::Serving,
                Presence::Silent => NamespaceState::Silent,
                Presence::Gone => NamespaceState::Gone,
            },
        }
    }
}

impl Target {
    /// The controllers of a kind.
    pub(super) fn controller_infos(&mut self, kind: Kind) -> Vec<ControllerInfo> {
        let controllers = match kind {
            Kind::Io => &mut self.subsystem.controllers,
            Kind::Discovery => &mut self.discovery,
        };
        let queues = &self.queues;
        let info = |(id, controller): (super::identity::ControllerId, &mut super::controller::Controller)| {
            let its = || queues.iter().map(|(_, queue)| queue).filter(|queue| queue.is_of(id, kind));
            let queue = |queue: &super::queue::Queue| QueueInfo {
                id: queue.id,
                entries: queue.entries_of_host,
                outstanding: queue.outstanding,
            };
            let mut queues: Vec<QueueInfo> = its().map(queue).collect();
            queues.sort_unstable_by_key(|queue| queue.id);
            ControllerInfo {
                id: id.0,
                host: controller.host.nqn.as_str().into(),
                host_id: controller.host.id,
                address: its().map(|queue| queue.address).next(),
                keep_alive: controller.keep_alive(),
                queues,
            }
        };
        controllers.iter_mut().map(info).collect()
    }

    /// All that an operator asks for.
    pub(super) fn overview(&mut self) -> Overview {
        let state = match self.drain {
            None => TargetState::Serving,
            Some(_) if self.queues.len() == 0 => TargetState::Drained,
            Some(_) => TargetState::Draining,
        };
        let namespaces = self.subsystem.namespaces.of_places();
        Overview {
            state,
            nqn: self.subsystem.nqn.clone(),
            namespaces: namespaces.map(|(place, namespace)| namespace.info(place)).collect(),
            controllers: self.controller_infos(Kind::Io),
            discovery: self.controller_infos(Kind::Discovery),
        }
    }
}

//! What a target is asked about itself ([`super::info`]), in the target's thread.

use alloc::string::String;
use alloc::vec::Vec;

use super::config::MOST_SUBSYSTEMS;
use super::controller::Controller;
use super::crew::MANAGER;
use super::identity::{ControllerId, Kind};
use super::info::{ControllerInfo, NamespaceInfo, NamespaceState, Overview, QueueInfo, TargetState};
use super::namespace::{Namespace, Presence};
use super::port::Port;
use super::queue::Queue;
use super::server::Target;
use super::subsystem::Subsystem;

impl Subsystem {
    /// A namespace, at its place.
    pub(super) fn info(&self, place: usize, namespace: &Namespace) -> NamespaceInfo {
        NamespaceInfo {
            nsid: place as u32 + 1,
            subsystem: self.nqn(namespace.subsystem).into(),
            uuid: namespace.uuid,
            block_size: namespace.geometry.block_size,
            blocks: namespace.geometry.blocks,
            is_read_only: namespace.geometry.is_read_only,
            disk_queues: namespace.disk_queues,
            ana_states: self.ana.iter().map(|ana| ana.state(place)).collect(),
            state: match namespace.presence {
                _ if namespace.is_leaving => NamespaceState::Leaving,
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
        let elsewhere: Vec<(ControllerId, Kind, QueueInfo)> = self
            .everywhere(move |worker| {
                let of_kind = |queue: &Queue| {
                    let (id, its) = queue.role.controller()?;
                    (its == kind).then(|| (id, its, queue.info(worker.crew.me)))
                };
                worker.queues.iter().filter_map(|(_, queue)| of_kind(queue)).collect::<Vec<_>>()
            })
            .into_iter()
            .flatten()
            .collect();
        let nqns: Vec<String> =
            (0..=MOST_SUBSYSTEMS).map(|number| self.subsystem.nqn(number).into()).collect();
        let controllers = match kind {
            Kind::Io => &mut self.subsystem.controllers,
            Kind::Discovery => &mut self.discovery,
        };
        let (queues, ports) = (&self.queues, &self.ports);
        let info = |(id, controller): (ControllerId, &mut Controller)| {
            let its = || queues.iter().map(|(_, queue)| queue).filter(|queue| queue.is_of(id, kind));
            let mut queues: Vec<QueueInfo> = its().map(|queue| queue.info(MANAGER)).collect();
            let others = elsewhere.iter().filter(|(other, its, _)| (*other, *its) == (id, kind));
            queues.extend(others.map(|(_, _, queue)| *queue));
            queues.sort_unstable_by_key(|queue| queue.id);
            ControllerInfo {
                id: id.0,
                subsystem: nqns[controller.subsystem].clone(),
                host: controller.host.nqn.as_str().into(),
                host_id: controller.host.id,
                port: ports[controller.port].id,
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
            Some(_) if self.count_of_queues() == 0 => TargetState::Drained,
            Some(_) => TargetState::Draining,
        };
        let namespaces = self.subsystem.namespaces.of_places();
        Overview {
            state,
            nqn: self.subsystem.nqn(0).into(),
            subsystems: self.subsystem.numbered().map(|(_, named)| named.info()).collect(),
            ports: self.ports.iter().map(Port::info).collect(),
            namespaces: namespaces.map(|(place, namespace)| self.subsystem.info(place, namespace)).collect(),
            controllers: self.controller_infos(Kind::Io),
            discovery: self.controller_infos(Kind::Discovery),
        }
    }
}

//! What an operator changes while the target runs, in the target's thread: namespaces come and go
//! and change their size, hosts are disconnected.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use block::{Disk, Event, Geometry};
use platform::Privileged;
use platform::planted::{Bug, planted};
use rdma::Domain;

use super::config::{Config, Export, SubsystemConfig};
use super::control::Refusal;
use super::crew::MANAGER;
use super::identity::{ControllerId, Kind};
use super::lent::{self, Lending};
use super::namespace::Namespace;
use super::pool::{LARGE, Pool, SMALL, Sizes};
use super::port::unless_dead;
use super::server::Target;
use super::subsystem::Named;
use crate::Error;

/// How long hosts that are drained may have commands outstanding, in nanoseconds.
const DRAINING: u64 = 2_000_000_000;

/// A namespace that is not among the others yet, and the most bytes of a transfer that its disk
/// takes. `domains` are those of the ports; it has nothing for a port whose NIC is dead.
fn namespace(
    domains: &[Domain],
    privileged: Privileged,
    config: &Config,
    export: &Export,
) -> Result<(Namespace, usize), Error> {
    let geometry = export.disk.geometry();
    if !Geometry::BLOCK_SIZES.contains(&geometry.block_size) {
        return Err(Error::Config("a disk has blocks of 512, 1024, 2048 or 4096 bytes"));
    }
    if geometry.blocks == 0 {
        return Err(Error::Config("a disk is empty"));
    }
    let pieces = geometry.most_pieces.saturating_mul(LARGE);
    let transfer = pieces.min(geometry.most_bytes as usize);
    let lending = Lending::new(domains, privileged, &*export.disk)?;
    // A quarter in small chunks.
    let memory = lent::pool_of(&*export.disk, config.memory);
    let sizes = Sizes { small: memory / 4 / SMALL, large: memory * 3 / 4 / LARGE };
    let pool = |domain: &Domain| unless_dead(domain, Pool::new(domain, privileged, sizes));
    let pools = domains.iter().map(pool).collect::<Result<Vec<Option<Pool>>, _>>()?;
    Ok((Namespace::new(export, pools, lending, config.controllers), transfer))
}

/// The same for each thread of the target, with a handle of the disk.
pub(super) fn namespaces(
    domains: &[Domain],
    privileged: Privileged,
    config: &Config,
    export: &Export,
    threads: usize,
) -> Result<(Vec<Namespace>, usize), Error> {
    let (mut made, mut transfer) = (Vec::with_capacity(threads), usize::MAX);
    let disk_queues = block::split::queues(&export.disk, threads).len();
    for disk in block::split::split(export.disk.clone(), threads) {
        let export = Export { disk, ..export.clone() };
        let (mut namespace, its) = namespace(domains, privileged, config, &export)?;
        namespace.disk_queues = disk_queues;
        made.push(namespace);
        transfer = transfer.min(its);
    }
    // Until the other threads have released theirs.
    if let Some(first) = made.first_mut() {
        first.elsewhere = threads - 1;
    }
    Ok((made, transfer))
}

impl Target {
    /// Whether hosts are told that a disk can do something: one can, or one may come that can.
    pub(super) fn any_disk(&self, can: fn(&Geometry) -> bool) -> bool {
        self.config.grows || self.subsystem.namespaces.iter().any(|namespace| can(&namespace.geometry))
    }

    /// Whether hosts are told that a disk has a volatile cache.
    pub(super) fn has_cache(&self) -> bool {
        self.any_disk(|disk| disk.has_volatile_cache)
    }

    /// Lets a disk wake the thread.
    pub(super) fn watch_disk(&self, disk: &dyn Disk) {
        let attention = self.shared.attention.clone();
        disk.watch(Some(Arc::new(move || attention.signal.raise())));
    }

    /// Carries out what other threads ask for.
    pub(super) fn take_calls(&mut self) {
        let shared = self.shared.clone();
        while let Some(call) = shared.take_call() {
            call(self);
        }
    }

    /// Adds a namespace to a subsystem, the first one unless it is named: what the manager's thread
    /// has of it, and what the others have.
    pub(super) fn add(
        &mut self,
        mut made: Vec<Namespace>,
        transfer: usize,
        subsystem: Option<&str>,
    ) -> Result<u32, Refusal> {
        if made.is_empty() {
            return Err(Refusal::NoPlace);
        }
        let mut namespace = made.remove(0);
        if let Some(nqn) = subsystem {
            namespace.subsystem = self.subsystem.find(nqn).ok_or(Refusal::NoSubsystem)?;
        }
        if transfer < self.subsystem.transfer {
            return Err(Refusal::Transfer);
        }
        if namespace.geometry.has_volatile_cache && !self.has_cache() {
            return Err(Refusal::Cache);
        }
        if self.subsystem.namespaces.iter().any(|other| other.uuid == namespace.uuid) {
            return Err(Refusal::UuidInUse);
        }
        if self.subsystem.namespaces.is_full() {
            return Err(Refusal::NoPlace);
        }
        namespace.geometry = namespace.disk.geometry();
        self.reservations.restore(&mut namespace);
        for copy in &mut made {
            copy.copy_reservation(&namespace);
            (copy.geometry, copy.subsystem) = (namespace.geometry, namespace.subsystem);
        }
        let place = self.subsystem.namespaces.add(Box::new(namespace)).ok_or(Refusal::NoPlace)?;
        self.begin_namespace(place);
        // All threads have it before a host hears of it.
        let mut copies = made.into_iter();
        let has_taken = self.with_each(self.crew.others(), |_| {
            let copy = copies.next();
            move |worker: &mut Target| {
                if let Some(namespace) = copy {
                    worker.subsystem.namespaces.put(place, Box::new(namespace));
                    worker.begin_namespace(place);
                }
            }
        });
        self.subsystem.namespaces[place].elsewhere = has_taken.len();
        self.subsystem.announce(place);
        Ok(place as u32 + 1)
    }

    /// A namespace has come to a place of this thread's table.
    fn begin_namespace(&mut self, place: usize) {
        for (_, controller) in self.subsystem.controllers.iter_mut() {
            let (number, host) = (controller.subsystem, &controller.host.nqn);
            let is_of_others = !self.subsystem.namespaces[place].is_for(number, host);
            controller.visible.set(place, is_of_others);
        }
        self.subsystem.ana.iter_mut().for_each(|ana| ana.begin(place));
        self.watch_disk(&*self.subsystem.namespaces[place].disk);
    }

    pub(super) fn add_subsystem(&mut self, config: &SubsystemConfig) -> Result<(), Refusal> {
        self.subsystem.add(Named::other(config))?;
        self.copy_names();
        self.discovery_has_changed();
        Ok(())
    }

    /// Gives all threads the subsystems' names, and who may use them.
    fn copy_names(&self) {
        let named = self.subsystem.named.clone();
        self.everywhere(move |worker| worker.subsystem.named = named.clone());
    }

    pub(super) fn remove_subsystem(&mut self, nqn: &str) -> Result<(), Refusal> {
        let number = self.subsystem.remove(nqn)?;
        self.copy_names();
        let controllers = self.subsystem.controllers.iter_mut();
        let its = controllers.filter(|(_, controller)| controller.subsystem == number);
        let its: Vec<ControllerId> = its.map(|(id, _)| id).collect();
        its.into_iter().for_each(|id| self.break_controller(id, Kind::Io));
        self.discovery_has_changed();
        Ok(())
    }

    pub(super) fn set_subsystem_hosts(
        &mut self,
        nqn: &str,
        hosts: Option<Vec<String>>,
    ) -> Result<(), Refusal> {
        let number = self.subsystem.find(nqn).filter(|&number| number > 0).ok_or(Refusal::NoSubsystem)?;
        if let Some(named) = &mut self.subsystem.named[number] {
            named.allowed = hosts;
        }
        self.copy_names();
        self.discovery_has_changed();
        Ok(())
    }

    pub(super) fn remove(&mut self, nsid: u32) -> Result<(), Refusal> {
        let place = self.subsystem.any_place(nsid).ok_or(Refusal::NoNamespace)?;
        let namespace = &mut self.subsystem.namespaces[place];
        if core::mem::replace(&mut namespace.is_leaving, true) {
            return Err(Refusal::NoNamespace);
        }
        // Commands that wait are answered.
        namespace.shares.iter_mut().for_each(super::shares::Shares::queue_all);
        if self.crew.is_manager() {
            // No thread takes a command for it when the caller, or a host, hears that it is gone.
            self.everywhere(move |worker| worker.remove(nsid).is_ok());
        }
        self.subsystem.announce(place);
        if !self.crew.is_manager() {
            // The manager's goes at its next tick, in which hosts hear of it.
            self.look_at_leaving(place);
        }
        Ok(())
    }

    pub(super) fn disconnect_host(&mut self, nqn: &str) -> Result<usize, Refusal> {
        let mut found = Vec::new();
        for (kind, controllers) in
            [(Kind::Io, &mut self.subsystem.controllers), (Kind::Discovery, &mut self.discovery)]
        {
            for (id, _) in controllers.iter_mut().filter(|(_, one)| one.host.nqn == nqn) {
                found.push((kind, id));
            }
        }
        for &(kind, id) in &found {
            self.break_controller(id, kind);
        }
        if found.is_empty() { Err(Refusal::NoHost) } else { Ok(found.len()) }
    }

    /// Takes no more commands and connections; see [`Target::look_at_changes`].
    pub(super) fn begin_drain(&mut self) {
        self.is_stopping = true;
        self.drain.get_or_insert(self.clock + DRAINING);
        self.everywhere(|worker| worker.is_stopping = true);
    }

    pub(super) fn end_drain(&mut self) {
        if self.drain.take().is_some() {
            // Commands of hosts that are still here were not taken.
            self.break_all_queues();
            self.is_stopping = false;
            // Behind the message by which they break their queues.
            self.everywhere(|worker| worker.is_stopping = false);
        }
    }

    /// Disconnects all hosts.
    pub(super) fn break_all_queues(&mut self) {
        self.break_queues(|_| true);
        if self.crew.is_manager() {
            self.crew.send_all(Target::break_all_queues);
        }
    }

    /// Looks at the sizes of disks, at namespaces that leave, and at hosts that are drained.
    pub(super) fn look_at_changes(&mut self, now: u64) {
        for place in 0..self.subsystem.namespaces.len() {
            if self.crew.is_manager() {
                self.look_at_size(place);
            }
            self.look_at_leaving(place);
        }
        if let Some(until) = self.drain
            && self.count_of_queues() > 0
            && (now > until
                || self.has_answered() && self.everywhere(Target::has_answered).iter().all(|&has| has))
        {
            self.break_all_queues();
        }
    }

    fn look_at_size(&mut self, place: usize) {
        let Some(namespace) = self.subsystem.namespaces.get_mut(place) else { return };
        if namespace.on_disk == 0 {
            // It has nothing to complete, but may notice an event only here.
            namespace.disk.poll(1, &mut |_, _| ());
        }
        let Some(Event::Resized { blocks }) = namespace.disk.event() else { return };
        if planted(Bug::EndKept) && blocks < namespace.geometry.blocks {
            return;
        }
        if namespace.geometry.blocks != blocks {
            log::info!("namespace {} has {blocks} blocks now", place + 1);
            self.has_size(place, blocks);
            self.everywhere(move |worker| worker.has_size(place, blocks));
            self.subsystem.announce(place);
        }
    }

    /// Takes over the size that a namespace has now.
    fn has_size(&mut self, place: usize, blocks: u64) {
        let Some(namespace) = self.subsystem.namespaces.get_mut(place) else { return };
        namespace.geometry.blocks = blocks;
        let serving = self.ports.iter().enumerate().filter(|(_, port)| port.ended.is_none());
        for (number, port) in serving {
            let disk = &*namespace.disk;
            let grown = namespace.lending.register(number, &port.domain, self.privileged, disk);
            if let Err(error) = grown {
                log::warn!("namespace {} lends no blocks of its new memory: {error}", place + 1);
            }
        }
    }

    /// Releases a namespace that leaves once no command is about it.
    fn look_at_leaving(&mut self, place: usize) {
        let Some(namespace) = self.subsystem.namespaces.get(place) else { return };
        // The manager's is the last one that goes, since others may still ask for its reservation.
        let is_needed = namespace.on_disk > 0 || namespace.elsewhere > 0 || self.reservations.need(place);
        if !namespace.is_leaving || is_needed || self.commands.are_about(place) {
            return;
        }
        if let Some(namespace) = self.subsystem.namespaces.remove(place) {
            namespace.disk.watch(None);
            if !self.crew.is_manager() {
                self.crew.send(MANAGER, move |manager| {
                    if let Some(namespace) = manager.subsystem.namespaces.get_mut(place) {
                        namespace.elsewhere -= 1;
                    }
                });
                return;
            }
            self.reservations.keep(&namespace);
            log::info!("namespace {} has been removed", place + 1);
        }
    }
}

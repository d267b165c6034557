//! The subsystems: their names and who may use them, and what all of them have in one place: the
//! namespaces, and the controllers of hosts, each of which is one subsystem's. Discovery
//! controllers are kept beside them.
//!
//! Identifiers of namespaces and of controllers are unique over all subsystems of a target. A host
//! sees the namespaces of its controller's subsystem, and those of others do not exist for it: the
//! controller's [`Seen`](super::auth::Seen) leaves them out.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use nvme::status::Status;

use super::ana::Ana;
use super::auth::Hosts;
use super::config::{Config, MOST_SUBSYSTEMS, SubsystemConfig};
use super::control::Refusal;
use super::controller::Controller;
use super::identity::ControllerId;
use super::namespace::{Presence, not_there};
use super::namespaces::Namespaces;
use super::shares::Shares;

/// A slot: the identifier that it gives next, and its controller.
struct Slot {
    next: u16,
    used: Option<(ControllerId, Controller)>,
}

/// All controllers.
pub(crate) struct Controllers {
    slots: Vec<Slot>,
    used: usize,
    /// The identifiers that there are: at least one for each slot.
    ids: RangeInclusive<u16>,
}

impl Controllers {
    pub(crate) fn new(most: usize, ids: RangeInclusive<u16>) -> Controllers {
        let slot = |number: usize| Slot { next: ids.start() + number as u16, used: None };
        Controllers { slots: (0..most).map(slot).collect(), used: 0, ids }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Adds a controller, or says that there is no room.
    pub(crate) fn add(&mut self, controller: Controller) -> Result<ControllerId, Status> {
        let (step, first) = (self.slots.len(), usize::from(*self.ids.start()));
        let free = self.slots.iter_mut().find(|slot| slot.used.is_none());
        let slot = free.ok_or(Status::CONTROLLER_BUSY.dnr())?;
        let id = ControllerId(slot.next);
        let next = usize::from(slot.next) + step;
        let is_last = next > usize::from(*self.ids.end());
        let lowest = || (usize::from(slot.next) - first) % step + first;
        slot.next = if is_last { lowest() } else { next } as u16;
        slot.used = Some((id, controller));
        self.used += 1;
        Ok(id)
    }

    /// Takes over a copy of the manager's controller, in place of an earlier one with its slot.
    pub(crate) fn put(&mut self, id: ControllerId, controller: Controller) {
        let slot = self.slot(id);
        self.used += usize::from(self.slots[slot].used.replace((id, controller)).is_none());
    }

    /// The place of a controller among as many as there may be.
    pub(crate) fn slot(&self, id: ControllerId) -> usize {
        usize::from(id.0).wrapping_sub(usize::from(*self.ids.start())) % self.slots.len()
    }

    pub(crate) fn get(&mut self, id: ControllerId) -> Option<&mut Controller> {
        let slot = self.slot(id);
        self.slots[slot].used.as_mut().filter(|(its, _)| *its == id).map(|(_, controller)| controller)
    }

    pub(crate) fn remove(&mut self, id: ControllerId) -> Option<Controller> {
        let slot = self.slot(id);
        let removed = self.slots[slot].used.take_if(|(its, _)| *its == id)?;
        self.used -= 1;
        Some(removed.1)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ControllerId, &mut Controller)> {
        self.slots.iter_mut().filter_map(|slot| slot.used.as_mut()).map(|(id, controller)| (*id, controller))
    }
}

/// The name of a subsystem, and who may use it.
#[derive(Clone)]
pub(crate) struct Named {
    pub(crate) nqn: String,
    pub(crate) serial: String,
    /// Of the first subsystem: the hosts that may use it, beside those that are known; `None` for
    /// any. Of another one: the only hosts that may; `None` for those of the first one.
    pub(crate) allowed: Option<Vec<String>>,
}

impl Named {
    /// Those of a configuration, which may know hosts.
    pub(crate) fn all(config: &Config, knows_hosts: bool) -> [Option<Named>; MOST_SUBSYSTEMS] {
        // A configuration that names hosts lets no others in.
        let allowed = config.allowed.clone().or(knows_hosts.then(Vec::new));
        let first = Named { nqn: config.nqn.clone(), serial: config.serial.clone(), allowed };
        let mut all = core::iter::once(first).chain(config.subsystems.iter().map(Named::other));
        core::array::from_fn(|_| all.next())
    }

    /// A subsystem beside the first one.
    pub(crate) fn other(config: &SubsystemConfig) -> Named {
        let SubsystemConfig { nqn, serial, hosts } = config.clone();
        Named { nqn, serial, allowed: hosts }
    }

    /// What an operator sees of it.
    pub(crate) fn info(&self) -> SubsystemConfig {
        let Named { nqn, serial, allowed } = self;
        SubsystemConfig { nqn: nqn.clone(), serial: serial.clone(), hosts: allowed.clone() }
    }
}

/// The subsystems.
pub(crate) struct Subsystem {
    /// Their names, by number: the first one, and places for others.
    pub(crate) named: [Option<Named>; MOST_SUBSYSTEMS],
    /// The hosts that are known, with what is known of them: they may use the first subsystem.
    pub(crate) hosts: Hosts,
    /// By identifier, from 1.
    pub(crate) namespaces: Namespaces,
    /// How well hosts reach them, by port.
    pub(crate) ana: Vec<Ana>,
    /// The most bytes of a transfer: a power of two that all disks take.
    pub(crate) transfer: usize,
    pub(crate) controllers: Controllers,
    /// Hosts can reserve namespaces.
    pub(crate) has_reservations: bool,
    /// Hosts can compare and write in one.
    pub(crate) has_pairs: bool,
}

impl Subsystem {
    /// The names of those that there are, by number.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (usize, &Named)> {
        self.named.iter().enumerate().filter_map(|(number, named)| Some((number, named.as_ref()?)))
    }

    /// The number of the one with this name.
    pub(crate) fn find(&self, nqn: &str) -> Option<usize> {
        self.numbered().find(|(_, named)| named.nqn == nqn).map(|(number, _)| number)
    }

    /// The qualified name of one; of one that was removed, it is empty.
    pub(crate) fn nqn(&self, number: usize) -> &str {
        self.named.get(number).and_then(Option::as_ref).map_or("", |named| &named.nqn)
    }

    /// Whether this host may use one.
    pub(crate) fn allows(&self, number: usize, host: &str) -> bool {
        let Some(named) = self.named.get(number).and_then(Option::as_ref) else { return false };
        let is_named = named.allowed.as_ref().map(|allowed| allowed.iter().any(|nqn| nqn == host));
        match (number, is_named) {
            (0, is_named) => is_named.unwrap_or(true) || self.hosts.find(host).is_some(),
            (_, Some(is_named)) => is_named,
            (_, None) => self.allows(0, host),
        }
    }

    /// From now on these are the hosts that are known. Others are not let into the first subsystem
    /// any more, even if there are none.
    pub(crate) fn know(&mut self, hosts: Hosts) {
        if let [Some(first), ..] = &mut self.named {
            first.allowed.get_or_insert_default();
        }
        self.hosts = hosts;
    }

    /// Adds one.
    pub(crate) fn add(&mut self, named: Named) -> Result<(), Refusal> {
        if self.find(&named.nqn).is_some() {
            return Err(Refusal::NqnInUse);
        }
        let free = self.named.iter_mut().find(|place| place.is_none()).ok_or(Refusal::NoPlace)?;
        *free = Some(named);
        Ok(())
    }

    /// Removes one that has no namespaces, and is not the first one; its number.
    pub(crate) fn remove(&mut self, nqn: &str) -> Result<usize, Refusal> {
        let number = self.find(nqn).ok_or(Refusal::NoSubsystem)?;
        if number == 0 || self.namespaces.iter().any(|namespace| namespace.subsystem == number) {
            return Err(Refusal::SubsystemInUse);
        }
        self.named[number] = None;
        Ok(number)
    }

    /// The place of a namespace, which may be inactive.
    pub(crate) fn any_place(&self, nsid: u32) -> Option<usize> {
        (nsid as usize).checked_sub(1).filter(|&place| self.namespaces.get(place).is_some())
    }

    /// The status of a command about a namespace that is not there.
    pub(crate) fn missing(&self, nsid: u32, is_flush: bool) -> Status {
        let was_there = self.namespaces.is_former((nsid as usize).wrapping_sub(1));
        not_there(is_flush && was_there)
    }

    /// The place of an active namespace.
    pub(crate) fn place(&self, nsid: u32) -> Option<usize> {
        self.any_place(nsid).filter(|&place| self.namespaces[place].is_active())
    }

    /// Makes a namespace inactive whose disk is gone. The controllers report that to their hosts.
    pub(crate) fn lose(&mut self, place: usize) {
        if self.namespaces[place].presence == Presence::Gone {
            return;
        }
        log::warn!("the disk of namespace {} is gone", place + 1);
        self.becomes(place, Presence::Gone);
    }

    /// Changes the presence of a namespace's disk. The controllers report that to their hosts.
    pub(crate) fn becomes(&mut self, place: usize, presence: Presence) {
        let namespace = &mut self.namespaces[place];
        namespace.presence = presence;
        // Commands that wait are answered if the disk takes none.
        namespace.shares.iter_mut().for_each(Shares::queue_all);
        self.announce(place);
    }

    /// Has the controllers report to their hosts that a namespace has changed.
    pub(crate) fn announce(&mut self, place: usize) {
        self.ana.iter_mut().for_each(|ana| ana.touch(place));
        for (_, controller) in self.controllers.iter_mut() {
            if controller.visible.has(place as u32 + 1) {
                controller.change(place as u32 + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::identity::{HostIdentity, Kind};

    #[test]
    fn identifiers_come_again_last_of_all_and_stay_in_their_range() {
        let host = || HostIdentity { id: [0; 16], nqn: heapless::String::new() };
        let mut controllers = Controllers::new(3, 10..=20);
        let mut given = Vec::new();
        for _ in 0..6 {
            let mut add = || controllers.add(Controller::new(Kind::Io, 0, host(), 0, true, 0));
            let ids = [add(), add(), add()].map(|id| id.expect("there is room").0);
            assert_eq!(add(), Err(Status::CONTROLLER_BUSY.dnr()));
            for id in ids {
                assert!(controllers.get(ControllerId(id)).is_some());
                assert!(controllers.remove(ControllerId(id)).is_some());
            }
            given.extend(ids);
        }
        assert_eq!(given[..11], [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
        // The third slot has no fourth identifier.
        assert_eq!(given[11..], [12, 10, 11, 15, 13, 14, 18]);
        for id in [0, 9, 21, u16::MAX] {
            assert!(controllers.get(ControllerId(id)).is_none());
        }
    }
}

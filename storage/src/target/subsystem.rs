//! The subsystem: its name, who may use it, its namespaces, and the controllers of its hosts. A
//! discovery controller is kept beside them.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use nvme::status::Status;

use super::ana::Ana;
use super::auth::Hosts;
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

/// The subsystem.
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    pub(crate) serial: String,
    /// The hosts that may use it, beside those that are known; `None` for any.
    pub(crate) allowed: Option<Vec<String>>,
    /// Hosts that may use it, with what is known of them.
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
    /// Whether this host may use it.
    pub(crate) fn allows(&self, host: &str) -> bool {
        let is_named = self.allowed.as_ref().is_none_or(|allowed| allowed.iter().any(|nqn| nqn == host));
        is_named || self.hosts.find(host).is_some()
    }

    /// From now on these are the hosts that are known. Others are not let in any more, even if
    /// there are none.
    pub(crate) fn know(&mut self, hosts: Hosts) {
        self.allowed.get_or_insert_default();
        self.hosts = hosts;
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
            let mut add = || controllers.add(Controller::new(Kind::Io, host(), 0, true, 0));
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

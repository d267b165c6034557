//! Asymmetric Namespace Access (base 8.20): how well hosts reach each namespace by each port of the
//! target.
//!
//! Each namespace is a group, whose identifier is the namespace's. So the targets of a subsystem
//! have equal groups without agreeing on them, and each namespace can be moved on its own.

use core::ops::Range;

use nvme::log::{AnaGroup, AnaHeader, AnaState, GROUPS_ONLY};
use nvme::status::Status;
use zerocopy::IntoBytes;

use super::auth::Seen;
use super::config::MOST_NAMESPACES;
use super::control::Refusal;
use super::identity::ControllerId;
use super::port::Port;
use super::server::Target;
use super::shares::Shares;
use super::subsystem::Subsystem;

/// How long a change of states may take, in seconds: a group that an operator leaves in the state
/// Change for twice as long makes Linux reset the controller.
pub(super) const TRANSITION_TIME: u8 = 10;
/// The bytes of a group's descriptor with its namespace, and of the longest page.
const GROUP: usize = size_of::<AnaGroup>() + size_of::<u32>();
const LONGEST_PAGE: usize = size_of::<AnaHeader>() + MOST_NAMESPACES * GROUP;

/// The states of all groups at a port, by the place of their namespace.
#[derive(Clone)]
pub(crate) struct Ana {
    states: [AnaState; MOST_NAMESPACES],
    /// For each group, which change of the page was the last one of its descriptor.
    changed: [u64; MOST_NAMESPACES],
    /// The changes of the page.
    changes: u64,
    /// The state of a namespace that comes.
    of_new: AnaState,
}

impl Ana {
    /// All groups have this state.
    pub(crate) fn new(state: AnaState) -> Ana {
        Ana { states: [state; MOST_NAMESPACES], changed: [0; MOST_NAMESPACES], changes: 0, of_new: state }
    }

    /// How hosts reach the namespace at a place.
    pub(crate) fn state(&self, place: usize) -> AnaState {
        self.states[place]
    }

    /// The changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Notes that the descriptor of a group may be another one now, or gone.
    pub(crate) fn touch(&mut self, place: usize) {
        self.changes += 1;
        self.changed[place] = self.changes;
    }

    /// A namespace comes to a place.
    pub(crate) fn begin(&mut self, place: usize) {
        self.states[place] = self.of_new;
    }

    /// Sets a group's state. True if that was another one.
    fn set(&mut self, place: usize, state: AnaState) -> bool {
        let has_changed = core::mem::replace(&mut self.states[place], state) != state;
        if has_changed {
            self.touch(place);
        }
        has_changed
    }

    /// The Change Count of a group's descriptor for a controller that was reset after so many
    /// changes: 1 then, and another one after each change.
    fn count(&self, place: usize, before: u64) -> u64 {
        1 + self.changed[place].saturating_sub(before)
    }
}

impl Subsystem {
    /// The status of I/O commands that a namespace does not take by a port: for what it is, or
    /// since hosts have to reach it by another port.
    pub(crate) fn refusal(&self, port: usize, place: usize, is_flush: bool) -> Option<Status> {
        self.namespaces[place].refusal(is_flush).or(self.ana[port].state(place).status())
    }

    /// The groups that a host sees: those of its active namespaces.
    fn groups<'a>(&'a self, visible: &'a Seen) -> impl Iterator<Item = usize> + 'a {
        let active = self.namespaces.of_places().filter(|(_, namespace)| namespace.is_active());
        active.map(|(place, _)| place).filter(|&place| visible.has(place as u32 + 1))
    }
}

impl Target {
    /// Sets how hosts reach a namespace, or all of them and those that come, by a port of this
    /// identifier, or by all ports. Hosts with such a namespace there get an event.
    pub(super) fn set_ana_state(
        &mut self,
        port: Option<u16>,
        nsid: Option<u32>,
        state: AnaState,
    ) -> Result<(), Refusal> {
        let places = match nsid {
            Some(nsid) => {
                let place = self.subsystem.any_place(nsid).ok_or(Refusal::NoNamespace)?;
                place..place + 1
            }
            None => 0..MOST_NAMESPACES,
        };
        let is_meant = |one: &Port| port.is_none_or(|port| port == one.id);
        if !self.ports.iter().any(is_meant) {
            return Err(Refusal::NoPort);
        }
        for number in 0..self.ports.len() {
            if is_meant(&self.ports[number]) {
                self.set_ana_state_at(number, places.clone(), state);
                if nsid.is_none() {
                    self.subsystem.ana[number].of_new = state;
                }
            }
        }
        if self.crew.is_manager() {
            // No thread gives a disk a command that a host may not send when a host hears of it.
            self.everywhere(move |worker| _ = worker.set_ana_state(port, nsid, state));
            self.report_events();
        }
        Ok(())
    }

    fn set_ana_state_at(&mut self, port: usize, places: Range<usize>, state: AnaState) {
        let mut refused: heapless::Vec<(usize, Status), MOST_NAMESPACES> = heapless::Vec::new();
        let Subsystem { ana, namespaces, controllers, .. } = &mut self.subsystem;
        for place in places {
            if !ana[port].set(place, state) {
                continue;
            }
            let Some(namespace) = namespaces.get_mut(place) else { continue };
            // Commands that wait for memory are answered if hosts do not reach it.
            namespace.shares.iter_mut().for_each(Shares::queue_all);
            refused.extend(ana[port].state(place).status().map(|status| (place, status)));
            if !namespace.is_active() || !self.crew.is_manager() {
                continue;
            }
            log::info!("namespace {}: hosts reach it as {state} by port {}", place + 1, self.ports[port].id);
            for (_, controller) in controllers.iter_mut() {
                if controller.port == port && controller.visible.has(place as u32 + 1) {
                    controller.access.happen();
                }
            }
        }
        for (place, status) in refused {
            self.refuse_waiting(port, place, status);
        }
        // Commands that wait for earlier ones of their hosts look whether they are refused.
        self.earlier_ended = true;
    }

    /// The bytes of the Asymmetric Namespace Access log page.
    pub(super) fn ana_size(&mut self, id: ControllerId, specific: u8) -> usize {
        let visible = self.visible_to(id);
        let groups = self.subsystem.groups(&visible).count();
        let of_group = if specific & GROUPS_ONLY != 0 { size_of::<AnaGroup>() } else { GROUP };
        size_of::<AnaHeader>() + groups * of_group
    }

    /// The log page.
    pub(super) fn ana_page(&mut self, id: ControllerId, specific: u8) -> heapless::Vec<u8, LONGEST_PAGE> {
        let visible = self.visible_to(id);
        let mut page = heapless::Vec::new();
        let Some(controller) = self.subsystem.controllers.get(id) else { return page };
        let (before, port) = (controller.ana_changes, controller.port);
        let (subsystem, ana) = (&self.subsystem, &self.subsystem.ana[port]);
        // There is room for all groups.
        let mut push = |bytes: &[u8]| _ = page.extend_from_slice(bytes);
        let count = subsystem.groups(&visible).count() as u16;
        push(AnaHeader::new(ana.changes.saturating_sub(before), count).as_bytes());
        for place in subsystem.groups(&visible) {
            let nsid = place as u32 + 1;
            let has_namespaces = specific & GROUPS_ONLY == 0;
            let group =
                AnaGroup::new(nsid, has_namespaces.into(), ana.count(place, before), ana.state(place));
            push(group.as_bytes());
            if has_namespaces {
                push(&nsid.to_le_bytes());
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_begin_with_a_reset_and_grow_with_each_change() {
        let mut ana = Ana::new(AnaState::Optimized);
        assert_eq!((ana.changes(), ana.count(0, 0)), (0, 1));
        assert!(ana.set(0, AnaState::Change) && !ana.set(0, AnaState::Change));
        assert!(ana.set(63, AnaState::Inaccessible) && ana.set(0, AnaState::Optimized));
        assert_eq!((ana.changes(), ana.count(0, 0), ana.count(63, 0), ana.count(1, 0)), (3, 4, 3, 1));
        let reset = ana.changes();
        assert_eq!((ana.count(0, reset), ana.count(63, reset)), (1, 1));
        ana.touch(63);
        assert_eq!((ana.count(0, reset), ana.count(63, reset)), (1, 2));
    }

    #[test]
    fn a_namespace_that_comes_has_the_state_of_all() {
        let mut ana = Ana::new(AnaState::Inaccessible);
        assert!(ana.set(5, AnaState::Optimized));
        ana.begin(5);
        assert_eq!(ana.state(5), AnaState::Inaccessible);
    }
}

//! Asymmetric Namespace Access (base 8.20): how well hosts reach each namespace by this target, if
//! a subsystem has several. The target is one port of the subsystem.
//!
//! Each namespace is a group, whose identifier is the namespace's. So the targets of a subsystem
//! have equal groups without agreeing on them, and each namespace can be moved on its own.

use nvme::log::{AnaGroup, AnaHeader, AnaState, GROUPS_ONLY};
use nvme::status::Status;
use zerocopy::IntoBytes;

use super::auth::Visible;
use super::config::MOST_NAMESPACES;
use super::control::Refusal;
use super::identity::ControllerId;
use super::server::Target;
use super::shares::Shares;
use super::subsystem::Subsystem;

/// How long a change of states may take, in seconds: a group that an operator leaves in the state
/// Change for twice as long makes Linux reset the controller.
pub(super) const TRANSITION_TIME: u8 = 10;
/// The bytes of a group's descriptor with its namespace, and of the longest page.
const GROUP: usize = size_of::<AnaGroup>() + size_of::<u32>();
const LONGEST_PAGE: usize = size_of::<AnaHeader>() + MOST_NAMESPACES * GROUP;

/// The states of all groups, by the place of their namespace.
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
    /// The status of I/O commands that a namespace does not take: for what it is, or since hosts
    /// have to reach it by another target.
    pub(crate) fn refusal(&self, place: usize, is_flush: bool) -> Option<Status> {
        self.namespaces[place].refusal(is_flush).or(self.ana.state(place).status())
    }

    /// The groups that a host sees: those of its active namespaces.
    fn groups<'a>(&'a self, visible: &'a Visible) -> impl Iterator<Item = usize> + 'a {
        let active = self.namespaces.of_places().filter(|(_, namespace)| namespace.is_active());
        active.map(|(place, _)| place).filter(|&place| visible.has(place as u32 + 1))
    }
}

impl Target {
    /// Sets how hosts reach a namespace, or all of them and those that come, by this port. Hosts
    /// with such a namespace get an event.
    pub(super) fn set_ana_state(
        &mut self,
        port: Option<u16>,
        nsid: Option<u32>,
        state: AnaState,
    ) -> Result<(), Refusal> {
        if port.is_some_and(|port| port != self.config.port_id()) {
            return Err(Refusal::NoPort);
        }
        let places = match nsid {
            Some(nsid) => {
                let place = self.subsystem.any_place(nsid).ok_or(Refusal::NoNamespace)?;
                place..place + 1
            }
            None => {
                self.subsystem.ana.of_new = state;
                0..MOST_NAMESPACES
            }
        };
        for place in places {
            if !self.subsystem.ana.set(place, state) {
                continue;
            }
            let Some(namespace) = self.subsystem.namespaces.get_mut(place) else { continue };
            // Commands that wait are answered if hosts do not reach it.
            namespace.shares.iter_mut().for_each(Shares::queue_all);
            if !namespace.is_active() {
                continue;
            }
            log::info!("namespace {}: hosts reach it as {state} by this target", place + 1);
            for (_, controller) in self.subsystem.controllers.iter_mut() {
                if controller.visible.has(place as u32 + 1) {
                    controller.access.happen();
                }
            }
        }
        self.report_events();
        Ok(())
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
        let before = self.subsystem.controllers.get(id).map_or(0, |controller| controller.ana_changes);
        let (subsystem, ana) = (&self.subsystem, &self.subsystem.ana);
        let mut page = heapless::Vec::new();
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

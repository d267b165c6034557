//! NICs, the links between them, and the loop that drives them.
//!
//! Work comes from four places: the control pages, the doorbell FIFOs, timers, and the queue pairs
//! that have more to do. Each turn of a queue pair is bounded, so that none starves the others.

use alloc::vec::Vec;

use platform::Instant;

use crate::config::{NicConfig, Stats};
use crate::error::AddError;
use crate::frontend::Frontend;
use crate::ids::{NicId, QpId};
use crate::nic::Nic;
use crate::node::Node;
use crate::qp::Qp;
use crate::schedule::Schedule;
use crate::tables::Table;
use crate::test_commands::faults::Mute;

/// Whether a poll found work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was work; there may be more.
    Worked,
    /// There was none.
    Idle,
}

/// Doorbells taken from one NIC before the others' and the queue pairs get their turn.
const DOORBELLS: u32 = 64;

/// NICs and the links between them.
pub struct Fabric<F: Frontend> {
    nodes: Vec<Node<F>>,
    pub(crate) schedule: Schedule,
}

/// Both ends of a message, and the schedule.
pub(crate) struct Ends<'a, F: Frontend> {
    /// The sender's NIC, unless it is the receiver's.
    pub source: Option<&'a Nic<F>>,
    pub target: &'a mut Node<F>,
    pub schedule: &'a mut Schedule,
}

impl<F: Frontend> Default for Fabric<F> {
    fn default() -> Self {
        Fabric::new()
    }
}

impl<F: Frontend> Fabric<F> {
    /// A fabric without NICs.
    pub fn new() -> Fabric<F> {
        Fabric { nodes: Vec::new(), schedule: Schedule::new() }
    }

    /// Adds a NIC, powered on: clears its register file and writes its identity.
    pub fn add_nic(&mut self, config: NicConfig, frontend: F) -> Result<NicId, AddError> {
        let id = NicId(u16::try_from(self.nodes.len()).map_err(|_| AddError::TooMany)?);
        self.nodes.push(Node { nic: Nic::new(id, config, frontend)?, qps: Table::new() });
        Ok(id)
    }

    /// Links two NICs by a short cut: each finds the other by its GIDs. A NIC always finds itself.
    pub fn connect(&mut self, a: NicId, b: NicId) {
        for (here, there) in [(a, b), (b, a)] {
            if here != there
                && let Some(Node { nic, .. }) = self.nodes.get_mut(here.index())
                && !nic.links.contains(&there)
            {
                nic.links.push(there);
            }
        }
    }

    /// What a NIC did and what it dropped or ignored.
    pub fn stats(&self, nic: NicId) -> Option<&Stats> {
        self.nodes.get(nic.index()).map(|node| &node.nic.stats)
    }

    /// Does up to about `budget` pieces of work. A piece is bounded: a command, a work request, or
    /// a megabyte of a longer one.
    pub fn poll(&mut self, now: Instant, budget: u32) -> Progress {
        self.schedule.now = now;
        let mut worked = false;
        for node in &mut self.nodes {
            worked |= node.housekeeping(&mut self.schedule);
        }
        worked |= self.run_timers();
        let mut left = budget;
        while left > 0 {
            let before = left;
            for node in &mut self.nodes {
                node.doorbells(&mut self.schedule, &mut left);
            }
            // One turn for each queue pair that has work now; further turns come after the next
            // doorbells.
            for _ in 0..self.schedule.waiting() {
                let Some(id) = self.schedule.next() else { break };
                left = left.saturating_sub(self.turn(id).max(1));
                if left == 0 {
                    break;
                }
            }
            if left == before {
                break;
            }
            worked = true;
        }
        if worked { Progress::Worked } else { Progress::Idle }
    }

    /// Asks all drivers for a kick with their next doorbell. False if there is work already: poll
    /// again.
    pub fn prepare_sleep(&mut self) -> bool {
        let mut idle = self.schedule.waiting() == 0;
        for Node { nic, .. } in &mut self.nodes {
            idle &= nic.ask_for_kick() && !nic.has_commands() && !nic.bench_spins();
        }
        idle
    }

    /// When [`Fabric::poll`] must run again at the latest (retries, heartbeat).
    pub fn next_deadline(&self) -> Option<Instant> {
        let nics = || self.nodes.iter().map(|node| &node.nic);
        let beats = nics().filter(|nic| nic.mute == Mute::No).map(|nic| nic.next_beat);
        beats.chain(nics().filter_map(Nic::bench_deadline)).chain(self.schedule.deadline()).min()
    }

    /// Shows the drivers that the device needs no kick any more. To be called after every
    /// [`Fabric::prepare_sleep`].
    pub fn awake(&mut self) {
        for node in &self.nodes {
            node.nic.ask_for_no_kick();
        }
    }

    /// The driver of `nic` has kicked. Only one of the benchmarks depends on it, so the call may
    /// come late or not at all.
    pub fn kicked(&mut self, nic: NicId) {
        if let Some(node) = self.nodes.get_mut(nic.index()) {
            node.nic.bench_kicked();
        }
    }

    /// Resumes the queue pairs whose time has come.
    fn run_timers(&mut self) -> bool {
        let mut worked = false;
        while let Some(id) = self.schedule.expired() {
            if let Some((nic, qp, schedule)) = self.parts(id) {
                qp.timer_fired(nic, schedule);
            }
            self.fail_users_of_cqs(id.nic);
            worked = true;
        }
        worked
    }

    /// A queue pair with its NIC, and the schedule.
    #[inline]
    pub(crate) fn parts(&mut self, id: QpId) -> Option<(&mut Nic<F>, &mut Qp, &mut Schedule)> {
        let (nic, qp) = self.nodes.get_mut(id.nic.index())?.parts(id.slot)?;
        Some((nic, qp, &mut self.schedule))
    }

    /// Both ends of a message from NIC `from` to NIC `to`.
    #[inline]
    pub(crate) fn ends(&mut self, from: NicId, to: NicId) -> Option<Ends<'_, F>> {
        let schedule = &mut self.schedule;
        if from == to {
            return Some(Ends { source: None, target: self.nodes.get_mut(to.index())?, schedule });
        }
        let [source, target] = self.nodes.get_disjoint_mut([from.index(), to.index()]).ok()?;
        Some(Ends { source: Some(&source.nic), target, schedule })
    }

    /// Moves the queue pairs of CQs of a NIC that have failed to the error state.
    #[inline]
    pub(crate) fn fail_users_of_cqs(&mut self, nic: NicId) {
        if let Some(node) = self.nodes.get_mut(nic.index()) {
            node.fail_users_of_cqs(&mut self.schedule);
        }
    }

    /// The NIC that a GID names, as NIC `from` sees it.
    pub(crate) fn find(&self, from: NicId, gid: &[u8; 16]) -> Option<NicId> {
        let nic = &self.nodes.get(from.index())?.nic;
        if nic.has_gid(gid) {
            return Some(from);
        }
        nic.links.iter().copied().find(|link| self.nodes[link.index()].nic.has_gid(gid))
    }
}

impl<F: Frontend> Node<F> {
    /// Control page, heartbeat, commands, benchmarks.
    fn housekeeping(&mut self, schedule: &mut Schedule) -> bool {
        let now = schedule.now;
        self.nic.beat(now);
        self.control(schedule) | self.commands(schedule) | self.nic.run_bench(now)
    }

    /// Takes doorbells.
    fn doorbells(&mut self, schedule: &mut Schedule, left: &mut u32) {
        for _ in 0..DOORBELLS.min(*left) {
            if !self.nic.running() || !self.take_doorbell(schedule) {
                return;
            }
            *left -= 1;
        }
    }
}

//! NICs, the links between them, and the loop that drives them.
//!
//! Work comes from six places: the control pages, timers, commands, the doorbell FIFOs, the wires,
//! and the queue pairs that have more to do. None of them, and no NIC, starves the others: NICs
//! take turns, and what each place may do in a turn is bounded ([`crate::schedule`]).

use alloc::vec::Vec;

use platform::Instant;
use roce::Gid;

use crate::config::{NicConfig, Stats};
use crate::error::AddError;
use crate::frontend::Frontend;
use crate::ids::{NicId, QpId};
use crate::nic::Nic;
use crate::node::Node;
use crate::port::Unsent;
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

/// Units of work of one kind in a NIC's turn.
const SLICE: u32 = 16;

/// NICs and the links between them.
pub struct Fabric<F: Frontend> {
    pub(crate) nodes: Vec<Node<F>>,
    /// The NIC whose turn it is.
    turn: NicId,
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
        Fabric { nodes: Vec::new(), turn: NicId(0), schedule: Schedule::new() }
    }

    /// Adds a NIC, powered on: clears its register file and writes its identity.
    pub fn add_nic(&mut self, config: NicConfig, frontend: F) -> Result<NicId, AddError> {
        let id = NicId(u16::try_from(self.nodes.len()).map_err(|_| AddError::TooMany)?);
        self.nodes.push(Node { nic: Nic::new(id, config, frontend)?, qps: Table::new() });
        self.schedule.add_nic();
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

    /// Ends a NIC for good, because its machine has ended. It accesses the machine's memory no
    /// more, its heartbeat stops, and it forgets all objects. What others send to it is lost, so
    /// their requests fail once all retries have failed. Its streams are reset; those that were
    /// closed before come to their ends ([`Fabric::is_leaving`]).
    pub fn power_off(&mut self, nic: NicId) {
        if let Some(node) = self.nodes.get_mut(nic.index()) {
            node.power_off(&mut self.schedule);
        }
    }

    /// Powers a NIC off and on again, because its machine has ended and another takes its place:
    /// nothing of the former is left in the NIC or in its registers.
    pub fn power_cycle(&mut self, nic: NicId) {
        if let Some(node) = self.nodes.get_mut(nic.index()) {
            node.power_cycle(&mut self.schedule);
        }
    }

    /// Whether there are streams whose driver or machine has gone, and whose peers do not know of
    /// the end yet, though they can be reached. The program that runs the fabric goes on until
    /// there are none, which takes two seconds at most for each NIC. Looks at all streams of such
    /// NICs.
    pub fn is_leaving(&self) -> bool {
        let leaving = self.nodes.iter().map(|node| &node.nic).filter(|nic| nic.is_leaving());
        let mut reaching = leaving.filter(|nic| nic.reaches_peers());
        reaching.any(|nic| nic.streams.as_ref().is_some_and(|streams| !streams.tcp.are_settled()))
    }

    /// What a NIC did and what it dropped or ignored.
    pub fn stats(&self, nic: NicId) -> Option<&Stats> {
        self.nodes.get(nic.index()).map(|node| &node.nic.stats)
    }

    /// Does about `budget` units of work (a unit takes some hundred nanoseconds), or one piece of
    /// work that takes longer: a command about a large ring or list, a fast register, a megabyte of
    /// a message. Every NIC's heartbeat is looked after first. NICs take turns, over several polls
    /// if need be; in a turn, commands, doorbells, frames and queue pairs each have a slice, of at
    /// least one piece of work.
    pub fn poll(&mut self, now: Instant, budget: u32) -> Progress {
        self.schedule.begin(now, budget);
        for node in &mut self.nodes {
            node.nic.beat(now);
        }
        let mut worked = false;
        for _ in 0..self.nodes.len() {
            let nic = self.next_nic();
            worked |= self.serve(nic);
            if self.schedule.poll_is_over() {
                break;
            }
        }
        if worked { Progress::Worked } else { Progress::Idle }
    }

    /// The NIC whose turn it is.
    #[inline]
    fn next_nic(&mut self) -> NicId {
        let nic = self.turn;
        let next = nic.0 + 1;
        self.turn = NicId(if usize::from(next) < self.nodes.len() { next } else { 0 });
        nic
    }

    /// Gives a NIC its turn: control page, benchmark, frames that came, timers, doorbells,
    /// commands, queue pairs, frames to send. Returns whether it did any work.
    fn serve(&mut self, nic: NicId) -> bool {
        let Some(node) = self.nodes.get_mut(nic.index()) else { return false };
        let schedule = &mut self.schedule;
        let before = schedule.done();
        node.control(schedule);
        // The poll after the end of a copy finds nothing left to do but the answer.
        let answered = node.nic.run_bench(schedule);
        // Most NICs on the short cut have neither a wire nor streams.
        let has_packets = node.nic.has_packets;
        let node = match has_packets {
            false => node,
            true => {
                self.take_packets(nic);
                let Some(node) = self.nodes.get_mut(nic.index()) else { return false };
                node
            }
        };
        let schedule = &mut self.schedule;
        schedule.begin_slice(SLICE);
        node.run_timers(schedule);
        schedule.begin_slice(SLICE);
        node.doorbells(schedule);
        schedule.begin_slice(SLICE);
        node.commands(schedule);
        node.resume_senders(schedule);
        schedule.begin_slice(SLICE);
        // One turn for each queue pair that has work now; further turns come after the next
        // doorbells.
        let turns = if node.nic.held { 0 } else { self.schedule.waiting(nic) };
        for _ in 0..turns {
            let Some(id) = self.schedule.next(nic) else { break };
            self.turn(id);
            if self.schedule.slice_is_over() {
                break;
            }
        }
        if has_packets {
            self.send_packets(nic);
        }
        answered || self.schedule.done() != before
    }

    /// Takes frames from a NIC's wire, and gives its streams their turn.
    #[inline(never)]
    fn take_packets(&mut self, nic: NicId) {
        if let Some(node) = self.nodes.get_mut(nic.index()).filter(|node| node.nic.uplink.is_some()) {
            self.schedule.begin_slice(SLICE);
            node.take_frames(&mut self.schedule);
        }
        self.serve_streams(nic);
    }

    /// Sends what queue pairs have written to their streams, and a port's own frames.
    #[inline(never)]
    fn send_packets(&mut self, nic: NicId) {
        self.serve_streams(nic);
        if let Some(node) = self.nodes.get_mut(nic.index()).filter(|node| node.nic.uplink.is_some()) {
            self.schedule.begin_slice(SLICE);
            node.send_frames(&mut self.schedule);
        }
    }

    /// Whether datagrams between these GIDs can leave a NIC's port; none while the port asks for
    /// the neighbour's MAC, which it does in the next polls.
    pub fn way(&mut self, nic: NicId, from: [u8; 16], to: [u8; 16], now: Instant) -> Option<bool> {
        let Some(node) = self.nodes.get_mut(nic.index()) else { return Some(false) };
        let Some(uplink) = &mut node.nic.uplink else { return Some(false) };
        match uplink.port.way((Gid(from), Gid(to)), now) {
            Ok(()) => Some(true),
            Err(Unsent::Resolving) => None,
            Err(_) => Some(false),
        }
    }

    /// The heartbeat of a NIC, as the driver sees it.
    pub fn heartbeat(&self, nic: NicId) -> Option<u32> {
        self.nodes.get(nic.index()).map(|node| node.nic.heartbeat)
    }

    /// Units of work that the last poll did.
    pub fn work_of_last_poll(&self) -> u32 {
        self.schedule.done()
    }

    /// Asks all drivers for a kick with their next doorbell. False if there is work already: poll
    /// again.
    pub fn prepare_sleep(&mut self) -> bool {
        let mut idle = true;
        for Node { nic, .. } in &mut self.nodes {
            idle &= nic.held || self.schedule.waiting(nic.id) == 0;
            idle &= nic.ask_for_kick() && !nic.has_commands() && !nic.bench_spins();
            idle &= !nic.waiting.has_settled();
        }
        idle
    }

    /// When [`Fabric::poll`] must run again at the latest (retries, heartbeat).
    pub fn next_deadline(&self) -> Option<Instant> {
        let nics = || self.nodes.iter().map(|node| &node.nic);
        let beats = nics().filter(|nic| nic.mute == Mute::No).map(|nic| nic.next_beat);
        let others = nics().flat_map(|nic| [nic.bench_deadline(), nic.wire_deadline()]);
        beats.chain(others.flatten()).chain(self.schedule.deadline()).min()
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
    pub(crate) fn fail_queue_pairs(&mut self, nic: NicId) {
        if let Some(node) = self.nodes.get_mut(nic.index()) {
            node.fail_queue_pairs(&mut self.schedule);
        }
    }

    /// The NIC that a GID names, as NIC `from` sees it.
    pub(crate) fn find(&self, from: NicId, gid: &[u8; 16]) -> Option<NicId> {
        find(&self.nodes, from, gid)
    }
}

/// The NIC on the short cut that a GID names, as NIC `from` sees it.
pub(crate) fn find<F: Frontend>(nodes: &[Node<F>], from: NicId, gid: &[u8; 16]) -> Option<NicId> {
    let nic = &nodes.get(from.index())?.nic;
    if nic.has_gid(gid) {
        return Some(from);
    }
    nic.links.iter().copied().find(|link| nodes[link.index()].nic.has_gid(gid))
}

impl<F: Frontend> Node<F> {
    /// Takes doorbells.
    #[inline]
    fn doorbells(&mut self, schedule: &mut Schedule) {
        while self.nic.running() && self.take_doorbell(schedule) {
            schedule.charge(1);
            if schedule.slice_is_over() {
                break;
            }
        }
    }

    /// Resumes queue pairs whose time has come.
    #[inline]
    fn run_timers(&mut self, schedule: &mut Schedule) {
        while let Some(id) = schedule.expired(self.nic.id) {
            if let Some((nic, qp)) = self.parts(id.slot) {
                qp.timer_fired(nic, schedule);
            }
            self.fail_queue_pairs(schedule);
            schedule.charge(1);
            if schedule.slice_is_over() {
                break;
            }
        }
    }
}

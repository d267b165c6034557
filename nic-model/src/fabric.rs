//! NICs, the links between them, and the loop that drives them.
//!
//! Work comes from four places: the control pages, the doorbell FIFOs, timers, and the round of queue pairs that
//! have more to do. Each turn of a queue pair is bounded, so that none starves the others.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use nic_abi::cqe;
use nic_abi::eqe::{EventType, UNTOLD};
use platform::Instant;

use crate::control::Request;
use crate::doorbell::Doorbell;
use crate::nic::{Mute, Nic};
use crate::{AddError, Frontend, NicConfig, Stats};

/// Names a NIC of a [`Fabric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NicId(pub(crate) u16);

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
    pub(crate) nics: Vec<Nic<F>>,
    /// Queue pairs that have something to do, each at most once.
    active: VecDeque<(u16, u32)>,
    /// Queue pairs that wait for a moment, each at most once.
    timers: BTreeSet<(Instant, u16, u32)>,
    pub(crate) now: Instant,
}

impl<F: Frontend> Default for Fabric<F> {
    fn default() -> Self {
        Fabric::new()
    }
}

impl<F: Frontend> Fabric<F> {
    /// A fabric without NICs.
    pub fn new() -> Fabric<F> {
        Fabric { nics: Vec::new(), active: VecDeque::new(), timers: BTreeSet::new(), now: Instant::ZERO }
    }

    /// Adds a NIC, powered on: clears its register file and writes its identity.
    pub fn add_nic(&mut self, config: NicConfig, frontend: F) -> Result<NicId, AddError> {
        let id = u16::try_from(self.nics.len()).map_err(|_| AddError::TooMany)?;
        self.nics.push(Nic::new(config, frontend)?);
        Ok(NicId(id))
    }

    /// Joins two NICs by a short cut: each finds the other by its GIDs. A NIC always finds itself.
    pub fn connect(&mut self, a: NicId, b: NicId) {
        for (here, there) in [(a.0, b.0), (b.0, a.0)] {
            if here != there
                && let Some(nic) = self.nics.get_mut(usize::from(here))
                && !nic.links.contains(&there)
            {
                nic.links.push(there);
            }
        }
    }

    /// What a NIC did and what it dropped or ignored.
    pub fn stats(&self, nic: NicId) -> Option<&Stats> {
        self.nics.get(usize::from(nic.0)).map(|n| &n.stats)
    }

    /// Does up to about `budget` pieces of work. A piece is bounded: a command, a work request, or a megabyte of a
    /// longer one.
    pub fn poll(&mut self, now: Instant, budget: u32) -> Progress {
        self.now = now;
        let mut worked = false;
        for n in 0..self.nics.len() as u16 {
            worked |= self.housekeeping(n);
        }
        worked |= self.run_timers();
        let mut left = budget;
        while left > 0 {
            let before = left;
            for n in 0..self.nics.len() as u16 {
                self.doorbells(n, &mut left);
            }
            // As many turns as are waiting now: who goes to the back of the line waits for new doorbells first.
            for _ in 0..self.active.len() {
                let Some((n, slot)) = self.active.pop_front() else { break };
                left = left.saturating_sub(self.turn(n, slot).max(1));
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

    /// Asks all drivers for a kick with their next doorbell. False if there is work already: poll again.
    pub fn prepare_sleep(&mut self) -> bool {
        let mut idle = self.active.is_empty();
        for nic in &mut self.nics {
            idle &= nic.ask_for_kick() && !nic.has_commands() && !nic.bench_spins();
        }
        idle
    }

    /// When [`Fabric::poll`] must run again at the latest (retries, heartbeat).
    pub fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|t| t.0);
        let beats = self.nics.iter().filter(|n| n.mute == Mute::No).map(|n| n.next_beat);
        let benches = self.nics.iter().filter_map(Nic::bench_deadline);
        beats.chain(benches).chain(timer).min()
    }

    /// Tells the drivers that no kick is needed any more. To be called after every [`Fabric::prepare_sleep`].
    pub fn awake(&mut self) {
        for nic in &self.nics {
            nic.no_kicks();
        }
    }

    /// A driver kicked `nic`. Only one of the benchmarks depends on it, so it may be called late or not at all.
    pub fn kicked(&mut self, nic: NicId) {
        if let Some(nic) = self.nics.get_mut(usize::from(nic.0)) {
            nic.bench_kicked();
        }
    }

    /// Control page, heartbeat, commands, benchmarks.
    fn housekeeping(&mut self, n: u16) -> bool {
        let now = self.now;
        let nic = &mut self.nics[usize::from(n)];
        nic.beat(now);
        let mut worked = false;
        if let Some(request) = nic.control() {
            if request == Request::Reset {
                self.active.retain(|(nic, _)| *nic != n);
                self.timers.retain(|(_, nic, _)| *nic != n);
            }
            // The acknowledgement is the last thing that is written.
            self.nics[usize::from(n)].show_status();
            worked = true;
        }
        worked | self.commands(n) | self.nics[usize::from(n)].run_bench(now)
    }

    /// Takes doorbells of one NIC.
    fn doorbells(&mut self, n: u16, left: &mut u32) {
        for _ in 0..DOORBELLS.min(*left) {
            let nic = &mut self.nics[usize::from(n)];
            if !nic.running() {
                return;
            }
            let Some(doorbell) = nic.take_doorbell() else { return };
            *left -= 1;
            match doorbell {
                Doorbell::Work(slot) => self.activate(n, slot),
                Doorbell::BadTail(slot) => {
                    self.fail_qp(n, slot, cqe::Status::LocalQpOperation, Some((EventType::QpFatal, UNTOLD)));
                }
                Doorbell::Admin => {
                    self.commands(n);
                }
                Doorbell::Nothing => {}
            }
        }
    }

    /// Lets queue pairs go on whose time has come.
    fn run_timers(&mut self) -> bool {
        let mut worked = false;
        while let Some(&(at, n, slot)) = self.timers.first()
            && at <= self.now
        {
            self.timers.pop_first();
            self.timer_fired(n, slot);
            worked = true;
        }
        worked
    }

    /// Puts a queue pair into the round, unless it is there.
    #[inline]
    pub(crate) fn activate(&mut self, n: u16, slot: u32) {
        if let Some(qp) = self.nics[usize::from(n)].qps.get_mut(slot)
            && !qp.active
        {
            qp.active = true;
            self.active.push_back((n, slot));
        }
    }

    /// Takes a queue pair out of the round and stops its timer.
    pub(crate) fn forget(&mut self, n: u16, slot: u32) {
        self.stop_timer(n, slot);
        let Some(qp) = self.nics[usize::from(n)].qps.get_mut(slot) else { return };
        if core::mem::take(&mut qp.active) {
            self.active.retain(|entry| *entry != (n, slot));
        }
    }

    /// Wakes a queue pair at `at`.
    pub(crate) fn start_timer(&mut self, n: u16, slot: u32, at: Instant) {
        self.stop_timer(n, slot);
        if let Some(qp) = self.nics[usize::from(n)].qps.get_mut(slot) {
            qp.deadline = Some(at);
            self.timers.insert((at, n, slot));
        }
    }

    pub(crate) fn stop_timer(&mut self, n: u16, slot: u32) {
        if let Some(qp) = self.nics[usize::from(n)].qps.get_mut(slot)
            && let Some(at) = qp.deadline.take()
        {
            self.timers.remove(&(at, n, slot));
        }
    }

    /// The NIC that a GID names, as seen from NIC `n`.
    #[inline]
    pub(crate) fn find(&self, n: u16, gid: &[u8; 16]) -> Option<u16> {
        let nic = self.nics.get(usize::from(n))?;
        if nic.has_gid(gid) {
            return Some(n);
        }
        nic.links.iter().copied().find(|l| self.nics[usize::from(*l)].has_gid(gid))
    }
}

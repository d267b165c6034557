//! A host that shares a namespace with others, by reservations. Each response, to its commands
//! about the reservation and to those about blocks, has to agree with the model (module `rights`).
//! While a host knows that others may not write, it sees whether one has written all the same.
//!
//! Hosts also count together, in blocks that they change only by a Compare and a Write in one: from
//! each number one of them counts on, and nobody sees a part of the blocks changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ::storage::testing::{End, RawQueue};
use block::Geometry;
use block::simulated::SimulatedDisk;
use nvme::command::{Command, fuse, opcode};
use nvme::reservation::{
    Acquire, AcquireAction, AcquireKeys, ChangePersistence, Register, RegisterAction, RegisterKeys,
    Registrant, Release, ReleaseAction, Report, ReportHeader, Type,
};
use nvme::{Status, copy};
use platform::random::Random;
use platform::sync::atomic::{AtomicBool, Ordering};
use zerocopy::{FromBytes, IntoBytes};

use super::keys;
use super::plan::{self, NQN};
use super::raw::{ADMIN, IO, Raw};
use super::rights::{Answer, Asked, Rights, State, Who};
use super::shared::Shared;
use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Must, Step, Wrong, hold};

/// The blocks of the namespace, and their size. The first ones are one for each host, which it
/// alone writes, and copies from.
const BLOCKS: u64 = 24;
const OWN_BLOCKS: u64 = 4;
const SIZE: usize = 512;
/// The blocks of the number that hosts count, behind the others: those of each turn are new, since
/// a loss of power may leave a part of the last change.
const COUNTER: u64 = 4;
const TURNS: u64 = 3;
/// Where in a queue's memory data of commands lie, and keys and reports.
const DATA: usize = 64 << 10;
const KEYS: usize = 8 << 10;
const REPORT: usize = 12 << 10;
const REPORT_LEN: usize = 4096;
/// What memory for a read holds before.
const BEFORE: u8 = 0xe5;
/// How often a host tries to connect in a turn.
const TRIES: usize = 30;

/// The disk that all share.
pub(super) const GEOMETRY: Geometry = Geometry {
    block_size: SIZE as u32,
    blocks: BLOCKS + TURNS * COUNTER,
    is_read_only: false,
    has_volatile_cache: true,
    discard: false,
    write_zeroes: true,
    most_bytes: 1 << 20,
    most_pieces: 8,
    queue_depth: 2,
};

/// The disk on which the reservation persists.
pub(super) const STATE: Geometry = Geometry { blocks: 1024, ..GEOMETRY };

/// The number that hosts count.
#[derive(Default)]
struct Counter {
    /// The turn.
    turn: u64,
    /// The least that it can be.
    least: u64,
    /// Who has counted from each number.
    from: BTreeMap<u64, Who>,
}

impl Counter {
    /// A host has counted from a number.
    fn counted(&mut self, from: u64, who: Who) -> Step {
        self.least = self.least.max(from + 1);
        match self.from.insert(from, who) {
            None => Ok(()),
            Some(other) => Err(Wrong(format!("sharers {other} and {who} have both counted from {from}"))),
        }
    }
}

/// What the hosts of a run share.
pub(super) struct Common {
    pub(super) disk: Arc<SimulatedDisk>,
    /// Where the reservation persists.
    pub(super) state: Option<Arc<SimulatedDisk>>,
    rights: Mutex<Rights>,
    counter: Mutex<Counter>,
    /// A host has commands on the disk, which finishes none.
    is_stalled: AtomicBool,
}

impl Common {
    pub(super) fn new(disk: SimulatedDisk, state: Option<SimulatedDisk>) -> Common {
        let rights = Mutex::new(Rights::new(state.is_some()));
        Common {
            disk: Arc::new(disk),
            state: state.map(Arc::new),
            rights,
            counter: Mutex::new(Counter::default()),
            is_stalled: AtomicBool::new(false),
        }
    }

    /// Looks at the model, or changes it. `act` makes no call of the platform.
    pub(super) fn rights<T>(&self, act: impl FnOnce(&mut Rights) -> T) -> T {
        act(&mut self.rights.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn counter<T>(&self, act: impl FnOnce(&mut Counter) -> T) -> T {
        act(&mut self.counter.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The target has ended, and starts again.
    pub(super) fn restart(&self) {
        self.rights(Rights::restart);
        self.counter(|counter| *counter = Counter { turn: counter.turn + 1, ..Counter::default() });
    }

    fn disks(&self) -> impl Iterator<Item = &Arc<SimulatedDisk>> {
        std::iter::once(&self.disk).chain(&self.state)
    }

    /// The disks finish nothing any more.
    pub(super) fn stall(&self) {
        self.disks().for_each(|disk| disk.stall());
    }

    /// The disks lose their power.
    pub(super) fn lose_power(&self, random: &mut Random) {
        self.disks().for_each(|disk| disk.power_loss(random.word()));
    }

    /// The host that has written each block last; 0 for none.
    fn writers(&self) -> Vec<Who> {
        (0..BLOCKS).map(|block| self.disk.contents(block)[0]).collect()
    }
}

/// A host's name.
pub(super) fn name(who: Who) -> String {
    format!("{NQN}-sharer{who}")
}

/// Its identifier.
fn id(who: Who) -> [u8; 16] {
    [0x40 + who; 16]
}

pub(super) struct Sharer {
    shared: Arc<Shared>,
    common: Arc<Common>,
    who: Who,
    raw: Raw,
    random: Random,
    tally: Tally,
    /// The key by which it is registered, as far as it knows.
    key: u64,
}

impl Sharer {
    pub(super) fn new(
        shared: &Arc<Shared>,
        common: &Arc<Common>,
        who: Who,
        seed: u64,
        story: &Story,
    ) -> Step<Sharer> {
        let mut random = Random::new(seed);
        let key = if shared.plan.has_keys { Some(keys::right()?) } else { None };
        let story = story.of(&format!("sharer{who}"));
        let raw = Raw::new(shared, random.word(), story, (name(who), id(who)), key);
        let tally = Tally::default();
        Ok(Sharer { shared: shared.clone(), common: common.clone(), who, raw, random, tally, key: 0 })
    }

    /// Connects some times, until the target ends.
    pub(super) fn turn(mut self) -> Step<Tally> {
        for _ in 0..1 + self.random.below(3) {
            let Some((_admin, mut io)) = self.connect()? else { break };
            self.tally.did("sharers: connected");
            if !self.live(&mut io)? {
                break;
            }
            self.shared.sleep(plan::time(&mut self.random, 24));
        }
        Ok(self.tally)
    }

    /// An admin queue and an I/O queue.
    fn connect(&mut self) -> Step<Option<(RawQueue, RawQueue)>> {
        let entries = IO.min(self.shared.plan.config.depth);
        for _ in 0..TRIES {
            if self.shared.is_closing() {
                return Ok(None);
            }
            if let Some(mut admin) = self.raw.open(0, ADMIN)?
                && let Some(id) = self.raw.begin(&mut admin)?
                && let Some(mut io) = self.raw.open(1, entries)?
                && let Some((_, is_asked)) = self.raw.join(&mut io, (1, entries), id)?
            {
                let unproven = if is_asked { self.write_without_proof(&mut io)? } else { true };
                if unproven && (!is_asked || self.raw.prove(&mut io)?) {
                    return Ok(Some((admin, io)));
                }
            }
            self.shared.sleep(plan::time(&mut self.random, 25));
        }
        Ok(None)
    }

    /// Whether the target takes a Compare and a Write as one, and the queue has room for both.
    fn may_count(&self) -> bool {
        let config = &self.shared.plan.config;
        IO.min(config.depth) > 2 && config.workers == 1
    }

    fn nsid(&self) -> u32 {
        self.shared.plan.shared_nsid()
    }

    /// Writes by a queue on which the host has not proved yet who it is. False if the connection is
    /// over.
    fn write_without_proof(&mut self, io: &mut RawQueue) -> Step<bool> {
        if self.random.rarely(2) {
            return Ok(true);
        }
        let block = u64::from(self.who);
        let code = [opcode::io::WRITE, opcode::io::READ][self.random.below(2) as usize];
        let command = Command::blocks(code, self.nsid(), block, 1).with_sgl(io.keyed(DATA, SIZE));
        let Some(response) = self.raw.say(io, command)? else { return Ok(false) };
        let status = response.status();
        hold!(status == Status::AUTH_REQUIRED.dnr(), "a queue serves a host without a proof: {status}");
        self.tally.did("commands without a proof");
        Ok(true)
    }

    /// What a host does with a connection. False if it may have left a command behind that changes
    /// something later.
    fn live(&mut self, io: &mut RawQueue) -> Step<bool> {
        // Another host may preempt this one, and the target may restart: then commands conflict.
        for _ in 0..8 + self.random.below(24) {
            if self.shared.is_closing() {
                return Ok(true);
            }
            let goes_on = match self.random.below(100) {
                // What others have sent ends before an Acquire does.
                _ if self.common.is_stalled.load(Ordering::SeqCst) => self.change(io)?,
                0..12 if self.may_count() => self.count(io)?,
                0..45 => self.use_blocks(io)?,
                45..55 => self.report(io)?,
                _ => self.change(io)?,
            };
            match goes_on {
                Some(true) => {}
                Some(false) => return Ok(false),
                None => return Ok(true),
            }
        }
        Ok(true)
    }

    /// Sends a command about the reservation and takes its answer. `Some(false)` or `None` if the
    /// connection is over: then the command may be carried out later, or not.
    fn decide(&mut self, io: &mut RawQueue, asked: Asked, command: Command) -> Step<Option<Answer>> {
        let number = self.common.rights(|rights| rights.begin(self.who, asked.clone()));
        let response = self.raw.say(io, command)?;
        let answer = match response.map(|response| response.status()) {
            Some(status) if status.is_success() => Some(Answer::Done),
            Some(status) if status == Status::RESERVATION_CONFLICT.dnr() => Some(Answer::Conflict),
            Some(status) if status == Status::INVALID_FIELD.dnr() => Some(Answer::Invalid),
            Some(status) => {
                hold!(self.raw.may_break(), "{asked:?} of sharer {} failed: {status}", self.who);
                None
            }
            None => {
                hold!(self.raw.may_break(), "sharer {} is disconnected", self.who);
                None
            }
        };
        self.raw.story.tell(|| format!("{asked:?}: {answer:?}"));
        match &answer {
            Some(Answer::Done) if matches!(asked, Asked::Report) => {
                let seen = Answer::Is(self.read_report(io)?);
                self.common.rights(|rights| rights.end(number, &seen))?;
            }
            Some(answer) => self.common.rights(|rights| rights.end(number, answer))?,
            None => self.common.rights(|rights| rights.lose(number)),
        }
        Ok(answer)
    }

    fn report(&mut self, io: &mut RawQueue) -> Step<Option<bool>> {
        let report = Report { bytes: REPORT_LEN as u64, is_extended: true };
        let command = report.command(self.nsid()).with_sgl(io.keyed(REPORT, REPORT_LEN));
        self.tally.did("reservations: reports");
        Ok(self.decide(io, Asked::Report, command)?.map(|_| true))
    }

    fn read_report(&self, io: &RawQueue) -> Step<State> {
        let mut bytes = vec![0; REPORT_LEN];
        io.memory.read(REPORT, &mut bytes).must("a report")?;
        let (header, rest) = ReportHeader::read_from_prefix(&bytes).map_err(|_| Wrong("a report".into()))?;
        let (mut state, mut holders) = (State::default(), Vec::new());
        let mut rest = rest;
        for _ in 0..header.registrants.get() {
            let (entry, behind) =
                Registrant::read_from_prefix(rest).map_err(|_| Wrong("a registrant".into()))?;
            rest = behind;
            let who = entry.host[0].wrapping_sub(0x40);
            hold!(entry.host == id(who), "a report has a stranger, {:?}", entry.host);
            state.keys.insert(who, entry.key.get());
            if entry.status & 1 != 0 {
                holders.push(who);
            }
        }
        (state.generation, state.persists) = (header.generation.get(), header.persists != 0);
        if let Some(kind) = Type::from_number(header.kind) {
            // Where each registrant is a holder the report does not say who was the first one.
            let all = state.keys.keys().copied().collect::<Vec<_>>();
            holders.sort_unstable();
            hold!(!kind.is_of_all() || holders == all, "of {all:?} the holders are {holders:?}");
            hold!(kind.is_of_all() || holders.len() == 1, "the holders are {holders:?}");
            state.held = Some((kind, if kind.is_of_all() { 0 } else { holders[0] }));
        }
        Ok(state)
    }

    /// Asks for a change, and watches the blocks if no other host may write then.
    fn change(&mut self, io: &mut RawQueue) -> Step<Option<bool>> {
        let (asked, command, keys, what) = self.choose();
        io.memory.write(KEYS, &keys).must("keys")?;
        let command = command.with_sgl(io.keyed(KEYS, keys.len()));
        let Some(answer) = self.decide(io, asked.clone(), command)? else { return Ok(Some(false)) };
        if answer != Answer::Done {
            self.tally.did("reservations: refused");
            return Ok(Some(true));
        }
        self.tally.did(what);
        match asked {
            Asked::Register { new, .. } => self.key = new,
            Asked::Acquire { .. } => self.watch()?,
            _ => {}
        }
        Ok(Some(true))
    }

    /// A command that changes something, or fails, with its keys.
    fn choose(&mut self) -> (Asked, Command, Vec<u8>, &'static str) {
        let (nsid, random) = (self.nsid(), &mut self.random);
        // Often the right one.
        let current = if random.rarely(8) { random.below(5) } else { self.key };
        let other = 1 + random.below(4);
        // Often one that keeps others off.
        let kinds = if random.rarely(2) { 6 } else { 2 };
        let kind = Type::ALL[random.below(kinds) as usize];
        let is_stalled = self.common.is_stalled.load(Ordering::SeqCst);
        match random.below(100) {
            _ if is_stalled && self.key != 0 && !random.rarely(3) => {
                let how = Acquire { action: AcquireAction::Acquire, kind };
                let keys = AcquireKeys { current: current.into(), preempted: 0.into() };
                let asked = Asked::Acquire { how, current, preempted: 0 };
                (asked, how.command(nsid), keys.as_bytes().to_vec(), "reservations: acquired")
            }
            0..40 => {
                let actions = [RegisterAction::Register, RegisterAction::Replace, RegisterAction::Unregister];
                let action = if self.key == 0 { actions[0] } else { actions[random.below(3) as usize] };
                let persistence = [ChangePersistence::Set, ChangePersistence::Keep, ChangePersistence::Clear]
                    [random.small(3) as usize];
                let how = Register { action, ignores_key: random.rarely(2), persistence };
                let new = match action {
                    RegisterAction::Unregister => 0,
                    _ if random.rarely(16) => 0,
                    _ => u64::from(self.who) + random.below(2),
                };
                let keys = RegisterKeys { current: current.into(), new: new.into() };
                let asked = Asked::Register { how, current, new };
                (asked, how.command(nsid), keys.as_bytes().to_vec(), "reservations: registered")
            }
            40..80 => {
                let actions =
                    [AcquireAction::Acquire, AcquireAction::Preempt, AcquireAction::PreemptAndAbort];
                let action = actions[random.below(3) as usize];
                let preempted = if random.rarely(6) { 0 } else { other };
                let how = Acquire { action, kind };
                let keys = AcquireKeys { current: current.into(), preempted: preempted.into() };
                let what = match action {
                    AcquireAction::Acquire => "reservations: acquired",
                    _ => "reservations: preempted",
                };
                (
                    Asked::Acquire { how, current, preempted },
                    how.command(nsid),
                    keys.as_bytes().to_vec(),
                    what,
                )
            }
            _ => {
                let action = if random.rarely(4) { ReleaseAction::Clear } else { ReleaseAction::Release };
                let held = self.common.rights(|rights| rights.settled()).and_then(|(state, _)| state.held);
                let right = held.map_or(kind, |(kind, _)| kind) as u8;
                let how = Release { action, kind: if random.rarely(8) { kind as u8 } else { right } };
                let what = match action {
                    ReleaseAction::Clear => "reservations: cleared",
                    ReleaseAction::Release => "reservations: released",
                };
                (Asked::Release { how, current }, how.command(nsid), current.as_bytes().to_vec(), what)
            }
        }
    }

    /// The host has acquired the reservation. Until a host changes that, those that may not write
    /// change no block.
    fn watch(&mut self) -> Step {
        let Some((state, since)) = self.common.rights(|rights| rights.settled()) else { return Ok(()) };
        let barred: Vec<Who> = (1..=OWN_BLOCKS as Who).filter(|&who| !state.allows(who, false)).collect();
        let before = self.common.writers();
        for _ in 0..self.random.below(6) {
            self.shared.sleep(plan::time(&mut self.random, 27));
            let after = self.common.writers();
            // A loss of power brings back what blocks were before.
            let is_closing = self.shared.is_closing();
            if is_closing || self.common.rights(|rights| rights.changes()) != since {
                return Ok(());
            }
            for (block, (before, after)) in before.iter().zip(&after).enumerate() {
                hold!(
                    before == after || !barred.contains(after),
                    "sharer {after} wrote block {block} after sharer {} had the reservation, {state:?}",
                    self.who
                );
            }
            self.tally.did("reservations: watched");
        }
        Ok(())
    }

    /// Reads the number, and counts on from there.
    fn count(&mut self, io: &mut RawQueue) -> Step<Option<bool>> {
        let len = COUNTER as usize * SIZE;
        let (first, least) = self.common.counter(|counter| (BLOCKS + counter.turn * COUNTER, counter.least));
        let on =
            |code, at| Command::blocks(code, self.nsid(), first, COUNTER as u32).with_sgl(io.keyed(at, len));
        let read = on(opcode::io::READ, DATA);
        let pair = [(opcode::io::COMPARE, fuse::FIRST), (opcode::io::WRITE, fuse::SECOND)];
        let pair = [0, 1].map(|n| on(pair[n].0, DATA + n * len).with_fuse(pair[n].1));
        let Some([status]) = self.carry_out(io, [read], [true])? else { return Ok(None) };
        if !status.is_success() {
            return Ok(Some(true));
        }
        let mut bytes = vec![0; len];
        io.memory.read(DATA, &mut bytes).must("data")?;
        let mut words =
            bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)));
        let number = words.next().unwrap_or_default();
        hold!(words.all(|word| word == number), "sharer {} sees a part of a pair's blocks changed", self.who);
        hold!(number >= least, "sharer {} reads {number} where {least} was written", self.who);
        for (at, number) in [(DATA, number), (DATA + len, number + 1)] {
            io.memory.write(at, &number.to_le_bytes().repeat(len / 8)).must("data")?;
        }
        let Some([first, second]) = self.carry_out(io, pair, [true, false])? else { return Ok(None) };
        self.raw.story.tell(|| format!("counts from {number}: {first}, {second}"));
        let is_aborted = second.without_dnr() == Status::ABORT_FUSED_FAILED;
        hold!(!is_aborted || !first.is_success(), "a Write is aborted whose Compare has succeeded");
        hold!(
            first.is_success() || !second.is_success(),
            "a Write succeeds whose Compare has failed: {first}"
        );
        if second.is_success() {
            self.common.counter(|counter| counter.counted(number, self.who))?;
            self.tally.did("pairs: counted");
        } else if first == Status::COMPARE_FAILURE.dnr() {
            self.tally.did("pairs: another host was first");
        }
        Ok(Some(true))
    }

    /// Sends commands about blocks at once, some of which only read, and takes their statuses.
    /// `None` if the connection is over.
    fn carry_out<const N: usize>(
        &mut self,
        io: &mut RawQueue,
        commands: [Command; N],
        reads: [bool; N],
    ) -> Step<Option<[Status; N]>> {
        let cid = self.random.word() as u16;
        let numbers =
            reads.map(|reads| self.common.rights(|rights| rights.begin(self.who, Asked::Access { reads })));
        for (n, command) in (0..).zip(commands) {
            io.send(command.with_cid(cid.wrapping_add(n)).as_bytes());
        }
        let mut statuses = [None; N];
        while statuses.contains(&None) {
            let Ok(response) = io.response() else {
                self.common.rights(|rights| numbers.into_iter().for_each(|number| rights.lose(number)));
                hold!(self.raw.may_break(), "sharer {} is disconnected", self.who);
                return Ok(None);
            };
            let place = usize::from(response.cid.get().wrapping_sub(cid));
            let status = statuses.get_mut(place).ok_or(Wrong("a response to nothing".into()))?;
            hold!(status.is_none(), "two responses to a command");
            *status = Some(response.status());
        }
        let statuses = statuses.map(|status| status.unwrap_or(Status::SUCCESS));
        for (number, status) in numbers.into_iter().zip(statuses) {
            let answer = match status {
                _ if status.is_success() || status == Status::COMPARE_FAILURE.dnr() => Some(Answer::Done),
                _ if status == Status::RESERVATION_CONFLICT.dnr() => Some(Answer::Conflict),
                // It was not carried out.
                _ if status.without_dnr() == Status::ABORT_FUSED_FAILED => None,
                _ => {
                    hold!(self.raw.may_break(), "a command of sharer {} failed: {status}", self.who);
                    None
                }
            };
            match answer {
                Some(answer) => self.common.rights(|rights| rights.end(number, &answer))?,
                None => self.common.rights(|rights| rights.lose(number)),
            }
        }
        Ok(Some(statuses))
    }

    /// Sends some commands about blocks at once, and takes their responses.
    fn use_blocks(&mut self, io: &mut RawQueue) -> Step<Option<bool>> {
        let stalls = self.random.rarely(3) && !self.shared.plan.is_quiet;
        if stalls {
            self.common.disk.stall();
            self.common.is_stalled.store(true, Ordering::SeqCst);
        }
        // As many as the queue takes.
        let most = u64::from(IO.min(self.shared.plan.config.depth) - 1).min(3);
        let count = 1 + self.random.below(most);
        let mut open = BTreeMap::new();
        for place in 0..count {
            let at = DATA + place as usize * 4 * SIZE;
            let (command, is_read) = self.block_command(io, at)?;
            let number =
                self.common.rights(|rights| rights.begin(self.who, Asked::Access { reads: is_read }));
            let cid = self.random.word() as u16;
            let command = command.with_cid(cid);
            self.raw
                .story
                .tell(|| format!("{cid}: command {:#x} at block {}", command.opcode, command.slba()));
            if let Some((number, ..)) = open.insert(cid, (number, command.opcode, at)) {
                return Err(Wrong(format!("the identifier of {number} is used again")));
            }
            io.send(command.as_bytes());
        }
        if stalls {
            self.shared.sleep(plan::time(&mut self.random, 27));
            self.common.is_stalled.store(false, Ordering::SeqCst);
            self.common.disk.release();
        }
        while !open.is_empty() {
            match io.response() {
                Ok(response) => {
                    let asked = open.remove(&response.cid.get());
                    let Some(asked) = asked else { return Err(Wrong("a response to nothing".into())) };
                    self.used(io, asked, response.status())?;
                }
                Err(end) => {
                    let lost = open.values().map(|&(number, ..)| number).collect::<Vec<_>>();
                    self.common.rights(|rights| lost.into_iter().for_each(|number| rights.lose(number)));
                    hold!(end != End::Silent || self.raw.may_break(), "sharer {} waits", self.who);
                    hold!(self.raw.may_break(), "sharer {} is disconnected", self.who);
                    return Ok(None);
                }
            }
        }
        Ok(Some(true))
    }

    /// A command about blocks, whose data lie at this place, and whether it only reads them.
    fn block_command(&mut self, io: &RawQueue, at: usize) -> Step<(Command, bool)> {
        let (nsid, random, own) = (self.nsid(), &mut self.random, u64::from(self.who) - 1);
        let block = OWN_BLOCKS + random.below(BLOCKS - OWN_BLOCKS);
        let on = |code| Command::blocks(code, nsid, block, 1).with_sgl(io.keyed(at, SIZE));
        let mut bytes = vec![self.who; SIZE];
        let (command, is_read) = match random.below(8) {
            0 | 1 => {
                bytes.fill(BEFORE);
                (on(opcode::io::READ), true)
            }
            2 => (on(opcode::io::COMPARE), true),
            3 => {
                bytes = copy::Range::new(own, 1).as_bytes().to_vec();
                (copy::command(nsid, block, 1).with_sgl(io.keyed(at, bytes.len())), false)
            }
            4 => (Command::blocks(opcode::io::WRITE, nsid, own, 1).with_sgl(io.keyed(at, SIZE)), false),
            _ => (on(opcode::io::WRITE), false),
        };
        io.memory.write(at, &bytes).must("data")?;
        Ok((command, is_read))
    }

    /// A command about blocks is answered.
    fn used(&mut self, io: &RawQueue, (number, code, at): (u64, u8, usize), status: Status) -> Step {
        let compared = code == opcode::io::COMPARE && status == Status::COMPARE_FAILURE.dnr();
        let answer = match status {
            _ if status.is_success() || compared => Answer::Done,
            _ if status == Status::RESERVATION_CONFLICT.dnr() => Answer::Conflict,
            _ => {
                hold!(self.raw.may_break(), "a command of sharer {} failed: {status}", self.who);
                self.common.rights(|rights| rights.lose(number));
                return Ok(());
            }
        };
        self.raw.story.tell(|| format!("command {code:#x}: {answer:?}"));
        self.common.rights(|rights| rights.end(number, &answer))?;
        if answer == Answer::Done {
            self.tally.did("reservations: commands that pass");
            return Ok(());
        }
        self.tally.did("reservations: commands that do not pass");
        if code == opcode::io::READ {
            let mut bytes = vec![0; SIZE];
            io.memory.read(at, &mut bytes).must("data")?;
            hold!(bytes == [BEFORE; SIZE], "a host got data of a namespace that is reserved");
        }
        Ok(())
    }
}

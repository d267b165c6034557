//! The admin queue: commands to the device and their answers.
//!
//! Several threads may have commands under way; each waits for its own answer. A device that does
//! not answer a command in time, or answers with nonsense, is declared dead: what it has done is
//! unknown.
//!
//! Locks: the queue's (leaf), only while a command is written.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::time::Duration;

use nic_abi::admin::{
    ARGS_OFFSET, ARGS_SIZE, COMMAND_SIZE, FLAG_EVENT, Opcode, PHASE, RESPONSE_SIZE, RESULT_SIZE, Status,
};
use nic_abi::cqe;
use platform::sync::{Mutex, Once};
use platform::{Platform, Signal};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::doorbell::{ConsumerRecord, Doorbell};
use crate::life::{Life, Limit};
use crate::mapped::{Registers, Ring};
use crate::{CommandError, Death, Error};

/// Entries of both rings as a power of two.
pub(crate) const LOG_ENTRIES: u32 = 5;
const ENTRIES: u32 = 1 << LOG_ENTRIES;
const MASK: u32 = ENTRIES - 1;

const COMMAND_WORDS: usize = COMMAND_SIZE / 8;
const RESPONSE_WORDS: usize = RESPONSE_SIZE / 8;
const RESULT_WORDS: usize = RESULT_SIZE / 8;

/// The ring of commands.
pub(crate) type CommandRing = Ring<COMMAND_WORDS>;
/// The ring of answers.
pub(crate) type ResponseRing = Ring<RESPONSE_WORDS>;

/// A device that takes longer than this for a command is declared dead.
const DEADLINE: Duration = Duration::from_millis(2000);
/// The same limit for a benchmark, whose length is an argument.
const BENCH_DEADLINE: Duration = Duration::from_secs(120);
/// How long a thread polls for the answer before it sleeps.
const SPIN: Duration = Duration::from_micros(10);
/// Longest sleep between two looks. An interrupt ends it earlier, where the device raises one.
const SLICE: Duration = Duration::from_millis(5);
/// Longest sleep between two looks if no event follows the answer.
const SLICE_WITHOUT_EVENT: Duration = Duration::from_micros(200);

struct Producer {
    tail: u32,
    /// Bit i: the command at entry i has no answer yet, or one that was not read.
    busy: u32,
    next_id: u32,
    /// A thread waits for a free entry.
    crowded: bool,
}

/// Limit of commands whose event was not taken. Beyond it, commands ask for no event: the event
/// queue must not overflow while its reader is held up, possibly by the thread that sends the
/// command.
const MAX_EVENTS: u32 = 64;

/// The admin queue.
pub(crate) struct AdminQueue {
    platform: Arc<dyn Platform>,
    signal: Arc<Signal>,
    registers: Arc<Registers>,
    commands: CommandRing,
    responses: ResponseRing,
    doorbell: Doorbell,
    producer: Mutex<Producer>,
    /// The record of event queue 0, once the queue exists.
    events: Once<ConsumerRecord>,
    /// Commands whose event was not taken.
    untaken: Arc<AtomicU32>,
}

/// A command under way.
#[derive(Clone, Copy)]
struct Submitted {
    index: u32,
    id: u32,
    /// The device raises an event for the answer.
    event: bool,
}

impl AdminQueue {
    pub(crate) fn new(
        platform: Arc<dyn Platform>,
        signal: Arc<Signal>,
        registers: Arc<Registers>,
        commands: CommandRing,
        responses: ResponseRing,
        doorbell: Doorbell,
    ) -> AdminQueue {
        let producer = Mutex::new(Producer { tail: 0, busy: 0, next_id: 1, crowded: false });
        AdminQueue {
            platform,
            signal,
            registers,
            commands,
            responses,
            doorbell,
            producer,
            events: Once::new(),
            untaken: Arc::new(AtomicU32::new(0)),
        }
    }

    /// The count that event queue 0 decrements for each [`nic_abi::eqe::EventType::Admin`].
    pub(crate) fn untaken(&self) -> &Arc<AtomicU32> {
        &self.untaken
    }

    /// From now on commands ask for an event in event queue 0, whose record this is.
    pub(crate) fn use_events(&self, record: ConsumerRecord) {
        self.events.call_once(|| record);
    }

    /// Sends a command and waits for its answer's result.
    pub(crate) fn command(
        &self,
        life: &Life,
        opcode: Opcode,
        object: u32,
        args: &(impl IntoBytes + Immutable),
    ) -> Result<[u8; RESULT_SIZE], Error> {
        let time = if opcode == Opcode::Bench { BENCH_DEADLINE } else { DEADLINE };
        let limit = &mut Limit::new(self.platform.now(), time, &self.registers);
        let Submitted { index, id, event } = self.submit(life, opcode, object, args.as_bytes(), limit)?;
        let words = self.wait(life, limit, event, || self.answer(index))?;
        self.release(index);
        let [first, ..] = words;
        let (answered, status, field) = ((words[0] as u32), (first >> 32) as u16, (first >> 48) as u16);
        let status = Status::from_word(status).filter(|_| answered == id);
        let Some(status) = status else {
            return Err(Error::DeviceDead(life.end(Death::Protocol)));
        };
        if status != Status::Success {
            return Err(Error::Command(CommandError { opcode, status, field }));
        }
        let mut result = [0; RESULT_SIZE];
        for (bytes, word) in result.chunks_exact_mut(8).zip(&words[1..]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(result)
    }

    fn submit(
        &self,
        life: &Life,
        opcode: Opcode,
        object: u32,
        args: &[u8],
        limit: &mut Limit,
    ) -> Result<Submitted, Error> {
        let mut words = [0u64; COMMAND_WORDS];
        let (head, rest) = words.split_at_mut(ARGS_OFFSET / 8);
        let event = self.events.is_completed() && self.untaken.load(Ordering::Acquire) < MAX_EVENTS;
        let flags = if event { FLAG_EVENT } else { 0 };
        head[1] = u64::from(object);
        let mut bytes = [0u8; ARGS_SIZE];
        let len = args.len().min(ARGS_SIZE);
        bytes[..len].copy_from_slice(&args[..len]);
        for (word, eight) in rest.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(eight.try_into().unwrap_or_default());
        }
        let first = u64::from(opcode as u16) | u64::from(flags) << 16;
        self.wait(life, limit, false, || {
            let mut producer = self.producer.lock();
            // Under the lock: once the device is closed, another driver may use its doorbells.
            if life.death().is_some() {
                return None;
            }
            let (index, bit) = (producer.tail, 1 << (producer.tail & MASK));
            if producer.busy & bit != 0 {
                producer.crowded = true;
                return None;
            }
            let id = producer.next_id;
            producer.next_id = id.wrapping_add(1);
            producer.busy |= bit;
            producer.tail = index.wrapping_add(1);
            let entry = self.commands.at(index);
            entry[0].store(first | u64::from(id) << 32, Ordering::Relaxed);
            for (to, word) in entry.iter().zip(words).skip(1) {
                to.store(word, Ordering::Relaxed);
            }
            if event {
                self.untaken.fetch_add(1, Ordering::AcqRel);
            }
            self.doorbell.ring(producer.tail);
            Some(Submitted { index, id, event })
        })
    }

    /// Waits until no thread writes a command. After the device's death none begins to.
    pub(crate) fn settle(&self) {
        drop(self.producer.lock());
    }

    /// Frees the entry at `index`, whose answer was read.
    fn release(&self, index: u32) {
        let crowded = {
            let mut producer = self.producer.lock();
            producer.busy &= !(1 << (index & MASK));
            core::mem::take(&mut producer.crowded)
        };
        if crowded {
            self.signal.raise();
        }
    }

    /// The answer at `index` without the word that has the phase; `None` until the device has
    /// written it.
    fn answer(&self, index: u32) -> Option<[u64; 1 + RESULT_WORDS]> {
        let entry = self.responses.at(index);
        let last = entry[RESPONSE_WORDS - 1].load(Ordering::Acquire);
        if (last ^ cqe::phase(index, LOG_ENTRIES)) & PHASE != 0 {
            return None;
        }
        let mut words = [0; 1 + RESULT_WORDS];
        for (to, from) in words.iter_mut().zip(entry) {
            *to = from.load(Ordering::Relaxed);
        }
        Some(words)
    }

    /// Waits until `look` finds something: polls for a short time, then sleeps until an interrupt.
    /// `event`: the device raises an event for it. Never inlined: benchmarks leave its instructions
    /// out, whose number depends on how soon the device answers.
    #[inline(never)]
    fn wait<T>(
        &self,
        life: &Life,
        limit: &mut Limit,
        event: bool,
        look: impl Fn() -> Option<T>,
    ) -> Result<T, Error> {
        let begin = self.platform.now();
        loop {
            let seen = self.signal.value();
            if let Some(death) = life.death() {
                return Err(Error::DeviceDead(death));
            }
            if let Some(found) = look() {
                return Ok(found);
            }
            let now = self.platform.now();
            limit.check(now, life, &self.registers);
            if let Some(death) = life.death() {
                return Err(Error::DeviceDead(death));
            }
            if now < begin + SPIN {
                core::hint::spin_loop();
                continue;
            }
            let slice = match self.events.get().filter(|_| event) {
                Some(record) => {
                    // The dispatcher thread may be busy, or be the very thread that waits here, in
                    // an upcall. So the waiter arms the queue itself.
                    record.arm(false);
                    SLICE
                }
                None => SLICE_WITHOUT_EVENT,
            };
            fence(Ordering::SeqCst);
            if let Some(found) = look() {
                return Ok(found);
            }
            self.signal.wait(seen, Some(limit.deadline(now).min(now + slice)));
        }
    }
}

/// Reads a command's result.
pub(crate) fn result<T: FromBytes>(bytes: &[u8; RESULT_SIZE]) -> Result<T, Error> {
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| Error::OutOfRange("result"))
}

//! Completion queues: polled by any thread, resolved to the work requests' cookies.
//!
//! What the device wrote is checked before it is believed: number and generation against the queue pair in that slot,
//! the queue pair's CQ against this one, the tag against what is outstanding, the length against what was posted.
//!
//! A CQ remembers the queue pairs that it last saw, so that it need not look them up; one that is destroyed makes its CQs forget it.
//!
//! Locks, in this order: `control` (sleeps; destroy and resize), `consumer` (spins), then a queue pair's slot in the table, then
//! an SRQ's.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use nic_abi::cqe::{self, CqeFlags};
use nic_abi::ident;
use nic_hal::{CompletionQueue, CqParams, Entry, Lease, Retiring};
use platform::sync::{Mutex, MutexGuard};

use crate::agent::{Counter, EQ_COMPLETIONS};
use crate::qp::Qp;
use crate::sync::{SleepLock, Used, Users};
use crate::table::{Number, Table};
use crate::{Client, Error, Resource};

/// What an armed CQ tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next entry.
    Next,
    /// The next entry that is solicited or is an error.
    Solicited,
}

/// One completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The context given when the queue pair was created.
    pub context: u64,
    /// The cookie given when the request was posted.
    pub cookie: u64,
    /// The word given when the request was posted.
    pub data: u32,
    /// The queue pair's number.
    pub qpn: u32,
    /// How it ended.
    pub status: cqe::Status,
    /// What else it says, [`cqe::CqeFlags::RECEIVE`] among it.
    pub flags: cqe::CqeFlags,
    /// A send-queue completion's `nic_abi::wqe::Opcode`, unchecked; 0 for receives.
    pub opcode: u8,
    /// Bytes transferred; never more than the request's segments hold.
    pub length: u32,
    /// Immediate data or the invalidated key, where the flags say so.
    pub immediate: u32,
    /// Datagrams: the sender's queue pair. On an error: offset of the field to blame in the entry.
    pub source_or_field: u32,
}

/// A work request that succeeded, with nothing more to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The context given when the queue pair was created.
    pub context: u64,
    /// The cookie given when the request was posted.
    pub cookie: u64,
    /// The word given when the request was posted.
    pub data: u32,
    /// Bytes transferred; never more than the request's segments hold.
    pub length: u32,
}

/// What comes where no plain success does.
pub struct Rest(Option<Entry>);

/// The flag of an entry's outcome that tells the two work queues of a queue pair apart.
const RECEIVE: u16 = (CqeFlags::RECEIVE.bits() as u16) << 8;
/// What an outcome has none of if there is nothing more to say: an error, or a flag that asks for a look at the rest.
const SPECIAL: u16 = 0xff | ((CqeFlags::GRH.bits() | CqeFlags::INVALIDATED.bits()) as u16) << 8;
const _: () = assert!(cqe::Status::Success as u8 == 0);

/// Plain entries of one work queue that come one after the other.
struct Run<'a> {
    identity: u64,
    /// [`RECEIVE`] or 0.
    queue: u16,
    context: u64,
    requests: Retiring<'a>,
}

impl Run<'_> {
    /// Whether a plain entry of the same work queue.
    #[inline(always)]
    fn is_of(&self, entry: &Entry) -> bool {
        entry.outcome() & (SPECIAL | RECEIVE) == self.queue && entry.identity == self.identity
    }

    /// Retires the request that an entry of this run names.
    #[inline(always)]
    fn retire(&mut self, entry: &Entry) -> Option<Done> {
        let note = self.requests.retire(entry.tag())?;
        let length = entry.length().min(note.length);
        Some(Done { context: self.context, cookie: note.cookie, data: note.data, length })
    }
}

/// Queue pairs that a CQ remembers, by the low bits of their slot.
const REMEMBERED: usize = 8;

type Seen = [Option<Arc<Qp>>; REMEMBERED];

struct Consumer {
    queue: CompletionQueue,
    seen: Seen,
}

/// A completion queue from which one thread takes completions. It must not call the agent meanwhile.
///
/// The device learns of the room when this is dropped.
pub struct Polling<'a> {
    cq: &'a Cq,
    consumer: MutexGuard<'a, Consumer>,
    /// Something was taken, of which the device has to be told.
    took: bool,
}

impl Polling<'_> {
    /// Takes the oldest completion.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "None is not the end: the device goes on")]
    pub fn next(&mut self) -> Option<Completion> {
        let entry = self.consumer.queue.take()?;
        self.took = true;
        self.cq.judge(&mut self.consumer, entry)
    }

    /// Takes the oldest completion if it is the plain success of a queue pair's own request. If it is not, or there is none,
    /// [`Polling::rest`] says what came.
    #[inline(always)]
    pub fn plain(&mut self) -> Result<Done, Rest> {
        let Consumer { queue, seen } = &mut *self.consumer;
        let Some(entry) = queue.take() else { return Err(Rest(None)) };
        self.took = true;
        let mut run = self.cq.begin(seen, &entry).ok_or(Rest(Some(entry)))?;
        run.retire(&entry).ok_or(Rest(Some(entry)))
    }

    /// What [`Polling::plain`] left, and nothing after it.
    #[cold]
    #[inline(never)]
    pub fn rest(mut self, rest: Rest) -> Option<Completion> {
        self.cq.judge(&mut self.consumer, rest.0?)
    }

    /// Takes as many completions as there are and fit, oldest first, and returns how many. `done` makes something of the plain
    /// ones, `other` of the others. One that failed is the last, and comes along.
    #[inline(always)]
    pub fn take_n<T>(
        &mut self,
        into: &mut [T],
        done: impl Fn(Done) -> T,
        other: impl Fn(&Completion) -> T,
    ) -> (usize, Option<Completion>) {
        let mut taken = 0;
        let mut places = into.iter_mut();
        let Some(mut place) = places.next() else { return (0, None) };
        let Consumer { queue, .. } = &mut *self.consumer;
        let Some(mut entry) = queue.take() else { return (0, None) };
        self.took = true;
        loop {
            let Consumer { queue, seen } = &mut *self.consumer;
            let mut another = None;
            if let Some(mut run) = self.cq.begin(seen, &entry) {
                // What makes no sense is left to `judge`.
                while let Some(found) = run.retire(&entry) {
                    *place = done(found);
                    taken += 1;
                    let Some(following) = places.next() else { return (taken, None) };
                    place = following;
                    let Some(following) = queue.take() else { return (taken, None) };
                    if !run.is_of(&following) {
                        another = Some(following);
                        break;
                    }
                    entry = following;
                }
            }
            if let Some(first) = another {
                entry = first;
                continue;
            }
            let Some(completion) = self.cq.judge(&mut self.consumer, entry) else { return (taken, None) };
            *place = other(&completion);
            taken += 1;
            if completion.status != cqe::Status::Success {
                return (taken, Some(completion));
            }
            let Some(following) = places.next() else { return (taken, None) };
            place = following;
            let Some(following) = self.consumer.queue.take() else { return (taken, None) };
            entry = following;
        }
    }
}

impl Drop for Polling<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.took {
            self.consumer.queue.consumed();
        }
    }
}

/// A completion queue.
pub struct Cq {
    client: Arc<Client>,
    qps: Arc<Table<Qp>>,
    number: u32,
    generation: u32,
    context: u64,
    consumer: Mutex<Consumer>,
    entries: AtomicU32,
    /// The upcall that is under way or asked for: 0 none, else 1 + what it was armed for.
    armed: AtomicU32,
    dropped: AtomicU64,
    failed: AtomicBool,
    control: SleepLock,
    users: Users,
}

const ARMED_SOLICITED: u32 = 1;
const ARMED_NEXT: u32 = 2;

impl Used for Cq {
    fn users(&self) -> &Users {
        &self.users
    }
}

fn log_entries(entries: u32, most: u32) -> Result<u32, Error> {
    if entries > most {
        return Err(Error::OutOfRange("CQ size"));
    }
    let log = entries.max(2).next_power_of_two().ilog2();
    if 1u64 << log > u64::from(most) { Err(Error::OutOfRange("CQ size")) } else { Ok(log) }
}

impl Cq {
    pub(crate) fn create(client: &Arc<Client>, entries: u32, context: u64) -> Result<Arc<Cq>, Error> {
        let agent = client.agent();
        agent.alive()?;
        let log_entries = log_entries(entries, agent.identity().max_cqes)?;
        let number = agent.cqs.take().ok_or(Error::NoResources(Resource::Cqs))?;
        let Number { slot, generation } = number;
        let params = CqParams { log_entries, eq: EQ_COMPLETIONS, generation };
        let queue = match agent.nic().create_cq(slot, &params) {
            Ok(queue) => queue,
            Err(error) => {
                agent.cqs.give_back(slot);
                return Err(error.into());
            }
        };
        let cq = Arc::new(Cq {
            client: client.clone(),
            qps: agent.qps.clone(),
            number: slot,
            generation,
            context,
            entries: AtomicU32::new(queue.entries()),
            consumer: Mutex::new(Consumer { queue, seen: [const { None }; REMEMBERED] }),
            armed: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            control: SleepLock::default(),
            users: Users::default(),
        });
        agent.cqs.put(slot, cq.clone());
        client.register_object(Counter::Cqs, slot, crate::client::Object::Cq(cq.clone()));
        Ok(cq)
    }

    /// The context given at creation.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The entries it has room for.
    pub fn entries(&self) -> u32 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Entries that were dropped: of queue pairs that are gone, or senseless.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn poll_one(&self) -> Option<Completion> {
        self.polling().next()
    }

    /// Keeps all others from taking completions until the result is dropped.
    #[inline(always)]
    pub fn polling(&self) -> Polling<'_> {
        Polling { cq: self, consumer: self.consumer.lock(), took: false }
    }

    /// Takes up to `max` completions, oldest first; returns how many. `sink` runs under the CQ's lock: it must not call
    /// the agent.
    #[inline]
    pub fn poll(&self, max: usize, mut sink: impl FnMut(Completion)) -> usize {
        let mut polling = self.polling();
        let mut count = 0;
        // The device may write as fast as we read, so there is an end to it.
        let max = max.min(polling.consumer.queue.entries() as usize);
        while count < max {
            let Some(completion) = polling.next() else { break };
            count += 1;
            sink(completion);
        }
        count
    }

    #[cold]
    #[inline(never)]
    fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// A run that begins with an entry; `None` if that is not plain, or makes no sense.
    #[inline(always)]
    fn begin<'a>(&self, seen: &'a mut Seen, entry: &Entry) -> Option<Run<'a>> {
        if entry.outcome() & SPECIAL != 0 {
            return None;
        }
        let qp = self.find(seen, entry.identity)?;
        let queue = entry.outcome() & RECEIVE;
        let requests = qp.retiring(self, queue != 0)?;
        Some(Run { identity: entry.identity, queue, context: qp.context(), requests })
    }

    /// The queue pair with that number and generation.
    #[inline(always)]
    fn find<'a>(&self, seen: &'a mut Seen, identity: u64) -> Option<&'a Qp> {
        let place = &mut seen[identity as usize % REMEMBERED];
        if place.as_ref().is_none_or(|qp| qp.identity() != identity) {
            self.look_up(place, identity)?;
        }
        place.as_deref()
    }

    /// What an entry says that was taken or, if that makes no sense, the next one that does.
    #[inline(never)]
    fn judge(&self, consumer: &mut Consumer, mut entry: Entry) -> Option<Completion> {
        let mut dropped = 0;
        loop {
            let cqe = consumer.queue.read(entry);
            let completion = self.resolve(consumer, &cqe);
            if completion.is_some() {
                return completion;
            }
            self.drop_one();
            dropped += 1;
            // As many looks as there are entries: a device that goes on writing cannot hold us here.
            if dropped == consumer.queue.entries() {
                return None;
            }
            entry = consumer.queue.take()?;
        }
    }

    /// Finds the work request that an entry is about, and retires it.
    fn resolve(&self, consumer: &mut Consumer, cqe: &cqe::Cqe) -> Option<Completion> {
        let status = cqe::Status::from_byte(cqe.status)?;
        let identity = u64::from(cqe.qpn) | u64::from(cqe.generation) << 32;
        let qp = self.find(&mut consumer.seen, identity)?;
        let flags = CqeFlags::from_bits_truncate(cqe.flags);
        let note = qp.retire(self, cqe.tag, flags.contains(CqeFlags::RECEIVE))?;
        Some(Completion {
            context: qp.context(),
            cookie: note.cookie,
            data: note.data,
            qpn: cqe.qpn,
            status,
            flags,
            opcode: cqe.opcode,
            length: cqe.length.min(note.length),
            immediate: cqe.immediate,
            source_or_field: cqe.source_or_field,
        })
    }

    /// Finds a queue pair in the table, and remembers it.
    #[inline(never)]
    fn look_up(&self, seen: &mut Option<Arc<Qp>>, identity: u64) -> Option<()> {
        let qp = self.qps.get(ident::qpn_slot(identity as u32))?;
        if qp.identity() != identity {
            return None;
        }
        *seen = Some(qp);
        Some(())
    }

    /// A queue pair, which is no longer in the table, is gone.
    pub(crate) fn forget(&self, slot: u32) {
        let forgotten = {
            let mut consumer = self.consumer.lock();
            let seen = &mut consumer.seen[slot as usize % REMEMBERED];
            seen.take_if(|qp| qp.slot() == slot)
        };
        drop(forgotten);
    }

    /// Forgets all queue pairs: they hold on to their CQs.
    pub(crate) fn forget_all(&self) {
        let forgotten = core::mem::take(&mut self.consumer.lock().seen);
        drop(forgotten);
    }

    /// Runs while nobody polls.
    pub(crate) fn excluding_polls(&self, run: impl FnOnce()) {
        let consumer = self.consumer.lock();
        run();
        drop(consumer);
    }

    /// How many entries wait, counted up to `limit`. Some may turn out to be dropped when polled.
    pub fn pending(&self, limit: u32) -> u32 {
        self.consumer.lock().queue.pending(limit)
    }

    /// Asks for one `Upcalls::completion` when the next entry arrives. Poll once more after it: what arrived
    /// before is not told.
    ///
    /// Arming again before the upcall has begun does nothing, unless it asks for more: so a CQ has a few events
    /// under way at most, and the event queue cannot overflow whatever the consumers do.
    #[inline]
    pub fn arm(&self, arm: Arm) {
        let level = match arm {
            Arm::Next => ARMED_NEXT,
            Arm::Solicited => ARMED_SOLICITED,
        };
        let consumer = self.consumer.lock();
        if self.armed.fetch_max(level, Ordering::AcqRel) < level {
            consumer.queue.arm(arm == Arm::Solicited);
        }
    }

    /// The event that the CQ was armed for has come: from here on it can be armed again.
    pub(crate) fn disarmed(&self) {
        self.armed.store(0, Ordering::Release);
    }

    /// Changes the room to at least `entries`; entries that wait move along. One spurious `Upcalls::completion`
    /// follows.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        let agent = self.client.agent();
        agent.alive()?;
        let log = log_entries(entries, agent.identity().max_cqes)?;
        let _control = self.control.lock(agent.platform());
        if self.users.ended() {
            return Err(Error::Gone);
        }
        let ring = agent.nic().resize_cq(self.number, log)?;
        self.entries.store(ring.entries(), Ordering::Relaxed);
        // Pollers went on in the old ring meanwhile; what they took there is not before `head` in the new one.
        self.consumer.lock().queue.move_to(ring);
        // Whoever found the old ring empty and sleeps now would miss what came into the new one before.
        agent.notice(self.number, self.generation);
        Ok(())
    }

    /// Whether it overflowed or failed.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    fn lease(&self) -> Lease {
        self.consumer.lock().queue.lease().clone()
    }

    /// Destroys it; [`Error::Busy`] while a queue pair uses it. Entries that wait are lost.
    pub fn destroy(&self) -> Result<(), Error> {
        let agent = self.client.agent();
        let _control = self.control.lock(agent.platform());
        self.users.end()?;
        match agent.nic().destroy_cq(self.number, &self.lease()) {
            Err(error @ nic_hal::Error::Command(_)) => {
                self.users.resume();
                return Err(error.into());
            }
            // With the device dead nobody will use the number again.
            Err(_) => {
                drop(agent.cqs.remove(self.number));
                self.client.forget_object(Counter::Cqs, self.number);
            }
            Ok(()) => {
                drop(agent.cqs.remove(self.number));
                self.client.forget_object(Counter::Cqs, self.number);
                agent.cqs.give_back(self.number);
            }
        }
        Ok(())
    }
}

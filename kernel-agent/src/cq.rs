//! Completion queues: polled by any thread, resolved to the work requests' cookies.
//!
//! What the device wrote is checked before it is believed: number and generation against the queue pair in that slot,
//! the queue pair's CQ against this one, the tag against what is outstanding, the length against what was posted.
//!
//! A CQ remembers the queue pairs that it last saw, so that it need not look them up; one that is destroyed makes its CQs forget it.
//!
//! Locks, in this order: `control` (sleeps; destroy and resize), the gate of `consumer` (spins), then a queue pair's slot in the table, then
//! an SRQ's.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use nic_abi::cqe::{self, CqeFlags};
use nic_abi::ident;
use nic_hal::{CompletionQueue, CqParams, Entry, Lease, Outstanding, Retired};
use platform::use_count::{Counted, UseCount};

use crate::agent::{Counter, EQ_COMPLETIONS};
use crate::client::AnyObject;
use crate::object::Object;
use crate::qp::Qp;
use crate::slot::{OwnerGuard, QueueSlot, SlotOwner, SlotParams};
use crate::table::{self, Number, Table};
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

/// What [`CqSlot::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// The oldest completion, which is taken.
    Done(Done),
    /// There is none.
    Nothing,
    /// Something that the long way has to deal with.
    Other,
}

/// The flag of an entry's outcome that tells the two work queues of a queue pair apart.
const RECEIVE: u16 = (CqeFlags::RECEIVE.bits() as u16) << 8;
/// What an outcome has none of if there is nothing more to say: an error, or a flag that asks for a look at the rest.
const SPECIAL: u16 = 0xff | ((CqeFlags::GRH.bits() | CqeFlags::INVALIDATED.bits()) as u16) << 8;
const _: () = assert!(cqe::Status::Success as u8 == 0);

/// Queue pairs that a CQ remembers, by the low bits of their slot.
const REMEMBERED: usize = 8;

/// A work queue whose plain entries need no look at its queue pair.
struct Known {
    /// The queue pair's; 0 for none, as no queue pair has the number 0.
    identity: u64,
    context: u64,
    requests: Arc<Outstanding>,
}

/// The consumer of a CQ, with what it remembers. Lives in a [`CqSlot`].
pub struct Consumer {
    queue: CompletionQueue,
    seen: [Option<Arc<Qp>>; REMEMBERED],
    sends: [Known; REMEMBERED],
    receives: [Known; REMEMBERED],
    /// Of nothing; what a place has that knows no queue.
    nothing: Arc<Outstanding>,
}

/// The way to a CQ. It is open from its creation on.
pub type CqSlot = QueueSlot<Consumer>;

impl Known {
    fn nothing(requests: &Arc<Outstanding>) -> Known {
        Known { identity: 0, context: 0, requests: requests.clone() }
    }
}

#[inline(always)]
fn done(context: u64, retired: &Retired, entry: &Entry) -> Done {
    Done { context, cookie: retired.cookie, data: retired.data(), length: entry.length(retired) }
}

impl Consumer {
    fn new(queue: CompletionQueue) -> Consumer {
        let nothing = Arc::new(Outstanding::new(0));
        Consumer {
            queue,
            seen: [const { None }; REMEMBERED],
            sends: core::array::from_fn(|_| Known::nothing(&nothing)),
            receives: core::array::from_fn(|_| Known::nothing(&nothing)),
            nothing,
        }
    }

    /// Remembers one of the work queues of a queue pair of which a plain entry has come.
    fn learn(&mut self, cq: &Cq, qp: &Qp, receive: bool) {
        let Some(requests) = qp.plain_requests(cq, receive) else { return };
        let known = if receive { &mut self.receives } else { &mut self.sends };
        let known = &mut known[qp.identity() as usize % REMEMBERED];
        if known.identity != qp.identity() {
            *known = Known { identity: qp.identity(), context: qp.context(), requests: requests.clone() };
        }
    }

    /// The place of a queue pair that is gone.
    fn forget(&mut self, slot: u32) -> Option<Arc<Qp>> {
        let place = slot as usize % REMEMBERED;
        for known in [&mut self.sends[place], &mut self.receives[place]] {
            if ident::qpn_slot(known.identity as u32) == slot {
                *known = Known::nothing(&self.nothing);
            }
        }
        self.seen[place].take_if(|qp| qp.slot() == slot)
    }
}

/// Where the queue pair of an entry is remembered, if it is.
#[inline(always)]
fn known<'a>(sends: &'a [Known], receives: &'a [Known], entry: &Entry) -> Option<&'a Known> {
    if entry.outcome() & SPECIAL != 0 {
        return None;
    }
    let queues = if entry.outcome() & RECEIVE == 0 { sends } else { receives };
    let known = queues.get(entry.identity as usize % REMEMBERED)?;
    if known.identity == entry.identity { Some(known) } else { None }
}

impl CqSlot {
    /// Takes the oldest completion, if `pass` opens the gate and it is the plain success of a request of a queue pair that the CQ remembers.
    #[inline(always)]
    pub fn take(&self, handle: u64) -> Took {
        let Some(mut guard) = self.try_lock(handle) else { return Took::Other };
        let Some(Consumer { queue, sends, receives, .. }) = guard.queue() else { return Took::Other };
        let mut reading = queue.reading();
        let Some(entry) = reading.look() else { return Took::Nothing };
        let Some(known) = known(sends, receives, &entry) else { return Took::Other };
        let mut requests = known.requests.retiring();
        let Some(taken) = requests.retire(entry.tag()) else { return Took::Other };
        let done = done(known.context, &taken, &entry);
        reading.advance(1);
        // The device learns of the room, then the poster does, who has it filled.
        reading.commit();
        drop(requests);
        Took::Done(done)
    }

    /// Takes such completions as long as they come and fit, oldest first. Returns how many, and whether something else may come after
    /// them; or the gate is not open.
    #[inline(always)]
    pub fn take_n<T>(&self, handle: u64, into: &mut [T], make: impl Fn(Done) -> T) -> (usize, bool) {
        let Some(mut guard) = self.try_lock(handle) else { return (0, true) };
        let Some(Consumer { queue, sends, receives, .. }) = guard.queue() else { return (0, true) };
        let mut reading = queue.reading();
        let all = into.len();
        let mut left = into;
        // A turn for each run of entries of one work queue. Each turn takes something, or is the last.
        let other = loop {
            if left.is_empty() {
                break true;
            }
            let Some(entry) = reading.look() else { break false };
            let Some(known) = known(sends, receives, &entry) else { break true };
            let context = known.context;
            let mut requests = known.requests.retiring();
            let mut came = 0;
            for (place, entry) in reading.beside(&entry, SPECIAL | RECEIVE, left) {
                let Some(request) = requests.retire(entry.tag()) else { break };
                *place = make(done(context, &request, &entry));
                came += 1;
            }
            if came == 0 {
                break true;
            }
            left = left.get_mut(came..).unwrap_or_default();
            reading.advance(came as u32);
            // As above.
            reading.commit();
            drop(requests);
        };
        (all - left.len(), other)
    }
}

/// A completion queue from which one thread takes completions. It must not call the agent meanwhile.
pub struct Polling<'a> {
    cq: &'a Cq,
    guard: OwnerGuard<'a, Consumer>,
}

impl Polling<'_> {
    /// Takes the oldest completion.
    #[expect(clippy::should_implement_trait, reason = "None is not the end: the device goes on")]
    pub fn next(&mut self) -> Option<Completion> {
        let consumer = self.guard.queue()?;
        let entry = consumer.queue.take()?;
        self.cq.judge(consumer, entry)
    }

    /// Bars the CQ's gate for a reason, as [`QueueSlot::set_closed`] does.
    pub fn close(&mut self, reason: u32) {
        self.guard.close(reason);
    }
}

/// A completion queue.
pub struct Cq {
    object: Object,
    qps: Arc<Table<Qp>>,
    generation: u32,
    context: u64,
    consumer: SlotOwner<Consumer>,
    entries: AtomicU32,
    /// The upcall that is under way or asked for: 0 none, else 1 + what it was armed for.
    armed: AtomicU32,
    dropped: AtomicU64,
    failed: AtomicBool,
}

const ARMED_SOLICITED: u32 = 1;
const ARMED_NEXT: u32 = 2;

impl Counted for Cq {
    fn uses(&self) -> &UseCount {
        self.object.uses()
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
    pub(crate) fn create(
        client: &Arc<Client>,
        entries: u32,
        context: u64,
        slot_params: Option<SlotParams<'_, Consumer>>,
    ) -> Result<Arc<Cq>, Error> {
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
        let (entries, lease) = (queue.entries(), queue.lease().clone());
        let owner = table::identity(slot, generation);
        let Some(consumer) = SlotOwner::new(slot_params, owner, 0, Consumer::new(queue)) else {
            if agent.nic().destroy_cq(slot, &lease).is_ok() {
                agent.cqs.give_back(slot);
            }
            return Err(Error::Busy);
        };
        let cq = Arc::new(Cq {
            object: Object::new(client, Counter::Cqs, slot),
            qps: agent.qps.clone(),
            generation,
            context,
            entries: AtomicU32::new(entries),
            consumer,
            armed: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        });
        agent.cqs.put(slot, cq.clone());
        client.register_object(Counter::Cqs, slot, AnyObject::Cq(cq.clone()));
        Ok(cq)
    }

    /// The context given at creation.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.number()
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.object.client()
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
    pub fn poll_one(&self) -> Option<Completion> {
        self.polling().next()
    }

    /// Keeps all others from taking completions until the result is dropped.
    pub fn polling(&self) -> Polling<'_> {
        Polling { cq: self, guard: self.consumer.lock() }
    }

    /// Takes up to `max` completions, oldest first; returns how many. `sink` runs under the CQ's lock: it must not call
    /// the agent.
    #[inline]
    pub fn poll(&self, max: usize, mut sink: impl FnMut(Completion)) -> usize {
        let mut polling = self.polling();
        let mut count = 0;
        // The device may write as fast as we read, so there is an end to it.
        let max = max.min(self.entries() as usize);
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

    /// What an entry says that was taken or, if that makes no sense, the next one that does.
    #[inline(never)]
    fn judge(&self, consumer: &mut Consumer, mut entry: Entry) -> Option<Completion> {
        let mut dropped = 0;
        loop {
            let cqe = consumer.queue.read(entry);
            consumer.queue.consumed();
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
        let identity = table::identity(cqe.qpn, cqe.generation);
        let place = identity as usize % REMEMBERED;
        let qp = match consumer.seen[place].take_if(|qp| qp.identity() == identity) {
            Some(qp) => qp,
            None => self.qps.get(ident::qpn_slot(cqe.qpn)).filter(|qp| qp.identity() == identity)?,
        };
        let flags = CqeFlags::from_bits_truncate(cqe.flags);
        let receive = flags.contains(CqeFlags::RECEIVE);
        let retired = qp.retire(self, cqe.tag, receive);
        if retired.is_some() {
            consumer.learn(self, &qp, receive);
        }
        let context = qp.context();
        consumer.seen[place] = Some(qp);
        let retired = retired?;
        Some(Completion {
            context,
            cookie: retired.cookie,
            data: retired.data(),
            qpn: cqe.qpn,
            status,
            flags,
            opcode: cqe.opcode,
            length: cqe.length.min(retired.length()),
            immediate: cqe.immediate,
            source_or_field: cqe.source_or_field,
        })
    }

    /// A queue pair, which is no longer in the table, is gone.
    pub(crate) fn forget(&self, slot: u32) {
        let forgotten = self.consumer.lock().queue().and_then(|consumer| consumer.forget(slot));
        drop(forgotten);
    }

    /// Shows the receive entries that are left of a queue pair that was reset or is gone.
    pub(crate) fn left_by(&self, identity: u64, mut each: impl FnMut(u32)) {
        let mut guard = self.consumer.lock();
        let Some(consumer) = guard.queue() else { return };
        consumer.queue.waiting(|entry| {
            let whose = table::identity(entry.qpn, entry.generation);
            if whose == identity && CqeFlags::from_bits_truncate(entry.flags).contains(CqeFlags::RECEIVE) {
                each(entry.tag);
            }
        });
    }

    /// Forgets all queue pairs: they hold on to their CQs.
    pub(crate) fn forget_all(&self) {
        let forgotten = self.consumer.lock().queue().map(|consumer| core::mem::take(&mut consumer.seen));
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
        self.consumer.lock().queue().map_or(0, |consumer| consumer.queue.pending(limit))
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
        let mut guard = self.consumer.lock();
        let Some(consumer) = guard.queue() else { return };
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
        let agent = self.client().agent();
        agent.alive()?;
        let log = log_entries(entries, agent.identity().max_cqes)?;
        let _control = self.object.control()?;
        let ring = agent.nic().resize_cq(self.number(), log)?;
        self.entries.store(ring.entries(), Ordering::Relaxed);
        // Pollers went on in the old ring meanwhile; what they took there is not before `head` in the new one.
        match self.consumer.lock().queue() {
            Some(consumer) => consumer.queue.move_to(ring),
            None => return Err(Error::Gone),
        }
        // Whoever found the old ring empty and sleeps now would miss what came into the new one before.
        agent.notice(self.number(), self.generation);
        Ok(())
    }

    /// Whether it overflowed or failed.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    fn lease(&self) -> Result<Lease, Error> {
        let mut guard = self.consumer.lock();
        guard.queue().map(|consumer| consumer.queue.lease().clone()).ok_or(Error::Gone)
    }

    /// Destroys it; [`Error::Busy`] while a queue pair uses it. Entries that wait are lost.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        let answer = agent.nic().destroy_cq(self.number(), &self.lease()?);
        destroying.finish(answer, agent.cqs.numbers(), |_| drop(agent.cqs.remove(self.number())))?;
        // Last: once the slot is empty, another CQ can be created in it.
        drop(self.consumer.vacate());
        Ok(())
    }
}

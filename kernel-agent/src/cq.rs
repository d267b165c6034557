//! Completion queues: any thread polls them; entries are resolved to the work requests' cookies.
//!
//! The agent checks what the device wrote: number and generation against the queue pair in that
//! slot, the queue pair's CQ against this one, the tag against the outstanding requests, the length
//! against the request's.
//!
//! A CQ has a table of the queue pairs on it, which a queue pair enters when it is created and
//! leaves when it is destroyed.
//!
//! Locks, in this order: `control` (sleeps; destroy and resize), `changes` (sleeps; queue pairs
//! that enter and leave), the slot of `consumer` (spins), then an SRQ's.

use alloc::sync::Arc;
use core::hint::cold_path;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nic_abi::admin::CqFlags;
use nic_abi::cqe::{self, CqeFlags};
use nic_hal::{CompletionQueue, CqParams, Entry, Lease, Outstanding, Retired};
use platform::use_count::{Counted, UseCount};
use platform::{SleepLock, heap};

use crate::agent::{Agent, Counter, EQ_COMPLETIONS};
use crate::client::AnyObject;
use crate::members::{Member, Members, Queues, Size};
use crate::object::Object;
use crate::slot::{OwnerGuard, QueueSlot, SlotOwner, SlotParams};
use crate::table::{self, Number, Slots};
use crate::{Client, Error, Resource};

/// Which entry an armed CQ reports.
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
    /// The outcome.
    pub status: cqe::Status,
    /// Further properties, [`cqe::CqeFlags::RECEIVE`] among them.
    pub flags: cqe::CqeFlags,
    /// A send-queue completion's `nic_abi::wqe::Opcode`, unchecked; 0 for receives.
    pub opcode: u8,
    /// Bytes transferred; never more than the request's segments hold. 0 for a receive that an RDMA
    /// Write took.
    pub length: u32,
    /// Immediate data or the invalidated key, if the flags say so.
    pub immediate: u32,
    /// Datagrams: the sender's queue pair. A receive that an RDMA Write took
    /// ([`cqe::CqeFlags::WRITE`]): the Write's length, as the device states it. Errors: the offset
    /// in the descriptor of the field at fault.
    pub detail: u32,
}

/// A work request that succeeded, and whose completion has nothing else to report.
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

/// The immediate data of a message, and what kind of message it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Immediate {
    /// The number that the peer posted.
    pub data: u32,
    /// The length in bytes of the RDMA Write that took the Receive; `None` if a Send took it. The
    /// Write's data is not in the Receive's segments, so the length may exceed theirs.
    pub written: Option<u32>,
}

/// What [`CqSlot::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took<T = Done> {
    /// The oldest completion; it was taken.
    Done(T),
    /// The queue is empty.
    Nothing,
    /// The slow path is needed; nothing was taken.
    Other,
}

impl<T> Took<T> {
    #[inline(always)]
    fn map<R>(self, of: impl FnOnce(T) -> R) -> Took<R> {
        match self {
            Took::Done(value) => Took::Done(of(value)),
            Took::Nothing => Took::Nothing,
            Took::Other => Took::Other,
        }
    }
}

/// What is waiting behind a completion that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nothing.
    Nothing,
    /// Another completion.
    Completion,
    /// An entry that may be of a queue pair that is gone, and so no completion.
    Suspect,
}

/// What [`CqSlot::take_any`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TookAny<T> {
    /// The oldest completion; it was taken.
    Taken {
        /// What the caller made of it.
        value: T,
        /// What was waiting behind it.
        behind: Behind,
        /// Whether the slot is closed for one of the given reasons.
        closed: bool,
    },
    /// The queue is empty.
    Nothing,
    /// The slow path is needed; no completion was taken.
    Other,
}

/// The flag in an entry's outcome that says which work queue of the queue pair it is of.
const RECEIVE: u16 = (CqeFlags::RECEIVE.bits() as u16) << 8;
/// The bits of an outcome that need the slow path: an error, or a flag that makes the rest of the
/// entry matter.
const SPECIAL: u16 = 0xff | ((CqeFlags::GRH.bits() | CqeFlags::INVALIDATED.bits()) as u16) << 8;
/// The flag in an entry's outcome that says that its message carried immediate data.
const WITH_IMMEDIATE: u16 = (CqeFlags::IMMEDIATE.bits() as u16) << 8;
/// The flags in the outcome of a receive whose message carried immediate data.
const ARRIVED: u16 = (CqeFlags::RECEIVE.union(CqeFlags::IMMEDIATE).bits() as u16) << 8;
/// The flag in an entry's outcome that says that an RDMA Write took the receive.
const WRITTEN: u16 = (CqeFlags::WRITE.bits() as u16) << 8;
/// The bits of an outcome that [`CqSlot::take_any`] leaves to the slow path.
const UNUSUAL: u16 = 0xff | (CqeFlags::INVALIDATED.bits() as u16) << 8;
const _: () = assert!(cqe::Status::Success as u8 == 0);

/// The consumer of a CQ, with the queue pairs on it. It is in a [`CqSlot`].
pub struct Consumer {
    queue: CompletionQueue,
    members: Members,
    /// At which level the CQ is armed, until the dispatcher thread takes its event.
    armed: Option<Arm>,
    /// Entries before this index may be of queue pairs that were reset or destroyed since.
    suspect: Option<u32>,
    /// How many entries were dropped: of queue pairs that are gone, or invalid.
    dropped: u64,
}

/// The slot of a CQ. It is open from the creation of the CQ on.
pub type CqSlot = QueueSlot<Consumer>;

#[inline(always)]
fn done(context: u64, retired: &Retired, entry: &Entry) -> Done {
    Done { context, cookie: retired.cookie, data: retired.data(), length: entry.length(retired) }
}

impl Consumer {
    fn new(queue: CompletionQueue, members: Members) -> Consumer {
        Consumer { queue, members, armed: None, suspect: None, dropped: 0 }
    }

    /// Whether each entry that waits is of a queue pair on this CQ, if the device writes only such
    /// entries.
    fn is_clean(&mut self) -> bool {
        // The difference is negative before the index.
        let passed = |end: u32| self.queue.head().wrapping_sub(end).cast_signed() >= 0;
        if self.suspect.is_some_and(passed) {
            self.suspect = None;
        }
        self.suspect.is_none()
    }

    /// Notes that entries that wait now may be of a queue pair that was reset or destroyed.
    fn note_suspects(&mut self) {
        let pending = self.queue.pending(u32::MAX);
        self.suspect = Some(self.queue.head().wrapping_add(pending));
    }
}

/// The requests of a plain entry's work queue, and the context of its queue pair. An entry is plain
/// if its outcome has none of the bits `special`.
#[inline(always)]
fn known<'a>(members: &'a Members, entry: &Entry, special: u16) -> Option<(u64, &'a Outstanding)> {
    if entry.outcome() & special != 0 {
        return None;
    }
    let member = members.find_at_once(entry.identity)?;
    let requests = if entry.outcome() & RECEIVE == 0 { &*member.sends } else { &**member.receives };
    Some((member.context, requests))
}

impl CqSlot {
    /// Takes the oldest completion, if `handle` is the slot's, the slot is open, and the completion
    /// is a plain success.
    #[inline(always)]
    pub fn take(&self, handle: u64) -> Took {
        self.take_beside(handle, SPECIAL, |_, _| ()).map(|(done, ())| done)
    }

    /// As [`CqSlot::take`], but leaves a completion with immediate data to the slow path, since
    /// [`Done`] has no place for that.
    #[inline(always)]
    pub fn take_without_immediate(&self, handle: u64) -> Took {
        self.take_beside(handle, SPECIAL | WITH_IMMEDIATE, |_, _| ()).map(|(done, ())| done)
    }

    /// As [`CqSlot::take`], and returns the immediate data.
    #[inline(always)]
    pub fn take_with_immediate(&self, handle: u64) -> Took<(Done, Option<Immediate>)> {
        self.take_beside(handle, SPECIAL, |queue, entry| {
            if entry.outcome() & ARRIVED != ARRIVED {
                return None;
            }
            let (data, detail) = queue.immediate_and_detail(entry);
            Some(Immediate { data, written: (entry.outcome() & WRITTEN != 0).then_some(detail) })
        })
    }

    /// As [`CqSlot::take`], if the outcome of the entry has none of the bits `special`. `beside`
    /// reads what else the caller needs of the entry.
    #[inline(always)]
    fn take_beside<T>(
        &self,
        handle: u64,
        special: u16,
        beside: impl FnOnce(&CompletionQueue, &Entry) -> T,
    ) -> Took<(Done, T)> {
        let Some(mut guard) = self.try_lock(handle) else {
            cold_path();
            return Took::Other;
        };
        let Some(Consumer { queue, members, .. }) = guard.queue() else {
            cold_path();
            return Took::Other;
        };
        let Some(entry) = queue.look() else { return Took::Nothing };
        let Some((context, requests)) = known(members, &entry, special) else {
            cold_path();
            return Took::Other;
        };
        let Some(named) = requests.named(entry.tag()) else {
            cold_path();
            return Took::Other;
        };
        let request = named.request;
        let beside = beside(queue, &entry);
        // The device has to get the room before the poster does: the poster's next request may
        // complete at once, and its completion needs room.
        queue.skip();
        queue.consumed();
        named.retire();
        Took::Done((done(context, &request, &entry), beside))
    }

    /// Takes completions as [`CqSlot::take`] does while they are plain and `into` has room, oldest
    /// first. Returns how many, and whether the slow path has to look for more: at a completion
    /// that is not plain, or because the slot is closed.
    #[inline(always)]
    pub fn take_n<T>(&self, handle: u64, into: &mut [T], make: impl Fn(Done) -> T) -> (usize, bool) {
        let Some(mut guard) = self.try_lock(handle) else { return (0, true) };
        let Some(Consumer { queue, members, .. }) = guard.queue() else { return (0, true) };
        let mut reading = queue.reading();
        let all = into.len();
        let mut left = into;
        // One turn for each run of entries of one work queue. Each turn takes an entry, or is the
        // last.
        let other = loop {
            if left.is_empty() {
                break true;
            }
            let Some(entry) = reading.look() else { break false };
            let Some((context, requests)) = known(members, &entry, SPECIAL) else { break true };
            let mut requests = requests.retiring();
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

    /// Takes the oldest completion if it is a success that invalidated no key, plain or not, and if
    /// `handle` is the slot's and the slot is closed for none but the reasons `but`. `make` makes
    /// of it what the caller needs, under the slot's lock.
    #[inline(always)]
    pub fn take_any<T>(&self, handle: u64, but: u32, make: impl FnOnce(&Completion) -> T) -> TookAny<T> {
        let Some((mut guard, closed)) = self.lock_but(handle, but) else { return TookAny::Other };
        let Some(consumer) = guard.queue() else { return TookAny::Other };
        let Consumer { queue, members, dropped, .. } = &mut *consumer;
        let mut reading = queue.reading();
        let Some(entry) = reading.look() else { return TookAny::Nothing };
        if entry.outcome() & UNUSUAL != 0 {
            return TookAny::Other;
        }
        let Some(member) = members.find(entry.identity) else { return TookAny::Other };
        let cqe = reading.read(entry);
        reading.advance(1);
        let more = reading.waits();
        // As above, the device gets the room first.
        reading.commit();
        let Some(completion) = complete(member, &cqe) else {
            *dropped += 1;
            return TookAny::Other;
        };
        let behind = match more {
            false => Behind::Nothing,
            true if consumer.is_clean() => Behind::Completion,
            true => Behind::Suspect,
        };
        TookAny::Taken { value: make(&completion), behind, closed }
    }
}

/// Retires the request of an entry.
#[inline(always)]
fn complete(member: &Member, cqe: &cqe::Cqe) -> Option<Completion> {
    let status = cqe::Status::from_byte(cqe.status)?;
    let flags = CqeFlags::from_bits_truncate(cqe.flags);
    let retired = member.retire(cqe.tag, flags.contains(CqeFlags::RECEIVE))?;
    Some(Completion {
        context: member.context,
        cookie: retired.cookie,
        data: retired.data(),
        qpn: cqe.qpn,
        status,
        flags,
        opcode: cqe.opcode,
        length: cqe.length.min(retired.length()),
        immediate: cqe.immediate,
        detail: cqe.detail,
    })
}

/// A completion queue, locked for one thread that takes completions. The thread must not call the
/// agent while it holds this.
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
        self.cq.check_entry(consumer, entry)
    }

    /// Closes the CQ's slot for a reason, as [`QueueSlot::set_closed`] does.
    pub fn close(&mut self, reason: u32) {
        self.guard.close(reason);
    }
}

/// A completion queue.
pub struct Cq {
    object: Object,
    generation: u32,
    context: u64,
    consumer: SlotOwner<Consumer>,
    /// Held while a queue pair enters or leaves.
    changes: SleepLock,
    entries: AtomicU32,
    failed: AtomicBool,
}

impl Counted for Cq {
    fn uses(&self) -> &UseCount {
        self.object.uses()
    }
}

/// A CQ's number, and its share of the event queue's room. Dropping this gives both back.
pub(crate) struct CqPlace<'a> {
    agent: &'a Agent,
    pub(crate) number: Number,
}

impl<'a> CqPlace<'a> {
    /// Takes a number from those of all CQs; its owner goes to `slots`.
    pub(crate) fn take<T>(agent: &'a Agent, slots: &Slots<T>) -> Result<CqPlace<'a>, Error> {
        if !agent.event_room.take() {
            return Err(Error::NoResources(Resource::Cqs));
        }
        match agent.cqs.take_in(slots) {
            Some(number) => Ok(CqPlace { agent, number }),
            None => {
                agent.event_room.give_back();
                Err(Error::NoResources(Resource::Cqs))
            }
        }
    }

    /// Creates the CQ in the device.
    pub(crate) fn create(&self, log_entries: u32, flags: CqFlags) -> Result<CompletionQueue, Error> {
        let Number { slot, generation } = self.number;
        let params = CqParams { log_entries, eq: EQ_COMPLETIONS, generation, flags };
        Ok(self.agent.nic().create_cq(slot, &params)?)
    }

    /// Destroys the CQ in the device, since the rest of its creation failed.
    pub(crate) fn destroy(self, lease: &Lease) {
        if self.agent.nic().destroy_cq(self.number.slot, lease).is_err() {
            self.keep();
        }
    }

    /// The CQ is created, and gives both back when it is destroyed.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for CqPlace<'_> {
    fn drop(&mut self) {
        self.agent.event_room.give_back();
        self.agent.cqs.release(self.number.slot);
    }
}

/// The size of a CQ as the device counts it.
pub(crate) fn log_entries(entries: u32, most: u32) -> Result<u32, Error> {
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
        let members = Members::new()?;
        let place = CqPlace::take(agent, &agent.cqs)?;
        let Number { slot, generation } = place.number;
        let queue = place.create(log_entries, CqFlags::empty())?;
        let (entries, lease) = (queue.entries(), queue.lease().clone());
        let owner = table::identity(slot, generation);
        let consumer = heap::room_for_arc::<(Cq, CqSlot)>().map_err(Error::from).and_then(|()| {
            SlotOwner::new(slot_params, owner, 0, Consumer::new(queue, members)).ok_or(Error::Busy)
        });
        let consumer = match consumer {
            Ok(consumer) => consumer,
            Err(error) => {
                place.destroy(&lease);
                return Err(error);
            }
        };
        place.keep();
        let cq = Arc::new(Cq {
            object: Object::new(client, Counter::Cqs, slot),
            generation,
            context,
            entries: AtomicU32::new(entries),
            consumer,
            changes: SleepLock::new(),
            failed: AtomicBool::new(false),
        });
        agent.cqs.put(slot, cq.clone());
        client.register_object(slot, AnyObject::Cq(cq.clone()))?;
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

    /// How many entries the CQ has room for.
    pub fn entries(&self) -> u32 {
        self.entries.load(Ordering::Relaxed)
    }

    /// How many entries were dropped: of queue pairs that are gone, or invalid.
    pub fn dropped(&self) -> u64 {
        self.consumer.lock().queue().map_or(0, |consumer| consumer.dropped)
    }

    /// Takes the oldest completion.
    pub fn poll_one(&self) -> Option<Completion> {
        self.polling().next()
    }

    /// Locks the queue: no other thread takes completions until the result is dropped.
    pub fn polling(&self) -> Polling<'_> {
        Polling { cq: self, guard: self.consumer.lock() }
    }

    /// Takes up to `max` completions, oldest first; returns how many. `sink` runs under the CQ's
    /// lock and must not call the agent.
    #[inline]
    pub fn poll(&self, max: usize, mut sink: impl FnMut(Completion)) -> usize {
        let mut polling = self.polling();
        let mut count = 0;
        // The device may write as fast as this loop reads, so the loop is bounded.
        let max = max.min(self.entries() as usize);
        while count < max {
            let Some(completion) = polling.next() else { break };
            count += 1;
            sink(completion);
        }
        count
    }

    /// Resolves an entry that was taken. Drops an entry that is invalid, and takes the next one.
    #[inline(never)]
    fn check_entry(&self, consumer: &mut Consumer, mut entry: Entry) -> Option<Completion> {
        let mut dropped = 0;
        loop {
            let cqe = consumer.queue.read(entry);
            consumer.queue.consumed();
            let completion = self.resolve(consumer, &cqe);
            if completion.is_some() {
                return completion;
            }
            consumer.dropped += 1;
            dropped += 1;
            // At most one turn for each entry: a device that goes on writing must not keep a thread
            // here.
            if dropped == consumer.queue.entries() {
                return None;
            }
            entry = consumer.queue.take()?;
        }
    }

    /// Finds the work request of an entry, and retires it.
    fn resolve(&self, consumer: &mut Consumer, cqe: &cqe::Cqe) -> Option<Completion> {
        complete(consumer.members.find(table::identity(cqe.qpn, cqe.generation))?, cqe)
    }

    /// Adds a queue pair to those on this CQ.
    pub(crate) fn add_member(&self, queues: &Queues<'_>) -> Result<(), Error> {
        let _changes = self.changes.lock(self.client().agent().platform());
        let mut larger = None;
        if let Some(consumer) = self.consumer.lock().queue()
            && consumer.members.is_full()
        {
            larger = Some(consumer.members.next_size());
        }
        if let Some(size) = larger {
            self.grow(&size)?;
        }
        self.consumer.lock().queue().ok_or(Error::Gone)?.members.add(queues);
        Ok(())
    }

    /// Moves the queue pairs to a larger table, with `changes` held.
    fn grow(&self, size: &Size) -> Result<(), Error> {
        let mut larger = size.table()?;
        let mut at = Some(0);
        while let Some(next) = at {
            at = self.consumer.lock().queue().ok_or(Error::Gone)?.members.copy(next, &mut larger);
        }
        if let Some(consumer) = self.consumer.lock().queue() {
            core::mem::swap(&mut consumer.members, &mut larger);
        }
        // The former table is dropped without the lock.
        drop(larger);
        Ok(())
    }

    /// Removes a queue pair from those on this CQ. No thread resolves an entry of it any more when
    /// this returns.
    pub(crate) fn remove_member(&self, identity: u64) {
        let _changes = self.changes.lock(self.client().agent().platform());
        let left = self.consumer.lock().queue().and_then(|consumer| {
            consumer.note_suspects();
            consumer.members.remove(identity)
        });
        drop(left);
    }

    /// Calls `each` with the tags of receive entries that were not polled, of a queue pair that was
    /// reset or is gone.
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

    /// Takes the queue out of its slot, with the queue pairs on it. When this returns, no thread
    /// takes completions or arms the CQ.
    pub(crate) fn leave(&self) {
        drop(self.consumer.vacate());
    }

    /// Forgets a queue's requests after the device has forgotten them, while no thread polls.
    pub(crate) fn clear(&self, requests: &Outstanding) {
        let mut guard = self.consumer.lock();
        requests.clear();
        if let Some(consumer) = guard.queue() {
            consumer.note_suspects();
        }
    }

    /// Whether a completion is waiting. Drops entries before it that are not completions of a queue
    /// pair on this CQ.
    pub fn has_completion(&self) -> bool {
        let mut guard = self.consumer.lock();
        let Some(consumer) = guard.queue() else { return false };
        // At most one turn for each entry, as in `check_entry`.
        for _ in 0..consumer.queue.entries() {
            let Some(entry) = consumer.queue.reading().look() else { return false };
            if consumer.is_clean() {
                return true;
            }
            let receive = entry.outcome() & RECEIVE != 0;
            if consumer.members.find(entry.identity).is_some_and(|member| member.has(entry.tag(), receive)) {
                return true;
            }
            let _ = consumer.queue.take();
            consumer.queue.consumed();
            consumer.dropped += 1;
        }
        false
    }

    /// How many completions are waiting; `None` if some of the entries may be of queue pairs that
    /// are gone, so that they have to be polled to be counted.
    pub fn completions(&self) -> Option<u32> {
        let mut guard = self.consumer.lock();
        let consumer = guard.queue()?;
        consumer.is_clean().then(|| consumer.queue.pending(u32::MAX))
    }

    /// How many entries are written and not polled, counted up to `limit`. A poll may drop some of
    /// them.
    pub fn pending(&self, limit: u32) -> u32 {
        self.consumer.lock().queue().map_or(0, |consumer| consumer.queue.pending(limit))
    }

    /// Arms the CQ: one `Upcalls::completion` follows when the next entry arrives. Poll once more
    /// afterwards, since entries that arrived before cause no upcall.
    ///
    /// Arming again before the upcall has begun does nothing, unless it asks for more, and that
    /// changes only a CQ whose event is not under way. So a CQ has at most one event under way, and
    /// the event queue cannot overflow whatever consumers do.
    #[inline]
    pub fn arm(&self, arm: Arm) {
        let mut guard = self.consumer.lock();
        let Some(consumer) = guard.queue() else { return };
        match (consumer.armed, arm) {
            (None, _) => consumer.queue.arm(arm == Arm::Solicited),
            (Some(Arm::Solicited), Arm::Next) => _ = consumer.queue.arm_for_more(),
            _ => return,
        }
        consumer.armed = Some(arm);
    }

    /// Records that the dispatcher thread has taken the event for which the CQ was armed: it can be
    /// armed again. Under the slot's lock, so that the upcall begins after each call of `arm` that
    /// relied on this event.
    pub(crate) fn disarmed(&self) {
        if let Some(consumer) = self.consumer.lock().queue() {
            consumer.armed = None;
        }
    }

    /// Changes the size to at least `entries`; entries that were not polled move along. One
    /// spurious `Upcalls::completion` follows.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        let agent = self.client().agent();
        agent.alive()?;
        let log = log_entries(entries, agent.identity().max_cqes)?;
        let _control = self.object.control()?;
        let ring = agent.nic().resize_cq(self.number(), log)?;
        self.entries.store(ring.entries(), Ordering::Relaxed);
        // Pollers went on in the old ring meanwhile. In the new ring, the entries that they took
        // there are before `head`.
        match self.consumer.lock().queue() {
            Some(consumer) => {
                consumer.queue.move_to(ring);
                // A queue pair that ended meanwhile noted only its entries in the old ring.
                consumer.note_suspects();
            }
            None => return Err(Error::Gone),
        }
        // A thread that found the old ring empty may sleep now, although the new ring has entries.
        agent.notice(self.number());
        Ok(())
    }

    /// Whether the CQ overflowed or failed.
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

    /// Destroys the CQ; [`Error::Busy`] while a queue pair uses it. Entries that were not polled
    /// are lost.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        let answer = agent.nic().destroy_cq(self.number(), &self.lease()?);
        let mut consumer = None;
        destroying.finish(
            answer,
            |number| agent.cqs.release(number),
            |confirmed| {
                drop(agent.cqs.remove(self.number()));
                // The number has a record in the device, into which the consumer writes. So the
                // consumer leaves before another CQ can get the number.
                consumer = self.consumer.vacate();
                if confirmed {
                    agent.event_room.leave();
                }
            },
        )
    }
}

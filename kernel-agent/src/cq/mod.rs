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

mod completion;
mod consumer;
mod place;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nic_abi::admin::CqFlags;
use nic_abi::cqe::{self, CqeFlags};
use nic_hal::{Entry, Lease, Outstanding};
use platform::use_count::{Counted, UseCount};
use platform::{SleepLock, heap};

use crate::client::AnyObject;
use crate::members::{Members, Queues, Size};
use crate::object::{Counter, Object};
use crate::slot::{OwnerGuard, SlotOwner, SlotParams};
use crate::table::{self, Number};
use crate::{Client, Error};

pub use completion::{Behind, Completion, Done, Immediate, Took, TookAny};
pub use consumer::{Arm, Consumer, CqSlot};
use consumer::{RECEIVE, complete};
pub(crate) use place::{CqPlace, log_entries};

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

    /// Closes the CQ's slot for a reason, as [`QueueSlot::set_closed`](crate::slot::QueueSlot::set_closed) does.
    pub fn close(&mut self, reason: u32) {
        self.guard.close(reason);
    }
}

/// A completion queue.
pub struct Cq {
    object: Object<Client>,
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
        let place = CqPlace::take(agent.nic(), &agent.event_room, agent.cqs.numbers(), &agent.cqs)?;
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
        self.object.owner()
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

    /// Whether the CQ is destroyed, or its client has left: then it has no completions any more.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.object.alive().is_err()
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

//! Completion queues of virtual interfaces: an entry says which queue of which virtual interface
//! has a descriptor that is complete.
//!
//! Such a queue never fails: the device drops entries for which there is no room. An entry names
//! its virtual interface by slot and generation, so entries stay valid when the virtual interface
//! is reset.
//!
//! Locks, in this order: `control` of the object (sleeps; destroy and resize), `consumer` (spins),
//! the slot of a virtual interface in the agent's table.

use alloc::sync::Arc;
use core::hint::cold_path;

use nic_abi::admin::CqFlags;
use nic_abi::cqe::CqeFlags;
use nic_abi::ident;
use nic_hal::{CompletionQueue, Entry};
use platform::use_count::{Counted, UseCount};
use platform::{Closable, ClosableGuard, heap};

use crate::client::AnyObject;
use crate::cq::{CqPlace, log_entries};
use crate::object::{Counter, Object};
use crate::table::Number;
use crate::{Client, Error, ViSide};

/// A completion queue of virtual interfaces.
pub struct ViCq {
    object: Object<Client>,
    generation: u32,
    context: u64,
    /// Closed when the queue is destroyed or the agent is closed: the number has a record in the
    /// device, into which the consumer writes.
    consumer: Closable<Consumer>,
}

struct Consumer {
    queue: CompletionQueue,
    /// The queue is armed, or the event for which it was armed has not been taken.
    armed: bool,
}

impl Consumer {
    /// Takes the oldest entry, and gives its room to the device.
    #[inline(always)]
    fn next(&mut self) -> Option<Entry> {
        let entry = self.queue.take()?;
        self.queue.consumed();
        Some(entry)
    }
}

impl Counted for ViCq {
    fn uses(&self) -> &UseCount {
        self.object.uses()
    }
}

impl ViCq {
    pub(crate) fn create(client: &Arc<Client>, entries: u32, context: u64) -> Result<Arc<ViCq>, Error> {
        let agent = client.agent();
        agent.alive()?;
        if agent.config().max_vis == 0 {
            return Err(Error::OutOfRange("type of completion queue"));
        }
        let log_entries = log_entries(entries, agent.identity().max_cqes)?;
        let place = CqPlace::take(agent.nic(), &agent.event_room, agent.cqs.numbers(), &agent.vi_cqs)?;
        let Number { slot, generation } = place.number;
        let queue = place.create(log_entries, CqFlags::VI)?;
        if let Err(error) = heap::room_for_arc::<ViCq>() {
            place.destroy(queue.lease());
            return Err(error.into());
        }
        place.keep();
        let cq = Arc::new(ViCq {
            object: Object::new(client, Counter::ViCqs, slot),
            generation,
            context,
            consumer: Closable::new(Consumer { queue, armed: false }),
        });
        agent.vi_cqs.put(slot, cq.clone());
        client.register_object(slot, AnyObject::ViCq(cq.clone()))?;
        // No look at the device's death: it closes queues to posts, and a completion queue takes
        // none. Entries can be taken and the queue can be armed until the agent is closed, which
        // waits for this call. Its waiters are the API's, which wakes those that it had when it
        // learned of the death, and lets no other wait.
        Ok(cq)
    }

    /// The context given at creation.
    #[inline]
    pub fn context(&self) -> u64 {
        self.context
    }

    pub(crate) fn number(&self) -> u32 {
        self.object.number()
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.object.owner()
    }

    /// How many entries the queue has room for.
    pub fn entries(&self) -> u32 {
        self.consumer.lock().queue.entries()
    }

    /// How many entries are in the queue, counted up to `limit`. Those of virtual interfaces that
    /// are destroyed count until they are dropped.
    pub fn queued(&self, limit: u32) -> u32 {
        self.consumer.lock().queue.pending(limit)
    }

    /// Takes the oldest entry: the context of the virtual interface whose descriptor is complete,
    /// and the queue that the descriptor is on. Entries of virtual interfaces that are destroyed
    /// are dropped.
    ///
    /// The descriptor itself stays on its queue. It may have been taken off meanwhile, by a thread
    /// that looked at its status alone.
    #[inline(always)]
    pub fn take(&self) -> Option<(u64, ViSide)> {
        let mut consumer = self.consumer.enter()?;
        let found = self.resolve(&consumer.next()?);
        if found.is_none() {
            cold_path();
            return self.take_behind(consumer);
        }
        found
    }

    /// Takes the oldest entry behind one that was dropped.
    #[cold]
    #[inline(never)]
    fn take_behind(&self, mut consumer: ClosableGuard<'_, Consumer>) -> Option<(u64, ViSide)> {
        // At most one turn for each entry: a device that goes on writing must not keep a thread
        // here.
        for _ in 1..consumer.queue.entries() {
            let found = self.resolve(&consumer.next()?);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Finds the virtual interface of an entry.
    #[inline(always)]
    fn resolve(&self, entry: &Entry) -> Option<(u64, ViSide)> {
        let flags = CqeFlags::from_bits_truncate((entry.outcome() >> 8) as u8);
        let side = if flags.contains(CqeFlags::RECEIVE) { ViSide::Receive } else { ViSide::Send };
        let vis = &self.client().agent().vis;
        let slot = vis.lock(ident::qpn_slot(entry.identity as u32))?;
        let vi = slot.as_deref()?;
        let known = vi.generation() == (entry.identity >> 32) as u32 && vi.is_on(self, side);
        known.then(|| (vi.context(), side))
    }

    /// Arms the queue: one `Upcalls::completion` follows when the next entry arrives. Take once
    /// more afterwards. Arming again before the upcall has begun does nothing.
    pub fn arm(&self) {
        let Some(mut consumer) = self.consumer.enter() else { return };
        if !consumer.armed {
            consumer.armed = true;
            consumer.queue.arm(false);
        }
    }

    /// Records that the dispatcher thread has taken the event for which the queue was armed.
    pub(crate) fn disarmed(&self) {
        self.consumer.lock().armed = false;
    }

    /// Changes the size to at least `entries`; entries that were not taken move along. One spurious
    /// `Upcalls::completion` follows.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        let agent = self.client().agent();
        agent.alive()?;
        let log = log_entries(entries, agent.identity().max_cqes)?;
        let _control = self.object.control()?;
        let ring = agent.nic().resize_cq(self.number(), log)?;
        // Takers went on in the old ring meanwhile. In the new ring, the entries that they took
        // there are before the head.
        match self.consumer.enter() {
            Some(mut consumer) => consumer.queue.move_to(ring),
            None => return Err(Error::Gone),
        }
        // A thread that found the old ring empty may sleep now, although the new ring has entries.
        agent.notice(self.number());
        Ok(())
    }

    /// Closes the queue for good. When this returns, no thread takes entries or arms it.
    pub(crate) fn leave(&self) {
        self.consumer.close();
    }

    /// Destroys the queue; [`Error::Busy`] while a virtual interface uses it. Entries that were not
    /// taken are lost.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        let lease = self.consumer.lock().queue.lease().clone();
        let answer = agent.nic().destroy_cq(self.number(), &lease);
        destroying.finish(
            answer,
            |number| agent.cqs.release(number),
            |confirmed| {
                drop(agent.vi_cqs.remove(self.number()));
                // Before another queue can get the number.
                self.leave();
                if confirmed {
                    agent.event_room.leave();
                }
            },
        )
    }
}

//! Shared receive queues.
//!
//! `queue` is closed to posts when the SRQ is destroyed or the device dies. A post checks that
//! under the queue's lock, so it cannot ring the doorbell of the SRQ that gets the number next.
//!
//! Locks: `control` (sleeps; commands to the device), then `queue` (leaf). When a receive is
//! retired, `queue` is taken under the lock of a CQ and of a queue pair's slot.

use alloc::sync::Arc;

use nic_abi::wqe::Segment;
use nic_hal::{Shadow, SrqParams};
use platform::heap;
use platform::sync::Mutex;
use platform::use_count::{Counted, Use, UseCount};

use crate::agent::config::EQ_ASYNC;
use crate::client::AnyObject;
use crate::object::{Counter, Object, begin_use};
use crate::region::Pd;
use crate::shared_queue::SharedQueue;
use crate::table::Number;
use crate::{Client, Error, PostError, Resource};

/// A shared receive queue.
pub struct Srq {
    object: Object<Client>,
    generation: u32,
    context: u64,
    max_segments: u32,
    queue: Arc<SharedQueue>,
    pd: Mutex<Option<Use<Pd>>>,
}

impl Counted for Srq {
    fn uses(&self) -> &UseCount {
        self.object.uses()
    }
}

impl Srq {
    pub(crate) fn create(
        client: &Arc<Client>,
        pd: &Arc<Pd>,
        max_requests: u32,
        max_segments: u32,
        limit: u32,
        context: u64,
    ) -> Result<Arc<Srq>, Error> {
        let agent = client.agent();
        agent.alive()?;
        client.owns(pd.client())?;
        let pd = begin_use(pd)?;
        let Number { slot, generation } = agent.srqs.take().ok_or(Error::NoResources(Resource::Srqs))?;
        let params =
            SrqParams { max_requests, max_segments, pd: pd.number(), generation, limit, eq: EQ_ASYNC };
        let queue = match agent.nic().create_srq(slot, &params) {
            Ok(queue) => queue,
            Err(error) => {
                agent.srqs.release(slot);
                return Err(error.into());
            }
        };
        let lease = queue.lease().clone();
        let made = heap::arc(SharedQueue::new(queue)).map_err(|_| Error::OutOfMemory);
        let queue = match made.and_then(|queue| Ok(heap::room_for_arc::<Srq>().map(|()| queue)?)) {
            Ok(queue) => queue,
            Err(error) => {
                if agent.nic().destroy_srq(slot, &lease).is_ok() {
                    agent.srqs.release(slot);
                }
                return Err(error);
            }
        };
        let srq = Arc::new(Srq {
            object: Object::new(client, Counter::Srqs, slot),
            generation,
            context,
            max_segments,
            queue,
            pd: Mutex::new(Some(pd)),
        });
        agent.srqs.put(slot, srq.clone());
        client.register_object(slot, AnyObject::Srq(srq.clone()))?;
        // If the device has died meanwhile, its death was reported before this SRQ was in the
        // table.
        if agent.is_dead() {
            srq.device_died();
        }
        Ok(srq)
    }

    /// The context given at creation.
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

    /// The queue, as consumers of completions know it.
    pub(crate) fn queue(&self) -> &Arc<SharedQueue> {
        &self.queue
    }

    /// Posts a receive; `segment` converts the caller's kind of segment, and may refuse it.
    #[inline]
    pub fn post_receive<T, S: Into<Option<Segment>>>(
        &self,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> S,
        shadow: Shadow,
    ) -> Result<(), PostError> {
        let mut queue = self.queue.enter().ok_or(PostError::Gone)?;
        queue.push(solicited, segments, segment, shadow)?;
        queue.ring();
        Ok(())
    }

    /// Changes how many receives may be outstanding, sets the limit and arms its event once, or
    /// both. A limit of 0 disarms the event, but not together with a size. If one of both fails,
    /// neither is changed.
    ///
    /// Posted receives stay, and queue pairs go on taking them. While the size changes, the smaller
    /// of the old and the new size holds. [`Error::Busy`] if more receives are outstanding,
    /// [`Error::OutOfRange`] if the limit is above the size.
    pub fn modify(&self, size: Option<u32>, limit: Option<u32>) -> Result<(), Error> {
        let agent = self.client().agent();
        let _control = self.object.control()?;
        if limit.is_some_and(|limit| limit > size.unwrap_or_else(|| self.queue.lock().limit())) {
            return Err(Error::OutOfRange("limit"));
        }
        match (size, limit) {
            (Some(size), limit) => self.resize(size, limit.unwrap_or(0)),
            (None, Some(limit)) => Ok(agent.nic().modify_srq(self.number(), limit)?),
            (None, None) => Ok(()),
        }
    }

    /// Moves the queue to a ring of another size, with `control` held.
    fn resize(&self, size: u32, limit: u32) -> Result<(), Error> {
        let agent = self.client().agent();
        agent.alive()?;
        let mut ring = agent.nic().shared_ring(size, self.max_segments)?;
        if !self.queue.lock().begin_move(&mut ring) {
            return Err(Error::Busy);
        }
        while self.queue.lock().copy_some() {}
        let moved = agent.nic().resize_srq(self.number(), &ring, limit);
        self.queue.lock().end_move(&mut ring, moved.is_ok());
        Ok(moved?)
    }

    /// How many receives may be outstanding, and the limit by the device: 0 while its event is not
    /// armed.
    pub fn sizes(&self) -> Result<(u32, u32), Error> {
        let agent = self.client().agent();
        // Neither changes between the two reads.
        let _control = self.object.control()?;
        let limit = agent.nic().query_srq(self.number())?.limit;
        Ok((self.queue.lock().limit(), limit))
    }

    /// Closes the queue to posts for good: the device is dead. When this returns, no post is under
    /// way.
    pub(crate) fn device_died(&self) {
        self.queue.close();
    }

    /// How many receives are outstanding.
    pub fn outstanding(&self) -> u32 {
        self.queue.lock().outstanding()
    }

    /// Destroys the SRQ; [`Error::Busy`] while a queue pair uses it.
    pub fn destroy(&self) -> Result<(), Error> {
        let destroying = self.object.begin_destroy()?;
        let agent = self.client().agent();
        self.queue.close();
        let lease = self.queue.lock().lease().clone();
        let answer = agent.nic().destroy_srq(self.number(), &lease);
        if let Err(nic_hal::Error::Command(_)) = answer {
            self.queue.reopen();
        }
        let release = |number| agent.srqs.release(number);
        destroying.finish(answer, release, |_| drop(agent.srqs.remove(self.number())))?;
        drop(self.pd.lock().take());
        Ok(())
    }
}

//! Shared receive queues.
//!
//! Locks: `queue` (leaf; taken under a CQ's and a queue pair's slot when a receive is retired), `control` (sleeps; before `queue`).

use alloc::sync::Arc;

use nic_abi::wqe::Segment;
use nic_hal::{Lease, SharedReceiveQueue, SrqParams};
use platform::SleepLock;
use platform::sync::Mutex;

use crate::agent::{Counter, EQ_ASYNC};
use crate::client::Object;
use crate::region::Pd;
use crate::sync::{Use, Used, Users};
use crate::table::Number;
use crate::{Client, Error, Note, PostError, Resource};

/// A shared receive queue.
pub struct Srq {
    client: Arc<Client>,
    number: u32,
    generation: u32,
    context: u64,
    queue: Mutex<SharedReceiveQueue>,
    lease: Lease,
    pd: Mutex<Option<Use<Pd>>>,
    control: SleepLock,
    users: Users,
}

impl Used for Srq {
    fn users(&self) -> &Users {
        &self.users
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
        let pd = Use::of(pd)?;
        let Number { slot, generation } = agent.srqs.take().ok_or(Error::NoResources(Resource::Srqs))?;
        let params =
            SrqParams { max_requests, max_segments, pd: pd.number(), generation, limit, eq: EQ_ASYNC };
        let (queue, lease) = match agent.nic().create_srq(slot, &params) {
            Ok(created) => created,
            Err(error) => {
                agent.srqs.give_back(slot);
                return Err(error.into());
            }
        };
        let srq = Arc::new(Srq {
            client: client.clone(),
            number: slot,
            generation,
            context,
            queue: Mutex::new(queue),
            lease,
            pd: Mutex::new(Some(pd)),
            control: SleepLock::default(),
            users: Users::default(),
        });
        agent.srqs.put(slot, srq.clone());
        client.register_object(Counter::Srqs, slot, Object::Srq(srq.clone()));
        Ok(srq)
    }

    /// The context given at creation.
    pub fn context(&self) -> u64 {
        self.context
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Posts a receive.
    pub fn post_receive<T>(
        &self,
        solicited: bool,
        segments: &[T],
        segment: impl Fn(&T) -> Segment,
        note: Note,
    ) -> Result<(), PostError> {
        if self.users.ended() || self.client.agent().is_dead() {
            return Err(PostError::Gone);
        }
        let mut queue = self.queue.lock();
        queue.push(solicited, segments, segment, note.into())?;
        queue.ring();
        Ok(())
    }

    /// Retires the receive that a completion names. Not inlined: the code for other receives is the better for it.
    #[inline(never)]
    pub(crate) fn retire(&self, tag: u32) -> Option<nic_hal::Note> {
        self.queue.lock().retire(tag)
    }

    /// Sets the limit and arms its event once; 0 disarms.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let agent = self.client.agent();
        let _control = self.control.lock(agent.platform());
        if self.users.ended() {
            return Err(Error::Gone);
        }
        Ok(agent.nic().modify_srq(self.number, limit)?)
    }

    /// Asks the device for the limit: 0 while it is not armed.
    pub fn limit(&self) -> Result<u32, Error> {
        if self.users.ended() {
            return Err(Error::Gone);
        }
        Ok(self.client.agent().nic().query_srq(self.number)?.limit)
    }

    /// Receives posted and not completed.
    pub fn outstanding(&self) -> u32 {
        self.queue.lock().outstanding()
    }

    /// Destroys it; [`Error::Busy`] while a queue pair uses it.
    pub fn destroy(&self) -> Result<(), Error> {
        let agent = self.client.agent();
        let _control = self.control.lock(agent.platform());
        self.users.end()?;
        match agent.nic().destroy_srq(self.number, &self.lease) {
            Err(error @ nic_hal::Error::Command(_)) => {
                self.users.resume();
                return Err(error.into());
            }
            Err(_) => {
                drop(agent.srqs.remove(self.number));
                self.client.forget_object(Counter::Srqs, self.number);
            }
            Ok(()) => {
                drop(agent.srqs.remove(self.number));
                self.client.forget_object(Counter::Srqs, self.number);
                agent.srqs.give_back(self.number);
            }
        }
        drop(self.pd.lock().take());
        Ok(())
    }
}

//! An adapter: one opening of the agent by a face, from its beginning to its end. IT-API's IA,
//! VIPL's NIC handle and [`Nic`](crate::Nic) are adapters.
//!
//! A face has an object of its own for each opening, with the tables of its kinds of objects. The
//! object contains the [`Adapter`], and says by the trait [`Face`] what it adds at each moment of
//! an adapter's life. The order of the steps is the same for all faces, and is here:
//!
//! | moment | steps |
//! |---|---|
//! | open | number, name, tables; attach to the agent; start the callback thread |
//! | the device dies | close the queues, disable, close them again; wake all; the face reports it |
//! | end | the face agrees; close the queues, free, close them again; stop the callback thread; wake all; wait for calls; destroy the objects; detach; forget what upcalls left |
//! | last clone dropped | the same as the end, without those that can't be there: waiters and calls |
//!
//! Locks: `ending` (sleeps) is held from the face's decision until the end: whoever finds the
//! adapter ended finds nothing left of it. A face lets no callback begin in an upcall meanwhile,
//! since the agent waits for upcalls, and the callback could call for the end, too.

use alloc::string::String;
use alloc::sync::{Arc, Weak};

use kernel_agent::{Agent, Client, Upcalls};
use platform::sync::Once;
use platform::{Platform, SleepLock, heap};

use crate::handle::{self, ObjectHandle};
use crate::life::{Call, Ended, Life};
use crate::numbers::Number;
use crate::{CallbackThread, OutOfResources};

/// What a face adds to the life of its adapters.
pub trait Face: Upcalls + Send + Sync + Sized + 'static {
    /// The adapter in the face's object.
    fn adapter(&self) -> &Adapter<Self>;

    /// Closes the fast ways to all queues: each post and each reap then takes the slow path, which
    /// looks at the adapter's state. Runs twice at each end.
    fn close_queues(&self);

    /// Wakes all threads and tasks that wait. Those that find the adapter disabled or freed return.
    fn wake_all(&self);

    /// Tells the consumer that the device is dead. Runs once, after the waiters were woken.
    fn device_died(&self) {}

    /// Runs the callbacks that were scheduled for a place, in the callback thread.
    fn run_callbacks(self: &Arc<Self>, _place: u32) {}

    /// Destroys all objects, each before those that it uses.
    fn destroy_objects(&self);

    /// Forgets what upcalls have left. The agent makes none any more.
    fn forget(&self) {}
}

/// An adapter before its face's tables exist, which need its number.
pub struct Opening {
    agent: Arc<Agent>,
    name: String,
    number: Number,
    callbacks: CallbackThread,
}

impl Opening {
    /// Begins to open the NIC of an agent, by the name that log messages use.
    pub fn begin(agent: Arc<Agent>, name: &str) -> Result<Opening, OutOfResources> {
        let number = Number::take()?;
        let callbacks = CallbackThread::new(agent.platform().clone())?;
        let mut own_name = String::new();
        own_name.try_reserve_exact(name.len())?;
        own_name.push_str(name);
        Ok(Opening { agent, name: own_name, number, callbacks })
    }

    /// The adapter's number, for its tables.
    pub fn number(&self) -> &Number {
        &self.number
    }

    /// The agent that owns the NIC.
    pub fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    /// Makes room in the callback thread for a place that the adapter has from the beginning.
    pub fn reserve_callbacks(&self, place: u32) -> Result<(), OutOfResources> {
        self.callbacks.reserve(place)
    }

    /// Makes the face's object around the adapter, and attaches it to the agent as a client that
    /// can have so many connections. If there is a name for a callback thread, starts that. What
    /// was made is dropped if that fails.
    pub fn open<F: Face>(
        self,
        connections: u32,
        thread: Option<&str>,
        make: impl FnOnce(Adapter<F>) -> F,
    ) -> Result<Arc<F>, OutOfResources> {
        let Opening { agent, name, number, callbacks } = self;
        heap::room_for_arc::<F>()?;
        let face = Arc::new_cyclic(|me: &Weak<F>| {
            make(Adapter {
                life: Life::new(agent.platform().clone()),
                agent,
                client: Once::new(),
                me: me.clone(),
                name,
                number,
                ending: SleepLock::new(),
                callbacks,
            })
        });
        let adapter = face.adapter();
        let upcalls: Weak<dyn Upcalls> = adapter.me.clone();
        let client = adapter.agent.attach(upcalls).map_err(|_| OutOfResources)?;
        client.limit_connections(connections);
        adapter.client.call_once(|| client);
        if let Some(thread) = thread {
            let me = adapter.me.clone();
            let run = move |place| {
                me.upgrade().is_some_and(|face| {
                    face.run_callbacks(place);
                    true
                })
            };
            adapter.callbacks.start(thread, run)?;
        }
        Ok(face)
    }
}

/// What all faces' openings of an agent have.
pub struct Adapter<F> {
    agent: Arc<Agent>,
    client: Once<Arc<Client>>,
    me: Weak<F>,
    name: String,
    number: Number,
    life: Life,
    /// Held by a call that ends the adapter.
    ending: SleepLock,
    callbacks: CallbackThread,
}

impl<F: Face> Adapter<F> {
    /// The agent that owns the NIC.
    #[inline]
    pub fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    /// The agent's platform.
    #[inline]
    pub fn platform(&self) -> &Arc<dyn Platform> {
        self.agent.platform()
    }

    /// The agent's client; `None` while the adapter is being opened.
    #[inline]
    pub fn client(&self) -> Option<&Arc<Client>> {
        self.client.get()
    }

    /// The face's object, if a clone of it still exists.
    pub fn face(&self) -> Option<Arc<F>> {
        self.me.upgrade()
    }

    /// A reference to the face's object that does not keep it.
    pub fn weak(&self) -> Weak<F> {
        self.me.clone()
    }

    /// The name by which it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number that distinguishes it from all other adapters.
    pub fn number(&self) -> u32 {
        self.number.number()
    }

    /// The handle of the adapter itself.
    pub fn handle<H: ObjectHandle>(&self) -> H {
        let (number, generation) = (self.number.number(), self.number.first_generation());
        H::from_word(handle::word(H::TAG, number, 0, generation))
    }

    /// Fails unless the adapter is enabled.
    #[inline(always)]
    pub fn check(&self) -> Result<(), Ended> {
        self.life.check()
    }

    /// Whether the adapter has ended by a call.
    pub fn is_freed(&self) -> bool {
        self.life.is_freed()
    }

    /// Begins a call that creates, changes or frees objects of `object`, which leads to this
    /// adapter; fails unless the adapter is enabled. The end of the adapter waits for the call.
    pub fn begin_call<'a, A>(&'a self, object: &'a A) -> Result<Call<'a, A>, Ended> {
        self.life.begin_call(object)
    }

    /// Looks at the state after an object with a queue was created and can be found by
    /// [`Face::close_queues`]; if the adapter has ended, closes the new object's queue.
    pub fn created(&self, close: impl FnOnce()) {
        self.life.created(close);
    }

    /// Makes room in the callback thread for a place, where an object is being created.
    pub fn reserve_callbacks(&self, place: u32) -> Result<(), OutOfResources> {
        self.callbacks.reserve(place)
    }

    /// Has the callback thread run the callbacks of a place for which there is room.
    pub fn schedule(&self, place: u32) {
        self.callbacks.schedule(place);
    }

    /// Disables the adapter after its device died, unless it has ended. Waiters return.
    pub fn disable(&self, face: &F) {
        if self.life.disable(|| face.close_queues()) {
            match self.agent.death() {
                Some(death) => log::warn!("{}: {death}; the adapter is disabled", self.name),
                None => log::warn!("{}: the adapter is disabled", self.name),
            }
            face.wake_all();
            face.device_died();
        }
    }

    /// Ends the adapter, unless it has ended, or `may_end` refuses, which changes nothing. Of
    /// several calls one ends it, and the others return after that. Waiters return; after the call
    /// the device accesses none of the adapter's memory, and nothing is left of its objects.
    pub fn end<E: From<Ended>>(&self, face: &F, may_end: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let _ending = self.ending.lock(self.platform());
        if self.life.is_freed() {
            return Err(Ended::Freed.into());
        }
        may_end()?;
        self.life.free(|| face.close_queues());
        self.callbacks.stop();
        face.wake_all();
        self.life.wait_for_calls();
        self.tear_down(face);
        Ok(())
    }

    /// The face's object is being dropped: an adapter that has not ended ends now.
    pub fn dropped(&self, face: &F) {
        self.callbacks.stop();
        if !self.life.is_freed() {
            self.tear_down(face);
        }
    }

    fn tear_down(&self, face: &F) {
        face.destroy_objects();
        if let Some(client) = self.client.get() {
            client.detach();
        }
        face.forget();
    }
}

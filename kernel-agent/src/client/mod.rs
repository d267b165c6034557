//! One consumer of an agent: an opened IA.
//!
//! Two gates let the end of a client wait for its users: `calls`, which each call passes that makes
//! an object, a connection or a listening point, and `in_upcall`, which each upcall passes. So what
//! a call makes is either found and destroyed by the end, or not made.
//!
//! | module | subject |
//! |---|---|
//! | `create` | the calls that make objects |
//! | `connect` | the calls that make and end connections, and ask for datagram services |
//!
//! Locks: `objects` (spins, leaf).

mod connect;
mod create;

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU32, Ordering};

use nic_hal::Nic;
use platform::gate::Inside;
use platform::sleep_lock::SleepGuard;
use platform::sync::Mutex;
use platform::{Gate, Platform, heap};

use crate::home::Home;
use crate::object::{COUNTERS, Counter, Owner};
use crate::qp_common::Common;
use crate::stream::{By, Endpoint, Streams};
use crate::{Agent, Cq, Error, Pd, Qp, Region, Srq, Upcalls, Vi, ViCq, Window};

/// An object that is destroyed with its client.
pub(crate) enum AnyObject {
    Qp(Arc<Qp>),
    Vi(Arc<Vi>),
    Srq(Arc<Srq>),
    Stream(Arc<Endpoint>),
    Cq(Arc<Cq>),
    ViCq(Arc<ViCq>),
    Window(Arc<Window>),
    Region(Arc<Region>),
    Pd(Arc<Pd>),
}

impl AnyObject {
    fn counter(&self) -> Counter {
        match self {
            AnyObject::Qp(_) => Counter::Qps,
            AnyObject::Vi(_) => Counter::Vis,
            AnyObject::Srq(_) => Counter::Srqs,
            AnyObject::Stream(_) => Counter::Streams,
            AnyObject::Cq(_) => Counter::Cqs,
            AnyObject::ViCq(_) => Counter::ViCqs,
            AnyObject::Window(_) => Counter::Windows,
            AnyObject::Region(_) => Counter::Regions,
            AnyObject::Pd(_) => Counter::Pds,
        }
    }

    fn destroy(&self) -> Result<(), Error> {
        match self {
            AnyObject::Qp(qp) => qp.destroy(),
            AnyObject::Vi(vi) => vi.destroy(),
            AnyObject::Srq(srq) => srq.destroy(),
            AnyObject::Stream(endpoint) => endpoint.destroy(By::Agent, true),
            AnyObject::Cq(cq) => cq.destroy(),
            AnyObject::ViCq(cq) => cq.destroy(),
            AnyObject::Window(window) => window.destroy(),
            AnyObject::Region(region) => region.destroy(),
            AnyObject::Pd(pd) => pd.destroy(),
        }
    }
}

/// The objects of a client: for each type, in the order of [`Counter`], a map by number. So the
/// cost of a search does not depend on how many objects of other types there are.
type Objects = [BTreeMap<u32, AnyObject>; COUNTERS];

/// What an insertion into a map of objects may allocate: a node on each of its levels.
const NODES: usize = 4096;

/// One consumer of an agent. All objects that it creates belong to it.
pub struct Client {
    agent: Arc<Agent>,
    /// `None` for the agent's own client.
    upcalls: Option<Weak<dyn Upcalls>>,
    /// The most connections at the same time.
    max_connections: AtomicU32,
    /// The present ones.
    pub(crate) connections: AtomicU32,
    /// Calls in progress that make something of the client's. Closed when the client is detached,
    /// or the agent closed.
    calls: Gate,
    /// The upcall in progress. Closed when the client is detached.
    in_upcall: Gate,
    objects: Mutex<Objects>,
}

impl Client {
    pub(crate) fn new(agent: &Arc<Agent>, upcalls: Option<Weak<dyn Upcalls>>) -> Result<Arc<Client>, Error> {
        let client = Client {
            agent: agent.clone(),
            upcalls,
            max_connections: AtomicU32::new(u32::MAX),
            connections: AtomicU32::new(0),
            calls: Gate::new(agent.platform().clone()),
            in_upcall: Gate::new(agent.platform().clone()),
            objects: Mutex::new(Objects::default()),
        };
        heap::arc(client).map_err(|_| Error::OutOfMemory)
    }

    /// Limits the client's connections at the same time, including those that are being
    /// established. Beyond the limit, its own requests fail and a peer's are rejected.
    pub fn limit_connections(&self, most: u32) {
        self.max_connections.store(most, Ordering::Relaxed);
    }

    /// The most connections at the same time.
    pub(crate) fn max_connections(&self) -> u32 {
        self.max_connections.load(Ordering::Relaxed)
    }

    /// The agent.
    #[inline]
    pub fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    /// Fails unless an object's client is this one.
    pub(crate) fn owns(self: &Arc<Client>, other: &Arc<Client>) -> Result<(), Error> {
        if Arc::ptr_eq(self, other) { Ok(()) } else { Err(Error::Foreign) }
    }

    /// Keeps other threads from changing a queue pair of the client, also one that is gone.
    pub(crate) fn lock<'a>(&'a self, queue_pair: &'a Common) -> SleepGuard<'a> {
        queue_pair.lock(self.agent.platform())
    }

    /// Keeps other threads from changing a queue pair of the client; fails if it is gone.
    pub(crate) fn control<'a>(&'a self, queue_pair: &'a Common) -> Result<SleepGuard<'a>, Error> {
        let control = self.lock(queue_pair);
        self.agent.has(queue_pair)?;
        Ok(control)
    }

    /// Adds a new object. If there is no memory for that, destroys the object.
    pub(crate) fn register_object(&self, number: u32, object: AnyObject) -> Result<(), Error> {
        let counter = object.counter();
        if let Err(error) = heap::room(NODES) {
            let _ = object.destroy();
            return Err(error.into());
        }
        self.objects.lock()[counter as usize].insert(number, object);
        if self.upcalls.is_some() {
            self.agent.count(counter, 1);
        }
        Ok(())
    }

    /// Makes an upcall, unless the client is detached. In the dispatcher thread, with no lock held.
    pub(crate) fn upcall(&self, call: impl FnOnce(&dyn Upcalls)) {
        let Some(_inside) = self.in_upcall.enter() else { return };
        if let Some(upcalls) = self.upcalls.as_ref().and_then(Weak::upgrade) {
            call(&*upcalls);
        }
    }

    /// Drops all objects, when the agent is closed.
    pub(crate) fn drop_objects(&self) {
        let objects = core::mem::take(&mut *self.objects.lock());
        if self.upcalls.is_some() {
            for object in objects.iter().flat_map(BTreeMap::values) {
                self.agent.count(object.counter(), -1);
            }
        }
        drop(objects);
    }

    /// Begins a call that makes something of the client's. Fails once the client is detached or
    /// the agent closed.
    pub(crate) fn call(&self) -> Result<Inside<'_>, Error> {
        self.calls.enter().ok_or_else(|| match self.agent.death() {
            Some(death) if !self.in_upcall.is_closed() => Error::DeviceDead(death),
            _ => Error::Gone,
        })
    }

    /// Refuses further calls that make something of the client's, and waits for those in progress.
    /// They wait for the device at most, and not at all if that is dead.
    pub(crate) fn end_calls(&self) {
        self.calls.close();
        self.calls.wait();
    }

    /// Closes the client and destroys its objects, users before what they use: connections and
    /// listening points, queue pairs, virtual interfaces, SRQs, streams, CQs, windows, regions,
    /// protection domains. It waits for an upcall in progress, unless it is called in an upcall,
    /// and no upcall begins afterwards. So hold no lock that an upcall takes.
    pub fn detach(&self) {
        if !self.in_upcall.close() {
            return;
        }
        if !self.agent.in_dispatcher() {
            self.in_upcall.wait();
        }
        self.end_calls();
        self.agent.end_connections_of(self);
        // In the order of Counter, which is the one in which they can go.
        loop {
            let next = self.objects.lock().iter_mut().find_map(BTreeMap::pop_first);
            let Some((number, object)) = next else { break };
            if let Err(error) = object.destroy()
                && !self.agent.is_dead()
            {
                let (agent, counter) = (self.agent.number(), object.counter());
                log::warn!("agent {agent}: {counter:?} {number} at detach: {error}");
            }
            if self.upcalls.is_some() {
                self.agent.count(object.counter(), -1);
            }
        }
        self.agent.forget_client(self);
    }
}

impl Owner for Client {
    #[inline]
    fn platform(&self) -> &Arc<dyn Platform> {
        self.agent.platform()
    }

    /// Before the number can be given out again: its next owner is registered under the same key.
    fn forget_object(&self, counter: Counter, number: u32) {
        let object = self.objects.lock()[counter as usize].remove(&number);
        if object.is_some() && self.upcalls.is_some() {
            self.agent.count(counter, -1);
        }
    }
}

impl Home for Client {
    fn nic(&self) -> &Nic {
        self.agent.nic()
    }

    fn streams(&self) -> &Streams {
        &self.agent.streams
    }

    fn adopt(&self, endpoint: &Arc<Endpoint>) -> Result<(), Error> {
        self.register_object(endpoint.number(), AnyObject::Stream(endpoint.clone()))
    }

    fn enter(&self) -> Result<Inside<'_>, Error> {
        self.call()
    }

    fn take_connection(&self) -> bool {
        let most = self.max_connections();
        let more = |now: u32| (now < most).then_some(now + 1);
        self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn leave_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn tell(&self, upcall: &mut dyn FnMut(&dyn Upcalls)) {
        self.upcall(upcall);
    }
}

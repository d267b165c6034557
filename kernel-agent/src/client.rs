//! One consumer of an agent: an opened IA.
//!
//! Two gates let the end of a client wait for its users: `calls`, which each call passes that makes
//! an object, a connection or a listening point, and `in_upcall`, which each upcall passes. So what
//! a call makes is either found and destroyed by the end, or not made.
//!
//! Locks: `objects` (spins, leaf).

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};

use nic_abi::wqe::{LinkFlags, ListElement};
use platform::gate::Inside;
use platform::sync::Mutex;
use platform::{Gate, heap};
use roce::cm::redirection::Redirection;
use roce::cm::rej::Reason;

use crate::agent::{COUNTERS, Counter};
use crate::cm::{
    AcceptParams, ConnectParams, ConnectionId, ListenId, ResolutionId, ResolutionRequestId, Transports,
};
use crate::connect::{Connectable, Handshake, ResolutionAnswer, ResolveParams};
use crate::{
    Agent, Consumer, Cq, Error, Link, MemoryList, Pd, Qp, QpAttributes, Region, SlotParams, Srq, Upcalls, Vi,
    ViAttributes, ViCq, Window, WindowType,
};

/// An object that is destroyed with its client.
pub(crate) enum AnyObject {
    Qp(Arc<Qp>),
    Vi(Arc<Vi>),
    Srq(Arc<Srq>),
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
    /// The present ones; changed under the lock of the agent's connections.
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

    /// To be called before the number can be given out again: its next owner is registered under
    /// the same key.
    pub(crate) fn forget_object(&self, counter: Counter, number: u32) {
        let object = self.objects.lock()[counter as usize].remove(&number);
        if object.is_some() && self.upcalls.is_some() {
            self.agent.count(counter, -1);
        }
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
    fn call(&self) -> Result<Inside<'_>, Error> {
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
    /// listening points, queue pairs, virtual interfaces, SRQs, CQs, windows, regions, protection
    /// domains. It waits for an upcall in progress, unless it is called in an upcall, and no upcall
    /// begins afterwards. So hold no lock that an upcall takes.
    pub fn detach(&self) {
        if !self.in_upcall.close() {
            return;
        }
        if !self.agent.in_dispatcher() {
            self.in_upcall.wait();
        }
        self.end_calls();
        self.agent.connections.detach(self);
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

    /// Creates a protection domain (VIA: a protection tag).
    pub fn create_pd(self: &Arc<Client>) -> Result<Arc<Pd>, Error> {
        let _call = self.call()?;
        Pd::create(self)
    }

    /// Creates a CQ with room for at least `entries`.
    pub fn create_cq(self: &Arc<Client>, entries: u32, context: u64) -> Result<Arc<Cq>, Error> {
        let _call = self.call()?;
        Cq::create(self, entries, context, None)
    }

    /// [`Client::create_cq`], in a slot: [`Error::Busy`] if that is not empty.
    pub fn create_cq_in(
        self: &Arc<Client>,
        entries: u32,
        context: u64,
        slot_params: SlotParams<'_, Consumer>,
    ) -> Result<Arc<Cq>, Error> {
        let _call = self.call()?;
        Cq::create(self, entries, context, Some(slot_params))
    }

    /// Creates a queue pair (VIA: a VI) in state RESET.
    pub fn create_qp(self: &Arc<Client>, attributes: &QpAttributes<'_>) -> Result<Arc<Qp>, Error> {
        let _call = self.call()?;
        Qp::create(self, attributes)
    }

    /// Creates a virtual interface in state RESET.
    ///
    /// `cqs`: the completion queues of the send queue and of the receive queue; a queue without one
    /// is armed by itself. `entries`: descriptors that can be on each of the two queues.
    pub fn create_vi(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        attributes: &ViAttributes,
        cqs: [Option<&Arc<ViCq>>; 2],
        entries: [u32; 2],
        context: u64,
    ) -> Result<Arc<Vi>, Error> {
        let _call = self.call()?;
        Vi::create(self, pd, attributes, cqs, entries, context)
    }

    /// Creates a completion queue of virtual interfaces with room for at least `entries`.
    pub fn create_vi_cq(self: &Arc<Client>, entries: u32, context: u64) -> Result<Arc<ViCq>, Error> {
        let _call = self.call()?;
        ViCq::create(self, entries, context)
    }

    /// Creates a shared receive queue. `limit`: an event when fewer entries are left; 0 never.
    pub fn create_srq(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        max_requests: u32,
        max_segments: u32,
        limit: u32,
        context: u64,
    ) -> Result<Arc<Srq>, Error> {
        let _call = self.call()?;
        Srq::create(self, pd, max_requests, max_segments, limit, context)
    }

    /// Registers memory. `flags` are rights and [`LinkFlags::RELATIVE`] (the list's form is filled
    /// in); `base` is the address of the first byte in the key's address space unless relative.
    pub fn register(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        flags: LinkFlags,
        base: u64,
        memory: &MemoryList<'_>,
    ) -> Result<Arc<Region>, Error> {
        let _call = self.call()?;
        Region::register(self, pd, &Link { flags, base, memory: *memory })
    }

    /// Registers the memory of a linked region once more, without translations of its own. `of` may
    /// belong to another client. Neither region can be invalidated afterwards. Fails if `of` is not
    /// linked to that memory.
    pub fn share(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        flags: LinkFlags,
        base: u64,
        memory: &MemoryList<'_>,
        of: &Region,
    ) -> Result<Arc<Region>, Error> {
        let _call = self.call()?;
        Region::share(self, pd, &Link { flags, base, memory: *memory }, of)
    }

    /// Registers `length` bytes of virtual memory. Its mapping must not change until the region is
    /// destroyed.
    pub fn register_virtual(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        flags: LinkFlags,
        base: u64,
        virt: usize,
        length: u64,
    ) -> Result<Arc<Region>, Error> {
        let mut elements = Vec::new();
        let mut full = false;
        self.agent.translate(virt, length, |element| match elements.try_reserve(1) {
            Ok(()) => elements.push(element),
            Err(_) => full = true,
        })?;
        if full {
            return Err(Error::OutOfMemory);
        }
        let memory = match elements[..] {
            [] => MemoryList::Contiguous { bus: 0, length },
            [only] => MemoryList::Contiguous { bus: only.addr, length },
            _ => MemoryList::Variable { elements: &elements, first_byte_offset: 0, length },
        };
        self.register(pd, flags, base, &memory)
    }

    /// Allocates an unlinked region whose links may have up to `max_elements` list elements.
    pub fn allocate_region(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        max_elements: u32,
    ) -> Result<Arc<Region>, Error> {
        let _call = self.call()?;
        Region::allocate(self, pd, max_elements)
    }

    /// Allocates an unbound window.
    pub fn allocate_window(
        self: &Arc<Client>,
        pd: &Arc<Pd>,
        window_type: WindowType,
    ) -> Result<Arc<Window>, Error> {
        let _call = self.call()?;
        Window::allocate(self, pd, window_type)
    }

    /// Listens for a service, for connections of these transport services; the agent rejects
    /// requests for others. Requests come as `CmEventKind::Request` with `context`.
    pub fn listen(
        self: &Arc<Client>,
        service: roce::ServiceId,
        transports: Transports,
        context: u64,
    ) -> Result<ListenId, Error> {
        self.listen_to_range(service..=service, transports, context)
    }

    /// As [`Client::listen`], for each service of a range that has no listening point of its own:
    /// one for a single service takes the requests for it, whichever began first. Ranges of one
    /// agent have no service in common.
    pub fn listen_to_range(
        self: &Arc<Client>,
        services: RangeInclusive<roce::ServiceId>,
        transports: Transports,
        context: u64,
    ) -> Result<ListenId, Error> {
        let _call = self.call()?;
        self.agent.connections.listen(self, services, transports, context)
    }

    /// Ends listening. Requests that the client has not answered stay answerable.
    pub fn stop_listening(&self, listen: ListenId) -> Result<(), Error> {
        self.agent.connections.stop_listening(self, listen)
    }

    /// Active side: asks a peer for a connection of a queue pair, which must be in INIT, or of a
    /// virtual interface, which must be in RESET. The type of the queue pair, RC or UC, is the type
    /// of the connection, as is that of the virtual interface's reliability level (unreliable is
    /// UC); on UC the read depths have to be 0. The answer is an event. `params.ip_source_port` is
    /// chosen by the agent; a hop limit of 0 stands for 64, and a path MTU greater than the port's
    /// for the port's. Private data: at most 92 bytes.
    pub fn connect(
        &self,
        of: impl Into<Connectable>,
        params: &ConnectParams,
        handshake: Handshake,
        private_data: &[u8],
    ) -> Result<ConnectionId, Error> {
        let _call = self.call()?;
        self.agent.connections.connect(self, &of.into(), params, handshake, private_data)
    }

    /// Passive side: accepts a request with a queue pair in INIT, or a virtual interface in RESET,
    /// of the type that the request asks for. `CmEventKind::Established` follows. The queue pair
    /// has no more RDMA Reads outstanding than the peer serves. Private data: at most 196 bytes.
    pub fn accept(
        &self,
        connection: ConnectionId,
        with: impl Into<Connectable>,
        params: &AcceptParams,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let _call = self.call()?;
        self.agent.connections.accept(self, connection, &with.into(), params, private_data)
    }

    /// Passive side: rejects a request; active side, three-way: rejects the peer's accept (the
    /// queue pair goes to ERROR, a virtual interface to RESET with its receives). The connection is
    /// gone when this returns.
    pub fn reject(&self, connection: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.agent.connections.reject(self, connection, Reason::CONSUMER_DEFINED, &[], private_data)
    }

    /// As [`Client::reject`], for another reason than the consumer's own (IBTA vol. 1 table 109),
    /// with the additional information that the reason asks for: at most 72 bytes.
    pub fn reject_because(
        &self,
        connection: ConnectionId,
        reason: Reason,
        information: &[u8],
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.agent.connections.reject(self, connection, reason, information, private_data)
    }

    /// Passive side: forgets a request, as if it had not arrived. Nothing is sent, and a repetition
    /// of the request is reported as a new one. For a request that the client has no room for.
    pub fn discard(&self, connection: ConnectionId) -> Result<(), Error> {
        self.agent.connections.discard(self, connection)
    }

    /// Passive side: passes a request to another client of the agent, which answers it and hears of
    /// it, with `context`, from now on. A failure changes nothing.
    pub fn transfer(&self, connection: ConnectionId, to: &Arc<Client>, context: u64) -> Result<(), Error> {
        let _call = to.call()?;
        self.agent.connections.transfer(self, connection, to, context)
    }

    /// Active side, three-way: confirms the peer's accept. `CmEventKind::Established` follows. At
    /// most `initiator_depth` RDMA Reads will be outstanding; the connection may have been asked
    /// for with another number.
    pub fn establish(
        &self,
        connection: ConnectionId,
        initiator_depth: u8,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.agent.connections.establish(self, connection, initiator_depth, private_data)
    }

    /// Ends a connection, or gives up one that is being made. A queue pair that is connected goes
    /// to ERROR before this returns, so what is outstanding flushes. If the connection was
    /// established, `CmEventKind::Disconnected` follows; otherwise no event follows. A virtual
    /// interface is disconnected without any event by `Vi::disconnect`.
    pub fn disconnect(&self, connection: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.agent.connections.disconnect(self, connection, private_data)
    }

    /// Prepares to ask a peer for a datagram service; sends nothing yet. Returns the resolution's
    /// id, and the id that the peer sees each time that it is asked.
    pub fn open_resolution(
        self: &Arc<Client>,
        params: &ResolveParams<'_>,
        context: u64,
    ) -> Result<(ResolutionId, u32), Error> {
        let _call = self.call()?;
        self.agent.connections.open_resolution(self, params, context)
    }

    /// Asks. `ResolutionEventKind::Reply` or `TimedOut` follows. Asking before that begins anew.
    pub fn resolve(&self, resolution: ResolutionId) -> Result<(), Error> {
        self.agent.connections.resolve(self, resolution)
    }

    /// Forgets a resolution; answers that still come are dropped.
    pub fn close_resolution(&self, resolution: ResolutionId) -> Result<(), Error> {
        self.agent.connections.close_resolution(self, resolution)
    }

    /// Answers a peer's request, which uses its id up.
    pub fn answer_resolution(
        &self,
        request: ResolutionRequestId,
        answer: &ResolutionAnswer<'_>,
    ) -> Result<(), Error> {
        self.agent.connections.answer_resolution(self, request, answer)
    }

    /// Answers a peer's request with the port where it shall ask instead, which uses the request's
    /// id up. Private data: at most 136 bytes.
    pub fn redirect_resolution(
        &self,
        request: ResolutionRequestId,
        to: &Redirection,
        private_data: &[u8],
    ) -> Result<(), Error> {
        self.agent.connections.redirect_resolution(self, request, to, private_data)
    }

    /// Leaves a peer's request without an answer.
    pub fn disregard_resolution(&self, request: ResolutionRequestId) {
        self.agent.connections.disregard_resolution(self, request);
    }
}

impl Agent {
    /// Finds the bus addresses of virtual memory, as runs that are as long as can be.
    ///
    /// Asks the platform for at most `max_list_elements` extents (see [`Agent::identity`]), so that
    /// a consumer cannot hold a CPU by the length that it gives. Memory that is in more extents is
    /// [`Error::TooScattered`], however many of them could be joined.
    pub fn translate(
        &self,
        virt: usize,
        length: u64,
        mut each: impl FnMut(ListElement),
    ) -> Result<(), Error> {
        let mut at = virt;
        let mut left = length;
        let mut run: Option<ListElement> = None;
        let mut extents = 0;
        while left > 0 {
            if extents == self.identity().max_list_elements {
                return Err(Error::TooScattered);
            }
            extents += 1;
            let extent = self.platform().translate(at).ok_or(Error::NotReachable)?;
            let len = extent.len.min(left);
            if len == 0 {
                return Err(Error::NotReachable);
            }
            run = match run {
                Some(last) if last.addr.checked_add(last.length) == Some(extent.addr) => {
                    Some(ListElement { addr: last.addr, length: last.length + len })
                }
                earlier => {
                    if let Some(done) = earlier {
                        each(done);
                    }
                    Some(ListElement { addr: extent.addr, length: len })
                }
            };
            left -= len;
            if left > 0 {
                at = at.checked_add(len as usize).ok_or(Error::NotReachable)?;
            }
        }
        if let Some(last) = run {
            each(last);
        }
        Ok(())
    }
}

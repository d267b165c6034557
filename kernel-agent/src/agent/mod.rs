//! The agent of one NIC: its tables and its clients.
//!
//! | module | subject |
//! |---|---|
//! | `config` | how large the tables and the event queues are |
//! | `open`, `close` | how an agent is opened and closed |
//!
//! Locks: `clients`, `own` (spin, leaves). Objects have their own locks. In
//! general: sleeping locks of objects before spinning ones, a CQ's before a queue pair's table
//! entry before an SRQ's, the connections' before QP1's. A thread that holds a lock of one object
//! takes none of another object of the same type.

mod close;
pub(crate) mod config;
mod open;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use nic_abi::ident;
use nic_abi::registers::Identity;
use nic_hal::{Death, Nic};
use platform::sync::Mutex;
use platform::{DmaBuffer, Platform, Signal};

use crate::connections::ConnectionManager;
use crate::cq::Cq;
use crate::event_room::{EventRoom, Marks};
use crate::key::{Keys, Outstanding};
use crate::mpa::Mpa;
use crate::object::{COUNTERS, Counter};
use crate::qp::Qp;
use crate::qp_common::Common;
use crate::srq::Srq;
use crate::stream::Streams;
use crate::table::{Numbers, Slots, Table};
use crate::vi::Vi;
use crate::vi_cq::ViCq;
use crate::{Client, Error, Resource, Upcalls, ViSide};
use config::Config;

/// The version of this implementation, as VIA has it (ProviderVersion of VIP_NIC_ATTRIBUTES): 0.1.
pub const PROVIDER_VERSION: u32 = 1;

/// Clients of one agent at most.
const MAX_CLIENTS: usize = 256;
/// How many objects of the clients there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Clients.
    pub clients: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Virtual interfaces.
    pub vis: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Completion queues of virtual interfaces.
    pub vi_cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Streams, and listeners for them.
    pub streams: u32,
    /// Protection domains.
    pub pds: u32,
    /// Regions.
    pub regions: u32,
    /// Windows.
    pub windows: u32,
    /// Listening points.
    pub listens: u32,
    /// Connections that are being established, are established or are being released; not those in
    /// time-wait.
    pub connections: u32,
    /// Service resolutions: our own, and those of peers that wait for an answer.
    pub resolutions: u32,
}

/// The Kernel Agent of one NIC.
///
/// It lives until [`Agent::close`]: its thread and its clients have references to it.
pub struct Agent {
    platform: Arc<dyn Platform>,
    nic: Nic,
    identity: Identity,
    number: u32,
    config: Config,
    /// Queue pairs. Virtual interfaces share their numbers.
    pub(crate) qps: Arc<Table<Qp>>,
    pub(crate) vis: Slots<Vi>,
    /// Completion queues. Those of virtual interfaces share their numbers.
    pub(crate) cqs: Table<Cq>,
    pub(crate) vi_cqs: Slots<ViCq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) pds: Numbers,
    pub(crate) keys: Keys,
    /// InfiniBand's connections.
    pub(crate) connections: ConnectionManager,
    /// iWARP's connections.
    pub(crate) mpa: Mpa,
    counts: [AtomicU32; COUNTERS],
    clients: Mutex<Vec<Option<Arc<Client>>>>,
    /// CQs whose clients are to be notified.
    pub(crate) notices: Marks,
    /// Room in the event queue of completions: a share for each CQ.
    pub(crate) event_room: EventRoom,
    /// Room in the event queue of virtual interfaces: a share for each of them.
    pub(crate) vi_room: EventRoom,
    /// Streams and listeners.
    pub(crate) streams: Streams,
    /// The client that QP1 belongs to.
    own: Mutex<Option<Arc<Client>>>,
    pub(crate) stopping: AtomicBool,
    closed: AtomicBool,
    /// The clients were told that the device is dead.
    told: AtomicBool,
    /// The number of the dispatcher thread; 0 when it does not run.
    dispatcher: AtomicU64,
    /// Raised once: the dispatcher thread has ended and dropped its reference to the agent.
    finished: Arc<Signal>,
}

impl Agent {
    /// The device's identity and capabilities: the copy that was checked when it was opened.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The number given at open.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The platform given at open.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// The driver of the NIC.
    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Whether the device is dead or closed.
    pub fn is_dead(&self) -> bool {
        self.death().is_some()
    }

    /// Why the device is dead.
    pub fn death(&self) -> Option<Death> {
        self.nic.death()
    }

    pub(crate) fn alive(&self) -> Result<(), Error> {
        match self.death() {
            Some(death) => Err(Error::DeviceDead(death)),
            None => Ok(()),
        }
    }

    /// Fails if a queue pair of the agent was destroyed or the device is dead.
    pub(crate) fn has(&self, queue_pair: &Common) -> Result<(), Error> {
        if queue_pair.is_gone() {
            self.alive()?;
            return Err(Error::Gone);
        }
        Ok(())
    }

    /// Whether the device may still execute a link.
    pub(crate) fn is_under_way(&self, link: &Outstanding) -> bool {
        let Outstanding { slot, generation, tag } = *link;
        let Some(slot) = self.qps.lock(slot) else { return false };
        slot.as_deref().is_some_and(|qp| qp.generation() == generation && qp.send_is_outstanding(tag))
    }

    /// Whether the port is up.
    pub fn port_up(&self) -> bool {
        self.nic.port_up()
    }

    /// The table sizes in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many objects there are.
    pub fn counts(&self) -> Counts {
        let of = |counter: Counter| self.counts[counter as usize].load(Ordering::Acquire);
        let (listens, connections, resolutions) = self.connections.counts();
        let of_streams = self.mpa.counts();
        Counts {
            clients: self.clients.lock().iter().flatten().count() as u32,
            qps: of(Counter::Qps),
            vis: of(Counter::Vis),
            cqs: of(Counter::Cqs),
            vi_cqs: of(Counter::ViCqs),
            srqs: of(Counter::Srqs),
            streams: of(Counter::Streams),
            pds: of(Counter::Pds),
            regions: of(Counter::Regions),
            windows: of(Counter::Windows),
            listens: listens + of_streams.0,
            connections: connections + of_streams.1,
            resolutions,
        }
    }

    /// Streams for listening points over iWARP that were reset since their peer had half of the
    /// agent's streams in set-ups.
    pub fn refused_streams(&self) -> u64 {
        self.mpa.refused()
    }

    /// Work requests on all queues that are posted and have not completed; of virtual interfaces
    /// the descriptors that are posted and were not taken off. Counts QP1's, except the receives
    /// that it always has posted. Looks at every queue.
    pub fn outstanding(&self) -> u32 {
        let qps = self.qps.all().filter(|qp| qp.qpn() != ident::QPN_GSI);
        let qps: u32 = qps.map(|qp| qp.sends.len() + qp.receives.len()).sum();
        let vis = self.vis.all().map(|vi| vi.queued(ViSide::Send) + vi.queued(ViSide::Receive));
        let srqs: u32 = self.srqs.all().map(|srq| srq.outstanding()).sum();
        qps + vis.sum::<u32>() + srqs + self.connections.qp1().map_or(0, |qp1| qp1.outstanding())
    }

    pub(crate) fn count(&self, counter: Counter, by: i32) {
        self.counts[counter as usize].fetch_add(by as u32, Ordering::AcqRel);
    }

    /// Opens the agent for a consumer. The agent keeps no strong reference to `upcalls`.
    pub fn attach(self: &Arc<Agent>, upcalls: Weak<dyn Upcalls>) -> Result<Arc<Client>, Error> {
        let client = Client::new(self, Some(upcalls))?;
        let mut clients = self.clients.lock();
        // Checked under the lock: the thread that reports the device's death takes the lock
        // afterwards, and then finds the client.
        self.alive()?;
        let place = match clients.iter().position(Option::is_none) {
            Some(free) => free,
            None if clients.len() >= MAX_CLIENTS => return Err(Error::NoResources(Resource::Clients)),
            None => {
                clients.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
                clients.push(None);
                clients.len() - 1
            }
        };
        clients[place] = Some(client.clone());
        Ok(client)
    }

    pub(crate) fn forget_client(&self, client: &Client) {
        let mut clients = self.clients.lock();
        let this = |other: &mut Arc<Client>| core::ptr::eq(&**other, client);
        let removed = clients.iter_mut().find_map(|place| place.take_if(this));
        drop(clients);
        drop(removed);
    }

    pub(crate) fn for_each_client(&self, each: impl Fn(&Arc<Client>)) {
        for place in 0..MAX_CLIENTS {
            let client = match self.clients.lock().get(place) {
                Some(client) => client.clone(),
                None => return,
            };
            if let Some(client) = client {
                each(&client);
            }
        }
    }

    pub(crate) fn in_dispatcher(&self) -> bool {
        self.dispatcher.load(Ordering::Acquire) == self.platform.current_thread()
    }

    /// Has the dispatcher thread notify the client of a CQ that entries may have arrived.
    pub(crate) fn notice(&self, cq: u32) {
        self.notices.set(cq);
        self.nic.signal().raise();
    }

    /// Handles that QP1 went to ERROR. No consumer can connect without it, so it is made ready
    /// again. If that fails, the device is declared dead.
    pub(crate) fn gsi_broke(&self) {
        let Some(qp1) = self.connections.qp1() else { return };
        log::warn!("agent {}: QP1 broke", self.number);
        if let Err(error) = qp1.restore() {
            log::error!("agent {}: QP1 can't be made ready again: {error}", self.number);
            self.nic.condemn();
        }
    }

    /// Handles that a CQ failed for good. If it is QP1's, the device is faulty: the CQ has room for
    /// all of QP1's requests.
    pub(crate) fn cq_failed(&self, cq: &Arc<Cq>) {
        if self.connections.qp1().is_some_and(|qp1| qp1.is_on(cq)) {
            self.nic.condemn();
        }
    }

    /// Closes all queues to posts and notifies all clients, once. When this returns, no post is
    /// under way.
    pub(crate) fn device_died(&self, death: Death) {
        for qp in self.qps.all() {
            qp.device_died();
        }
        for vi in self.vis.all() {
            vi.device_died();
        }
        for srq in self.srqs.all() {
            srq.device_died();
        }
        if !self.told.swap(true, Ordering::AcqRel) {
            self.for_each_client(|client| client.upcall(|up| up.catastrophic(death)));
        }
    }

    /// Releases a consumer's buffer whose region was to be destroyed; `destroyed` is the result of
    /// that. Without the device's word that the region is gone, the buffer is kept until the device
    /// confirms a reset. A destruction succeeds also if the device is dead, but a device that only
    /// seems dead may still access the memory.
    pub fn release(&self, buffer: Arc<DmaBuffer>, destroyed: Result<(), Error>) {
        if self.is_dead() || !matches!(destroyed, Ok(()) | Err(Error::Gone)) {
            self.nic.keep(buffer);
        }
    }

    /// Runs `register`, which registers memory of this buffer. If it fails because the device died
    /// meanwhile, the device may still carry the registration out: the buffer is kept until the
    /// device confirms a reset.
    pub fn registering<T, E>(
        &self,
        buffer: &Arc<DmaBuffer>,
        register: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        // A dead device gets no command: who tries again and again does not fill the memory.
        let was_dead = self.is_dead();
        register().inspect_err(|_| {
            if !was_dead {
                self.release(buffer.clone(), Ok(()));
            }
        })
    }

    /// The version of the NIC's hardware, as VIA has it (HardwareVersion of VIP_NIC_ATTRIBUTES).
    pub fn hardware_version(&self) -> u32 {
        let identity = self.identity();
        u32::from(identity.version_major) << 16 | u32::from(identity.version_minor)
    }
}

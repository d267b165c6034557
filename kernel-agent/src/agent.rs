//! The agent of one NIC: its tables, how it is opened, and how it is closed.
//!
//! Locks: `clients`, `own` (spin, leaves). Objects have their own locks. In
//! general: sleeping locks of objects before spinning ones, a CQ's before a queue pair's table
//! entry before an SRQ's, the connections' before QP1's. A thread that holds a lock of one object
//! takes none of another object of the same type.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use nic_abi::ident;
use nic_abi::registers::{Features, Identity};
use nic_hal::{Death, Nic, Transport};
use platform::sync::Mutex;
use platform::{DmaBuffer, Platform, Secret, Signal, heap};

use crate::connections::ConnectionManager;
use crate::cq::Cq;
use crate::dispatch::Dispatcher;
use crate::event_room::{EventRoom, Marks};
use crate::gsi::Gsi;
use crate::key::Keys;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::table::{Numbers, Slots, Table};
use crate::vi::{Vi, ViSide};
use crate::vi_cq::ViCq;
use crate::{Client, Error, Resource, Upcalls};

/// The version of this implementation, as VIA has it (ProviderVersion of VIP_NIC_ATTRIBUTES): 0.1.
pub const PROVIDER_VERSION: u32 = 1;

/// The event queue of asynchronous events and answered commands.
pub(crate) const EQ_ASYNC: u32 = 0;
/// The event queue of completions.
pub(crate) const EQ_COMPLETIONS: u32 = 1;
/// The event queue of virtual interfaces: errors, and completions on queues that are armed. It is
/// theirs alone, since its room has to be theirs alone: a consumer and its peers cause these events
/// as they like.
pub(crate) const EQ_VIS: u32 = 2;
/// Events of one virtual interface that can be in its event queue at the same time: one of each
/// error, a completion on each of its two queues, and the first message of a connection.
pub(crate) const EVENTS_PER_VI: u32 = nic_abi::vi::ERRORS as u32 + 3;
/// Events of one CQ that can be in its event queue at the same time: the one for which it was
/// armed, and its error.
pub(crate) const EVENTS_PER_CQ: u32 = 2;
/// Room for the events of this many CQs, and of this many virtual interfaces, that were destroyed
/// before the dispatcher thread took their events; less if the device's event queues are small.
const FORMER: u32 = 256;
/// The most room for asynchronous events. Room for every queue pair would only be needed if all of
/// them broke while the dispatcher thread is held up.
const ASYNC_EVENTS: u32 = 1 << 14;
/// The fewest entries of an event queue.
const MIN_EVENTS: u32 = 16;
/// Clients of one agent at most.
const MAX_CLIENTS: usize = 256;
/// How long [`Agent::close`] waits for an upcall to return.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// The default number of CQs. The event queue has room for each, whether the CQ exists or not.
const USUAL_CQS: u32 = 1 << 12;
/// The default number of virtual interfaces, as above.
const USUAL_VIS: u32 = 5 << 10;

/// How large the agent's tables may become; 0 stands for the device's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Queue pairs and virtual interfaces, not counting the agent's own.
    pub max_qps: u32,
    /// Virtual interfaces among them; here 0 stands for 5120, or for as many as the device's event
    /// queues have room for if those are fewer. There are never more than protection domains (VIA
    /// 3.2.2.1).
    pub max_vis: u32,
    /// Completion queues, not counting the agent's own; here 0 stands for 4096, or the device's
    /// limit if that is lower.
    pub max_cqs: u32,
    /// Shared receive queues.
    pub max_srqs: u32,
    /// Protection domains, not counting the agent's own.
    pub max_pds: u32,
    /// Regions and windows together.
    pub max_keys: u32,
    /// Connections, counting those in time-wait.
    pub max_connections: u32,
    /// Listening points.
    pub max_listens: u32,
    /// How long the device's heartbeat may stand still before the device is taken for dead. A
    /// device whose process is stopped for less goes on. 0 stands for
    /// [`nic_abi::registers::HEARTBEAT_DEAD_MS`].
    pub silence: Duration,
}

impl Config {
    /// The sizes that are in force with this device.
    fn within(self, identity: &Identity) -> Config {
        let least = |asked: u32, most: u32| if asked == 0 { most } else { asked.min(most) };
        // Queue pairs 0 and 1, one CQ, and protection domains 0 and 1 belong to no client.
        let cqs = if self.max_cqs == 0 { USUAL_CQS } else { self.max_cqs };
        let max_qps = least(self.max_qps, identity.max_qps - 2);
        let max_pds = least(self.max_pds, identity.max_pds - 2);
        let room = |events| shares(identity, events) - former(identity, events);
        let vis = if self.max_vis == 0 { USUAL_VIS } else { self.max_vis };
        let offered = Features::from_bits_truncate(identity.features).contains(Features::VI);
        let has_vis = offered && identity.max_eqs > EQ_VIS;
        Config {
            max_qps,
            max_vis: if has_vis { vis.min(max_qps).min(max_pds).min(room(EVENTS_PER_VI)) } else { 0 },
            max_cqs: cqs.min(identity.max_cqs - 1).min(room(EVENTS_PER_CQ) - 1),
            max_srqs: least(self.max_srqs, identity.max_srqs),
            max_pds,
            max_keys: least(self.max_keys, identity.max_keys - 1),
            max_connections: least(self.max_connections, 1 << 16),
            max_listens: least(self.max_listens, 1 << 12),
            silence: self.silence,
        }
    }
}

/// The most entries of an event queue: a power of two.
fn longest_eq(identity: &Identity) -> u32 {
    1 << identity.max_eqes.max(MIN_EVENTS).ilog2()
}

/// For how many objects with so many events each the longest event queue has room.
fn shares(identity: &Identity, events: u32) -> u32 {
    longest_eq(identity) / events
}

/// How many such objects that were destroyed can have events that were not taken.
fn former(identity: &Identity, events: u32) -> u32 {
    FORMER.min(shares(identity, events) / 4)
}

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

/// The types of objects, in the order in which a client's objects can be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counter {
    Qps,
    Vis,
    Srqs,
    Cqs,
    ViCqs,
    Windows,
    Regions,
    Pds,
}

/// How many types of objects there are.
pub(crate) const COUNTERS: usize = Counter::Pds as usize + 1;

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
    pub(crate) connections: ConnectionManager,
    counts: [AtomicU32; COUNTERS],
    clients: Mutex<Vec<Option<Arc<Client>>>>,
    /// CQs whose clients are to be notified.
    pub(crate) notices: Marks,
    /// Room in the event queue of completions: a share for each CQ.
    pub(crate) event_room: EventRoom,
    /// Room in the event queue of virtual interfaces: a share for each of them.
    pub(crate) vi_room: EventRoom,
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

/// What the dispatcher thread's name and what its function refers to take.
const THREAD: usize = 256;

impl Agent {
    /// Brings the NIC up and starts the dispatcher thread, named "agent-`number`".
    pub fn open(
        platform: Arc<dyn Platform>,
        transport: Arc<dyn Transport>,
        number: u32,
        config: Config,
    ) -> Result<Arc<Agent>, Error> {
        let nic = Nic::open(platform.clone(), transport)?;
        if !config.silence.is_zero() {
            nic.bear_silence(config.silence);
        }
        let identity = *nic.identity();
        let config = config.within(&identity);
        let secret = Secret::gather(&platform, identity.node_guid);
        let agent = Agent {
            qps: heap::arc(Table::new(2, config.max_qps + 2)?).map_err(|_| Error::OutOfMemory)?,
            vis: Slots::new(config.max_qps + 2)?,
            cqs: Table::new(0, config.max_cqs + 1)?,
            vi_cqs: Slots::new(config.max_cqs + 1)?,
            srqs: Table::new(0, config.max_srqs)?,
            pds: Numbers::new(1, config.max_pds + 2),
            keys: Keys::new(config.max_keys),
            connections: ConnectionManager::new(
                platform.clone(),
                identity,
                nic.signal().clone(),
                (config.max_connections, config.max_listens),
                secret,
            )?,
            counts: [const { AtomicU32::new(0) }; COUNTERS],
            clients: Mutex::new(Vec::new()),
            notices: Marks::new(config.max_cqs + 1)?,
            event_room: EventRoom::new(config.max_cqs + 1, former(&identity, EVENTS_PER_CQ)),
            vi_room: EventRoom::new(config.max_vis, former(&identity, EVENTS_PER_VI)),
            own: Mutex::new(None),
            stopping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            told: AtomicBool::new(false),
            dispatcher: AtomicU64::new(0),
            finished: heap::arc(Signal::new(platform.clone())).map_err(|_| Error::OutOfMemory)?,
            platform,
            nic,
            identity,
            number,
            config,
        };
        let agent = heap::arc(agent).map_err(|_| Error::OutOfMemory)?;
        if let Err(error) = agent.start() {
            agent.finished.raise();
            agent.close();
            return Err(error);
        }
        Ok(agent)
    }

    fn start(self: &Arc<Agent>) -> Result<(), Error> {
        let most = longest_eq(&self.identity);
        let log = |entries: u32| entries.next_power_of_two().clamp(MIN_EVENTS, most).ilog2();
        let async_events = (4 * self.config.max_qps + 256).min(ASYNC_EVENTS);
        let completion_events = self.event_room.shares() * EVENTS_PER_CQ;
        let vector = u16::from(self.identity.vectors > 1);
        let vi_events = self.vi_room.shares() * EVENTS_PER_VI;
        let vis = || self.nic.create_eq(EQ_VIS, log(vi_events), vector);
        let dispatcher = Dispatcher::new(
            self.nic.create_eq(EQ_ASYNC, log(async_events), 0)?,
            self.nic.create_eq(EQ_COMPLETIONS, log(completion_events), vector)?,
            (self.config.max_vis > 0).then(vis).transpose()?,
        );
        let own = Client::new(self, None)?;
        *self.own.lock() = Some(own.clone());
        let gsi = heap::arc(Gsi::create(&own)?).map_err(|_| Error::OutOfMemory)?;
        self.connections.start(gsi);
        heap::room(size_of::<Dispatcher>() + THREAD)?;
        let agent = self.clone();
        let main = move || {
            agent.dispatcher.store(agent.platform.current_thread(), Ordering::Release);
            dispatcher.run(&agent);
            agent.dispatcher.store(0, Ordering::Release);
            let finished = agent.finished.clone();
            drop(agent);
            finished.raise();
        };
        self.platform.spawn(&format!("agent-{}", self.number), Box::new(main))?;
        Ok(())
    }

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
        Counts {
            clients: self.clients.lock().iter().flatten().count() as u32,
            qps: of(Counter::Qps),
            vis: of(Counter::Vis),
            cqs: of(Counter::Cqs),
            vi_cqs: of(Counter::ViCqs),
            srqs: of(Counter::Srqs),
            pds: of(Counter::Pds),
            regions: of(Counter::Regions),
            windows: of(Counter::Windows),
            listens,
            connections,
            resolutions,
        }
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

    /// The version of the NIC's hardware, as VIA has it (HardwareVersion of VIP_NIC_ATTRIBUTES).
    pub fn hardware_version(&self) -> u32 {
        let identity = self.identity();
        u32::from(identity.version_major) << 16 | u32::from(identity.version_minor)
    }

    /// Ends the connections, the objects, the device (by a reset) and the dispatcher thread.
    /// Clients that are still attached are told so ([`Upcalls::catastrophic`], in this thread), and
    /// find the agent dead. Returns within a bounded time even if
    /// the device is dead. Must not be called in an upcall.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.stopping.store(true, Ordering::Release);
        self.nic.signal().raise();
        let deadline = self.platform.now() + CLOSE_DEADLINE;
        while self.finished.value() == 0 && !self.in_dispatcher() {
            if self.platform.now() >= deadline {
                log::error!("agent {}: an upcall has not returned in time", self.number);
                break;
            }
            self.finished.wait(0, Some(deadline));
        }
        // Another agent may open the NIC as soon as it is reset. So before that, nothing may be
        // left that writes to its registers: no call with a command under way, no poster, no
        // reaper.
        self.nic.retire();
        let own = self.own.lock().take();
        self.for_each_client(|client| client.end_calls());
        own.iter().for_each(|own| own.end_calls());
        self.device_died(self.death().unwrap_or(Death::Closed));
        let clients = core::mem::take(&mut *self.clients.lock());
        for cq in self.cqs.all() {
            cq.leave();
        }
        for cq in self.vi_cqs.all() {
            cq.leave();
        }
        let confirmed = self.nic.close();
        if !confirmed {
            log::warn!(
                "agent {}: the device did not confirm its reset; {} buffers stay in quarantine",
                self.number,
                self.nic.quarantined()
            );
        }
        self.connections.clear();
        // These and the agent refer to each other.
        let qp1 = self.connections.stop();
        for client in clients.iter().flatten().chain(&own) {
            client.drop_objects();
        }
        drop((qp1, own, clients));
        self.qps.clear();
        self.vis.clear();
        self.cqs.clear();
        self.vi_cqs.clear();
        self.srqs.clear();
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn sizes_that_are_not_given_are_the_devices_less_what_no_client_has() {
        let identity = Identity {
            max_qps: 100,
            max_cqs: 50,
            max_srqs: 30,
            max_pds: 20,
            max_keys: 10,
            max_eqes: 1 << 16,
            ..Identity::new_zeroed()
        };
        let within = Config::default().within(&identity);
        assert_eq!((within.max_qps, within.max_cqs, within.max_srqs), (98, 49, 30));
        assert_eq!((within.max_pds, within.max_keys), (18, 9));
        let asked = Config { max_qps: 99, max_pds: 3, ..Config::default() }.within(&identity);
        assert_eq!((asked.max_qps, asked.max_pds), (98, 3));
        // Event queues of 4096 entries have room for 2048 CQs: 256 that are gone, and the agent's.
        let few = Identity { max_cqs: 1 << 16, max_eqes: 1 << 12, ..identity };
        assert_eq!(Config { max_cqs: 1 << 16, ..Config::default() }.within(&few).max_cqs, 1791);
    }

    #[test]
    fn virtual_interfaces_are_as_many_as_have_room_for_their_events() {
        let identity = Identity {
            features: Features::VI.bits(),
            max_qps: 1 << 14,
            max_cqs: 50,
            max_pds: 1 << 15,
            max_keys: 10,
            max_eqs: 3,
            max_eqes: 1 << 16,
            max_vi_segments: 252,
            max_vi_entries: 16,
            ..Identity::new_zeroed()
        };
        let vis = |identity: &Identity, max_vis, max_qps| {
            Config { max_vis, max_qps, ..Config::default() }.within(identity).max_vis
        };
        assert_eq!((vis(&identity, 0, 0), vis(&identity, 7, 0), vis(&identity, 7, 5)), (5120, 7, 5));
        // 65,536 entries are 5,461 shares of 12, of which 256 are for those that are gone.
        assert_eq!(vis(&identity, 1 << 14, 0), 5205);
        assert_eq!(vis(&Identity { max_eqes: 16, ..identity }, 0, 0), 1);
        assert_eq!(vis(&Identity { max_eqs: 2, ..identity }, 0, 0), 0);
        assert_eq!(vis(&Identity { features: 0, ..identity }, 0, 0), 0);
    }
}

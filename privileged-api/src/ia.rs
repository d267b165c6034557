//! The interface adapter (IA): creation, state and end (pages it_ia_create,
//! it_ia_free). `query` has the attributes.
//!
//! Owns all objects of the IA. An IA is enabled, disabled (its device died) or freed ([`Adapter`]).
//!
//! Locks, outermost first: an endpoint's operation lock (sleeps), a table entry (an endpoint's
//! before an address handle's), an object's control lock, a queue's lock or `unanswered`. A thread
//! that holds `ud_requests`, `mappings` or `sockets` holds no other lock.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kernel_agent::{Agent, Client, Consumer, Features, Identity, Region, Sender, key};
use platform::sync::Mutex;
use platform::{Platform, Privileged, heap};
use rdma::handle::ObjectHandle;
use rdma::{
    Adapter, Context, Face, Keys, Limits, Opening, Owners, PeerRequests, RoomForCallbacks, Slots, Table,
};

use crate::address::IoAddr;
use crate::attributes::ObjectCounts;
use crate::closed;
use crate::dialect::{Dialect, Facts};
use crate::handle::{
    AddrHandle, EpHandle, EvdHandle, IaHandle, ListenHandle, LmrHandle, PzHandle, RmrHandle, SrqHandle,
    UdSvcReqHandle,
};
use crate::info::TransportType;
use crate::objects::address_handle::{AddressHandle, MAX_ADDRESS_HANDLES};
use crate::objects::ep::Ep;
use crate::objects::evd::Evd;
use crate::objects::listen::Listen;
use crate::objects::lmr::Lmr;
use crate::objects::pz::Pz;
use crate::objects::rmr::Rmr;
use crate::objects::shared::Shared;
use crate::objects::sockets::Sockets;
use crate::objects::srq::Srq;
use crate::objects::ud_requests::{MAX_REQUESTS, UdSvcReq};
use crate::objects::unanswered::Unanswered;
use crate::status::{Error, Result};

mod query;

/// The one spigot that an IA has, numbered as InfiniBand numbers ports.
pub(crate) const SPIGOT: usize = 1;
/// The most listen points of an IA.
const MAX_LISTENS: u32 = 1024;

pub(crate) struct Core {
    pub(crate) adapter: Adapter<Core>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: IaHandle,
    privileged: Option<Privileged>,
    /// The device's features that the limits of the interface allow.
    features: Features,
    /// What its transport decides.
    pub(crate) dialect: &'static dyn Dialect,
    facts: &'static Facts,
    /// The IA is being freed: no callback may begin.
    closing: AtomicBool,
    pub(crate) context: Context,
    pub(crate) pzs: Table<PzHandle, Pz>,
    pub(crate) lmrs: Table<LmrHandle, Lmr>,
    pub(crate) keys: Keys,
    pub(crate) owners: Arc<Owners>,
    pub(crate) rmrs: Table<RmrHandle, Rmr>,
    pub(crate) srqs: Table<SrqHandle, Srq>,
    pub(crate) evds: Table<EvdHandle, Evd>,
    pub(crate) eps: Table<EpHandle, Ep>,
    pub(crate) evd_slots: Slots<Consumer>,
    pub(crate) ep_slots: Slots<Arc<Sender>>,
    pub(crate) listens: Table<ListenHandle, Listen>,
    pub(crate) addrs: Table<AddrHandle, AddressHandle>,
    pub(crate) ud_svc_reqs: Table<UdSvcReqHandle, UdSvcReq>,
    /// The handle of the EVD for affiliated events, or 0.
    pub(crate) affiliated: AtomicU64,
    /// The handle of the EVD for unaffiliated events, or 0.
    pub(crate) unaffiliated: AtomicU64,
    pub(crate) unanswered: Mutex<Unanswered>,
    pub(crate) ud_requests: Mutex<PeerRequests>,
    /// What mem_map has mapped and mem_unmap has not unmapped yet.
    pub(crate) mappings: Mutex<Vec<(IoAddr, usize)>>,
    /// Streams that the consumer has given to the IA, by their socket descriptors.
    pub(crate) sockets: Mutex<Sockets>,
    _room: RoomForCallbacks,
}

/// An interface adapter (IA). A clone is the same IA.
///
/// Every call but [`Ia::ia_free`] returns `InvalidIa` once the IA is freed, and `IaCatastrophe`
/// once its device is dead. Long lists of errors do not repeat these two.
#[derive(Clone)]
#[doc(alias = "it_ia_handle_t")]
pub struct Ia(Arc<Core>);

/// A call in progress that creates, changes or frees objects. [`Ia::ia_free`] waits until it ends.
pub(crate) type Call<'a> = rdma::Call<'a, Arc<Core>>;

impl Core {
    pub(crate) fn create(
        shared: Arc<Shared>,
        agent: Arc<Agent>,
        name: &str,
        privileged: Option<Privileged>,
        limits: &Limits,
        dialect: &'static dyn Dialect,
    ) -> Result<Ia> {
        let opening = Opening::begin(agent, name)?;
        let ia = opening.number();
        let id = *opening.agent().identity();
        let keys = id.max_keys.min(key::MAX);
        let pzs = Table::new(ia, id.max_pds, 0)?;
        let lmrs = Table::new(ia, keys.saturating_sub(1), 1)?;
        let evds = Table::new(ia, id.max_cqs, 0)?;
        let eps = Table::new(ia, id.max_qps, 0)?;
        let (evd_slots, ep_slots) = (Slots::new(id.max_cqs)?, Slots::new(id.max_qps)?);
        let listens = Table::new(ia, MAX_LISTENS, 0)?;
        let addrs = Table::new(ia, MAX_ADDRESS_HANDLES, 0)?;
        let ud_svc_reqs = Table::new(ia, MAX_REQUESTS, 0)?;
        let facts = dialect.facts();
        let offered = facts.needs | facts.offers;
        let features = Features::from_bits_truncate(id.features) & limits.features & offered;
        if !features.contains(facts.needs) {
            return Err(Error::InvalidName);
        }
        let direct = features.contains(Features::RESERVED_KEY);
        let owners = heap::arc(Owners::new(keys)?).map_err(|_| Error::Resources)?;
        // In the tag of a link, index 0 means no region.
        let rmrs = Table::new(ia, keys.saturating_sub(1), 1)?;
        let direct = direct.then_some(LmrHandle::DIRECT.as_raw());
        let keys = Keys::new(LmrHandle::TAG, ia.number(), keys, direct)?;
        let srqs = Table::new(ia, id.max_srqs, 0)?;
        let room = RoomForCallbacks::make(&shared.interfaces)?;
        // Only a privileged consumer can attach callbacks.
        let thread = privileged.map(|_| "it-callbacks");
        let core = opening.open(limits.connections, thread, |adapter| Core {
            handle: adapter.handle(),
            adapter,
            shared,
            privileged,
            features,
            dialect,
            facts,
            closing: AtomicBool::new(false),
            context: Context::new(),
            pzs,
            lmrs,
            keys,
            owners,
            rmrs,
            srqs,
            evds,
            eps,
            evd_slots,
            ep_slots,
            listens,
            addrs,
            ud_svc_reqs,
            affiliated: AtomicU64::new(0),
            unaffiliated: AtomicU64::new(0),
            unanswered: Mutex::new(Unanswered::default()),
            ud_requests: Mutex::new(PeerRequests::default()),
            mappings: Mutex::new(Vec::new()),
            sockets: Mutex::new(Sockets::default()),
            _room: room,
        })?;
        Ok(Ia(core))
    }

    /// The agent that owns the NIC.
    #[inline]
    pub(crate) fn agent(&self) -> &Arc<Agent> {
        self.adapter.agent()
    }

    /// The agent's client.
    pub(crate) fn client(&self) -> Result<&Arc<Client>> {
        self.adapter.client().ok_or(Error::InvalidIa)
    }

    /// This IA, if a clone of it still exists.
    pub(crate) fn ia(&self) -> Option<Ia> {
        self.adapter.face().map(Ia)
    }

    /// Fails unless the IA is enabled.
    #[inline(always)]
    pub(crate) fn still_live(&self) -> Result<()> {
        Ok(self.adapter.check()?)
    }

    /// Fails with `NoPermission` unless the consumer is privileged.
    pub(crate) fn privileged(&self) -> Result<Privileged> {
        self.privileged.ok_or(Error::NoPermission)
    }

    /// Whether callbacks may begin.
    pub(crate) fn runs_callbacks(&self) -> bool {
        !self.closing.load(Ordering::Acquire)
    }

    /// Disables the IA after its device died, and wakes all waiters, which then return.
    pub(crate) fn disable(&self) {
        self.adapter.disable(self);
    }

    /// Maps an error of the agent, for the calls whose page names no more specific error. Disables
    /// the IA if the device is dead.
    pub(crate) fn error(&self, error: kernel_agent::Error) -> Error {
        use kernel_agent::Error as Agent;
        match error {
            Agent::DeviceDead(_) => self.disable_on_catastrophe(Error::IaCatastrophe),
            Agent::QpState(_) => Error::InvalidEpState,
            Agent::PrivateData(_) => Error::InvalidPdataLength,
            Agent::NotReachable => Error::Fault,
            Agent::TooScattered => Error::ResourceLmrLength,
            Agent::BadList(_) => Error::InvalidIobl,
            Agent::Gone if self.agent().is_dead() => self.disable_on_catastrophe(Error::IaCatastrophe),
            _ => Error::Resources,
        }
    }

    /// Maps an error of the agent, for a call that the agent can refuse only because another call
    /// freed the object meanwhile: then returns `invalid`. Otherwise as [`Core::error`].
    pub(crate) fn gone(&self, error: kernel_agent::Error, invalid: Error) -> Error {
        match error {
            kernel_agent::Error::Gone | kernel_agent::Error::Command(_) if !self.agent().is_dead() => invalid,
            other => self.error(other),
        }
    }

    /// Disables the IA if the error is `IaCatastrophe`. Returns the error.
    pub(crate) fn disable_on_catastrophe(&self, error: Error) -> Error {
        if error == Error::IaCatastrophe {
            self.disable();
        }
        error
    }

    /// Maps the agent's error for a work request that was not posted. The caller may hold the lock
    /// of a table's entry, so this does not disable the IA: [`Core::posted`] does.
    #[cold]
    pub(crate) fn not_posted(&self, error: kernel_agent::PostError) -> Error {
        use kernel_agent::PostError;
        match error {
            PostError::QueueFull => Error::TooManyPosts,
            PostError::State => Error::InvalidEpState,
            PostError::Segments => Error::InvalidNumSegments,
            PostError::Segment => Error::InvalidLmr,
            PostError::Busy => Error::EpBusy,
            PostError::Kind => Error::InvalidEpType,
            PostError::LinksInFlight => Error::Resources,
            PostError::BadList(_) => Error::InvalidIobl,
            PostError::Gone if self.agent().is_dead() => Error::IaCatastrophe,
            PostError::Gone => Error::InvalidEp,
        }
    }

    /// Returns the result of a post, and disables the IA if the device is dead. That takes the lock
    /// of each endpoint's entry, so the caller must hold none.
    #[inline(always)]
    pub(crate) fn posted(&self, posted: Result<()>) -> Result<()> {
        posted.map_err(|error| self.disable_on_catastrophe(error))
    }

    /// Maps the agent's error as [`Core::not_posted`], for a post that does not hold the endpoint's
    /// table entry. Meanwhile a reset may have replaced the queue pair. If the endpoint still
    /// exists, the error is `InvalidEpState`, since an endpoint that was just reset accepts no
    /// requests.
    #[cold]
    pub(crate) fn not_posted_to(&self, ep: EpHandle, error: kernel_agent::PostError) -> Error {
        match self.disable_on_catastrophe(self.not_posted(error)) {
            Error::InvalidEp if self.eps.with(ep, |_| ()).is_some() => Error::InvalidEpState,
            error => error,
        }
    }

    /// Whether the consumer can register I/O buffer lists.
    pub(crate) fn takes_lists(&self) -> bool {
        self.facts().has_virtual_interfaces()
            || self.features.intersects(Features::FAST_REGISTER | Features::RESERVED_KEY)
    }

    /// The key by which work requests name a region: on VIA the one by which peers do, too.
    pub(crate) fn name_of(&self, region: &Region) -> u32 {
        if self.facts().has_virtual_interfaces() { region.remote_key() } else { region.key() }
    }

    /// What a value can say of the transport.
    #[inline(always)]
    pub(crate) fn facts(&self) -> &'static Facts {
        self.facts
    }

    /// The features that the consumer can use.
    pub(crate) fn features(&self) -> Features {
        self.features
    }
}

impl Face for Core {
    fn adapter(&self) -> &Adapter<Core> {
        &self.adapter
    }

    fn close_queues(&self) {
        for evd in self.evds.all() {
            evd.set_closed(closed::DISABLED, || true);
        }
        for ep in self.eps.all() {
            ep.close_slot();
        }
    }

    fn wake_all(&self) {
        for evd in self.evds.all() {
            evd.wake();
            evd.wake_task();
        }
    }

    fn run_callbacks(self: &Arc<Core>, place: u32) {
        let ia = Ia(self.clone());
        if let Some(evd) = self.evds.at(place as usize) {
            evd.run_callback(&ia);
        }
    }

    fn destroy_objects(&self) {
        for listen in self.listens.all() {
            self.free_listen_point(&listen);
        }
        for request in self.ud_svc_reqs.all() {
            self.free_ud_svc_req(&request);
        }
        for ep in self.eps.all() {
            self.free_ep(ep.handle);
        }
        for address in self.addrs.all() {
            self.free_address_handle(&address);
        }
        for srq in self.srqs.all() {
            // Cannot fail: all endpoints, which could use the SRQ, are freed.
            let _ = self.free_srq(&srq);
        }
        for rmr in self.rmrs.all() {
            self.free_rmr(&rmr);
        }
        for lmr in self.lmrs.all() {
            self.free_lmr(&lmr);
        }
        self.close_sockets();
        self.mappings.lock().clear();
        for evd in self.evds.all() {
            self.free_evd(&evd);
        }
        for pz in self.pzs.all() {
            self.free_pz(&pz);
        }
    }

    fn forget(&self) {
        self.unanswered.lock().clear();
        self.ud_requests.lock().clear();
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.adapter.dropped(self);
    }
}

impl Ia {
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// The IA's state. Fails unless the IA is enabled.
    #[inline(always)]
    pub(crate) fn live(&self) -> Result<&Arc<Core>> {
        self.0.still_live()?;
        Ok(&self.0)
    }

    /// Begins a call that creates, changes or frees objects. Fails unless the IA is enabled.
    pub(crate) fn call(&self) -> Result<Call<'_>> {
        Ok(self.0.adapter.begin_call(&self.0)?)
    }

    /// The IA's handle.
    pub fn handle(&self) -> IaHandle {
        self.0.handle
    }

    /// The platform on which the IA runs. An extension.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.0.shared.platform
    }

    /// What the NIC says of itself, and its limits, which it_ia_query does not return. An
    /// extension.
    pub fn identity(&self) -> &Identity {
        self.0.agent().identity()
    }

    /// The transport, as [`Ia::ia_query`] returns it. An extension.
    pub fn transport_type(&self) -> TransportType {
        self.0.transport_type()
    }

    /// The NIC's features that the consumers of this interface may use. An extension.
    pub fn features(&self) -> Features {
        self.0.features
    }

    /// Whether this thread runs a callback of an IA of this provider. An extension.
    ///
    /// Does not block. May be called in callbacks. Thread-safe.
    pub fn in_callback(&self) -> bool {
        self.0.shared.interfaces.callbacks().contains_this_thread()
    }

    /// Counts the IA's objects, for tests and diagnostics. Also works after the IA was disabled or
    /// freed.
    pub fn object_counts(&self) -> ObjectCounts {
        let core = &self.0;
        ObjectCounts {
            pz: core.pzs.count(),
            lmr: core.lmrs.count(),
            rmr: core.rmrs.count(),
            srq: core.srqs.count(),
            evd: core.evds.count(),
            ep: core.eps.count(),
            listen: core.listens.count(),
            mappings: core.mappings.lock().len(),
            cn_est: core.unanswered.lock().len(),
            addr: core.addrs.count(),
            ud_svc_req: core.ud_svc_reqs.count(),
            ud_requests: core.ud_requests.lock().len(),
        }
    }

    /// Frees the IA and all its objects. Waiters return. A failure changes nothing.
    ///
    /// After the call the device accesses none of the IA's memory.
    ///
    /// Errors: `InvalidIa` (it is already freed), `InvalidEvdState` while a callback of the IA
    /// runs. Blocks for the device, for a limited time. Thread-safe: a call that races with it
    /// succeeds or finds the handle invalid. Page it_ia_free.
    #[doc(alias = "it_ia_free")]
    pub fn ia_free(&self) -> Result<()> {
        let core = &self.0;
        core.adapter.end(core, || core.stop_callbacks())
    }
}

impl Core {
    /// Lets no callback begin any more; fails, and changes nothing, while one runs.
    fn stop_callbacks(&self) -> Result<()> {
        // From here on no callback begins: see `Evd::run_callback`.
        self.closing.store(true, Ordering::Release);
        if self.evds.all().any(|evd| evd.runs()) {
            self.closing.store(false, Ordering::Release);
            // Callbacks that became due while `closing` was set could not begin. Schedule them.
            for evd in self.evds.all() {
                self.adapter.schedule(evd.place());
            }
            return Err(Error::InvalidEvdState);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

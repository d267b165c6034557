//! The interface adapter: opening, closing, attributes (dat_ia_open, dat_ia_query, dat_ia_close).
//!
//! An IA is an [`Adapter`] with tables of DAT's objects. `upcalls` has the agent's upcalls to it.
//!
//! Locks, outermost first: a request's `turn`, an endpoint's `turn`, an event dispatcher's
//! `changes` (these three sleep), a table entry, an endpoint's `control`, an event dispatcher's
//! `control`, its queue, the slot of a queue. A thread that holds `requests`, `resolving`, `zone`
//! or a CNO's `state` takes no other lock.

use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use kernel_agent::{Agent, Client, Consumer, Features, Identity, Sender, key};
use platform::sync::atomic::{AtomicBool, Ordering};
use platform::sync::{Mutex, Once};
use platform::{Platform, Privileged, heap};
use rdma::handle::ObjectHandle;
use rdma::{
    Adapter, Call, Context, Endpoints, Face, Interfaces, Keys, Limits, Offer, Opening, Owners, PeerRequests,
    RoomForCallbacks, Slots, Table,
};

use crate::IaAddress;
use crate::attr::{
    EpCreator, IaAttr, IaAttrMask, IovOwnership, NamedAttr, ProviderAttr, ProviderAttrMask, PzSupport,
    RmrScope,
};
use crate::error::{MODEL, NO_MEMORY, handle, parameter, state};
use crate::flags::{CloseFlags, CompletionFlags, ExtensionAttr, MemType, Qos};
use crate::handle::{
    AhHandle, CnoHandle, CrHandle, EpHandle, EvdHandle, IaHandle, LmrHandle, PspHandle, PzHandle, RmrHandle,
    RspHandle, SrqHandle,
};
use crate::objects::address_handle::{AddressHandle, MAX_ADDRESS_HANDLES};
use crate::objects::cno::{Cno, FREED};
use crate::objects::ep::Ep;
use crate::objects::evd::Evd;
use crate::objects::lmr::Region;
use crate::objects::points::{CONNECT_DATA, Cr, Psp, Rsp};
use crate::objects::pz::{InZone, Pz};
use crate::objects::resolutions::Resolutions;
use crate::objects::rmr::Rmr;
use crate::objects::srq::Srq;
use crate::ret::{Error, ErrorType, Result, Subtype};

/// The version of the InfiniBand extensions: 2.0.9.
#[doc(alias = "DAT_IB_EXTENSION_VERSION")]
pub const IB_EXTENSION_VERSION: u32 = 209;

/// The most connection requests whose events the consumer has taken and which it has not answered.
const MAX_CRS: u32 = 4096;
/// The most service points of each kind, and the most CNOs.
const MAX_POINTS: u32 = 1024;

/// [`ProviderAttr::srq_watermarks_supported`]: low ones.
const LOW_WATERMARK: u32 = 0x001;
/// [`ProviderAttr::srq_info_supported`]: the number of Receives that are outstanding.
const OUTSTANDING: u32 = 0x10;
/// [`ProviderAttr::ep_recv_info_supported`]: the number of Receives that are outstanding.
const ALLOCATED: u32 = 0x01;
/// The alignment of buffers at which transfers are fastest, in bytes.
const OPTIMAL_ALIGNMENT: u32 = 64;

/// The features of an interface, and which of them are InfiniBand extensions.
#[derive(Clone, Copy)]
pub(crate) struct Offers(Features);

impl Offers {
    pub(crate) fn atomics(self) -> bool {
        self.0.contains(Features::ATOMICS)
    }

    pub(crate) fn datagrams(self) -> bool {
        self.0.contains(Features::UD)
    }

    pub(crate) fn srq(self) -> bool {
        self.0.contains(Features::SRQ)
    }

    /// Whether shared receive queues can be resized.
    pub(crate) fn srq_resize(self) -> bool {
        self.0.contains(Features::SRQ_RESIZE)
    }

    pub(crate) fn zero_based(self) -> bool {
        self.0.contains(Features::RELATIVE)
    }

    /// Whether there are windows that all endpoints of a zone can use.
    pub(crate) fn windows(self) -> bool {
        self.0.contains(Features::WINDOWS_WIDE)
    }

    /// An interface that is limited to neither atomics nor datagrams offers the base API only.
    pub(crate) fn extensions(self) -> bool {
        self.atomics() || self.datagrams()
    }
}

pub(crate) struct Inner {
    pub(crate) adapter: Adapter<Inner>,
    pub(crate) interfaces: Arc<Interfaces>,
    pub(crate) handle: IaHandle,
    pub(crate) offers: Offers,
    /// The IA is being closed: no upcall may begin.
    closing: AtomicBool,
    pub(crate) context: Context,
    pub(crate) pzs: Table<PzHandle, Pz>,
    pub(crate) lmrs: Table<LmrHandle, Region>,
    pub(crate) keys: Keys,
    pub(crate) owners: Owners,
    pub(crate) rmrs: Table<RmrHandle, Rmr>,
    pub(crate) srqs: Table<SrqHandle, Srq>,
    pub(crate) evds: Table<EvdHandle, Evd>,
    pub(crate) evd_slots: Slots<Consumer>,
    pub(crate) eps: Table<EpHandle, Ep>,
    pub(crate) ep_slots: Slots<Arc<Sender>>,
    pub(crate) addresses: Table<AhHandle, AddressHandle>,
    pub(crate) cnos: Table<CnoHandle, Cno>,
    pub(crate) psps: Table<PspHandle, Psp>,
    pub(crate) rsps: Table<RspHandle, Rsp>,
    pub(crate) crs: Table<CrHandle, Cr>,
    /// The peers' requests for datagram endpoints that the consumer has not answered.
    pub(crate) requests: Mutex<PeerRequests>,
    /// The remote datagram endpoints that are being resolved.
    pub(crate) resolving: Mutex<Resolutions>,
    /// The protection zone of endpoints that the consumer created without one.
    zone: Mutex<Option<Arc<Pz>>>,
    pub(crate) async_evd: Once<EvdHandle>,
    _room: RoomForCallbacks,
}

/// An interface adapter (IA). A clone is the same IA.
///
/// Once the IA is closed, every call fails with `InvalidHandle` (subtype `InvalidHandleIa`). Once
/// its device is dead, every call but [`Ia::ia_close`] fails with `InternalError`. Long lists of
/// errors do not repeat these two.
#[derive(Clone)]
#[doc(alias = "DAT_IA_HANDLE")]
pub struct Ia {
    pub(crate) inner: Arc<Inner>,
}

/// Opens an interface adapter of this name, with an event dispatcher for asynchronous events that
/// holds at least `async_evd_min_qlen` of them. Returns the IA and that event dispatcher.
///
/// The provider is a [`Provider`](crate::Provider), or that of another face. `async_evd` has to be
/// null: an event dispatcher of another IA cannot be shared. The consumer has to be privileged,
/// since CNOs use callbacks.
///
/// Errors: `ProviderNotFound` (no such interface, its NIC does not work, or it is over another
/// transport than InfiniBand), `InvalidHandle`, `InvalidParameter` (a queue of no or too many
/// events), `InsufficientResources`, `InvalidState` (in an upcall). Blocks for the device. Not for
/// upcalls. Thread-safe. dat_ia_open.
#[doc(alias = "dat_ia_open")]
#[doc(alias = "dat_ia_openv")]
pub fn ia_open(
    provider: &impl AsRef<Arc<Interfaces>>,
    name: &str,
    privileged: Privileged,
    async_evd_min_qlen: usize,
    async_evd: EvdHandle,
) -> Result<(Ia, EvdHandle)> {
    open(provider.as_ref(), name, privileged, async_evd_min_qlen, async_evd)
}

fn open(
    interfaces: &Arc<Interfaces>,
    name: &str,
    _privileged: Privileged,
    async_evd_min_qlen: usize,
    async_evd: EvdHandle,
) -> Result<(Ia, EvdHandle)> {
    if !async_evd.is_null() {
        return Err(Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEvdAsync));
    }
    if async_evd_min_qlen == 0 {
        return Err(parameter(Subtype::InvalidArg2));
    }
    if interfaces.callbacks().contains_this_thread() {
        return Err(crate::error::IN_UPCALL);
    }
    // DAT's calls with private data, atomic operations and so on have no place on VIA.
    let found = interfaces.find(name).filter(|offer| offer.endpoints == Endpoints::QueuePairs);
    let unknown = Error::new(ErrorType::ProviderNotFound, Subtype::NameNotRegistered);
    let Offer { agent, limits, .. } = found.ok_or(unknown)?;
    let ia = Ia { inner: Inner::open(interfaces, agent, name, &limits)? };
    let evd = ia.create_async_evd(async_evd_min_qlen).inspect_err(|_| {
        let _ = ia.ia_close(CloseFlags::Abrupt);
    })?;
    ia.inner.async_evd.call_once(|| evd);
    Ok((ia, evd))
}

/// The completion flags that posts and event dispatchers take.
const COMPLETION_FLAGS: CompletionFlags = CompletionFlags::SUPPRESS
    .union(CompletionFlags::SOLICITED_WAIT)
    .union(CompletionFlags::UNSIGNALLED)
    .union(CompletionFlags::BARRIER_FENCE)
    .union(CompletionFlags::EVD_THRESHOLD);

impl Inner {
    fn open(
        interfaces: &Arc<Interfaces>,
        agent: Arc<Agent>,
        name: &str,
        limits: &Limits,
    ) -> Result<Arc<Inner>> {
        let opening = Opening::begin(agent, name)?;
        let number = opening.number();
        let id = *opening.agent().identity();
        let keys = id.max_keys.min(key::MAX);
        let offers = Offers(Features::from_bits_truncate(id.features) & limits.features);
        let pzs = Table::new(number, id.max_pds, 0)?;
        // In the tag of a bind, index 0 means no region.
        let (lmrs, rmrs) =
            (Table::new(number, keys.saturating_sub(1), 1)?, Table::new(number, keys.saturating_sub(1), 1)?);
        let srqs = Table::new(number, id.max_srqs, 0)?;
        let (evds, evd_slots) = (Table::new(number, id.max_cqs, 0)?, Slots::new(id.max_cqs)?);
        let (eps, ep_slots) = (Table::new(number, id.max_qps, 0)?, Slots::new(id.max_qps)?);
        let addresses = Table::new(number, MAX_ADDRESS_HANDLES, 0)?;
        let cnos = Table::new(number, MAX_POINTS, 0)?;
        let psps = Table::new(number, MAX_POINTS, 0)?;
        let rsps = Table::new(number, MAX_POINTS, 0)?;
        let crs = Table::new(number, MAX_CRS, 0)?;
        let owners = Owners::new(keys)?;
        let keys = Keys::new(LmrHandle::TAG, number.number(), keys, None)?;
        let room = RoomForCallbacks::make(interfaces)?;
        let interfaces = interfaces.clone();
        let inner = opening.open(limits.connections, Some("dat-upcalls"), |adapter| Inner {
            handle: adapter.handle(),
            adapter,
            interfaces,
            offers,
            closing: AtomicBool::new(false),
            context: Context::new(),
            pzs,
            lmrs,
            keys,
            owners,
            rmrs,
            srqs,
            evds,
            evd_slots,
            eps,
            ep_slots,
            addresses,
            cnos,
            psps,
            rsps,
            crs,
            requests: Mutex::new(PeerRequests::default()),
            resolving: Mutex::new(Resolutions::default()),
            zone: Mutex::new(None),
            async_evd: Once::new(),
            _room: room,
        })?;
        Ok(inner)
    }
}

impl Ia {
    /// The IA's handle.
    pub fn handle(&self) -> IaHandle {
        self.inner.handle
    }

    /// Closes the IA. A graceful close needs that the consumer has freed all objects; an abrupt one
    /// frees them, and ends all waits with `Abort`. A failure changes nothing.
    ///
    /// Errors: `InvalidHandle` (it is closed already), `InvalidState` (a graceful close, and
    /// objects are left; or an upcall of the IA runs). Blocks for the device. Not for upcalls.
    /// Thread-safe. dat_ia_close.
    #[doc(alias = "dat_ia_close")]
    pub fn ia_close(&self, flags: CloseFlags) -> Result<()> {
        let inner = &self.inner;
        inner.adapter.end(inner, || {
            if flags == CloseFlags::Graceful && inner.has_objects() {
                return Err(state(Subtype::InvalidStateIaInUse));
            }
            inner.stop_upcalls()
        })
    }

    /// The event dispatcher of asynchronous events, and the attributes that the masks ask for. With
    /// an empty mask the attributes are `None`; with any other mask all members are valid.
    ///
    /// Errors: `InvalidParameter` (an undefined bit), `InsufficientResources`, `InvalidState` (in
    /// an upcall). Does not block. Not for upcalls. Thread-safe. dat_ia_query.
    #[doc(alias = "dat_ia_query")]
    pub fn ia_query(
        &self,
        ia_mask: IaAttrMask,
        provider_mask: ProviderAttrMask,
    ) -> Result<(EvdHandle, Option<IaAttr>, Option<ProviderAttr>)> {
        if IaAttrMask::from_bits(ia_mask.bits()).is_none() {
            return Err(parameter(Subtype::InvalidArg3));
        }
        if ProviderAttrMask::from_bits(provider_mask.bits()).is_none() {
            return Err(parameter(Subtype::InvalidArg5));
        }
        let inner = &self.inner;
        inner.live()?;
        inner.not_in_upcall()?;
        let ia_attr = if ia_mask.is_empty() { None } else { Some(inner.ia_attr()?) };
        let provider_attr = if provider_mask.is_empty() { None } else { Some(inner.provider_attr()?) };
        Ok((inner.async_evd.get().copied().unwrap_or_default(), ia_attr, provider_attr))
    }

    /// Begins a call that creates, changes or frees objects. Fails unless the IA works.
    pub(crate) fn call(&self) -> Result<Call<'_, Arc<Inner>>> {
        Ok(self.inner.adapter.begin_call(&self.inner)?)
    }
}

impl Inner {
    fn name(&self) -> Result<String> {
        let mut name = String::new();
        name.try_reserve_exact(self.adapter.name().len())?;
        name.push_str(self.adapter.name());
        Ok(name)
    }

    fn ia_attr(&self) -> Result<IaAttr> {
        let (id, offers, most) = (self.identity(), self.offers, self.limits());
        let (segments, depth) = (most.segments, most.reads);
        // The agent has queue pairs of its own.
        let most_eps = id.max_qps as usize;
        let srqs = if offers.srq() { id.max_srqs as usize } else { 0 };
        Ok(IaAttr {
            adapter_name: self.name()?,
            vendor_name: "Ferrovia",
            hardware_version_major: id.version_major.into(),
            hardware_version_minor: id.version_minor.into(),
            firmware_version_major: id.revision,
            firmware_version_minor: 0,
            ia_address: self.address().unwrap_or(IaAddress::V6(core::net::Ipv6Addr::UNSPECIFIED)),
            max_eps: most_eps,
            max_dto_per_ep: most.dtos,
            max_rdma_read_per_ep_in: depth,
            max_rdma_read_per_ep_out: depth,
            max_evds: id.max_cqs as usize,
            max_evd_qlen: (id.max_cqes as usize).min(MAX_SOFT_EVENTS),
            max_iov_segments_per_dto: segments,
            max_lmrs: id.max_keys as usize,
            max_lmr_block_size: u64::MAX,
            max_lmr_virtual_address: u64::MAX,
            max_pzs: id.max_pds as usize,
            max_message_size: most.message,
            max_rdma_size: most.message,
            max_rmrs: if offers.windows() { id.max_keys as usize } else { 0 },
            max_rmr_target_address: u64::MAX,
            max_srqs: srqs,
            max_ep_per_srq: if srqs > 0 { most_eps } else { 0 },
            max_recv_per_srq: if srqs > 0 { id.max_srq_entries as usize } else { 0 },
            max_iov_segments_per_rdma_read: segments,
            max_iov_segments_per_rdma_write: segments,
            max_rdma_read_in: depth,
            max_rdma_read_out: depth,
            max_rdma_read_per_ep_in_guaranteed: true,
            max_rdma_read_per_ep_out_guaranteed: true,
            zb_supported: offers.zero_based(),
            extension_supported: if offers.extensions() { ExtensionAttr::Ib } else { ExtensionAttr::None },
            extension_version: if offers.extensions() { IB_EXTENSION_VERSION } else { 0 },
        })
    }

    fn provider_attr(&self) -> Result<ProviderAttr> {
        let offers = self.offers;
        let mut named = Vec::new();
        // The document's names and those of the public headers.
        let (atomics, extensions) = (offers.atomics(), offers.extensions());
        let all = [
            ("DAT_EXTENSION_INTERFACE", "TRUE", extensions),
            ("DAT_EXTENSION_VERSION", "2.0.9", extensions),
            ("DAT_IB_FETCH_AND_ADD_OP", "TRUE", atomics),
            ("DAT_IB_FETCH_AND_ADD", "TRUE", atomics),
            ("DAT_IB_CMP_AND_SWAP_OP", "TRUE", atomics),
            ("DAT_IB_CMP_AND_SWAP", "TRUE", atomics),
            ("DAT_IB_IMMED_DATA_OP", "TRUE", extensions),
            ("DAT_IB_IMMED_DATA", "TRUE", extensions),
            ("DAT_IB_UD", "TRUE", offers.datagrams()),
        ];
        named.try_reserve_exact(all.len())?;
        let offered = all.into_iter().filter(|&(_, _, offered)| offered);
        named.extend(offered.map(|(name, value, _)| NamedAttr { name, value }));
        // Software, connection request, DTO, connection, RMR bind: each can share with each. The
        // event dispatcher of asynchronous events has no other stream.
        let together = [true, true, true, true, true, false];
        let merging =
            [together, together, together, together, together, [false, false, false, false, false, true]];
        Ok(ProviderAttr {
            provider_name: self.name()?,
            provider_version_major: 0,
            provider_version_minor: 1,
            dapl_version_major: 2,
            dapl_version_minor: 0,
            lmr_mem_types_supported: MemType::Virtual as u32 | MemType::Lmr as u32,
            iov_ownership: IovOwnership::Consumer,
            dat_qos_supported: Qos::BEST_EFFORT,
            completion_flags_supported: COMPLETION_FLAGS,
            is_thread_safe: true,
            max_private_data_size: CONNECT_DATA,
            supports_multipath: false,
            ep_creator: EpCreator::Never,
            pz_support: PzSupport::Unique,
            optimal_buffer_alignment: OPTIMAL_ALIGNMENT,
            evd_stream_merging_supported: merging,
            srq_supported: offers.srq(),
            srq_watermarks_supported: if offers.srq() { LOW_WATERMARK } else { 0 },
            srq_ep_pz_difference_supported: offers.srq(),
            srq_info_supported: if offers.srq() { OUTSTANDING } else { 0 },
            ep_recv_info_supported: ALLOCATED,
            lmr_sync_req: false,
            dto_async_return_guaranteed: true,
            rdma_write_for_rdma_read_req: false,
            rdma_read_lmr_rmr_context_exposure: false,
            rmr_scope_supported: RmrScope::Pz,
            is_signal_safe: false,
            provider_specific_attr: named,
        })
    }
}

/// The most events that a queue of software's entries holds, of each stream.
pub(crate) const MAX_SOFT_EVENTS: usize = 1 << 15;

impl Inner {
    pub(crate) fn ia(&self) -> Option<Ia> {
        Some(Ia { inner: self.adapter.face()? })
    }

    pub(crate) fn weak(&self) -> Weak<Inner> {
        self.adapter.weak()
    }

    pub(crate) fn platform(&self) -> &Arc<dyn Platform> {
        self.interfaces.platform()
    }

    pub(crate) fn agent(&self) -> &Arc<Agent> {
        self.adapter.agent()
    }

    pub(crate) fn identity(&self) -> &Identity {
        self.agent().identity()
    }

    /// The agent's client.
    pub(crate) fn client(&self) -> Result<&Arc<Client>> {
        self.adapter.client().ok_or(crate::error::CLOSED)
    }

    /// Fails unless the IA works.
    #[inline(always)]
    pub(crate) fn live(&self) -> Result<()> {
        Ok(self.adapter.check()?)
    }

    /// Fails in a thread that runs an upcall: for calls that may wait.
    pub(crate) fn not_in_upcall(&self) -> Result<()> {
        if self.interfaces.callbacks().contains_this_thread() { Err(crate::error::IN_UPCALL) } else { Ok(()) }
    }

    /// Fails unless the interface offers InfiniBand extensions.
    pub(crate) fn extended(&self) -> Result<()> {
        if self.offers.extensions() { Ok(()) } else { Err(MODEL) }
    }

    /// The IA's address: the first IPv4 address, else the first GID.
    pub(crate) fn address(&self) -> Option<IaAddress> {
        let id = self.identity();
        if id.ipv4 != [0; 4] {
            return Some(IaAddress::from(id.ipv4));
        }
        id.gids.first().map(|gid| IaAddress::from(*gid))
    }

    /// The error for one of the agent, where nothing more specific is meant. Disables the IA if the
    /// device is dead.
    pub(crate) fn error(&self, error: kernel_agent::Error) -> Error {
        use kernel_agent::Error as Agent;
        match error {
            Agent::DeviceDead(_) => self.dead(),
            Agent::Gone if self.agent().is_dead() => self.dead(),
            Agent::QpState(_) => state(Subtype::None),
            Agent::PrivateData(_) | Agent::NotReachable | Agent::BadList(_) => parameter(Subtype::None),
            _ => NO_MEMORY,
        }
    }

    /// As [`Inner::error`], for a call that the agent can refuse only because another call freed
    /// the object meanwhile: that is `invalid`.
    pub(crate) fn gone(&self, error: kernel_agent::Error, invalid: Error) -> Error {
        match error {
            kernel_agent::Error::Gone | kernel_agent::Error::Command(_) if !self.agent().is_dead() => invalid,
            other => self.error(other),
        }
    }

    /// Disables the IA, whose device is dead. The caller holds no lock. Returns the error of calls.
    pub(crate) fn dead(&self) -> Error {
        self.adapter.disable(self);
        ErrorType::InternalError.into()
    }

    fn has_objects(&self) -> bool {
        let own = self.async_evd.get().copied();
        // Regions and shared receive queues are in zones, and service points on event dispatchers.
        self.pzs.count() + self.eps.count() + self.cnos.count() + self.crs.count() > 0
            || self.evds.all().any(|evd| Some(evd.handle) != own && !evd.hidden)
    }

    /// The protection zone of endpoints that the consumer created without one.
    pub(crate) fn hidden_zone(&self) -> Result<InZone> {
        let existing = self.zone.lock().clone();
        let zone = match existing {
            Some(zone) => zone,
            None => {
                let made = self.new_zone(PzHandle::NULL)?;
                let zone = self.zone.lock().get_or_insert_with(|| made.clone()).clone();
                if !Arc::ptr_eq(&zone, &made) {
                    // Another call was faster.
                    let _ = made.pd.destroy();
                }
                zone
            }
        };
        InZone::begin(zone).ok_or(handle(Subtype::InvalidHandlePz))
    }

    pub(crate) fn shared<T>(value: T) -> Result<Arc<T>> {
        heap::arc(value).map_err(|_| NO_MEMORY)
    }

    /// Whether upcalls may begin.
    pub(crate) fn makes_upcalls(&self) -> bool {
        !self.closing.load(Ordering::Acquire)
    }

    /// Lets no upcall begin any more; fails, and changes nothing, while one runs.
    fn stop_upcalls(&self) -> Result<()> {
        // From here on no upcall begins: see `Evd::run`.
        self.closing.store(true, Ordering::Release);
        if self.evds.all().any(|evd| evd.dispatcher.runs()) {
            self.closing.store(false, Ordering::Release);
            // Those that became due while `closing` was set could not begin. Schedule them.
            for evd in self.evds.all() {
                self.adapter.schedule(evd.place());
            }
            return Err(state(Subtype::InvalidStateIaInUse));
        }
        Ok(())
    }
}

impl Face for Inner {
    fn adapter(&self) -> &Adapter<Inner> {
        &self.adapter
    }

    fn close_queues(&self) {
        for evd in self.evds.all() {
            evd.disable();
        }
        for ep in self.eps.all() {
            ep.close_slot();
        }
    }

    fn wake_all(&self) {
        for evd in self.evds.all() {
            evd.dispatcher.wake();
        }
        if self.adapter.is_freed() {
            self.cnos.all().for_each(|cno| cno.end(FREED));
        }
    }

    fn device_died(&self) {
        self.cnos.all().for_each(|cno| cno.end(ErrorType::InternalError.into()));
    }

    fn run_callbacks(self: &Arc<Inner>, place: u32) {
        if let Some(evd) = self.evds.at(place as usize) {
            self.run(&evd);
        }
    }

    fn destroy_objects(&self) {
        for psp in self.psps.all() {
            self.end_psp(&psp);
        }
        for rsp in self.rsps.all() {
            self.end_rsp(&rsp);
        }
        self.end_resolutions();
        for ep in self.eps.all() {
            self.end_ep(&ep);
        }
        for address in self.addresses.all() {
            self.free_address(address.handle);
        }
        for srq in self.srqs.all() {
            // Cannot fail: all endpoints, which could use the queue, are freed.
            let _ = self.end_srq(&srq);
        }
        for rmr in self.rmrs.all() {
            self.end_rmr(&rmr);
        }
        for lmr in self.lmrs.all() {
            // Cannot fail: all windows are freed.
            let _ = self.end_lmr(&lmr);
        }
        for evd in self.evds.all() {
            self.end_evd(&evd);
        }
        for pz in self.pzs.all() {
            self.end_pz(&pz);
        }
        if let Some(zone) = self.zone.lock().take() {
            let _ = zone.pd.destroy();
        }
        for cno in self.cnos.all() {
            self.cnos.remove(cno.handle);
        }
    }

    fn forget(&self) {
        for cr in self.crs.all() {
            self.crs.remove(cr.handle);
        }
        self.requests.lock().clear();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.adapter.dropped(self);
    }
}

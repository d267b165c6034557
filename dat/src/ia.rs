//! The interface adapter: opening, closing, attributes (dat_ia_open, dat_ia_query, dat_ia_close).
//!
//! An IA opens an IT-API adapter for itself ([`it::Ia`]), which owns the objects and their queues.
//! Beside them the IA keeps what only DAT has.
//!
//! Locks, outermost first: an endpoint's `turn`, an event dispatcher's `changes` (both sleep), then
//! one of the others. Those spin, are leaves, and are not held during a call of IT-API.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use platform::sync::atomic::{AtomicBool, Ordering};
use platform::sync::{Mutex, Once};
use platform::{Platform, Privileged, heap};
use privileged_api as it;
use rdma::numbers::Number;
use rdma::{Context, Table};

use crate::attr::{
    EpCreator, IaAttr, IaAttrMask, IovOwnership, NamedAttr, ProviderAttr, ProviderAttrMask, PzSupport,
    RmrScope,
};
use crate::cm::{Cr, Psp, Resolving, Rsp};
use crate::cno::{Cno, FREED};
use crate::ep::{Configs, Ep};
use crate::error::{CLOSED, MODEL, NO_MEMORY, parameter, state};
use crate::evd::Evd;
use crate::flags::{CloseFlags, CompletionFlags, ExtensionAttr, MemType, Qos};
use crate::handle::{CnoHandle, CrHandle, EpHandle, EvdHandle, IaHandle, LmrHandle, PspHandle, RspHandle};
use crate::lmr::Region;
use crate::ret::{Error, ErrorType, Result, Subtype};
use crate::side_table::SideTable;
use crate::{IaAddress, SpHandle};

/// The version of the InfiniBand extensions: 2.0.9.
#[doc(alias = "DAT_IB_EXTENSION_VERSION")]
pub const IB_EXTENSION_VERSION: u32 = 209;

/// The one port that an adapter has.
pub(crate) const SPIGOT: usize = 1;
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

/// The features of an interface, and which of them are InfiniBand extensions.
#[derive(Clone, Copy)]
pub(crate) struct Offers(it::Features);

impl Offers {
    pub(crate) fn atomics(self) -> bool {
        self.0.contains(it::Features::ATOMICS)
    }

    pub(crate) fn datagrams(self) -> bool {
        self.0.contains(it::Features::UD)
    }

    pub(crate) fn srq(self) -> bool {
        self.0.contains(it::Features::SRQ)
    }

    pub(crate) fn zero_based(self) -> bool {
        self.0.contains(it::Features::RELATIVE)
    }

    /// An interface that is limited to neither atomics nor datagrams offers the base API only.
    pub(crate) fn extensions(self) -> bool {
        self.atomics() || self.datagrams()
    }
}

/// Objects that the consumer does not see.
#[derive(Default)]
pub(crate) struct Hidden {
    /// The protection zone of endpoints that the consumer created without one.
    pub(crate) zone: Option<it::PzHandle>,
    /// The event dispatcher of endpoints that the consumer created without one for connection
    /// events.
    pub(crate) messages: Option<it::EvdHandle>,
}

pub(crate) struct Inner {
    pub(crate) it: it::Ia,
    me: Weak<Inner>,
    pub(crate) handle: IaHandle,
    pub(crate) offers: Offers,
    closed: AtomicBool,
    pub(crate) context: Context,
    pub(crate) evds: SideTable<EvdHandle, Evd>,
    pub(crate) eps: SideTable<EpHandle, Ep>,
    pub(crate) configs: Configs,
    pub(crate) lmrs: SideTable<LmrHandle, Region>,
    pub(crate) cnos: Table<CnoHandle, Cno>,
    pub(crate) psps: Table<PspHandle, Psp>,
    pub(crate) rsps: Table<RspHandle, Rsp>,
    pub(crate) crs: Table<CrHandle, Cr>,
    /// The service points by their qualifiers.
    pub(crate) services: Mutex<BTreeMap<u64, SpHandle>>,
    /// The remote datagram endpoints that are being resolved, by IT-API's request.
    pub(crate) resolving: Mutex<BTreeMap<u64, Resolving>>,
    pub(crate) hidden: Mutex<Hidden>,
    async_evd: Once<EvdHandle>,
    /// Distinguishes the handles of the tables above; released after them.
    _number: Number,
}

/// An interface adapter (IA). A clone is the same IA.
///
/// Once the IA is closed, every call fails with `InvalidHandle` (subtype `InvalidHandleIa`). Once
/// its device is dead, every call but [`Ia::ia_close`] fails with `InternalError`. Long lists of
/// errors do not repeat these two.
#[derive(Clone)]
#[doc(alias = "DAT_IA_HANDLE")]
pub struct Ia {
    pub(crate) it: it::Ia,
    pub(crate) inner: Arc<Inner>,
}

/// Opens an interface adapter of this name, with an event dispatcher for asynchronous events that
/// holds at least `async_evd_min_qlen` of them. Returns the IA and that event dispatcher.
///
/// `async_evd` has to be null: an event dispatcher of another IA cannot be shared. The consumer has
/// to be privileged, since CNOs use callbacks.
///
/// Errors: `ProviderNotFound` (no such interface, its NIC does not work, or it is over VIA),
/// `InvalidHandle`, `InvalidParameter` (a queue of no or too many events), `InsufficientResources`,
/// `InvalidState` (in an upcall). Blocks for the device. Not for upcalls. Thread-safe. dat_ia_open.
#[doc(alias = "dat_ia_open")]
#[doc(alias = "dat_ia_openv")]
pub fn ia_open(
    provider: &it::Provider,
    name: &str,
    privileged: Privileged,
    async_evd_min_qlen: usize,
    async_evd: EvdHandle,
) -> Result<(Ia, EvdHandle)> {
    if !async_evd.is_null() {
        return Err(Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEvdAsync));
    }
    if async_evd_min_qlen == 0 {
        return Err(parameter(Subtype::InvalidArg2));
    }
    let adapter = provider.ia_create(name, 2, 1, Some(privileged)).map_err(|error| match error {
        it::Error::InvalidName => Error::new(ErrorType::ProviderNotFound, Subtype::NameNotRegistered),
        other => other.into(),
    })?;
    let opened = Ia::on(adapter.clone()).and_then(|ia| {
        let evd = ia.create_async_evd(async_evd_min_qlen)?;
        ia.inner.async_evd.call_once(|| evd);
        Ok((ia, evd))
    });
    opened.inspect_err(|_| {
        let _ = adapter.ia_free();
    })
}

/// The completion flags that posts and event dispatchers take.
const COMPLETION_FLAGS: CompletionFlags = CompletionFlags::SUPPRESS
    .union(CompletionFlags::SOLICITED_WAIT)
    .union(CompletionFlags::UNSIGNALLED)
    .union(CompletionFlags::BARRIER_FENCE)
    .union(CompletionFlags::EVD_THRESHOLD);

impl Ia {
    fn on(adapter: it::Ia) -> Result<Ia> {
        // DAT's calls with private data, atomic operations and so on have no place on VIA.
        if adapter.transport_type() != it::TransportType::Ib {
            return Err(Error::new(ErrorType::ProviderNotFound, Subtype::NameNotRegistered));
        }
        let id = *adapter.identity();
        let number = Number::take()?;
        let cnos = Table::new(&number, MAX_POINTS, 0)?;
        let psps = Table::new(&number, MAX_POINTS, 0)?;
        let rsps = Table::new(&number, MAX_POINTS, 0)?;
        let crs = Table::new(&number, MAX_CRS, 0)?;
        let evds = SideTable::new(id.max_cqs)?;
        let (eps, configs) = (SideTable::new(id.max_qps)?, Configs::new(id.max_qps)?);
        let lmrs = SideTable::new(id.max_keys)?;
        let (handle, offers) = (IaHandle::from_raw(adapter.handle().as_raw()), Offers(adapter.features()));
        heap::room_for_arc::<Inner>()?;
        let inner = Arc::new_cyclic(|me: &Weak<Inner>| Inner {
            it: adapter.clone(),
            me: me.clone(),
            handle,
            offers,
            closed: AtomicBool::new(false),
            context: Context::new(),
            evds,
            eps,
            configs,
            lmrs,
            cnos,
            psps,
            rsps,
            crs,
            services: Mutex::new(BTreeMap::new()),
            resolving: Mutex::new(BTreeMap::new()),
            hidden: Mutex::new(Hidden::default()),
            async_evd: Once::new(),
            _number: number,
        });
        // IT-API wakes the waiters on its event dispatchers.
        let weak = inner.weak();
        adapter.when_disabled(Box::new(move || {
            if let Some(inner) = weak.upgrade() {
                inner.cnos.all().for_each(|cno| cno.end(ErrorType::InternalError.into()));
            }
        }));
        let weak = inner.weak();
        adapter.when_drained(Box::new(move |ep| {
            if let Some(inner) = weak.upgrade() {
                inner.drained(EpHandle::of(ep));
            }
        }));
        Ok(Ia { it: adapter, inner })
    }

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
        if flags == CloseFlags::Graceful && !inner.is_closed() && inner.has_objects() {
            return Err(state(Subtype::InvalidStateIaInUse));
        }
        self.it.ia_free().map_err(|error| match error {
            it::Error::InvalidEvdState => state(Subtype::InvalidStateIaInUse),
            other => other.into(),
        })?;
        inner.closed.store(true, Ordering::Release);
        inner.forget_all();
        Ok(())
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
        let info = self.it.ia_query()?;
        let ia_attr = if ia_mask.is_empty() { None } else { Some(self.ia_attr(&info)) };
        let provider_attr = if provider_mask.is_empty() { None } else { Some(self.provider_attr(&info)?) };
        Ok((self.async_evd(), ia_attr, provider_attr))
    }

    /// The event dispatcher of asynchronous events.
    pub(crate) fn async_evd(&self) -> EvdHandle {
        self.inner.async_evd.get().copied().unwrap_or_default()
    }

    fn ia_attr(&self, info: &it::IaInfo) -> IaAttr {
        let (id, offers, most) = (self.it.identity(), self.inner.offers, self.inner.limits());
        let windows = !info.rmr_types_supported.is_empty();
        let (segments, depth) = (most.segments, most.reads);
        // The agent has queue pairs of its own.
        let most_eps = id.max_qps as usize;
        let srqs = if offers.srq() { id.max_srqs as usize } else { 0 };
        IaAttr {
            adapter_name: info.ia_name.clone(),
            vendor_name: "Ferrovia",
            hardware_version_major: id.version_major.into(),
            hardware_version_minor: id.version_minor.into(),
            firmware_version_major: id.revision,
            firmware_version_minor: 0,
            ia_address: self.inner.address().unwrap_or(IaAddress::V6(core::net::Ipv6Addr::UNSPECIFIED)),
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
            max_rmrs: if windows { id.max_keys as usize } else { 0 },
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
        }
    }

    fn provider_attr(&self, info: &it::IaInfo) -> Result<ProviderAttr> {
        let offers = self.inner.offers;
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
        let mut provider_name = String::new();
        provider_name.try_reserve_exact(info.ia_name.len())?;
        provider_name.push_str(&info.ia_name);
        // Software, connection request, DTO, connection, RMR bind: each can share with each. The
        // event dispatcher of asynchronous events has no other stream.
        let together = [true, true, true, true, true, false];
        let merging =
            [together, together, together, together, together, [false, false, false, false, false, true]];
        Ok(ProviderAttr {
            provider_name,
            provider_version_major: info.sw_major_version,
            provider_version_minor: info.sw_minor_version,
            dapl_version_major: 2,
            dapl_version_minor: 0,
            lmr_mem_types_supported: MemType::Virtual as u32 | MemType::Lmr as u32,
            iov_ownership: IovOwnership::Consumer,
            dat_qos_supported: Qos::BEST_EFFORT,
            completion_flags_supported: COMPLETION_FLAGS,
            is_thread_safe: true,
            max_private_data_size: info.connect_private_data_len,
            supports_multipath: false,
            ep_creator: EpCreator::Never,
            pz_support: PzSupport::Unique,
            optimal_buffer_alignment: info.dto_alignment_hint,
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

/// The most events that a queue of other events than completions can hold.
pub(crate) const MAX_SOFT_EVENTS: usize = 1 << 15;

impl Inner {
    /// This IA, if a clone of it still exists.
    pub(crate) fn ia(&self) -> Option<Ia> {
        Some(Ia { it: self.it.clone(), inner: self.me.upgrade()? })
    }

    pub(crate) fn weak(&self) -> Weak<Inner> {
        self.me.clone()
    }

    pub(crate) fn platform(&self) -> &Arc<dyn Platform> {
        self.it.platform()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Fails if the IA is closed or its device is dead. For calls that need nothing else of IT-API.
    pub(crate) fn live(&self) -> Result<()> {
        if self.is_closed() {
            return Err(CLOSED);
        }
        match self.it.get_consumer_context(self.it.handle()) {
            Err(error @ (it::Error::InvalidIa | it::Error::IaCatastrophe)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Fails in an upcall, for calls that may wait.
    pub(crate) fn not_in_upcall(&self) -> Result<()> {
        if self.it.in_callback() { Err(crate::error::IN_UPCALL) } else { Ok(()) }
    }

    /// Fails if the interface offers no extensions.
    pub(crate) fn extended(&self) -> Result<()> {
        if self.offers.extensions() { Ok(()) } else { Err(MODEL) }
    }

    /// The adapter's address: its first IPv4 address, or else that of its first GID.
    pub(crate) fn address(&self) -> Option<IaAddress> {
        let id = self.it.identity();
        if id.ipv4 != [0; 4] {
            return Some(IaAddress::from(id.ipv4));
        }
        id.gids.first().map(|gid| IaAddress::from(*gid))
    }

    /// Whether the consumer has objects beside the event dispatcher of asynchronous events.
    fn has_objects(&self) -> bool {
        let own = self.async_evd.get().map(|evd| evd.as_raw());
        let counts = self.it.object_counts();
        let hidden = self.hidden.lock();
        // Regions and shared receive queues are in zones, and service points on event dispatchers.
        counts.pz > usize::from(hidden.zone.is_some())
            || counts.ep > 0
            || self.cnos.count() + self.crs.count() > 0
            || self.evds.all().any(|evd| Some(evd.handle.as_raw()) != own)
    }

    /// Forgets all that belonged to the objects of a closed IA.
    fn forget_all(&self) {
        for cno in self.cnos.all() {
            cno.end(FREED);
            self.cnos.remove(cno.handle);
        }
        for psp in self.psps.all() {
            self.psps.remove(psp.handle);
        }
        for rsp in self.rsps.all() {
            self.rsps.remove(rsp.handle);
        }
        for cr in self.crs.all() {
            self.crs.remove(cr.handle);
        }
        self.services.lock().clear();
        self.resolving.lock().clear();
        self.eps.clear();
        self.evds.clear();
        self.lmrs.clear();
    }

    /// The zone of endpoints that the consumer created without one.
    pub(crate) fn hidden_zone(&self) -> Result<it::PzHandle> {
        if let Some(zone) = self.hidden.lock().zone {
            return Ok(zone);
        }
        let made = self.it.pz_create()?;
        let zone = *self.hidden.lock().zone.get_or_insert(made);
        if zone != made {
            // Another call was faster.
            let _ = self.it.pz_free(made);
        }
        Ok(zone)
    }

    /// The event dispatcher of endpoints that the consumer created without one for connection
    /// events. Such an endpoint cannot be connected, so this event dispatcher never gets an event.
    pub(crate) fn hidden_messages(&self) -> Result<it::EvdHandle> {
        if let Some(evd) = self.hidden.lock().messages {
            return Ok(evd);
        }
        let (stream, flags) = (it::EventType::CM_MSG_EVENT_STREAM, it::EvdFlags::OVERFLOW_DEFAULT);
        let made = self.it.evd_create(stream, flags, 1, 1, it::EvdHandle::NULL)?;
        let evd = *self.hidden.lock().messages.get_or_insert(made);
        if evd != made {
            let _ = self.it.evd_free(made);
        }
        Ok(evd)
    }

    /// Allocates a shared object; fails if there is no memory.
    pub(crate) fn shared<T>(value: T) -> Result<Arc<T>> {
        heap::arc(value).map_err(|_| NO_MEMORY)
    }
}

//! Remote memory regions: the object, creating, query, freeing (pages it_rmr_create, it_rmr_query,
//! it_rmr_free, it_rmr_type_t).
//!
//! Owns the agent's window. The device keeps the link of each region. What it does not keep (the
//! LMR's handle, the privileges as given, the endpoint) is recorded here with the key of each link.
//!
//! Locks, outermost first: an LMR's `links`, an RMR's `links`, a queue pair's send queue (inside
//! the agent).

mod link;

use alloc::sync::Arc;

use api_core::Context;
use kernel_agent::{Features, KeyInfo, LinkFlags, Window, WindowType};
use platform::sync::Mutex;

use crate::address::RmrContext;
use crate::attributes::{AddrMode, RmrParam, RmrType};
use crate::flags::{MemPriv, RmrParamMask};
use crate::handle::{EpHandle, LmrHandle, PzHandle, RmrHandle};
use crate::ia::{Core, Ia};
use crate::posted::{Keyed, Posted};
use crate::pz::InZone;
use crate::status::{Error, Result};

/// A link of an RMR, as it was posted.
#[derive(Clone, Copy)]
struct Linking {
    /// The window's key with this link. The device reports the key of the link that is in force.
    key: u32,
    /// The queue pair to which the link was posted; 0 for none.
    qpn: u32,
    lmr: LmrHandle,
    privs: MemPriv,
    ep: EpHandle,
}

impl Keyed for Linking {
    fn key(&self) -> u32 {
        self.key
    }

    fn qpn(&self) -> u32 {
        self.qpn
    }
}

impl Linking {
    /// The link of a region that is not linked.
    const fn none(key: u32) -> Linking {
        Linking { key, qpn: 0, lmr: LmrHandle::NULL, privs: MemPriv::empty(), ep: EpHandle::NULL }
    }
}

/// How many links before the last one are recorded.
const RECENT: usize = 8;

/// The links and unlinks that were posted.
struct Links {
    posted: Posted<Linking, RECENT>,
    variant: u8,
}

pub(crate) struct Rmr {
    pub(crate) handle: RmrHandle,
    zone: InZone,
    window: Arc<Window>,
    narrow: bool,
    links: Mutex<Links>,
    pub(crate) context: Context,
}

impl Core {
    /// The device's information about a region, and the link that is in force. `None` if the region
    /// is not linked.
    fn linking(&self, rmr: &Rmr) -> core::result::Result<Option<(KeyInfo, Linking)>, kernel_agent::Error> {
        let info = rmr.window.query()?;
        if info.linked == 0 {
            return Ok(None);
        }
        // If the link in force is too old to be recorded, the device's information replaces the
        // record.
        let linking = rmr.links.lock().posted.find(info.key).unwrap_or_else(|| Linking {
            key: info.key,
            qpn: 0,
            lmr: LmrHandle::try_from(self.owners.get(info.windows_or_region)).unwrap_or(LmrHandle::NULL),
            privs: privileges(LinkFlags::from_bits_truncate(info.flags)),
            ep: EpHandle::NULL,
        });
        Ok(Some((info, linking)))
    }
}

/// The privileges that correspond to these rights.
fn privileges(rights: LinkFlags) -> MemPriv {
    let mut privs = MemPriv::empty();
    privs.set(MemPriv::REMOTE_READ, rights.contains(LinkFlags::REMOTE_READ));
    privs.set(MemPriv::REMOTE_WRITE, rights.contains(LinkFlags::REMOTE_WRITE));
    privs.set(MemPriv::ATOMIC, rights.contains(LinkFlags::REMOTE_ATOMIC));
    privs
}

impl Core {
    fn rmr(&self, rmr: RmrHandle) -> Result<Arc<Rmr>> {
        self.rmrs.get(rmr.as_raw()).ok_or(Error::InvalidRmr)
    }

    /// Whether the device has this type of RMR.
    fn has(&self, narrow: bool) -> bool {
        let needed = if narrow { Features::WINDOWS_NARROW } else { Features::WINDOWS_WIDE };
        self.features().contains(needed)
    }

    /// Frees a region, linked or not.
    pub(crate) fn free_rmr(&self, rmr: &Rmr) {
        // A window can be destroyed at any time, so this fails only if the device is dead.
        let _ = rmr.window.destroy();
        self.owners.clear(rmr.window.key(), rmr.handle.into());
        self.rmrs.remove(rmr.handle.as_raw());
        rmr.zone.end();
    }

    /// Whether a narrow region is linked through this endpoint.
    pub(crate) fn has_narrow_rmr(&self, ep: EpHandle) -> bool {
        self.rmrs.all().filter(|rmr| rmr.narrow).any(|rmr| {
            let named = rmr.links.lock().posted.any(|linking| linking.ep == ep);
            named && matches!(self.linking(&rmr), Ok(Some((_, linking))) if linking.ep == ep)
        })
    }
}

impl Ia {
    /// Creates a remote memory region, not linked. `Default` makes a wide one.
    ///
    /// Errors: `InvalidPz`, `InvalidRmrType` (the IA does not have it), `Resources`, `InvalidIa`,
    /// `IaCatastrophe`. Blocks for the device. Not for callbacks. Thread-safe. Page it_rmr_create.
    #[doc(alias = "it_rmr_create")]
    pub fn rmr_create(&self, pz: PzHandle, rmr_type: RmrType) -> Result<RmrHandle> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let zone = core.enter_zone(pz)?;
        let narrow = match rmr_type {
            RmrType::Default => !core.has(false),
            RmrType::Narrow => true,
            RmrType::Wide => false,
        };
        if !core.has(narrow) {
            return Err(Error::InvalidRmrType);
        }
        let reservation = core.rmrs.reserve()?;
        let handle = RmrHandle::from_raw(reservation.word());
        let window_type = if narrow { WindowType::Narrow } else { WindowType::Wide };
        let allocated = core.client()?.allocate_window(&zone.pd, window_type);
        let window = allocated.map_err(|error| core.error(error))?;
        let key = window.key();
        core.owners.set(key, handle.into()).inspect_err(|_| {
            let _ = window.destroy();
        })?;
        reservation.fill(Arc::new(Rmr {
            handle,
            zone,
            window,
            narrow,
            links: Mutex::new(Links { posted: Posted::new(Linking::none(key)), variant: 0 }),
            context: Context::new(),
        }));
        Ok(handle)
    }

    /// Returns a remote memory region's present parameters. If it is not linked, only IA, zone,
    /// type and `linked` are defined.
    ///
    /// From the execution of a link or unlink on, the result is the new state, also before the
    /// completion is dequeued.
    ///
    /// Errors: `InvalidRmr`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Blocks for the device.
    /// May be called in callbacks. Thread-safe. Page it_rmr_query.
    #[doc(alias = "it_rmr_query")]
    pub fn rmr_query(&self, rmr: RmrHandle, mask: RmrParamMask) -> Result<RmrParam> {
        let core = self.live()?;
        let rmr = core.rmr(rmr)?;
        if RmrParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let linking = core.linking(&rmr).map_err(|error| core.gone(error, Error::InvalidRmr))?;
        let wants = |bit| mask.intersects(bit | RmrParamMask::ALL);
        let mut param = RmrParam::default();
        if wants(RmrParamMask::IA) {
            param.ia = core.handle;
        }
        if wants(RmrParamMask::PZ) {
            param.pz = rmr.zone.handle;
        }
        if wants(RmrParamMask::TYPE) {
            param.rmr_type = if rmr.narrow { RmrType::Narrow } else { RmrType::Wide };
        }
        if wants(RmrParamMask::LINKED) {
            param.linked = linking.is_some();
        }
        let Some((info, linking)) = linking else { return Ok(param) };
        if wants(RmrParamMask::LMR) {
            param.lmr = linking.lmr;
        }
        if wants(RmrParamMask::ADDR) {
            param.addr = info.base as usize;
        }
        if wants(RmrParamMask::LENGTH) {
            param.length = info.length;
        }
        if wants(RmrParamMask::MEM_PRIV) {
            param.privs = linking.privs;
        }
        if wants(RmrParamMask::RMR_CONTEXT) {
            param.rmr_context = Some(RmrContext::from_key(info.key));
        }
        if wants(RmrParamMask::ADDR_MODE) {
            let relative = LinkFlags::from_bits_truncate(info.flags).contains(LinkFlags::RELATIVE);
            param.addr_mode = if relative { AddrMode::Relative } else { AddrMode::Absolute };
        }
        Ok(param)
    }

    /// Destroys a remote memory region, linked or not, in any state of the endpoint that linked it.
    /// When this returns, its context is invalid.
    ///
    /// Errors: `InvalidRmr`, `InvalidIa`, `IaCatastrophe`. Blocks for the device. May be called in
    /// callbacks. Thread-safe: a call that races with it succeeds or finds the handle invalid. Page
    /// it_rmr_free.
    #[doc(alias = "it_rmr_free")]
    pub fn rmr_free(&self, rmr: RmrHandle) -> Result<()> {
        let core = self.call()?;
        let rmr = core.rmrs.remove(rmr.as_raw()).ok_or(Error::InvalidRmr)?;
        core.free_rmr(&rmr);
        core.still_live().or_else(|error| if error == Error::IaCatastrophe { Ok(()) } else { Err(error) })
    }
}

//! Remote memory regions: the object, creating, query, freeing (pages it_rmr_create, it_rmr_query,
//! it_rmr_free, it_rmr_type_t).
//!
//! Owns the agent's window. What the region is linked to is known to the device alone, so a query
//! asks the device.

mod link;

use alloc::sync::Arc;

use kernel_agent::{Features, LinkFlags, WindowType};
use platform::heap;
use rdma::Context;

use crate::address::RmrContext;
use crate::attributes::{RmrParam, RmrType};
use crate::flags::RmrParamMask;
use crate::handle::{Handle, PzHandle, RmrHandle};
use crate::ia::{Core, Ia};
use crate::lmr::rights::{addressing, privileges};
use crate::objects::rmr::Rmr;
use crate::status::{Error, Result};

impl Core {
    fn rmr(&self, rmr: RmrHandle) -> Result<Arc<Rmr>> {
        self.rmrs.get(rmr).ok_or(Error::InvalidRmr)
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
        self.owners.clear(rmr.window.key(), rmr.handle.as_raw());
        self.rmrs.remove(rmr.handle);
        rmr.zone.end();
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
        let handle = reservation.handle();
        let window_type = if narrow { WindowType::Narrow } else { WindowType::Wide };
        let allocated = core.client()?.allocate_window(&zone.pd, window_type);
        let window = allocated.map_err(|error| core.error(error))?;
        let key = window.key();
        core.owners.set(key, handle.as_raw()).inspect_err(|_| {
            let _ = window.destroy();
        })?;
        let rmr = heap::arc(Rmr { handle, zone, window, narrow, context: Context::new() });
        reservation.fill(rmr.map_err(|rmr| {
            core.owners.clear(key, handle.as_raw());
            let _ = rmr.window.destroy();
            Error::Resources
        })?);
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
        let info = rmr.window.query().map_err(|error| core.gone(error, Error::InvalidRmr))?;
        let linked = info.linked != 0;
        let flags = LinkFlags::from_bits_truncate(info.flags);
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
            param.linked = linked;
        }
        if !linked {
            return Ok(param);
        }
        if wants(RmrParamMask::LMR) {
            let region = core.owners.get(info.windows_or_region).map(Handle::from_raw);
            param.lmr = region.and_then(|region| region.try_into().ok()).unwrap_or_default();
        }
        if wants(RmrParamMask::ADDR) {
            param.addr = info.base as usize;
        }
        if wants(RmrParamMask::LENGTH) {
            param.length = info.length;
        }
        if wants(RmrParamMask::MEM_PRIV) {
            param.privs = privileges(flags);
        }
        if wants(RmrParamMask::RMR_CONTEXT) {
            param.rmr_context = Some(RmrContext::from_key(info.remote));
        }
        if wants(RmrParamMask::ADDR_MODE) {
            param.addr_mode = addressing(flags);
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
        let rmr = core.rmrs.remove(rmr).ok_or(Error::InvalidRmr)?;
        core.free_rmr(&rmr);
        core.still_live().or_else(|error| if error == Error::IaCatastrophe { Ok(()) } else { Err(error) })
    }
}

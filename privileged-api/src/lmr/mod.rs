//! Local memory regions: query, freeing (pages it_lmr_query, it_lmr_free, it_lmr_flush_to_mem,
//! it_lmr_refresh_from_mem, it_mem_priv_t).
//!
//! The object is in `objects::lmr`. It owns the agent's region, and keeps the memory of owned
//! buffers alive while the device uses it.
//!
//! Segments, links and unlinks name a region by its local key, which is constant. What a region is
//! linked to is known to the device alone, so a query asks the device.
//!
//! Locks: a region's `changes` (sleeps). `zone` and `buffer` are taken alone.

mod create;
mod link;
mod modify;
mod raw;
pub(crate) mod rights;
pub(crate) mod sharing;

use alloc::sync::Arc;
use core::sync::atomic::{Ordering, fence};

use kernel_agent::LinkFlags;

use crate::address::RmrContext;
use crate::attributes::LmrParam;
use crate::flags::{LmrFlags, LmrParamMask};
use crate::handle::LmrHandle;
use crate::ia::{Core, Ia};
use crate::iobl::LmrTriplet;
use crate::lmr::rights::{addressing, is_remote, list_type, privileges};
use crate::objects::lmr::Lmr;
use crate::status::{Error, Result};

pub use create::LmrMemory;

impl Core {
    pub(crate) fn lmr(&self, lmr: LmrHandle) -> Result<Arc<Lmr>> {
        self.lmrs.get(lmr).ok_or(Error::InvalidLmr)
    }

    /// Fails if another call freed the region before the caller took its lock `changes`.
    fn still(&self, lmr: &Lmr) -> Result<()> {
        self.lmrs.with(lmr.handle, |_| ()).ok_or(Error::InvalidLmr)
    }

    /// Frees a region to which no window is bound; returns false if the device says that one is. To
    /// be called with `changes` held, or when no calls are in progress any more.
    pub(crate) fn free_lmr(&self, lmr: &Lmr) -> bool {
        let destroyed = lmr.region.destroy();
        if destroyed == Err(kernel_agent::Error::Busy) {
            return false;
        }
        self.keys.clear(lmr.handle.as_raw());
        self.owners.clear(lmr.region.key(), lmr.handle.as_raw());
        self.lmrs.remove(lmr.handle);
        self.shared.shareable.forget(lmr);
        lmr.zone.lock().end();
        // Taken out here, because another thread may keep the object itself alive for a moment.
        let buffer = lmr.buffer.lock().take();
        if let Some(buffer) = buffer {
            self.agent().release(buffer, destroyed);
        }
        true
    }
}

impl Ia {
    /// Returns a region's present parameters. If it is not linked, address, length, privileges and
    /// context are undefined.
    ///
    /// Errors: `InvalidLmr`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Blocks for the device.
    /// May be called in callbacks. Thread-safe. Page it_lmr_query.
    #[doc(alias = "it_lmr_query")]
    pub fn lmr_query(&self, lmr: LmrHandle, mask: LmrParamMask) -> Result<LmrParam> {
        let core = self.live()?;
        let lmr = core.lmr(lmr)?;
        if LmrParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let _changes = lmr.changes.lock(&core.shared.platform);
        let info = lmr.region.query().map_err(|error| core.gone(error, Error::InvalidLmr))?;
        let linked = info.linked != 0;
        let flags = LinkFlags::from_bits_truncate(info.flags);
        let privs = privileges(flags);
        let wants = |bit| mask.intersects(bit | LmrParamMask::ALL);
        let mut param = LmrParam::default();
        if wants(LmrParamMask::IA) {
            param.ia = core.handle;
        }
        if wants(LmrParamMask::PZ) {
            param.pz = lmr.zone.lock().handle;
        }
        if wants(LmrParamMask::FLAG) {
            param.flags = lmr.flags;
            param.flags.set(LmrFlags::SHARED, linked && lmr.is_shared());
        }
        if wants(LmrParamMask::SHARED_ID) {
            param.shared_id = lmr.shared_id;
        }
        if wants(LmrParamMask::LINKED) {
            param.linked = linked;
        }
        if wants(LmrParamMask::IOBL_NUM_ELTS) {
            param.iobl_num_elts = lmr.region.max_elements() as usize;
        }
        if !linked {
            return Ok(param);
        }
        if wants(LmrParamMask::ADDR) {
            param.addr = info.base as usize;
        }
        if wants(LmrParamMask::LENGTH) {
            param.length = info.length;
        }
        if wants(LmrParamMask::ACTUAL_ADDR) {
            param.actual_addr = info.base as usize;
        }
        if wants(LmrParamMask::ACTUAL_LENGTH) {
            param.actual_length = info.length;
        }
        if wants(LmrParamMask::MEM_PRIV) {
            param.privs = privs;
        }
        if wants(LmrParamMask::RMR_CONTEXT) && is_remote(privs) {
            param.rmr_context = Some(RmrContext::from_key(info.remote));
        }
        if wants(LmrParamMask::ADDR_MODE) {
            param.addr_mode = addressing(flags);
        }
        if wants(LmrParamMask::IOBL_TYPE) {
            param.iobl_type = lmr.made.map_or_else(|| list_type(flags), |made| made.iobl_type);
        }
        Ok(param)
    }

    /// Destroys a region, linked or not. After this call the device does not access the memory.
    ///
    /// Errors: `InvalidLmr`, `LmrBusy` while an RMR is linked to it, `InvalidIa`, `IaCatastrophe`.
    /// Blocks for the device. May be called in callbacks. Thread-safe: a call that races with it
    /// succeeds or finds the handle invalid. Page it_lmr_free.
    #[doc(alias = "it_lmr_free")]
    pub fn lmr_free(&self, lmr: LmrHandle) -> Result<()> {
        let core = self.call()?;
        let lmr = core.lmr(lmr)?;
        let _changes = lmr.changes.lock(&core.shared.platform);
        core.still(&lmr)?;
        if core.free_lmr(&lmr) { Ok(()) } else { Err(Error::LmrBusy) }
    }

    /// Makes the consumer's changes of memory visible to incoming RDMA Reads and atomic operations.
    /// Only regions that were created with `LmrFlags::NONCOHERENT` need it; segments in other
    /// regions, or in no region, are skipped.
    ///
    /// Errors: `Range` (a segment is not within its region, which is non-coherent; nothing was
    /// done), `InvalidIa`, `IaCatastrophe`. Blocks for the device if a non-coherent region was
    /// created unlinked. May be called in callbacks. Thread-safe. Page it_lmr_flush_to_mem.
    #[doc(alias = "it_lmr_flush_to_mem")]
    pub fn lmr_flush_to_mem(&self, local_segments: &[LmrTriplet]) -> Result<()> {
        self.synchronize(local_segments)
    }

    /// Makes changes by incoming RDMA Writes and atomic operations visible to the consumer, and
    /// orders the consumer's own writes with them. Only regions that were created with
    /// `LmrFlags::NONCOHERENT` need it; segments in other regions, or in no region, are skipped.
    ///
    /// Errors: `Range` (a segment is not within its region, which is non-coherent; nothing was
    /// done), `InvalidIa`, `IaCatastrophe`. Blocks for the device if a non-coherent region was
    /// created unlinked. May be called in callbacks. Thread-safe. Page it_lmr_refresh_from_mem.
    #[doc(alias = "it_lmr_refresh_from_mem")]
    pub fn lmr_refresh_from_mem(&self, local_segments: &[LmrTriplet]) -> Result<()> {
        self.synchronize(local_segments)
    }

    /// Orders memory accesses. A platform's DMA memory is coherent with its caches, so nothing else
    /// is needed.
    fn synchronize(&self, local_segments: &[LmrTriplet]) -> Result<()> {
        let core = self.live()?;
        let mut any = false;
        for segment in local_segments {
            let Some(lmr) = core.lmrs.get(segment.lmr) else { continue };
            if !lmr.flags.contains(LmrFlags::NONCOHERENT) {
                continue;
            }
            match lmr.spans(segment) {
                Ok(true) => any = true,
                Ok(false) => return Err(Error::Range),
                // Freed meanwhile.
                Err(kernel_agent::Error::Gone) => {}
                Err(error) => return Err(core.error(error)),
            }
        }
        if any {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }
}

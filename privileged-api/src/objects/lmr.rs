//! A local memory region.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kernel_agent::{LinkFlags, Region};
use platform::sync::Mutex;
use platform::{DmaBuffer, SleepLock};
use rdma::Context;

use super::pz::InZone;
use crate::attributes::AddrMode;
use crate::flags::{IoblTypes, LmrFlags};
use crate::handle::LmrHandle;
use crate::iobl::LmrTriplet;
use crate::lmr::rights::addressing;
use crate::status::{Error, Result};

/// What a region was created with, if it was created with its memory. The other regions are linked
/// by work requests; only the device knows what is in force.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) addr: usize,
    pub(crate) length: u64,
    pub(crate) addr_mode: AddrMode,
    pub(crate) iobl_type: IoblTypes,
}

pub(crate) struct Lmr {
    pub(crate) handle: LmrHandle,
    pub(crate) zone: Mutex<InZone>,
    pub(crate) region: Arc<Region>,
    /// Keeps the memory of an owned buffer alive.
    pub(crate) buffer: Mutex<Option<Arc<DmaBuffer>>>,
    /// Whether the consumer itself may only read the memory.
    pub(crate) read_only: bool,
    pub(crate) flags: LmrFlags,
    pub(crate) shared_id: u32,
    pub(crate) made: Option<Made>,
    /// Whether the region shares translations with another one.
    pub(crate) shared: AtomicBool,
    pub(crate) sharing: Option<Sharing>,
    pub(crate) context: Context,
    /// Held by it_lmr_modify; by it_lmr_query, so that it sees a modification whole; and by
    /// it_lmr_free, so that a region is freed once.
    pub(crate) changes: SleepLock,
}

impl Lmr {
    /// Whether the region was created without memory.
    pub(crate) fn is_linkable(&self) -> bool {
        self.region.max_elements() > 0
    }

    /// The local key.
    #[inline]
    pub(crate) fn key(&self) -> u32 {
        self.region.key()
    }

    /// Fails if the range of an RMR is not within the region (it_rmr_link). Where an RMR may be
    /// linked in a region that is itself linked by work requests, and in a region with relative
    /// addressing, the device decides when it links the RMR.
    pub(crate) fn check_range(&self, addr: usize, length: u64) -> Result<()> {
        match self.made {
            Some(made) if made.addr_mode == AddrMode::Absolute => made.check_range(addr, length),
            _ => Ok(()),
        }
    }
}

impl Made {
    pub(crate) fn check_range(&self, addr: usize, length: u64) -> Result<()> {
        let offset = addr.checked_sub(self.addr).ok_or(Error::Address)? as u64;
        let room = self.length.checked_sub(offset).filter(|room| *room > 0).ok_or(Error::Address)?;
        if length > room { Err(Error::InvalidLength) } else { Ok(()) }
    }
}

/// Whether a segment is within a region.
pub(crate) fn spans(base: u64, length: u64, addr_mode: AddrMode, segment: &LmrTriplet) -> bool {
    let offset = match addr_mode {
        AddrMode::Absolute => segment.addr.checked_sub(base),
        AddrMode::Relative => Some(segment.addr),
    };
    let room = offset.and_then(|offset| length.checked_sub(offset));
    room.is_some_and(|room| segment.length <= room)
}

impl Lmr {
    /// Whether a segment is within the region. Asks the device for the link in force.
    pub(crate) fn spans(&self, segment: &LmrTriplet) -> core::result::Result<bool, kernel_agent::Error> {
        if let Some(Made { addr, length, addr_mode, .. }) = self.made {
            return Ok(spans(addr as u64, length, addr_mode, segment));
        }
        let info = self.region.query()?;
        let addr_mode = addressing(LinkFlags::from_bits_truncate(info.flags));
        Ok(info.linked != 0 && spans(info.base, info.length, addr_mode, segment))
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }
}

/// What two matching regions have in common, besides their memory and their coherency.
pub(crate) struct Sharing {
    /// Identifies this region.
    pub(crate) serial: u64,
    pub(crate) shared_id: u32,
}

impl Sharing {
    /// The properties of a region with these flags; `None` if it must not be shared.
    pub(crate) fn new(flags: LmrFlags, shared_id: u32) -> Option<Sharing> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        (!flags.contains(LmrFlags::NON_SHAREABLE))
            .then(|| Sharing { serial: SERIAL.fetch_add(1, Ordering::Relaxed), shared_id })
    }
}

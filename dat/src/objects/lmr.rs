//! A local memory region.

use alloc::sync::Arc;

use platform::DmaBuffer;
use platform::sync::Mutex;
use rdma::Context;

use super::pz::InZone;
use crate::error::parameter;
use crate::flags::{MemType, VaType};
use crate::handle::LmrHandle;
use crate::ret::{Result, Subtype};

/// The memory of a region.
#[derive(Clone)]
pub(crate) enum Memory {
    Buffer {
        buffer: Arc<DmaBuffer>,
        offset: usize,
    },
    Static(&'static [u8]),
    /// Memory for which the consumer answers.
    Raw {
        address: usize,
        length: u64,
    },
}

impl Memory {
    /// The address of its first byte, and how many bytes there are.
    /// `None`: the offset is beyond the buffer.
    pub(crate) fn extent(&self) -> Option<(usize, u64)> {
        match self {
            Memory::Buffer { buffer, offset } => {
                let room = buffer.len().checked_sub(*offset)?;
                Some((buffer.addr() + offset, room as u64))
            }
            Memory::Static(bytes) => Some((bytes.as_ptr().addr(), bytes.len() as u64)),
            Memory::Raw { address, length } => Some((*address, *length)),
        }
    }
}

/// A region.
pub(crate) struct Region {
    pub(crate) handle: LmrHandle,
    pub(crate) zone: InZone,
    pub(crate) region: Arc<kernel_agent::Region>,
    /// Until the region is freed.
    pub(crate) memory: Mutex<Option<Memory>>,
    pub(crate) address: usize,
    pub(crate) length: u64,
    pub(crate) mem_type: MemType,
    pub(crate) va_type: VaType,
    pub(crate) context: Context,
}

impl Region {
    /// Fails unless the piece lies in the region, if that is known without the device.
    pub(crate) fn check_piece(&self, address: u64, length: u64) -> Result<()> {
        if self.va_type != VaType::Va {
            return Ok(());
        }
        let offset = address.checked_sub(self.address as u64);
        let room = offset.and_then(|offset| self.length.checked_sub(offset)).filter(|room| *room > 0);
        match room {
            Some(room) if length <= room => Ok(()),
            _ => Err(parameter(Subtype::InvalidArg3)),
        }
    }
}

//! I/O addresses of memory (pages it_mem_map, it_mem_unmap).

use kernel_agent::ListElement;

use crate::address::IoAddr;
use crate::ia::Ia;
use crate::status::{Error, Result};

/// The kernel's address space, which is the only one.
pub const ASPACE_KERNEL: u64 = 0;

impl Ia {
    /// Returns the I/O address of a virtually addressed buffer, and how many bytes from there are
    /// contiguous for the device: at least one.
    ///
    /// To build an I/O buffer list, call it again for the rest of the buffer, behind the bytes that
    /// were mapped. The memory must not be moved or released before it is unmapped. `aspace_id` is
    /// [`ASPACE_KERNEL`]. Privileged consumers only.
    ///
    /// The call checks all extents of the buffer. It fails if there are more of them than an I/O
    /// buffer list can have elements (262,144 for this NIC); map such a buffer in parts.
    ///
    /// Errors: `NoPermission`, `Fault` (the device cannot access a part of the buffer, the buffer
    /// has too many extents, there is no such address space, or `len` is 0), `InvalidIa`,
    /// `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe. Page it_mem_map.
    #[doc(alias = "it_mem_map")]
    pub fn mem_map(&self, vaddr: usize, aspace_id: u64, len: usize) -> Result<(IoAddr, usize)> {
        let core = self.call()?;
        core.privileged()?;
        if len == 0 || aspace_id != ASPACE_KERNEL || vaddr.checked_add(len).is_none() {
            return Err(Error::Fault);
        }
        let limit = core.agent().identity().dma_limit;
        let mut reachable = true;
        // Check the whole buffer, although the mapping ends with the first extent.
        let translated = core.agent().translate(vaddr, len as u64, |run: ListElement| {
            reachable &= run.addr.checked_add(run.length).is_some_and(|end| end <= limit);
        });
        let extent = core.shared.platform.translate(vaddr);
        let extent = extent.filter(|_| translated.is_ok() && reachable).ok_or(Error::Fault)?;
        let mapped = usize::try_from(extent.len).map_or(len, |contiguous| contiguous.min(len));
        let io_addr = IoAddr(extent.addr);
        let mut mappings = core.mappings.lock();
        mappings.try_reserve(1).map_err(|_| Error::Fault)?;
        mappings.push((io_addr, mapped));
        Ok((io_addr, mapped))
    }

    /// Removes a mapping. The arguments must be exactly what [`Ia::mem_map`] returned. Privileged
    /// consumers only.
    ///
    /// Errors: `NoPermission`, `Fault` (no such mapping), `InvalidIa`, `IaCatastrophe`. Does not
    /// block. May be called in callbacks. Thread-safe: of two calls that remove the same mapping,
    /// one returns `Fault`. Page it_mem_unmap.
    #[doc(alias = "it_mem_unmap")]
    pub fn mem_unmap(&self, io_addr: IoAddr, mapped_len: usize) -> Result<()> {
        let core = self.call()?;
        core.privileged()?;
        let mut mappings = core.mappings.lock();
        let place = mappings.iter().position(|mapping| *mapping == (io_addr, mapped_len));
        mappings.swap_remove(place.ok_or(Error::Fault)?);
        Ok(())
    }
}

//! The memory of a disk that lends it.

use alloc::vec::Vec;
use core::ops::Range;

use block::{Disk, Lease, Loan};
use platform::Privileged;
use rdma::{Access, CreateError, Domain, Region, Slice};

use super::pool::MOST_PIECES;
use super::port;

/// The memory that a disk lends.
pub(crate) struct Lending {
    /// By the place of the port.
    ports: Vec<Named>,
    /// What the disk has copied, when it was looked at last.
    copied: u64,
}

/// The memory, as a port's NIC names it.
#[derive(Default)]
struct Named {
    /// By its bus address: what requests read.
    sources: Vec<Region>,
    /// The same memory as the sink of RDMA Reads, which has to be registered.
    sinks: Vec<Region>,
}

impl Lending {
    /// Registers the memory of a disk, if it lends some, in the domains of the ports.
    pub(crate) fn new(
        domains: &[Domain],
        privileged: Privileged,
        disk: &dyn Disk,
    ) -> Result<Lending, CreateError> {
        let ports = domains.iter().map(|_| Named::default()).collect();
        let mut lending = Lending { ports, copied: disk.copied() };
        for (port, domain) in domains.iter().enumerate() {
            let registered = lending.register(port, domain, privileged, disk);
            port::unless_dead(domain, registered)?;
        }
        Ok(lending)
    }

    /// Registers the memory that a disk has appended since, for a port. Blocks in memory that
    /// cannot be registered are not lent.
    pub(super) fn register(
        &mut self,
        port: usize,
        domain: &Domain,
        privileged: Privileged,
        disk: &dyn Disk,
    ) -> Result<(), CreateError> {
        let Named { sources, sinks } = &mut self.ports[port];
        for buffer in disk.memory().into_iter().skip(sources.len()) {
            sinks.push(domain.register(buffer.clone(), Access::empty())?);
            sources.push(domain.direct_buffer(buffer, privileged));
        }
        Ok(())
    }

    /// Whether the disk lends anything to a port's commands.
    pub(crate) fn lends(&self, port: usize) -> bool {
        !self.ports[port].sources.is_empty()
    }

    /// Asks the disk for the memory of blocks, for a port's command.
    pub(super) fn lend(&self, port: usize, disk: &dyn Disk, blocks: Range<u64>, loan: Loan) -> Option<Lease> {
        let lease = disk.lend(blocks, loan)?;
        // The disk may have grown since its memory was registered.
        if lease.pieces().all(|piece| piece.buffer < self.ports[port].sources.len()) {
            return Some(lease);
        }
        disk.cancel(lease);
        None
    }

    /// What is lent, as requests name it that read it.
    pub(crate) fn slices(&self, port: usize, lease: &Lease) -> heapless::Vec<Slice<'_>, MOST_PIECES> {
        slices(&self.ports[port].sources, lease)
    }

    /// What is lent, as the sink of an RDMA Read.
    pub(crate) fn sinks(&self, port: usize, lease: &Lease) -> heapless::Vec<Slice<'_>, MOST_PIECES> {
        slices(&self.ports[port].sinks, lease)
    }

    /// The bytes that the disk has copied since the last call.
    pub(crate) fn copied(&mut self, disk: &dyn Disk) -> u64 {
        let now = disk.copied();
        now.wrapping_sub(core::mem::replace(&mut self.copied, now))
    }
}

fn slices<'a>(regions: &'a [Region], lease: &Lease) -> heapless::Vec<Slice<'a>, MOST_PIECES> {
    // The pieces lie in the regions.
    let slice =
        |piece: block::LentPiece| regions.get(piece.buffer)?.get(piece.offset..piece.offset + piece.len);
    lease.pieces().filter_map(slice).collect()
}

/// The bytes of a namespace's pool, of which a disk that lends needs few.
pub(crate) fn pool_of(disk: &dyn Disk, memory: usize) -> usize {
    if disk.memory().is_empty() { memory } else { (memory / 4).max(super::config::LEAST_MEMORY) }
}

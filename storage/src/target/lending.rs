//! Commands that use the disk's own memory in place of the pool's: a disk that lends it is read by
//! an RDMA Write from there, and what is written comes there by an RDMA Read. The CPU copies
//! nothing.
//!
//! A lease has the life of a command's memory. A Read gives its back when its response is sent, or
//! when its queue has ended: until then the NIC may read the memory once more. A Write commits its
//! lease when the RDMA Read is whole; a queue that ends before that leaves the blocks as they were.
//!
//! A disk may refuse to lend, since its bounds are reached: then the command takes memory of the
//! pool, of which each controller has its share, and the disk copies. So a host that takes no
//! responses keeps no other host from the disk.

use alloc::vec::Vec;
use core::ops::Range;

use block::{Disk, Lease, Loan};
use nvme::status::Status;
use platform::Privileged;
use rdma::{Access, CreateError, Domain, Region, Slice};

use super::commands::{HostData, Index};
use super::pool::MOST_PIECES;
use super::server::Target;
use super::task::Task;

/// The memory that a disk lends, as the NIC names it.
#[derive(Default)]
pub(crate) struct Lending {
    /// By its bus address: what requests read.
    sources: Vec<Region>,
    /// The same memory as the sink of RDMA Reads, which has to be registered.
    sinks: Vec<Region>,
    /// What the disk has copied, when it was looked at last.
    copied: u64,
}

impl Lending {
    /// Registers the memory of a disk, if it lends some.
    pub(crate) fn new(
        domain: &Domain,
        privileged: Privileged,
        disk: &dyn Disk,
    ) -> Result<Lending, CreateError> {
        let mut lending = Lending { copied: disk.copied(), ..Lending::default() };
        for buffer in disk.memory() {
            lending.sinks.push(domain.register(buffer.clone(), Access::empty())?);
            lending.sources.push(domain.direct_buffer(buffer, privileged));
        }
        Ok(lending)
    }

    /// Whether the disk lends anything.
    pub(crate) fn lends(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Asks the disk for the memory of blocks.
    fn lend(&self, disk: &dyn Disk, blocks: Range<u64>, loan: Loan) -> Option<Lease> {
        let lease = disk.lend(blocks, loan)?;
        // The disk may have grown since its memory was registered.
        if lease.pieces().all(|piece| piece.buffer < self.sources.len()) {
            return Some(lease);
        }
        disk.cancel(lease);
        None
    }

    /// What is lent, as requests name it that read it.
    pub(crate) fn slices(&self, lease: &Lease) -> heapless::Vec<Slice<'_>, MOST_PIECES> {
        slices(&self.sources, lease)
    }

    /// What is lent, as the sink of an RDMA Read.
    pub(crate) fn sinks(&self, lease: &Lease) -> heapless::Vec<Slice<'_>, MOST_PIECES> {
        slices(&self.sinks, lease)
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

impl Target {
    /// Goes on with a command whose data can come from the disk's own memory, or go there. False if
    /// it needs memory of the pool.
    pub(super) fn uses_lent_memory(&mut self, index: Index, place: usize) -> bool {
        let namespace = &self.subsystem.namespaces[place];
        if !namespace.lending.lends() {
            return false;
        }
        let entry = &mut self.commands[index];
        let (block, loan) = match (entry.task, entry.host) {
            (Task::Read { block, .. }, _) => (block, Loan::Read),
            // Data in the capsule are copied: to put them elsewhere first would not avoid that.
            (Task::Write { block, .. }, HostData::Memory { .. }) => (block, Loan::Write),
            _ => return false,
        };
        let blocks = u64::from(entry.host.len()) >> namespace.shift();
        let lease = namespace.lending.lend(&*namespace.disk, block..block + blocks, loan);
        let Some(lease) = lease else { return false };
        entry.lease = Some(lease);
        match loan {
            // The disk has nothing to do.
            Loan::Read => self.respond(index, Status::SUCCESS, 0),
            Loan::Write => self.fetch(index),
        }
        true
    }

    /// Counts what a disk has copied.
    pub(super) fn count_copied(&mut self, place: usize) {
        let namespace = &mut self.subsystem.namespaces[place];
        let copied = namespace.lending.copied(&*namespace.disk);
        self.statistics().has_copied(copied as usize);
    }

    /// Gives a command's lease back, if it has one.
    pub(super) fn give_lease(&mut self, index: Index) {
        let entry = &mut self.commands[index];
        if let (Some(lease), Some(place)) = (entry.lease.take(), entry.task.namespace()) {
            self.subsystem.namespaces[place].disk.cancel(lease);
        }
    }

    /// Has the disk take over what was brought. The lease comes back if it does not.
    pub(super) fn commit(&mut self, index: Index, place: usize, lease: Lease) -> Result<(), block::Submit> {
        let entry = &mut self.commands[index];
        let fua = matches!(entry.task, Task::Write { fua: true, .. });
        let namespace = &mut self.subsystem.namespaces[place];
        match namespace.disk.commit(lease, fua, u64::from(index.0)) {
            Ok(()) => {
                namespace.on_disk += 1;
                Ok(())
            }
            Err((error, lease)) => {
                entry.lease = Some(lease);
                Err(error)
            }
        }
    }
}

/// The bytes of a namespace's pool, of which a disk that lends needs few.
pub(crate) fn pool_of(disk: &dyn Disk, memory: usize) -> usize {
    if disk.memory().is_empty() { memory } else { (memory / 4).max(super::config::LEAST_MEMORY) }
}

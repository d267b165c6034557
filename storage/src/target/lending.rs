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

use block::{Lease, Loan};
use nvme::status::Status;

use super::commands::{HostData, Index};
use super::server::Target;
use super::task::Task;

impl Target {
    /// Goes on with a command whose data can come from the disk's own memory, or go there. False if
    /// it needs memory of the pool.
    pub(super) fn uses_lent_memory(&mut self, index: Index, place: usize) -> bool {
        let namespace = &self.subsystem.namespaces[place];
        let entry = &mut self.commands[index];
        if !namespace.lending.lends(entry.port) {
            return false;
        }
        let (block, loan) = match (entry.task, entry.host) {
            (Task::Read { block, .. }, _) => (block, Loan::Read),
            // Data in the capsule are copied: to put them elsewhere first would not avoid that.
            (Task::Write { block, .. }, HostData::Memory { .. }) => (block, Loan::Write),
            _ => return false,
        };
        let blocks = u64::from(entry.host.len()) >> namespace.shift();
        let lease = namespace.lending.lend(entry.port, &*namespace.disk, block..block + blocks, loan);
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

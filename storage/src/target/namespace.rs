//! Namespaces: disks as hosts see them. Each has memory of its own for the data of its commands, so
//! that a disk that stalls leaves the others theirs.

use alloc::sync::Arc;

use block::{Data, Disk, Geometry, Piece, Request, Submit};
use nvme::status::Status;
use platform::DmaBuffer;

use super::commands::Index;
use super::config::Export;
use super::lending::Lending;
use super::pool::{Pool, SMALL};
use super::shares::Shares;
use super::silence::Silence;
use super::task::Operation;

/// What commands of a namespace wait for.
pub(crate) struct Waiting;

impl Waiting {
    /// Room in the disk's queue.
    pub(crate) const ROOM: usize = 2;

    /// Memory of the kind that data of so many bytes take.
    pub(crate) fn memory(len: usize) -> usize {
        MEMORY[usize::from(len > SMALL)]
    }
}

/// The kinds of memory: small chunks and large ones.
pub(crate) const MEMORY: [usize; 2] = [0, 1];

/// A namespace.
pub(crate) struct Namespace {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) geometry: Geometry,
    /// Its identifier for all hosts and all times, a UUID.
    pub(crate) uuid: [u8; 16],
    pub(crate) pool: Pool,
    /// The disk's own memory, if it lends it.
    pub(crate) lending: Lending,
    /// What controllers have of the memory and the disk's queue, by [`Waiting`].
    pub(crate) shares: [Shares; 3],
    /// Requests that the disk has.
    pub(crate) on_disk: usize,
    /// Requests that the disk has finished.
    pub(crate) finished: u64,
    /// How long the disk has had requests and finished none.
    silence: Silence,
    pub(crate) presence: Presence,
}

/// Whether a namespace's disk is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It takes requests.
    Serving,
    /// It was given up, since it did not answer. It gets no requests before it has ended all that
    /// it has, so none of those follows a later one. The namespace stays active: hosts keep their
    /// block devices, and get errors meanwhile.
    Silent,
    /// It is no longer there. Hosts find the namespace inactive.
    Gone,
}

impl Namespace {
    /// A disk as a namespace, for so many controllers.
    pub(crate) fn new(export: &Export, pool: Pool, lending: Lending, controllers: usize) -> Namespace {
        Namespace {
            disk: export.disk.clone(),
            geometry: export.disk.geometry(),
            uuid: export.uuid,
            pool,
            lending,
            shares: core::array::from_fn(|_| Shares::new(controllers)),
            on_disk: 0,
            finished: 0,
            silence: Silence::default(),
            presence: Presence::Serving,
        }
    }

    /// How long the disk has had requests and finished none, in nanoseconds. To be called at each
    /// tick of the timer.
    pub(crate) fn silent_for(&mut self, now: u64) -> u64 {
        self.silence.lasts(self.on_disk > 0, self.finished, now)
    }

    /// Whether the disk takes requests.
    pub(crate) fn serves(&self) -> bool {
        self.presence == Presence::Serving
    }

    /// The status of commands for which the disk is not there. It is not the one of a namespace
    /// that does not exist: Linux takes that for a missing feature, and lets fsync succeed when a
    /// Flush gets it.
    pub(crate) fn refusal(&self) -> Option<Status> {
        match self.presence {
            Presence::Serving => None,
            Presence::Silent => Some(Status::NS_NOT_READY),
            Presence::Gone => Some(Status::INTERNAL_ERROR.dnr()),
        }
    }

    /// The logarithm of the block size.
    pub(crate) fn shift(&self) -> u32 {
        self.geometry.block_size.trailing_zeros()
    }

    /// Gives the disk a request for data in `memory`.
    pub(crate) fn submit(
        &mut self,
        command: Index,
        what: Operation,
        memory: Option<&Arc<DmaBuffer>>,
        pieces: &[Piece],
    ) -> Result<(), Submit> {
        let buffer = memory.unwrap_or(self.pool.memory.buffer());
        let data = Data { buffer, pieces };
        let request = match what {
            Operation::Read { block } => Request::Read { block, into: data },
            Operation::Write { block, fua } => Request::Write { block, from: data, fua },
            Operation::Flush => Request::Flush,
            Operation::Discard { block, blocks } => Request::Discard { block, blocks },
            Operation::WriteZeroes { block, blocks, may_discard } => {
                Request::WriteZeroes { block, blocks, may_discard }
            }
        };
        self.disk.submit(&request, u64::from(command.0))?;
        self.on_disk += 1;
        Ok(())
    }
}

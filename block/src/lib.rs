//! Disks: the trait [`Disk`], asynchronous requests of whole blocks, and what all disks check.
//!
//! A consumer submits requests with tokens of its choice and polls for their completions. When it
//! has nothing else to do, it arms the routine of [`Disk::watch`], and sleeps until the disk calls
//! it.
//!
//! | module | disk |
//! |---|---|
//! | [`ram`] | memory |
//! | [`view`] | another disk, with larger blocks or for reading only |
//! | [`split`] | no disk: handles of one, for several threads |
//! | `simulated` (feature `testing`) | a volatile cache, errors, stalls and losses of power, which a seed decides |
//!
//! It has no driver of a real disk (virtio disks are in `kernel`), no partitions and no file
//! system, and it serves no disk to other machines, which `storage` does.
//!
//! The crate is `no_std` and has no unsafe code. A disk keeps the memory of a request until the
//! request completes, so a consumer cannot release memory that a device still writes to.
#![no_std]

extern crate alloc;

mod geometry;
mod lend;
pub mod ram;
#[cfg(any(test, feature = "testing"))]
pub mod simulated;
mod size;
pub mod split;
#[cfg(test)]
mod testing;
pub mod view;
mod watch;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use platform::DmaBuffer;

pub use geometry::Geometry;
pub use lend::{Lease, LentPiece, Loan, MOST_LENT};

/// A piece of a request's memory: so many bytes of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the buffer it begins.
    pub offset: usize,
    /// Its length, which is not 0.
    pub len: usize,
}

/// The memory of a request: pieces of one buffer, in the order of the blocks.
///
/// A disk keeps a reference to the buffer until the request completes. Until then the consumer
/// must not change what is written, and what it sees of the memory of a read is undetermined.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    /// The buffer.
    pub buffer: &'a Arc<DmaBuffer>,
    /// The pieces. Each may have any length; together they are whole blocks.
    pub pieces: &'a [Piece],
}

/// What a disk is asked to do.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Reads blocks.
    Read {
        /// The first block.
        block: u64,
        /// Where their bytes go.
        into: Data<'a>,
    },
    /// Writes blocks.
    Write {
        /// The first block.
        block: u64,
        /// Their bytes.
        from: Data<'a>,
        /// Force Unit Access: when the request has completed, the blocks survive a loss of power.
        fua: bool,
    },
    /// Makes all writes durable that had completed before this request was submitted.
    Flush,
    /// Says that the contents of blocks are of no use any more. Afterwards they read as zeros, or
    /// as before.
    Discard {
        /// The first block.
        block: u64,
        /// How many, at least 1.
        blocks: u64,
    },
    /// Writes zeros.
    WriteZeroes {
        /// The first block.
        block: u64,
        /// How many, at least 1.
        blocks: u64,
        /// Whether the disk may give up the blocks' storage.
        may_discard: bool,
    },
}

/// Why a request was not carried out, or not completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The blocks are not all on the disk.
    OutOfRange,
    /// The disk takes no writes.
    ReadOnly,
    /// The disk cannot do this.
    Unsupported,
    /// The request's memory is no whole number of blocks, has an empty piece or one outside of the
    /// buffer, or more pieces or bytes than the disk takes. Or the request is for no block.
    Misaligned,
    /// The disk reports an error. Some of the blocks may have been written.
    Media,
    /// The disk is no longer there.
    Gone,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::OutOfRange => "outside of the disk",
            Fault::ReadOnly => "the disk is read-only",
            Fault::Unsupported => "the disk cannot do this",
            Fault::Misaligned => "the memory does not fit the disk's blocks",
            Fault::Media => "the disk reports an error",
            Fault::Gone => "the disk is gone",
        })
    }
}

impl core::error::Error for Fault {}

/// Why a request was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// The disk's queue is full. Try again after a completion.
    Busy,
    /// The disk will not start this request.
    Fault(Fault),
}

impl From<Fault> for Submit {
    fn from(fault: Fault) -> Submit {
        Submit::Fault(fault)
    }
}

impl fmt::Display for Submit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Submit::Busy => f.write_str("the disk's queue is full"),
            Submit::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for Submit {}

/// What happens to a disk beside the completion of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The disk has another number of blocks than before: it grew or shrank.
    Resized {
        /// How many it has now.
        blocks: u64,
    },
}

/// A disk.
///
/// Any thread may call it at any time, but no interrupt handler. A request that was submitted
/// completes exactly once. Requests that are under way at the same time may be carried out in any
/// order.
///
/// The owner of a disk may make it larger or smaller while it is in use. A request is checked
/// against the size at its submission; one that was submitted before the disk shrank, for blocks
/// that are gone, ends with an error. Blocks that a growth adds read as whatever the owner put
/// there.
pub trait Disk: Send + Sync {
    /// Sizes and abilities. Of these only `blocks` may change: [`Disk::event`] says when.
    fn geometry(&self) -> Geometry;

    /// Starts a request. [`Disk::poll`] hands over `token` when it has completed; the disk does not
    /// look at it. After an error nothing was started.
    ///
    /// A disk may begin with the work only at the next call of [`Disk::poll`] or [`Disk::arm`], so
    /// that a device gets one notification for all requests since the last one.
    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit>;

    /// Hands over completions to `into`, at most `most`, and returns how many.
    ///
    /// `into` may call the disk; it may submit the next request.
    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize;

    /// What has happened since the last call. An event that was not taken is replaced by a later
    /// one of its kind, so one call after each round of polls sees the disk as it is.
    ///
    /// A disk may notice an event in [`Disk::poll`] only. The routine of [`Disk::watch`] is called
    /// for an event as for a completion. A disk to which nothing happens has no events.
    fn event(&self) -> Option<Event> {
        None
    }

    /// Sets the routine that the disk calls after it was armed, when completions or an event may be
    /// ready. It replaces the former one; `None` removes it. When this returns, the former one runs
    /// no more, unless another thread is in [`Disk::submit`] or makes the disk larger or smaller.
    ///
    /// The disk may call it in an interrupt handler, or in a consumer's call. The routine wakes a
    /// thread, and does not call the disk.
    fn watch(&self, routine: Option<Arc<dyn Fn() + Send + Sync>>);

    /// Arms the routine: the disk calls it once, as soon as a completion or an event may be ready,
    /// and not again before it is armed again. Returns true if one may be ready already that no
    /// poll has seen. So a consumer that has found nothing arms, and sleeps if this returns false;
    /// otherwise it polls. A consumer that takes no events is not kept awake by them.
    ///
    /// A consumer that polls again and again does not arm: then no interrupt disturbs it.
    fn arm(&self) -> bool;

    /// The memory that the disk lends, which a consumer maps for its device once. More may be
    /// appended when the disk grows; a lease of memory that the consumer has not mapped is to be
    /// cancelled. A disk that has none lends nothing.
    fn memory(&self) -> Vec<Arc<DmaBuffer>> {
        Vec::new()
    }

    /// Lends the memory of blocks. The disk may refuse at any time, since it has no more to lend or
    /// the blocks do not suit it: then the consumer submits a request with memory of its own.
    ///
    /// What a [`Loan::Read`] lends keeps its contents until it is given back: a device may read it
    /// again and again. What a [`Loan::Write`] lends is seen by nobody before [`Disk::commit`].
    fn lend(&self, _blocks: Range<u64>, _loan: Loan) -> Option<Lease> {
        None
    }

    /// Starts a request that makes what a [`Loan::Write`] has brought the contents of its blocks,
    /// as [`Request::Write`] does, and completes as that. Each block has its old contents or its
    /// new ones, at any time and for every reader, and after a loss of power. If the request was
    /// not started, the lease comes back.
    fn commit(&self, lease: Lease, _fua: bool, _token: u64) -> Result<(), (Submit, Lease)> {
        Err((Submit::Fault(Fault::Unsupported), lease))
    }

    /// Takes back what was lent. Blocks that were to be written are as before.
    fn cancel(&self, _lease: Lease) {}

    /// One of several queues of the disk, by number from 0: the same blocks, with room,
    /// completions, events and a routine of its own, for a thread that shares nothing with those of
    /// the other queues ([`split`](mod@split)). The first one is the disk itself. `None`: there are
    /// not so many; a disk with one queue may have none by number.
    ///
    /// Nothing orders requests of different queues that are under way at the same time. A flush
    /// makes durable what had completed before it was submitted, by whichever queue.
    fn queue(&self, _number: usize) -> Option<Arc<dyn Disk>> {
        None
    }

    /// Whether the blocks survive the machine: it is the same disk after a restart.
    fn is_durable(&self) -> bool {
        true
    }

    /// How many bytes the disk has copied by the CPU so far: 0 if a device brings them.
    fn copied(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn every_fault_has_words_of_its_own() {
        use Fault::*;
        let faults = [OutOfRange, ReadOnly, Unsupported, Misaligned, Media, Gone];
        let words: std::collections::BTreeSet<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), faults.len());
        assert_eq!(Submit::from(Gone).to_string(), "the disk is gone");
        assert_eq!(Submit::Busy.to_string(), "the disk's queue is full");
    }
}

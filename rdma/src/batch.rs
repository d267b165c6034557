//! Requests that are posted together: one lock and one doorbell for all of them.

use core::hint::cold_path;
use core::marker::PhantomData;

use kernel_agent::{NoBatch, SendBatch, Transfer};

use crate::endpoint::Endpoint;
use crate::error::PostError;
use crate::memory::{OwnPd, WorkQueue};
use crate::work::{Local, Work};

/// Requests of one endpoint that are not posted yet: see [`Endpoint::batch`]. They name memory that
/// lives for `'m`, which is longer than the batch takes: only a request that is posted keeps its
/// memory by itself.
///
/// ```compile_fail,E0505
/// # use ferrovia_rdma::{Endpoint, Region, RemoteMemory, Work};
/// fn gone(endpoint: &Endpoint, region: Region, to: RemoteMemory) {
///     let _ = endpoint.batch(move |batch| {
///         batch.post(Work::write(region.slice(..), to))?;
///         drop(region);
///         Ok(())
///     });
/// }
/// ```
pub struct Batch<'a, 'm> {
    sends: SendBatch<'a>,
    handle: u64,
    domain: &'a OwnPd,
    memory: PhantomData<fn(&'m ())>,
}

enum NotPosted {
    /// The queue was or became closed to posts: the queue pair says why.
    Closed,
    Request(PostError),
}

impl From<NoBatch> for NotPosted {
    fn from(_: NoBatch) -> NotPosted {
        NotPosted::Closed
    }
}

impl<'m> Batch<'_, 'm> {
    /// Adds a Send, RDMA Write or RDMA Read without immediate data.
    #[inline(always)]
    pub fn post(&mut self, work: Work<'m>) -> Result<(), PostError> {
        let (Some(transfer), None) = (work.kind.transfer(work.flags, work.id, 0), work.immediate) else {
            return Err(PostError::NotInBatch);
        };
        if let Local::One(slice) = work.local
            && slice.memory.is_first_used_by(self.handle, WorkQueue::Send)
        {
            // Once more at the end of the ring's memory.
            for is_again in [false, true] {
                if self.sends.write_single(&transfer, || slice.segment(self.domain)).is_some() {
                    return Ok(());
                }
                cold_path();
                if !is_again {
                    self.sends = self.sends.renewed();
                }
            }
        }
        cold_path();
        // By value there and back: so the compiler can keep the batch in registers.
        let (sends, written) = write(self.sends, (self.handle, self.domain), transfer, work.local);
        self.sends = sends;
        written
    }
}

/// Writes any transfer, or finds the reason why it cannot be written. Returns the batch that goes
/// on.
#[inline(never)]
fn write<'a>(
    mut sends: SendBatch<'a>,
    (handle, domain): (u64, &OwnPd),
    transfer: Transfer,
    local: Local<'_>,
) -> (SendBatch<'a>, Result<(), PostError>) {
    let slices = local.slices();
    slices.iter().for_each(|slice| slice.memory.used_by(handle, WorkQueue::Send));
    if let [slice] = slices
        && sends.write_single(&transfer, || slice.segment(domain)).is_some()
    {
        return (sends, Ok(()));
    }
    // One limit for all operations.
    let written = sends.write(|limits| limits.send, &transfer, slices, |slice| slice.segment(domain));
    (sends, written.map_err(PostError::from))
}

impl Endpoint {
    /// Posts several requests together, all or none: those that `write` adds, unless it fails.
    /// The consumer takes their completions by [`Queue::poll`](crate::Queue::poll). Meanwhile posts
    /// of other threads fail with [`PostError::Busy`].
    #[inline(always)]
    pub fn batch<'m, R>(
        &self,
        write: impl FnOnce(&mut Batch<'_, 'm>) -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        let (slot, handle) = self.inner.slot();
        let posted = slot.batch(handle, |sends| {
            let mut batch = Batch { sends, handle, domain: self.pd(), memory: PhantomData };
            let result = write(&mut batch).map_err(NotPosted::Request)?;
            Ok((result, batch.sends.written()))
        });
        posted.map_err(|why| match why {
            NotPosted::Request(error) => error,
            NotPosted::Closed => self.inner.qp.why_no_batch().into(),
        })
    }
}

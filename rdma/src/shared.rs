//! Receives that many endpoints share: one queue of buffers, from which each takes one for each
//! message.
//!
//! A server with many clients so needs buffers for the messages that come at a time, and not for
//! each client as many as it might send. A message holds its buffer until it is dropped; then the
//! buffer is posted again.
//!
//! Locks: the SRQ's in the agent.

use alloc::sync::Arc;
use alloc::vec::Vec;

use core::sync::atomic::AtomicU32;
use kernel_agent::{Shadow, Srq};
use platform::heap;
use platform::sync::atomic::{AtomicU64, Ordering};

use crate::completion::{Completion, tag};
use crate::error::CreateError;
use crate::memory::{Domain, Region, Slice};

/// The bit of a buffer's word that says that a message holds the buffer; the rest of the word
/// counts how often the buffer was posted.
const TAKEN: u64 = 1 << 32;

/// The number that the next pool gets, as a tag has it. Of `core`: the model checker cannot have
/// statics.
static NEXT: AtomicU32 = AtomicU32::new(0);

struct Inner {
    /// Before the memory: what the device may still write is freed last.
    srq: OwnSrq,
    memory: Region,
    len: usize,
    /// The number by which completions name the pool.
    pool: u32,
    /// A word for each buffer.
    buffers: Vec<AtomicU64>,
}

struct OwnSrq(Arc<Srq>);

impl Drop for OwnSrq {
    fn drop(&mut self) {
        // No endpoint uses it: this fails only if the device is dead, or if it was closed before.
        let _ = self.0.destroy();
    }
}

/// Receives that endpoints of one domain share, with their memory. A clone is the same.
#[derive(Clone)]
pub struct SharedReceives(Arc<Inner>);

impl SharedReceives {
    pub(crate) fn new(domain: &Domain, count: u32, len: usize) -> Result<SharedReceives, CreateError> {
        let all =
            (count as usize).checked_mul(len).ok_or(CreateError::OutOfRange("memory of the receives"))?;
        SharedReceives::in_memory(domain, domain.region(all)?, len)
    }

    pub(crate) fn in_memory(
        domain: &Domain,
        memory: Region,
        len: usize,
    ) -> Result<SharedReceives, CreateError> {
        let count = memory.len().checked_div(len).and_then(|count| u32::try_from(count).ok());
        let count = count.ok_or(CreateError::OutOfRange("length of the receives"))?;
        if memory.slice(..0).segment(&domain.0.pd).is_none() {
            return Err(CreateError::Foreign);
        }
        let mut buffers = Vec::new();
        buffers.try_reserve_exact(count as usize)?;
        buffers.extend((0..count).map(|_| AtomicU64::new(0)));
        heap::room_for_arc::<Inner>()?;
        let pool = NEXT.fetch_add(8, core::sync::atomic::Ordering::Relaxed) & tag::POOL;
        let srq = domain.nic().inner().client()?.create_srq(domain.pd(), count, 1, 0, 0)?;
        let receives = SharedReceives(Arc::new(Inner { srq: OwnSrq(srq), memory, len, pool, buffers }));
        (0..count).for_each(|index| receives.0.post(index, 0));
        Ok(receives)
    }

    pub(crate) fn srq(&self) -> &Arc<Srq> {
        &self.0.srq.0
    }

    pub(crate) fn domain(&self) -> &Domain {
        self.0.memory.domain()
    }

    /// Ends it, unless something else uses it.
    pub(crate) fn end(self) -> Option<Result<(), kernel_agent::Error>> {
        Some(Arc::into_inner(self.0)?.srq.0.destroy())
    }

    /// How many buffers there are.
    pub fn count(&self) -> u32 {
        self.0.buffers.len() as u32
    }

    /// The message of a Receive that has completed with success: once for each completion. `None`
    /// for another completion, and for one whose message was taken before.
    ///
    /// Pass it every completion of an endpoint that shares: it posts the buffer of a Receive that
    /// failed again, too. An RDMA Write with immediate data takes a buffer and puts nothing there,
    /// so its message is empty.
    pub fn message(&self, completion: &Completion) -> Option<Message> {
        let (index, times) = (completion.id() as u32, completion.id() >> 32);
        let buffer = self.0.buffers.get(index as usize).filter(|_| completion.is_of(self.0.pool))?;
        buffer.compare_exchange(times, times | TAKEN, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let mut message = Message { receives: self.clone(), index, times, len: 0 };
        // If it failed, the drop posts the buffer again.
        message.len = completion.result().ok()?;
        Some(message)
    }
}

impl Inner {
    fn slice(&self, index: u32) -> Option<Slice<'_>> {
        let begin = (index as usize).checked_mul(self.len)?;
        self.memory.get(begin..begin.checked_add(self.len)?)
    }

    fn post(&self, index: u32, times: u64) {
        let Some(slice) = self.slice(index) else { return };
        let shadow =
            Shadow { cookie: u64::from(index) | times << 32, data: tag::RECEIVE | tag::SHARED | self.pool };
        let segment = |slice: &Slice<'_>| slice.segment(slice.memory.pd());
        // There is room for all buffers, so this fails only if the device is dead.
        let _ = self.srq.0.post_receive(false, &[slice], segment, shadow);
    }
}

/// A message in a shared buffer, which is posted again when this is dropped.
pub struct Message {
    receives: SharedReceives,
    index: u32,
    times: u64,
    len: usize,
}

impl Message {
    /// Where the message is: a request may name it, to answer from the buffer, for example. The
    /// request has to end before this is dropped, or the next message may overwrite what it sends.
    pub fn slice(&self) -> Slice<'_> {
        let slice = self.receives.0.slice(self.index).and_then(|buffer| buffer.get(..self.len));
        // A buffer is within the memory, and its message within the buffer.
        slice.unwrap_or_else(|| self.receives.0.memory.slice(..0))
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let times = self.times.wrapping_add(1) & (TAKEN - 1);
        if let Some(buffer) = self.receives.0.buffers.get(self.index as usize) {
            buffer.store(times, Ordering::Release);
        }
        self.receives.0.post(self.index, times);
    }
}

//! A completion queue of virtual interfaces, as a queue of completions.
//!
//! An entry of the NIC's queue names a virtual interface and one of its work queues. The completion
//! itself is in the oldest descriptor of that work queue. Each descriptor has one entry, also one
//! that is to have no completion, so an entry may lead to nothing.
//!
//! The NIC's queue has room for an entry of each descriptor that can be on the work queues that
//! feed it. So it never overflows, whatever consumers do.
//!
//! Locks: `changes` (sleeps; the device's commands), then `members` (spins), then the locks of a
//! virtual interface's queue. `sizes` spins and is a leaf.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use kernel_agent::{Completion, Error, ViCq};
use platform::sync::Mutex;
use platform::{Platform, SleepLock, heap};

use super::endpoint::DescriptorEndpoint;

/// Numbers of entries.
#[derive(Clone, Copy)]
struct Sizes {
    /// The consumer's wish.
    asked: u32,
    /// Those that the endpoints which feed the queue can cause.
    reserved: u32,
}

/// See the module's documentation.
pub struct DescriptorQueue {
    cq: Arc<ViCq>,
    /// The endpoints that feed it, by handle.
    members: Mutex<BTreeMap<u64, Arc<DescriptorEndpoint>>>,
    sizes: Mutex<Sizes>,
    changes: SleepLock,
}

/// What an insertion into the map may allocate.
const NODES: usize = 4096;

impl DescriptorQueue {
    /// A queue on this one of the NIC's, whose consumer asked for so many events.
    pub fn new(cq: Arc<ViCq>, asked: u32) -> DescriptorQueue {
        let sizes = Mutex::new(Sizes { asked, reserved: 0 });
        DescriptorQueue { cq, members: Mutex::new(BTreeMap::new()), sizes, changes: SleepLock::new() }
    }

    /// The NIC's queue.
    pub fn cq(&self) -> &Arc<ViCq> {
        &self.cq
    }

    /// The number of events for which the consumer asked.
    pub fn asked(&self) -> usize {
        self.sizes.lock().asked as usize
    }

    /// Makes room for so many descriptors. Blocks for the device.
    pub fn reserve(&self, platform: &Arc<dyn Platform>, count: u32) -> Result<(), Error> {
        let _changes = self.changes.lock(platform);
        let Sizes { asked, reserved } = *self.sizes.lock();
        let reserved = reserved.checked_add(count).ok_or(Error::OutOfRange("entries"))?;
        let needed = asked.max(reserved);
        if needed > self.cq.entries() {
            self.cq.resize(needed)?;
        }
        self.sizes.lock().reserved += count;
        Ok(())
    }

    /// Gives room back.
    pub fn give_back(&self, count: u32) {
        self.sizes.lock().reserved -= count;
    }

    /// Makes room for another number of events. Blocks for the device.
    pub fn resize(&self, platform: &Arc<dyn Platform>, asked: u32) -> Result<(), Error> {
        let _changes = self.changes.lock(platform);
        let reserved = self.sizes.lock().reserved;
        self.cq.resize(asked.max(reserved))?;
        self.sizes.lock().asked = asked;
        Ok(())
    }

    /// Adds an endpoint, in the place of one with the same handle.
    pub(super) fn join(&self, handle: u64, ep: &Arc<DescriptorEndpoint>) -> Result<(), Error> {
        heap::room(NODES)?;
        let former = self.members.lock().insert(handle, ep.clone());
        drop(former);
        Ok(())
    }

    /// Removes an endpoint, unless another one has its place.
    pub(super) fn leave(&self, handle: u64, ep: &DescriptorEndpoint) {
        let mut members = self.members.lock();
        if members.get(&handle).is_some_and(|member| core::ptr::eq(&**member, ep)) {
            let removed = members.remove(&handle);
            drop(members);
            drop(removed);
        }
    }

    /// Takes the oldest completion. One thread at a time: a completion is taken off in two steps.
    pub fn next(&self) -> Option<Completion> {
        // At most one turn for each entry: the device may write as fast as this loop reads.
        for _ in 0..self.cq.entries() {
            let (handle, side) = self.cq.take()?;
            let members = self.members.lock();
            if let Some(Some(completion)) = members.get(&handle).and_then(|ep| ep.take(side)) {
                return Some(completion);
            }
        }
        None
    }
}

//! Memory that the device uses, and when it returns to the platform.
//!
//! A device that died in the middle of a command may still write to its rings. So memory returns to
//! the platform only when its [`Lease`] has ended: the device answered the command that destroys
//! the object, or refused the command that creates it, or acknowledged a reset. Memory that is
//! dropped earlier waits in the [`Quarantine`]. If the device never confirms a reset, the memory is
//! abandoned: nothing else is safe.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use platform::sync::Mutex;
use platform::{DmaBuffer, Platform, heap};

use crate::Error;

/// Dropped memory that the device may still write.
pub(crate) struct Quarantine {
    reset: AtomicBool,
    held: Mutex<Vec<Held>>,
}

/// Places for the rings of an agent's own queues: it can be closed without memory.
const OWN: usize = 16;

/// A buffer in the quarantine.
enum Held {
    Own(DmaBuffer),
    /// A consumer's buffer: the reference keeps it alive.
    Lent(Arc<DmaBuffer>),
}

impl Held {
    /// Sees to it that the memory is never used again.
    fn abandon(self) {
        match self {
            Held::Own(buffer) => buffer.abandon(),
            Held::Lent(buffer) => buffer.abandon(),
        }
    }
}

impl Quarantine {
    pub(crate) fn new() -> Result<Arc<Quarantine>, Error> {
        let mut held = Vec::new();
        held.try_reserve_exact(OWN).map_err(|_| Error::OutOfMemory)?;
        let quarantine = Quarantine { reset: AtomicBool::new(false), held: Mutex::new(held) };
        heap::arc(quarantine).map_err(|_| Error::OutOfMemory)
    }

    /// Releases all memory: the device acknowledged a reset, so it uses none.
    pub(crate) fn release(&self) {
        self.reset.store(true, Ordering::Release);
        let held = core::mem::take(&mut *self.held.lock());
        drop(held);
    }

    pub(crate) fn is_released(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }

    /// How many buffers wait.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().len()
    }

    /// Keeps a consumer's buffer, whose address the device has by a region.
    pub(crate) fn keep(&self, buffer: Arc<DmaBuffer>) {
        self.take(Held::Lent(buffer));
    }

    fn take(&self, buffer: Held) {
        let mut held = self.held.lock();
        // Read under the lock: a release between the read and the push would leave the buffer
        // behind.
        if self.reset.load(Ordering::Acquire) {
            drop(held);
            drop(buffer);
        } else if held.try_reserve(1).is_ok() {
            held.push(buffer);
        } else {
            drop(held);
            // Without a place to wait for the reset, nothing else is safe.
            buffer.abandon();
        }
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        core::mem::take(&mut *self.held.lock()).into_iter().for_each(Held::abandon);
    }
}

/// The time in which the device uses an object's memory. Clones are one lease.
#[derive(Clone)]
pub struct Lease(Arc<LeaseState>);

struct LeaseState {
    running: AtomicBool,
    quarantine: Arc<Quarantine>,
}

impl Lease {
    /// A lease that has not started.
    pub(crate) fn new(quarantine: &Arc<Quarantine>) -> Result<Lease, Error> {
        let state = LeaseState { running: AtomicBool::new(false), quarantine: quarantine.clone() };
        heap::arc(state).map(Lease).map_err(|_| Error::OutOfMemory)
    }

    /// Starts the lease. To be called before the device gets to know the memory's address.
    pub fn start(&self) {
        self.0.running.store(true, Ordering::Release);
    }

    /// Ends the lease: the device is known to be done with the memory.
    pub fn end(&self) {
        self.0.running.store(false, Ordering::Release);
    }

    /// Starts the lease with a command that names the memory to the device; a command that the
    /// device refuses ends it.
    pub(crate) fn start_with<T>(&self, command: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.start();
        let result = command();
        if let Err(Error::Command(_)) = result {
            self.end();
        }
        result
    }

    fn is_over(&self) -> bool {
        !self.0.running.load(Ordering::Acquire) || self.0.quarantine.reset.load(Ordering::Acquire)
    }
}

/// A buffer that the device uses while its lease lasts.
pub struct DeviceMemory {
    buffer: Option<DmaBuffer>,
    lease: Lease,
}

impl DeviceMemory {
    /// Allocates zeroed memory of `len` bytes.
    pub(crate) fn new(
        platform: &Arc<dyn Platform>,
        len: usize,
        align: usize,
        lease: &Lease,
    ) -> Result<DeviceMemory, Error> {
        Ok(DeviceMemory { buffer: Some(DmaBuffer::new(platform, len, align)?), lease: lease.clone() })
    }

    /// The buffer.
    pub fn buffer(&self) -> &DmaBuffer {
        self.buffer.as_ref().expect("taken only by drop")
    }

    /// The lease.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            if self.lease.is_over() {
                drop(buffer);
            } else {
                self.lease.0.quarantine.take(Held::Own(buffer));
            }
        }
    }
}

//! Memory that the device may be using, and when it may be given back.
//!
//! A device that died with a command half done may still write to the rings it was given. So memory goes back to the
//! platform only when its [`Lease`] has ended: the device answered the command that destroys the object, or
//! refused the one that creates it, or acknowledged a reset. Memory that is dropped before waits in the
//! [`Quarantine`]; if no reset is ever confirmed it is leaked, since nothing else is safe.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use platform::sync::Mutex;
use platform::{DmaBuffer, Platform};

use crate::Error;

/// Where dropped memory waits that a device may still write.
pub(crate) struct Quarantine {
    reset: AtomicBool,
    held: Mutex<Vec<Held>>,
}

/// Memory that waits.
enum Held {
    Own(DmaBuffer),
    /// A consumer's: it stays alive as long as it waits here.
    Lent(Arc<DmaBuffer>),
}

impl Quarantine {
    pub(crate) fn new() -> Arc<Quarantine> {
        Arc::new(Quarantine { reset: AtomicBool::new(false), held: Mutex::new(Vec::new()) })
    }

    /// The device acknowledged a reset: it uses nothing any more.
    pub(crate) fn release(&self) {
        self.reset.store(true, Ordering::Release);
        let held = core::mem::take(&mut *self.held.lock());
        drop(held);
    }

    pub(crate) fn is_released(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }

    /// Buffers that wait.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().len()
    }

    /// As for memory of our own, of which the device was told by a region.
    pub(crate) fn keep(&self, buffer: Arc<DmaBuffer>) {
        self.take(Held::Lent(buffer));
    }

    fn take(&self, buffer: Held) {
        let mut held = self.held.lock();
        // Looked at under the lock: a release in between would leave the buffer behind.
        if self.reset.load(Ordering::Acquire) {
            drop(held);
            drop(buffer);
        } else {
            held.push(buffer);
        }
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        for buffer in core::mem::take(&mut *self.held.lock()) {
            match buffer {
                Held::Own(buffer) => core::mem::forget(buffer),
                Held::Lent(buffer) => core::mem::forget(buffer),
            }
        }
    }
}

/// The time for which the device uses an object's memory.
#[derive(Clone)]
pub struct Lease(Arc<LeaseState>);

struct LeaseState {
    running: AtomicBool,
    quarantine: Arc<Quarantine>,
}

impl Lease {
    /// A lease that has not begun.
    pub(crate) fn new(quarantine: &Arc<Quarantine>) -> Lease {
        Lease(Arc::new(LeaseState { running: AtomicBool::new(false), quarantine: quarantine.clone() }))
    }

    /// The device is about to be told of the memory.
    pub fn start(&self) {
        self.0.running.store(true, Ordering::Release);
    }

    /// The device is known to be done with the memory.
    pub fn end(&self) {
        self.0.running.store(false, Ordering::Release);
    }

    /// Begins with a command that tells the device of the memory, and does not go on if the device refuses it.
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

/// A buffer that the device uses for as long as its lease lasts.
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

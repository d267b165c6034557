//! Virtio block devices: [`open`] makes a [`block::Disk`] of a device that was found.
//!
//! The queue is the one of the crate `virtio-drivers`. Its own driver for disks has 16 descriptors,
//! waits for flushes and knows no discard; this one has up to 1,024, waits for nothing, and
//! allocates nothing for a request. The crate's indirect descriptors would take an allocation for
//! each request, so every piece takes a descriptor of the queue.
//!
//! How a device is reached is another file's matter: on PCI it is [`crate::pci`]'s, and a test
//! plays the device by itself.

mod blk;
mod hal;
mod layout;
mod pieces;
mod requests;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

use block::Disk;
pub use nic_hal::InterruptHandler;
use platform::{OutOfMemory, Platform};
use virtio_drivers::transport::{DeviceStatus, Transport};

use blk::Blk;
use requests::QUEUE;

/// A virtio device that the kernel can reach.
///
/// [`Transport::queue_set`] connects the queue with vector [`COMPLETIONS`], and changes of the
/// configuration with [`CHANGES`], if there is one.
pub trait Device: Transport + Send {
    /// What the log calls it.
    fn name(&self) -> &str;

    /// Whether the device has accepted the vectors.
    fn has_vectors(&self) -> bool;

    /// How a queue that was set is notified. It works until the device is dropped.
    fn notifier(&self, queue: u16) -> Notifier;
}

/// Tells a device that a queue has changed.
pub type Notifier = Box<dyn Fn() + Send + Sync>;

/// The interrupt vectors of a device.
pub trait Vectors: Send + Sync {
    /// Replaces the handler of a vector. `None` masks it; what comes meanwhile is delivered after
    /// the next handler was set. When it returns, the former handler runs no more. False if there
    /// is no such vector.
    fn set(&self, vector: u16, handler: Option<InterruptHandler>) -> bool;
}

/// The vector of the queue.
pub const COMPLETIONS: u16 = 0;
/// The vector of changes of the configuration.
pub const CHANGES: u16 = 1;

/// Why a device is no disk for this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It does not end a reset.
    Reset,
    /// It does not speak virtio 1.
    Version,
    /// It refuses to work with the features that the driver takes.
    Refusal {
        /// What it offers, as bits.
        offered: u64,
        /// What the driver takes of it.
        taken: u64,
    },
    /// Its queue has fewer descriptors than the driver needs.
    Queue,
    /// Its configuration makes no sense.
    Config,
    /// It has no interrupt vector, or the kernel has none left.
    Vectors,
    /// There is no memory for its queue.
    OutOfMemory,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unusable::Reset => "it does not end its reset",
            Unusable::Version => "it does not speak virtio 1",
            Unusable::Refusal { offered, taken } => {
                return write!(
                    f,
                    "it offers the features {offered:#x} and refuses to work with {taken:#x} of them, \
                     which is all that the driver knows"
                );
            }
            Unusable::Queue => "its queue has fewer than 8 descriptors; give it more (QEMU: queue-size)",
            Unusable::Config => "its configuration makes no sense",
            Unusable::Vectors => "there is no interrupt vector for it",
            Unusable::OutOfMemory => "there is no memory for its queue",
        })
    }
}

impl From<OutOfMemory> for Unusable {
    fn from(OutOfMemory: OutOfMemory) -> Unusable {
        Unusable::OutOfMemory
    }
}

/// Brings a block device up, with as long a queue as it allows.
pub fn open<T: Device + 'static>(
    platform: &Arc<dyn Platform>,
    mut device: T,
    vectors: Arc<dyn Vectors>,
) -> Result<Arc<dyn Disk>, Unusable> {
    // The firmware may have used the device, with a shorter queue.
    device.set_status(DeviceStatus::empty());
    if !device.get_status().is_empty() {
        return Err(Unusable::Reset);
    }
    Ok(match device.max_queue_size(QUEUE) {
        1024.. => Arc::new(Blk::<T, 1024>::new(platform, device, vectors)?),
        256.. => Arc::new(Blk::<T, 256>::new(platform, device, vectors)?),
        64.. => Arc::new(Blk::<T, 64>::new(platform, device, vectors)?),
        8.. => Arc::new(Blk::<T, 8>::new(platform, device, vectors)?),
        _ => return Err(Unusable::Queue),
    })
}

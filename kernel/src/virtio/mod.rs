//! Virtio block devices: [`open`] makes a [`block::Disk`] of a device that was found.
//!
//! A device may have several queues. The disk then has as many ([`block::Disk::queue`]), each with
//! memory, a lock, and completions of its own, so that threads with a queue each share nothing. The
//! first one is the disk itself.
//!
//! A queue is the one of the crate `virtio-drivers`. Its own driver for disks has 16 descriptors,
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
use layout::{Config, Features};

/// A virtio device that the kernel can reach.
pub trait Device: Transport + Send {
    /// What the log calls it.
    fn name(&self) -> &str;

    /// Connects a queue that is not set yet with an interrupt vector. False if the device refuses:
    /// then the queue has none.
    fn connect(&mut self, queue: u16, vector: u16) -> bool;

    /// The same for changes of the configuration.
    fn connect_changes(&mut self, vector: u16) -> bool;

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

/// The vector of the first queue, and of those that have none of their own.
pub const COMPLETIONS: u16 = 0;
/// The vector of changes of the configuration.
pub const CHANGES: u16 = 1;

/// The vector of a queue, if it has one of its own.
pub const fn own_vector(queue: u16) -> u16 {
    if queue == FIRST { COMPLETIONS } else { queue + CHANGES }
}

/// The first queue, which every device has.
const FIRST: u16 = 0;
/// The most queues of a disk.
pub const MOST_QUEUES: usize = 16;
/// The most descriptors of all queues of a disk: more queues have fewer each.
const MOST_DESCRIPTORS: usize = 4096;
/// What a queue takes of the memory, at most: rings, and tables for its requests.
pub const QUEUE_MEMORY: usize = 160 << 10;

/// What a disk may have of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Queues. It gets one in any case, and no more than [`MOST_QUEUES`].
    pub queues: usize,
    /// Interrupt vectors for the queues behind the first one. Those that get none share
    /// [`COMPLETIONS`] with the first.
    pub vectors: usize,
}

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
    /// Its first queue has fewer descriptors than the driver needs.
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
            Unusable::OutOfMemory => "there is no memory for its first queue",
        })
    }
}

impl From<OutOfMemory> for Unusable {
    fn from(OutOfMemory: OutOfMemory) -> Unusable {
        Unusable::OutOfMemory
    }
}

/// Brings a block device up, with as many and as long queues as it has, and as its share and the
/// bounds of this driver allow.
///
/// A device of which only the first queues can be used is a disk with so many.
pub fn open<T: Device + 'static>(
    platform: &Arc<dyn Platform>,
    mut device: T,
    vectors: Arc<dyn Vectors>,
    share: Share,
) -> Result<Arc<dyn Disk>, Unusable> {
    // The firmware may have used the device, with a shorter queue.
    device.set_status(DeviceStatus::empty());
    if !device.get_status().is_empty() {
        return Err(Unusable::Reset);
    }
    let features = device.begin_init(Features::all());
    if !features.contains(Features::VERSION_1) {
        return Err(Unusable::Version);
    }
    if !device.get_status().contains(DeviceStatus::FEATURES_OK) {
        let offered = device.read_device_features();
        return Err(Unusable::Refusal { offered, taken: features.bits() });
    }
    let config = Config::read(&device, features).ok_or(Unusable::Config)?;
    if features.contains(Features::MQ) && config.queues == 0 {
        log::warn!("{} says that it has no queue; it is taken to have one", device.name());
    }
    let queues = usize::from(config.queues).min(share.queues).clamp(1, MOST_QUEUES);
    let share = Share { queues, ..share };
    let longest = device.max_queue_size(FIRST) as usize;
    Ok(match longest.min(MOST_DESCRIPTORS / queues) {
        1024.. => Blk::<T, 1024>::open(platform, device, (features, config), vectors, share)?,
        256.. => Blk::<T, 256>::open(platform, device, (features, config), vectors, share)?,
        64.. => Blk::<T, 64>::open(platform, device, (features, config), vectors, share)?,
        8.. => Blk::<T, 8>::open(platform, device, (features, config), vectors, share)?,
        _ => return Err(Unusable::Queue),
    })
}

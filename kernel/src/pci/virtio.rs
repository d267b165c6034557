//! Virtio devices on PCI: finds the disks, and reaches their registers, queues and interrupts.
//! (Virtual I/O Device 1.2, section 4.1.)
//!
//! Capabilities of the function say where its structures lie in its BARs. A transitional device,
//! one that also has the interface of before virtio 1, is used by its new one.
#![expect(unsafe_code, reason = "device registers")]

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::ptr::NonNull;
use core::time::Duration;

use block::Disk;
use nic_hal::InterruptHandler;
use platform::Platform;
use spin::Once;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr};
use volatile::VolatilePtr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::config::{Bars, Function};
use super::msix::Msix;
use crate::memory::{self, Cache};
use crate::virtio::{self, Device, Notifier, Share, Vectors};
use crate::{clock, cpu, interrupts};

/// The vendor of virtio devices.
const VENDOR: u16 = 0x1af4;
/// A block device that has no interface of before virtio 1: its number as a PCI device, the last
/// part of which is its kind.
const BLOCK: u16 = 0x1042;
/// The numbers of devices that have the former interface, and perhaps the new one as well. Their
/// kind is their number as a subsystem (virtio 1.2, 4.1.2.1 and 4.1.2.3).
const TRANSITIONAL: RangeInclusive<u16> = 0x1000..=0x103f;
/// The kind of block devices.
const BLOCK_KIND: u16 = 2;

/// Kinds of structures.
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;

/// How long a reset may take.
const RESET_TIME: Duration = Duration::from_secs(1);

/// Offsets in the common structure.
mod common {
    pub(super) const DEVICE_FEATURE_SELECT: usize = 0;
    pub(super) const DEVICE_FEATURE: usize = 4;
    pub(super) const DRIVER_FEATURE_SELECT: usize = 8;
    pub(super) const DRIVER_FEATURE: usize = 12;
    pub(super) const CONFIG_VECTOR: usize = 16;
    pub(super) const STATUS: usize = 20;
    pub(super) const CONFIG_GENERATION: usize = 21;
    pub(super) const QUEUE_SELECT: usize = 22;
    pub(super) const QUEUE_SIZE: usize = 24;
    pub(super) const QUEUE_VECTOR: usize = 26;
    pub(super) const QUEUE_ENABLE: usize = 28;
    pub(super) const QUEUE_NOTIFY_OFFSET: usize = 30;
    pub(super) const QUEUE_DESCRIPTORS: usize = 32;
    pub(super) const QUEUE_DRIVER: usize = 40;
    pub(super) const QUEUE_DEVICE: usize = 48;
    /// The length of all of it.
    pub(super) const LEN: usize = 56;
}

/// Registers that are mapped for good.
#[derive(Clone, Copy)]
struct Registers {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: device registers, which any thread may access at any time.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    /// The register at an offset. `None` if it does not lie in the registers, or is not aligned.
    fn get<T: Copy + 'static>(&self, offset: usize) -> Option<VolatilePtr<'static, T>> {
        let end = offset.checked_add(size_of::<T>()).filter(|&end| end <= self.len)?;
        // SAFETY: within the mapped registers.
        let register = unsafe { self.start.add(end - size_of::<T>()) }.cast::<T>();
        // SAFETY: mapped for good, and aligned; device registers are accessed in this way only.
        register.is_aligned().then(|| unsafe { VolatilePtr::new(register) })
    }

    /// Reads a register that exists.
    fn read<T: Copy + Default + 'static>(&self, offset: usize) -> T {
        self.get(offset).map_or_else(T::default, |register| register.read())
    }

    /// Writes a register that exists.
    fn write<T: Copy + 'static>(&self, offset: usize, value: T) {
        if let Some(register) = self.get(offset) {
            register.write(value);
        }
    }
}

/// The registers of a virtio device.
struct VirtioPci {
    name: String,
    common: Registers,
    notify: Registers,
    notify_multiplier: u32,
    config: Registers,
}

/// Where a structure of a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The slot of its BAR.
    pub bar: u8,
    /// Where in the BAR it begins.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// The word behind: of the structure for notifications, the distance of two queues' registers.
    pub word: u32,
}

/// The places of a kind of structure that a driver can use, by a function's capabilities (five
/// words each) and the sizes of its memory BARs by slot. A driver uses the first one, and ignores
/// slots that do not exist (virtio 1.2, 4.1.4.1). `least` is the least length.
pub fn places(
    kind: u8,
    least: u64,
    capabilities: &[[u32; 5]],
    size_of_bar: impl Fn(u8) -> Option<u64>,
) -> impl Iterator<Item = Place> {
    let of_kind = capabilities.iter().filter(move |words| (words[0] >> 24) as u8 == kind);
    of_kind.filter_map(move |words| {
        let [_, bar, offset, len, word] = *words;
        let place = Place { bar: bar as u8, offset: offset.into(), len: len.into(), word };
        let size = size_of_bar(place.bar)?;
        let fits = place.offset + place.len <= size && place.len >= least && place.offset.is_multiple_of(4);
        fits.then_some(place)
    })
}

impl VirtioPci {
    /// Finds and maps the structures of a function.
    fn new(function: &Function, bars: &Bars) -> Result<VirtioPci, &'static str> {
        let capabilities = function.vendor_capabilities();
        if !capabilities.iter().any(|words| (words[0] >> 24) as u8 == COMMON) {
            return Err("it has no interface of virtio 1 (QEMU: leave out disable-modern=on)");
        }
        VirtioPci::map(function, &capabilities, bars).ok_or("its structures cannot be mapped")
    }

    fn map(function: &Function, capabilities: &[[u32; 5]], bars: &Bars) -> Option<VirtioPci> {
        let find = |kind: u8, least: usize| {
            let mut places = places(kind, least as u64, capabilities, |slot| Some(bars.get(slot)?.size));
            places.find_map(|place| {
                let bar = bars.map(place.bar, Cache::Off)?;
                let start = NonNull::new((bar.address + place.offset) as *mut u8)?;
                Some((Registers { start, len: usize::try_from(place.len).ok()? }, place.word))
            })
        };
        let (notify, notify_multiplier) = find(NOTIFY, 2)?;
        Some(VirtioPci {
            name: format!("the disk at {}", function.address),
            common: find(COMMON, common::LEN)?.0,
            notify,
            notify_multiplier,
            config: find(DEVICE, 8)?.0,
        })
    }

    /// Selects the halves of the features by turns.
    fn features(&self, select: usize, mut act: impl FnMut(usize)) {
        for half in 0..2 {
            self.common.write(select, half as u32);
            act(half);
        }
    }

    /// Writes the number of a vector. A device that has no room for it says so when it is read.
    fn connect_by(&self, register: usize, vector: u16) -> bool {
        self.common.write(register, vector);
        self.common.read::<u16>(register) == vector
    }

    /// The register that notifies a queue, which was selected.
    fn notify_offset(&self) -> Option<usize> {
        let number: u16 = self.common.read(common::QUEUE_NOTIFY_OFFSET);
        usize::try_from(u64::from(number) * u64::from(self.notify_multiplier)).ok()
    }
}

impl Transport for VirtioPci {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }

    fn read_device_features(&mut self) -> u64 {
        let mut features = 0;
        self.features(common::DEVICE_FEATURE_SELECT, |half| {
            features |= u64::from(self.common.read::<u32>(common::DEVICE_FEATURE)) << (32 * half);
        });
        features
    }

    fn write_driver_features(&mut self, features: u64) {
        self.features(common::DRIVER_FEATURE_SELECT, |half| {
            self.common.write(common::DRIVER_FEATURE, (features >> (32 * half)) as u32);
        });
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.common.write(common::QUEUE_SELECT, queue);
        u32::from(self.common.read::<u16>(common::QUEUE_SIZE))
    }

    /// [`Device::notifier`] is what the driver uses.
    fn notify(&mut self, queue: u16) {
        self.notifier(queue)();
    }

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::from_bits_retain(u32::from(self.common.read::<u8>(common::STATUS)))
    }

    /// A status of 0 resets the device; this waits until it has done so, for a bounded time.
    fn set_status(&mut self, status: DeviceStatus) {
        self.common.write(common::STATUS, status.bits() as u8);
        let deadline = clock::now() + RESET_TIME;
        while status.is_empty() && !self.get_status().is_empty() && clock::now() < deadline {
            core::hint::spin_loop();
        }
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        self.common.write(common::QUEUE_SELECT, queue);
        self.common.write(common::QUEUE_SIZE, size as u16);
        for (offset, address) in [
            (common::QUEUE_DESCRIPTORS, descriptors),
            (common::QUEUE_DRIVER, driver_area),
            (common::QUEUE_DEVICE, device_area),
        ] {
            self.common.write(offset, address as u32);
            self.common.write(offset + 4, (address >> 32) as u32);
        }
        self.common.write::<u16>(common::QUEUE_ENABLE, 1);
    }

    /// A queue ends with a reset of the device.
    fn queue_unset(&mut self, _: u16) {}

    fn queue_used(&mut self, queue: u16) -> bool {
        self.common.write(common::QUEUE_SELECT, queue);
        self.common.read::<u16>(common::QUEUE_ENABLE) == 1
    }

    /// By MSI-X there is nothing to acknowledge.
    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        u32::from(self.common.read::<u8>(common::CONFIG_GENERATION))
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, Error> {
        let word = match size_of::<T>() {
            1 => self.config.get::<u8>(offset).map(|register| u32::from(register.read())),
            2 => self.config.get::<u16>(offset).map(|register| u32::from(register.read())),
            4 => self.config.get::<u32>(offset).map(|register| register.read()),
            // Fields are not longer than this.
            _ => None,
        };
        let bytes = word.ok_or(Error::ConfigSpaceTooSmall)?.to_le_bytes();
        T::read_from_prefix(&bytes).map(|(value, _)| value).map_err(|_| Error::ConfigSpaceTooSmall)
    }

    /// The driver changes nothing.
    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> Result<(), Error> {
        Err(Error::Unsupported)
    }
}

impl Device for VirtioPci {
    fn name(&self) -> &str {
        &self.name
    }

    fn connect(&mut self, queue: u16, vector: u16) -> bool {
        self.common.write(common::QUEUE_SELECT, queue);
        self.connect_by(common::QUEUE_VECTOR, vector)
    }

    fn connect_changes(&mut self, vector: u16) -> bool {
        self.connect_by(common::CONFIG_VECTOR, vector)
    }

    fn notifier(&self, queue: u16) -> Notifier {
        self.common.write(common::QUEUE_SELECT, queue);
        let register = self.notify_offset().and_then(|offset| self.notify.get::<u16>(offset).map(|_| offset));
        let notify = self.notify;
        Box::new(move || {
            if let Some(offset) = register {
                notify.write(offset, queue);
            }
        })
    }
}

impl Vectors for Msix {
    /// The queues have turns in their order, so that they are spread over the CPUs.
    fn set(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        let turn = if vector > virtio::CHANGES { vector - virtio::CHANGES } else { vector };
        self.set_in_turn(vector, turn, handler)
    }
}

/// The part of the free memory that the queues of a disk may have, but for its first one.
const MEMORY_PART: usize = 64;
/// Vectors that stay for the NICs and for the first queues of further disks.
const KEPT_VECTORS: usize = 96;

/// What the next disk may have of the machine: a queue for each CPU, as long as there are memory
/// and vectors for all that comes after it.
fn share() -> Share {
    let memory = memory::usage().free_pages / MEMORY_PART;
    Share {
        queues: (cpu::count() as usize).min(1 + memory / virtio::QUEUE_MEMORY),
        vectors: interrupts::left().saturating_sub(KEPT_VECTORS),
    }
}

static DISKS: Once<Vec<Arc<dyn Disk>>> = Once::new();

/// The disks in this machine, in order of bus, device and function.
pub fn disks() -> Vec<Arc<dyn Disk>> {
    DISKS.get().cloned().unwrap_or_default()
}

/// Brings up the disks among these functions.
pub(super) fn attach(platform: &Arc<dyn Platform>, functions: &[Function]) {
    DISKS.call_once(|| {
        let mut disks: Vec<Arc<dyn Disk>> = Vec::new();
        for function in functions.iter().filter(|function| is_disk(function)) {
            match disk(platform, function) {
                Ok(disk) => {
                    let (number, geometry) = (disks.len(), disk.geometry());
                    log::info!("disk {number} at {}: {geometry:?}", function.address);
                    disks.push(disk);
                }
                Err(why) => log::warn!("the disk at {} is ignored: {why}", function.address),
            }
        }
        disks
    });
}

fn is_disk(function: &Function) -> bool {
    function.vendor == VENDOR
        && (function.device == BLOCK
            || (TRANSITIONAL.contains(&function.device) && function.subsystem() == Some(BLOCK_KIND)))
}

fn disk(platform: &Arc<dyn Platform>, function: &Function) -> Result<Arc<dyn Disk>, String> {
    let bars = function.usable_bars()?;
    function.enable();
    let msix = Msix::new(function, &bars)?;
    let device = VirtioPci::new(function, &bars)?;
    virtio::open(platform, device, Arc::new(msix), share()).map_err(|why| why.to_string())
}

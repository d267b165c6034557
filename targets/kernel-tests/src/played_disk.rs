//! A virtio disk that a test plays: a device for the driver, whose state the test looks at and
//! changes.
#![expect(unsafe_code, reason = "a device reaches memory by its address")]

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;

use block::Disk;
use kernel::virtio::{self, Device, InterruptHandler, Notifier, Unusable, Vectors};
use platform::SharedSlice;
use platform::sync::Mutex;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Failure, Machine, Outcome, check};

const BLK_SIZE: u64 = 1 << 6;
/// A feature.
pub const FLUSH: u64 = 1 << 9;
/// A feature.
pub const DISCARD: u64 = 1 << 13;
/// A feature.
pub const WRITE_ZEROES: u64 = 1 << 14;
/// A feature.
pub const VERSION_1: u64 = 1 << 32;
/// A feature.
pub const ACCESS_PLATFORM: u64 = 1 << 33;
/// An ordinary disk.
pub const ALL: u64 = 1 << 2 | BLK_SIZE | FLUSH | DISCARD | WRITE_ZEROES | VERSION_1;

/// How a device behaves when it is brought up and reset.
#[derive(Clone)]
pub struct Behaviour {
    pub features: u64,
    /// Words of the configuration by offset; others are 0.
    pub config: BTreeMap<usize, u32>,
    pub queue_size: u32,
    /// Takes back that it agrees on features.
    pub refuses_features: bool,
    pub has_vectors: bool,
    /// How often the configuration changes while it is read.
    pub changes: u32,
    /// Does not confirm a reset after it was brought up.
    pub holds_on: bool,
}

impl Behaviour {
    /// A disk of 1,000 sectors.
    pub fn good() -> Behaviour {
        // Capacity, pieces, block size, then the limits of discards and of writes of zeros.
        let config = [(0, 1000), (12, 20), (20, 512), (36, 100), (48, 50), (56, 1)];
        Behaviour {
            features: ALL,
            config: config.into_iter().collect(),
            queue_size: 64,
            refuses_features: false,
            has_vectors: true,
            changes: 0,
            holds_on: false,
        }
    }

    pub fn with(mut self, offset: usize, value: u32) -> Behaviour {
        self.config.insert(offset, value);
        self
    }
}

/// The state of a device.
#[derive(Default)]
pub struct State {
    pub status: u32,
    pub features: u64,
    /// Addresses of the descriptors, the driver's and the device's area.
    pub queue: Option<[u64; 3]>,
    pub size: u16,
    pub generation: u32,
    /// The next entries of the available and of the used ring.
    pub taken: u16,
    pub used: u16,
    pub kicks: u32,
    /// The capacity after a change.
    pub capacity: Option<u32>,
    pub handlers: BTreeMap<u16, Option<InterruptHandler>>,
}

/// A device that a test plays.
#[derive(Clone)]
pub struct Played {
    pub behaviour: Arc<Behaviour>,
    pub state: Arc<Mutex<State>>,
}

/// Memory at an address that the driver has told.
pub fn at(address: u64, len: usize) -> SharedSlice<'static> {
    let start = NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling());
    // SAFETY: the driver lends this memory to the device, which is the test here.
    unsafe { SharedSlice::from_raw(start, len) }
}

pub fn word<const N: usize>(address: u64) -> [u8; N] {
    let mut bytes = [0; N];
    // It is as long as that.
    let _ = at(address, N).read(0, &mut bytes);
    bytes
}

impl Transport for Played {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }

    fn read_device_features(&mut self) -> u64 {
        self.behaviour.features
    }

    fn write_driver_features(&mut self, features: u64) {
        self.state.lock().features = features;
    }

    fn max_queue_size(&mut self, _: u16) -> u32 {
        self.behaviour.queue_size
    }

    fn notify(&mut self, _: u16) {
        self.state.lock().kicks += 1;
    }

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::from_bits_retain(self.state.lock().status)
    }

    fn set_status(&mut self, status: DeviceStatus) {
        let mut state = self.state.lock();
        if status.is_empty() && self.behaviour.holds_on && state.queue.is_some() {
            return;
        }
        let refused =
            if self.behaviour.refuses_features { DeviceStatus::FEATURES_OK } else { DeviceStatus::empty() };
        state.status = status.difference(refused).bits();
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(
        &mut self,
        _: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        let mut state = self.state.lock();
        (state.queue, state.size) = (Some([descriptors, driver_area, device_area]), size as u16);
    }

    fn queue_unset(&mut self, _: u16) {}

    fn queue_used(&mut self, _: u16) -> bool {
        self.state.lock().queue.is_some()
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        let mut state = self.state.lock();
        state.generation += 1;
        state.generation.min(2 * self.behaviour.changes)
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, Error> {
        let changed = self.state.lock().capacity.filter(|_| offset == 0);
        let word = changed.or_else(|| self.behaviour.config.get(&offset).copied()).unwrap_or(0).to_le_bytes();
        T::read_from_prefix(&word).map(|(value, _)| value).map_err(|_| Error::ConfigSpaceTooSmall)
    }

    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> Result<(), Error> {
        Err(Error::Unsupported)
    }
}

impl Device for Played {
    fn name(&self) -> &str {
        "a disk that a test plays"
    }

    fn has_vectors(&self) -> bool {
        self.behaviour.has_vectors
    }

    fn notifier(&self, _: u16) -> Notifier {
        let state = self.state.clone();
        Box::new(move || state.lock().kicks += 1)
    }
}

/// The vectors of a device: [`Played::interrupt`] calls their handlers.
impl Vectors for Played {
    fn set(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        let former = self.state.lock().handlers.insert(vector, handler);
        drop(former);
        true
    }
}

/// A request as the device finds it.
pub struct Found {
    pub head: u16,
    pub kind: u32,
    pub sector: u64,
    /// Address, length, and whether the device writes there: without header and status.
    pub parts: Vec<(u64, u32, bool)>,
    pub status: u64,
}

impl Played {
    pub fn new(behaviour: Behaviour) -> Played {
        Played { behaviour: Arc::new(behaviour), state: Arc::new(Mutex::new(State::default())) }
    }

    pub fn open(&self, m: &Machine) -> Result<Arc<dyn Disk>, Unusable> {
        virtio::open(&m.platform, self.clone(), Arc::new(self.clone()))
    }

    /// A device that was brought up.
    pub fn start(m: &Machine, behaviour: Behaviour) -> Result<(Played, Arc<dyn Disk>), Failure> {
        let device = Played::new(behaviour);
        let disk = device.open(m).map_err(|_| Failure::new("the disk is refused"))?;
        Ok((device, disk))
    }

    /// The queue's addresses and size.
    pub fn queue(&self) -> Result<([u64; 3], u16), Failure> {
        let state = self.state.lock();
        Ok((state.queue.ok_or(Failure::new("there is no queue"))?, state.size))
    }

    /// The next request that the driver has made available.
    pub fn next(&self) -> Result<Option<Found>, Failure> {
        let ([descriptors, driver, _], size) = self.queue()?;
        let mut state = self.state.lock();
        if u16::from_le_bytes(word(driver + 2)) == state.taken {
            return Ok(None);
        }
        let slot = u64::from(state.taken % size);
        state.taken = state.taken.wrapping_add(1);
        let head = u16::from_le_bytes(word(driver + 4 + 2 * slot));
        let mut parts = Vec::new();
        let mut number = head;
        loop {
            let descriptor = descriptors + 16 * u64::from(number);
            let flags = u16::from_le_bytes(word(descriptor + 12));
            let address = u64::from_le_bytes(word(descriptor));
            parts.push((address, u32::from_le_bytes(word(descriptor + 8)), flags & 2 != 0));
            if flags & 1 == 0 || parts.len() > usize::from(size) {
                break;
            }
            number = u16::from_le_bytes(word(descriptor + 14));
        }
        let shape = Failure::new("a request has no header or no status");
        let (Some((status, 1, true)), (header, 16, false)) = (parts.pop(), parts.remove(0)) else {
            return Err(shape);
        };
        let kind = u32::from_le_bytes(word(header));
        Ok(Some(Found { head, kind, sector: u64::from_le_bytes(word(header + 8)), parts, status }))
    }

    /// The next request, which has to be there.
    #[track_caller]
    pub fn expect(&self, kind: u32) -> Result<Found, Failure> {
        let (missing, other) = (Failure::new("no request comes"), Failure::new("another request comes"));
        let found = self.next()?.ok_or(missing)?;
        if found.kind == kind { Ok(found) } else { Err(other) }
    }

    /// Returns a descriptor, whatever it is.
    pub fn give(&self, number: u32, len: u32) -> Outcome {
        let ([_, _, device], size) = self.queue()?;
        let mut state = self.state.lock();
        let entry = device + 4 + 8 * u64::from(state.used % size);
        state.used = state.used.wrapping_add(1);
        let wrote = at(entry, 8).write(0, &[number.to_le_bytes(), len.to_le_bytes()].concat());
        let moved = at(device + 2, 2).write(0, &state.used.to_le_bytes());
        check(wrote.is_ok() && moved.is_ok(), "the used ring is elsewhere")
    }

    /// Returns a request with a status, after writing so many bytes.
    pub fn answer(&self, found: &Found, status: u8, len: u32) -> Outcome {
        check(at(found.status, 1).write(0, &[status]).is_ok(), "there is no status")?;
        self.give(u32::from(found.head), len)
    }

    /// Sends an interrupt, unless the vector is masked.
    pub fn interrupt(&self, vector: u16) -> bool {
        // Not under the lock: the handler may be of any length.
        let handler = self.state.lock().handlers.get_mut(&vector).and_then(Option::take);
        let Some(handler) = handler else { return false };
        handler();
        self.state.lock().handlers.insert(vector, Some(handler));
        true
    }
}

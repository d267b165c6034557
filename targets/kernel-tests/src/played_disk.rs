//! A virtio disk that a test plays: a device for the driver, whose state the test looks at and
//! changes.
#![expect(unsafe_code, reason = "a device reaches memory by its address")]

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;

use block::Disk;
use kernel::virtio::{self, Device, InterruptHandler, Notifier, Share, Unusable, Vectors};
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
pub const MQ: u64 = 1 << 12;
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
    /// The sizes of queues that have another one.
    pub queue_sizes: BTreeMap<u16, u32>,
    /// Takes back that it agrees on features.
    pub refuses_features: bool,
    /// How many vectors it has room for, of how many that the machine has.
    pub vectors: u16,
    pub of_vectors: u16,
    /// From this queue on it has no room for any vector.
    pub silent_from: u16,
    /// What the driver may take.
    pub share: Share,
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
            queue_sizes: BTreeMap::new(),
            refuses_features: false,
            vectors: 64,
            of_vectors: 64,
            silent_from: u16::MAX,
            share: Share { queues: virtio::MOST_QUEUES, vectors: virtio::MOST_QUEUES },
            changes: 0,
            holds_on: false,
        }
    }

    /// A disk with so many queues.
    pub fn with_queues(count: u32) -> Behaviour {
        Behaviour { features: ALL | MQ, ..Behaviour::good() }.with(34, count)
    }

    pub fn with(mut self, offset: usize, value: u32) -> Behaviour {
        self.config.insert(offset, value);
        self
    }
}

/// A queue as the driver has set it.
#[derive(Clone, Copy)]
pub struct Ring {
    /// Addresses of the descriptors, the driver's and the device's area.
    pub areas: [u64; 3],
    pub size: u16,
    /// The next entries of the available and of the used ring.
    taken: u16,
    used: u16,
}

/// The state of a device.
#[derive(Default)]
pub struct State {
    pub status: u32,
    pub features: u64,
    pub rings: BTreeMap<u16, Ring>,
    /// The vectors of the queues.
    pub connected: BTreeMap<u16, u16>,
    pub generation: u32,
    kicks: BTreeMap<u16, u32>,
    /// The capacity after a change.
    pub capacity: Option<u32>,
    pub handlers: BTreeMap<u16, Option<InterruptHandler>>,
}

/// A device that a test plays, and the queue that the test looks at: the first one, unless it was
/// made by [`Played::at_queue`].
#[derive(Clone)]
pub struct Played {
    pub behaviour: Arc<Behaviour>,
    pub state: Arc<Mutex<State>>,
    number: u16,
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

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.behaviour.queue_sizes.get(&queue).copied().unwrap_or(self.behaviour.queue_size)
    }

    fn notify(&mut self, queue: u16) {
        self.notifier(queue)();
    }

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::from_bits_retain(self.state.lock().status)
    }

    fn set_status(&mut self, status: DeviceStatus) {
        let mut state = self.state.lock();
        if status.is_empty() && self.behaviour.holds_on && !state.rings.is_empty() {
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
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        let areas = [descriptors, driver_area, device_area];
        self.state.lock().rings.insert(queue, Ring { areas, size: size as u16, taken: 0, used: 0 });
    }

    fn queue_unset(&mut self, _: u16) {}

    fn queue_used(&mut self, queue: u16) -> bool {
        self.state.lock().rings.contains_key(&queue)
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

    fn connect(&mut self, queue: u16, vector: u16) -> bool {
        let has_room = queue < self.behaviour.silent_from && vector < self.behaviour.vectors;
        if has_room {
            self.state.lock().connected.insert(queue, vector);
        }
        has_room
    }

    fn connect_changes(&mut self, vector: u16) -> bool {
        vector < self.behaviour.vectors
    }

    fn notifier(&self, queue: u16) -> Notifier {
        let state = self.state.clone();
        Box::new(move || *state.lock().kicks.entry(queue).or_default() += 1)
    }
}

/// The vectors of a device: [`Played::interrupt`] calls their handlers.
impl Vectors for Played {
    fn set(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        if vector >= self.behaviour.of_vectors {
            return false;
        }
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
        Played { behaviour: Arc::new(behaviour), state: Arc::new(Mutex::new(State::default())), number: 0 }
    }

    /// The same device, at another of its queues.
    pub fn at_queue(&self, number: u16) -> Played {
        Played { number, ..self.clone() }
    }

    pub fn open(&self, m: &Machine) -> Result<Arc<dyn Disk>, Unusable> {
        virtio::open(&m.platform, self.clone(), Arc::new(self.clone()), self.behaviour.share)
    }

    /// A device that was brought up.
    pub fn start(m: &Machine, behaviour: Behaviour) -> Result<(Played, Arc<dyn Disk>), Failure> {
        let device = Played::new(behaviour);
        let disk = device.open(m).map_err(|_| Failure::new("the disk is refused"))?;
        Ok((device, disk))
    }

    /// The queue.
    pub fn ring(&self) -> Result<Ring, Failure> {
        let missing = Failure::new("there is no queue");
        self.state.lock().rings.get(&self.number).copied().ok_or(missing)
    }

    /// The vector that the queue interrupts by.
    pub fn vector(&self) -> Option<u16> {
        self.state.lock().connected.get(&self.number).copied()
    }

    /// How often the driver has notified the queue.
    pub fn kicks(&self) -> u32 {
        self.state.lock().kicks.get(&self.number).copied().unwrap_or(0)
    }

    /// The next request that the driver has made available.
    pub fn next(&self) -> Result<Option<Found>, Failure> {
        let Ring { areas: [descriptors, driver, _], size, taken, used } = self.ring()?;
        if u16::from_le_bytes(word(driver + 2)) == taken {
            return Ok(None);
        }
        let slot = u64::from(taken % size);
        self.go_on(taken.wrapping_add(1), used);
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

    /// Moves to other entries of the rings.
    fn go_on(&self, taken: u16, used: u16) {
        if let Some(ring) = self.state.lock().rings.get_mut(&self.number) {
            (ring.taken, ring.used) = (taken, used);
        }
    }

    /// Passes over so many entries of the used ring.
    pub fn skip(&self, entries: u16) -> Outcome {
        let Ring { taken, used, .. } = self.ring()?;
        self.go_on(taken, used.wrapping_add(entries));
        Ok(())
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
        let Ring { areas: [_, _, device], size, taken, used } = self.ring()?;
        let entry = device + 4 + 8 * u64::from(used % size);
        let used = used.wrapping_add(1);
        self.go_on(taken, used);
        let wrote = at(entry, 8).write(0, &[number.to_le_bytes(), len.to_le_bytes()].concat());
        let moved = at(device + 2, 2).write(0, &used.to_le_bytes());
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

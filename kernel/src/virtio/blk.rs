//! A virtio block device as a [`Disk`].
//!
//! Locks: `routine`, then `requests` (both spin). No handler of an interrupt takes one.
//!
//! The device interrupts only after the consumer has armed the routine. Changes of its
//! configuration are noted at any time, and looked at in the consumer's next poll.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::{Disk, Event, Fault, Geometry, Request, Submit};
use platform::Platform;
use platform::sync::Mutex;
use virtio_drivers::transport::DeviceStatus;

use super::layout::{Config, Features, Kind, SECTOR};
use super::requests::{Done, MOST_PIECES, Next, QUEUE, Requests, Work};
use super::{CHANGES, COMPLETIONS, Device, Notifier, Unusable, Vectors};

/// The most bytes of a read or a write: it bounds for how long one request keeps the others
/// waiting.
const MOST_BYTES: u32 = 4 << 20;
/// How many parts of requests that go on one look handles.
const TURNS: u32 = 16;

type Routine = Arc<dyn Fn() + Send + Sync>;

/// What interrupt handlers share with the disk.
#[derive(Default)]
struct Shared {
    /// The consumer may sleep until the routine is called.
    waits: AtomicBool,
    /// The device's configuration or state has changed.
    changed: AtomicBool,
}

/// A disk on a queue of `SIZE` descriptors.
pub(super) struct Blk<T: Device, const SIZE: usize> {
    /// All but `blocks`.
    geometry: Geometry,
    blocks: AtomicU64,
    /// The consumer has not been told of the last change of `blocks`.
    is_resized: AtomicBool,
    config: Config,
    requests: Mutex<Requests<T, SIZE>>,
    notifier: Notifier,
    vectors: Arc<dyn Vectors>,
    shared: Arc<Shared>,
    routine: Mutex<Option<Routine>>,
}

impl<T: Device, const SIZE: usize> Blk<T, SIZE> {
    /// Brings up a device that was reset, and whose queue may have `SIZE` descriptors.
    pub(super) fn new(
        platform: &Arc<dyn Platform>,
        mut device: T,
        vectors: Arc<dyn Vectors>,
    ) -> Result<Self, Unusable> {
        let features = device.begin_init(Features::all());
        if !features.contains(Features::VERSION_1) {
            return Err(Unusable::Version);
        }
        if !device.get_status().contains(DeviceStatus::FEATURES_OK) {
            let offered = device.read_device_features();
            return Err(Unusable::Refusal { offered, taken: features.bits() });
        }
        let config = Config::read(&device, features).ok_or(Unusable::Config)?;
        let geometry = geometry(&config, features, SIZE).ok_or(Unusable::Config)?;
        let mut requests = Requests::new(platform, device)?;
        let shared = Arc::new(Shared::default());
        // The vectors are claimed now, so that `watch` cannot fail. Changes are noted from now on.
        let changed = shared.clone();
        let note = move || changed.changed.store(true, Ordering::Release);
        if !requests.device().has_vectors() || !vectors.set(COMPLETIONS, Some(Box::new(|| ()))) {
            return Err(Unusable::Vectors);
        }
        vectors.set(COMPLETIONS, None);
        vectors.set(CHANGES, Some(Box::new(note)));
        requests.device().finish_init();
        let notifier = requests.device().notifier(QUEUE);
        let (requests, routine) = (Mutex::new(requests), Mutex::new(None));
        let disk = Blk {
            geometry,
            blocks: AtomicU64::new(geometry.blocks),
            is_resized: AtomicBool::new(false),
            config,
            requests,
            notifier,
            vectors,
            shared,
            routine,
        };
        // What changed before changes were noted.
        disk.look_at_size(disk.requests.lock().device());
        Ok(disk)
    }

    fn sectors_per_block(&self) -> u64 {
        u64::from(self.geometry.block_size / SECTOR)
    }

    /// The work of a range of blocks, in parts of whole blocks.
    fn range(&self, kind: Kind, block: u64, blocks: u64, most: u32, may_unmap: bool) -> Work {
        let each = self.sectors_per_block();
        let most = most - most % each as u32;
        Work::Range { kind, sector: block * each, left: blocks * each, most, may_unmap }
    }

    /// One look for a completion.
    fn look(&self) -> Option<Done> {
        let mut found = None;
        let kick = {
            let mut requests = self.requests.lock();
            if self.shared.changed.swap(false, Ordering::AcqRel) {
                requests.look();
                if !requests.is_broken() {
                    self.look_at_size(requests.device());
                }
            }
            for _ in 0..TURNS {
                match requests.next() {
                    Next::Again => {}
                    Next::Nothing => break,
                    Next::Done(done) => {
                        found = Some(done);
                        break;
                    }
                }
            }
            if found.is_some() {
                requests.notify(false);
            }
            requests.take_kick()
        };
        if kick {
            (self.notifier)();
        }
        found
    }

    /// Reads the capacity again after a change of the configuration. A capacity that changes all
    /// the while is read after the next change.
    fn look_at_size(&self, device: &T) {
        let Some(capacity) = Config::read_capacity(device) else { return };
        let blocks = capacity / self.sectors_per_block();
        let before = self.blocks.swap(blocks, Ordering::AcqRel);
        if blocks != before {
            log::info!("{} has {blocks} blocks now, {before} before", device.name());
            self.is_resized.store(true, Ordering::Release);
        }
    }

    /// Calls the routine, if the consumer waits for it.
    fn call(&self) {
        if self.shared.waits.swap(false, Ordering::AcqRel) {
            let routine = self.routine.lock().clone();
            if let Some(routine) = routine {
                routine();
            }
        }
    }
}

/// The disk that a device describes. `None` if that makes no sense.
fn geometry(config: &Config, features: Features, size: usize) -> Option<Geometry> {
    let block_size = if config.block_size == 0 { SECTOR } else { config.block_size };
    if !Geometry::BLOCK_SIZES.contains(&block_size) {
        return None;
    }
    let sectors = block_size / SECTOR;
    let limit = |feature, value: u32, otherwise| if features.contains(feature) { value } else { otherwise };
    let most_bytes = limit(Features::SIZE_MAX, config.size_max, u32::MAX).min(MOST_BYTES);
    // A device that names no number of pieces promises one.
    let most_pieces = limit(Features::SEG_MAX, config.seg_max, 1) as usize;
    let geometry = Geometry {
        block_size,
        blocks: config.capacity / u64::from(sectors),
        is_read_only: features.contains(Features::RO),
        has_volatile_cache: features.contains(Features::FLUSH),
        discard: config.max_discard >= sectors,
        write_zeroes: config.max_write_zeroes >= sectors,
        most_bytes: most_bytes - most_bytes % block_size,
        most_pieces: most_pieces.min(MOST_PIECES).min(size - 2),
        queue_depth: size / 3,
    };
    (geometry.most_bytes > 0 && geometry.most_pieces > 0).then_some(geometry)
}

impl<T: Device, const SIZE: usize> Disk for Blk<T, SIZE> {
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Acquire), ..self.geometry }
    }

    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit> {
        let blocks = self.geometry().check(request)?;
        let sector = blocks.start * self.sectors_per_block();
        let (work, data) = match *request {
            Request::Read { into, .. } => {
                // At most `most_bytes`, as was checked.
                let bytes = (blocks.end - blocks.start) as u32 * self.geometry.block_size;
                (Work::Read { sector, bytes }, Some(into))
            }
            Request::Write { from, fua, .. } => {
                (Work::Write { sector, then_flush: fua && self.geometry.has_volatile_cache }, Some(from))
            }
            Request::Flush => (Work::Flush, None),
            Request::Discard { block, blocks } => {
                (self.range(Kind::Discard, block, blocks, self.config.max_discard, false), None)
            }
            Request::WriteZeroes { block, blocks, may_discard } => {
                let may_unmap = may_discard && self.config.write_zeroes_may_unmap;
                let most = self.config.max_write_zeroes;
                (self.range(Kind::WriteZeroes, block, blocks, most, may_unmap), None)
            }
        };
        let is_complete = matches!(work, Work::Flush) && !self.geometry.has_volatile_cache;
        {
            let mut requests = self.requests.lock();
            if requests.is_broken() {
                return Err(Submit::Fault(Fault::Gone));
            }
            // A range takes one descriptor more than a flush.
            if !requests.has_room(data.map_or(1, |data| data.pieces.len())) {
                return Err(Submit::Busy);
            }
            if is_complete {
                requests.complete(token, Ok(()));
            } else {
                requests.start(token, work, data.as_ref())?;
            }
        }
        if is_complete {
            self.call();
        }
        Ok(())
    }

    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        for polled in 0..most {
            let Some(Done { token, result, buffer }) = self.look() else { return polled };
            drop(buffer);
            into(token, result);
        }
        most
    }

    fn event(&self) -> Option<Event> {
        let blocks = || Event::Resized { blocks: self.blocks.load(Ordering::Acquire) };
        self.is_resized.swap(false, Ordering::AcqRel).then(blocks)
    }

    fn watch(&self, routine: Option<Routine>) {
        let handlers = routine.clone().map(|routine| {
            let (shared, call) = (self.shared.clone(), routine.clone());
            let completions: nic_hal::InterruptHandler = Box::new(move || {
                if shared.waits.swap(false, Ordering::AcqRel) {
                    call();
                }
            });
            let shared = self.shared.clone();
            let changes: nic_hal::InterruptHandler = Box::new(move || {
                shared.changed.store(true, Ordering::Release);
                if shared.waits.swap(false, Ordering::AcqRel) {
                    routine();
                }
            });
            (completions, changes)
        });
        let note = self.shared.clone();
        let note: nic_hal::InterruptHandler = Box::new(move || note.changed.store(true, Ordering::Release));
        // Held, so that of two callers the same one has its routine in all places.
        let mut place = self.routine.lock();
        let (completions, changes) = match handlers {
            Some((completions, changes)) => (Some(completions), changes),
            None => (None, note),
        };
        self.vectors.set(COMPLETIONS, completions);
        self.vectors.set(CHANGES, Some(changes));
        let former = core::mem::replace(&mut *place, routine);
        drop(place);
        drop(former);
    }

    fn arm(&self) -> bool {
        let (kick, is_ready) = {
            let mut requests = self.requests.lock();
            self.shared.waits.store(true, Ordering::SeqCst);
            requests.notify(true);
            // The device may have changed while the routine was not armed.
            let is_ready = requests.is_ready() || self.shared.changed.load(Ordering::Acquire);
            (requests.take_kick(), is_ready)
        };
        if kick {
            (self.notifier)();
        }
        is_ready
    }
}

impl<T: Device, const SIZE: usize> Drop for Blk<T, SIZE> {
    fn drop(&mut self) {
        self.vectors.set(COMPLETIONS, None);
        self.vectors.set(CHANGES, None);
    }
}

//! A virtio block device as a [`Disk`] with one queue or several.
//!
//! Each queue has what a request needs: a lock, tables, memory, and a routine. What concerns all
//! queues is rare: changes of the device's configuration, and its end. A flush makes durable what
//! had completed before, by whichever queue: that is the device's promise, which has one cache for
//! all queues, so nothing here keeps an order between them.
//!
//! Locks: `watching`, then a queue's `routine`; a queue's `requests`, then `device`. All of them
//! spin. No handler of an interrupt takes one.
//!
//! The device interrupts only after a consumer has armed its routine. Changes of the configuration
//! are noted at any time, and looked at in each queue's next poll.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use core::time::Duration;

use block::{Disk, Event, Fault, Geometry, Request, Submit};
use nic_hal::InterruptHandler;
use platform::sync::Mutex;
use platform::{OutOfMemory, Platform};
use virtio_drivers::transport::DeviceStatus;

use super::layout::{Config, Features, Kind, SECTOR};
use super::requests::{Done, MOST_PIECES, Next, Requests, Work};
use super::{CHANGES, COMPLETIONS, Device, FIRST, Notifier, Share, Unusable, Vectors, own_vector};
use crate::clock;

/// The most bytes of a read or a write: it bounds for how long one request keeps the others
/// waiting.
const MOST_BYTES: u32 = 4 << 20;
/// How many parts of requests that go on one look handles.
const TURNS: u32 = 16;
/// How long the device may take to confirm a reset.
const RESET_TIME: Duration = Duration::from_secs(1);

type Routine = Arc<dyn Fn() + Send + Sync>;

/// What interrupt handlers share with a queue.
#[derive(Default)]
// A line of the cache for each queue.
#[repr(align(64))]
struct Signals {
    /// The consumer may sleep until the routine is called.
    waits: AtomicBool,
    /// The device's configuration or state has changed.
    changed: AtomicBool,
}

impl Signals {
    /// Calls the routine, if the consumer waits for it.
    fn call(&self, routine: &Routine) {
        if self.waits.swap(false, Ordering::SeqCst) {
            routine();
        }
    }
}

/// A queue.
#[repr(align(64))]
struct Queue<const SIZE: usize> {
    requests: Mutex<Requests<SIZE>>,
    notifier: Notifier,
    /// The interrupt vector.
    vector: u16,
    signals: Arc<Signals>,
    /// The consumer has not been told of the last change of `blocks`.
    is_resized: AtomicBool,
    routine: Mutex<Option<Routine>>,
}

impl<const SIZE: usize> Queue<SIZE> {
    /// Calls the routine, if the consumer waits for it.
    fn call(&self) {
        if self.signals.waits.load(Ordering::SeqCst) {
            let routine = self.routine.lock().clone();
            if let Some(routine) = routine {
                self.signals.call(&routine);
            }
        }
    }
}

/// What has become of the device.
mod state {
    pub(super) const WORKS: u8 = 0;
    /// It is not used any more, and was reset.
    pub(super) const RESET: u8 = 1;
    /// It is not used any more, and has not confirmed the reset: it may still reach the memory.
    pub(super) const HOLDS_ON: u8 = 2;
}

/// A device with queues of `SIZE` descriptors.
pub(super) struct Blk<T: Device, const SIZE: usize> {
    /// All but `blocks`.
    geometry: Geometry,
    blocks: AtomicU64,
    config: Config,
    state: AtomicU8,
    queues: Vec<Queue<SIZE>>,
    device: Mutex<T>,
    vectors: Arc<dyn Vectors>,
    /// Held while a routine is replaced, so that of two callers the same one has its routine in
    /// all places.
    watching: Mutex<()>,
}

impl<T: Device + 'static, const SIZE: usize> Blk<T, SIZE> {
    /// Brings up a device that has agreed on its features, and whose queues may have `SIZE`
    /// descriptors. Returns the first queue.
    pub(super) fn open(
        platform: &Arc<dyn Platform>,
        mut device: T,
        (features, config): (Features, Config),
        vectors: Arc<dyn Vectors>,
        share: Share,
    ) -> Result<Arc<dyn Disk>, Unusable> {
        let geometry = geometry(&config, features, SIZE).ok_or(Unusable::Config)?;
        // Vectors are claimed now, so that `watch` cannot fail.
        if !claim(&*vectors, COMPLETIONS) || !device.connect(FIRST, COMPLETIONS) {
            return Err(Unusable::Vectors);
        }
        // A device without a second vector does not tell of changes.
        let notes_changes = claim(&*vectors, CHANGES) && device.connect_changes(CHANGES);
        let mut queues: Vec<Queue<SIZE>> = Vec::new();
        queues.try_reserve_exact(share.queues).map_err(|_| OutOfMemory)?;
        queues.push(Queue::new(platform, &mut device, FIRST, COMPLETIONS)?);
        for number in 1..share.queues as u16 {
            let vector = own_vector(number);
            let is_own = usize::from(number) <= share.vectors
                && claim(&*vectors, vector)
                && device.connect(number, vector);
            if !is_own && !device.connect(number, COMPLETIONS) {
                log::warn!("{} has no interrupt for its queue {number}", device.name());
                break;
            }
            let vector = if is_own { vector } else { COMPLETIONS };
            match Queue::new(platform, &mut device, number, vector) {
                Ok(queue) => queues.push(queue),
                Err(Unusable::OutOfMemory) => {
                    log::warn!("there is no memory for queue {number} of {}", device.name());
                    break;
                }
                Err(_) => {
                    let (size, name) = (device.max_queue_size(number), device.name());
                    log::warn!("queue {number} of {name} cannot have {SIZE} descriptors: it offers {size}");
                    break;
                }
            }
        }
        let own = queues.iter().filter(|queue| queue.vector != COMPLETIONS).count() + 1;
        let (name, count) = (device.name(), queues.len());
        log::info!("{name} is used by {count} queues of {SIZE} descriptors, with {own} interrupt vectors");
        let disk = Blk {
            geometry,
            blocks: AtomicU64::new(geometry.blocks),
            config,
            state: AtomicU8::new(state::WORKS),
            queues,
            device: Mutex::new(device),
            vectors,
            watching: Mutex::new(()),
        };
        // Changes are noted from now on.
        if notes_changes {
            disk.vectors.set(CHANGES, Some(disk.changes()));
        }
        {
            let mut device = disk.device.lock();
            device.finish_init();
            // What changed before changes were noted.
            disk.look_at_size(&device);
        }
        Ok(Arc::new(Handle { disk: Arc::new(disk), number: FIRST.into() }))
    }
}

impl<const SIZE: usize> Queue<SIZE> {
    /// Sets a queue up that is connected with a vector.
    fn new(
        platform: &Arc<dyn Platform>,
        device: &mut impl Device,
        number: u16,
        vector: u16,
    ) -> Result<Self, Unusable> {
        let requests = Mutex::new(Requests::new(platform, device, number)?);
        Ok(Queue {
            requests,
            notifier: device.notifier(number),
            vector,
            signals: Arc::default(),
            is_resized: AtomicBool::new(false),
            routine: Mutex::new(None),
        })
    }
}

/// Claims a vector, which stays masked. False if there is none.
fn claim(vectors: &dyn Vectors, vector: u16) -> bool {
    let is_there = vectors.set(vector, Some(Box::new(|| ())));
    if is_there {
        vectors.set(vector, None);
    }
    is_there
}

/// Resets a device. False if it does not confirm that.
fn reset(device: &mut impl Device) -> bool {
    device.set_status(DeviceStatus::empty());
    let deadline = clock::now() + RESET_TIME;
    loop {
        if device.get_status().is_empty() {
            return true;
        }
        if clock::now() >= deadline {
            return false;
        }
        core::hint::spin_loop();
    }
}

impl<T: Device, const SIZE: usize> Blk<T, SIZE> {
    fn sectors_per_block(&self) -> u64 {
        u64::from(self.geometry.block_size / SECTOR)
    }

    /// The work of a range of blocks, in parts of whole blocks.
    fn range(&self, kind: Kind, block: u64, blocks: u64, most: u32, may_unmap: bool) -> Work {
        let each = self.sectors_per_block();
        let most = most - most % each as u32;
        Work::Range { kind, sector: block * each, left: blocks * each, most, may_unmap }
    }

    /// Whether the device was given up, and if so, whether it does not reach the memory any more.
    fn is_reset(&self) -> Option<bool> {
        match self.state.load(Ordering::SeqCst) {
            state::WORKS => None,
            state => Some(state == state::RESET),
        }
    }

    /// Gives the device up. False if it was given up before; otherwise the caller wakes the
    /// consumers of the other queues ([`Blk::call_others`]), whose next look ends their requests.
    fn break_down(&self, device: &mut T, why: &str) -> bool {
        if self.is_reset().is_some() {
            return false;
        }
        log::error!("{} is given up: {why}", device.name());
        let state = if reset(device) { state::RESET } else { state::HOLDS_ON };
        self.state.store(state, Ordering::SeqCst);
        true
    }

    /// Wakes the consumers of all queues but one: the device that would interrupt them is no more.
    fn call_others(&self, number: usize) {
        let others = self.queues.iter().enumerate().filter(|&(other, _)| other != number);
        others.for_each(|(_, queue)| queue.call());
    }

    /// One look for a completion in a queue.
    fn look(&self, number: usize) -> Option<Done> {
        let (queue, mut found, mut breaks) = (&self.queues[number], None, false);
        let kick = {
            let mut requests = queue.requests.lock();
            if queue.signals.changed.swap(false, Ordering::AcqRel) {
                breaks = self.look_at_changes();
            }
            for _ in 0..TURNS {
                if let Some(is_reset) = self.is_reset() {
                    requests.end(is_reset);
                }
                match requests.next() {
                    Next::Again => {}
                    Next::Nothing => break,
                    Next::Done(done) => {
                        found = Some(done);
                        break;
                    }
                    Next::Broken(why) => breaks |= self.break_down(&mut self.device.lock(), why),
                }
            }
            if found.is_some() {
                requests.notify(false);
            }
            requests.take_kick()
        };
        if kick {
            (queue.notifier)();
        }
        if breaks {
            self.call_others(number);
        }
        found
    }

    /// Looks at the device after a change of its configuration or its state. Returns whether it has
    /// given itself up, as [`Blk::break_down`] does.
    fn look_at_changes(&self) -> bool {
        let mut device = self.device.lock();
        if self.is_reset().is_some() {
            return false;
        }
        if device.get_status().contains(DeviceStatus::DEVICE_NEEDS_RESET) {
            return self.break_down(&mut device, "it asks for a reset");
        }
        self.look_at_size(&device);
        false
    }

    /// Reads the capacity again after a change of the configuration. A capacity that changes all
    /// the while is read after the next change. The caller has locked the device, so that whoever
    /// looks next finds the event.
    fn look_at_size(&self, device: &T) {
        let Some(capacity) = Config::read_capacity(device) else { return };
        let blocks = capacity / self.sectors_per_block();
        let before = self.blocks.swap(blocks, Ordering::AcqRel);
        if blocks != before {
            log::info!("{} has {blocks} blocks now, {before} before", device.name());
            self.queues.iter().for_each(|queue| queue.is_resized.store(true, Ordering::Release));
        }
    }

    /// Replaces the routine of a queue.
    fn watch(&self, number: usize, routine: Option<Routine>) {
        let queue = &self.queues[number];
        let watching = self.watching.lock();
        let former = core::mem::replace(&mut *queue.routine.lock(), routine);
        self.vectors.set(queue.vector, self.completions(queue.vector));
        self.vectors.set(CHANGES, Some(self.changes()));
        drop(watching);
        drop(former);
    }

    /// The handler of a vector for completions: it calls the routines of the queues that have this
    /// vector. `None` if there are no routines.
    fn completions(&self, vector: u16) -> Option<InterruptHandler> {
        let its = self.queues.iter().filter(|queue| queue.vector == vector);
        let watched = its.filter_map(|queue| Some((queue.signals.clone(), queue.routine.lock().clone()?)));
        let watched: Vec<(Arc<Signals>, Routine)> = watched.collect();
        if watched.is_empty() {
            return None;
        }
        Some(Box::new(move || watched.iter().for_each(|(signals, routine)| signals.call(routine))))
    }

    /// The handler of changes, which every queue looks at.
    fn changes(&self) -> InterruptHandler {
        let all = self.queues.iter().map(|queue| (queue.signals.clone(), queue.routine.lock().clone()));
        let all: Vec<(Arc<Signals>, Option<Routine>)> = all.collect();
        Box::new(move || {
            for (signals, routine) in &all {
                signals.changed.store(true, Ordering::Release);
                if let Some(routine) = routine {
                    signals.call(routine);
                }
            }
        })
    }
}

impl<T: Device, const SIZE: usize> Drop for Blk<T, SIZE> {
    fn drop(&mut self) {
        for queue in &self.queues {
            self.vectors.set(queue.vector, None);
        }
        self.vectors.set(CHANGES, None);
        let is_reset = self.is_reset().unwrap_or_else(|| reset(&mut *self.device.lock()));
        for queue in &self.queues {
            queue.requests.lock().end(is_reset);
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

/// A queue of a device, as a disk.
struct Handle<T: Device, const SIZE: usize> {
    disk: Arc<Blk<T, SIZE>>,
    number: usize,
}

impl<T: Device, const SIZE: usize> Handle<T, SIZE> {
    fn own(&self) -> &Queue<SIZE> {
        &self.disk.queues[self.number]
    }
}

impl<T: Device + 'static, const SIZE: usize> Disk for Handle<T, SIZE> {
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.disk.blocks.load(Ordering::Acquire), ..self.disk.geometry }
    }

    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit> {
        let (disk, queue) = (&*self.disk, self.own());
        let blocks = self.geometry().check(request)?;
        let sector = blocks.start * disk.sectors_per_block();
        let (work, data) = match *request {
            Request::Read { into, .. } => {
                // At most `most_bytes`, as was checked.
                let bytes = (blocks.end - blocks.start) as u32 * disk.geometry.block_size;
                (Work::Read { sector, bytes }, Some(into))
            }
            Request::Write { from, fua, .. } => {
                (Work::Write { sector, then_flush: fua && disk.geometry.has_volatile_cache }, Some(from))
            }
            Request::Flush => (Work::Flush, None),
            Request::Discard { block, blocks } => {
                (disk.range(Kind::Discard, block, blocks, disk.config.max_discard, false), None)
            }
            Request::WriteZeroes { block, blocks, may_discard } => {
                let may_unmap = may_discard && disk.config.write_zeroes_may_unmap;
                let most = disk.config.max_write_zeroes;
                (disk.range(Kind::WriteZeroes, block, blocks, most, may_unmap), None)
            }
        };
        let is_complete = matches!(work, Work::Flush) && !disk.geometry.has_volatile_cache;
        {
            let mut requests = queue.requests.lock();
            // If another queue's look finds the device broken after this, that look wakes the
            // consumer, and the next look here ends the request.
            if disk.is_reset().is_some() {
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
            queue.call();
        }
        Ok(())
    }

    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        for polled in 0..most {
            let Some(Done { token, result, buffer }) = self.disk.look(self.number) else { return polled };
            drop(buffer);
            into(token, result);
        }
        most
    }

    fn event(&self) -> Option<Event> {
        let blocks = || Event::Resized { blocks: self.disk.blocks.load(Ordering::Acquire) };
        self.own().is_resized.swap(false, Ordering::AcqRel).then(blocks)
    }

    fn watch(&self, routine: Option<Routine>) {
        self.disk.watch(self.number, routine);
    }

    fn arm(&self) -> bool {
        let (queue, signals) = (self.own(), &self.own().signals);
        let (kick, is_ready) = {
            let mut requests = queue.requests.lock();
            signals.waits.store(true, Ordering::SeqCst);
            requests.notify(true);
            // The device may have changed while the routine was not armed, or another queue's look
            // may have given it up.
            let is_ready = requests.is_ready()
                || signals.changed.load(Ordering::Acquire)
                || (!requests.has_ended() && self.disk.is_reset().is_some());
            (requests.take_kick(), is_ready)
        };
        if kick {
            (queue.notifier)();
        }
        is_ready
    }

    fn queue(&self, number: usize) -> Option<Arc<dyn Disk>> {
        let is_there = number < self.disk.queues.len();
        is_there.then(|| Arc::new(Handle { disk: self.disk.clone(), number }) as Arc<dyn Disk>)
    }
}

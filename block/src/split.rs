//! A disk that several threads use, each by a handle of its own.
//!
//! A disk hands each completion to the thread that polls it. So each thread gets a [`Disk`] of its
//! own ([`split`]), which hands over the completions of its own requests, has a routine of its own
//! and sees each event. A disk with several queues gives one to each ([`Disk::queue`]). If it has
//! fewer queues than there are threads, the handles of some take turns at a queue: a poll takes
//! what the queue has completed, and keeps the completions of the others for them.
//!
//! Such a queue is for all of these. No handle fills it: there is room for one request of each of
//! the others, if the queue takes as many as there are handles. Of a smaller one a handle may find
//! no room with no request of its own: it is woken when another one's completions have made some.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use platform::DmaBuffer;
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::watch::Routine;
use crate::{Disk, Event, Fault, Geometry, Lease, Loan, Request, Submit};

/// Completions that a poll takes from the disk at once.
const BATCH: usize = 64;
/// The bits of a token that are the consumer's. The disk sees the number of the handle above them.
const TOKEN: u32 = 48;
/// The most handles of a disk.
pub const MOST_HANDLES: usize = 64;

/// As many handles of a disk as threads use it, at most [`MOST_HANDLES`]: the disk itself if it is
/// one. The caller uses the disk by these alone, with tokens below 2^48. Handle N is at queue N, or
/// at N modulo the number of queues.
pub fn split(disk: Arc<dyn Disk>, handles: usize) -> Vec<Arc<dyn Disk>> {
    let handles = handles.clamp(1, MOST_HANDLES);
    let queues = queues(&disk, handles);
    let mut of_queues: Vec<_> = (0..)
        .zip(&queues)
        .map(|(number, queue)| {
            share(queue.clone(), (number..handles).step_by(queues.len()).len()).into_iter()
        })
        .collect();
    (0..handles).filter_map(|number| of_queues[number % queues.len()].next()).collect()
}

/// The queues of a disk that so many handles have among them ([`split`]): one for each if there are
/// enough, and the disk itself if there is one.
pub fn queues(disk: &Arc<dyn Disk>, handles: usize) -> Vec<Arc<dyn Disk>> {
    if handles > 1 && disk.queue(1).is_some() {
        return (0..handles.min(MOST_HANDLES)).map_while(|number| disk.queue(number)).collect();
    }
    alloc::vec![disk.clone()]
}

/// So many handles of one queue, which is `disk`.
fn share(disk: Arc<dyn Disk>, handles: usize) -> Vec<Arc<dyn Disk>> {
    if handles == 1 {
        return alloc::vec![disk];
    }
    let depth = disk.geometry().queue_depth;
    let handle = || Handle {
        done: Mutex::new(VecDeque::with_capacity(depth)),
        event: Mutex::new(None),
        routine: Mutex::new(None),
        is_armed: Arc::default(),
        under_way: AtomicUsize::new(0),
        refused: AtomicBool::new(false),
        has_room: AtomicBool::new(false),
        copied: AtomicU64::new(0),
    };
    let share = depth.saturating_sub(handles - 1).max(1);
    let handles = (0..handles).map(|_| handle()).collect();
    let shared = Arc::new(Shared { disk, handles, share, told: AtomicU64::new(0) });
    let handles = shared.handles.len();
    (0..handles).map(|number| Arc::new(Split { shared: shared.clone(), number }) as Arc<dyn Disk>).collect()
}

/// A completion.
type Done = (u64, Result<(), Fault>);

/// What the handles share.
struct Shared {
    disk: Arc<dyn Disk>,
    handles: Vec<Handle>,
    /// Requests that a handle may have under way.
    share: usize,
    /// How many of the bytes that the disk has copied are counted by a handle.
    told: AtomicU64,
}

/// What a handle's consumer has not taken, and what wakes it.
struct Handle {
    /// Its room for as many as the disk takes was allocated at first.
    done: Mutex<VecDeque<Done>>,
    event: Mutex<Option<Event>>,
    routine: Mutex<Option<Routine>>,
    is_armed: Arc<AtomicBool>,
    /// Its requests whose completions the disk has not handed over.
    under_way: AtomicUsize,
    /// The disk had no room for it, and no handle has taken a completion since.
    refused: AtomicBool,
    /// One has, and its consumer has not looked since.
    has_room: AtomicBool,
    /// Its part of the bytes that the disk has copied.
    copied: AtomicU64,
}

impl Handle {
    /// There is something for its consumer, who may sleep.
    fn wake(&self) {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            let routine = self.routine.lock().clone();
            if let Some(routine) = routine {
                routine();
            }
        }
    }
}

impl Shared {
    /// Takes what the disk has completed, and gives each handle its own. `into` gets those of `me`.
    fn take(&self, me: usize, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        let (mut taken, mut count): ([Done; BATCH], _) = ([(0, Ok(())); BATCH], 0);
        self.disk.poll(most.min(BATCH), &mut |token, result| {
            // A disk hands over no more than it was asked for.
            if let Some(place) = taken.get_mut(count) {
                (*place, count) = ((token, result), count + 1);
            }
        });
        let mut mine = 0;
        for &(token, result) in &taken[..count] {
            let (number, token) = ((token >> TOKEN) as usize, token & ((1 << TOKEN) - 1));
            let Some(handle) = self.handles.get(number) else { continue };
            handle.under_way.fetch_sub(1, Ordering::AcqRel);
            if number == me {
                mine += 1;
                into(token, result);
            } else {
                handle.done.lock().push_back((token, result));
                handle.wake();
            }
        }
        if count > 0 {
            self.make_known(me);
        }
        mine
    }

    /// There is room in the disk's queue: wakes the handles that had found none.
    fn make_known(&self, me: usize) {
        for (number, handle) in self.handles.iter().enumerate() {
            // Either this sees that a handle was refused, or its second try finds the room; either
            // this sees that it is armed, or `arm` sees that there is room.
            if number != me
                && handle.refused.load(Ordering::SeqCst)
                && handle.refused.swap(false, Ordering::SeqCst)
            {
                handle.has_room.store(true, Ordering::SeqCst);
                handle.wake();
            }
        }
    }

    /// Starts a request of a handle, if that has less than its share under way. If the disk has no
    /// room it is asked twice: another handle may have taken a completion before it could see that
    /// this one waits.
    fn start<T>(
        &self,
        me: usize,
        with: T,
        start: impl Fn(T) -> Result<(), (Submit, T)>,
    ) -> Result<(), (Submit, T)> {
        let own = &self.handles[me];
        if own.under_way.fetch_add(1, Ordering::AcqRel) >= self.share {
            own.under_way.fetch_sub(1, Ordering::AcqRel);
            return Err((Submit::Busy, with));
        }
        let mut result = start(with);
        if let Err((Submit::Busy, with)) = result {
            own.refused.store(true, Ordering::SeqCst);
            result = start(with);
        }
        if result.is_err() {
            own.under_way.fetch_sub(1, Ordering::AcqRel);
        }
        result
    }

    /// Gives the disk a routine that wakes those who sleep. It takes no lock, since the disk may
    /// call it in an interrupt handler.
    fn watch(&self) {
        let watched: Vec<(Arc<AtomicBool>, Routine)> = self
            .handles
            .iter()
            .filter_map(|handle| Some((handle.is_armed.clone(), handle.routine.lock().clone()?)))
            .collect();
        self.disk.watch((!watched.is_empty()).then(|| {
            Arc::new(move || {
                for (is_armed, routine) in &watched {
                    if is_armed.swap(false, Ordering::AcqRel) {
                        routine();
                    }
                }
            }) as Routine
        }));
    }
}

/// One handle.
struct Split {
    shared: Arc<Shared>,
    number: usize,
}

impl Split {
    fn own(&self) -> &Handle {
        &self.shared.handles[self.number]
    }

    fn token(&self, token: u64) -> u64 {
        (self.number as u64) << TOKEN | token & ((1 << TOKEN) - 1)
    }
}

impl Disk for Split {
    fn geometry(&self) -> Geometry {
        self.shared.disk.geometry()
    }

    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit> {
        let disk = &self.shared.disk;
        let start = |()| disk.submit(request, self.token(token)).map_err(|why| (why, ()));
        self.shared.start(self.number, (), start).map_err(|(why, ())| why)
    }

    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        let mut polled = 0;
        while polled < most {
            let Some((token, result)) = self.own().done.lock().pop_front() else { break };
            polled += 1;
            into(token, result);
        }
        polled + if polled < most { self.shared.take(self.number, most - polled, into) } else { 0 }
    }

    fn event(&self) -> Option<Event> {
        let new = self.shared.disk.event();
        if new.is_some() {
            for (number, handle) in self.shared.handles.iter().enumerate() {
                if number != self.number {
                    *handle.event.lock() = new;
                    handle.wake();
                }
            }
        }
        let former = self.own().event.lock().take();
        new.or(former)
    }

    fn watch(&self, routine: Option<Routine>) {
        // The former one is released outside of the lock.
        let _former = core::mem::replace(&mut *self.own().routine.lock(), routine);
        self.shared.watch();
    }

    fn arm(&self) -> bool {
        let own = self.own();
        own.is_armed.store(true, Ordering::SeqCst);
        let has_room = own.has_room.swap(false, Ordering::SeqCst);
        // A consumer that takes no events is not kept awake by them.
        let has_some = !own.done.lock().is_empty();
        // The disk calls its routine once, and that wakes all handles that are armed.
        self.shared.disk.arm() || has_some || has_room
    }

    fn memory(&self) -> Vec<Arc<DmaBuffer>> {
        self.shared.disk.memory()
    }

    fn lend(&self, blocks: Range<u64>, loan: Loan) -> Option<Lease> {
        self.shared.disk.lend(blocks, loan)
    }

    fn commit(&self, lease: Lease, fua: bool, token: u64) -> Result<(), (Submit, Lease)> {
        let start = |lease| self.shared.disk.commit(lease, fua, self.token(token));
        self.shared.start(self.number, lease, start)
    }

    fn cancel(&self, lease: Lease) {
        self.shared.disk.cancel(lease);
    }

    fn is_durable(&self) -> bool {
        self.shared.disk.is_durable()
    }

    /// What the disk has copied since another handle asked: the sum of all is the disk's.
    fn copied(&self) -> u64 {
        let (all, own) = (self.shared.disk.copied(), &self.own().copied);
        if all > self.shared.told.load(Ordering::Acquire) {
            let told = self.shared.told.fetch_max(all, Ordering::AcqRel);
            own.fetch_add(all.saturating_sub(told), Ordering::AcqRel);
        }
        own.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::ram::RamDisk;
    use crate::simulated::SimulatedDisk;
    use crate::testing::{GEOMETRY, Queued, platform};

    fn handles(count: usize) -> Vec<Arc<dyn Disk>> {
        split(Arc::new(RamDisk::new(&platform(), 512, 64).expect("memory")), count)
    }

    fn flush(disk: &dyn Disk, token: u64) {
        disk.submit(&Request::Flush, token).expect("room");
    }

    fn polled(disk: &dyn Disk) -> Vec<u64> {
        let mut tokens = Vec::new();
        disk.poll(BATCH, &mut |token, result| {
            assert_eq!(result, Ok(()));
            tokens.push(token);
        });
        tokens
    }

    #[test]
    fn each_handle_gets_the_completions_of_its_own_requests_whoever_polls() {
        let handles = handles(3);
        flush(&*handles[1], 7);
        flush(&*handles[2], 7);
        flush(&*handles[1], 8);
        assert_eq!(polled(&*handles[0]), []);
        assert_eq!(polled(&*handles[1]), [7, 8]);
        assert_eq!(polled(&*handles[2]), [7]);
        assert_eq!(polled(&*handles[1]), []);
    }

    #[test]
    fn a_handle_that_is_armed_wakes_when_another_one_has_taken_its_completion() {
        let handles = handles(2);
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        handles[1].watch(Some(Arc::new(move || _ = count.fetch_add(1, Ordering::Relaxed))));
        flush(&*handles[1], 1);
        assert!(handles[1].arm(), "it has completed already");
        assert_eq!(polled(&*handles[0]), []);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert!(handles[1].arm());
        assert_eq!(polled(&*handles[1]), [1]);
        assert!(!handles[1].arm());
        // The disk's routine wakes a handle whose request completes later.
        flush(&*handles[1], 2);
        assert_eq!((calls.load(Ordering::Relaxed), polled(&*handles[1])), (2, alloc::vec![2]));
    }

    /// Handles of a disk that takes so many requests at once.
    fn small(queue_depth: usize, count: usize) -> Vec<Arc<dyn Disk>> {
        let geometry = Geometry { queue_depth, ..GEOMETRY };
        split(Arc::new(SimulatedDisk::new(geometry, 1)), count)
    }

    #[test]
    fn a_handle_that_found_no_room_is_woken_or_does_not_sleep_when_another_one_has_made_some() {
        let handles = small(1, 2);
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        handles[1].watch(Some(Arc::new(move || _ = count.fetch_add(1, Ordering::Relaxed))));
        for armed_first in [false, true] {
            flush(&*handles[0], 1);
            assert_eq!(handles[1].submit(&Request::Flush, 2), Err(Submit::Busy));
            let before = calls.load(Ordering::Relaxed);
            // It stays armed although the disk has something, which is not its own.
            assert!(!armed_first || handles[1].arm());
            assert_eq!(polled(&*handles[0]), [1]);
            match armed_first {
                true => assert_eq!(calls.load(Ordering::Relaxed), before + 1),
                false => assert!(handles[1].arm(), "there is room"),
            }
            flush(&*handles[1], 2);
            assert_eq!(polled(&*handles[1]), [2]);
        }
    }

    /// A disk whose queue N has N + 1 blocks.
    fn queued(queues: u64) -> Arc<dyn Disk> {
        let queue =
            |blocks| Arc::new(RamDisk::new(&platform(), 512, blocks).expect("memory")) as Arc<dyn Disk>;
        Arc::new(Queued((1..=queues).map(queue).collect()))
    }

    #[test]
    fn a_handle_has_a_queue_of_its_own_if_there_is_one_for_each() {
        for (count, most) in [(2, 2), (2, 5), (3, 3)] {
            let disk = queued(most);
            let handles = split(disk.clone(), count);
            assert_eq!((handles.len(), queues(&disk, count).len()), (count, count));
            for (number, handle) in handles.iter().enumerate() {
                assert!(Arc::ptr_eq(handle, &disk.queue(number).expect("a queue")), "{number}");
            }
        }
        // One handle is at the disk itself.
        let disk = queued(2);
        assert!(Arc::ptr_eq(&split(disk.clone(), 1)[0], &disk) && queues(&disk, 1).len() == 1);
    }

    #[test]
    fn handles_of_a_disk_with_fewer_queues_are_spread_over_all_of_these() {
        let disk = queued(2);
        let handles = split(disk.clone(), 5);
        let blocks: Vec<u64> = handles.iter().map(|handle| handle.geometry().blocks).collect();
        assert_eq!((blocks, queues(&disk, 5).len()), ([1, 2, 1, 2, 1].into(), 2));
        for (token, handle) in (0..).zip(&handles) {
            flush(&**handle, token);
        }
        for (token, handle) in (0..).zip(&handles) {
            assert_eq!(polled(&**handle), [token]);
        }
    }

    #[test]
    fn no_handle_fills_the_disk_alone() {
        let handles = small(4, 3);
        flush(&*handles[0], 1);
        flush(&*handles[0], 2);
        assert_eq!(handles[0].submit(&Request::Flush, 3), Err(Submit::Busy));
        flush(&*handles[1], 1);
        flush(&*handles[2], 1);
        let mut all = polled(&*handles[0]);
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        flush(&*handles[0], 3);
    }

    #[test]
    fn what_the_disk_has_copied_is_counted_by_one_handle() {
        let handles = handles(2);
        let memory = crate::testing::memory(512);
        let data = crate::Data { buffer: &memory, pieces: &[crate::Piece { offset: 0, len: 512 }] };
        let write = || handles[1].submit(&Request::Write { block: 0, from: data, fua: false }, 1);
        assert_eq!((write(), handles[1].copied(), handles[0].copied()), (Ok(()), 512, 0));
        assert_eq!((write(), handles[0].copied(), handles[1].copied()), (Ok(()), 512, 512));
    }

    #[test]
    fn each_handle_sees_an_event_once() {
        let disk = Arc::new(RamDisk::new(&platform(), 512, 64).expect("memory"));
        let handles = split(disk.clone(), 2);
        disk.resize(32).expect("a smaller one");
        for handle in &handles {
            assert_eq!(handle.event(), Some(Event::Resized { blocks: 32 }));
            assert_eq!(handle.event(), None);
        }
    }
}

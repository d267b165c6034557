//! Queue slots: the fast path from a handle to a queue, by one lock and one comparison.
//!
//! The send queue of a queue pair and the consumer side of a CQ each live in a slot, and a slot can
//! outlive its queue. A face that names objects by handles keeps one slot for each index of its
//! table and creates each object in the slot of its index, with its handle. So a handle always
//! leads to a slot, and under the slot's lock one comparison decides whether the handle is valid
//! and the slot open.
//!
//! A slot is closed while there is at least one reason why more has to be done than to use the
//! queue. A caller that finds it closed, or locked, takes the slow path through the object, which
//! finds out why.
//!
//! Locks: a slot's own (spins, leaf).

use alloc::sync::Arc;
use core::hint::cold_path;

use platform::sync::{Mutex, MutexGuard};

/// A word that no handle has.
const NO_HANDLE: u64 = u64::MAX;

/// The agent's own reason to close a slot: the queue takes nothing at present.
pub(crate) const NOT_READY: u32 = 1;
/// The agent's other reason to close a slot: one user has the queue for itself.
const TAKEN: u32 = 1 << 31;

/// The place of one queue. See [`crate::SendSlot`] and [`crate::CqSlot`].
pub struct QueueSlot<T>(Mutex<Inside<T>>);

/// What a slot's lock guards.
struct Inside<T> {
    /// The valid handle while the slot is open, else [`NO_HANDLE`]: the one word that the fast path
    /// compares.
    open: u64,
    /// The valid handle, whether the slot is open or not.
    handle: u64,
    /// The reasons why the slot is closed, a bit each.
    closed: u32,
    /// Which object owns the queue.
    owner: u64,
    queue: Option<T>,
}

impl<T> Default for QueueSlot<T> {
    fn default() -> QueueSlot<T> {
        QueueSlot(Mutex::new(Inside { open: NO_HANDLE, handle: NO_HANDLE, closed: 0, owner: 0, queue: None }))
    }
}

impl<T> Inside<T> {
    /// Brings `open` up to date after a change of the other fields.
    fn update(&mut self) {
        self.open = if self.closed == 0 && self.queue.is_some() { self.handle } else { NO_HANDLE };
    }

    fn set_closed(&mut self, reason: u32, closed: bool) {
        self.closed = if closed { self.closed | reason } else { self.closed & !reason };
        self.update();
    }
}

/// The lock of an open slot.
pub(crate) struct SlotGuard<'a, T>(MutexGuard<'a, Inside<T>>);

impl<T> SlotGuard<'_, T> {
    #[inline(always)]
    pub(crate) fn queue(&mut self) -> Option<&mut T> {
        self.0.queue.as_mut()
    }
}

impl<T> QueueSlot<T> {
    /// Locks the slot if it is open for this handle and no other thread holds the lock.
    #[inline(always)]
    pub(crate) fn try_lock(&self, handle: u64) -> Option<SlotGuard<'_, T>> {
        let Some(inside) = self.0.try_lock() else {
            cold_path();
            return None;
        };
        if inside.open != handle {
            cold_path();
            return None;
        }
        Some(SlotGuard(inside))
    }

    /// Gives one user the queue for itself, without the lock, if the slot is open for this handle:
    /// the slot is closed until [`QueueSlot::end_turn`]. Returns the present owner, which the user
    /// has to name then, and the queue.
    #[inline(always)]
    pub(crate) fn take_turn(&self, handle: u64) -> Option<(u64, T)>
    where
        T: Clone,
    {
        let mut inside = self.0.lock();
        if inside.open != handle {
            return None;
        }
        let queue = inside.queue.clone()?;
        inside.set_closed(TAKEN, true);
        Some((inside.owner, queue))
    }

    /// Ends a turn. If the slot has the owner of that time and nothing else has closed it, runs
    /// `last` under the slot's lock, and returns true.
    #[inline(always)]
    pub(crate) fn end_turn(&self, owner: u64, last: impl FnOnce(&T)) -> bool {
        let mut inside = self.0.lock();
        if inside.owner != owner {
            return false;
        }
        inside.set_closed(TAKEN, false);
        match &inside.queue {
            Some(queue) if inside.closed == 0 => {
                last(queue);
                true
            }
            _ => false,
        }
    }

    /// Locks the slot if it is closed for none but the reasons `but`. Also returns whether it is
    /// closed for one of them.
    #[inline(always)]
    pub(crate) fn lock_but(&self, handle: u64, but: u32) -> Option<(SlotGuard<'_, T>, bool)> {
        let inside = self.0.lock();
        if inside.handle != handle || handle == NO_HANDLE || inside.closed & !but != 0 {
            return None;
        }
        let closed = inside.closed != 0;
        Some((SlotGuard(inside), closed))
    }

    /// Closes the slot for a reason, or removes that reason, as `closed` decides. `closed` runs
    /// under the slot's lock, so that of several calls the last one is right. Does nothing if the
    /// handle is not valid. `reason` is one bit other than bits 0 and 31, which are the agent's.
    pub fn set_closed(&self, handle: u64, reason: u32, closed: impl FnOnce() -> bool) {
        let mut inside = self.0.lock();
        if inside.handle == handle {
            let closed = closed();
            inside.set_closed(reason, closed);
        }
    }
}

/// The slot in which an object's queue is created.
pub struct SlotParams<'a, T> {
    /// The slot, which must be empty.
    pub slot: &'a Arc<QueueSlot<T>>,
    /// The handle that is valid for it. All bits set: none.
    pub handle: u64,
    /// The reasons why it is closed at first.
    pub closed: u32,
}

impl<T> Clone for SlotParams<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SlotParams<'_, T> {}

/// An object's ownership of a slot and of the queue in it.
pub(crate) struct SlotOwner<T> {
    slot: Arc<QueueSlot<T>>,
    owner: u64,
}

impl<T> SlotOwner<T> {
    /// Puts a queue into a slot; `None` if the slot is not empty. Without parameters the queue gets
    /// a slot of its own that no handle reaches. `owner` differs from that of every other object
    /// that may use the slot.
    pub(crate) fn new(
        params: Option<SlotParams<'_, T>>,
        owner: u64,
        closed: u32,
        queue: T,
    ) -> Option<SlotOwner<T>> {
        let (slot, handle, more) = match params {
            Some(SlotParams { slot, handle, closed }) => (slot.clone(), handle, closed),
            None => (Arc::default(), NO_HANDLE, 0),
        };
        let mut inside = slot.0.lock();
        if inside.queue.is_some() {
            return None;
        }
        *inside = Inside { open: NO_HANDLE, handle, closed: closed | more, owner, queue: Some(queue) };
        inside.update();
        drop(inside);
        Some(SlotOwner { slot, owner })
    }

    /// Locks the slot, open or closed.
    pub(crate) fn lock(&self) -> OwnerGuard<'_, T> {
        OwnerGuard { inside: self.slot.0.lock(), owner: self.owner }
    }

    /// [`QueueSlot::set_closed`] for the agent's own reason.
    pub(crate) fn set_not_ready(&self, not_ready: impl FnOnce() -> bool) {
        let mut inside = self.slot.0.lock();
        if inside.owner == self.owner {
            let closed = not_ready();
            inside.set_closed(NOT_READY, closed);
        }
    }

    /// Takes the queue out and leaves the slot empty; `None` if that was done before.
    pub(crate) fn vacate(&self) -> Option<T> {
        let mut inside = self.slot.0.lock();
        if inside.owner != self.owner {
            return None;
        }
        inside.owner = 0;
        inside.handle = NO_HANDLE;
        let queue = inside.queue.take();
        inside.update();
        queue
    }
}

/// The lock of a slot, held by the slot's owner or a former owner.
pub(crate) struct OwnerGuard<'a, T> {
    inside: MutexGuard<'a, Inside<T>>,
    owner: u64,
}

impl<T> OwnerGuard<'_, T> {
    /// Closes the slot for a reason, as [`QueueSlot::set_closed`] does.
    pub(crate) fn close(&mut self, reason: u32) {
        if self.queue().is_some() {
            self.inside.set_closed(reason, true);
        }
    }

    /// Whether a user of the slot has this owner's queue for itself.
    pub(crate) fn is_taken(&self) -> bool {
        self.inside.owner == self.owner && self.inside.closed & TAKEN != 0
    }

    /// The queue; `None` if the slot is no longer this owner's.
    #[inline]
    pub(crate) fn queue(&mut self) -> Option<&mut T> {
        if self.inside.owner == self.owner { self.inside.queue.as_mut() } else { None }
    }
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use super::*;

    const OTHER_REASON: u32 = 2;

    fn params(slot: &Arc<QueueSlot<u8>>, handle: u64) -> Option<SlotParams<'_, u8>> {
        Some(SlotParams { slot, handle, closed: OTHER_REASON })
    }

    #[test]
    fn a_slot_is_open_while_no_reason_closes_it() {
        let slot = Arc::default();
        let owner = SlotOwner::new(params(&slot, 7), 1, NOT_READY, 5).unwrap();
        assert!(slot.try_lock(7).is_none());
        slot.set_closed(7, OTHER_REASON, || false);
        assert!(slot.try_lock(7).is_none());
        owner.set_not_ready(|| false);
        assert_eq!(slot.try_lock(7).unwrap().queue(), Some(&mut 5));
        assert!(slot.try_lock(8).is_none(), "another handle");
        let guard = slot.try_lock(7);
        assert!(slot.try_lock(7).is_none(), "locked");
        drop(guard);
        slot.set_closed(7, OTHER_REASON, || true);
        assert!(slot.try_lock(7).is_none());
        let closed = |but| slot.lock_but(7, but).map(|(_, closed)| closed);
        assert_eq!((closed(OTHER_REASON), closed(NOT_READY)), (Some(true), None));
        owner.set_not_ready(|| true);
        assert_eq!((closed(OTHER_REASON), closed(OTHER_REASON | NOT_READY)), (None, Some(true)));
        slot.set_closed(7, OTHER_REASON, || false);
        owner.set_not_ready(|| false);
        assert_eq!((closed(0), slot.lock_but(8, !0).is_some()), (Some(false), false));
        owner.vacate();
        assert!(closed(!0).is_none() && slot.lock_but(NO_HANDLE, !0).is_none());
    }

    #[test]
    fn a_former_owner_or_handle_changes_nothing() {
        let slot = Arc::default();
        let former = SlotOwner::new(params(&slot, 7), 1, 0, 5).unwrap();
        assert!(SlotOwner::new(params(&slot, 8), 2, 0, 6).is_none(), "not empty");
        assert_eq!(former.vacate(), Some(5));
        assert!(slot.try_lock(7).is_none());
        let owner = SlotOwner::new(params(&slot, 8), 2, 0, 6).unwrap();
        slot.set_closed(8, OTHER_REASON, || false);
        slot.set_closed(7, OTHER_REASON, || true);
        former.set_not_ready(|| true);
        assert_eq!((former.vacate(), former.lock().queue()), (None, None));
        assert_eq!(slot.try_lock(8).unwrap().queue(), Some(&mut 6));
        assert_eq!(owner.lock().queue(), Some(&mut 6));
    }

    #[test]
    fn a_turn_closes_the_slot_and_ends_with_its_owner() {
        let slot = Arc::default();
        let former = SlotOwner::new(Some(SlotParams { slot: &slot, handle: 7, closed: 0 }), 1, 0, 5).unwrap();
        assert_eq!(slot.take_turn(8), None, "another handle");
        assert_eq!(slot.take_turn(7), Some((1, 5)));
        assert!(former.lock().is_taken() && slot.try_lock(7).is_none());
        assert_eq!(slot.take_turn(7), None, "one user at a time");
        let mut seen = None;
        assert!(slot.end_turn(1, |queue| seen = Some(*queue)));
        assert_eq!((seen, former.lock().is_taken()), (Some(5), false));
        // Closed for another reason meanwhile: the turn ends, and nothing runs.
        assert!(slot.take_turn(7).is_some());
        former.set_not_ready(|| true);
        assert!(!slot.end_turn(1, |_| unreachable!()));
        former.set_not_ready(|| false);
        // The owner left meanwhile: the successor is not touched.
        assert!(slot.take_turn(7).is_some());
        assert_eq!(former.vacate(), Some(5));
        let owner = SlotOwner::new(Some(SlotParams { slot: &slot, handle: 7, closed: 0 }), 2, 0, 6).unwrap();
        assert!(!slot.end_turn(1, |_| unreachable!()));
        assert!(slot.take_turn(7).is_some() && owner.lock().is_taken() && !former.lock().is_taken());
        assert!(!slot.end_turn(1, |_| unreachable!()) && owner.lock().is_taken());
    }

    #[test]
    fn no_word_opens_a_slot_without_a_queue() {
        let slot: Arc<QueueSlot<u8>> = Arc::default();
        let owner = SlotOwner::new(params(&slot, 7), 1, 0, 5).unwrap();
        slot.set_closed(7, OTHER_REASON, || false);
        owner.vacate();
        slot.set_closed(NO_HANDLE, OTHER_REASON, || false);
        for handle in [0, 7, NO_HANDLE] {
            assert!(slot.try_lock(handle).is_none_or(|mut guard| guard.queue().is_none()));
        }
    }
}

#[cfg(all(test, ferrovia_model))]
mod models {
    use loom::thread;
    use platform::model::{Watched, check, finds};

    use super::*;

    /// A poster uses a slot's queue through its handle, while another thread takes the queue out
    /// and puts a successor in. The mutant poster goes by the index alone.
    fn successor(mutant_compares_nothing: bool) {
        let slot: Arc<QueueSlot<Watched>> = Arc::default();
        let params = |handle| Some(SlotParams { slot: &slot, handle, closed: 0 });
        let former = SlotOwner::new(params(7), 1, 0, Watched::new(0)).unwrap();
        let poster = thread::spawn({
            let slot = slot.clone();
            move || {
                let handle = if mutant_compares_nothing { slot.0.lock().open } else { 7 };
                if let Some(mut guard) = slot.try_lock(handle) {
                    guard.queue().expect("an open slot has a queue").add();
                }
            }
        });
        let queue = former.vacate().expect("the queue");
        let owner = SlotOwner::new(params(8), 2, 0, Watched::new(0)).expect("an empty slot");
        assert!(former.lock().queue().is_none());
        // This thread has the queue that it took out for itself.
        queue.add();
        poster.join().unwrap();
        assert_eq!(owner.lock().queue().map(|queue| queue.get()), Some(0), "a post to the successor");
    }

    #[test]
    fn model_a_handle_never_reaches_the_successor() {
        check(|| successor(false));
    }

    #[test]
    fn mutant_model_that_does_not_compare_the_handle() {
        finds(|| successor(true));
    }
}

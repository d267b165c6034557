//! An array that grows as its indices come into use, and is read without a lock.
//!
//! The values are copied into a larger array when they no longer fit. A reader may have the former
//! array at that moment, so all arrays live as long as the whole: together they take about twice
//! the memory of the last one. A read takes one load more than a read of a slice.
//!
//! Locks: `arrays` (spins, leaf), for changes only.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use crate::{OutOfMemory, heap};

/// Values that are allocated at first.
const FIRST: usize = if cfg!(ferrovia_model) { 1 } else { 16 };

type Array<T> = Box<[T]>;

/// Up to a limit of values. See the module's documentation.
pub struct Growing<T> {
    /// The array in force: the last of `arrays`.
    current: AtomicPtr<Array<T>>,
    /// All arrays that were ever in force.
    arrays: Mutex<Vec<Arc<Array<T>>>>,
    /// The values are being copied into a larger array.
    grows: AtomicBool,
    limit: usize,
    /// It grows by this part of its size.
    part: usize,
}

impl<T> Growing<T> {
    /// No values yet; indices below `limit` can come into use.
    pub fn new(limit: usize) -> Result<Growing<T>, OutOfMemory> {
        Growing::by_part(limit, 1)
    }

    /// As [`Growing::new`], but the array grows by a quarter at a time: for values that own much
    /// more memory than they take in the array, and own it from their creation on. All arrays
    /// together take five times the memory of the last one.
    pub fn by_quarters(limit: usize) -> Result<Growing<T>, OutOfMemory> {
        Growing::by_part(limit, 4)
    }

    fn by_part(limit: usize, part: usize) -> Result<Growing<T>, OutOfMemory> {
        let empty: Arc<Array<T>> = heap::arc(Box::default()).map_err(|_| OutOfMemory)?;
        let current = AtomicPtr::new(Arc::as_ptr(&empty).cast_mut());
        let mut arrays = Vec::new();
        arrays.try_reserve(1).map_err(|_| OutOfMemory)?;
        arrays.push(empty);
        Ok(Growing { current, arrays: Mutex::new(arrays), grows: AtomicBool::new(false), limit, part })
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "a pointer into an array that lives as long as this")]
    fn array(&self) -> &[T] {
        let array = self.current.load(Ordering::Acquire);
        // SAFETY: `current` only ever points into an `Arc` that is in `arrays`, from which nothing
        // is removed, and it was stored with release ordering after the array was complete. Arrays
        // are never changed but through shared references to their values.
        unsafe { &*array }
    }

    /// The value at an index that came into use.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.array().get(index)
    }

    /// Brings an index into use. If the array has to grow for that, `copy` copies a value into the
    /// new array, and `create` makes the others. Fails if there is no memory, or if the index is
    /// not below the limit.
    pub fn reach(
        &self,
        index: usize,
        copy: impl Fn(&T) -> T,
        create: impl Fn() -> Result<T, OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let mut arrays = self.arrays.lock();
        if index < self.array().len() {
            return Ok(());
        }
        if index >= self.limit {
            return Err(OutOfMemory);
        }
        let len = self.array().len();
        let size = (len + len / self.part).max(index + 1).next_multiple_of(FIRST).min(self.limit);
        let (mut larger, mut new) = (Vec::new(), Vec::new());
        larger.try_reserve_exact(size).map_err(|_| OutOfMemory)?;
        arrays.try_reserve(1).map_err(|_| OutOfMemory)?;
        let more = size - self.array().len();
        new.try_reserve_exact(more).map_err(|_| OutOfMemory)?;
        for _ in 0..more {
            new.push(create()?);
        }
        heap::room_for_arc::<Array<T>>()?;
        self.grows.store(true, Ordering::Relaxed);
        // See `store`.
        fence(Ordering::SeqCst);
        larger.extend(self.array().iter().map(copy));
        larger.append(&mut new);
        let larger = Arc::new(larger.into_boxed_slice());
        let pointer = Arc::as_ptr(&larger).cast_mut();
        arrays.push(larger);
        self.current.store(pointer, Ordering::Release);
        self.grows.store(false, Ordering::Release);
        Ok(())
    }

    /// Stores into the value at an index that came into use, without the lock while the array does
    /// not grow. `store` may run twice. Of one value there must be one `store` at a time.
    #[inline]
    pub fn store(&self, index: usize, store: impl Fn(&T)) {
        let array = self.array();
        let Some(value) = array.get(index) else { return };
        store(value);
        // Either this thread sees that the array grows, or the thread that makes it grow copies the
        // new value.
        fence(Ordering::SeqCst);
        if self.grows.load(Ordering::Acquire) || !core::ptr::eq(self.array(), array) {
            self.store_again(index, store);
        }
    }

    #[cold]
    fn store_again(&self, index: usize, store: impl Fn(&T)) {
        let _arrays = self.arrays.lock();
        if let Some(value) = self.array().get(index) {
            store(value);
        }
    }
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use core::sync::atomic::AtomicU32;

    use super::*;

    fn copy(value: &AtomicU32) -> AtomicU32 {
        AtomicU32::new(value.load(Ordering::Relaxed))
    }

    #[test]
    fn values_survive_growing_and_the_limit_holds() {
        let values = Growing::<AtomicU32>::new(100).unwrap();
        assert!(values.get(0).is_none());
        let reach = |index| values.reach(index, copy, || Ok(AtomicU32::new(0)));
        let set = |index, to| values.store(index, |value| value.store(to, Ordering::Relaxed));
        let get = |index| values.get(index).map(|value| value.load(Ordering::Relaxed));
        assert_eq!(reach(3), Ok(()));
        set(3, 7);
        assert_eq!((get(3), get(FIRST - 1), get(FIRST)), (Some(7), Some(0), None));
        assert_eq!(reach(70), Ok(()));
        set(70, 8);
        assert_eq!((get(3), get(70), get(79), get(80)), (Some(7), Some(8), Some(0), None));
        assert_eq!(reach(99), Ok(()));
        assert_eq!((get(3), get(70), get(99), get(100)), (Some(7), Some(8), Some(0), None));
        assert_eq!(reach(100), Err(OutOfMemory));
    }

    #[test]
    fn an_array_grows_by_its_length_or_by_a_quarter_of_it() {
        for (values, after) in [
            (Growing::<AtomicU32>::new(1 << 20).unwrap(), 8 * FIRST),
            (Growing::by_quarters(1 << 20).unwrap(), 5 * FIRST),
        ] {
            for reached in [0, 4 * FIRST - 1, 4 * FIRST] {
                values.reach(reached, copy, || Ok(AtomicU32::new(0))).unwrap();
            }
            assert!(values.get(after - 1).is_some() && values.get(after).is_none());
        }
    }

    #[test]
    fn what_is_stored_while_the_array_grows_is_stored_in_the_larger_one() {
        let values = Growing::<AtomicU32>::new(1 << 20).unwrap();
        let reach = |index| values.reach(index, copy, || Ok(AtomicU32::new(0)));
        reach(3).unwrap();
        let mut reached = FIRST;
        for stored in 1..4 {
            // The array grows when its value is at hand and not yet changed.
            let grows = core::cell::Cell::new(true);
            values.store(3, |value| {
                if grows.take() {
                    reach(reached).unwrap();
                }
                value.store(stored, Ordering::Relaxed);
            });
            assert_eq!(values.get(3).map(|value| value.load(Ordering::Relaxed)), Some(stored));
            reached *= 4;
        }
    }

    #[test]
    fn values_that_own_much_are_created_a_quarter_at_a_time() {
        let values = Growing::<AtomicU32>::by_quarters(1 << 20).unwrap();
        let mut created = 0;
        for index in 0..1000 {
            values.reach(index, copy, || Ok(AtomicU32::new(0))).unwrap();
            while values.get(created).is_some() {
                created += 1;
            }
            let unused = created - index - 1;
            assert!(unused <= index / 4 + FIRST, "{unused} values are unused at {index}");
        }
    }
}

#[cfg(all(test, ferrovia_model))]
mod models {
    use alloc::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::model::check;
    use crate::sync::atomic::AtomicU32;

    fn reach(values: &Growing<AtomicU32>, index: usize) {
        let copy = |value: &AtomicU32| AtomicU32::new(value.load(Ordering::Acquire));
        values.reach(index, copy, || Ok(AtomicU32::new(0))).unwrap();
    }

    fn get(values: &Growing<AtomicU32>, index: usize) -> Option<u32> {
        values.get(index).map(|value| value.load(Ordering::Acquire))
    }

    /// A reader looks values up while the array grows: it finds what was stored before it began.
    #[test]
    fn model_a_reader_finds_a_value_while_the_array_grows() {
        check(|| {
            let values = Arc::new(Growing::<AtomicU32>::new(2).unwrap());
            reach(&values, 0);
            values.store(0, |value| value.store(7, Ordering::Release));
            let reader = thread::spawn({
                let values = values.clone();
                move || {
                    assert_eq!(get(&values, 0), Some(7));
                    assert!(matches!(get(&values, 1), None | Some(0)));
                }
            });
            reach(&values, 1);
            reader.join().unwrap();
            assert_eq!((get(&values, 0), get(&values, 1)), (Some(7), Some(0)));
        });
    }

    /// A value is stored while the array grows: it is not lost.
    #[test]
    fn model_a_value_stored_while_the_array_grows_is_not_lost() {
        check(|| {
            let values = Arc::new(Growing::<AtomicU32>::new(2).unwrap());
            reach(&values, 0);
            let writer = thread::spawn({
                let values = values.clone();
                move || {
                    values.store(0, |value| value.store(7, Ordering::Release));
                    assert_eq!(get(&values, 0), Some(7), "lost for the writer itself");
                }
            });
            reach(&values, 1);
            writer.join().unwrap();
            assert_eq!(get(&values, 0), Some(7));
        });
    }
}

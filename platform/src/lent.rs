//! Memory that its owner lends to all threads, and takes back.
//!
//! A thread that uses the memory counts itself in, by one step on a word and without a lock. The
//! owner closes the word and waits until the last user has left, so that the memory may be freed or
//! unmapped as soon as [`Lent::take_back`] has returned.
//!
//! Locks: none. A user stays inside for a few instructions, and the owner yields meanwhile.
#![expect(unsafe_code, reason = "a cell that its users read while its owner is kept out")]

use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::ptr::NonNull;

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::yield_now;
use crate::{DmaBuffer, OutOfBounds, SharedSlice};

/// The place takes no users.
const CLOSED: u32 = 1 << 31;
/// One thread has the place for itself, to change what is in it. The other bits count users.
const CHANGES: u32 = 1 << 30;

/// Memory that can be lent.
pub struct Lendable(Kind);

enum Kind {
    Buffer { buffer: Arc<DmaBuffer>, offset: usize, len: usize },
    Raw { ptr: NonNull<u8>, len: usize },
}

// SAFETY: a buffer may be used by any thread, and so may raw memory, by the contract of
// `Lendable::raw`.
unsafe impl Send for Lendable {}
// SAFETY: as above.
unsafe impl Sync for Lendable {}

impl Lendable {
    /// `len` bytes of a buffer, from `offset` on. The buffer lives as long as this.
    pub fn buffer(buffer: Arc<DmaBuffer>, offset: usize, len: usize) -> Result<Lendable, OutOfBounds> {
        buffer.slice().get(offset, len)?;
        Ok(Lendable(Kind::Buffer { buffer, offset, len }))
    }

    /// `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// As [`SharedSlice::from_raw`], until this is dropped.
    pub const unsafe fn raw(ptr: NonNull<u8>, len: usize) -> Lendable {
        Lendable(Kind::Raw { ptr, len })
    }

    /// The memory.
    pub fn slice(&self) -> SharedSlice<'_> {
        match &self.0 {
            Kind::Buffer { buffer, offset, len } => {
                // Within the buffer: `Lendable::buffer` has checked it.
                let slice = buffer.slice();
                slice.get(*offset, *len).unwrap_or(slice)
            }
            // SAFETY: the contract of `Lendable::raw`.
            Kind::Raw { ptr, len } => unsafe { SharedSlice::from_raw(*ptr, *len) },
        }
    }
}

/// Memory that is lent.
struct Loan {
    tag: u64,
    /// Where the memory is. The users' path looks here, and not into `memory`.
    start: NonNull<u8>,
    len: usize,
    memory: Lendable,
}

// SAFETY: `start` is the address of `memory`, which any thread may use.
unsafe impl Send for Loan {}

/// The place of one piece of memory that is lent at times.
pub struct Lent {
    state: AtomicU32,
    /// Changed only by the thread that set [`CHANGES`], while there are no users.
    loan: UnsafeCell<Option<Loan>>,
}

// SAFETY: users read the cell only while they are counted in, and the thread that writes it has set
// `CHANGES` and has seen that none is; see `lend` and `take_back`.
unsafe impl Sync for Lent {}

/// A user of the memory. It leaves when this is dropped.
struct Inside<'a>(&'a AtomicU32);

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Default for Lent {
    fn default() -> Lent {
        Lent::new()
    }
}

impl Lent {
    /// No memory is lent.
    pub fn new() -> Lent {
        Lent { state: AtomicU32::new(CLOSED), loan: UnsafeCell::new(None) }
    }

    /// Lends memory to users that know its tag. Gives the memory back if some is lent already.
    pub fn lend(&self, tag: u64, memory: Lendable) -> Result<(), Lendable> {
        let empty =
            self.state.compare_exchange(CLOSED, CLOSED | CHANGES, Ordering::Acquire, Ordering::Relaxed);
        if empty.is_err() {
            return Err(memory);
        }
        let slice = memory.slice();
        let Some(start) = NonNull::new(slice.as_ptr()) else {
            self.state.store(CLOSED, Ordering::Release);
            return Err(memory);
        };
        let loan = Loan { tag, start, len: slice.len(), memory };
        // SAFETY: this thread set `CHANGES`, and there was no user then. None enters while `CLOSED`
        // is set.
        unsafe { *self.loan.get() = Some(loan) };
        self.state.store(0, Ordering::Release);
        Ok(())
    }

    /// Runs `f` on the memory if some is lent with this tag. `f` must neither wait nor take long.
    #[inline(always)]
    pub fn with<R>(&self, tag: u64, f: impl FnOnce(SharedSlice<'_>) -> R) -> Option<R> {
        let more = |state: u32| (state & CLOSED == 0).then_some(state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        let _inside = Inside(&self.state);
        // SAFETY: this thread is counted as a user, so no thread writes the cell: see `take_back`.
        match unsafe { &*self.loan.get() } {
            // SAFETY: the loan has the memory, and so it is valid until the loan ends.
            Some(loan) if loan.tag == tag => Some(f(unsafe { SharedSlice::from_raw(loan.start, loan.len) })),
            _ => None,
        }
    }

    /// Ends the loan: when this returns, no user is inside. `None` if no memory is lent.
    pub fn take_back(&self) -> Option<Lendable> {
        let close = |state: u32| (state & CLOSED == 0).then_some(state | CLOSED | CHANGES);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, close).ok()?;
        while self.state.load(Ordering::Acquire) != CLOSED | CHANGES {
            yield_now();
            core::hint::spin_loop();
        }
        // SAFETY: this thread set `CHANGES`, all users have left, and none enters while `CLOSED` is
        // set.
        let loan = unsafe { (*self.loan.get()).take() };
        self.state.store(CLOSED, Ordering::Release);
        loan.map(|loan| loan.memory)
    }
}

#[cfg(all(test, ferrovia_model))]
mod models {
    use alloc::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::model::{Watched, check, finds};

    /// The first piece's tag, which users know, and the tag of the second piece.
    const TAGS: [u64; 2] = [1, 2];
    static PIECES: [core::sync::atomic::AtomicU64; 2] = [const { core::sync::atomic::AtomicU64::new(0) }; 2];

    fn piece(number: usize) -> Lendable {
        let word = &PIECES[number];
        // SAFETY: the word is never freed, and nothing refers to it.
        unsafe { Lendable::raw(NonNull::from(word).cast(), size_of_val(word)) }
    }

    fn is_piece(memory: SharedSlice<'_>, number: usize) -> bool {
        memory.as_ptr().cast_const().addr() == PIECES[number].as_ptr().addr()
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Mutant {
        None,
        /// A user looks at the word, and does not count itself in.
        OnlyLooks,
        /// A user's leaving orders nothing.
        LeavesRelaxed,
        /// The owner does not wait for users.
        DoesNotWait,
    }

    /// The place, and a number that stands for the memory of the first piece.
    struct Scene {
        lent: Lent,
        memory: Watched,
    }

    impl Scene {
        fn new() -> Arc<Scene> {
            Arc::new(Scene { lent: Lent::new(), memory: Watched::new(0) })
        }

        /// A user of the first piece.
        fn reads(&self, mutant: Mutant) {
            let state = &self.lent.state;
            let more = |state: u32| (state & CLOSED == 0).then_some(state + 1);
            match mutant {
                Mutant::OnlyLooks => {
                    if state.load(Ordering::Acquire) & CLOSED == 0 {
                        self.memory.get();
                    }
                }
                Mutant::LeavesRelaxed => {
                    if state.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok() {
                        self.memory.get();
                        state.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                _ => {
                    self.lent.with(TAGS[0], |memory| {
                        assert!(is_piece(memory, 0), "a tag names its memory");
                        assert_eq!(self.memory.get(), 1, "what the owner did before it lent the memory");
                    });
                }
            }
        }

        fn take_back(&self, mutant: Mutant) {
            match mutant {
                Mutant::DoesNotWait => drop(self.lent.state.fetch_or(CLOSED, Ordering::AcqRel)),
                _ => assert!(is_piece(self.lent.take_back().expect("it is lent").slice(), 0)),
            }
        }
    }

    /// The owner writes the memory, lends it, takes it back, writes it again, and lends another
    /// piece, while users come and go.
    fn lent_and_taken_back(users: usize, mutant: Mutant) {
        let scene = Scene::new();
        let users: alloc::vec::Vec<_> = (0..users)
            .map(|_| {
                let scene = scene.clone();
                thread::spawn(move || scene.reads(mutant))
            })
            .collect();
        scene.memory.add();
        assert!(scene.lent.lend(TAGS[0], piece(0)).is_ok());
        scene.take_back(mutant);
        // Nobody uses it any more.
        scene.memory.add();
        if mutant == Mutant::None {
            assert!(scene.lent.lend(TAGS[1], piece(1)).is_ok());
        }
        for user in users {
            user.join().unwrap();
        }
    }

    #[test]
    fn model_no_user_is_inside_once_the_memory_is_back() {
        check(|| lent_and_taken_back(1, Mutant::None));
    }

    #[test]
    fn model_two_users() {
        check(|| lent_and_taken_back(2, Mutant::None));
    }

    #[test]
    fn mutant_model_that_only_looks() {
        finds(|| lent_and_taken_back(1, Mutant::OnlyLooks));
    }

    #[test]
    fn mutant_model_that_leaves_without_an_order() {
        finds(|| lent_and_taken_back(1, Mutant::LeavesRelaxed));
    }

    #[test]
    fn mutant_model_that_does_not_wait() {
        finds(|| lent_and_taken_back(1, Mutant::DoesNotWait));
    }

    /// Two threads end the loan at once, as a deregistration and the end of a NIC may: one of them
    /// gets the memory, and no user is inside then.
    #[test]
    fn model_one_of_two_owners_gets_the_memory() {
        check(|| {
            let scene = Scene::new();
            scene.memory.add();
            assert!(scene.lent.lend(TAGS[0], piece(0)).is_ok());
            let end = |scene: &Scene| {
                let back = scene.lent.take_back().is_some();
                if back {
                    scene.memory.add();
                }
                back
            };
            let user = thread::spawn({
                let scene = scene.clone();
                move || scene.reads(Mutant::None)
            });
            let other = thread::spawn({
                let scene = scene.clone();
                move || end(&scene)
            });
            let ours = end(&scene);
            assert!(ours != other.join().unwrap(), "one of them");
            user.join().unwrap();
        });
    }
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    extern crate std;

    use core::sync::atomic::{AtomicBool, AtomicU64};

    use super::*;

    type Words = [AtomicU64; 8];

    const fn zeros() -> Words {
        [const { AtomicU64::new(0) }; 8]
    }

    fn lendable(words: &'static Words) -> Lendable {
        // SAFETY: the words are never freed, and are reached by atomics and windows only.
        unsafe { Lendable::raw(NonNull::from(words).cast(), size_of_val(words)) }
    }

    #[test]
    fn memory_is_reached_by_its_tag_until_it_is_taken_back() {
        static WORDS: [Words; 2] = [zeros(), zeros()];
        let lent = Lent::new();
        assert!(lent.with(1, |_| ()).is_none() && lent.take_back().is_none());
        let [words, others] = &WORDS;
        assert!(lent.lend(1, lendable(words)).is_ok());
        assert_eq!(lent.with(1, |slice| slice.write(8, &[1; 8])), Some(Ok(())));
        assert_eq!(words[1].load(Ordering::Relaxed), 0x0101_0101_0101_0101);
        assert_eq!(lent.with(1, |slice| slice.write(60, &[1; 8])), Some(Err(OutOfBounds)));
        assert!(lent.with(2, |_| ()).is_none(), "another tag");
        let Err(second) = lent.lend(2, lendable(others)) else { panic!("some is lent") };
        assert_eq!(lent.take_back().expect("it was lent").slice().len(), 64);
        assert!(lent.with(1, |_| ()).is_none() && lent.take_back().is_none());
        assert!(lent.lend(2, second).is_ok());
        assert!(lent.with(1, |_| ()).is_none() && lent.with(2, |_| ()).is_some());
    }

    #[test]
    fn no_user_is_inside_once_the_memory_is_back() {
        static WORDS: Words = zeros();
        let (lent, ended) = (Lent::new(), AtomicBool::new(false));
        let times = if cfg!(miri) { 20 } else { 2_000 };
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        lent.with(5, |slice| {
                            let word = slice.atomic_u64(0).expect("a word");
                            word.fetch_add(1, Ordering::Relaxed);
                            word.fetch_sub(1, Ordering::Relaxed);
                        });
                    }
                });
            }
            for _ in 0..times {
                assert!(lent.lend(5, lendable(&WORDS)).is_ok());
                std::thread::yield_now();
                assert!(lent.take_back().is_some());
                assert_eq!(WORDS[0].load(Ordering::Relaxed), 0, "a user is inside");
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}

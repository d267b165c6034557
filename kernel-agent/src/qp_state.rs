//! The state of a queue pair as posts read it: one word.
//!
//! It is the state to which the agent last moved the queue pair, or that an event reported. Posts
//! read it instead of asking the device, which decides in the end. A queue pair that is gone
//! (destroyed, or its device is dead) is in none of the device's states, and never leaves that
//! state: a thread that moves it at the same moment does not open it to posts again.

use core::sync::atomic::Ordering;

use nic_abi::admin::QpState;
use platform::sync::atomic::AtomicU32;

/// The queue pair is gone. The other values are those of [`word`].
const GONE: u32 = 0;
/// Values from here on let sends be posted.
const SENDS_FROM: u32 = word(QpState::Rts);
/// Values from here on let receives be posted.
const RECEIVES_FROM: u32 = word(QpState::Init);
const RESET: u32 = word(QpState::Reset);

const _: () = assert!(GONE < RESET && RESET < RECEIVES_FROM && RECEIVES_FROM < word(QpState::Rtr));
const _: () = assert!(word(QpState::Rtr) < SENDS_FROM && SENDS_FROM < word(QpState::Sqd));
const _: () = assert!(word(QpState::Sqd) < word(QpState::Error));

const fn word(state: QpState) -> u32 {
    state as u32 + 1
}

/// See the module's documentation.
pub(crate) struct PostState(AtomicU32);

impl PostState {
    /// The state of a new queue pair: RESET.
    pub(crate) fn new() -> PostState {
        PostState(AtomicU32::new(RESET))
    }

    /// The state; `None` if the queue pair is gone.
    pub(crate) fn get(&self) -> Option<QpState> {
        QpState::from_word(self.0.load(Ordering::Acquire).checked_sub(1)?)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) == GONE
    }

    /// Whether sends may be posted; to be called under the send queue's lock.
    #[inline(always)]
    pub(crate) fn takes_sends(&self) -> bool {
        // Relaxed: a thread that closes the queue pair to posts takes the queue's lock afterwards.
        self.0.load(Ordering::Relaxed) >= SENDS_FROM
    }

    /// Whether receives may be posted; to be called under the receive queue's lock.
    #[inline(always)]
    pub(crate) fn takes_receives(&self) -> bool {
        // Relaxed: as in `takes_sends`.
        self.0.load(Ordering::Relaxed) >= RECEIVES_FROM
    }

    /// Records that the agent moved the queue pair. Returns the state before; `None`, and changes
    /// nothing, if the queue pair is gone.
    pub(crate) fn set(&self, to: QpState) -> Option<QpState> {
        let to = |now| (now != GONE).then_some(word(to));
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, to).ok()?;
        QpState::from_word(before.checked_sub(1)?)
    }

    /// Records that the queue pair went to ERROR by itself. In ERROR the device takes posts and
    /// flushes them. A queue pair that is closed to posts (in RESET, or gone) stays closed.
    pub(crate) fn broke(&self) {
        let to = |now| (now > RESET).then_some(word(QpState::Error));
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, to);
    }

    /// Records that the queue pair is gone, for good.
    pub(crate) fn end(&self) {
        // A swap and not a store: the checker of the models does not see that a store comes after a
        // read-modify-write in the word's order of changes.
        self.0.swap(GONE, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(ferrovia_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_that_is_gone_takes_nothing_whatever_happens_to_it() {
        let state = PostState::new();
        assert!(!state.takes_receives() && !state.takes_sends() && !state.is_gone());
        assert_eq!(state.set(QpState::Init), Some(QpState::Reset));
        assert!(state.takes_receives() && !state.takes_sends());
        assert_eq!(state.set(QpState::Rts), Some(QpState::Init));
        assert!(state.takes_receives() && state.takes_sends());
        state.broke();
        assert_eq!(state.get(), Some(QpState::Error));
        assert!(state.takes_receives() && state.takes_sends());
        assert_eq!(state.set(QpState::Reset), Some(QpState::Error));
        state.broke();
        assert_eq!(state.get(), Some(QpState::Reset), "an event from before the reset");
        state.end();
        assert_eq!(state.set(QpState::Rts), None);
        state.broke();
        assert!(state.is_gone() && !state.takes_receives() && !state.takes_sends());
        assert_eq!(state.get(), None);
    }
}

#[cfg(all(test, ferrovia_model))]
mod models {
    use alloc::sync::Arc;

    use loom::thread;
    use platform::model::{Watched, check, finds};
    use platform::sync::Mutex;

    use super::*;

    /// One thread moves the queue pair to RTS while the device is found dead, and a poster posts.
    /// The thread that found it dead then closes the device, whose registers go to another driver.
    /// The mutant mover does not look at what it replaces.
    fn posts_and_dies(mutant_moves_anyway: bool) {
        let shared = Arc::new((PostState::new(), Mutex::new(()), Watched::new(0)));
        let mover = thread::spawn({
            let shared = shared.clone();
            move || {
                let (state, queue, registers) = &*shared;
                if mutant_moves_anyway {
                    state.0.store(word(QpState::Rts), Ordering::Release);
                } else {
                    let _ = state.set(QpState::Rts);
                }
                let _queue = queue.lock();
                if state.takes_sends() {
                    registers.add();
                }
            }
        });
        let (state, queue, registers) = &*shared;
        state.end();
        drop(queue.lock());
        registers.add();
        mover.join().unwrap();
    }

    #[test]
    fn model_no_post_comes_after_the_end() {
        check(|| posts_and_dies(false));
    }

    #[test]
    fn mutant_model_that_moves_what_is_gone() {
        finds(|| posts_and_dies(true));
    }
}

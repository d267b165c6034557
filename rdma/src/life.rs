//! Whether an adapter is enabled, and the calls in progress on it.
//!
//! Two rules make the end of an adapter safe against calls that run at the same time:
//!
//! - The thread that ends the adapter closes all queue slots before it changes the state, so that a
//!   thread that sees the new state finds no slot open, and closes them once more afterwards. A
//!   thread that creates an object with a slot looks at the state once the slot and the table entry
//!   exist ([`Life::created`]). So one of the two closes the new slot.
//! - A call that creates, changes or frees objects passes a [`Gate`] first ([`Life::begin_call`]).
//!   The thread that frees the adapter closes the gate and waits until no call is inside
//!   ([`Life::wait_for_calls`]). So either the call fails, or the thread waits for it.

use alloc::sync::Arc;
use core::ops::Deref;

use platform::gate::Inside;
use platform::sync::atomic::{AtomicU8, Ordering, fence};
use platform::{Gate, Platform};

const ENABLED: u8 = 0;
const DISABLED: u8 = 1;
const FREED: u8 = 2;

/// The state of an adapter, and its calls in progress.
pub struct Life {
    state: AtomicU8,
    calls: Gate,
}

/// Why an adapter takes no calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its device is dead.
    Disabled,
    /// It was freed.
    Freed,
}

impl Life {
    /// The life of an adapter that is enabled.
    pub fn new(platform: Arc<dyn Platform>) -> Life {
        Life { state: AtomicU8::new(ENABLED), calls: Gate::new(platform) }
    }

    /// Fails unless the adapter is enabled.
    #[inline(always)]
    pub fn check(&self) -> Result<(), Ended> {
        match self.state.load(Ordering::Acquire) {
            ENABLED => Ok(()),
            state => Err(ended(state)),
        }
    }

    /// Whether the adapter was freed.
    pub fn is_freed(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREED
    }

    /// Disables the adapter, as its device is dead. False if it had ended before.
    pub fn disable(&self, close_all: impl Fn()) -> bool {
        close_all();
        let first =
            self.state.compare_exchange(ENABLED, DISABLED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first {
            fence(Ordering::SeqCst);
            close_all();
        }
        first
    }

    /// Frees the adapter. To be called once; [`Life::wait_for_calls`] has to follow.
    pub fn free(&self, close_all: impl Fn()) {
        close_all();
        self.state.store(FREED, Ordering::Release);
        fence(Ordering::SeqCst);
        close_all();
    }

    /// Looks at the state after an object with a queue slot was created and can be found by
    /// `close_all`; if the adapter has ended, closes the new object's slot.
    pub fn created(&self, close: impl FnOnce()) {
        fence(Ordering::SeqCst);
        if self.check().is_err() {
            close();
        }
    }

    /// Begins a call that creates, changes or frees objects of `adapter`, whose life this is; fails
    /// unless the adapter is enabled.
    pub fn begin_call<'a, A>(&'a self, adapter: &'a A) -> Result<Call<'a, A>, Ended> {
        let inside = self.calls.enter().ok_or(Ended::Freed)?;
        self.check()?;
        Ok(Call { adapter, _counted: inside })
    }

    /// Waits until no call is in progress, after [`Life::free`]. A call waits for the device at
    /// most, for a bounded time, and never for an event.
    pub fn wait_for_calls(&self) {
        self.calls.close();
        self.calls.wait();
    }
}

/// A call in progress on an adapter, which it leads to; it ends when this is dropped. So an adapter
/// that waits for its calls frees also the objects that they create, and no object that they use.
pub struct Call<'a, A> {
    adapter: &'a A,
    _counted: Inside<'a>,
}

impl<A> Deref for Call<'_, A> {
    type Target = A;

    #[inline(always)]
    fn deref(&self) -> &A {
        self.adapter
    }
}

#[cold]
fn ended(state: u8) -> Ended {
    if state == DISABLED { Ended::Disabled } else { Ended::Freed }
}

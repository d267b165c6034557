//! Whether an IA is enabled, and how what is made while it ends is barred all the same.
//!
//! Who ends an IA has all gates barred before the state changes, so that whoever has seen the change finds none open, and once more
//! after it, for what was made in between. Who makes something with a gate looks at the state when its gate and its entry in the table are
//! there ([`Life::made`]). So one of the two bars it.

use platform::sync::atomic::{AtomicU8, Ordering, fence};

use crate::status::{Error, Result};

const ENABLED: u8 = 0;
const DISABLED: u8 = 1;
const FREED: u8 = 2;

/// The state of an IA: one word that each call reads first.
pub(crate) struct Life(AtomicU8);

impl Life {
    pub(crate) fn new() -> Life {
        Life(AtomicU8::new(ENABLED))
    }

    /// Fails unless the IA is enabled.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Acquire) {
            ENABLED => Ok(()),
            state => Err(not_live(state)),
        }
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.0.load(Ordering::Acquire) == FREED
    }

    /// The device is dead. False if the IA had ended before.
    pub(crate) fn disable(&self, bar_all: impl Fn()) -> bool {
        bar_all();
        let first = self.0.compare_exchange(ENABLED, DISABLED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first {
            fence(Ordering::SeqCst);
            bar_all();
        }
        first
    }

    /// The IA is freed, by one call at most.
    pub(crate) fn free(&self, bar_all: impl Fn()) {
        bar_all();
        self.0.store(FREED, Ordering::Release);
        fence(Ordering::SeqCst);
        bar_all();
    }

    /// Something was made, and whoever bars all finds it from now on: bars it if the IA has ended.
    pub(crate) fn made(&self, bar: impl FnOnce()) {
        fence(Ordering::SeqCst);
        if self.check().is_err() {
            bar();
        }
    }
}

#[cold]
fn not_live(state: u8) -> Error {
    if state == DISABLED { Error::IaCatastrophe } else { Error::InvalidIa }
}

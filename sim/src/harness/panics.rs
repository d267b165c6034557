//! Panics of a simulation become failures of its seed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};

/// What the panics said since the last look. Threads of several simulations may share it; it only
/// explains.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// A simulation runs in this thread.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Runs a simulation in this thread. What panics in it or in one of its threads is its failure, and
/// is not printed.
pub(crate) fn caught<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !WITHIN.get() && !crate::scheduler::is_started_by_simulation() {
                return usual(info);
            }
            let place = info.location().map_or(String::new(), |at| format!(" ({}:{})", at.file(), at.line()));
            let said = info.payload_as_str().unwrap_or("a panic");
            SAID.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{said}{place}"));
        }));
    });
    let before = WITHIN.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    WITHIN.set(before);
    let said = std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner));
    result.unwrap_or_else(|_| Err(format!("panicked: {}", said.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_with_its_words() {
        let caught = caught::<()>(|| panic!("the third {}", "wheel"));
        assert!(caught.is_err_and(|why| why.contains("the third wheel (sim/src/harness/panics.rs:")));
    }
}

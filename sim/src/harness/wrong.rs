//! What must hold and does not.

use std::fmt::{self, Display};

/// A rule of the model that a run broke.
#[derive(Debug)]
pub(crate) struct Wrong(pub(crate) String);

impl Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The result of a step of the workload.
pub(crate) type Step<T = ()> = Result<T, Wrong>;

/// Calls that must not fail.
pub(crate) trait Must<T> {
    /// The value, or what was tried and why it failed.
    fn must(self, tried: &str) -> Step<T>;
}

impl<T, E: Display> Must<T> for Result<T, E> {
    fn must(self, tried: &str) -> Step<T> {
        self.map_err(|error| Wrong(format!("{tried}: {error}")))
    }
}

/// Returns [`Wrong`] from the function unless the condition holds.
macro_rules! hold {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err($crate::harness::wrong::Wrong(format!($($what)+)));
        }
    };
}
pub(crate) use hold;

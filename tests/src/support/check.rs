//! Checks that end a test with file, line and message instead of a panic.
//!
//! A test is a function that returns an [`Outcome`]. It returns early with a [`Failure`] when `?`
//! meets a refused call, or when the macro [`check!`](macro@crate::check) or
//! [`check_eq!`](crate::check_eq) fails. So a failed check costs one test and does not panic the
//! kernel.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::{self, Debug};
use core::panic::Location;

use crate::transport::Need;

/// How a test ends. A test that its machine cannot show ends with [`not_shown`].
pub type Outcome = Result<(), Failure>;

/// Why a test failed, and where; or why it shows nothing on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Source file.
    pub file: &'static str,
    /// Line in it.
    pub line: u32,
    /// What was wrong, in one line.
    pub message: String,
    /// Nothing was wrong, but the machine cannot show what the test is for.
    pub not_shown: bool,
    /// What the test needs and the transport of the IAs lacks.
    pub lacking: Option<Need>,
}

impl Failure {
    /// A failure at the caller's line.
    #[track_caller]
    pub fn new(message: impl Into<String>) -> Failure {
        let at = Location::caller();
        let (file, line, message) = (at.file(), at.line(), one_line(&message.into()));
        Failure { file, line, message, not_shown: false, lacking: None }
    }
}

/// Ends a test that cannot fail on this machine for want of what its rows ask for. It does not
/// count there: each row has to be shown on another machine.
#[track_caller]
pub fn not_shown(why: &str) -> Outcome {
    Err(Failure { not_shown: true, ..Failure::new(why) })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// The runner's protocol is line by line, so a message must not contain a line break.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<alloc::vec::Vec<_>>().join(" ")
}

/// Fails unless the condition holds. Further arguments are a message to format.
#[macro_export]
macro_rules! check {
    ($condition:expr $(,)?) => {
        if !$condition {
            return Err($crate::Failure::new(concat!("false: ", stringify!($condition))));
        }
    };
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Failure::new($crate::format_message(format_args!($($message)+))));
        }
    };
}

/// Fails unless the two values are equal. Further arguments are a message to format.
#[macro_export]
macro_rules! check_eq {
    ($left:expr, $right:expr $(,)?) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err($crate::unequal(stringify!($left), left, right));
                }
            }
        }
    };
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    let what = $crate::format_message(format_args!($($message)+));
                    return Err($crate::unequal(&what, left, right));
                }
            }
        }
    };
}

/// For [`check!`](macro@crate::check): formats a message.
#[doc(hidden)]
pub fn format_message(message: fmt::Arguments<'_>) -> String {
    message.to_string()
}

/// For [`check_eq!`](crate::check_eq): a failure that shows both values.
#[doc(hidden)]
#[track_caller]
pub fn unequal(what: &str, left: &(impl Debug + ?Sized), right: &(impl Debug + ?Sized)) -> Failure {
    Failure::new(format!("{what}: got {left:?}, expected {right:?}"))
}

/// The value, or a failure at the caller's line.
#[track_caller]
pub fn some<T>(value: Option<T>, what: &str) -> Result<T, Failure> {
    // `ok_or_else` would report the closure's line.
    match value {
        Some(value) => Ok(value),
        None => Err(Failure::new(format!("missing: {what}"))),
    }
}

/// Passes if the call was refused with exactly this error.
#[track_caller]
pub fn refused<T, E: Debug + PartialEq>(result: Result<T, E>, with: E) -> Outcome {
    match result {
        Err(error) if error == with => Ok(()),
        Err(error) => Err(Failure::new(format!("refused with {error:?}, expected {with:?}"))),
        Ok(_) => Err(Failure::new(format!("accepted, expected {with:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unlike() -> Outcome {
        check_eq!(1 + 1, 3);
        Ok(())
    }

    fn untrue(limit: usize) -> Outcome {
        check!(limit > 3, "limit {limit}\n  is small");
        Ok(())
    }

    #[test]
    fn a_failure_names_its_line_and_values() {
        let failure = unlike().unwrap_err();
        assert!(failure.file.ends_with("check.rs"));
        assert_eq!(failure.line, line!() - 13);
        assert_eq!(failure.message, "1 + 1: got 2, expected 3");
        assert_eq!(untrue(2).unwrap_err().message, "limit 2 is small");
        assert_eq!(untrue(4), Ok(()));
    }

    #[test]
    fn refusal_must_be_the_right_one() {
        assert_eq!(refused(Err::<(), _>(5), 5), Ok(()));
        assert!(refused(Err::<(), _>(4), 5).is_err());
        assert!(refused(Ok::<_, i32>(()), 5).is_err());
        assert_eq!(some(Some(1), "one"), Ok(1));
        assert!(some(None::<()>, "one").is_err());
    }
}

//! Refusals by table: a set of calls, each with one argument left open, is made with every bad
//! value of that argument. Each call must return the error of its page, and must change nothing
//! that a query shows.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::result::Result;

use privileged_api::Error;

use crate::{Failure, Outcome, check_eq};

/// A call with one argument left open, and its name.
pub(crate) type Call<'a, T> = (&'static str, Box<dyn Fn(T) -> Result<(), Error> + 'a>);

/// A call with this name.
pub(crate) fn call<'a, T>(name: &'static str, call: impl Fn(T) -> Result<(), Error> + 'a) -> Call<'a, T> {
    (name, Box::new(call))
}

/// Makes every call with every bad value, and checks that each returns `error` and changes nothing.
pub(crate) fn all_refused<T: Copy + Debug, S: PartialEq + Debug>(
    seen: impl Fn() -> Result<S, Failure>,
    calls: &[Call<'_, T>],
    values: &[T],
    error: Error,
) -> Outcome {
    let before = seen()?;
    for (name, call) in calls {
        for &value in values {
            let got = call(value);
            check_eq!(got, Err(error), "{name} with {value:?}");
            check_eq!(seen()?, before, "after {name} with {value:?}");
        }
    }
    Ok(())
}

/// The objects that such calls act on.
pub(crate) trait Queried {
    /// What the queries of these objects return.
    type Answers: PartialEq + Debug;

    /// Queries all of these objects.
    fn all(&self) -> Result<Self::Answers, Failure>;

    /// As [`all_refused`], where nothing of [`Queried::all`] may change.
    fn refuses<T: Copy + Debug>(&self, calls: &[Call<'_, T>], values: &[T], error: Error) -> Outcome {
        all_refused(|| self.all(), calls, values, error)
    }
}

/// Handles that do not name an object of this type in this IA: null, a freed handle, another IA's,
/// one of another type, near misses of these three, and junk.
pub(crate) fn no_handles<T: Copy>(
    from_raw: fn(u64) -> T,
    freed: u64,
    foreign: u64,
    other_type: u64,
) -> Vec<T> {
    let near = [freed ^ 1 << 63, foreign ^ 1, other_type ^ 1 << 23];
    let junk = [1, u64::MAX, 0xffff_ffff, 0xffff_ffff_0000_0000];
    [0, freed, foreign, other_type].into_iter().chain(near).chain(junk).map(from_raw).collect()
}

/// Each undefined bit alone, and all of them at once.
pub(crate) fn undefined(defined: u32) -> Vec<u32> {
    let single = (0..32).map(|bit| 1 << bit).filter(|bit| defined & bit == 0);
    single.chain([!defined, u32::MAX]).collect()
}

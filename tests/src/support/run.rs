//! Running tests: which ones, in which order, and one test from beginning to end.

use alloc::string::ToString;
use alloc::sync::Arc;

use privileged_api::{Error, WaitError};

use crate::check::{Failure, Outcome};
use crate::fixture::{Fixture, Setup};
use crate::transport::{Need, prove};
use crate::{Test, all};

/// The tests whose names contain one of `filters` (all tests, if there is none), starting behind
/// the test `after`.
pub fn select<'a>(
    filters: &'a [&'a str],
    after: Option<&'a str>,
) -> impl Iterator<Item = &'static Test> + 'a {
    let begin = after.and_then(|name| all().position(|test| test.name == name)).map_or(0, |at| at + 1);
    all().skip(begin).filter(move |test| matches(test.name, filters))
}

/// Whether a name contains one of the filters; true if there is no filter.
pub fn matches(name: &str, filters: &[&str]) -> bool {
    filters.is_empty() || filters.iter().any(|filter| name.contains(filter))
}

/// Opens the IAs of a test, runs it, and frees them: its outcome, and that of the frees.
fn once(test: &Test, setup: &Arc<Setup>) -> Result<(Outcome, Outcome), Failure> {
    let fixture = Fixture::open(setup)?;
    let outcome = (test.run)(&fixture);
    Ok((outcome, fixture.close()))
}

/// Runs one test: opens its IAs, runs it, frees the IAs, and checks that nothing is left.
pub fn run(test: &Test, setup: &Arc<Setup>) -> Outcome {
    let (outcome, closed) = once(test, setup)?;
    let lacking = outcome.as_ref().err().and_then(|failure| failure.lacking);
    if setup.proves && lacking.is_some_and(Need::can_be_proved) {
        prove(|| once(test, setup)?.0)?;
    }
    let outcome = setup.transport.judge(test, outcome);
    if outcome.as_ref().is_err_and(|failure| !failure.not_shown) {
        return outcome;
    }
    closed?;
    setup.nothing_is_left()?;
    outcome
}

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Failure {
        Failure::new(alloc::format!("refused with {error:?}"))
    }
}

impl From<WaitError> for Failure {
    #[track_caller]
    fn from(failure: WaitError) -> Failure {
        let WaitError { error, nmore } = failure;
        Failure::new(match error {
            Error::TimeoutExpired => alloc::format!("the awaited event did not come; {nmore} queued"),
            error => "waiting failed with ".to_string() + &alloc::format!("{error:?}"),
        })
    }
}

impl From<kernel_agent::Error> for Failure {
    #[track_caller]
    fn from(error: kernel_agent::Error) -> Failure {
        Failure::new(alloc::format!("the agent refused: {error:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn filters_and_after_choose_from_the_fixed_order() {
        let names: Vec<&str> = all().map(|test| test.name).collect();
        let chosen =
            |filters: &[&str], after| select(filters, after).map(|test| test.name).collect::<Vec<_>>();
        assert_eq!(chosen(&[], None), names);
        assert_eq!(chosen(&[], Some(names[0])), names[1..]);
        assert_eq!(chosen(&[], names.last().copied()), Vec::<&str>::new());
        assert_eq!(chosen(&["no such test"], None), Vec::<&str>::new());
        assert_eq!(chosen(&[names[1]], None), [names[1]]);
        assert!(chosen(&["pz::"], None).iter().all(|name| name.starts_with("pz::")));
    }

    #[test]
    fn a_refused_call_fails_the_test_at_its_own_line() {
        fn body() -> Outcome {
            Err(Error::InvalidPz)?;
            Ok(())
        }
        let failure = body().unwrap_err();
        assert_eq!(failure.line, line!() - 4);
        assert!(failure.file.ends_with("run.rs"), "{}", failure.file);
        assert_eq!(failure.message, "refused with InvalidPz");
    }
}

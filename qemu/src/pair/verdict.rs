//! How two machines ended: the first failure decides.

use std::time::{Duration, Instant};

use super::NAMES;
use crate::error::{Error, Result};

/// How long a machine may run after the other one has failed. A connection breaks after about 2
/// seconds without an answer.
pub const GRACE: Duration = Duration::from_secs(20);

/// How the machines ended.
#[derive(Default)]
pub struct Verdict {
    /// How the first one failed, if one has failed.
    outcome: Option<Result<u8>>,
    /// The latest time for the end of the other one.
    pub patience_ends: Option<Instant>,
}

impl Verdict {
    /// A machine has ended.
    pub fn ended(&mut self, machine: usize, status: Result<u8>) {
        let name = NAMES[machine];
        let status = match status {
            Ok(0) => return,
            Ok(status) => {
                complain!("ferrovia: machine {name} ended with status {status}");
                Ok(status)
            }
            Err(error) => Err(Error::Machine { name, error: Box::new(error) }),
        };
        if self.outcome.is_none() {
            self.outcome = Some(status);
            self.patience_ends = Instant::now().checked_add(GRACE);
        }
    }

    /// Whether the other machine's time after the first failure is over.
    pub fn is_over(&self) -> bool {
        self.patience_ends.is_some_and(|end| Instant::now() >= end)
    }

    /// The outcome, once no machine runs or the time is over; machines that still run are ended.
    pub fn conclude(self, running: impl IntoIterator<Item = usize>) -> Result<u8> {
        for machine in running {
            complain!(
                "ferrovia: machine {} was still running {} s after the other one had failed; it was ended",
                NAMES[machine],
                GRACE.as_secs()
            );
        }
        self.outcome.unwrap_or(Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_decides() {
        let mut verdict = Verdict::default();
        verdict.ended(0, Ok(0));
        assert!(verdict.outcome.is_none() && verdict.patience_ends.is_none());
        verdict.ended(1, Ok(100));
        verdict.ended(0, Err(Error::NoStatus));
        assert!(verdict.patience_ends.is_some() && !verdict.is_over());
        assert!(matches!(verdict.conclude([]), Ok(100)));
        let mut verdict = Verdict::default();
        verdict.ended(1, Err(Error::NoStatus));
        verdict.ended(0, Ok(1));
        let error = verdict.conclude([0]).expect_err("it failed");
        assert!(error.to_string().starts_with("machine B: the guest ended"), "{error}");
        assert_eq!(error.status(), 1);
    }
}

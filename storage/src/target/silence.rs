//! How long something that has work, a disk or a host's queue, has finished none of it.

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// How much was finished when it was looked at last.
    finished: u64,
    /// The first look that found work, and after which none was finished, in nanoseconds of the
    /// platform's clock. `None`: there was no work.
    since: Option<u64>,
}

impl Silence {
    /// How long it has lasted at `now`, in nanoseconds. To be called at each tick of the timer.
    /// Work that came since the last tick counts from this one.
    pub(crate) fn lasts(&mut self, has_work: bool, finished: u64, now: u64) -> u64 {
        if !has_work || finished != self.finished {
            self.since = None;
        }
        self.finished = finished;
        if !has_work {
            return 0;
        }
        now.saturating_sub(*self.since.get_or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_from_the_first_look_that_finds_work() {
        let mut silence = Silence::default();
        // The machine has run for long, and the first work is under way at the first look.
        assert_eq!(silence.lasts(true, 0, 1000), 0);
        assert_eq!(silence.lasts(true, 0, 1010), 10);
        assert_eq!(silence.lasts(true, 1, 1020), 0, "something was finished");
        assert_eq!(silence.lasts(true, 1, 1030), 10);
        assert_eq!(silence.lasts(false, 2, 1040), 0);
        assert_eq!(silence.lasts(true, 2, 2000), 0, "there was no work for long");
        assert_eq!(silence.lasts(true, 2, 2005), 5);
        assert_eq!(silence.lasts(true, 2, 2000), 0, "a clock that goes back shows no silence");
    }
}

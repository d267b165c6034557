//! What is true of a target, from when on: it hears of some changes only at its next tick.

use std::time::Duration;

use platform::Instant;

/// How long the target may take to hear of a change: a tick of its timer, and a bit.
const LAG: Duration = Duration::from_millis(150);

/// The values that something had, the oldest first.
pub(super) struct History<T>(Vec<(Instant, T)>);

impl<T: Clone> History<T> {
    pub(super) fn new(now: Instant, value: T) -> History<T> {
        History(vec![(now, value)])
    }

    /// It is about to change.
    pub(super) fn set(&mut self, now: Instant, value: T) {
        self.0.push((now, value));
    }

    /// A target starts: it knows of no earlier value.
    pub(super) fn forget(&mut self) {
        let last = self.0.len() - 1;
        self.0.drain(..last);
    }

    /// The values that the target may have gone by between two times.
    pub(super) fn during(&self, from: Instant, to: Instant) -> Vec<T> {
        let ends = |place: usize| self.0.get(place + 1).map(|(next, _)| *next + LAG);
        let values = self.0.iter().enumerate();
        let values =
            values.filter(|(place, (since, _))| *since <= to && ends(*place).is_none_or(|end| end >= from));
        values.map(|(_, (_, value))| value.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_value_is_possible_for_a_while() {
        let at = |milliseconds: u64| Instant::from_nanos(milliseconds * 1_000_000);
        let mut history = History::new(at(0), 'a');
        history.set(at(1000), 'b');
        for (from, to, values) in
            [(0, 999, "a"), (0, 1000, "ab"), (1001, 1002, "ab"), (1151, 1152, "b"), (900, 2000, "ab")]
        {
            assert_eq!(history.during(at(from), at(to)).into_iter().collect::<String>(), values);
        }
        history.forget();
        assert_eq!(history.during(at(0), at(2000)), ['b']);
    }
}

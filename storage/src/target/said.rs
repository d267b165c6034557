//! Lines for the terminal about what outsiders do: at most one a second of a kind, so that no
//! host fills the terminal, or keeps the target from its work, by doing it again and again.

use core::fmt;

/// Nanoseconds between two lines.
const PAUSE: u64 = 1_000_000_000;

/// A kind of line.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// When the next one may be said, in nanoseconds of the platform's clock.
    next: u64,
    /// How many were left out since the last one.
    left_out: u64,
}

impl Said {
    /// Says it, or counts it.
    pub(super) fn say(&mut self, now: u64, line: fmt::Arguments<'_>) {
        if now < self.next {
            self.left_out += 1;
            return;
        }
        self.next = now + PAUSE;
        match core::mem::take(&mut self.left_out) {
            0 => log::warn!("{line}"),
            more => log::warn!("{line} ({more} more before)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_line_is_said_once_a_second_and_the_others_are_counted() {
        let mut said = Said::default();
        said.say(5, format_args!("it"));
        for now in 6..10 {
            said.say(now, format_args!("it"));
        }
        assert_eq!((said.next, said.left_out), (5 + PAUSE, 4));
        said.say(5 + PAUSE, format_args!("it"));
        assert_eq!((said.next, said.left_out), (5 + 2 * PAUSE, 0));
    }
}

//! Points in time, in nanoseconds since some fixed moment of the platform.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time of one platform; points of two platforms cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The fixed moment itself.
    pub const ZERO: Instant = Instant(0);

    /// The point `ns` nanoseconds after the fixed moment.
    pub const fn from_nanos(ns: u64) -> Instant {
        Instant(ns)
    }

    /// Nanoseconds since the fixed moment.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to here, or zero if `earlier` is the later one.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This point plus `d`, or `None` if it is past the end of time.
    pub fn checked_add(self, d: Duration) -> Option<Instant> {
        let ns = u64::try_from(d.as_nanos()).ok()?;
        self.0.checked_add(ns).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the end of time, some 584 years on.
    fn add(self, d: Duration) -> Instant {
        self.checked_add(d).unwrap_or(Instant(u64::MAX))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// As [`Instant::since`].
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_neither_wraps_nor_runs_backwards() {
        let (early, late) = (Instant::from_nanos(5), Instant::ZERO + Duration::from_nanos(12));
        assert_eq!((late - early, late.since(early)), (Duration::from_nanos(7), Duration::from_nanos(7)));
        assert_eq!((early - late, late.as_nanos()), (Duration::ZERO, 12));
        assert_eq!(late.checked_add(Duration::from_nanos(u64::MAX - 12)), Some(Instant(u64::MAX)));
        assert_eq!(late.checked_add(Duration::from_nanos(u64::MAX - 11)), None);
        assert_eq!(early.checked_add(Duration::MAX), None);
        assert_eq!(late + Duration::MAX, Instant(u64::MAX));
    }
}

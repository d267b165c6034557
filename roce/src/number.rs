//! Queue pair numbers, packet sequence numbers, keys and timeouts in the wire's encoding.

use core::fmt;
use core::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A 24-bit number in network byte order, the layout in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct U24([u8; 3]);

impl U24 {
    /// The number; bits above the 24th are lost.
    pub const fn new(value: u32) -> U24 {
        let [_, a, b, c] = value.to_be_bytes();
        U24([a, b, c])
    }

    /// Its value.
    pub const fn get(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

/// The largest 24-bit number.
const MAX_24: u32 = 0xff_ffff;

/// A 24-bit queue pair number (IBTA vol. 1 section 3.5.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The general service interface, QP1: where connection management datagrams go.
    pub const GSI: Qpn = Qpn(1);
    /// The destination of multicast packets; no queue pair has this number.
    pub const MULTICAST: Qpn = Qpn(MAX_24);

    /// The number, or `None` if it takes more than 24 bits.
    pub const fn new(value: u32) -> Option<Qpn> {
        if value <= MAX_24 { Some(Qpn(value)) } else { None }
    }

    /// Its value.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether a connection can use the number: it is not QP0, QP1 or the multicast number.
    pub const fn is_connectable(self) -> bool {
        self.0 > 1 && self.0 < MAX_24
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#x})", self.0)
    }
}

impl From<U24> for Qpn {
    fn from(value: U24) -> Qpn {
        Qpn(value.get())
    }
}

impl From<Qpn> for U24 {
    fn from(value: Qpn) -> U24 {
        U24::new(value.0)
    }
}

/// A 24-bit packet sequence number; it wraps (IBTA vol. 1 section 9.7.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The number; bits above the 24th are dropped.
    pub const fn new(value: u32) -> Psn {
        Psn(value & MAX_24)
    }

    /// Its value.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number that is `n` greater.
    #[must_use]
    pub const fn add(self, n: u32) -> Psn {
        Psn(self.0.wrapping_add(n) & MAX_24)
    }

    /// The distance from `earlier` to this number, from -2^23 to 2^23 - 1; negative if this number
    /// is before `earlier`.
    pub const fn distance_from(self, earlier: Psn) -> i32 {
        // Shifting up and down again extends the 24-bit sign.
        ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
    }

    /// How many numbers `start` has to be increased by to become this one, from 0 to 2^24 - 1.
    pub const fn offset_from(self, start: Psn) -> u32 {
        self.0.wrapping_sub(start.0) & MAX_24
    }

    /// Whether it is before `other`, in the half of the circle by which PSNs are compared.
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance_from(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#x})", self.0)
    }
}

impl From<U24> for Psn {
    fn from(value: U24) -> Psn {
        Psn(value.get())
    }
}

impl From<Psn> for U24 {
    fn from(value: Psn) -> U24 {
        U24::new(value.0)
    }
}

/// A partition key: 15 bits of partition and one of membership (IBTA vol. 1 section 10.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// Full membership of the default partition, the only one on RoCEv2 unless others are
    /// configured.
    pub const DEFAULT: PKey = PKey(0xffff);

    /// Whether packets with this key may reach a port with `other`: same partition, not both
    /// limited members.
    pub const fn matches(self, other: PKey) -> bool {
        self.0 & 0x7fff == other.0 & 0x7fff && (self.0 | other.0) & 0x8000 != 0
    }
}

/// A queue key: a queue pair accepts only datagrams that carry its own (IBTA vol. 1 section
/// 10.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known key of QP1.
    pub const GSI: QKey = QKey(0x8001_0000);
}

/// A 5-bit timeout: 4.096 us * 2^code (IBTA vol. 1 sections 9.7.6.1.3 and 12.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeoutCode(u8);

impl TimeoutCode {
    /// The code, or `None` if it takes more than 5 bits.
    pub const fn new(code: u8) -> Option<TimeoutCode> {
        if code < 32 { Some(TimeoutCode(code)) } else { None }
    }

    /// The five low bits of `bits`.
    pub const fn from_low_bits(bits: u8) -> TimeoutCode {
        TimeoutCode(bits & 31)
    }

    /// The smallest code whose time is at least `d`; the largest code if no time is.
    pub fn at_least(d: Duration) -> TimeoutCode {
        let code = (0..31).find(|&code| TimeoutCode(code).duration() >= d);
        TimeoutCode(code.unwrap_or(31))
    }

    /// The code itself.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Its time: 4.096 us to 2.4 h. (For a timer that can be off, code 0 means off instead.)
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psns_wrap_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.add(1), Psn::new(0));
        assert_eq!(Psn::new(2).distance_from(last), 3);
        assert_eq!(last.distance_from(Psn::new(2)), -3);
        assert_eq!(Psn::new(2).offset_from(last), 3);
        assert_eq!(last.offset_from(Psn::new(2)), 0xff_fffd);
        assert!(last.is_before(Psn::new(0)));
        assert!(!Psn::new(0).is_before(last));
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x1ff_ffff), last);
    }

    #[test]
    fn queue_pair_numbers_have_24_bits() {
        assert_eq!(Qpn::new(0x100_0000), None);
        assert_eq!(Qpn::from(U24::from(Qpn::new(0x12_3456).unwrap())).get(), 0x12_3456);
        assert!(!Qpn::GSI.is_connectable() && !Qpn::MULTICAST.is_connectable());
        assert!(Qpn::new(2).unwrap().is_connectable());
    }

    #[test]
    fn partitions_match_unless_both_members_are_limited() {
        assert!(PKey::DEFAULT.matches(PKey(0x7fff)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey::DEFAULT.matches(PKey(0x8001)));
    }

    #[test]
    fn time_codes_double() {
        assert_eq!(TimeoutCode::new(0).unwrap().duration(), Duration::from_nanos(4096));
        assert_eq!(TimeoutCode::new(20).unwrap().duration(), Duration::from_nanos(4_294_967_296));
        assert_eq!(TimeoutCode::new(32), None);
        assert_eq!(TimeoutCode::at_least(Duration::from_secs(4)).get(), 20);
        assert_eq!(TimeoutCode::at_least(Duration::ZERO).get(), 0);
        assert_eq!(TimeoutCode::at_least(Duration::MAX).get(), 31);
    }
}

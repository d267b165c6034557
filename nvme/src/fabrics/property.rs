//! The properties of a controller, which are its registers (base 3.1; fabrics 3.5 and 3.6).

use core::fmt;

use super::PropertySize;

/// The value of [`Property::Vs`]: base 2.0.
pub const VERSION: u32 = 0x0002_0000;

/// A property, by its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Property {
    /// Controller Capabilities: [`Cap`].
    Cap = 0x00,
    /// Version.
    Vs = 0x08,
    /// Controller Configuration: [`Cc`]. The only one, beside Nssr, that a host may set.
    Cc = 0x14,
    /// Controller Status: [`Csts`].
    Csts = 0x1c,
    /// NVM Subsystem Reset.
    Nssr = 0x20,
}

impl Property {
    /// The property at this offset; nothing if it is reserved or fabrics do not have it.
    pub fn at(offset: u32) -> Option<Self> {
        [Self::Cap, Self::Vs, Self::Cc, Self::Csts, Self::Nssr]
            .into_iter()
            .find(|property| *property as u32 == offset)
    }

    /// Its size. CAP alone has 8 bytes.
    pub fn size(self) -> PropertySize {
        match self {
            Self::Cap => PropertySize::Eight,
            _ => PropertySize::Four,
        }
    }
}

/// The bits `from..from + width` of a word.
const fn field(word: u64, from: u32, width: u32) -> u64 {
    word >> from & ((1 << width) - 1)
}

/// The word with these bits replaced by `value`, whose upper bits are left out.
const fn with_field(word: u64, from: u32, width: u32, value: u64) -> u64 {
    let mask = ((1 << width) - 1) << from;
    word & !mask | value << from & mask
}

/// Controller Capabilities (base 3.1.1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// The capabilities of a controller of fabrics with the NVM command set and pages of 4 KiB: CQR
    /// is 1, as fabrics demand. `mqes` is 0-based; `to` is in units of 500 ms.
    pub const fn new(mqes: u16, to: u8) -> Self {
        Self(mqes as u64 | 1 << 16 | (to as u64) << 24 | 1 << 37)
    }

    /// Maximum Queue Entries Supported, 0-based.
    pub const fn mqes(self) -> u16 {
        self.0 as u16
    }

    /// Contiguous Queues Required.
    pub const fn cqr(self) -> bool {
        field(self.0, 16, 1) != 0
    }

    /// Arbitration Mechanism Supported, beside round robin.
    pub const fn ams(self) -> u8 {
        field(self.0, 17, 2) as u8
    }

    /// Timeout in 500 ms: the longest time until CSTS.RDY follows CC.EN.
    pub const fn to(self) -> u8 {
        field(self.0, 24, 8) as u8
    }

    /// NVM Subsystem Reset Supported.
    pub const fn nssrs(self) -> bool {
        field(self.0, 36, 1) != 0
    }

    /// Command Sets Supported: bit 0 for the NVM command set.
    pub const fn css(self) -> u8 {
        field(self.0, 37, 8) as u8
    }

    /// Memory Page Size Minimum: 2^(12 + this) bytes.
    pub const fn mpsmin(self) -> u8 {
        field(self.0, 48, 4) as u8
    }

    /// Memory Page Size Maximum: 2^(12 + this) bytes.
    pub const fn mpsmax(self) -> u8 {
        field(self.0, 52, 4) as u8
    }
}

/// Controller Configuration (base 3.1.5).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Cc(pub u32);

impl Cc {
    /// Disabled, with the entry sizes that every host takes: 64 and 16 bytes.
    pub const fn new() -> Self {
        Self(0).with_submission_entry(6).with_completion_entry(4)
    }

    const fn field(self, from: u32, width: u32) -> u8 {
        field(self.0 as u64, from, width) as u8
    }

    const fn with(self, from: u32, width: u32, value: u8) -> Self {
        Self(with_field(self.0 as u64, from, width, value as u64) as u32)
    }

    /// Enable (EN).
    pub const fn is_enabled(self) -> bool {
        self.field(0, 1) != 0
    }

    /// The same with Enable set or not.
    pub const fn with_enabled(self, enabled: bool) -> Self {
        self.with(0, 1, enabled as u8)
    }

    /// I/O Command Set Selected (CSS): 0 for the NVM command set.
    pub const fn command_set(self) -> u8 {
        self.field(4, 3)
    }

    /// The same with another command set.
    pub const fn with_command_set(self, command_set: u8) -> Self {
        self.with(4, 3, command_set)
    }

    /// Memory Page Size (MPS): 2^(12 + this) bytes.
    pub const fn page_size(self) -> u8 {
        self.field(7, 4)
    }

    /// The same with another page size.
    pub const fn with_page_size(self, page_size: u8) -> Self {
        self.with(7, 4, page_size)
    }

    /// Arbitration Mechanism Selected (AMS): 0 for round robin.
    pub const fn arbitration(self) -> u8 {
        self.field(11, 3)
    }

    /// The same with another arbitration mechanism.
    pub const fn with_arbitration(self, arbitration: u8) -> Self {
        self.with(11, 3, arbitration)
    }

    /// Shutdown Notification (SHN): 0 none, 1 normal, 2 abrupt.
    pub const fn shutdown(self) -> u8 {
        self.field(14, 2)
    }

    /// The same with another shutdown notification.
    pub const fn with_shutdown(self, shutdown: u8) -> Self {
        self.with(14, 2, shutdown)
    }

    /// I/O Submission Queue Entry Size (IOSQES): a power of two, 6 for the 64 bytes that all
    /// commands have.
    pub const fn submission_entry(self) -> u8 {
        self.field(16, 4)
    }

    /// The same with another size of submission queue entries.
    pub const fn with_submission_entry(self, power: u8) -> Self {
        self.with(16, 4, power)
    }

    /// I/O Completion Queue Entry Size (IOCQES): a power of two, 4 for the 16 bytes that all
    /// completions have.
    pub const fn completion_entry(self) -> u8 {
        self.field(20, 4)
    }

    /// The same with another size of completion queue entries.
    pub const fn with_completion_entry(self, power: u8) -> Self {
        self.with(20, 4, power)
    }
}

/// Shutdown Status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Shst {
    /// Normal operation.
    Normal = 0,
    /// Shutdown processing occurring.
    Occurring = 1,
    /// Shutdown processing complete.
    Complete = 2,
}

/// Controller Status (base 3.1.6).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Csts(pub u32);

impl Csts {
    const fn with(self, from: u32, width: u32, value: u8) -> Self {
        Self(with_field(self.0 as u64, from, width, value as u64) as u32)
    }

    /// Ready (RDY).
    pub const fn is_ready(self) -> bool {
        self.0 & 1 != 0
    }

    /// The same with Ready set or not.
    pub const fn with_ready(self, ready: bool) -> Self {
        self.with(0, 1, ready as u8)
    }

    /// Controller Fatal Status (CFS).
    pub const fn is_fatal(self) -> bool {
        self.0 & 2 != 0
    }

    /// The same with Controller Fatal Status set or not.
    pub const fn with_fatal(self, fatal: bool) -> Self {
        self.with(1, 1, fatal as u8)
    }

    /// Shutdown Status (SHST); nothing if it is the reserved value.
    pub const fn shutdown(self) -> Option<Shst> {
        match field(self.0 as u64, 2, 2) {
            0 => Some(Shst::Normal),
            1 => Some(Shst::Occurring),
            2 => Some(Shst::Complete),
            _ => None,
        }
    }

    /// The same with another shutdown status.
    pub const fn with_shutdown(self, shutdown: Shst) -> Self {
        self.with(2, 2, shutdown as u8)
    }

    /// The same with the shutdown complete.
    pub const fn with_shutdown_complete(self) -> Self {
        self.with_shutdown(Shst::Complete)
    }
}

macro_rules! debug_in_hex {
    ($($name:ident)*) => { $(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )* };
}

debug_in_hex!(Cap Cc Csts);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn the_properties_of_fabrics() {
        for (offset, property) in [
            (0x00, Property::Cap),
            (0x08, Property::Vs),
            (0x14, Property::Cc),
            (0x1c, Property::Csts),
            (0x20, Property::Nssr),
        ] {
            assert_eq!(Property::at(offset), Some(property));
            let eight = property.size() == PropertySize::Eight;
            assert_eq!(eight, offset == 0);
        }
        // Interrupts and the admin queue's registers are those of PCI Express.
        for offset in [0x04, 0x0c, 0x10, 0x18, 0x24, 0x28, 0x30, 0x68, 0xffff_ffff] {
            assert_eq!(Property::at(offset), None);
        }
    }

    #[test]
    fn capabilities() {
        let cap = Cap::new(0x7f, 15);
        assert_eq!(cap.0, 0x0000_0020_0f01_007f);
        assert_eq!((cap.mqes(), cap.cqr(), cap.ams(), cap.to()), (0x7f, true, 0, 15));
        assert_eq!((cap.nssrs(), cap.css(), cap.mpsmin(), cap.mpsmax()), (false, 1, 0, 0));
        let odd = Cap(0x0065_1010_0004_0000);
        assert_eq!((odd.cqr(), odd.ams(), odd.to(), odd.nssrs()), (false, 2, 0, true));
        assert_eq!((odd.css(), odd.mpsmin(), odd.mpsmax()), (0x80, 5, 6));
        assert_eq!(format!("{cap:?}"), "Cap(0x200f01007f)");
    }

    #[test]
    fn configurations_of_linux() {
        assert_eq!(Cc::new(), Cc(0x46_0000));
        let on = Cc::new().with_enabled(true);
        assert_eq!(
            (on, on.is_enabled(), on.shutdown(), on.submission_entry(), on.completion_entry()),
            (Cc(0x46_0001), true, 0, 6, 4)
        );
        let shutdown = on.with_shutdown(1);
        assert_eq!((shutdown, shutdown.shutdown(), shutdown.is_enabled()), (Cc(0x46_4001), 1, true));
        assert_eq!(shutdown.with_enabled(false).with_shutdown(0), Cc::new());
        let all = Cc(0)
            .with_command_set(6)
            .with_page_size(5)
            .with_arbitration(7)
            .with_shutdown(2)
            .with_submission_entry(9)
            .with_completion_entry(10);
        assert_eq!(all, Cc(6 << 4 | 5 << 7 | 7 << 11 | 2 << 14 | 9 << 16 | 10 << 20));
        assert_eq!(
            (all.is_enabled(), all.command_set(), all.page_size(), all.arbitration()),
            (false, 6, 5, 7)
        );
        assert_eq!((all.shutdown(), all.submission_entry(), all.completion_entry()), (2, 9, 10));
        // A value that is too large does not spill into other fields.
        assert_eq!(Cc(0).with_command_set(0xff), Cc(0x70));
        assert_eq!(format!("{on:?}"), "Cc(0x460001)");
    }

    #[test]
    fn status() {
        assert_eq!(Csts::default().with_ready(true), Csts(1));
        assert_eq!(Csts(1).with_fatal(true).with_shutdown_complete(), Csts(0b1011));
        assert_eq!(
            Csts(0b1111).with_shutdown(Shst::Occurring).with_ready(false).with_fatal(false),
            Csts(0b0100)
        );
        assert!(Csts(1).is_ready() && !Csts(2).is_ready() && Csts(2).is_fatal() && !Csts(1).is_fatal());
        let shst = [0, 4, 8, 12].map(|bits| Csts(bits).shutdown());
        assert_eq!(shst, [Some(Shst::Normal), Some(Shst::Occurring), Some(Shst::Complete), None]);
        assert_eq!(format!("{:?}", Csts(9)), "Csts(0x9)");
    }
}

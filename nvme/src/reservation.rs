//! Reservations: the commands by which hosts share a namespace (base 6.10 to 6.13, 8.8).

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::opcode;
use crate::{Command, Status};

/// The types of reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Type {
    /// Write Exclusive: only the holder writes.
    WriteExclusive = 1,
    /// Exclusive Access: only the holder reads and writes.
    ExclusiveAccess = 2,
    /// Write Exclusive - Registrants Only: only registrants write; one of them is the holder.
    WriteExclusiveRegistrants = 3,
    /// Exclusive Access - Registrants Only.
    ExclusiveAccessRegistrants = 4,
    /// Write Exclusive - All Registrants: only registrants write; each is a holder.
    WriteExclusiveAll = 5,
    /// Exclusive Access - All Registrants.
    ExclusiveAccessAll = 6,
}

impl Type {
    /// All types.
    pub const ALL: [Type; 6] = [
        Type::WriteExclusive,
        Type::ExclusiveAccess,
        Type::WriteExclusiveRegistrants,
        Type::ExclusiveAccessRegistrants,
        Type::WriteExclusiveAll,
        Type::ExclusiveAccessAll,
    ];

    /// The type with this number.
    pub const fn from_number(number: u8) -> Option<Type> {
        match number {
            1..=6 => Some(Type::ALL[number as usize - 1]),
            _ => None,
        }
    }

    /// Whether other hosts may not read either.
    pub const fn is_exclusive_access(self) -> bool {
        (self as u8).is_multiple_of(2)
    }

    /// Whether all registrants have access.
    pub const fn is_for_registrants(self) -> bool {
        self as u8 >= 3
    }

    /// Whether each registrant is a holder.
    pub const fn is_of_all(self) -> bool {
        self as u8 >= 5
    }
}

/// What happens to the persistence by a Reservation Register (Change Persist Through Power Loss).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChangePersistence {
    /// It stays as it is.
    Keep = 0,
    /// Registrations and reservations are released at a loss of power.
    Clear = 2,
    /// They persist.
    Set = 3,
}

/// The actions of a Reservation Register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RegisterAction {
    /// Register the new key.
    Register = 0,
    /// Unregister.
    Unregister = 1,
    /// Replace the key by the new one.
    Replace = 2,
}

/// The actions of a Reservation Acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AcquireAction {
    /// Acquire.
    Acquire = 0,
    /// Preempt.
    Preempt = 1,
    /// Preempt, and abort the commands of the hosts that lose their registration.
    PreemptAndAbort = 2,
}

/// The actions of a Reservation Release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReleaseAction {
    /// Release.
    Release = 0,
    /// Clear all registrations and the reservation.
    Clear = 1,
}

/// Ignore Existing Key, in dword 10.
const IEKEY: u32 = 1 << 3;

/// The arguments of a Reservation Register in its command. Its data are [`RegisterKeys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// What to do.
    pub action: RegisterAction,
    /// The current key is not compared.
    pub ignores_key: bool,
    /// What becomes of the persistence.
    pub persistence: ChangePersistence,
}

impl Register {
    /// The arguments in a command.
    ///
    /// # Errors
    ///
    /// [`Status::INVALID_FIELD`] for reserved values.
    pub fn of(command: &Command) -> Result<Register, Status> {
        let word = command.cdw10.get();
        let action = match word & 7 {
            0 => RegisterAction::Register,
            1 => RegisterAction::Unregister,
            2 => RegisterAction::Replace,
            _ => return Err(Status::INVALID_FIELD),
        };
        let persistence = match word >> 30 {
            0 => ChangePersistence::Keep,
            2 => ChangePersistence::Clear,
            3 => ChangePersistence::Set,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Register { action, ignores_key: word & IEKEY != 0, persistence })
    }

    /// The command with these arguments.
    pub fn command(&self, nsid: u32) -> Command {
        let ignores = if self.ignores_key { IEKEY } else { 0 };
        let word = self.action as u32 | ignores | (self.persistence as u32) << 30;
        Command { nsid: nsid.into(), cdw10: word.into(), ..Command::new(opcode::io::RESERVATION_REGISTER) }
    }
}

/// The arguments of a Reservation Acquire in its command. Its data are [`AcquireKeys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// What to do.
    pub action: AcquireAction,
    /// The type to acquire.
    pub kind: Type,
}

impl Acquire {
    /// The arguments in a command.
    ///
    /// # Errors
    ///
    /// [`Status::INVALID_FIELD`] for reserved values, and for Ignore Existing Key, which base 1.3
    /// has removed.
    pub fn of(command: &Command) -> Result<Acquire, Status> {
        let word = command.cdw10.get();
        let action = match word & 7 {
            0 => AcquireAction::Acquire,
            1 => AcquireAction::Preempt,
            2 => AcquireAction::PreemptAndAbort,
            _ => return Err(Status::INVALID_FIELD),
        };
        let kind = Type::from_number((word >> 8) as u8).filter(|_| word & IEKEY == 0);
        Ok(Acquire { action, kind: kind.ok_or(Status::INVALID_FIELD)? })
    }

    /// The command with these arguments.
    pub fn command(&self, nsid: u32) -> Command {
        let word = self.action as u32 | (self.kind as u32) << 8;
        Command { nsid: nsid.into(), cdw10: word.into(), ..Command::new(opcode::io::RESERVATION_ACQUIRE) }
    }
}

/// The arguments of a Reservation Release in its command. Its data are the current key, 8 bytes;
/// Linux sends 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// What to do.
    pub action: ReleaseAction,
    /// The type of the reservation, which [`ReleaseAction::Clear`] ignores: any number.
    pub kind: u8,
}

impl Release {
    /// The arguments in a command.
    ///
    /// # Errors
    ///
    /// [`Status::INVALID_FIELD`] for a reserved action, and for Ignore Existing Key.
    pub fn of(command: &Command) -> Result<Release, Status> {
        let word = command.cdw10.get();
        let action = match word & 7 {
            _ if word & IEKEY != 0 => return Err(Status::INVALID_FIELD),
            0 => ReleaseAction::Release,
            1 => ReleaseAction::Clear,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Release { action, kind: (word >> 8) as u8 })
    }

    /// The command with these arguments.
    pub fn command(&self, nsid: u32) -> Command {
        let word = self.action as u32 | u32::from(self.kind) << 8;
        Command { nsid: nsid.into(), cdw10: word.into(), ..Command::new(opcode::io::RESERVATION_RELEASE) }
    }
}

/// The arguments of a Reservation Report in its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How many bytes the host takes.
    pub bytes: u64,
    /// Extended Data Structure: host identifiers of 128 bits.
    pub is_extended: bool,
}

impl Report {
    /// The arguments in a command.
    pub fn of(command: &Command) -> Report {
        let bytes = (u64::from(command.cdw10.get()) + 1) * 4;
        Report { bytes, is_extended: command.cdw11.get() & 1 != 0 }
    }

    /// The command with these arguments; the number of bytes is a multiple of 4.
    pub fn command(&self, nsid: u32) -> Command {
        let words = (self.bytes / 4).saturating_sub(1) as u32;
        Command {
            nsid: nsid.into(),
            cdw10: words.into(),
            cdw11: u32::from(self.is_extended).into(),
            ..Command::new(opcode::io::RESERVATION_REPORT)
        }
    }
}

/// The data of a Reservation Register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegisterKeys {
    /// Current Reservation Key.
    pub current: U64,
    /// New Reservation Key.
    pub new: U64,
}

/// The data of a Reservation Acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AcquireKeys {
    /// Current Reservation Key.
    pub current: U64,
    /// Preempt Reservation Key.
    pub preempted: U64,
}

/// The Reservation Status data structure, extended: what a Reservation Report returns, before the
/// registrants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportHeader {
    /// Generation: how often registrations and the reservation have changed.
    pub generation: U32,
    /// Reservation Type; 0 for none.
    pub kind: u8,
    /// Number of Registrants, also of those for which there was no room.
    pub registrants: U16,
    _reserved_7: [u8; 2],
    /// Persist Through Power Loss State.
    pub persists: u8,
    _reserved_10: [u8; 54],
}

const _: () = assert!(size_of::<ReportHeader>() == 64);

impl ReportHeader {
    /// A header.
    pub fn new(generation: u32, kind: Option<Type>, registrants: u16, persists: bool) -> ReportHeader {
        ReportHeader {
            generation: generation.into(),
            kind: kind.map_or(0, |kind| kind as u8),
            registrants: registrants.into(),
            _reserved_7: [0; 2],
            persists: persists.into(),
            _reserved_10: [0; 54],
        }
    }
}

/// The Registered Controller Extended data structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Registrant {
    /// Controller ID; 0xffff for a host whose controllers are made when it connects.
    pub cntlid: U16,
    /// Bit 0: it holds the reservation.
    pub status: u8,
    _reserved_3: [u8; 5],
    /// Reservation Key.
    pub key: U64,
    /// Host Identifier.
    pub host: [u8; 16],
    _reserved_32: [u8; 32],
}

const _: () = assert!(size_of::<Registrant>() == 64);

impl Registrant {
    /// A registrant of the dynamic controller model.
    pub fn new(is_holder: bool, key: u64, host: [u8; 16]) -> Registrant {
        Registrant {
            cntlid: 0xffff.into(),
            status: is_holder.into(),
            _reserved_3: [0; 5],
            key: key.into(),
            host,
            _reserved_32: [0; 32],
        }
    }
}

/// What a reservation notification is about (log page 0x80).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Notice {
    /// Registration Preempted.
    RegistrationPreempted = 1,
    /// Reservation Released.
    ReservationReleased = 2,
    /// Reservation Preempted.
    ReservationPreempted = 3,
}

/// The Reservation Notification log page (base 5.14.1.16.1): the oldest notification. All of it is
/// zero if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NoticePage {
    /// Log Page Count: one more than that of the notification before; it skips 0.
    pub count: U64,
    /// Reservation Notification Log Page Type: a [`Notice`], or 0 for none.
    pub kind: u8,
    /// Number of Available Log Pages behind this one, 255 at most.
    pub available: u8,
    _reserved_10: [u8; 2],
    /// Namespace ID.
    pub nsid: U32,
    _reserved_16: [u8; 48],
}

const _: () = assert!(size_of::<NoticePage>() == 64);

impl NoticePage {
    /// A notification.
    pub fn new(count: u64, kind: Notice, available: u8, nsid: u32) -> NoticePage {
        NoticePage {
            count: count.into(),
            kind: kind as u8,
            available,
            _reserved_10: [0; 2],
            nsid: nsid.into(),
            _reserved_16: [0; 48],
        }
    }
}

bitflags! {
    /// Which notifications a host does not want (feature 0x82), for a namespace or all of them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Mask: u32 {
        /// Mask Registration Preempted.
        const REGISTRATION_PREEMPTED = 1 << 1;
        /// Mask Reservation Released.
        const RESERVATION_RELEASED = 1 << 2;
        /// Mask Reservation Preempted.
        const RESERVATION_PREEMPTED = 1 << 3;
    }

    /// [`crate::identify::Namespace::rescap`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rescap: u8 {
        /// Persist Through Power Loss.
        const PERSISTS = 1 << 0;
        /// All types of reservations.
        const ALL_TYPES = 0x7e;
        /// Ignore Existing Key is as in base 1.3.
        const IGNORES_KEY_1_3 = 1 << 7;
    }
}

impl Mask {
    /// Whether it holds back a notification.
    pub fn masks(self, notice: Notice) -> bool {
        self.bits() & 1 << notice as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_the_commands() {
        let register = Register {
            action: RegisterAction::Replace,
            ignores_key: true,
            persistence: ChangePersistence::Set,
        };
        let command = register.command(3);
        assert_eq!((command.opcode, command.cdw10.get(), command.nsid.get()), (0x0d, 0xc000_000a, 3));
        assert_eq!(Register::of(&command), Ok(register));
        let acquire = Acquire { action: AcquireAction::PreemptAndAbort, kind: Type::ExclusiveAccessAll };
        assert_eq!(acquire.command(1).cdw10.get(), 0x602);
        assert_eq!(Acquire::of(&acquire.command(1)), Ok(acquire));
        let release = Release { action: ReleaseAction::Clear, kind: 5 };
        assert_eq!((release.command(1).opcode, release.command(1).cdw10.get()), (0x15, 0x501));
        assert_eq!(Release::of(&release.command(1)), Ok(release));
        let report = Report { bytes: 4096, is_extended: true };
        assert_eq!((report.command(1).cdw10.get(), report.command(1).cdw11.get()), (1023, 1));
        assert_eq!(Report::of(&report.command(1)), report);
    }

    #[test]
    fn reserved_values_are_refused() {
        let with = |word: u32| Command { cdw10: word.into(), ..Command::new(0) };
        for word in [3, 7, 1 << 30] {
            assert_eq!(Register::of(&with(word)), Err(Status::INVALID_FIELD), "{word:#x}");
        }
        for word in [0x103, 0x107, 0x000, 0x700, 0xff00, 0x108] {
            assert_eq!(Acquire::of(&with(word)), Err(Status::INVALID_FIELD), "{word:#x}");
        }
        for word in [2, 7, 8] {
            assert_eq!(Release::of(&with(word)), Err(Status::INVALID_FIELD), "{word:#x}");
        }
    }

    #[test]
    fn the_bytes_of_a_report_and_of_a_notification() {
        let header = ReportHeader::new(0x0102_0304, Some(Type::WriteExclusiveAll), 0x0506, true);
        assert_eq!(header.as_bytes()[..11], [4, 3, 2, 1, 5, 6, 5, 0, 0, 1, 0]);
        let registrant = Registrant::new(true, 0x0807_0605_0403_0201, [9; 16]);
        let expected = [0xff, 0xff, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(registrant.as_bytes()[..17], expected);
        let page = NoticePage::new(7, Notice::ReservationReleased, 2, 5);
        assert_eq!(page.as_bytes()[..16], [7, 0, 0, 0, 0, 0, 0, 0, 2, 2, 0, 0, 5, 0, 0, 0]);
        assert!(Mask::RESERVATION_RELEASED.masks(Notice::ReservationReleased));
        assert!(!Mask::RESERVATION_RELEASED.masks(Notice::ReservationPreempted));
        assert_eq!(Type::ALL.map(Type::is_exclusive_access), [false, true, false, true, false, true]);
    }
}

//! Commands as the driver wrote them, and answers.

use nic_abi::admin::{Command, RESULT_SIZE, Status};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The admin queue.
pub(crate) struct AdminQueue {
    pub commands: u64,
    pub responses: u64,
    pub log: u32,
    /// Commands taken since the start.
    pub head: u32,
    /// Commands posted since the start, as of the last doorbell.
    pub tail: u32,
}

impl AdminQueue {
    pub const fn new(commands: u64, responses: u64, log: u32) -> AdminQueue {
        AdminQueue { commands, responses, log, head: 0, tail: 0 }
    }

    /// The place in the rings of a free-running index.
    pub fn entry(&self, index: u32) -> u64 {
        u64::from(index & ((1 << self.log) - 1))
    }
}

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: Status,
    /// Offset of the field to blame.
    pub field: u16,
}

impl Refusal {
    pub const fn new(status: Status, field: usize) -> Refusal {
        Refusal { status, field: field as u16 }
    }

    /// A field has a value that is not allowed.
    pub const fn field(field: usize) -> Refusal {
        Refusal::new(Status::BadField, field)
    }
}

/// A command's result.
pub(crate) type CommandResult = Result<[u8; RESULT_SIZE], Refusal>;

/// The offset in a command of one of its fields, or of a field of its arguments.
macro_rules! at {
    (command.$name:ident) => {
        core::mem::offset_of!(nic_abi::admin::Command, $name)
    };
    ($args:ty, $name:ident) => {
        nic_abi::admin::ARGS_OFFSET + core::mem::offset_of!($args, $name)
    };
}
pub(crate) use at;

/// A result without content.
pub(crate) const DONE: [u8; RESULT_SIZE] = [0; RESULT_SIZE];

/// A result with content.
pub(crate) fn result<T: IntoBytes + Immutable>(value: &T) -> [u8; RESULT_SIZE] {
    let mut bytes = DONE;
    let value = value.as_bytes();
    let n = value.len().min(RESULT_SIZE);
    bytes[..n].copy_from_slice(&value[..n]);
    bytes
}

/// The arguments of a command.
pub(crate) fn args<T: FromBytes + IntoBytes>(command: &Command) -> T {
    let mut value = T::new_zeroed();
    let bytes = value.as_mut_bytes();
    let n = bytes.len().min(command.args.len());
    bytes[..n].copy_from_slice(&command.args[..n]);
    value
}

/// Refuses a size (a count, or the log of one) outside of a range.
pub(crate) fn check_range(
    value: u32,
    range: core::ops::RangeInclusive<u32>,
    field: usize,
) -> Result<(), Refusal> {
    if range.contains(&value) { Ok(()) } else { Err(Refusal::field(field)) }
}

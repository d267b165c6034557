//! What can go wrong between the driver and the device.

use nic_abi::admin::{Opcode, Status};
use thiserror::Error;

/// Why a device is taken for dead. Only a reset, by opening it anew, can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Death {
    /// Its heartbeat stopped.
    #[error("the heartbeat stopped")]
    Heartbeat,
    /// It says of itself that it failed, with this `nic_abi::registers::Fault` word.
    #[error("the device failed by itself (fault {0})")]
    Failed(u32),
    /// A command was not answered in time.
    #[error("a command was not answered in time")]
    CommandTimeout,
    /// It answered something that makes no sense.
    #[error("the device broke the protocol")]
    Protocol,
    /// The driver closed it.
    #[error("the driver closed the device")]
    Closed,
}

/// A command that the device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{opcode:?} refused: {status:?}, field at byte {field}")]
pub struct CommandError {
    /// The command.
    pub opcode: Opcode,
    /// Why.
    pub status: Status,
    /// The byte offset in the command of the field to blame, or `nic_abi::admin::NO_FIELD`.
    pub field: u16,
}

/// Why a control call failed; it then changed nothing, unless the device is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The device is dead.
    #[error("the device is dead: {0}")]
    DeviceDead(Death),
    /// The function is not an RNIC.
    #[error("no RNIC: magic {0:#018x}")]
    NotAnRnic(u64),
    /// The device speaks another version.
    #[error("interface version {0}.{1} is not spoken here")]
    Version(u16, u16),
    /// The device names a limit that cannot be.
    #[error("the device names an impossible {0}")]
    BadLimit(&'static str),
    /// The device did not carry out a reset or start in time.
    #[error("the device did not answer {0}")]
    NoAnswer(&'static str),
    /// An argument is beyond what the device can do.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
    /// No memory that the device can reach.
    #[error("out of memory")]
    OutOfMemory,
    /// The device refused a command.
    #[error(transparent)]
    Command(#[from] CommandError),
}

impl From<platform::OutOfMemory> for Error {
    fn from(_: platform::OutOfMemory) -> Error {
        Error::OutOfMemory
    }
}

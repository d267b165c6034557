//! What can go wrong between the driver and the device.

use nic_abi::admin::{Opcode, Status};
use thiserror::Error;

/// Why a device is dead. Only a reset helps: close the driver and open the device again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Death {
    /// Its heartbeat stopped.
    #[error("the heartbeat stopped")]
    Heartbeat,
    /// It reports that it failed, with this `nic_abi::registers::Fault` word.
    #[error("the device failed by itself (fault {0})")]
    Failed(u32),
    /// A command was not answered in time.
    #[error("a command was not answered in time")]
    CommandTimeout,
    /// It wrote something that the protocol does not allow.
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
    /// The byte offset in the command of the field at fault, or `nic_abi::admin::NO_FIELD`.
    pub field: u16,
}

/// Why a control call failed. A call that failed changed nothing, unless the device is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The device is dead.
    #[error("the device is dead: {0}")]
    DeviceDead(Death),
    /// The function is not an RNIC.
    #[error("not an RNIC: magic {0:#018x}")]
    NotAnRnic(u64),
    /// The device has another version of the interface.
    #[error("interface version {0}.{1} is not supported")]
    Version(u16, u16),
    /// The device states an impossible limit.
    #[error("the device states an impossible {0}")]
    BadLimit(&'static str),
    /// The device did not carry out a reset or start in time.
    #[error("the device did not answer {0}")]
    NoAnswer(&'static str),
    /// An argument exceeds what the device can do.
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

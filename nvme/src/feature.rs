//! Features: Set Features and Get Features (base 5.21 and 5.13).

use bitflags::bitflags;

use crate::command::opcode;
use crate::{Command, Status};

/// Feature identifiers.
pub mod id {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache: [`super::VolatileWriteCache`].
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues: [`super::NumberOfQueues`].
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Interrupt Coalescing.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Interrupt Vector Configuration.
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration: [`super::AsyncEvents`].
    pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0b;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x0e;
    /// Keep Alive Timer: the timeout in milliseconds; 0 for none.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
    /// Host Behavior Support.
    pub const HOST_BEHAVIOR_SUPPORT: u8 = 0x16;
    /// Host Identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
    /// Reservation Notification Mask: [`crate::reservation::Mask`], of a namespace.
    pub const RESERVATION_MASK: u8 = 0x82;
    /// Reservation Persistence, of a namespace: bit 0.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Namespace Write Protection Config.
    pub const WRITE_PROTECTION: u8 = 0x84;
}

/// The arguments of a Set Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// Feature Identifier.
    pub fid: u8,
    /// Save: the value survives a reset.
    pub save: bool,
    /// The namespace, for a feature that is specific to one.
    pub nsid: u32,
    /// Dword 11: the value.
    pub value: u32,
}

impl SetFeatures {
    /// The arguments in a Set Features command.
    pub fn of(command: &Command) -> Self {
        let cdw10 = command.cdw10.get();
        Self {
            fid: cdw10 as u8,
            save: cdw10 >> 31 != 0,
            nsid: command.nsid.get(),
            value: command.cdw11.get(),
        }
    }

    /// The command with these arguments.
    pub fn command(&self) -> Command {
        let cdw10 = u32::from(self.save) << 31 | u32::from(self.fid);
        Command {
            nsid: self.nsid.into(),
            cdw10: cdw10.into(),
            cdw11: self.value.into(),
            ..Command::new(opcode::admin::SET_FEATURES)
        }
    }
}

/// Which value of a feature Get Features asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Select {
    /// The value in force.
    Current = 0,
    /// The value that the controller has by itself.
    Default = 1,
    /// The saved value.
    Saved = 2,
    /// The [`Capabilities`] of the feature.
    SupportedCapabilities = 3,
}

/// The arguments of a Get Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// Feature Identifier.
    pub fid: u8,
    /// Which value.
    pub select: Select,
    /// The namespace, for a feature that is specific to one.
    pub nsid: u32,
}

impl GetFeatures {
    /// The arguments in a Get Features command.
    ///
    /// # Errors
    ///
    /// [`Status::INVALID_FIELD`] for a reserved Select.
    pub fn of(command: &Command) -> Result<Self, Status> {
        let cdw10 = command.cdw10.get();
        let select = match cdw10 >> 8 & 7 {
            0 => Select::Current,
            1 => Select::Default,
            2 => Select::Saved,
            3 => Select::SupportedCapabilities,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Self { fid: cdw10 as u8, select, nsid: command.nsid.get() })
    }

    /// The command with these arguments.
    pub fn command(&self) -> Command {
        let cdw10 = (self.select as u32) << 8 | u32::from(self.fid);
        Command { nsid: self.nsid.into(), cdw10: cdw10.into(), ..Command::new(opcode::admin::GET_FEATURES) }
    }
}

bitflags! {
    /// The result of a Get Features with [`Select::SupportedCapabilities`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// The value can be saved.
        const SAVEABLE = 1 << 0;
        /// Each namespace has a value.
        const NAMESPACE_SPECIFIC = 1 << 1;
        /// The value can be changed.
        const CHANGEABLE = 1 << 2;
    }

    /// The value of [`id::VOLATILE_WRITE_CACHE`] (base 5.21.1.6).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct VolatileWriteCache: u32 {
        /// Volatile Write Cache Enable (WCE).
        const ENABLE = 1 << 0;
    }

    /// The value of [`id::ASYNC_EVENT_CONFIGURATION`] (base 5.21.1.11): which events the controller
    /// may report.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AsyncEvents: u32 {
        /// SMART / Health Critical Warnings: one bit for each of [`crate::log::CriticalWarning`].
        const CRITICAL_WARNINGS = 0xff;
        /// Namespace Attribute Notices.
        const NAMESPACE_ATTRIBUTE = 1 << 8;
        /// Firmware Activation Notices.
        const FIRMWARE_ACTIVATION = 1 << 9;
        /// Telemetry Log Notices.
        const TELEMETRY_LOG = 1 << 10;
        /// Asymmetric Namespace Access Change Notices.
        const ANA_CHANGE = 1 << 11;
        /// Discovery Log Page Change Notifications (fabrics).
        const DISCOVERY_LOG_CHANGE = 1 << 31;
    }
}

/// The value of [`id::NUMBER_OF_QUEUES`] (base 5.21.1.7): how many I/O queues the host asks for,
/// and in the result how many it gets. On the wire both are 0-based.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberOfQueues {
    /// Submission queues, at least 1.
    pub submission: u16,
    /// Completion queues, at least 1.
    pub completion: u16,
}

impl NumberOfQueues {
    /// What a host asks for.
    ///
    /// # Errors
    ///
    /// [`Status::INVALID_FIELD`] if one number is 65,536, as the specification says.
    pub fn parse(value: u32) -> Result<Self, Status> {
        let count = |count: u16| count.checked_add(1).ok_or(Status::INVALID_FIELD);
        Ok(Self { submission: count(value as u16)?, completion: count((value >> 16) as u16)? })
    }

    /// The value. None of the numbers may be 0; one that is becomes 1.
    pub fn value(&self) -> u32 {
        let zero_based = |count: u16| u32::from(count.saturating_sub(1));
        zero_based(self.completion) << 16 | zero_based(self.submission)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_features() {
        let set = SetFeatures { fid: id::NUMBER_OF_QUEUES, save: false, nsid: 0, value: 0x0003_0003 };
        let command = set.command();
        assert_eq!((command.opcode, command.cdw10.get(), command.cdw11.get()), (9, 7, 0x0003_0003));
        assert_eq!(SetFeatures::of(&command), set);
        let saved = SetFeatures { save: true, nsid: 5, ..set };
        assert_eq!(saved.command().cdw10.get(), 0x8000_0007);
        assert_eq!(SetFeatures::of(&saved.command()), saved);
    }

    #[test]
    fn get_features() {
        for select in [Select::Current, Select::Default, Select::Saved, Select::SupportedCapabilities] {
            let get = GetFeatures { fid: id::KEEP_ALIVE_TIMER, select, nsid: 3 };
            assert_eq!(GetFeatures::of(&get.command()), Ok(get));
        }
        let mut command = Command::new(opcode::admin::GET_FEATURES);
        for select in 4..8 {
            command.cdw10 = (select << 8).into();
            assert_eq!(GetFeatures::of(&command), Err(Status::INVALID_FIELD));
        }
        command.cdw10 = 0xffff_f80f.into();
        assert_eq!(
            GetFeatures::of(&command),
            Ok(GetFeatures { fid: 0x0f, select: Select::Current, nsid: 0 })
        );
        command.cdw10 = 0x0306.into();
        assert_eq!(GetFeatures::of(&command).unwrap().select, Select::SupportedCapabilities);
    }

    #[test]
    fn numbers_of_queues_are_0_based() {
        let queues = NumberOfQueues { submission: 1, completion: 4 };
        assert_eq!(queues.value(), 0x0003_0000);
        assert_eq!(NumberOfQueues::parse(0x0003_0000), Ok(queues));
        assert_eq!(NumberOfQueues { submission: 0, completion: 0 }.value(), 0);
        for value in [0xffff, 0xffff_0000, 0xffff_ffff] {
            assert_eq!(NumberOfQueues::parse(value), Err(Status::INVALID_FIELD));
        }
        let most = NumberOfQueues { submission: 0xffff, completion: 0xffff };
        assert_eq!(NumberOfQueues::parse(0xfffe_fffe), Ok(most));
    }
}

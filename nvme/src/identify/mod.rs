//! Identify (base 5.15).

mod controller;
mod list;
mod namespace;

pub use controller::{
    Anacap, Cmic, Controller, ControllerType, Ctratt, Fcatt, Fuses, Lpa, NvmController, Oacs, Oaes, Oncs,
    PowerState, Sgls, Vwc,
};
pub use list::{ActiveList, DescriptorWriter, Descriptors, NamespaceId, NoRoom};
pub use namespace::{Dlfeat, IndependentNamespace, LbaFormat, Namespace, Nmic, Nsfeat};

use crate::Command;
use crate::command::opcode;

/// Bytes of every data structure of Identify.
pub const LEN: usize = 4096;

/// Controller or Namespace Structure (base 5.15.1).
pub mod cns {
    /// [`super::Namespace`] of the command's namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// [`super::Controller`].
    pub const CONTROLLER: u8 = 0x01;
    /// [`super::ActiveList`] of the NSIDs above the command's.
    pub const ACTIVE_LIST: u8 = 0x02;
    /// The [`super::Descriptors`] of the command's namespace.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// Of base 2.0: the namespace's structure of a command set. For the NVM command set zeros will
    /// do.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// Of base 2.0: a controller's structure for a command set.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Of base 2.0: [`super::ActiveList`] of the namespaces of a command set.
    pub const COMMAND_SET_ACTIVE_LIST: u8 = 0x07;
    /// Of base 2.0: the namespace's structure that no command set owns.
    pub const COMMAND_SET_INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// Of base 2.0: 512 combinations of command sets, 8 bytes each.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// The arguments of an Identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Which structure: one of [`cns`].
    pub cns: u8,
    /// Controller Identifier, for some structures.
    pub cntid: u16,
    /// Namespace, or the NSID that a list begins after.
    pub nsid: u32,
}

impl Identify {
    /// The arguments in an Identify command.
    pub fn of(command: &Command) -> Self {
        let cdw10 = command.cdw10.get();
        Self { cns: cdw10 as u8, cntid: (cdw10 >> 16) as u16, nsid: command.nsid.get() }
    }

    /// Of base 2.0: the Command Set Identifier of an Identify command, for some structures. 0 is
    /// the NVM command set.
    pub fn command_set(command: &Command) -> u8 {
        (command.cdw11.get() >> 24) as u8
    }

    /// The command with these arguments, of the NVM command set.
    pub fn command(&self) -> Command {
        let cdw10 = u32::from(self.cntid) << 16 | u32::from(self.cns);
        Command { nsid: self.nsid.into(), cdw10: cdw10.into(), ..Command::new(opcode::admin::IDENTIFY) }
    }
}

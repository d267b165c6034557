//! Log pages (base 5.14; fabrics 5).

mod ana;
mod discovery;
mod pages;

pub use ana::{AnaGroup, AnaHeader, AnaState, GROUPS_ONLY, NoAnaState};
pub use discovery::{
    DiscoveryEntry, DiscoveryHeader, EntryFlags, RdmaAddress, address_family, provider, subsystem, transport,
};
pub use pages::{ChangedNamespaces, CriticalWarning, ErrorEntry, Smart};

use crate::Command;
use crate::command::opcode;

/// Log page identifiers (base 5.14.1).
pub mod id {
    /// Of base 2.0: Supported Log Pages: a dword for each, whose bit 0 says that it is supported.
    pub const SUPPORTED: u8 = 0x00;
    /// Error Information: [`super::ErrorEntry`], the newest first.
    pub const ERROR: u8 = 0x01;
    /// SMART / Health Information: [`super::Smart`].
    pub const SMART: u8 = 0x02;
    /// Firmware Slot Information, 512 bytes.
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// Changed Namespace List: [`super::ChangedNamespaces`].
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects: an [`super::Effects`] for each admin opcode, and for each
    /// I/O opcode.
    pub const COMMAND_EFFECTS: u8 = 0x05;
    /// Asymmetric Namespace Access: [`super::AnaHeader`] and [`super::AnaGroup`].
    pub const ANA: u8 = 0x0c;
    /// Of base 2.0: Feature Identifiers Supported and Effects: a [`super::FeatureEffects`] for
    /// each.
    pub const FEATURE_EFFECTS: u8 = 0x12;
    /// Of base 2.0: the same for the commands of the management interface.
    pub const MANAGEMENT_EFFECTS: u8 = 0x13;
    /// Discovery: [`super::DiscoveryHeader`] and [`super::DiscoveryEntry`].
    pub const DISCOVERY: u8 = 0x70;
    /// Reservation Notification: [`crate::reservation::NoticePage`].
    pub const RESERVATION_NOTIFICATION: u8 = 0x80;
}

bitflags::bitflags! {
    /// What a command does, in the Commands Supported and Effects log page.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Effects: u32 {
        /// The command is supported.
        const SUPPORTED = 1 << 0;
        /// It may change the contents of logical blocks.
        const CHANGES_BLOCKS = 1 << 1;
        /// Its scope is a namespace.
        const OF_NAMESPACE = 1 << 20;
        /// Its scope is a controller.
        const OF_CONTROLLER = 1 << 21;
    }

    /// What a feature does, in the Feature Identifiers Supported and Effects log page.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FeatureEffects: u32 {
        /// The feature is supported.
        const SUPPORTED = 1 << 0;
        /// Its scope is a namespace.
        const OF_NAMESPACE = 1 << 20;
        /// Its scope is a controller.
        const OF_CONTROLLER = 1 << 21;
    }
}

/// Bytes of the pages that have a dword for each of 256 identifiers.
pub const SUPPORTED_LEN: usize = 1024;
/// Bytes of the Commands Supported and Effects log page.
pub const EFFECTS_LEN: usize = 4096;

/// The arguments of a Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// The namespace; 0 or [`crate::NSID_ALL`] for the controller's page.
    pub nsid: u32,
    /// Log Page Identifier.
    pub lid: u8,
    /// Log Specific Field.
    pub lsp: u8,
    /// Retain Asynchronous Event: reading the page does not allow the next event.
    pub rae: bool,
    /// Number of Dwords, 0-based.
    pub numd: u32,
    /// Log Page Offset in bytes. The specification wants a multiple of 4.
    pub offset: u64,
}

impl GetLogPage {
    /// The arguments in a Get Log Page command. A controller without [`crate::identify::Lpa`]'s
    /// EXTENDED_DATA has no offset and a shorter length.
    pub fn of(command: &Command) -> Self {
        let (cdw10, cdw11) = (command.cdw10.get(), command.cdw11.get());
        Self {
            nsid: command.nsid.get(),
            lid: cdw10 as u8,
            lsp: (cdw10 >> 8) as u8 & 0xf,
            rae: cdw10 >> 15 & 1 != 0,
            numd: cdw11 << 16 | cdw10 >> 16,
            offset: u64::from(command.cdw13.get()) << 32 | u64::from(command.cdw12.get()),
        }
    }

    /// How many bytes the host asks for, 4 to 2^34.
    pub fn bytes(&self) -> u64 {
        (u64::from(self.numd) + 1) * 4
    }

    /// The command with these arguments.
    pub fn command(&self) -> Command {
        let cdw10 = self.numd << 16
            | u32::from(self.rae) << 15
            | u32::from(self.lsp & 0xf) << 8
            | u32::from(self.lid);
        Command {
            nsid: self.nsid.into(),
            cdw10: cdw10.into(),
            cdw11: (self.numd >> 16).into(),
            cdw12: (self.offset as u32).into(),
            cdw13: ((self.offset >> 32) as u32).into(),
            ..Command::new(opcode::admin::GET_LOG_PAGE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_get_log_page() {
        let page = GetLogPage {
            nsid: crate::NSID_ALL,
            lid: id::DISCOVERY,
            lsp: 0xa,
            rae: true,
            numd: 0x1234_5678,
            offset: 0x0102_0304_0506_0708,
        };
        let command = page.command();
        assert_eq!((command.opcode, command.nsid.get()), (2, 0xffff_ffff));
        assert_eq!((command.cdw10.get(), command.cdw11.get()), (0x5678_8a70, 0x1234));
        assert_eq!((command.cdw12.get(), command.cdw13.get()), (0x0506_0708, 0x0102_0304));
        assert_eq!(GetLogPage::of(&command), page);
        let other = GetLogPage { rae: false, lsp: 0, ..page };
        assert_eq!(other.command().cdw10.get(), 0x5678_0070);
        assert_eq!(GetLogPage::of(&other.command()), other);
    }

    #[test]
    fn a_length_is_up_to_2_to_the_34() {
        let mut page = GetLogPage::of(&Command::new(opcode::admin::GET_LOG_PAGE));
        assert_eq!(page.bytes(), 4);
        page.numd = u32::MAX;
        assert_eq!(page.bytes(), 1 << 34);
    }
}

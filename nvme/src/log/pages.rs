//! The log pages of an I/O controller: errors (base 5.14.1.1), health (5.14.1.2), changed
//! namespaces (5.14.1.4).

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;

/// An entry of the Error Information log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Error Count: 1 for the first error, 0 for an entry that is not valid.
    pub error_count: U64,
    /// Submission Queue ID.
    pub sqid: U16,
    /// Command ID.
    pub cid: U16,
    /// The last word of the completion: [`Status::to_wire`].
    pub status: U16,
    /// Parameter Error Location: the byte in bits 7:0, the bit in bits 10:8; all ones for none.
    pub parameter_error_location: U16,
    /// The first logical block that had the error.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor Specific Information Available: a log page.
    pub vendor_page: u8,
    /// Transport Type: one of [`super::transport`].
    pub trtype: u8,
    _reserved_30: [u8; 2],
    /// Command Specific Information.
    pub command_specific: U64,
    /// Transport Type Specific Information.
    pub trtype_specific: U16,
    _reserved_42: [u8; 22],
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);

impl ErrorEntry {
    /// An entry about a command, which says no more than which one and how it ended.
    pub fn new(error_count: u64, sqid: u16, cid: u16, status: Status) -> Self {
        Self {
            error_count: error_count.into(),
            sqid: sqid.into(),
            cid: cid.into(),
            status: status.to_wire().into(),
            parameter_error_location: 0xffff.into(),
            trtype: super::transport::RDMA,
            ..Self::new_zeroed()
        }
    }
}

bitflags::bitflags! {
    /// [`Smart::critical_warning`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CriticalWarning: u8 {
        /// The available spare is below its threshold.
        const SPARE = 1 << 0;
        /// A temperature is beyond its threshold.
        const TEMPERATURE = 1 << 1;
        /// The reliability of the subsystem is degraded.
        const RELIABILITY = 1 << 2;
        /// The media are read-only.
        const READ_ONLY = 1 << 3;
        /// The backup of the volatile memory has failed.
        const VOLATILE_BACKUP = 1 << 4;
    }
}

/// The SMART / Health Information log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Smart {
    /// Critical Warning: [`CriticalWarning`].
    pub critical_warning: u8,
    /// Composite Temperature in kelvin.
    pub composite_temperature: U16,
    /// Available Spare in percent.
    pub available_spare: u8,
    /// Available Spare Threshold in percent.
    pub available_spare_threshold: u8,
    /// Percentage Used; it may exceed 100.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    _reserved_7: [u8; 25],
    /// Data Units Read, in 1,000 times 512 bytes, rounded up.
    pub data_units_read: U128,
    /// Data Units Written, likewise.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_read_commands: U128,
    /// Host Write Commands.
    pub host_write_commands: U128,
    /// Controller Busy Time in minutes.
    pub controller_busy_time: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries.
    pub error_log_entries: U128,
    /// Warning Composite Temperature Time in minutes.
    pub warning_temperature_time: U32,
    /// Critical Composite Temperature Time in minutes.
    pub critical_temperature_time: U32,
    /// Temperature Sensors 1 to 8 in kelvin; 0 for none.
    pub temperature_sensors: [U16; 8],
    /// Thermal Management Temperature 1 and 2: how often each was passed.
    pub thermal_transitions: [U32; 2],
    /// Thermal Management Temperature 1 and 2: seconds beyond each.
    pub thermal_time: [U32; 2],
    _reserved_232: [u8; 280],
}

const _: () = assert!(size_of::<Smart>() == 512);

/// The Changed Namespace List log page: NSIDs in ascending order, which zeros follow.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChangedNamespaces {
    /// The NSIDs.
    pub nsids: [U32; 1024],
}

const _: () = assert!(size_of::<ChangedNamespaces>() == 4096);

impl ChangedNamespaces {
    /// Makes the list one of these NSIDs, which have to ascend. If they are more than the list
    /// holds, it says only that: its first entry is [`crate::NSID_ALL`].
    pub fn fill(&mut self, nsids: impl IntoIterator<Item = u32>) {
        self.zero();
        let mut places = self.nsids.iter_mut();
        for nsid in nsids {
            match places.next() {
                Some(place) => *place = nsid.into(),
                None => {
                    self.zero();
                    self.nsids[0] = crate::NSID_ALL.into();
                    return;
                }
            }
        }
    }

    /// The NSIDs up to the first 0.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.nsids.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_changed_namespaces_that_overflows_says_so() {
        let mut list = ChangedNamespaces::new_zeroed();
        list.fill([1, 7]);
        assert!(list.iter().eq([1, 7]));
        list.fill(1..=1024);
        assert!(list.iter().eq(1..=1024));
        list.fill(1..=1025);
        assert!(list.iter().eq([0xffff_ffff]));
        list.fill([]);
        assert_eq!(list.iter().count(), 0);
    }

    #[test]
    fn an_error_entry_names_the_command() {
        let entry = ErrorEntry::new(3, 2, 0x1234, Status::LBA_OUT_OF_RANGE.dnr());
        assert_eq!(
            entry.as_bytes()[..16],
            [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0x34, 0x12, 0x00, 0x81, 0xff, 0xff]
        );
        assert_eq!(entry.as_bytes()[29], 1);
    }
}

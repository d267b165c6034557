//! The status of a command (base 4.6.1; fabrics 3.3 and 5).

use core::fmt;

/// A status field without the phase bit: the status code in bits 7:0, its type in bits 10:8, the
/// retry delay in bits 12:11, More in bit 13, Do Not Retry in bit 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

/// The kinds of status code (base 4.6.1.1).
pub mod sct {
    /// Generic command status.
    pub const GENERIC: u8 = 0;
    /// Command specific status.
    pub const COMMAND_SPECIFIC: u8 = 1;
    /// Media and data integrity errors.
    pub const MEDIA: u8 = 2;
    /// Path related status.
    pub const PATH: u8 = 3;
    /// Vendor specific.
    pub const VENDOR: u8 = 7;
}

const CODE: u16 = 0x7ff;
const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;

impl Status {
    /// The status with this type and code.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((sct as u16 & 7) << 8 | sc as u16)
    }

    /// The status in a completion's last word, which has the phase bit lowest.
    pub const fn from_wire(word: u16) -> Self {
        Self(word >> 1)
    }

    /// A completion's last word, with phase 0, as fabrics have it.
    pub const fn to_wire(self) -> u16 {
        self.0 << 1
    }

    /// Type and code, without retry delay, More and Do Not Retry.
    pub const fn code(self) -> u16 {
        self.0 & CODE
    }

    /// The status code type.
    pub const fn sct(self) -> u8 {
        (self.code() >> 8) as u8
    }

    /// The status code.
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }

    /// The same with Do Not Retry: the same command would fail again.
    pub const fn dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// The same without Do Not Retry.
    pub const fn without_dnr(self) -> Self {
        Self(self.0 & !DNR)
    }

    /// Whether Do Not Retry is set.
    pub const fn is_dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// The same with More: the error log says more.
    pub const fn more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Whether More is set.
    pub const fn is_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.code() == 0
    }
}

macro_rules! statuses {
    ($($name:ident = $value:literal $text:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!($text, ".")]
                pub const $name: Status = Status($value);
            )*
        }

        /// The constants, for the tests.
        #[cfg(test)]
        const ALL: &[(Status, &str)] = &[$((Status::$name, $text),)*];

        fn text(code: u16) -> Option<&'static str> {
            match code {
                $($value => Some($text),)*
                _ => None,
            }
        }
    };
}

statuses! {
    SUCCESS = 0x00 "Successful Completion";
    INVALID_OPCODE = 0x01 "Invalid Command Opcode";
    INVALID_FIELD = 0x02 "Invalid Field in Command";
    CID_CONFLICT = 0x03 "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0x04 "Data Transfer Error";
    ABORTED_POWER_LOSS = 0x05 "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0x06 "Internal Error";
    ABORT_REQUESTED = 0x07 "Command Abort Requested";
    ABORT_SQ_DELETED = 0x08 "Command Aborted due to SQ Deletion";
    ABORT_FUSED_FAILED = 0x09 "Command Aborted due to Failed Fused Command";
    ABORT_FUSED_MISSING = 0x0a "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0x0b "Invalid Namespace or Format";
    SEQUENCE_ERROR = 0x0c "Command Sequence Error";
    SGL_SEGMENT_DESCRIPTOR_INVALID = 0x0d "Invalid SGL Segment Descriptor";
    SGL_DESCRIPTOR_COUNT_INVALID = 0x0e "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = 0x0f "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = 0x10 "Metadata SGL Length Invalid";
    SGL_DESCRIPTOR_TYPE_INVALID = 0x11 "SGL Descriptor Type Invalid";
    PRP_OFFSET_INVALID = 0x13 "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x14 "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0x15 "Operation Denied";
    SGL_OFFSET_INVALID = 0x16 "SGL Offset Invalid";
    HOST_IDENTIFIER_INCONSISTENT = 0x18 "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0x19 "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = 0x1a "Keep Alive Timeout Invalid";
    ABORT_PREEMPTED = 0x1b "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0x1c "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0x1d "Sanitize In Progress";
    SGL_GRANULARITY_INVALID = 0x1e "SGL Data Block Granularity Invalid";
    NAMESPACE_IS_WRITE_PROTECTED = 0x20 "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0x21 "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0x22 "Transient Transport Error";
    LBA_OUT_OF_RANGE = 0x80 "LBA Out of Range";
    CAPACITY_EXCEEDED = 0x81 "Capacity Exceeded";
    NS_NOT_READY = 0x82 "Namespace Not Ready";
    RESERVATION_CONFLICT = 0x83 "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0x84 "Format In Progress";
    COMPLETION_QUEUE_INVALID = 0x100 "Completion Queue Invalid";
    INVALID_QUEUE_ID = 0x101 "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 0x102 "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 0x103 "Abort Command Limit Exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = 0x105 "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = 0x106 "Invalid Firmware Slot";
    INVALID_LOG_PAGE = 0x109 "Invalid Log Page";
    INVALID_FORMAT = 0x10a "Invalid Format";
    INVALID_QUEUE_DELETION = 0x10c "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE = 0x10d "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 0x10e "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10f "Feature Not Namespace Specific";
    NAMESPACE_NOT_ATTACHED = 0x11a "Namespace Not Attached";
    CONTROLLER_LIST_INVALID = 0x11c "Controller List Invalid";
    INVALID_CONTROLLER_ID = 0x11f "Invalid Controller Identifier";
    CONNECT_INCOMPATIBLE_FORMAT = 0x180 "Connect Incompatible Format, or Conflicting Attributes";
    CONTROLLER_BUSY = 0x181 "Connect Controller Busy, or Invalid Protection Information";
    CONNECT_INVALID_PARAMETERS = 0x182 "Connect Invalid Parameters, or Attempted Write to Read Only Range";
    CONNECT_RESTART_DISCOVERY = 0x183 "Connect Restart Discovery, or Command Size Limit Exceeded";
    CONNECT_INVALID_HOST = 0x184 "Connect Invalid Host";
    INVALID_QUEUE_TYPE = 0x185 "Invalid Queue Type";
    DISCOVER_RESTART = 0x190 "Discover Restart";
    AUTH_REQUIRED = 0x191 "Authentication Required";
    WRITE_FAULT = 0x280 "Write Fault";
    UNRECOVERED_READ = 0x281 "Unrecovered Read Error";
    GUARD_CHECK = 0x282 "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK = 0x283 "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK = 0x284 "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 0x285 "Compare Failure";
    ACCESS_DENIED = 0x286 "Access Denied";
    DEALLOCATED_OR_UNWRITTEN = 0x287 "Deallocated or Unwritten Logical Block";
    INTERNAL_PATH_ERROR = 0x300 "Internal Path Error";
    ANA_PERSISTENT_LOSS = 0x301 "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 0x302 "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 0x303 "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR = 0x360 "Controller Pathing Error";
    HOST_PATHING_ERROR = 0x370 "Host Pathing Error";
    ABORTED_BY_HOST = 0x371 "Command Aborted By Host";
}

/// What the NVM command set means by codes that fabrics use for Connect (base 6, command specific
/// status): the command decides.
impl Status {
    /// Conflicting Attributes (Dataset Management, Read, Write).
    pub const CONFLICTING_ATTRIBUTES: Status = Status(0x180);
    /// Invalid Protection Information.
    pub const INVALID_PROTECTION_INFORMATION: Status = Status(0x181);
    /// Command Size Limit Exceeded (Copy).
    pub const COMMAND_SIZE_LIMIT_EXCEEDED: Status = Status(0x183);
    /// Attempted Write to Read Only Range.
    pub const WRITE_TO_READ_ONLY_RANGE: Status = Status(0x182);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match text(self.code()) {
            Some(text) => write!(f, "{text} ({:#x})", self.code())?,
            None => write!(f, "status code type {:#x}, status code {:#x}", self.sct(), self.sc())?,
        }
        if self.is_dnr() {
            f.write_str(", do not retry")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

impl core::error::Error for Status {}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn the_fields_of_a_status() {
        let status = Status::new(sct::COMMAND_SPECIFIC, 0x82);
        assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS);
        assert_eq!((status.sct(), status.sc(), status.code()), (1, 0x82, 0x182));
        assert_eq!(Status::new(0xff, 0xff).0, 0x7ff);
        // Do Not Retry is bit 15 of the completion's word, More is bit 14.
        assert_eq!(status.dnr().to_wire(), 0x8304);
        assert_eq!(status.more().to_wire(), 0x4304);
        assert_eq!(Status::from_wire(0x8305), status.dnr());
        assert_eq!(status.dnr().without_dnr(), status);
        assert_eq!((status.is_dnr(), status.dnr().is_dnr()), (false, true));
        assert_eq!((status.is_more(), status.more().is_more()), (false, true));
        assert_eq!(status.dnr().more().code(), 0x182);
        assert!(Status::SUCCESS.is_success() && Status::SUCCESS.dnr().is_success());
        assert!(!status.is_success() && !Status::WRITE_FAULT.is_success());
    }

    #[test]
    fn every_constant_is_named_once() {
        for (index, (status, text)) in ALL.iter().enumerate() {
            assert_eq!(format!("{status}"), format!("{text} ({:#x})", status.0));
            assert!(ALL[..index].iter().all(|(other, _)| other.0 < status.0), "{status:?}");
        }
        assert_eq!(
            format!("{}", Status::INVALID_FIELD.dnr()),
            "Invalid Field in Command (0x2), do not retry"
        );
        assert_eq!(format!("{}", Status(0x7c3)), "status code type 0x7, status code 0xc3");
        assert_eq!(format!("{:?}", Status::SUCCESS), "Status(Successful Completion (0x0))");
    }
}

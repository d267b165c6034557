//! The Identify Controller data structure (base 5.15.2.2; fabrics 4).

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The Identify Controller data structure. Fields that only NVMe on PCI Express, or optional
/// features without a name here, use are in the reserved parts.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Controller {
    /// PCI Vendor ID.
    pub vid: U16,
    /// PCI Subsystem Vendor ID.
    pub ssvid: U16,
    /// Serial Number, ASCII.
    pub sn: [u8; 20],
    /// Model Number, ASCII.
    pub mn: [u8; 40],
    /// Firmware Revision, ASCII.
    pub fr: [u8; 8],
    /// Recommended Arbitration Burst.
    pub rab: u8,
    /// IEEE OUI Identifier.
    pub ieee: [u8; 3],
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities: [`Cmic`].
    pub cmic: u8,
    /// Maximum Data Transfer Size: a power of two of pages of CAP.MPSMIN; 0 for no limit.
    pub mdts: u8,
    /// Controller ID.
    pub cntlid: U16,
    /// Version.
    pub ver: U32,
    /// RTD3 Resume Latency in microseconds.
    pub rtd3r: U32,
    /// RTD3 Entry Latency in microseconds; a host waits that long for a shutdown.
    pub rtd3e: U32,
    /// Optional Asynchronous Events Supported: [`Oaes`].
    pub oaes: U32,
    /// Controller Attributes: [`Ctratt`].
    pub ctratt: U32,
    /// Read Recovery Levels Supported.
    pub rrls: U16,
    _reserved_102: [u8; 9],
    /// Controller Type: [`ControllerType`].
    pub cntrltype: u8,
    /// FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// Command Retry Delay Times 1 to 3, in 100 ms.
    pub crdt: [U16; 3],
    _reserved_134: [u8; 122],
    /// Optional Admin Command Support: [`Oacs`].
    pub oacs: U16,
    /// Abort Command Limit, 0-based.
    pub acl: u8,
    /// Asynchronous Event Request Limit, 0-based.
    pub aerl: u8,
    /// Firmware Updates.
    pub frmw: u8,
    /// Log Page Attributes: [`Lpa`].
    pub lpa: u8,
    /// Error Log Page Entries, 0-based.
    pub elpe: u8,
    /// Number of Power States Support, 0-based.
    pub npss: u8,
    /// Admin Vendor Specific Command Configuration.
    pub avscc: u8,
    /// Autonomous Power State Transition Attributes.
    pub apsta: u8,
    /// Warning Composite Temperature Threshold in kelvin.
    pub wctemp: U16,
    /// Critical Composite Temperature Threshold in kelvin.
    pub cctemp: U16,
    /// Maximum Time for Firmware Activation in 100 ms.
    pub mtfa: U16,
    /// Host Memory Buffer Preferred Size.
    pub hmpre: U32,
    /// Host Memory Buffer Minimum Size.
    pub hmmin: U32,
    /// Total NVM Capacity in bytes.
    pub tnvmcap: U128,
    /// Unallocated NVM Capacity in bytes.
    pub unvmcap: U128,
    /// Replay Protected Memory Block Support.
    pub rpmbs: U32,
    /// Extended Device Self-test Time in minutes.
    pub edstt: U16,
    /// Device Self-test Options.
    pub dsto: u8,
    /// Firmware Update Granularity.
    pub fwug: u8,
    /// Keep Alive Support: the granularity of the keep alive timer in 100 ms; 0 for none.
    pub kas: U16,
    /// Host Controlled Thermal Management Attributes.
    pub hctma: U16,
    /// Minimum Thermal Management Temperature.
    pub mntmt: U16,
    /// Maximum Thermal Management Temperature.
    pub mxtmt: U16,
    /// Sanitize Capabilities.
    pub sanicap: U32,
    /// Host Memory Buffer Minimum Descriptor Entry Size.
    pub hmminds: U32,
    /// Host Memory Maximum Descriptors Entries.
    pub hmmaxd: U16,
    /// NVM Set Identifier Maximum.
    pub nsetidmax: U16,
    /// Endurance Group Identifier Maximum.
    pub endgidmax: U16,
    /// ANA Transition Time in seconds.
    pub anatt: u8,
    /// Asymmetric Namespace Access Capabilities: [`Anacap`].
    pub anacap: u8,
    /// ANA Group Identifier Maximum.
    pub anagrpmax: U32,
    /// Number of ANA Group Identifiers.
    pub nanagrpid: U32,
    /// Persistent Event Log Size.
    pub pels: U32,
    _reserved_356: [u8; 156],
    /// Submission Queue Entry Size: powers of two, the required one in bits 3:0, the maximum in
    /// 7:4.
    pub sqes: u8,
    /// Completion Queue Entry Size, likewise.
    pub cqes: u8,
    /// Maximum Outstanding Commands of a queue.
    pub maxcmd: U16,
    /// Number of Namespaces: the highest NSID.
    pub nn: U32,
    /// Optional NVM Command Support: [`Oncs`].
    pub oncs: U16,
    /// Fused Operation Support: [`Fuses`].
    pub fuses: U16,
    /// Format NVM Attributes.
    pub fna: u8,
    /// Volatile Write Cache: [`Vwc`].
    pub vwc: u8,
    /// Atomic Write Unit Normal in logical blocks, 0-based.
    pub awun: U16,
    /// Atomic Write Unit Power Fail in logical blocks, 0-based.
    pub awupf: U16,
    /// NVM Vendor Specific Command Configuration.
    pub nvscc: u8,
    /// Namespace Write Protection Capabilities.
    pub nwpc: u8,
    /// Atomic Compare & Write Unit in logical blocks, 0-based.
    pub acwu: U16,
    /// Optional Copy Formats Supported: bit 0 for format 0.
    pub ocfs: U16,
    /// SGL Support: [`Sgls`].
    pub sgls: U32,
    /// Maximum Number of Allowed Namespaces.
    pub mnan: U32,
    _reserved_544: [u8; 224],
    /// NVM Subsystem NVMe Qualified Name, which [`crate::Nqn::write`] fills.
    pub subnqn: [u8; 256],
    _reserved_1024: [u8; 768],
    /// I/O Queue Command Capsule Supported Size in 16 bytes: the command and the data after it.
    pub ioccsz: U32,
    /// I/O Queue Response Capsule Supported Size in 16 bytes.
    pub iorcsz: U32,
    /// In Capsule Data Offset in 16 bytes, from the end of the command.
    pub icdoff: U16,
    /// Fabrics Controller Attributes: [`Fcatt`].
    pub fcatt: u8,
    /// Maximum SGL Data Block Descriptors.
    pub msdbd: u8,
    /// Optional Fabric Commands Support: bit 0 for Disconnect.
    pub ofcs: U16,
    _reserved_1806: [u8; 242],
    /// Power State Descriptors.
    pub psd: [PowerState; 32],
    /// Vendor Specific.
    pub vs: [u8; 1024],
}

const _: () = assert!(size_of::<Controller>() == super::LEN);

/// The structure of the NVM command set about a controller (NVM command set 1.0, 4.1.5.2): limits,
/// of which 0 means none.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmController {
    /// Verify Size Limit: as [`Controller::mdts`].
    pub vsl: u8,
    /// Write Zeroes Size Limit.
    pub wzsl: u8,
    /// Write Uncorrectable Size Limit.
    pub wusl: u8,
    /// Dataset Management Ranges Limit.
    pub dmrl: u8,
    /// Dataset Management Range Size Limit in logical blocks.
    pub dmrsl: U32,
    /// Dataset Management Size Limit in logical blocks.
    pub dmsl: zerocopy::little_endian::U64,
    _reserved_16: [u8; 4080],
}

const _: () = assert!(size_of::<NvmController>() == super::LEN);

/// A Power State Descriptor (base 5.15.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PowerState {
    /// Maximum Power, in 0.01 W unless bit 0 of `flags` is set.
    pub mp: U16,
    _reserved_2: u8,
    /// Bit 0 Max Power Scale, bit 1 Non-Operational State.
    pub flags: u8,
    /// Entry Latency in microseconds.
    pub enlat: U32,
    /// Exit Latency in microseconds.
    pub exlat: U32,
    /// Relative Read Throughput, Read Latency, Write Throughput, Write Latency.
    pub relative: [u8; 4],
    /// Idle Power.
    pub idlp: U16,
    /// Idle Power Scale in bits 7:6.
    pub ips: u8,
    _reserved_19: u8,
    /// Active Power.
    pub actp: U16,
    /// Active Power Workload in bits 2:0, Active Power Scale in bits 7:6.
    pub aps: u8,
    _reserved_23: [u8; 9],
}

const _: () = assert!(size_of::<PowerState>() == 32);

/// [`Controller::cntrltype`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControllerType {
    /// I/O controller.
    Io = 1,
    /// Discovery controller.
    Discovery = 2,
    /// Administrative controller.
    Administrative = 3,
}

bitflags! {
    /// [`Controller::cmic`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Cmic: u8 {
        /// The subsystem may have several ports.
        const PORTS = 1 << 0;
        /// The subsystem may have several controllers.
        const CONTROLLERS = 1 << 1;
        /// The controller is that of an SR-IOV virtual function.
        const SR_IOV = 1 << 2;
        /// Asymmetric Namespace Access Reporting.
        const ANA = 1 << 3;
    }

    /// [`Controller::oaes`]; the bits have the places of [`crate::feature::AsyncEvents`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Oaes: u32 {
        /// Namespace Attribute Notices.
        const NAMESPACE_ATTRIBUTE = 1 << 8;
        /// Firmware Activation Notices.
        const FIRMWARE_ACTIVATION = 1 << 9;
        /// Asymmetric Namespace Access Change Notices.
        const ANA_CHANGE = 1 << 11;
        /// Discovery Log Page Change Notifications (fabrics).
        const DISCOVERY_LOG_CHANGE = 1 << 31;
    }

    /// [`Controller::ctratt`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Ctratt: u32 {
        /// 128-bit Host Identifier.
        const HOST_ID_128 = 1 << 0;
        /// Non-Operational Power State Permissive Mode.
        const NON_OPERATIONAL_POWER = 1 << 1;
        /// Traffic Based Keep Alive Support (TBKAS).
        const TRAFFIC_BASED_KEEP_ALIVE = 1 << 6;
    }

    /// [`Controller::anacap`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Anacap: u8 {
        /// Each state may be reported: a bit for each.
        const ALL_STATES = 0x1f;
        /// The group of a namespace does not change while a controller has it.
        const GROUPS_STAY = 1 << 6;
    }

    /// [`Controller::oacs`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Oacs: u16 {
        /// Security Send and Security Receive.
        const SECURITY = 1 << 0;
        /// Format NVM.
        const FORMAT = 1 << 1;
        /// Firmware Commit and Firmware Image Download.
        const FIRMWARE = 1 << 2;
        /// Namespace Management and Namespace Attachment.
        const NAMESPACE_MANAGEMENT = 1 << 3;
    }

    /// [`Controller::lpa`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Lpa: u8 {
        /// The SMART / Health Information log page exists for each namespace.
        const SMART_PER_NAMESPACE = 1 << 0;
        /// The Commands Supported and Effects log page exists.
        const COMMAND_EFFECTS = 1 << 1;
        /// Get Log Page has 32 bits of length, and an offset.
        const EXTENDED_DATA = 1 << 2;
        /// The Telemetry log pages exist.
        const TELEMETRY = 1 << 3;
        /// The Persistent Event log page exists.
        const PERSISTENT_EVENT = 1 << 4;
        /// The pages of what is supported exist (log pages 0x00, 0x12, 0x13), and the Commands
        /// Supported and Effects log page names scopes.
        const SUPPORTED_PAGES = 1 << 5;
    }

    /// [`Controller::oncs`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Oncs: u16 {
        /// Compare.
        const COMPARE = 1 << 0;
        /// Write Uncorrectable.
        const WRITE_UNCORRECTABLE = 1 << 1;
        /// Dataset Management.
        const DATASET_MANAGEMENT = 1 << 2;
        /// Write Zeroes.
        const WRITE_ZEROES = 1 << 3;
        /// The Save field of Set Features and the Select field of Get Features.
        const SAVE_AND_SELECT = 1 << 4;
        /// Reservations.
        const RESERVATIONS = 1 << 5;
        /// The Timestamp feature.
        const TIMESTAMP = 1 << 6;
        /// Verify.
        const VERIFY = 1 << 7;
        /// Copy.
        const COPY = 1 << 8;
    }

    /// [`Controller::fuses`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fuses: u16 {
        /// Compare and Write.
        const COMPARE_AND_WRITE = 1 << 0;
    }

    /// [`Controller::vwc`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Vwc: u8 {
        /// There is a volatile write cache.
        const PRESENT = 1 << 0;
        /// A Flush with [`crate::NSID_ALL`] fails (bits 2:1 are 10b).
        const FLUSH_ALL_NOT_SUPPORTED = 0b10 << 1;
        /// A Flush with [`crate::NSID_ALL`] flushes all namespaces (bits 2:1 are 11b).
        const FLUSH_ALL_SUPPORTED = 0b11 << 1;
    }

    /// [`Controller::sgls`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Sgls: u32 {
        /// SGLs of the NVM command set, of any alignment and granularity.
        const SUPPORTED = 1 << 0;
        /// Keyed SGL Data Block descriptors.
        const KEYED = 1 << 2;
        /// SGL Bit Bucket descriptors.
        const BIT_BUCKET = 1 << 16;
        /// SGLs longer than the data.
        const LONGER_THAN_DATA = 1 << 18;
        /// The address of a data block may be an offset: data in the capsule.
        const OFFSET = 1 << 20;
        /// Transport SGL Data Block descriptors.
        const TRANSPORT = 1 << 21;
    }

    /// [`Controller::fcatt`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fcatt: u8 {
        /// The static controller model; else the dynamic one.
        const STATIC_MODEL = 1 << 0;
    }
}

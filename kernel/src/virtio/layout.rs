//! What driver and device share of a virtio block device: features, configuration, requests.
//! (Virtual I/O Device 1.2, section 5.2.)

use bitflags::bitflags;
use block::Fault;
use virtio_drivers::transport::Transport;

bitflags! {
    /// The features that the driver knows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Features: u64 {
        const SIZE_MAX = 1 << 1;
        const SEG_MAX = 1 << 2;
        const RO = 1 << 5;
        const BLK_SIZE = 1 << 6;
        const FLUSH = 1 << 9;
        const MQ = 1 << 12;
        const DISCARD = 1 << 13;
        const WRITE_ZEROES = 1 << 14;
        const VERSION_1 = 1 << 32;
        /// The device reaches memory by the addresses of its bus, as PCI devices do, which an IOMMU
        /// may translate. The kernel uses none, and a monitor starts with none in use: so they are
        /// physical addresses, and there is nothing to do but to accept this.
        const ACCESS_PLATFORM = 1 << 33;
    }
}

/// The unit of capacities and addresses, whatever the block size is.
pub(super) const SECTOR: u32 = 512;

/// How often the configuration is read if it changes meanwhile.
const READS: u32 = 16;

/// What the device says of itself. Fields whose feature is missing are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    /// In sectors.
    pub(super) capacity: u64,
    /// The most bytes of a piece.
    pub(super) size_max: u32,
    /// The most pieces.
    pub(super) seg_max: u32,
    pub(super) block_size: u32,
    /// How many queues there are.
    pub(super) queues: u16,
    /// The most sectors of a discard.
    pub(super) max_discard: u32,
    /// The most sectors of a write of zeros.
    pub(super) max_write_zeroes: u32,
    pub(super) write_zeroes_may_unmap: bool,
}

impl Config {
    /// Reads the configuration. `None` if it is too short, or changes again and again.
    pub(super) fn read(device: &impl Transport, features: Features) -> Option<Config> {
        consistent(device, || Config::read_once(device, features))
    }

    /// Reads the capacity alone, which a device changes when its disk grows or shrinks.
    pub(super) fn read_capacity(device: &impl Transport) -> Option<u64> {
        consistent(device, || capacity(device))
    }

    fn read_once(device: &impl Transport, features: Features) -> Option<Config> {
        let word = |feature: Features, offset: usize| {
            if !features.contains(feature) {
                return Some(0);
            }
            device.read_config_space::<u32>(offset).ok()
        };
        let may_unmap = if features.contains(Features::WRITE_ZEROES) {
            device.read_config_space::<u8>(56).ok()?
        } else {
            0
        };
        let queues =
            if features.contains(Features::MQ) { device.read_config_space::<u16>(34).ok()? } else { 0 };
        Some(Config {
            capacity: capacity(device)?,
            size_max: word(Features::SIZE_MAX, 8)?,
            seg_max: word(Features::SEG_MAX, 12)?,
            block_size: word(Features::BLK_SIZE, 20)?,
            queues,
            max_discard: word(Features::DISCARD, 36)?,
            max_write_zeroes: word(Features::WRITE_ZEROES, 48)?,
            write_zeroes_may_unmap: may_unmap != 0,
        })
    }
}

fn capacity(device: &impl Transport) -> Option<u64> {
    let word = |offset| device.read_config_space::<u32>(offset).ok().map(u64::from);
    Some(word(0)? | word(4)? << 32)
}

/// Reads what takes several accesses, until the device has not changed it meanwhile.
fn consistent<T>(device: &impl Transport, read: impl Fn() -> Option<T>) -> Option<T> {
    let consistent = (0..READS).find_map(|_| {
        let before = device.read_config_generation();
        let value = read();
        (device.read_config_generation() == before).then_some(value)
    });
    consistent.flatten()
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    In = 0,
    Out = 1,
    Flush = 4,
    Discard = 11,
    WriteZeroes = 13,
}

/// The beginning of each request.
pub(super) fn header(kind: Kind, sector: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&(kind as u32).to_le_bytes());
    header[8..].copy_from_slice(&sector.to_le_bytes());
    header
}

/// The length of [`header`], and of [`range`].
pub(super) const HEADER: usize = 16;

/// The range of a discard or a write of zeros.
pub(super) fn range(sector: u64, sectors: u32, may_unmap: bool) -> [u8; HEADER] {
    let mut range = [0; HEADER];
    range[..8].copy_from_slice(&sector.to_le_bytes());
    range[8..12].copy_from_slice(&sectors.to_le_bytes());
    range[12..].copy_from_slice(&u32::from(may_unmap).to_le_bytes());
    range
}

/// A status that no device writes: what the driver puts there before.
pub(super) const NO_STATUS: u8 = 0xff;

/// What a status means.
pub(super) fn outcome(status: u8) -> Result<(), Fault> {
    match status {
        0 => Ok(()),
        2 => Err(Fault::Unsupported),
        // 1 is an error; others mean nothing, so the device did not carry the request out.
        _ => Err(Fault::Media),
    }
}

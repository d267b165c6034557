//! Attributes of NICs, virtual interfaces and memory (9.10.4 to 9.10.7).

use alloc::string::String;

pub use kernel_agent::Reliability as ReliabilityLevel;
use kernel_agent::{Features, LinkFlags};
use rdma::via::{Conflict, HIGHEST_PRIORITY, Offer};

use crate::error::{Error, Result};
use crate::handle::PtagHandle;

/// The bytes of a NIC's name in C's structure, the terminating NUL counted.
pub const NAME_SIZE: usize = 64;

rdma::enumeration! {
    /// The state of a virtual interface (9.10.7).
    #[doc(alias = "VIP_VI_STATE")]
    pub enum ViState: u32 {
        /// Not connected.
        Idle = 0, "VIP_STATE_IDLE";
        /// Connected.
        Connected = 1, "VIP_STATE_CONNECTED";
        /// A connection is being made.
        ConnectPending = 2, "VIP_STATE_CONNECT_PENDING";
        /// The connection broke.
        Error = 3, "VIP_STATE_ERROR";
    }
}

/// A quality of service: the priority of the connection's packets, from 0 (best effort) to 7.
///
/// The packets carry it as the class selector of their traffic class.
#[doc(alias = "VIP_QOS")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Qos(pub u32);

impl Qos {
    /// The usual priority.
    pub const BEST_EFFORT: Qos = Qos(0);
    /// The highest priority.
    pub const HIGHEST: Qos = Qos(HIGHEST_PRIORITY as u32);

    /// The traffic class; `None` if there is no such priority.
    pub(crate) const fn traffic_class(self) -> Option<u8> {
        if self.0 <= Qos::HIGHEST.0 { Some((self.0 as u8) << 5) } else { None }
    }
}

/// The attributes of a virtual interface (9.10.5).
#[doc(alias = "VIP_VI_ATTRIBUTES")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViAttributes {
    /// The reliability level, equal on both ends of a connection.
    pub reliability_level: ReliabilityLevel,
    /// Bytes that one descriptor can transfer, equal on both ends of a connection: from 1 to
    /// [`NicAttributes::max_transfer_size`].
    pub max_transfer_size: u64,
    /// The quality of service, equal on both ends of a connection.
    pub qos: Qos,
    /// The protection tag. Of a remote end: null.
    pub ptag: PtagHandle,
    /// Accept RDMA Writes of the remote end.
    pub enable_rdma_write: bool,
    /// Accept RDMA Reads of the remote end. Not on the level Unreliable Delivery.
    pub enable_rdma_read: bool,
}

impl ViAttributes {
    /// Attributes of the level Unreliable Delivery with this protection tag: 32 KiB at a time, best
    /// effort, no RDMA.
    pub const fn new(ptag: PtagHandle) -> ViAttributes {
        ViAttributes {
            reliability_level: ReliabilityLevel::Unreliable,
            max_transfer_size: 32 << 10,
            qos: Qos::BEST_EFFORT,
            ptag,
            enable_rdma_write: false,
            enable_rdma_read: false,
        }
    }

    /// Checks all but the protection tag and RDMA Read, in the order of the pages.
    pub(crate) fn check(&self, features: Features, most: u64) -> Result<()> {
        if self.reliability_level.is_reliable() && !features.contains(Features::RC) {
            return Err(Error::InvalidReliabilityLevel);
        }
        if !(1..=most).contains(&self.max_transfer_size) {
            return Err(Error::InvalidMtu);
        }
        match self.qos.traffic_class() {
            Some(_) => Ok(()),
            None => Err(Error::InvalidQos),
        }
    }

    /// Checks RDMA Read, which the pages name last.
    pub(crate) fn check_read(&self) -> Result<()> {
        if self.enable_rdma_read && !self.reliability_level.is_reliable() {
            return Err(Error::InvalidRdmaRead);
        }
        Ok(())
    }

    /// What a remote end learns of them. They passed [`ViAttributes::check`], so the numbers fit.
    pub(crate) fn offer(&self) -> Offer {
        Offer {
            level: self.reliability_level,
            priority: self.qos.0 as u8,
            max_transfer: self.max_transfer_size as u32,
            accepts_write: self.enable_rdma_write,
            accepts_read: self.enable_rdma_read,
        }
    }

    /// The attributes of a remote end.
    pub(crate) fn of_remote(offer: &Offer) -> ViAttributes {
        ViAttributes {
            reliability_level: offer.level,
            max_transfer_size: offer.max_transfer.into(),
            qos: Qos(offer.priority.into()),
            ptag: PtagHandle::NULL,
            enable_rdma_write: offer.accepts_write,
            enable_rdma_read: offer.accepts_read,
        }
    }

    /// Fails unless a remote end's level, size and quality are the same.
    pub(crate) fn agrees(&self, remote: &ViAttributes) -> Result<()> {
        self.offer().agrees(&remote.offer()).map_err(|conflict| match conflict {
            Conflict::Level => Error::InvalidReliabilityLevel,
            Conflict::MaxTransfer => Error::InvalidMtu,
            Conflict::Priority => Error::InvalidQos,
        })
    }

    /// The agent's attributes.
    pub(crate) fn agent(&self) -> kernel_agent::ViAttributes {
        kernel_agent::ViAttributes {
            reliability: self.reliability_level,
            max_transfer: self.max_transfer_size,
            access: access(self.enable_rdma_write, self.enable_rdma_read),
        }
    }
}

/// The attributes of registered memory (9.10.6).
#[doc(alias = "VIP_MEM_ATTRIBUTES")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemAttributes {
    /// The protection tag.
    pub ptag: PtagHandle,
    /// Allow RDMA Writes to the memory.
    pub enable_rdma_write: bool,
    /// Allow RDMA Reads of the memory.
    pub enable_rdma_read: bool,
}

impl MemAttributes {
    /// Memory that peers may neither read nor write.
    pub const fn new(ptag: PtagHandle) -> MemAttributes {
        MemAttributes { ptag, enable_rdma_write: false, enable_rdma_read: false }
    }

    /// The rights of the region. The device never writes constants.
    pub(crate) fn rights(&self, constant: bool) -> LinkFlags {
        let local =
            if constant { LinkFlags::LOCAL_READ } else { LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE };
        local | access(self.enable_rdma_write, self.enable_rdma_read)
    }
}

fn access(write: bool, read: bool) -> LinkFlags {
    let mut access = LinkFlags::empty();
    access.set(LinkFlags::REMOTE_WRITE, write);
    access.set(LinkFlags::REMOTE_READ, read);
    access
}

/// The attributes of a NIC (9.10.4). They do not change while the NIC is open.
#[doc(alias = "VIP_NIC_ATTRIBUTES")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAttributes {
    /// The name by which the NIC was opened; shorter than [`NAME_SIZE`].
    pub name: String,
    /// The version of the NIC's interface: the major number in the upper 16 bits.
    pub hardware_version: u32,
    /// The version of this implementation: the major number in the upper 16 bits.
    pub provider_version: u32,
    /// The bytes of a NIC address.
    pub nic_address_len: u16,
    /// The NIC's address: the first GID of the port that has an IP address of the host's, or the
    /// link-local one.
    pub local_nic_address: [u8; 16],
    /// All calls may be made by any thread at any time.
    pub thread_safe: bool,
    /// The most bytes of a discriminator.
    pub max_discriminator_len: u16,
    /// The most bytes of all regions together. There is no bound but those of the next two.
    pub max_register_bytes: u64,
    /// The most regions.
    pub max_register_regions: u32,
    /// The most bytes of a region.
    pub max_register_block_bytes: u64,
    /// The most virtual interfaces.
    pub max_vi: u32,
    /// The most descriptors on a work queue of a virtual interface that
    /// [`Nic::create_vi`](crate::Nic::create_vi) makes.
    pub max_descriptors_per_queue: u32,
    /// The most data segments of a descriptor.
    pub max_segments_per_desc: u32,
    /// The most completion queues.
    pub max_cq: u32,
    /// The most entries of a completion queue.
    pub max_cq_entries: u32,
    /// The most bytes that one descriptor can transfer.
    pub max_transfer_size: u64,
    /// The most bytes of a packet's payload.
    pub native_mtu: u32,
    /// The most protection tags.
    pub max_ptags: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 1 << 31;

    #[test]
    fn attributes_are_checked_in_the_order_of_the_pages() {
        let good = ViAttributes::new(PtagHandle::NULL);
        let check = |attributes: ViAttributes, features| attributes.check(features, MOST);
        assert_eq!(check(good, Features::empty()), Ok(()));
        let reliable = ViAttributes { reliability_level: ReliabilityLevel::Reception, ..good };
        assert_eq!(check(reliable, Features::RC), Ok(()));
        let bad = ViAttributes { max_transfer_size: 0, qos: Qos(8), ..reliable };
        assert_eq!(check(bad, Features::empty()), Err(Error::InvalidReliabilityLevel));
        assert_eq!(check(bad, Features::RC), Err(Error::InvalidMtu));
        for (size, fits) in [(1, true), (MOST, true), (MOST + 1, false), (u64::MAX, false)] {
            let sized = ViAttributes { max_transfer_size: size, ..good };
            assert_eq!(check(sized, Features::RC).is_ok(), fits, "{size}");
        }
        assert_eq!(check(ViAttributes { qos: Qos(8), ..good }, Features::RC), Err(Error::InvalidQos));
    }

    #[test]
    fn rdma_read_needs_a_reliable_level() {
        let good = ViAttributes { enable_rdma_read: true, ..ViAttributes::new(PtagHandle::NULL) };
        assert_eq!(good.check_read(), Err(Error::InvalidRdmaRead));
        for reliability_level in [ReliabilityLevel::Delivery, ReliabilityLevel::Reception] {
            assert_eq!(ViAttributes { reliability_level, ..good }.check_read(), Ok(()));
        }
    }

    #[test]
    fn priorities_are_class_selectors() {
        let classes = [0, 1, 7, 8].map(|priority| Qos(priority).traffic_class());
        assert_eq!(classes, [Some(0), Some(0x20), Some(0xe0), None]);
    }

    #[test]
    fn enables_are_rights_of_the_peer_and_constants_are_not_written() {
        let attributes = MemAttributes { enable_rdma_read: true, ..MemAttributes::new(PtagHandle::NULL) };
        let rights = LinkFlags::LOCAL_READ | LinkFlags::REMOTE_READ;
        assert_eq!(attributes.rights(true), rights);
        assert_eq!(attributes.rights(false), rights | LinkFlags::LOCAL_WRITE);
        let vi = ViAttributes { enable_rdma_write: true, ..ViAttributes::new(PtagHandle::NULL) };
        assert_eq!(vi.agent().access, LinkFlags::REMOTE_WRITE);
    }

    #[test]
    fn a_remote_end_learns_all_attributes_but_the_tag() {
        let ours = ViAttributes {
            reliability_level: ReliabilityLevel::Delivery,
            max_transfer_size: MOST,
            qos: Qos(3),
            enable_rdma_write: true,
            ..ViAttributes::new(PtagHandle::from_raw(7))
        };
        let remote = ViAttributes { ptag: PtagHandle::NULL, ..ours };
        assert_eq!(ViAttributes::of_remote(&ours.offer()), remote);
    }

    #[test]
    fn both_ends_have_the_same_level_size_and_quality() {
        let ours = ViAttributes::new(PtagHandle::NULL);
        assert_eq!(ours.agrees(&ours), Ok(()));
        let quality = ViAttributes { qos: Qos(1), ..ours };
        assert_eq!(ours.agrees(&quality), Err(Error::InvalidQos));
        let size = ViAttributes { max_transfer_size: 1, ..quality };
        assert_eq!(ours.agrees(&size), Err(Error::InvalidMtu));
        let level = ViAttributes { reliability_level: ReliabilityLevel::Delivery, ..size };
        assert_eq!(ours.agrees(&level), Err(Error::InvalidReliabilityLevel));
        let enables = ViAttributes { enable_rdma_write: true, enable_rdma_read: true, ..ours };
        assert_eq!(ours.agrees(&enables), Ok(()), "each end has its own");
    }

    #[test]
    fn states_and_levels_have_the_enumerations_numbers() {
        let states = [ViState::Idle, ViState::Connected, ViState::ConnectPending, ViState::Error];
        assert_eq!(states.map(|state| state as u32), [0, 1, 2, 3]);
        let levels = [ReliabilityLevel::Unreliable, ReliabilityLevel::Delivery, ReliabilityLevel::Reception];
        assert_eq!(levels.map(|level| level as u32), [0, 1, 2]);
    }
}

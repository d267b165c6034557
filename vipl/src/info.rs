//! System management information (page VipQuerySystemManagementInfo).

use crate::error::{Error, Result};
use crate::nic::Nic;

/// Which information VipQuerySystemManagementInfo returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum InfoType {
    /// The objects of all consumers of the NIC.
    Objects = 0,
    /// The objects of this opening.
    Opening = 1,
    /// The NIC's port.
    Port = 2,
    /// Asynchronous errors of this opening.
    Errors = 3,
}

impl InfoType {
    /// The type with this number.
    pub const fn from_raw(raw: u32) -> Option<InfoType> {
        Some(match raw {
            0 => InfoType::Objects,
            1 => InfoType::Opening,
            2 => InfoType::Port,
            3 => InfoType::Errors,
            _ => return None,
        })
    }
}

/// The objects of an opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpeningCounts {
    /// Virtual interfaces.
    pub vis: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Protection tags.
    pub ptags: usize,
    /// Registered pieces of memory.
    pub regions: usize,
    /// Connection requests that wait for the consumer's answer.
    pub conns: usize,
}

/// Information about a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemManagementInfo {
    /// [`InfoType::Objects`].
    Objects {
        /// The agent's counts, of objects of all faces; its clients are openings, and one for all
        /// openings of this face.
        counts: kernel_agent::Counts,
        /// Descriptors and requests on all queues.
        outstanding: u32,
        /// Connection requests that no VipConnectWait has taken.
        waiting_requests: usize,
    },
    /// [`InfoType::Opening`].
    Opening(OpeningCounts),
    /// [`InfoType::Port`].
    Port {
        /// Whether the port is up.
        up: bool,
        /// Bytes of a packet's payload at most.
        mtu: u32,
        /// The speed in Mbit/s.
        mbps: u32,
        /// The EUI-64 of the NIC.
        node_guid: u64,
    },
    /// [`InfoType::Errors`].
    Errors {
        /// Errors that were passed to the handler, or logged.
        reported: u64,
        /// Errors that were lost because too many of one virtual interface waited.
        lost: u64,
    },
}

impl Nic {
    /// Returns information for the management of the NIC. `info_type` is the number of an
    /// [`InfoType`].
    ///
    /// Errors: `InvalidParameter` (no such type, or the NIC is closed), `ErrorResource` (the NIC is
    /// dead). Does not block. May be called in handlers. Thread-safe. Page
    /// VipQuerySystemManagementInfo.
    #[doc(alias = "VipQuerySystemManagementInfo")]
    pub fn query_system_management_info(&self, info_type: u32) -> Result<SystemManagementInfo> {
        let core = self.live()?;
        let info_type = InfoType::from_raw(info_type).ok_or(Error::InvalidParameter)?;
        Ok(match info_type {
            InfoType::Objects => SystemManagementInfo::Objects {
                counts: core.agent().counts(),
                outstanding: core.agent().outstanding(),
                waiting_requests: core.joined()?.switchboard().waiting(),
            },
            InfoType::Opening => SystemManagementInfo::Opening(self.opening_counts()),
            InfoType::Port => {
                let identity = core.agent().identity();
                SystemManagementInfo::Port {
                    up: core.agent().port_up(),
                    mtu: identity.mtu,
                    mbps: identity.link_mbps,
                    node_guid: identity.node_guid,
                }
            }
            InfoType::Errors => {
                let (reported, lost) = core.errors.counts();
                SystemManagementInfo::Errors { reported, lost }
            }
        })
    }

    /// Counts the objects of this opening, also when it is closed. An extension, for tests.
    pub fn opening_counts(&self) -> OpeningCounts {
        let core = self.core();
        OpeningCounts {
            vis: core.vis.count(),
            cqs: core.cqs.count(),
            ptags: core.ptags.count(),
            regions: core.regions.lock().len(),
            conns: core.conns.count(),
        }
    }
}

//! The model's limits, and its identity page.

use nic_abi::ident;
use nic_abi::registers::{Features, GIDS, Identity, MAGIC};

use roce::Gid;

use crate::config::NicConfig;

/// Log2 of the blocks of a send queue at most.
pub(crate) const LOG_SQ_BLOCKS: u32 = 16;
/// Log2 of the entries of a receive queue or SRQ at most.
pub(crate) const LOG_RQ_ENTRIES: u32 = 16;
/// Log2 of the entries of a completion queue at most.
pub(crate) const LOG_CQES: u32 = 20;
/// Log2 of the entries of an event queue at most.
pub(crate) const LOG_EQES: u32 = 17;
/// Alignment of every ring.
pub(crate) const RING_ALIGN: u64 = nic_abi::RING_ALIGN as u64;
/// Segments of a work request at most.
pub(crate) const MAX_SGES: usize = 32;
/// Data segments of a descriptor of a virtual interface at most (VIA 6.1.1.1 asks for 252).
pub(crate) const MAX_VI_SEGMENTS: usize = 252;
/// Log2 of the entries of a virtual interface's ring at most.
pub(crate) const LOG_VI_ENTRIES: u32 = 14;
/// Elements of one region's list at most: enough for 1 GiB in pages of 4 KiB.
pub(crate) const MAX_LIST_ELEMENTS: u32 = 1 << 18;
/// Elements of all regions of a NIC together at most: a bound for the device's memory.
pub(crate) const MAX_TRANSLATIONS: u64 = 1 << 22;
/// Outstanding RDMA Reads and atomics of a queue pair at most.
pub(crate) const MAX_RD_ATOMIC: u8 = 16;
/// Bytes of one message at most (IBTA 9.7.7).
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// A NIC's GIDs: none of them is zero.
pub(crate) type Gids = heapless::Vec<[u8; 16], GIDS>;

/// The GIDs of a NIC without a wire: link-local by the GUID, and the IPv4 address as an IPv6 one.
pub(crate) fn gids(config: &NicConfig) -> Gids {
    let link_local = 0xfe80_0000_0000_0000_u128 << 64 | u128::from(config.node_guid);
    [link_local.to_be_bytes(), Gid::from_ipv4(config.ipv4.into()).0].into_iter().collect()
}

/// The identity page of a NIC.
pub(crate) fn identity(config: &NicConfig, own: &Gids) -> Identity {
    let mut gids = [[0; 16]; GIDS];
    gids[..own.len()].copy_from_slice(own);
    let identity = Identity {
        magic: MAGIC,
        version_major: nic_abi::VERSION_MAJOR,
        version_minor: nic_abi::VERSION_MINOR,
        revision: 1,
        features: Features::all().bits(),
        node_guid: config.node_guid,
        gids,
        ipv4: config.ipv4,
        mtu: config.mtu,
        max_qps: ident::MAX_QPS,
        max_cqs: ident::MAX_CQS,
        max_srqs: ident::MAX_SRQS,
        max_eqs: ident::MAX_EQS,
        max_pds: ident::MAX_PDS,
        max_keys: ident::MAX_KEYS,
        max_sq_blocks: 1 << LOG_SQ_BLOCKS,
        max_rq_entries: 1 << LOG_RQ_ENTRIES,
        max_srq_entries: 1 << LOG_RQ_ENTRIES,
        max_cqes: 1 << LOG_CQES,
        max_eqes: 1 << LOG_EQES,
        max_sges: MAX_SGES as u32,
        max_list_elements: MAX_LIST_ELEMENTS,
        max_rd_atomic: u32::from(MAX_RD_ATOMIC),
        max_message: MAX_MESSAGE,
        max_region: 1 << 48,
        dma_limit: config.dma_limit,
        vectors: u32::from(config.vectors),
        link_mbps: 100_000,
        max_vi_segments: MAX_VI_SEGMENTS as u32,
        max_vi_entries: 1 << LOG_VI_ENTRIES,
        max_groups: ident::MAX_GROUPS,
        max_group_qps: ident::MAX_GROUP_QPS,
    };
    match config.announce_less {
        // As much as the suite's agents need. An agent posts as many receives as the queue holds
        // when it is opened.
        true => Identity { max_qps: 66, max_cqs: 97, max_keys: 129, max_rq_entries: 64, ..identity },
        false => identity,
    }
}

//! One NIC.

/// What sets one NIC apart from another.
#[derive(Clone, Copy, Debug)]
pub struct NicConfig {
    /// EUI-64 of the node; GID 0 is made of it.
    pub node_guid: u64,
    /// The port's IPv4 address; GID 1 is made of it.
    pub ipv4: [u8; 4],
    /// Path MTU of the port: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Interrupt vectors of the function, at least 1.
    pub vectors: u16,
    /// Bus addresses from here on cannot be reached.
    pub dma_limit: u64,
}

impl NicConfig {
    /// The `n`th NIC of a machine or network: addresses made of the number, everything else as usual.
    pub const fn numbered(n: u8, dma_limit: u64) -> NicConfig {
        NicConfig {
            node_guid: 0x0266_6572_fffe_0000 | n as u64 + 1,
            ipv4: [10, 0, 0, n.saturating_add(1)],
            mtu: 1024,
            vectors: nic_abi::pci::VECTORS,
            dma_limit,
        }
    }
}

/// What a NIC dropped or ignored, since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Doorbell entries of no kind, or for queues that do not exist.
    pub bad_doorbells: u64,
}

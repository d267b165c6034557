//! What sets one NIC apart from another, and what it counts.

/// What sets one NIC apart from another.
#[derive(Clone, Copy, Debug)]
pub struct NicConfig {
    /// EUI-64 of the node; GID 0 is made of it.
    pub node_guid: u64,
    /// The port's IPv4 address; GID 1 is made of it. A NIC with a wire has its port's addresses.
    pub ipv4: [u8; 4],
    /// Path MTU of a port without a wire: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Interrupt vectors of the function, at least 1.
    pub vectors: u16,
    /// The first bus address that the device cannot reach.
    pub dma_limit: u64,
    /// Announce far fewer objects than the device can have: a driver makes tables of the announced
    /// sizes, which takes an interpreter minutes.
    pub announce_less: bool,
}

impl NicConfig {
    /// The `n`th NIC of a machine or network: its addresses are made of the number, all else is the
    /// same for each.
    pub const fn numbered(n: u8, dma_limit: u64) -> NicConfig {
        NicConfig {
            node_guid: 0x0266_65ff_fe72_0001 + n as u64,
            ipv4: [10, 0, 0, n.saturating_add(1)],
            mtu: 1024,
            vectors: nic_abi::pci::VECTORS,
            dma_limit,
            announce_less: false,
        }
    }
}

/// What a NIC did and what it dropped or ignored, since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Doorbell entries of no kind, or for queues that do not exist.
    pub bad_doorbells: u64,
    /// Doorbell records with a tail that the ring does not allow.
    pub bad_tails: u64,
    /// Admin commands that were refused.
    pub refused_commands: u64,
    /// Work requests that ended, with success or an error, without the flushed ones.
    pub completed: u64,
    /// Work requests that were flushed.
    pub flushed: u64,
    /// Completions of CQs that had failed.
    pub lost_completions: u64,
    /// Requests of connected queue pairs that got no answer, the injected losses included. Of
    /// unreliable connections: messages that were lost on the way out, or found no peer.
    pub lost_requests: u64,
    /// Answers that were lost by injection.
    pub lost_answers: u64,
    /// Datagrams that were dropped.
    pub dropped_datagrams: u64,
    /// Answers "receiver not ready" that this NIC gave.
    pub not_ready: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// How often the port went down.
    pub link_downed: u64,
    /// Segments of iWARP that were sent by the short cut.
    pub short_cut_segments: u64,
}

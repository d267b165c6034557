//! One NIC: its objects, its registers, and whether it runs.

use core::sync::atomic::{AtomicU32, Ordering};

use alloc::vec::Vec;
use nic_abi::doorbell::RECORD_BYTES;
use nic_abi::registers::{
    Fault, GIDS, SIZE, STATUS_ACKNOWLEDGED, STATUS_FAULT, STATUS_HEARTBEAT, STATUS_PORT_UP, STATUS_STATE,
    State,
};
use platform::Instant;
use zerocopy::IntoBytes;

use crate::admin::AdminQueue;
use crate::bench::BenchRun;
use crate::cq::Cq;
use crate::eq::Eq;
use crate::keys::Keys;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::tables::Table;
use crate::{AddError, Frontend, limits};

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
            node_guid: 0x0266_65ff_fe72_0001 + n as u64,
            ipv4: [10, 0, 0, n.saturating_add(1)],
            mtu: 1024,
            vectors: nic_abi::pci::VECTORS,
            dma_limit,
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
    /// Work requests that ended, well or not, without the flushed ones.
    pub completed: u64,
    /// Work requests that were flushed.
    pub flushed: u64,
    /// Completions of CQs that had failed.
    pub lost_completions: u64,
    /// Requests of connected queue pairs that nobody was there to answer, the injected losses included.
    pub lost_requests: u64,
    /// Answers that were lost by injection.
    pub lost_answers: u64,
    /// Datagrams that were dropped.
    pub dropped_datagrams: u64,
    /// Answers "receiver not ready" that this NIC gave.
    pub not_ready: u64,
    /// Interrupts raised.
    pub interrupts: u64,
}

/// Whether a NIC was told to play dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mute {
    No,
    UntilReset,
    ForGood,
}

/// One NIC.
pub(crate) struct Nic<F: Frontend> {
    pub config: NicConfig,
    pub frontend: F,
    pub gids: [[u8; 16]; GIDS],
    pub state: State,
    pub mute: Mute,
    pub port_up: bool,
    /// The last control request that was carried out.
    pub acknowledged: u32,
    pub heartbeat: u32,
    /// When the heartbeat is due.
    pub next_beat: Instant,
    /// Free-running index of the next doorbell entry.
    pub fifo_head: u32,
    pub admin: Option<AdminQueue>,
    pub eqs: Table<Eq>,
    pub pds: Table<Pd>,
    pub keys: Keys,
    pub cqs: Table<Cq>,
    pub srqs: Table<Srq>,
    pub qps: Table<Qp>,
    /// CQs that failed and whose queue pairs were not told yet.
    pub failed_cqs: Vec<u32>,
    /// NICs at the other ends of this one's links.
    pub links: Vec<u16>,
    /// Management datagrams to lose (injection).
    pub drop_management: u32,
    pub bench: Option<BenchRun>,
    pub stats: Stats,
}

/// A protection domain.
pub(crate) struct Pd {
    /// QPs, SRQs and keys in it.
    pub users: u32,
}

impl<F: Frontend> Nic<F> {
    /// Powers a NIC on.
    pub fn new(config: NicConfig, frontend: F) -> Result<Nic<F>, AddError> {
        if !matches!(config.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(AddError::Config("path MTU"));
        }
        if config.vectors == 0 {
            return Err(AddError::Config("number of vectors"));
        }
        let registers = frontend.registers();
        if registers.len() != SIZE || registers.atomic_u64s().is_err() {
            return Err(AddError::Registers);
        }
        registers.fill(0);
        registers.write(0, limits::identity(&config).as_bytes()).map_err(|_| AddError::Registers)?;
        let nic = Nic {
            gids: limits::gids(&config),
            config,
            frontend,
            state: State::Idle,
            mute: Mute::No,
            port_up: true,
            acknowledged: 0,
            heartbeat: 0,
            next_beat: Instant::ZERO,
            fifo_head: 0,
            admin: None,
            eqs: Table::new(),
            pds: Table::new(),
            keys: Keys::new(),
            cqs: Table::new(),
            srqs: Table::new(),
            qps: Table::new(),
            failed_cqs: Vec::new(),
            links: Vec::new(),
            drop_management: 0,
            bench: None,
            stats: Stats::default(),
        };
        nic.show_status();
        Ok(nic)
    }

    /// The register at an offset below [`SIZE`].
    #[inline]
    pub fn register(&self, offset: usize) -> &AtomicU32 {
        self.frontend
            .registers()
            .atomic_u32(offset)
            .expect("the register file was checked when the NIC was added")
    }

    /// A word of a doorbell record.
    #[inline]
    pub fn record(&self, records: usize, slot: u32, word: usize) -> &AtomicU32 {
        self.register(records + slot as usize * RECORD_BYTES + 4 * word)
    }

    /// Puts a doorbell record into its first state.
    pub fn init_record(&self, records: usize, slot: u32, armed: u32) {
        self.record(records, slot, 0).store(0, Ordering::Relaxed);
        self.record(records, slot, 1).store(armed, Ordering::Release);
    }

    /// Whether it takes doorbells and messages.
    #[inline]
    pub fn running(&self) -> bool {
        self.state == State::Ready && self.mute == Mute::No
    }

    /// Writes the status page. The device never reads it back.
    pub fn show_status(&self) {
        self.register(STATUS_PORT_UP).store(u32::from(self.port_up), Ordering::Release);
        self.register(STATUS_HEARTBEAT).store(self.heartbeat, Ordering::Release);
        self.register(STATUS_STATE).store(self.state as u32, Ordering::Release);
        self.register(STATUS_ACKNOWLEDGED).store(self.acknowledged, Ordering::Release);
    }

    /// Gives up: nothing runs until a reset.
    pub fn fail(&mut self, fault: Fault) {
        if self.state != State::Failed {
            log::warn!("the device failed: {fault:?}");
            self.state = State::Failed;
            self.bench = None;
            self.register(STATUS_FAULT).store(fault as u32, Ordering::Release);
            self.show_status();
        }
    }

    /// Whether a GID is one of this NIC's.
    #[inline]
    pub fn has_gid(&self, gid: &[u8; 16]) -> bool {
        self.gids.contains(gid)
    }
}

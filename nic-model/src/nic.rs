//! One NIC without its queue pairs: its objects, its registers, and whether it runs.

use core::sync::atomic::{AtomicU32, Ordering};

use alloc::boxed::Box;
use alloc::vec::Vec;
use nic_abi::doorbell;
use nic_abi::registers::{
    Fault, SIZE, STATUS_ACKNOWLEDGED, STATUS_FAULT, STATUS_HEARTBEAT, STATUS_PORT_UP, STATUS_STATE, State,
};
use platform::{Instant, Secret};

use crate::admin::command::AdminQueue;
use crate::config::{NicConfig, Stats};
use crate::counters::{PacketCounters, StreamEnds};
use crate::cq::Cq;
use crate::eq::Eq;
use crate::error::AddError;
use crate::frontend::Frontend;
use crate::groups::Groups;
use crate::ids::NicId;
use crate::keys::Keys;
use crate::limits::{self, Gids};
use crate::qp::vi::Copies;
use crate::srq::Srq;
use crate::streams::{SHORT_CUT_MTU, Streams};
use crate::tables::Table;
use crate::test_commands::bench::BenchRun;
use crate::test_commands::faults::Mute;
use crate::uplink::Uplink;
use crate::waiting::Waiting;

/// One NIC.
pub(crate) struct Nic<F: Frontend> {
    pub id: NicId,
    pub config: NicConfig,
    pub frontend: F,
    pub gids: Gids,
    pub state: State,
    pub mute: Mute,
    pub port_up: bool,
    /// Whether a driver has taken the port down (injection).
    pub port_disabled: bool,
    /// What the driver knows of the port, and the last event that said so.
    pub port_reported: bool,
    pub port_event: Option<u32>,
    /// The port and what it is plugged into.
    pub uplink: Option<Box<Uplink<F::Wire>>>,
    /// TCP streams; absent while one of them is handled.
    pub streams: Option<Box<Streams>>,
    /// It has a port, or a driver has made streams, or a segment has come, since the NIC was added:
    /// it takes and sends packets in its turns.
    pub has_packets: bool,
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
    pub groups: Groups,
    /// What has failed, and whose queue pairs are not in the error state yet.
    pub failures: Vec<Failure>,
    /// NICs at the other ends of this one's links.
    pub links: Vec<NicId>,
    /// Management datagrams to lose (injection).
    pub drop_management: u32,
    /// No queue pair has a turn (injection).
    pub held: bool,
    pub bench: Option<BenchRun>,
    pub stats: Stats,
    pub packets: PacketCounters,
    pub stream_ends: StreamEnds,
    /// Copies of what has left on Reliable Delivery.
    pub copies: Copies,
    /// Queue pairs that wait for room in the wire, or for the MAC of a neighbour.
    pub waiting: Waiting,
}

/// What ends queue pairs while they are not at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A CQ has failed, with all queue pairs on it.
    Cq(u32),
    /// A descriptor of the virtual interface in this slot could not be completed.
    Vi(u32),
}

/// A protection domain.
pub(crate) struct Pd {
    /// QPs, SRQs and keys in it.
    pub users: u32,
}

impl<F: Frontend> Nic<F> {
    /// Powers a NIC on.
    pub fn new(id: NicId, config: NicConfig, frontend: F) -> Result<Nic<F>, AddError> {
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
        let secret = Secret::new([config.node_guid, 0]);
        let streams = Streams::new(SHORT_CUT_MTU, secret).map_err(AddError::Streams)?;
        let nic = Nic {
            id,
            gids: limits::gids(&config),
            config,
            frontend,
            state: State::Idle,
            mute: Mute::No,
            port_up: true,
            port_disabled: false,
            port_reported: true,
            port_event: None,
            uplink: None,
            streams: Some(Box::new(streams)),
            has_packets: false,
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
            groups: Groups::default(),
            failures: Vec::new(),
            held: false,
            links: Vec::new(),
            drop_management: 0,
            bench: None,
            stats: Stats::default(),
            packets: PacketCounters::default(),
            stream_ends: StreamEnds::default(),
            copies: Copies::default(),
            waiting: Waiting::default(),
        };
        nic.identify();
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
        self.register(doorbell::record(records, slot) + 4 * word)
    }

    /// Puts a doorbell record into its first state.
    pub fn init_record(&self, records: usize, slot: u32, armed: u32) {
        self.record(records, slot, 0).store(0, Ordering::Relaxed);
        self.record(records, slot, 1).store(armed, Ordering::Release);
    }

    /// Whether the NIC takes doorbells and messages.
    #[inline]
    pub fn running(&self) -> bool {
        self.state == State::Ready && self.mute == Mute::No
    }

    /// Whether its driver has gone, and connections that it has closed come to their ends.
    pub fn is_leaving(&self) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.are_leaving())
    }

    /// Writes the status page. The device never reads that page.
    pub fn show_status(&self) {
        self.register(STATUS_PORT_UP).store(u32::from(self.port_up), Ordering::Release);
        self.register(STATUS_HEARTBEAT).store(self.heartbeat, Ordering::Release);
        self.register(STATUS_STATE).store(self.state as u32, Ordering::Release);
        self.register(STATUS_ACKNOWLEDGED).store(self.acknowledged, Ordering::Release);
    }

    /// Fails the NIC: nothing runs until a reset.
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
        // As numbers: the comparison takes no call.
        let gid = u128::from_ne_bytes(*gid);
        self.gids.iter().any(|own| u128::from_ne_bytes(*own) == gid)
    }

    /// The GID with this index.
    #[inline]
    pub fn gid(&self, index: u8) -> Option<[u8; 16]> {
        self.gids.get(usize::from(index)).copied()
    }
}

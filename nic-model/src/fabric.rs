//! NICs, the links between them, and the loop that drives them.

use alloc::vec::Vec;

use platform::Instant;

use crate::{Frontend, NicConfig, Stats};

/// Names a NIC of a [`Fabric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NicId(pub(crate) u16);

/// Whether a poll found work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was work; there may be more.
    Worked,
    /// There was none.
    Idle,
}

/// Why a NIC was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The register file is not [`nic_abi::registers::SIZE`] bytes of aligned memory.
    #[error("the register file has the wrong size or alignment")]
    Registers,
    /// A field of the configuration is not allowed.
    #[error("the NIC's {0} is not allowed")]
    Config(&'static str),
    /// There are 65,535 already.
    #[error("too many NICs")]
    TooMany,
}

/// NICs and the links between them.
pub struct Fabric<F: Frontend> {
    nics: Vec<(NicConfig, F, Stats)>,
}

impl<F: Frontend> Default for Fabric<F> {
    fn default() -> Self {
        Fabric::new()
    }
}

impl<F: Frontend> Fabric<F> {
    /// A fabric without NICs.
    pub fn new() -> Fabric<F> {
        Fabric { nics: Vec::new() }
    }

    /// Adds a NIC, powered on: clears its register file and writes its identity.
    pub fn add_nic(&mut self, config: NicConfig, frontend: F) -> Result<NicId, AddError> {
        let id = NicId(u16::try_from(self.nics.len()).map_err(|_| AddError::TooMany)?);
        self.nics.push((config, frontend, Stats::default()));
        Ok(id)
    }

    /// Joins two NICs by a short cut: each finds the other by its GIDs. A NIC always finds itself.
    pub fn connect(&mut self, _a: NicId, _b: NicId) {}

    /// Does up to about `budget` pieces of work. A piece is bounded: a command, a work request, or a megabyte of a
    /// longer one.
    pub fn poll(&mut self, _now: Instant, _budget: u32) -> Progress {
        Progress::Idle
    }

    /// Asks all drivers for a kick with their next doorbell. False if there is work already: poll again.
    pub fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// When [`Fabric::poll`] must run again at the latest (retries, heartbeat).
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Tells the drivers that no kick is needed any more. To be called after every [`Fabric::prepare_sleep`].
    pub fn awake(&mut self) {}

    /// A driver kicked `nic`. Only one of the benchmarks depends on it, so it may be called late or not at all.
    pub fn kicked(&mut self, _nic: NicId) {}

    /// What a NIC dropped or ignored.
    pub fn stats(&self, nic: NicId) -> Option<&Stats> {
        self.nics.get(usize::from(nic.0)).map(|n| &n.2)
    }
}

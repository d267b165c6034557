//! What several images and the benchmarks begin with: [`Node`], the machine's adapters behind a provider, and [`Pair`], two endpoints that are
//! connected to each other.
#![no_std]

extern crate alloc;

mod pair;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::{Agent, Config};
use platform::{Device, Platform, Privileged};
use privileged_api::{Ia, Provider};

pub use pair::{Pair, Side, Sizes};

/// Why an image gave up: what it tried, and what came of it.
pub struct Failure(String);

impl Failure {
    /// A failure of `what`.
    pub fn new(what: impl core::fmt::Display) -> Failure {
        Failure(format!("{what}"))
    }
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says what was tried when something fails.
pub trait Trying<T> {
    /// The value, or a failure that begins with `what`.
    fn trying(self, what: &str) -> Result<T, Failure>;
}

impl<T, E: core::fmt::Display> Trying<T> for Result<T, E> {
    fn trying(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}

/// A machine with its adapters brought up.
pub struct Node {
    /// The platform.
    pub platform: Arc<dyn Platform>,
    /// Where IAs are made.
    pub provider: Provider,
    /// The agents, by NIC.
    pub agents: Vec<Arc<Agent>>,
    privileged: Privileged,
}

impl Node {
    /// Brings up every NIC, as interfaces `rnic0`, `rnic1`, …
    pub fn start(
        platform: Arc<dyn Platform>,
        privileged: Privileged,
        nics: impl IntoIterator<Item = Arc<dyn Device>>,
    ) -> Result<Node, Failure> {
        let provider = Provider::new(platform.clone());
        let mut agents = Vec::new();
        for (number, device) in (0..).zip(nics) {
            let agent = Agent::open(platform.clone(), device, number, Config::default())
                .trying("bringing up an RDMA NIC")?;
            provider.add(&format!("rnic{number}"), agent.clone()).trying("adding an interface")?;
            agents.push(agent);
        }
        if agents.is_empty() {
            return Err(Failure::new("there is no RDMA NIC on PCI"));
        }
        Ok(Node { platform, provider, agents, privileged })
    }

    /// A privileged IA on interface `number`.
    pub fn ia(&self, number: usize) -> Result<Ia, Failure> {
        self.provider.ia_create(&format!("rnic{number}"), 2, 1, Some(self.privileged)).trying("it_ia_create")
    }
}

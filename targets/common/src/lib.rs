//! The beginning that several images and benchmarks share: [`Node`], the machine's adapters;
//! [`connect`], [`accept`] and [`connect_to`], by which endpoints find each other; and for images
//! that are about an API of a specification, two connected endpoints of it with their memory:
//! [`it_pair`], [`dat_pair`] and [`via_pair`].
#![no_std]

extern crate alloc;

mod connect;
pub mod dat_pair;
pub mod it_pair;
pub mod via_pair;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::{Agent, Config};
use nic_hal::Transport;
use platform::{Platform, Privileged};
use privileged_api::{Ia, Provider};
use rdma::Nic;

pub use connect::{SERVICE, accept, connect, connect_to, disconnect, disconnected, done, lost};

/// Why an image gave up: what it tried, and the error.
#[derive(Debug)]
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

/// Adds to an error what was tried.
pub trait Trying<T> {
    /// The value, or a failure that begins with `what`.
    fn trying(self, what: &str) -> Result<T, Failure>;
}

impl<T, E: core::fmt::Display> Trying<T> for Result<T, E> {
    fn trying(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}

/// A machine whose adapters are open.
pub struct Node {
    /// The platform.
    pub platform: Arc<dyn Platform>,
    /// The provider on which IAs are created.
    pub provider: Provider,
    /// The same interfaces as NICs with virtual interfaces. A machine has one such provider: peers'
    /// requests for a NIC arrive at one place.
    pub vipl: vipl::Provider,
    /// The agents, by NIC.
    pub agents: Vec<Arc<Agent>>,
    /// What makes a consumer a privileged one.
    pub privileged: Privileged,
    /// The transport of [`Node::nic`].
    pub transport: rdma::Transport,
}

impl Node {
    /// Opens every NIC, as interfaces `rnic0`, `rnic1`, …
    pub fn start(
        platform: Arc<dyn Platform>,
        privileged: Privileged,
        nics: impl IntoIterator<Item = Arc<dyn Transport>>,
    ) -> Result<Node, Failure> {
        let provider = Provider::new(platform.clone());
        // Linux's siw checks a CRC wrongly whose bytes come in two segments of TCP, and breaks the
        // connection. It asks for none; a peer that does gets them.
        let config = Config { without_crc: true, ..Config::default() };
        let mut agents = Vec::new();
        for (number, device) in (0..).zip(nics) {
            let agent =
                Agent::open(platform.clone(), device, number, config).trying("bringing up an RDMA NIC")?;
            provider.add(&format!("rnic{number}"), agent.clone()).trying("adding an interface")?;
            agents.push(agent);
        }
        if agents.is_empty() {
            return Err(Failure::new("there is no RDMA NIC on PCI"));
        }
        let vipl = vipl::Provider::new(provider.interfaces());
        Ok(Node { platform, provider, vipl, agents, privileged, transport: rdma::Transport::default() })
    }

    /// With openings for connections of the transport that the value of the word `transport=` on a
    /// command line names.
    pub fn over(self, word: Option<&str>) -> Result<Node, Failure> {
        let transport = match word {
            None | Some("infiniband") => rdma::Transport::InfiniBand,
            Some("iwarp") => rdma::Transport::Iwarp,
            Some(other) => {
                return Err(Failure::new(format!("transport={other}: neither infiniband nor iwarp")));
            }
        };
        Ok(Node { transport, ..self })
    }

    /// Takes the NICs out of service.
    pub fn close(&self) {
        for agent in &self.agents {
            agent.close();
        }
    }

    /// An opening of NIC `number`.
    pub fn nic(&self, number: usize) -> Result<Nic, Failure> {
        let agent =
            self.agents.get(number).ok_or_else(|| Failure::new(format!("there is no NIC {number}")))?;
        Nic::open_over(agent, self.transport).trying("opening a NIC")
    }

    /// A privileged IA on interface `number`.
    pub fn ia(&self, number: usize) -> Result<Ia, Failure> {
        self.provider.ia_create(&format!("rnic{number}"), 2, 1, Some(self.privileged)).trying("it_ia_create")
    }
}

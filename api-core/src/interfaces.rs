//! The interfaces of a machine: agents by name, with limits for those who open them.
//!
//! Locks: `offers` (spins, leaf).

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::{Agent, Features};
use platform::Platform;
use platform::sync::Mutex;

/// Limits on the use of a NIC by the consumers of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The NIC's features that the consumers may use. No query returns other features.
    pub features: Features,
    /// The most connections of one opening of the interface at the same time, including those that
    /// are being established.
    pub connections: u32,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits { features: Features::all(), connections: u32::MAX };
}

/// An interface.
struct Offer {
    name: String,
    agent: Arc<Agent>,
    limits: Limits,
}

/// The interfaces of a machine, for all faces.
pub struct Interfaces {
    platform: Arc<dyn Platform>,
    offers: Mutex<Vec<Offer>>,
}

/// The name of an interface is empty, contains a NUL or is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadName;

impl Interfaces {
    /// No interfaces.
    pub fn new(platform: Arc<dyn Platform>) -> Interfaces {
        Interfaces { platform, offers: Mutex::new(Vec::new()) }
    }

    /// The machine's platform.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// Adds an interface. One NIC may have several.
    pub fn add(&self, name: &str, agent: Arc<Agent>, limits: Limits) -> Result<(), BadName> {
        if name.is_empty() || name.contains('\0') {
            return Err(BadName);
        }
        let mut offers = self.offers.lock();
        if offers.iter().any(|offer| offer.name == name) {
            return Err(BadName);
        }
        offers.push(Offer { name: String::from(name), agent, limits });
        Ok(())
    }

    /// The agent and the limits of the interface with this name, if its NIC works.
    pub fn find(&self, name: &str) -> Option<(Arc<Agent>, Limits)> {
        let offers = self.offers.lock();
        let found = offers.iter().find(|offer| offer.name == name && !offer.agent.is_dead())?;
        Some((found.agent.clone(), found.limits))
    }

    /// Calls `each` with the name of each interface whose NIC works. `each` runs under a lock, so
    /// it must not use the interfaces.
    pub fn for_each_name(&self, each: impl FnMut(&str)) {
        let offers = self.offers.lock();
        offers.iter().filter(|offer| !offer.agent.is_dead()).map(|offer| offer.name.as_str()).for_each(each);
    }
}

//! The interfaces of a machine: agents by name, with limits for those who open them.
//!
//! Locks: `offers` (spins, leaf).

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::{Agent, Features};
use platform::Platform;
use platform::sync::Mutex;

use crate::{InCallbacks, OutOfResources};

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

/// What the endpoints of an interface are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Endpoints {
    /// Queue pairs.
    #[default]
    QueuePairs,
    /// Virtual interfaces, for a face that has endpoints of both kinds.
    VirtualInterfaces,
    /// Queue pairs of iWARP, for a face that has endpoints of this kind.
    Iwarp,
}

/// An interface.
#[derive(Clone)]
pub struct Offer {
    /// The agent of its NIC.
    pub agent: Arc<Agent>,
    /// The limits for those who open it.
    pub limits: Limits,
    /// What its endpoints are.
    pub endpoints: Endpoints,
}

/// The interfaces of a machine, for all faces.
pub struct Interfaces {
    platform: Arc<dyn Platform>,
    callbacks: InCallbacks,
    offers: Mutex<Vec<(String, Offer)>>,
}

/// The name of an interface is empty, contains a NUL or is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadName;

impl Interfaces {
    /// No interfaces.
    pub fn new(platform: Arc<dyn Platform>) -> Interfaces {
        let callbacks = InCallbacks::new(platform.clone());
        Interfaces { platform, callbacks, offers: Mutex::new(Vec::new()) }
    }

    /// The machine's platform.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// The threads that run callbacks of the consumers of these interfaces: a call that may wait
    /// refuses to in such a thread, whichever adapter the callback belongs to.
    pub fn callbacks(&self) -> &InCallbacks {
        &self.callbacks
    }

    /// Adds an interface. One NIC may have several.
    pub fn add(
        &self,
        name: &str,
        agent: Arc<Agent>,
        limits: Limits,
        endpoints: Endpoints,
    ) -> Result<(), BadName> {
        if name.is_empty() || name.contains('\0') {
            return Err(BadName);
        }
        let mut offers = self.offers.lock();
        if offers.iter().any(|(known, _)| known == name) {
            return Err(BadName);
        }
        offers.push((String::from(name), Offer { agent, limits, endpoints }));
        Ok(())
    }

    /// The interface with this name, if its NIC works.
    pub fn find(&self, name: &str) -> Option<Offer> {
        let offers = self.offers.lock();
        let found = offers.iter().find(|(known, offer)| known == name && !offer.agent.is_dead());
        found.map(|(_, offer)| offer.clone())
    }

    /// Calls `each` with the name of each interface whose NIC works, and what its endpoints are.
    /// `each` runs under a lock, so it must not use the interfaces.
    pub fn for_each(&self, mut each: impl FnMut(&str, Endpoints)) {
        let offers = self.offers.lock();
        for (name, offer) in offers.iter().filter(|(_, offer)| !offer.agent.is_dead()) {
            each(name, offer.endpoints);
        }
    }
}

/// Threads that run callbacks of one adapter at the same time: its own, and the dispatcher thread.
const CALLBACKS: usize = 2;

/// Room for the threads that run callbacks of an adapter, as long as this value exists.
pub struct RoomForCallbacks(Arc<Interfaces>);

impl RoomForCallbacks {
    /// Makes the room.
    pub fn make(interfaces: &Arc<Interfaces>) -> Result<RoomForCallbacks, OutOfResources> {
        interfaces.callbacks.expect(CALLBACKS)?;
        Ok(RoomForCallbacks(interfaces.clone()))
    }
}

impl Drop for RoomForCallbacks {
    fn drop(&mut self) {
        self.0.callbacks.expect_no_more(CALLBACKS);
    }
}

//! The NICs of a machine, and how they are opened (page VipOpenNic).
//!
//! Locks: `changes` (sleeps) before `switchboards` (spins, leaf).

use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::{Agent, Features};
use platform::sync::Mutex;
use platform::{SleepLock, heap};
use rdma::{Interfaces, Offer};

use crate::attributes::NAME_SIZE;
use crate::error::{Error, Result};
use crate::nic::{Core, Nic};
use crate::switchboard::Switchboard;

struct Inner {
    interfaces: Arc<Interfaces>,
    /// Held while a switchboard begins or ends: the next one of an agent can listen only when the
    /// last one does no more.
    changes: SleepLock,
    /// One for each agent with a NIC that is open, and how many NICs use it.
    switchboards: Mutex<Vec<(Arc<Switchboard>, usize)>>,
}

/// The NICs of a machine. Boot code creates it once, from the interfaces that it made for all
/// faces. A clone is the same provider.
///
/// Peers' requests for a NIC arrive at one place, which belongs to a provider. So as long as a
/// provider has a NIC open, [`Provider::open_nic`] of another provider on the same interfaces
/// returns `ErrorResource` for it.
#[derive(Clone)]
pub struct Provider(Arc<Inner>);

/// A NIC's share in the switchboard of its agent. The last one ends the switchboard.
#[derive(Clone)]
pub(crate) struct Joined(Arc<Share>);

struct Share {
    provider: Arc<Inner>,
    switchboard: Arc<Switchboard>,
}

impl Joined {
    /// The switchboard.
    pub(crate) fn switchboard(&self) -> &Arc<Switchboard> {
        &self.0.switchboard
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.provider.leave(&self.switchboard);
    }
}

impl Inner {
    /// Joins the switchboard of an agent, which begins if there is none.
    fn join(self: &Arc<Inner>, agent: &Arc<Agent>) -> Result<Joined> {
        heap::room_for_arc::<Share>()?;
        let _changes = self.changes.lock(self.interfaces.platform());
        let existing = {
            let mut switchboards = self.switchboards.lock();
            let found = switchboards.iter_mut().find(|(other, _)| Arc::ptr_eq(other.agent(), agent));
            found.map(|(switchboard, users)| {
                *users += 1;
                switchboard.clone()
            })
        };
        let switchboard = match existing {
            Some(existing) => existing,
            None => {
                self.switchboards.lock().try_reserve(1)?;
                let begun = Switchboard::begin(self.interfaces.platform(), agent)?;
                self.switchboards.lock().push((begun.clone(), 1));
                begun
            }
        };
        Ok(Joined(Arc::new(Share { provider: self.clone(), switchboard })))
    }

    fn leave(&self, switchboard: &Arc<Switchboard>) {
        let _changes = self.changes.lock(self.interfaces.platform());
        let last = {
            let mut switchboards = self.switchboards.lock();
            let at = switchboards.iter().position(|(other, _)| Arc::ptr_eq(other, switchboard));
            at.filter(|&at| {
                let (_, users) = &mut switchboards[at];
                *users -= 1;
                *users == 0
            })
            .map(|at| switchboards.swap_remove(at))
        };
        if last.is_some() {
            switchboard.end();
        }
    }
}

impl Provider {
    /// A provider of the NICs among these interfaces that have virtual interfaces.
    pub fn new(interfaces: &Arc<Interfaces>) -> Provider {
        Provider(Arc::new(Inner {
            interfaces: interfaces.clone(),
            changes: SleepLock::new(),
            switchboards: Mutex::new(Vec::new()),
        }))
    }

    /// Opens a NIC by its name. The consumer is privileged: it knows the addresses of its memory.
    ///
    /// Errors: `InvalidParameter` (no NIC has this name, it does not work, it has no virtual
    /// interfaces, or the name has [`NAME_SIZE`] bytes or more), `ErrorResource`. Blocks for the
    /// device. May be called in handlers. Thread-safe. Page VipOpenNic.
    #[doc(alias = "VipOpenNic")]
    pub fn open_nic(&self, device_name: &str) -> Result<Nic> {
        if device_name.len() >= NAME_SIZE {
            return Err(Error::InvalidParameter);
        }
        let inner = &self.0;
        let Offer { agent, limits, .. } =
            inner.interfaces.find(device_name).ok_or(Error::InvalidParameter)?;
        let offered = Features::from_bits_truncate(agent.identity().features) & limits.features;
        if !offered.contains(Features::VI) {
            return Err(Error::InvalidParameter);
        }
        let joined = inner.join(&agent)?;
        Core::open(agent, device_name, &limits, joined)
    }
}

//! What the consumer has not answered yet: peers' requests for connections, and accepts.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use kernel_agent::ConnectionId;
use kernel_agent::wire::ReadDepths;
use platform::SleepLock;

use crate::address::{CnEstId, Path};
use crate::event::ConnRequest;
use crate::handle::EpHandle;
use crate::status::{Error, Result};

/// What the consumer has to answer.
pub(crate) enum Role {
    /// A peer's connection request.
    Passive(Box<PeerRequest>),
    /// A peer's accept of our request, in a three-way handshake.
    Active {
        /// The endpoint that requested the connection.
        ep: EpHandle,
        /// The peer's read depths.
        peer: ReadDepths,
    },
}

/// A peer's connection request.
pub(crate) struct PeerRequest {
    /// The path back to the peer.
    pub(crate) path: Path,
    /// The event that reports the request.
    pub(crate) request: ConnRequest,
}

pub(crate) struct Pending {
    pub(crate) connection: ConnectionId,
    pub(crate) role: Role,
    /// Serializes the calls that answer it.
    pub(crate) turn: SleepLock,
}

impl Pending {
    pub(crate) fn new(connection: ConnectionId, role: Role) -> Pending {
        Pending { connection, role, turn: SleepLock::new() }
    }
}

/// The peers' requests and accepts that the consumer has not answered yet, by identifier.
#[derive(Default)]
pub(crate) struct Unanswered {
    pub(crate) pending: BTreeMap<u64, Arc<Pending>>,
    /// By endpoint, the identifier of the accept that arrived for it; there is one at most.
    pub(crate) by_ep: BTreeMap<u64, u64>,
    pub(crate) last: u64,
}

/// What an identifier takes: what it stands for, and nodes of the two maps.
pub(crate) const MEMORY: usize = 4096;

impl Unanswered {
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn clear(&mut self) {
        self.pending.clear();
        self.by_ep.clear();
    }

    /// Makes a new identifier, and adds what `make` returns for it. The caller has asked for
    /// memory.
    pub(crate) fn add(&mut self, make: impl FnOnce(CnEstId) -> Pending) -> CnEstId {
        self.last += 1;
        let id = CnEstId(self.last);
        let pending = make(id);
        if let Role::Active { ep, .. } = pending.role {
            self.by_ep.insert(ep.as_raw(), id.0);
        }
        self.pending.insert(id.0, Arc::new(pending));
        id
    }

    /// Fails if the identifier is not valid, or is used up.
    pub(crate) fn check(&self, id: CnEstId) -> Result<()> {
        if self.pending.contains_key(&id.0) { Ok(()) } else { Err(Error::InvalidCnEstId) }
    }

    pub(crate) fn get(&self, id: CnEstId) -> Result<Arc<Pending>> {
        self.pending.get(&id.0).cloned().ok_or(Error::InvalidCnEstId)
    }

    /// Uses an identifier up.
    pub(crate) fn remove(&mut self, id: CnEstId) -> Option<Arc<Pending>> {
        let pending = self.pending.remove(&id.0)?;
        if let Role::Active { ep, .. } = pending.role
            && self.by_ep.get(&ep.as_raw()) == Some(&id.0)
        {
            self.by_ep.remove(&ep.as_raw());
        }
        Some(pending)
    }

    /// Removes the accept that the consumer has not answered for this endpoint.
    pub(crate) fn forget_ep(&mut self, ep: EpHandle) {
        if let Some(id) = self.by_ep.remove(&ep.as_raw()) {
            self.pending.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active(connection: u64) -> Pending {
        let role = Role::Active { ep: EpHandle::from_raw(7), peer: ReadDepths::default() };
        Pending::new(ConnectionId(connection), role)
    }

    #[test]
    fn an_identifier_is_used_up_once() {
        let mut unanswered = Unanswered::default();
        let ids = [1, 2].map(|connection| unanswered.add(|_| active(connection)));
        assert_eq!(unanswered.check(ids[0]), Ok(()));
        unanswered.remove(ids[0]);
        assert_eq!(unanswered.get(ids[0]).err(), Some(Error::InvalidCnEstId));
        unanswered.forget_ep(EpHandle::from_raw(7));
        assert_eq!(unanswered.check(ids[1]), Err(Error::InvalidCnEstId));
        assert!(unanswered.by_ep.is_empty());
        assert!(!ids.contains(&unanswered.add(|_| active(1))));
    }
}

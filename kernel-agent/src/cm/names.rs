//! The ids that peers see: communication ids and those of service resolutions. Each is drawn anew,
//! so a peer's own ids do not show those of others, nor does an id that comes again show the next.

use alloc::collections::BTreeMap;

use platform::Secret;

/// What a hash of the secret is for, so that none shows another.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    CommunicationId,
    ResolutionId,
    Transaction,
}

/// Draws for one id. Of a table of 65,536 ids one draw in 65,536 hits one in use.
const DRAWS: u64 = 16;

/// The ids in use, and what has them.
pub(super) struct Names<T> {
    secret: Secret,
    purpose: Purpose,
    drawn: u64,
    owners: BTreeMap<u32, T>,
}

impl<T: Copy + PartialEq> Names<T> {
    pub fn new(secret: Secret, purpose: Purpose) -> Names<T> {
        Names { secret, purpose, drawn: 0, owners: BTreeMap::new() }
    }

    /// An id that is not in use, and not 0: in messages that stands for an id that is not known.
    pub fn draw(&mut self) -> Option<u32> {
        (0..DRAWS).find_map(|_| {
            self.drawn += 1;
            let id = self.secret.hash([self.purpose as u64, self.drawn]) as u32;
            (id != 0 && !self.owners.contains_key(&id)).then_some(id)
        })
    }

    pub fn insert(&mut self, id: u32, owner: T) {
        self.owners.insert(id, owner);
    }

    pub fn get(&self, id: u32) -> Option<T> {
        self.owners.get(&id).copied()
    }

    pub fn remove(&mut self, id: u32) {
        self.owners.remove(&id);
    }
}

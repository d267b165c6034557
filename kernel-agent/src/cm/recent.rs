//! The last answers to requests of which nothing else is kept: when a request comes again because its answer was lost,
//! it gets the same one. The oldest is forgotten first; then the request is taken for a new one.

use alloc::collections::VecDeque;

use roce::Gid;
use roce::mad;

/// How many answers are kept.
const KEPT: usize = 64;

/// What makes two requests the same: sender, its name for the request, transaction.
pub(super) type Key = (Gid, u32, u64);

/// The answers.
pub(super) struct Recent(VecDeque<(Key, [u8; mad::LEN])>);

impl Recent {
    pub fn new() -> Recent {
        Recent(VecDeque::with_capacity(KEPT))
    }

    pub fn remember(&mut self, key: Key, answer: [u8; mad::LEN]) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back((key, answer));
    }

    pub fn answer(&self, key: Key) -> Option<[u8; mad::LEN]> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, answer)| *answer)
    }
}

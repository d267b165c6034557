//! The last answers to requests whose connection or resolution is gone: a repetition of such a
//! request gets the same answer. When the oldest answer has been dropped, a repetition counts as a
//! new request.

use alloc::collections::VecDeque;

use roce::Gid;
use roce::mad;

/// Answers that are kept.
const KEPT: usize = 64;

/// What identifies a request: its sender, the id that the sender gave it, the transaction.
pub(super) type Key = (Gid, u32, u64);

/// The answers.
pub(super) struct Recent(VecDeque<(Key, [u8; mad::LEN])>);

impl Recent {
    /// What [`Recent::new`] allocates.
    pub const MEMORY: usize = KEPT * size_of::<(Key, [u8; mad::LEN])>();

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

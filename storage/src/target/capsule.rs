//! The capsules of all hosts, which arrive in shared receives.
//!
//! Each Receive has a buffer in one piece of memory: for a command and the data in its capsule. A
//! buffer is posted again as soon as its command is copied, unless the command's data came in the
//! capsule: then the disk takes the data from there, and the buffer is posted again after that.
//! There is a buffer for each entry of each queue, so no host can take those of the others.

use alloc::sync::Arc;

use block::Piece;
use nvme::command::Command;
use platform::{DmaBuffer, Privileged};
use rdma::{CreateError, Domain, Message, SharedReceives};
use zerocopy::{FromZeros, IntoBytes};

use super::pool::{Buffer, Pool};

/// The bytes of a command, with which a capsule begins.
pub(crate) const COMMAND: usize = size_of::<Command>();

/// Receives for `count` capsules with up to `data` bytes of data each.
pub(crate) fn receives(
    domain: &Domain,
    privileged: Privileged,
    count: usize,
    data: usize,
) -> Result<SharedReceives, CreateError> {
    let len = COMMAND + data;
    domain.shared_receives_in(domain.direct(count * len, privileged)?, len)
}

/// A capsule that has arrived. Its buffer is posted again when this is dropped.
pub(crate) struct Capsule {
    /// The endpoint, by its number.
    pub(crate) endpoint: u64,
    pub(crate) message: Message,
}

impl Capsule {
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.message.slice().len()
    }

    /// The command.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new_zeroed();
        self.message.slice().read(command.as_mut_bytes());
        command
    }

    /// Where data is: `len` bytes, `offset` bytes behind the command.
    pub(crate) fn data(&self, offset: usize, len: usize) -> (&Arc<DmaBuffer>, Piece) {
        let (memory, at) = self.message.slice().place();
        (memory, Piece { offset: at + COMMAND + offset, len })
    }

    /// Copies data.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        if let Some(data) = self.message.slice().get(COMMAND + offset..) {
            data.read(into);
        }
    }

    /// Copies data into a buffer, as many bytes as that holds.
    pub(crate) fn copy(&self, offset: usize, pool: &Pool, into: &Buffer) {
        let mut page = [0; 4096];
        for done in (0..into.len()).step_by(page.len()) {
            let now = &mut page[..(into.len() - done).min(4096)];
            self.read(offset + done, now);
            pool.write(into, done, now);
        }
    }
}

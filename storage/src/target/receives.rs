//! The shared receive queue, in which all hosts' capsules arrive.
//!
//! Each Receive has a place in one piece of memory: a command and the data in its capsule. A place
//! is posted again as soon as its command is copied, unless the command's data came in the capsule:
//! then the disk takes the data from there, and the place is posted again after that. There is a
//! place for each entry of each queue, so no host can take those of the others.

use alloc::sync::Arc;

use block::Piece;
use platform::Platform;
use privileged_api::{DtoFlags, Ia, PzHandle, SrqHandle};
use zerocopy::FromZeros;

use super::pool::{Buffer, Pool};
use crate::Error;
use crate::error::Calling;
use crate::mapped::Mapped;

/// The bytes of a command, with which a capsule begins.
pub(crate) const COMMAND: usize = size_of::<nvme::command::Command>();

/// A Receive's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u32);

/// The queue and its memory.
pub(crate) struct Receives {
    pub(crate) srq: SrqHandle,
    pub(crate) mapped: Mapped,
    /// Bytes of a capsule.
    capsule: usize,
    count: usize,
    /// Places that could not be posted, because the device failed.
    lost: usize,
}

impl Receives {
    /// A queue of `count` Receives, all of them posted, for capsules with up to `data` bytes of
    /// data.
    pub(crate) fn new(
        ia: &Ia,
        platform: &Arc<dyn Platform>,
        pz: PzHandle,
        count: usize,
        data: usize,
    ) -> Result<Receives, Error> {
        let capsule = COMMAND + data;
        let mapped = Mapped::new(ia, platform, count * capsule)?;
        let srq = match ia.srq_create(pz, 1, count).calling("it_srq_create") {
            Ok(srq) => srq,
            Err(error) => {
                mapped.free(ia);
                return Err(error);
            }
        };
        let mut receives = Receives { srq, mapped, capsule, count, lost: 0 };
        for place in 0..count as u32 {
            receives.post(ia, Place(place));
        }
        Ok(receives)
    }

    /// The place that a completion names by its cookie.
    pub(crate) fn place(&self, cookie: u64) -> Option<Place> {
        u32::try_from(cookie).ok().filter(|&place| (place as usize) < self.count).map(Place)
    }

    /// Posts a place.
    pub(crate) fn post(&mut self, ia: &Ia, place: Place) {
        let segment = self.mapped.segment(place.0 as usize * self.capsule, self.capsule);
        // There is room, since each place is posted once. So it fails only if the device has
        // failed, and the target ends then.
        if ia.post_recv(self.srq, &[segment], u64::from(place.0), DtoFlags::COMPLETION).is_err() {
            self.lost += 1;
        }
    }

    /// The command in a capsule.
    pub(crate) fn command(&self, place: Place) -> nvme::command::Command {
        let mut command = nvme::command::Command::new_zeroed();
        let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut command);
        // The place lies in the memory.
        let _ = self.mapped.memory.read(place.0 as usize * self.capsule, bytes);
        command
    }

    /// Where data of a capsule is: `len` bytes, `offset` bytes behind the command.
    pub(crate) fn data(&self, place: Place, offset: usize, len: usize) -> Piece {
        Piece { offset: place.0 as usize * self.capsule + COMMAND + offset, len }
    }

    /// Copies data of a capsule.
    pub(crate) fn read(&self, place: Place, offset: usize, into: &mut [u8]) {
        // The place lies in the memory.
        let _ = self.mapped.memory.read(self.data(place, offset, into.len()).offset, into);
    }

    /// Copies data of a capsule into a buffer, as many bytes as that holds.
    pub(crate) fn copy(&self, place: Place, offset: usize, pool: &Pool, into: &Buffer) {
        let mut page = [0; 4096];
        for done in (0..into.len()).step_by(page.len()) {
            let now = &mut page[..(into.len() - done).min(4096)];
            self.read(place, offset + done, now);
            pool.write(into, done, now);
        }
    }

    /// Frees the queue; no endpoint uses it any more.
    pub(crate) fn free(self, ia: &Ia) {
        // Fails only if the IA is dead.
        let _ = ia.srq_free(self.srq);
        self.mapped.free(ia);
    }
}

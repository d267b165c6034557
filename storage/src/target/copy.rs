//! Copy: a command that the target carries out piece by piece, each of them a read and a write.
//!
//! It needs memory for its ranges, and a small chunk for the blocks on their way.

use nvme::copy::Range;
use nvme::status::Status;
use zerocopy::FromBytes;

use super::commands::Index;
use super::pool::SMALL;
use super::server::Target;
use super::task::{Operation, Progress, Task};

/// The bytes of a source range in the command's data.
pub(super) const RANGE: usize = size_of::<Range>();
impl Target {
    fn range_of_copy(&self, index: Index, place: usize, number: usize) -> Option<Range> {
        let mut bytes = [0; RANGE];
        let entry = &self.commands[index];
        let pool = self.subsystem.namespaces[place].pool(entry.port);
        pool.read_at(&entry.buffer, number * RANGE, &mut bytes);
        Range::read_from_bytes(&bytes).ok()
    }

    /// Checks the ranges of a Copy, which have come. Nothing is copied if one is wrong.
    pub(super) fn check_copy(&self, index: Index, place: usize, ranges: usize) -> Result<(), Status> {
        let namespace = &self.subsystem.namespaces[place];
        let (blocks, (most_of_range, most)) = (namespace.geometry.blocks, namespace.copy_limits());
        let fits = |first: u64, count: u64| first.checked_add(count).is_some_and(|end| end <= blocks);
        let mut total = 0;
        for number in 0..ranges {
            let range = self.range_of_copy(index, place, number).ok_or(Status::INTERNAL_ERROR)?;
            total += range.blocks();
            if range.blocks() > most_of_range || total > most {
                return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr());
            }
            if !fits(range.slba.get(), range.blocks()) {
                return Err(Status::LBA_OUT_OF_RANGE.dnr());
            }
        }
        let to = self.commands[index].command.slba();
        if fits(to, total) { Ok(()) } else { Err(Status::LBA_OUT_OF_RANGE.dnr()) }
    }

    /// The next request of a Copy, and its bytes; `None` behind the last range.
    pub(super) fn next_of_copy(
        &self,
        index: Index,
        place: usize,
        ranges: usize,
        progress: Progress,
    ) -> Option<(Operation, usize)> {
        let range = (usize::from(progress.range) < ranges)
            .then(|| self.range_of_copy(index, place, progress.range.into()))??;
        let (command, shift) = (&self.commands[index].command, self.subsystem.namespaces[place].shift());
        let left = range.blocks().saturating_sub(progress.done.into());
        let count = left.min((SMALL >> shift) as u64);
        let operation = match progress.is_read {
            false => Operation::Read { block: range.slba.get() + u64::from(progress.done) },
            true => {
                Operation::Write { block: command.slba() + u64::from(progress.total), fua: command.fua() }
            }
        };
        Some((operation, (count as usize) << shift))
    }

    /// A request of a Copy has ended: notes how far it has come.
    pub(super) fn advance_copy(&mut self, index: Index, place: usize) {
        let Task::Copy { ranges, progress, .. } = self.commands[index].task else { return };
        let Some((_, len)) = self.next_of_copy(index, place, ranges, progress) else { return };
        let range = self.range_of_copy(index, place, progress.range.into());
        let blocks = (len >> self.subsystem.namespaces[place].shift()) as u32;
        let mut next = Progress { is_read: !progress.is_read, ..progress };
        if progress.is_read {
            (next.done, next.total) = (progress.done + blocks, progress.total + blocks);
            if range.is_none_or(|range| range.blocks() <= next.done.into()) {
                (next.range, next.done) = (progress.range + 1, 0);
            }
        }
        self.commands[index].task = Task::Copy { namespace: place, ranges, progress: next };
    }
}

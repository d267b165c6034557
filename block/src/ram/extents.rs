//! Which memory has which blocks: a disk's blocks are extents of [`EXTENT`] bytes, each in an
//! extent of the memory. There are more of the latter than of the former. The rest takes what
//! replaces an extent that a reader still has, and what is being brought.
//!
//! The bounds keep one extent free at all times. Readers have [`Extents::most_read`] at most, so no
//! more than that many are replaced and not free yet; [`Extents::most_written`] are lent to be
//! written. So whoever writes to blocks that a slow reader has never waits for it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use platform::{DmaBuffer, OutOfBounds, OutOfMemory, Platform, SharedSlice, heap};

use crate::lend::{Lease, Loan, MOST_LENT};

/// The logarithm of an extent's bytes, which are a multiple of every block size.
const SHIFT: u32 = 17;
/// The bytes of an extent.
pub(super) const EXTENT: usize = 1 << SHIFT;
/// The bounds of a disk that is not small.
const MOST_READ: usize = 64;
const MOST_WRITTEN: usize = 32;
/// The logarithms of the least and the most extents of a buffer: 1 MiB and 64 MiB.
const LEAST: u32 = 3;
const MOST: u32 = 9;

/// The buffers, of `1 << per_buffer` extents each; the last one may be shorter, and so may be those
/// that were the last one once.
#[derive(Clone)]
pub(super) struct Memory {
    pub(super) buffers: Arc<Vec<Arc<DmaBuffer>>>,
    pub(super) per_buffer: u32,
}

impl Memory {
    /// An extent of the memory.
    pub(super) fn extent(&self, extent: u32) -> Result<SharedSlice<'_>, OutOfBounds> {
        let buffer = self.buffers.get((extent >> self.per_buffer) as usize).ok_or(OutOfBounds)?;
        let within = (extent & ((1 << self.per_buffer) - 1)) as usize;
        buffer.slice().get(within << SHIFT, EXTENT)
    }

    /// With buffers for `more` extents; the numbers of these.
    fn with(&self, platform: &Arc<dyn Platform>, more: usize) -> Result<(Memory, Vec<u32>), OutOfMemory> {
        let most = 1 << self.per_buffer;
        let (mut buffers, mut numbers) = (Vec::new(), Vec::new());
        buffers.try_reserve_exact(self.buffers.len() + more.div_ceil(most)).map_err(|_| OutOfMemory)?;
        numbers.try_reserve_exact(more).map_err(|_| OutOfMemory)?;
        buffers.extend(self.buffers.iter().cloned());
        for done in (0..more).step_by(most) {
            let count = most.min(more - done);
            let first = u32::try_from(buffers.len() << self.per_buffer).map_err(|_| OutOfMemory)?;
            first.checked_add(most as u32).ok_or(OutOfMemory)?;
            let buffer = DmaBuffer::new(platform, count << SHIFT, 4096)?;
            buffers.push(heap::arc(buffer).map_err(|_| OutOfMemory)?);
            numbers.extend(first..first + count as u32);
        }
        let buffers = heap::arc(buffers).map_err(|_| OutOfMemory)?;
        Ok((Memory { buffers, per_buffer: self.per_buffer }, numbers))
    }
}

/// An extent of the memory.
#[derive(Clone, Copy, Default)]
struct Use {
    /// How many read leases have it.
    readers: u32,
    /// It holds blocks of the disk.
    is_mapped: bool,
    /// Somebody copies out of it or into it.
    is_copied: bool,
}

/// See the module's documentation. A disk has it under its lock.
pub(super) struct Extents {
    pub(super) memory: Memory,
    /// By extent of the disk, the one of the memory.
    map: Vec<u32>,
    uses: Vec<Use>,
    free: Vec<u32>,
    /// Extents that read leases have, and the most of these.
    read: usize,
    most_read: usize,
    /// Extents that are lent to be written.
    written: usize,
    most_written: usize,
}

/// Memory for a larger disk, which was made outside of the lock.
pub(super) struct Growth {
    memory: Memory,
    numbers: Vec<u32>,
    map: Vec<u32>,
    uses: Vec<Use>,
    free: Vec<u32>,
}

impl Extents {
    /// For a disk of so many bytes, which are zero.
    pub(super) fn new(platform: &Arc<dyn Platform>, bytes: usize) -> Result<Extents, OutOfMemory> {
        let count = bytes.div_ceil(EXTENT);
        let most_read = MOST_READ.min(count / 2 + 1);
        let most_written = MOST_WRITTEN.min(count / 4 + 1);
        let total = count.checked_add(most_read + most_written + 1).ok_or(OutOfMemory)?;
        // Few buffers, since a consumer registers each; but a machine may have no memory in such
        // large pieces.
        let wanted = (total / 8).max(1).ilog2().clamp(LEAST, MOST);
        let mut per_buffer = wanted;
        loop {
            let none = heap::arc(Vec::new()).map_err(|_| OutOfMemory)?;
            let mut extents = Extents {
                memory: Memory { buffers: none, per_buffer },
                map: Vec::new(),
                uses: Vec::new(),
                free: Vec::new(),
                read: 0,
                most_read,
                written: 0,
                most_written,
            };
            match extents.growth(platform, bytes) {
                Ok(growth) => {
                    extents.grow(growth);
                    extents.resize(bytes);
                    return Ok(extents);
                }
                Err(OutOfMemory) if per_buffer > LEAST => per_buffer -= 1,
                Err(OutOfMemory) => return Err(OutOfMemory),
            }
        }
    }

    /// The memory that a disk of so many bytes needs beyond what there is.
    pub(super) fn growth(&self, platform: &Arc<dyn Platform>, bytes: usize) -> Result<Growth, OutOfMemory> {
        let count = bytes.div_ceil(EXTENT);
        let there: usize = self.memory.buffers.iter().map(|buffer| buffer.len() >> SHIFT).sum();
        let needed = count.checked_add(self.most_read + self.most_written + 1).ok_or(OutOfMemory)?;
        let (memory, numbers) = self.memory.with(platform, needed.saturating_sub(there))?;
        let numbered = memory.buffers.len() << memory.per_buffer;
        let (mut map, mut uses, mut free) = (Vec::new(), Vec::new(), Vec::new());
        map.try_reserve_exact(count.max(self.map.len())).map_err(|_| OutOfMemory)?;
        uses.try_reserve_exact(numbered).map_err(|_| OutOfMemory)?;
        free.try_reserve_exact(numbered).map_err(|_| OutOfMemory)?;
        Ok(Growth { memory, numbers, map, uses, free })
    }

    /// Takes over memory. The tables have room for it.
    pub(super) fn grow(&mut self, growth: Growth) {
        let Growth { memory, numbers, mut map, mut uses, mut free } = growth;
        map.extend_from_slice(&self.map);
        uses.extend_from_slice(&self.uses);
        uses.resize(memory.buffers.len() << memory.per_buffer, Use::default());
        free.extend(numbers.iter().rev());
        free.extend_from_slice(&self.free);
        (self.memory, self.map, self.uses, self.free) = (memory, map, uses, free);
    }

    /// Gives the disk the extents that so many bytes need. Those that it gets beyond the ones that
    /// it had are returned by [`Extents::of`] and hold anything, but for those of a new disk.
    pub(super) fn resize(&mut self, bytes: usize) {
        let count = bytes.div_ceil(EXTENT);
        while self.map.len() > count {
            let Some(former) = self.map.pop() else { break };
            self.unmap(former);
        }
        while self.map.len() < count {
            let Some(extent) = self.free.pop() else { break };
            self.uses[extent as usize].is_mapped = true;
            self.map.push(extent);
        }
    }

    /// How many extents the disk has.
    pub(super) fn count(&self) -> usize {
        self.map.len()
    }

    /// The memory of an extent of the disk.
    pub(super) fn of(&self, extent: usize) -> Option<u32> {
        self.map.get(extent).copied()
    }

    fn unmap(&mut self, extent: u32) {
        self.uses[extent as usize].is_mapped = false;
        self.settle(extent);
    }

    /// An extent that nobody has is free.
    fn settle(&mut self, extent: u32) {
        let used = self.uses[extent as usize];
        if used.readers == 0 && !used.is_mapped && !used.is_copied {
            self.free.push(extent);
        }
    }

    /// Begins to copy out of an extent of the disk: it keeps its memory until [`Extents::copied`].
    pub(super) fn copy_from(&mut self, extent: usize) -> Option<u32> {
        let memory = self.of(extent)?;
        self.uses[memory as usize].is_copied = true;
        Some(memory)
    }

    /// Begins to change an extent of the disk. If readers have it, it is to be replaced by the
    /// second one, by [`Extents::replace`].
    pub(super) fn copy_into(&mut self, extent: usize) -> Option<(u32, Option<u32>)> {
        let memory = self.copy_from(extent)?;
        if self.uses[memory as usize].readers == 0 {
            return Some((memory, None));
        }
        let fresh = self.free.pop()?;
        self.uses[fresh as usize].is_copied = true;
        Some((memory, Some(fresh)))
    }

    /// Nobody copies out of this memory, or into it, any more.
    pub(super) fn copied(&mut self, memory: u32) {
        self.uses[memory as usize].is_copied = false;
        self.settle(memory);
    }

    /// Gives an extent of the disk other memory, unless it has other memory than `former` already.
    pub(super) fn replace(&mut self, extent: usize, former: u32, fresh: u32) {
        if self.of(extent) == Some(former) {
            self.map[extent] = fresh;
            self.uses[fresh as usize].is_mapped = true;
            self.uses[former as usize].is_mapped = false;
        }
        self.copied(fresh);
        self.copied(former);
    }

    /// Lends the memory of bytes of the disk. `None` if the bounds do not allow it, if somebody
    /// changes one of the extents now, or if they are no whole extents that are to be written.
    pub(super) fn lend(&mut self, at: usize, len: usize, loan: Loan) -> Option<Lease> {
        let (from, first) = (at >> SHIFT, at & (EXTENT - 1));
        let count = (first + len).div_ceil(EXTENT);
        let mut extents = [0; MOST_LENT];
        let chosen = extents.get_mut(..count)?;
        match loan {
            Loan::Read => {
                let mut new = 0;
                for (chosen, &extent) in chosen.iter_mut().zip(self.map.get(from..from + count)?) {
                    let used = &self.uses[extent as usize];
                    if used.is_copied {
                        return None;
                    }
                    new += usize::from(used.readers == 0);
                    *chosen = extent;
                }
                if self.read + new > self.most_read {
                    return None;
                }
                self.read += new;
                chosen.iter().for_each(|&extent| self.uses[extent as usize].readers += 1);
            }
            Loan::Write => {
                let is_whole = first == 0 && len.is_multiple_of(EXTENT);
                if !is_whole || self.written + count > self.most_written || from + count > self.map.len() {
                    return None;
                }
                // One stays free for whoever copies.
                let rest = self.free.len().checked_sub(count + 1)?;
                // Ascending, so that what was contiguous becomes so again.
                chosen.iter_mut().zip(self.free.drain(rest + 1..).rev()).for_each(|(to, from)| *to = from);
                self.written += count;
            }
        }
        let (shift, per_buffer) = (SHIFT as u8, self.memory.per_buffer as u8);
        Some(Lease { loan, block: 0, len: len as u32, first: first as u32, shift, per_buffer, extents })
    }

    /// Takes back what was lent. A lease of another disk may name what this one has not lent; that
    /// changes nothing but its own counts.
    pub(super) fn cancel(&mut self, lease: &Lease) {
        for &extent in lease.extents.iter().take(lease.count()) {
            let Some(used) = self.uses.get_mut(extent as usize) else { return };
            match lease.loan {
                Loan::Read => {
                    used.readers = used.readers.saturating_sub(1);
                    if used.readers == 0 {
                        self.read = self.read.saturating_sub(1);
                        self.settle(extent);
                    }
                }
                Loan::Write => {
                    self.written = self.written.saturating_sub(1);
                    self.settle(extent);
                }
            }
        }
    }

    /// What was brought replaces what was there, from byte `at` of the disk on. False if the disk
    /// has shrunk: then nothing is replaced.
    pub(super) fn commit(&mut self, lease: &Lease, at: usize) -> bool {
        let (from, count) = (at >> SHIFT, lease.count());
        if lease.loan != Loan::Write || from + count > self.map.len() {
            self.cancel(lease);
            return false;
        }
        self.written = self.written.saturating_sub(count);
        for (n, &fresh) in lease.extents.iter().take(count).enumerate() {
            let former = core::mem::replace(&mut self.map[from + n], fresh);
            self.uses[fresh as usize].is_mapped = true;
            self.unmap(former);
        }
        true
    }

    /// Whether nothing is lent.
    #[cfg(test)]
    pub(super) fn is_whole(&self) -> bool {
        let there: usize = self.memory.buffers.iter().map(|buffer| buffer.len() >> SHIFT).sum();
        (self.read, self.written, self.free.len()) == (0, 0, there - self.map.len())
    }
}

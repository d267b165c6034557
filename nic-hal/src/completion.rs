//! The completion queue's consumer.

use core::sync::atomic::Ordering;

use nic_abi::cqe::{self, Cqe};

use crate::doorbell::ConsumerRecord;
use crate::mapped::Ring;
use crate::memory::Lease;
use crate::work::Taken;

/// The consumer of a completion queue. Its lock is the owner's.
pub struct CompletionQueue {
    pub(crate) ring: Ring<{ cqe::WORDS }>,
    shift: u32,
    /// Free-running index of the next entry.
    head: u32,
    record: ConsumerRecord,
}

/// By how much the bit of an index that counts the passes over a ring of `1 << log` entries is away from where the phase is.
const fn shift(log: u32) -> u32 {
    cqe::PHASE.ilog2() - log
}

/// Whether the entry at the free-running index `index` is written, by its last word: the phase is the opposite of the bit that counts the
/// passes.
#[inline(always)]
const fn is_written(end: u64, index: u32, shift: u32) -> bool {
    (end ^ (index as u64).wrapping_shl(shift)) & cqe::PHASE != 0
}

/// What matters most of an entry that was taken. Whatever it says is the device's.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The queue pair's number, and in the upper half its generation.
    pub identity: u64,
    /// The tag, and in the upper half the length.
    request: u64,
    /// Status, flags, opcode, from the lowest byte on.
    end: u64,
    /// Where it is; as wide as the rest, so that nothing is packed.
    index: u64,
}

impl Entry {
    /// Names the request.
    #[inline(always)]
    pub fn tag(&self) -> u32 {
        self.request as u32
    }

    /// Bytes transferred, but no more than the request names.
    #[inline(always)]
    pub fn length(&self, note: &Taken) -> u32 {
        // The upper halves decide.
        (self.request.min(note.rest) >> 32) as u32
    }

    /// A [`cqe::Status`], and in the upper half [`cqe::CqeFlags`].
    #[inline(always)]
    pub fn outcome(&self) -> u16 {
        self.end as u16
    }
}

/// Reads entries in a row; the queue learns of it by [`Reading::tell`].
pub struct Reading<'a> {
    queue: &'a mut CompletionQueue,
    head: u32,
    shift: u32,
}

impl Reading<'_> {
    /// The next entry, as the device wrote it.
    #[inline(always)]
    pub fn look(&self) -> Option<Entry> {
        let entry = self.queue.ring.at(self.head);
        // Acquire: the word with the phase was written last.
        let end = entry[3].load(Ordering::Acquire);
        if !is_written(end, self.head, self.shift) {
            return None;
        }
        let (identity, request) = (entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed));
        Some(Entry { identity, request, end, index: u64::from(self.head) })
    }

    /// Goes on behind so many entries.
    #[inline(always)]
    pub fn advance(&mut self, count: u32) {
        self.head = self.head.wrapping_add(count);
    }

    /// Lays the next entries beside `places`: from `first`, which is the next one, on, as long as they are written, are of the same queue pair
    /// and say the same of what `mask` has of their outcomes; up to the end of this pass over the ring.
    #[inline(always)]
    pub fn beside<'p, T>(
        &self,
        first: &Entry,
        mask: u16,
        places: &'p mut [T],
    ) -> impl Iterator<Item = (&'p mut T, Entry)> {
        let Entry { identity, index, .. } = *first;
        // The phase, which is the same for the whole pass, goes below the outcome: so one comparison does for both.
        const { assert!(cqe::PHASE.rotate_left(1) == 1) };
        let mask = u32::from(mask) << 1 | 1;
        let wanted = first.end.rotate_left(1) as u32 & mask;
        let entries = self.queue.ring.from(index as u32);
        // As many of both, so that the end of both is one.
        let count = entries.len().min(places.len());
        let places = places.get_mut(..count).unwrap_or_default();
        let entries = entries.get(..count).unwrap_or_default();
        places.iter_mut().zip(entries).enumerate().map_while(move |(n, (place, entry))| {
            // Acquire: the word with the phase was written last.
            let end = entry[3].load(Ordering::Acquire);
            if end.rotate_left(1) as u32 & mask != wanted || entry[0].load(Ordering::Relaxed) != identity {
                return None;
            }
            let request = entry[1].load(Ordering::Relaxed);
            Some((place, Entry { identity, request, end, index: index.wrapping_add(n as u64) }))
        })
    }

    /// The entries before the next one are taken, and the device is told: before a poster is, who has the room filled.
    #[inline(always)]
    pub fn tell(&mut self) {
        self.queue.head = self.head;
        self.queue.consumed();
    }
}

/// The memory to which a completion queue is moved.
pub struct CompletionRing {
    pub(crate) ring: Ring<{ cqe::WORDS }>,
    pub(crate) log: u32,
}

impl CompletionRing {
    /// The number of entries.
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }
}

impl CompletionQueue {
    pub(crate) fn new(ring: Ring<{ cqe::WORDS }>, log: u32, record: ConsumerRecord) -> CompletionQueue {
        CompletionQueue { ring, shift: shift(log), head: 0, record }
    }

    /// Takes the next entry, as the device wrote it; the caller judges what it says. [`CompletionQueue::consumed`]
    /// gives the room back.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        self.take().map(|entry| self.read(entry))
    }

    /// The same, of which only the words are read that tell whose it is and how it ended.
    #[inline]
    pub fn take(&mut self) -> Option<Entry> {
        let mut reading = self.reading();
        let entry = reading.look()?;
        reading.advance(1);
        self.head = reading.head;
        Some(entry)
    }

    /// Reads on from where the queue is.
    #[inline(always)]
    pub fn reading(&mut self) -> Reading<'_> {
        Reading { head: self.head, shift: self.shift, queue: self }
    }

    /// The rest of an entry that was taken, too: only until [`CompletionQueue::consumed`].
    #[inline]
    pub fn read(&self, entry: Entry) -> Cqe {
        let Entry { identity, request, end, .. } = entry;
        let third = self.third(entry);
        Cqe {
            qpn: identity as u32,
            generation: (identity >> 32) as u32,
            tag: request as u32,
            length: (request >> 32) as u32,
            immediate: third as u32,
            source_or_field: (third >> 32) as u32,
            status: end as u8,
            flags: (end >> 8) as u8,
            opcode: (end >> 16) as u8,
            reserved: 0,
            phase: 0,
        }
    }

    #[inline]
    fn third(&self, entry: Entry) -> u64 {
        self.ring.at(entry.index as u32)[2].load(Ordering::Relaxed)
    }

    /// Tells the device what was taken. To be called before the request is retired: its poster may post another one then, and all that is
    /// outstanding has to find room.
    #[inline(always)]
    pub fn consumed(&self) {
        self.record.consumed(self.head);
    }

    /// How many entries wait, counted up to `limit`.
    pub fn pending(&self, limit: u32) -> u32 {
        let limit = limit.min(self.ring.entries());
        let mut count = 0;
        while count < limit {
            let index = self.head.wrapping_add(count);
            let last = self.ring.at(index)[3].load(Ordering::Acquire);
            if !is_written(last, index, self.shift) {
                break;
            }
            count += 1;
        }
        count
    }

    /// Shows the entries that wait, oldest first; none is taken.
    pub fn waiting(&self, mut each: impl FnMut(&Cqe)) {
        for offset in 0..self.pending(u32::MAX) {
            let index = self.head.wrapping_add(offset);
            let entry = self.ring.at(index);
            let end = entry[3].load(Ordering::Acquire);
            let (identity, request) = (entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed));
            each(&self.read(Entry { identity, request, end, index: u64::from(index) }));
        }
    }

    /// Asks for an event at the next entry (that is solicited or an error). Look at the queue once more after it.
    #[inline]
    pub fn arm(&self, solicited: bool) {
        self.record.arm(solicited);
    }

    /// The number of entries.
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// Goes on in the ring to which the device has moved the queue. The old one is free.
    pub fn move_to(&mut self, ring: CompletionRing) {
        let old = core::mem::replace(&mut self.ring, ring.ring);
        self.shift = shift(ring.log);
        old.lease().end();
    }

    /// For how long the device uses the ring.
    pub fn lease(&self) -> &Lease {
        self.ring.lease()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_written_in_the_pass_that_its_phase_says() {
        for log in [0, 1, 4, 16, 30] {
            let entries = 1u32 << log;
            for index in [0, entries - 1, entries, 2 * entries - 1, 2 * entries, u32::MAX] {
                let phase = cqe::phase(index, log);
                assert!(is_written(phase | 0x1234, index, shift(log)));
                assert!(!is_written(phase ^ cqe::PHASE | 0x1234, index, shift(log)));
            }
        }
    }
}

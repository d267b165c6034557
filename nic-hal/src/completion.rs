//! The completion queue's consumer.

use core::sync::atomic::Ordering;

use nic_abi::cqe::{self, Cqe};

use crate::doorbell::ConsumerRecord;
use crate::mapped::Ring;
use crate::memory::Lease;
use crate::outstanding::Retired;

/// The consumer of a completion queue. Its owner brings the lock.
pub struct CompletionQueue {
    pub(crate) ring: Ring<{ cqe::WORDS }>,
    /// Turns an index into the phase of the pass before: see [`factor`].
    factor: u64,
    /// Free-running index of the next entry.
    head: u32,
    record: ConsumerRecord,
}

/// In an index into a ring of `1 << log` entries one bit counts the passes over the ring. A product
/// with this has that bit in the place of the phase.
const fn factor(log: u32) -> u64 {
    cqe::PHASE >> log
}

/// Whether the device has written the entry at the free-running index `index`, by the entry's last
/// word: the phase is the opposite of the bit that counts the passes.
#[inline(always)]
const fn is_written(end: u64, index: u32, factor: u64) -> bool {
    (end ^ (index as u64).wrapping_mul(factor)) & cqe::PHASE != 0
}

/// The words of an entry that identify its request and its outcome. The device wrote them, so the
/// caller checks them.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The queue pair's number, and in the upper half its generation.
    pub identity: u64,
    /// The tag, and in the upper half the length.
    request: u64,
    /// Status, flags, opcode, from the lowest byte on.
    end: u64,
    /// The entry's index; as wide as the other fields, so that the compiler packs nothing.
    index: u64,
}

impl Entry {
    /// The tag of the request.
    #[inline(always)]
    pub fn tag(&self) -> u32 {
        self.request as u32
    }

    /// Bytes transferred, limited to what the request named.
    #[inline(always)]
    pub fn length(&self, of: &Retired) -> u32 {
        // The lengths are in the upper halves, so they decide which word is the smaller one.
        (self.request.min(of.rest) >> 32) as u32
    }

    /// A [`cqe::Status`], and in the upper half [`cqe::CqeFlags`].
    #[inline(always)]
    pub fn outcome(&self) -> u16 {
        self.end as u16
    }
}

/// Reads entries in a row. [`Reading::commit`] takes them from the queue.
pub struct Reading<'a> {
    queue: &'a mut CompletionQueue,
    head: u32,
    factor: u64,
}

impl Reading<'_> {
    /// The next entry, as the device wrote it.
    #[inline(always)]
    pub fn look(&self) -> Option<Entry> {
        self.queue.entry(self.head, self.factor)
    }

    /// Whether the next entry is written.
    #[inline(always)]
    pub fn waits(&self) -> bool {
        let end = self.queue.ring.at(self.head)[3].load(Ordering::Acquire);
        is_written(end, self.head, self.factor)
    }

    /// All of an entry. To be called before [`Reading::commit`], after which the device may write
    /// another entry in its place.
    #[inline(always)]
    pub fn read(&self, entry: Entry) -> Cqe {
        self.queue.read(entry)
    }

    /// Skips `count` entries.
    #[inline(always)]
    pub fn advance(&mut self, count: u32) {
        self.head = self.head.wrapping_add(count);
    }

    /// Pairs the next entries with `places`, beginning with `first`, which is the next entry.
    ///
    /// Ends at the first entry that is not written, is of another queue pair, or whose outcome
    /// differs in the bits of `mask`; and at the end of the ring.
    #[inline(always)]
    pub fn beside<'p, T>(
        &self,
        first: &Entry,
        mask: u16,
        places: &'p mut [T],
    ) -> impl Iterator<Item = (&'p mut T, Entry)> {
        let Entry { identity, index, .. } = *first;
        // The phase does not change before the end of the ring. It is rotated below the outcome,
        // so that one comparison checks both.
        const { assert!(cqe::PHASE.rotate_left(1) == 1) };
        let mask = u32::from(mask) << 1 | 1;
        let wanted = first.end.rotate_left(1) as u32 & mask;
        let entries = self.queue.ring.from(index as u32);
        // Cut both to one length, so that the loop checks for one end only.
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

    /// Takes the entries that were read, and gives their room to the device. To be called before
    /// the requests' room becomes visible to posters, whose next requests need room for their
    /// completions.
    #[inline(always)]
    pub fn commit(&mut self) {
        self.queue.head = self.head;
        self.queue.consumed();
    }
}

/// The ring to which a completion queue moves.
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
        CompletionQueue { ring, factor: factor(log), head: 0, record }
    }

    /// Takes the next entry as the device wrote it; the caller checks it.
    /// [`CompletionQueue::consumed`] gives the room to the device.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        self.take().map(|entry| self.read(entry))
    }

    /// Takes the next entry, and reads only the words that identify its request and its outcome.
    #[inline]
    pub fn take(&mut self) -> Option<Entry> {
        let entry = self.look()?;
        self.skip();
        Some(entry)
    }

    /// The next entry, as the device wrote it.
    #[inline(always)]
    pub fn look(&self) -> Option<Entry> {
        self.entry(self.head, self.factor)
    }

    /// Takes the next entry, which was looked at.
    #[inline(always)]
    pub fn skip(&mut self) {
        self.head = self.head.wrapping_add(1);
    }

    #[inline(always)]
    fn entry(&self, index: u32, factor: u64) -> Option<Entry> {
        let entry = self.ring.at(index);
        // Acquire: the word with the phase was written last.
        let end = entry[3].load(Ordering::Acquire);
        if !is_written(end, index, factor) {
            return None;
        }
        let (identity, request) = (entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed));
        Some(Entry { identity, request, end, index: u64::from(index) })
    }

    /// Reads entries from the next one on.
    #[inline(always)]
    pub fn reading(&mut self) -> Reading<'_> {
        Reading { head: self.head, factor: self.factor, queue: self }
    }

    /// All of an entry that was taken. To be called before [`CompletionQueue::consumed`].
    #[inline]
    pub fn read(&self, entry: Entry) -> Cqe {
        let Entry { identity, request, end, .. } = entry;
        let (immediate, detail) = self.immediate_and_detail(&entry);
        Cqe {
            qpn: identity as u32,
            generation: (identity >> 32) as u32,
            tag: request as u32,
            length: (request >> 32) as u32,
            immediate,
            detail,
            status: end as u8,
            flags: (end >> 8) as u8,
            opcode: (end >> 16) as u8,
            reserved: 0,
            phase: 0,
        }
    }

    /// The immediate data of an entry, and its detail: see [`Cqe`]. To be called before
    /// [`CompletionQueue::consumed`].
    #[inline]
    pub fn immediate_and_detail(&self, entry: &Entry) -> (u32, u32) {
        let third = self.ring.at(entry.index as u32)[2].load(Ordering::Relaxed);
        (third as u32, (third >> 32) as u32)
    }

    /// Gives the room of all taken entries to the device. To be called before the requests are
    /// retired: their poster may then post again, and each outstanding request needs room for its
    /// completion.
    #[inline(always)]
    pub fn consumed(&self) {
        self.record.consumed(self.head);
    }

    /// Free-running index of the next entry.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Whether the entry at this distance from the next one is written.
    #[inline(always)]
    fn has_written(&self, distance: u32) -> bool {
        let index = self.head.wrapping_add(distance);
        is_written(self.ring.at(index)[3].load(Ordering::Acquire), index, self.factor)
    }

    /// How many entries are written and not taken, counted up to `limit`. The device writes in
    /// order, so the search looks at a logarithmic number of entries.
    pub fn pending(&self, limit: u32) -> u32 {
        let limit = limit.min(self.ring.entries());
        // All entries before `written` are written; that at `free` is not, or is the limit.
        let (mut written, mut free, mut step) = (0, limit, 1);
        while written < free {
            let left = free - written;
            let at = written + if step < left { step - 1 } else { left / 2 };
            if self.has_written(at) {
                written = at + 1;
                step = step.saturating_mul(2);
            } else {
                free = at;
                step = 1;
            }
        }
        written
    }

    /// Calls `each` with the entries that are written and not taken, oldest first.
    pub fn waiting(&self, mut each: impl FnMut(&Cqe)) {
        for offset in 0..self.pending(u32::MAX) {
            let index = self.head.wrapping_add(offset);
            let entry = self.ring.at(index);
            let end = entry[3].load(Ordering::Acquire);
            let (identity, request) = (entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed));
            each(&self.read(Entry { identity, request, end, index: u64::from(index) }));
        }
    }

    /// Arms the queue for the next entry; with `solicited`, for the next one that is solicited or
    /// an error. Look at the queue once more afterwards.
    #[inline]
    pub fn arm(&self, solicited: bool) {
        self.record.arm(solicited);
    }

    /// Arms the queue for the next entry if it is armed for solicited entries. False if the device
    /// has disarmed it: an event of the queue is under way. Look at the queue once more afterwards.
    #[inline]
    pub fn arm_for_more(&self) -> bool {
        self.record.arm_for_more()
    }

    /// The number of entries.
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// Goes on in the ring to which the device has moved the queue. Frees the old ring.
    pub fn move_to(&mut self, ring: CompletionRing) {
        let old = core::mem::replace(&mut self.ring, ring.ring);
        self.factor = factor(ring.log);
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
    fn an_entry_counts_as_written_only_in_the_pass_of_its_phase() {
        for log in [0, 1, 4, 16, 30] {
            let entries = 1u32 << log;
            for index in [0, entries - 1, entries, 2 * entries - 1, 2 * entries, u32::MAX] {
                let phase = cqe::phase(index, log);
                assert!(is_written(phase | 0x1234, index, factor(log)));
                assert!(!is_written(phase ^ cqe::PHASE | 0x1234, index, factor(log)));
            }
        }
    }
}

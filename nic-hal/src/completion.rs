//! The completion queue's consumer.

use core::sync::atomic::Ordering;

use nic_abi::cqe::{self, Cqe};

use crate::doorbell::ConsumerRecord;
use crate::mapped::Ring;
use crate::memory::Lease;

/// The consumer of a completion queue. Its lock is the owner's.
pub struct CompletionQueue {
    pub(crate) ring: Ring<{ cqe::WORDS }>,
    log: u32,
    /// Free-running index of the next entry.
    head: u32,
    /// The phase of an entry that is written there; [`cqe::PHASE`] or 0.
    phase: u64,
    record: ConsumerRecord,
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

    /// Bytes transferred.
    #[inline(always)]
    pub fn length(&self) -> u32 {
        (self.request >> 32) as u32
    }

    /// A [`cqe::Status`], and in the upper half [`cqe::CqeFlags`].
    #[inline(always)]
    pub fn outcome(&self) -> u16 {
        self.end as u16
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
        CompletionQueue { ring, log, head: 0, phase: cqe::phase(0, log), record }
    }

    /// Takes the next entry, as the device wrote it; the caller judges what it says. [`CompletionQueue::consumed`]
    /// gives the room back.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        self.take().map(|entry| self.read(entry))
    }

    /// The same, of which only the words are read that tell whose it is and how it ended.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Entry> {
        let head = self.head;
        let entry = self.ring.at(head);
        // Acquire: the word with the phase was written last.
        let end = entry[3].load(Ordering::Acquire);
        if (end ^ self.phase) & cqe::PHASE != 0 {
            return None;
        }
        let (identity, request) = (entry[0].load(Ordering::Relaxed), entry[1].load(Ordering::Relaxed));
        self.head = head.wrapping_add(1);
        if self.ring.is_start(self.head) {
            self.phase ^= cqe::PHASE;
        }
        Some(Entry { identity, request, end, index: u64::from(head) })
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

    /// Tells the device what was taken.
    #[inline]
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
            if (last ^ cqe::phase(index, self.log)) & cqe::PHASE != 0 {
                break;
            }
            count += 1;
        }
        count
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
        self.log = ring.log;
        self.phase = cqe::phase(self.head, self.log);
        old.lease().end();
    }

    /// For how long the device uses the ring.
    pub fn lease(&self) -> &Lease {
        self.ring.lease()
    }
}

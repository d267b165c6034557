//! Copies of messages that have left but are not acknowledged (Reliable Delivery).
//!
//! The descriptor of such a message is complete, so the consumer owns the memory again. A retry
//! reads the copy. One pool holds all copies of a NIC; if it has no room, the message completes
//! only when it is acknowledged.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use platform::SharedSlice;

use crate::keys::{Keys, Span};
use crate::memory::{DmaError, GuestMemory};
use crate::schedule::Schedule;
use crate::transfer::{Side, Unreachable, copy};

/// The most bytes of all copies of a NIC.
const POOL: u64 = 16 << 20;
/// Bytes of one copy at most.
const LONGEST: u64 = 4 << 20;
/// The bytes that a copy takes from the pool besides its data.
const OVERHEAD: u64 = 64;

/// The copies of a NIC, by the slot of the virtual interface and the descriptor's index.
#[derive(Default)]
pub(crate) struct Copies {
    copies: BTreeMap<(u32, u32), Retained>,
    /// The bytes that the copies take from the pool, in all and by slot.
    taken: u64,
    by_slot: BTreeMap<u32, u64>,
}

/// The copy of a message.
pub(crate) struct Retained {
    words: Box<[AtomicU64]>,
    span: [Span; 1],
}

impl Copies {
    /// The copy of a message.
    pub fn get(&self, slot: u32, index: u32) -> Option<&Retained> {
        self.copies.get(&(slot, index))
    }

    /// Whether the pool has room for a copy of this many bytes of a virtual interface. After that
    /// the virtual interface has no more than what is free, so those whose peers never answer
    /// leave a share to the others.
    pub(super) fn has_room(&self, slot: u32, length: u64) -> bool {
        let charge = Retained::charge(length);
        let own = self.by_slot.get(&slot).copied().unwrap_or(0) + charge;
        length <= LONGEST && self.taken + charge + own <= POOL
    }

    pub(super) fn insert(&mut self, slot: u32, index: u32, copy: Retained) {
        let charge = Retained::charge(copy.length());
        self.remove(slot, index);
        self.taken += charge;
        *self.by_slot.entry(slot).or_default() += charge;
        self.copies.insert((slot, index), copy);
    }

    /// Removes a copy. False if there is none.
    pub fn remove(&mut self, slot: u32, index: u32) -> bool {
        let Some(copy) = self.copies.remove(&(slot, index)) else { return false };
        let charge = Retained::charge(copy.length());
        self.taken -= charge;
        if let Some(own) = self.by_slot.get_mut(&slot) {
            *own -= charge;
            if *own == 0 {
                self.by_slot.remove(&slot);
            }
        }
        true
    }

    /// Removes all copies of a virtual interface.
    pub fn remove_all(&mut self, slot: u32) {
        while let Some((&(_, index), _)) = self.copies.range((slot, 0)..=(slot, u32::MAX)).next() {
            self.remove(slot, index);
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        *self = Copies::default();
    }
}

impl Retained {
    /// Copies `length` bytes from the front of a side; `None` if the memory cannot be read, is in
    /// too many runs, or there is no memory for the copy. `schedule` counts the work.
    pub(super) fn copy<M: GuestMemory>(
        from: &Side<'_, M>,
        length: u64,
        schedule: &mut Schedule,
    ) -> Option<Retained> {
        let count = length.div_ceil(8) as usize;
        let mut words = Vec::new();
        words.try_reserve_exact(count).ok()?;
        words.resize_with(count, AtomicU64::default);
        let words = words.into_boxed_slice();
        let kept = Retained { words, span: [Span { region: 0, offset: 0, length }] };
        let copied = copy(from, &kept.side(from.keys, 0), length, schedule).ok()?;
        (copied == length).then_some(kept)
    }

    fn length(&self) -> u64 {
        self.span[0].length
    }

    /// The bytes that a copy of this length takes from the pool.
    const fn charge(length: u64) -> u64 {
        length.next_multiple_of(8) + OVERHEAD
    }

    /// The copy as a side of a transfer, from byte `skip` on.
    pub fn side<'a>(&'a self, keys: &'a Keys, skip: u64) -> Side<'a, Retained> {
        Side { memory: self, keys, spans: &self.span, skip }
    }

    /// Copies bytes out, from `offset`.
    pub fn read(&self, offset: u32, into: &mut [u8]) -> Result<(), Unreachable> {
        GuestMemory::read(self, offset.into(), into).map_err(|_| Unreachable::Source)
    }
}

impl GuestMemory for Retained {
    fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
        let (addr, len) = (usize::try_from(addr), usize::try_from(len));
        let (Ok(addr), Ok(len)) = (addr, len) else { return Err(DmaError) };
        SharedSlice::from(&self.words[..]).get(addr, len).map_err(|_| DmaError)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::transfer::get;

    fn kept<M: GuestMemory>(from: &Side<'_, M>, length: u64) -> Option<Retained> {
        Retained::copy(from, length, &mut Schedule::new())
    }

    struct Bytes([AtomicU64; 4]);

    impl GuestMemory for Vec<AtomicU64> {
        fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
            SharedSlice::from(&self[..]).get(addr as usize, len as usize).map_err(|_| DmaError)
        }
    }

    impl GuestMemory for Bytes {
        fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
            SharedSlice::from(&self.0[..]).get(addr as usize, len as usize).map_err(|_| DmaError)
        }
    }

    #[test]
    fn a_copy_has_the_bytes_and_gives_its_room_back() {
        let (memory, keys) = (Bytes([const { AtomicU64::new(0) }; 4]), Keys::new());
        let mut copies = Copies::default();
        memory.0[1].store(u64::from_le_bytes(*b"abcdefgh"), Ordering::Relaxed);
        let spans = [Span { region: 0, offset: 9, length: 6 }];
        let side = Side { memory: &memory, keys: &keys, spans: &spans, skip: 0 };
        copies.insert(3, 7, kept(&side, 6).expect("readable"));
        assert!(copies.taken >= 6);
        memory.0[1].store(0, Ordering::Relaxed);
        let kept = copies.get(3, 7).expect("a copy");
        let mut bytes = [0; 4];
        kept.read(2, &mut bytes).expect("within");
        assert_eq!(&bytes, b"defg");
        let mut all = [0; 5];
        get(&kept.side(&keys, 1), &mut all).expect("within");
        assert_eq!(&all, b"cdefg");
        assert!(copies.get(3, 8).is_none() && copies.get(4, 7).is_none());
        assert!(copies.remove(3, 7) && !copies.remove(3, 7));
        assert_eq!(copies.taken, 0);
    }

    #[test]
    fn the_pool_has_an_end_and_each_virtual_interface_its_own_copies() {
        let (memory, keys) = (Bytes([const { AtomicU64::new(0) }; 4]), Keys::new());
        let spans = [Span { region: 0, offset: 0, length: 64 }];
        let side = Side { memory: &memory, keys: &keys, spans: &spans, skip: 0 };
        assert!(kept(&side, 64).is_none(), "the memory has 32 bytes");
        let mut copies = Copies::default();
        for (slot, index) in [(3, 0), (3, u32::MAX), (4, 0), (2, 9)] {
            copies.insert(slot, index, kept(&side, 32).expect("readable"));
        }
        copies.remove_all(3);
        assert!(copies.get(3, 0).is_none() && copies.get(3, u32::MAX).is_none());
        assert!(copies.get(4, 0).is_some() && copies.get(2, 9).is_some());
        assert_eq!(copies.taken, 2 * Retained::charge(32));
        copies.insert(4, 0, kept(&side, 8).expect("readable"));
        assert_eq!(copies.taken, Retained::charge(32) + Retained::charge(8));
        assert!(!copies.has_room(4, LONGEST + 1) && copies.has_room(4, LONGEST));
        copies.taken = POOL - 2 * (OVERHEAD + 8);
        assert!(copies.has_room(7, 8) && !copies.has_room(7, 9));
        copies.clear();
        assert_eq!((copies.taken, copies.get(4, 0).is_none()), (0, true));
    }

    /// However many copies some keep, there is room for those of another one.
    #[test]
    fn those_whose_peers_never_answer_leave_a_share_to_the_others() {
        let words: Vec<AtomicU64> = (0..1 << 13).map(AtomicU64::new).collect();
        let keys = Keys::new();
        let spans = [Span { region: 0, offset: 0, length: 1 << 16 }];
        let side = Side { memory: &words, keys: &keys, spans: &spans, skip: 0 };
        let mut copies = Copies::default();
        let mut kept_by = |slot: u32| {
            let all = (0..).take_while(|index| {
                let room = copies.has_room(slot, 1 << 16);
                if room {
                    copies.insert(slot, *index, kept(&side, 1 << 16).expect("readable"));
                }
                room
            });
            all.count()
        };
        let counts: Vec<usize> = (0..5).map(&mut kept_by).collect();
        // Half of what is free, each.
        assert_eq!(counts, [127, 64, 32, 16, 8]);
        (0..4).for_each(|slot| copies.remove_all(slot));
        assert_eq!((copies.by_slot.len(), copies.taken), (1, 8 * Retained::charge(1 << 16)));
    }

    #[test]
    fn a_copy_is_work_and_its_runs_have_a_bound() {
        let words: Vec<AtomicU64> = (0..1 << 14).map(AtomicU64::new).collect();
        let keys = Keys::new();
        for (runs, length, units) in [(1, 8, 0), (1, 128 << 10, 8), (4096, 16, 516), (4097, 16, 516)] {
            // From the last one to the first one.
            let spans: Vec<Span> = (0..runs)
                .map(|n| Span { region: 0, offset: (runs - 1 - n) * (length + 8), length })
                .collect();
            let side = Side { memory: &words, keys: &keys, spans: &spans, skip: 0 };
            let mut schedule = Schedule::new();
            let copy = Retained::copy(&side, runs * length, &mut schedule);
            assert_eq!((schedule.done(), copy.is_some()), (units, runs <= 4096));
            let Some(copy) = copy else { continue };
            let [mut now, mut then] = [(); 2].map(|()| alloc::vec![0; (runs * length) as usize]);
            get(&side, &mut then).expect("readable");
            copy.read(0, &mut now).expect("within");
            assert!(now == then);
        }
    }
}

//! Copies of messages that have left and are not acknowledged (Reliable Delivery).
//!
//! Such a message's descriptor is complete, so its memory is the consumer's again. A retry reads
//! the copy. All copies of a NIC are taken from one pool; without room a message is complete when
//! it is acknowledged.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::vi::Reliability;
use nic_abi::wqe::{Header, Opcode};
use platform::SharedSlice;

use super::Descriptor;
use crate::Frontend;
use crate::keys::{Keys, Span};
use crate::memory::{DmaError, GuestMemory};
use crate::nic::Nic;
use crate::qp::{Qp, Work};
use crate::transfer::{Side, Spans, Unreachable, get};

/// Bytes of all copies of a NIC at most.
const POOL: u64 = 16 << 20;
/// Bytes of one copy at most: what a message costs beyond its own bytes is small.
const LONGEST: u64 = 4 << 20;

/// How many bytes the copies of a NIC take.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<AtomicU64>);

impl Pool {
    fn take(&self, bytes: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= POOL);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// The copy of a message.
pub(crate) struct Retained {
    words: Box<[AtomicU64]>,
    span: [Span; 1],
    /// What it takes from the pool.
    charge: u64,
    pool: Pool,
}

impl Retained {
    /// Copies `length` bytes from the front of a side; `None` without room, or if the memory cannot
    /// be read.
    pub fn copy<M: GuestMemory>(pool: &Pool, from: &Side<'_, M>, length: u64) -> Option<Arc<Retained>> {
        let count = length.div_ceil(8);
        // The copy itself, and a fixed part for what keeps it.
        let charge = 8 * count + 64;
        if length > LONGEST || !pool.take(charge) {
            return None;
        }
        // From here on the pool is given back by drop.
        let mut kept = Retained {
            words: Box::default(),
            span: [Span { region: 0, offset: 0, length }],
            charge,
            pool: pool.clone(),
        };
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(8 * count as usize).ok()?;
        bytes.resize(8 * count as usize, 0);
        get(from, &mut bytes[..length as usize]).ok()?;
        let mut words = Vec::new();
        words.try_reserve_exact(count as usize).ok()?;
        let (chunks, _) = bytes.as_chunks();
        words.extend(chunks.iter().map(|chunk| AtomicU64::new(u64::from_le_bytes(*chunk))));
        kept.words = words.into_boxed_slice();
        Some(Arc::new(kept))
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

impl Drop for Retained {
    fn drop(&mut self) {
        self.pool.0.fetch_sub(self.charge, Ordering::Relaxed);
    }
}

impl Qp {
    /// The copy of a work request that has left.
    #[inline]
    pub(in crate::qp) fn copy_of(&self, work: &Work) -> Option<Arc<Retained>> {
        self.vi.as_ref()?.retained.get(&Descriptor::of(work.args).index).cloned()
    }

    /// Whether the current work request has left, and is read from its copy.
    #[inline]
    pub(in crate::qp) fn has_copy(&self) -> bool {
        self.vi.is_some() && self.copy_of(&self.send.work).is_some()
    }

    /// The current work request has left by the short cut, and no answer came. On Reliable Delivery
    /// it is complete, if there is room for a copy of a Send or RDMA Write.
    pub(in crate::qp) fn leave<F: Frontend>(&mut self, nic: &mut Nic<F>) {
        if !self.has_level(Reliability::Delivery) || self.has_copy() {
            return;
        }
        let work = &self.send.work;
        let Some(kept) = self.copy(nic, work) else { return };
        let (header, args) = (work.header, work.args);
        self.complete_retained(nic, &header, args, kept);
        // Its place in the ring is free.
        self.send.head = self.send.head.wrapping_add(self.send.work.blocks);
        self.send.work.blocks = 0;
    }

    /// The last packet of work request `id` has left, on Reliable Delivery. It is complete, if
    /// there is room for a copy, and all Sends and RDMA Writes before it are complete.
    pub(in crate::qp) fn flight_left<F: Frontend>(&mut self, nic: &mut Nic<F>, id: u32) {
        let Some(requests) = &self.requests else { return };
        let mut left = None;
        for work in requests.up_to(id) {
            if let Some(earlier) = left.replace(work)
                && earlier.opcode != Opcode::Read
                && self.copy_of(earlier).is_none()
            {
                return;
            }
        }
        let Some(work) = left.filter(|work| self.copy_of(work).is_none()) else { return };
        let Some(kept) = self.copy(nic, work) else { return };
        let (header, args) = (work.header, work.args);
        self.complete_retained(nic, &header, args, kept);
    }

    /// A copy of what a work request sends.
    fn copy<F: Frontend>(&self, nic: &Nic<F>, work: &Work) -> Option<Arc<Retained>> {
        let mut local = Spans::new();
        if work.opcode == Opcode::Read || self.check_memory(nic, work, &mut local).is_err() {
            return None;
        }
        Retained::copy(&nic.retained, &nic.side(&local, 0), work.total)
    }

    fn complete_retained<F: Frontend>(
        &mut self,
        nic: &mut Nic<F>,
        header: &Header,
        args: [u64; 4],
        kept: Arc<Retained>,
    ) {
        let descriptor = Descriptor::of(args);
        self.complete_descriptor(nic, header, &descriptor, Status::Success, NO_FIELD);
        if let Some(vi) = &mut self.vi {
            vi.retained.insert(descriptor.index, kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes([AtomicU64; 4]);

    impl GuestMemory for Bytes {
        fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
            SharedSlice::from(&self.0[..]).get(addr as usize, len as usize).map_err(|_| DmaError)
        }
    }

    #[test]
    fn a_copy_has_the_bytes_and_gives_its_room_back() {
        let (memory, keys, pool) = (Bytes([const { AtomicU64::new(0) }; 4]), Keys::new(), Pool::default());
        memory.0[1].store(u64::from_le_bytes(*b"abcdefgh"), Ordering::Relaxed);
        let spans = [Span { region: 0, offset: 9, length: 6 }];
        let side = Side { memory: &memory, keys: &keys, spans: &spans, skip: 0 };
        let kept = Retained::copy(&pool, &side, 6).expect("room");
        assert!(pool.0.load(Ordering::Relaxed) >= 6);
        memory.0[1].store(0, Ordering::Relaxed);
        let mut bytes = [0; 4];
        kept.read(2, &mut bytes).expect("within");
        assert_eq!(&bytes, b"defg");
        let mut all = [0; 5];
        get(&kept.side(&keys, 1), &mut all).expect("within");
        assert_eq!(&all, b"cdefg");
        drop(kept);
        assert_eq!(pool.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_pool_has_an_end_and_a_failed_copy_takes_nothing() {
        let (memory, keys, pool) = (Bytes([const { AtomicU64::new(0) }; 4]), Keys::new(), Pool::default());
        let spans = [Span { region: 0, offset: 0, length: 64 }];
        let side = Side { memory: &memory, keys: &keys, spans: &spans, skip: 0 };
        assert!(Retained::copy(&pool, &side, 64).is_none(), "the memory has 32 bytes");
        assert_eq!(pool.0.load(Ordering::Relaxed), 0);
        assert!(Retained::copy(&pool, &side, LONGEST + 1).is_none());
        assert!(pool.take(POOL));
        assert!(Retained::copy(&pool, &side, 8).is_none());
        assert_eq!(pool.0.load(Ordering::Relaxed), POOL);
    }
}

//! Moving bytes from one list of spans to another: the one copy that a message costs.

use heapless::Vec;
use platform::sync::atomic::{Ordering, fence};

use crate::keys::{Keys, Span};
use crate::limits::MAX_VI_SEGMENTS;
use crate::memory::GuestMemory;
use crate::schedule::Schedule;

/// The memory of one side of a message.
pub(crate) type Spans = Vec<Span, MAX_VI_SEGMENTS>;

/// One side of a transfer.
pub(crate) struct Side<'a, M> {
    pub memory: &'a M,
    pub keys: &'a Keys,
    pub spans: &'a [Span],
    /// Bytes to skip at the front.
    pub skip: u64,
}

/// Which side's memory could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    Source,
    Target,
}

/// Runs of contiguous memory that one transfer copies at most, which bounds its time where runs are
/// short.
const MAX_RUNS: u32 = 4096;

/// A position in a list of spans.
struct Cursor<'a> {
    spans: &'a [Span],
    /// Bytes of the first span before the cursor.
    done: u64,
}

impl<'a> Cursor<'a> {
    #[inline]
    fn new(spans: &'a [Span], skip: u64) -> Cursor<'a> {
        let mut cursor = Cursor { spans, done: skip };
        cursor.settle();
        cursor
    }

    /// Skips the spans that end before the cursor.
    #[inline]
    fn settle(&mut self) {
        while let [first, rest @ ..] = self.spans
            && self.done >= first.length
        {
            self.done -= first.length;
            self.spans = rest;
        }
    }

    /// Bus address and contiguous bytes at the cursor; `None` if the region is not linked any more,
    /// `Some(None)` at the end.
    #[inline]
    fn run(&self, keys: &Keys) -> Option<Option<(u64, u64)>> {
        let Some(span) = self.spans.first() else { return Some(None) };
        let (addr, contiguous) = keys.translate(span.region, span.offset.checked_add(self.done)?)?;
        Some(Some((addr, contiguous.min(span.length - self.done))))
    }

    #[inline]
    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        self.settle();
    }
}

/// Bytes, and runs, that are copied in a unit of work. What is less counts as nothing: the work
/// request counts.
const UNIT_BYTES: u64 = 16 << 10;
const UNIT_RUNS: u32 = 8;

/// Copies up to `length` bytes; fewer only where a list ends or where runs are very short. Returns
/// how many. `schedule` counts the work.
#[inline]
pub(crate) fn copy<A: GuestMemory, B: GuestMemory>(
    from: &Side<'_, A>,
    to: &Side<'_, B>,
    length: u64,
    schedule: &mut Schedule,
) -> Result<u64, Unreachable> {
    let (mut source, mut target) = (Cursor::new(from.spans, from.skip), Cursor::new(to.spans, to.skip));
    let mut copied = 0;
    let mut runs = 0;
    while copied < length && runs < MAX_RUNS {
        runs += 1;
        let Some((source_addr, source_run)) = source.run(from.keys).ok_or(Unreachable::Source)? else {
            break;
        };
        let Some((target_addr, target_run)) = target.run(to.keys).ok_or(Unreachable::Target)? else { break };
        let run = source_run.min(target_run).min(length - copied);
        let read = from.memory.get(source_addr, run).map_err(|_| Unreachable::Source)?;
        let write = to.memory.get(target_addr, run).map_err(|_| Unreachable::Target)?;
        read.copy_to(&write).map_err(|_| Unreachable::Target)?;
        source.advance(run);
        target.advance(run);
        copied += run;
    }
    schedule.charge((copied / UNIT_BYTES) as u32 + runs / UNIT_RUNS);
    Ok(copied)
}

/// Fills `into` from the front of a side.
pub(crate) fn get<M: GuestMemory>(from: &Side<'_, M>, into: &mut [u8]) -> Result<(), Unreachable> {
    let mut source = Cursor::new(from.spans, from.skip);
    let mut rest = into;
    while !rest.is_empty() {
        let (addr, run) = source.run(from.keys).flatten().ok_or(Unreachable::Source)?;
        let here = (run as usize).min(rest.len());
        let (now, later) = rest.split_at_mut(here);
        from.memory.read(addr, now).map_err(|_| Unreachable::Source)?;
        source.advance(here as u64);
        rest = later;
    }
    Ok(())
}

/// Writes `bytes` to the front of a side, the last byte after all others: programs poll memory for
/// it, and then read the others without waiting for a completion.
pub(crate) fn put<M: GuestMemory>(to: &Side<'_, M>, bytes: &[u8]) -> Result<(), Unreachable> {
    let mut target = Cursor::new(to.spans, to.skip);
    let mut rest = bytes;
    while !rest.is_empty() {
        let (addr, run) = target.run(to.keys).flatten().ok_or(Unreachable::Target)?;
        let (now, later) = rest.split_at((run as usize).min(rest.len()));
        match now.split_last() {
            Some((last, before)) if later.is_empty() => {
                to.memory.write(addr, before).map_err(|_| Unreachable::Target)?;
                fence(Ordering::Release);
                let place = addr + before.len() as u64;
                to.memory.write(place, core::slice::from_ref(last)).map_err(|_| Unreachable::Target)?;
            }
            _ => to.memory.write(addr, now).map_err(|_| Unreachable::Target)?,
        }
        target.advance(now.len() as u64);
        rest = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use platform::{Instant, SharedSlice};

    use super::*;
    use crate::DmaError;

    struct Bytes([AtomicU64; 1 << 14]);

    impl GuestMemory for Bytes {
        fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
            SharedSlice::from(&self.0[..]).get(addr as usize, len as usize).map_err(|_| DmaError)
        }
    }

    #[test]
    fn bytes_and_runs_are_work() {
        let (memory, keys) = (Bytes([const { AtomicU64::new(0) }; 1 << 14]), Keys::new());
        for (pieces, length, units) in [(1, 64, 0), (1, 64 << 10, 4), (16, 8, 2), (16, 4 << 10, 6)] {
            let mut spans = Spans::new();
            for n in 0..pieces {
                // With a gap, so that each piece is a run.
                let span = Span { region: 0, offset: n * (length + 8), length };
                assert!(spans.push(span).is_ok());
            }
            let side = |spans| Side { memory: &memory, keys: &keys, spans, skip: 0 };
            // A poll with so much room is over, and one with more is not.
            for budget in [units, units + 1] {
                let mut schedule = Schedule::new();
                schedule.begin(Instant::ZERO, budget);
                let copied = copy(&side(&spans), &side(&spans), pieces * length, &mut schedule);
                assert_eq!((copied, schedule.poll_is_over()), (Ok(pieces * length), budget == units));
            }
        }
    }

    /// Memory that writes down where it is written.
    struct Written(Bytes, core::cell::RefCell<alloc::vec::Vec<(u64, usize)>>);

    impl GuestMemory for Written {
        fn get(&self, addr: u64, len: u64) -> Result<SharedSlice<'_>, DmaError> {
            self.0.get(addr, len)
        }

        fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaError> {
            self.1.borrow_mut().push((addr, from.len()));
            self.0.write(addr, from)
        }
    }

    #[test]
    fn the_last_byte_is_written_after_all_others() {
        let (memory, keys) =
            (Written(Bytes([const { AtomicU64::new(0) }; 1 << 14]), Default::default()), Keys::new());
        let mut spans = Spans::new();
        for (offset, length) in [(0, 10), (64, 20)] {
            assert!(spans.push(Span { region: 0, offset, length }).is_ok());
        }
        let side = Side { memory: &memory, keys: &keys, spans: &spans, skip: 2 };
        for (bytes, writes) in [
            (&[7; 24][..], &[(2, 8), (64, 15), (79, 1)][..]),
            (&[8; 8], &[(2, 7), (9, 1)]),
            (&[9], &[(2, 0), (2, 1)]),
            (&[], &[]),
        ] {
            assert_eq!(put(&side, bytes), Ok(()));
            assert_eq!(memory.1.take(), writes);
        }
    }
}

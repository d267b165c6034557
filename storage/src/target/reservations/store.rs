//! The state disk: its two slots, of which each change writes one and flushes it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use block::{Data, Disk, Fault, Piece, Request, Submit};
use platform::planted::{Bug, planted};
use platform::{DmaBuffer, Instant, Platform, heap};

use super::engine::Reservation;
use super::state::{self, MOST_RECORDS, Record, SLOT};
use crate::Error;
use crate::attention::Attention;

/// Bytes of a request.
const PIECE: usize = 64 << 10;

/// How far a write has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// So many bytes are written, and the disk has the next ones or not yet.
    Writing {
        done: usize,
        has_request: bool,
    },
    Flushing {
        has_request: bool,
    },
}

/// See the module's documentation.
pub(crate) struct Store {
    disk: Arc<dyn Disk>,
    memory: Arc<DmaBuffer>,
    /// The state that is written, as bytes.
    bytes: Vec<u8>,
    block_size: usize,
    piece: usize,
    /// The generation of the newest state, and the slot of the next one.
    generation: u64,
    next: usize,
    phase: Phase,
    /// When the disk got the request that it has.
    since: u64,
    /// What persists of namespaces that are not exported now.
    others: Vec<Record>,
}

impl Store {
    /// Opens a state disk and reads what persists. Blocks for the disk, until `deadline` at most.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        platform: &Arc<dyn Platform>,
        attention: &Arc<Attention>,
        deadline: Instant,
    ) -> Result<Store, Error> {
        let geometry = disk.geometry();
        let block_size = geometry.block_size as usize;
        if !block_size.is_power_of_two() || !(512..=4096).contains(&block_size) {
            return Err(Error::Config("a state disk has blocks of 512, 1024, 2048 or 4096 bytes"));
        }
        if geometry.blocks < (2 * SLOT / block_size) as u64 {
            return Err(Error::Config("a state disk has 512 KiB at least"));
        }
        if geometry.is_read_only {
            return Err(Error::Config("the state disk is read-only"));
        }
        let piece = PIECE.min(geometry.most_bytes as usize & !(block_size - 1));
        if piece == 0 || geometry.most_pieces == 0 {
            return Err(Error::Config("the state disk takes no requests of a block"));
        }
        let memory = DmaBuffer::new(platform, SLOT, 4096).map_err(|_| Error::OutOfMemory)?;
        let memory = heap::arc(memory).map_err(|_| Error::OutOfMemory)?;
        let waker = attention.clone();
        disk.watch(Some(Arc::new(move || waker.signal.raise())));
        let mut store = Store {
            disk: disk.clone(),
            memory,
            bytes: Vec::with_capacity(SLOT),
            block_size,
            piece,
            generation: 0,
            next: 0,
            phase: Phase::Idle,
            since: 0,
            others: Vec::new(),
        };
        let mut slots = [state::Slot::Empty, state::Slot::Empty];
        for (number, slot) in slots.iter_mut().enumerate() {
            store.read(number, platform, attention, deadline)?;
            store.bytes.resize(SLOT, 0);
            // The memory is as long.
            let _ = store.memory.read(0, &mut store.bytes);
            *slot = state::read(&store.bytes);
        }
        let (generation, records, next) = state::choose(slots).map_err(Error::Config)?;
        (store.generation, store.others, store.next) = (generation, records, next);
        Ok(store)
    }

    /// Reads a slot into the memory.
    fn read(
        &mut self,
        slot: usize,
        platform: &Arc<dyn Platform>,
        attention: &Arc<Attention>,
        deadline: Instant,
    ) -> Result<(), Error> {
        const FAILED: Error = Error::Config("the state disk cannot be read");
        for done in (0..SLOT).step_by(self.piece) {
            let pieces = [Piece { offset: done, len: self.piece.min(SLOT - done) }];
            let into = Data { buffer: &self.memory, pieces: &pieces };
            let block = self.block(slot, done);
            self.disk.submit(&Request::Read { block, into }, 0).map_err(|_| FAILED)?;
            let mut ended = None;
            loop {
                let seen = attention.signal.value();
                self.disk.poll(1, &mut |_, result| ended = Some(result));
                match ended {
                    Some(Ok(())) => break,
                    Some(Err(_)) => return Err(FAILED),
                    None if platform.now() >= deadline => return Err(FAILED),
                    None if self.disk.arm() => {}
                    None => _ = attention.signal.wait(seen, Some(deadline)),
                }
            }
        }
        Ok(())
    }

    fn block(&self, slot: usize, at: usize) -> u64 {
        ((slot * SLOT + at) / self.block_size) as u64
    }

    /// Takes out what persists of a namespace.
    pub(crate) fn take(&mut self, uuid: &[u8; 16]) -> Option<Reservation> {
        let place = self.others.iter().position(|record| record.uuid == *uuid)?;
        Some(self.others.remove(place).reservation)
    }

    /// Keeps what persists of a namespace that is exported no more.
    pub(crate) fn put(&mut self, uuid: [u8; 16], reservation: Reservation) {
        self.others.push(Record { uuid, reservation });
    }

    /// Begins to write a state: of the namespaces that are exported, and what persists of others.
    /// The oldest of those make room, if need be.
    pub(crate) fn begin<'a>(
        &mut self,
        exported: impl Iterator<Item = (&'a [u8; 16], &'a Reservation)> + Clone,
        now: u64,
    ) {
        let count = exported.clone().count();
        let spare = (count + self.others.len()).saturating_sub(MOST_RECORDS);
        self.others.drain(..spare.min(self.others.len()));
        let mut records: Vec<(&[u8; 16], &Reservation)> = exported.collect();
        records.extend(self.others.iter().map(|record| (&record.uuid, &record.reservation)));
        state::write(self.generation + 1, records.into_iter(), &mut self.bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(self.block_size), 0);
        // A slot has room for all records.
        let _ = self.memory.write(0, &self.bytes);
        self.phase = Phase::Writing { done: 0, has_request: false };
        self.since = now;
        self.submit();
    }

    /// Whether a write is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Whether the disk has a request.
    pub(crate) fn has_request(&self) -> bool {
        matches!(self.phase, Phase::Writing { has_request: true, .. } | Phase::Flushing { has_request: true })
    }

    /// Since when the disk has finished nothing, if it has something to do.
    pub(crate) fn since(&self) -> Option<u64> {
        self.is_busy().then_some(self.since)
    }

    /// Gives the disk the next request. If it has no room, the next poll tries again.
    fn submit(&mut self) -> Option<Result<(), Fault>> {
        let submitted = match self.phase {
            Phase::Writing { done, has_request: false } => {
                let pieces = [Piece { offset: done, len: self.piece.min(self.bytes.len() - done) }];
                let from = Data { buffer: &self.memory, pieces: &pieces };
                let block = self.block(self.next, done);
                self.disk.submit(&Request::Write { block, from, fua: false }, 0)
            }
            Phase::Flushing { has_request: false } => self.disk.submit(&Request::Flush, 0),
            _ => return None,
        };
        match submitted {
            Ok(()) => {
                self.phase = match self.phase {
                    Phase::Writing { done, .. } => Phase::Writing { done, has_request: true },
                    _ => Phase::Flushing { has_request: true },
                };
                None
            }
            Err(Submit::Busy) => None,
            Err(Submit::Fault(fault)) => {
                self.phase = Phase::Idle;
                Some(Err(fault))
            }
        }
    }

    /// Takes what the disk has done. How the write ended, once it has.
    pub(crate) fn poll(&mut self, now: u64) -> Option<Result<(), Fault>> {
        let mut ended = None;
        self.disk.poll(1, &mut |_, result| ended = Some(result));
        if let Some(result) = ended {
            self.since = now;
            if let Err(fault) = result {
                self.phase = Phase::Idle;
                return Some(Err(fault));
            }
            self.phase = match self.phase {
                Phase::Writing { done, .. } if done + self.piece < self.bytes.len() => {
                    Phase::Writing { done: done + self.piece, has_request: false }
                }
                Phase::Writing { .. } if !planted(Bug::StateUnflushed) => {
                    Phase::Flushing { has_request: false }
                }
                Phase::Writing { .. } | Phase::Flushing { .. } | Phase::Idle => {
                    self.phase = Phase::Idle;
                    self.generation += 1;
                    self.next = 1 - self.next;
                    return Some(Ok(()));
                }
            };
        }
        self.submit()
    }

    /// Lets the disk wake the thread. True if it may have finished something.
    pub(crate) fn arm(&self) -> bool {
        self.is_busy() && self.disk.arm()
    }

    /// Ends the calls of the routine.
    pub(crate) fn close(&self) {
        self.disk.watch(None);
    }
}

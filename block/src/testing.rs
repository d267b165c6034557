//! What the unit tests need: memory, and a disk's consumer.

extern crate std;

use alloc::sync::Arc;
use std::cell::RefCell;
use std::vec::Vec;

use platform::{DmaBuffer, Platform};

use crate::{Data, Disk, Fault, Geometry, Piece, Request, Submit};

/// What a small disk with a cache is like.
pub(crate) const GEOMETRY: Geometry = Geometry {
    block_size: 512,
    blocks: 64,
    is_read_only: false,
    has_volatile_cache: true,
    discard: true,
    write_zeroes: true,
    most_bytes: 16384,
    most_pieces: 4,
    queue_depth: 6,
};

/// A platform with some megabytes.
pub(crate) fn platform() -> Arc<dyn Platform> {
    std::thread_local! {
        static MACHINE: RefCell<Option<host::Machine>> = const { RefCell::new(None) };
    }
    MACHINE.with_borrow_mut(|machine| {
        machine.get_or_insert_with(|| host::Machine::with_memory(0, 16 << 20)).platform()
    })
}

/// A buffer of zeros.
pub(crate) fn memory(len: usize) -> Arc<DmaBuffer> {
    Arc::new(DmaBuffer::new(&platform(), len, 64).expect("memory"))
}

/// A disk with these queues, of which the first is the disk itself. A test tells them apart by
/// their sizes.
pub(crate) struct Queued(pub(crate) Vec<Arc<dyn Disk>>);

impl Disk for Queued {
    fn geometry(&self) -> Geometry {
        self.0[0].geometry()
    }

    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit> {
        self.0[0].submit(request, token)
    }

    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        self.0[0].poll(most, into)
    }

    fn watch(&self, routine: Option<Arc<dyn Fn() + Send + Sync>>) {
        self.0[0].watch(routine);
    }

    fn arm(&self) -> bool {
        self.0[0].arm()
    }

    fn queue(&self, number: usize) -> Option<Arc<dyn Disk>> {
        self.0.get(number).cloned()
    }
}

/// Bytes that say in which block they are, and who wrote them.
pub(crate) fn pattern(block: u64, len: usize, writer: u8) -> Vec<u8> {
    let byte = |i: usize| (block as u8).wrapping_mul(31) ^ (i as u8).wrapping_mul(7) ^ writer;
    (0..len).map(byte).collect()
}

/// Polls until nothing is left.
pub(crate) fn completions(disk: &dyn Disk) -> Vec<(u64, Result<(), Fault>)> {
    let mut all = Vec::new();
    while disk.poll(3, &mut |token, result| all.push((token, result))) > 0 {}
    all
}

/// Carries out one request.
#[track_caller]
pub(crate) fn run(disk: &dyn Disk, request: &Request<'_>) -> Result<(), Fault> {
    disk.submit(request, 77).expect("room");
    let done = completions(disk);
    let [(77, result)] = done[..] else { panic!("{done:?}") };
    result
}

/// Writes bytes, cut into two pieces.
#[track_caller]
pub(crate) fn write(disk: &dyn Disk, block: u64, bytes: &[u8], fua: bool) -> Result<(), Fault> {
    let buffer = memory(bytes.len());
    buffer.write(0, bytes).expect("within");
    let cut = bytes.len() / 3;
    let pieces = [Piece { offset: 0, len: cut }, Piece { offset: cut, len: bytes.len() - cut }];
    run(disk, &Request::Write { block, from: Data { buffer: &buffer, pieces: &pieces }, fua })
}

/// Reads bytes into two pieces, which lie in the buffer the other way round.
#[track_caller]
pub(crate) fn read(disk: &dyn Disk, block: u64, len: usize) -> Result<Vec<u8>, Fault> {
    let buffer = memory(len);
    let cut = len / 5;
    let pieces = [Piece { offset: len - cut, len: cut }, Piece { offset: 0, len: len - cut }];
    run(disk, &Request::Read { block, into: Data { buffer: &buffer, pieces: &pieces } })?;
    let mut bytes = std::vec![0; len];
    let (front, back) = bytes.split_at_mut(cut);
    buffer.read(len - cut, front).expect("within");
    buffer.read(0, back).expect("within");
    Ok(bytes)
}

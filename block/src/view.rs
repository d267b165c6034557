//! A disk as its owner wants it to be seen: with larger blocks, or for reading only.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use platform::DmaBuffer;

use crate::{Disk, Event, Fault, Geometry, Lease, Loan, Request, Submit};

/// A view of a disk.
///
/// What is left of the disk behind the last whole block is not seen.
pub struct View {
    disk: Arc<dyn Disk>,
    /// The logarithm of how many of the disk's blocks one block has.
    shift: u32,
    is_read_only: bool,
}

/// A disk cannot be seen with blocks of a size that is none of [`Geometry::BLOCK_SIZES`], or less
/// than that of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoView;

impl fmt::Display for NoView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the disk has larger blocks, or none can have that size")
    }
}

impl core::error::Error for NoView {}

impl View {
    /// A disk with blocks of another size, `None` for its own, and perhaps for reading only.
    ///
    /// # Errors
    ///
    /// [`NoView`] if the blocks cannot have this size.
    pub fn new(disk: Arc<dyn Disk>, block_size: Option<u32>, is_read_only: bool) -> Result<View, NoView> {
        let own = disk.geometry().block_size;
        let wanted = block_size.unwrap_or(own);
        if !Geometry::BLOCK_SIZES.contains(&wanted) || wanted < own || own == 0 {
            return Err(NoView);
        }
        Ok(View { disk, shift: wanted.ilog2() - own.ilog2(), is_read_only })
    }

    /// Blocks of the disk.
    fn of_disk(&self, blocks: u64) -> Result<u64, Fault> {
        blocks.checked_mul(1 << self.shift).ok_or(Fault::OutOfRange)
    }
}

impl Disk for View {
    fn geometry(&self) -> Geometry {
        let its = self.disk.geometry();
        Geometry {
            block_size: its.block_size << self.shift,
            blocks: its.blocks >> self.shift,
            is_read_only: its.is_read_only || self.is_read_only,
            ..its
        }
    }

    fn submit(&self, request: &Request<'_>, token: u64) -> Result<(), Submit> {
        self.geometry().check(request)?;
        let request = match *request {
            Request::Read { block, into } => Request::Read { block: self.of_disk(block)?, into },
            Request::Write { block, from, fua } => Request::Write { block: self.of_disk(block)?, from, fua },
            Request::Flush => Request::Flush,
            Request::Discard { block, blocks } => {
                Request::Discard { block: self.of_disk(block)?, blocks: self.of_disk(blocks)? }
            }
            Request::WriteZeroes { block, blocks, may_discard } => {
                let (block, blocks) = (self.of_disk(block)?, self.of_disk(blocks)?);
                Request::WriteZeroes { block, blocks, may_discard }
            }
        };
        self.disk.submit(&request, token)
    }

    fn poll(&self, most: usize, into: &mut dyn FnMut(u64, Result<(), Fault>)) -> usize {
        self.disk.poll(most, into)
    }

    fn event(&self) -> Option<Event> {
        self.disk.event().map(|Event::Resized { blocks }| Event::Resized { blocks: blocks >> self.shift })
    }

    fn watch(&self, routine: Option<Arc<dyn Fn() + Send + Sync>>) {
        self.disk.watch(routine);
    }

    fn arm(&self) -> bool {
        self.disk.arm()
    }

    fn memory(&self) -> Vec<Arc<DmaBuffer>> {
        self.disk.memory()
    }

    fn lend(&self, blocks: Range<u64>, loan: Loan) -> Option<Lease> {
        if self.is_read_only && loan == Loan::Write {
            return None;
        }
        self.disk.lend(self.of_disk(blocks.start).ok()?..self.of_disk(blocks.end).ok()?, loan)
    }

    fn commit(&self, lease: Lease, fua: bool, token: u64) -> Result<(), (Submit, Lease)> {
        self.disk.commit(lease, fua, token)
    }

    fn cancel(&self, lease: Lease) {
        self.disk.cancel(lease);
    }

    fn queue(&self, number: usize) -> Option<Arc<dyn Disk>> {
        let disk = self.disk.queue(number)?;
        Some(Arc::new(View { disk, shift: self.shift, is_read_only: self.is_read_only }))
    }

    fn is_durable(&self) -> bool {
        self.disk.is_durable()
    }

    fn copied(&self) -> u64 {
        self.disk.copied()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;

    use super::*;
    use crate::ram::RamDisk;
    use crate::testing::{Queued, memory, pattern, platform, read, run, write};

    fn disk(blocks: u64) -> Arc<RamDisk> {
        Arc::new(RamDisk::new(&platform(), 512, blocks).expect("memory"))
    }

    #[test]
    fn larger_blocks_are_the_same_bytes_and_what_is_left_at_the_end_is_not_seen() {
        let disk = disk(8 * 5 + 7);
        let view = View::new(disk.clone(), Some(4096), false).expect("a view");
        let geometry = view.geometry();
        assert_eq!((geometry.block_size, geometry.blocks, geometry.is_read_only), (4096, 5, false));
        let bytes = pattern(3, 8192, 1);
        assert_eq!(write(&view, 3, &bytes, false), Ok(()));
        assert_eq!(read(&*disk, 24, 8192), Ok(bytes.clone()));
        assert_eq!(read(&view, 3, 8192), Ok(bytes));
        assert_eq!(run(&view, &Request::WriteZeroes { block: 4, blocks: 1, may_discard: true }), Ok(()));
        assert_eq!(read(&*disk, 32, 4096), Ok(vec![0; 4096]));
        assert_eq!(read(&*disk, 24, 4096), Ok(pattern(3, 8192, 1)[..4096].to_vec()));
        // Not whole blocks, and beyond the last one.
        let buffer = memory(4096);
        let into = |len| [crate::Piece { offset: 0, len }];
        for (block, len, fault) in
            [(0, 512, Fault::Misaligned), (5, 4096, Fault::OutOfRange), (u64::MAX, 4096, Fault::OutOfRange)]
        {
            let pieces = into(len);
            let data = crate::Data { buffer: &buffer, pieces: &pieces };
            let refused = view.submit(&Request::Read { block, into: data }, 1);
            assert_eq!(refused, Err(Submit::Fault(fault)));
        }
        let beyond = Request::Discard { block: 4, blocks: 1 << 62 };
        assert_eq!(view.submit(&beyond, 1), Err(Submit::Fault(Fault::OutOfRange)));
        disk.resize(8 * 9 + 1).expect("memory");
        assert_eq!(view.event(), Some(Event::Resized { blocks: 9 }));
        let whole = View::new(disk, None, false).expect("its own size").geometry();
        assert_eq!((whole.block_size, whole.blocks), (512, 73));
    }

    #[test]
    fn a_disk_that_is_seen_for_reading_takes_no_change_in_any_way() {
        let disk = disk(8192);
        let bytes = pattern(1, 512, 1);
        write(&*disk, 0, &bytes, false).expect("room");
        let view = View::new(disk.clone(), None, true).expect("a view");
        assert!(view.geometry().is_read_only && !disk.geometry().is_read_only);
        let buffer = memory(512);
        let pieces = [crate::Piece { offset: 0, len: 512 }];
        let data = crate::Data { buffer: &buffer, pieces: &pieces };
        for request in [
            Request::Write { block: 0, from: data, fua: false },
            Request::Discard { block: 0, blocks: 1 },
            Request::WriteZeroes { block: 0, blocks: 1, may_discard: true },
        ] {
            assert_eq!(view.submit(&request, 1), Err(Submit::Fault(Fault::ReadOnly)));
        }
        assert!(view.lend(0..2048, Loan::Write).is_none());
        let lease = view.lend(0..1, Loan::Read).expect("it lends");
        view.cancel(lease);
        assert_eq!(read(&view, 0, 512), Ok(bytes));
    }

    #[test]
    fn each_queue_is_seen_in_the_same_way() {
        let (first, second) = (disk(80), disk(80));
        let queued = Arc::new(Queued(vec![first, second.clone()]));
        let view = View::new(queued, Some(4096), true).expect("a view");
        let queue = view.queue(1).expect("a queue");
        assert!(view.queue(2).is_none());
        let geometry = queue.geometry();
        assert_eq!((geometry.block_size, geometry.blocks, geometry.is_read_only), (4096, 10, true));
        let bytes = pattern(3, 4096, 1);
        write(&*second, 24, &bytes, false).expect("room");
        assert_eq!(read(&*queue, 3, 4096), Ok(bytes));
        let discard = Request::Discard { block: 0, blocks: 1 };
        assert_eq!(queue.submit(&discard, 1), Err(Submit::Fault(Fault::ReadOnly)));
    }

    #[test]
    fn blocks_have_sizes_that_there_are() {
        let disk = Arc::new(RamDisk::new(&platform(), 2048, 10).expect("memory"));
        let size = |size| View::new(disk.clone(), Some(size), false).map(|view| view.geometry().blocks);
        assert_eq!((size(2048), size(4096)), (Ok(10), Ok(5)));
        for wrong in [0, 1, 512, 1024, 3000, 8192] {
            assert_eq!(size(wrong), Err(NoView), "{wrong}");
        }
    }
}

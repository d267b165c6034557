//! The size of a disk that may grow and shrink, and whether the consumer knows of it.

use crate::Event;

/// A number of blocks. A disk has it under its lock.
pub(crate) struct Size {
    blocks: u64,
    /// No [`Disk::event`](crate::Disk::event) has told the consumer of the last change.
    is_untold: bool,
    /// No poll came after the last change.
    is_unseen: bool,
}

impl Size {
    pub(crate) const fn new(blocks: u64) -> Size {
        Size { blocks, is_untold: false, is_unseen: false }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Notes the size that the disk has now; false if it is the same as before.
    pub(crate) fn set(&mut self, blocks: u64) -> bool {
        let changes = blocks != self.blocks;
        if changes {
            *self = Size { blocks, is_untold: true, is_unseen: true };
        }
        changes
    }

    /// A poll has come.
    pub(crate) fn see(&mut self) {
        self.is_unseen = false;
    }

    /// Whether a consumer that arms has something to look at.
    pub(crate) fn is_unseen(&self) -> bool {
        self.is_unseen
    }

    /// The event, once.
    pub(crate) fn event(&mut self) -> Option<Event> {
        core::mem::take(&mut self.is_untold).then_some(Event::Resized { blocks: self.blocks })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::ram::RamDisk;
    use crate::simulated::SimulatedDisk;
    use crate::testing::{completions, pattern, platform, read, run, write};
    use crate::{Disk, Fault, Geometry, Request, Submit};

    const BLOCK: usize = 512;
    /// In the middle of a RAM disk's second chunk.
    const BLOCKS: u64 = 2048 + 100;

    /// Each kind of disk, with [`BLOCKS`] blocks, and what resizes it.
    fn each(act: impl Fn(&dyn Disk, &dyn Fn(u64))) {
        let ram = RamDisk::new(&platform(), BLOCK as u32, BLOCKS).expect("memory");
        act(&ram, &|blocks| ram.resize(blocks).expect("memory"));
        let simulated = SimulatedDisk::new(ram.geometry(), 7);
        simulated.resize(BLOCKS);
        act(&simulated, &|blocks| simulated.resize(blocks));
        let cached = SimulatedDisk::new(Geometry { has_volatile_cache: true, ..simulated.geometry() }, 8);
        act(&cached, &|blocks| cached.resize(blocks));
    }

    fn read_one(disk: &dyn Disk, block: u64) -> Option<Box<[u8]>> {
        if disk.submit(&Request::Discard { block, blocks: 1 }, 1) == Err(Submit::Fault(Fault::OutOfRange)) {
            return None;
        }
        completions(disk);
        Some(read(disk, block, BLOCK).expect("it is on the disk").into())
    }

    #[test]
    fn a_disk_that_grows_and_shrinks_keeps_what_it_still_has() {
        each(|disk, resize| {
            let (first, last) = (pattern(0, BLOCK, 1), pattern(BLOCKS - 1, BLOCK, 2));
            assert_eq!(write(disk, 0, &first, true), Ok(()));
            assert_eq!(write(disk, BLOCKS - 1, &last, false), Ok(()));
            assert!(read_one(disk, BLOCKS).is_none());
            for size in [BLOCKS + 1, 5000, 2049, 2048, 2047, 3, 4096, BLOCKS] {
                resize(size);
                assert_eq!(disk.geometry().blocks, size);
                assert!(read_one(disk, size).is_none(), "{size}");
                let blocks = [1, size - 1];
                for block in blocks {
                    assert_eq!(read(disk, 0, BLOCK), Ok(first.clone()));
                    let here = pattern(block, BLOCK, size as u8);
                    assert_eq!(write(disk, block, &here, false), Ok(()), "{block} of {size}");
                    assert_eq!(read(disk, block, BLOCK), Ok(here));
                }
            }
            resize(0);
            assert!(read_one(disk, 0).is_none());
            resize(BLOCKS);
            for block in [0, 1, 2, 2046, 2047, 2048, BLOCKS - 1] {
                assert!(read_one(disk, block).is_some_and(|bytes| bytes.iter().all(|&b| b == 0)), "{block}");
            }
        });
    }

    #[test]
    fn a_growth_in_a_chunk_leaves_the_blocks_before_it() {
        each(|disk, resize| {
            for block in BLOCKS - 3..BLOCKS + 60 {
                resize(block + 1);
                assert_eq!(write(disk, block, &pattern(block, BLOCK, 9), false), Ok(()));
            }
            for block in BLOCKS - 3..BLOCKS + 60 {
                assert_eq!(read(disk, block, BLOCK), Ok(pattern(block, BLOCK, 9)), "{block}");
            }
        });
    }

    #[test]
    fn a_resize_is_an_event_and_wakes_a_consumer_that_is_armed() {
        each(|disk, resize| {
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = calls.clone();
            disk.watch(Some(Arc::new(move || {
                counted.fetch_add(1, Ordering::SeqCst);
            })));
            // An event from before, of one disk.
            disk.event();
            assert_eq!((completions(disk).len(), disk.event()), (0, None));
            assert!(!disk.arm());
            resize(BLOCKS);
            assert_eq!((calls.load(Ordering::SeqCst), disk.event()), (0, None), "it is as large as before");
            resize(BLOCKS + 1);
            resize(BLOCKS - 1);
            assert_eq!(calls.load(Ordering::SeqCst), 1, "armed once");
            assert!(disk.arm(), "no poll has seen it");
            assert_eq!(completions(disk).len(), 0);
            assert!(!disk.arm(), "a consumer that takes no events sleeps");
            assert_eq!(disk.event(), Some(Event::Resized { blocks: BLOCKS - 1 }), "the last one");
            assert_eq!(disk.event(), None);
            resize(BLOCKS);
            assert_eq!(calls.load(Ordering::SeqCst), 2);
            assert_eq!(disk.event(), Some(Event::Resized { blocks: BLOCKS }));
        });
    }

    #[test]
    fn a_ram_disk_that_has_no_memory_to_grow_stays_as_it_is() {
        let disk = RamDisk::new(&platform(), BLOCK as u32, BLOCKS).expect("memory");
        assert_eq!(write(&disk, BLOCKS - 1, &pattern(1, BLOCK, 1), false), Ok(()));
        for blocks in [1 << 30, u64::MAX] {
            assert!(disk.resize(blocks).is_err());
            assert_eq!((disk.geometry().blocks, disk.event()), (BLOCKS, None));
            assert_eq!(read(&disk, BLOCKS - 1, BLOCK), Ok(pattern(1, BLOCK, 1)));
        }
    }

    #[test]
    fn requests_for_blocks_that_are_gone_end_with_an_error() {
        let geometry = RamDisk::new(&platform(), BLOCK as u32, 64).expect("memory").geometry();
        let disk = SimulatedDisk::new(Geometry { has_volatile_cache: true, ..geometry }, 3);
        for (token, block) in [(1, 10), (2, 60)] {
            let zeroes = Request::WriteZeroes { block, blocks: 4, may_discard: false };
            assert_eq!(disk.submit(&zeroes, token), Ok(()));
        }
        disk.resize(62);
        let mut done = completions(&disk);
        done.sort_by_key(|&(token, _)| token);
        assert_eq!(done, [(1, Ok(())), (2, Err(Fault::OutOfRange))]);
        assert_eq!(run(&disk, &Request::Flush), Ok(()));
        disk.power_loss(1);
        assert_eq!(disk.geometry().blocks, 62, "it is as large after a loss of power");
    }
}

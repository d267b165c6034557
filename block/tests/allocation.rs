//! A RAM disk's requests allocate nothing: here any allocation would end the test.

extern crate ferrovia_block as block;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::ram::RamDisk;
use block::{Data, Disk, Piece, Request};
use host::{CountedHeap, Machine};
use platform::DmaBuffer;

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

#[test]
fn submitting_and_polling_allocate_nothing() {
    let machine = Machine::with_memory(0, 16 << 20);
    let disk = RamDisk::new(&machine.platform(), 512, 4096).expect("memory");
    let buffer = Arc::new(DmaBuffer::new(&machine.platform(), 8192, 64).expect("memory"));
    let pieces = [Piece { offset: 4096, len: 4096 }, Piece { offset: 0, len: 4096 }];
    let data = Data { buffer: &buffer, pieces: &pieces };
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    disk.watch(Some(Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })));
    let depth = disk.geometry().queue_depth as u64;
    let mut polled = 0;
    CountedHeap::ending_after(0, || {
        for round in 0..10 {
            assert!(!disk.arm());
            for token in 0..depth {
                let block = 2040 + token % 16;
                let request = match (token + round) % 5 {
                    0 => Request::Read { block, into: data },
                    1 => Request::Write { block, from: data, fua: token % 2 == 0 },
                    2 => Request::Flush,
                    3 => Request::Discard { block, blocks: 1000 },
                    _ => Request::WriteZeroes { block, blocks: 1000, may_discard: false },
                };
                assert_eq!(disk.submit(&request, token), Ok(()));
            }
            assert!(disk.submit(&Request::Flush, 0).is_err());
            while disk.poll(7, &mut |_, result| polled += u64::from(result.is_ok())) > 0 {}
        }
    });
    assert_eq!((polled, calls.load(Ordering::SeqCst)), (10 * depth, 10));
}

//! The heap, pages, DMA memory, modules.

use alloc::boxed::Box;
use alloc::vec::Vec;

use kernel::args::Args;
use kernel::memory::{size, usage};
use platform::DmaBuffer;

use crate::{Failure, Machine, Outcome, Test, check};

/// All tests of this file.
pub const TESTS: &[Test] = &[
    ("kernel.memory.heap_blocks_of_any_size_are_apart", heap_sizes),
    ("kernel.memory.heap_memory_is_used_again", heap_reuse),
    ("kernel.memory.heap_in_random_order_loses_nothing", heap_in_random_order),
    ("kernel.memory.dma_is_zeroed_and_aligned", dma_is_zeroed_and_aligned),
    ("kernel.memory.dma_can_be_half_of_ram", dma_half_of_ram),
    ("kernel.memory.dma_runs_out_with_an_error", dma_runs_out),
    ("kernel.memory.translate_knows_ram_only", translate),
    ("kernel.memory.modules_are_intact", modules),
    ("kernel.args", arguments),
    ("kernel.random", random),
];

fn heap_sizes(_: &Machine) -> Outcome {
    let before = usage();
    {
        let mut blocks = Vec::new();
        for size in [1_usize, 15, 16, 17, 100, 2047, 2048, 2049, 5000, 131_072, 131_073, 1 << 20, 5_000_001] {
            let mut block: Vec<u8> = Vec::with_capacity(size);
            block.resize(size, size as u8);
            blocks.push(block);
        }
        for block in &blocks {
            check(block.iter().all(|b| *b == block.len() as u8), "a block lies over another")?;
        }
    }
    check(usage().heap == before.heap, "some memory was not released")
}

fn heap_reuse(_: &Machine) -> Outcome {
    // In all this allocates many times the RAM, so released memory must be used again.
    for _ in 0..64 {
        let blocks: Vec<Box<[u8; 4096]>> = (0..1000).map(|_| Box::new([1; 4096])).collect();
        check(blocks.len() == 1000, "blocks are missing")?;
        let big: Vec<u8> = alloc::vec![3; 16 << 20];
        check(big.last() == Some(&3), "the big block was overwritten")?;
    }
    Ok(())
}

fn heap_in_random_order(_: &Machine) -> Outcome {
    let before = usage().heap;
    {
        let mut blocks: Vec<(u64, Vec<u64>)> = Vec::new();
        let mut seed = 1_u64;
        for step in 0..20_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let r = (seed >> 33) as usize;
            if blocks.len() > 300 || (r.is_multiple_of(3) && !blocks.is_empty()) {
                let (tag, block) = blocks.swap_remove(r % blocks.len());
                check(block.iter().all(|w| *w == tag), "a block was overwritten")?;
            } else {
                blocks
                    .push((step, alloc::vec![step; 1 + r % if r.is_multiple_of(5) { 20_000 } else { 200 }]));
            }
        }
    }
    check(usage().heap == before, "some memory was not released")
}

fn buffer(m: &Machine, len: usize, align: usize) -> Result<DmaBuffer, Failure> {
    DmaBuffer::new(&m.platform, len, align).map_err(|_| Failure::new("no DMA memory"))
}

fn dma_is_zeroed_and_aligned(m: &Machine) -> Outcome {
    for round in 0..4 {
        for align in [1, 64, 4096, 65_536, 2 << 20] {
            let b = buffer(m, 10_000 + round, align)?;
            check(
                (b.bus() as usize).is_multiple_of(align) && b.addr().is_multiple_of(align),
                "DMA memory is not aligned",
            )?;
            let mut bytes = alloc::vec![1; b.len()];
            check(b.read(0, &mut bytes).is_ok(), "DMA memory cannot be read")?;
            check(bytes.iter().all(|byte| *byte == 0), "DMA memory is not zeroed")?;
            b.slice().fill(0xff);
        }
    }
    Ok(())
}

fn dma_half_of_ram(m: &Machine) -> Outcome {
    let before = usage();
    let len = (size() / 2) as usize;
    for _ in 0..2 {
        let b = buffer(m, len, 4096)?;
        check(b.write(len - 1, &[1]).is_ok() && b.write(len, &[1]).is_err(), "the bounds are wrong")?;
        check(usage().free_pages <= before.free_pages - len, "the memory was free before and after")?;
    }
    check(usage().free_pages == before.free_pages, "some memory was not released")
}

fn dma_runs_out(m: &Machine) -> Outcome {
    let before = usage().free_pages;
    check(m.platform.alloc_dma(usize::MAX, 1).is_err(), "more than the address space")?;
    check(m.platform.alloc_dma(size() as usize, 1).is_err(), "more than the RAM")?;
    check(m.platform.alloc_dma(4096, 1 << 62).is_err(), "an alignment beyond the RAM")?;
    let mut all = Vec::with_capacity(1 << 16);
    while all.len() < all.capacity() {
        match DmaBuffer::new(&m.platform, 1 << 20, 1) {
            Ok(b) => all.push(b),
            Err(_) => break,
        }
    }
    check(all.len() as u64 >= (size() >> 20) / 2, "memory ran out early")?;
    drop(all);
    check(usage().free_pages + (2 << 20) >= before, "some memory was not released")
}

fn translate(m: &Machine) -> Outcome {
    let b = buffer(m, 3 << 20, 4096)?;
    let extent = m.platform.translate(b.addr() + 5).ok_or(Failure::new("DMA memory has an address"))?;
    check(extent.addr == b.bus() + 5 && extent.len >= b.len() as u64 - 5, "wrong extent")?;
    let on_stack = [0_u8; 100];
    let extent = m.platform.translate(on_stack.as_ptr().addr()).ok_or(Failure::new("stacks are RAM"))?;
    check(extent.len >= 100, "a stack is contiguous")?;
    let on_heap = alloc::vec![0_u8; 100_000];
    let extent = m.platform.translate(on_heap.as_ptr().addr()).ok_or(Failure::new("the heap is RAM"))?;
    check(extent.len >= 100_000, "a heap block is contiguous")?;
    for nowhere in [0, 8, 0xfee0_0000, 1 << 45, (1 << 46) + 0x0100, usize::MAX] {
        check(m.platform.translate(nowhere).is_none(), "an address outside of RAM was translated")?;
    }
    Ok(())
}

fn modules(_: &Machine) -> Outcome {
    // With a module there is `module=SUM` on the command line: the sum of its bytes.
    let Some(sum) = kernel::args().get("module") else {
        return check(kernel::modules().len() == 0, "there is a module, but no module=SUM");
    };
    let module = kernel::modules().next().ok_or(Failure::new("no module"))?;
    let found = module.data.iter().fold(0_u64, |sum, byte| sum.wrapping_add(u64::from(*byte)));
    check(sum.parse() == Ok(found), "the module's bytes were changed")
}

fn arguments(_: &Machine) -> Outcome {
    let args = Args::new("log=debug  filter=a one \"two words\" filter=b \"x=y\" key=\"a b\" filter=");
    check(args.get("log") == Some("debug"), "`get` finds the wrong value")?;
    check(args.get("filter") == Some(""), "`get` does not find the last of several values")?;
    check(args.all("filter").eq(["a", "b", ""]), "`all` does not find all values")?;
    check(args.words().eq(["one", "two words", "x=y"]), "`words` finds the wrong words")?;
    check(args.has("two words") && !args.has("two"), "`has` finds the wrong words")?;
    check(args.get("lo").is_none() && args.get("x").is_none(), "`get` finds keys that are not there")?;
    check(
        args.get("key").is_some_and(|v| v.starts_with('a') || v.starts_with('"')),
        "`get` does not find a quoted value",
    )?;
    check(Args::new("  ").words().next().is_none(), "blanks count as words")?;
    check(Args::new("\"open").words().eq(["open"]), "a quote without an end is read wrongly")
}

fn random(_: &Machine) -> Outcome {
    let mut values: Vec<u64> = (0..1000).map(|_| kernel::random_u64()).collect();
    values.sort_unstable();
    values.dedup();
    check(values.len() == 1000, "values repeat")
}

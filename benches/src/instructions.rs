//! How many instructions a post and a reap take, through the whole API, thread-safe as always.
//!
//! The device is a thread of the same process. It is stopped while something is counted and run by hand in between, so
//! the counts are of the consumer's side alone: the API, the agent and the driver.

#![expect(missing_docs, reason = "the benchmark macros make public items of their own")]

use std::hint::black_box;
use std::sync::Arc;

use common::{Failure, Node, Pair, Sizes};
use gungraun::{library_benchmark, library_benchmark_group, main};
use host::{Machine, Paused};
use platform::DmaBuffer;
use privileged_api::{
    AddrMode, DtoCompletion, DtoFlags, IoAddr, Iobl, LmrFlags, LmrHandle, LmrMemory, LmrTriplet, MemPriv,
    RmrContext, make_rdma_addr_absolute,
};

/// Requests of a batch.
const BATCH: usize = 16;
/// Pages of a link.
const PAGES: usize = 16;
const PAGE: usize = 4096;

/// Two connected endpoints in this process, and memory to write from and to.
struct Bench {
    pair: Pair,
    from: Arc<DmaBuffer>,
    into: Arc<DmaBuffer>,
    source: LmrHandle,
    context: RmrContext,
    unlinked: LmrHandle,
    pages: Vec<IoAddr>,
    device: Paused<'static>,
    _node: Node,
}

impl Bench {
    fn new() -> Result<Bench, Failure> {
        // The process ends with the benchmark: the machine may live until then.
        let machine: &'static Machine = Box::leak(Box::new(Machine::new(1)));
        let node = Node::start(machine.platform(), machine.privileged(), machine.devices())?;
        let pair = Pair::connect(node.ia(0)?, node.ia(0)?, Sizes { requests: 64, message: 1 << 20 })?;
        let memory = || {
            DmaBuffer::new(&node.platform, PAGES * PAGE, PAGE)
                .map(Arc::new)
                .map_err(|_| Failure::new("memory"))
        };
        let (from, into) = (memory()?, memory()?);
        let length = (PAGES * PAGE) as u64;
        let register = |side: &common::Side, buffer: &Arc<DmaBuffer>| {
            let memory = LmrMemory::Buffer { buffer, offset: 0 };
            let all = MemPriv::LOCAL | MemPriv::REMOTE;
            side.ia
                .lmr_create(side.pz, memory, length, AddrMode::Absolute, all, LmrFlags::NONE, 0)
                .map_err(Failure::new)
        };
        let (source, _) = register(&pair.a, &from)?;
        let (_, context) = register(&pair.b, &into)?;
        let context = context.ok_or_else(|| Failure::new("no RMR context"))?;
        let unlinked =
            pair.a.ia.lmr_create_unlinked(pair.a.pz, PAGES, LmrFlags::NONE, 0).map_err(Failure::new)?;
        let (io, _) = pair.a.ia.mem_map(from.addr(), 0, PAGES * PAGE).map_err(Failure::new)?;
        let pages = (0..PAGES).map(|n| IoAddr(io.0 + (n * PAGE) as u64)).collect();
        let device = machine.pause();
        let mut bench = Bench { pair, from, into, source, context, unlinked, pages, device, _node: node };
        // Everything has been used once before anything is counted.
        for _ in 0..3 {
            (0..BATCH).for_each(|_| bench.write());
            bench.run_device();
            bench.reap_batch();
            bench.link_and_unlink();
            bench.run_device();
            bench.reap_batch();
        }
        Ok(bench)
    }

    fn ready() -> Bench {
        match Bench::new() {
            Ok(bench) => bench,
            Err(failure) => panic!("no pair of endpoints: {failure}"),
        }
    }

    fn run_device(&mut self) {
        self.device.step();
    }

    #[inline(always)]
    fn write(&self) {
        let a = &self.pair.a;
        let segment = LmrTriplet::new(self.source, self.from.addr() as u64, 64);
        let to = make_rdma_addr_absolute(self.into.addr());
        let posted =
            a.ia.post_rdma_write(a.ep, black_box(&[segment]), 1, DtoFlags::COMPLETION, to, self.context);
        assert!(posted.is_ok());
    }

    #[inline(always)]
    fn reap(&self) {
        assert!(black_box(self.pair.a.ia.evd_dequeue(self.pair.a.requests)).is_ok());
    }

    #[inline(always)]
    fn reap_batch(&self) -> usize {
        let mut done = [DtoCompletion::default(); BATCH];
        let count = self.pair.a.ia.evd_dequeue_n(self.pair.a.requests, black_box(&mut done));
        count.expect("the completions are there")
    }

    #[inline(always)]
    fn link_and_unlink(&self) {
        let a = &self.pair.a;
        let iobl = Iobl::pages(&self.pages, PAGE as u64, 0);
        let length = (PAGES * PAGE) as u64;
        let (addr, rights) = (self.from.addr(), MemPriv::LOCAL | MemPriv::REMOTE);
        let linked = a.ia.lmr_link(
            self.unlinked,
            addr,
            black_box(&iobl),
            length,
            AddrMode::Absolute,
            rights,
            a.ep,
            2,
            DtoFlags::empty(),
        );
        assert!(linked.is_ok());
        assert!(a.ia.lmr_unlink(self.unlinked, a.ep, 3, DtoFlags::COMPLETION).is_ok());
    }
}

/// With `count` completions waiting.
fn completed(count: usize) -> Bench {
    let mut bench = Bench::ready();
    (0..count).for_each(|_| bench.write());
    bench.run_device();
    bench
}

#[library_benchmark]
#[bench::rdma_write_of_one_segment_signalled(Bench::ready())]
fn post(bench: Bench) -> Bench {
    bench.write();
    bench
}

#[library_benchmark]
#[bench::rdma_writes_16(Bench::ready())]
fn post_batch(bench: Bench) -> Bench {
    (0..BATCH).for_each(|_| bench.write());
    bench
}

#[library_benchmark]
#[bench::one_completion(completed(1))]
fn reap(bench: Bench) -> Bench {
    bench.reap();
    bench
}

#[library_benchmark]
#[bench::completions_16(completed(BATCH))]
fn reap_batch(bench: Bench) -> Bench {
    assert_eq!(bench.reap_batch(), BATCH);
    bench
}

#[library_benchmark]
#[bench::pages_16(Bench::ready())]
fn link_and_unlink(bench: Bench) -> Bench {
    bench.link_and_unlink();
    bench
}

library_benchmark_group!(
    name = data_path,
    benchmarks = [post, post_batch, reap, reap_batch, link_and_unlink]
);
main!(library_benchmark_groups = data_path);

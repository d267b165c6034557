//! How many instructions a post and a reap take, through the whole API with all its locks.
//!
//! The device is a thread of the same process. It is paused while instructions are counted and
//! stepped in between, so the counts are those of the API, the agent and the driver alone.

#![expect(missing_docs, reason = "the benchmark macros make public items of their own")]

use std::hint::black_box;
use std::sync::{Arc, Mutex};

use common::{Failure, Node, Pair, Sizes};
use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use host::{Machine, Paused};
use platform::DmaBuffer;
use privileged_api::{
    AddrMode, DtoCompletion, DtoFlags, IoAddr, Iobl, LmrFlags, LmrHandle, LmrMemory, LmrTriplet, MemPriv,
    RdmaAddr, RmrContext, make_rdma_addr_absolute,
};

/// Requests of a batch.
const BATCH: usize = 16;
/// Pages of a link.
const PAGES: usize = 16;
const PAGE: usize = 4096;

/// Two connected endpoints in this process, and memory to write from and to.
struct Bench {
    pair: Pair,
    /// The address of the memory that is linked; the regions keep the memory alive.
    from: usize,
    segments: [LmrTriplet; 1],
    to: RdmaAddr,
    context: RmrContext,
    unlinked: LmrHandle,
    pages: Vec<IoAddr>,
    device: Mutex<Paused<'static>>,
    _node: Node,
}

impl Bench {
    fn new() -> Result<Bench, Failure> {
        // The machine lives until the process ends, which is the end of the benchmark.
        let machine: &'static Machine = Box::leak(Box::new(Machine::new(1)));
        let node = Node::start(machine.platform(), machine.privileged(), machine.transports())?;
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
        let device = Mutex::new(machine.pause());
        let bench = Bench {
            pair,
            from: from.addr(),
            segments: [LmrTriplet::new(source, from.addr() as u64, 64)],
            to: make_rdma_addr_absolute(into.addr()),
            context,
            unlinked,
            pages,
            device,
            _node: node,
        };
        let mut done = [DtoCompletion::default(); BATCH];
        // Warm up: everything is used before instructions are counted.
        for _ in 0..3 {
            (0..BATCH).for_each(|_| bench.write());
            bench.run_device();
            bench.reap_batch(&mut done);
            bench.link_and_unlink();
            bench.run_device();
            bench.reap_batch(&mut done);
        }
        Ok(bench)
    }

    /// A pair that is never destroyed, since the process ends with the benchmark; so the counted
    /// functions take only a reference.
    fn ready() -> &'static Bench {
        match Bench::new() {
            Ok(bench) => Box::leak(Box::new(bench)),
            Err(failure) => panic!("no pair of endpoints: {failure}"),
        }
    }

    fn run_device(&self) {
        self.device.lock().expect("nobody panicked").step();
    }

    #[inline(always)]
    fn write(&self) {
        let a = &self.pair.a;
        // The compiler may know that there is one segment, but not what is in it.
        let posted =
            a.ia.post_rdma_write(a.ep, &self.segments, 1, DtoFlags::COMPLETION, self.to, self.context);
        assert!(posted.is_ok());
    }

    #[inline(always)]
    fn reap(&self) {
        let event = self.pair.a.ia.evd_dequeue(self.pair.a.requests);
        assert!(black_box(&event).is_ok());
    }

    #[inline(always)]
    fn look(&self) {
        let event = self.pair.a.ia.evd_dequeue(self.pair.a.requests);
        assert!(black_box(&event).is_err());
    }

    #[inline(always)]
    fn reap_batch(&self, done: &mut [DtoCompletion; BATCH]) {
        let count = self.pair.a.ia.evd_dequeue_n(self.pair.a.requests, black_box(done));
        assert!(count.is_ok());
    }

    #[inline(always)]
    fn link_and_unlink(&self) {
        let a = &self.pair.a;
        let iobl = Iobl::pages(&self.pages, PAGE as u64, 0);
        let length = (PAGES * PAGE) as u64;
        let (addr, rights) = (self.from, MemPriv::LOCAL | MemPriv::REMOTE);
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

/// The most instructions that the project promises; beyond them the benchmark fails.
const POST: u64 = 120;
const REAP: u64 = 120;
const REAP_OF_BATCH: u64 = 50;

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// With `count` completions waiting.
fn completed(count: usize) -> &'static Bench {
    let bench = Bench::ready();
    (0..count).for_each(|_| bench.write());
    bench.run_device();
    bench
}

/// With a batch of completions waiting, and an array for them.
fn completed_batch() -> (&'static Bench, &'static mut [DtoCompletion; BATCH]) {
    (completed(BATCH), Box::leak(Box::new([DtoCompletion::default(); BATCH])))
}

#[library_benchmark(config = at_most(POST))]
#[bench::rdma_write_of_one_segment_signalled(Bench::ready())]
fn post(bench: &'static Bench) {
    bench.write();
}

#[library_benchmark(config = at_most(POST * BATCH as u64))]
#[bench::rdma_writes_16(Bench::ready())]
fn post_batch(bench: &'static Bench) {
    (0..BATCH).for_each(|_| bench.write());
}

#[library_benchmark(config = at_most(REAP))]
#[bench::one_completion(completed(1))]
fn reap(bench: &'static Bench) {
    bench.reap();
}

#[library_benchmark]
#[bench::empty_queue(Bench::ready())]
fn look(bench: &'static Bench) {
    bench.look();
}

#[library_benchmark(config = at_most(REAP_OF_BATCH * BATCH as u64))]
#[bench::completions_16(completed_batch())]
fn reap_batch((bench, done): (&'static Bench, &'static mut [DtoCompletion; BATCH])) {
    bench.reap_batch(done);
}

#[library_benchmark]
#[bench::pages_16(Bench::ready())]
fn link_and_unlink(bench: &'static Bench) {
    bench.link_and_unlink();
}

library_benchmark_group!(
    name = data_path,
    benchmarks = [post, post_batch, reap, reap_batch, look, link_and_unlink]
);
main!(library_benchmark_groups = data_path);

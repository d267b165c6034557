//! The cost of the stack, measured inside the guest: each figure beside a baseline of the same run.
//!
//! The launcher reads the lines `@bench NAME|MEDIAN|P99|UNIT|BASELINE` and `@mark NAME`.
#![no_std]
#![no_main]

extern crate alloc;

mod bandwidth;
mod interrupt;
mod polled;
mod samples;

use alloc::sync::Arc;

use common::{Failure, Node, Pair, Side, Sizes, Trying};
use kernel::{Boot, println};
use platform::DmaBuffer;
use privileged_api::{
    AddrMode, DtoFlags, LmrFlags, LmrHandle, LmrMemory, LmrTriplet, MemPriv, RmrContext,
    make_rdma_addr_absolute,
};

kernel::entry!(main);

fn main(boot: Boot) -> i32 {
    println!("@mark entry");
    match run(boot) {
        Ok(()) => 0,
        Err(failure) => {
            println!("error: {failure}");
            1
        }
    }
}

fn run(mut boot: Boot) -> Result<(), Failure> {
    // The baseline for interrupts is measured on a NIC without an agent, so its vectors are free.
    let spare = boot.nics.split_off(boot.nics.len().min(1));
    let spare = spare.first().ok_or_else(|| Failure::new("the benchmarks take two NICs: --nics 2"))?;
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?;
    // Both endpoints are on one NIC, as the baselines are of one NIC.
    let pair = Pair::connect(node.ia(0)?, node.ia(0)?, Sizes { requests: 64, message: bandwidth::MESSAGE })?;
    let target = Target::new(&node, &pair, 64)?;
    target.write(&pair.a, 0, DtoFlags::COMPLETION).trying("it_post_rdma_write")?;
    pair.a.completion(pair.a.requests)?;
    println!("@mark first-write");
    polled::run(&node, &pair, &target)?;
    interrupt::run(&node, spare, &pair, &target)?;
    target.free(&pair)?;
    bandwidth::run(&node, &pair)?;
    pair.free()
}

/// Memory of A and of B, registered so that A can write from one to the other.
pub struct Target {
    length: usize,
    from: Arc<DmaBuffer>,
    into: Arc<DmaBuffer>,
    source: LmrHandle,
    sink: LmrHandle,
    context: RmrContext,
}

impl Target {
    /// Registers `length` bytes on each side.
    pub fn new(node: &Node, pair: &Pair, length: usize) -> Result<Target, Failure> {
        let memory = || {
            DmaBuffer::new(&node.platform, length, 4096)
                .map(Arc::new)
                .map_err(|_| "out of memory")
                .trying("memory")
        };
        let register = |side: &Side, buffer: &Arc<DmaBuffer>, privileges| {
            let memory = LmrMemory::Buffer { buffer, offset: 0 };
            side.ia
                .lmr_create(side.pz, memory, length as u64, AddrMode::Absolute, privileges, LmrFlags::NONE, 0)
                .trying("it_lmr_create")
        };
        let (from, into) = (memory()?, memory()?);
        let (source, _) = register(&pair.a, &from, MemPriv::LOCAL_READ)?;
        let (sink, context) = register(&pair.b, &into, MemPriv::LOCAL | MemPriv::REMOTE_WRITE)?;
        let context = context.ok_or_else(|| Failure::new("the sink has no RMR context"))?;
        Ok(Target { length, from, into, source, sink, context })
    }

    /// Posts an RDMA Write of all bytes by `a`.
    pub fn write(&self, a: &Side, cookie: u64, flags: DtoFlags) -> privileged_api::Result<()> {
        let segment = LmrTriplet::new(self.source, self.from.addr() as u64, self.length as u64);
        let to = make_rdma_addr_absolute(self.into.addr());
        a.ia.post_rdma_write(a.ep, &[segment], cookie, flags, to, self.context)
    }

    /// The bus addresses of source and sink.
    pub fn bus(&self) -> (u64, u64) {
        (self.from.bus(), self.into.bus())
    }

    /// Deregisters.
    pub fn free(self, pair: &Pair) -> Result<(), Failure> {
        pair.a.ia.lmr_free(self.source).trying("it_lmr_free")?;
        pair.b.ia.lmr_free(self.sink).trying("it_lmr_free")
    }
}

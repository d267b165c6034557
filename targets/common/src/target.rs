//! Memory on both sides of a pair, for RDMA Writes from one to the other.

use alloc::sync::Arc;

use platform::DmaBuffer;
use privileged_api::{
    AddrMode, DtoFlags, LmrFlags, LmrHandle, LmrMemory, LmrTriplet, MemPriv, RdmaAddr, RmrContext,
    make_rdma_addr_absolute,
};

use crate::{Failure, Node, Pair, Side, Trying};

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

    /// The operands of an RDMA Write of all bytes by A: the local segment, and where it goes.
    pub fn operands(&self) -> (LmrTriplet, RdmaAddr, RmrContext) {
        let segment = LmrTriplet::new(self.source, self.from.addr() as u64, self.length as u64);
        (segment, make_rdma_addr_absolute(self.into.addr()), self.context)
    }

    /// Posts an RDMA Write of all bytes by `a`.
    pub fn write(&self, a: &Side, cookie: u64, flags: DtoFlags) -> privileged_api::Result<()> {
        let (segment, to, context) = self.operands();
        a.ia.post_rdma_write(a.ep, &[segment], cookie, flags, to, context)
    }

    /// The bus addresses of source and sink.
    pub fn bus(&self) -> (u64, u64) {
        (self.from.bus(), self.into.bus())
    }

    /// The memory that A writes from.
    pub fn source(&self) -> &DmaBuffer {
        &self.from
    }

    /// The memory of B that A writes to.
    pub fn sink(&self) -> &DmaBuffer {
        &self.into
    }

    /// Deregisters.
    pub fn free(self, pair: &Pair) -> Result<(), Failure> {
        pair.a.ia.lmr_free(self.source).trying("it_lmr_free")?;
        pair.b.ia.lmr_free(self.sink).trying("it_lmr_free")
    }
}

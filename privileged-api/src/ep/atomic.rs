//! Posting atomic operations (page it_post_atomic).

use kernel_agent::{Features, Operation, Remote, Request, Segment, Shadow};

use super::post::{ATOMIC_FLAGS, check_flags, data, send_flags};
use crate::address::{RdmaAddr, RmrContext};
use crate::event::EventType;
use crate::flags::DtoFlags;
use crate::handle::EpHandle;
use crate::ia::Ia;
use crate::iobl::LmrTriplet;
use crate::status::{Error, Result};

rdma::enumeration! {
    /// What an atomic operation does.
    #[doc(alias = "it_atomic_op_t")]
    pub enum AtomicOp: u32 {
        /// Stores another value if the present one is equal to the compared one.
        CompareAndSwap = 0, "IT_COMPARE_AND_SWAP";
        /// Adds, with wrap-around.
        FetchAndAdd = 1, "IT_FETCH_AND_ADD";
    }
}

/// Bytes of an atomic operation.
const BYTES: u32 = 8;

impl Ia {
    /// Posts an atomic operation on the eight bytes at `rdma_addr` of the peer's region, which must
    /// allow remote reads, writes and atomics. The previous value goes to the first eight bytes of
    /// `result`, also if the comparison failed.
    ///
    /// Values are in host byte order on both sides. The operation is atomic with respect to other
    /// atomic operations of that NIC, and to those of its host's processors. Completes as
    /// `IT_DTO_CMP_SWAP_CMPL_EVENT` or `IT_DTO_FETCH_ADD_CMPL_EVENT` on the endpoint's request EVD.
    /// A bad or short sink or a bad remote address is a completion error. A privileged endpoint may
    /// use the direct LMR handle as the sink. In NONOPERATIONAL the request is flushed.
    ///
    /// Errors: `OpNotSupported` (the IA has no atomics), `InvalidEp`, `InvalidDtoFlags`,
    /// `InvalidEpState`, `InvalidEpType`, `TooManyPosts`, `EpBusy` (a batch has the send queue for
    /// itself), `InvalidIa`, `IaCatastrophe`; `InvalidAtomicOp` cannot happen, as [`AtomicOp`] has
    /// no other values. Does not block. May be called in callbacks. Thread-safe. Page
    /// it_post_atomic.
    #[doc(alias = "it_post_atomic")]
    #[expect(clippy::too_many_arguments, reason = "the page has them")]
    #[inline(always)]
    pub fn post_atomic(
        &self,
        ep: EpHandle,
        op: AtomicOp,
        swap_or_add: u64,
        compare: u64,
        result: &LmrTriplet,
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        let core = self.live()?;
        if !core.features().contains(Features::ATOMICS) {
            return Err(Error::OpNotSupported);
        }
        let ep = core.rc(ep)?;
        check_flags(dto_flags, ATOMIC_FLAGS)?;
        ep.takes_requests()?;
        // A bad sink is a completion error, the direct LMR handle included.
        let sink =
            core.segment(result).unwrap_or(Segment { key: kernel_agent::key::NONE, ..Segment::default() });
        // The device uses the first eight bytes of a longer buffer, and refuses a shorter one.
        let sink = Segment { length: sink.length.min(BYTES), ..sink };
        let remote = Remote { addr: rdma_addr.to_host(), key: rmr_context.key() };
        let (operation, event) = match op {
            AtomicOp::CompareAndSwap => (
                Operation::CompareSwap { remote, sink, compare, swap: swap_or_add },
                EventType::DTO_CMP_SWAP_CMPL,
            ),
            AtomicOp::FetchAndAdd => {
                (Operation::FetchAdd { remote, sink, add: swap_or_add }, EventType::DTO_FETCH_ADD_CMPL)
            }
        };
        let shadow = Shadow { cookie, data: data(dto_flags, event) };
        let request = Request { operation, flags: send_flags(dto_flags), shadow };
        core.posted(ep.qp()?.post_plain(&request).map(drop).map_err(|error| core.not_posted(error)))
    }
}

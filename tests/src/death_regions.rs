//! Death of the device for those who use RMRs, shared receive queues and what goes with them: each of their calls on a disabled IA is refused and changes
//! nothing.

use alloc::vec::Vec;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::fixture::{OPEN, SIGNALLED};
use crate::thread::eventually;
use crate::{Failure, Test, check, check_eq, test};

pub(crate) const TESTS: &[Test] = &[test(
    "death_regions::every_call_is_refused",
    &[
        "it_rmr_create.IT_ERR_IA_CATASTROPHE",
        "it_rmr_query.IT_ERR_IA_CATASTROPHE",
        "it_rmr_link.IT_ERR_IA_CATASTROPHE",
        "it_rmr_unlink.IT_ERR_IA_CATASTROPHE",
        "it_rmr_free.IT_ERR_IA_CATASTROPHE",
        "it_srq_create.IT_ERR_IA_CATASTROPHE",
        "it_srq_query.IT_ERR_IA_CATASTROPHE",
        "it_srq_modify.IT_ERR_IA_CATASTROPHE",
        "it_srq_free.IT_ERR_IA_CATASTROPHE",
        "it_post_atomic.IT_ERR_IA_CATASTROPHE",
        "it_post_send_and_unlink.IT_ERR_IA_CATASTROPHE",
        "it_post_rdma_read_to_rmr.IT_ERR_IA_CATASTROPHE",
        "it_lmr_flush_to_mem.IT_ERR_IA_CATASTROPHE",
        "it_lmr_refresh_from_mem.IT_ERR_IA_CATASTROPHE",
    ],
    |f| {
        let ia = &f.a;
        let pair = f.pair()?;
        let (ep, pz) = (pair.a.ep, pair.a.pz);
        let region = f.region(ia, pz, 64, OPEN)?;
        let (rmr, srq) = (ia.rmr_create(pz, RmrType::Wide)?, ia.srq_create(pz, 1, 4)?);
        let (addr, mode, privs) = (region.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
        let before = ia.object_counts();
        match f.setup.a.agent.inject(0, Injection::Fail, 1, 0) {
            // The device may be gone before its answer has been taken.
            Ok(()) | Err(kernel_agent::Error::DeviceDead(_)) => {}
            Err(error) => return Err(Failure::new(alloc::format!("injection: {error:?}"))),
        }
        let disabled = eventually(f.platform(), || ia.ia_query() == Err(Error::IaCatastrophe));
        check!(disabled, "the IA lives on");
        let (segment, context, at) = ([region.whole()], region.context()?, region.remote(0));
        let params = SrqParam { low_watermark: 1, ..SrqParam::default() };
        let op = AtomicOp::FetchAndAdd;
        let refusals: [(&str, Result<()>); 17] = [
            ("evd_dequeue_n", ia.evd_dequeue_n(pair.a.request, &mut [DtoCompletion::default()]).map(drop)),
            ("ep_qpn", ia.ep_qpn(ep).map(drop)),
            ("rmr_create", ia.rmr_create(pz, RmrType::Wide).map(drop)),
            ("rmr_query", ia.rmr_query(rmr, RmrParamMask::ALL).map(drop)),
            ("rmr_link", ia.rmr_link(rmr, region.lmr, addr, 64, mode, privs, ep, 1, SIGNALLED).map(drop)),
            ("rmr_unlink", ia.rmr_unlink(rmr, ep, 1, SIGNALLED)),
            ("rmr_free", ia.rmr_free(rmr)),
            ("srq_create", ia.srq_create(pz, 1, 1).map(drop)),
            ("srq_query", ia.srq_query(srq, SrqParamMask::ALL).map(drop)),
            ("srq_modify", ia.srq_modify(srq, SrqParamMask::LOW_WATERMARK, &params)),
            ("srq_free", ia.srq_free(srq)),
            ("post_recv", ia.post_recv(srq, &segment, 1, DtoFlags::COMPLETION)),
            ("post_atomic", ia.post_atomic(ep, op, 1, 0, &segment[0], 1, SIGNALLED, at, context)),
            ("post_send_and_unlink", ia.post_send_and_unlink(ep, &segment, 1, SIGNALLED, context)),
            ("post_rdma_read_to_rmr", ia.post_rdma_read_to_rmr(ep, &[], 1, SIGNALLED, at, context)),
            ("lmr_flush_to_mem", ia.lmr_flush_to_mem(&segment)),
            ("lmr_refresh_from_mem", ia.lmr_refresh_from_mem(&segment)),
        ];
        let others: Vec<_> = refusals.iter().filter(|(_, got)| *got != Err(Error::IaCatastrophe)).collect();
        check!(others.is_empty(), "not refused as they should be: {others:?}");
        check_eq!(ia.object_counts(), before);
        Ok(())
    },
)
.kills()];

//! Changing endpoints before they are connected.

use dat::*;

use super::events::state;
use super::world::*;
use crate::fixture::PAGE;
use crate::{Outcome, Test, check_eq, refused, some, test};

pub(crate) const TESTS: &[Test] = &[
    // While Receives are posted, the sizes of messages and the numbers of RDMA Reads can change,
    // and nothing else. The changes are in force when the endpoint is connected.
    test("dat_modify::while_receives_are_posted", &[], |f| {
        world(f, |w| {
            const LONGEST: u64 = 100;
            let deep = EpAttr { max_rdma_read_in: 8, max_rdma_read_out: 8, ..attributes() };
            let (far, own) = (w.end(&w.a, &deep)?, w.end(&w.b, &attributes())?);
            let before = w.b.ep_query(own.ep, EpParamMask::ALL)?;
            own.receive(&[], 1)?;
            let other = EpParam { pz_handle: w.b.pz_create()?, ep_attr: deep, ..before };
            for mask in [
                EpParamMask::PZ_HANDLE,
                EpParamMask::EP_ATTR_MAX_RECV_DTOS,
                EpParamMask::EP_ATTR_MAX_RDMA_READ_IN | EpParamMask::EP_ATTR_MAX_RECV_IOV,
            ] {
                refused(w.b.ep_modify(own.ep, mask, &other), state(Subtype::InvalidStateEpUnconnected))?;
            }
            check_eq!(w.b.ep_query(own.ep, EpParamMask::ALL)?, before);
            let ep_attr = EpAttr { max_message_size: LONGEST, max_rdma_size: LONGEST, ..deep };
            let mask = EpParamMask::EP_ATTR_MAX_MESSAGE_SIZE
                | EpParamMask::EP_ATTR_MAX_RDMA_SIZE
                | EpParamMask::EP_ATTR_MAX_RDMA_READ_IN
                | EpParamMask::EP_ATTR_MAX_RDMA_READ_OUT;
            w.b.ep_modify(own.ep, mask, &EpParam { ep_attr, ..before })?;
            check_eq!(w.b.ep_query(own.ep, EpParamMask::ALL)?, EpParam { ep_attr, ..before });
            // With fewer RDMA Reads on one side the connection would be refused.
            w.connect(&far, &own)?;
            far.send(&[], 2)?;
            own.received(1, DtoStatus::Success)?;
            let memory = w.region(&own, PAGE, OPEN)?;
            own.send(&[memory.segment(0, LONGEST as usize + 1)], 3)?;
            own.done(3, DtoStatus::LocalLength)?;
            Ok(())
        })
    }),
    // A number beyond the adapter's limits is refused, and nothing is changed; the limit itself is
    // accepted. So with a queue of the endpoint's own and with a shared one, which takes the number
    // of Receives although the Receives are the queue's.
    test("dat_modify::limits", &[], |f| {
        world(f, |w| {
            let (_, limits, _) = w.b.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
            let most = some(limits, "the IA's attributes")?;
            let (dtos, iov) = (most.max_dto_per_ep, most.max_iov_segments_per_dto);
            let pz = w.b.pz_create()?;
            let srq = w.b.srq_create(pz, &SrqAttr::default())?;
            for shared in [false, true] {
                let end = match shared {
                    true => w.end_with_srq(&w.b, pz, srq, &attributes())?,
                    false => w.end(&w.b, &attributes())?,
                };
                let mut now = w.b.ep_query(end.ep, EpParamMask::ALL)?;
                let mut modify = |mask, ep_attr: EpAttr, allowed| {
                    let modified = w.b.ep_modify(end.ep, mask, &EpParam { ep_attr, ..now });
                    let bad = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg3);
                    check_eq!(modified, if allowed { Ok(()) } else { Err(bad) }, "{mask:?} of {ep_attr:?}");
                    if allowed {
                        now.ep_attr = ep_attr;
                    }
                    check_eq!(w.b.ep_query(end.ep, EpParamMask::ALL)?, now);
                    Outcome::Ok(())
                };
                let mut asked = attributes();
                for (number, allowed) in [(dtos + 1, false), (usize::MAX, false), (dtos, true)] {
                    let attr = EpAttr { max_recv_dtos: number, ..asked };
                    modify(EpParamMask::EP_ATTR_MAX_RECV_DTOS, attr, allowed)?;
                }
                asked.max_recv_dtos = dtos;
                for number in [dtos + 1, usize::MAX] {
                    let attr = EpAttr { max_request_dtos: number, ..asked };
                    modify(EpParamMask::EP_ATTR_MAX_REQUEST_DTOS, attr, false)?;
                }
                for number in [iov + 1, usize::MAX] {
                    let requests = EpAttr { max_request_iov: number, ..asked };
                    modify(EpParamMask::EP_ATTR_MAX_REQUEST_IOV, requests, false)?;
                    let writes = EpAttr { max_rdma_write_iov: number, ..asked };
                    modify(EpParamMask::EP_ATTR_MAX_RDMA_WRITE_IOV, writes, false)?;
                    let reads = EpAttr { max_rdma_read_iov: number, ..asked };
                    modify(EpParamMask::EP_ATTR_MAX_RDMA_READ_IOV, reads, false)?;
                    // A shared queue has its own limit of segments.
                    let receives = EpAttr { max_recv_iov: number, ..asked };
                    modify(EpParamMask::EP_ATTR_MAX_RECV_IOV, receives, shared)?;
                    asked.max_recv_iov = if shared { number } else { asked.max_recv_iov };
                }
                let few = most.max_rdma_read_per_ep_in.max(most.max_rdma_read_per_ep_out) + 1;
                let (ins, outs) =
                    (EpParamMask::EP_ATTR_MAX_RDMA_READ_IN, EpParamMask::EP_ATTR_MAX_RDMA_READ_OUT);
                modify(ins, EpAttr { max_rdma_read_in: few, ..asked }, false)?;
                modify(outs, EpAttr { max_rdma_read_out: few, ..asked }, false)?;
                let (size, rdma) = (most.max_message_size + 1, most.max_rdma_size + 1);
                let sizes = EpParamMask::EP_ATTR_MAX_MESSAGE_SIZE;
                modify(sizes, EpAttr { max_message_size: size, ..asked }, false)?;
                let sizes = EpParamMask::EP_ATTR_MAX_RDMA_SIZE;
                modify(sizes, EpAttr { max_rdma_size: rdma, ..asked }, false)?;
            }
            Ok(())
        })
    }),
];

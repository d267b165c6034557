//! Changing endpoints before they are connected.

use dat::*;

use super::events::state;
use super::world::*;
use crate::fixture::PAGE;
use crate::{Test, check_eq, refused, test};

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
];

//! Asynchronous events of endpoints and of the adapter.

use dat::*;
use nic_abi::admin::Injection;

use super::world::*;
use crate::{Failure, Outcome, Test, check_eq, test};

/// Waits for the next asynchronous event of `b`, which must be this one.
#[track_caller]
fn reported(w: &World<'_>, number: EventNumber, dat_handle: Handle, reason: AsyncReason) -> Outcome {
    let event = expect(&w.b, w.asynchronous[1], number)?;
    check_eq!(event.event_data, EventData::AsynchError(AsynchError { dat_handle, reason }));
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // A peer that accesses memory without a right breaks the endpoint.
    test("dat_asynchronous::an_access_without_a_right", &[], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            let none = RmrTriplet { rmr_context: 0, ..far.remote(0, 8) };
            w.a.ep_post_rdma_write(a.ep, &[own.segment(0, 8)], 1, &none, PLAIN)?;
            a.done(1, DtoStatus::RemoteAccess)?;
            reported(w, EventNumber::ASYNC_ERROR_EP_BROKEN, b.ep.into(), AsyncReason::EpOther)
        })
    }),
    // A port that goes down and comes up is reported as an error of the adapter.
    test("dat_asynchronous::the_port", &[], |f| {
        world(f, |w| {
            let inject = |up| match f.setup.b.agent.test_handle().inject(0, Injection::Port, 1, up) {
                Ok(()) => Ok(()),
                Err(error) => Err(Failure::new(alloc::format!("{error:?}"))),
            };
            let number = EventNumber::ASYNC_ERROR_PROVIDER_INTERNAL_ERROR;
            let outcome = inject(0).and_then(|()| reported(w, number, w.b.handle().into(), AsyncReason::Ia));
            inject(1)?;
            outcome?;
            reported(w, number, w.b.handle().into(), AsyncReason::Ia)
        })
    }),
];

//! Which event dispatchers endpoints and service points accept, and which service point the event
//! of a request names.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use dat::*;

use super::events::{MERGED, invalid};
use super::world::*;
use crate::thread::{Body, all_pass, pause};
use crate::{Outcome, Test, check, check_eq, refused, test};

/// How often each thread takes the qualifier.
const TURNS: usize = if cfg!(miri) { 2 } else { 10 };

pub(crate) const TESTS: &[Test] = &[
    // An endpoint needs an event dispatcher with the stream DTO for its completions, and one with
    // CONNECTION for its connection events (a datagram endpoint also takes IB_EXTENSION).
    test("dat_streams::endpoints_need_theirs", &[], |f| {
        world(f, |w| {
            let (pz, good) = (w.a.pz_create()?, evd(&w.a, MERGED)?);
            let srq = w.a.srq_create(pz, &SrqAttr::default())?;
            let (connections, datagrams) = (attributes(), datagrams());
            let (recv, request, connect) = (
                Subtype::InvalidHandleEvdRecv,
                Subtype::InvalidHandleEvdRequest,
                Subtype::InvalidHandleEvdConn,
            );
            let all = MERGED | EvdFlags::IB_EXTENSION;
            let without_completions = [
                EvdFlags::RMR_BIND,
                EvdFlags::IB_EXTENSION,
                EvdFlags::CONNECTION,
                EvdFlags::SOFTWARE,
                EvdFlags::CR,
                all - EvdFlags::DTO,
            ];
            for flags in without_completions {
                let bad = evd(&w.a, flags)?;
                for attr in [&connections, &datagrams] {
                    refused(w.a.ep_create(pz, bad, good, good, Some(attr)), invalid(recv))?;
                    refused(w.a.ep_create(pz, good, bad, good, Some(attr)), invalid(request))?;
                }
                let on_srq = w.a.ep_create_with_srq(pz, bad, good, good, srq, &connections);
                refused(on_srq, invalid(recv))?;
                // The refused calls do not use it.
                w.a.evd_free(bad)?;
            }
            let without_connections = [
                EvdFlags::IB_EXTENSION,
                EvdFlags::CR,
                EvdFlags::DTO,
                EvdFlags::RMR_BIND,
                EvdFlags::SOFTWARE,
                all - EvdFlags::CONNECTION,
            ];
            for flags in without_connections {
                let bad = evd(&w.a, flags)?;
                refused(w.a.ep_create(pz, good, good, bad, Some(&connections)), invalid(connect))?;
                let made = w.a.ep_create(pz, good, good, bad, Some(&datagrams));
                match flags.contains(EvdFlags::IB_EXTENSION) {
                    true => w.a.ep_free(made?)?,
                    false => refused(made, invalid(connect))?,
                }
                w.a.evd_free(bad)?;
            }
            // The same rules hold when an endpoint is changed. A refused change leaves the endpoint
            // as it was.
            let ep = w.a.ep_create(pz, good, good, good, Some(&connections))?;
            let before = w.a.ep_query(ep, EpParamMask::ALL)?;
            let (bind, extension) = (evd(&w.a, EvdFlags::RMR_BIND)?, evd(&w.a, EvdFlags::IB_EXTENSION)?);
            let change =
                |mask, param: EpParam, subtype| refused(w.a.ep_modify(ep, mask, &param), invalid(subtype));
            change(EpParamMask::RECV_EVD_HANDLE, EpParam { recv_evd_handle: bind, ..before }, recv)?;
            change(EpParamMask::REQUEST_EVD_HANDLE, EpParam { request_evd_handle: bind, ..before }, request)?;
            let to_extension = EpParam { connect_evd_handle: extension, ..before };
            change(EpParamMask::CONNECT_EVD_HANDLE, to_extension, connect)?;
            check_eq!(w.a.ep_query(ep, EpParamMask::ALL)?, before);
            w.a.evd_free(bind)?;
            w.a.evd_free(extension)?;
            w.a.ep_free(ep)?;
            Ok(w.a.evd_free(good)?)
        })
    }),
    // A service point needs an event dispatcher with the stream CR for its requests (a public one
    // for datagrams also takes IB_EXTENSION).
    test("dat_streams::service_points_need_theirs", &[], |f| {
        world(f, |w| {
            let end = w.end(&w.a, &attributes())?;
            let wrong = invalid(Subtype::InvalidHandleEvdCr);
            let all = MERGED | EvdFlags::IB_EXTENSION;
            for flags in [EvdFlags::CONNECTION, EvdFlags::DTO, EvdFlags::SOFTWARE, MERGED - EvdFlags::CR] {
                let bad = evd(&w.a, flags)?;
                refused(w.a.psp_create(4711, bad, PspFlags::Consumer), wrong)?;
                refused(w.a.psp_create_any(bad, PspFlags::Consumer), wrong)?;
                refused(w.a.rsp_create(4711, end.ep, bad), wrong)?;
                w.a.evd_free(bad)?;
            }
            for flags in [EvdFlags::IB_EXTENSION, all - EvdFlags::CR] {
                let extension = evd(&w.a, flags)?;
                refused(w.a.rsp_create(4711, end.ep, extension), wrong)?;
                let (_, psp) = w.a.psp_create_any(extension, PspFlags::Consumer)?;
                w.a.psp_free(psp)?;
                w.a.evd_free(extension)?;
            }
            check_eq!(end.state()?, EpState::Unconnected);
            Ok(())
        })
    }),
    // When the IA has no room for a service point, a call that names the qualifier has no
    // resources, and one that asks for any qualifier finds none.
    test("dat_streams::no_more_service_points", &[], |f| {
        world(f, |w| {
            let requests = evd(&w.b, EvdFlags::CR)?;
            let any = || w.b.psp_create_any(requests, PspFlags::Consumer);
            let mut last = any();
            for _ in 0..100 {
                if last.is_ok() {
                    last = any();
                }
            }
            refused(last, ErrorType::ConnQualUnavailable.into())?;
            let named = w.b.psp_create(4711, requests, PspFlags::Consumer).map_err(Error::kind);
            refused(named, ErrorType::InsufficientResources)
        })
    }),
    // A qualifier has one service point at a time. A refused creation leaves the first one as it
    // was.
    test("dat_streams::a_qualifier_in_use", &[], |f| {
        world(f, |w| {
            let (requests, end) = (evd(&w.b, EvdFlags::CR)?, w.end(&w.b, &attributes())?);
            let (conn_qual, psp) = w.b.psp_create_any(requests, PspFlags::Consumer)?;
            let in_use = ErrorType::ConnQualInUse.into();
            refused(w.b.psp_create(conn_qual, requests, PspFlags::Consumer), in_use)?;
            refused(w.b.rsp_create(conn_qual, end.ep, requests), in_use)?;
            check_eq!(end.state()?, EpState::Unconnected);
            let dialer = w.end(&w.a, &attributes())?;
            asks(&dialer, address(&w.b)?, conn_qual, &w.b, requests, SpHandle::Psp(psp))?;
            // A free qualifier can have either kind of service point.
            w.b.psp_free(psp)?;
            let rsp = w.b.rsp_create(conn_qual, end.ep, requests)?;
            refused(w.b.psp_create(conn_qual, requests, PspFlags::Consumer), in_use)?;
            asks(&dialer, address(&w.b)?, conn_qual, &w.b, requests, SpHandle::Rsp(rsp))?;
            // The reserved service point has had its request, so another one can take the
            // qualifier.
            let psp = w.b.psp_create(conn_qual, requests, PspFlags::Consumer)?;
            w.b.rsp_free(rsp)?;
            asks(&dialer, address(&w.b)?, conn_qual, &w.b, requests, SpHandle::Psp(psp))
        })
    }),
    // Two threads take a qualifier from each other. Each request names the service point that has
    // it.
    test("dat_streams::a_qualifier_that_changes_hands", &[], |f| {
        world(f, |w| {
            let requests = evd(&w.b, EvdFlags::CR)?;
            let (conn_qual, probe) = w.b.psp_create_any(requests, PspFlags::Consumer)?;
            w.b.psp_free(probe)?;
            let mut bodies: Vec<Body<Outcome>> = Vec::new();
            for _ in 0..2 {
                let (requests, dialer) = (evd(&w.b, EvdFlags::CR)?, w.end(&w.a, &attributes())?);
                let (ia, to, platform) = (w.b.clone(), address(&w.b)?, w.f.platform().clone());
                bodies.push(Box::new(move || {
                    for _ in 0..TURNS {
                        let psp = loop {
                            match ia.psp_create(conn_qual, requests, PspFlags::Consumer) {
                                Err(error) if error == ErrorType::ConnQualInUse => {
                                    pause(&platform, Duration::from_micros(100));
                                }
                                made => break made?,
                            }
                        };
                        asks(&dialer, to, conn_qual, &ia, requests, SpHandle::Psp(psp))?;
                        ia.psp_free(psp)?;
                    }
                    Ok(())
                }));
            }
            all_pass(w.f.platform(), bodies)
        })
    }),
];

/// Asks for a connection. The request must come to this event dispatcher and name this service
/// point; it is rejected.
#[track_caller]
fn asks(
    dialer: &End,
    to: IaAddress,
    conn_qual: u64,
    ia: &Ia,
    requests: EvdHandle,
    point: SpHandle,
) -> Outcome {
    dial(dialer, to, conn_qual, &[])?;
    let event = expect(ia, requests, EventNumber::CONNECTION_REQUEST)?;
    let EventData::CrArrival(arrival) = event.event_data else {
        return Err(crate::Failure::new("not a request"));
    };
    check_eq!((arrival.sp_handle, arrival.conn_qual), (point, conn_qual));
    ia.cr_reject(arrival.cr_handle, &[])?;
    expect(&dialer.ia, dialer.connect, EventNumber::CONNECTION_PEER_REJECTED)?;
    dialer.ia.ep_reset(dialer.ep)?;
    check!(dialer.state()? == EpState::Unconnected, "not reset");
    Ok(())
}

//! Resolving datagram endpoints: asking, answering, private data, refusals, and the end of
//! endpoints (the usage model of the IB extensions).

use core::result::Result;

use dat::*;
use privileged_api as it;

use super::world::*;
use crate::fixture::pattern;
use crate::{Failure, Outcome, Test, check, check_eq, refused, some, test};

/// The most private data of a request, and of an answer.
pub(crate) const OF_REQUEST: usize = 204;
pub(crate) const OF_ANSWER: usize = 136;

/// A service point of an IA.
pub(crate) struct Point {
    pub(crate) ia: Ia,
    pub(crate) evd: EvdHandle,
    pub(crate) psp: PspHandle,
    pub(crate) qual: u64,
    pub(crate) at: IaAddress,
}

/// Creates a public service point with its own event dispatcher.
#[track_caller]
pub(crate) fn point(ia: &Ia) -> Result<Point, Failure> {
    let evd = evd(ia, EvdFlags::CR)?;
    let (qual, psp) = ia.psp_create_any(evd, PspFlags::Consumer)?;
    Ok(Point { ia: ia.clone(), evd, psp, qual, at: address(ia)? })
}

impl Point {
    /// Makes an endpoint ask for the service's datagram endpoint, or for a connection to it.
    #[track_caller]
    pub(crate) fn ask(&self, end: &End, private_data: &[u8]) -> Outcome {
        dial(end, self.at, self.qual, private_data)
    }

    /// The next request, which must be one for a datagram endpoint.
    #[track_caller]
    pub(crate) fn asked(&self) -> Result<CrHandle, Failure> {
        cr(&expect(&self.ia, self.evd, EventNumber::IB_UD_CONNECTION_REQUEST)?)
    }

    /// Makes a datagram endpoint resolve another one. Returns the address and the private data that
    /// each side gets.
    #[track_caller]
    pub(crate) fn resolve(
        &self,
        active: &End,
        passive: &End,
    ) -> Result<(IbAddrHandle, IbAddrHandle), Failure> {
        self.ask(active, &[])?;
        self.ia.cr_accept(self.asked()?, passive.ep, &[])?;
        Ok((established(active)?.0.remote_ah, established(passive)?.0.remote_ah))
    }
}

/// The next connection event, which must have this number.
#[track_caller]
fn outcome(end: &End, number: EventNumber) -> Result<(IbExtensionEventData, Option<PrivateData>), Failure> {
    let event = expect(&end.ia, end.connect, number)?;
    let EventData::Connection(connection) = event.event_data else {
        return Err(Failure::new(alloc::format!("not a connection event: {event:?}")));
    };
    check_eq!(connection.ep_handle, end.ep);
    Ok((some(event.extension, "extension data")?, connection.private_data))
}

/// The next connection event, which must say that a remote datagram endpoint is resolved.
#[track_caller]
pub(crate) fn established(end: &End) -> Result<(IbExtensionEventData, Option<PrivateData>), Failure> {
    outcome(end, EventNumber::IB_UD_CONNECTION_ESTABLISHED)
}

/// The next connection event, which must say that a remote datagram endpoint is not resolved.
#[track_caller]
pub(crate) fn unresolved(
    end: &End,
    (number, ext_type): (EventNumber, IbExtType),
) -> Result<Option<PrivateData>, Failure> {
    let (extension, data) = outcome(end, number)?;
    check_eq!((extension.ext_type, extension.status), (ext_type, IbStatus::Err));
    check_eq!((extension.remote_ah, extension.immed), (IbAddrHandle::NONE, 0));
    Ok(data)
}

pub(crate) const REJECT: (EventNumber, IbExtType) =
    (EventNumber::IB_UD_CONNECTION_REJECT, IbExtType::UdConnectReject);
pub(crate) const ERROR: (EventNumber, IbExtType) =
    (EventNumber::IB_UD_CONNECTION_ERROR, IbExtType::UdConnectError);

/// Checks private data: these bytes, then zeros up to the length of the field.
#[track_caller]
pub(crate) fn says(data: Option<PrivateData>, bytes: &[u8], field: usize) -> Outcome {
    let data = some(data, "private data")?;
    let mut whole = bytes.to_vec();
    whole.resize(field, 0);
    check_eq!(data.as_slice(), &whole[..]);
    Ok(())
}

/// The address of an IA, as address handles contain it.
#[track_caller]
fn mapped(ia: &Ia) -> Result<core::net::Ipv6Addr, Failure> {
    Ok(match address(ia)? {
        IaAddress::V4(v4) => v4.to_ipv6_mapped(),
        IaAddress::V6(v6) => v6,
    })
}

/// Asks with these arguments.
pub(crate) fn connect(end: &End, to: IaAddress, qual: u64, timeout: u32, data: &[u8]) -> dat::Result<()> {
    end.ia.ep_connect(end.ep, to, qual, timeout, data, Qos::BEST_EFFORT, ConnectFlags::Default)
}

/// Checks that an address handle is invalid.
#[track_caller]
pub(crate) fn is_freed(end: &End, ah: AhHandle) -> Outcome {
    let error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandle1);
    refused(end.ia.get_handle_type(ah), error)
}

/// The error of a call that the endpoint's state does not allow.
pub(crate) const fn state(subtype: Subtype) -> Error {
    Error::new(ErrorType::InvalidState, subtype)
}

pub(crate) const TESTS: &[Test] = &[
    // A client asks a service, the server accepts with a datagram endpoint, and each side gets the
    // address of the other and its private data. No call but these is needed.
    test(
        "dat_resolving::both_sides_get_an_address",
        &[
            "DAT_IB_EVENT_NUMBER F02 F03",
            "DAT_IB_EXT_TYPE A02 F06-F08",
            "DAT_IB_EXTENSION_EVENT_DATA F01 F02 F04",
            "DAT_IB_STATUS F01",
            "dat-ib-usage A01 B01 B04-B06",
        ],
        |f| {
            world(f, |w| {
                check_eq!(ServiceType::IB_UD.as_raw(), 1);
                let (a, b) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?);
                let service = |end: &End| end.ia.ep_query(end.ep, EpParamMask::ALL);
                check_eq!(service(&a)?.ep_attr.service_type, ServiceType::IB_UD);
                let point = point(&w.b)?;
                check_eq!((a.state()?, b.state()?), (EpState::Unconnected, EpState::Unconnected));
                point.ask(&a, b"who is there?")?;
                check_eq!(a.state()?, EpState::ActiveConnectionPending);
                let event = next(&w.b, point.evd)?;
                check_eq!((event.event_number.as_raw(), event.evd_handle), (0x40001, point.evd));
                let EventData::CrArrival(arrival) = event.event_data else {
                    return Err(Failure::new(alloc::format!("{event:?}")));
                };
                check_eq!(arrival.sp_handle, SpHandle::Psp(point.psp));
                check_eq!((arrival.conn_qual, arrival.local_ia_address), (point.qual, Some(point.at)));
                let extension = some(event.extension, "extension data")?;
                check_eq!(extension.ext_type, IbExtType::UdConnectRequest);
                check_eq!((extension.ext_type as u32, extension.status as u32), (5, 0));
                let param = w.b.cr_query(arrival.cr_handle)?;
                check_eq!((param.remote_ia_address, param.local_ep_handle), (address(&w.a)?, EpHandle::NULL));
                says(param.private_data, b"who is there?", OF_REQUEST)?;
                check_eq!(b.state()?, EpState::Unconnected);
                w.b.cr_accept(arrival.cr_handle, b.ep, b"it is me")?;
                check_eq!(b.state()?, EpState::Connected);

                let event = next(&w.a, a.connect)?;
                check_eq!((event.event_number.as_raw(), event.evd_handle), (0x40002, a.connect));
                let EventData::Connection(connection) = event.event_data else {
                    return Err(Failure::new(alloc::format!("{event:?}")));
                };
                check_eq!(connection.ep_handle, a.ep);
                says(connection.private_data, b"it is me", OF_ANSWER)?;
                let of_b = some(event.extension, "extension data")?;
                check_eq!((of_b.ext_type as u32, of_b.status as u32, of_b.immed), (6, 0, 0));
                check_eq!(of_b.ext_type, IbExtType::UdRemoteAh);
                check_eq!((of_b.remote_ah.ia_addr, of_b.remote_ah.qkey), (mapped(&w.b)?, 0x0123_4567));
                check_eq!(a.state()?, EpState::Connected);

                // The server gets the private data of the request again.
                let (of_a, data) = established(&b)?;
                says(data, b"who is there?", OF_REQUEST)?;
                check_eq!((of_a.ext_type as u32, of_a.status as u32, of_a.immed), (7, 0, 0));
                check_eq!(of_a.ext_type, IbExtType::UdPassiveRemoteAh);
                check_eq!((of_a.remote_ah.ia_addr, of_a.remote_ah.qkey), (mapped(&w.a)?, 0x0123_4567));
                check_eq!(w.a.get_handle_type(of_b.remote_ah.ah)?, HandleType::IbExt);
                check_eq!(w.b.get_handle_type(of_a.remote_ah.ah)?, HandleType::IbExt);
                nothing(&w.a, a.connect)?;
                nothing(&w.b, b.connect)?;
                nothing(&w.b, point.evd)
            })
        },
    ),
    // One endpoint resolves several others, of one node and of two, and others resolve it. Each
    // address has the number of its endpoint, and the address of its node.
    test(
        "dat_resolving::one_endpoint_resolves_several",
        &["DAT_IB_ADDR_HANDLE F02 F03", "dat-ib-usage B02"],
        |f| {
            world(f, |w| {
                let (there, here) = (point(&w.b)?, point(&w.a)?);
                let a = w.end(&w.a, &datagrams())?;
                let (b, c) = (w.end(&w.b, &datagrams())?, w.end(&w.b, &datagrams())?);
                let own = w.end(&w.a, &datagrams())?;
                let (of_b, a_of_b) = there.resolve(&a, &b)?;
                let (of_c, a_of_c) = there.resolve(&a, &c)?;
                let (of_own, a_of_own) = here.resolve(&a, &own)?;
                let (b_of_c, c_of_b) = there.resolve(&b, &c)?;
                // An endpoint has the same number in all addresses.
                let numbers = [of_b.qpn, of_c.qpn, of_own.qpn, a_of_b.qpn];
                check_eq!((a_of_c.qpn, a_of_own.qpn), (a_of_b.qpn, a_of_b.qpn));
                check_eq!((c_of_b.qpn, b_of_c.qpn), (of_b.qpn, of_c.qpn));
                check!(!numbers.contains(&0) && of_b.qpn != of_c.qpn, "{numbers:?}");
                let (a_addr, b_addr) = (mapped(&w.a)?, mapped(&w.b)?);
                check_eq!((of_b.ia_addr, of_c.ia_addr, of_own.ia_addr), (b_addr, b_addr, a_addr));
                check_eq!((a_of_b.ia_addr, a_of_own.ia_addr, b_of_c.ia_addr), (a_addr, a_addr, b_addr));
                check_eq!(a_addr != b_addr, f.setup.is_apart());
                // A second resolution of the same endpoint makes another address handle.
                let (again, _) = there.resolve(&a, &b)?;
                check_eq!((again.qpn, again.ia_addr), (of_b.qpn, of_b.ia_addr));
                check!(again.ah != of_b.ah);
                // A datagram goes to each of them.
                let from = w.region(&a, 64, MemPriv::ALL)?;
                from.fill(9);
                for (cookie, to, ah) in [(1, &b, of_b), (2, &c, of_c), (3, &own, of_own), (4, &b, again)] {
                    let into = w.region(to, 128, MemPriv::ALL)?;
                    to.receive(&[into.segment(0, 128)], cookie)?;
                    let event = super::datagrams::delivered(w, to, || {
                        w.a.ib_post_send_ud(a.ep, &[from.segment(0, 64)], &ah, 7, PLAIN)?;
                        a.done(7, DtoStatus::Success).map(drop)
                    })?;
                    let done = some(event.dto(), "a completion")?;
                    check_eq!((done.ep_handle, done.user_cookie), (to.ep, cookie));
                    check_eq!(into.bytes(40, 64), from.bytes(0, 64));
                }
                Ok(())
            })
        },
    ),
    // Two endpoints ask for each other at the same time: each gets two addresses of the other.
    test("dat_resolving::both_sides_ask", &["dat-ib-usage B02"], |f| {
        world(f, |w| {
            let (a, b) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?);
            let (at_a, at_b) = (point(&w.a)?, point(&w.b)?);
            at_b.ask(&a, b"from a")?;
            at_a.ask(&b, b"from b")?;
            check_eq!(
                (a.state()?, b.state()?),
                (EpState::ActiveConnectionPending, EpState::ActiveConnectionPending)
            );
            w.b.cr_accept(at_b.asked()?, b.ep, &[])?;
            w.a.cr_accept(at_a.asked()?, a.ep, &[])?;
            for end in [&a, &b] {
                let (one, other) = (established(end)?.0, established(end)?.0);
                let types = [one.ext_type, other.ext_type];
                check!(types.contains(&IbExtType::UdRemoteAh), "{types:?}");
                check!(types.contains(&IbExtType::UdPassiveRemoteAh), "{types:?}");
                check_eq!(
                    (one.remote_ah.qpn, one.remote_ah.qkey),
                    (other.remote_ah.qpn, other.remote_ah.qkey)
                );
                check_eq!(one.remote_ah.ia_addr, other.remote_ah.ia_addr);
                check_eq!(end.state()?, EpState::Connected);
                nothing(&end.ia, end.connect)?;
            }
            Ok(())
        })
    }),
    // One service point takes requests for connections and for datagram endpoints. Each is accepted
    // with an endpoint of its kind only; a refused accept leaves the request as it was.
    test("dat_resolving::one_point_takes_both_kinds", &["dat-ib-usage B03"], |f| {
        world(f, |w| {
            let point = point(&w.b)?;
            let (a, b) = (w.end(&w.a, &attributes())?, w.end(&w.b, &attributes())?);
            let (c, d) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?);
            let wrong = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
            point.ask(&a, &[])?;
            let connection = request(&w.b, point.evd)?;
            point.ask(&c, &[])?;
            let datagram = point.asked()?;
            refused(w.b.cr_accept(connection, d.ep, &[]), wrong)?;
            refused(w.b.cr_accept(datagram, b.ep, &[]), wrong)?;
            let none = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg2);
            refused(w.b.cr_accept(datagram, EpHandle::NULL, &[]), none)?;
            refused(w.b.cr_handoff(datagram, point.qual), ErrorType::NotImplemented.into())?;
            check_eq!((b.state()?, d.state()?), (EpState::Unconnected, EpState::Unconnected));
            w.b.cr_accept(datagram, d.ep, &[])?;
            w.b.cr_accept(connection, b.ep, &[])?;
            for cr in [datagram, connection] {
                let answered = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleCr);
                refused(w.b.cr_accept(cr, d.ep, &[]), answered)?;
                refused(w.b.cr_reject(cr, &[]), answered)?;
            }
            expect(&w.a, a.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            expect(&w.b, b.connect, EventNumber::CONNECTION_ESTABLISHED)?;
            established(&c)?;
            established(&d)?;
            Ok(())
        })
    }),
    // Private data up to the length of the field arrives; one byte more is refused and changes
    // nothing. Without private data none arrives.
    test("dat_resolving::private_data_has_a_limit", &["dat-ib-usage B04 B06"], |f| {
        world(f, |w| {
            let (question, answer) = (pattern(1, OF_REQUEST + 1), pattern(2, OF_ANSWER + 1));
            let (a, b) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?);
            let point = point(&w.b)?;
            let long = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg5);
            for data in [&question[..], &[0; 4096]] {
                refused(connect(&a, point.at, point.qual, LONG, data), long)?;
            }
            // A request to a service of rdma_cm contains the addresses as well.
            let of_rdma_cm = some(it::ConnQual::rdma_udp(7).to_service_id(), "a number")?;
            let with_addresses = &question[..OF_REQUEST - 36 + 1];
            refused(connect(&a, point.at, of_rdma_cm, LONG, with_addresses), long)?;
            check_eq!(a.state()?, EpState::Unconnected);
            point.ask(&a, &question[..OF_REQUEST])?;
            let cr = point.asked()?;
            says(w.b.cr_query(cr)?.private_data, &question[..OF_REQUEST], OF_REQUEST)?;
            let long = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg3);
            refused(w.b.cr_accept(cr, b.ep, &answer), long)?;
            refused(w.b.cr_reject(cr, &answer), long)?;
            check_eq!(b.state()?, EpState::Unconnected);
            w.b.cr_accept(cr, b.ep, &answer[..OF_ANSWER])?;
            says(established(&a)?.1, &answer[..OF_ANSWER], OF_ANSWER)?;
            says(established(&b)?.1, &question[..OF_REQUEST], OF_REQUEST)?;
            point.ask(&a, &[])?;
            let cr = point.asked()?;
            check_eq!(w.b.cr_query(cr)?.private_data, None);
            w.b.cr_accept(cr, b.ep, &[])?;
            check_eq!((established(&a)?.1, established(&b)?.1), (None, None));
            // A service of rdma_cm.
            let evd = evd(&w.b, EvdFlags::CR)?;
            w.b.psp_create(of_rdma_cm, evd, PspFlags::Consumer)?;
            connect(&a, point.at, of_rdma_cm, LONG, &question[..OF_REQUEST - 36])?;
            let cr = cr_of(&w.b, evd)?;
            says(w.b.cr_query(cr)?.private_data, &question[..OF_REQUEST - 36], OF_REQUEST - 36)?;
            w.b.cr_accept(cr, b.ep, &[])?;
            check_eq!(established(&b)?.0.remote_ah.qkey, 0x0123_4567);
            established(&a).map(drop)
        })
    }),
    // Each failure has its own event: a server that refuses, a qualifier without a service, a
    // reserved service point, and a server that does not answer. The endpoint is unchanged and can
    // ask again.
    test("dat_resolving::failures_are_events", &["DAT_IB_STATUS B01 F02"], |f| {
        world(f, |w| {
            check_eq!((REJECT.0.as_raw(), REJECT.1 as u32), (0x40003, 10));
            check_eq!((ERROR.0.as_raw(), ERROR.1 as u32), (0x40004, 11));
            let (a, b) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?);
            let point = point(&w.b)?;
            for data in [&b"no"[..], &pattern(5, OF_ANSWER), &[]] {
                point.ask(&a, b"please")?;
                let cr = point.asked()?;
                w.b.cr_reject(cr, data)?;
                let gone = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleCr);
                refused(w.b.cr_query(cr), gone)?;
                match (unresolved(&a, REJECT)?, data.is_empty()) {
                    (None, true) => {}
                    (came, _) => says(came, data, OF_ANSWER)?,
                }
                check_eq!(a.state()?, EpState::Unconnected);
            }
            // No service listens there.
            connect(&a, point.at, point.qual + 0x1000, LONG, &[])?;
            check_eq!(unresolved(&a, ERROR)?, None);
            // A reserved service point is for connections only, and stays reserved.
            let reserved = w.end(&w.b, &attributes())?;
            let evd = evd(&w.b, EvdFlags::CR)?;
            w.b.rsp_create(point.qual + 0x2000, reserved.ep, evd)?;
            connect(&a, point.at, point.qual + 0x2000, LONG, &[])?;
            nothing(&w.b, evd)?;
            check_eq!((unresolved(&a, ERROR)?, reserved.state()?), (None, EpState::Reserved));
            // The server takes the event of the request, but does not answer in time.
            connect(&a, point.at, point.qual, 100_000, &[])?;
            let late = point.asked()?;
            check_eq!((unresolved(&a, ERROR)?, a.state()?), (None, EpState::Unconnected));
            w.b.cr_reject(late, &[])?;
            nothing(&w.a, a.connect)?;
            // The failures have left nothing behind, and the endpoint can still resolve another
            // one.
            point.resolve(&a, &b)?;
            check_eq!((a.state()?, b.state()?), (EpState::Connected, EpState::Connected));
            // A failure does not disconnect an endpoint that has resolved another one.
            connect(&a, point.at, point.qual + 0x1000, LONG, &[])?;
            unresolved(&a, ERROR)?;
            check_eq!(a.state()?, EpState::Connected);
            Ok(())
        })
    }),
];

/// The next request for a datagram endpoint on an event dispatcher.
#[track_caller]
pub(crate) fn cr_of(ia: &Ia, evd: EvdHandle) -> Result<CrHandle, Failure> {
    cr(&expect(ia, evd, EventNumber::IB_UD_CONNECTION_REQUEST)?)
}

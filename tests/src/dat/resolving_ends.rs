//! Resolving datagram endpoints: refusals, the end of endpoints and of address handles, and peers
//! that are not DAT's.

use dat::*;
use privileged_api as it;

use super::resolving::*;
use super::world::*;
use crate::datagrams::{sidr, ud};
use crate::fixture::{path, sevd, spigot};
use crate::{Test, check, check_eq, refused, some, test};

/// The endpoint that an IT-API consumer names.
const INFO: it::RemoteEpInfo = it::RemoteEpInfo { ud_ep_id: 0x12_3456, ud_ep_key: 0x789a_bcde };

pub(crate) const TESTS: &[Test] = &[
    // Wrong requests are refused at once, and change nothing.
    test("dat_resolving::wrong_requests_are_refused", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?, point(&w.b)?);
            let bad = |subtype| Error::new(ErrorType::InvalidParameter, subtype);
            let nobody = IaAddress::from([0, 0, 0, 0]);
            let many = IaAddress::from([224, 0, 0, 9]);
            refused(connect(&a, point.at, 0, LONG, &[]), bad(Subtype::InvalidArg3))?;
            refused(connect(&a, point.at, point.qual, 0, &[]), bad(Subtype::InvalidArg4))?;
            for to in [nobody, many] {
                let kind = connect(&a, to, point.qual, LONG, &[]).map_err(Error::kind);
                check_eq!(kind, Err(ErrorType::InvalidAddress), "{to}");
            }
            for (qos, flags) in [
                (Qos::LOW_LATENCY, ConnectFlags::Default),
                (Qos::BEST_EFFORT, ConnectFlags::MultipathRequired),
            ] {
                let asked = w.a.ep_connect(a.ep, point.at, point.qual, LONG, &[], qos, flags);
                refused(asked, ErrorType::ModelNotSupported.into())?;
            }
            // Without an event dispatcher for connection events the endpoint can neither ask nor
            // answer.
            let ready = state(Subtype::InvalidStateEpNotReady);
            let parts = |end: &End| (end.pz, end.recv, end.request, EvdHandle::NULL);
            let (pz, recv, requests, none) = parts(&a);
            let mute = End { ep: w.a.ep_create(pz, recv, requests, none, Some(&datagrams()))?, ..a.clone() };
            refused(connect(&mute, point.at, point.qual, LONG, &[]), ready)?;
            let (pz, recv, requests, none) = parts(&b);
            let deaf = w.b.ep_create(pz, recv, requests, none, Some(&datagrams()))?;
            point.ask(&a, &[])?;
            let cr = point.asked()?;
            refused(w.b.cr_accept(cr, deaf, &[]), ready)?;
            // A datagram endpoint cannot be reserved, modified, or have a shared receive queue.
            let evd = evd(&w.b, EvdFlags::CR)?;
            let not = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
            refused(w.b.rsp_create(point.qual + 1, b.ep, evd), not)?;
            let param = w.b.ep_query(b.ep, EpParamMask::ALL)?;
            let changed = w.b.ep_modify(b.ep, EpParamMask::EP_ATTR_MAX_MESSAGE_SIZE, &param);
            refused(changed, bad(Subtype::InvalidArg2))?;
            let srq = w.b.srq_create(b.pz, &SrqAttr::default())?;
            let shared = w.b.ep_create_with_srq(b.pz, b.recv, b.request, b.connect, srq, &datagrams());
            refused(shared, bad(Subtype::InvalidArg7))?;
            let other = EpAttr { service_type: ServiceType(2), ..EpAttr::default() };
            let made = w.b.ep_create(b.pz, b.recv, b.request, b.connect, Some(&other));
            refused(made, bad(Subtype::InvalidArg6))?;
            // The endpoints are unchanged.
            check_eq!((b.state()?, w.b.ep_query(b.ep, EpParamMask::ALL)?), (EpState::Unconnected, param));
            w.b.cr_accept(cr, b.ep, &[])?;
            established(&a)?;
            established(&b)?;
            Ok(())
        })
    }),
    // A disconnect cancels the endpoint's requests, frees its addresses, and is reported by an
    // event. An answer that comes later makes no event. After a reset the endpoint can resolve and
    // be resolved again.
    test("dat_resolving::a_disconnect_forgets_everything", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?, point(&w.b)?);
            let is = |subtype| state(subtype);
            refused(w.a.ep_disconnect(a.ep, CloseFlags::Abrupt), is(Subtype::InvalidStateEpUnconnected))?;
            for flags in [CloseFlags::Abrupt, CloseFlags::Graceful] {
                for resolved in [false, true] {
                    w.a.ep_reset(a.ep)?;
                    let of_b = if resolved { Some(point.resolve(&a, &b)?.0) } else { None };
                    point.ask(&a, &[])?;
                    let cr = point.asked()?;
                    let now = match resolved {
                        true => Subtype::InvalidStateEpConnected,
                        false => Subtype::InvalidStateEpActConnPending,
                    };
                    refused(w.a.ep_reset(a.ep), is(now))?;
                    w.a.ep_disconnect(a.ep, flags)?;
                    let event = expect(&w.a, a.connect, EventNumber::CONNECTION_DISCONNECTED)?;
                    check_eq!(event.extension, None);
                    let said = Connection { ep_handle: a.ep, private_data: None };
                    check_eq!(event.event_data, EventData::Connection(said));
                    check_eq!(a.state()?, EpState::Disconnected);
                    if let Some(of_b) = of_b {
                        is_freed(&a, of_b.ah)?;
                    }
                    w.b.cr_accept(cr, b.ep, &[])?;
                    established(&b)?;
                    nothing(&w.a, a.connect)?;
                    // A second disconnect does nothing, and the endpoint can ask for nothing.
                    w.a.ep_disconnect(a.ep, flags)?;
                    nothing(&w.a, a.connect)?;
                    let over = is(Subtype::InvalidStateEpDisconnected);
                    refused(connect(&a, point.at, point.qual, LONG, &[]), over)?;
                    check_eq!(a.state()?, EpState::Disconnected);
                    w.a.ep_reset(a.ep)?;
                    check_eq!(a.state()?, EpState::Unconnected);
                    check_eq!(w.a.ep_query(a.ep, EpParamMask::ALL)?.remote_ia_address, None);
                }
            }
            // The server's endpoint also disconnects.
            point.ask(&a, &[])?;
            let cr = point.asked()?;
            w.b.ep_disconnect(b.ep, CloseFlags::Abrupt)?;
            expect(&w.b, b.connect, EventNumber::CONNECTION_DISCONNECTED)?;
            refused(w.b.cr_accept(cr, b.ep, &[]), is(Subtype::InvalidStateEpDisconnected))?;
            w.b.ep_reset(b.ep)?;
            w.b.cr_accept(cr, b.ep, &[])?;
            established(&a)?;
            established(&b)?;
            Ok(())
        })
    }),
    // A rejected request leaves the addresses that the endpoint has, which it frees at its end.
    test("dat_resolving::a_rejection_leaves_other_addresses", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?, point(&w.b)?);
            let address = point.resolve(&a, &b)?.0.ah;
            point.ask(&a, &[])?;
            w.b.cr_reject(point.asked()?, &[])?;
            expect(&w.a, a.connect, EventNumber::IB_UD_CONNECTION_REJECT)?;
            check_eq!(w.a.get_handle_type(address)?, HandleType::IbExt);
            w.a.ep_free(a.ep)?;
            is_freed(&a, address)?;
            Ok(w.a.pz_free(a.pz)?)
        })
    }),
    // A datagram endpoint can be freed at any time: its requests are cancelled, its addresses
    // freed, and no event of it is left, so that its zone and its event dispatchers can be freed.
    test("dat_resolving::an_endpoint_is_freed_without_a_disconnect", &["dat-ib-usage B07"], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?, point(&w.b)?);
            let (of_b, of_a) = point.resolve(&a, &b)?;
            // One request is not answered, and the consumer does not take one answer and one event
            // of the server.
            point.ask(&a, &[])?;
            let unanswered = point.asked()?;
            point.ask(&a, &[])?;
            w.b.cr_accept(point.asked()?, b.ep, &[])?;
            let busy = Error::new(ErrorType::InvalidState, Subtype::InvalidStatePzInUse);
            for (end, ah) in [(&a, of_b.ah), (&b, of_a.ah)] {
                check_eq!(end.state()?, EpState::Connected);
                refused(end.ia.pz_free(end.pz), busy)?;
                end.ia.ep_free(end.ep)?;
                is_freed(end, ah)?;
                nothing(&end.ia, end.connect)?;
                let gone = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
                refused(end.ia.ep_get_status(end.ep), gone)?;
                refused(connect(end, point.at, point.qual, LONG, &[]), gone)?;
                for evd in [end.recv, end.request, end.connect] {
                    end.ia.evd_free(evd)?;
                }
                end.ia.pz_free(end.pz)?;
            }
            let c = w.end(&w.b, &datagrams())?;
            w.b.cr_accept(unanswered, c.ep, &[])?;
            established(&c)?;
            Ok(())
        })
    }),
    // The consumer can free an address handle earlier. No datagram can be sent with it then; the
    // endpoint's other address handles stay valid.
    test("dat_resolving::an_address_handle_is_freed", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?, point(&w.b)?);
            let (one, back) = point.resolve(&a, &b)?;
            let (other, _) = point.resolve(&a, &b)?;
            let bad = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandle2);
            let idle = w.end(&w.a, &datagrams())?;
            for (ep, ah) in [(a.ep, AhHandle::NULL), (a.ep, back.ah), (idle.ep, one.ah)] {
                refused(w.a.ib_ud_ah_free(ep, ah), bad)?;
            }
            let not = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
            for ep in [EpHandle::NULL, b.ep, EpHandle::from_raw(one.ah.as_raw())] {
                refused(w.a.ib_ud_ah_free(ep, one.ah), not)?;
            }
            w.a.ib_ud_ah_free(a.ep, one.ah)?;
            refused(w.a.ib_ud_ah_free(a.ep, one.ah), bad)?;
            is_freed(&a, one.ah)?;
            refused(w.a.ib_post_send_ud(a.ep, &[], &one, 1, PLAIN), bad)?;
            w.a.ib_post_send_ud(a.ep, &[], &other, 2, PLAIN)?;
            a.done(2, DtoStatus::Success)?;
            check_eq!(a.state()?, EpState::Connected);
            w.a.ib_ud_ah_free(a.ep, other.ah)?;
            w.a.ep_free(a.ep)?;
            Ok(w.a.pz_free(a.pz)?)
        })
    }),
    // If the event dispatcher has no room for the server's event, the accept fails and the request
    // can be accepted later; the client gets one answer.
    test("dat_resolving::an_accept_needs_room_for_its_event", &[], |f| {
        world(f, |w| {
            let (a, b, point) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?, point(&w.b)?);
            let connect = w.b.evd_create(1, CnoHandle::NULL, EvdFlags::CONNECTION)?;
            let ep = w.b.ep_create(b.pz, b.recv, b.request, connect, Some(&datagrams()))?;
            let b = End { ep, connect, ..b };
            let mut accepted = 0;
            let late = loop {
                point.ask(&a, &[])?;
                let cr = point.asked()?;
                match w.b.cr_accept(cr, b.ep, &[]) {
                    Ok(()) => accepted += 1,
                    Err(error) => {
                        let full = ErrorType::InsufficientResources;
                        check_eq!(error, Error::new(full, Subtype::ResourceTevd));
                        break cr;
                    }
                }
                check!(accepted <= QLEN, "{accepted} events on an event dispatcher for one");
                established(&a)?;
            };
            check!(accepted > 0);
            nothing(&w.a, a.connect)?;
            established(&b)?;
            w.b.cr_accept(late, b.ep, &[])?;
            established(&a)?;
            for _ in 0..accepted {
                established(&b)?;
            }
            nothing(&w.b, b.connect)?;
            nothing(&w.a, a.connect)
        })
    }),
    // An IT-API consumer answers a DAT client with the number and key of any endpoint, and refuses
    // another request.
    test("dat_resolving::another_face_answers", &["DAT_IB_ADDR_HANDLE F02"], |f| {
        world(f, |w| {
            let (a, listener) = (w.end(&w.a, &datagrams())?, f.listen(&f.b)?);
            let qual = some(listener.conn_qual.to_service_id(), "a number")?;
            dial(&a, address(&w.b)?, qual, b"hello")?;
            let asked = sidr::request(&listener)?;
            let data = some(asked.private_data, "private data")?;
            check_eq!((&data[..4], &data[12..17]), (&b"DAT2"[..], &b"hello"[..]));
            f.b.ud_service_reply(asked.ud_svc_req_id, it::UdSvcStatus::EpInfoValid, INFO, b"hi")?;
            let (extension, data) = established(&a)?;
            let remote = extension.remote_ah;
            check_eq!((remote.qpn, remote.qkey), (INFO.ud_ep_id, INFO.ud_ep_key));
            says(data, b"hi", OF_ANSWER)?;
            for (status, expected) in [
                (it::UdSvcStatus::Rejected, REJECT),
                (it::UdSvcStatus::NoEpAvailable, ERROR),
                (it::UdSvcStatus::IdNotSupported, ERROR),
            ] {
                dial(&a, address(&w.b)?, qual, &[])?;
                let id = sidr::request(&listener)?.ud_svc_req_id;
                f.b.ud_service_reply(id, status, INFO, b"no")?;
                says(unresolved(&a, expected)?, b"no", OF_ANSWER)?;
            }
            check_eq!(a.state()?, EpState::Connected);
            Ok(())
        })
    }),
    // A DAT server answers an IT-API client. It does not get the client's endpoint: the number is
    // 0.
    test("dat_resolving::another_face_asks", &["DAT_IB_ADDR_HANDLE F02"], |f| {
        world(f, |w| {
            let (b, point) = (w.end(&w.b, &datagrams())?, point(&w.b)?);
            let replies = sevd(&f.a, it::EventType::CM_MSG_EVENT_STREAM, 16, 1)?;
            let there = some(spigot(&f.b)?.net_addr.first().copied(), "an address")?;
            let (way, qual) = (path(&f.a, &there)?, it::ConnQual::service_id(point.qual));
            let mut number = None;
            for data in [&b"DAT1 is not DAT2"[..], b"", b"DAT2"] {
                let asking = f.a.ud_service_request_handle_create(&qual, replies, &way, data)?;
                f.a.ud_service_request(asking)?;
                let cr = point.asked()?;
                match (w.b.cr_query(cr)?.private_data, data.is_empty()) {
                    (None, true) => {}
                    // The consumer's data does not contain the header of DAT's requests.
                    (None, false) => check_eq!(data, b"DAT2"),
                    (came, _) => says(came, data, 216)?,
                }
                w.b.cr_accept(cr, b.ep, b"yes")?;
                let reply = sidr::reply(&f.a, replies)?;
                check_eq!((reply.ud_svc, reply.status), (asking, it::UdSvcStatus::EpInfoValid));
                says(reply.private_data, b"yes", OF_ANSWER)?;
                check_eq!(reply.ep_info.ud_ep_key, 0x0123_4567);
                check_eq!(reply.ep_info.ud_ep_id, *number.get_or_insert(reply.ep_info.ud_ep_id));
                let remote = established(&b)?.0.remote_ah;
                check_eq!((remote.qpn, remote.qkey), (0, 0));
                check!(!remote.ah.is_null());
            }
            // The number is the right one: a datagram to it arrives at the endpoint.
            let peer = ud::peer(&f.a, &ud::datagrams())?;
            let ep_info = it::RemoteEpInfo { ud_ep_id: number.unwrap_or_default(), ud_ep_key: 0x0123_4567 };
            let to = it::DgRemoteEpAddr::IbUd { addr: ud::address(&f.a, peer.pz, &f.b)?, ep_info };
            let into = w.region(&b, 64, MemPriv::ALL)?;
            b.receive(&[into.segment(0, 64)], 3)?;
            super::datagrams::delivered(w, &b, || {
                f.a.post_sendto(peer.ep, &[], 1, crate::fixture::SIGNALLED, &to)?;
                peer.sent(1, it::DtoStatus::Success)
            })?;
            // So is the number that a DAT client gets.
            let a = w.end(&w.a, &datagrams())?;
            check_eq!(Some(point.resolve(&a, &b)?.0.qpn), number);
            Ok(())
        })
    }),
    // An event dispatcher of the extensions takes the requests and the events of datagram
    // endpoints, without the streams of connections.
    test("dat_resolving::an_event_dispatcher_for_extensions", &["DAT_IB_EVD_EXTENSION_FLAGS F01"], |f| {
        world(f, |w| {
            check_eq!(EvdFlags::IB_EXTENSION.bits(), 0x200);
            let (a, b) = (w.end(&w.a, &datagrams())?, w.end(&w.b, &datagrams())?);
            let on = |end: &End| {
                let connect = evd(&end.ia, EvdFlags::IB_EXTENSION)?;
                let ep = end.ia.ep_create(end.pz, end.recv, end.request, connect, Some(&datagrams()))?;
                Ok::<_, crate::Failure>(End { ep, connect, ..end.clone() })
            };
            let (a, b) = (on(&a)?, on(&b)?);
            check_eq!(w.b.evd_query(b.connect)?.evd_flags, EvdFlags::IB_EXTENSION);
            let (qual, psp) = w.b.psp_create_any(b.connect, PspFlags::Consumer)?;
            dial(&a, address(&w.b)?, qual, &[])?;
            w.b.cr_accept(cr_of(&w.b, b.connect)?, b.ep, &[])?;
            established(&a)?;
            established(&b)?;
            dial(&a, address(&w.b)?, qual, &[])?;
            w.b.cr_reject(cr_of(&w.b, b.connect)?, &[])?;
            unresolved(&a, REJECT)?;
            w.a.ep_disconnect(a.ep, CloseFlags::Abrupt)?;
            expect(&w.a, a.connect, EventNumber::CONNECTION_DISCONNECTED)?;
            w.b.psp_free(psp)?;
            // It takes no other events.
            let (pz, refuse) = (a.pz, |subtype| Error::new(ErrorType::InvalidHandle, subtype));
            let made = w.a.ep_create(pz, a.connect, a.request, a.connect, Some(&datagrams()));
            refused(made, refuse(Subtype::InvalidHandleEvdRecv))?;
            let made = w.a.ep_create(pz, a.recv, a.connect, a.connect, Some(&datagrams()));
            refused(made, refuse(Subtype::InvalidHandleEvdRequest))?;
            let posted = w.a.evd_post_se(a.connect, &Event::software(a.connect, 1));
            refused(posted, refuse(Subtype::InvalidHandle1))
        })
    }),
];

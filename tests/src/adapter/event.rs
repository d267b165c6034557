//! Event numbers, streams, and the type that holds every event (page it_event_t).

use core::result::Result;

use privileged_api::*;

use crate::datagrams::sidr::{asking, request};
use crate::datagrams::ud::two;
use crate::fixture::{OPEN, SIGNALLED, WAIT, attributes, completion, path, sevd};
use crate::{Failure, Test, check, check_eq, refused, test};

/// All event streams.
const STREAMS: [EventType; 7] = [
    EventType::DTO_EVENT_STREAM,
    EventType::CM_REQ_EVENT_STREAM,
    EventType::CM_MSG_EVENT_STREAM,
    EventType::ASYNC_AFF_EVENT_STREAM,
    EventType::ASYNC_UNAFF_EVENT_STREAM,
    EventType::SOFTWARE_EVENT_STREAM,
    EventType::AEVD_NOTIFICATION_EVENT_STREAM,
];

/// The next event of an EVD, which must have this number and name this EVD.
#[track_caller]
fn next(ia: &Ia, evd: EvdHandle, number: EventType) -> Result<Event, Failure> {
    let (event, _) = ia.evd_wait(evd, WAIT)?;
    match event.event_number() == number && event.evd() == evd {
        true => Ok(event),
        false => Err(Failure::new(alloc::format!("expected {number:?} on {evd:?}, got {event:?}"))),
    }
}

pub(crate) const TESTS: &[Test] = &[
    // Event numbers have the header's values, old names equal the new ones, and no event has an
    // unassigned number.
    test("event::numbers", &["it_event_t F09 F29-F33 F36-F43 F46", "A.it_event_t V01"], |_| {
        check_eq!(EventType::RMR_BIND_CMPL.as_raw(), 0x00006);
        check_eq!(EventType::RMR_BIND_CMPL, EventType::RMR_LINK_CMPL);
        let old = EventType::ASYNC_AFF_EP_LOCAL_ACCESS_VIOLATION;
        check_eq!((old.as_raw(), old), (0x04020, EventType::ASYNC_AFF_EP_L_ACCESS_VIOLATION));
        for (number, value) in [
            (EventType::ASYNC_AFF_EP_REQ_DROPPED, 0x04005),
            (EventType::ASYNC_AFF_EP_RDMAW_ACCESS_VIOLATION, 0x04006),
            (EventType::ASYNC_AFF_EP_RDMAW_CORRUPT_DATA, 0x04007),
            (EventType::ASYNC_AFF_EP_RDMAR_ACCESS_VIOLATION, 0x04008),
            (EventType::ASYNC_AFF_EP_L_IRRQ_ACCESS_VIOLATION, 0x04022),
            (EventType::ASYNC_AFF_EP_L_TRANSPORT_ERROR, 0x04023),
            (EventType::ASYNC_AFF_EP_L_LLP_ERROR, 0x04024),
            (EventType::ASYNC_AFF_EP_R_ERROR, 0x04040),
            (EventType::ASYNC_AFF_EP_R_ACCESS_VIOLATION, 0x04041),
            (EventType::ASYNC_AFF_EP_R_RECV_ACCESS_VIOLATION, 0x04042),
            (EventType::ASYNC_AFF_EP_R_RECV_LENGTH_ERROR, 0x04043),
            (EventType::ASYNC_AFF_EP_SOFT_HI_WATERMARK, 0x04060),
        ] {
            check_eq!(number.as_raw(), value, "{number:?}");
            check_eq!(number.stream(), EventType::ASYNC_AFF_EVENT_STREAM, "{number:?}");
        }
        check_eq!(EventType::ASYNC_AFF_EP_L_LLP_ERROR.name(), Some("IT_ASYNC_AFF_EP_L_LLP_ERROR"));
        // These numbers are not assigned, so no event has them.
        for value in [0x0000a, 0x04004, 0x08001, 0x08005, 0x10002, 0x20002] {
            check_eq!(EventType(value).name(), None, "{value:#x}");
        }
        // Each bit of the stream mask belongs to one stream.
        for (place, one) in STREAMS.iter().enumerate() {
            check_eq!(one.as_raw() & !EVENT_STREAM_MASK, 0);
            for other in &STREAMS[place + 1..] {
                check_eq!(one.as_raw() & other.as_raw(), 0, "{one:?} and {other:?}");
            }
        }
        Ok(())
    }),
    // One type holds the event of every stream, and returns the event's number.
    test("event::every_event_fits", &["it_event_t B02 F56", "it_cm_msg_events B10"], |_| {
        let largest = [
            size_of::<DtoCompletion>(),
            size_of::<ConnRequest>(),
            size_of::<UdServiceRequest>(),
            size_of::<UdServiceReply>(),
        ];
        check!(largest.iter().all(|size| *size <= size_of::<Event>()), "{largest:?}");
        // The type `Event` holds the events of all streams and returns the number of each.
        let ep = EpHandle::NULL;
        let evd = EvdHandle::NULL;
        let events = [
            (Event::Dto(DtoCompletion::default()), EventType::DTO_EVENT_STREAM),
            (Event::ConnDisconnect { evd, ep, private_data: None }, EventType::CM_MSG_CONN_DISCONNECT),
            (Event::ConnBroken { evd, ep }, EventType::CM_MSG_CONN_BROKEN),
            (Event::Software { evd, data: 1 }, EventType::SOFTWARE),
            (Event::AevdNotification { aevd: evd, sevd: evd }, EventType::AEVD_NOTIFICATION),
        ];
        for (event, number) in events {
            check_eq!(event.event_number(), number);
        }
        Ok(())
    }),
    // Each event of a connection names its EVD, its number and its endpoint.
    test("event::of_connections", &["it_event_t F54 F55 F57 F60 F62"], |f| {
        let listener = f.listen(&f.b)?;
        let ask = |flags| {
            let (a, b) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
            f.dial(&a, &listener, flags, &[])?;
            let event = next(&f.b, listener.evd, EventType::CM_REQ_CONN_REQUEST)?;
            match event {
                Event::ConnRequest(request) => Ok((a, b, request)),
                other => Err(Failure::new(alloc::format!("not a request: {other:?}"))),
            }
        };
        // The events of a three-way connection: acceptance arrived, established, disconnected.
        let (a, b, request) = ask(CnEstFlags::THREE_WAY)?;
        f.b.ep_accept(b.ep, request.cn_est_id, &[])?;
        let arrived = next(&f.a, a.conn, EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?;
        let Event::ConnAcceptArrival { ep, cn_est_id, .. } = arrived else {
            return Err(Failure::new("not an arrival"));
        };
        check_eq!(ep, a.ep);
        f.a.ep_accept(a.ep, cn_est_id, &[])?;
        for end in [&a, &b] {
            let event = next(&end.ia, end.conn, EventType::CM_MSG_CONN_ESTABLISHED)?;
            check!(matches!(event, Event::ConnEstablished { ep, .. } if ep == end.ep));
        }
        f.a.ep_disconnect(a.ep, &[])?;
        for end in [&a, &b] {
            let event = next(&end.ia, end.conn, EventType::CM_MSG_CONN_DISCONNECT)?;
            check!(matches!(event, Event::ConnDisconnect { ep, .. } if ep == end.ep));
        }
        // A rejection by the peer's consumer, and one by the peer because there is no listen
        // point.
        let (a, _, request) = ask(CnEstFlags::TWO_WAY)?;
        f.b.reject(request.cn_est_id, &[])?;
        let event = next(&f.a, a.conn, EventType::CM_MSG_CONN_PEER_REJECT)?;
        check!(matches!(event, Event::ConnPeerReject { ep, .. } if ep == a.ep));
        let end = f.end(&f.a, &attributes())?;
        let route = path(&f.a, &listener.address)?;
        f.a.ep_connect(end.ep, &route, None, &ConnQual::port(9), CnEstFlags::TWO_WAY, &[])?;
        let event = next(&f.a, end.conn, EventType::CM_MSG_CONN_NONPEER_REJECT)?;
        check!(matches!(event, Event::ConnNonpeerReject { ep, .. } if ep == end.ep));
        // A broken connection.
        let pair = f.pair()?;
        f.a.post_send(pair.a.ep, &[LmrTriplet::new(LmrHandle::NULL, 0, 8)], 1, SIGNALLED)?;
        let event = next(&f.a, pair.a.conn, EventType::CM_MSG_CONN_BROKEN)?;
        check!(matches!(event, Event::ConnBroken { ep, .. } if ep == pair.a.ep));
        Ok(())
    }),
    // Completions of datagrams, UD service requests and replies name their EVD and their number.
    test("event::of_datagrams", &["it_event_t F55 F59 F61 F63"], |f| {
        let two = two(f)?;
        two.b.ia.post_recvfrom(two.b.ep, &[two.into.segment(0, 200)], 1, SIGNALLED)?;
        two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, 8)], 2, SIGNALLED, &two.to_b)?;
        next(&two.a.ia, two.a.request, EventType::DTO_SEND_CMPL)?;
        let done = two.b.arrival(f, || {
            two.a.ia.post_sendto(two.a.ep, &[two.from.segment(0, 8)], 2, SIGNALLED, &two.to_b)?;
            next(&two.a.ia, two.a.request, EventType::DTO_SEND_CMPL).map(drop)
        })?;
        check_eq!((done.event_number, done.evd), (EventType::DTO_UD_RECV_CMPL, two.b.recv));
        check_eq!((done.ud_ep_id, done.ep), (two.a.info.ud_ep_id, two.b.ep));
        check!(done.flags.contains(DtoUdFlags::IB_GRH_PRESENT));
        check!(done.src_path(&two.into.bytes(0, 40)).is_some());
        let asking = asking(f, b"?")?;
        f.a.ud_service_request(asking.handle)?;
        let asked = request(&asking.listener)?;
        check_eq!(asked.evd, asking.listener.evd);
        f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::Rejected, RemoteEpInfo::default(), &[])?;
        let event = next(&f.a, asking.evd, EventType::CM_MSG_UD_SERVICE_REPLY)?;
        check!(matches!(event, Event::UdServiceReply(reply) if reply.ud_svc == asking.handle));
        Ok(())
    }),
    // Software events and asynchronous events name their EVD and their number.
    test("event::of_software_and_of_the_adapter", &["it_event_t F55 F64-F66"], |f| {
        let software = sevd(&f.a, EventType::SOFTWARE_EVENT_STREAM, 4, 1)?;
        f.a.evd_post_se(software, 0x1234)?;
        let event = next(&f.a, software, EventType::SOFTWARE)?;
        check_eq!(event, Event::Software { evd: software, data: 0x1234 });
        let affiliated = sevd(&f.a, EventType::ASYNC_AFF_EVENT_STREAM, 4, 1)?;
        let srq = f.a.srq_create(f.a.pz_create()?, 1, 8)?;
        let mark = SrqParam { low_watermark: 2, ..SrqParam::default() };
        f.a.srq_modify(srq, SrqParamMask::LOW_WATERMARK, &mark)?;
        let event = next(&f.a, affiliated, EventType::ASYNC_AFF_SRQ_LOW_WATERMARK)?;
        check!(matches!(event, Event::Affiliated { cause: AffiliatedCause::Srq(of), .. } if of == srq));
        let unaffiliated = sevd(&f.a, EventType::ASYNC_UNAFF_EVENT_STREAM, 4, 1)?;
        for (up, number) in
            [(false, EventType::ASYNC_UNAFF_SPIGOT_OFFLINE), (true, EventType::ASYNC_UNAFF_SPIGOT_ONLINE)]
        {
            f.port(up)?;
            let event = next(&f.a, unaffiliated, number)?;
            check!(matches!(event, Event::Unaffiliated { ia, .. } if ia == f.a.handle()));
        }
        Ok(())
    }),
    // A simple EVD takes events of one stream only: each call refuses an EVD of another stream.
    test("event::one_stream_per_evd", &["it_event_t L01"], |f| {
        let pz = f.a.pz_create()?;
        let dto = sevd(&f.a, EventType::DTO_EVENT_STREAM, 8, 1)?;
        let conn = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 8, 1)?;
        let create = |request, recv, connect| {
            f.a.ep_rc_create(pz, request, recv, connect, EpFlags::empty(), &attributes())
        };
        refused(create(dto, dto, dto), Error::InvalidEvdType)?;
        refused(create(conn, dto, conn), Error::InvalidEvdType)?;
        refused(create(dto, conn, conn), Error::InvalidEvdType)?;
        refused(f.a.evd_post_se(dto, 1), Error::InvalidSoftEvd)?;
        // Completions of Sends and of Receives are events of one stream, so one EVD may take both.
        let ep = create(dto, dto, conn)?;
        f.a.ep_free(ep)?;
        let pair = f.pair()?;
        let region = f.region(&f.a, pair.a.pz, 8, OPEN)?;
        f.a.post_recv(pair.a.ep, &[region.whole()], 1, DtoFlags::COMPLETION)?;
        f.b.post_send(pair.b.ep, &[], 2, SIGNALLED)?;
        check_eq!(completion(&f.a, pair.a.recv)?.event_number, EventType::DTO_RC_RECV_CMPL);
        Ok(())
    }),
];

//! Listen points (pages it_listen_create, it_listen_query, it_listen_free).

use alloc::vec::Vec;

use privileged_api::*;

use crate::check::some;
use crate::connections::connect::TWO_WAY;
use crate::connections::establish::not_made;
use crate::events::aevd::naming;
use crate::fixture::{End, Fixture, Listener, MOMENT, WAIT, attributes, evd_param, path, sevd, spigot};
use crate::thread::eventually;
use crate::transport::Need;
use crate::{Failure, Outcome, Test, Transport, check, check_eq, refused, test};

/// Waits for the end of an attempt to connect. If its request arrives on `requests`, it is
/// rejected, and the end is that; if not, the end is a rejection for another reason.
fn answered(f: &Fixture, active: &End, requests: EvdHandle) -> Outcome {
    let (mut end, mut rejected) = (None, false);
    let over = || {
        if let Ok(Event::ConnRequest(request)) = f.b.evd_dequeue(requests) {
            rejected = f.b.reject(request.cn_est_id, &[]).is_ok();
        }
        end = f.a.evd_dequeue(active.conn).ok();
        end.is_some()
    };
    check!(eventually(f.platform(), over), "no answer");
    match end {
        // MPA has one rejection.
        Some(Event::ConnPeerReject { .. }) if rejected || f.setup.transport == Transport::Iwarp => Ok(()),
        Some(Event::ConnNonpeerReject { reject_reason_code: RejectReason::Other, .. }) if !rejected => Ok(()),
        // The peer refuses the TCP connection.
        Some(Event::ConnNonpeerReject { reject_reason_code: RejectReason::BadPath, .. })
            if f.setup.transport == Transport::Iwarp =>
        {
            Ok(())
        }
        other => Err(Failure::new(alloc::format!("got {other:?}, rejected: {rejected}"))),
    }
}

/// Fills the EVD of a listener with requests. Returns the endpoints that asked.
fn fill(f: &Fixture, listener: &Listener) -> Result<Vec<End>, Failure> {
    let room = evd_param(&f.b, listener.evd)?.sevd_queue_size;
    check!(room <= 16, "the smallest queue holds {room} requests");
    let mut waiting = Vec::new();
    for _ in 0..room {
        let end = f.end(&f.a, &attributes())?;
        f.dial(&end, listener, TWO_WAY, &[])?;
        waiting.push(end);
        let count = waiting.len();
        check!(eventually(f.platform(), || f.b.object_counts().cn_est >= count));
    }
    Ok(waiting)
}

pub(crate) const TESTS: &[Test] = &[
    // A listen point has the qualifier that was given or chosen, and a freed one is invalid.
    test(
        "listen::create_query_free",
        &[
            "it_listen_create B01-B03 F01-F03",
            "it_listen_query B01 F01-F05 IT_ERR_INVALID_LISTEN IT_ERR_INVALID_MASK",
            "it_listen_free S03 IT_ERR_INVALID_LISTEN",
            "it_ia_info_t F14",
            "it_conn_qual_t B01 F01 F02 F07 F08",
            "it_status_t F46",
        ],
        |f| {
            check_eq!((ConnQualTypes::IANA_PORT.bits(), ConnQualTypes::IB_SERVICEID.bits()), (1, 2));
            let spigot = spigot(&f.b)?;
            check!(spigot.passive_side_conn_qual.contains(ConnQualTypes::IANA_PORT));
            check!(spigot.active_side_conn_qual.contains(ConnQualTypes::IANA_PORT));
            check_eq!(ConnQual::port(0x1234), ConnQual::IanaPort(u16::from_ne_bytes([0x12, 0x34])));
            let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
            check_eq!(
                ConnQual::service_id(0x0102_0304_0506_0708),
                ConnQual::IbServiceId(u64::from_ne_bytes(bytes))
            );
            let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
            let second = match f.setup.transport {
                Transport::InfiniBand => ConnQual::service_id(0x1234_5678_9abc),
                Transport::Iwarp => ConnQual::port(4712),
            };
            let given = [Some(ConnQual::port(4711)), Some(second), None];
            for qual in given {
                let flags = if qual.is_some() { ListenFlags::CONN_QUAL_INPUT } else { ListenFlags::empty() };
                let (listen, used) = f.b.listen_create(spigot.spigot_id, evd, flags, qual.as_ref())?;
                check!(qual.is_none() || qual == Some(used));
                let all = f.b.listen_query(listen, ListenParamMask::ALL)?;
                let expected = ListenParam {
                    ia_handle: f.b.handle(),
                    spigot_id: spigot.spigot_id,
                    connect_evd: evd,
                    connect_qual: used,
                };
                check_eq!(all, expected);
                let one = f.b.listen_query(listen, ListenParamMask::CONNECT_EVD)?;
                check_eq!(one, ListenParam { connect_evd: evd, ..ListenParam::default() });
                for bits in [0x20, 0x8000_0000, u32::MAX] {
                    let mask = ListenParamMask::from_bits_retain(bits);
                    refused(f.b.listen_query(listen, mask), Error::InvalidMask)?;
                }
                f.b.listen_free(listen)?;
                refused(f.b.listen_query(listen, ListenParamMask::ALL), Error::InvalidListen)?;
                refused(f.b.listen_free(listen), Error::InvalidListen)?;
            }
            for listen in [ListenHandle::NULL, ListenHandle::from_raw(u64::MAX)] {
                refused(f.b.listen_query(listen, ListenParamMask::ALL), Error::InvalidListen)?;
                refused(f.b.listen_free(listen), Error::InvalidListen)?;
            }
            check_eq!(f.b.object_counts().listen, 0);
            check_eq!(Error::InvalidListen as u32, 45);
            Ok(())
        },
    ),
    // Each bad argument is refused with its own error.
    test(
        "listen::refusals",
        &[
            "it_listen_create F01 IT_ERR_INVALID_CONN_EVD IT_ERR_INVALID_CONN_QUAL",
            "it_listen_create IT_ERR_INVALID_EVD_TYPE IT_ERR_INVALID_FLAGS IT_ERR_INVALID_SPIGOT",
        ],
        |f| {
            let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
            let id = spigot(&f.b)?.spigot_id;
            let none = ListenFlags::empty();
            let freed = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
            f.b.evd_free(freed)?;
            let foreign = sevd(&f.a, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
            for bad in [EvdHandle::NULL, freed, foreign, EvdHandle::from_raw(3)] {
                refused(f.b.listen_create(id, bad, none, None), Error::InvalidConnEvd)?;
            }
            for stream in [EventType::CM_MSG_EVENT_STREAM, EventType::DTO_EVENT_STREAM] {
                let other = sevd(&f.b, stream, 8, 1)?;
                refused(f.b.listen_create(id, other, none, None), Error::InvalidEvdType)?;
            }
            for spigot in [id + 1, usize::MAX] {
                refused(f.b.listen_create(spigot, evd, none, None), Error::InvalidSpigot)?;
            }
            for bits in [4, 0x8000_0000, u32::MAX] {
                let flags = ListenFlags::from_bits_retain(bits);
                refused(f.b.listen_create(id, evd, flags, None), Error::InvalidFlags)?;
            }
            let input = ListenFlags::CONN_QUAL_INPUT;
            let discriminator = ViaDiscriminator { len: 2, discriminator: [0; MAX_VIA_DISC_LEN] };
            for qual in [
                None,
                Some(ConnQual::ViaDiscriminator(discriminator)),
                Some(ConnQual::IanaLrPort { local: 1, remote: 2 }),
            ] {
                let listen = f.b.listen_create(id, evd, input, qual.as_ref());
                refused(listen, Error::InvalidConnQual)?;
            }
            check_eq!(f.b.object_counts().listen, 0);
            Ok(())
        },
    ),
    // A qualifier, in either of its two forms, has one listen point at most.
    test(
        "listen::one_listen_point_per_qualifier",
        &["it_listen_create IT_ERR_CONN_QUAL_BUSY", "A.it_conn_qual_t B02", "it_status_t F10"],
        |f| {
            let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
            let id = spigot(&f.b)?.spigot_id;
            let listen = |qual| f.b.listen_create(id, evd, ListenFlags::CONN_QUAL_INPUT, Some(&qual));
            let (first, _) = listen(ConnQual::port(0x0abc))?;
            refused(listen(ConnQual::port(0x0abc)), Error::ConnQualBusy)?;
            let same = match f.setup.transport {
                // The same service as an InfiniBand service ID: 10 00 0C E1 00 00, then the port.
                Transport::InfiniBand => ConnQual::service_id(0x1000_0ce1_0000_0abc),
                Transport::Iwarp => ConnQual::port(0x0abc),
            };
            refused(listen(same), Error::ConnQualBusy)?;
            listen(ConnQual::port(0x0abd))?;
            f.b.listen_free(first)?;
            listen(same)?;
            refused(listen(ConnQual::port(0x0abc)), Error::ConnQualBusy)?;
            check_eq!(Error::ConnQualBusy as u32, 9);
            Ok(())
        },
    ),
    // A request to the service ID of a port arrives at the listen point of the port.
    test(
        "listen::a_port_answers_to_its_service_id",
        &["A.it_conn_qual_t B02", "it_conn_qual_t B03", "it_cm_req_events B06"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
            let spigot = spigot(&f.b)?;
            let port = ConnQual::port(0x1f90);
            let (listen, _) =
                f.b.listen_create(spigot.spigot_id, evd, ListenFlags::CONN_QUAL_INPUT, Some(&port))?;
            // Another listen point with another qualifier gets no request.
            let other = f.listen(&f.b)?;
            for qual in [port, ConnQual::service_id(0x1000_0ce1_0000_1f90)] {
                let active = f.end(&f.a, &attributes())?;
                let route = path(&f.a, &spigot.net_addr[0])?;
                f.a.ep_connect(active.ep, &route, None, &qual, TWO_WAY, &[])?;
                let (event, _) = f.b.evd_wait(evd, crate::fixture::WAIT)?;
                let Event::ConnRequest(request) = event else {
                    return Err(Failure::new(alloc::format!("got {event:?}")));
                };
                f.b.reject(request.cn_est_id, &[])?;
                active.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            }
            refused(f.b.evd_dequeue(other.evd), Error::QueueEmpty)?;
            f.b.listen_free(listen)?;
            Ok(())
        },
    ),
    // Qualifiers that the provider chooses are not in use.
    test("listen::chosen_qualifiers_differ", &["it_listen_create B03"], |f| {
        let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
        let id = spigot(&f.b)?.spigot_id;
        let mut used: Vec<ConnQual> = Vec::new();
        for _ in 0..8 {
            let (_, qual) = f.b.listen_create(id, evd, ListenFlags::empty(), None)?;
            check!(!used.contains(&qual), "{qual:?} was chosen twice");
            used.push(qual);
        }
        Ok(())
    }),
    // After the free no request arrives, but those that are queued can be answered.
    test("listen::no_requests_after_the_free", &["it_listen_free S01 S02"], |f| {
        let (early, late) = (f.end(&f.a, &attributes())?, f.end(&f.a, &attributes())?);
        let passive = f.end(&f.b, &attributes())?;
        let notices = naming(&f.b)?;
        let stream = EventType::CM_REQ_EVENT_STREAM;
        let evd = f.b.evd_create(stream, EvdFlags::OVERFLOW_DEFAULT, 16, 1, notices)?;
        let listener = f.listen_on(&f.b, evd, ListenFlags::empty())?;
        f.dial(&early, &listener, TWO_WAY, &[])?;
        // The request is queued but not dequeued.
        f.b.evd_wait(notices, WAIT)?;
        f.b.listen_free(listener.listen)?;
        f.dial(&late, &listener, TWO_WAY, &[])?;
        late.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
        // A request that was queued before the free can still be accepted.
        let Event::ConnRequest(request) = f.b.evd_dequeue(evd)? else {
            return Err(Failure::new("not a request"));
        };
        f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
        early.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        refused(f.b.evd_dequeue(listener.evd), Error::QueueEmpty)
    }),
    // A request that races the free is either queued or rejected, and never lost.
    test("listen::freed_when_a_request_arrives", &["it_listen_free S01 S02"], |f| {
        for _ in 0..16 {
            let (active, listener) = (f.end(&f.a, &attributes())?, f.listen(&f.b)?);
            f.dial(&active, &listener, TWO_WAY, &[])?;
            f.b.listen_free(listener.listen)?;
            // Either the request was queued before the free (it_listen_free), or the peer is
            // rejected at once because there is no listen point.
            answered(f, &active, listener.evd)?;
            refused(f.b.evd_dequeue(listener.evd), Error::QueueEmpty)?;
            check_eq!(f.b.object_counts().cn_est, 0);
            f.b.evd_free(listener.evd)?;
            f.a.ep_free(active.ep)?;
        }
        Ok(())
    }),
    // A request that finds the EVD full is discarded, and its sender gets a reject.
    test(
        "listen::the_backlog",
        &["it_listen_create B08 B09", "A.it_listen_create A01", "it_cm_req_events B03"],
        |f| {
            let listener = f.listen_with(&f.b, ListenFlags::empty(), 1)?;
            let affiliated = sevd(&f.b, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
            let waiting = fill(f, &listener)?;
            let late = f.end(&f.a, &attributes())?;
            let route = Path { timeout: 300_000, ..path(&f.a, &listener.address)? };
            f.a.ep_connect(late.ep, &route, None, &listener.conn_qual, TWO_WAY, &[])?;
            let event = late.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
            let Event::ConnNonpeerReject { reject_reason_code, .. } = event else {
                return Err(Failure::new("not a rejection"));
            };
            let reason = match f.setup.transport {
                Transport::InfiniBand => RejectReason::Timeout,
                Transport::Iwarp => RejectReason::Other,
            };
            check_eq!(reject_reason_code, reason);
            // By default, a full EVD of this stream is not reported.
            check!(f.b.evd_wait(affiliated, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
            // The queued requests are not lost.
            for end in &waiting {
                let passive = f.end(&f.b, &attributes())?;
                f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
                end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            }
            Ok(())
        },
    ),
    // A request that finds the EVD full holds no place. Once there is room, its repetition is
    // reported.
    test(
        "listen::room_after_the_backlog_was_full",
        &["it_listen_create B08 B09", "it_cm_req_events B03"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let listener = f.listen_with(&f.b, ListenFlags::empty(), 1)?;
            let waiting = fill(f, &listener)?;
            let before = f.setup.b.agent.counts().connections;
            let late = f.end(&f.a, &attributes())?;
            // Repeated every 34 ms, and for much longer than this test takes.
            let quick = ConnAttributes { remote_cm_timeout: 13, max_cm_retries: 15, ..Default::default() };
            let route = path(&f.a, &listener.address)?;
            let qual = &listener.conn_qual;
            f.a.ep_connect(late.ep, &route, Some(&quick), qual, TWO_WAY, b"late")?;
            let overflowed = || evd_param(&f.b, listener.evd).is_ok_and(|param| param.evd_overflowed);
            check!(eventually(f.platform(), overflowed), "the request did not arrive");
            check_eq!(f.b.object_counts().cn_est, waiting.len());
            // The active end may be on the same NIC.
            let own = u32::from(core::ptr::eq(&*f.setup.a.agent, &*f.setup.b.agent));
            let counted = || f.setup.b.agent.counts().connections == before + own;
            check!(eventually(f.platform(), counted), "the request that was discarded holds a place");
            for end in &waiting {
                f.b.reject(listener.request()?.cn_est_id, &[])?;
                end.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            }
            let request = listener.request()?;
            check!(some(request.private_data, "private data")?.starts_with(b"late"));
            let passive = f.end(&f.b, &attributes())?;
            f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
            late.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            Ok(())
        },
    ),
    // Requests that the consumer never dequeued end with their EVD.
    test("listen::requests_end_with_their_dispatcher", &["it_evd_free B01 B05"], |f| {
        let connections = || f.setup.b.agent.counts().connections;
        let listener = f.listen_with(&f.b, ListenFlags::empty(), 1)?;
        let waiting = fill(f, &listener)?;
        f.b.listen_free(listener.listen)?;
        f.b.evd_free(listener.evd)?;
        check_eq!(f.b.object_counts().cn_est, 0);
        for end in &waiting {
            not_made(end, RejectReason::Other)?;
        }
        check!(eventually(f.platform(), || connections() == 0), "{} connections", connections());
        Ok(())
    }),
    // Creating listen points fails with IT_ERR_RESOURCES at some point, and works again after one
    // is freed.
    test("listen::listen_points_run_out_and_come_back", &["it_listen_create IT_ERR_RESOURCES"], |f| {
        let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
        let id = spigot(&f.b)?.spigot_id;
        let mut all = Vec::new();
        let create = || f.b.listen_create(id, evd, ListenFlags::empty(), None);
        let refusal = loop {
            match create() {
                Ok((listen, _)) => all.push(listen),
                Err(error) => break error,
            }
            check!(all.len() <= crate::fixture::CONFIG.max_listens as usize, "{} listen points", all.len());
        };
        check_eq!(refusal, Error::Resources);
        check!(all.len() > 4);
        f.b.listen_free(all[1])?;
        create()?;
        refused(create(), Error::Resources).map(drop)
    }),
];

//! UD service requests and replies (pages it_ud_service_request_handle_create,
//! it_ud_service_request_handle_query, it_ud_service_request_handle_free, it_ud_service_request,
//! it_ud_service_reply, it_cm_req_events, it_cm_msg_events).

use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::{datagrams, peer};
use crate::fixture::{Fixture, Listener, MOMENT, WAIT, path, sevd, spigot};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The endpoint that the service's reply names.
const INFO: RemoteEpInfo = RemoteEpInfo { ud_ep_id: 0x12_3456, ud_ep_key: 0x89ab_cdef };

/// A request handle of `a`, and the listen point of `b` for which it was created.
pub(crate) struct Asking {
    pub listener: Listener,
    pub evd: EvdHandle,
    pub way: Path,
    pub handle: UdSvcReqHandle,
}

/// Makes a listen point of `b` and a request handle of `a` for it.
#[track_caller]
pub(crate) fn asking(f: &Fixture, private_data: &[u8]) -> Result<Asking, Failure> {
    Need::Datagrams.of(&f.a)?;
    let listener = f.listen(&f.b)?;
    let evd = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 16, 1)?;
    let way = path(&f.a, &listener.address)?;
    let handle = f.a.ud_service_request_handle_create(&listener.conn_qual, evd, &way, private_data)?;
    Ok(Asking { listener, evd, way, handle })
}

/// The next request at a listen point.
#[track_caller]
pub(crate) fn request(listener: &Listener) -> Result<UdServiceRequest, Failure> {
    let (event, _) = listener.ia.evd_wait(listener.evd, WAIT)?;
    match event {
        Event::UdServiceRequest(request) => {
            check_eq!(event.event_number(), EventType::CM_REQ_UD_SERVICE_REQUEST);
            Ok(request)
        }
        other => Err(Failure::new(alloc::format!("not a UD service request: {other:?}"))),
    }
}

/// The next reply on an EVD.
#[track_caller]
pub(crate) fn reply(ia: &Ia, evd: EvdHandle) -> Result<UdServiceReply, Failure> {
    let (event, _) = ia.evd_wait(evd, WAIT)?;
    match event {
        Event::UdServiceReply(reply) => {
            check_eq!(event.event_number(), EventType::CM_MSG_UD_SERVICE_REPLY);
            Ok(reply)
        }
        other => Err(Failure::new(alloc::format!("not a UD service reply: {other:?}"))),
    }
}

/// Fails if an event comes.
#[track_caller]
fn silent(ia: &Ia, evd: EvdHandle) -> Outcome {
    match ia.evd_wait(evd, MOMENT) {
        Err(error) if error == Error::TimeoutExpired => Ok(()),
        other => Err(Failure::new(alloc::format!("expected nothing, got {other:?}"))),
    }
}

pub(crate) const TESTS: &[Test] = &[
    // A request and its reply arrive with all their fields.
    test(
        "sidr::a_service_is_asked_and_answers",
        &[
            "it_ud_service_request_handle_create B01 B03 B04",
            "it_ud_service_request B01 B02 B06",
            "it_ud_service_reply B01 B02 B04 B06 IT_ERR_INVALID_UD_SVC_REQ_ID",
            "it_cm_req_events F12-F18",
            "it_cm_msg_events B04 F11-F15 F17 F19",
            "it_event_t F16 F24",
            "it_status_t F77",
        ],
        |f| {
            let codes = (EventType::CM_REQ_UD_SERVICE_REQUEST, EventType::CM_MSG_UD_SERVICE_REPLY);
            check_eq!((codes.0.as_raw(), codes.1.as_raw()), (0x1002, 0x2007));
            check_eq!((UdSvcStatus::EpInfoValid as u32, Error::InvalidUdSvcReqId as u32), (0, 76));
            let asking = asking(f, b"a question")?;
            f.a.ud_service_request(asking.handle)?;
            let asked = request(&asking.listener)?;
            check_eq!((asked.evd, asked.conn_qual), (asking.listener.evd, asking.listener.conn_qual));
            check_eq!(Some(asked.source_addr), spigot(&f.a)?.net_addr.first().copied());
            check_eq!(asked.spigot_id, spigot(&f.b)?.spigot_id);
            let data = some(asked.private_data, "private data")?;
            check!(data.starts_with(b"a question") && data[10..].iter().all(|&byte| byte == 0));
            check_eq!(f.b.object_counts().ud_requests, 1);
            for id in [0, asked.ud_svc_req_id ^ 1, asked.ud_svc_req_id | 1 << 32, u64::MAX] {
                let replied = f.b.ud_service_reply(id, UdSvcStatus::EpInfoValid, INFO, &[]);
                refused(replied, Error::InvalidUdSvcReqId)?;
            }
            f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::EpInfoValid, INFO, b"an answer")?;
            check_eq!(f.b.object_counts().ud_requests, 0);
            let again = f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::EpInfoValid, INFO, &[]);
            refused(again, Error::InvalidUdSvcReqId)?;
            let got = reply(&f.a, asking.evd)?;
            check_eq!(
                (got.evd, got.ud_svc, got.status),
                (asking.evd, asking.handle, UdSvcStatus::EpInfoValid)
            );
            check_eq!(got.ep_info, INFO);
            let data = some(got.private_data, "private data")?;
            check!(data.starts_with(b"an answer") && data[9..].iter().all(|&byte| byte == 0));
            silent(&f.a, asking.evd)?;
            silent(&f.b, asking.listener.evd)
        },
    ),
    // A datagram to the endpoint that a reply names arrives there.
    test("sidr::a_reply_names_a_usable_endpoint", &["it_ud_service_request B06"], |f| {
        let service = peer(&f.b, &datagrams())?;
        let asking = asking(f, &[])?;
        f.a.ud_service_request(asking.handle)?;
        let asked = request(&asking.listener)?;
        f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::EpInfoValid, service.info, &[])?;
        let ep_info = reply(&f.a, asking.evd)?.ep_info;
        check_eq!(ep_info, service.info);
        let client = peer(&f.a, &datagrams())?;
        let addr = f.a.address_handle_create(client.pz, &asking.way, AhFlags::PATH_COMPLETE)?;
        let into = f.region(&f.b, service.pz, 64, MemPriv::LOCAL)?;
        f.b.post_recvfrom(service.ep, &[into.whole()], 1, crate::fixture::SIGNALLED)?;
        let to = DgRemoteEpAddr::IbUd { addr, ep_info };
        let done = client.delivers(f, &service, (2, 1), DtoStatus::Success, || {
            f.a.post_sendto(client.ep, &[], 2, crate::fixture::SIGNALLED, &to)
        })?;
        check_eq!(done.ud_ep_id, client.info.ud_ep_id);
        Ok(())
    }),
    // Each status of a reply arrives. Redirection, which is not supported, and an endpoint number
    // that cannot exist are refused.
    test(
        "sidr::every_status",
        &[
            "it_ud_service_reply B03 B05 IT_ERR_INVALID_UD_STATUS",
            "it_ud_service_request B07",
            "it_cm_msg_events F18 F20-F22",
            "it_cm_req_events F19",
            "it_status_t F75",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            check_eq!((UdSvcStatus::IdNotSupported as u32, UdSvcStatus::Rejected as u32), (1, 2));
            check_eq!((UdSvcStatus::NoEpAvailable as u32, UdSvcStatus::Redirected as u32), (3, 4));
            check_eq!(Error::InvalidUdStatus as u32, 74);
            let asking = asking(f, &[])?;
            // A request without private data brings none, and neither does a reply.
            f.a.ud_service_request(asking.handle)?;
            let asked = request(&asking.listener)?;
            check_eq!(asked.private_data, None);
            f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::Rejected, INFO, &[])?;
            check_eq!(reply(&f.a, asking.evd)?.private_data, None);
            // The endpoint information is ignored for all statuses but one.
            let garbage = RemoteEpInfo { ud_ep_id: u32::MAX, ud_ep_key: u32::MAX };
            for status in [UdSvcStatus::IdNotSupported, UdSvcStatus::Rejected, UdSvcStatus::NoEpAvailable] {
                f.a.ud_service_request(asking.handle)?;
                let id = request(&asking.listener)?.ud_svc_req_id;
                let wrong = Error::InvalidUdStatus;
                refused(f.b.ud_service_reply(id, UdSvcStatus::Redirected, INFO, &[]), wrong)?;
                refused(f.b.ud_service_reply(id, UdSvcStatus::EpInfoValid, garbage, &[]), wrong)?;
                f.b.ud_service_reply(id, status, garbage, b"no")?;
                let got = reply(&f.a, asking.evd)?;
                check_eq!((got.status, got.ud_svc, got.dst_path), (status, asking.handle, None));
                check!(some(got.private_data, "private data")?.starts_with(b"no"));
            }
            Ok(())
        },
    ),
    // A request to a service without a listen point is answered as not supported.
    test("sidr::no_such_service", &["it_cm_msg_events F20"], |f| {
        Need::Datagrams.of(&f.a)?;
        let asking = asking(f, &[])?;
        let evd = asking.listener.evd;
        f.b.listen_free(asking.listener.listen)?;
        f.a.ud_service_request(asking.handle)?;
        check_eq!(reply(&f.a, asking.evd)?.status, UdSvcStatus::IdNotSupported);
        silent(&f.b, evd)
    }),
    // A handle can be used again, and all its requests have one identifier.
    test(
        "sidr::asking_again",
        &[
            "it_ud_service_request B03-B05",
            "it_ud_service_request_handle_create B05",
            "it_ud_service_reply B07",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            let asking = asking(f, &[])?;
            let own =
                f.a.ud_service_request_handle_query(asking.handle, UdSvcReqParamMask::REQ_ID)?.request_id;
            let mut first = None;
            for round in 0..3 {
                f.a.ud_service_request(asking.handle)?;
                let asked = request(&asking.listener)?;
                let named = (asked.ud_svc_req_id, asked.source_addr);
                check_eq!(named.0, u64::from(own));
                check_eq!(named, *first.get_or_insert(named));
                let info = RemoteEpInfo { ud_ep_id: round, ..INFO };
                f.b.ud_service_reply(named.0, UdSvcStatus::EpInfoValid, info, &[])?;
                check_eq!(reply(&f.a, asking.evd)?.ep_info, info);
            }
            // A second request is sent before the first answer: both are reported, with the same
            // identifier.
            f.a.ud_service_request(asking.handle)?;
            let one = request(&asking.listener)?;
            f.a.ud_service_request(asking.handle)?;
            let other = request(&asking.listener)?;
            check_eq!(one, other);
            check_eq!(f.b.object_counts().ud_requests, 2);
            f.b.ud_service_reply(one.ud_svc_req_id, UdSvcStatus::EpInfoValid, INFO, &[])?;
            f.b.ud_service_reply(one.ud_svc_req_id, UdSvcStatus::EpInfoValid, INFO, &[])?;
            let third = f.b.ud_service_reply(one.ud_svc_req_id, UdSvcStatus::EpInfoValid, INFO, &[]);
            refused(third, Error::InvalidUdSvcReqId)?;
            check_eq!(reply(&f.a, asking.evd)?.ep_info, INFO);
            // Another handle has another identifier.
            let path = &asking.way;
            let next =
                f.a.ud_service_request_handle_create(&asking.listener.conn_qual, asking.evd, path, &[])?;
            let id = f.a.ud_service_request_handle_query(next, UdSvcReqParamMask::REQ_ID)?.request_id;
            check!(id != own);
            Ok(())
        },
    ),
    // A lost message is repeated, and request and reply are reported once.
    test("sidr::a_lost_request_is_sent_again", &["it_ud_service_request B03"], |f| {
        Need::Datagrams.of(&f.a)?;
        let asking = asking(f, &[])?;
        let short = Path { timeout: 400_000, ..asking.way };
        let handle =
            f.a.ud_service_request_handle_create(&asking.listener.conn_qual, asking.evd, &short, &[])?;
        f.inject(0, Injection::DropManagement, 2, 0)?;
        f.a.ud_service_request(handle)?;
        let asked = request(&asking.listener)?;
        f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::EpInfoValid, INFO, &[])?;
        check_eq!(reply(&f.a, asking.evd)?.ud_svc, handle);
        // Request and reply are reported once each, regardless of how often they were sent.
        silent(&f.b, asking.listener.evd)?;
        silent(&f.a, asking.evd)
    }),
    // No event says that a request was not answered in time, unless the consumer asked for that.
    test("sidr::no_answer_is_no_event", &[], |f| {
        Need::Datagrams.of(&f.a)?;
        let asking = asking(f, &[])?;
        let short = Path { timeout: 20_000, ..asking.way };
        let create =
            || f.a.ud_service_request_handle_create(&asking.listener.conn_qual, asking.evd, &short, &[]);
        let (first, second) = (create()?, create()?);
        // The listener answers none of them. The first one times out before the second one.
        f.a.ud_service_request(first)?;
        f.a.ud_service_request_reported(second)?;
        let timed_out = reply(&f.a, asking.evd)?;
        check_eq!((timed_out.ud_svc, timed_out.status), (second, UdSvcStatus::TimedOut));
        check_eq!((timed_out.ep_info, timed_out.private_data), (RemoteEpInfo::default(), None));
        silent(&f.a, asking.evd)
    }),
    // Private data up to the maximum arrives, one byte more is refused.
    test(
        "sidr::private_data",
        &[
            "it_ud_service_reply L01 IT_ERR_INVALID_PDATA_LENGTH",
            "it_ud_service_request_handle_create L01 IT_ERR_INVALID_PDATA_LENGTH",
            "it_ia_info_t F48 F49",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            let info = f.a.ia_query()?;
            let (most, least) = (info.ud_req_private_data_len, info.ud_rep_private_data_len);
            check!(most > 0 && most <= MAX_PRIV_DATA && least > 0 && least <= MAX_PRIV_DATA);
            let question = crate::fixture::pattern(1, most + 1);
            let answer = crate::fixture::pattern(2, least + 1);
            let asking = asking(f, &question[..most])?;
            let before = f.a.object_counts();
            for long in [&question[..], &[0; 4096]] {
                let qual = &asking.listener.conn_qual;
                let created = f.a.ud_service_request_handle_create(qual, asking.evd, &asking.way, long);
                refused(created, Error::InvalidPdataLength)?;
            }
            check_eq!(f.a.object_counts(), before);
            f.a.ud_service_request(asking.handle)?;
            let asked = request(&asking.listener)?;
            check_eq!(some(asked.private_data, "private data")?.as_slice(), &question[..most]);
            for long in [&answer[..], &[0; 4096]] {
                let replied = f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::EpInfoValid, INFO, long);
                refused(replied, Error::InvalidPdataLength)?;
            }
            f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::EpInfoValid, INFO, &answer[..least])?;
            let got = reply(&f.a, asking.evd)?;
            check_eq!(some(got.private_data, "private data")?.as_slice(), &answer[..least]);
            Ok(())
        },
    ),
    // A handle has the parameters of its creation, for each bit of the mask, and is invalid after
    // the free.
    test(
        "sidr::handles",
        &[
            "it_ud_service_request_handle_query B01 F01-F08 V01 IT_ERR_INVALID_MASK",
            "it_ud_service_request_handle_query IT_ERR_INVALID_UD_SVC",
            "it_ud_service_request_handle_free B01 IT_ERR_INVALID_UD_SVC",
            "it_ud_service_request IT_ERR_INVALID_UD_SVC",
            "it_evd_free V02",
            "it_handle_t F09",
            "it_status_t F76",
        ],
        |f| {
            let asking = asking(f, b"data")?;
            let (handle, evd) = (asking.handle, asking.evd);
            check_eq!((f.a.get_handle_type(handle)?, HandleType::UdSvcReq as u32), (HandleType::UdSvcReq, 8));
            f.a.set_consumer_context(handle, 3)?;
            check_eq!(f.a.get_consumer_context(handle)?, 3);
            let all = f.a.ud_service_request_handle_query(handle, UdSvcReqParamMask::ALL)?;
            check_eq!((all.ia, all.reply_evd), (f.a.handle(), evd));
            check_eq!((all.conn_qual, all.destination_path), (asking.listener.conn_qual, asking.way));
            check_eq!(
                (some(all.private_data, "private data")?.as_slice(), all.private_data_length),
                (&b"data"[..], 4)
            );
            let none = UdSvcReqParam::default();
            for (bits, expected) in [
                (0x00, none),
                (0x01, all),
                (0x02, UdSvcReqParam { ia: all.ia, ..none }),
                (0x04, UdSvcReqParam { request_id: all.request_id, ..none }),
                (0x08, UdSvcReqParam { reply_evd: evd, ..none }),
                (0x10, UdSvcReqParam { conn_qual: all.conn_qual, ..none }),
                (0x20, UdSvcReqParam { destination_path: all.destination_path, ..none }),
                (0x40, UdSvcReqParam { private_data: all.private_data, ..none }),
                (0x80, UdSvcReqParam { private_data_length: 4, ..none }),
            ] {
                let mask = UdSvcReqParamMask::from_bits_retain(bits);
                check_eq!(f.a.ud_service_request_handle_query(handle, mask)?, expected);
            }
            for bits in [0x100, 0x101, u32::MAX] {
                let mask = UdSvcReqParamMask::from_bits_retain(bits);
                refused(f.a.ud_service_request_handle_query(handle, mask), Error::InvalidMask)?;
            }
            refused(f.a.evd_free(evd), Error::EvdBusy)?;
            check_eq!(f.a.object_counts().ud_svc_req, 1);
            f.a.ud_service_request_handle_free(handle)?;
            check_eq!(f.a.object_counts().ud_svc_req, 0);
            let foreign = {
                let listener = f.listen(&f.a)?;
                let evd = sevd(&f.b, EventType::CM_MSG_EVENT_STREAM, 4, 1)?;
                let way = path(&f.b, &listener.address)?;
                f.b.ud_service_request_handle_create(&listener.conn_qual, evd, &way, &[])?
            };
            let wrong = Error::InvalidUdSvc;
            for handle in [UdSvcReqHandle::NULL, handle, foreign, UdSvcReqHandle::from_raw(evd.as_raw())] {
                refused(f.a.ud_service_request(handle), wrong)?;
                let query = f.a.ud_service_request_handle_query(handle, UdSvcReqParamMask::ALL);
                refused(query, wrong)?;
                refused(f.a.ud_service_request_handle_free(handle), wrong)?;
            }
            check_eq!(Error::InvalidUdSvc as u32, 75);
            f.a.evd_free(evd)?;
            Ok(())
        },
    ),
    // Each bad argument is refused; the remote part of the path is not checked.
    test(
        "sidr::create_refuses",
        &[
            "it_ud_service_request_handle_create B02 IT_ERR_INVALID_CONN_EVD",
            "it_ud_service_request_handle_create IT_ERR_INVALID_CONN_QUAL IT_ERR_INVALID_EVD_TYPE",
            "it_ud_service_request_handle_create IT_ERR_INVALID_SOURCE_PATH IT_ERR_INVALID_SPIGOT",
            "it_ud_service_request_handle_create IT_ERR_RESOURCES",
            "A.it_ud_service_request_handle_create B01 IT_ERR_INVALID_SOURCE_PATH",
        ],
        |f| {
            Need::Datagrams.of(&f.a)?;
            let Asking { listener, evd, way, handle } = asking(f, &[])?;
            f.a.ud_service_request_handle_free(handle)?;
            let qual = listener.conn_qual;
            let create = |qual: &ConnQual, evd, path: &Path| {
                f.a.ud_service_request_handle_create(qual, evd, path, &[])
            };
            let freed = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 4, 1)?;
            f.a.evd_free(freed)?;
            let foreign = sevd(&f.b, EventType::CM_MSG_EVENT_STREAM, 4, 1)?;
            let before = f.a.object_counts();
            for evd in [EvdHandle::NULL, freed, foreign] {
                refused(create(&qual, evd, &way), Error::InvalidConnEvd)?;
            }
            for stream in [
                EventType::DTO_EVENT_STREAM,
                EventType::CM_REQ_EVENT_STREAM,
                EventType::SOFTWARE_EVENT_STREAM,
                EventType::ASYNC_AFF_EVENT_STREAM,
            ] {
                let other = sevd(&f.a, stream, 4, 1)?;
                refused(create(&qual, other, &way), Error::InvalidEvdType)?;
                f.a.evd_free(other)?;
            }
            let discriminator = ViaDiscriminator { len: 4, discriminator: [1; MAX_VIA_DISC_LEN] };
            for qual in [
                ConnQual::IanaPort(0),
                ConnQual::IbServiceId(0),
                ConnQual::ViaDiscriminator(discriminator),
                ConnQual::IanaLrPort { local: 1, remote: 2 },
            ] {
                refused(create(&qual, evd, &way), Error::InvalidConnQual)?;
            }
            for spigot_id in [0, way.spigot_id + 1, usize::MAX] {
                refused(create(&qual, evd, &Path { spigot_id, ..way }), Error::InvalidSpigot)?;
            }
            let with = |change: fn(&mut IbNetEndpoint)| {
                let mut path = way;
                path.ib_mut().map(change);
                path
            };
            for path in [
                with(|ib| ib.local_port_gid = [0; 16]),
                with(|ib| ib.local_port_gid[15] ^= 0x40),
                with(|ib| ib.local_port_lid = 1),
                with(|ib| ib.partition_key = 0x1234),
            ] {
                refused(create(&qual, evd, &path), Error::InvalidSourcePath)?;
            }
            check_eq!(f.a.object_counts(), before);
            // The remote part of the path is not checked. If it leads nowhere, there is no answer.
            let nowhere = create(&qual, evd, &with(|ib| ib.remote_port_gid[14] ^= 0x55))?;
            f.a.ud_service_request(nowhere)?;
            f.a.ud_service_request_handle_free(nowhere)?;
            let mut handles = alloc::vec::Vec::new();
            let refusal = loop {
                match create(&qual, evd, &way) {
                    Ok(handle) => handles.push(handle),
                    Err(error) => break error,
                }
                check!(handles.len() < 5000, "{} handles", handles.len());
            };
            check_eq!(refusal, Error::Resources);
            f.a.ud_service_request_handle_free(some(handles.pop(), "a handle")?)?;
            handles.push(create(&qual, evd, &way)?);
            for handle in handles {
                f.a.ud_service_request_handle_free(handle)?;
            }
            f.a.evd_free(evd)?;
            listener.free()
        },
    ),
    // Replies that are queued stay, replies that come later are dropped.
    test("sidr::freeing_a_handle", &["it_ud_service_request_handle_free B02 B03"], |f| {
        Need::Datagrams.of(&f.a)?;
        let asking = asking(f, &[])?;
        f.a.ud_service_request(asking.handle)?;
        let id = request(&asking.listener)?.ud_svc_req_id;
        f.b.ud_service_reply(id, UdSvcStatus::EpInfoValid, INFO, &[])?;
        // Replies are queued in their order: when a later one has arrived, this one is queued.
        let second = f.a.ud_service_request_handle_create(
            &asking.listener.conn_qual,
            sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 4, 1)?,
            &asking.way,
            &[],
        )?;
        let other = f.a.ud_service_request_handle_query(second, UdSvcReqParamMask::REPLY_EVD)?.reply_evd;
        f.a.ud_service_request(second)?;
        let later = request(&asking.listener)?.ud_svc_req_id;
        f.b.ud_service_reply(later, UdSvcStatus::Rejected, INFO, &[])?;
        reply(&f.a, other)?;
        f.a.ud_service_request_handle_free(asking.handle)?;
        check_eq!(reply(&f.a, asking.evd)?.ud_svc, asking.handle);
        // The handle is freed while the answer is on its way: no event comes.
        f.a.ud_service_request(second)?;
        let id = request(&asking.listener)?.ud_svc_req_id;
        f.a.ud_service_request_handle_free(second)?;
        f.b.ud_service_reply(id, UdSvcStatus::EpInfoValid, INFO, &[])?;
        silent(&f.a, other)?;
        f.a.evd_free(other)?;
        Ok(())
    }),
    // Requests that are never answered do not pile up without limit.
    test("sidr::requests_that_are_not_answered", &["it_ud_service_request B03"], |f| {
        Need::Datagrams.of(&f.a)?;
        // One handle is used for many requests until the listener's side forgets the oldest ones.
        // Freeing the IA frees all of them.
        let asking = asking(f, &[])?;
        let mut ids = 0;
        for _ in 0..100 {
            f.a.ud_service_request(asking.handle)?;
            request(&asking.listener)?;
            ids += 1;
        }
        let waiting = f.b.object_counts().ud_requests;
        check!(waiting > 1 && waiting < ids, "{waiting} of {ids} requests are kept");
        check_eq!(f.setup.b.agent.counts().resolutions as usize >= waiting, true);
        f.b.ia_free()?;
        check_eq!(f.b.object_counts().ud_requests, 0);
        Ok(())
    }),
    // Requests that find the EVD full are dropped and leave nothing behind.
    test("sidr::a_full_evd", &["it_cm_req_events F13"], |f| {
        Need::Datagrams.of(&f.a)?;
        let listener = f.listen_with(&f.b, ListenFlags::empty(), 1)?;
        let room = f.b.evd_query(listener.evd, EvdParamMask::ALL)?.sevd_queue_size;
        let evd = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 64, 1)?;
        let way = path(&f.a, &listener.address)?;
        let handle = f.a.ud_service_request_handle_create(&listener.conn_qual, evd, &way, &[])?;
        for _ in 0..room + 3 {
            f.a.ud_service_request(handle)?;
        }
        let overflowed = crate::thread::eventually(f.platform(), || {
            f.b.evd_query(listener.evd, EvdParamMask::OVERFLOWED).is_ok_and(|param| param.evd_overflowed)
        });
        check!(overflowed, "the EVD had room for all");
        // The requests that were queued can be answered, and no others are kept.
        for _ in 0..room {
            let id = request(&listener)?.ud_svc_req_id;
            f.b.ud_service_reply(id, UdSvcStatus::Rejected, INFO, &[])?;
        }
        // A request that arrives when there is room again can be answered as well.
        let gone = crate::thread::eventually(f.platform(), || {
            if let Ok(Event::UdServiceRequest(late)) = f.b.evd_dequeue(listener.evd) {
                let _ = f.b.ud_service_reply(late.ud_svc_req_id, UdSvcStatus::Rejected, INFO, &[]);
            }
            f.b.object_counts().ud_requests == 0
        });
        check!(gone, "{} requests are kept", f.b.object_counts().ud_requests);
        Ok(())
    }),
    // Requests that the consumer did not dequeue end with their EVD.
    test("sidr::requests_end_with_their_dispatcher", &["it_evd_free B01"], |f| {
        Need::Datagrams.of(&f.a)?;
        let listener = f.listen(&f.b)?;
        let evd = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 64, 1)?;
        let way = path(&f.a, &listener.address)?;
        let handle = f.a.ud_service_request_handle_create(&listener.conn_qual, evd, &way, &[])?;
        let waiting = || f.b.object_counts().ud_requests;
        for count in 1..4 {
            f.a.ud_service_request(handle)?;
            check!(crate::thread::eventually(f.platform(), || waiting() == count));
        }
        let taken = request(&listener)?.ud_svc_req_id;
        f.b.listen_free(listener.listen)?;
        f.b.evd_free(listener.evd)?;
        // The request that was dequeued can still be answered.
        check_eq!(waiting(), 1);
        f.b.ud_service_reply(taken, UdSvcStatus::Rejected, INFO, &[])?;
        check_eq!((waiting(), reply(&f.a, evd)?.status), (0, UdSvcStatus::Rejected));
        Ok(())
    }),
];

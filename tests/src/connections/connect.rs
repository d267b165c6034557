//! Connections that are established and attempts that fail (chapter 5; pages it_ep_connect,
//! it_ep_accept, it_reject, it_get_pathinfo, it_cm_req_events, it_cm_msg_events, it_path_t).

use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::check::some;
use crate::connections::private_data::{carries, private_data};
use crate::fixture::{End, Fixture, Listener, SIGNALLED, attributes, path, pattern, spigot};
use crate::thread::eventually;
use crate::transport::Need;
use crate::{Failure, Outcome, Test, Transport, check, check_eq, refused, test};

pub(crate) const TWO_WAY: CnEstFlags = CnEstFlags::TWO_WAY;
pub(crate) const THREE_WAY: CnEstFlags = CnEstFlags::THREE_WAY;

/// An endpoint on each side, and a listen point on the passive side.
pub(crate) fn sides(f: &Fixture) -> Result<(End, End, Listener), Failure> {
    Ok((f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?, f.listen(&f.b)?))
}

/// The identifier in the event that an acceptance has arrived.
#[track_caller]
pub(crate) fn arrival(end: &End) -> Result<CnEstId, Failure> {
    match end.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)? {
        Event::ConnAcceptArrival { cn_est_id, ep, .. } if ep == end.ep => Ok(cn_est_id),
        other => Err(Failure::new(alloc::format!("got {other:?}"))),
    }
}

/// Fails unless the EVD of the endpoint's connection events is empty.
#[track_caller]
pub(crate) fn silent(end: &End) -> Outcome {
    refused(end.ia.evd_dequeue(end.conn), Error::QueueEmpty)
}

/// Sends a message each way.
pub(crate) fn exchange_messages(a: &End, b: &End) -> Outcome {
    for (from, to) in [(a, b), (b, a)] {
        to.ia.post_recv(to.ep, &[], 71, DtoFlags::COMPLETION)?;
        from.ia.post_send(from.ep, &[], 72, SIGNALLED)?;
        to.recv_done(71, DtoStatus::Success)?;
        from.done(72, DtoStatus::Success)?;
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // A two-way connection: which events and states each side sees, in which order.
    test(
        "connect::two_way",
        &[
            "it_ep_accept B02-B04 F01 S01 V04",
            "5.1 B01 B03",
            "5.2.1 B01 B04 B05",
            "it_ep_connect B02 B06 B09 F01 S03",
            "it_ep_state_t B02 B06 S21 S31 V03",
            "A.it_ep_accept B01",
            "it_cm_msg_events B01 B03 F01 F02 F04 S02",
            "it_cm_req_events B01 F01-F06",
            "it_event_t F15 F19",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            check_eq!(TWO_WAY.bits(), 1);
            f.dial(&active, &listener, TWO_WAY, &[])?;
            check_eq!(active.state()?, EpStateRc::Active1ConnectionPending);
            let request = listener.request()?;
            check_eq!((request.evd, request.conn_qual), (listener.evd, listener.conn_qual));
            check_eq!(request.spigot_id, spigot(&f.b)?.spigot_id);
            let own = spigot(&f.a)?.net_addr;
            check!(own.contains(&request.source_addr), "from {:?}", request.source_addr);
            check_eq!(passive.state()?, EpStateRc::Unconnected);
            f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
            // The active side may have answered already, so both states are right (it_ep_state_t).
            let pending = [EpStateRc::PassiveConnectionPending, EpStateRc::Connected];
            check!(pending.contains(&passive.state()?));
            // The state changes before the event is queued.
            for end in [&active, &passive] {
                let event = end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                check_eq!(end.state()?, EpStateRc::Connected);
                let Event::ConnEstablished { evd, ep, .. } = event else {
                    return Err(Failure::new("not an established connection"));
                };
                check_eq!((evd, ep), (end.conn, end.ep));
                silent(end)?;
            }
            check_eq!(EventType::CM_REQ_CONN_REQUEST.as_raw(), 0x1001);
            check_eq!(EventType::CM_MSG_CONN_ESTABLISHED.as_raw(), 0x2002);
            exchange_messages(&active, &passive)
        },
    ),
    // A three-way connection: which events and states each side sees, in which order.
    test(
        "connect::three_way",
        &[
            "5.1 O01",
            "it_ep_connect B08 F02 L02",
            "it_ep_accept B05 S02-S04",
            "it_ep_state_t F03 F04 S06 S11 S20 S22 S27",
            "it_cm_msg_events F03 F24 S01",
            "it_ia_info_t F37",
            "it_event_t F18",
            "5.2.1 S01",
        ],
        |f| {
            Need::ThreeWay.of(&f.a)?;
            check!(f.a.ia_query()?.three_way_handshake_support);
            check_eq!(THREE_WAY.bits(), 2);
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            check_eq!(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL.as_raw(), 0x2001);
            let states = (active.state()?, passive.state()?);
            let pending = (EpStateRc::Active2ConnectionPending, EpStateRc::PassiveConnectionPending);
            check_eq!(states, pending);
            check_eq!((states.0 as u32, states.1 as u32), (2, 3));
            // Until the active side has accepted, only Receives can be posted.
            for end in [&active, &passive] {
                end.ia.post_recv(end.ep, &[], 1, DtoFlags::COMPLETION)?;
                refused(end.ia.post_send(end.ep, &[], 2, SIGNALLED), Error::InvalidEpState)?;
                let write = end.ia.post_rdma_write(end.ep, &[], 2, SIGNALLED, RdmaAddr(0), RmrContext(0));
                refused(write, Error::InvalidEpState)?;
                refused(end.ia.ep_reset(end.ep), Error::InvalidEpState)?;
                silent(end)?;
            }
            // The successful call moves the active side's endpoint, which then takes requests.
            f.a.ep_accept(active.ep, id, &[])?;
            check_eq!(active.state()?, EpStateRc::Connected);
            f.a.post_send(active.ep, &[], 3, SIGNALLED)?;
            for end in [&active, &passive] {
                end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                check_eq!(end.state()?, EpStateRc::Connected);
                silent(end)?;
            }
            passive.recv_done(1, DtoStatus::Success)?;
            active.done(3, DtoStatus::Success)
        },
    ),
    // A rejection ends the attempt on the active side, with the passive side's private data.
    test(
        "connect::rejected_by_the_passive_side",
        &[
            "it_reject A01 B01-B06 S01",
            "it_ep_connect B10 S02 S04",
            "it_ep_state_t S25",
            "it_cm_msg_events F27 S04",
            "it_ia_info_t F46",
            "it_event_t F21",
        ],
        |f| {
            let limit = f.a.ia_query()?.reject_private_data_len;
            for &flags in f.handshakes()? {
                for len in [0, 1, limit] {
                    let (active, _, listener) = sides(f)?;
                    for cookie in 0..3 {
                        f.a.post_recv(active.ep, &[], cookie, DtoFlags::COMPLETION)?;
                    }
                    f.dial(&active, &listener, flags, &[])?;
                    let request = listener.request()?;
                    let data = pattern(4, len);
                    f.b.reject(request.cn_est_id, &data)?;
                    let event = active.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
                    check_eq!(event.event_number().as_raw(), 0x2004);
                    carries(private_data(&event), &data, limit)?;
                    check_eq!(active.state()?, EpStateRc::Nonoperational);
                    for cookie in 0..3 {
                        active.recv_done(cookie, DtoStatus::Flushed)?;
                    }
                    refused(f.b.reject(request.cn_est_id, &[]), Error::InvalidCnEstId)?;
                    silent(&active)?;
                    f.a.ep_free(active.ep)?;
                }
            }
            Ok(())
        },
    ),
    // The active side of a three-way connection may reject the acceptance, and the passive side is
    // informed.
    test(
        "connect::rejected_by_the_active_side",
        &["it_reject B02 B04 S02", "it_ep_state_t S07 S28 S32 V06"],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.b.post_recv(passive.ep, &[], 1, DtoFlags::COMPLETION)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            f.a.reject(id, b"no, thanks")?;
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            let event = passive.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            carries(private_data(&event), b"no, thanks", MAX_PRIV_DATA)?;
            check_eq!(passive.state()?, EpStateRc::Nonoperational);
            passive.recv_done(1, DtoStatus::Flushed)?;
            refused(f.a.ep_accept(active.ep, id, &[]), Error::InvalidCnEstId)?;
            refused(f.a.reject(id, &[]), Error::InvalidCnEstId)
        },
    ),
    // An identifier can be used once, and by the IA that got it only.
    test(
        "connect::identifiers_are_used_once",
        &[
            "it_ep_accept B06 IT_ERR_INVALID_CN_EST_ID",
            "it_reject V01 IT_ERR_INVALID_CN_EST_ID",
            "it_ep_disconnect V01",
            "it_ep_state_t V01",
            "it_status_t F28",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            for id in [0, 1, 12345, u64::MAX] {
                refused(f.b.ep_accept(passive.ep, CnEstId(id), &[]), Error::InvalidCnEstId)?;
                refused(f.b.reject(CnEstId(id), &[]), Error::InvalidCnEstId)?;
            }
            f.dial(&active, &listener, TWO_WAY, &[])?;
            let id = listener.request()?.cn_est_id;
            // The identifier belongs to the other IA.
            let stranger = f.end(&f.a, &attributes())?;
            refused(f.a.ep_accept(stranger.ep, id, &[]), Error::InvalidCnEstId)?;
            refused(f.a.reject(id, &[]), Error::InvalidCnEstId)?;
            f.b.ep_accept(passive.ep, id, &[])?;
            let other = f.end(&f.b, &attributes())?;
            refused(f.b.ep_accept(other.ep, id, &[]), Error::InvalidCnEstId)?;
            refused(f.b.reject(id, &[]), Error::InvalidCnEstId)?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            check_eq!(other.state()?, EpStateRc::Unconnected);
            check_eq!(Error::InvalidCnEstId as u32, 27);
            Ok(())
        },
    ),
    // A refused accept leaves both the endpoint and the request as they were.
    test(
        "connect::accepting_with_the_wrong_endpoint",
        &["it_ep_accept V05 IT_ERR_INVALID_EP_STATE", "it_ep_state_t S06 V08"],
        |f| {
            let busy = f.pair()?;
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, TWO_WAY, &[])?;
            let request = listener.request()?;
            refused(f.b.ep_accept(busy.b.ep, request.cn_est_id, &[]), Error::InvalidEpState)?;
            f.b.ep_disconnect(busy.b.ep, &[])?;
            refused(f.b.ep_accept(busy.b.ep, request.cn_est_id, &[]), Error::InvalidEpState)?;
            f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            Ok(())
        },
    ),
    // An endpoint cannot accept its own request.
    test("connect::not_to_itself", &["it_ep_connect L04"], |f| {
        let end = f.end(&f.b, &attributes())?;
        let listener = f.listen(&f.b)?;
        f.dial(&end, &listener, TWO_WAY, &[])?;
        let request = listener.request()?;
        refused(f.b.ep_accept(end.ep, request.cn_est_id, &[]), Error::InvalidEpState)?;
        check_eq!(end.state()?, EpStateRc::Active1ConnectionPending);
        // An endpoint may connect to another endpoint of its own IA.
        let other = f.end(&f.b, &attributes())?;
        f.b.ep_accept(other.ep, request.cn_est_id, &[])?;
        end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        other.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        exchange_messages(&end, &other)
    }),
    // Without a listen point the attempt ends with a non-peer reject.
    test(
        "connect::no_listen_point",
        &[
            "it_cm_msg_events F08 F28 F30 F37 S05",
            "it_ep_state_t S24 S44",
            "it_ep_connect S04",
            "A.it_cm_msg_events A02",
            "it_event_t F22",
        ],
        |f| {
            let end = f.end(&f.a, &attributes())?;
            f.a.post_recv(end.ep, &[], 1, DtoFlags::COMPLETION)?;
            let address = spigot(&f.b)?.net_addr[0];
            let route = path(&f.a, &address)?;
            f.a.ep_connect(end.ep, &route, None, &ConnQual::port(9), TWO_WAY, &[])?;
            let event = end.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
            let Event::ConnNonpeerReject { ep, reject_reason_code, .. } = event else {
                return Err(Failure::new("not a rejection"));
            };
            // Over iWARP the peer refuses the TCP connection.
            let reason = match f.setup.transport {
                Transport::InfiniBand => RejectReason::Other,
                Transport::Iwarp => RejectReason::BadPath,
            };
            check_eq!((ep, reject_reason_code), (end.ep, reason));
            check_eq!((RejectReason::Other.as_raw(), event.event_number().as_raw()), (0, 0x2005));
            check_eq!(end.state()?, EpStateRc::Nonoperational);
            end.recv_done(1, DtoStatus::Flushed)
        },
    ),
    // InfiniBand's requests carry no message size, so the adapter says that there is none.
    test("connect::no_message_size", &[], |f| {
        check!(!f.b.ia_query()?.max_message_size_support);
        let sized = EpAttributes { max_dto_payload_size: 7777, ..attributes() };
        let (active, listener) = (f.end(&f.a, &sized)?, f.listen(&f.b)?);
        f.dial(&active, &listener, TWO_WAY, &[])?;
        check_eq!(listener.request()?.max_message_size, 0);
        Ok(())
    }),
    // After a connect both endpoints return their paths to each other.
    test(
        "connect::query_of_the_path",
        &["it_ep_query F03 F06 F07", "it_ep_rc_create B03", "it_path_t F07"],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let (active, passive, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, TWO_WAY, &[])?;
            let mask = EpParamMask::PATH | EpParamMask::SPIGOT;
            check_eq!(f.a.ep_query(active.ep, mask)?.dst_path, route);
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            let param = f.a.ep_query(active.ep, mask)?;
            check_eq!((param.dst_path, param.spigot_id), (route, route.spigot_id));
            // The passive side's path leads back to the source of the request.
            let back = f.b.ep_query(passive.ep, mask)?;
            check_eq!(back.spigot_id, spigot(&f.b)?.spigot_id);
            let (there, back) = (some(route.ib(), "a path")?, some(back.dst_path.ib(), "a path")?);
            check_eq!(
                (back.local_port_gid, back.remote_port_gid),
                (there.remote_port_gid, there.local_port_gid)
            );
            Ok(())
        },
    ),
    // A returned path leads to the peer, and no more are returned than asked for.
    test(
        "connect::paths",
        &[
            "it_get_pathinfo B01 B03 B05 L01 IT_ERR_INVALID_NETADDR IT_ERR_INVALID_SPIGOT",
            "it_path_t B04",
            "it_status_t F53",
        ],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let own = spigot(&f.a)?.spigot_id;
            let addresses = spigot(&f.b)?.net_addr;
            for address in &addresses {
                let (paths, total) = f.a.get_pathinfo(own, address, 10)?;
                check!(!paths.is_empty() && paths.len() <= 10 && total >= paths.len());
                for route in &paths {
                    check_eq!(route.spigot_id, own);
                    check!(route.timeout > 0 && route.ib().is_some());
                }
                let (one, all) = f.a.get_pathinfo(own, address, 1)?;
                check_eq!((one.len(), all), (1, total));
                let (none, all) = f.a.get_pathinfo(own, address, 0)?;
                check_eq!((none.len(), all), (0, total));
                for spigot in [own + 1, usize::MAX] {
                    refused(f.a.get_pathinfo(spigot, address, 1), Error::InvalidSpigot)?;
                }
            }
            let host = ViaNetAddr { len: 4, hostaddr: [1; MAX_VIA_ADDR_LEN] };
            let via = f.a.get_pathinfo(own, &NetAddr::ViaHostaddr(host), 1);
            refused(via, Error::InvalidNetaddr)?;
            check_eq!(Error::InvalidNetaddr as u32, 52);
            // Each address leads to the listen point.
            for address in &addresses {
                let (active, passive, listener) = sides(f)?;
                let route = path(&f.a, address)?;
                f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, TWO_WAY, &[])?;
                f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
                active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            }
            Ok(())
        },
    ),
    // If no answer comes, the attempt ends when the path's timeout has passed.
    test(
        "connect::no_answer",
        &["it_cm_msg_events F31", "it_path_t B01 B03 F21", "it_ep_state_t S23"],
        |f| {
            let (active, _, listener) = sides(f)?;
            f.a.post_recv(active.ep, &[], 1, DtoFlags::COMPLETION)?;
            let lose = |count| f.inject(0, Injection::DropManagement, count, 0);
            let route = Path { timeout: 300_000, ..path(&f.a, &listener.address)? };
            lose(10_000)?;
            let dial = f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, TWO_WAY, &[]);
            let event = match dial {
                Ok(()) => active.expect(EventType::CM_MSG_CONN_NONPEER_REJECT),
                Err(error) => Err(Failure::from(error)),
            };
            lose(0)?;
            let event = event?;
            let Event::ConnNonpeerReject { reject_reason_code, .. } = event else {
                return Err(Failure::new("not a rejection"));
            };
            check_eq!((reject_reason_code, reject_reason_code.as_raw()), (RejectReason::Timeout, 1));
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            active.recv_done(1, DtoStatus::Flushed)
        },
    ),
    // The passive side repeats its reply by the active side's local timeout, not by the time that
    // the active side gives to the passive side's answers.
    test("connect::the_local_timeout_is_the_passive_sides", &["it_ep_connect F06"], |f| {
        Need::ThreeWay.of(&f.a)?;
        let (active, passive, listener) = sides(f)?;
        // 1 ms against more than a minute.
        let attributes = ConnAttributes {
            local_cm_timeout: 8,
            remote_cm_timeout: 24,
            max_cm_retries: 2,
            ..ConnAttributes::default()
        };
        let route = Path { timeout: 200_000_000, ..path(&f.a, &listener.address)? };
        f.a.ep_connect(active.ep, &route, Some(&attributes), &listener.conn_qual, THREE_WAY, &[])?;
        // From the accept on all messages but the reply are lost.
        let request = listener.request()?;
        f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
        arrival(&active)?;
        for agent in [&f.setup.a.agent, &f.setup.b.agent] {
            agent.test_handle().inject(0, Injection::DropManagement, 10_000, 0)?;
        }
        let event = passive.event();
        for agent in [&f.setup.a.agent, &f.setup.b.agent] {
            agent.test_handle().inject(0, Injection::DropManagement, 0, 0)?;
        }
        check_eq!(event?.event_number(), EventType::CM_MSG_CONN_NONPEER_REJECT);
        check_eq!(passive.state()?, EpStateRc::Nonoperational);
        f.a.ep_disconnect(active.ep, &[]).map_err(Failure::from)
    }),
    // A lost message of the connection manager is repeated, and the receiver reports it once.
    test("connect::lost_datagrams_are_sent_again", &["it_ep_connect F09", "A.it_cm_msg_events O02"], |f| {
        for lost in 1..=3 {
            let (active, passive, listener) = sides(f)?;
            f.inject(0, Injection::DropManagement, lost, 0)?;
            // A response timeout of 4.096 us * 2^13 = 34 ms.
            let quick =
                ConnAttributes { local_cm_timeout: 13, remote_cm_timeout: 13, ..ConnAttributes::default() };
            let route = path(&f.a, &listener.address)?;
            f.a.ep_connect(active.ep, &route, Some(&quick), &listener.conn_qual, TWO_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            // The request is reported once, regardless of how often it was sent.
            refused(f.b.evd_dequeue(listener.evd), Error::QueueEmpty)?;
            exchange_messages(&active, &passive)?;
        }
        Ok(())
    }),
    // Several connections are established at the same time through one listen point.
    test(
        "connect::many_at_once",
        &["it_evd_create B06", "it_ep_state_t B03", "A.it_cm_msg_events B07"],
        |f| {
            const MANY: usize = 12;
            let listener = f.listen_with(&f.b, ListenFlags::empty(), 32)?;
            let (mut actives, mut passives) = (Vec::new(), Vec::new());
            for _ in 0..MANY {
                actives.push(f.end(&f.a, &attributes())?);
                passives.push(f.end(&f.b, &attributes())?);
            }
            for (place, active) in actives.iter().enumerate() {
                f.dial(active, &listener, TWO_WAY, &[place as u8 + 1])?;
            }
            let mut matched = [None; MANY];
            for _ in 0..MANY {
                let request = listener.request()?;
                let data = some(request.private_data, "private data")?;
                let place = usize::from(data[0]) - 1;
                check!(matched[place].is_none());
                f.b.ep_accept(passives[place].ep, request.cn_est_id, &[place as u8 + 1])?;
                matched[place] = Some(());
            }
            for place in 0..MANY {
                let event = actives[place].expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                check_eq!(some(private_data(&event), "private data")?[0], place as u8 + 1);
                passives[place].expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                exchange_messages(&actives[place], &passives[place])?;
            }
            Ok(())
        },
    ),
    // The state of a connection does not depend on the consumer taking its events.
    test("connect::states_do_not_wait_for_the_consumer", &["it_ep_state_t B02 B03"], |f| {
        // No event is dequeued before the third connection has ended.
        let (active, passive, listener) = sides(f)?;
        for _ in 0..3 {
            f.dial(&active, &listener, TWO_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            for end in [&active, &passive] {
                check!(eventually(f.platform(), || end.state() == Ok(EpStateRc::Connected)));
            }
            f.a.ep_disconnect(active.ep, &[])?;
            for end in [&active, &passive] {
                check!(eventually(f.platform(), || end.state() == Ok(EpStateRc::Nonoperational)));
                end.ia.ep_reset(end.ep)?;
            }
        }
        for end in [&active, &passive] {
            for _ in 0..3 {
                end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            }
            silent(end)?;
        }
        Ok(())
    }),
];

//! Connections (chapter 5; pages it_ep_connect, it_ep_accept, it_reject, it_ep_disconnect, it_listen_create,
//! it_listen_query, it_listen_free, it_get_pathinfo, it_cm_req_events, it_cm_msg_events, it_conn_qual_t, it_path_t).

use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::check::some;
use crate::fixture::{End, Fixture, Listener, MOMENT, SIGNALLED, attributes, path, pattern, sevd, spigot};
use crate::thread::eventually;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const TWO_WAY: CnEstFlags = CnEstFlags::TWO_WAY;
const THREE_WAY: CnEstFlags = CnEstFlags::THREE_WAY;

/// An endpoint on each side and a listen point of the second.
fn sides(f: &Fixture) -> Result<(End, End, Listener), Failure> {
    Ok((f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?, f.listen(&f.b)?))
}

/// The private data of an event, if it has any.
fn private_data(event: &Event) -> Option<PrivateData> {
    match event {
        Event::ConnRequest(request) => request.private_data,
        Event::ConnAcceptArrival { private_data, .. }
        | Event::ConnEstablished { private_data, .. }
        | Event::ConnDisconnect { private_data, .. }
        | Event::ConnPeerReject { private_data, .. } => *private_data,
        _ => None,
    }
}

/// Checks that a message brought these bytes, in a field of the transport's own length that is zero behind them; or none.
#[track_caller]
fn brought(data: Option<PrivateData>, bytes: &[u8], limit: usize) -> Outcome {
    if bytes.is_empty() {
        check_eq!(data, None);
        return Ok(());
    }
    let data = some(data, "private data")?;
    let good = data.len() >= bytes.len()
        && data.len() <= limit.max(bytes.len())
        && data.starts_with(bytes)
        && data[bytes.len()..].iter().all(|&byte| byte == 0);
    match good {
        true => Ok(()),
        false => Err(Failure::new(alloc::format!("{} bytes came for {}", data.len(), bytes.len()))),
    }
}

/// The identifier in the arrival of an acceptance.
#[track_caller]
fn arrival(end: &End) -> Result<CnEstId, Failure> {
    match end.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)? {
        Event::ConnAcceptArrival { cn_est_id, ep, .. } if ep == end.ep => Ok(cn_est_id),
        other => Err(Failure::new(alloc::format!("got {other:?}"))),
    }
}

/// Fails unless no event is queued on the endpoint's dispatcher of connection events.
#[track_caller]
fn silent(end: &End) -> Outcome {
    refused(end.ia.evd_dequeue(end.conn), Error::QueueEmpty)
}

/// Sends a message each way.
fn talks(a: &End, b: &End) -> Outcome {
    for (from, to) in [(a, b), (b, a)] {
        to.ia.post_recv(to.ep, &[], 71, DtoFlags::COMPLETION)?;
        from.ia.post_send(from.ep, &[], 72, SIGNALLED)?;
        to.recv_done(71, DtoStatus::Success)?;
        from.done(72, DtoStatus::Success)?;
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    test(
        "connect::two_way",
        &[
            "it_ep_accept.V04",
            "5.1.B01",
            "5.1.B03",
            "5.2.1.B01",
            "5.2.1.B04",
            "5.2.1.B05",
            "it_ep_connect.B02",
            "it_ep_connect.F01",
            "it_ep_connect.S03",
            "it_ep_connect.B09",
            "it_ep_connect.B06",
            "it_ep_accept.B02",
            "it_ep_accept.B03",
            "it_ep_accept.B04",
            "it_ep_accept.S01",
            "it_ep_accept.F01",
            "it_ep_state_t.S21",
            "it_ep_state_t.S31",
            "it_ep_state_t.B06",
            "it_ep_state_t.B02",
            "it_ep_state_t.V03",
            "A.it_ep_accept.B01",
            "it_cm_msg_events.B01",
            "it_cm_msg_events.B03",
            "it_cm_msg_events.F01",
            "it_cm_msg_events.F02",
            "it_cm_msg_events.F04",
            "it_cm_msg_events.S02",
            "it_cm_req_events.B01",
            "it_cm_req_events.F01",
            "it_cm_req_events.F02",
            "it_cm_req_events.F03",
            "it_cm_req_events.F04",
            "it_cm_req_events.F05",
            "it_cm_req_events.F06",
            "it_event_t.F15",
            "it_event_t.F19",
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
            let pending = [EpStateRc::PassiveConnectionPending, EpStateRc::Connected];
            check!(pending.contains(&passive.state()?));
            // The state is there before its event.
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
            talks(&active, &passive)
        },
    ),
    test(
        "connect::three_way",
        &[
            "5.1.O01",
            "it_ep_connect.F02",
            "it_ep_connect.B08",
            "it_ep_connect.L02",
            "it_ep_accept.B05",
            "it_ep_accept.S02",
            "it_ep_accept.S03",
            "it_ep_accept.S04",
            "it_ep_state_t.F03",
            "it_ep_state_t.F04",
            "it_ep_state_t.S06",
            "it_ep_state_t.S20",
            "it_ep_state_t.S22",
            "it_ep_state_t.S27",
            "it_ep_state_t.S11",
            "it_cm_msg_events.S01",
            "it_cm_msg_events.F03",
            "it_cm_msg_events.F24",
            "it_ia_info_t.F37",
            "it_event_t.F18",
            "5.2.1.S01",
        ],
        |f| {
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
            f.a.ep_accept(active.ep, id, &[])?;
            for end in [&active, &passive] {
                end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                check_eq!(end.state()?, EpStateRc::Connected);
            }
            f.a.post_send(active.ep, &[], 3, SIGNALLED)?;
            passive.recv_done(1, DtoStatus::Success)?;
            active.done(3, DtoStatus::Success)
        },
    ),
    test(
        "connect::private_data",
        &[
            "it_ep_connect.L03",
            "5.1.B02",
            "5.2.1.B02",
            "5.2.1.B03",
            "it_cm_req_events.F10",
            "it_cm_req_events.F11",
            "it_cm_req_events.B05",
            "it_cm_msg_events.F09",
            "it_cm_msg_events.F10",
            "it_cm_msg_events.F25",
            "it_cm_msg_events.L01",
            "it_ia_info_t.F38",
            "it_ia_info_t.F44",
            "it_ia_info_t.F45",
            "it_ep_accept.V06",
            "F.B01",
            "B.2.V01",
        ],
        |f| {
            let info = f.a.ia_query()?;
            check!(info.private_data_support);
            check_eq!(MAX_PRIV_DATA, 256);
            let limits = (info.connect_private_data_len, info.accept_private_data_len);
            check!(limits.0 > 0 && limits.1 > 0);
            for (connect, accept) in [(0, 0), (1, 1), (0, limits.1), (limits.0, 0), limits] {
                let (active, passive, listener) = sides(f)?;
                let (asked, answered) = (pattern(1, connect), pattern(2, accept));
                f.dial(&active, &listener, TWO_WAY, &asked)?;
                let request = listener.request()?;
                brought(request.private_data, &asked, limits.0)?;
                f.b.ep_accept(passive.ep, request.cn_est_id, &answered)?;
                let event = active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                brought(private_data(&event), &answered, limits.1)?;
                passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            }
            Ok(())
        },
    ),
    test(
        "connect::private_data_three_way",
        &["it_cm_msg_events.F24", "it_ep_accept.B09", "it_cm_msg_events.O03", "A.it_cm_msg_events.A03"],
        |f| {
            let limit = f.a.ia_query()?.accept_private_data_len;
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, b"first")?;
            let request = listener.request()?;
            brought(request.private_data, b"first", MAX_PRIV_DATA)?;
            let second = pattern(3, limit);
            f.b.ep_accept(passive.ep, request.cn_est_id, &second)?;
            let event = active.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?;
            brought(private_data(&event), &second, limit)?;
            let Event::ConnAcceptArrival { cn_est_id, .. } = event else {
                return Err(Failure::new("not an arrival"));
            };
            f.a.ep_accept(active.ep, cn_est_id, b"third")?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            // The last message may be lost, and its data with it; what comes is right.
            let event = passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            if let Some(data) = private_data(&event) {
                check!(data.starts_with(b"third") || data.iter().all(|&byte| byte == 0));
            }
            Ok(())
        },
    ),
    test(
        "connect::too_much_private_data",
        &[
            "it_ep_connect.IT_ERR_INVALID_PDATA_LENGTH",
            "it_ep_accept.IT_ERR_INVALID_PDATA_LENGTH",
            "it_reject.IT_ERR_INVALID_PDATA_LENGTH",
            "it_ep_disconnect.IT_ERR_INVALID_PDATA_LENGTH",
            "it_ep_accept.V05",
            "it_status_t.F55",
        ],
        |f| {
            let info = f.a.ia_query()?;
            let (active, passive, listener) = sides(f)?;
            for extra in [1, 2, 1000] {
                let data = vec![7; info.connect_private_data_len + extra];
                let route = path(&f.a, &listener.address)?;
                let dial = f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, TWO_WAY, &data);
                refused(dial, Error::InvalidPdataLength)?;
            }
            check_eq!(active.state()?, EpStateRc::Unconnected);
            f.dial(&active, &listener, TWO_WAY, &[])?;
            let request = listener.request()?;
            let data = vec![7; info.accept_private_data_len + 1];
            refused(f.b.ep_accept(passive.ep, request.cn_est_id, &data), Error::InvalidPdataLength)?;
            let data = vec![7; info.reject_private_data_len + 1];
            refused(f.b.reject(request.cn_est_id, &data), Error::InvalidPdataLength)?;
            check_eq!(passive.state()?, EpStateRc::Unconnected);
            // The request survived both.
            f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            let data = vec![7; info.disconnect_private_data_len + 1];
            refused(f.a.ep_disconnect(active.ep, &data), Error::InvalidPdataLength)?;
            check_eq!((active.state()?, passive.state()?), (EpStateRc::Connected, EpStateRc::Connected));
            check_eq!(Error::InvalidPdataLength as u32, 54);
            Ok(())
        },
    ),
    test(
        "connect::rejected_by_the_passive_side",
        &[
            "it_reject.B01",
            "it_reject.B02",
            "it_reject.B03",
            "it_reject.B04",
            "it_reject.S01",
            "it_reject.B05",
            "it_reject.B06",
            "it_reject.A01",
            "it_ep_connect.S02",
            "it_ep_connect.S04",
            "it_ep_connect.B10",
            "it_ep_state_t.S25",
            "it_cm_msg_events.S04",
            "it_cm_msg_events.F27",
            "it_ia_info_t.F46",
            "it_event_t.F21",
        ],
        |f| {
            let limit = f.a.ia_query()?.reject_private_data_len;
            for flags in [TWO_WAY, THREE_WAY] {
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
                    brought(private_data(&event), &data, limit)?;
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
    test(
        "connect::rejected_by_the_active_side",
        &[
            "it_reject.B04",
            "it_reject.S02",
            "it_reject.B02",
            "it_ep_state_t.S07",
            "it_ep_state_t.S28",
            "it_ep_state_t.S32",
            "it_ep_state_t.V06",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.b.post_recv(passive.ep, &[], 1, DtoFlags::COMPLETION)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            f.a.reject(id, b"no, thanks")?;
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            let event = passive.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            brought(private_data(&event), b"no, thanks", MAX_PRIV_DATA)?;
            check_eq!(passive.state()?, EpStateRc::Nonoperational);
            passive.recv_done(1, DtoStatus::Flushed)?;
            refused(f.a.ep_accept(active.ep, id, &[]), Error::InvalidCnEstId)?;
            refused(f.a.reject(id, &[]), Error::InvalidCnEstId)
        },
    ),
    test(
        "connect::identifiers_live_once",
        &[
            "it_ep_accept.B06",
            "it_ep_accept.IT_ERR_INVALID_CN_EST_ID",
            "it_reject.IT_ERR_INVALID_CN_EST_ID",
            "it_reject.V01",
            "it_ep_disconnect.V01",
            "it_ep_state_t.V01",
            "it_status_t.F28",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            for id in [0, 1, 12345, u64::MAX] {
                refused(f.b.ep_accept(passive.ep, CnEstId(id), &[]), Error::InvalidCnEstId)?;
                refused(f.b.reject(CnEstId(id), &[]), Error::InvalidCnEstId)?;
            }
            f.dial(&active, &listener, TWO_WAY, &[])?;
            let id = listener.request()?.cn_est_id;
            // It is the other IA's.
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
    test(
        "connect::accepting_with_the_wrong_endpoint",
        &[
            "it_ep_accept.IT_ERR_INVALID_EP_STATE",
            "it_ep_accept.V05",
            "it_ep_state_t.S06",
            "it_ep_state_t.V08",
        ],
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
    test("connect::not_to_itself", &["it_ep_connect.L04"], |f| {
        let end = f.end(&f.b, &attributes())?;
        let listener = f.listen(&f.b)?;
        f.dial(&end, &listener, TWO_WAY, &[])?;
        let request = listener.request()?;
        refused(f.b.ep_accept(end.ep, request.cn_est_id, &[]), Error::InvalidEpState)?;
        check_eq!(end.state()?, EpStateRc::Active1ConnectionPending);
        // To another one of the same IA it may.
        let other = f.end(&f.b, &attributes())?;
        f.b.ep_accept(other.ep, request.cn_est_id, &[])?;
        end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        other.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        talks(&end, &other)
    }),
    test(
        "connect::disconnected_by_either_side",
        &[
            "it_ep_state_t.V10",
            "A.it_ep_disconnect.B02",
            "it_ep_disconnect.B01",
            "it_ep_disconnect.B02",
            "it_ep_disconnect.B03",
            "it_ep_disconnect.B04",
            "it_ep_disconnect.S01",
            "it_ep_state_t.S39",
            "it_ep_state_t.S40",
            "it_ep_state_t.S45",
            "it_ep_state_t.A01",
            "it_ep_state_t.A03",
            "it_ep_state_t.B01",
            "it_cm_msg_events.B02",
            "it_cm_msg_events.S03",
            "it_cm_msg_events.F26",
            "it_ia_info_t.F47",
            "it_event_t.F20",
            "A.it_ep_disconnect.B01",
        ],
        |f| {
            let limit = f.a.ia_query()?.disconnect_private_data_len;
            for (by_active, len) in [(true, 0), (false, 0), (true, limit), (false, 1)] {
                let pair = f.pair()?;
                let (first, second) = if by_active { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
                let data = pattern(5, len);
                first.ia.ep_disconnect(first.ep, &data)?;
                check_eq!(first.state()?, EpStateRc::Nonoperational);
                first.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                let event = second.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                check_eq!(event.event_number().as_raw(), 0x2003);
                brought(private_data(&event), &data, MAX_PRIV_DATA)?;
                check_eq!(second.state()?, EpStateRc::Nonoperational);
                // One event a side, however often it is asked again.
                for end in [first, second] {
                    end.ia.ep_disconnect(end.ep, &[])?;
                    silent(end)?;
                }
            }
            Ok(())
        },
    ),
    test(
        "connect::disconnected_by_both_at_once",
        &["it_cm_msg_events.B02", "it_ep_state_t.A03", "it_ep_disconnect.V04", "A.it_ep_disconnect.V01"],
        |f| {
            for _ in 0..10 {
                let pair = f.pair()?;
                f.a.ep_disconnect(pair.a.ep, &[])?;
                f.b.ep_disconnect(pair.b.ep, &[])?;
                for end in [&pair.a, &pair.b] {
                    end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                    check_eq!(end.state()?, EpStateRc::Nonoperational);
                    end.ia.ep_disconnect(end.ep, &[])?;
                    silent(end)?;
                }
            }
            Ok(())
        },
    ),
    test(
        "connect::disconnect_flushes",
        &[
            "it_cm_msg_events.B13",
            "it_dto_events.B08",
            "it_ep_disconnect.B06",
            "it_ep_state_t.A04",
            "it_cm_msg_events.S03",
            "4.7.B05",
        ],
        |f| {
            let pair = f.pair()?;
            for cookie in 0..5 {
                f.a.post_recv(pair.a.ep, &[], cookie, DtoFlags::COMPLETION)?;
                f.b.post_recv(pair.b.ep, &[], cookie, DtoFlags::COMPLETION)?;
            }
            f.a.ep_disconnect(pair.a.ep, &[])?;
            for cookie in 0..5 {
                pair.a.recv_done(cookie, DtoStatus::Flushed)?;
                pair.b.recv_done(cookie, DtoStatus::Flushed)?;
            }
            pair.a.idle()?;
            pair.b.idle()?;
            // Nobody says whether this comes before or after.
            pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            Ok(())
        },
    ),
    test(
        "connect::given_up_by_the_active_side",
        &[
            "it_ep_state_t.S26",
            "it_ep_disconnect.B01",
            "it_ep_disconnect.B05",
            "it_ep_state_t.S09",
            "it_ep_state_t.S44",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.a.post_recv(active.ep, &[], 1, DtoFlags::COMPLETION)?;
            f.dial(&active, &listener, TWO_WAY, &[])?;
            let request = listener.request()?;
            f.a.ep_disconnect(active.ep, &[])?;
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            active.recv_done(1, DtoStatus::Flushed)?;
            silent(&active)?;
            // Whoever accepts it now gets no connection.
            if f.b.ep_accept(passive.ep, request.cn_est_id, &[]).is_ok() {
                let event = passive.event()?.event_number();
                check!(
                    event != EventType::CM_MSG_CONN_ESTABLISHED && event != EventType::CM_MSG_CONN_BROKEN,
                    "{event:?}"
                );
                check_eq!(passive.state()?, EpStateRc::Nonoperational);
            }
            Ok(())
        },
    ),
    test(
        "connect::given_up_after_the_arrival",
        &[
            "it_ep_state_t.S30",
            "it_ep_disconnect.V03",
            "it_cm_msg_events.V01",
            "A.it_cm_msg_events.B03",
            "A.it_ep_state_t.V03",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            f.a.ep_disconnect(active.ep, &[])?;
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            refused(f.a.ep_accept(active.ep, id, &[]), Error::InvalidCnEstId)?;
            refused(f.a.reject(id, &[]), Error::InvalidCnEstId)?;
            let event = passive.event()?.event_number();
            check!(event != EventType::CM_MSG_CONN_ESTABLISHED, "{event:?}");
            check_eq!(passive.state()?, EpStateRc::Nonoperational);
            Ok(())
        },
    ),
    test(
        "connect::freed_after_the_arrival",
        &[
            "it_ep_state_t.S33",
            "A.it_cm_msg_events.B04",
            "A.it_ep_free.B02",
            "it_ep_free.B05",
            "A.it_ep_free.A01",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            f.a.ep_free(active.ep)?;
            let spare = f.end(&f.a, &attributes())?;
            refused(f.a.ep_accept(spare.ep, id, &[]), Error::InvalidCnEstId)?;
            refused(f.a.reject(id, &[]), Error::InvalidCnEstId)?;
            let event = passive.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
            let Event::ConnNonpeerReject { reject_reason_code, .. } = event else {
                return Err(Failure::new("not a rejection"));
            };
            check!([RejectReason::Other, RejectReason::Timeout].contains(&reject_reason_code));
            check_eq!(passive.state()?, EpStateRc::Nonoperational);
            Ok(())
        },
    ),
    test("connect::given_up_by_the_passive_side", &["it_ep_state_t.S34", "it_ep_state_t.S29"], |f| {
        let (active, passive, listener) = sides(f)?;
        f.dial(&active, &listener, THREE_WAY, &[])?;
        f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
        arrival(&active)?;
        check_eq!(passive.state()?, EpStateRc::PassiveConnectionPending);
        f.b.ep_disconnect(passive.ep, &[])?;
        check_eq!(passive.state()?, EpStateRc::Nonoperational);
        passive.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        let event = active.event()?.event_number();
        check!(event != EventType::CM_MSG_CONN_ESTABLISHED, "{event:?}");
        check_eq!(active.state()?, EpStateRc::Nonoperational);
        Ok(())
    }),
    test(
        "connect::nobody_listens",
        &[
            "it_cm_msg_events.S05",
            "it_cm_msg_events.F08",
            "it_cm_msg_events.F28",
            "it_cm_msg_events.F30",
            "it_cm_msg_events.F37",
            "it_ep_state_t.S24",
            "it_ep_state_t.S44",
            "it_ep_connect.S04",
            "A.it_cm_msg_events.A02",
            "it_event_t.F22",
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
            check_eq!((ep, reject_reason_code), (end.ep, RejectReason::Other));
            check_eq!((RejectReason::Other.as_raw(), event.event_number().as_raw()), (0, 0x2005));
            check_eq!(end.state()?, EpStateRc::Nonoperational);
            end.recv_done(1, DtoStatus::Flushed)
        },
    ),
    test(
        "connect::bad_flags",
        &[
            "it_ep_connect.V04",
            "it_ep_connect.IT_ERR_INVALID_CN_EST_FLAGS",
            "it_ep_connect.L01",
            "it_ep_connect.V03",
            "it_status_t.F27",
        ],
        |f| {
            let (active, _, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            for bits in [0, 3, 4, 7, 8, 9, 0x8000_0001, u32::MAX] {
                let flags = CnEstFlags::from_bits_retain(bits);
                let dial = f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, flags, &[]);
                refused(dial, Error::InvalidCnEstFlags)?;
            }
            check_eq!(active.state()?, EpStateRc::Unconnected);
            check_eq!(Error::InvalidCnEstFlags as u32, 26);
            Ok(())
        },
    ),
    test(
        "connect::bad_qualifiers",
        &[
            "it_ep_connect.IT_ERR_INVALID_CONN_QUAL",
            "it_ia_info_t.F13",
            "it_conn_qual_t.F10",
            "it_conn_qual_t.B02",
            "it_status_t.F30",
        ],
        |f| {
            let (active, _, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            let discriminator = ViaDiscriminator { len: 2, discriminator: [0; MAX_VIA_DISC_LEN] };
            let types = spigot(&f.a)?.active_side_conn_qual;
            for (qual, kind) in [
                (ConnQual::ViaDiscriminator(discriminator), ConnQualTypes::VIA_DISCRIMINATOR),
                (ConnQual::IanaLrPort { local: 1, remote: 2 }, ConnQualTypes::IANA_LR_PORT),
            ] {
                check!(!types.contains(kind), "{kind:?} is not InfiniBand's");
                let dial = f.a.ep_connect(active.ep, &route, None, &qual, TWO_WAY, &[]);
                refused(dial, Error::InvalidConnQual)?;
            }
            check_eq!(active.state()?, EpStateRc::Unconnected);
            check_eq!(Error::InvalidConnQual as u32, 29);
            Ok(())
        },
    ),
    test(
        "connect::bad_paths",
        &[
            "A.it_ep_connect.IT_ERR_INVALID_SOURCE_PATH",
            "it_ep_connect.IT_ERR_INVALID_SPIGOT",
            "it_ep_connect.IT_ERR_INVALID_SOURCE_PATH",
            "it_ep_connect.V01",
            "it_path_t.F06",
            "it_path_t.F20",
            "it_path_t.F22",
            "it_status_t.F70",
            "it_status_t.F71",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            let dial =
                |route: &Path| f.a.ep_connect(active.ep, route, None, &listener.conn_qual, TWO_WAY, &[]);
            for spigot_id in [route.spigot_id + 1, usize::MAX] {
                refused(dial(&Path { spigot_id, ..route }), Error::InvalidSpigot)?;
            }
            let mut wrong = route;
            some(wrong.ib_mut(), "the InfiniBand part")?.local_port_gid = [0xee; 16];
            refused(dial(&wrong), Error::InvalidSourcePath)?;
            // A partition that the port is not in.
            for key in [0, 1, 0x7ffe, 0x8001, 0xfffe] {
                let mut wrong = route;
                some(wrong.ib_mut(), "the InfiniBand part")?.partition_key = key;
                refused(dial(&wrong), Error::InvalidSourcePath)?;
            }
            let iwarp = IwarpNetEndpoint::Ipv4 { laddr: [127, 0, 0, 1], raddr: [127, 0, 0, 1] };
            let foreign = Path { remote: NetEndpoint::Iwarp(iwarp), ..route };
            refused(dial(&foreign), Error::InvalidSourcePath)?;
            check_eq!(active.state()?, EpStateRc::Unconnected);
            check_eq!((Error::InvalidSourcePath as u32, Error::InvalidSpigot as u32), (69, 70));
            // The good path still is.
            dial(&route)?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            Ok(())
        },
    ),
    test(
        "connect::attributes_of_the_transport",
        &[
            "it_ep_connect.B07",
            "it_ep_connect.IT_ERR_INVALID_RTIMEOUT",
            "it_ep_connect.IT_ERR_INVALID_LTIMEOUT",
            "it_ep_connect.IT_ERR_INVALID_RETRY",
            "it_ep_connect.IT_ERR_INVALID_RNR_RETRY",
            "it_ep_connect.IT_ERR_INVALID_CM_RETRY",
            "it_ep_connect.IT_ERR_INVALID_ETIMEOUT",
            "it_ep_connect.V05",
            "it_ep_connect.F05",
            "it_ep_connect.F06",
            "it_ep_connect.F07",
            "it_ep_connect.F08",
            "it_ep_connect.F09",
            "it_ep_connect.F10",
            "it_status_t.F24",
            "it_status_t.F26",
            "it_status_t.F48",
            "it_status_t.F64",
            "it_status_t.F66",
            "it_status_t.F68",
        ],
        |f| {
            let (active, passive, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            let dial = |attributes: &ConnAttributes| {
                f.a.ep_connect(active.ep, &route, Some(attributes), &listener.conn_qual, TWO_WAY, &[])
            };
            let good = ConnAttributes::default();
            // One more than fits into the field.
            let wrong = [
                (ConnAttributes { remote_cm_timeout: 32, ..good }, Error::InvalidRtimeout, 67),
                (ConnAttributes { local_cm_timeout: 32, ..good }, Error::InvalidLtimeout, 47),
                (ConnAttributes { retry_count: 8, ..good }, Error::InvalidRetry, 63),
                (ConnAttributes { rnr_retry_count: 8, ..good }, Error::InvalidRnrRetry, 65),
                (ConnAttributes { max_cm_retries: 16, ..good }, Error::InvalidCmRetry, 25),
                (ConnAttributes { local_ack_timeout: 32, ..good }, Error::InvalidAtimeout, 23),
            ];
            for (attributes, error, code) in wrong {
                refused(dial(&attributes), error)?;
                check_eq!(error as u32, code);
            }
            check_eq!(active.state()?, EpStateRc::Unconnected);
            // The largest and smallest useful values are good.
            dial(&ConnAttributes { retry_count: 0, rnr_retry_count: 7, max_cm_retries: 15, ..good })?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            talks(&active, &passive)
        },
    ),
    test(
        "connect::read_depths_travel",
        &[
            "it_cm_msg_events.V03",
            "5.1.1.B02",
            "5.1.1.B03",
            "5.2.3.B01",
            "5.2.3.B02",
            "5.2.3.B04",
            "5.2.3.B05",
            "it_ep_connect.B03",
            "it_listen_create.B04",
            "it_listen_create.B05",
            "it_cm_req_events.F08",
            "it_cm_req_events.F09",
            "it_cm_msg_events.F05",
            "it_cm_msg_events.F06",
            "it_ia_info_t.F40",
        ],
        |f| {
            check!(f.a.ia_query()?.ird_ord_ia_support);
            let depths = |ird, ord| {
                let rc = RcAttributes { rdma_read_ird: ird, rdma_read_ord: ord, ..attributes().rc };
                EpAttributes { rc, ..attributes() }
            };
            for flags in [TWO_WAY, THREE_WAY] {
                let (active, passive) = (f.end(&f.a, &depths(4, 3))?, f.end(&f.b, &depths(3, 2))?);
                let listener = f.listen(&f.b)?;
                let ird = |end: &End| -> Result<u32, Failure> {
                    Ok(end.ia.ep_query(end.ep, EpParamMask::MAX_IRD)?.attr.rc.rdma_read_ird)
                };
                // More may be granted than was asked for; what is sent is what is in force.
                let (active_ird, passive_ird) = (ird(&active)?, ird(&passive)?);
                f.dial(&active, &listener, flags, &[])?;
                let request = listener.request()?;
                check_eq!((request.rdma_read_ird, request.rdma_read_ord), (active_ird, 3));
                f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
                let (event, id) = if flags == TWO_WAY {
                    (active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?, None)
                } else {
                    let event = active.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?;
                    let Event::ConnAcceptArrival { cn_est_id, .. } = event else {
                        return Err(Failure::new("not an arrival"));
                    };
                    (event, Some(cn_est_id))
                };
                let (Event::ConnEstablished { rdma_read_ird, rdma_read_ord, .. }
                | Event::ConnAcceptArrival { rdma_read_ird, rdma_read_ord, .. }) = event
                else {
                    return Err(Failure::new("no depths"));
                };
                check!(rdma_read_ird <= passive_ird && rdma_read_ird >= 3, "IRD {rdma_read_ird}");
                check_eq!(rdma_read_ord, 2);
                if let Some(id) = id {
                    f.a.ep_accept(active.ep, id, &[])?;
                }
                // The passive side is told what the active side said first, whatever it made of it.
                let event = passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                let Event::ConnEstablished { rdma_read_ird, rdma_read_ord, .. } = event else {
                    return Err(Failure::new("not established"));
                };
                check_eq!((rdma_read_ird, rdma_read_ord), (active_ird, 3));
            }
            Ok(())
        },
    ),
    test(
        "connect::more_reads_than_the_peer_takes",
        &[
            "A.it_ep_attributes_t.B03",
            "it_ep_attributes_t.F14",
            "it_ep_accept.IT_ERR_INVALID_EP_ATTR",
            "it_ep_accept.B07",
            "it_ep_accept.B08",
            "5.1.1.B01",
            "it_status_t.F34",
            "A.it_ep_attributes_t.B04",
            "it_cm_msg_events.F34",
        ],
        |f| {
            // The active side may have 8 reads outstanding; the endpoint on the passive side takes 1.
            let greedy = RcAttributes { rdma_read_ord: 8, ..attributes().rc };
            let meagre = RcAttributes { rdma_read_ird: 1, ..attributes().rc };
            let active = f.end(&f.a, &EpAttributes { rc: greedy, ..attributes() })?;
            let passive = f.end(&f.b, &EpAttributes { rc: meagre, ..attributes() })?;
            let granted = f.b.ep_query(passive.ep, EpParamMask::MAX_IRD)?.attr.rc.rdma_read_ird;
            check!(granted < 8, "the device grants {granted}");
            let listener = f.listen(&f.b)?;
            f.dial(&active, &listener, TWO_WAY, &[])?;
            let request = listener.request()?;
            check_eq!(request.rdma_read_ord, 8);
            f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
            // Only the active side sees both: it refuses, or its consumer has to give way.
            let event = active.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
            let Event::ConnNonpeerReject { reject_reason_code, .. } = event else {
                return Err(Failure::new("not a rejection"));
            };
            check_eq!((reject_reason_code, reject_reason_code.as_raw()), (RejectReason::BadOrd, 4));
            check_eq!(active.state()?, EpStateRc::Nonoperational);
            // No end stays connected to nothing.
            let event = passive.event()?.event_number();
            let rejects = [EventType::CM_MSG_CONN_NONPEER_REJECT, EventType::CM_MSG_CONN_PEER_REJECT];
            check!(rejects.contains(&event), "{event:?}");
            check_eq!(passive.state()?, EpStateRc::Nonoperational);
            f.a.ep_reset(active.ep)?;
            let passive = f.end(&f.b, &EpAttributes { rc: meagre, ..attributes() })?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            refused(f.a.ep_accept(active.ep, id, &[]), Error::InvalidEpAttr)?;
            check_eq!(Error::InvalidEpAttr as u32, 33);
            check_eq!(active.state()?, EpStateRc::Active2ConnectionPending);
            // Made to fit, the same request can be accepted.
            let rc = RcAttributes { rdma_read_ord: 1, ..greedy };
            f.a.ep_modify(active.ep, EpParamMask::MAX_ORD, &EpAttributes { rc, ..attributes() })?;
            f.a.ep_accept(active.ep, id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            talks(&active, &passive)
        },
    ),
    test(
        "connect::depths_adjusted_after_the_arrival",
        &["it_cm_msg_events.B11", "it_ep_attributes_t.S03", "it_ep_attributes_t.S04", "it_ep_modify.F06"],
        |f| {
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            let id = arrival(&active)?;
            let rc = RcAttributes { rdma_read_ord: 1, ..attributes().rc };
            let mask = EpParamMask::MAX_IRD | EpParamMask::MAX_ORD;
            f.a.ep_modify(active.ep, mask, &EpAttributes { rc, ..attributes() })?;
            f.a.ep_accept(active.ep, id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            check_eq!(f.a.ep_query(active.ep, EpParamMask::MAX_ORD)?.attr.rc.rdma_read_ord, 1);
            for cookie in 0..8 {
                f.a.post_rdma_read(active.ep, &[], cookie, SIGNALLED, RdmaAddr(0), RmrContext(0))?;
            }
            for cookie in 0..8 {
                active.done(cookie, DtoStatus::Success)?;
            }
            Ok(())
        },
    ),
    test(
        "connect::depths_suppressed",
        &[
            "it_ep_connect.V07",
            "it_ep_connect.F03",
            "it_ep_connect.O01",
            "it_listen_create.F04",
            "it_ia_info_t.F41",
            "it_ia_info_t.B03",
            "it_ep_connect.B05",
            "it_ep_connect.V06",
            "it_listen_create.B07",
            "it_listen_create.V01",
            "5.1.1.O01",
        ],
        |f| {
            let suppressible = f.a.ia_query()?.ird_ord_suppressible;
            let (active, passive, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            let flags = TWO_WAY | CnEstFlags::SUPPRESS_IRD_ORD;
            check_eq!((CnEstFlags::SUPPRESS_IRD_ORD.bits(), ListenFlags::SUPPRESS_IRD_ORD.bits()), (4, 2));
            let dial = f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, flags, &[]);
            let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 4, 1)?;
            let id = spigot(&f.b)?.spigot_id;
            let listen = f.b.listen_create(id, evd, ListenFlags::SUPPRESS_IRD_ORD, None);
            if !suppressible {
                refused(dial, Error::InvalidCnEstFlags)?;
                refused(listen, Error::InvalidFlags)?;
                check_eq!(active.state()?, EpStateRc::Unconnected);
                return Ok(());
            }
            dial?;
            listen?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            talks(&active, &passive)
        },
    ),
    test("connect::the_message_size_travels", &["it_cm_req_events.F07", "it_ia_info_t.F39"], |f| {
        let sized = EpAttributes { max_dto_payload_size: 7777, ..attributes() };
        let active = f.end(&f.a, &sized)?;
        let listener = f.listen(&f.b)?;
        f.dial(&active, &listener, TWO_WAY, &[])?;
        let request = listener.request()?;
        match f.b.ia_query()?.max_message_size_support {
            true => check_eq!(request.max_message_size, 7777),
            false => check_eq!(request.max_message_size, 0),
        }
        Ok(())
    }),
    test(
        "connect::query_of_the_path",
        &["it_ep_query.F03", "it_ep_query.F06", "it_ep_query.F07", "it_ep_rc_create.B03", "it_path_t.F07"],
        |f| {
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
            // The passive side's leads back to where the request came from.
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
    test(
        "connect::paths",
        &[
            "it_get_pathinfo.L01",
            "it_get_pathinfo.B01",
            "it_get_pathinfo.B03",
            "it_get_pathinfo.B05",
            "it_get_pathinfo.IT_ERR_INVALID_SPIGOT",
            "it_get_pathinfo.IT_ERR_INVALID_NETADDR",
            "it_path_t.B04",
            "it_status_t.F53",
        ],
        |f| {
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
            // Each address leads to the listener.
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
    test(
        "connect::nobody_answers",
        &[
            "it_cm_msg_events.F31",
            "it_cm_msg_events.B07",
            "it_path_t.F21",
            "it_path_t.B03",
            "it_path_t.B01",
            "it_ep_state_t.S23",
        ],
        |f| {
            let (active, _, listener) = sides(f)?;
            f.a.post_recv(active.ep, &[], 1, DtoFlags::COMPLETION)?;
            let lose = |count| {
                let lost = f.setup.a.agent.inject(0, Injection::DropManagement, count, 0);
                lost.map_err(|error| Failure::new(alloc::format!("{error:?}")))
            };
            let route = Path { timeout: 300_000, ..path(&f.a, &listener.address)? };
            lose(10_000)?;
            let dial = f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, TWO_WAY, &[]);
            let event = dial
                .map_err(Failure::from)
                .and_then(|()| active.expect(EventType::CM_MSG_CONN_NONPEER_REJECT));
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
    test("connect::lost_datagrams_are_sent_again", &["it_ep_connect.F09", "A.it_cm_msg_events.O02"], |f| {
        for lost in 1..=3 {
            let (active, passive, listener) = sides(f)?;
            f.setup
                .a
                .agent
                .inject(0, Injection::DropManagement, lost, 0)
                .map_err(|e| Failure::new(alloc::format!("{e:?}")))?;
            // A short response timeout: 4.096 us * 2^13 = 34 ms.
            let quick =
                ConnAttributes { local_cm_timeout: 13, remote_cm_timeout: 13, ..ConnAttributes::default() };
            let route = path(&f.a, &listener.address)?;
            f.a.ep_connect(active.ep, &route, Some(&quick), &listener.conn_qual, TWO_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            // However often it was sent, it is one request.
            refused(f.b.evd_dequeue(listener.evd), Error::QueueEmpty)?;
            talks(&active, &passive)?;
        }
        Ok(())
    }),
    test(
        "listen::create_query_free",
        &[
            "it_listen_create.B01",
            "it_listen_create.B02",
            "it_listen_create.B03",
            "it_listen_create.F01",
            "it_listen_create.F02",
            "it_listen_create.F03",
            "it_listen_query.B01",
            "it_listen_query.F01",
            "it_listen_query.F02",
            "it_listen_query.F03",
            "it_listen_query.F04",
            "it_listen_query.F05",
            "it_listen_query.IT_ERR_INVALID_LISTEN",
            "it_listen_query.IT_ERR_INVALID_MASK",
            "it_listen_free.S03",
            "it_listen_free.IT_ERR_INVALID_LISTEN",
            "it_ia_info_t.F14",
            "it_conn_qual_t.F01",
            "it_conn_qual_t.F02",
            "it_conn_qual_t.F07",
            "it_conn_qual_t.F08",
            "it_conn_qual_t.B01",
            "it_status_t.F46",
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
            let given = [Some(ConnQual::port(4711)), Some(ConnQual::service_id(0x1234_5678_9abc)), None];
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
    test(
        "listen::refusals",
        &[
            "it_listen_create.IT_ERR_INVALID_CONN_EVD",
            "it_listen_create.IT_ERR_INVALID_EVD_TYPE",
            "it_listen_create.IT_ERR_INVALID_SPIGOT",
            "it_listen_create.IT_ERR_INVALID_FLAGS",
            "it_listen_create.IT_ERR_INVALID_CONN_QUAL",
            "it_listen_create.F01",
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
    test(
        "listen::one_a_qualifier",
        &["it_listen_create.IT_ERR_CONN_QUAL_BUSY", "A.it_conn_qual_t.B02", "it_status_t.F10"],
        |f| {
            let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
            let id = spigot(&f.b)?.spigot_id;
            let listen = |qual| f.b.listen_create(id, evd, ListenFlags::CONN_QUAL_INPUT, Some(&qual));
            let (first, _) = listen(ConnQual::port(0x0abc))?;
            refused(listen(ConnQual::port(0x0abc)), Error::ConnQualBusy)?;
            // The same service by its InfiniBand name: 10 00 0C E1 00 00, then the port.
            let same = ConnQual::service_id(0x1000_0ce1_0000_0abc);
            refused(listen(same), Error::ConnQualBusy)?;
            listen(ConnQual::port(0x0abd))?;
            f.b.listen_free(first)?;
            listen(same)?;
            refused(listen(ConnQual::port(0x0abc)), Error::ConnQualBusy)?;
            check_eq!(Error::ConnQualBusy as u32, 9);
            Ok(())
        },
    ),
    test(
        "listen::a_port_answers_to_its_service_id",
        &["A.it_conn_qual_t.B02", "it_conn_qual_t.B03", "it_cm_req_events.B06"],
        |f| {
            let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
            let spigot = spigot(&f.b)?;
            let port = ConnQual::port(0x1f90);
            let (listen, _) =
                f.b.listen_create(spigot.spigot_id, evd, ListenFlags::CONN_QUAL_INPUT, Some(&port))?;
            // Another listener with another qualifier is not asked.
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
    test("listen::chosen_qualifiers_differ", &["it_listen_create.B03"], |f| {
        let evd = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 8, 1)?;
        let id = spigot(&f.b)?.spigot_id;
        let mut used: Vec<ConnQual> = Vec::new();
        for _ in 0..8 {
            let (_, qual) = f.b.listen_create(id, evd, ListenFlags::empty(), None)?;
            check!(!used.contains(&qual), "{qual:?} twice");
            used.push(qual);
        }
        Ok(())
    }),
    test("listen::freed_it_hears_no_more", &["it_listen_free.S01", "it_listen_free.S02"], |f| {
        let (early, late) = (f.end(&f.a, &attributes())?, f.end(&f.a, &attributes())?);
        let passive = f.end(&f.b, &attributes())?;
        let listener = f.listen(&f.b)?;
        f.dial(&early, &listener, TWO_WAY, &[])?;
        // Queued, not taken.
        let arrived =
            || f.b.evd_query(listener.evd, EvdParamMask::ALL).is_ok() && f.b.object_counts().cn_est > 0;
        check!(eventually(f.platform(), arrived));
        f.b.listen_free(listener.listen)?;
        f.dial(&late, &listener, TWO_WAY, &[])?;
        late.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
        // What came before can still be accepted.
        let request = listener.request()?;
        f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
        early.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        refused(f.b.evd_dequeue(listener.evd), Error::QueueEmpty)
    }),
    test(
        "listen::the_backlog",
        &["it_listen_create.B08", "it_listen_create.B09", "A.it_listen_create.A01", "it_cm_req_events.B03"],
        |f| {
            let listener = f.listen_with(&f.b, ListenFlags::empty(), 1)?;
            let room = crate::fixture::evd_param(&f.b, listener.evd)?.sevd_queue_size;
            check!(room <= 16, "the smallest queue holds {room} requests");
            let affiliated = sevd(&f.b, EventType::ASYNC_AFF_EVENT_STREAM, 8, 1)?;
            let mut waiting = Vec::new();
            for _ in 0..room {
                let end = f.end(&f.a, &attributes())?;
                f.dial(&end, &listener, TWO_WAY, &[])?;
                waiting.push(end);
                let count = waiting.len();
                check!(eventually(f.platform(), || f.b.object_counts().cn_est >= count));
            }
            let late = f.end(&f.a, &attributes())?;
            let route = Path { timeout: 300_000, ..path(&f.a, &listener.address)? };
            f.a.ep_connect(late.ep, &route, None, &listener.conn_qual, TWO_WAY, &[])?;
            let event = late.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
            let Event::ConnNonpeerReject { reject_reason_code, .. } = event else {
                return Err(Failure::new("not a rejection"));
            };
            check_eq!(reject_reason_code, RejectReason::Timeout);
            // The stream's default is to say nothing of it.
            check!(f.b.evd_wait(affiliated, MOMENT).is_err_and(|e| e == Error::TimeoutExpired));
            // The others are still there.
            for end in &waiting {
                let passive = f.end(&f.b, &attributes())?;
                f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
                end.event()?;
            }
            Ok(())
        },
    ),
    test("listen::listen_points_run_out_and_come_back", &["it_listen_create.IT_ERR_RESOURCES"], |f| {
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
    test(
        "connect::many_at_once",
        &["it_evd_create.B06", "it_ep_state_t.B03", "A.it_cm_msg_events.B07"],
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
                talks(&actives[place], &passives[place])?;
            }
            Ok(())
        },
    ),
    test("connect::events_wait_for_nobody", &["it_ep_state_t.B03", "it_ep_state_t.B02"], |f| {
        // Nobody takes the events of one connection after the other; the states go on.
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

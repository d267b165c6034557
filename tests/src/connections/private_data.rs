//! Private data of connections: how much is allowed, and what arrives (pages it_ep_connect,
//! it_ep_accept, it_reject, it_ep_disconnect, it_cm_req_events, it_cm_msg_events).

use alloc::vec;

use privileged_api::*;

use crate::check::some;
use crate::connections::connect::{THREE_WAY, TWO_WAY, sides};
use crate::fixture::{attributes, path, pattern, spigot};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The private data of an event, if it has any.
pub(crate) fn private_data(event: &Event) -> Option<PrivateData> {
    match event {
        Event::ConnRequest(request) => request.private_data,
        Event::ConnAcceptArrival { private_data, .. }
        | Event::ConnEstablished { private_data, .. }
        | Event::ConnDisconnect { private_data, .. }
        | Event::ConnPeerReject { private_data, .. } => *private_data,
        _ => None,
    }
}

/// Checks that a message carries these bytes, padded with zeros to the length of the transport's
/// field; or no private data, if `bytes` is empty.
#[track_caller]
pub(crate) fn carries(data: Option<PrivateData>, bytes: &[u8], limit: usize) -> Outcome {
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
        false => Err(Failure::new(alloc::format!("{} bytes arrived for {}", data.len(), bytes.len()))),
    }
}

pub(crate) const TESTS: &[Test] = &[
    // Private data of request and acceptance arrives at the other side, padded with zeros.
    test(
        "connect::private_data",
        &[
            "it_ep_connect L03",
            "5.1 B02",
            "5.2.1 B02 B03",
            "it_cm_req_events B05 F10 F11",
            "it_cm_msg_events F09 F10 F25 L01",
            "it_ia_info_t F38 F44 F45",
            "it_ep_accept V06",
            "F B01",
            "B.2 V01",
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
                carries(request.private_data, &asked, limits.0)?;
                f.b.ep_accept(passive.ep, request.cn_est_id, &answered)?;
                let event = active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                carries(private_data(&event), &answered, limits.1)?;
                passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            }
            Ok(())
        },
    ),
    // Private data of all three messages arrives. That of the last one is lost only with its
    // message (it_cm_msg_events), and here no message is lost.
    test(
        "connect::private_data_three_way",
        &["it_cm_msg_events F24 O03", "it_ep_accept B09", "A.it_cm_msg_events A03"],
        |f| {
            let limit = f.a.ia_query()?.accept_private_data_len;
            let (active, passive, listener) = sides(f)?;
            f.dial(&active, &listener, THREE_WAY, b"first")?;
            let request = listener.request()?;
            carries(request.private_data, b"first", MAX_PRIV_DATA)?;
            let second = pattern(3, limit);
            f.b.ep_accept(passive.ep, request.cn_est_id, &second)?;
            let event = active.expect(EventType::CM_MSG_CONN_ACCEPT_ARRIVAL)?;
            carries(private_data(&event), &second, limit)?;
            let Event::ConnAcceptArrival { cn_est_id, .. } = event else {
                return Err(Failure::new("not the arrival of an acceptance"));
            };
            f.a.ep_accept(active.ep, cn_est_id, b"third")?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            let event = passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            carries(private_data(&event), b"third", MAX_PRIV_DATA)
        },
    ),
    // One byte above the maximum of each call is refused, and the endpoint or the request stays as
    // it was.
    test(
        "connect::too_much_private_data",
        &[
            "it_ep_connect IT_ERR_INVALID_PDATA_LENGTH",
            "it_ep_accept V05 IT_ERR_INVALID_PDATA_LENGTH",
            "it_reject IT_ERR_INVALID_PDATA_LENGTH",
            "it_ep_disconnect IT_ERR_INVALID_PDATA_LENGTH",
            "it_status_t F55",
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
            // The request is still valid after both refused calls.
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
    // A request for a port of rdma_cm begins with a header of the stack's, so the consumer has that
    // much less, and finds its own bytes in the event.
    test("connect::private_data_at_a_port_of_rdma_cm", &[], |f| {
        Need::InfiniBand.of(&f.a)?;
        let service = ConnQual::rdma_tcp(7299);
        let (active, mut listener) = (f.end(&f.a, &attributes())?, f.listen(&f.b)?);
        let (spigot, flags) = (spigot(&f.b)?.spigot_id, ListenFlags::CONN_QUAL_INPUT);
        f.b.listen_create(spigot, listener.evd, flags, Some(&service))?;
        listener.conn_qual = service;
        let data = pattern(4, MAX_RDMA_CONNECT_DATA + 1);
        let route = path(&f.a, &listener.address)?;
        let dial = f.a.ep_connect(active.ep, &route, None, &service, TWO_WAY, &data);
        refused(dial, Error::InvalidPdataLength)?;
        f.dial(&active, &listener, TWO_WAY, &data[..MAX_RDMA_CONNECT_DATA])?;
        let request = listener.request()?;
        check_eq!(request.conn_qual, service);
        carries(request.private_data, &data[..MAX_RDMA_CONNECT_DATA], MAX_RDMA_CONNECT_DATA)?;
        f.b.reject(request.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_PEER_REJECT).map(drop)
    }),
];

//! Connections over iWARP (chapter 5, pages it_ep_connect, it_ep_accept, it_reject,
//! it_ep_disconnect, it_cm_msg_events, it_conn_qual_t).

use alloc::vec;

use privileged_api::*;

use super::{open, page};
use crate::fixture::{SIGNALLED, path};
use crate::{Failure, Test, check, check_eq, refused, test};

const TWO_WAY: CnEstFlags = CnEstFlags::TWO_WAY;

/// The private data of an event of a connection.
#[track_caller]
fn data(event: Event) -> Result<Option<PrivateData>, Failure> {
    match event {
        Event::ConnEstablished { private_data, .. } | Event::ConnPeerReject { private_data, .. } => {
            Ok(private_data)
        }
        other => Err(Failure::new(alloc::format!("no private data in {other:?}"))),
    }
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // Private data of each length arrives as it was sent, zeros too; one byte more is refused.
    test("iwarp_ia::private_data", &[], |f| {
        let f = f.over_iwarp()?;
        let listener = f.listen(&f.b)?;
        for length in [0, 1, 255, 256] {
            let (active, passive) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?);
            let (asked, answered) = (vec![0; length], vec![length as u8; length]);
            f.dial(&active, &listener, TWO_WAY, &asked)?;
            let request = listener.request()?;
            check_eq!(request.private_data.as_deref().unwrap_or(&[]), &asked[..]);
            check_eq!(request.private_data.is_some(), length > 0);
            refused(f.b.ep_accept(passive.ep, request.cn_est_id, &[7; 257]), Error::InvalidPdataLength)?;
            f.b.ep_accept(passive.ep, request.cn_est_id, &answered)?;
            let got = data(active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?)?;
            check_eq!(got.as_deref().unwrap_or(&[]), &answered[..]);
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            for end in [&active, &passive] {
                end.ia.ep_free(end.ep)?;
            }
        }
        let end = f.end(&f.a, &open())?;
        let way = path(&f.a, &listener.address)?;
        let dialled = f.a.ep_connect(end.ep, &way, None, &listener.conn_qual, TWO_WAY, &[0; 257]);
        refused(dialled, Error::InvalidPdataLength)?;
        check_eq!(end.state()?, EpStateRc::Unconnected);
        f.dial(&end, &listener, TWO_WAY, &[])?;
        f.b.reject(listener.request()?.cn_est_id, &[9; 256])?;
        check_eq!(data(end.expect(EventType::CM_MSG_CONN_PEER_REJECT)?)?.as_deref(), Some(&[9; 256][..]));
        check_eq!(end.state()?, EpStateRc::Nonoperational);
        Ok(())
    }),
    // Both ends learn of the other's read depths; an accept with an IRD below the peer's ORD is
    // refused, and the request can still be answered.
    test("iwarp_ia::read_depths", &[], |f| {
        let f = f.over_iwarp()?;
        let deep = |ird, ord| {
            let mut attr = open();
            (attr.rc.rdma_read_ird, attr.rc.rdma_read_ord) = (ird, ord);
            attr
        };
        let listener = f.listen(&f.b)?;
        let active = f.end(&f.a, &deep(3, 5))?;
        let (shallow, passive) = (f.end(&f.b, &deep(4, 1))?, f.end(&f.b, &deep(6, 2))?);
        f.dial(&active, &listener, TWO_WAY, &[])?;
        let request = listener.request()?;
        check_eq!((request.rdma_read_ird, request.rdma_read_ord), (3, 5));
        refused(f.b.ep_accept(shallow.ep, request.cn_est_id, &[]), Error::InvalidEpAttr)?;
        check_eq!(shallow.state()?, EpStateRc::Unconnected);
        f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
        let Event::ConnEstablished { rdma_read_ird, rdma_read_ord, .. } =
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?
        else {
            return Err(Failure::new("not established"));
        };
        check_eq!((rdma_read_ird, rdma_read_ord), (6, 2));
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        // An ORD can be lowered, and raised again, while connected.
        for ord in [1, 0, 5] {
            f.a.ep_modify(active.ep, EpParamMask::MAX_ORD, &deep(0, ord))?;
        }
        let (own, peer) = (page(&f, &active)?, page(&f, &passive)?);
        peer.fill(5);
        f.a.post_rdma_read(active.ep, &[own.whole()], 1, SIGNALLED, peer.remote(0), peer.context()?)?;
        active.done(1, DtoStatus::Success)?;
        check_eq!(own.all(), peer.all());
        Ok(())
    }),
    // A qualifier with a local port connects from that port, which nobody else can use meanwhile.
    test(
        "iwarp_ia::a_local_port",
        &["it_conn_qual_t F09", "it_ep_connect IT_ERR_INVALID_IANA_LR_PORT"],
        |f| {
            let f = f.over_iwarp()?;
            let listener = f.listen(&f.b)?;
            let ConnQual::IanaPort(remote) = listener.conn_qual else {
                return Err(Failure::new("no port"));
            };
            let way = path(&f.a, &listener.address)?;
            let from = |local: u16| ConnQual::IanaLrPort { local: local.to_be(), remote };
            let (active, passive, other) =
                (f.end(&f.a, &open())?, f.end(&f.b, &open())?, f.end(&f.a, &open())?);
            refused(f.a.ep_connect(active.ep, &way, None, &from(0), TWO_WAY, &[]), Error::InvalidConnQual)?;
            f.a.ep_connect(active.ep, &way, None, &from(40_000), TWO_WAY, &[])?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            let again = f.a.ep_connect(other.ep, &way, None, &from(40_000), TWO_WAY, &[]);
            refused(again, Error::InvalidIanaLrPort)?;
            check_eq!(other.state()?, EpStateRc::Unconnected);
            f.a.ep_connect(other.ep, &way, None, &from(40_001), TWO_WAY, &[])?;
            f.b.reject(listener.request()?.cn_est_id, &[])?;
            other.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            let listening = f.b.listen_create(
                1,
                crate::fixture::sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 4, 1)?,
                ListenFlags::CONN_QUAL_INPUT,
                Some(&from(40_002)),
            );
            refused(listening, Error::InvalidConnQual)?;
            Ok(())
        },
    ),
    // The peer has no listen point at the port: it refuses the stream, which is a bad path.
    test("iwarp_ia::nobody_listens", &["it_cm_msg_events F47"], |f| {
        let f = f.over_iwarp()?;
        let (end, listener) = (f.end(&f.a, &open())?, f.listen(&f.b)?);
        let (way, gone) = (path(&f.a, &listener.address)?, listener.conn_qual);
        listener.free()?;
        f.a.ep_connect(end.ep, &way, None, &gone, TWO_WAY, &[])?;
        let event = end.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
        let Event::ConnNonpeerReject { reject_reason_code, .. } = event else {
            return Err(Failure::new("not rejected"));
        };
        check_eq!(reject_reason_code, RejectReason::BadPath);
        check_eq!(end.state()?, EpStateRc::Nonoperational);
        Ok(())
    }),
    // The peer's consumer does not answer before the time of the path is over.
    test("iwarp_ia::nobody_answers", &["it_cm_msg_events F46"], |f| {
        let f = f.over_iwarp()?;
        let (end, listener) = (f.end(&f.a, &open())?, f.listen(&f.b)?);
        let mut way = path(&f.a, &listener.address)?;
        way.timeout = 300_000;
        f.a.ep_connect(end.ep, &way, None, &listener.conn_qual, TWO_WAY, &[])?;
        listener.request()?;
        let event = end.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
        let Event::ConnNonpeerReject { reject_reason_code, .. } = event else {
            return Err(Failure::new("not rejected"));
        };
        check_eq!(reject_reason_code, RejectReason::Timeout);
        Ok(())
    }),
    // No Receive is needed before the accept, and any first request of the initiator establishes.
    test("iwarp_ia::any_first_message_establishes", &["5.2.2 L03"], |f| {
        let f = f.over_iwarp()?;
        let (active, passive, listener) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?, f.listen(&f.b)?);
        f.dial(&active, &listener, TWO_WAY, &[])?;
        f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        let (own, peer) = (page(&f, &active)?, page(&f, &passive)?);
        f.a.post_rdma_write(active.ep, &[own.whole()], 1, SIGNALLED, peer.remote(0), peer.context()?)?;
        active.done(1, DtoStatus::Success)?;
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        check_eq!(passive.state()?, EpStateRc::Connected);
        Ok(())
    }),
    // Each end can disconnect: both get one event, and Receives are flushed. An endpoint that was
    // reset connects again.
    test("iwarp_ia::disconnects", &[], |f| {
        let f = f.over_iwarp()?;
        let (active, passive) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?);
        for by_active in [true, false] {
            f.connect(&active, &passive)?;
            for end in [&active, &passive] {
                end.ia.post_recv(end.ep, &[], 3, DtoFlags::COMPLETION)?;
            }
            let first = if by_active { &active } else { &passive };
            first.ia.ep_disconnect(first.ep, &[])?;
            for end in [&active, &passive] {
                end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                check_eq!(end.state()?, EpStateRc::Nonoperational);
                end.recv_done(3, DtoStatus::Flushed)?;
                end.ia.ep_reset(end.ep)?;
            }
        }
        Ok(())
    }),
    // A request is handed to another listen point of the IA.
    test("iwarp_ia::handed_on", &[], |f| {
        let f = f.over_iwarp()?;
        let (active, passive) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?);
        let (first, second) = (f.listen(&f.b)?, f.listen(&f.b)?);
        f.dial(&active, &first, TWO_WAY, &[1, 2])?;
        f.b.handoff(&second.conn_qual, 1, first.request()?.cn_est_id)?;
        let request = second.request()?;
        check_eq!(request.private_data.as_deref(), Some(&[1, 2][..]));
        check!(matches!(request.source_addr, NetAddr::Ipv4(_) | NetAddr::Ipv6(_)));
        f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        Ok(())
    }),
];

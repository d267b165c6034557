//! Connections of endpoints over VIA: establishing, accepting and ending them (pages it_ep_connect,
//! it_ep_accept, it_ep_disconnect).

use privileged_api::*;

use super::{open, open_pair, page};
use crate::fixture::{SIGNALLED, path};
use crate::{Failure, Test, check, check_eq, refused, test};

const TWO_WAY: CnEstFlags = CnEstFlags::TWO_WAY;

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // A connection forms only between endpoints with the same longest message: the accept of
    // another one is refused, and the consumer can still reject the request or accept it with an
    // endpoint that fits.
    test("via_ia_connect::equal_payload_sizes", &["A.it_ep_attributes_t B05"], |f| {
        let f = f.over_via()?;
        let sized = |ia, size| f.end(ia, &EpAttributes { max_dto_payload_size: size, ..open() });
        let listener = f.listen(&f.b)?;
        let (active, small, large) = (sized(&f.a, 4096)?, sized(&f.b, 4095)?, sized(&f.b, 4097)?);
        f.dial(&active, &listener, TWO_WAY, &[])?;
        let request = listener.request()?;
        check_eq!(request.max_message_size, 4096);
        for other in [&small, &large] {
            refused(f.b.ep_accept(other.ep, request.cn_est_id, &[]), Error::InvalidEpAttr)?;
            check_eq!(other.state()?, EpStateRc::Unconnected);
        }
        f.b.reject(request.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
        check_eq!(active.state()?, EpStateRc::Nonoperational);
        // An endpoint that is made to fit is accepted.
        f.a.ep_reset(active.ep)?;
        f.dial(&active, &listener, TWO_WAY, &[])?;
        let id = listener.request()?.cn_est_id;
        refused(f.b.ep_accept(small.ep, id, &[]), Error::InvalidEpAttr)?;
        let fits = EpAttributes { max_dto_payload_size: 4096, ..open() };
        f.b.ep_modify(small.ep, EpParamMask::MAX_PAYLOAD, &fits)?;
        f.b.ep_accept(small.ep, id, &[])?;
        active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        small.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        // The size that it was given is in force: 4096 bytes pass.
        let (own, peer) = (page(&f, &active)?, page(&f, &small)?);
        f.b.post_recv(small.ep, &[peer.whole()], 1, DtoFlags::COMPLETION)?;
        f.a.post_send(active.ep, &[own.whole()], 2, SIGNALLED)?;
        active.done(2, DtoStatus::Success)?;
        small.recv_done(1, DtoStatus::Success)
    }),
    // Connection attributes have no effect, whatever is in them. The flag to suppress read depths
    // is ignored, as there are none; the handshake of three ways is refused.
    test("via_ia_connect::attributes_have_no_effect", &["it_ep_connect F04"], |f| {
        let f = f.over_via()?;
        let odd = ConnAttributes {
            remote_cm_timeout: 255,
            local_cm_timeout: 255,
            retry_count: 255,
            rnr_retry_count: 255,
            max_cm_retries: 255,
            local_ack_timeout: 255,
        };
        let zero = ConnAttributes {
            remote_cm_timeout: 0,
            local_cm_timeout: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            max_cm_retries: 0,
            local_ack_timeout: 0,
        };
        for attributes in [None, Some(&odd), Some(&zero)] {
            let (active, passive) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?);
            f.connect_with(&active, &passive, attributes)?;
            check_eq!((active.state()?, passive.state()?), (EpStateRc::Connected, EpStateRc::Connected));
            for end in [&active, &passive] {
                end.ia.ep_free(end.ep)?;
            }
        }
        let (active, passive, listener) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?, f.listen(&f.b)?);
        let route = path(&f.a, &listener.address)?;
        let three_way = CnEstFlags::THREE_WAY | CnEstFlags::SUPPRESS_IRD_ORD;
        for flags in [CnEstFlags::THREE_WAY, three_way, CnEstFlags::empty(), TWO_WAY | CnEstFlags::THREE_WAY]
        {
            let dialled = f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, flags, &[]);
            refused(dialled, Error::InvalidCnEstFlags)?;
            check_eq!(active.state()?, EpStateRc::Unconnected);
        }
        let flags = TWO_WAY | CnEstFlags::SUPPRESS_IRD_ORD;
        f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, flags, &[])?;
        f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
        active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        let suppressing = f.listen_with(&f.b, ListenFlags::SUPPRESS_IRD_ORD, 1)?;
        suppressing.free()
    }),
    // There is no private data: calls that bring some are refused and change nothing, and events
    // have none.
    test("via_ia_connect::no_private_data", &[], |f| {
        let f = f.over_via()?;
        let (active, passive, listener) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?, f.listen(&f.b)?);
        let route = path(&f.a, &listener.address)?;
        let dialled = f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, TWO_WAY, &[1]);
        refused(dialled, Error::PdataNotSupported)?;
        check_eq!(active.state()?, EpStateRc::Unconnected);
        f.dial(&active, &listener, TWO_WAY, &[])?;
        let request = listener.request()?;
        check!(request.private_data.is_none());
        check_eq!((request.rdma_read_ird, request.rdma_read_ord), (0, 0));
        refused(f.b.ep_accept(passive.ep, request.cn_est_id, &[1]), Error::PdataNotSupported)?;
        refused(f.b.reject(request.cn_est_id, &[1]), Error::PdataNotSupported)?;
        f.b.ep_accept(passive.ep, request.cn_est_id, &[])?;
        for end in [&active, &passive] {
            let event = end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            let Event::ConnEstablished { private_data, rdma_read_ird, rdma_read_ord, .. } = event else {
                return Err(Failure::new("not established"));
            };
            check!(private_data.is_none());
            check_eq!((rdma_read_ird, rdma_read_ord), (0, 0));
        }
        refused(f.a.ep_disconnect(active.ep, &[1]), Error::PdataNotSupported)?;
        check_eq!(active.state()?, EpStateRc::Connected);
        f.a.ep_disconnect(active.ep, &[])?;
        active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        let event = passive.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        check!(matches!(event, Event::ConnDisconnect { private_data: None, .. }), "{event:?}");
        Ok(())
    }),
    // After a disconnect both ends flush what is posted before and after; after a reset both
    // connect again, and what was not dequeued is lost. Each connection has another number.
    test("via_ia_connect::again_after_a_reset", &[], |f| {
        let f = f.over_via()?;
        let (pair, own, peer) = open_pair(&f)?;
        let mut numbers = alloc::vec![f.a.ep_qpn(pair.a.ep)?];
        for round in 0..4 {
            for cookie in 1..=3 {
                f.b.post_recv(pair.b.ep, &[peer.segment(0, 64)], cookie, DtoFlags::COMPLETION)?;
            }
            f.a.post_send(pair.a.ep, &[own.segment(0, 64)], 9, SIGNALLED)?;
            pair.a.done(9, DtoStatus::Success)?;
            pair.b.recv_done(1, DtoStatus::Success)?;
            f.a.ep_disconnect(pair.a.ep, &[])?;
            pair.a.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            pair.b.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            check_eq!(pair.b.state()?, EpStateRc::Nonoperational);
            // In every second round the flushed Receives are left to the reset.
            if round % 2 == 0 {
                pair.b.recv_done(2, DtoStatus::Flushed)?;
                pair.b.recv_done(3, DtoStatus::Flushed)?;
                f.b.post_recv(pair.b.ep, &[peer.segment(0, 64)], 4, DtoFlags::COMPLETION)?;
                f.b.post_send(pair.b.ep, &[peer.segment(0, 64)], 5, DtoFlags::empty())?;
                pair.b.recv_done(4, DtoStatus::Flushed)?;
                pair.b.done(5, DtoStatus::Flushed)?;
            }
            f.a.ep_reset(pair.a.ep)?;
            f.b.ep_reset(pair.b.ep)?;
            pair.b.idle()?;
            check_eq!(f.b.ep_outstanding(pair.b.ep)?, (0, 0));
            f.connect(&pair.a, &pair.b)?;
            numbers.push(f.a.ep_qpn(pair.a.ep)?);
        }
        numbers.sort_unstable();
        numbers.dedup();
        check_eq!(numbers.len(), 5);
        Ok(())
    }),
    // Receives that were posted before the connection take its messages. Requests wait until the
    // endpoint is connected: before, they are refused.
    test("via_ia_connect::posts_before_the_connection", &[], |f| {
        let f = f.over_via()?;
        let (active, passive) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?);
        let (own, peer) = (page(&f, &active)?, page(&f, &passive)?);
        f.b.post_recv(passive.ep, &[peer.segment(0, 8)], 1, DtoFlags::COMPLETION)?;
        refused(f.a.post_send(active.ep, &[own.segment(0, 8)], 2, SIGNALLED), Error::InvalidEpState)?;
        f.connect(&active, &passive)?;
        f.a.post_send(active.ep, &[own.segment(0, 8)], 3, SIGNALLED)?;
        active.done(3, DtoStatus::Success)?;
        passive.recv_done(1, DtoStatus::Success)?;
        // An attempt that is given up flushes them.
        let (active, listener) = (f.end(&f.a, &open())?, f.listen(&f.b)?);
        f.a.post_recv(active.ep, &[own.segment(0, 8)], 4, DtoFlags::COMPLETION)?;
        f.dial(&active, &listener, TWO_WAY, &[])?;
        f.a.ep_disconnect(active.ep, &[])?;
        active.recv_done(4, DtoStatus::Flushed)?;
        active.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
        Ok(())
    }),
    // The size and the rights of peers can be changed: the rights in any state.
    test("via_ia_connect::changed_attributes", &[], |f| {
        let f = f.over_via()?;
        let (pair, own, peer) = open_pair(&f)?;
        check!(f.a.ia_query()?.ep_rdma_enables_modifiable);
        let write = |cookie| {
            f.a.post_rdma_write(
                pair.a.ep,
                &[own.segment(0, 8)],
                cookie,
                SIGNALLED,
                peer.remote(0),
                peer.context()?,
            )?;
            Ok::<_, Failure>(())
        };
        write(1)?;
        pair.a.done(1, DtoStatus::Success)?;
        let mut closed = open();
        closed.rc.rdma_write_enable = false;
        f.b.ep_modify(pair.b.ep, EpParamMask::RDMA_WR_ENABLE, &closed)?;
        let larger = EpAttributes { max_dto_payload_size: 1 << 21, ..open() };
        refused(f.b.ep_modify(pair.b.ep, EpParamMask::MAX_PAYLOAD, &larger), Error::InvalidEpState)?;
        write(2)?;
        pair.a.done(2, DtoStatus::RemoteAccess)?;
        pair.a.broken()?;
        pair.b.broken()?;
        f.a.ep_reset(pair.a.ep)?;
        f.b.ep_reset(pair.b.ep)?;
        f.b.ep_modify(pair.b.ep, EpParamMask::RDMA_WR_ENABLE, &open())?;
        for end in [&pair.a, &pair.b] {
            end.ia.ep_modify(end.ep, EpParamMask::MAX_PAYLOAD, &larger)?;
        }
        f.connect(&pair.a, &pair.b)?;
        write(3)?;
        pair.a.done(3, DtoStatus::Success)?;
        let tiny = EpAttributes { max_dto_payload_size: 0, ..open() };
        f.a.ep_disconnect(pair.a.ep, &[])?;
        refused(f.a.ep_modify(pair.a.ep, EpParamMask::MAX_PAYLOAD, &tiny), Error::PayloadSize)
    }),
];

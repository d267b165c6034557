//! Connections by it_ep_connect and it_ep_accept, as the peer sees them on the stream (appendix B,
//! B.5; page it_cm_msg_events).

use alloc::vec::Vec;
use core::result::Result;

use iwarp::mpa::frame::{Kind, Repr};
use iwarp::rdmap::{Opcode, read};
use privileged_api::*;
use rdma::{Nic, Transport};

use super::open;
use super::played::{
    Played, Waiting, enhanced, failure, first_send, fpdu, header, nothing, of_rdmac, plain, read_request,
    with_depths,
};
use crate::fixture::{End, Fixture, MOMENT, SIGNALLED, path};
use crate::thread::eventually;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// An endpoint with these read depths.
fn deep(ird: u32, ord: u32) -> EpAttributes {
    let mut attr = open();
    (attr.rc.rdma_read_ird, attr.rc.rdma_read_ord) = (ird, ord);
    attr
}

/// IRD, ORD and the consumer's private data of a frame.
#[track_caller]
fn said(frame: &Repr<'_>) -> Result<(u16, u16, Vec<u8>), Failure> {
    let (depths, private) = frame.split().map_err(failure)?;
    let depths = crate::check::some(depths, "IRD and ORD")?;
    let depth = |depth: iwarp::mpa::frame::Depth| crate::check::some(depth.get(), "a depth");
    Ok((depth(depths.ird)?, depth(depths.ord)?, private.to_vec()))
}

/// A first message of the initiator.
#[derive(Clone, Copy, Debug)]
enum First {
    Write,
    Read,
    Send,
}

impl First {
    #[track_caller]
    fn bytes(self) -> Result<Vec<u8>, Failure> {
        match self {
            First::Write => nothing(),
            First::Send => fpdu(header(Opcode::Send, first_send(0)), &[]),
            First::Read => {
                let mut request = [0; read::Repr::LEN];
                read::Repr::default().emit(&mut request).map_err(failure)?;
                fpdu(header(Opcode::ReadRequest, read_request(1)), &request)
            }
        }
    }
}

/// A played initiator is accepted, and says nothing. Returns whether the responder's end was silent
/// until its first message came: that end gives an initiator that never speaks some time, which may
/// be over on a busy machine.
#[track_caller]
fn established_by(f: &Fixture, first: First) -> Result<bool, Failure> {
    let (listener, end) = (f.listen(&f.b)?, f.end(&f.b, &open())?);
    if let First::Send = first {
        f.b.post_recv(end.ep, &[], 6, DtoFlags::COMPLETION)?;
    }
    let peer = crate::check::some(Played::dials(f, &listener.conn_qual)?, "a listener")?;
    peer.say_frame(&enhanced(Kind::Request, &with_depths((4, 4), &[])))?;
    f.b.ep_accept(end.ep, listener.request()?.cn_est_id, &[])?;
    peer.hear_frame(Kind::Reply)?;
    let silent = f.b.evd_wait(end.conn, MOMENT).is_err_and(|e| e == Error::TimeoutExpired);
    let pending = end.state()? == EpStateRc::PassiveConnectionPending;
    peer.say(&first.bytes()?)?;
    if silent {
        end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
    }
    check_eq!(end.state()?, EpStateRc::Connected);
    if let First::Send = first {
        end.recv_done(6, DtoStatus::Success)?;
    }
    Ok(silent && pending)
}

/// The attempt of an endpoint has ended for this reason.
#[track_caller]
fn rejected(end: &End, reason: RejectReason) -> Outcome {
    let event = end.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
    let Event::ConnNonpeerReject { reject_reason_code, ep, .. } = event else {
        return Err(Failure::new("not rejected"));
    };
    check_eq!((reject_reason_code, ep), (reason, end.ep));
    check_eq!(end.state()?, EpStateRc::Nonoperational);
    Ok(())
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // The responder: a listen point takes streams at its port, and a Request becomes an event with
    // what it says. The Reply has what the consumer answers.
    test("iwarp_ia::a_request_of_a_peer", &["B.5 A01 B02 B08 B09 B15"], |f| {
        let f = f.over_iwarp()?;
        let listener = f.listen(&f.b)?;
        for (private, answer) in [(&b"who is there"[..], &b"somebody"[..]), (b"", b"")] {
            for accepts in [true, false] {
                let end = f.end(&f.b, &deep(4, 9))?;
                let peer = crate::check::some(Played::dials(&f, &listener.conn_qual)?, "a listener")?;
                peer.say_frame(&enhanced(Kind::Request, &with_depths((5, 3), private)))?;
                let request = listener.request()?;
                check_eq!((request.rdma_read_ird, request.rdma_read_ord), (5, 3));
                check_eq!(request.private_data.as_deref().unwrap_or(&[]), private);
                peer.hears_nothing()?;
                if accepts {
                    f.b.ep_accept(end.ep, request.cn_est_id, answer)?;
                } else {
                    f.b.reject(request.cn_est_id, answer)?;
                    check_eq!(end.state()?, EpStateRc::Unconnected);
                }
                let bytes = peer.hear_frame(Kind::Reply)?;
                let (reply, _) = Repr::parse(Kind::Reply, &bytes).map_err(failure)?;
                check_eq!((reply.reject, reply.revision, reply.crc), (!accepts, 2, true));
                let (ird, ord, private) = said(&reply)?;
                check_eq!(private, answer);
                if accepts {
                    check_eq!((ird, ord), (4, 5));
                    peer.say(&nothing()?)?;
                    end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                } else {
                    peer.hears_the_end()?;
                }
            }
        }
        let qual = listener.conn_qual;
        listener.free()?;
        check!(Played::dials(&f, &qual)?.is_none(), "a stream without a listen point");
        Ok(())
    }),
    // The responder is connected when the first message of the initiator has come, and not before:
    // a message of any kind, with and without a Receive.
    test("iwarp_ia::the_first_message_establishes", &["B.5 A02 B13 B14 S01"], |f| {
        let f = f.over_iwarp()?;
        check!(f.b.ia_query()?.extended_iwarp_qp_states);
        for first in [First::Write, First::Read, First::Send] {
            let mut silent = false;
            for _ in 0..5 {
                silent = silent || established_by(&f, first)?;
            }
            check!(silent, "established before the first {first:?}");
        }
        Ok(())
    }),
    // The initiator: its stream opens with the Request, which has IRD, ORD and the consumer's
    // private data, and the Reply becomes an event with what it says. The consumer sees no more of
    // the frames than private data.
    test("iwarp_ia::a_request_to_a_peer", &["B.5 B01 B03-B07 S01", "B.1 B02"], |f| {
        let f = f.over_iwarp()?;
        let waiting = Waiting::new(&f)?;
        for (asks, answers) in [(&b"may I"[..], &b"you may"[..]), (b"", b"")] {
            for accepts in [true, false] {
                let end = f.end(&f.b, &deep(1, 1))?;
                f.b.ep_modify(end.ep, EpParamMask::MAX_IRD | EpParamMask::MAX_ORD, &deep(3, 7))?;
                let peer = waiting.dialled(&f, &end, asks)?;
                let bytes = peer.hear_frame(Kind::Request)?;
                let (request, _) = Repr::parse(Kind::Request, &bytes).map_err(failure)?;
                check_eq!(said(&request)?, (3, 7, asks.to_vec()));
                check!(!request.markers && request.crc && !request.reject);
                peer.hears_nothing()?;
                check_eq!(end.state()?, EpStateRc::Active1ConnectionPending);
                check!(f.b.evd_dequeue(end.conn) == Err(Error::QueueEmpty));
                let data = with_depths((2, 1), answers);
                peer.say_frame(&Repr { reject: !accepts, ..enhanced(Kind::Reply, &data) })?;
                let private_data = if accepts {
                    let event = end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                    let Event::ConnEstablished { rdma_read_ird, rdma_read_ord, private_data, .. } = event
                    else {
                        return Err(Failure::new("not established"));
                    };
                    check_eq!((rdma_read_ird, rdma_read_ord), (2, 1));
                    check_eq!(end.state()?, EpStateRc::Connected);
                    f.b.post_send(end.ep, &[], 5, SIGNALLED)?;
                    end.done(5, DtoStatus::Success)?;
                    let (sent, payload) = peer.hear_of(Opcode::Send)?;
                    check_eq!((sent.place, payload.len()), (first_send(0), 0));
                    private_data
                } else {
                    let event = end.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
                    let Event::ConnPeerReject { private_data, .. } = event else {
                        return Err(Failure::new("not rejected"));
                    };
                    check_eq!(end.state()?, EpStateRc::Nonoperational);
                    private_data
                };
                check_eq!(private_data.as_deref().unwrap_or(&[]), answers);
            }
        }
        Ok(())
    }),
    // A peer that speaks another MPA, as the RDMA Consortium's, or none, is not connected: the
    // active side learns that the parameters are bad, and no consumer of the passive side is asked.
    test(
        "iwarp_ia::peers_of_another_mpa",
        &["B.3 A01 V01", "it_cm_msg_events F50", "it_ep_connect A01", "it_ep_accept V07"],
        |f| {
            check_eq!(EventType::CM_MSG_CONN_NONPEER_REJECT.as_raw(), 0x2005);
            let f = f.over_iwarp()?;
            let waiting = Waiting::new(&f)?;
            let depths = with_depths((4, 4), &[]);
            let answers = [
                of_rdmac(Kind::Reply),
                Repr { markers: true, ..enhanced(Kind::Reply, &depths) },
                plain(Kind::Reply),
                enhanced(Kind::Reply, &depths[..3]),
                enhanced(Kind::Request, &depths),
            ];
            for answer in answers {
                let end = f.end(&f.b, &open())?;
                let peer = waiting.dialled(&f, &end, &[])?;
                peer.hear_frame(Kind::Request)?;
                peer.say_frame(&answer)?;
                rejected(&end, RejectReason::BadConnParms)?;
                peer.hears_the_end()?;
            }
            let end = f.end(&f.b, &open())?;
            let peer = waiting.dialled(&f, &end, &[])?;
            peer.say(b"220 mail.example ESMTP\r\n")?;
            rejected(&end, RejectReason::BadConnParms)?;
            // An RNIC that has no set-up at all sends FPDUs at once.
            let end = f.end(&f.b, &open())?;
            let peer = waiting.dialled(&f, &end, &[])?;
            peer.say(&nothing()?)?;
            rejected(&end, RejectReason::BadConnParms)?;
            let listener = f.listen(&f.b)?;
            for asked in [of_rdmac(Kind::Request), Repr { markers: true, ..enhanced(Kind::Request, &depths) }]
            {
                let peer = crate::check::some(Played::dials(&f, &listener.conn_qual)?, "a listener")?;
                peer.say_frame(&asked)?;
                peer.hears_the_end()?;
            }
            refused(f.b.evd_dequeue(listener.evd), Error::QueueEmpty)
        },
    ),
    // The other reasons: the stream ends before the Reply, and the responder's ORD is more than
    // what this end serves.
    test("iwarp_ia::other_ends_of_an_attempt", &["it_cm_msg_events F45 O02"], |f| {
        let f = f.over_iwarp()?;
        let waiting = Waiting::new(&f)?;
        for resets in [true, false] {
            let end = f.end(&f.b, &open())?;
            let peer = waiting.dialled(&f, &end, &[])?;
            peer.hear_frame(Kind::Request)?;
            match resets {
                true => peer.reset(),
                false => peer.finish()?,
            }
            rejected(&end, RejectReason::Other)?;
        }
        let end = f.end(&f.b, &deep(3, 3))?;
        let peer = waiting.dialled(&f, &end, &[])?;
        peer.hear_frame(Kind::Request)?;
        peer.say_frame(&enhanced(Kind::Reply, &with_depths((4, 4), &[])))?;
        rejected(&end, RejectReason::BadOrd)?;
        check_eq!(peer.terminated()?, iwarp::rdmap::terminate::Code::MPA_IRD);
        Ok(())
    }),
    // Without room for another stream the call is refused, and changes nothing: no event tells of
    // it.
    test("iwarp_ia::no_room_for_a_stream", &[], |f| {
        let f = f.over_iwarp()?;
        let (listener, end) = (f.listen(&f.a)?, f.end(&f.b, &open())?);
        let nic = Nic::open_over(&f.setup.b.agent, Transport::Iwarp).map_err(failure)?;
        let mut held = Vec::new();
        // Listeners have places among the streams.
        while let Ok(listener) = nic.listen_for_streams(5_000 + held.len() as u16) {
            held.push(listener);
            check!(held.len() <= 1000, "the agent has no bound");
        }
        let way = path(&f.b, &listener.address)?;
        let dial = || f.b.ep_connect(end.ep, &way, None, &listener.conn_qual, CnEstFlags::TWO_WAY, &[]);
        refused(dial(), Error::Resources)?;
        check_eq!(end.state()?, EpStateRc::Unconnected);
        check!(f.b.evd_dequeue(end.conn) == Err(Error::QueueEmpty));
        drop(held);
        // Their places are free once the dispatcher thread has looked.
        check!(eventually(f.platform(), || dial() == Ok(())));
        f.a.reject(listener.request()?.cn_est_id, &[])?;
        end.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
        Ok(())
    }),
    // iWARP has no attributes of a connection: those of InfiniBand are not looked at.
    test("iwarp_ia::attributes_of_connections", &["it_ep_connect F11"], |f| {
        let f = f.over_iwarp()?;
        let (active, passive) = (f.end(&f.a, &open())?, f.end(&f.b, &open())?);
        let invalid = ConnAttributes {
            remote_cm_timeout: 0xff,
            local_cm_timeout: 0xff,
            retry_count: 0xff,
            rnr_retry_count: 0xff,
            max_cm_retries: 0xff,
            local_ack_timeout: 0xff,
        };
        f.connect_with(&active, &passive, Some(&invalid))
    }),
    // Of a connection's stream there is no descriptor: none of the IA's is taken.
    test("iwarp_ia::the_stream_of_a_connection_is_no_socket", &["B.1 B04"], |f| {
        let f = f.over_iwarp()?;
        let pair = f.pair()?;
        let fresh = f.end(&f.a, &open())?;
        for sd in 0..8 {
            for end in [&pair.a, &pair.b] {
                refused(end.ia.socket_close(sd), Error::InvalidSd)?;
            }
            refused(f.a.socket_convert(sd, fresh.ep, ScFlags::empty(), b"x"), Error::InvalidSd)?;
        }
        let peer = super::sockets::sockets(&f)?;
        check_eq!((peer.a, pair.a.state()?), (0, EpStateRc::Connected));
        Ok(())
    }),
];

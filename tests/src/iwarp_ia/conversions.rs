//! Conversions of sockets, as the peer sees them on the stream (appendix B, B.6; page
//! it_socket_convert).

use core::result::Result;

use iwarp::mpa::frame::{Kind, Repr};
use iwarp::rdmap::Opcode;
use iwarp::rdmap::terminate::Code;
use privileged_api::*;
use rdma::Nic;

use super::open;
use super::played::{
    Played, enhanced, failure, first_send, fpdu, header, nothing, of_rdmac, plain, with_depths,
};
use super::sockets::{FRAMES, LINE, established, failed, half, sockets, streams};
use crate::fixture::{End, Fixture, MOMENT, SIGNALLED};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// A played peer, and the socket at the other end of its stream, which is `b`'s.
#[track_caller]
fn socket_of(f: &Fixture) -> Result<(Played, i32, [Nic; 2]), Failure> {
    let (stream, sd, openings) = half(f)?;
    Ok((Played::of(stream, openings[0].clone()), sd, openings))
}

/// Nothing has been reported, and the endpoint is in this state.
#[track_caller]
fn still(end: &End, state: EpStateRc) -> Outcome {
    check!(end.ia.evd_dequeue(end.conn) == Err(Error::QueueEmpty));
    check_eq!(end.state()?, state);
    Ok(())
}

/// A message of the peer arrives at the endpoint.
#[track_caller]
fn takes_a_message(end: &End, peer: &Played) -> Outcome {
    end.ia.post_recv(end.ep, &[], 40, DtoFlags::COMPLETION)?;
    peer.say(&fpdu(header(Opcode::Send, first_send(0)), &[])?)?;
    end.recv_done(40, DtoStatus::Success)
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // The Conversion Initiator, in the passive states: its message goes, then it waits for a
    // Request and answers it without private data. The first message of the peer makes it
    // connected, and the event says nothing of the peer.
    test(
        "iwarp_ia::the_conversion_initiator",
        &["B.6 A01 B01-B03 F01 S01", "B.1 B06", "it_ep_state_t V07"],
        |f| {
            let f = f.over_iwarp()?;
            let mut waited = false;
            for _ in 0..5 {
                let (peer, sd, _openings) = socket_of(&f)?;
                let end = f.end(&f.b, &open())?;
                f.b.socket_convert(sd, end.ep, FRAMES, LINE)?;
                check_eq!(
                    (EpStateRc::PassiveWaitRdmaTransReq as u32, EpStateRc::Active1ConnectionPending as u32),
                    (6, 1)
                );
                check_eq!(peer.hear(LINE.len())?, LINE);
                peer.hears_nothing()?;
                still(&end, EpStateRc::PassiveWaitRdmaTransReq)?;
                peer.say_frame(&plain(Kind::Request))?;
                let bytes = peer.hear_frame(Kind::Reply)?;
                let (reply, _) = Repr::parse(Kind::Reply, &bytes).map_err(failure)?;
                check_eq!((reply.reject, reply.revision, reply.data.len()), (false, 1, 0));
                // It gives a peer that does not speak some time, which a busy machine may exceed.
                let silent = f.b.evd_wait(end.conn, MOMENT).is_err_and(|e| e == Error::TimeoutExpired);
                if silent {
                    waited = waited || end.state()? == EpStateRc::PassiveConnectionPending;
                    peer.say(&nothing()?)?;
                    established(&end)?;
                }
                takes_a_message(&end, &peer)?;
            }
            check!(waited, "connected before the first message");
            Ok(())
        },
    ),
    // The Conversion Responder, in the active states: it has received the message, sends a Request
    // without private data, and is connected by the Reply.
    test("iwarp_ia::the_conversion_responder", &["B.6 A02 B01 B04 S01 V01", "it_ep_state_t V07"], |f| {
        check_eq!((ScFlags::default(), ScFlags::empty().bits(), ScFlags::NO_REQ_REP.bits()), (FRAMES, 0, 1));
        let f = f.over_iwarp()?;
        let (stream, peer, openings) = streams(&f)?;
        let peer_of = Played::of(stream, openings[0].clone());
        peer_of.say(LINE)?;
        let mut line = [0; LINE.len()];
        let mut have = 0;
        while have < line.len() {
            have += peer.receive(&mut line[have..]).wait().map_err(failure)?;
        }
        check_eq!(line, LINE);
        let (sd, end) = (f.b.socket_add(peer)?, f.end(&f.b, &open())?);
        f.b.socket_convert(sd, end.ep, FRAMES, &[])?;
        let bytes = peer_of.hear_frame(Kind::Request)?;
        let (request, _) = Repr::parse(Kind::Request, &bytes).map_err(failure)?;
        check_eq!((request.enhanced, request.revision, request.data.len()), (false, 1, 0));
        peer_of.hears_nothing()?;
        still(&end, EpStateRc::Active1ConnectionPending)?;
        peer_of.say_frame(&plain(Kind::Reply))?;
        established(&end)?;
        takes_a_message(&end, &peer_of)?;
        // With a Reply that rejects there is no connection.
        let (peer, sd, _openings) = socket_of(&f)?;
        let end = f.end(&f.b, &open())?;
        f.b.socket_convert(sd, end.ep, FRAMES, &[])?;
        peer.hear_frame(Kind::Request)?;
        peer.say_frame(&Repr { reject: true, ..plain(Kind::Reply) })?;
        check!(end.event()?.event_number() != EventType::CM_MSG_CONN_ESTABLISHED);
        check_eq!(end.state()?, EpStateRc::Nonoperational);
        Ok(())
    }),
    // Without Request and Reply no frame goes either way, as RNICs of the RDMA Consortium do it:
    // the consumers alone see to it that both ends begin at the same byte.
    test("iwarp_ia::no_frame_goes", &["B.6 O01", "B.3 B01"], |f| {
        let f = f.over_iwarp()?;
        let (peer, sd, _openings) = socket_of(&f)?;
        let end = f.end(&f.b, &open())?;
        f.b.socket_convert(sd, end.ep, ScFlags::NO_REQ_REP, LINE)?;
        check_eq!(peer.hear(LINE.len())?, LINE);
        peer.say(&nothing()?)?;
        established(&end)?;
        f.b.post_send(end.ep, &[], 5, SIGNALLED)?;
        // The first bytes behind the message are an FPDU.
        peer.hear_of(Opcode::Send)?;
        let (peer, sd, _openings) = socket_of(&f)?;
        let end = f.end(&f.b, &open())?;
        f.b.socket_convert(sd, end.ep, ScFlags::NO_REQ_REP, &[])?;
        // The peer has said nothing.
        established(&end)?;
        f.b.post_send(end.ep, &[], 5, SIGNALLED)?;
        peer.hear_of(Opcode::Send)?;
        takes_a_message(&end, &peer)
    }),
    // An RNIC of the RDMA Consortium at the other end, which this one does not interoperate with:
    // the conversion fails for bad parameters, whichever end this is.
    test("iwarp_ia::conversions_with_another_mpa", &["it_socket_convert A01 A02 V02"], |f| {
        check_eq!(EventType::CM_MSG_CONN_NONPEER_REJECT.as_raw(), 0x2005);
        let f = f.over_iwarp()?;
        for initiates in [true, false] {
            let kind = if initiates { Kind::Request } else { Kind::Reply };
            for case in 0..3 {
                let (peer, sd, _openings) = socket_of(&f)?;
                let end = f.end(&f.b, &open())?;
                f.b.post_recv(end.ep, &[], 70, DtoFlags::COMPLETION)?;
                f.b.socket_convert(sd, end.ep, FRAMES, if initiates { LINE } else { &[] })?;
                match case {
                    0 => peer.say_frame(&of_rdmac(kind))?,
                    1 => peer.say_frame(&Repr { markers: true, ..plain(kind) })?,
                    // It has no Request and Reply.
                    _ => peer.say(&nothing()?)?,
                }
                failed(&end, RejectReason::BadConnParms)?;
                peer.hears_the_end()?;
            }
        }
        // This end is the one without frames, and initiates: it hears a Request where messages are
        // to come. The connection breaks, and the peer hears something that is no Reply.
        for request in [plain(Kind::Request), enhanced(Kind::Request, &with_depths((1, 1), &[]))] {
            for pieces in [Repr::HEADER, 1] {
                let (peer, sd, _openings) = socket_of(&f)?;
                let end = f.end(&f.b, &open())?;
                f.b.post_recv(end.ep, &[], 70, DtoFlags::COMPLETION)?;
                f.b.socket_convert(sd, end.ep, ScFlags::NO_REQ_REP, LINE)?;
                check_eq!(peer.hear(LINE.len())?, LINE);
                peer.say_frame_in(&request, pieces)?;
                let event = end.expect(EventType::CM_MSG_CONN_BROKEN)?;
                check!(matches!(event, Event::ConnBroken { ep, .. } if ep == end.ep));
                check_eq!(end.state()?, EpStateRc::Nonoperational);
                end.recv_done(70, DtoStatus::Flushed)?;
                check_eq!(peer.terminated()?, Code::MPA_LENGTH);
                peer.hears_the_end()?;
            }
        }
        // With this NIC at both ends, each learns what the page says.
        let ends = sockets(&f)?;
        let (initiator, responder) = (f.end(&f.b, &open())?, f.end(&f.a, &open())?);
        f.b.socket_convert(ends.b, initiator.ep, ScFlags::NO_REQ_REP, LINE)?;
        f.a.post_recv(responder.ep, &[], 70, DtoFlags::COMPLETION)?;
        f.a.socket_convert(ends.a, responder.ep, FRAMES, &[])?;
        failed(&responder, RejectReason::BadConnParms)?;
        initiator.expect(EventType::CM_MSG_CONN_BROKEN)?;
        // A Reply with IRD and ORD is none to a Request without.
        let (peer, sd, _openings) = socket_of(&f)?;
        let end = f.end(&f.b, &open())?;
        f.b.post_recv(end.ep, &[], 70, DtoFlags::COMPLETION)?;
        f.b.socket_convert(sd, end.ep, FRAMES, &[])?;
        peer.say_frame(&enhanced(Kind::Reply, &with_depths((1, 1), &[])))?;
        failed(&end, RejectReason::BadConnParms)
    }),
    // Only an IA over iWARP converts.
    test("iwarp_ia::who_converts", &["B.1 B05"], |outer| {
        let via = outer.over_via()?;
        for ia in [&outer.a, &via.a] {
            check!(!ia.ia_query()?.socket_conversion_support);
            let end = outer.end(ia, &open());
            let ep = end.map_or(EpHandle::NULL, |end| end.ep);
            refused(ia.socket_convert(0, ep, FRAMES, LINE), Error::OpNotSupported)?;
        }
        let f = outer.over_iwarp()?;
        check!(f.a.ia_query()?.socket_conversion_support);
        let sockets = sockets(&f)?;
        let end = f.end(&f.a, &open())?;
        f.a.socket_convert(sockets.a, end.ep, FRAMES, LINE)?;
        f.a.ep_disconnect(end.ep, &[])?;
        Ok(f.b.socket_close(sockets.b)?)
    }),
    // An interface whose consumers may have one connection has no room for a second conversion. The
    // endpoint and the socket are as before.
    test("iwarp_ia::no_room_for_a_conversion", &["it_socket_convert IT_ERR_RESOURCES"], |f| {
        let f = f.over_iwarp_limited(Limits { connections: 1, ..Limits::NONE })?;
        let (first, second) = (f.end(&f.b, &open())?, f.end(&f.b, &open())?);
        let (_held, one, _openings) = socket_of(&f)?;
        f.b.socket_convert(one, first.ep, FRAMES, LINE)?;
        let (peer, two, _openings) = socket_of(&f)?;
        refused(f.b.socket_convert(two, second.ep, FRAMES, LINE), Error::Resources)?;
        still(&second, EpStateRc::Unconnected)?;
        f.b.ep_disconnect(first.ep, &[])?;
        f.b.socket_convert(two, second.ep, FRAMES, LINE)?;
        check_eq!(peer.hear(LINE.len())?, LINE);
        Ok(())
    }),
];

/// The device dies under a socket: the call is refused.
pub(crate) const KILLING: &[Test] = &[test(
    "iwarp_ia::a_dead_device_converts_nothing",
    &["it_socket_convert IT_ERR_IA_CATASTROPHE"],
    |outer| {
        let f = outer.over_iwarp()?;
        let sockets = sockets(&f)?;
        let end = f.end(&f.a, &open())?;
        let agent = &outer.setup.a.agent;
        match agent.test_handle().inject(0, nic_abi::admin::Injection::Fail, 1, 0) {
            // The device may die before the agent has taken its answer.
            Ok(()) | Err(kernel_agent::Error::DeviceDead(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let disabled = || f.a.ia_query() == Err(Error::IaCatastrophe);
        check!(crate::thread::eventually(f.platform(), disabled));
        refused(f.a.socket_convert(sockets.a, end.ep, FRAMES, LINE), Error::IaCatastrophe)?;
        refused(f.a.socket_convert(sockets.a, end.ep, FRAMES, &[]), Error::IaCatastrophe)
    },
)
.kills()];

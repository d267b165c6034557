//! Sockets that become connections (page it_socket_convert, chapter 5.3, it_ep_state_t).

use core::result::Result;

use privileged_api::*;
use rdma::{Nic, Stream, Transport};

use super::{open, page};
use crate::fixture::{End, Fixture, SIGNALLED};
use crate::thread::eventually;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

pub(super) const LINE: &[u8] = b"rdma please";
pub(super) const FRAMES: ScFlags = ScFlags::empty();

/// Two connected sockets: descriptors of `a` and of `b`, and what made them.
pub(super) struct Sockets {
    pub(super) a: i32,
    pub(super) b: i32,
    /// The streams live as long as the openings that made them.
    _openings: [Nic; 2],
}

#[track_caller]
fn failure(error: impl core::fmt::Debug) -> Failure {
    Failure::new(alloc::format!("a stream: {error:?}"))
}

/// A stream between the NICs: its end at `a`, and its end at `b`.
#[track_caller]
pub(super) fn streams(f: &Fixture) -> Result<(Stream, Stream, [Nic; 2]), Failure> {
    let setup = &f.setup;
    let open =
        |interface: &crate::Interface| Nic::open_over(&interface.agent, Transport::Iwarp).map_err(failure);
    let (here, there) = (open(&setup.a)?, open(&setup.b)?);
    let listener = there.listen_for_streams(4_000).map_err(failure)?;
    let stream = here.connect_stream(there.address(), 4_000).wait().map_err(failure)?;
    let peer = listener.wait().map_err(failure)?;
    Ok((stream, peer, [here, there]))
}

#[track_caller]
pub(super) fn sockets(f: &Fixture) -> Result<Sockets, Failure> {
    let (stream, peer, _openings) = streams(f)?;
    Ok(Sockets { a: f.a.socket_add(stream)?, b: f.b.socket_add(peer)?, _openings })
}

/// A stream whose end at `b` is a socket, and whose end at `a` is a plain stream.
#[track_caller]
pub(super) fn half(f: &Fixture) -> Result<(Stream, i32, [Nic; 2]), Failure> {
    let (stream, peer, openings) = streams(f)?;
    Ok((stream, f.b.socket_add(peer)?, openings))
}

/// The established event, which has neither read depths nor private data.
#[track_caller]
pub(super) fn established(end: &End) -> Outcome {
    let event = end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
    let Event::ConnEstablished { ep, rdma_read_ird, rdma_read_ord, private_data, .. } = event else {
        return Err(Failure::new("not established"));
    };
    check_eq!((ep, rdma_read_ird, rdma_read_ord), (end.ep, 0, 0));
    check!(private_data.is_none());
    check_eq!(end.state()?, EpStateRc::Connected);
    Ok(())
}

/// The conversion has failed for this reason, and Receives are flushed.
#[track_caller]
pub(super) fn failed(end: &End, reason: RejectReason) -> Outcome {
    let event = end.expect(EventType::CM_MSG_CONN_NONPEER_REJECT)?;
    let Event::ConnNonpeerReject { reject_reason_code, .. } = event else {
        return Err(Failure::new("not rejected"));
    };
    check_eq!(reject_reason_code, reason);
    check_eq!(end.state()?, EpStateRc::Nonoperational);
    end.recv_done(70, DtoStatus::Flushed)
}

/// A message passes each way.
#[track_caller]
fn messages_pass(f: &Fixture, ends: [&End; 2]) -> Outcome {
    for [from, to] in [ends, [ends[1], ends[0]]] {
        let (own, peer) = (page(f, from)?, page(f, to)?);
        own.fill(6);
        to.ia.post_recv(to.ep, &[peer.whole()], 1, DtoFlags::COMPLETION)?;
        from.ia.post_send(from.ep, &[own.whole()], 2, SIGNALLED)?;
        from.done(2, DtoStatus::Success)?;
        to.recv_done(1, DtoStatus::Success)?;
        check_eq!(peer.all(), own.all());
    }
    Ok(())
}

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // Text first, then RDMA: the peer receives the last message, both ends convert, and both are
    // connected. Any first request establishes the initiator, which has no Receive. The descriptors
    // can be closed.
    test(
        "iwarp_ia::sockets_become_connections",
        &[
            "5.1 B04 B05",
            "5.3 B01-B05 F01 S01",
            "it_socket_convert B01-B04 B06 B08-B10 S02",
            "it_ep_state_t S18 S35 S38",
        ],
        |f| {
            let f = f.over_iwarp()?;
            let (stream, sd, openings) = half(&f)?;
            let (initiator, responder) = (f.end(&f.b, &open())?, f.end(&f.a, &open())?);
            f.b.socket_convert(sd, initiator.ep, FRAMES, LINE)?;
            check_eq!(initiator.state()?, EpStateRc::PassiveWaitRdmaTransReq);
            let mut line = [0; LINE.len()];
            let mut filled = 0;
            while filled < line.len() {
                filled += stream.receive(&mut line[filled..]).wait().map_err(failure)?;
            }
            check_eq!(line, LINE);
            check_eq!(initiator.state()?, EpStateRc::PassiveWaitRdmaTransReq);
            let own = f.a.socket_add(stream)?;
            f.a.socket_convert(own, responder.ep, FRAMES, &[])?;
            established(&responder)?;
            let (from, to) = (page(&f, &responder)?, page(&f, &initiator)?);
            from.fill(3);
            f.a.post_rdma_write(responder.ep, &[from.whole()], 5, SIGNALLED, to.remote(0), to.context()?)?;
            responder.done(5, DtoStatus::Success)?;
            established(&initiator)?;
            f.a.socket_close(own)?;
            f.b.socket_close(sd)?;
            messages_pass(&f, [&responder, &initiator])?;
            check_eq!(to.all().len(), from.all().len());
            drop(openings);
            f.a.ep_disconnect(responder.ep, &[])?;
            for end in [&responder, &initiator] {
                end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            }
            Ok(())
        },
    ),
    // Without Request and Reply: the bytes behind the last message are messages.
    test("iwarp_ia::sockets_without_frames", &["5.3 O01", "it_socket_convert B05"], |f| {
        let f = f.over_iwarp()?;
        let (stream, sd, _openings) = half(&f)?;
        let (initiator, responder) = (f.end(&f.b, &open())?, f.end(&f.a, &open())?);
        f.b.socket_convert(sd, initiator.ep, ScFlags::NO_REQ_REP, LINE)?;
        check_eq!(initiator.state()?, EpStateRc::PassiveConnectionPending);
        let mut line = [0; 64];
        let mut filled = 0;
        while filled < LINE.len() {
            filled += stream.receive(&mut line[filled..]).wait().map_err(failure)?;
        }
        check_eq!(&line[..filled], LINE);
        let own = f.a.socket_add(stream)?;
        f.a.socket_convert(own, responder.ep, ScFlags::NO_REQ_REP, &[])?;
        established(&responder)?;
        let from = page(&f, &responder)?;
        let to = page(&f, &initiator)?;
        f.a.post_rdma_write(responder.ep, &[from.whole()], 5, SIGNALLED, to.remote(0), to.context()?)?;
        responder.done(5, DtoStatus::Success)?;
        established(&initiator)?;
        messages_pass(&f, [&responder, &initiator])
    }),
    // A conversion whose peer is silent waits until it is given up, by a disconnect or a free.
    test("iwarp_ia::a_conversion_is_given_up", &["it_socket_convert B07 B11", "it_ep_state_t S37"], |f| {
        let f = f.over_iwarp()?;
        for frees in [false, true] {
            let (stream, sd, _openings) = half(&f)?;
            let initiator = f.end(&f.b, &open())?;
            f.b.post_recv(initiator.ep, &[], 70, DtoFlags::COMPLETION)?;
            f.b.socket_convert(sd, initiator.ep, FRAMES, LINE)?;
            let mut line = [0; 64];
            check!(stream.receive(&mut line).wait().map_err(failure)? > 0);
            check_eq!(initiator.state()?, EpStateRc::PassiveWaitRdmaTransReq);
            check!(f.b.evd_dequeue(initiator.conn) == Err(Error::QueueEmpty));
            if frees {
                f.b.ep_free(initiator.ep)?;
            } else {
                f.b.ep_disconnect(initiator.ep, &[])?;
                initiator.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                check_eq!(initiator.state()?, EpStateRc::Nonoperational);
                initiator.recv_done(70, DtoStatus::Flushed)?;
            }
            // The peer finds its stream ended, one way or the other.
            check!(!matches!(stream.receive(&mut line).wait(), Ok(1..)));
        }
        Ok(())
    }),
    // A peer that ends its stream, or sends something else, ends the conversion.
    test("iwarp_ia::conversions_that_fail", &["it_socket_convert S01", "it_ep_state_t S36"], |f| {
        let f = f.over_iwarp()?;
        for garbage in [false, true] {
            for initiates in [true, false] {
                let (stream, sd, _openings) = half(&f)?;
                let end = f.end(&f.b, &open())?;
                f.b.post_recv(end.ep, &[], 70, DtoFlags::COMPLETION)?;
                f.b.socket_convert(sd, end.ep, FRAMES, if initiates { LINE } else { &[] })?;
                let reason = if garbage {
                    let bytes = [0x55; 64];
                    stream.send(&bytes).wait().map_err(failure)?;
                    RejectReason::BadConnParms
                } else {
                    stream.reset();
                    RejectReason::Other
                };
                failed(&end, reason)?;
            }
        }
        Ok(())
    }),
    // The errors of the call, each of which changes nothing.
    test(
        "iwarp_ia::conversions_that_are_refused_at_once",
        &[
            "it_socket_convert IT_ERR_INVALID_EP IT_ERR_INVALID_EP_STATE IT_ERR_INVALID_FLAGS",
            "it_socket_convert IT_ERR_INVALID_SD IT_ERR_INVALID_SD_STATE",
        ],
        |outer| {
            let f = outer.over_iwarp()?;
            let Sockets { a, b, _openings } = sockets(&f)?;
            let end = f.end(&f.a, &open())?;
            let freed = f.end(&f.a, &open())?;
            f.a.ep_free(freed.ep)?;
            for sd in [-1, a + 1, i32::MAX, i32::MIN] {
                refused(f.a.socket_convert(sd, end.ep, FRAMES, &[]), Error::InvalidSd)?;
            }
            refused(f.a.socket_convert(a, freed.ep, FRAMES, &[]), Error::InvalidEp)?;
            let undefined = ScFlags::from_bits_retain(2);
            refused(f.a.socket_convert(a, end.ep, undefined, &[]), Error::InvalidFlags)?;
            check_eq!(end.state()?, EpStateRc::Unconnected);
            // A socket whose peer has closed it cannot be converted.
            f.b.socket_close(b)?;
            refused(f.b.socket_close(b), Error::InvalidSd)?;
            let refusal = eventually(f.platform(), || {
                let converted = f.a.socket_convert(a, end.ep, FRAMES, LINE);
                let ended = converted == Err(Error::InvalidSdState);
                if converted.is_ok() {
                    // The peer's end has not arrived yet.
                    let _ = f.a.ep_disconnect(end.ep, &[]);
                }
                ended || converted.is_ok()
            });
            check!(refusal);
            let connected = f.pair()?;
            let again = sockets(&f)?;
            refused(f.a.socket_convert(again.a, connected.a.ep, FRAMES, LINE), Error::InvalidEpState)?;
            // One socket makes one connection.
            let (first, second) = (f.end(&f.a, &open())?, f.end(&f.a, &open())?);
            f.a.socket_convert(again.a, first.ep, FRAMES, LINE)?;
            refused(f.a.socket_convert(again.a, second.ep, FRAMES, LINE), Error::InvalidSdState)?;
            check_eq!(second.state()?, EpStateRc::Unconnected);
            // InfiniBand converts none, and takes none.
            let (stream, _peer, _others) = streams(&f)?;
            refused(outer.a.socket_add(stream), Error::OpNotSupported)
        },
    ),
];

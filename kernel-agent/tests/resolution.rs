//! Service resolution over QP1.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use common::*;
use host::Machine;
use kernel_agent::{Error, ResolutionAnswer, ResolutionEventKind, ResolveParams, Transports};
use roce::cm::sidr::Status;
use roce::{Gid, TimeoutCode};

#[test]
fn a_datagram_service_is_asked_and_answers() {
    let machine = Machine::new(2);
    let (a, b) = (open(&machine, 0), open(&machine, 1));
    let (asking, service) = (Node::new(&machine, &a), Node::new(&machine, &b));
    let id = roce::ServiceId(0x7001);
    let listen = service.client.listen(id, Transports::RC, 5).unwrap();
    let params = ResolveParams {
        service: id,
        local_gid: Gid(a.identity().gids[1]),
        remote_gid: Gid(b.identity().gids[1]),
        ip_source_port: 0,
        response_timeout: TimeoutCode::new(18).unwrap(),
        retries: 3,
        private_data: b"who?",
    };
    let (question, name) = asking.client.open_resolution(&params, 9).unwrap();
    assert_eq!(a.counts().resolutions, 1);
    assert!(service.client.resolve(question).is_err(), "not its own");
    let mut last = None;
    for round in 0..2_u32 {
        asking.client.resolve(question).unwrap();
        let (context, kind, data) = service.ears.resolution("a request");
        let ResolutionEventKind::Request { request, request_id, remote_gid, source_gid, .. } = kind else {
            panic!("{kind:?}");
        };
        assert_eq!((context, request_id, remote_gid, source_gid), (5, name, a.identity().gids[1], 1));
        assert_eq!((&data[..4], data.len()), (&b"who?"[..], 216));
        let answer =
            ResolutionAnswer { status: Status::Valid, qpn: 0x123 + round, qkey: 7, private_data: b"me" };
        let long = [0; 137];
        let refused =
            service.client.answer_resolution(request, &ResolutionAnswer { private_data: &long, ..answer });
        assert_eq!(refused, Err(Error::PrivateData(136)));
        assert!(asking.client.answer_resolution(request, &answer).is_err(), "not asked");
        service.client.answer_resolution(request, &answer).unwrap();
        assert_eq!(service.client.answer_resolution(request, &answer), Err(Error::ConnectionState));
        let (context, kind, data) = asking.ears.resolution("the reply");
        let status = Status::Valid;
        let expected = ResolutionEventKind::Reply {
            resolution: question,
            status,
            qpn: 0x123 + round,
            qkey: 7,
            redirection: None,
        };
        assert_eq!((context, kind), (9, expected));
        assert_eq!((&data[..2], data.len()), (&b"me"[..], 136));
        last = Some(request);
    }
    // A disregarded request is gone, and so are those that a client leaves behind.
    asking.client.resolve(question).unwrap();
    let (_, kind, _) = service.ears.resolution("a request");
    let ResolutionEventKind::Request { request, .. } = kind else { panic!("{kind:?}") };
    assert_ne!(Some(request), last);
    assert_eq!(b.counts().resolutions, 1);
    service.client.disregard_resolution(request);
    assert_eq!(b.counts().resolutions, 0);
    asking.client.resolve(question).unwrap();
    service.ears.resolution("a request");
    service.client.stop_listening(listen).unwrap();
    service.client.detach();
    assert_eq!(b.counts().resolutions, 0);
    // No client offers the service any more.
    asking.client.resolve(question).unwrap();
    let (_, kind, _) = asking.ears.resolution("a refusal");
    let refused = Status::ServiceIdNotSupported;
    assert!(matches!(kind, ResolutionEventKind::Reply { status, .. } if status == refused), "{kind:?}");
    asking.client.close_resolution(question).unwrap();
    assert_eq!(asking.client.resolve(question), Err(Error::ConnectionState));
    assert_eq!(a.counts().resolutions, 0);
}

#[test]
fn of_more_requests_than_a_peer_has_room_for_the_latest_can_be_answered() {
    const ROOM: usize = 64;
    let machine = Machine::new(2);
    let (a, b) = (open(&machine, 0), open(&machine, 1));
    let (asking, service) = (Node::new(&machine, &a), Node::new(&machine, &b));
    let id = roce::ServiceId(0x7001);
    service.client.listen(id, Transports::RC, 5).unwrap();
    let params = ResolveParams {
        service: id,
        local_gid: Gid(a.identity().gids[1]),
        remote_gid: Gid(b.identity().gids[1]),
        // None is sent again.
        ip_source_port: 0,
        response_timeout: TimeoutCode::new(25).unwrap(),
        retries: 0,
        private_data: b"",
    };
    let (question, _) = asking.client.open_resolution(&params, 9).unwrap();
    let ask = |_| {
        asking.client.resolve(question).unwrap();
        match service.ears.resolution("a request").1 {
            ResolutionEventKind::Request { request, .. } => request,
            kind => panic!("{kind:?}"),
        }
    };
    let requests: Vec<_> = (0..ROOM + 16).map(ask).collect();
    let no = ResolutionAnswer { status: Status::Rejected, qpn: 0, qkey: 0, private_data: b"" };
    for (n, request) in requests.into_iter().enumerate() {
        let answered = service.client.answer_resolution(request, &no);
        assert_eq!(answered.is_ok(), n >= 16, "request {n}: {answered:?}");
    }
}

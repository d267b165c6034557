//! Unreliable connections: the same handshake, without what only a reliable connection has.

use alloc::vec;

use roce::cm::rej::Reason;
use roce::cm::req::TransportService;
use roce::cm::{Datagram, Message, ReadDepths, rep, req};
use roce::transport::Service;
use roce::{ServiceId, TimeoutCode};

use super::net::*;
use crate::cm::*;

const DEPTHS: ReadDepths = ReadDepths { responder_resources: 4, initiator_depth: 3 };
const NONE: ReadDepths = ReadDepths { responder_resources: 0, initiator_depth: 0 };

fn unreliable(n: u32) -> LocalQp {
    LocalQp { transport: Service::Uc, ..local(n) }
}

fn params(net: &Net) -> ConnectParams {
    ConnectParams { depths: NONE, ..net.params() }
}

/// Two nodes; the first has asked the second, which offers these services.
fn asked(offered: Transports) -> (Net, ConnectionId) {
    let mut net = Net::new(2);
    net.nodes[1].cm.listen(SERVICE, offered, 4).unwrap();
    let (now, params) = (net.now, params(&net));
    let ours = net.nodes[0].cm.connect(now, unreliable(0x11), &params, b"data").unwrap();
    (net, ours)
}

fn last_req(net: &Net) -> req::Repr {
    let found = net.sent.iter().rev().find_map(|message| match message {
        Message::Req(req) => Some(*req),
        _ => None,
    });
    found.expect("a REQ")
}

fn last_rep(net: &Net) -> rep::Repr {
    let found = net.sent.iter().rev().find_map(|message| match message {
        Message::Rep(rep) => Some(*rep),
        _ => None,
    });
    found.expect("a REP")
}

#[test]
fn the_handshake_is_that_of_a_reliable_connection() {
    let (mut net, ours) = asked(Transports::UC);
    net.deliver();
    let req = last_req(&net);
    assert_eq!(req.transport_service, TransportService::Uc);
    assert_eq!((req.depths, req.retry_count, req.rnr_retry_count), (NONE, 0, 0));
    assert_eq!(req.starting_psn, local(0x11).receive_psn);
    let request = net.request();
    assert_eq!((request.transport, request.send_psn), (Service::Uc, local(0x11).receive_psn));
    assert_eq!(&request.private_data[..4], b"data");
    let now = net.now;
    let answer = AcceptParams { rnr_retry_count: 7, ..AcceptParams::default() };
    net.nodes[1].cm.accept(now, request.conn, unreliable(0x22), &answer, b"").unwrap();
    net.deliver();
    let rep = last_rep(&net);
    assert_eq!((rep.depths, rep.rnr_retry_count), (NONE, 0));
    assert_eq!((rep.target_ack_delay, rep.starting_psn), (TimeoutCode::default(), local(0x22).receive_psn));
    assert!(matches!(net.take(0)[..], [Event::Reply(reply)] if reply.send_psn == rep.starting_psn));
    let now = net.now;
    net.nodes[0].cm.establish(now, ours, b"").unwrap();
    net.deliver();
    assert!(matches!(net.take(1)[..], [Event::Established { .. }]));
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.deliver();
    assert!(matches!(net.take(0)[..], [Event::Released { answered: true, .. }]));
    assert!(matches!(net.take(1)[..], [Event::Disconnected { cause: Cause::Peer, .. }]));
    assert_eq!((net.state(0, ours), net.state(1, request.conn)), (State::TimeWait, State::TimeWait));
    net.pass(core::time::Duration::from_secs(60));
    assert_eq!(net.connections(), 0);
}

#[test]
fn depths_of_a_peer_mean_nothing() {
    let (mut net, ours) = asked(Transports::UC);
    net.drain(0);
    let mut req = last_req(&net);
    net.lose();
    req.depths = DEPTHS;
    (req.retry_count, req.rnr_retry_count) = (7, 7);
    let from = |net: &Net, n: usize| Arrival {
        local_gid: net.nodes[n].gid,
        remote_gid: net.nodes[1 - n].gid,
        remote_qp: roce::Qpn::GSI,
    };
    let now = net.now;
    let mad = Datagram { tid: 1, message: req.into() }.emit();
    let at = from(&net, 1);
    net.nodes[1].cm.receive(now, &at, &mad);
    net.drain(1);
    let request = net.request();
    assert_eq!((request.depths, request.retry_count, request.rnr_retry_count), (NONE, 0, 0));
    let answer = AcceptParams::default();
    net.nodes[1].cm.accept(now, request.conn, unreliable(0x22), &answer, b"").unwrap();
    net.drain(1);
    let mut rep = last_rep(&net);
    net.lose();
    rep.depths = DEPTHS;
    let mad = Datagram { tid: 1, message: rep.into() }.emit();
    let at = from(&net, 0);
    net.nodes[0].cm.receive(now, &at, &mad);
    net.drain(0);
    assert!(matches!(net.take(0)[..], [Event::Reply(reply)] if reply.conn == ours && reply.depths == NONE));
}

#[test]
fn a_service_that_is_not_offered_is_rejected() {
    let (mut net, ours) = asked(Transports::RC);
    net.deliver();
    assert_eq!(net.take(1), vec![]);
    let rejection = net.rejection(0);
    assert_eq!((rejection.conn, rejection.reason), (ours, Reason::INVALID_TRANSPORT_SERVICE));
    assert_eq!(net.connections(), 0);
}

#[test]
fn a_request_is_passed_on_to_a_listening_point_that_offers_its_service_only() {
    let (mut net, _) = asked(Transports::UC);
    net.deliver();
    let request = net.request();
    let cm = &mut net.nodes[1].cm;
    let reliable = cm.listen(ServiceId(70), Transports::RC, 4).unwrap();
    let both = cm.listen(ServiceId(71), Transports::all(), 4).unwrap();
    assert_eq!(cm.handoff(request.conn, reliable), Err(Error::OutOfRange("transport service")));
    cm.handoff(request.conn, both).unwrap();
    net.drain(1);
    assert_eq!(net.request().listen, both);
}

#[test]
fn queue_pairs_and_depths_have_to_fit_the_service() {
    let (mut net, _) = asked(Transports::UC);
    let (now, good) = (net.now, params(&net));
    let deep = ConnectParams { depths: DEPTHS, ..good };
    let refused = net.nodes[0].cm.connect(now, unreliable(0x12), &deep, b"");
    assert_eq!(refused, Err(Error::OutOfRange("read depths")));
    net.deliver();
    let conn = net.request().conn;
    let cm = &mut net.nodes[1].cm;
    let none = AcceptParams::default();
    let refused = cm.accept(now, conn, local(0x22), &none, b"");
    assert_eq!(refused, Err(Error::OutOfRange("transport service")));
    let deep = AcceptParams { depths: DEPTHS, ..none };
    let refused = cm.accept(now, conn, unreliable(0x22), &deep, b"");
    assert_eq!(refused, Err(Error::OutOfRange("read depths")));
    cm.accept(now, conn, unreliable(0x22), &none, b"").unwrap();
}

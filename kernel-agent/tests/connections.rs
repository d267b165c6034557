//! Making and ending connections over QP1.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use host::Machine;
use kernel_agent::{
    AcceptParams, Agent, AsyncEvent, CmEventKind, ConnectParams, ConnectionId, Error, Handshake, LinkFlags,
    Moves, PostError, Qp, QpChanges, Shadow, Transports,
};
use nic_abi::admin::{Injection, ModifyQp, QpMask, QpState};
use nic_abi::cqe::{CqeFlags, Status};
use nic_abi::eqe::EventType;
use nic_abi::wqe::{Opcode, Segment};
use roce::cm::ReadDepths;
use roce::cm::rej::Reason;
use roce::{PathMtu, ServiceId, TimeoutCode};

fn pair() -> (Machine, Arc<Agent>, Node, Node) {
    let machine = Machine::new(1);
    let agent = open(&machine, 0);
    let (a, b) = (Node::new(&machine, &agent), Node::new(&machine, &agent));
    (machine, agent, a, b)
}

fn is_request(kind: &CmEventKind) -> bool {
    matches!(kind, CmEventKind::Request { .. })
}

fn request(b: &Node) -> ConnectionId {
    b.ears.cm("a request", is_request).0
}

fn end(agent: &Agent, nodes: &[&Node]) {
    for node in nodes {
        node.client.detach();
    }
    assert_eq!(agent.counts(), Default::default());
    agent.close();
    assert_eq!(agent.test_handle().quarantined(), 0);
}

/// Both sides answer each message within 4.096 us * 2^`code`.
fn with_timeout(params: ConnectParams, code: u8) -> ConnectParams {
    let timeout = TimeoutCode::new(code).unwrap();
    ConnectParams { remote_cm_timeout: timeout, local_cm_timeout: timeout, ..params }
}

/// Takes `count` completions, which are all flushed; returns how many are of sends and of receives.
fn flushed(node: &Node, count: usize) -> (usize, usize) {
    let mut receives = 0;
    for _ in 0..count {
        let completion = node.completion();
        assert_eq!(completion.status, Status::Flushed);
        receives += usize::from(completion.flags.contains(CqeFlags::RECEIVE));
    }
    (count - receives, receives)
}

#[test]
fn a_request_to_a_service_without_a_listening_point_is_rejected() {
    let (_machine, agent, a, b) = pair();
    let qp = a.qp(1);
    let id = dial(&a, &qp, &b, 1, b"").unwrap();
    let event = a.ears.cm("a rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
    assert_eq!(
        (event.0, event.1, event.2),
        (id, 1, CmEventKind::Rejected { reason: Reason::INVALID_SERVICE_ID })
    );
    assert_eq!(qp.state(), QpState::Error);
    assert_eq!(agent.counts().connections, 0);
    end(&agent, &[&a, &b]);
}

#[test]
fn a_change_of_state_that_the_device_refuses_names_the_state() {
    let (_machine, agent, a, b) = pair();
    let qp = a.qp(1);
    let (mask, state) = (QpMask::STATE.bits(), QpState::Rts as u32);
    let to_rts = ModifyQp { mask, state, ..ModifyQp::default() };
    assert_eq!(qp.modify(&to_rts), Err(Error::QpState(QpState::Init)));
    // Refused for another reason than the state.
    let changes = QpChanges { access: Some(LinkFlags::from_bits_retain(1 << 31)), ..QpChanges::default() };
    let refused = qp.change(&changes);
    assert!(!matches!(refused, Ok(()) | Err(Error::QpState(_))), "{refused:?}");
    assert_eq!(qp.state(), QpState::Init);
    drop(qp);
    end(&agent, &[&a, &b]);
}

#[test]
fn a_request_is_rejected_with_private_data() {
    let (_machine, agent, a, b) = pair();
    let listen = b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    assert_eq!(a.client.listen(ServiceId(1), Transports::RC, 6), Err(Error::ServiceInUse));
    assert_eq!(a.client.stop_listening(listen), Err(Error::ConnectionState));
    let qp = a.qp(1);
    receive(&qp, Segment::default(), 3);
    dial(&a, &qp, &b, 1, b"please").unwrap();
    let (id, context, _, data) = b.ears.cm("a request", is_request);
    assert_eq!((context, &data[..6]), (5, &b"please"[..]));
    assert_eq!(a.client.reject(id, b"not mine"), Err(Error::ConnectionState));
    assert_eq!(b.client.reject(id, &[0; 149]), Err(Error::PrivateData(148)));
    b.client.reject(id, b"no").unwrap();
    assert_eq!(b.client.reject(id, b"no"), Err(Error::ConnectionState));
    let event = a.ears.cm("a rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
    assert_eq!(event.2, CmEventKind::Rejected { reason: Reason::CONSUMER_DEFINED });
    assert_eq!(&event.3[..2], b"no");
    assert_eq!(flushed(&a, 1), (0, 1));
    end(&agent, &[&a, &b]);
}

#[test]
fn three_way_the_client_confirms_or_rejects_the_accept() {
    let (_machine, agent, a, b) = pair();
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    for refuse in [false, true] {
        let (qa, qb) = (a.qp(1), b.qp(2));
        let asked = params(&a, &b, 1);
        let ca = a.client.connect(&qa, &asked, Handshake::ThreeWay, b"").unwrap();
        assert_eq!(a.client.establish(ca, 0, b""), Err(Error::ConnectionState));
        let cb = request(&b);
        // Whether the depths fit is for the client to decide.
        let depths = ReadDepths { responder_resources: 3, initiator_depth: 0 };
        let accept = AcceptParams { depths, ..AcceptParams::default() };
        b.client.accept(cb, &qb, &accept, b"yes").unwrap();
        let event = a.ears.cm("the accept", |kind| matches!(kind, CmEventKind::AcceptArrived { .. }));
        assert_eq!(event.2, CmEventKind::AcceptArrived { depths });
        assert_eq!(&event.3[..3], b"yes");
        assert_eq!(qa.state(), QpState::Rtr);
        if refuse {
            a.client.reject(ca, b"after all not").unwrap();
            assert_eq!(qa.state(), QpState::Error);
            let event = b.ears.cm("a rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
            assert_eq!((event.0, event.1), (cb, 2));
            assert_eq!(qb.state(), QpState::Error);
        } else {
            a.client.establish(ca, 0, b"now").unwrap();
            assert_eq!(a.ears.cm("established", is_established).0, ca);
            let event = b.ears.cm("established", is_established);
            assert_eq!((event.0, &event.3[..3]), (cb, &b"now"[..]));
            assert_eq!((qa.state(), qb.state()), (QpState::Rts, QpState::Rts));
        }
    }
    end(&agent, &[&a, &b]);
}

#[test]
fn the_active_client_learns_that_it_is_connected_before_the_peer_does() {
    let machine = Machine::new(2);
    let agents = [open(&machine, 0), open(&machine, 1)];
    let (a, b) = (Node::new(&machine, &agents[0]), Node::new(&machine, &agents[1]));
    for (service, handshake) in [(1, Handshake::TwoWay), (2, Handshake::ThreeWay)] {
        b.client.listen(ServiceId(service), Transports::RC, 9).unwrap();
        let peer = b.ears.clone();
        let came_first = Arc::new(AtomicBool::new(false));
        let saw = came_first.clone();
        // With the RTU the peer may send: it must not leave before this upcall returns.
        *a.ears.in_upcall.lock().unwrap() = Some(Box::new(move |heard| {
            let Heard::Cm(.., kind, _) = heard else { return };
            let knows =
                || peer.all().iter().any(|h| matches!(h, Heard::Cm(.., kind, _) if is_established(kind)));
            let until = Instant::now() + Duration::from_millis(50);
            while is_established(kind) && Instant::now() < until {
                saw.fetch_or(knows(), Ordering::Relaxed);
                std::thread::yield_now();
            }
        }));
        let (qa, qb) = (a.qp(1), b.qp(2));
        let ca = a.client.connect(&qa, &params(&a, &b, service), handshake, b"").unwrap();
        b.client.accept(request(&b), &qb, &accepted(), b"").unwrap();
        if handshake == Handshake::ThreeWay {
            a.ears.cm("the accept", |kind| matches!(kind, CmEventKind::AcceptArrived { .. }));
            a.client.establish(ca, 4, b"").unwrap();
        }
        a.ears.cm("established", is_established);
        b.ears.cm("established", is_established);
        assert!(!came_first.load(Ordering::Relaxed), "{handshake:?}");
        *a.ears.in_upcall.lock().unwrap() = None;
    }
    end(&agents[0], &[&a]);
    end(&agents[1], &[&b]);
}

#[test]
fn each_end_says_how_often_the_other_retries_when_it_has_no_receive() {
    let (_machine, agent, a, b) = pair();
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    let (qa, qb) = (a.qp(1), b.qp(2));
    // The active side wants its peer never to retry, and is itself asked to retry for ever.
    let asked = ConnectParams { rnr_retry_count: 0, ..params(&a, &b, 1) };
    a.client.connect(&qa, &asked, Handshake::TwoWay, b"").unwrap();
    let answer = AcceptParams { rnr_retry_count: 7, ..accepted() };
    b.client.accept(request(&b), &qb, &answer, b"").unwrap();
    a.ears.cm("established", is_established);
    b.ears.cm("established", is_established);
    let (from, to) = (a.buffer(64), b.buffer(64));
    let (from, to) = (segment(&from, &a.register(&from)), segment(&to, &b.register(&to)));
    post(&qa, Opcode::Send, from, None, 1);
    // The device has tried the Send by the time that it has answered so many commands.
    for _ in 0..50 {
        assert_eq!(qa.query().unwrap().state, QpState::Rts as u32);
    }
    receive(&qb, to, 2);
    assert_eq!((a.completion().status, b.completion().status), (Status::Success, Status::Success));
    // The other way there is no retry.
    post(&qb, Opcode::Send, to, None, 3);
    assert_eq!(b.completion().status, Status::RnrRetryExceeded);
    end(&agent, &[&a, &b]);
}

#[test]
fn two_way_the_agent_rejects_read_depths_that_do_not_fit() {
    let (_machine, agent, a, b) = pair();
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    // The active side has more outstanding than the peer serves, or the peer more than the active
    // side serves.
    for (responder_resources, initiator_depth) in [(3, 4), (4, 5)] {
        let (qa, qb) = (a.qp(1), b.qp(2));
        let ca = dial(&a, &qa, &b, 1, b"").unwrap();
        let depths = ReadDepths { responder_resources, initiator_depth };
        let accept = AcceptParams { depths, ..AcceptParams::default() };
        let cb = request(&b);
        b.client.accept(cb, &qb, &accept, b"").unwrap();
        let event = a.ears.cm("the agent's rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
        let reason = Reason::INSUFFICIENT_RESPONDER_RESOURCES;
        assert_eq!((event.0, event.2), (ca, CmEventKind::Rejected { reason }));
        let event = b.ears.cm("a rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
        assert_eq!((event.0, event.2), (cb, CmEventKind::Rejected { reason }));
        assert_eq!((qa.state(), qb.state()), (QpState::Error, QpState::Error));
    }
    assert_eq!(agent.counts().connections, 0);
    end(&agent, &[&a, &b]);
}

#[test]
fn disconnect_under_load_flushes_both_ends() {
    let (_machine, agent, a, b) = pair();
    let (qa, ca, qb, cb) = connect(&a, &b, 1);
    let (from, to) = (a.buffer(1 << 16), b.buffer(1 << 16));
    let (ra, rb) = (a.register(&from), b.register(&to));
    // More requests than can complete before the end: the last sends find no receive and wait.
    for i in 0..16 {
        receive(&qa, segment(&from, &ra), i);
    }
    for i in 0..8 {
        receive(&qb, segment(&to, &rb), i);
    }
    for i in 0..16 {
        post(&qa, Opcode::Send, segment(&from, &ra), None, i);
    }
    for i in 0..4 {
        post(&qb, Opcode::Write, segment(&to, &rb), Some(remote(&from, &ra)), i);
    }
    a.client.disconnect(ca, b"bye").unwrap();
    assert_eq!(qa.state(), QpState::Error);
    assert_eq!(a.client.disconnect(ca, b"bye"), Err(Error::ConnectionState));
    let event = b.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
    assert_eq!((event.0, event.2), (cb, CmEventKind::Disconnected { by_peer: true }));
    assert_eq!(&event.3[..3], b"bye");
    assert_eq!(qb.state(), QpState::Error);
    let event = a.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
    assert_eq!((event.0, event.2), (ca, CmEventKind::Disconnected { by_peer: false }));
    // Every request completes, with success or flushed: 16 sends and 16 receives at the active
    // side, 4 and 8 at the passive side.
    for (node, qp, count) in [(&a, &qa, 32), (&b, &qb, 12)] {
        let mut cookies = Vec::new();
        for _ in 0..count {
            let completion = node.completion();
            cookies.push((completion.flags.contains(CqeFlags::RECEIVE), completion.cookie));
        }
        cookies.sort_unstable();
        cookies.dedup();
        assert_eq!(cookies.len(), count);
        assert_eq!(qp.outstanding(), (0, 0));
    }
    // Requests that are posted in ERROR are flushed too.
    post(&qa, Opcode::Send, segment(&from, &ra), None, 1);
    receive(&qa, segment(&from, &ra), 2);
    assert_eq!(flushed(&a, 2), (1, 1));
    end(&agent, &[&a, &b]);
}

#[test]
fn a_client_that_asks_for_it_stops_its_queue_pair_itself_when_its_peer_disconnects() {
    let (_machine, agent, a, b) = pair();
    let moves = Moves::UntilThePeerDisconnects;
    for active_leaves in [true, false] {
        let (qa, qb) = (a.qp(1), b.qp(2));
        let listen = b.client.listen(ServiceId(1), Transports::RC, 9).unwrap();
        let asked = ConnectParams { moves, ..params(&a, &b, 1) };
        let ca = a.client.connect(&qa, &asked, Handshake::TwoWay, b"").unwrap();
        let cb = request(&b);
        b.client.accept(cb, &qb, &AcceptParams { moves, ..accepted() }, b"").unwrap();
        assert_eq!(qb.query().unwrap().state, QpState::Rts as u32, "it may send at once");
        a.ears.cm("established", is_established);
        b.ears.cm("established", is_established);
        b.client.stop_listening(listen).unwrap();
        let ((first, id, qp), (other, other_qp)) =
            if active_leaves { ((&a, ca, &qa), (&b, &qb)) } else { ((&b, cb, &qb), (&a, &qa)) };
        let buffer = other.buffer(64);
        let region = other.register(&buffer);
        receive(other_qp, segment(&buffer, &region), 7);
        first.client.disconnect(id, b"").unwrap();
        assert_eq!(qp.state(), QpState::Error, "the client's own end");
        let is_end = |kind: &CmEventKind| matches!(kind, CmEventKind::Disconnected { .. });
        assert_eq!(other.ears.cm("the end", is_end).2, CmEventKind::Disconnected { by_peer: true });
        first.ears.cm("the end", is_end);
        assert_eq!(other_qp.query().unwrap().state, QpState::Rts as u32);
        assert_eq!(other_qp.outstanding(), (0, 1));
        other_qp.to_error().unwrap();
        assert_eq!(flushed(other, 1), (0, 1));
        for qp in [qa, qb] {
            qp.destroy().unwrap();
        }
        region.destroy().unwrap();
    }
    assert_eq!(agent.counts().connections, 0);
    end(&agent, &[&a, &b]);
}

#[test]
fn a_queue_pair_connects_again_after_reset() {
    let (_machine, agent, a, b) = pair();
    let (qa, qb) = (a.qp(1), b.qp(2));
    let (from, to) = (a.buffer(64), b.buffer(64));
    let (ra, rb) = (a.register(&from), b.register(&to));
    for round in 0..5 {
        let (ca, _) = connect_qps(&a, &qa, &b, &qb, 1);
        for i in 0..3 {
            receive(&qb, segment(&to, &rb), round * 10 + i);
        }
        post(&qa, Opcode::Send, segment(&from, &ra), None, round);
        assert_eq!((a.completion().cookie, b.completion().cookie), (round, round * 10));
        assert_eq!(dial(&a, &qa, &b, 1, b""), Err(Error::QpState(QpState::Rts)));
        a.client.disconnect(ca, b"").unwrap();
        b.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
        a.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
        // Two receives are flushed; their completions are not polled before the reset, so they are
        // dropped.
        for qp in [&qa, &qb] {
            qp.to_reset().unwrap();
            assert_eq!(qp.state(), QpState::Reset);
            assert_eq!(qp.outstanding(), (0, 0));
            let refused = qp.post_receive(false, &[Segment::default()], |&s| s, Shadow::default());
            assert_eq!(refused, Err(PostError::State));
            qp.to_init(nic_abi::wqe::LinkFlags::empty()).unwrap();
        }
    }
    assert_eq!(b.cq.poll_one(), None);
    assert_eq!(b.cq.dropped(), 10);
    end(&agent, &[&a, &b]);
}

#[test]
fn lost_datagrams_are_sent_again() {
    let (_machine, agent, a, b) = pair();
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    let (qa, qb) = (a.qp(1), b.qp(2));
    agent.test_handle().inject(0, Injection::DropManagement, 1, 0).unwrap();
    // 4.096 us * 2^12: 17 ms.
    let asked = with_timeout(params(&a, &b, 1), 12);
    let ca = a.client.connect(&qa, &asked, Handshake::TwoWay, b"").unwrap();
    let cb = request(&b);
    b.client.accept(cb, &qb, &accepted(), b"").unwrap();
    assert_eq!(a.ears.cm("established", is_established).0, ca);
    assert_eq!(b.ears.cm("established", is_established).0, cb);
    end(&agent, &[&a, &b]);
}

#[test]
fn the_management_queue_pair_breaks_and_is_made_ready_again() {
    let (_machine, agent, a, b) = pair();
    for service in 1..4 {
        let failure = nic_abi::cqe::Status::LocalQpOperation as u64;
        agent.test_handle().inject(nic_abi::ident::QPN_GSI, Injection::Failure, 1, failure).unwrap();
        b.client.listen(ServiceId(service), Transports::RC, 5).unwrap();
        let (qa, qb) = (a.qp(1), b.qp(2));
        // The first datagram breaks QP1, and others are lost until QP1 is ready again.
        let asked = with_timeout(params(&a, &b, service), 12);
        let ca = a.client.connect(&qa, &asked, Handshake::TwoWay, b"").unwrap();
        let cb = request(&b);
        b.client.accept(cb, &qb, &accepted(), b"").unwrap();
        assert_eq!(a.ears.cm("established", is_established).0, ca);
        assert_eq!(b.ears.cm("established", is_established).0, cb);
        qa.destroy().unwrap();
        qb.destroy().unwrap();
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while agent.outstanding() > 0 {
        assert!(std::time::Instant::now() < deadline, "{} requests are left", agent.outstanding());
        std::thread::yield_now();
    }
    assert!(!agent.is_dead());
    end(&agent, &[&a, &b]);
}

#[test]
fn an_attempt_that_the_peer_does_not_answer_ends_as_unreachable() {
    let (_machine, agent, a, b) = pair();
    let qp = a.qp(1);
    agent.test_handle().inject(0, Injection::DropManagement, 1000, 0).unwrap();
    let asked = ConnectParams { max_cm_retries: 2, ..with_timeout(params(&a, &b, 1), 8) };
    let id = a.client.connect(&qp, &asked, Handshake::TwoWay, b"").unwrap();
    let event = a.ears.cm("the end", |kind| *kind == CmEventKind::Unreachable);
    assert_eq!(event.0, id);
    assert_eq!(qp.state(), QpState::Error);
    agent.test_handle().inject(0, Injection::DropManagement, 0, 0).unwrap();
    end(&agent, &[&a, &b]);
}

/// The confirmation is lost, so the passive end rejects a connection that the active end has.
#[test]
fn a_connection_that_the_peer_gives_up_ends_as_disconnected() {
    let machine = Machine::new(2);
    let agents = [0, 1].map(|nic| open(&machine, nic));
    let [a, b] = [0, 1].map(|nic| Node::new(&machine, &agents[nic]));
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    let (qa, qb) = (a.qp(1), b.qp(2));
    let asked = ConnectParams { max_cm_retries: 2, ..with_timeout(params(&a, &b, 1), 10) };
    let ca = a.client.connect(&qa, &asked, Handshake::ThreeWay, b"").unwrap();
    let cb = request(&b);
    b.client.accept(cb, &qb, &accepted(), b"").unwrap();
    a.ears.cm("the accept", |kind| matches!(kind, CmEventKind::AcceptArrived { .. }));
    agents[0].test_handle().inject(0, Injection::DropManagement, 1000, 0).unwrap();
    a.client.establish(ca, 0, b"").unwrap();
    assert_eq!(a.ears.cm("established", is_established).0, ca);
    let event = b.ears.cm("the end", |kind| *kind == CmEventKind::AcceptTimedOut);
    assert_eq!(event.0, cb);
    let event = a.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
    assert_eq!((event.0, event.2), (ca, CmEventKind::Disconnected { by_peer: false }));
    agents[0].test_handle().inject(0, Injection::DropManagement, 0, 0).unwrap();
    end(&agents[0], &[&a]);
    end(&agents[1], &[&b]);
}

#[test]
fn a_connection_gets_the_path_mtu_that_the_ports_have() {
    let machine = by_wire();
    let agents = [0, 1].map(|nic| open(&machine, nic));
    let [a, b] = [0, 1].map(|nic| Node::new(&machine, &agents[nic]));
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    let (qa, qb) = (a.qp(1), b.qp(2));
    // The link's MTU is 1500.
    let asked = ConnectParams { path_mtu: PathMtu::B4096, ..params(&a, &b, 1) };
    a.client.connect(&qa, &asked, Handshake::TwoWay, b"").unwrap();
    b.client.accept(request(&b), &qb, &accepted(), b"").unwrap();
    a.ears.cm("established", is_established);
    b.ears.cm("established", is_established);
    end(&agents[0], &[&a]);
    end(&agents[1], &[&b]);
}

#[test]
fn a_request_is_withdrawn() {
    let (_machine, agent, a, b) = pair();
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    let qp = a.qp(1);
    let id = dial(&a, &qp, &b, 1, b"").unwrap();
    let cb = request(&b);
    a.client.disconnect(id, b"").unwrap();
    let event = b.ears.cm("the withdrawal", |kind| *kind == CmEventKind::Withdrawn);
    assert_eq!((event.0, event.1), (cb, 5));
    let qb = b.qp(2);
    assert_eq!(b.client.accept(cb, &qb, &accepted(), b""), Err(Error::ConnectionState));
    assert_eq!(qb.state(), QpState::Init);
    assert_eq!(agent.counts().connections, 0);
    end(&agent, &[&a, &b]);
}

#[test]
fn a_peer_learns_of_an_error_that_is_none_of_its_own() {
    let (_machine, agent, a, b) = pair();
    let (qa, ca, qb, cb) = connect(&a, &b, 1);
    let from = a.buffer(64);
    let ra = a.register(&from);
    // Only the requester's queue pair goes to ERROR: its memory is not the region's.
    let beyond = Segment { addr: from.addr() as u64 + 64, ..segment(&from, &ra) };
    post(&qa, Opcode::Send, beyond, None, 1);
    assert_eq!(a.completion().status, Status::LocalProtection);
    let ended = |kind: &CmEventKind| matches!(kind, CmEventKind::Disconnected { .. });
    for (node, id) in [(&a, ca), (&b, cb)] {
        let event = node.ears.cm("the end", ended);
        assert_eq!((event.0, event.2), (id, CmEventKind::Disconnected { by_peer: false }));
    }
    assert_eq!((qa.state(), qb.state()), (QpState::Error, QpState::Error));
    end(&agent, &[&a, &b]);
}

#[test]
fn a_request_that_is_discarded_is_reported_again() {
    let (_machine, agent, a, b) = pair();
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    let (qa, qb) = (a.qp(1), b.qp(2));
    // Repeated every few milliseconds.
    let asked = with_timeout(params(&a, &b, 1), 10);
    a.client.connect(&qa, &asked, Handshake::TwoWay, b"").unwrap();
    let first = request(&b);
    assert_eq!(a.client.discard(first), Err(Error::ConnectionState));
    b.client.discard(first).unwrap();
    assert_eq!(b.client.discard(first), Err(Error::ConnectionState));
    let second = request(&b);
    assert!(second > first);
    b.client.accept(second, &qb, &accepted(), b"").unwrap();
    a.ears.cm("established", is_established);
    b.ears.cm("established", is_established);
    assert_eq!(b.client.discard(second), Err(Error::ConnectionState));
    end(&agent, &[&a, &b]);
}

#[test]
fn a_broken_queue_pair_ends_its_connection_at_both_ends() {
    let (_machine, agent, a, b) = pair();
    let (qa, ca, qb, cb) = connect(&a, &b, 1);
    let from = a.buffer(64);
    let ra = a.register(&from);
    // The peer has no such key: the responder refuses, and both queue pairs go to ERROR.
    let nowhere = Segment { addr: 1, length: 64, key: 0x7777_7700 };
    post(&qa, Opcode::Write, segment(&from, &ra), Some(nowhere), 1);
    assert_eq!(a.completion().status, Status::RemoteAccess);
    let broken = |heard: &Heard| match heard {
        Heard::Async(AsyncEvent::Qp { context, event, .. }) => Some((*context, *event)),
        _ => None,
    };
    assert_eq!(b.ears.wait_for("the breach", broken), (2, EventType::QpAccessError));
    // No consumer ended it.
    let ended = |kind: &CmEventKind| *kind == CmEventKind::Disconnected { by_peer: false };
    assert_eq!(a.ears.cm("the end", ended).0, ca);
    assert_eq!(b.ears.cm("the end", ended).0, cb);
    assert_eq!((qa.state(), qb.state()), (QpState::Error, QpState::Error));
    assert_eq!(agent.counts().connections, 0);
    end(&agent, &[&a, &b]);
}

#[test]
fn upcalls_may_call_the_agent() {
    let (machine, agent, a, b) = pair();
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    let (client, pd, cq) = (b.client.clone(), b.pd.clone(), b.cq.clone());
    let token = machine.privileged();
    let served: Arc<std::sync::Mutex<Option<Arc<Qp>>>> = Arc::default();
    let keep = served.clone();
    // The server does all in upcalls: it creates its queue pair, accepts, and disconnects once the
    // connection is established.
    *b.ears.in_upcall.lock().unwrap() = Some(Box::new(move |heard| match *heard {
        Heard::Cm(connection, _, CmEventKind::Request { .. }, _) => {
            let qp = client.create_qp(&attributes(token, &pd, &cq, 1)).unwrap();
            qp.to_init(nic_abi::wqe::LinkFlags::empty()).unwrap();
            client.accept(connection, &qp, &accepted(), b"").unwrap();
            *keep.lock().unwrap() = Some(qp);
        }
        Heard::Cm(connection, _, CmEventKind::Established { .. }, _) => {
            client.disconnect(connection, b"enough").unwrap();
        }
        Heard::Cm(_, _, CmEventKind::Disconnected { .. }, _) => {
            keep.lock().unwrap().take().unwrap().destroy().unwrap()
        }
        _ => {}
    }));
    let qp = a.qp(1);
    dial(&a, &qp, &b, 1, b"").unwrap();
    let event = a.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
    assert_eq!(&event.3[..6], b"enough");
    b.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
    assert_eq!(agent.counts().qps, 1);
    *b.ears.in_upcall.lock().unwrap() = None;
    end(&agent, &[&a, &b]);
}

#[test]
fn teardown_with_everything_under_way() {
    for round in 0..3 {
        let (_machine, agent, a, b) = pair();
        let (qa, _, qb, _) = connect(&a, &b, 1);
        let (from, to) = (a.buffer(1 << 16), b.buffer(1 << 16));
        let (ra, rb) = (a.register(&from), b.register(&to));
        for i in 0..16 {
            post(&qa, Opcode::Write, segment(&from, &ra), Some(remote(&to, &rb)), i);
            receive(&qb, segment(&to, &rb), i);
        }
        b.client.listen(ServiceId(9), Transports::RC, 5).unwrap();
        let pending = a.qp(3);
        dial(&a, &pending, &b, 9, b"").unwrap();
        match round {
            0 => {
                qa.destroy().unwrap();
                assert_eq!(qa.destroy(), Err(Error::Gone));
                let gone = qa.post(&common::request(Opcode::Send, None), &[], |s: &Segment| *s);
                assert_eq!(gone, Err(PostError::Gone));
                assert_eq!(qa.to_error(), Err(Error::Gone));
                // Its completions, if any were written, are gone with it.
                assert_eq!(a.cq.poll_one(), None);
                end(&agent, &[&a, &b]);
            }
            1 => end(&agent, &[&b, &a]),
            // The agent closes first, and its clients find it dead.
            _ => {
                agent.close();
                assert!(agent.is_dead());
                assert!(matches!(a.client.create_pd(), Err(Error::DeviceDead(_))));
                assert!(matches!(qa.to_error(), Err(Error::DeviceDead(_))));
                a.client.detach();
                b.client.detach();
                assert_eq!(agent.counts(), Default::default());
                assert_eq!(agent.test_handle().quarantined(), 0);
            }
        }
    }
}

#[test]
fn in_use_and_foreign_objects_are_refused() {
    let (_machine, agent, a, b) = pair();
    let qp = a.qp(1);
    assert_eq!(a.cq.destroy(), Err(Error::Busy));
    assert_eq!(a.pd.destroy(), Err(Error::Busy));
    let mut attributes = a.attributes(1);
    attributes.pd = &b.pd;
    assert!(matches!(a.client.create_qp(&attributes), Err(Error::Foreign)));
    assert!(matches!(dial(&a, &b.qp(2), &b, 1, b""), Err(Error::Foreign)));
    qp.destroy().unwrap();
    a.cq.destroy().unwrap();
    a.pd.destroy().unwrap();
    assert_eq!(a.pd.destroy(), Err(Error::Gone));
    assert!(matches!(a.client.create_qp(&a.attributes(1)), Err(Error::Gone)));
    end(&agent, &[&a, &b]);
}

#[test]
fn a_queue_pair_that_cannot_be_moved_when_its_connection_is_made_ends_the_attempt() {
    let (_machine, agent, a, b) = pair();
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    // The one that asks has broken before the answer comes.
    let (qa, qb) = (a.qp(1), b.qp(2));
    let ca = dial(&a, &qa, &b, 1, b"").unwrap();
    let cb = request(&b);
    qa.to_error().unwrap();
    b.client.accept(cb, &qb, &accepted(), b"").unwrap();
    let ended = |kind: &CmEventKind| !is_request(kind);
    let event = a.ears.cm("the end", ended);
    assert_eq!((event.0, event.2), (ca, CmEventKind::Unreachable));
    let event = b.ears.cm("the end", ended);
    assert_eq!(event.0, cb);
    assert!(matches!(event.2, CmEventKind::Rejected { .. }), "{event:?}");
    // The one that answers has broken before the confirmation comes.
    let (qa, qb) = (a.qp(3), b.qp(4));
    let ca = a.client.connect(&qa, &params(&a, &b, 1), Handshake::ThreeWay, b"").unwrap();
    let cb = request(&b);
    b.client.accept(cb, &qb, &accepted(), b"").unwrap();
    a.ears.cm("the accept", |kind| matches!(kind, CmEventKind::AcceptArrived { .. }));
    qb.to_error().unwrap();
    a.client.establish(ca, 0, b"").unwrap();
    let event = b.ears.cm("the end", ended);
    assert_eq!((event.0, event.2), (cb, CmEventKind::Disconnected { by_peer: false }));
    a.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
    assert_eq!((qa.state(), qb.state()), (QpState::Error, QpState::Error));
    end(&agent, &[&a, &b]);
}

#[test]
fn a_request_whose_peer_has_fallen_silent_is_withdrawn() {
    let machine = Machine::new(2);
    let agents = [0, 1].map(|nic| open(&machine, nic));
    let [a, b] = [0, 1].map(|nic| Node::new(&machine, &agents[nic]));
    b.client.listen(ServiceId(1), Transports::RC, 5).unwrap();
    // It would be repeated once, in a few milliseconds.
    let asked = ConnectParams { max_cm_retries: 1, ..with_timeout(params(&a, &b, 1), 10) };
    let ca = a.client.connect(&a.qp(1), &asked, Handshake::TwoWay, b"").unwrap();
    let cb = request(&b);
    agents[0].test_handle().inject(0, Injection::DropManagement, 1000, 0).unwrap();
    a.client.disconnect(ca, b"").unwrap();
    let event = b.ears.cm("the end", |kind| !is_request(kind));
    assert_eq!((event.0, event.1, event.2), (cb, 5, CmEventKind::Withdrawn));
    agents[0].test_handle().inject(0, Injection::DropManagement, 0, 0).unwrap();
    end(&agents[0], &[&a]);
    end(&agents[1], &[&b]);
}

//! Unreliable connections between two agents, by the short cut and over a wire.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use std::sync::Arc;

use common::*;
use host::Machine;
use kernel_agent::{
    AcceptParams, Agent, CmEventKind, ConnectParams, ConnectionId, Error, Handshake, LinkFlags, Qp,
    QpAttributes, QpType, Transports,
};
use nic_abi::admin::QpState;
use nic_abi::cqe::{CqeFlags, Status};
use nic_abi::wqe::Opcode;
use roce::ServiceId;
use roce::cm::ReadDepths;
use roce::cm::rej::Reason;

const SERVICE: ServiceId = ServiceId(1);
const NO_READS: ReadDepths = ReadDepths { responder_resources: 0, initiator_depth: 0 };

/// Two NICs of a machine, which exchange requests without packets.
fn by_short_cut() -> Machine {
    Machine::new(2)
}

/// Two machines' worth of tests: `test` runs for each way between the NICs.
fn over_both(test: impl Fn(&Node, &Node)) {
    for machine in [by_short_cut(), by_wire()] {
        let agents: [Arc<Agent>; 2] = [0, 1].map(|nic| open(&machine, nic));
        let [a, b] = [0, 1].map(|nic| Node::new(&machine, &agents[nic]));
        test(&a, &b);
        for node in [a, b] {
            node.client.detach();
            assert_eq!(node.agent.counts(), Default::default());
            node.agent.close();
            assert_eq!(node.agent.test_handle().quarantined(), 0);
        }
    }
}

fn qp(node: &Node, qp_type: QpType, context: u64) -> Arc<Qp> {
    let qp = node.client.create_qp(&QpAttributes { qp_type, ..node.attributes(context) }).unwrap();
    qp.to_init(LinkFlags::REMOTE_WRITE).unwrap();
    qp
}

fn asked(a: &Node, b: &Node) -> ConnectParams {
    ConnectParams { depths: NO_READS, ..params(a, b, SERVICE.0) }
}

/// The request that a node got, and the type of queue pair that it is for.
fn request(node: &Node) -> (ConnectionId, QpType) {
    let (id, _, kind, _) = node.ears.cm("a request", |kind| matches!(kind, CmEventKind::Request { .. }));
    let CmEventKind::Request { qp_type, depths, .. } = kind else { panic!() };
    assert_eq!(depths, NO_READS);
    (id, qp_type)
}

/// Connects two queue pairs; returns the two ends.
fn join(a: &Node, qa: &Arc<Qp>, b: &Node, qb: &Arc<Qp>, handshake: Handshake) -> [ConnectionId; 2] {
    let ca = a.client.connect(qa, &asked(a, b), handshake, b"").unwrap();
    let (cb, qp_type) = request(b);
    assert_eq!(qp_type, QpType::Uc);
    b.client.accept(cb, qb, &AcceptParams::default(), b"").unwrap();
    if handshake == Handshake::ThreeWay {
        let arrived = a.ears.cm("the accept", |kind| matches!(kind, CmEventKind::AcceptArrived { .. }));
        assert_eq!(arrived.0, ca);
        a.client.establish(ca, 0, b"").unwrap();
    }
    assert_eq!(a.ears.cm("established", is_established).0, ca);
    assert_eq!(b.ears.cm("established", is_established).0, cb);
    [ca, cb]
}

#[test]
fn a_connection_is_made_used_and_ended_again_and_again() {
    over_both(|a, b| {
        b.client.listen(SERVICE, Transports::UC, 9).unwrap();
        let (qa, qb) = (qp(a, QpType::Uc, 1), qp(b, QpType::Uc, 2));
        let (from, to) = (a.buffer(8192), b.buffer(8192));
        let (ra, rb) = (a.register(&from), b.register(&to));
        for handshake in [Handshake::TwoWay, Handshake::ThreeWay] {
            let [ca, cb] = join(a, &qa, b, &qb, handshake);
            for cookie in 0..4 {
                receive(&qb, segment(&to, &rb), cookie);
                post(&qa, Opcode::Write, segment(&from, &ra), Some(remote(&to, &rb)), 10);
                post(&qa, Opcode::Send, segment(&from, &ra), None, 11);
                for expected in [10, 11] {
                    let done = a.completion();
                    assert_eq!((done.status, done.cookie), (Status::Success, expected));
                }
                let got = b.completion();
                assert_eq!((got.status, got.cookie, got.length), (Status::Success, cookie, 8192));
            }
            // Without a receive: lost, and both go on.
            post(&qa, Opcode::Send, segment(&from, &ra), None, 12);
            assert_eq!(a.completion().status, Status::Success);
            receive(&qb, segment(&to, &rb), 13);
            a.client.disconnect(ca, b"bye").unwrap();
            let over = |kind: &CmEventKind| matches!(kind, CmEventKind::Disconnected { .. });
            let (id, _, kind, data) = b.ears.cm("the end", over);
            assert_eq!((id, kind), (cb, CmEventKind::Disconnected { by_peer: true }));
            assert_eq!(&data[..3], b"bye");
            let (id, _, kind, _) = a.ears.cm("the end", over);
            assert_eq!((id, kind), (ca, CmEventKind::Disconnected { by_peer: false }));
            let flushed = b.completion();
            assert_eq!((flushed.status, flushed.cookie), (Status::Flushed, 13));
            assert!(flushed.flags.contains(CqeFlags::RECEIVE));
            for qp in [&qa, &qb] {
                assert_eq!(qp.state(), QpState::Error);
                qp.to_reset().unwrap();
                qp.to_init(LinkFlags::REMOTE_WRITE).unwrap();
            }
        }
    });
}

#[test]
fn a_read_fails_and_ends_the_connection() {
    over_both(|a, b| {
        b.client.listen(SERVICE, Transports::UC, 9).unwrap();
        let (qa, qb) = (qp(a, QpType::Uc, 1), qp(b, QpType::Uc, 2));
        let [ca, cb] = join(a, &qa, b, &qb, Handshake::TwoWay);
        let (from, to) = (a.buffer(64), b.buffer(64));
        let (ra, rb) = (a.register(&from), b.register(&to));
        post(&qa, Opcode::Read, segment(&from, &ra), Some(remote(&to, &rb)), 7);
        let done = a.completion();
        assert_eq!((done.status, done.cookie), (Status::LocalQpOperation, 7));
        for (node, id) in [(a, ca), (b, cb)] {
            let over = CmEventKind::Disconnected { by_peer: false };
            assert_eq!(node.ears.cm("the end", |kind| *kind == over).0, id);
        }
    });
}

#[test]
fn a_listening_point_takes_what_it_offers_and_rejects_the_rest() {
    over_both(|a, b| {
        let both = Transports::RC | Transports::UC;
        for offered in [Transports::RC, Transports::UC, both] {
            let listen = b.client.listen(SERVICE, offered, 9).unwrap();
            for (qp_type, transport) in [(QpType::Rc, Transports::RC), (QpType::Uc, Transports::UC)] {
                let qa = qp(a, qp_type, 1);
                let id = a.client.connect(&qa, &asked(a, b), Handshake::TwoWay, b"").unwrap();
                let expected = match offered.contains(transport) {
                    true => {
                        let (request, asked_for) = request(b);
                        assert_eq!(asked_for, qp_type);
                        b.client.reject(request, b"").unwrap();
                        Reason::CONSUMER_DEFINED
                    }
                    false => Reason::INVALID_TRANSPORT_SERVICE,
                };
                let (rejected, _, kind, _) =
                    a.ears.cm("a rejection", |kind| matches!(kind, CmEventKind::Rejected { .. }));
                assert_eq!((rejected, kind), (id, CmEventKind::Rejected { reason: expected }));
            }
            b.client.stop_listening(listen).unwrap();
        }
        assert!(b.ears.all().is_empty(), "{:?}", b.ears.all());
    });
}

#[test]
fn an_accept_needs_a_queue_pair_of_the_type_that_was_asked_for() {
    over_both(|a, b| {
        b.client.listen(SERVICE, Transports::RC | Transports::UC, 9).unwrap();
        for (qp_type, other) in [(QpType::Uc, QpType::Rc), (QpType::Rc, QpType::Uc)] {
            let (qa, wrong, right) = (qp(a, qp_type, 1), qp(b, other, 2), qp(b, qp_type, 3));
            a.client.connect(&qa, &asked(a, b), Handshake::TwoWay, b"").unwrap();
            let (id, _) = request(b);
            let none = AcceptParams::default();
            let refused = b.client.accept(id, &wrong, &none, b"");
            assert_eq!(refused, Err(Error::OutOfRange("transport service")));
            assert_eq!(wrong.state(), QpState::Init);
            b.client.accept(id, &right, &none, b"").unwrap();
            a.ears.cm("established", is_established);
            b.ears.cm("established", is_established);
        }
    });
}

#[test]
fn an_unreliable_connection_has_no_read_depths() {
    over_both(|a, b| {
        b.client.listen(SERVICE, Transports::UC, 9).unwrap();
        let (qa, qb) = (qp(a, QpType::Uc, 1), qp(b, QpType::Uc, 2));
        let refused = a.client.connect(&qa, &params(a, b, SERVICE.0), Handshake::TwoWay, b"");
        assert_eq!(refused, Err(Error::OutOfRange("read depths")));
        assert_eq!(a.agent.counts().connections, 0);
        a.client.connect(&qa, &asked(a, b), Handshake::TwoWay, b"").unwrap();
        let (id, _) = request(b);
        let refused = b.client.accept(id, &qb, &accepted(), b"");
        assert_eq!(refused, Err(Error::OutOfRange("read depths")));
        assert_eq!(qb.state(), QpState::Init);
        b.client.accept(id, &qb, &AcceptParams::default(), b"").unwrap();
        a.ears.cm("established", is_established);
        b.ears.cm("established", is_established);
    });
}

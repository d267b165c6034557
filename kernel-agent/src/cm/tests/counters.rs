//! Counters: each datagram counts once, by what became of it.

use alloc::vec;
use core::time::Duration;

use roce::cm::rej::Reason;
use roce::cm::sidr::Status;
use roce::cm::{CommId, Message, rep, sidr};
use roce::{PKey, QKey, Qpn, TimeoutCode};

use super::net::{Net, SERVICE, config, local, qpn};
use crate::cm::*;

/// By how much the counters of a node grow while something happens.
fn counted(net: &mut Net, node: usize, happens: impl FnOnce(&mut Net)) -> Stats {
    let before = net.nodes[node].cm.stats();
    happens(net);
    let after = net.nodes[node].cm.stats();
    Stats {
        received: after.received - before.received,
        sent: after.sent - before.sent,
        retransmitted: after.retransmitted - before.retransmitted,
        malformed: after.malformed - before.malformed,
        unexpected: after.unexpected - before.unexpected,
        duplicates: after.duplicates - before.duplicates,
        overflowed: after.overflowed - before.overflowed,
        congested: after.congested - before.congested,
    }
}

const DUPLICATE: Stats = Stats {
    received: 1,
    sent: 0,
    retransmitted: 0,
    malformed: 0,
    unexpected: 0,
    duplicates: 1,
    overflowed: 0,
    congested: 0,
};
const ANSWERED_AGAIN: Stats = Stats { sent: 1, ..DUPLICATE };
const UNEXPECTED: Stats = Stats { unexpected: 1, duplicates: 0, ..DUPLICATE };
const MALFORMED: Stats = Stats { malformed: 1, duplicates: 0, ..DUPLICATE };
const CONGESTED: Stats = Stats { congested: 1, duplicates: 0, ..DUPLICATE };

fn is_req(message: &Message) -> bool {
    matches!(message, Message::Req(_))
}

fn is_rep(message: &Message) -> bool {
    matches!(message, Message::Rep(_))
}

fn is_rtu(message: &Message) -> bool {
    matches!(message, Message::Rtu(_))
}

fn is_dreq(message: &Message) -> bool {
    matches!(message, Message::Dreq(_))
}

fn is_sidr_req(message: &Message) -> bool {
    matches!(message, Message::SidrReq(_))
}

#[test]
fn a_message_that_comes_again_is_a_duplicate_in_each_state_of_the_connection() {
    let mut net = Net::with(2, Config { patience: None, ..config() }, 1);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let ours = net.connect(0x11, b"");
    net.deliver();
    let theirs = net.request().conn;
    assert_eq!(counted(&mut net, 1, |net| net.again(is_req)), DUPLICATE, "the consumer has not answered");
    net.accept(1, theirs, 0x22, b"");
    net.deliver();
    assert_eq!(counted(&mut net, 1, |net| net.again(is_req)), ANSWERED_AGAIN, "the REP may be lost");
    net.lose();
    assert_eq!(counted(&mut net, 0, |net| net.again(is_rep)), DUPLICATE, "the consumer has not answered");
    let now = net.now;
    net.nodes[0].cm.establish(now, ours, b"").unwrap();
    net.deliver();
    assert_eq!(counted(&mut net, 0, |net| net.again(is_rep)), ANSWERED_AGAIN, "the RTU may be lost");
    net.lose();
    assert_eq!(counted(&mut net, 1, |net| net.again(is_rtu)), DUPLICATE);
    assert_eq!(counted(&mut net, 1, |net| net.again(is_req)), DUPLICATE, "the answer has arrived");
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.deliver();
    assert_eq!(counted(&mut net, 1, |net| net.again(is_dreq)), ANSWERED_AGAIN, "in TimeWait");
    net.lose();
    net.pass(Duration::from_secs(60));
    let after = Stats { sent: 1, ..UNEXPECTED };
    assert_eq!(counted(&mut net, 1, |net| net.again(is_dreq)), after, "the connection is gone");
}

#[test]
fn a_reply_to_the_side_that_replied_is_unexpected_and_not_answered() {
    let mut net = Net::new(2);
    net.connected(0x11, 0x22);
    let Some(&Message::Rep(reply)) = net.sent.iter().find(|message| is_rep(message)) else { panic!() };
    let (local_comm_id, remote_comm_id) = (reply.remote_comm_id, reply.local_comm_id);
    let back = rep::Repr { local_comm_id, remote_comm_id, ..reply };
    assert_eq!(counted(&mut net, 1, |net| net.say(1, back)), UNEXPECTED);
}

#[test]
fn a_reply_that_names_another_end_of_the_peer_is_unexpected_in_each_state() {
    let (mut net, ours, _) = Net::replied();
    let Some(&Message::Rep(reply)) = net.sent.iter().find(|message| is_rep(message)) else { panic!() };
    let other = rep::Repr { local_comm_id: CommId(0x5555), ..reply };
    assert_eq!(counted(&mut net, 0, |net| net.say(0, other)), UNEXPECTED, "the consumer has not answered");
    let now = net.now;
    net.nodes[0].cm.establish(now, ours, b"").unwrap();
    net.deliver();
    assert_eq!(counted(&mut net, 0, |net| net.say(0, other)), UNEXPECTED, "established");
}

#[test]
fn a_request_that_was_rejected_is_a_duplicate_when_it_comes_again() {
    let (mut net, _, theirs) = Net::asked();
    let now = net.now;
    net.nodes[1].cm.reject(now, theirs, Reason::CONSUMER_DEFINED, b"", b"").unwrap();
    net.lose();
    assert_eq!(counted(&mut net, 1, |net| net.again(is_req)), ANSWERED_AGAIN);
}

/// Opens a resolution at the first node, and asks the second one.
fn ask(net: &mut Net) -> ResolutionId {
    let params = SidrParams {
        local_gid: net.nodes[0].gid,
        remote_gid: net.nodes[1].gid,
        service: SERVICE,
        ip_source_port: 0,
        pkey: PKey::DEFAULT,
        timeout: TimeoutCode::new(16).unwrap(),
        max_retries: 3,
    };
    let sidr = net.nodes[0].cm.sidr_open(&params, b"").unwrap();
    let now = net.now;
    net.nodes[0].cm.sidr_request(now, sidr).unwrap();
    sidr
}

#[test]
fn a_resolution_request_that_comes_again_is_a_duplicate_before_and_after_its_answer() {
    let mut net = Net::new(2);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    ask(&mut net);
    net.deliver();
    let events = net.take(1);
    let [Event::ResolutionRequest(request)] = events[..] else { panic!("{events:?}") };
    for _ in 0..2 {
        assert_eq!(counted(&mut net, 1, |net| net.again(is_sidr_req)), DUPLICATE);
    }
    net.nodes[1].cm.sidr_reply(request.request, Status::Valid, qpn(9), QKey(1), b"").unwrap();
    net.lose();
    for _ in 0..2 {
        assert_eq!(counted(&mut net, 1, |net| net.again(is_sidr_req)), ANSWERED_AGAIN);
    }
}

#[test]
fn a_message_that_is_sent_again_for_lack_of_an_answer_is_a_retransmission() {
    let mut net = Net::new(2);
    net.weather.lost = 1000;
    let params = ConnectParams { max_cm_retries: 3, ..net.params() };
    let wanted = Stats { sent: 5, retransmitted: 3, ..Stats::default() };
    let connects = counted(&mut net, 0, |net| {
        let now = net.now;
        net.nodes[0].cm.connect(now, local(0x11), &params, b"").unwrap();
        net.pass(Duration::from_secs(30));
    });
    assert_eq!(connects, wanted, "four REQs and a REJ");
    let resolves = counted(&mut net, 0, |net| {
        ask(net);
        net.pass(Duration::from_secs(30));
    });
    assert_eq!(resolves, Stats { sent: 4, ..wanted });
}

#[test]
fn a_datagram_that_is_no_message_for_qp1_is_malformed() {
    let (mut net, ..) = Net::asked();
    let (from, mad) = net.last(is_req);
    let now = net.now;
    let short = counted(&mut net, 1, |net| net.nodes[1].cm.receive(now, &from, &mad[..255]));
    assert_eq!(short, MALFORMED);
    let elsewhere = Arrival { remote_qp: Qpn::new(2).unwrap(), ..from };
    let foreign = counted(&mut net, 1, |net| net.nodes[1].cm.receive(now, &elsewhere, &mad));
    assert_eq!(foreign, MALFORMED);
    let garbage = counted(&mut net, 1, |net| net.nodes[1].cm.receive(now, &from, &[0; 256]));
    assert_eq!(garbage, MALFORMED);
}

#[test]
fn a_datagram_is_dropped_while_the_caller_does_not_take_the_actions() {
    let (mut net, ..) = Net::asked();
    let (now, params) = (net.now, net.params());
    for n in 0x12.. {
        if net.nodes[1].cm.connect(now, local(n), &params, b"") == Err(Error::Congested) {
            break;
        }
    }
    let (from, mad) = net.last(is_req);
    for _ in 0..2 {
        assert_eq!(counted(&mut net, 1, |net| net.nodes[1].cm.receive(now, &from, &mad)), CONGESTED);
    }
    net.lose();
    assert_eq!(counted(&mut net, 1, |net| net.again(is_req)).congested, 0);
}

#[test]
fn a_resolution_request_without_the_header_of_its_service_is_rejected() {
    let mut net = Net::new(2);
    let service = roce::ServiceId::ip_cm(roce::ServiceId::UDP, 53);
    net.nodes[1].cm.listen(service, Transports::RC, 1).unwrap();
    let private_data = [0xff; sidr::REQ_PRIVATE_DATA_LEN];
    let request = sidr::ReqRepr { request_id: 7, pkey: PKey::DEFAULT, service_id: service, private_data };
    net.say(1, request);
    let Some(Message::SidrRep(answer)) = net.sent.last() else { panic!("{:?}", net.sent) };
    assert_eq!((answer.request_id, answer.status), (7, Status::Rejected));
    assert_eq!((net.take(1), net.nodes[1].cm.counts().resolution_requests), (vec![], 0));
}

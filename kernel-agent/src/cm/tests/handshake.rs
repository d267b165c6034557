//! Making connections, and failing to.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use platform::Secret;
use roce::cm::rej::Reason;
use roce::cm::req::TransportService;
use roce::cm::{Datagram, Message, ReadDepths};
use roce::{Gid, PKey, Path, PathMtu, Psn, Qpn, ServiceId, TimeoutCode};

use super::net::{Net, SERVICE, config, local, qpn};
use crate::cm::*;

fn padded(data: &[u8], len: usize) -> Vec<u8> {
    let mut all = data.to_vec();
    all.resize(len, 0);
    all
}

#[test]
fn each_side_receives_the_parameters_and_private_data_of_the_other() {
    let mut net = Net::new(2);
    let listen = net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let ours = net.connect(0x11, b"who goes there");
    net.deliver();
    let request = net.request();
    assert_eq!((request.listen, request.service), (listen, SERVICE));
    assert_eq!(request.path, Path::new(net.nodes[1].gid, net.nodes[0].gid));
    assert_eq!((request.remote_qpn, request.send_psn), (qpn(0x11), Psn::new(0x110)));
    assert_eq!(request.depths, ReadDepths { responder_resources: 4, initiator_depth: 3 });
    assert_eq!((request.retry_count, request.rnr_retry_count, request.path_mtu), (7, 7, PathMtu::B1024));
    assert_eq!((request.ack_timeout.get(), request.pkey), (14, PKey::DEFAULT));
    assert_eq!(request.private_data[..], padded(b"who goes there", 92));
    assert_eq!(request.ip, None);

    net.accept(1, request.conn, 0x22, b"a friend");
    net.deliver();
    let events = net.take(0);
    let [Event::Reply(reply)] = events[..] else { panic!("{events:?}") };
    assert_eq!(reply.conn, ours);
    assert_eq!((reply.remote_qpn, reply.send_psn), (qpn(0x22), Psn::new(0x220)));
    assert_eq!(reply.depths, ReadDepths { responder_resources: 2, initiator_depth: 1 });
    assert_eq!(reply.private_data[..], padded(b"a friend", 196));
    assert_eq!(net.state(0, ours), State::RepRcvd);

    let now = net.now;
    net.nodes[0].cm.establish(now, ours, b"enter").unwrap();
    assert_eq!(net.state(0, ours), State::Established);
    net.deliver();
    let events = net.take(1);
    let [Event::Established { conn, private_data: Some(data) }] = events[..] else { panic!("{events:?}") };
    assert_eq!((conn, &data[..]), (request.conn, &padded(b"enter", 224)[..]));
    // Nothing is left to do.
    assert_eq!((net.nodes[0].cm.next_deadline(), net.nodes[1].cm.next_deadline()), (None, None));
    assert_eq!(net.sent.len(), 3);
}

#[test]
fn both_ends_can_be_in_one_state_machine() {
    let mut net = Net::new(1);
    let (ours, theirs) = net.connected(0x11, 0x22);
    assert_ne!(ours, theirs);
    let now = net.now;
    net.nodes[0].cm.disconnect(now, theirs, b"over").unwrap();
    net.deliver();
    let events = net.take(0);
    assert!(
        matches!(events[..], [
            Event::Disconnected { conn, cause: Cause::Peer, private_data },
            Event::Released { conn: released, answered: true, .. },
        ] if conn == ours && released == theirs && private_data.starts_with(b"over")),
        "{events:?}"
    );
    net.pass(Duration::from_secs(5));
    assert_eq!(net.nodes[0].cm.counts(), Counts { listeners: 1, ..Counts::default() });
}

#[test]
fn a_queue_pair_cannot_connect_to_itself_nor_twice() {
    let mut net = Net::new(1);
    net.nodes[0].cm.listen(SERVICE, Transports::RC, 4).unwrap();
    net.connect(0x11, b"");
    net.deliver();
    let request = net.request();
    let (now, params) = (net.now, net.params());
    let in_use = Error::QpInUse(qpn(0x11));
    let accept = AcceptParams::default();
    assert_eq!(net.nodes[0].cm.accept(now, request.conn, local(0x11), &accept, b""), Err(in_use));
    assert_eq!(net.nodes[0].cm.connect(now, local(0x11), &params, b""), Err(in_use));
    assert_eq!(net.state(0, request.conn), State::ReqRcvd);
}

#[test]
fn an_ip_service_adds_and_removes_its_header() {
    let mut net = Net::new(2);
    let service = ServiceId::ip_cm(ServiceId::TCP, 4420);
    net.nodes[1].cm.listen(service, Transports::RC, 1).unwrap();
    let params = ConnectParams { service, ip_source_port: 55_000, ..net.params() };
    let now = net.now;
    let too_long = Error::PrivateData { len: 57, max: 56 };
    assert_eq!(net.nodes[0].cm.connect(now, local(0x11), &params, &[1; 57]), Err(too_long));
    let v6 = ConnectParams { path: Path { remote_gid: Gid([0xfe; 16]), ..params.path }, ..params };
    assert!(matches!(net.nodes[0].cm.connect(now, local(0x11), &v6, b""), Err(Error::OutOfRange(_))));
    net.nodes[0].cm.connect(now, local(0x11), &params, &[1; 56]).unwrap();
    net.deliver();
    let request = net.request();
    let ip = request.ip.unwrap();
    assert_eq!((ip.src_port, ip.src, ip.dst), (55_000, net.nodes[0].gid.to_ip(), net.nodes[1].gid.to_ip()));
    assert_eq!(request.private_data[..], [1; 56]);
}

#[test]
fn private_data_that_does_not_fit_changes_nothing() {
    let mut net = Net::new(2);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let (now, params) = (net.now, net.params());
    let error = |len, max| Err(Error::PrivateData { len, max });
    assert_eq!(net.nodes[0].cm.connect(now, local(0x11), &params, &[0; 93]).map(drop), error(93, 92));
    assert_eq!(net.nodes[0].cm.counts(), Counts::default());
    let ours = net.connect(0x11, &[1; 92]);
    net.deliver();
    let theirs = net.request().conn;
    let accept = AcceptParams::default();
    let cm = &mut net.nodes[1].cm;
    assert_eq!(cm.reject(now, theirs, Reason::CONSUMER_DEFINED, &[], &[0; 149]), error(149, 148));
    assert_eq!(
        cm.reject(now, theirs, Reason::CONSUMER_DEFINED, &[0; 73], &[]),
        Err(Error::OutOfRange("ari"))
    );
    assert_eq!(cm.accept(now, theirs, local(0x22), &accept, &[0; 197]), error(197, 196));
    assert_eq!(cm.state(theirs), State::ReqRcvd);
    cm.accept(now, theirs, local(0x22), &accept, &[1; 196]).unwrap();
    assert_eq!(cm.disconnect(now, theirs, &[0; 213]), error(213, 212));
    assert_eq!(cm.state(theirs), State::RepSent);
    net.deliver();
    let cm = &mut net.nodes[0].cm;
    assert_eq!(cm.establish(now, ours, &[0; 225]), error(225, 224));
    cm.establish(now, ours, &[1; 224]).unwrap();
    assert_eq!(cm.disconnect(now, ours, &[0; 213]), error(213, 212));
    assert_eq!(cm.state(ours), State::Established);
}

#[test]
fn values_that_do_not_fit_their_fields_are_refused() {
    let mut net = Net::new(2);
    let good = net.params();
    let with = |path| ConnectParams { path, ..good };
    let gsi = LocalQp { qpn: Qpn::GSI, ..local(0x11) };
    let bad = [
        (gsi, good, "local_qpn"),
        (local(0x11), ConnectParams { max_cm_retries: 16, ..good }, "max_cm_retries"),
        (local(0x11), ConnectParams { retry_count: 8, ..good }, "retry_count"),
        (local(0x11), ConnectParams { rnr_retry_count: 8, ..good }, "rnr_retry_count"),
        (local(0x11), with(Path { flow_label: 1 << 20, ..good.path }), "flow_label"),
        (local(0x11), with(Path { sl: 16, ..good.path }), "sl"),
        (local(0x11), with(Path { packet_rate: 64, ..good.path }), "packet_rate"),
    ];
    for (qp, params, what) in bad {
        let now = net.now;
        assert_eq!(net.nodes[0].cm.connect(now, qp, &params, b""), Err(Error::OutOfRange(what)));
    }
    assert_eq!(net.nodes[0].cm.counts(), Counts::default());
}

/// Lets node 0 connect with a changed REQ; returns the reason for which node 1 rejects it without
/// asking its consumer.
fn rejected_with(change: impl FnOnce(&mut roce::cm::req::Repr)) -> Reason {
    let mut net = Net::new(2);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    net.connect(0x11, b"");
    net.drain(0);
    let Some(Message::Req(mut req)) = net.sent.pop() else { panic!() };
    net.lose();
    change(&mut req);
    let mad = Datagram { tid: 1, message: req.into() }.emit();
    let from = Arrival { local_gid: net.nodes[1].gid, remote_gid: net.nodes[0].gid, remote_qp: Qpn::GSI };
    net.nodes[1].cm.receive(net.now, &from, &mad);
    net.drain(1);
    assert_eq!(net.take(1), vec![]);
    assert_eq!(net.nodes[1].cm.counts().connections, 0);
    let Some(Message::Rej(rej)) = net.sent.pop() else { panic!("{:?}", net.sent) };
    assert_eq!(rej.remote_comm_id, req.local_comm_id);
    assert_eq!(rej.rejected, roce::cm::rej::Rejected::Req);
    rej.reason
}

#[test]
fn a_request_that_cannot_be_served_is_rejected_with_its_reason() {
    assert_eq!(rejected_with(|req| req.service_id = ServiceId(9)), Reason::INVALID_SERVICE_ID);
    assert_eq!(
        rejected_with(|req| req.transport_service = TransportService::Uc),
        Reason::INVALID_TRANSPORT_SERVICE
    );
    assert_eq!(
        rejected_with(|req| req.transport_service = TransportService::Rd),
        Reason::INVALID_TRANSPORT_SERVICE
    );
    assert_eq!(rejected_with(|req| req.primary_path.path.remote_gid = Gid([9; 16])), Reason::PRIMARY_GID);
    assert_eq!(
        rejected_with(|req| req.primary_path.path.local_gid = Gid([9; 16])),
        Reason::UNSUPPORTED_REQUEST
    );
    assert_eq!(rejected_with(|req| req.pkey = PKey(0x8001)), Reason::PRIMARY_GID);
    assert_eq!(rejected_with(|req| req.local_qpn = Qpn::GSI), Reason::UNSUPPORTED_REQUEST);
    assert_eq!(rejected_with(|req| req.path_mtu = 6), Reason::INVALID_PATH_MTU);
    let ip = ServiceId::ip_cm(ServiceId::TCP, 1);
    assert_eq!(rejected_with(|req| req.service_id = ip), Reason::CONSUMER_DEFINED);
}

#[test]
fn a_request_for_a_larger_path_mtu_than_the_port_has_is_rejected() {
    let small = Config { path_mtu: PathMtu::B512, ..config() };
    let mut net = Net::with(2, small, 1);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    net.connect(0x11, b"");
    net.deliver();
    let rejection = net.rejection(0);
    assert_eq!((rejection.reason, rejection.ari()), (Reason::INVALID_PATH_MTU, &[2][..]));
    assert_eq!(net.nodes[1].cm.counts().connections, 0);
}

#[test]
fn a_request_to_a_missing_service_is_rejected() {
    let mut net = Net::new(2);
    let ours = net.connect(0x11, b"");
    net.deliver();
    let rejection = net.rejection(0);
    assert_eq!((rejection.conn, rejection.state), (ours, State::ReqSent));
    assert_eq!(rejection.reason, Reason::INVALID_SERVICE_ID);
    assert_eq!(net.nodes[0].cm.counts(), Counts::default());
    let now = net.now;
    assert_eq!(net.nodes[0].cm.disconnect(now, ours, b""), Err(Error::NoSuchConnection));
}

#[test]
fn a_service_has_one_listener_at_a_time() {
    let mut net = Net::with(1, Config { max_listeners: 2, ..config() }, 1);
    let cm = &mut net.nodes[0].cm;
    let first = cm.listen(SERVICE, Transports::RC, 1).unwrap();
    assert_eq!(cm.listen(SERVICE, Transports::RC, 1), Err(Error::ServiceInUse(SERVICE)));
    cm.stop_listen(first).unwrap();
    assert_eq!(cm.stop_listen(first), Err(Error::NoSuchListener));
    let second = cm.listen(SERVICE, Transports::RC, 1).unwrap();
    assert_ne!(first, second);
    assert_eq!(cm.listener(SERVICE), Some(second));
    cm.listen(ServiceId(1), Transports::RC, 1).unwrap();
    assert_eq!(cm.listen(ServiceId(2), Transports::RC, 1), Err(Error::Full(Table::Listeners)));
}

#[test]
fn a_listener_of_a_range_takes_what_no_listener_of_a_single_service_takes() {
    let mut net = Net::new(1);
    let cm = &mut net.nodes[0].cm;
    let id = ServiceId;
    let mut listen = |first, last| cm.listen_to_range(id(first)..=id(last), Transports::RC, 1);
    let range = listen(100, 199).unwrap();
    // Ranges have nothing in common, and none is empty.
    for (first, last) in [(100, 199), (0, 100), (199, 200), (120, 130), (0, u64::MAX)] {
        assert_eq!(listen(first, last), Err(Error::ServiceInUse(id(first))), "{first} to {last}");
    }
    assert_eq!(listen(9, 8), Err(Error::OutOfRange("services")));
    let next = listen(200, u64::MAX).unwrap();
    let [begin, single] = [100, 150].map(|service| listen(service, service).unwrap());
    assert_eq!(listen(150, 150), Err(Error::ServiceInUse(id(150))));
    let of = |cm: &Cm| [99, 100, 149, 150, 199, 200, u64::MAX].map(|service| cm.listener(id(service)));
    let (a, b) = (Some(range), Some(next));
    assert_eq!(of(cm), [None, Some(begin), a, Some(single), a, b, b]);
    // The end of one is not the end of the other, also where both begin with the same service.
    cm.stop_listen(begin).unwrap();
    assert_eq!(of(cm), [None, a, a, Some(single), a, b, b]);
    let begin = cm.listen(id(100), Transports::RC, 1).unwrap();
    cm.stop_listen(range).unwrap();
    assert_eq!(of(cm), [None, Some(begin), None, Some(single), None, b, b]);
}

#[test]
fn a_request_to_a_service_of_a_range_says_which() {
    let mut net = Net::new(2);
    let (first, last) = (ServiceId(SERVICE.0 - 1), ServiceId(SERVICE.0 + 1));
    let listen = net.nodes[1].cm.listen_to_range(first..=last, Transports::RC, 1).unwrap();
    net.connect(0x11, b"");
    net.deliver();
    let request = net.request();
    assert_eq!((request.listen, request.service), (listen, SERVICE));
    // Its place in the backlog is free again.
    let now = net.now;
    net.nodes[1].cm.discard(now, request.conn).unwrap();
    net.connect(0x12, b"");
    net.deliver();
    assert_eq!(net.request().listen, listen);
}

#[test]
fn what_exceeds_the_backlog_is_dropped_and_tried_again() {
    let mut net = Net::new(2);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    net.connect(0x11, b"");
    net.deliver();
    let first = net.request().conn;
    net.connect(0x12, b"");
    net.deliver();
    assert_eq!(net.take(1), vec![]);
    assert_eq!(net.nodes[1].cm.stats().overflowed, 1);
    // There is room again: the next repetition is reported.
    net.accept(1, first, 0x21, b"");
    net.pass(Duration::from_secs(2));
    assert!(matches!(net.take(1)[..], [Event::ConnectRequest(request)] if request.remote_qpn == qpn(0x12)));
}

#[test]
fn a_discarded_request_is_reported_again_until_its_sender_gives_up() {
    let mut net = Net::new(2);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let params = ConnectParams { max_cm_retries: 1, ..net.params() };
    let now = net.now;
    let ours = net.nodes[0].cm.connect(now, local(0x11), &params, b"").unwrap();
    for round in 0..2 {
        // The repetition follows after a little more than a second.
        net.pass(Duration::from_millis(500 + 1000 * round));
        let request = net.request();
        let now = net.now;
        net.nodes[1].cm.discard(now, request.conn).unwrap();
        assert_eq!(net.nodes[1].cm.discard(now, request.conn), Err(Error::NoSuchConnection));
    }
    net.pass(Duration::from_secs(5));
    assert_eq!(net.take(0), [Event::TimedOut { conn: ours, state: State::ReqSent }]);
    assert_eq!(net.nodes[1].cm.counts(), Counts { listeners: 1, ..Counts::default() });
}

#[test]
fn a_request_whose_sender_fell_silent_is_given_up() {
    let (mut net, _, theirs) = Net::asked();
    // The sender dies; the consumer does not answer.
    net.nodes[0].cm = Cm::new(Config { secret: Secret::new([3, 4]), ..config() });
    net.weather.lost = 1000;
    net.pass(Duration::from_secs(5));
    assert_eq!(net.state(1, theirs), State::ReqRcvd, "the sender might still repeat the request");
    net.pass(Duration::from_secs(120));
    assert_eq!(net.take(1), [Event::TimedOut { conn: theirs, state: State::ReqRcvd }]);
    assert_eq!(net.nodes[1].cm.counts(), Counts { listeners: 1, ..Counts::default() });
    // The place at the listening point is free, and no timer is left.
    assert_eq!(net.nodes[1].cm.next_deadline(), None);
    net.weather.lost = 0;
    net.connect(0x12, b"");
    net.deliver();
    net.request();
}

#[test]
fn a_request_that_its_sender_repeats_is_kept() {
    let mut net = Net::new(2);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let ours = net.connect(0x11, b"");
    net.drain(0);
    let Some(&Message::Req(req)) = net.sent.last() else { panic!() };
    net.deliver();
    let theirs = net.request().conn;
    net.nodes[0].cm.abandon(net.now, ours).unwrap();
    net.lose();
    net.weather.lost = 1000;
    let from = Arrival { local_gid: net.nodes[1].gid, remote_gid: net.nodes[0].gid, remote_qp: Qpn::GSI };
    let tid = net.nodes[1].cm.conns.get(theirs).unwrap().tid;
    for _ in 0..20 {
        net.pass(Duration::from_secs(10));
        let now = net.now;
        net.nodes[1].cm.receive(now, &from, &Datagram { tid, message: req.into() }.emit());
        net.drain(1);
        assert_eq!((net.state(1, theirs), net.take(1)), (State::MraReqSent, vec![]));
    }
    net.pass(Duration::from_secs(120));
    assert_eq!(net.take(1), [Event::TimedOut { conn: theirs, state: State::MraReqSent }]);
}

#[test]
fn one_peer_takes_half_of_a_backlog_at_most() {
    let mut net = Net::new(3);
    net.nodes[2].cm.listen(SERVICE, Transports::RC, 7).unwrap();
    let ask = |net: &mut Net, node: usize, qp: u32| {
        let path = Path::new(net.nodes[node].gid, net.nodes[2].gid);
        let now = net.now;
        net.nodes[node].cm.connect(now, local(qp), &ConnectParams::new(path, SERVICE), b"").unwrap();
        net.deliver();
        net.take(2).len()
    };
    let asked = |net: &mut Net, node: usize| (0..8).map(|n| ask(net, node, 0x10 + n)).sum::<usize>();
    assert_eq!((asked(&mut net, 0), asked(&mut net, 1)), (4, 3));
    assert_eq!(net.nodes[2].cm.stats().overflowed, 9);
}

#[test]
fn a_reply_that_is_held_back_goes_out_by_release_only() {
    let (mut net, _, theirs) = Net::asked();
    let now = net.now;
    let sends = |net: &Net| net.sent.iter().filter(|message| matches!(message, Message::Rep(_))).count();
    net.nodes[1].cm.prepare_accept(now, theirs, local(0x22), &AcceptParams::default(), b"").unwrap();
    // Neither a timer of its own nor the repeated request sends it.
    net.pass(Duration::from_secs(3));
    assert!(net.sent.iter().filter(|message| matches!(message, Message::Req(_))).count() > 2);
    assert_eq!((net.state(1, theirs), sends(&net)), (State::RepSent, 0));
    assert!(net.nodes[1].cm.communication_established(now, theirs).is_err());
    let now = net.now;
    net.nodes[1].cm.release(now, theirs);
    net.nodes[1].cm.release(now, theirs);
    net.deliver();
    assert_eq!(sends(&net), 1);
    assert!(matches!(net.take(0)[..], [Event::Reply(_)]));
}

#[test]
fn a_reply_that_is_held_back_is_forgotten_if_the_peer_gives_up() {
    let (mut net, ours, theirs) = Net::asked();
    let now = net.now;
    net.nodes[1].cm.prepare_accept(now, theirs, local(0x22), &AcceptParams::default(), b"").unwrap();
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.deliver();
    assert_eq!(net.rejection(1).state, State::RepSent);
    let before = net.sent.len();
    net.nodes[1].cm.release(now, theirs);
    net.deliver();
    assert_eq!(net.sent.len(), before);
}

#[test]
fn a_full_table_rejects_for_lack_of_resources() {
    let mut net = Net::with(2, Config { max_connections: 1, ..config() }, 1);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 8).unwrap();
    net.connect(0x11, b"");
    let (now, params) = (net.now, net.params());
    assert_eq!(net.nodes[0].cm.connect(now, local(0x12), &params, b""), Err(Error::Full(Table::Connections)));
    net.deliver();
    let theirs = net.request().conn;
    net.accept(1, theirs, 0x22, b"");
    net.lose();
    // Another node's request finds the passive side full.
    let mut other = Net::new(2);
    other.connect(0x12, b"");
    other.drain(0);
    let Some(Message::Req(mut req)) = other.sent.pop() else { panic!() };
    req.local_comm_id.0 ^= 1;
    let from = Arrival { local_gid: net.nodes[1].gid, remote_gid: net.nodes[0].gid, remote_qp: Qpn::GSI };
    net.nodes[1].cm.receive(now, &from, &Datagram { tid: 9, message: req.into() }.emit());
    net.drain(1);
    assert!(matches!(net.sent.last(), Some(Message::Rej(rej)) if rej.reason == Reason::NO_RESOURCES));
}

#[test]
fn an_attempt_without_an_answer_times_out() {
    let mut net = Net::new(2);
    net.weather.lost = 1000;
    let now = net.now;
    let params = ConnectParams { max_cm_retries: 3, ..net.params() };
    let ours = net.nodes[0].cm.connect(now, local(0x11), &params, b"").unwrap();
    net.pass(Duration::from_secs(30));
    assert_eq!(net.take(0), [Event::TimedOut { conn: ours, state: State::ReqSent }]);
    let reqs = net.sent.iter().filter(|message| matches!(message, Message::Req(_))).count();
    assert_eq!(reqs, 4);
    // The peer is informed, in case only its answers were lost.
    let Some(Message::Rej(rej)) = net.sent.last() else { panic!() };
    assert_eq!((rej.reason, rej.ari()), (Reason::TIMEOUT, &0x1122_3344_5566_7788_u64.to_be_bytes()[..]));
    assert_eq!(net.nodes[0].cm.counts(), Counts::default());
}

#[test]
fn the_consumers_timeout_ends_an_attempt_in_each_of_its_states() {
    for replied in [false, true] {
        let mut net = Net::new(2);
        net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
        let timeout = Some(Duration::from_millis(1500));
        let (now, params) = (net.now, ConnectParams { timeout, ..net.params() });
        let ours = net.nodes[0].cm.connect(now, local(0x11), &params, b"").unwrap();
        net.deliver();
        let theirs = net.request().conn;
        if replied {
            net.accept(1, theirs, 0x22, b"");
            net.deliver();
            net.take(0);
        }
        net.pass(Duration::from_millis(1600));
        let events = net.take(0);
        let Some(Event::TimedOut { conn, state }) = events.last() else { panic!("{events:?}") };
        assert_eq!(*conn, ours);
        assert!(if replied { *state == State::MraRepSent } else { *state == State::MraReqRcvd }, "{state}");
        // The passive side gets a REJ at once.
        let rejection = net.rejection(1);
        assert_eq!((rejection.conn, rejection.reason), (theirs, Reason::TIMEOUT));
        net.pass(Duration::from_secs(5));
        assert_eq!(net.connections(), 0);
    }
}

#[test]
fn a_slow_consumer_is_waited_for() {
    let mut net = Net::new(2);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let now = net.now;
    let params = ConnectParams { max_cm_retries: 2, ..net.params() };
    let ours = net.nodes[0].cm.connect(now, local(0x11), &params, b"").unwrap();
    // Longer than two repetitions take without an MRA.
    net.pass(Duration::from_secs(6));
    assert_eq!(net.state(0, ours), State::MraReqRcvd);
    let theirs = net.request().conn;
    assert_eq!(net.state(1, theirs), State::MraReqSent);
    net.accept(1, theirs, 0x22, b"");
    net.pass(Duration::from_secs(2));
    assert!(matches!(net.take(0)[..], [Event::Reply(_)]));
    assert_eq!((net.state(0, ours), net.state(1, theirs)), (State::MraRepSent, State::MraRepRcvd));
    let now = net.now;
    net.nodes[0].cm.establish(now, ours, b"").unwrap();
    net.deliver();
    assert!(matches!(net.take(1)[..], [Event::Established { .. }]));
}

#[test]
fn a_slow_consumer_is_not_waited_for_without_limit() {
    let (mut net, ours, theirs) = Net::asked();
    for _ in 0..40 {
        let now = net.now;
        net.nodes[1].cm.postpone(now, theirs, TimeoutCode::new(18).unwrap()).unwrap();
        net.deliver();
        net.now = net.now + Duration::from_millis(500);
    }
    assert!(net.nodes[0].cm.stats().unexpected >= 40 - 16);
    net.weather.lost = 1000;
    net.pass(Duration::from_secs(60));
    assert_eq!(net.take(0), [Event::TimedOut { conn: ours, state: State::MraReqRcvd }]);
}

#[test]
fn a_lost_reply_and_a_lost_rtu_come_again() {
    let (mut net, ours, theirs) = Net::asked();
    net.accept(1, theirs, 0x22, b"");
    net.lose();
    net.pass(Duration::from_secs(2));
    assert!(matches!(net.take(0)[..], [Event::Reply(_)]));
    let now = net.now;
    net.nodes[0].cm.establish(now, ours, b"rtu").unwrap();
    net.lose();
    assert_ne!(net.state(1, theirs), State::Established);
    // The active side answered the repeated REPs with MRAs.
    net.pass(Duration::from_secs(10));
    let events = net.take(1);
    let [Event::Established { private_data: Some(data), .. }] = events[..] else { panic!("{events:?}") };
    assert!(data.starts_with(b"rtu"));
    assert_eq!(net.take(0), []);
}

#[test]
fn data_can_come_before_the_rtu() {
    let (mut net, ours, theirs) = Net::replied();
    let now = net.now;
    net.nodes[0].cm.establish(now, ours, b"late").unwrap();
    net.drain(0);
    net.nodes[1].cm.communication_established(now, theirs).unwrap();
    assert!(matches!(
        net.nodes[1].cm.communication_established(now, theirs),
        Err(Error::Illegal(Illegal { from: State::Established, to: State::Established, .. }))
    ));
    net.deliver();
    assert_eq!(net.take(1), [Event::Established { conn: theirs, private_data: None }]);
}

#[test]
fn an_unanswered_reply_is_given_up_on_both_sides() {
    let (mut net, ours, theirs) = Net::replied();
    let now = net.now;
    net.nodes[0].cm.establish(now, ours, b"").unwrap();
    let until = now + Duration::from_secs(60);
    net.take(0);
    // All datagrams are lost until the passive side gives up and sends a REJ.
    while net.nodes[1].events.is_empty() {
        net.lose();
        net.step(until).unwrap();
    }
    assert_eq!(net.take(1), [Event::TimedOut { conn: theirs, state: State::RepSent }]);
    assert_eq!(net.state(0, ours), State::Established);
    net.deliver();
    let rejection = net.rejection(0);
    assert_eq!((rejection.conn, rejection.state), (ours, State::Established));
    assert_eq!(rejection.reason, Reason::TIMEOUT);
}

#[test]
fn a_request_handed_off_is_reported_for_the_other_listening_point() {
    let mut net = Net::new(2);
    let first = net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let second = net.nodes[1].cm.listen(ServiceId(5), Transports::RC, 1).unwrap();
    net.connect(0x11, b"data");
    net.deliver();
    let request = net.request();
    net.nodes[1].cm.handoff(request.conn, second).unwrap();
    net.drain(1);
    let again = net.request();
    assert_eq!(again, Request { listen: second, ..request });
    // The backlog of the first has room again; that of the second is full.
    net.connect(0x12, b"");
    net.deliver();
    let other = net.request();
    assert_eq!(other.listen, first);
    assert_eq!(net.nodes[1].cm.handoff(other.conn, second), Err(Error::Full(Table::Listeners)));
    assert_eq!(net.nodes[1].cm.handoff(other.conn, ListenId(0)), Err(Error::NoSuchListener));
    net.accept(1, again.conn, 0x22, b"");
    assert!(matches!(net.nodes[1].cm.handoff(again.conn, first), Err(Error::Illegal(_))));
    net.nodes[1].cm.handoff(other.conn, second).unwrap();
}

#[test]
fn calls_wait_until_the_actions_are_taken() {
    let mut net = Net::new(2);
    let now = net.now;
    let mut n = 0x11;
    let error = loop {
        let params = net.params();
        match net.nodes[0].cm.connect(now, local(n), &params, b"") {
            Ok(_) => n += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::Congested);
    assert!(n < 0x11 + 64);
    // Timers also wait, and fire once there is room.
    net.nodes[0].cm.poll(now + Duration::from_secs(10));
    net.drain(0);
    let before = net.sent.len();
    net.nodes[0].cm.poll(now + Duration::from_secs(10));
    net.drain(0);
    assert_eq!(net.sent.len() - before, before);
}

#[test]
fn private_data_is_printed_without_the_zeros_that_fill_it_up() {
    let print = |data: &[u8]| std::format!("{:?}", PrivateData::new(data));
    assert_eq!(print(&[1, 0, 0xab, 0, 0]), "PrivateData(5 bytes: [01, 00, ab])");
    assert_eq!(print(&[7; 3]), "PrivateData(3 bytes: [07, 07, 07])");
    assert_eq!(print(&[0; 2]), "PrivateData(2 bytes: [])");
    assert_eq!(print(b""), "PrivateData(0 bytes: [])");
}

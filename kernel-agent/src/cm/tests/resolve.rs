//! Service resolution.

use alloc::vec::Vec;
use core::time::Duration;

use roce::cm::Message;
use roce::cm::sidr::Status;
use roce::{PKey, QKey, ServiceId, TimeoutCode};

use super::net::{Net, SERVICE, Weather, config, qpn};
use crate::cm::*;

fn params(net: &Net) -> SidrParams {
    SidrParams {
        local_gid: net.nodes[0].gid,
        remote_gid: net.nodes[net.nodes.len() - 1].gid,
        service: SERVICE,
        ip_source_port: 0,
        pkey: PKey::DEFAULT,
        timeout: TimeoutCode::new(16).unwrap(),
        max_retries: 3,
    }
}

fn asked(net: &mut Net) -> Resolution {
    let last = net.nodes.len() - 1;
    let events = net.take(last);
    let [Event::ResolutionRequest(request)] = events[..] else { panic!("{events:?}") };
    request
}

fn answered(net: &mut Net) -> ResolutionReply {
    let events = net.take(0);
    let [Event::ResolutionReply(reply)] = events[..] else { panic!("{events:?}") };
    reply
}

#[test]
fn a_service_returns_its_queue_pair_and_key() {
    for nodes in [1, 2] {
        let mut net = Net::new(nodes);
        let listen = net.nodes[nodes - 1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
        let params = params(&net);
        let sidr = net.nodes[0].cm.sidr_open(&params, b"question").unwrap();
        let mut ids = alloc::vec::Vec::new();
        // The resolution can be used again; the peer sees the same id.
        for round in 0..2 {
            let now = net.now;
            net.nodes[0].cm.sidr_request(now, sidr).unwrap();
            net.deliver();
            let request = asked(&mut net);
            assert_eq!(
                (request.listen, request.service, request.remote_gid),
                (listen, SERVICE, net.nodes[0].gid)
            );
            assert!(request.private_data.starts_with(b"question") && request.private_data.len() == 216);
            ids.push(request.peer_request_id);
            let (status, qkey) =
                if round == 0 { (Status::Valid, QKey(0x11)) } else { (Status::NoQp, QKey(0)) };
            let cm = &mut net.nodes[nodes - 1].cm;
            let answer = (qpn(0x42), QKey(0x11));
            cm.sidr_reply(request.request, status, answer.0, answer.1, b"answer").unwrap();
            assert_eq!(
                cm.sidr_reply(request.request, status, answer.0, answer.1, b""),
                Err(Error::NoSuchResolution)
            );
            net.deliver();
            let reply = answered(&mut net);
            assert_eq!((reply.sidr, reply.status, reply.qkey), (sidr, status, qkey));
            assert_eq!(reply.qpn.get(), if round == 0 { 0x42 } else { 0 });
            assert!(reply.private_data.starts_with(b"answer") && reply.private_data.len() == 136);
        }
        assert_eq!(ids[0], ids[1]);
        assert_eq!(net.nodes[0].cm.next_deadline(), None);
        net.nodes[0].cm.sidr_close(sidr).unwrap();
        assert_eq!(net.nodes[0].cm.sidr_close(sidr), Err(Error::NoSuchResolution));
        let now = net.now;
        assert_eq!(net.nodes[0].cm.sidr_request(now, sidr), Err(Error::NoSuchResolution));
    }
}

#[test]
fn a_missing_service_and_a_silent_peer_are_distinguished() {
    let mut net = Net::new(2);
    // A listening point of a range is for connections.
    net.nodes[1].cm.listen_to_range(ServiceId(0)..=ServiceId(u64::MAX), Transports::RC, 1).unwrap();
    let params = params(&net);
    let sidr = net.nodes[0].cm.sidr_open(&params, b"").unwrap();
    let now = net.now;
    net.nodes[0].cm.sidr_request(now, sidr).unwrap();
    net.deliver();
    assert_eq!(answered(&mut net).status, Status::ServiceIdNotSupported);
    net.weather.lost = 1000;
    let before = net.sent.len();
    let now = net.now;
    net.nodes[0].cm.sidr_request(now, sidr).unwrap();
    net.pass(Duration::from_secs(10));
    assert_eq!(net.take(0), [Event::ResolutionTimedOut { sidr }]);
    assert_eq!(net.sent.len() - before, 4);
}

#[test]
fn a_closed_request_gets_no_events() {
    let mut net = Net::new(2);
    let params = params(&net);
    let sidr = net.nodes[0].cm.sidr_open(&params, b"").unwrap();
    let now = net.now;
    net.nodes[0].cm.sidr_request(now, sidr).unwrap();
    net.drain(0);
    net.nodes[0].cm.sidr_close(sidr).unwrap();
    net.deliver();
    assert_eq!(net.take(0), []);
    assert_eq!(net.nodes[0].cm.next_deadline(), None);
    assert_eq!(net.nodes[0].cm.stats().unexpected, 1);
}

#[test]
fn repeated_requests_are_reported_once_and_lost_answers_are_repeated() {
    for seed in 0..40 {
        let mut net = Net::with(2, config(), seed);
        net.weather = Weather { lost: 250, repeated: 300, late: 0 };
        net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
        let params = SidrParams { max_retries: 15, ..params(&net) };
        let sidr = net.nodes[0].cm.sidr_open(&params, b"").unwrap();
        let now = net.now;
        net.nodes[0].cm.sidr_request(now, sidr).unwrap();
        net.pass(Duration::from_millis(700));
        let Some(Event::ResolutionRequest(request)) = net.nodes[1].events.pop() else { continue };
        assert_eq!(net.take(1), []);
        net.nodes[1].cm.sidr_reply(request.request, Status::Valid, qpn(9), QKey(1), b"").unwrap();
        net.pass(Duration::from_secs(10));
        assert_eq!(net.take(1), []);
        assert_eq!(answered(&mut net).qpn, qpn(9));
    }
}

#[test]
fn an_ip_service_adds_and_removes_its_header() {
    let mut net = Net::new(2);
    let service = ServiceId::ip_cm(ServiceId::UDP, 53);
    net.nodes[1].cm.listen(service, Transports::RC, 1).unwrap();
    let params = SidrParams { service, ip_source_port: 9, ..params(&net) };
    let too_long = Error::PrivateData { len: 181, max: 180 };
    assert_eq!(net.nodes[0].cm.sidr_open(&params, &[1; 181]), Err(too_long));
    let sidr = net.nodes[0].cm.sidr_open(&params, &[1; 180]).unwrap();
    let now = net.now;
    net.nodes[0].cm.sidr_request(now, sidr).unwrap();
    net.deliver();
    let request = asked(&mut net);
    assert_eq!(request.ip.unwrap().src_port, 9);
    assert_eq!(request.private_data[..], [1; 180]);
}

#[test]
fn a_peer_that_asks_too_often_replaces_its_own_requests() {
    let mut net = Net::with(3, Config { max_resolutions: 4, ..config() }, 1);
    net.nodes[2].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let sidrs = [0, 1].map(|node| {
        let params = SidrParams { local_gid: net.nodes[node].gid, ..params(&net) };
        net.nodes[node].cm.sidr_open(&params, b"").unwrap()
    });
    let mut ask = |node: usize| {
        let now = net.now;
        net.nodes[node].cm.sidr_request(now, sidrs[node]).unwrap();
        net.deliver();
        let events = net.take(2);
        let [Event::ResolutionRequest(request)] = events[..] else { panic!("{events:?}") };
        request.request
    };
    let honest = ask(1);
    let flood: Vec<_> = (0..10).map(|_| ask(0)).collect();
    let cm = &net.nodes[2].cm;
    assert_eq!(cm.counts().resolution_requests, 4);
    assert!(cm.sidr_waits(honest) && flood[7..].iter().all(|&id| cm.sidr_waits(id)));
}

#[test]
fn the_oldest_request_is_dropped_for_a_new_one() {
    let mut net = Net::with(2, Config { max_resolutions: 2, ..config() }, 1);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let params = params(&net);
    let sidr = net.nodes[0].cm.sidr_open(&params, b"").unwrap();
    net.nodes[0].cm.sidr_open(&params, b"").unwrap();
    assert_eq!(net.nodes[0].cm.sidr_open(&params, b""), Err(Error::Full(Table::Resolutions)));
    let mut requests = alloc::vec::Vec::new();
    for _ in 0..3 {
        let now = net.now;
        net.nodes[0].cm.sidr_request(now, sidr).unwrap();
        net.deliver();
        requests.push(asked(&mut net).request);
    }
    assert_eq!(net.nodes[1].cm.counts().resolution_requests, 2);
    let cm = &mut net.nodes[1].cm;
    assert_eq!(
        cm.sidr_reply(requests[0], Status::Rejected, qpn(2), QKey(0), b""),
        Err(Error::NoSuchResolution)
    );
    // An answer to an earlier transaction of the same request counts.
    cm.sidr_reply(requests[1], Status::Rejected, qpn(2), QKey(0), b"").unwrap();
    net.deliver();
    assert_eq!(answered(&mut net).status, Status::Rejected);
    let before = net.sent.len();
    net.pass(Duration::from_secs(5));
    let repeated = net.sent[before..].iter().filter(|message| matches!(message, Message::SidrReq(_))).count();
    assert_eq!(repeated, 0);
}

#[test]
fn a_request_that_is_discarded_is_forgotten_and_reported_when_it_comes_again() {
    let mut net = Net::new(2);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    let params = params(&net);
    let sidr = net.nodes[0].cm.sidr_open(&params, b"").unwrap();
    let now = net.now;
    net.nodes[0].cm.sidr_request(now, sidr).unwrap();
    net.deliver();
    let first = asked(&mut net).request;
    let cm = &mut net.nodes[1].cm;
    cm.sidr_discard(first);
    assert_eq!((cm.sidr_waits(first), cm.counts().resolution_requests), (false, 0));
    assert_eq!(cm.sidr_reply(first, Status::Valid, qpn(9), QKey(1), b""), Err(Error::NoSuchResolution));
    net.again(|message| matches!(message, Message::SidrReq(_)));
    assert_ne!(asked(&mut net).request, first);
}

//! Ending connections, and attempts.

use alloc::vec;
use core::time::Duration;

use roce::cm::rej::{self, Reason};
use roce::cm::{CommId, Datagram, Message, lap, path};
use roce::{Gid, Path, Qpn, TimeoutCode};

use super::net::{Net, SERVICE, local, qpn};
use crate::cm::*;

#[test]
fn a_disconnect_is_answered_and_both_ends_go_through_time_wait() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"bye").unwrap();
    assert_eq!(net.state(0, ours), State::DreqSent);
    net.deliver();
    assert_eq!((net.state(0, ours), net.state(1, theirs)), (State::TimeWait, State::TimeWait));
    let events = net.take(1);
    let [Event::Disconnected { conn, cause: Cause::Peer, private_data }] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(conn, theirs);
    assert!(private_data.starts_with(b"bye") && private_data.len() == 220);
    let events = net.take(0);
    assert!(matches!(events[..], [Event::Released { answered: true, .. }]), "{events:?}");
    assert_eq!(net.nodes[0].cm.counts().time_wait, 1);
    net.pass(Duration::from_secs(1));
    assert_eq!(net.take(0), [Event::TimeWaitOver { conn: ours, local_qpn: qpn(0x11) }]);
    assert_eq!(net.take(1), [Event::TimeWaitOver { conn: theirs, local_qpn: qpn(0x22) }]);
    assert_eq!((net.state(0, ours), net.state(1, theirs)), (State::Idle, State::Idle));
}

#[test]
fn a_disconnect_without_the_rtu_before_it_says_that_there_was_a_connection() {
    let (mut net, ours, theirs) = Net::replied();
    let now = net.now;
    // The RTU is held back, and the consumer ends the connection before it goes out.
    net.nodes[0].cm.prepare_establish(now, ours, b"").unwrap();
    net.nodes[0].cm.disconnect(now, ours, b"bye").unwrap();
    net.deliver();
    let events = net.take(1);
    let [
        Event::Established { conn, private_data: None },
        Event::Disconnected { conn: ended, cause: Cause::Peer, private_data },
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((conn, ended, &private_data[..3]), (theirs, theirs, &b"bye"[..]));
    assert_eq!(net.state(1, theirs), State::TimeWait);
}

#[test]
fn a_disconnect_that_is_held_back_goes_out_by_release_only() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let now = net.now;
    net.nodes[0].cm.prepare_disconnect(now, ours, b"bye").unwrap();
    net.pass(Duration::from_secs(5));
    assert_eq!((net.state(0, ours), net.state(1, theirs)), (State::DreqSent, State::Established));
    let now = net.now;
    net.nodes[0].cm.release(now, ours);
    net.deliver();
    assert!(matches!(net.take(1)[..], [Event::Disconnected { conn, .. }] if conn == theirs));
}

#[test]
fn the_peer_learns_whether_a_consumer_or_an_error_ended_the_connection() {
    for broken in [false, true] {
        let mut net = Net::new(2);
        let (ours, theirs) = net.connected(0x11, 0x22);
        let now = net.now;
        // Nothing that a consumer sends looks like an error.
        let data = b"IT-BROKE".repeat(27);
        match broken {
            true => net.nodes[0].cm.break_off(now, ours, Duration::ZERO).unwrap(),
            false => net.nodes[0].cm.disconnect(now, ours, &data[..DISCONNECT_PRIVATE_DATA_LEN]).unwrap(),
        }
        net.deliver();
        let events = net.take(1);
        let [Event::Disconnected { conn, cause, private_data }] = events[..] else { panic!("{events:?}") };
        let expected = if broken { Cause::Broken } else { Cause::Peer };
        assert_eq!((conn, cause, private_data.is_empty()), (theirs, expected, broken));
        assert!(matches!(net.take(0)[..], [Event::Released { answered: true, .. }]));
    }
}

#[test]
fn a_dreq_may_wait_for_the_peers() {
    let patience = Duration::from_millis(300);
    // The peer's comes in time.
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let now = net.now;
    net.nodes[0].cm.break_off(now, ours, patience).unwrap();
    net.pass(patience / 2);
    assert_eq!((net.state(0, ours), net.state(1, theirs)), (State::DreqSent, State::Established));
    let now = net.now;
    net.nodes[1].cm.break_off(now, theirs, Duration::ZERO).unwrap();
    net.pass(patience);
    assert!(matches!(net.take(0)[..], [Event::Released { conn, answered: true, .. }, ..] if conn == ours));
    assert!(matches!(net.take(1)[..], [Event::Released { conn, answered: true, .. }, ..] if conn == theirs));
    // It does not come: ours is sent, and sent again.
    for abandoned in [false, true] {
        let mut net = Net::new(2);
        let (ours, theirs) = net.connected(0x11, 0x22);
        let now = net.now;
        net.nodes[0].cm.break_off(now, ours, patience).unwrap();
        net.pass(patience - Duration::from_millis(1));
        assert!(net.take(1).is_empty());
        if abandoned {
            // The queue pair is given up, so there is nothing to wait for.
            let now = net.now;
            net.nodes[0].cm.abandon(now, ours).unwrap();
        } else {
            net.pass(Duration::from_millis(1));
            net.lose();
            net.pass(Duration::from_secs(2));
        }
        net.deliver();
        let events = net.take(1);
        let [Event::Disconnected { conn, cause: Cause::Broken, .. }, ..] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(conn, theirs);
    }
}

#[test]
fn both_may_disconnect_at_once() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"a").unwrap();
    net.nodes[1].cm.disconnect(now, theirs, b"b").unwrap();
    net.deliver();
    for (node, data) in [(0, b'b'), (1, b'a')] {
        let events = net.take(node);
        let [Event::Released { answered: true, private_data, .. }] = events[..] else { panic!("{events:?}") };
        assert_eq!(private_data[0], data);
    }
}

#[test]
fn a_lost_dreq_or_drep_comes_again_and_a_silent_peer_is_given_up() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.lose();
    net.pass(Duration::from_millis(1_100));
    assert!(matches!(net.take(1)[..], [Event::Disconnected { conn, .. }, ..] if conn == theirs));
    assert!(matches!(net.take(0)[..], [Event::Released { answered: true, .. }, ..]));

    let (ours, _) = {
        net.pass(Duration::from_secs(1));
        net.take(0);
        net.take(1);
        net.connected(0x11, 0x22)
    };
    net.weather.lost = 1000;
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.pass(Duration::from_secs(30));
    let events = net.take(0);
    assert!(
        matches!(events[..], [Event::Released { answered: false, .. }, Event::TimeWaitOver { .. }]),
        "{events:?}"
    );
    assert_eq!(net.nodes[0].cm.counts(), Counts::default());
}

#[test]
fn a_dreq_is_answered_again_in_time_wait_and_after_it() {
    let mut net = Net::new(2);
    let (ours, _) = net.connected(0x11, 0x22);
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.drain(0);
    let Some(&dreq @ Message::Dreq(_)) = net.sent.last() else { panic!() };
    net.deliver();
    let mad = Datagram { tid: 5, message: dreq }.emit();
    let from = Arrival { local_gid: net.nodes[1].gid, remote_gid: net.nodes[0].gid, remote_qp: Qpn::GSI };
    for _ in 0..2 {
        let before = net.sent.len();
        let now = net.now;
        net.nodes[1].cm.receive(now, &from, &mad);
        net.drain(1);
        assert!(matches!(net.sent[before..], [Message::Drep(_)]));
        net.pass(Duration::from_secs(1));
    }
    assert_eq!(net.nodes[1].cm.stats().unexpected, 1);
}

#[test]
fn a_dreq_for_another_queue_pair_or_from_another_port_ends_nothing() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.drain(0);
    let Some(&Message::Dreq(dreq)) = net.sent.last() else { panic!() };
    net.lose();
    let from = Arrival { local_gid: net.nodes[1].gid, remote_gid: net.nodes[0].gid, remote_qp: Qpn::GSI };
    let other_qp = roce::cm::dreq::Repr { remote_qpn: qpn(0x23), ..dreq };
    net.nodes[1].cm.receive(now, &from, &Datagram { tid: 5, message: other_qp.into() }.emit());
    let elsewhere = Arrival { remote_gid: Gid([7; 16]), ..from };
    net.nodes[1].cm.receive(now, &elsewhere, &Datagram { tid: 5, message: dreq.into() }.emit());
    let no_manager = Arrival { remote_qp: qpn(0x11), ..from };
    net.nodes[1].cm.receive(now, &no_manager, &Datagram { tid: 5, message: dreq.into() }.emit());
    assert_eq!(net.state(1, theirs), State::Established);
    let stats = net.nodes[1].cm.stats();
    assert_eq!((stats.unexpected, stats.malformed), (2, 1));
}

#[test]
fn an_alternate_path_is_declined_while_connected_and_ignored_otherwise() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let Some(ids) = net.sent.iter().find_map(|message| match message {
        Message::Rep(rep) => Some((rep.remote_comm_id, rep.local_comm_id)),
        _ => None,
    }) else {
        panic!("no REP")
    };
    let (us, them) = (net.nodes[0].gid, net.nodes[1].gid);
    let from = Arrival { local_gid: them, remote_gid: us, remote_qp: Qpn::GSI };
    let lap = lap::Repr {
        local_comm_id: ids.0,
        remote_comm_id: ids.1,
        remote_qpn: qpn(0x22),
        remote_cm_timeout: TimeoutCode::from_low_bits(10),
        path: path::Repr {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            path: Path::new(us, them),
            local_ack_timeout: TimeoutCode::from_low_bits(10),
        },
        private_data: [0; lap::PRIVATE_DATA_LEN],
    };
    let mad = Datagram { tid: 77, message: lap.into() }.emit();
    let (before, now) = (net.sent.len(), net.now);
    net.nodes[1].cm.receive(now, &from, &mad);
    let Some(Action::Send(out)) = net.nodes[1].cm.next_action() else { panic!("no answer") };
    let answer = Datagram::parse(&out.mad).unwrap();
    let Message::Apr(apr) = answer.message else { panic!("{answer:?}") };
    assert_eq!((answer.tid, out.local_gid, out.remote_gid), (77, them, us));
    assert_eq!((apr.local_comm_id, apr.remote_comm_id), (ids.1, ids.0));
    assert_eq!((apr.status, apr.info_len), (lap::AprRepr::NOT_SUPPORTED, 0));
    assert_eq!((net.state(0, ours), net.state(1, theirs)), (State::Established, State::Established));
    // In time wait there is no connection whose path could change.
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.deliver();
    let unexpected = net.nodes[1].cm.stats().unexpected;
    net.nodes[1].cm.receive(net.now, &from, &mad);
    net.drain(1);
    assert_eq!(net.nodes[1].cm.stats().unexpected, unexpected + 1);
    assert!(!net.sent[before..].iter().any(|message| matches!(message, Message::Apr(_))));
}

#[test]
fn a_rejection_reaches_the_active_side_even_when_it_is_lost_once() {
    let (mut net, ours, theirs) = Net::asked();
    let now = net.now;
    net.nodes[1].cm.reject(now, theirs, Reason::CONSUMER_DEFINED, b"ari", b"no").unwrap();
    assert_eq!(net.nodes[1].cm.counts().connections, 0);
    net.lose();
    net.pass(Duration::from_secs(2));
    // The REQ was repeated, but not reported again.
    assert_eq!(net.take(1), []);
    let rejection = net.rejection(0);
    assert_eq!((rejection.conn, rejection.reason), (ours, Reason::CONSUMER_DEFINED));
    assert_eq!(rejection.ari(), b"ari");
    assert!(rejection.private_data.starts_with(b"no") && rejection.private_data.len() == 148);
}

/// The peer's rejection of a connection of a node, from an end with this name.
fn rejection(net: &Net, node: usize, conn: ConnectionId, local_comm_id: CommId) -> rej::Repr {
    rej::Repr {
        local_comm_id,
        remote_comm_id: net.nodes[node].cm.conns.get(conn).unwrap().local_comm,
        rejected: rej::Rejected::Other,
        ari_len: 0,
        reason: Reason::CONSUMER_DEFINED,
        ari: [0; 72],
        private_data: [0; 148],
    }
}

#[test]
fn a_rejection_may_leave_its_senders_end_unnamed_only_while_that_is_not_known() {
    let (mut net, ours, _) = Net::replied();
    net.take(0);
    net.say(0, rejection(&net, 0, ours, CommId(0)));
    assert_eq!((net.take(0), net.state(0, ours)), (vec![], State::RepRcvd));
    let (mut net, ours, _) = Net::asked();
    net.say(0, rejection(&net, 0, ours, CommId(0)));
    assert_eq!(net.rejection(0).conn, ours);
}

#[test]
fn a_rejection_says_which_message_it_is_about() {
    let rejected = |net: &Net| match net.sent.last() {
        Some(Message::Rej(rej)) => rej.rejected,
        other => panic!("{other:?}"),
    };
    let reason = Reason::CONSUMER_DEFINED;
    let short = TimeoutCode::new(10).unwrap();
    for postpones in [false, true] {
        let (mut net, _, theirs) = Net::asked();
        let now = net.now;
        if postpones {
            net.nodes[1].cm.postpone(now, theirs, short).unwrap();
        }
        net.nodes[1].cm.reject(now, theirs, reason, b"", b"").unwrap();
        net.deliver();
        assert_eq!(rejected(&net), rej::Rejected::Req);
        let (mut net, ours, _) = Net::replied();
        if postpones {
            net.nodes[0].cm.postpone(now, ours, short).unwrap();
        }
        net.nodes[0].cm.reject(now, ours, reason, b"", b"").unwrap();
        net.deliver();
        assert_eq!(rejected(&net), rej::Rejected::Rep);
    }
    // No message of a peer that does not answer is rejected.
    let mut net = Net::new(2);
    net.weather.lost = 1000;
    net.connect(0x11, b"");
    net.pass(Duration::from_secs(120));
    assert_eq!(rejected(&net), rej::Rejected::Other);
}

#[test]
fn a_rejection_answers_a_disconnect_too() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.lose();
    let name = net.nodes[1].cm.conns.get(theirs).unwrap().local_comm;
    net.say(0, rejection(&net, 0, ours, name));
    let released = Event::Released { conn: ours, answered: true, private_data: PrivateData::EMPTY };
    assert_eq!((net.take(0), net.state(0, ours)), (vec![released], State::TimeWait));
}

#[test]
fn the_active_consumer_can_reject_the_reply() {
    let (mut net, ours, theirs) = Net::replied();
    net.take(0);
    let now = net.now;
    net.nodes[0].cm.reject(now, ours, Reason::CONSUMER_DEFINED, &[], b"changed my mind").unwrap();
    net.deliver();
    let rejection = net.rejection(1);
    assert_eq!((rejection.conn, rejection.state), (theirs, State::RepSent));
    assert!(rejection.private_data.starts_with(b"changed"));
    net.pass(Duration::from_secs(1));
    assert_eq!((net.take(0), net.take(1)), (alloc::vec![], alloc::vec![]));
    assert_eq!(net.connections(), 0);
}

#[test]
fn an_attempt_is_withdrawn_in_each_of_its_states() {
    // How many datagrams of the handshake arrive before the active side disconnects.
    for arrived in 0..3 {
        let mut net = Net::new(2);
        net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
        let ours = net.connect(0x11, b"");
        if arrived > 0 {
            net.deliver();
        }
        let theirs = (arrived > 0).then(|| net.request().conn);
        if arrived > 1 {
            net.accept(1, theirs.unwrap(), 0x22, b"");
            net.deliver();
            net.take(0);
        }
        let now = net.now;
        net.nodes[0].cm.disconnect(now, ours, b"never mind").unwrap();
        if arrived == 0 {
            // The REQ is lost or has not arrived yet.
            net.lose();
        }
        net.deliver();
        let events = net.take(1);
        match (arrived, &events[..]) {
            (0, []) => {}
            (1 | 2, [Event::Rejected(rejection)]) => {
                assert_eq!(Some(rejection.conn), theirs);
                // No consumer rejected, so this is not the consumer's rejection.
                assert_eq!(rejection.reason, Reason::TIMEOUT);
                assert!(rejection.private_data.iter().all(|&byte| byte == 0));
            }
            _ => panic!("{arrived}: {events:?}"),
        }
        net.pass(Duration::from_secs(1));
        assert_eq!(net.take(0), []);
        assert_eq!(net.connections(), 0);
    }
}

#[test]
fn a_reply_to_a_withdrawn_attempt_is_rejected() {
    let (mut net, ours, theirs) = Net::asked();
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.lose();
    net.accept(1, theirs, 0x22, b"");
    net.deliver();
    assert_eq!(net.take(0), []);
    let rejection = net.rejection(1);
    assert_eq!((rejection.conn, rejection.reason), (theirs, Reason::INVALID_COMM_ID));
}

#[test]
fn an_abandoned_connection_informs_only_the_peer() {
    // Established, on either side; waiting for the reply; waiting for the RTU; asked for.
    for case in 0..5 {
        let mut net = Net::new(2);
        net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
        let (ours, theirs) = if case < 2 {
            net.connected(0x11, 0x22)
        } else {
            let ours = net.connect(0x11, b"");
            net.deliver();
            let theirs = net.request().conn;
            if case == 3 {
                net.accept(1, theirs, 0x22, b"");
                net.drain(1);
                net.lose();
            }
            (ours, theirs)
        };
        let (node, conn) = if matches!(case, 0 | 2) { (0, ours) } else { (1, theirs) };
        let now = net.now;
        net.nodes[node].cm.abandon(now, conn).unwrap();
        net.deliver();
        let events = net.take(1 - node);
        let wanted = match (case, &events[..]) {
            (0 | 1, [Event::Disconnected { cause: Cause::Peer, .. }]) => true,
            (2..=4, [Event::Rejected(rejection)]) => rejection.reason == Reason::TIMEOUT,
            _ => false,
        };
        assert!(wanted, "case {case}: {events:?}");
        // The queue pair is free at once.
        let back = Path::new(net.nodes[node].gid, net.nodes[1 - node].gid);
        let qp = local(if node == 0 { 0x11 } else { 0x22 });
        let now = net.now;
        let next = net.nodes[node].cm.connect(now, qp, &ConnectParams::new(back, SERVICE), b"").unwrap();
        net.nodes[node].cm.abandon(now, next).unwrap();
        net.lose();
        net.pass(Duration::from_secs(5));
        assert_eq!(net.take(node), [], "case {case}");
        assert_eq!(net.connections(), 0);
    }
}

#[test]
fn a_stale_connection_ends_when_its_queue_pair_connects_again() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    // The active side forgets the connection; its queue pair connects again.
    net.weather.lost = 1000;
    let now = net.now;
    net.nodes[0].cm.abandon(now, ours).unwrap();
    net.pass(Duration::from_secs(30));
    net.weather.lost = 0;
    net.connect(0x11, b"");
    net.deliver();
    let events = net.take(1);
    assert!(
        matches!(events[..], [Event::Disconnected { conn, cause: Cause::Stale, .. }] if conn == theirs),
        "{events:?}"
    );
    assert_eq!(net.rejection(0).reason, Reason::STALE_CONNECTION);
    net.pass(Duration::from_secs(1));
    assert_eq!(net.nodes[1].cm.counts().connections, 0);
    net.connected(0x11, 0x22);
}

#[test]
fn a_reply_from_a_queue_pair_thought_connected_ends_both() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    net.weather.lost = 1000;
    let now = net.now;
    net.nodes[1].cm.abandon(now, theirs).unwrap();
    net.pass(Duration::from_secs(30));
    net.weather.lost = 0;
    let second = net.connect(0x12, b"");
    net.deliver();
    let request = net.request();
    net.accept(1, request.conn, 0x22, b"");
    net.deliver();
    let events = net.take(0);
    assert!(
        matches!(events[..], [
            Event::TimedOut { conn: other, .. },
            Event::Disconnected { conn, cause: Cause::Stale, .. },
        ] if conn == ours && other == second),
        "{events:?}"
    );
    assert_eq!(net.rejection(1).reason, Reason::STALE_CONNECTION);
}

#[test]
fn time_wait_keeps_the_same_two_queue_pairs_apart_if_asked_to() {
    let mut net = Net::new(2);
    let (ours, _) = net.connected(0x11, 0x22);
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.deliver();
    net.take(0);
    net.take(1);
    net.connect(0x11, b"");
    net.deliver();
    let theirs = net.request().conn;
    let careful = AcceptParams { ignore_time_wait: false, ..AcceptParams::default() };
    let now = net.now;
    let refused = net.nodes[1].cm.accept(now, theirs, local(0x22), &careful, b"");
    assert_eq!(refused, Err(Error::TimeWait(qpn(0x22))));
    assert_eq!(net.state(1, theirs), State::ReqRcvd);
    net.nodes[1].cm.accept(now, theirs, local(0x23), &careful, b"").unwrap();
    // By default it does not.
    net.connect(0x12, b"");
    net.deliver();
    net.take(1);
    net.pass(Duration::from_secs(2));
}

#[test]
fn listening_may_end_while_a_request_waits() {
    let mut net = Net::new(2);
    let listen = net.nodes[1].cm.listen(SERVICE, Transports::RC, 1).unwrap();
    net.connect(0x11, b"");
    net.deliver();
    let theirs = net.request().conn;
    net.nodes[1].cm.stop_listen(listen).unwrap();
    net.accept(1, theirs, 0x22, b"");
    net.deliver();
    assert!(matches!(net.take(0)[..], [Event::Reply(_)]));
}

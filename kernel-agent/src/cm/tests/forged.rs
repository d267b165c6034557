//! What a stranger can do that forges a peer's address and sees nothing of what is sent to it: it
//! knows addresses, services and queue pair numbers, and guesses everything else.

use alloc::vec::Vec;
use core::time::Duration;

use platform::Instant;
use roce::cm::rej::{Reason, Rejected};
use roce::cm::{CommId, Datagram, Message, ReadDepths, dreq, lap, mra, path, rej, rep, req, rtu};
use roce::{Path, QKey, Qpn, TimeoutCode};

use super::net::{Net, SERVICE, config, local, qpn};
use super::transitions::{STATES, reach};
use crate::cm::*;

/// A communication id that a message names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    None,
    Guessed,
    Right,
}

const IDS: [Id; 3] = [Id::None, Id::Guessed, Id::Right];

/// Messages that end, delay or confirm something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mra(mra::Acknowledged),
    Rep,
    Rtu,
    Rej(Rejected, Reason),
    Dreq,
    Drep,
    Lap,
}

fn kinds() -> Vec<Kind> {
    let mut kinds = alloc::vec![Kind::Rep, Kind::Rtu, Kind::Dreq, Kind::Drep, Kind::Lap];
    kinds.extend([mra::Acknowledged::Req, mra::Acknowledged::Rep].map(Kind::Mra));
    for about in [Rejected::Req, Rejected::Rep, Rejected::Other] {
        let reasons =
            [Reason::TIMEOUT, Reason::CONSUMER_DEFINED, Reason::STALE_CONNECTION, Reason::INVALID_COMM_ID];
        kinds.extend(reasons.map(|reason| Kind::Rej(about, reason)));
    }
    kinds
}

fn build(kind: Kind, theirs: CommId, ours: CommId, our_qpn: Qpn, path: Path) -> Message {
    let (local_comm_id, remote_comm_id) = (theirs, ours);
    match kind {
        Kind::Mra(acknowledged) => Message::Mra(mra::Repr {
            local_comm_id,
            remote_comm_id,
            acknowledged,
            service_timeout: TimeoutCode::new(31).unwrap(),
            private_data: [0; 222],
        }),
        Kind::Rep => Message::Rep(rep::Repr {
            local_comm_id,
            remote_comm_id,
            local_qkey: QKey(0),
            local_qpn: qpn(0x99),
            local_eecn: 0,
            starting_psn: roce::Psn::new(0),
            depths: ReadDepths::default(),
            target_ack_delay: TimeoutCode::default(),
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: 0,
            srq: false,
            local_ca_guid: 0,
            private_data: [0; 196],
        }),
        Kind::Rtu => Message::Rtu(rtu::Rtu { local_comm_id, remote_comm_id, private_data: [0; 224] }),
        Kind::Rej(rejected, reason) => Message::Rej(rej::Repr {
            local_comm_id,
            remote_comm_id,
            rejected,
            ari_len: 0,
            reason,
            ari: [0; 72],
            private_data: [0; 148],
        }),
        Kind::Dreq => Message::Dreq(dreq::Repr {
            local_comm_id,
            remote_comm_id,
            remote_qpn: our_qpn,
            private_data: [0; 220],
        }),
        Kind::Drep => Message::Drep(rtu::Drep { local_comm_id, remote_comm_id, private_data: [0; 224] }),
        Kind::Lap => Message::Lap(lap::Repr {
            local_comm_id,
            remote_comm_id,
            remote_qpn: our_qpn,
            remote_cm_timeout: TimeoutCode::default(),
            path: path::Repr { local_lid: 0, remote_lid: 0, path, local_ack_timeout: TimeoutCode::default() },
            private_data: [0; lap::PRIVATE_DATA_LEN],
        }),
    }
}

/// All of a connection that a message could change.
#[derive(Debug, PartialEq)]
struct Snapshot {
    state: State,
    remote: (Option<CommId>, Option<Qpn>),
    times: (Option<Instant>, Option<Instant>),
    left: (u8, u8),
    held: bool,
    events: Vec<Event>,
}

fn snapshot(net: &mut Net, node: usize, id: ConnectionId) -> Snapshot {
    net.drain(node);
    let events = net.take(node);
    let conn = net.nodes[node].cm.conns.get(id).expect("it is still there");
    Snapshot {
        state: conn.state,
        remote: (conn.remote_comm, conn.remote_qpn),
        times: (conn.timer, conn.limit),
        left: (conn.retries_left, conn.mras_left),
        held: conn.held,
        events,
    }
}

/// What proves that a message's sender belongs to the connection. Both ids do; before that, what
/// the peer can know, which nobody else can guess.
fn proves(state: State, kind: Kind, [theirs, ours]: [Id; 2], tid: Id) -> bool {
    use State::{MraRepRcvd, MraReqRcvd, MraReqSent, RepSent, ReqRcvd, ReqSent};
    match (state, kind) {
        // The peer's id is not known here before its REP.
        (ReqSent | MraReqRcvd, _) => ours == Id::Right,
        // A peer that has heard nothing of us withdraws its REQ: it knows the transaction.
        (ReqRcvd | MraReqSent | RepSent | MraRepRcvd, Kind::Rej(Rejected::Other, Reason::TIMEOUT))
            if ours == Id::None =>
        {
            theirs == Id::Right && tid == Id::Right
        }
        (RepSent | MraRepRcvd, Kind::Rej(Rejected::Rep, Reason::TIMEOUT)) if ours == Id::None => {
            theirs == Id::Right && tid == Id::Right
        }
        _ => theirs == Id::Right && ours == Id::Right,
    }
}

#[test]
fn a_message_that_does_not_prove_to_know_the_connection_changes_nothing_in_any_state() {
    let mut forged = 0;
    for state in STATES {
        let (mut net, node, id) = reach(state);
        let clean = snapshot(&mut net, node, id);
        let conn = net.nodes[node].cm.conns.get(id).unwrap();
        let known = (conn.remote_comm, conn.local_comm, conn.local_qpn.unwrap_or(qpn(0x33)), conn.tid);
        let path = Path::new(net.nodes[1 - node].gid, net.nodes[node].gid);
        let from = Arrival { local_gid: path.remote_gid, remote_gid: path.local_gid, remote_qp: Qpn::GSI };
        let named = |id, right: u32| match id {
            Id::None => CommId(0),
            Id::Guessed => CommId(0x5555),
            Id::Right => CommId(right),
        };
        for kind in kinds() {
            for (theirs, ours, tid) in
                IDS.into_iter().flat_map(|a| IDS.into_iter().flat_map(move |b| IDS.map(|c| (a, b, c))))
            {
                let unknown = theirs == Id::Right && known.0.is_none();
                if proves(state, kind, [theirs, ours], tid) || unknown || tid == Id::None {
                    continue;
                }
                let [theirs, ours] = [named(theirs, known.0.unwrap_or_default().0), named(ours, known.1.0)];
                let message = build(kind, theirs, ours, known.2, path);
                let tid = if tid == Id::Right { known.3 } else { 3 };
                let mad = Datagram { tid, message }.emit();
                let now = net.now;
                net.nodes[node].cm.receive(now, &from, &mad);
                let after = snapshot(&mut net, node, id);
                assert_eq!(
                    after, clean,
                    "{state}, {kind:?} from {theirs:?} to {ours:?}, transaction {tid:x}"
                );
                forged += 1;
            }
        }
    }
    assert!(forged > 1000, "{forged}");
}

/// A REJ that fits the message that it rejects, and one that does not, from the peer itself.
#[test]
fn a_rejection_fits_the_message_that_was_sent_last() {
    for state in STATES {
        if state.next(Trigger::Rej).is_err() {
            continue;
        }
        for about in [Rejected::Req, Rejected::Rep, Rejected::Other] {
            let (mut net, node, id) = reach(state);
            let conn = net.nodes[node].cm.conns.get(id).unwrap();
            let (theirs, ours) = (conn.remote_comm.unwrap_or_default(), conn.local_comm);
            let kind = Kind::Rej(about, Reason::CONSUMER_DEFINED);
            let path = Path::new(net.nodes[1 - node].gid, net.nodes[node].gid);
            net.say(node, build(kind, theirs, ours, qpn(2), path));
            let ended = net.state(node, id) != state;
            let fits = match state {
                State::ReqSent | State::MraReqRcvd => about != Rejected::Rep,
                State::RepSent | State::MraRepRcvd => about != Rejected::Req,
                _ => about == Rejected::Other,
            };
            assert_eq!(ended, fits, "{state}, about {about:?}");
        }
    }
}

/// The REQ of a network's first node to the last one, as if another attempt sent it.
fn req_again(net: &Net, comm: u32, tid: u64) -> [u8; 256] {
    let (_, mad) = net.last(|message| matches!(message, Message::Req(_)));
    let Message::Req(req) = Datagram::parse(&mad).unwrap().message else { panic!() };
    let message = Message::Req(req::Repr { local_comm_id: CommId(comm), ..req });
    Datagram { tid, message }.emit()
}

#[test]
fn a_forged_request_with_the_queue_pair_of_a_connection_does_not_end_it() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let (from, original) = net.last(|message| matches!(message, Message::Req(_)));
    let known = Datagram::parse(&original).unwrap();
    let Message::Req(req) = known.message else { panic!() };
    for (comm, tid) in [(0x7777, 5), (req.local_comm_id.0, 6)] {
        for _ in 0..20 {
            let mad = req_again(&net, comm, tid);
            let now = net.now;
            net.nodes[1].cm.receive(now, &from, &mad);
            net.pass(Duration::from_millis(100));
        }
        assert_eq!((net.state(0, ours), net.state(1, theirs)), (State::Established, State::Established));
        assert_eq!((net.take(0), net.take(1)), (Vec::new(), Vec::new()));
        let Some(Message::Rej(rej)) = net.sent.iter().rev().find(|m| matches!(m, Message::Rej(_))) else {
            panic!("it was not answered")
        };
        assert_eq!(rej.reason, Reason::STALE_CONNECTION);
    }
}

#[test]
fn a_peer_that_forgot_a_connection_ends_it_by_its_next_request() {
    for keeps_its_id in [false, true] {
        let mut net = Net::new(2);
        let (_, theirs) = net.connected(0x11, 0x22);
        let (from, original) = net.last(|message| matches!(message, Message::Req(_)));
        let Message::Req(req) = Datagram::parse(&original).unwrap().message else { panic!() };
        // The peer starts anew.
        net.nodes[0].cm = Cm::new(config());
        let comm = if keeps_its_id { req.local_comm_id.0 } else { 0x7777 };
        let mad = req_again(&net, comm, 5);
        let now = net.now;
        net.nodes[1].cm.receive(now, &from, &mad);
        net.pass(Duration::from_secs(1));
        let events = net.take(1);
        let Some(Event::Disconnected { conn, cause: Cause::Stale, .. }) = events.first() else {
            panic!("{events:?}")
        };
        assert_eq!(*conn, theirs);
    }
}

#[test]
fn a_forged_answer_to_the_question_whether_a_connection_is_stale_does_not_end_it() {
    let mut net = Net::new(2);
    let (_, theirs) = net.connected(0x11, 0x22);
    let (from, _) = net.last(|message| matches!(message, Message::Req(_)));
    let mad = req_again(&net, 0x7777, 5);
    let now = net.now;
    net.nodes[1].cm.receive(now, &from, &mad);
    net.lose();
    // The peer itself, of a connection that it has, with another transaction.
    let conn = net.nodes[1].cm.conns.get(theirs).unwrap();
    let ids = (conn.remote_comm.unwrap(), conn.local_comm);
    let path = Path::new(net.nodes[0].gid, net.nodes[1].gid);
    net.say(1, build(Kind::Drep, ids.0, ids.1, qpn(2), path));
    assert_eq!((net.state(1, theirs), net.take(1)), (State::Established, Vec::new()));
}

#[test]
fn an_id_shows_nothing_of_the_next_and_is_not_the_same_after_65536_others() {
    let mut net = Net::new(2);
    let (mut ids, mut tids) = (Vec::new(), Vec::new());
    for n in 0..if cfg!(miri) { 20 } else { 66_000 } {
        let conn = net.connect(0x11, b"");
        let entry = net.nodes[0].cm.conns.get(conn).unwrap();
        ids.push(entry.local_comm.0);
        tids.push(entry.tid);
        let now = net.now;
        net.nodes[0].cm.abandon(now, conn).unwrap();
        while net.nodes[0].cm.next_action().is_some() {}
        assert!(n == 0 || ids[n] != ids[0]);
    }
    // The place of each was the same. What two neighbours differ in is not what the next differ in.
    let steps = |ids: &[u32]| ids.windows(2).map(|pair| pair[0] ^ pair[1]).collect::<Vec<_>>();
    let mut steps = steps(&ids);
    let all = steps.len();
    steps.sort_unstable();
    steps.dedup();
    assert!(steps.len() + 8 > all, "{} of {all} steps differ", steps.len());
    tids.sort_unstable();
    tids.dedup();
    assert_eq!(tids.len(), ids.len());
    let half = ids.iter().map(|id| id.count_ones()).sum::<u32>() / ids.len() as u32;
    assert!((15..=16).contains(&half), "{half}");
}

/// Connects a queue pair of a peer with its own address and ends that, so that the connection is in
/// TimeWait at the last node, as long as the peer likes. Returns the connection there.
fn time_wait(net: &mut Net, peer: u8, number: u32) -> ConnectionId {
    let (now, last) = (net.now, net.nodes.len() - 1);
    let (us, them) = (net.nodes[last].gid, roce::Gid([peer; 16]));
    let from = Arrival { local_gid: us, remote_gid: them, remote_qp: Qpn::GSI };
    let mut cm =
        Cm::new(Config { secret: platform::Secret::new([u64::from(peer), number.into()]), ..config() });
    let params = ConnectParams {
        local_ack_timeout: TimeoutCode::new(31).unwrap(),
        ..ConnectParams::new(Path::new(them, us), SERVICE)
    };
    let ours = cm.connect(now, local(0x1000 + number), &params, b"").unwrap();
    let exchange = |cm: &mut Cm, net: &mut Net| {
        while let Some(action) = cm.next_action() {
            let Action::Send(out) = action else { continue };
            net.nodes[last].cm.receive(now, &from, &out.mad);
        }
        let mut request = None;
        let back = Arrival { local_gid: them, remote_gid: us, remote_qp: Qpn::GSI };
        while let Some(action) = net.nodes[last].cm.next_action() {
            match action {
                Action::Send(out) if out.remote_gid == them => cm.receive(now, &back, &out.mad),
                Action::Event(Event::ConnectRequest(asked)) => request = Some(asked.conn),
                _ => {}
            }
        }
        request
    };
    let theirs = exchange(&mut cm, net).expect("a request");
    net.accept(last, theirs, 0x2000 + number, b"");
    exchange(&mut cm, net);
    exchange(&mut cm, net);
    cm.establish(now, ours, b"").unwrap();
    exchange(&mut cm, net);
    cm.disconnect(now, ours, b"").unwrap();
    exchange(&mut cm, net);
    assert_eq!(net.state(last, theirs), State::TimeWait);
    theirs
}

#[test]
fn time_waits_give_way_the_oldest_of_the_peer_with_the_most_first_and_end_soon() {
    let mut net = Net::with(1, Config { max_connections: 8, ..config() }, 1);
    net.nodes[0].cm.listen(SERVICE, Transports::RC, 8).unwrap();
    let honest = time_wait(&mut net, 7, 0);
    let flood: Vec<_> = (1..20).map(|number| time_wait(&mut net, 8, number)).collect();
    // The table of 8 has the honest peer's, which is the oldest of all, and the last seven.
    assert_eq!((net.nodes[0].cm.counts().time_wait, net.state(0, honest)), (8, State::TimeWait));
    let left = flood.iter().filter(|&&id| net.state(0, id) == State::TimeWait).count();
    assert_eq!((left, net.state(0, flood[18])), (7, State::TimeWait));
    // They asked for hours.
    net.pass(config().longest_time_wait);
    assert_eq!(net.nodes[0].cm.counts().connections, 0);
}

#[test]
fn requests_that_wait_leave_half_of_the_table_free_and_one_peer_has_half_of_theirs() {
    let mut net = Net::with(1, Config { max_connections: 16, ..config() }, 1);
    // Many listening points, whose backlogs are larger than the table.
    for service in 0..4 {
        net.nodes[0].cm.listen(roce::ServiceId::it_api(service), Transports::RC, 64).unwrap();
    }
    let (now, us) = (net.now, net.nodes[0].gid);
    let send = |peer: u8, count: u32, net: &mut Net| {
        let them = roce::Gid([peer; 16]);
        let from = Arrival { local_gid: us, remote_gid: them, remote_qp: Qpn::GSI };
        for n in 0..count {
            let service = roce::ServiceId::it_api(n as u16 % 4);
            let secret = platform::Secret::new([peer.into(), n.into()]);
            let mut cm = Cm::new(Config { secret, ..config() });
            cm.connect(now, local(0x100 + n), &ConnectParams::new(Path::new(them, us), service), b"")
                .unwrap();
            let Some(Action::Send(out)) = cm.next_action() else { panic!() };
            net.nodes[0].cm.receive(now, &from, &out.mad);
            while net.nodes[0].cm.next_action().is_some() {}
        }
        net.nodes[0].cm.counts().connections
    };
    assert_eq!(send(8, 40, &mut net), 4, "one peer");
    assert_eq!(send(9, 40, &mut net), 8, "two peers");
    assert_eq!(send(10, 40, &mut net), 8, "the rest is for our own");
    let params = ConnectParams::new(Path::new(us, roce::Gid([9; 16])), SERVICE);
    for n in 0..8 {
        net.nodes[0].cm.connect(now, local(0x400 + n), &params, b"").unwrap();
        while net.nodes[0].cm.next_action().is_some() {}
    }
}

#[test]
fn a_peer_that_asks_for_patience_holds_an_accepted_request_and_a_disconnect_for_a_minute_at_most() {
    for state in [State::RepSent, State::DreqSent] {
        let (mut net, node, id) = reach(state);
        net.weather.lost = 1000;
        let long = Duration::from_secs(60);
        net.nodes[node].cm.conns.get_mut(id).unwrap().response_time = long.into();
        net.nodes[node].cm.conns.get_mut(id).unwrap().retries_left = 15;
        let before = net.now;
        while !net.state(node, id).is_over() || net.state(node, id) == State::DreqSent {
            net.pass(Duration::from_secs(5));
            let conn = net.nodes[node].cm.conns.get(id).unwrap();
            let (theirs, ours) = (conn.remote_comm.unwrap(), conn.local_comm);
            let path = Path::new(net.nodes[1 - node].gid, net.nodes[node].gid);
            net.say(node, build(Kind::Mra(mra::Acknowledged::Rep), theirs, ours, qpn(2), path));
            assert!(net.now.since(before) <= Duration::from_secs(65), "{state}");
        }
    }
}

#[test]
fn a_request_with_an_id_in_time_wait_is_answered_at_once() {
    let mut net = Net::new(2);
    let (ours, theirs) = net.connected(0x11, 0x22);
    let (from, original) = net.last(|message| matches!(message, Message::Req(_)));
    let first = Datagram::parse(&original).unwrap();
    let Message::Req(req) = first.message else { panic!() };
    let now = net.now;
    net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
    net.deliver();
    assert_eq!(net.state(1, theirs), State::TimeWait);
    net.take(1);
    // A new request of the same id, and the old one late.
    for tid in [5, first.tid] {
        let mad = req_again(&net, req.local_comm_id.0, tid);
        let (before, now) = (net.sent.len(), net.now);
        net.nodes[1].cm.receive(now, &from, &mad);
        net.drain(1);
        let [Message::Rej(rej)] = net.sent[before..] else { panic!("{:?}", &net.sent[before..]) };
        assert_eq!((rej.reason, rej.rejected), (Reason::STALE_CONNECTION, Rejected::Req));
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(0), req.local_comm_id));
        assert_eq!((net.state(1, theirs), net.take(1)), (State::TimeWait, Vec::new()));
    }
}

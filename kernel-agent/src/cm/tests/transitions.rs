//! The table of transitions: by itself, and as the state machine follows it, for each state and
//! each trigger.

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use core::time::Duration;

use roce::cm::rej::Reason;
use roce::cm::{CommId, Datagram, Message, ReadDepths, dreq, mra, rej, rep, rtu};
use roce::{QKey, Qpn, TimeoutCode};

use super::net::{Net, SERVICE, config, local, qpn};
use crate::cm::state::TABLE;
use crate::cm::*;

const TRIGGERS: [Trigger; 18] = [
    Trigger::Connect,
    Trigger::Req,
    Trigger::Accept,
    Trigger::Reject,
    Trigger::SendMra,
    Trigger::Mra,
    Trigger::Rep,
    Trigger::Establish,
    Trigger::Rtu,
    Trigger::CommunicationEstablished,
    Trigger::Rej,
    Trigger::Withdraw,
    Trigger::Disconnect,
    Trigger::Dreq,
    Trigger::SendDrep,
    Trigger::Drep,
    Trigger::Timeout,
    Trigger::Discard,
];

#[test]
fn the_table_is_a_function_that_reaches_all_states_and_errors_name_both() {
    let mut seen = BTreeSet::new();
    for &(from, by, to) in TABLE {
        assert!(seen.insert((from as u8, by as u8)), "{from} {by:?} stands twice");
        assert_eq!(from.next(by), Ok(to));
    }
    let mut reached = BTreeSet::from([State::Idle as u8, State::Listen as u8]);
    for _ in State::ALL {
        for (from, _, to) in TABLE {
            if reached.contains(&(*from as u8)) {
                reached.insert(*to as u8);
            }
        }
    }
    assert_eq!(reached.len(), State::ALL.len());
    for from in State::ALL {
        for by in TRIGGERS {
            if let Err(illegal) = from.next(by) {
                assert!(!seen.contains(&(from as u8, by as u8)));
                assert_eq!((illegal.from, illegal.by), (from, by));
                assert!(TABLE.iter().any(|row| row.1 == by && row.2 == illegal.to));
            }
        }
    }
    let text = State::TimeWait.next(Trigger::Accept).unwrap_err().to_string();
    assert_eq!(text, "Accept: no way from TimeWait to RepSent");
}

/// The states that a connection can be brought into.
pub(super) const STATES: [State; 11] = [
    State::ReqSent,
    State::ReqRcvd,
    State::MraReqSent,
    State::MraReqRcvd,
    State::RepSent,
    State::RepRcvd,
    State::MraRepSent,
    State::MraRepRcvd,
    State::Established,
    State::DreqSent,
    State::TimeWait,
];

/// A network with a connection in `state`; returns it, the connection's node, and the connection.
pub(super) fn reach(state: State) -> (Net, usize, ConnectionId) {
    let mut net = Net::with(2, Config { patience: None, ..config() }, 1);
    net.nodes[1].cm.listen(SERVICE, Transports::RC, 4).unwrap();
    let short = TimeoutCode::new(10).unwrap();
    if matches!(state, State::Established | State::DreqSent | State::TimeWait) {
        let (ours, _) = net.connected(0x11, 0x22);
        let now = net.now;
        if state != State::Established {
            net.nodes[0].cm.disconnect(now, ours, b"").unwrap();
        }
        match state {
            State::TimeWait => net.deliver(),
            _ => net.lose(),
        }
        net.take(0);
        return (net, 0, ours);
    }
    let timeout = Some(Duration::from_secs(20));
    let (now, params) = (net.now, ConnectParams { timeout, ..net.params() });
    let ours = net.nodes[0].cm.connect(now, local(0x11), &params, b"").unwrap();
    if state == State::ReqSent {
        net.lose();
        return (net, 0, ours);
    }
    net.deliver();
    let theirs = net.request().conn;
    if matches!(state, State::MraReqSent | State::MraReqRcvd) {
        let now = net.now;
        net.nodes[1].cm.postpone(now, theirs, short).unwrap();
        net.deliver();
    }
    match state {
        State::ReqRcvd | State::MraReqSent => return (net, 1, theirs),
        State::MraReqRcvd => return (net, 0, ours),
        _ => net.accept(1, theirs, 0x22, b""),
    }
    if state == State::RepSent {
        net.lose();
        return (net, 1, theirs);
    }
    net.deliver();
    net.take(0);
    if state == State::RepRcvd {
        return (net, 0, ours);
    }
    let now = net.now;
    net.nodes[0].cm.postpone(now, ours, short).unwrap();
    net.deliver();
    match state {
        State::MraRepSent => (net, 0, ours),
        State::MraRepRcvd => (net, 1, theirs),
        _ => unreachable!(),
    }
}

/// The peer's message that causes a trigger.
fn message(net: &Net, node: usize, conn: ConnectionId, by: Trigger) -> Option<Message> {
    let conn = net.nodes[node].cm.conns.get(conn).unwrap();
    let (local_comm_id, remote_comm_id) = (conn.remote_comm.unwrap_or(CommId(77)), conn.local_comm);
    let about_rep = matches!(conn.state, State::RepSent | State::MraRepRcvd);
    Some(match by {
        Trigger::Mra => Message::Mra(mra::Repr {
            local_comm_id,
            remote_comm_id,
            acknowledged: if about_rep { mra::Acknowledged::Rep } else { mra::Acknowledged::Req },
            service_timeout: TimeoutCode::new(10).unwrap(),
            private_data: [0; 222],
        }),
        Trigger::Rep => Message::Rep(rep::Repr {
            local_comm_id,
            remote_comm_id,
            local_qkey: QKey(0),
            local_qpn: qpn(0x22),
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
        Trigger::Rtu => Message::Rtu(rtu::Rtu { local_comm_id, remote_comm_id, private_data: [0; 224] }),
        Trigger::Rej => Message::Rej(rej::Repr {
            local_comm_id,
            remote_comm_id,
            rejected: rej::Rejected::Other,
            ari_len: 0,
            reason: Reason::CONSUMER_DEFINED,
            ari: [0; 72],
            private_data: [0; 148],
        }),
        Trigger::Dreq => Message::Dreq(dreq::Repr {
            local_comm_id,
            remote_comm_id,
            remote_qpn: conn.local_qpn.unwrap_or(Qpn::new(0x33).unwrap()),
            private_data: [0; 220],
        }),
        Trigger::Drep => Message::Drep(rtu::Drep { local_comm_id, remote_comm_id, private_data: [0; 224] }),
        _ => return None,
    })
}

/// Makes a trigger happen to a connection.
fn happen(net: &mut Net, node: usize, conn: ConnectionId, by: Trigger) -> Result<(), Error> {
    let now = net.now;
    if let Some(message) = message(net, node, conn, by) {
        let from = Arrival {
            local_gid: net.nodes[node].gid,
            remote_gid: net.nodes[1 - node].gid,
            remote_qp: Qpn::GSI,
        };
        let before = net.nodes[node].cm.stats();
        net.nodes[node].cm.receive(now, &from, &Datagram { tid: 3, message }.emit());
        let after = net.nodes[node].cm.stats();
        // A message that changes nothing is counted.
        let ignored = (after.unexpected + after.duplicates) - (before.unexpected + before.duplicates);
        return if ignored == 0 { Ok(()) } else { Err(Error::NoSuchConnection) };
    }
    let cm = &mut net.nodes[node].cm;
    match by {
        Trigger::Accept => cm.accept(now, conn, local(0x33), &AcceptParams::default(), b""),
        Trigger::Reject => cm.reject(now, conn, Reason::CONSUMER_DEFINED, &[], b""),
        Trigger::SendMra => cm.postpone(now, conn, TimeoutCode::new(10).unwrap()),
        Trigger::Establish => cm.establish(now, conn, b""),
        Trigger::CommunicationEstablished => cm.communication_established(now, conn),
        Trigger::Withdraw | Trigger::Disconnect => cm.disconnect(now, conn, b""),
        Trigger::Discard => cm.discard(now, conn),
        _ => unreachable!(),
    }
}

#[test]
fn the_state_machine_follows_the_table() {
    for state in STATES {
        for by in TRIGGERS {
            if matches!(by, Trigger::Connect | Trigger::Req | Trigger::SendDrep | Trigger::Timeout) {
                continue;
            }
            let (mut net, node, conn) = reach(state);
            assert_eq!(net.state(node, conn), state);
            let wanted = match (state.next(by), by) {
                // The DREP follows at once.
                (Ok(State::DreqRcvd), _) => Ok(State::TimeWait),
                // One call does both.
                (Err(_), Trigger::Withdraw) => state.next(Trigger::Disconnect),
                (Err(_), Trigger::Disconnect) => state.next(Trigger::Withdraw),
                (next, _) => next,
            };
            let done = happen(&mut net, node, conn, by);
            net.drain(node);
            match wanted {
                Ok(to) => {
                    assert_eq!(done, Ok(()), "{state} {by:?}");
                    assert_eq!(net.state(node, conn), to, "{state} {by:?}");
                }
                Err(illegal) => {
                    match done.unwrap_err() {
                        Error::Illegal(error) => assert_eq!(error.from, illegal.from),
                        other => assert_eq!(other, Error::NoSuchConnection),
                    }
                    assert_eq!(net.state(node, conn), state, "{state} {by:?}");
                    assert_eq!(net.take(node), [], "{state} {by:?}");
                }
            }
        }
    }
}

#[test]
fn every_state_that_waits_for_the_peer_has_an_end() {
    let ends = [
        (State::ReqSent, true),
        (State::MraReqRcvd, true),
        (State::RepSent, true),
        (State::RepRcvd, true),
        (State::MraRepSent, true),
        (State::MraRepRcvd, true),
        (State::DreqSent, true),
        (State::TimeWait, true),
        // These wait for the consumer, but only as long as the peer waits for the answer.
        (State::ReqRcvd, true),
        (State::MraReqSent, true),
        // This waits for nothing.
        (State::Established, false),
    ];
    for (state, ends) in ends {
        let (mut net, node, conn) = reach(state);
        net.weather.lost = 1000;
        assert_eq!(net.nodes[node].cm.next_deadline().is_some(), ends, "{state}");
        net.pass(Duration::from_secs(120));
        assert_eq!(net.state(node, conn) == State::Idle, ends, "{state}");
        let events = net.take(node);
        let terminal = events.iter().filter(|event| {
            matches!(event, Event::TimedOut { .. } | Event::Released { .. } | Event::Rejected(_))
        });
        assert_eq!(terminal.count(), usize::from(ends && state != State::TimeWait), "{state}: {events:?}");
    }
}

/// As if another end of the peer had sent a message.
fn of_another_end(mut message: Message) -> Message {
    let sender = match &mut message {
        Message::Mra(mra) => &mut mra.local_comm_id,
        Message::Rep(rep) => &mut rep.local_comm_id,
        Message::Rtu(rtu) => &mut rtu.local_comm_id,
        Message::Rej(rej) => &mut rej.local_comm_id,
        Message::Dreq(dreq) => &mut dreq.local_comm_id,
        Message::Drep(drep) => &mut drep.local_comm_id,
        other => panic!("{other:?}"),
    };
    *sender = CommId(0x5555);
    message
}

#[test]
fn a_message_counts_only_if_it_is_from_the_peers_port_and_from_the_end_that_is_known() {
    for state in STATES {
        for by in TRIGGERS {
            let (mut net, node, conn) = reach(state);
            let Some(message) = message(&net, node, conn, by) else { continue };
            if state.next(by).is_err() {
                continue;
            }
            let is_known = net.nodes[node].cm.conns.get(conn).unwrap().remote_comm.is_some();
            let (now, local_gid, peer) = (net.now, net.nodes[node].gid, net.nodes[1 - node].gid);
            let mut unexpected = |remote_gid, message| {
                let from = Arrival { local_gid, remote_gid, remote_qp: Qpn::GSI };
                let before = net.nodes[node].cm.stats().unexpected;
                net.nodes[node].cm.receive(now, &from, &Datagram { tid: 3, message }.emit());
                (net.nodes[node].cm.stats().unexpected - before, net.state(node, conn))
            };
            assert_eq!(unexpected(roce::Gid([9; 16]), message), (1, state), "{state} {by:?}, another port");
            if is_known {
                assert_eq!(unexpected(peer, of_another_end(message)), (1, state), "{state} {by:?}");
            }
            assert_eq!(unexpected(peer, message).0, 0, "{state} {by:?}");
        }
    }
}

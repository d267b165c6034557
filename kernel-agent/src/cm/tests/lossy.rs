//! Many connections over a bad network: whatever datagrams are lost, both ends agree in the end,
//! and nothing is left behind.

use alloc::collections::BTreeMap;
use core::time::Duration;

use roce::{Psn, Qpn};

use super::net::{Net, SERVICE, Weather, config, local};
use crate::cm::*;

#[derive(Default, Debug)]
struct End {
    remote: Option<(Qpn, Psn)>,
    established: bool,
    /// How many events reported the end.
    over: u32,
}

/// The side of a connection with this id: with one node, the active ends are those that `connect`
/// returned.
fn side(node: usize, nodes: usize, conn: &ConnectionId, ends: &[BTreeMap<ConnectionId, End>; 2]) -> usize {
    if nodes == 2 { node } else { usize::from(!ends[0].contains_key(conn)) }
}

/// Connects `count` times and disconnects the established connections; checks the events of both
/// sides.
fn run(nodes: usize, seed: u64, weather: Weather, count: u32) -> u32 {
    let mut net = Net::with(nodes, config(), seed);
    net.weather = weather;
    let last = nodes - 1;
    net.nodes[last].cm.listen(SERVICE, Transports::RC, count).unwrap();
    let mut ends: [BTreeMap<ConnectionId, End>; 2] = Default::default();
    let mut passive_qp = 0x1000;
    for n in 0..count {
        let conn = net.connect(0x100 + n, b"");
        ends[0].insert(conn, End::default());
        net.drain(0);
    }
    let until = net.now + Duration::from_secs(300);
    let mut steps = 0;
    while net.step(until).is_some() {
        steps += 1;
        assert!(steps < 200_000, "no end");
        for node in 0..nodes {
            for event in net.take(node) {
                let now = net.now;
                let cm = &mut net.nodes[node].cm;
                match event {
                    Event::ConnectRequest(request) => {
                        passive_qp += 1;
                        let remote = Some((request.remote_qpn, request.send_psn));
                        // A request that is repeated after it was dropped is a new one.
                        ends[1].insert(request.conn, End { remote, ..End::default() });
                        let params = AcceptParams::default();
                        cm.accept(now, request.conn, local(passive_qp), &params, b"").unwrap();
                    }
                    Event::Reply(reply) => {
                        let end = ends[0].get_mut(&reply.conn).unwrap();
                        assert!(end.remote.is_none(), "a reply was reported twice");
                        end.remote = Some((reply.remote_qpn, reply.send_psn));
                        end.established = true;
                        cm.establish(now, reply.conn, b"").unwrap();
                    }
                    Event::Established { conn, .. } => {
                        let end = ends[1].get_mut(&conn).unwrap();
                        assert!(!end.established, "established twice");
                        end.established = true;
                    }
                    Event::Rejected(Rejection { conn, .. })
                    | Event::TimedOut { conn, .. }
                    | Event::Disconnected { conn, .. }
                    | Event::Released { conn, .. } => {
                        let side = side(node, nodes, &conn, &ends);
                        ends[side].get_mut(&conn).unwrap().over += 1;
                    }
                    Event::TimeWaitOver { .. } => {}
                    other => panic!("{other:?}"),
                }
                net.drain(node);
            }
        }
    }
    let standing = |net: &Net, node: usize, side: &BTreeMap<ConnectionId, End>| {
        side.keys().filter(|&&conn| net.state(node, conn) == State::Established).count()
    };
    let (a, b) = (standing(&net, 0, &ends[0]), standing(&net, last, &ends[1]));
    // If all RTUs and then the REJ were lost, only the active side is connected.
    assert!(b <= a, "seed {seed}: {a} and {b}");
    for (conn, end) in &ends[0] {
        if net.state(0, *conn) == State::Established {
            let (peer_qpn, send_psn) = end.remote.unwrap();
            assert_eq!(
                send_psn,
                Psn::new(peer_qpn.get() * 16),
                "not the PSN that the peer's queue pair expects"
            );
        }
    }
    let active: alloc::vec::Vec<_> =
        ends[0].keys().copied().filter(|&conn| net.state(0, conn) == State::Established).collect();
    for (n, conn) in active.iter().enumerate() {
        let now = net.now;
        net.nodes[0].cm.disconnect(now, *conn, b"").unwrap();
        net.drain(0);
        if n % 4 == 0 {
            net.pass(Duration::from_millis(1));
        }
    }
    net.pass(Duration::from_secs(120));
    // A peer that received none of the DREQs is still connected.
    for conn in ends[1].keys() {
        if net.state(last, *conn) == State::Established {
            let now = net.now;
            net.nodes[last].cm.disconnect(now, *conn, b"").unwrap();
        }
    }
    net.pass(Duration::from_secs(120));
    for node in 0..nodes {
        for event in net.take(node) {
            let conn = match event {
                Event::Rejected(Rejection { conn, .. })
                | Event::TimedOut { conn, .. }
                | Event::Disconnected { conn, .. }
                | Event::Released { conn, .. } => conn,
                Event::TimeWaitOver { .. } => continue,
                other => panic!("{other:?}"),
            };
            let side = side(node, nodes, &conn, &ends);
            ends[side].get_mut(&conn).unwrap().over += 1;
        }
        let listeners = usize::from(node == last);
        assert_eq!(net.nodes[node].cm.counts(), Counts { listeners, ..Counts::default() }, "seed {seed}");
    }
    for (conn, end) in ends.iter().flatten() {
        assert_eq!(end.over, 1, "seed {seed}: {conn:?} {end:?}");
    }
    b as u32
}

#[test]
fn a_good_network_connects_all() {
    assert_eq!(run(2, 1, Weather::default(), 40), 40);
    assert_eq!(run(1, 1, Weather::default(), 40), 40);
}

#[test]
#[cfg_attr(miri, ignore = "1,200 connections, and nothing unsafe behind them")]
fn a_bad_network_leaves_nothing_half_done() {
    let mut connected = 0;
    for seed in 0..60 {
        let weather = Weather { lost: 150, repeated: 150, late: 200 };
        connected += run(2, seed, weather, 10) + run(1, seed, weather, 10);
    }
    assert!(connected > 1000, "{connected} of 1200");
}

#[test]
#[cfg_attr(miri, ignore = "1,200 connections, and nothing unsafe behind them")]
fn a_terrible_network_leaves_nothing_half_done_either() {
    for seed in 0..60 {
        let weather = Weather { lost: 600, repeated: 300, late: 500 };
        run(2, seed, weather, 10);
        run(1, seed, weather, 10);
    }
}

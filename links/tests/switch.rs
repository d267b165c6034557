//! The switch, with peers that behave and peers that do not.

extern crate ferrovia_links as links;

mod sockets;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use links::{Dropped, Link, MAX_FRAME, Switch, Wire};
use platform::Instant;
use platform::random::Random;
use sockets::{Folder, at, framed, is_ready};

type Mac = [u8; 6];

const OWNER: Mac = [2, 0, 0, 0, 0, 0xff];
const ALL: Mac = [0xff; 6];
/// Peers that a switch serves at a time.
const PEERS: usize = 16;

fn mac(n: u8) -> Mac {
    [2, 0, 0, 0, 0, n]
}

fn frame(to: Mac, from: Mac, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &[8, 0], payload].concat()
}

/// A peer in this process.
struct Peer {
    socket: UnixStream,
    mac: Mac,
    bytes: Vec<u8>,
}

impl Peer {
    fn send(&mut self, to: Mac, payload: &[u8]) {
        self.socket.write_all(&framed(&frame(to, self.mac, payload))).unwrap();
    }

    /// Takes what the switch has sent; returns the frames.
    fn take(&mut self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 1 << 16];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => self.bytes.extend(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let mut frames = Vec::new();
        while let Some((prefix, rest)) = self.bytes.split_first_chunk::<4>()
            && let Some(frame) = rest.get(..u32::from_be_bytes(*prefix) as usize)
        {
            frames.push(frame.to_vec());
            self.bytes.drain(..4 + frames.last().unwrap().len());
        }
        frames
    }
}

/// A switch, and the folder of its socket.
struct Lab {
    switch: Switch,
    folder: Folder,
}

impl Lab {
    fn new() -> Lab {
        let folder = Folder::new();
        Lab { switch: Switch::listen(&folder.path(), OWNER).unwrap(), folder }
    }

    /// A socket that has connected.
    fn socket(&self) -> UnixStream {
        let socket = UnixStream::connect(self.folder.path()).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    /// Peer `n`, which has connected and sent nothing.
    fn silent(&mut self, n: u8) -> Peer {
        Peer { socket: self.socket(), mac: mac(n), bytes: Vec::new() }
    }

    /// Peer `n`, from which the switch has had a frame.
    fn peer(&mut self, n: u8) -> Peer {
        let mut peer = self.silent(n);
        peer.send(OWNER, b"hello");
        assert_eq!(self.turn(), [frame(OWNER, mac(n), b"hello")]);
        peer
    }

    /// Lets the switch do all that there is to do; returns the owner's frames.
    fn turn(&mut self) -> Vec<Vec<u8>> {
        self.turn_at(at(0))
    }

    fn turn_at(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let (mut frames, mut into) = (Vec::new(), vec![0; MAX_FRAME]);
        loop {
            match self.switch.receive(&mut into, now) {
                Some(len) => frames.push(into[..len].to_vec()),
                None if self.switch.deadline() == Some(now) || is_ready(&self.switch) => {
                    self.switch.flush(now);
                }
                None => break,
            }
        }
        self.switch.flush(now);
        frames
    }

    fn send(&mut self, to: Mac, payload: &[u8]) {
        self.switch.send(&frame(to, OWNER, payload), at(0));
        self.switch.flush(at(0));
    }

    fn dropped(&self, why: Dropped) -> u64 {
        self.switch.counters().dropped(why)
    }
}

#[test]
fn frames_go_where_their_destination_says() {
    let mut lab = Lab::new();
    assert!(lab.switch.up() && lab.switch.has_room() && lab.switch.deadline().is_none());
    let mut peers = [1, 2, 3].map(|n| lab.peer(n));
    // From a peer to the owner, to another peer, and to all.
    peers[0].send(OWNER, b"a");
    peers[0].send(mac(2), b"b");
    peers[0].send(ALL, b"c");
    assert_eq!(lab.turn(), [frame(OWNER, mac(1), b"a"), frame(ALL, mac(1), b"c")]);
    assert_eq!(peers[0].take(), [[0; 0]; 0]);
    assert_eq!(peers[1].take(), [frame(mac(2), mac(1), b"b"), frame(ALL, mac(1), b"c")]);
    assert_eq!(peers[2].take(), [frame(ALL, mac(1), b"c")]);
    // From the owner to one, and to a group.
    let group = [0x33, 0x33, 0, 0, 0, 1];
    lab.send(mac(3), b"d");
    lab.send(group, b"e");
    assert_eq!(peers[2].take(), [frame(mac(3), OWNER, b"d"), frame(group, OWNER, b"e")]);
    for peer in &mut peers[..2] {
        assert_eq!(peer.take(), [frame(group, OWNER, b"e")]);
    }
    let counters = lab.switch.counters();
    assert_eq!((counters.sent, counters.received, counters.forwarded), (2, 5, 3));
    assert_eq!((counters.peers, counters.all_dropped()), (3, 0));
    // An address that nobody has sent from.
    lab.send(mac(9), b"f");
    peers[0].send(mac(9), b"g");
    assert_eq!(lab.turn(), [[0; 0]; 0]);
    for peer in &mut peers {
        assert_eq!(peer.take(), [[0; 0]; 0]);
    }
    assert_eq!((lab.dropped(Dropped::NoPeer), lab.switch.counters().all_dropped()), (2, 2));
    assert!(!is_ready(&lab.switch));
}

#[test]
fn a_tag_changes_nothing_about_where_a_frame_goes() {
    let mut lab = Lab::new();
    let (mut one, mut two) = (lab.peer(1), lab.peer(2));
    for tag in [[0x81, 0, 0xe0, 0, 8, 0], [0x81, 0, 0, 7, 8, 0]] {
        let tagged = |to: Mac, from: Mac| [&to[..], &from, &tag, b"payload"].concat();
        for to in [OWNER, mac(2), ALL] {
            one.socket.write_all(&framed(&tagged(to, mac(1)))).unwrap();
        }
        assert_eq!(lab.turn(), [tagged(OWNER, mac(1)), tagged(ALL, mac(1))]);
        assert_eq!(two.take(), [tagged(mac(2), mac(1)), tagged(ALL, mac(1))]);
        lab.switch.send(&tagged(mac(1), OWNER), at(0));
        lab.switch.flush(at(0));
        assert_eq!(one.take(), [tagged(mac(1), OWNER)]);
    }
    assert_eq!(lab.switch.counters().all_dropped(), 0);
}

#[test]
fn an_address_is_its_first_senders_until_that_one_leaves() {
    let mut lab = Lab::new();
    let (mut first, mut second) = (lab.peer(1), lab.peer(2));
    for forged in [mac(1), OWNER, ALL, [1, 0, 0, 0, 0, 1]] {
        second.socket.write_all(&framed(&frame(OWNER, forged, b"forged"))).unwrap();
    }
    assert_eq!(lab.turn(), [[0; 0]; 0]);
    assert_eq!(lab.dropped(Dropped::BadSource), 4);
    lab.send(mac(1), b"mine");
    assert_eq!((first.take().len(), second.take().len()), (1, 0));
    // A guest that starts again has the address of its predecessor.
    drop(first);
    assert_eq!(lab.turn(), [[0; 0]; 0]);
    lab.send(mac(1), b"to nobody");
    assert_eq!(lab.dropped(Dropped::NoPeer), 1);
    let mut successor = lab.peer(1);
    lab.send(mac(1), b"mine");
    assert_eq!((successor.take().len(), second.take().len()), (1, 0));
}

#[test]
fn a_peer_has_a_bounded_number_of_addresses_and_the_newest_count() {
    let mut lab = Lab::new();
    let mut peer = lab.peer(0);
    for n in 0..100_u8 {
        peer.mac = mac(n);
        peer.send(OWNER, &[n]);
    }
    assert_eq!(lab.turn().len(), 100);
    for n in 0..100_u8 {
        lab.send(mac(n), &[n]);
    }
    let kept: Vec<u8> = peer.take().iter().map(|frame| frame[14]).collect();
    assert_eq!(kept, (84..100).collect::<Vec<_>>());
    // What it has lost is another's for the asking.
    lab.peer(1);
}

#[test]
fn places_are_bounded_and_one_that_is_free_is_taken_at_once() {
    let mut lab = Lab::new();
    let mut peers: Vec<Peer> = (0..PEERS as u8).map(|n| lab.peer(n)).collect();
    let mut late = lab.silent(77);
    late.send(OWNER, b"late");
    assert_eq!(lab.turn(), [[0; 0]; 0]);
    assert!(!is_ready(&lab.switch), "it does not wake for it");
    assert_eq!(lab.switch.deadline(), Some(at(300_000)), "before one of them may yield its place");
    drop(peers.remove(5));
    assert_eq!(lab.turn(), [frame(OWNER, mac(77), b"late")]);
    lab.send(mac(77), b"answer");
    assert_eq!(late.take(), [frame(mac(77), OWNER, b"answer")]);
    assert_eq!(lab.switch.counters().peers, PEERS as u64 + 1);
}

#[test]
fn a_thousand_peers_come_and_go_and_all_places_are_free_again() {
    let mut lab = Lab::new();
    let mut come_and_go = |n: u16| {
        let mut peer = lab.silent(0);
        let [high, low] = n.to_be_bytes();
        peer.mac = [2, 0, 0, 1, high, low];
        peer.send(OWNER, b"hello");
        assert_eq!(lab.turn(), [frame(OWNER, peer.mac, b"hello")], "{n}");
        lab.send(peer.mac, b"answer");
        assert_eq!(peer.take(), [frame(peer.mac, OWNER, b"answer")], "{n}");
    };
    (0..1000).for_each(&mut come_and_go);
    let _peers: Vec<Peer> = (0..PEERS as u8).map(|n| lab.peer(n)).collect();
    let counters = lab.switch.counters();
    assert_eq!((counters.peers, counters.replaced), (1000 + PEERS as u64, 0));
}

#[test]
fn a_newcomer_replaces_a_peer_that_never_sent_a_frame_and_then_the_longest_silent_one() {
    let mut lab = Lab::new();
    let mut known: Vec<Peer> = (0..10).map(|n| lab.peer(n)).collect();
    let mut silent: Vec<Peer> = (0..PEERS as u8 - 10).map(|n| lab.silent(100 + n)).collect();
    assert_eq!(lab.turn(), [[0; 0]; 0]);
    let frames_of = |lab: &mut Lab, n: u8, now| {
        let mut peer = lab.silent(n);
        peer.send(OWNER, &[n]);
        (lab.turn_at(now), peer)
    };
    // For a second each newcomer can send its first frame.
    let (frames, _waits) = frames_of(&mut lab, 50, at(999));
    assert_eq!((frames.len(), lab.switch.deadline()), (0, Some(at(1000))));
    // One of the silent ones sends in the last moment.
    silent[0].send(OWNER, b"late");
    let got = lab.turn_at(at(1000));
    assert_eq!(got, [frame(OWNER, mac(100), b"late"), frame(OWNER, mac(50), &[50])]);
    let mut newcomers: Vec<Peer> = (51..55).map(|n| frames_of(&mut lab, n, at(1000)).1).collect();
    let counters = lab.switch.counters();
    assert_eq!((counters.replaced, counters.peers), (5, PEERS as u64 + 5));
    for gone in &mut silent[1..] {
        assert_eq!(gone.socket.read(&mut [0]).ok(), Some(0));
    }
    // Now all have sent frames. The one that is silent for longest goes, and not before it has been
    // silent for as long as a switch remembers an address.
    for (n, peer) in (0..).zip(known.iter_mut().chain([&mut silent[0]]).chain(&mut newcomers)) {
        if n != 3 {
            peer.send(OWNER, b"still here");
            lab.turn_at(at(200_000 + n));
        }
    }
    let (frames, mut last) = frames_of(&mut lab, 60, at(299_999));
    assert_eq!((frames.len(), lab.switch.deadline()), (0, Some(at(300_000))));
    assert_eq!(lab.turn_at(at(300_000)), [frame(OWNER, mac(60), &[60])]);
    assert_eq!((lab.switch.counters().replaced, known[3].socket.read(&mut [0]).ok()), (6, Some(0)));
    lab.send(mac(60), b"you have it");
    assert_eq!(last.take(), [frame(mac(60), OWNER, b"you have it")]);
}

#[test]
fn a_peer_that_floods_does_not_keep_the_others_from_being_heard() {
    let mut lab = Lab::new();
    let (mut loud, mut quiet) = (lab.peer(1), lab.peer(2));
    loud.socket.write_all(&framed(&frame(OWNER, mac(1), &[])).repeat(5000)).unwrap();
    let mut into = [0; 2000];
    assert_eq!(lab.switch.receive(&mut into, at(0)), Some(14));
    // Frames of the loud one are read. From now on nothing waits for more than a few of them: a
    // frame of another peer, a peer that connects, and the end of one.
    quiet.send(OWNER, b"quiet");
    let wait_for = |lab: &mut Lab, wanted: &[u8]| {
        let mut into = [0; 2000];
        let heard = (0..40).find(|_| {
            let len = lab.switch.receive(&mut into, at(0));
            len.is_some_and(|len| into[..len] == *wanted)
        });
        assert!(heard.is_some(), "{wanted:?}");
    };
    wait_for(&mut lab, &frame(OWNER, mac(2), b"quiet"));
    let mut third = lab.silent(3);
    third.send(OWNER, b"third");
    wait_for(&mut lab, &frame(OWNER, mac(3), b"third"));
    drop(quiet);
    let mut successor = lab.silent(2);
    successor.send(OWNER, b"successor");
    wait_for(&mut lab, &frame(OWNER, mac(2), b"successor"));
    assert_eq!(lab.switch.counters().all_dropped(), 0);
    assert_eq!(lab.switch.receive(&mut into, at(0)), Some(14), "the loud one has frames left");
}

#[test]
fn a_call_takes_a_share_of_what_is_not_for_the_owner() {
    let mut lab = Lab::new();
    let (mut one, mut two) = (lab.peer(1), lab.peer(2));
    // In one write: the socket takes few writes that are so small.
    one.socket.write_all(&framed(&frame(mac(2), mac(1), b"x")).repeat(500)).unwrap();
    let mut calls = 1;
    while lab.switch.receive(&mut [0; 100], at(3)).is_none() && lab.switch.deadline() == Some(at(3)) {
        calls += 1;
    }
    assert!((8..12).contains(&calls), "{calls}");
    lab.switch.flush(at(3));
    assert_eq!(two.take().len(), 500);
}

#[test]
fn the_owner_waits_for_its_only_peer_as_on_a_cable() {
    let mut lab = Lab::new();
    let mut slow = lab.peer(1);
    let _silent = lab.silent(100);
    lab.turn();
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..3 {
        let mut queued = 0;
        while lab.switch.has_room() {
            lab.send(mac(1), &[0; 60_000]);
            queued += 1;
        }
        assert!(queued > 0 && lab.switch.counters().all_dropped() == 0);
        assert!(!is_ready(&lab.switch), "the socket is full");
        // What makes room wakes the owner.
        while slow.socket.read(&mut buffer).is_ok() {}
        assert!(is_ready(&lab.switch));
        lab.turn();
        assert!(lab.switch.has_room());
    }
    // One that takes nothing any more holds nobody.
    while lab.switch.has_room() {
        lab.send(mac(1), &[0; 60_000]);
    }
    slow.socket.shutdown(Shutdown::Read).unwrap();
    lab.switch.flush(at(0));
    assert!(lab.switch.has_room());
}

/// A peer that frees half of its queue each 20 ms, beside one that takes everything at once.
#[test]
fn a_slow_peer_loses_frames_and_the_owner_does_not_wait_for_it() {
    let mut lab = Lab::new();
    let (mut slow, mut good) = (lab.peer(1), lab.peer(2));
    let mut buffer = vec![0; 1 << 16];
    let mut sent = 0;
    for tick in 0..50_u8 {
        for _ in 0..20 {
            let now = at(u64::from(tick) * 20);
            lab.switch.send(&frame(mac(1), OWNER, &[0; 60_000]), now);
            lab.switch.send(&frame(mac(2), OWNER, &[tick; 1000]), now);
            lab.switch.flush(now);
            sent += 1;
            assert!(lab.switch.has_room() && lab.switch.deadline().is_none());
            assert_eq!(good.take(), [frame(mac(2), OWNER, &[tick; 1000])]);
        }
        let mut taken = 0;
        while taken < 512 << 10 {
            taken += slow.socket.read(&mut buffer).unwrap_or_default();
            lab.switch.flush(at(u64::from(tick) * 20));
        }
    }
    let counters = lab.switch.counters();
    let lost = lab.dropped(Dropped::QueueFull);
    assert!((300..700).contains(&lost), "{lost}");
    assert_eq!((counters.sent, counters.all_dropped()), (2 * sent - lost, lost));
}

#[test]
fn peers_that_flood_each_other_leave_the_owner_room() {
    let mut lab = Lab::new();
    let (mut one, mut two) = (lab.peer(1), lab.peer(2));
    for _ in 0..1000 {
        one.send(mac(2), &[1; 4000]);
        lab.turn();
    }
    assert!(lab.dropped(Dropped::QueueFull) > 500 && lab.switch.has_room());
    lab.send(mac(2), b"owner");
    let mut frames = Vec::new();
    for _ in 0..100 {
        frames.extend(two.take());
        lab.turn();
    }
    assert_eq!(frames.last().unwrap(), &frame(mac(2), OWNER, b"owner"));
    assert_eq!(frames.len() as u64, lab.switch.counters().forwarded + 1);
}

#[test]
fn a_peer_that_takes_nothing_any_more_is_still_heard_and_does_not_hold_the_owner() {
    let mut lab = Lab::new();
    let mut peer = lab.peer(1);
    while lab.switch.has_room() {
        lab.switch.send(&frame(mac(1), OWNER, &[0; 1000]), at(0));
    }
    peer.socket.shutdown(Shutdown::Read).unwrap();
    lab.switch.flush(at(0));
    assert!(lab.switch.has_room() && lab.dropped(Dropped::PeerLeft) > 0);
    peer.send(OWNER, b"still");
    assert_eq!(lab.turn(), [frame(OWNER, mac(1), b"still")]);
    lab.send(mac(1), b"lost");
    assert_eq!(lab.dropped(Dropped::NoPeer), 1);
    assert!(!is_ready(&lab.switch));
}

#[test]
fn bad_frames_are_dropped_and_a_bad_length_ends_only_its_peer() {
    let mut lab = Lab::new();
    let (mut bad, mut good) = (lab.peer(1), lab.peer(2));
    bad.socket.write_all(&framed(&[0; 13])).unwrap();
    bad.socket.write_all(&framed(&[])).unwrap();
    bad.send(ALL, b"whole");
    bad.socket.write_all(&(MAX_FRAME as u32 + 1).to_be_bytes()).unwrap();
    assert_eq!(lab.turn(), [frame(ALL, mac(1), b"whole")]);
    assert_eq!((lab.dropped(Dropped::Runt), lab.dropped(Dropped::BadLength)), (2, 1));
    assert_eq!(good.take(), [frame(ALL, mac(1), b"whole")]);
    let end = bad.socket.read(&mut [0; 1]).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    good.socket.write_all(&framed(&frame(OWNER, mac(2), b"cut"))[..10]).unwrap();
    drop(good);
    assert_eq!(lab.turn(), [[0; 0]; 0]);
    assert_eq!(lab.dropped(Dropped::Truncated), 2);
}

#[test]
fn the_socket_is_removed_at_the_end_and_a_live_one_is_refused() {
    let lab = Lab::new();
    assert!(Switch::listen(&lab.folder.path(), OWNER).is_err());
    let path = lab.folder.path();
    drop(lab.switch);
    assert!(!path.exists());
}

#[test]
fn a_switch_survives_arbitrary_bytes_beside_a_peer_that_is_served() {
    let mut lab = Lab::new();
    let mut honest = lab.peer(200);
    let mut random = Random::new(7);
    for round in 0..100_u8 {
        let mut others: Vec<UnixStream> = (0..1 + random.below(4)).map(|_| lab.socket()).collect();
        for _ in 0..random.below(30) {
            let at = random.below(others.len() as u64) as usize;
            let len = 14 + random.below(1000) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random.word() as u8).collect();
            if random.below(3) > 0 {
                bytes[..6].copy_from_slice(&[OWNER, ALL, mac(200), mac(1)][random.below(4) as usize]);
                bytes = framed(&bytes);
            }
            // It fails if the switch has left this peer.
            let _ = others[at].write(&bytes);
            lab.turn();
        }
        drop(others);
        honest.send(OWNER, &[round]);
        let taken = lab.turn();
        assert_eq!(taken.last().unwrap(), &frame(OWNER, mac(200), &[round]));
        lab.send(mac(200), &[round]);
        assert_eq!(honest.take().last().unwrap(), &frame(mac(200), OWNER, &[round]));
    }
}

//! Links over UNIX stream sockets, with peers that behave and peers that do not.

extern crate ferrovia_links as links;

mod sockets;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use links::{Counters, Dropped, Link, MAX_FRAME, OpenError, Stream, Wire};
use platform::random::Random;
use sockets::{Folder, at, framed, is_ready};

impl Folder {
    fn listen(&self) -> Stream {
        Stream::listen(&self.path()).unwrap()
    }
}

/// Takes the peer that has connected, or connects.
fn attach(link: &mut impl Link) {
    assert_eq!(link.receive(&mut [], at(0)), None);
}

fn frame(link: &mut impl Link) -> Option<Vec<u8>> {
    let mut into = vec![0; MAX_FRAME];
    let len = link.receive(&mut into, at(0))?;
    into.truncate(len);
    Some(into)
}

/// The next frame from a peer in this process, which has written it already.
fn expect_frame(link: &mut impl Link) -> Vec<u8> {
    // A call that finds a new peer, or the end of the last one, may return nothing.
    (0..8).find_map(|_| frame(link)).expect("a frame is there")
}

fn drain(link: &mut impl Link) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..64 {
        while let Some(frame) = frame(link) {
            frames.push(frame);
        }
    }
    frames
}

#[test]
fn the_socket_is_there_before_a_peer_and_gone_at_the_end() {
    let folder = Folder::new();
    let link = folder.listen();
    assert!(folder.path().exists() && !link.up() && link.deadline().is_none());
    drop(link);
    assert!(!folder.path().exists());
}

#[test]
fn frames_cross_between_both_sides_in_order_and_whole() {
    let folder = Folder::new();
    let mut a = folder.listen();
    let mut b = Stream::connect(&folder.path()).unwrap();
    assert!(!b.up());
    attach(&mut b);
    assert!(b.up() && is_ready(&a));
    attach(&mut a);
    assert!(a.up() && b.has_room());
    for n in 0..200_usize {
        let sent = vec![n as u8; 14 + n * 7];
        a.send(&sent, at(0));
        a.flush(at(0));
        assert!(is_ready(&b));
        assert_eq!(expect_frame(&mut b), sent);
        b.send(&sent, at(0));
        b.flush(at(0));
        assert_eq!(expect_frame(&mut a), sent);
    }
    let Counters { sent, received, peers, .. } = a.counters();
    assert_eq!((sent, received, peers, a.counters().all_dropped()), (200, 200, 1, 0));
    assert!(!is_ready(&a) && !is_ready(&b));
}

#[test]
fn many_frames_before_a_flush_go_out_by_themselves() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    attach(&mut link);
    for _ in 0..100 {
        link.send(&[3; 1500], at(0));
    }
    peer.set_nonblocking(true).unwrap();
    assert!(peer.read(&mut vec![0; 1 << 20]).unwrap() >= 1 << 16);
}

#[test]
fn a_frame_in_pieces_arrives_when_it_is_whole() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    let bytes = framed(&[9; 100]);
    for (n, byte) in bytes.iter().enumerate() {
        assert_eq!(frame(&mut link), None, "after {n} bytes");
        peer.write_all(&[*byte]).unwrap();
    }
    assert_eq!(expect_frame(&mut link), [9; 100]);
}

#[test]
fn a_successor_is_served_after_its_predecessor_has_left() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let mut first = UnixStream::connect(folder.path()).unwrap();
    let mut second = UnixStream::connect(folder.path()).unwrap();
    first.write_all(&framed(&[1; 20])).unwrap();
    second.write_all(&framed(&[2; 20])).unwrap();
    assert_eq!(expect_frame(&mut link), [1; 20]);
    assert_eq!(frame(&mut link), None, "the second one waits");
    first.write_all(&framed(&[3; 20])).unwrap();
    drop(first);
    assert_eq!(expect_frame(&mut link), [3; 20], "what came before the end is delivered");
    assert_eq!(frame(&mut link), None);
    link.flush(at(0));
    assert!(!link.up(), "the owner sees that the peer is another");
    assert_eq!(expect_frame(&mut link), [2; 20]);
    assert!(link.up());
    link.send(&[4; 20], at(0));
    link.flush(at(0));
    let mut got = [0; 24];
    second.read_exact(&mut got).unwrap();
    assert_eq!(got[..], framed(&[4; 20]));
    drop(second);
    assert_eq!(frame(&mut link), None);
    assert!(!link.up());
    assert_eq!((link.counters().peers, link.counters().all_dropped()), (2, 0));
}

#[test]
fn a_peer_that_vanishes_in_mid_frame_leaves_nothing_to_its_successor() {
    let folder = Folder::new();
    let mut link = folder.listen();
    for cut in 1..24 {
        let mut peer = UnixStream::connect(folder.path()).unwrap();
        peer.write_all(&framed(&[5; 20])[..cut]).unwrap();
        drop(peer);
        assert_eq!(drain(&mut link), [[0; 0]; 0]);
        assert_eq!(link.counters().dropped(Dropped::Truncated), cut as u64);
    }
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    peer.write_all(&framed(&[6; 20])).unwrap();
    assert_eq!(expect_frame(&mut link), [6; 20]);
}

#[test]
fn half_of_a_frame_that_the_predecessor_did_not_take_is_not_sent_to_the_successor() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let peer = UnixStream::connect(folder.path()).unwrap();
    attach(&mut link);
    // More than the socket takes.
    for _ in 0..12 {
        link.send(&[7; 60_000], at(0));
    }
    link.flush(at(0));
    drop(peer);
    drain(&mut link);
    assert!(!link.up());
    let lost = link.counters().dropped(Dropped::PeerLeft);
    assert!((1..12).contains(&lost), "{lost}");
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    attach(&mut link);
    link.send(&[8; 20], at(0));
    link.flush(at(0));
    let mut got = [0; 24];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(got[..], framed(&[8; 20]));
}

#[test]
fn a_garbage_length_ends_the_peer_and_the_next_one_is_served() {
    let folder = Folder::new();
    let mut link = folder.listen();
    for length in [MAX_FRAME as u32 + 1, 0x4745_5420, u32::MAX, 0x8000_0000] {
        let mut bad = UnixStream::connect(folder.path()).unwrap();
        bad.write_all(&framed(&[1; 20])).unwrap();
        bad.write_all(&length.to_be_bytes()).unwrap();
        bad.write_all(&[0xee; 500]).unwrap();
        assert_eq!(drain(&mut link), [[1; 20]]);
        assert!(!link.up());
        bad.set_nonblocking(true).unwrap();
        let end = bad.read(&mut [0; 1]).map_err(|e| e.kind());
        assert!(matches!(end, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{end:?}");
    }
    assert_eq!(link.counters().dropped(Dropped::BadLength), 4);
    let mut good = UnixStream::connect(folder.path()).unwrap();
    good.write_all(&framed(&[2; 20])).unwrap();
    assert_eq!(expect_frame(&mut link), [2; 20]);
}

#[test]
fn empty_and_short_frames_are_skipped() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    peer.write_all(&vec![0; 4 * 10_000]).unwrap();
    peer.write_all(&framed(&[1; 13])).unwrap();
    peer.write_all(&framed(&[2; 14])).unwrap();
    assert_eq!(expect_frame(&mut link), [2; 14]);
    assert_eq!(link.counters().dropped(Dropped::Runt), 10_001);
}

#[test]
fn a_frame_longer_than_the_owners_buffer_is_dropped_alone() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    peer.write_all(&framed(&[1; 2000])).unwrap();
    peer.write_all(&framed(&[2; 100])).unwrap();
    let mut into = [0; 1514];
    let len = (0..4).find_map(|_| link.receive(&mut into, at(0)));
    assert_eq!((len, into[0]), (Some(100), 2));
    assert_eq!(link.counters().dropped(Dropped::Oversized), 1);
}

#[test]
fn a_peer_that_stalls_costs_bounded_memory_and_is_served_when_it_goes_on() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    attach(&mut link);
    const FRAMES: u64 = 3000;
    let mut room = 0;
    for n in 0..FRAMES {
        room += u64::from(link.has_room());
        let mut frame = [0; 1514];
        frame[..8].copy_from_slice(&n.to_be_bytes());
        link.send(&frame, at(0));
        link.flush(at(0));
    }
    let Counters { sent, .. } = link.counters();
    assert_eq!(sent + link.counters().dropped(Dropped::QueueFull), FRAMES);
    assert!(room <= sent && sent < FRAMES, "{room} {sent}");
    assert!(!link.has_room() && link.up());
    // It goes on: all that was queued arrives, in order.
    peer.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        link.flush(at(0));
        match peer.read(&mut buffer) {
            Ok(read) => bytes.extend(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(bytes.len() as u64, sent * 1518);
    let numbers: Vec<u64> = bytes
        .as_chunks::<1518>()
        .0
        .iter()
        .map(|chunk| u64::from_be_bytes(chunk[4..12].try_into().unwrap()))
        .collect();
    assert!(numbers.is_sorted() && numbers[..100] == (0..100).collect::<Vec<_>>());
    assert!(link.has_room());
}

#[test]
fn a_full_queue_makes_the_owner_wait_until_the_peer_takes_more() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    attach(&mut link);
    while link.has_room() {
        link.send(&[7; 1514], at(0));
    }
    link.flush(at(0));
    assert!(!is_ready(&link), "the socket is full");
    peer.set_nonblocking(true).unwrap();
    let mut buffer = vec![0; 1 << 16];
    while peer.read(&mut buffer).is_ok() {}
    assert!(is_ready(&link), "the socket takes more");
}

#[test]
fn what_is_sent_without_a_peer_is_counted() {
    let folder = Folder::new();
    let mut link = folder.listen();
    for _ in 0..5 {
        assert!(link.has_room());
        link.send(&[0; 60], at(0));
    }
    assert_eq!(link.counters().dropped(Dropped::NoPeer), 5);
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_refused() {
    let folder = Folder::new();
    // The standard library leaves the file behind, as a killed process does.
    drop(UnixListener::bind(folder.path()).unwrap());
    assert!(folder.path().exists());
    let mut link = folder.listen();
    let error = Stream::listen(&folder.path()).unwrap_err();
    assert!(matches!(&error, OpenError::InUse(path) if *path == folder.path()));
    assert!(error.to_string().contains("another process listens here; end it"), "{error}");
    // The one that listens goes on: for it, the attempt was a peer that left at once.
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    peer.write_all(&framed(&[2; 20])).unwrap();
    assert_eq!(expect_frame(&mut link), [2; 20]);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let folder = Folder::new();
    std::fs::write(folder.path(), "precious").unwrap();
    let error = Stream::listen(&folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::NotASocket(_)), "{error}");
    assert_eq!(std::fs::read(folder.path()).unwrap(), b"precious");
    let error = Stream::listen(&folder.path().join("sub")).unwrap_err();
    assert!(matches!(error, OpenError::System { .. }), "{error}");
    let long = PathBuf::from("x".repeat(200));
    for error in [Stream::listen(&long).unwrap_err(), Stream::connect(&long).unwrap_err()] {
        assert!(matches!(error, OpenError::TooLong(_)), "{error}");
    }
}

#[test]
fn the_end_removes_only_its_own_socket() {
    let folder = Folder::new();
    let link = folder.listen();
    std::fs::remove_file(folder.path()).unwrap();
    let other = folder.listen();
    drop(link);
    assert!(folder.path().exists());
    drop(other);
    assert!(!folder.path().exists());
}

#[test]
fn the_connecting_side_tries_again_later_and_later_and_soon_after_success() {
    let folder = Folder::new();
    let mut link = Stream::connect(&folder.path()).unwrap();
    assert_eq!(link.deadline(), Some(at(0)));
    let mut waits = Vec::new();
    let mut now = at(0);
    for _ in 0..10 {
        assert_eq!(link.receive(&mut [], now), None);
        let next = link.deadline().unwrap();
        waits.push((next - now).as_millis());
        assert!(link.poll_fd().is_none());
        now = next;
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
    let mut listener = folder.listen();
    link.flush(now);
    assert!(!link.up(), "a flush takes no peer");
    assert_eq!(link.receive(&mut [], now), None);
    assert!(link.up() && link.deadline().is_none());
    attach(&mut listener);
    listener.send(&[1; 20], now);
    listener.flush(now);
    assert_eq!(expect_frame(&mut link), [1; 20]);
    drop(listener);
    assert_eq!(link.receive(&mut [0; 20], now), None);
    assert!(!link.up());
    assert_eq!((link.deadline().unwrap() - now).as_millis(), 10);
    let mut listener = folder.listen();
    assert_eq!(link.receive(&mut [], now), None);
    assert!(!link.up(), "it is not time yet");
    now = link.deadline().unwrap();
    link.send(&[2; 20], now);
    assert_eq!(link.receive(&mut [], now), None);
    link.send(&[3; 20], now);
    link.flush(now);
    assert_eq!(expect_frame(&mut listener), [3; 20]);
    assert_eq!((link.counters().peers, link.counters().dropped(Dropped::NoPeer)), (2, 1));
}

#[test]
fn a_peer_that_takes_nothing_any_more_is_still_heard() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let mut peer = UnixStream::connect(folder.path()).unwrap();
    attach(&mut link);
    peer.write_all(&framed(&[1; 20])).unwrap();
    peer.shutdown(std::net::Shutdown::Read).unwrap();
    link.send(&[2; 20], at(0));
    link.flush(at(0));
    assert!(!link.up());
    assert_eq!(expect_frame(&mut link), [1; 20]);
    link.send(&[2; 20], at(0));
    let counters = link.counters();
    assert_eq!((counters.dropped(Dropped::PeerLeft), counters.dropped(Dropped::NoPeer)), (1, 1));
    // Nothing is left to write, so the link does not ask to be woken for it.
    assert_eq!(frame(&mut link), None);
    assert!(!is_ready(&link));
}

#[test]
fn a_link_survives_arbitrary_bytes() {
    let folder = Folder::new();
    let mut link = folder.listen();
    let mut random = Random::new(1);
    for _ in 0..200 {
        let mut peer = UnixStream::connect(folder.path()).unwrap();
        for _ in 0..random.below(20) {
            let len = random.below(3000);
            // Every other length is a small one, so that some frames are found.
            let bytes: Vec<u8> = match random.below(2) {
                0 => (0..len).map(|_| random.word() as u8).collect(),
                _ => framed(&vec![1; len as usize]),
            };
            if peer.write_all(&bytes).is_err() {
                break;
            }
            drain(&mut link);
        }
        drop(peer);
        drain(&mut link);
        assert!(!link.up());
    }
    assert_eq!(link.counters().peers, 200);
}

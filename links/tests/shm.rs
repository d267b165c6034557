//! The network in shared memory, with peers that behave and peers that do not.

extern crate ferrovia_links as links;

mod sockets;

use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use links::{Dropped, IpPrefix, Link, LinkSpec, MAX_FRAME, Mapping, OpenError, PollFd, Shm, Wire};
use platform::Instant;
use rustix::cmsg_space;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use sockets::{Folder, at, is_ready};

type Mac = [u8; 6];

const ALL: Mac = [0xff; 6];
/// The memory of a ring, and where its first record is.
const RING: usize = 4096 + (1 << 19);
const FIRST: usize = 4096;
/// Peers of a port.
const PEERS: usize = 128;

fn mac(n: u8) -> Mac {
    [2, 0x66, 0x65, 0, 0, n]
}

fn address(n: u8) -> IpPrefix {
    IpPrefix::new([127, 0, 0, n].into(), 8).unwrap()
}

fn frame(to: Mac, from: Mac, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &[8, 0], payload].concat()
}

fn join(folder: &Path, n: u8) -> Shm {
    Shm::join(folder, mac(n), &[address(n)]).unwrap()
}

/// Lets a link do all that there is to do; returns the owner's frames.
fn turn_at(link: &mut Shm, now: Instant) -> Vec<Vec<u8>> {
    let (mut frames, mut into) = (Vec::new(), vec![0; MAX_FRAME]);
    loop {
        link.flush(now);
        match link.receive(&mut into, now) {
            Some(len) => frames.push(into[..len].to_vec()),
            None if link.deadline() == Some(now) || is_ready(link) => {}
            None => return frames,
        }
    }
}

fn turn(link: &mut Shm) -> Vec<Vec<u8>> {
    turn_at(link, at(0))
}

fn send(link: &mut Shm, frame: &[u8], now: Instant) {
    link.send(frame, now);
    link.flush(now);
}

/// A process that uses the socket of port `n` as it likes.
struct Stranger {
    socket: UnixDatagram,
    folder: PathBuf,
}

impl Stranger {
    fn new(folder: &Path, n: u8) -> Stranger {
        let name: String = mac(n).iter().map(|byte| format!("{byte:02x}")).collect();
        Stranger { socket: UnixDatagram::bind(folder.join(name)).unwrap(), folder: folder.into() }
    }

    fn send(&self, to: u8, bytes: &[u8], with: &[&OwnedFd]) {
        let name: String = mac(to).iter().map(|byte| format!("{byte:02x}")).collect();
        let to = SocketAddrUnix::new(self.folder.join(name)).unwrap();
        let with: Vec<_> = with.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(with.is_empty() || control.push(SendAncillaryMessage::ScmRights(&with)));
        let flags = SendFlags::DONTWAIT;
        rustix::net::sendmsg_addr(&self.socket, &to, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
    }

    /// Invites a port to a ring, of which this keeps the memory and its end of the socket.
    fn invite(&self, to: u8) -> (Mapping, OwnedFd) {
        let memory = links::sealed_file("ring", RING).unwrap();
        let (own, others) = pair();
        self.send(to, &[2, 1], &[&memory, &others]);
        (Mapping::new(&memory, RING).unwrap(), own)
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

/// Writes a record at the start of a ring.
fn write_first(ring: &Mapping, header: u32, frame: &[u8]) {
    ring.slice().write(FIRST + 8, frame).unwrap();
    ring.slice().atomic_u32(FIRST).unwrap().store(header, Ordering::Release);
}

/// Whether the process at the other end of a socket has closed it.
fn is_closed(socket: &OwnedFd) -> bool {
    matches!(rustix::net::recv(socket, &mut [0; 64][..], rustix::net::RecvFlags::DONTWAIT), Ok((_, 0)))
}

#[test]
fn processes_join_and_frames_reach_one_or_all() {
    let folder = Folder::new();
    let path = folder.path();
    let mut links = [1, 2, 3].map(|n| join(&path, n));
    assert!(links.iter().all(|link| link.up() && link.has_room()));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    send(&mut links[0], &frame(ALL, mac(1), b"who"), at(0));
    assert_eq!(turn(&mut links[1]), [frame(ALL, mac(1), b"who")]);
    assert_eq!(turn(&mut links[2]), [frame(ALL, mac(1), b"who")]);
    for n in 0..200 {
        send(&mut links[1], &frame(mac(1), mac(2), &[n; 100]), at(0));
        send(&mut links[2], &frame(mac(1), mac(3), &vec![n; 9000]), at(0));
        send(&mut links[0], &frame(mac(2), mac(1), &[n; 20]), at(0));
        let mut came = turn(&mut links[0]);
        came.sort();
        assert_eq!(came, [frame(mac(1), mac(2), &[n; 100]), frame(mac(1), mac(3), &vec![n; 9000])]);
        assert_eq!(turn(&mut links[1]), [frame(mac(2), mac(1), &[n; 20])]);
    }
    assert!(turn(&mut links[2]).is_empty(), "a frame for one port reaches no other");
    let [counters, ..] = links.each_ref().map(|link| link.counters());
    assert_eq!((counters.sent, counters.received, counters.peers), (201, 400, 2));
    assert_eq!(counters.all_dropped(), 0);
}

#[test]
fn a_thousand_processes_come_and_go_and_only_their_locks_stay() {
    let folder = Folder::new();
    let path = folder.path();
    let mut stays = join(&path, 1);
    for round in 0..1000_u32 {
        let n = 2 + (round % 200) as u8;
        let mut comes = join(&path, n);
        send(&mut comes, &frame(mac(1), mac(n), b"hello"), at(0));
        assert_eq!(turn(&mut stays), [frame(mac(1), mac(n), b"hello")], "{round}");
        send(&mut stays, &frame(mac(n), mac(1), b"answer"), at(0));
        assert_eq!(turn(&mut comes), [frame(mac(n), mac(1), b"answer")], "{round}");
        drop(comes);
        assert_eq!(turn(&mut stays), [[0; 0]; 0], "{round}");
    }
    assert_eq!(stays.counters().all_dropped(), 0);
    // Two empty files for each address stay, since to remove a lock is a race.
    let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let (locks, others): (Vec<_>, Vec<_>) = names.partition(|name| name.extension().is_some());
    assert_eq!((locks.len(), others.len()), (2 * 201, 1));
}

#[test]
fn an_address_and_a_mac_are_one_processes_until_that_ends() {
    let folder = Folder::new();
    let path = folder.path();
    let open =
        |mac, addresses: &[IpPrefix]| Shm::join(&path, mac, addresses).map_err(|error| error.to_string());
    let first = open(mac(2), &[address(2), address(3)]).unwrap();
    for (mac, address) in [(mac(2), address(9)), (mac(9), address(2)), (mac(9), address(3))] {
        let error = open(mac, &[address]).unwrap_err();
        assert!(error.contains("another process has") && error.contains("--ip"), "{error}");
    }
    let gone = |n: u8| Shm::has_ended(&path, [127, 0, 0, n].into());
    assert!(!gone(2) && !gone(3) && !gone(77), "nobody ever had the last one");
    drop(first);
    assert!(gone(2) && gone(3));
    open(mac(2), &[address(3)]).unwrap();
}

#[test]
fn a_folder_or_name_that_is_something_else_is_not_touched() {
    let folder = Folder::new();
    let path = folder.path();
    fs::write(&path, b"mine").unwrap();
    assert!(matches!(Shm::join(&path, mac(1), &[]), Err(OpenError::System { .. })));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("026665000001"), b"mine").unwrap();
    assert!(matches!(Shm::join(&path, mac(1), &[]), Err(OpenError::NotASocket(_))));
    assert_eq!(fs::read(path.join("026665000001")).unwrap(), b"mine");
    let long = path.join("x".repeat(90));
    assert!(matches!(Shm::join(&long, mac(1), &[]), Err(OpenError::TooLong(_))));
    let spec: LinkSpec = format!("shm:{}", path.display()).parse().unwrap();
    assert_eq!(spec.choices().len(), 253);
    assert!(spec.open(mac(2), &spec.choices()[..1]).unwrap().up());
}

#[test]
fn frames_to_nobody_are_dropped_and_a_port_that_comes_later_is_reached() {
    let folder = Folder::new();
    let path = folder.path();
    let mut a = join(&path, 1);
    send(&mut a, &frame(ALL, mac(1), b"who"), at(0));
    send(&mut a, &frame(mac(2), mac(1), b"you"), at(0));
    send(&mut a, &frame(mac(1), mac(1), b"me"), at(0));
    assert_eq!(a.counters().dropped(Dropped::NoPeer), 3);
    let mut b = join(&path, 2);
    // It is not asked for again at once.
    send(&mut a, &frame(mac(2), mac(1), b"you"), at(5));
    assert_eq!(a.counters().dropped(Dropped::NoPeer), 4);
    send(&mut a, &frame(mac(2), mac(1), b"you"), at(10));
    assert_eq!(turn(&mut b), [frame(mac(2), mac(1), b"you")]);
}

/// A process that ends leaves what it has sent, and the others find out; its successor is reached.
#[test]
fn a_port_that_leaves_and_comes_back_is_reached_again() {
    let folder = Folder::new();
    let path = folder.path();
    let (mut a, mut b) = (join(&path, 1), join(&path, 2));
    for round in 0..5 {
        let now = at(round * 100);
        send(&mut b, &frame(mac(1), mac(2), b"last words"), now);
        send(&mut a, &frame(mac(2), mac(1), b"never read"), now);
        drop(b);
        assert_eq!(turn_at(&mut a, now), [frame(mac(1), mac(2), b"last words")]);
        send(&mut a, &frame(mac(2), mac(1), b"to nobody"), now);
        assert_eq!(a.counters().dropped(Dropped::NoPeer), round + 1);
        b = join(&path, 2);
        let later = at(round * 100 + 50);
        send(&mut a, &frame(mac(2), mac(1), b"hello"), later);
        assert_eq!(turn_at(&mut b, later), [frame(mac(2), mac(1), b"hello")]);
    }
}

#[test]
fn a_peer_that_takes_nothing_makes_the_owner_wait_a_moment_and_loses_frames() {
    let folder = Folder::new();
    let path = folder.path();
    let [mut a, mut slow, mut other] = [1, 2, 3].map(|n| join(&path, n));
    let big = frame(mac(2), mac(1), &[7; 4000]);
    let mut sent = 0;
    while a.has_room() {
        send(&mut a, &big, at(0));
        sent += 1;
    }
    assert!((90..110).contains(&sent) && a.counters().all_dropped() == 0, "{sent}");
    assert_eq!(a.deadline(), Some(at(100)));
    assert!(turn_at(&mut a, at(99)).is_empty() && !a.has_room());
    turn_at(&mut a, at(100));
    assert!(a.has_room() && a.deadline().is_none(), "it has waited long enough");
    for _ in 0..200 {
        send(&mut a, &big, at(100));
    }
    let lost = a.counters().dropped(Dropped::QueueFull);
    assert!(lost > 150 && a.has_room());
    send(&mut a, &frame(mac(3), mac(1), b"hello"), at(100));
    assert_eq!(turn(&mut other), [frame(mac(3), mac(1), b"hello")]);
    // It takes all, and is waited for again.
    assert_eq!(turn(&mut slow).len() as u64, sent + 200 - lost);
    turn_at(&mut a, at(200));
    while a.has_room() {
        send(&mut a, &big, at(200));
    }
    assert_eq!(a.deadline(), Some(at(300)));
    // It takes some, and the owner is woken and goes on.
    assert!(!is_ready(&a));
    let mut into = vec![0; MAX_FRAME];
    let mut taken = 0;
    while !a.has_room() {
        assert!(slow.receive(&mut into, at(200)).is_some());
        taken += 1;
    }
    assert!(taken < sent && is_ready(&a), "half of a ring is enough");
    turn_at(&mut a, at(201));
    assert!(a.has_room() && a.deadline().is_none());
}

#[test]
fn a_peer_that_floods_does_not_keep_the_others_from_being_heard() {
    let folder = Folder::new();
    let path = folder.path();
    let [mut owner, mut loud, mut quiet] = [1, 2, 3].map(|n| join(&path, n));
    send(&mut loud, &frame(mac(1), mac(2), b"hello"), at(0));
    send(&mut quiet, &frame(mac(1), mac(3), b"hello"), at(0));
    assert_eq!(turn(&mut owner).len(), 2);
    let mut into = vec![0; MAX_FRAME];
    let mut heard = 0;
    for n in 0..100 {
        for _ in 0..3 {
            send(&mut loud, &frame(mac(1), mac(2), &[9; 60]), at(0));
        }
        send(&mut quiet, &frame(mac(1), mac(3), &[n; 60]), at(0));
        for _ in 0..2 {
            let len = owner.receive(&mut into, at(0)).unwrap();
            heard += usize::from(into[6..12] == mac(3) && into[14..len] == [n; 60]);
        }
    }
    assert_eq!(heard, 100);
}

#[test]
fn what_a_peer_writes_that_cannot_be_ends_its_ring_and_nothing_else() {
    let folder = Folder::new();
    let path = folder.path();
    let (mut a, mut b) = (join(&path, 1), join(&path, 2));
    for header in [MAX_FRAME as u32 + 1, u32::MAX, 1 << 31, u32::MAX - 1] {
        let stranger = Stranger::new(&path, 9);
        let (ring, socket) = stranger.invite(1);
        write_first(&ring, header, &[]);
        let before = a.counters().dropped(Dropped::BadLength);
        assert!(turn(&mut a).is_empty());
        assert!(is_closed(&socket), "{header:#x}");
        assert_eq!(a.counters().dropped(Dropped::BadLength), before + 1);
        fs::remove_file(path.join("026665000009")).unwrap();
    }
    send(&mut b, &frame(mac(1), mac(2), b"hello"), at(0));
    assert_eq!(turn(&mut a), [frame(mac(1), mac(2), b"hello")]);
}

#[test]
fn frames_that_are_short_or_have_the_mac_of_another_are_dropped() {
    let folder = Folder::new();
    let path = folder.path();
    let mut a = join(&path, 1);
    let stranger = Stranger::new(&path, 9);
    let (ring, _socket) = stranger.invite(1);
    assert!(turn(&mut a).is_empty());
    write_first(&ring, 13, &[1; 13]);
    assert!(turn(&mut a).is_empty());
    assert_eq!(a.counters().dropped(Dropped::Runt), 1);
    // The next record is a line further.
    let forged = frame(mac(1), mac(2), b"from two");
    ring.slice().write(FIRST + 64 + 8, &forged).unwrap();
    ring.slice().atomic_u32(FIRST + 64).unwrap().store(forged.len() as u32, Ordering::Release);
    assert!(turn(&mut a).is_empty());
    assert_eq!(a.counters().dropped(Dropped::BadSource), 1);
    stranger.send(1, &[&[1, 1][..], &frame(ALL, mac(2), b"from two")].concat(), &[]);
    assert!(turn(&mut a).is_empty());
    assert_eq!(a.counters().dropped(Dropped::BadSource), 2);
    stranger.send(1, &[&[1, 1][..], &frame(ALL, mac(9), b"from nine")].concat(), &[]);
    assert_eq!(turn(&mut a), [frame(ALL, mac(9), b"from nine")]);
}

#[test]
fn datagrams_that_are_none_of_a_links_are_dropped() {
    let folder = Folder::new();
    let path = folder.path();
    let mut a = join(&path, 1);
    let stranger = Stranger::new(&path, 9);
    let memory = links::sealed_file("ring", RING).unwrap();
    let (_own, others) = pair();
    for (bytes, with) in [
        (&[][..], &[][..]),
        (&[2], &[]),
        (&[2, 1], &[]),
        (&[2, 1], &[&memory]),
        (&[2, 1, 0], &[&memory, &others]),
        (&[2, 2], &[&memory, &others]),
        (&[3, 1], &[&memory, &others]),
        (&[2, 1], &[&memory, &others, &others, &others]),
        (&[1, 1], &[&memory]),
    ] {
        stranger.send(1, bytes, with);
        assert!(turn(&mut a).is_empty());
    }
    assert_eq!(a.counters().dropped(Dropped::Unsupported), 9);
    // From a socket without a name, of whose port nothing is known.
    let nameless = UnixDatagram::unbound().unwrap();
    nameless.send_to(&[&[1, 1][..], &frame(ALL, mac(9), b"x")].concat(), path.join("026665000001")).unwrap();
    assert!(turn(&mut a).is_empty());
    assert_eq!(a.counters().dropped(Dropped::Unsupported), 10);
    assert_eq!(a.counters().peers, 0);
}

/// Memory that could shrink would let the peer end this process by a signal.
#[test]
fn memory_that_could_shrink_is_not_accepted() {
    let folder = Folder::new();
    let path = folder.path();
    let mut a = join(&path, 1);
    let stranger = Stranger::new(&path, 9);
    let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, RING as u64).unwrap();
    let short = links::sealed_file("short", RING - 1).unwrap();
    let on_disk = tempfile::tempfile().unwrap();
    on_disk.set_len(RING as u64).unwrap();
    let memory = links::sealed_file("ring", RING).unwrap();
    let (_own, others) = pair();
    let on_disk: OwnedFd = on_disk.into();
    let datagram: OwnedFd = UnixDatagram::unbound().unwrap().into();
    for (memory, socket) in
        [(&open, &others), (&short, &others), (&on_disk, &others), (&memory, &memory), (&memory, &datagram)]
    {
        stranger.send(1, &[2, 1], &[memory, socket]);
        assert!(turn(&mut a).is_empty());
    }
    assert_eq!((a.counters().dropped(Dropped::BadSource), a.counters().peers), (5, 0));
    // Memory that is sealed stays, though its owner tries: the ring is used after that.
    let (own, others) = pair();
    stranger.send(1, &[2, 1], &[&memory, &others]);
    assert!(turn(&mut a).is_empty());
    assert!(rustix::fs::ftruncate(&memory, 0).is_err());
    let ring = Mapping::new(&memory, RING).unwrap();
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&memory, hole, 0, RING as u64).unwrap();
    let hello = frame(mac(1), mac(9), b"hello");
    write_first(&ring, hello.len() as u32, &hello);
    assert_eq!(turn(&mut a), [hello]);
    drop(own);
}

#[test]
fn a_reader_that_claims_to_have_taken_what_cannot_be_is_left() {
    let folder = Folder::new();
    let path = folder.path();
    let mut a = join(&path, 1);
    let stranger = Stranger::new(&path, 9);
    send(&mut a, &frame(mac(9), mac(1), b"hello"), at(0));
    // The stranger takes the invitation.
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 8];
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let flags = rustix::net::RecvFlags::empty();
    let came = rustix::net::recvmsg(&stranger.socket, &mut parts, &mut control, flags).unwrap();
    assert_eq!(came.bytes, 2);
    let files: Vec<OwnedFd> = control
        .drain()
        .flat_map(|message| match message {
            rustix::net::RecvAncillaryMessage::ScmRights(files) => files.collect(),
            _ => Vec::new(),
        })
        .collect();
    let [memory, socket] = &files[..] else { panic!("two files") };
    let ring = Mapping::new(memory, RING).unwrap();
    ring.slice().atomic_u64(0).unwrap().store(1 << 40, Ordering::Release);
    // The writer looks when it needs room.
    for _ in 0..140 {
        send(&mut a, &frame(mac(9), mac(1), &[1; 4000]), at(0));
    }
    assert!(a.has_room() && a.counters().dropped(Dropped::BadLength) == 1 && is_closed(socket));
}

#[test]
fn who_has_a_mac_already_keeps_it() {
    let folder = Folder::new();
    let path = folder.path();
    let (mut a, mut b) = (join(&path, 1), join(&path, 2));
    send(&mut b, &frame(mac(1), mac(2), b"first"), at(0));
    assert_eq!(turn(&mut a).len(), 1);
    // Another process puts its own socket under the name of the second port.
    fs::remove_file(path.join("026665000002")).unwrap();
    let stranger = Stranger::new(&path, 2);
    let (_ring, socket) = stranger.invite(1);
    assert!(turn(&mut a).is_empty());
    assert!(is_closed(&socket) && a.counters().dropped(Dropped::BadSource) == 1);
    send(&mut b, &frame(mac(1), mac(2), b"second"), at(0));
    assert_eq!(turn(&mut a), [frame(mac(1), mac(2), b"second")]);
}

#[test]
fn places_are_bounded_and_an_idle_peer_gives_way() {
    let folder = Folder::new();
    let path = folder.path();
    let mut a = join(&path, 1);
    let strangers: Vec<_> = (0..PEERS as u8 + 1).map(|n| Stranger::new(&path, 10 + n)).collect();
    let mut rings: Vec<_> = Vec::new();
    for stranger in &strangers[..PEERS] {
        rings.push(stranger.invite(1));
        assert!(turn(&mut a).is_empty());
    }
    assert_eq!(a.counters().peers, PEERS as u64);
    let (_, refused) = strangers[PEERS].invite(1);
    assert!(turn_at(&mut a, at(999)).is_empty() && is_closed(&refused));
    // All but one of them have sent nothing for a second.
    let hello = frame(mac(1), mac(10), b"hello");
    write_first(&rings[0].0, hello.len() as u32, &hello);
    assert_eq!(turn_at(&mut a, at(999)), [hello]);
    let (_ring, taken) = strangers[PEERS].invite(1);
    assert!(turn_at(&mut a, at(1000)).is_empty() && !is_closed(&taken));
    assert_eq!(a.counters().replaced, 1);
    let closed: Vec<_> = (0..PEERS).filter(|n| is_closed(&rings[*n].1)).collect();
    assert_eq!(closed.len(), 1);
    assert_ne!(closed, [0]);
}

#[test]
fn an_owner_that_found_no_room_looks_again_before_it_sleeps() {
    let folder = Folder::new();
    let path = folder.path();
    let [mut a, mut b] = [1, 2].map(|n| join(&path, n));
    // There is room again, or the peer is not waited for any longer: the owner hears of it in its
    // next flush, after it has looked for room.
    for (now, takes) in [(at(1), true), (at(200), false)] {
        while a.has_room() {
            send(&mut a, &frame(mac(2), mac(1), &[0; 4000]), at(0));
        }
        if takes {
            turn(&mut b);
        }
        a.flush(now);
        assert_eq!((a.deadline(), a.has_room()), (Some(now), true));
        assert_eq!((a.receive(&mut [0; MAX_FRAME], now), a.deadline()), (None, None));
    }
}

/// Two threads, each of which sleeps whenever it can. A lost wake-up would leave both asleep.
#[test]
fn sides_that_sleep_whenever_they_can_lose_no_frame_and_no_wake_up() {
    const FRAMES: u32 = 30_000;
    let folder = Folder::new();
    let path = folder.path();
    let [a, b] = [1, 2].map(|n| join(&path, n));
    let clock = std::time::Instant::now();
    let now = move || Instant::from_nanos(clock.elapsed().as_nanos() as u64);
    let sleep = |link: &Shm| {
        let wait = link.deadline().map(|at| at.since(now()));
        let wait = wait.and_then(|wait| rustix::event::Timespec::try_from(wait).ok());
        let mut fds: Vec<PollFd<'_>> = link.poll_fd().into_iter().collect();
        rustix::event::poll(&mut fds, wait.as_ref()).unwrap();
    };
    // Each sends to the other, and takes what comes.
    let run = |mut link: Shm, own: u8, other: u8| {
        let (mut sent, mut came, mut into) = (0, 0, vec![0; MAX_FRAME]);
        while sent < FRAMES || came < FRAMES {
            let time = now();
            let mut idle = true;
            while sent < FRAMES && link.has_room() {
                let lost = link.counters().all_dropped();
                link.send(&frame(mac(other), mac(own), &vec![sent as u8; 46 + sent as usize % 4000]), time);
                idle = false;
                // The other one had no CPU for longer than this one waits: it gets the frame later.
                if link.counters().all_dropped() != lost {
                    std::thread::yield_now();
                    break;
                }
                sent += 1;
            }
            while let Some(len) = link.receive(&mut into, time) {
                assert!(into[14..len].iter().all(|&byte| byte == came as u8), "frame {came}");
                came += 1;
                idle = false;
            }
            link.flush(time);
            if idle {
                sleep(&link);
            }
        }
        link
    };
    let links = std::thread::scope(|scope| {
        let one = scope.spawn(|| run(a, 1, 2));
        let other = scope.spawn(|| run(b, 2, 1));
        [one.join().unwrap(), other.join().unwrap()]
    });
    for link in links {
        assert_eq!(link.counters().received, u64::from(FRAMES));
    }
}

/// This test's program, run once more as a peer that sends and takes until it is killed.
struct Process(Child);

impl Process {
    fn start(folder: &Path, n: u8, to: u8) -> Process {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.args(["--exact", "a_process_that_is_killed", "--ignored"]);
        command.env("SHM_FOLDER", folder).env("SHM_PORT", n.to_string()).env("SHM_TO", to.to_string());
        Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: what [`Process`] runs.
#[test]
#[ignore = "run by the test of killed processes"]
fn a_process_that_is_killed() {
    let Some(folder) = std::env::var_os("SHM_FOLDER") else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u8>().unwrap();
    let (own, to) = (number("SHM_PORT"), number("SHM_TO"));
    let mut link = join(Path::new(&folder), own);
    let clock = std::time::Instant::now();
    let mut into = vec![0; MAX_FRAME];
    loop {
        let now = Instant::from_nanos(clock.elapsed().as_nanos() as u64);
        if link.has_room() {
            link.send(&frame(mac(to), mac(own), &[own; 3000]), now);
        }
        while link.receive(&mut into, now).is_some() {}
        link.flush(now);
    }
}

/// Each time a process is killed while it writes to a ring, and reads another; the one that stays
/// gets whole frames only, finds out, and reaches the next one.
#[test]
fn processes_that_are_killed_at_any_time_harm_nobody() {
    let folder = Folder::new();
    let path = folder.path();
    let mut a = join(&path, 1);
    let clock = std::time::Instant::now();
    let mut into = vec![0; MAX_FRAME];
    for round in 0..8 {
        let process = Process::start(&path, 2, 1);
        let (mut came, wanted) = (0, 50 + round * 37);
        while came < wanted {
            let now = Instant::from_nanos(clock.elapsed().as_nanos() as u64);
            assert!(clock.elapsed() < Duration::from_secs(100), "{came} frames of {wanted}");
            while let Some(len) = a.receive(&mut into, now) {
                assert!(into[..6] == mac(1) && into[6..12] == mac(2) && into[14..len] == [2; 3000]);
                came += 1;
            }
            if a.has_room() {
                a.send(&frame(mac(2), mac(1), &[1; 2000]), now);
            }
            a.flush(now);
        }
        drop(process);
        assert!(Shm::has_ended(&path, [127, 0, 0, 2].into()));
        // What it has left is taken, and then nothing is.
        let later = Instant::from_nanos(clock.elapsed().as_nanos() as u64);
        for whole in turn_at(&mut a, later) {
            assert!(whole[6..12] == mac(2) && whole[14..] == [2; 3000]);
        }
        let lost = a.counters().dropped(Dropped::NoPeer);
        a.send(&frame(mac(2), mac(1), b"x"), later);
        assert_eq!(a.counters().dropped(Dropped::NoPeer), lost + 1);
    }
    assert_eq!(a.counters().dropped(Dropped::BadLength), 0);
}

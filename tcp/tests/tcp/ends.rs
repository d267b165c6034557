//! Connections between two ends: how they begin, carry bytes, and end.

use core::net::SocketAddr;
use core::time::Duration;

use ferrovia_tcp::testing::{Link, Transfer, World, address, address_v6, config};
use ferrovia_tcp::{Config, End, Error, Happened, Ready};

const LONG: Duration = Duration::from_secs(100);

#[test]
fn bytes_arrive_in_both_directions() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let listener = world.listen(80);
    let (a, b) = world.pair(80, listener);
    let mut there = Transfer::new((0, a), (1, b), 1 << 20, 1);
    let mut back = Transfer::new((1, b), (0, a), 1 << 20, 2);
    assert!(world.run(LONG, |world| {
        let done = there.go_on(world, 5000);
        back.go_on(world, 777) & done
    }));
}

#[test]
fn ipv6_and_windows_beyond_64_kib() {
    let config = Config { send_ring: 1 << 20, receive_ring: 1 << 20, ..config(1) };
    // A link whose bytes under way fill such a window.
    let link = Link { delay: Duration::from_millis(5), rate: 100_000_000, ..Link::CLEAN };
    let mut world = World::new(&config, link, 1);
    let listener = world.listen(80);
    let to = SocketAddr::new(address_v6(1), 80);
    let a = world.ends[0].connect(address_v6(0), None, to, world.now).unwrap();
    let mut b = None;
    assert!(world.run(LONG, |world| {
        b = b.or_else(|| world.ends[1].accept(listener).unwrap());
        b.is_some()
    }));
    let info = world.ends[0].info(a).unwrap();
    assert_eq!((info.local.ip(), info.remote), (address_v6(0), to));
    let mut transfer = Transfer::new((0, a), (1, b.unwrap()), 16 << 20, 1);
    let (begun, mut most) = (world.now, 0);
    assert!(world.run(LONG, |world| {
        most = most.max(world.under_way());
        transfer.go_on(world, 1 << 20)
    }));
    // 64 KiB in each round trip would take 2.56 s.
    assert!(world.now.since(begun) < Duration::from_secs(1), "{:?}", world.now.since(begun));
    assert!(most * 1400 > 200_000, "{most} packets under way");
}

#[test]
fn a_fin_comes_behind_the_bytes_and_the_other_direction_stays_open() {
    let mut world = World::new(&config(1), Link { loss: 300, ..Link::CLEAN }, 3);
    let listener = world.listen(80);
    let (a, b) = world.pair(80, listener);
    let mut there = Transfer::new((0, a), (1, b), 40_000, 1);
    there.go_on(&mut world, 1 << 20);
    assert_eq!(there.written, 40_000);
    world.ends[0].close(a, world.now).unwrap();
    assert_eq!(world.ends[0].send(a, |_| (0, ())), Err(Error::Closed));
    assert!(world.run(LONG, |world| there.go_on(world, 999)));
    assert!(world.run(LONG, |world| world.ends[1].info(b).unwrap().peer_closed));
    assert_eq!(world.ends[1].receive(b, |_| (0, ())), Err(Error::Closed));
    assert!(world.happened(1, b).contains(Happened::PEER_CLOSED));
    let mut back = Transfer::new((1, b), (0, a), 40_000, 2);
    assert!(world.run(LONG, |world| back.go_on(world, 999)));
    world.ends[1].close(b, world.now).unwrap();
    assert!(world.run(LONG, |world| {
        let end = |world: &World, end: usize, id| world.ends[end].info(id).unwrap().end;
        end(world, 0, a) == Some(End::Closed) && end(world, 1, b) == Some(End::Closed)
    }));
    assert!(world.happened(0, a).contains(Happened::ENDED | Happened::PEER_CLOSED));
    assert!(world.happened(1, b).contains(Happened::ENDED));
    // The record of the side that closed first ends in time; then nothing is left.
    assert_eq!((world.ends[0].names(), world.ends[1].names()), (1, 0));
    for (end, id) in [(0, a), (1, b)] {
        world.ends[end].release(id, world.now).unwrap();
        assert_eq!(world.ends[end].info(id), Err(Error::NoSuch));
    }
    world.pass(LONG);
    assert_eq!((world.ends[0].names(), world.ends[0].memory(), world.ends[1].memory()), (0, 0, 0));
    assert_eq!((world.ends[0].deadline(), world.ends[1].deadline()), (None, None));
}

#[test]
fn both_sides_may_open_and_close_at_the_same_time() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let ends = [SocketAddr::new(address(0), 1000), SocketAddr::new(address(1), 2000)];
    let ids = [0, 1].map(|n| {
        let (from, to) = (ends[n], ends[1 - n]);
        world.ends[n].connect(from.ip(), Some(from.port()), to, world.now).unwrap()
    });
    assert!(world.run(LONG, |world| [0, 1].iter().all(|n| world.ends[*n].info(ids[*n]).unwrap().connected)));
    let mut transfer = Transfer::new((0, ids[0]), (1, ids[1]), 100_000, 1);
    assert!(world.run(LONG, |world| transfer.go_on(world, 1 << 20)));
    world.pass(Duration::from_secs(1));
    for n in [0, 1] {
        world.ends[n].close(ids[n], world.now).unwrap();
    }
    let closed = |world: &mut World| {
        [0, 1].iter().all(|n| world.ends[*n].info(ids[*n]).unwrap().end == Some(End::Closed))
    };
    assert!(world.run(LONG, closed));
    // Both waited: neither was first.
    assert_eq!((world.ends[0].former(), world.ends[1].former()), (1, 1));
}

#[test]
fn an_end_that_gives_a_stream_back_still_delivers_what_it_wrote() {
    let mut world = World::new(&config(1), Link { loss: 500, ..Link::CLEAN }, 5);
    let listener = world.listen(80);
    let (a, b) = world.pair(80, listener);
    let mut there = Transfer::new((0, a), (1, b), 50_000, 1);
    there.go_on(&mut world, 1 << 20);
    world.ends[0].release(a, world.now).unwrap();
    assert_eq!(world.ends[0].info(a), Err(Error::NoSuch));
    assert!(world.run(LONG, |world| there.go_on(world, 4000) && world.ends[1].info(b).unwrap().peer_closed));
    world.ends[1].release(b, world.now).unwrap();
    world.pass(LONG);
    assert_eq!([0, 1].map(|n| (world.ends[n].names(), world.ends[n].memory())), [(0, 0); 2]);
}

#[test]
fn bytes_that_nobody_will_take_are_answered_by_a_reset() {
    for unread in [true, false] {
        let mut world = World::new(&config(1), Link::CLEAN, 1);
        let listener = world.listen(80);
        let (a, b) = world.pair(80, listener);
        let mut there = Transfer::new((0, a), (1, b), 100, 1);
        if unread {
            there.go_on(&mut world, 100);
            world.run(LONG, |world| world.ends[1].info(b).unwrap().readable > 0);
            world.ends[1].release(b, world.now).unwrap();
        } else {
            world.ends[1].release(b, world.now).unwrap();
            world.run(LONG, |world| world.ends[0].info(a).unwrap().peer_closed);
            there.go_on(&mut world, 100);
        }
        assert!(world.run(LONG, |world| world.ends[0].info(a).unwrap().end == Some(End::Reset)), "{unread}");
        assert_eq!((world.ends[1].names(), world.ends[1].memory()), (0, 0));
    }
}

#[test]
fn an_abort_resets_the_peer_which_still_reads_what_came_before() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let listener = world.listen(80);
    let (a, b) = world.pair(80, listener);
    let mut there = Transfer::new((0, a), (1, b), 5000, 1);
    there.go_on(&mut world, 5000);
    world.pass(Duration::from_millis(10));
    world.ends[0].abort(a).unwrap();
    assert_eq!(world.ends[0].abort(a), Err(Error::NoSuch));
    assert!(world.run(LONG, |world| world.ends[1].info(b).unwrap().end == Some(End::Reset)));
    assert!(there.go_on(&mut world, 1000));
    assert_eq!(world.ends[1].receive(b, |_| (0, ())), Err(Error::Closed));
    assert_eq!((world.ends[0].names(), world.ends[0].memory()), (0, 0));
}

#[test]
fn streams_wait_for_the_mac_of_their_peer_and_go_on_together() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let listener = world.listen(80);
    world.outboxes[0].ready = Ready::Resolving;
    let ids: Vec<_> = (0..10).map(|_| world.connect(80)).collect();
    world.pass(Duration::from_millis(500));
    let looks = world.ends[0].counters().looks;
    world.pass(Duration::from_secs(5));
    assert_eq!(world.ends[0].counters().looks, looks, "those that wait are no work");
    // Some of them are given back, and the others keep their places.
    for id in [ids[3], ids[9]] {
        world.ends[0].abort(id).unwrap();
    }
    world.outboxes[0].ready = Ready::Now;
    world.ends[0].settled(address(1));
    let mut accepted = 0;
    assert!(world.run(Duration::from_secs(1), |world| {
        accepted += usize::from(world.ends[1].accept(listener).unwrap().is_some());
        accepted == 8
    }));
}

#[test]
fn a_link_without_room_takes_up_where_it_stopped() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let listener = world.listen(80);
    let pairs: Vec<_> = (0..3).map(|_| world.pair(80, listener)).collect();
    world.outboxes[0].room = 2;
    let mut all: Vec<_> =
        pairs.iter().map(|(a, b)| Transfer::new((0, *a), (1, *b), 200_000, a.index() as u64)).collect();
    let mut least = 0;
    assert!(world.run(LONG, |world| {
        let done = all.iter_mut().fold(true, |done, one| one.go_on(world, 3000) & done);
        let read = all.iter().map(|one| one.read);
        least = least.max(read.clone().max().unwrap() - read.min().unwrap());
        done
    }));
    // They had their turns one after the other.
    assert!(least < 70_000, "{least}");
}

#[test]
fn an_open_stream_with_an_owner_is_found_by_its_ends() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let listener = world.listen(80);
    let to = SocketAddr::new(address(1), 80);
    let a = world.ends[0].connect(address(0), None, to, world.now).unwrap();
    let local = world.ends[0].info(a).unwrap().local;
    assert_eq!(world.ends[0].find(local, to), None, "it is not open");
    assert!(world.run(LONG, |world| world.ends[0].info(a).unwrap().connected));
    assert_eq!(world.ends[0].find(local, to), Some(a));
    // At the other end it waits for its owner.
    world.run(Duration::from_secs(1), |_| false);
    assert_eq!(world.ends[1].find(to, local), None);
    let b = world.ends[1].accept(listener).unwrap().unwrap();
    assert_eq!(world.ends[1].find(to, local), Some(b));
    assert_eq!(world.ends[1].find(local, to), None);
    world.ends[1].release(b, world.now).unwrap();
    assert_eq!(world.ends[1].find(to, local), None, "it was given back");
}

#[test]
fn what_is_written_and_taken_counts() {
    let mut world = World::new(&config(1), Link::CLEAN, 1);
    let listener = world.listen(80);
    let (a, b) = world.pair(80, listener);
    let counts = |world: &World| {
        let [here, there] = [(0, a), (1, b)].map(|(n, id)| world.ends[n].progress(id).unwrap());
        (here.written, there.taken, there.written)
    };
    assert_eq!(world.ends[0].send(a, |_| (100, ())), Ok(()));
    assert_eq!(counts(&world), (100, 0, 0));
    assert!(world.run(LONG, |world| world.ends[1].info(b).unwrap().readable == 100));
    assert_eq!(counts(&world), (100, 0, 0), "it has arrived, and is not taken");
    // Looked at, and left there.
    assert_eq!(world.ends[1].receive(b, |bytes| (0, bytes.len())), Ok(100));
    assert_eq!(world.ends[1].receive(b, |_| (60, ())), Ok(()));
    assert_eq!(counts(&world), (100, 60, 0));
    assert_eq!(world.ends[1].receive(b, |_| (40, ())), Ok(()));
    assert_eq!(counts(&world), (100, 100, 0));
}

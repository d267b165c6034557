//! Two ends over a simulated link, in virtual time: for tests, fuzzing and benchmarks.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use platform::random::Random;
use platform::{Instant, Secret};

use crate::config::{MAX_RING, MIN_RING};
use crate::{Config, Egress, Event, Happened, ListenerId, Polled, Ready, StreamId, Streams};

/// The link between the ends, the same in both directions. Chances are in 10,000 packets.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The time that a packet takes.
    pub delay: Duration,
    /// Bytes in a second; 0 for any number.
    pub rate: u64,
    /// The most bytes that wait for the link; packets beyond it are lost.
    pub queue: usize,
    /// Packets that are lost.
    pub loss: u32,
    /// Packets that arrive twice.
    pub duplicate: u32,
    /// Packets that arrive behind later ones.
    pub reorder: u32,
    /// Packets of which a bit changes.
    pub corrupt: u32,
}

impl Link {
    /// A link without faults of 1 Gbit/s, on which a packet takes 100 µs.
    pub const CLEAN: Link = Link {
        delay: Duration::from_micros(100),
        rate: 125_000_000,
        queue: 1 << 20,
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
    };
}

/// An egress that keeps what it is given.
#[derive(Debug)]
pub struct Outbox {
    /// The packets.
    pub packets: Vec<Vec<u8>>,
    /// What [`Egress::ready`] says while there is room.
    pub ready: Ready,
    /// The most packets.
    pub room: usize,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox { packets: Vec::new(), ready: Ready::Now, room: usize::MAX }
    }
}

impl Egress for Outbox {
    fn ready(&mut self, _: IpAddr, _: IpAddr) -> Ready {
        if self.packets.len() < self.room { self.ready } else { Ready::Full }
    }

    fn send(&mut self, _: IpAddr, _: IpAddr, len: usize, fill: impl FnOnce(&mut [u8])) {
        let mut packet = vec![0; len];
        fill(&mut packet);
        self.packets.push(packet);
    }
}

/// The address of an end: 0 or 1.
pub fn address(end: usize) -> IpAddr {
    [10, 0, 0, 1 + end as u8].into()
}

/// The IPv6 address of an end.
pub fn address_v6(end: usize) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + end as u16).into()
}

/// The packets of [`World::recent`].
const RECENT: usize = 16;
/// The most polls of an end at one point in time.
const POLLS: usize = 100_000;

/// The MTU of the link.
pub const MTU: usize = 1500;

/// The configuration of an end whose streams have large rings from the beginning on.
pub fn config(seed: u64) -> Config {
    Config { small_ring: MAX_RING, ..growing(seed) }
}

/// The configuration of an end whose streams get large rings with use, of 64 KiB.
pub fn growing(seed: u64) -> Config {
    let (send_ring, receive_ring) = (64 << 10, 64 << 10);
    Config { small_ring: MIN_RING, send_ring, receive_ring, ..Config::new(MTU, Secret::new([seed, 7])) }
}

/// The two ends and the link.
pub struct World {
    /// The streams of each end.
    pub ends: [Streams; 2],
    /// What time it is.
    pub now: Instant,
    /// The link. It may change at any time.
    pub link: Link,
    /// What each end sends.
    pub outboxes: [Outbox; 2],
    /// The packets that were lost or corrupted on the link.
    pub lost: u64,
    /// The latest packets that the ends have sent, with their destination.
    pub recent: VecDeque<(usize, Vec<u8>)>,
    random: Random,
    /// The packets under way, with their destination.
    flight: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
    /// When each direction of the link is free.
    free_at: [Instant; 2],
}

impl World {
    /// Two ends of this configuration, with different secrets.
    pub fn new(config: &Config, link: Link, seed: u64) -> World {
        let end = |n| {
            let secret = Secret::new([seed, n]);
            Streams::new(Config { secret, ..config.clone() }).expect("a valid configuration")
        };
        World {
            ends: [end(1), end(2)],
            now: Instant::from_nanos(1_000_000_000),
            link,
            outboxes: Default::default(),
            lost: 0,
            recent: VecDeque::new(),
            random: Random::new(seed),
            flight: BTreeMap::new(),
            sent: 0,
            free_at: [Instant::ZERO; 2],
        }
    }

    /// An end, and its egress.
    pub fn end(&mut self, end: usize) -> (&mut Streams, &mut Outbox) {
        (&mut self.ends[end], &mut self.outboxes[end])
    }

    /// Puts a packet on its way to an end, as if the other one had sent it.
    pub fn inject(&mut self, to: usize, packet: Vec<u8>) {
        self.sent += 1;
        self.flight.insert((self.now, self.sent), (to, packet));
    }

    /// Puts what the ends have sent on its way.
    fn carry(&mut self) {
        for from in 0..2 {
            for mut packet in core::mem::take(&mut self.outboxes[from].packets) {
                if self.recent.len() >= RECENT {
                    self.recent.pop_front();
                }
                self.recent.push_back((1 - from, packet.clone()));
                let mut at = self.now.max(self.free_at[from]);
                if let Some(ns) = (packet.len() as u64 * 1_000_000_000).checked_div(self.link.rate) {
                    let waiting = at.since(self.now).as_nanos() as u64 * self.link.rate / 1_000_000_000;
                    if waiting > self.link.queue as u64 {
                        self.lost += 1;
                        continue;
                    }
                    at = at + Duration::from_nanos(ns);
                    self.free_at[from] = at;
                }
                at = at + self.link.delay;
                let mut happens = |chance: u32| chance > 0 && self.random.below(10_000) < chance.into();
                if happens(self.link.loss) {
                    self.lost += 1;
                    continue;
                }
                let copies = 1 + usize::from(happens(self.link.duplicate));
                if happens(self.link.corrupt) {
                    self.lost += 1;
                    let bit = self.random.below(packet.len() as u64 * 8) as usize;
                    packet[bit / 8] ^= 1 << (bit % 8);
                }
                for _ in 0..copies {
                    let late = self.link.reorder > 0 && self.random.below(10_000) < self.link.reorder.into();
                    let extra =
                        if late { Duration::from_micros(self.random.below(2000)) } else { Duration::ZERO };
                    self.sent += 1;
                    self.flight.insert((at + extra, self.sent), (1 - from, packet.clone()));
                }
            }
        }
    }

    /// Lets each end do what is due.
    pub fn poll(&mut self) {
        for _ in 0..POLLS {
            let mut idle = true;
            for end in 0..2 {
                match self.ends[end].poll(self.now, 64, &mut self.outboxes[end]) {
                    Polled::Idle => {}
                    Polled::More => idle = false,
                    // Unless it never takes any, the link has room when it has carried these.
                    Polled::Full => idle &= self.outboxes[end].packets.is_empty(),
                }
            }
            self.carry();
            if idle {
                return;
            }
        }
        panic!("an end always has something to do");
    }

    /// The next point in time at which anything happens.
    fn next(&self) -> Option<Instant> {
        let arrival = self.flight.first_key_value().map(|((at, _), _)| *at);
        [arrival, self.ends[0].deadline(), self.ends[1].deadline()].into_iter().flatten().min()
    }

    /// Goes to the next point in time at which anything happens. False: nothing will.
    pub fn step(&mut self) -> bool {
        self.poll();
        let Some(next) = self.next() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.flight.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, packet) = entry.remove();
            let (streams, outbox) = (&mut self.ends[to], &mut self.outboxes[to]);
            let _ = streams.input(&packet, self.now, outbox);
        }
        self.poll();
        true
    }

    /// Steps until `done`, or until this time has passed, or nothing happens any more; returns
    /// whether `done` was true.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            if done(self) {
                return true;
            }
            if !self.step() {
                return false;
            }
            if self.now > end {
                return false;
            }
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.poll();
        while self.next().is_some_and(|at| at <= end) && self.step() {}
        self.now = self.now.max(end);
        self.poll();
    }

    /// The packets under way.
    pub fn under_way(&self) -> usize {
        self.flight.len()
    }

    /// All that has happened at an end.
    pub fn events(&mut self, end: usize) -> Vec<Event> {
        core::iter::from_fn(|| self.ends[end].next_event()).collect()
    }

    /// Listens at end 1, on a port of all addresses.
    pub fn listen(&mut self, port: u16) -> ListenerId {
        self.ends[1].listen(None, port, 64).expect("a listener")
    }

    /// Begins to connect from end 0 to a port of end 1.
    pub fn connect(&mut self, port: u16) -> StreamId {
        let to = SocketAddr::new(address(1), port);
        self.ends[0].connect(address(0), None, to, self.now).expect("a stream")
    }

    /// A connection between end 0 and the listener at end 1.
    pub fn pair(&mut self, port: u16, listener: ListenerId) -> (StreamId, StreamId) {
        let active = self.connect(port);
        let mut passive = None;
        let done = self.run(Duration::from_secs(60), |world| {
            passive = passive.or_else(|| world.ends[1].accept(listener).expect("the listener"));
            passive.is_some() && world.ends[0].info(active).expect("the stream").connected
        });
        assert!(done, "no connection");
        (active, passive.expect("a stream"))
    }

    /// What has happened to a stream, of all that has happened at its end.
    pub fn happened(&mut self, end: usize, id: StreamId) -> Happened {
        let all = self.events(end).into_iter().filter_map(|event| match event {
            Event::Stream(of, happened) if of == id => Some(happened),
            _ => None,
        });
        all.fold(Happened::empty(), |all, happened| all | happened)
    }
}

/// The byte at a place of a stream that the tests send.
pub const fn content(stream: u64, at: u64) -> u8 {
    let mixed = (at ^ stream.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// A transfer of bytes from one stream to another.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The end and the stream that send.
    pub from: (usize, StreamId),
    /// The end and the stream that receive.
    pub to: (usize, StreamId),
    /// The number of bytes.
    pub len: u64,
    /// How many were written and read.
    pub written: u64,
    /// How many were read.
    pub read: u64,
    /// Which bytes: see [`content`].
    pub key: u64,
}

impl Transfer {
    /// A transfer that begins.
    pub const fn new(from: (usize, StreamId), to: (usize, StreamId), len: u64, key: u64) -> Transfer {
        Transfer { from, to, len, written: 0, read: 0, key }
    }

    /// Writes and reads what can be written and read, at most `piece` bytes at once; returns
    /// whether everything has arrived. Panics if a byte is not what was sent.
    pub fn go_on(&mut self, world: &mut World, piece: usize) -> bool {
        while self.written < self.len {
            let (at, left) = (self.written, self.len - self.written);
            let written = world.ends[self.from.0].send(self.from.1, |bytes| {
                let len = bytes.len().min(piece).min(usize::try_from(left).unwrap_or(usize::MAX));
                for (n, byte) in bytes[..len].iter_mut().enumerate() {
                    *byte = content(self.key, at + n as u64);
                }
                (len, len)
            });
            match written {
                Ok(0) | Err(_) => break,
                Ok(len) => self.written += len as u64,
            }
        }
        loop {
            let at = self.read;
            let read = world.ends[self.to.0].receive(self.to.1, |bytes| {
                let len = bytes.len().min(piece);
                for (n, byte) in bytes[..len].iter().enumerate() {
                    assert_eq!(*byte, content(self.key, at + n as u64), "byte {} is wrong", at + n as u64);
                }
                (len, len)
            });
            match read {
                Ok(0) | Err(_) => break,
                Ok(len) => self.read += len as u64,
            }
        }
        self.read == self.len
    }
}

//! Prints what the streams of crate `tcp` carry, and what they cost.
//!
//! ```text
//! cargo bench -p ferrovia-benches --bench streams
//! ```
//!
//! - In virtual time: two ends on a link of 1 Gbit/s and 100 µs each way, without and with losses.
//!   These figures are the same on each machine.
//! - In time of the processor: both ends on one core, without a link, beside idle streams. The
//!   baseline of the same run is smoltcp as its documentation shows it: one interface with one set
//!   of all sockets.
//! - The memory of an idle stream besides its rings.

use std::net::SocketAddr;
use std::time::Duration;

use host::CountedHeap;
use platform::{Instant, Secret};
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
use smoltcp::wire::{HardwareAddress, IpCidr};
use tcp::testing::{Link, MTU, Transfer, World, address};
use tcp::{Config, Egress, Polled, Ready, StreamId, Streams};

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

const RING: usize = 64 << 10;
const IDLE_RING: usize = 2048;
const IDLE: [usize; 3] = [1, 100, 1000];
const MIB: usize = 1 << 20;

fn main() {
    println!("goodput of 64 MiB in virtual time, 1 Gbit/s, 100 µs each way, MTU {MTU}, in MB/s");
    println!("{:>8} {:>10} {:>10}", "loss", "1 stream", "10 streams");
    for (name, loss) in [("none", 0), ("0.1 %", 10), ("1 %", 100)] {
        println!("{name:>8} {:>10.1} {:>10.1}", goodput(loss, 1), goodput(loss, 10));
    }
    println!("\nboth ends on one core, 256 MiB in one stream, in MB/s of the processor's time");
    println!("{:>14} {:>10} {:>10} {:>12}", "idle streams", "tcp", "one set", "looks/packet");
    for idle in IDLE {
        let (ours, looks) = speed(idle);
        println!("{idle:>14} {ours:>10.0} {:>10.0} {looks:>12.2}", baseline(idle));
    }
    println!("\nan idle stream without its rings: {} bytes", idle_bytes());
}

/// The time that the processor has given this thread. Others may keep it busy meanwhile.
fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    let nanos = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanos.expect("a number"))
}

/// MB/s of virtual time.
fn goodput(loss: u32, streams: u64) -> f64 {
    let config = Config::new(MTU, Secret::new([1, 2]));
    let mut world = World::new(&config, Link { loss, ..Link::CLEAN }, 1);
    let listener = world.listen(80);
    let len = 64 * MIB as u64 / streams;
    let mut all: Vec<_> = (0..streams)
        .map(|n| {
            let (a, b) = world.pair(80, listener);
            Transfer::new((0, a), (1, b), len, n)
        })
        .collect();
    let begun = world.now;
    let done = world.run(Duration::from_secs(10_000), |world| {
        all.iter_mut().fold(true, |done, one| one.go_on(world, MIB) & done)
    });
    assert!(done, "a transfer has stopped");
    (len * streams) as f64 / world.now.since(begun).as_secs_f64() / 1e6
}

/// Packets on their way, in memory that is used again.
#[derive(Default)]
struct Queue {
    packets: std::collections::VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
}

impl Queue {
    fn put(&mut self, len: usize) -> &mut [u8] {
        let mut packet = self.free.pop().unwrap_or_default();
        packet.resize(len, 0);
        self.packets.push_back(packet);
        self.packets.back_mut().expect("a packet")
    }
}

impl Egress for Queue {
    fn ready(&mut self, _: std::net::IpAddr, _: std::net::IpAddr) -> Ready {
        Ready::Now
    }

    fn send(&mut self, _: std::net::IpAddr, _: std::net::IpAddr, len: usize, fill: impl FnOnce(&mut [u8])) {
        fill(self.put(len));
    }
}

/// Two ends whose packets go from one to the other at once.
struct Pair {
    ends: [Streams; 2],
    queues: [Queue; 2],
    now: Instant,
}

impl Pair {
    fn new(streams: usize, ring: usize) -> Pair {
        let end = |n| {
            let config = Config::new(MTU, Secret::new([n, 9]));
            let (send_ring, receive_ring, memory) = (ring, ring, 2 * ring * streams);
            Streams::new(Config { streams, send_ring, receive_ring, memory, ..config }).expect("streams")
        };
        Pair { ends: [end(1), end(2)], queues: Default::default(), now: Instant::from_nanos(1) }
    }

    /// A round: each end sends, and takes what the other one has sent.
    fn round(&mut self) {
        self.now = self.now + Duration::from_micros(1);
        for end in 0..2 {
            while self.ends[end].poll(self.now, 256, &mut self.queues[end]) == Polled::More {}
            while let Some(packet) = self.queues[end].packets.pop_front() {
                let _ = self.ends[1 - end].input(&packet, self.now, &mut self.queues[1 - end]);
                self.queues[end].free.push(packet);
            }
        }
    }

    fn connect(&mut self, listener: tcp::ListenerId) -> (StreamId, StreamId) {
        let to = SocketAddr::new(address(1), 80);
        let active = self.ends[0].connect(address(0), None, to, self.now).expect("a stream");
        loop {
            self.round();
            if let Some(passive) = self.ends[1].accept(listener).expect("the listener") {
                return (active, passive);
            }
        }
    }
}

/// MB/s of the processor's time, and the looks at streams for each packet.
fn speed(idle: usize) -> (f64, f64) {
    // All rings have one size; that of idle streams does not matter.
    let mut pair = Pair::new(idle + 1, RING);
    let listener = pair.ends[1].listen(None, 80, 16).expect("a listener");
    for _ in 0..idle {
        pair.connect(listener);
    }
    let (a, b) = pair.connect(listener);
    let counted =
        |pair: &Pair| pair.ends.each_ref().map(|end| (end.counters().looks, end.counters().packets_in));
    let before = counted(&pair);
    let (total, mut read) = (256 * MIB, 0);
    let begun = processor();
    while read < total {
        while pair.ends[0].send(a, |bytes| {
            bytes.fill(7);
            (bytes.len(), bytes.len())
        }) != Ok(0)
        {}
        pair.round();
        while let Ok(len @ 1..) = pair.ends[1].receive(b, |bytes| (bytes.len(), bytes.len())) {
            read += len;
        }
    }
    let seconds = (processor() - begun).as_secs_f64();
    let after = counted(&pair);
    let [looks, packets] = [0, 1].map(|what| {
        let of = |(looks, packets): (u64, u64)| [looks, packets][what];
        (0..2).map(|end| of(after[end]) - of(before[end])).sum::<u64>() as f64
    });
    (read as f64 / seconds / 1e6, looks / packets)
}

/// The device of an interface of the baseline.
struct Port<'q> {
    from: &'q mut Queue,
    to: &'q mut Queue,
}

struct Arrived<'q>(Vec<u8>, &'q mut Queue);

struct Out<'q>(&'q mut Queue);

impl smoltcp::phy::RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.0);
        self.1.free.push(self.0);
        result
    }
}

impl smoltcp::phy::TxToken for Out<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        f(self.0.put(len))
    }
}

impl Device for Port<'_> {
    type RxToken<'t>
        = Arrived<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Out<'t>
    where
        Self: 't;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Arrived<'_>, Out<'_>)> {
        let packet = self.from.packets.pop_front()?;
        Some((Arrived(packet, self.from), Out(self.to)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Out<'_>> {
        Some(Out(self.to))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

/// MB/s of the processor's time with all sockets in one set.
fn baseline(idle: usize) -> f64 {
    let mut queues: [Queue; 2] = Default::default();
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut sets = [SocketSet::new(Vec::new()), SocketSet::new(Vec::new())];
    for end in 0..2 {
        let mut config = smoltcp::iface::Config::new(HardwareAddress::Ip);
        config.random_seed = end as u64;
        let [from, to] = &mut queues;
        let mut interface = Interface::new(config, &mut Port { from, to }, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|all| all.push(IpCidr::new(address(end).into(), 24)).expect("room"));
        interfaces.push(interface);
    }
    let mut now = 1;
    let mut round = |sets: &mut [SocketSet<'static>; 2], interfaces: &mut [Interface]| {
        now += 1;
        for end in 0..2 {
            let [first, second] = &mut queues;
            let (from, to) = if end == 0 { (second, first) } else { (first, second) };
            let time = smoltcp::time::Instant::from_micros(now);
            interfaces[end].poll(time, &mut Port { from, to }, &mut sets[end]);
        }
    };
    let mut pair = [SocketHandle::default(); 2];
    for n in 0..=idle {
        let ring = if n == idle { RING } else { IDLE_RING };
        let port = 1000 + n as u16;
        for end in 0..2 {
            let buffer = || SocketBuffer::new(vec![0; ring]);
            let mut socket = Socket::new(buffer(), buffer());
            socket.set_nagle_enabled(false);
            socket.set_congestion_control(CongestionControl::Reno);
            pair[end] = sets[end].add(socket);
        }
        sets[1].get_mut::<Socket>(pair[1]).listen(port).expect("a listener");
        let socket = sets[0].get_mut::<Socket>(pair[0]);
        socket.connect(interfaces[0].context(), (address(1), port), port).expect("a connection");
        while !sets[1].get::<Socket>(pair[1]).may_send() {
            round(&mut sets, &mut interfaces);
        }
    }
    let (total, mut read) = (if idle > 100 { 32 } else { 256 } * MIB, 0);
    let begun = processor();
    while read < total {
        let socket = sets[0].get_mut::<Socket>(pair[0]);
        while socket.can_send() {
            let written = socket.send(|bytes| {
                bytes.fill(7);
                (bytes.len(), ())
            });
            written.expect("an open socket");
        }
        round(&mut sets, &mut interfaces);
        let socket = sets[1].get_mut::<Socket>(pair[1]);
        while socket.can_recv() {
            read += socket.recv(|bytes| (bytes.len(), bytes.len())).expect("an open socket");
        }
    }
    read as f64 / (processor() - begun).as_secs_f64() / 1e6
}

/// The bytes of an idle stream besides its rings: half of those of two ends.
fn idle_bytes() -> usize {
    const COUNT: usize = 1000;
    let mut pair = Pair::new(COUNT + 1, IDLE_RING);
    let listener = pair.ends[1].listen(None, 80, 16).expect("a listener");
    // The queues of packets have what they need.
    pair.connect(listener);
    let before = HEAP.used();
    for _ in 0..COUNT {
        pair.connect(listener);
    }
    (HEAP.used() - before) / (2 * COUNT) - 2 * IDLE_RING
}

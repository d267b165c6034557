//! Many connections: how many are established in a second, and what a request costs among them.
//!
//! The first two NICs have many connections, the next two have a few. Requests of both alternate,
//! so that their costs are measured in the same state of the machine.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use common::{Failure, Node, SERVICE, Trying};
use kernel::{clock, println};
use rdma::{Access, Connecting, Endpoint, Listener, PostError, Queue, Region, RemoteMemory, Transport, Work};

use super::link::{Link, SMALL, Wait, reap};
use super::{Role, address};
use crate::samples::{Samples, Summary};

/// NICs of a fleet: one NIC has too few queue pairs for all connections.
const NICS: usize = 2;
/// All connections, over the NICs of the first fleet.
const ALL: usize = 1 << 14;
/// The same over iWARP: a NIC has 4,096 streams, and an agent takes fewer.
const ALL_STREAMS: usize = 4096;
/// Connections in use at a time; the second fleet has no others.
const ACTIVE: usize = 16;
const ACTIVE_OF_NIC: usize = ACTIVE / NICS;
/// Connections that are being established at once.
const AT_ONCE: usize = 32;
/// Requests in flight on each active connection: many, so that the device seldom runs out of work
/// when it shares a processor with the guest.
const DEPTH: usize = 16;
/// Requests of a sample, which is their mean time.
const BATCH: usize = 2048;
/// How long each cost is measured.
const TIME: Duration = Duration::from_secs(4);

/// Connections that have requests outstanding at a time, at most.
const SHARE: usize = 64;

/// How many connections there are.
#[derive(Clone, Copy)]
struct Crowd {
    all: usize,
}

impl Crowd {
    fn of(node: &Node) -> Crowd {
        let over_streams = node.transport == Transport::Iwarp;
        Crowd { all: if over_streams { ALL_STREAMS } else { ALL } }
    }

    /// All connections on one NIC.
    fn of_nic(self) -> usize {
        self.all / NICS
    }

    /// The connections of each NIC.
    fn connections(self) -> [usize; 2 * NICS] {
        [self.of_nic(), self.of_nic(), ACTIVE_OF_NIC, ACTIVE_OF_NIC]
    }

    /// The distance between the endpoints in use: not a power of two, so that their memory does not
    /// map to the same sets of a cache.
    fn stride(self) -> usize {
        self.of_nic() / ACTIVE_OF_NIC - 3
    }
}

/// The endpoints on one NIC. They share their queue and their memory.
pub struct Fleet {
    pub endpoints: Vec<Endpoint>,
    pub queue: Queue,
    memory: Region,
    /// The peer's memory.
    peer: RemoteMemory,
}

impl Fleet {
    /// Endpoints that are not connected, with so much memory. The machines exchange the addresses
    /// of it.
    pub fn new(
        node: &Node,
        link: &Link,
        role: Role,
        (nic, connections): (usize, usize),
        bytes: usize,
    ) -> Result<Fleet, Failure> {
        let nic = node.nic(nic)?;
        let domain = nic.domain().trying("a domain")?;
        let depth = 2 * DEPTH as u32;
        let queue = nic.queue((depth + 1) * connections.min(SHARE) as u32).trying("a queue")?;
        let memory = domain.shared_region(bytes, Access::WRITE).trying("memory")?;
        let own = memory.remote().ok_or_else(|| Failure::new("peers may not write the memory"))?;
        let builder = domain.endpoint().sends(depth).receives(1).queue(&queue);
        let mut endpoints = Vec::with_capacity(connections);
        for _ in 0..connections {
            endpoints.push(builder.clone().build().trying("an endpoint")?);
        }
        Ok(Fleet { endpoints, queue, memory, peer: link.swap_memory(role, own)? })
    }

    /// Connects all endpoints, [`AT_ONCE`] at a time.
    pub fn connect(&self, nic: usize) -> Result<(), Failure> {
        let to = address(nic as u8)?;
        let mut connecting: VecDeque<Connecting> = VecDeque::new();
        let established = |next: Connecting| next.wait().map(drop).trying("connecting");
        for endpoint in &self.endpoints {
            if connecting.len() == AT_ONCE {
                connecting.pop_front().map_or(Ok(()), established)?;
            }
            connecting.push_back(endpoint.connect(to, SERVICE));
        }
        connecting.into_iter().try_for_each(established)
    }

    /// Accepts connections for all endpoints.
    pub fn accept(&self, listener: &Listener) -> Result<(), Failure> {
        let mut accepting = Vec::with_capacity(self.endpoints.len());
        for endpoint in &self.endpoints {
            accepting.push(listener.wait().trying("listening")?.accept(endpoint));
        }
        accepting.into_iter().try_for_each(|next| next.wait().map(drop).trying("accepting"))
    }

    /// Posts an RDMA Write. False if the endpoint's queue is full: the device may execute the
    /// requests of other endpoints first.
    pub fn write(&self, endpoint: &Endpoint) -> Result<bool, Failure> {
        match endpoint.post(Work::write(self.memory.slice(..), self.peer)) {
            Err(PostError::Full) => Ok(false),
            posted => posted.trying("an RDMA Write").map(|()| true),
        }
    }
}

/// A fleet on each NIC.
fn fleets(node: &Node, link: &Link, role: Role) -> Result<Vec<Fleet>, Failure> {
    let all = Crowd::of(node).connections().into_iter().enumerate();
    all.map(|of| Fleet::new(node, link, role, of, SMALL)).collect()
}

/// Measures and prints. `message` is the time of a blocking Send, of which establishing a
/// connection takes three.
pub fn measure(node: &Node, link: &Link, message: Summary) -> Result<(), Failure> {
    let (crowd, fleets) = (Crowd::of(node), fleets(node, link, Role::Client)?);
    let mut seconds = 0.0;
    for (nic, fleet) in fleets.iter().enumerate() {
        link.barrier(Role::Client)?;
        let begin = clock::tsc();
        fleet.connect(nic)?;
        seconds += (clock::tsc() - begin) as f64 / clock::tsc_hz() as f64;
    }
    let rate = crowd.connections().iter().sum::<usize>() as f64 / seconds;
    let baseline = 1e6 / (3.0 * message.median);
    println!("@bench two machines: connections, {AT_ONCE} at a time|{rate:.1}|-|1/s|{baseline:.1}");

    let (many, few) = fleets.split_at(NICS);
    let mut alone = || cost(few, |number| number % ACTIVE_OF_NIC);
    let mut among = || cost(many, |number| number % ACTIVE_OF_NIC * crowd.stride());
    let [among, alone] = Samples::take_in_turn(TIME, [&mut among, &mut alone])?;
    // Separately, since they push the others out of the caches.
    let mut turns = 0;
    let mut all = || {
        turns += BATCH / NICS;
        cost(many, |number| (turns + number) % crowd.of_nic())
    };
    let [all] = Samples::take_in_turn(TIME, [&mut all])?;
    let [alone, among, all] = [alone, among, all].map(|samples| samples.tenth() / BATCH as f64);
    let total = if crowd.all == ALL { "16,384" } else { "4,096" };
    for (name, figure, baseline) in [
        (String::from("16 endpoints of 16"), alone, None),
        (format!("16 endpoints of {total}"), among, Some(alone)),
        (format!("{total} endpoints in turn"), all, Some(alone)),
    ] {
        let baseline = baseline.map_or_else(|| "-".into(), |baseline| format!("{baseline:.4}"));
        println!(
            "@bench two machines: 64-byte RDMA Writes, {name}, 10th percentile|{figure:.4}|-|us|{baseline}"
        );
    }
    // The image ends, and the ends of so many connections would take its time.
    core::mem::forget(fleets);
    link.barrier(Role::Client)
}

/// The ticks of [`BATCH`] requests, with [`DEPTH`] in flight on each active endpoint. The NICs take
/// turns; `choose` returns the endpoint of a NIC's next request, given the number of its requests
/// so far.
fn cost(fleets: &[Fleet], choose: impl Fn(usize) -> usize) -> Result<u64, Failure> {
    let begin = clock::tsc();
    let mut posted = 0;
    for done in 0..BATCH {
        while posted < BATCH.min(done + DEPTH * ACTIVE) {
            let fleet = &fleets[posted % fleets.len()];
            if !fleet.write(&fleet.endpoints[choose(posted / fleets.len())])? {
                break;
            }
            posted += 1;
        }
        reap(&fleets[done % fleets.len()].queue, Wait::Polling)?;
    }
    Ok(clock::tsc() - begin)
}

/// Accepts the connections, and keeps them until the client has finished.
pub fn answer(node: &Node, link: &Link) -> Result<(), Failure> {
    let fleets = fleets(node, link, Role::Server)?;
    for fleet in &fleets {
        let nic = fleet.queue.nic();
        let listener = nic.listen(SERVICE).trying("listening")?;
        link.barrier(Role::Server)?;
        fleet.accept(&listener)?;
    }
    core::mem::forget(fleets);
    link.barrier(Role::Server)
}

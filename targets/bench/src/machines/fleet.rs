//! Many connections: how many are established in a second, and what a request costs among them.
//!
//! The first two NICs have many connections, the next two have a few. Requests of both alternate,
//! so that their costs are measured in the same state of the machine.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use common::{Failure, Listener, Node, Side, Sizes, Trying};
use kernel::{clock, println};
use platform::DmaBuffer;
use privileged_api::{
    AddrMode, DtoFlags, DtoStatus, EpHandle, Error, Event, LmrFlags, LmrMemory, LmrTriplet, MemPriv,
    RmrContext, make_rdma_addr_absolute,
};

use super::link::{Link, SMALL};
use super::{Role, address};
use crate::samples::{Samples, Summary};

/// NICs of a fleet: one NIC has too few queue pairs for all connections.
const NICS: usize = 2;
/// All connections, over the NICs of the first fleet.
const ALL: usize = 1 << 14;
/// Connections in use at a time; the second fleet has no others.
const ACTIVE: usize = 16;
/// All connections on one NIC.
const ALL_OF_NIC: usize = ALL / NICS;
const ACTIVE_OF_NIC: usize = ACTIVE / NICS;
/// The connections of each NIC.
const CONNECTIONS: [usize; 2 * NICS] = [ALL_OF_NIC, ALL_OF_NIC, ACTIVE_OF_NIC, ACTIVE_OF_NIC];
/// The distance between the endpoints in use: not a power of two, so that their memory does not map
/// to the same sets of a cache.
const STRIDE: usize = ALL_OF_NIC / ACTIVE_OF_NIC - 3;
/// Connections that are being established at once.
const AT_ONCE: usize = 32;
/// Requests in flight on each active connection: many, so that the device seldom runs out of work
/// when it shares a processor with the guest.
const DEPTH: usize = 16;
/// Requests of a sample, which is their mean time.
const BATCH: usize = 2048;
/// How long each cost is measured.
const TIME: Duration = Duration::from_secs(4);

/// The endpoints on one NIC. They share their event dispatchers and their memory.
struct Fleet {
    /// The first endpoint, with the event dispatchers of all.
    side: Side,
    eps: Vec<EpHandle>,
    /// Keeps the memory.
    _memory: Arc<DmaBuffer>,
    segment: LmrTriplet,
    /// The memory of this end, and then that of the peer.
    target: (u64, RmrContext),
}

impl Fleet {
    fn new(node: &Node, nic: usize, connections: usize) -> Result<Fleet, Failure> {
        let sizes = Sizes { requests: 2 * DEPTH, message: SMALL };
        let side = Side::of_many(node.ia(nic)?, sizes, connections)?;
        let memory = DmaBuffer::new(&node.platform, SMALL, SMALL).map_err(|_| "out of memory");
        let memory = Arc::new(memory.trying("memory")?);
        let whole = LmrMemory::Buffer { buffer: &memory, offset: 0 };
        let rights = MemPriv::LOCAL | MemPriv::REMOTE_WRITE;
        let (lmr, context) = side
            .ia
            .lmr_create(side.pz, whole, SMALL as u64, AddrMode::Absolute, rights, LmrFlags::NONE, 0)
            .trying("it_lmr_create")?;
        let context = context.ok_or_else(|| Failure::new("the memory has no RMR context"))?;
        let addr = memory.addr() as u64;
        let segment = LmrTriplet::new(lmr, addr, SMALL as u64);
        let mut eps = Vec::with_capacity(connections);
        eps.push(side.ep);
        for _ in 1..connections {
            eps.push(side.another(sizes)?);
        }
        Ok(Fleet { side, eps, _memory: memory, segment, target: (addr, context) })
    }

    /// Connects all endpoints, [`AT_ONCE`] at a time.
    fn connect(&self, nic: usize) -> Result<(), Failure> {
        let to = address(nic as u8)?;
        let mut asked = self.eps.iter();
        let mut ask = || asked.next().map_or(Ok(()), |ep| self.side.request_for(*ep, &to));
        (0..AT_ONCE).try_for_each(|_| ask())?;
        self.eps.iter().try_for_each(|_| self.side.established().and_then(|()| ask()))
    }

    /// Accepts connections for all endpoints.
    fn accept(&self, listener: &Listener<'_>) -> Result<(), Failure> {
        self.eps.iter().try_for_each(|ep| listener.accept(*ep))?;
        self.eps.iter().try_for_each(|_| self.side.established())
    }

    /// Posts an RDMA Write. False if the endpoint's queue is full: the device may execute the
    /// requests of other endpoints first.
    fn write(&self, ep: EpHandle) -> Result<bool, Failure> {
        let (addr, context) = self.target;
        let to = make_rdma_addr_absolute(addr as usize);
        match self.side.ia.post_rdma_write(ep, &[self.segment], 0, DtoFlags::COMPLETION, to, context) {
            Err(Error::TooManyPosts) => Ok(false),
            posted => posted.trying("it_post_rdma_write").map(|()| true),
        }
    }

    fn reap(&self) -> Result<(), Failure> {
        let event = loop {
            match self.side.ia.evd_dequeue(self.side.requests) {
                Err(Error::QueueEmpty) => core::hint::spin_loop(),
                other => break other,
            }
        };
        match event.trying("it_evd_dequeue")? {
            Event::Dto(done) if done.dto_status == DtoStatus::Success => Ok(()),
            other => Err(Failure::new(format_args!("unexpected {other:?}"))),
        }
    }
}

/// A fleet on each NIC. The machines exchange the addresses of their memory.
fn fleets(node: &Node, link: &Link, role: Role) -> Result<Vec<Fleet>, Failure> {
    let mut fleets = Vec::new();
    for (nic, connections) in CONNECTIONS.into_iter().enumerate() {
        let mut fleet = Fleet::new(node, nic, connections)?;
        let (addr, context) = fleet.target;
        let [addr, context, ..] = link.swap(role, [addr, context.0.into(), 0, 0])?;
        fleet.target = (addr, RmrContext(u32::try_from(context).trying("the peer's memory")?));
        fleets.push(fleet);
    }
    Ok(fleets)
}

/// Measures and prints. `message` is the time of a blocking Send, of which establishing a
/// connection takes three.
pub fn measure(node: &Node, link: &Link, message: Summary) -> Result<(), Failure> {
    let fleets = fleets(node, link, Role::Client)?;
    let mut seconds = 0.0;
    for (nic, fleet) in fleets.iter().enumerate() {
        link.barrier(Role::Client)?;
        let begin = clock::tsc();
        fleet.connect(nic)?;
        seconds += (clock::tsc() - begin) as f64 / clock::tsc_hz() as f64;
    }
    let rate = CONNECTIONS.iter().sum::<usize>() as f64 / seconds;
    let baseline = 1e6 / (3.0 * message.median);
    println!("@bench two machines: connections, {AT_ONCE} at a time|{rate:.1}|-|1/s|{baseline:.1}");

    let (many, few) = fleets.split_at(NICS);
    let mut alone = || cost(few, |number| number % ACTIVE_OF_NIC);
    let mut among = || cost(many, |number| number % ACTIVE_OF_NIC * STRIDE);
    let [among, alone] = Samples::take_in_turn(TIME, [&mut among, &mut alone])?;
    // Separately, since they push the others out of the caches.
    let mut turns = 0;
    let mut all = || {
        turns += BATCH / NICS;
        cost(many, |number| (turns + number) % ALL_OF_NIC)
    };
    let [all] = Samples::take_in_turn(TIME, [&mut all])?;
    let [alone, among, all] = [alone, among, all].map(|samples| samples.tenth() / BATCH as f64);
    for (name, figure, baseline) in [
        ("16 endpoints of 16", alone, None),
        ("16 endpoints of 16,384", among, Some(alone)),
        ("16,384 endpoints in turn", all, Some(alone)),
    ] {
        let baseline = baseline.map_or_else(|| "-".into(), |baseline| format!("{baseline:.4}"));
        println!(
            "@bench two machines: 64-byte RDMA Writes, {name}, 10th percentile|{figure:.4}|-|us|{baseline}"
        );
    }
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
            if !fleet.write(fleet.eps[choose(posted / fleets.len())])? {
                break;
            }
            posted += 1;
        }
        fleets[done % fleets.len()].reap()?;
    }
    Ok(clock::tsc() - begin)
}

/// Accepts the connections, and keeps them until the client has finished.
pub fn answer(node: &Node, link: &Link) -> Result<(), Failure> {
    let fleets = fleets(node, link, Role::Server)?;
    for fleet in &fleets {
        let listener = Listener::new(&fleet.side.ia)?;
        link.barrier(Role::Server)?;
        fleet.accept(&listener)?;
        listener.free()?;
    }
    link.barrier(Role::Server)
}

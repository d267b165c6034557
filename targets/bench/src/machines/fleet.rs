//! Many connections: how many are made in a second, and what a request costs among them.

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
use super::{NICS, Role, address};
use crate::samples::{Samples, Summary};

/// All connections, over both NICs.
const ALL: usize = 1 << 14;
/// Connections that are used at a time, over both NICs.
const ACTIVE: usize = 16;
/// The same of one NIC.
const ALL_OF_NIC: usize = ALL / NICS as usize;
const ACTIVE_OF_NIC: usize = ACTIVE / NICS as usize;
/// Endpoints from one that is used to the next: not a power of two, so that their memory does not
/// compete for the same places of a cache.
const STRIDE: usize = ALL_OF_NIC / ACTIVE_OF_NIC - 3;
/// Connections that are being made at once.
const AT_ONCE: usize = 32;
/// Requests under way for each active connection: many, so that the device seldom runs out of work
/// when it shares a processor with the guest.
const DEPTH: usize = 16;
/// Requests whose mean time is a sample.
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
    /// This end's memory, and then the peer's.
    target: (u64, RmrContext),
}

impl Fleet {
    fn new(node: &Node, nic: usize) -> Result<Fleet, Failure> {
        let sizes = Sizes { requests: 2 * DEPTH, message: SMALL };
        let side = Side::of_many(node.ia(nic)?, sizes, ALL_OF_NIC)?;
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
        let mut eps = Vec::with_capacity(ALL_OF_NIC);
        eps.push(side.ep);
        for _ in 1..ALL_OF_NIC {
            eps.push(side.another(sizes)?);
        }
        Ok(Fleet { side, eps, _memory: memory, segment, target: (addr, context) })
    }

    /// Connects the endpoints up to number `count`, [`AT_ONCE`] at a time.
    fn connect(&self, nic: usize, from: usize, count: usize) -> Result<(), Failure> {
        let to = address(nic as u8)?;
        let mut asked = from;
        for established in from..count {
            while asked < count.min(established + AT_ONCE) {
                self.side.request_for(self.eps[asked], &to)?;
                asked += 1;
            }
            self.side.established()?;
        }
        Ok(())
    }

    /// Accepts connections for the endpoints up to number `count`.
    fn accept(&self, listener: &Listener<'_>, from: usize, count: usize) -> Result<(), Failure> {
        self.eps[from..count].iter().try_for_each(|ep| listener.accept(*ep))?;
        (from..count).try_for_each(|_| self.side.established())
    }

    /// Posts an RDMA Write. False if the endpoint's queue is full: the device may have done the
    /// requests of others first.
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

/// A fleet on each NIC; both machines tell each other of their memory.
fn fleets(node: &Node, link: &Link, role: Role) -> Result<Vec<Fleet>, Failure> {
    let mut fleets = Vec::new();
    for nic in 0..usize::from(NICS) {
        let mut fleet = Fleet::new(node, nic)?;
        let (addr, context) = fleet.target;
        let [addr, context, ..] = link.swap(role, [addr, context.0.into(), 0, 0])?;
        fleet.target = (addr, RmrContext(u32::try_from(context).trying("the peer's memory")?));
        fleets.push(fleet);
    }
    Ok(fleets)
}

/// Measures and prints. `message` is the time of a blocking Send: a connection takes three of them.
pub fn measure(node: &Node, link: &Link, message: Summary) -> Result<(), Failure> {
    let fleets = fleets(node, link, Role::Client)?;
    connect(link, &fleets, 0, ACTIVE_OF_NIC)?;
    let few = cost(&fleets, |number| number % ACTIVE_OF_NIC)?;
    let seconds = connect(link, &fleets, ACTIVE_OF_NIC, ALL_OF_NIC)?;
    let rate = (ALL - ACTIVE) as f64 / seconds;
    let baseline = 1e6 / (3.0 * message.median);
    println!("@bench two machines: connections, {AT_ONCE} at a time|{rate:.1}|-|1/s|{baseline:.1}");

    let many = cost(&fleets, |number| number % ACTIVE_OF_NIC * STRIDE)?;
    let turns = cost(&fleets, |number| number % ALL_OF_NIC)?;
    for (name, figure, baseline) in [
        ("16 endpoints of 16", few, None),
        ("16 endpoints of 16,384", many, Some(few)),
        ("16,384 endpoints in turn", turns, Some(few)),
    ] {
        let baseline = baseline.map_or_else(|| "-".into(), |baseline| format!("{baseline:.4}"));
        println!(
            "@bench two machines: 64-byte RDMA Writes, {name}, 10th percentile|{figure:.4}|-|us|{baseline}"
        );
    }
    link.barrier(Role::Client)
}

/// Connects on both NICs; returns the seconds that it took.
fn connect(link: &Link, fleets: &[Fleet], from: usize, count: usize) -> Result<f64, Failure> {
    link.barrier(Role::Client)?;
    let begin = clock::tsc();
    for (nic, fleet) in fleets.iter().enumerate() {
        fleet.connect(nic, from, count)?;
    }
    Ok((clock::tsc() - begin) as f64 / clock::tsc_hz() as f64)
}

/// What a request costs while [`DEPTH`] are under way for each active endpoint, in microseconds.
/// The NICs take turns; `choose` returns the endpoint of a NIC's next request, from the number of
/// its requests so far.
fn cost(fleets: &[Fleet], choose: impl Fn(usize) -> usize) -> Result<f64, Failure> {
    let mut first = 0;
    let samples = Samples::take_for(TIME, || {
        let begin = clock::tsc();
        let mut posted = 0;
        for done in 0..BATCH {
            while posted < BATCH.min(done + DEPTH * ACTIVE) {
                let number = first + posted;
                let fleet = &fleets[number % fleets.len()];
                if !fleet.write(fleet.eps[choose(number / fleets.len())])? {
                    break;
                }
                posted += 1;
            }
            fleets[(first + done) % fleets.len()].reap()?;
        }
        first += BATCH;
        Ok::<u64, Failure>(clock::tsc() - begin)
    })?;
    Ok(samples.tenth() / BATCH as f64)
}

/// Accepts the connections.
pub fn answer(node: &Node, link: &Link) -> Result<(), Failure> {
    let fleets = fleets(node, link, Role::Server)?;
    for (from, count) in [(0, ACTIVE_OF_NIC), (ACTIVE_OF_NIC, ALL_OF_NIC)] {
        let listeners = fleets.iter().map(|fleet| Listener::new(&fleet.side.ia));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        link.barrier(Role::Server)?;
        for (fleet, listener) in fleets.iter().zip(&listeners) {
            fleet.accept(listener, from, count)?;
        }
        listeners.into_iter().try_for_each(Listener::free)?;
    }
    link.barrier(Role::Server)
}

//! A consumer of the VIPL face that makes any call with any arguments: its objects, and how it
//! chooses arguments.

mod data;
mod handlers;
mod objects;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::Node;
use platform::sync::Mutex;
use platform::{DmaBuffer, Platform};
use vipl::*;

use crate::Input;

/// How long the calls wait that furnish the consumer, milliseconds.
const PATIENCE: u32 = 10_000;
/// Openings of NICs at most.
const MOST_NICS: usize = 6;
/// Calls that wait in threads of their own at most.
const MOST_WAITERS: u32 = 4;
/// Bytes of each buffer.
const BUFFER: usize = 8192;
/// Bytes from one place for a descriptor to the next.
const STEP: usize = 256;
/// What memory holds that no region covers.
const OUTSIDE: u8 = 77;

/// A handle, and the number of the opening that it is of.
type Owned = (usize, u64);

/// Handles of each type that calls have returned, valid or not.
#[derive(Clone, Default)]
struct Pools {
    ptag: Vec<Owned>,
    vi: Vec<Owned>,
    cq: Vec<Owned>,
    conn: Vec<Owned>,
    /// Opening, address and handle.
    memory: Vec<(usize, u64, u32)>,
}

/// Openings of one or two NICs, their objects, and what it learned.
#[derive(Clone)]
pub(crate) struct ViplConsumer {
    platform: Arc<dyn Platform>,
    provider: Provider,
    /// All openings, of all copies of this consumer.
    nics: Arc<Mutex<Vec<Nic>>>,
    names: [String; 2],
    pools: Pools,
    /// Handles of other faces.
    foreign: Vec<u64>,
    buffers: [Arc<DmaBuffer>; 2],
    /// Memory that is never registered.
    outside: Arc<DmaBuffer>,
    /// Calls that wait in threads of their own.
    waiters: Arc<AtomicU32>,
}

/// A number that most calls accept, and now and then any.
fn size(input: &mut Input<'_>, usual: usize) -> u64 {
    if input.rarely(8) { input.number() } else { input.below(usual) as u64 }
}

/// A timeout of a call that nothing else ends.
fn timeout(input: &mut Input<'_>) -> u32 {
    input.number() as u32 & 0xfff
}

fn level(input: &mut Input<'_>) -> ReliabilityLevel {
    [ReliabilityLevel::Unreliable, ReliabilityLevel::Delivery, ReliabilityLevel::Reception][input.below(3)]
}

fn open_memory(ptag: PtagHandle) -> MemAttributes {
    MemAttributes { ptag, enable_rdma_write: true, enable_rdma_read: true }
}

impl ViplConsumer {
    /// Opens these NICs, and makes two connected pairs of virtual interfaces, the second one with
    /// completion queues.
    pub(crate) fn new(
        node: &Node,
        nics: [usize; 2],
        foreign: Vec<u64>,
        level: ReliabilityLevel,
    ) -> ViplConsumer {
        let buffer = || Arc::new(DmaBuffer::new(&node.platform, BUFFER, 4096).expect("memory"));
        let names = nics.map(|nic| format!("rnic{nic}"));
        let opened = names.each_ref().map(|name| node.vipl.open_nic(name).expect("a NIC"));
        let mut consumer = ViplConsumer {
            platform: node.platform.clone(),
            provider: node.vipl.clone(),
            nics: Arc::new(Mutex::new(opened.to_vec())),
            names,
            pools: Pools::default(),
            foreign,
            buffers: [buffer(), buffer()],
            outside: buffer(),
            waiters: Arc::default(),
        };
        consumer.outside.slice().fill(OUTSIDE);
        consumer.furnish(&opened, level).expect("two connected pairs");
        consumer
    }

    fn furnish(&mut self, nics: &[Nic; 2], level: ReliabilityLevel) -> Result<()> {
        let mut vis = [Vec::new(), Vec::new()];
        for (n, nic) in nics.iter().enumerate() {
            let (ptag, buffer) = (nic.create_ptag()?, &self.buffers[n]);
            let memory = nic.register_mem(Memory::buffer(buffer), BUFFER as u64, &open_memory(ptag))?;
            self.pools.ptag.push((n, ptag.as_raw()));
            self.pools.memory.push((n, buffer.addr() as u64, memory.as_raw()));
            let attributes = ViAttributes {
                reliability_level: level,
                enable_rdma_write: true,
                enable_rdma_read: level.is_reliable(),
                ..ViAttributes::new(ptag)
            };
            let cq = nic.create_cq(8)?;
            self.pools.cq.push((n, cq.as_raw()));
            for cq in [CqHandle::NULL, cq] {
                vis[n].push(nic.create_vi_sized(&attributes, cq, cq, [8; 2])?);
            }
        }
        let [ours, theirs] = vis;
        let server = nics[1].address(b"s")?;
        for (&a, &b) in ours.iter().zip(&theirs) {
            let (nic, own, to) = (nics[0].clone(), nics[0].address(b"c")?, server.clone());
            self.spawn(move || nic.connect_request(a, &own, &to, PATIENCE));
            let request = nics[1].connect_wait(&server, None, PATIENCE)?;
            nics[1].connect_accept(request.conn, b)?;
            self.pools.conn.push((1, request.conn.as_raw()));
            self.pools.vi.extend([(0, a.as_raw()), (1, b.as_raw())]);
        }
        self.wait_for_waiters();
        Ok(())
    }

    /// Makes a call in a thread of its own.
    fn spawn<R>(&self, call: impl FnOnce() -> R + Send + 'static) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let (waiters, platform) = (self.waiters.clone(), self.platform.clone());
        let main = move || {
            call();
            waiters.fetch_sub(1, Ordering::Release);
            platform.wake(&waiters);
        };
        self.platform.spawn("waiter", Box::new(main)).expect("a thread");
    }

    /// Makes a call in a thread of its own, unless there are many.
    fn spawn_some<R>(&self, call: impl FnOnce() -> R + Send + 'static) {
        if self.waiters.load(Ordering::Relaxed) < MOST_WAITERS {
            self.spawn(call);
        }
    }

    fn wait_for_waiters(&self) {
        loop {
            match self.waiters.load(Ordering::Acquire) {
                0 => return,
                left => drop(self.platform.wait(&self.waiters, left, None)),
            }
        }
    }

    /// Closes all NICs. All waiters return, and nothing is left of any opening.
    pub(crate) fn close(&self) {
        let nics = self.nics.lock().clone();
        for nic in &nics {
            match nic.close_nic() {
                Ok(()) | Err(Error::InvalidParameter) => {}
                Err(other) => panic!("closing the NIC: {other}"),
            }
        }
        self.wait_for_waiters();
        for nic in &nics {
            assert_eq!(nic.opening_counts(), OpeningCounts::default(), "objects of a closed NIC");
            assert_eq!(nic.query_nic(), Err(Error::InvalidParameter), "a closed NIC");
        }
    }

    /// Panics if memory was touched that was never registered.
    pub(crate) fn check_outside(&self) {
        let mut bytes = [0; BUFFER];
        self.outside.read(0, &mut bytes).expect("the buffer's length");
        assert!(bytes == [OUTSIDE; BUFFER], "memory was touched that no region covers");
    }

    /// An opening, and its number.
    fn nic(&self, input: &mut Input<'_>) -> (usize, Nic) {
        let nics = self.nics.lock();
        let number = input.below(nics.len());
        (number, nics[number].clone())
    }

    /// A handle, mostly with the opening that it is of.
    fn handle(&self, input: &mut Input<'_>, pool: impl Fn(&Pools) -> &Vec<Owned>) -> (Nic, u64) {
        let pool = pool(&self.pools);
        let (owner, word) = match input.below(16) {
            0..3 => pool.last().copied().unwrap_or_default(),
            12 => (0, 0),
            13 => {
                let p = &self.pools;
                let all = [&p.ptag, &p.vi, &p.cq, &p.conn];
                match input.below(1 + all.len()) {
                    0 => (0, input.pick(&self.foreign).unwrap_or(1)),
                    n => input.pick(all[n - 1]).unwrap_or_default(),
                }
            }
            14 => {
                let (owner, word) = input.pick(pool).unwrap_or_default();
                (owner, word ^ 1 << input.below(64))
            }
            15 => (0, input.word()),
            _ => input.pick(pool).unwrap_or_default(),
        };
        let nic = if input.rarely(16) { self.nic(input).1 } else { self.nics.lock()[owner].clone() };
        (nic, word)
    }

    /// A handle that is mostly one of this opening.
    fn handle_of(&self, number: usize, input: &mut Input<'_>, pool: impl Fn(&Pools) -> &Vec<Owned>) -> u64 {
        if input.rarely(8) {
            return self.handle(input, pool).1;
        }
        let of: Vec<u64> =
            pool(&self.pools).iter().filter(|(owner, _)| *owner == number).map(|(_, word)| *word).collect();
        input.pick(&of).unwrap_or(0)
    }

    fn ptag(&self, number: usize, input: &mut Input<'_>) -> PtagHandle {
        PtagHandle::from_raw(self.handle_of(number, input, |p| &p.ptag))
    }

    fn vi(&self, input: &mut Input<'_>) -> (Nic, ViHandle) {
        let (nic, word) = self.handle(input, |p| &p.vi);
        (nic, ViHandle::from_raw(word))
    }

    fn cq(&self, input: &mut Input<'_>) -> (Nic, CqHandle) {
        let (nic, word) = self.handle(input, |p| &p.cq);
        (nic, CqHandle::from_raw(word))
    }

    /// A completion queue for a new virtual interface: mostly none.
    fn tied(&self, number: usize, input: &mut Input<'_>) -> CqHandle {
        match input.rarely(4) {
            true => CqHandle::from_raw(self.handle_of(number, input, |p| &p.cq)),
            false => CqHandle::NULL,
        }
    }

    /// Registered memory, by its opening, address and handle; now and then one of them is another
    /// one.
    fn memory(&self, input: &mut Input<'_>) -> (usize, u64, MemHandle) {
        let (owner, address, handle) = input.pick(&self.pools.memory).unwrap_or_default();
        let address = match input.below(16) {
            14 => self.outside.addr() as u64,
            15 => address.wrapping_add(input.number()),
            _ => address,
        };
        let handle = match input.below(16) {
            13 => handle ^ 1 << input.below(32),
            14 => input.pick(&self.pools.memory).unwrap_or_default().2,
            15 => input.number() as u32,
            _ => handle,
        };
        (owner, address, MemHandle::from_raw(handle))
    }

    /// A host address and a discriminator.
    fn address(&self, input: &mut Input<'_>) -> NetAddress {
        let names: [&[u8]; 4] = [b"s", b"c", b"", b"another"];
        let name = names[input.below(4)];
        let own = self.nic(input).1.address(name);
        let made = match input.below(8) {
            0..5 => own,
            5 => NetAddress::new(&[], name),
            6 => NetAddress::new(&[10, 0, 0, input.below(4) as u8], name),
            _ => {
                let len = input.below(84);
                NetAddress::parse(input.bytes(len))
            }
        };
        made.or_else(|_| NetAddress::new(&[], b"")).expect("an empty address")
    }

    /// Attributes of a virtual interface of this opening.
    fn attributes(&self, number: usize, input: &mut Input<'_>) -> ViAttributes {
        let reliability_level = level(input);
        let mut attributes = ViAttributes {
            reliability_level,
            enable_rdma_write: !input.rarely(8),
            enable_rdma_read: reliability_level.is_reliable() != input.rarely(16),
            ..ViAttributes::new(self.ptag(number, input))
        };
        match input.below(16) {
            14 => attributes.max_transfer_size = input.number(),
            15 => attributes.qos = Qos(size(input, 8) as u32),
            _ => {}
        }
        attributes
    }

    fn mem_attributes(&self, number: usize, input: &mut Input<'_>) -> MemAttributes {
        MemAttributes {
            ptag: self.ptag(number, input),
            enable_rdma_write: !input.rarely(4),
            enable_rdma_read: !input.rarely(4),
        }
    }

    /// One call.
    pub(crate) fn call(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..6 => self.post(input),
            6..9 => self.reap(input),
            9 => self.memory_call(input),
            10..12 => self.connection(input),
            12 => self.notify(input),
            13 | 14 => self.objects(input),
            _ => self.queries(input),
        }
    }
}

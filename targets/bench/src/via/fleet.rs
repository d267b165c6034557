//! The cost of an RDMA Write on a few virtual interfaces among many connected ones, and on as many
//! that have their NICs to themselves. Writes of both alternate, so that their costs are measured
//! in the same state of the machine.

use alloc::vec::Vec;
use core::time::Duration;

use common::via_pair::{End, Pair, Queue, check};
use common::{Failure, Node, Trying};
use kernel::{clock, println};
use vipl::{ReliabilityLevel, Status, ViHandle};

use super::{SMALL, buffer};
use crate::samples::Samples;

/// Virtual interfaces of each of the first two NICs, connected to each other.
const ALL: usize = 4096;
/// Virtual interfaces in use at a time; the next two NICs have no others.
const ACTIVE: usize = 16;
/// The distance between the interfaces in use: not a power of two, so that their memory does not
/// map to the same sets of a cache.
const STRIDE: usize = ALL / ACTIVE - 3;
/// Descriptors on the queue of each active interface: many, so that the device seldom runs out of
/// work when it shares a processor with the guest.
const DEPTH: usize = 16;
/// Writes of a sample, which is their mean time.
const BATCH: usize = 2048;
/// How long the costs are measured.
const TIME: Duration = Duration::from_secs(4);

/// Measures and prints.
pub fn run(node: &Node) -> Result<(), Failure> {
    let many = Fleet::new(node, [0, 1], ALL, STRIDE)?;
    let few = Fleet::new(node, [2, 3], ACTIVE, 1)?;
    let (mut among, mut alone) = (|| many.cost(), || few.cost());
    let [among, alone] = Samples::take_in_turn(TIME, [&mut among, &mut alone])?;
    let [among, alone] = [among, alone].map(|samples| samples.tenth() / BATCH as f64);
    let name = "VIPL: 64-byte RDMA Writes, 10th percentile, 16 interfaces of";
    println!("@bench {name} 16|{alone:.4}|-|us|-");
    println!("@bench {name} 4,096|{among:.4}|-|us|{alone:.4}|<= 1.2");
    many.pair.close()?;
    few.pair.close()
}

/// Connected virtual interfaces on two NICs, of which a few are used.
struct Fleet {
    pair: Pair,
    active: Vec<ViHandle>,
}

impl Fleet {
    fn new(node: &Node, nics: [usize; 2], all: usize, stride: usize) -> Result<Fleet, Failure> {
        let memory = [buffer(node, SMALL)?, buffer(node, SMALL)?];
        let pair = Pair::connect(node, nics, [&memory[0], &memory[1]], ReliabilityLevel::Delivery, SMALL)?;
        let others = |end: &End| (1..all).map(|_| end.another()).collect::<Result<Vec<_>, _>>();
        let (ours, theirs) = (others(&pair.a)?, others(&pair.b)?);
        pair.connect_all(&node.platform, &ours, &theirs)?;
        let all = core::iter::once(pair.a.vi).chain(ours);
        Ok(Fleet { active: all.step_by(stride).take(ACTIVE).collect(), pair })
    }

    /// The ticks of [`BATCH`] Writes, with [`DEPTH`] in flight on each active interface.
    fn cost(&self) -> Result<u64, Failure> {
        let begin = clock::tsc();
        let mut posted = 0;
        for done in 0..BATCH {
            while posted < BATCH.min(done + DEPTH * ACTIVE) {
                self.write(posted)?;
                posted += 1;
            }
            self.reap(done)?;
        }
        Ok(clock::tsc() - begin)
    }

    /// Posts a Write; the interfaces take turns.
    fn write(&self, number: usize) -> Result<(), Failure> {
        let Pair { a, b } = &self.pair;
        let descriptor = a.descriptor(Queue::Send, number)?;
        let (from, some) = a.segments(0, SMALL);
        descriptor.rdma_write(&b.remote(0), &from[..some], None).trying("formatting a descriptor")?;
        a.post_to(self.active[number % ACTIVE], Queue::Send, &descriptor)
    }

    fn reap(&self, number: usize) -> Result<(), Failure> {
        let a = &self.pair.a;
        let descriptor = a.descriptor(Queue::Send, number)?;
        while !descriptor.is_done() {
            core::hint::spin_loop();
        }
        let address = a.nic.send_done(self.active[number % ACTIVE]).trying("VipSendDone")?;
        if address != descriptor.address() {
            return Err(Failure::new("not the next descriptor"));
        }
        check(&descriptor, Status::OP_RDMA_WRITE)
    }
}

const _: () = assert!(DEPTH * ACTIVE <= common::via_pair::DESCRIPTORS);

//! Virtual interfaces through VIPL: 64-byte RDMA Writes by polling and by interrupt, 1 MiB Writes,
//! and Writes of a few interfaces among many.
//!
//! The many are on the first two NICs and the few on the next two. The last NIC measures the
//! baseline for interrupts.

mod fleet;

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use core::cell::Cell;

use common::via_pair::{Pair, Queue, check};
use common::{Failure, Node, Trying};
use kernel::{Boot, clock};
use platform::DmaBuffer;
use vipl::{INFINITE, ReliabilityLevel, Status};

use crate::bandwidth::{self, Extent, MESSAGE};
use crate::interrupt::Signal;
use crate::samples::{Samples, Summary, report, report_bounded};
use crate::{interrupt, polled};

/// NICs with virtual interfaces.
const NICS: usize = 4;
/// Bytes of a small message.
const SMALL: usize = 64;
const POLLED_ROUNDS: usize = 20_000;
const WAITED_ROUNDS: usize = 5_000;
/// The levels on which no message is lost.
const LEVELS: [(&str, ReliabilityLevel); 2] =
    [("Reliable Delivery", ReliabilityLevel::Delivery), ("Reliable Reception", ReliabilityLevel::Reception)];

/// Measures and prints.
pub fn run(mut boot: Boot) -> Result<(), Failure> {
    let spare = boot.nics.split_off(boot.nics.len().min(NICS));
    let spare = spare.first().ok_or_else(|| Failure::new("plan=via takes five NICs"))?;
    let interrupt = interrupt::bare(&boot.platform, spare)?;
    let node = Node::start(boot.platform, boot.privileged, boot.nics)?;
    let word = polled::bare_word(&node)?;
    report("VIPL: bare word, device spinning, guest polling", word, None);
    report("VIPL: bare doorbell and MSI-X, guest halted", interrupt, None);
    for (name, level) in LEVELS {
        // Both ends are on one NIC, as the baselines are measured on one NIC.
        let memory = [buffer(&node, SMALL)?, buffer(&node, SMALL)?];
        let pair = Pair::connect(&node, [0, 0], [&memory[0], &memory[1]], level, SMALL)?;
        by_polling(&pair, name, word)?;
        by_waiting(&node, &pair, name, interrupt)?;
        pair.close()?;
    }
    for (name, level) in LEVELS {
        large(&node, name, level)?;
    }
    fleet::run(&node)?;
    node.close();
    Ok(())
}

fn buffer(node: &Node, length: usize) -> Result<Arc<DmaBuffer>, Failure> {
    DmaBuffer::new(&node.platform, length, 4096).map(Arc::new).map_err(|_| "out of memory").trying("memory")
}

/// Formats and posts descriptor `n`: an RDMA Write of this length.
fn write(pair: &Pair, n: usize, length: usize) -> Result<(), Failure> {
    let Pair { a, b } = pair;
    let descriptor = a.descriptor(Queue::Send, n)?;
    let (from, some) = a.segments(0, length);
    descriptor.rdma_write(&b.remote(0), &from[..some], None).trying("formatting a descriptor")?;
    a.post(Queue::Send, &descriptor)
}

/// From the formatting of the descriptor until the consumer sees its status word.
fn by_polling(pair: &Pair, level: &str, word: Summary) -> Result<(), Failure> {
    let descriptor = pair.a.descriptor(Queue::Send, 0)?;
    let samples = Samples::take(POLLED_ROUNDS, || {
        let begin = clock::tsc();
        write(pair, 0, SMALL)?;
        while !descriptor.is_done() {
            core::hint::spin_loop();
        }
        let ticks = clock::tsc() - begin;
        pair.a.done(Queue::Send, 0, Status::OP_RDMA_WRITE)?;
        Ok::<u64, Failure>(ticks)
    })?;
    let name = format!("VIPL, {level}: 64-byte RDMA Write, polled by the status word");
    report_bounded(&name, samples.summary(), word, 5.0);
    Ok(())
}

/// From the formatting of the descriptor until another thread, which has slept in SendWait, returns
/// from it. On the one CPU of the machine this thread goes on when the other one sleeps again.
fn by_waiting(node: &Node, pair: &Pair, level: &str, interrupt: Summary) -> Result<(), Failure> {
    let descriptor = pair.a.descriptor(Queue::Send, 0)?;
    let signal = Arc::new(Signal::default());
    let (nic, vi, given, platform) = (pair.a.nic.clone(), pair.a.vi, signal.clone(), node.platform.clone());
    // Until the NIC is closed.
    let waiter = move || {
        while nic.send_wait(vi, INFINITE).is_ok() {
            given.raise(&*platform);
        }
    };
    node.platform.spawn("waiter", Box::new(waiter)).map_err(|_| "out of memory").trying("a thread")?;
    let samples = Samples::take(WAITED_ROUNDS, || {
        let ticks = signal.round(&*node.platform, || write(pair, 0, SMALL))?;
        check(&descriptor, Status::OP_RDMA_WRITE)?;
        Ok::<u64, Failure>(ticks)
    })?;
    let name = format!("VIPL, {level}: 64-byte RDMA Write, SendWait of a thread that sleeps");
    report_bounded(&name, samples.summary(), interrupt, 1.8);
    Ok(())
}

/// 1 MiB RDMA Writes, polled by the status word.
fn large(node: &Node, name: &str, level: ReliabilityLevel) -> Result<(), Failure> {
    let memory = [buffer(node, MESSAGE)?, buffer(node, MESSAGE)?];
    let pair = Pair::connect(node, [0, 0], [&memory[0], &memory[1]], level, MESSAGE)?;
    let (posted, reaped) = (Cell::new(0), Cell::new(0));
    let next = |number: &Cell<usize>| number.replace(number.get() + 1);
    let post = || write(&pair, next(&posted), MESSAGE);
    let reap = || {
        let number = next(&reaped);
        let descriptor = pair.a.descriptor(Queue::Send, number)?;
        while !descriptor.is_done() {
            core::hint::spin_loop();
        }
        pair.a.done(Queue::Send, number, Status::OP_RDMA_WRITE).map(drop)
    };
    let ends = (memory[0].bus(), memory[1].bus());
    bandwidth::measure(node, &format!("VIPL, {name}: "), Some(0.8), Extent::USUAL, ends, post, reap)?;
    pair.close()
}

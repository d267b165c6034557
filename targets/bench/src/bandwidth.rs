//! 1 MiB RDMA Writes, 16 outstanding, polled. The baseline is the device's own copy between the
//! same buffers; rounds of both alternate.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use common::it_pair::{Pair, Side, Target};
use common::{Failure, Node, Trying};
use kernel::{clock, println};
use nic_abi::admin::{Bench, BenchKind};
use privileged_api::{DtoFlags, DtoStatus, Error, Event};

/// Bytes of a message.
pub const MESSAGE: usize = 1 << 20;
const IN_FLIGHT: usize = 16;

/// The amount of data that a measurement moves.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Messages of a round.
    pub messages: usize,
    /// Rounds.
    pub rounds: usize,
}

impl Extent {
    /// The extent for copies within one machine.
    pub const USUAL: Extent = Extent { messages: 256, rounds: 15 };
}

/// Measures on one machine and prints.
pub fn run(node: &Node, pair: &Pair) -> Result<(), Failure> {
    let target = Target::new(node, pair, MESSAGE)?;
    let post = || target.write(&pair.a, 0, DtoFlags::COMPLETION).trying("it_post_rdma_write");
    measure(node, "", None, Extent::USUAL, target.bus(), post, || reap(&pair.a))?;
    target.free(pair)
}

/// Measures the Writes that `post` posts and `reap` reaps, beside copies from `source` to `sink`,
/// and prints the rates. `least` is the wanted ratio of the rates, if one is wanted.
pub fn measure(
    node: &Node,
    prefix: &str,
    least: Option<f64>,
    Extent { messages, rounds }: Extent,
    (source, sink): (u64, u64),
    post: impl Fn() -> Result<(), Failure>,
    reap: impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut writes, mut copies) = (Vec::new(), Vec::new());
    let rate = |seconds: f64| (messages * MESSAGE) as f64 / seconds / 1e6;
    for round in 0..rounds + 1 {
        let begin = clock::tsc();
        let mut posted = 0;
        for done in 0..messages {
            while posted < messages.min(done + IN_FLIGHT) {
                post()?;
                posted += 1;
            }
            reap()?;
        }
        let seconds = (clock::tsc() - begin) as f64 / clock::tsc_hz() as f64;
        let copy = Bench {
            kind: BenchKind::Copy as u32,
            rounds: messages as u32,
            source,
            target: sink,
            length: MESSAGE as u64,
        };
        let nanoseconds = node.agents[0].test_handle().bench(&copy).trying("the device's copy")?;
        // The first round warms up.
        if round > 0 {
            writes.push(rate(seconds));
            copies.push(rate(nanoseconds as f64 / 1e9));
        }
    }
    let (median, worst) = median_and_worst(&mut writes);
    let (baseline, _) = median_and_worst(&mut copies);
    let wanted = least.map_or_else(String::new, |least| format!("|>= {least}"));
    let name = format!("{prefix}1 MiB RDMA Write, {IN_FLIGHT} in flight");
    println!("@bench {name}|{median:.1}|{worst:.1}|MB/s|{baseline:.1}{wanted}");
    Ok(())
}

/// Polls for the next completion. If the consumer slept, the device's thread would raise an
/// interrupt for each message: a system call of some microseconds, while the copy of a message
/// takes about twenty.
fn reap(a: &Side) -> Result<(), Failure> {
    let event = loop {
        match a.ia.evd_dequeue(a.requests) {
            Err(Error::QueueEmpty) => core::hint::spin_loop(),
            other => break other,
        }
    };
    match event.trying("it_evd_dequeue")? {
        Event::Dto(done) if done.dto_status == DtoStatus::Success => Ok(()),
        other => Err(Failure::new(format_args!("unexpected {other:?}"))),
    }
}

/// The median, and the worst rate: there are too few rounds for a 99th percentile.
fn median_and_worst(rates: &mut [f64]) -> (f64, f64) {
    rates.sort_unstable_by(f64::total_cmp);
    (rates.get(rates.len() / 2).copied().unwrap_or(0.0), rates.first().copied().unwrap_or(0.0))
}

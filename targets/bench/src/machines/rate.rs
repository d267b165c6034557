//! How many small RDMA Writes a second reach the other machine, with many in flight.

use common::Failure;
use kernel::{clock, println};

use super::link::{Link, REQUESTS, Wait};

/// Writes of a round.
const WRITES: usize = 20_000;
const ROUNDS: usize = 5;

/// Measures and prints.
pub fn measure(link: &Link, over: &str) -> Result<(), Failure> {
    let mut rates = [0.0; ROUNDS];
    // The first round warms up.
    round(link)?;
    for rate in &mut rates {
        *rate = round(link)?;
    }
    rates.sort_unstable_by(f64::total_cmp);
    let (median, worst) = (rates[ROUNDS / 2], rates[0]);
    println!("@bench {over}: 64-byte RDMA Writes, {REQUESTS} in flight|{median:.1}|{worst:.1}|1/s|-");
    Ok(())
}

/// Writes in a second.
fn round(link: &Link) -> Result<f64, Failure> {
    let begin = clock::tsc();
    let mut posted = 0;
    for done in 0..WRITES {
        while posted < WRITES.min(done + REQUESTS) {
            link.write_small(posted as u64)?;
            posted += 1;
        }
        link.done(Wait::Polling)?;
    }
    Ok(WRITES as f64 * clock::tsc_hz() as f64 / (clock::tsc() - begin) as f64)
}

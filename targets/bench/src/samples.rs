//! Samples in ticks of the time-stamp counter, and their summary.

use alloc::vec::Vec;
use core::time::Duration;

use kernel::{clock, println};

/// Durations of one kind.
pub struct Samples(Vec<u64>);

/// Median and 99th percentile in microseconds.
#[derive(Clone, Copy)]
pub struct Summary {
    /// Half of the samples are shorter.
    pub median: f64,
    /// 99 of 100 samples are shorter.
    pub p99: f64,
}

impl Samples {
    /// Runs `once` `count` times, after a tenth as many times as a warm-up; each call returns its
    /// ticks.
    pub fn take<E>(count: usize, mut once: impl FnMut() -> Result<u64, E>) -> Result<Samples, E> {
        for _ in 0..count / 10 {
            once()?;
        }
        let mut ticks = Vec::with_capacity(count);
        for _ in 0..count {
            ticks.push(once()?);
        }
        ticks.sort_unstable();
        Ok(Samples(ticks))
    }

    /// Runs all of `each` in turn for this long, at least ten times. So what disturbs one of them
    /// disturbs the others as well.
    pub fn take_in_turn<const N: usize, E>(
        time: Duration,
        mut each: [&mut dyn FnMut() -> Result<u64, E>; N],
    ) -> Result<[Samples; N], E> {
        let mut all = [const { Vec::new() }; N];
        let end = clock::now() + time;
        while all.last().is_some_and(|ticks| ticks.len() < 10) || clock::now() < end {
            for (ticks, once) in all.iter_mut().zip(&mut each) {
                ticks.push(once()?);
            }
        }
        Ok(all.map(|mut ticks| {
            ticks.sort_unstable();
            Samples(ticks)
        }))
    }

    /// The tenth percentile in microseconds: if other programs disturb some samples for seconds,
    /// that of the undisturbed ones.
    pub fn tenth(&self) -> f64 {
        self.0.get(self.0.len() / 10).copied().unwrap_or(0) as f64 * 1e6 / clock::tsc_hz() as f64
    }

    /// Their summary.
    pub fn summary(&self) -> Summary {
        let at = |share: usize| self.0.get(self.0.len() * share / 100).copied().unwrap_or(0) as f64;
        let to_us = 1e6 / clock::tsc_hz() as f64;
        Summary { median: at(50) * to_us, p99: at(99) * to_us }
    }
}

/// Prints a figure in microseconds.
pub fn report(name: &str, figure: Summary, baseline: Option<Summary>) {
    match baseline {
        Some(baseline) => {
            println!("@bench {name}|{:.4}|{:.4}|us|{:.4}", figure.median, figure.p99, baseline.median);
        }
        None => println!("@bench {name}|{:.4}|{:.4}|us|-", figure.median, figure.p99),
    }
}

/// Prints a figure in microseconds that should be at most `most` times its baseline.
pub fn report_bounded(name: &str, figure: Summary, baseline: Summary, most: f64) {
    let Summary { median, p99 } = figure;
    println!("@bench {name}|{median:.4}|{p99:.4}|us|{:.4}|<= {most}", baseline.median);
}

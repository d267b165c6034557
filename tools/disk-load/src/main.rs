//! Reads or writes random blocks of a disk for some seconds, and prints how fast that went.
//!
//! ```text
//! disk-load FILE BLOCK DEPTH read|write SECONDS SEED
//! ios=12345 seconds=5.001 mean_us=405.1 p50_us=390.0 p99_us=801.2 max_us=2100.9
//! ```
//!
//! It stands in for fio, whose package depends on 42 MB of others. FILE is opened with O_DIRECT, so
//! each block is one request to the disk. DEPTH threads have one request under way each, as fio's
//! `--ioengine=psync --numjobs=DEPTH --thread` does: the requests need neither unsafe code nor a
//! kernel interface that a distribution may have switched off. The offsets are multiples of BLOCK,
//! uniform over FILE, and the same for the same SEED.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The flag of open(2) on x86-64.
const O_DIRECT: i32 = 0o40000;
/// The alignment of a buffer that every disk takes.
const ALIGNMENT: usize = 4096;
/// The most threads; fio and NVMe's queues go no further here.
const MOST_THREADS: usize = 1024;
/// The largest block.
const LARGEST_BLOCK: usize = 64 << 20;

/// What is done to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    file: String,
    block: usize,
    depth: usize,
    way: Way,
    time: Duration,
    seed: u64,
}

impl Plan {
    fn parse(words: &[String]) -> Option<Plan> {
        let [file, block, depth, way, seconds, seed] = words else { return None };
        let way = match way.as_str() {
            "read" => Way::Read,
            "write" => Way::Write,
            _ => return None,
        };
        let block = block.parse().ok().filter(|block| (1..=LARGEST_BLOCK).contains(block))?;
        let depth = depth.parse().ok().filter(|depth| (1..=MOST_THREADS).contains(depth))?;
        let seconds = seconds.parse::<u32>().ok().filter(|seconds| *seconds > 0)?;
        let time = Duration::from_secs(seconds.into());
        Some(Plan { file: file.clone(), block, depth, way, time, seed: seed.parse().ok()? })
    }
}

/// The times that all requests took, in order of length, and how long the whole took.
struct Times {
    sorted: Vec<Duration>,
    whole: Duration,
}

impl Times {
    /// The shortest time that `percent` percent of the requests did not exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.sorted.len() * percent).div_ceil(100);
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    fn line(&self) -> String {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let count = self.sorted.len();
        let mean = us(self.sorted.iter().sum()) / count.max(1) as f64;
        format!(
            "ios={count} seconds={:.3} mean_us={mean:.1} p50_us={:.1} p99_us={:.1} max_us={:.1}",
            self.whole.as_secs_f64(),
            us(self.percentile(50)),
            us(self.percentile(99)),
            us(self.percentile(100)),
        )
    }
}

/// Random numbers: Steele, Lea and Flood's SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `bound`. The bias is a part in 2^64 / bound.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// What one thread does: its requests, one after the other, until `time` has passed.
fn work(file: &File, plan: &Plan, blocks: u64, number: usize, start: &Barrier) -> io::Result<Vec<Duration>> {
    let mut random = Random(plan.seed ^ (number as u64) << 32);
    let mut memory = vec![0; plan.block + ALIGNMENT];
    let at = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let buffer = &mut memory[at..at + plan.block];
    buffer.iter_mut().for_each(|byte| *byte = random.next() as u8);
    let mut times = Vec::new();
    start.wait();
    let mut now = Instant::now();
    let end = now + plan.time;
    while now < end {
        let offset = random.below(blocks) * plan.block as u64;
        match plan.way {
            Way::Read => file.read_exact_at(buffer, offset)?,
            Way::Write => file.write_all_at(buffer, offset)?,
        }
        let begun = std::mem::replace(&mut now, Instant::now());
        times.push(now - begun);
    }
    Ok(times)
}

/// Carries out the plan on a file.
fn run(plan: &Plan, mut file: File) -> io::Result<Times> {
    let blocks = file.seek(SeekFrom::End(0))? / plan.block as u64;
    if blocks == 0 {
        return Err(io::Error::other("it is smaller than a block"));
    }
    let start = Barrier::new(plan.depth + 1);
    let (begun, results) = std::thread::scope(|scope| {
        let (file, start) = (&file, &start);
        let thread = |number| scope.spawn(move || work(file, plan, blocks, number, start));
        let threads: Vec<_> = (0..plan.depth).map(thread).collect();
        start.wait();
        let begun = Instant::now();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        (begun, results)
    });
    let whole = begun.elapsed();
    let mut sorted = Vec::new();
    for result in results {
        sorted.extend(result.map_err(|_| io::Error::other("a thread panicked"))??);
    }
    sorted.sort_unstable();
    Ok(Times { sorted, whole })
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(plan) = Plan::parse(&words) else {
        eprintln!("usage: disk-load FILE BLOCK DEPTH read|write SECONDS SEED");
        return ExitCode::from(2);
    };
    let mut options = OpenOptions::new();
    options.read(true).write(plan.way == Way::Write).custom_flags(O_DIRECT);
    match options.open(&plan.file).and_then(|file| run(&plan, file)) {
        Ok(times) => {
            println!("{}", times.line());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("disk-load: {}: {error}", plan.file);
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_command_line_is_complete_and_within_bounds() {
        let plan = Plan::parse(&words("/dev/x 4096 16 write 5 7")).expect("a plan");
        assert_eq!((plan.block, plan.depth, plan.way, plan.seed), (4096, 16, Way::Write, 7));
        for wrong in [
            "/dev/x 4096 16 write 5",
            "/dev/x 4096 16 write 5 7 8",
            "/dev/x 0 16 write 5 7",
            "/dev/x 4096 0 write 5 7",
            "/dev/x 4096 1025 write 5 7",
            "/dev/x 4096 16 erase 5 7",
            "/dev/x 4096 16 read 0 7",
            "/dev/x 4096 16 read 5 x",
        ] {
            assert_eq!(Plan::parse(&words(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn percentiles_are_times_that_occurred() {
        let ms = Duration::from_millis;
        let times = Times { sorted: (1..=200).map(ms).collect(), whole: ms(1000) };
        assert_eq!([50, 99, 100].map(|percent| times.percentile(percent)), [ms(100), ms(198), ms(200)]);
        assert_eq!(Times { sorted: vec![ms(3)], whole: ms(3) }.percentile(50), ms(3));
        let line = "ios=200 seconds=1.000 mean_us=100500.0 p50_us=100000.0 p99_us=198000.0 max_us=200000.0";
        assert_eq!(times.line(), line);
    }

    #[test]
    fn a_seed_gives_offsets_that_reach_every_block() {
        let offsets = |seed| {
            let mut random = Random(seed);
            std::iter::repeat_with(|| random.below(10)).take(200).collect::<Vec<_>>()
        };
        assert_eq!(offsets(1), offsets(1));
        assert_ne!(offsets(1), offsets(2));
        assert!((0..10).all(|block| offsets(1).contains(&block)));
        assert!(offsets(1).iter().all(|block| *block < 10));
    }
}

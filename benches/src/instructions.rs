//! Prints the table of the data path's costs: how many instructions each operation takes, through
//! the whole API with all its locks, beside its baseline, its floor and its goal.
//!
//! ```text
//! cargo bench --bench instructions                # the table, and a comparison of timings
//! cargo bench --bench instructions -- post_       # the rows whose names contain "post_"
//! cargo bench --bench instructions -- neighbours  # the comparison of timings
//! cargo bench --bench instructions -- --check     # fails if a count has grown
//! cargo bench --bench instructions -- --floors    # fails if a floor is missed, too
//! cargo bench --bench instructions -- --write     # replaces the baselines
//! ```
//!
//! The comparison concerns two threads that post at the same time: see [`neighbours`].
//!
//! Callgrind counts. The program runs itself under Valgrind, once for each group of rows. A group
//! makes the calls of `calls` that are to be counted inside [`counted`]. Flags, cookies, addresses
//! and keys are known only at run time, as in a consumer's program. The device is a thread of the
//! same process. It is paused while instructions are counted, and runs between the counts, so the
//! counts are those of the API, the agent and the driver alone. The floor of a row of DAT is 20
//! above the count of IT-API's row for the same operation in the same run, and that of a row of the
//! verbs 60 above the one of `rdma`.

mod callgrind;
mod calls;
mod neighbours;
mod rows;
mod samples;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;

use ferrovia_benches::table::{self, ROWS, Row, Verdict};
use host::CountedHeap;

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

/// The file of baselines.
const BASELINES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baselines.tsv");

/// Runs `f`. Callgrind counts what the functions of `calls` execute in it, and writes a file when
/// this function returns.
#[inline(never)]
pub fn counted<R>(f: impl FnOnce() -> R) -> R {
    begin();
    f()
}

/// Callgrind writes a file when this returns, too, and so clears the counts from before.
#[inline(never)]
fn begin() {
    std::hint::black_box(());
}

fn main() -> ExitCode {
    let (mut check, mut floors, mut write, mut filters) = (false, false, false, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--check" => check = true,
            "--floors" => floors = true,
            "--write" => write = true,
            // Cargo passes this to every benchmark.
            "--bench" => {}
            callgrind::GROUP => return count(&arguments.next().unwrap_or_default()),
            option if option.starts_with('-') => {
                eprintln!("error: no such option: {option}; there are --check, --floors and --write");
                return ExitCode::FAILURE;
            }
            filter => filters.push(filter.to_owned()),
        }
    }
    match print(&filters, write) {
        Ok(verdicts) => {
            let wanted = filters.is_empty() || filters.iter().any(|filter| filter == "neighbours");
            if wanted && !(check || floors || write) {
                neighbours::print();
            }
            let grown = (check || floors) && verdicts.iter().any(|verdict| !verdict.holds());
            let missed = floors && verdicts.contains(&Verdict::Floor);
            if grown {
                eprintln!("error: a count grew by more than 5 % over its baseline, or has none");
                eprintln!("(`cargo bench --bench instructions -- --write` replaces the baselines)");
            }
            if missed {
                eprintln!("error: a floor is missed");
            }
            if grown || missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts the rows of a group: this process runs under Valgrind.
fn count(group: &str) -> ExitCode {
    match rows::GROUPS.iter().find(|known| known.name == group) {
        Some(group) => {
            (group.count)(&mut samples::Recorder::default());
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}

/// Counts and prints the chosen rows; returns their verdicts.
fn print(filters: &[String], write: bool) -> Result<Vec<Verdict>, String> {
    let chosen = |key: &str| filters.is_empty() || filters.iter().any(|filter| key.contains(filter));
    let mut baselines = table::parse(&std::fs::read_to_string(BASELINES).unwrap_or_default())?;
    let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
    for group in rows::GROUPS.iter().filter(|group| group.rows.iter().any(|key| chosen(key))) {
        let samples = match group.unit {
            None => {
                let mut recorder = samples::Recorder::kept();
                (group.count)(&mut recorder);
                recorder.into_samples()
            }
            Some(unit) => callgrind::run(group.name, unit)?,
        };
        for key in group.rows.iter().filter(|key| chosen(key)) {
            counts.insert(key, samples.value(key).ok_or_else(|| format!("nothing was counted for {key}"))?);
        }
    }
    println!(
        "\n{:<48} {:>8} {:>9} {:>7} {:>6}  verdict",
        "operation (instructions, unless stated)", "count", "baseline", "floor", "goal"
    );
    let mut verdicts = Vec::new();
    for row in ROWS.iter().filter(|row| chosen(row.key)) {
        let count = *counts.get(row.key).ok_or_else(|| format!("no group counts {}", row.key))?;
        let row = &row.beside(|key| counts.get(key).copied().or(baselines.get(key).copied()));
        let verdict = table::verdict(row, count, baselines.get(row.key).copied());
        print_row(row, count, baselines.get(row.key).copied(), verdict);
        verdicts.push(verdict);
    }
    if write {
        baselines.retain(|key, _| ROWS.iter().any(|row| row.key == key));
        baselines.extend(counts.iter().map(|(key, count)| ((*key).to_owned(), *count)));
        std::fs::write(BASELINES, table::format(&baselines)).map_err(|error| error.to_string())?;
        println!("\nwrote {BASELINES}");
    }
    Ok(verdicts)
}

fn print_row(row: &Row, count: f64, baseline: Option<f64>, verdict: Verdict) {
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), table::shown);
    println!(
        "{:<48} {:>8} {:>9} {:>7} {:>6}  {}",
        row.text,
        table::shown(count),
        or_dash(baseline),
        or_dash(row.floor),
        or_dash(row.goal),
        verdict.word()
    );
}

//! The switch of the mutants that `mutants` has put into a program. The environment says which
//! mutant is in force, and may ask for a record of the mutants that were reached.

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The variable with the number of the mutant in force.
const NUMBER: &str = "MUTANT";
/// The variable with the file to which the number of each mutant is appended that is reached.
const REACHED: &str = "MUTANTS_REACHED";

/// The switch has not looked at the environment.
const UNKNOWN: u32 = u32::MAX;
/// No mutant is in force.
const NONE: u32 = u32::MAX - 1;
/// More mutants than a program has.
const MOST: usize = 1 << 14;

static IN_FORCE: AtomicU32 = AtomicU32::new(UNKNOWN);
static RECORDS: AtomicBool = AtomicBool::new(false);
static FILE: OnceLock<Option<File>> = OnceLock::new();
static SEEN: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

/// Whether the code of this mutant is to run in the place of the original.
#[inline]
pub fn on(number: u32) -> bool {
    let mut in_force = IN_FORCE.load(Ordering::Relaxed);
    if in_force == UNKNOWN {
        in_force = read_environment();
    }
    if RECORDS.load(Ordering::Relaxed) {
        record(number);
    }
    in_force == number
}

#[cold]
fn read_environment() -> u32 {
    let number = std::env::var(NUMBER).ok().and_then(|text| text.parse().ok()).unwrap_or(NONE);
    RECORDS.store(std::env::var_os(REACHED).is_some(), Ordering::Relaxed);
    IN_FORCE.store(number, Ordering::Relaxed);
    number
}

/// Appends the number to the file, the first time. At once, since a test may end its process.
#[cold]
fn record(number: u32) {
    if SEEN.get(number as usize).is_none_or(|seen| seen.swap(true, Ordering::Relaxed)) {
        return;
    }
    let open = || File::options().append(true).create(true).open(std::env::var_os(REACHED)?).ok();
    if let Some(mut file) = FILE.get_or_init(open).as_ref() {
        // One write, so that lines of several processes do not mix. A test that cannot write has
        // reached nothing, as the reader sees it, and the mutant is reported as not reached.
        let _ = file.write_all(format!("{number}\n").as_bytes());
    }
}

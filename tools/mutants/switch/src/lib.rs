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
    let open = || File::options().append(true).create(true).open(std::env::var_os(REACHED)?).ok();
    RECORDS.store(FILE.get_or_init(open).is_some(), Ordering::Relaxed);
    IN_FORCE.store(number, Ordering::Relaxed);
    number
}

/// Appends the number to the file, the first time. At once, since a test may end its process; and
/// without the heap, since some tests let it fail.
#[cold]
fn record(number: u32) {
    if SEEN.get(number as usize).is_none_or(|seen| seen.swap(true, Ordering::Relaxed)) {
        return;
    }
    let mut line = *b"          \n";
    let mut rest = number;
    for digit in line[..10].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if let Some(mut file) = FILE.get().and_then(Option::as_ref) {
        // One write, so that lines of several processes do not mix. What cannot be written counts
        // as not reached, and the mutant is reported as that.
        let _ = file.write_all(&line);
    }
}

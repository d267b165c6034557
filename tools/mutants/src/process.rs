//! Runs programs with limits.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Failure;

/// The address space of a test in KiB, since a mutant may allocate without end.
const SPACE: u32 = 16 << 20;
/// How often the end of a program is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Failed,
    /// It did not end in time, and was killed.
    Timeout,
}

/// Runs a program in a folder for at most `limit`, with at most `cpu` seconds of the processor.
/// What it prints goes to the file, if there is one.
pub fn run(
    folder: &Path,
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
    output: Option<&File>,
    limit: Duration,
    cpu: u64,
) -> Result<Outcome, Failure> {
    let output = || output.map_or(Ok(Stdio::null()), |file| file.try_clone().map(Stdio::from));
    let mut child = Command::new("bash")
        .arg("-c")
        .arg(format!("ulimit -v {SPACE} && ulimit -t {cpu} && exec \"$0\" \"$@\""))
        .arg(program)
        .args(arguments)
        .envs(variables.iter().copied())
        .env("CARGO_MANIFEST_DIR", folder)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(output()?)
        .stderr(output()?)
        // A group of its own, so that what it has started is killed with it.
        .process_group(0)
        .spawn()?;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Outcome::Ok } else { Outcome::Failed });
        }
        if Instant::now() >= deadline {
            // The group, or the program alone if the group has ended meanwhile.
            Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
            child.kill()?;
            child.wait()?;
            return Ok(Outcome::Timeout);
        }
        thread::sleep(LOOK);
    }
}

/// Calls `each` for all items, in as many threads as there are processors; ends with the first
/// error.
pub fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    each: impl Fn(&T) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return Ok(done) };
            match each(item) {
                Ok(result) => done.push((index, result)),
                Err(error) => {
                    next.store(items.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let mut all = Vec::new();
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            all.extend(thread.join().map_err(|_| "a thread panicked")??);
        }
        Ok::<(), Failure>(())
    })?;
    all.sort_by_key(|&(index, _)| index);
    Ok(all.into_iter().map(|(_, result)| result).collect())
}

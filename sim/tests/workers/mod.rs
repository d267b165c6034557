//! Two threads for many jobs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Does the jobs below `count`. After one has panicked, no other begins.
///
/// # Panics
///
/// If a job does.
pub fn each(count: u64, job: impl Fn(u64) + Sync) {
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count || failed.load(Ordering::Relaxed) {
                return;
            }
            let panics = Failed(&failed);
            job(number);
            std::mem::forget(panics);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
}

/// Notes that it was dropped, which happens if a job panics.
struct Failed<'a>(&'a AtomicBool);

impl Drop for Failed<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

//! A workload on a disk of this machine, without a target: what the disk itself can do.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use block::{Data, Disk, Piece, Request, Submit};
use platform::{DmaBuffer, Instant, Platform, Signal};

use super::{Cause, Done, Extent, Medium, Plan, Run, Transfer, Trouble};

/// Completions that are taken at once.
const BATCH: usize = 64;

/// Carries a plan out on a disk without other users, and sends no more requests when `time` has
/// passed, if there is one. `progress` is called each second.
///
/// After a failure, requests may still be under way, or completions not taken.
pub fn run_on_disk(
    disk: &dyn Disk,
    platform: &Arc<dyn Platform>,
    plan: &Plan,
    time: Option<Duration>,
    progress: &mut dyn FnMut(&Done),
) -> Result<Done, Trouble> {
    let geometry = disk.geometry();
    let extent = Extent {
        block_size: geometry.block_size,
        blocks: geometry.blocks,
        is_read_only: geometry.is_read_only,
        most_bytes: geometry.most_bytes as usize,
        queues: 1,
        depth: geometry.queue_depth,
    };
    let mut run = Run::new(platform, &extent, plan)?;
    let signal = Arc::new(Signal::new(platform.clone()));
    let raised = signal.clone();
    disk.watch(Some(Arc::new(move || raised.raise())));
    let ended = run.all(&mut Local { disk, plan, memory: run.memory.clone(), signal }, time, progress);
    disk.watch(None);
    ended.map(|()| run.done)
}

struct Local<'a> {
    disk: &'a dyn Disk,
    plan: &'a Plan,
    memory: Arc<DmaBuffer>,
    signal: Arc<Signal>,
}

impl Medium for Local<'_> {
    fn submit(&mut self, transfer: &Transfer) -> Result<(), Trouble> {
        let &Transfer { is_write, block, place } = transfer;
        let pieces = &[Piece { offset: place * self.plan.bytes, len: self.plan.bytes }];
        let data = Data { buffer: &self.memory, pieces };
        let request = if is_write {
            Request::Write { block, from: data, fua: false }
        } else {
            Request::Read { block, into: data }
        };
        self.disk.submit(&request, place as u64).map_err(|error| match error {
            Submit::Fault(fault) => Trouble::Fault(block, fault),
            // The queue has room for the requests of all places, unless others use the disk.
            Submit::Busy => Trouble::Plan("the disk's queue is full"),
        })
    }

    fn take(
        &mut self,
        finished: &mut Vec<(usize, Result<(), Cause>)>,
        deadline: Instant,
    ) -> Result<(), Trouble> {
        let seen = self.signal.value();
        let mut into = |token: u64, result: Result<(), _>| {
            finished.push((token as usize, result.map_err(Cause::Fault)));
        };
        if self.disk.poll(BATCH, &mut into) == 0 && !self.disk.arm() {
            self.signal.wait(seen, Some(deadline));
        }
        Ok(())
    }
}

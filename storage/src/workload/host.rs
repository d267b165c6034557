//! A workload on a namespace, through a host's I/O queues.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use platform::{Instant, Platform};

use super::{Cause, Done, Extent, Medium, Plan, Run, Transfer, Trouble};
use crate::initiator::{Initiator, NamespaceInfo, NotSent, Operation, Region, Request};

/// Carries a plan out on the host's I/O queues. `progress` is called each second.
pub fn run(
    host: &mut Initiator,
    platform: &Arc<dyn Platform>,
    namespace: &NamespaceInfo,
    plan: &Plan,
    progress: &mut dyn FnMut(&Done),
) -> Result<Done, Trouble> {
    run_for(host, platform, namespace, plan, None, progress)
}

/// The same, but sends no more requests when `time` has passed, if there is one.
pub fn run_for(
    host: &mut Initiator,
    platform: &Arc<dyn Platform>,
    namespace: &NamespaceInfo,
    plan: &Plan,
    time: Option<Duration>,
    progress: &mut dyn FnMut(&Done),
) -> Result<Done, Trouble> {
    let extent = Extent {
        block_size: namespace.block_size,
        blocks: namespace.blocks,
        is_read_only: namespace.is_read_only,
        most_bytes: host.limits().transfer,
        queues: host.io_queues(),
        depth: host.depth().saturating_sub(1),
    };
    let mut run = Run::new(platform, &extent, plan)?;
    let region = host.register(run.memory.clone());
    let ended = run.all(&mut Queues { host, namespace, plan, region: &region }, time, progress);
    ended.map(|()| run.done)
}

struct Queues<'a> {
    host: &'a mut Initiator,
    namespace: &'a NamespaceInfo,
    plan: &'a Plan,
    region: &'a Region,
}

impl Medium for Queues<'_> {
    fn submit(&mut self, transfer: &Transfer) -> Result<(), Trouble> {
        let &Transfer { is_write, block, place } = transfer;
        let bytes = self.plan.bytes;
        let request = Request {
            operation: if is_write { Operation::Write { fua: false } } else { Operation::Read },
            namespace: self.namespace.id,
            block,
            blocks: bytes as u32 / self.namespace.block_size,
            data: Some((self.region, place * bytes, bytes)),
        };
        self.host.submit(place / self.plan.depth, &request, place as u64).map_err(|error| match error {
            NotSent::Lost(failure) => Trouble::Host(failure),
            // A queue has room for the requests of its places.
            NotSent::Full | NotSent::Invalid => Trouble::Plan("a request cannot be sent"),
        })
    }

    fn take(
        &mut self,
        finished: &mut Vec<(usize, Result<(), Cause>)>,
        deadline: Instant,
    ) -> Result<(), Trouble> {
        let seen = self.host.seen();
        self.host.poll(&mut |token, status, _| {
            let result = if status.is_success() { Ok(()) } else { Err(Cause::Status(status)) };
            finished.push((token as usize, result));
        })?;
        if finished.is_empty() {
            self.host.wait(seen, deadline);
        }
        Ok(())
    }
}

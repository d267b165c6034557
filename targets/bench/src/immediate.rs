//! 64 bytes to a peer that waits for them, through DAT, by polling: an RDMA Write with immediate
//! data and a Send, from the post to the event at the target. Beside them a plain RDMA Write, from
//! the post to its completion, for which the target gets no event.

use alloc::sync::Arc;
use core::time::Duration;

use common::dat_pair::{End, Pair};
use common::{Failure, Node, Trying};
use dat::{CompletionFlags, Dto, DtoStatus, ErrorType, EvdHandle};
use kernel::clock;
use platform::DmaBuffer;

use crate::samples::{Samples, report};

const BYTES: usize = 64;
/// How long the three are measured, alternately.
const TIME: Duration = Duration::from_secs(3);
const PLAIN: CompletionFlags = CompletionFlags::DEFAULT;

/// Measures and prints.
pub fn run(node: &Node) -> Result<(), Failure> {
    let memory = || {
        let buffer = DmaBuffer::new(&node.platform, BYTES, 4096).map_err(|_| "out of memory");
        buffer.map(Arc::new).trying("memory")
    };
    // Both endpoints are on one NIC, as with the polled Write.
    let pair = Pair::connect(node, [0, 0], [&memory()?, &memory()?], BYTES)?;
    let Pair { a, b } = &pair;
    let (from, into, to) = ([a.segment(0, BYTES)], [b.segment(0, BYTES)], b.remote(0, BYTES));
    let mut write = || {
        let begin = clock::tsc();
        a.ia.ep_post_rdma_write(a.ep, &from, 0, &to, PLAIN).trying("dat_ep_post_rdma_write")?;
        poll(a, a.requests, Dto::RDMA_WRITE)?;
        Ok(clock::tsc() - begin)
    };
    let mut immediate = || {
        b.ia.ep_post_recv(b.ep, &[], 0, PLAIN).trying("dat_ep_post_recv")?;
        let begin = clock::tsc();
        let posted = a.ia.ib_post_rdma_write_with_immed(a.ep, &from, 0, &to, 7, PLAIN);
        posted.trying("dat_ib_post_rdma_write_with_immed")?;
        poll(b, b.receives, Dto::IB_RECV_IMMED)?;
        let ticks = clock::tsc() - begin;
        poll(a, a.requests, Dto::IB_RDMA_WRITE_IMMED)?;
        Ok(ticks)
    };
    let mut send = || {
        b.ia.ep_post_recv(b.ep, &into, 0, PLAIN).trying("dat_ep_post_recv")?;
        let begin = clock::tsc();
        a.ia.ep_post_send(a.ep, &from, 0, PLAIN).trying("dat_ep_post_send")?;
        poll(b, b.receives, Dto::RECEIVE)?;
        let ticks = clock::tsc() - begin;
        poll(a, a.requests, Dto::SEND)?;
        Ok(ticks)
    };
    let samples = Samples::take_in_turn(TIME, [&mut write, &mut immediate, &mut send]);
    let [write, immediate, send] = samples.map_err(|failure: Failure| failure)?;
    let write = write.summary();
    report("DAT: 64-byte RDMA Write, polled", write, None);
    report("DAT: 64-byte Write with immediate data, to the target's event", immediate.summary(), Some(write));
    report("DAT: 64-byte Send, to the target's event", send.summary(), Some(write));
    pair.close()
}

/// Polls until a completion comes, which has to be a success of this operation.
fn poll(end: &End, evd: EvdHandle, operation: Dto) -> Result<(), Failure> {
    let event = loop {
        match end.ia.evd_dequeue(evd) {
            Err(error) if error.kind() == ErrorType::QueueEmpty => {}
            other => break other.trying("dat_evd_dequeue")?,
        }
    };
    match event.dto() {
        Some(done) if done.status == DtoStatus::Success && done.operation == operation => Ok(()),
        _ => Err(Failure::new(format_args!("{operation:?}: {event:?}"))),
    }
}

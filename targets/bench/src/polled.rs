//! A 64-byte RDMA Write, from the post to the reaped completion, by polling. The baseline is a word
//! that the device answers through shared memory.
//!
//! The loop that waits for the word has a spin-loop hint. The loop that dequeues has none, as is
//! usual for completion queues: a dequeue takes longer than the word's check, and under emulation
//! the hint takes longer than a dequeue.

use core::sync::atomic::Ordering;

use common::it_pair::{Pair, Target};
use common::{Failure, Node, Trying};
use kernel::clock;
use nic_abi::admin::{Bench, BenchKind};
use platform::DmaBuffer;
use privileged_api::{DtoFlags, DtoStatus, Error, Event};

use crate::samples::{Samples, Summary, report};

const ROUNDS: usize = 20_000;

/// Measures and prints.
pub fn run(node: &Node, pair: &Pair, target: &Target) -> Result<(), Failure> {
    let word = bare_word(node)?;
    report("bare word, device spinning, guest polling", word, None);
    let a = &pair.a;
    let ep = a.ia.ep_ref(a.ep).trying("a look at the endpoint")?;
    let (segment, to, context) = target.operands();
    let write = Samples::take(ROUNDS, || {
        let begin = clock::tsc();
        ep.post_rdma_write(&[segment], 0, DtoFlags::COMPLETION, to, context).trying("it_post_rdma_write")?;
        let event = loop {
            match a.ia.evd_dequeue(a.requests) {
                Err(Error::QueueEmpty) => {}
                other => break other,
            }
        };
        let ticks = clock::tsc() - begin;
        match event.trying("it_evd_dequeue")? {
            Event::Dto(done) if done.dto_status == DtoStatus::Success => Ok(ticks),
            other => Err(Failure::new(format_args!("unexpected {other:?}"))),
        }
    })?;
    report("64-byte RDMA Write, polled", write.summary(), Some(word));
    Ok(())
}

/// The time until the device, which watches one word, answers in another.
pub fn bare_word(node: &Node) -> Result<Summary, Failure> {
    let memory = DmaBuffer::new(&node.platform, 128, 128).map_err(|_| "out of memory").trying("memory")?;
    let word = |offset| memory.slice().atomic_u32(offset).map_err(|_| Failure::new("a word out of bounds"));
    // A cache line each.
    let (question, answer) = (word(0)?, word(64)?);
    let rounds = ROUNDS + ROUNDS / 10;
    let bench = Bench {
        kind: BenchKind::Echo as u32,
        rounds: rounds as u32,
        source: memory.bus() + 64,
        target: memory.bus(),
        length: 0,
    };
    node.agents[0].test_handle().bench(&bench).trying("starting the echo")?;
    let mut round = 0;
    let samples = Samples::take(ROUNDS, || {
        round += 1;
        let begin = clock::tsc();
        question.store(round, Ordering::Release);
        while answer.load(Ordering::Acquire) != round {
            core::hint::spin_loop();
        }
        Ok::<u64, Failure>(clock::tsc() - begin)
    })?;
    Ok(samples.summary())
}

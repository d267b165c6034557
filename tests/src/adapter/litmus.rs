//! What all other tests rely on: driver and device see the same memory in the same order.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use nic_abi::admin::{Bench, BenchKind};
use privileged_api::*;

use crate::fixture::{OPEN, PAGE, SIGNALLED};
use crate::thread::{Thread, eventually};
use crate::{Test, check, check_eq, test};

pub(crate) const TESTS: &[Test] = &[
    // Guest and device add to the same counter at the same time. If their atomics were not atomic
    // towards each other, the sum would be too small.
    test("litmus::atomics_between_guest_and_device", &[], |f| {
        const ROUNDS: u32 = 1_000_000;
        let memory = f.buffer(PAGE)?;
        let (counter, done) = (64, 128);
        let bench = Bench {
            kind: BenchKind::AtomicAdd as u32,
            rounds: ROUNDS,
            source: memory.bus() + done,
            target: memory.bus() + counter,
            length: 0,
        };
        f.setup.a.agent.test_handle().bench(&bench)?;
        let mut adders = Vec::new();
        for _ in 0..2 {
            let memory = memory.clone();
            adders.push(Thread::spawn(f.platform(), "adder", move || {
                let slice = memory.slice();
                let (Ok(counter), Ok(done)) = (slice.atomic_u32(64), slice.atomic_u32(128)) else {
                    return 0;
                };
                // The loop runs as long as the device adds, and at least 10,000 times.
                let mut added = 0;
                while done.load(Ordering::Acquire) == 0 && added < 50_000_000 || added < 10_000 {
                    counter.fetch_add(1, Ordering::Relaxed);
                    added += 1;
                }
                added
            })?);
        }
        let mut sum = ROUNDS;
        for adder in adders {
            sum = sum.wrapping_add(adder.join()?);
        }
        let slice = memory.slice();
        let word = |at| slice.atomic_u32(at).map(|word| word.load(Ordering::Acquire));
        check!(eventually(f.platform(), || word(done as usize) == Ok(1)), "the device has finished");
        check_eq!(word(counter as usize), Ok(sum), "additions of guest and device");
        Ok(())
    })
    .limit(120),
    // If the device's writes became visible out of order, the watcher would see a flag before its
    // data.
    test("litmus::data_before_its_flag", &["it_post_rdma_write B20"], |f| {
        // The device writes data and then a flag. A guest thread that sees the flag must see the
        // data.
        let pair = f.pair()?;
        let (source, sink) = (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
        let context = sink.context()?;
        let seen = Arc::new(AtomicU32::new(0));
        let watcher = {
            let (buffer, seen, platform) = (sink.buffer.clone(), seen.clone(), f.platform().clone());
            Thread::spawn(f.platform(), "watcher", move || {
                let slice = buffer.slice();
                let (Ok(data), Ok(flag)) = (slice.atomic_u32(0), slice.atomic_u32(PAGE - 4)) else {
                    return false;
                };
                for round in 1..=200 {
                    if !eventually(&platform, || flag.load(Ordering::Acquire) >= round) {
                        return false;
                    }
                    if data.load(Ordering::Relaxed) < flag.load(Ordering::Relaxed).min(round) {
                        return false;
                    }
                    seen.store(round, Ordering::Release);
                    platform.wake(&seen);
                }
                true
            })?
        };
        for round in 1..=200_u32 {
            source.write(0, &round.to_le_bytes());
            for (at, flags) in [(0, DtoFlags::empty()), (PAGE - 4, SIGNALLED)] {
                let to = sink.remote(at);
                f.a.post_rdma_write(
                    pair.a.ep,
                    &[source.segment(0, 4)],
                    u64::from(round),
                    flags,
                    to,
                    context,
                )?;
            }
            pair.a.done(u64::from(round), DtoStatus::Success)?;
            check!(eventually(f.platform(), || seen.load(Ordering::Acquire) >= round), "round {round}");
        }
        check!(watcher.join()?, "the flag was visible before the data");
        Ok(())
    }),
];

//! A 64-byte RDMA Write whose completion runs a callback by interrupt. The baseline is a kick that
//! the device answers with an MSI-X interrupt.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use common::it_pair::{Pair, Target};
use common::{Failure, Node, Trying};
use kernel::clock;
use nic_abi::admin::{Bench, BenchKind};
use nic_hal::{Nic, Transport};
use platform::{Platform, Wake};
use privileged_api::{DtoFlags, Error};

use crate::samples::{Samples, Summary, report};

const ROUNDS: usize = 5_000;
/// How long one answer may take.
const PATIENCE: core::time::Duration = core::time::Duration::from_secs(10);

/// What an interrupt handler, a callback or another thread hands to the thread that measures.
#[derive(Default)]
pub struct Signal {
    count: AtomicU32,
    at: AtomicU64,
}

impl Signal {
    /// Records the time and wakes the thread that measures.
    pub fn raise(&self, platform: &dyn Platform) {
        self.at.store(clock::tsc(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
        platform.wake(&self.count);
    }

    /// Runs `begin`, sleeps until the next signal, and returns the ticks in between.
    pub fn round(
        &self,
        platform: &dyn Platform,
        begin: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        let before = self.count.load(Ordering::Acquire);
        let start = clock::tsc();
        begin()?;
        let deadline = platform.now() + PATIENCE;
        while self.count.load(Ordering::Acquire) == before {
            if platform.wait(&self.count, before, Some(deadline)) == Wake::TimedOut {
                return Err(Failure::new("an interrupt did not come"));
            }
        }
        Ok(self.at.load(Ordering::Relaxed).saturating_sub(start))
    }
}

/// Measures and prints.
pub fn run(node: &Node, spare: &Arc<dyn Transport>, pair: &Pair, target: &Target) -> Result<(), Failure> {
    let bare = bare(&node.platform, spare)?;
    report("bare doorbell and MSI-X, guest halted", bare, None);

    let a = &pair.a;
    let signal = Arc::new(Signal::default());
    let (platform, given) = (node.platform.clone(), signal.clone());
    a.ia.evd_callback_attach(
        a.requests,
        Box::new(move |ia, evd| {
            // The callback runs again only after a dequeue has found the event dispatcher empty.
            loop {
                match ia.evd_dequeue(evd) {
                    Ok(_) => given.raise(&*platform),
                    Err(Error::QueueEmpty) => return,
                    Err(_) => return,
                }
            }
        }),
    )
    .trying("it_evd_callback_attach")?;
    let flags = DtoFlags::COMPLETION | DtoFlags::NOTIFY;
    let write = Samples::take(ROUNDS, || {
        signal.round(&*node.platform, || target.write(a, 0, flags).trying("it_post_rdma_write"))
    })?;
    a.ia.evd_callback_detach(a.requests).trying("it_evd_callback_detach")?;
    report("64-byte RDMA Write, callback by MSI-X", write.summary(), Some(bare));
    Ok(())
}

/// A kick that the device answers with an interrupt and nothing else, on a NIC without an agent.
pub fn bare(platform: &Arc<dyn Platform>, spare: &Arc<dyn Transport>) -> Result<Summary, Failure> {
    let nic = Nic::open(platform.clone(), spare.clone()).trying("opening the spare NIC")?;
    let rounds = ROUNDS + ROUNDS / 10;
    let bench = Bench {
        kind: BenchKind::EchoInterrupt as u32,
        rounds: rounds as u32,
        source: 0,
        target: 0,
        length: 0,
    };
    nic.testing().bench(&bench).trying("starting the echo")?;
    // From here on the driver needs no interrupt, so this handler may replace the driver's.
    let signal = Arc::new(Signal::default());
    let (waker, given) = (platform.clone(), signal.clone());
    spare.set_vector(0, Some(Box::new(move || given.raise(&*waker))));
    let samples = Samples::take(ROUNDS, || {
        signal.round(&**platform, || {
            spare.kick();
            Ok(())
        })
    })?;
    nic.close();
    Ok(samples.summary())
}

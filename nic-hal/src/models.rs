//! Models of the driver, for the model checker (`.ci/extra`): the dispatcher thread's sleep on the
//! driver's signal with an armed event queue (the models of `nic-abi` check the steps of arming
//! alone), and the shadow state of a queue.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use loom::sync::atomic::AtomicU32;
use loom::thread;
use nic_abi::model::Checked;
use nic_abi::protocol;
use platform::Signal;
use platform::model::{check, finds, platform};

use crate::Shadow;
use crate::outstanding::Outstanding;

#[derive(Clone, Copy, PartialEq)]
enum Mutant {
    None,
    NoLookAfterArm,
    ValueAfterLook,
}

/// The dispatcher thread reads the signal's value, looks at the queue, arms it, looks again, and
/// sleeps. The device writes events, and its interrupt raises the signal.
fn dispatcher(mutant: Mutant) {
    let signal = Signal::new(platform());
    let shared = Arc::new(([AtomicU32::new(0), AtomicU32::new(0)], Checked::<true>::new(0), signal));
    let device = thread::spawn({
        let shared = shared.clone();
        move || {
            let (entries, arm, signal) = &*shared;
            for entry in entries {
                entry.store(1, Ordering::Release);
                if protocol::disarm(arm, true) {
                    signal.raise();
                }
            }
        }
    });
    let (entries, arm, signal) = &*shared;
    let mut taken = 0;
    let look = |taken: &mut usize| {
        let before = *taken;
        while *taken < 2 && entries[*taken].load(Ordering::Acquire) != 0 {
            *taken += 1;
        }
        *taken > before
    };
    loop {
        let mut seen = signal.value();
        look(&mut taken);
        if taken == 2 {
            break;
        }
        protocol::arm(arm, false);
        if mutant != Mutant::NoLookAfterArm && look(&mut taken) {
            continue;
        }
        if mutant == Mutant::ValueAfterLook {
            seen = signal.value();
        }
        signal.wait(seen, None);
    }
    device.join().unwrap();
}

#[test]
fn the_thread_never_sleeps_while_an_event_waits() {
    check(|| dispatcher(Mutant::None));
}

#[test]
fn mutant_that_does_not_look_after_arming() {
    finds(|| dispatcher(Mutant::NoLookAfterArm));
}

#[test]
fn mutant_that_reads_the_value_after_the_look() {
    finds(|| dispatcher(Mutant::ValueAfterLook));
}

/// Posts a request if there is room.
fn post(requests: &Outstanding, cookie: u64) -> Option<u32> {
    let tag = requests.next()?;
    requests.note(tag, Shadow { cookie, data: 0 }, 0);
    requests.publish(tag.wrapping_add(1));
    Some(tag)
}

/// A request is posted and retired while another thread asks how many are outstanding.
#[test]
fn a_queue_with_one_request_never_looks_fuller() {
    check(|| {
        let requests = Arc::new(Outstanding::new(8).unwrap());
        let other = thread::spawn({
            let requests = requests.clone();
            move || assert!(requests.len() <= 1)
        });
        let tag = post(&requests, 5).unwrap();
        requests.retire(tag).unwrap();
        other.join().unwrap();
        assert!(requests.is_empty());
    });
}

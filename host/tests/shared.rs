//! What threads share: gates, locks that sleep, signals, and memory for devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferrovia_host::Machine;
use platform::pages::{PAGE, PageByPage};
use platform::{DmaBuffer, Gate, Platform, Signal, SleepLock, Wake};

fn machine() -> Machine {
    Machine::with_memory(0, 1 << 20)
}

#[test]
fn a_gate_closes_once_and_lets_nobody_in_then() {
    for users in 0..3 {
        let gate = Gate::new(machine().platform());
        let inside: Vec<_> = (0..users).map(|_| gate.enter().expect("it is open")).collect();
        assert!(!gate.is_closed());
        assert!(gate.close(), "it was open");
        assert!(gate.is_closed() && gate.enter().is_none() && !gate.close());
        drop(inside);
        gate.wait();
        assert!(gate.is_closed() && gate.enter().is_none() && !gate.close());
    }
}

#[test]
fn a_closed_gate_waits_until_the_last_user_has_left() {
    let gate = Gate::new(machine().platform());
    let left = AtomicU32::new(0);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            let (inside, left, gate) = (gate.enter().expect("it is open"), &left, &gate);
            threads.spawn(move || {
                while !gate.is_closed() {
                    std::thread::yield_now();
                }
                left.fetch_add(1, Ordering::SeqCst);
                drop(inside);
            });
        }
        assert!(gate.close());
        gate.wait();
        assert_eq!(left.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn one_thread_at_a_time_holds_a_lock_that_sleeps_and_all_get_it() {
    let platform = machine().platform();
    let (lock, inside, turns) = (SleepLock::new(), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..50 {
                    let _held = lock.lock(&platform);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    turns.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(turns.load(Ordering::SeqCst), 200);
}

#[test]
fn a_signal_changes_and_wakes_when_it_is_raised() {
    let platform = machine().platform();
    let signal = Signal::new(platform.clone());
    let seen = signal.value();
    assert_eq!(signal.wait(seen, Some(platform.now())), Wake::TimedOut);
    signal.raise();
    assert_ne!(signal.value(), seen);
    assert_eq!(signal.wait(seen, None), Wake::Woken, "it was raised before");
    let seen = signal.value();
    std::thread::scope(|threads| {
        threads.spawn(|| signal.raise());
        let deadline = platform.now() + Duration::from_secs(20);
        while signal.value() == seen {
            assert_eq!(signal.wait(seen, Some(deadline)), Wake::Woken);
        }
    });
}

#[test]
fn a_buffer_returns_its_memory_unless_it_is_abandoned() {
    let machine = machine();
    let platform = machine.platform();
    for len in [0, 1, 64, 5000] {
        let buffer = DmaBuffer::new(&platform, len, 64).expect("room");
        assert_eq!((buffer.len(), buffer.is_empty(), buffer.slice().len()), (len, len == 0, len));
        if len > 0 {
            let extent = platform.translate(buffer.addr()).expect("reachable");
            assert!(extent.addr == buffer.bus() && machine.arena().is_lent(buffer.bus(), len as u64));
        }
        drop(buffer);
        assert_eq!(machine.arena().lent(), 0);
    }
    let buffer = DmaBuffer::new(&platform, 64, 64).expect("room");
    let bus = buffer.bus();
    buffer.abandon();
    drop(buffer);
    assert!(machine.arena().is_lent(bus, 64));
}

#[test]
fn memory_translated_page_by_page_ends_at_each_page_and_all_else_is_that_of_the_platform_below() {
    let machine = machine();
    let below = machine.platform();
    let pages: Arc<dyn Platform> = Arc::new(PageByPage::new(below.clone()));
    assert_eq!(pages.current_thread(), below.current_thread());
    std::thread::scope(|threads| {
        threads.spawn(|| assert_eq!(pages.current_thread(), below.current_thread()));
    });
    let before = below.now();
    assert!(before <= pages.now() && pages.now() <= below.now());
    let buffer = DmaBuffer::new(&pages, 3 * PAGE, PAGE).expect("room");
    assert!(machine.arena().is_lent(buffer.bus(), 3 * PAGE as u64));
    for at in [0, 1, 4095, 4096, 5000, 3 * PAGE - 1] {
        let extent = pages.translate(buffer.addr() + at).expect("reachable");
        assert_eq!((extent.addr, extent.len), (buffer.bus() + at as u64, (PAGE - at % PAGE) as u64));
    }
    drop(buffer);
    assert_eq!(machine.arena().lent(), 0);
    assert!(pages.translate(0).is_none());
}

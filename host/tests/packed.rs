//! Small pieces of DMA memory that share pages.

use std::sync::Arc;
use std::time::Duration;

use ferrovia_host::Machine;
use platform::sync::atomic::{AtomicU32, Ordering};
use platform::{DmaBuffer, Instant, Packed, Platform, Wake};

const PAGE: usize = 4096;

struct Scene {
    machine: Machine,
    packed: Arc<dyn Platform>,
}

impl Scene {
    fn new(bytes: usize) -> Scene {
        let machine = Machine::with_memory(0, bytes);
        let packed: Arc<dyn Platform> = Arc::new(Packed::new(machine.platform()));
        Scene { machine, packed }
    }

    fn buffer(&self, len: usize) -> Option<DmaBuffer> {
        DmaBuffer::new(&self.packed, len, 64).ok()
    }

    fn lent(&self) -> usize {
        self.machine.arena().lent()
    }
}

/// What is not memory is the platform's below.
#[test]
fn time_threads_and_waiting_are_those_of_the_platform_below() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let scene = Scene::new(1 << 20);
    let (packed, below) = (scene.packed.clone(), scene.machine.platform());
    let before = below.now();
    let now = packed.now();
    assert!(before <= now && now <= below.now() && now > Instant::ZERO);
    assert_eq!(packed.current_thread(), below.current_thread());
    assert!(packed.current_thread() != 0);
    let buffer = scene.buffer(64).expect("room");
    let address = buffer.addr();
    assert_eq!(packed.translate(address).map(|extent| extent.addr), Some(buffer.bus()));

    let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    assert_eq!(packed.wait(&words[0], 1, None), Wake::Woken, "the word differs");
    assert_eq!(packed.wait(&words[0], 0, Some(now)), Wake::TimedOut);
    // Another thread sleeps on the first word, and raises the second one when it wakes up.
    let other = packed.clone();
    let shared = words.clone();
    let main = packed.current_thread();
    let thread = move || {
        assert_ne!(other.current_thread(), main);
        let deadline = other.now() + PATIENCE;
        while shared[0].load(Ordering::SeqCst) == 0 {
            assert_eq!(other.wait(&shared[0], 0, Some(deadline)), Wake::Woken);
        }
        shared[1].store(1, Ordering::SeqCst);
        other.wake(&shared[1]);
    };
    packed.spawn("other", Box::new(thread)).expect("a thread");
    words[0].store(1, Ordering::SeqCst);
    packed.wake(&words[0]);
    let deadline = packed.now() + PATIENCE;
    while words[1].load(Ordering::SeqCst) == 0 {
        assert_eq!(packed.wait(&words[1], 0, Some(deadline)), Wake::Woken);
    }
}

#[test]
fn pieces_of_equal_length_fill_a_page() {
    let scene = Scene::new(1 << 20);
    for (len, pieces) in [(1, 64), (64, 64), (65, 32), (192, 21), (300, 12), (512, 8), (1300, 3), (2048, 2)] {
        let first: Vec<_> = (0..pieces).map(|_| scene.buffer(len).expect("room")).collect();
        assert_eq!(scene.lent(), PAGE, "{pieces} pieces of {len}");
        let more = scene.buffer(len);
        assert_eq!(scene.lent(), 2 * PAGE);
        drop((first, more));
        assert_eq!(scene.lent(), 0);
    }
    for len in [2049, PAGE, PAGE + 1] {
        let buffers = [scene.buffer(len), scene.buffer(len)];
        assert!(scene.lent() >= 2 * len && scene.lent() < 2 * len + 128, "not packed: {len}");
        drop(buffers);
    }
    let aligned = DmaBuffer::new(&scene.packed, 64, 128).expect("room");
    assert!(
        aligned.bus().is_multiple_of(128) && scene.lent() == 64,
        "not packed: an alignment beyond a line"
    );
    let packed = scene.buffer(64).expect("room");
    assert_eq!(scene.lent(), PAGE + 64);
    drop(aligned);
    assert_eq!(scene.lent(), PAGE, "it is released to the platform below");
    drop(packed);
    assert_eq!(scene.lent(), 0);
}

#[test]
fn pieces_do_not_overlap_are_zero_and_return_in_any_order() {
    let scene = Scene::new(4 << 20);
    let mut seed = 7u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut held: Vec<(DmaBuffer, u8)> = Vec::new();
    for round in 0..if cfg!(miri) { 100 } else { 4000 } {
        if held.len() < 300 && random(5) < 3 {
            let buffer = scene.buffer(1 + random(3000)).expect("room");
            let mut bytes = vec![1; buffer.len()];
            buffer.read(0, &mut bytes).expect("inside");
            assert!(bytes.iter().all(|byte| *byte == 0), "zeroed");
            assert!(buffer.bus().is_multiple_of(64) && buffer.addr().is_multiple_of(64));
            let at = scene.packed.translate(buffer.addr()).expect("reachable");
            assert!(at.addr == buffer.bus() && at.len >= buffer.len() as u64);
            buffer.slice().fill(round as u8);
            held.push((buffer, round as u8));
        } else if !held.is_empty() {
            let (buffer, mark) = held.swap_remove(random(held.len()));
            let mut bytes = vec![0; buffer.len()];
            buffer.read(0, &mut bytes).expect("inside");
            assert!(bytes.iter().all(|byte| *byte == mark), "another holder wrote to it");
        }
    }
    held.clear();
    assert_eq!(scene.lent(), 0);
}

#[test]
fn memory_that_runs_out_changes_nothing_and_a_release_makes_room() {
    let scene = Scene::new(3 * PAGE);
    let mut held: Vec<DmaBuffer> = std::iter::from_fn(|| scene.buffer(256)).collect();
    assert_eq!(held.len(), 2 * 16, "two pages: the first of three is never allocated");
    assert!(scene.buffer(64).is_none(), "no page for pieces of another length");
    // One piece of each page stays: no page returns, but their pieces are allocated again.
    held.retain({
        let mut at = 0;
        move |_| {
            at += 1;
            at % 16 == 5
        }
    });
    assert!(scene.buffer(64).is_none() && scene.lent() == 2 * PAGE);
    held.extend(std::iter::from_fn(|| scene.buffer(256)));
    assert_eq!(held.len(), 2 * 16);
    held.clear();
    assert_eq!(scene.lent(), 0);
    assert!(scene.buffer(64).is_some());
}

/// A dead device may still write to a piece.
#[test]
fn an_abandoned_piece_keeps_its_page_and_no_other_piece() {
    let scene = Scene::new(1 << 20);
    let lost = scene.buffer(128).expect("room");
    let place = lost.bus();
    lost.abandon();
    drop(lost);
    for _ in 0..3 {
        let others: Vec<_> = (0..40).map(|_| scene.buffer(128).expect("room")).collect();
        assert!(others.iter().all(|other| other.bus() != place));
    }
    assert_eq!(scene.lent(), PAGE);
    let Scene { machine, packed } = scene;
    drop(packed);
    assert_eq!(machine.arena().lent(), PAGE, "the page is abandoned with its last owner");
}

#[test]
fn threads_allocate_and_release_at_the_same_time() {
    let scene = Scene::new(4 << 20);
    std::thread::scope(|threads| {
        for thread in 1..=4u8 {
            let scene = &scene;
            threads.spawn(move || {
                for round in 0..if cfg!(miri) { 5 } else { 500 } {
                    let buffer = scene.buffer(64 << (round % 4)).expect("room");
                    buffer.slice().fill(thread);
                    let mut bytes = vec![0; buffer.len()];
                    buffer.read(0, &mut bytes).expect("inside");
                    assert!(bytes.iter().all(|byte| *byte == thread));
                }
            });
        }
    });
    assert_eq!(scene.lent(), 0);
}

//! The steps by which driver and device announce work to each other, checked over all interleavings
//! and all outcomes that the memory model allows: neither side sleeps while there is work for it.
//! Only with `--cfg ferrovia_model` (`.ci/extra`).
//!
//! Both sides run [`nic_abi::protocol`] itself, over the checker's words. A side that sleeps waits
//! on a [`Bell`]; after a lost wake-up both sides wait, which the checker reports. Each model has
//! mutants with one step left out, in which the checker must find an error.
#![cfg(ferrovia_model)]

extern crate ferrovia_nic_abi as nic_abi;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::sync::atomic::AtomicU32;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use nic_abi::doorbell::{self, ARM_NONE, Kind};
use nic_abi::model::Checked;
use nic_abi::protocol::{self, Completed, Word};
use nic_abi::vi::{MARK_COMPLETE, MARK_COMPLETING, MARK_POSTED};
use platform::model::{check, finds};

/// A kick or an interrupt: kept until the other side waits for it.
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> Bell {
        Bell { rung: Mutex::new(false), changed: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Where a mutant differs.
#[derive(Clone, Copy, PartialEq)]
enum Mutant {
    None,
    /// The device reads the tail before it arms.
    TailBeforeArm,
    /// The device sleeps without checking for an entry once more.
    NoSecondLook,
    /// The consumer waits without checking the ring once more.
    NoLookAfterArm,
}

/// One send queue and its entry of the FIFO.
struct Queue<const B: bool> {
    tail: Checked<B>,
    armed: Checked<B>,
    /// What was posted, by index; written without an ordering of its own.
    descriptors: [AtomicU32; 2],
}

struct Doorbells<const B: bool> {
    queues: Vec<Queue<B>>,
    fifo_tail: Checked<B>,
    fifo: [Checked<B>; 3],
    event: Checked<B>,
    kick: Bell,
}

impl<const B: bool> Doorbells<B> {
    fn new(queues: usize) -> Arc<Self> {
        let queue = || Queue {
            tail: Checked::new(0),
            armed: Checked::new(1),
            descriptors: [AtomicU32::new(0), AtomicU32::new(0)],
        };
        Arc::new(Doorbells {
            queues: (0..queues).map(|_| queue()).collect(),
            fifo_tail: Checked::new(0),
            fifo: [(); 3].map(|()| Checked::new(0)),
            event: Checked::new(u32::MAX),
            kick: Bell::new(),
        })
    }

    /// The driver, as in `nic_hal`.
    fn post(&self, slot: u32, posts: u32) {
        let queue = &self.queues[slot as usize];
        for index in 0..posts {
            queue.descriptors[index as usize].store(index + 1, Ordering::Relaxed);
            if protocol::post(&queue.tail, &queue.armed, index + 1) {
                let entry = doorbell::entry(Kind::Send, slot, 0);
                if protocol::push(&self.fifo_tail, |at| &self.fifo[at as usize], &self.event, || entry) {
                    self.kick.ring();
                }
            }
        }
    }

    fn entry(&self, head: u32) -> Option<u32> {
        let word = self.fifo.get(head as usize)?.load(Ordering::Acquire);
        doorbell::is_written(word, head).then_some(word)
    }

    /// The device, as in `nic_model`, until it has seen so many posts.
    fn serve(&self, posts: u32, mutant: Mutant) {
        let (mut head, mut seen) = (0, vec![0; self.queues.len()]);
        while seen.iter().sum::<u32>() < posts {
            if let Some(word) = self.entry(head) {
                head += 1;
                let (_, slot) = doorbell::decode(word).expect("a kind");
                let queue = &self.queues[slot as usize];
                let tail = if mutant == Mutant::TailBeforeArm {
                    let tail = queue.tail.load(Ordering::Acquire);
                    queue.armed.swap(1, Ordering::AcqRel);
                    tail
                } else {
                    protocol::rearm(&queue.armed, &queue.tail)
                };
                for index in seen[slot as usize]..tail {
                    let found = queue.descriptors[index as usize].load(Ordering::Relaxed);
                    assert_eq!(found, index + 1, "the descriptor that the tail covers");
                }
                seen[slot as usize] = tail;
                continue;
            }
            protocol::ask_for_kick(&self.event, head);
            if mutant == Mutant::NoSecondLook || self.entry(head).is_none() {
                self.kick.wait();
            }
            self.event.store(head.wrapping_sub(1), Ordering::Relaxed);
        }
    }
}

fn one_queue<const B: bool>(mutant: Mutant) {
    let bells = Doorbells::<B>::new(1);
    let driver = thread::spawn({
        let bells = bells.clone();
        move || bells.post(0, 2)
    });
    bells.serve(2, mutant);
    driver.join().unwrap();
}

fn two_queues<const B: bool>() {
    let bells = Doorbells::<B>::new(2);
    let drivers = [0, 1].map(|slot| {
        let bells = bells.clone();
        thread::spawn(move || bells.post(slot, 1))
    });
    bells.serve(2, Mutant::None);
    for driver in drivers {
        driver.join().unwrap();
    }
}

#[test]
fn a_post_is_never_slept_on() {
    check(|| one_queue::<true>(Mutant::None));
}

#[test]
fn posts_to_two_queues_share_the_fifo() {
    check(two_queues::<true>);
}

#[test]
fn mutant_without_full_barriers_sleeps_on_a_post() {
    finds(|| one_queue::<false>(Mutant::None));
}

#[test]
fn mutant_that_reads_the_tail_before_it_arms() {
    finds(|| one_queue::<true>(Mutant::TailBeforeArm));
}

#[test]
fn mutant_that_sleeps_without_a_second_look() {
    finds(|| one_queue::<true>(Mutant::NoSecondLook));
}

/// A CQ or EQ: the ring's last words, and the record's `arm`.
struct Completions<const B: bool> {
    entries: [AtomicU32; 2],
    payload: [AtomicU32; 2],
    arm: Checked<B>,
    event: Bell,
}

impl<const B: bool> Completions<B> {
    fn new() -> Arc<Self> {
        let words = || [AtomicU32::new(0), AtomicU32::new(0)];
        Arc::new(Completions {
            entries: words(),
            payload: words(),
            arm: Checked::new(ARM_NONE),
            event: Bell::new(),
        })
    }

    /// The device writes two entries; with `solicited`, only the second one is.
    fn write(&self, solicited: bool) {
        for index in 0..2 {
            self.payload[index].store(7, Ordering::Relaxed);
            self.entries[index].store(1, Ordering::Release);
            if protocol::disarm(&self.arm, !solicited || index == 1) {
                self.event.ring();
            }
        }
    }

    /// The consumer takes both entries: it checks the ring, arms, checks once more, waits.
    fn take(&self, solicited: bool, mutant: Mutant) {
        let mut taken = 0;
        let look = |taken: &mut usize| {
            let before = *taken;
            while *taken < 2 && self.entries[*taken].load(Ordering::Acquire) != 0 {
                assert_eq!(
                    self.payload[*taken].load(Ordering::Relaxed),
                    7,
                    "the entry that the phase covers"
                );
                *taken += 1;
            }
            *taken > before
        };
        while taken < 2 {
            if look(&mut taken) {
                continue;
            }
            protocol::arm(&self.arm, solicited);
            if mutant != Mutant::NoLookAfterArm && look(&mut taken) {
                continue;
            }
            self.event.wait();
        }
    }
}

fn completions<const B: bool>(solicited: bool, mutant: Mutant) {
    let cq = Completions::<B>::new();
    let device = thread::spawn({
        let cq = cq.clone();
        move || cq.write(solicited)
    });
    cq.take(solicited, mutant);
    device.join().unwrap();
}

#[test]
fn an_entry_is_never_waited_on_in_vain() {
    check(|| completions::<true>(false, Mutant::None));
}

#[test]
fn a_solicited_entry_wakes_who_waits_for_one() {
    check(|| completions::<true>(true, Mutant::None));
}

#[test]
fn mutant_without_full_barriers_waits_on_an_entry() {
    finds(|| completions::<false>(false, Mutant::None));
}

#[test]
fn mutant_that_does_not_look_after_arming() {
    finds(|| completions::<true>(false, Mutant::NoLookAfterArm));
}

/// A CQ is armed for solicited entries. While the device writes one, the consumer asks for any
/// entry. The mutant arms the CQ as if it were not armed.
fn more(mutant_stores: bool) {
    let cq = Completions::<true>::new();
    protocol::arm(&cq.arm, true);
    let device = thread::spawn({
        let cq = cq.clone();
        move || (0..2).filter(|_| protocol::disarm(&cq.arm, true)).count()
    });
    match mutant_stores {
        true => protocol::arm(&cq.arm, false),
        false => _ = protocol::arm_for_more(&cq.arm),
    }
    assert!(device.join().unwrap() <= 1, "a second event for a CQ whose first one is under way");
}

#[test]
fn arming_for_more_causes_no_second_event() {
    check(|| more(false));
}

#[test]
fn mutant_that_arms_anew_causes_a_second_event() {
    finds(|| more(true));
}

/// The consumer arms again while the device reads the former value of `arm`.
#[test]
fn arming_for_more_is_not_lost() {
    check(|| {
        let cq = Completions::<true>::new();
        protocol::arm(&cq.arm, true);
        let device = thread::spawn({
            let cq = cq.clone();
            move || cq.write(true)
        });
        if !protocol::arm_for_more(&cq.arm) {
            // The event for the solicited entry is under way.
            cq.event.wait();
        }
        cq.take(false, Mutant::None);
        device.join().unwrap();
    });
}

/// A ring of a virtual interface with one entry: its mark, the word that arms the queue, and the
/// descriptor's status and data.
struct Ring<const B: bool> {
    mark: Checked<B>,
    arm: Checked<B>,
    status: AtomicU32,
    data: AtomicU32,
    event: Bell,
}

/// How a mutant of the device completes a descriptor.
#[derive(Clone, Copy, PartialEq)]
enum Completion {
    Right,
    /// It marks the entry after the status only.
    MarksLate,
    /// It stores the last mark, whatever the driver has done meanwhile.
    Stores,
}

impl<const B: bool> Ring<B> {
    fn new() -> Arc<Self> {
        Arc::new(Ring {
            mark: Checked::new(MARK_POSTED),
            arm: Checked::new(ARM_NONE),
            status: AtomicU32::new(0),
            data: AtomicU32::new(0),
            event: Bell::new(),
        })
    }

    /// The device.
    fn complete(&self, how: Completion) {
        self.data.store(7, Ordering::Relaxed);
        let write = || {
            self.status.store(1, Ordering::Release);
            true
        };
        match how {
            Completion::Right => {
                assert!(protocol::complete(&self.mark, write));
            }
            Completion::MarksLate => {
                write();
                self.mark.store(MARK_COMPLETE, Ordering::Release);
            }
            Completion::Stores => {
                self.mark.store(MARK_COMPLETING, Ordering::Relaxed);
                write();
                self.mark.store(MARK_COMPLETE, Ordering::Release);
            }
        }
        if protocol::disarm(&self.arm, false) {
            self.event.ring();
        }
    }

    fn is_done(&self) -> bool {
        self.status.load(Ordering::Acquire) == 1
    }

    /// The driver's look at the entry.
    fn look(&self) -> bool {
        let found = protocol::completed(&self.mark, || self.is_done());
        if found == Completed::Yes {
            assert_eq!(self.data.load(Ordering::Relaxed), 7, "the data that the status covers");
            assert_eq!(self.status.load(Ordering::Relaxed), 1, "the status");
        }
        found == Completed::Yes
    }
}

/// The consumer polls the status word alone, and takes the descriptor off once it is done.
fn polled(how: Completion) {
    let ring = Ring::<true>::new();
    let device = thread::spawn({
        let ring = ring.clone();
        move || ring.complete(how)
    });
    if ring.is_done() {
        assert!(ring.look(), "a descriptor whose status says that it is done");
    }
    device.join().unwrap();
    assert!(ring.look());
}

#[test]
fn a_descriptor_with_a_status_is_done() {
    check(|| polled(Completion::Right));
}

#[test]
fn mutant_that_marks_after_the_status() {
    finds(|| polled(Completion::MarksLate));
}

/// The consumer takes a descriptor off as soon as it can, and posts the next one in its place,
/// which the device does not complete.
fn posted_again(how: Completion) {
    let ring = Ring::<true>::new();
    let device = thread::spawn({
        let ring = ring.clone();
        move || ring.complete(how)
    });
    let taken = ring.look();
    if taken {
        ring.status.store(0, Ordering::Relaxed);
        // A swap and not a store: the checker does not see that a store of this thread comes after
        // a compare-exchange in the word's order of changes.
        ring.mark.swap(MARK_POSTED, Ordering::Relaxed);
    }
    device.join().unwrap();
    assert_ne!(ring.look(), taken, "the next descriptor is done, or the only one is not");
}

#[test]
fn a_descriptor_is_not_done_because_the_former_one_in_its_place_was() {
    check(|| posted_again(Completion::Right));
}

#[test]
fn mutant_that_stores_the_last_mark() {
    finds(|| posted_again(Completion::Stores));
}

/// The consumer looks, arms the ring, looks once more, and waits.
fn waited<const B: bool>(looks_after_arming: bool) {
    let ring = Ring::<B>::new();
    let device = thread::spawn({
        let ring = ring.clone();
        move || ring.complete(Completion::Right)
    });
    while !ring.look() {
        protocol::arm(&ring.arm, false);
        if looks_after_arming && ring.look() {
            break;
        }
        ring.event.wait();
    }
    device.join().unwrap();
}

#[test]
fn a_descriptor_is_never_waited_on_in_vain() {
    check(|| waited::<true>(true));
}

#[test]
fn mutant_without_full_barriers_waits_on_a_descriptor() {
    finds(|| waited::<false>(true));
}

#[test]
fn mutant_that_does_not_look_at_the_ring_after_arming() {
    finds(|| waited::<true>(false));
}

/// The device cannot write the status, which the consumer has not forged.
#[test]
fn a_descriptor_without_a_status_is_lost() {
    check(|| {
        let mark = Checked::<true>::new(MARK_POSTED);
        assert!(!protocol::complete(&mark, || false));
        assert_eq!(protocol::completed(&mark, || unreachable!()), Completed::Lost);
    });
}

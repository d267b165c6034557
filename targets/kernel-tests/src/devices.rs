//! Interrupts, and the NICs as the kernel hands them over.
#![expect(unsafe_code, reason = "raises interrupts by instruction")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use kernel::{clock, interrupts, pci, thread};
use nic_abi::admin::{Bench, BenchKind};
use nic_hal::Nic;
use platform::Wake;

use crate::{Failure, Machine, Outcome, Test, check};

/// All tests of this file.
pub const TESTS: &[Test] = &[
    ("kernel.nic.registers_are_mapped", registers),
    ("kernel.nic.vectors_can_be_set_and_masked", vectors),
    ("kernel.nic.an_entry_is_masked_while_it_changes", masked_while_it_changes),
    ("kernel.nic.interrupts_are_spread_over_cpus", interrupts_are_spread),
    ("kernel.pci.the_first_structure_that_can_be_used_counts", first_usable_structure),
    ("kernel.interrupts.none_unexpected", none_unexpected),
    ("kernel.interrupts.a_handler_wakes_a_thread", handler_wakes_a_thread),
    ("kernel.interrupts.unexpected_are_counted", unexpected_are_counted),
];

fn registers(m: &Machine) -> Outcome {
    for nic in &m.nics {
        let registers = nic.registers();
        check(registers.len() >= 4096, "the register file is too small")?;
        check(registers.atomic_u32s().is_ok(), "the register file is not aligned")?;
    }
    Ok(())
}

fn vectors(m: &Machine) -> Outcome {
    for nic in &m.nics {
        let count = nic.vectors();
        check(count > 0, "no vectors")?;
        check(!nic.set_vector(count, Some(Box::new(|| ()))), "a vector too many")?;
        check(!nic.set_vector(u16::MAX, None), "a vector too many")?;
        for vector in 0..count {
            check(nic.set_vector(vector, Some(Box::new(|| ()))), "a vector was refused")?;
            check(nic.set_vector(vector, Some(Box::new(|| ()))), "a second handler was refused")?;
            check(nic.set_vector(vector, None), "masking was refused")?;
            check(nic.set_vector(vector, None), "masking again was refused")?;
        }
    }
    Ok(())
}

/// MSI-X: the writes that replace what an entry does begin by masking it, and end by unmasking it.
fn masked_while_it_changes(_: &Machine) -> Outcome {
    const CONTROL: usize = 3;
    let writes = pci::entry_writes(5, 77);
    let [first, message @ .., last] = writes;
    check((first, last) == ((CONTROL, 1), (CONTROL, 0)), "the entry is not masked from first to last")?;
    let expected = [(0, 0xfee0_5000), (1, 0), (2, 77)];
    check(message == expected, "the message is not vector 77 on CPU 5")
}

/// MSI-X: entry 0 of each function interrupts another CPU than the function before, and wakes a
/// thread that may be on any CPU.
/// Virtio: capabilities whose BAR is of another kind, is reserved, or is too small are passed over.
fn first_usable_structure(_: &Machine) -> Outcome {
    const NOTIFY: u8 = 2;
    let words = |kind: u32, bar, offset, len, word| [kind << 24 | 0x14_0009, bar, offset, len, word];
    let capabilities = [
        words(1, 4, 0, 56, 0),
        words(2, 1, 0, 4, 9), // an I/O BAR
        words(2, 6, 0, 4, 9), // reserved numbers
        words(2, 255, 0, 4, 9),
        words(2, 4, 0x3000, 1, 9), // too short
        words(2, 4, 0x3002, 4, 9), // not aligned
        words(2, 4, 0xfffe, 4, 9), // behind the end
        words(2, 4, !3, u32::MAX, 9),
        words(2, 4, 0x3000, 0x1000, 4),
        words(2, 4, 0, 0x1000, 9),
    ];
    let size = |slot| (slot == 4).then_some(0x1_0000);
    let mut found = pci::places(NOTIFY, 2, &capabilities, size);
    let expected = pci::Place { bar: 4, offset: 0x3000, len: 0x1000, word: 4 };
    check(found.next() == Some(expected), "it is another one")?;
    check(found.next().is_some() && found.next().is_none(), "one that cannot be used is left")?;
    check(pci::places(NOTIFY, 2, &capabilities, |_| None).next().is_none(), "there is no BAR")
}

fn interrupts_are_spread(m: &Machine) -> Outcome {
    const ROUNDS: u32 = 50;
    for (number, device) in m.nics.iter().enumerate() {
        let nic = Nic::open(m.platform.clone(), device.clone())
            .map_err(|_| Failure::new("the NIC does not start"))?;
        let count = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let bench = Bench { kind: BenchKind::EchoInterrupt as u32, rounds: ROUNDS, ..Bench::default() };
        check(nic.testing().bench(&bench).is_ok(), "the NIC refuses the benchmark")?;
        let (theirs, platform) = (count.clone(), m.platform.clone());
        device.set_vector(
            0,
            Some(Box::new(move || {
                theirs.1.fetch_or(1 << thread::current_cpu(), Ordering::SeqCst);
                theirs.0.fetch_add(1, Ordering::SeqCst);
                platform.wake(&theirs.0);
            })),
        );
        for round in 0..ROUNDS {
            device.kick();
            let deadline = clock::now() + Duration::from_secs(10);
            while count.0.load(Ordering::SeqCst) == round {
                let answer = m.platform.wait(&count.0, round, Some(deadline));
                check(answer == Wake::Woken, "an interrupt did not arrive")?;
            }
        }
        nic.close();
        let cpu = number as u32 % kernel::cpus();
        check(count.1.load(Ordering::SeqCst) == 1 << cpu, "interrupts are not spread over the CPUs")?;
    }
    Ok(())
}

fn none_unexpected(_: &Machine) -> Outcome {
    check(kernel::interrupts::unexpected() == 0, "an unexpected interrupt came")
}

/// The vector that [`raise`] raises.
const RAISED: u8 = 0xef;

/// Raises an interrupt as a device would.
fn raise() {
    // SAFETY: an interrupt changes no register, and no memory but that of its handler.
    unsafe { core::arch::asm!("int 0xef") };
}

fn handler_wakes_a_thread(m: &Machine) -> Outcome {
    check(interrupts::unexpected() == 0, "an unexpected interrupt came")?;
    // Vectors are handed out in order: claim all, to get the last, which can be raised.
    let vector = core::iter::from_fn(interrupts::claim).last().ok_or(Failure::new("no vector left"))?;
    check(
        vector.number() == RAISED && interrupts::claim().is_none(),
        "the last vector is not the one that can be raised",
    )?;
    let count = Arc::new(AtomicU32::new(0));
    let seen = Arc::new(AtomicU32::new(0));
    let (theirs, platform) = (count.clone(), m.platform.clone());
    vector.set(Some(Box::new(move || {
        theirs.fetch_add(1, Ordering::SeqCst);
        platform.wake(&theirs);
    })));
    let (theirs, last, platform) = (count.clone(), seen.clone(), m.platform.clone());
    let spawned = thread::spawn("woken", move || {
        while last.load(Ordering::SeqCst) < 100 {
            let now = theirs.load(Ordering::SeqCst);
            last.store(now, Ordering::SeqCst);
            if now < 100 {
                platform.wait(&theirs, now, None);
            }
        }
    });
    check(spawned.is_ok(), "no memory for a thread")?;
    thread::yield_now();
    let mut prompt = 0;
    for i in 1..=100 {
        raise();
        // It runs before the interrupted thread continues, unless the time slice ended just then.
        prompt += u32::from(seen.load(Ordering::SeqCst) == i);
        while seen.load(Ordering::SeqCst) < i {
            thread::yield_now();
        }
    }
    // With several CPUs it may still run on another one when the next interrupt comes.
    check(kernel::cpus() > 1 || prompt > 50, "the woken thread does not run at once")?;
    vector.set(None);
    raise();
    check(count.load(Ordering::SeqCst) == 100, "the handler ran after it was unbound")?;
    check(interrupts::unexpected() == 0, "the interrupt of a claimed vector was counted as unexpected")
}

fn unexpected_are_counted(_: &Machine) -> Outcome {
    let before = interrupts::unexpected();
    // SAFETY: as in `raise`. It is a vector of the legacy controllers, which are masked.
    unsafe { core::arch::asm!("int 0x27") };
    check(interrupts::unexpected() == before + 1, "it was not counted")
}

//! Measures the time-stamp counter and the APIC timer against the PIT, once during boot.
#![expect(unsafe_code, reason = "reads and writes the PIT's ports")]

use x86_64::instructions::port::Port;

use crate::clock::tsc;
use crate::{apic, clock};

/// The PIT's input, in Hz.
const PIT_HZ: u64 = 1_193_182;
/// How long to measure: 5 ms, in which an error of 1 us is 0.02 %.
const PIT_TICKS: u64 = PIT_HZ / 200;
/// How many readings to take. The quickest counts, since an emulator may be away in the middle of
/// one.
const ATTEMPTS: usize = 5;

/// Channel 2 of the PIT, which counts down and raises no interrupt.
struct Pit {
    counter: Port<u8>,
    command: Port<u8>,
    gate: Port<u8>,
}

/// The values of all three counters at about the same moment.
#[derive(Clone, Copy)]
struct Reading {
    tsc: u64,
    took: u64,
    pit: u64,
    apic: u64,
}

impl Pit {
    fn start() -> Pit {
        let mut pit = Pit { counter: Port::new(0x42), command: Port::new(0x43), gate: Port::new(0x61) };
        // SAFETY: the speaker's counter: gate on, speaker off, mode 0, from the top.
        unsafe {
            let gate = pit.gate.read();
            pit.gate.write(gate & !2 | 1);
            pit.command.write(0b1011_0000);
            pit.counter.write(0xff);
            pit.counter.write(0xff);
        }
        pit
    }

    /// How many ticks it has counted. If there is no PIT, the ports read as ones and this stays
    /// constant.
    fn elapsed(&mut self) -> u64 {
        // SAFETY: latches the count and reads it.
        let count = unsafe {
            self.command.write(0b1000_0000);
            u16::from_le_bytes([self.counter.read(), self.counter.read()])
        };
        u64::from(0xffff - count)
    }

    fn reading(&mut self) -> Reading {
        let one = |pit: &mut Pit| {
            let before = tsc();
            let elapsed = pit.elapsed();
            let apic = apic::timer_count();
            let after = tsc();
            Reading { tsc: before.midpoint(after), took: after - before, pit: elapsed, apic }
        };
        let mut best = one(self);
        for _ in 1..ATTEMPTS {
            let next = one(self);
            if next.took < best.took {
                best = next;
            }
        }
        best
    }
}

/// Measures both counters, and sets their rates in `clock` and `apic`.
pub(crate) fn measure() {
    apic::start_counting();
    let mut pit = Pit::start();
    let first = pit.reading();
    let mut last = first;
    // Without a PIT the count never changes. The loop then ends after a number of readings that
    // take far longer than the PIT would.
    for _ in 0..1_000_000 {
        last.pit = pit.elapsed();
        if last.pit.saturating_sub(first.pit) >= PIT_TICKS {
            break;
        }
        core::hint::spin_loop();
    }
    last = pit.reading();
    let elapsed = last.pit.saturating_sub(first.pit);
    let ticks = last.tsc.saturating_sub(first.tsc);
    if elapsed < PIT_TICKS || ticks == 0 {
        log::warn!("the clock is not measured, since there is no PIT: the counter is taken to run at 1 GHz");
        return;
    }
    let ns = u128::from(elapsed) * 1_000_000_000 / u128::from(PIT_HZ);
    let hz = u128::from(ticks) * 1_000_000_000 / ns;
    clock::set_rate(hz as u64, ((ns << 32) / u128::from(ticks)) as u64);
    let timer = u128::from(last.apic.saturating_sub(first.apic));
    apic::set_timer_rate(((timer << 32) / ns) as u64);
    log::debug!("clock: counter {} MHz, APIC timer {} kHz", hz / 1_000_000, timer * 1_000_000 / ns);
}

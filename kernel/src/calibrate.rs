//! Measures the time-stamp counter and the APIC timer against the PIT, once during boot. Without a
//! PIT the counter is measured against the APIC timer, whose rate is then taken to be that of
//! QEMU's.
#![expect(unsafe_code, reason = "reads and writes the PIT's ports")]

use x86_64::instructions::port::Port;

use crate::clock::tsc;
use crate::{apic, clock};

/// The PIT's input, in Hz.
const PIT_HZ: u64 = 1_193_182;
/// How long to measure: 5 ms, in which an error of 1 us is 0.02 %.
const PIT_TICKS: u64 = PIT_HZ / 200;
/// How often the PIT is read before it counts as absent: while it counts, two readings differ.
const LOOKS: u32 = 1000;
/// How often a counter is read while it is waited for: far longer than that takes.
const PATIENCE: u32 = 1_000_000;
/// The rate of the APIC timer in QEMU and in KVM, 1 GHz, divided as `apic` divides it.
const USUAL_TIMER_HZ: u64 = 1_000_000_000 / 16;
/// How long to measure by it: 5 ms.
const TIMER_TICKS: u64 = USUAL_TIMER_HZ / 200;
/// How often to measure. A measurement in which the PIT's counter ran out, after 55 ms, counts for
/// nothing: the CPU was away for longer, as on a busy host, or each access to the PIT takes long.
const MEASUREMENTS: usize = 20;
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

    /// Whether the counter has run out since the start. Its output is high from then on, which bit
    /// 5 of the port shows. Where there is no such port it reads as ones.
    fn has_run_out(&mut self) -> bool {
        // SAFETY: reading the port has no effect.
        let port = unsafe { self.gate.read() };
        port != 0xff && port & 1 << 5 != 0
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
    for _ in 0..MEASUREMENTS {
        apic::start_counting();
        let mut pit = Pit::start();
        match readings(&mut pit) {
            Some(_) if pit.has_run_out() => {}
            Some((first, last)) if last.pit >= first.pit + PIT_TICKS && last.tsc > first.tsc => {
                return set_rates(first, last);
            }
            _ => break,
        }
    }
    measure_by_apic();
}

/// Two readings, [`PIT_TICKS`] apart unless the PIT is too slow; `None` if it stands still.
fn readings(pit: &mut Pit) -> Option<(Reading, Reading)> {
    let first = pit.reading();
    if (0..LOOKS).all(|_| pit.elapsed() == first.pit) {
        return None;
    }
    for _ in 0..PATIENCE {
        if pit.elapsed().saturating_sub(first.pit) >= PIT_TICKS {
            break;
        }
        core::hint::spin_loop();
    }
    Some((first, pit.reading()))
}

/// Sets the rates that two readings show.
fn set_rates(first: Reading, last: Reading) {
    let (elapsed, ticks) = (last.pit - first.pit, last.tsc - first.tsc);
    let ns = u128::from(elapsed) * 1_000_000_000 / u128::from(PIT_HZ);
    let hz = u128::from(ticks) * 1_000_000_000 / ns;
    clock::set_rate(hz as u64, ((ns << 32) / u128::from(ticks)) as u64);
    let timer = u128::from(last.apic.saturating_sub(first.apic));
    apic::set_timer_rate(((timer << 32) / ns) as u64);
    log::debug!("clock: counter {} MHz, APIC timer {} kHz", hz / 1_000_000, timer * 1_000_000 / ns);
}

/// Measures the time-stamp counter against the APIC timer.
fn measure_by_apic() {
    let reading = || (apic::timer_count(), tsc());
    let (timer, counter) = reading();
    let mut last = reading();
    for _ in 0..PATIENCE {
        if last.0.saturating_sub(timer) >= TIMER_TICKS {
            break;
        }
        core::hint::spin_loop();
        last = reading();
    }
    let (timer, counter) = (last.0.saturating_sub(timer), last.1.saturating_sub(counter));
    if timer < TIMER_TICKS || counter == 0 {
        log::warn!("the clock is not measured: there is no PIT, and the APIC timer stands still");
        return;
    }
    let ns = u128::from(timer) * 1_000_000_000 / u128::from(USUAL_TIMER_HZ);
    let hz = u128::from(counter) * 1_000_000_000 / ns;
    clock::set_rate(hz as u64, ((ns << 32) / u128::from(counter)) as u64);
    apic::set_timer_rate((USUAL_TIMER_HZ << 32) / 1_000_000_000);
    log::warn!("there is no PIT: the clock goes by the APIC timer, at QEMU's and KVM's rate of 1 GHz");
}

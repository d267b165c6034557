//! The heartbeat: a thread that shows the launcher each second that the guest is alive.
//!
//! It stops when threads are no longer scheduled, and when a CPU takes no interrupts any more.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use platform::OutOfMemory;

use super::spawn::spawn;
use super::wait::sleep;
use crate::cpu::{self, Cpu, MAX_CPUS};
use crate::lock::IrqOff;
use crate::{apic, launcher, memory};

/// The launcher ends a guest after ten times this without a heartbeat.
const PERIOD: Duration = Duration::from_secs(1);

/// The number of the current round.
static ROUND: AtomicU32 = AtomicU32::new(0);
/// The last round that reached each CPU, by the CPU's number.
static REACHED: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

fn reached(cpu: &Cpu) -> &'static AtomicU32 {
    &REACHED[cpu.id() as usize]
}

/// Shows the launcher that the first thread runs, and starts the heartbeat.
pub(crate) fn start_heartbeat() -> Result<(), OutOfMemory> {
    launcher::beat(b'S');
    spawn("heartbeat", || {
        loop {
            sleep(PERIOD);
            if round() {
                launcher::beat(b'.');
            }
        }
    })
}

/// Begins a round, in which each CPU has to take an interrupt, and returns whether all CPUs took
/// the one of the last round. If some did not, the last round goes on.
fn round() -> bool {
    let _off = IrqOff::new();
    let last = ROUND.load(Ordering::Relaxed);
    let complete = cpu::online().all(|cpu| reached(cpu).load(Ordering::Relaxed) == last);
    if complete {
        ROUND.store(last.wrapping_add(1), Ordering::Relaxed);
    }
    answer_round();
    for other in cpu::online().filter(|other| !core::ptr::eq(*other, cpu::this())) {
        apic::send_reschedule(other);
    }
    complete
}

/// Records that the calling CPU takes interrupts, and has it look translations up anew.
pub(crate) fn answer_round() {
    memory::renew();
    reached(cpu::this()).store(ROUND.load(Ordering::Relaxed), Ordering::Relaxed);
}

//! How the guest ends: one CPU stops the others, and QEMU gets a status.
//!
//! The status goes to QEMU's device isa-debug-exit at port 0xf4.
#![expect(unsafe_code, reason = "writes to an I/O port")]

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use x86_64::instructions::{hlt, interrupts, port::Port};

use crate::{apic, clock, console, cpu, println};

/// Where the launcher puts isa-debug-exit.
pub(crate) const EXIT_PORT: u16 = 0xf4;
/// Added to the status, so that no status of ours looks like one of QEMU's own. QEMU's process ends
/// with `((OFFSET + status) << 1) | 1`.
pub(crate) const OFFSET: u32 = 0x10;
/// The highest status that survives in the 8 bits of a process status.
const HIGHEST: u32 = 0x7f - OFFSET;

/// How long the CPU that reports waits for the others to stop.
const STOP_TIME: Duration = Duration::from_millis(200);

/// One more than the number of the CPU that reports a panic or a fault; 0 while none does.
static REPORTING: AtomicU32 = AtomicU32::new(0);
/// How many CPUs have stopped because another one reports.
static STOPPED: AtomicU32 = AtomicU32::new(0);

/// The statuses that the kernel itself ends with. 0 is success; 1 to 99 belong to images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// A thread or an interrupt handler panicked.
    Panic = 100,
    /// The CPU raised an exception.
    Fault = 101,
    /// The machine lacks what the kernel needs to boot.
    Unbootable = 102,
}

/// Ends the guest with `status`. Statuses below 0 and above 111 become 111.
pub fn exit(status: i32) -> ! {
    interrupts::disable();
    stop_if_another_reports();
    console::drain();
    let status = u32::try_from(status).unwrap_or(HIGHEST).min(HIGHEST);
    // SAFETY: writing to the debug-exit port has no effect on memory; without the device nothing
    // happens.
    unsafe { Port::<u32>::new(EXIT_PORT).write(OFFSET + status) };
    // Without the device the machine cannot end, so this CPU halts.
    loop {
        hlt();
    }
}

/// Makes the calling CPU the only one that runs and writes to the console, before it reports a
/// panic or a fault. If another CPU reports already, the caller stops. If the caller itself does,
/// its report has failed: the guest ends with `status` at once. Interrupts are off.
pub(crate) fn begin_report(status: Status) {
    let me = cpu::this().id() + 1;
    match REPORTING.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {}
        Err(reporting) if reporting == me => {
            println!("{status:?} during the report of a panic or fault; the report ends here");
            exit(status as i32);
        }
        Err(_) => stop(),
    }
    // Before the others stop, so that none of them stops in the middle of a line.
    let at_line_start = console::seize();
    let mut others = 0;
    for cpu in cpu::online().filter(|cpu| cpu.id() + 1 != me) {
        others += 1;
        apic::send_nmi(cpu);
    }
    let deadline = clock::now() + STOP_TIME;
    while STOPPED.load(Ordering::SeqCst) < others && clock::now() < deadline {
        core::hint::spin_loop();
    }
    if !at_line_start {
        println!();
    }
}

/// Stops the calling CPU for good if another CPU reports a panic or a fault.
pub(crate) fn stop_if_another_reports() {
    let reporting = REPORTING.load(Ordering::SeqCst);
    if reporting != 0 && reporting != cpu::this().id() + 1 {
        stop();
    }
}

fn stop() -> ! {
    interrupts::disable();
    STOPPED.fetch_add(1, Ordering::SeqCst);
    loop {
        hlt();
    }
}

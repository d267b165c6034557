//! What the guest tells the launcher: a status at its end, a heartbeat, and requests.
//!
//! | port | device of QEMU's | what goes there |
//! |---|---|---|
//! | 0xf4 | isa-debug-exit | [`exit`]'s status |
//! | 0xe9 | isa-debugcon | `S` when the first thread runs, `.` each second, lines of [`control`] |
#![expect(unsafe_code, reason = "writes to I/O ports")]

use x86_64::instructions::{hlt, interrupts, port::Port};

use crate::lock::IrqLock;
use crate::{console, panic};

/// Where the launcher puts isa-debug-exit.
const EXIT_PORT: u16 = 0xf4;
/// Where the launcher puts isa-debugcon.
static TELL_PORT: IrqLock<Port<u8>> = IrqLock::new(Port::new(0xe9));

/// Added to the status, so that no status of ours looks like one of QEMU's own. QEMU's process ends with
/// `((OFFSET + status) << 1) | 1`.
const OFFSET: u32 = 0x10;
/// The highest status that survives in the 8 bits of a process status.
const HIGHEST: u32 = 0x7f - OFFSET;

/// The statuses that the kernel itself ends with. 0 is success; 1 to 99 belong to images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Something panicked.
    Panic = 100,
    /// The CPU raised an exception.
    Fault = 101,
    /// The machine lacks what the kernel needs to boot.
    Unbootable = 102,
}

/// Ends the guest. Statuses above 111 are reported as 111.
pub fn exit(status: i32) -> ! {
    interrupts::disable();
    panic::stop_if_another_dies();
    console::drain();
    let status = u32::try_from(status).unwrap_or(HIGHEST).min(HIGHEST);
    // SAFETY: writing to the debug-exit port has no effect on memory; without the device nothing happens.
    unsafe { Port::<u32>::new(EXIT_PORT).write(OFFSET + status) };
    // There is no such device: stay, without disturbing anybody.
    loop {
        hlt();
    }
}

/// Writes a byte that says that the guest is alive.
pub(crate) fn beat(byte: u8) {
    // SAFETY: a byte for whoever listens at that port; it has no effect on memory.
    unsafe { TELL_PORT.lock().write(byte) };
}

/// Asks the launcher for something: `kill` stops the device process behind the NICs. Nothing answers; look for
/// the effect. `request` is one line.
pub fn control(request: &str) {
    let mut port = TELL_PORT.lock();
    for byte in request.bytes().filter(|b| *b != b'\n').chain([b'\n']) {
        // SAFETY: as in `beat`. A heartbeat cannot come in between, as we hold the lock.
        unsafe { port.write(byte) };
    }
}

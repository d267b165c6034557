//! How the guest ends: a status through QEMU's isa-debug-exit device.
#![expect(unsafe_code, reason = "a write to an I/O port")]

use x86_64::instructions::{hlt, interrupts, port::Port};

use crate::console;

/// Where the launcher puts isa-debug-exit.
const PORT: u16 = 0xf4;
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
    console::drain();
    let status = u32::try_from(status).unwrap_or(HIGHEST).min(HIGHEST);
    // SAFETY: writing to the debug-exit port has no effect on memory; without the device nothing happens.
    unsafe { Port::<u32>::new(PORT).write(OFFSET + status) };
    // There is no such device: stay, without disturbing anybody.
    loop {
        hlt();
    }
}

//! Messages to the launcher, through QEMU's device isa-debugcon at port 0xe9: `S` when the first
//! thread runs, `.` each second, and the lines of [`control`].
#![expect(unsafe_code, reason = "writes to an I/O port")]

use x86_64::instructions::port::Port;

use crate::lock::IrqLock;

/// Where the launcher puts isa-debugcon.
static PORT: IrqLock<Port<u8>> = IrqLock::new(Port::new(0xe9));

/// Sends a byte of the heartbeat.
pub(crate) fn beat(byte: u8) {
    // SAFETY: the device takes any byte, and has no effect on memory.
    unsafe { PORT.lock().write(byte) };
}

/// Asks the launcher for something: `kill` stops the device process behind the NICs, and
/// `stop-word ADDRESS` names the word in which the launcher asks the image to end, and
/// `mailbox ADDRESS BYTES BYTES` the memory for other questions and answers. `request` is one
/// line. The launcher sends no answer; observe the effect.
pub fn control(request: &str) {
    // Held for the whole line, so that no byte of the heartbeat gets into it.
    let mut port = PORT.lock();
    for byte in request.bytes().filter(|b| *b != b'\n').chain([b'\n']) {
        // SAFETY: as in `beat`.
        unsafe { port.write(byte) };
    }
}

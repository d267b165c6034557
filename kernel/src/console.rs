//! The console: the first serial port, and the `log` crate's back end on it.
//!
//! The output of one call of [`print!`](crate::print), [`println!`](crate::println) or a log macro
//! stays together, up to [`LINE`] bytes; longer output is cut into pieces of that size. `log=LEVEL`
//! on the command line (off, error, warn, info, debug, trace) sets what is logged.
#![expect(unsafe_code, reason = "reads and writes I/O ports")]

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use bitflags::bitflags;
use x86_64::instructions::port::{Port, PortReadOnly, PortWriteOnly};

use crate::lock::IrqLock;
use crate::{clock, cpu};

/// The longest output that is written in one piece.
pub const LINE: usize = 1024;

/// The first serial port of a PC.
pub(crate) const COM1: u16 = 0x3f8;
/// How many bytes its empty transmitter takes.
const FIFO: usize = 16;
/// How often the line status is read before a byte is written regardless: a console without a
/// reader must not stop the kernel.
const PATIENCE: u32 = 10_000_000;

bitflags! {
    /// The 16550's line status register.
    #[derive(Clone, Copy)]
    struct LineStatus: u8 {
        /// The transmitter takes [`FIFO`] bytes.
        const HOLDING_EMPTY = 1 << 5;
        /// All bytes have been sent.
        const IDLE = 1 << 6;
    }
}

/// A 16550 UART.
struct Uart {
    data: Port<u8>,
    interrupt_enable: PortWriteOnly<u8>,
    fifo_control: PortWriteOnly<u8>,
    line_control: PortWriteOnly<u8>,
    modem_control: PortWriteOnly<u8>,
    line_status: PortReadOnly<u8>,
    /// How many more bytes fit before the line status must be read again.
    room: usize,
}

impl Uart {
    const fn new(base: u16) -> Uart {
        Uart {
            data: Port::new(base),
            interrupt_enable: PortWriteOnly::new(base + 1),
            fifo_control: PortWriteOnly::new(base + 2),
            line_control: PortWriteOnly::new(base + 3),
            modem_control: PortWriteOnly::new(base + 4),
            line_status: PortReadOnly::new(base + 5),
            room: 0,
        }
    }

    fn init(&mut self) {
        // SAFETY: only this module uses the first serial port, and none of these writes touches
        // memory.
        unsafe {
            self.interrupt_enable.write(0);
            self.line_control.write(0x80); // the divisor: 115200 baud
            self.data.write(1);
            self.interrupt_enable.write(0);
            self.line_control.write(0x03); // 8 bits, no parity, one stop bit
            self.fifo_control.write(0x07); // on, and emptied
            self.modem_control.write(0x03); // terminal and line are ready
        }
    }

    fn await_status(&mut self, wanted: LineStatus) {
        for _ in 0..PATIENCE {
            // SAFETY: reading the line status has no effect on transmission.
            let status = LineStatus::from_bits_retain(unsafe { self.line_status.read() });
            if status.contains(wanted) {
                return;
            }
            core::hint::spin_loop();
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.room == 0 {
                self.await_status(LineStatus::HOLDING_EMPTY);
                self.room = FIFO;
            }
            self.room -= 1;
            // SAFETY: the transmit register takes any byte.
            unsafe { self.data.write(byte) };
        }
    }
}

static UART: IrqLock<Uart> = IrqLock::new(Uart::new(COM1));
/// One more than the number of the CPU that has seized the console (see [`seize`]); 0 while none
/// has.
static SEIZED: AtomicU32 = AtomicU32::new(0);
/// How long [`seize`] waits for another CPU to finish its piece.
const LINE_TIME: Duration = Duration::from_millis(200);

fn write_bytes(bytes: &[u8]) {
    match SEIZED.load(Ordering::SeqCst) {
        0 => UART.lock().write(bytes),
        dying if dying == cpu::current_id() + 1 => Uart::new(COM1).write(bytes),
        // Another CPU reports a panic or a fault; it is about to stop this one.
        _ => loop {
            core::hint::spin_loop();
        },
    }
}

/// Collects output, and writes it in pieces of at most [`LINE`] bytes, each under the lock.
struct Piece {
    bytes: [u8; LINE],
    len: usize,
}

impl Piece {
    fn flush(&mut self) {
        write_bytes(&self.bytes[..self.len]);
        self.len = 0;
    }
}

impl Write for Piece {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for &byte in s.as_bytes() {
            if self.len == LINE {
                self.flush();
            }
            self.bytes[self.len] = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Writes formatted text to the console; what [`print!`](crate::print) calls.
pub fn write(args: fmt::Arguments<'_>) {
    let mut piece = Piece { bytes: [0; LINE], len: 0 };
    // `Piece` never fails. An error can only come from the caller's `Display`, and cuts its text
    // short.
    let _ = piece.write_fmt(args);
    piece.flush();
}

/// Prints to the console.
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::console::write(format_args!($($arg)*)) };
}

/// Prints a line to the console.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($($arg:tt)*) => { $crate::console::write(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Makes the calling CPU the only one that writes to the console from now on. Returns false if
/// another CPU does not finish its piece in time. Interrupts are off.
pub(crate) fn seize() -> bool {
    // First, so that no other CPU begins another piece.
    SEIZED.store(cpu::current_id() + 1, Ordering::SeqCst);
    let deadline = clock::now() + LINE_TIME;
    loop {
        if let Some(guard) = UART.try_lock() {
            core::mem::forget(guard);
            return true;
        }
        if clock::now() >= deadline {
            return false;
        }
        core::hint::spin_loop();
    }
}

/// Waits until the serial port has sent all bytes.
pub(crate) fn drain() {
    Uart::new(COM1).await_status(LineStatus::HOLDING_EMPTY | LineStatus::IDLE);
}

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let us = clock::now().as_nanos() / 1000;
            write(format_args!(
                "[{:5}.{:06} {} {:5} {}] {}\n",
                us / 1_000_000,
                us % 1_000_000,
                cpu::this().id(),
                record.level(),
                record.target(),
                record.args()
            ));
        }
    }

    fn flush(&self) {}
}

pub(crate) fn init() {
    UART.lock().init();
    // Fails only if a logger was set before, and nothing else sets one.
    let _ = log::set_logger(&Logger);
    log::set_max_level(log::LevelFilter::Info);
}

/// Sets what is logged, as `log=LEVEL` says.
pub(crate) fn set_level(level: &str) {
    match level.parse() {
        Ok(level) => log::set_max_level(level),
        Err(_) => log::warn!("log={level} is no level; give off, error, warn, info, debug or trace"),
    }
}

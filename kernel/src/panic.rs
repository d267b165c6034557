//! Panics: a message and a backtrace on the console, and the end of the guest.
//!
//! The launcher adds function names and lines to the backtrace, so its form is fixed:
//! ```text
//! PANIC in thread 3 "name" on cpu 0 at kernel/src/x.rs:10:5: what happened
//! backtrace:
//!   at 0x0000000000123456
//! ```
//! One line of `  at 0x` and 16 hexadecimal digits for each frame, the innermost first. Each
//! address lies within the instruction that made the call, so it can be looked up as it is. A
//! fault's report begins with `FAULT` and has more lines before its backtrace. The first CPU that
//! panics or faults stops all others before it prints, so that its lines stay together.
#![expect(unsafe_code, reason = "follows frame pointers")]

use core::fmt;
use core::panic::PanicInfo;
use core::sync::atomic::Ordering;

use crate::lock::IrqOff;
use crate::memory::{self, StackAddress};
use crate::shutdown::{self, Status};
use crate::{cpu, println, thread};

/// More frames than fit on a stack.
const MOST_FRAMES: usize = 16_384;
/// How many frames are printed at either end of a deep stack.
const INNERMOST: usize = 32;
const OUTERMOST: usize = 32;

/// Prints which thread the calling CPU runs.
pub(crate) struct Where;

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = cpu::this();
        match thread::running() {
            Some(thread) => write!(f, "thread {} {:?}", thread.id(), thread.name())?,
            None => f.write_str("boot")?,
        }
        if cpu.interrupts.load(Ordering::Relaxed) > 0 {
            f.write_str(", in an interrupt handler")?;
        }
        write!(f, " on cpu {}", cpu.id())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _off = IrqOff::new();
    shutdown::begin_report(Status::Panic);
    match info.location() {
        Some(location) => println!("PANIC in {Where} at {location}: {}", info.message()),
        None => println!("PANIC in {Where}: {}", info.message()),
    }
    let frame: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    print_backtrace(None, frame);
    shutdown::exit(Status::Panic as i32)
}

/// Prints `rip`, if given, and then the return addresses from the frame at `rbp` outwards. Of a
/// deep stack, prints its two ends.
pub(crate) fn print_backtrace(rip: Option<u64>, rbp: u64) {
    println!("backtrace:");
    if let Some(rip) = rip {
        println!("  at {rip:#018x}");
    }
    let depth = Frames { next: rbp }.take(MOST_FRAMES).count();
    for (i, back) in (Frames { next: rbp }).take(depth).enumerate() {
        if i == INNERMOST && depth > INNERMOST + OUTERMOST {
            println!("  ... {} more ...", depth - INNERMOST - OUTERMOST);
        }
        if i < INNERMOST || i + OUTERMOST >= depth {
            println!("  at {:#018x}", back - 1);
        }
    }
}

/// The return addresses of a chain of frame pointers, the innermost first.
struct Frames {
    next: u64,
}

impl Iterator for Frames {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let frame = self.next;
        let StackAddress::Within { top } = memory::classify(frame) else { return None };
        if !frame.is_multiple_of(8) || top - frame < 16 {
            return None;
        }
        // SAFETY: both words lie within a mapped stack. Whatever their values, they are only
        // compared.
        let [next, back] = unsafe { *(frame as *const [u64; 2]) };
        // A caller's frame lies higher in the stack; anything else ends the chain after this frame.
        self.next = if next > frame { next } else { 0 };
        memory::is_code(back).then_some(back)
    }
}

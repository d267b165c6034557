//! How a thread begins.
#![expect(unsafe_code, reason = "makes threads' first stack frames")]

use alloc::boxed::Box;
use core::arch::naked_asm;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use platform::OutOfMemory;
use x86_64::instructions::interrupts;

use super::object::{ALIVE, Main, ThreadRef, current, make};
use super::run_queue::per_cpu;
use super::scheduler;
use crate::cpu::Cpu;
use crate::memory::Stack;

/// Makes the code that runs first on `cpu` its idle thread; that code goes on to
/// [`idle`](super::idle).
pub(crate) fn adopt_idler(cpu: &'static Cpu) {
    let idler = Box::leak(make("idle", None, None));
    idler.set_home(cpu);
    let idler = &raw mut *idler;
    per_cpu(cpu).idler.store(idler, Ordering::Relaxed);
    cpu.set_current(idler.cast());
}

/// Starts a thread.
pub fn spawn(name: &str, main: impl FnOnce() + Send + 'static) -> Result<(), OutOfMemory> {
    spawn_boxed(name, Box::new(main))
}

pub(crate) fn spawn_boxed(name: &str, main: Main) -> Result<(), OutOfMemory> {
    let stack = Stack::new()?;
    let top = stack.top();
    // What `scheduler::switch` pops: r15 up to rbp, then the return address. Two more words align
    // the stack as at a function's first instruction.
    let frame: [u64; 9] = [0, 0, 0, 0, 0, 0, enter as *const () as u64, 0, 0];
    let start = top - size_of_val(&frame) as u64;
    // SAFETY: the top of a stack that no thread uses yet.
    unsafe { *(start as *mut [u64; 9]) = frame };
    let thread = make(name, Some(stack), Some(main));
    // SAFETY: no other CPU can reach the thread yet.
    unsafe { *thread.stack_pointer.get() = start };
    ALIVE.fetch_add(1, Ordering::Relaxed);
    scheduler::admit(ThreadRef(NonNull::from(Box::leak(thread))));
    Ok(())
}

/// The first code of a thread: `switch` returns to it.
#[unsafe(naked)]
extern "C" fn enter() -> ! {
    naked_asm!("xor ebp, ebp", "call {}", "ud2", sym run)
}

extern "C" fn run() -> ! {
    scheduler::after_switch();
    interrupts::enable();
    let main = current().main.lock().take();
    if let Some(main) = main {
        main();
    }
    scheduler::end()
}

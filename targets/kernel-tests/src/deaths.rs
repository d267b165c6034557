//! Ways to die, one for each `die=NAME`. Each ends the guest with the status of a panic or a fault,
//! unless it is one that only the launcher can end.
#![expect(unsafe_code, reason = "raises faults on purpose")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use kernel::{println, thread};
use platform::Platform;

/// Dies in the way called `name`. Returns only if that failed.
pub fn die(name: &str, platform: &Arc<dyn Platform>) -> i32 {
    match name {
        "panic" => panic!("as asked for"),
        "panic-in-thread" => in_thread(|| panic!("as asked for, in a thread")),
        // One panic must be printed, with all its lines together.
        "panic-everywhere" => {
            static READY: AtomicU32 = AtomicU32::new(0);
            for _ in 0..kernel::cpus() {
                let _ = thread::spawn("victim", || {
                    READY.fetch_add(1, Ordering::SeqCst);
                    while READY.load(Ordering::SeqCst) < kernel::cpus() {
                        core::hint::spin_loop();
                    }
                    panic!("as asked for, everywhere")
                });
            }
            thread::sleep(Duration::from_secs(5));
            2
        }
        // The other threads' lines must be whole, and end before the fault's lines begin.
        "fault-amid-output" => {
            static LINES: AtomicU32 = AtomicU32::new(0);
            for _ in 0..kernel::cpus() {
                let _ = thread::spawn("chatterbox", || {
                    loop {
                        println!("chatter without an end, line after line after line");
                        LINES.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            while LINES.load(Ordering::SeqCst) < 100 {
                thread::yield_now();
            }
            // SAFETY: none.
            unsafe { core::arch::asm!("ud2") };
            2
        }
        "panic-in-interrupt" => {
            // The first vector that is claimed is vector 0x30.
            if let Some(vector) = kernel::interrupts::claim() {
                vector.set(Some(Box::new(|| panic!("as asked for, in an interrupt handler"))));
            }
            // SAFETY: none, here and below: the guest has to die of it.
            unsafe { core::arch::asm!("int 0x30") };
            2
        }
        "out-of-memory" => {
            let mut hoard: Vec<Vec<u8>> = Vec::new();
            loop {
                hoard.push(alloc::vec![1; 1 << 20]);
            }
        }
        // SAFETY: none.
        "null" => unsafe { core::ptr::without_provenance::<u64>(black_box(8)).read_volatile() as i32 },
        "write-code" => {
            let code = die as *const () as *mut u8;
            // SAFETY: none.
            unsafe { code.write_volatile(0) };
            2
        }
        "write-constant" => {
            let constant = "constant".as_ptr().cast_mut();
            // SAFETY: none.
            unsafe { constant.write_volatile(0) };
            2
        }
        "execute-data" => {
            static DATA: [u8; 16] = [0xc3; 16];
            // SAFETY: none.
            let code: extern "C" fn() = unsafe { core::mem::transmute(black_box(&DATA).as_ptr()) };
            code();
            2
        }
        "execute-stack" => {
            let data = black_box([0xc3_u8; 16]);
            // SAFETY: none.
            let code: extern "C" fn() = unsafe { core::mem::transmute(black_box(&data).as_ptr()) };
            code();
            2
        }
        "stack" => black_box(overflow(1)) as i32,
        "stack-in-thread" => in_thread(|| {
            black_box(overflow(1));
        }),
        "undefined" => {
            // SAFETY: none.
            unsafe { core::arch::asm!("ud2") };
            2
        }
        "protection" => {
            let wild = core::ptr::without_provenance::<u64>(black_box(0x8000_0000_0000_0000));
            // SAFETY: none.
            unsafe { wild.read_volatile() as i32 }
        }
        "mute" => {
            // Interrupts are off for ever, so the heartbeat stops, and the launcher ends the guest.
            let _lock = kernel::lock::IrqOff::new();
            loop {
                core::hint::spin_loop();
            }
        }
        "idle" => {
            // The heartbeat goes on, so the launcher must not end the guest before its time is up.
            let word = AtomicU32::new(0);
            loop {
                platform.wait(&word, 0, None);
            }
        }
        other => {
            println!("die={other}: no such way");
            3
        }
    }
}

fn in_thread(main: impl FnOnce() + Send + 'static) -> i32 {
    if thread::spawn("victim", main).is_ok() {
        thread::sleep(Duration::from_secs(5));
    }
    2
}

#[expect(unconditional_recursion, reason = "to overflow the stack")]
#[inline(never)]
fn overflow(n: u64) -> u64 {
    let frame = black_box([n; 32]);
    overflow(n + 1) + black_box(frame)[3]
}

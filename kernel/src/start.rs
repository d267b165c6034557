//! The order of boot, and how an image begins.
#![expect(unsafe_code, reason = "boot code makes the privileged token and calls the image")]

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use block::Disk;
use nic_hal::Transport;
use platform::{OutOfMemory, Platform, Privileged};

use crate::pvh::{BadStartInfo, StartData};
use crate::services::Services;
use crate::shutdown::{Status, exit};
use crate::{apic, args, calibrate, clock, console, cpu, interrupts, memory, pci, println, smp, thread};

/// The argument of an image's `main`.
pub struct Boot {
    /// The kernel's services.
    pub platform: Arc<dyn Platform>,
    /// Proof that this is boot code; only privileged consumers should get it.
    pub privileged: Privileged,
    /// The transports of the NICs, in order of bus, device and function.
    pub nics: Vec<Arc<dyn Transport>>,
    /// The disks, in the same order.
    pub disks: Vec<Arc<dyn Disk>>,
}

/// The moments of boot, as values of the time-stamp counter (see [`clock::at`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// The monitor entered the kernel.
    pub entry: u64,
    /// The first thread ran.
    pub first_thread: u64,
    /// The image's `main` was called.
    pub main: u64,
}

static FIRST_THREAD: AtomicU64 = AtomicU64::new(0);
static MAIN: AtomicU64 = AtomicU64::new(0);

/// The moments of boot.
pub fn timestamps() -> Timestamps {
    Timestamps {
        entry: clock::entry_tsc(),
        first_thread: FIRST_THREAD.load(Ordering::Relaxed),
        main: MAIN.load(Ordering::Relaxed),
    }
}

/// Makes `main`, a `fn(kernel::Boot) -> i32`, the image's first thread. Its result is the guest's
/// status: 0 for success, 1 to 99 as the image likes.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        #[expect(unsafe_code, reason = "the kernel finds the image's main function by its name")]
        const _: () = {
            #[unsafe(no_mangle)]
            fn ferrovia_image_main(boot: $crate::Boot) -> i32 {
                let main: fn($crate::Boot) -> i32 = $main;
                main(boot)
            }
        };
    };
}

unsafe extern "Rust" {
    /// Defined by [`entry!`].
    safe fn ferrovia_image_main(boot: Boot) -> i32;
}

fn unbootable(why: core::fmt::Arguments<'_>) -> ! {
    println!("cannot boot: {why}");
    exit(Status::Unbootable as i32)
}

/// Brings the kernel up to where threads can run, and queues the first thread.
pub(crate) fn boot(data: Result<StartData, BadStartInfo>) {
    cpu::init(0);
    interrupts::init_table();
    console::init();
    let data = match data {
        Ok(data) => data,
        Err(e) => unbootable(format_args!(
            "the monitor handed over no PVH start info ({e:?}); start the image by QEMU's -kernel, with \
             at most 4,095 bytes of command line"
        )),
    };
    args::init(data.command_line());
    if let Some(level) = args::args().get("log") {
        console::set_level(level);
    }
    data.complain();
    smp::find(&data);
    pci::find(&data);
    if let Err(e) = memory::init(&data) {
        unbootable(format_args!("{e}"));
    }
    interrupts::silence_legacy();
    if let Err(base) = apic::init() {
        unbootable(format_args!(
            "the registers of the local APIC at {base:#x} cannot be mapped: they overlap RAM, or memory is \
             full"
        ));
    }
    calibrate::measure();
    apic::start_timer();
    thread::adopt_idler(cpu::this());
    cpu::set_online();
    let first = thread::spawn("main", || match main() {
        Ok(status) => exit(status),
        Err(OutOfMemory) => unbootable(format_args!("out of memory; give the guest more")),
    });
    if let Err(OutOfMemory) = first {
        unbootable(format_args!("no memory for the first thread; give the guest more"));
    }
}

/// The first thread.
fn main() -> Result<i32, OutOfMemory> {
    FIRST_THREAD.store(clock::tsc(), Ordering::Relaxed);
    thread::start_heartbeat()?;
    platform::sync::set_yield(thread::yield_now);
    log::info!("{} MiB of RAM, counter at {} MHz", memory::size() >> 20, clock::tsc_hz() / 1_000_000);
    smp::start();
    let platform: Arc<dyn Platform> = Arc::new(Services);
    pci::attach(&platform);
    // SAFETY: this is boot code, and the image's main function is its continuation.
    let privileged = unsafe { Privileged::assert() };
    let boot = Boot { platform, privileged, nics: pci::nics(), disks: pci::disks() };
    MAIN.store(clock::tsc(), Ordering::Relaxed);
    Ok(ferrovia_image_main(boot))
}

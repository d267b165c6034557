//! Starting the other CPUs.
//!
//! A CPU that gets INIT and then a start-up interrupt begins in real mode at a page below 1 MiB whose number
//! the interrupt carries (Intel SDM volume 3, "Multiple-Processor (MP) Initialization"). What is put there only
//! changes to protected mode; the rest runs where it was linked. The kernel's page tables serve from the
//! first: they map the code where it lies. Which CPU it is, and which stack is its own, a CPU learns by its
//! APIC number, so one that comes late finds its own place still.
#![expect(unsafe_code, reason = "code for a CPU's first instructions, and stacks for it")]

use core::arch::global_asm;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use spin::Once;

use crate::cpu::{self, MAX_CPUS};
use crate::memory::{self, Stack};
use crate::pvh::StartData;
use crate::{acpi, apic, clock, interrupts, thread};

/// What the manual wants between INIT and the start-up interrupt.
const INIT_TIME: Duration = Duration::from_millis(10);
/// How long a CPU has until it is sent a second start-up interrupt, and until it is given up.
const START_TIME: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(2000)];
/// Between two looks at whether it has come.
const LOOK: Duration = Duration::from_micros(100);

/// What was found out while the firmware's tables were in reach.
struct Found {
    apic_ids: [u8; MAX_CPUS],
    len: usize,
    /// A page below 1 MiB for the first instructions.
    page: u64,
}

static FOUND: Once<Found> = Once::new();

/// The number of the CPU with each APIC number.
static IDS: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];
/// The top of the stack of the CPU with each APIC number; 0 for those that are not to be started.
static STACKS: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// The page tables.
static ROOT: AtomicU32 = AtomicU32::new(0);

// The page at the interrupt's address, in real mode: CS is the page, offsets count from it.
global_asm!(
    r#"
    .pushsection .rodata.trampoline, "a", @progbits
    .code16
trampoline_start:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    lgdtl trampoline_gdt - trampoline_start
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x10, $start_protected
    .balign 4
trampoline_gdt:
    .word 31
    .long start_gdt
trampoline_end:
    .balign 8
start_gdt:
    .quad 0
    .quad 0x00af9b000000ffff // 0x08: 64-bit code
    .quad 0x00cf9b000000ffff // 0x10: 32-bit code
    .quad 0x00cf93000000ffff // 0x18: data
    .popsection

    .pushsection .boot.text, "ax", @progbits
    .code32
start_protected:
    movw $0x18, %ax
    movw %ax, %ds
    movl %cr4, %eax
    orl $0x20, %eax          // PAE
    movl %eax, %cr4
    movl {root}, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx   // EFER
    rdmsr
    orl $0x900, %eax         // LME, NXE
    wrmsr
    movl %cr0, %eax
    andl $0x9fffffff, %eax   // CD and NW, which INIT sets
    orl $0x80010001, %eax    // PG, WP, PE
    movl %eax, %cr0
    ljmpl $0x08, $start_long

    .code64
start_long:
    xorl %eax, %eax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw %ax, %fs
    movw %ax, %gs
    movl $1, %eax
    cpuid
    shrl $24, %ebx           // the APIC number
    movq {stacks}(,%rbx,8), %rsp
    testq %rsp, %rsp
    jz 1f
    movl %ebx, %edi
    xorl %ebp, %ebp
    call {start}
1:  cli
    hlt
    jmp 1b
    .popsection
    "#,
    root = sym ROOT,
    stacks = sym STACKS,
    start = sym started,
    options(att_syntax)
);

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_end: u8;
}

/// Finds the CPUs, and a page for them to begin in. While the boot page tables are in use.
pub(crate) fn find(data: &StartData) {
    let mut apic_ids = [0; MAX_CPUS];
    // SAFETY: the monitor named the RSDP; nothing has written to memory that is not RAM, and the boot page
    // tables map the first 4 GiB.
    let len = unsafe { acpi::cpus(data.rsdp(), &mut apic_ids) };
    if let Some(page) = memory::low_page(data) {
        FOUND.call_once(|| Found { apic_ids, len, page });
    }
}

/// Starts the CPUs that were found, and waits until they run. In a thread.
pub(crate) fn start() {
    let Some(found) = FOUND.get() else { return };
    let boot = cpu::get(0).apic_id();
    let others = || found.apic_ids[..found.len].iter().map(|id| u32::from(*id)).filter(|id| *id != boot);
    if others().next().is_none() {
        return;
    }
    ROOT.store(memory::root(), Ordering::Relaxed);
    // SAFETY: the page was found free, is never given out, and is larger than what goes there.
    unsafe {
        let len = (&raw const trampoline_end) as usize - (&raw const trampoline_start) as usize;
        core::ptr::copy_nonoverlapping(&raw const trampoline_start, found.page as *mut u8, len);
    }
    let mut asked = 0;
    for (number, apic_id) in (1..MAX_CPUS).zip(others()) {
        let Ok(stack) = Stack::new() else {
            log::warn!("cpu {number} is not started: no memory for its stack");
            break;
        };
        let cpu = cpu::get(number);
        cpu.set_apic_id(apic_id);
        thread::adopt_idler(cpu);
        IDS[apic_id as usize].store(number as u8, Ordering::Relaxed);
        STACKS[apic_id as usize].store(stack.top(), Ordering::SeqCst);
        // The idler never ends, and neither does its use of the stack.
        core::mem::forget(stack);
        apic::send_init(cpu);
        asked = number;
    }
    thread::sleep(INIT_TIME);
    for patience in START_TIME {
        for number in (1..=asked).filter(|number| !cpu::is_online(*number)) {
            apic::send_start(cpu::get(number), found.page);
        }
        let deadline = clock::now() + patience;
        while !(1..=asked).all(cpu::is_online) && clock::now() < deadline {
            thread::sleep(LOOK);
        }
    }
    for number in (1..=asked).filter(|number| !cpu::is_online(*number)) {
        log::warn!("cpu {number}, APIC {}, does not start", cpu::get(number).apic_id());
    }
    log::info!("{} CPUs", cpu::count());
}

/// A CPU's first Rust code, on its idler's stack with interrupts off.
extern "C" fn started(apic_id: u32) -> ! {
    let number = IDS[apic_id as usize & 0xff].load(Ordering::Relaxed);
    cpu::init(usize::from(number));
    interrupts::init_table();
    memory::enter();
    apic::init_other();
    apic::start_timer();
    thread::answer_round();
    cpu::set_online();
    thread::idle()
}

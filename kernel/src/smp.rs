//! Starting the other CPUs.
//!
//! After INIT and a start-up interrupt a CPU begins in real mode, at a page below 1 MiB whose
//! number the interrupt carries (Intel SDM volume 3, "Multiple-Processor (MP) Initialization"). The
//! code there only changes to protected mode; the rest runs where it was linked. The CPU uses the
//! kernel's page tables at once, since they map that code where it lies. A CPU finds its own number
//! and its stack by its APIC number, so one that starts late still finds them.
#![expect(unsafe_code, reason = "code for a CPU's first instructions, and stacks for it")]

use core::arch::global_asm;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use spin::Once;

use crate::cpu::{self, MAX_CPUS};
use crate::memory::{self, Stack};
use crate::pvh::StartData;
use crate::{acpi, apic, clock, interrupts, thread};

/// The time that the manual asks for between INIT and the start-up interrupt.
const INIT_TIME: Duration = Duration::from_millis(10);
/// How long a CPU has to start after the first start-up interrupt, and after the second.
const START_TIME: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(2000)];
/// The time between two checks whether it has started.
const LOOK: Duration = Duration::from_micros(100);

/// What [`find`] found while the firmware's tables could be read.
struct Found {
    apic_ids: [u8; MAX_CPUS],
    len: usize,
    /// A page below 1 MiB for the first instructions.
    page: u64,
}

static FOUND: Once<Found> = Once::new();

/// The CPU's number, by its APIC number.
static IDS: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];
/// The top of the CPU's stack, by its APIC number; 0 for CPUs that are not to start.
static STACKS: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// The address of the page tables.
static ROOT: AtomicU32 = AtomicU32::new(0);

// The page that the interrupt names, in real mode: CS is the page, and offsets count from its
// start.
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

/// Finds the CPUs, and a page for their first instructions. Runs while the boot page tables are in
/// use.
pub(crate) fn find(data: &StartData) {
    let mut apic_ids = [0; MAX_CPUS];
    // SAFETY: the monitor named the RSDP, nothing has written to memory that is not RAM, and the
    // boot page tables map the first 4 GiB.
    let len = unsafe { acpi::cpus(data.rsdp(), &mut apic_ids) };
    if let Some(page) = memory::low_page(data) {
        FOUND.call_once(|| Found { apic_ids, len, page });
    }
}

/// Starts the CPUs that [`find`] found, and waits until they run threads. Must run in a thread.
pub(crate) fn start() {
    let Some(found) = FOUND.get() else { return };
    let boot = cpu::get(0).apic_id();
    if found.len == 0 {
        log::warn!("ACPI has no list of CPUs (MADT): the kernel runs on one CPU, whatever there is");
    }
    let others = || found.apic_ids[..found.len].iter().map(|id| u32::from(*id)).filter(|id| *id != boot);
    if others().next().is_none() {
        return;
    }
    ROOT.store(memory::root(), Ordering::Relaxed);
    // SAFETY: the page is unused, is never allocated, and is larger than the code.
    unsafe {
        let len = (&raw const trampoline_end) as usize - (&raw const trampoline_start) as usize;
        core::ptr::copy_nonoverlapping(&raw const trampoline_start, found.page as *mut u8, len);
    }
    let mut asked = 0;
    for (number, apic_id) in (1..MAX_CPUS).zip(others()) {
        let Ok(stack) = Stack::new() else {
            log::warn!("cpu {number} is not started: there is no memory for its stack; give the guest more");
            break;
        };
        let cpu = cpu::get(number);
        cpu.set_apic_id(apic_id);
        thread::adopt_idler(cpu);
        IDS[apic_id as usize].store(number as u8, Ordering::Relaxed);
        STACKS[apic_id as usize].store(stack.top(), Ordering::SeqCst);
        // The stack is the idle thread's, which never ends.
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
        log::warn!(
            "cpu {number} (APIC {}) did not start; the kernel goes on without it",
            cpu::get(number).apic_id()
        );
    }
    log::info!("{} CPUs", cpu::count());
}

/// A CPU's first Rust code. Runs on its idle thread's stack, with interrupts off.
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

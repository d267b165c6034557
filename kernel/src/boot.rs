//! The PVH entry point: from the monitor's jump to the first Rust code.
//!
//! PVH (Xen's docs/misc/pvh.pandoc, "direct boot ABI"): 32-bit protected mode, no paging, EBX holds
//! the address of an `hvm_start_info`. QEMU finds the entry point in an ELF note of type 18. The
//! stub maps the first 4 GiB where they lie, enters long mode, and calls [`kernel_start`];
//! [`crate::memory`] replaces these page tables.
#![expect(unsafe_code, reason = "the machine's entry point")]

use core::arch::global_asm;
use core::cell::UnsafeCell;

use crate::clock::ENTRY_TSC;
use crate::memory::{BOOT_STACK, BOOT_STACK_END};
use crate::region::PAGE;
use crate::{pvh, start, thread};

/// Memory that only the CPU and assembly touch.
#[repr(C, align(4096))]
struct Pages<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: Rust code only takes its address.
unsafe impl<const N: usize> Sync for Pages<N> {}

static BOOT_PML4: Pages<PAGE> = Pages(UnsafeCell::new([0; PAGE]));
static BOOT_PDPT: Pages<PAGE> = Pages(UnsafeCell::new([0; PAGE]));
static BOOT_PD: Pages<{ 4 * PAGE }> = Pages(UnsafeCell::new([0; 4 * PAGE]));

global_asm!(
    r#"
    .pushsection .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad _start
    .popsection

    .pushsection .boot.text, "ax", @progbits
    .code32
    .global _start
_start:
    cli
    cld
    mov esp, offset {stack} + {stack_end}
    call check_cpu
    rdtsc
    mov dword ptr [{tsc}], eax
    mov dword ptr [{tsc} + 4], edx

    // One PML4 entry, four PDPT entries, and 2048 pages of 2 MiB.
    mov eax, offset {pdpt}
    or eax, 3
    mov dword ptr [{pml4}], eax
    mov edi, offset {pdpt}
    mov eax, offset {pd}
    or eax, 3
    mov ecx, 4
2:  mov dword ptr [edi], eax
    add eax, 0x1000
    add edi, 8
    dec ecx
    jnz 2b
    mov edi, offset {pd}
    mov eax, 0x83
    mov ecx, 2048
3:  mov dword ptr [edi], eax
    add eax, 0x200000
    add edi, 8
    dec ecx
    jnz 3b

    mov eax, cr4
    or eax, 0x20            // PAE
    mov cr4, eax
    mov eax, offset {pml4}
    mov cr3, eax
    mov ecx, 0xc0000080     // EFER
    rdmsr
    or eax, 0x100           // LME
    wrmsr
    mov eax, cr0
    or eax, 0x80010001      // PG, WP, PE
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    push 8
    mov eax, offset boot_long_mode
    push eax
    retf

    .code64
boot_long_mode:
    xor eax, eax
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov fs, ax
    mov gs, ax
    mov edi, ebx
    mov esp, offset {stack} + {stack_end}
    xor ebp, ebp
    call {start}
    ud2
    .popsection

    .pushsection .rodata.boot, "a", @progbits
    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff
boot_gdt_pointer:
    .word 15
    .long boot_gdt
    .popsection
    "#,
    tsc = sym ENTRY_TSC,
    stack = sym BOOT_STACK,
    stack_end = const BOOT_STACK_END,
    pml4 = sym BOOT_PML4,
    pdpt = sym BOOT_PDPT,
    pd = sym BOOT_PD,
    start = sym kernel_start,
);

/// The first Rust code. Runs on the boot stack, with interrupts off and the first 4 GiB mapped.
extern "C" fn kernel_start(info: u64) -> ! {
    // SAFETY: `info` is what the monitor left in EBX, no memory has been written but the image's
    // own, and the first 4 GiB are mapped where they lie.
    let info = unsafe { pvh::read(info) };
    start::boot(info);
    thread::idle()
}

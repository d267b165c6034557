//! What the kernel needs of the CPU. The machine's first instructions check it.
//!
//! A CPU that lacks something would raise a fault before there is a handler, and the machine would
//! reset itself: for ever, or, under QEMU's `-no-reboot`, with a status that looks like success. So
//! the check comes before everything else, in 32-bit code that needs no more than CPUID. It writes
//! one line to the serial port and ends the guest with [`Status::Unbootable`].
//!
//! The kernel and its images are compiled without x87, MMX and SSE, so none of these is needed: not
//! for fences either, which are locked instructions.
#![expect(unsafe_code, reason = "code for the CPU's first instructions")]

use core::arch::global_asm;
use core::ffi::{CStr, c_char};

use crate::console::COM1;
use crate::shutdown::{EXIT_PORT, OFFSET, Status};

/// A feature of the CPU, by its place in CPUID's answer. (Intel SDM volume 2, "CPUID"; AMD APM
/// volume 3, appendix E.)
#[repr(C)]
struct Need {
    leaf: u32,
    /// A bit of EDX.
    bit: u32,
    /// The feature in words, with the name that QEMU's `-cpu` has for it.
    name: *const c_char,
}

// SAFETY: the names are constants.
unsafe impl Sync for Need {}

const fn need(leaf: u32, bit: u32, name: &'static CStr) -> Need {
    Need { leaf, bit: 1 << bit, name: name.as_ptr() }
}

/// All that is needed, in the order of the check.
static NEEDS: [Need; 8] = [
    need(0x8000_0001, 29, c"64-bit mode (lm)"),
    // Page tables: forbidding execution, global pages, and the entries of long mode.
    need(0x8000_0001, 20, c"way to forbid execution by page (nx)"),
    need(1, 6, c"physical address extension (pae)"),
    need(1, 13, c"global pages (pge)"),
    // EFER, the bases of FS and GS, the APIC's base.
    need(1, 5, c"model-specific registers (msr)"),
    need(1, 4, c"time-stamp counter (tsc)"),
    need(1, 9, c"local APIC (apic)"),
    // What the compiler assumes of every 64-bit CPU.
    need(1, 15, c"conditional moves (cmov)"),
];

/// `\0` ends each text.
static BEFORE: &CStr = c"cannot boot: the CPU has no ";
static AFTER: &CStr = c"; choose a model that has it, such as QEMU's -cpu max\n";
static CPUID: &CStr = c"CPUID instruction";

/// How often the serial port's status is read before a byte is written regardless.
const PATIENCE: u32 = 1_000_000;

global_asm!(
    r#"
    .pushsection .boot.text, "ax", @progbits
    .code32
    // Returns if the CPU has all that is needed. Keeps EBX; there is a stack.
    .global check_cpu
check_cpu:
    mov ebp, ebx
    mov ebx, dword ptr [{cpuid}]
    // A CPU with CPUID lets software change bit 21 of the flags.
    pushfd
    pop eax
    mov ecx, eax
    xor eax, 0x200000
    push eax
    popfd
    pushfd
    pop eax
    xor eax, ecx
    test eax, 0x200000
    jz cpu_lacks

    mov esi, offset {needs}
2:  cmp esi, offset {needs} + {size}
    je 4f
    // The highest leaf of the range. A CPU without the range answers something lower.
    mov eax, dword ptr [esi]
    and eax, 0x80000000
    cpuid
    xor edx, edx
    cmp eax, dword ptr [esi]
    jb 3f
    mov eax, dword ptr [esi]
    xor ecx, ecx
    cpuid
3:  mov ebx, dword ptr [esi + 8]
    test edx, dword ptr [esi + 4]
    jz cpu_lacks
    add esi, 16
    jmp 2b
4:  mov ebx, ebp
    ret

    // Writes the line and ends the guest. EBX: what the CPU has not.
cpu_lacks:
    mov edi, ebx
    // 115200 baud, 8 bits, no parity, one stop bit.
    mov edx, {com1} + 1
    xor eax, eax
    out dx, al
    mov edx, {com1} + 3
    mov al, 0x80
    out dx, al
    mov edx, {com1}
    mov al, 1
    out dx, al
    mov edx, {com1} + 1
    xor eax, eax
    out dx, al
    mov edx, {com1} + 3
    mov al, 3
    out dx, al
    mov esi, dword ptr [{before}]
    call write_text
    mov esi, edi
    call write_text
    mov esi, dword ptr [{after}]
    call write_text
    mov bl, 0x40            // all bytes have been sent
    call await_serial
    mov edx, {exit_port}
    mov eax, {status}
    out dx, eax
5:  hlt
    jmp 5b

write_text:
    mov bl, 0x20            // there is room for a byte
    call await_serial
    lodsb
    test al, al
    jz 6f
    mov edx, {com1}
    out dx, al
    jmp write_text
6:  ret

    // Waits for a bit of the line status, for a bounded time.
await_serial:
    mov ecx, {patience}
    mov edx, {com1} + 5
7:  in al, dx
    test al, bl
    jnz 8f
    dec ecx
    jnz 7b
8:  ret
    .popsection
    "#,
    needs = sym NEEDS,
    size = const size_of_val(&NEEDS),
    before = sym BEFORE,
    after = sym AFTER,
    cpuid = sym CPUID,
    com1 = const COM1,
    exit_port = const EXIT_PORT,
    status = const OFFSET + Status::Unbootable as u32,
    patience = const PATIENCE,
);

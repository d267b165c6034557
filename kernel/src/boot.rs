//! From the monitor's jump to Rust: the PVH entry point and what the monitor tells.
//!
//! PVH (Xen's docs/misc/pvh.pandoc, "direct boot ABI"): 32-bit protected mode, no paging, EBX holds the
//! address of an `hvm_start_info`. QEMU finds the entry point in an ELF note of type 18. The stub maps the
//! first 4 GiB as they are, enters long mode, and calls [`kernel_start`]; [`crate::memory`] replaces these
//! tables with proper ones.
#![expect(unsafe_code, reason = "the machine's entry point, and tables that the monitor left in memory")]

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::ffi::CStr;

use spin::Once;

use crate::memory::{PAGE, Region};
use crate::{acpi, start, thread};

/// The size of the stack that boot runs on.
const STACK: usize = 64 * 1024;

/// Memory that only the CPU and assembly touch.
#[repr(C, align(4096))]
struct Pages<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: Rust code only takes its address.
unsafe impl<const N: usize> Sync for Pages<N> {}

/// The boot stack's lowest page is a guard that [`crate::memory`] unmaps.
static BOOT_STACK: Pages<{ PAGE + STACK }> = Pages(UnsafeCell::new([0; PAGE + STACK]));
static BOOT_PML4: Pages<PAGE> = Pages(UnsafeCell::new([0; PAGE]));
static BOOT_PDPT: Pages<PAGE> = Pages(UnsafeCell::new([0; PAGE]));
static BOOT_PD: Pages<{ 4 * PAGE }> = Pages(UnsafeCell::new([0; 4 * PAGE]));
/// The time-stamp counter at the entry point.
static BOOT_TSC: UnsafeTsc = UnsafeTsc(UnsafeCell::new(0));

#[repr(transparent)]
struct UnsafeTsc(UnsafeCell<u64>);
// SAFETY: written by the entry stub only, before there is a second thread.
unsafe impl Sync for UnsafeTsc {}

/// The counter's value at the entry point.
pub(crate) fn entry_tsc() -> u64 {
    // SAFETY: nothing writes it any more.
    unsafe { *BOOT_TSC.0.get() }
}

/// The boot stack, without its guard.
pub(crate) fn boot_stack() -> Region {
    Region { start: BOOT_STACK.0.get() as u64 + PAGE as u64, len: STACK as u64 }
}

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
    rdtsc
    mov dword ptr [{tsc}], eax
    mov dword ptr [{tsc} + 4], edx
    mov esp, offset {stack} + {stack_size}

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
    mov esp, offset {stack} + {stack_size}
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
    tsc = sym BOOT_TSC,
    stack = sym BOOT_STACK,
    stack_size = const PAGE + STACK,
    pml4 = sym BOOT_PML4,
    pdpt = sym BOOT_PDPT,
    pd = sym BOOT_PD,
    start = sym kernel_start,
);

/// The first Rust code; runs on the boot stack with interrupts off and all of the first 4 GiB mapped.
extern "C" fn kernel_start(info: u64) -> ! {
    // SAFETY: the monitor hands over a start info, and nothing has been overwritten yet.
    let info = unsafe { parse(info) };
    start::boot(info);
    thread::idle()
}

/// PVH's `hvm_start_info`.
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

const MAGIC: u32 = 0x336e_c578;
const _: () = assert!(size_of::<StartInfo>() == 56);

/// PVH's `hvm_modlist_entry`.
#[repr(C)]
struct ModuleEntry {
    address: u64,
    size: u64,
    command_line: u64,
    reserved: u64,
}

/// PVH's `hvm_memmap_table_entry`; types as in ACPI's E820.
#[repr(C)]
struct MemoryEntry {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

const KIND_RAM: u32 = 1;

/// Why the machine cannot be booted on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BadStartInfo {
    /// The magic number is wrong: this was no PVH boot.
    Magic,
    /// There is no memory map (start info of version 0).
    NoMemoryMap,
}

/// A file that the launcher loaded beside the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// Its bytes. They lie in RAM that devices reach, like all RAM.
    pub data: &'static [u8],
    /// The string that came with it.
    pub command_line: &'static str,
}

static MODULES: Once<&'static [ModuleEntry]> = Once::new();

/// The files that the launcher loaded beside the kernel, in its order.
pub fn modules() -> impl ExactSizeIterator<Item = Module> {
    MODULES.get().copied().unwrap_or(&[]).iter().map(|entry| {
        // SAFETY: the monitor put the module there, and the memory was reserved before anything else was
        // allocated (`StartData::reserved`). The string is checked below.
        let data = unsafe { slice(entry.address, entry.size) };
        // SAFETY: as above.
        Module { data, command_line: unsafe { string(entry.command_line) } }
    })
}

/// What the monitor told.
pub(crate) struct StartData {
    pub(crate) command_line: &'static str,
    memory_map: &'static [MemoryEntry],
    rsdp: u64,
    info: Region,
}

impl StartData {
    /// The regions of RAM, page-aligned, in the monitor's order.
    pub(crate) fn ram(&self) -> impl Iterator<Item = Region> {
        self.memory_map.iter().filter(|e| e.kind == KIND_RAM).filter_map(|e| {
            let page = PAGE as u64;
            let start = e.address.checked_next_multiple_of(page)?;
            let end = e.address.checked_add(e.size)? & !(page - 1);
            (end > start).then(|| Region { start, len: end - start })
        })
    }

    /// See [`acpi::cpus`]. While the boot page tables are in use.
    pub(crate) fn cpus(&self, found: &mut [u8]) -> usize {
        // SAFETY: the monitor named the RSDP; nobody writes to what is not RAM but for devices' memory.
        unsafe { acpi::cpus(self.rsdp, found) }
    }

    /// What in RAM must never be given out: what the monitor left there.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = Region> {
        let list = MODULES.get().copied().unwrap_or(&[]);
        let tables = [
            self.info,
            Region::of(self.memory_map),
            Region::of(self.command_line.as_bytes()),
            Region::of(list),
        ];
        let modules = modules().flat_map(|m| [Region::of(m.data), Region::of(m.command_line.as_bytes())]);
        tables.into_iter().chain(modules)
    }
}

/// # Safety
///
/// `info` is 0 or what the monitor left in EBX, and what it points to is intact.
unsafe fn parse(info: u64) -> Result<StartData, BadStartInfo> {
    let address = info;
    // SAFETY: the caller's promise; the structure is read-only from here on.
    let Some(info) = (unsafe { (info as *const StartInfo).as_ref() }) else {
        return Err(BadStartInfo::Magic);
    };
    if info.magic != MAGIC {
        return Err(BadStartInfo::Magic);
    }
    if info.version == 0 || info.memory_map == 0 {
        return Err(BadStartInfo::NoMemoryMap);
    }
    // SAFETY: the monitor's tables, as the start info describes them.
    let memory_map = unsafe { slice(info.memory_map, u64::from(info.memory_map_entries)) };
    // SAFETY: as above.
    MODULES.call_once(|| unsafe { slice(info.module_list, u64::from(info.modules)) });
    // SAFETY: as above.
    let command_line = unsafe { string(info.command_line) };
    Ok(StartData {
        command_line,
        memory_map,
        rsdp: info.rsdp,
        info: Region { start: address, len: size_of::<StartInfo>() as u64 },
    })
}

/// # Safety
///
/// There are `len` values at `address`, for ever, unless one of the two is 0.
unsafe fn slice<T>(address: u64, len: u64) -> &'static [T] {
    if address == 0 || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(address as *const T, len as usize) }
}

/// # Safety
///
/// There is a C string at `address`, for ever, unless it is 0.
unsafe fn string(address: u64) -> &'static str {
    if address == 0 {
        return "";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(address as *const _) }.to_str().unwrap_or("")
}

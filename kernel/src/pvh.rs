//! What the monitor hands over: the command line, the memory map, modules.
//!
//! The structures are PVH's (Xen's docs/misc/pvh.pandoc, "direct boot ABI"). They are read where
//! the monitor put them; [`StartData::reserved`] names that memory, so that the kernel never
//! allocates it.
#![expect(unsafe_code, reason = "structures that the monitor left in memory")]

use core::ffi::CStr;

use spin::Once;

use crate::region::{PAGE, Region};

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

/// Why the kernel cannot boot with this start info.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BadStartInfo {
    /// Its magic number is wrong: the kernel was not started by PVH.
    Magic,
    /// It has no memory map (start info of version 0).
    NoMemoryMap,
}

/// A file that the monitor loaded beside the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// The file's bytes. They lie in RAM, so devices can reach them.
    pub data: &'static [u8],
    /// The module's own command line.
    pub command_line: &'static str,
}

static MODULES: Once<&'static [ModuleEntry]> = Once::new();

/// The files that the monitor loaded beside the kernel, in the monitor's order.
pub fn modules() -> impl ExactSizeIterator<Item = Module> {
    MODULES.get().copied().unwrap_or(&[]).iter().map(|entry| {
        // SAFETY: the monitor put the module there, and its memory was reserved before anything was
        // allocated (`StartData::reserved`).
        let data = unsafe { slice(entry.address, entry.size) };
        // SAFETY: as above.
        Module { data, command_line: unsafe { string(entry.command_line) } }
    })
}

/// The start info's content.
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

    /// The address of ACPI's root pointer (RSDP), or 0.
    pub(crate) fn rsdp(&self) -> u64 {
        self.rsdp
    }

    /// The RAM that holds what the monitor left, and must never be allocated.
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
/// `info` is 0 or what the monitor left in EBX, and the structures that it leads to are intact.
pub(crate) unsafe fn parse(info: u64) -> Result<StartData, BadStartInfo> {
    let address = info;
    // SAFETY: the caller's promise; nothing writes to the structure any more.
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
/// `len` values are at `address` for good, unless one of the two is 0.
unsafe fn slice<T>(address: u64, len: u64) -> &'static [T] {
    if address == 0 || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(address as *const T, len as usize) }
}

/// # Safety
///
/// A C string is at `address` for good, unless that is 0.
unsafe fn string(address: u64) -> &'static str {
    if address == 0 {
        return "";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(address as *const _) }.to_str().unwrap_or("")
}
